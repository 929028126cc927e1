"""Records of one partition that an answer brought, decoded as they are needed.

Some ten thousand records at a time. Until then batches are views of the answer's memory, which is
reused once all of its partitions are decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparkkafka.client.consumer.fetch_request import (
    TakenBatches,
    find_damage,
    take_batches,
)
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.metrics.fetching import FetchMetrics
from sparkkafka.client.net.frames import FrameBuffer
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import FetchOptions
from sparkkafka.errors import CorruptRecordError
from sparkkafka.protocol.columns.columns import DecodedRecords, Selection
from sparkkafka.protocol.columns.decode import decode_chunks
from sparkkafka.protocol.constants import NO_LEADER_EPOCH
from sparkkafka.protocol.records.batches import RecordBatch


class Frame:
    """The memory of one answer. `spare` gets it back when its last user is done."""

    def __init__(
        self, buffer: FrameBuffer, spare: list[FrameBuffer], metrics: FetchMetrics | None
    ) -> None:
        self._buffer = buffer
        self._spare = spare
        self._metrics = metrics
        self._records = self._column_bytes = 0
        self._users = 1  # the fetcher, while it hands out the answer's parts

    def use(self) -> None:
        self._users += 1

    def release(self) -> None:
        self._users -= 1
        if not self._users:
            self._spare.append(self._buffer)
            if self._metrics is not None and self._records:
                self._metrics.answer_read(self._records, self._column_bytes)

    @property
    def is_measured(self) -> bool:
        """Whether somebody wants to know how large the records are, which takes time."""
        return self._metrics is not None

    def decoded(self, records: DecodedRecords) -> None:
        """These records of it are decoded."""
        if self.is_measured:
            self._records += len(records)
            self._column_bytes += records.column_bytes


class FetchedRecords:
    """Batches of `tp` to read from `start_offset` on, perhaps followed by `damage`.

    `next_offset` is behind the last batch, visible or not, and `last_epoch` the leader epoch there.
    """

    def __init__(
        self,
        tp: TopicPartition,
        batches: list[RecordBatch],
        start_offset: int,
        next_offset: int,
        frame: Frame,
        damage: CorruptRecordError | None = None,
        *,
        last_epoch: int,
        selection: Selection,
        max_payload_bytes: int,
    ) -> None:
        self._tp = tp
        self._batches = batches
        self._last_base = batches[-1].base_offset if batches else -1
        self._last_offset = batches[-1].last_offset if batches else -1
        self._decoded_to = start_offset
        self._damage = damage
        self.selection = selection
        self._max_payload_bytes = max_payload_bytes
        self.next_offset = next_offset
        self.last_epoch = last_epoch
        epochs = {batch.partition_leader_epoch for batch in batches}
        self._epoch = last_epoch if epochs == {last_epoch} else NO_LEADER_EPOCH
        self._decoding: Iterator[DecodedRecords] | None = self._decode()
        self._ahead: DecodedRecords | CorruptRecordError | None = None
        self.is_begun = False
        """Whether decoding has begun."""
        self.is_measured = frame.is_measured
        self._frame: Frame | None = frame
        frame.use()

    def skip_to(self, offset: int, epoch: int) -> None:
        """Nothing for a reader follows up to this offset."""
        if epoch != self.last_epoch:
            self._epoch = NO_LEADER_EPOCH
        self.next_offset, self.last_epoch = offset, epoch

    def epoch_before(self, offset: int) -> int:
        """The leader epoch of the record before an offset in here; within an answer of several
        epochs it is not known."""
        return self.last_epoch if offset == self.next_offset else self._epoch

    @property
    def is_decoded(self) -> bool:
        """Whether nothing is left in it."""
        return self._decoding is None

    def next_records(self, deadline: Deadline) -> DecodedRecords | None:
        """The next rows, None at the end; no rows if the deadline passes first, and the next call
        goes on.

        Raises CorruptRecordError behind the last row that could be read; `next_offset` of the
        error is behind the damage, if that is known.
        """
        if self._decoding is None:
            return None
        records = self._pull(deadline) if self._ahead is None else self._ahead
        self._ahead = None
        if isinstance(records, CorruptRecordError):
            self.drop()
            raise records
        if records is not None and not len(records):
            return records
        if records is not None and records.large is not None:
            return records  # not two large records at once
        if records is not None and (
            self._damage is not None or self._last_base < self._decoded_to <= self._last_offset
        ):
            # Offsets do not say whether this was all, since compaction may have removed the last
            # records. Look ahead, so that no further poll is needed to move behind them.
            ahead = self._pull(deadline)
            is_last = ahead is None
            if isinstance(ahead, CorruptRecordError) or ahead:
                self._ahead = ahead
        else:
            is_last = self._decoded_to > self._last_offset
        if records is None or is_last:
            self.drop()  # the answer's memory is free
        return records

    def _pull(self, deadline: Deadline) -> DecodedRecords | CorruptRecordError | None:
        """At least one step, even after the deadline."""
        self.is_begun = True
        if self._decoding is None:
            return None
        while True:
            try:
                records = next(self._decoding, None)
            except CorruptRecordError as error:
                return error
            if records and self._frame is not None:
                self._frame.decoded(records)
            if records is None or len(records) or deadline.expired:
                return records

    def drop(self) -> None:
        """Forget what is left."""
        self._decoding = self._ahead = None
        self._batches = []
        if self._frame is not None:
            self._frame.release()
            self._frame = None

    def _decode(self) -> Iterator[DecodedRecords]:
        is_damaged = False
        try:
            yield from self._read(self._batches)
        except CorruptRecordError:
            is_damaged = True
        if is_damaged:
            # Batches are decoded together, and those before the damaged one are sound. (Not inside
            # `except`: the error's traceback holds what was decoded.)
            yield from self._up_to_damage()
        if self._damage is not None:
            raise self._damage

    def _up_to_damage(self) -> Iterator[DecodedRecords]:
        for batch in self._batches:
            if batch.last_offset < self._decoded_to:
                continue
            try:
                yield from self._read([batch])
            except CorruptRecordError as error:
                raise damage_at(self._tp, error, self._decoded_to, batch.next_offset) from error

    def _read(self, batches: list[RecordBatch]) -> Iterator[DecodedRecords]:
        for records in decode_chunks(
            batches,
            self.selection._replace(start_offset=self._decoded_to),
            max_payload_bytes=self._max_payload_bytes,
            pauses=True,
        ):
            if len(records):
                self._decoded_to = int(records.offsets[-1]) + 1
            yield records


def before_damage(
    tp: TopicPartition, row: Any, options: FetchOptions, error: CorruptRecordError, offset: int
) -> tuple[TakenBatches | None, CorruptRecordError]:
    """Of a partition's part of an answer, read from `offset` on, which `take_batches` refused with
    `error`: the batches before the damaged one, which are sound, and the error with its offset."""
    found = find_damage(row, error)
    taken = take_batches(row, options, size_bytes=found.start_byte)
    position = offset if taken is None else max(offset, taken.next_offset)
    return taken, damage_at(tp, error, position, found.next_offset)


def damage_at(
    tp: TopicPartition, error: CorruptRecordError, position: int, next_offset: int | None
) -> CorruptRecordError:
    """The error with its partition and offsets."""
    found = error.at(tp.topic, tp.partition, position)
    found.next_offset = next_offset
    return found
