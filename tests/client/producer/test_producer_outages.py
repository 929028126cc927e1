"""All brokers are away for longer than max.block.ms: what is known is used, and delivery.timeout.ms
is the only end. (max.block.ms is for what is not known yet, and for a full buffer.)"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.cluster import cluster as cluster_module
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.producer import record_accumulator, sender
from sparkkafka.client.producer.producer import Producer
from sparkkafka.client.producer.transactions import SingleTransaction, end_transactions
from sparkkafka.errors import (
    DeliveryTimeoutError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    ProduceError,
    UnknownTopicError,
    Written,
)
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Delay, Drop, ErrorResponse
from tests.client.support import log_values, numbers, open_cluster, read, settings, values_of
from tests.support.options import parse_client_options, parse_producer_options
from tests.support.partition_producer import PartitionProducer
from tests.support.waiting import wait_until

WAIT_S = 20
AWAY_S = 0.9
SHORT = {"max_block_ms": 700, "request_timeout_ms": 200, "delivery_timeout_ms": 15_000}
"""So that an outage of AWAY_S is longer than each setting that must not end a send."""


@pytest.fixture
def fake(fake_cluster_factory: Any) -> FakeCluster:
    cluster: FakeCluster = fake_cluster_factory(2)
    cluster.create_topic("t", partitions=2)
    return cluster


@contextlib.contextmanager
def opened(cluster: Any, **config: Any) -> Iterator[Producer]:
    producer = Producer(settings(cluster, **SHORT, **config))
    try:
        yield producer
    finally:
        with contextlib.suppress(KafkaError):
            producer.close(timeout_s=1)


def down(fake: FakeCluster) -> None:
    for broker in fake.broker_ids:
        fake.broker_down(broker)


def up(fake: FakeCluster) -> None:
    for broker in fake.broker_ids:
        fake.broker_up(broker)


@contextlib.contextmanager
def away(fake: FakeCluster) -> Iterator[None]:
    """All brokers are away, and come back by themselves while the block still runs."""
    down(fake)
    timer = threading.Timer(AWAY_S, up, [fake])
    timer.start()
    try:
        yield
    finally:
        timer.join()


def written(fake: FakeCluster) -> list[Any]:
    return sorted((value for p in (0, 1) for value in log_values(fake, "t", p)), key=int)


def test_records_sent_one_by_one_in_an_outage_share_batches(
    fake_cluster_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were one batch each: thousands of requests after an outage of a minute."""
    monkeypatch.setattr(record_accumulator, "JOIN_S", 3600.0)
    fake = fake_cluster_factory(1)
    fake.create_topic("t", partitions=1)
    with Producer(settings(fake, linger_ms=0)) as producer:
        producer.send("t", b"0").result()
        down(fake)
        for number in range(1, 300):
            producer.send("t", b"%d" % number)
            while producer._buffer.open:  # until the thread that sends has it
                time.sleep(0.001)
        fake.clear_requests()
        up(fake)
        producer.flush()
        assert len(fake.requests_of("Produce")) <= 3
    assert log_values(fake, "t", 0) == [b"%d" % number for number in range(300)]


@pytest.mark.parametrize("max_age_ms", [1, 300_000])
def test_records_sent_while_all_brokers_are_away_are_delivered(
    fake: FakeCluster, max_age_ms: int
) -> None:
    """The first ones lose the connection; those behind them once found the topic "not told"."""
    with opened(fake, metadata_max_age_ms=max_age_ms) as producer:
        handles = [producer.send("t", b"0")]
        handles[0].result(WAIT_S)
        number = 1
        for _ in range(2):
            down(fake)
            until_s = time.monotonic() + AWAY_S
            while time.monotonic() < until_s:
                handles.append(producer.send("t", b"%d" % number))
                number += 1
                time.sleep(0.01)
            up(fake)
        assert producer.partitions_for("t") == [0, 1]
        assert [handle.exception(WAIT_S) for handle in handles] == [None] * number
    assert written(fake) == numbers(number)


