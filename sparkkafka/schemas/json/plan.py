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
from sparkkafka.schemas.json import schema
from sparkkafka.schemas.schema_errors import check_distinct, child_path, label
from sparkkafka.schemas.values import type_name


@dataclass(frozen=True)
class Node:
    """How a JSON value is read, and the Arrow type that it becomes.

    children: a struct's fields by name; the one item of a list, or value of a map, under "".
    """

    kind: schema.Kind
    type: pa.DataType
    children: Mapping[str, Node] = field(default_factory=dict)

    @property
    def item(self) -> Node:
        return self.children[""]


def node_of_type(target: pa.DataType, path: str = "") -> Node:
    """Return the node that reads `target` by the type only. Raises OptionError for a type that JSON
    cannot give, with its field."""
    return _node(target, None, path)


def node_of_schema(subschema: schema.Subschema) -> Node:
    """Return the node that reads all fields of a JSON Schema. Raises SchemaError."""
    shape = schema.shape_of(subschema)
    children = {name: node_of_schema(below) for name, below in shape.children.items()}
    types = {name: node.type for name, node in children.items()}
    return Node(shape.kind, schema.type_of_shape(shape, types), children)


def node_of_type_and_schema(target: pa.DataType, subschema: schema.Subschema) -> Node:
    """Return the node that reads `target` from values of a JSON Schema. Raises OptionError for a
    field that the schema lacks, and for a type that its values cannot have."""
    return _node(target, schema.shape_of(subschema), subschema.path)


def _node(target: pa.DataType, shape: schema.Shape | None, path: str) -> Node:
    """Return the node that reads `target` from a schema of this shape; None: from any value."""
    if shape is not None and shape.kind in (schema.Kind.JSON_TEXT, schema.Kind.NULL):
        if pa.types.is_string(target) and shape.kind == schema.Kind.JSON_TEXT:
            return Node(schema.Kind.JSON_TEXT, pa.string())
        shape = None  # the schema allows any value: `target` decides
    if pa.types.is_struct(target):
        return _struct_node(target, shape, path)
    if pa.types.is_map(target):
        return _map_node(target, shape, path)
    if pa.types.is_list(target):
        if shape is not None and shape.kind != schema.Kind.LIST:
            raise _type_error(target, shape, path)
        below = None if shape is None else schema.shape_of_field(shape.item)
        item = _node(target.value_type, below, f"{path}[]")
        value_field = target.value_field.with_type(item.type).with_nullable(True)
        return Node(schema.Kind.LIST, pa.list_(value_field), {"": item})
    kind = schema.kind_of_type(target)
    if kind is None:
        raise OptionError(
            f"{label(path)}: JSON gives no {type_name(target)}: take boolean, byte to long, float, "
            "double, decimal, string, binary, date, timestamp, array, map of strings, or struct"
        )
    if shape is None:
        return Node(kind, target)
    if kind == schema.Kind.BINARY and schema.is_recursive(shape):
        return Node(schema.Kind.JSON_TEXT, target)
    if kind == schema.Kind.LENIENT and shape.kind == schema.Kind.TEXT:
        return Node(schema.Kind.TEXT, target)
    if (shape.kind, kind) in _READ_BY_SCHEMA:
        return Node(shape.kind, target)
    if kind != schema.Kind.LENIENT and kind not in _READABLE_AS.get(shape.kind, {shape.kind}):
        raise _type_error(target, shape, path)
    return Node(kind, target)


def _struct_node(target: pa.DataType, shape: schema.Shape | None, path: str) -> Node:
    """Return the node that reads a struct from a schema of this shape; None: from any value."""
    if shape is not None and shape.kind not in (schema.Kind.STRUCT, schema.Kind.MAP):
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
    return Node(schema.Kind.STRUCT, pa.struct(fields), children)


def _map_node(target: pa.DataType, shape: schema.Shape | None, path: str) -> Node:
    """Return the node that reads a map from a schema of this shape; None: from any value."""
    if not pa.types.is_string(target.key_type):
        raise OptionError(
            f"{label(path)}: a JSON object has strings as keys, not {type_name(target.key_type)}"
        )
    if shape is not None and shape.kind not in (schema.Kind.STRUCT, schema.Kind.MAP):
        raise _type_error(target, shape, path)
    item_shape = (
        schema.shape_of_field(shape.item)
        if shape is not None and shape.kind == schema.Kind.MAP
        else None
    )
    item = _node(target.item_type, item_shape, f"{path}{{}}")
    item_field = target.item_field.with_type(item.type).with_nullable(True)
    map_type = pa.map_(target.key_field.with_nullable(False), item_field)
    return Node(schema.Kind.MAP, map_type, {"": item})


# The kinds as which a schema's values can be read. A string can hold the text of any value.
_READABLE_AS: Final[Mapping[schema.Kind, frozenset[schema.Kind]]] = {
    schema.Kind.INTEGER: frozenset({schema.Kind.INTEGER, schema.Kind.FLOAT, schema.Kind.DECIMAL}),
    schema.Kind.FLOAT: frozenset({schema.Kind.FLOAT, schema.Kind.DECIMAL}),
    schema.Kind.DECIMAL: frozenset({schema.Kind.DECIMAL, schema.Kind.FLOAT}),
    schema.Kind.TEXT: frozenset(
        {
            schema.Kind.TEXT,
            schema.Kind.BINARY,
            schema.Kind.DATE,
            schema.Kind.TIMESTAMP,
            schema.Kind.LOCAL_TIMESTAMP,
            schema.Kind.DURATION,
            schema.Kind.DECIMAL,
        }
    ),
    schema.Kind.BINARY: frozenset({schema.Kind.BINARY}),
    schema.Kind.DECIMAL_BYTES: frozenset({schema.Kind.BINARY}),
    schema.Kind.DATE: frozenset({schema.Kind.DATE}),
    schema.Kind.TIMESTAMP: frozenset({schema.Kind.TIMESTAMP, schema.Kind.LOCAL_TIMESTAMP}),
    schema.Kind.EPOCH_MILLIS: frozenset({schema.Kind.INTEGER}),
    schema.Kind.EPOCH_DAYS: frozenset({schema.Kind.INTEGER}),
}
# (the schema's kind, that of `target`) where values are read by the schema's.
_READ_BY_SCHEMA: Final = frozenset(
    {
        (schema.Kind.EPOCH_MILLIS, schema.Kind.TIMESTAMP),
        (schema.Kind.EPOCH_DAYS, schema.Kind.DATE),
        (schema.Kind.DECIMAL_BYTES, schema.Kind.DECIMAL),
    }
)


def _type_error(target: pa.DataType, shape: schema.Shape, path: str) -> OptionError:
    return OptionError(
        f"{label(path)} is {shape.description} in the JSON Schema, which cannot become "
        f"{type_name(target)}"
    )
