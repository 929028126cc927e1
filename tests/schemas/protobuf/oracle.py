"""protobuf's own runtime, message by message: what a decoder must give, and messages by Hypothesis.

Written from descriptors alone; nothing of the package's plans is used, but the column's type.

The runtime is upb's. In one case its peers (Java, Go, C++, and the runtime in plain Python) differ
from it: they skip an unknown field in an entry of a map, where upb drops the entry. The oracle
takes such fields out before upb reads the message.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
from random import Random
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor as Kind
from google.protobuf.message import DecodeError
from hypothesis import strategies as st

from sparkkafka.schemas.protobuf import compiler
from sparkkafka.schemas.values import Schema

BAD = object()
"""Instead of a value: the payload is a bad row."""

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
JSON = ("google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue")
WIDE = decimal.Context(prec=100, Emax=999999, Emin=-999999)
UNSIGNED_LIMITS = {Kind.TYPE_INT32: 31, Kind.TYPE_SINT32: 31}


class Oracle:
    """Of one message of a schema."""

    def __init__(self, schema: Schema, name: str) -> None:
        files = descriptor_pb2.FileDescriptorSet.FromString(compiler.descriptor_set(schema))
        self.pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            self.pool.Add(file)
        self.descriptor = self.pool.FindMessageTypeByName(name)
        self.message = message_factory.GetMessageClass(self.descriptor)

    def value(self, payload: bytes, kind: pa.DataType) -> Any:
        """The row, or BAD."""
        try:
            parsed = self.message.FromString(_known_in_entries(payload, self.descriptor))
        except DecodeError:
            return BAD
        try:
            return struct(parsed, kind)
        except _BadError:
            return BAD


class _BadError(Exception):
    pass


WIRE_TYPES = {
    **dict.fromkeys((Kind.TYPE_DOUBLE, Kind.TYPE_FIXED64, Kind.TYPE_SFIXED64), 1),
    **dict.fromkeys((Kind.TYPE_FLOAT, Kind.TYPE_FIXED32, Kind.TYPE_SFIXED32), 5),
    **dict.fromkeys((Kind.TYPE_STRING, Kind.TYPE_BYTES, Kind.TYPE_MESSAGE), 2),
    Kind.TYPE_GROUP: 3,
}


def _known_in_entries(payload: bytes, descriptor: Any) -> bytes:
    """The message without unknown fields in entries of maps. Damaged bytes stay what they are."""
    try:
        out, _ = _walked(payload, 0, descriptor, 0)
    except (IndexError, ValueError, RecursionError):
        return payload
    return out


def _walked(data: bytes, at: int, descriptor: Any, group: int) -> tuple[bytes, int]:
    """The fields up to the end of the data, or of the group with this number."""
    is_entry = descriptor is not None and descriptor.GetOptions().map_entry
    out = b""
    while at < len(data):
        start = at
        tag, at = varint(data, at)
        number, wire = tag >> 3, tag & 7
        if not 8 <= tag < 1 << 32 or at - start > 5:
            raise ValueError(tag)
        if wire == 4:
            if number != group:
                raise ValueError(tag)
            return out, at
        field = None if descriptor is None else descriptor.fields_by_number.get(number)
        if field is not None and wire != WIRE_TYPES.get(field.type, 0):
            field = None
        inner = None if field is None else field.message_type
        if inner is not None and inner.full_name in JSON:
            inner = None  # which json_format reads
        if wire == 3:
            inside, after = _walked(data, at, inner, number)
            end_tag = encoded(number << 3 | 4)
            value = data[start:at] + inside + end_tag
        elif wire == 2:
            size, begin = varint(data, at)
            after = begin + size
            if after > len(data):
                raise ValueError(size)
            inside = data[begin:after]
            if inner is not None:
                inside, _ = _walked(inside, 0, inner, 0)
            value = data[start:at] + encoded(len(inside)) + inside
        elif wire in (0, 1, 5):
            after = varint(data, at)[1] if wire == 0 else at + {1: 8, 5: 4}[wire]
            if after > len(data):
                raise ValueError(tag)
            value = data[start:after]
        else:
            raise ValueError(tag)
        if field is not None or not is_entry:
            out += value
        at = after
    if group:
        raise ValueError(group)
    return out, at


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for position in range(10):
        value |= (data[at + position] & 0x7F) << (7 * position)
        if data[at + position] < 0x80:
            return value & ((1 << 64) - 1), at + position + 1
    raise ValueError(value)


def encoded(value: int, width: int = 1) -> bytes:
    """A varint of at least so many bytes."""
    out = bytearray()
    while value >= 0x80 or len(out) + 1 < width:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def struct(message: Any, kind: pa.DataType) -> dict[str, Any]:
    fields = message.DESCRIPTOR.fields_by_name
    return {column.name: _field(message, fields[column.name], column.type) for column in kind}


def is_map(field: Any) -> bool:
    return bool(
        field.is_repeated and field.message_type and field.message_type.GetOptions().map_entry
    )


def _field(message: Any, field: Any, kind: pa.DataType) -> Any:
    if is_map(field):
        entry = field.message_type.fields_by_name
        found = getattr(message, field.name)
        return [
            (
                _one(key, entry["key"], kind.key_type),
                _one(found[key], entry["value"], kind.item_type),
            )
            for key in found
        ]
    if field.is_repeated:
        return [_one(item, field, kind.value_type) for item in getattr(message, field.name)]
    absent = field.has_presence and not message.HasField(field.name)
    if absent and field.is_required:
        raise _BadError  # of the column's fields alone: what is not read need not be there
    has_default = field.has_default_value and field.containing_oneof is None
    if absent and (field.message_type is not None or not has_default):
        return None
    return _one(_text(message, field), field, kind)


def _text(message: Any, field: Any) -> Any:
    try:
        return getattr(message, field.name)
    except UnicodeDecodeError:
        raise _BadError from None


def _one(value: Any, field: Any, kind: pa.DataType) -> Any:
    if field.message_type is not None:
        return _message(value, field.message_type.full_name, kind)
    if field.enum_type is not None and pa.types.is_string(kind):
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    if isinstance(value, bytes) and field.type == Kind.TYPE_STRING:
        raise _BadError  # protobuf gives bytes for what is not UTF-8
    if pa.types.is_decimal(kind):
        return decimal.Decimal(value).quantize(decimal.Decimal(1).scaleb(-kind.scale), context=WIDE)
    if pa.types.is_integer(kind) and not -(1 << (kind.bit_width - 1)) <= value < 1 << (
        kind.bit_width - 1
    ):
        raise _BadError
    if pa.types.is_floating(kind):
        return float(value)
    return value


def _message(message: Any, name: str, kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return struct(message, kind)
    if name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        nanos = message.nanos
        micros = message.seconds * 1_000_000 + (nanos // 1000 if nanos >= 0 else -(-nanos // 1000))
        if not -(1 << 63) <= micros < 1 << 63:
            raise _BadError
        return micros
    if name == "google.type.Date":
        try:
            return dt.date(message.year, message.month, message.day)
        except (ValueError, OverflowError):
            raise _BadError from None
    if name == "confluent.type.Decimal":
        return _decimal(message, kind)
    if name in JSON:
        try:
            value = json_format.MessageToDict(message)
            json.dumps(value, allow_nan=False)
        except (ValueError, json_format.Error):
            raise _BadError from None
        return value
    if pa.types.is_string(kind) and not name.startswith("google.protobuf."):  # it contains itself
        return json.dumps(json_format.MessageToDict(message, preserving_proto_field_name=True))
    return _one(message.value, message.DESCRIPTOR.fields[0], kind)


def _decimal(message: Any, kind: pa.DataType) -> decimal.Decimal:
    unscaled = int.from_bytes(message.value, "big", signed=True)
    if unscaled == 0:
        return decimal.Decimal(0).scaleb(-kind.scale)
    if abs(message.scale) > 1000:
        raise _BadError
    value = decimal.Decimal(unscaled).scaleb(-message.scale, WIDE)
    moved = value.scaleb(kind.scale, WIDE)
    if moved != moved.to_integral_value(context=WIDE) or abs(moved) >= 10**kind.precision:
        raise _BadError
    return value.quantize(decimal.Decimal(1).scaleb(-kind.scale), context=WIDE)


def comparable(value: Any, kind: pa.DataType) -> Any:
    """A value as both sides can be compared: maps as sorted pairs, times as microseconds, JSON as
    values, NaN as text."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {column.name: comparable(value[column.name], column.type) for column in kind}
    if pa.types.is_map(kind):
        pairs = [
            (comparable(key, kind.key_type), comparable(item, kind.item_type))
            for key, item in value
        ]
        return sorted(pairs, key=lambda pair: repr(pair[0]))
    if pa.types.is_list(kind):
        return [comparable(item, kind.value_type) for item in value]
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dt.datetime):
        return (value.replace(tzinfo=value.tzinfo or dt.UTC) - EPOCH) // dt.timedelta(
            microseconds=1
        )
    if isinstance(value, dt.timedelta):
        return value // dt.timedelta(microseconds=1)
    return value


