"""Types of Kafka Connect: what a decoded field means, besides its Arrow type.

Each format's schema has the type in another form: Avro in the properties connect.name and
connect.parameters, a JSON Schema in title and connect.parameters, and Connect's JsonConverter in a
schema beside each payload. `type_of_schema` and `type_of_connect_schema` read them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from sparkkafka.config.kinds import AVRO, JSON
from sparkkafka.errors import SchemaError
from sparkkafka.schemas.avro.schema import RECORD, UNION, Node, parse
from sparkkafka.schemas.schema_errors import label
from sparkkafka.schemas.values import Schema

_LEAVES: Final = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.string(),
}
"""What the JSON decoder reads for Connect's types; bytes are a text in base64."""

_PROMOTIONS: Final = {
    (pa.int32(), pa.int64()),
    (pa.int32(), pa.float64()),
    (pa.int64(), pa.float64()),
    (pa.float32(), pa.float64()),
}
"""A writer's type and a reader's type to which Avro promotes its values."""

_MAX_LEVELS: Final = 64

DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
VARIABLE_SCALE: Final = "io.debezium.data.VariableScaleDecimal"

MAX_DIGITS: Final = 38
"""The highest precision of a decimal in Spark."""


@dataclass(frozen=True)
class ConnectType:
    """A type of Connect.

    `leaf`: the Arrow type that the format's decoder gives; None for a struct, list or map. `name`:
    the semantic type, such as io.debezium.time.Date. `children`: a struct's fields by name; the
    item of a list or the value of a map under "". `is_base64`: bytes are a text.
    """

    leaf: pa.DataType | None = None
    name: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    children: Mapping[str, ConnectType] = field(default_factory=dict)
    is_list: bool = False
    is_map: bool = False
    is_base64: bool = False

    def __post_init__(self) -> None:
        """Raise SchemaError for a field that Connect's name says is a decimal, and that lacks the
        scale or the parts of one."""
        for name, child in self.children.items():
            is_decimal = child.leaf is not None and pa.types.is_decimal(child.leaf)
            if child.name == DECIMAL and not is_decimal:
                scale = child.parameters.get("scale")
                try:
                    int(scale or "")
                except (TypeError, ValueError):
                    raise SchemaError(
                        f"{label(name)}: its scale, {scale!r}, is not a number, and a {DECIMAL} "
                        "needs one"
                    ) from None
            if child.name == VARIABLE_SCALE and child.is_struct:
                parts = [child.children.get(part, child) for part in ("scale", "value")]
                if parts[0].leaf != pa.int32() or not (
                    parts[1].is_base64 or parts[1].leaf == pa.binary()
                ):
                    raise SchemaError(
                        f"{label(name)}: a {VARIABLE_SCALE} has an int named scale, and bytes "
                        "named value"
                    )

    @property
    def is_struct(self) -> bool:
        return self.leaf is None and not self.is_list and not self.is_map

    @property
    def item(self) -> ConnectType:
        return self.children[""]

    @property
    def wire(self) -> pa.DataType:
        """The Arrow type that the format's decoder gives."""
        if self.leaf is not None:
            return self.leaf
        if self.is_list:
            return pa.list_(pa.field("element", self.item.wire))
        if self.is_map:
            return pa.map_(pa.string(), pa.field("value", self.item.wire))
        return pa.struct([(name, child.wire) for name, child in self.children.items()])

    def pruned(self, target: pa.DataType) -> ConnectType:
        """Return the type with only the fields that `target` has."""
        if self.is_struct and pa.types.is_struct(target):
            names = [name for name in self.children if target.get_field_index(name) >= 0]
            children = {name: self.children[name].pruned(target.field(name).type) for name in names}
            return replace(self, children=children)
        if self.is_list and pa.types.is_list(target):
            return replace(self, children={"": self.item.pruned(target.value_type)})
        if self.is_map and pa.types.is_map(target):
            return replace(self, children={"": self.item.pruned(target.item_type)})
        return self

    def resolves_to(self, other: ConnectType) -> bool:
        """Return whether a reader's schema of the type `other` reads values of this one: fields
        that both have need the same semantic type, and the same Arrow type or a promotion."""
        if self.leaf is not None and other.leaf is not None:
            scales = [node.parameters.get("scale") for node in (self, other)]
            is_same_type = self.leaf == other.leaf or (self.leaf, other.leaf) in _PROMOTIONS
            return is_same_type and self.name == other.name and scales[0] == scales[1]
        is_same_kind = (self.is_struct, self.is_list, self.is_map) == (
            other.is_struct,
            other.is_list,
            other.is_map,
        )
        return is_same_kind and all(
            child.resolves_to(other.children[name])
            for name, child in self.children.items()
            if name in other.children
        )


