"""Records that this member has acquired from a leader, and their acknowledgements.

A member acquires ranges of offsets for a limited time. Some of the offsets have no record (markers,
and records that compaction removed): they are acknowledged as gaps. In implicit mode
`ShareConsumer.poll` accepts the records of the last poll. (Java's ShareInFlightBatch and
Acknowledgements.)
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
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

UNACKNOWLEDGED = -1
GAP = 0


class AcknowledgeType(enum.IntEnum):
    """What a group does with a record (KIP-932)."""

    ACCEPT = 1
    """The record is processed."""
    RELEASE = 2
    """The record is handed out again, to any member, until group.share.delivery.count.limit."""
    REJECT = 3
    """The record cannot be processed, so it is not handed out again."""
    RENEW = 4
    """The record is still being processed: its lock is renewed, and the next poll returns it again
    (KIP-1222, Kafka 4.2)."""


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
    """How often the record was handed out, including this time."""


class AcquiredRange(NamedTuple):
    """Offsets first..last, both included, and how often they have been handed out."""

    first_offset: int
    last_offset: int
    delivery_count: int


class PolledRecords:
    """The records of a partition that one poll has returned, and the acknowledgement of each.

    `source` is the AcquiredPartition from which they came.
    """

    def __init__(
        self, tp: TopicPartition, source: AcquiredPartition, records: list[ShareRecord]
    ) -> None:
        self.tp = tp
        self.source = source
        self._records = records
        self._offsets = np.array([record.offset for record in records], np.int64)
        self._types = np.full(len(records), UNACKNOWLEDGED, np.int8)

    @property
    def unacknowledged_count(self) -> int:
        """The number of records without an acknowledgement."""
        return int((self._types == UNACKNOWLEDGED).sum())

    @property
    def first_unacknowledged(self) -> int:
        """The offset of the first record without an acknowledgement."""
        return int(self._offsets[np.argmax(self._types == UNACKNOWLEDGED)])

    def acknowledge_rest(self, kind: AcknowledgeType) -> None:
        """Acknowledge all records that have no acknowledgement yet."""
        self._types[self._types == UNACKNOWLEDGED] = kind

    def acknowledge(self, offset: int, kind: AcknowledgeType) -> bool:
        """Acknowledge one record. Return False if this object does not have the record."""
        row = int(np.searchsorted(self._offsets, offset))
        if row == len(self._offsets) or self._offsets[row] != offset:
            return False
        self._types[row] = kind
        return True

    def take_acknowledged(self) -> tuple[list[AcknowledgementBatch], list[ShareRecord]]:
        """Remove the acknowledged records. Return the acknowledgements to send, and the records
        that they renew."""
        chosen = self._types != UNACKNOWLEDGED
        batches = list(_acknowledgement_batches(self._offsets[chosen], self._types[chosen]))
        renewed_rows = np.flatnonzero(self._types == AcknowledgeType.RENEW)
        renewed = [self._records[row] for row in renewed_rows]
        self._records = [self._records[row] for row in np.flatnonzero(~chosen)]
        self._offsets, self._types = self._offsets[~chosen], self._types[~chosen]
        return batches, renewed


def _acknowledgement_batches(
    offsets: NDArray[np.int64], types: NDArray[np.int8]
) -> Iterator[AcknowledgementBatch]:
    """Yield an AcknowledgementBatch for each run of consecutive offsets. If all types of a run are
    equal, the batch has the type only once."""
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


def acknowledge_range(first_offset: int, last_offset: int, kind: int) -> AcknowledgementBatch:
    """Return one acknowledgement of this type for all offsets of a range."""
    return AcknowledgementBatch(
        first_offset=first_offset, last_offset=last_offset, acknowledge_types=[kind]
    )


class AcquiredPartition:
    """The acquired records of one partition in one response. They are decoded when polls take them.

    `session` is the ShareSession in which they must be acknowledged. `ranges` has the acquired
    offsets, sorted and without overlaps.
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
        """The session's generation. Brokers refuse acknowledgements in a later one."""
        self._fetched = fetched
        self._end_offset = 0 if fetched is None else fetched.next_offset
        self._remaining_ranges = ranges

    @property
    def is_exhausted(self) -> bool:
        return self._fetched is None

    def next(self, deadline: Deadline) -> tuple[list[ShareRecord], int, list[AcknowledgementBatch]]:
        """Return the next records, their size in bytes, and acknowledgements of gaps (offsets
        without a record).

        Raises DamagedError after the last record that could be decoded. It contains
        acknowledgements that, as in Java, reject the damaged records and release those after them.
        """
        if self._fetched is None:
            return [], 0, []
        try:
            decoded = self._fetched.next_records(deadline)
        except CorruptRecordError as error:
            self._fetched = None
            batches = self._acknowledge_remaining(AcknowledgeType.REJECT, error.next_offset or 0)
            raise DamagedError(with_setting(error, prefix="").at(*self.tp), batches) from error
        if decoded is None:
            self._fetched = None
            return [], 0, self._acknowledge_remaining(GAP, self._end_offset)
        records, size_bytes, gaps = self._take_acquired(decoded)
        if self._fetched.is_decoded:
            self._fetched = None
            gaps += self._acknowledge_remaining(GAP, self._end_offset)
        return records, size_bytes, gaps

    def drop(self) -> list[AcknowledgementBatch]:
        """Drop the records that are left; return the acknowledgements that release them."""
        if self._fetched is not None:
            self._fetched.drop()
            self._fetched = None
        ranges, self._remaining_ranges = self._remaining_ranges, []
        return [
            acknowledge_range(acquired.first_offset, acquired.last_offset, AcknowledgeType.RELEASE)
            for acquired in ranges
        ]

    def _take_acquired(
        self, decoded: DecodedRecords
    ) -> tuple[list[ShareRecord], int, list[AcknowledgementBatch]]:
        """Return those of the decoded records that are acquired, their size in bytes, and
        acknowledgements of the gaps among them. Remove their offsets from the remaining ranges."""
        offsets = decoded.offsets
        end_offset = int(offsets[-1]) + 1 if len(offsets) else 0
        records: list[ShareRecord] = []
        size_bytes = 0
        gaps: list[AcknowledgementBatch] = []
        remaining: list[AcquiredRange] = []
        for acquired in self._remaining_ranges:
            if acquired.first_offset >= end_offset:
                remaining.append(acquired)
                continue
            last = min(acquired.last_offset, end_offset - 1)
            if last < acquired.last_offset:
                remaining.append(acquired._replace(first_offset=last + 1))
            start, stop = np.searchsorted(offsets, [acquired.first_offset, last + 1]).tolist()
            gaps += _gaps(acquired.first_offset, last, offsets[start:stop])
            if start < stop:
                columns = decoded.slice(start, stop)
                size_bytes += columns.column_bytes
                rows = RecordBlock(self.tp, columns, last + 1).records(0, stop - start)
                # A ShareRecord has the fields of a Record up to the headers.
                records += [ShareRecord(*row[:8], acquired.delivery_count) for row in rows]
        self._remaining_ranges = remaining
        return records, size_bytes, gaps

    def _acknowledge_remaining(self, kind: int, end: int) -> list[AcknowledgementBatch]:
        """Return acknowledgements of this type for the remaining offsets before `end`, and
        acknowledgements that release those from `end` on, which were not decoded."""
        batches = []
        for first, last, _ in self._remaining_ranges:
            if first < end:
                batches.append(acknowledge_range(first, min(last, end - 1), kind))
            if last >= end:
                batches.append(acknowledge_range(max(first, end), last, AcknowledgeType.RELEASE))
        self._remaining_ranges = []
        return batches


