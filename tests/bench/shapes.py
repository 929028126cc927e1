"""Eight shapes of records, each defined once: an Avro schema and rows. The Protobuf and the JSON
Schema of a shape are made of its Avro schema, and the payloads by other libraries than ours.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

AVRO, PROTOBUF, JSON = "avro", "protobuf", "json"

BLOCK_ROWS = 10_000
_WIDE_FIELDS, _KILOBYTE = 60, 1_000

Fields = Sequence[tuple[str, Any]]
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Shape:
    name: str
    fields: Fields
    """Names and Avro types."""
    row: Callable[[random.Random], dict[str, Any]]
    block_rows: int = BLOCK_ROWS

    @cached_property
    def rows(self) -> Rows:
        """The same in each run."""
        chance = random.Random(7)
        return [self.row(chance) for _ in range(self.block_rows)]

    @cached_property
    def texts(self) -> dict[str, str]:
        """The schema by format."""
        protobuf = _Protobuf()
        protobuf.message("R", self.fields)
        return {
            AVRO: json.dumps(_record("R", self.fields)),
            PROTOBUF: 'syntax = "proto3";\n' + "\n".join(protobuf.messages),
            JSON: json.dumps(_json_schema({"type": "record", "fields": _named(self.fields)})),
        }

    @cached_property
    def message(self) -> Any:
        """The class of Protobuf's messages, upb's."""
        from tests.support.protoc import message_class

        return message_class(self.texts[PROTOBUF], "R")

    @cached_property
    def messages(self) -> list[Any]:
        return [self.message(**_without_none(row)) for row in self.rows]

    def payloads(self, form: str) -> list[bytes]:
        if form == AVRO:
            import fastavro

            schema = fastavro.parse_schema(json.loads(self.texts[AVRO]))
            made = []
            for row in self.rows:
                out = io.BytesIO()
                fastavro.schemaless_writer(out, schema, row)
                made.append(out.getvalue())
            return made
        if form == PROTOBUF:
            return [message.SerializeToString() for message in self.messages]
        return [json.dumps(row).encode() for row in self.rows]


def plain(values: pa.Array, fields: Fields) -> Rows:
    """Arrow's values as rows like those of a shape: maps are dicts, missing lists are empty."""
    return [_plain_row(row, fields) for row in values.to_pylist()]


def _plain_row(row: dict[str, Any], fields: Fields) -> dict[str, Any]:
    return {name: _plain(row[name], kind) for name, kind in fields}


def _plain(value: Any, kind: Any) -> Any:
    if isinstance(kind, list):
        return None if value is None else _plain(value, kind[1])
    if isinstance(kind, str) and kind == "Row":
        return _plain_row(value, _ROW)
    if not isinstance(kind, dict):
        return value
    if kind["type"] == "record":
        return _plain_row(value, [(field["name"], field["type"]) for field in kind["fields"]])
    if kind["type"] == "map":
        return dict(value or ())
    return value or []


def _record(name: str, fields: Fields) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": _named(fields)}


def _named(fields: Fields) -> list[dict[str, Any]]:
    return [{"name": name, "type": kind} for name, kind in fields]


def _optional(kind: Any) -> list[Any]:
    return ["null", kind]


def _without_none(row: Any) -> Any:
    """For Protobuf, which takes no None."""
    if isinstance(row, dict):
        return {name: _without_none(value) for name, value in row.items() if value is not None}
    return row


