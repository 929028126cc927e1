"""One partition's part of one Fetch answer, from its batches to the rows that are handed out.

Batches are decoded as they are needed, some ten thousand records at a time. Until then they are
views of the answer's memory, which is used again once all of its partitions are decoded.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparkkafka.client.consumer.fetch_response import with_setting
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.frame_buffer import FrameBuffer
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import BatchTooLargeError, CorruptRecordError
from sparkkafka.protocol.columns.columns import DecodedRecords, Selection, decode_chunks
from sparkkafka.protocol.records.batches import RecordBatch


class Frame:
    """The memory of one answer. `spare` gets it back when its last user is done."""

    def __init__(self, buffer: FrameBuffer, spare: list[FrameBuffer]) -> None:
        self._buffer = buffer
        self._spare = spare
        self._users = 1  # whoever hands out the answer's parts

    def use(self) -> None:
        self._users += 1

    def release(self) -> None:
        self._users -= 1
        if not self._users:
            self._spare.append(self._buffer)


class FetchedRecords:
    """Batches of `tp` to read from `start_offset` on. `damage` is what follows them.

    `next_offset` is behind the last batch, and behind those that are not for the reader.
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
        max_payload_bytes: int,
    ) -> None:
        self._tp = tp
        self._batches = batches
        self._last_base = batches[-1].base_offset if batches else -1
        self._last_offset = batches[-1].last_offset if batches else -1
        self._decoded_to = start_offset
        self._damage = damage
        self._max_payload_bytes = max_payload_bytes
        self.next_offset = next_offset
        self._pieces: Iterator[DecodedRecords] | None = self._decode()
        self._ahead: DecodedRecords | CorruptRecordError | None = None
        self.is_begun = False
        """Something of it is decoded."""
        self._frame: Frame | None = frame
        frame.use()

    @property
    def is_decoded(self) -> bool:
        """Whether nothing is left in it."""
        return self._pieces is None

    def next_piece(self, deadline: Deadline) -> DecodedRecords | None:
        """The next rows, None at the end. No rows if the deadline passes before there are any: the
        next call goes on.

        Raises CorruptRecordError behind the last row that could be read; `next_offset` of the
        error is behind the damage, if that can be told.
        """
        if self._pieces is None:
            return None
        piece = self._pull(deadline) if self._ahead is None else self._ahead
        self._ahead = None
        if isinstance(piece, CorruptRecordError):
            self.drop()
            raise piece
        if piece is not None and not len(piece):
            return piece
        if piece is not None and piece.large is not None:
            return piece  # not two large records at once
        if piece is not None and (
            self._damage is not None or self._last_base < self._decoded_to <= self._last_offset
        ):
            # Offsets do not say whether this was all (compaction took the last records). Those
            # who know that it was need not wait for another poll to go on behind it.
            ahead = self._pull(deadline)
            is_last = ahead is None
            if isinstance(ahead, CorruptRecordError) or ahead:
                self._ahead = ahead
        else:
            is_last = self._decoded_to > self._last_offset
        if piece is None or is_last:
            self.drop()  # the answer's memory is free
        return piece

    def _pull(self, deadline: Deadline) -> DecodedRecords | CorruptRecordError | None:
        """One step at least, however late it is."""
        self.is_begun = True
        if self._pieces is None:
            return None
        while True:
            try:
                piece = next(self._pieces, None)
            except CorruptRecordError as error:
                return error
            if piece is None or len(piece) or deadline.expired:
                return piece

    def drop(self) -> None:
        """What is left is of no use."""
        self._pieces = self._ahead = None
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
            # Batches are decoded together: what stands before the damaged one is sound. (Not inside
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
        for piece in decode_chunks(
            batches,
            Selection(self._decoded_to),
            max_payload_bytes=self._max_payload_bytes,
            pauses=True,
        ):
            if len(piece):
                self._decoded_to = int(piece.offsets[-1]) + 1
            yield piece


def damage_at(
    tp: TopicPartition, error: CorruptRecordError, position: int, next_offset: int | None
) -> CorruptRecordError:
    """The error with its place, and with what the user can do."""
    with_setting(error, prefix="")
    offset = error.offset if error.offset is not None else position
    is_sound = isinstance(error, BatchTooLargeError)
    batch, it = ("batch", "it") if is_sound else ("damaged batch", "the damage")
    past = f" The {batch} ends before offset {next_offset}." if next_offset else ""
    found = type(error)(
        f"{error.reason}. The position stays at {position}.{past} Seek past {it} to go on without "
        "what lies there",
        error.position,
        topic=tp.topic,
        partition=tp.partition,
        offset=offset,
    )
    found.next_offset = next_offset
    return found
