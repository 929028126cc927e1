"""A task that knows where its leader was needs one connection; what it knows may be wrong."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import pytest

from sparkkafka.client.values import Address, TopicPartition
from sparkkafka.config.options import parse_read_options, parse_stream_options
from sparkkafka.errors import DataLossError, KafkaTimeoutError
from sparkkafka.spark.read.input_partitions import KafkaInputPartition
from sparkkafka.spark.read.read_task import read_ranges
from sparkkafka.spark.read.reader import KafkaBatchReader
from sparkkafka.spark.schema import default_columns
from sparkkafka.spark.stream.planner import StreamPlanner
from sparkkafka.testing.fake.faults import Drop
from tests.client.support import QUICK, open_cluster, write
from tests.support import reference
from tests.support.batches import build_batch

ROWS = 20
TP = TopicPartition("t", 0)


def address(cluster: Any, broker: int) -> Address:
    host, port = cluster.address(broker).rsplit(":", 1)
    return host, int(port)


def options(cluster: Any) -> Any:
    kafka = {"bootstrap.servers": cluster.bootstrap_servers} | QUICK
    return parse_read_options({f"kafka.{k}": v for k, v in kafka.items()} | {"subscribe": "t"})


def values(cluster: Any, leader: Address | None) -> list[bytes]:
    columns = default_columns(include_headers=False)
    planned = KafkaInputPartition(*TP, 0, ROWS, None, leader)
    batches = read_ranges(options(cluster), columns, (planned,))
    return [value for batch in batches for value in batch.column("value").to_pylist()]


@pytest.fixture
def filled(fake_cluster: Any) -> Any:
    fake_cluster.create_topic("t")
    write(fake_cluster, "t", ROWS)
    fake_cluster.clear_requests()
    return fake_cluster


@pytest.fixture
def closed_port() -> Address:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return "127.0.0.1", sock.getsockname()[1]


WANTED = [b"%d" % n for n in range(ROWS)]


def test_metadata_and_records_come_by_one_connection(filled: Any) -> None:
    leader = filled.leader("t", 0)
    assert values(filled, address(filled, leader)) == WANTED
    assert [(row.broker, row.api) for row in filled.requests] == [
        (leader, "ApiVersions"),
        (leader, "Metadata"),
        (leader, "Fetch"),
    ]
    assert len({row.connection for row in filled.requests}) == 1


def test_a_leader_that_has_moved_is_found(filled: Any) -> None:
    before = filled.leader("t", 0)
    after = (before + 1) % 3
    filled.move_leader("t", 0, after)
    filled.clear_requests()
    assert values(filled, address(filled, before)) == WANTED
    assert {row.broker for row in filled.requests_of("Fetch")} == {after}


def test_a_leader_that_is_gone_is_no_trouble(filled: Any, closed_port: Address) -> None:
    assert values(filled, closed_port) == WANTED


def test_nobody_knows_a_leader(filled: Any) -> None:
    assert values(filled, None) == WANTED


def test_a_connection_that_breaks_is_made_anew(filled: Any) -> None:
    leader = filled.leader("t", 0)
    filled.fault(Drop.BEFORE, api="Fetch", nth=1)
    assert values(filled, address(filled, leader)) == WANTED


def test_a_topic_made_again_is_still_noticed(filled: Any) -> None:
    """The response of the leader says the topic's id before anything is fetched."""
    with open_cluster(filled) as cluster:
        cluster.topics(["t"])
        topic_id = cluster.topic_id("t")
    filled.recreate_topic("t")
    write(filled, "t", ROWS)
    leader = address(filled, filled.leader("t", 0))
    columns = default_columns(include_headers=False)
    with pytest.raises(DataLossError, match=r"recreated.*set failOnDataLoss=false to"):
        planned = KafkaInputPartition(*TP, 0, ROWS, topic_id, leader)
        list(read_ranges(options(filled), columns, (planned,)))


def test_a_read_that_gets_nothing_names_sparks_option(filled: Any) -> None:
    """The client, which says so, knows none of Spark's options by itself."""
    given = replace(options(filled), poll_timeout_ms=300)
    columns = default_columns(include_headers=False)
    filled.append("t", 0, open_transaction())
    committed = replace(given, fetch=replace(given.fetch, isolation_level="read_committed"))
    with pytest.raises(KafkaTimeoutError, match=r"\(kafkaConsumer\.pollTimeoutMs\)"):
        list(read_ranges(committed, columns, (KafkaInputPartition(*TP, ROWS, ROWS + 1),)))


def open_transaction() -> bytes:
    """A batch of a transaction that nobody ends."""
    row = reference.Record(0, 0, None, b"open")
    payload = reference.encode_payload([row], base_offset=0, base_timestamp=0)
    return build_batch(
        payload,
        record_count=1,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def test_plans_say_where_the_leaders_are(fake_cluster: Any) -> None:
    fake_cluster.create_topic("t", partitions=3)
    write(fake_cluster, "t", 300, partitions=3)
    planned = KafkaBatchReader(options(fake_cluster)).partitions()
    assert [part.leader for part in planned] == [  # type: ignore[attr-defined]
        address(fake_cluster, fake_cluster.leader("t", number)) for number in range(3)
    ]


def test_plans_of_micro_batches_say_so_too(filled: Any) -> None:
    kafka = {"bootstrap.servers": filled.bootstrap_servers} | QUICK
    given = {f"kafka.{k}": v for k, v in kafka.items()} | {"subscribe": "t"}
    offsets = StreamPlanner(parse_stream_options(given))
    offsets.next_end({TP: 0}, limited=True)
    (planned,) = offsets.plan({TP: 0}, {TP: ROWS})
    offsets.close()
    assert planned.leader == address(filled, filled.leader("t", 0))
    assert isinstance(planned, KafkaInputPartition)


def test_a_connection_is_given_away_once_and_only_for_its_own_broker(filled: Any) -> None:
    leader = filled.leader("t", 0)
    with open_cluster(filled) as cluster:
        cluster.connections._try_first = [address(filled, leader)]
        cluster.topics(["t"])
        others = [broker for node, broker in cluster.brokers.items() if node != leader]
        assert [cluster.connections.take_idle(broker) for broker in others] == [None, None]
        given = cluster.connections.take_idle(cluster.brokers[leader])
        assert given is not None and given.is_open
        assert cluster.connections.take_idle(cluster.brokers[leader]) is None
        given.close()
        assert cluster.topics(["t"])  # by another one