def test_their_end_is_the_delivery_timeout_and_then_nothing_spins(fake: FakeCluster) -> None:
    with opened(fake) as producer:
        producer.send("t", b"0").result(WAIT_S)
    given = settings(fake, **SHORT | {"delivery_timeout_ms": 700, "linger_ms": 0})
    producer = Producer(given)
    try:
        producer.send("t", b"1").result(WAIT_S)
        down(fake)
        began_s = time.monotonic()
        error = producer.send("t", b"2").exception(WAIT_S)
        assert isinstance(error, ProduceError)
        assert "delivery.timeout.ms=700" in str(error)
        assert "Connection refused" in str(error)  # why
        assert time.monotonic() - began_s >= 0.7
        turns = []
        turn = producer._io_thread._run_once
        producer._io_thread._run_once = lambda: (turns.append(1), turn())  # type: ignore[method-assign]
        time.sleep(0.5)
        assert len(turns) < 50
    finally:
        up(fake)
        with contextlib.suppress(KafkaError):
            producer.close(timeout_s=1)


@pytest.mark.parametrize("is_known", [True, False])
def test_each_record_fails_at_its_own_delivery_timeout(fake: FakeCluster, is_known: bool) -> None:
    """Attempts to get metadata delayed it, and their time did not even count: 3 s became 9 s."""
    lives_s: list[float] = []
    limit_s = 1.5
    given = settings(fake, delivery_timeout_ms=1500, request_timeout_ms=1400, linger_ms=0)
    producer = Producer(given)
    try:
        if is_known:
            for partition in (0, 1):
                producer.send("t", b"0", partition=partition).result(WAIT_S)
        down(fake)
        handles = []
        until_s = time.monotonic() + 1.5 * limit_s
        while (sent_s := time.monotonic()) < until_s:
            handles.append(producer.send("t", b"1"))
            handles[-1].add_callback(lambda _, at_s=sent_s: lives_s.append(time.monotonic() - at_s))
            time.sleep(0.05)
        errors = [handle.exception(WAIT_S) for handle in handles]
        assert all(isinstance(error, KafkaTimeoutError) and error.retriable for error in errors)
        assert all(isinstance(error, DeliveryTimeoutError) for error in errors) == is_known
        assert "Connection refused" in str(errors[-1])
        assert max(lives_s) < 2 * limit_s
    finally:
        with contextlib.suppress(KafkaError):
            producer.close(timeout_s=1)


