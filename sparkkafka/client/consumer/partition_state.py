"""What a consumer knows of the partitions that it is assigned: position, pause, buffered records.

No sockets. `position` is where the user is: behind what poll has returned. `fetch_offset` is where
the next Fetch begins: behind what was fetched. They differ by what is buffered. A partition without
a position waits for one: for the group's committed offset, or for the answer to `lookup`, a time
that a leader is asked about (ListOffsets: EARLIEST, LATEST, or milliseconds).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from sparkkafka.client.consumer.fetched_records import FetchedRecords
from sparkkafka.client.consumer.preferred_replica import ReadReplica
from sparkkafka.client.consumer.record import RecordBlock, TakenRows
from sparkkafka.client.deadline import Backoff, Deadline
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import ConsumerStateError, KafkaError
from sparkkafka.protocol.columns.columns import DecodedRecords

# Rows that become Python objects at once: more than a poll of 500 takes, so that fixed costs are
# paid once; few enough to stay in the processor's cache until the user has them.
ROWS_AT_ONCE = 2048


class PartitionState:
    """One assigned partition."""

    def __init__(self, tp: TopicPartition, lease_ms: float, backoff: Backoff) -> None:
        self.tp = tp
        self.position: int | None = None
        self.fetch_offset: int | None = None
        self.lookup: int | None = None
        self.paused = False
        self.error: KafkaError | None = None
        """What poll has to raise."""
        self.trouble: KafkaError | None = None
        """Why it waits: the last thing that failed since it went to a position, and may pass."""
        self.out_of_range = False
        """The leader does not have `position`; auto.offset.reset says what then."""
        self.replica = ReadReplica(lease_ms)
        self.required_bytes: int | None = None
        """Bytes to ask for, if its next batch does not fit the usual size."""
        self.in_flight = False
        self.backoff = backoff
        self.not_before_s = 0.0
        self._fetched: deque[FetchedRecords] = deque()
        self.row_bytes = 0.0
        """Of a row of those that were decoded last, on average."""
        self._piece: DecodedRecords | None = None
        self.is_decoding = False
        """In the middle of a large record, when the deadline of the last call came."""
        self._row = 0
        self._block: RecordBlock | None = None  # of the rows from _block_from on
        self._block_from = 0

    # --- position ---------------------------------------------------------------------------

    def seek(self, offset: int | None, *, lookup: int | None = None) -> None:
        """Go to an offset, or (None) to what a leader finds for `lookup`. Buffered data goes."""
        self.drop()
        self.position = self.fetch_offset = offset
        self.lookup = lookup
        self.error = self.trouble = None
        self.out_of_range = False
        self.not_before_s = 0.0

    def wait(self) -> None:
        """Something failed that may pass: ask no more for a while."""
        self.not_before_s = time.monotonic() + self.backoff.next_ms() / 1000

    def wants_request(self, now_s: float, *, draining: bool = False) -> bool:
        """Whether a leader is to be asked: for a position, or for records. `draining`: those that
        are buffered are about to be taken."""
        if self.in_flight or self.error is not None or self.out_of_range:
            return False
        if now_s < self.not_before_s:
            return False
        if self.fetch_offset is None:
            return self.lookup is not None
        if self.paused:
            return False
        if draining and len(self._fetched) <= 1:
            return True
        return all(part.is_decoded for part in self._fetched)

    # --- buffered records -------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether poll has something to do here: return records, or raise."""
        return bool(self._fetched) or self.error is not None or self.out_of_range

    @property
    def is_between_answers(self) -> bool:
        """Whether it is time for another partition's turn. Not in the middle of an answer's part,
        as in Java: what is half unpacked takes memory, so one at a time is."""
        return self._piece is None and not (self._fetched and self._fetched[0].is_begun)

    def add(self, fetched: FetchedRecords) -> None:
        """The next records that came."""
        self._fetched.append(fetched)
        self.fetch_offset = fetched.next_offset

    def skip_to(self, offset: int) -> None:
        """There are no records for a reader between `fetch_offset` and this offset."""
        self.fetch_offset = offset
        if self._fetched:
            self._fetched[-1].next_offset = offset
        else:
            self.position = offset

    def drop(self) -> None:
        """Forget what is buffered."""
        for part in self._fetched:
            part.drop()
        self._fetched.clear()
        self._forget_piece()
        self.fetch_offset = self.position

    def take_rows(self, count: int, deadline: Deadline) -> TakenRows | None:
        """Up to `count` records; None if there are no more, or none until the deadline. `advance`
        moves over them.

        Raises CorruptRecordError (and then what is buffered is gone, the position stays).
        """
        piece = self._current_piece(deadline)
        if piece is None:
            return None
        block, start = self._block, self._row - self._block_from
        if block is None or not 0 <= start < len(block):
            stop = min(self._row + ROWS_AT_ONCE, len(piece))
            rows = piece.slice(self._row, stop)
            block = RecordBlock(self.tp, rows, self._offset_after(piece, stop))
            self._block, self._block_from, start = block, self._row, 0
        return TakenRows(block, start, min(start + count, len(block)))

    def columns(self, count: int | None, deadline: Deadline) -> tuple[DecodedRecords, int] | None:
        """Up to `count` rows (None: as many as were decoded together) and the offset behind them;
        None as `take_rows`. `advance` moves over them. Raises as `take_rows`."""
        piece = self._current_piece(deadline)
        if piece is None:
            return None
        stop = len(piece) if count is None else min(self._row + count, len(piece))
        rows = piece.slice(self._row, stop) if self._row or stop < len(piece) else piece
        return rows, self._offset_after(piece, stop)

    def advance(self, rows: int) -> None:
        """So many rows, of those of the last call, are the user's now."""
        piece = self._piece
        if piece is None or not rows:
            return
        self._row += rows
        self.position = self._offset_after(piece, self._row)
        if self._row == len(piece):
            self._forget_piece()
            if self._fetched[0].is_decoded:
                self._fetched.popleft()

    def _forget_piece(self) -> None:
        self._piece, self._row = None, 0
        self.is_decoding = False
        self._block, self._block_from = None, 0

    def _current_piece(self, deadline: Deadline) -> DecodedRecords | None:
        """The piece with the next row; the position moves over what has none."""
        while self._piece is None and self._fetched:
            part = self._fetched[0]
            try:
                piece = part.next_piece(deadline)
            except BaseException:  # whatever it was: what is half decoded is fetched again
                self.drop()
                raise
            self.is_decoding = piece is not None and not len(piece)
            if self.is_decoding:
                return None
            self._piece = piece
            if piece is not None:
                self.row_bytes = piece.size_bytes / len(piece)
            else:
                self._fetched.popleft()
                self.position = part.next_offset
        return self._piece

    def _offset_after(self, piece: DecodedRecords, stop: int) -> int:
        """Where to go on after the rows before `stop`."""
        if stop < len(piece):
            return int(piece.offsets[stop])
        part = self._fetched[0]
        return part.next_offset if part.is_decoded else int(piece.offsets[-1]) + 1


