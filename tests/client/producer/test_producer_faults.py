"""What the producer does when brokers fail: each record once and in order, or a loud error."""

from __future__ import annotations

import random
import struct
import time

import pytest

from sparkkafka.client.producer.producer import Producer
from sparkkafka.errors import (
    DeliveryTimeoutError,
    ErrorCode,
    KafkaError,
    ProduceError,
    Written,
)
from sparkkafka.testing.fake.faults import (
    CutFrame,
    Delay,
    Drop,
    ErrorResponse,
    Garbage,
    Throttle,
    WrongCorrelationId,
)
from tests.client.support import (
    log_values,
    numbers,
    open_cluster,
    read,
    settings,
    values_of,
    write,
)
from tests.support.options import parse_producer_options
from tests.support.partition_producer import PartitionProducer
from tests.support.properties import seeds
from tests.support.waiting import finish

SMALL = {"batch_size": 400, "linger_ms": 0}

RETRIABLE = [
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
]

FINAL = [
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.POLICY_VIOLATION,
    ErrorCode.INVALID_PRODUCER_EPOCH,
]


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("action", [Drop.BEFORE, Drop.AFTER, CutFrame(0), CutFrame(9)])
def test_a_lost_connection_leaves_exactly_one_copy(fake_cluster, action, nth):
    fake_cluster.create_topic("t")
    rule = fake_cluster.fault(action, api="Produce", nth=nth)
    write(fake_cluster, "t", 500, **SMALL)
    assert rule.fired == 1
    assert log_values(fake_cluster, "t") == numbers(500)


def test_connections_that_break_again_and_again(fake_cluster):
    fake_cluster.create_topic("t")
    for nth, action in [(1, Drop.AFTER), (2, Drop.BEFORE), (3, Drop.AFTER), (1, Drop.AFTER)]:
        fake_cluster.fault(action, api="Produce", nth=nth)
    metrics = write(fake_cluster, "t", 1_000, **SMALL)
    assert log_values(fake_cluster, "t") == numbers(1_000)
    assert metrics.records == 1_000
    assert metrics.retries > 0


