"""The records that a caller sends, checked and converted to what the protocol needs.

`send`, `send_many` and `send_table` queue them for the I/O thread as `TopicRecords`, by topic. The
rows of a table, which has the columns and types of the Spark sink (value, key, headers, topic,
partition, timestamp), are `InputRows`, also in Spark's tasks. No Python object is created for a
row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkkafka.client.arguments import (
    HEADER_LENGTHS_BYTES,
    InputColumns,
    as_bytes,
    checked_headers,
    checked_int,
    find_columns,
)
from sparkkafka.client.producer.futures import Indexes, OutcomeNotifier, TopicRecords
from sparkkafka.client.producer.produce_errors import too_large
from sparkkafka.client.values import checked_topic
from sparkkafka.config.kinds import INT32_MAX
from sparkkafka.config.options import ProducerOptions
from sparkkafka.errors import EncodeError, OptionError, ProduceError
from sparkkafka.protocol.columns.columns import content_bytes
from sparkkafka.protocol.columns.encode import (
    RecordColumns,
    RecordFields,
    oversized_record,
    size_estimate,
    taken,
)
from sparkkafka.protocol.constants import NO_TIMESTAMP, RECORD_BATCH_OVERHEAD
from sparkkafka.protocol.partitioning import NO_PARTITION
from sparkkafka.protocol.records.arrow import (
    Headers,
    binary_array,
    headers_array,
    is_valid,
    or_zero,
    to_numpy,
)

MAX_RECORD_OVERHEAD = 21
"""The most bytes that a record's own numbers take, as in Java's DefaultRecord."""


def max_record_bytes(options: ProducerOptions) -> int:
    """Return the size of the largest record that can be sent. The header of its batch is not part
    of the size."""
    return min(options.max_request_size - RECORD_BATCH_OVERHEAD, options.buffer_memory)


# --- rows of Arrow batches -----------------------------------------------------------------------


class InputRows(NamedTuple):
    """The columns of one Arrow batch, in the types that the protocol needs. `topics` is None if all
    rows go to `fixed_topic`."""

    length: int
    keys: pa.Array | None
    values: pa.Array
    headers: pa.Array | None
    topics: pa.Array | None
    fixed_topic: str | None
    partitions: pa.Array | None
    timestamps: pa.Array | None = None  # microseconds since 1970, int64

    @classmethod
    def of(cls, batch: pa.RecordBatch, columns: InputColumns, first_row: int = 0) -> InputRows:
        """Cast an Arrow batch to the types that the protocol needs; `columns` says where in it each
        column is.

        Raises EncodeError for a partition or timestamp that the type cannot hold, with the row's
        number in the table: `first_row` is that of the batch's first one.
        """

        def cast(position: int | None, arrow_type: pa.DataType) -> pa.Array | None:
            """Return the column at this position as a column of this type; None without one."""
            return None if position is None else _cast(batch.column(position), arrow_type)

        partitions = timestamps = None
        if columns.partition is not None:
            column = batch.column(columns.partition)
            partitions = _cast_numbers(column, pa.int32(), "partition", first_row)
        if columns.timestamp is not None:
            timestamps = _cast_timestamps(batch.column(columns.timestamp), first_row)
        return cls(
            length=batch.num_rows,
            keys=cast(columns.key, pa.binary()),
            values=_cast(batch.column(columns.value), pa.binary()),
            headers=cast(columns.headers, _HEADERS),
            topics=None if columns.fixed_topic is not None else cast(columns.topic, pa.string()),
            fixed_topic=columns.fixed_topic,
            partitions=partitions,
            timestamps=timestamps,
        )

    @property
    def payload_bytes(self) -> int:
        """The bytes of keys and values."""
        return sum(_bytes_in(column) for column in (self.keys, self.values) if column is not None)

    def checked_columns(self, now_ms: int, first_row: int, table: str) -> RecordColumns:
        """Return the rows as records; those without a timestamp get `now_ms`.

        Raises EncodeError for a null header key and a time before 1970, with the row's number in
        `table`: `first_row` is that of the first of these rows.
        """
        check_headers(self, first_row, table)
        times_ms = row_times_ms(self, now_ms, first_row, table)
        return RecordColumns(self.keys, self.values, self.headers, times_ms)

    def topic_codes(
        self, first_row: int, table: str, null_text: str
    ) -> tuple[list[str], NDArray[np.int64] | None]:
        """Return the distinct topics, and each row's index into them (None: there is one topic).
        Raises EncodeError, which begins with `null_text`, for a row without a topic."""
        if self.topics is None:
            return [self.fixed_topic or ""], None
        if self.topics.null_count:
            row = int(np.argmin(is_valid(self.topics)))
            raise EncodeError(
                f"{null_text} (row {first_row + row} of {table}{key_text(self, row)})"
            )
        coded = self.topics.dictionary_encode()
        names = coded.dictionary.to_pylist()
        return names, None if len(names) == 1 else to_numpy(coded.indices)


def columns_of(
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Mapping[int, Headers],
    timestamps_ms: NDArray[np.int64],
) -> RecordColumns:
    """Return columns of records that were sent one by one. `headers` maps the index of a record to
    its headers."""
    return RecordColumns(
        keys=None if keys.count(None) == len(keys) else binary_array(keys),
        values=binary_array(values),
        headers=headers_array(headers, len(values)) if headers else None,
        timestamps_ms=timestamps_ms,
    )


def _cast(column: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Return the column as this type. Arrow's cast of text to binary copies nothing."""
    if pa.types.is_dictionary(column.type):  # Arrow cannot decode one of views
        return column.dictionary.cast(arrow_type).take(column.indices)
    return column if column.type == arrow_type else column.cast(arrow_type)


