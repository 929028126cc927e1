"""The outcomes of a Producer's records, and the handles by which users wait for them.

Records that are queued together are a `TopicRecords`: its arrays have an item for each record, so
that the outcome of thousands is set in a few steps. A handle is an index into them. A batch has
slices of records, which get its outcome.
"""

from __future__ import annotations

import copy
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparkkafka.client.deadline import Deadline, deadline_of
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import KafkaError, KafkaTimeoutError, OptionError, ProduceError
from sparkkafka.protocol.columns.encode import RecordColumns
from sparkkafka.protocol.constants import NO_OFFSET

log = logging.getLogger(__name__)

# These values replace a record's offset:
PENDING = -2  # the record has no outcome yet
_FAILED = -3  # it failed: -3 for the first `Failure` of its `TopicRecords`, -4 for the second, …

ALL = -1
"""In place of a record's index: all records."""

_NO_OFFSETS, _NO_PARTITIONS = np.zeros(0, np.int64), np.zeros(0, np.int32)

Indexes = NDArray[np.int64] | range
"""Indexes of records that are queued together, from 0."""


def closed_error(what: str = "") -> KafkaError:
    """Return the error of a call, `what`, after the producer was closed."""
    return KafkaError(f"{what}{': ' if what else ''}the producer is closed")


def forked_error(what: str = "") -> KafkaError:
    """Return the error of a call, `what`, in the child of a fork."""
    return KafkaError(
        f"{what}{': ' if what else ''}this producer was made before a fork, and its thread, which "
        "sends records and knows their outcomes, is in the parent process: make a producer in each "
        "process"
    )


