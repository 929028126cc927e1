"""Records as columns: what a reader selects, what it gets, and how the fields are read.

Each field is read for all records in one step (`varint_columns.read`), which gives the positions of
the next field. A header begins where the one before it ends, so the j-th headers of all records are
read in one step as long as enough records have that many; the others are followed record by record
to find where they begin, and then read as columns too.

`at`, `…_at`, `starts` and `ends` are arrays of positions in `data`, one for each record (or each
header). Beside them, `lengths` are the bytes of a field there, -1 for null.

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
from sparkkafka.protocol.records.arrow import blob_offsets, cast, from_numpy, odd_values, or_zero
from sparkkafka.protocol.records.varint_columns import Bytes, Flags, Ints, read
from sparkkafka.protocol.wire.varints import VARLONG_BITS, read_varint

KEY, VALUE, HEADERS, TIMESTAMP = "key", "value", "headers", "timestamp"
ALL_COLUMNS: frozenset[str] = frozenset({KEY, VALUE, HEADERS, TIMESTAMP})

HEADERS_TYPE = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
"""Arrow type of the headers column; the names are those that Spark's own conversion uses."""

CHUNK_RECORDS = 16384
"""Rows decoded together: few enough to stay in the L2 cache, enough to outweigh numpy's calls."""


MAX_HEADERS = 1 << 16
"""Limit of the headers of rows that are decoded together; a single row may have more."""


# --- what a reader selects and gets -------------------------------------------------------------


class Selection(NamedTuple):
    """The records of a partition and the columns that a reader selects.

    Offsets are start_offset <= offset < end_offset; `columns` are of ALL_COLUMNS (offsets are
    always decoded); `times_ms` (first, last, both included) leaves out records of other times.
    """

    start_offset: int = 0
    end_offset: int = 2**63  # above every offset: a reader at 2**63 - 1 is not at its end
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
    """Make columns without rows; `columns` are those selected."""
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

    def take(self, data: pa.Buffer, keep: Flags | None = None) -> pa.Array:
        """Copy the rows whose flag in `keep` is set (None: all) out of `data` into an Arrow binary
        array."""
        if keep is None:
            return gather(data, self.at, self.lengths)
        return gather(data, self.at[keep], self.lengths[keep])


class GridPart(NamedTuple):
    """The positions of a field in batches that look alike (`uniform_batches`): in `records` records
    of each of `batches` batches. The first position is `begin`; from record to record it moves by
    `record_step` bytes, from batch to batch by `batch_step`."""

    begin: int
    records: int
    record_step: int
    batches: int = 1
    batch_step: int = 0

    def shifted(self, by: int) -> GridPart:
        """Return the same positions, each further on by `by` bytes."""
        return self._replace(begin=self.begin + by)

    def view(self, data: Bytes, dtype: type[Any], *, bytes_each: int = 0) -> NDArray[Any]:
        """Return a view of the numbers of type `dtype` at these positions of `data`: [batch,
        record], or [batch, record, byte] for fields of `bytes_each` bytes. Raises ValueError if it
        leaves `data`."""
        shape: tuple[int, ...] = (self.batches, self.records)
        strides: tuple[int, ...] = (self.batch_step, self.record_step)
        if bytes_each:
            shape, strides = (*shape, bytes_each), (*strides, 1)
        return np.ndarray(shape, dtype, data.data, self.begin, strides)

    def positions(self) -> Ints:
        """Return all positions, in one dimension."""
        in_batch = np.arange(self.records) * self.record_step
        batches = np.arange(self.batches) * self.batch_step + self.begin
        return (batches[:, None] + in_batch).ravel()


class GridRows(NamedTuple):
    """The rows of a column whose fields lie at `part`. Its batches have `per_batch` rows each and
    begin at row `row` of the column; of each batch, `part` has the rows from `first` on."""

    row: int
    per_batch: int
    first: int
    part: GridPart

    def view(self, column: NDArray[Any]) -> NDArray[Any]:
        """Return a view of these rows of a column, of the shape of `GridPart.view`."""
        part = self.part
        rows = column[self.row : self.row + part.batches * self.per_batch]
        by_batch = rows.reshape(part.batches, self.per_batch, *column.shape[1:])
        return by_batch[:, self.first : self.first + part.records]


