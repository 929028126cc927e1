"""Records as they are given to `Producer.send` and `send_many`: checks, and a series -> chunks."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sparkkafka.client.producer.chunks import Headers, RecordChunk
from sparkkafka.client.producer.futures import NoticeBoard
from sparkkafka.config.kinds import INT32_MAX
from sparkkafka.config.options import ProducerOptions
from sparkkafka.errors import ErrorCode, OptionError, ProduceError, Written

HEADER_PAIRS = "(key, value) pairs: a str, and bytes or a str (sent as UTF-8) or None"
RECORD_BYTES = 21  # the most that a record's own numbers take (Java's MAX_RECORD_OVERHEAD)
BATCH_BYTES = 61
HEADER_NUMBERS_BYTES = 10  # the most that the lengths of one header take


def as_bytes(name: str, given: Any) -> bytes:
    """What is sent. Raises OptionError for what is neither text nor bytes."""
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError as error:
            raise OptionError(f"{name} is text that UTF-8 cannot express: {error}") from error
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise OptionError(
        f"{name} must be bytes, bytearray, memoryview, str or None, got {type(given).__name__}: "
        "convert it first"
    )


def checked_headers(headers: Any) -> tuple[list[tuple[str, bytes | None]], int]:
    """Headers as (str, bytes or None) pairs, and the bytes that they take at most.

    A value may be what a record's value may be (`as_bytes`). Raises OptionError.
    """
    if isinstance(headers, Mapping):
        headers = list(headers.items())
    if isinstance(headers, str | bytes) or not isinstance(headers, Sequence):
        raise OptionError(
            f"headers must be a dict or a list of {HEADER_PAIRS}, got {type(headers).__name__}"
        )
    checked: list[tuple[str, bytes | None]] = []
    size_bytes = 0
    for header in headers:
        if not isinstance(header, tuple | list) or len(header) != 2:
            raise OptionError(f"headers must be {HEADER_PAIRS}, got {header!r}")
        name, content = header
        if not isinstance(name, str):
            raise OptionError(f"the key of a header must be str, got {type(name).__name__}")
        content = None if content is None else as_bytes(f"header {name!r}", content)
        checked.append((name, content))
        size_bytes += len(as_bytes("the key of a header", name)) + HEADER_NUMBERS_BYTES
        size_bytes += len(content or b"")
    return checked, size_bytes


def checked_number(name: str, given: Any, most: int) -> int:
    """A whole number of 0 or more. Raises OptionError."""
    try:
        number = operator.index(given)
    except TypeError:
        raise OptionError(f"{name} must be a whole number, got {given!r}") from None
    if isinstance(given, bool) or not 0 <= number <= most:
        raise OptionError(f"{name} must be a whole number from 0 to {most}, got {given!r}")
    return number


def too_large(
    topic: str, partition: int | None, size_bytes: int, options: ProducerOptions
) -> ProduceError:
    """The error for a record that no request, or not the buffer, can hold."""
    limit = (
        f"max.request.size={options.max_request_size} allows; raise it (and max.message.bytes of "
        "the topic), or send smaller records"
        if size_bytes > options.max_request_size
        else f"buffer.memory={options.buffer_memory} holds; raise it"
    )
    return ProduceError(
        f"a record takes {size_bytes} bytes, more than {limit}",
        topic=topic,
        partition=-1 if partition is None else partition,
        written=Written.NO,
        code=ErrorCode.MESSAGE_TOO_LARGE,
    )


FIELDS = ("value", "key", "headers", "partition", "timestamp_ms")
_FIELDS = frozenset(FIELDS)
_FEW = frozenset({"value", "key"})  # most records have no more
_PLAIN = frozenset({bytes, type(None)})


class _Series:
    """The columns of a series; what few records have, by their number."""

    def __init__(self, records: list[Any]) -> None:
        self.values: list[bytes | None] = records
        self.keys: list[bytes | None] = [None] * len(records)
        self.headers: dict[int, Headers] = {}
        self.partitions: dict[int, int] = {}
        self.times_ms: dict[int, int] = {}
        if _PLAIN.issuperset(map(type, records)):
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
        """One record; the bytes that it takes at most."""
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
        return size

    def _take_others(self, number: int, get: Callable[[str], Any]) -> int:
        size = 0
        if headers := get("headers"):
            self.headers[number], size = checked_headers(headers)
        if (partition := get("partition")) is not None:
            self.partitions[number] = checked_number("partition", partition, INT32_MAX)
        if (time_ms := get("timestamp_ms")) is not None:
            self.times_ms[number] = checked_number("timestamp_ms", time_ms, (1 << 63) - 1)
        return size


def series_chunks(
    topic: str,
    records: Iterable[Any],
    board: NoticeBoard,
    options: ProducerOptions,
    chunk_bytes: int,
) -> list[RecordChunk]:
    """Chunks of about `chunk_bytes`. Raises OptionError, and ProduceError for a record that is too
    large; all records are checked."""
    if isinstance(records, str | bytes | bytearray | memoryview | Mapping) or not isinstance(
        records, Iterable
    ):
        raise OptionError(
            "records must be a list or another iterable of values or dicts, got "
            f"{type(records).__name__}: of one record, call send"
        )
    series = _Series(list(records))
    sizes = np.array(series.sizes, np.int64)
    most_bytes = min(options.max_request_size - BATCH_BYTES, options.buffer_memory)
    if len(sizes) and int(sizes.max()) > most_bytes:
        number = int(np.argmax(sizes > most_bytes))
        size_bytes = int(sizes[number]) + BATCH_BYTES
        error = too_large(topic, series.partitions.get(number), size_bytes, options)
        error.args = (f"record {number} of the series: {error}", *error.args[1:])
        raise error
    return [_chunk(series, topic, board, part) for part in _parts(sizes, chunk_bytes)]


def _parts(sizes: np.ndarray, most_bytes: int) -> Iterator[tuple[range, int]]:
    """Records that go into one chunk, at least one, and their bytes."""
    ends = np.cumsum(sizes)
    first, before = 0, 0
    while first < len(sizes):
        end = max(first + 1, int(np.searchsorted(ends, before + most_bytes, side="right")))
        after = int(ends[end - 1])
        yield range(first, end), after - before
        first, before = end, after


def _chunk(series: _Series, topic: str, board: NoticeBoard, part: tuple[range, int]) -> RecordChunk:
    numbers, size_bytes = part
    chunk = RecordChunk(topic, board, 0, 0)
    chunk.numbers = numbers
    chunk.size_bytes = size_bytes
    chunk.values = series.values[numbers.start : numbers.stop]
    chunk.keys = series.keys[numbers.start : numbers.stop]
    chunk.times_s = [time.time()] * len(numbers)
    first = numbers.start
    if series.headers:
        chunk.headers = {n - first: series.headers[n] for n in numbers if n in series.headers}
    if series.partitions:
        chunk.partitions = {
            n - first: series.partitions[n] for n in numbers if n in series.partitions
        }
    if series.times_ms:
        chunk.given_times_ms = {
            n - first: series.times_ms[n] for n in numbers if n in series.times_ms
        }
    return chunk