_JSON_TYPES = {
    "long": {"type": "integer"},
    "int": {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    "double": {"type": "number"},
    "float": {"type": "number"},
    "boolean": {"type": "boolean"},
    "string": {"type": "string"},
}


def _json_schema(kind: Any) -> dict[str, Any]:
    if isinstance(kind, list):
        return {"oneOf": [{"type": "null"}, _json_schema(kind[1])]}
    if kind == "Row":
        kind = _record("Row", _ROW)
    if not isinstance(kind, dict):
        return _JSON_TYPES[kind]
    if kind["type"] == "array":
        return {"type": "array", "items": _json_schema(kind["items"])}
    if kind["type"] == "map":
        return {"type": "object", "additionalProperties": _json_schema(kind["values"])}
    properties = {field["name"]: _json_schema(field["type"]) for field in kind["fields"]}
    return {"type": "object", "properties": properties}


_PROTOBUF_TYPES = {"long": "int64", "int": "int32", "boolean": "bool"}


class _Protobuf:
    """Collects the messages of a file."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, name: str, fields: Fields) -> None:
        lines = [
            f"  {self._kind(kind)} {field} = {number};"
            for number, (field, kind) in enumerate(fields, 1)
        ]
        # The outermost message is the file's first, which payloads are of.
        self.messages.insert(0, "\n".join([f"message {name} {{", *lines, "}"]))

    def _kind(self, kind: Any) -> str:
        if isinstance(kind, list):
            return f"optional {self._kind(kind[1])}"
        if not isinstance(kind, dict):
            return _PROTOBUF_TYPES.get(kind, kind)
        if kind["type"] == "array":
            return f"repeated {self._kind(kind['items'])}"
        if kind["type"] == "map":
            return f"map<string, {self._kind(kind['values'])}>"
        self.message(kind["name"], [(field["name"], field["type"]) for field in kind["fields"]])
        return str(kind["name"])


def _words(count: int) -> list[str]:
    chance = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return ["".join(chance.choices(letters, k=chance.randrange(4, 14))) for _ in range(count)]


_WORDS = _words(500)

_VALUES: dict[str, Callable[[random.Random], Any]] = {
    "long": lambda chance: chance.randrange(1, 2**40),
    "int": lambda chance: chance.randrange(1, 100_000),
    "double": lambda chance: chance.random(),
    "float": lambda chance: chance.randrange(1000) / 8,  # the same in 32 bits
    "boolean": lambda chance: chance.random() < 0.5,
    "string": lambda chance: chance.choice(_WORDS),
}


def _row(fields: Fields, nulls: float = 0.0) -> Callable[[random.Random], dict[str, Any]]:
    """Makes rows of simple fields; optional ones are null at this rate."""

    def row(chance: random.Random) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, kind in fields:
            if isinstance(kind, list) and chance.random() < nulls:
                made[name] = None
            else:
                made[name] = _VALUES[kind[1] if isinstance(kind, list) else kind](chance)
        return made

    return row


_NUMBER_TYPES = (
    *("long", "int", "double", "long", "float", "int", "long", "double", "boolean", "int"),
)
_NUMBERS = [(f"f{i}", kind) for i, kind in enumerate(_NUMBER_TYPES)]
_STRINGS = [(f"s{i}", "string") for i in range(10)]
_ROW_TYPES = ("long", "string", "double", "int", "string", "long", "boolean", "string")
_ROW = [(f"c{i}", _optional(kind)) for i, kind in enumerate(_ROW_TYPES)]
_WIDE_TYPES = ("long", "string", "double", "int")
_WIDE = [
    (f"w{i}", _WIDE_TYPES[i % 4] if i % 3 else _optional(_WIDE_TYPES[i % 4]))
    for i in range(_WIDE_FIELDS)
]


def _nested(chance: random.Random) -> dict[str, Any]:
    return {
        "id": chance.randrange(1, 2**40),
        "c": {
            "city": chance.choice(_WORDS),
            "zip": chance.randrange(1, 99_999),
            "geo": {"lat": chance.random(), "lon": chance.random()},
        },
        "d": {"x": chance.randrange(1, 1000), "y": chance.choice(_WORDS)},
    }


def _arrays(chance: random.Random) -> dict[str, Any]:
    return {
        "a": [chance.randrange(10_000) for _ in range(chance.randrange(11))],
        "b": [chance.choice(_WORDS) for _ in range(chance.randrange(6))],
    }


def _maps(chance: random.Random) -> dict[str, Any]:
    return {
        "m": {chance.choice(_WORDS): chance.randrange(1000) for _ in range(chance.randrange(6))},
        "n": {chance.choice(_WORDS): chance.choice(_WORDS) for _ in range(chance.randrange(4))},
    }


def _change(chance: random.Random) -> dict[str, Any]:
    row = _row(_ROW, nulls=0.2)
    return {
        "before": None if chance.random() < 0.5 else row(chance),
        "after": row(chance),
        "op": "u",
        "ts_ms": chance.randrange(1, 2**41),
    }


_GEO = _record("G", [("lat", "double"), ("lon", "double")])
_CITY = _record("C", [("city", "string"), ("zip", "int"), ("geo", _GEO)])

SHAPES = (
    Shape("10 numbers", _NUMBERS, _row(_NUMBERS)),
    Shape("10 strings", _STRINGS, _row(_STRINGS)),
    Shape(
        "nested",
        [("id", "long"), ("c", _CITY), ("d", _record("D", [("x", "long"), ("y", "string")]))],
        _nested,
    ),
    Shape(
        "arrays",
        [("a", {"type": "array", "items": "long"}), ("b", {"type": "array", "items": "string"})],
        _arrays,
    ),
    Shape(
        "maps",
        [("m", {"type": "map", "values": "long"}), ("n", {"type": "map", "values": "string"})],
        _maps,
    ),
    Shape(
        "Debezium, nullable fields",
        [
            ("before", _optional(_record("Row", _ROW))),
            ("after", _optional("Row")),
            ("op", "string"),
            ("ts_ms", _optional("long")),
        ],
        _change,
    ),
    Shape("60 fields", _WIDE, _row(_WIDE, nulls=0.3), BLOCK_ROWS // 4),
    Shape(
        "one string of 1 KB",
        [("s", "string")],
        lambda chance: {"s": "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=_KILOBYTE))},
        BLOCK_ROWS // 4,
    ),
)
