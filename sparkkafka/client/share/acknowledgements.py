"""Records that a leader has handed out, and what is to be said of each of them.

A member acquires ranges of offsets, for a time. Some offsets in them have no record (markers, what
compaction took): they are acknowledged as gaps. Java's ShareInFlightBatch and Acknowledgements.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparkkafka.client.consumer.fetched_records import FetchedRecords, with_setting
from sparkkafka.client.consumer.record import Header, RecordBlock
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import ConsumerStateError, CorruptRecordError
from sparkkafka.protocol.columns.columns import DecodedRecords
from sparkkafka.protocol.messages import AcknowledgementBatch

UNDECIDED = -1
GAP = 0


class AcknowledgeType(enum.IntEnum):
    """What becomes of a record (KIP-932)."""

    ACCEPT = 1
    """It is done with."""
    RELEASE = 2
    """It is handed out again, to any member, until group.share.delivery.count.limit is reached."""
    REJECT = 3
    """It cannot be processed: it is not handed out again."""
    RENEW = 4
    """It is still being worked on: it stays this member's for the whole time once more, and the
    next poll returns it again (KIP-1222, Kafka 4.2)."""


class ShareRecord(NamedTuple):
    """One record that a share group has handed out."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """Milliseconds since 1970, -1 for none."""
    timestamp_type: int
    """-1 none, 0 the producer's (CreateTime), 1 the broker's (LogAppendTime)."""
    key: bytes | None
    value: bytes | None
    """None is a tombstone, b"" an empty value."""
    headers: tuple[Header, ...]
    """(name, value) pairs in the producer's order; a name may come several times."""
    delivery_count: int
    """How often it was handed out, this time included."""


class AcquiredRange(NamedTuple):
    """Offsets first..last, both included, and how often they have been handed out."""

    first_offset: int
    last_offset: int
    delivery_count: int


class Delivery:
    """Records of a partition that one poll has returned, and what was said of each."""

    def __init__(self, tp: TopicPartition, source: Acquired, records: list[ShareRecord]) -> None:
        self.tp = tp
        self.source = source
        self._records = records
        self._offsets = np.array([record.offset for record in records], np.int64)
        self._types = np.full(len(records), UNDECIDED, np.int8)

    @property
    def undecided(self) -> int:
        """Records without an acknowledgement."""
        return int((self._types == UNDECIDED).sum())

    @property
    def first_undecided(self) -> int:
        """The offset of the first of them."""
        return int(self._offsets[np.argmax(self._types == UNDECIDED)])

    def decide_all(self, kind: AcknowledgeType) -> None:
        self._types[self._types == UNDECIDED] = kind

    def decide(self, offset: int, kind: AcknowledgeType) -> bool:
        """Whether the offset is among these and was not taken yet."""
        row = int(np.searchsorted(self._offsets, offset))
        if row == len(self._offsets) or self._offsets[row] != offset:
            return False
        self._types[row] = kind
        return True

    def take(self) -> tuple[list[AcknowledgementBatch], list[ShareRecord]]:
        """Acknowledgements to send, and the records whose time they renew; both are forgotten
        here."""
        chosen = self._types != UNDECIDED
        batches = list(_batches(self._offsets[chosen], self._types[chosen]))
        renewed = [self._records[at] for at in np.flatnonzero(self._types == AcknowledgeType.RENEW)]
        self._records = [self._records[at] for at in np.flatnonzero(~chosen)]
        self._offsets, self._types = self._offsets[~chosen], self._types[~chosen]
        return batches, renewed


def _batches(offsets: NDArray[np.int64], types: NDArray[np.int8]) -> Iterator[AcknowledgementBatch]:
    """Runs of consecutive offsets; one type stands for all of them if they agree."""
    if not len(offsets):
        return
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    for start, stop in pairwise([0, *breaks.tolist(), len(offsets)]):
        run = types[start:stop]
        kinds = run[:1] if (run == run[0]).all() else run
        yield AcknowledgementBatch(
            first_offset=int(offsets[start]),
            last_offset=int(offsets[stop - 1]),
            acknowledge_types=kinds.tolist(),
        )


