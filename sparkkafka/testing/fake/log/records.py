"""Record batches as a broker sees them: header fields by `struct`, records walked one by one.

Independent of `protocol/records` and `protocol/columns` on purpose: what the client's fast code
writes is checked here, before it is stored, by other code, as a real broker would check it. Only
the codecs are shared.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import crc32c

from sparkkafka.errors import KafkaError
from sparkkafka.protocol.records.codecs import Codec
from sparkkafka.protocol.records.compression import decompress
from sparkkafka.protocol.wire.varints import read_zigzag

# base offset, length, leader epoch, magic, crc, attributes, last offset delta, base timestamp,
# max timestamp, producer id, producer epoch, base sequence, record count
_HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = _HEADER.size  # 61
LENGTH_END = 12  # the length field counts what follows it
_MAGIC_AT = 16
_CRC_AT = 17
_CRC_START = 21
_LEGACY_MIN_BYTES = 26  # offset, size, and the 14 bytes of an empty message of magic 0

_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
CODEC_ZSTD = 4

ABORT_MARKER = 0
COMMIT_MARKER = 1

# A broker decompresses what clients send; this bounds what a bomb may take.
MAX_PAYLOAD_BYTES = 1 << 30


class BadBatchError(Exception):
    """Bytes that are not a record batch, or a batch whose records do not decode."""


class BatchHeader(NamedTuple):
    """The 61 bytes before the records, in wire order."""

    base_offset: int
    length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def codec(self) -> int:
        return self.attributes & _CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def last_sequence(self) -> int:
        return add_to_sequence(self.base_sequence, self.last_offset_delta)


class RawRecord(NamedTuple):
    """One record inside a batch; offset and timestamp still relative to it."""

    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class FakeRecord(NamedTuple):
    """One record of a partition log. `timestamp_ms` is -1 if there is none."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def add_to_sequence(sequence: int, count: int) -> int:
    """After 2147483647 comes 0 (DefaultRecordBatch.incrementSequence)."""
    return (sequence + count) % (1 << 31)


