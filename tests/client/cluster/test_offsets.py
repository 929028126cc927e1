"""Ends of logs from brokers whose ListOffsets says less than their Fetch; kinds of offsets."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from sparkkafka.client.cluster.offsets import OffsetLookup, OffsetSpec, list_offsets_each
from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import ErrorCode, UnsupportedVersionError
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.client.support import fill, list_short_ends, open_cluster, settings

TPS = [TopicPartition("t", number) for number in range(3)]


@pytest.fixture
def filled(fake_cluster: FakeCluster) -> FakeCluster:
    """A batch of 100 records in partitions 0 and 1, nothing in 2."""
    fake_cluster.create_topic("t", partitions=3)
    fill(fake_cluster, "t", 200, partitions=2, per_send=100)
    return fake_cluster


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_the_ends_of_fetch_count_with_one_warning(
    filled: FakeCluster, isolation: str, caplog: pytest.LogCaptureFixture
) -> None:
    list_short_ends(filled)
    with open_cluster(filled) as cluster, caplog.at_level(logging.WARNING):
        for _ in range(2):
            _, latest = OffsetLookup(cluster, isolation).earliest_and_latest(TPS)
            assert latest == {TPS[0]: 1, TPS[1]: 1, TPS[2]: 0}
            assert OffsetLookup(cluster, isolation).confirmed_ends(latest) == {
                TPS[0]: 100,
                TPS[1]: 100,
                TPS[2]: 0,
            }
        assert cluster.lists_short_ends
    (record,) = caplog.records
    assert "ListOffsets that the log ends at offset 1, and in Fetch that it ends at 100" in (
        record.getMessage()
    )
    assert filled.address(filled.leader("t", 0)) in record.getMessage()


def test_brokers_of_kafka_are_asked_once_more_and_believed(
    filled: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with open_cluster(filled) as cluster:
        _, latest = OffsetLookup(cluster).earliest_and_latest(TPS)
        filled.clear_requests()
        assert OffsetLookup(cluster, "read_uncommitted").confirmed_ends(latest) == latest
        assert {row.api for row in filled.requests} <= {"Fetch", "ApiVersions"}
        assert len(filled.requests_of("Fetch")) == 3
    assert not caplog.records


def test_records_that_are_appended_meanwhile_are_no_error_of_the_broker(
    filled: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with open_cluster(filled) as cluster:
        _, latest = OffsetLookup(cluster).earliest_and_latest(TPS)
        fill(filled, "t", 50)
        ends = OffsetLookup(cluster, "read_uncommitted").confirmed_ends(latest)
        assert ends == {**latest, TPS[0]: 150}
        assert not cluster.lists_short_ends
    assert not caplog.records


def test_a_partition_that_cannot_be_fetched_keeps_its_end(filled: FakeCluster) -> None:
    list_short_ends(filled)
    filled.fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED, api="Fetch", partition=1, times=None)
    with open_cluster(filled) as cluster:
        _, latest = OffsetLookup(cluster).earliest_and_latest(TPS)
        ends = OffsetLookup(cluster, "read_uncommitted").confirmed_ends(latest)
    assert ends == {TPS[0]: 100, TPS[1]: 1, TPS[2]: 0}


@pytest.mark.parametrize("kafka_version", ["2.1", "2.8", "3.9"])
def test_older_versions_of_fetch(fake_cluster_factory: Any, kafka_version: str) -> None:
    cluster = fake_cluster_factory(1, kafka_version=kafka_version)
    cluster.create_topic("t")
    fill(cluster, "t", 100, per_send=100)
    list_short_ends(cluster)
    with Consumer(settings(cluster)) as consumer:
        assert consumer.end_offsets(TPS[:1]) == {TPS[0]: 100}


def test_end_offsets_of_a_consumer(filled: FakeCluster) -> None:
    list_short_ends(filled)
    with Consumer(settings(filled)) as consumer:
        assert consumer.end_offsets(TPS) == {TPS[0]: 100, TPS[1]: 100, TPS[2]: 0}
        assert consumer.offsets_for("t")[TPS[0]] == (0, 100)


@pytest.mark.parametrize(
    ("spec", "kafka"),
    [
        (OffsetSpec.earliest_local(), "Kafka 3.6"),
        (OffsetSpec.latest_tiered(), "Kafka 3.9"),
        (OffsetSpec.earliest_pending_upload(), "Kafka 4.2"),
    ],
)
def test_offsets_of_tiered_storage_name_the_kafka_that_has_them(
    fake_cluster_factory, spec: OffsetSpec, kafka: str
) -> None:
    fake = fake_cluster_factory(1, kafka_version="2.8")
    fake.create_topic("t")
    with open_cluster(fake) as cluster:
        found = list_offsets_each(cluster, {TopicPartition("t", 0): spec}, Deadline(10_000))
    (error,) = found.errors.values()
    assert isinstance(error, UnsupportedVersionError)
    assert f"needs {kafka}" in str(error)
