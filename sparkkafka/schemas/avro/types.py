"""Which Avro type becomes which Arrow type, and back: the rules of Spark's SchemaConverters.

Nothing here reads a byte. The table for people is on the docs' page of schemas.
"""

from __future__ import annotations

import difflib
import json
import re
from typing import Any, Final

import pyarrow as pa

from sparkkafka.errors import OptionError, SchemaError
from sparkkafka.schemas.avro import schema as avro
from sparkkafka.schemas.avro.schema import Node, below, place
from sparkkafka.schemas.bounds import MAX_FIELDS, too_deep_error
from sparkkafka.schemas.values import type_name

TIMESTAMP: Final = pa.timestamp("us", "UTC")
LOCAL_TIMESTAMP: Final = pa.timestamp("us")
INTERVAL: Final = pa.duration("us")

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
    avro.INTERVAL: INTERVAL,
    "timestamp-millis": TIMESTAMP,
    "timestamp-micros": TIMESTAMP,
    "local-timestamp-millis": LOCAL_TIMESTAMP,
    "local-timestamp-micros": LOCAL_TIMESTAMP,
}
"""Other logical types are as the type below them: time-*, uuid, duration, and timestamps in
nanoseconds, which Spark's timestamps cannot hold."""


def parts(union: Node) -> tuple[list[int], bool]:
    """Of a union: which branches are not null, and whether one is."""
    rest = [i for i, branch in enumerate(union.branches) if branch.kind != avro.NULL]
    return rest, len(rest) < len(union.branches)


def number_type(union: Node) -> pa.DataType | None:
    """The type of a union of int with long, or float with double; None if it is no such union."""
    rest, _ = parts(union)
    if len(rest) < 2 or becomes_struct(union):
        return None
    return pa.int64() if union.branches[rest[0]].kind in (avro.INT, avro.LONG) else pa.float64()


def becomes_struct(union: Node) -> bool:
    """As Spark, which looks at the types alone and not at what they mean."""
    rest, _ = parts(union)
    kinds = {union.branches[i].kind for i in rest}
    return len(rest) > 1 and kinds not in ({avro.INT, avro.LONG}, {avro.FLOAT, avro.DOUBLE})


def may_be_null(node: Node) -> bool:
    return node.kind == avro.NULL or (node.kind == avro.UNION and parts(node)[1])


def arrow_type(node: Node, depth: int | None = None) -> pa.DataType:
    """The type for a read of all fields. Raises SchemaError where there is none.

    `depth`: how often a record may stand in itself, the outermost one counted, as Spark's
    recursiveFieldMaxDepth. Where that ends the record is a string, of JSON text. None: not at all.
    """
    return _Types(depth).of(node, ())


class _Types:
    """Makes one column's type."""

    def __init__(self, depth: int | None) -> None:
        self._depth = depth
        self._count = 0

    def of(self, node: Node, above: tuple[int, ...]) -> pa.DataType:
        """`above`: the records around the node, by their identity."""
        if node.refusal and (node.kind != avro.RECORD or self._depth is None):
            raise SchemaError(node.refusal)
        if self._depth is not None:
            self._count += 1
            if self._count > MAX_FIELDS:
                raise too_deep_error(self._depth, f"has more than {MAX_FIELDS:,} fields")
        if node.kind == avro.RECORD:
            if self._depth is not None and above.count(node.identity) >= self._depth:
                return pa.string()
            above = (*above, node.identity)
            return pa.struct([self._field(field.name, field.node, above) for field in node.fields])
        if node.kind == avro.ARRAY:
            return pa.list_(self._field("element", node.item, above))
        if node.kind == avro.MAP:
            return pa.map_(pa.string(), self._field("value", node.item, above))
        if node.kind == avro.UNION:
            rest, _ = parts(node)
            if not becomes_struct(node):
                if len(rest) == 1:
                    return self.of(node.branches[rest[0]], above)
                return number_type(node) or pa.null()
            return pa.struct(
                [
                    pa.field(f"member{k}", self.of(node.branches[i], above))
                    for k, i in enumerate(rest)
                ]
            )
        if node.logical == avro.DECIMAL:
            return pa.decimal128(node.precision, node.scale)
        return _LOGICAL.get(node.logical, _PRIMITIVE[node.kind])

    def _field(self, name: str, node: Node, above: tuple[int, ...]) -> pa.Field:
        return pa.field(name, self.of(node, above), may_be_null(node))


