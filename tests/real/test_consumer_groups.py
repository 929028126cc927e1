"""Consumers that share a topic on a real broker: every record once, in both group protocols."""

from __future__ import annotations

import time
import uuid
from typing import Any

import confluent_kafka
import pytest

from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition
from sparkkafka.errors import CommitFailedError
from tests.client.support import write
from tests.real.peers import WAIT_S

pytestmark = pytest.mark.real

COUNT = 2_000
PARTITIONS = 4


class Reader:
    """A consumer, and what it has seen."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.consumer = Consumer(settings)
        self.seen: list[tuple[int, int]] = []
        self.events: list[tuple[str, int]] = []

    def subscribe(self, topics: Any) -> None:
        def note(name: str) -> Any:
            return lambda partitions: self.events.extend((name, tp.partition) for tp in partitions)

        self.consumer.subscribe(
            topics, on_assigned=note("+"), on_revoked=note("-"), on_lost=note("lost")
        )

    def poll(self) -> None:
        self.seen += [(record.partition, record.offset) for record in self.consumer.poll(0.05)]

    def owned(self) -> set[int]:
        return {tp.partition for tp in self.consumer.assignment()}


@pytest.mark.parametrize(
    ("protocol", "strategy"),
    [("classic", "range"), ("classic", "cooperative-sticky"), ("consumer", None)],
)
def test_two_members_share_and_one_goes(kafka_cluster, new_topic, protocol, strategy):
    topic = new_topic(partitions=PARTITIONS)
    write(kafka_cluster.bootstrap_servers, topic, COUNT, partitions=PARTITIONS)
    settings: dict[str, Any] = {
        "bootstrap.servers": kafka_cluster.bootstrap_servers,
        "group.id": f"group-{uuid.uuid4().hex[:12]}",
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "max.poll.records": 20,
    }
    if strategy is not None:
        settings |= {"partition.assignment.strategy": strategy, "heartbeat.interval.ms": 300}
    everyone = set(range(PARTITIONS))
    until_s = time.monotonic() + 2 * WAIT_S
    first, second = Reader(settings), Reader(settings)
    try:
        first.subscribe(f"^{topic}$")
        while not first.seen:
            assert time.monotonic() < until_s
            first.poll()
        assert first.owned() == everyone
        second.subscribe([topic])
        while not (len(first.owned()) == len(second.owned()) == 2 and second.seen):
            assert time.monotonic() < until_s
            first.poll()
            second.poll()
        assert first.owned() | second.owned() == everyone
        assert second.consumer.group_metadata().member_id
        second.consumer.close()
        while len(set(first.seen) | set(second.seen)) < COUNT:
            assert time.monotonic() < until_s
            first.poll()
        assert first.owned() == everyone
    finally:
        second.consumer.close()
        first.consumer.close()
    # Automatic commits before each hand-over: nothing twice.
    assert len(first.seen) + len(second.seen) == COUNT
    # What one was told to have, it was told to let go of, and never twice in between.
    for reader in (first, second):
        for partition in range(PARTITIONS):
            signs = [name for name, number in reader.events if number == partition]
            assert signs == ["+", "-"] * (len(signs) // 2)
    theirs = confluent_kafka.Consumer(
        {key: settings[key] for key in ("bootstrap.servers", "group.id")}
    )
    try:
        chosen = [confluent_kafka.TopicPartition(topic, number) for number in everyone]
        assert {row.offset for row in theirs.committed(chosen, WAIT_S)} == {COUNT // PARTITIONS}
    finally:
        theirs.close()


def test_a_group_shared_with_confluent_kafka(kafka_cluster, new_topic):
    topic = new_topic(partitions=PARTITIONS)
    write(kafka_cluster.bootstrap_servers, topic, COUNT, partitions=PARTITIONS)
    settings: dict[str, Any] = {
        "bootstrap.servers": kafka_cluster.bootstrap_servers,
        "group.id": f"group-{uuid.uuid4().hex[:12]}",
        "partition.assignment.strategy": "range",
        "heartbeat.interval.ms": 300,
        "auto.offset.reset": "earliest",
    }
    theirs = confluent_kafka.Consumer(settings)
    until_s = time.monotonic() + 2 * WAIT_S
    seen: list[tuple[int, int]] = []
    ours = Reader(settings | {"max.poll.records": 20})
    try:
        theirs.subscribe([topic])
        ours.subscribe([topic])
        while len(set(ours.seen) | set(seen)) < COUNT or len(ours.owned()) != 2:
            assert time.monotonic() < until_s
            ours.poll()
            for message in theirs.consume(100, 0.01):
                if message.error() is None:
                    seen.append((message.partition(), message.offset()))
        assert {tp.partition for tp in theirs.assignment()} == set(range(PARTITIONS)) - ours.owned()
    finally:
        theirs.close()
        ours.consumer.close()


def test_a_member_that_was_removed_cannot_commit(kafka_cluster, new_topic):
    """It did not poll for too long; the next poll tells so, joins again and goes on from there."""
    topic = new_topic()
    write(kafka_cluster.bootstrap_servers, topic, 100)
    tp = TopicPartition(topic, 0)
    settings = {
        "bootstrap.servers": kafka_cluster.bootstrap_servers,
        "group.id": f"group-{uuid.uuid4().hex[:12]}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
        "max.poll.interval.ms": "2000",
        "heartbeat.interval.ms": "300",
        "max.poll.records": "10",
    }
    slow, other = Reader(settings), Reader(settings)
    until_s = time.monotonic() + 2 * WAIT_S
    try:
        slow.subscribe([topic])
        while not slow.seen:
            assert time.monotonic() < until_s
            slow.poll()
        other.subscribe([topic])
        while len(other.seen) < 20:  # when the slow one's time is over
            assert time.monotonic() < until_s
            other.poll()
        other.consumer.commit()
        with pytest.raises(CommitFailedError):
            slow.consumer.commit({tp: 1})
        at = OffsetAndMetadata(len(other.seen), leader_epoch=0)
        assert other.consumer.committed([tp]) == {tp: at}
        other.consumer.close()
        while len(slow.seen) == 10:
            assert time.monotonic() < until_s
            slow.poll()
        # What it had buffered from its first time is not given out.
        assert slow.seen[10] == (0, len(other.seen))
        assert slow.events[:3] == [("+", 0), ("lost", 0), ("+", 0)]
    finally:
        other.consumer.close()
        slow.consumer.close()
