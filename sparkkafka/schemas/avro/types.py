"""Which Avro type becomes which Arrow type, and back: the rules of Spark's SchemaConverters.

The table for users is on the docs' page of schemas. At the end are the rules for values of logical
types that decoding and encoding share.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sparkkafka.errors import OptionError, SchemaError
from sparkkafka.protocol.records.varint_columns import Flags, Ints
from sparkkafka.schemas.avro import schema as avro
from sparkkafka.schemas.avro.schema import Node
from sparkkafka.schemas.schema_errors import (
    MAX_FIELDS,
    child_path,
    label,
    names_hint,
    too_deep_error,
)
from sparkkafka.schemas.values import type_name

_PRIMITIVE: Final = {
    avro.NULL: pa.null(),
    avro.BOOLEAN: pa.bool_(),
    avro.INT: pa.int32(),
    avro.LONG: pa.int64(),
    avro.FLOAT: pa.float32(),
    avro.DOUBLE: pa.float64(),
    avro.BYTES: pa.binary(),
    avro.STRING: pa.string(),
    avro.ENUM: pa.string(),
    avro.FIXED: pa.binary(),
}

_LOGICAL: Final = {
    avro.DATE: pa.date32(),
    avro.INTERVAL: pa.duration("us"),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
"""The type without the logical type is used for all others: time-*, uuid, duration, and timestamps
in nanoseconds, which Spark's timestamps cannot hold."""


def becomes_struct(union: Node) -> bool:
    """Return whether a union becomes a struct with a field for each branch that is not null. Unions
    of int and long, or float and double, become a number. As in Spark, logical types do not
    matter."""
    kinds = [branch.kind for branch in union.branches if branch.kind != avro.NULL]
    numbers = {avro.INT, avro.LONG}, {avro.FLOAT, avro.DOUBLE}
    return len(kinds) > 1 and set(kinds) not in numbers


def number_type(union: Node) -> pa.DataType | None:
    """Return the type of a union of int and long, or float and double; None for other unions."""
    if len(union.value_branches) < 2 or becomes_struct(union):
        return None
    kind = union.branches[union.value_branches[0]].kind
    return pa.int64() if kind in (avro.INT, avro.LONG) else pa.float64()


def may_be_null(node: Node) -> bool:
    return node.kind == avro.NULL or node.null_branch is not None


def arrow_type(node: Node, depth: int | None = None) -> pa.DataType:
    """Return the type for a read of all fields. Raises SchemaError where there is none.

    `depth`: how many levels of a recursive record become structs, as Spark's
    recursiveFieldMaxDepth. The next level is a string with JSON text. None: no recursive records.
    """
    return _TypeBuilder(depth).build(node, ())


class _TypeBuilder:
    """Builds the type of one column."""

    def __init__(self, depth: int | None) -> None:
        self._depth = depth
        self._type_count = 0

    def build(self, node: Node, parents: tuple[int, ...]) -> pa.DataType:
        """Return the type of a node. `parents`: the identities of the records around it. Raises
        SchemaError for a type that cannot become a column (`node.refusal` says why)."""
        if node.refusal and (node.kind != avro.RECORD or self._depth is None):
            raise SchemaError(node.refusal)
        if self._depth is not None:
            self._type_count += 1
            if self._type_count > MAX_FIELDS:
                raise too_deep_error(self._depth, f"has more than {MAX_FIELDS:,} fields")
        if node.kind == avro.RECORD:
            if self._depth is not None and parents.count(node.identity) >= self._depth:
                return pa.string()
            parents = (*parents, node.identity)
            fields = [self._field(field.name, field.node, parents) for field in node.fields]
            return pa.struct(fields)
        if node.kind == avro.ARRAY:
            return pa.list_(self._field("element", node.item, parents))
        if node.kind == avro.MAP:
            return pa.map_(pa.string(), self._field("value", node.item, parents))
        if node.kind == avro.UNION:
            branches = [node.branches[number] for number in node.value_branches]
            if not becomes_struct(node):
                if len(branches) == 1:
                    return self.build(branches[0], parents)
                return number_type(node) or pa.null()
            return pa.struct(
                [
                    pa.field(f"member{index}", self.build(branch, parents))
                    for index, branch in enumerate(branches)
                ]
            )
        if node.logical == avro.DECIMAL:
            return pa.decimal128(node.precision, node.scale)
        return _LOGICAL.get(node.logical, _PRIMITIVE[node.kind])

    def _field(self, name: str, node: Node, parents: tuple[int, ...]) -> pa.Field:
        return pa.field(name, self.build(node, parents), may_be_null(node))


