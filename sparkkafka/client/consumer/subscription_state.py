"""State of a consumer's assigned partitions: position, pause, buffered records. No sockets.

`position` is behind what poll has returned, `fetch_offset` behind what was fetched; the records in
between are buffered. A partition without a position waits for the group's committed offset, or for
the answer to `lookup`, a time that its leader is asked for (EARLIEST, LATEST, or milliseconds).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.consumer.fetch_request import EpochEnd, LogBounds, ReadReplica
from sparkkafka.client.consumer.fetched_records import FetchedRecords
from sparkkafka.client.consumer.record import RecordBlock, TakenRows
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.metrics.sampled import Sampled
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition
from sparkkafka.errors import ConsumerStateError, KafkaError
from sparkkafka.protocol.columns.columns import DecodedRecords, Selection
from sparkkafka.protocol.constants import NO_LEADER_EPOCH

# Rows that become Python objects at once: more than a poll of 500 takes, so that fixed costs are
# paid once; few enough to stay in the processor's cache until the user has them.
ROWS_AT_ONCE = 2048


class PartitionState:
    """One assigned partition."""

    def __init__(self, tp: TopicPartition, cluster: Cluster) -> None:
        self.tp = tp
        self.position: int | None = None
        self.fetch_offset: int | None = None
        self.position_epoch = self.fetch_epoch = NO_LEADER_EPOCH
        """The leader epochs of the records before `position` and `fetch_offset`, where known."""
        self.lookup: int | None = None
        self.selection = Selection()
        """The records and columns that are decoded; its start does not count."""
        self.paused = False
        self.error: KafkaError | None = None
        """The error that poll will raise."""
        self.trouble: KafkaError | None = None
        """Why it waits: the last retriable failure since the last seek."""
        self.out_of_range = False
        """The leader does not have `position`: auto.offset.reset decides."""
        self.truncated: EpochEnd | None = None
        """With `out_of_range`: records before `position` were lost to an unclean leader."""
        self.replica = ReadReplica(cluster)
        self.required_bytes: int | None = None
        """Bytes to ask for, if its next batch does not fit the usual size."""
        self.in_flight = False
        self.backoff = cluster.backoff()
        self.not_before_s = 0.0
        self._fetched: deque[FetchedRecords] = deque()
        self.row_bytes = self.column_bytes = 0.0
        """The mean sizes of the rows decoded last: in memory, and in their columns."""
        self.end_offset: int | None = None
        """Where the partition ends for this reader, as the last answer said."""
        self.log_bounds: LogBounds | None = None
        """What the last answer said of the log, if it was the leader's."""
        self.lags: Sampled | None = None  # behind each poll that had records
        self._records: DecodedRecords | None = None
        self.is_decoding = False
        """The last call's deadline passed in the middle of a large record."""
        self._row = 0
        self._block: RecordBlock | None = None  # of the rows from _block_from on
        self._block_from = 0

    # --- position ---------------------------------------------------------------------------

    def seek(
        self, offset: int | None, lookup: int | None = None, epoch: int = NO_LEADER_EPOCH
    ) -> None:
        """Go to an offset, or (None) to what the leader finds for `lookup`; drops buffered data.
        `epoch` is that of the record before."""
        self.drop()
        self.position = self.fetch_offset = offset
        self.position_epoch = self.fetch_epoch = epoch
        self.lookup = lookup
        self.error = self.trouble = None
        self.out_of_range = False
        self.truncated = None
        self.not_before_s = 0.0

    @property
    def lag(self) -> int | None:
        """How many offsets lie between position and end, None while either is not known."""
        if self.position is None or self.end_offset is None:
            return None
        return max(0, self.end_offset - self.position)

    def wait(self) -> None:
        """Back off after a retriable failure."""
        self.not_before_s = time.monotonic() + self.backoff.next_ms() / 1000

    def wants_request(self, now_s: float, *, draining: bool = False) -> bool:
        """Whether to ask a leader for a position or for records. `draining`: the buffered records
        are about to be taken."""
        if self.in_flight or self.error is not None or self.out_of_range:
            return False
        if now_s < self.not_before_s:
            return False
        if self.fetch_offset is None:
            return self.lookup is not None
        if self.paused or self.fetch_offset >= self.selection.end_offset:
            return False
        if draining and len(self._fetched) <= 1:
            return True
        return all(part.is_decoded for part in self._fetched)

    # --- buffered records -------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether poll can return records of it, or must raise."""
        return bool(self._fetched) or self.error is not None or self.out_of_range

    @property
    def is_between_answers(self) -> bool:
        """Whether another partition may have its turn: as in Java not in the middle of an answer's
        part, since what is half unpacked takes memory."""
        return self._records is None and not (self._fetched and self._fetched[0].is_begun)

    def add(self, fetched: FetchedRecords) -> None:
        """The next records that came."""
        self._fetched.append(fetched)
        self.fetch_offset = fetched.next_offset
        self.fetch_epoch = fetched.last_epoch

    def skip_to(self, offset: int, epoch: int) -> None:
        """There are no records for a reader between `fetch_offset` and this offset."""
        self.fetch_offset, self.fetch_epoch = offset, epoch
        if self._fetched:
            self._fetched[-1].skip_to(offset, epoch)
        else:
            self.position, self.position_epoch = offset, epoch

    def stop_at(self, end_offset: int) -> None:
        """Decode only records before this offset."""
        self.selection = self.selection._replace(end_offset=end_offset)
        for part in self._fetched:
            part.selection = self.selection

    def drop(self) -> None:
        """Forget what is buffered."""
        for part in self._fetched:
            part.drop()
        self._fetched.clear()
        self._forget_records()
        self.fetch_offset, self.fetch_epoch = self.position, self.position_epoch

    def take_rows(self, count: int, deadline: Deadline) -> TakenRows | None:
        """Up to `count` records, which `advance` then moves over; None if there are none before the
        deadline.

        Raises CorruptRecordError; buffered records are then dropped, and the position stays.
        """
        records = self._current_records(deadline)
        if records is None:
            return None
        block, start = self._block, self._row - self._block_from
        if block is None or not 0 <= start < len(block):
            stop = min(self._row + ROWS_AT_ONCE, len(records))
            rows = records.slice(self._row, stop)
            block = RecordBlock(self.tp, rows, self._offset_after(records, stop))
            self._block, self._block_from, start = block, self._row, 0
        return TakenRows(block, start, min(start + count, len(block)))

    def columns(self, count: int | None, deadline: Deadline) -> tuple[DecodedRecords, int] | None:
        """As `take_rows`, as columns with the offset behind them; `count` None: all that were
        decoded together."""
        records = self._current_records(deadline)
        if records is None:
            return None
        stop = len(records) if count is None else min(self._row + count, len(records))
        rows = records.slice(self._row, stop) if self._row or stop < len(records) else records
        return rows, self._offset_after(records, stop)

    def advance(self, rows: int) -> None:
        """The user has so many rows of the last call."""
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
        self._records, self._row = None, 0
        self.is_decoding = False
        self._block, self._block_from = None, 0

    def _current_records(self, deadline: Deadline) -> DecodedRecords | None:
        """The records with the next row; the position moves over what has none."""
        while self._records is None and self._fetched:
            part = self._fetched[0]
            try:
                records = part.next_records(deadline)
            except BaseException:  # what is half decoded is fetched again
                self.drop()
                raise
            self.is_decoding = records is not None and not len(records)
            if self.is_decoding:
                return None
            self._records = records
            if records is not None:
                if part.is_measured:
                    self.row_bytes = records.size_bytes / len(records)
                    self.column_bytes = records.column_bytes / len(records)
            else:
                self._fetched.popleft()
                self.position, self.position_epoch = part.next_offset, part.last_epoch
        return self._records

    def _offset_after(self, records: DecodedRecords, stop: int) -> int:
        """Where to go on after the rows before `stop`."""
        if stop < len(records):
            return int(records.offsets[stop])
        part = self._fetched[0]
        return part.next_offset if part.is_decoded else int(records.offsets[-1]) + 1


