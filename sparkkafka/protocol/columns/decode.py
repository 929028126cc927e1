"""Record batches -> Arrow columns, without a Python object per record.

Steps, for some ten thousand records at a time so that columns stay in the processor's cache:

1. The payloads of many batches become one byte array; batches of one buffer are not copied.
2. `record_starts.find_records` finds the first byte of each record.
3. Each field is read for all records in one step (`columns`), which gives where the next begins.
4. Arrow copies keys, values and headers from (start, end) pairs over the byte array.

If batches look like copies of each other, `uniform_batches` replaces steps 2 and 3. A batch that is
too large for one chunk is decoded in parts (`decode_large`).

Safety rests on one check. Positions only move forward, reads outside the array do no harm, and the
position after the last field of each record must be exactly the end of that record: then no field
reached beyond it. (Copies have the bits of a checked batch wherever these determine a position.) If
a check fails, `_raise_damage` reads the records one by one to name the damaged one.

Rules, all from Kafka's `DefaultRecord` and `DefaultRecordBatch`: length -1 is null, 0 is empty;
timestamps are base + delta (wrapping in 64 bits), or the batch's max timestamp for all with
LogAppendTime; offsets are base + delta with gaps after compaction; a record's attributes byte is
ignored. Stricter than Java: no other negative length is null, and offset deltas must ascend within
0..lastOffsetDelta, or a reader would not know which records it has read.
"""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.errors import BatchTooLargeError, CorruptRecordError, DecodeError
from sparkkafka.protocol.columns import record_starts, uniform_batches
from sparkkafka.protocol.columns.columns import (
    ALL_COLUMNS,
    CHUNK_RECORDS,
    HEADERS,
    HEADERS_TYPE,
    KEY,
    MAX_HEADERS,
    TIMESTAMP,
    VALUE,
    DamageError,
    DecodedRecords,
    Fields,
    Headers,
    LargeFields,
    Selection,
    copy_headers,
    follow_headers,
    headers_cost_bytes,
    make_header_lists,
    no_records,
    read_fields,
    read_headers,
)
from sparkkafka.protocol.columns.damage import MIN_HEADER_BYTES, ReadProgress, check_batch
from sparkkafka.protocol.columns.record_starts import RecordBounds
from sparkkafka.protocol.constants import CODEC_MASK, LOG_APPEND_TIME_FLAG
from sparkkafka.protocol.records.arrow import from_numpy
from sparkkafka.protocol.records.batches import (
    CREATE_TIME,
    DEFAULT_MAX_PAYLOAD_BYTES,
    LOG_APPEND_TIME,
    MIN_RECORD_BYTES,
    NO_TIMESTAMP_TYPE,
    RecordBatch,
)
from sparkkafka.protocol.records.compression import PIECE_BYTES, slices
from sparkkafka.protocol.records.varint_columns import Bytes, Flags, Ints
from sparkkafka.protocol.wire import varints
from sparkkafka.protocol.wire.primitives import BytesLike

CHUNK_BYTES = PIECE_BYTES
"""Payload whose record starts are found together: many batches make `lockstep` cheap. A larger
batch is decoded in parts of this size (`decode_large`)."""


def decode_batches(
    batches: Sequence[RecordBatch],
    selection: Selection,
    *,
    max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES,
) -> DecodedRecords:
    """Decode the batches as `decode_chunks` does, into one set of columns. Raises DecodeError also
    for keys or values of 2 GiB in all, which one Arrow array cannot hold."""
    chunks = list(decode_chunks(batches, selection, max_payload_bytes=max_payload_bytes))
    if len(chunks) == 1:
        return chunks[0]
    if not chunks:
        return no_records(selection.columns)
    return DecodedRecords(
        np.concatenate([chunk.offsets for chunk in chunks]),
        np.concatenate([chunk.timestamps_ms for chunk in chunks if chunk.timestamps_ms is not None])
        if TIMESTAMP in selection.columns
        else None,
        np.concatenate([chunk.timestamp_types for chunk in chunks]),
        _concat([chunk.keys for chunk in chunks]),
        _concat([chunk.values for chunk in chunks]),
        _concat([chunk.headers for chunk in chunks]),
    )


