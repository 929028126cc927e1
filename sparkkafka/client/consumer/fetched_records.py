"""The records of one partition in one response, decoded as they are needed.

About ten thousand records are decoded at a time. Until then batches are views of the response's
memory, which is reused once all of the response's partitions are decoded. (Java's CompletedFetch.)
`AbortedTransactions` of `batches` has the batches that `read_committed` hides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from sparkkafka.client.deadline import Deadline
from sparkkafka.client.metrics import FetchMetrics
from sparkkafka.client.net.frames import FrameBuffer
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import FetchOptions
from sparkkafka.errors import BatchTooLargeError, CorruptRecordError
from sparkkafka.protocol.columns.columns import DecodedRecords, Selection
from sparkkafka.protocol.columns.decode import decode_chunks
from sparkkafka.protocol.constants import NO_LEADER_EPOCH
from sparkkafka.protocol.records.batches import (
    HEADER,
    AbortedTransactions,
    RecordBatch,
    first_batch_size,
    split_batches,
)
from sparkkafka.protocol.records.legacy import MAGIC_POSITION, MAGIC_V2


class ResponseBuffer:
    """The memory of one response, which its partitions share. The last `release` appends it to
    `spare`, and a later response is read into it."""

    def __init__(
        self, buffer: FrameBuffer, spare: list[FrameBuffer], metrics: FetchMetrics | None
    ) -> None:
        self._buffer = buffer
        self._spare = spare
        self._metrics = metrics
        self._record_count = self._column_bytes = 0
        self._users = 1  # the fetcher, until it has passed on all partitions

    def retain(self) -> None:
        """Keep the memory until one more `release`."""
        self._users += 1

    def release(self) -> None:
        """Undo one `retain`, or the fetcher's own use."""
        self._users -= 1
        if not self._users:
            self._spare.append(self._buffer)
            if self._metrics is not None and self._record_count:
                self._metrics.response_read(self._record_count, self._column_bytes)

    @property
    def is_measured(self) -> bool:
        """Whether metrics need the sizes of records, which take time to compute."""
        return self._metrics is not None

    def count_decoded(self, records: DecodedRecords) -> None:
        """Count decoded records of the response, for metrics."""
        if self.is_measured:
            self._record_count += len(records)
            self._column_bytes += records.column_bytes


class TakenBatches(NamedTuple):
    """The batches of a partition in one response. `visible` have records for the reader, others are
    markers, aborted or emptied by compaction. `next_offset` is the offset after the last batch,
    visible or not, and `last_epoch` its leader epoch. `damage` is the error of a damaged batch
    after them."""

    tp: TopicPartition
    visible: list[RecordBatch]
    next_offset: int
    last_epoch: int
    damage: CorruptRecordError | None = None


def take_batches(
    tp: TopicPartition, row: Any, options: FetchOptions, selection: Selection, epoch: int
) -> TakenBatches:
    """Split the records of a partition, its `row` in a response that was requested from the start
    of `selection` on, into batches. If one is damaged, return those before it, and the error.
    `epoch` is the leader epoch of the record before the start.

    The first batch may begin before the start, and the last one end after the selection;
    `decode_chunks` leaves those records out.
    """
    data = memoryview(row.records)
    damage: CorruptRecordError | None = None
    try:
        batches = _split(data, options, selection.end_offset)
        if data and not batches:
            damage = _no_whole_batch_error(data)
    except CorruptRecordError as error:
        start_byte, next_offset = _find_damage(data, error)
        batches = _split(data[:start_byte], options)
        damage = error.at(*tp)  # without the traceback, which holds what was decoded
        damage.next_offset = next_offset
    position = selection.start_offset
    if batches:
        position = max(position, batches[-1].next_offset)
        epoch = batches[-1].partition_leader_epoch
    aborted: Iterable[tuple[int, int]] = ()
    if options.isolation_level == "read_committed":
        aborted = [
            (transaction.producer_id, transaction.first_offset)
            for transaction in row.aborted_transactions or ()
        ]
    visible = [
        batch
        for batch in AbortedTransactions(aborted).visible_batches(batches)
        if batch.record_count
    ]
    return TakenBatches(tp, visible, position, epoch, damage and damage.at(*tp, position))


