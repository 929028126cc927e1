"""What is asked of each Spark. A docstring is the row of the table in docs/compatibility.md."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

import sparkkafka
from sparkkafka.client import Admin, TopicPartition
from sparkkafka.errors import OptionError
from tests.real.peers import confluent_read
from tests.schemas.small_registry import small_registry
from tests.spark.job_without_internals import run_job_without_internals

pytestmark = [pytest.mark.compat, pytest.mark.real, pytest.mark.spark]

WAIT_S = 120.0

Topics = Callable[..., list[str]]
Hole = Callable[[object], None]


class Job:
    """Reads and writes of one topic, and streams from it."""

    def __init__(self, spark: Any, servers: str, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.kafka = {"kafka.bootstrap.servers": servers}

    def fill(self, topic: str, count: int = 500) -> None:
        rows = self.spark.range(count).selectExpr("CAST(id AS string) AS key")
        self.write(rows.selectExpr("key", "key AS value"), topic)  # by keys to both partitions

    def write(self, rows: Any, topic: str, **options: str) -> None:
        rows.write.format("pykafka").options(**self.kafka, topic=topic, **options).mode(
            "append"
        ).save()

    def read(self, topic: str, **options: str) -> Any:
        reader = self.spark.read.format("pykafka").options(**self.kafka, subscribe=topic)
        return reader.options(**options).load()

    def stream(self, topic: str, **options: str) -> Any:
        reader = self.spark.readStream.format("pykafka").options(**self.kafka, subscribe=topic)
        return reader.options(startingOffsets="earliest", **options).load()

    def run(self, frame: Any, format: str = "noop", **options: str) -> Any:
        writer = frame.writeStream.format(format).options(**options)
        query = (
            writer.option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S), query.status
        return query


@pytest.fixture
def job(spark: Any, servers: str, tmp_path: Path) -> Job:
    return Job(spark, servers, tmp_path)


def numbers(servers: str, topic: str) -> list[int]:
    return sorted(
        int(row.value or b"") for row in confluent_read(servers, topic, 2, "read_committed")
    )


def test_batch(job: Job, topics: Topics) -> None:
    """batch write and read"""
    (topic,) = topics("t")
    job.fill(topic)
    rows = job.read(topic)
    found = rows.selectExpr("sum(CAST(CAST(value AS string) AS int))").first()[0]
    assert found == 124750
    job.fill(topic)  # a DataFrame that is used again reads what is there by then
    assert rows.count() == len(rows.collect()) == 1000


def test_pushdown(job: Job, topics: Topics, hole: Hole) -> None:
    """a filter of partitions is pushed down"""
    (topic,) = topics("t")
    job.fill(topic)
    job.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        rows = job.read(topic, filterPushdown="true").where("partition = 1")
        assert {row.partition for row in rows.collect()} == {1}
        assert rows.rdd.getNumPartitions() == 1
    except PySparkException as error:
        words = [line for line in str(error).splitlines() if "filterPushdown=true needs" in line]
        if not words:
            raise
        hole(words[0].partition("OptionError: ")[2])
    finally:
        job.spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_stream(job: Job, topics: Topics) -> None:
    """stream, at-least-once, from topic to topic"""
    source, target = topics("in", "out")
    job.fill(source)
    job.run(job.stream(source).select("value"), "pykafka", **job.kafka, topic=target)
    assert job.read(target).count() == 500


def test_limits(job: Job, topics: Topics, hole: Hole) -> None:
    """maxOffsetsPerTrigger with AvailableNow reads to the end"""
    (topic,) = topics("t")
    job.fill(topic)
    query = job.run(job.stream(topic, maxOffsetsPerTrigger="200"))
    rows = [p.numInputRows for p in query.recentProgress if p.numInputRows]
    if rows == [200]:
        hole("AvailableNow is one micro-batch, and the limit leaves the rest unread")
    else:
        assert rows == [200, 200, 100]


def test_lag(job: Job, topics: Topics, hole: Hole) -> None:
    """sparkkafka.lag(query), from the query's progress"""
    (topic,) = topics("t")
    job.fill(topic)
    query = job.run(job.stream(topic))
    assert set(sparkkafka.lag(query, job.kafka).values()) == {0}
    try:
        assert set(sparkkafka.lag(query).values()) == {0}
    except OptionError as error:
        hole(error)


