"""The records that wait to be sent, first by topic, then in batches by partition (Java's
RecordAccumulator).

Java's `send` chooses the partition and appends to its batch. Here that would take a record with a
key 2.4 times as long (measured), so `send` appends to lists of the topic in the `SendBuffer`, which
also limits buffer.memory. The I/O thread chooses the partitions of all of them together, and
appends them to the batches of the `RecordAccumulator`, where batch.size and linger.ms count.
Spark's tasks append rows to the same batches directly.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparkkafka.client.deadline import Deadline, Waker
from sparkkafka.client.metrics import SendMetrics
from sparkkafka.client.producer.futures import OutcomeNotifier, RecordSlice, TopicRecords
from sparkkafka.client.producer.producer_records import AppendedRecords, columns_of
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import ProducerOptions
from sparkkafka.errors import KafkaError, KafkaTimeoutError
from sparkkafka.protocol.columns.encode import (
    RecordColumns,
    RecordFields,
    encode_records,
    encode_runs,
    sliced,
)
from sparkkafka.protocol.constants import RECORD_BATCH_OVERHEAD
from sparkkafka.protocol.records.arrow import BATCH_POOL
from sparkkafka.protocol.records.batches import EncodedBatch

# --- records by topic: what `send` appends to ----------------------------------------------------

GATHER_S = 0.05
"""How long a caller that waits for memory lets others' records be delivered, so that it need not
wait again for the next record. Longer would delay it if a broker that is away holds the memory."""


class SendBuffer:
    """Records by topic that the I/O thread has not taken, and the memory of all records.

    `lock` guards all of it. Ctrl-C may interrupt a user's thread between any two steps. Records may
    then be in both `open` and `ready`, or not be counted, until `take` corrects it; each record is
    in at least one of them. The busier the I/O thread is, the more records it takes together, and
    the less each of them costs. `RecordAccumulator` decides how long the thread may sleep: until
    linger.ms is over or a batch is full.
    """

    def __init__(
        self, options: ProducerOptions, notifier: OutcomeNotifier, metrics: SendMetrics
    ) -> None:
        self.lock = threading.Lock()
        self._metrics = metrics
        self._memory_freed = threading.Condition(self.lock)
        self._notifier = notifier
        self._max_block_ms = options.max_block_ms
        self.limit_bytes = options.buffer_memory
        self.full_bytes = max(1, min(2 * 2**20, options.buffer_memory // 4))
        """At this size a topic's open records become ready, and the next record opens new ones.
        Only while the I/O thread is busy do as many bytes collect."""
        self.wake_bytes = min(options.batch_size, self.full_bytes)
        """Open records of a topic wake the I/O thread at this size."""
        self.open: dict[str, AppendedRecords] = {}
        self.ready: deque[TopicRecords] = deque()
        self.unfinished: set[TopicRecords] = set()
        """All that have records without an outcome: open, ready and taken ones."""
        self.used_bytes = 0
        """The bytes of the records that the I/O thread has not taken."""
        self.taken_bytes = 0
        """The bytes of the records that the I/O thread has taken. Only that thread sets this."""
        self.flushes = 0
        """The number of callers that wait for the delivery of all records."""
        self.waiting_threads = 0
        """The number of callers that wait for memory."""
        self.on_freed: Callable[[], object] = lambda: None
        """Called when memory is freed that a caller waits for, in the I/O thread."""
        self.is_awaited = False
        """Whether a task of an AsyncProducer awaits records, which linger no longer."""
        self.may_linger = True
        """Whether no caller waited for delivery or memory when the I/O thread last took records."""
        self.is_sleeping = False
        self._refusal: Callable[[], KafkaError] | None = None
        self.commands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        """What callers let the I/O thread do: see `ProducerThread.call`."""
        self.waker = Waker()

    # --- called by the user's threads, which hold the lock ----------------------------------------

    def refuse(self, reason: Callable[[], KafkaError] | None) -> None:
        """Refuse records from now on, with the error that `reason` returns; with None accept them
        again."""
        self._refusal = reason
        self._memory_freed.notify_all()
        self.on_freed()

    def raise_refusal(self) -> None:
        """Raise the error of `refuse`, if the buffer refuses records."""
        if self._refusal is not None:
            raise self._refusal()

    def open_records(self, topic: str) -> AppendedRecords:
        """Open records for a topic that has none, and return them.

        The caller must call `wake` after it has released the lock. Raises the errors of
        `raise_refusal`.
        """
        self.raise_refusal()
        records = self.open[topic] = AppendedRecords(topic, self._notifier)
        self.unfinished.add(records)
        return records

    def close_open(self) -> None:
        """Make all open records ready, in the order in which they were opened."""
        self.ready.extend(self.open.values())
        self.open.clear()

    def add(self, records: TopicRecords) -> None:
        """Queue records behind all earlier ones, and wake the I/O thread. Raises the errors of
        `raise_refusal`."""
        self.raise_refusal()
        self.close_open()
        self.ready.append(records)
        self.unfinished.add(records)
        self.used_bytes += records.size_bytes
        self.wake()  # with the lock, once for many records

    def wait_for_memory(self, size_bytes: int, failure_text: Callable[[], str]) -> None:
        """Wait until `size_bytes` fit into the buffer or it is empty, at most for max.block.ms.
        `failure_text` returns why nothing is delivered, if that is known.

        A caller that has to wait waits for half of the memory, at most GATHER_S: waiting for each
        record would cost more than the record. Raises KafkaTimeoutError, and KafkaError if the
        buffer is closed meanwhile.
        """
        self.raise_refusal()
        deadline = Deadline(self._max_block_ms)
        hint = ""
        if threading.current_thread() is self._notifier.io_thread:
            hint = "; a callback cannot wait for it, since it runs in the thread that sends"
        since_s, timed_out = time.monotonic(), False
        gather_until_s = 0.0
        self.waiting_threads += 1
        try:
            while True:
                fits = self.has_memory(size_bytes)
                gathers = time.monotonic() < gather_until_s
                if fits and (not gathers or self.has_memory(self.limit_bytes // 2)):
                    break
                self.wake()
                if not fits and (hint or deadline.expired):
                    raise self.buffer_full_error(size_bytes, failure_text(), hint)
                gather_until_s = since_s + min(GATHER_S, self._max_block_ms / 1000)
                self._memory_freed.wait(min(deadline.remaining_s(), GATHER_S))
                self.raise_refusal()
        except KafkaTimeoutError:
            timed_out = True
            raise
        finally:
            self.waiting_threads -= 1
            self._metrics.waited_for_memory(since_s, timed_out=timed_out)

    def has_memory(self, size_bytes: int) -> bool:
        """Return whether `size_bytes` fit, or the buffer is empty."""
        used = self.held_bytes()
        return not used or used + size_bytes <= self.limit_bytes

    def buffer_full_error(self, size_bytes: int, why: str, hint: str = "") -> KafkaTimeoutError:
        """Return the error for a caller that has waited for memory for max.block.ms. `why`: what
        prevents sends, "" if brokers are only slow; `hint`: what to do."""
        return KafkaTimeoutError(
            f"{'records cannot be sent' if why else 'the brokers take records too slowly'}: "
            f"{self.held_bytes()} bytes wait, the next takes {size_bytes}, and "
            f"buffer.memory={self.limit_bytes} had no room for "
            f"max.block.ms={self._max_block_ms}{hint}{why}"
        )

    def held_bytes(self) -> int:
        """Return the bytes of records without an outcome.

        (The I/O thread sets `taken_bytes` at the end of each step of its loop, perhaps long after
        the last outcome. A caller that has seen this outcome must find free memory.)
        """
        taken = self.unfinished.difference(self.open.values(), self.ready)
        return self.used_bytes + (
            0 if all(records.all_done for records in taken) else self.taken_bytes
        )

    def wake(self) -> None:
        """Wake the I/O thread if it sleeps. Better called without the lock, for which the thread
        waits next."""
        if self.is_sleeping:
            self.is_sleeping = False
            self.waker.wake()

    def set_forked(self) -> None:
        """Replace the lock in the child of a fork, which has no I/O thread and no thread that would
        release the old one. Drop open records."""
        self.lock = threading.Lock()
        self._memory_freed = threading.Condition(self.lock)
        self.open.clear()
        self.is_sleeping = False

    # --- called by the I/O thread -----------------------------------------------------------------

    def take(self) -> list[TopicRecords]:
        """Remove and return all records. From then on their bytes are part of `taken_bytes`."""
        self.may_linger = not (self.waiting_threads or self.flushes)
        if self.is_awaited:  # by a task, which sends no more until then
            self.is_awaited = self.may_linger = False
        if not (self.open or self.ready):
            return []
        with self.lock:
            self.close_open()
            record_sets = list(dict.fromkeys(self.ready))  # Ctrl-C may have added one twice
            self.ready.clear()
            self.unfinished.update(record_sets)
            for records in record_sets:
                self.taken_bytes += records.size_bytes
            self.used_bytes = 0
        for records in record_sets:
            records.close()
        return record_sets

    def begin_sleep(self) -> float:
        """Note that the I/O thread sleeps from now on. Return the monotonic time since which the
        oldest open records wait, infinite if there are none. If there is work, so that the thread
        must not sleep, return -infinite."""
        with self.lock:
            has_waiters = self.waiting_threads or self.flushes
            # If the last `take` let batches linger, these callers came after it: close them now.
            has_work_for_waiters = has_waiters and (self.may_linger or self.open)
            if self.ready or self.commands or self.is_awaited or has_work_for_waiters:
                return -math.inf
            since_s = math.inf
            for records in self.open.values():
                if records.size_bytes >= self.wake_bytes:
                    return -math.inf
                since_s = min(since_s, records.since_s)
            self.is_sleeping = True
            return since_s

    def free(self, taken_bytes: int) -> None:
        """Free the memory of records that have an outcome, and wake callers that wait for memory.
        `taken_bytes` is the memory of the records that the I/O thread still holds."""
        with self.lock:
            self.taken_bytes = taken_bytes
            self.unfinished -= {records for records in self.unfinished if not records.pending_count}
            if self.waiting_threads:
                self._memory_freed.notify_all()
                self.on_freed()

    def close(self) -> None:
        """Close the waker's sockets, after the I/O thread has ended."""
        with self.lock:
            self.waker.close()
            self.is_sleeping = False


