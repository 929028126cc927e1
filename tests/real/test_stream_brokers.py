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
def test_the_cluster_is_away(
    away_s: int, spark: SparkSession, one_broker: KafkaCluster, tmp_path: Path
) -> None:
    """For a while, after which one query goes on; for too long for another one, which fails."""
    topic = f"away-{away_s}"
    one_broker.create_topic(topic, PARTITIONS)
    bootstrap = one_broker.bootstrap_servers
    short = {
        "kafka.default.api.timeout.ms": "3000",
        "kafkaConsumer.pollTimeoutMs": "3000",
        "fetchOffset.numRetries": "2",
    }
    jobs = []
    for name, more in (("patient", {}), ("hasty", short)):
        (tmp_path / name).mkdir()
        jobs.append(Job(bootstrap, str(tmp_path / name), {"subscribe": topic, **more}, TRIGGER))
    queries: list[Any] = []
    with SteadyWriter(bootstrap, topic, PARTITIONS, per_second=200) as writer:
        try:
            for job in jobs:
                queries.append(job.start(spark))
            patient, hasty = queries
            wait_until(lambda: position(patient) > 0 and position(hasty) > 0, "the first batches")
            one_broker.kill(0)
            killed_s = time.monotonic()
            words = failure_of(hasty)
            time.sleep(max(0, away_s - (time.monotonic() - killed_s)))
            before, started_s = position(patient), time.monotonic()
            one_broker.start(0)
            wait_until(lambda: position(patient) > before, "goes on after the restart")
            print(f"goes on {time.monotonic() - started_s:.1f} s after the start of the broker")
            count = writer.stop()
            wait_until(lambda: position(patient) == count, "the end")
        finally:
            for query in queries:
                query.stop()
    assert "KafkaTimeoutError: " in words
    assert "gave up after 3 s" in words
    assert "no broker of kafka.bootstrap.servers can be reached" in words
    assert bootstrap in words
    jobs[1].run_to_end(spark)
    for job in jobs:
        assert_each_once(job.values(spark), count)
