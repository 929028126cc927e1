"""Records as columns: what a reader selects, what it gets, and how the fields are read.

Each field is read for all records in one step (`varint_columns.read`), which gives the positions of
the next field. A header begins where the one before it ends, so the j-th headers of all records are
read in one step as long as enough records have so many; the others are followed record by record to
find where they begin, and then read as columns too.

The rules are those of Kafka's `DefaultRecord`, but only the length -1 is null, where Java accepts
any negative key or value length.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.protocol.columns.damage import MIN_HEADER_BYTES
from sparkkafka.protocol.records.arrow import from_numpy
from sparkkafka.protocol.records.varint_columns import Bytes, Ints, read
from sparkkafka.protocol.wire.varints import VARLONG_BITS, read_varint

KEY, VALUE, HEADERS, TIMESTAMP = "key", "value", "headers", "timestamp"
ALL_COLUMNS: frozenset[str] = frozenset({KEY, VALUE, HEADERS, TIMESTAMP})

HEADERS_TYPE = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
"""Arrow type of the headers column; the names are those that Spark's own conversion uses."""

CHUNK_RECORDS = 16384
"""Rows decoded together: few enough to stay in the L2 cache, enough to outweigh numpy's calls."""

# Memory of a decoded header (positions, offsets, a tuple of `poll`), of its key and value as Python
# objects, and the number of copies of its bytes. Measured as two thirds of the peak, since callers
# allow for half as much again.
_HEADER_COST_BYTES = 72
_HEADER_TEXT_COST_BYTES = 48
_HEADER_COPIES = 4

MAX_HEADERS = 1 << 16
"""Limit of the headers of rows that are decoded together; a single row may have more."""

_MIN_STEP_ROWS = 16  # below, following the headers is faster than numpy steps
_MAX_STEPS = 32  # of all rows; few records have more headers
_MAX_COPIED_BYTES = 4 << 20  # of headers, to follow them as bytes instead of a view


# --- what a reader selects and gets -------------------------------------------------------------


class Selection(NamedTuple):
    """The records of a partition and the columns that a reader selects.

    Offsets are start_offset <= offset < end_offset; `columns` are of ALL_COLUMNS (offsets are
    always decoded); `times_ms` (first, last, both included) leaves out records of other times.
    """

    start_offset: int = 0
    end_offset: int = 2**63 - 1
    columns: frozenset[str] = ALL_COLUMNS
    times_ms: tuple[int, int] | None = None


class LargeFields(NamedTuple):
    """Key and value of one record, sharing the memory of its columns."""

    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """Columns of consecutive records; None for a column that was not selected.

    `offsets` ascend, with gaps. `timestamps_ms` are milliseconds since 1970, -1 for none.
    `timestamp_types` are Java's ids (-1 none, 0 CreateTime, 1 LogAppendTime). `keys` and `values`
    are Arrow binary arrays, null where Kafka's length is -1. `headers` is of HEADERS_TYPE, null for
    a record without headers. `large` has key and value if these are columns of one large record.
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
        """Return the rows from `start` to `stop` (exclusive), sharing the memory."""
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
    def column_bytes(self) -> int:
        """Bytes of the keys, values, header keys and header values, without Arrow's offsets."""
        columns = [column for column in (self.keys, self.values) if column is not None]
        if self.headers is not None:
            columns += self.headers.flatten().flatten()
        return sum(map(content_bytes, columns))

    @property
    def size_bytes(self) -> int:
        """Bytes of memory: of keys and values as Arrow arrays, of headers as Python objects."""
        columns = [column for column in (self.keys, self.values) if column is not None]
        size = sum(int(column.nbytes) for column in columns)
        if self.headers is not None:
            size += headers_cost_bytes(len(self.headers.flatten()), int(self.headers.nbytes))
        return size


def no_records(columns: frozenset[str]) -> DecodedRecords:
    """Make empty columns of a selection."""
    return DecodedRecords(
        np.empty(0, np.int64),
        np.empty(0, np.int64) if TIMESTAMP in columns else None,
        np.empty(0, np.int32),
        pa.nulls(0, pa.binary()) if KEY in columns else None,
        pa.nulls(0, pa.binary()) if VALUE in columns else None,
        pa.nulls(0, HEADERS_TYPE) if HEADERS in columns else None,
    )