def _concat(arrays: list[pa.Array | None]) -> pa.Array | None:
    """Join one column of all chunks; None if it was not selected. Raises DecodeError if it has
    2 GiB or more, which one Arrow array cannot hold."""
    if arrays[0] is None:
        return None
    try:
        return pa.concat_arrays(arrays)
    except pa.ArrowInvalid as error:
        raise DecodeError(f"too much data for one Arrow array: {error}") from None


def decode_chunks(
    batches: Sequence[RecordBatch],
    selection: Selection,
    *,
    max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES,
    pauses: bool = False,
) -> Iterator[DecodedRecords]:
    """Decode the batches of one fetch of one partition, some ten thousand records at a time.

    Batches outside the selected offsets, or whose headers exclude the selected times, are not even
    decompressed. The caller leaves out control and aborted batches. Each compressed batch may
    decompress to `max_payload_bytes`, at most 2 GiB - 1; it is decoded a few MiB at a time. With
    `pauses`, steps that give no records yield empty chunks, so that the caller can check deadlines.
    The columns never share memory with the batches, so a receive buffer may be reused.

    Raises BatchTooLargeError beyond that limit, and CorruptRecordError for damage, perhaps after
    columns of records before it: its `offset` is the damaged record's, or the smallest possible if
    the record's bytes do not contain it; `position` counts in the batch's uncompressed payload.
    Headers that are not selected are not checked. Errors of decompression pass through.
    """
    unknown = selection.columns - ALL_COLUMNS - {"offset"}
    if unknown:
        raise ValueError(f"unknown columns {sorted(unknown)}")
    for chunk in _decode_groups(batches, selection, max_payload_bytes):
        if pauses or len(chunk):
            yield chunk


def _decode_groups(
    batches: Sequence[RecordBatch], selection: Selection, max_payload_bytes: int
) -> Iterator[DecodedRecords]:
    """Decode the selected records into chunks of columns: consecutive batches in groups of up to
    CHUNK_BYTES of payload, and a larger batch in parts. Yields empty chunks too. Raises the errors
    of `decode_chunks`."""
    start_offset, end_offset, _, times_ms = selection
    # The group so far, and the uncompressed payloads of its batches.
    group: list[RecordBatch] = []
    payloads: list[memoryview] = []
    group_bytes = 0
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
        if times_ms is not None and _excludes_times(batch, *times_ms):
            continue
        payload = batch.data
        pieces_of_large: Iterator[BytesLike] | None = None  # a payload too large for one step
        if batch.attributes & CODEC_MASK:
            pieces = batch.payload_pieces(max_payload_bytes)
            payload = memoryview(next(pieces, b"")).cast("B")
            second = next(pieces, None)
            if second is not None:
                pieces_of_large = chain((payload, second), pieces)
        elif len(payload) > CHUNK_BYTES:
            pieces_of_large = slices(payload)
        length = len(payload)
        if pieces_of_large is None and (
            count * MIN_RECORD_BYTES > length or (count == 0) != (length == 0)
        ):
            # Checked before arrays are allocated for the records.
            raise CorruptRecordError(
                f"{count} records cannot lie in {length} bytes", 0, offset=base_offset
            )
        # This batch does not go into the group. (The limit also keeps a group of several batches
        # within Arrow's int32 offsets.)
        if group and (pieces_of_large is not None or group_bytes + length > CHUNK_BYTES):
            yield from _BatchGroup(group, payloads, max_payload_bytes).decode(selection)
            group, payloads, group_bytes = [], [], 0
        if pieces_of_large is not None:
            yield from decode_large(batch, pieces_of_large, selection, max_payload_bytes)
        elif count:
            group.append(batch)
            payloads.append(payload)
            group_bytes += length
    if group:
        yield from _BatchGroup(group, payloads, max_payload_bytes).decode(selection)


def _excludes_times(batch: RecordBatch, first_ms: int, last_ms: int) -> bool:
    """Return whether the batch's header shows that no record lies within these times.

    The header has the latest timestamp. It has the earliest only with LogAppendTime, where all are
    the same: baseTimestamp is that of the first record.
    """
    latest_ms = batch.max_timestamp
    return latest_ms < first_ms or (batch.is_log_append_time and latest_ms > last_ms)


# --- batches that are decoded together ----------------------------------------------------------


