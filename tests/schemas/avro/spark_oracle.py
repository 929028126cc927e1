"""Spark's own Avro: types, schemas and values, in a process and a JVM of its own.

    python -m tests.schemas.avro.spark_oracle JAR QUESTIONS ANSWERS

Both files are pickled. Questions: schemas with payloads, and types (as Spark's JSON) with names.
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa


class Questions(NamedTuple):
    tables: list[tuple[str, list[bytes]]]
    """Schema and payloads; as many of them everywhere."""
    types: list[tuple[str, str, str]]
    """A type as Spark's JSON, name and namespace of the record."""


class Answers(NamedTuple):
    types: list[pa.DataType]
    """SchemaConverters.toSqlType, as Spark's Arrow type."""
    columns: list[pa.Array]
    """from_avro."""
    schemas: list[Any]
    """SchemaConverters.toAvroType, as JSON."""


def answer(jar: str, questions: Questions) -> Answers:
    from pyspark.sql import SparkSession
    from pyspark.sql.avro.functions import from_avro
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StructType

    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", jar)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    jvm: Any = spark._jvm
    converters = jvm.org.apache.spark.sql.avro.SchemaConverters
    types = []
    for text, _ in questions.tables:
        found = converters.toSqlType(jvm.org.apache.avro.Schema.Parser().parse(text)).dataType()
        types.append(to_arrow_type(StructType.fromJson(json.loads(found.json())), timezone="UTC"))
    names = [f"c{i}" for i in range(len(questions.tables))]
    rows = list(zip(*(map(bytearray, payloads) for _, payloads in questions.tables), strict=True))
    frame = spark.createDataFrame(rows, ", ".join(f"{name} binary" for name in names))
    texts = [text for text, _ in questions.tables]
    table = frame.select(*(from_avro(*pair) for pair in zip(names, texts, strict=True))).toArrow()
    columns = [pa.concat_arrays(column.chunks) for column in table.columns]
    made = []
    for text, name, space in questions.types:
        kind = jvm.org.apache.spark.sql.types.DataType.fromJson(text)
        made.append(json.loads(converters.toAvroType(kind, False, name, space).toString()))
    spark.stop()
    return Answers(types, columns, made)


def main() -> None:
    jar, questions, answers = sys.argv[1:]
    found = answer(jar, Questions(*pickle.loads(Path(questions).read_bytes())))
    Path(answers).write_bytes(pickle.dumps(tuple(found)))


if __name__ == "__main__":
    main()
