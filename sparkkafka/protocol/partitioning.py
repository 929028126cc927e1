"""Partitions of a column of keys, as other producers choose them.

Programs that join topics, or look for a key in one partition, rely on all producers choosing alike.
Java takes murmur2 without its sign bit, modulo the partition count (`Utils.murmur2`,
`BuiltInPartitioner.partitionForKey`). librdkafka has several rules, by the names of `KEY_RULES`
(`rdkafka_msg.c`), and consistent_random by default.

The hashes process all keys together, four bytes in each step. The column is cut into blocks that
stay in the processor's cache, and the keys of a block are sorted with the longest first, so that
the keys that still have a second, third, … word of four bytes are the first rows. A `KeyHash`
defines what is done with a word or a byte.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkkafka.protocol.records.arrow import as_binary, is_valid, or_zero
from sparkkafka.protocol.records.varint_columns import Bytes, Ints, windows

NO_PARTITION = -1

Partitions = NDArray[np.int32]
Words = NDArray[np.uint32]

_BLOCK_ROWS = 16384  # columns of this length stay in the L2 cache
_MASK = 0xFFFFFFFF


class KeyHash(Protocol):
    """A 32 bit hash that goes through a key from its first byte to its last.

    The calls are `start`, `add_words` (or `add_long`) for all whole words of four bytes, `add_rest`
    and `finish`. Arrays have one entry for each key; `state` has the keys' hashes so far.
    """

    def start(self, lengths: Ints) -> Words:
        """Return the state before the first byte, of keys of these lengths."""

    def add_words(self, state: Words, words: Words) -> None:
        """Process four bytes of each key, the first in the lowest bits. Changes `state`; may change
        `words`."""

    def add_long(self, state: int, data: Bytes) -> int:
        """Process all remaining words of one key, which are `data`, and return its state. For the
        few longest keys, where a numpy step for all keys does not pay."""

    def add_rest(self, state: Words, data: Bytes, starts: Ints, counts: Ints) -> None:
        """Process the last 0 to 3 bytes of each key: `counts` bytes of `data` from `starts` on.
        Changes `state`."""

    def finish(self, state: Words) -> Words:
        """Return the hashes. May change `state`."""


def hash_keys(keys: pa.Array, function: KeyHash) -> Words:
    """Hash each key. `keys` is binary or string; the hash of null means nothing.

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
    """Hash the keys of `data`: key i has the bytes [offsets[i], offsets[i+1])."""
    starts = offsets[:-1]
    lengths = np.diff(offsets)
    words = lengths >> 2  # the whole words of four bytes of each key
    # Sort the keys by descending number of words, unless all have the same number. `order` restores
    # the order of the keys at the end.
    order: Ints | None = None
    max_words = int(words.max())
    if int(words.min()) != max_words:
        # Numbers of 16 bits are sorted several times faster.
        short = max_words <= 0xFFFF
        order = np.argsort(
            (max_words - words).astype(np.uint16) if short else -words, kind="stable"
        )
        starts, lengths, words = starts[order], lengths[order], words[order]
    state = function.start(lengths)
    # Four bytes at any position, as a view that overlaps itself.
    fours: Words = windows(data, "<u4")
    # How many keys have more than 0, 1, 2, … words: these are the first ones of the sorted keys.
    keys_above = np.searchsorted(-words, -np.arange(max_words))
    for index, active in enumerate(keys_above.tolist()):
        # For few rows a plain loop is faster than numpy steps.
        if active < 8:
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
    """Process the last 0 to 3 bytes of each key, `counts` from `starts` on: the first one of all
    keys, then the second, … with `add`: (state, byte) -> state. Changes `state`."""
    for index in range(3):
        rows = np.flatnonzero(counts > index)
        if len(rows):
            byte = data[starts[rows] + index].astype(np.uint32)
            state[rows] = add(state[rows], byte)


# --- the hashes ---------------------------------------------------------------------------------

_MURMUR2_SEED = 0x9747B28C
_MURMUR2_MULTIPLIER = 0x5BD1E995
_MURMUR2_SHIFT = 24


def murmur2(keys: pa.Array) -> Words:
    """Return Java's `Utils.murmur2` of each key, unsigned. The hash of null means nothing."""
    return hash_keys(keys, _Murmur2())


def _add_murmur2_word(state: int, word: int) -> int:
    """Return murmur2's state (the hash so far, 32 bits) after four more bytes, which are `word`."""
    word = word * _MURMUR2_MULTIPLIER & _MASK
    word = (word ^ word >> _MURMUR2_SHIFT) * _MURMUR2_MULTIPLIER & _MASK
    return state * _MURMUR2_MULTIPLIER & _MASK ^ word


