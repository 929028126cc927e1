"""Kafka's consumer: reads partitions that the user assigns, or that its group assigns.

    with Consumer({"bootstrap.servers": "localhost:9092", "group.id": "g"}) as consumer:
        consumer.subscribe(["orders"])
        while True:
            for record in consumer.poll(1.0):
                ...
            consumer.commit()

Names, defaults and rules are those of Java's KafkaConsumer. Keys and values are bytes.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, TypeAlias, TypeVar

import pyarrow as pa

from sparkkafka import errors
from sparkkafka.client import arguments
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.metadata import PartitionInfo, TopicMetadata
from sparkkafka.client.cluster.offsets import (
    ListedOffset,
    OffsetLookup,
    OffsetRange,
    OffsetSpec,
    StartingPoint,
    starting_point,
)
from sparkkafka.client.consumer.consumer_coordinator import (
    Callback,
    CommitCallback,
    ConsumerCoordinator,
    Topics,
)
from sparkkafka.client.consumer.fetched_records import with_setting
from sparkkafka.client.consumer.fetcher import Fetcher
from sparkkafka.client.consumer.record import RECORD_SCHEMA, Records, TakenRows, to_arrow
from sparkkafka.client.consumer.subscription_state import (
    EpochEnd,
    LogBounds,
    PartitionState,
    SubscriptionState,
)
from sparkkafka.client.deadline import Deadline, deadline_of, seconds_of
from sparkkafka.client.group.committed_offsets import GroupMetadata, fetch_committed
from sparkkafka.client.metrics import FetchMetrics, Metrics, PartitionFigures, Sampled
from sparkkafka.client.values import LagInfo, OffsetAndMetadata, TopicPartition, checked_topic
from sparkkafka.config.client_settings import ConsumerOptions, parse_consumer_settings
from sparkkafka.config.kinds import parse_duration_ms
from sparkkafka.protocol.constants import EARLIEST, LATEST, NO_LEADER_EPOCH, NO_OFFSET

log = logging.getLogger(__name__)


T = TypeVar("T")

# The least time for responses that poll must wait for (metadata, committed offsets), so that
# poll(0) makes progress. It doubles after each attempt that reached a broker and was too short. If
# brokers are down it stays, as a longer wait would not help.
MIN_RESPONSE_MS = 1_000


class AutoOffsetReset:
    """Sets the positions of partitions that have none, or whose leader does not have their
    position: the group's committed offset, else what auto.offset.reset says.

    With auto.offset.reset=none it sets `PartitionState.error` instead, which poll raises.
    """

    def __init__(self, options: ConsumerOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster

    def set_positions(self, states: Iterable[PartitionState], deadline: Deadline) -> None:
        """Set the position of each partition to the group's committed offset, or else (`lookup_ms`)
        to what auto.offset.reset looks up. One request fetches all committed offsets.

        Raises the errors of `fetch_committed`.
        """
        pending = list(states)
        group_id = self._options.group_id
        committed_offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        if group_id is not None:
            committed_offsets = fetch_committed(
                self._cluster, group_id, [state.tp for state in pending], deadline=deadline
            )
        for state in pending:
            committed = committed_offsets.get(state.tp)
            if committed is not None:
                log.debug("%s: group %r is at offset %d", state.tp, group_id, committed.offset)
                epoch = committed.leader_epoch
                state.seek(committed.offset, epoch=NO_LEADER_EPOCH if epoch is None else epoch)
                continue
            timestamp_ms = self._policy_timestamp_ms()
            if timestamp_ms is not None:
                state.seek(None, lookup_ms=timestamp_ms)
            else:
                what = (
                    f"group {group_id!r} has committed no offset"
                    if group_id is not None
                    else "the consumer has no group"
                )
                state.error = self._no_offset(state, what, deadline)

    def reset_position(self, state: PartitionState, deadline: Deadline) -> None:
        """Apply auto.offset.reset, as the leader does not have the position: retention deleted it,
        it never existed, or it is one of a topic that was deleted and recreated."""
        state.is_out_of_range = False
        timestamp_ms = self._policy_timestamp_ms()
        if state.truncated is not None and state.position is not None:
            self._reset_truncated(
                state, state.truncated, state.position, has_policy=timestamp_ms is not None
            )
            return
        what = f"offset {state.position} is out of range"
        if self._cluster.was_recreated(state.tp.topic, state.topic_id):
            what = f"the topic was deleted and recreated, offset {state.position} is of the old one"
        if timestamp_ms is None:
            state.log_bounds = None
            state.error = self._no_offset(state, what, deadline)
            return
        policy = self._options.auto_offset_reset
        log.warning("%s: %s; continuing by auto.offset.reset=%s", state.tp, what, policy)
        state.seek(None, lookup_ms=timestamp_ms)
        state.back_off()  # for a broker that refuses its own offsets again and again

    def _reset_truncated(
        self, state: PartitionState, diverging: EpochEnd, position: int, *, has_policy: bool
    ) -> None:
        """Set the position to where the leader's log diverges from the records that were read, as
        in Java. Without a policy (auto.offset.reset=none) let poll raise LogTruncationError."""
        end_offset = min(diverging.end_offset, position)
        what = diverging.lost_before(position)
        if not has_policy:
            state.error = errors.LogTruncationError(
                f"{what}. What was computed from records from about offset {end_offset} on may be "
                "wrong. auto.offset.reset=none allows no other offset: call seek",
                topic=state.tp.topic,
                partition=state.tp.partition,
                offset=position,
                end_offset=end_offset,
            )
            return
        log.warning("%s: %s; continuing from offset %d", state.tp, what, end_offset)
        state.seek(end_offset, epoch=diverging.epoch)
        state.back_off()  # for a broker that answers so again and again

    def _policy_timestamp_ms(self) -> int | None:
        """Return the timestamp that auto.offset.reset looks up, None for `none`."""
        policy = self._options.auto_offset_reset
        lookups = {"none": None, "earliest": EARLIEST, "latest": LATEST}
        if policy in lookups:
            return lookups[policy]
        # by_duration:P1D (KIP-1106)
        return max(0, int(time.time() * 1000) - parse_duration_ms(policy.partition(":")[2]))

    def _no_offset(
        self, state: PartitionState, what: str, deadline: Deadline
    ) -> errors.NoOffsetError:
        """Return the error of auto.offset.reset=none: why there is no position (`what`), and which
        offsets the log has. They are looked up once, not in each poll that raises the error."""
        tp = state.tp
        try:
            if state.log_bounds is None:
                first, end = OffsetLookup(self._cluster).earliest_and_latest([tp], deadline)
                state.log_bounds = LogBounds(first[tp], end[tp], end[tp])
            bounds = state.log_bounds
            log_text = f"the log has offsets [{bounds.log_start_offset}, {bounds.high_watermark})"
        except errors.KafkaError as error:
            log_text = f"the offsets of the log are not known ({error})"
        return errors.NoOffsetError(
            f"{what}, and auto.offset.reset=none allows no other; {log_text}. Call seek, commit "
            "an offset, or set auto.offset.reset to earliest or latest",
            topic=tp.topic,
            partition=tp.partition,
        )


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
        self._connections = cluster.connections
        self._offset_reset = AutoOffsetReset(options, cluster)
        self._wakeup = threading.Event()
        self._min_response_ms = float(MIN_RESPONSE_MS)
        """The least time for the response to a request, however short poll's timeout is."""
        self._error_of_next_poll: errors.KafkaError | None = None
        self._old_positions: list[tuple[PartitionState, int | None]] = []
        """The partitions from which the last poll took records, with their positions before it."""

    def poll_records(self, timeout_s: float, max_records: int = 0) -> Records:
        """Return the next records for `Consumer.poll`; up to `max_records`, if that is more than
        max.poll.records."""
        count = max(max_records, self._options.max_poll_records)
        return self._poll(timeout_s, lambda end: self._collect_records(count, end)) or Records()

    def poll_table(self, timeout_s: float, max_records: int | None) -> pa.Table:
        """Return the next records as a table, for `Consumer.poll_arrow`."""
        batches = self._poll(timeout_s, lambda end: self._collect_batches(max_records, end))
        return pa.Table.from_batches(batches or [], schema=RECORD_SCHEMA)

    def wakeup(self) -> None:
        """Make the waiting poll, or else the next one, raise WakeupError. May be called from any
        thread."""
        self._wakeup.set()
        self._fetcher.wake()

    def position(self, state: PartitionState, deadline: Deadline) -> int:
        """Return a partition's position; wait until it is known. Raises NoOffsetError,
        KafkaTimeoutError."""
        while True:
            self._set_positions(deadline, is_poll=False)
            if state.position is None:
                self._raise_error_of(state)
            if state.position is not None:
                return state.position
            if deadline.expired:
                why = "no response came" if state.last_failure is None else f"{state.last_failure}"
                raise errors.KafkaTimeoutError(
                    f"no position of {state.tp} within {deadline.text}: {why}"
                ) from state.last_failure
            self._exchange(deadline, is_poll=False)

    def _poll(self, timeout_s: float, collect: Callable[[Deadline], T | None]) -> T | None:
        """Call `collect` until it returns records, and return these; None at the timeout."""
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
        """Continue rebalances, send requests and receive responses, until `collect` returns records
        or the deadline has passed. Return the records, None if there are none."""
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

    def _set_positions(self, deadline: Deadline, *, is_poll: bool = True) -> None:
        """Set the positions of partitions without one. The next poll tries again after a retriable
        error. A poll (`is_poll`) gives its requests time for a response."""
        states = self._subscription.without_position()
        if not states:
            return
        limit = self._with_time_for_response(deadline) if is_poll else deadline
        failure: errors.KafkaError | None = None
        try:
            self._offset_reset.set_positions(states, limit)
            self._min_response_ms = float(MIN_RESPONSE_MS)
        except errors.KafkaError as error:
            if not error.retriable:
                raise
            log.warning("%s", error)
            # If no broker can be reached, a longer wait would not help.
            if not isinstance(error.__cause__ or error, errors.KafkaConnectionError):
                self._allow_more_time()
            failure = error
        for state in states:
            state.last_failure = failure or state.last_failure
            self._subscription.enqueue_if_ready(state)

    def _with_time_for_response(self, deadline: Deadline) -> Deadline:
        """Return the deadline, or a later one that leaves time for a response: twice the time of
        the last attempt if a connection could not be opened in it."""
        if self._connections.had_no_time_to_open:  # TLS and SASL may take longer than a response
            self._connections.had_no_time_to_open = False
            self._allow_more_time()
        if deadline.remaining_s() * 1000 >= self._min_response_ms:
            return deadline
        return Deadline(self._min_response_ms)

    def _allow_more_time(self) -> None:
        """Let the next attempt take twice as long, at most request.timeout.ms."""
        max_ms = max(MIN_RESPONSE_MS, self._options.client.request_timeout_ms)
        self._min_response_ms = min(2 * self._min_response_ms, max_ms)

    def _exchange(self, deadline: Deadline, *, is_poll: bool = True) -> None:
        """Send requests to the leaders, and wait for a response or the next step of the group. A
        poll (`is_poll`) gives requests for metadata time for a response."""
        self._fetcher.send(self._with_time_for_response(deadline) if is_poll else deadline)
        self._fetcher.receive(
            min(deadline.remaining_s(), self._fetcher.step_wait_s, self._coordinator.step_wait_s)
        )

    def _fetch_ahead(self, *, is_draining: bool = False) -> None:
        """Send requests for the next records, whose responses arrive while the user processes the
        records of this poll. The next poll raises an error. `is_draining`: the caller takes all
        buffered records now."""
        now_s = time.monotonic()
        if not is_draining and not any(
            state.needs_request(now_s) and self._fetcher.can_request(state)
            for state, _ in self._old_positions
        ):
            # `send` goes through all partitions, perhaps thousands, and would send nothing: a
            # broker with a request in flight gets no other one.
            return
        try:
            self._fetcher.send(None, is_draining=is_draining)
        except errors.KafkaError as error:
            self._error_of_next_poll = error

    # --- buffered records -------------------------------------------------------------------

    def _collect_records(self, max_records: int, deadline: Deadline) -> Records | None:
        """Take buffered records, at most `max_records`; return None if there are none."""
        collected: list[TakenRows] = []

        def take(state: PartitionState, max_rows: int | None) -> int:
            """Collect up to `max_rows` records of one partition (None: up to `max_records`), or the
            description of a damaged record. Return how many records were taken."""
            try:
                rows = state.take_rows(max_records if max_rows is None else max_rows, deadline)
            except errors.CorruptRecordError as error:
                damage = state.skip_damage(error) if self._options.damaged == "yield" else None
                if damage is None:
                    raise
                collected.append(damage)
                return 1
            if rows is None:
                return 0
            collected.append(rows)
            state.advance(rows.stop - rows.start)
            return rows.stop - rows.start

        self._take_in_turn(take, max_records, deadline)
        return Records(collected) if collected else None

    def _collect_batches(self, max_records: int | None, deadline: Deadline) -> list[pa.RecordBatch]:
        """Take buffered records, at most `max_records` (None: all), as Arrow batches."""
        batches: list[pa.RecordBatch] = []

        def take(state: PartitionState, max_rows: int | None) -> int:
            """Collect up to `max_rows` records of one partition (None: all that are decoded
            together) as an Arrow batch. Return how many were taken."""
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
                # With the error gone, the next poll looks for the position again.
                self._subscription.may_lack_positions = True
                self._subscription.end_turn(state)
                raise error from error.__cause__
            except BaseException:
                self.restore_positions()
                raise
            if state.is_between_responses:
                self._subscription.end_turn(state)
            if remaining == 0 or is_over or state.is_decoding:  # the deadline cut off a decoding
                return

    def _record_metrics(self, state: PartitionState, count: int) -> None:
        """Count the records that this poll returns of a partition."""
        if state.lags is None:
            state.lags = Sampled()
        size_bytes = count * state.column_bytes
        self._metrics.consumed(state.tp.topic, count, size_bytes, state.lag or 0, state.lags)

    def restore_positions(self) -> None:
        """Set the positions as they were before the last poll, because the user did not get its
        records (Ctrl-C, a cancelled task)."""
        for state, position in self._old_positions:
            if position is not None:
                state.seek(position)

    def _raise_error_of(self, state: PartitionState) -> None:
        """Raise the partition's error, if it has one. If its position is out of range, apply
        auto.offset.reset first."""
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
    """Return the error with the advice how to read on after the damaged batch."""
    with_setting(error, prefix="")
    is_too_large = isinstance(error, errors.BatchTooLargeError)
    batch, it = ("batch", "it") if is_too_large else ("damaged batch", "the damage")
    past = f" The {batch} ends before offset {error.next_offset}." if error.next_offset else ""
    error.reason += (
        f". The position stays at {position}.{past} Seek past {it} to skip these records"
    )
    return error.at(*tp)


