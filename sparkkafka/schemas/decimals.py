"""Decimals as bytes: two's complement with the highest byte first, as Java's BigInteger has them.

Here a number is two words of 64 bits, the low one first, as in Arrow's decimal128.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.protocol.records.varint_columns import Bytes, Flags, Ints, words_at

DecimalWords = NDArray[np.uint64]
"""Numbers as rows of (low word, high word)."""


def words_of(array: pa.Array) -> DecimalWords:
    """Return the unscaled numbers of a decimal128 array. The number at a null means nothing."""
    if not len(array):
        return np.zeros((0, 2), np.uint64)
    words = np.frombuffer(array.buffers()[1], np.uint64).reshape(-1, 2)
    return words[array.offset : array.offset + len(array)]


def exceeds(words: DecimalWords, limit: int) -> Flags:
    """Return for each number whether it lies outside of -limit to limit."""
    low, high = words[:, 0], words[:, 1].view(np.int64)
    top, rest = limit >> 64, np.uint64(limit & (2**64 - 1))
    above = (high > top) | ((high == top) & (low > rest))
    # Not by changing the sign: the lowest number has no positive counterpart.
    top, rest = -limit >> 64, np.uint64(-limit & (2**64 - 1))
    outside: Flags = above | (high < top) | ((high == top) & (low < rest))
    return outside


def without_padding(data: Bytes, starts: Ints, lengths: Ints) -> tuple[Ints, Ints, Flags]:
    """Return the starts and lengths of numbers without the bytes in front of their last 16, and
    which numbers need these: they do not only repeat the sign. Their length becomes 0."""
    starts, lengths = starts.copy(), lengths.copy()
    too_long = np.zeros(len(starts), np.bool_)
    for index in np.flatnonzero(lengths > 16).tolist():
        begin, last_16 = int(starts[index]), int(starts[index] + lengths[index]) - 16
        sign = 0xFF if data[last_16] >= 0x80 else 0
        too_long[index] = bool((data[begin:last_16] != sign).any())
        starts[index], lengths[index] = last_16, 0 if too_long[index] else 16
    return starts, lengths, too_long


def read_words(data: Bytes, starts: Ints, lengths: Ints) -> DecimalWords:
    """Read numbers of at most 16 bytes each, which lie in `data` at `starts`; a number of no bytes
    is 0."""
    first = words_at(data, starts).byteswap().view(np.int64)
    # A number of at most eight bytes is shifted down, with its sign.
    low: Any = first >> (8 * (8 - np.clip(lengths, 1, 8)))
    high: Any = low >> 63
    longer = np.flatnonzero(lengths > 8)
    if len(longer):
        size = lengths[longer]
        high[longer] = first[longer] >> (8 * (16 - size))
        last = words_at(data, starts[longer] + size - 8).byteswap()
        low[longer] = last.view(np.int64)
    empty = lengths == 0
    if empty.any():
        low[empty] = high[empty] = 0
    words = np.empty((len(starts), 2), np.uint64)
    words[:, 0], words[:, 1] = low.view(np.uint64), high.view(np.uint64)
    return words


def to_bytes(words: DecimalWords) -> Bytes:
    """Return the 16 bytes of each number, highest byte first, all numbers in one array."""
    return np.ascontiguousarray(words[:, ::-1]).byteswap().view(np.uint8)


def min_sizes(words: DecimalWords) -> Ints:
    """Return for each number how many bytes hold it and its sign at least."""
    sign = (words[:, 1].view(np.int64) >> 63).view(np.uint64)
    high = words[:, 1] ^ sign
    bit_lengths = _bit_lengths(words[:, 0] ^ sign)
    if high.any():
        bit_lengths = np.where(high > 0, 64 + _bit_lengths(high), bit_lengths)
    sizes: Ints = (bit_lengths // 8 + 1).astype(np.int64)
    return sizes


def _bit_lengths(numbers: NDArray[np.uint64]) -> NDArray[np.int32]:
    """Return how many bits each number has. A float64 cannot hold 64 bits, and rounding could reach
    the next power of two. So each bit is cleared that has a higher bit beside it: the highest bit
    stays, and no rounding can reach further."""
    exponents: NDArray[np.int32]
    _, exponents = np.frexp((numbers & ~(numbers >> np.uint64(1))).astype(np.float64))
    return exponents
