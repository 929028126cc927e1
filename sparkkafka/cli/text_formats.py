"""Records as text: whole Arrow columns become bytes, without a Python object for a record.

    text_format(b"\\n")                 values, each followed by a delimiter
    template_format("%t %o: %s\\n")     kcat's -f
    json_format({0: 1})                kcat's -J: one JSON object a line

The texts are kcat's (1.7.1), byte for byte, down to the escapes of its JSON: control characters are
\\u00XX with capitals, and other bytes stay as they are, even if they are not UTF-8. Two things
differ: header values with a zero byte are complete, and an unknown escape is an error.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.errors import OptionError
from sparkkafka.protocol.records import arrow

Text: TypeAlias = memoryview | bytes
LinePart: TypeAlias = Any
"""A part of each line: bytes that are the same in all lines, or a binary column (pa.Array) with the
part of each line."""


@dataclass(frozen=True)
class Nulls:
    """The text for null; with `and_empty` also for empty keys and values, as kcat's -Z."""

    text: bytes = b""
    and_empty: bool = False


@dataclass(frozen=True)
class Format:
    """Converts batches of RECORD_SCHEMA, each of one partition, to bytes. `line_parts` gives the
    parts of each line. `values_end`: lines are only values with this delimiter after each."""

    line_parts: Callable[[pa.RecordBatch], Iterator[LinePart]]
    values_end: bytes | None = None

    def texts(self, batch: pa.RecordBatch) -> Iterator[Text]:
        """Yield the bytes of the rows in chunks. Write a chunk before taking the next one."""
        for rows in _slices(batch):
            if not rows.num_rows:
                continue
            if self.values_end is not None and not rows.column("value").null_count:
                yield from _join_values(rows.column("value"), self.values_end)
            else:
                yield _join_lines(self.line_parts(rows), rows.num_rows)


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices of at most 16 MB, or one record: escapes make it at most six times as large, and
    Arrow's offsets have 31 bits."""
    if batch.num_rows <= 1 or batch.nbytes <= 16 << 20:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _slices(batch.slice(0, middle))
    yield from _slices(batch.slice(middle))