def test_an_attempt_to_get_metadata_ends_when_the_next_batch_expires(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that accept connections and never answer."""
    attempts_ms: list[float] = []
    request_metadata = Cluster.request_metadata

    def noted(self: Cluster, names: Any, deadline: Deadline, **once: bool) -> dict[str, int]:
        attempts_ms.append(deadline.total_ms)
        return request_metadata(self, names, deadline, **once)

    given = settings(fake, delivery_timeout_ms=2_500, request_timeout_ms=2_500, linger_ms=0)
    with Producer(given) as producer:
        producer.send("t", b"0", partition=0).result(WAIT_S)
        monkeypatch.setattr(Cluster, "request_metadata", noted)
        fake.fault(Drop.BEFORE, api="Produce")
        fault = fake.fault(Delay(6_000, before=True), api="Metadata", times=None)
        error = producer.send("t", b"1", partition=0).exception(WAIT_S)
        assert isinstance(error, DeliveryTimeoutError)
        assert error.written is Written.UNKNOWN
        assert fault.fired
        assert attempts_ms[0] < 2_500
        fake.clear_faults()


def test_a_slow_broker_is_reached_while_batches_expire_one_after_another(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that ends with the next batch would always be too short for it."""
    given = settings(fake, delivery_timeout_ms=600, request_timeout_ms=600, linger_ms=0)
    monkeypatch.setattr(sender, "MIN_ATTEMPT_MS", 100)
    with contextlib.suppress(KafkaError), Producer(given) as producer:
        producer.send("t", b"0", partition=0).result(WAIT_S)
        down(fake)
        until_s = time.monotonic() + WAIT_S
        fake.fault(Delay(400, before=True), api="ApiVersions", times=None)
        handles = [producer.send("t", b"1", partition=0)]
        is_up = False
        while time.monotonic() < until_s:
            handles.append(producer.send("t", b"1", partition=0))
            time.sleep(0.02)
            if not is_up and handles[0].done():
                up(fake)
                is_up = True
            if any(handle.done() and handle.exception() is None for handle in handles):
                break
        else:
            pytest.fail("no batch was delivered")


def test_a_topic_that_was_never_reported_still_ends_at_max_block_ms(fake: FakeCluster) -> None:
    with opened(fake) as producer:
        producer.send("t", b"0").result(WAIT_S)
        down(fake)
        error = producer.send("other", b"1").exception(WAIT_S)
        assert "max.block.ms" in str(error)
        up(fake)
        assert producer.send("t", b"1").exception(WAIT_S) is None


def test_a_misspelt_topic_at_max_block_ms(fake: FakeCluster) -> None:
    with opened(fake) as producer:
        error = producer.send("topics", b"1").exception(WAIT_S)
        assert isinstance(error, KafkaTimeoutError)
        assert "Check its name, or create the topic first" in str(error)


def test_a_topic_that_brokers_say_is_gone_is_still_an_error(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkkafka.client.cluster.cluster.KNOWN_TOPIC_GRACE_MS", 100)
    with opened(fake) as producer:
        producer.send("t", b"0").result(WAIT_S)
        with Admin(settings(fake)) as admin:
            admin.delete_topics(["t"]).all()
        with pytest.raises((ProduceError, UnknownTopicError)) as raised:
            producer.send("t", b"1").result(WAIT_S)
        assert raised.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(UnknownTopicError):
            producer.partitions_for("t")


def test_partitions_for_names_the_brokers_that_do_not_answer(fake: FakeCluster) -> None:
    fake.fault(Delay(600_000, before=True), api="Metadata", times=None)
    with opened(fake) as producer:
        with pytest.raises(KafkaTimeoutError, match=r"last failure: .*127\.0\.0\.1:\d+"):
            producer.partitions_for("t")


def test_a_topic_that_is_gone_when_its_partitions_are_chosen_fails_only_its_own_records(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkkafka.client.cluster.cluster.KNOWN_TOPIC_GRACE_MS", 0)
    fake.create_topic("gone")
    is_written, is_queued = threading.Event(), threading.Event()

    def wait(_: object) -> None:
        is_written.set()
        is_queued.wait(WAIT_S)

    with opened(fake) as producer:
        producer.send("gone", b"0").add_callback(wait)
        assert is_written.wait(WAIT_S)
        fake.delete_topic("gone")
        # The first series names an unknown partition, for which the metadata is requested again.
        lost = [producer.send_many("gone", [b""], partition=number) for number in (1, 0)]
        other = producer.send("t", b"1")
        is_queued.set()
        for delivery in lost:
            with pytest.raises((ProduceError, UnknownTopicError)) as raised:
                delivery.result(WAIT_S)
            assert raised.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        other.result(WAIT_S)


def test_a_topic_recreated_with_fewer_partitions_is_looked_up_before_records_go_there(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkkafka.client.cluster.topic_lookup.UNKNOWN_TOPIC_GRACE_MS", 200)
    with opened(fake, linger_ms=0) as producer:
        producer.send("t", b"0", partition=1).result(WAIT_S)
        with Admin(settings(fake)) as admin:
            admin.delete_topics(["t"]).all()
            fake.create_topic("t", partitions=1)
        error = producer.send("t", b"1", partition=1).exception(WAIT_S)
        assert "topic t: partition 1 does not exist" in str(error) or "0 to 0" in str(error)
        handles = [producer.send("t", b"%d" % number) for number in range(50)]
        assert [handle.exception(WAIT_S) for handle in handles] == [None] * 50


def test_metadata_that_is_only_too_old_is_used_while_nobody_tells_newer(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "MIN_METADATA_AGE_MS", 50)
    with opened(fake, metadata_max_age_ms=1) as producer:
        producer.send("t", b"0").result(WAIT_S)
        fault = fake.fault(Drop.BEFORE, api="Metadata", times=None)
        time.sleep(0.1)
        handles = [producer.send("t", b"%d" % number) for number in range(1, 20)]
        assert [handle.exception(WAIT_S) for handle in handles] == [None] * 19
        assert fault.fired
    assert written(fake) == numbers(20)


def test_a_broker_that_does_not_know_yet_does_not_make_a_topic_unknown(fake: FakeCluster) -> None:
    """LEADER_NOT_AVAILABLE of the topic, as a broker says that has just been started."""
    with opened(fake, linger_ms=0) as producer:
        producer.send("t", b"0").result(WAIT_S)
        down(fake)
        fault = fake.fault(ErrorCode.LEADER_NOT_AVAILABLE, api="Metadata", topic="t", times=40)
        # The connection may be found closed before a request is lost with it: then nothing but the
        # leader's refusal makes the producer ask for metadata.
        fake.fault(ErrorCode.NOT_LEADER_OR_FOLLOWER, api="Produce")
        up(fake)
        handles = []
        for number in range(1, 60):
            handles.append(producer.send("t", b"%d" % number))
            time.sleep(0.015)
        assert [handle.exception(WAIT_S) for handle in handles] == [None] * 59
        assert fault.fired == 40
    assert written(fake) == numbers(60)


def test_a_producer_id_is_asked_for_until_the_delivery_timeout(fake: FakeCluster) -> None:
    until_s = time.monotonic() + AWAY_S
    busy = ErrorResponse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, top_level=True)
    fake.fault(
        lambda _: busy if time.monotonic() < until_s else None, api="InitProducerId", times=None
    )
    given = settings(fake, **SHORT, linger_ms=0)
    with (
        open_cluster(fake) as cluster,
        PartitionProducer(cluster, parse_producer_options(given)) as sink,
    ):
        sink.send("t", 0, values_of(range(10)))
        sink.flush()
    assert written(fake) == numbers(10)


@pytest.mark.parametrize("max_age_ms", [1, 300_000])
def test_a_spark_task_goes_on(fake: FakeCluster, max_age_ms: int) -> None:
    given = settings(fake, **SHORT, linger_ms=0, metadata_max_age_ms=max_age_ms)
    with (
        open_cluster(fake, request_timeout_ms=200, metadata_max_age_ms=max_age_ms) as cluster,
        PartitionProducer(cluster, parse_producer_options(given)) as sink,
    ):
        sink.send("t", 0, values_of(range(10)))
        sink.flush()
        with away(fake):
            sink.send("t", 0, values_of(range(10, 20)))
            sink.send("t", 1, values_of(range(20, 30)))
            sink.flush()
    assert written(fake) == numbers(30)


@pytest.mark.parametrize("when", ["before it begins", "before another partition"])
def test_a_spark_task_in_a_transaction_goes_on(fake: FakeCluster, when: str) -> None:
    given = settings(fake, **SHORT, linger_ms=0)
    options = parse_client_options(given)
    with (
        SingleTransaction(options, "x", 60_000, 200) as transaction,
        open_cluster(fake, request_timeout_ms=200) as cluster,
        PartitionProducer(cluster, parse_producer_options(given), transaction) as sink,
    ):
        outage = contextlib.ExitStack()
        if when == "before it begins":
            cluster.topics(["t"])  # as the task's routing does
            outage.enter_context(away(fake))
        sink.send("t", 0, values_of(range(10)))
        sink.flush()
        if when != "before it begins":
            outage.enter_context(away(fake))
        sink.send("t", 0, values_of(range(10, 20)))
        sink.send("t", 1, values_of(range(20, 30)))
        sink.flush()
        outage.close()
        assert transaction.identity is not None
        ended = end_transactions(
            cluster, [transaction.identity], commit=True, deadline=cluster.deadline()
        )
        assert ended == {"x": None}
    seen = [value for p in (0, 1) for value in read(fake, "t", partition=p)]
    assert sorted(seen, key=int) == numbers(30)


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_goes_on(fake_cluster_factory: Any, version: int) -> None:
    """Partitions are added to it, and records written, once the brokers are back."""
    fake = fake_cluster_factory(2, transaction_version=version)
    fake.create_topic("t", partitions=2)
    with opened(fake, transactional_id="tid", linger_ms=0) as producer:
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.send("t", b"0", partition=0).result(WAIT_S)
        with away(fake):
            handles = [producer.send("t", b"%d" % n, partition=n % 2) for n in range(1, 20)]
            producer.commit_transaction(WAIT_S)
        assert [handle.exception(WAIT_S) for handle in handles] == [None] * 19
        producer.begin_transaction()
        handles = [producer.send("t", b"%d" % n, partition=n % 2) for n in range(20, 30)]
        with away(fake):
            producer.commit_transaction(WAIT_S)
    seen = [
        value
        for p in (0, 1)
        for value in read(fake, "t", partition=p, isolation_level="read_committed")
    ]
    assert sorted(seen, key=int) == numbers(30)


def sent_records(producer: Producer) -> float:
    """Records in requests that the producer has sent; those of a retry count again."""
    return producer.metrics()["producer-metrics"]["record-send-total"]


@pytest.mark.parametrize("owned", [True, False], ids=["Producer", "PartitionProducer"])
@pytest.mark.parametrize("known", [1, 2])
def test_a_broker_that_knows_only_the_last_of_several_batches(
    fake: FakeCluster, owned: bool, known: int
) -> None:
    """After `kill -9` a real broker has only the last batch of each producer in its snapshot: it
    refused the repetition of the others as out of order, and they were "possibly written"."""
    log = fake.log("t", 0)
    forgotten: list[int] = []
    all_sent = threading.Event()

    def lose(_: Any) -> Any:
        """Three batches are on their way at once and are written, and nobody is sure of it."""
        if log.end_offset == 1:
            all_sent.wait(WAIT_S)
        return ErrorResponse(ErrorCode.REQUEST_TIMED_OUT, applied=True)

    def forget(_: Any) -> None:
        (state,) = log.producers.values()
        forgotten.append(len(state.batches) - known)
        while len(state.batches) > known:
            state.batches.popleft()

    fake.fault(lose, api="Produce", nth=2, times=3)
    fake.fault(forget, api="Produce", nth=2)  # of those that the rule before leaves
    given = settings(fake, linger_ms=0, batch_size=100)
    if owned:
        with Producer(given) as producer:
            handles = [producer.send("t", b"0", partition=0)]
            handles[0].result(WAIT_S)
            for number in range(1, 4):
                handles.append(producer.send("t", b"%d" % number, partition=0))
                wait_until(lambda: sent_records(producer) == len(handles))
            all_sent.set()
            assert [handle.exception(WAIT_S) for handle in handles] == [None] * 4
            assert producer.send("t", b"4", partition=0).result(WAIT_S).offset == 4
    else:
        with (
            open_cluster(fake) as cluster,
            PartitionProducer(cluster, parse_producer_options(given)) as sink,
        ):
            sink.send("t", 0, values_of(range(1)))
            sink.flush()
            for number in range(1, 4):
                sink.send("t", 0, values_of(range(number, number + 1)))
                sink.close_batches()
                sink._sender.step(0.0)
            all_sent.set()
            sink.flush()
            sink.send("t", 0, values_of(range(4, 5)))
    assert forgotten == [4 - known]
    assert log_values(fake, "t", 0) == numbers(5)


@pytest.mark.parametrize("known", [1, 2, 3])
def test_a_broker_that_knows_only_the_last_batch_behind_one_that_expired(
    fake: FakeCluster, known: int
) -> None:
    """Batches 1 to 3 are written, all responses are lost, 1 expires, and the broker comes back with
    the state of its last batches only: 2 must not be written again."""
    log = fake.log("t", 0)
    calls: list[float] = []
    is_back = threading.Event()

    def lose(_: Any) -> Any:
        calls.append(time.monotonic())
        if len(calls) == 1:
            time.sleep(1.1)
        if is_back.is_set():
            return None
        return ErrorResponse(ErrorCode.REQUEST_TIMED_OUT, applied=len(calls) <= 3)

    given = settings(fake, linger_ms=0, delivery_timeout_ms=2_500, request_timeout_ms=2_000)
    with Producer(given) as producer:
        producer.send("t", b"0", partition=0).result(WAIT_S)
        fake.fault(lose, api="Produce", times=10_000)
        handles = [producer.send("t", b"1", partition=0)]
        time.sleep(0.8)
        for value in (b"2", b"3"):
            handles.append(producer.send("t", value, partition=0))
            time.sleep(0.05)
        expired = handles[0].exception(WAIT_S)
        (state,) = log.producers.values()
        while len(state.batches) > known:
            state.batches.popleft()
        is_back.set()
        errors = [handle.exception(WAIT_S) for handle in handles[1:]]
        with contextlib.suppress(ProduceError):
            producer.flush(WAIT_S)
    assert isinstance(expired, ProduceError)
    assert expired.written is Written.UNKNOWN
    assert log_values(fake, "t", 0) == numbers(4)
    assert [error and error.written for error in errors] in (
        [None, None],
        [Written.UNKNOWN, None],
        [Written.UNKNOWN, Written.UNKNOWN],
    )


def test_batches_that_no_broker_knows_any_more_are_reported_as_such(fake: FakeCluster) -> None:
    """Nothing tells whether they are written: that is an error, and none is sent twice."""
    log = fake.log("t", 0)

    def lose(_: Any) -> Any:
        if log.end_offset == 1:
            time.sleep(0.3)
        return ErrorResponse(ErrorCode.REQUEST_TIMED_OUT, applied=True)

    fake.fault(lose, api="Produce", nth=2, times=3)
    fake.fault(lambda _: next(iter(log.producers.values())).batches.clear(), api="Produce", nth=2)
    with Producer(settings(fake, linger_ms=0)) as producer:
        producer.send("t", b"0", partition=0).result(WAIT_S)
        handles = []
        for number in range(1, 4):
            handles.append(producer.send("t", b"%d" % number, partition=0))
            time.sleep(0.05)
        for handle in handles:
            error = handle.exception(WAIT_S)
            assert isinstance(error, ProduceError)
            assert (error.code, error.written) == (
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                Written.UNKNOWN,
            )
        producer.send("t", b"4", partition=0).result(WAIT_S)
    assert log_values(fake, "t", 0) == numbers(5)


REFUSALS = [
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # nothing is written
    ErrorCode.NOT_LEADER_OR_FOLLOWER,  # perhaps it is
    ErrorCode.REQUEST_TIMED_OUT,
]


def overtake(
    fake: FakeCluster, code: ErrorCode, *, breaks: bool, recreated: bool
) -> threading.Event:
    """Let the leader lose the producer's state once batches 3 to 5 are on their way, which the
    event that is returned tells it: it refuses the first and takes the others as a new producer's.
    The response to the second, or third, is lost."""
    all_sent = threading.Event()

    def refuse(_: Any) -> Any:
        assert all_sent.wait(WAIT_S)
        if recreated:
            fake.recreate_topic("t")
        else:
            fake.log("t", 0).forget_producers()
        return ErrorResponse(code)

    fake.fault(refuse, api="Produce", nth=1)
    if breaks:
        fake.fault(Drop.AFTER, api="Produce", nth=2)
    return all_sent


def send_three(producer: Producer) -> None:
    for number in range(3):
        producer.send("t", b"%d" % number, partition=0).result(WAIT_S)


def send_three_more(producer: Producer, all_sent: threading.Event) -> list[Any]:
    handles = [producer.send("t", b"%d" % number, partition=0) for number in range(3, 6)]
    wait_until(lambda: producer.metrics()["producer-metrics"]["requests-in-flight"] == 3)
    all_sent.set()
    return handles


@pytest.mark.parametrize("release", ["2.1", "4.0", "4.2"])
@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("recreated", [False, True])
def test_refused_records_that_others_overtook_are_written(
    fake_cluster_factory: Any,
    caplog: pytest.LogCaptureFixture,
    release: str,
    breaks: bool,
    recreated: bool,
) -> None:
    """Not reported as written because later ones are, and not failed either."""
    fake = fake_cluster_factory(1, kafka_version=release)
    fake.create_topic("t")
    with Producer(settings(fake, linger_ms=0, batch_size=1)) as producer:
        send_three(producer)
        all_sent = overtake(
            fake, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, breaks=breaks, recreated=recreated
        )
        handles = send_three_more(producer, all_sent)
        results = [handle.exception(WAIT_S) for handle in handles]
        producer.send("t", b"6", partition=0).result(WAIT_S)
    before = [] if recreated else numbers(3)
    written = log_values(fake, "t", 0)
    assert results == [None] * 3
    if recreated and release == "4.2":
        # Produce names the topic by its id, so the new one takes nothing that was meant for the
        # old one.
        assert written == numbers(7)[3:]
    else:
        assert written == [*before, b"4", b"5", b"3", b"6"]
        assert "record" in caplog.text


@pytest.mark.parametrize("release", ["2.1", "4.0", "4.2"])
@pytest.mark.parametrize("code", REFUSALS[1:])
@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("recreated", [False, True])
def test_records_without_a_sure_response_are_never_reported_as_written_by_mistake(
    fake_cluster_factory: Any, release: str, code: ErrorCode, breaks: bool, recreated: bool
) -> None:
    """What the leader may have written before it lost its state fails as unknown. If Produce names
    the topic by its id, a recreated one is another matter: it gets all records."""
    fake = fake_cluster_factory(1, kafka_version=release)
    fake.create_topic("t")
    with Producer(settings(fake, linger_ms=0, batch_size=1)) as producer:
        send_three(producer)
        all_sent = overtake(fake, code, breaks=breaks, recreated=recreated)
        handles = send_three_more(producer, all_sent)
        errors = [handle.exception(WAIT_S) for handle in handles]
        producer.send("t", b"6", partition=0).result(WAIT_S)
    written = log_values(fake, "t", 0)
    if recreated and release == "4.2":
        assert (errors, written) == ([None] * 3, numbers(7)[3:])
        return
    assert written[-1] == b"6"
    assert isinstance(errors[0], ProduceError)
    assert errors[0].written is Written.UNKNOWN
    for number, error in enumerate(errors, 3):
        if error is None:
            assert written.count(b"%d" % number) == 1
        else:
            assert isinstance(error, ProduceError)
            assert error.written is Written.UNKNOWN


@pytest.mark.parametrize("code", REFUSALS)
def test_a_transaction_that_was_overtaken_fails(fake: FakeCluster, code: ErrorCode) -> None:
    with Producer(settings(fake, linger_ms=0, batch_size=1, transactional_id="x")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        send_three(producer)
        all_sent = overtake(fake, code, breaks=True, recreated=True)
        send_three_more(producer, all_sent)
        with pytest.raises(KafkaError):
            producer.commit_transaction()