class RecordMetadata(NamedTuple):
    """Where a record was written. Timestamp in milliseconds since 1970, UTC.

    `offset` is -1 if the broker did not return it (acks=0, or a duplicate recognised late).
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """A record of a series or table that failed: its number there, from 0, and its error.

    `partition` is -1 if none was chosen.
    """

    index: int
    topic: str
    partition: int
    error: KafkaError


@dataclass(slots=True, eq=False)
class Failure:
    """Records that failed together. `messages` are the broker's about single records, by index.

    `seen` has the indexes of the records whose error the user has seen; `all_seen`: it is all.
    """

    error: KafkaError
    count: int
    messages: Mapping[int, str]
    seen: set[int] = field(default_factory=set)
    all_seen: bool = False

    @property
    def is_unseen(self) -> bool:
        """Whether the user has not seen all of these records."""
        return not self.all_seen and len(self.seen) < self.count

    def error_of(self, index: int) -> KafkaError:
        """Return the error of one record, which the user has seen from here on."""
        self.seen.add(index)
        error = copy.copy(self.error)
        error.__cause__ = self.error.__cause__
        if message := self.messages.get(index):
            error.args = (f"{error}; of this record: {message}", *error.args[1:])
        elif self.messages and isinstance(error, ProduceError):
            error.args = (f"{error}; other records of its batch are the reason", *error.args[1:])
        return error


class OutcomeNotifier:
    """Wakes threads that wait for outcomes, runs callbacks, keeps failures that the user has not
    seen."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._waiters: list[threading.Lock] = []
        """A locked lock for each thread in `wait`, which `wake` releases. (The Python methods of a
        Condition would take as long as encoding a record.)"""
        self.has_outcomes = False
        """Whether records got an outcome since the last `notify`."""
        self.io_thread: threading.Thread | None = None
        self.loop: Any = None
        """The event loop of an AsyncProducer."""
        self.is_awaited = False
        """Whether a task awaits a record for which `on_awaited` was called."""
        self.on_awaited: Callable[[], object] = lambda: None
        """Called on the loop when a task awaits a record, unless `is_awaited`."""
        self.on_outcome: Callable[[TopicRecords, Indexes], None] = lambda records, indexes: None
        """Called in the I/O thread with records that got an outcome, a batch at a time, if tasks
        await some of them (`TopicRecords.waiters`)."""
        self._callbacks: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._queued_count = 0
        """How many callbacks were queued since the start; `_ran_count`: how many of them ran."""
        self._ran_count = 0
        self._failures: deque[Failure] = deque(maxlen=1_000)
        self._process_id = os.getpid()  # another one in a fork

    def wait(self, done: Callable[[], bool], deadline: Deadline | None, what: str) -> bool:
        """Wait until `done` returns True; return False after the deadline. Raises KafkaError, which
        begins with `what`, in the I/O thread, which would wait for itself, and after a fork."""
        if done():
            return True
        if os.getpid() != self._process_id:
            raise forked_error(what)
        if threading.current_thread() is self.io_thread:
            raise KafkaError(
                f"{what}: not in a callback, which runs in the thread that is waited for"
            )
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        try:
            while not done():
                if not waiter.acquire(timeout=-1 if deadline is None else deadline.remaining_s()):
                    return done()
            return True
        finally:
            self._waiters.remove(waiter)

    def wait_for_callbacks(
        self, done: Callable[[], bool], deadline: Deadline | None, what: str
    ) -> bool:
        """Wait until `done` returns True and the callbacks of all completed records have run;
        return False after the deadline. Raises the errors of `wait`."""
        if not self.wait(done, deadline, what):
            return False
        queued = self._queued_count
        return self.wait(lambda: self._ran_count >= queued, deadline, what)

    def notify(self) -> None:
        """Wake waiting threads, and run callbacks. Only in the I/O thread."""
        self.has_outcomes = False
        self.wake()
        if not self._callbacks:
            return
        while self._callbacks:
            try:
                run_callback(*self._callbacks.popleft())
            except BaseException as error:  # SystemExit, asyncio's CancelledError
                kind = type(error).__name__
                log.exception("a delivery callback raised %s, which has no effect here", kind)
            finally:
                self._ran_count += 1
        self.wake()  # once more: flush waits for callbacks, too

    def wake(self) -> None:
        """Wake the threads in `wait`, to check whether they are done. Only in the I/O thread."""
        for waiter in self._waiters.copy():
            if waiter.locked():
                waiter.release()

    def add_callbacks(self, callbacks: list[tuple[Callable[[Any], object], Any]]) -> None:
        """Run these callbacks at the next `notify`. Only in the I/O thread."""
        self._callbacks.extend(callbacks)
        self._queued_count += len(callbacks)

    def add_failure(self, failure: Failure) -> None:
        """Keep a failure for `take_failures`."""
        self._failures.append(failure)

    def take_failures(self) -> list[Failure]:
        """Take the failures that the user has not seen."""
        failures = []
        while self._failures:
            failure = self._failures.popleft()
            if failure.is_unseen:
                failures.append(failure)
        return failures

    def raise_failures(self) -> None:
        """Raise the first error that the user has not seen, if there is one."""
        failures = self.take_failures()
        if not failures:
            return
        error = failures[0].error_of(-1)  # of no single record
        count = sum(failure.count for failure in failures)
        if count > 1:
            error.args = (f"{error}; {count} records failed so far", *error.args[1:])
        raise error


def run_callback(callback: Callable[[Any], object], handle: Any) -> None:
    """Call a user's callback with the delivery. An exception is logged, so that the callbacks of
    others still run."""
    try:
        callback(handle)
    except Exception:
        log.exception("a delivery callback failed")


