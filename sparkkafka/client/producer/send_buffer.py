"""Passes records from the user's threads to a Producer's I/O thread, and limits buffer.memory.

Java's `send` chooses the partition and appends to its batch. Here that would take a record with a
key 2.4 times as long (measured), so `send` appends to lists of the topic, and the I/O thread
chooses the partitions of all of them at once, for the batches of `record_accumulator`.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable

from sparkkafka.client.deadline import Deadline, Waker
from sparkkafka.client.metrics import SendMetrics
from sparkkafka.client.producer.futures import OutcomeNotifier
from sparkkafka.client.producer.topic_records import AppendedRecords, TopicRecords
from sparkkafka.config.options import ProducerOptions
from sparkkafka.errors import KafkaError, KafkaTimeoutError

MAX_OPEN_BYTES = 2 * 2**20
"""At this size a topic's open records become ready, and the next record opens new ones. Records
that are passed on together share the cost of each partition; this many collect only while the I/O
thread is busy."""

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
        self.full_bytes = max(1, min(MAX_OPEN_BYTES, options.buffer_memory // 4))
        """Records of a topic are closed at this size: no more are appended."""
        self.wake_bytes = min(options.batch_size, self.full_bytes)
        """Open records of a topic wake the I/O thread at this size."""
        self.open: dict[str, AppendedRecords] = {}
        self.ready: deque[TopicRecords] = deque()
        self.unfinished: set[TopicRecords] = set()
        """All that have records without an outcome: open, ready and taken ones."""
        self.used_bytes = 0
        """The bytes of the records that the I/O thread has not taken."""
        self.io_bytes = 0
        """The bytes of the records that the I/O thread has taken. Only that thread sets this."""
        self.flushes = 0
        """The number of callers that wait for the delivery of all records."""
        self.waiting_threads = 0
        """The number of callers that wait for memory."""
        self.on_freed: Callable[[], None] = lambda: None
        """Called when memory is freed that a caller waits for, in the I/O thread."""
        self.may_linger = True
        """Whether no caller waited for delivery or memory when the I/O thread last took records."""
        self.is_sleeping = False
        self._refusal: Callable[[], KafkaError] | None = None
        self.waker = Waker()

    # --- the user's side; with the lock -----------------------------------------------------------

    def refuse(self, reason: Callable[[], KafkaError] | None) -> None:
        """Take no records from now on; `reason` makes the error. None: take them again."""
        self._refusal = reason
        self._memory_freed.notify_all()
        self.on_freed()

    def raise_refusal(self) -> None:
        """Raise the error of a buffer that takes no records."""
        if self._refusal is not None:
            raise self._refusal()

    def open_records(self, topic: str) -> AppendedRecords:
        """Return new records of a topic that has no open ones; the caller calls `wake` once it has
        released the lock. Raises the errors of `raise_refusal`."""
        self.raise_refusal()
        records = self.open[topic] = AppendedRecords(topic, self._notifier)
        self.unfinished.add(records)
        return records

    def close_open(self) -> None:
        """Make all open records ready, in the order in which they were opened."""
        self.ready.extend(self.open.values())
        self.open.clear()

    def add(self, records: TopicRecords) -> None:
        """Add records behind all earlier ones."""
        self.raise_refusal()
        self.close_open()
        self.ready.append(records)
        self.unfinished.add(records)
        self.used_bytes += records.size_bytes
        self.wake()

    def wait_for_memory(self, size_bytes: int, failure_text: Callable[[], str]) -> None:
        """Wait until `size_bytes` fit or the buffer is empty, at most max.block.ms. `failure_text`
        returns why nothing is delivered, if that is known. A caller that has to wait waits for half
        of the memory, at most GATHER_S: waiting for each record would cost more than the record.

        Raises KafkaTimeoutError, KafkaError if the buffer is closed meanwhile.
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
            while not (fits := self.has_memory(size_bytes)) or (
                time.monotonic() < gather_until_s and not self.has_memory(self.limit_bytes // 2)
            ):
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
        """Return the error of a caller that has waited for max.block.ms."""
        return KafkaTimeoutError(
            f"{'records cannot be sent' if why else 'the brokers take records too slowly'}: "
            f"{self.held_bytes()} bytes wait, the next takes {size_bytes}, and "
            f"buffer.memory={self.limit_bytes} had no room for "
            f"max.block.ms={self._max_block_ms}{hint}{why}"
        )

    def held_bytes(self) -> int:
        """Return the bytes of records without an outcome.

        The I/O thread sets `io_bytes` at the end of each step of its loop, perhaps long after the
        last outcome: a caller that has seen this outcome must find free memory.
        """
        taken = self.unfinished.difference(self.open.values(), self.ready)
        return self.used_bytes + (
            0 if all(records.all_done for records in taken) else self.io_bytes
        )

    def wake(self) -> None:
        """Wake the I/O thread if it sleeps. Also without the lock, for which it would wait next."""
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

    # --- the I/O thread's side --------------------------------------------------------------------

    def take(self) -> list[TopicRecords]:
        """Take all records. Their bytes are the I/O thread's from here on."""
        self.may_linger = not (self.waiting_threads or self.flushes)
        if not (self.open or self.ready):
            return []
        with self.lock:
            self.close_open()
            batches = list(dict.fromkeys(self.ready))
            self.ready.clear()
            self.unfinished.update(batches)
            self.io_bytes += sum(records.size_bytes for records in batches)
            self.used_bytes = 0
        for records in batches:
            records.close()
        return batches

    def begin_sleep(self, has_commands: Callable[[], bool]) -> float:
        """Return since when the oldest records wait (monotonic seconds): infinite if none do,
        -infinite if they must not linger. Otherwise the I/O thread counts as sleeping from here
        on."""
        with self.lock:
            if (
                self.ready
                or has_commands()
                or ((self.waiting_threads or self.flushes) and (self.may_linger or self.open))
            ):
                return -math.inf
            since_s = math.inf
            for records in self.open.values():
                if records.size_bytes >= self.wake_bytes:
                    return -math.inf
                since_s = min(since_s, records.since_s)
            self.is_sleeping = True
            return since_s

    def free(self, io_bytes: int) -> None:
        """Free the memory of records that have outcomes; the I/O thread still holds `io_bytes`."""
        with self.lock:
            self.io_bytes = io_bytes
            self.unfinished -= {records for records in self.unfinished if records.all_done}
            if self.waiting_threads:
                self._memory_freed.notify_all()
                self.on_freed()

    def close(self) -> None:
        """Free the descriptors; the I/O thread has ended."""
        with self.lock:
            self.waker.close()
            self.is_sleeping = False