def _gaps(first: int, last: int, offsets: NDArray[np.int64]) -> list[AcknowledgementBatch]:
    """Return acknowledgements of the offsets of first..last that are not in `offsets`."""
    if len(offsets) == last - first + 1:
        return []
    edges = np.concatenate([[first - 1], offsets, [last + 1]])
    # A gap lies between neighbouring offsets that differ by more than one.
    return [
        acknowledge_range(int(edges[index]) + 1, int(edges[index + 1]) - 1, GAP)
        for index in np.flatnonzero(np.diff(edges) > 1).tolist()
    ]


class DamagedError(Exception):
    """Raised by `AcquiredPartition.next` for damaged records. `batches` are the acknowledgements of
    them and of the records after them."""

    def __init__(self, error: CorruptRecordError, batches: list[AcknowledgementBatch]) -> None:
        super().__init__(str(error))
        self.error = error
        self.batches = batches


def sorted_ranges(rows: Iterable[Any]) -> list[AcquiredRange] | None:
    """Return the acquired ranges of a partition in a response, sorted; None if one is invalid or
    two overlap."""
    ranges = sorted(
        AcquiredRange(row.first_offset, row.last_offset, row.delivery_count) for row in rows
    )
    previous_offset = -1
    for acquired in ranges:
        if acquired.first_offset <= previous_offset or acquired.last_offset < acquired.first_offset:
            return None
        previous_offset = acquired.last_offset
    return ranges


