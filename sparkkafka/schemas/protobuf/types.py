"""Protobuf's types and the Arrow types that they become, or are made of.

Types are those of Spark's own Protobuf functions (SchemaConverters), with unsigned integers in the
next wider type and wrappers as nullable scalars, which are options there.

| Protobuf | Arrow (Spark) | other types that can be wanted |
|---|---|---|
| double, float | float64, float32 | float as double |
| int32, sint32, sfixed32 | int32 | int64, float64, decimal |
| int64, sint64, sfixed64 | int64 | decimal |
| uint32, fixed32 | int64 | int32 if all fit, decimal, float64 |
| uint64, fixed64 | decimal128(20, 0) | int64 if all fit |
| bool, string, bytes | bool, string, binary | string as binary |
| enum | string: its name, or the number as text if it has none | int32: its number |
| message | struct | a struct of fewer fields |
| repeated, map | list, map | |
| google.protobuf.Timestamp | timestamp[us, UTC] | timestamp[us], of another zone, a struct |
| google.protobuf.Duration | duration[us] | a struct |
| google.protobuf.Int32Value … | as int32 …, nullable | a struct |
| google.protobuf.Struct, Value, ListValue | string: JSON | |
| a message that contains itself | | string: JSON, or binary: its bytes |
| google.protobuf.Any | struct of type_url and value | |
| google.type.Date | date32 | a struct |
| confluent.type.Decimal | decimal128(precision, scale) of its field_meta, else (38, 18) | |
"""

from __future__ import annotations

import enum
from typing import Any, Final

import pyarrow as pa

from sparkkafka.errors import OptionError, SchemaError
from sparkkafka.schemas.protobuf.compiler import library
from sparkkafka.schemas.values import type_name

(
    DOUBLE,
    FLOAT,
    INT64,
    UINT64,
    INT32,
    FIXED64,
    FIXED32,
    BOOL,
    STRING,
    GROUP,
    MESSAGE,
    BYTES,
    UINT32,
    ENUM,
    SFIXED32,
    SFIXED64,
    SINT32,
    SINT64,
) = range(1, 19)
"""FieldDescriptorProto.Type."""

VARINT: Final = 0
I64: Final = 1
LEN: Final = 2
START: Final = 3
END: Final = 4
I32: Final = 5
"""Wire types."""

WIRE: Final = {
    DOUBLE: I64,
    FLOAT: I32,
    INT64: VARINT,
    UINT64: VARINT,
    INT32: VARINT,
    FIXED64: I64,
    FIXED32: I32,
    BOOL: VARINT,
    STRING: LEN,
    GROUP: START,
    MESSAGE: LEN,
    BYTES: LEN,
    UINT32: VARINT,
    ENUM: VARINT,
    SFIXED32: I32,
    SFIXED64: I64,
    SINT32: VARINT,
    SINT64: VARINT,
}

VARINT32: Final = {INT32: "signed", ENUM: "signed", UINT32: "unsigned", SINT32: "zigzag"}
"""Varints of 32 bits. Types with the same value have the same range and encoding."""

ENCODING: Final = {
    **WIRE,
    SINT32: "zigzag",
    SINT64: "zigzag",
    FLOAT: "float",
    DOUBLE: "double",
    STRING: "text",
    BYTES: "text",
}
"""Types with the same encoding can read each other's bytes; a number that does not fit makes a bad
row."""

NAMES: Final = {
    DOUBLE: "double",
    FLOAT: "float",
    INT64: "int64",
    UINT64: "uint64",
    INT32: "int32",
    FIXED64: "fixed64",
    FIXED32: "fixed32",
    BOOL: "bool",
    STRING: "string",
    GROUP: "group",
    MESSAGE: "message",
    BYTES: "bytes",
    UINT32: "uint32",
    ENUM: "enum",
    SFIXED32: "sfixed32",
    SFIXED64: "sfixed64",
    SINT32: "sint32",
    SINT64: "sint64",
}

