"""The library's Producer against fake brokers: batching, room, faults, threads, the end."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import logging
import multiprocessing
import os
import pickle
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Self

import pandas as pd
import pyarrow as pa
import pytest

from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.producer import producer as producer_module
from sparkkafka.client.producer.futures import WrittenRange
from sparkkafka.client.producer.io_thread import MIN_LOOKUP_MS
from sparkkafka.client.producer.produce_errors import too_large
from sparkkafka.client.producer.producer import Producer
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import (
    EncodeError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
    ProduceError,
    UnknownTopicError,
    Written,
)
from sparkkafka.protocol.partitioning import KEY_RULES
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Delay, Drop, ErrorResponse, Garbage, RecordedRequest
from tests.client.support import log_values, numbers, settings
from tests.support.waiting import Hold, finish, wait_until

murmur2_partitions = KEY_RULES["murmur2_random"].partitions

WAIT_S = 20
FOREVER_MS = 3_600_000


@contextlib.contextmanager
def opened(cluster: Any, **config: Any) -> Iterator[Producer]:
    """A producer whose leftovers do not hold up a test that fails."""
    given: dict[str, Any] = settings(cluster, **config)
    producer = Producer(given)
    try:
        yield producer
    finally:
        with contextlib.suppress(KafkaError):
            producer.close(timeout_s=1)


def all_values(cluster: FakeCluster, topic: str, partitions: int) -> list[Any]:
    return [value for number in range(partitions) for value in log_values(cluster, topic, number)]


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is not there is believed to be missing sooner."""
    monkeypatch.setattr("sparkkafka.client.cluster.cluster.UNKNOWN_TOPIC_GRACE_MS", 300)


