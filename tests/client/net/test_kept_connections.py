"""Connections that a task leaves to the next one of its process."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.net import pool
from sparkkafka.client.net.pool import CONNECTION_CACHE
from sparkkafka.client.producer.transactions import SingleTransaction
from sparkkafka.config.options import parse_read_options
from sparkkafka.errors import OptionError
from sparkkafka.protocol.messages import MetadataRequest
from sparkkafka.spark.read.input_partitions import KafkaInputPartition
from sparkkafka.spark.read.read_task import read_ranges
from sparkkafka.spark.schema import default_columns
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Drop
from tests.client.support import QUICK, fill, open_cluster, settings, values_of
from tests.support.options import parse_producer_options
from tests.support.partition_producer import PartitionProducer
from tests.support.waiting import wait_until

ROWS = 60
COLUMNS = default_columns(include_headers=False)


@pytest.fixture(autouse=True)
def none_kept() -> Iterator[None]:
    CONNECTION_CACHE.close_all()
    yield
    CONNECTION_CACHE.close_all()


@pytest.fixture
def filled(fake_cluster: FakeCluster) -> FakeCluster:
    fake_cluster.create_topic("t", partitions=3)
    fill(fake_cluster, "t", ROWS, partitions=3, per_send=10)
    fake_cluster.clear_requests()
    return fake_cluster


def options(cluster: FakeCluster, **kafka: str) -> Any:
    given = {"bootstrap.servers": cluster.bootstrap_servers} | QUICK
    given |= {name.replace("_", "."): value for name, value in kafka.items()}
    return parse_read_options({f"kafka.{k}": v for k, v in given.items()} | {"subscribe": "t"})


def read(given: Any, *partitions: int) -> int:
    """A task; returns its rows."""
    ranges = [KafkaInputPartition("t", number, 0, ROWS // 3) for number in partitions]
    return sum(batch.num_rows for batch in read_ranges(given, COLUMNS, ranges))


def opened(cluster: FakeCluster) -> int:
    """How many connections were made."""
    return len(cluster.requests_of("ApiVersions"))


@pytest.mark.parametrize("partitions", [(0,), (0, 1, 2)])
def test_the_next_task_makes_none(filled: FakeCluster, partitions: tuple[int, ...]) -> None:
    given = options(filled)
    assert read(given, *partitions) == 20 * len(partitions)
    made = opened(filled)
    filled.clear_requests()
    for _ in range(3):
        assert read(given, *partitions) == 20 * len(partitions)
    assert made <= len(partitions) + 1
    assert opened(filled) == 0
    assert [row.api for row in filled.requests].count("Metadata") == 3


@pytest.mark.parametrize(
    "other",
    [
        {"client_id": "another"},
        {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_jaas_config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
            'username="u" password="p";',
        },
    ],
)
def test_never_with_other_settings(filled: FakeCluster, other: dict[str, str]) -> None:
    read(options(filled), 0)
    assert CONNECTION_CACHE.take(options(filled, **other).client) is None
    kept = CONNECTION_CACHE.take(options(filled).client)
    assert kept is not None
    kept.close()


def test_another_password_is_another_user(filled: FakeCluster) -> None:
    def sasl(password: str) -> Any:
        return options(
            filled,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_jaas_config="org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'username="u" password="{password}";',
        ).client

    assert sasl("a") == sasl("a")
    assert sasl("a") != sasl("b")


@pytest.fixture
def by_reference(tmp_path: Path) -> Iterator[tuple[Path, Any]]:
    """A file of a user and password, and the options of a task that refer to it."""
    file = tmp_path / "kafka.properties"
    file.write_text("user=alice\npassword=hush\n")
    with FakeCluster(1, sasl_users={"alice": "hush", "bob": "hush-hush"}) as cluster:
        cluster.create_topic("t", partitions=3)
        yield (
            file,
            options(
                cluster,
                security_protocol="SASL_PLAINTEXT",
                sasl_mechanism="PLAIN",
                sasl_username=f"${{file:{file}:user}}",
                sasl_password=f"${{file:{file}:password}}",
            ).client,
        )


def task(given: Any) -> None:
    with Cluster(given, for_task=True) as cluster:
        cluster.topics(["t"])


def test_references_that_stand_for_the_same(by_reference: tuple[Path, Any]) -> None:
    _, given = by_reference
    task(given)
    kept = CONNECTION_CACHE.take(given)
    assert kept is not None
    CONNECTION_CACHE.keep(kept)


def test_a_reference_that_stands_for_another_user(by_reference: tuple[Path, Any]) -> None:
    file, given = by_reference
    task(given)
    file.write_text("user=bob\npassword=hush-hush\n")
    assert CONNECTION_CACHE.take(given) is None
    file.write_text("user=alice\npassword=hush\n")
    kept = CONNECTION_CACHE.take(given)
    assert kept is not None
    file.write_text("user=bob\npassword=hush-hush\n")
    CONNECTION_CACHE.keep(kept)
    file.write_text("user=alice\npassword=hush\n")
    assert CONNECTION_CACHE.take(given) is None


def test_a_reference_that_is_gone(by_reference: tuple[Path, Any]) -> None:
    file, given = by_reference
    task(given)
    file.unlink()
    with pytest.raises(OptionError, match=re.escape(str(file))):
        task(given)


def test_a_task_that_failed_leaves_nothing(filled: FakeCluster) -> None:
    with (
        pytest.raises(RuntimeError),
        Cluster(options(filled).client, for_task=True) as cluster,
    ):
        cluster.topics(["t"])
        raise RuntimeError
    assert CONNECTION_CACHE.take(options(filled).client) is None


def test_a_task_that_is_left_early_leaves_nothing_in_flight(filled: FakeCluster) -> None:
    given = options(filled, max_partition_fetch_bytes="300")
    rows = read_ranges(given, COLUMNS, (KafkaInputPartition("t", 0, 0, 20),))
    next(rows)
    rows.close()
    assert CONNECTION_CACHE.take(given.client) is None


def test_what_the_broker_closed_is_not_used(filled: FakeCluster) -> None:
    given = options(filled)
    read(given, 0)
    for broker in filled.broker_ids:
        filled.broker_down(broker)
        filled.broker_up(broker)

    def is_closed() -> bool:
        if (kept := CONNECTION_CACHE.take(given.client)) is not None:
            CONNECTION_CACHE.keep(kept)
        return kept is None

    wait_until(is_closed, poll_s=0)
    assert read(given, 0) == 20


def test_any_connection_is_one_that_the_broker_has_not_closed(filled: FakeCluster) -> None:
    with open_cluster(filled) as cluster:
        cluster.all_topics()
        first = cluster.any_connection(cluster.deadline())
        assert cluster.any_connection(cluster.deadline()) is first
        for broker in filled.broker_ids:
            filled.broker_down(broker)
            filled.broker_up(broker)
        wait_until(lambda: not first.is_quiet, poll_s=0.01)
        second = cluster.any_connection(cluster.deadline())
        assert second is not first
        assert not first.is_open
        assert second.call(MetadataRequest(topics=[])).brokers


def test_a_connection_that_breaks_under_the_next_task_is_made_anew(filled: FakeCluster) -> None:
    given = options(filled)
    read(given, 0)
    filled.fault(Drop.BEFORE, api="Fetch", nth=1)
    assert read(given, 0) == 20
    filled.fault(Drop.BEFORE, api="Metadata", nth=1)
    assert read(given, 0) == 20


def test_they_are_closed_when_idle(filled: FakeCluster) -> None:
    given = options(filled, connections_max_idle_ms="100")
    read(given, 0)
    (row,) = CONNECTION_CACHE._entries
    wait_until(lambda: not row.pool.connection_count, poll_s=0.01)
    assert not CONNECTION_CACHE._entries
    assert CONNECTION_CACHE._timer is None


def test_a_shorter_time_is_not_put_off_by_a_longer_one(filled: FakeCluster) -> None:
    read(options(filled, connections_max_idle_ms="600000"), 0)
    read(options(filled, connections_max_idle_ms="50"), 0)
    wait_until(lambda: len(CONNECTION_CACHE._entries) == 1, poll_s=0.01)
    assert CONNECTION_CACHE._entries[0].pool.options.connections_max_idle_ms == 600_000


def test_a_time_of_0_keeps_none(filled: FakeCluster) -> None:
    given = options(filled, connections_max_idle_ms="0")
    read(given, 0)
    assert not CONNECTION_CACHE._entries


def test_their_number_is_bounded(filled: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_CACHED", 2)
    for number in range(5):
        read(options(filled, client_id=f"c{number}"), 0)
    assert sum(row.pool.connection_count for row in CONNECTION_CACHE._entries) <= 2
    assert CONNECTION_CACHE.take(options(filled, client_id="c0").client) is None


def test_old_ones_are_not_kept(filled: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_CACHED_AGE_S", 0.0)
    read(options(filled), 0)
    assert not CONNECTION_CACHE._entries


def test_two_at_a_time_have_connections_of_their_own(filled: FakeCluster) -> None:
    given = options(filled).client
    with Cluster(given, for_task=True) as first, Cluster(given, for_task=True) as second:
        assert first.topics(["t"])
        assert second.topics(["t"])
        assert first.connections is not second.connections
    assert len(CONNECTION_CACHE._entries) == 2


def test_a_fork_has_none_of_them(filled: FakeCluster) -> None:
    given = options(filled)
    read(given, 0)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, b"none" if CONNECTION_CACHE.take(given.client) is None else b"some")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 10) == b"none"
    os.close(reader)
    os.close(writer)
    filled.clear_requests()
    assert read(given, 0) == 20
    assert opened(filled) == 0


def test_the_next_writer_makes_none(filled: FakeCluster) -> None:
    """A producer and its transaction are two clients of a task."""
    client = options(filled).client
    given = parse_producer_options(settings(filled))

    def task(number: int) -> None:
        with (
            SingleTransaction(client, f"tid-{number}", 60_000, 5_000) as transaction,
            Cluster(client, for_task=True) as cluster,
            PartitionProducer(cluster, given, transaction) as producer,
        ):
            producer.send("t", number % 3, values_of(range(10)))
            producer.flush()

    for number in range(4):  # until there are connections to all that tasks need
        task(number)
    made = opened(filled)
    filled.clear_requests()
    for number in range(4):
        task(number)
    assert made > 2
    assert opened(filled) == 0
    assert len(filled.requests_of("Produce")) == 4


def test_a_topic_made_again_between_two_tasks_is_noticed(filled: FakeCluster) -> None:
    """Metadata are asked for anew by each task."""
    given = options(filled)
    read(given, 0)
    with Cluster(given.client) as cluster:
        cluster.topics(["t"])
        before = cluster.topic_id("t")
    filled.recreate_topic("t")
    fill(filled, "t", ROWS, partitions=3, per_send=10)
    with Cluster(given.client) as cluster:
        cluster.topics(["t"])
        after = cluster.topic_id("t")
    assert before != after
    new = replace(KafkaInputPartition("t", 0, 0, 20), topic_id=after)
    assert sum(batch.num_rows for batch in read_ranges(given, COLUMNS, (new,))) == 20


def test_the_leader_is_asked_by_the_kept_connection(filled: FakeCluster) -> None:
    given = options(filled)
    for number in range(3):
        read(given, number)
    filled.clear_requests()
    for number in range(3):
        assert read(given, number) == 20
        (fetch,) = filled.requests_of("Fetch")
        assert fetch.broker == filled.leader("t", number)
        filled.clear_requests()
