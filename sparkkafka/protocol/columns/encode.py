"""Arrow columns -> the records of record batches, without a Python object per record.

All rows are cut into batches by an upper bound of each record's size. Then, a few megabytes at a
time, the varints before each key and value are encoded for all records in one step, and Arrow joins
them with the keys and values. The batches are slices of the joined bytes.

What a broker checks on produce (Kafka's `LogValidator`) holds by construction: offset deltas are
0..n-1 in each batch. As in Java's producer, a batch's base timestamp is its first record's.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkkafka.errors import EncodeError
from sparkkafka.protocol import constants
from sparkkafka.protocol.columns import byte_columns
from sparkkafka.protocol.columns.byte_columns import (
    MAX_INLINE,
    VIEW_BYTES,
    BinaryColumn,
    ByteColumn,
    VarintColumn,
    WordColumn,
    blobs_of,
    regroup,
)
from sparkkafka.protocol.columns.columns import Selection
from sparkkafka.protocol.columns.decode import decode_batches
from sparkkafka.protocol.constants import RECORD_BATCH_OVERHEAD
from sparkkafka.protocol.records import arrow
from sparkkafka.protocol.records.batches import EncodedBatch, RecordBatch
from sparkkafka.protocol.records.legacy import MAGIC_V2
from sparkkafka.protocol.records.varint_columns import Ints, encode_words, widths, zigzag
from sparkkafka.protocol.wire.varints import varint_bytes, varint_size, zigzag_bytes
from sparkkafka.protocol.wire.varints import zigzag as zigzag_of

MAX_BATCH_BYTES = constants.MAX_INT32
_MAX_RECORD_BYTES = MAX_BATCH_BYTES - RECORD_BATCH_OVERHEAD - 5

_NULL_BLOB = b"\x01"  # zigzag of -1, the length of a null key or value

_varint = functools.lru_cache(1024)(varint_bytes)
"""Lengths and deltas recur: to find their bytes takes a quarter of the time of encoding them."""

_SHORT_LENGTHS = [varint_bytes(2 * length) for length in range(1024)]
"""The varints of lengths and offset deltas below 1024: an index takes a third of a call's time."""


class RecordColumns(NamedTuple):
    """Records to write, as columns of equal length.

    `keys` and `values` are Arrow arrays of binary or string (also large, view, dictionary and fixed
    size ones), None for all null. `headers` is a list of structs with fields `key` and `value`; a
    null list has no headers; None for no headers at all. `timestamps_ms` are milliseconds since
    1970; negative values are not checked.
    """

    keys: pa.Array | None
    values: pa.Array | None
    headers: pa.Array | None
    timestamps_ms: Ints


RecordFields: TypeAlias = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]], int]
"""One record to write: key, value, headers, and timestamp in milliseconds since 1970."""


def encode_batches(columns: RecordColumns, *, max_batch_bytes: int) -> list[EncodedBatch]:
    """Encode all rows, cut so that header and payload of a batch have at most `max_batch_bytes`.

    A larger record gets a batch of its own. Raises EncodeError for a column of
    another type or length, a null header key (names the row), and a record beyond 2 GiB.
    """
    rows = _Rows(columns)
    if not rows.count:
        return []
    limit = min(max_batch_bytes, MAX_BATCH_BYTES) - RECORD_BATCH_OVERHEAD
    ends = np.cumsum(rows.size_bounds(limit))
    return _encode_cuts(rows, ends, _cut_batches(ends, limit))


