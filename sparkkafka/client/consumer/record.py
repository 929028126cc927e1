"""What a consumer returns: records one by one, or an Arrow table of them.

`next_offset` of a record is where to go on reading after it, and what to commit once the record is
processed: the offset of the next record in its partition, as far as the reader has looked, else the
next offset that can have one. That is mostly offset + 1, and more across transaction markers,
aborted transactions and compacted records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain, islice, repeat
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import DecodeError
from sparkkafka.protocol.columns.columns import CHUNK_RECORDS, HEADERS_TYPE, DecodedRecords
from sparkkafka.protocol.records.arrow import from_numpy, repeat_text

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

_HEADERS_AT_ONCE = 1 << 16  # as lists, besides the pairs that are made of them
_MAX_MS = (2**63 - 1) // 1000  # what fits into microseconds

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
    """Where to go on reading after this record; what to commit once it is processed."""


# Record(*row) without its __new__ in Python, which takes most of a record's time.
_new_record = partial(tuple.__new__, Record)


class RecordBlock:
    """Rows of one partition as Python's lists, a list for each column.

    Iteration makes the records one by one, so that each is in the processor's cache while it is
    used, gone before the next, and no work for the garbage collector.
    """

    __slots__ = ("_headers", "_keys", "_length", "_offsets", "_times_ms", "_types", "_values", "tp")

    def __init__(self, tp: TopicPartition, columns: DecodedRecords, next_offset: int) -> None:
        self.tp = tp
        self._length = len(columns)
        # One number more than rows: a row's next offset is the one behind it.
        self._offsets: list[int] = columns.offsets.tolist()
        self._offsets.append(next_offset)
        self._times_ms = _numbers(_times_ms(columns))
        self._types = _numbers(columns.timestamp_types)
        # A large record's bytes are there already.
        large = columns.large
        self._keys = _bytes_of(columns.keys) if large is None else _Same(large.key)
        self._values = _bytes_of(columns.values) if large is None else _Same(large.value)
        self._headers = _headers_of(columns.headers)

    def __len__(self) -> int:
        return self._length

    def next_offset(self, stop: int) -> int:
        """Where to go on after the rows before `stop`."""
        return self._offsets[stop]

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Rows start..stop, at least one."""
        columns = (self._times_ms, self._types, self._keys, self._values, self._headers)
        some = (
            column[start:stop] if isinstance(column, list) else column.endless()
            for column in columns
        )
        rows = zip(
            repeat(self.tp.topic),
            repeat(self.tp.partition),
            self._offsets[start:stop],
            *some,
            self._offsets[start + 1 : stop + 1],
            strict=False,
        )
        return map(_new_record, rows)


class _Same:
    """A column with the same value in all rows."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def endless(self) -> Iterator[Any]:
        return repeat(self._value)


_Column: TypeAlias = list[Any] | _Same


def _numbers(values: NDArray[Any]) -> _Column:
    first = values[0]
    if first == values[-1] and (values == first).all():
        return _Same(int(first))
    found: list[int] = values.tolist()
    return found


def _bytes_of(column: pa.Array | None) -> _Column:
    if column is None or column.null_count == len(column):
        return _Same(None)
    found: list[bytes | None] = column.to_pylist()
    return found


def _headers_of(column: pa.Array | None) -> _Column:
    if column is None or column.null_count == len(column):
        return _Same(())
    # All headers of all rows at once: a dict for each would cost ten times as much.
    values = column.flatten()
    pairs = chain.from_iterable(
        zip(some.field(0).to_pylist(), some.field(1).to_pylist(), strict=True)
        for some in (
            values.slice(n, _HEADERS_AT_ONCE) for n in range(0, len(values), _HEADERS_AT_ONCE)
        )
    )
    # (Arrow's fill_null makes a scalar, which imports pandas: half a second, and 45 MB.)
    lengths = pc.list_value_length(column).to_pylist()
    return [tuple(islice(pairs, length or 0)) for length in lengths]


class TakenRows(NamedTuple):
    """Rows start..stop of a block: what one poll takes of one partition."""

    block: RecordBlock
    start: int
    stop: int


class Records(Sequence[Record]):
    """The records that one poll returned: a sequence, in offset order within each partition.

    Iterating makes each record as it comes; indexing makes them all and keeps them.
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

    @property
    def by_partition(self) -> dict[TopicPartition, list[Record]]:
        """The same records, by partition."""
        found: dict[TopicPartition, list[Record]] = {}
        for block, start, stop in self._parts:
            found.setdefault(block.tp, []).extend(block.records(start, stop))
        return found

    @property
    def next_offsets(self) -> dict[TopicPartition, int]:
        """Where to go on reading in each partition after these records (KIP-1094)."""
        return {block.tp: block.next_offset(stop) for block, _, stop in self._parts}