@pytest.mark.parametrize(
    "action",
    [Garbage(b"HTTP/1.1 400 Bad Request\r\n"), WrongCorrelationId(), Garbage(b"\xff" * 64)],
)
def test_responses_that_are_no_responses_are_errors(fake_cluster, action):
    """A broker that talks nonsense is not asked again: nobody knows what it would do."""
    fake_cluster.create_topic("t")
    fake_cluster.fault(action, api="Produce", times=None)
    with pytest.raises(ProduceError, match=r"127\.0\.0\.1:\d+") as raised:
        write(fake_cluster, "t", 100, **SMALL)
    assert raised.value.written is Written.UNKNOWN
    assert len(fake_cluster.requests_of("Produce")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("code", RETRIABLE, ids=lambda code: code.name)
def test_retriable_errors_are_retried_in_order(fake_cluster, code, nth):
    fake_cluster.create_topic("t")
    fake_cluster.fault(code, api="Produce", nth=nth, times=2)
    write(fake_cluster, "t", 600, **SMALL)
    assert log_values(fake_cluster, "t") == numbers(600)


@pytest.mark.parametrize("code", FINAL, ids=lambda code: code.name)
def test_final_errors_have_the_partition_and_the_brokers_message(fake_cluster, code):
    fake_cluster.create_topic("t")
    fake_cluster.fault(ErrorResponse(code, message="so says the broker"), api="Produce", times=None)
    with pytest.raises(ProduceError) as raised:
        write(fake_cluster, "t", 10)
    error = raised.value
    assert (error.topic, error.partition, error.code) == ("t", 0, code)
    assert error.written is Written.NO
    assert code.name in str(error)
    assert log_values(fake_cluster, "t") == []


REASONS = {"format is too old", "does not take", "a bug in this client", "Some brokers"}


@pytest.mark.parametrize(
    ("code", "codec", "reason"),
    [
        (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd", "does not take"),
        (ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, "lz4", "does not take"),
        (ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, "gzip", "format is too old"),
        (ErrorCode.INVALID_REQUEST, "gzip", "Some brokers"),
        (ErrorCode.INVALID_REQUEST, "none", "a bug in this client"),
    ],
)
def test_a_refused_codec_is_the_only_reason_in_the_message(fake_cluster, code, codec, reason):
    fake_cluster.create_topic("t")
    fake_cluster.fault(ErrorResponse(code), api="Produce", times=None)
    with pytest.raises(ProduceError, match=code.name) as raised:
        write(fake_cluster, "t", 10, compression_type=codec)
    assert {text for text in REASONS if text in str(raised.value)} == {reason}
    if "codec" in str(raised.value):
        assert f"compression.type={codec}" in str(raised.value) or code.name == "INVALID_REQUEST"


def test_an_error_code_that_nobody_knows_keeps_its_number(fake_cluster):
    fake_cluster.create_topic("t")
    fake_cluster.fault(ErrorResponse(9999), api="Produce", times=None)
    with pytest.raises(ProduceError, match="9999"):
        write(fake_cluster, "t", 10)


def test_a_moved_leader_is_found(fake_cluster_factory):
    cluster = fake_cluster_factory(3)
    cluster.create_topic("t", partitions=3)

    def move(request):
        leader = cluster.leader("t", 0)
        cluster.move_leader("t", 0, (leader + 1) % 3)

    cluster.fault(move, api="Produce", topic="t", partition=0, nth=2)
    cluster.fault(move, api="Produce", topic="t", partition=0, nth=4)
    write(cluster, "t", 3_000, partitions=3, **SMALL)
    written = [value for p in range(3) for value in log_values(cluster, "t", p)]
    assert sorted(written, key=int) == numbers(3_000)
    for partition in range(3):
        ours = log_values(cluster, "t", partition)
        assert ours == sorted(ours, key=int)


def test_a_broker_that_goes_away_and_comes_back(fake_cluster_factory):
    cluster = fake_cluster_factory(3)
    cluster.create_topic("t", partitions=6)
    fired = []

    def kill(request):
        if not fired:
            fired.append(request.broker)
            victim = (request.broker + 1) % 3
            cluster.broker_down(victim)
            cluster.broker_up(victim)

    cluster.fault(kill, api="Produce", nth=5)
    write(cluster, "t", 6_000, partitions=6, **SMALL)
    assert fired
    written = [value for p in range(6) for value in log_values(cluster, "t", p)]
    assert sorted(written, key=int) == numbers(6_000)


def test_two_of_three_bootstrap_servers_are_dead(fake_cluster_factory):
    cluster = fake_cluster_factory(1)
    cluster.create_topic("t")
    dead = "127.0.0.1:1,127.0.0.1:2"
    write(f"{dead},{cluster.bootstrap_servers}", "t", 100)
    assert read(f"{dead},{cluster.bootstrap_servers}", "t") == numbers(100)


def test_a_batch_that_is_too_large_goes_in_parts(fake_cluster_factory):
    cluster = fake_cluster_factory(1)
    cluster.create_topic("t", configs={"max.message.bytes": "300"})
    write(cluster, "t", 1_000, batch_size=4_000)
    assert log_values(cluster, "t") == numbers(1_000)
    assert max(batch.size_bytes for batch in cluster.log("t", 0).batches()) <= 300


def test_a_single_record_that_is_too_large_for_the_topic(fake_cluster):
    fake_cluster.create_topic("t", configs={"max.message.bytes": "50"})
    with pytest.raises(ProduceError, match=r"MESSAGE_TOO_LARGE.*max\.message\.bytes"):
        write(fake_cluster, "t", 1)


def test_a_lost_producer_state_goes_on_under_a_new_id(fake_cluster):
    """Old brokers forget a producer whose records are deleted (UNKNOWN_PRODUCER_ID)."""
    fake_cluster.create_topic("t")
    fake_cluster.fault(ErrorCode.UNKNOWN_PRODUCER_ID, api="Produce", nth=3)
    write(fake_cluster, "t", 500, max_in_flight_requests_per_connection=1, **SMALL)
    assert log_values(fake_cluster, "t") == numbers(500)
    assert len(fake_cluster.requests_of("InitProducerId")) == 2


def test_acknowledged_records_that_vanish_are_a_loud_error(fake_cluster):
    """The head of the line refused as out of order: what came before it is gone from the log."""
    fake_cluster.create_topic("t")
    fake_cluster.fault(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, api="Produce", nth=3, times=None)
    with pytest.raises(ProduceError, match="lost records that it had acknowledged"):
        write(fake_cluster, "t", 500, max_in_flight_requests_per_connection=1, **SMALL)


def test_a_duplicate_sequence_is_success(fake_cluster):
    fake_cluster.create_topic("t")
    fake_cluster.fault(
        ErrorResponse(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, applied=True), api="Produce", nth=2
    )
    write(fake_cluster, "t", 300, **SMALL)
    assert log_values(fake_cluster, "t") == numbers(300)


def test_a_broker_that_never_answers_leaves_the_outcome_open(fake_cluster):
    fake_cluster.create_topic("t")
    fake_cluster.fault(Delay(60_000), api="Produce", times=None)
    text = r"delivery\.timeout\.ms=900.*no response within 0\.4 s \(request\.timeout\.ms\)"
    with pytest.raises(ProduceError, match=text) as raised:
        write(fake_cluster, "t", 10, delivery_timeout_ms=900, request_timeout_ms=400, linger_ms=0)
    assert raised.value.written is Written.UNKNOWN


def test_a_request_that_the_broker_finds_too_large(fake_cluster):
    """A broker closes the connection, without a response."""
    fake_cluster.create_topic("t")
    given = settings(fake_cluster, delivery_timeout_ms=900, request_timeout_ms=800, linger_ms=0)
    text = r" 200\d+ bytes of records.*socket\.request\.max\.bytes.*max\.request\.size=1048576"
    with Producer(given) as producer:
        producer.send("t", b"small").result()
        fake_cluster.fault(Drop.BEFORE, api="Produce", times=None)
        with pytest.raises(ProduceError, match=text):
            producer.send("t", bytes(200_000)).result()


def test_a_producer_that_failed_stays_failed(fake_cluster):
    fake_cluster.create_topic("t")
    fake_cluster.fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED, api="Produce")
    with open_cluster(fake_cluster) as cluster:
        producer = PartitionProducer(cluster, parse_producer_options(settings(fake_cluster)))
        producer.send("t", 0, values_of(range(10)))
        with pytest.raises(ProduceError) as first:
            producer.flush()
        with pytest.raises(ProduceError) as again:
            producer.send("t", 0, values_of(range(10, 20)))
        assert again.value is first.value
    assert log_values(fake_cluster, "t") == []


def test_throttling_is_obeyed(fake_cluster):
    fake_cluster.create_topic("t")
    fake_cluster.fault(Throttle(700), api="Produce")
    started = time.monotonic()
    # A request that was sent earlier would time out, since the broker reads nothing meanwhile.
    write(fake_cluster, "t", 500, request_timeout_ms=300, **SMALL)
    assert time.monotonic() - started >= 0.65
    assert log_values(fake_cluster, "t") == numbers(500)


def test_one_producer_id_a_task(fake_cluster_factory):
    cluster = fake_cluster_factory(3)
    cluster.create_topic("t", partitions=6)
    write(cluster, "t", 3_000, partitions=6, **SMALL)
    assert len(cluster.requests_of("InitProducerId")) == 1


@pytest.mark.parametrize("release", ["2.1", "2.8", "3.9", "4.0"])
@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_each_broker_release(fake_cluster_factory, release, codec):
    cluster = fake_cluster_factory(2, kafka_version=release)
    cluster.create_topic("t", partitions=2)
    write(cluster, "t", 500, partitions=2, compression_type=codec)
    got = [value for p in range(2) for value in read(cluster, "t", partition=p)]
    assert sorted(got, key=int) == numbers(500)


def test_zstd_for_a_broker_that_does_not_know_it(fake_cluster_factory):
    cluster = fake_cluster_factory(1, api_versions={"Produce": (0, 6)})
    cluster.create_topic("t")
    with pytest.raises(KafkaError, match="zstd"):
        write(cluster, "t", 10, compression_type="zstd")


def test_init_producer_id_refused(fake_cluster):
    fake_cluster.create_topic("t")
    fake_cluster.fault(
        ErrorResponse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, top_level=True),
        api="InitProducerId",
        times=None,
    )
    with pytest.raises(ProduceError, match="CLUSTER_AUTHORIZATION_FAILED") as raised:
        write(fake_cluster, "t", 10)
    assert raised.value.written is Written.NO


