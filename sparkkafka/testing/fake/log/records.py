"""A second decoder of record batches: header fields by `struct`, records one by one.

It shares only the codecs with `protocol/records` and `protocol/columns`, so that the fake broker
checks with independent code what the client's fast code has encoded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import crc32c

from sparkkafka.errors import KafkaError
from sparkkafka.protocol.records.compression import Codec, decompress
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

# The limit of a decompressed batch.
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
    """One record of a batch, with offset and timestamp relative to the batch's."""

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
    """Add to a sequence number; 0 follows 2147483647 (DefaultRecordBatch.incrementSequence)."""
    return (sequence + count) % (1 << 31)


def wrap64(value: int) -> int:
    """Return the value as a Java long, which wraps around, as timestamp differences do."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def parse_header(data: bytes | memoryview) -> BatchHeader:
    """Return the header of the v2 batch at the start of `data`. Raises BadBatchError if there is
    none."""
    if len(data) < HEADER_BYTES:
        raise BadBatchError(f"{len(data)} bytes are too few for a record batch")
    header = BatchHeader(*_HEADER.unpack_from(data))
    if header.magic != 2:
        raise BadBatchError(f"magic {header.magic} is not 2")
    return header


def magic_of(data: bytes | memoryview) -> int | None:
    """Return the magic byte of the entry at the start of `data`, None if there are too few
    bytes."""
    return data[_MAGIC_AT] if len(data) > _MAGIC_AT else None


def legacy_offset(data: bytes | memoryview) -> int:
    """Return the offset of a magic 0 or 1 entry: its own, or that of the last message in it."""
    return int.from_bytes(data[:8], "big", signed=True)


def entry_sizes(data: bytes | memoryview) -> list[int]:
    """Return the sizes of the entries (of any magic) in `data`, up to the first that is not
    whole."""
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


def without_crcs(data: bytes) -> bytes:
    """Return the batches with zero as their CRC-32C. The last one may be cut."""
    out, at = bytearray(data), 0
    while at + _CRC_START <= len(out):
        struct.pack_into(">I", out, at + _CRC_AT, 0)
        at += LENGTH_END + struct.unpack_from(">i", out, at + LENGTH_END - 4)[0]
    return bytes(out)


def crc_matches(data: bytes | memoryview, header: BatchHeader) -> bool:
    """Return whether the CRC-32C, from the attributes to the end of the batch, is right."""
    return bool(crc32c.crc32c(data[_CRC_START:]) == header.crc)


def stored_batch(
    data: bytes | memoryview,
    *,
    base_offset: int,
    leader_epoch: int,
    log_append_time_ms: int | None = None,
) -> bytes:
    """Return the batch as a broker stores it, with offset and leader epoch set (not in the CRC).

    With `log_append_time_ms` also timestamp type and maximum timestamp are set, with a new CRC.
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
    """Return a control batch that ends a transaction (EndTransactionMarker)."""
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
    """Return whether a control batch commits (True) or aborts (False); None for another one."""
    for record in read_records(data[HEADER_BYTES:], 1):
        if record.key is not None and len(record.key) >= 4:
            kind = int.from_bytes(record.key[2:4], "big", signed=True)
            if kind in (ABORT_MARKER, COMMIT_MARKER):
                return kind == COMMIT_MARKER
    return None


def batch_records(data: bytes | memoryview, header: BatchHeader) -> list[FakeRecord]:
    """Return all records of one v2 batch. Raises BadBatchError."""
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
    """Return the decompressed records of a batch. Raises BadBatchError."""
    payload = memoryview(data)[HEADER_BYTES:]
    if not header.codec:
        return payload
    try:
        return memoryview(decompress(Codec(header.codec), payload, MAX_PAYLOAD_BYTES))
    except (KafkaError, ValueError) as error:  # ValueError: codecs 5 to 7 do not exist
        raise BadBatchError(f"the records do not decompress: {error}") from error


def read_records(payload: bytes | memoryview, count: int) -> Iterator[RawRecord]:
    """Yield the records of a payload. Raises BadBatchError where it is damaged or too long."""
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
    """Return the bytes with a length before them at `at`, and the position after them."""
    length, at = read_zigzag(data, at, end)
    if length < 0:
        if length != -1:
            raise BadBatchError(f"a length of {length} before byte {at}")
        return None, at
    if at + length > end:
        raise BadBatchError(f"a length of {length} before byte {at} runs over the record's end")
    return bytes(data[at : at + length]), at + length
