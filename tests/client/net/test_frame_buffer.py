"""Responses that are received into one and the same memory."""

from __future__ import annotations

import errno
import mmap
import os

import pytest

from sparkkafka.client.consumer import fetcher
from sparkkafka.client.net import frames
from sparkkafka.client.net.frames import LARGE_BYTES, FrameBuffer
from sparkkafka.testing.fake.faults import Drop
from tests.client.support import fill, open_cluster, reader


@pytest.mark.parametrize("unit", [1, LARGE_BYTES])
def test_buffer_is_used_again_and_grows(unit: int) -> None:
    buffer = FrameBuffer()
    first = buffer.view(10 * unit)
    first[:] = b"a" * (10 * unit)
    second = buffer.view(6 * unit)
    assert (len(first), len(second)) == (10 * unit, 6 * unit)
    assert second.obj is first.obj
    third = buffer.view(16 * unit)
    third[:] = b"b" * (16 * unit)
    assert bytes(first) == b"a" * (10 * unit)  # who still has the old memory keeps it
    assert buffer.view(17 * unit).obj is third.obj
    assert len(buffer.view(0)) == 0


def test_too_little_memory_is_no_lost_connection(fake_cluster, monkeypatch) -> None:
    """spark.executor.pyspark.memory, for instance, is a limit of the process."""
    fake_cluster.create_topic("t")
    fill(fake_cluster, "t", 1_000)
    fake_cluster.clear_requests()

    def refuse(*_args: object, **_named: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(frames, "LARGE_BYTES", 1_000)
    monkeypatch.setattr(mmap, "mmap", refuse)
    with (
        open_cluster(fake_cluster) as cluster,
        reader(cluster, "t", 0, 1_000) as source,
        pytest.raises(
            MemoryError, match=r"no \d{4,} bytes for a response: .*Cannot allocate memory"
        ),
    ):
        list(source)
    assert len(fake_cluster.requests_of("Fetch")) == 1


@pytest.mark.parametrize("lost", [False, True])
def test_columns_are_sound_after_later_responses_came(fake_cluster, monkeypatch, lost) -> None:
    """All decoded columns are kept to the end, and all responses come into the same memory."""
    fake_cluster.create_topic("t")
    fill(fake_cluster, "t", 1_000, batch_size=500, linger_ms=0)
    fake_cluster.clear_requests()
    made = []

    class Noted(FrameBuffer):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(fetcher, "FrameBuffer", Noted)
    if lost:
        fake_cluster.fault(Drop.AFTER, api="Fetch", nth=3)
    with (
        open_cluster(fake_cluster) as cluster,
        reader(cluster, "t", 0, 1_000, max_partition_fetch_bytes=1_200) as source,
    ):
        pieces = [records for _, records in source]
    assert len(made) == 1
    assert len(pieces) > 10
    numbers = [int(value) for piece in pieces for value in piece.values.to_pylist()]
    assert numbers == list(range(1_000))
    for piece in pieces:
        assert [int(value) for value in piece.values.to_pylist()] == piece.offsets.tolist()
