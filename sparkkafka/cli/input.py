"""Lines and JSON lines of a file or pipe, as Arrow batches for the Producer.

A chunk becomes a batch as soon as it is read, so that `tail -f | sparkkafka write` sends line by
line. Batches have the columns key, value and headers, those of JSON also partition and timestamp.
Each row has the number of its line, from 1, for errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.client.consumer.record import RECORD_SCHEMA
from sparkkafka.config.kinds import INT32_MAX, JSON
from sparkkafka.errors import EncodeError, OptionError
from sparkkafka.protocol.columns.columns import HEADERS_TYPE, gather
from sparkkafka.protocol.records import arrow
from sparkkafka.schemas.json.syntax import Number, scale_number, to_json
from sparkkafka.schemas.values import Decoder, Schema

Headers = tuple[tuple[str, bytes | None], ...]

MAX_LINE_BYTES: Final = 256 << 20
"""A longer line means that the file has no lines."""


class NumberedRows(NamedTuple):
    """Rows of the input. `numbers` has the line number of each row, or in a table its row number,
    from 1."""

    batch: pa.RecordBatch
    numbers: Sequence[int]


class BadRowError(EncodeError):
    """A line of the input, or a row of a table, is not a record. `number` is its number. This is
    raised after the rows before it were yielded."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number


@dataclass(frozen=True)
class LineFormat:
    """How the input's text is split into records. Without `key_delimiter` they have no keys.
    `empty_is_null`: empty keys and values become null. `skips_empty`: empty lines are left out, as
    in kcat."""

    delimiter: bytes = b"\n"
    key_delimiter: bytes | None = None
    empty_is_null: bool = False
    skips_empty: bool = False


def whole_lines(chunks: Iterable[bytes], delimiter: bytes) -> Iterator[bytes]:
    """Yield the same bytes in chunks that end with a delimiter; the last one may lack it.

    Raises OptionError for a line of more than MAX_LINE_BYTES.
    """
    rest: list[bytes] = []
    rest_bytes = 0
    for chunk in chunks:
        # A delimiter of several bytes may begin in the previous chunk.
        if len(delimiter) > 1 and rest:
            chunk = b"".join((*rest, chunk))
            rest, rest_bytes = [], 0
        end = _end_of_lines(chunk, delimiter)
        if end:
            yield b"".join((*rest, chunk[:end]))
            rest, rest_bytes = [], 0
            chunk = chunk[end:]
        if chunk:
            rest.append(chunk)
            rest_bytes += len(chunk)
        if rest_bytes > MAX_LINE_BYTES:
            raise OptionError(
                f"a record of more than {MAX_LINE_BYTES >> 20} MB has no delimiter behind it: is "
                "--delimiter right?"
            )
    if rest:
        yield b"".join(rest)


def _end_of_lines(text: bytes, delimiter: bytes) -> int:
    """Return the index after the last delimiter; 0 without one."""
    if len(delimiter) == 1:
        return text.rfind(delimiter) + 1
    # From the left: a delimiter like ;; may overlap itself.
    return len(text) - len(text.split(delimiter)[-1])


# --- lines ---------------------------------------------------------------------------------------


def line_batches(chunks: Iterable[bytes], line_format: LineFormat) -> Iterator[NumberedRows]:
    """Convert lines to columns key and value. Raises OptionError for an empty delimiter."""
    if not line_format.delimiter:
        raise OptionError("--delimiter must not be empty")
    if line_format.key_delimiter == b"":
        raise OptionError("--key-delimiter must not be empty")
    lines_before = 0
    for text in whole_lines(chunks, line_format.delimiter):
        values = _split_lines(text, line_format.delimiter)
        numbers: Sequence[int] = range(lines_before + 1, lines_before + len(values) + 1)
        lines_before += len(values)
        if line_format.skips_empty:
            has_bytes = arrow.to_numpy(pc.binary_length(values)) > 0
            if not has_bytes.all():
                values = values.filter(arrow.from_numpy(has_bytes))
                numbers = (np.flatnonzero(has_bytes) + numbers[0]).tolist()
        keys = pa.nulls(len(values), pa.binary())
        if line_format.key_delimiter is not None:
            keys, values = _split_keys(values, line_format.key_delimiter)
        if line_format.empty_is_null:
            keys, values = _empty_to_null(keys), _empty_to_null(values)
        if len(values):
            batch = pa.RecordBatch.from_arrays([keys, values], names=["key", "value"])
            yield NumberedRows(batch, numbers)


