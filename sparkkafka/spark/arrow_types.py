"""Spark's types as Arrow types and back.

The types are those of PySpark's own conversion, whose functions have another signature in each
version of Spark, and import pandas.
"""

from __future__ import annotations

import json

import pyarrow as pa
from pyspark.sql import types as spark

from sparkkafka.errors import OptionError
from sparkkafka.spark.schema import COLUMN_TYPES, ReadColumn

METADATA_KEY = "SPARK::metadata::json"
"""The key of a field's metadata in Arrow (ArrowUtils.metadataKey in Spark). Rows that the driver
hands over with a stream's plan must have the metadata; tasks' rows may have it."""

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
_TO_ARROW = {type(spark_type): arrow_type for spark_type, arrow_type in _SIMPLE}
_FROM_ARROW = {arrow_type: spark_type for spark_type, arrow_type in _SIMPLE}


def arrow_schema(columns: tuple[ReadColumn, ...]) -> pa.Schema:
    """Return the Arrow schema of the columns. Spark compares that of a read's first batch with the
    declared schema field by field."""

    def type_of(column: ReadColumn) -> pa.DataType:
        if column.kind is not None:  # compared with None: a struct type without fields is falsy
            return column.kind
        return (
            pa.string() if column.as_text else to_arrow_type(COLUMN_TYPES[column.name], column.name)
        )

    return pa.schema(
        [
            pa.field(
                column.name,
                type_of(column),
                nullable=column.nullable,
                metadata={METADATA_KEY: column.metadata} if column.metadata else None,
            )
            for column in columns
        ]
    )


def to_arrow_type(kind: spark.DataType, path: str) -> pa.DataType:
    """Return the Arrow type of a Spark type. `path`: the field's name in the error. Raises
    OptionError for a type that a column with a schema cannot have."""
    if isinstance(kind, spark.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, spark.ArrayType):
        item = to_arrow_type(kind.elementType, f"{path}.element")
        return pa.list_(pa.field("element", item, nullable=kind.containsNull))
    if isinstance(kind, spark.MapType):
        return pa.map_(
            pa.field("key", to_arrow_type(kind.keyType, f"{path}.key"), nullable=False),
            pa.field(
                "value",
                to_arrow_type(kind.valueType, f"{path}.value"),
                nullable=kind.valueContainsNull,
            ),
        )
    if isinstance(kind, spark.StructType):
        return pa.struct(
            [
                pa.field(
                    field.name,
                    to_arrow_type(field.dataType, f"{path}.{field.name}"),
                    nullable=field.nullable,
                    metadata={METADATA_KEY: json.dumps(field.metadata)} if field.metadata else None,
                )
                for field in kind.fields
            ]
        )
    # isinstance: strings with a collation, and char(n), have subclasses.
    arrow_type = pa.string() if isinstance(kind, spark.StringType) else _TO_ARROW.get(type(kind))
    if arrow_type is None:
        raise OptionError(
            f"{path}: a column with a schema cannot have the type {kind.simpleString()}: cast it"
        )
    return arrow_type


def from_arrow_type(kind: pa.DataType) -> spark.DataType:
    """Return the Spark type of an Arrow type that a format produces. Raises KeyError for any other
    type."""
    if pa.types.is_decimal(kind):
        return spark.DecimalType(kind.precision, kind.scale)
    if pa.types.is_map(kind):
        return spark.MapType(
            from_arrow_type(kind.key_type),
            from_arrow_type(kind.item_type),
            kind.item_field.nullable,
        )
    if pa.types.is_list(kind):
        return spark.ArrayType(from_arrow_type(kind.value_type), kind.value_field.nullable)
    if pa.types.is_struct(kind):
        return spark.StructType(
            [
                spark.StructField(field.name, from_arrow_type(field.type), field.nullable)
                for field in kind
            ]
        )
    return _FROM_ARROW[kind]


def as_nullable(kind: pa.DataType) -> pa.DataType:
    """Return the type with all its fields nullable, to compare types without their nullability."""
    if pa.types.is_map(kind):
        return pa.map_(
            pa.field("key", as_nullable(kind.key_type), nullable=False),
            pa.field("value", as_nullable(kind.item_type)),
        )
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", as_nullable(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, as_nullable(field.type)) for field in kind])
    return kind


def first_stricter_field(declared: pa.DataType, actual: pa.DataType, path: str) -> str | None:
    """Return the path of the first field that is NOT NULL in `declared` and nullable in `actual`;
    None if there is none. `path`: that of the two types themselves. Other differences of the types
    are not looked at."""
    pairs: list[tuple[pa.Field, pa.Field, str]] = []
    if pa.types.is_struct(declared) and pa.types.is_struct(actual):
        for field in declared:
            index = actual.get_field_index(field.name)
            if index >= 0:
                pairs.append((field, actual.field(index), f"{path}.{field.name}"))
    elif pa.types.is_map(declared) and pa.types.is_map(actual):
        pairs = [
            (declared.key_field, declared.key_field, f"{path}.key"),
            (declared.item_field, actual.item_field, f"{path}.value"),
        ]
    elif pa.types.is_list(declared) and pa.types.is_list(actual):
        pairs = [(declared.value_field, actual.value_field, f"{path}.element")]
    for field, actual_field, field_path in pairs:
        if actual_field.nullable and not field.nullable:
            return field_path
        stricter_path = first_stricter_field(field.type, actual_field.type, field_path)
        if stricter_path is not None:
            return stricter_path
    return None


def has_null_items(array: pa.Array) -> bool:
    """Return whether an array or map in the column has a null item at which Spark may fail.

    Such rows cannot be handed over with a stream's plan (`RowsWithPlan`). Spark copies their arrays
    of numbers, booleans, dates or times as a whole (ColumnarArray.copy), and reads null items, too.
    It copies strings and binaries one by one, so null ones do no harm.
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
    return items.null_count > 0 and items.type not in (pa.string(), pa.binary())