# --- batches by partition ------------------------------------------------------------------------

JOIN_S = 1.0
"""How much longer than linger.ms records join a batch behind one that waits to be sent."""

MAX_SCALAR_RECORDS = 256
"""Up to here, records that came one by one are partitioned and encoded one by one, which takes less
time than columns of them: half of it without keys, nine tenths with keys."""


class RowRange(NamedTuple):
    """The rows from `low` up to `high` of columns. They are sliced only when they are encoded,
    since ranges that follow each other are merged before."""

    columns: RecordColumns
    low: int
    high: int


@dataclass(slots=True, eq=False)
class _OpenBatch:
    """A batch of one partition that is not encoded yet. It lingers from `since_s` (monotonic) on,
    when its first record was appended; `slices` are the futures of its records. With `is_due` it
    lingers no longer."""

    tp: TopicPartition
    since_s: float
    is_due: bool = False
    records: list[RowRange | Sequence[RecordFields]] = field(default_factory=list)
    slices: list[RecordSlice] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def record_count(self) -> int:
        """The number of records of the batch."""
        return sum(
            rows.high - rows.low if isinstance(rows, RowRange) else len(rows)
            for rows in self.records
        )

    def fields_if_few(self) -> list[RecordFields] | None:
        """Return the records if all came one by one and are at most MAX_SCALAR_RECORDS, else
        None."""
        fields: list[RecordFields] = []
        for records in self.records:
            if isinstance(records, RowRange) or len(fields) + len(records) > MAX_SCALAR_RECORDS:
                return None
            fields += records
        return fields


