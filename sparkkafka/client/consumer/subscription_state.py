"""State of a consumer's assigned partitions: position, pause, buffered records. No sockets.

`position` is the offset after the records that poll has returned, `fetch_offset` the offset after
the records that were fetched; the records in between are buffered. A partition without a position
waits for the group's committed offset, or for the leader's response to `lookup_ms`, the timestamp
of a ListOffsets request (EARLIEST, LATEST, or milliseconds).

As in Java's SubscriptionState, but the subscribed topics are `ConsumerCoordinator`'s, and
consumer.py's `AutoOffsetReset` applies auto.offset.reset; Java's FetchBuffer is here, since
buffered records belong to the state of their partition.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.consumer.fetched_records import FetchedRecords
from sparkkafka.client.consumer.record import DamagedBlock, RecordBlock, TakenRows
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.metrics import Sampled
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition
from sparkkafka.errors import ConsumerStateError, CorruptRecordError, KafkaError
from sparkkafka.protocol.columns.columns import DecodedRecords, Selection
from sparkkafka.protocol.constants import NO_LEADER_EPOCH

# Rows that become Python objects together: more than a poll of 500 takes, so that fixed costs are
# paid once; few enough to stay in the processor's cache until the user has them.
BLOCK_ROWS = 2048

# The time to read from the leader after a replica failed. (Java sends the next request to the
# leader only, which names the same replica until it has noticed the failure too.)
LEADER_ONLY_MS = 30_000


class EpochEnd(NamedTuple):
    """The last leader epoch that the leader's log has in common with the records that were read,
    and the offset at which that epoch ends in the log (KIP-595)."""

    epoch: int
    end_offset: int

    def lost_before(self, position: int) -> str:
        """Return a message's text about the lost records before `position`."""
        return (
            f"records before offset {position} that were read are gone: an unclean leader was "
            f"elected, whose log of leader epoch {self.epoch} ends at offset {self.end_offset}"
        )


class LogBounds(NamedTuple):
    """The offsets of the log in a leader's response; -1 if its version does not have one."""

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int

    def end_offset(self, isolation_level: str) -> int:
        """Return where the log ends for a reader of this isolation level."""
        is_committed = isolation_level == "read_committed"
        return self.last_stable_offset if is_committed else self.high_watermark