def type_if_any(node: Node) -> pa.DataType | None:
    """The type of its column, None if not all of it can become one."""
    try:
        return arrow_type(node)
    except SchemaError:
        return None


# --- a type that the user asked for -------------------------------------------------------------

_WIDER: Final = {
    pa.int32(): (pa.int64(), pa.float64()),
    pa.float32(): (pa.float64(),),
    pa.string(): (pa.binary(),),
}


_BLOBS: Final = frozenset({avro.STRING, avro.ENUM, avro.BYTES, avro.FIXED})


def is_text(node: Node, kind: pa.DataType) -> bool:
    """Whether a column of type `kind` has the node's values as JSON text, or as Avro's bytes: what
    recurs has no type of its own. A union with a string or bytes is written from these as they are,
    so it is never a text."""
    if not node.recurs:
        return False
    if node.kind == avro.UNION and (
        not becomes_struct(node) or any(branch.kind in _BLOBS for branch in node.branches)
    ):
        return False
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def check_wanted(node: Node, wanted: pa.DataType, path: str = "") -> None:
    """Raises OptionError unless values of the schema's type can become `wanted` without loss."""
    if is_text(node, wanted):
        return
    if node.kind == avro.UNION and not becomes_struct(node):
        rest, _ = parts(node)
        one = number_type(node)
        if len(rest) == 1:
            check_wanted(node.branches[rest[0]], wanted, path)
        elif one is not None and wanted not in (one, *_WIDER.get(one, ())):
            raise _misfit(node, wanted, path)
        return
    if node.kind in (avro.RECORD, avro.UNION) and pa.types.is_struct(wanted):
        if node.kind == avro.RECORD:
            there = {field.name: field.node for field in node.fields}
        else:
            there = {f"member{k}": node.branches[i] for k, i in enumerate(parts(node)[0])}
        for field in wanted:
            inner = there.get(field.name)
            if inner is None:
                raise _unknown_field(below(path, field.name), field.name, list(there))
            optional = node.kind == avro.UNION or may_be_null(inner)
            _check_field(inner, field, optional, below(path, field.name))
        return
    if node.kind == avro.ARRAY and pa.types.is_list(wanted):
        _check_field(node.item, wanted.value_field, may_be_null(node.item), f"{path}[]")
        return
    if node.kind == avro.MAP and pa.types.is_map(wanted) and wanted.key_type == pa.string():
        _check_field(node.item, wanted.item_field, may_be_null(node.item), f"{path}{{}}")
        return
    if node.kind in (avro.RECORD, avro.UNION, avro.ARRAY, avro.MAP):
        raise _misfit(node, wanted, path)
    if not _becomes(node, wanted):
        raise _misfit(node, wanted, path)


def _check_field(node: Node, field: pa.Field, optional: bool, path: str) -> None:
    if optional and not field.nullable:
        raise OptionError(
            f"{place(path)} of the schema that was asked for cannot be NOT NULL: by the Avro "
            "schema it may be null"
        )
    check_wanted(node, field.type, path)


def _becomes(node: Node, wanted: pa.DataType) -> bool:
    natural = arrow_type(node)
    plain = _PRIMITIVE[node.kind]
    if node.kind == avro.NULL or wanted == natural or wanted in _WIDER.get(natural, ()):
        return True
    if node.logical == avro.DECIMAL and pa.types.is_decimal128(wanted):
        digits = node.precision - node.scale
        return bool(wanted.scale >= node.scale and wanted.precision - wanted.scale >= digits)
    if pa.types.is_timestamp(wanted) and wanted.unit == "us":
        if node.logical.startswith("timestamp-"):
            return wanted.tz is not None
        return node.logical.startswith("local-timestamp-") and wanted.tz is None
    if node.logical == avro.UUID and wanted == pa.string():
        return True
    # Dates and times as the numbers that they are written as.
    return wanted == plain and node.logical != avro.DECIMAL


