"""Protobuf's types and the Arrow types that they become, or are made of.

Types are those of Spark's own Protobuf functions (SchemaConverters), with unsigned integers in the
next wider type and wrappers as nullable scalars, which are options there.

| Protobuf | Arrow (Spark) | other types that can be requested |
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
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from sparkkafka.config.kinds import PROTOBUF
from sparkkafka.errors import OptionError, SchemaError
from sparkkafka.schemas.protobuf.compiler import DATE_PROTO, DECIMAL_PROTO, META_PROTO, library
from sparkkafka.schemas.schema_errors import child_path
from sparkkafka.schemas.values import Schema, type_name

MAX_LEVELS: Final = 64
"""Levels of messages."""

# FieldDescriptorProto.Type
DOUBLE, FLOAT, INT64, UINT64, INT32, FIXED64, FIXED32, BOOL, STRING = range(1, 10)
GROUP, MESSAGE, BYTES, UINT32, ENUM, SFIXED32, SFIXED64, SINT32, SINT64 = range(10, 19)

# Wire types, by the names of Protobuf's encoding guide
VARINT, I64, LEN, SGROUP, EGROUP, I32 = range(6)

FIXED_WIDTH: Final = {I64: 8, I32: 4}
"""Bytes of values by wire type."""


class FieldType(NamedTuple):
    """A type of fields.

    wire: the wire type. encoding: types with the same one can read each other's bytes; a number
    that does not fit makes a bad row. type: the Arrow type that values become; other_types: others
    that can be requested. range: an integer's smallest and largest number.
    """

    name: str
    wire: int
    encoding: str
    type: pa.DataType = None
    other_types: tuple[pa.DataType, ...] = ()
    range: tuple[int, int] | None = None


RANGE32: Final = (-(1 << 31), (1 << 31) - 1)
_RANGE64: Final = (-(1 << 63), (1 << 63) - 1)
_UNSIGNED32: Final = (0, (1 << 32) - 1)
_UNSIGNED64: Final = (0, (1 << 64) - 1)
_UINT64_TYPE: Final = pa.decimal128(20, 0)
_LONG, _INT, _DOUBLE = pa.int64(), pa.int32(), pa.float64()

FIELD_TYPES: Final = {
    DOUBLE: FieldType("double", I64, "double", _DOUBLE),
    FLOAT: FieldType("float", I32, "float", pa.float32(), (_DOUBLE,)),
    INT64: FieldType("int64", VARINT, "varint", _LONG, (), _RANGE64),
    UINT64: FieldType("uint64", VARINT, "varint", _UINT64_TYPE, (_LONG,), _UNSIGNED64),
    INT32: FieldType("int32", VARINT, "varint", _INT, (_LONG, _DOUBLE), RANGE32),
    FIXED64: FieldType("fixed64", I64, "fixed64", _UINT64_TYPE, (_LONG,), _UNSIGNED64),
    FIXED32: FieldType("fixed32", I32, "fixed32", _LONG, (_INT, _DOUBLE), _UNSIGNED32),
    BOOL: FieldType("bool", VARINT, "varint", pa.bool_()),
    STRING: FieldType("string", LEN, "text", pa.string(), (pa.binary(),)),
    GROUP: FieldType("group", SGROUP, "group"),
    MESSAGE: FieldType("message", LEN, "message"),
    BYTES: FieldType("bytes", LEN, "text", pa.binary()),
    UINT32: FieldType("uint32", VARINT, "varint", _LONG, (_INT, _DOUBLE), _UNSIGNED32),
    ENUM: FieldType("enum", VARINT, "varint", pa.string(), (_INT, _LONG), RANGE32),
    SFIXED32: FieldType("sfixed32", I32, "fixed32", _INT, (_LONG, _DOUBLE), RANGE32),
    SFIXED64: FieldType("sfixed64", I64, "fixed64", _LONG, (), _RANGE64),
    SINT32: FieldType("sint32", VARINT, "zigzag", _INT, (_LONG, _DOUBLE), RANGE32),
    SINT64: FieldType("sint64", VARINT, "zigzag", _LONG, (), _RANGE64),
}

VARINT32: Final = {INT32: "signed", ENUM: "signed", UINT32: "unsigned", SINT32: "zigzag"}
"""Varints of 32 bits. Types with the same value have the same range and encoding."""


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


_TIME: Final = (("seconds", 1, INT64), ("nanos", 2, INT32))
# What well-known messages become, and the name, number and type of their fields.
_WELL_KNOWN: Final[dict[str, tuple[Special, tuple[tuple[str, int, int], ...]]]] = {
    "google.protobuf.Timestamp": (Special.TIMESTAMP, _TIME),
    "google.protobuf.Duration": (Special.DURATION, _TIME),
    "google.type.Date": (
        Special.DATE,
        (("year", 1, INT32), ("month", 2, INT32), ("day", 3, INT32)),
    ),
    "confluent.type.Decimal": (
        Special.DECIMAL,
        (("value", 1, BYTES), ("precision", 2, UINT32), ("scale", 3, INT32)),
    ),
    "google.protobuf.Struct": (Special.JSON, (("fields", 1, MESSAGE),)),
    "google.protobuf.ListValue": (Special.JSON, (("values", 1, MESSAGE),)),
    "google.protobuf.Value": (
        Special.JSON,
        (
            ("null_value", 1, ENUM),
            ("number_value", 2, DOUBLE),
            ("string_value", 3, STRING),
            ("bool_value", 4, BOOL),
            ("struct_value", 5, MESSAGE),
            ("list_value", 6, MESSAGE),
        ),
    ),
    **{
        f"google.protobuf.{name}Value": (Special.WRAPPER, (("value", 1, kind),))
        for name, kind in (
            ("Double", DOUBLE),
            ("Float", FLOAT),
            ("Int64", INT64),
            ("UInt64", UINT64),
            ("Int32", INT32),
            ("UInt32", UINT32),
            ("Bool", BOOL),
            ("String", STRING),
            ("Bytes", BYTES),
        )
    },
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
    """Return what a well-known message becomes; None for any other message. A message is well-known
    by its full name and its fields, since anyone can declare a message of that name."""
    if descriptor.full_name not in _WELL_KNOWN:
        return None
    special, expected = _WELL_KNOWN[descriptor.full_name]
    if tuple((field.name, field.number, field.type) for field in descriptor.fields) != expected:
        return None
    # The fields of google.protobuf.Struct and the like are repeated or have presence; those of the
    # others are plain, or the message is another one of this name.
    if special is not Special.JSON and any(
        is_repeated(field) or field.has_presence for field in descriptor.fields
    ):
        return None
    return special


def special_type(
    special: Special,
    field: Any,
    options_field: Any,
    target: pa.DataType | None,
    path: str,
    writing: bool,
) -> pa.DataType:
    """Return the column's type for a field. `options_field`: the field with the options. Raises
    OptionError for a `target` type (None: any) that it cannot become, or, if `writing`, that it
    cannot be made of."""
    if special is Special.WRAPPER:
        return scalar_type(field.message_type.fields[0], target, path, writing)
    if special is Special.DECIMAL:
        if target is None:
            return pa.decimal128(*_precision_and_scale(options_field, path))
        if pa.types.is_decimal128(target):
            return target
    else:
        fits = _SPECIAL_TYPES[special]
        if target is None:
            return fits[0]
        if target in fits:
            return target
        # Timestamps of any zone are the same instants; Spark's have the session's zone.
        if special is Special.TIMESTAMP and pa.types.is_timestamp(target) and target.unit == "us":
            return target
    verb = "cannot be made of" if writing else "cannot become"
    raise OptionError(f"field {path} is a {special.value}, which {verb} {type_name(target)}")


def scalar_type(
    field: Any, target: pa.DataType | None, path: str, writing: bool = False
) -> pa.DataType:
    """Return the column's type for a scalar field. Raises OptionError, with the field's `path`, for
    a `target` type (None: any) that it cannot become, or, if `writing`, cannot be made of."""
    field_type = FIELD_TYPES[field.type]
    digits = 0 if field_type.range is None or field.type == ENUM else len(str(field_type.range[1]))
    if writing and target is not None:
        if _can_be_made_of(field.type, target, is_integer=digits > 0):
            return target
        raise OptionError(
            f"field {path} is {field_type.name}, which cannot be made of {type_name(target)}"
        )
    if target is None or target == field_type.type or target in field_type.other_types:
        return target or field_type.type
    if digits and pa.types.is_decimal128(target):
        if target.precision - target.scale >= digits and target.scale >= 0:
            return target
        raise OptionError(
            f"field {path} is {field_type.name}, which takes {digits} digits before the point: "
            f"{type_name(target)} has too few"
        )
    raise OptionError(f"field {path} is {field_type.name}, which cannot become {type_name(target)}")


def _can_be_made_of(kind: int, source: pa.DataType, *, is_integer: bool) -> bool:
    """Return whether a scalar of the protobuf type `kind` can be written from an Arrow type. Each
    number is checked where it is written."""
    if is_integer:
        whole = pa.types.is_decimal128(source) and source.scale == 0
        return whole or bool(pa.types.is_signed_integer(source))
    if kind == ENUM:
        return bool(pa.types.is_string(source) or pa.types.is_signed_integer(source))
    if kind == DOUBLE:
        return source in (pa.float64(), pa.float32())
    if kind == BYTES:
        return source in (pa.binary(), pa.string())
    return bool(source == FIELD_TYPES[kind].type)


def _precision_and_scale(field: Any, path: str) -> tuple[int, int]:
    """Return a decimal field's precision and scale: those of Confluent's option
    `(confluent.field_meta).params`, else (38, 18)."""
    meta = field_meta(field)
    params: dict[str, str] = {} if meta is None else dict(meta.params)
    try:
        precision = int(params.get("precision", 38))
        scale = int(params.get("scale", min(18, precision)))
    except ValueError:
        raise SchemaError(
            f"field {path}: precision and scale are not numbers: {str(params)[:200]}"
        ) from None
    if not (1 <= precision <= 38 and 0 <= scale <= precision):
        raise SchemaError(
            f"field {path}: Spark has no decimal of precision {precision} and scale {scale}: it "
            "has at most 38 digits, and the scale is at most the precision"
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
        known_options = known.FromString(options.SerializeToString())
    except protobuf.message.DecodeError as error:
        raise SchemaError(f"field {field.name}: its options cannot be read") from error
    return known_options.Extensions[extension]


def enum_names(descriptor: Any) -> dict[int, str]:
    """Return an enum's names by number; the first one of a number that has aliases."""
    names: dict[int, str] = {}
    for value in descriptor.values:
        names.setdefault(value.number, value.name)
    return names


