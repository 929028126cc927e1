"""Memory of the buffer of a Producer."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from sparkkafka.client.metrics import SendMetrics
from sparkkafka.client.producer import futures, record_accumulator
from sparkkafka.client.producer.futures import OutcomeNotifier, TopicRecords
from sparkkafka.client.producer.producer_records import AppendedRecords
from sparkkafka.client.producer.record_accumulator import SendBuffer
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import KafkaTimeoutError
from tests.client.support import settings
from tests.support.options import parse_producer_options

LIMIT = 100


@contextlib.contextmanager
def opened(max_block_ms: int = 1) -> Iterator[SendBuffer]:
    given = settings("127.0.0.1:1", buffer_memory=LIMIT, max_block_ms=max_block_ms)
    buffer = SendBuffer(parse_producer_options(given), OutcomeNotifier(), SendMetrics(0))
    try:
        yield buffer
    finally:
        buffer.close()


def filled(buffer: SendBuffer, topic: str, size_bytes: int) -> AppendedRecords:
    """Open records: one, that counts so many bytes."""
    with buffer.lock:
        records = buffer.open_records(topic)
        records.values.append(b"v")
        records.keys.append(None)
        records.sent_at_s.append(0.0)
        records.size_bytes += size_bytes
        buffer.used_bytes += size_bytes
    return records


def has_memory(buffer: SendBuffer, size_bytes: int) -> bool:
    with buffer.lock:
        try:
            buffer.wait_for_memory(size_bytes, lambda: "")
        except KafkaTimeoutError as error:
            assert f"buffer.memory={LIMIT}" in str(error)
            return False
    return True


def test_what_is_delivered_takes_no_memory_before_the_io_thread_frees_it() -> None:
    with opened() as buffer:
        records = filled(buffer, "t", LIMIT)
        assert not has_memory(buffer, 1)
        buffer.take()
        assert not has_memory(buffer, 1)
        records.acknowledged(TopicPartition("t", 0), range(1), 0, -1)
        assert buffer.taken_bytes == LIMIT
        assert has_memory(buffer, LIMIT)


def test_a_flush_since_the_last_take_ends_the_lingering_of_what_was_taken() -> None:
    with opened() as buffer:
        filled(buffer, "t", 1)
        buffer.take()
        buffer.flushes += 1
        assert buffer.begin_sleep() == -math.inf
        buffer.take()
        assert buffer.begin_sleep() == math.inf


@pytest.mark.parametrize("ready", [False, True])
def test_what_was_queued_since_takes_memory(ready: bool) -> None:
    with opened() as buffer:
        records = filled(buffer, "t", LIMIT)
        buffer.take()
        records.acknowledged(TopicPartition("t", 0), range(1), 0, -1)
        filled(buffer, "t", 40)
        if ready:
            with buffer.lock:
                buffer.close_open()
        assert has_memory(buffer, 60)
        assert not has_memory(buffer, 61)
        (later,) = buffer.take()
        assert not has_memory(buffer, 61)
        buffer.free(40)
        assert has_memory(buffer, 60)
        later.acknowledged(TopicPartition("t", 0), range(1), 1, -1)
        assert has_memory(buffer, LIMIT)


def test_a_caller_that_waits_waits_for_half_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_accumulator, "GATHER_S", 60.0)
    freed_bytes: list[int] = []
    looked = threading.Semaphore(0)
    with opened(max_block_ms=60_000) as buffer:
        filled(buffer, "t", LIMIT)
        buffer.take()
        monkeypatch.setattr(buffer, "wake", looked.release)  # once for each look of the caller

        def free() -> None:
            for taken_bytes in (80, 60, 50):
                if looked.acquire(timeout=10):
                    freed_bytes.append(LIMIT - taken_bytes)
                    buffer.free(taken_bytes)

        thread = threading.Thread(target=free)
        thread.start()
        with buffer.lock:
            buffer.wait_for_memory(10, lambda: "")
        assert freed_bytes == [20, 40, 50]
        thread.join()


def test_a_record_is_pending_while_the_io_thread_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy releases the interpreter's lock while it fills a large array."""
    records = TopicRecords("t", OutcomeNotifier())
    seen = []

    class Slow(np.ndarray):
        def fill(self, value: object) -> None:
            seen.append(records.is_done(3))
            super().fill(value)

    def empty(count: int, dtype: type) -> np.ndarray:
        return np.full(count, 7, dtype).view(Slow)  # what memory may hold

    monkeypatch.setattr(futures, "np", SimpleNamespace(**vars(np) | {"empty": empty}))
    records.begin(np.zeros(1_000, np.int64))
    assert (seen, records.is_done(3)) == ([False], False)
