"""Varints and pieces of bytes, written at places of a buffer, a numpy column at a time.

Whole words are written, which costs a fraction of single bytes. The last bytes of a word may lie
behind its value: they are spoilt, where what stands there is written later; else they are kept.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparkkafka.protocol.records.varints import Bytes, Ints, width

Words = NDArray[Any]
Sizes = Any
"""Bytes of each value: an array, or one number for all."""

PAD: Final = 8
"""Bytes behind the last value of a buffer that may be spoilt."""


class Room(NamedTuple):
    """after: bytes behind each value, of its own row, that are written later. apart: how far each
    place is from the next one at least."""

    after: int
    apart: int

    def before(self, size: int) -> Room:
        """The room of a value that so many bytes come behind."""
        return Room(self.after + size, self.apart)


NO_ROOM: Final = Room(0, 0)


def windows(data: Bytes, dtype: Any) -> NDArray[Any]:
    """The number that begins at each byte."""
    size = np.dtype(dtype).itemsize
    return np.ndarray((max(len(data) - size + 1, 0),), dtype, data.data, 0, (1,))


# --- varints ------------------------------------------------------------------------------------

MOST_CODE: Final = 1 << 56


class Varints(NamedTuple):
    """Words with the bytes of each, the first one lowest; how many, and the fewest."""

    words: Words
    sizes: Sizes
    least: int


def varints(codes: NDArray[np.uint64]) -> Varints | None:
    """Unsigned numbers; None if one of them takes more than eight bytes."""
    if not len(codes):
        return Varints(codes.astype(np.uint8), 1, 1)
    most, least = int(codes.max()), width(int(codes.min()))
    if most < 1 << 7:
        return Varints(codes.astype(np.uint8), 1, 1)
    if most < 1 << 14:
        words: Any = codes.astype(np.uint16)
        words += words & np.uint16(0x3F80)
        longer = words > 0xFF
        words |= longer.astype(np.uint16) << np.uint16(7)
        return Varints(words, longer.astype(np.int64) + 1, least)
    if most < 1 << 28:
        words = codes.astype(np.uint32)
        words += (words & np.uint32(0x0FFFC000)) * np.uint32(3)
        words += words & np.uint32(0x3F803F80)
        marks = words >> np.uint32(8)
        marks |= marks >> np.uint32(8)
        marks |= marks >> np.uint32(16)
        marks += np.uint32(0x007F7F7F)
        marks &= np.uint32(0x00808080)
        words |= marks
        marks >>= np.uint32(7)
        marks *= np.uint32(0x01010101)
        marks >>= np.uint32(24)
        return Varints(words, marks.astype(np.int64) + 1, least)
    if most >= MOST_CODE:
        return None
    # Groups of seven bits are moved up, by halves.
    moved = codes & np.uint64(0x00FFFFFFF0000000)
    moved *= np.uint64(15)
    words = codes + moved
    np.bitwise_and(words, np.uint64(0x0FFFC0000FFFC000), out=moved)
    moved *= np.uint64(3)
    words += moved
    np.bitwise_and(words, np.uint64(0x3F803F803F803F80), out=moved)
    words += moved
    # A byte goes on if there is anything above it.
    marks = words >> np.uint64(8)
    np.right_shift(marks, np.uint64(8), out=moved)
    marks |= moved
    np.right_shift(marks, np.uint64(16), out=moved)
    marks |= moved
    np.right_shift(marks, np.uint64(32), out=moved)
    marks |= moved
    marks += np.uint64(0x007F7F7F7F7F7F7F)
    marks &= np.uint64(0x0080808080808080)
    words |= marks
    marks >>= np.uint64(7)
    marks *= np.uint64(0x0101010101010101)
    marks >>= np.uint64(56)
    sizes = marks.view(np.int64)
    sizes += 1
    return Varints(words, sizes, least)


_KEPT: Final = {
    size: np.array([(1 << 8 * count) - 1 for count in range(size + 1)], f"<u{size}")
    for size in (1, 2, 4, 8)
}
"""Of words of a size: those bytes that a value of so many bytes has."""
_FLAGS: Final = {
    size: table & np.array(0x0101010101010101 & (1 << 8 * size) - 1, table.dtype)
    for size, table in _KEPT.items()
}


def dense(found: Varints) -> Bytes:
    """The bytes of all, one behind the other."""
    size = found.words.itemsize
    if size == 1:
        data: Bytes = found.words
        return data
    flags = _FLAGS[size].take(found.sizes).view(np.bool_)
    packed: Bytes = np.ascontiguousarray(found.words).view(np.uint8)[flags]
    return packed


# --- at places ----------------------------------------------------------------------------------


def put(out: Bytes, at: Ints, words: Words, sizes: Sizes, least: int, room: Room) -> None:
    """Writes the first `sizes` bytes of each word; of more than it has, all. `least` is their
    minimum. The last PAD bytes of `out` are no value's."""
    size = words.itemsize
    if least >= size - room.after:
        windows(out, words.dtype)[at] = words
    elif room.apart >= size:
        target = windows(out, words.dtype)
        some = np.flatnonzero(sizes < size - room.after)
        places = at[some]
        kept = _KEPT[size].take(sizes[some])
        last = target[places] & ~kept
        last |= words[some] & kept
        target[at] = words
        target[places] = last
    else:
        for index in range(size):
            if index >= least:
                rows = np.flatnonzero(sizes > index)
                if not len(rows):
                    return
                at, words, sizes = at[rows], words[rows], sizes[rows]
            byte = words >> words.dtype.type(8 * index) if index else words
            out[at + index] = byte.astype(np.uint8)