_SCALARS: Final[dict[int, pa.DataType]] = {
    DOUBLE: pa.float64(),
    FLOAT: pa.float32(),
    INT64: pa.int64(),
    SINT64: pa.int64(),
    SFIXED64: pa.int64(),
    UINT64: pa.decimal128(20, 0),
    FIXED64: pa.decimal128(20, 0),
    INT32: pa.int32(),
    SINT32: pa.int32(),
    SFIXED32: pa.int32(),
    UINT32: pa.int64(),
    FIXED32: pa.int64(),
    BOOL: pa.bool_(),
    STRING: pa.string(),
    BYTES: pa.binary(),
    ENUM: pa.string(),
}

# Other types that can be wanted. Integers that do not fit make a bad row.
_OTHER_TYPES: Final[dict[int, tuple[pa.DataType, ...]]] = {
    FLOAT: (pa.float64(),),
    INT32: (pa.int64(), pa.float64()),
    SINT32: (pa.int64(), pa.float64()),
    SFIXED32: (pa.int64(), pa.float64()),
    UINT32: (pa.int32(), pa.float64()),
    FIXED32: (pa.int32(), pa.float64()),
    UINT64: (pa.int64(),),
    FIXED64: (pa.int64(),),
    STRING: (pa.binary(),),
    ENUM: (pa.int32(), pa.int64()),
}

# Digits before the point that a decimal must have.
_DIGITS: Final = {
    INT32: 10,
    SINT32: 10,
    SFIXED32: 10,
    UINT32: 10,
    FIXED32: 10,
    INT64: 19,
    SINT64: 19,
    SFIXED64: 19,
    UINT64: 20,
    FIXED64: 20,
}


class Special(enum.Enum):
    """What a message becomes that does not become a struct. The value is the message's name, or how
    a recursive message is read."""

    TIMESTAMP = "google.protobuf.Timestamp"
    DURATION = "google.protobuf.Duration"
    DATE = "google.type.Date"
    DECIMAL = "confluent.type.Decimal"
    WRAPPER = "google.protobuf.*Value"
    JSON = "google.protobuf.Struct"
    TEXT = "JSON text"
    BYTES = "bytes"


_WRAPPED: Final = {
    "google.protobuf.DoubleValue": DOUBLE,
    "google.protobuf.FloatValue": FLOAT,
    "google.protobuf.Int64Value": INT64,
    "google.protobuf.UInt64Value": UINT64,
    "google.protobuf.Int32Value": INT32,
    "google.protobuf.UInt32Value": UINT32,
    "google.protobuf.BoolValue": BOOL,
    "google.protobuf.StringValue": STRING,
    "google.protobuf.BytesValue": BYTES,
}
_SPECIAL: Final = {
    "google.protobuf.Timestamp": Special.TIMESTAMP,
    "google.protobuf.Duration": Special.DURATION,
    "google.type.Date": Special.DATE,
    "confluent.type.Decimal": Special.DECIMAL,
    "google.protobuf.Struct": Special.JSON,
    "google.protobuf.Value": Special.JSON,
    "google.protobuf.ListValue": Special.JSON,
    **dict.fromkeys(_WRAPPED, Special.WRAPPER),
}
_TIME: Final = (("seconds", 1, INT64), ("nanos", 2, INT32))
_FIELDS: Final[dict[str, tuple[tuple[str, int, int], ...]]] = {
    "google.protobuf.Timestamp": _TIME,
    "google.protobuf.Duration": _TIME,
    "google.type.Date": (("year", 1, INT32), ("month", 2, INT32), ("day", 3, INT32)),
    "confluent.type.Decimal": (("value", 1, BYTES), ("precision", 2, UINT32), ("scale", 3, INT32)),
    "google.protobuf.Struct": (("fields", 1, MESSAGE),),
    "google.protobuf.ListValue": (("values", 1, MESSAGE),),
    "google.protobuf.Value": (
        ("null_value", 1, ENUM),
        ("number_value", 2, DOUBLE),
        ("string_value", 3, STRING),
        ("bool_value", 4, BOOL),
        ("struct_value", 5, MESSAGE),
        ("list_value", 6, MESSAGE),
    ),
    **{name: (("value", 1, kind),) for name, kind in _WRAPPED.items()},
}
_SPECIAL_TYPES: Final[dict[Special, tuple[pa.DataType, ...]]] = {
    Special.TIMESTAMP: (pa.timestamp("us", "UTC"), pa.timestamp("us")),
    Special.DURATION: (pa.duration("us"),),
    Special.DATE: (pa.date32(),),
    Special.JSON: (pa.string(),),
    Special.TEXT: (pa.string(),),
    Special.BYTES: (pa.binary(),),
}
FROM_BYTES: Final = frozenset({Special.JSON, Special.TEXT, Special.BYTES})
"""Made of a message's bytes, and not of its fields' columns."""


