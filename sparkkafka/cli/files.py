"""Records in files and pipes, as Arrow batches: lines and JSON lines, Parquet, Arrow IPC and CSV.

Lines become a batch as soon as they are read, so that `tail -f | sparkkafka write` sends line by
line. Batches have the columns key, value and headers, those of JSON also partition and timestamp.
Each row has the number of its line, or in a table its row number, from 1, for errors.

The ending of a file's name says which kind of table it is. A table is written under a temporary
name and renamed at the end: nobody sees an incomplete file, and an old one stays until the new one
is complete. Memory holds one row group.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, NoReturn, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.client.consumer.record import RECORD_SCHEMA
from sparkkafka.config.kinds import INT32_MAX, JSON
from sparkkafka.errors import DecodeError, EncodeError, OptionError
from sparkkafka.protocol.columns.columns import HEADERS_TYPE, gather
from sparkkafka.protocol.records import arrow
from sparkkafka.schemas.arrays import as_type
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
    offsets, data = arrow.blob_offsets(lines), lines.buffers()[2] or pa.py_buffer(b"")
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


_JSON_SCHEMA: Final = pa.schema(
    {
        name: RECORD_SCHEMA.field(name).type
        for name in ("key", "value", "headers", "partition", "timestamp")
    }
)


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
    batch = pa.RecordBatch.from_arrays(
        [
            columns["key"].cast(pa.binary()),
            values.cast(pa.binary()),
            pa.nulls(len(values), HEADERS_TYPE),
            columns["partition"],
            columns["ts"]
            .view(pa.timestamp("ms", "UTC"))
            .cast(_JSON_SCHEMA.field("timestamp").type),
        ],
        schema=_JSON_SCHEMA,
    )
    return NumberedRows(batch, range(first_number, first_number + len(values)))


def _parse_one_by_one(text: bytes, first_number: int) -> tuple[NumberedRows, BadRowError | None]:
    """Return the records before the first bad line, and the error of that line (None: all lines are
    records, or blank). `first_number` is the number of the first line."""
    error = None
    numbers: list[int] = []
    records: list[dict[str, Any]] = []
    for number, line in enumerate(text.split(b"\n"), first_number):
        if not line.strip():
            continue
        try:
            row = _parse_json(line.decode("utf-8", "surrogateescape"))
            if not isinstance(row, dict) or not {"payload", "value"} & row.keys():
                raise ValueError("it has no payload")
            if unknown := row.keys() - _JSON_FIELDS.keys():
                raise ValueError(f"{min(unknown)!r} is none of {', '.join(_JSON_FIELDS)}")
            time_ms = _parse_integer(row.get("ts"), "ts", _MAX_TIME_MS)
            record = {
                "key": _to_bytes(row.get("key")),
                "value": _to_bytes(row["payload"] if "payload" in row else row["value"]),
                "headers": _parse_headers(row.get("headers")) or None,
                "partition": _parse_integer(row.get("partition"), "partition", INT32_MAX),
                "timestamp": None if time_ms is None else 1000 * time_ms,
            }
        except (ValueError, RecursionError) as reason:
            error = BadRowError(number, f"it is not a record in JSON: {reason}")
            break
        numbers.append(number)
        records.append(record)
    batch = pa.RecordBatch.from_pylist(records, schema=_JSON_SCHEMA)
    return NumberedRows(batch, numbers), error


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which the standard library's parser accepts. Raises ValueError."""
    raise ValueError(f"{name} is not JSON")


# Other than syntax.parse, this keeps bytes that are not UTF-8.
_parse_json: Final = json.JSONDecoder(parse_float=Number, parse_constant=_refuse_constant).decode


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
    "".join(names).encode()  # raises ValueError for half of a surrogate pair
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


# --- tables ---------------------------------------------------------------------------------

PARQUET: Final = "Parquet"
ARROW: Final = "Arrow IPC"
CSV: Final = "CSV"
ENDINGS: Final = {".parquet": PARQUET, ".arrow": ARROW, ".feather": ARROW, ".csv": CSV}

_READ_ROWS: Final = 1 << 16


def file_kind(path: Path, option: str) -> str:
    """Return the kind of a file by its name. Raises OptionError for another ending."""
    kind = ENDINGS.get(path.suffix.lower())
    if kind is None:
        raise OptionError(
            f"{option}: the ending of {path.name} says what the file is: one of "
            f"{', '.join(ENDINGS)}"
        )
    return kind


# --- writing tables ------------------------------------------------------------------------------