class SubscriptionState:
    """The partitions of a consumer, by name; it gives the ready ones to poll in turn."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._states: dict[TopicPartition, PartitionState] = {}
        self._ready: dict[TopicPartition, PartitionState] = {}
        self.may_lack_positions = False
        """Whether there may be partitions without a position and without a lookup for one."""

    def __iter__(self) -> Iterator[PartitionState]:
        """In the order for requests: those that gave records last come last, so that
        fetch.max.bytes starves none."""
        return iter(self._states.values())

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, tp: object) -> bool:
        return tp in self._states

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self._states)

    def get(self, tp: TopicPartition) -> PartitionState | None:
        return self._states.get(tp)

    def state(self, tp: TopicPartition) -> PartitionState:
        """Raises ConsumerStateError for a partition that is not assigned."""
        found = self._states.get(tp)
        if found is None:
            raise ConsumerStateError(
                f"partition {tp} is not assigned to this consumer; assigned are "
                f"{', '.join(map(str, sorted(self._states)[:10])) or 'none'}"
            )
        return found

    def chosen(self, partitions: Iterable[TopicPartition] | None) -> list[PartitionState]:
        """The states of these partitions; of all, if none are named."""
        named = [self.state(tp) for tp in partitions or ()]
        return named or list(self._states.values())

    def replace(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign these. Those assigned before keep position, pause and buffered data."""
        wanted = dict.fromkeys(partitions)
        for tp in [tp for tp in self._states if tp not in wanted]:
            self._states.pop(tp).drop()
            self._ready.pop(tp, None)
        for tp in wanted:
            if tp not in self._states:
                self._states[tp] = PartitionState(tp, self._cluster)
                self.may_lack_positions = True

    def without_position(self) -> list[PartitionState]:
        """The partitions that need a starting position."""
        if not self.may_lack_positions:
            return []
        found = [
            row
            for row in self._states.values()
            if row.position is None and row.lookup is None and row.error is None
        ]
        self.may_lack_positions = bool(found)
        return found

    def positions(self) -> dict[TopicPartition, int]:
        """The positions of those that have one."""
        return {tp: row.position for tp, row in self._states.items() if row.position is not None}

    def committable(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions as a group commits them."""
        return {
            tp: OffsetAndMetadata(
                row.position,
                leader_epoch=row.position_epoch if row.position_epoch >= 0 else None,
            )
            for tp, row in self._states.items()
            if row.position is not None
        }

    # --- turns ------------------------------------------------------------------------------

    def note_ready(self, state: PartitionState) -> None:
        """Give this partition a turn in poll."""
        if self._states.get(state.tp) is state and state.is_ready:
            self._ready.setdefault(state.tp, state)

    def fail(self, state: PartitionState, error: KafkaError) -> None:
        """The next poll that comes to this partition raises `error`."""
        state.error = error
        self.note_ready(state)

    def move_to_end(self, state: PartitionState) -> None:
        """It gave records: others come first next time."""
        if self._states.pop(state.tp, None) is not None:
            self._states[state.tp] = state

    def ready(self) -> Iterator[PartitionState]:
        """Ready partitions that are not paused, in turn, as a lazy iterator; `served` may be called
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
        """Whether any partition is."""
        return next(self.ready(), None) is not None

    def served(self, state: PartitionState) -> None:
        """Its turn is over."""
        if self._ready.pop(state.tp, None) is not None and state.is_ready:
            self._ready[state.tp] = state