# --- positions of keys and values -------------------------------------------------------------


class Spans(NamedTuple):
    """Positions and lengths (-1 is null) of keys or values, which ascend and do not overlap."""

    at: Ints
    lengths: Ints

    def take(self, data: pa.Buffer, keep: NDArray[np.bool_] | None = None) -> pa.Array:
        """Copy the rows to `keep` into an Arrow binary array."""
        if keep is None:
            return gather(data, self.at, self.lengths)
        return gather(data, self.at[keep], self.lengths[keep])


class GridPart(NamedTuple):
    """The position of a field in `records` records of each of `batches` batches. The first is
    `begin`; from record to record it moves by `record_step` bytes, from batch to batch by
    `batch_step`."""

    begin: int
    batches: int
    batch_step: int
    records: int
    record_step: int

    def shifted(self, by: int) -> GridPart:
        return self._replace(begin=self.begin + by)

    def view(self, data: Bytes, kind: type[Any], *, bytes_each: int = 0) -> NDArray[Any]:
        """Return a view of two dimensions, or three with `bytes_each`. Raises ValueError if it
        leaves `data`."""
        shape: tuple[int, ...] = (self.batches, self.records)
        strides: tuple[int, ...] = (self.batch_step, self.record_step)
        if bytes_each:
            shape, strides = (*shape, bytes_each), (*strides, 1)
        return np.ndarray(shape, kind, data.data, self.begin, strides)

    def positions(self) -> Ints:
        """Return all positions, in one dimension."""
        in_batch = np.arange(self.records) * self.record_step
        batches = np.arange(self.batches) * self.batch_step + self.begin
        return (batches[:, None] + in_batch).ravel()


class GridRows(NamedTuple):
    """Which rows of a column `part` has: its batches of `per_batch` rows begin at `row`, and it has
    the rows from `first` on of each batch."""

    row: int
    per_batch: int
    first: int
    part: GridPart

    def of(self, column: NDArray[Any]) -> NDArray[Any]:
        """Return these rows of a column, in as many dimensions as `GridPart.view`."""
        part = self.part
        some = column[self.row : self.row + part.batches * self.per_batch]
        whole = some.reshape(part.batches, self.per_batch, *column.shape[1:])
        return whole[:, self.first : self.first + part.records]


class Grid(NamedTuple):
    """The positions of `rows` keys or values that all have one length (-1: all are null)."""

    rows: int
    length: int
    parts: list[GridRows]

    def take(self, data: pa.Buffer, keep: NDArray[np.bool_] | None = None) -> pa.Array:
        """As `Spans.take`, twice as fast."""
        if keep is not None:
            return self._spans().take(data, keep)
        if self.length < 0:
            return pa.nulls(self.rows, pa.binary())
        content = pa.allocate_buffer(self.rows * self.length)
        if self.length:
            source = np.frombuffer(data, np.uint8)
            target = np.frombuffer(content, np.uint8).reshape(self.rows, self.length)
            for rows in self.parts:
                rows.of(target)[...] = rows.part.view(source, np.uint8, bytes_each=self.length)
        ends = np.arange(self.rows + 1, dtype=np.int32)
        ends *= self.length
        return pa.Array.from_buffers(pa.binary(), self.rows, [None, pa.py_buffer(ends), content])

    def _spans(self) -> Spans:
        at = np.empty(self.rows, np.int64)
        for rows in self.parts:
            target = rows.of(at)
            target[...] = rows.part.positions().reshape(target.shape)
        return Spans(at, np.full(self.rows, self.length, np.int64))


_EVEN: list[pa.Array] = [from_numpy(np.arange(0, 2 << 14, 2, dtype=np.int32))]
"""One array of 0, 2, 4, …, which `gather` replaces by a longer one when it needs that."""


