"""One partition's log in a fake broker: stored batches, producer state, and reads.

`producers.py` decides what a producer may append. Reads follow `LogSegment.read` and KIP-74: the
first batch is whole, the last may be cut. The cluster's lock guards a log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sparkkafka.errors import DecodeError, ErrorCode
from sparkkafka.protocol.constants import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    NO_TIMESTAMP,
)
from sparkkafka.protocol.records.batches import RecordBatch, split_batches
from sparkkafka.testing.fake.log.producers import (
    NO_EPOCH,
    ProducerStateEntry,
    Refused,
    check_batch,
    now_ms,
)
from sparkkafka.testing.fake.log.records import (
    MAX_PAYLOAD_BYTES,
    BadBatchError,
    BatchHeader,
    FakeRecord,
    batch_records,
    entry_sizes,
    is_commit_marker,
    legacy_offset,
    magic_of,
    marker_batch,
    parse_header,
    read_records,
    stored_batch,
    wrap64,
)


class Appended(NamedTuple):
    """Where an append has put its records; of a `duplicate`, where they were already."""

    base_offset: int
    log_append_time_ms: int
    duplicate: bool


class ReadResult(NamedTuple):
    """The result of a fetch. `aborted` is [(producer id, first offset)], None for
    read_uncommitted."""

    data: bytes
    aborted: list[tuple[int, int]] | None


class FoundOffset(NamedTuple):
    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(slots=True)
class Entry:
    """One stored batch with the offsets [start, end).

    `header` is None for bytes that a test has stored and that are not a v2 batch.
    """

    start: int
    end: int
    data: bytes
    header: BatchHeader | None


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    marker_offset: int


class PartitionLog:
    """The log of one partition. Offsets are Kafka's: `end_offset` is that of the next record.

    The high watermark is always the end of the log: replication takes no time here.
    """

    def __init__(self, config: Mapping[str, str]) -> None:
        self.config = config
        self.start_offset = 0
        self.end_offset = 0
        self.leader_epoch = 0
        self.producers: dict[int, ProducerStateEntry] = {}
        # producer id -> (epoch, lowest sequence) of batches whose transaction was verified and
        # that were not written yet (VerificationStateEntry)
        self._unverified: dict[int, tuple[int, int]] = {}
        self.aborted: list[AbortedTransaction] = []
        self._entries: list[Entry] = []
        self._ends: list[int] = []
        # (epoch, its first offset), ascending: LeaderEpochFileCache
        self._epochs: list[tuple[int, int]] = [(0, 0)]

    def __repr__(self) -> str:
        return f"<PartitionLog [{self.start_offset}, {self.end_offset}) {len(self._entries)=}>"

    # --- lookups ---------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        return self.end_offset

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the earliest open transaction, or the high watermark."""
        return min(
            (state.open_since for state in self.producers.values() if state.open_since is not None),
            default=self.high_watermark,
        )

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether the producer has an open transaction in this epoch. In an older one it has
        ended, and only lacks its marker (UnifiedLog.hasOngoingTransaction)."""
        state = self.producers.get(producer_id)
        return state is not None and state.open_since is not None and state.epoch == producer_epoch

    def raw(self) -> bytes:
        """Return all stored bytes, as a fetch would."""
        return b"".join(entry.data for entry in self._entries)

    def batches(self) -> list[RecordBatch]:
        """Return all stored batches. Raises DecodeError if a test has stored damaged bytes."""
        return split_batches(self.raw())

    def records(self, *, committed: bool = False) -> list[FakeRecord]:
        """Return all records from `start_offset` on, without control records.

        With `committed` only those that read_committed shows. Raises BadBatchError or DecodeError
        if a test has stored damaged bytes.
        """
        end = self.last_stable_offset if committed else self.end_offset
        return [
            record
            for entry in self._entries
            if not (committed and self._was_aborted(entry))
            for record in _entry_records(entry)
            if self.start_offset <= record.offset < end
        ]

    def find_offset(
        self, timestamp_ms: int, *, read_committed: bool, of_batch: bool = False
    ) -> FoundOffset | None:
        """Return the offset for LATEST, EARLIEST, MAX_TIMESTAMP or a time (of the first record at
        or after it, with `of_batch` of its batch), as ListOffsets does; None if there is no such
        record.

        Raises Refused (CORRUPT_MESSAGE) for damaged bytes.
        """
        end = self.last_stable_offset if read_committed else self.high_watermark
        if timestamp_ms == LATEST:
            return FoundOffset(end, NO_TIMESTAMP, self.leader_epoch)
        if timestamp_ms in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return None  # no topic here has tiered storage
        if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
            return FoundOffset(self.start_offset, NO_TIMESTAMP, self._epoch_at(self.start_offset))
        best: FakeRecord | None = None
        try:
            for entry in self._entries:
                header = entry.header
                if header is not None and (
                    header.is_control or header.max_timestamp < max(timestamp_ms, 0)
                ):
                    continue
                records = [
                    record
                    for record in _entry_records(entry)
                    if self.start_offset <= record.offset < end
                ]
                for record in records:
                    if timestamp_ms == MAX_TIMESTAMP:
                        if best is None or record.timestamp_ms > best.timestamp_ms:
                            best = record
                    elif record.timestamp_ms >= timestamp_ms:
                        return self._found(records[0] if of_batch else record)
        except (BadBatchError, DecodeError) as error:
            raise Refused(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        return self._found(best) if best is not None else None

    def _found(self, record: FakeRecord) -> FoundOffset:
        return FoundOffset(record.offset, record.timestamp_ms, self._epoch_at(record.offset))

    def read(
        self, offset: int, max_bytes: int, *, first_whole: bool, read_committed: bool
    ) -> ReadResult:
        """Return batches from the one with `offset` on; the last may be cut at `max_bytes`.

        If the first batch has more than `max_bytes`, it is returned with `first_whole`, and nothing
        without (ReplicaManager.readFromLog). Raises Refused (OFFSET_OUT_OF_RANGE).
        """
        if not self.start_offset <= offset <= self.high_watermark:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not in [{self.start_offset}, {self.high_watermark}]",
            )
        limit = self.last_stable_offset if read_committed else self.high_watermark
        chosen: list[bytes] = []
        size = 0
        end = offset
        for index in range(bisect_right(self._ends, offset), len(self._entries)):
            entry = self._entries[index]
            if entry.start >= limit or (size >= max_bytes and not (first_whole and not chosen)):
                break
            if not chosen and len(entry.data) > max_bytes and not first_whole:
                break
            chosen.append(entry.data)
            size += len(entry.data)
            end = entry.end
        data = b"".join(chosen)
        if chosen:
            data = data[: max(max_bytes, len(chosen[0]))]
        if not read_committed:
            return ReadResult(data, None)
        aborted = [
            (row.producer_id, row.first_offset)
            for row in self.aborted
            if row.marker_offset >= offset and row.first_offset < end
        ]
        return ReadResult(data, aborted)

    # --- leader epochs ---------------------------------------------------------------------------

    def new_epoch(self) -> None:
        self.leader_epoch += 1
        self._epochs.append((self.leader_epoch, self.end_offset))

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return (the largest known epoch up to `epoch`, its end offset), as OffsetForLeaderEpoch
        does (KIP-320)."""
        known = [row for row in self._epochs if row[0] <= epoch]
        if not known or epoch > self.leader_epoch:
            return NO_EPOCH, -1
        later = [first for number, first in self._epochs if number > epoch]
        return known[-1][0], min(later, default=self.end_offset)

    def _epoch_at(self, offset: int) -> int:
        return max((epoch for epoch, first in self._epochs if first <= offset), default=0)

    # --- writing ---------------------------------------------------------------------------------

    def produce(
        self, data: bytes | memoryview, version: int, *, check_records: bool = True
    ) -> Appended:
        """Append the batch of a Produce request of this version, if a broker would. Raises Refused.

        `check_records` False skips the check of each record (a few microseconds each). The caller
        checks whether a transactional batch is part of a transaction.
        """
        batch, header = check_batch(
            data, version, self.config, now_ms=now_ms(), check_records=check_records
        )
        append_time_ms = None
        if self.config["message.timestamp.type"] == "LogAppendTime":
            append_time_ms = now_ms()
        if header.producer_id >= 0:
            _, lowest_sequence = self._unverified.get(header.producer_id, (NO_EPOCH, None))
            known = self.producers.get(header.producer_id, ProducerStateEntry()).check(
                header, lowest_sequence
            )
            if known is not None:
                return Appended(
                    known.base_offset,
                    NO_TIMESTAMP if append_time_ms is None else known.timestamp_ms,
                    duplicate=True,
                )
        base_offset = self.end_offset
        stored = stored_batch(
            batch,
            base_offset=base_offset,
            leader_epoch=self.leader_epoch,
            log_append_time_ms=append_time_ms,
        )
        end = base_offset + header.last_offset_delta + 1
        self._store(Entry(base_offset, end, stored, parse_header(stored)))
        return Appended(
            base_offset, NO_TIMESTAMP if append_time_ms is None else append_time_ms, duplicate=False
        )

    def begin_verification(self, header: BatchHeader) -> None:
        """Note a batch whose transaction the coordinator verifies. Until it is written, `produce`
        refuses batches with a higher sequence than the lowest one that is noted.
        """
        epoch, lowest = self._unverified.get(header.producer_id, (NO_EPOCH, 0))
        if header.producer_epoch > epoch:
            epoch, lowest = header.producer_epoch, header.base_sequence
        elif header.producer_epoch == epoch:
            lowest = min(lowest, header.base_sequence)
        self._unverified[header.producer_id] = (epoch, lowest)

    def append(
        self, data: bytes, *, assign_offsets: bool = False, end_offset: int | None = None
    ) -> int:
        """Store bytes that no producer sent. Returns the offset at which they begin.

        With `assign_offsets` each v2 batch gets the next offset and the leader epoch, as from a
        producer. Without, bytes are stored as they are: a batch has its own offsets if they begin
        at the log's end or after it; damaged bytes have one offset. `end_offset` sets the log's end
        afterwards. Producer state and transactions are updated, as by a follower.
        """
        first = self.end_offset
        at = 0
        for size in entry_sizes(data):
            self._append_entry(data[at : at + size], assign_offsets)
            at += size
        if at < len(data):
            self._store(Entry(self.end_offset, self.end_offset + 1, data[at:], None))
        if end_offset is not None:
            if not self._entries or end_offset <= self._entries[-1].start:
                raise ValueError(f"end_offset {end_offset} lies before the entry that it ends")
            self._entries[-1].end = self._ends[-1] = self.end_offset = end_offset
        return first

    def append_marker(self, producer_id: int, producer_epoch: int, *, commit: bool) -> int:
        """End a producer's transaction in this partition. Returns the marker's offset."""
        offset = self.end_offset
        data = marker_batch(
            base_offset=offset,
            leader_epoch=self.leader_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            commit=commit,
            timestamp_ms=now_ms(),
        )
        self._store(Entry(offset, offset + 1, data, parse_header(data)))
        return offset

    def _append_entry(self, data: bytes, assign_offsets: bool) -> None:
        """Append a batch or an old message set, whose offsets are kept unless `assign_offsets` is
        set."""
        if magic_of(data) != 2:
            end = legacy_offset(data) + 1
            self._store(Entry(self.end_offset, max(end, self.end_offset + 1), data, None))
            return
        if assign_offsets:
            data = stored_batch(data, base_offset=self.end_offset, leader_epoch=self.leader_epoch)
        header = parse_header(data)
        if header.base_offset < self.end_offset or header.last_offset_delta < 0:
            self._store(Entry(self.end_offset, self.end_offset + 1, data, None))
            return
        end = header.base_offset + header.last_offset_delta + 1
        self._store(Entry(header.base_offset, end, data, header))

    def _store(self, entry: Entry) -> None:
        """Append an entry, and update the state of its producer."""
        self._entries.append(entry)
        self._ends.append(entry.end)
        self.end_offset = entry.end
        header = entry.header
        if header is not None and header.producer_id >= 0:
            self._update_producer(entry, header)

    def _update_producer(self, entry: Entry, header: BatchHeader) -> None:
        """Note the batch in its producer's state: its sequence, and where its transaction begins or
        ends."""
        state = self.producers.setdefault(header.producer_id, ProducerStateEntry())
        state.remember(header, entry.start)
        if header.is_transactional:
            self._unverified.pop(header.producer_id, None)
        if header.is_control:
            try:
                commit = is_commit_marker(entry.data)
            except BadBatchError:
                return  # a test has stored it for the reader to find
            if commit is None:
                return
            if not commit and state.open_since is not None:
                self.aborted.append(
                    AbortedTransaction(header.producer_id, state.open_since, entry.start)
                )
            state.open_since = None
            return
        if header.is_transactional and state.open_since is None:
            state.open_since = entry.start

    # --- losses ----------------------------------------------------------------------------------

    def forget_producers(self) -> None:
        """Lose all producer state, as after producer.id.expiration.ms."""
        self.producers.clear()
        self._unverified.clear()

    def advance_start(self, offset: int) -> None:
        """Delete records below `offset`, as retention or DeleteRecords does."""
        if not self.start_offset <= offset <= self.high_watermark:
            raise ValueError(
                f"the log start can move within [{self.start_offset}, {self.high_watermark}], "
                f"not to {offset}"
            )
        self.start_offset = offset
        gone = bisect_right(self._ends, offset)
        del self._entries[:gone], self._ends[:gone]
        self.aborted = [row for row in self.aborted if row.marker_offset >= offset]

    def truncate(self, offset: int) -> None:
        """Lose batches that reach beyond `offset`, and begin a new epoch, as in an unclean leader
        election."""
        while self._entries and self._ends[-1] > offset:
            self._entries.pop()
            self._ends.pop()
            self.end_offset = self._ends[-1] if self._ends else self.start_offset
        entries, self._entries, self._ends = self._entries, [], []
        self.producers.clear()
        self.aborted.clear()
        end = self.end_offset
        for entry in entries:
            self._store(entry)
        self.end_offset = end
        self._epochs = [row for row in self._epochs if row[1] < end] or [(0, 0)]
        self.new_epoch()

    def _was_aborted(self, entry: Entry) -> bool:
        """Return whether the entry is part of an aborted transaction."""
        header = entry.header
        return (
            header is not None
            and header.is_transactional
            and any(
                row.producer_id == header.producer_id
                and row.first_offset <= entry.start < row.marker_offset
                for row in self.aborted
            )
        )


def _entry_records(entry: Entry) -> list[FakeRecord]:
    """Return the records of one entry of the log; none for a transaction marker."""
    header = entry.header
    if header is not None:
        return [] if header.is_control else batch_records(entry.data, header)
    # Stored bytes of the old formats, which the package's own code turns into batches.
    return [
        FakeRecord(
            batch.base_offset + record.offset_delta,
            batch.max_timestamp
            if batch.is_log_append_time
            else wrap64(batch.base_timestamp + record.timestamp_delta),
            record.key,
            record.value,
            record.headers,
        )
        for batch in split_batches(entry.data)
        if not batch.is_control
        for record in read_records(memoryview(batch.payload(MAX_PAYLOAD_BYTES)), batch.record_count)
    ]
