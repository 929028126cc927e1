"""connections.max.idle.ms: a connection that was idle for so long is not used again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.client.net import connection as connection_module
from sparkkafka.client.net import pool
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.producer.producer import Producer
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.client_settings import parse_admin_settings
from sparkkafka.protocol.messages import MetadataRequest, ProduceRequest
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.client.support import log_values, numbers, open_cluster, settings
from tests.support.clock import Clock

WAIT_S = 20
DEFAULT_S = 540.0  # Java's


@pytest.fixture
def fake(fake_cluster_factory: Callable[..., FakeCluster]) -> FakeCluster:
    cluster = fake_cluster_factory(1)
    cluster.create_topic("t")
    return cluster


class Opened:
    """Counts connections by the clients' hooks."""

    def __init__(self, fake: FakeCluster, **config: Any) -> None:
        self.opened = self.closed = 0
        self.settings: dict[str, Any] = settings(fake, **config) | {
            "on_connect": self._note_opened,
            "on_disconnect": self._note_closed,
        }

    def _note_opened(self, _: str) -> None:
        self.opened += 1

    def _note_closed(self, _: str) -> None:
        self.closed += 1


@pytest.fixture
def opened(fake: FakeCluster) -> Opened:
    return Opened(fake)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """That of all connections."""
    clock = Clock()
    clock.patch(monkeypatch, connection_module, pool)
    return clock


@pytest.mark.parametrize(
    ("given", "idle_s", "is_closed"),
    [
        ({}, DEFAULT_S + 1, True),
        ({}, DEFAULT_S - 60, False),
        ({"connections_max_idle_ms": 180_000}, 181, True),
        ({"connections_max_idle_ms": 0}, 1e6, False),
    ],
)
def test_admin(
    fake: FakeCluster,
    clock: Clock,
    given: dict[str, int],
    idle_s: float,
    is_closed: bool,
) -> None:
    opened = Opened(fake, **given)
    with Admin(opened.settings) as admin:
        admin.list_topics()
        before = opened.opened
        admin.list_topics()
        assert (opened.opened, opened.closed) == (before, 0)
        clock.ahead_s += idle_s
        assert "t" in admin.list_topics()
        assert (opened.opened > before, opened.closed > 0) == (is_closed, is_closed)


def test_producer(fake: FakeCluster, opened: Opened, clock: Clock) -> None:
    with Producer(opened.settings) as producer:
        producer.send("t", b"0").result(WAIT_S)
        before = opened.opened
        clock.ahead_s += DEFAULT_S
        producer.send("t", b"1").result(WAIT_S)
        assert opened.opened > before
        assert opened.closed > 0
    assert log_values(fake, "t") == numbers(2)


@pytest.mark.parametrize("group", [{}, {"group.id": "g"}])
def test_consumer(fake: FakeCluster, opened: Opened, clock: Clock, group: dict[str, str]) -> None:
    with Producer(settings(fake)) as producer:
        producer.send_many("t", numbers(10)).result(WAIT_S)
    config = opened.settings | {"auto.offset.reset": "earliest", "max.poll.records": "10"} | group
    tp = TopicPartition("t", 0)
    with Consumer(config) as consumer:
        consumer.assign([tp])
        found = _values(consumer)
        consumer.pause([tp])
        consumer.poll(0)
        before = opened.closed
        while any(leader.requested for leader in consumer._loop._fetcher._leaders.values()):
            consumer.poll(0.01)
        clock.ahead_s += DEFAULT_S
        with Producer(settings(fake)) as producer:
            producer.send("t", b"10").result(WAIT_S)
        consumer.resume([tp])
        found += _values(consumer)
        assert found == numbers(11)
        assert opened.closed > before


def _values(consumer: Consumer) -> list[bytes | None]:
    for _ in range(100):
        records = consumer.poll(1.0)
        if records:
            return [record.value for record in records]
    raise AssertionError("no records came")


def test_only_what_waits_for_nothing_expires(fake: FakeCluster, clock: Clock) -> None:
    given = settings(fake, connections_max_idle_ms=1_000)
    with Connection.to(given) as connection:
        assert not connection.has_expired
        clock.ahead_s += 2
        assert connection.has_expired
        connection.send(MetadataRequest(topics=[]))
        clock.ahead_s += 2
        assert not connection.has_expired  # a response is to come
        connection.receive()
        assert not connection.has_expired  # it was used just now
        connection.send(ProduceRequest(acks=0, timeout_ms=1, topic_data=[]), expect_response=False)
        clock.ahead_s += 2
        assert not connection.has_expired  # the broker may not have read it
        connection.call(MetadataRequest(topics=[]))
        clock.ahead_s += 2
        assert connection.has_expired


def test_connections_to_other_brokers_are_closed_as_well(
    fake_cluster_factory: Callable[..., FakeCluster], clock: Clock
) -> None:
    fake = fake_cluster_factory(3)
    with open_cluster(fake) as cluster:
        cluster.all_topics()
        connections = [cluster.connection(node, cluster.deadline()) for node in fake.broker_ids]
        for connection in connections:
            connection.call(MetadataRequest(topics=[]))
        clock.ahead_s += DEFAULT_S
        new = cluster.connection(fake.broker_ids[0], cluster.deadline())
        assert cluster.connections.connection_count == 1
        assert not any(connection.is_open for connection in connections)
        assert new.is_open


def test_the_setting() -> None:
    given = {"bootstrap.servers": "h:1"}
    assert parse_admin_settings(given).connections_max_idle_ms == DEFAULT_S * 1000
    options = parse_admin_settings(given | {"connections.max.idle.ms": "180000"})
    assert (options.connections_max_idle_ms, options.kept_max_idle_ms) == (180_000, 180_000)
    never = parse_admin_settings(given | {"connections.max.idle.ms": "-1"})  # as in Java
    assert (never.connections_max_idle_ms, never.kept_max_idle_ms) == (0, 10_000)