def type_if_any(node: Node) -> pa.DataType | None:
    """Return the type for a read of all fields of a node; None if a part of it cannot become a
    column."""
    try:
        return arrow_type(node)
    except SchemaError:
        return None


# --- the type that the user wants ---------------------------------------------------------------

_WIDER: Final = {
    pa.int32(): (pa.int64(), pa.float64()),
    pa.float32(): (pa.float64(),),
    pa.string(): (pa.binary(),),
}


def holds_recursive_value(node: Node, column_type: pa.DataType) -> bool:
    """Return whether a string or binary column has a recursive type's values, as JSON text or as
    bytes.

    False for a union that does not become a struct, and for one with a branch of text or bytes:
    such a column has that branch's values."""
    if not node.recurs:
        return False
    texts_and_bytes = (avro.STRING, avro.ENUM, avro.BYTES, avro.FIXED)
    if node.kind == avro.UNION and (
        not becomes_struct(node) or any(branch.kind in texts_and_bytes for branch in node.branches)
    ):
        return False
    return bool(pa.types.is_string(column_type) or pa.types.is_binary(column_type))


def check_target(node: Node, target: pa.DataType, path: str = "") -> None:
    """Raises OptionError, with the field, unless values of the schema's type can become `target`
    without loss."""
    if holds_recursive_value(node, target):
        return
    if node.kind == avro.UNION and not becomes_struct(node):
        number = number_type(node)
        if len(node.value_branches) == 1:
            check_target(node.branches[node.value_branches[0]], target, path)
        elif number is not None and target not in (number, *_WIDER.get(number, ())):
            raise _mismatch_error(node, target, path)
        return
    if node.kind in (avro.RECORD, avro.UNION) and pa.types.is_struct(target):
        if node.kind == avro.RECORD:
            known = {field.name: field.node for field in node.fields}
        else:
            known = {
                f"member{index}": node.branches[number]
                for index, number in enumerate(node.value_branches)
            }
        for field in target:
            inner = known.get(field.name)
            at = child_path(path, field.name)
            if inner is None:
                raise OptionError(
                    f"{label(at)} of the requested schema is not in the Avro schema: "
                    f"{names_hint(field.name, known)}"
                )
            _check_field(inner, field, node.kind == avro.UNION or may_be_null(inner), at)
    elif node.kind == avro.ARRAY and pa.types.is_list(target):
        _check_field(node.item, target.value_field, may_be_null(node.item), f"{path}[]")
    elif node.kind == avro.MAP and pa.types.is_map(target) and target.key_type == pa.string():
        _check_field(node.item, target.item_field, may_be_null(node.item), f"{path}{{}}")
    elif node.kind not in _PRIMITIVE or not _can_become(node, target):
        raise _mismatch_error(node, target, path)


def _check_field(node: Node, field: pa.Field, may_be_null: bool, path: str) -> None:
    """Raises OptionError unless the schema's values fit a requested field, which may be NOT
    NULL."""
    if may_be_null and not field.nullable:
        raise OptionError(
            f"{label(path)} of the requested schema cannot be NOT NULL: it may be null in the Avro "
            "schema"
        )
    check_target(node, field.type, path)


def _can_become(node: Node, target: pa.DataType) -> bool:
    """Return whether values of a type without types below it can become `target` without loss."""
    natural = arrow_type(node)
    if node.kind == avro.NULL or target == natural or target in _WIDER.get(natural, ()):
        return True
    if node.logical == avro.DECIMAL and pa.types.is_decimal128(target):
        digits = node.precision - node.scale
        return bool(target.scale >= node.scale and target.precision - target.scale >= digits)
    if pa.types.is_timestamp(target) and target.unit == "us":
        return node.meaning == ("local-timestamp" if target.tz is None else "timestamp")
    if node.logical == avro.UUID and target == pa.string():
        return True
    # Dates and times may be read as the numbers that are written.
    return target == _PRIMITIVE[node.kind] and node.logical != avro.DECIMAL


def _mismatch_error(node: Node, target: pa.DataType, path: str) -> OptionError:
    """Return the error for a type of the Avro schema that cannot be read as `target`, with the type
    as which it is read."""
    if node.recurs and node.kind == avro.UNION and becomes_struct(node):
        becomes = "a struct of its types, with a recursive one as string (JSON text) or binary"
    elif node.recurs:
        becomes = "string (JSON text) or binary, or a struct with the names of the levels to read"
    else:
        becomes = type_name(arrow_type(node))
    return OptionError(
        f"{label(path)}: {node} of the Avro schema cannot become {type_name(target)} without "
        f"loss; it becomes {becomes}"
    )


# --- the Avro schema of an Arrow type -----------------------------------------------------------