class Grid(NamedTuple):
    """The positions of `rows` keys or values that all have one length (-1: all are null). Each row
    is in one of the `parts`."""

    rows: int
    length: int
    parts: list[GridRows]

    def take(self, data: pa.Buffer, keep: Flags | None = None) -> pa.Array:
        """Copy the rows to `keep` (None: all, which takes half as long as with `Spans`) out of
        `data` into an Arrow binary array."""
        if keep is not None:
            return self._to_spans().take(data, keep)
        if self.length < 0:
            return pa.nulls(self.rows, pa.binary())
        content = pa.allocate_buffer(self.rows * self.length)
        if self.length:
            source = np.frombuffer(data, np.uint8)
            target = np.frombuffer(content, np.uint8).reshape(self.rows, self.length)
            for rows in self.parts:
                rows.view(target)[...] = rows.part.view(source, np.uint8, bytes_each=self.length)
        ends = np.arange(self.rows + 1, dtype=np.int32)
        ends *= self.length
        return pa.Array.from_buffers(pa.binary(), self.rows, [None, pa.py_buffer(ends), content])

    def _to_spans(self) -> Spans:
        """Return the same positions, one for each row."""
        at = np.empty(self.rows, np.int64)
        for rows in self.parts:
            target = rows.view(at)
            target[...] = rows.part.positions().reshape(target.shape)
        return Spans(at, np.full(self.rows, self.length, np.int64))


def gather(data: pa.Buffer, starts: Ints, lengths: Ints) -> pa.Array:
    """Copy byte strings out of `data` into an Arrow binary array: the i-th has `lengths[i]` bytes
    from position `starts[i]` on, or is null if its length is -1. They do not overlap.

    Arrow copies them: a cast copies those that views point to, `odd_values` every second slice
    between the offsets of an array.
    """
    count = len(starts)
    smallest = int(lengths.min()) if count else 0
    if count == 0 or (smallest < 0 and int(lengths.max()) < 0):
        return pa.nulls(count, pa.binary())
    # Shorter ones would lie in the view itself.
    if smallest >= 13:
        # Copies long ones in half the time, because the size of the copy is known before. A view
        # is its length, its first four bytes (which a cast does not read), buffer and position.
        views = np.zeros((count, 4), np.int32)
        views[:, 0], views[:, 3] = lengths, starts
        buffers = [None, pa.py_buffer(views), data]
        return cast(pa.Array.from_buffers(pa.binary_view(), count, buffers), pa.binary())
    offsets = np.empty(2 * count + 2, np.int32)  # the start and the end of each string in turn
    offsets[1:-1:2] = starts
    offsets[2:-1:2] = starts + (lengths if smallest >= 0 else np.maximum(lengths, 0))
    # Arrow estimates the memory of the copy from the first and the last offset.
    offsets[-1] = min(offsets[-2], data.size)  # a string of no bytes may lie beyond the data
    offsets[0] = min(offsets[1], offsets[-1])
    copied = odd_values(offsets, data)
    if smallest >= 0:
        return copied
    return pa.Array.from_buffers(
        pa.binary(), count, [validity(lengths >= 0), *copied.buffers()[1:]]
    )


def validity(valid: Flags) -> pa.Buffer:
    """Make the bitmap of an Arrow array whose rows are null where `valid` is false."""
    return pa.py_buffer(np.packbits(valid, None, "little"))


# --- fields -----------------------------------------------------------------------------------


class DamageError(Exception):
    """Some record is damaged; `damage.check_batch` finds out which."""


