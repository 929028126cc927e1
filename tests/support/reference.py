"""A slow, scalar codec for Kafka's record format v2: the twin that the fast code is compared with.

It shares no line with the package on purpose (only `struct` and plain loops), so that a mistake in
`sparkkafka.protocol` cannot hide behind the same mistake here. One `Record` object per record, one
byte at a time, in the order of Kafka's `DefaultRecord.java` and `DefaultRecordBatch.java`.

Where Kafka's classes are silent about damage, this codec says which bytes count as damaged:

- a length other than -1 (null) below zero; a null header key, or one that is not UTF-8;
- a varint of more than 5 (varlong: 10) bytes, or with bits beyond 32 (64);
- an offset delta outside 0..lastOffsetDelta;
- bytes missing or left over, in a record or in the payload.

Tolerated, as Java does: a record's attributes byte that is not zero, varints that are longer than
they need to be, offsets that do not ascend, timestamps that wrap around 64 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

NO_TIMESTAMP = -1

# base offset, length, leader epoch, magic, crc, attributes, last offset delta, base timestamp,
# max timestamp, producer id, producer epoch, base sequence, record count
BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
LENGTH_START = 12  # batchLength counts the bytes after itself
CRC_START = 21  # the checksum covers everything from the attributes on


class Damaged(Exception):
    """The bytes break the format. `offset` is the damaged record's, None when it is not known."""

    def __init__(self, message: str, position: int, offset: int | None = None) -> None:
        super().__init__(f"{message} (at byte {position}, offset {offset})")
        self.position = position
        self.offset = offset


Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """One record. `headers` is () for a record without headers."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    attributes: int = 0


class Batch(NamedTuple):
    """A whole RecordBatch v2; `payload` is what follows recordCount, still compressed if it was."""

    base_offset: int
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
    payload: bytes
    size_bytes: int


# ---------------------------------------------------------------------------- varints


def encode_unsigned(value: int) -> bytes:
    """Seven bits a byte, lowest first; the high bit says that another byte follows."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_varint(value: int, bits: int = 32) -> bytes:
    """Zigzag: 0, -1, 1, -2, … become 0, 1, 2, 3, …. `bits` is 64 for a varlong."""
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise ValueError(f"{value} does not fit {bits} bits")
    return encode_unsigned(value * 2 if value >= 0 else -value * 2 - 1)


def encode_varlong(value: int) -> bytes:
    return encode_varint(value, 64)


def decode_varint(data: bytes, position: int, end: int, bits: int = 32) -> tuple[int, int]:
    """(value, position after it). Nothing at or after `end` is read."""
    start = position
    raw = 0
    shift = 0
    while True:
        if position >= end:
            raise Damaged("varint is cut off", start)
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= bits:
            raise Damaged("varint is too long", start)
    if raw >= 1 << bits:
        raise Damaged(f"varint exceeds {bits} bits", start)
    return (raw >> 1) ^ -(raw & 1), position


