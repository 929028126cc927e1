"""The I/O thread of a Producer: takes queued records, assigns partitions, runs the sender, reports.

Only this thread uses the cluster and the sender.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.topic_lookup import TopicLookup
from sparkkafka.client.deadline import CloseSignal, Deadline
from sparkkafka.client.metrics import SendMetrics
from sparkkafka.client.producer.futures import (
    OutcomeNotifier,
    RecordSlice,
    TopicRecords,
    closed_error,
)
from sparkkafka.client.producer.partitioner import RecordPartitioner
from sparkkafka.client.producer.record_accumulator import RecordAccumulator, SendBuffer
from sparkkafka.client.producer.sender import Sender, SenderTransaction
from sparkkafka.client.values import some_topics
from sparkkafka.config.client_settings import ProducerSettings
from sparkkafka.errors import ErrorCode, KafkaError, KafkaTimeoutError, counted, some

log = logging.getLogger(__name__)

CLOSED = "the producer was closed before delivery"
MIN_LOOKUP_MS = 1_000  # for metadata, however short max.block.ms is
MAX_SLEEP_S = 1.0  # of the thread, when it has nothing to do
MAX_NAMED = 3  # topics, partitions or failures in one message
CLOSE_IN_ERROR_S = 1.0  # for the records of a producer that an exception, or nobody, closes
_UNCLOSED = "a Producer was not closed: call close(), or use it under `with` or `async with`"

_running_threads: weakref.WeakSet[ProducerThread] = weakref.WeakSet()
"""All that run, also of producers that were garbage-collected."""

T = TypeVar("T")


class ProducerThread:
    """The I/O thread. It runs until `stop`: records that were queued before are delivered, or fail.

    Its methods are called by this thread, except those of the first part."""

    def __init__(
        self,
        settings: ProducerSettings,
        buffer: SendBuffer,
        notifier: OutcomeNotifier,
        transaction: SenderTransaction | None,
        close_signal: CloseSignal,
        metrics: SendMetrics,
    ) -> None:
        self._close_signal = close_signal
        self._settings = settings
        self._options = settings.producer
        self._buffer = buffer
        self._notifier = notifier
        self.cluster = Cluster(settings.client, close_signal=close_signal, metrics=metrics.network)
        self._lookup = TopicLookup(self.cluster, max(MIN_LOOKUP_MS, settings.producer.max_block_ms))
        self.sender = Sender(
            self.cluster,
            self._options,
            transaction,
            lookup=self._lookup,
            waker=buffer.waker,
            metrics=metrics,
        )
        self._partitioner = RecordPartitioner(self.cluster, settings)
        self._accumulator = RecordAccumulator(
            self._options, self.sender.append, self.sender.has_unsent
        )
        # Records by topic, of which the number of partitions is not known yet.
        self._awaiting_metadata: dict[str, deque[TopicRecords]] = {}
        self._commands = buffer.commands
        self._stop_deadline: Deadline | None = None
        self._refuses_commands = False
        self.is_alive = True
        """False once the thread has ended. `Thread.is_alive` is wrong after Ctrl-C in `Thread.join`
        (bpo-45274, up to Python 3.12)."""
        self._stop_reason = CLOSED
        self._fail_reason: KafkaError | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"sparkkafka-producer-{settings.client.client_id}", daemon=True
        )
        notifier.io_thread = self._thread

    # --- for other threads ----------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()
        _running_threads.add(self)

    def look_up_partition_count(self, topic: str) -> int | None:
        """Return the number of a topic's partitions, None if another lookup must follow. Runs
        in the I/O thread: pass it to `call`.

        Raises UnknownTopicError, BrokerError.
        """
        if self.cluster.partition_count(topic) is None:
            error = self._lookup.request_metadata([topic], self.sender.attempt_ms).get(topic)
            if error is not None:
                raise error
        return self.cluster.partition_count(topic)

    def call(self, action: Callable[[], T], deadline: Deadline, what: str) -> T:
        """Run `action` in the I/O thread; return its result or raise its error. `what` names
        the action in errors.

        Raises KafkaTimeoutError a little after the deadline; the action may still run.
        """
        if threading.current_thread() is self._thread:
            raise KafkaError(f"{what}: not in a callback, which runs in the thread that is needed")
        future: Future[T] = Future()
        with self._buffer.lock:
            if self._refuses_commands:
                raise closed_error(what)
            self._commands.append((action, future))
            self._buffer.wake()
        try:
            # The action has the same deadline, and its own error says more.
            return future.result(deadline.remaining_s() + 5.0)
        except TimeoutError as error:
            if isinstance(error, KafkaError):  # of the action
                raise
            raise KafkaTimeoutError(f"{what}: not done after {deadline.text}") from None

    def wait_for_all(self, deadline: Deadline | None) -> None:
        """Send everything without lingering, and wait for all outcomes and callbacks.

        Raises KafkaTimeoutError.
        """
        buffer = self._buffer
        with buffer.lock:
            # Ctrl-C may have left some of these out: see `SendBuffer`.
            buffer.unfinished.update(buffer.open.values(), buffer.ready)
            waited_for = list(buffer.unfinished)
            buffer.flushes += 1
            buffer.wake()
        try:
            done = self._notifier.wait_for_callbacks(
                lambda: all(records.all_done for records in waited_for), deadline, "flush"
            )
        finally:
            with buffer.lock:
                buffer.flushes -= 1
        if not done and deadline is not None:
            undelivered = [records for records in waited_for if not records.all_done]
            if not undelivered:
                raise KafkaTimeoutError(
                    "flush: all records are delivered or failed, but callbacks have not all run "
                    f"after {deadline.text}"
                )
            raise KafkaTimeoutError(
                f"flush: not delivered after {deadline.text}: "
                f"{self._undelivered_text(undelivered)}{self.failure_text()}"
            )

    def failure_text(self) -> str:
        """Return why records are not delivered, as the end of a message; "" if that is not known.
        From any thread."""
        errors = [*self._lookup.errors(), *self.sender.errors(), self.cluster.failing]
        texts = {str(error) for error in errors if error is not None}
        # A text that is part of another says nothing new.
        texts = {text for text in texts if not any(text in other for other in texts - {text})}
        if texts:
            return f"; the last failure: {'; '.join(sorted(texts)[:MAX_NAMED])}"
        known = self.cluster.partition_count
        unknown = [topic for topic in list(self._awaiting_metadata) if known(topic) is None]
        if unknown:
            return f"; no broker has returned metadata for {some_topics(unknown, MAX_NAMED)} yet"
        return ""

    def _undelivered_text(self, record_sets: Sequence[TopicRecords]) -> str:
        """Return how many records are not delivered, and to which partitions, for a message."""
        counts: dict[str, int] = {}
        for records in record_sets:
            counts[records.topic] = counts.get(records.topic, 0) + records.unfinished_count
        total = sum(counts.values())
        topics = sorted(counts, key=lambda topic: -counts[topic])
        text = f"{counted(total, 'record')} of {some_topics(topics, MAX_NAMED)}"
        queued = []
        for tp in self.sender.unacknowledged_partitions():
            if tp.topic in counts:
                leader = self.cluster.known_leader(tp)
                queued.append(f"{tp} (broker {leader.leader})" if leader else f"{tp} (no leader)")
        if not queued:
            return text
        plural = "s" if len(queued) > 1 else ""
        return f"{text}, on the way to partition{plural} {some(queued, MAX_NAMED)}"

    def stop(self, deadline: Deadline, why: str = CLOSED) -> None:
        """Deliver what is queued until the deadline, fail the rest because of `why`, and end. The
        garbage collector may call this while this thread holds the buffer's lock: it takes none."""
        self._close_signal.close_in(deadline.remaining_s())
        if self._stop_deadline is None or (
            deadline.remaining_s() < self._stop_deadline.remaining_s()
        ):
            self._stop_reason = why
            self._stop_deadline = deadline
        self._buffer.waker.wake()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop_deadline is not None

    @property
    def has_undelivered(self) -> bool:
        """Whether a record has no outcome yet."""
        return not all(records.all_done for records in list(self._buffer.unfinished))

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; False after `timeout_s`."""
        has_ended = self._notifier.wait(
            lambda: not self.is_alive, Deadline(timeout_s * 1000), "close"
        )
        if has_ended:
            self._thread.join()
        return has_ended

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        """Run the thread until it may end; an error here is a bug, and fails all records."""
        reason = ""
        try:
            while self._stop_deadline is None or not self._is_finished():
                self._run_once()
            if self._options.acks == 0:  # wait until brokers have handled the last requests
                self.sender.barrier()
        except BaseException as failure:
            log.exception("the producer's thread failed: a bug in sparkkafka")
            reason = f"the producer's thread failed: {failure!r}"
        finally:
            try:
                self._end(reason or self._stop_reason)
            finally:
                self.is_alive = False
                self._notifier.wake()

    def _is_finished(self) -> bool:
        """Return whether the thread may end after `stop`: if all records have an outcome or its
        deadline is over, and no command is left, whose caller waits for its result."""
        is_over = self._stop_deadline is not None and self._stop_deadline.expired
        return not self._commands and (is_over or not self._buffer.unfinished)

    def _run_once(self) -> None:
        """Run one turn of the I/O thread: take the user's records and commands, close batches, send
        requests and read responses, and wait in `Sender.step` until there is more to do."""
        self._buffer.is_sleeping = False
        self._take_records()
        if self._commands or self._awaiting_metadata:
            began_at_s = time.monotonic()
            while self._commands:
                self._run_command(*self._commands.popleft())
            self._assign_partitions()
            self.sender.add_lookup_time(time.monotonic() - began_at_s)
            self._report_outcomes()
        if self._buffer.may_linger and self._stop_deadline is None:
            self._accumulator.close_lingering()
        else:
            self._accumulator.close_all()
        try:
            self.sender.step(self._sleep_s)
        except KafkaError as error:
            self.fail_all(self.sender.on_failure(error))
        if self._fail_reason is not None:
            reason, self._fail_reason = self._fail_reason, None
            self.fail_all(reason)
        self._report_outcomes()

    def _sleep_s(self) -> float:
        """Return how long the sender may wait for responses: until the next batch closes, the next
        lookup is due, records without metadata expire, or the deadline of `stop`."""
        now_s = time.monotonic()
        until_s = min(now_s + MAX_SLEEP_S, self._accumulator.close_at_s(self._buffer.begin_sleep()))
        if self._awaiting_metadata:
            waiting_since_s = (waiting[0].since_s for waiting in self._awaiting_metadata.values())
            until_s = min(
                until_s,
                self._lookup.lookup_at_s(self._awaiting_metadata),
                min(waiting_since_s) + self._metadata_limit_ms / 1000,
            )
        if self._stop_deadline is not None:
            remaining_s = self._stop_deadline.remaining_s() if self._buffer.unfinished else 0.0
            until_s = min(until_s, now_s + remaining_s)
        return max(0.0, until_s - now_s)

    def _run_command(self, action: Callable[[], Any], future: Future[Any]) -> None:
        """Run an action of `call`, and give its result or error to the caller."""
        try:
            result = action()
        except BaseException as error:
            future.set_exception(error)
            if not isinstance(error, Exception):  # SystemExit and the like: the thread must end
                raise
        else:
            future.set_result(result)

    def _take_records(self) -> None:
        """Take the records of the buffer; `_assign_partitions` appends them to batches."""
        for records in self._buffer.take():
            self._awaiting_metadata.setdefault(records.topic, deque()).append(records)

    def _report_outcomes(self) -> None:
        """Wake waiting threads, run callbacks, and free the memory of finished records."""
        if not self._notifier.has_outcomes:
            return
        self._notifier.notify()
        waiting_bytes = sum(
            records.size_bytes
            for record_sets in self._awaiting_metadata.values()
            for records in record_sets
        )
        self._buffer.free(
            waiting_bytes + self._accumulator.pending_bytes + self.sender.queued_bytes
        )

    # --- records to batches ---------------------------------------------------------------------

    def _assign_partitions(self) -> None:
        """Look up topics that are unknown or whose metadata is stale. Append the records of known
        topics to batches; fail those of missing topics, and those that have waited for too long."""
        metadata = self.cluster.metadata
        to_look_up = [
            name
            for name in self._awaiting_metadata
            if name not in metadata.topics or name in metadata.stale
        ]
        if to_look_up:
            final_errors = self._lookup.request_metadata(to_look_up, self._lookup_ms(to_look_up))
            for topic, error in final_errors.items():
                for records in self._awaiting_metadata.pop(topic):
                    self._fail(records, error)
        for topic, record_sets in list(self._awaiting_metadata.items()):
            # The partitioner may look the topic up again, and find that it is gone.
            while record_sets and (count := self.cluster.partition_count(topic)) is not None:
                self._append(record_sets.popleft(), count)
            if record_sets:
                self._expire(topic)
            else:
                del self._awaiting_metadata[topic]

    @property
    def _metadata_limit_ms(self) -> int:
        """How long records may wait for their topic's metadata."""
        return min(self._options.max_block_ms, self._options.delivery_timeout_ms)

    def _lookup_ms(self, topics: Sequence[str]) -> float:
        """Return how long a lookup may wait: until the oldest record fails, of these topics or of
        those that have batches."""
        oldest_since_s = min(self._awaiting_metadata[topic][0].since_s for topic in topics)
        remaining_ms = self._metadata_limit_ms - (time.monotonic() - oldest_since_s) * 1000
        return min(max(MIN_LOOKUP_MS, remaining_ms), self.sender.attempt_ms)

    def _expire(self, topic: str) -> None:
        """Fail records that have waited for metadata for max.block.ms. (Java waits in `send`.)"""
        limit_ms = self._metadata_limit_ms
        setting = (
            "max.block.ms"
            if self._options.max_block_ms <= self._options.delivery_timeout_ms
            else "delivery.timeout.ms"
        )
        record_sets = self._awaiting_metadata[topic]
        while record_sets and time.monotonic() >= record_sets[0].since_s + limit_ms / 1000:
            cause = self._lookup.last_error(topic)
            is_unknown = getattr(cause, "code", None) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            hint = ". Check its name, or create the topic first" if is_unknown else ""
            error = KafkaTimeoutError(
                f"no broker returned metadata for topic {topic} within {limit_ms / 1000:g} s "
                f"({setting}); the last failure: {cause}{hint}"
            )
            error.__cause__ = cause
            self._fail(record_sets.popleft(), error)
        if not record_sets:
            del self._awaiting_metadata[topic]
            self._lookup.stop_lookup(topic)

    def _append(self, records: TopicRecords, count: int) -> None:
        """Append records to the batches of their topic's partitions, of which it has `count`."""
        try:
            for tp, rows, indexes, size_bytes in self._partitioner.partition(records, count):
                record_slice = RecordSlice(records, indexes)
                self._accumulator.append(
                    tp, rows, record_slice, size_bytes=size_bytes, since_s=records.since_s
                )
        except KafkaError as error:
            self._fail(records, error)
            return
        # The partitioner may have failed some of the records.
        for failure in records.errors():
            self.sender.on_failure(failure)

    # --- records that fail ------------------------------------------------------------------------

    def _fail(self, records: TopicRecords, error: KafkaError) -> None:
        """Fail those of the records that have no outcome."""
        records.failed(records.pending_indexes(), self.sender.on_failure(error))

    def fail_later(self, reason: KafkaError) -> None:
        """Fail everything after this step of the sender, which is going through its batches."""
        self._fail_reason = self._fail_reason or reason

    def fail_unsent(self, reason: KafkaError) -> None:
        """Fail all records that were never sent."""
        self._fail_reason = None
        self._take_records()
        for record_slice in self._accumulator.drop_all():
            record_slice.records.failed(record_slice.indexes, reason)
        for record_sets in self._awaiting_metadata.values():
            for records in record_sets:
                records.failed(records.pending_indexes(), reason)
        self._awaiting_metadata.clear()
        self.sender.fail_all(str(reason), only_unsent=True)

    def fail_all(self, reason: KafkaError) -> None:
        """Fail all records that have no outcome."""
        self.fail_unsent(reason)
        self.sender.fail_all(str(reason))

    def await_responses(self, deadline: Deadline) -> bool:
        """Wait until all sent batches are acknowledged or have failed; return True. After the
        deadline fail the rest, and return False."""
        while self.sender.has_unacknowledged and not deadline.expired:
            try:
                self.sender.step(min(MAX_SLEEP_S, deadline.remaining_s()))
            except KafkaError as error:
                self.sender.fail_all(str(error))
            self._buffer.is_sleeping = False
        is_complete = not self.sender.has_unacknowledged
        self.sender.fail_all("no response came before the transaction was ended")
        self.sender.close_connections()
        return is_complete

    def _end(self, reason: str) -> None:
        """Refuse records and commands, fail what has no outcome because of `reason`, and free the
        connections."""
        error = KafkaError(reason)
        is_closed = self._stop_deadline is not None  # else the thread has failed
        with self._buffer.lock:
            self._buffer.refuse(closed_error if is_closed else lambda: KafkaError(reason))
            # Before the callbacks, which may take long.
            self._refuses_commands = True
            commands = list(self._commands)
            self._commands.clear()
        for _, future in commands:
            future.set_exception(closed_error())
        lost_count = 0
        try:
            self._take_records()
            lost_count = sum(records.pending_count for records in self._buffer.unfinished)
            self.fail_all(error)
        finally:
            # In case of a bug: no caller may wait forever.
            for records in self._buffer.unfinished:
                if records.pending_count > 0:
                    records.failed(records.pending_indexes(), error)
            if lost_count:
                log.warning("%s not delivered: %s", counted(lost_count, "record"), reason)
            self._report_outcomes()
            self.cluster.close()
            self._buffer.close()


