"""The columns that a read gives, as Spark types and as Arrow types.

Names, order, types and nullability are those of Spark's own Kafka source. Spark compares the first
Arrow schema of a read with the declared one field by field, so both are written down here.
"""

from __future__ import annotations

import pyarrow as pa
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

from sparkkafka.protocol.columns import HEADERS_TYPE

_HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)

_COLUMNS = (
    ("key", BinaryType(), pa.binary()),
    ("value", BinaryType(), pa.binary()),
    ("topic", StringType(), pa.string()),
    ("partition", IntegerType(), pa.int32()),
    ("offset", LongType(), pa.int64()),
    ("timestamp", TimestampType(), pa.timestamp("us", tz="UTC")),
    ("timestampType", IntegerType(), pa.int32()),
)


def spark_schema(include_headers: bool) -> StructType:
    """Seven columns, all nullable; with `include_headers` an eighth, headers."""
    schema = StructType([StructField(name, kind) for name, kind, _ in _COLUMNS])
    return schema.add("headers", _HEADERS) if include_headers else schema


def arrow_schema(include_headers: bool) -> pa.Schema:
    """The Arrow form of `spark_schema`, as Spark expects it from a reader."""
    fields = [pa.field(name, kind) for name, _, kind in _COLUMNS]
    if include_headers:
        fields.append(pa.field("headers", HEADERS_TYPE))
    return pa.schema(fields)