def gather(data: pa.Buffer, starts: Ints, lengths: Ints) -> pa.Array:
    """Copy byte strings of `data`, which ascend and do not overlap, into an Arrow binary array. A
    length of -1 is null.

    Arrow does the copying: the pairs (start, end) are the offsets of an array with twice as many
    entries, and every other entry is taken.
    """
    count = len(starts)
    smallest = int(lengths.min()) if count else 0
    if count == 0 or (smallest < 0 and int(lengths.max()) < 0):
        return pa.nulls(count, pa.binary())
    pairs = np.empty(2 * count, np.int32)
    pairs[0::2] = starts
    pairs[1::2] = starts + (lengths if smallest >= 0 else np.maximum(lengths, 0))
    both = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(pairs), data])
    while len(_EVEN[0]) < count:
        _EVEN[0] = from_numpy(np.arange(0, 4 * len(_EVEN[0]), 2, dtype=np.int32))
    taken = both.take(_EVEN[0].slice(0, count))
    if smallest >= 0:
        return taken
    _, offsets, content = taken.buffers()
    return pa.Array.from_buffers(pa.binary(), count, [validity(lengths >= 0), offsets, content])


def validity(valid: NDArray[np.bool_]) -> pa.Buffer:
    """Pack flags into Arrow's bitmap of the rows that are not null."""
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


# --- fields -----------------------------------------------------------------------------------


class DamageError(Exception):
    """Some record is damaged; `damage.check_batch` finds out which."""


class Headers(NamedTuple):
    """The number of headers of each record, where they begin, and where the record ends."""

    counts: Ints
    at: Ints
    ends: Ints


class Fields(NamedTuple):
    """Fields of consecutive records; keys, values and headers as positions."""

    timestamp_deltas: Ints
    offset_deltas: Ints
    keys: Spans | Grid
    values: Spans | Grid
    headers: Headers | None
    """None if no record has any."""


def read_fields(data: Bytes, bodies: Ints, ends: Ints) -> Fields:
    """Read the fields of records, at least one, from `bodies` (the attributes byte) to `ends`.

    All positions lie inside the records; headers are not checked. Raises DamageError,
    BadVarintError.
    """
    # The first byte of a body, its attributes, is unused by Kafka and ignored by Java.
    timestamp_deltas, at = read(data, bodies + 1, VARLONG_BITS)
    offset_deltas, at = read(data, at)
    key_lengths, key_at = read(data, at)
    value_lengths, value_at = read(data, after_nullable(key_at, key_lengths))
    header_counts, header_at = read(data, after_nullable(value_at, value_lengths))
    headers: Headers | None = None
    if header_counts.any():
        headers = Headers(header_counts, header_at, ends)
        if ((header_counts < 0) | (header_at + header_counts * MIN_HEADER_BYTES > ends)).any():
            # Also keeps a huge count from making a huge array.
            raise DamageError
        if ((header_counts == 0) & (header_at != ends)).any():
            raise DamageError
    elif not np.array_equal(header_at, ends):
        raise DamageError
    return Fields(
        timestamp_deltas,
        offset_deltas,
        Spans(key_at, key_lengths),
        Spans(value_at, value_lengths),
        headers,
    )


def after_nullable(at: Ints, lengths: Ints) -> Ints:
    """Return the positions after a nullable field (-1 is null). Raises DamageError."""
    smallest = int(lengths.min())
    if smallest < -1:
        raise DamageError
    return at + lengths if smallest >= 0 else at + np.maximum(lengths, 0)


# --- headers ----------------------------------------------------------------------------------


class HeaderPositions(NamedTuple):
    """Positions of all headers in order. A value length of -1 is null."""

    key_at: Ints
    key_lengths: Ints
    value_at: Ints
    value_lengths: Ints


def read_headers(data: Bytes, at: Ints, ends: Ints, counts: Ints) -> HeaderPositions:
    """Find the headers of records: `counts` in each, which take all bytes from `at` to `ends`.

    The caller has checked `counts` against these bytes. Raises DamageError, BadVarintError.
    """
    rows = np.flatnonzero(counts)
    at, ends, left = at[rows], ends[rows], counts[rows]
    slot = np.cumsum(left) - left
    columns = HeaderPositions(*(np.empty(int(left.sum()), np.int64) for _ in range(4)))
    for _ in range(_MAX_STEPS):
        if len(left) < _MIN_STEP_ROWS:
            break
        found, at = _read_at(data, at)
        for column, values in zip(columns, found, strict=True):
            column[slot] = values
        slot += 1
        left -= 1
        if not left.all():
            if ((left == 0) & (at != ends)).any():
                raise DamageError
            more = left > 0
            at, ends, left, slot = at[more], ends[more], left[more], slot[more]
    for begin, end, count, first in zip(
        at.tolist(), ends.tolist(), left.tolist(), slot.tolist(), strict=True
    ):
        found, after = follow_headers(data, begin, end, count)
        if after != end:
            raise DamageError
        for column, values in zip(columns, found, strict=True):
            column[first : first + count] = values
    return columns


