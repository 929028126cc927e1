"""One key, number or batch as plain Python values, for tools and tests.

The rest of the package works on columns of records. These functions use the same code, so they read
and write what the clients do. They are slow.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import crc32c as crc32c_package
import numpy as np
import pyarrow as pa

from sparkkafka.errors import EncodeError
from sparkkafka.protocol import constants
from sparkkafka.protocol.columns.columns import HEADERS_TYPE, Selection
from sparkkafka.protocol.columns.decode import decode_chunks
from sparkkafka.protocol.columns.encode import MAX_BATCH_BYTES, RecordColumns, encode_batches
from sparkkafka.protocol.partitioning import KEY_RULES, NO_PARTITION, murmur2_of
from sparkkafka.protocol.records.batches import (
    DEFAULT_MAX_PAYLOAD_BYTES,
    batch_parts,
    split_batches,
)
from sparkkafka.protocol.records.compression import Codec, codec_of
from sparkkafka.protocol.wire.primitives import BytesLike, Reader, Writer, byte_view


class PlainRecord(NamedTuple):
    """One record. A value of None is a tombstone; header values are bytes or None."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = constants.NO_TIMESTAMP
    """Milliseconds since 1970, -1 for none."""
    offset: int | None = None
    """None for a record that is still to be written."""


# --- batches ------------------------------------------------------------------------------------


def encode_batch(
    records: Iterable[PlainRecord],
    *,
    compression: Codec | int | str = "none",
    level: int | None = None,
    base_offset: int = 0,
    producer_id: int = constants.NO_PRODUCER_ID,
    producer_epoch: int = constants.NO_PRODUCER_EPOCH,
    base_sequence: int = constants.NO_SEQUENCE,
    transactional: bool = False,
) -> bytes:
    """Encode records as one record batch (magic 2) for a Produce request.

    `compression` (a Codec, its number or its name) and `level` are as for `compress`. Offsets count
    from `base_offset`; a record with another offset is an error, as is a batch without records.
    Raises EncodeError for these, for values of another type, and for what a batch cannot hold;
    OptionError for an unknown compression.
    """
    codec = codec_of(compression, argument="compression")
    records = list(records)
    for index, record in enumerate(records):
        if not isinstance(record, PlainRecord):
            raise EncodeError(f"record {index} is a PlainRecord, got {type(record).__name__}")
        if record.offset is not None and record.offset != base_offset + index:
            raise EncodeError(
                f"record {index} has offset {record.offset}; in a batch from base_offset "
                f"{base_offset} on it gets {base_offset + index}"
            )
    try:
        columns = RecordColumns(
            pa.array([_to_bytes(record.key) for record in records], pa.binary()),
            pa.array([_to_bytes(record.value) for record in records], pa.binary()),
            pa.array(
                [
                    [{"key": name, "value": _to_bytes(value)} for name, value in record.headers]
                    or None
                    for record in records
                ],
                HEADERS_TYPE,
            ),
            np.array([operator.index(record.timestamp_ms) for record in records], np.int64),
        )
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise EncodeError(
            "keys and values are bytes or None, headers pairs of str and bytes or None, "
            f"timestamp_ms an int of 64 bits: {error}"
        ) from error
    encoded = encode_batches(columns, max_batch_bytes=MAX_BATCH_BYTES)
    if len(encoded) != 1:
        what = "2 GiB or more" if records else "no records"
        raise EncodeError(f"a batch cannot hold {what}")
    (batch,) = encoded
    parts = batch_parts(
        batch,
        codec=codec,
        level=level,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        base_offset=base_offset,
    )
    return b"".join(parts)


def _to_bytes(value: BytesLike | None) -> bytes | None:
    """Copy anything bytes-like; None stays None. Raises EncodeError for another type."""
    return None if value is None else bytes(byte_view(value))


