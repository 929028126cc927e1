"""Schemas from text, for tests without a JVM."""

from __future__ import annotations

import inspect

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)


def headers_type(value: DataType) -> ArrayType:
    return ArrayType(StructType([StructField("key", StringType()), StructField("value", value)]))


TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "date": DateType(),
    "map<string,binary>": MapType(StringType(), BinaryType()),
    "array<struct<key:string,value:binary>>": headers_type(BinaryType()),
    "array<struct<key:string,value:string>>": headers_type(StringType()),
}


def ddl(text: str) -> StructType:
    """Like StructType.fromDDL, which needs a JVM: "value string, offset bigint not null"."""
    schema = StructType()
    for column in text.split(", "):
        name, kind, *never_null = column.split(" ")
        schema.add(name, TYPES[kind], nullable=not never_null)
    return schema


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """What Spark makes of it; 4.0 and 4.1 have no other zone than UTC."""
    zone = (
        {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    )
    return to_arrow_schema(schema, **zone)
