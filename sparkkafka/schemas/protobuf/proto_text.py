"""Writes the .proto of a message that can have all values of an Arrow struct: the same text for the
same type, since registries compare texts.

Numbers follow the order of the columns, from 1. Scalars that may be null are `optional`; null lists
and maps are written as empty ones, since Protobuf has no others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from sparkkafka.config.kinds import PROTOBUF
from sparkkafka.errors import OptionError
from sparkkafka.schemas.field_names import child_path
from sparkkafka.schemas.protobuf.compiler import DATE_PROTO, DECIMAL_PROTO, META_PROTO
from sparkkafka.schemas.protobuf.plan import MAX_LEVELS
from sparkkafka.schemas.values import Schema, type_name

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
    """Return the schema of a struct. `name`: of the message, with a package if it has dots. Raises
    OptionError for a type, or a name, that Protobuf does not have."""
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
        """Return the lines of a message. Raises OptionError for a column that it cannot have."""
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
        kind = column.type
        simple = "".join(part[:1].upper() + part[1:] for part in column.name.split("_"))
        simple = simple if _NAME.fullmatch(simple) else f"Message{simple}"
        while simple in scope:
            simple += "_"
        if pa.types.is_list(kind):
            if pa.types.is_list(kind.value_type) or pa.types.is_map(kind.value_type):
                raise OptionError(
                    f"column {path}: Protobuf has no arrays of arrays or maps: put them in a struct"
                )
            item, options = self.type_of_value(kind.value_type, simple, path, nested, depth)
            scope.add(simple)
            return "repeated ", item, options
        if pa.types.is_map(kind):
            key = _SCALARS.get(kind.key_type)
            if key not in ("bool", "int32", "int64", "string"):
                raise OptionError(
                    f"column {path}: a key of a map is a boolean, whole number or string in "
                    f"Protobuf, not {kind.key_type}"
                )
            if pa.types.is_list(kind.item_type) or pa.types.is_map(kind.item_type):
                raise OptionError(
                    f"column {path}: Protobuf has no maps of arrays or maps: put them in a struct"
                )
            item, options = self.type_of_value(kind.item_type, simple, path, nested, depth)
            scope.add(simple)
            return "", f"map<{key}, {item}>", options
        value, options = self.type_of_value(kind, simple, path, nested, depth)
        scope.add(simple)
        return ("optional " if kind in _SCALARS and column.nullable else ""), value, options

    def type_of_value(
        self, kind: pa.DataType, simple: str, path: str, nested: list[str], depth: int
    ) -> tuple[str, str]:
        """Return the type and options of a value that is not a list or map. A message for it is
        called `simple`, and its lines are added to `nested`."""
        scalar = _SCALARS.get(kind)
        if scalar is not None:
            return scalar, ""
        if pa.types.is_struct(kind):
            nested += self.write_message(simple, kind, path, depth + 1)
            return simple, ""
        if pa.types.is_timestamp(kind):
            self.imports.add("google/protobuf/timestamp.proto")
            return f"{self.root}google.protobuf.Timestamp", ""
        if pa.types.is_duration(kind):
            self.imports.add("google/protobuf/duration.proto")
            return f"{self.root}google.protobuf.Duration", ""
        if kind == pa.date32():
            self.imports.add(DATE_PROTO)
            return f"{self.root}google.type.Date", ""
        if pa.types.is_decimal128(kind):
            self.imports |= {META_PROTO, DECIMAL_PROTO}
            params = (
                f'{{ key: "precision", value: "{kind.precision}" }}, '
                f'{{ key: "scale", value: "{kind.scale}" }}'
            )
            option = f" [({self.root}confluent.field_meta) = {{ params: [{params}] }}]"
            return f"{self.root}confluent.type.Decimal", option
        raise OptionError(f"column {path}: Protobuf has no type for {type_name(kind)}")


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
    if not _NAME.fullmatch(name):
        raise OptionError(
            f"{what}: {name!r} is not a name in Protobuf: use only letters, digits and _"
        )
