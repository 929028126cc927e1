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
from sparkkafka.schemas.json.schema import (
    JsonKind,
    Shape,
    Subschema,
    is_recursive,
    kind_of_type,
    shape_of,
    shape_of_field,
    type_of_shape,
)
from sparkkafka.schemas.schema_errors import check_distinct, child_path, label
from sparkkafka.schemas.values import type_name


@dataclass(frozen=True)
class JsonNode:
    """How a JSON value is read, and the Arrow type that it becomes.

    children: a struct's fields by name; the one item of a list, or value of a map, under "".
    """

    kind: JsonKind
    type: pa.DataType
    children: Mapping[str, JsonNode] = field(default_factory=dict)

    @property
    def item(self) -> JsonNode:
        """The node of a list's items, or of a map's values."""
        return self.children[""]


def node_of_schema(subschema: Subschema) -> JsonNode:
    """Return the node that reads all fields of a JSON Schema. Raises SchemaError."""
    shape = shape_of(subschema)
    children = {name: node_of_schema(child) for name, child in shape.children.items()}
    types = {name: node.type for name, node in children.items()}
    return JsonNode(shape.kind, type_of_shape(shape, types), children)


def node_of_type(target: pa.DataType, shape: Shape | None = None, path: str = "") -> JsonNode:
    """Return the node that reads `target` from values of a JSON Schema of this shape; None: from
    any value. `path`: the field's, for errors. Raises OptionError for a type that JSON or the
    schema's values cannot become, and for a field that the schema lacks."""
    if shape is not None and shape.kind in (JsonKind.JSON_TEXT, JsonKind.NULL):
        if pa.types.is_string(target) and shape.kind == JsonKind.JSON_TEXT:
            return JsonNode(JsonKind.JSON_TEXT, pa.string())
        shape = None  # the schema allows any value: `target` decides
    if pa.types.is_struct(target):
        return _struct_node(target, shape, path)
    if pa.types.is_map(target):
        return _map_node(target, shape, path)
    if pa.types.is_list(target):
        if shape is not None and shape.kind != JsonKind.LIST:
            raise _type_error(target, shape, path)
        item_shape = None if shape is None else shape_of_field(shape.item)
        item = node_of_type(target.value_type, item_shape, f"{path}[]")
        value_field = target.value_field.with_type(item.type).with_nullable(True)
        return JsonNode(JsonKind.LIST, pa.list_(value_field), {"": item})
    kind = kind_of_type(target)
    if kind is None:
        raise OptionError(
            f"{label(path)}: JSON gives no {type_name(target)}: take boolean, byte to long, float, "
            "double, decimal, string, binary, date, timestamp, array, map of strings, or struct"
        )
    if shape is None:
        return JsonNode(kind, target)
    if kind == JsonKind.BINARY and is_recursive(shape):
        return JsonNode(JsonKind.JSON_TEXT, target)
    if kind == JsonKind.AS_TEXT and shape.kind == JsonKind.TEXT:
        return JsonNode(JsonKind.TEXT, target)
    if (shape.kind, kind) in _READ_BY_SCHEMA:
        # The bytes of a decimal have no scale of their own: theirs is the schema's.
        if kind == JsonKind.DECIMAL and target.scale != shape.type.scale:
            raise _type_error(target, shape, path)
        return JsonNode(shape.kind, target)
    if kind != JsonKind.AS_TEXT and kind not in _READABLE_AS.get(shape.kind, {shape.kind}):
        raise _type_error(target, shape, path)
    return JsonNode(kind, target)


def _struct_node(target: pa.DataType, shape: Shape | None, path: str) -> JsonNode:
    """Return the node that reads a struct from a schema of this shape; None: from any value."""
    if shape is not None and shape.kind not in (JsonKind.STRUCT, JsonKind.MAP):
        raise _type_error(target, shape, path)
    check_distinct(target, path)
    children: dict[str, JsonNode] = {}
    fields = []
    for column in target:
        field_path = child_path(path, column.name)
        inner = None if shape is None else shape.field_shape(column.name, field_path)
        child = node_of_type(column.type, inner, field_path)
        children[column.name] = child
        fields.append(column.with_type(child.type).with_nullable(True))
    return JsonNode(JsonKind.STRUCT, pa.struct(fields), children)


def _map_node(target: pa.DataType, shape: Shape | None, path: str) -> JsonNode:
    """Return the node that reads a map from a schema of this shape; None: from any value."""
    if not pa.types.is_string(target.key_type):
        raise OptionError(
            f"{label(path)}: a JSON object has strings as keys, not {type_name(target.key_type)}"
        )
    if shape is not None and shape.kind not in (JsonKind.STRUCT, JsonKind.MAP):
        raise _type_error(target, shape, path)
    item_shape = (
        shape_of_field(shape.item) if shape is not None and shape.kind == JsonKind.MAP else None
    )
    item = node_of_type(target.item_type, item_shape, f"{path}{{}}")
    item_field = target.item_field.with_type(item.type).with_nullable(True)
    map_type = pa.map_(target.key_field.with_nullable(False), item_field)
    return JsonNode(JsonKind.MAP, map_type, {"": item})


# The kinds as which a schema's values can be read. A string can hold the text of any value.
_READABLE_AS: Final[Mapping[JsonKind, set[JsonKind]]] = {
    JsonKind.INTEGER: {JsonKind.INTEGER, JsonKind.FLOAT, JsonKind.DECIMAL},
    JsonKind.FLOAT: {JsonKind.FLOAT, JsonKind.DECIMAL},
    JsonKind.DECIMAL: {JsonKind.DECIMAL, JsonKind.FLOAT},
    JsonKind.TEXT: {
        *(JsonKind.TEXT, JsonKind.BINARY, JsonKind.DATE, JsonKind.TIMESTAMP),
        *(JsonKind.LOCAL_TIMESTAMP, JsonKind.DURATION, JsonKind.DECIMAL),
    },
    JsonKind.BINARY: {JsonKind.BINARY},
    JsonKind.DECIMAL_BYTES: {JsonKind.BINARY},
    JsonKind.DATE: {JsonKind.DATE},
    JsonKind.TIMESTAMP: {JsonKind.TIMESTAMP, JsonKind.LOCAL_TIMESTAMP},
    JsonKind.EPOCH_MILLIS: {JsonKind.INTEGER},
    JsonKind.EPOCH_DAYS: {JsonKind.INTEGER},
}
# (the schema's kind, that of `target`) where values are read by the schema's.
_READ_BY_SCHEMA: Final = {
    (JsonKind.EPOCH_MILLIS, JsonKind.TIMESTAMP),
    (JsonKind.EPOCH_DAYS, JsonKind.DATE),
    (JsonKind.DECIMAL_BYTES, JsonKind.DECIMAL),
}


def _type_error(target: pa.DataType, shape: Shape, path: str) -> OptionError:
    """Return the error for values of this shape of a JSON Schema that cannot become `target`."""
    return OptionError(
        f"{label(path)} is {shape.description} in the JSON Schema, which cannot become "
        f"{type_name(target)}"
    )
