"""Records as text: whole Arrow columns become bytes, without a Python object for a record.

    text_format(b"\\n")                 values, each with a delimiter behind it
    template_format("%t %o: %s\\n")     kcat's -f
    json_format({0: 1})                kcat's -J: one JSON object a line

The texts are kcat's (1.7.1), byte for byte, down to the escapes of its JSON: control characters as
\\u00XX with capitals, other bytes as they are, so that what is no UTF-8 stays as it was written.
Two things differ: header values with a zero byte are whole, and an unknown escape is an error.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkkafka.errors import OptionError
from sparkkafka.protocol.records.arrow import (
    binary_array,
    from_numpy,
    is_valid,
    or_zero,
    to_numpy,
)

KEY: Final = "key"
VALUE: Final = "value"

Text: TypeAlias = memoryview | bytes
Piece: TypeAlias = Any
"""Of a line: bytes, the same in each, or a binary column without nulls (pa.Array)."""

_MAX_BYTES_AT_ONCE: Final = 16 << 20
"""Of keys, values and headers: escapes make at most six times as much, and Arrow's offsets have 31
bits."""

_TIMESTAMP_TYPES: Final = {0: b"create", 1: b"logappend"}
_LETTERS: Final = "topkshTSKR"
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "0": "\0"}
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|.|$)", re.DOTALL)


@dataclass(frozen=True)
class Nulls:
    """What is printed for null. `and_empty`: also for what is empty, as kcat's -Z has it."""

    text: bytes = b""
    and_empty: bool = False


NOTHING_FOR_NULL: Final = Nulls()


@dataclass(frozen=True)
class Format:
    """How batches of one partition, of RECORD_SCHEMA, become bytes. `json_columns`: those of key
    and value that hold JSON texts already."""

    pieces: Callable[[Rows], Iterator[Piece]]
    delimiter_only: bytes | None = None
    json_columns: frozenset[str] = field(default=frozenset())

    def texts(self, batch: pa.RecordBatch) -> Iterator[Text]:
        """The rows' bytes, in parts; to be written before the next part is asked for."""
        for rows in _pieces_of(batch):
            if not rows.num_rows:
                continue
            if self.delimiter_only is not None and not rows.column("value").null_count:
                yield from _joined(rows.column("value"), self.delimiter_only)
            else:
                yield _lines(list(self.pieces(Rows(rows, self.json_columns))), rows.num_rows)


class Rows:
    """Columns of a batch as a format wants them."""

    def __init__(self, batch: pa.RecordBatch, json_columns: frozenset[str]) -> None:
        self.batch = batch
        self.json_columns = json_columns
        self.topic: bytes = batch.column("topic")[0].as_py().encode()
        self.partition: int = batch.column("partition")[0].as_py()

    def binary(self, name: str) -> pa.Array:
        return self.batch.column(name)

    def number(self, name: str) -> pa.Array:
        return _digits(self.batch.column(name))

    def time_ms(self) -> NDArray[np.int64]:
        found: NDArray[np.int64] = to_numpy(self.batch.column("timestamp").view(pa.int64())) // 1000
        return found