def type_of_arrow(arrow_type: pa.DataType) -> ConnectType:
    """Return the Connect type of values that are what their Arrow type says."""
    if pa.types.is_struct(arrow_type):
        children = {child.name: type_of_arrow(child.type) for child in arrow_type}
        return ConnectType(children=children)
    if pa.types.is_list(arrow_type):
        return ConnectType(children={"": type_of_arrow(arrow_type.value_type)}, is_list=True)
    if pa.types.is_map(arrow_type):
        return ConnectType(children={"": type_of_arrow(arrow_type.item_type)}, is_map=True)
    return ConnectType(arrow_type)


# --- the schema beside a payload --------------------------------------------------------------


def type_of_connect_schema(schema: Any, level: int = 0) -> ConnectType:
    """Return the type of the JSON that Connect's JsonConverter writes as `schema`. Raises
    SchemaError."""
    if not isinstance(schema, dict) or level > _MAX_LEVELS:
        raise SchemaError("the schema beside the payload is not one of Kafka Connect")
    kind, name = schema.get("type"), schema.get("name") or ""
    parameters = schema.get("parameters")
    common: dict[str, Any] = {
        "name": name if isinstance(name, str) else "",
        "parameters": parameters if isinstance(parameters, dict) else {},
    }
    if kind == "struct":
        fields = schema.get("fields")
        children: dict[str, ConnectType] = {}
        for child in fields if isinstance(fields, list) else ():
            if not isinstance(child, dict) or not isinstance(child.get("field"), str):
                raise SchemaError("a field of the schema beside the payload has no name")
            children[child["field"]] = type_of_connect_schema(child, level + 1)
        return ConnectType(children=children, **common)
    if kind == "array":
        item = type_of_connect_schema(schema.get("items"), level + 1)
        return ConnectType(children={"": item}, is_list=True, **common)
    if kind == "map":
        keys = schema.get("keys")
        if isinstance(keys, dict) and keys.get("type") != "string":
            # In JSON it is a list of pairs, as in pgvector's SparseVector.
            return ConnectType(pa.string())
        item = type_of_connect_schema(schema.get("values"), level + 1)
        return ConnectType(children={"": item}, is_map=True, **common)
    if not isinstance(kind, str) or kind not in _LEAVES:
        raise SchemaError(f"the schema beside the payload has the unknown type {kind!r}")
    return ConnectType(_LEAVES[kind], is_base64=kind == "bytes", **common)


# --- schemas of the formats -------------------------------------------------------------------


def type_of_schema(schema: Schema, arrow_type: pa.DataType) -> ConnectType:
    """Return the Connect type of a schema whose values are of `arrow_type`."""
    if schema.format == AVRO:
        return _of_avro(parse(schema), arrow_type)
    if schema.format == JSON:
        return _of_json_schema(json.loads(schema.text), arrow_type)
    return type_of_arrow(arrow_type)


def without_long_decimals(schema: Schema) -> Schema:
    """Return an Avro schema in which decimals of more digits than a column can have are bytes:
    Confluent's AvroConverter writes a precision of 64 if Connect does not know it."""

    def rewrite(node: Any) -> Any:
        """Return a copy of a part of the schema's JSON in which these decimals are bytes."""
        if isinstance(node, list):
            return [rewrite(child) for child in node]
        if not isinstance(node, dict):
            return node
        copy = {name: rewrite(child) for name, child in node.items()}
        precision = node.get("precision")
        if (
            node.get("logicalType") == "decimal"
            and isinstance(precision, int)
            and precision > MAX_DIGITS
            and node.get("type") == "bytes"
        ):
            del copy["logicalType"]
        return copy

    if schema.format != AVRO or '"decimal"' not in schema.text:
        return schema
    return replace(schema, text=json.dumps(rewrite(json.loads(schema.text))))