def _split(
    data: memoryview, options: FetchOptions, end_offset: int | None = None
) -> list[RecordBatch]:
    """Split the records of a partition, or those before damage, into batches. Batches after the one
    that reaches `end_offset` are left out. Raises CorruptRecordError."""
    return split_batches(
        data,
        check_crcs=options.check_crcs,
        end_offset=end_offset,
        # Conversion of old formats takes their bytes a second time.
        max_payload_bytes=options.max_decompressed_batch_bytes // 2,
    )


class FetchedRecords:
    """The records of `selection` in the batches. `next_records` raises the error of a damaged batch
    after the last record of those before it.

    `next_offset` and `last_epoch` are those of `TakenBatches`.
    """

    def __init__(
        self, taken: TakenBatches, selection: Selection, buffer: ResponseBuffer, max_bytes: int
    ) -> None:
        """`max_bytes` is max.decompressed.batch.bytes."""
        self._tp, batches, self.next_offset, last_epoch, self._damage = taken
        self._batches = batches
        self._last_base_offset = batches[-1].base_offset if batches else -1
        self._last_offset = batches[-1].last_offset if batches else -1
        self._next_to_decode = selection.start_offset
        self.selection = selection
        self._max_payload_bytes = max_bytes
        self.last_epoch = last_epoch
        epochs = {batch.partition_leader_epoch for batch in batches}
        self._only_epoch = last_epoch if epochs == {last_epoch} else NO_LEADER_EPOCH
        """The leader epoch of all batches, if they have only one."""
        self._decoding: Iterator[DecodedRecords] | None = self._decode()
        """None once all records have been returned or dropped."""
        self._decoded_ahead: DecodedRecords | CorruptRecordError | None = None
        """What the next call of `next_records` returns or raises."""
        self.has_begun_decoding = False
        self.is_measured = buffer.is_measured
        self._buffer: ResponseBuffer | None = buffer
        buffer.retain()

    def extend_to(self, offset: int, epoch: int) -> None:
        """Set `next_offset` to a later offset, because a later response has no records for the
        reader before it. `epoch` is the leader epoch of the record before it."""
        if epoch != self.last_epoch:
            self._only_epoch = NO_LEADER_EPOCH
        self.next_offset, self.last_epoch = offset, epoch

    def epoch_before(self, offset: int) -> int:
        """Return the leader epoch of the record before this offset, NO_LEADER_EPOCH if the batches
        have several epochs."""
        return self.last_epoch if offset == self.next_offset else self._only_epoch

    @property
    def is_decoded(self) -> bool:
        """Whether all records have been returned."""
        return self._decoding is None

    def next_records(self, deadline: Deadline) -> DecodedRecords | None:
        """Return the next records, None at the end. If the deadline passes first, return none of
        them (an empty DecodedRecords); the next call continues.

        Raises CorruptRecordError after the last record that could be read. Its `next_offset` is
        the offset after the damage, if that is known.
        """
        if self._decoding is None:
            return None
        records = self._pull(deadline) if self._decoded_ahead is None else self._decoded_ahead
        self._decoded_ahead = None
        if isinstance(records, CorruptRecordError):
            self.drop()
            raise records
        if records is not None and not len(records):
            return records
        if records is not None and records.large is not None:
            return records  # so that two large records are never in memory
        if records is not None and (
            self._damage is not None
            or self._last_base_offset < self._next_to_decode <= self._last_offset
        ):
            # The next offset is in the last batch (or damage follows). Compaction may have removed
            # the last records of the batch, so offsets do not show whether more follow. Decode
            # ahead, so that no further poll is needed to move past the end.
            ahead = self._pull(deadline)
            is_last = ahead is None
            if isinstance(ahead, CorruptRecordError) or ahead:
                self._decoded_ahead = ahead
        else:
            is_last = self._next_to_decode > self._last_offset
        if records is None or is_last:
            self.drop()  # frees the response's memory
        return records

    def _pull(self, deadline: Deadline) -> DecodedRecords | CorruptRecordError | None:
        """Run at least one step of `decode_chunks`, and more until it returns records. Return
        these, an empty DecodedRecords if the deadline passed first, the error of damaged records,
        or None at the end."""
        self.has_begun_decoding = True
        if self._decoding is None:
            return None
        while True:
            try:
                records = next(self._decoding, None)
            except CorruptRecordError as error:
                return error
            if records and self._buffer is not None:
                self._buffer.count_decoded(records)
            if records is None or len(records) or deadline.expired:
                return records

    def drop(self) -> None:
        """Drop the records that are left."""
        self._decoding = self._decoded_ahead = None
        self._batches = []
        if self._buffer is not None:
            self._buffer.release()
            self._buffer = None

    def _decode(self) -> Iterator[DecodedRecords]:
        """Decode all batches; then raise the error of a damaged one."""
        is_damaged = False
        try:
            yield from self._decode_batches(self._batches)
        except CorruptRecordError:
            is_damaged = True
        if is_damaged:
            # Batches are decoded together: decode those before the damaged one again. (Not inside
            # `except`: the error's traceback holds what was decoded.)
            yield from self._decode_before_damage()
        if self._damage is not None:
            raise self._damage

    def _decode_before_damage(self) -> Iterator[DecodedRecords]:
        """Decode the batches one by one, and raise the error of the first damaged one."""
        for batch in self._batches:
            if batch.last_offset < self._next_to_decode:
                continue
            try:
                yield from self._decode_batches([batch])
            except CorruptRecordError as error:
                located = error.at(*self._tp, self._next_to_decode)
                located.next_offset = batch.next_offset
                raise located from error

    def _decode_batches(self, batches: list[RecordBatch]) -> Iterator[DecodedRecords]:
        """Decode the records from offset `_next_to_decode` on, and move it. A step without records
        yields an empty DecodedRecords, so that callers can check deadlines."""
        for records in decode_chunks(
            batches,
            self.selection._replace(start_offset=self._next_to_decode),
            max_payload_bytes=self._max_payload_bytes,
            pauses=True,
        ):
            if len(records):
                self._next_to_decode = int(records.offsets[-1]) + 1
            yield records