def _pieces_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch, in parts that Arrow can join; a large record is a part of its own."""
    if batch.num_rows <= 1 or batch.nbytes <= _MAX_BYTES_AT_ONCE:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _pieces_of(batch.slice(0, middle))
    yield from _pieces_of(batch.slice(middle))


def _lines(pieces: Sequence[Piece], count: int) -> Text:
    """The pieces of each row, one behind the other."""
    merged: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += piece
        else:
            merged.append(piece)
    if all(isinstance(piece, bytes) for piece in merged):
        return b"".join(merged) * count
    try:
        return _content(_joined_rows(*merged))
    except pa.ArrowCapacityError:
        raise OptionError(
            "a record is too large to be printed: read it into a file, with --output FILE.parquet"
        ) from None


def _joined(column: pa.Array, delimiter: bytes) -> Iterator[Text]:
    """As `_lines` of a column and a delimiter, four times as fast."""
    if not delimiter:
        yield _content(column)
        return
    offsets = from_numpy(np.array([0, len(column)], np.int32))
    lists = pa.ListArray.from_arrays(offsets, column)
    yield _content(pc.binary_join(lists, _scalar(delimiter)))
    yield delimiter


def _content(column: pa.Array) -> memoryview:
    """The bytes of all rows, shared."""
    offsets, data = _buffers(column)
    return memoryview(data)[int(offsets[0]) : int(offsets[-1])]


def _buffers(column: pa.Array) -> tuple[NDArray[np.int32], Any]:
    """Offsets of a binary column, and what they are in."""
    _, offsets, data = column.buffers()
    found = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return found, data if data is not None else b""


@lru_cache(256)
def _scalar(content: bytes) -> pa.Scalar:
    """Arrow's own conversion of Python's values imports pandas, which takes 200 ms."""
    return binary_array([content])[0]


def _operand(piece: Piece) -> Any:
    return _scalar(piece) if isinstance(piece, bytes) else piece


def _joined_rows(*pieces: Piece) -> pa.Array:
    """The pieces of each row as one column; null where one is."""
    return pc.binary_join_element_wise(*map(_operand, pieces), _scalar(b""))


def _digits(numbers: pa.Array) -> pa.Array:
    return numbers.cast(pa.string()).cast(pa.binary())


# --- text and kcat's templates -------------------------------------------------------------------


def text_format(
    delimiter: bytes = b"\n", key_delimiter: bytes | None = None, nulls: Nulls = NOTHING_FOR_NULL
) -> Format:
    """Values with a delimiter behind each; with `key_delimiter` the key and it before the value."""

    def pieces(rows: Rows) -> Iterator[Piece]:
        if key_delimiter is not None:
            yield _shown(rows.binary(KEY), nulls)
            yield key_delimiter
        yield _shown(rows.binary(VALUE), nulls)
        yield delimiter

    quick = key_delimiter is None and not nulls.and_empty
    return Format(pieces, delimiter if quick else None)


def template_format(template: str, nulls: Nulls = NOTHING_FOR_NULL) -> Format:
    """kcat's -f: %t topic, %p partition, %o offset, %k key, %s value, %h headers, %T timestamp in
    ms, %K and %S lengths (-1 for null), %R the value's length as four bytes, %% a percent sign.

    Raises OptionError for another letter.
    """
    parsed = list(_parse(template))

    def pieces(rows: Rows) -> Iterator[Piece]:
        for letter, literal in parsed:
            yield literal if not letter else _field(rows, letter, nulls)

    return Format(pieces)


def hex_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with keys and values in hexadecimal digits."""
    for name in (KEY, VALUE):
        at = batch.schema.get_field_index(name)
        batch = batch.set_column(at, batch.schema.field(at), _hex(batch.column(at)))
    return batch


def _hex(column: pa.Array) -> pa.Array:
    offsets, data = _buffers(column)
    first = int(offsets[0])
    digits = binascii.hexlify(memoryview(data)[first : int(offsets[-1])])
    return _like(column, (offsets - first) * 2, digits)


