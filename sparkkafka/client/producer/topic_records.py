"""What `send`, `send_many` and `send_table` queue for the I/O thread: checked records of one topic.

A table has the columns and types of the Spark sink: value, key, headers, topic, partition,
timestamp. No Python object is made for a row of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.client.arguments import (
    HEADER_LENGTHS_BYTES,
    InputColumns,
    as_bytes,
    checked_headers,
    checked_number,
    find_columns,
)
from sparkkafka.client.producer.futures import OutcomeNotifier, RecordFutures
from sparkkafka.client.producer.input_rows import InputRows, check_headers, row_times_ms
from sparkkafka.client.producer.produce_errors import too_large
from sparkkafka.client.values import checked_topic
from sparkkafka.config.kinds import INT32_MAX
from sparkkafka.config.options import ProducerOptions
from sparkkafka.errors import EncodeError, OptionError
from sparkkafka.protocol.columns.encode import RecordFields, oversized_record, size_estimate
from sparkkafka.protocol.partitioning import NO_PARTITION
from sparkkafka.protocol.records.arrow import (
    Headers,
    binary_array,
    headers_array,
    is_valid,
    to_numpy,
)
from sparkkafka.protocol.records.batches import RECORD_BATCH_OVERHEAD

MAX_RECORD_OVERHEAD = 21
"""The most bytes that a record's own numbers take, as in Java's DefaultRecord."""


def max_record_bytes(options: ProducerOptions) -> int:
    """Return the size of the largest record that can be sent, without its batch's header."""
    return min(options.max_request_size - RECORD_BATCH_OVERHEAD, options.buffer_memory)


class TopicRecords(RecordFutures):
    """Records of one topic, in order, and their outcomes.

    The first one was queued at `since_s` (monotonic); they count as `size_bytes` of buffer.memory.
    """

    __slots__ = ("since_s", "size_bytes")

    def __init__(self, topic: str, notifier: OutcomeNotifier) -> None:
        super().__init__(topic, notifier)
        self.since_s = time.monotonic()
        self.size_bytes = 0

    @property
    def unfinished_count(self) -> int:
        """The number of records without an outcome."""
        return self._length() if self.pending_count < 0 else self.pending_count

    def _length(self) -> int:
        """Return the number of records so far."""
        raise NotImplementedError

    def close(self) -> None:
        """Take no more records. Called once, by the I/O thread."""
        raise NotImplementedError

    def take_rows(self) -> tuple[InputRows, NDArray[np.int64], NDArray[np.int64] | None]:
        """Return columns, times in milliseconds, and partitions (NO_PARTITION for records that name
        none) or None. Called once: the records are not kept here."""
        raise NotImplementedError


class AppendedRecords(TopicRecords):
    """Records that were queued one by one. `Producer.send` appends to the lists; times are seconds
    since 1970."""

    __slots__ = (
        "explicit_times_ms",
        "headers",
        "keys",
        "partitions",
        "times_s",
        "values",
    )

    def __init__(self, topic: str, notifier: OutcomeNotifier) -> None:
        super().__init__(topic, notifier)
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.times_s: list[float] = []
        # By the record's index; most records have none of these.
        self.headers: dict[int, Headers] = {}
        self.partitions: dict[int, int] = {}
        self.explicit_times_ms: dict[int, int] = {}

    def _length(self) -> int:
        return len(self.values)

    def remove_from(self, index: int, size_bytes: int) -> None:
        """Remove what was stored of the last record, at `index`; the others have `size_bytes`."""
        del self.values[index:], self.keys[index:], self.times_s[index:]
        for fields in (self.headers, self.partitions, self.explicit_times_ms):
            fields.pop(index, None)
        self.size_bytes = size_bytes

    def close(self) -> None:
        times_ms = (np.array(self.times_s, np.float64) * 1000).astype(np.int64)
        if self.explicit_times_ms:
            _set_items(times_ms, self.explicit_times_ms)
        self.times_s = []
        self.explicit_times_ms = {}
        self.begin(times_ms)

    def take_rows(self) -> tuple[InputRows, NDArray[np.int64], NDArray[np.int64] | None]:
        values, self.values = self.values, []
        keys, self.keys = self.keys, []
        headers, self.headers = self.headers, {}
        partitions = None
        if self.partitions:
            partitions = np.full(len(values), NO_PARTITION, np.int64)
            _set_items(partitions, self.partitions)
            self.partitions = {}
        rows = InputRows(
            length=len(values),
            keys=None if keys.count(None) == len(keys) else binary_array(keys),
            values=binary_array(values),
            headers=headers_array(headers, len(values)) if headers else None,
            topics=None,
            fixed_topic=self.topic,
            partitions=None,
        )
        return rows, self.times_ms, partitions

    def take_fields(self) -> list[RecordFields]:
        """Return the records. Called once, in place of `take_rows`, for a few records."""
        values, self.values = self.values, []
        keys, self.keys = self.keys, []
        headers: Iterable[Headers] = repeat(())
        if self.headers:
            headers = [self.headers.get(index, ()) for index in range(len(values))]
            self.headers = {}
        return list(
            map(  # RecordFields(*row) without its __new__, which is Python code
                tuple.__new__,
                repeat(RecordFields),
                zip(keys, values, headers, self.times_ms.tolist(), strict=False),
            )
        )