def rows_of(array: pa.Array) -> list[Any]:
    """`to_pylist`, but with times as integers, which need not fit Python's."""
    return _plain(array).to_pylist()


def _plain(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return array.cast(pa.int64())
    if pa.types.is_struct(kind):
        children = [_plain(array.field(i)) for i in range(kind.num_fields)]
        fields = [pa.field(kind[i].name, child.type) for i, child in enumerate(children)]
        mask = array.is_null() if array.null_count else None
        if not fields:
            return array
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    if pa.types.is_list(kind) and array.offset == 0:
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(array.offsets, _plain(array.values), mask=mask)
    if pa.types.is_map(kind) and array.offset == 0:
        mask = array.is_null() if array.null_count else None
        keys, items = _plain(array.keys), _plain(array.items)
        return pa.MapArray.from_arrays(array.offsets, keys, items, mask=mask)
    return array


# --- messages -------------------------------------------------------------------------------------

_RANGES = {
    Kind.TYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    Kind.TYPE_SINT32: (-(1 << 31), (1 << 31) - 1),
    Kind.TYPE_SFIXED32: (-(1 << 31), (1 << 31) - 1),
    Kind.TYPE_UINT32: (0, (1 << 32) - 1),
    Kind.TYPE_FIXED32: (0, (1 << 32) - 1),
    Kind.TYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    Kind.TYPE_SINT64: (-(1 << 63), (1 << 63) - 1),
    Kind.TYPE_SFIXED64: (-(1 << 63), (1 << 63) - 1),
    Kind.TYPE_UINT64: (0, (1 << 64) - 1),
    Kind.TYPE_FIXED64: (0, (1 << 64) - 1),
}


def messages(descriptor: Any) -> st.SearchStrategy[Any]:
    """Messages with any fields set; required ones always."""
    return _filled(descriptor, 0)


@st.composite
def _filled(draw: Any, descriptor: Any, depth: int) -> Any:
    message = message_factory.GetMessageClass(descriptor)()
    name = descriptor.full_name
    if name in JSON:
        _json(draw, message, name)
        return message
    fields = [field for field in descriptor.fields if field.type != Kind.TYPE_MESSAGE or depth < 4]
    chosen = draw(st.sets(st.sampled_from(fields))) if fields else set()
    chosen |= {field for field in fields if field.is_required}
    for field in sorted(chosen, key=lambda field: field.number):
        _fill(draw, message, field, depth)
    return message


def _json(draw: Any, message: Any, name: str) -> None:
    leaf = st.none() | st.booleans() | st.floats(-1e6, 1e6) | st.text(max_size=4)
    value = st.recursive(
        leaf,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=5,
    )
    if name.endswith("Struct"):
        value = st.dictionaries(st.text(max_size=3), value, max_size=3)
    elif name.endswith("ListValue"):
        value = st.lists(value, max_size=3)
    json_format.ParseDict(draw(value), message)


def _fill(draw: Any, message: Any, field: Any, depth: int) -> None:
    if is_map(field):
        entry = field.message_type.fields_by_name
        target = getattr(message, field.name)
        for key in draw(st.lists(_scalar(entry["key"]), max_size=3, unique=True)):
            if entry["value"].message_type is not None:
                target[key].CopyFrom(draw(_filled(entry["value"].message_type, depth + 1)))
            else:
                target[key] = draw(_scalar(entry["value"]))
        return
    if field.message_type is not None:
        inner = _filled(field.message_type, depth + 1)
        if field.is_repeated:
            for item in draw(st.lists(inner, max_size=3)):
                getattr(message, field.name).add().CopyFrom(item)
        else:
            getattr(message, field.name).CopyFrom(draw(inner))
        return
    if field.is_repeated:
        getattr(message, field.name).extend(draw(st.lists(_scalar(field), max_size=4)))
    else:
        setattr(message, field.name, draw(_scalar(field)))


def _scalar(field: Any) -> st.SearchStrategy[Any]:
    name = field.containing_type.full_name
    if name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        return (
            st.integers(-(1 << 33), 1 << 33)
            if field.name == "seconds"
            else st.integers(0, 999_999_999)
        )
    if name == "google.type.Date":
        return st.integers(1, {"year": 9999, "month": 12, "day": 28}[field.name])
    if name == "confluent.type.Decimal" and field.name == "scale":
        return st.integers(0, 4)
    if field.type in _RANGES:
        low, high = _RANGES[field.type]
        return st.integers(low, high) | st.integers(max(low, -300), 300)
    if field.type == Kind.TYPE_BOOL:
        return st.booleans()
    if field.type == Kind.TYPE_STRING:
        return st.text(max_size=8)
    if field.type == Kind.TYPE_BYTES:
        return st.binary(max_size=9)
    if field.type == Kind.TYPE_ENUM:
        known = st.sampled_from([value.number for value in field.enum_type.values])
        return known if field.enum_type.is_closed else known | st.integers(-5, 1 << 20)
    return st.floats(width=64 if field.type == Kind.TYPE_DOUBLE else 32)


# --- bytes ----------------------------------------------------------------------------------------


def wire_message(descriptor: Any, chance: Random, depth: int = 0) -> bytes:
    """Bytes of a message as no writer in order writes them: fields in any order, some several times
    (messages in parts), unknown fields and groups, numbers wider than their field, entries of maps
    with too little and too much. Required fields are often there."""
    fields = [field for field in descriptor.fields if field.message_type is None or depth < 3]
    chosen = [field for field in fields if field.is_required and chance.random() < 0.95]
    if fields:
        few = 2 if descriptor.GetOptions().map_entry or depth else 4
        chosen += [chance.choice(fields) for _ in range(chance.randrange(few + 1))]
    chance.shuffle(chosen)
    out = b""
    for field in chosen:
        if chance.random() < 0.05:
            out += _unknown(chance, descriptor)
        out += _wire_field(field, chance, depth)
    return out + (_unknown(chance, descriptor) if chance.random() < 0.1 else b"")


def _wire_field(field: Any, chance: Random, depth: int) -> bytes:
    wire = WIRE_TYPES.get(field.type, 0)
    tag = encoded(field.number << 3 | wire)
    if field.message_type is not None:
        inside = wire_message(field.message_type, chance, depth + 1)
        if wire == 3:
            return tag + inside + encoded(field.number << 3 | 4)
        return tag + encoded(len(inside)) + inside
    if field.is_repeated and wire != 2 and chance.random() < 0.5:
        inside = b"".join(_wire_scalar(field, chance) for _ in range(chance.randrange(4)))
        return encoded(field.number << 3 | 2) + encoded(len(inside)) + inside
    return tag + _wire_scalar(field, chance)


def _wire_scalar(field: Any, chance: Random) -> bytes:
    wire = WIRE_TYPES.get(field.type, 0)
    if wire == 2:
        text = chance.choice(("", "a", "b", "Ä", "0123456789"))
        return encoded(len(text.encode())) + text.encode()
    if wire:
        return chance.choice((bytes(8), chance.randbytes(8)))[: 8 if wire == 1 else 4]
    if field.containing_type.full_name == "google.protobuf.Timestamp" and field.name == "seconds":
        return encoded(chance.choice((0, 1, (1 << 64) - 1, 1 << 33)))
    number = chance.choice(
        (
            *(0, 1, 2, 3, 7, 99, 300, (1 << 64) - 3, (1 << 32) - 1, 1 << 31, 1 << 32),
            *((1 << 32) + 1, (1 << 64) - 1, 1 << 63, chance.getrandbits(64)),
        )
    )
    return encoded(number, chance.choice((1, 1, 1, 3, 10)))


def _unknown(chance: Random, descriptor: Any) -> bytes:
    """A field of another number, or of a known one with another wire type."""
    number = chance.choice((5000, 31, *[field.number for field in descriptor.fields]))
    known = descriptor.fields_by_number.get(number)
    wires = {0, 1, 2, 3, 5}
    if known is not None:
        wires -= {2, WIRE_TYPES.get(known.type, 0)}
    wire = chance.choice(sorted(wires))
    value = {0: b"\x05", 1: bytes(8), 2: b"\x01x", 3: b"\x08\x01", 5: bytes(4)}[wire]
    end = encoded(number << 3 | 4) if wire == 3 else b""
    return encoded(number << 3 | wire) + value + end
