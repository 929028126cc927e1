"""`send_many` and `send_table`: series and tables become chunks of checked records.

A table has the columns and types of the Spark sink: value, key, headers, topic, partition,
timestamp. No Python object is made for a row.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.client.arguments import (
    InputColumns,
    as_bytes,
    checked_headers,
    checked_number,
    find_columns,
)
from sparkkafka.client.producer.futures import (
    PENDING,
    WHOLE,
    NoticeBoard,
    RecordFailure,
    RecordFutures,
    await_outcome,
    checked_callback,
    run_callback,
)
from sparkkafka.client.producer.partitioner import InputRows, check_headers, row_times_ms
from sparkkafka.client.producer.produce_errors import too_large
from sparkkafka.client.producer.send_buffer import (
    RECORD_BYTES,
    Chunk,
    RecordChunk,
)
from sparkkafka.client.values import TopicPartition, checked_topic
from sparkkafka.config.kinds import INT32_MAX
from sparkkafka.config.options import ProducerOptions
from sparkkafka.errors import EncodeError, KafkaError, OptionError
from sparkkafka.protocol.columns.encode import record_sizes, size_estimate
from sparkkafka.protocol.partitioning import NO_PARTITION
from sparkkafka.protocol.records.arrow import Headers, is_valid, to_numpy
from sparkkafka.protocol.records.batches import HEADER_BYTES

PIECE_BYTES = 2**20
"""The size of a table's chunks, about: the first are sent while others are made, within
buffer.memory."""

FIELDS = ("topic", "value", "key", "headers", "partition", "timestamp_ms")
_FIELDS = frozenset(FIELDS)
_FEW = frozenset({"value", "key"})  # most records have no more
_PLAIN = frozenset({bytes, type(None)})


class _Series:
    """A series as columns; fields that few records have are kept by number."""

    def __init__(self, records: list[Any], topic: str | None, partition: int | None) -> None:
        self.topic = topic
        self.partition = partition
        self.topics: dict[int, str] = {}
        self.values: list[bytes | None] = records
        self.keys: list[bytes | None] = [None] * len(records)
        self.headers: dict[int, Headers] = {}
        self.partitions: dict[int, int] = {}
        self.times_ms: dict[int, int] = {}
        if topic is not None and _PLAIN.issuperset(map(type, records)):
            self.sizes = [RECORD_BYTES + (0 if value is None else len(value)) for value in records]
            return
        self.values = [None] * len(records)
        self.sizes = []
        for number, record in enumerate(records):
            try:
                self.sizes.append(self._take(number, record))
            except OptionError as error:
                raise OptionError(f"record {number} of the series: {error}") from error

    def _take(self, number: int, record: Any) -> int:
        """Add a record; returns the bytes that it takes at most."""
        if record.__class__ is not dict and not isinstance(record, Mapping):
            record = {"value": record}
        if not _FIELDS.issuperset(record):
            unknown = next(name for name in record if name not in _FIELDS)
            raise OptionError(f"it has {unknown!r}; a record has {', '.join(FIELDS)}")
        size = RECORD_BYTES
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
        if not _FEW.issuperset(record):
            size += self._take_others(number, get)
        if self.topic is None and number not in self.topics:
            raise OptionError("it has no topic, and the series has none: name one of the two")
        return size

    def _take_others(self, number: int, get: Callable[[str], Any]) -> int:
        size = 0
        if (topic := get("topic")) is not None and topic != self.topic:
            self.topics[number] = checked_topic(topic)
        if headers := get("headers"):
            self.headers[number], size = checked_headers(headers)
        if (partition := get("partition")) is not None:
            self.partitions[number] = checked_number("partition", partition, INT32_MAX)
        if (time_ms := get("timestamp_ms")) is not None:
            self.times_ms[number] = checked_number("timestamp_ms", time_ms, (1 << 63) - 1)
        return size

    def numbers_by_topic(self) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """The numbers of each topic's records, in their order."""
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