def test_metrics(job: Job, topics: Topics) -> None:
    """sparkkafka.metrics: figures from progress, brokers and tasks"""
    (topic,) = topics("t")
    job.fill(topic)
    with closing(sparkkafka.metrics(job.spark, job.kafka, every_s=0.2)) as metrics:
        writer = job.stream(topic, **metrics.options).writeStream.format("noop")
        query = writer.option("checkpointLocation", str(job.folder / "checkpoint")).start()
        expected = {"input_rows_total": 500, "read_records_total": 500, "lag_records": 0}
        until_s = time.monotonic() + WAIT_S
        found: dict[str, float] = {}
        while time.monotonic() < until_s and not expected.items() <= found.items():
            time.sleep(0.1)
            found = {
                sample.metric.name.removeprefix("sparkkafka_"): sample.value
                for sample in metrics.samples()
                if sample.labels.get("query") == str(query.id)
            }
        query.stop()
        assert expected.items() <= found.items()


def test_commit_to_group(job: Job, servers: str, topics: Topics) -> None:
    """commit_to_group"""
    (topic,) = topics("t")
    job.fill(topic)
    options = {**job.kafka, "kafka.group.id": f"g-{topic}"}
    committer = sparkkafka.commit_to_group(job.spark, options)
    try:
        committer.flush(job.run(job.stream(topic)))
    finally:
        job.spark.streams.removeListener(committer)
    with Admin({"bootstrap.servers": servers}) as admin:
        stored = admin.list_consumer_group_offsets(f"g-{topic}")
        partitions = [TopicPartition(topic, number) for number in range(2)]
        assert sum(stored[tp].offset for tp in partitions) == 500


def test_exactly_once_stream(job: Job, servers: str, topics: Topics) -> None:
    """stream, exactly-once, from topic to topic"""
    source, target = topics("in", "out")
    job.fill(source)
    options = {**job.kafka, "topic": target, "deliveryGuarantee": "exactly-once"}
    job.run(job.stream(source).select("value"), "pykafka", **options)
    assert numbers(servers, target) == list(range(500))


def test_exactly_once_batch(job: Job, servers: str, topics: Topics) -> None:
    """batch write, exactly-once"""
    (topic,) = topics("t")
    rows = job.spark.range(500).selectExpr("CAST(id AS string) AS value")
    job.write(rows, topic, deliveryGuarantee="exactly-once")
    assert numbers(servers, topic) == list(range(500))