class PreferredReadReplica:
    """The replica of a partition to read from: the leader, or one that the leader named (KIP-392).

    A leader that knows the reader's rack (client.rack) may answer a Fetch with the id of a nearer
    replica and no records. That replica lags a little and may fail; only the leader's responses
    count for lost offsets. The choice expires after metadata.max.age.ms, as in Java.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._lease_s = cluster.metadata_age_ms / 1000
        self._node_id: int | None = None
        self._until_s = 0.0
        self._leader_only_until_s = 0.0

    @property
    def node_id(self) -> int | None:
        """The broker to read from, None for the leader."""
        if self._node_id is not None and time.monotonic() >= self._until_s:
            self._node_id = None
        return self._node_id

    @property
    def leader_only(self) -> bool:
        """Whether to let the leader name no replica now."""
        return time.monotonic() < self._leader_only_until_s

    def use(self, node_id: int) -> None:
        """Read from the replica that the leader named."""
        self._node_id = node_id
        self._until_s = time.monotonic() + self._lease_s

    def return_to_leader(self) -> None:
        """Read from the leader for LEADER_ONLY_MS, because the replica failed or lags."""
        self._node_id = None
        self._leader_only_until_s = time.monotonic() + LEADER_ONLY_MS / 1000


class PartitionState:
    """The position, the buffered records and the errors of one assigned partition."""

    def __init__(self, tp: TopicPartition, cluster: Cluster) -> None:
        self.tp = tp
        self.position: int | None = None
        self.fetch_offset: int | None = None
        self.position_epoch = self.fetch_epoch = NO_LEADER_EPOCH
        """The leader epochs of the records before `position` and `fetch_offset`, if known."""
        self.lookup_ms: int | None = None
        """The timestamp of a ListOffsets request that sets the position, None without one."""
        self.selection = Selection()
        """Which columns are decoded, and of the records before which offset."""
        self.paused = False
        self.error: KafkaError | None = None
        """The error that poll will raise."""
        self.last_failure: KafkaError | None = None
        """The last retriable failure since the last seek."""
        self.is_out_of_range = False
        """Whether the leader does not have `position`, so that auto.offset.reset must be
        applied."""
        self.truncated: EpochEnd | None = None
        """With `is_out_of_range`: set if an unclean leader has lost records before `position`."""
        self.topic_id: bytes | None = None
        """The id of the topic in which `position` is, if brokers have ids: the known one at the
        last seek, or else at the first Fetch."""
        self._cluster = cluster
        self.replica = PreferredReadReplica(cluster)
        self.requested_offset: int | None = None
        """The offset (or timestamp to look up) of the request in flight, None if there is none."""
        self.backoff = cluster.backoff()
        self.not_before_s = 0.0
        """No request is sent before this monotonic time."""
        self._fetched: deque[FetchedRecords] = deque()
        self.row_bytes = self.column_bytes = 0.0
        """The mean sizes of the rows decoded last: in memory, and in their columns."""
        self.end_offset: int | None = None
        """Where the partition ends for this reader, by the last response."""
        self.log_bounds: LogBounds | None = None
        """The offsets of the log in the last response, if it was the leader's."""
        self.lags: Sampled | None = None
        """The lag after each poll that returned records, for metrics."""
        self._records: DecodedRecords | None = None
        """Decoded records of the first of `_fetched`; those before `_row` are taken."""
        self.is_decoding = False
        """Whether the deadline of the last call passed while a large record was decoded."""
        self._row = 0
        self._block: RecordBlock | None = None  # the rows of `_records` from `_block_from` on
        self._block_from = 0

    # --- position ---------------------------------------------------------------------------

    def seek(
        self, offset: int | None, lookup_ms: int | None = None, epoch: int = NO_LEADER_EPOCH
    ) -> None:
        """Set the position to an offset; with None the leader's response to `lookup_ms` will set
        it. Drop buffered records. `epoch`: the leader epoch of the record before the offset."""
        self.drop()
        self.position = self.fetch_offset = offset
        self.position_epoch = self.fetch_epoch = epoch
        self.lookup_ms = lookup_ms
        self.error = self.last_failure = None
        self.is_out_of_range = False
        self.truncated = None
        self.topic_id = self._cluster.topic_id(self.tp.topic)
        self.not_before_s = 0.0

    @property
    def lag(self) -> int | None:
        """The number of offsets from position to end, None while either is not known."""
        if self.position is None or self.end_offset is None:
            return None
        return max(0, self.end_offset - self.position)

    def back_off(self, error: KafkaError | None = None) -> None:
        """Delay the next request, longer each time, after a retriable failure (`error`)."""
        self.last_failure = error or self.last_failure
        self.not_before_s = time.monotonic() + self.backoff.next_ms() / 1000

    def needs_request(self, now_s: float, *, is_draining: bool = False) -> bool:
        """Return whether to request a position or records. `is_draining`: the caller will take the
        buffered records now."""
        if self.requested_offset is not None or self.error is not None or self.is_out_of_range:
            return False
        if now_s < self.not_before_s:
            return False
        if self.fetch_offset is None:
            return self.lookup_ms is not None
        if self.paused or self.fetch_offset >= self.selection.end_offset:
            return False
        # No more than two responses are buffered, and only one that has not been decoded.
        if is_draining and len(self._fetched) <= 1:
            return True
        return all(fetched.is_decoded for fetched in self._fetched)

    # --- buffered records -------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether poll can return records of this partition, has to raise its error, or has to
        reset its position."""
        return bool(self._fetched) or self.error is not None or self.is_out_of_range

    @property
    def is_between_responses(self) -> bool:
        """Whether poll may take records of another partition next. As in Java it may not while
        only a part of a response's records is decoded, since these take memory."""
        return self._records is None and not (self._fetched and self._fetched[0].has_begun_decoding)

    def add(self, fetched: FetchedRecords) -> None:
        """Buffer the records of a response."""
        self._fetched.append(fetched)
        self.fetch_offset = fetched.next_offset
        self.fetch_epoch = fetched.last_epoch

    def skip_to(self, offset: int, epoch: int) -> None:
        """Move from `fetch_offset` to this offset; between them are no records for the reader."""
        self.fetch_offset, self.fetch_epoch = offset, epoch
        if self._fetched:
            self._fetched[-1].extend_to(offset, epoch)
        else:
            self.position, self.position_epoch = offset, epoch

    def stop_at(self, end_offset: int) -> None:
        """Decode only records before this offset."""
        self.selection = self.selection._replace(end_offset=end_offset)
        for fetched in self._fetched:
            fetched.selection = self.selection

    def drop(self) -> None:
        """Drop what is buffered: the next request fetches from the position on."""
        for fetched in self._fetched:
            fetched.drop()
        self._fetched.clear()
        self._forget_records()
        self.fetch_offset, self.fetch_epoch = self.position, self.position_epoch

    def take_rows(self, count: int, deadline: Deadline) -> TakenRows | None:
        """Return up to `count` records, None if none are decoded before the deadline. The caller
        moves the position with `advance`.

        Raises CorruptRecordError; the position stays and buffered records are dropped.
        """
        records = self._current_records(deadline)
        if records is None:
            return None
        block, start = self._block, self._row - self._block_from
        if block is None or not 0 <= start < len(block):
            stop = min(self._row + BLOCK_ROWS, len(records))
            rows = records.slice(self._row, stop)
            block = RecordBlock(self.tp, rows, self._offset_after(records, stop))
            self._block, self._block_from, start = block, self._row, 0
        return TakenRows(block, start, min(start + count, len(block)))

    def skip_damage(self, error: CorruptRecordError) -> TakenRows | None:
        """Move the position past the damaged batch, and return the DamagedRecord in its place. If
        the end of the batch is not known, do nothing and return None."""
        start, end = self.position, error.next_offset
        # A damaged header may have any number: neither before the position nor after the end.
        if start is None or end is None or not start < end <= (self.end_offset or 0):
            return None
        self.seek(end)
        return TakenRows(DamagedBlock(self.tp, start, error), 0, 1)

    def take_columns(
        self, count: int | None, deadline: Deadline
    ) -> tuple[DecodedRecords, int] | None:
        """Return up to `count` records as columns, and the offset after them; None if none are
        decoded before the deadline. `count` None: all records that were decoded together."""
        records = self._current_records(deadline)
        if records is None:
            return None
        stop = len(records) if count is None else min(self._row + count, len(records))
        rows = records.slice(self._row, stop) if self._row or stop < len(records) else records
        return rows, self._offset_after(records, stop)

    def advance(self, rows: int) -> None:
        """Move the position past this many of the records that `take_rows` or `take_columns`
        returned."""
        records = self._records
        if records is None or not rows:
            return
        self._row += rows
        self.position = self._offset_after(records, self._row)
        self.position_epoch = self._fetched[0].epoch_before(self.position)
        if self._row == len(records):
            self._forget_records()
            if self._fetched[0].is_decoded:
                self._fetched.popleft()

    def _forget_records(self) -> None:
        """Drop the decoded records."""
        self._records, self._row = None, 0
        self.is_decoding = False
        self._block, self._block_from = None, 0

    def _current_records(self, deadline: Deadline) -> DecodedRecords | None:
        """Return the decoded records that contain the next one to take; None if there are none, or
        none are decoded before the deadline. Move the position past responses without records."""
        while self._records is None and self._fetched:
            fetched = self._fetched[0]
            try:
                records = fetched.next_records(deadline)
            except BaseException:  # fetch the partly decoded records again
                self.drop()
                raise
            self.is_decoding = records is not None and not len(records)
            if self.is_decoding:
                return None
            self._records = records
            if records is not None:
                if fetched.is_measured:
                    self.row_bytes = records.size_bytes / len(records)
                    self.column_bytes = records.column_bytes / len(records)
            else:
                self._fetched.popleft()
                self.position, self.position_epoch = fetched.next_offset, fetched.last_epoch
        return self._records

    def _offset_after(self, records: DecodedRecords, stop: int) -> int:
        """Return the next offset to read after the rows before `stop`. After the last row of a
        response it is behind offsets without records, too (compaction, transaction markers)."""
        if stop < len(records):
            return int(records.offsets[stop])
        fetched = self._fetched[0]
        return fetched.next_offset if fetched.is_decoded else int(records.offsets[-1]) + 1