def max_size_bytes(record: RecordFields) -> int:
    """Return the encoded bytes of a record at most."""
    size_bytes = MAX_RECORD_OVERHEAD + len(record.value or b"") + len(record.key or b"")
    for name, content in record.headers:
        size_bytes += HEADER_LENGTHS_BYTES + len(name.encode()) + len(content or b"")
    return size_bytes


def _set_items(target: NDArray[np.int64], items: Mapping[int, int]) -> None:
    """Set target[index] = value for each index and value of `items`."""
    target[np.fromiter(items.keys(), np.int64, len(items))] = np.fromiter(
        items.values(), np.int64, len(items)
    )


class TableRecords(TopicRecords):
    """Rows of a table, of one topic."""

    __slots__ = ("_partitions_of_rows", "_rows")

    def __init__(
        self,
        notifier: OutcomeNotifier,
        rows: InputRows,
        times_ms: NDArray[np.int64],
        partitions: NDArray[np.int64] | None,
    ) -> None:
        super().__init__(rows.fixed_topic or "", notifier)
        self._rows: InputRows | None = rows
        self.times_ms = times_ms
        self._partitions_of_rows = partitions
        self.size_bytes = size_estimate(rows.records)[0]

    def _length(self) -> int:
        return len(self.times_ms)

    def close(self) -> None:
        self.begin(self.times_ms)

    def take_rows(self) -> tuple[InputRows, NDArray[np.int64], NDArray[np.int64] | None]:
        rows, self._rows = self._rows, None
        if rows is None:
            raise RuntimeError("the rows were taken already")
        return rows, self.times_ms, self._partitions_of_rows


# --- send_many ------------------------------------------------------------------------------------

FIELDS = ("topic", "value", "key", "headers", "partition", "timestamp_ms")
_FIELDS = frozenset(FIELDS)
_USUAL_FIELDS = frozenset({"value", "key"})
_PLAIN_TYPES = frozenset({bytes, type(None)})