def special_of(descriptor: Any) -> Special | None:
    """Return what a message becomes if it is well-known: by its full name and its fields, since
    anyone can declare a message of that name."""
    special = _SPECIAL.get(descriptor.full_name)
    if special is None:
        return None
    fields = tuple((field.name, field.number, field.type) for field in descriptor.fields)
    if fields != _FIELDS[descriptor.full_name]:
        return None
    if special is not Special.JSON and any(
        is_repeated(field) or field.has_presence for field in descriptor.fields
    ):
        return None
    return special


def special_type(
    special: Special,
    field: Any,
    options_field: Any,
    wanted: pa.DataType | None,
    path: str,
    writing: bool,
) -> pa.DataType:
    """Return the column's type for a field. `options_field`: the field with the options. Raises
    OptionError for a `wanted` type that it cannot become, or (if writing) cannot be made of."""
    if special is Special.WRAPPER:
        return scalar_type(field.message_type.fields[0], wanted, path, writing)
    if special is Special.DECIMAL:
        if wanted is None:
            return pa.decimal128(*_precision_and_scale(options_field, path))
        if pa.types.is_decimal128(wanted):
            return wanted
    else:
        fits = _SPECIAL_TYPES[special]
        if wanted is None:
            return fits[0]
        if wanted in fits:
            return wanted
        # Timestamps of any zone are the same instants; Spark's have the session's zone.
        if special is Special.TIMESTAMP and pa.types.is_timestamp(wanted) and wanted.unit == "us":
            return wanted
    verb = "cannot be made of" if writing else "cannot become"
    raise OptionError(f"field {path} is a {special.value}, which {verb} {type_name(wanted)}")


def scalar_type(
    field: Any, wanted: pa.DataType | None, path: str, writing: bool = False
) -> pa.DataType:
    """Return the column's type for a scalar field. Raises OptionError as `special_type`."""
    usual = _SCALARS[field.type]
    if writing and wanted is not None:
        if _can_be_made_of(field.type, wanted):
            return wanted
        raise OptionError(
            f"field {path} is {NAMES[field.type]}, which cannot be made of {type_name(wanted)}"
        )
    if wanted is None or wanted == usual or wanted in _OTHER_TYPES.get(field.type, ()):
        return wanted or usual
    if field.type in _DIGITS and pa.types.is_decimal128(wanted):
        if wanted.precision - wanted.scale >= _DIGITS[field.type] and wanted.scale >= 0:
            return wanted
        need = _DIGITS[field.type]
        raise OptionError(
            f"field {path} is {NAMES[field.type]}, which takes {need} digits before the point: "
            f"{type_name(wanted)} has too few"
        )
    raise OptionError(
        f"field {path} is {NAMES[field.type]}, which cannot become {type_name(wanted)}"
    )