def murmur2_of(key: bytes) -> int:
    """Return `murmur2` of one key, with the shifts of Java's `Utils.murmur2`."""
    state = len(key) ^ _MURMUR2_SEED
    whole_bytes = len(key) & ~3
    for (word,) in struct.iter_unpack("<I", key[:whole_bytes]):
        state = _add_murmur2_word(state, word)
    if tail := key[whole_bytes:]:
        state = (state ^ int.from_bytes(tail, "little")) * _MURMUR2_MULTIPLIER & _MASK
    state = (state ^ state >> 13) * _MURMUR2_MULTIPLIER & _MASK
    return state ^ state >> 15


class _Murmur2:
    """murmur2 as a `KeyHash`."""

    def start(self, lengths: Ints) -> Words:
        """Return the state of each key before its first byte."""
        state = lengths.astype(np.uint32)
        state ^= np.uint32(_MURMUR2_SEED)
        return state

    def add_words(self, state: Words, words: Words) -> None:
        """Process four more bytes of each key, `words`, in its hash so far, `state`. Changes
        both."""
        multiplier = np.uint32(_MURMUR2_MULTIPLIER)
        words *= multiplier
        words ^= words >> np.uint32(_MURMUR2_SHIFT)
        words *= multiplier
        state *= multiplier
        state ^= words

    def add_long(self, state: int, data: Bytes) -> int:
        """Process the words of one long key that `add_words` has not, which are `data`, and return
        its state: the hash so far."""
        for word in data.view("<u4").tolist() if len(data) else []:
            state = _add_murmur2_word(state, word)
        return state

    def add_rest(self, state: Words, data: Bytes, starts: Ints, counts: Ints) -> None:
        """Process the last 0 to 3 bytes of each key: `counts` bytes of `data` from `starts` on.
        Changes `state`, the hashes so far."""
        for index in (2, 1, 0):
            rows = np.flatnonzero(counts > index)
            if len(rows):
                byte = data[starts[rows] + index].astype(np.uint32)
                state[rows] ^= byte << np.uint32(8 * index)
        rows = np.flatnonzero(counts)
        state[rows] *= np.uint32(_MURMUR2_MULTIPLIER)

    def finish(self, state: Words) -> Words:
        """Return the hashes of the keys by their states."""
        state ^= state >> np.uint32(13)
        state *= np.uint32(_MURMUR2_MULTIPLIER)
        state ^= state >> np.uint32(15)
        return state


_FNV1A_OFFSET = 0x811C9DC5
_FNV1A_PRIME = 0x01000193


def fnv1a(keys: pa.Array) -> Words:
    """Return FNV-1a of each key, made positive as librdkafka's `fnv1a` and Sarama do it.

    Both read the 32 bits as a signed number and drop its sign; -2147483648, whose absolute value
    does not fit 32 signed bits, becomes 2147483648. The hash of null means nothing.
    """
    return hash_keys(keys, _Fnv1a())


def fnv1a_of(key: bytes) -> int:
    """Return `fnv1a` of one key."""
    state = _FNV1A_OFFSET
    for byte in key:
        state = (state ^ byte) * _FNV1A_PRIME & _MASK
    return -state & _MASK if state > _MASK >> 1 else state


class _Fnv1a:
    """FNV-1a as a `KeyHash`."""

    def start(self, lengths: Ints) -> Words:
        """Return the state of each key before its first byte."""
        return np.full(len(lengths), _FNV1A_OFFSET, np.uint32)

    def add_words(self, state: Words, words: Words) -> None:
        """Process four more bytes of each key, `words`, in its hash so far, `state`: byte by byte,
        the lowest first. Changes both."""
        prime, low, eight = np.uint32(_FNV1A_PRIME), np.uint32(0xFF), np.uint32(8)
        for _ in range(3):
            state ^= words & low
            state *= prime
            words >>= eight
        state ^= words
        state *= prime

    def add_long(self, state: int, data: Bytes) -> int:
        """Process the remaining words of one key, which are `data`, and return its state: the hash
        so far."""
        for byte in data.tolist():
            state = (state ^ byte) * _FNV1A_PRIME & _MASK
        return state

    def add_rest(self, state: Words, data: Bytes, starts: Ints, counts: Ints) -> None:
        """Process the last 0 to 3 bytes of each key. Changes `state`."""
        add_bytes(state, data, starts, counts, self._add_byte)

    def _add_byte(self, state: Words, byte: Words) -> Words:
        """Return the states after one more byte of each key."""
        state ^= byte
        state *= np.uint32(_FNV1A_PRIME)
        return state

    def finish(self, state: Words) -> Words:
        """Return the hashes of the keys by their states: as signed numbers without their sign."""
        negative = state > np.uint32(0x7FFFFFFF)
        return np.where(negative, np.uint32(0) - state, state)


def crc32(keys: pa.Array) -> Words:
    """Return zlib's CRC-32 of each key, librdkafka's default. That of null means nothing."""
    return hash_keys(keys, _Crc32())


