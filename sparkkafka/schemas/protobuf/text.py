"""An Arrow struct -> the .proto of a message that can have all its values. The same text for the
same type: registries compare texts.

Numbers follow the order of the columns, from 1. What may be null is `optional`; null lists and maps
are written as empty ones, which is all that Protobuf has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from sparkkafka.config.kinds import PROTOBUF
from sparkkafka.errors import OptionError
from sparkkafka.schemas.protobuf.compiler import DATE_PROTO, DECIMAL_PROTO, META_PROTO
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
_KEYS: Final = ("bool", "int32", "int64", "string")
_MAX_LEVELS: Final = 64


def schema_of(given: pa.DataType, name: str) -> Schema:
    """`name`: of the message, with a package if it has dots. Raises OptionError for a type, or a
    name, that Protobuf does not have."""
    if not pa.types.is_struct(given):
        raise OptionError(
            f"Protobuf writes a struct as a message, not {type_name(given)}: put it in a struct"
        )
    package, _, simple = name.rpartition(".")
    for part in name.split("."):
        _check(part, "the message")
    text = _Text(given, name)
    body = text.message(simple, given, "", 0)
    head = ['syntax = "proto3";']
    if package:
        head += ["", f"package {package};"]
    if text.imports:
        head += ["", *(f'import "{path}";' for path in sorted(text.imports))]
    return Schema(PROTOBUF, "\n".join([*head, "", *body, ""]))


class _Text:
    def __init__(self, given: pa.DataType, name: str) -> None:
        self.imports: set[str] = set()
        # A field or message called google hides the package google.
        near = {*_names(given), *name.split(".")}
        self.root = "." if near & {"google", "confluent"} else ""

    def message(self, name: str, given: pa.StructType, path: str, depth: int) -> list[str]:
        if depth >= _MAX_LEVELS:
            raise OptionError(
                f"column {path}: structs are nested in more than {_MAX_LEVELS} levels"
            )
        fields: list[str] = []
        nested: list[str] = []
        taken: dict[str, str] = {}
        names = {column.name for column in given} | {name}
        for number, column in enumerate(given, 1):
            where = f"{path}.{column.name}" if path else column.name
            _check(column.name, f"column {where}")
            same = taken.setdefault(column.name.replace("_", "").lower(), column.name)
            if same != column.name:
                raise OptionError(
                    f"columns {same} and {column.name} of {path or name} have one name in "
                    f"Protobuf's JSON: rename one"
                )
            word, kind, options = self.field(column, where, nested, names, depth)
            number_ = number if number < 19000 else number + 1000  # 19000 to 19999 are protobuf's
            fields.append(f"  {word}{kind} {column.name} = {number_}{options};")
        return [f"message {name} {{", *fields, *(f"  {line}" for line in nested), "}"]

    def field(
        self, column: pa.Field, path: str, nested: list[str], taken: set[str], depth: int
    ) -> tuple[str, str, str]:
        """The words before the type, the type, and the options. `taken`: names of the scope."""
        kind = column.type
        simple = "".join(part[:1].upper() + part[1:] for part in column.name.split("_"))
        simple = simple if _NAME.fullmatch(simple) else f"Message{simple}"
        while simple in taken:  # fields and nested messages are names of one scope
            simple += "_"
        if pa.types.is_list(kind):
            if pa.types.is_list(kind.value_type) or pa.types.is_map(kind.value_type):
                raise OptionError(
                    f"column {path}: Protobuf has no arrays of arrays or maps: put them in a struct"
                )
            word, options = self.one(kind.value_type, simple, path, nested, depth)
            taken.add(simple)
            return "repeated ", word, options
        if pa.types.is_map(kind):
            key = _SCALARS.get(kind.key_type)
            if key not in _KEYS:
                raise OptionError(
                    f"column {path}: a key of a map is a boolean, whole number or string in "
                    f"Protobuf, not {kind.key_type}"
                )
            if pa.types.is_list(kind.item_type) or pa.types.is_map(kind.item_type):
                raise OptionError(
                    f"column {path}: Protobuf has no maps of arrays or maps: put them in a struct"
                )
            word, options = self.one(kind.item_type, simple, path, nested, depth)
            taken.add(simple)
            return "", f"map<{key}, {word}>", options
        word, options = self.one(kind, simple, path, nested, depth)
        taken.add(simple)
        scalar = kind in _SCALARS
        return ("optional " if scalar and column.nullable else ""), word, options

    def one(
        self, kind: pa.DataType, simple: str, path: str, nested: list[str], depth: int
    ) -> tuple[str, str]:
        """Type and options of a value, not a list or map."""
        scalar = _SCALARS.get(kind)
        if scalar is not None:
            return scalar, ""
        if pa.types.is_struct(kind):
            nested += self.message(simple, kind, path, depth + 1)
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


def _names(given: pa.DataType) -> Iterator[str]:
    """Of all columns, at all levels."""
    if pa.types.is_struct(given):
        for column in given:
            yield column.name
            yield from _names(column.type)
    elif pa.types.is_list(given):
        yield from _names(given.value_type)
    elif pa.types.is_map(given):
        yield from _names(given.item_type)


def _check(name: str, what: str) -> None:
    if not _NAME.fullmatch(name):
        raise OptionError(
            f"{what}: {name!r} is no name in Protobuf, which has letters, digits and _: rename it"
        )