class _BatchGroup:
    """Batches that are decoded together, or one part of a large batch.

    A part has `bounds`, the proven positions of its records, and `progress`, the records of the
    batch before it.

    The payloads lie in `data`, that of batch i from `begins[i]` to `ends[i]`. All of these arrays
    have an entry for each batch, and the rows are the records of all batches in order.
    """

    def __init__(
        self,
        batches: list[RecordBatch],
        payloads: list[memoryview],
        max_payload_bytes: int,
        *,
        bounds: RecordBounds | None = None,
        progress: ReadProgress | None = None,
    ) -> None:
        self.batches = batches
        self._max_bytes = max_payload_bytes
        self._bounds = bounds
        self._progress = progress
        self.last_offset = -1 if progress is None else batches[0].base_offset + progress.last_delta
        """Offset of the last record so far."""
        sizes = np.array([len(view) for view in payloads], np.int64)
        self.data, self.begins = _join_payloads(payloads, sizes)
        self.ends = self.begins + sizes
        fields = RecordBatch._make(zip(*batches, strict=True))  # each with all batches' values
        self.counts: Ints = np.array(
            fields.record_count if bounds is None else [len(bounds.starts)], np.int64
        )
        self.base_offsets: Ints = np.array(fields.base_offset, np.int64)
        self.last_offset_deltas: Ints = np.array(fields.last_offset_delta, np.int64)
        attributes: Ints = np.array(fields.attributes, np.int64)
        self.is_append_time = (attributes & LOG_APPEND_TIME_FLAG) != 0
        self.base_timestamps = np.where(
            self.is_append_time,
            np.array(fields.max_timestamp, np.int64),
            np.array(fields.base_timestamp, np.int64),
        )
        self.timestamp_types = np.where(self.is_append_time, LOG_APPEND_TIME, CREATE_TIME)
        self.timestamp_types[np.array(fields.magic) == 0] = NO_TIMESTAMP_TYPE
        self.timestamp_types = self.timestamp_types.astype(np.int32)
        self.buffer = pa.py_buffer(self.data)
        self._row_batches: Ints | None = None  # made when it is needed

    def decode(self, selection: Selection) -> Iterator[DecodedRecords]:
        """Yield the selected records. Raises CorruptRecordError."""
        try:
            low = 0  # the index of the next row
            for fields in self._read_all_fields():
                rows = len(fields.offset_deltas)
                yield self._make_columns(low, fields, selection)
                low += rows
        except (DamageError, varints.BadVarintError):
            self._raise_damage()

    def _read_all_fields(self) -> Iterator[Fields]:
        """Read the fields of all rows in order, at most CHUNK_RECORDS at a time."""
        if self._bounds is not None:
            yield from self._read_fields(self._bounds)
            return
        uniform = uniform_batches.find_uniform(
            self.data, self.begins, self.ends, self.counts, max_rows=CHUNK_RECORDS
        )
        done = 0  # batches
        if uniform is not None:
            for first, last, is_uniform in uniform.ranges():
                fields = uniform.read_fields(first, last) if is_uniform else None
                if fields is not None:
                    yield fields
                elif is_uniform:
                    break  # a batch is not a copy after all: this and all later ones are read
                else:
                    yield from self._read_batches(first, last)
                done = last
        yield from self._read_batches(done, len(self.batches))

    def _read_batches(self, first: int, last: int) -> Iterator[Fields]:
        """Read the fields of all records of batches [first, last)."""
        if first == last:
            return
        batches_slice = slice(first, last)
        bounds = record_starts.find_records(
            self.data,
            self.begins[batches_slice],
            self.ends[batches_slice],
            self.counts[batches_slice],
        )
        if not bounds.proven.all():
            raise DamageError
        yield from self._read_fields(bounds)

    def _read_fields(self, bounds: RecordBounds) -> Iterator[Fields]:
        """Read the fields of these records, at most CHUNK_RECORDS and MAX_HEADERS at a time."""
        low = 0
        while low < len(bounds.starts):
            rows = slice(low, low + CHUNK_RECORDS)
            fields = read_fields(self.data, bounds.bodies[rows], bounds.ends[rows])
            if fields.headers is not None:
                count = _count_rows_by_headers(fields.headers.counts)
                if count < len(fields.headers.counts):
                    rows = slice(low, low + count)
                    fields = read_fields(self.data, bounds.bodies[rows], bounds.ends[rows])
            yield fields
            low += len(fields.offset_deltas)

    def _make_columns(self, low: int, fields: Fields, selection: Selection) -> DecodedRecords:
        """Make the selected columns of the selected rows; `low` is the index of the first row that
        `fields` has. Overwrites arrays of `fields`. Raises DamageError."""
        start_offset, end_offset, columns, times_ms = selection
        offset_deltas, timestamp_deltas = fields.offset_deltas, fields.timestamp_deltas
        count = len(offset_deltas)
        batch = self._batch_of_rows(low, count)
        if (
            int(offset_deltas.min()) < 0
            or (offset_deltas > _per_row(self.last_offset_deltas, batch)).any()
        ):
            raise DamageError
        offsets = offset_deltas
        offsets += _per_row(self.base_offsets, batch)
        self._check_order(low, offsets)
        timestamps: Ints | None = None
        if TIMESTAMP in columns or times_ms is not None:
            timestamps = timestamp_deltas
            if self.is_append_time.any():
                # Then the delta does not count: all records have the batch's max timestamp.
                timestamps *= ~_per_row(self.is_append_time, batch)
            timestamps += _per_row(self.base_timestamps, batch)
        timestamp_types: NDArray[np.int32] = np.broadcast_to(
            _per_row(self.timestamp_types, batch), offsets.shape
        )

        keep: Flags | None = None  # a flag for each selected row; None: all are
        if int(offsets.min()) < start_offset or int(offsets.max()) >= end_offset:
            keep = (offsets >= start_offset) & (offsets < end_offset)
        if times_ms is not None and timestamps is not None:
            in_time = (timestamps >= times_ms[0]) & (timestamps <= times_ms[1])
            keep = in_time if keep is None else keep & in_time
        if keep is not None and not keep.any():
            return no_records(columns)

        headers: pa.Array | None = None
        if HEADERS in columns:
            # All rows, before some are dropped: list offsets and checks are simplest on all.
            headers = (
                pa.nulls(count, HEADERS_TYPE)
                if fields.headers is None
                else self._decode_headers(fields.headers, offsets)
            )
        if keep is not None and not keep.all():
            offsets = offsets[keep]
            timestamps = None if timestamps is None else timestamps[keep]
            timestamp_types = timestamp_types[keep]
            headers = None if headers is None else headers.filter(from_numpy(keep))
        else:
            keep = None
        return DecodedRecords(
            offsets,
            timestamps if TIMESTAMP in columns else None,
            timestamp_types,
            fields.keys.take(self.buffer, keep) if KEY in columns else None,
            fields.values.take(self.buffer, keep) if VALUE in columns else None,
            headers,
        )

    def _check_order(self, low: int, offsets: Ints) -> None:
        """Raise DamageError unless offsets ascend inside each batch. (Whether they ascend from
        batch to batch, `split_batches` checks.) `low` is the index of the first row."""
        disorder = offsets[1:] <= offsets[:-1]
        if disorder.any():
            batch = self._batch_of_rows(low, len(offsets))
            if batch is None or (disorder & (batch[1:] == batch[:-1])).any():  # None: one batch
                raise DamageError
        if int(offsets[0]) <= self.last_offset:  # is the row before the first in the same batch?
            batch = self._batch_of_rows(low - 1, 2)
            if batch is None or batch[0] == batch[1]:
                raise DamageError
        self.last_offset = int(offsets[-1])

    def _batch_of_rows(self, low: int, count: int) -> Ints | None:
        """Return the index of the batch of each of the rows [low, low + count); None if there is
        only one batch."""
        if len(self.batches) == 1:
            return None
        if self._row_batches is None:
            self._row_batches = np.repeat(np.arange(len(self.batches)), self.counts)
        return self._row_batches[low : low + count]

    def _decode_headers(self, headers: Headers, offsets: Ints) -> pa.Array:
        """Make the headers column. Raises DamageError, and BatchTooLargeError for a row whose
        headers would take too much memory; `offsets` are for that error."""
        count = int(headers.counts[0])
        if count > MAX_HEADERS:  # a single row has as many: see `_count_rows_by_headers`
            size = int(headers.ends[0] - headers.at[0])
            if headers_cost_bytes(count, size) > self._max_bytes:
                raise BatchTooLargeError(
                    f"a record is too large: it has {count} headers in {size} bytes, "
                    f"{self._max_bytes} bytes are allowed",
                    offset=int(offsets[0]),
                )
        positions = read_headers(self.data, headers.at, headers.ends, headers.counts)
        return make_header_lists(headers.counts, *copy_headers(self.buffer, positions))

    def _raise_damage(self) -> NoReturn:
        """Find the first damaged record and raise CorruptRecordError."""
        for batch, begin, end in zip(self.batches, self.begins, self.ends, strict=True):
            raw = self.data[begin:end].tobytes()
            check_batch(batch, raw, self._progress, is_end=self._bounds is None)
        # Not reached as long as both ways of reading agree, which tests check.
        raise CorruptRecordError("damaged records", offset=self.batches[0].base_offset)


