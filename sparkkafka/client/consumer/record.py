"""The records that a consumer returns: one by one, or as an Arrow table.

The `next_offset` of a record is the next offset to read, and the offset to commit once the record
is processed. It is the offset of the next record in its partition if that was fetched, else the
next offset that can have a record: usually offset + 1, but more across transaction markers, aborted
transactions and compacted records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice, repeat
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import CorruptRecordError, DecodeError
from sparkkafka.protocol.columns.columns import CHUNK_RECORDS, HEADERS_TYPE, DecodedRecords
from sparkkafka.protocol.constants import MAX_INT64
from sparkkafka.protocol.records.arrow import from_numpy, or_zero, repeat_text

_HEADERS_AT_ONCE = 1 << 12  # the number of headers that are converted together, in about 1 ms

RECORD_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestamp_type", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("next_offset", pa.int64()),
    ]
)
"""Types of `Consumer.poll_arrow`: those of Spark's own Kafka source."""

Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """One record of a partition."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """Milliseconds since 1970, -1 for none."""
    timestamp_type: int
    """-1 none, 0 the producer's (CreateTime), 1 the broker's (LogAppendTime)."""
    key: bytes | None
    value: bytes | None
    """None is a tombstone, b"" an empty value."""
    headers: tuple[Header, ...]
    """(name, value) pairs in the producer's order; a name may come several times."""
    next_offset: int
    """The next offset to read, and the offset to commit once this record is processed."""

    @property
    def error(self) -> CorruptRecordError | None:
        """None for a valid record. A DamagedRecord has the error of its batch."""
        return None


class DamagedRecord(Record):
    """Stands for a damaged batch, whose records cannot be read, with the setting damaged=yield: key
    and value are None, `error` says why, and `next_offset` is after the batch."""

    @property
    def error(self) -> CorruptRecordError:
        """The error of the batch, which says why it cannot be read."""
        error: CorruptRecordError = self.__dict__["error"]
        return error


