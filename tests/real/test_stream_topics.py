"""Topics and partitions that come and go under a stream, and records that are deleted meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import NewPartitions
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.real.streams import Rows, administer, failure_of, write_values

pytestmark = [pytest.mark.real, pytest.mark.spark]

NewTopic = Callable[..., str]
# How long a topic must be unknown to the brokers to count as deleted is 30 s, or this if less.
QUICK = {"kafka__default__api__timeout__ms": "3000"}


@pytest.fixture
def bootstrap(kafka_cluster: Any) -> str:
    return kafka_cluster.bootstrap_servers


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(tmp_path / "checkpoint")


def delete_topic(bootstrap: str, topic: str) -> None:
    administer(bootstrap, lambda admin: admin.delete_topics([topic], operation_timeout=30))


def delete_records(bootstrap: str, topic: str, before: int) -> None:
    at = confluent_kafka.TopicPartition(topic, 0, before)
    administer(bootstrap, lambda admin: admin.delete_records([at]))


def test_partitions_are_added(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, rows: Rows
) -> None:
    topic = new_topic()
    write_values(bootstrap, topic, ["a0", "a1"])
    with rows.running(spark, bootstrap, subscribe=topic) as query:
        rows.wait_for(2, query)
        administer(bootstrap, lambda admin: admin.create_partitions([NewPartitions(topic, 3)]))
        # Written before the query has seen the partition: it reads that from its begin.
        write_values(bootstrap, topic, ["b0", "b1"], partition=2)
        rows.wait_for(4, query)
        write_values(bootstrap, topic, ["a2"])
        write_values(bootstrap, topic, ["c0"], partition=1)
        rows.wait_for(6, query)
    assert sorted(rows.values) == ["a0", "a1", "a2", "b0", "b1", "c0"]
    assert rows.offsets() == {topic: {"0": 3, "1": 1, "2": 2}}


def test_a_topic_of_the_pattern_appears_and_another_is_deleted(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, rows: Rows
) -> None:
    first = new_topic(prefix="comes-and-goes")
    write_values(bootstrap, first, ["a"])
    options = {"subscribePattern": "^comes-and-goes-", "failOnDataLoss": "false", **QUICK}
    with rows.running(spark, bootstrap, **options) as query:
        rows.wait_for(1, query)
        second = new_topic(prefix="comes-and-goes", partitions=2)
        write_values(bootstrap, second, ["b"], partition=1)
        rows.wait_for(2, query)
        delete_topic(bootstrap, first)
        write_values(bootstrap, second, ["c"])
        rows.wait_for(3, query)
        assert first in rows.offsets() or rows.offsets() == {second: {"0": 1, "1": 1}}
    assert rows.values == ["a", "b", "c"]


def test_a_topic_is_deleted(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, rows: Rows
) -> None:
    stays, goes = new_topic(), new_topic()
    for topic in (stays, goes):
        write_values(bootstrap, topic, [topic])
    options = {"subscribe": f"{stays},{goes}", **QUICK}
    with rows.running(spark, bootstrap, **options) as query:
        rows.wait_for(2, query)
        delete_topic(bootstrap, goes)
        words = failure_of(query)
    assert "[KAFKA_DATA_LOSS.PARTITIONS_DELETED] " in words
    assert f"Partitions {goes}-0 have been deleted" in words
    assert "failOnDataLoss=false" in words

    write_values(bootstrap, stays, ["more"])
    rows.run_to_end(spark, bootstrap, **options, failOnDataLoss="false")
    assert rows.values[2:] == ["more"]
    assert rows.offsets() == {stays: {"0": 2}}


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_is_made_again_under_a_running_query(
    fail: bool,
    spark: SparkSession,
    kafka_cluster: Any,
    bootstrap: str,
    new_topic: NewTopic,
    rows: Rows,
) -> None:
    """The id of the topic tells, whether the new one is shorter or longer than what was read."""
    topic = new_topic()
    write_values(bootstrap, topic, ["old 0", "old 1", "old 2"])
    options = {"subscribe": topic, "failOnDataLoss": str(fail).lower()}
    with rows.running(spark, bootstrap, **options) as query:
        rows.wait_for(3, query)
        delete_topic(bootstrap, topic)
        kafka_cluster.create_topic(topic)
        if fail:
            words = failure_of(query)
            assert "[KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED] " in words
            assert f"Topic {topic} was deleted and recreated" in words
            return
        write_values(bootstrap, topic, ["new 0", "new 1"])
        rows.wait_for(5, query)
        write_values(bootstrap, topic, [f"new {i}" for i in range(2, 6)])
        rows.wait_for(9, query)
    assert rows.values == ["old 0", "old 1", "old 2", *(f"new {i}" for i in range(6))]
    assert rows.offsets() == {topic: {"0": 6}}


def test_a_topic_is_made_again_while_the_query_is_down(
    spark: SparkSession, kafka_cluster: Any, bootstrap: str, new_topic: NewTopic, rows: Rows
) -> None:
    """A checkpoint holds no topic id, so only a shorter log tells."""
    topic = new_topic()
    write_values(bootstrap, topic, range(5))
    rows.run_to_end(spark, bootstrap, subscribe=topic)
    delete_topic(bootstrap, topic)
    kafka_cluster.create_topic(topic)
    write_values(bootstrap, topic, ["new"])
    with pytest.raises(StreamingQueryException) as caught:
        rows.run_to_end(spark, bootstrap, subscribe=topic)
    words = str(caught.value)
    assert "[KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED] " in words
    assert f"Partition {topic}-0 offset was changed from 5 to 1" in words


def test_retention_overtakes_a_query_that_is_down(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, rows: Rows
) -> None:
    topic = new_topic()
    write_values(bootstrap, topic, range(3))
    rows.run_to_end(spark, bootstrap, subscribe=topic)
    write_values(bootstrap, topic, range(3, 10))
    delete_records(bootstrap, topic, before=6)
    with pytest.raises(StreamingQueryException) as caught:
        rows.run_to_end(spark, bootstrap, subscribe=topic)
    words = str(caught.value)
    assert "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] " in words
    assert f"offset [3, 10) for topic partition {topic}-0: " in words
    # The failed run has logged the batch, so it is planned again, and its end is looked up too.
    rows.run_to_end(spark, bootstrap, subscribe=topic, failOnDataLoss="false")
    assert rows.values == [*"012", *"6789"]

    # All that it had not read is deleted: it goes on with what comes.
    write_values(bootstrap, topic, range(10, 15))
    delete_records(bootstrap, topic, before=15)
    with pytest.raises(StreamingQueryException, match=r"offset \[10, 15\) for topic partition"):
        rows.run_to_end(spark, bootstrap, subscribe=topic)
    write_values(bootstrap, topic, ["15"])
    rows.run_to_end(spark, bootstrap, subscribe=topic, failOnDataLoss="false")
    assert rows.values == [*"012", *"6789", "15"]
