"""Hash functions over a column of keys: all keys take their next four bytes at the same time.

What the hashes have in common is here: the column cut into blocks that stay in the processor's
cache, the longest keys first, so that those that still have a second, third, … word of four bytes
are the first so many. What a hash does with a word or a byte it says itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.protocol.columns.input_columns import as_binary
from sparkkafka.protocol.records.varints import Bytes, Ints

Words = NDArray[np.uint32]

_BLOCK_ROWS = 16384  # columns of so many rows stay in the L2 cache
_FEW_ROWS = 8  # below, a plain loop is faster than numpy steps
_MOST_SHORT_WORDS = 0xFFFF


class KeyHash(Protocol):
    """A 32 bit hash that goes through a key from its first byte to its last."""

    def start(self, lengths: Ints) -> Words:
        """The state before the first byte, of keys of these lengths."""

    def add_words(self, state: Words, words: Words) -> None:
        """Four bytes of each key, the first in the lowest bits. Changes `state`; may change
        `words`."""

    def add_long(self, state: int, data: Bytes) -> int:
        """The state of one key after all these words of it."""

    def add_rest(self, state: Words, data: Bytes, starts: Ints, counts: Ints) -> None:
        """The last 0 to 3 bytes of each key, which begin at `starts`."""

    def finish(self, state: Words) -> Words: ...


def hash_keys(keys: pa.Array, function: KeyHash) -> Words:
    """The hash of each key. `keys` is binary or string; the hash of null means nothing.

    Raises EncodeError for keys of another type.
    """
    array = as_binary(keys, "key")
    result = np.empty(len(array), np.uint32)
    for low in range(0, len(array), _BLOCK_ROWS):
        part = array.slice(low, _BLOCK_ROWS)
        large = pa.types.is_large_binary(part.type)
        _, offsets_buffer, content = part.buffers()
        all_offsets = np.frombuffer(offsets_buffer, np.int64 if large else np.int32)
        offsets: Ints = all_offsets[part.offset : part.offset + len(part) + 1].astype(np.int64)
        data = np.frombuffer(b"" if content is None else content, np.uint8)
        result[low : low + len(part)] = _hash_block(data, offsets, function)
    return result


def _hash_block(data: Bytes, offsets: Ints, function: KeyHash) -> Words:
    """Hash of the pieces of `data` between neighbouring offsets."""
    starts = offsets[:-1]
    lengths = np.diff(offsets)
    words = lengths >> 2
    order: Ints | None = None
    most = int(words.max())
    if int(words.min()) != most:
        # Numbers of 16 bits are sorted several times faster.
        short = most <= _MOST_SHORT_WORDS
        order = np.argsort((most - words).astype(np.uint16) if short else -words, kind="stable")
        starts, lengths, words = starts[order], lengths[order], words[order]
    state = function.start(lengths)
    # Four bytes at any position, as a view that overlaps itself.
    fours: Words = np.ndarray((max(0, len(data) - 3),), "<u4", data, strides=(1,))
    # How many keys have more than 0, 1, 2, … words.
    rows_with = np.searchsorted(-words, -np.arange(most), "left") if order is not None else None
    for index in range(most):
        active = len(words) if rows_with is None else int(rows_with[index])
        if active < _FEW_ROWS:
            for row in range(active):
                begin, end = int(starts[row]) + 4 * index, int(starts[row]) + 4 * int(words[row])
                state[row] = function.add_long(int(state[row]), data[begin:end])
            break
        function.add_words(state[:active], fours[starts[:active] + 4 * index])
    function.add_rest(state, data, starts + (lengths & ~3), lengths & 3)
    state = function.finish(state)
    if order is None:
        return state
    result = np.empty_like(state)
    result[order] = state
    return result


def add_bytes(
    state: Words, data: Bytes, starts: Ints, counts: Ints, add: Callable[[Words, Words], Words]
) -> None:
    """`add` each key's last bytes one after the other: (state, byte) -> state."""
    for index in range(3):
        rows = np.flatnonzero(counts > index)
        if len(rows):
            byte = data[starts[rows] + index].astype(np.uint32)
            state[rows] = add(state[rows], byte)