_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""The type of headers, as Spark has them."""


def _cast_timestamps(column: pa.Array, first_row: int) -> pa.Array:
    """Return timestamps as int64 microseconds since 1970 UTC. Raises the errors of
    `_cast_numbers`."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = pa.timestamp("us", column.type.tz)
    if column.type.unit == "ns":  # Arrow rounds ns only with a cast in which longer units overflow
        column = column.cast(kind, safe=False)
    # The same moment, whatever the zone.
    return _cast_numbers(column, kind, "timestamp", first_row).cast(pa.int64())


def _cast_numbers(column: pa.Array, arrow_type: pa.DataType, name: str, first_row: int) -> pa.Array:
    """Cast a column of numbers. Raises EncodeError, which names the column and the row (the first
    one is `first_row` of the user's table), for a number that the type cannot hold."""
    try:
        return _cast(column, arrow_type)
    except pa.ArrowInvalid as error:
        row = first_row
        with suppress(pa.ArrowInvalid):
            for value in column:
                value.cast(arrow_type)
                row += 1
        raise EncodeError(f"column {name}, row {row} of the table: {error}") from error


def row_times_ms(rows: InputRows, now_ms: int, first_row: int, table: str) -> NDArray[np.int64]:
    """Return each row's time in ms, or `now_ms` for a row without a timestamp. Times are rounded
    down, as in the JVM connector.

    Raises EncodeError for a time before 1970. It names the row in `table`, where `first_row` is the
    number of the first of these rows.
    """
    if rows.timestamps is None or rows.timestamps.null_count == rows.length:
        return np.broadcast_to(np.int64(now_ms), rows.length)
    timestamps_ms = to_numpy(rows.timestamps) // 1000
    if rows.timestamps.null_count:
        timestamps_ms[~is_valid(rows.timestamps)] = now_ms
    # -1 means "no timestamp": copies of old records have it.
    if int(timestamps_ms.min()) < NO_TIMESTAMP:
        row = int(timestamps_ms.argmin())
        raise EncodeError(
            f"the timestamp {int(timestamps_ms[row])} ms is before 1970, and Kafka stores no "
            f"such timestamp (column timestamp, row {first_row + row} of {table}"
            f"{key_text(rows, row)})"
        )
    return timestamps_ms