def _count_rows_by_headers(counts: Ints) -> int:
    """Return how many rows, from the first on, have at most MAX_HEADERS headers together; at least
    one, which may have more."""
    if int(counts.sum()) <= MAX_HEADERS:
        return len(counts)
    return max(1, int(np.searchsorted(np.cumsum(counts), MAX_HEADERS, "right")))


def _join_payloads(payloads: list[memoryview], sizes: Ints) -> tuple[Bytes, Ints]:
    """Return one byte array with all payloads, and where each payload begins in the array. `sizes`:
    the lengths of the payloads."""
    if len(payloads) == 1:
        return np.frombuffer(payloads[0], np.uint8), np.zeros(1, np.int64)
    buffer: Any = payloads[0].obj
    if all(view.obj is buffer for view in payloads):
        # Uncompressed batches of one fetch response are used in place, with the headers in between.
        addresses: Ints = np.array([pa.py_buffer(view).address for view in payloads], np.int64)
        base = np.frombuffer(buffer, np.uint8)
        low = int(addresses[0]) - pa.py_buffer(base).address
        span = int(addresses[-1] - addresses[0] + sizes[-1])
        if (
            (addresses[1:] >= addresses[:-1] + sizes[:-1]).all()
            and 0 <= low <= low + span <= len(base)
            and span <= 2 * int(sizes.sum())
        ):
            return base[low : low + span], addresses - addresses[0]
    joined = np.frombuffer(b"".join(payloads), np.uint8)
    return joined, np.cumsum(sizes) - sizes