class _Series:
    """A series as columns; fields that few records have are kept by the record's number."""

    def __init__(self, records: list[Any], topic: str | None, partition: int | None) -> None:
        self.topic = topic
        self.partition = partition
        self.topics: dict[int, str] = {}
        self.values: list[bytes | None] = records
        self.keys: list[bytes | None] = [None] * len(records)
        self.headers: dict[int, Headers] = {}
        self.partitions: dict[int, int] = {}
        self.times_ms: dict[int, int] = {}
        if topic is not None and _PLAIN_TYPES.issuperset(map(type, records)):
            self.sizes = [
                MAX_RECORD_OVERHEAD + (0 if value is None else len(value)) for value in records
            ]
            return
        self.values = [None] * len(records)
        self.sizes = []
        for number, record in enumerate(records):
            try:
                self.sizes.append(self._append(number, record))
            except OptionError as error:
                raise OptionError(f"record {number} of the series: {error}") from error

    def _append(self, number: int, record: Any) -> int:
        """Append a record; return the bytes that it takes at most."""
        if record.__class__ is not dict and not isinstance(record, Mapping):
            record = {"value": record}
        if not _FIELDS.issuperset(record):
            unknown = next(name for name in record if name not in _FIELDS)
            raise OptionError(f"it has {unknown!r}; a record has {', '.join(FIELDS)}")
        size = MAX_RECORD_OVERHEAD
        get = record.get
        if (value := get("value")) is not None:
            if value.__class__ is not bytes:
                value = as_bytes("value", value)
            self.values[number] = value
            size += len(value)
        if (key := get("key")) is not None:
            if key.__class__ is not bytes:
                key = as_bytes("key", key)
            self.keys[number] = key
            size += len(key)
        if not _USUAL_FIELDS.issuperset(record):
            if (topic := get("topic")) is not None and topic != self.topic:
                self.topics[number] = checked_topic(topic)
            if headers := get("headers"):
                self.headers[number], headers_size = checked_headers(headers)
                size += headers_size
            if (partition := get("partition")) is not None:
                self.partitions[number] = checked_number("partition", partition, INT32_MAX)
            if (time_ms := get("timestamp_ms")) is not None:
                self.times_ms[number] = checked_number("timestamp_ms", time_ms, (1 << 63) - 1)
        if self.topic is None and number not in self.topics:
            raise OptionError("it has no topic, and the series has none: name one of the two")
        return size

    def numbers_by_topic(self) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Yield each topic with the numbers of its records, in their order."""
        count = len(self.values)
        if not self.topics:
            if count and self.topic is not None:
                yield self.topic, np.arange(count)
            return
        numbers: dict[str, list[int]] = {}
        for number in range(count):
            numbers.setdefault(self.topics.get(number) or self.topic or "", []).append(number)
        for topic, rows in numbers.items():
            yield topic, np.array(rows, np.int64)

    def records(
        self, topic: str, notifier: OutcomeNotifier, numbers: NDArray[np.int64], size_bytes: int
    ) -> AppendedRecords:
        """Return the records of these numbers, which have this topic and these bytes in all."""
        records = AppendedRecords(topic, notifier)
        records.numbers = numbers
        records.size_bytes = size_bytes
        first, stop = int(numbers[0]), int(numbers[-1]) + 1
        rows: Sequence[int]
        if stop - first == len(numbers):
            rows = range(first, stop)
            records.values = self.values[first:stop]
            records.keys = self.keys[first:stop]
        else:
            rows = numbers.tolist()
            records.values = [self.values[number] for number in rows]
            records.keys = [self.keys[number] for number in rows]
        records.times_s = [time.time()] * len(rows)
        if self.partition is not None:
            records.partitions = dict.fromkeys(range(len(rows)), self.partition)
        records.headers |= _by_index(self.headers, rows)
        records.partitions |= _by_index(self.partitions, rows)
        records.explicit_times_ms |= _by_index(self.times_ms, rows)
        return records


def _by_index(fields: Mapping[int, Any], numbers: Sequence[int]) -> dict[int, Any]:
    """Return the fields of the records of these numbers, by the index in `numbers` instead of the
    record's number."""
    if not fields:
        return {}
    return {index: fields[number] for index, number in enumerate(numbers) if number in fields}


def series_records(
    series: Iterable[Any],
    topic: str | None,
    partition: int | None,
    notifier: OutcomeNotifier,
    options: ProducerOptions,
    max_bytes: int,
) -> list[AppendedRecords]:
    """Check the whole series, then return it in parts of one topic and about `max_bytes` each.

    `topic` and `partition` are for records that name none. Raises OptionError, ProduceError for a
    record that is too large.
    """
    if isinstance(series, str | bytes | bytearray | memoryview | Mapping) or not isinstance(
        series, Iterable
    ):
        raise OptionError(
            "records must be a list or another iterable of values or dicts, got "
            f"{type(series).__name__}: of one record, call send"
        )
    columns = _Series(list(series), topic, partition)
    sizes = np.array(columns.sizes, np.int64)
    limit_bytes = max_record_bytes(options)
    if len(sizes) and int(sizes.max()) > limit_bytes:
        number = int(np.argmax(sizes > limit_bytes))
        size_bytes = int(sizes[number]) + RECORD_BATCH_OVERHEAD
        name = columns.topics.get(number) or topic or ""
        error = too_large(name, columns.partitions.get(number, partition), size_bytes, options)
        error.args = (f"record {number} of the series: {error}", *error.args[1:])
        raise error
    return [
        columns.records(name, notifier, numbers[first:end], size_bytes)
        for name, numbers in columns.numbers_by_topic()
        for first, end, size_bytes in _split_by_size(sizes[numbers], max_bytes)
    ]


