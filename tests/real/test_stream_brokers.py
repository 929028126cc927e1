"""A cluster that is away under a running stream.

The query continues, or fails with a message that says why; no row is lost and none is there twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkkafka.testing.kafka.cluster import KafkaCluster
from tests.real.streams import Job, SteadyWriter, assert_each_once, failure_of, position
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.spark]

PARTITIONS = 3
TRIGGER = {"processingTime": "1 second"}


@pytest.fixture(scope="module")
def one_broker() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        yield cluster


def soak(value: Any) -> Any:
    return pytest.param(value, marks=pytest.mark.soak, id=str(value))


@pytest.mark.parametrize("away_s", [pytest.param(8, id="8"), soak(60)])
def test_the_cluster_is_away_for_a_while(
    away_s: int, spark: SparkSession, one_broker: KafkaCluster, tmp_path: Path
) -> None:
    topic = f"away-{away_s}"
    one_broker.create_topic(topic, PARTITIONS)
    bootstrap = one_broker.bootstrap_servers
    job = Job(bootstrap, str(tmp_path), {"subscribe": topic}, TRIGGER)
    with SteadyWriter(bootstrap, topic, PARTITIONS, per_second=200) as writer:
        query = job.start(spark)
        try:
            wait_until(lambda: position(query) > 0, "the first batch")
            one_broker.kill(0)
            time.sleep(away_s)
            before, started_s = position(query), time.monotonic()
            one_broker.start(0)
            wait_until(lambda: position(query) > before, "goes on after the restart")
            print(f"goes on {time.monotonic() - started_s:.1f} s after the start of the broker")
            count = writer.stop()
            wait_until(lambda: position(query) == count, "the end")
        finally:
            query.stop()
    assert_each_once(job.values(spark), count)


def test_the_cluster_is_away_for_too_long(
    spark: SparkSession, one_broker: KafkaCluster, tmp_path: Path
) -> None:
    topic = "away-too-long"
    one_broker.create_topic(topic, PARTITIONS)
    bootstrap = one_broker.bootstrap_servers
    options = {
        "subscribe": topic,
        "kafka.default.api.timeout.ms": "3000",
        "kafkaConsumer.pollTimeoutMs": "3000",
        "fetchOffset.numRetries": "2",
    }
    job = Job(bootstrap, str(tmp_path), options, TRIGGER)
    with SteadyWriter(bootstrap, topic, PARTITIONS, per_second=200) as writer:
        query = job.start(spark)
        try:
            wait_until(lambda: position(query) > 0, "the first batch")
            one_broker.kill(0)
            words = failure_of(query)
        finally:
            query.stop()
        assert "KafkaTimeoutError: " in words
        assert "gave up after 3 s" in words
        assert "no broker of kafka.bootstrap.servers can be reached" in words
        assert bootstrap in words
        one_broker.start(0)
        count = writer.stop()
    job.run_to_end(spark)
    assert_each_once(job.values(spark), count)
