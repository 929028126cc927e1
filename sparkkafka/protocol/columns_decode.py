"""Record batches -> Arrow columns, without a Python object per record.

Steps, for some ten thousand records at a time so that columns stay in the processor's cache:

1. Payloads of many batches become one byte array; batches that lie in one buffer are not copied.
2. `record_starts.find` gives the first byte of each record.
3. Each field is read for all records at once (`record_fields`), which tells where the next
   field begins.
4. Keys, values and headers are gathered by Arrow from (start, end) pairs over the byte array
   (`field_places`).

Where batches look like copies of each other, `alike_batches` takes the place of steps 2 and 3.

Safety rests on one check (for copies: that every bit which says where something lies is that of a
batch which passed it). Positions only move forward, reads outside the array do no harm, and the
position after the last field of each record must be exactly the end of that record: then no
field reached beyond it. When a check fails, `_raise_damage` reads the records one by one, only to
name the damaged one.

Rules, all from Kafka's `DefaultRecord` and `DefaultRecordBatch`: length -1 is null, 0 is empty;
timestamps are base + delta (wrapping in 64 bits), or the batch's max timestamp for all with
LogAppendTime; offsets are base + delta with gaps after compaction; a record's attributes byte is
ignored. Stricter than Java, which takes any negative key or value length for null: only -1 is; and
an offset delta must lie in 0..lastOffsetDelta, or the reader could not tell what it has read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.errors import CorruptRecordError, DecodeError
from sparkkafka.protocol import alike_batches, record_starts
from sparkkafka.protocol.arrow import from_numpy
from sparkkafka.protocol.field_places import gather, validity
from sparkkafka.protocol.record_damage import check_batch, read_one
from sparkkafka.protocol.record_fields import DamageError, Fields, Headers, read_fields, skip
from sparkkafka.protocol.records import (
    CODEC_MASK,
    CREATE_TIME,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME_FLAG,
    MIN_RECORD_BYTES,
    NO_TIMESTAMP_TYPE,
    RecordBatch,
)
from sparkkafka.protocol.varints import BadVarintError, Bytes, Ints, read

KEY, VALUE, HEADERS, TIMESTAMP = "key", "value", "headers", "timestamp"
ALL_COLUMNS: frozenset[str] = frozenset({KEY, VALUE, HEADERS, TIMESTAMP})

HEADERS_TYPE = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
"""Arrow type of the headers column; the names are those that Spark's own conversion uses."""

CHUNK_BYTES = 4 << 20
"""Payload whose record starts are found together: many batches make `lockstep` cheap."""

CHUNK_RECORDS = 16384
"""Rows decoded together: few enough to stay in the L2 cache, enough to outweigh numpy's calls."""

_MAX_CHUNK_BYTES = (1 << 31) - 1  # Arrow's binary type counts in int32
_FEW_ROWS = 16  # below, a plain loop over headers is faster than numpy steps


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """Columns of consecutive records. A column that was not wanted is None.

    `offsets` ascend, with gaps. `timestamps_ms` are milliseconds since 1970, -1 for none.
    `timestamp_types` are Java's ids (-1 none, 0 CreateTime, 1 LogAppendTime). `keys` and `values`
    are Arrow binary arrays, null where Kafka's length is -1. `headers` is of HEADERS_TYPE, null for
    a record without headers.
    """

    offsets: Ints
    timestamps_ms: Ints | None
    timestamp_types: NDArray[np.int32]
    keys: pa.Array | None
    values: pa.Array | None
    headers: pa.Array | None

    def __len__(self) -> int:
        return len(self.offsets)

    def slice(self, start: int, stop: int) -> DecodedRecords:
        """Rows start..stop, sharing the memory."""
        start, stop, _ = slice(start, stop).indices(len(self))
        count = max(0, stop - start)
        return DecodedRecords(
            self.offsets[start:stop],
            None if self.timestamps_ms is None else self.timestamps_ms[start:stop],
            self.timestamp_types[start:stop],
            *(
                None if column is None else column.slice(start, count)
                for column in (self.keys, self.values, self.headers)
            ),
        )