def _split_lines(text: bytes, delimiter: bytes) -> pa.Array:
    """Split lines at their delimiters; the last line may lack it."""
    if len(delimiter) > 1:
        lines = text.split(delimiter)
        return arrow.binary_array(lines if lines[-1] else lines[:-1])
    data = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(data == delimiter[0])
    if not text.endswith(delimiter):
        ends = np.append(ends, len(text))
    starts = np.zeros(len(ends), np.int64)
    starts[1:] = ends[:-1] + 1
    return gather(pa.py_buffer(text), starts, ends - starts)


def _split_keys(lines: pa.Array, delimiter: bytes) -> tuple[pa.Array, pa.Array]:
    """Split each line at its first delimiter; a line without one has a null key."""
    key_lengths = arrow.to_numpy(pc.find_substring(lines, pattern=delimiter)).astype(np.int64)
    _, offset_buffer, data = lines.buffers()
    data = data if data is not None else pa.py_buffer(b"")
    offsets = np.frombuffer(offset_buffer, np.int32)[lines.offset :][: len(lines) + 1]
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    has_key = key_lengths >= 0
    keys = gather(data, starts, np.where(has_key, key_lengths, -1))  # -1: null
    value_starts = np.where(has_key, starts + key_lengths + len(delimiter), starts)
    return keys, gather(data, value_starts, ends - value_starts)


def _empty_to_null(column: pa.Array) -> pa.Array:
    """Replace empty values by null."""
    if column.null_count == len(column):
        return column
    has_bytes = arrow.is_valid(column) & (arrow.to_numpy(pc.binary_length(column)) > 0)
    return pc.if_else(arrow.from_numpy(has_bytes), column, pa.nulls(1, pa.binary())[0])


# --- JSON lines ----------------------------------------------------------------------------------

_MAX_TIME_MS: Final = (1 << 63) // 1000 - 1
"""The largest timestamp whose microseconds fit into 64 bits."""

_JSON_FIELDS: Final = {
    "key": pa.string(),
    "payload": pa.string(),
    "value": pa.string(),  # another name of the payload
    "partition": pa.int32(),
    "ts": pa.int64(),
    "headers": pa.list_(pa.string()),
    # These describe the record that was read, and are not written:
    "topic": pa.string(),
    "offset": pa.int64(),
    "tstype": pa.string(),
    "broker": pa.int32(),
    "key_schema_id": pa.int64(),
    "value_schema_id": pa.int64(),
}


def json_batches(chunks: Iterable[bytes], *, keeps_partitions: bool) -> Iterator[NumberedRows]:
    """Parse records in the JSON that `read --json` and kcat's -J print: payload (or value), key,
    headers, ts.

    A key or payload that is not a string is sent as JSON. `keeps_partitions`: the records go to the
    partitions that they name. Raises BadRowError for a line that is not a record, after the lines
    before it.
    """
    from sparkkafka.schemas.json.format import decoder  # other inputs do not need it

    fields = pa.struct(list(_JSON_FIELDS.items()))
    record_decoder = decoder(Schema(JSON, ""), None, fields, rest=True)
    first_number = 1
    for text in whole_lines(chunks, b"\n"):
        # One by one is slower, but parses all that a record may have, and finds the bad line.
        rows, error = _parse_together(record_decoder, text, first_number), None
        if rows is None:
            rows, error = _parse_one_by_one(text, first_number)
        first_number += text.count(b"\n")
        if not keeps_partitions:
            rows = rows._replace(batch=rows.batch.drop_columns(["partition"]))
        if rows.numbers:
            yield rows
        if error is not None:
            raise error