def _per_row(values: NDArray[Any], batch: Ints | None) -> NDArray[Any]:
    """Repeat each batch's value for its rows; an array without dimensions, of one value, if all
    batches agree. `batch` is the index of each row's batch, None if there is only one batch."""
    if batch is None or (values == values[0]).all():
        return np.asarray(values[0])
    return values.take(batch)


# --- batches that are too large for one step ----------------------------------------------------
#
# `_Payload` holds the bytes that are decompressed and not yet decoded. The complete records in it
# are decoded together, like those of small batches; the rest is the beginning of the next record. A
# record larger than a piece of decompressed bytes is read apart: its key, value and headers are
# copied to the memory that the columns then use. So a batch of any size takes the memory of some
# pieces and of its largest record.


def decode_large(
    batch: RecordBatch, pieces: Iterator[BytesLike], selection: Selection, max_payload_bytes: int
) -> Iterator[DecodedRecords]:
    """Decode one batch whose uncompressed bytes come in `pieces`, a few MiB at a time. Yields the
    selected columns in chunks; some are empty, so that the caller can check deadlines.

    Raises BatchTooLargeError for a batch or record beyond `max_payload_bytes`, CorruptRecordError
    for damage."""
    empty_chunk = no_records(selection.columns)
    payload = _Payload(pieces)
    progress = ReadProgress()
    while True:
        yield empty_chunk
        # Decode the complete records that are here.
        data = np.frombuffer(payload.data, np.uint8)
        remaining = batch.record_count - progress.records
        bounds = record_starts.find_complete(data, remaining)
        count = len(bounds.starts)
        if count:
            stop = int(bounds.ends[-1])
            part = _BatchGroup(
                [batch], [payload.data[:stop]], max_payload_bytes, bounds=bounds, progress=progress
            )
            yield from part.decode(selection)
            progress = ReadProgress(
                progress.records + count,
                progress.payload_bytes + stop,
                part.last_offset - batch.base_offset,
            )
            payload.drop(stop)
            remaining -= count
        if remaining:
            # Then read more bytes for the next record, or read it apart if it is large.
            size = _record_size(payload.data)
            if size is not None and size > max(PIECE_BYTES, len(payload.data)):
                record = _LargeRecord(
                    batch, payload, progress, selection, max_payload_bytes, empty_chunk
                )
                yield from record.decode()
                progress = record.progress
                continue
            if (size is None or size > len(payload.data)) and payload.grow():
                continue
        elif not len(payload.data):
            if payload.grow():  # no bytes may follow the last record: the next round checks that
                continue
            return
        # The next record is damaged or cut, or bytes follow the last record.
        check_batch(batch, bytes(payload.data), progress)
        raise CorruptRecordError("damaged records", offset=batch.base_offset)