def decode_batches(
    batches: Sequence[RecordBatch],
    *,
    start_offset: int,
    end_offset: int,
    wanted: frozenset[str] = ALL_COLUMNS,
    max_payload_bytes: int = _MAX_CHUNK_BYTES,
) -> DecodedRecords:
    """All records of `decode_chunks` in one piece; see there.

    Raises DecodeError, too, if keys or values sum up to 2 GiB, which one Arrow array cannot hold.
    """
    pieces = list(
        decode_chunks(
            batches,
            start_offset=start_offset,
            end_offset=end_offset,
            wanted=wanted,
            max_payload_bytes=max_payload_bytes,
        )
    )
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return _empty(wanted)
    return DecodedRecords(
        np.concatenate([piece.offsets for piece in pieces]),
        np.concatenate([piece.timestamps_ms for piece in pieces if piece.timestamps_ms is not None])
        if TIMESTAMP in wanted
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


def _empty(wanted: frozenset[str]) -> DecodedRecords:
    return DecodedRecords(
        np.empty(0, np.int64),
        np.empty(0, np.int64) if TIMESTAMP in wanted else None,
        np.empty(0, np.int32),
        pa.nulls(0, pa.binary()) if KEY in wanted else None,
        pa.nulls(0, pa.binary()) if VALUE in wanted else None,
        pa.nulls(0, HEADERS_TYPE) if HEADERS in wanted else None,
    )


def decode_chunks(
    batches: Sequence[RecordBatch],
    *,
    start_offset: int,
    end_offset: int,
    wanted: frozenset[str] = ALL_COLUMNS,
    times_ms: tuple[int, int] | None = None,
    max_payload_bytes: int = _MAX_CHUNK_BYTES,
) -> Iterator[DecodedRecords]:
    """Decodes the batches of one fetch of one partition, some ten thousand records at a time.

    Keeps records with start_offset <= offset < end_offset; batches outside are not even
    decompressed. With `times_ms` (first, last, both included) only records of these times: a batch
    is passed over if its header says that it has none, else only their keys and values are copied.
    `wanted` names columns (KEY, VALUE, HEADERS, TIMESTAMP); offsets always come.
    Control and aborted batches are the caller's to leave out. `max_payload_bytes` bounds what each
    batch may decompress to, at most 2 GiB - 1. Empty chunks are not yielded. The columns
    never share memory with the batches, so a receive buffer may be used again.

    Raises CorruptRecordError for damage, perhaps after columns of records before it: its `offset`
    is the damaged record's, or the smallest that it can have if its bytes do not tell; `position`
    counts in its batch's uncompressed payload.
    Headers that are not wanted are not looked at. Errors of decompression pass through.
    """
    unknown = wanted - ALL_COLUMNS - {"offset"}
    if unknown:
        raise ValueError(f"unknown columns {sorted(unknown)}")
    limit = min(max_payload_bytes, _MAX_CHUNK_BYTES)
    group: list[RecordBatch] = []
    payloads: list[memoryview] = []
    size = 0
    for batch in batches:
        # Small batches come by the thousand: plain fields are read here, not properties.
        base_offset, count = batch.base_offset, batch.record_count
        last_offset = base_offset + batch.last_offset_delta
        if base_offset < 0 or last_offset >= 1 << 63:
            raise CorruptRecordError("offsets of a batch leave 64 bits", offset=base_offset)
        if last_offset < start_offset or base_offset >= end_offset:
            continue
        if times_ms is not None and _out_of_time(batch, *times_ms):
            continue
        payload = batch.data
        if batch.attributes & CODEC_MASK or len(payload) > limit:
            payload = memoryview(batch.payload(limit)).cast("B")
        length = len(payload)
        if count < 0 or count * MIN_RECORD_BYTES > length or (count == 0 and length):
            # Before any array is made for so many records.
            raise CorruptRecordError(
                f"{count} records cannot lie in {length} bytes", 0, offset=base_offset
            )
        if count == 0:
            continue
        # Also keeps a chunk of several batches within Arrow's int32, whatever follows.
        if group and size + length > CHUNK_BYTES:
            yield from _Chunk(group, payloads).decode(start_offset, end_offset, wanted, times_ms)
            group, payloads, size = [], [], 0
        group.append(batch)
        payloads.append(payload)
        size += length
    if group:
        yield from _Chunk(group, payloads).decode(start_offset, end_offset, wanted, times_ms)


def _out_of_time(batch: RecordBatch, first_ms: int, last_ms: int) -> bool:
    """Whether the header alone tells. Of the earliest time it says something only if all records
    have the same: baseTimestamp is the first record's, and the next may be earlier."""
    latest_ms = batch.max_timestamp
    return latest_ms < first_ms or (batch.is_log_append_time and latest_ms > last_ms)


class _Chunk:
    """Batches that are decoded together."""

    def __init__(self, batches: list[RecordBatch], payloads: list[memoryview]) -> None:
        self.batches = batches
        sizes = np.array([len(view) for view in payloads], np.int64)
        self.data, self.begins = _one_array(payloads, sizes)
        self.ends = self.begins + sizes
        # All values of one field side by side.
        fields = RecordBatch._make(zip(*batches, strict=True))
        self.counts: Ints = np.array(fields.record_count, np.int64)
        self.base_offsets: Ints = np.array(fields.base_offset, np.int64)
        self.last_offset_deltas: Ints = np.array(fields.last_offset_delta, np.int64)
        attributes: Ints = np.array(fields.attributes, np.int64)
        self.append_time = (attributes & LOG_APPEND_TIME_FLAG) != 0
        self.base_timestamps = np.where(
            self.append_time,
            np.array(fields.max_timestamp, np.int64),
            np.array(fields.base_timestamp, np.int64),
        )
        self.timestamp_types = np.where(self.append_time, LOG_APPEND_TIME, CREATE_TIME)
        self.timestamp_types[np.array(fields.magic) == 0] = NO_TIMESTAMP_TYPE
        self.timestamp_types = self.timestamp_types.astype(np.int32)
        self.buffer = pa.py_buffer(self.data)
        self.batch_of_row: Ints | None = None  # made when asked for

    def decode(
        self,
        start_offset: int,
        end_offset: int,
        wanted: frozenset[str],
        times_ms: tuple[int, int] | None,
    ) -> Iterator[DecodedRecords]:
        try:
            low = 0
            for fields in self._fields():
                rows = len(fields.offset_deltas)
                piece = self._columns(low, fields, start_offset, end_offset, wanted, times_ms)
                low += rows
                if len(piece):
                    yield piece
        except (DamageError, BadVarintError):
            self._raise_damage()

    def _fields(self) -> Iterator[Fields]:
        """Of all rows in order, at most CHUNK_RECORDS at a time."""
        alike = alike_batches.find(
            self.data, self.begins, self.ends, self.counts, most_rows=CHUNK_RECORDS
        )
        done = 0
        if alike is not None:
            for first, last, is_alike in alike.ranges():
                fields = alike.fields(first, last) if is_alike else None
                if fields is not None:
                    yield fields
                elif is_alike:
                    break  # not to compare in vain once more
                else:
                    yield from self._own_fields(first, last)
                done = last
        yield from self._own_fields(done, len(self.batches))

    def _own_fields(self, first: int, last: int) -> Iterator[Fields]:
        """The same of batches [first, last), each record read."""
        if first == last:
            return
        some = slice(first, last)
        layout = record_starts.find(
            self.data, self.begins[some], self.ends[some], self.counts[some]
        )
        if not layout.sound.all():
            raise DamageError
        for low in range(0, len(layout.starts), CHUNK_RECORDS):
            rows = slice(low, low + CHUNK_RECORDS)
            yield read_fields(self.data, layout.bodies[rows], layout.ends[rows])

    def _columns(
        self,
        low: int,
        fields: Fields,
        start_offset: int,
        end_offset: int,
        wanted: frozenset[str],
        times_ms: tuple[int, int] | None,
    ) -> DecodedRecords:
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
        timestamps: Ints | None = None
        if TIMESTAMP in wanted or times_ms is not None:
            timestamps = timestamp_deltas
            if self.append_time.any():
                timestamps *= ~_per_row(self.append_time, batch)
            timestamps += _per_row(self.base_timestamps, batch)
        timestamp_types: NDArray[np.int32] = np.broadcast_to(
            _per_row(self.timestamp_types, batch), offsets.shape
        )

        keep: NDArray[np.bool_] | None = None
        if int(offsets.min()) < start_offset or int(offsets.max()) >= end_offset:
            keep = (offsets >= start_offset) & (offsets < end_offset)
        if times_ms is not None and timestamps is not None:
            in_time = (timestamps >= times_ms[0]) & (timestamps <= times_ms[1])
            keep = in_time if keep is None else keep & in_time
            if not keep.any():
                return _empty(wanted)

        headers: pa.Array | None = None
        if HEADERS in wanted:
            # Before the cut below: list offsets and checks are simplest on all rows.
            headers = (
                pa.nulls(count, HEADERS_TYPE)
                if fields.headers is None
                else self._headers(fields.headers)
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
            timestamps if TIMESTAMP in wanted else None,
            timestamp_types,
            fields.keys.take(self.buffer, keep) if KEY in wanted else None,
            fields.values.take(self.buffer, keep) if VALUE in wanted else None,
            headers,
        )

    def _batch_of_rows(self, low: int, count: int) -> Ints | None:
        """Index of each row's batch, or None when there is only one batch."""
        if len(self.batches) == 1:
            return None
        if self.batch_of_row is None:
            self.batch_of_row = np.repeat(np.arange(len(self.batches)), self.counts)
        return self.batch_of_row[low : low + count]

    def _headers(self, headers: Headers) -> pa.Array:
        counts, at, ends = headers
        key_at, key_lengths, value_at, value_lengths = _read_headers(self.data, at, ends, counts)
        names = gather(self.buffer, key_at, key_lengths)
        try:
            names = names.cast(pa.string())
        except pa.ArrowInvalid:
            raise DamageError from None
        entries = pa.StructArray.from_arrays(
            [names, gather(self.buffer, value_at, value_lengths)],
            fields=list(HEADERS_TYPE.value_type),
        )
        list_offsets = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=list_offsets[1:])
        return pa.Array.from_buffers(
            HEADERS_TYPE,
            len(counts),
            [validity(counts > 0), pa.py_buffer(list_offsets)],
            children=[entries],
        )

    def _raise_damage(self) -> None:
        """Finds the first damaged record, one by one, and raises CorruptRecordError."""
        for batch, begin, end in zip(self.batches, self.begins, self.ends, strict=True):
            check_batch(batch, self.data[begin:end].tobytes())
        # Not reached as long as both paths agree, which the tests see to.
        raise CorruptRecordError("damaged records", offset=self.batches[0].base_offset)


