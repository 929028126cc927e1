"""Records in Parquet, Arrow IPC and CSV files; the ending of a file's name says which.

A file is written under a temporary name and renamed at the end: nobody sees an incomplete file, and
an old one stays until the new one is complete. Memory holds one row group.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.cli.input import BadRowError, NumberedRows
from sparkkafka.client.consumer.record import RECORD_SCHEMA
from sparkkafka.errors import DecodeError, OptionError
from sparkkafka.protocol.columns.columns import HEADERS_TYPE
from sparkkafka.protocol.records.arrow import binary_array, headers_array

PARQUET: Final = "Parquet"
ARROW: Final = "Arrow IPC"
CSV: Final = "CSV"
ENDINGS: Final = {".parquet": PARQUET, ".arrow": ARROW, ".feather": ARROW, ".csv": CSV}

_GROUP_BYTES: Final = 64 << 20
"""The size of a row group, which is what memory holds of a file that is written."""
_READ_ROWS: Final = 1 << 16

# next_offset is the reader's own.
COLUMNS: Final = tuple(name for name in RECORD_SCHEMA.names if name != "next_offset")


def file_kind(path: Path, option: str) -> str:
    """Return the kind of a file by its name. Raises OptionError for another ending."""
    kind = ENDINGS.get(path.suffix.lower())
    if kind is None:
        raise OptionError(
            f"{option}: the ending of {path.name} says what the file is: one of "
            f"{', '.join(ENDINGS)}"
        )
    return kind


# --- writing -------------------------------------------------------------------------------------


class FileSink:
    """Writes batches of a `TopicReader` to a file; use it under `with`. The file is created
    when the block ends without an exception; after an exception no part of it is left.

    The columns are topic, partition, offset, timestamp, timestamp_type, key, value and headers;
    `types` are those of decoded keys and values. In CSV keys and values are text, and headers a
    JSON array. Raises OSError, OptionError; DecodeError for bytes that CSV cannot represent."""

    def __init__(self, path: Path, types: dict[str, pa.DataType]) -> None:
        self.path = Path(os.path.realpath(path))  # the target of a link is replaced, not the link
        self._file_kind = file_kind(path, "--output")
        fields = [RECORD_SCHEMA.field(name) for name in COLUMNS]
        self._schema = pa.schema([pa.field(f.name, types.get(f.name, f.type)) for f in fields])
        if self._file_kind == CSV:
            self._schema = _csv_schema(self._schema)
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
        """Buffer the rows, and write a row group once _GROUP_BYTES are buffered."""
        rows = batch.select(list(COLUMNS))
        rows = (_to_csv_rows if self._file_kind == CSV else _to_typed_rows)(rows, self._schema)
        self._buffered.append(rows)
        self._buffered_bytes += rows.nbytes
        if self._buffered_bytes >= _GROUP_BYTES:
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


def _to_typed_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert the columns to the types of the schema."""
    from sparkkafka.schemas.arrays import as_type  # numpy and Arrow, which CSV does not need

    # Arrow's own cast refuses a type whose fields are not nullable.
    columns = [as_type(batch.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _csv_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with text instead of binary columns and headers."""
    fields = []
    for field in schema:
        if field.name in ("key", "value", "headers"):
            if pa.types.is_nested(field.type) and field.name != "headers":
                raise OptionError(
                    f"--output: a {field.name} of type {field.type} is not a column of CSV: write "
                    ".parquet or .arrow"
                )
            is_text = field.name == "headers" or pa.types.is_binary(field.type)
            field = pa.field(field.name, pa.string()) if is_text else field
        fields.append(field)
    return pa.schema(fields)


def _to_csv_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert binary columns and headers to text."""
    columns = []
    for name in schema.names:
        column = batch.column(name)
        if name == "headers":
            column = _header_column(column, batch)
        elif pa.types.is_binary(column.type):
            column = _text_column(column, name, batch)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


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
    return binary_array(texts).cast(pa.string())


# --- reading -------------------------------------------------------------------------------------


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
        import pyarrow.csv as csv

        columns = {name: pa.string() for name in ("topic", "key", "value", "headers")}
        columns["timestamp"] = RECORD_SCHEMA.field("timestamp").type
        options = csv.ConvertOptions(
            column_types=columns,
            null_values=[""],  # by default Arrow also reads N/A, NULL and nan as null
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        bad: list[Any] = []  # the first row with another number of columns than the header

        def skip(row: Any) -> str:
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
            if bad and bad[0].number - 2 <= rows_before + batch.num_rows:
                yield batch.slice(0, bad[0].number - 2 - rows_before)
                break
            yield batch
            rows_before += batch.num_rows
        if bad:
            raise BadRowError(
                bad[0].number - 1,  # Arrow counts the header, too
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
            flat = json.loads(column[row].as_py())
            pairs = list(zip(flat[::2], flat[1::2], strict=True))
            headers[row] = [
                (_require_text(name), None if value is None else _require_text(value).encode())
                for name, value in pairs
            ]
        except (ValueError, TypeError):
            error = BadRowError(
                rows_before + row + 1,
                f'headers are written like ["name","value"], not {column[row].as_py()!r}',
            )
            batch = batch.slice(0, row)
            break
    column = headers_array(headers, batch.num_rows)
    return batch.set_column(index, pa.field("headers", HEADERS_TYPE), column), error


def _require_text(value: Any) -> str:
    """Return the value, a header's name or value, if it is text. Raises TypeError otherwise."""
    if not isinstance(value, str):
        raise TypeError
    return value
