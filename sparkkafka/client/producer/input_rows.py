"""Rows of an Arrow batch in the types that the protocol needs, and the checks that they pass."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkkafka.client.arguments import InputColumns
from sparkkafka.errors import EncodeError
from sparkkafka.protocol.columns.encode import RecordColumns
from sparkkafka.protocol.constants import NO_TIMESTAMP
from sparkkafka.protocol.records.arrow import blob_offsets, from_numpy, is_valid, or_zero, to_numpy


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
    def of(cls, batch: pa.RecordBatch, columns: InputColumns) -> InputRows:
        """Cast an Arrow batch to the types that the protocol needs."""
        at = columns
        return cls(
            length=batch.num_rows,
            keys=None if at.key is None else _cast(batch.column(at.key), pa.binary()),
            values=_cast(batch.column(at.value), pa.binary()),
            headers=None if at.headers is None else _plain_headers(batch.column(at.headers)),
            topics=(
                _cast(batch.column(at.topic), pa.string())
                if at.fixed_topic is None and at.topic is not None
                else None
            ),
            fixed_topic=at.fixed_topic,
            partitions=(
                None if at.partition is None else _cast(batch.column(at.partition), pa.int32())
            ),
            timestamps=None if at.timestamp is None else _micros(batch.column(at.timestamp)),
        )

    @property
    def payload_bytes(self) -> int:
        """Bytes of keys and values, nulls as none."""
        return sum(_bytes_in(column) for column in (self.keys, self.values) if column is not None)

    def columns(self, timestamps_ms: NDArray[np.int64]) -> RecordColumns:
        """The rows as records with these times."""
        return RecordColumns(self.keys, self.values, self.headers, timestamps_ms)

    @property
    def records(self) -> RecordColumns:
        """The rows as records without a time, to be measured."""
        return self.columns(np.broadcast_to(np.int64(0), self.length))

    def take(self, at: NDArray[np.int64]) -> InputRows:
        """Keys, values and headers of these rows."""
        take = from_numpy(at)
        return self._replace(
            length=len(at),
            keys=None if self.keys is None else self.keys.take(take),
            values=self.values.take(take),
            headers=None if self.headers is None else self.headers.take(take),
        )


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column as `kind`. Arrow's text to binary copies nothing; large_* types shrink."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if column.type == kind else column.cast(kind)


_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _plain_headers(column: pa.Array) -> pa.Array:
    """A list of structs as Spark has it; another layout of the same is turned into it."""
    if pa.types.is_list(column.type):
        struct = column.type.value_type
        if (
            pa.types.is_struct(struct)
            and struct.field(0).type == pa.string()
            and struct.field(1).type == pa.binary()
        ):
            return column
    return column.cast(_HEADERS)


def _micros(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = pa.timestamp("us", column.type.tz)
    return column.cast(kind, safe=False).cast(pa.int64())  # the same moment, whatever the zone


def row_times_ms(rows: InputRows, now_ms: int, first_row: int, table: str) -> NDArray[np.int64]:
    """Each row's time, rounded down, as by Spark's cast to a number and Java's truncation.

    Raises EncodeError for a time before 1970.
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
            f"the timestamp {int(timestamps_ms[row])} ms is before 1970, which a record's "
            f"cannot be (column timestamp, row {first_row + row} of {table}"
            f"{key_text(rows, row)})"
        )
    return timestamps_ms


def check_headers(rows: InputRows, first_row: int, table: str) -> None:
    """Raises EncodeError for a header without a key."""
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
    if column.null_count:  # Arrow does not say what lies under a null
        return int(or_zero(pc.binary_length(column)).sum(dtype=np.int64))
    offsets = blob_offsets(column)
    return int(offsets[-1]) - int(offsets[0])


def key_text(rows: InputRows, row: int) -> str:
    """The row's key, shortened, to find it by."""
    if rows.keys is None or not rows.keys[row].is_valid:
        return ""
    key = rows.keys[row].as_py()
    return f", key {key[:40]!r}{'…' if len(key) > 40 else ''}"
