"""What the error that ends a producer says of each partition's records."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from sparkkafka.errors import (
    EncodeError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    PartitionOutcome,
    ProduceError,
    Written,
)
from sparkkafka.testing.fake.faults import Delay, Drop, ErrorResponse
from tests.client.support import log_values, open_cluster, settings, values_of
from tests.support.options import parse_producer_options
from tests.support.partition_producer import PartitionProducer
from tests.support.waiting import wait_until

WRITTEN, NOT, UNKNOWN = range(3)


def outcome(written: int = 0, not_written: int = 0, unknown: int = 0) -> PartitionOutcome:
    return PartitionOutcome(written, not_written, unknown)


def failure(cluster: Any, sends: list[tuple[int, int]], **config: Any) -> KafkaError:
    """The error of a producer that sends so many records to partitions of t, each in one batch."""
    given = settings(cluster, **config)
    with open_cluster(cluster, **config) as client:
        with pytest.raises(KafkaError) as raised:
            with PartitionProducer(client, parse_producer_options(given)) as producer:
                for partition, count in sends:
                    producer.send("t", partition, values_of(range(count)))
    error = raised.value
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.partitions) == (str(error), error.partitions)
    return error


def test_one_done_one_refused_one_without_response_one_never_sent(fake_cluster_factory):
    """Brokers 0 to 3 lead partitions 0 to 3; number 3 cannot be reached."""
    cluster = fake_cluster_factory(4)
    cluster.create_topic("t", partitions=4, replication_factor=1)
    leaders = {cluster.leader("t", p): p for p in range(4)}
    assert len(leaders) == 4
    config = {"linger_ms": 0, "request_timeout_ms": 8_000, "delivery_timeout_ms": 60_000}
    given = settings(cluster, **config)
    cluster.fault(Delay(60_000), api="Produce", topic="t", partition=2, times=None)
    # Not by way of number 3: on a connection that is open already something would be sent to it.
    with open_cluster(cluster.address(cluster.leader("t", 0)), **config) as client:
        producer = PartitionProducer(client, parse_producer_options(given))
        producer.send("t", 0, values_of(range(10)))
        producer.flush()
        cluster.broker_down(cluster.leader("t", 3), move_leaders=False)
        cluster.fault(ErrorCode.INVALID_RECORD, api="Produce", topic="t", partition=1, times=None)
        with pytest.raises(ProduceError) as raised:
            # On a busy machine the response can be there before the last send returns.
            for partition, count in ((3, 13), (2, 12), (1, 11)):
                producer.send("t", partition, values_of(range(count)))
            producer.flush()
    error = raised.value
    assert (error.partition, error.written) == (1, Written.NO)
    assert error.partitions == {
        ("t", 0): outcome(written=10),
        ("t", 1): outcome(not_written=11),
        ("t", 2): outcome(unknown=12),
        ("t", 3): outcome(not_written=13),
    }
    assert str(error).endswith(
        "; 4 partitions so far: 10 records written, 24 not written, 12 unknown whether written: "
        "t-1 (11 not written), t-2 (12 unknown whether written), t-3 (13 not written)"
    )
    assert pickle.loads(pickle.dumps(error)).partitions == error.partitions
    assert len(log_values(cluster, "t", 0)) == 10
    # The delayed broker did write it: unknown was right, "not written" would not have been.
    wait_until(lambda: len(log_values(cluster, "t", 2)) == 12)


def test_the_whole_response_counts_although_its_first_partition_was_refused(fake_cluster_factory):
    cluster = fake_cluster_factory(1)
    cluster.create_topic("t", partitions=4)
    cluster.fault(ErrorCode.INVALID_RECORD, api="Produce", topic="t", partition=0, times=None)
    cluster.fault(ErrorCode.POLICY_VIOLATION, api="Produce", topic="t", partition=3, times=None)
    error = failure(cluster, [(p, 5 + p) for p in range(4)], linger_ms=60_000)
    assert len(cluster.requests_of("Produce")) == 1
    assert (error.partition, error.code) == (0, ErrorCode.INVALID_RECORD)
    written = {p: len(log_values(cluster, "t", p)) for p in range(4)}
    assert {key: row.written_records for key, row in error.partitions.items()} == {
        ("t", p): count for p, count in written.items()
    }
    assert written[1] == 6
    assert {row.unknown_records for row in error.partitions.values()} == {0}


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (ErrorResponse(ErrorCode.REQUEST_TIMED_OUT, applied=True), outcome(unknown=7)),
        (ErrorCode.NOT_ENOUGH_REPLICAS, outcome(not_written=7)),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, outcome(not_written=7)),
        (Drop.AFTER, outcome(unknown=7)),
        (Drop.BEFORE, outcome(unknown=7)),
    ],
    ids=str,
)
def test_the_batch_that_failed(fake_cluster, action, expected):
    fake_cluster.create_topic("t")
    fake_cluster.fault(action, api="Produce", times=None)
    error = failure(fake_cluster, [(0, 7)], retries=0, enable_idempotence="false")
    assert error.partitions == {("t", 0): expected}
    assert (error.written is Written.UNKNOWN) == bool(expected.unknown_records)


def test_written_batches_and_those_behind_the_failed_one(fake_cluster):
    fake_cluster.create_topic("t")
    fake_cluster.fault(ErrorCode.INVALID_RECORD, api="Produce", nth=3, times=None)
    error = failure(
        fake_cluster,
        [(0, 10), (0, 20), (0, 30), (0, 40)],
        linger_ms=0,
        max_in_flight_requests_per_connection=1,
    )
    assert error.partitions == {("t", 0): outcome(written=30, not_written=70)}
    assert len(log_values(fake_cluster, "t")) == 30


def test_rows_that_wait_for_a_full_batch_are_not_written(fake_cluster):
    fake_cluster.create_topic("t", partitions=2)
    fake_cluster.fault(ErrorCode.INVALID_RECORD, api="Produce")
    given = settings(fake_cluster, linger_ms=60_000, batch_size=500)
    with open_cluster(fake_cluster) as cluster:
        producer = PartitionProducer(cluster, parse_producer_options(given))
        producer.send("t", 1, values_of(range(3)))
        with pytest.raises(ProduceError) as raised:
            for _ in range(100):
                producer.send("t", 0, values_of(range(100)))
    assert raised.value.partitions["t", 1] == outcome(not_written=3)


def test_without_acks_nobody_knows_what_was_sent(fake_cluster):
    fake_cluster.create_topic("t")
    given = settings(fake_cluster, acks=0, linger_ms=0)
    with open_cluster(fake_cluster) as cluster:
        producer = PartitionProducer(cluster, parse_producer_options(given))
        producer.send("t", 0, values_of(range(3)))
        assert producer.outcomes() == {("t", 0): outcome(unknown=3)}


def test_no_memory_in_time(fake_cluster):
    fake_cluster.create_topic("t")
    fake_cluster.fault(Delay(60_000), api="Produce", times=None)
    error = failure(
        fake_cluster,
        [(0, 100)] * 50,
        buffer_memory=2_000,
        max_block_ms=300,
        batch_size=400,
        linger_ms=0,
    )
    assert isinstance(error, KafkaTimeoutError)
    row = error.partitions["t", 0]
    assert row.written_records == 0
    assert row.unknown_records > 0
    assert row.unknown_records + row.not_written_records >= 100
    assert "unknown whether written" in str(error)


def test_an_error_of_the_caller_says_what_is_written_by_then(fake_cluster):
    """A bad row ends the task as well; what was sent before it is in the topic."""
    fake_cluster.create_topic("t")
    with open_cluster(fake_cluster) as cluster:
        with pytest.raises(EncodeError, match=r"^bad row; 1 partition so far: 1,500 records writt"):
            with PartitionProducer(
                cluster, parse_producer_options(settings(fake_cluster))
            ) as producer:
                producer.send("t", 0, values_of(range(1_500)))
                producer.flush()
                raise EncodeError("bad row")


def test_many_partitions_are_summed_up():
    error = ProduceError("gave up", topic="t", partition=0, written=Written.NO)
    error.add_outcomes({("t", p): outcome(1_000, p % 2) for p in range(20)})
    text = str(error)
    assert "; 20 partitions so far: 20,000 records written, 10 not written: t-1 (1,000 r" in text
    assert text.endswith("t-9 (1,000 records written, 1 not written) and 5 more")
    error.add_outcomes({("t", 0): outcome(1)})
    assert str(error) == text


def test_an_error_of_a_producer_that_was_given_nothing_stays_as_it_is():
    error = KafkaTimeoutError("no time")
    error.add_outcomes({})
    assert (str(error), dict(error.partitions), dict(KafkaError.partitions)) == ("no time", {}, {})