CLOSE_TIMEOUT_S = 30.0

CLOSE_AFTER_ERROR_S = 5.0
"""The timeout of `close` after an exception in a `with` block: Ctrl-C must end a program soon."""

StartOffset: TypeAlias = int | OffsetAndMetadata | OffsetSpec


class Consumer(arguments.ClientBase):
    """A consumer; `config` has Java's names, bootstrap.servers at least. Use it under `with`.

    Only one thread at a time may call its methods, except `wakeup`: others get ConsumerStateError.
    All methods raise ConsumerStateError after `close`, BrokerError for errors of brokers and
    KafkaTimeoutError after `timeout_s` (None: default.api.timeout.ms). `Consumer()` sends no
    request, and raises OptionError for wrong settings.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._options = options = parse_consumer_settings(config)
        self._guard = SingleThreadGuard("Consumer")
        self._metrics = metrics = FetchMetrics()
        self._cluster = cluster = Cluster(options.client, metrics=metrics.network)
        self._offsets = OffsetLookup(cluster, options.fetch.isolation_level)
        self._subscription = subscription = SubscriptionState(cluster)
        self._fetcher = Fetcher(cluster, options.fetch, subscription, metrics)
        self._coordinator = ConsumerCoordinator(
            options, cluster, subscription, self._fetcher.wake, metrics
        )
        self._loop = PollLoop(
            options, cluster, subscription, self._fetcher, self._coordinator, metrics
        )
        self._is_closing = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc_info: object) -> None:
        # After an exception it is unknown whether the records of the last poll were processed.
        if exc_type is None:
            self._close(CLOSE_TIMEOUT_S, commit=True)
        else:
            self._close(CLOSE_AFTER_ERROR_S, commit=False)

    def __repr__(self) -> str:
        group = f" of group {self._options.group_id!r}" if self._options.group_id else ""
        return f"<Consumer{group}, {len(self._subscription)} partitions>"

    # --- what to read -----------------------------------------------------------------------

    def assign(
        self, partitions: Iterable[TopicPartition] | Mapping[TopicPartition, StartOffset]
    ) -> None:
        """Read these partitions, without a group's assignment. Partitions that were assigned before
        keep their positions; an empty list is `unsubscribe`. Raises ConsumerStateError after
        `subscribe`.

        `{partition: offset}` also sets the position, as `seek` does: `assign({tp: 3})`. Other new
        partitions start at the committed offset of group.id, or where auto.offset.reset says.
        """
        with self._guard:
            starts: dict[TopicPartition, StartingPoint] = {}
            try:
                if isinstance(partitions, Mapping):
                    for key, offset in partitions.items():
                        tp = _partition(key, "partitions")
                        starts[tp] = starting_point(tp, offset, "partitions")
                    partitions = starts.keys()
                chosen = _partitions(partitions)
            except errors.OptionError as error:
                example = 'assign({TopicPartition("orders", 0): 17})'
                raise errors.OptionError(
                    f"{error}. To start at an offset, write {example}"
                ) from None
            if not chosen:
                self._coordinator.unsubscribe(self._deadline(None))
                return
            self._coordinator.assign(chosen)
            for tp, start in starts.items():
                self._subscription.state(tp).seek(*start)

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that this consumer reads now."""
        with self._guard:
            return self._subscription.partitions

    def subscribe(
        self,
        topics: Topics,
        *,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Read these topics as a member of group.id, which assigns their partitions to members.

        `topics` are names, or a pattern: a `re.Pattern` that matches whole names, or text that
        begins with ^ (then, as in librdkafka, it matches the beginnings of names). New topics that
        match are found within metadata.max.age.ms.

        `poll` (or close) calls the callbacks with a list of partitions: `on_assigned` with those
        that were added, `on_revoked` with those that will be revoked and can still be committed,
        `on_lost` with those that other members may own already. Without on_lost, on_revoked is
        called instead.
        """
        with self._guard:
            self._coordinator.subscribe(
                topics,
                arguments.checked_function(on_assigned, "on_assigned"),
                arguments.checked_function(on_revoked, "on_revoked"),
                arguments.checked_function(on_lost, "on_lost"),
            )

    def subscription(self) -> frozenset[str]:
        """Return the topics of `subscribe`; with a pattern those that match so far."""
        with self._guard:
            return self._coordinator.topics

    def unsubscribe(self) -> None:
        """Stop reading all partitions, and leave the group."""
        with self._guard:
            self._coordinator.unsubscribe(self._deadline(None))

    # --- reading ----------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> Records:
        """Return the next records, max.poll.records at most; empty if none came within `timeout_s`.

        Returns as soon as there are some; 0 returns what has arrived. Records of one partition come
        in order. Also serves the group: call it at least every max.poll.interval.ms. Raises
        CorruptRecordError for records that cannot be decoded (the position stays: `seek` past
        them, or set damaged=yield), NoOffsetError with auto.offset.reset=none, WakeupError, and
        what callbacks raise.
        """
        with self._guard:
            return self._loop.poll_records(seconds_of(timeout_s))

    def poll_arrow(self, timeout_s: float, max_records: int | None = None) -> pa.Table:
        """Return the next records as an Arrow table, two to four times as fast as `poll`, which
        says what both raise. The columns are the fields of a record; `timestamp` is in µs (UTC).

        Returns all records that have arrived, at most `max_records`; max.poll.records is ignored.
        """
        with self._guard:
            if max_records is not None:
                max_records = arguments.checked_int(max_records, "max_records", 1)
            return self._loop.poll_table(seconds_of(timeout_s), max_records)

    def wakeup(self) -> None:
        """Make the waiting `poll`, or else the next one, raise WakeupError. May be called from
        any thread or signal handler."""
        self._loop.wakeup()

    # --- positions --------------------------------------------------------------------------

    def seek(self, partition: TopicPartition, offset: StartOffset) -> None:
        """Set the position: a number, a value of `committed`, or one that the leader looks up:
        `OffsetSpec.latest()` or -1, `OffsetSpec.earliest()` or -2, another `OffsetSpec` (the end,
        if no record is that late). Records that were fetched but not returned are dropped."""
        with self._guard:
            tp = _partition(partition, "partition")
            start = starting_point(tp, offset, "offset")
            self._subscription.state(tp).seek(*start)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Set the positions of these partitions (None: of all assigned ones) to their first
        record."""
        with self._guard:
            for state in self._states(partitions):
                state.seek(None, lookup_ms=EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Set the positions of these partitions (None: of all assigned ones) to their end; with
        isolation.level=read_committed to their last stable offset."""
        with self._guard:
            for state in self._states(partitions):
                state.seek(None, lookup_ms=LATEST)

    def seek_to_committed(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Set the positions of these partitions (None: of all assigned ones) to the committed
        offsets of group.id, else to where auto.offset.reset says: for example to read the records
        of an aborted transaction again. Raises OptionError without group.id."""
        with self._guard:
            self._coordinator.need_group("seek_to_committed")
            for state in self._states(partitions):
                state.seek(None)
            self._subscription.may_lack_positions = True

    def position(self, partition: TopicPartition, timeout_s: float | None = None) -> int:
        """Return the offset of the next record that poll will return. Waits until it is known."""
        with self._guard:
            state = self._subscription.state(_partition(partition, "partition"))
            position = self._loop.position(state, self._deadline(timeout_s))
            return self._subscription.unread.get(state.tp, position)

    def lag(
        self, partitions: Iterable[TopicPartition] | None = None, timeout_s: float | None = None
    ) -> dict[TopicPartition, LagInfo]:
        """Return position, end and lag of each of these partitions (None: of all assigned ones).
        Requests the ends from the leaders; with isolation.level=read_committed an end is the last
        stable offset."""
        with self._guard:
            deadline = self._deadline(timeout_s)
            chosen = [state.tp for state in self._states(partitions)]
            positions = {tp: self.position(tp, deadline.remaining_s()) for tp in chosen}
            ends = self._offsets.offsets(dict.fromkeys(chosen, LATEST), deadline)
            return {
                tp: LagInfo(positions[tp], ends[tp], max(0, ends[tp] - positions[tp]))
                for tp in chosen
            }

    def _states(self, partitions: Iterable[TopicPartition] | None) -> list[PartitionState]:
        """Return the states of these partitions; of all assigned ones for None or an empty list."""
        named = [] if partitions is None else _partitions(partitions)
        return [self._subscription.state(tp) for tp in named] or list(self._subscription)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Let poll return no records of these partitions until `resume`. Records that were fetched
        are kept."""
        with self._guard:
            for state in [self._subscription.state(tp) for tp in _partitions(partitions)]:
                state.paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Let poll return records of these partitions again."""
        with self._guard:
            for state in [self._subscription.state(tp) for tp in _partitions(partitions)]:
                state.paused = False

    def paused(self) -> frozenset[TopicPartition]:
        """Return the partitions that are paused."""
        with self._guard:
            return frozenset(state.tp for state in self._subscription if state.paused)

    # --- the group's offsets ----------------------------------------------------------------

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        timeout_s: float | None = None,
        *,
        asynchronous: bool = False,
        callback: CommitCallback | None = None,
    ) -> None:
        """Commit offsets for group.id, and wait for the broker's response: the positions of all
        assigned partitions, or these offsets (the next ones to read).

        Raises CommitFailedError if the group has removed this consumer, or is rebalancing.

        `asynchronous` does not wait: commits are made in the background in the order of the calls,
        each retried until `timeout_s` is over. A later poll, commit or close then calls
        `callback(offsets, error)`, error None after a success; a failure without a callback is a
        warning in the log. Later synchronous commits, and close, wait for asynchronous ones, and
        raise what their callbacks raise.
        """
        arguments.checked_flag(asynchronous, "asynchronous")
        if arguments.checked_function(callback, "callback") is not None and not asynchronous:
            raise errors.OptionError(
                "callback needs asynchronous=True: without it commit raises the error"
            )
        with self._guard:
            if offsets is None:
                chosen = self._subscription.positions_to_commit()
            else:
                what = "offsets (records.next_offsets has them)"
                chosen = arguments.offsets_to_commit(offsets, what)
            deadline = self._deadline(timeout_s)
            if asynchronous:
                self._coordinator.commit_later(chosen, deadline, callback)
            else:
                self._coordinator.commit(chosen, deadline)

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets of group.id; None for a partition without one."""
        with self._guard:
            chosen = _partitions(partitions)
            return self._coordinator.committed(chosen, self._deadline(timeout_s))

    def group_metadata(self) -> GroupMetadata:
        """Return the identity of this member, for a producer's send_offsets_to_transaction."""
        with self._guard:
            return self._coordinator.metadata

    # --- offsets and topics of the cluster --------------------------------------------------

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offset of the first record of each partition, assigned or not."""
        with self._guard:
            lookups = dict.fromkeys(_partitions(partitions), EARLIEST)
            return self._offsets.offsets(lookups, self._deadline(timeout_s))

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each partition, assigned or not; with
        isolation.level=read_committed the last stable offset."""
        with self._guard:
            deadline = self._deadline(timeout_s)
            lookups = dict.fromkeys(_partitions(partitions), LATEST)
            return self._offsets.confirmed_ends(self._offsets.offsets(lookups, deadline), deadline)

    def offsets_for(
        self, topic: str, timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetRange]:
        """Return `beginning_offsets` and `end_offsets` of all partitions of a topic, looked up
        together. Raises UnknownTopicError."""
        with self._guard:
            deadline = self._deadline(timeout_s)
            metadata = self._cluster.topics([checked_topic(topic)], deadline)[topic]
            chosen = [TopicPartition(topic, number) for number in sorted(metadata.partitions)]
            first, end = self._offsets.earliest_and_latest(chosen, deadline)
            end = self._offsets.confirmed_ends(end, deadline)
            return {tp: OffsetRange(first[tp], end[tp]) for tp in chosen}

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, ListedOffset | None]:
        """Return the first record of each partition with this timestamp or a later one (offset,
        timestamp_ms); None if there is none."""
        with self._guard:
            lookups = {}
            by_partition = arguments.checked_by_partition(times_ms, "times_ms", "1700000000000")
            for tp, time_ms in by_partition.items():
                what = f"times_ms: the time of {tp}, in milliseconds,"
                time_ms = arguments.whole_float_as_int(time_ms)
                lookups[tp] = arguments.checked_int(time_ms, what, 0)
            offsets = self._offsets.list(lookups, self._deadline(timeout_s))
            return {tp: None if offsets[tp].offset == NO_OFFSET else offsets[tp] for tp in lookups}

    def partitions_for(self, topic: str, timeout_s: float | None = None) -> list[PartitionInfo]:
        """Return a topic's partitions and their leaders. Raises UnknownTopicError."""
        with self._guard:
            topics = self._cluster.topics([checked_topic(topic)], self._deadline(timeout_s))
            return self._partition_infos(topics[topic])

    def list_topics(self, timeout_s: float | None = None) -> dict[str, list[PartitionInfo]]:
        """Return all topics that this user may see, by name."""
        with self._guard:
            topics = self._cluster.all_topics(self._deadline(timeout_s))
            return {name: self._partition_infos(topic) for name, topic in sorted(topics.items())}

    def _partition_infos(self, topic: TopicMetadata) -> list[PartitionInfo]:
        """Return the partitions of a topic in order, each with the broker that leads it."""
        brokers = self._cluster.brokers
        return [
            PartitionInfo(topic.name, number, brokers.get(partition.leader))
            for number, partition in sorted(topic.partitions.items())
        ]

    def metrics(self) -> Metrics:
        """Return metrics under Kafka's names, by group.

            consumer.metrics()["consumer-fetch-manager-metrics"]["records-lag-max"]

        Names of groups end with their topic and partition, as in JMX:
        "consumer-fetch-manager-metrics,topic=orders,partition=0". Rates, means and maxima cover the
        last 30 to 60 s; NaN stands for no value. May be called from any thread; sends no request.
        """
        return self._metrics.figures(
            [
                PartitionFigures(state.tp, state.lag, state.lags)
                for state in list(self._subscription)
            ]
        )

    # --- the end ----------------------------------------------------------------------------

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Commit the positions (with enable.auto.commit), leave the group, close all connections.
        May be called again. An exception that leaves the `with` block commits nothing."""
        self._close(seconds_of(timeout_s), commit=True)

    def _close(self, timeout_s: float, *, commit: bool) -> None:
        """Close all parts, even if leaving the group fails. `commit`: first commit positions."""
        if self._guard.is_unusable:
            return
        with self._guard:
            if self._is_closing:
                return
            # Callbacks may still use the consumer, so it is not closed yet.
            self._is_closing = True
            try:
                self._coordinator.close(self._deadline(timeout_s), commit=commit)
            finally:
                self._guard.is_closed = True
                self._subscription.assign([])
                self._fetcher.close()
                self._cluster.close()

    def _deadline(self, timeout_s: float | None) -> Deadline:
        """Return the deadline of a call; None: default.api.timeout.ms."""
        signal = self._cluster.close_signal
        return (deadline_of(timeout_s) or self._cluster.deadline()).with_close_signal(signal)


def _partitions(value: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return a list of partitions whose topics a request can hold. Raises OptionError."""
    return [_partition(tp, "partitions") for tp in arguments.checked_partitions(value)]


