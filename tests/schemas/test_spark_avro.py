"""Spark's own `from_avro`, of spark-avro: for the same schemas the same types and rows as ours."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from sparkkafka.config.kinds import AVRO
from sparkkafka.schemas.avro import format as avro
from sparkkafka.schemas.values import Schema

pytestmark = [pytest.mark.spark, pytest.mark.jvm]

UTC = datetime.UTC
NOON = datetime.datetime(2026, 11, 24, 12, 0, 0, 123_456, UTC)


def record(*fields: Any, name: str = "Row") -> dict[str, Any]:
    """Fields are (name, type) or (name, type, default)."""
    made = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return {"type": "record", "name": name, "namespace": "of.tests", "fields": made}


def logical(kind: Any, name: str, **further: Any) -> dict[str, Any]:
    below = kind if isinstance(kind, dict) else {"type": kind}
    return {**below, "logicalType": name, **further}


FIXED = {"type": "fixed", "name": "Eight", "size": 8}
POINT = record(("x", "int"), ("y", ["null", "double"]), name="Point")
COLOR = {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}

CASES: dict[str, tuple[Any, list[Any]]] = {
    "primitives": (
        record(
            ("b", "boolean"),
            ("i", "int"),
            ("l", "long"),
            ("f", "float"),
            ("d", "double"),
            ("s", "string"),
            ("y", "bytes"),
            ("n", "null"),
        ),
        [
            {"b": i % 2 == 0, "i": i - 5, "l": i * 10**15, "f": i / 4, "d": -i / 3, "s": "ü" * i}
            | {"y": bytes(range(i)), "n": None}
            for i in range(20)
        ]
        + [
            {"b": True, "i": -(2**31), "l": 2**63 - 1, "f": float("inf"), "d": 5e-324, "s": ""}
            | {"y": b"", "n": None}
        ],
    ),
    "nullable": (
        record(
            ("i", ["null", "int"]),
            ("s", ["string", "null"]),
            ("y", ["null", "bytes"]),
            ("l", "long"),
        ),
        [
            {"i": None if i % 2 else i, "s": None if i % 3 else str(i), "y": None, "l": i}
            for i in range(20)
        ],
    ),
    "times": (
        record(
            ("date", logical("int", "date")),
            ("ms", logical("long", "timestamp-millis")),
            ("us", logical("long", "timestamp-micros")),
            ("local_ms", logical("long", "local-timestamp-millis")),
            ("local_us", logical("long", "local-timestamp-micros")),
            ("time_ms", "int"),
        ),
        [
            {
                "date": datetime.date(1900, 1, 1) + datetime.timedelta(days=i * 3000),
                "ms": NOON.replace(microsecond=123_000) - datetime.timedelta(days=i * 3000),
                "us": NOON - datetime.timedelta(days=i * 3000),
                "local_ms": datetime.datetime(1900 + i, 3, 4, 5, 6, 7, 8000),
                "local_us": datetime.datetime(2000 + i, 3, 4, 5, 6, 7, 89),
                "time_ms": i,
            }
            for i in range(20)
        ],
    ),
    "decimals": (
        record(
            ("bytes", logical("bytes", "decimal", precision=20, scale=5)),
            ("fixed", logical(FIXED, "decimal", precision=18, scale=2)),
        ),
        [
            {"bytes": Decimal(sign * i**11) / 100_000, "fixed": Decimal(sign * i**9) / 100}
            for i in range(12)
            for sign in (1, -1)
        ],
    ),
    "enum, fixed, array, map, record": (
        record(
            ("color", COLOR),
            ("fixed", FIXED),
            ("array", {"type": "array", "items": ["null", "long"]}),
            ("map", {"type": "map", "values": "string"}),
            ("point", POINT),
            ("points", {"type": "array", "items": "Point"}),
            # Of fields that may be null: toArrow of Spark 4.3 fails with others in a null record.
            ("maybe", ["null", record(("z", ["null", "int"]), name="Maybe")]),
            ("deep", {"type": "array", "items": {"type": "array", "items": "int"}}),
        ),
        [
            {
                "color": ("RED", "GREEN")[i % 2],
                "fixed": bytes([i]) * 8,
                "array": [None if j % 2 else j for j in range(i % 5)],
                "map": {f"k{j}": f"v{j}" for j in range(i % 4)},
                "point": {"x": i, "y": None if i % 3 else i / 2},
                "points": [{"x": j, "y": float(j)} for j in range(i % 3)],
                "maybe": None if i % 2 else {"z": i},
                "deep": [[k for k in range(j)] for j in range(i % 4)],
            }
            for i in range(20)
        ],
    ),
    "unions": (
        record(
            ("number", ["int", "long"]),
            ("float", ["float", "double"]),
            ("any", ["null", "int", "string", "boolean"]),
        ),
        [
            {"number": 2**40 if i % 2 else i, "float": 0.5, "any": (None, i, f"s{i}", True)[i % 4]}
            for i in range(20)
        ],
    ),
    "one string": ("string", ["", "a", "ü" * 100]),
    "one long": ("long", [0, -1, 2**63 - 1, -(2**63)]),
    "one array": ({"type": "array", "items": "string"}, [[], ["a"], ["b", "c" * 99]]),
}

EVOLVED: dict[str, tuple[Any, Any, list[Any]]] = {
    "promoted, added, removed": (
        record(("id", "int"), ("gone", "string"), ("f", "float"), ("s", "string")),
        record(
            ("id", "long"),
            ("added", "int", 7),
            ("f", "double"),
            ("s", ["null", "string"], None),
            ("list", {"type": "array", "items": "int"}, [1, 2]),
        ),
        [{"id": i - 3, "gone": "x" * i, "f": i / 4, "s": str(i)} for i in range(20)],
    ),
    "moved fields": (
        record(("a", "int"), ("b", POINT), ("c", "string")),
        record(("c", "string"), ("b", record(("y", ["null", "double"]), name="Point"))),
        [{"a": i, "b": {"x": i, "y": 0.5}, "c": str(i)} for i in range(20)],
    ),
    "a new name": (
        record(("old", "int"), ("rest", "string")),
        {
            **record(("rest", "string")),
            "fields": [
                {"name": "rest", "type": "string"},
                {"name": "new", "type": "long", "aliases": ["old"]},
            ],
        },
        [{"old": i, "rest": str(i)} for i in range(20)],
    ),
}


def payloads_of(schema: Any, values: list[Any]) -> list[bytes]:
    parsed = fastavro.parse_schema(schema)
    made: list[bytes] = []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        made.append(out.getvalue())
    return made


def table_of(spark: Any, column: Any, payloads: list[bytes]) -> pa.ChunkedArray:
    """What Spark makes of the payloads, as it hands it to Arrow."""
    frame = spark.createDataFrame(pa.table({"payload": pa.array(payloads, pa.binary())}))
    return frame.select(column.alias("value")).toArrow().column("value")


def same_type(ours: pa.DataType, theirs: pa.DataType) -> bool:
    """But for what may be null, which Spark says of everything, and names inside lists and maps."""
    if pa.types.is_struct(theirs):
        return (
            pa.types.is_struct(ours)
            and [field.name for field in ours] == [field.name for field in theirs]
            and all(same_type(a.type, b.type) for a, b in zip(ours, theirs, strict=True))
        )
    if pa.types.is_list(theirs):
        return pa.types.is_list(ours) and same_type(ours.value_type, theirs.value_type)
    if pa.types.is_map(theirs):
        return pa.types.is_map(ours) and same_type(ours.item_type, theirs.item_type)
    return ours == theirs


def check(decoder: Any, theirs: pa.ChunkedArray, payloads: list[bytes]) -> None:
    decoded = decoder.decode(pa.array(payloads, pa.binary()))
    assert not len(decoded.bad_rows)
    assert same_type(decoded.values.type, theirs.type), (decoded.values.type, theirs.type)
    assert decoded.values.to_pylist() == theirs.to_pylist()


@pytest.mark.parametrize("case", CASES)
def test_from_avro_gives_the_same_rows(spark: Any, spark_avro: Any, case: str) -> None:
    schema, values = CASES[case]
    payloads, text = payloads_of(schema, values), json.dumps(schema)
    theirs = table_of(spark, spark_avro.from_avro("payload", text), payloads)
    ours = avro.decoder(Schema(AVRO, text), None, None)
    check(ours, theirs, payloads)


@pytest.mark.parametrize("case", EVOLVED)
def test_from_avro_resolves_the_same_way(spark: Any, spark_avro: Any, case: str) -> None:
    written, read, values = EVOLVED[case]
    payloads = payloads_of(written, values)
    options = {"avroSchema": json.dumps(read)}
    theirs = table_of(
        spark, spark_avro.from_avro("payload", json.dumps(written), options), payloads
    )
    ours = avro.decoder(Schema(AVRO, json.dumps(written)), Schema(AVRO, json.dumps(read)), None)
    check(ours, theirs, payloads)


# --- writing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_to_avro_gives_the_same_bytes(spark: Any, spark_avro: Any, case: str) -> None:
    schema, values = CASES[case]
    payloads, text = payloads_of(schema, values), json.dumps(schema)
    decoder = avro.decoder(Schema(AVRO, text), None, None)
    given = decoder.decode(pa.array(payloads, pa.binary())).values
    ours = avro.encoder(Schema(AVRO, text), given.type).encode(given)
    if case == "unions":  # one of int and long became a long; Spark cannot write it
        assert decoder.decode(ours).values.to_pylist() == given.to_pylist()
        return
    assert ours.to_pylist() == payloads
    frame = spark.createDataFrame(pa.table({"payload": pa.array(payloads, pa.binary())}))
    column = spark_avro.to_avro(spark_avro.from_avro("payload", text), text)
    assert frame.select(column.alias("v")).toArrow().column("v").to_pylist() == ours.to_pylist()


@pytest.mark.parametrize("case", CASES)
def test_the_schema_of_a_type_is_spark_s(spark: Any, spark_avro: Any, case: str) -> None:
    """But for enums and fixed, which Spark's types do not know."""
    text = json.dumps(CASES[case][0])
    kind = avro.arrow_type(Schema(AVRO, text))
    frame = spark.createDataFrame(pa.table({"payload": pa.array([], pa.binary())}))
    column = frame.select(spark_avro.from_avro("payload", text).alias("v")).schema["v"].dataType
    jvm = spark._jvm.org.apache.spark.sql
    theirs = jvm.avro.SchemaConverters.toAvroType(
        spark._jsparkSession.parseDataType(column.json()), False, "topLevelRecord", ""
    )
    ours = json.loads(avro.schema_of(nullable(kind), "topLevelRecord").text)
    assert fastavro.schema.to_parsing_canonical_form(ours) == (
        fastavro.schema.to_parsing_canonical_form(json.loads(theirs.toString()))
    )


def nullable(kind: pa.DataType) -> pa.DataType:
    """As Spark, which says that all that comes from Avro may be null."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(nullable(field.type)) for field in kind])
    return kind