def sorted_by_offset(batches: Iterable[AcknowledgementBatch]) -> list[AcknowledgementBatch]:
    """Return acknowledgements sorted by offset, as brokers require."""
    return sorted(batches, key=lambda batch: batch.first_offset)


def is_renewal(batch: AcknowledgementBatch) -> bool:
    """Return whether an acknowledgement renews a record."""
    return AcknowledgeType.RENEW in batch.acknowledge_types


def renewed_offsets(batches: Iterable[AcknowledgementBatch]) -> list[int]:
    """Return the offsets that these acknowledgements renew."""
    offsets: list[int] = []
    for batch in filter(is_renewal, batches):  # no gaps, which may be too long for a list
        kinds = batch.acknowledge_types
        if len(kinds) == 1:  # of all offsets of the batch
            offsets += range(batch.first_offset, batch.last_offset + 1)
        else:
            types_by_offset = enumerate(kinds, batch.first_offset)
            offsets += [offset for offset, kind in types_by_offset if kind == AcknowledgeType.RENEW]
    return offsets


def without_renewals(batch: AcknowledgementBatch) -> AcknowledgementBatch:
    """Return an acknowledgement with RELEASE in place of RENEW, for a member that leaves."""
    kinds = [
        AcknowledgeType.RELEASE if kind == AcknowledgeType.RENEW else kind
        for kind in batch.acknowledge_types
    ]
    return AcknowledgementBatch(
        first_offset=batch.first_offset, last_offset=batch.last_offset, acknowledge_types=kinds
    )


def acknowledged_ranges(batches: Iterable[AcknowledgementBatch]) -> list[range]:
    """Return the ranges of acknowledged offsets, without gaps."""
    return [
        range(batch.first_offset, batch.last_offset + 1)
        for batch in sorted_by_offset(batches)
        if batch.acknowledge_types != [GAP]
    ]


def require_all_acknowledged(polled: Iterable[PolledRecords]) -> None:
    """Raise ConsumerStateError if a record of the last poll has no acknowledgement."""
    incomplete = [records for records in polled if records.unacknowledged_count]
    if incomplete:
        count = sum(records.unacknowledged_count for records in incomplete)
        first = incomplete[0]
        raise ConsumerStateError(
            f"{count} records of the last poll are not acknowledged, the first is offset "
            f"{first.first_unacknowledged} of {first.tp}: with share.acknowledgement.mode=explicit "
            "call acknowledge for each record before the next poll"
        )
