"""The library's Producer on a real broker: confluent-kafka reads what it wrote."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from sparkkafka.client.producer.producer import Producer
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import BrokerError, ProduceError, TransactionError
from tests.real.peers import WAIT_S, confluent_read

pytestmark = pytest.mark.real

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def settings(kafka_cluster: Any) -> dict[str, Any]:
    return {"bootstrap.servers": kafka_cluster.bootstrap_servers}


def values(servers: str, topic: str, partitions: int = 1) -> list[bytes | None]:
    return [row.value for row in confluent_read(servers, topic, partitions, "read_committed")]


@pytest.mark.parametrize("codec", CODECS)
def test_another_client_reads_what_was_sent(
    settings: dict[str, Any], new_topic: Callable[..., str], codec: str
) -> None:
    topic = new_topic(partitions=2)
    with Producer(settings | {"compression.type": codec, "batch.size": 2_000}) as producer:
        handles = [
            producer.send(
                topic,
                None if number % 5 == 0 else b"%0100d" % number,
                f"k{number}" if number % 3 else None,
                [("h", b"%d" % number), ("none", None), ("ü", b"")] if number % 2 else None,
                number % 2,
                1_700_000_000_000 + number,
            )
            for number in range(500)
        ]
        positions = [handle.result(WAIT_S) for handle in handles]
    rows = {
        (row.partition, row.offset): row
        for row in confluent_read(settings["bootstrap.servers"], topic, 2)
    }
    assert len(rows) == 500
    for number, position in enumerate(positions):
        row = rows[position.partition, position.offset]
        assert row.value == (None if number % 5 == 0 else b"%0100d" % number)
        assert row.key == (f"k{number}".encode() if number % 3 else None)
        assert row.headers == (
            (("h", b"%d" % number), ("none", None), ("ü", b"")) if number % 2 else None
        )
        assert (row.timestamp_type, row.timestamp_ms) == (0, 1_700_000_000_000 + number)
        assert position.timestamp_ms == 1_700_000_000_000 + number


def test_keys_go_where_java_and_librdkafka_put_them(
    settings: dict[str, Any], new_topic: Callable[..., str]
) -> None:
    ours, theirs = new_topic(partitions=5), new_topic(partitions=5)
    keys = [b"key-%d" % number for number in range(200)]
    with Producer(settings) as producer:
        for key in keys:
            producer.send(ours, b"", key)
    other = confluent_kafka.Producer(settings | {"partitioner": "murmur2_random"})
    for key in keys:
        other.produce(theirs, b"", key)
    assert other.flush(WAIT_S) == 0
    placed = [
        {row.key: row.partition for row in confluent_read(settings["bootstrap.servers"], topic, 5)}
        for topic in (ours, theirs)
    ]
    assert placed[0] == placed[1]
    assert len(placed[0]) == 200


def test_append_time_and_a_refused_record(
    settings: dict[str, Any], new_topic: Callable[..., str]
) -> None:
    stamped = new_topic(configs={"message.timestamp.type": "LogAppendTime"})
    compacted = new_topic(configs={"cleanup.policy": "compact"})
    with Producer(settings) as producer:
        old = producer.send(stamped, b"", timestamp_ms=5).result(WAIT_S)
        refused = producer.send(compacted, b"no key")
        assert isinstance(refused.exception(WAIT_S), ProduceError)
        # The refused batch left a gap in the sequence numbers: the next epoch goes on.
        placed = [producer.send(compacted, b"", b"k").result(WAIT_S).offset for _ in range(3)]
    (row,) = confluent_read(settings["bootstrap.servers"], stamped)
    assert (row.timestamp_type, row.timestamp_ms) == (1, old.timestamp_ms)
    assert placed == [0, 1, 2]


def test_a_table(settings: dict[str, Any], new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=3)
    count = 30_000
    table = pa.table(
        {
            "key": pa.array([b"%d" % (number % 100) for number in range(count)]),
            "value": pa.array([str(number) for number in range(count)]),
        }
    )
    with Producer(settings | {"compression.type": "lz4"}) as producer:
        found = producer.send_table(table, topic).result(WAIT_S)
    rows = confluent_read(settings["bootstrap.servers"], topic, 3)
    assert sorted(int(row.value) for row in rows if row.value) == list(range(count))
    for tp, position in found.items():
        offsets = [row.offset for row in rows if row.partition == tp.partition]
        assert position == (offsets[0], offsets[-1], len(offsets))


@contextlib.contextmanager
def transactional(settings: dict[str, Any], **more: Any) -> Iterator[Producer]:
    tid = more.pop("tid", f"tid-{uuid.uuid4().hex}")
    with Producer(settings | {"transactional.id": tid} | more) as producer:
        producer.init_transactions(WAIT_S)
        yield producer


def test_transactions(settings: dict[str, Any], new_topic: Callable[..., str]) -> None:
    """The session's broker speaks the second protocol: each end gives the next epoch."""
    topic = new_topic(partitions=2)
    servers = settings["bootstrap.servers"]
    with transactional(settings) as producer:
        assert producer._transactions is not None
        assert producer._transactions.produce_version == 12
        for number in range(6):
            producer.begin_transaction()
            for row in range(20):
                producer.send(topic, b"%d-%02d" % (number, row))
            if number % 3 == 2:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, b"open").result(WAIT_S)
        seen = values(servers, topic, 2)
        expected = [b"%d-%02d" % (n, row) for n in (0, 1, 3, 4) for row in range(20)]
        assert sorted(filter(None, seen)) == expected
        assert len(confluent_read(servers, topic, 2)) == 121
        producer.commit_transaction()
    assert len(values(servers, topic, 2)) == 81


