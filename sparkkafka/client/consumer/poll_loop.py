"""The loop inside a consumer's poll: the group, where to begin, the leaders, and the partitions'
turns."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.consumer.consumer_coordinator import ConsumerCoordinator
from sparkkafka.client.consumer.fetch_request import with_setting
from sparkkafka.client.consumer.fetcher import Fetcher
from sparkkafka.client.consumer.record import RECORD_SCHEMA, Records, TakenRows, to_arrow
from sparkkafka.client.consumer.starting_offsets import StartingOffsets
from sparkkafka.client.consumer.subscription_state import PartitionState, SubscriptionState
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.metrics.fetching import FetchMetrics
from sparkkafka.client.metrics.sampled import Sampled
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.client_settings import ConsumerOptions
from sparkkafka.errors import (
    BatchTooLargeError,
    ConsumerStateError,
    CorruptRecordError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    UnknownTopicError,
    WakeupError,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

# The least time for answers that poll must wait for (metadata, committed offsets), so that poll(0)
# makes progress. It doubles after each attempt that reached a broker and still was too short; for
# brokers that are down, waiting longer does not help.
PATIENCE_MS = 1_000

# A poll ends once its records exceed this share of max.decompressed.batch.bytes, as the next record
# may take all of it.
_SHARE_OF_ONE_POLL = 4


class PollLoop:
    """Brings the parts of one consumer together. For one thread, except `wakeup`."""

    def __init__(
        self,
        options: ConsumerOptions,
        cluster: Cluster,
        assignment: SubscriptionState,
        fetcher: Fetcher,
        coordinator: ConsumerCoordinator,
        metrics: FetchMetrics,
    ) -> None:
        self._options = options
        self._metrics = metrics
        self._assignment = assignment
        self._fetcher = fetcher
        self._coordinator = coordinator
        self._starting = StartingOffsets(options, cluster)
        self._wakeup = threading.Event()
        self._patience_ms = float(PATIENCE_MS)
        self._late_error: KafkaError | None = None
        self._served: list[PartitionState] = []  # in the last poll
        self._before: list[tuple[PartitionState, int | None]] = []  # positions before it

    def records(self, timeout_s: float) -> Records:
        return self._poll(timeout_s, self._collect_records) or Records()

    def table(self, timeout_s: float, max_records: int | None) -> pa.Table:
        batches = self._poll(timeout_s, lambda end: self._collect_batches(max_records, end))
        return pa.Table.from_batches(batches or [], schema=RECORD_SCHEMA)

    def wakeup(self) -> None:
        self._wakeup.set()
        self._fetcher.wake()

    def position(self, state: PartitionState, deadline: Deadline) -> int:
        """Waits for a position. Raises NoOffsetError, KafkaTimeoutError."""
        while True:
            self._assign_positions(deadline)
            if state.position is None:
                self._raise_due(state)
            if state.position is not None:
                return state.position
            if deadline.expired:
                why = "no answer came" if state.trouble is None else f"{state.trouble}"
                raise KafkaTimeoutError(
                    f"no position of {state.tp} within {deadline.text}: {why}"
                ) from state.trouble
            self._exchange(deadline)

    def _poll(self, timeout_s: float, collect: Callable[[Deadline], T | None]) -> T | None:
        if not self._coordinator.is_subscribed and not len(self._assignment):
            raise ConsumerStateError(
                "there is nothing to read: call subscribe(topics) or assign(partitions) first"
            )
        deadline = Deadline(timeout_s * 1000)
        self._metrics.poll_begins()
        try:
            return self._poll_until(deadline, collect)
        finally:
            self._metrics.poll_ends()

    def _poll_until(self, deadline: Deadline, collect: Callable[[Deadline], T | None]) -> T | None:
        if self._late_error is not None:
            error, self._late_error = self._late_error, None
            raise error
        has_received = False
        while True:
            if self._wakeup.is_set():
                self._wakeup.clear()
                raise WakeupError("poll was ended by wakeup()")
            self._prepare(deadline)
            found = collect(deadline)
            if found:
                try:
                    self._fetch_ahead()
                except BaseException:
                    self._go_back()
                    raise
                return found
            if has_received and deadline.expired:
                return None
            self._exchange(deadline)
            has_received = True

    def _prepare(self, deadline: Deadline) -> None:
        """Poll the group, and find where to begin in new partitions."""
        self._coordinator.poll(deadline, self._patient(deadline))
        if self._fetcher.is_closed:
            raise ConsumerStateError("this Consumer was closed by a callback, inside poll")
        self._assign_positions(deadline)

    def _assign_positions(self, deadline: Deadline) -> None:
        states = self._assignment.without_position()
        if states:
            trouble = self._patiently(
                deadline, lambda limit: self._starting.assign_positions(states, limit)
            )
            for state in states:
                state.trouble = trouble or state.trouble
                self._assignment.note_ready(state)

    def _exchange(self, deadline: Deadline) -> None:
        """Ask the leaders, and wait for something to happen."""
        self._fetcher.send(self._patient(deadline))
        self._fetcher.receive(
            min(deadline.remaining_s(), self._fetcher.next_step_s, self._coordinator.next_step_s)
        )

    def _fetch_ahead(self, *, draining: bool = False) -> None:
        """Ask for the next records while the user works; the next poll raises failures."""
        now_s = time.monotonic()
        if not draining and not any(
            state.wants_request(now_s) and self._fetcher.can_request(state)
            for state in self._served
        ):
            # Do not look at thousands of partitions in vain: while a broker has a request to
            # answer, its other partitions wait anyway.
            return
        try:
            self._fetcher.send(None, draining=draining)
        except KafkaError as error:
            self._late_error = error

    def _patient(self, deadline: Deadline) -> Deadline:
        """The deadline, or one that leaves time for an answer."""
        if deadline.remaining_s() * 1000 >= self._patience_ms:
            return deadline
        return Deadline(self._patience_ms)

    def _patiently(self, deadline: Deadline, step: Callable[[Deadline], None]) -> KafkaError | None:
        """Run a step that waits for an answer; returns a retriable error, which the next poll
        retries."""
        try:
            step(self._patient(deadline))
        except KafkaError as error:
            if not error.retriable:
                raise
            log.warning("%s", error)
            if not isinstance(error.__cause__ or error, KafkaConnectionError):
                max_ms = max(PATIENCE_MS, self._options.client.request_timeout_ms)
                self._patience_ms = min(2 * self._patience_ms, max_ms)
            return error
        self._patience_ms = float(PATIENCE_MS)
        return None

    # --- records out of the buffers ---------------------------------------------------------

    def _collect_records(self, deadline: Deadline) -> Records | None:
        parts: list[TakenRows] = []
        max_records = self._options.max_poll_records

        def take(state: PartitionState, count: int | None) -> int:
            rows = state.take_rows(max_records if count is None else count, deadline)
            if rows is None:
                return 0
            parts.append(rows)
            state.advance(rows.stop - rows.start)
            return rows.stop - rows.start

        self._serve(take, max_records, deadline)
        return Records(parts) if parts else None

    def _collect_batches(self, max_records: int | None, deadline: Deadline) -> list[pa.RecordBatch]:
        batches: list[pa.RecordBatch] = []

        def take(state: PartitionState, count: int | None) -> int:
            found = state.columns(count, deadline)
            if found is None:
                return 0
            columns, next_offset = found
            batches.append(to_arrow(state.tp, columns, next_offset))
            state.advance(len(columns))
            return len(columns)

        if max_records is None and self._assignment.has_ready:
            self._fetch_ahead(draining=True)
        self._serve(take, max_records, deadline)
        return batches

    def _serve(
        self,
        take: Callable[[PartitionState, int | None], int],
        max_records: int | None,
        deadline: Deadline,
    ) -> None:
        """Take records of ready partitions in turn: at most `max_records`, until the deadline, and
        within the memory of one poll.

        Raises an error if nothing was taken before it; else the next poll does.
        """
        left, has_some, is_over = max_records, False, False
        budget_bytes = self._options.fetch.max_decompressed_batch_bytes / _SHARE_OF_ONE_POLL
        self._served.clear()
        self._before.clear()
        for state in self._assignment.ready():
            self._before.append((state, state.position))
            self._served.append(state)
            try:
                while (left is None or left > 0) and not is_over:
                    count = take(state, left)
                    budget_bytes -= count * state.row_bytes
                    if not count:
                        self._raise_due(state)
                        break
                    has_some = True
                    self._count(state, count)
                    if left is not None:
                        left -= count
                    is_over = budget_bytes <= 0 or deadline.expired
            except KafkaError as error:
                if isinstance(error, CorruptRecordError):
                    error = _with_advice(error, state.tp, state.position or 0)
                state.error = error
                if has_some:
                    self._assignment.note_ready(state)
                    return
                state.error = None
                self._assignment.may_lack_positions = True
                self._assignment.served(state)
                raise error from error.__cause__
            except BaseException:
                self._go_back()
                raise
            if state.is_between_answers:
                self._assignment.served(state)
            if left == 0 or is_over or state.is_decoding:
                return

    def _count(self, state: PartitionState, count: int) -> None:
        if state.lags is None:
            state.lags = Sampled()
        size_bytes = count * state.column_bytes
        self._metrics.consumed(state.tp.topic, count, size_bytes, state.lag or 0, state.lags)

    def _go_back(self) -> None:
        """Ctrl-C: the user gets nothing, so nothing was read."""
        for state, position in self._before:
            if position is not None:
                state.seek(position)

    def _raise_due(self, state: PartitionState) -> None:
        """Raise the partition's error, if it has one."""
        if state.out_of_range:
            self._starting.reset(state, Deadline(PATIENCE_MS))
        if state.error is None:
            return
        if isinstance(state.error, UnknownTopicError) and self._coordinator.is_subscribed:
            # The group will take it away, if the topic does not come back.
            log.warning("%s", state.error)
            state.error = None
            return
        raise state.error


def _with_advice(
    error: CorruptRecordError, tp: TopicPartition, position: int
) -> CorruptRecordError:
    with_setting(error, prefix="")
    is_sound = isinstance(error, BatchTooLargeError)
    batch, it = ("batch", "it") if is_sound else ("damaged batch", "the damage")
    past = f" The {batch} ends before offset {error.next_offset}." if error.next_offset else ""
    error.reason += (
        f". The position stays at {position}.{past} Seek past {it} to go on without what lies there"
    )
    return error.at(*tp)