def is_map_entry(descriptor: Any) -> bool:
    """Return whether a message is an entry of a map."""
    return bool(descriptor.GetOptions().map_entry)


def is_map(field: Any) -> bool:
    """Return whether a field is a map: repeated messages that are its entries."""
    entry = field.message_type
    return entry is not None and is_repeated(field) and is_map_entry(entry)


def is_repeated(field: Any) -> bool:
    """Return whether a field is repeated: a list, or a map."""
    value = getattr(field, "is_repeated", None)
    # Older runtimes have `label` instead, where 3 is LABEL_REPEATED.
    return field.label == 3 if value is None else bool(value)


def is_required(field: Any) -> bool:
    """Return whether a message must have the field (proto2)."""
    value = getattr(field, "is_required", None)
    # Older runtimes have `label` instead, where 2 is LABEL_REQUIRED.
    return field.label == 2 if value is None else bool(value)


# --- recursive messages ---------------------------------------------------------------------------


def reachable_messages(descriptor: Any) -> list[Any]:
    """Return a message and all that are in it at any level, each once, without those that are
    well-known."""
    messages = {descriptor.full_name: descriptor}
    waiting = [descriptor]
    while waiting:
        for message in _nested_messages(waiting.pop()):
            if message.full_name not in messages:
                messages[message.full_name] = message
                waiting.append(message)
    return list(messages.values())