def encode_runs(
    columns: RecordColumns, run_ends: Sequence[int], *, max_batch_bytes: int
) -> list[list[EncodedBatch]]:
    """Encode rows of several partitions, which lie in runs: return the batches of each run.

    `run_ends` are the rows at which the runs end; no run is empty. All runs are encoded together,
    since a call costs as much as hundreds of records. A run is cut into batches of equal size, not
    into full ones and an almost empty one. Otherwise as `encode_batches`.
    """
    rows = _Rows(columns)
    limit = max(min(max_batch_bytes, MAX_BATCH_BYTES) - RECORD_BATCH_OVERHEAD, 1)
    sizes = rows.size_bounds(limit)
    ends = np.cumsum(sizes)
    edges = np.zeros(len(run_ends) + 1, np.int64)  # run i has the rows [edges[i], edges[i + 1])
    edges[1:] = run_ends
    totals = np.diff(np.append(0, ends)[edges])  # bytes of each run
    if int(totals.max(initial=0)) <= limit:  # each run fits one batch
        return [[batch] for batch in _encode_cuts(rows, ends, edges.tolist())]
    cuts = [0]
    counts = []  # batches of each run
    for low, high, total in zip(edges[:-1].tolist(), run_ends, totals.tolist(), strict=True):
        if total <= limit:
            cuts.append(high)
            counts.append(1)
            continue
        # An equal share for each of as few batches as possible, and one record more, since a batch
        # ends between records.
        share = -(-total // -(-total // limit)) + int(sizes[low:high].max())
        run_cuts = _cut_batches(np.cumsum(sizes[low:high]), min(limit, share))
        cuts += [low + row for row in run_cuts[1:]]
        counts.append(len(run_cuts) - 1)
    batches = iter(_encode_cuts(rows, ends, cuts))
    return [list(itertools.islice(batches, count)) for count in counts]


def _encode_cuts(rows: _Rows, ends: Ints, cuts: list[int]) -> list[EncodedBatch]:
    """Encode batches of consecutive rows. Batch i has the rows [cuts[i], cuts[i + 1]); `ends` is
    the running sum of the rows' encoded sizes in bytes, at most. Consecutive batches are encoded
    together, up to 4 MiB and 32,768 rows: measured, and never near Arrow's int32 limit."""
    batches: list[EncodedBatch] = []
    first = 0
    while first < len(cuts) - 1:
        last = first + 1
        low = cuts[first]
        begin = int(ends[low - 1]) if low else 0
        while (
            last < len(cuts) - 1
            and cuts[last + 1] - low <= 32768
            and int(ends[cuts[last + 1] - 1]) - begin <= 4 << 20
        ):
            last += 1
        batches += rows.encode(cuts[first : last + 1])
        first = last
    return batches


def encode_records(records: Sequence[RecordFields]) -> EncodedBatch:
    """Encode at most 1024 records into one batch: faster than columns up to about 300 records.

    Raises EncodeError for a record beyond 2 GiB.
    """
    parts: list[bytes] = []  # the bytes of all records, joined once
    short, short_count = _SHORT_LENGTHS, len(_SHORT_LENGTHS)
    _, _, _, base_timestamp = records[0]
    largest_timestamp = last_timestamp = base_timestamp
    # Numbers are zigzag varints: that of n, which is not negative, has the code 2 n.
    beginning = b"\0\0"  # attributes and timestamp delta
    for offset_delta, (key, value, headers, timestamp_ms) in enumerate(records):
        if timestamp_ms != last_timestamp:  # usually it is that of the record before
            last_timestamp = timestamp_ms
            if timestamp_ms > largest_timestamp:
                largest_timestamp = timestamp_ms
            beginning = b"\0" + _varint(zigzag_of(timestamp_ms - base_timestamp))
        head = beginning + short[offset_delta]  # what stands before the value
        head += _NULL_BLOB if key is None else _varint(2 * len(key)) + key
        if value is None:
            head, value = head + _NULL_BLOB, b""
        else:
            size = len(value)
            head += short[size] if size < short_count else _varint(2 * size)
        tail = _encode_headers(headers) if headers else b"\0"
        size = len(head) + len(value) + len(tail)
        if size > _MAX_RECORD_BYTES:
            raise EncodeError(f"a record of {size} bytes is beyond Kafka's 2 GiB")
        parts += (short[size] if size < short_count else _varint(2 * size), head, value, tail)
    return EncodedBatch(b"".join(parts), len(records), base_timestamp, largest_timestamp)


def _encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Return the headers of one record as its last bytes: their number, then the key and value of
    each."""
    # Numbers are zigzag varints: that of n, which is not negative, has the code 2 n.
    out = _varint(2 * len(headers))
    for name, content in headers:
        name_bytes = name.encode()
        out += _varint(2 * len(name_bytes)) + name_bytes
        out += _NULL_BLOB if content is None else _varint(2 * len(content)) + content
    return out


def record_sizes(columns: RecordColumns) -> Ints:
    """Return an upper bound of each record's encoded size in bytes, whichever batch it gets into.

    Raises EncodeError as `encode_batches` does.
    """
    return _Rows(columns).size_bounds(MAX_BATCH_BYTES)


def size_estimate(columns: RecordColumns) -> tuple[int, int]:
    """Estimate encoded bytes without reading each record: (of all records, of the largest one).

    Both are a little too high rather than too low, unless a batch gets more than a million records,
    or columns with distant timestamps share it. Raises EncodeError for an unwritable column.
    """
    _check_lengths(columns)
    if columns.headers is not None:
        sizes = record_sizes(columns)
        return (int(sizes.sum()), int(sizes.max())) if len(sizes) else (0, 0)
    count = len(columns.timestamps_ms)
    if not count:
        return 0, 0
    total = largest = 0
    # The bytes of a record beside its key and value, at most. (Numbers are zigzag varints: that of
    # n has the code 2 n.)
    other_bytes = 1 + 3 + 1  # attributes, offset delta, the count of headers
    other_bytes += varint_size(
        2 * (int(columns.timestamps_ms.max()) - int(columns.timestamps_ms.min()))
    )
    for column, name in ((columns.keys, "key"), (columns.values, "value")):
        longest = 0
        if column is not None:
            offsets = arrow.blob_offsets(arrow.as_binary(column, name))
            longest = int(np.diff(offsets).max())
            total += int(offsets[-1]) - int(offsets[0])
        other_bytes += varint_size(2 * longest)
        largest += longest
    other_bytes += varint_size(2 * (largest + other_bytes))
    return total + other_bytes * count, largest + other_bytes


def oversized_record(columns: RecordColumns, limit_bytes: int) -> tuple[int, int] | None:
    """Return (index, upper bound of its encoded bytes) of the largest record if that bound is above
    `limit_bytes`; None if no record is that large."""
    _, largest_bytes = size_estimate(columns)
    # The estimate is too low by fewer than 64 bytes.
    if largest_bytes + 64 <= limit_bytes:
        return None
    sizes = record_sizes(columns)
    index = int(sizes.argmax())
    return (index, int(sizes[index])) if sizes[index] > limit_bytes else None


def run_sizes(columns: RecordColumns, run_ends: Sequence[int]) -> list[int]:
    """Estimate the encoded bytes of each run of `encode_runs`, a little too high rather than too
    low. Raises EncodeError for an unwritable column."""
    # Mean rows of a run: below, measuring all rows costs less than a `size_estimate` for each run.
    if len(columns.timestamps_ms) >= 256 * len(run_ends):
        return [
            size_estimate(sliced(columns, low, high))[0]  # of all records
            for low, high in itertools.pairwise((0, *run_ends))
        ]
    begins = np.zeros(len(run_ends), np.int64)
    begins[1:] = run_ends[:-1]
    return cast(list[int], np.add.reduceat(record_sizes(columns), begins).tolist())


def sliced(columns: RecordColumns, low: int, high: int) -> RecordColumns:
    """Return the rows from `low` up to `high` (exclusive), sharing the memory."""
    keys, values, headers, times_ms = columns
    count = high - low
    return RecordColumns(
        None if keys is None else keys.slice(low, count),
        None if values is None else values.slice(low, count),
        None if headers is None else headers.slice(low, count),
        times_ms[low:high],
    )


def taken(columns: RecordColumns, indexes: Ints) -> RecordColumns:
    """Return the rows with these indexes, each at most once, in this order."""
    rows = arrow.from_numpy(indexes)
    times_ms = columns.timestamps_ms
    is_constant = times_ms.strides == (0,)  # one time for all rows
    return RecordColumns(
        keys=None if columns.keys is None else columns.keys.take(rows),
        values=None if columns.values is None else columns.values.take(rows),
        headers=None if columns.headers is None else columns.headers.take(rows),
        timestamps_ms=times_ms[: len(indexes)] if is_constant else times_ms[indexes],
    )


def _check_lengths(columns: RecordColumns) -> None:
    """Raise EncodeError unless all columns have the same number of rows."""
    count = len(columns.timestamps_ms)
    for name, column in zip(("key", "value", "headers"), columns[:3], strict=True):
        if column is not None and len(column) != count:
            raise EncodeError(f"{name} column has {len(column)} rows, timestamps {count}")


def split_encoded(batch: EncodedBatch) -> list[EncodedBatch]:
    """Split a batch in two, after MESSAGE_TOO_LARGE.

    Raises EncodeError for a single record, which cannot be split.
    """
    if batch.record_count < 2:
        raise EncodeError("a batch of one record cannot be split")
    decoded = decode_batches([_as_record_batch(batch)], Selection())
    middle = batch.record_count // 2
    halves: list[EncodedBatch] = []
    for half in (decoded.slice(0, middle), decoded.slice(middle, batch.record_count)):
        if half.timestamps_ms is not None:  # always: all columns are wanted
            headers = half.headers
            if headers is not None and headers.null_count == len(headers):
                headers = None
            columns = RecordColumns(half.keys, half.values, headers, half.timestamps_ms)
            halves += encode_batches(columns, max_batch_bytes=MAX_BATCH_BYTES)
    return halves


def _as_record_batch(batch: EncodedBatch) -> RecordBatch:
    """Make the batch that `decode_batches` takes, with offsets from zero."""
    return RecordBatch(
        base_offset=0,
        magic=MAGIC_V2,
        attributes=0,
        last_offset_delta=batch.record_count - 1,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
        record_count=batch.record_count,
        data=memoryview(batch.payload),
        size_bytes=RECORD_BATCH_OVERHEAD + len(batch.payload),
    )


def _cut_batches(ends: Ints, limit: int) -> list[int]:
    """Cut rows into batches of at most `limit` bytes: return the rows at which batches begin, then
    the row count. `ends` is the running sum of the rows' sizes."""
    cuts = [0]
    cut_bytes = 0  # the bytes of the rows before the last cut
    while cuts[-1] < len(ends):
        # A row larger than the limit gets a batch of its own.
        row = max(int(np.searchsorted(ends, cut_bytes + limit, "right")), cuts[-1] + 1)
        cuts.append(row)
        cut_bytes = int(ends[row - 1])
    return cuts


class _Rows:
    """The rows of one call, in the form that encoding needs."""

    def __init__(self, columns: RecordColumns) -> None:
        self.timestamps = np.asarray(columns.timestamps_ms, np.int64)
        self.count = len(self.timestamps)
        _check_lengths(columns)
        self.keys = None if columns.keys is None else BlobColumn(columns.keys, "key")
        self.values = None if columns.values is None else BlobColumn(columns.values, "value")
        self.headers = None if columns.headers is None else HeaderColumn(columns.headers)

    def _variable_sizes(self, low: int, high: int) -> Ints:
        """Return the bytes of each record from the key length on."""
        sizes = np.full(high - low, 3, np.int64)  # null key, null value, no headers
        for column in (self.keys, self.values, self.headers):
            if column is not None:
                # In place of the one byte of null, or of no headers.
                sizes += column.sizes[low:high] - 1
        return sizes

    def size_bounds(self, limit: int) -> Ints:
        """Return an upper bound of each record's size in a batch of at most `limit` bytes."""
        body = self._variable_sizes(0, self.count)
        if not self.count:
            return body
        spread = int(self.timestamps.max()) - int(self.timestamps.min())
        # Attributes, and the timestamp delta: a zigzag varint, whose code is the double.
        body += 1 + min(10, varint_size(2 * spread))
        # Offset deltas are below the number of records, which the smallest record bounds: it takes
        # at least two bytes more, for its length and its offset delta.
        max_records = min(self.count, max(1, limit // (int(body.min()) + 2)))
        body += varint_size(2 * (max_records - 1))
        if int(body.max()) > _MAX_RECORD_BYTES:
            row = int(body.argmax())
            raise EncodeError(f"row {row}: a record of {body[row]} bytes is beyond Kafka's 2 GiB")
        return body + widths((body << 1).view(np.uint64))

    def encode(self, cuts: Sequence[int]) -> list[EncodedBatch]:
        """Encode consecutive batches together: batch i has the rows [cuts[i], cuts[i + 1])."""
        low, high = cuts[0], cuts[-1]
        begins = np.array(cuts[:-1], np.int64) - low  # all row numbers below count from `low`
        counts: Ints = np.diff(cuts)
        timestamps = self.timestamps[low:high]
        # Deltas wrap around 64 bits as Java's do; the reader's sum wraps back.
        deltas = timestamps - np.repeat(timestamps[begins], counts)
        content, edges = self._join_views(low, high, deltas, counts) or self._join_columns(
            low, high, deltas, begins, counts
        )
        # `edges` are the bytes at which rows begin, `marks` those at which batches begin.
        marks = edges[np.append(begins, high - low)].tolist()
        return [
            EncodedBatch(content[begin:end], count, base, largest)
            for begin, end, count, base, largest in zip(
                marks[:-1],
                marks[1:],
                counts.tolist(),
                timestamps[begins].tolist(),
                np.maximum.reduceat(timestamps, begins).tolist(),
                strict=True,
            )
        ]

    def _join_views(
        self, low: int, high: int, deltas: Ints, counts: Ints
    ) -> tuple[memoryview, Ints] | None:
        """Encode records without headers and with short varints by `join_records`, which is faster;
        return None for others.

        The batches of rows low..high have `counts` rows; `deltas` are the rows' timestamp deltas.
        The result: (the records' bytes, where each begins and then where the last ends).
        """
        if self.headers is not None or self.values is None:
            return None
        values = self.values.blobs(low, high)
        keys = None if self.keys is None else self.keys.blobs(low, high)
        if values is None or (self.keys is not None and keys is None):
            return None
        return join_records(keys, values, deltas, counts.tolist())

    def _join_columns(
        self, low: int, high: int, deltas: Ints, begins: Ints, counts: Ints
    ) -> tuple[memoryview, Ints]:
        """Encode any records: (their bytes, where each begins and then where the last ends).

        The batches of rows low..high have `counts` rows and begin at the rows `begins`, counted
        from `low`; `deltas` are the rows' timestamp deltas.
        """
        offset_deltas = np.arange(high - low, dtype=np.int64) - np.repeat(begins, counts)
        body = self._variable_sizes(low, high)  # bytes of each record after its length
        body += 1 + widths(zigzag(deltas)) + widths(zigzag(offset_deltas))  # 1: the attributes
        columns: list[ByteColumn] = [VarintColumn(body), ZERO]
        columns += VarintColumn(deltas), VarintColumn(offset_deltas)
        for column in (self.keys, self.values):
            columns += [NULL_LENGTH] if column is None else column.byte_columns(low, high)
        columns += [ZERO] if self.headers is None else self.headers.byte_columns(low, high)
        _, offsets, content = byte_columns.join(columns, high - low, arrow.BATCH_POOL).buffers()
        edges = np.frombuffer(offsets, np.int32)[: high - low + 1].astype(np.int64)
        return memoryview(content), edges


# --- columns of keys, values and headers ----------------------------------------------------------


class BlobColumn:
    """A column of keys or values, also of headers: the Arrow data, and the length that precedes
    each key or value in a record."""

    def __init__(self, column: pa.Array, name: str) -> None:
        self.array = arrow.as_binary(column, name)
        self.offsets: Ints = arrow.blob_offsets(self.array).astype(np.int64)
        byte_counts = self.lengths = np.diff(self.offsets)
        """Bytes of each row, -1 for null."""
        if self.array.null_count:
            null = ~arrow.is_valid(self.array)
            self.lengths = np.where(null, -1, byte_counts)
            byte_counts = np.where(null, 0, byte_counts)
        self.min_length = int(self.lengths.min()) if len(byte_counts) else 0
        self.max_length = int(self.lengths.max()) if len(byte_counts) else 0
        # A length is a zigzag varint: that of n has the code 2 n.
        have_one_size = self.min_length >= 0 and (
            varint_size(2 * self.min_length) == varint_size(2 * self.max_length)
        )
        number_sizes: Any = (
            varint_size(2 * self.max_length) if have_one_size else widths(zigzag(self.lengths))
        )
        self.sizes: Ints = byte_counts + number_sizes
        """Bytes of each row and of the length before it."""

    def byte_columns(self, low: int, high: int) -> list[ByteColumn]:
        """Return the rows from `low` up to `high` as columns of bytes: each length, then the key or
        value itself."""
        lengths, valid = self.lengths[low:high], None
        written = lengths
        if self.min_length < 0:
            valid, written = lengths >= 0, np.maximum(lengths, 0)
        return [VarintColumn(lengths), BinaryColumn(self.slice(low, high), written, valid)]

    def blobs(self, low: int, high: int) -> Blobs | None:
        """Return the rows from `low` up to `high` as views for `join_records`; None for
        large_binary, which it cannot join."""
        if not pa.types.is_binary(self.array.type):
            return None
        array, lengths = self.array.slice(low, high - low), self.lengths[low:high]
        return Blobs(array, self.offsets[low:high], lengths, self.min_length, self.max_length)

    def slice(self, low: int, high: int) -> pa.Array:
        """Return the rows from `low` up to `high` as an Arrow array of binary."""
        part = self.array.slice(low, high - low)
        # Cast only now: these bytes fit int32 offsets, those of the whole column need not.
        return part.cast(pa.binary()) if pa.types.is_large_binary(part.type) else part


class HeaderColumn:
    """The headers column: the keys and values of all headers of all rows in order."""

    def __init__(self, column: pa.Array) -> None:
        arrow_type = column.type
        if not (
            pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type)
        ) or not pa.types.is_struct(arrow_type.value_type):
            raise EncodeError(
                f"headers column is {arrow_type}; it must be a list of (key, value) structs"
            )
        fields = {field.name: index for index, field in enumerate(arrow_type.value_type)}
        if set(fields) != {"key", "value"}:
            raise EncodeError(f"headers have fields {sorted(fields)}; they must be key and value")
        counts = arrow.or_zero(pc.list_value_length(column)).astype(np.int64)
        self._counts = counts
        # Row i has the headers [_edges[i], _edges[i + 1]).
        self._edges = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=self._edges[1:])
        # flatten() leaves out what lies under null lists, and passes null structs to their fields.
        children = column.flatten().flatten()
        self._keys = BlobColumn(children[fields["key"]], "header key")
        self._values = BlobColumn(children[fields["value"]], "header value")
        if self._keys.array.null_count:
            null = int(arrow.is_valid(self._keys.array).argmin())
            row = int(np.searchsorted(self._edges, null, "right")) - 1
            raise EncodeError(f"row {row}: a header key is null")
        ends = np.zeros(int(self._edges[-1]) + 1, np.int64)
        np.cumsum(self._keys.sizes + self._values.sizes, out=ends[1:])
        self.sizes = np.diff(ends[self._edges]) + widths(zigzag(counts))
        """Bytes of each row's headers and of their count."""

    def byte_columns(self, low: int, high: int) -> list[ByteColumn]:
        """Return the headers of the rows from `low` up to `high` as columns of bytes: the number of
        each row's headers, then the headers."""
        counts = VarintColumn(self._counts[low:high])
        edges = self._edges[low : high + 1]
        first, last = int(edges[0]), int(edges[-1])
        if first == last:
            return [counts]
        headers = byte_columns.join(
            [*self._keys.byte_columns(first, last), *self._values.byte_columns(first, last)],
            last - first,
            arrow.BATCH_POOL,
        )
        # The headers of a row are adjacent: its bytes go from its first to its last header.
        return [counts, blobs_of(regroup(headers, edges - first))]


# --- the fast way: records of usual shape ---------------------------------------------------------
#
# The varints of a record (its length, timestamp and offset delta, length of the key) nearly always
# fit twelve bytes. Then shifts put those of all rows together as two words of 64 bits a row, in the
# form of Arrow's binary views: 4 bytes of length, 12 of content. Longer keys and values are
# references in the same table of views. One cast from views to plain binary makes the only copy.
# Other records (with headers, or longer varints) are joined by `_join_columns`; tests compare both.

_MAX_NUMBER_BYTES = 3  # enough for a body, key or value of less than 1 MiB


class Blobs(NamedTuple):
    """A column of keys or values."""

    array: pa.Array
    """Of Arrow's binary type."""
    starts: Ints
    """Where each row's bytes begin in the array's data."""
    lengths: Ints
    """-1 for null."""
    min_length: int
    max_length: int
    """The least and the greatest of `lengths`, or of the larger column that they are a part of."""


def _one_number(value: int) -> WordColumn | None:
    """Encode the same number for all rows; None if it takes more than three bytes."""
    data = zigzag_bytes(value)
    if len(data) > _MAX_NUMBER_BYTES:
        return None
    return WordColumn(np.uint64(int.from_bytes(data, "little")), len(data), len(data))


def _numbers(values: Ints) -> WordColumn | None:
    """Encode `values`, one number for each row, as zigzag varints; None if one takes more than
    three bytes."""
    smallest, largest = int(values.min()), int(values.max())
    if smallest == largest:
        return _one_number(smallest)
    # The zigzag code of a number is its double; of a negative one, that of -n minus 1.
    largest_code = max(2 * largest, -2 * smallest - 1)
    widest = varint_size(largest_code)
    if widest > _MAX_NUMBER_BYTES:
        return None
    return WordColumn(*encode_words(zigzag(values), largest_code), widest)


def _offset_deltas(counts: Sequence[int]) -> WordColumn | None:
    """Encode the offset deltas of consecutive batches, 0, 1, 2, … in each. `counts`: the rows of
    each batch. None if a delta takes more than three bytes."""
    longest = max(counts)
    widest = varint_size(2 * (longest - 1))
    if widest > _MAX_NUMBER_BYTES:
        return None
    # Zigzag coding makes 0, 2, 4, … of them. A shorter batch has the first ones of the longest.
    codes = np.arange(0, 2 * longest, 2, dtype=np.uint64)
    words, sizes = encode_words(codes, 2 * (longest - 1))
    if len(counts) > 1:
        words = np.concatenate([words[:count] for count in counts])
        if not isinstance(sizes, int):
            sizes = np.concatenate([sizes[:count] for count in counts])
    return WordColumn(words, sizes, widest)


ZERO = WordColumn(np.uint8(0), 1, 1)  # attributes, or the number of headers of each record
NULL_LENGTH = WordColumn(np.uint8(1), 1, 1)  # the zigzag code of -1


def join_records(
    keys: Blobs | None, values: Blobs, timestamp_deltas: Ints, counts: Sequence[int]
) -> tuple[memoryview, Ints] | None:
    """Encode records of consecutive batches of `counts` rows: (their bytes, where each begins and
    then where the last ends). None if the varints of some record take more than twelve bytes.

    The records have no headers; `keys` None means that all are null.
    """
    prefixes = _encode_prefixes(keys, values, timestamp_deltas, counts)
    if prefixes is None:
        return None
    front, tail, value_length = prefixes
    columns = [values] if keys is None else [keys, values]
    rows = len(timestamp_deltas)

    # The views of a row: its varints, [key, length of the value,] value. Then one view more for all
    # rows, the zero that ends the last record. A view is four int32: the length, then the bytes
    # themselves or (first four bytes, index of the buffer, position in it).
    per_row = 2 * len(columns)
    views = np.zeros((rows * per_row + 1, 4), np.int32)
    views[-1, 0] = 1
    shift, tail_words = front.bits, tail.words.astype(np.uint64)
    _write_column(views, 0, per_row, "<i4", 0, front.sizes + tail.sizes)
    _write_column(views, 0, per_row, "<u8", 4, front.words | tail_words << shift)
    _write_column(views, 0, per_row, "<u4", 12, tail_words >> (np.uint64(64) - shift))
    if keys is not None:
        _write_column(views, 2, per_row, "<i4", 0, value_length.sizes)
        _write_column(views, 2, per_row, "<u4", 4, value_length.words)
    for index, blobs in enumerate(columns):
        _write_blob_views(views[2 * index + 1 : -1 : per_row], blobs, index)
    joined = pa.Array.from_buffers(
        pa.binary_view(),
        len(views),
        [
            None,
            pa.py_buffer(views),
            *(blobs.array.buffers()[2] or pa.py_buffer(b"") for blobs in columns),
        ],
    ).cast(pa.binary(), memory_pool=arrow.BATCH_POOL)
    _, offsets, content = joined.buffers()
    edges = np.frombuffer(offsets, np.int32)[: len(views) : per_row].astype(np.int64)
    edges += 1  # the zero at the beginning of a view belongs to the record before
    return memoryview(content), edges


def _encode_prefixes(
    keys: Blobs | None, values: Blobs, timestamp_deltas: Ints, counts: Sequence[int]
) -> tuple[WordColumn, WordColumn, WordColumn] | None:
    """Encode the varints of the records: those before the key (before the value if there are no
    keys), in two parts, and the length of the value. None if some take more than twelve bytes. The
    arguments are those of `join_records`."""
    columns = [values] if keys is None else [keys, values]
    lengths = [
        _one_number(blobs.max_length)
        if blobs.min_length == blobs.max_length
        else _numbers(blobs.lengths)
        for blobs in columns
    ]
    timestamp = _numbers(timestamp_deltas)
    offset = _offset_deltas(counts)
    first_length, value_length = lengths[0], lengths[-1]  # without keys both are the values'
    if timestamp is None or offset is None:
        return None
    if first_length is None or value_length is None:
        return None
    # Attributes, the length of a null key or of the value, the count of headers.
    other_bytes = 3 if keys is None else 2 + value_length.sizes
    sizes = offset.sizes + timestamp.sizes + first_length.sizes + other_bytes
    # Bytes of each record after its length.
    body = np.full(len(timestamp_deltas), sizes, np.int64)
    for blobs in columns:
        if blobs.min_length == blobs.max_length:
            body += max(blobs.max_length, 0)
        else:
            body += blobs.lengths if blobs.min_length >= 0 else np.maximum(blobs.lengths, 0)
    body_length = _numbers(body)
    if body_length is None:
        return None
    if keys is None:
        first_length = NULL_LENGTH.followed_by(first_length)
    # The bytes before a key, or before a value if there are no keys: front, then tail. A record
    # ends in a zero, the count of its headers. It is written before the next record's varints,
    # since every further view costs time.
    front = ZERO.followed_by(body_length).followed_by(ZERO).followed_by(timestamp)
    tail = offset.followed_by(first_length)
    return None if front.max_size + tail.max_size > MAX_INLINE else (front, tail, value_length)


def _write_column(
    views: NDArray[np.int32], first: int, step: int, dtype: str, at: int, values: Any
) -> None:
    """Write one number of each row, of type `dtype`, at byte `at` of its view. The rows' views are
    `first`, `first + step`, … of `views`, which has one view more at its end."""
    count = (len(views) - 1) // step
    begin = first * VIEW_BYTES + at
    target: NDArray[Any] = np.ndarray((count,), dtype, views, begin, (step * VIEW_BYTES,))
    np.copyto(target, values, casting="unsafe")


def _write_blob_views(views: NDArray[np.int32], blobs: Blobs, buffer_index: int) -> None:
    """Write the views of keys or values: references to long ones in buffer `buffer_index`, the
    bytes of short ones. A null becomes empty.

    The view of a long one would repeat its first four bytes. They may be left out, since only
    comparisons read them.
    """
    if blobs.min_length > MAX_INLINE:
        views[:, 0] = blobs.lengths
        views[:, 2] = buffer_index
        views[:, 3] = blobs.starts
        return
    cast = blobs.array.cast(pa.binary_view())
    content = np.frombuffer(cast.buffers()[1], "<c16")  # 16 bytes are the fastest to copy
    views.view("<c16")[:, 0] = content[cast.offset :][: len(views)]
    np.maximum(blobs.lengths, 0, out=views[:, 0], casting="unsafe")
    if blobs.max_length > MAX_INLINE:
        views[np.flatnonzero(blobs.lengths > MAX_INLINE), 2] = buffer_index
