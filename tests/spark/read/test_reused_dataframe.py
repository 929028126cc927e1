"""A DataFrame, view or static side of a join that is used again sees what is in the topic by then.

Spark plans a Python data source once for each load() and reads the same input partitions later; the
rules of what is bound when are in test_bind_offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions
from pyspark.errors import PySparkException

from tests.real.peers import Record, confluent_write
from tests.real.streams import administer
from tests.real.test_stream_topics import delete_topic
from tests.spark.read.test_batch_read import delete_records, values

pytestmark = [pytest.mark.real, pytest.mark.spark]

Read = Callable[..., Any]
BOTH = pytest.mark.parametrize("format", ["pykafka", pytest.param("kafka", marks=pytest.mark.jvm)])


class Topic:
    """A topic whose records have the numbers 0, 1, … as values."""

    def __init__(self, servers: str, name: str) -> None:
        self.servers, self.name = servers, name
        self.end = 0
        self.grow(3)

    def grow(self, count: int, partition: int = 0) -> None:
        numbers = range(self.end, self.end + count)
        records = [Record(b"k%d" % n, b"%d" % n) for n in numbers]
        confluent_write(self.servers, self.name, records, partition)
        self.end += count

    def delete(self, before: int) -> None:
        delete_records(self.servers, self.name, 0, before)

    def texts(self, start: int = 0) -> list[str]:
        return sorted(str(n) for n in range(start, self.end))


@pytest.fixture
def topic(kafka_cluster: Any, new_topic: Callable[..., str]) -> Topic:
    return Topic(kafka_cluster.bootstrap_servers, new_topic())


@pytest.fixture(autouse=True)
def jars(request: pytest.FixtureRequest) -> None:
    if "format" in request.fixturenames and request.getfixturevalue("format") == "kafka":
        request.getfixturevalue("jvm_connector")


@BOTH
def test_every_action(topic: Topic, read: Read, format: str) -> None:
    frame = read(format, subscribe=topic.name)
    text = frame.selectExpr("CAST(value AS STRING) AS value", "offset")
    late = text.where("offset >= 1")
    for _ in range(2):
        count = topic.end
        assert frame.count() == count
        assert len(frame.collect()) == len(text.take(99)) == count
        assert len(late.collect()) == count - 1
        assert len(text.toPandas()) == count
        assert frame.rdd.count() == count
        assert frame.union(frame).count() == 2 * count
        assert frame.alias("a").join(frame.alias("b"), "key").count() == count
        topic.grow(2)
    topic.delete(4)
    assert values(frame) == topic.texts(4)
    assert frame.count() == 3


@BOTH
def test_views(topic: Topic, read: Read, spark: Any, format: str) -> None:
    read(format, subscribe=topic.name).createOrReplaceTempView("reused_view")
    spark.sql(f"""
        CREATE OR REPLACE TEMPORARY VIEW reused_sql_view USING {format}
        OPTIONS (`kafka.bootstrap.servers` '{topic.servers}', subscribe '{topic.name}')
    """)
    for _ in range(2):
        for view in ("reused_view", "reused_sql_view"):
            (row,) = spark.sql(f"SELECT count(*), max(offset) FROM {view}").collect()
            assert tuple(row) == (topic.end, topic.end - 1)
        topic.grow(2)


@BOTH
def test_a_cache_is_kept_until_it_is_dropped(topic: Topic, read: Read, format: str) -> None:
    frame = read(format, subscribe=topic.name).cache()
    try:
        assert frame.count() == 3
        topic.grow(2)
        assert frame.count() == 3
    finally:
        frame.unpersist(blocking=True)
    assert frame.count() == 5


@BOTH
def test_the_static_side_of_a_join(
    topic: Topic, new_topic: Callable[..., str], read: Read, spark: Any, format: str
) -> None:
    """Three micro-batches; new rows and retention between them."""
    facts = Topic(topic.servers, new_topic())
    stream = (
        spark.readStream.format("pykafka")
        .option("kafka.bootstrap.servers", topic.servers)
        .options(subscribe=facts.name, startingOffsets="earliest")
        .load()
    )
    static = read(format, subscribe=topic.name).select("key", "offset")
    joined = stream.select("key").join(static, "key")
    query = joined.writeStream.format("memory").queryName("joined_with_static").start()
    try:
        query.processAllAvailable()
        for _ in range(2):
            topic.grow(3)
            topic.delete(topic.end - 3)
            facts.grow(3)
            query.processAllAvailable()
        rows = spark.table("joined_with_static").collect()
    finally:
        query.stop()
    assert sorted((bytes(row.key), row.offset) for row in rows) == [
        (b"k%d" % n, n) for n in range(9)
    ]


def test_offsets_that_the_plan_binds(topic: Topic, read: Read) -> None:
    frame = read(subscribe=topic.name, bindOffsets="plan")
    assert frame.count() == 3
    topic.grow(2)
    assert frame.count() == len(frame.collect()) == 3
    topic.delete(1)
    with pytest.raises(PySparkException, match="offsets 0 to 0 are gone"):
        frame.count()
    assert read(subscribe=topic.name, bindOffsets="plan").count() == 4


def test_ranges_that_are_cut(topic: Topic, read: Read) -> None:
    frame = read(subscribe=topic.name, minPartitions="3")
    assert frame.rdd.getNumPartitions() == 3
    topic.grow(2)
    assert values(frame) == topic.texts()
    topic.delete(2)
    assert values(frame) == topic.texts(2)


@BOTH
def test_a_topic_that_is_deleted_and_created_again(
    topic: Topic, read: Read, kafka_cluster: Any, format: str
) -> None:
    topic.delete(before=2)
    frame = read(format, subscribe=topic.name)
    assert frame.count() == 1
    delete_topic(topic.servers, topic.name)
    kafka_cluster.create_topic(topic.name, partitions=1)
    confluent_write(topic.servers, topic.name, [Record(None, b"new")])
    assert values(frame) == ["new"]


@BOTH
def test_partitions_that_are_added(topic: Topic, read: Read, format: str) -> None:
    """The JVM connector plans each new query, so it sees them; a second collect() of the same
    DataFrame has the plan of the first."""
    frame = read(format, subscribe=topic.name)
    assert len(frame.collect()) == 3
    administer(topic.servers, lambda admin: admin.create_partitions([NewPartitions(topic.name, 2)]))
    topic.grow(2, partition=1)
    assert len(frame.collect()) == 3
    assert frame.count() == (5 if format == "kafka" else 3)
    assert read(format, subscribe=topic.name).count() == 5