def _parse_together(decoder: Decoder, text: bytes, first_number: int) -> NumberedRows | None:
    """Parse lines together; `first_number` is the number of the first. Return None if they must be
    parsed one by one: there are headers, or a line that has no payload, or null, or is no record;
    or both payloads and values, since a payload of null beside a value is a tombstone."""
    decoded = decoder.decode(_split_lines(text, b"\n"))
    columns = dict(zip(_JSON_FIELDS, decoded.values.flatten(), strict=True))
    values, headers = pc.coalesce(columns["payload"], columns["value"]), columns["headers"]
    if values.null_count or pc.count(decoded.rest).as_py() or pc.count(headers).as_py():
        return None
    if b'"payload"' in text and pc.count(columns["value"]).as_py():
        return None
    partitions, times_ms = (arrow.or_zero(columns[name]) for name in ("partition", "ts"))
    if (partitions < 0).any() or (times_ms < 0).any() or (times_ms > _MAX_TIME_MS).any():
        return None
    keys, values = columns["key"].cast(pa.binary()), values.cast(pa.binary())
    headers = pa.nulls(len(values), HEADERS_TYPE)
    batch = _json_batch(keys, values, headers, columns["partition"], columns["ts"])
    return NumberedRows(batch, range(first_number, first_number + len(values)))


def _json_batch(*columns: pa.Array) -> pa.RecordBatch:
    """Return the columns as a batch; the last has times in milliseconds."""
    times = columns[-1].view(pa.timestamp("ms", "UTC")).cast(RECORD_SCHEMA.field("timestamp").type)
    names = ["key", "value", "headers", "partition", "timestamp"]
    return pa.RecordBatch.from_arrays([*columns[:-1], times], names=names)


def _parse_one_by_one(text: bytes, first_number: int) -> tuple[NumberedRows, BadRowError | None]:
    """Return the records before the first bad line, and the error of that line (None: all lines are
    records, or blank). `first_number` is the number of the first line."""
    error = None
    numbers: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: dict[int, list[tuple[str, bytes | None]]] = {}
    partitions: list[int | None] = []
    times_ms: list[int | None] = []
    # Other than syntax.parse, this keeps bytes that are not UTF-8.
    decode = json.JSONDecoder(parse_float=Number, parse_constant=_refuse_constant).decode
    for number, line in enumerate(text.split(b"\n"), first_number):
        if not line.strip():
            continue
        try:
            row = decode(line.decode("utf-8", "surrogateescape"))
            if not isinstance(row, dict) or not {"payload", "value"} & row.keys():
                raise ValueError("it has no payload")
            if unknown := row.keys() - _JSON_FIELDS.keys():
                raise ValueError(f"{min(unknown)!r} is none of {', '.join(_JSON_FIELDS)}")
            pairs = _parse_headers(row.get("headers"))
            key = _to_bytes(row.get("key"))
            value = _to_bytes(row["payload"] if "payload" in row else row["value"])
            partition = _parse_integer(row.get("partition"), "partition", INT32_MAX)
            time_ms = _parse_integer(row.get("ts"), "ts", _MAX_TIME_MS)
        except (ValueError, RecursionError) as reason:
            error = BadRowError(number, f"it is not a record in JSON: {reason}")
            break
        if pairs:
            headers[len(values)] = pairs
        numbers.append(number)
        keys.append(key)
        values.append(value)
        partitions.append(partition)
        times_ms.append(time_ms)
    batch = _json_batch(
        arrow.binary_array(keys),
        arrow.binary_array(values),
        arrow.headers_array(headers, len(values)),
        pa.array(partitions, pa.int32()),
        pa.array(times_ms, pa.int64()),
    )
    return NumberedRows(batch, numbers), error


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which the standard library's parser accepts. Raises ValueError."""
    raise ValueError(f"{name} is not JSON")


