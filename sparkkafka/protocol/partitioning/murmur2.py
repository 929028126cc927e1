"""32 bit murmur2 of keys, as Java's `Utils.murmur2` and librdkafka's `murmur2` compute it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sparkkafka.protocol.partitioning.key_columns import Words, hash_keys
from sparkkafka.protocol.records.varints import Bytes, Ints

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_SHIFT = 24
_MASK = 0xFFFFFFFF


def murmur2(keys: pa.Array) -> Words:
    """The hash of each key, unsigned. The hash of null means nothing."""
    return hash_keys(keys, _Murmur2())


class _Murmur2:
    def start(self, lengths: Ints) -> Words:
        state = lengths.astype(np.uint32)
        state ^= np.uint32(_SEED)
        return state

    def add_words(self, state: Words, words: Words) -> None:
        multiplier = np.uint32(_MULTIPLIER)
        words *= multiplier
        words ^= words >> np.uint32(_SHIFT)
        words *= multiplier
        state *= multiplier
        state ^= words

    def add_long(self, state: int, data: Bytes) -> int:
        for word in data.view("<u4").tolist() if len(data) else []:
            word = word * _MULTIPLIER & _MASK
            word = (word ^ word >> _SHIFT) * _MULTIPLIER & _MASK
            state = state * _MULTIPLIER & _MASK ^ word
        return state

    def add_rest(self, state: Words, data: Bytes, starts: Ints, counts: Ints) -> None:
        for index in (2, 1, 0):
            rows = np.flatnonzero(counts > index)
            if len(rows):
                byte = data[starts[rows] + index].astype(np.uint32)
                state[rows] ^= byte << np.uint32(8 * index)
        rows = np.flatnonzero(counts)
        state[rows] *= np.uint32(_MULTIPLIER)

    def finish(self, state: Words) -> Words:
        state ^= state >> np.uint32(13)
        state *= np.uint32(_MULTIPLIER)
        state ^= state >> np.uint32(15)
        return state