def _partition(value: TopicPartition, what: str) -> TopicPartition:
    """Return a partition whose topic a request can hold. Raises OptionError."""
    partition = arguments.checked_partition(value, what)
    checked_topic(partition.topic)
    return partition


class SingleThreadGuard:
    """Lets only one thread at a time call the methods of a client, each of which runs under
    `with guard:`. A callback may call methods too, in the same thread."""

    def __init__(self, what: str) -> None:
        """`what` is the name of the client's class."""
        self.what = what
        # Ctrl-C may leave it locked, but by this thread, which may lock it again.
        self._lock = threading.RLock()
        self._process_id = os.getpid()
        self.is_closed = False

    @property
    def is_unusable(self) -> bool:
        """Whether the client is closed, or is a copy in a forked process, whose connections are
        the parent's: no method may use it."""
        return self.is_closed or os.getpid() != self._process_id

    def __enter__(self) -> None:
        """Begin a call. Raises ConsumerStateError if the client is closed, from before a fork, or
        in use by another thread."""
        if self.is_closed:
            raise errors.ConsumerStateError(f"this {self.what} is closed")
        if self.is_unusable:
            raise errors.ConsumerStateError(
                f"this {self.what} was made before a fork, and its connections are the parent "
                "process's: make one in each process"
            )
        if not self._lock.acquire(blocking=False):
            raise errors.ConsumerStateError(
                f"this {self.what} is in use by another thread, and it is made for one at a time: "
                "give each thread its own, or hold a lock around every call. Only wakeup() may "
                "be called meanwhile"
            )

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()