class RecordAccumulator:
    """The batches of all partitions that are not encoded yet; for one thread. (`partition_queue`
    gives encoded batches their sequences.)

    A batch closes when the next records do not fit into batch.size, when its first record has
    waited for linger.ms, or when a caller flushes or waits for memory. Closed batches are encoded,
    many together, and go to `on_closed(partition, encoded, slices, since_s)`, which has the
    arguments of `Sender.append`: `slices` are those that `append` got, first at `since_s`.

    While `has_unsent` says that an earlier batch of the partition waits to be sent (the broker is
    away, or all requests are in flight), records join the open batch for JOIN_S more. Otherwise an
    outage would leave thousands of batches of one record. Java's join until the batch is sent; then
    all of them fail when the first one has waited for delivery.timeout.ms.
    """

    def __init__(
        self,
        options: ProducerOptions,
        on_closed: Callable[
            [TopicPartition, list[EncodedBatch], Sequence[RecordSlice], float], None
        ],
        has_unsent: Callable[[TopicPartition], bool] = lambda _: False,
    ) -> None:
        self._linger_s = options.linger_ms / 1000
        self._on_closed = on_closed
        self._has_unsent = has_unsent
        self._batch_size = options.batch_size
        self._max_batch_bytes = max(min(options.batch_size, options.max_request_size), 1)
        self._max_records_bytes = max(self._max_batch_bytes - RECORD_BATCH_OVERHEAD, 1)
        self._open: dict[TopicPartition, _OpenBatch] = {}
        self._full: list[_OpenBatch] = []
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
        """Append records of a partition to its batch. They take at most `size_bytes` encoded;
        `record_slice` are the futures that get their outcome. A new batch lingers from `since_s`
        (monotonic) on, now by default.

        Records are encoded by the methods `close_…`: batches that are encoded together cost less.
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
        batch.records.append(records)
        if record_slice is not None:
            batch.slices.append(record_slice)
        batch.size_bytes += size_bytes
        self.pending_bytes += size_bytes
        if batch.size_bytes >= self._batch_size:
            self._full.append(self._open.pop(tp))

    def record_counts(self) -> Iterator[tuple[TopicPartition, int]]:
        """Yield partition and number of records of each batch that is not encoded yet."""
        for batch in (*self._full, *self._open.values()):
            yield batch.tp, batch.record_count

    def close_at_s(self, since_s: float = math.inf) -> float:
        """Return the monotonic time at which `close_lingering` is due, infinite without records.
        Records that are not appended yet have waited since `since_s`."""
        if not self._open:
            return since_s + self._linger_s
        now_s = time.monotonic()
        closes_at_s = (self._closes_at_s(batch, now_s) for batch in self._open.values())
        return min(since_s + self._linger_s, *closes_at_s)

    def _closes_at_s(self, batch: _OpenBatch, now_s: float) -> float:
        """Return the monotonic time at which a batch that is not full closes, or its linger.ms is
        over."""
        lingers_until_s = batch.since_s + (0.0 if batch.is_due else self._linger_s)
        if lingers_until_s > now_s or not self._has_unsent(batch.tp):
            return lingers_until_s
        return lingers_until_s + JOIN_S  # it could not be sent yet anyway

    def close_lingering(self) -> None:
        """Close full batches, and those that have waited for linger.ms."""
        if self._open or self._full:
            now_s = time.monotonic()
            due = [b for b in self._open.values() if self._closes_at_s(b, now_s) <= now_s]
            for batch in due:
                del self._open[batch.tp]
            self._close(due)

    def close_all(self) -> None:
        """Close all batches. One behind an unsent batch closes as soon as that is sent."""
        for batch in self._open.values():
            batch.is_due = True
        self.close_lingering()

    def drop_all(self) -> list[RecordSlice]:
        """Drop all records. Return the RecordSlices that get their outcome."""
        dropped = [part for batch in (*self._full, *self._open.values()) for part in batch.slices]
        self._open.clear()
        self._full.clear()
        self.pending_bytes = 0
        return dropped

    def _close(self, due: list[_OpenBatch]) -> None:
        """Encode the full batches, then those in `due`, in groups, and large batches one by one.
        Pass all of them to `on_closed`."""
        if not (due or self._full):
            return
        max_group_bytes = 4 << 20  # they stay in memory until the last one is acknowledged
        own_group_bytes = 256 << 10  # encoding such a batch on its own saves a copy
        closed, self._full = [*self._full, *due], []
        group: list[_OpenBatch] = []
        group_bytes = 0
        for batch in closed:
            is_large = batch.size_bytes >= own_group_bytes
            if group and (is_large or group_bytes >= max_group_bytes):
                self._encode(group)  # first: it may have an earlier batch of the same partition
                group, group_bytes = [], 0
            group.append(batch)
            self.pending_bytes -= batch.size_bytes
            group_bytes += max_group_bytes if is_large else batch.size_bytes
        self._encode(group)

    def _encode(self, group: list[_OpenBatch]) -> None:
        """Encode these batches together, and pass each to `on_closed`. A few records that came one
        by one are encoded one by one, all others as columns."""
        batch = group[0]
        if len(group) == 1 and batch.size_bytes <= self._max_records_bytes:
            fields = batch.fields_if_few()
            if fields is not None:
                self._on_closed(batch.tp, [encode_records(fields)], batch.slices, batch.since_s)
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
    """Yield the records of a batch, in order, as ranges of rows. Those that came one by one are
    converted to columns."""
    singles: list[RecordFields] = []
    for records in (*batch, None):  # None: the end, for the last `singles`
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
        """Join the column of this name in all parts."""
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
