"""Batches that are refused as too large after an attempt of unknown outcome.

The broker checks the size of a batch before it looks for a duplicate, and does not recognise a part
of a batch that it has: such a batch fails, and its error says that it may be written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from sparkkafka.client.producer.producer import Producer
from sparkkafka.errors import (
    ErrorCode,
    KafkaError,
    PartitionOutcome,
    ProduceError,
    TransactionError,
    Written,
)
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Drop
from tests.client.support import log_values, numbers, open_cluster, settings, values_of
from tests.support.options import parse_producer_options
from tests.support.partition_producer import PartitionProducer

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
    """The next Produce gets no response; the one after it is too large."""
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


@pytest.mark.parametrize("lost", [Drop.AFTER, Drop.BEFORE])
def test_it_fails_as_possibly_written(fake_cluster: FakeCluster, lost: Drop) -> None:
    fake_cluster.create_topic("t")
    with opened(fake_cluster) as producer:
        assert outcome(producer, [b"before"]) == [None]
        lose_and_refuse(fake_cluster, lost)
        errors = outcome(producer, numbers(10))
        assert [error and error.written for error in errors] == [Written.UNKNOWN] * 10
        assert "may have been written" in str(errors[9])
        assert outcome(producer, [b"after"]) == [None]
    written = numbers(10) if lost is Drop.AFTER else []
    assert log_values(fake_cluster, "t") == [b"before", *written, b"after"]


def test_a_batch_that_is_certainly_not_written_is_sent_in_parts(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    with opened(fake_cluster) as producer:
        assert outcome(producer, [b"before"]) == [None]
        fake_cluster.fault(ErrorCode.MESSAGE_TOO_LARGE, api="Produce", times=2)
        assert outcome(producer, numbers(12)) == [None] * 12
    assert log_values(fake_cluster, "t") == [b"before", *numbers(12)]
    parts = list(fake_cluster.log("t", 0).batches())[1:]
    assert [batch.record_count for batch in parts] == [3, 3, 6]


@pytest.mark.parametrize("lost", [Drop.AFTER, Drop.BEFORE])
@pytest.mark.parametrize("nth", [1, 3])
def test_batches_around_it(fake_cluster: FakeCluster, lost: Drop, nth: int) -> None:
    """All in flight lose their responses; the oldest of them is too large when it goes again."""
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
            with PartitionProducer(client, parse_producer_options(given)) as producer:
                producer.send("t", 0, values_of(range(5)))
                producer.flush()
                lose_and_refuse(fake_cluster, Drop.AFTER)
                producer.send("t", 0, values_of(range(5, 15)))
    assert raised.value.written is Written.UNKNOWN
    assert raised.value.partitions == {("t", 0): PartitionOutcome(5, 0, 10)}
    assert log_values(fake_cluster, "t") == numbers(15)
