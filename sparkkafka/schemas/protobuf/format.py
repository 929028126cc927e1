"""The five functions of a format, for Protobuf; see `sparkkafka/schemas/values.py`.

The decoder is our own: ptars (Rust) is a fifth faster, but has no bad rows, and ends the process
with a segmentation fault for nested groups. protobuf's runtime makes an object for each message.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sparkkafka.errors import OptionError, SchemaError
from sparkkafka.protocol.columns.columns import validity
from sparkkafka.protocol.records.arrow import is_valid
from sparkkafka.schemas.bounds import check_levels, of_schema
from sparkkafka.schemas.protobuf.columns import Layout, Notes, fields_of, layout, struct
from sparkkafka.schemas.protobuf.compiler import compiled
from sparkkafka.schemas.protobuf.descriptors import (
    find_message,
    message_indexes,
    message_name,
    message_names,
    message_of,
)
from sparkkafka.schemas.protobuf.encode import ProtobufEncoder
from sparkkafka.schemas.protobuf.normal import Normalizer
from sparkkafka.schemas.protobuf.plan import Message, plan, resolve
from sparkkafka.schemas.protobuf.scalars import binary_array
from sparkkafka.schemas.protobuf.tags import inline_tags
from sparkkafka.schemas.protobuf.text import schema_of
from sparkkafka.schemas.protobuf.wire import Data, Ints
from sparkkafka.schemas.values import FIRST_MESSAGE, Decoded, Decoder, Encoder, MemoryBudget, Schema

__all__ = [
    "arrow_type",
    "compiled",
    "decoder",
    "encoder",
    "inline_tags",
    "message_indexes",
    "message_name",
    "message_names",
    "schema_of",
]


@of_schema
def arrow_type(
    schema: Schema, *, message: tuple[int, ...] = FIRST_MESSAGE, depth: int | None = None
) -> pa.DataType:
    """The struct that a message becomes. Raises SchemaError for one that cannot."""
    kind = plan(message_of(schema, message), None, depth=depth).type
    return kind if depth is None else check_levels(kind, depth)


@of_schema
def decoder(
    writer: Schema,
    reader: Schema | None,
    wanted: pa.DataType | None,
    *,
    message: tuple[int, ...] = FIRST_MESSAGE,
    rest: bool = False,
) -> Decoder:
    """A decoder by the reader's fields, which are found by their numbers.

    `message`: of the writer's schema. The reader's is that of the same name. Raises SchemaError if
    there is none, or if a field has become what reads the writer's bytes wrong.
    """
    if rest:
        raise OptionError("Protobuf has no rest: unknown fields have no names")
    if reader is None or reader == writer:
        return ProtobufDecoder(plan(message_of(writer, message), wanted))
    written = message_of(writer, message)
    own = find_message(reader, written.full_name)
    if own is None:
        raise SchemaError(f"the reader's schema has no message {written.full_name}")
    return ProtobufDecoder(resolve(written, plan(own, wanted)))


@of_schema
def encoder(
    schema: Schema, given: pa.DataType, *, message: tuple[int, ...] = FIRST_MESSAGE
) -> Encoder:
    """An encoder of a struct, whose columns are fields by name. Raises OptionError for a column
    that the message lacks, or whose type does not fit, and for a required field without column."""
    return ProtobufEncoder(plan(message_of(schema, message), given, writing=True))


class ProtobufDecoder:
    """See `values.Decoder`."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._plain = layout(message, normal=False)
        self._normal = layout(message, normal=True)
        self._normalizer: Normalizer | None = None

    @property
    def type(self) -> pa.DataType:
        return self._message.type

    def decode(self, payloads: pa.Array, budget: MemoryBudget | None = None) -> Decoded:
        count = len(payloads)
        budget = budget or MemoryBudget(payloads)
        budget.take(count * self._plain.size)
        valid = is_valid(payloads) if payloads.null_count else None
        given = payloads if valid is None else payloads.drop_null()
        values, notes = _decoded(self._plain, given, budget)
        bad, again, redone = notes.bad, [], []
        for row in np.flatnonzero(notes.odd).tolist():
            bad.pop(row, None)  # of an odd message only a part was read
            found = self._normalized(bytes(given[row].as_buffer()))
            if isinstance(found, str):
                bad[row] = found
            else:
                again.append(row)
                redone.append(found)
        if again:
            others, more = _decoded(self._normal, binary_array(redone), MemoryBudget(payloads))
            for index, row in enumerate(again):
                if index in more.bad:
                    bad[row] = more.bad[index]
                elif more.odd[index]:
                    bad[row] = f"message {self._message.full_name}: its bytes cannot be read"
            values = pa.concat_arrays([values, others])
        if valid is None and not bad and not again:
            return Decoded(values, np.zeros(0, np.int64), ())
        place = np.zeros(count, np.int32)
        good = np.ones(count, np.bool_) if valid is None else valid.copy()
        row_of = np.arange(count) if valid is None else np.flatnonzero(valid)
        place[row_of] = np.arange(len(given), dtype=np.int32)
        place[row_of[again]] = len(given) + np.arange(len(again), dtype=np.int32)
        bad_given = np.array(sorted(bad), np.int64)
        bad_rows = row_of[bad_given]
        good[bad_rows] = False
        reasons = tuple(bad[row] for row in bad_given.tolist())
        if valid is None and not again:
            arrays = [values.field(index) for index in range(values.type.num_fields)]
            return Decoded(struct(self._plain, arrays, count, good), bad_rows, reasons)
        index = pa.Array.from_buffers(pa.int32(), count, [validity(good), pa.py_buffer(place)])
        return Decoded(values.take(index), bad_rows, reasons)

    def _normalized(self, payload: bytes) -> bytes | str:
        if self._normalizer is None:
            self._normalizer = Normalizer(self._message)
        return self._normalizer.normal(payload)


def _decoded(plan: Layout, payloads: pa.Array, budget: MemoryBudget) -> tuple[pa.Array, Notes]:
    data, starts, ends = _content(payloads)
    count = len(payloads)
    notes = Notes(np.zeros(count, np.bool_), budget)
    arrays = fields_of(plan, data, starts, ends, np.arange(count), notes)
    return struct(plan, arrays, count, None), notes


def _content(payloads: pa.Array) -> tuple[Data, Ints, Ints]:
    """The payloads' bytes, and where each begins and ends in them."""
    if not len(payloads):
        return Data(np.zeros(0, np.uint8)), np.zeros(0, np.int64), np.zeros(0, np.int64)
    wide = pa.types.is_large_binary(payloads.type) or pa.types.is_large_string(payloads.type)
    kind = np.int64 if wide else np.int32
    _, offsets_, content = payloads.buffers()
    offsets = np.frombuffer(offsets_, kind)[payloads.offset : payloads.offset + len(payloads) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    whole = np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
    data = Data(whole, first, last)
    at = offsets.astype(np.int64)
    if data.shift != first:
        at -= first
    return data, at[:-1], at[1:]