def test_foreach_batch(job: Job, topics: Topics) -> None:
    """foreachBatch with a write"""
    source, target = topics("in", "out")
    job.fill(source)
    stream = job.stream(source)
    query = (
        stream.writeStream.foreachBatch(
            lambda rows, number: job.write(rows.select("value"), target)
        )
        .option("checkpointLocation", str(job.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)
    assert job.read(target).count() == 500


def test_formats(job: Job, topics: Topics) -> None:
    """valueFormat: Avro with a registry, written, read and streamed"""
    (topic,) = topics("t")
    rows = job.spark.range(500).selectExpr(
        "named_struct('id', id, 'at', timestamp_seconds(id)) AS value"
    )
    with small_registry() as registry:
        avro = {"valueFormat": "avro", "schema.registry.url": registry.url}
        job.write(rows, topic, **avro, **{"auto.register.schemas": "true"})
        assert job.read(topic, **avro).selectExpr("sum(value.id)").first()[0] == 124750
        out = str(job.folder / "rows")
        job.run(job.stream(topic, **avro).select("value.*"), "parquet", path=out)
        assert job.spark.read.parquet(out).selectExpr("sum(id)").first()[0] == 124750


def test_functions(job: Job, hole: Hole) -> None:
    """functions: to_avro, from_avro"""
    from pyspark.sql import functions

    from sparkkafka.functions import from_avro, to_avro

    schema = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'
    bare = {"valueFraming": "none"}
    rows = job.spark.range(500).selectExpr("named_struct('id', id) AS v")
    wire = rows.select(to_avro("v", bare, schema=schema).alias("b"))
    back = wire.select(from_avro("b", bare, schema=schema).alias("v"))
    assert back.selectExpr("sum(v.id)").first()[0] == 124750
    if not hasattr(functions, "arrow_udf"):
        hole(
            "they work, but Spark has no arrow_udf: rows go through pandas, which must be "
            "installed, much slower"
        )


def test_without_internals(servers: str, topics: Topics, tmp_path: Path) -> None:
    """SPARKKAFKA_PYSPARK_INTERNALS=false: batch and stream"""
    source, target = topics("in", "out")
    run_job_without_internals(servers, source, target, tmp_path)


CONNECT = """
    import sys
    from pyspark.sql import SparkSession

    servers, source, target, folder = sys.argv[1:]
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    kafka = {"kafka.bootstrap.servers": servers}
    rows = spark.range(500).selectExpr("CAST(id AS string) AS value")
    rows.write.format("pykafka").options(**kafka, topic=source).mode("append").save()
    read = spark.read.format("pykafka").options(**kafka, subscribe=source).load()
    read.createOrReplaceTempView("source_rows")
    for count in (500, 501):
        assert read.count() == spark.table("source_rows").count() == count
        if count == 500:
            more = rows.limit(1).selectExpr("'500' AS value")
            more.write.format("pykafka").options(**kafka, topic=source).mode("append").save()
    stream = spark.readStream.format("pykafka").options(
        **kafka, subscribe=source, startingOffsets="earliest"
    )
    writer = stream.load().select("value").writeStream.format("pykafka")
    query = (
        writer.options(**kafka, topic=target, deliveryGuarantee="exactly-once")
        .option("checkpointLocation", folder)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    spark.stop()
"""


CONNECT_FOREACH_BATCH = """
    import sys
    from pyspark.sql import SparkSession

    servers, source, target, folder = sys.argv[1:]
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    kafka = {"kafka.bootstrap.servers": servers}
    rows = spark.range(500).selectExpr("CAST(id AS string) AS value")
    rows.write.format("pykafka").options(**kafka, topic=source).mode("append").save()

    def copy(batch, batch_id):
        writer = batch.select("value").write.format("pykafka").options(**kafka, topic=target)
        writer.mode("append").save()

    stream = spark.readStream.format("pykafka").options(
        **kafka, subscribe=source, startingOffsets="earliest"
    )
    query = (
        stream.load().writeStream.foreachBatch(copy)
        .option("checkpointLocation", folder)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    spark.stop()
"""


def run_connect(script: str, *arguments: str) -> None:
    """Run a program that starts a local Connect server."""
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        env={**os.environ, "PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-5000:]


@pytest.mark.usefixtures("connect_port")
def test_connect(servers: str, topics: Topics, tmp_path: Path) -> None:
    """Spark Connect: batch, and an exactly-once stream"""
    source, target = topics("in", "out")
    run_connect(CONNECT, servers, source, target, str(tmp_path))
    assert numbers(servers, target) == list(range(501))


@pytest.mark.usefixtures("connect_port")
def test_connect_foreach_batch(servers: str, topics: Topics, tmp_path: Path) -> None:
    """Spark Connect: foreachBatch with a write"""
    source, target = topics("in", "out")
    run_connect(CONNECT_FOREACH_BATCH, servers, source, target, str(tmp_path))
    assert numbers(servers, target) == list(range(500))
