"""Rows of many partitions that wait for their batches."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from sparkkafka.client.producer import record_accumulator
from sparkkafka.client.producer.record_accumulator import RecordAccumulator, RowRange
from sparkkafka.client.values import TopicPartition
from sparkkafka.protocol.columns.columns import Selection
from sparkkafka.protocol.columns.decode import decode_batches
from sparkkafka.protocol.columns.encode import (
    RecordColumns,
    _as_record_batch,
    run_sizes,
)
from sparkkafka.protocol.records.arrow import binary_array
from sparkkafka.protocol.records.batches import EncodedBatch
from tests.client.support import settings
from tests.support.options import parse_producer_options

BATCH_BYTES = 4096


def values_of(batch: EncodedBatch) -> list[Any]:
    decoded = decode_batches([_as_record_batch(batch)], Selection(0, batch.record_count))
    return decoded.values.to_pylist()  # type: ignore[no-any-return, union-attr]


class Collected:
    """What an accumulator closes, by partition number."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        linger_ms: int = 60_000,
        batch_bytes: int = BATCH_BYTES,
        has_unsent: Callable[[TopicPartition], bool] = lambda _: False,
    ) -> None:
        given = settings("127.0.0.1:1", batch_size=batch_bytes, linger_ms=linger_ms)
        self.accumulator = RecordAccumulator(parse_producer_options(given), self._add, has_unsent)
        self.batches: dict[int, list[EncodedBatch]] = {}
        self.pieces: dict[int, list[int]] = {}
        self.encoded = 0
        encode = record_accumulator.encode_runs

        def counted(*args: Any, **named: Any) -> Any:
            self.encoded += 1
            return encode(*args, **named)

        monkeypatch.setattr(record_accumulator, "encode_runs", counted)

    def _add(
        self, tp: TopicPartition, batches: list[EncodedBatch], pieces: Sequence[int], _: float
    ) -> None:
        self.batches.setdefault(tp.partition, []).extend(batches)
        self.pieces.setdefault(tp.partition, []).extend(pieces)

    def hold(self, number: int, partitions: int, rows: int, value_bytes: int = 100) -> None:
        """`hold_only`, and what fills a batch is sealed."""
        self.hold_only(number, partitions, rows, value_bytes)
        self.accumulator.close_lingering()

    def hold_only(self, number: int, partitions: int, rows: int, value_bytes: int = 100) -> None:
        """A table with rows for each partition, those of one partition behind the other's."""
        count = partitions * rows
        values = [b"%d/%d/%d" % (row // rows, number, row % rows) for row in range(count)]
        records = RecordColumns(
            None,
            binary_array([value.ljust(value_bytes, b".") for value in values]),
            None,
            np.full(count, 1_700_000_000_000 + number),
        )
        ends = [rows * (partition + 1) for partition in range(partitions)]
        for partition, size in enumerate(run_sizes(records, ends)):
            self.accumulator.append(
                TopicPartition("t", partition),
                RowRange(records, rows * partition, rows * (partition + 1)),
                number,
                size_bytes=size,
            )

    def values(self, partition: int) -> list[bytes]:
        found = [value for batch in self.batches[partition] for value in values_of(batch)]
        return [value.rstrip(b".") for value in found]


def test_rows_of_full_batches_are_freed_before_linger_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's writer calls nothing but `append` and `close_lingering` until its rows end."""

    def held() -> list[RowRange]:
        return [kept for kept in gc.get_objects() if isinstance(kept, RowRange)]

    earlier = held()  # of other tests, whose producers are not collected yet
    got = Collected(monkeypatch)
    for number in range(20):
        got.hold(number, partitions=1, rows=50)
    assert len(got.batches[0]) >= 20
    assert len(held()) == len(earlier)


def test_small_batches_of_many_partitions_are_encoded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    got = Collected(monkeypatch)
    for number in range(3):
        got.hold(number, partitions=500, rows=2)
    assert not got.batches
    got.accumulator.close_all()
    assert got.encoded == 1
    assert len(got.batches) == 500
    for partition in range(500):
        assert got.pieces[partition] == [0, 1, 2]
        expected = [b"%d/%d/%d" % (partition, number, row) for number in range(3) for row in (0, 1)]
        assert got.values(partition) == expected
    assert got.accumulator.pending_bytes == 0
    got.accumulator.close_all()
    assert got.encoded == 1


def test_a_batch_is_full_when_the_next_rows_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not two of half the size, for a few bytes too many."""
    got = Collected(monkeypatch)
    for number in range(100):
        got.hold(number, partitions=3, rows=5)
    got.accumulator.close_all()
    for partition in range(3):
        assert got.pieces[partition] == list(range(100))
        sizes = [len(batch.payload) for batch in got.batches[partition]]
        assert min(sizes[:-1]) > 0.8 * BATCH_BYTES
        assert max(sizes) < BATCH_BYTES
        expected = [
            b"%d/%d/%d" % (partition, number, row) for number in range(100) for row in range(5)
        ]
        assert got.values(partition) == expected


def test_rows_that_are_dropped_are_no_longer_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    got = Collected(monkeypatch)
    got.hold(7, partitions=4, rows=2)
    assert got.accumulator.drop_all() == [7] * 4
    got.accumulator.close_all()
    assert not got.batches
    assert got.accumulator.pending_bytes == 0
    assert got.accumulator.close_at_s() == math.inf


def test_without_linger_all_that_came_together_is_encoded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    got = Collected(monkeypatch, linger_ms=0)
    got.hold(0, partitions=50, rows=1)
    got.accumulator.close_lingering()
    assert got.encoded == 1
    assert len(got.batches) == 50
    assert got.accumulator.close_at_s() == math.inf


@pytest.mark.parametrize("is_flushed", [False, True])
def test_records_behind_an_unsent_batch_join_one_batch(
    monkeypatch: pytest.MonkeyPatch, is_flushed: bool
) -> None:
    monkeypatch.setattr(record_accumulator, "JOIN_S", 3600.0)
    waiting = {TopicPartition("t", 0)}
    got = Collected(monkeypatch, linger_ms=0, has_unsent=waiting.__contains__)
    for number in range(5):
        got.hold(number, partitions=2, rows=1)
        if is_flushed:
            got.accumulator.close_all()
    assert got.pieces == {1: [0, 1, 2, 3, 4]}
    # The thread that sends need not wake up for the batch that waits.
    assert got.accumulator.close_at_s() > time.monotonic() + 1000
    waiting.clear()
    assert got.accumulator.close_at_s() <= time.monotonic()
    got.accumulator.close_lingering()
    assert [len(batches) for batches in got.batches.values()] == [5, 1]
    assert got.pieces[0] == [0, 1, 2, 3, 4]


def test_a_full_batch_closes_behind_an_unsent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    got = Collected(monkeypatch, linger_ms=0, has_unsent=lambda _: True)
    got.hold(0, partitions=1, rows=BATCH_BYTES // 100 + 1)
    assert got.batches


def test_large_batches_behind_small_ones_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    got = Collected(monkeypatch, batch_bytes=400_000)
    for number, rows in enumerate([21, 19, 30, 3]):
        got.hold_only(number, partitions=2, rows=rows, value_bytes=10_000)
    got.accumulator.close_all()
    for partition in range(2):
        assert got.pieces[partition] == [0, 1, 2, 3]
        expected = [
            b"%d/%d/%d" % (partition, number, row)
            for number, rows in enumerate([21, 19, 30, 3])
            for row in range(rows)
        ]
        assert got.values(partition) == expected


def test_full_batches_count_until_they_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    got = Collected(monkeypatch)
    for number in range(10):
        got.hold_only(number, partitions=2, rows=10)
    counts = dict.fromkeys((TopicPartition("t", 0), TopicPartition("t", 1)), 0)
    for tp, count in got.accumulator.record_counts():
        counts[tp] += count
    assert set(counts.values()) == {100}
    got.accumulator.close_all()
    assert list(got.accumulator.record_counts()) == []
