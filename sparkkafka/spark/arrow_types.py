"""Spark's types as Arrow types and back: those of columns with a schema.

As PySpark's own conversion, whose functions have another signature in each version of Spark, and
import pandas.
"""

from __future__ import annotations

import json

import pyarrow as pa
from pyspark.sql import types as spark

from sparkkafka.errors import OptionError
from sparkkafka.spark.schema import METADATA_KEY

_SIMPLE: tuple[tuple[spark.DataType, pa.DataType], ...] = (
    (spark.BooleanType(), pa.bool_()),
    (spark.ByteType(), pa.int8()),
    (spark.ShortType(), pa.int16()),
    (spark.IntegerType(), pa.int32()),
    (spark.LongType(), pa.int64()),
    (spark.FloatType(), pa.float32()),
    (spark.DoubleType(), pa.float64()),
    (spark.StringType(), pa.string()),
    (spark.BinaryType(), pa.binary()),
    (spark.DateType(), pa.date32()),
    (spark.TimestampType(), pa.timestamp("us", tz="UTC")),
    (spark.TimestampNTZType(), pa.timestamp("us")),
    (spark.DayTimeIntervalType(), pa.duration("us")),
    (spark.NullType(), pa.null()),
)
_COPIED_ONE_BY_ONE = (pa.string(), pa.binary())
_TO_ARROW = {type(one): other for one, other in _SIMPLE}
_FROM_ARROW = {other: one for one, other in _SIMPLE}


def to_arrow(kind: spark.DataType, path: str) -> pa.DataType:
    """Raises OptionError, which names `path`, for a type that columns with a schema cannot have."""
    if isinstance(kind, spark.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, spark.ArrayType):
        item = to_arrow(kind.elementType, f"{path}.element")
        return pa.list_(pa.field("element", item, nullable=kind.containsNull))
    if isinstance(kind, spark.MapType):
        return pa.map_(
            pa.field("key", to_arrow(kind.keyType, f"{path}.key"), nullable=False),
            pa.field(
                "value", to_arrow(kind.valueType, f"{path}.value"), nullable=kind.valueContainsNull
            ),
        )
    if isinstance(kind, spark.StructType):
        return pa.struct(
            [
                pa.field(
                    one.name,
                    to_arrow(one.dataType, f"{path}.{one.name}"),
                    nullable=one.nullable,
                    metadata={METADATA_KEY: json.dumps(one.metadata)} if one.metadata else None,
                )
                for one in kind.fields
            ]
        )
    # Text with a collation, and char(n), are classes of their own.
    found = pa.string() if isinstance(kind, spark.StringType) else _TO_ARROW.get(type(kind))
    if found is None:
        raise OptionError(
            f"{path}: {kind.simpleString()} is no type of a column with a schema: cast it"
        )
    return found


def from_arrow(kind: pa.DataType) -> spark.DataType:
    """The Spark type of an Arrow type that a format gives."""
    if pa.types.is_decimal(kind):
        return spark.DecimalType(kind.precision, kind.scale)
    if pa.types.is_map(kind):
        return spark.MapType(
            from_arrow(kind.key_type), from_arrow(kind.item_type), kind.item_field.nullable
        )
    if pa.types.is_list(kind):
        return spark.ArrayType(from_arrow(kind.value_type), kind.value_field.nullable)
    if pa.types.is_struct(kind):
        return spark.StructType(
            [spark.StructField(one.name, from_arrow(one.type), one.nullable) for one in kind]
        )
    return _FROM_ARROW[kind]


def nullable(kind: pa.DataType) -> pa.DataType:
    """The type with null allowed everywhere: for comparing what differs in that only."""
    if pa.types.is_map(kind):
        return pa.map_(
            pa.field("key", nullable(kind.key_type), nullable=False),
            pa.field("value", nullable(kind.item_type)),
        )
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", nullable(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, nullable(one.type)) for one in kind])
    return kind


def promised(wanted: pa.DataType, given: pa.DataType, path: str) -> str | None:
    """The first place where `wanted` says NOT NULL and `given` does not; None if there is none."""
    pairs: list[tuple[pa.Field, pa.Field, str]] = []
    if pa.types.is_struct(wanted) and pa.types.is_struct(given):
        for one in wanted:
            at = given.get_field_index(one.name)
            if at >= 0:
                pairs.append((one, given.field(at), f"{path}.{one.name}"))
    elif pa.types.is_map(wanted) and pa.types.is_map(given):
        pairs = [
            (wanted.key_field, wanted.key_field, f"{path}.key"),
            (wanted.item_field, given.item_field, f"{path}.value"),
        ]
    elif pa.types.is_list(wanted) and pa.types.is_list(given):
        pairs = [(wanted.value_field, given.value_field, f"{path}.element")]
    for one, other, place in pairs:
        if other.nullable and not one.nullable:
            return place
        found = promised(one.type, other.type, place)
        if found is not None:
            return found
    return None


def has_null_items(array: pa.Array) -> bool:
    """Whether an array or map, wherever it is nested, has a null in it that Spark may fail at.

    Of rows that come with a plan Spark copies an array of numbers, booleans, dates or times at once
    (ColumnarArray.copy), and asks for each value, also where there is none. What it copies one by
    one may be null.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        return any(has_null_items(array.field(number)) for number in range(kind.num_fields))
    if pa.types.is_map(kind):
        items = array.items
    elif pa.types.is_list(kind):
        items = array.values
    else:
        return False
    if pa.types.is_nested(items.type):
        return has_null_items(items)
    return items.null_count > 0 and items.type not in _COPIED_ONE_BY_ONE
