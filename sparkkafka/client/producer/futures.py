"""The outcomes of a Producer's records, and the handles that users ask for them.

Records of one chunk share a `RecordFutures`: arrays with a place for each record, so that the
outcome of thousands is noted in a few steps. A handle is a place in them. Batches have pieces of
chunks, and pass their outcome on to them.
"""

from __future__ import annotations

import copy
import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparkkafka.client.deadline import Deadline, deadline_of
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import KafkaError, KafkaTimeoutError, OptionError, ProduceError
from sparkkafka.protocol.constants import NO_OFFSET

log = logging.getLogger(__name__)

PENDING = -2
_FAILED = -3  # and below: the number of the failure

WHOLE = -1
"""In place of a record's place: all records."""

Places = NDArray[np.int64] | range
"""Places of records in a chunk, from 0."""

MAX_FAILURES_KEPT = 1_000


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
    """A record of a series or table that was given up: its number there, from 0, and its error.

    `partition` is -1 if none was chosen.
    """

    index: int
    topic: str
    partition: int
    error: KafkaError


class Failure:
    """Records that were given up together. `messages` are the broker's about single records."""

    __slots__ = ("all_asked", "asked", "count", "error", "messages")

    def __init__(
        self, error: KafkaError, count: int, messages: Mapping[int, str | None] | None = None
    ) -> None:
        self.error = error
        self.count = count
        self.messages = messages or {}
        self.asked: set[int] = set()
        self.all_asked = False

    @property
    def is_news(self) -> bool:
        """Whether the user has not asked for all of these records."""
        return not self.all_asked and len(self.asked) < self.count

    def error_of(self, place: int) -> KafkaError:
        """The error of one record, which the user has asked for now."""
        self.asked.add(place)
        error = copy.copy(self.error)
        error.__cause__ = self.error.__cause__
        if place in self.messages:
            error.args = (f"{error}; of this record: {self.messages[place]}", *error.args[1:])
        elif self.messages and isinstance(error, ProduceError):
            error.args = (f"{error}; other records of its batch are the reason", *error.args[1:])
        return error


class NoticeBoard:
    """Wakes threads that wait for outcomes, runs callbacks, keeps failures until the user asks."""

    def __init__(self) -> None:
        # Taken by itself: Ctrl-C inside Condition.__enter__, which is Python, could leave it taken.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.waiting = 0
        self.has_outcomes = False
        """Whether records got an outcome since the last `tell`."""
        self.io_thread: threading.Thread | None = None
        self._called: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._called_count = 0
        self._ran_count = 0
        self._failures: deque[Failure] = deque(maxlen=MAX_FAILURES_KEPT)
        self._process_id = os.getpid()

    def wait(self, done: Callable[[], bool], deadline: Deadline | None, what: str) -> bool:
        """Wait until `done`; False after the deadline. Raises KafkaError in the I/O thread, which
        would wait for itself."""
        if done():
            return True
        if os.getpid() != self._process_id:
            raise KafkaError(
                f"{what}: the producer was made before a fork, and its thread is in the parent "
                "process, which alone will know"
            )
        if threading.current_thread() is self.io_thread:
            raise KafkaError(
                f"{what}: not in a callback, which runs in the thread that is waited for"
            )
        with self.lock:
            self.waiting += 1
            try:
                return self.changed.wait_for(
                    done, None if deadline is None else deadline.remaining_s()
                )
            finally:
                self.waiting -= 1

    def wait_for_callbacks(
        self, done: Callable[[], bool], deadline: Deadline | None, what: str
    ) -> bool:
        """As `wait`, then until the callbacks of all records that are done have run."""
        if not self.wait(done, deadline, what):
            return False
        wanted = self._called_count
        return self.wait(lambda: self._ran_count >= wanted, deadline, what)

    def tell(self) -> None:
        """Wake waiting threads, and run callbacks. Only in the I/O thread."""
        self.has_outcomes = False
        self._wake()
        if not self._called:
            return
        while self._called:
            try:
                run_callback(*self._called.popleft())
            except SystemExit:
                log.error("a delivery callback called sys.exit, in a thread where it ends nothing")
            finally:
                self._ran_count += 1
        self._wake()

    def _wake(self) -> None:
        if self.waiting:
            with self.lock:
                self.changed.notify_all()

    def call(self, callbacks: list[tuple[Callable[[Any], object], Any]]) -> None:
        """Run these callbacks at the next `tell`. Only in the I/O thread."""
        self._called.extend(callbacks)
        self._called_count += len(callbacks)

    def failed(self, failure: Failure) -> None:
        self._failures.append(failure)

    def take_failures(self) -> list[Failure]:
        """New failures that the user has not asked for."""
        taken = []
        while self._failures:
            failure = self._failures.popleft()
            if failure.is_news:
                taken.append(failure)
        return taken

    def raise_failures(self) -> None:
        """Raise the first error that the user has not asked for, if there is one."""
        failures = self.take_failures()
        if not failures:
            return
        error = failures[0].error_of(-1)
        count = sum(failure.count for failure in failures)
        if count > 1:
            error.args = (f"{error}; {count} records were given up so far", *error.args[1:])
        raise error


