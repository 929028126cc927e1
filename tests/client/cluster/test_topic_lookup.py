"""Lookups of the leaders of many partitions."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from sparkkafka.client.cluster import topic_lookup
from sparkkafka.client.cluster.topic_lookup import TopicLookup
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import KafkaError
from tests.client.support import open_cluster


class Waiting:
    """A partition without a known leader."""

    def __init__(self, partition: int) -> None:
        self.tp = TopicPartition("t", partition)
        self.reasons: list[str] = []

    def back_off(self, error: KafkaError) -> None:
        self.reasons.append(str(error))


def test_partitions_with_a_leader_do_not_wait_for_others_of_their_topic(
    fake_cluster_factory: Any,
) -> None:
    fake = fake_cluster_factory(2)
    fake.create_topic("t", partitions=4)
    waiting = [Waiting(number) for number in (9, 0, 1, 2, 3)]
    with open_cluster(fake) as cluster:
        assert not list(TopicLookup(cluster).look_up_leaders(waiting, 5_000))
        assert cluster.is_stale("t")
    assert [row.tp.partition for row in waiting if row.reasons] == [9]


def test_a_partition_that_is_missing_again_later_gets_its_time_again(
    fake_cluster_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.monotonic()
    fake = fake_cluster_factory(1)
    fake.create_topic("t")
    with open_cluster(fake) as cluster:
        lookup = TopicLookup(cluster)
        for at_s, is_final in ((0.0, False), (4.9, False), (60.0, False), (65.1, True)):
            clock = SimpleNamespace(monotonic=lambda at_s=at_s: now_s + at_s)
            monkeypatch.setattr(topic_lookup, "time", clock)
            failed = list(lookup.look_up_leaders([Waiting(9)], 5_000))
            assert bool(failed) == is_final, at_s