def follow_headers(data: Bytes, begin: int, end: int, count: int) -> tuple[HeaderPositions, int]:
    """Find `count` headers of one record from `begin` on: (headers, the position after them, which
    is `end` or before it). Raises DamageError, BadVarintError."""
    starts = _find_header_starts(data, begin, end, count)
    found, after = _read_at(data, starts)
    if int(after[-1]) > end or not np.array_equal(after[:-1], starts[1:]):
        raise DamageError
    return found, int(after[-1])


def _read_at(data: Bytes, at: Ints) -> tuple[HeaderPositions, Ints]:
    """Read one header at each position: (headers, positions after them)."""
    key_lengths, key_at = read(data, at)
    if int(key_lengths.min()) < 0:
        raise DamageError
    value_lengths, value_at = read(data, key_at + key_lengths)
    return HeaderPositions(key_at, key_lengths, value_at, value_lengths), after_nullable(
        value_at, value_lengths
    )


def _find_header_starts(data: Bytes, begin: int, end: int, count: int) -> Ints:
    """Find where each of `count` headers begins. The result is right only if the headers are valid,
    which the caller checks. Raises DamageError if they leave [begin, end)."""
    # Indexing bytes is faster than indexing a view, but takes a copy.
    raw: memoryview | bytes = data[begin:end].data
    if end - begin <= _MAX_COPIED_BYTES:
        raw = bytes(raw)
    starts = array("q", (0,)) * count
    at = 0
    try:
        for index in range(count):
            starts[index] = at
            byte = raw[at]
            at = at + (byte >> 1) + 1 if byte < 0x80 else _after_long_length(raw, at)
            byte = raw[at]
            # Null is -1, encoded as 1, which takes no more bytes either.
            at = at + (byte >> 1) + 1 if byte < 0x80 else _after_long_length(raw, at)
    except IndexError:
        raise DamageError from None
    return np.frombuffer(starts, np.int64) + begin


def _after_long_length(raw: memoryview | bytes, at: int) -> int:
    """Return the position after a field whose length takes more than one byte."""
    # The length has at most five bytes. One of more than 32 bits leaves the record, which the
    # caller notices.
    value, at = read_varint(raw, at, len(raw), 35)
    return at + (value >> 1)


# --- headers for Arrow --------------------------------------------------------------------------


def content_bytes(column: pa.Array) -> int:
    """Return the bytes of all values in an Arrow array of binary or string."""
    if not len(column):
        return 0
    # Not from nbytes, which counts the offsets of a slice in another way.
    first, last = column.offset, column.offset + len(column)
    offsets = np.frombuffer(column.buffers()[1], np.int32, count=last + 1)
    return int(offsets[last]) - int(offsets[first])


def headers_cost_bytes(count: int, size_bytes: int) -> int:
    """Return an upper bound of the memory of `count` headers that are decoded from `size_bytes`."""
    # Python shares strings of one letter.
    texts = min(2 * count, max(0, size_bytes - 2 * count) // 2)
    return (
        count * _HEADER_COST_BYTES + texts * _HEADER_TEXT_COST_BYTES + size_bytes * _HEADER_COPIES
    )


def header_fields(data: pa.Buffer, positions: HeaderPositions) -> tuple[pa.Array, pa.Array]:
    """Copy the keys and values of headers. Raises DamageError for a key that is not UTF-8."""
    keys = gather(data, positions.key_at, positions.key_lengths)
    try:
        keys = keys.cast(pa.string())
    except pa.ArrowInvalid:
        raise DamageError from None
    return keys, gather(data, positions.value_at, positions.value_lengths)


def header_lists(counts: Ints, names: pa.Array, contents: pa.Array) -> pa.Array:
    """Make the HEADERS_TYPE array with `counts` headers in each row."""
    entries = pa.StructArray.from_arrays([names, contents], fields=list(HEADERS_TYPE.value_type))
    list_offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=list_offsets[1:])
    return pa.Array.from_buffers(
        HEADERS_TYPE,
        len(counts),
        [validity(counts > 0), pa.py_buffer(list_offsets)],
        children=[entries],
    )