def decode_records(
    data: BytesLike, *, check_crcs: bool = True, max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES
) -> Iterator[PlainRecord]:
    """Decode the records of a partition in a Fetch response; a batch that is cut off is left out.

    Control records are left out; records of aborted transactions are not (`AbortedTransactions`
    finds them). A batch may decompress to `max_payload_bytes`. Raises CorruptRecordError for
    damaged bytes, BatchTooLargeError for a batch beyond that limit.
    """
    batches = split_batches(data, check_crcs=check_crcs, max_payload_bytes=max_payload_bytes)
    for chunk in decode_chunks(
        [batch for batch in batches if not batch.is_control],
        Selection(),
        max_payload_bytes=max_payload_bytes,
    ):
        columns = (chunk.values, chunk.keys, chunk.headers, chunk.timestamps_ms)
        values, keys, header_lists, times_ms = (
            [None] * len(chunk) if column is None else column.tolist() for column in columns
        )
        for value, key, header_list, time_ms, offset in zip(
            values, keys, header_lists, times_ms, chunk.offsets.tolist(), strict=True
        ):
            headers = tuple((header["key"], header["value"]) for header in header_list or ())
            yield PlainRecord(value, key, headers, time_ms, offset)


# --- numbers ------------------------------------------------------------------------------------


def encode_varint(value: int) -> bytes:
    """Encode a signed number of 32 bits, zigzag coded, in 1 to 5 bytes. Raises EncodeError."""
    writer = Writer()
    writer.varint(value)
    return writer.getvalue()


def encode_varlong(value: int) -> bytes:
    """Encode a signed number of 64 bits, zigzag coded, in 1 to 10 bytes. Raises EncodeError."""
    writer = Writer()
    writer.varlong(value)
    return writer.getvalue()


def encode_unsigned_varint(value: int) -> bytes:
    """Encode a number of 0 to 2**32 - 1 in 1 to 5 bytes (KIP-482). Raises EncodeError."""
    writer = Writer()
    writer.unsigned_varint(value)
    return writer.getvalue()


def decode_varint(data: BytesLike, position: int = 0) -> tuple[int, int]:
    """Return the number and the position after it. Raises DecodeError for other bytes."""
    reader = Reader(data, position)
    return reader.varint(), reader.pos


def decode_varlong(data: BytesLike, position: int = 0) -> tuple[int, int]:
    """Return the number and the position after it. Raises DecodeError for other bytes."""
    reader = Reader(data, position)
    return reader.varlong(), reader.pos


def decode_unsigned_varint(data: BytesLike, position: int = 0) -> tuple[int, int]:
    """Return the number and the position after it. Raises DecodeError for other bytes."""
    reader = Reader(data, position)
    return reader.unsigned_varint(), reader.pos


# --- checksums and hashes -----------------------------------------------------------------------


def crc32c(data: BytesLike, value: int = 0) -> int:
    """CRC-32C (Castagnoli) of `data`; `value` is the checksum of the bytes before it.

    In a record batch it covers everything from the attributes (byte 21) on. Raises EncodeError for
    what is not bytes.
    """
    return int(crc32c_package.crc32c(byte_view(data), value))


def murmur2(key: BytesLike) -> int:
    """Return Java's 32 bit hash of a key, as an unsigned number. Raises EncodeError unless the key
    is bytes.

    Java's `Utils.murmur2` returns the same bits as a signed int.
    """
    return murmur2_of(bytes(byte_view(key)))


def partition_of(
    key: BytesLike | None, partition_count: int, rule: str = "murmur2_random"
) -> int | None:
    """Return the partition of a key, None if the rule lets the producer choose any.

    `rule` is a name of `partitioner.class`: murmur2_random is Java's default, consistent_random
    librdkafka's. Raises EncodeError for an unknown rule, a partition count below one, and
    a key that is not bytes.
    """
    if rule not in KEY_RULES:
        raise EncodeError(f"rule is one of {', '.join(KEY_RULES)}, got {rule!r}")
    if partition_count < 1:
        raise EncodeError(f"partition_count is 1 or more, got {partition_count}")
    partition = KEY_RULES[rule].partition(_to_bytes(key), partition_count)
    return None if partition == NO_PARTITION else partition
