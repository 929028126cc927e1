"""Arguments of `Producer.send`, where they are not simply bytes."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

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
