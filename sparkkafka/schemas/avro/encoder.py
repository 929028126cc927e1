"""One Arrow column -> payloads of one schema."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from sparkkafka.errors import OptionError
from sparkkafka.protocol.records.arrow import from_numpy, is_valid
from sparkkafka.protocol.records.placing import PAD, Room
from sparkkafka.schemas.avro.encode_nested import Joined
from sparkkafka.schemas.avro.encode_scalars import ConstantWriter, Writer
from sparkkafka.schemas.avro.nested import pack
from sparkkafka.schemas.values import ValueRowError, type_words

CHUNK_ROWS: Final = 8192
"""Encoded at a time at most: what is worked on stays in the processor's cache."""

_MOST_BYTES = (1 << 31) - 1  # of an array with offsets of 32 bits


class AvroEncoder:
    """See `schemas.values.Encoder`."""

    def __init__(self, writer: Writer, given: pa.DataType) -> None:
        self._writer = writer
        self._given = given

    def encode(self, values: pa.Array, front: bytes = b"") -> pa.Array:
        """As `Encoder.encode`; of large_binary if there are more than 2 GiB."""
        if values.type != self._given:
            raise OptionError(
                f"the column is {type_words(values.type)}, not {type_words(self._given)} as was "
                "said before"
            )
        arrays = []
        step = -(-len(values) // max(1, -(-len(values) // CHUNK_ROWS)))  # 10,000 as 5,000 twice
        for low in range(0, len(values), max(step, 1)):
            try:
                arrays.append(self._encode_chunk(values.slice(low, step), front))
            except ValueRowError as error:
                if not low:
                    raise
                raise ValueRowError(low + error.row, error.reason) from None
        if not arrays:
            return pa.nulls(0, pa.binary())
        if len(arrays) == 1:
            return arrays[0]
        if sum(array.nbytes for array in arrays) > _MOST_BYTES:
            arrays = [array.cast(pa.large_binary()) for array in arrays]
        return pa.concat_arrays(arrays)

    def _encode_chunk(self, values: pa.Array, front: bytes) -> pa.Array:
        count = len(values)
        rows = None
        valid = None
        if values.null_count:
            valid = is_valid(values)
            rows = np.flatnonzero(valid)
            values = values.take(from_numpy(rows))
        some = rows
        filler = self._writer.prepare(values, None if some is None else lambda at: int(some[at]))
        if front:
            filler = Joined([ConstantWriter("", front).prepare(values, None), filler])
        ends = np.zeros(count + 1, np.int64)
        if rows is None:
            ends[1:] = filler.sizes
        else:
            ends[1:][rows] = filler.sizes
        np.cumsum(ends, out=ends)
        total = int(ends[-1])
        memory = np.empty(total + PAD, np.uint8)
        at = ends[:-1] if rows is None else ends[rows]
        filler.write(memory, at, Room(0, filler.least))
        large = total > _MOST_BYTES
        offsets = ends if large else ends.astype(np.int32)
        content = pa.py_buffer(memory).slice(0, total)
        buffers = [None if valid is None else pack(valid), pa.py_buffer(offsets), content]
        return pa.Array.from_buffers(pa.large_binary() if large else pa.binary(), count, buffers)
