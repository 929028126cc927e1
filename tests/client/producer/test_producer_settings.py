"""Each setting of the producer changes what a broker sees, or when the producer gives up.

Partition choice and new partitions belong to `spark`: tests/spark/write/test_write_settings.py.
Which values are taken, and which contradict each other: tests/config/test_options.py.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparkkafka.client import Deadline, Producer
from sparkkafka.client.cluster import cluster as cluster_module
from sparkkafka.errors import ErrorCode, KafkaTimeoutError, ProduceError, Written
from sparkkafka.protocol.columns.encode import RecordColumns
from sparkkafka.protocol.records.batches import RecordBatch
from sparkkafka.protocol.records.compression import Codec
from sparkkafka.testing.fake.faults import Delay, Drop, RecordedRequest
from tests.client.support import log_values, numbers, open_cluster, settings, values_of, write
from tests.support.options import parse_producer_options
from tests.support.partition_producer import PartitionProducer

SMALL = {"batch_size": 400, "linger_ms": 0}
JITTER = 0.8  # a wait is at least so much of what the setting says


def batches(cluster: Any, topic: str = "t", partition: int = 0) -> list[RecordBatch]:
    return cluster.log(topic, partition).batches()


def gaps_s(requests: list[RecordedRequest]) -> list[float]:
    """Seconds between the arrivals of neighbouring requests."""
    return [after.time_s - before.time_s for before, after in pairwise(requests)]


def sent_bytes(request: RecordedRequest) -> int:
    return sum(len(row.records) for t in request.message.topic_data for row in t.partition_data)


# --- who, and what is promised -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["orders-job", "x"])
def test_client_id_is_in_each_request(fake_cluster, name):
    fake_cluster.create_topic("t")
    write(fake_cluster, "t", 100, client_id=name)
    assert {request.client_id for request in fake_cluster.requests} == {name}
    assert len(fake_cluster.requests_of("Produce")) > 0


# The first batch of a partition has a response even with acks=0: is its leader ready?
@pytest.mark.parametrize(("acks", "wire"), [("0", {1, 0}), ("1", {1}), ("all", {-1})])
def test_acks_goes_over_the_wire(fake_cluster, acks, wire):
    fake_cluster.create_topic("t")
    write(fake_cluster, "t", 300, acks=acks, **SMALL)
    assert {request.message.acks for request in fake_cluster.requests_of("Produce")} == wire
    assert log_values(fake_cluster, "t") == numbers(300)
    # Without acks=all there is no idempotence (Java's rule), so no producer id is asked for.
    assert bool(fake_cluster.requests_of("InitProducerId")) == (acks == "all")


def test_a_leader_that_is_not_ready_loses_nothing_with_acks_0(fake_cluster):
    fake_cluster.create_topic("t")
    fault = fake_cluster.fault(ErrorCode.NOT_LEADER_OR_FOLLOWER, api="Produce", times=2)
    write(fake_cluster, "t", 300, acks=0, **SMALL)
    assert fault.fired == 2
    assert log_values(fake_cluster, "t") == numbers(300)


def test_a_batch_above_max_message_bytes_is_split_with_acks_0(fake_cluster):
    fake_cluster.create_topic("t", configs={"max.message.bytes": "2000"})
    with Producer(settings(fake_cluster, acks=0, linger_ms=0)) as producer:
        producer.send("t", b"small", partition=0)
        producer.flush()
        producer.send_many("t", [b"%d" % number for number in range(1_000)])
    assert sorted(log_values(fake_cluster, "t")) == sorted([b"small", *numbers(1_000)])


def test_a_flush_with_acks_0_while_another_partition_is_new(fake_cluster, caplog):
    fake_cluster.create_topic("t", partitions=2)
    with Producer(settings(fake_cluster, acks=0, linger_ms=0)) as producer:
        producer.send("t", b"0", partition=0)
        producer.flush()
        fake_cluster.fault(Delay(300, before=True), api="Produce")
        later = producer.send("t", b"1", partition=1)
        fake_cluster.wait_for_requests("Produce", 2)
        producer._io_thread.call(producer._io_thread.sender.barrier, Deadline(10_000), "flush")
        assert later.done()
    assert "may have lost records" not in caplog.text


@pytest.mark.parametrize("idempotent", ["true", "false"])
def test_idempotence_numbers_the_records(fake_cluster, idempotent):
    fake_cluster.create_topic("t")
    write(fake_cluster, "t", 300, enable_idempotence=idempotent, **SMALL)
    seen = batches(fake_cluster)
    assert len(seen) > 2
    if idempotent == "true":
        assert {batch.producer_id for batch in seen} != {-1}
        assert [batch.base_sequence for batch in seen] == [batch.base_offset for batch in seen]
    else:
        assert {(batch.producer_id, batch.base_sequence) for batch in seen} == {(-1, -1)}
    assert bool(fake_cluster.requests_of("InitProducerId")) == (idempotent == "true")


# --- tries and waits -----------------------------------------------------------------------------


@pytest.mark.parametrize("retries", [1, 3])
@pytest.mark.parametrize("fault", [ErrorCode.NOT_ENOUGH_REPLICAS, Drop.BEFORE])
def test_retries_counts_the_attempts_after_the_first(fake_cluster, fault, retries):
    fake_cluster.create_topic("t")
    fake_cluster.fault(fault, api="Produce", times=None)
    with pytest.raises(ProduceError, match=rf" retries={retries}"):
        write(fake_cluster, "t", 10, retries=retries)
    assert len(fake_cluster.requests_of("Produce")) == 1 + retries


def test_retries_zero_gives_up_at_once_and_says_so(fake_cluster):
    fake_cluster.create_topic("t")
    fake_cluster.fault(ErrorCode.NOT_ENOUGH_REPLICAS, api="Produce", times=None)
    with pytest.raises(ProduceError, match=r" retries=0"):
        write(fake_cluster, "t", 10, retries=0, enable_idempotence="false")
    assert len(fake_cluster.requests_of("Produce")) == 1


def attempts(cluster: Any, count: int, **config: Any) -> list[RecordedRequest]:
    """The requests of one batch that is refused `count` times, then taken."""
    cluster.clear_requests()
    cluster.fault(ErrorCode.NOT_ENOUGH_REPLICAS, api="Produce", times=count)
    write(cluster, "t", 10, **config)
    requests = cluster.requests_of("Produce")
    assert len(requests) == count + 1
    return requests


def test_retry_backoff_doubles(fake_cluster):
    fake_cluster.create_topic("t")
    config = {"retry_backoff_ms": 100, "retry_backoff_max_ms": 10_000}
    waits = gaps_s(attempts(fake_cluster, 3, **config))
    assert all(wait >= JITTER * 0.1 * 2**n for n, wait in enumerate(waits))


def test_retry_backoff_max_ends_the_doubling(fake_cluster):
    fake_cluster.create_topic("t")
    few = {"retry_backoff_ms": 30, "retry_backoff_max_ms": 30}
    many = {"retry_backoff_ms": 30, "retry_backoff_max_ms": 10_000}
    short = sum(gaps_s(attempts(fake_cluster, 5, **few)))
    long = sum(gaps_s(attempts(fake_cluster, 5, **many)))
    assert short >= JITTER * 5 * 0.03
    assert long >= JITTER * 31 * 0.03
    assert short < long


def test_request_timeout_ends_the_wait_for_one_response(fake_cluster):
    """The batch goes again, over a new connection: a late response would be taken for the next."""
    fake_cluster.create_topic("t")
    fake_cluster.fault(Delay(60_000), api="Produce")
    write(fake_cluster, "t", 10, request_timeout_ms=200)
    first, second = fake_cluster.requests_of("Produce")
    assert first.connection != second.connection
    # How long the broker waits for its replicas; it must answer before.
    assert {first.message.timeout_ms, second.message.timeout_ms} == {180}
    assert log_values(fake_cluster, "t") == numbers(10)


def test_delivery_timeout_ends_retries(fake_cluster):
    fake_cluster.create_topic("t")
    fake_cluster.fault(ErrorCode.NOT_ENOUGH_REPLICAS, api="Produce", times=None)
    with pytest.raises(ProduceError, match=r"delivery\.timeout\.ms=900.*NOT_ENOUGH_REPLICAS") as e:
        write(fake_cluster, "t", 10, delivery_timeout_ms=900, request_timeout_ms=500, linger_ms=0)
    # The last attempt may be unanswered when the time is over.
    assert e.value.written in (Written.NO, Written.UNKNOWN)
    assert log_values(fake_cluster, "t") == []


def test_a_longer_delivery_timeout_outlives_the_same_trouble(fake_cluster):
    fake_cluster.create_topic("t")
    config = {"retry_backoff_ms": 100, "retry_backoff_max_ms": 100, "request_timeout_ms": 100}
    failure_text = {"linger_ms": 0, **config}
    rule = fake_cluster.fault(ErrorCode.NOT_ENOUGH_REPLICAS, api="Produce", times=6)
    with pytest.raises(ProduceError, match=r"delivery\.timeout\.ms=200"):
        write(fake_cluster, "t", 10, delivery_timeout_ms=200, **failure_text)
    assert not rule.spent
    write(fake_cluster, "t", 10, delivery_timeout_ms=60_000, **failure_text)
    assert rule.spent
    assert log_values(fake_cluster, "t") == numbers(10)


@pytest.mark.parametrize("in_flight", [1, 5])
def test_the_time_that_the_callers_rows_take_to_come_does_not_count(fake_cluster, in_flight):
    """A query upstream may stall for minutes between two Arrow batches; responses wait unread."""
    fake_cluster.create_topic("t")
    config = {"delivery_timeout_ms": 1_000, "request_timeout_ms": 800}
    given = settings(
        fake_cluster, max_in_flight_requests_per_connection=in_flight, **SMALL, **config
    )
    with open_cluster(fake_cluster, **config) as cluster:
        with PartitionProducer(cluster, parse_producer_options(given)) as producer:
            producer.send("t", 0, values_of(range(200)))
            time.sleep(1.1)
            producer.send("t", 0, values_of(range(200, 400)))
        assert producer.metrics.retries == 0
    assert log_values(fake_cluster, "t") == numbers(400)


# --- how much goes together ----------------------------------------------------------------------


@pytest.mark.parametrize(("linger_ms", "counts"), [(0, [1, 1, 1]), (20, [2, 1]), (60_000, [3])])
def test_linger_lets_rows_of_later_calls_join_a_batch(fake_cluster, linger_ms, counts):
    """The first row waits for 20 ms at most: it goes with the next call after that."""
    fake_cluster.create_topic("t")
    given = settings(fake_cluster, linger_ms=linger_ms)
    with open_cluster(fake_cluster) as cluster:
        with PartitionProducer(cluster, parse_producer_options(given)) as producer:
            for number in range(3):
                producer.send("t", 0, values_of(range(number, number + 1)))
                if number == 0:
                    time.sleep(0.1)
    assert [batch.record_count for batch in batches(fake_cluster)] == counts


def test_batch_size_is_the_most_that_a_batch_holds(fake_cluster):
    most = {}
    for size in (200, 1_000, 100_000):
        fake_cluster.create_topic(f"t{size}")
        write(fake_cluster, f"t{size}", 2_000, per_send=500, batch_size=size, linger_ms=60_000)
        most[size] = max(batch.size_bytes for batch in batches(fake_cluster, f"t{size}"))
    assert 100 < most[200] <= 200 < most[1_000] <= 1_000 < most[100_000]


def test_batch_size_zero_sends_each_record_alone(fake_cluster):
    fake_cluster.create_topic("t")
    write(fake_cluster, "t", 20, batch_size=0)
    assert [batch.record_count for batch in batches(fake_cluster)] == [1] * 20


def test_requests_never_exceed_max_request_size(fake_cluster_factory):
    cluster = fake_cluster_factory(1)
    cluster.create_topic("t", partitions=4)
    write(
        cluster, "t", 4_000, partitions=4, per_send=1_000, batch_size=100_000, max_request_size=900
    )
    sizes = [
        sum(len(row.records) for t in request.message.topic_data for row in t.partition_data)
        for request in cluster.requests_of("Produce")
    ]
    assert max(sizes) <= 900
    written = [value for p in range(4) for value in log_values(cluster, "t", p)]
    assert sorted(written, key=int) == numbers(4_000)


def test_a_record_above_max_request_size_is_refused_before_it_is_sent(fake_cluster):
    fake_cluster.create_topic("t")
    large = RecordColumns(None, pa.array([b"x" * 200]), None, np.zeros(1, np.int64))
    given = settings(fake_cluster, max_request_size=150)
    with open_cluster(fake_cluster) as cluster:
        producer = PartitionProducer(cluster, parse_producer_options(given))
        with pytest.raises(ProduceError, match=r" max\.request\.size=150") as raised:
            producer.send("t", 0, large)
    assert raised.value.written is Written.NO
    assert fake_cluster.requests_of("Produce") == []


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_requests_in_flight_are_limited(fake_cluster, limit):
    fake_cluster.create_topic("t")
    given = settings(fake_cluster, max_in_flight_requests_per_connection=limit, **SMALL)
    most, handled = 0, 0

    with open_cluster(fake_cluster) as cluster:
        producer = PartitionProducer(cluster, parse_producer_options(given))

        def count(request):
            nonlocal most, handled
            time.sleep(0.01)  # time for the client to send more, if it would
            most = max(most, producer.metrics.requests - handled)
            handled += 1

        fake_cluster.fault(count, api="Produce", times=None)
        producer.send("t", 0, values_of(range(2_000)))
        producer.flush()
    assert most == limit
    assert log_values(fake_cluster, "t") == numbers(2_000)


# --- compression ---------------------------------------------------------------------------------


def texts(count: int) -> RecordColumns:
    """Values that a codec can do something with, more the more it tries."""
    random = np.random.default_rng(7)
    words = [b"%d-%d" % (n, n * n) for n in random.integers(0, 3_000, 12 * count)]
    values = [b" ".join(words[12 * n : 12 * n + 12]) for n in range(count)]
    return RecordColumns(None, pa.array(values, pa.binary()), None, np.zeros(count, np.int64))


def compressed(cluster: Any, topic: str, **config: Any) -> list[RecordBatch]:
    cluster.create_topic(topic)
    with open_cluster(cluster) as client:
        options = parse_producer_options(settings(cluster, **config))
        with PartitionProducer(client, options) as producer:
            producer.send(topic, 0, texts(2_000))
    assert len(log_values(cluster, topic)) == 2_000
    return batches(cluster, topic)


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression_type_is_in_the_batches_and_makes_them_smaller(fake_cluster, codec):
    plain = sum(batch.size_bytes for batch in compressed(fake_cluster, "plain"))
    packed = compressed(fake_cluster, "packed", compression_type=codec)
    assert {batch.codec for batch in packed} == {Codec[codec.upper()]}
    assert (sum(batch.size_bytes for batch in packed) < plain) == (codec != "none")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec", "low", "high"), [("gzip", 1, 9), ("lz4", 1, 12), ("zstd", -50, 19)]
)
def test_compression_level_changes_the_bytes(fake_cluster, codec, low, high):
    size = {}
    for level in (low, high):
        config = {"compression_type": codec, f"compression_{codec}_level": level}
        packed = compressed(fake_cluster, f"level{level}", **config)
        size[level] = sum(batch.size_bytes for batch in packed)
    assert size[high] < size[low]


def test_the_level_of_another_codec_changes_nothing(fake_cluster):
    config = {"compression_type": "gzip", "compression_gzip_level": 9}
    alone = compressed(fake_cluster, "a", **config)
    beside = compressed(fake_cluster, "b", compression_zstd_level=1, **config)
    assert [batch.size_bytes for batch in alone] == [batch.size_bytes for batch in beside]


# --- memory, and waiting for it ------------------------------------------------------------------


@pytest.mark.slow
def test_a_slow_broker_makes_the_caller_wait_not_the_memory_grow(fake_cluster):
    fake_cluster.create_topic("t")
    fake_cluster.fault(Delay(20), api="Produce", times=None)
    limit = 5_000
    given = settings(fake_cluster, buffer_memory=limit, **SMALL)
    most = 0
    with (
        open_cluster(fake_cluster) as cluster,
        PartitionProducer(cluster, parse_producer_options(given)) as producer,
    ):
        for start in range(0, 2_000, 100):
            producer.send("t", 0, values_of(range(start, start + 100)))
            most = max(most, producer.buffered_bytes)
    assert most <= limit
    assert log_values(fake_cluster, "t") == numbers(2_000)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [2_000, 10_000])
def test_buffer_memory_is_what_brokers_have_not_acknowledged(fake_cluster, limit):
    """As the broker sees it: bytes of batches that came, less those that it has answered."""
    fake_cluster.create_topic("t")
    given = settings(
        fake_cluster, buffer_memory=limit, max_in_flight_requests_per_connection=1_000, **SMALL
    )
    accepted_bytes, answered_bytes, most = 0, 0, 0

    def hold(request: RecordedRequest) -> None:
        nonlocal answered_bytes, most
        time.sleep(0.02)  # time for the caller to hand over more, if it could
        most = max(most, accepted_bytes - answered_bytes)
        answered_bytes += sent_bytes(request)

    fake_cluster.fault(hold, api="Produce", times=None)
    with open_cluster(fake_cluster) as cluster:
        with PartitionProducer(cluster, parse_producer_options(given)) as producer:
            for start in range(0, 2_500, 50):
                columns = values_of(range(start, start + 50))
                producer.send("t", 0, columns)
                accepted_bytes += 50 * 11  # with its own fields a record is of 10 or 11 bytes
    # Beyond the limit: the rows of the call that waits for room, and headers of batches.
    assert limit / 2 < most <= 1.6 * limit + 700


def test_max_block_ms_ends_the_wait_for_memory(fake_cluster):
    fake_cluster.create_topic("t")
    fake_cluster.fault(Delay(60_000), api="Produce", times=None)
    given = settings(fake_cluster, buffer_memory=2_000, max_block_ms=300, **SMALL)
    with open_cluster(fake_cluster) as cluster:
        producer = PartitionProducer(cluster, parse_producer_options(given))
        with pytest.raises(KafkaTimeoutError, match=r" max\.block\.ms=300"):
            for start in range(0, 20_000, 100):
                producer.send("t", 0, values_of(range(start, start + 100)))


def test_a_longer_max_block_outlives_the_same_wait(fake_cluster):
    fake_cluster.create_topic("t")
    fake_cluster.fault(Delay(500), api="Produce")
    config = {"buffer_memory": 1_000, "enable_idempotence": "false", **SMALL}
    with pytest.raises(KafkaTimeoutError, match=r" max\.block\.ms=50"):
        write(fake_cluster, "t", 2_000, max_block_ms=50, **config)
    fake_cluster.recreate_topic("t")
    fake_cluster.fault(Delay(500), api="Produce")
    write(fake_cluster, "t", 2_000, max_block_ms=60_000, **config)
    assert log_values(fake_cluster, "t") == numbers(2_000)


# --- metadata ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("age_ms", "again"), [(200, True), (300_000, False)])
def test_metadata_are_asked_for_again_at_their_age(fake_cluster, monkeypatch, age_ms, again):
    monkeypatch.setattr(cluster_module, "MIN_METADATA_AGE_MS", 50)
    fake_cluster.create_topic("t")
    given = settings(fake_cluster, metadata_max_age_ms=age_ms, linger_ms=0)
    with open_cluster(fake_cluster, metadata_max_age_ms=age_ms) as cluster:
        with PartitionProducer(cluster, parse_producer_options(given)) as producer:
            for number in range(10):
                producer.send("t", 0, values_of(range(number, number + 1)))
                time.sleep(0.03)
    asked = fake_cluster.requests_of("Metadata", topic="t")
    assert (len(asked) > 1) == again
    assert all(gap >= age_ms / 1000 for gap in gaps_s(asked))


def test_metadata_that_is_always_too_old_can_be_used_once(fake_cluster):
    fake_cluster.create_topic("t")
    write(fake_cluster, "t", 100, metadata_max_age_ms=0)
    assert log_values(fake_cluster, "t") == numbers(100)