def check_headers(rows: InputRows, first_row: int, table: str) -> None:
    """Raise EncodeError for a header without a key, with the row's number in `table`: `first_row`
    is that of the first of these rows."""
    if rows.headers is None:
        return
    structs = rows.headers.flatten()
    keys = structs.field("key")
    if not structs.null_count and not keys.null_count:
        return
    bad = np.flatnonzero(~(is_valid(structs) & is_valid(keys)))[0]
    lengths = or_zero(pc.list_value_length(rows.headers))
    row = int(np.searchsorted(np.cumsum(lengths), bad, side="right"))
    raise EncodeError(
        f"a header without a key (row {first_row + row} of {table}"
        f"{key_text(rows, row)}): Kafka's header keys cannot be null"
    )


def _bytes_in(column: pa.Array) -> int:
    """Return the bytes of a binary column's values."""
    if column.null_count:  # Arrow does not say what lies under a null
        return int(or_zero(pc.binary_length(column)).sum(dtype=np.int64))
    return content_bytes(column)


def key_text(rows: InputRows, row: int) -> str:
    """Return the row's key, shortened, as the end of an error message; "" if there is no key."""
    if rows.keys is None or not rows.keys[row].is_valid:
        return ""
    key = rows.keys[row].as_py()
    return f", key {key[:40]!r}{'…' if len(key) > 40 else ''}"


# --- records that are queued for the I/O thread --------------------------------------------------


class AppendedRecords(TopicRecords):
    """Records that were queued one by one. `Producer.send` appends to the lists; times are seconds
    since 1970."""

    __slots__ = ("explicit_times_ms", "headers", "keys", "partitions", "sent_at_s", "values")

    def __init__(self, topic: str, notifier: OutcomeNotifier) -> None:
        super().__init__(topic, notifier)
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.sent_at_s: list[float] = []  # seconds since 1970
        # By the record's index; most records have none of these.
        self.headers: dict[int, Headers] = {}
        self.partitions: dict[int, int] = {}
        self.explicit_times_ms: dict[int, int] = {}

    @property
    def unfinished_count(self) -> int:
        return len(self.values) if self.pending_count < 0 else self.pending_count

    def remove_from(self, index: int, size_bytes: int) -> None:
        """Remove the last record, which is at `index` and perhaps incomplete. The records before it
        have `size_bytes`."""
        del self.values[index:], self.keys[index:], self.sent_at_s[index:]
        for fields in (self.headers, self.partitions, self.explicit_times_ms):
            fields.pop(index, None)
        self.size_bytes = size_bytes

    def close(self) -> None:
        """Take no more records: their timestamps become one array of milliseconds."""
        if len(self.sent_at_s) < 8:  # a lone record: one operation of NumPy instead of three
            times_ms = np.array([int(at_s * 1000) for at_s in self.sent_at_s], np.int64)
        else:
            times_ms = (np.array(self.sent_at_s, np.float64) * 1000).astype(np.int64)
        if self.explicit_times_ms:
            _set_items(times_ms, self.explicit_times_ms)
        self.sent_at_s = []
        self.explicit_times_ms = {}
        self.begin(times_ms)

    def take_columns(self) -> tuple[RecordColumns, NDArray[np.int64] | None]:
        """Return the records as columns, and the partition of each that was sent to one
        (NO_PARTITION for the others; None if there are none). The lists are empty then."""
        values, self.values = self.values, []
        keys, self.keys = self.keys, []
        headers, self.headers = self.headers, {}
        partitions = None
        if self.partitions:
            partitions = np.full(len(values), NO_PARTITION, np.int64)
            _set_items(partitions, self.partitions)
            self.partitions = {}
        return columns_of(keys, values, headers, self.times_ms), partitions

    def take_fields(self) -> list[RecordFields]:
        """Remove and return the records one by one. Called once, in place of `take_columns`, for a
        few records."""
        values, self.values = self.values, []
        keys, self.keys = self.keys, []
        headers: Iterable[Headers] = repeat(())
        if self.headers:
            headers = [self.headers.get(index, ()) for index in range(len(values))]
            self.headers = {}
        return list(zip(keys, values, headers, self.times_ms.tolist(), strict=False))


