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
        """Return a column's type: that of its schema, else of Kafka's column of this name."""
        # Compared with None: a struct type without fields is falsy.
        if column.arrow_type is not None:
            return column.arrow_type
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
            if not column.is_hidden
        ]
    )


def to_arrow_type(spark_type: spark.DataType, path: str) -> pa.DataType:
    """Return the Arrow type of a Spark type. `path`: the field's name in the error. Raises
    OptionError for a type that a column with a schema cannot have."""
    if isinstance(spark_type, spark.DecimalType):
        return pa.decimal128(spark_type.precision, spark_type.scale)
    if isinstance(spark_type, spark.ArrayType):
        element_type = to_arrow_type(spark_type.elementType, f"{path}.element")
        return pa.list_(pa.field("element", element_type, nullable=spark_type.containsNull))
    if isinstance(spark_type, spark.MapType):
        return pa.map_(
            pa.field("key", to_arrow_type(spark_type.keyType, f"{path}.key"), nullable=False),
            pa.field(
                "value",
                to_arrow_type(spark_type.valueType, f"{path}.value"),
                nullable=spark_type.valueContainsNull,
            ),
        )
    if isinstance(spark_type, spark.StructType):
        return pa.struct(
            [
                pa.field(
                    field.name,
                    to_arrow_type(field.dataType, f"{path}.{field.name}"),
                    nullable=field.nullable,
                    metadata={METADATA_KEY: json.dumps(field.metadata)} if field.metadata else None,
                )
                for field in spark_type.fields
            ]
        )
    # isinstance: strings with a collation, and char(n), have subclasses.
    arrow_type = (
        pa.string() if isinstance(spark_type, spark.StringType) else _TO_ARROW.get(type(spark_type))
    )
    if arrow_type is None:
        raise OptionError(
            f"{path}: a column with a schema cannot have the type {spark_type.simpleString()}: "
            "cast it"
        )
    return arrow_type


def from_arrow_type(arrow_type: pa.DataType) -> spark.DataType:
    """Return the Spark type of an Arrow type that a format produces. Raises KeyError for any other
    type."""
    if pa.types.is_decimal(arrow_type):
        return spark.DecimalType(arrow_type.precision, arrow_type.scale)
    if pa.types.is_map(arrow_type):
        return spark.MapType(
            from_arrow_type(arrow_type.key_type),
            from_arrow_type(arrow_type.item_type),
            arrow_type.item_field.nullable,
        )
    if pa.types.is_list(arrow_type):
        return spark.ArrayType(
            from_arrow_type(arrow_type.value_type), arrow_type.value_field.nullable
        )
    if pa.types.is_struct(arrow_type):
        return spark.StructType(
            [
                spark.StructField(field.name, from_arrow_type(field.type), field.nullable)
                for field in arrow_type
            ]
        )
    return _FROM_ARROW[arrow_type]


def first_stricter_field(declared: pa.DataType, actual: pa.DataType, path: str) -> str | None:
    """Return the path of the first field that is NOT NULL in `declared` and nullable in `actual`;
    None if there is none. `path` is the path of the two types. Other differences of the types are
    ignored."""
    pairs: list[tuple[pa.Field, pa.Field, str]] = []
    if pa.types.is_struct(declared) and pa.types.is_struct(actual):
        for field in declared:
            index = actual.get_field_index(field.name)
            if index >= 0:
                pairs.append((field, actual.field(index), f"{path}.{field.name}"))
    elif pa.types.is_map(declared) and pa.types.is_map(actual):
        pairs = [(declared.item_field, actual.item_field, f"{path}.value")]  # no key is null
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
    arrow_type = array.type
    if pa.types.is_struct(arrow_type):
        return any(has_null_items(array.field(number)) for number in range(arrow_type.num_fields))
    if pa.types.is_map(arrow_type):
        items = array.items
    elif pa.types.is_list(arrow_type):
        items = array.values
    else:
        return False
    if pa.types.is_nested(items.type):
        return has_null_items(items)
    return items.null_count > 0 and items.type not in (pa.string(), pa.binary())