class SubscriptionState:
    """The states of the assigned partitions, their order in requests, and the order in which poll
    takes their records."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._states: dict[TopicPartition, PartitionState] = {}
        self._ready: dict[TopicPartition, PartitionState] = {}
        """The partitions that poll takes in turn, in this order."""
        self.unread: Mapping[TopicPartition, int] = {}
        """For AsyncConsumer: the offsets of the first records that poll has returned and the user's
        iteration has not. For the user these are the partitions' positions."""
        self.may_lack_positions = False
        """Whether there may be partitions without a position and without a lookup for one."""

    def __iter__(self) -> Iterator[PartitionState]:
        """Iterate in the order for requests: the partition that got records most recently is last,
        so that each gets its share of fetch.max.bytes."""
        return iter(self._states.values())

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, tp: object) -> bool:
        return tp in self._states

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self._states)

    def get(self, tp: TopicPartition) -> PartitionState | None:
        """Return the state of a partition, None if it is not assigned."""
        return self._states.get(tp)

    def state(self, tp: TopicPartition) -> PartitionState:
        """Return the state of a partition. Raises ConsumerStateError if it is not assigned."""
        state = self._states.get(tp)
        if state is None:
            raise ConsumerStateError(
                f"partition {tp} is not assigned to this consumer; assigned are "
                f"{', '.join(map(str, sorted(self._states)[:10])) or 'none'}"
            )
        return state

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the assignment. Partitions that stay keep position, pause and buffered data."""
        assigned = dict.fromkeys(partitions)
        for tp in [tp for tp in self._states if tp not in assigned]:
            self._states.pop(tp).drop()
            self._ready.pop(tp, None)
        for tp in assigned:
            if tp not in self._states:
                self._states[tp] = PartitionState(tp, self._cluster)
                self.may_lack_positions = True

    def without_position(self) -> list[PartitionState]:
        """Return the partitions that need a starting position."""
        if not self.may_lack_positions:
            return []
        partitions = [
            state
            for state in self._states.values()
            if state.position is None and state.lookup_ms is None and state.error is None
        ]
        self.may_lack_positions = bool(partitions)
        return partitions

    def positions(self) -> dict[TopicPartition, int]:
        """Return the positions of the partitions that have one."""
        return {
            tp: state.position for tp, state in self._states.items() if state.position is not None
        }

    def positions_to_commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions with their leader epochs, for a commit."""
        positions = {
            tp: OffsetAndMetadata(
                state.position,
                leader_epoch=state.position_epoch if state.position_epoch >= 0 else None,
            )
            for tp, state in self._states.items()
            if state.position is not None
        }
        # Of AsyncConsumer: the user has not got these records.
        for tp in positions.keys() & self.unread.keys():
            positions[tp] = OffsetAndMetadata(self.unread[tp])
        return positions

    def topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, bytes]:
        """Return for each of these partitions the id of the topic in which its position is, if it
        is known."""
        states = [self._states[tp] for tp in partitions if tp in self._states]
        return {state.tp: state.topic_id for state in states if state.topic_id is not None}

    # --- turns in poll ----------------------------------------------------------------------

    def enqueue_if_ready(self, state: PartitionState) -> None:
        """Give this partition a turn in poll if it has records, or an error to raise."""
        if self._states.get(state.tp) is state and state.is_ready:
            self._ready.setdefault(state.tp, state)

    def fail(self, state: PartitionState, error: KafkaError) -> None:
        """Let poll raise `error` in this partition's turn."""
        state.error = error
        self.enqueue_if_ready(state)

    def move_to_end(self, state: PartitionState) -> None:
        """Put this partition last in the order for requests, since it got records."""
        if self._states.pop(state.tp, None) is not None:
            self._states[state.tp] = state

    def ready(self) -> Iterator[PartitionState]:
        """Iterate over the ready partitions that are not paused, in turn. `end_turn` may be called
        meanwhile."""
        for tp in list(self._ready):
            state = self._ready.get(tp)
            if state is None:
                continue
            if not state.is_ready:
                del self._ready[tp]
            elif not state.paused:
                yield state

    @property
    def has_ready(self) -> bool:
        """Whether `ready` has a partition."""
        return next(self.ready(), None) is not None

    def end_turn(self, state: PartitionState) -> None:
        """Let poll take records of all other ready partitions before it takes more of this one."""
        if self._ready.pop(state.tp, None) is not None and state.is_ready:
            self._ready[state.tp] = state