def is_recursive(descriptor: Any) -> bool:
    """Return whether a message contains itself, or a message that contains itself."""
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
    """Return the messages of a message's fields, without those that are well-known."""
    messages = (field.message_type for field in descriptor.fields)
    return [message for message in messages if message is not None and special_of(message) is None]


# --- the .proto of an Arrow type ---------------------------------------------------------------

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCALARS: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "bool",
    pa.int8(): "int32",
    pa.int16(): "int32",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
}


def schema_of(source: pa.DataType, name: str) -> Schema:
    """Return the .proto of a message that can have all values of a struct: the same text for the
    same type, since registries compare texts. `name` is the message's, after its package if it has
    dots. Raises OptionError for a type, or a name, that Protobuf does not have.

    Numbers follow the order of the columns, from 1. Scalars that may be null are `optional`; null
    lists and maps are written as empty ones, since Protobuf has no others."""
    if not pa.types.is_struct(source):
        raise OptionError(
            f"Protobuf writes a struct as a message, not {type_name(source)}: put it in a struct"
        )
    package, _, simple = name.rpartition(".")
    for part in name.split("."):
        _check_name(part, "the message")
    writer = _ProtoWriter(source, name)
    body = writer.write_message(simple, source, "", 0)
    head = ['syntax = "proto3";']
    if package:
        head += ["", f"package {package};"]
    if writer.imports:
        head += ["", *(f'import "{path}";' for path in sorted(writer.imports))]
    return Schema(PROTOBUF, "\n".join([*head, "", *body, ""]))