def run_callback(callback: Callable[[Any], object], handle: Any) -> None:
    """Run it; an exception is logged, and deliveries go on."""
    try:
        callback(handle)
    except Exception:
        log.exception("a delivery callback failed")


class RecordFutures:
    """The outcome of each record of a chunk. Written by the I/O thread, read by all.

    Before `begin` the number of records is not known.
    """

    __slots__ = (
        "_callbacks",
        "_failures",
        "_offsets",
        "_partitions",
        "_times_ms",
        "board",
        "left",
        "numbers",
        "topic",
    )

    def __init__(self, topic: str, board: NoticeBoard) -> None:
        self.board = board
        self.left = -1  # records without an outcome
        self.numbers: Places = range(0)  # those of a series or table: which row each record was
        self.topic = topic
        self._offsets: NDArray[np.int64] | None = None
        self._partitions: NDArray[np.int32]
        self._times_ms: NDArray[np.int64]
        self._failures: list[Failure] = []
        self._callbacks: dict[int, list[tuple[Callable[[Any], object], Any]]] = {}

    def begin(self, times_ms: NDArray[np.int64]) -> None:
        """All records have come, with these times."""
        self._times_ms = times_ms
        self._partitions = np.full(len(times_ms), -1, np.int32)
        self.left = len(times_ms)
        self._offsets = np.full(len(times_ms), PENDING, np.int64)

    def open_places(self) -> NDArray[np.int64]:
        if self._offsets is None:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self._offsets == PENDING)

    def errors(self) -> list[KafkaError]:
        return [failure.error for failure in self._failures]

    @property
    def all_done(self) -> bool:
        return self.left == 0

    def delivered(
        self, tp: TopicPartition, places: Places, first_offset: int, log_append_time_ms: int
    ) -> None:
        """Records were written, one behind the other; -1 for what the broker did not return."""
        offsets = self._offsets
        if offsets is None:
            raise RuntimeError("delivered before it began")
        at = slice(places.start, places.stop) if isinstance(places, range) else places
        self._partitions[at] = tp.partition
        if log_append_time_ms >= 0:
            self._times_ms[at] = log_append_time_ms
        # The offset last: it marks a record as done.
        if first_offset < 0:
            offsets[at] = NO_OFFSET
        else:
            offsets[at] = np.arange(first_offset, first_offset + len(places))
        self._done(places)

    def failed(
        self,
        places: Places,
        error: KafkaError,
        messages: Mapping[int, str | None] | None = None,
        *,
        partition: int = -1,
    ) -> None:
        """Records were given up; `messages` by place, `partition` -1 if none was chosen."""
        offsets = self._offsets
        if offsets is None:
            raise RuntimeError("failed before it began")
        if not len(places):
            return
        failure = Failure(error, len(places), messages)
        self._failures.append(failure)
        at = slice(places.start, places.stop) if isinstance(places, range) else places
        self._partitions[at] = partition
        offsets[at] = _FAILED - (len(self._failures) - 1)
        self.board.failed(failure)
        self._done(places)

    def _done(self, places: Places) -> None:
        self.board.has_outcomes = True
        with self.board.lock:
            left = self.left - len(places)
            if self._callbacks:
                done = places if isinstance(places, range) else set(places.tolist())
                for place in sorted(self._callbacks):
                    if place in done or (place == WHOLE and not left):
                        self._mark_asked(place)
                        self.board.call(self._callbacks.pop(place))
            # Last: when all is done, the callbacks are on the board.
            self.left = left

    def _mark_asked(self, place: int) -> None:
        failure = self._failure(place) if place >= 0 else None
        if failure is not None:
            failure.asked.add(place)

    def is_done(self, place: int) -> bool:
        """Whether the record has an outcome, or all have (`WHOLE`)."""
        if place == WHOLE:
            return self.left == 0
        offsets = self._offsets
        return offsets is not None and int(offsets[place]) != PENDING

    def _failure(self, place: int) -> Failure | None:
        offsets = self._offsets
        code = PENDING if offsets is None else int(offsets[place])
        return self._failures[_FAILED - code] if code <= _FAILED else None

    def error_of(self, place: int) -> KafkaError | None:
        """The error of a record that is done, None if it was written."""
        failure = self._failure(place)
        return None if failure is None else failure.error_of(place)

    def metadata_of(self, place: int) -> RecordMetadata:
        offset = int(self._offsets[place]) if self._offsets is not None else NO_OFFSET
        return RecordMetadata(
            self.topic, int(self._partitions[place]), offset, int(self._times_ms[place])
        )

    def failures(self) -> Iterator[KafkaError]:
        """The errors of records that were given up, as asked for by the user."""
        for failure in self._failures:
            failure.all_asked = True
            yield failure.error

    def failed_records(self) -> Iterator[RecordFailure]:
        if self._offsets is None:
            return
        for place in np.flatnonzero(self._offsets <= _FAILED).tolist():
            failure = self._failures[_FAILED - int(self._offsets[place])]
            number = int(self.numbers[place])
            partition = int(self._partitions[place])
            yield RecordFailure(number, self.topic, partition, failure.error_of(place))

    def places(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Partition and offset of each record; the offset of one not written is below -1."""
        if self._offsets is None:
            return np.zeros(0, np.int32), np.zeros(0, np.int64)
        return self._partitions, self._offsets

    def add_callback(self, place: int, callback: Callable[[Any], object], handle: Any) -> None:
        """Call when the record is done (`WHOLE`: all are): in the I/O thread, or here and now."""
        waiting = (callback, handle)
        with self.board.lock:
            self._callbacks.setdefault(place, []).append(waiting)
            # The I/O thread looks for callbacks after it has noted an outcome, under this lock: for
            # a record that is done it may have looked before.
            if not self.is_done(place):
                return
            self._callbacks[place].remove(waiting)
            if not self._callbacks[place]:
                del self._callbacks[place]
        self._mark_asked(place)
        run_callback(callback, handle)


# --- batches to records ---


class Piece(NamedTuple):
    """Some records of a chunk that go to one partition."""

    chunk: RecordFutures
    places: Places


class BatchPieces:
    """The owner of a batch: passes its outcome on to its records' chunks."""

    __slots__ = ("_on_failure", "_pieces", "_tp")

    def __init__(
        self,
        tp: TopicPartition,
        pieces: Sequence[Piece],
        on_failure: Callable[[ProduceError], KafkaError],
    ) -> None:
        self._tp = tp
        self._pieces = pieces
        self._on_failure = on_failure

    def acknowledged(self, base_offset: int, log_append_time_ms: int) -> None:
        at = base_offset
        for chunk, places in self._pieces:
            chunk.delivered(self._tp, places, at, log_append_time_ms)
            if base_offset >= 0:
                at += len(places)

    def failed(self, error: ProduceError, record_messages: Mapping[int, str | None]) -> None:
        told = self._on_failure(error)
        first = 0
        for chunk, places in self._pieces:
            single = {
                int(places[index - first]): words
                for index, words in record_messages.items()
                if first <= index < first + len(places)
            }
            if record_messages and not single:
                single = {-1: None}  # the reason is in records of another chunk
            chunk.failed(places, told, single, partition=self._tp.partition)
            first += len(places)

    def split(self, counts: Sequence[int]) -> list[BatchPieces]:
        return [
            BatchPieces(self._tp, pieces, self._on_failure)
            for pieces in cut_pieces(self._pieces, counts)
        ]


def cut_pieces(pieces: Sequence[Piece], counts: Sequence[int]) -> Iterator[list[Piece]]:
    """The pieces in order, cut into parts that have `counts` records."""
    if len(counts) == 1:
        yield list(pieces)
        return
    ends = list(itertools.accumulate(counts))
    begin = 0
    left = list(reversed(pieces))
    for end in ends:
        part: list[Piece] = []
        while begin < end:
            chunk, places = left.pop()
            size = min(len(places), end - begin)
            part.append(Piece(chunk, places[:size]))
            if size < len(places):
                left.append(Piece(chunk, places[size:]))
            begin += size
        yield part
    if begin != sum(len(piece.places) for piece in pieces):
        raise RuntimeError("the batches have other records than their pieces")


# --- handles ---


class Delivery:
    """A record that was sent: `result` waits for it. Made by `Producer.send`."""

    __slots__ = ("_futures", "_place")

    def __init__(self, futures: RecordFutures, place: int) -> None:
        self._futures = futures
        self._place = place

    def __repr__(self) -> str:
        return f"<Delivery {'done' if self.done() else 'pending'}>"

    def done(self) -> bool:
        """Whether the record is written or given up. Never waits."""
        return self._futures.is_done(self._place)

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait until the record is written, and return where.

        Raises the record's own error (ProduceError, UnknownTopicError, …), or KafkaTimeoutError
        after `timeout_s`: then it may still be written. None waits as long as delivery.timeout.ms
        lets it take.
        """
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        return self._futures.metadata_of(self._place)

    def exception(self, timeout_s: float | None = None) -> KafkaError | None:
        """Wait as `result`; the record's error, None if it is written."""
        await_outcome(self._futures.board, self.done, timeout_s, "the record is not acknowledged")
        return self._futures.error_of(self._place)

    def add_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback(delivery)` once it is done: in the producer's I/O thread, so it must be
        quick and must not wait; here and now if it is done already."""
        checked_callback(callback)
        self._futures.add_callback(self._place, callback, self)


def checked_callback(callback: Any) -> None:
    """Raises OptionError. (In the producer's thread the error would only be logged.)"""
    if not callable(callback):
        raise OptionError(f"callback is a function of the delivery, got {callback!r}")


def await_outcome(
    board: NoticeBoard, done: Callable[[], bool], timeout_s: float | None, what: str
) -> None:
    if not board.wait(done, deadline_of(timeout_s), "waiting for a delivery"):
        raise KafkaTimeoutError(f"{what} after {timeout_s:g} s; it may still be written")