def _one_array(payloads: list[memoryview], sizes: Ints) -> tuple[Bytes, Ints]:
    """All payloads in one byte array, and where each begins in it."""
    if len(payloads) == 1:
        return np.frombuffer(payloads[0], np.uint8), np.zeros(1, np.int64)
    whole: Any = payloads[0].obj
    if all(view.obj is whole for view in payloads):
        # Uncompressed batches of one fetch response: use it as it is, with the headers in between.
        addresses: Ints = np.array([pa.py_buffer(view).address for view in payloads], np.int64)
        base = np.frombuffer(whole, np.uint8)
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
    """A batch's value for each of its rows; of no dimension when all batches agree."""
    if batch is None or (values == values[0]).all():
        return np.asarray(values[0])
    return values.take(batch)


def _read_headers(data: Bytes, at: Ints, ends: Ints, counts: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Positions and lengths of all header keys and values, in the order of rows and headers.

    Reads the j-th header of all rows in one step. The caller has checked `counts` against the
    bytes that are there.
    """
    rows = np.flatnonzero(counts)
    at, ends, left = at[rows], ends[rows], counts[rows]
    slot = np.cumsum(left) - left
    columns = tuple(np.empty(int(left.sum()), np.int64) for _ in range(4))
    while len(left) >= _FEW_ROWS:
        key_lengths, key_at = read(data, at)
        if int(key_lengths.min()) < 0:
            raise DamageError
        value_lengths, value_at = read(data, key_at + key_lengths)
        at = skip(value_at, value_lengths)
        found = (key_at, key_lengths, value_at, value_lengths)
        for column, values in zip(columns, found, strict=True):
            column[slot] = values
        slot += 1
        left -= 1
        if not left.all():
            if ((left == 0) & (at != ends)).any():
                raise DamageError
            going_on = left > 0
            at, ends, left, slot = at[going_on], ends[going_on], left[going_on], slot[going_on]
    for begin, end, count, first in zip(
        at.tolist(), ends.tolist(), left.tolist(), slot.tolist(), strict=True
    ):
        position = begin
        # A copy of one record's headers: indexing bytes is faster, and cannot leave the record.
        raw = data[begin:end].tobytes()
        for index in range(first, first + count):
            try:
                key_length, key_start = read_one(raw, position - begin)
                if key_length < 0:
                    raise DamageError
                value_length, value_start = read_one(raw, key_start + key_length)
            except IndexError:
                raise DamageError from None
            if value_length < -1:
                raise DamageError
            position = begin + value_start + max(value_length, 0)
            row = (begin + key_start, key_length, begin + value_start, value_length)
            for column, value in zip(columns, row, strict=True):
                column[index] = value
        if position != end:
            raise DamageError
    return columns[0], columns[1], columns[2], columns[3]