def _split_by_size(sizes: np.ndarray, max_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Cut records of these sizes into parts of up to `max_bytes`, or one larger record. Yield each
    part's start, end and bytes."""
    ends = np.cumsum(sizes)
    first, before = 0, 0
    while first < len(sizes):
        end = max(first + 1, int(np.searchsorted(ends, before + max_bytes, side="right")))
        after = int(ends[end - 1])
        yield first, end, after - before
        first, before = end, after


# --- send_table -----------------------------------------------------------------------------------

_PART_BYTES = 2**20
"""About the size of a table's parts: the first are sent while others are made, within
buffer.memory."""


class ArrowStream(Protocol):
    """A table of any library that exports Arrow's C stream (the Arrow PyCapsule interface)."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


def arrow_table(table: ArrowStream) -> pa.Table:
    """Return the table as a pyarrow Table, without a copy if its library has Arrow columns. Raises
    OptionError for an object that is no table."""
    if isinstance(table, pa.Table):
        return table
    if not hasattr(table, "__arrow_c_stream__"):
        raise OptionError(
            "a table is a pyarrow Table or RecordBatch, or another DataFrame that exports Arrow's "
            f"C stream (Polars, DuckDB, pandas 2.2 or later), got {type(table).__name__}"
        )
    try:
        return pa.table(table)
    except (TypeError, pa.ArrowException) as error:
        raise OptionError(
            f"cannot convert a {type(table).__name__} to an Arrow table: {error}"
        ) from error


def table_records(
    table: ArrowStream,
    topic: str | None,
    notifier: OutcomeNotifier,
    options: ProducerOptions,
) -> list[TableRecords]:
    """Check all rows, then return them in parts of one topic each. Raises OptionError for columns,
    EncodeError and ProduceError for rows."""
    source = arrow_table(table)
    columns = table_columns(source.schema, topic)
    now_ms = time.time_ns() // 1_000_000
    max_bytes = max(1, min(_PART_BYTES, options.buffer_memory // 4))
    parts: list[TableRecords] = []
    first_row = 0
    for batch in source.to_batches():
        for part in _table_parts(batch, max_bytes):
            rows = InputRows.of(part, columns)
            check_headers(rows, first_row, "the table")
            times_ms = row_times_ms(rows, now_ms, first_row, "the table")
            partitions = _checked_partitions(rows, first_row)
            _check_row_sizes(rows, first_row, options)
            last_row = first_row + part.num_rows
            for name, indexes in _rows_by_topic(rows, first_row):
                records = TableRecords(
                    notifier,
                    (rows if indexes is None else rows.take(indexes))._replace(
                        topics=None, fixed_topic=name, partitions=None, timestamps=None
                    ),
                    np.array(times_ms if indexes is None else times_ms[indexes]),
                    partitions if partitions is None or indexes is None else partitions[indexes],
                )
                records.numbers = (
                    range(first_row, last_row) if indexes is None else first_row + indexes
                )
                parts.append(records)
            first_row = last_row
    return parts


def _table_parts(batch: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch into slices of equal length and about `max_bytes` or less."""
    if not batch.num_rows:
        return
    count = max(1, min(batch.num_rows, -(-batch.nbytes // max_bytes)))
    size = -(-batch.num_rows // count)
    for start in range(0, batch.num_rows, size):
        yield batch.slice(start, size)


def _rows_by_topic(
    rows: InputRows, first_row: int
) -> Iterator[tuple[str, NDArray[np.int64] | None]]:
    """Yield each topic and the indexes of its rows (None: all rows). Raises EncodeError for a row
    without a topic."""
    if rows.topics is None:
        yield rows.fixed_topic or "", None
        return
    if rows.topics.null_count:
        row = int(np.argmin(is_valid(rows.topics)))
        raise EncodeError(f"row {first_row + row} of the table has no topic: the column is null")
    coded = rows.topics.dictionary_encode()
    names = coded.dictionary.to_pylist()
    if "" in names:
        raise EncodeError("a row of the table has an empty text as topic")
    for name in names:
        try:
            checked_topic(name)
        except OptionError as error:
            raise EncodeError(f"a row of the table: {error}") from error
    if len(names) == 1:
        yield names[0], None
        return
    codes = to_numpy(coded.indices)
    for code, name in enumerate(names):
        yield name, np.flatnonzero(codes == code)


def _checked_partitions(rows: InputRows, first_row: int) -> NDArray[np.int64] | None:
    """Return the partition that each row names, or NO_PARTITION; None if there is no such column.
    Raises EncodeError for a negative one."""
    if rows.partitions is None:
        return None
    partitions = to_numpy(rows.partitions).astype(np.int64)
    is_named = is_valid(rows.partitions)
    is_negative = is_named & (partitions < 0)
    if is_negative.any():
        row = int(np.argmax(is_negative))
        raise EncodeError(
            f"row {first_row + row} of the table has partition {int(partitions[row])}: partitions "
            "are counted from 0"
        )
    partitions[~is_named] = NO_PARTITION
    return partitions


def _check_row_sizes(rows: InputRows, first_row: int, options: ProducerOptions) -> None:
    """Raise ProduceError for a row that is larger than max.request.size or buffer.memory."""
    oversized = oversized_record(rows.records, max_record_bytes(options))
    if oversized is not None:
        row, size_bytes = oversized
        topic = rows.fixed_topic if rows.topics is None else rows.topics[row].as_py()
        error = too_large(str(topic), None, size_bytes + RECORD_BATCH_OVERHEAD, options)
        error.args = (f"row {first_row + row} of the table: {error}",)
        raise error


def table_columns(schema: pa.Schema, topic: str | None) -> InputColumns:
    """Return the positions of the columns. Raises OptionError."""

    def is_usable(name: str, position: int) -> bool:
        """Whether a column counts: one of nulls does not. Raises OptionError for a wrong type."""
        kind = schema.field(position).type
        if kind == pa.null() and name not in ("value", "topic"):
            return False  # nothing is in it, as pandas leaves a column of None
        is_right, types = _COLUMN_TYPES[name]
        if not is_right(kind.value_type if pa.types.is_dictionary(kind) else kind):
            raise OptionError(f"column {name} is {kind}, it must be {types}: cast it")
        return True

    missing = {
        "value": f"the table has no column value (it has {', '.join(schema.names)})",
        "topic": "no topic: give the argument topic, or a column topic",
    }
    return find_columns(schema.names, topic, is_usable, missing)


def _is_text(kind: pa.DataType) -> bool:
    return str(kind) in ("string", "large_string", "string_view")


def _is_bytes(kind: pa.DataType) -> bool:
    binary = str(kind) in ("binary", "large_binary", "binary_view", "null")
    return binary or _is_text(kind) or pa.types.is_fixed_size_binary(kind)


def _is_headers(kind: pa.DataType) -> bool:
    """Whether the type is that of a column `headers`: see its row of `_COLUMN_TYPES`."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    inner = kind.value_type
    if inner == pa.null():  # of empty lists only, nobody has said what could be in them
        return True
    return (
        pa.types.is_struct(inner)
        and [inner.field(at).name for at in range(inner.num_fields)] == ["key", "value"]
        and _is_text(inner.field(0).type)
        and _is_bytes(inner.field(1).type)
    )


# By column: whether a type is right, and the right types in words.
_COLUMN_TYPES: Mapping[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "value": (_is_bytes, "binary or string"),
    "key": (_is_bytes, "binary or string"),
    "headers": (_is_headers, "a list of structs of key: string, value: binary"),
    "topic": (_is_text, "string"),
    "partition": (pa.types.is_integer, "an integer"),
    "timestamp": (pa.types.is_timestamp, "a timestamp"),
}
