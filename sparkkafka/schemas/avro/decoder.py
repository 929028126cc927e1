"""Payloads of one writer's schema -> one Arrow column, chunk by chunk.

A chunk's columns stay in the processor's cache, and what is made on the way is a small multiple of
the chunk's bytes, whatever the bytes are.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from sparkkafka.errors import counted
from sparkkafka.protocol.records.arrow import is_valid
from sparkkafka.protocol.records.varint_columns import Bytes, Ints
from sparkkafka.schemas.avro.cursor import PADDING, PARKED, Chunk, Cursor
from sparkkafka.schemas.avro.nested import masked
from sparkkafka.schemas.avro.scalars import Reader
from sparkkafka.schemas.bounds import limit_reasons, slot_bytes
from sparkkafka.schemas.values import Decoded, MemoryBudget

CHUNK_ROWS: Final = 8192
CHUNK_BYTES: Final = 1 << 20
"""Most bytes of a chunk; a larger payload is a chunk of its own."""

_MAX_BYTES = (1 << 31) - 1024  # of a payload: positions go into Arrow's offsets of 32 bits


class AvroDecoder:
    """See `schemas.values.Decoder`."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._row_bytes = slot_bytes(reader.type) + reader.defaults

    @property
    def type(self) -> pa.DataType:
        return self._reader.type

    def decode(self, payloads: pa.Array, budget: MemoryBudget | None = None) -> Decoded:
        budget = budget or MemoryBudget(payloads)
        budget.take(len(payloads) * self._row_bytes)
        data, offsets = _blobs(payloads)
        valid = is_valid(payloads)
        arrays: list[pa.Array] = []
        bad: list[int] = []
        reasons: list[str] = []
        low = 0
        while low < len(payloads):
            limit = int(offsets[low]) + CHUNK_BYTES
            high = int(np.searchsorted(offsets, limit, side="right")) - 1
            high = min(max(high, low + 1), low + CHUNK_ROWS, len(payloads))
            edges = offsets[low : high + 1]
            values, found = self._decode_chunk(data, edges, valid[low:high], budget)
            arrays.append(values)
            for row in sorted(found):
                bad.append(low + row)
                reasons.append(found[row])
            low = high
        if not arrays:
            values = pa.nulls(0, self.type)
        else:
            values = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
        return Decoded(values, np.array(bad, np.int64), limit_reasons(reasons))

    def _decode_chunk(
        self, data: Bytes, offsets: Ints, valid: np.ndarray, budget: MemoryBudget
    ) -> tuple[pa.Array, dict[int, str]]:
        begin, end = int(offsets[0]), int(offsets[-1])
        count = len(offsets) - 1
        if end - begin > _MAX_BYTES:
            return pa.nulls(count, self.type), {0: f"the value: {end - begin:,} bytes are too many"}
        own = np.zeros(end - begin + PADDING, np.uint8)
        own[: end - begin] = data[begin:end]
        chunk = Chunk(own, np.diff(offsets), budget)
        cursor = Cursor(chunk, offsets[:-1] - begin, offsets[1:] - begin)
        if not valid.all():
            cursor = cursor.only(valid)
        values = self._reader.read(cursor)
        ends = cursor.end
        left = (cursor.at != ends) & (ends != PARKED)
        if left.any():
            over = ends - cursor.at
            cursor.fail(left, "", lambda row: f"{counted(int(over[row]), 'byte')} left over")
        good = valid & ~chunk.dead
        if not good.all():
            values = masked(values, good)
        return values, chunk.reasons


def _blobs(payloads: pa.Array) -> tuple[Bytes, Ints]:
    """The bytes, and each value's offset in them."""
    if pa.types.is_null(payloads.type):
        payloads = payloads.cast(pa.binary())
    elif not (pa.types.is_binary(payloads.type) or pa.types.is_large_binary(payloads.type)):
        payloads = payloads.cast(pa.large_binary())
    width = np.int64 if pa.types.is_large_binary(payloads.type) else np.int32
    _, offsets, content = payloads.buffers()
    if not len(payloads) or offsets is None:
        return np.zeros(0, np.uint8), np.zeros(len(payloads) + 1, np.int64)
    edges = np.frombuffer(offsets, width)[payloads.offset : payloads.offset + len(payloads) + 1]
    data = np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
    return data, edges.astype(np.int64)