def series_chunks(
    records: Iterable[Any],
    topic: str | None,
    partition: int | None,
    board: NoticeBoard,
    options: ProducerOptions,
    chunk_bytes: Callable[[str], int],
) -> list[RecordChunk]:
    """Chunks of one topic each and about `chunk_bytes(topic)`, after a check of all records.

    `topic` and `partition` are for records that name none. Raises OptionError, ProduceError for a
    record that is too large.
    """
    if isinstance(records, str | bytes | bytearray | memoryview | Mapping) or not isinstance(
        records, Iterable
    ):
        raise OptionError(
            "records must be a list or another iterable of values or dicts, got "
            f"{type(records).__name__}: of one record, call send"
        )
    series = _Series(list(records), topic, partition)
    sizes = np.array(series.sizes, np.int64)
    most_bytes = min(options.max_request_size - HEADER_BYTES, options.buffer_memory)
    if len(sizes) and int(sizes.max()) > most_bytes:
        number = int(np.argmax(sizes > most_bytes))
        size_bytes = int(sizes[number]) + HEADER_BYTES
        name = series.topics.get(number) or topic or ""
        error = too_large(name, series.partitions.get(number, partition), size_bytes, options)
        error.args = (f"record {number} of the series: {error}", *error.args[1:])
        raise error
    return [
        _chunk(series, name, board, numbers[first:end], size_bytes)
        for name, numbers in series.numbers_by_topic()
        for first, end, size_bytes in _parts(sizes[numbers], chunk_bytes(name))
    ]


def _parts(sizes: np.ndarray, most_bytes: int) -> Iterator[tuple[int, int, int]]:
    """The records of each chunk, at least one, as start and end, and their bytes."""
    ends = np.cumsum(sizes)
    first, before = 0, 0
    while first < len(sizes):
        end = max(first + 1, int(np.searchsorted(ends, before + most_bytes, side="right")))
        after = int(ends[end - 1])
        yield first, end, after - before
        first, before = end, after


def _chunk(
    series: _Series, topic: str, board: NoticeBoard, numbers: NDArray[np.int64], size_bytes: int
) -> RecordChunk:
    chunk = RecordChunk(topic, board, 0, 0)
    chunk.numbers = numbers
    chunk.size_bytes = size_bytes
    first, stop = int(numbers[0]), int(numbers[-1]) + 1
    rows: Sequence[int]
    if stop - first == len(numbers):
        rows = range(first, stop)
        chunk.values = series.values[first:stop]
        chunk.keys = series.keys[first:stop]
    else:
        rows = numbers.tolist()
        chunk.values = [series.values[number] for number in rows]
        chunk.keys = [series.keys[number] for number in rows]
    chunk.times_s = [time.time()] * len(rows)
    if series.partition is not None:
        chunk.partitions = dict.fromkeys(range(len(rows)), series.partition)
    chunk.headers |= _by_index(series.headers, rows)
    chunk.partitions |= _by_index(series.partitions, rows)
    chunk.given_times_ms |= _by_index(series.times_ms, rows)
    return chunk


def _by_index(found: Mapping[int, Any], numbers: Sequence[int]) -> dict[int, Any]:
    """Fields of some records of the series, by their index in `numbers`."""
    if not found:
        return {}
    return {index: found[number] for index, number in enumerate(numbers) if number in found}


# --- tables ---


class TableChunk(Chunk):
    """InputRows of a table, of one topic."""

    __slots__ = ("_given_partitions", "_rows")

    def __init__(
        self,
        board: NoticeBoard,
        rows: InputRows,
        times_ms: NDArray[np.int64],
        partitions: NDArray[np.int64] | None,
        size_bytes: int,
    ) -> None:
        super().__init__(rows.fixed_topic or "", board)
        self._rows: InputRows | None = rows
        self._times_ms = times_ms
        self._given_partitions = partitions
        self.size_bytes = size_bytes

    def _length(self) -> int:
        return len(self._times_ms)

    def close(self) -> None:
        self.begin(self._times_ms)

    def rows(self) -> tuple[InputRows, NDArray[np.int64], NDArray[np.int64] | None]:
        rows, self._rows = self._rows, None
        if rows is None:
            raise RuntimeError("the rows were taken already")
        return rows, self._times_ms, self._given_partitions


