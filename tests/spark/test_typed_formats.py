"""Formats through Spark: reads, writes, streams and functions, on a fake cluster and a registry of
one process, in a session and over Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.errors import OptionError
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.schemas.small_registry import SmallRegistry
from tests.spark.typed_support import ORDER_1, Topics, framed

pytestmark = pytest.mark.spark

VALUE = """CASE WHEN id % 7 <> 0 THEN struct(
    id, CAST(id AS string) AS name, timestamp_seconds(id) AS at, date_from_unix_date(id) AS day,
    array(id) AS xs, map('a', id) AS m, CAST(id AS decimal(10, 2)) AS d, struct(id AS x) AS s
) END AS value"""
SAME = (
    "v.id = w.id AND v.at = w.at AND v.day = w.day AND v.xs = w.xs AND v.m['a'] = w.m['a'] "
    "AND v.d = w.d AND v.s = w.s"
)

LAMPS = (
    'syntax = "proto3"; import "google/protobuf/empty.proto"; message Lamp { int64 a = 1; '
    "oneof state { google.protobuf.Empty on = 2; google.protobuf.Empty off = 3; } }"
)
LAMP = "struct(id AS a, IF(id % 2 = 0, struct(), NULL) AS on, IF(id = 1, struct(), NULL) AS off) v"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as fake:
        fake.create_topic("orders", partitions=2)
        fake.create_topic("copy")
        yield fake


@pytest.fixture
def options(cluster: FakeCluster, registry: SmallRegistry) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "schema.registry.url": registry.url,
        "valueFormat": "avro",
    }


def test_a_struct_goes_out_and_comes_back(
    spark: Any, options: dict[str, str], registry: SmallRegistry, tmp_path: Path
) -> None:
    rows = spark.range(1000).selectExpr(VALUE, "CAST(id AS string) AS key")
    writing = {**options, "auto.register.schemas": "true"}
    rows.write.format("pykafka").options(**writing).option("topic", "orders").mode("append").save()
    assert registry.subjects == {"orders-value": [1]}

    reading = {**options, "subscribe": "orders"}
    back = spark.read.format("pykafka").options(**reading).load()
    assert back.schema["value"].dataType == rows.schema["value"].dataType
    pairs = back.selectExpr("value AS w", "CAST(CAST(key AS string) AS long) AS id").join(
        rows.selectExpr("value AS v", "CAST(key AS long) AS id"), "id"
    )
    (found,) = pairs.selectExpr(
        "count(*) AS n", f"count_if({SAME}) AS same", "count_if(v IS NULL AND w IS NULL) AS none"
    ).collect()
    assert (found.n, found.same, found.none) == (1000, 857, 143)

    two = spark.read.format("pykafka").options(**reading).schema(
        "value struct<name: string, s: struct<x: bigint>>, offset bigint"
    ).load()  # fmt: skip
    assert two.selectExpr("sum(value.s.x)").collect() == pairs.selectExpr("sum(v.id)").collect()

    # A stream, whose small batches come with their plan; its copy is typed again, and whole.
    query = (
        spark.readStream.format("pykafka")
        .options(**reading)
        .option("startingOffsets", "earliest")
        .load()
        .select("key", "value")
        .writeStream.format("pykafka")
        .options(**writing)
        .option("topic", "copy")
        .option("deliveryGuarantee", "exactly-once")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    copied = spark.read.format("pykafka").options(**options).option("subscribe", "copy").load()
    assert copied.selectExpr("sum(value.id)", "count(*)", "count(value)").collect() == (
        back.selectExpr("sum(value.id)", "count(*)", "count(value)").collect()
    )


def test_which_branch_of_empty_messages_is_set_goes_out_and_comes_back(
    spark: Any, options: dict[str, str], registry: SmallRegistry
) -> None:
    registry.add("orders-value", LAMPS, "PROTOBUF")
    lamps = {**options, "valueFormat": "protobuf", "use.latest.version": "true"}
    rows = spark.range(100).selectExpr(LAMP).withColumnRenamed("v", "value")
    rows.write.format("pykafka").options(**lamps).option("topic", "orders").mode("append").save()
    del lamps["use.latest.version"]
    back = spark.read.format("pykafka").options(**lamps).option("subscribe", "orders").load()
    assert back.select("value").dtypes == rows.dtypes
    counts = "count(value.a)", "count(value.on)", "count(value.off)"
    assert (
        back.selectExpr(*counts).collect() == rows.selectExpr(*counts).collect() == [(100, 50, 1)]
    )
    assert back.where("value.off IS NOT NULL").selectExpr("value.a").collect() == [(1,)]


def test_bad_records_beside_the_good_ones(
    spark: Any, options: dict[str, str], cluster: FakeCluster, registry: SmallRegistry
) -> None:
    number = registry.add("orders-value", json.dumps(ORDER_1))
    good = framed(number, ORDER_1, {"id": 5, "who": "a"})
    Topics(cluster, registry).put("orders", [good, good[:-1], b"?", None])
    read = {**options, "subscribe": "orders", "onBadRecord": "column"}
    rows = spark.read.format("pykafka").options(**read).load().orderBy("offset").collect()
    assert [row.value and row.value.id for row in rows] == [5, None, None, None]
    assert [row.bad_record and row.bad_record.schema_id for row in rows] == [None, 1, None, None]
    assert [row.bad_record and bytes(row.bad_record.raw) for row in rows] == [
        None,
        good[:-1],
        b"?",
        None,
    ]
    with pytest.raises(Exception, match=r"topic orders partition 0 offset 1 \(schema id 1\)"):
        spark.read.format("pykafka").options(**{**read, "onBadRecord": "fail"}).load().collect()


FUNCTIONS = f"""
import sparkkafka.functions as skf