def whole_range(first_offset: int, last_offset: int, kind: int) -> AcknowledgementBatch:
    return AcknowledgementBatch(
        first_offset=first_offset, last_offset=last_offset, acknowledge_types=[kind]
    )


class Rows(NamedTuple):
    """Consecutive records of one acquired range."""

    block: RecordBlock
    delivery_count: int
    size_bytes: int

    def records(self) -> Iterator[ShareRecord]:
        for row in self.block.records(0, len(self.block)):
            yield ShareRecord(*row[:8], self.delivery_count)


class Acquired:
    """What one answer brought of a partition, decoded as polls take it.

    `session` is where it is to be acknowledged. `ranges` are in order and do not overlap.
    """

    def __init__(
        self,
        tp: TopicPartition,
        session: Any,
        fetched: FetchedRecords | None,
        ranges: list[AcquiredRange],
    ) -> None:
        self.tp = tp
        self.session = session
        self.generation = session.generation
        """Of the session: what is acknowledged to another one is refused."""
        self._fetched = fetched
        self._end_offset = 0 if fetched is None else fetched.next_offset
        self._left = ranges

    @property
    def is_over(self) -> bool:
        return self._fetched is None

    def next(self, deadline: Deadline) -> tuple[list[Rows], NDArray[np.int64], list[Any]]:
        """The next records, their offsets, and acknowledgements of gaps and of damage.

        Raises CorruptRecordError behind the last record that could be read, with `settled`: the
        damaged ones are rejected, as in Java, and what lies behind them is released.
        """
        if self._fetched is None:
            return [], np.empty(0, np.int64), []
        try:
            piece = self._fetched.next_records(deadline)
        except CorruptRecordError as error:
            self._fetched = None
            settled = self._settle(AcknowledgeType.REJECT, error.next_offset or 0)
            found = with_setting(error, prefix="").at(*self.tp)
            raise DamagedError(found, settled) from error
        if piece is None:
            self._fetched = None
            return [], np.empty(0, np.int64), self._gaps_of_rest()
        rows, offsets, gaps = self._within(piece)
        if self._fetched.is_decoded:
            self._fetched = None
            gaps += self._gaps_of_rest()
        return rows, offsets, gaps

    def drop(self) -> list[AcknowledgementBatch]:
        """Nobody wants the rest: it is released."""
        if self._fetched is not None:
            self._fetched.drop()
            self._fetched = None
        left, self._left = self._left, []
        return [whole_range(row[0], row[1], AcknowledgeType.RELEASE) for row in left]

    def _within(
        self, piece: DecodedRecords
    ) -> tuple[list[Rows], NDArray[np.int64], list[AcknowledgementBatch]]:
        """The records of a piece that were acquired; `_left` are the ranges behind it."""
        offsets = piece.offsets
        end_offset = int(offsets[-1]) + 1 if len(offsets) else 0
        rows: list[Rows] = []
        gaps: list[AcknowledgementBatch] = []
        taken: list[NDArray[np.int64]] = []
        left: list[AcquiredRange] = []
        for found in self._left:
            if found.first_offset >= end_offset:
                left.append(found)
                continue
            last = min(found.last_offset, end_offset - 1)
            if last < found.last_offset:
                left.append(found._replace(first_offset=last + 1))
            start, stop = np.searchsorted(offsets, [found.first_offset, last + 1]).tolist()
            inside = offsets[start:stop]
            gaps += _gaps(found.first_offset, last, inside)
            if len(inside):
                part = piece.slice(start, stop)
                block = RecordBlock(self.tp, part, last + 1)
                rows.append(Rows(block, found.delivery_count, part.column_bytes))
                taken.append(inside)
        self._left = left
        return rows, np.concatenate(taken) if taken else np.empty(0, np.int64), gaps

    def _gaps_of_rest(self) -> list[AcknowledgementBatch]:
        """Behind the last record. Of what lies behind the last batch nothing is known."""
        return self._settle(GAP, self._end_offset)

    def _settle(self, kind: int, end: int) -> list[AcknowledgementBatch]:
        """One thing is said of all that is left before `end`, and the rest is released."""
        found = []
        for first, last, _ in self._left:
            if first < end:
                found.append(whole_range(first, min(last, end - 1), kind))
            if last >= end:
                found.append(whole_range(max(first, end), last, AcknowledgeType.RELEASE))
        self._left = []
        return found