class FileSink:
    """Writes batches of a `TopicReader` to a file; use it under `with`. The file is created
    when the block ends without an exception; after an exception no part of it is left.

    The columns are topic, partition, offset, timestamp, timestamp_type, key, value and headers;
    `types` are those of decoded keys and values. In CSV keys and values are text, and headers a
    JSON array. Raises OSError, OptionError; DecodeError for bytes that CSV cannot represent."""

    def __init__(self, path: Path, types: dict[str, pa.DataType]) -> None:
        self.path = Path(os.path.realpath(path))  # the target of a link is replaced, not the link
        self._file_kind = file_kind(path, "--output")
        fields = []
        for name in RECORD_SCHEMA.names:
            if name == "next_offset":  # the reader's own
                continue
            field_type = types.get(name, RECORD_SCHEMA.field(name).type)
            if self._file_kind == CSV and (name == "headers" or pa.types.is_binary(field_type)):
                field_type = pa.string()
            elif self._file_kind == CSV and pa.types.is_nested(field_type):
                raise OptionError(
                    f"--output: a {name} of type {field_type} is not a column of CSV: write "
                    ".parquet or .arrow"
                )
            fields.append(pa.field(name, field_type))
        self._schema = pa.schema(fields)
        self._temporary_path = self.path.with_name(f".{self.path.name}.{os.urandom(4).hex()}.part")
        self._file: IO[bytes] | None = None
        self._writer: Any = None
        self._buffered: list[pa.RecordBatch] = []
        self._buffered_bytes = 0

    def __enter__(self) -> Self:
        """Create the temporary file beside `path`."""
        try:
            # "x": in a folder that others may write, a link of this name may lead to any file.
            self._file = self._temporary_path.open("xb")
            self._writer = _open_writer(self._file_kind, self._file, self._schema)
        except BaseException as error:  # also for the exception of a signal
            self._remove()
            if isinstance(error, OSError):
                # The error names the temporary file, which the user does not know.
                unnamed = OSError(error.errno, error.strerror) if error.errno else error
                raise self._with_file_name(unnamed) from None
            raise
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *details: object) -> None:
        """Give the file its name, or remove it after an exception."""
        try:
            if exc_type is None:
                self._flush()
                self._writer.close()
                if self._file is not None:
                    self._file.close()
                self._temporary_path.replace(self.path)
        except OSError as failure:
            raise self._with_file_name(failure) from None
        finally:
            self._remove()  # closes what is open; a file that has its name now stays

    def write(self, batch: pa.RecordBatch) -> None:
        """Buffer the rows in memory, and write them as a row group once they are 64 MB."""
        columns = []
        for field in self._schema:
            column = batch.column(field.name)
            if self._file_kind == CSV and field.name == "headers":
                column = _header_column(column, batch)
            elif self._file_kind == CSV and pa.types.is_binary(column.type):
                column = _text_column(column, field.name, batch)
            # Arrow's own cast refuses a type whose fields are not nullable.
            columns.append(as_type(column, field.type))
        rows = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._buffered.append(rows)
        self._buffered_bytes += rows.nbytes
        if self._buffered_bytes >= 64 << 20:
            self._flush()

    def _flush(self) -> None:
        """Write the buffered batches as one row group."""
        if not self._buffered:
            return
        table = pa.Table.from_batches(self._buffered)
        self._buffered, self._buffered_bytes = [], 0
        try:
            self._writer.write_table(table)
        except OSError as error:
            raise self._with_file_name(error) from None

    def _with_file_name(self, error: OSError) -> OSError:
        """Return the error with the file's name, which Arrow's errors lack."""
        if error.filename is not None:
            return error
        if error.errno is None:
            return OSError(f"{self.path}: {error}")
        return OSError(error.errno, os.strerror(error.errno), str(self.path))

    def _remove(self) -> None:
        """Close the writer and the file, and delete the temporary file. Raises nothing."""
        # After the rename there is nothing to remove. A writer that is left open would write its
        # footer when it is collected, to a closed file; a writer that failed fails again here.
        with contextlib.suppress(OSError, ValueError, pa.ArrowException):
            if self._writer is not None:
                self._writer.close()
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
        self._temporary_path.unlink(missing_ok=True)


def _open_writer(kind: str, file: IO[bytes], schema: pa.Schema) -> Any:
    """Open Arrow's writer for this kind of file."""
    if kind == PARQUET:
        import pyarrow.parquet as pq

        return pq.ParquetWriter(file, schema, compression="zstd")
    if kind == ARROW:
        return pa.ipc.new_file(file, schema)
    import pyarrow.csv as csv

    # Quoted, so that an empty text is not null.
    return csv.CSVWriter(file, schema, write_options=csv.WriteOptions(quoting_style="all_valid"))


