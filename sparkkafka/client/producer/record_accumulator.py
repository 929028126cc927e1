"""Records that wait for their batch, by partition: linger.ms and batch.size count here.

A batch closes when the next records do not fit into batch.size, when its first record has waited
for linger.ms, or when the caller flushes. Closed batches are encoded, many together, and go to the
sender. Records come one by one or as rows of columns; a Producer's I/O thread and a Spark task use
the same class.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sparkkafka.client.producer.futures import RecordSlice
from sparkkafka.client.producer.input_rows import columns_of
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import ProducerOptions
from sparkkafka.protocol.columns.encode import (
    EncodedBatch,
    RecordColumns,
    RecordFields,
    encode_records,
    encode_runs,
    sliced,
)
from sparkkafka.protocol.records.arrow import BATCH_POOL
from sparkkafka.protocol.records.batches import RECORD_BATCH_OVERHEAD

MAX_SCALAR_RECORDS = 128
"""Up to here, records that came one by one are partitioned and encoded one by one, which takes less
time than columns of them."""

_GROUP_BYTES = 4 << 20
"""The maximum bytes of batches that are encoded together. All of them stay in memory until the last
is acknowledged."""

_OWN_GROUP_BYTES = 256 << 10
"""Records of one partition of this size are encoded on their own, which saves a copy."""


class RowRange(NamedTuple):
    """The rows from `low` up to `high` of columns. They are sliced only when they are encoded,
    since ranges that follow each other are merged before."""

    columns: RecordColumns
    low: int
    high: int


@dataclass(slots=True, eq=False)
class _OpenBatch:
    """Records of a partition; the first one was appended at `since_s` (monotonic)."""

    tp: TopicPartition
    since_s: float
    records: list[RowRange | Sequence[RecordFields]] = field(default_factory=list)
    slices: list[RecordSlice] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def record_count(self) -> int:
        return sum(
            rows.high - rows.low if isinstance(rows, RowRange) else len(rows)
            for rows in self.records
        )

    def fields_if_few(self) -> list[RecordFields] | None:
        """Return the records if they are few and came one by one, else None."""
        fields: list[RecordFields] = []
        for records in self.records:
            if isinstance(records, RowRange) or len(fields) + len(records) > MAX_SCALAR_RECORDS:
                return None
            fields += records
        return fields


class RecordAccumulator:
    """The open batches of all partitions.

    Closed batches go to `on_closed(partition, encoded, slices, since_s)`, as `Sender.append` takes
    them: `slices` are those of the calls of `append`, the first of which was at `since_s`.
    """

    def __init__(
        self,
        options: ProducerOptions,
        on_closed: Callable[
            [TopicPartition, list[EncodedBatch], Sequence[RecordSlice], float], None
        ],
    ) -> None:
        self._linger_s = options.linger_ms / 1000
        self._on_closed = on_closed
        self._batch_size = options.batch_size
        self._max_batch_bytes = max(min(options.batch_size, options.max_request_size), 1)
        self._max_records_bytes = max(self._max_batch_bytes - RECORD_BATCH_OVERHEAD, 1)
        self._open: dict[TopicPartition, _OpenBatch] = {}
        self._full: list[_OpenBatch] = []
        # (since_s, number, batch) as a heap; batches that were closed since are skipped.
        self._lingering: list[tuple[float, int, _OpenBatch]] = []
        self._numbers = itertools.count()
        self.pending_bytes = 0

    def append(
        self,
        tp: TopicPartition,
        records: RowRange | Sequence[RecordFields],
        record_slice: RecordSlice | None = None,
        *,
        size_bytes: int,
        since_s: float | None = None,
    ) -> None:
        """Append records of a partition; `size_bytes` is what they take encoded, not too low.
        `record_slice` has what waits for their outcome. Their batch lingers from `since_s`
        (monotonic), now by default.

        Encodes nothing before one of the methods `close_…`: batches that are encoded together cost
        less.
        """
        batch = self._open.get(tp)
        if (
            batch is not None
            and batch.size_bytes + size_bytes > self._max_records_bytes
            and size_bytes <= self._max_records_bytes // 2
        ):
            # Together they would become two batches of half the size.
            self._full.append(self._open.pop(tp))
            batch = None
        if batch is None:
            batch = _OpenBatch(tp, time.monotonic() if since_s is None else since_s)
            self._open[tp] = batch
            heapq.heappush(self._lingering, (batch.since_s, next(self._numbers), batch))
        batch.records.append(records)
        if record_slice is not None:
            batch.slices.append(record_slice)
        batch.size_bytes += size_bytes
        self.pending_bytes += size_bytes
        if batch.size_bytes >= self._batch_size:
            self._full.append(self._open.pop(tp))

    def record_counts(self) -> Iterator[tuple[TopicPartition, int]]:
        """Yield partition and number of records of each batch that is open, or full and not closed
        yet."""
        for batch in (*self._full, *self._open.values()):
            yield batch.tp, batch.record_count

    def next_close_s(self, not_appended_s: float = math.inf) -> float:
        """When `close_lingering` is due (monotonic seconds), infinite for never. Records that are
        still to be appended have waited since `not_appended_s`."""
        self._skip_closed()
        since_s = self._lingering[0][0] if self._lingering else math.inf
        return min(since_s, not_appended_s) + self._linger_s

    def close_lingering(self) -> None:
        """Close full batches, and those that have waited for linger.ms."""
        if not (self._lingering or self._full):
            return
        limit_s = time.monotonic() - self._linger_s
        due = []
        self._skip_closed()
        while self._lingering and self._lingering[0][0] <= limit_s:
            batch = heapq.heappop(self._lingering)[2]
            due.append(self._open.pop(batch.tp))
            self._skip_closed()
        self._close(due)

    def close_all(self) -> None:
        """Close all batches."""
        due = list(self._open.values())
        self._open.clear()
        self._lingering.clear()
        self._close(due)

    def drop_all(self) -> list[RecordSlice]:
        """Drop all records, and return what waits for their outcome."""
        dropped = [part for batch in (*self._full, *self._open.values()) for part in batch.slices]
        self._open.clear()
        self._full.clear()
        self._lingering.clear()
        self.pending_bytes = 0
        return dropped

    def _skip_closed(self) -> None:
        """Drop closed batches from the top of the heap `_lingering`, so that an open one is
        there."""
        while self._lingering:
            batch = self._lingering[0][2]
            if self._open.get(batch.tp) is batch:
                return
            heapq.heappop(self._lingering)

    def _close(self, due: list[_OpenBatch]) -> None:
        """Encode the full batches, then those that are `due`, and hand them on: in groups of
        _GROUP_BYTES, large batches on their own."""
        if not (due or self._full):
            return
        closed, self._full = [*self._full, *due], []
        group: list[_OpenBatch] = []
        group_bytes = 0
        for batch in closed:
            if group and batch.size_bytes >= _OWN_GROUP_BYTES:
                # The group first: it may have an earlier batch of the same partition.
                self._encode(group)
                group, group_bytes = [], 0
            group.append(batch)
            group_bytes += batch.size_bytes
            if batch.size_bytes >= _OWN_GROUP_BYTES or group_bytes >= _GROUP_BYTES:
                self._encode(group)
                group, group_bytes = [], 0
        if group:
            self._encode(group)

    def _encode(self, group: list[_OpenBatch]) -> None:
        """Encode closed batches together, and hand each to `on_closed`: few single records one by
        one, all others as columns."""
        self.pending_bytes -= sum(batch.size_bytes for batch in group)
        batch = group[0]
        if len(group) == 1 and batch.size_bytes <= self._max_records_bytes:
            fields = batch.fields_if_few()
            if fields is not None:
                encoded = [encode_records(fields)]
                self._on_closed(batch.tp, encoded, batch.slices, batch.since_s)
                return
        parts: list[RowRange] = []
        run_ends = []
        end = 0
        for batch in group:
            for rows in _as_ranges(batch.records):
                if parts and parts[-1].columns is rows.columns and parts[-1].high == rows.low:
                    parts[-1] = parts[-1]._replace(high=rows.high)
                else:
                    parts.append(rows)
                end += rows.high - rows.low
            run_ends.append(end)
        joined = concat_columns([sliced(*rows) for rows in parts])
        runs = encode_runs(joined, run_ends, max_batch_bytes=self._max_batch_bytes)
        for batch, batches in zip(group, runs, strict=True):
            self._on_closed(batch.tp, batches, batch.slices, batch.since_s)


def _as_ranges(batch: list[RowRange | Sequence[RecordFields]]) -> Iterator[RowRange]:
    """Yield the same records in the same order, single ones as rows of columns."""
    singles: list[RecordFields] = []
    for records in (*batch, None):
        if records is not None and not isinstance(records, RowRange):
            singles += records
            continue
        if singles:
            keys, values, headers, times_ms = zip(*singles, strict=True)
            by_index = {index: row for index, row in enumerate(headers) if row}
            columns = columns_of(keys, values, by_index, np.array(times_ms, np.int64))
            yield RowRange(columns, 0, len(singles))
            singles = []
        if records is not None:
            yield records


def concat_columns(parts: list[RecordColumns]) -> RecordColumns:
    """Return the records of all parts, in order, as one. A column that only some parts have is null
    in the others; one that none has is None."""
    if len(parts) == 1:
        return parts[0]
    lengths = [len(part.timestamps_ms) for part in parts]

    def join(name: str) -> pa.Array | None:
        arrays = [getattr(part, name) for part in parts]
        known = next((array for array in arrays if array is not None), None)
        if known is None:
            return None
        return pa.concat_arrays(
            [
                array if array is not None else pa.nulls(length, known.type)
                for array, length in zip(arrays, lengths, strict=True)
            ],
            BATCH_POOL,
        )

    return RecordColumns(
        keys=join("keys"),
        values=join("values"),
        headers=join("headers"),
        timestamps_ms=np.concatenate([part.timestamps_ms for part in parts]),
    )
