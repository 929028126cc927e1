"""Varints of a whole numpy column: reads and encodes them.

`protocol.wire.varints` says what a varint is, and has those of one value. Here each call handles
one field of many records, with a few numpy operations and no loop over records.

Reading takes eight bytes at each position and squeezes the seventh bits out of them together, or
two bytes in narrow numbers, which are several times as fast to work on.

`at` has a position in `data` for each value, and `sizes` its bytes there.
A word is an unsigned number of 8, 16, 32 or 64 bits whose lowest byte comes first in the buffer.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkkafka.protocol.wire.varints import VARINT_BITS, VARLONG_BITS, BadVarintError

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Words = NDArray[Any]
Sizes = Any
"""Bytes of each value: an array, or one number for all."""


@cache
def operand(value: int, dtype: Any = np.uint64) -> NDArray[Any]:
    """Return a number as an array without dimensions, with which an operation on few values takes
    half as long as with Python's or NumPy's numbers."""
    return np.array(value, dtype)


def has_any(flags: Flags) -> bool:
    """Return whether a flag is set. For a few thousand, `flags.any()` takes five times as long."""
    return 1 in flags.tobytes()


_BYTE_1, _BYTE_7, _BYTE_7F = (operand(value, np.uint8) for value in (1, 7, 0x7F))


def windows(data: Bytes, dtype: Any) -> NDArray[Any]:
    """Return a view of `data` with the number of this type that begins at each byte: element i is
    made of byte i and those after it, so neighbours overlap."""
    size = np.dtype(dtype).itemsize
    return np.ndarray((max(len(data) - size + 1, 0),), dtype, data, 0, (1,))


# --- reading ------------------------------------------------------------------------------------


def read(data: Bytes, at: Ints, bits: int = VARINT_BITS) -> tuple[Ints, Ints]:
    """Read one zigzag varint at each position: (values, positions after them).

    Positions outside `data` are read as if they were inside instead of failing, so the result means
    something only once the caller has seen that the positions after it lie inside the record.
    `at` is not empty. Raises BadVarintError for more than `bits` bits.
    """
    raw, after, invalid = read_unsigned(data, at, bits)
    if invalid is not None:
        raise BadVarintError
    return unzigzag(raw, overwrite=True), after


def read_unsigned(
    data: Bytes, at: Ints, bits: int = VARLONG_BITS, *, are_long: bool = False
) -> tuple[NDArray[Any], Ints, Flags | None]:
    """Read one varint at each position: (values, positions after them, flags of those that have
    more than `bits` bits, None if none has). What lies beyond `data` is read as in `read`.

    The values are unsigned, and as narrow as they happen to be read: 1, 2, 4 or 8 bytes. `bits` is
    32, 64, or 70 for Protobuf, which allows ten bytes and drops the bits above the 64th. With
    `are_long` it is faster if many have more than three bytes, and slower otherwise.
    """
    if are_long and len(at):
        return _read_words(data, at, bits)
    byte: NDArray[Any] = data.take(at, mode="clip")
    if byte.tobytes().isascii():  # faster than `max` < 0x80
        return byte, at + operand(1, np.int64), None  # all take one byte
    if len(data) < 3:
        data = np.append(data, np.zeros(3, np.uint8))
    # Most columns have up to three bytes. A second byte is read for all rows, and masked out where
    # there is none; then a third one.
    longer = byte >> _BYTE_7
    second = data[1:].take(at, mode="clip")
    second *= longer
    byte &= _BYTE_7F
    raw: NDArray[Any] = (second & _BYTE_7F).astype(np.uint16)
    raw <<= operand(7, np.uint16)
    raw |= byte
    sizes = longer + _BYTE_1
    if second.tobytes().isascii():
        return raw, at + sizes, None
    longer = second >> _BYTE_7
    third = data[2:].take(at, mode="clip")
    third *= longer
    sizes += longer
    after = at + sizes
    values: NDArray[Any] = (third & _BYTE_7F).astype(np.uint32)
    values <<= operand(14, np.uint32)
    values |= raw
    if third.tobytes().isascii():
        return values, after, None
    rows = np.flatnonzero(third >= 0x80)  # varints of more than three bytes are read separately
    if 3 * len(rows) > len(at):
        return _read_words(data, at, bits)
    values = values.astype(np.uint64)
    values[rows], after[rows], bad = _read_words(data, at[rows], bits)
    if bad is None:
        return values, after, None
    invalid = np.zeros(len(at), np.bool_)
    invalid[rows] = bad
    return values, after, invalid


def unzigzag(
    raw: NDArray[Any], *, overwrite: bool = False, dtype: type[np.signedinteger[Any]] = np.int64
) -> NDArray[Any]:
    """Decode zigzag values, which are unsigned, in their own width, to numbers of the type `dtype`.
    `overwrite` uses the memory of `raw`."""
    one = operand(1, raw.dtype)
    sign = raw & one
    np.negative(sign, out=sign)
    values: NDArray[Any] = np.right_shift(raw, one, out=raw if overwrite else None)
    values ^= sign
    return values.view(f"i{values.itemsize}").astype(dtype, copy=False)


def words_at(data: Bytes, at: Ints) -> NDArray[np.uint64]:
    """Read eight bytes from each position on, the first one lowest, and zeros beyond the data. A
    position beyond the data is moved to its last byte."""
    words = windows(data, "<u8")
    try:
        return words[at]
    except IndexError:  # fewer than eight bytes follow some position
        last = len(words) - 1
    if not len(words):
        # With eight zeros there is a word at each byte, and one more behind them.
        words = windows(np.append(data, np.zeros(8, np.uint8)), "<u8")
        last = len(words) - 2
        return words[np.clip(at, 0, last)]
    result: NDArray[np.uint64] = words[np.clip(at, 0, last)]
    # Where a word begins before its position, the bytes before that are shifted out.
    beyond = np.flatnonzero(at > last)
    skipped = np.minimum(at[beyond], len(data) - 1) - last
    result[beyond] >>= (skipped << 3).view(np.uint64)
    return result


def _read_words(data: Bytes, at: Ints, bits: int) -> tuple[NDArray[Any], Ints, Flags | None]:
    """Read one varint of at most `bits` bits at each position, by a word of eight bytes for each:
    (unsigned values, positions after them, flags of those with more bits, None if none has)."""
    words = words_at(data, at)
    # Each byte becomes 0xFF, or 0x7F if it ends a varint.
    filled = words | operand(0x7F7F7F7F7F7F7F7F)
    values, sizes = _squeeze(words, filled)
    if sizes[0] <= 3 and sizes.max() <= 3:  # narrow, so that the caller sees that none is long
        return values.astype(np.uint32), at + sizes, None
    invalid: Flags | None = None
    is_longer = filled == operand(0xFFFFFFFFFFFFFFFF)
    if has_any(is_longer):  # nine or ten bytes
        longer = np.flatnonzero(is_longer)
        start = at[longer]
        ninth = data.take(start + 8, mode="clip")
        tenth = data.take(start + 9, mode="clip")
        has_tenth = ninth >> 7
        tenth *= has_tenth
        values[longer] |= (ninth & 0x7F).astype(np.uint64) << operand(56)
        values[longer] |= tenth.astype(np.uint64) << np.uint64(63)
        sizes[longer] = 9 + has_tenth
        invalid = np.zeros(len(at), np.bool_)
        # The tenth byte begins with bit 63.
        invalid[longer] = tenth >> max(bits - 63, 0) != 0
    if bits == VARINT_BITS:
        invalid = (sizes > 5) | (values >= np.uint64(1 << VARINT_BITS))
    if invalid is not None and not invalid.any():
        invalid = None
    return values, at + sizes, invalid


def _squeeze(
    words: NDArray[np.uint64], filled: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], Ints]:
    """Decode varints of at most eight bytes, or the first 56 bits: (values, bytes of each, 8 if it
    has more). `words` are overwritten; `filled`: the words with the low bits of each byte set."""
    mask = filled + operand(1)  # carries up to the varint's last byte
    mask ^= filled  # the varint's own bytes
    # The number of these bytes is added up in the highest byte.
    sizes = mask & operand(0x0101010101010101)
    sizes *= operand(0x0101010101010101)
    sizes >>= operand(56)
    mask &= operand(0x7F7F7F7F7F7F7F7F)
    words &= mask
    # Groups of seven bits are moved down to groups of 14, those to groups of 28, and then 56, by
    # subtracting the difference.
    shifted = np.bitwise_and(words, operand(0x7F007F007F007F00), out=mask)
    shifted >>= operand(1)
    words -= shifted
    np.right_shift(words, operand(16), out=shifted)
    shifted &= operand(0x00003FFF00003FFF)
    shifted *= operand((1 << 16) - (1 << 14))
    words -= shifted
    np.right_shift(words, operand(32), out=shifted)
    shifted *= operand((1 << 32) - (1 << 28))
    words -= shifted
    return words, sizes.view(np.int64)


# --- encoding -----------------------------------------------------------------------------------


def zigzag(values: Ints) -> NDArray[np.uint64]:
    """Map signed to unsigned numbers: 0, -1, 1, -2, … to 0, 1, 2, 3, …"""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def widths(unsigned: NDArray[np.uint64]) -> Ints:
    """Return the bytes that each value takes as an unsigned varint."""
    sizes = np.ones(len(unsigned), np.int64)
    if not len(unsigned):
        return sizes
    largest = int(unsigned.max())
    limit = 0x80
    while limit <= largest:
        sizes += unsigned >= np.uint64(limit)
        limit <<= 7
    return sizes


def encode_words(codes: NDArray[np.uint64], largest: int) -> tuple[Words, Sizes]:
    """Encode unsigned numbers of at most eight bytes, the largest of which is `largest` or less:
    (words, sizes)."""
    # The bits of a code are moved up in groups of seven, one for each byte. Then a high bit is set
    # in each byte but the last. Each case below is that for another width of words.
    if largest < 1 << 7:
        return codes.astype(np.uint8), 1
    if largest < 1 << 14:
        words: Any = codes.astype(np.uint16)
        words += words & np.uint16(0x3F80)
        longer = words > 0xFF
        words |= longer.astype(np.uint16) << np.uint16(7)
        return words, longer.view(np.uint8) + np.uint8(1)
    if largest < 1 << 28:
        words = codes.astype(np.uint32)
        words += (words & np.uint32(0x0FFFC000)) * np.uint32(3)
        words += words & np.uint32(0x3F803F80)
        # A byte has its high bit set if bits are set above it.
        marks = words >> np.uint32(8)
        marks |= marks >> np.uint32(8)
        marks |= marks >> np.uint32(16)
        marks += np.uint32(0x007F7F7F)
        marks &= np.uint32(0x00808080)
        words |= marks
        # The size is one more than the number of these bits, which are added up in the last byte.
        marks >>= np.uint32(7)
        marks *= np.uint32(0x01010101)
        marks >>= np.uint32(24)
        return words, marks.astype(np.uint8) + np.uint8(1)
    # As above: groups of 28 bits are moved up, then those of 14, then those of 7.
    shifted = codes & np.uint64(0x00FFFFFFF0000000)
    shifted *= np.uint64(15)
    words = codes + shifted
    np.bitwise_and(words, np.uint64(0x0FFFC0000FFFC000), out=shifted)
    shifted *= np.uint64(3)
    words += shifted
    np.bitwise_and(words, np.uint64(0x3F803F803F803F80), out=shifted)
    words += shifted
    marks = words >> np.uint64(8)
    np.right_shift(marks, np.uint64(8), out=shifted)
    marks |= shifted
    np.right_shift(marks, np.uint64(16), out=shifted)
    marks |= shifted
    np.right_shift(marks, np.uint64(32), out=shifted)
    marks |= shifted
    marks += np.uint64(0x007F7F7F7F7F7F7F)
    marks &= np.uint64(0x0080808080808080)
    words |= marks
    marks >>= np.uint64(7)
    marks *= np.uint64(0x0101010101010101)
    marks >>= np.uint64(56)
    return words, marks.astype(np.uint8) + np.uint8(1)