def _record_size(data: memoryview) -> int | None:
    """Return the bytes of the record that `data` begins with, length prefix included; None without
    a valid prefix. The record may be longer than `data`."""
    try:
        length, at = varints.read_zigzag(data, 0, len(data), varints.VARINT_BITS)
    except (IndexError, varints.BadVarintError):
        return None
    return at + length if length >= 0 else None


class _Payload:
    """The uncompressed bytes of a batch that are not decoded yet, and the pieces that follow."""

    def __init__(self, pieces: Iterator[BytesLike]) -> None:
        self._pieces = pieces
        self.data = memoryview(b"")

    def grow(self) -> bool:
        """Append one more piece, perhaps an empty one; return False if there is none."""
        piece = next(self._pieces, None)
        if piece is None:
            return False
        more = memoryview(piece).cast("B")
        if len(more):
            self.data = memoryview(b"".join((self.data, more))) if len(self.data) else more
        return True

    def drop(self, size: int) -> None:
        """Drop the first `size` bytes, which have been read."""
        self.data = self.data[size:]

    def read_varint(self, bits: int = varints.VARINT_BITS) -> tuple[int, int]:
        """Read and drop a zigzag varint. Return (value, size in bytes). Raises IndexError for a
        varint that is cut off, BadVarintError."""
        value, size = varints.read_zigzag(self.data, 0, len(self.data), bits)
        self.drop(size)
        return value, size