def _text_column(column: pa.Array, name: str, batch: pa.RecordBatch) -> pa.Array:
    """Convert a binary column, `name`, to text. Raises DecodeError, which names the first record
    that is not UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        for row, content in enumerate(column.to_pylist()):
            _decode(content, name, batch, row)  # raises at the bad row
        raise


def _decode(content: bytes | None, name: str, batch: pa.RecordBatch, row: int) -> str | None:
    """Decode UTF-8. Raises DecodeError, which names the record of this row, and the part of the
    record that is decoded, `name`."""
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        topic, partition, offset = (
            batch.column(column)[row].as_py() for column in ("topic", "partition", "offset")
        )
        raise DecodeError(
            f"topic {topic} partition {partition} offset {offset}: the {name} is not UTF-8, which "
            f"CSV needs: {'' if 'header' in name else 'give --format hex, or '}write .parquet"
        ) from None


def _header_column(headers: pa.Array, batch: pa.RecordBatch) -> pa.Array:
    """Format the headers of each row as ["name","value",…]; null without headers."""
    if headers.null_count == len(headers):
        return pa.nulls(len(headers), pa.string())
    texts = []
    for row, pairs in enumerate(headers.to_pylist()):
        flat = []
        for pair in pairs or ():
            name = f"value of header {pair['key']!r}"
            flat += [pair["key"], _decode(pair["value"], name, batch, row)]
        texts.append(json.dumps(flat, ensure_ascii=False).encode() if flat else None)
    return arrow.binary_array(texts).cast(pa.string())


# --- reading tables ------------------------------------------------------------------------------


def read_table_file(path: Path) -> Iterator[NumberedRows]:
    """Yield the rows of a file, some ten thousand at a time, all with the same schema.

    In a CSV file the column `headers` is parsed as JSON. Raises OSError, OptionError for a file
    that is not what its ending says, BadRowError for invalid headers, and for a row of CSV with
    more or fewer columns than the header.
    """
    kind = file_kind(path, "--input")
    rows_before = 0
    try:
        with path.open("rb") as file:
            for batch in _read_batches(kind, file):
                names = batch.schema.names
                duplicate = next((name for name in names if names.count(name) > 1), None)
                if duplicate is not None:
                    raise OptionError(
                        f"--input: {path} has two columns {duplicate!r}: rename or drop one"
                    )
                error = None
                if kind == CSV:
                    batch, error = _with_parsed_headers(batch, rows_before)
                numbers = range(rows_before + 1, rows_before + batch.num_rows + 1)
                yield NumberedRows(batch, numbers)
                if error is not None:
                    raise error
                rows_before += batch.num_rows
    except pa.ArrowInvalid as failure:
        reason = " ".join(str(failure).split())
        if match := re.search("expected a zone offset in '(.*?)'", reason):
            raise OptionError(
                f"--input: {path}: the time {match[1]!r} in column timestamp has no zone: add Z "
                "for UTC, or an offset such as +01:00"
            ) from None
        raise OptionError(f"--input: {path} is not a file of {kind}: {reason}") from None


def _read_batches(kind: str, file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    """Read batches from a file of this kind."""
    if kind == PARQUET:
        import pyarrow.parquet as pq

        yield from pq.ParquetFile(file).iter_batches(_READ_ROWS)
    elif kind == ARROW:
        with pa.ipc.open_file(file) as reader:
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                for start in range(0, batch.num_rows, _READ_ROWS):
                    yield batch.slice(start, _READ_ROWS)
    else:
        yield from _read_csv(file)


def _read_csv(file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    """Read batches from a CSV file. Raises BadRowError, after the rows before it, for a row with
    another number of columns than the header."""
    import pyarrow.csv as csv

    columns = {name: pa.string() for name in ("topic", "key", "value", "headers")}
    columns["timestamp"] = RECORD_SCHEMA.field("timestamp").type
    options = csv.ConvertOptions(
        column_types=columns,
        null_values=[""],  # by default Arrow also reads N/A, NULL and nan as null
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    bad: list[Any] = []  # the first such row

    def skip(row: Any) -> str:
        """Keep the first row that Arrow cannot read, and let it skip all of them."""
        if not bad:
            bad.append(row)
        return "skip"

    reader = csv.open_csv(
        file,
        # Arrow numbers the rows only without threads.
        read_options=csv.ReadOptions(block_size=8 << 20, use_threads=False),
        parse_options=csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
        convert_options=options,
    )
    rows_before = 0
    for batch in reader:
        # Arrow numbers rows from 1, and counts the header.
        if bad and bad[0].number - 2 <= rows_before + batch.num_rows:
            yield batch.slice(0, bad[0].number - 2 - rows_before)
            break
        yield batch
        rows_before += batch.num_rows
    if bad:
        raise BadRowError(
            bad[0].number - 1,
            f"the number of columns is {bad[0].actual_columns}, and that of the header "
            f"{bad[0].expected_columns}",
        )


def _with_parsed_headers(
    batch: pa.RecordBatch, rows_before: int
) -> tuple[pa.RecordBatch, BadRowError | None]:
    """Parse the column `headers`, if there is one. Return the rows before the first with invalid
    headers, and the error of that row (None: there is none). `rows_before` is the number of rows
    before the batch."""
    index = batch.schema.get_field_index("headers")
    if index < 0:
        return batch, None
    column, error = batch.column(index), None
    headers: dict[int, list[tuple[str, bytes | None]]] = {}
    for row in pc.indices_nonzero(pc.is_valid(column)).to_pylist():
        try:
            headers[row] = _parse_headers(_parse_json(column[row].as_py()))
        except ValueError:
            error = BadRowError(
                rows_before + row + 1,
                f'headers are written like ["name","value"], not {column[row].as_py()!r}',
            )
            batch = batch.slice(0, row)
            break
    column = arrow.headers_array(headers, batch.num_rows)
    return batch.set_column(index, pa.field("headers", HEADERS_TYPE), column), error