def test_transactions_go_on_after_an_error_and_later_producers_fence(
    settings: dict[str, Any], new_topic: Callable[..., str]
) -> None:
    topic, compacted = new_topic(), new_topic(configs={"cleanup.policy": "compact"})
    tid = f"tid-{uuid.uuid4().hex}"
    with transactional(settings, tid=tid) as producer:
        producer.begin_transaction()
        producer.send(topic, b"lost").result(WAIT_S)
        producer.send(compacted, b"no key").exception(WAIT_S)
        with pytest.raises(TransactionError, match="can only be aborted"):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"first")
        producer.send(compacted, b"", b"k")
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, b"zombie").result(WAIT_S)
        with transactional(settings, tid=tid) as second:
            second.begin_transaction()
            second.send(topic, b"second")
            second.commit_transaction()
        with pytest.raises(BrokerError, match="taken over this transactional id"):
            producer.commit_transaction()
    assert values(settings["bootstrap.servers"], topic) == [b"first", b"second"]


def test_offsets_in_a_transaction_are_seen_by_others(
    settings: dict[str, Any], new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=2)
    group = f"group-{uuid.uuid4().hex}"
    consumer = confluent_kafka.Consumer(settings | {"group.id": group})
    asked = [confluent_kafka.TopicPartition(topic, number) for number in range(2)]
    none = confluent_kafka.OFFSET_INVALID
    try:
        with transactional(settings) as producer:
            producer.begin_transaction()
            producer.send(topic, b"")
            producer.send_offsets_to_transaction({TopicPartition(topic, 1): 17}, group)
            producer.abort_transaction()
            assert [row.offset for row in consumer.committed(asked, WAIT_S)] == [none, none]
            producer.begin_transaction()
            producer.send_offsets_to_transaction({TopicPartition(topic, 1): 18}, group)
            producer.commit_transaction()
            assert [row.offset for row in consumer.committed(asked, WAIT_S)] == [none, 18]
    finally:
        consumer.close()


def test_the_first_protocol_of_transactions(
    settings: dict[str, Any], new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What brokers before 4.0 speak, and this one as well."""

    from sparkkafka.client.producer import transactions

    monkeypatch.setattr(transactions, "TRANSACTION_VERSION_2", 1_000)
    topic, compacted = new_topic(partitions=2), new_topic(configs={"cleanup.policy": "compact"})
    with transactional(settings) as producer:
        for number in range(4):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number)
            producer.send_offsets_to_transaction({TopicPartition(topic, 0): number}, topic)
            if number == 1:
                producer.flush()
                producer.abort_transaction()
            elif number == 2:
                producer.send(compacted, b"no key").exception(WAIT_S)
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    seen = values(settings["bootstrap.servers"], topic, 2)
    assert sorted(filter(None, seen)) == [b"0", b"3"]
