"""The loop inside a consumer's poll: serve the group, set starting positions, exchange requests and
responses with the leaders, and take buffered records from partitions in turn.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from sparkkafka import errors
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.consumer.auto_offset_reset import AutoOffsetReset
from sparkkafka.client.consumer.consumer_coordinator import ConsumerCoordinator
from sparkkafka.client.consumer.fetched_records import with_setting
from sparkkafka.client.consumer.fetcher import Fetcher
from sparkkafka.client.consumer.record import RECORD_SCHEMA, Records, TakenRows, to_arrow
from sparkkafka.client.consumer.subscription_state import PartitionState, SubscriptionState
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.metrics import FetchMetrics, Sampled
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.client_settings import ConsumerOptions

log = logging.getLogger(__name__)

T = TypeVar("T")

# The least time for responses that poll must wait for (metadata, committed offsets), so that
# poll(0) makes progress. It doubles after each attempt that reached a broker and was too short. If
# brokers are down it stays, as a longer wait would not help.
MIN_RESPONSE_MS = 1_000


class PollLoop:
    """Runs the poll of one consumer. For one thread, except `wakeup`."""

    def __init__(
        self,
        options: ConsumerOptions,
        cluster: Cluster,
        subscription: SubscriptionState,
        fetcher: Fetcher,
        coordinator: ConsumerCoordinator,
        metrics: FetchMetrics,
    ) -> None:
        self._options = options
        self._metrics = metrics
        self._subscription = subscription
        self._fetcher = fetcher
        self._coordinator = coordinator
        self._offset_reset = AutoOffsetReset(options, cluster)
        self._wakeup = threading.Event()
        self._min_response_ms = float(MIN_RESPONSE_MS)
        self._error_of_next_poll: errors.KafkaError | None = None
        self._old_positions: list[tuple[PartitionState, int | None]] = []
        """The positions before the last poll of the partitions that it took records from."""

    def poll_records(self, timeout_s: float, max_records: int = 0) -> Records:
        """As `Consumer.poll`. `max_records` may be more than max.poll.records."""
        count = max(max_records, self._options.max_poll_records)
        return self._poll(timeout_s, lambda end: self._collect_records(count, end)) or Records()

    def poll_table(self, timeout_s: float, max_records: int | None) -> pa.Table:
        """As `Consumer.poll_arrow`."""
        batches = self._poll(timeout_s, lambda end: self._collect_batches(max_records, end))
        return pa.Table.from_batches(batches or [], schema=RECORD_SCHEMA)

    def wakeup(self) -> None:
        """As `Consumer.wakeup`."""
        self._wakeup.set()
        self._fetcher.wake()

    def position(self, state: PartitionState, deadline: Deadline) -> int:
        """Wait for a position. Raises NoOffsetError, KafkaTimeoutError."""
        while True:
            self._set_positions(deadline)
            if state.position is None:
                self._raise_error_of(state)
            if state.position is not None:
                return state.position
            if deadline.expired:
                why = "no response came" if state.last_failure is None else f"{state.last_failure}"
                raise errors.KafkaTimeoutError(
                    f"no position of {state.tp} within {deadline.text}: {why}"
                ) from state.last_failure
            self._exchange(deadline)

    def _poll(self, timeout_s: float, collect: Callable[[Deadline], T | None]) -> T | None:
        """Return what `collect` returns, None if that is nothing until the timeout."""
        if not self._coordinator.is_subscribed and not len(self._subscription):
            raise errors.ConsumerStateError(
                "there is nothing to read: call subscribe(topics) or assign(partitions) first"
            )
        deadline = Deadline(timeout_s * 1000)
        self._metrics.poll_begins()
        try:
            return self._poll_until(deadline, collect)
        finally:
            self._metrics.poll_ends()

    def _poll_until(self, deadline: Deadline, collect: Callable[[Deadline], T | None]) -> T | None:
        """Exchange requests and responses until `collect` returns records, or the deadline."""
        if self._error_of_next_poll is not None:
            error, self._error_of_next_poll = self._error_of_next_poll, None
            raise error
        has_received = False
        while True:
            if self._wakeup.is_set():
                self._wakeup.clear()
                raise errors.WakeupError("poll was ended by wakeup()")
            self._coordinator.poll(deadline, self._with_time_for_response(deadline))
            if self._fetcher.is_closed:
                raise errors.ConsumerStateError(
                    "this Consumer was closed by a callback, inside poll"
                )
            self._set_positions(deadline)
            collected = collect(deadline)
            if collected:
                try:
                    self._fetch_ahead()
                except BaseException:
                    self.restore_positions()
                    raise
                return collected
            if has_received and deadline.expired:
                return None
            self._exchange(deadline)
            has_received = True

    def _set_positions(self, deadline: Deadline) -> None:
        """Set the starting positions of new partitions. The next poll retries retriable errors."""
        states = self._subscription.without_position()
        if not states:
            return
        failure: errors.KafkaError | None = None
        try:
            self._offset_reset.set_positions(states, self._with_time_for_response(deadline))
            self._min_response_ms = float(MIN_RESPONSE_MS)
        except errors.KafkaError as error:
            if not error.retriable:
                raise
            log.warning("%s", error)
            if not isinstance(error.__cause__ or error, errors.KafkaConnectionError):
                max_ms = max(MIN_RESPONSE_MS, self._options.client.request_timeout_ms)
                self._min_response_ms = min(2 * self._min_response_ms, max_ms)
            failure = error
        for state in states:
            state.last_failure = failure or state.last_failure
            self._subscription.enqueue_if_ready(state)

    def _with_time_for_response(self, deadline: Deadline) -> Deadline:
        """Return the deadline, or a later one that leaves time for a response."""
        if deadline.remaining_s() * 1000 >= self._min_response_ms:
            return deadline
        return Deadline(self._min_response_ms)

    def _exchange(self, deadline: Deadline) -> None:
        """Send requests to the leaders, and wait for a response or the next step of the group."""
        self._fetcher.send(self._with_time_for_response(deadline))
        self._fetcher.receive(
            min(deadline.remaining_s(), self._fetcher.next_step_s, self._coordinator.next_step_s)
        )

    def _fetch_ahead(self, *, is_draining: bool = False) -> None:
        """Request the next records while the user processes these; the next poll raises errors.
        `is_draining`: the caller takes all buffered records now."""
        now_s = time.monotonic()
        if not is_draining and not any(
            state.needs_request(now_s) and self._fetcher.can_request(state)
            for state, _ in self._old_positions
        ):
            # Do not go through thousands of partitions in vain: a broker with a request in flight
            # gets no other one.
            return
        try:
            self._fetcher.send(None, is_draining=is_draining)
        except errors.KafkaError as error:
            self._error_of_next_poll = error

    # --- buffered records -------------------------------------------------------------------

    def _collect_records(self, max_records: int, deadline: Deadline) -> Records | None:
        """Take buffered records, at most `max_records`; return None if there are none."""
        taken: list[TakenRows] = []

        def take(state: PartitionState, max_rows: int | None) -> int:
            try:
                rows = state.take_rows(max_records if max_rows is None else max_rows, deadline)
            except errors.CorruptRecordError as error:
                damage = state.skip_damage(error) if self._options.damaged == "yield" else None
                if damage is None:
                    raise
                taken.append(damage)
                return 1
            if rows is None:
                return 0
            taken.append(rows)
            state.advance(rows.stop - rows.start)
            return rows.stop - rows.start

        self._take_in_turn(take, max_records, deadline)
        return Records(taken) if taken else None

    def _collect_batches(self, max_records: int | None, deadline: Deadline) -> list[pa.RecordBatch]:
        """Take buffered records, at most `max_records` (None: all), as Arrow batches."""
        batches: list[pa.RecordBatch] = []

        def take(state: PartitionState, max_rows: int | None) -> int:
            taken = state.take_columns(max_rows, deadline)
            if taken is None:
                return 0
            columns, next_offset = taken
            batches.append(to_arrow(state.tp, columns, next_offset))
            state.advance(len(columns))
            return len(columns)

        if max_records is None and self._subscription.has_ready:
            # The brokers prepare the next responses while these are decoded.
            self._fetch_ahead(is_draining=True)
        self._take_in_turn(take, max_records, deadline)
        return batches

    def _take_in_turn(
        self,
        take: Callable[[PartitionState, int | None], int],
        max_records: int | None,
        deadline: Deadline,
    ) -> None:
        """Take records of ready partitions in turn: at most `max_records`, until the deadline, and
        up to a quarter of max.decompressed.batch.bytes, as the next record may take all of it.

        `take(state, max_rows)` takes up to `max_rows` records (None: what was decoded together) and
        returns their number. An error is raised if nothing was taken before it, else by the next
        poll.
        """
        remaining, has_taken, is_over = max_records, False, False
        budget_bytes = self._options.fetch.max_decompressed_batch_bytes / 4
        self._old_positions.clear()
        for state in self._subscription.ready():
            self._old_positions.append((state, state.position))
            try:
                while (remaining is None or remaining > 0) and not is_over:
                    count = take(state, remaining)
                    budget_bytes -= count * state.row_bytes
                    if not count:
                        self._raise_error_of(state)
                        break
                    has_taken = True
                    self._record_metrics(state, count)
                    if remaining is not None:
                        remaining -= count
                    is_over = budget_bytes <= 0 or deadline.expired
            except errors.KafkaError as error:
                if has_taken:
                    state.error = error
                    self._subscription.enqueue_if_ready(state)
                    return
                state.error = None
                if isinstance(error, errors.CorruptRecordError):
                    error = _with_advice(error, state.tp, state.position or 0)
                self._subscription.may_lack_positions = True
                self._subscription.end_turn(state)
                raise error from error.__cause__
            except BaseException:
                self.restore_positions()
                raise
            if state.is_between_responses:
                self._subscription.end_turn(state)
            if remaining == 0 or is_over or state.is_decoding:
                return

    def _record_metrics(self, state: PartitionState, count: int) -> None:
        """Count the records that this poll returns of a partition."""
        if state.lags is None:
            state.lags = Sampled()
        size_bytes = count * state.column_bytes
        self._metrics.consumed(state.tp.topic, count, size_bytes, state.lag or 0, state.lags)

    def restore_positions(self) -> None:
        """Undo the last poll, whose records the user does not get (Ctrl-C, a cancelled task)."""
        for state, position in self._old_positions:
            if position is not None:
                state.seek(position)

    def _raise_error_of(self, state: PartitionState) -> None:
        """Raise the partition's error, if it has one. Resets a position that is out of range."""
        if state.is_out_of_range:
            self._offset_reset.reset_position(state, Deadline(MIN_RESPONSE_MS))
        if state.error is None:
            return
        if isinstance(state.error, errors.UnknownTopicError) and self._coordinator.is_subscribed:
            # If the topic does not come back, the group will revoke the partition.
            log.warning("%s", state.error)
            state.error = None
            return
        raise state.error


def _with_advice(
    error: errors.CorruptRecordError, tp: TopicPartition, position: int
) -> errors.CorruptRecordError:
    """Return the error, with what to do about it."""
    with_setting(error, prefix="")
    is_too_large = isinstance(error, errors.BatchTooLargeError)
    batch, it = ("batch", "it") if is_too_large else ("damaged batch", "the damage")
    past = f" The {batch} ends before offset {error.next_offset}." if error.next_offset else ""
    error.reason += (
        f". The position stays at {position}.{past} Seek past {it} to skip these records"
    )
    return error.at(*tp)
