"""Reads ranges of offsets of one or more partitions as decoded columns: the reads of Spark's tasks.

A `Fetcher` gets the records from all leaders concurrently. This module has the ends of the ranges
and the rules of data loss. A range ends when the next offset reaches its end, not with record
end-1, which may be a marker, aborted, or compacted away (KAFKA-5443).
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, Self

from sparkkafka import errors
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.offsets import OffsetLookup
from sparkkafka.client.consumer.fetched_records import with_setting
from sparkkafka.client.consumer.fetcher import Fetcher
from sparkkafka.client.consumer.subscription_state import (
    EpochEnd,
    LogBounds,
    PartitionState,
    SubscriptionState,
)
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import FetchOptions
from sparkkafka.protocol.columns.columns import DecodedRecords, Selection
from sparkkafka.protocol.constants import LATEST, NO_LEADER_EPOCH

log = logging.getLogger(__name__)


# Spark's names of two settings, for messages.
POLL_TIMEOUT = "kafkaConsumer.pollTimeoutMs"
TOLERATE_LOSS = "failOnDataLoss=false"


class OpenBounds(NamedTuple):
    """Which bounds of a range are open: not fixed at planning, but set from the leader's first
    response. (They are set once, so a read ends although the log grows.)

    `start`: if the log starts after the range's start, the read starts there without data loss.
    `end`: the read ends where the log ends; the range's end is where the log ended at planning,
    under the leader of `leader_epoch`. `whole_log`: the read is of all records of the topic's name,
    so a recreated topic is read from its own start.
    """

    start: bool = False
    end: bool = False
    whole_log: bool = False
    leader_epoch: int = NO_LEADER_EPOCH


NO_OPEN_BOUNDS = OpenBounds()


class PlannedRange(NamedTuple):
    """The records to read of one partition.

    With a `topic_id` (Kafka 2.8+) a topic that was deleted and recreated under the same name counts
    as data loss.
    """

    selection: Selection
    topic_id: bytes | None = None
    open_bounds: OpenBounds = NO_OPEN_BOUNDS


class _ProgressDeadlines(NamedTuple):
    """The deadlines of a wait without progress. After `poll_timeout` the read fails; after
    `lagging_replica` it continues from the leader. `short_logs` has a deadline for each log that
    ends before its range, from the first response that says so: after it, records are lost."""

    poll_timeout: Deadline
    lagging_replica: Deadline
    short_logs: dict[TopicPartition, Deadline]


class RangeReader:
    """Iterates over the records of `ranges`. Use it under `with`.

    Reads from leaders, or from replicas that they name for `options.client_rack`.
    `poll_timeout_ms` bounds the time without progress (new records, or an offset that moves).
    With `fail_on_data_loss` missing offsets raise DataLossError; without it the loss is logged and
    counted in `lost`, and the remaining records are read. A record that was read and is not in the
    leader's log any more counts as lost too.
    """

    def __init__(
        self,
        cluster: Cluster,
        ranges: Mapping[TopicPartition, PlannedRange],
        options: FetchOptions,
        *,
        poll_timeout_ms: int,
        fail_on_data_loss: bool = True,
    ) -> None:
        self._cluster = cluster
        self._poll_timeout_ms = poll_timeout_ms
        self._fail_on_data_loss = fail_on_data_loss
        self._subscription = SubscriptionState(cluster)
        self._subscription.assign(ranges)
        self._starts: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._open_bounds: dict[TopicPartition, OpenBounds] = {}
        self._topic_ids: dict[TopicPartition, bytes | None] = {}
        for tp, planned in ranges.items():
            cluster.assume_exists(tp.topic)
            self._starts[tp] = planned.selection.start_offset
            self._ends[tp] = planned.selection.end_offset
            self._topic_ids[tp] = planned.topic_id
            state = self._subscription.state(tp)
            state.seek(planned.selection.start_offset)
            state.selection = planned.selection
            if planned.open_bounds != NO_OPEN_BOUNDS:
                self._open_bounds[tp] = planned.open_bounds
            # Until the first response an open range has no end, and is of any topic of this name.
            if planned.open_bounds.end:
                state.selection = planned.selection._replace(end_offset=Selection().end_offset)
            if planned.open_bounds.whole_log:
                self._topic_ids[tp] = None
        if len(ranges) > 1:
            # Bounds the memory of a response to that of one for a single partition.
            max_bytes = min(options.fetch_max_bytes, options.max_partition_fetch_bytes)
            options = replace(options, fetch_max_bytes=max_bytes)
        self._options = options
        self._fetcher = Fetcher(cluster, options, self._subscription, for_task=True)
        if any(open_bounds.end for open_bounds in self._open_bounds.values()):
            # The broker of an empty partition would wait for records before it answers. (With 0
            # Tansu answers without looking for records.)
            self._fetcher.options = replace(options, fetch_max_wait_ms=1)
        self.lost: Counter[TopicPartition] = Counter()
        """The number of lost offsets of each partition: skipped ones, and those whose records an
        unclean leader has replaced."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._fetcher.close()

    @property
    def retries(self) -> Mapping[TopicPartition, int]:
        """The number of requests of each partition that were repeated after an error."""
        return self._fetcher.retries

    @property
    def fetches_by_name(self) -> bool:
        """Whether a Fetch named its topics instead of sending their ids (before Kafka 3.1). Then
        the records may be those of a topic that was recreated during the read."""
        return self._fetcher.fetches_by_name

    def __iter__(self) -> Iterator[tuple[TopicPartition, DecodedRecords]]:
        """Iterate over decoded records, in offset order within a partition; every item has at least
        one record.

        Raises DataLossError, CorruptRecordError (both name topic, partition and offset),
        BrokerError for errors that a retry cannot fix, and KafkaTimeoutError after
        `poll_timeout_ms` without progress.
        """
        self._remove_finished()
        deadlines = self._new_deadlines()
        while len(self._subscription):
            old_positions = self._subscription.positions()
            self._fetcher.send(deadlines.poll_timeout)
            for state in self._subscription:
                if self._cluster.was_recreated(state.tp.topic, self._topic_ids[state.tp]):
                    self._skip_rest(state, "the topic has been deleted and recreated")
            wait_s = min(self._fetcher.step_wait_s, deadlines.poll_timeout.remaining_s())
            self._fetcher.receive(0.0 if self._subscription.has_ready else wait_s)
            self._set_open_bounds(deadlines.poll_timeout)
            # The brokers prepare the next responses while these are decoded.
            self._fetcher.send(None, is_draining=True)
            for state in self._subscription.ready():
                while (records := self._next_records(state)) is not None:
                    yield state.tp, records
                    del records  # not in memory while the next ones are decoded
                self._handle_error(state, deadlines.poll_timeout)
                self._subscription.end_turn(state)
            has_progress = self._subscription.positions() != old_positions
            # Before the deadlines are applied: the first response of an empty range with an open
            # end finishes it without progress, however late it arrives.
            self._remove_finished()
            if has_progress:
                deadlines = self._new_deadlines()
            else:
                self._handle_no_progress(deadlines)

    def _next_records(self, state: PartitionState) -> DecodedRecords | None:
        """Take the next decoded records of a partition, None if there are none."""
        try:
            # All records of a batch. This decodes and waits for nothing.
            columns = state.take_columns(None, Deadline(math.inf))
        except errors.CorruptRecordError as error:
            raise with_setting(error, self._cluster.options.prefix).at(*state.tp) from error
        if columns is None:
            return None
        records, _ = columns
        state.advance(len(records))
        return records

    def _remove_finished(self) -> None:
        """Stop reading the ranges whose end the position has reached."""
        unfinished = [
            state.tp
            for state in self._subscription
            if self._has_open_end(state.tp) or (state.position or 0) < self._ends[state.tp]
        ]
        if len(unfinished) < len(self._subscription):
            self._subscription.assign(unfinished)

    # --- open bounds ------------------------------------------------------------------------

    def _set_open_bounds(self, deadline: Deadline) -> None:
        """Set the open bounds of ranges to the offsets in the leaders' first responses."""
        for tp, open_bounds in list(self._open_bounds.items()):
            state = self._subscription.state(tp)
            bounds = state.log_bounds
            if bounds is None:  # the leader has not answered yet
                continue
            if open_bounds.whole_log and 0 <= bounds.log_start_offset < self._starts[tp]:
                # The start of a log only moves forward, so this is the log of a new topic. (The
                # position may have moved already, over records that a reader does not see.)
                self._starts[tp] = bounds.log_start_offset
                state.seek(bounds.log_start_offset)
                state.log_bounds = None
                continue
            if open_bounds.end:
                self._ends[tp] = self._end_of_log(tp, bounds, deadline)
                state.stop_at(self._ends[tp])
            if self._topic_ids[tp] is None:  # from now on a recreated topic is data loss
                self._topic_ids[tp] = self._cluster.topic_id(tp.topic)
            self._forget_open_bounds(tp)
            if open_bounds.end and self._starts[tp] > self._ends[tp]:
                self._skip_rest(state, f"the log ends at {self._ends[tp]}")

    def _forget_open_bounds(self, tp: TopicPartition) -> None:
        """Fix the bounds of a range as they are now. Once no range has an open end, restore
        fetch.max.wait.ms, which `__init__` has lowered for them."""
        self._open_bounds.pop(tp, None)
        if not any(open_bounds.end for open_bounds in self._open_bounds.values()):
            self._fetcher.options = self._options

    def _end_of_log(self, tp: TopicPartition, bounds: LogBounds, deadline: Deadline) -> int:
        """Return the end of the log from the response `bounds`. If the leader may be new, request
        ListOffsets too and return the later end: a new leader learns the high watermark late, and
        ListOffsets waits for it (KIP-207)."""
        isolation_level = self._options.isolation_level
        end = bounds.end_offset(isolation_level)
        epoch = self._cluster.leader_epoch(tp)
        if end >= self._ends[tp] and epoch == self._open_bounds[tp].leader_epoch:
            return end
        # Brokers other than Kafka's may list an end inside the last batch (see `confirmed_ends`).
        lookup = OffsetLookup(self._cluster, isolation_level)
        return max(end, lookup.offsets({tp: LATEST}, deadline)[tp])

    def _end_text(self, tp: TopicPartition) -> str:
        """Return the end of a range for messages."""
        return "latest" if self._has_open_end(tp) else str(self._ends[tp])

    def _has_open_end(self, tp: TopicPartition) -> bool:
        """Return whether the end of the range is open until the leader's first response."""
        return self._open_bounds.get(tp, NO_OPEN_BOUNDS).end

    # --- no progress ------------------------------------------------------------------------

    def _new_deadlines(self) -> _ProgressDeadlines:
        """Return the deadlines of a new wait for progress, and forget earlier responses and
        failures."""
        for state in self._subscription:
            state.last_failure = state.log_bounds = None
        timeout_ms, signal = self._poll_timeout_ms, self._cluster.close_signal
        # A follower learns of new records and of the high watermark within
        # replica.fetch.wait.max.ms (500 ms). If a replica has returned nothing for this long, read
        # from the leader.
        lagging_replica = Deadline(min(2_000, timeout_ms / 4))
        return _ProgressDeadlines(Deadline(timeout_ms, signal), lagging_replica, {})

    def _handle_no_progress(self, deadlines: _ProgressDeadlines) -> None:
        """Apply the deadlines that have passed: read from the leader instead of a replica that
        lags, skip lost offsets, or raise KafkaTimeoutError. Raises the errors of `_skip_lost`."""
        is_late = deadlines.poll_timeout.expired
        # A log that ends before the planned range has lost records (the topic was recreated, or an
        # unclean leader was elected). A new leader learns the high watermark late, so wait this
        # long first: from its first response, since electing it may have taken longer.
        short_log_ms = min(10_000, self._poll_timeout_ms / 2)
        for state in list(self._subscription):
            position = state.position or 0
            log_end = -1 if state.log_bounds is None else state.log_bounds.high_watermark
            if state.replica.node_id is not None and deadlines.lagging_replica.expired:
                log.info("%s: back to the leader: no record from %d on", state.tp, position)
                state.replica.return_to_leader()
            elif 0 <= log_end <= position and (
                is_late or deadlines.short_logs.setdefault(state.tp, Deadline(short_log_ms)).expired
            ):
                self._skip_rest(state, f"the log ends at {log_end}")
            elif is_late and isinstance(state.last_failure, errors.UnknownTopicError):
                self._skip_rest(state, f"the broker says: {state.last_failure}")
            elif is_late:
                raise self._timeout_error(state, deadlines.poll_timeout) from state.last_failure
        self._remove_finished()

    def _timeout_error(self, state: PartitionState, deadline: Deadline) -> errors.KafkaTimeoutError:
        """Return the error of a range without progress, with the reason if it is known."""
        tp, position, bounds = state.tp, state.position or 0, state.log_bounds
        if bounds is None:
            failures = self.retries[tp]
            return errors.KafkaTimeoutError(
                f"reading {tp} at offset {position} (end {self._end_text(tp)}): gave up after "
                f"{deadline.text} ({POLL_TIMEOUT}) and "
                f"{errors.counted(failures, 'failed attempt')}; the last failure: "
                # A real broker's response to a throttled Fetch is empty.
                f"{state.last_failure or 'no response had the partition (throttled by a quota?)'}"
            )
        is_held_back = (
            self._options.isolation_level == "read_committed"
            and bounds.last_stable_offset <= position
        )
        return errors.KafkaTimeoutError(
            f"reading {tp}: no record from offset {position} on arrived within "
            f"{self._poll_timeout_ms / 1000:g} s ({POLL_TIMEOUT}), though the range "
            f"ends at {self._end_text(tp)}; the broker reports high watermark "
            f"{bounds.high_watermark} and last stable offset {bounds.last_stable_offset}"
            + ("; an open transaction may hold read_committed readers back" if is_held_back else "")
        )

    # --- data loss --------------------------------------------------------------------------

    def _handle_error(self, state: PartitionState, deadline: Deadline) -> None:
        """If the partition has an error, skip lost offsets or raise it."""
        if state.truncated is not None:
            self._handle_truncation(state, state.truncated)
        elif state.is_out_of_range:
            self._handle_out_of_range(state, deadline)
        elif isinstance(state.error, errors.UnknownTopicError):
            self._skip_rest(state, f"the broker says: {state.error}")
        elif state.error is not None:
            raise state.error

    def _handle_truncation(self, state: PartitionState, diverging: EpochEnd) -> None:
        """Raise DataLossError, or with `fail_on_data_loss` False continue at the position, because
        the leader's log lacks records that were read before it (KIP-320)."""
        tp, position = state.tp, state.position or 0
        text = f"{tp}: {diverging.lost_before(position)}"
        if self._fail_on_data_loss:
            raise errors.DataLossError(
                f"{text}. What was made of them may be wrong. Read them again, or set "
                f"{TOLERATE_LOSS} to continue with the records that exist"
            )
        log.warning("%s. %s: continuing", text, TOLERATE_LOSS)
        self.lost[tp] += max(0, position - diverging.end_offset)
        # No epoch is known for a position beyond the end of the last common one.
        is_in_epoch = position <= diverging.end_offset
        state.seek(position, epoch=diverging.epoch if is_in_epoch else NO_LEADER_EPOCH)
        state.back_off()  # if the broker repeats this answer, do not request in a tight loop

    def _handle_out_of_range(self, state: PartitionState, deadline: Deadline) -> None:
        """Set a new position, since the leader does not have the present one; count the offsets
        between as lost. Raises the errors of `_skip_lost`."""
        tp, position = state.tp, state.position or 0
        first, end = OffsetLookup(self._cluster).earliest_and_latest([tp], deadline)
        earliest, latest = first[tp], end[tp]
        open_bounds = self._open_bounds.get(tp, NO_OPEN_BOUNDS)
        if earliest <= position <= latest:  # the leader had not caught up
            state.seek(position)
            lagging = errors.BrokerError(errors.ErrorCode.OFFSET_NOT_AVAILABLE, f"Fetch of {tp}")
            self._fetcher.retry(state, lagging)
            return
        if open_bounds.whole_log or (open_bounds.start and position < earliest):
            log.info("%s: from the start of the log, offset %d", tp, earliest)
            self._starts[tp] = earliest
            state.seek(earliest)
            # Otherwise `_set_open_bounds` would move the start once more: brokers other than
            # Kafka's may answer a Fetch with an earlier log_start_offset.
            self._open_bounds[tp] = open_bounds._replace(whole_log=False)
            return
        available = (
            f"available are [{earliest}, {latest}). Retention deleted them, or the topic was "
            "recreated"
        )
        if position < earliest and (open_bounds.end or earliest < self._ends[tp]):
            self._skip_lost(state, earliest, available)
        else:
            self._skip_rest(state, available)

    def _skip_rest(self, state: PartitionState, reason: str) -> None:
        """Skip the rest of the range, which cannot be read. Raises the errors of `_skip_lost`."""
        self._skip_lost(state, max(state.position or 0, self._ends[state.tp]), reason)
        self._forget_open_bounds(state.tp)

    def _skip_lost(self, state: PartitionState, until: int, reason: str) -> None:
        """Move the position to `until`, count the skipped offsets as lost, and log that with the
        `reason`, an end of the sentence. `until` is the position itself if the log ends before it.
        Raises DataLossError instead if `fail_on_data_loss` is set."""
        tp, position = state.tp, state.position or 0
        count = until - position
        gone = f"offsets {position} to {until - 1} are gone"
        if not count:
            gone = f"no offset from {position} on is there"
        text = f"{tp}: {gone}; the range is [{self._starts[tp]}, {self._end_text(tp)}), {reason}"
        if self._fail_on_data_loss:
            raise errors.DataLossError(
                f"{text}. Plan the read again, start it at an offset that exists, keep records for "
                f"longer (retention.ms), or set {TOLERATE_LOSS} to read what is left"
            )
        self.lost[tp] += count
        skipped = f"{count} offsets skipped" if count else "nothing is read"
        log.warning("%s. %s: %s", text, TOLERATE_LOSS, skipped)
        state.seek(until)