def bytes_of_hex(column: pa.Array) -> tuple[pa.Array, int | None]:
    """The bytes that a binary or string column has in hexadecimal digits, and the first row that
    has something else (None: there is none). From that row on nothing is converted."""
    if not len(column):
        return column.cast(pa.binary()), None
    column = column.cast(pa.binary())
    offsets, data = _buffers(column)
    first = int(offsets[0])
    digits = memoryview(data)[first : int(offsets[-1])]
    try:
        if (offsets - first & 1).any():
            raise binascii.Error("a row has half a byte")
        return _like(column, (offsets - first) // 2, binascii.unhexlify(digits)), None
    except binascii.Error:
        bad = next(row for row, text in enumerate(column.to_pylist()) if not _is_hex(text))
        return bytes_of_hex(column.slice(0, bad))[0], bad


def _is_hex(text: bytes | None) -> bool:
    try:
        binascii.unhexlify(text or b"")
    except binascii.Error:
        return False
    return True


def unescaped(text: str, option: str) -> bytes:
    """The bytes of a text with \\n, \\x00 and so on. Raises OptionError for other escapes."""

    def one(match: re.Match[str]) -> str:
        word = match[1]
        if word[:1] == "x" and len(word) > 1:
            code = int(word[1:], 16)
            return chr(code if code < 128 else 0xDC00 + code)  # the latter is a byte, see below
        if word not in _ESCAPES:
            raise OptionError(
                f"{option}: there is no escape \\{word}; there are \\n \\r \\t \\\\ \\0 \\xNN"
            )
        return _ESCAPES[word]

    return _ESCAPE.sub(one, text).encode("utf-8", "surrogateescape")


def _parse(template: str) -> Iterator[tuple[str, bytes]]:
    """(letter, b"") and ("", literal)."""
    for number, part in enumerate(re.split(r"(%.?)", template, flags=re.DOTALL)):
        if number % 2 == 0:
            if part:
                yield "", unescaped(part, "-f")
        elif part == "%%":
            yield "", b"%"
        elif len(part) == 2 and part[1] in _LETTERS:
            yield part[1], b""
        else:
            raise OptionError(
                f"-f: there is no {part!r}; there are %t %p %o %k %s %h %T %K %S %R and %%"
            )


def _field(rows: Rows, letter: str, nulls: Nulls) -> Piece:
    if letter == "t":
        return rows.topic
    if letter == "p":
        return b"%d" % rows.partition
    if letter == "o":
        return rows.number("offset")
    if letter == "T":
        return _digits(from_numpy(rows.time_ms()))
    if letter == "h":
        return _header_text(rows)
    column = rows.binary(KEY if letter in "kK" else VALUE)
    if letter in "ks":
        return _shown(column, nulls)
    lengths = _lengths(column)
    if letter in "KS":
        return _digits(lengths)
    data = to_numpy(lengths).astype(">i4").tobytes()
    return _of_offsets(np.arange(len(column) + 1, dtype=np.int32) * np.int32(4), data)


def _shown(column: pa.Array, nulls: Nulls) -> pa.Array:
    if nulls.and_empty:
        is_nothing = to_numpy(_lengths(column)) <= 0
        return pc.if_else(from_numpy(is_nothing), _scalar(nulls.text), column)
    return column.fill_null(_scalar(nulls.text))


def _header_text(rows: Rows) -> Piece:
    """name=value,name=value with NULL for null."""
    headers = rows.batch.column("headers")
    if headers.null_count == len(headers):
        return b""
    offsets, names, values = _flat_headers(headers)
    pairs = _joined_rows(names, b"=", values.fill_null(_scalar(b"NULL")))
    return pc.binary_join(pa.ListArray.from_arrays(offsets, pairs), _scalar(b","))


def _flat_headers(headers: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Where each row's headers begin and end, their names and values; a row without has none."""
    flat = headers.flatten()
    counts = or_zero(pc.list_value_length(headers))
    offsets = np.zeros(len(headers) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    names, values = flat.flatten()
    return from_numpy(offsets), names.cast(pa.binary()), values


# --- JSON ----------------------------------------------------------------------------------------


def json_format(
    leaders: Mapping[int, int] | None = None, json_columns: frozenset[str] = frozenset()
) -> Format:
    """kcat's -J. `leaders`: the broker of each partition. `json_columns`: what of key and value is
    JSON already, and stands in the line as it is."""

    def pieces(rows: Rows) -> Iterator[Piece]:
        count = rows.batch.num_rows
        yield b'{"topic":%s,"partition":%d,"offset":' % (_quoted(rows.topic), rows.partition)
        yield rows.number("offset")
        yield from _times(rows)
        yield b',"broker":%d,' % (leaders or {}).get(rows.partition, -1)
        yield _header_json(rows)
        for name, label in ((KEY, b'"key":'), (VALUE, b',"payload":')):
            yield label
            column = rows.binary(name)
            if column.null_count == count:
                yield b"null"
            elif name in rows.json_columns:
                yield column.fill_null(_scalar(b"null"))
            elif column.null_count:
                yield _quoted_or_null(column)
            else:
                yield from (b'"', escaped(column), b'"')
        yield b"}\n"

    return Format(pieces, json_columns=json_columns)


def _times(rows: Rows) -> Iterator[Piece]:
    """Kind and time; nothing for a record without a timestamp."""
    types = to_numpy(rows.batch.column("timestamp_type"))
    numbers = _digits(from_numpy(rows.time_ms()))
    first = int(types[0])
    if (types == first).all():
        if first in _TIMESTAMP_TYPES:
            yield b',"tstype":"%s","ts":' % _TIMESTAMP_TYPES[first]
            yield numbers
        return
    # Batches of several kinds, in a topic whose message.timestamp.type was changed.
    nothing = _scalar(b"")
    front: pa.Array = nothing
    for number, name in _TIMESTAMP_TYPES.items():
        words = _scalar(b',"tstype":"%s","ts":' % name)
        front = pc.if_else(from_numpy(types == number), words, front)
    yield front
    yield pc.if_else(from_numpy(types >= 0), numbers, nothing)


def _header_json(rows: Rows) -> Piece:
    """ "headers":["name","value",…], or nothing where there are none."""
    headers = rows.batch.column("headers")
    if headers.null_count == len(headers):
        return b""
    offsets, names, values = _flat_headers(headers)
    if not len(names):
        return b""
    values = _quoted_or_null(values) if values.null_count else _in_quotes(values)
    pairs = _joined_rows(b'"', escaped(names), b'",', values)
    lists = pc.binary_join(pa.ListArray.from_arrays(offsets, pairs), _scalar(b","))
    whole = _joined_rows(b'"headers":[', lists, b"],")
    return pc.if_else(from_numpy(to_numpy(pc.binary_length(lists)) == 0), _scalar(b""), whole)


def _quoted(text: bytes) -> bytes:
    content: bytes = _in_quotes(binary_array([text]))[0].as_py()
    return content


def _in_quotes(column: pa.Array) -> pa.Array:
    return _joined_rows(b'"', escaped(column), b'"')


def _quoted_or_null(column: pa.Array) -> pa.Array:
    return _in_quotes(column).fill_null(_scalar(b"null"))


_QUOTE, _BACKSLASH, _SPACE = 34, 92, 32
_SHORT: Final = {8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}


def _growth() -> NDArray[np.int8]:
    """Bytes that the escape of a byte takes more than the byte."""
    table = np.zeros(256, np.int8)
    table[:_SPACE] = 5
    table[list(_SHORT)] = 1
    return table


_GROWTH = _growth()


def escaped(column: pa.Array) -> pa.Array:
    """A binary column as the inside of JSON strings; the column itself if nothing is escaped."""
    offsets, buffer = _buffers(column)
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return column
    data = np.frombuffer(buffer, np.uint8, last - first, first)
    is_special = data < _SPACE
    is_special |= data == _QUOTE
    is_special |= data == _BACKSLASH
    places = np.flatnonzero(is_special)
    if not len(places):
        return column
    special = data[places]
    text = data.tobytes()
    # The backslash first: the other escapes bring new ones.
    for code in sorted(set(np.unique(special).tolist()), key=lambda one: one != _BACKSLASH):
        text = text.replace(bytes([code]), _SHORT.get(code, b"\\u%04X" % code))
    grown = np.zeros(len(places) + 1, np.int64)
    np.cumsum(_GROWTH[special], out=grown[1:])
    starts = offsets - first
    return _like(column, starts + grown[np.searchsorted(places, starts)], text)


def _like(column: pa.Array, offsets: NDArray[Any], data: bytes) -> pa.Array:
    """Other bytes for the same rows, with the same nulls."""
    return _of_offsets(offsets.astype(np.int32), data, column)


def _lengths(column: pa.Array) -> pa.Array:
    """Bytes of each row; -1 for null."""
    lengths = to_numpy(pc.binary_length(column))
    return from_numpy(np.where(is_valid(column), lengths, np.int32(-1)))


def _of_offsets(offsets: NDArray[np.int32], data: bytes, nulls_of: Any = None) -> pa.Array:
    bitmap = None
    if nulls_of is not None and nulls_of.null_count:
        bitmap = from_numpy(is_valid(nulls_of)).buffers()[1]
    buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