class Headers(NamedTuple):
    """The number of headers of each record, where the first begins, and where the record ends."""

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

    All positions in the result lie inside the records; headers are not read (`read_headers`).
    Raises DamageError, BadVarintError.
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
            # This check also prevents a huge array for a huge count.
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
    """Return the positions after the keys or values that begin at `at` and have these lengths, -1
    for null. Raises DamageError for a length below -1."""
    smallest = int(lengths.min())
    if smallest < -1:
        raise DamageError
    return at + lengths if smallest >= 0 else at + np.maximum(lengths, 0)


# --- headers ----------------------------------------------------------------------------------


class HeaderPositions(NamedTuple):
    """Positions of keys and values, for all headers of all records in order. A value length of -1
    is null."""

    key_at: Ints
    key_lengths: Ints
    value_at: Ints
    value_lengths: Ints


def read_headers(data: Bytes, at: Ints, ends: Ints, counts: Ints) -> HeaderPositions:
    """Find the headers of all records: record i has `counts[i]` of them, which take all bytes of
    `data` from position `at[i]` to `ends[i]`.

    The caller has checked `counts` against these bytes. Raises DamageError, BadVarintError.
    """
    rows = np.flatnonzero(counts)
    # For each record that has headers left: the start of the next header, the end of the record,
    # the number of headers left, and the index of the next header among all headers.
    at, ends, remaining = at[rows], ends[rows], counts[rows]
    index = np.cumsum(remaining) - remaining
    columns = HeaderPositions(*(np.empty(int(remaining.sum()), np.int64) for _ in range(4)))
    # First the next header of all these records in one numpy step, while that is faster than
    # following the headers of each record. Few records have more than 32.
    for _ in range(32):
        if len(remaining) < 16:
            break
        headers, at = _read_headers_at(data, at)
        for column, values in zip(columns, headers, strict=True):
            column[index] = values
        index += 1
        remaining -= 1
        if not remaining.all():
            if ((remaining == 0) & (at != ends)).any():
                raise DamageError
            more = remaining > 0
            at, ends, remaining, index = at[more], ends[more], remaining[more], index[more]
    # Then the other headers, record by record.
    for begin, end, count, first in zip(
        at.tolist(), ends.tolist(), remaining.tolist(), index.tolist(), strict=True
    ):
        headers, after = follow_headers(data, begin, end, count)
        if after != end:
            raise DamageError
        for column, values in zip(columns, headers, strict=True):
            column[first : first + count] = values
    return columns


def follow_headers(data: Bytes, begin: int, end: int, count: int) -> tuple[HeaderPositions, int]:
    """Find the next `count` headers of one record, which begin at `begin`: (headers, the position
    after them, which is at most `end`). Raises DamageError, BadVarintError."""
    starts = _find_header_starts(data, begin, end, count)
    headers, after = _read_headers_at(data, starts)
    # The starts were right if each header ends where the next begins.
    if int(after[-1]) > end or not np.array_equal(after[:-1], starts[1:]):
        raise DamageError
    return headers, int(after[-1])


def _read_headers_at(data: Bytes, at: Ints) -> tuple[HeaderPositions, Ints]:
    """Read one header at each position: (headers, positions after them). Raises DamageError for a
    negative length, BadVarintError."""
    key_lengths, key_at = read(data, at)
    if int(key_lengths.min()) < 0:
        raise DamageError
    value_lengths, value_at = read(data, key_at + key_lengths)
    return HeaderPositions(key_at, key_lengths, value_at, value_lengths), after_nullable(
        value_at, value_lengths
    )


def _find_header_starts(data: Bytes, begin: int, end: int, count: int) -> Ints:
    """Return the start of each of the `count` headers in [begin, end). The result is right only if
    the headers are valid, which the caller checks. Raises DamageError if they exceed `end`."""
    raw: memoryview | bytes = data[begin:end].data
    # Indexing bytes is faster than indexing a view, so up to 4 MiB are copied.
    if end - begin <= 4 << 20:
        raw = bytes(raw)
    starts = array("q", (0,)) * count
    at = 0
    try:
        for index in range(count):
            starts[index] = at
            byte = raw[at]  # the key's length in zigzag coding, complete if it is below 0x80
            at = at + (byte >> 1) + 1 if byte < 0x80 else _after_long_length(raw, at)
            byte = raw[at]  # the value's length; -1 (null) is encoded as 1, and 0 bytes follow
            at = at + (byte >> 1) + 1 if byte < 0x80 else _after_long_length(raw, at)
    except IndexError:
        raise DamageError from None
    return np.frombuffer(starts, np.int64) + begin