def wrap64(value: int) -> int:
    """As a Java long, which wraps around; so do timestamps that are stored as a difference."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def parse_header(data: bytes | memoryview) -> BatchHeader:
    """The header of a v2 batch at the start of `data`. Raises BadBatchError if there is none."""
    if len(data) < HEADER_BYTES:
        raise BadBatchError(f"{len(data)} bytes are too few for a record batch")
    header = BatchHeader(*_HEADER.unpack_from(data))
    if header.magic != 2:
        raise BadBatchError(f"magic {header.magic} is not 2")
    return header


def magic_of(data: bytes | memoryview) -> int | None:
    """The magic byte of the entry at the start of `data`, None if there are too few bytes."""
    return data[_MAGIC_AT] if len(data) > _MAGIC_AT else None


def legacy_offset(data: bytes | memoryview) -> int:
    """The offset of a magic 0 or 1 entry: its own, or that of the last message it wraps."""
    return int.from_bytes(data[:8], "big", signed=True)


def entry_sizes(data: bytes | memoryview) -> list[int]:
    """The sizes of the whole entries (of any magic) in `data`, up to the first that is not one."""
    sizes: list[int] = []
    at = 0
    while len(data) - at >= _LEGACY_MIN_BYTES:
        size = LENGTH_END + int.from_bytes(data[at + 8 : at + LENGTH_END], "big", signed=True)
        smallest = HEADER_BYTES if data[at + _MAGIC_AT] >= 2 else _LEGACY_MIN_BYTES
        if not smallest <= size <= len(data) - at:
            break
        sizes.append(size)
        at += size
    return sizes


def crc_matches(data: bytes | memoryview, header: BatchHeader) -> bool:
    """CRC-32C from the attributes to the end of the batch."""
    return bool(crc32c.crc32c(data[_CRC_START:]) == header.crc)


def placed(
    data: bytes | memoryview,
    *,
    base_offset: int,
    leader_epoch: int,
    log_append_time_ms: int | None = None,
) -> bytes:
    """The batch as a broker stores it: offset and leader epoch set, both outside the CRC.

    With `log_append_time_ms` also the timestamp type and the maximum timestamp, with a new CRC.
    """
    out = bytearray(data)
    struct.pack_into(">q", out, 0, base_offset)
    struct.pack_into(">i", out, 12, leader_epoch)
    if log_append_time_ms is not None:
        attributes = struct.unpack_from(">h", out, _CRC_START)[0] | _LOG_APPEND_TIME
        struct.pack_into(">h", out, _CRC_START, attributes)
        struct.pack_into(">q", out, 35, log_append_time_ms)
        struct.pack_into(">I", out, _CRC_AT, crc32c.crc32c(memoryview(out)[_CRC_START:]))
    return bytes(out)


def marker_batch(
    *,
    base_offset: int,
    leader_epoch: int,
    producer_id: int,
    producer_epoch: int,
    commit: bool,
    timestamp_ms: int,
    coordinator_epoch: int = 0,
) -> bytes:
    """A control batch that ends a transaction (EndTransactionMarker)."""
    key = struct.pack(">hh", 0, COMMIT_MARKER if commit else ABORT_MARKER)
    value = struct.pack(">hi", 0, coordinator_epoch)
    # attributes, timestamp delta, offset delta, key, value, no headers; all lengths are one byte
    body = b"\0\0\0" + bytes([2 * len(key)]) + key + bytes([2 * len(value)]) + value + b"\0"
    payload = bytes([2 * len(body)]) + body
    covered = (
        struct.pack(
            ">hiqqqhii",
            _TRANSACTIONAL | _CONTROL,
            0,
            timestamp_ms,
            timestamp_ms,
            producer_id,
            producer_epoch,
            -1,
            1,
        )
        + payload
    )
    crc = crc32c.crc32c(covered)
    length = len(covered) + _CRC_START - LENGTH_END
    return struct.pack(">qiibI", base_offset, length, leader_epoch, 2, crc) + covered


def is_commit_marker(data: bytes | memoryview) -> bool | None:
    """Whether a control batch commits (True) or aborts (False); None for other control records."""
    for record in read_records(data[HEADER_BYTES:], 1):
        if record.key is not None and len(record.key) >= 4:
            kind = int.from_bytes(record.key[2:4], "big", signed=True)
            if kind in (ABORT_MARKER, COMMIT_MARKER):
                return kind == COMMIT_MARKER
    return None


def batch_records(data: bytes | memoryview, header: BatchHeader) -> list[FakeRecord]:
    """All records of one v2 batch. Raises BadBatchError."""
    return [
        FakeRecord(
            header.base_offset + record.offset_delta,
            header.max_timestamp
            if header.is_log_append_time
            else wrap64(header.base_timestamp + record.timestamp_delta),
            record.key,
            record.value,
            record.headers,
        )
        for record in read_records(payload_of(data, header), header.record_count)
    ]


def payload_of(data: bytes | memoryview, header: BatchHeader) -> memoryview:
    """What follows the header, decompressed. Raises BadBatchError."""
    payload = memoryview(data)[HEADER_BYTES:]
    if not header.codec:
        return payload
    try:
        return memoryview(decompress(Codec(header.codec), payload, MAX_PAYLOAD_BYTES))
    except (KafkaError, ValueError) as error:  # ValueError: codecs 5 to 7 do not exist
        raise BadBatchError(f"the records do not decompress: {error}") from error


def read_records(payload: bytes | memoryview, count: int) -> Iterator[RawRecord]:
    """Walk the records of a payload. Raises BadBatchError where it is damaged or too long."""
    at = 0
    try:
        for _ in range(count):
            length, at = read_zigzag(payload, at, len(payload))
            end = at + length
            if length < 0 or end > len(payload):
                raise BadBatchError(f"a record of {length} bytes at byte {at}")
            at += 1  # attributes, unused
            timestamp_delta, at = read_zigzag(payload, at, end)
            offset_delta, at = read_zigzag(payload, at, end)
            key, at = _field(payload, at, end)
            value, at = _field(payload, at, end)
            header_count, at = read_zigzag(payload, at, end)
            headers: tuple[tuple[str, bytes | None], ...] = ()
            if header_count:
                if not 0 < header_count <= end - at:
                    raise BadBatchError(f"{header_count} record headers at byte {at}")
                pairs = []
                for _ in range(header_count):
                    name, at = _field(payload, at, end)
                    header_value, at = _field(payload, at, end)
                    if name is None:
                        raise BadBatchError(f"a record header without a key before byte {at}")
                    pairs.append((name.decode(), header_value))
                headers = tuple(pairs)
            if at != end:
                raise BadBatchError(f"a record ends at byte {at}, its length says {end}")
            yield RawRecord(offset_delta, timestamp_delta, key, value, headers)
    except (IndexError, ValueError) as error:
        raise BadBatchError(f"the records break off after byte {at}: {error}") from error
    if at != len(payload):
        raise BadBatchError(f"{len(payload) - at} bytes after the last of {count} records")


def _field(data: bytes | memoryview, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = read_zigzag(data, at, end)
    if length < 0:
        if length != -1:
            raise BadBatchError(f"a length of {length} before byte {at}")
        return None, at
    if at + length > end:
        raise BadBatchError(f"a length of {length} before byte {at} runs over the record's end")
    return bytes(data[at : at + length]), at + length