@dataclass(slots=True, eq=False)
class _LargeRecord:
    """The record at the beginning of the payload, which does not hold all of it yet.

    The generators below read its fields one by one from the payload. They yield `empty_chunk`
    whenever more bytes must be decompressed. `progress` is that before the record, and after
    `decode` that after it.
    """

    batch: RecordBatch
    payload: _Payload
    progress: ReadProgress
    selection: Selection
    max_bytes: int
    empty_chunk: DecodedRecords
    remaining: int = 0
    """Bytes of the record that are not read yet."""

    def decode(self) -> Iterator[DecodedRecords]:
        """Yield an empty chunk for each piece that is decompressed, then the record if it is
        selected. Raises CorruptRecordError."""
        try:
            yield from self._decode()
        except (DamageError, varints.BadVarintError):
            raise self._damaged("its fields do not fit into it") from None

    def _decode(self) -> Iterator[DecodedRecords]:
        """Yield what `decode` yields. Raises CorruptRecordError, and DamageError or BadVarintError,
        which `decode` turns into a CorruptRecordError."""
        batch, progress = self.batch, self.progress
        start_offset, end_offset, columns, times_ms = self.selection
        length, prefix_bytes = self.payload.read_varint()
        if progress.payload_bytes + prefix_bytes + length > self.max_bytes:
            raise self._too_large(f"it has {length} bytes")
        self.remaining = length
        yield from self._read_bytes(1, keep=False)  # attributes, which Kafka does not use
        timestamp_delta = yield from self._read_varint(varints.VARLONG_BITS)
        delta = yield from self._read_varint()
        if not progress.last_delta < delta <= batch.last_offset_delta:
            raise self._damaged(
                f"its offset delta is {delta}, behind {progress.last_delta}, in a batch that ends "
                f"with {batch.last_offset_delta}"
            )
        offset = batch.base_offset + delta
        time_ms = batch.max_timestamp
        if not batch.is_log_append_time:
            time_ms = _wrap_int64(batch.base_timestamp + timestamp_delta)
        keep = start_offset <= offset < end_offset
        if times_ms is not None:
            keep = keep and times_ms[0] <= time_ms <= times_ms[1]
        fields: list[bytes | None] = []
        for name in (KEY, VALUE):
            size = yield from self._read_varint()
            if size < -1:
                raise DamageError
            fields.append(
                None
                if size < 0
                else bytes((yield from self._read_bytes(size, keep=keep and name in columns)))
            )
        count = yield from self._read_varint()
        if count < 0 or count * MIN_HEADER_BYTES > self.remaining:
            raise DamageError
        headers = pa.nulls(1, HEADERS_TYPE)
        selects_headers = keep and HEADERS in columns
        if count:
            headers_bytes = self.remaining
            if (
                selects_headers
                and headers_cost_bytes(count, headers_bytes)
                + sum(len(field or b"") for field in fields)
                > self.max_bytes
            ):
                fields.clear()  # the error's traceback would keep them in memory
                raise self._too_large(f"it has {count} headers in {headers_bytes} bytes")
            raw = yield from self._read_bytes(headers_bytes, keep=selects_headers)
            if selects_headers:
                headers = yield from self._decode_headers(raw, count)
        if self.remaining:
            raise DamageError
        self.progress = ReadProgress(
            progress.records + 1, progress.payload_bytes + prefix_bytes + length, delta
        )
        if not keep:
            return
        key, value = fields
        yield DecodedRecords(
            np.array([offset], np.int64),
            np.array([time_ms], np.int64) if TIMESTAMP in columns else None,
            np.array([batch.timestamp_type], np.int32),
            _single_value(key) if KEY in columns else None,
            _single_value(value) if VALUE in columns else None,
            headers if HEADERS in columns else None,
            LargeFields(key, value),
        )

    def _decode_headers(
        self, raw: BytesLike, count: int
    ) -> Generator[DecodedRecords, None, pa.Array]:
        """Make the HEADERS_TYPE array of one row with the `count` headers that `raw` has."""
        data, buffer, at = np.frombuffer(raw, np.uint8), pa.py_buffer(raw), 0
        parts = []
        for done in range(0, count, MAX_HEADERS):
            positions, at = follow_headers(data, at, len(data), min(MAX_HEADERS, count - done))
            parts.append(copy_headers(buffer, positions))
            yield self.empty_chunk  # so that the caller can check its deadline
        if at != len(data):
            raise DamageError
        keys, values = (pa.concat_arrays(arrays) for arrays in zip(*parts, strict=True))
        return make_header_lists(np.array([count]), keys, values)

    def _read_varint(self, bits: int = varints.VARINT_BITS) -> Generator[DecodedRecords, None, int]:
        """Read and drop the next field, a zigzag varint. Raises DamageError if it leaves the
        record, BadVarintError."""
        while True:
            try:
                value, size = self.payload.read_varint(bits)
                break
            except IndexError:
                yield self.empty_chunk  # so that the caller can check its deadline
                if not self.payload.grow():
                    raise DamageError from None
        self.remaining -= size
        if self.remaining < 0:
            raise DamageError
        return value

    def _read_bytes(self, size: int, *, keep: bool) -> Generator[DecodedRecords, None, BytesLike]:
        """Copy the next bytes of the record if `keep`; otherwise skip them and return b""."""
        self.remaining -= size
        if self.remaining < 0:
            raise DamageError
        # It grows only with the bytes that arrive, and gives its memory away without a copy.
        out = io.BytesIO()
        while size:
            if not len(self.payload.data):
                yield self.empty_chunk  # so that the caller can check its deadline
                if not self.payload.grow():
                    raise self._damaged(f"it ends {size + self.remaining} bytes too early")
            part = self.payload.data[:size]
            if keep:
                out.write(part)
            size -= len(part)
            self.payload.drop(len(part))
        return out.getvalue()

    def _damaged(self, reason: str) -> CorruptRecordError:
        """Return the error for a record that is damaged; `reason` says how."""
        return self._error(CorruptRecordError, f"is damaged: {reason}")

    def _too_large(self, reason: str) -> CorruptRecordError:
        """Return the error for a record that would take too much memory; `reason` says how much."""
        return self._error(
            BatchTooLargeError, f"is too large: {reason}, {self.max_bytes} bytes are allowed"
        )

    def _error(self, error_type: type[CorruptRecordError], message: str) -> CorruptRecordError:
        """Return an error of this type about the record: `message` follows the record's number."""
        progress, batch = self.progress, self.batch
        return error_type(
            f"record {progress.records + 1} of {batch.record_count} of a batch {message}",
            position=progress.payload_bytes,
            # The offset after the last good record: the record's own may be unreadable.
            offset=batch.base_offset + progress.last_delta + 1,
        )


def _wrap_int64(value: int) -> int:
    """Wrap around 64 bits, as Java's sums do."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _single_value(value: bytes | None) -> pa.Array:
    """Make a column of one row that shares the memory of `value`."""
    if value is None:
        return pa.nulls(1, pa.binary())
    ends = pa.py_buffer(np.array([0, len(value)], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(value)])