def json_decimal(node: ConnectType, decimal: pa.DataType) -> ConnectType:
    """Return the type `node`, Connect's Decimal, as JSON texts have it: a string with the unscaled
    bytes in base64, or a number. `decimal` is the column's Arrow type, which has the scale."""
    digits = {"scale": decimal.scale, "connect.decimal.precision": decimal.precision}
    parameters = {name: str(number) for name, number in digits.items()}
    return replace(node, leaf=pa.string(), is_base64=True, parameters=parameters)


def with_text_floats(node: ConnectType) -> ConnectType:
    """Return the type with text for floating-point numbers."""
    if node.leaf is not None:
        is_float = pa.types.is_floating(node.leaf)
        return replace(node, leaf=pa.string()) if is_float else node
    children = {name: with_text_floats(child) for name, child in node.children.items()}
    return replace(node, children=children)


def _with_children(node: ConnectType, children: Mapping[str, ConnectType]) -> ConnectType:
    return replace(node, children={**node.children, **children})


def _of_avro(node: Node, arrow_type: pa.DataType) -> ConnectType:
    """Return the Connect type of a part of an Avro schema, whose values are of `arrow_type`."""
    if node.kind == UNION:
        branches = node.value_branches
        if len(branches) != 1:
            return type_of_arrow(arrow_type)
        return _of_avro(node.branches[branches[0]], arrow_type)
    connect_type = replace(
        type_of_arrow(arrow_type), name=node.connect_name, parameters=node.connect_parameters
    )
    if connect_type.is_struct and node.kind == RECORD:
        fields = {
            field.name: _of_avro(field.node, arrow_type.field(field.name).type)
            for field in node.fields
        }
        return _with_children(connect_type, fields)
    if connect_type.is_list or connect_type.is_map:
        item_type = arrow_type.value_type if connect_type.is_list else arrow_type.item_type
        return _with_children(connect_type, {"": _of_avro(node.item, item_type)})
    return connect_type


def _of_json_schema(node: Any, arrow_type: pa.DataType) -> ConnectType:
    """Return the Connect type of a part of a JSON Schema, as Confluent's JsonSchemaConverter writes
    it: without references."""
    connect_type = type_of_arrow(arrow_type)
    if not isinstance(node, dict):
        return connect_type
    if isinstance(branches := node.get("oneOf"), list):
        others = [branch for branch in branches if branch != {"type": "null"}]
        return _of_json_schema(others[0], arrow_type) if len(others) == 1 else connect_type
    parameters = node.get("connect.parameters")
    connect_type = replace(
        connect_type,
        name=str(node.get("title") or ""),
        parameters=parameters if isinstance(parameters, dict) else {},
    )
    leaf = connect_type.leaf
    if connect_type.name == DECIMAL and leaf is not None and pa.types.is_decimal(leaf):
        return json_decimal(connect_type, leaf)
    is_number = node.get("type") in ("integer", "number")
    if connect_type.name.startswith("org.apache.kafka.connect.data.") and is_number and leaf:
        return replace(connect_type, leaf=pa.int64())  # Date, Time and Timestamp are numbers
    properties = node.get("properties")
    if connect_type.is_struct and isinstance(properties, dict):
        return _with_children(
            connect_type,
            {
                child.name: _of_json_schema(properties.get(child.name), child.type)
                for child in arrow_type
            },
        )
    if connect_type.is_list:
        item = _of_json_schema(node.get("items"), arrow_type.value_type)
        return _with_children(connect_type, {"": item})
    if connect_type.is_map:
        item = _of_json_schema(node.get("additionalProperties"), arrow_type.item_type)
        return _with_children(connect_type, {"": item})
    return connect_type
