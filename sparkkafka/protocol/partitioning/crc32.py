"""CRC-32 of keys (zlib's), by which librdkafka's default partitioner chooses."""

from __future__ import annotations

import zlib
from functools import cache

import numpy as np
import pyarrow as pa

from sparkkafka.protocol.partitioning.key_columns import Words, add_bytes, hash_keys
from sparkkafka.protocol.records.varints import Bytes, Ints

_POLYNOMIAL = 0xEDB88320  # bits reversed
_MASK = 0xFFFFFFFF


def crc32(keys: pa.Array) -> Words:
    """The checksum of each key, unsigned. That of null means nothing."""
    return hash_keys(keys, _Crc32())


@cache
def _tables() -> tuple[Words, Words, Words]:
    """What one byte does to the checksum, and what the lower and the upper two bytes of four do.

    A word goes through two tables of 65,536 rows (256 KB each): half the steps of four small ones.
    """
    byte = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        byte = byte >> np.uint32(1) ^ np.where(byte & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
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
        self._byte, self._lower, self._upper = _tables()

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