def _to_bytes(value: Any) -> bytes | None:
    """Return the bytes of a key, value or header: of a string its text, of anything else its
    JSON."""
    if value is None:
        return None
    text = value if isinstance(value, str) else to_json(value)
    return text.encode("utf-8", "surrogateescape")


def _parse_integer(value: Any, name: str, maximum: int) -> int | None:
    """Return a field's number; None if it is missing or ts is -1, as kcat shows a record without a
    timestamp. Raises ValueError."""
    if value is None or (name == "ts" and value == -1):
        return None
    if isinstance(value, Number):
        value = scale_number(value, 0, max_digits=19)  # 3.0 is 3
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= maximum:
        raise ValueError(f"{name} is {value!r}")
    return value


def _parse_headers(value: Any) -> list[tuple[str, bytes | None]]:
    """Parse the headers of a record in JSON: ["name","value",…], or an object. Raises
    ValueError."""
    if value is None:
        return []
    flat = list(chain.from_iterable(value.items())) if isinstance(value, dict) else value
    if not isinstance(flat, list) or len(flat) % 2:
        raise ValueError(f"headers are {value!r}")
    names = flat[::2]
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"headers are {value!r}")
    return list(zip(names, map(_to_bytes, flat[1::2]), strict=True))


# --- columns of records --------------------------------------------------------------------------

NO_VALUE_COLUMNS: Final = frozenset(
    (
        *("topic", "partition", "offset", "next_offset", "timestamp", "timestamp_type"),
        *("headers", "key"),
    )
)
"""Columns of a file that describe the record, and are no part of its value."""


def with_value(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with a column value. If the file has none, the value is a struct of all
    columns that are not in NO_VALUE_COLUMNS. Raises OptionError if there are no such columns."""
    if "value" in batch.schema.names:
        return batch
    fields = [name for name in batch.schema.names if name not in NO_VALUE_COLUMNS]
    if not fields:
        raise OptionError(
            "--input: there is no column value, nor another to make it of; there are "
            f"{', '.join(batch.schema.names)}"
        )
    struct = pa.StructArray.from_arrays(
        [batch.column(name) for name in fields],
        fields=[batch.schema.field(name) for name in fields],
    )
    return batch.drop_columns(fields).append_column("value", struct)


def with_constants(
    batch: pa.RecordBatch, key: bytes | None, headers: Headers, partition: int | None
) -> pa.RecordBatch:
    """Set `key` where the batch has none, and `headers` and `partition` for all rows."""
    count = batch.num_rows
    names = batch.schema.names
    if key is not None:
        keys = batch.column("key") if "key" in names else pa.nulls(count, pa.binary())
        keys = keys.cast(pa.binary()).fill_null(arrow.binary_array([key])[0])
        batch = set_column(batch, "key", keys)
    if headers:
        if "headers" in names and batch.column("headers").null_count < count:
            raise OptionError("-H and headers of the input exclude each other: leave one out")
        flat = arrow.headers_array({0: headers}, 1).flatten()
        indexes = arrow.from_numpy(np.tile(np.arange(len(headers)), count))
        offsets = arrow.from_numpy(np.arange(count + 1, dtype=np.int32) * np.int32(len(headers)))
        lists = pa.ListArray.from_arrays(offsets, flat.take(indexes))
        batch = set_column(batch, "headers", lists)
    if partition is not None:
        batch = set_column(
            batch, "partition", arrow.from_numpy(np.full(count, partition, np.int32))
        )
    return batch


def set_column(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    """Replace a column, or append it."""
    index = batch.schema.get_field_index(name)
    if index < 0:
        return batch.append_column(name, column)
    return batch.set_column(index, name, column)