class TopicRecords:
    """Records of one topic that are queued together, in order, and the outcome of each. Outcomes
    are written by the I/O thread, and read by all.

    The first record was queued at `since_s` (monotonic); they count as `size_bytes` of
    buffer.memory. Before `begin` the number of records is not known.
    """

    __slots__ = (
        "_callbacks",
        "_failures",
        "_offsets",
        "_partitions",
        "notifier",
        "numbers",
        "pending_count",
        "since_s",
        "size_bytes",
        "times_ms",
        "topic",
        "waiters",
    )

    def __init__(self, topic: str, notifier: OutcomeNotifier) -> None:
        self.notifier = notifier
        self.since_s = time.monotonic()
        self.size_bytes = 0
        self.pending_count = -1  # records without an outcome; -1 before `begin`
        # The number of each record in the series or table that the records come from, for errors.
        self.numbers: Indexes | list[int] = range(0)
        self.topic = topic
        self.times_ms: NDArray[np.int64]
        # Both are empty before `begin`.
        self._offsets: NDArray[np.int64] = _NO_OFFSETS  # or PENDING, or which failure: see _FAILED
        self._partitions: NDArray[np.int32] = _NO_PARTITIONS
        self._failures: list[Failure] = []
        self._callbacks: dict[int, list[tuple[Callable[[Any], object], Any]]] = {}
        self.waiters: dict[int, Any] = {}
        """The asyncio futures of an AsyncProducer, by the index of their record."""

    def close(self) -> None:
        """Take no more records. The I/O thread calls this once."""

    def take_columns(self) -> tuple[RecordColumns, NDArray[np.int64] | None]:
        """Remove and return the records as columns, and the partitions that they name (NO_PARTITION
        where a record names none; None if none names one). Called once."""
        raise NotImplementedError

    @property
    def unfinished_count(self) -> int:
        """The number of records without an outcome."""
        return self.pending_count

    def begin(self, times_ms: NDArray[np.int64]) -> None:
        """Fix the number of records: these are their timestamps. No record is added any more."""
        self.times_ms = times_ms
        self._partitions = np.empty(len(times_ms), np.int32)  # known when a record has an outcome
        self.pending_count = len(times_ms)
        offsets = np.empty(len(times_ms), np.int64)
        offsets.fill(PENDING)  # np.full takes three times as long
        self._offsets = offsets  # other threads may look at them as soon as they are here
        if not self.pending_count:  # Ctrl-C came before the first record
            self.notifier.has_outcomes = True

    def pending_indexes(self) -> NDArray[np.int64]:
        """Return the indexes of records without an outcome."""
        return np.flatnonzero(self._offsets == PENDING)

    def errors(self) -> list[KafkaError]:
        """Return the errors of records that failed, one for those that failed together."""
        return [failure.error for failure in self._failures]

    @property
    def all_done(self) -> bool:
        return self.pending_count == 0

    @property
    def failed_count(self) -> int:
        return sum(failure.count for failure in self._failures)

    def acknowledged(
        self, tp: TopicPartition, indexes: Indexes, first_offset: int, log_append_time_ms: int
    ) -> None:
        """Set the outcome of records that were written one behind the other, the first one at
        `first_offset`. The offset is -1 if the broker did not return it, the time -1 unless the
        topic has LogAppendTime."""
        selector = _as_selector(indexes)
        self._partitions[selector] = tp.partition
        if log_append_time_ms >= 0:
            self.times_ms[selector] = log_append_time_ms
        # The offset last: it marks a record as done.
        if first_offset < 0 or len(indexes) == 1:
            self._offsets[selector] = max(first_offset, NO_OFFSET)
        else:
            self._offsets[selector] = np.arange(first_offset, first_offset + len(indexes))
        self._complete(indexes)

    def failed(
        self,
        indexes: Indexes,
        error: KafkaError,
        messages: Mapping[int, str] | None = None,
        *,
        partition: int = -1,
    ) -> None:
        """Set the outcome of records that failed with this error. `messages` are the broker's about
        single records, by index; `partition` is -1 if none was chosen."""
        if not len(indexes):
            return
        failure = Failure(error, len(indexes), messages or {})
        self._failures.append(failure)
        selector = _as_selector(indexes)
        self._partitions[selector] = partition
        self._offsets[selector] = _FAILED - (len(self._failures) - 1)  # the index of this failure
        self.notifier.add_failure(failure)
        self._complete(indexes)

    def _complete(self, indexes: Indexes) -> None:
        """Count records that have got their outcome, and queue their callbacks."""
        self.notifier.has_outcomes = True
        with self.notifier.lock:
            pending_count = self.pending_count - len(indexes)
            if self._callbacks:
                done = indexes if isinstance(indexes, range) else set(indexes.tolist())
                for index in sorted(self._callbacks):
                    if index in done or (index == ALL and not pending_count):
                        self._mark_seen(index)
                        self.notifier.add_callbacks(self._callbacks.pop(index))
            # Last: a thread that sees that none is pending relies on the callbacks being queued.
            self.pending_count = pending_count
        # After the outcome is set: a task adds its waiter and then checks the outcome, so either
        # the task sees the outcome or this sees the waiter.
        if self.waiters:
            self.notifier.on_outcome(self, indexes)

    def _mark_seen(self, index: int) -> None:
        """Count a record that failed as seen: its callback gets the error."""
        failure = self._failure_of(index) if index >= 0 else None
        if failure is not None:
            failure.seen.add(index)

    def is_done(self, index: int) -> bool:
        """Return whether the record has an outcome, or all have (`ALL`)."""
        if index == ALL:
            return self.pending_count == 0
        offsets = self._offsets
        return len(offsets) > 0 and int(offsets[index]) != PENDING

    def _failure_of(self, index: int) -> Failure | None:
        """Return the failure that a record, which is done, is part of; None if it is written."""
        code = int(self._offsets[index])  # an offset, or see _FAILED
        return self._failures[_FAILED - code] if code <= _FAILED else None

    def error_of(self, index: int) -> KafkaError | None:
        """Return the error of a record that is done, None if it was written."""
        failure = self._failure_of(index)
        return None if failure is None else failure.error_of(index)

    def outcome_text(self, index: int) -> str:
        """Describe the outcome of a record for a repr: its error does not count as seen."""
        if not self.is_done(index):
            return "pending"
        failure = self._failure_of(index)
        if failure is not None:
            return f"failed: {failure.error}"
        row = self.metadata_of(index)
        where = f"written to {TopicPartition(row.topic, row.partition)}"
        return where if row.offset < 0 else f"{where} at offset {row.offset}"

    def metadata_of(self, index: int) -> RecordMetadata:
        """Return where a record was written; it must be done, and not have failed."""
        partition, offset = int(self._partitions[index]), int(self._offsets[index])
        return RecordMetadata(self.topic, partition, offset, int(self.times_ms[index]))

    def each_metadata(self, indexes: Indexes) -> Iterator[RecordMetadata] | None:
        """Return the metadata of each of these records, which got their outcome together: where it
        was written. None if they failed."""
        if self._failure_of(int(indexes[0])) is not None:
            return None
        selector = _as_selector(indexes)
        return map(  # RecordMetadata(*row) without its __new__, which is Python code
            tuple.__new__,
            repeat(RecordMetadata),
            zip(
                repeat(self.topic),
                self._partitions[selector].tolist(),
                self._offsets[selector].tolist(),
                self.times_ms[selector].tolist(),
                strict=False,
            ),
        )

    def failures(self) -> Iterator[KafkaError]:
        """Yield the error of each group of records that failed together; the user has seen all of
        them from here on."""
        for failure in self._failures:
            failure.all_seen = True
            yield failure.error

    def failed_records(self) -> Iterator[RecordFailure]:
        """Yield each record that failed, in order; the user has seen it from here on."""
        for index in np.flatnonzero(self._offsets <= _FAILED).tolist():
            failure = self._failures[_FAILED - int(self._offsets[index])]
            number, partition = int(self.numbers[index]), int(self._partitions[index])
            yield RecordFailure(number, self.topic, partition, failure.error_of(index))

    def offsets(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the partition and the offset of each record; PENDING or less is the offset of a
        record that is not written."""
        offsets = self._offsets  # first: `begin` sets it last
        return self._partitions[: len(offsets)], offsets

    def add_callback(self, index: int, callback: Callable[[Any], object], handle: Any) -> None:
        """Call `callback(handle)` when the record is done (`ALL`: all are): in the I/O thread, or
        here and now if it is done already."""
        waiting = (callback, handle)
        with self.notifier.lock:
            self._callbacks.setdefault(index, []).append(waiting)
            # The I/O thread looks for callbacks after it has set an outcome, under this lock: for a
            # record that is done it may have looked before.
            if not self.is_done(index):
                return
            self._callbacks[index].remove(waiting)
            if not self._callbacks[index]:
                del self._callbacks[index]
        self._mark_seen(index)
        run_callback(callback, handle)


def _as_selector(indexes: Indexes) -> slice | NDArray[np.int64]:
    """Return what selects these items of an array: a slice for a range, which is faster."""
    return slice(indexes.start, indexes.stop) if isinstance(indexes, range) else indexes


# --- from batches to records ---


class RecordSlice(NamedTuple):
    """Some of the records of a `TopicRecords`, which are for one partition."""

    records: TopicRecords
    indexes: Indexes


def fail_records(
    slices: Sequence[RecordSlice],
    error: KafkaError,
    record_messages: Mapping[int, str | None],
    partition: int,
) -> None:
    """Set the outcome of a batch that failed. `record_messages` are the broker's messages about
    single records (KIP-467), by index in the batch."""
    slice_start = 0
    for records, indexes in slices:
        messages = {
            int(indexes[index - slice_start]): message or "the broker does not say why"
            for index, message in record_messages.items()
            if slice_start <= index < slice_start + len(indexes)
        }
        if record_messages and not messages:
            messages = {-1: ""}  # the reason is in records of another slice
        records.failed(indexes, error, messages, partition=partition)
        slice_start += len(indexes)


def split_slices(
    slices: Sequence[RecordSlice], counts: Sequence[int]
) -> Iterator[list[RecordSlice]]:
    """Split the slices, in their order, into one list for each of `counts`, with that many
    records."""
    begin = 0  # records before it are split already
    remaining = list(reversed(slices))
    for end in itertools.accumulate(counts):
        part: list[RecordSlice] = []
        while begin < end and remaining:
            records, indexes = remaining.pop()
            size = min(len(indexes), end - begin)
            part.append(RecordSlice(records, indexes[:size]))
            if size < len(indexes):
                remaining.append(RecordSlice(records, indexes[size:]))
            begin += size
        yield part
    if slices and (begin < end or remaining):
        raise RuntimeError("the batches have other records than their slices")


# --- handles ---


class Delivery:
    """A record that was sent: `result` waits for it. Made by `Producer.send`."""

    __slots__ = ("_index", "_records")

    # `send` sets both: `__init__` would take a tenth of its time.
    _records: TopicRecords
    _index: int

    def __repr__(self) -> str:
        return f"<Delivery {self._records.outcome_text(self._index)}>"

    def done(self) -> bool:
        """Return whether the record is written or has failed. Never waits."""
        return self._records.is_done(self._index)

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait until the record is written, and return where.

        Raises the record's own error (ProduceError, UnknownTopicError, …), or KafkaTimeoutError
        after `timeout_s`: then it may still be written. None waits as long as delivery.timeout.ms
        lets it take.
        """
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        return self._records.metadata_of(self._index)

    def exception(self, timeout_s: float | None = None) -> KafkaError | None:
        """Wait until the record has an outcome, and return its error, None if it is written. Raises
        KafkaTimeoutError after `timeout_s`."""
        records, index = self._records, self._index
        is_done = partial(records.is_done, index)
        await_outcome(records.notifier, is_done, timeout_s, "the record is not acknowledged")
        return records.error_of(index)

    def add_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback(delivery)` once it is done: in the producer's I/O thread, so it must be
        quick and must not wait; here and now if it is done already."""
        check_callback(callback)
        self._records.add_callback(self._index, callback, self)


def check_callback(callback: Any) -> None:
    """Raise OptionError if it cannot be called: the producer's thread could only log the error."""
    if not callable(callback):
        raise OptionError(f"callback is a function of the delivery, got {callback!r}")


def await_outcome(
    notifier: OutcomeNotifier, done: Callable[[], bool], timeout_s: float | None, what: str
) -> None:
    """Wait until `done` returns True. Raises KafkaTimeoutError, which begins with `what`, after
    `timeout_s` (None: never)."""
    if not notifier.wait(done, deadline_of(timeout_s), "waiting for a delivery"):
        raise KafkaTimeoutError(f"{what} after {timeout_s:g} s; it may still be written")


# --- handles of tables and series ---


class WrittenRange(NamedTuple):
    """Records of one partition that were written. Others' may lie between first and last."""

    first_offset: int
    last_offset: int
    record_count: int


class TableDelivery:
    """All records of a table or series: made by `Producer.send_table` and `Producer.send_many`."""

    __slots__ = ("_notifier", "_parts")

    def __init__(self, notifier: OutcomeNotifier, parts: list[TopicRecords]) -> None:
        self._notifier = notifier
        self._parts = parts

    def __repr__(self) -> str:
        written = sum(row.record_count for row in self.written().values())
        failed = sum(part.failed_count for part in self._parts)
        texts = [f"{written} written", f"{failed} failed"] if failed else [f"{written} written"]
        return f"<TableDelivery {', '.join(texts) if self.done() else 'pending'}>"

    def done(self) -> bool:
        """Return whether each record is written or has failed. Never waits."""
        return all(part.all_done for part in self._parts)

    def exception(self, timeout_s: float | None = None) -> KafkaError | None:
        """Wait until all are done; the first error, None if all are written."""
        await_outcome(self._notifier, self.done, timeout_s, "the records are not all acknowledged")
        errors = [error for part in self._parts for error in part.failures()]
        return errors[0] if errors else None

    def result(self, timeout_s: float | None = None) -> dict[TopicPartition, WrittenRange]:
        """Wait until all are written, and return where. Raises the errors of `Delivery.result` if
        one is not; the others may be written (`written`)."""
        error = self.exception(timeout_s)
        if error is not None:
            raise copy.copy(error) from error.__cause__
        return self.written()

    def failures(self, timeout_s: float | None = None) -> list[RecordFailure]:
        """Wait until all are done; the records that failed, in their order. [] if all are
        written. Raises KafkaTimeoutError after `timeout_s`."""
        await_outcome(self._notifier, self.done, timeout_s, "the records are not all acknowledged")
        failures = [failure for part in self._parts for failure in part.failed_records()]
        return sorted(failures, key=lambda failure: failure.index)

    def written(self) -> dict[TopicPartition, WrittenRange]:
        """Return the offsets that are written so far. They are -1 if the broker returned none."""
        ranges: dict[TopicPartition, WrittenRange] = {}
        for part in self._parts:
            partitions, offsets = part.offsets()
            for partition in np.unique(partitions[offsets > PENDING]).tolist():
                written = offsets[(partitions == partition) & (offsets > PENDING)]
                tp = TopicPartition(part.topic, partition)
                new = WrittenRange(int(written.min()), int(written.max()), len(written))
                old = ranges.get(tp, new._replace(record_count=0))
                ranges[tp] = WrittenRange(
                    min(old.first_offset, new.first_offset),
                    max(old.last_offset, new.last_offset),
                    old.record_count + new.record_count,
                )
        return ranges

    def add_callback(self, callback: Callable[[TableDelivery], object]) -> None:
        """Call `callback(delivery)` once all records are done: in the producer's I/O thread, so it
        must be quick and must not wait; immediately if they are done already."""
        check_callback(callback)
        pending_parts = [len(self._parts)]

        def part_done(_: object) -> None:
            """Call the callback once the last part is done."""
            with self._notifier.lock:  # some parts are done here, others in the I/O thread
                pending_parts[0] -= 1
                is_last = not pending_parts[0]
            if is_last:
                run_callback(callback, self)

        if not self._parts:
            run_callback(callback, self)
        for part in self._parts:  # `part_done` gets this handle, which it does not need
            part.add_callback(ALL, part_done, self)
