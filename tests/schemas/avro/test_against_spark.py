"""Types, values and made schemas, held against Spark's own Avro.

Left out: times of day and timestamps in nanoseconds, for which Spark 4.2 has types of its own, and
records in unions of several types, which Spark itself cannot give to Arrow.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import StructType

from sparkkafka.schemas.avro import format as avro
from tests.schemas.avro.avro_cases import (
    decode,
    plain,
    record,
    schema,
    schemas,
    values,
    written,
)
from tests.support.properties import examples

ROWS = 4

TYPES = [
    pa.struct(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("name", pa.string()),
            pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("price", pa.decimal128(10, 2), nullable=False),
            ("small", pa.int16()),
            (
                "parts",
                pa.list_(
                    pa.field(
                        "element",
                        pa.struct(
                            [
                                ("day", pa.date32()),
                                (
                                    "more",
                                    pa.map_(
                                        pa.string(),
                                        pa.struct(
                                            [
                                                ("d", pa.decimal128(38, 3)),
                                                ("wait", pa.duration("us")),
                                                ("raw", pa.binary()),
                                                ("local", pa.timestamp("us")),
                                                ("nothing", pa.null()),
                                            ]
                                        ),
                                    ),
                                ),
                            ]
                        ),
                        nullable=False,
                    )
                ),
            ),
        ]
    )
]


def several(definition: Any) -> bool:
    """Is there a record in a union of several types? Or a type that Spark 4.2 has and we do not."""
    if isinstance(definition, list):
        rest = [each for each in definition if each != "null"]
        kinds = [each if isinstance(each, str) else each["type"] for each in rest]
        return (len(rest) > 1 and "record" in kinds) or any(map(several, rest))
    if isinstance(definition, dict):
        logical = definition.get("logicalType", "")
        inner = [definition.get("type"), definition.get("items"), definition.get("values")]
        return (
            logical.startswith("time-")
            or logical.endswith("-nanos")
            or any(map(several, [*inner, *definition.get("fields", [])]))
        )
    return False


def tables(count: int) -> list[tuple[Any, list[bytes]]]:
    found: list[tuple[Any, list[bytes]]] = []

    @settings(
        max_examples=examples(count),
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def collect(data: st.DataObject) -> None:
        definition = data.draw(schemas(nulls=False))
        assume(not several(definition))
        rows = data.draw(st.lists(values(definition), min_size=ROWS, max_size=ROWS))
        found.append((definition, [written(definition, row) for row in rows]))

    collect()
    return found


@pytest.mark.jvm
@pytest.mark.spark
def test_spark_has_the_same_types_and_values(spark: Any, spark_avro: Any) -> None:
    cases = tables(12)
    texts = [json.dumps(definition) for definition, _ in cases]
    names = [f"c{i}" for i in range(len(cases))]
    rows = list(zip(*(map(bytearray, payloads) for _, payloads in cases), strict=True))
    frame = spark.createDataFrame(rows, ", ".join(f"{name} binary" for name in names))
    table = frame.select(*map(spark_avro.from_avro, names, texts)).toArrow()
    jvm = spark._jvm.org.apache
    for (definition, payloads), text, column in zip(cases, texts, table.columns, strict=True):
        parsed = jvm.avro.Schema.Parser().parse(text)
        found = jvm.spark.sql.avro.SchemaConverters.toSqlType(parsed).dataType()
        kind = to_arrow_type(StructType.fromJson(json.loads(found.json())), timezone="UTC")
        assert avro.arrow_type(schema(definition)) == kind, definition
        theirs = pa.concat_arrays(column.chunks)
        assert plain(decode(definition, payloads).values) == plain(theirs), definition


@pytest.mark.jvm
@pytest.mark.spark
@pytest.mark.parametrize(("name", "space"), [("Order", "com.example"), ("Order", "")])
def test_spark_makes_the_same_schemas(spark: Any, spark_avro: Any, name: str, space: str) -> None:
    sql = spark._jvm.org.apache.spark.sql
    for kind in TYPES:
        given = sql.types.DataType.fromJson(from_arrow_type(kind).json())
        made = sql.avro.SchemaConverters.toAvroType(given, False, name, space).toString()
        own = avro.schema_of(kind, f"{space}.{name}".strip(".")).text
        assert unified(json.loads(own)) == unified(json.loads(made))


@pytest.mark.jvm
@pytest.mark.spark
def test_spark_counts_a_depth_in_the_same_way(spark: Any, spark_avro: Any) -> None:
    """Where Spark leaves a record out, there is a string here."""
    inner = record(("n", "int"), ("a", ["null", "A"]), ("v", ["null", "Value"]), name="A")
    jvm = spark._jvm.org.apache
    for definition in (
        record(("id", "int"), ("next", ["null", "Value"]), ("last", "string")),
        record(("id", "int"), ("a", ["null", inner])),
    ):
        parsed = jvm.avro.Schema.Parser().parse(json.dumps(definition))
        for depth in (1, 2, 3, 5):
            found = jvm.spark.sql.avro.SchemaConverters.toSqlType(parsed, False, "", depth)
            theirs = StructType.fromJson(json.loads(found.dataType().json()))
            ours = avro.arrow_type(schema(definition), depth=depth)
            assert without_texts(ours) == to_arrow_type(theirs, timezone="UTC")


def without_texts(kind: pa.DataType) -> pa.DataType:
    """The type without its texts of records."""
    if not pa.types.is_struct(kind):
        return kind
    kept = [
        field.with_type(without_texts(field.type))
        for field in kind
        if field.type != pa.string() or field.name == "last"
    ]
    return pa.struct(kept)


def unified(definition: Any) -> Any:
    """A name with its namespace in one: both may be written in two ways."""
    if isinstance(definition, list):
        return [unified(each) for each in definition]
    if not isinstance(definition, dict):
        return definition
    result = {key: unified(value) for key, value in definition.items() if key != "namespace"}
    if definition.get("namespace") and definition.get("type") in ("record", "fixed"):
        result["name"] = f"{definition['namespace']}.{definition['name']}"
    return result