def _join_lines(parts: Iterable[LinePart], count: int) -> Text:
    """Return `count` lines, each with its parts one after the other."""
    merged: list[LinePart] = []
    for part in parts:
        if isinstance(part, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += part
        else:
            merged.append(part)
    if all(isinstance(part, bytes) for part in merged):
        return b"".join(merged) * count
    return _content(_concatenate(*merged))


def _join_values(column: pa.Array, delimiter: bytes) -> Iterator[Text]:
    """Yield the values with the delimiter after each, four times as fast as `_join_lines`."""
    if not delimiter:
        yield _content(column)
        return
    offsets = arrow.from_numpy(np.array([0, len(column)], np.int32))
    lists = pa.ListArray.from_arrays(offsets, column)
    yield _content(arrow.call("binary_join", lists, _scalar(delimiter)))
    yield delimiter


def _content(column: pa.Array) -> memoryview:
    """Return the bytes of all rows, without a copy."""
    offsets = arrow.blob_offsets(column)
    return memoryview(column.buffers()[2] or b"")[int(offsets[0]) : int(offsets[-1])]


@lru_cache(256)
def _scalar(content: bytes) -> pa.Scalar:
    """Convert bytes to Arrow. Arrow's own conversion imports pandas, which takes 200 ms."""
    return arrow.binary_array([content])[0]


def _concatenate(*parts: LinePart) -> pa.Array:
    """Concatenate the parts of each row; null if one of them is null."""
    operands = (_scalar(part) if isinstance(part, bytes) else part for part in parts)
    return arrow.call("binary_join_element_wise", *operands, _scalar(b""))


def _digits(numbers: pa.Array) -> pa.Array:
    """Format numbers as binary text."""
    return arrow.cast(arrow.cast(numbers, pa.string()), pa.binary())


def _topic(batch: pa.RecordBatch) -> bytes:
    """Return the one topic of a batch."""
    topic: bytes = batch.column("topic")[0].as_py().encode()
    return topic


def _partition(batch: pa.RecordBatch) -> int:
    """Return the one partition of a batch."""
    partition: int = batch.column("partition")[0].as_py()
    return partition


def _time_ms(batch: pa.RecordBatch) -> pa.Array:
    """Format timestamps as milliseconds since 1970 UTC."""
    return _digits(
        arrow.from_numpy(arrow.to_numpy(batch.column("timestamp").view(pa.int64())) // 1000)
    )


# --- text and kcat's templates -------------------------------------------------------------------


def text_format(
    delimiter: bytes = b"\n", key_delimiter: bytes | None = None, nulls: Nulls = Nulls()
) -> Format:
    """Return the format of --format text: the value and a delimiter; with `key_delimiter` the key
    and this come first."""
    fields = [("s", b""), ("", delimiter)]
    if key_delimiter is not None:
        fields = [("k", b""), ("", key_delimiter), *fields]
    only_values = key_delimiter is None and not nulls.and_empty
    return Format(partial(_template_parts, fields, nulls), delimiter if only_values else None)


def template_format(template: str, nulls: Nulls = Nulls()) -> Format:
    """Return the format of kcat's -f: %t topic, %p partition, %o offset, %k key, %s value, %h
    headers, %T timestamp in ms, %K and %S lengths (-1 for null), %R the value's length as four
    bytes, %% a percent sign.

    Raises OptionError for another letter.
    """
    return Format(partial(_template_parts, list(_parse_template(template)), nulls))


def _template_parts(
    fields: Iterable[tuple[str, bytes]], nulls: Nulls, batch: pa.RecordBatch
) -> Iterator[LinePart]:
    """Yield the parts of each line, for fields as `_parse_template` yields them."""
    for letter, text in fields:
        yield _field(batch, letter, nulls) if letter else text


def hex_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replace keys and values by their hexadecimal digits."""
    for name in ("key", "value"):
        index = batch.schema.get_field_index(name)
        column = batch.column(index)
        offsets = arrow.blob_offsets(column)
        digits = binascii.hexlify(_content(column))
        column = _binary((offsets - offsets[0]) * 2, digits, nulls_of=column)
        batch = batch.set_column(index, batch.schema.field(index), column)
    return batch


def parse_hex(column: pa.Array) -> tuple[pa.Array, int | None]:
    """Convert hexadecimal digits in a binary or string column to bytes. Return the rows before the
    first that holds something else, and the index of that row (None: all rows are converted)."""
    column = column.cast(pa.binary())
    if not len(column):
        return column, None
    offsets = arrow.blob_offsets(column)
    offsets = offsets - offsets[0]
    try:
        if (offsets & 1).any():
            raise binascii.Error("a row has half a byte")
        return _binary(offsets // 2, binascii.unhexlify(_content(column)), nulls_of=column), None
    except binascii.Error:
        is_hex = re.compile(rb"(?:[0-9A-Fa-f]{2})*+").fullmatch  # *+ remembers no repetition
        bad = next(row for row, text in enumerate(column.to_pylist()) if not is_hex(text or b""))
        return parse_hex(column.slice(0, bad))[0], bad


def parse_escapes(text: str, option: str) -> bytes:
    """Replace \\n, \\x00 and so on by the bytes they stand for. Raises OptionError for other
    escapes."""

    def replace(match: re.Match[str]) -> str:
        """Return what one escape stands for. A byte above 127 becomes a surrogate."""
        escape = match[1]
        if escape[:1] == "x" and len(escape) > 1:
            code = int(escape[1:], 16)
            return chr(code if code < 128 else 0xDC00 + code)  # "surrogateescape" makes it a byte
        characters = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "0": "\0"}
        if escape not in characters:
            raise OptionError(
                f"{option}: there is no escape \\{escape}; use \\n \\r \\t \\\\ \\0 \\xNN"
            )
        return characters[escape]

    escapes = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|.|$)", re.DOTALL)
    return escapes.sub(replace, text).encode("utf-8", "surrogateescape")


def parse_delimiters(delimiter: str, key_delimiter: str | None) -> tuple[bytes, bytes | None]:
    """Return the delimiters of records (-D) and of keys (-K), with escapes replaced. Raises
    OptionError."""
    return (
        parse_escapes(delimiter, "-D"),
        None if key_delimiter is None else parse_escapes(key_delimiter, "-K"),
    )


def _parse_template(template: str) -> Iterator[tuple[str, bytes]]:
    """Parse kcat's template. Yield (letter, b"") for a field of the record, as %t, and ("", text)
    for the text between fields. Raises OptionError for an unknown letter."""
    for number, part in enumerate(re.split(r"(%.?)", template, flags=re.DOTALL)):
        if number % 2 == 0:
            if part:
                yield "", parse_escapes(part, "-f")
        elif part == "%%":
            yield "", b"%"
        elif len(part) == 2 and part[1] in "topkshTSKR":
            yield part[1], b""
        else:
            raise OptionError(f"-f: there is no {part!r}; use %t %p %o %k %s %h %T %K %S %R and %%")


def _field(batch: pa.RecordBatch, letter: str, nulls: Nulls) -> LinePart:
    """Return what a letter of kcat's template (t for %t, …) stands for in each row."""
    if letter == "t":
        return _topic(batch)
    if letter == "p":
        return b"%d" % _partition(batch)
    if letter == "o":
        return _digits(batch.column("offset"))
    if letter == "T":
        return _time_ms(batch)
    if letter == "h":
        return _header_text(batch.column("headers"))
    column = batch.column("key" if letter in "kK" else "value")
    if letter in "ks":
        return _fill_nulls(column, nulls)
    lengths = _lengths(column)
    if letter in "KS":
        return _digits(lengths)
    data = arrow.to_numpy(lengths).astype(">i4").tobytes()  # of R: four bytes for each length
    return _binary(np.arange(len(column) + 1) * 4, data)


def _fill_nulls(column: pa.Array, nulls: Nulls) -> pa.Array:
    """Replace null, and perhaps empty values, by the text for it."""
    if nulls.and_empty:
        is_null_or_empty = arrow.to_numpy(_lengths(column)) <= 0  # the length of null is -1
        return arrow.call(
            "if_else", arrow.from_numpy(is_null_or_empty), _scalar(nulls.text), column
        )
    return column.fill_null(_scalar(nulls.text))


def _header_text(headers: pa.Array) -> LinePart:
    """Format name=value,name=value with NULL for null."""
    if headers.null_count == len(headers):
        return b""
    offsets, names, values = _flat_headers(headers)
    pairs = _concatenate(names, b"=", values.fill_null(_scalar(b"NULL")))
    return arrow.call("binary_join", pa.ListArray.from_arrays(offsets, pairs), _scalar(b","))


def _flat_headers(headers: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return the offsets of each row's headers, and the names and values of all headers."""
    flat = headers.flatten()
    counts = arrow.or_zero(headers.value_lengths())
    offsets = np.zeros(len(headers) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    names, values = flat.flatten()
    return arrow.from_numpy(offsets), names.cast(pa.binary()), values


# --- JSON ----------------------------------------------------------------------------------------


def json_format(
    leaders: Mapping[int, int] | None = None, json_columns: frozenset[str] = frozenset()
) -> Format:
    """Return the format of kcat's -J. `leaders`: the broker of each partition. `json_columns`: keys
    or values that are already JSON, and stay as they are."""

    def line_parts(batch: pa.RecordBatch) -> Iterator[LinePart]:
        """Yield the parts of the batch's lines: each is one text for all rows, or a column of one
        for each."""
        partition = _partition(batch)
        topic = _quote(arrow.binary_array([_topic(batch)]))[0].as_py()
        yield b'{"topic":%s,"partition":%d,"offset":' % (topic, partition)
        yield _digits(batch.column("offset"))
        yield from _timestamp_parts(batch)
        yield b',"broker":%d,' % (leaders or {}).get(partition, -1)
        yield _header_json(batch.column("headers"))
        for name, label in (("key", b'"key":'), ("value", b',"payload":')):
            yield label
            column = batch.column(name)
            if column.null_count == batch.num_rows:
                yield b"null"
            elif name in json_columns:
                yield column.fill_null(_scalar(b"null"))
            elif column.null_count:
                yield _quote_or_null(column)
            else:
                yield from (b'"', escape(column), b'"')
        yield b"}\n"

    return Format(line_parts)


def _timestamp_parts(batch: pa.RecordBatch) -> Iterator[LinePart]:
    """Yield the parts "tstype" and "ts" of each line's JSON; empty for a record without a
    timestamp."""
    # By timestamp_type; -1 is a record without a timestamp.
    labels = {0: b',"tstype":"create","ts":', 1: b',"tstype":"logappend","ts":'}
    types = arrow.to_numpy(batch.column("timestamp_type"))
    first = int(types[0])
    if (types == first).all():
        if first in labels:
            yield labels[first]
            yield _time_ms(batch)
        return
    # The topic's message.timestamp.type was changed.
    empty = _scalar(b"")
    column: pa.Array = empty
    for number, label in labels.items():
        column = arrow.call("if_else", arrow.from_numpy(types == number), _scalar(label), column)
    yield column
    yield arrow.call("if_else", arrow.from_numpy(types >= 0), _time_ms(batch), empty)


def _header_json(headers: pa.Array) -> LinePart:
    """Format "headers":["name","value",…], or nothing for a record without headers."""
    if headers.null_count == len(headers):
        return b""
    offsets, names, values = _flat_headers(headers)
    if not len(names):
        return b""
    pairs = _concatenate(_quote(names), b",", _quote_or_null(values))
    lists = arrow.call("binary_join", pa.ListArray.from_arrays(offsets, pairs), _scalar(b","))
    document = _concatenate(b'"headers":[', lists, b"],")
    has_none = arrow.from_numpy(arrow.to_numpy(arrow.call("binary_length", lists)) == 0)
    return arrow.call("if_else", has_none, _scalar(b""), document)


def _quote(column: pa.Array) -> pa.Array:
    """Convert a binary column to JSON strings; null stays null."""
    return _concatenate(b'"', escape(column), b'"')


def _quote_or_null(column: pa.Array) -> pa.Array:
    """Convert a binary column to JSON strings, and null to JSON's null."""
    return _quote(column).fill_null(_scalar(b"null"))


def escape(column: pa.Array) -> pa.Array:
    """Escape a binary column as the content of JSON strings; return the column itself if there is
    nothing to escape."""
    offsets = arrow.blob_offsets(column)
    data = np.frombuffer(_content(column), np.uint8)
    if not len(data):
        return column
    is_special = data < ord(" ")
    is_special |= data == ord('"')
    is_special |= data == ord("\\")
    indexes = np.flatnonzero(is_special)
    if not len(indexes):
        return column
    special = data[indexes]
    short = {8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}
    text = data.tobytes()
    # The backslash comes first, since the other escapes add backslashes.
    for code in sorted(np.unique(special).tolist(), key=lambda code: code != ord("\\")):
        text = text.replace(bytes([code]), short.get(code, b"\\u%04X" % code))
    growth = np.zeros(len(indexes) + 1, np.int64)  # bytes that the first n escapes add
    is_short = np.isin(special, list(short))
    np.cumsum(np.where(is_short, 1, 5), out=growth[1:])  # \n adds a byte, \u0000 five
    starts = offsets - offsets[0]
    return _binary(starts + growth[np.searchsorted(indexes, starts)], text, nulls_of=column)


def _lengths(column: pa.Array) -> pa.Array:
    """Return the number of bytes of each row; -1 for null."""
    lengths = arrow.to_numpy(arrow.call("binary_length", column))
    return arrow.from_numpy(np.where(arrow.is_valid(column), lengths, np.int32(-1)))


def _binary(offsets: NDArray[Any], data: bytes, nulls_of: pa.Array | None = None) -> pa.Array:
    """Make a binary column of its rows' offsets and bytes; null where `nulls_of` is."""
    bitmap = None
    if nulls_of is not None and nulls_of.null_count:
        bitmap = arrow.from_numpy(arrow.is_valid(nulls_of)).buffers()[1]
    buffers = [bitmap, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
