"""32 bit hashes of keys, by columns: murmur2 of Java, FNV-1a and CRC-32 of librdkafka."""

from __future__ import annotations

import zlib
from functools import cache

import numpy as np
import pyarrow as pa

from sparkkafka.protocol.partitioning.key_columns import Words, add_bytes, hash_keys
from sparkkafka.protocol.records.varints import Bytes, Ints

_MASK = 0xFFFFFFFF

_MURMUR2_SEED = 0x9747B28C
_MURMUR2_MULTIPLIER = 0x5BD1E995
_MURMUR2_SHIFT = 24


def murmur2(keys: pa.Array) -> Words:
    """Java's `Utils.murmur2` of each key, unsigned. The hash of null means nothing."""
    return hash_keys(keys, _Murmur2())


class _Murmur2:
    def start(self, lengths: Ints) -> Words:
        state = lengths.astype(np.uint32)
        state ^= np.uint32(_MURMUR2_SEED)
        return state

    def add_words(self, state: Words, words: Words) -> None:
        multiplier = np.uint32(_MURMUR2_MULTIPLIER)
        words *= multiplier
        words ^= words >> np.uint32(_MURMUR2_SHIFT)
        words *= multiplier
        state *= multiplier
        state ^= words

    def add_long(self, state: int, data: Bytes) -> int:
        for word in data.view("<u4").tolist() if len(data) else []:
            word = word * _MURMUR2_MULTIPLIER & _MASK
            word = (word ^ word >> _MURMUR2_SHIFT) * _MURMUR2_MULTIPLIER & _MASK
            state = state * _MURMUR2_MULTIPLIER & _MASK ^ word
        return state

    def add_rest(self, state: Words, data: Bytes, starts: Ints, counts: Ints) -> None:
        for index in (2, 1, 0):
            rows = np.flatnonzero(counts > index)
            if len(rows):
                byte = data[starts[rows] + index].astype(np.uint32)
                state[rows] ^= byte << np.uint32(8 * index)
        rows = np.flatnonzero(counts)
        state[rows] *= np.uint32(_MURMUR2_MULTIPLIER)

    def finish(self, state: Words) -> Words:
        state ^= state >> np.uint32(13)
        state *= np.uint32(_MURMUR2_MULTIPLIER)
        state ^= state >> np.uint32(15)
        return state


_FNV1A_OFFSET = 0x811C9DC5
_FNV1A_PRIME = 0x01000193


def fnv1a(keys: pa.Array) -> Words:
    """FNV-1a of each key, made positive as librdkafka's `fnv1a` and Sarama do it.

    The hash of null means nothing. Both read the 32 bits as a signed number and drop its sign;
    -2147483648, which has no positive twin, becomes 2147483648.
    """
    return hash_keys(keys, _Fnv1a())


class _Fnv1a:
    def start(self, lengths: Ints) -> Words:
        return np.full(len(lengths), _FNV1A_OFFSET, np.uint32)

    def add_words(self, state: Words, words: Words) -> None:
        prime, low, eight = np.uint32(_FNV1A_PRIME), np.uint32(0xFF), np.uint32(8)
        for _ in range(3):
            state ^= words & low
            state *= prime
            words >>= eight
        state ^= words
        state *= prime

    def add_long(self, state: int, data: Bytes) -> int:
        for byte in data.tolist():
            state = (state ^ byte) * _FNV1A_PRIME & _MASK
        return state

    def add_rest(self, state: Words, data: Bytes, starts: Ints, counts: Ints) -> None:
        add_bytes(state, data, starts, counts, self._add_byte)

    def _add_byte(self, state: Words, byte: Words) -> Words:
        state ^= byte
        state *= np.uint32(_FNV1A_PRIME)
        return state

    def finish(self, state: Words) -> Words:
        negative = state > np.uint32(0x7FFFFFFF)
        return np.where(negative, np.uint32(0) - state, state)


_CRC32_POLYNOMIAL = 0xEDB88320  # bits reversed


def crc32(keys: pa.Array) -> Words:
    """zlib's CRC-32 of each key, which librdkafka chooses by if nobody says otherwise."""
    return hash_keys(keys, _Crc32())


@cache
def _crc32_tables() -> tuple[Words, Words, Words]:
    """What one byte does to the checksum, and what the lower and the upper two bytes of four do.

    A word goes through two tables of 65,536 rows (256 KB each): half the steps of four small ones.
    """
    byte = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        byte = byte >> np.uint32(1) ^ np.where(byte & 1, np.uint32(_CRC32_POLYNOMIAL), np.uint32(0))
    pair = np.arange(1 << 16, dtype=np.uint32)
    for _ in range(2):
        pair = byte[pair & np.uint32(0xFF)] ^ pair >> np.uint32(8)
    upper = pair
    lower = upper
    for _ in range(2):  # two more bytes, zeros, come behind the lower ones
        lower = byte[lower & np.uint32(0xFF)] ^ lower >> np.uint32(8)
    return byte, lower, upper


class _Crc32:
    def __init__(self) -> None:
        self._byte, self._lower, self._upper = _crc32_tables()

    def start(self, lengths: Ints) -> Words:
        return np.full(len(lengths), _MASK, np.uint32)

    def add_words(self, state: Words, words: Words) -> None:
        words ^= state
        np.take(self._lower, words & np.uint32(0xFFFF), out=state, mode="clip")
        words >>= np.uint32(16)
        state ^= self._upper[words]

    def add_long(self, state: int, data: Bytes) -> int:
        return zlib.crc32(data.data, state ^ _MASK) ^ _MASK

    def add_rest(self, state: Words, data: Bytes, starts: Ints, counts: Ints) -> None:
        add_bytes(state, data, starts, counts, self._add_byte)

    def _add_byte(self, state: Words, byte: Words) -> Words:
        added: Words = self._byte[(state ^ byte) & np.uint32(0xFF)]
        added ^= state >> np.uint32(8)
        return added

    def finish(self, state: Words) -> Words:
        return ~state