def close_collected(thread: ProducerThread, process_id: int) -> None:
    """End the thread of a producer that was garbage-collected: it delivers what it can within
    CLOSE_IN_ERROR_S, and logs what it could not. Warns if nobody closed the producer."""
    # In a child process of a fork: the thread, and its records, stayed with the parent.
    if os.getpid() != process_id:
        return
    is_closed = thread.is_stopping
    thread.stop(Deadline(CLOSE_IN_ERROR_S * 1000), _UNCLOSED)
    if not is_closed:
        warnings.warn(_UNCLOSED, ResourceWarning, stacklevel=2)


def _end_all() -> None:
    """At the end of the interpreter: end all threads."""
    running = [thread for thread in _running_threads if thread.is_alive]
    for thread in running:
        thread.stop(Deadline(CLOSE_IN_ERROR_S * 1000), _UNCLOSED)
    # A little later than the threads' own deadlines.
    deadline = Deadline(CLOSE_IN_ERROR_S * 1000 + 200)
    for thread in running:
        if not thread.join(deadline.remaining_s()) and thread.has_undelivered:
            log.warning("records were not delivered: %s", _UNCLOSED)


atexit.register(_end_all)
# A child has none of these threads, though their `is_alive` is True.
os.register_at_fork(after_in_child=_running_threads.clear)