_AVRO: Final[dict[pa.DataType, Any]] = {
    pa.null(): avro.NULL,
    pa.bool_(): avro.BOOLEAN,
    pa.int8(): avro.INT,
    pa.int16(): avro.INT,
    pa.int32(): avro.INT,
    pa.int64(): avro.LONG,
    pa.float32(): avro.FLOAT,
    pa.float64(): avro.DOUBLE,
    pa.string(): avro.STRING,
    pa.large_string(): avro.STRING,
    pa.binary(): avro.BYTES,
    pa.large_binary(): avro.BYTES,
    pa.date32(): {"type": avro.INT, "logicalType": avro.DATE},
}


def schema_text(source: pa.DataType, name: str) -> str:
    """Return the schema that Spark's SchemaConverters.toAvroType makes of a type, as JSON text.

    `name`: the full name of the outermost record. A nested record is named after its field, in a
    namespace of the names above it, so that no name stands for two types. What may be null is a
    union of the type and null, in this order. Raises SchemaError for what Avro has no type or name.
    """
    for part in name.split("."):
        _check_name(part, name)
    namespace, _, last = name.rpartition(".")
    return json.dumps(_avro_type(source, last, namespace, ""), separators=(",", ":"))


def _avro_type(source: pa.DataType, name: str, namespace: str, path: str) -> Any:
    """Return the Avro schema, as JSON's values, of an Arrow type. `name` and `namespace` are those
    of the record or fixed type that it becomes; `path` names the field in errors."""
    types = pa.types
    full_name = f"{namespace}.{name}" if namespace else name
    if source in _AVRO:
        return _AVRO[source]
    if types.is_timestamp(source):
        local = "local-" if source.tz is None else ""
        return {"type": avro.LONG, "logicalType": f"{local}timestamp-micros"}
    if types.is_duration(source):
        return {"type": avro.LONG, avro.CATALYST: "interval day to second"}
    if types.is_decimal128(source):
        # The fewest bytes for all numbers of this precision (Spark's Decimal.minBytesForPrecision).
        size = (int(10**source.precision - 1).bit_length() + 8) // 8
        return {
            "type": avro.FIXED,
            "name": f"{full_name}.fixed",
            "size": size,
            "logicalType": avro.DECIMAL,
            "precision": source.precision,
            "scale": source.scale,
        }
    if types.is_list(source) or types.is_large_list(source):
        items = _field_type(source.value_field, name, namespace, f"{path}[]")
        return {"type": avro.ARRAY, "items": items}
    if types.is_map(source) and source.key_type in (pa.string(), pa.large_string()):
        values = _field_type(source.item_field, name, namespace, f"{path}{{}}")
        return {"type": avro.MAP, "values": values}
    if types.is_struct(source):
        fields = []
        for field in source:
            at = child_path(path, field.name)
            _check_name(field.name, at)
            field_type = _field_type(field, field.name, full_name, at)
            fields.append({"name": field.name, "type": field_type})
        record = {"type": avro.RECORD, "name": name, "fields": fields}
        return {**record, "namespace": namespace} if namespace else record
    raise SchemaError(f"{label(path)}: Avro has no type for {type_name(source)}")


def _field_type(field: pa.Field, name: str, namespace: str, path: str) -> Any:
    """Return the JSON of a field's type: a union with null if the field may be null."""
    avro_type = _avro_type(field.type, name, namespace, path)
    return [avro_type, avro.NULL] if field.nullable and avro_type != avro.NULL else avro_type


def _check_name(name: str, path: str) -> None:
    """Raises SchemaError for a name that Avro does not allow."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise SchemaError(
            f"{label(path)}: {name!r} is not a name in Avro, whose names have only letters, digits "
            "and _: rename it, or set a schema with aliases"
        )


# --- values of logical types --------------------------------------------------------------------

UUID_DIGITS: Final = np.array([index for index in range(36) if index not in (8, 13, 18, 23)])
"""Where a UUID of 36 characters has its digits: 8-4-4-4-12."""


def rescale_times(times: Ints, unit: str, target: str) -> tuple[Ints, Flags | None]:
    """Return times converted from one unit to another (keys of NANOSECONDS), rounded down, also
    before 1970; and which of them are out of the range of 64 bits and became 0 (None: none)."""
    unit_ns, target_ns = avro.NANOSECONDS[unit], avro.NANOSECONDS[target]
    if unit_ns <= target_ns:
        return times // (target_ns // unit_ns), None
    factor = unit_ns // target_ns
    limit = (2**63 - 1) // factor
    bad: Flags = (times > limit) | (times < -limit)
    if bad.any():
        return np.where(bad, 0, times) * factor, bad
    return times * factor, None