def put_rest(
    out: Bytes, at: Ints, data: Bytes, starts: Ints, sizes: Ints, least: int, room: Room
) -> None:
    """Of pieces of `data`, of which the first eight bytes are written, the others. Behind the last
    one it has PAD bytes. For pieces of few words: see `copy_pieces`."""
    source = windows(data, "<u8")
    most = int(sizes.max())
    while most > 8:
        if least > 8:
            at, starts, sizes = at + 8, starts + 8, sizes - 8
        else:
            rows = np.flatnonzero(sizes > 8)
            at, starts, sizes = at[rows] + 8, starts[rows] + 8, sizes[rows] - 8
        least, most = max(least - 8, 1), most - 8
        put(out, at, source[starts], sizes, least, room)


def copy_pieces(data: Bytes, starts: Ints, lengths: Ints, out: Bytes, at: Ints) -> None:
    """Pieces of `data` to places in `out`, by words: the last word of a piece may overlap the one
    before it, so that nothing is written beside the piece."""
    if not len(lengths):
        return
    for low, dtype in ((8, "<u8"), (4, "<u4"), (2, "<u2"), (1, "u1")):
        high = 2 * low if low < 8 else None
        mask = lengths >= low
        if high is not None:
            mask &= lengths < high
        rows = np.flatnonzero(mask)
        if not len(rows):
            continue
        source, target = windows(data, dtype), windows(out, dtype)
        begin, goal, size = starts[rows], at[rows], lengths[rows]
        if low == 8:
            _copy_words(source, begin, target, goal, size)
        else:
            target[goal] = source[begin]
        if low > 1:
            last = size - low
            target[goal + last] = source[begin + last]


def _copy_words(
    source: NDArray[Any], begin: Ints, target: NDArray[Any], goal: Ints, size: Ints
) -> None:
    """All whole words."""
    words = size >> 3
    if int(words.max()) <= _FEW_WORDS:
        for index in range(int(words.max())):
            if index:
                rows = np.flatnonzero(words > index)
                begin, goal, words = begin[rows], goal[rows], words[rows]
            target[goal + 8 * index] = source[begin + 8 * index]
        return
    first = np.cumsum(words) - words
    within = 8 * (np.arange(int(words.sum())) - np.repeat(first, words))
    target[np.repeat(goal, words) + within] = source[np.repeat(begin, words) + within]


_FEW_WORDS: Final = 4