def _after_long_length(raw: memoryview | bytes, at: int) -> int:
    """Return the position after a header's key or value whose length, a zigzag varint at `at`,
    takes more than one byte."""
    # The length has at most five bytes of seven bits. A length above 32 bits ends beyond the
    # record, which the caller detects.
    value, at = read_varint(raw, at, len(raw), 35)
    return at + (value >> 1)


# --- headers for Arrow --------------------------------------------------------------------------


def content_bytes(column: pa.Array) -> int:
    """Return the bytes of all values in an Arrow array of binary or string."""
    offsets = blob_offsets(column)  # nbytes counts the offsets of a slice in another way
    return int(offsets[-1]) - int(offsets[0])


def headers_cost_bytes(count: int, size_bytes: int) -> int:
    """Estimate the memory of `count` headers that are decoded from `size_bytes`: two thirds of the
    measured peak, because a limit leaves half as much again for temporary copies."""
    # At most so many keys and values are Python objects of their own: Python shares bytes objects
    # of length 1.
    texts = min(2 * count, max(0, size_bytes - 2 * count) // 2)
    # Memory of a decoded header (positions, offsets, a tuple of `poll`), of its key and value as
    # Python objects, and the number of copies of its bytes.
    return count * 72 + texts * 48 + size_bytes * 4


def copy_headers(data: pa.Buffer, positions: HeaderPositions) -> tuple[pa.Array, pa.Array]:
    """Copy headers into Arrow arrays: (keys, values). Raises DamageError for a key that is not
    UTF-8."""
    keys = gather(data, positions.key_at, positions.key_lengths)
    try:
        keys = keys.cast(pa.string())
    except pa.ArrowInvalid:
        raise DamageError from None
    return keys, gather(data, positions.value_at, positions.value_lengths)


def make_header_lists(counts: Ints, keys: pa.Array, values: pa.Array) -> pa.Array:
    """Make the HEADERS_TYPE array of rows with `counts` headers each, out of the keys and values of
    all headers in order."""
    entries = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS_TYPE.value_type))
    list_offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=list_offsets[1:])
    return pa.Array.from_buffers(
        HEADERS_TYPE,
        len(counts),
        [validity(counts > 0), pa.py_buffer(list_offsets)],
        children=[entries],
    )


def append_headers(
    headers: pa.Array | None, counts: Ints, keys: pa.Array, values: pa.Array
) -> pa.Array:
    """Return the headers of rows, of HEADERS_TYPE: each row's own ones, in the order of `headers`
    (a list of structs with fields key and value for each row; None: no row has any), followed by
    `counts` more, out of the keys and values of all added headers in order."""
    if headers is None:
        return make_header_lists(counts, keys, values)
    own_counts = or_zero(headers.value_lengths()).astype(np.int64)
    entries = headers.flatten()
    own_keys, own_values = (
        entries.flatten()[entries.type.get_field_index(name)] for name in ("key", "value")
    )
    keys = pa.concat_arrays([own_keys.cast(pa.string()), keys])
    values = pa.concat_arrays([own_values.cast(pa.binary()), values])
    totals = own_counts + counts
    # For each header of the result, its index in `keys`, which has the rows' own headers first.
    in_row = np.arange(len(keys)) - np.repeat(np.cumsum(totals) - totals, totals)
    is_own = in_row < np.repeat(own_counts, totals)
    indexes = np.empty(len(keys), np.int64)
    indexes[is_own] = np.arange(len(own_keys))
    indexes[~is_own] = np.arange(len(own_keys), len(keys))
    taken = from_numpy(indexes)
    return make_header_lists(totals, keys.take(taken), values.take(taken))
