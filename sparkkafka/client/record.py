"""What a consumer hands out: records one by one, or an Arrow table of them.

`next_offset` of a record is where to go on reading after it: the offset of the record that follows
in its partition, as far as the reader has looked, else the next offset that can have one. That is
mostly offset + 1, and more where nothing for a reader lies between (transaction markers, aborted
transactions, records that compaction took). It is what to commit once the record is done with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.client.metadata import TopicPartition
from sparkkafka.errors import DecodeError
from sparkkafka.protocol.arrow import from_numpy, repeat_text
from sparkkafka.protocol.columns import HEADERS_TYPE, DecodedRecords

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
    """Where to go on reading after this record; what to commit when it is done with."""


class Records(Sequence[Record]):
    """The records that one poll returned: a sequence, in offset order within each partition."""

    __slots__ = ("_parts", "_rows")

    def __init__(self, parts: Iterable[tuple[TopicPartition, list[Record]]] = ()) -> None:
        self._parts: dict[TopicPartition, list[Record]] = {}
        for tp, rows in parts:
            known = self._parts.get(tp)
            self._parts[tp] = rows if known is None else known + rows
        self._rows: list[Record] | None = None

    def _all(self) -> list[Record]:
        if self._rows is None:
            lists = list(self._parts.values())
            self._rows = lists[0] if len(lists) == 1 else [row for rows in lists for row in rows]
        return self._rows

    def __len__(self) -> int:
        return sum(map(len, self._parts.values()))

    def __iter__(self) -> Iterator[Record]:
        return iter(self._all())

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        return self._all()[index]

    def __repr__(self) -> str:
        parts = ", ".join(f"{tp}: {len(rows)}" for tp, rows in self._parts.items())
        return f"<Records {parts or 'none'}>"

    @property
    def by_partition(self) -> Mapping[TopicPartition, Sequence[Record]]:
        """The same records, by partition."""
        return self._parts

    @property
    def next_offsets(self) -> dict[TopicPartition, int]:
        """Where to go on reading in each partition after these records (KIP-1094)."""
        return {tp: rows[-1].next_offset for tp, rows in self._parts.items()}


def to_records(tp: TopicPartition, columns: DecodedRecords, next_offset: int) -> list[Record]:
    """Columns of one partition as records; `next_offset` is the last one's."""
    offsets = columns.offsets.tolist()
    # The same numbers once more, one further: no new objects.
    next_offsets = offsets[1:]
    next_offsets.append(next_offset)
    rows = zip(
        repeat(tp.topic),
        repeat(tp.partition),
        offsets,
        _times_ms(columns).tolist(),
        columns.timestamp_types.tolist(),
        _bytes_of(columns.keys),
        _bytes_of(columns.values),
        _headers_of(columns.headers),
        next_offsets,
        strict=False,
    )
    # Record(...) without its __new__ in Python: this is where most of a poll's time goes.
    new_tuple = tuple.__new__
    return [new_tuple(Record, row) for row in rows]


def _bytes_of(column: pa.Array | None) -> Iterable[bytes | None]:
    if column is None or column.null_count == len(column):
        return repeat(None)
    found: list[bytes | None] = column.to_pylist()
    return found


def _headers_of(column: pa.Array | None) -> Iterable[tuple[Header, ...]]:
    if column is None or column.null_count == len(column):
        return repeat(())
    # All headers of all rows at once: a dict for each would cost ten times as much.
    values = column.flatten()
    pairs = list(zip(values.field(0).to_pylist(), values.field(1).to_pylist(), strict=True))
    lengths = pc.list_value_length(column).fill_null(0).to_pylist()
    found: list[tuple[Header, ...]] = []
    at = 0
    for length in lengths:
        found.append(tuple(pairs[at : at + length]))
        at += length
    return found


def _times_ms(columns: DecodedRecords) -> Any:
    times_ms = columns.timestamps_ms
    return np.full(len(columns), -1, np.int64) if times_ms is None else times_ms


def to_arrow(tp: TopicPartition, columns: DecodedRecords, next_offset: int) -> pa.RecordBatch:
    """Columns of one partition as an Arrow batch of RECORD_SCHEMA; copies no key or value.

    Raises DecodeError for a timestamp that does not fit into Arrow's microseconds.
    """
    count = len(columns)
    next_offsets = np.empty(count, np.int64)
    next_offsets[:-1] = columns.offsets[1:]
    next_offsets[-1:] = next_offset
    place = f"topic {tp.topic} partition {tp.partition}"
    return pa.RecordBatch.from_arrays(
        [
            repeat_text(tp.topic, count),
            from_numpy(np.full(count, tp.partition, np.int32)),
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
            f"timestamp {int(times_ms[row])} ms does not fit into Spark's microseconds; its "
            "producer may have written microseconds or nanoseconds"
        )
    return from_numpy(times_ms * 1000, RECORD_SCHEMA.field("timestamp").type)


def _or_nulls(column: pa.Array | None, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(rows, kind) if column is None else column
