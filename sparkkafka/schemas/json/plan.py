"""What is to be read of JSON texts: a tree of nodes, made of a wanted type and of a JSON Schema.

Without a schema, a wanted type says everything, by the rules of Spark's `from_json`. With one, the
wanted fields must be among the schema's, and of types that its values can have.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from sparkkafka.errors import OptionError
from sparkkafka.schemas.json.document import Place, Shape, inside, recurs, shape_of
from sparkkafka.schemas.values import type_name

# Kinds of nodes: how a JSON value is read. What each takes stands in rows.py.
BOOL: Final = "bool"
INTEGER: Final = "integer"
FLOAT: Final = "float"
DECIMAL: Final = "decimal"
DECIMAL_BYTES: Final = "decimal in base64"  # Kafka Connect's Decimal, unless decimal.format=NUMERIC
TEXT: Final = "text"  # a string and nothing else
LENIENT: Final = "lenient"  # a string as it is, any other value as its JSON text
JSON_TEXT: Final = "json"  # any value as its JSON text, strings in quotes; also in UTF-8
BINARY: Final = "binary"  # base64
DATE: Final = "date"
TIMESTAMP: Final = "timestamp"  # with an offset from UTC
LOCAL_TIMESTAMP: Final = "local timestamp"  # without one
DURATION: Final = "duration"  # ISO 8601
EPOCH_MILLIS: Final = "epoch millis"  # Kafka Connect's Timestamp
EPOCH_DAYS: Final = "epoch days"  # Kafka Connect's Date
NULL: Final = "null"
LIST: Final = "list"
MAP: Final = "map"
STRUCT: Final = "struct"

LOCAL_MICROS: Final = pa.timestamp("us")


@dataclass(frozen=True)
class Node:
    """How a JSON value is read, and the Arrow type that comes of it.

    children: a struct's fields by name; the one item of a list, or value of a map, under "".
    """

    kind: str
    type: pa.DataType
    children: Mapping[str, Node] = field(default_factory=dict)

    @property
    def item(self) -> Node:
        return self.children[""]


def node_of_type(wanted: pa.DataType, path: str = "") -> Node:
    """The node that reads `wanted` by the type alone. Raises OptionError for a type that JSON
    cannot give, with its field."""
    return _of_type(wanted, None, path)


def node_of_schema(place: Place) -> Node:
    """The node of all that a JSON Schema types. Raises SchemaError, with the place in it."""
    return _of_shape(shape_of(place))


def node_of_both(wanted: pa.DataType, place: Place) -> Node:
    """The node that reads `wanted` from what a JSON Schema says. Raises OptionError for a field
    that the schema lacks, and for a type that its values cannot have."""
    return _of_type(wanted, shape_of(place), place.path)


def _of_shape(shape: Shape) -> Node:
    if shape.kind == STRUCT:
        children = {name: node_of_schema(place) for name, place in shape.fields.items()}
        fields = [pa.field(name, node.type) for name, node in children.items()]
        return Node(STRUCT, pa.struct(fields), children)
    if shape.kind == LIST:
        item = node_of_schema(shape.only)
        return Node(LIST, pa.list_(item.type), {"": item})
    if shape.kind == MAP:
        item = node_of_schema(shape.only)
        return Node(MAP, pa.map_(pa.string(), item.type), {"": item})
    return Node(shape.kind, shape.type)


def _of_type(wanted: pa.DataType, shape: Shape | None, path: str) -> Node:
    if shape is not None and shape.kind in (JSON_TEXT, NULL):
        if pa.types.is_string(wanted) and shape.kind == JSON_TEXT:
            return Node(JSON_TEXT, pa.string())
        shape = None  # the schema does not say, so the values do
    if pa.types.is_struct(wanted):
        return _struct(wanted, shape, path)
    if pa.types.is_map(wanted):
        return _map(wanted, shape, path)
    if pa.types.is_list(wanted):
        if shape is not None and shape.kind != LIST:
            raise _other_type(wanted, shape, path)
        below = None if shape is None else inside(shape.only)
        item = _of_type(wanted.value_type, below, f"{path}[]")
        kept = wanted.value_field.with_type(item.type).with_nullable(True)
        return Node(LIST, pa.list_(kept), {"": item})
    kind = kind_of_type(wanted)
    if kind is None:
        raise OptionError(
            f"JSON gives no {type_name(wanted)}{_at(path)}: take boolean, byte to long, float, "
            "double, decimal, string, binary, date, timestamp, array, map of strings, or struct"
        )
    if shape is None:
        return Node(kind, wanted)
    if kind == BINARY and recurs(shape):
        return Node(JSON_TEXT, wanted)
    if kind == LENIENT and shape.kind == TEXT:
        return Node(TEXT, wanted)
    if (shape.kind, kind) in _AS_SAID:
        return Node(shape.kind, wanted)
    if kind != LENIENT and kind not in _READ_AS.get(shape.kind, {shape.kind}):
        raise _other_type(wanted, shape, path)
    return Node(kind, wanted)


def _struct(wanted: pa.DataType, shape: Shape | None, path: str) -> Node:
    if shape is not None and shape.kind not in (STRUCT, MAP):
        raise _other_type(wanted, shape, path)
    children: dict[str, Node] = {}
    fields = []
    for each in wanted:
        below = f"{path}.{each.name}" if path else each.name
        if each.name in children:
            raise OptionError(f"the field {below} is there twice")
        inner = None
        if shape is not None:
            place = shape.only if shape.kind == MAP else shape.fields.get(each.name)
            if place is None:
                raise _no_field(below, each.name, shape)
            inner = inside(place)
        child = _of_type(each.type, inner, below)
        children[each.name] = child
        fields.append(each.with_type(child.type).with_nullable(True))
    return Node(STRUCT, pa.struct(fields), children)


def _map(wanted: pa.DataType, shape: Shape | None, path: str) -> Node:
    if not pa.types.is_string(wanted.key_type):
        raise OptionError(f"a JSON object has strings as keys, not {wanted.key_type}{_at(path)}")
    if shape is not None and shape.kind not in (STRUCT, MAP):
        raise _other_type(wanted, shape, path)
    below = inside(shape.only) if shape is not None and shape.kind == MAP else None
    item = _of_type(wanted.item_type, below, f"{path}{{}}")
    kept = wanted.item_field.with_type(item.type).with_nullable(True)
    return Node(MAP, pa.map_(wanted.key_field.with_nullable(False), kept), {"": item})


def kind_of_type(wanted: pa.DataType) -> str | None:
    """The kind of a type that has no fields; None where JSON has nothing for it."""
    types = pa.types
    for is_it, kind in (
        (types.is_boolean, BOOL),
        (types.is_signed_integer, INTEGER),
        (types.is_float32, FLOAT),
        (types.is_float64, FLOAT),
        (types.is_decimal128, DECIMAL),
        (types.is_string, LENIENT),
        (types.is_binary, BINARY),
        (types.is_date32, DATE),
        (types.is_null, NULL),
    ):
        if is_it(wanted):
            return kind
    if wanted == pa.duration("us"):
        return DURATION
    if wanted == LOCAL_MICROS:
        return LOCAL_TIMESTAMP
    if types.is_timestamp(wanted) and wanted.unit == "us" and wanted.tz is not None:
        return TIMESTAMP
    return None


# What a schema says -> what may be made of it, besides a string, which takes any value's text.
_READ_AS: Final[Mapping[str, frozenset[str]]] = {
    INTEGER: frozenset({INTEGER, FLOAT, DECIMAL}),
    FLOAT: frozenset({FLOAT, DECIMAL}),
    DECIMAL: frozenset({DECIMAL, FLOAT}),
    TEXT: frozenset({TEXT, BINARY, DATE, TIMESTAMP, LOCAL_TIMESTAMP, DURATION, DECIMAL}),
    BINARY: frozenset({BINARY}),
    DECIMAL_BYTES: frozenset({BINARY}),
    DATE: frozenset({DATE}),
    TIMESTAMP: frozenset({TIMESTAMP, LOCAL_TIMESTAMP}),
    EPOCH_MILLIS: frozenset({INTEGER}),
    EPOCH_DAYS: frozenset({INTEGER}),
}
# What is read as the schema says, into the type that is wanted.
_AS_SAID: Final = frozenset(
    {(EPOCH_MILLIS, TIMESTAMP), (EPOCH_DAYS, DATE), (DECIMAL_BYTES, DECIMAL)}
)


def _at(path: str) -> str:
    return f" (field {path})" if path else ""


def _other_type(wanted: pa.DataType, shape: Shape, path: str) -> OptionError:
    what = f"the field {path}" if path else "the value"
    return OptionError(
        f"{what} is {shape.words} in the JSON Schema, which cannot become {type_name(wanted)}"
    )


def _no_field(path: str, name: str, shape: Shape) -> OptionError:
    names = list(shape.fields)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if not near:
        near = [other for other in names if other.lower() == name.lower()]
    hint = (
        f"did you mean {' or '.join(near)}?"
        if near
        else f"it has {', '.join(names[:20])}{', …' if len(names) > 20 else ''}"
    )
    return OptionError(f"the JSON Schema has no field {path}: {hint}")
