"""Message sets of magic 0 and 1 (before Kafka 0.11), converted to record batches.

Brokers no longer take them, but up to 4.x return them from old segments under every Fetch version:
the magic byte decides, not the API version.

    offset
    0    i64  offset
    8    i32  message size: the bytes after this field
    12   u32  CRC-32 (IEEE) of everything after this field
    16   i8   magic: 0 or 1
    17   i8   attributes: bits 0-2 codec, bit 3 timestamp type (magic 1; 1 = LogAppendTime)
    18   i64  timestamp, ms (magic 1 only)
    ..   i32  key size, -1 = null; key
    ..   i32  value size, -1 = null; value

A compressed message is a wrapper: its value is a compressed message set. Its offset is that of its
last message. Offsets inside count from 0 with magic 1, and are absolute with magic 0.

Rules as in Java's `AbstractLegacyRecordBatch`, except that damage which Java silently ignores (a
wrapper whose last message is cut, bytes after the value) is an error here.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from sparkkafka.errors import BatchTooLargeError, CorruptRecordError, DecodeError
from sparkkafka.protocol import constants
from sparkkafka.protocol.records.compression import Codec, OutputTooLargeError, decompress
from sparkkafka.protocol.wire.varints import append_varint, zigzag

LOG_OVERHEAD_BYTES = 12  # offset and size
MAGIC_POSITION = 16
MIN_BATCH_LENGTH = 49  # the header of format 2, without offset and size
MAGIC_V2 = 2  # of record batches, which replaced message sets in Kafka 0.11

# Memory of a batch besides its payload. Messages that cannot share batches must not turn a small
# response into a large number of Python objects, so batches count against the budget too.
_BATCH_COST_BYTES = 1024

_HEADER_V0 = struct.Struct(">qiIbb")
_HEADER_V1 = struct.Struct(">qiIbbq")
_LENGTH = struct.Struct(">i")
_OFFSET_AND_LENGTH = struct.Struct(">qi")


class LegacyBatch(NamedTuple):
    """Messages of one magic and timestamp type, encoded as records of format 2: the first fields of
    a `RecordBatch`.

    `size_bytes` is what they took on the wire; a wrapper that becomes several batches is counted
    with the first.
    """

    base_offset: int
    magic: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    record_count: int
    data: memoryview
    size_bytes: int


class Conversion(NamedTuple):
    """What `convert_message_set` converted.

    `position` is after the last converted message, `budget_bytes` is left for decompressing.
    `stopped` means that nothing after `position` may be read.
    """

    batches: list[LegacyBatch]
    position: int
    budget_bytes: int
    stopped: bool


class _Message(NamedTuple):
    """One message as parsed. `timestamp` is NO_TIMESTAMP with magic 0."""

    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: memoryview | None
    value: memoryview | None


def entry_size(data: memoryview, position: int) -> int | None:
    """Return the bytes of the message or batch at `position`, of any magic; None if its end is cut
    off.

    Raises CorruptRecordError for a size below any message's and for an unknown magic, also if the
    entry is cut (`ByteBufferLogInputStream.nextBatchSize`).
    """
    remaining_bytes = len(data) - position
    if remaining_bytes < LOG_OVERHEAD_BYTES:
        return None
    offset, length = _OFFSET_AND_LENGTH.unpack_from(data, position)
    magic = data[position + MAGIC_POSITION] if remaining_bytes > MAGIC_POSITION else 0
    # 14: a magic 0 message without key and value; no size field says less.
    if length < (MIN_BATCH_LENGTH if magic == MAGIC_V2 else 14):
        raise CorruptRecordError(f"batch length {length}", position + 8, offset=offset)
    if magic > MAGIC_V2:
        raise CorruptRecordError(
            f"record format (magic) {magic} is not known", position + MAGIC_POSITION, offset=offset
        )
    size = LOG_OVERHEAD_BYTES + int(length)
    return size if size <= remaining_bytes else None


def convert_message_set(
    data: memoryview,
    position: int,
    *,
    check_crcs: bool,
    max_payload_bytes: int,
    budget_bytes: int,
    end_offset: int | None,
) -> Conversion:
    """Convert the complete messages from `position` up to the next batch of format 2 or truncated
    message.

    Wrappers are decompressed here, using at most `budget_bytes`. A wrapper uses its decompressed
    size, plus a charge for each batch after its first: messages that cannot share a batch become
    several. The first wrapper that needs more ends the conversion, and the next fetch starts with
    it. A wrapper that needs more than `max_payload_bytes` is an error. Nothing after the message
    that reaches `end_offset` (exclusive) is read. Raises CorruptRecordError.
    """
    batches: list[LegacyBatch] = []
    uncompressed = _Builder()  # the messages since the last wrapper
    stopped = False
    while not stopped:
        size = entry_size(data, position)
        if size is None or data[position + MAGIC_POSITION] == MAGIC_V2:
            break
        message = _parse(data, position, position + size, check_crcs)
        if message.attributes & constants.CODEC_MASK:
            batches += uncompressed.finish()
            try:
                unpacked, used_bytes = _unwrap(message, size, check_crcs, budget_bytes)
            except OutputTooLargeError as error:
                if budget_bytes < max_payload_bytes:
                    stopped = True
                    break
                raise BatchTooLargeError(str(error), position, offset=message.offset) from error
            except DecodeError as error:
                raise CorruptRecordError(
                    f"in a compressed message set: {error}", position, offset=message.offset
                ) from error
            budget_bytes -= used_bytes
            batches += unpacked
        else:
            uncompressed.add(message)
            uncompressed.size_bytes += size
        position += size
        # Stop also if messages that cannot share batches became too many batches.
        stopped = (end_offset is not None and message.offset + 1 >= end_offset) or (
            uncompressed.extra_batches * _BATCH_COST_BYTES > max_payload_bytes
        )
    batches += uncompressed.finish()
    return Conversion(batches, position, budget_bytes, stopped)


def _parse(data: memoryview, start: int, end: int, check_crc: bool) -> _Message:
    """Parse the message in data[start:end], whose size field the caller has checked. Raises
    CorruptRecordError."""
    magic = data[start + MAGIC_POSITION]
    header = _HEADER_V1 if magic else _HEADER_V0
    if end - start < header.size:
        raise CorruptRecordError(f"message of {end - start} bytes has no whole header", start)
    offset, _, crc, _, attributes, *rest = header.unpack_from(data, start)
    if offset < 0 or offset >= constants.MAX_INT64:
        raise CorruptRecordError(f"message offset {offset}", start)
    if check_crc:
        actual = zlib.crc32(data[start + MAGIC_POSITION : end])
        if actual != crc:
            raise CorruptRecordError(
                f"CRC-32 of the message is {actual:#010x}, its header says {crc:#010x}",
                start + LOG_OVERHEAD_BYTES,
                offset=offset,
            )
    key, position = _read_nullable(data, start + header.size, end, offset, "key")
    value, position = _read_nullable(data, position, end, offset, "value")
    if position != end:
        raise CorruptRecordError(
            f"{end - position} bytes follow the value of the message", position, offset=offset
        )
    timestamp = rest[0] if rest else constants.NO_TIMESTAMP
    return _Message(offset, magic, attributes, timestamp, key, value)


def _read_nullable(
    data: memoryview, position: int, end: int, offset: int, what: str
) -> tuple[memoryview | None, int]:
    """Read the key or value (`what`) at `position`, in the message with offset `offset`. Return
    (bytes, position after them)."""
    start = position + _LENGTH.size
    if start > end:
        raise CorruptRecordError(f"the {what} size is cut off", position, offset=offset)
    size = _LENGTH.unpack_from(data, position)[0]
    if size == -1:
        return None, start
    if not 0 <= size <= end - start:
        raise CorruptRecordError(
            f"{what} of {size} bytes, {end - start} are left", position, offset=offset
        )
    return data[start : start + size], start + size


def _unwrap(
    wrapper: _Message, size_bytes: int, check_crcs: bool, budget_bytes: int
) -> tuple[list[LegacyBatch], int]:
    """Convert a compressed message of `size_bytes`: (its batches, the bytes that it takes of the
    budget). Raises OutputTooLargeError beyond the budget, DecodeError for damage."""
    codec_id = wrapper.attributes & constants.CODEC_MASK
    if codec_id >= Codec.ZSTD:
        # zstd came after format 2 (KIP-110).
        raise DecodeError(f"compression codec {codec_id} in message format {wrapper.magic}")
    if wrapper.value is None:
        raise DecodeError("the compressed value is null")
    payload = memoryview(
        decompress(
            Codec(codec_id), wrapper.value, budget_bytes, any_lz4_header_checksum=wrapper.magic == 0
        )
    )
    # Two passes, and no list: the set may have millions of tiny messages. The first pass finds the
    # offset of the last one, from which those of the others follow.
    last_inner_offset = None
    used_bytes = len(payload)
    for start, _ in _entries(payload):
        last_inner_offset, _ = _OFFSET_AND_LENGTH.unpack_from(payload, start)
    if last_inner_offset is None:
        raise DecodeError("no message inside")
    base_offset = 0
    if wrapper.magic == 1 and wrapper.offset:
        # The wrapper has the last message's offset in the log. Some versions of librdkafka wrote
        # wrappers with offset 0: then nothing is added.
        base_offset = wrapper.offset - last_inner_offset
        if base_offset < 0:
            raise DecodeError(
                f"wrapper offset {wrapper.offset} is below its last message's {last_inner_offset}"
            )
    builder = _Builder(size_bytes)
    for start, end in _entries(payload):
        message = _parse(payload, start, end, check_crcs)
        if message.attributes & constants.CODEC_MASK:
            raise DecodeError("a compressed message inside a compressed one", start)
        builder.add(_at_log_position(message, wrapper, base_offset))
        used_bytes = len(payload) + builder.extra_batches * _BATCH_COST_BYTES
        if used_bytes > budget_bytes:
            raise OutputTooLargeError(
                f"{builder.extra_batches} unlike messages take more than the {budget_bytes} bytes "
                "allowed",
                start,
            )
    return builder.finish(last_offset=wrapper.offset), used_bytes


def _entries(payload: memoryview) -> Iterator[tuple[int, int]]:
    """Yield start and end of each message in a decompressed set. Raises DecodeError."""
    start = 0
    while start < len(payload):
        size = entry_size(payload, start)
        if size is None:
            raise DecodeError("the last message is cut short", start)
        if payload[start + MAGIC_POSITION] == MAGIC_V2:
            raise DecodeError("a batch of format 2 inside a message", start)
        yield start, start + size
        start += size


def _at_log_position(message: _Message, wrapper: _Message, base_offset: int) -> _Message:
    """Return a message from inside a wrapper with the offset and timestamp that it has in the
    log."""
    offset, timestamp = message.offset + base_offset, message.timestamp
    if offset >= constants.MAX_INT64:
        raise DecodeError(f"message offset {offset}")
    # The broker stamps the wrapper only, so its timestamp type counts for all inside.
    attributes = wrapper.attributes & constants.LOG_APPEND_TIME_FLAG if wrapper.magic else 0
    if message.magic and attributes:
        timestamp = wrapper.timestamp
    return message._replace(offset=offset, attributes=attributes, timestamp=timestamp)


class _Builder:
    """Converts messages to as few batches of format 2 as can hold them.

    `size_bytes` are the bytes on the wire of the messages since the last finished batch.
    """

    def __init__(self, size_bytes: int = 0) -> None:
        self.size_bytes = size_bytes
        self._done: list[LegacyBatch] = []
        self._start_batch()

    @property
    def extra_batches(self) -> int:
        """Finished batches, without the current one."""
        return len(self._done)

    def _start_batch(self) -> None:
        """Begin a batch without records."""
        self._payload = bytearray()
        self._count = 0

    def add(self, message: _Message) -> None:
        """Append a message as a record, in a new batch if the current one cannot hold it."""
        attributes = message.attributes & constants.LOG_APPEND_TIME_FLAG if message.magic else 0
        if self._count and not self._fits(message, attributes):
            self._close_batch()
        if not self._count:
            self._magic = message.magic
            self._attributes = attributes
            self._base_offset = message.offset
            self._base_timestamp = self._max_timestamp = message.timestamp
        self._count += 1
        self._last_offset = message.offset
        self._max_timestamp = max(self._max_timestamp, message.timestamp)
        record = bytearray(1)  # attributes: none
        append_varint(record, zigzag(message.timestamp - self._base_timestamp))
        append_varint(record, zigzag(message.offset - self._base_offset))
        for field in (message.key, message.value):
            if field is None:
                append_varint(record, zigzag(-1))
            else:
                append_varint(record, zigzag(len(field)))
                record += field
        record.append(0)  # no headers
        append_varint(self._payload, zigzag(len(record)))
        self._payload += record

    def _fits(self, message: _Message, attributes: int) -> bool:
        """Return whether the current batch, which is not empty, can hold the message. `attributes`
        are those of the batch that it needs: its timestamp type."""
        return (
            message.magic == self._magic
            and attributes == self._attributes
            and self._last_offset < message.offset <= self._base_offset + constants.MAX_INT32
            # A batch has one LogAppendTime; messages outside a wrapper have one each.
            and not (attributes and message.timestamp != self._base_timestamp)
            and -constants.MAX_INT64 - 1
            <= message.timestamp - self._base_timestamp
            <= constants.MAX_INT64
        )

    def _close_batch(self) -> None:
        """Finish the current batch, which is not empty."""
        self._done.append(
            LegacyBatch(
                base_offset=self._base_offset,
                magic=self._magic,
                attributes=self._attributes,
                last_offset_delta=self._last_offset - self._base_offset,
                base_timestamp=self._base_timestamp,
                max_timestamp=self._max_timestamp,
                record_count=self._count,
                data=memoryview(bytes(self._payload)),
                size_bytes=self.size_bytes,
            )
        )
        self.size_bytes = 0
        self._start_batch()

    def finish(self, last_offset: int | None = None) -> list[LegacyBatch]:
        """Return the batches and empty the builder.

        If the last message lies before `last_offset`, an empty batch reaches up to it: a reader
        that continued after the last message would fetch the same wrapper again.
        """
        if self._count:
            self._close_batch()
            if last_offset is not None and last_offset > self._last_offset:
                self._done.append(
                    self._done[-1]._replace(
                        base_offset=last_offset,
                        last_offset_delta=0,
                        record_count=0,
                        data=memoryview(b""),
                        size_bytes=0,
                    )
                )
        done, self._done = self._done, []
        return done