def _times_ms(columns: DecodedRecords) -> NDArray[np.int64]:
    times_ms = columns.timestamps_ms
    return np.full(len(columns), -1, np.int64) if times_ms is None else times_ms


_SMALL_ROWS = 1024  # fewer are quicker made than looked up


@lru_cache(maxsize=64)
def _topic_column(topic: str) -> pa.Array:
    """Made once and sliced, which copies nothing."""
    return repeat_text(topic, CHUNK_RECORDS)


@lru_cache(maxsize=256)
def _partition_column(partition: int) -> pa.Array:
    return from_numpy(np.full(CHUNK_RECORDS, partition, np.int32))


def to_arrow(tp: TopicPartition, columns: DecodedRecords, next_offset: int) -> pa.RecordBatch:
    """Columns of one partition as an Arrow batch of RECORD_SCHEMA; copies no key or value. At most
    as many rows as `decode_chunks` gives at a time.

    Raises DecodeError for a timestamp that does not fit into Arrow's microseconds.
    """
    count = len(columns)
    next_offsets = np.empty(count, np.int64)
    next_offsets[:-1] = columns.offsets[1:]
    next_offsets[-1:] = next_offset
    place = f"topic {tp.topic} partition {tp.partition}"
    # A few rows of each of thousands of partitions must not hold a whole column for each.
    is_small = count < _SMALL_ROWS
    return pa.RecordBatch.from_arrays(
        [
            repeat_text(tp.topic, count) if is_small else _topic_column(tp.topic).slice(0, count),
            from_numpy(np.full(count, tp.partition, np.int32))
            if is_small
            else _partition_column(tp.partition).slice(0, count),
            from_numpy(columns.offsets),
            times_as_us(_times_ms(columns), columns, place),
            from_numpy(columns.timestamp_types),
            _or_nulls(columns.keys, count, pa.binary()),
            _or_nulls(columns.values, count, pa.binary()),
            _or_nulls(columns.headers, count, HEADERS_TYPE),
            from_numpy(next_offsets),
        ],
        schema=RECORD_SCHEMA,
    )


def times_as_us(times_ms: Any, columns: DecodedRecords, place: str) -> pa.Array:
    """Milliseconds -> Arrow's (and Spark's) microseconds. Kafka's "no timestamp", -1 ms, becomes
    1969-12-31T23:59:59.999Z as in the JVM connector. Raises DecodeError."""
    if len(times_ms) and (times_ms.max() > _MAX_MS or times_ms.min() < -_MAX_MS):
        row = int(np.argmax((times_ms > _MAX_MS) | (times_ms < -_MAX_MS)))
        raise DecodeError(
            f"[KAFKA_MALFORMED_RECORD_TIMESTAMP] {place} offset {int(columns.offsets[row])}: the "
            f"timestamp {int(times_ms[row])} ms does not fit into the microseconds of Arrow and "
            "Spark; its producer may have written microseconds or nanoseconds"
        )
    return from_numpy(times_ms * 1000, RECORD_SCHEMA.field("timestamp").type)


def _or_nulls(column: pa.Array | None, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(rows, kind) if column is None else column