class RecordBlock:
    """Rows of one partition as Python lists, one for each column, made when the first is read.

    Iteration makes the records one by one: each is in the processor's cache while it is used, and
    gone before the next one is made, so that the garbage collector has no work.
    """

    __slots__ = (
        "_columns",
        "_headers",
        "_keys",
        "_length",
        "_next_offset",
        "_offsets",
        "_times_ms",
        "_types",
        "_values",
        "tp",
    )

    def __init__(self, tp: TopicPartition, columns: DecodedRecords, next_offset: int) -> None:
        self.tp = tp
        self._length = len(columns)
        self._columns: DecodedRecords | None = columns
        self._next_offset = next_offset

    def _convert(self) -> None:
        """Convert the columns to lists, once: in the thread that reads them, whose processor then
        has them in its cache."""
        columns = self._columns
        if columns is None:
            return
        # One number more than rows: a row's next offset is the following number.
        self._offsets: list[int] = columns.offsets.tolist()
        self._offsets.append(self._next_offset)
        times_ms = columns.timestamps_ms  # None if they were not selected
        self._times_ms = _Constant(-1) if times_ms is None else _numbers(times_ms)
        self._types = _numbers(columns.timestamp_types)
        # A large record has its bytes already.
        large = columns.large
        self._keys = _bytes_of(columns.keys) if large is None else _Constant(large.key)
        self._values = _bytes_of(columns.values) if large is None else _Constant(large.value)
        # Not converted yet: it takes longer than all else, and would hold an event loop.
        self._headers = columns.headers
        self._columns = None

    def __len__(self) -> int:
        return self._length

    def offset(self, row: int) -> int:
        """Return the offset of a row."""
        self._convert()
        return self._offsets[row]

    def next_offset(self, stop: int) -> int:
        """Return the next offset to read after the rows before `stop`."""
        self._convert()
        return self._offsets[stop]

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Iterate over the rows from `start` to `stop`, at least one."""
        self._convert()
        columns = (self._times_ms, self._types, self._keys, self._values)
        values = (
            column[start:stop] if isinstance(column, list) else repeat(column.value)
            for column in columns
        )
        rows = zip(
            repeat(self.tp.topic),
            repeat(self.tp.partition),
            self._offsets[start:stop],
            *values,
            _headers_of(self._headers, start, stop),
            self._offsets[start + 1 : stop + 1],
            strict=False,
        )
        # Record(*row) without its __new__, which is Python code and takes most of a record's time.
        return map(tuple.__new__, repeat(Record), rows)


class DamagedBlock(RecordBlock):
    """The one DamagedRecord of a damaged batch, from `offset` on. `error` has its `next_offset`."""

    __slots__ = ("_record",)

    def __init__(self, tp: TopicPartition, offset: int, error: CorruptRecordError) -> None:
        self.tp = tp
        self._length = 1
        self._columns = None
        self._offsets = [offset, error.next_offset or offset]
        self._record = DamagedRecord(*tp, offset, -1, -1, None, None, (), self._offsets[1])
        self._record.__dict__["error"] = error

    def records(self, start: int, stop: int) -> Iterator[Record]:
        return iter([self._record][start:stop])


class _Constant(NamedTuple):
    """A column with the same value in all rows."""

    value: Any


_Column: TypeAlias = list[Any] | _Constant


def _numbers(values: NDArray[Any]) -> _Column:
    """Return a column of ints; a _Constant if all are equal."""
    first = values[0]
    if first == values[-1] and (values == first).all():
        return _Constant(int(first))
    numbers: list[int] = values.tolist()
    return numbers


def _bytes_of(column: pa.Array | None) -> _Column:
    """Return a column of bytes and None."""
    if column is None or column.null_count == len(column):
        return _Constant(None)
    found: list[bytes | None] = column.to_pylist()
    return found


def _headers_of(column: pa.Array | None, start: int, stop: int) -> Iterator[tuple[Header, ...]]:
    """Iterate over the headers of the rows from `start` to `stop`: (name, value) pairs."""
    if column is None or column.null_count == len(column):
        return repeat(())
    rows = column.slice(start, stop - start)
    # All headers of many rows together: a dict for each would take ten times as long.
    values = rows.flatten()
    step = _HEADERS_AT_ONCE
    pairs = chain.from_iterable(
        zip(headers.field("key").to_pylist(), headers.field("value").to_pylist(), strict=True)
        for headers in (values.slice(first, step) for first in range(0, len(values), step))
    )
    # (Arrow's fill_null makes a scalar, which imports pandas: half a second, and 45 MB.)
    lengths = or_zero(rows.value_lengths()).tolist()
    return map(tuple, map(islice, repeat(pairs), lengths))


class TakenRows(NamedTuple):
    """Rows from `start` to `stop` of a block, which one poll takes of one partition."""

    block: RecordBlock
    start: int
    stop: int


class Records(Sequence[Record]):
    """The records that one poll returned: a sequence, in offset order within each partition.

    Iteration makes the records one by one; indexing makes them all and keeps them.
    """

    __slots__ = ("_all", "_parts")

    def __init__(self, parts: Iterable[TakenRows] = ()) -> None:
        self._parts = list(parts)
        self._all: list[Record] | None = None

    def __len__(self) -> int:
        return sum(stop - start for _, start, stop in self._parts)

    def __bool__(self) -> bool:
        return bool(self._parts)

    def __iter__(self) -> Iterator[Record]:
        """Make the records one after the other, unless they were made already."""
        if self._all is not None:
            return iter(self._all)
        if len(self._parts) == 1:
            block, start, stop = self._parts[0]
            return block.records(start, stop)
        return chain.from_iterable(block.records(start, stop) for block, start, stop in self._parts)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if self._all is None:
            self._all = list(self)
        return self._all[index]

    def __repr__(self) -> str:
        counts: dict[TopicPartition, int] = {}
        for block, start, stop in self._parts:
            counts[block.tp] = counts.get(block.tp, 0) + stop - start
        return f"<Records {', '.join(f'{tp}: {n}' for tp, n in counts.items()) or 'none'}>"

    def split(self, count: int) -> tuple[Records, Records]:
        """Return the first `count` records, and the others."""
        first, others = [], []
        for block, start, stop in self._parts:
            middle = min(start + count, stop)
            count -= middle - start
            if start < middle:
                first.append(TakenRows(block, start, middle))
            if middle < stop:
                others.append(TakenRows(block, middle, stop))
        return Records(first), Records(others)

    @property
    def first_offsets(self) -> dict[TopicPartition, int]:
        """The offset of the first record of each partition."""
        return {block.tp: block.offset(start) for block, start, _ in reversed(self._parts)}

    @property
    def by_partition(self) -> dict[TopicPartition, list[Record]]:
        """The same records, by partition."""
        records: dict[TopicPartition, list[Record]] = {}
        for block, start, stop in self._parts:
            records.setdefault(block.tp, []).extend(block.records(start, stop))
        return records

    @property
    def next_offsets(self) -> dict[TopicPartition, int]:
        """The next offset to read in each partition after these records (KIP-1094)."""
        return {block.tp: block.next_offset(stop) for block, _, stop in self._parts}


@lru_cache(maxsize=64)
def _topic_column(topic: str) -> pa.Array:
    """Return a column of CHUNK_RECORDS rows, which callers slice without a copy."""
    return repeat_text(topic, CHUNK_RECORDS)


def topic_column(topic: str, count: int) -> pa.Array:
    """Return the constant column topic, of at most CHUNK_RECORDS rows."""
    # A few rows of each of thousands of topics must not cache a long column for each.
    return repeat_text(topic, count) if count < 1024 else _topic_column(topic).slice(0, count)


def partition_column(partition: int, count: int) -> pa.Array:
    """Return the constant column partition."""
    return from_numpy(np.full(count, partition, np.int32))


def to_arrow(tp: TopicPartition, columns: DecodedRecords, next_offset: int) -> pa.RecordBatch:
    """Return columns of one partition, at most CHUNK_RECORDS rows, as an Arrow batch of
    RECORD_SCHEMA. Keys and values are not copied.

    Raises DecodeError for a timestamp that does not fit into Arrow's microseconds.
    """
    count = len(columns)
    next_offsets = np.empty(count, np.int64)
    next_offsets[:-1] = columns.offsets[1:]
    next_offsets[-1:] = next_offset
    where = f"topic {tp.topic} partition {tp.partition}"
    return pa.RecordBatch.from_arrays(
        [
            topic_column(tp.topic, count),
            partition_column(tp.partition, count),
            from_numpy(columns.offsets),
            times_as_us(columns, where),
            from_numpy(columns.timestamp_types),
            or_nulls(columns.keys, count, pa.binary()),
            or_nulls(columns.values, count, pa.binary()),
            or_nulls(columns.headers, count, HEADERS_TYPE),
            from_numpy(next_offsets),
        ],
        schema=RECORD_SCHEMA,
    )


def times_as_us(columns: DecodedRecords, where: str) -> pa.Array:
    """Return the timestamps in Arrow's (and Spark's) microseconds, nulls if they were not selected.
    Kafka's "no timestamp", -1 ms, becomes 1969-12-31T23:59:59.999Z as in the JVM connector. Raises
    DecodeError, which begins with `where`."""
    times_ms, time_type = columns.timestamps_ms, RECORD_SCHEMA.field("timestamp").type
    if times_ms is None:
        return pa.nulls(len(columns), time_type)
    max_ms = MAX_INT64 // 1000  # the latest time in microseconds
    if len(times_ms) and (times_ms.max() > max_ms or times_ms.min() < -max_ms):
        row = int(np.argmax((times_ms > max_ms) | (times_ms < -max_ms)))
        raise DecodeError(
            f"[KAFKA_MALFORMED_RECORD_TIMESTAMP] {where} offset {int(columns.offsets[row])}: the "
            f"timestamp {int(times_ms[row])} ms does not fit into the microseconds of Arrow and "
            "Spark; its producer may have written microseconds or nanoseconds"
        )
    return from_numpy(times_ms * 1000, time_type)


def or_nulls(column: pa.Array | None, count: int, data_type: pa.DataType) -> pa.Array:
    """Return the column; `count` nulls if it is None."""
    return pa.nulls(count, data_type) if column is None else column
