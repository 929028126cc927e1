"""Record batches -> Arrow columns, without a Python object per record.

Steps, for some ten thousand records at a time so that columns stay in the processor's cache:

1. Payloads of many batches become one byte array; batches that lie in one buffer are not copied.
2. `record_starts.find` gives the first byte of each record.
3. Each field is read for all records at once (`fields`), which tells where the next
   field begins.
4. Keys, values and headers are gathered by Arrow from (start, end) pairs over the byte array
   (`fields`).

Where batches look like copies of each other, `uniform_batches` takes the place of steps 2 and 3.
The steps stand in `chunks`; a batch too large for them is taken in parts (`large_batches`).

Safety rests on one check (for copies: that every bit which says where something lies is that of a
batch which passed it). Positions only move forward, reads outside the array do no harm, and the
position after the last field of each record must be exactly the end of that record: then no
field reached beyond it. When a check fails, `_raise_damage` reads the records one by one, only to
name the damaged one.

Rules, all from Kafka's `DefaultRecord` and `DefaultRecordBatch`: length -1 is null, 0 is empty;
timestamps are base + delta (wrapping in 64 bits), or the batch's max timestamp for all with
LogAppendTime; offsets are base + delta with gaps after compaction; a record's attributes byte is
ignored. Stricter than Java, which takes any negative key or value length for null: only -1 is; and
offset deltas must ascend within 0..lastOffsetDelta, or the reader could not tell what it has read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa

from sparkkafka.errors import CorruptRecordError, DecodeError
from sparkkafka.protocol.columns import large_batches
from sparkkafka.protocol.columns.chunks import (
    ALL_COLUMNS,
    TIMESTAMP,
    Chunk,
    DecodedRecords,
    Selection,
    no_records,
)
from sparkkafka.protocol.records.batches import (
    CODEC_MASK,
    DEFAULT_MAX_PAYLOAD_BYTES,
    MIN_RECORD_BYTES,
    RecordBatch,
)
from sparkkafka.protocol.records.compression import PIECE_BYTES, BytesLike, slices

CHUNK_BYTES = PIECE_BYTES
"""Payload whose record starts are found together: many batches make `lockstep` cheap. A batch that
unpacks to more is decoded in parts of that size (`large_batches`)."""


def decode_batches(
    batches: Sequence[RecordBatch],
    wanted: Selection,
    *,
    max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES,
) -> DecodedRecords:
    """All records of `decode_chunks` in one piece; see there.

    Raises DecodeError, too, if keys or values sum up to 2 GiB, which one Arrow array cannot hold.
    """
    pieces = list(decode_chunks(batches, wanted, max_payload_bytes=max_payload_bytes))
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return no_records(wanted.columns)
    return DecodedRecords(
        np.concatenate([piece.offsets for piece in pieces]),
        np.concatenate([piece.timestamps_ms for piece in pieces if piece.timestamps_ms is not None])
        if TIMESTAMP in wanted.columns
        else None,
        np.concatenate([piece.timestamp_types for piece in pieces]),
        _concat([piece.keys for piece in pieces]),
        _concat([piece.values for piece in pieces]),
        _concat([piece.headers for piece in pieces]),
    )


def _concat(arrays: list[pa.Array | None]) -> pa.Array | None:
    if arrays[0] is None:
        return None
    try:
        return pa.concat_arrays(arrays)
    except pa.ArrowInvalid as error:
        raise DecodeError(f"too much data for one Arrow array: {error}") from None


def decode_chunks(
    batches: Sequence[RecordBatch],
    wanted: Selection,
    *,
    max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES,
    pauses: bool = False,
) -> Iterator[DecodedRecords]:
    """Decodes the batches of one fetch of one partition, some ten thousand records at a time.

    Batches outside the wanted offsets are not even decompressed. Of wanted times, a batch is passed
    over if its header says that it has none, else only their keys and values are copied.
    Control and aborted batches are the caller's to leave out. `max_payload_bytes` bounds what each
    compressed batch may decompress to, at most 2 GiB - 1; it is decoded a few MiB at a time. With
    `pauses` empty chunks come between steps that give no record, so that the caller can look at
    the clock; without it there are none. The columns never share memory with the batches, so a
    receive buffer may be used again.

    Raises BatchTooLargeError beyond that limit, and CorruptRecordError for damage, perhaps after
    columns of records before it: its `offset` is the damaged record's, or the smallest that it can
    have if its bytes do not tell; `position` counts in its batch's uncompressed payload.
    Headers that are not wanted are not looked at. Errors of decompression pass through.
    """
    unknown = wanted.columns - ALL_COLUMNS - {"offset"}
    if unknown:
        raise ValueError(f"unknown columns {sorted(unknown)}")
    for piece in _pieces(batches, wanted, max_payload_bytes):
        if pauses or len(piece):
            yield piece


def _pieces(
    batches: Sequence[RecordBatch], wanted: Selection, max_payload_bytes: int
) -> Iterator[DecodedRecords]:
    start_offset, end_offset, _, times_ms = wanted
    group: list[RecordBatch] = []
    payloads: list[memoryview] = []
    size = 0
    for batch in batches:
        # Small batches come by the thousand: plain fields are read here, not properties.
        base_offset, count = batch.base_offset, batch.record_count
        last_offset = base_offset + batch.last_offset_delta
        if count < 0:
            raise CorruptRecordError(f"{count} records in a batch", 0, offset=base_offset)
        if base_offset < 0 or last_offset >= 1 << 63:
            raise CorruptRecordError("offsets of a batch leave 64 bits", offset=base_offset)
        if last_offset < start_offset or base_offset >= end_offset:
            continue
        if times_ms is not None and _out_of_time(batch, *times_ms):
            continue
        payload = batch.data
        more: Iterator[BytesLike] | None = None
        if batch.attributes & CODEC_MASK:
            pieces = batch.payload_pieces(max_payload_bytes)
            payload = memoryview(next(pieces, b"")).cast("B")
            second = next(pieces, None)
            if second is not None:
                more = chain((payload, second), pieces)
        elif len(payload) > CHUNK_BYTES:
            more = slices(payload)
        length = len(payload)
        if more is None and (count * MIN_RECORD_BYTES > length or (count == 0) != (length == 0)):
            # Before any array is made for so many records.
            raise CorruptRecordError(
                f"{count} records cannot lie in {length} bytes", 0, offset=base_offset
            )
        # Also keeps a chunk of several batches within Arrow's int32, whatever follows.
        if group and (more is not None or size + length > CHUNK_BYTES):
            chunk = Chunk(group, payloads, max_payload_bytes)
            yield from chunk.decode(wanted)
            group, payloads, size = [], [], 0
        if more is not None:
            yield from large_batches.decode(batch, more, wanted, max_payload_bytes)
        elif count:
            group.append(batch)
            payloads.append(payload)
            size += length
    if group:
        chunk = Chunk(group, payloads, max_payload_bytes)
        yield from chunk.decode(wanted)


def _out_of_time(batch: RecordBatch, first_ms: int, last_ms: int) -> bool:
    """Whether the header alone tells. Of the earliest time it says something only if all records
    have the same: baseTimestamp is the first record's, and the next may be earlier."""
    latest_ms = batch.max_timestamp
    return latest_ms < first_ms or (batch.is_log_append_time and latest_ms > last_ms)
