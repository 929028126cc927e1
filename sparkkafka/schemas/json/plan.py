"""How JSON values are read: a tree of nodes, planned from the column's type and a JSON Schema.

Without a schema, the column's type (`target`) decides, by the rules of Spark's `from_json`. With a
schema, the fields of `target` must be in it, with types that its values can have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from sparkkafka.errors import OptionError
from sparkkafka.schemas.field_names import check_distinct, child_path, label
from sparkkafka.schemas.json.schema import (
    Kind,
    Shape,
    Subschema,
    is_recursive,
    kind_of_type,
    shape_of,
    shape_of_field,
)
from sparkkafka.schemas.values import type_name


@dataclass(frozen=True)
class Node:
    """How a JSON value is read, and the Arrow type that it becomes.

    children: a struct's fields by name; the one item of a list, or value of a map, under "".
    """

    kind: Kind
    type: pa.DataType
    children: Mapping[str, Node] = field(default_factory=dict)

    @property
    def item(self) -> Node:
        return self.children[""]


def node_of_type(target: pa.DataType, path: str = "") -> Node:
    """Return the node that reads `target` by the type only. Raises OptionError for a type that JSON
    cannot give, with its field."""
    return _node(target, None, path)


def node_of_schema(subschema: Subschema) -> Node:
    """Return the node that reads all fields of a JSON Schema. Raises SchemaError."""
    shape = shape_of(subschema)
    if shape.kind == Kind.STRUCT:
        children = {name: node_of_schema(below) for name, below in shape.children.items()}
        fields = [pa.field(name, node.type) for name, node in children.items()]
        return Node(Kind.STRUCT, pa.struct(fields), children)
    if shape.kind == Kind.LIST:
        item = node_of_schema(shape.item)
        return Node(Kind.LIST, pa.list_(item.type), {"": item})
    if shape.kind == Kind.MAP:
        item = node_of_schema(shape.item)
        return Node(Kind.MAP, pa.map_(pa.string(), item.type), {"": item})
    return Node(shape.kind, shape.type)


def node_of_type_and_schema(target: pa.DataType, subschema: Subschema) -> Node:
    """Return the node that reads `target` from values of a JSON Schema. Raises OptionError for a
    field that the schema lacks, and for a type that its values cannot have."""
    return _node(target, shape_of(subschema), subschema.path)


def _node(target: pa.DataType, shape: Shape | None, path: str) -> Node:
    """Return the node that reads `target` from a schema of this shape; None: from any value."""
    if shape is not None and shape.kind in (Kind.JSON_TEXT, Kind.NULL):
        if pa.types.is_string(target) and shape.kind == Kind.JSON_TEXT:
            return Node(Kind.JSON_TEXT, pa.string())
        shape = None  # the schema allows any value: `target` decides
    if pa.types.is_struct(target):
        return _struct_node(target, shape, path)
    if pa.types.is_map(target):
        return _map_node(target, shape, path)
    if pa.types.is_list(target):
        if shape is not None and shape.kind != Kind.LIST:
            raise _type_error(target, shape, path)
        below = None if shape is None else shape_of_field(shape.item)
        item = _node(target.value_type, below, f"{path}[]")
        value_field = target.value_field.with_type(item.type).with_nullable(True)
        return Node(Kind.LIST, pa.list_(value_field), {"": item})
    kind = kind_of_type(target)
    if kind is None:
        raise OptionError(
            f"{label(path)}: JSON gives no {type_name(target)}: take boolean, byte to long, float, "
            "double, decimal, string, binary, date, timestamp, array, map of strings, or struct"
        )
    if shape is None:
        return Node(kind, target)
    if kind == Kind.BINARY and is_recursive(shape):
        return Node(Kind.JSON_TEXT, target)
    if kind == Kind.LENIENT and shape.kind == Kind.TEXT:
        return Node(Kind.TEXT, target)
    if (shape.kind, kind) in _READ_BY_SCHEMA:
        return Node(shape.kind, target)
    if kind != Kind.LENIENT and kind not in _READABLE_AS.get(shape.kind, {shape.kind}):
        raise _type_error(target, shape, path)
    return Node(kind, target)


def _struct_node(target: pa.DataType, shape: Shape | None, path: str) -> Node:
    """As `_node`, for a struct."""
    if shape is not None and shape.kind not in (Kind.STRUCT, Kind.MAP):
        raise _type_error(target, shape, path)
    check_distinct(target, path)
    children: dict[str, Node] = {}
    fields = []
    for column in target:
        below = child_path(path, column.name)
        inner = None if shape is None else shape.field_shape(column.name, below)
        child = _node(column.type, inner, below)
        children[column.name] = child
        fields.append(column.with_type(child.type).with_nullable(True))
    return Node(Kind.STRUCT, pa.struct(fields), children)


def _map_node(target: pa.DataType, shape: Shape | None, path: str) -> Node:
    """As `_node`, for a map."""
    if not pa.types.is_string(target.key_type):
        raise OptionError(
            f"{label(path)}: a JSON object has strings as keys, not {type_name(target.key_type)}"
        )
    if shape is not None and shape.kind not in (Kind.STRUCT, Kind.MAP):
        raise _type_error(target, shape, path)
    item_shape = (
        shape_of_field(shape.item) if shape is not None and shape.kind == Kind.MAP else None
    )
    item = _node(target.item_type, item_shape, f"{path}{{}}")
    item_field = target.item_field.with_type(item.type).with_nullable(True)
    map_type = pa.map_(target.key_field.with_nullable(False), item_field)
    return Node(Kind.MAP, map_type, {"": item})


# What values of a schema's kind can be read as, besides a string, which takes any value's text.
_READABLE_AS: Final[Mapping[Kind, frozenset[Kind]]] = {
    Kind.INTEGER: frozenset({Kind.INTEGER, Kind.FLOAT, Kind.DECIMAL}),
    Kind.FLOAT: frozenset({Kind.FLOAT, Kind.DECIMAL}),
    Kind.DECIMAL: frozenset({Kind.DECIMAL, Kind.FLOAT}),
    Kind.TEXT: frozenset(
        {
            Kind.TEXT,
            Kind.BINARY,
            Kind.DATE,
            Kind.TIMESTAMP,
            Kind.LOCAL_TIMESTAMP,
            Kind.DURATION,
            Kind.DECIMAL,
        }
    ),
    Kind.BINARY: frozenset({Kind.BINARY}),
    Kind.DECIMAL_BYTES: frozenset({Kind.BINARY}),
    Kind.DATE: frozenset({Kind.DATE}),
    Kind.TIMESTAMP: frozenset({Kind.TIMESTAMP, Kind.LOCAL_TIMESTAMP}),
    Kind.EPOCH_MILLIS: frozenset({Kind.INTEGER}),
    Kind.EPOCH_DAYS: frozenset({Kind.INTEGER}),
}
# (the schema's kind, that of `target`) where values are read by the schema's.
_READ_BY_SCHEMA: Final = frozenset(
    {
        (Kind.EPOCH_MILLIS, Kind.TIMESTAMP),
        (Kind.EPOCH_DAYS, Kind.DATE),
        (Kind.DECIMAL_BYTES, Kind.DECIMAL),
    }
)


def _type_error(target: pa.DataType, shape: Shape, path: str) -> OptionError:
    return OptionError(
        f"{label(path)} is {shape.description} in the JSON Schema, which cannot become "
        f"{type_name(target)}"
    )