def check(spark, registry):
    given = {{"schema.registry.url": registry}}
    rows = spark.range(2000).selectExpr({VALUE!r}).withColumnRenamed("value", "v")
    kind = rows.schema["v"].dataType
    new = {{**given, "auto.register.schemas": "true"}}
    both = rows.select("v", skf.to_avro("v", new, subject="s", type=kind).alias("b"))
    again = both.select("v", "b", skf.from_avro("b", given, subject="s").alias("w"))
    assert again.schema["w"].dataType == kind
    found = again.selectExpr("count(*)", "count(v)", "count(w)", "count_if({SAME})").collect()[0]
    assert tuple(found) == (2000, 1714, 1714, 1714), found
    latest = both.select("b", skf.to_avro("v", given, subject="s").alias("c"))
    assert latest.where("NOT b <=> c").count() == 0
    names = skf.from_avro("b", given, subject="s", type="struct<name: string>")
    some = both.select(names.alias("n"))
    assert some.selectExpr("max(n.name)").collect()[0][0] == "999"
    text = spark.range(1).selectExpr("CAST('{{\\"a\\": 1}}' AS binary) AS b")
    assert text.select(skf.from_json_registry("b", type="struct<a: int>")).collect()[0][0].a == 1
    bare = {{"valueFraming": "none"}}
    struct = spark.range(3).selectExpr({LAMP!r})
    wire = struct.select(skf.to_protobuf("v", bare, schema={LAMPS!r}).alias("b"))
    values = wire.select(skf.from_protobuf("b", bare, schema={LAMPS!r}).alias("v")).select("v.*")
    rows = [(row.a, row.on, row.off) for row in values.collect()]
    assert sorted(rows) == [(0, (), None), (1, None, ()), (2, (), None)], rows
    null = {{**given, "onBadRecord": "null"}}
    bad = spark.range(1).selectExpr("CAST('x' AS binary) AS b")
    assert bad.select(skf.from_avro("b", null, subject="s")).collect()[0][0] is None
    try:
        bad.select(skf.from_avro("b", given, subject="s")).collect()
    except Exception as error:
        assert "begins with byte 0x78" in str(error), error
    else:
        raise AssertionError("a bad payload was read")
"""


def test_functions(spark: Any, registry: SmallRegistry) -> None:
    names: dict[str, Any] = {}
    exec(FUNCTIONS, names)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        names["check"](spark, registry.url)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


@pytest.mark.parametrize("missing", ["arrow_udf"])
def test_functions_where_spark_has_no_arrow_udf(
    spark: Any, registry: SmallRegistry, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """As Spark 4.0."""
    from pyspark.sql import functions

    monkeypatch.delattr(functions, missing, raising=False)
    names: dict[str, Any] = {}
    exec(FUNCTIONS, names)
    names["check"](spark, registry.url)


def test_functions_and_reads_over_connect(
    options: dict[str, str], registry: SmallRegistry, cluster: FakeCluster, connect_url: str
) -> None:
    number = registry.add("orders-value", json.dumps(ORDER_1))
    Topics(cluster, registry).put("orders", [framed(number, ORDER_1, {"id": 5, "who": "a"})])
    code = f"""
{FUNCTIONS}
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote({connect_url!r}).getOrCreate()
check(spark, {registry.url!r})
rows = spark.read.format("pykafka").options(**{options!r}).option("subscribe", "orders").load()
assert rows.select("value.who").collect()[0].who == "a"
spark.stop()
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-5000:]


# --- what a function refuses, without Spark -----------------------------------------------------


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({"schema.registry.url": "http://x"}, {}, "a function has no topic: set subject"),
        ({}, {"subject": "s"}, "valueSubject is for the Schema Registry"),
        ({"onBadRecord": "column"}, {"schema": '"int"', "subject": None}, "column is for reads"),
        ({"valueFormat": "avro"}, {}, "has no meaning for a function"),
        ({"keyFormat": "avro"}, {}, "has no meaning for a function"),
        ({"valueSubject": "s"}, {"subject": "s"}, "both given"),
    ],
)
def test_mistakes(options: dict[str, str], arguments: dict[str, Any], message: str) -> None:
    from sparkkafka.functions import from_avro

    with pytest.raises(OptionError, match=message):
        from_avro("value", options, **arguments)


def test_a_schema_instead_of_the_options() -> None:
    """As Spark's own from_avro and from_protobuf take it."""
    from sparkkafka import functions

    text: Any = '"int"'
    for function in (functions.from_avro, functions.from_protobuf, functions.to_avro):
        with pytest.raises(OptionError, match=r"got a str\. Pass .* by its name: schema=…"):
            function("value", text)