def _precision_and_scale(field: Any, path: str) -> tuple[int, int]:
    """Return those of Confluent's `(confluent.field_meta).params`, else (38, 18)."""
    meta = field_meta(field)
    params: dict[str, str] = {} if meta is None else dict(meta.params)
    try:
        precision = int(params.get("precision", 38))
        scale = int(params.get("scale", min(18, precision)))
    except ValueError:
        raise SchemaError(
            f"field {path}: precision and scale are no numbers: {str(params)[:200]}"
        ) from None
    if not (1 <= precision <= 38 and 0 <= scale <= precision):
        raise SchemaError(
            f"field {path}: a decimal of precision {precision} and scale {scale} is not one of "
            f"Spark's: at most 38 digits, of which the scale is a part"
        )
    return precision, scale


def field_meta(field: Any) -> Any:
    """Return Confluent's option `(confluent.field_meta)`, a message of the field's own pool; None
    if no file of the schema imports it. Raises SchemaError."""
    options = field.GetOptions()
    try:
        extension = field.file.pool.FindExtensionByName("confluent.field_meta")
    except KeyError:
        return None
    protobuf = library()
    known = protobuf.message_factory.GetMessageClass(
        field.file.pool.FindMessageTypeByName("google.protobuf.FieldOptions")
    )
    try:
        own = known.FromString(options.SerializeToString())
    except protobuf.message.DecodeError as error:
        raise SchemaError(f"field {field.name}: its options cannot be read") from error
    return own.Extensions[extension]


def _can_be_made_of(kind: int, given: pa.DataType) -> bool:
    """Whether a scalar can be written from a type. Each number is checked where it is written."""
    if kind in _DIGITS:
        whole = pa.types.is_decimal128(given) and given.scale == 0
        return whole or bool(pa.types.is_signed_integer(given))
    if kind == ENUM:
        return bool(pa.types.is_string(given) or pa.types.is_signed_integer(given))
    if kind == DOUBLE:
        return given in (pa.float64(), pa.float32())
    if kind == BYTES:
        return given in (pa.binary(), pa.string())
    return bool(given == _SCALARS[kind])


def enum_names(descriptor: Any) -> dict[int, str]:
    """Return the names of an enum's numbers, the first one where a number has aliases."""
    names: dict[int, str] = {}
    for value in descriptor.values:
        names.setdefault(value.number, value.name)
    return names


def is_map_entry(descriptor: Any) -> bool:
    """Whether a message is an entry of a map."""
    return bool(descriptor.GetOptions().map_entry)


def is_map(field: Any) -> bool:
    entry = field.message_type
    return entry is not None and is_repeated(field) and is_map_entry(entry)


# Older runtimes have `label` instead of the properties.


def is_repeated(field: Any) -> bool:
    found = getattr(field, "is_repeated", None)
    return field.label == 3 if found is None else bool(found)


def is_required(field: Any) -> bool:
    found = getattr(field, "is_required", None)
    return field.label == 2 if found is None else bool(found)


# --- recursive messages ---------------------------------------------------------------------------


def reachable_messages(descriptor: Any) -> list[Any]:
    """Return a message and all that are in it at any level, each once, without those that are
    well-known."""
    found = {descriptor.full_name: descriptor}
    waiting = [descriptor]
    while waiting:
        for message in _nested_messages(waiting.pop()):
            if message.full_name not in found:
                found[message.full_name] = message
                waiting.append(message)
    return list(found.values())


def is_recursive(descriptor: Any) -> bool:
    """Whether a message contains itself, or a message that contains itself."""
    nested = {
        message.full_name: {inner.full_name for inner in _nested_messages(message)}
        for message in reachable_messages(descriptor)
    }
    while True:  # remove messages that contain none of those that are left
        finite = {name for name, inner in nested.items() if not inner & nested.keys()}
        if not finite:
            return descriptor.full_name in nested
        for name in finite:
            del nested[name]


def _nested_messages(descriptor: Any) -> list[Any]:
    messages = (field.message_type for field in descriptor.fields)
    return [message for message in messages if message is not None and special_of(message) is None]
