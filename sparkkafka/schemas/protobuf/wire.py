"""Protobuf's wire format, a whole numpy column at a time: varints, tags, numbers of fixed size.

Varints are read by `protocol.records.varint_columns`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.protocol.records.varint_columns import read_unsigned, windows
from sparkkafka.protocol.wire.varints import read_varint

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Flags = NDArray[np.bool_]

PAD: Final = 16
"""Bytes behind the data that may be read, and mean nothing."""

DONE: Final = 0  # what multiplies a tag away
ODD: Final = 7
"""In the place of a tag: the row has ended; it goes on with what no writer writes."""

_MAX_TAG = (1 << 32) - 1
_TEN_BYTES = 70  # bits of a varint; those above the 64th are dropped


class Data:
    """Bytes from `first` to `last` with padding, as numpy and Arrow see them. `shift`: what must be
    added to a position from `first` on. Not copied if there is something behind them."""

    __slots__ = ("buffer", "bytes", "raw", "shift", "words")

    def __init__(self, content: NDArray[np.uint8], first: int = 0, last: int | None = None) -> None:
        last = len(content) if last is None else last
        if last + PAD <= len(content):
            self.bytes, self.shift = content, first
        else:
            size = last - first
            self.bytes, self.shift = np.empty(size + PAD, np.uint8), 0
            self.bytes[:size] = content[first:last]
            self.bytes[size:] = 0
        self.words: Words = windows(self.bytes, "<u8")
        self.buffer = pa.py_buffer(self.bytes)
        self.raw = memoryview(self.bytes.data)


def read_varints(data: Data, at: Ints) -> tuple[NDArray[Any], Ints, Flags | None]:
    """One varint at each position: values, positions after them, and which are longer than ten
    bytes (None: none is). Bits above the 64th are dropped, as protobuf drops them. Values are
    unsigned, and as narrow as they happen to be read."""
    return read_unsigned(data.bytes, at, _TEN_BYTES)


def read_tags(data: Data, at: Ints, end: Ints) -> tuple[NDArray[Any], Ints]:
    """The tag at each position (number << 3 | wire type), and the position after it; DONE where the
    row has ended. As bytes if all are below 0x80."""
    tags: NDArray[Any] = data.bytes.take(at)
    after = at + 1
    if not len(at):
        return tags, after
    if int(tags.max()) >= 0x80:
        tags = _long_tags(data, at, end, tags, after)
    elif int(tags.min()) == 0:
        tags[tags == 0] = ODD
    tags *= at < end
    return tags, after


def _long_tags(
    data: Data, at: Ints, end: Ints, first: NDArray[np.uint8], after: Ints
) -> NDArray[Any]:
    """Tags of which some take two bytes or more. Moves `after` behind them."""
    longer = first >> 7
    second = data.bytes.take(after)
    second &= np.negative(longer)
    if int(second.max()) < 0x80:
        after += longer
        tags: NDArray[Any] = second.astype(np.uint16)
        tags <<= np.uint16(7)
        tags |= first & 0x7F
        odd = (tags < 8) | (after > end)
    else:
        raw, stop, wrong = read_varints(data, at)
        odd = (raw > _MAX_TAG) | (raw < 8) | (stop - at > 5) | (stop > end)
        if wrong is not None:
            odd |= wrong
        tags, after[:] = raw.astype(np.int64), stop
    if odd.any():
        tags[odd] = ODD
    return tags


def read_fixed(data: Data, at: Ints, width: int) -> Words | NDArray[np.uint32]:
    """Numbers of 8 or 4 bytes."""
    words = data.words[at]
    return words if width == 8 else words.astype(np.uint32)


def varint(data: Any, at: int, end: int) -> tuple[int, int]:
    """One varint between two positions: (value, position after it). Raises ValueError with what is
    wrong."""
    try:
        value, at = read_varint(data, at, end, _TEN_BYTES)
    except IndexError as error:
        raise ValueError(str(error)) from None
    return value & 0xFFFFFFFFFFFFFFFF, at
