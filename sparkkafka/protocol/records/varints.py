"""Zigzag varints of Kafka's record format, a whole numpy column at a time.

A varint carries seven bits a byte, lowest first; the high bit says that another byte follows.
Signed values are zigzag coded (0, -1, 1, -2, … as 0, 1, 2, 3, …), see Kafka's `ByteUtils`.
`protocol.wire` has the scalar forms for messages; here each call handles one field of many records.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

VARINT_BITS = 32  # at most 5 bytes
VARLONG_BITS = 64  # at most 10 bytes


class BadVarintError(Exception):
    """Some varint of the column is longer than its type. The caller finds out which one."""


def read(data: Bytes, at: Ints, bits: int = VARINT_BITS) -> tuple[Ints, Ints]:
    """Reads one varint at each position: (values, positions after them).

    Positions outside `data` read its nearest byte instead of failing, so the result is only
    worth something once the caller has seen that the positions after it lie inside the record.
    `at` is not empty. Raises BadVarintError for more than 5 (10) bytes or 32 (64) bits. Varints
    longer than they need to be are accepted, as Java accepts them.
    """
    byte = data.take(at, mode="clip")
    after = at + 1
    if int(byte.max()) < 0x80:
        return unzigzag(byte, np.int8), after
    # One or two bytes: nearly all columns. Narrow numbers are several times as fast to work on, and
    # so is a second byte for all rows, of which those that have none keep nothing.
    goes_on = byte >> 7
    second = data.take(after, mode="clip")
    second &= np.negative(goes_on)
    longer = np.flatnonzero(second >= 0x80) if int(second.max()) >= 0x80 else second[:0]
    if 2 * len(longer) > len(at):
        return read_any(data, at, bits)
    byte &= 0x7F
    second &= 0x7F
    short = second.astype(np.uint16)
    short <<= 7
    short |= byte
    after += goes_on
    values = unzigzag(short, np.int16)
    if len(longer):
        values[longer], after[longer] = read_any(data, at[longer], bits)
    return values, after


def unzigzag(raw: NDArray[Any], signed: type[np.signedinteger[Any]]) -> Ints:
    """Zigzag decoded in its own width; overwrites `raw`."""
    sign = raw & 1
    np.negative(sign, out=sign)
    raw >>= 1
    raw ^= sign
    return raw.view(signed).astype(np.int64)


def read_any(data: Bytes, at: Ints, bits: int = VARINT_BITS) -> tuple[Ints, Ints]:
    """`read` for varints of any length; the same results."""
    raw, after = _read_raw(data, at, 0, bits)
    values = (raw >> np.uint64(1)).view(np.int64)
    sign = raw.view(np.int64)
    np.bitwise_and(sign, 1, out=sign)
    np.negative(sign, out=sign)
    values ^= sign
    return values, after


def _read_raw(data: Bytes, at: Ints, shift: int, bits: int) -> tuple[NDArray[np.uint64], Ints]:
    """The not yet zigzag decoded bits from `shift` on."""
    byte = data.take(at, mode="clip")
    largest = int(byte.max())
    if shift + 7 > bits and largest >= 1 << (bits - shift):
        raise BadVarintError
    after = at + 1
    if largest < 0x80:
        raw = byte.astype(np.uint64)
        if shift:
            raw <<= np.uint64(shift)
        return raw, after
    raw = (byte & 0x7F).astype(np.uint64)
    if shift:
        raw <<= np.uint64(shift)
    # Sizes of one topic are often alike: the whole column has a second byte, or hardly any row.
    if int(byte.min()) >= 0x80:
        rest, after = _read_raw(data, after, shift + 7, bits)
        raw |= rest
    else:
        rows = np.flatnonzero(byte >= 0x80)
        rest, ends = _read_raw(data, after[rows], shift + 7, bits)
        raw[rows] |= rest
        after[rows] = ends
    return raw, after


def zigzag(values: Ints) -> NDArray[np.uint64]:
    """Signed to unsigned."""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def widths(unsigned: NDArray[np.uint64]) -> Ints:
    """Bytes that each value takes as an unsigned varint."""
    count = np.ones(len(unsigned), np.int64)
    if not len(unsigned):
        return count
    largest = int(unsigned.max())
    limit = 0x80
    while limit <= largest:
        count += unsigned >= np.uint64(limit)
        limit <<= 7
    return count


def width(unsigned: int) -> int:
    """Bytes that one value takes as an unsigned varint."""
    return max(1, (unsigned.bit_length() + 6) // 7)


def write(out: Bytes, at: Ints, unsigned: NDArray[np.uint64], sizes: Ints) -> None:
    """Writes each value at its position; `sizes` are its `widths`."""
    if not len(at):
        return
    widest = int(sizes.max())
    for index in range(widest):
        if index == 0:
            byte = unsigned.astype(np.uint8)
        else:
            byte = (unsigned >> np.uint64(7 * index)).astype(np.uint8)
        if index == widest - 1:
            out[at + index if index else at] = byte
            return
        longer = sizes > index + 1
        if longer.all():
            byte |= np.uint8(0x80)
            out[at + index if index else at] = byte
        else:
            byte &= np.uint8(0x7F)
            byte |= longer.view(np.uint8) << np.uint8(7)
            out[at + index if index else at] = byte
            rows = np.flatnonzero(longer)
            at, unsigned, sizes = at[rows], unsigned[rows], sizes[rows]
