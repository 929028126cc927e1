"""The I/O thread of a Producer: takes chunks from the buffer, sends their records, notes outcomes.
Only this thread uses the cluster and the sender."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import CloseSignal, Deadline
from sparkkafka.client.metrics.sending import SendMetrics
from sparkkafka.client.producer.futures import BatchPieces, NoticeBoard, Piece, cut_pieces
from sparkkafka.client.producer.record_accumulator import RecordAccumulator, RowRange
from sparkkafka.client.producer.send_buffer import Chunk, RecordChunk, RecordRouter, SendBuffer
from sparkkafka.client.producer.sender import Sender
from sparkkafka.client.producer.topic_lookup import TopicLookup
from sparkkafka.client.producer.transactions import SenderTransaction
from sparkkafka.client.values import TopicPartition, some_topics
from sparkkafka.config.client_settings import ProducerSettings
from sparkkafka.errors import KafkaError, KafkaTimeoutError, counted, some
from sparkkafka.protocol.columns.encode import EncodedBatch, run_sizes

log = logging.getLogger(__name__)

CLOSED = "the producer was closed before they were delivered"
MIN_LOOK_MS = 1_000  # for metadata, however short max.block.ms is
MAX_SLEEP_S = 1.0
ANSWER_SLACK_S = 5.0  # that a caller waits for a command beyond the command's deadline

MAX_NAMED = 3

CLOSE_IN_ERROR_S = 1.0
EXIT_SLACK_MS = 200
_UNCLOSED = "a Producer was not closed: call close(), or use it under `with`"

_loops: weakref.WeakSet[ProducerLoop] = weakref.WeakSet()
"""All that run, also of producers that were garbage-collected."""

T = TypeVar("T")


class ProducerLoop:
    """Runs until `stop`; records that came before are delivered or given up.

    `on_failure` is called in the I/O thread with the error of records that are given up, and
    returns the one that their handles raise.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        buffer: SendBuffer,
        board: NoticeBoard,
        transaction: SenderTransaction | None,
        on_failure: Callable[[KafkaError], KafkaError],
        close_signal: CloseSignal,
        metrics: SendMetrics,
    ) -> None:
        self._close_signal = close_signal
        self._settings = settings
        self._options = settings.producer
        self._buffer = buffer
        self._board = board
        self._on_failure = on_failure
        self.cluster = Cluster(settings.client, close_signal=close_signal, metrics=metrics.network)
        self._lookup = TopicLookup(self.cluster, max(MIN_LOOK_MS, settings.producer.max_block_ms))
        self.sender = Sender(
            self.cluster,
            self._options,
            transaction,
            lookup=self._lookup,
            wake_fd=buffer.wake_fd,
            metrics=metrics,
        )
        self._router = RecordRouter(self.cluster, settings)
        self._accumulator: RecordAccumulator[Piece] = RecordAccumulator(self._options, self._add)
        self._unrouted: dict[str, deque[Chunk]] = {}
        self._taken: set[Chunk] = set()
        self._commands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._stop: Deadline | None = None
        self._ended = False  # takes no more commands
        self._why = CLOSED
        self._drop_reason: KafkaError | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"sparkkafka-producer-{settings.client.client_id}", daemon=True
        )
        board.io_thread = self._thread

    # --- for other threads ----------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()
        _loops.add(self)

    def look(self, topic: str) -> int | None:
        """The number of a topic's partitions, None if brokers must be asked again. For `call`.

        Raises UnknownTopicError, BrokerError.
        """
        if self.cluster.partition_count(topic) is None:
            error = self._lookup.look([topic], self.sender.attempt_ms).get(topic)
            if error is not None:
                raise error
        return self.cluster.partition_count(topic)

    def call(self, action: Callable[[], T], deadline: Deadline, what: str) -> T:
        """Run `action` in the I/O thread; return its result or raise its error.

        Raises KafkaTimeoutError a little after the deadline; the action may still run.
        """
        if threading.current_thread() is self._thread:
            raise KafkaError(f"{what}: not in a callback, which runs in the thread that is needed")
        future: Future[T] = Future()
        with self._buffer.lock:
            if self._ended or not self._thread.is_alive():
                raise KafkaError(f"{what}: the producer is closed")
            self._commands.append((action, future))
            self._buffer.wake()
        try:
            return future.result(deadline.remaining_s() + ANSWER_SLACK_S)
        except TimeoutError as error:
            if isinstance(error, KafkaError):
                raise
            raise KafkaTimeoutError(f"{what}: not done after {deadline.text}") from None

    def wait_for_all(self, deadline: Deadline | None) -> None:
        """Send everything without lingering, and wait for all outcomes and callbacks.

        Raises KafkaTimeoutError.
        """
        buffer = self._buffer
        with buffer.lock:
            buffer.unfinished.update(buffer.open.values(), buffer.ready)
            waited_for = list(buffer.unfinished)
            buffer.flushes += 1
            buffer.wake()
        try:
            done = self._board.wait_for_callbacks(
                lambda: all(chunk.all_done for chunk in waited_for), deadline, "flush"
            )
        finally:
            with buffer.lock:
                buffer.flushes -= 1
        if not done and deadline is not None:
            left = [chunk for chunk in waited_for if not chunk.all_done]
            if not left:
                raise KafkaTimeoutError(
                    f"flush: all is delivered or given up, but callbacks have not all run after "
                    f"{deadline.text}"
                )
            raise KafkaTimeoutError(
                f"flush: not delivered after {deadline.text}: "
                f"{self._words_for(left)}{self.trouble()}"
            )

    def trouble(self) -> str:
        """Why records are not delivered, to end a message with; "" if that is not known. From any
        thread."""
        errors = [*self._lookup.errors(), *self.sender.errors(), self.cluster.failing]
        texts = {str(error) for error in errors if error is not None}
        # A text that is part of another says nothing new.
        texts = {text for text in texts if not any(text in other for other in texts - {text})}
        if texts:
            return f"; the last failure: {'; '.join(sorted(texts)[:MAX_NAMED])}"
        known = self.cluster.partition_count
        unknown = [topic for topic in list(self._unrouted) if known(topic) is None]
        if unknown:
            return f"; no broker has returned metadata for {some_topics(unknown, MAX_NAMED)} yet"
        return ""

    def _words_for(self, chunks: Sequence[Chunk]) -> str:
        """How many records are not delivered, and where they are."""
        counts: dict[str, int] = {}
        for chunk in chunks:
            counts[chunk.topic] = counts.get(chunk.topic, 0) + chunk.open_count
        total = sum(counts.values())
        topics = sorted(counts, key=lambda topic: -counts[topic])
        words = f"{counted(total, 'record')} of {some_topics(topics, MAX_NAMED)}"
        queued = []
        for tp in self.sender.unacknowledged_partitions():
            if tp.topic in counts:
                leader = self.cluster.known_leader(tp)
                queued.append(f"{tp} (broker {leader.leader})" if leader else f"{tp} (no leader)")
        if not queued:
            return words
        plural = "s" if len(queued) > 1 else ""
        return f"{words}, on the way to partition{plural} {some(queued, MAX_NAMED)}"

    def stop(self, deadline: Deadline, why: str = CLOSED) -> None:
        """Deliver what is there until the deadline, give up the rest because of `why`, and end."""
        self._close_signal.close_in(deadline.remaining_s())
        with self._buffer.lock:
            if self._stop is None or deadline.remaining_s() < self._stop.remaining_s():
                self._stop = deadline
                self._why = why
            self._buffer.roll_all()
            self._buffer.wake()

    @property
    def runs(self) -> bool:
        """Whether the thread runs, in this process."""
        return self._thread.is_alive()

    @property
    def has_undelivered(self) -> bool:
        return not all(chunk.all_done for chunk in list(self._buffer.unfinished))

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; False after `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        reason = ""
        try:
            while not self._finished():
                self._turn()
            if self._options.acks == 0:
                self.sender.barrier()
        except BaseException as failure:
            log.exception("the producer's thread failed: a bug in sparkkafka")
            reason = f"the producer's thread failed: {failure!r}"
        finally:
            self._end(reason or self._why)

    def _finished(self) -> bool:
        if self._stop is None or self._commands:
            return False
        return self._stop.expired or not self._buffer.unfinished

    def _turn(self) -> None:
        """Do what there is to do, then wait until there is more."""
        self._buffer.is_sleeping = False
        for chunk in self._buffer.take():
            self._accept(chunk)
        if self._commands or self._unrouted:
            began_s = time.monotonic()
            while self._commands:
                self._obey(*self._commands.popleft())
            self._route()
            self.sender.add_lookup_time(time.monotonic() - began_s)
            self._tell()
        if self._buffer.hurries or self._stop is not None:
            self._accumulator.close_all()
        else:
            self._accumulator.close_lingering()
        try:
            self.sender.step(self._sleep_s)
        except KafkaError as error:
            self.drop_everything(self._on_failure(error))
        if self._drop_reason is not None:
            reason, self._drop_reason = self._drop_reason, None
            self.drop_everything(reason)
        self._tell()

    def _sleep_s(self) -> float:
        now_s = time.monotonic()
        limits = [MAX_SLEEP_S]
        open_s = self._buffer.sleep_s(lambda: bool(self._commands))
        if open_s is not None:
            limits.append(open_s)
        moments_s = [self._accumulator.next_close_s(), self._lookup.next_look_s(self._unrouted)]
        if self._unrouted:
            oldest_s = min(chunks[0].since_s for chunks in self._unrouted.values())
            moments_s.append(oldest_s + self._metadata_limit_ms / 1000)
        limits += [at_s - now_s for at_s in moments_s if at_s is not None]
        if self._stop is not None:
            limits.append(self._stop.remaining_s() if self._buffer.unfinished else 0.0)
        return max(0.0, min(limits))

    def _obey(self, action: Callable[[], Any], future: Future[Any]) -> None:
        try:
            result = action()
        except BaseException as error:
            future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            future.set_result(result)

    def _accept(self, chunk: Chunk) -> None:
        self._taken.add(chunk)
        self._unrouted.setdefault(chunk.topic, deque()).append(chunk)

    def _tell(self) -> None:
        """Free the memory of finished chunks, wake waiting threads, and run callbacks."""
        if not self._board.has_outcomes:
            return
        self._board.tell()
        finished = [chunk for chunk in self._taken if chunk.all_done]
        self._taken.difference_update(finished)
        waiting = sum(chunk.size_bytes for chunks in self._unrouted.values() for chunk in chunks)
        self._buffer.freed(
            waiting + self._accumulator.pending_bytes + self.sender.queued_bytes, finished
        )

    # --- records to batches ---------------------------------------------------------------------

    def _route(self) -> None:
        known = self.cluster.partition_count
        doubtful = self.cluster.distrusts
        unknown = [name for name in self._unrouted if known(name) is None or doubtful(name)]
        if unknown:
            for topic, error in self._lookup.look(unknown, self._look_ms(unknown)).items():
                for chunk in self._unrouted.pop(topic):
                    self._fail(chunk, error)
        for topic in list(self._unrouted):
            if known(topic) is None:
                self._expire(topic)
                continue
            for chunk in self._unrouted.pop(topic):
                self._cut(chunk)

    @property
    def _metadata_limit_ms(self) -> int:
        return min(self._options.max_block_ms, self._options.delivery_timeout_ms)

    def _look_ms(self, topics: Sequence[str]) -> float:
        """How long a look-up may wait: until the oldest record is given up, of these topics or of
        those that have batches."""
        oldest_s = min(self._unrouted[topic][0].since_s for topic in topics)
        left_ms = self._metadata_limit_ms - (time.monotonic() - oldest_s) * 1000
        return min(max(MIN_LOOK_MS, left_ms), self.sender.attempt_ms)

    def _expire(self, topic: str) -> None:
        """Give up chunks that have waited for metadata for max.block.ms. (Java waits in `send`.)"""
        limit_ms = self._metadata_limit_ms
        setting = (
            "max.block.ms"
            if self._options.max_block_ms <= self._options.delivery_timeout_ms
            else "delivery.timeout.ms"
        )
        chunks = self._unrouted[topic]
        while chunks and time.monotonic() >= chunks[0].since_s + limit_ms / 1000:
            cause = self._lookup.last_error(topic)
            error = KafkaTimeoutError(
                f"no broker returned metadata for topic {topic} within {limit_ms / 1000:g} s "
                f"({setting}); the last failure: {cause}"
            )
            error.retriable = True  # as Java's TimeoutException
            error.__cause__ = cause
            self._fail(chunks.popleft(), error)
        if not chunks:
            del self._unrouted[topic]
            self._lookup.forget(topic)

    def _append_single(self, chunk: RecordChunk) -> None:
        """Append a few records one by one, which costs less than columns of them."""
        tps = set()
        fullest = 0
        for index, (partition, fields, size_bytes) in enumerate(self._router.single(chunk)):
            tp = TopicPartition(chunk.topic, partition)
            self._accumulator.append(
                tp,
                fields,
                Piece(chunk, range(index, index + 1)),
                size_bytes=size_bytes,
                since_s=chunk.since_s,
            )
            tps.add(tp)
            fullest = max(fullest, self._accumulator.size_of(tp))
        self._buffer.expect(chunk.topic, self._options.batch_size - fullest, len(tps))

    def _cut(self, chunk: Chunk) -> None:
        if isinstance(chunk, RecordChunk) and self._router.takes_single(chunk):
            self._append_single(chunk)
            return
        try:
            block = self._router.block(chunk)
            sizes = [] if block is None else run_sizes(block.records, block.run_ends)
        except KafkaError as error:
            self._fail(chunk, error)
            return
        if block is not None:
            records, tps, run_ends, places = block
            fullest = low = 0
            for tp, high, size_bytes in zip(tps, run_ends, sizes, strict=True):
                self._accumulator.append(
                    tp,
                    RowRange(records, low, high),
                    Piece(chunk, places[low:high]),
                    size_bytes=size_bytes,
                    since_s=chunk.since_s,
                )
                fullest = max(fullest, self._accumulator.size_of(tp))
                low = high
            self._accumulator.close_full()
            self._buffer.expect(chunk.topic, self._options.batch_size - fullest, len(tps))
        for failure in chunk.errors():
            self._on_failure(failure)

    def _add(
        self,
        tp: TopicPartition,
        batches: list[EncodedBatch],
        pieces: Sequence[Piece],
        since_s: float,
    ) -> None:
        parts = cut_pieces(pieces, [batch.record_count for batch in batches])
        owners = [BatchPieces(tp, part, self._on_failure) for part in parts]
        self.sender.append(tp, batches, owners, since_s)

    # --- giving up ------------------------------------------------------------------------------

    def _fail(self, chunk: Chunk, error: KafkaError) -> None:
        """Give up the chunk's records that have no outcome."""
        chunk.failed(chunk.open_places(), self._on_failure(error))

    def drop_later(self, reason: KafkaError) -> None:
        """Give up everything after this step of the sender."""
        self._drop_reason = self._drop_reason or reason

    def drop_unsent(self, reason: KafkaError) -> None:
        """Give up all records that were never sent."""
        self._drop_reason = None
        for chunk in self._buffer.take():
            self._accept(chunk)
        for piece in self._accumulator.drop_all():
            piece.chunk.failed(piece.places, reason)
        for chunks in self._unrouted.values():
            for chunk in chunks:
                chunk.failed(chunk.open_places(), reason)
        self._unrouted.clear()
        self.sender.fail_all(str(reason), sent=False)

    def drop_everything(self, reason: KafkaError) -> None:
        self.drop_unsent(reason)
        self.sender.fail_all(str(reason))

    def settle(self, deadline: Deadline) -> bool:
        """Wait until all requests are answered, and give up the rest: then it returns False."""
        while self.sender.has_unacknowledged and not deadline.expired:
            try:
                self.sender.step(min(MAX_SLEEP_S, deadline.remaining_s()))
            except KafkaError as error:
                self.sender.fail_all(str(error))
            self._buffer.is_sleeping = False
        settled = not self.sender.has_unacknowledged
        self.sender.fail_all("no answer came before the transaction was ended")
        self.sender.close_connections()
        return settled

    def _end(self, reason: str) -> None:
        error = KafkaError(reason)
        with self._buffer.lock:
            self._buffer.refuse(lambda: KafkaError("the producer is closed"))
            # Before the callbacks, which may take long.
            self._ended = True
            waiting = list(self._commands)
            self._commands.clear()
        for _, future in waiting:
            future.set_exception(KafkaError("the producer is closed"))
        lost = sum(chunk.left for chunk in self._taken)
        try:
            for chunk in self._buffer.take():
                lost += chunk.left
                self._accept(chunk)
            self.drop_everything(error)
        finally:
            # In case of a bug: no caller may wait for ever.
            for chunk in self._taken:
                chunk.failed(chunk.open_places(), error)
            if lost:
                log.warning("%s not delivered: %s", counted(lost, "record"), reason)
            self._tell()
            self.cluster.close()
            self._buffer.close()


def let_go(loop: ProducerLoop, process_id: int) -> None:
    """An unclosed producer was garbage-collected: its thread delivers what it can, and logs what it
    could not."""
    if os.getpid() == process_id:
        loop.stop(Deadline(CLOSE_IN_ERROR_S * 1000), _UNCLOSED)


def _end_all() -> None:
    running = [loop for loop in _loops if loop.runs]
    for loop in running:
        let_go(loop, os.getpid())
    deadline = Deadline(CLOSE_IN_ERROR_S * 1000 + EXIT_SLACK_MS)
    for loop in running:
        if not loop.join(deadline.remaining_s()) and loop.has_undelivered:
            log.warning("records were not delivered: %s", _UNCLOSED)


atexit.register(_end_all)
