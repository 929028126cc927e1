"""Room in the buffer of a Producer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from sparkkafka.client.metrics.sending import SendMetrics
from sparkkafka.client.producer.futures import NoticeBoard
from sparkkafka.client.producer.send_buffer import RecordChunk, SendBuffer
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import KafkaTimeoutError
from tests.client.support import settings
from tests.support.options import parse_producer_options

LIMIT = 100


@contextlib.contextmanager
def opened() -> Iterator[SendBuffer]:
    given = settings("127.0.0.1:1", buffer_memory=LIMIT, max_block_ms=1)
    buffer = SendBuffer(parse_producer_options(given), NoticeBoard(), SendMetrics(0))
    try:
        yield buffer
    finally:
        buffer.close()


def filled(buffer: SendBuffer, topic: str, size_bytes: int) -> RecordChunk:
    """An open chunk of one record that counts so many bytes."""
    with buffer.lock:
        chunk = buffer.open_chunk(topic)
        chunk.values.append(b"v")
        chunk.keys.append(None)
        chunk.times_s.append(0.0)
        chunk.size_bytes += size_bytes
        buffer.used_bytes += size_bytes
    return chunk


def has_room(buffer: SendBuffer, size_bytes: int) -> bool:
    with buffer.lock:
        try:
            buffer.make_room(size_bytes, lambda: "")
        except KafkaTimeoutError as error:
            assert f"buffer.memory={LIMIT}" in str(error)
            return False
    return True


def test_what_is_delivered_takes_no_room_before_the_io_thread_has_told_so() -> None:
    with opened() as buffer:
        chunk = filled(buffer, "t", LIMIT)
        assert not has_room(buffer, 1)
        buffer.take()
        assert not has_room(buffer, 1)
        chunk.delivered(TopicPartition("t", 0), range(1), 0, -1)
        assert buffer.io_bytes == LIMIT
        assert has_room(buffer, LIMIT)


@pytest.mark.parametrize("ready", [False, True])
def test_what_came_since_takes_room(ready: bool) -> None:
    with opened() as buffer:
        chunk = filled(buffer, "t", LIMIT)
        buffer.take()
        chunk.delivered(TopicPartition("t", 0), range(1), 0, -1)
        filled(buffer, "t", 40)
        if ready:
            with buffer.lock:
                buffer.roll_all()
        assert has_room(buffer, 60)
        assert not has_room(buffer, 61)
        (later,) = buffer.take()
        assert not has_room(buffer, 61)
        buffer.freed(40, [chunk])
        assert has_room(buffer, 60)
        later.delivered(TopicPartition("t", 0), range(1), 1, -1)
        assert has_room(buffer, LIMIT)


@pytest.mark.parametrize("buffer_memory", [32 << 20, 32 << 30])
def test_a_chunk_of_many_partitions_takes_more_before_it_is_full(buffer_memory: int) -> None:
    """What a chunk costs for each of its partitions is shared by more records."""
    given = settings("127.0.0.1:1", batch_size=16_384, buffer_memory=buffer_memory)
    buffer = SendBuffer(parse_producer_options(given), NoticeBoard(), SendMetrics(0))
    try:
        with buffer.lock:
            unknown = buffer.open_chunk("t").full_bytes
        assert unknown == 8 << 20  # until it is known better
        full_bytes = {}
        for spread in (1, 4, 100, 500, 10_000):
            buffer.expect("t", 16_384, spread)
            full_bytes[spread] = buffer.open["t"].full_bytes
        assert full_bytes[1] == full_bytes[4] == buffer.chunk_bytes < 1 << 20
        assert full_bytes[100] == 100 * 16_384
        assert full_bytes[500] == 500 * 16_384
        assert full_bytes[10_000] == 8 << 20
        buffer.take()
        with buffer.lock:
            assert buffer.open_chunk("t").full_bytes == 8 << 20
    finally:
        buffer.close()
