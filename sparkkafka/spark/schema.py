"""The columns that a read gives, as Spark types and as Arrow types.

Names, order, types and nullability are those of Spark's own Kafka source. Spark compares the first
Arrow schema of a read with the declared one field by field, so both are written down here. Arrow
itself is imported where it is used: Spark asks for the schema in a process of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

if TYPE_CHECKING:
    import pyarrow as pa

_HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)

_COLUMNS = (
    ("key", BinaryType()),
    ("value", BinaryType()),
    ("topic", StringType()),
    ("partition", IntegerType()),
    ("offset", LongType()),
    ("timestamp", TimestampType()),
    ("timestampType", IntegerType()),
)


def spark_schema(include_headers: bool) -> StructType:
    """Seven columns, all nullable; with `include_headers` an eighth, headers."""
    schema = StructType([StructField(name, kind) for name, kind in _COLUMNS])
    return schema.add("headers", _HEADERS) if include_headers else schema


def arrow_schema(include_headers: bool) -> pa.Schema:
    """The Arrow form of `spark_schema`, as Spark expects it from a reader."""
    import pyarrow as pa

    from sparkkafka.protocol.columns import HEADERS_TYPE

    types = (
        pa.binary(),
        pa.binary(),
        pa.string(),
        pa.int32(),
        pa.int64(),
        pa.timestamp("us", tz="UTC"),
        pa.int32(),
    )
    fields = [pa.field(name, kind) for (name, _), kind in zip(_COLUMNS, types, strict=True)]
    if include_headers:
        fields.append(pa.field("headers", HEADERS_TYPE))
    return pa.schema(fields)