def table_chunks(
    table: pa.Table | pa.RecordBatch,
    topic: str | None,
    board: NoticeBoard,
    options: ProducerOptions,
) -> list[TableChunk]:
    """Chunks of one topic each, after a check of all rows. Raises OptionError for columns,
    EncodeError and ProduceError for rows."""
    if not isinstance(table, pa.Table | pa.RecordBatch):
        raise OptionError(
            f"a table is a pyarrow Table or RecordBatch, got {type(table).__name__} (of a pandas "
            "DataFrame: pyarrow.Table.from_pandas)"
        )
    columns = table_columns(table.schema, topic)
    now_ms = time.time_ns() // 1_000_000
    most_bytes = max(1, min(PIECE_BYTES, options.buffer_memory // 4))
    chunks: list[TableChunk] = []
    first_row = 0
    for batch in [table] if isinstance(table, pa.RecordBatch) else table.to_batches():
        for piece in _table_pieces(batch, most_bytes):
            rows = InputRows.of(piece, columns)
            place = "the table"
            check_headers(rows, first_row, place)
            times_ms = row_times_ms(rows, now_ms, first_row, place)
            partitions = _partitions(rows, first_row)
            _check_row_sizes(rows, first_row, options)
            for name, at in _topics(rows, first_row):
                chunk = _table_chunk(board, rows, name, at, times_ms, partitions)
                last_row = first_row + piece.num_rows
                chunk.numbers = range(first_row, last_row) if at is None else first_row + at
                chunks.append(chunk)
            first_row += piece.num_rows
    return chunks


def _table_chunk(
    board: NoticeBoard,
    rows: InputRows,
    name: str,
    at: NDArray[np.int64] | None,
    times_ms: NDArray[np.int64],
    partitions: NDArray[np.int64] | None,
) -> TableChunk:
    """The rows `at` (None: all), which have one topic."""
    if at is not None:
        rows = rows.take(at)
        times_ms = times_ms[at]
        partitions = None if partitions is None else partitions[at]
    rows = rows._replace(topics=None, fixed_topic=name, partitions=None, timestamps=None)
    return TableChunk(board, rows, np.array(times_ms), partitions, size_estimate(rows.records)[0])


def _table_pieces(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    if not batch.num_rows:
        return
    count = max(1, min(batch.num_rows, -(-batch.nbytes // most_bytes)))
    size = -(-batch.num_rows // count)
    for start in range(0, batch.num_rows, size):
        yield batch.slice(start, size)


def _topics(rows: InputRows, first_row: int) -> Iterator[tuple[str, NDArray[np.int64] | None]]:
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


def _partitions(rows: InputRows, first_row: int) -> NDArray[np.int64] | None:
    if rows.partitions is None:
        return None
    partitions = to_numpy(rows.partitions).astype(np.int64)
    given = is_valid(rows.partitions)
    if (given & (partitions < 0)).any():
        row = int(np.argmax(given & (partitions < 0)))
        raise EncodeError(
            f"row {first_row + row} of the table has partition {int(partitions[row])}: partitions "
            "are counted from 0"
        )
    partitions[~given] = NO_PARTITION
    return partitions


def _check_row_sizes(rows: InputRows, first_row: int, options: ProducerOptions) -> None:
    limit = min(options.max_request_size, options.buffer_memory) - HEADER_BYTES
    if size_estimate(rows.records)[1] <= limit:
        return
    sizes = record_sizes(rows.records)
    row = int(sizes.argmax())
    if sizes[row] > limit:
        topic = rows.fixed_topic if rows.topics is None else rows.topics[row].as_py()
        error = too_large(str(topic), None, int(sizes[row]) + HEADER_BYTES, options)
        error.args = (f"row {first_row + row} of the table: {error}",)
        raise error


def table_columns(schema: pa.Schema, topic: str | None) -> InputColumns:
    """The positions of the columns. Raises OptionError."""

    def fits(name: str, position: int) -> bool:
        kind = schema.field(position).type
        if kind == pa.null() and name not in ("value", "topic"):
            return False  # nothing is in it, as pandas leaves a column of None
        good, wanted = _KINDS[name]
        if not good(kind.value_type if pa.types.is_dictionary(kind) else kind):
            raise OptionError(f"column {name} is {kind}, it must be {wanted}: cast it")
        return True

    missing = {
        "value": f"the table has no column value (it has {', '.join(schema.names)})",
        "topic": "no topic: give the argument topic, or a column topic",
    }
    return find_columns(schema.names, topic, fits, missing)


def _is_text(kind: pa.DataType) -> bool:
    return str(kind) in ("string", "large_string", "string_view")


def _is_bytes(kind: pa.DataType) -> bool:
    binary = str(kind) in ("binary", "large_binary", "binary_view", "null")
    return binary or _is_text(kind) or pa.types.is_fixed_size_binary(kind)


def _is_headers(kind: pa.DataType) -> bool:
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


_KINDS: Mapping[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "value": (_is_bytes, "binary or string"),
    "key": (_is_bytes, "binary or string"),
    "headers": (_is_headers, "a list of structs of key: string, value: binary"),
    "topic": (_is_text, "string"),
    "partition": (pa.types.is_integer, "an integer"),
    "timestamp": (pa.types.is_timestamp, "a timestamp"),
}


# --- their outcome ---


class WrittenRange(NamedTuple):
    """Records of one partition that were written. Others' may lie between first and last."""

    first_offset: int
    last_offset: int
    record_count: int


class TableDelivery:
    """All records of a table or series: made by `Producer.send_table` and `Producer.send_many`."""

    __slots__ = ("_board", "_parts")

    def __init__(self, board: NoticeBoard, parts: list[RecordFutures]) -> None:
        self._board = board
        self._parts = parts

    def __repr__(self) -> str:
        return f"<TableDelivery {'done' if self.done() else 'pending'}>"

    def done(self) -> bool:
        """Whether each record is written or given up. Never waits."""
        return all(part.all_done for part in self._parts)

    def exception(self, timeout_s: float | None = None) -> KafkaError | None:
        """Wait until all are done; the first error, None if all are written."""
        await_outcome(self._board, self.done, timeout_s, "the records are not all acknowledged")
        errors = [error for part in self._parts for error in part.failures()]
        return errors[0] if errors else None

    def result(self, timeout_s: float | None = None) -> dict[TopicPartition, WrittenRange]:
        """Wait until all are written, and return where. Raises as `Delivery.result` if one is not;
        the others are written all the same (`written`)."""
        error = self.exception(timeout_s)
        if error is not None:
            raise copy.copy(error) from error.__cause__
        return self.written()

    def failures(self, timeout_s: float | None = None) -> list[RecordFailure]:
        """Wait until all are done; the records that were given up, in their order. [] if all are
        written. Raises KafkaTimeoutError after `timeout_s`."""
        await_outcome(self._board, self.done, timeout_s, "the records are not all acknowledged")
        found = [failure for part in self._parts for failure in part.failed_records()]
        return sorted(found, key=lambda failure: failure.index)

    def written(self) -> dict[TopicPartition, WrittenRange]:
        """What is written by now. Offsets are -1 if the broker did not return them."""
        found: dict[TopicPartition, WrittenRange] = {}
        for part in self._parts:
            partitions, offsets = part.places()
            for number in np.unique(partitions[offsets > PENDING]).tolist():
                rows = offsets[(partitions == number) & (offsets > PENDING)]
                tp = TopicPartition(part.topic, number)
                new = WrittenRange(int(rows.min()), int(rows.max()), len(rows))
                old = found.get(tp, new._replace(record_count=0))
                found[tp] = WrittenRange(
                    min(old.first_offset, new.first_offset),
                    max(old.last_offset, new.last_offset),
                    old.record_count + new.record_count,
                )
        return found

    def add_callback(self, callback: Callable[[TableDelivery], object]) -> None:
        """As `Delivery.add_callback`, once all of it is done."""
        checked_callback(callback)
        left = [len(self._parts)]

        def part_done(_: object) -> None:
            left[0] -= 1
            if not left[0]:
                run_callback(callback, self)

        if not self._parts:
            run_callback(callback, self)
        for part in self._parts:
            part.add_callback(WHOLE, part_done, self)