def _gaps(first: int, last: int, offsets: NDArray[np.int64]) -> list[AcknowledgementBatch]:
    """Runs of first..last that are not among the offsets."""
    if len(offsets) == last - first + 1:
        return []
    edges = np.concatenate([[first - 1], offsets, [last + 1]])
    before = np.flatnonzero(np.diff(edges) > 1)
    return [whole_range(int(edges[at]) + 1, int(edges[at + 1]) - 1, GAP) for at in before.tolist()]


class DamagedError(Exception):
    """Inside this package: damage, and what is to be said of the records around it."""

    def __init__(self, error: CorruptRecordError, settled: list[AcknowledgementBatch]) -> None:
        super().__init__(str(error))
        self.error = error
        self.settled = settled


def checked_ranges(rows: Iterable[Any]) -> list[AcquiredRange] | None:
    """Ranges of an answer in order; None if they are not ranges, or overlap."""
    found = sorted(
        AcquiredRange(row.first_offset, row.last_offset, row.delivery_count) for row in rows
    )
    before = -1
    for row in found:
        if row.first_offset <= before or row.last_offset < row.first_offset:
            return None
        before = row.last_offset
    return found


def in_order(batches: Iterable[AcknowledgementBatch]) -> list[AcknowledgementBatch]:
    """As brokers want them: by offset."""
    return sorted(batches, key=lambda batch: batch.first_offset)


def renews(batch: AcknowledgementBatch) -> bool:
    """Whether RENEW is said of some record."""
    return AcknowledgeType.RENEW in batch.acknowledge_types


def renewed_offsets(batches: Iterable[AcknowledgementBatch]) -> list[int]:
    """The offsets of which RENEW is said."""
    found: list[int] = []
    for batch in filter(renews, batches):  # others, as gaps, may go over any number of offsets
        kinds = batch.acknowledge_types
        if len(kinds) == 1:
            found += range(batch.first_offset, batch.last_offset + 1)
        else:
            of_each = enumerate(kinds, batch.first_offset)
            found += [offset for offset, kind in of_each if kind == AcknowledgeType.RENEW]
    return found


def without_renewals(batch: AcknowledgementBatch) -> AcknowledgementBatch:
    """The same of a member that ends: it gives back what it would have renewed."""
    kinds = [
        AcknowledgeType.RELEASE if kind == AcknowledgeType.RENEW else kind
        for kind in batch.acknowledge_types
    ]
    return replace(batch, acknowledge_types=kinds)


def offsets_of(batches: Iterable[AcknowledgementBatch]) -> list[range]:
    """The offsets that are no gaps, as ranges."""
    return [
        range(batch.first_offset, batch.last_offset + 1)
        for batch in in_order(batches)
        if batch.acknowledge_types != [GAP]
    ]


def must_be_decided(deliveries: Iterable[Delivery]) -> None:
    """Raises ConsumerStateError if records of the last poll have no acknowledgement."""
    open_ones = [row for row in deliveries if row.undecided]
    if open_ones:
        count = sum(row.undecided for row in open_ones)
        first = open_ones[0]
        raise ConsumerStateError(
            f"{count} records of the last poll are not acknowledged, the first is offset "
            f"{first.first_undecided} of {first.tp}: with share.acknowledgement.mode=explicit call "
            "acknowledge for each record before the next poll"
        )
