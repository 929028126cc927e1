"""An Arrow table -> chunks of records, without an object for a record.

Columns and their types are those of the Spark sink: value, key, headers, topic, partition,
timestamp.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.client.producer.chunks import TableChunk
from sparkkafka.client.producer.futures import NoticeBoard
from sparkkafka.client.producer.records import too_large
from sparkkafka.client.sender.input_columns import InputColumns, find_columns
from sparkkafka.client.sender.rows import Rows, check_headers, row_times_ms
from sparkkafka.client.values import checked_topic
from sparkkafka.config.options import ProducerOptions
from sparkkafka.errors import EncodeError, OptionError
from sparkkafka.protocol.columns.encode import record_sizes, size_estimate
from sparkkafka.protocol.partitioning.partitioner import NO_PARTITION
from sparkkafka.protocol.records.arrow import from_numpy, is_valid, to_numpy
from sparkkafka.protocol.records.batches import HEADER_BYTES

PIECE_BYTES = 2**20
"""Rows are handed over in pieces of about this size, so that the first are on their way while the
others are looked at, and buffer.memory holds."""


def table_chunks(
    table: pa.Table | pa.RecordBatch,
    topic: str | None,
    board: NoticeBoard,
    options: ProducerOptions,
) -> list[TableChunk]:
    """Chunks of one topic each. Raises OptionError for columns, EncodeError and ProduceError for
    rows; all rows are checked."""
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
        for piece in _pieces(batch, most_bytes):
            rows = Rows.of(piece, columns)
            place = "the table"
            check_headers(rows, first_row, place)
            times_ms = row_times_ms(rows, now_ms, first_row, place)
            partitions = _partitions(rows, first_row)
            _check_sizes(rows, first_row, options)
            for name, at in _topics(rows, first_row):
                chunk = _chunk(board, rows, name, at, times_ms, partitions)
                last_row = first_row + piece.num_rows
                chunk.numbers = range(first_row, last_row) if at is None else first_row + at
                chunks.append(chunk)
            first_row += piece.num_rows
    return chunks


def _chunk(
    board: NoticeBoard,
    rows: Rows,
    name: str,
    at: NDArray[np.int64] | None,
    times_ms: NDArray[np.int64],
    partitions: NDArray[np.int64] | None,
) -> TableChunk:
    """The rows of one topic; `at` None: all."""
    if at is not None:
        take = from_numpy(at)
        rows = rows._replace(
            length=len(at),
            keys=None if rows.keys is None else rows.keys.take(take),
            values=rows.values.take(take),
            headers=None if rows.headers is None else rows.headers.take(take),
        )
        times_ms = times_ms[at]
        partitions = None if partitions is None else partitions[at]
    rows = rows._replace(topics=None, fixed_topic=name, partitions=None, timestamps=None)
    return TableChunk(board, rows, np.array(times_ms), partitions, size_estimate(rows.records)[0])


def _pieces(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    if not batch.num_rows:
        return
    count = max(1, min(batch.num_rows, -(-batch.nbytes // most_bytes)))
    size = -(-batch.num_rows // count)
    for start in range(0, batch.num_rows, size):
        yield batch.slice(start, size)


def _topics(rows: Rows, first_row: int) -> Iterator[tuple[str, NDArray[np.int64] | None]]:
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


def _partitions(rows: Rows, first_row: int) -> NDArray[np.int64] | None:
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


def _check_sizes(rows: Rows, first_row: int, options: ProducerOptions) -> None:
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
    """Where the columns are. Raises OptionError."""

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
