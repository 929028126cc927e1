"""Batches that are refused as too large after an attempt of unknown outcome.

The broker looks at a batch's size before it looks whether it has the batch, and knows no part again
as one of a batch that it has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from sparkkafka.client.producer.column_producer import ColumnProducer
from sparkkafka.client.producer.producer import Producer
from sparkkafka.client.producer.sender import Sender
from sparkkafka.client.producer.topic_lookup import TopicLookup
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import (
    ErrorCode,
    KafkaError,
    PartitionOutcome,
    ProduceError,
    TransactionError,
    Written,
)
from sparkkafka.protocol.columns.encode import encode_batches, split_encoded
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Drop
from tests.client.support import log_values, numbers, open_cluster, settings, values_of
from tests.support.options import parse_producer_options

WAIT_S = 20
FOREVER = {"linger_ms": 3_600_000, "delivery_timeout_ms": 7_200_000}
MANY = [b"%03d" % number for number in range(100)]


@contextlib.contextmanager
def opened(cluster: Any, **config: Any) -> Iterator[Producer]:
    producer = Producer(settings(cluster, **FOREVER, **config))
    try:
        yield producer
    finally:
        with contextlib.suppress(KafkaError):
            producer.close(timeout_s=1)


def lose_and_refuse(cluster: FakeCluster, lost: Drop) -> None:
    """The next Produce gets no answer; the one after it is too large."""
    cluster.fault(lost, api="Produce")
    cluster.fault(ErrorCode.MESSAGE_TOO_LARGE, api="Produce")


def outcome(producer: Producer, values: list[bytes]) -> list[ProduceError | None]:
    handles = [producer.send("t", value) for value in values]
    with contextlib.suppress(ProduceError):
        producer.flush(WAIT_S)
    errors = []
    for handle in handles:
        assert handle.done()
        error = handle.exception()
        assert error is None or isinstance(error, ProduceError)
        errors.append(error)
    return errors


def test_a_batch_that_is_written_is_not_written_again_in_parts(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    with opened(fake_cluster) as producer:
        assert outcome(producer, [b"before"]) == [None]
        lose_and_refuse(fake_cluster, Drop.AFTER)
        errors = outcome(producer, numbers(10))
        assert [error and error.written for error in errors] == [Written.UNKNOWN] * 10
        assert "may have been written" in str(errors[9])
        assert "unclean" not in str(errors[9])
        assert outcome(producer, [b"after"]) == [None]
    assert log_values(fake_cluster, "t") == [b"before", *numbers(10), b"after"]


def test_a_batch_that_is_not_written_goes_in_parts(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    with opened(fake_cluster) as producer:
        assert outcome(producer, [b"before"]) == [None]
        lose_and_refuse(fake_cluster, Drop.BEFORE)
        assert outcome(producer, numbers(10)) == [None] * 10
        assert outcome(producer, [b"after"]) == [None]
    assert log_values(fake_cluster, "t") == [b"before", *numbers(10), b"after"]
    parts = list(fake_cluster.log("t", 0).batches())[1:-1]
    assert [batch.record_count for batch in parts] == [5, 5]


@pytest.mark.parametrize("lost", [Drop.AFTER, Drop.BEFORE])
def test_parts_that_are_too_large_again(fake_cluster: FakeCluster, lost: Drop) -> None:
    fake_cluster.create_topic("t")
    with opened(fake_cluster) as producer:
        outcome(producer, [b"before"])
        fake_cluster.fault(lost, api="Produce")
        fake_cluster.fault(ErrorCode.MESSAGE_TOO_LARGE, api="Produce", times=2)
        errors = outcome(producer, numbers(10))
        outcome(producer, [b"after"])
    assert log_values(fake_cluster, "t") == [b"before", *numbers(10), b"after"]
    expected = Written.UNKNOWN if lost is Drop.AFTER else None
    assert [error and error.written for error in errors] == [expected] * 10


@pytest.mark.parametrize("lost", [Drop.AFTER, Drop.BEFORE])
@pytest.mark.parametrize("nth", [1, 3])
def test_batches_around_it(fake_cluster: FakeCluster, lost: Drop, nth: int) -> None:
    """All in flight lose their answers; the oldest of them is too large when it goes again."""
    fake_cluster.create_topic("t")
    with opened(fake_cluster, batch_size=200) as producer:
        outcome(producer, [b"before"])
        fake_cluster.fault(lost, api="Produce", nth=nth)
        fake_cluster.fault(ErrorCode.MESSAGE_TOO_LARGE, api="Produce", nth=nth)
        errors = outcome(producer, MANY)
        assert outcome(producer, [b"end"]) == [None]
    values = log_values(fake_cluster, "t")
    assert values == [b"before", *sorted(filter(None, values[1:-1])), b"end"]
    assert len(set(values)) == len(values)
    for value, error in zip(MANY, errors, strict=True):
        assert value in values or error is not None
        assert value not in values or error is None or error.written is Written.UNKNOWN
    assert not all(errors)


@pytest.mark.parametrize("lost", [Drop.AFTER, Drop.BEFORE])
def test_in_a_transaction(fake_cluster: FakeCluster, lost: Drop) -> None:
    fake_cluster.create_topic("t")
    with opened(fake_cluster, transactional_id="tid") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        outcome(producer, [b"before"])
        lose_and_refuse(fake_cluster, lost)
        errors = outcome(producer, numbers(10))
        if lost is Drop.AFTER:
            assert [error and error.written for error in errors] == [Written.UNKNOWN] * 10
            with pytest.raises(TransactionError, match="can only be aborted"):
                producer.commit_transaction()
            producer.abort_transaction()
            producer.begin_transaction()
            outcome(producer, [b"before", *numbers(10)])
        producer.commit_transaction()
    values = [record.value for record in fake_cluster.read_committed("t")]
    assert values == [b"before", *numbers(10)]


def test_a_task_that_writes_columns_ends_and_says_so(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    given = settings(fake_cluster)
    with open_cluster(fake_cluster) as client:
        with pytest.raises(ProduceError, match="may have been written") as raised:
            with ColumnProducer(client, parse_producer_options(given)) as producer:
                producer.send("t", 0, values_of(range(5)))
                producer.flush()
                lose_and_refuse(fake_cluster, Drop.AFTER)
                producer.send("t", 0, values_of(range(5, 15)))
    assert raised.value.written is Written.UNKNOWN
    assert raised.value.partitions == {("t", 0): PartitionOutcome(5, 0, 10)}
    assert log_values(fake_cluster, "t") == numbers(15)


class Callback:
    """Notes what it is told."""

    def __init__(self, told: list[tuple[int, str]], count: int) -> None:
        self.told, self.count = told, count

    def acknowledged(self, base_offset: int, log_append_time_ms: int) -> None:
        self.told.append((self.count, "delivered"))

    def failed(self, error: ProduceError, record_messages: Any) -> None:
        self.told.append((self.count, error.written.name))

    def split(self, counts: Any) -> list[Callback]:
        return [Callback(self.told, count) for count in counts]


def sender_with_parts(client: Any, told: list[tuple[int, str]]) -> Sender:
    """Queued are parts of 5 and 5 records of a batch whose outcome is open, and one batch of 3."""
    options = parse_producer_options(settings("127.0.0.1:1"))
    sender = Sender(client, options, lookup=TopicLookup(client))
    tp = TopicPartition("t", 0)
    for count in (10, 3):
        encoded = encode_batches(values_of(range(count)), max_batch_bytes=1 << 20)
        sender.append(tp, encoded, [Callback(told, count)], created_s=0.0 if count == 10 else None)
    queue = sender._queues[tp]
    queue.assign_producer_id(7, 0)
    large = queue.next_batch(0)
    assert large is not None
    for written in (True, False):
        queue.assign_sequence(large)
        queue.sent(large, 0)
        if written:
            queue.attempt_failed(large, maybe_written=True)
    parts = split_encoded(large.encoded)
    sender.queued_bytes += sum(len(part.payload) for part in parts) - large.size_bytes
    queue.split(large, parts)
    return sender


def test_parts_that_were_never_sent_may_be_written_all_the_same(fake_cluster: FakeCluster) -> None:
    told: list[tuple[int, str]] = []
    with open_cluster(fake_cluster) as client:
        sender = sender_with_parts(client, told)
        sender.fail_all("it is over", sent=False)
        assert told == [(3, "NO")]
        sender.fail_all("it is over")
    assert told == [(3, "NO"), (5, "UNKNOWN"), (5, "UNKNOWN")]
    assert (sender.queued_bytes, sender._busy) == (0, {})


def test_parts_expire_together(fake_cluster: FakeCluster) -> None:
    told: list[tuple[int, str]] = []
    with open_cluster(fake_cluster) as client:
        sender = sender_with_parts(client, told)
        sender.expire()
    assert told == [(5, "UNKNOWN"), (5, "UNKNOWN")]
    assert sender._busy
