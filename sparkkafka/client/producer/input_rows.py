"""Rows of an Arrow batch in the types that the protocol needs, and the checks that they pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkkafka.client.arguments import InputColumns
from sparkkafka.errors import EncodeError
from sparkkafka.protocol.columns.encode import RecordColumns
from sparkkafka.protocol.constants import NO_TIMESTAMP
from sparkkafka.protocol.records.arrow import (
    Headers,
    binary_array,
    blob_offsets,
    headers_array,
    is_valid,
    or_zero,
    to_numpy,
)


class InputRows(NamedTuple):
    """One Arrow batch's columns. `topics` is None if all rows go to `fixed_topic`."""

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
        return cls(
            length=batch.num_rows,
            keys=None if columns.key is None else _cast(batch.column(columns.key), pa.binary()),
            values=_cast(batch.column(columns.value), pa.binary()),
            headers=None
            if columns.headers is None
            else _cast_headers(batch.column(columns.headers)),
            topics=(
                _cast(batch.column(columns.topic), pa.string())
                if columns.fixed_topic is None and columns.topic is not None
                else None
            ),
            fixed_topic=columns.fixed_topic,
            partitions=(
                None
                if columns.partition is None
                else _cast_numbers(
                    batch.column(columns.partition), pa.int32(), "partition", first_row
                )
            ),
            timestamps=None
            if columns.timestamp is None
            else _cast_timestamps(batch.column(columns.timestamp), first_row),
        )

    @property
    def payload_bytes(self) -> int:
        """Bytes of keys and values; null has none."""
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
    """Return single records as columns. `headers` are by the record's index."""
    return RecordColumns(
        keys=None if keys.count(None) == len(keys) else binary_array(keys),
        values=binary_array(values),
        headers=headers_array(headers, len(values)) if headers else None,
        timestamps_ms=timestamps_ms,
    )


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column as this type. Arrow's cast of text to binary copies nothing."""
    if pa.types.is_dictionary(column.type):  # Arrow cannot decode one of views
        return column.dictionary.cast(kind).take(column.indices)
    return column if column.type == kind else column.cast(kind)


_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _cast_headers(column: pa.Array) -> pa.Array:
    """Return headers as lists of structs of string and binary, as Spark has them."""
    return column if column.type == _HEADERS else column.cast(_HEADERS)


def _cast_timestamps(column: pa.Array, first_row: int) -> pa.Array:
    """Return timestamps as microseconds since 1970 UTC, int64. Raises the errors of
    `_cast_numbers`."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = pa.timestamp("us", column.type.tz)
    if column.type.unit == "ns":  # Arrow rounds ns only with a cast in which longer units overflow
        column = column.cast(kind, safe=False)
    # The same moment, whatever the zone.
    return _cast_numbers(column, kind, "timestamp", first_row).cast(pa.int64())


def _cast_numbers(column: pa.Array, kind: pa.DataType, name: str, first_row: int) -> pa.Array:
    """Cast a column as `_cast` does. Raises EncodeError for a number that the type cannot hold."""
    try:
        return _cast(column, kind)
    except pa.ArrowInvalid as error:
        row = first_row
        with suppress(pa.ArrowInvalid):
            for value in column:
                value.cast(kind)
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
    if not structs.null_count and not structs.field(0).null_count:
        return
    bad = np.flatnonzero(~(is_valid(structs) & is_valid(structs.field(0))))[0]
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
    offsets = blob_offsets(column)
    return int(offsets[-1]) - int(offsets[0])


def key_text(rows: InputRows, row: int) -> str:
    """Return the row's key, shortened, as the end of an error message; "" without a key."""
    if rows.keys is None or not rows.keys[row].is_valid:
        return ""
    key = rows.keys[row].as_py()
    return f", key {key[:40]!r}{'…' if len(key) > 40 else ''}"