def wrap64(value: int) -> int:
    """`value` as a Java long, which wraps around."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


# ---------------------------------------------------------------------------- records


def _encode_nullable(data: bytes | None) -> bytes:
    if data is None:
        return encode_varint(-1)
    return encode_varint(len(data)) + data


def encode_record(
    *,
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[Header] = (),
    attributes: int = 0,
) -> bytes:
    """One record with its length prefix."""
    headers = tuple(headers)
    body = bytearray(struct.pack("B", attributes & 0xFF))
    body += encode_varlong(timestamp_delta)
    body += encode_varint(offset_delta)
    body += _encode_nullable(key)
    body += _encode_nullable(value)
    body += encode_varint(len(headers))
    for name, content in headers:
        body += _encode_nullable(name.encode())
        body += _encode_nullable(content)
    return encode_varint(len(body)) + bytes(body)


def encode_payload(
    records: Sequence[Record], *, base_offset: int, base_timestamp: int = NO_TIMESTAMP
) -> bytes:
    """The bytes after recordCount, uncompressed."""
    return b"".join(
        encode_record(
            timestamp_delta=wrap64(record.timestamp - base_timestamp),
            offset_delta=record.offset - base_offset,
            key=record.key,
            value=record.value,
            headers=record.headers,
            attributes=record.attributes,
        )
        for record in records
    )


def decode_payload(
    payload: bytes,
    *,
    record_count: int,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    base_timestamp: int = NO_TIMESTAMP,
    max_timestamp: int = NO_TIMESTAMP,
    log_append_time: bool = False,
) -> list[Record]:
    """All records of a payload. Without `last_offset_delta` the largest offset is unchecked."""
    payload = bytes(payload)
    if record_count < 0:
        raise Damaged("negative record count", 0)
    records: list[Record] = []
    position = 0
    smallest = base_offset
    for _ in range(record_count):
        record, position = _decode_record(
            payload, position, base_offset, last_offset_delta, base_timestamp, smallest
        )
        smallest = record.offset + 1
        if log_append_time:
            record = record._replace(timestamp=max_timestamp)
        records.append(record)
    if position != len(payload):
        raise Damaged("bytes left over after the last record", position)
    return records


def _decode_record(
    data: bytes,
    position: int,
    base_offset: int,
    last_offset_delta: int | None,
    base_timestamp: int,
    smallest: int,
) -> tuple[Record, int]:
    start = position
    length, position = decode_varint(data, position, len(data))
    if length < 0:
        raise Damaged(f"record length {length}", start)
    end = position + length
    if end > len(data):
        raise Damaged(f"record of {length} bytes is cut off", start)
    if position >= end:
        raise Damaged("record without attributes", start)
    attributes = data[position]
    position += 1
    timestamp_delta, position = decode_varint(data, position, end, 64)
    offset_delta, position = decode_varint(data, position, end)
    if offset_delta < 0 or (last_offset_delta is not None and offset_delta > last_offset_delta):
        raise Damaged(f"offset delta {offset_delta} outside the batch", start)
    offset = base_offset + offset_delta
    if offset < smallest:
        raise Damaged(f"offset delta {offset_delta} does not ascend", start, smallest)
    try:
        key, position = _decode_nullable(data, position, end, "key")
        value, position = _decode_nullable(data, position, end, "value")
        count, position = decode_varint(data, position, end)
        if count < 0:
            raise Damaged(f"header count {count}", start)
        headers: list[Header] = []
        for _ in range(count):
            name, position = _decode_nullable(data, position, end, "header key")
            if name is None:
                raise Damaged("null header key", start)
            content, position = _decode_nullable(data, position, end, "header value")
            try:
                headers.append((name.decode("utf-8"), content))
            except UnicodeDecodeError:
                raise Damaged("header key is not UTF-8", start) from None
        if position != end:
            raise Damaged(f"{end - position} bytes left over in a record", start)
    except Damaged as damaged:
        raise Damaged(str(damaged), damaged.position, offset) from None
    timestamp = wrap64(base_timestamp + timestamp_delta)
    return Record(offset, timestamp, key, value, tuple(headers), attributes), end


def _decode_nullable(data: bytes, position: int, end: int, what: str) -> tuple[bytes | None, int]:
    start = position
    length, position = decode_varint(data, position, end)
    if length == -1:
        return None, position
    if length < 0:
        raise Damaged(f"{what} length {length}", start)
    if position + length > end:
        raise Damaged(f"{what} of {length} bytes is cut off", start)
    return data[position : position + length], position + length


# ---------------------------------------------------------------------------- whole batches


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)  # Castagnoli, bits reversed
        table.append(crc)
    return table


_CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in bytes(data):
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def encode_batch(
    records: Sequence[Record] = (),
    *,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    record_count: int | None = None,
    payload: bytes | None = None,
) -> bytes:
    """A whole batch as on the wire.

    `records` carry absolute offsets. Timestamps default to the first and the largest record's,
    `last_offset_delta` to the last record's. `payload` replaces the encoded records, for example by
    compressed ones (set the codec in `attributes`) or by damaged ones.
    """
    if base_timestamp is None:
        base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    if max_timestamp is None:
        max_timestamp = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    if last_offset_delta is None:
        last_offset_delta = records[-1].offset - base_offset if records else 0
    if record_count is None:
        record_count = len(records)
    if payload is None:
        payload = encode_payload(records, base_offset=base_offset, base_timestamp=base_timestamp)
    covered = (
        struct.pack(
            ">hiqqqhii",
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        )
        + payload
    )
    length = CRC_START - LENGTH_START + len(covered)
    head = struct.pack(">qiibI", base_offset, length, partition_leader_epoch, 2, crc32c(covered))
    return head + covered


def decode_batch(data: bytes, position: int = 0) -> Batch:
    """Splits one whole batch; checks length, magic and checksum."""
    data = bytes(data)
    if len(data) - position < BATCH_HEADER.size:
        raise Damaged("batch header is cut off", position)
    fields = BATCH_HEADER.unpack_from(data, position)
    base_offset, length, leader_epoch, magic, crc, *rest = fields
    end = position + LENGTH_START + length
    if length < BATCH_HEADER.size - LENGTH_START or end > len(data):
        raise Damaged(f"batch length {length}", position, base_offset)
    if magic != 2:
        raise Damaged(f"magic {magic}", position, base_offset)
    if crc != crc32c(data[position + CRC_START : end]):
        raise Damaged("checksum differs", position, base_offset)
    payload = data[position + BATCH_HEADER.size : end]
    return Batch(base_offset, leader_epoch, magic, crc, *rest, payload, end - position)


def decode_batch_records(batch: Batch, payload: bytes | None = None) -> list[Record]:
    """The records of a batch; `payload` is the uncompressed one when the batch is compressed."""
    return decode_payload(
        batch.payload if payload is None else payload,
        record_count=batch.record_count,
        base_offset=batch.base_offset,
        last_offset_delta=batch.last_offset_delta,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
        log_append_time=bool(batch.attributes & 8),
    )