def test_a_mistyped_topic_fails_soon_and_the_nearest_is_named(
    fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before max.block.ms, after which Java's producer gives up: no broker knows it."""
    monkeypatch.setattr("sparkkafka.client.cluster.cluster.UNKNOWN_TOPIC_GRACE_MS", 300_000)
    monkeypatch.setattr("sparkkafka.client.cluster.cluster.UNKNOWN_TO_ALL_GRACE_MS", 50)
    fake_cluster.create_topic("orders")
    with opened(fake_cluster, max_block_ms="300000") as producer:
        sent = [producer.send(topic, b"1") for topic in ("ordres", "order", "orders")]
        for mistyped in sent[:2]:
            with pytest.raises(UnknownTopicError, match="the nearest is orders"):
                mistyped.result(WAIT_S)
        assert sent[2].result(WAIT_S).offset == 0


# --- records and handles -------------------------------------------------------------------------


def test_a_record_is_delivered_as_it_was_sent(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t", partitions=3)
    with opened(fake_cluster) as producer:
        handle = producer.send(
            "t",
            value=memoryview(b"value"),
            key="kéy",
            headers=[("a", b"1"), ("b", None), ("a", bytearray(b"2"))],  # type: ignore[list-item]
            partition=2,
            timestamp_ms=1_700_000_000_123,
        )
        assert handle.result(WAIT_S) == ("t", 2, 0, 1_700_000_000_123)
        assert handle.done()
        assert handle.exception() is None
        before_ms = time.time_ns() // 1_000_000
        tombstone = producer.send("t", key=b"k", partition=2).result(WAIT_S)
        assert before_ms <= tombstone.timestamp_ms <= time.time_ns() // 1_000_000
    first, second = fake_cluster.log("t", 2).records()
    assert (first.key, first.value) == ("kéy".encode(), b"value")
    assert list(first.headers) == [("a", b"1"), ("b", None), ("a", b"2")]
    assert (second.key, second.value) == (b"k", None)


def test_lingering_records_go_out_alone(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    with opened(fake_cluster, linger_ms=100) as producer:
        handles = [producer.send("t", b"%d" % number) for number in range(3)]
        assert [handle.result(WAIT_S).offset for handle in handles] == [0, 1, 2]
        sent = producer.metrics()["producer-metrics"]
        assert sent["record-send-total"] == sent["records-per-request-avg"] == 3


def test_a_full_batch_does_not_linger(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    with opened(fake_cluster, linger_ms=60_000, batch_size=1_000) as producer:
        full = [producer.send("t", bytes(100)) for _ in range(12)]
        assert full[0].result(WAIT_S).offset == 0
    assert len(log_values(fake_cluster, "t")) == 12


def test_flush_ends_the_lingering(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t", partitions=2)
    with opened(fake_cluster, linger_ms=60_000) as producer:
        handles = [producer.send("t", b"x", partition=number) for number in (0, 1, 0)]
        assert not any(handle.done() for handle in handles)
        producer.flush(WAIT_S)
        assert all(handle.done() for handle in handles)
        producer.flush(WAIT_S)  # nothing to do


def test_batches_are_no_larger_than_said(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    with opened(fake_cluster, batch_size=500) as producer:
        for number in range(1_000):
            producer.send("t", b"%d" % number)
        producer.flush(WAIT_S)
        assert producer.metrics()["producer-metrics"]["record-send-total"] == 1_000
    assert log_values(fake_cluster, "t") == numbers(1_000)
    assert all(len(batch.data) <= 500 for batch in fake_cluster.log("t", 0).batches())


def test_keyless_records_spread_by_batches_and_keys_stay(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t", partitions=4)
    with opened(fake_cluster, batch_size=1_000) as producer:
        for number in range(4_000):
            producer.send("t", b"%d" % number)
        keyed = [producer.send("t", b"", key=b"%d" % (number % 7)) for number in range(70)]
        producer.flush(WAIT_S)
        positions = [handle.result().partition for handle in keyed]
    assert positions[:7] * 10 == positions
    assert positions[:7] == murmur2_partitions(pa.array(numbers(7)), 4).tolist()
    counts = [len(log_values(fake_cluster, "t", number)) for number in range(4)]
    assert min(counts) > 500
    assert sorted(map(int, filter(None, all_values(fake_cluster, "t", 4)))) == list(range(4_000))


@pytest.mark.parametrize("partitioner", ["murmur2_random", "random", "round_robin"])
@pytest.mark.parametrize("as_table", [False, True])
def test_records_that_may_go_anywhere_avoid_partitions_without_a_leader(
    fake_cluster: FakeCluster, partitioner: str, as_table: bool
) -> None:
    """The brokers that have all copies of partition 1 are down."""
    fake_cluster.create_topic("t", partitions=3)
    fake_cluster.move_leader("t", 1, -1)
    config = {"partitioner_class": partitioner, "batch_size": 1_000, "metadata_max_age_ms": 60_000}
    with opened(fake_cluster, **config) as producer:

        def partitions_written() -> set[int]:
            key = "k" if partitioner == "random" else None
            if not as_table:
                sent = [producer.send("t", b"x" * 8_000, key) for _ in range(12)]
                return {handle.result(WAIT_S).partition for handle in sent}
            table = pa.table(
                {"value": [b"x" * 8_000] * 12, "key": pa.array([key] * 12, pa.string())}
            )
            return {tp.partition for tp in producer.send_table(table, "t").result(WAIT_S)}

        assert partitions_written() == {0, 2}
        keyed = producer.send("t", b"v", partition=1)  # waits for its partition
        fake_cluster.move_leader("t", 1, 2)
        keyed.result(WAIT_S)
        assert partitions_written() == {0, 1, 2}


def test_a_partition_whose_leader_is_back_gets_records_without_a_key_again(
    fake_cluster: FakeCluster,
) -> None:
    """No record for this partition is waiting, which would request the metadata."""
    fake_cluster.create_topic("t", partitions=2)
    fake_cluster.move_leader("t", 1, -1)
    with opened(fake_cluster, batch_size=1_000, metadata_max_age_ms=600_000) as producer:
        assert producer.send("t", b"x").result(WAIT_S).partition == 0
        fake_cluster.move_leader("t", 1, 2)
        deadline_s = time.monotonic() + WAIT_S
        while not log_values(fake_cluster, "t", 1):
            assert time.monotonic() < deadline_s
            for _ in range(20):
                producer.send("t", b"x" * 900)
            producer.flush(WAIT_S)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compression(fake_cluster: FakeCluster, codec: str) -> None:
    fake_cluster.create_topic("t")
    with opened(fake_cluster, compression_type=codec) as producer:
        for number in range(500):
            producer.send("t", b"%d" % number)
        producer.flush(WAIT_S)
    assert log_values(fake_cluster, "t") == numbers(500)


@pytest.mark.parametrize("acks", [0, 1])
def test_less_acknowledgement(fake_cluster: FakeCluster, acks: int) -> None:
    fake_cluster.create_topic("t")
    with opened(fake_cluster, acks=acks) as producer:
        handle = producer.send("t", b"0")
        producer.flush(WAIT_S)
        assert handle.result().offset == (-1 if acks == 0 else 0)
    assert log_values(fake_cluster, "t") == [b"0"]


def test_callbacks_come_once_for_records_written_and_failed(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    fake_cluster.create_topic("u")
    fake_cluster.fault(ErrorCode.INVALID_RECORD, api="Produce", topic="u", times=None)
    heard: list[tuple[str, Any]] = []
    with opened(fake_cluster, linger_ms=20) as producer:
        for topic in ("t", "u"):
            for number in range(3):
                producer.send(topic, b"%d" % number).add_callback(
                    lambda handle, topic=topic: heard.append((topic, handle.exception()))  # type: ignore[misc]
                )
        producer.send("t", b"3").add_callback(lambda handle: 1 / 0)  # logged, and nothing else
        producer.flush(WAIT_S)  # all failures were heard of: nothing is raised
        late = producer.send("t", b"4")
        late.result(WAIT_S)
        late.add_callback(lambda handle: heard.append(("late", handle.result().offset)))
    assert heard[-1] == ("late", 4)
    assert [error for topic, error in heard if topic == "t"] == [None] * 3
    assert [type(error) for topic, error in heard if topic == "u"] == [ProduceError] * 3


def test_flush_and_close_end_after_the_callbacks(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t", partitions=1)
    called = []

    def slow(handle: Any) -> None:
        time.sleep(0.002)
        called.append(handle)

    with opened(fake_cluster, **{"linger.ms": "0"}) as producer:
        for count in range(1, 11):
            for _ in range(10):
                producer.send("t", value=b"v").add_callback(slow)
            producer.flush(WAIT_S)
            assert len(called) == count * 10
        producer.send("t", value=b"v").add_callback(lambda _: time.sleep(0.5))
        with pytest.raises(KafkaTimeoutError, match="callbacks have not all run"):
            producer.flush(0.2)
        producer.send_table(pa.table({"value": [b"a", b"b"]}), "t").add_callback(slow)
        producer.close(WAIT_S)
        assert len(called) == 101


def test_a_callback_that_waits_for_its_own_thread_gets_an_error(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    words: list[str] = []
    done = threading.Event()

    def wait(handle: Any) -> None:
        later = producer.send("t", b"1")  # this is no wait
        for action in (producer.flush, later.result, lambda: producer.partitions_for("t")):
            try:
                action()
            except KafkaError as error:
                words.append(str(error))
        done.set()

    with opened(fake_cluster) as producer:
        producer.send("t", b"0").add_callback(wait)
        assert done.wait(WAIT_S)
        assert len(words) == 3
        assert all("not in a callback" in text for text in words)
        producer.flush(WAIT_S)
    assert log_values(fake_cluster, "t") == numbers(2)


# --- what is wrong with one record ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"value": 5}, "value must be bytes.*got int"),
        ({"key": [b"k"]}, "key must be bytes.*got list"),
        ({"value": "\ud800"}, "UTF-8"),
        ({"headers": {"a": 1}}, "header 'a' must be bytes"),
        ({"headers": "a"}, "headers must be a dict or a list"),
        ({"headers": [("a",)]}, "pairs"),
        ({"headers": [(b"a", b"")]}, "key of a header must be str"),
        ({"headers": [("a", 1)]}, "header 'a' must be bytes"),
        ({"partition": -1}, "partition is a whole number from 0"),
        ({"partition": "0"}, "partition is a whole number"),
        ({"partition": True}, "partition is a whole number"),
        ({"partition": 1.0}, "partition is a whole number"),
        ({"partition": 2**31}, "partition is a whole number from 0 to 2147483647"),
        ({"timestamp_ms": -5}, "timestamp_ms is a whole number of 0 or more"),
        ({"timestamp_ms": 1.5}, "timestamp_ms is a whole number"),
    ],
)
def test_bad_arguments_are_errors_at_once(arguments: dict[str, Any], message: str) -> None:
    with opened("127.0.0.1:1") as producer:
        with pytest.raises(OptionError, match=message):
            producer.send("t", **arguments)
        with pytest.raises(OptionError, match="topic must be the name"):
            producer.send("", b"")
        producer.close(timeout_s=0)


def test_a_record_too_large_is_an_error_at_once_and_others_go_on(fake_cluster: Any) -> None:
    fake_cluster.create_topic("t")
    with opened(fake_cluster, max_request_size=2_000, batch_size=2_000) as producer:
        with pytest.raises(ProduceError, match=r"max\.request\.size=2000") as raised:
            producer.send("t", bytes(2_000))
        assert raised.value.written is Written.NO
        producer.send("t", bytes(1_900)).result(WAIT_S)
    with opened(fake_cluster, buffer_memory=1_000) as producer:
        with pytest.raises(ProduceError, match=r"buffer\.memory=1000"):
            producer.send("t", bytes(2_000))


@pytest.mark.usefixtures("short_grace")
def test_a_missing_topic_and_a_missing_partition_fail_their_records_only(
    fake_cluster: FakeCluster,
) -> None:
    fake_cluster.create_topic("t", partitions=2)
    with opened(fake_cluster, linger_ms=20) as producer:
        missing = producer.send("nowhere", b"")
        wrong = [producer.send("t", b"wrong", partition=2 + n % 2) for n in range(4)]
        right = [producer.send("t", b"%d" % n, partition=n % 2) for n in range(10)]
        assert [handle.result(WAIT_S).partition for handle in right] == [0, 1] * 5
        for number, handle in enumerate(wrong):
            message = (
                f"partition {2 + number % 2} of topic t does not exist: it has partitions 0 to 1"
            )
            with pytest.raises(UnknownTopicError, match=message):
                handle.result(WAIT_S)
        assert isinstance(missing.exception(WAIT_S), UnknownTopicError)
        # Not the first response counts: brokers learn of new topics one by one.
        assert len(fake_cluster.requests_of("Metadata", topic="nowhere")) > 1
        producer.flush()
        assert producer.partitions_for("t") == [0, 1]
        known = producer.send("t", b"", partition=99)  # not at once: more may be added yet
        assert isinstance(known.exception(WAIT_S), UnknownTopicError)
        with pytest.raises(UnknownTopicError, match="nowhere"):
            producer.partitions_for("nowhere")


def test_a_topic_and_partitions_that_come_later(fake_cluster: FakeCluster) -> None:
    with opened(fake_cluster) as producer:
        early = producer.send("t", b"0")
        fake_cluster.wait_for_requests("Metadata", 2)
        fake_cluster.create_topic("t")
        early.result(WAIT_S)
        fake_cluster.add_partitions("t", 3)
        assert producer.send("t", b"1", partition=2).result(WAIT_S).partition == 2


def test_a_refused_batch_fails_its_records_and_the_next_goes_on(fake_cluster: FakeCluster) -> None:
    """Idempotent: the numbers of the refused batch are missing, so a new epoch begins."""
    fake_cluster.create_topic("t", partitions=2)
    fake_cluster.fault(ErrorCode.INVALID_RECORD, api="Produce", topic="t", partition=0, nth=2)
    config = {"linger_ms": FOREVER_MS, "delivery_timeout_ms": 2 * FOREVER_MS, "batch_size": 400}
    with opened(fake_cluster, **config) as producer:
        producer.send("t", b"first", partition=0)
        producer.flush(WAIT_S)
        handles = [producer.send("t", b"%03d" % n, partition=0) for n in range(200)]
        others = [producer.send("t", b"%03d" % n, partition=1) for n in range(200)]
        with pytest.raises(ProduceError, match="INVALID_RECORD"):
            producer.flush(WAIT_S)
        producer.flush(WAIT_S)  # once
        errors = [handle.exception() for handle in handles]
        assert not any(handle.exception() for handle in others)
    failed = [number for number, error in enumerate(errors) if error]
    assert 5 < len(failed) < 100
    assert failed == list(range(failed[0], failed[-1] + 1))
    error = errors[failed[0]]
    assert isinstance(error, ProduceError)
    assert (error.written, error.partition) == (Written.NO, 0)
    written = [b"%03d" % number for number in range(200) if number not in failed]
    assert log_values(fake_cluster, "t") == [b"first", *written]
    assert len(log_values(fake_cluster, "t", 1)) == 200
    epochs = {batch.producer_epoch for batch in fake_cluster.log("t", 0).batches()}
    assert epochs == {0, 1}


def test_the_brokers_messages_about_single_records(fake_cluster: FakeCluster) -> None:
    """A compacted topic takes no record without a key (KIP-467)."""
    fake_cluster.create_topic("t", configs={"cleanup.policy": "compact"})
    with opened(fake_cluster, linger_ms=FOREVER_MS, delivery_timeout_ms=2 * FOREVER_MS) as producer:
        good = producer.send("t", b"", key=b"k")
        bad = producer.send("t", b"")
        with pytest.raises(ProduceError):
            producer.flush(WAIT_S)
        assert "compacted topic needs a key" in str(bad.exception())
        assert "other records of its batch are the reason" in str(good.exception())


def test_callable_partitioner(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t", partitions=3)

    def choose(topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> Any:
        assert (topic, partition_count) == ("t", 3)
        if key == b"cancelled":
            raise asyncio.CancelledError
        if key == b"no text":
            raise type("Silent", (Exception,), {"__str__": lambda _: 1 / 0})
        return {b"last": 2, None: 0, b"far": 3, b"text": "1", b"fails": 1 / (key != b"fails")}[key]

    given: dict[str, Any] = settings(fake_cluster) | {"partitioner.class": choose}
    with contextlib.closing(Producer(given)) as producer:
        assert producer.send("t", b"", key=b"last").result(WAIT_S).partition == 2
        assert producer.send("t", b"").result(WAIT_S).partition == 0
        assert producer.send("t", b"", key=b"far", partition=1).result(WAIT_S).partition == 1
        good = producer.send("t", b"", key=b"last")
        for key, message in (
            (b"far", "returned 3 for a record of topic t: .* from 0 to 2"),
            (b"text", "returned '1' for a record of topic t"),
            (b"fails", "failed for a record of topic t: ZeroDivisionError"),
            (b"cancelled", "failed for a record of topic t: .*CancelledError"),
            (b"no text", "failed for a record of topic t: .*Silent"),
        ):
            with pytest.raises(OptionError, match=message):
                producer.send("t", b"", key=key).result(WAIT_S)
        good.result(WAIT_S)


# --- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", [Drop.AFTER, Drop.BEFORE])
def test_lost_responses_double_nothing(fake_cluster: FakeCluster, action: Drop) -> None:
    fake_cluster.create_topic("t")
    for nth in (1, 3, 4):
        fake_cluster.fault(action, api="Produce", nth=nth)
    with opened(fake_cluster, batch_size=400) as producer:
        handles = [producer.send("t", b"%d" % number) for number in range(1_000)]
        assert [handle.result(WAIT_S).offset for handle in handles] == list(range(1_000))
    assert log_values(fake_cluster, "t") == numbers(1_000)


@pytest.mark.parametrize(
    ("reported", "offsets"),
    [
        (2**63 - 1, [-1, -1, -1]),
        (2**63 - 3, [-1, -1, -1]),
        (2**63 - 4, [2**63 - 4, 2**63 - 3, 2**63 - 2]),
        (-3, [-1, -1, -1]),
    ],
)
def test_offsets_that_no_log_can_have_are_not_returned(
    fake_cluster: FakeCluster, reported: int, offsets: list[int]
) -> None:
    fake_cluster.create_topic("t")
    real = fake_cluster.handlers["Produce"]

    def respond(call: Any) -> Any:
        response = real(call)
        response.responses[0].partition_responses[0].base_offset = reported
        return response

    fake_cluster.handlers["Produce"] = respond
    with opened(fake_cluster, linger_ms=FOREVER_MS, delivery_timeout_ms=2 * FOREVER_MS) as producer:
        handles = [producer.send("t", b"") for _ in range(3)]
        producer.flush(WAIT_S)
        assert [handle.result().offset for handle in handles] == offsets
    assert len(log_values(fake_cluster, "t")) == 3


def test_a_moved_leader_is_found(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")

    def move(request: RecordedRequest) -> None:
        fake_cluster.move_leader("t", 0, (fake_cluster.leader("t", 0) + 1) % 3)

    fake_cluster.fault(move, api="Produce", nth=2)
    fake_cluster.fault(move, api="Produce", nth=3)
    with opened(fake_cluster, batch_size=400) as producer:
        for number in range(1_000):
            producer.send("t", b"%d" % number)
        producer.flush(WAIT_S)
    assert log_values(fake_cluster, "t") == numbers(1_000)


def test_one_lookup_of_a_topic_takes_no_longer_than_max_block_ms() -> None:
    with opened("127.0.0.1:1", max_block_ms=1_100) as producer:
        with pytest.raises(
            KafkaTimeoutError, match=r"within 1\.1 s \(max\.block\.ms\).*Connection refused"
        ) as caught:
            producer.send("t", b"").result(WAIT_S)
        assert caught.value.retriable
        words = str(too_large("t", None, 9, producer._settings.producer))
        assert words.startswith("topic t: a record takes 9 bytes")


def test_the_last_lookup_of_a_topic_ends_with_max_block_ms(monkeypatch: Any) -> None:
    """A look-up that is begun just before the end would wait as long again."""
    waits_ms: list[float] = []
    with opened("127.0.0.1:1", max_block_ms=3_000) as producer:

        def request_metadata(
            self: Cluster, names: Any, deadline: Deadline, *, once: bool
        ) -> dict[str, int]:
            waits_ms.append(deadline.total_ms)
            time.sleep(0.8)
            raise KafkaTimeoutError("nobody answers")

        monkeypatch.setattr(Cluster, "request_metadata", request_metadata)
        with pytest.raises(KafkaTimeoutError, match=r"within 3 s \(max\.block\.ms\)"):
            producer.send("t", b"").result(WAIT_S)
    assert waits_ms == sorted(waits_ms, reverse=True)
    assert MIN_LOOKUP_MS <= waits_ms[-1] < waits_ms[0] < 3_000


def test_no_brokers_and_then_there_are(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    for broker in fake_cluster.broker_ids:
        fake_cluster.broker_down(broker)
    with opened(fake_cluster) as producer:
        handle = producer.send("t", b"0")
        assert not handle.done()
        for broker in fake_cluster.broker_ids:
            fake_cluster.broker_up(broker)
        assert handle.result(WAIT_S).offset == 0


def test_a_batch_that_expires_unanswered_may_be_written_and_the_next_is_not_doubled(
    fake_cluster: FakeCluster,
) -> None:
    """What was in flight behind it goes on under its own numbers, until its outcome is known."""
    fake_cluster.create_topic("t")
    config = {"request_timeout_ms": 300, "delivery_timeout_ms": 700, "linger_ms": 0}
    with opened(fake_cluster, **config) as producer:
        producer.send("t", b"before").result(WAIT_S)
        rule = fake_cluster.fault(Delay(60_000), api="Produce", times=None)
        lost = producer.send("t", b"lost")
        error = lost.exception(WAIT_S)
        assert isinstance(error, ProduceError)
        assert error.written is Written.UNKNOWN
        assert rule.fired
        fake_cluster.clear_faults()
        producer.send("t", b"after").result(WAIT_S)
    assert log_values(fake_cluster, "t") == [b"before", b"lost", b"after"]


@pytest.mark.slow
def test_a_response_to_a_batch_that_has_expired_is_ignored(fake_cluster: FakeCluster) -> None:
    """The second attempt begins late enough to be answered after delivery.timeout.ms."""
    fake_cluster.create_topic("t")

    def refuse(_: RecordedRequest) -> ErrorCode:
        time.sleep(0.8)
        return ErrorCode.NOT_ENOUGH_REPLICAS

    fake_cluster.fault(refuse, api="Produce")
    fake_cluster.fault(Delay(1_100), api="Produce")
    config = {"request_timeout_ms": 1_400, "delivery_timeout_ms": 1_500, "linger_ms": 0}
    with opened(fake_cluster, **config) as producer:
        error = producer.send("t", b"0").exception(WAIT_S)
        assert isinstance(error, ProduceError)
        assert error.written is Written.UNKNOWN
        producer.send("t", b"1").result(WAIT_S)
    assert log_values(fake_cluster, "t") == [b"0", b"1"]
    assert len(fake_cluster.requests_of("Produce")) == 3


@pytest.mark.parametrize("action", [Drop.AFTER, Drop.BEFORE])
def test_batches_behind_one_that_was_given_up(fake_cluster: FakeCluster, action: Drop) -> None:
    """retries=1 gives the first up after two lost responses; the others were in flight as well."""
    fake_cluster.create_topic("t")
    config = {"linger_ms": FOREVER_MS, "delivery_timeout_ms": 2 * FOREVER_MS, "batch_size": 200}
    with opened(fake_cluster, retries=1, **config) as producer:
        producer.send("t", b"before")
        producer.flush(WAIT_S)
        fake_cluster.fault(action, api="Produce", nth=1, times=2)
        handles = [producer.send("t", b"%03d" % number) for number in range(100)]
        with contextlib.suppress(ProduceError):
            producer.flush(WAIT_S)
        errors = [handle.exception() for handle in handles]
        producer.send("t", b"end")
        producer.flush(WAIT_S)
    values = log_values(fake_cluster, "t")
    assert len(set(values)) == len(values)
    assert values == [b"before", *sorted(filter(None, values[1:-1])), b"end"]
    for number, error in enumerate(errors):
        if error is None:
            assert b"%03d" % number in values
        else:
            assert isinstance(error, ProduceError)
            assert error.written is Written.UNKNOWN
    assert any(errors)
    assert not all(errors)


def test_a_leader_that_talks_nonsense_fails_what_goes_to_it(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t", partitions=3)
    bad = fake_cluster.leader("t", 0)
    fake_cluster.fault(Garbage(b"HTTP/1.1 400\r\n"), api="Produce", broker=bad, times=None)
    with opened(fake_cluster) as producer:
        handles = [producer.send("t", b"", partition=number) for number in range(3)]
        with pytest.raises(ProduceError, match="HTTP"):
            handles[0].result(WAIT_S)
        assert [handle.result(WAIT_S).partition for handle in handles[1:]] == [1, 2]


def test_no_authorisation_for_one_topic(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    fake_cluster.create_topic("secret")
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    fake_cluster.fault(code, api="Metadata", topic="secret", times=None)
    with opened(fake_cluster) as producer:
        refused = producer.send("secret", b"")
        assert producer.send("t", b"").result(WAIT_S).offset == 0
        error = refused.exception(WAIT_S)
    assert getattr(error, "code", None) == code
    assert "secret" in str(error)


def test_no_producer_id(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    fake_cluster.fault(code, api="InitProducerId", times=1)
    with opened(fake_cluster) as producer:
        with pytest.raises(ProduceError, match="CLUSTER_AUTHORIZATION_FAILED"):
            producer.send("t", b"0").result(WAIT_S)
        producer.send("t", b"1").result(WAIT_S)
    assert log_values(fake_cluster, "t") == [b"1"]


# --- memory --------------------------------------------------------------------------------------


def test_a_full_buffer_blocks_until_memory_is_free(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    hold = threading.Event()
    fake_cluster.fault(lambda request: hold.wait(WAIT_S) and None, api="Produce", times=None)
    sent = []
    with opened(fake_cluster, buffer_memory=10_000, batch_size=1_000) as producer:

        def fill() -> None:
            for number in range(400):
                sent.append(producer.send("t", b"%0100d" % number))

        thread = threading.Thread(target=fill)
        thread.start()
        fake_cluster.wait_for_requests("Produce")
        wait_until(lambda: producer._buffer.waiting_threads > 0)
        assert len(sent) < 100
        hold.set()
        thread.join(WAIT_S)
        assert not thread.is_alive()
        producer.flush(WAIT_S)
    assert len(log_values(fake_cluster, "t")) == 400


@pytest.mark.slow
def test_a_buffer_that_stays_full_is_an_error_after_max_block_ms(fake_cluster: Any) -> None:
    fake_cluster.create_topic("t")
    fake_cluster.fault(Delay(60_000, before=True), api="Produce", times=None)
    with opened(fake_cluster, buffer_memory=2_000, max_block_ms=1_000) as producer:
        with pytest.raises(KafkaTimeoutError, match=r"buffer\.memory=2000 .*max\.block\.ms=1000"):
            for _ in range(100):
                producer.send("t", bytes(100))
        with pytest.raises(KafkaTimeoutError, match="flush"):
            producer.flush(timeout_s=0.05)


# --- threads, the end ----------------------------------------------------------------------------


def test_many_threads(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t", partitions=3)
    fake_cluster.create_topic("u")
    fake_cluster.fault(Drop.AFTER, api="Produce", nth=3)
    config = {"batch_size": 2_000, "buffer_memory": 50_000}
    with opened(fake_cluster, **config) as producer:
        kept: dict[int, list[Any]] = {}

        def work(number: int) -> None:
            kept[number] = [
                producer.send("tu"[i % 2], b"%d:%d" % (number, i), key=b"%d" % number)
                for i in range(1_000)
            ]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        producer.flush(60)
        for number, handles in kept.items():
            for topic, rows in (("t", handles[::2]), ("u", handles[1::2])):
                positions = [handle.result() for handle in rows]
                assert {position.topic for position in positions} == {topic}
                offsets = [position.offset for position in positions]
                assert offsets == sorted(set(offsets)), number  # each thread's own order
                log = {
                    partition: fake_cluster.log(topic, partition).records()
                    for partition in {position.partition for position in positions}
                }
                for i, position in enumerate(positions):
                    value = log[position.partition][position.offset].value
                    assert value == b"%d:%d" % (number, 2 * i + (topic == "u"))


def test_close_delivers_and_then_refuses(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    with Producer(settings(fake_cluster, linger_ms=60_000)) as producer:
        handle = producer.send("t", b"0")
    assert handle.result(0).offset == 0
    for action in (
        lambda: producer.send("t", b""),
        lambda: producer.partitions_for("t"),
        producer.flush,
    ):
        with pytest.raises(KafkaError, match="the producer is closed"):
            action()
    producer.close()
    assert not producer._io_thread.is_alive
    assert "closed" in repr(producer)


def test_the_repr_of_a_delivery_has_its_outcome(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    with Producer(settings(fake_cluster, linger_ms=60_000)) as producer:
        written, table = producer.send("t", b"0"), producer.send_many("t", [b"1", b"2"])
        assert (repr(written), repr(table)) == ("<Delivery pending>", "<TableDelivery pending>")
        producer.flush()
        assert repr(written) == "<Delivery written to t-0 at offset 0>"
        assert repr(table) == "<TableDelivery 2 written>"
        fake_cluster.fault(api="Produce", action=ErrorCode.TOPIC_AUTHORIZATION_FAILED, times=None)
        failed, table = producer.send("t", b"3"), producer.send_many("t", [b"4"])
        with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
            producer.flush()
        assert re.fullmatch("<Delivery failed: .* TOPIC_AUTHORIZATION_FAILED.*>", repr(failed))
        assert repr(table) == "<TableDelivery 0 written, 1 failed>"


def test_leaving_with_an_exception_does_not_wait_and_says_what_is_lost(
    fake_cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake_cluster.create_topic("t")
    fake_cluster.fault(Delay(60_000, before=True), api="Produce", times=None)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(ZeroDivisionError),
        Producer(settings(fake_cluster)) as producer,
    ):
        handles = [producer.send("t", b"") for _ in range(7)]
        _ = 1 / 0
    assert "7 records not delivered" in caplog.text
    for handle in handles:
        with pytest.raises(KafkaError, match="closed before delivery"):
            handle.result(0)


@contextlib.contextmanager
def nobody_accepts() -> Iterator[str]:
    """The address of a server whose queue of connections is full: connecting gets no response."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        time.sleep(0.05)
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["refuses", "is silent", "accepts nobody"])
@pytest.mark.parametrize("transactional", [False, True])
def test_close_ends_in_its_time_whatever_the_thread_waits_for(
    fake_cluster: FakeCluster, how: str, transactional: bool
) -> None:
    fake_cluster.create_topic("t")
    tid = {"transactional.id": "tid"} if transactional else {}
    with contextlib.ExitStack() as stack:
        servers: Any = fake_cluster
        if how == "refuses" and not transactional:
            servers = "127.0.0.1:1"
        elif how == "accepts nobody" and not transactional:
            servers = stack.enter_context(nobody_accepts())
        producer = Producer(settings(servers, **tid))
        if transactional:
            producer.init_transactions()
            producer.begin_transaction()
            apis = ("AddPartitionsToTxn", "Produce", "EndTxn", "FindCoordinator")
            if how == "refuses":
                fake_cluster.close()
            for api in apis:
                fake_cluster.fault(Delay(60_000, before=True), api=api, times=None)
        elif how == "is silent":
            fake_cluster.fault(Delay(60_000, before=True), api="Metadata", times=None)
        handle = producer.send("t", b"v")
        time.sleep(0.6)
        with contextlib.suppress(KafkaError):
            finish(lambda: producer.close(1), seconds=30)
        assert handle.exception(0) is not None
        assert not producer._io_thread.is_alive


def test_what_nobody_asked_about_is_raised_at_the_end(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    fake_cluster.fault(ErrorResponse(ErrorCode.INVALID_RECORD), api="Produce", times=None)
    with pytest.raises(ProduceError, match="INVALID_RECORD"):
        with Producer(settings(fake_cluster)) as producer:
            producer.send("t", b"")
    with Producer(settings(fake_cluster)) as producer:
        assert producer.send("t", b"").exception(WAIT_S) is not None


@pytest.mark.parametrize("kind", [Producer, Consumer, Admin])
@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "settings are a mapping.*got NoneType"),
        ("host:1", "settings are a mapping.*got str"),
        ([("bootstrap.servers", "host:1")], "settings are a mapping.*got list"),
        ({1: "host:1"}, "the name of a setting is a str, got int"),
    ],
)
def test_settings_are_a_mapping(kind: Any, config: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        kind(config)


class CollectsGarbage(set[Any]):
    """A set that lets the garbage collector run while it is changed."""

    def __isub__(self, others: Any) -> Self:
        gc.collect()
        return super().__isub__(others)


@pytest.mark.filterwarnings("ignore:a Producer was not closed")
def test_the_io_thread_may_collect_the_producer_while_it_has_the_lock(
    fake_cluster: FakeCluster,
) -> None:
    fake_cluster.create_topic("t")
    hold = Hold()
    fake_cluster.fault(hold, api="Produce")
    producer: Any = Producer(settings(fake_cluster))
    producer.itself = producer
    producer._buffer.unfinished = CollectsGarbage()
    producer.send("t", b"v")
    fake_cluster.wait_for_requests("Produce", 1)
    thread = producer._io_thread
    gc.disable()  # in the other threads
    try:
        del producer
        hold.release()
        assert thread.join(WAIT_S)
    finally:
        gc.enable()


def test_a_producer_that_is_collected_warns_of_what_is_lost_only(
    fake_cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake_cluster.create_topic("t")
    with caplog.at_level(logging.WARNING):
        with pytest.warns(ResourceWarning, match="a Producer was not closed: call close"):
            handle = Producer(settings(fake_cluster, linger_ms=FOREVER_MS)).send("t", b"0")
        assert handle.result(WAIT_S).offset == 0
        time.sleep(0.1)
        assert caplog.text == ""
        fake_cluster.fault(Delay(60_000, before=True), api="Produce", times=None)
        with pytest.warns(ResourceWarning):
            handle = Producer(settings(fake_cluster)).send("t", b"1")
        with pytest.raises(KafkaError, match="a Producer was not closed"):
            handle.result(WAIT_S)
        wait_until(lambda: "1 record not delivered: a Producer was not closed" in caplog.text)


@pytest.mark.slow
def test_the_end_of_the_interpreter_delivers(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    servers = settings(fake_cluster, linger_ms=FOREVER_MS)
    code = "from sparkkafka.client.producer.producer import Producer as P; "
    kept = f"{code} producer = P({servers!r}); producer.send('t', b'kept')"
    gone = f"{code} P({servers!r}).send('t', b'gone')"
    for text in (kept, gone):
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, check=True)
        assert done.stderr == b""
    assert log_values(fake_cluster, "t") == [b"kept", b"gone"]


@pytest.mark.parametrize("kind", [Producer, Consumer, Admin])
@pytest.mark.parametrize("action", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickling_is_refused_with_a_message(kind: Any, action: Callable[[Any], object]) -> None:
    with kind(settings("127.0.0.1:1")) as client:
        with pytest.raises(TypeError, match=r"cannot be pickled.*Make one where it is used"):
            action(client)


def _in_child(results: Any) -> None:
    words = []
    actions: list[Callable[[], object]] = [
        lambda: _forked_producer.send("t", b"child"),
        lambda: _forked_producer.flush(1),
        lambda: _forked_producer.partitions_for("t"),
        lambda: _forked_delivery.result(5),
    ]
    for action in actions:
        try:
            action()
        except KafkaError as error:
            words.append(str(error))
    _forked_producer.close()
    results.put(words)


_forked_producer: Any = None
_forked_delivery: Any = None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_gets_an_error(fake_cluster: FakeCluster) -> None:
    global _forked_producer, _forked_delivery
    fake_cluster.create_topic("t")
    with opened(fake_cluster, linger_ms=FOREVER_MS, delivery_timeout_ms=2 * FOREVER_MS) as producer:
        _forked_delivery = producer.send("t", b"parent")
        _forked_producer = producer
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        child = context.Process(target=_in_child, args=(results,))
        child.start()
        words = results.get(timeout=WAIT_S)
        child.join(WAIT_S)
        assert len(words) == 4
        assert all("made before a fork" in text for text in words)
        producer.flush(WAIT_S)
    assert log_values(fake_cluster, "t") == [b"parent"]


@pytest.mark.parametrize("before", [0, 3])
def test_ctrl_c_in_send_spoils_no_other_record(
    fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    def interrupted() -> float:
        raise KeyboardInterrupt

    fake_cluster.create_topic("t")
    with opened(fake_cluster, linger_ms=100) as producer:
        for number in range(before):
            producer.send("t", b"%d" % number, key=b"k")
        with monkeypatch.context() as patch:
            patch.setattr(producer_module, "time", SimpleNamespace(time=interrupted))
            with pytest.raises(KeyboardInterrupt):
                producer.send("t", b"never", key=b"k", headers=[("h", b"")])
        assert producer._buffer.used_bytes + producer._buffer.taken_bytes < 100 * (before + 1)
        producer.flush(WAIT_S)
        producer.send("t", b"%d" % before)
        producer.flush(WAIT_S)
        wait_until(lambda: not producer._buffer.used_bytes + producer._buffer.taken_bytes)
    assert log_values(fake_cluster, "t") == numbers(before + 1)


# --- tables --------------------------------------------------------------------------------------


def test_a_table(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t", partitions=2)
    fake_cluster.create_topic("u")
    table = pa.table(
        {
            "value": pa.array([b"0", None, b"2", b"3"]),
            "key": pa.array(["a", None, "c", "d"]),
            "topic": pa.array(["t", "u", "t", "t"]),
            "partition": pa.array([1, None, 1, 0], pa.int32()),
            "timestamp": pa.array([1_700_000_000_000, 1, None, 2], pa.timestamp("ms")),
            "headers": pa.array(
                [[("h", b"1")], None, [], None],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
            "other": [1, 2, 3, 4],
        }
    )
    with opened(fake_cluster) as producer:
        producer.send("t", b"before", partition=1)
        handle = producer.send_table(table)
        heard = threading.Event()
        handle.add_callback(lambda done: heard.set())
        assert handle.result(WAIT_S) == {
            TopicPartition("t", 0): WrittenRange(0, 0, 1),
            TopicPartition("t", 1): WrittenRange(1, 2, 2),
            TopicPartition("u", 0): WrittenRange(0, 0, 1),
        }
        assert heard.wait(WAIT_S)
        assert handle.done()
        assert producer.send_table(table.slice(0, 0), topic="t").result() == {}
    records = fake_cluster.log("t", 1).records()
    assert [record.value for record in records] == [b"before", b"0", b"2"]
    assert records[1].key == b"a"
    assert list(records[1].headers) == [("h", b"1")]
    assert fake_cluster.log("u", 0).records()[0].value is None


def test_a_table_of_any_library_that_exports_arrow(fake_cluster: FakeCluster) -> None:
    """pandas' DataFrame, and a stream of Arrow's view types, as Polars exports it."""
    fake_cluster.create_topic("t")
    views = pa.table({"value": pa.array([b"2"], pa.binary_view()), "key": pa.nulls(1)})

    class Stream:
        def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
            return views.__arrow_c_stream__(requested_schema)

    frame = pd.DataFrame({"value": ["0", None], "key": ["a", "b"]}, index=[7, 8])
    with opened(fake_cluster) as producer:
        for table in (frame, Stream(), views.to_batches()[0]):
            producer.send_table(table, "t").result(WAIT_S)
        with pytest.raises(OptionError, match="cannot convert a ChunkedArray to an Arrow"):
            producer.send_table(views["value"], "t")
    assert log_values(fake_cluster, "t") == [b"0", None, b"2", b"2"]


def test_columns_of_nulls_are_as_none(fake_cluster: FakeCluster) -> None:
    """What pandas makes of a table whose columns were all null."""
    fake_cluster.create_topic("t")
    names = ("value", "key", "headers", "partition", "timestamp", "topic")
    nulls = pa.table({name: pa.nulls(2) for name in names})
    empty = pa.table({"value": [b"2"], "headers": pa.array([[]], pa.list_(pa.null()))})
    with opened(fake_cluster) as producer:
        producer.send_table(nulls, "t").result(WAIT_S)
        producer.send_table(empty, "t").result(WAIT_S)
        with pytest.raises(OptionError, match="column topic is null"):
            producer.send_table(nulls)
    records = fake_cluster.log("t", 0).records()
    assert [record.value for record in records] == [None, None, b"2"]
    assert [list(record.headers) for record in records] == [[], [], []]
    assert min(record.timestamp_ms for record in records) > 1_700_000_000_000


def test_a_large_table_goes_in_pieces(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t", partitions=3)
    count = 20_000
    table = pa.table({"value": pa.array([b"%0100d" % number for number in range(count)])})
    with opened(fake_cluster, buffer_memory=400_000) as producer:
        found = producer.send_table(table, topic="t").result(60)
    assert sum(row.record_count for row in found.values()) == count
    assert sorted(map(int, all_values(fake_cluster, "t", 3))) == list(range(count))


SECONDS = pa.timestamp("s")


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"key": [b"k"]}, OptionError, "no column value"),
        ({"value": [1]}, OptionError, "column value is int64, it must be binary or string"),
        ({"value": [b""]}, OptionError, "no topic"),
        ({"value": [b""], "topic": [None]}, OptionError, "column topic is null"),
        (
            {"value": [b"", b""], "topic": ["t", None]},
            EncodeError,
            r"no topic: the column is null \(row 1 of the table\)",
        ),
        ({"value": [b""], "topic": ["t"], "partition": [-1]}, EncodeError, "counted from 0"),
        (
            {"value": [b""] * 3, "topic": ["t"] * 3, "partition": [0, 1, 1 << 40]},
            EncodeError,
            "column partition, row 2 of the table: .*1099511627776",
        ),
        (
            {"value": [b""] * 2, "topic": ["t"] * 2, "timestamp": pa.array([1, 10**15], SECONDS)},
            EncodeError,
            "column timestamp, row 1 of the table: .*1000000000000000",
        ),
        ({"value": [bytes(3_000)], "topic": ["t"]}, ProduceError, "row 0 of the table"),
    ],
)
def test_tables_that_are_wrong(columns: Any, error: type[KafkaError], message: str) -> None:
    with opened("127.0.0.1:1", max_request_size=3_000) as producer:
        with pytest.raises(error, match=message):
            producer.send_table(pa.table(columns))
        with pytest.raises(OptionError, match="pyarrow Table or RecordBatch"):
            producer.send_table([{"value": b""}])


@pytest.mark.usefixtures("short_grace")
def test_a_table_with_a_wrong_partition_and_a_missing_topic(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    table = pa.table({"value": ["0", "1", "2"], "partition": [0, 7, 0], "topic": ["t", "t", "u"]})
    with opened(fake_cluster) as producer:
        handle = producer.send_table(table)
        with pytest.raises(UnknownTopicError):
            handle.result(WAIT_S)
        assert handle.written() == {TopicPartition("t", 0): WrittenRange(0, 0, 1)}
    assert log_values(fake_cluster, "t") == [b"0"]