def max_size_bytes(record: RecordFields) -> int:
    """Return an upper bound of the bytes of the encoded record."""
    key, value, headers, _ = record
    size_bytes = MAX_RECORD_OVERHEAD + len(value or b"") + len(key or b"")
    for name, content in headers:
        size_bytes += HEADER_LENGTHS_BYTES + len(name.encode()) + len(content or b"")
    return size_bytes


def _set_items(target: NDArray[np.int64], items: Mapping[int, int]) -> None:
    """Set target[index] = value for each index and value of `items`."""
    target[np.fromiter(items.keys(), np.int64, len(items))] = np.fromiter(
        items.values(), np.int64, len(items)
    )


class TableRecords(TopicRecords):
    """Rows of a table for one topic. `numbers` are their row numbers in the table."""

    __slots__ = ("_columns", "_named_partitions")

    def __init__(
        self,
        topic: str,
        notifier: OutcomeNotifier,
        columns: RecordColumns,
        partitions: NDArray[np.int64] | None,
        numbers: Indexes,
    ) -> None:
        super().__init__(topic, notifier)
        self.begin(np.array(columns.timestamps_ms))  # a copy: outcomes change it
        self._columns: RecordColumns | None = columns._replace(timestamps_ms=self.times_ms)
        self._named_partitions = partitions
        self.numbers = numbers
        self.size_bytes, _ = size_estimate(columns)

    def take_columns(self) -> tuple[RecordColumns, NDArray[np.int64] | None]:
        """Return the rows and the partitions that they name, once."""
        columns, self._columns = self._columns, None
        if columns is None:
            raise RuntimeError("the rows were taken already")
        return columns, self._named_partitions


# --- send_many ------------------------------------------------------------------------------------

FIELDS = ("topic", "value", "key", "headers", "partition", "timestamp_ms")
_FIELDS = frozenset(FIELDS)
_USUAL_FIELDS = frozenset({"value", "key"})

_OptionalFields = tuple[Headers, int | None, int | None]
"""Headers, partition and timestamp of a record that has one of them."""


def _parse_record(
    record: Any, topic: str | None
) -> tuple[str | None, bytes | None, bytes | None, int, _OptionalFields | None]:
    """Check a record of `send_many`. One that is no mapping is a value. Return its topic (`topic`,
    unless it names its own), its value and key, an upper bound of its bytes, and its optional
    fields, None if it has none of them. Raises OptionError."""
    if record.__class__ is not dict and not isinstance(record, Mapping):
        record = {"value": record}
    size = MAX_RECORD_OVERHEAD
    if (value := record.get("value")) is not None:
        if value.__class__ is not bytes:
            value = as_bytes("value", value)
        size += len(value)
    if (key := record.get("key")) is not None:
        if key.__class__ is not bytes:
            key = as_bytes("key", key)
        size += len(key)
    if _USUAL_FIELDS.issuperset(record):
        return topic, value, key, size, None
    if not _FIELDS.issuperset(record):
        unknown = next(name for name in record if name not in _FIELDS)
        raise OptionError(f"it has {unknown!r}; a record has {', '.join(FIELDS)}")
    if (own_topic := record.get("topic")) is not None and own_topic != topic:
        topic = checked_topic(own_topic)
    headers: Headers = ()
    if record_headers := record.get("headers"):
        headers, headers_size = checked_headers(record_headers)
        size += headers_size
    if (partition := record.get("partition")) is not None:
        partition = checked_int(partition, "partition", 0, INT32_MAX)
    if (time_ms := record.get("timestamp_ms")) is not None:
        time_ms = checked_int(time_ms, "timestamp_ms", 0)
    return topic, value, key, size, (headers, partition, time_ms)