class _ProtoWriter:
    """Writes messages as lines, and collects what they import. `path`: the column's; `depth`: how
    many messages are around one."""

    def __init__(self, source: pa.DataType, name: str) -> None:
        self.imports: set[str] = set()
        # A field or message called google hides the package google, unless a dot precedes it.
        names = {*_column_names(source), *name.split(".")}
        self.root = "." if names & {"google", "confluent"} else ""

    def write_message(self, name: str, source: pa.StructType, path: str, depth: int) -> list[str]:
        """Return the lines of a message with the columns of `source`. Raises OptionError for a
        column that it cannot have."""
        if depth >= MAX_LEVELS:
            raise OptionError(f"column {path}: structs are nested in more than {MAX_LEVELS} levels")
        fields: list[str] = []
        nested: list[str] = []
        by_json_name: dict[str, str] = {}
        scope = {column.name for column in source} | {name}
        for number, column in enumerate(source, 1):
            where = child_path(path, column.name)
            _check_name(column.name, f"column {where}")
            same = by_json_name.setdefault(column.name.replace("_", "").lower(), column.name)
            if same != column.name:
                raise OptionError(
                    f"columns {same} and {column.name} of {path or name} have the same name "
                    "in Protobuf's JSON: rename one"
                )
            label, kind, options = self.write_field(column, where, nested, scope, depth)
            field_number = number if number < 19000 else number + 1000  # 19000-19999 are reserved
            fields.append(f"  {label}{kind} {column.name} = {field_number}{options};")
        return [f"message {name} {{", *fields, *(f"  {line}" for line in nested), "}"]

    def write_field(
        self, column: pa.Field, path: str, nested: list[str], scope: set[str], depth: int
    ) -> tuple[str, str, str]:
        """Return the label, type and options of a field. Add the lines of messages that it needs to
        `nested`, and their name to `scope`: the names of the fields and of the messages inside one
        message, which must differ."""
        arrow_type = column.type
        simple = "".join(part[:1].upper() + part[1:] for part in column.name.split("_"))
        simple = simple if _NAME.fullmatch(simple) else f"Message{simple}"
        while simple in scope:
            simple += "_"
        if pa.types.is_list(arrow_type):
            if pa.types.is_list(arrow_type.value_type) or pa.types.is_map(arrow_type.value_type):
                raise OptionError(
                    f"column {path}: Protobuf has no arrays of arrays or maps: put them in a struct"
                )
            item, options = self.type_of_value(arrow_type.value_type, simple, path, nested, depth)
            scope.add(simple)
            return "repeated ", item, options
        if pa.types.is_map(arrow_type):
            key = _SCALARS.get(arrow_type.key_type)
            if key not in ("bool", "int32", "int64", "string"):
                raise OptionError(
                    f"column {path}: a key of a map is a boolean, whole number or string in "
                    f"Protobuf, not {arrow_type.key_type}"
                )
            if pa.types.is_list(arrow_type.item_type) or pa.types.is_map(arrow_type.item_type):
                raise OptionError(
                    f"column {path}: Protobuf has no maps of arrays or maps: put them in a struct"
                )
            item, options = self.type_of_value(arrow_type.item_type, simple, path, nested, depth)
            scope.add(simple)
            return "", f"map<{key}, {item}>", options
        value, options = self.type_of_value(arrow_type, simple, path, nested, depth)
        scope.add(simple)
        return ("optional " if arrow_type in _SCALARS and column.nullable else ""), value, options

    def type_of_value(
        self, arrow_type: pa.DataType, simple: str, path: str, nested: list[str], depth: int
    ) -> tuple[str, str]:
        """Return the type and options of a value that is not a list or map. A message for it is
        called `simple`, and its lines are added to `nested`."""
        scalar = _SCALARS.get(arrow_type)
        if scalar is not None:
            return scalar, ""
        if pa.types.is_struct(arrow_type):
            nested += self.write_message(simple, arrow_type, path, depth + 1)
            return simple, ""
        if pa.types.is_timestamp(arrow_type):
            self.imports.add("google/protobuf/timestamp.proto")
            return f"{self.root}google.protobuf.Timestamp", ""
        if pa.types.is_duration(arrow_type):
            self.imports.add("google/protobuf/duration.proto")
            return f"{self.root}google.protobuf.Duration", ""
        if arrow_type == pa.date32():
            self.imports.add(DATE_PROTO)
            return f"{self.root}google.type.Date", ""
        if pa.types.is_decimal128(arrow_type):
            self.imports |= {META_PROTO, DECIMAL_PROTO}
            params = (
                f'{{ key: "precision", value: "{arrow_type.precision}" }}, '
                f'{{ key: "scale", value: "{arrow_type.scale}" }}'
            )
            option = f" [({self.root}confluent.field_meta) = {{ params: [{params}] }}]"
            return f"{self.root}confluent.type.Decimal", option
        raise OptionError(f"column {path}: Protobuf has no type for {type_name(arrow_type)}")


def _column_names(source: pa.DataType) -> Iterator[str]:
    """Yield the names of all columns, at all levels."""
    if pa.types.is_struct(source):
        for column in source:
            yield column.name
            yield from _column_names(column.type)
    elif pa.types.is_list(source):
        yield from _column_names(source.value_type)
    elif pa.types.is_map(source):
        yield from _column_names(source.item_type)


def _check_name(name: str, what: str) -> None:
    """Raise OptionError unless `name` is a name in Protobuf. `what` says in the error whose name it
    is."""
    if not _NAME.fullmatch(name):
        raise OptionError(
            f"{what}: {name!r} is not a name in Protobuf: use only letters, digits and _"
        )
