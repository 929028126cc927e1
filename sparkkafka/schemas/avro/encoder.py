"""One Arrow column -> payloads of one schema, by writers that are made of schema and type. What
does not fit is told when they are made, before any row.

The rules are those of Spark's AvroSerializer, but nothing is dropped in silence: a column that the
schema lacks is an error.
"""

from __future__ import annotations

import difflib
from typing import Final

import numpy as np
import pyarrow as pa

from sparkkafka.errors import OptionError
from sparkkafka.protocol.records.arrow import from_numpy, is_valid
from sparkkafka.protocol.records.varint_columns import PAD, Room
from sparkkafka.protocol.wire.varints import zigzag_bytes
from sparkkafka.schemas.avro import schema as avro
from sparkkafka.schemas.avro.defaults import default_bytes
from sparkkafka.schemas.avro.encode_nested import (
    Joined,
    ListWriter,
    MapWriter,
    RecordWriter,
    UnionWriter,
)
from sparkkafka.schemas.avro.encode_scalars import (
    BlobWriter,
    BooleanWriter,
    ConstantWriter,
    DecimalWriter,
    EnumWriter,
    FixedWriter,
    FloatWriter,
    LongWriter,
    UuidWriter,
    Writer,
    to_millis,
    to_nanos,
)
from sparkkafka.schemas.avro.json_text import (
    WRITER_LEVELS,
    AvroBytesWriter,
    JsonTextWriter,
    Level,
    shared,
)
from sparkkafka.schemas.avro.nested import pack
from sparkkafka.schemas.avro.schema import MAX_DIGITS, MISSING, Field, Node, below, place
from sparkkafka.schemas.avro.types import is_text, parts, type_if_any
from sparkkafka.schemas.avro.wire_plan import wire_of
from sparkkafka.schemas.values import ValueRowError, type_name

CHUNK_ROWS: Final = 8192
"""Encoded at a time at most: what is worked on stays in the processor's cache."""

_MAX_BYTES = (1 << 31) - 1  # of an array with offsets of 32 bits

_INTS: Final = {pa.int8(): np.int8, pa.int16(): np.int16, pa.int32(): np.int32}
_LONGS: Final = {**_INTS, pa.int64(): np.int64}


