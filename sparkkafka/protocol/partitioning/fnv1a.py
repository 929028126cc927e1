"""32 bit FNV-1a of keys, as librdkafka's `fnv1a` and Sarama's hash partitioner compute it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sparkkafka.protocol.partitioning.key_columns import Words, add_bytes, hash_keys
from sparkkafka.protocol.records.varints import Bytes, Ints

_OFFSET = 0x811C9DC5
_PRIME = 0x01000193
_MASK = 0xFFFFFFFF


def fnv1a(keys: pa.Array) -> Words:
    """The hash of each key, made positive as those two do. The hash of null means nothing.

    They read the 32 bits as a signed number and drop its sign; -2147483648, which has no positive
    twin, becomes 2147483648.
    """
    return hash_keys(keys, _Fnv1a())


class _Fnv1a:
    def start(self, lengths: Ints) -> Words:
        return np.full(len(lengths), _OFFSET, np.uint32)

    def add_words(self, state: Words, words: Words) -> None:
        prime, low, eight = np.uint32(_PRIME), np.uint32(0xFF), np.uint32(8)
        for _ in range(3):
            state ^= words & low
            state *= prime
            words >>= eight
        state ^= words
        state *= prime

    def add_long(self, state: int, data: Bytes) -> int:
        for byte in data.tolist():
            state = (state ^ byte) * _PRIME & _MASK
        return state

    def add_rest(self, state: Words, data: Bytes, starts: Ints, counts: Ints) -> None:
        add_bytes(state, data, starts, counts, self._add_byte)

    def _add_byte(self, state: Words, byte: Words) -> Words:
        state ^= byte
        state *= np.uint32(_PRIME)
        return state

    def finish(self, state: Words) -> Words:
        negative = state > np.uint32(0x7FFFFFFF)
        return np.where(negative, np.uint32(0) - state, state)
