"""Batches of a few MiB -> Arrow columns; see `decode`, which puts such chunks together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.errors import BatchTooLargeError, CorruptRecordError
from sparkkafka.protocol.columns import record_starts, uniform_batches
from sparkkafka.protocol.columns.damage import Before, check_batch
from sparkkafka.protocol.columns.fields import (
    DamageError,
    Fields,
    HeaderPlaces,
    Headers,
    gather,
    read_fields,
    read_headers,
    validity,
)
from sparkkafka.protocol.columns.record_starts import Layout
from sparkkafka.protocol.records.arrow import from_numpy
from sparkkafka.protocol.records.batches import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME_FLAG,
    NO_TIMESTAMP_TYPE,
    RecordBatch,
)
from sparkkafka.protocol.records.varints import BadVarintError, Bytes, Ints

KEY, VALUE, HEADERS, TIMESTAMP = "key", "value", "headers", "timestamp"
ALL_COLUMNS: frozenset[str] = frozenset({KEY, VALUE, HEADERS, TIMESTAMP})

HEADERS_TYPE = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
"""Arrow type of the headers column; the names are those that Spark's own conversion uses."""

CHUNK_RECORDS = 16384
"""Rows decoded together: few enough to stay in the L2 cache, enough to outweigh numpy's calls."""

# What a header takes once it is decoded, be it empty (places, offsets, a tuple of `poll`), what
# each of its two texts takes as an object besides, and how often its bytes are there: measured, as
# two thirds of the peak, because half as much again is allowed for all.
_HEADER_COST_BYTES = 72
_HEADER_TEXT_COST_BYTES = 48
_HEADER_COPIES = 4

MOST_HEADERS = 1 << 16
"""Of rows decoded together, if they are more than one."""


class Selection(NamedTuple):
    """Which records of a partition a reader wants, and which of their columns.

    Offsets are start_offset <= offset < end_offset; `columns` are of ALL_COLUMNS (offsets always
    come); `times_ms` (first, last, both included) leaves out records of other times.
    """

    start_offset: int = 0
    end_offset: int = 2**63 - 1
    columns: frozenset[str] = ALL_COLUMNS
    times_ms: tuple[int, int] | None = None


class LargeFields(NamedTuple):
    """Key and value of one record, in the memory that its columns have as well."""

    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """Columns of consecutive records. A column that was not wanted is None.

    `offsets` ascend, with gaps. `timestamps_ms` are milliseconds since 1970, -1 for none.
    `timestamp_types` are Java's ids (-1 none, 0 CreateTime, 1 LogAppendTime). `keys` and `values`
    are Arrow binary arrays, null where Kafka's length is -1. `headers` is of HEADERS_TYPE, null for
    a record without headers. `large`: of a single large record, the memory of key and value.
    """

    offsets: Ints
    timestamps_ms: Ints | None
    timestamp_types: NDArray[np.int32]
    keys: pa.Array | None
    values: pa.Array | None
    headers: pa.Array | None
    large: LargeFields | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def slice(self, start: int, stop: int) -> DecodedRecords:
        """Rows start..stop, sharing the memory."""
        start, stop, _ = slice(start, stop).indices(len(self))
        count = max(0, stop - start)
        keys, values, headers = (
            None if column is None else column.slice(start, count)
            for column in (self.keys, self.values, self.headers)
        )
        return DecodedRecords(
            self.offsets[start:stop],
            None if self.timestamps_ms is None else self.timestamps_ms[start:stop],
            self.timestamp_types[start:stop],
            keys,
            values,
            headers,
            self.large if count else None,
        )

    @property
    def size_bytes(self) -> int:
        """Of keys, values and headers; with what headers take as Python's objects."""
        columns = [column for column in (self.keys, self.values) if column is not None]
        size = sum(int(column.nbytes) for column in columns)
        if self.headers is not None:
            size += headers_cost_bytes(len(self.headers.flatten()), int(self.headers.nbytes))
        return size


def no_records(columns: frozenset[str]) -> DecodedRecords:
    return DecodedRecords(
        np.empty(0, np.int64),
        np.empty(0, np.int64) if TIMESTAMP in columns else None,
        np.empty(0, np.int32),
        pa.nulls(0, pa.binary()) if KEY in columns else None,
        pa.nulls(0, pa.binary()) if VALUE in columns else None,
        pa.nulls(0, HEADERS_TYPE) if HEADERS in columns else None,
    )