def _unknown_field(path: str, name: str, there: list[str]) -> OptionError:
    lower = {each.lower(): each for each in there}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    hint = f"; did you mean {lower[near[0]]!r}?" if near else ""
    shown = ", ".join(there[:20]) + (", …" if len(there) > 20 else "")
    return OptionError(
        f"{place(path)} of the schema that was asked for does not exist in the Avro schema: there "
        f"are {shown or 'no fields'}{hint}"
    )


def _misfit(node: Node, wanted: pa.DataType, path: str) -> OptionError:
    if node.recurs and node.kind == avro.UNION and becomes_struct(node):
        becomes = "a struct of its types, of which what recurs is string (JSON text) or binary"
    elif node.recurs:
        becomes = "string (JSON text) or binary, or some of its levels, by name"
    else:
        becomes = type_name(arrow_type(node))
    return OptionError(
        f"{place(path)}: {node} of the Avro schema cannot become {type_name(wanted)} without "
        f"loss; it becomes {becomes}"
    )


# --- from Arrow to Avro -------------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def schema_text(given: pa.DataType, name: str) -> str:
    """The schema that Spark's SchemaConverters.toAvroType makes of a type: JSON text.

    `name`: full name of the topmost record. A nested record is called as its field, in a namespace
    made of the names above it, so that no name stands for two types. What may be null is a union
    of the type and null, in this order. Raises SchemaError for a type or name that Avro lacks.
    """
    for part in name.split("."):
        _check_name(part, name)
    space, _, last = name.rpartition(".")
    return json.dumps(_avro_type(given, last, space, ""), separators=(",", ":"))


def _avro_type(given: pa.DataType, name: str, space: str, path: str) -> Any:
    types = pa.types
    if types.is_boolean(given):
        return avro.BOOLEAN
    if given in (pa.int8(), pa.int16(), pa.int32()):
        return avro.INT
    if given == pa.int64():
        return avro.LONG
    if types.is_float32(given):
        return avro.FLOAT
    if types.is_float64(given):
        return avro.DOUBLE
    if types.is_string(given) or types.is_large_string(given):
        return avro.STRING
    if types.is_binary(given) or types.is_large_binary(given):
        return avro.BYTES
    if types.is_date32(given):
        return {"type": avro.INT, "logicalType": avro.DATE}
    if types.is_timestamp(given):
        local = "local-" if given.tz is None else ""
        return {"type": avro.LONG, "logicalType": f"{local}timestamp-micros"}
    if types.is_duration(given):
        return {"type": avro.LONG, avro.CATALYST: "interval day to second"}
    if types.is_decimal128(given):
        inner = f"{space}.{name}" if space else name
        return {
            "type": avro.FIXED,
            "name": f"{inner}.fixed",
            "size": decimal_size(given.precision),
            "logicalType": avro.DECIMAL,
            "precision": given.precision,
            "scale": given.scale,
        }
    if types.is_null(given):
        return avro.NULL
    if types.is_list(given) or types.is_large_list(given):
        return {"type": avro.ARRAY, "items": _optional(given.value_field, name, space, f"{path}[]")}
    if types.is_map(given) and given.key_type in (pa.string(), pa.large_string()):
        return {"type": avro.MAP, "values": _optional(given.item_field, name, space, f"{path}{{}}")}
    if types.is_struct(given):
        inner = f"{space}.{name}" if space else name
        fields = []
        for field in given:
            at = below(path, field.name)
            _check_name(field.name, at)
            fields.append({"name": field.name, "type": _optional(field, field.name, inner, at)})
        record = {"type": avro.RECORD, "name": name, "fields": fields}
        return {**record, "namespace": space} if space else record
    raise SchemaError(f"{place(path)}: Avro has no type for {type_name(given)}")


def _optional(field: pa.Field, name: str, space: str, path: str) -> Any:
    made = _avro_type(field.type, name, space, path)
    return [made, avro.NULL] if field.nullable and made != avro.NULL else made


def decimal_size(precision: int) -> int:
    """The fewest bytes that hold all numbers of so many digits (Spark's
    `Decimal.minBytesForPrecision`)."""
    return (int(10**precision - 1).bit_length() + 8) // 8


def _check_name(name: str, path: str) -> None:
    if not _NAME.fullmatch(name):
        raise SchemaError(
            f"{place(path)}: {name!r} is no name in Avro, which has letters, digits and _ alone: "
            "rename it, or give a schema with aliases"
        )