def _find_damage(data: memoryview, error: CorruptRecordError) -> tuple[int, int | None]:
    """Return the first byte of the damaged batch and, if it is known, the offset after it."""
    try:
        # Those before the position, which is in the damaged batch.
        sound = split_batches(data[: error.position or 0], check_crcs=False)
    except CorruptRecordError:  # old formats count positions differently
        return 0, None
    start = sum(batch.size_bytes for batch in sound)
    if len(data) - start < HEADER.size or data[start + MAGIC_POSITION] != MAGIC_V2:
        return start, None
    header = HEADER.unpack_from(data, start)
    base_offset, last_offset_delta = header[0], header[6]  # by the order of HEADER's fields
    if base_offset != error.offset or last_offset_delta < 0:  # the header is damaged, too
        return start, None
    next_offset = base_offset + last_offset_delta + 1
    following = data[start + (first_batch_size(data[start:]) or 0) :]
    if len(following) >= HEADER.size:
        following_offset = HEADER.unpack_from(following)[0]
        if base_offset < following_offset < next_offset:  # the delta is damaged
            return start, following_offset
    return start, next_offset


def with_setting(error: CorruptRecordError, prefix: str) -> CorruptRecordError:
    """Return the error; if a batch is too large, with the setting that allows more. `prefix` is
    that of the caller's settings: "" or "kafka."."""
    if isinstance(error, BatchTooLargeError):
        error.reason += f" ({prefix}max.decompressed.batch.bytes: set it higher to read this)"
    return error


def _no_whole_batch_error(data: memoryview) -> CorruptRecordError:
    """Return the error for records of a response that have no whole batch: brokers return the first
    one whole, whatever its size (KIP-74)."""
    size = first_batch_size(data)
    return CorruptRecordError(
        f"{len(data)} bytes of records without one whole batch"
        + (f"; the first says it has {size} bytes" if size is not None else "")
    )