@cache
def _crc32_tables() -> tuple[Words, Words, Words]:
    """Make the tables that `_Crc32` looks bytes up in: of one byte, and of the lower and the upper
    two bytes of a word of four. Row i is the checksum, from state 0, of the bytes of number i.

    A word goes through two tables of 65,536 rows (256 KB each): half the steps of four small ones.
    """
    byte = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        # CRC-32's polynomial, bits reversed.
        byte = byte >> np.uint32(1) ^ np.where(byte & 1, np.uint32(0xEDB88320), np.uint32(0))
    pair = np.arange(1 << 16, dtype=np.uint32)
    for _ in range(2):
        pair = byte[pair & np.uint32(0xFF)] ^ pair >> np.uint32(8)
    upper = pair
    lower = upper
    for _ in range(2):  # two more bytes, zeros, follow the lower ones
        lower = byte[lower & np.uint32(0xFF)] ^ lower >> np.uint32(8)
    return byte, lower, upper


class _Crc32:
    """CRC-32 as a `KeyHash`."""

    def __init__(self) -> None:
        self._byte, self._lower, self._upper = _crc32_tables()

    def start(self, lengths: Ints) -> Words:
        """Return the state of each key before its first byte."""
        return np.full(len(lengths), _MASK, np.uint32)

    def add_words(self, state: Words, words: Words) -> None:
        """Process four more bytes of each key, `words`, in its checksum so far, `state`: two bytes
        at a time, by a table for each pair. Changes both."""
        words ^= state
        # All indexes are in the table; without `mode`, take would buffer its output.
        np.take(self._lower, words & np.uint32(0xFFFF), out=state, mode="clip")
        words >>= np.uint32(16)
        state ^= self._upper[words]

    def add_long(self, state: int, data: Bytes) -> int:
        """Process the remaining words of one key, which are `data`, and return its state: the hash
        so far."""
        return zlib.crc32(data.data, state ^ _MASK) ^ _MASK

    def add_rest(self, state: Words, data: Bytes, starts: Ints, counts: Ints) -> None:
        """Process the last 0 to 3 bytes of each key. Changes `state`."""
        add_bytes(state, data, starts, counts, self._add_byte)

    def _add_byte(self, state: Words, byte: Words) -> Words:
        """Return the states after one more byte of each key."""
        added: Words = self._byte[(state ^ byte) & np.uint32(0xFF)]
        added ^= state >> np.uint32(8)
        return added

    def finish(self, state: Words) -> Words:
        """Return the checksums of the keys: their states with all bits inverted."""
        return ~state


# --- rules ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyRule:
    """A rule by which keys choose partitions: the hash modulo the partition count. `hash` hashes a
    column, `hash_one` a key.

    `drop_sign_bit` uses 31 bits of the hash. `null_is_empty`: a null key goes to the partition of
    an empty key; otherwise it has none. `empty_is_null`: an empty key has none either.
    """

    hash: Callable[[pa.Array], Words]
    hash_one: Callable[[bytes], int]
    drop_sign_bit: bool = False
    null_is_empty: bool = False
    empty_is_null: bool = False

    def partitions(self, keys: pa.Array, partition_count: int) -> Partitions:
        """Return the partition of each key; NO_PARTITION where the caller may choose any.

        `keys` is binary or string (see `RecordColumns`). Raises ValueError for a partition count
        below one, EncodeError for keys of another type.
        """
        if partition_count < 1:
            raise ValueError(f"partition_count must be positive, got {partition_count}")
        keys = as_binary(keys, "key")
        hashes = self.hash(keys)
        if self.drop_sign_bit:  # the highest of 32 bits
            hashes &= np.uint32(0x7FFFFFFF)
        partitions: Partitions = (hashes % np.uint32(partition_count)).astype(np.int32)
        if self.empty_is_null:
            partitions[or_zero(pc.binary_length(keys)) == 0] = NO_PARTITION
        if keys.null_count:
            partitions[~is_valid(keys)] = self.partition(None, partition_count)
        return partitions

    def partition(self, key: bytes | None, partition_count: int) -> int:
        """Return the partition of one key; NO_PARTITION if the caller may choose any."""
        if key is None and self.null_is_empty:
            key = b""
        elif key is None or (not key and self.empty_is_null):
            return NO_PARTITION
        hashed = self.hash_one(key)
        return (hashed & 0x7FFFFFFF if self.drop_sign_bit else hashed) % partition_count


KEY_RULES: Mapping[str, KeyRule] = {
    "murmur2_random": KeyRule(murmur2, murmur2_of, drop_sign_bit=True),
    "murmur2": KeyRule(murmur2, murmur2_of, drop_sign_bit=True, null_is_empty=True),
    "consistent_random": KeyRule(crc32, zlib.crc32, empty_is_null=True),
    "consistent": KeyRule(crc32, zlib.crc32, null_is_empty=True),
    "fnv1a_random": KeyRule(fnv1a, fnv1a_of),
    "fnv1a": KeyRule(fnv1a, fnv1a_of, null_is_empty=True),
}
"""By librdkafka's names. Java's default is murmur2_random."""
