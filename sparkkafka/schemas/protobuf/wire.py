"""Protobuf's wire format, a whole numpy column at a time: varints, tags, numbers of fixed size.

A varint carries seven bits a byte, lowest first; the high bit says that another byte follows. Eight
bytes are read at once, and the seventh bits are squeezed out of them together.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.protocol.records.placing import windows

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Flags = NDArray[np.bool_]

PAD: Final = 16
"""Bytes behind the data that may be read, and mean nothing."""

DONE: Final = 0  # what multiplies a tag away
ODD: Final = 7
"""In the place of a tag: the row has ended; it goes on with what no writer writes."""

_HIGH = np.uint64(0x8080808080808080)
_LOW = np.uint64(0x7F7F7F7F7F7F7F7F)
_ONE = np.uint64(1)
_ONE32 = np.uint32(1)
_PAIRS32: Final = tuple(
    np.uint32(bits) for bits in (0x007F007F, 0x7F007F00, 0x00003FFF, 0x3FFF0000)
)
_SQUEEZE: Final = tuple(
    (np.uint64(keep), np.uint64(move), np.uint64(by))
    for keep, move, by in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)
_MOST_TAG = (1 << 32) - 1


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
    unsigned, and as narrow as they happen to be read: one, four or eight bytes."""
    first = data.bytes.take(at)
    if not len(at) or int(first.max()) < 0x80:
        return first, at + 1, None
    words = data.words[at]
    stops = ~words
    stops &= _HIGH
    short = stops.astype(np.uint32)
    if int(short.min()):
        values, width = _squeezed32(words.astype(np.uint32), short)
        return values, at + width, None
    values, width = _squeezed64(words, stops)
    after = at + width
    longer = np.flatnonzero(stops == 0)
    if not len(longer):
        return values, after, None
    where = at[longer]
    ninth, tenth = data.bytes.take(where + 8), data.bytes.take(where + 9)
    values[longer] |= (ninth & 0x7F).astype(np.uint64) << np.uint64(56)
    more = ninth >= 0x80
    values[longer[more]] |= (tenth[more] & 1).astype(np.uint64) << np.uint64(63)
    after[longer] = where + 9 + more
    wrong = np.zeros(len(at), np.bool_)
    wrong[longer] = more & (tenth >= 0x80)
    return values, after, wrong if wrong.any() else None


def _squeezed32(words: NDArray[np.uint32], stops: NDArray[np.uint32]) -> tuple[Any, Any]:
    """Values of varints of at most four bytes, and their widths."""
    lowest = stops & (~stops + _ONE32)
    lowest -= _ONE32  # all bits below the stop bit, which is 0 in the value
    words &= lowest
    low = words & _PAIRS32[0]
    words &= _PAIRS32[1]
    words >>= _ONE32
    low |= words
    values = low & _PAIRS32[2]
    low &= _PAIRS32[3]
    low >>= np.uint32(2)
    values |= low
    # A number just below a power of two has that power's logarithm in its exponent, as a double.
    width = (lowest.astype(np.float64).view(np.int64) >> 52) - 1014
    width >>= 3
    return values, width


def _squeezed64(words: Words, stops: Words) -> tuple[Words, Ints]:
    """Values of varints of at most eight bytes, or the first 56 bits, and their widths."""
    lowest = stops & (~stops + _ONE)
    mask = lowest | (lowest - _ONE)
    words &= mask
    words &= _LOW
    for keep, move, by in _SQUEEZE:
        moved = words & move
        moved >>= by
        words &= keep
        words |= moved
    # A power of two as a double has its logarithm in the exponent.
    bits = lowest.astype(np.float64).view(np.int64) >> 52
    bits -= 1015
    bits >>= 3
    return words, bits


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
        odd = (raw > _MOST_TAG) | (raw < 8) | (stop - at > 5) | (stop > end)
        if wrong is not None:
            odd |= wrong
        tags, after[:] = raw.astype(np.int64), stop
    if odd.any():
        tags[odd] = ODD
    return tags


def unzigzag(raw: Words) -> Ints:
    """0, 1, 2, 3 … as 0, -1, 1, -2 …"""
    raw = raw.astype(np.uint64, copy=False)
    values = (raw >> _ONE).view(np.int64)
    values ^= -(raw & _ONE).view(np.int64)
    return values


def read_fixed(data: Data, at: Ints, width: int) -> Words | NDArray[np.uint32]:
    """Numbers of 8 or 4 bytes."""
    words = data.words[at]
    return words if width == 8 else words.astype(np.uint32)


def varint(data: Any, at: int, end: int) -> tuple[int, int]:
    """One varint between two positions: (value, position after it). Raises ValueError with what is
    wrong."""
    value = shift = 0
    while True:
        if at >= end:
            raise ValueError("a varint is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift == 70:
            raise ValueError("a varint is longer than ten bytes")


def varint_bytes(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