def test_no_producer_id_within_the_time(fake_cluster):
    fake_cluster.create_topic("t")
    fake_cluster.fault(
        ErrorResponse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, top_level=True),
        api="InitProducerId",
        times=None,
    )
    with pytest.raises(DeliveryTimeoutError, match="InitProducerId"):
        limits = {"delivery_timeout_ms": 800, "request_timeout_ms": 500, "linger_ms": 0}
        finish(lambda: write(fake_cluster, "t", 10, **limits), seconds=30)


@pytest.mark.parametrize("acks", ["1", "all"])
def test_order_survives_a_leader_that_moves_while_another_partition_notices(
    fake_cluster_factory, acks
):
    """p0's batch waits at the old leader; p1's response makes the client look for leaders anew."""
    cluster = fake_cluster_factory(2)
    cluster.create_topic("t", partitions=2)
    old, new = cluster.leader("t", 0), cluster.leader("t", 1)

    def move(request):
        cluster.move_leader("t", 0, new)
        return Delay(300, before=True)

    given = settings(cluster, acks=acks, max_in_flight_requests_per_connection=1, linger_ms=0)
    with open_cluster(cluster) as client:
        with PartitionProducer(client, parse_producer_options(given)) as producer:
            for partition in (0, 1):
                producer.send("t", partition, values_of(range(1)))
            producer.flush()
            cluster.fault(move, api="Produce", topic="t", partition=0, broker=old)
            cluster.fault(ErrorCode.NOT_LEADER_OR_FOLLOWER, api="Produce", topic="t", partition=1)
            for number in range(1, 10):
                producer.send("t", 0, values_of(range(number, number + 1)))
                producer.send("t", 1, values_of(range(number, number + 1)))
                time.sleep(0.01)
    assert log_values(cluster, "t", 0) == numbers(10)
    assert log_values(cluster, "t", 1) == numbers(10)