class AvroEncoder:
    """See `schemas.values.Encoder`."""

    def __init__(self, writer: Writer, given: pa.DataType) -> None:
        self._writer = writer
        self._given = given

    def encode(self, values: pa.Array, prefix: bytes = b"") -> pa.Array:
        """As `Encoder.encode`; of large_binary if there are more than 2 GiB."""
        if values.type != self._given:
            raise OptionError(
                f"the column is {type_name(values.type)}, not {type_name(self._given)} as was "
                "said before"
            )
        arrays = []
        step = -(-len(values) // max(1, -(-len(values) // CHUNK_ROWS)))  # 10,000 as 5,000 twice
        for low in range(0, len(values), max(step, 1)):
            try:
                arrays.append(self._encode_chunk(values.slice(low, step), prefix))
            except ValueRowError as error:
                if not low:
                    raise
                raise ValueRowError(low + error.row, error.reason) from None
        if not arrays:
            return pa.nulls(0, pa.binary())
        if len(arrays) == 1:
            return arrays[0]
        if sum(array.nbytes for array in arrays) > _MAX_BYTES:
            arrays = [array.cast(pa.large_binary()) for array in arrays]
        return pa.concat_arrays(arrays)

    def _encode_chunk(self, values: pa.Array, prefix: bytes) -> pa.Array:
        count = len(values)
        rows = None
        valid = None
        if values.null_count:
            valid = is_valid(values)
            rows = np.flatnonzero(valid)
            values = values.take(from_numpy(rows))
        some = rows
        filler = self._writer.prepare(values, None if some is None else lambda at: int(some[at]))
        if prefix:
            filler = Joined([ConstantWriter("", prefix).prepare(values, None), filler])
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
        large = total > _MAX_BYTES
        offsets = ends if large else ends.astype(np.int32)
        content = pa.py_buffer(memory).slice(0, total)
        buffers = [None if valid is None else pack(valid), pa.py_buffer(offsets), content]
        return pa.Array.from_buffers(pa.large_binary() if large else pa.binary(), count, buffers)


def compile_writer(node: Node, given: pa.DataType, path: str = "") -> Writer:
    """A writer of a column. Raises OptionError, which names the field, if it does not fit."""
    if is_text(node, given):
        return _text(node, given, path)
    if node.kind == avro.UNION:
        return _union(node, given, path)
    if node.kind == avro.RECORD and pa.types.is_struct(given):
        return _record(node, given, path)
    if node.kind == avro.ARRAY and (pa.types.is_list(given) or pa.types.is_large_list(given)):
        return ListWriter(path, compile_writer(node.item, given.value_type, f"{path}[]"))
    if node.kind == avro.MAP and pa.types.is_map(given) and _is_text(given.key_type):
        inner = f"{path}{{}}"
        return MapWriter(path, BlobWriter(inner), compile_writer(node.item, given.item_type, inner))
    if node.kind == avro.NULL:
        return ConstantWriter(path, b"", null=True)
    writer = _scalar(node, given, path)
    if writer is None:
        raise OptionError(
            f"{place(path)}: {type_name(given)} cannot be written as {node} of the Avro schema"
        )
    return writer


def _text(node: Node, given: pa.DataType, path: str) -> Writer:
    """A writer of what recurs, from JSON text or Avro's bytes."""
    if pa.types.is_binary(given):
        return AvroBytesWriter(path, wire_of(node, path))
    with shared(WRITER_LEVELS) as levels:
        level = levels.get(node.identity)
        if level is None:
            level = levels[node.identity] = Level(node)
            level.writer = compile_writer(node, level.type, node.name or path)
    return JsonTextWriter(path, level)


def _record(node: Node, given: pa.DataType, path: str) -> Writer:
    places: dict[str, int] = {}
    for number, field in enumerate(given):
        if field.name in places:
            raise OptionError(f"{place(below(path, field.name))} appears twice in the column")
        places[field.name] = number
    names = [field.name for field in node.fields]
    for name in places:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise OptionError(
                f"{place(below(path, name))} of the column is not in the Avro schema, whose record "
                f"{node.name} has {', '.join(names[:20]) or 'no fields'}{hint}"
            )
    fields: list[tuple[Writer, int | None]] = []
    for own in node.fields:
        at = below(path, own.name)
        number = places.get(own.name, -1)
        if number >= 0:
            fields.append((compile_writer(own.node, given.field(number).type, at), number))
        else:
            fields.append((_default(own, at), None))
    return RecordWriter(path, fields)


def _default(field: Field, path: str) -> Writer:
    """What is written for a field that the column lacks."""
    if field.default is not MISSING:
        return ConstantWriter(path, default_bytes(field.node, field.default, path))
    if field.node.kind == avro.NULL:
        return ConstantWriter(path, b"")
    null = _null_branch(field.node)
    if null is None:
        raise OptionError(
            f"{place(path)} of the Avro schema is not in the column, and has neither a default nor "
            "null"
        )
    return ConstantWriter(path, zigzag_bytes(null))


def _null_branch(node: Node) -> int | None:
    kinds = [branch.kind for branch in node.branches]
    return kinds.index(avro.NULL) if avro.NULL in kinds else None


# --- unions -------------------------------------------------------------------------------------


def _union(node: Node, given: pa.DataType, path: str) -> Writer:
    null = _null_branch(node)
    rest, _ = parts(node)
    if not rest or pa.types.is_null(given):
        if null is None:
            raise OptionError(f"{place(path)}: null cannot be written as {node} of the Avro schema")
        return UnionWriter(
            path, null, [(null, ConstantWriter(path, b"", null=True))], members=False
        )
    members = [f"member{k}" for k in range(len(rest))]
    if (
        len(rest) > 1
        and pa.types.is_struct(given)
        and given.num_fields
        and all(field.name in members for field in given)
    ):
        branches = []
        for field in given:
            number = rest[members.index(field.name)]
            at = below(path, field.name)
            branches.append((number, compile_writer(node.branches[number], field.type, at)))
        return UnionWriter(path, null, branches, members=True)
    # The branch whose type it is, or else the first one that takes it; not as JSON text or bytes of
    # what recurs, if there is another one.
    errors: list[OptionError] = []
    for number in sorted(
        rest, key=lambda i: (type_if_any(node.branches[i]) != given, node.branches[i].recurs)
    ):
        try:
            writer = compile_writer(node.branches[number], given, path)
        except OptionError as error:
            errors.append(error)
            continue
        return UnionWriter(path, null, [(number, writer)], members=False)
    if len(errors) == 1:
        raise errors[0]
    raise OptionError(
        f"{place(path)}: {type_name(given)} fits no branch of {node} of the Avro schema"
    )


# --- types without types below ------------------------------------------------------------------


def _scalar(node: Node, given: pa.DataType, path: str) -> Writer | None:
    """None if the type does not fit."""
    kind = node.kind
    types = pa.types
    if kind == avro.BOOLEAN and types.is_boolean(given):
        return BooleanWriter(path)
    if kind == avro.INT:
        return _int(node, given, path)
    if kind == avro.LONG:
        return _long(node, given, path)
    if kind == avro.FLOAT and types.is_float32(given):
        return FloatWriter(path, np.float32, np.dtype("<f4"))
    if kind == avro.DOUBLE:
        from_type = {pa.float32(): np.float32, pa.float64(): np.float64, pa.int32(): np.int32}
        if given in from_type:
            return FloatWriter(path, from_type[given], np.dtype("<f8"))
    if kind == avro.ENUM and _is_text(given):
        return EnumWriter(path, node.symbols)
    if kind == avro.STRING and _is_text(given):
        return BlobWriter(path)
    if kind in (avro.BYTES, avro.FIXED):
        return _bytes(node, given, path)
    return None


def _int(node: Node, given: pa.DataType, path: str) -> Writer | None:
    if given in _INTS:
        return LongWriter(path, _INTS[given])
    if node.logical == avro.DATE and pa.types.is_date32(given):
        return LongWriter(path, np.int32)
    return None


def _long(node: Node, given: pa.DataType, path: str) -> Writer | None:
    if given in _LONGS:
        return LongWriter(path, _LONGS[given])
    if node.logical == avro.INTERVAL and given == pa.duration("us"):
        return LongWriter(path, np.int64)
    if pa.types.is_timestamp(given) and given.unit == "us":
        meaning = "local-timestamp" if given.tz is None else "timestamp"
        if node.meaning == meaning:
            change = {"millis": to_millis, "micros": None, "nanos": to_nanos}[node.time_unit]
            return LongWriter(path, np.int64, change)
    return None


def _bytes(node: Node, given: pa.DataType, path: str) -> Writer | None:
    fixed = node.kind == avro.FIXED
    if pa.types.is_binary(given) or pa.types.is_large_binary(given):
        return FixedWriter(path, node.size) if fixed else BlobWriter(path)
    if node.logical == avro.UUID and fixed and _is_text(given):
        return UuidWriter(path)
    if node.logical == avro.DECIMAL and pa.types.is_decimal128(given):
        more = node.scale - given.scale
        if more >= 0 and given.precision + more <= MAX_DIGITS:
            size = node.size if fixed else None
            digits = min(node.precision, MAX_DIGITS)
            return DecimalWriter(path, given, digits, node.scale, size)
    return None


def _is_text(given: pa.DataType) -> bool:
    return bool(pa.types.is_string(given) or pa.types.is_large_string(given))