class Assignment:
    """The partitions of a consumer, by name; those that are ready for poll in turn."""

    def __init__(self, lease_ms: float, backoff: Callable[[], Backoff]) -> None:
        self._lease_ms = lease_ms
        self._backoff = backoff
        self._states: dict[TopicPartition, PartitionState] = {}
        self._ready: dict[TopicPartition, PartitionState] = {}
        self.has_unplaced = False
        """Whether there may be partitions without a position and without a look-up for one."""

    def __iter__(self) -> Iterator[PartitionState]:
        """In the order in which they are to be asked for: those that gave something last come
        last, so that fetch.max.bytes starves nobody."""
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
        """Be assigned these. Those that were so before keep position, pause and buffered data."""
        wanted = dict.fromkeys(partitions)
        for tp in [tp for tp in self._states if tp not in wanted]:
            self._states.pop(tp).drop()
            self._ready.pop(tp, None)
        for tp in wanted:
            if tp not in self._states:
                self._states[tp] = PartitionState(tp, self._lease_ms, self._backoff())
                self.has_unplaced = True

    def unplaced(self) -> list[PartitionState]:
        """Those for which somebody has to say where to begin."""
        if not self.has_unplaced:
            return []
        found = [
            row
            for row in self._states.values()
            if row.position is None and row.lookup is None and row.error is None
        ]
        self.has_unplaced = bool(found)
        return found

    def positions(self) -> dict[TopicPartition, int]:
        """Where the user is, of those that have a position."""
        return {tp: row.position for tp, row in self._states.items() if row.position is not None}

    # --- turns ------------------------------------------------------------------------------

    def note_ready(self, state: PartitionState) -> None:
        """Poll has something to do with this partition."""
        if self._states.get(state.tp) is state and state.is_ready:
            self._ready.setdefault(state.tp, state)

    def asked_last(self, state: PartitionState) -> None:
        """It gave something: others first, next time."""
        if self._states.pop(state.tp, None) is not None:
            self._states[state.tp] = state

    def ready(self) -> Iterator[PartitionState]:
        """Partitions with something to return, and not paused, in turn. As many are looked at as
        are taken; `served` may be called meanwhile."""
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