class Chunk:
    """Batches that are decoded together.

    Of a batch that is decoded in parts: the records whose `layout` is given, which are sound in
    that respect, and stand behind those `before`.
    """

    def __init__(
        self,
        batches: list[RecordBatch],
        payloads: list[memoryview],
        max_payload_bytes: int,
        *,
        layout: Layout | None = None,
        before: Before | None = None,
    ) -> None:
        self.batches = batches
        self._max_bytes = max_payload_bytes
        self._layout = layout
        self._before = before
        self.last_offset = -1 if before is None else batches[0].base_offset + before.last_delta
        """Of the last record so far."""
        sizes = np.array([len(view) for view in payloads], np.int64)
        self.data, self.begins = _one_array(payloads, sizes)
        self.ends = self.begins + sizes
        # All values of one field side by side.
        fields = RecordBatch._make(zip(*batches, strict=True))
        self.counts: Ints = np.array(
            fields.record_count if layout is None else [len(layout.starts)], np.int64
        )
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

    def decode(self, wanted: Selection) -> Iterator[DecodedRecords]:
        try:
            low = 0
            for fields in self._fields():
                rows = len(fields.offset_deltas)
                yield self._columns(low, fields, wanted)
                low += rows
        except (DamageError, BadVarintError):
            self._raise_damage()

    def _fields(self) -> Iterator[Fields]:
        """Of all rows in order, at most CHUNK_RECORDS at a time."""
        if self._layout is not None:
            yield from self._read_fields(self._layout)
            return
        uniform = uniform_batches.find(
            self.data, self.begins, self.ends, self.counts, most_rows=CHUNK_RECORDS
        )
        done = 0
        if uniform is not None:
            for first, last, is_uniform in uniform.ranges():
                fields = uniform.fields(first, last) if is_uniform else None
                if fields is not None:
                    yield fields
                elif is_uniform:
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
        yield from self._read_fields(layout)

    def _read_fields(self, layout: Layout) -> Iterator[Fields]:
        low = 0
        while low < len(layout.starts):
            rows = slice(low, low + CHUNK_RECORDS)
            fields = read_fields(self.data, layout.bodies[rows], layout.ends[rows])
            if fields.headers is not None:
                few = _few_headers(fields.headers.counts)
                if few < len(fields.headers.counts):
                    rows = slice(low, low + few)
                    fields = read_fields(self.data, layout.bodies[rows], layout.ends[rows])
            yield fields
            low += len(fields.offset_deltas)

    def _columns(self, low: int, fields: Fields, wanted: Selection) -> DecodedRecords:
        start_offset, end_offset, columns, times_ms = wanted
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
        if keep is not None and not keep.any():
            return no_records(columns)

        headers: pa.Array | None = None
        if HEADERS in columns:
            # Before the cut below: list offsets and checks are simplest on all rows.
            headers = (
                pa.nulls(count, HEADERS_TYPE)
                if fields.headers is None
                else self._headers(fields.headers, offsets)
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
        """Offsets ascend inside a batch. (Those of batches are `split_batches`' to look at.)"""
        disorder = offsets[1:] <= offsets[:-1]
        if disorder.any():
            batch = self._batch_of_rows(low, len(offsets))
            if batch is None or (disorder & (batch[1:] == batch[:-1])).any():
                raise DamageError
        if int(offsets[0]) <= self.last_offset:
            batch = self._batch_of_rows(low - 1, 2)
            if batch is None or batch[0] == batch[1]:
                raise DamageError
        self.last_offset = int(offsets[-1])

    def _batch_of_rows(self, low: int, count: int) -> Ints | None:
        """Index of each row's batch, or None when there is only one batch."""
        if len(self.batches) == 1:
            return None
        if self.batch_of_row is None:
            self.batch_of_row = np.repeat(np.arange(len(self.batches)), self.counts)
        return self.batch_of_row[low : low + count]

    def _headers(self, headers: Headers, offsets: Ints) -> pa.Array:
        count = int(headers.counts[0])
        if count > MOST_HEADERS:  # of a single row: see `_few_headers`
            size = int(headers.ends[0] - headers.at[0])
            if headers_cost_bytes(count, size) > self._max_bytes:
                raise BatchTooLargeError(
                    f"a record is too large: it has {count} headers in {size} bytes, "
                    f"{self._max_bytes} bytes are allowed",
                    offset=int(offsets[0]),
                )
        places = read_headers(self.data, headers.at, headers.ends, headers.counts)
        return header_lists(headers.counts, *header_fields(self.buffer, places))

    def _raise_damage(self) -> None:
        """Finds the first damaged record, one by one, and raises CorruptRecordError."""
        for batch, begin, end in zip(self.batches, self.begins, self.ends, strict=True):
            raw = self.data[begin:end].tobytes()
            check_batch(batch, raw, self._before, is_end=self._layout is None)
        # Not reached as long as both paths agree, which the tests see to.
        raise CorruptRecordError("damaged records", offset=self.batches[0].base_offset)


def headers_cost_bytes(count: int, size_bytes: int) -> int:
    """What so many headers take at most, decoded from so many bytes."""
    # A text of one letter is Python's own, and no new object.
    texts = min(2 * count, max(0, size_bytes - 2 * count) // 2)
    return (
        count * _HEADER_COST_BYTES + texts * _HEADER_TEXT_COST_BYTES + size_bytes * _HEADER_COPIES
    )


def _few_headers(counts: Ints) -> int:
    """How many of the rows to decode together."""
    if int(counts.sum()) <= MOST_HEADERS:
        return len(counts)
    return max(1, int(np.searchsorted(np.cumsum(counts), MOST_HEADERS, "right")))


def header_fields(data: pa.Buffer, places: HeaderPlaces) -> tuple[pa.Array, pa.Array]:
    """Names and contents of headers. Raises DamageError for a name that is not UTF-8."""
    names = gather(data, places.key_at, places.key_lengths)
    try:
        names = names.cast(pa.string())
    except pa.ArrowInvalid:
        raise DamageError from None
    return names, gather(data, places.value_at, places.value_lengths)


def header_lists(counts: Ints, names: pa.Array, contents: pa.Array) -> pa.Array:
    """HEADERS_TYPE: a list of so many headers for each row."""
    entries = pa.StructArray.from_arrays([names, contents], fields=list(HEADERS_TYPE.value_type))
    list_offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=list_offsets[1:])
    return pa.Array.from_buffers(
        HEADERS_TYPE,
        len(counts),
        [validity(counts > 0), pa.py_buffer(list_offsets)],
        children=[entries],
    )


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