def test_several_partitions_share_a_request(fake_cluster_factory):
    cluster = fake_cluster_factory(1)
    cluster.create_topic("t", partitions=8)
    write(cluster, "t", 800, partitions=8, per_send=100)
    counts = [
        sum(len(t.partition_data) for t in request.message.topic_data)
        for request in cluster.requests_of("Produce")
    ]
    assert max(counts) > 1


def test_unknown_topic_is_an_error_soon(fake_cluster):
    with pytest.raises(ProduceError, match="nowhere"):
        finish(lambda: write(fake_cluster, "nowhere", 10, max_block_ms=1_000), seconds=30)


def test_partition_that_does_not_exist(fake_cluster, monkeypatch):
    monkeypatch.setattr("sparkkafka.client.cluster.topic_lookup.UNKNOWN_TOPIC_GRACE_MS", 200)
    fake_cluster.create_topic("t", partitions=2)
    with pytest.raises(
        ProduceError, match="partition 2 of topic t does not exist: it has partitions 0 to 1"
    ):
        write(fake_cluster, "t", 500, partitions=3)


def test_a_batch_that_is_applied_and_refused_twice_stays_known_to_the_broker(fake_cluster):
    """Were new batches sent meanwhile, the broker, which remembers five, would forget it."""
    fake_cluster.create_topic("t")
    timed_out = ErrorResponse(ErrorCode.REQUEST_TIMED_OUT, applied=True)
    fake_cluster.fault(timed_out, api="Produce", nth=3)
    fake_cluster.fault(timed_out, api="Produce", nth=7)
    fake_cluster.fault(timed_out, api="Produce", nth=8)
    write(fake_cluster, "t", 2_000, **SMALL)
    assert log_values(fake_cluster, "t") == numbers(2_000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(2, 12))
def test_random_faults_over_partitions_and_brokers(fake_cluster_factory, seed):
    """Whatever goes wrong, each partition holds its records once and in order."""
    chance = random.Random(seed)
    cluster = fake_cluster_factory(3)
    cluster.create_topic("t", partitions=5)

    def misfortune(request):
        dice = chance.random()
        if dice < 0.04:
            cluster.move_leader("t", chance.randrange(5), chance.randrange(3))
        if dice < 0.70:
            return None
        return chance.choice(
            [
                Drop.BEFORE,
                Drop.AFTER,
                CutFrame(chance.randrange(40)),
                Delay(chance.randrange(30)),
                ErrorResponse(ErrorCode.NOT_ENOUGH_REPLICAS),
                ErrorResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER),
                ErrorResponse(ErrorCode.REQUEST_TIMED_OUT, applied=True),
                ErrorResponse(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, applied=True),
            ]
        )

    cluster.fault(misfortune, api="Produce", times=None)
    write(cluster, "t", 4_000, partitions=5, per_send=40, **SMALL)
    for partition in range(5):
        expected = [b"%d" % n for n in range(4_000) if (n // 40) % 5 == partition]
        assert log_values(cluster, "t", partition) == expected


def test_half_a_response_of_one_broker_does_not_hold_up_the_others(fake_cluster):
    fake_cluster.create_topic("t", partitions=3)
    slow = fake_cluster.leader("t", 0)
    half = struct.pack(">i", 100) + bytes(10)
    fake_cluster.fault(Garbage(half, close=False), api="Produce", broker=slow)
    given = settings(fake_cluster, request_timeout_ms=1_500, delivery_timeout_ms=20_000)
    with Producer(given) as producer:
        first = producer.send("t", "first", partition=0)
        while not fake_cluster.requests_of("Produce"):
            time.sleep(0.005)
        others = [producer.send("t", "other", partition=number) for number in (1, 2)]
        for other in others:
            other.result(timeout_s=10)
        assert not first.done()  # once the broker's time is over it is sent again
        assert first.result(timeout_s=20).offset == 0
    assert log_values(fake_cluster, "t", 0) == [b"first"]
