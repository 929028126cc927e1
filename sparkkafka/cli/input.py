"""Lines and JSON lines of a file or pipe as Arrow batches for the Producer, by whole columns.

What has come is given at once, so that `tail -f | sparkkafka write` sends line by line. Batches
have columns of key, value and headers, of JSON also partition and timestamp, and each row has the
number of its line, from 1: errors name it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkkafka.client.consumer.record import RECORD_SCHEMA
from sparkkafka.errors import EncodeError, OptionError
from sparkkafka.protocol.columns.columns import HEADERS_TYPE, gather
from sparkkafka.protocol.records.arrow import (
    binary_array,
    from_numpy,
    headers_array,
    is_valid,
    or_zero,
    to_numpy,
)

Headers = tuple[tuple[str, bytes | None], ...]

_READ_BYTES: Final = 4 << 20
MAX_LINE_BYTES: Final = 256 << 20
"""Of one line: longer ones are a file that has no lines."""

_TIMESTAMP: Final = RECORD_SCHEMA.field("timestamp").type


class Piece(NamedTuple):
    """Rows of the input, and the number of each one's line, or row of a file, from 1."""

    batch: pa.RecordBatch
    numbers: Sequence[int]


class BadPlaceError(EncodeError):
    """A line of the input, or a row of a file, that is no record: its number, and why. What stands
    before it was given."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number
        self.reason = reason


@dataclass(frozen=True)
class LineFormat:
    """How text is cut. `key_delimiter` None: there are no keys in it. `empty_is_null` is for keys
    and values; `skips_empty` leaves empty lines out, as kcat does."""

    delimiter: bytes = b"\n"
    key_delimiter: bytes | None = None
    empty_is_null: bool = False
    skips_empty: bool = False


def chunks_of(file: IO[bytes]) -> Iterator[bytes]:
    """What can be read, as it comes."""
    read = getattr(file, "read1", file.read)
    while chunk := read(_READ_BYTES):
        yield chunk


def whole_lines(chunks: Iterable[bytes], delimiter: bytes) -> Iterator[bytes]:
    """The same bytes, cut behind the last delimiter of each; the last one may have none.

    Raises OptionError for a line of more than MAX_LINE_BYTES.
    """
    rest: list[bytes] = []
    rest_bytes = 0
    for chunk in chunks:
        # A delimiter of several bytes may begin in the chunk before.
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
    """Where the last line begins, which may go on."""
    if len(delimiter) == 1:
        return text.rfind(delimiter) + 1
    # From the left: a delimiter like ;; may overlap itself.
    return len(text) - len(text.split(delimiter)[-1])


# --- lines ---------------------------------------------------------------------------------------


def line_batches(chunks: Iterable[bytes], form: LineFormat) -> Iterator[Piece]:
    """Columns key and value of lines. Raises OptionError for an empty delimiter."""
    if not form.delimiter:
        raise OptionError("--delimiter must not be empty")
    if form.key_delimiter == b"":
        raise OptionError("--key-delimiter must not be empty")
    count = 0
    for text in whole_lines(chunks, form.delimiter):
        values = _lines(text, form.delimiter)
        numbers: Sequence[int] = range(count + 1, count + len(values) + 1)
        count += len(values)
        if form.skips_empty:
            is_there = to_numpy(pc.binary_length(values)) > 0
            if not is_there.all():
                values = values.filter(from_numpy(is_there))
                numbers = (np.flatnonzero(is_there) + numbers[0]).tolist()
        keys = pa.nulls(len(values), pa.binary())
        if form.key_delimiter is not None:
            keys, values = _keys_and_values(values, form.key_delimiter)
        if form.empty_is_null:
            keys, values = _without_empty(keys), _without_empty(values)
        if len(values):
            batch = pa.RecordBatch.from_arrays([keys, values], names=["key", "value"])
            yield Piece(batch, numbers)


def _lines(text: bytes, delimiter: bytes) -> pa.Array:
    """The lines without their delimiters; the last may lack it."""
    if len(delimiter) > 1:
        lines = text.split(delimiter)
        return binary_array(lines if lines[-1] else lines[:-1])
    data = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(data == delimiter[0])
    if not text.endswith(delimiter):
        ends = np.append(ends, len(text))
    starts = np.zeros(len(ends), np.int64)
    starts[1:] = ends[:-1] + 1
    return gather(pa.py_buffer(text), starts, ends - starts)


def _keys_and_values(lines: pa.Array, delimiter: bytes) -> tuple[pa.Array, pa.Array]:
    """A line without the delimiter has a null key."""
    places = to_numpy(pc.find_substring(lines, pattern=delimiter)).astype(np.int64)
    offsets, data = _content(lines)
    starts, ends = offsets[:-1], offsets[1:]
    has_key = places >= 0
    keys = gather(data, starts, np.where(has_key, places, -1))
    begin = np.where(has_key, starts + places + len(delimiter), starts)
    return keys, gather(data, begin, ends - begin)


def _content(column: pa.Array) -> tuple[NDArray[np.int64], pa.Buffer]:
    _, offsets, data = column.buffers()
    found = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return found.astype(np.int64), data if data is not None else pa.py_buffer(b"")


def _without_empty(column: pa.Array) -> pa.Array:
    """Null for what is empty."""
    if column.null_count == len(column):
        return column
    is_there = is_valid(column) & (to_numpy(pc.binary_length(column)) > 0)
    return pc.if_else(from_numpy(is_there), column, pa.nulls(1, pa.binary())[0])


# --- JSON lines ----------------------------------------------------------------------------------

# What is not JSON, and is to Arrow's reader: null after an object, at which it crashes; NaN.
_NULL: Final = re.compile(rb"\}[ \t\r]*n")
_WORDS: Final = re.compile(rb"[:\[,\-][ \t\r]*(?:NaN|Inf)")

_MAX_TIME_MS: Final = (1 << 63) // 1000 - 1
"""Behind it microseconds have more than 64 bits."""

_JSON_FIELDS: Final = {
    "key": pa.string(),
    "payload": pa.string(),
    "partition": pa.int32(),
    "ts": pa.int64(),
    "headers": pa.list_(pa.string()),
}


def json_batches(chunks: Iterable[bytes], *, with_places: bool) -> Iterator[Piece]:
    """Records as `read --json` and kcat's -J show them: payload (or value), key, headers, ts.

    A key or payload that is no text is sent as the JSON that it is. `with_places`: the records go
    to the partitions that they name. Raises BadPlaceError for a line that is no record, behind
    those before it.
    """
    line = 1
    for text in whole_lines(chunks, b"\n"):
        starts = _starts(text)
        numbers = _numbers(text, starts, line)
        batch, bad = None, None
        if _plain_lines(text, starts):
            batch = _by_columns(text, len(starts))
        if batch is None:
            batch, bad = _by_rows(text, numbers)
        line += text.count(b"\n")
        if not with_places:
            batch = batch.drop_columns(["partition"])
        if batch.num_rows:
            yield Piece(batch, numbers)
        if bad is not None:
            raise bad


def _starts(text: bytes) -> NDArray[np.int64]:
    """Where lines begin."""
    behind = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1
    return np.append(0, behind[:-1] if text.endswith(b"\n") else behind)


def _numbers(text: bytes, starts: NDArray[np.int64], first: int) -> Sequence[int]:
    """Of the lines that are not empty."""
    if (np.frombuffer(text, np.uint8)[starts] > ord(" ")).all():
        return range(first, first + len(starts))
    return [number for number, line in enumerate(text.split(b"\n"), first) if line.strip()]


def _by_columns(text: bytes, count: int) -> pa.RecordBatch | None:
    """None for what needs a look at each row: values that are no text, and what is not right."""
    import pyarrow.json as arrow_json

    if b'"value"' in text:
        return None
    try:
        table = arrow_json.read_json(
            pa.BufferReader(text),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=pa.schema(list(_JSON_FIELDS.items())),
                unexpected_field_behavior="ignore",
            ),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != count:  # the reader takes several records of a line
        return None
    columns = {name: table.column(name).combine_chunks() for name in _JSON_FIELDS}
    headers, times = columns["headers"], columns["ts"]
    # What is null may be missing, which by rows is told apart.
    if headers.null_count != len(headers) or columns["payload"].null_count:
        return None
    if any((or_zero(columns[name]) < 0).any() for name in ("partition", "ts")):
        return None
    if (or_zero(times) > _MAX_TIME_MS).any():
        return None
    micros = from_numpy(np.array(to_numpy(times)) * 1000)
    bitmap = from_numpy(is_valid(times)).buffers()[1]
    timestamps = pa.Array.from_buffers(_TIMESTAMP, len(times), [bitmap, micros.buffers()[1]])
    return pa.RecordBatch.from_arrays(
        [
            columns["key"].cast(pa.binary()),
            columns["payload"].cast(pa.binary()),
            pa.nulls(len(headers), HEADERS_TYPE),
            columns["partition"],
            timestamps,
        ],
        names=["key", "value", "headers", "partition", "timestamp"],
    )


def _plain_lines(text: bytes, starts: NDArray[np.int64]) -> bool:
    """Whether all lines are objects to Arrow's reader, which takes what is no JSON and crashes on
    some of it.

    No object reaches from a line into the next, since each line begins with { and ends with }."""
    data = np.frombuffer(text, np.uint8)
    ends = np.append(starts[1:] - 1, len(text) - text.endswith(b"\n"))
    last = data[ends - 1]
    if (last == ord("\r")).any():
        last = np.where(last == ord("\r"), data[ends - 2], last)
    if (data[starts] != ord("{")).any() or (last != ord("}")).any() or b"\0" in text:
        return False
    # One letter is found several times faster than three.
    has_word = (b"N" in text and b"NaN" in text) or (b"I" in text and b"Inf" in text)
    if has_word and _WORDS.search(text):
        return False
    has_more = text.count(b"}") > len(ends)
    return not (has_more and _NULL.search(text))


def _by_rows(text: bytes, numbers: Sequence[int]) -> tuple[pa.RecordBatch, BadPlaceError | None]:
    """The records before the first bad line, and what is wrong with that."""
    bad = None
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: dict[int, list[tuple[str, bytes | None]]] = {}
    places: list[int | None] = []
    times: list[int | None] = []
    lines = [line for line in text.split(b"\n") if line.strip()]
    for number, line in zip(numbers, lines, strict=True):
        try:
            row = _parsed(line.decode("utf-8", "surrogateescape"))
            if not isinstance(row, dict) or not {"payload", "value"} & row.keys():
                raise ValueError("it has no payload")
            pairs = _pairs(row.get("headers"))
            key = _bytes(row.get("key"))
            value = _bytes(row["payload"] if "payload" in row else row["value"])
            place = _whole(row.get("partition"), "partition", (1 << 31) - 1)
            time_ms = _whole(row.get("ts"), "ts", _MAX_TIME_MS)
        except (ValueError, RecursionError) as error:
            bad = BadPlaceError(number, f"it is no record in JSON: {error}")
            break
        if pairs:
            headers[len(values)] = pairs
        keys.append(key)
        values.append(value)
        places.append(place)
        times.append(None if time_ms is None else time_ms * 1000)
    batch = pa.RecordBatch.from_arrays(
        [
            binary_array(keys),
            binary_array(values),
            headers_array(headers, len(values)),
            pa.array(places, pa.int32()),
            pa.array(times, _TIMESTAMP),
        ],
        names=["key", "value", "headers", "partition", "timestamp"],
    )
    return batch, bad


def _parsed(text: str) -> Any:
    return json.loads(text, parse_constant=_refused)


def _refused(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _bytes(given: Any) -> bytes | None:
    if given is None:
        return None
    if isinstance(given, str):
        text = given
    else:  # 1e999 is infinite here
        text = json.dumps(given, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogateescape")


def _whole(given: Any, name: str, most: int) -> int | None:
    if given is None or (name == "ts" and given == -1):
        return None
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= most:
        raise ValueError(f"{name} is {given!r}")
    return given


def _pairs(given: Any) -> list[tuple[str, bytes | None]]:
    """["name","value",…], or an object."""
    if given is None:
        return []
    flat = [one for pair in given.items() for one in pair] if isinstance(given, dict) else given
    if not isinstance(flat, list) or len(flat) % 2:
        raise ValueError(f"headers are {given!r}")
    names = flat[::2]
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"headers are {given!r}")
    return list(zip(names, map(_bytes, flat[1::2]), strict=True))


# --- what is the same in all records -------------------------------------------------------------


def with_constants(
    batch: pa.RecordBatch, key: bytes | None, headers: Headers, partition: int | None
) -> pa.RecordBatch:
    """The batch with a key where it has none, these headers behind its own, one partition."""
    count = batch.num_rows
    names = batch.schema.names
    if key is not None:
        given = binary_array([key])[0]
        keys = batch.column("key") if "key" in names else pa.nulls(count, pa.binary())
        batch = _set(batch, "key", keys.cast(pa.binary()).fill_null(given))
    if headers:
        if "headers" in names and batch.column("headers").null_count < count:
            raise OptionError("-H and headers of the input exclude each other: leave one out")
        flat = headers_array({0: headers}, 1).flatten()
        numbers = from_numpy(np.tile(np.arange(len(headers)), count))
        offsets = from_numpy(np.arange(count + 1, dtype=np.int32) * np.int32(len(headers)))
        lists = pa.ListArray.from_arrays(offsets, flat.take(numbers))
        batch = _set(batch, "headers", lists)
    if partition is not None:
        batch = _set(batch, "partition", from_numpy(np.full(count, partition, np.int32)))
    return batch


def _set(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    at = batch.schema.get_field_index(name)
    if at < 0:
        return batch.append_column(name, column)
    return batch.set_column(at, name, column)
