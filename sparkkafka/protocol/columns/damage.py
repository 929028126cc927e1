"""Finds the damaged record of a batch by reading its records one by one.

`decode` only notices that one of many records is damaged. Speed does not matter here; the order of
the checks is that of Kafka's `DefaultRecord.readFrom`.
"""

from __future__ import annotations

from typing import NamedTuple

from sparkkafka.errors import CorruptRecordError
from sparkkafka.protocol.records.batches import RecordBatch
from sparkkafka.protocol.wire import varints

MIN_HEADER_BYTES = 2  # key length and value length


class ReadProgress(NamedTuple):
    """How much of a batch has been read and found valid."""

    records: int = 0
    payload_bytes: int = 0
    last_delta: int = -1
    """Offset delta of the last record so far."""


def check_batch(
    batch: RecordBatch, raw: bytes, progress: ReadProgress | None, *, is_end: bool = True
) -> None:
    """Raise CorruptRecordError for the first damaged record of one batch, if there is one.

    `raw` has the records after `progress`; unless it `is_end`, more records follow it.
    """
    start = progress or ReadProgress()
    position, last_delta = 0, start.last_delta
    for index in range(start.records, batch.record_count):
        known_delta: list[int] = []  # gets the record's offset delta once that is valid
        if position == len(raw) and not is_end:
            return
        try:
            end = _check_record(batch, raw, position, known_delta, last_delta)
        except (IndexError, varints.BadVarintError, UnicodeDecodeError, ValueError) as error:
            reason = {
                IndexError: "it ends too early",
                varints.BadVarintError: "a number in it is too long",
                UnicodeDecodeError: "a header key is not UTF-8",
            }.get(type(error), str(error))
            delta = known_delta[0] if known_delta else last_delta + 1
            raise CorruptRecordError(
                f"record {index + 1} of {batch.record_count} of a batch is damaged: {reason}",
                start.payload_bytes + position,
                offset=batch.base_offset + delta,
            ) from None
        position = end
        last_delta = known_delta[0]
    if position != len(raw):
        raise CorruptRecordError(
            f"{len(raw) - position} bytes follow the last of {batch.record_count} records",
            start.payload_bytes + position,
            offset=batch.base_offset + last_delta + 1,
        )


def _check_record(
    batch: RecordBatch, raw: bytes, at: int, known_delta: list[int], last_delta: int
) -> int:
    """Check the record that begins at `at`, and return where it ends. `last_delta`: the offset
    delta of the record before. Once the offset delta of this record is checked, it is appended to
    `known_delta`, so that an error about the rest of the record can name it. Raises ValueError
    (also BadVarintError, UnicodeDecodeError), IndexError."""
    length, at = varints.read_zigzag(raw, at, len(raw), varints.VARINT_BITS)
    end = at + length
    if length < 0:
        raise ValueError(f"its length is {length}")
    if end > len(raw):
        raise ValueError(f"it has {length} bytes, only {len(raw) - at} are left")
    raw = raw[:end]
    _, at = varints.read_zigzag(raw, at + 1, end)  # timestamp delta, after the attributes byte
    delta, at = varints.read_zigzag(raw, at, end, varints.VARINT_BITS)
    if not 0 <= delta <= batch.last_offset_delta:
        raise ValueError(f"its offset delta is {delta}")
    if delta <= last_delta:
        raise ValueError(f"its offset delta is {delta}, behind a record with {last_delta}")
    known_delta.append(delta)
    for what in ("key", "value"):
        length, at = varints.read_zigzag(raw, at, end, varints.VARINT_BITS)
        if length < -1:
            raise ValueError(f"its {what} length is {length}")
        at += max(length, 0)
    count, at = varints.read_zigzag(raw, at, end, varints.VARINT_BITS)
    if count < 0 or count * MIN_HEADER_BYTES > end - at:
        raise ValueError(f"it has {count} headers in {max(end - at, 0)} bytes")
    for _ in range(count):
        length, at = varints.read_zigzag(raw, at, end, varints.VARINT_BITS)
        if length < 0:
            raise ValueError(f"a header key length is {length}")
        if at + length > end:
            raise IndexError
        raw[at : at + length].decode()
        length, at = varints.read_zigzag(raw, at + length, end, varints.VARINT_BITS)
        if length < -1:
            raise ValueError(f"a header value length is {length}")
        at += max(length, 0)
    if at != end:
        raise ValueError(
            f"its fields end {abs(end - at)} bytes {'before' if at < end else 'after'} it"
        )
    return end
