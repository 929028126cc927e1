"""The library's Producer while it ends, and what it says about waits that were too long."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparkkafka.client.deadline import Deadline
from sparkkafka.client.producer.futures import (
    OutcomeNotifier,
    RecordSlice,
    TopicRecords,
    fail_records,
)
from sparkkafka.client.producer.producer import Producer
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import (
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
    ProduceError,
    Written,
)
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Delay, Drop, ErrorResponse
from tests.client.support import settings
from tests.support.waiting import interrupt_main_thread, wait_until

WAIT_S = 20


@contextlib.contextmanager
def opened(cluster: Any, **config: Any) -> Iterator[Producer]:
    """A producer whose leftovers do not hold up a test that fails."""
    producer = Producer(settings(cluster, **config))
    try:
        yield producer
    finally:
        with contextlib.suppress(KafkaError):
            producer.close(timeout_s=1)


class Gate:
    """A delivery callback that lasts until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go = threading.Event()

    def __call__(self, _: Any) -> None:
        self.entered.set()
        self.go.wait(WAIT_S)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.go.set()


# --- calls of other threads while it ends --------------------------------------------------------


def test_a_call_while_the_last_callbacks_run_raises_that_it_is_closed(
    fake_cluster: FakeCluster,
) -> None:
    fake_cluster.create_topic("t")
    fake_cluster.fault(Delay(60_000, before=True), api="Metadata", times=None)
    with opened(fake_cluster, max_block_ms=10_000) as producer, Gate() as gate:
        producer.send("t", b"0").add_callback(gate)
        producer._io_thread.stop(Deadline(0))
        assert gate.entered.wait(WAIT_S)
        with pytest.raises(KafkaError, match="partitions of topic t: the producer is closed"):
            producer.partitions_for("t")


def test_a_call_while_another_thread_closes_raises_that_it_is_closed(
    fake_cluster: FakeCluster,
) -> None:
    fake_cluster.create_topic("t")
    with opened(fake_cluster, max_block_ms=100) as producer, Gate() as gate:
        producer.send("t", b"0").add_callback(gate)
        assert gate.entered.wait(WAIT_S)
        closing = threading.Thread(target=producer.close)
        closing.start()
        wait_until(lambda: producer._closed)
        with pytest.raises(KafkaError, match="partitions of topic t: the producer is closed"):
            producer.partitions_for("t")
        gate.go.set()
        closing.join(WAIT_S)
        assert not closing.is_alive()


def test_sends_after_the_thread_has_failed_say_why(fake_cluster: FakeCluster) -> None:
    def fail() -> None:
        raise MemoryError

    with opened(fake_cluster) as producer:
        producer._io_thread._run_once = fail  # type: ignore[method-assign]
        for _ in range(2):
            with pytest.raises(KafkaError, match=r"the producer's thread failed: MemoryError"):
                producer.send("t", b"0").result(WAIT_S)


@pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError, KeyboardInterrupt])
def test_a_callback_ends_nothing_whatever_it_raises(
    fake_cluster: FakeCluster, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    def fail(_: object) -> None:
        raise kind

    fake_cluster.create_topic("t")
    with opened(fake_cluster) as producer:
        producer.send("t", b"0").add_callback(fail)
        producer.flush(WAIT_S)
        assert producer.send("t", b"1").result(WAIT_S).offset == 1
    assert f"a delivery callback raised {kind.__name__}," in caplog.text


def test_the_reason_may_be_in_records_of_another_call() -> None:
    notifier = OutcomeNotifier()
    slices = [RecordSlice(TopicRecords("t", notifier), range(1)) for _ in range(2)]
    for part in slices:
        part.records.begin(np.zeros(1, np.int64))
    error = ProduceError("t-0: refused", topic="t", partition=0, written=Written.NO)
    fail_records(slices, error, {1: None}, 0)
    with pytest.raises(ProduceError, match=r"refused.*; other records of its batch"):
        notifier.raise_failures()
    assert "of this record: the broker does not say why" in str(slices[1].records.error_of(0))


def test_close_after_ctrl_c_in_close_waits_again(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    gate = Gate()
    with opened(fake_cluster) as producer:

        def interrupt(delivery: Any) -> None:
            interrupt_main_thread(lambda: producer._io_thread.is_stopping)
            gate(delivery)

        producer.send("t", b"0").add_callback(interrupt)
        with pytest.raises(KeyboardInterrupt):
            producer.close()
        assert gate.entered.wait(WAIT_S)
        threading.Timer(0.1, gate.go.set).start()
        producer.close()
        assert gate.go.is_set()


def test_close_in_a_callback_and_then_outside(
    fake_cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake_cluster.create_topic("t")
    threads = set(threading.enumerate())
    with opened(fake_cluster) as producer, Gate() as gate:

        def close(handle: Any) -> None:
            producer.close()
            gate(handle)

        producer.send("t", b"0").add_callback(close)
        assert gate.entered.wait(WAIT_S)
        ended: list[None] = []

        def close_outside() -> None:
            producer.close(WAIT_S)
            ended.append(None)

        closing = threading.Thread(target=close_outside)
        closing.start()
        closing.join(0.1)
        assert not ended  # the callback still runs
        gate.go.set()
        closing.join(WAIT_S)
        assert ended
        producer.close()
        ours = [thread.name for thread in set(threading.enumerate()) - threads]
        assert not [name for name in ours if "producer" in name or "Timer" in name]
    assert caplog.text == ""


def test_what_failed_is_raised_by_the_close_outside_of_callbacks(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    fake_cluster.fault(ErrorResponse(ErrorCode.INVALID_RECORD), api="Produce", times=None)
    closed = threading.Event()
    with opened(fake_cluster) as producer:

        def close(_: Any) -> None:
            producer.close()
            closed.set()

        producer.send("t", b"0")
        producer.send("t", b"1").add_callback(close)
        assert closed.wait(WAIT_S)
        with pytest.raises(ProduceError, match="INVALID_RECORD"):
            producer.close()
        producer.close()


def test_no_thread_is_left_of_a_close_that_aborts(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    threads = set(threading.enumerate())
    with opened(fake_cluster, transactional_id="tid") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"0")
        producer.close()
        ours = [thread.name for thread in set(threading.enumerate()) - threads]
        assert not [name for name in ours if "producer" in name or "Timer" in name]


# --- how long ------------------------------------------------------------------------------------

TIMEOUTS: list[Any] = ["1", -1, float("nan"), [1]]


@pytest.mark.parametrize("timeout_s", TIMEOUTS, ids=repr)
def test_a_timeout_is_a_number_of_seconds(fake_cluster: FakeCluster, timeout_s: Any) -> None:
    fake_cluster.create_topic("t")
    with opened(fake_cluster) as producer:
        handle = producer.send("t", b"0")
        table = producer.send_table(pa.table({"value": [b"1"]}), "t")
        table.result(WAIT_S)
        waits = (producer.flush, producer.close, handle.result, handle.exception)
        for wait in (*waits, table.result, table.exception):
            with pytest.raises(OptionError, match="timeout_s is a number of seconds, at least 0"):
                wait(timeout_s)
        producer.send("t", b"2").result(WAIT_S)  # it is not closed


@pytest.mark.parametrize("timeout_s", TIMEOUTS, ids=repr)
def test_a_wrong_timeout_changes_nothing_of_a_transaction(
    fake_cluster: FakeCluster, timeout_s: Any
) -> None:
    fake_cluster.create_topic("t")
    message = "timeout_s is a number of seconds, at least 0"
    with opened(fake_cluster, transactional_id="tid") as producer:
        with pytest.raises(OptionError, match=message):
            producer.init_transactions(timeout_s)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"0")
        offsets = {TopicPartition("t", 0): 1}
        with pytest.raises(OptionError, match=message):
            producer.send_offsets_to_transaction(offsets, "group", timeout_s)
        for end in (producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(OptionError, match=message):
                end(timeout_s)
        producer.send("t", b"1")
        producer.commit_transaction()


def test_a_timeout_may_be_infinite(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    with opened(fake_cluster, linger_ms=50) as producer:
        assert producer.send("t", b"0").result(float("inf")).offset == 0
        producer.send("t", b"1")
        producer.flush(float("inf"))
        producer.close(float("inf"))


# --- what kept records waiting -------------------------------------------------------------------


def _fill(producer: Producer) -> None:
    for _ in range(100):
        producer.send("t", bytes(100))


# Records without metadata fail after max.block.ms too. If they do so first, their memory is free.
@pytest.mark.flaky(reruns=2)
def test_a_full_buffer_tells_that_no_broker_can_be_reached() -> None:
    message = (
        r"records cannot be sent: .*buffer\.memory=1000 .*max\.block\.ms=500; the last failure: "
    )
    with opened("127.0.0.1:1", buffer_memory=1_000, max_block_ms=500) as producer:
        with pytest.raises(KafkaTimeoutError, match=message + "no broker of bootstrap.servers can"):
            _fill(producer)


def test_a_full_buffer_tells_that_no_broker_answers(fake_cluster: FakeCluster) -> None:
    fake_cluster.fault(Delay(60_000, before=True), api="Metadata", times=None)
    with opened(fake_cluster, buffer_memory=1_000, max_block_ms=300) as producer:
        with pytest.raises(
            KafkaTimeoutError, match="no broker has returned metadata for topic t y"
        ):
            _fill(producer)


@pytest.mark.slow
def test_a_full_buffer_tells_of_slow_brokers_once_the_others_are_forgotten(
    fake_cluster: FakeCluster,
) -> None:
    fake_cluster.create_topic("t")
    fake_cluster.fault(Drop.BEFORE, api="Metadata", times=1)
    fake_cluster.fault(Delay(60_000, before=True), api="Produce", times=None)
    with opened(fake_cluster, buffer_memory=1_000, max_block_ms=1_000) as producer:
        with pytest.raises(KafkaTimeoutError, match=r"too slowly: .*=1000$"):
            _fill(producer)


def test_flush_tells_what_is_not_delivered_and_where_it_waits(fake_cluster: FakeCluster) -> None:
    for topic in "tuvwx":
        fake_cluster.create_topic(topic)
    fake_cluster.fault(Delay(60_000, before=True), api="Produce", times=None)
    with opened(fake_cluster) as producer:
        producer.send("t", b"")
        producer.send("t", b"")
        with pytest.raises(KafkaTimeoutError) as raised:
            producer.flush(0.5)
        words = r"flush: not delivered after 0.5 s: 2 records of topic t, on the way to partition "
        assert re.fullmatch(words + r"t-0 \(broker \d+\)", str(raised.value))
        for topic in "uvwx":
            producer.send(topic, b"")
        with pytest.raises(KafkaTimeoutError, match=r"6 records of topics t, ., . and 2 more, on"):
            producer.flush(0.1)


def test_flush_tells_the_last_failure(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    fake_cluster.fault(ErrorResponse(ErrorCode.NOT_ENOUGH_REPLICAS), api="Produce", times=None)
    with opened(fake_cluster) as producer:
        producer.send("t", b"")
        message = r"1 record of topic t, .*t-0 .*; the last failure: .*NOT_ENOUGH_REPLICAS"
        with pytest.raises(KafkaTimeoutError, match=message):
            producer.flush(0.5)
    with opened("127.0.0.1:1") as producer:
        producer.send_table(pa.table({"value": [b"0", b"1"]}), "t")
        message = "2 records of topic t; the last failure: no broker of bootstrap.servers can be"
        with pytest.raises(KafkaTimeoutError, match=message):
            producer.flush(0.5)