def series_records(
    series: Iterable[Any],
    topic: str | None,
    partition: int | None,
    notifier: OutcomeNotifier,
    options: ProducerOptions,
    max_bytes: int,
) -> list[AppendedRecords]:
    """Check the records of `send_many`, then return them in parts of one topic and about
    `max_bytes` each.

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
    items = list(series)
    if topic is not None and {bytes, type(None)}.issuperset(map(type, items)):
        return _value_records(items, topic, partition, notifier, options, max_bytes)
    parts: list[AppendedRecords] = []
    open_parts: dict[str, AppendedRecords] = {}
    limit_bytes, now_s = max_record_bytes(options), time.time()
    for number, record in enumerate(items):
        try:
            name, value, key, size, rare = _parse_record(record, topic)
            if name is None:
                raise OptionError("it has no topic, and the series has none: name one of the two")
        except OptionError as error:
            raise OptionError(f"record {number} of the series: {error}") from error
        headers, own_partition, time_ms = rare or ((), None, None)
        named = partition if own_partition is None else own_partition
        if size > limit_bytes:
            raise _too_large_in_series(number, name, named, size, options)
        records = open_parts.get(name)
        if records is None or records.size_bytes + size > max_bytes:
            records = open_parts[name] = AppendedRecords(name, notifier)
            records.numbers = []
            parts.append(records)
        values = records.values
        if headers:
            records.headers[len(values)] = headers
        if time_ms is not None:
            records.explicit_times_ms[len(values)] = time_ms
        if named is not None:
            records.partitions[len(values)] = named
        values.append(value)
        records.keys.append(key)
        records.sent_at_s.append(now_s)
        records.numbers.append(number)  # type: ignore[union-attr]
        records.size_bytes += size
    return parts


def _value_records(
    values: list[bytes | None],
    topic: str,
    partition: int | None,
    notifier: OutcomeNotifier,
    options: ProducerOptions,
    max_bytes: int,
) -> list[AppendedRecords]:
    """Check values for one topic and partition, all together, and return them in parts of about
    `max_bytes`. Raises ProduceError for a record that is too large."""
    sizes = np.array([0 if value is None else len(value) for value in values], np.int64)
    sizes += MAX_RECORD_OVERHEAD
    is_too_large = sizes > max_record_bytes(options)
    if is_too_large.any():
        number = int(is_too_large.argmax())
        raise _too_large_in_series(number, topic, partition, int(sizes[number]), options)
    ends = np.cumsum(sizes)
    parts = []
    first, before = 0, 0
    while first < len(values):
        end = max(first + 1, int(np.searchsorted(ends, before + max_bytes, side="right")))
        records = AppendedRecords(topic, notifier)
        records.numbers = range(first, end)
        records.values = values[first:end]
        records.keys = [None] * (end - first)
        records.sent_at_s = [time.time()] * (end - first)
        if partition is not None:
            records.partitions = dict.fromkeys(range(end - first), partition)
        records.size_bytes = int(ends[end - 1]) - before
        parts.append(records)
        first, before = end, int(ends[end - 1])
    return parts


def _too_large_in_series(
    number: int, topic: str, partition: int | None, size_bytes: int, options: ProducerOptions
) -> ProduceError:
    """Return the error for record `number` of a `send_many`, which is larger than a request."""
    error = too_large(topic, partition, size_bytes + RECORD_BATCH_OVERHEAD, options)
    error.args = (f"record {number} of the series: {error}", *error.args[1:])
    return error


# --- send_table -----------------------------------------------------------------------------------


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
    table: ArrowStream, topic: str | None, notifier: OutcomeNotifier, options: ProducerOptions
) -> list[TableRecords]:
    """Check the rows of `send_table`, then return them in parts of one topic each. Raises
    OptionError for columns, EncodeError and ProduceError for rows."""
    source = arrow_table(table)
    columns = table_columns(source.schema, topic)
    now_ms = time.time_ns() // 1_000_000
    # Several parts, so that the first are sent while others are made, within buffer.memory.
    max_bytes = max(1, min(2**20, options.buffer_memory // 4))
    parts: list[TableRecords] = []
    first_row = 0
    for batch in source.to_batches():
        for part in _table_parts(batch, max_bytes):
            rows = InputRows.of(part, columns, first_row)
            records = rows.checked_columns(now_ms, first_row, "the table")
            partitions = _checked_partitions(rows, first_row)
            topics, topic_of_row = _checked_topics(rows, first_row)
            _check_row_sizes(rows, records, first_row, options)
            last_row = first_row + part.num_rows
            if topic_of_row is None:
                numbers = range(first_row, last_row)
                parts.append(TableRecords(topics[0], notifier, records, partitions, numbers))
            else:
                for code, name in enumerate(topics):
                    indexes = np.flatnonzero(topic_of_row == code)
                    chosen = None if partitions is None else partitions[indexes]
                    topic_columns = taken(records, indexes)
                    parts.append(
                        TableRecords(name, notifier, topic_columns, chosen, first_row + indexes)
                    )
            first_row = last_row
    return parts


def _table_parts(batch: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Cut an Arrow RecordBatch into slices of about `max_bytes` or less, with equally many rows."""
    if not batch.num_rows:
        return
    count = max(1, min(batch.num_rows, -(-batch.nbytes // max_bytes)))
    size = -(-batch.num_rows // count)
    for start in range(0, batch.num_rows, size):
        yield batch.slice(start, size)


def _checked_topics(rows: InputRows, first_row: int) -> tuple[list[str], NDArray[np.int64] | None]:
    """Return the distinct topics, and each row's index into them (None: there is one topic). Raises
    EncodeError for a null or wrong topic."""
    codes = rows.topic_codes(first_row, "the table", "a row has no topic: the column is null")
    if rows.topics is not None:
        for name in codes[0]:
            try:
                checked_topic(name)
            except OptionError as error:
                raise EncodeError(f"a row of the table: {error}") from error
    return codes


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


def _check_row_sizes(
    rows: InputRows, records: RecordColumns, first_row: int, options: ProducerOptions
) -> None:
    """Raise ProduceError for a row that is larger than max.request.size or buffer.memory."""
    oversized = oversized_record(records, max_record_bytes(options))
    if oversized is not None:
        row, size_bytes = oversized
        topic = rows.fixed_topic if rows.topics is None else rows.topics[row].as_py()
        error = too_large(str(topic), None, size_bytes + RECORD_BATCH_OVERHEAD, options)
        error.args = (f"row {first_row + row} of the table: {error}",)
        raise error


def table_columns(schema: pa.Schema, topic: str | None) -> InputColumns:
    """Return where in the table each column of a record is. Raises OptionError."""

    def is_usable(name: str, position: int) -> bool:
        """Return whether the column is written; a column of nulls is not. Raises OptionError for a
        wrong type."""
        arrow_type = schema.field(position).type
        if arrow_type == pa.null() and name not in ("value", "topic"):
            return False  # nothing is in it, as pandas leaves a column of None
        is_right, types = _COLUMN_TYPES[name]
        if not is_right(
            arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type
        ):
            raise OptionError(f"column {name} is {arrow_type}, it must be {types}: cast it")
        return True

    missing = {
        "value": f"the table has no column value (it has {', '.join(schema.names)})",
        "topic": "no topic: give the argument topic, or a column topic",
    }
    return find_columns(schema.names, topic, is_usable, missing)


def _is_text(arrow_type: pa.DataType) -> bool:
    return str(arrow_type) in ("string", "large_string", "string_view")


def _is_bytes(arrow_type: pa.DataType) -> bool:
    binary = str(arrow_type) in ("binary", "large_binary", "binary_view", "null")
    return binary or _is_text(arrow_type) or pa.types.is_fixed_size_binary(arrow_type)


def _is_headers(arrow_type: pa.DataType) -> bool:
    """Return whether the type is that of a column `headers`: see its row of `_COLUMN_TYPES`."""
    if not (pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type)):
        return False
    inner = arrow_type.value_type
    if inner == pa.null():  # all lists are empty: the type of their items is not known
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
