"""Which partition a key goes to: Java's choice, for a column of keys at once.

Java's default partitioner takes the 32 bit murmur2 hash of the key's bytes, without its sign bit,
modulo the partition count (`Utils.murmur2`, `BuiltInPartitioner.partitionForKey`). Programs that
join topics or look for a key in one partition rely on all producers agreeing on it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.protocol.arrow import is_valid
from sparkkafka.protocol.columns_encode import as_binary
from sparkkafka.protocol.varints import Bytes, Ints

NO_PARTITION = -1

Words = NDArray[np.uint32]

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_SHIFT = 24
_MASK = 0xFFFFFFFF

_BLOCK_ROWS = 16384  # columns of so many rows stay in the L2 cache
_FEW_ROWS = 8  # below, the plain loop is faster than numpy steps


def murmur2_partitions(keys: pa.Array, partition_count: int) -> NDArray[np.int32]:
    """The partition of each key; NO_PARTITION for null, for which the caller picks any.

    `keys` is binary or string (see `RecordColumns`). Raises ValueError for a partition count below
    one, EncodeError for keys of another type.
    """
    if partition_count < 1:
        raise ValueError(f"partition_count must be positive, got {partition_count}")
    keys = as_binary(keys, "key")
    hashes = murmur2(keys)
    partitions = ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partition_count)).astype(np.int32)
    if keys.null_count:
        partitions[~is_valid(keys)] = NO_PARTITION
    return partitions


def murmur2(keys: pa.Array) -> Words:
    """Java's `Utils.murmur2` of each key, unsigned. The hash of null means nothing."""
    array = as_binary(keys, "key")
    result = np.empty(len(array), np.uint32)
    for low in range(0, len(array), _BLOCK_ROWS):
        part = array.slice(low, _BLOCK_ROWS)
        large = pa.types.is_large_binary(part.type)
        _, offsets_buffer, content = part.buffers()
        all_offsets = np.frombuffer(offsets_buffer, np.int64 if large else np.int32)
        offsets: Ints = all_offsets[part.offset : part.offset + len(part) + 1].astype(np.int64)
        data = np.frombuffer(b"" if content is None else content, np.uint8)
        result[low : low + len(part)] = _hash(data, offsets)
    return result


def _hash(data: Bytes, offsets: Ints) -> Words:
    """Hash of the pieces of `data` between neighbouring offsets."""
    starts = offsets[:-1]
    lengths = np.diff(offsets)
    words = lengths >> 2
    order: Ints | None = None
    most = int(words.max())
    if int(words.min()) != most:
        # Longest first: the rows that still have a fourth, fifth, … word are the first so many.
        order = np.argsort(-words, kind="stable")
        starts, lengths, words = starts[order], lengths[order], words[order]
    hashes = lengths.astype(np.uint32)
    hashes ^= np.uint32(_SEED)
    multiplier, shift = np.uint32(_MULTIPLIER), np.uint32(_SHIFT)
    # Four bytes at any position, as a view that overlaps itself.
    fours: Words = np.ndarray((max(0, len(data) - 3),), "<u4", data, strides=(1,))
    for index in range(most):
        active = int(np.searchsorted(-words, -index, "left")) if order is not None else len(words)
        if active < _FEW_ROWS:
            for row in range(active):
                begin, end = int(starts[row]) + 4 * index, int(starts[row]) + 4 * int(words[row])
                hashes[row] = _scalar_words(data[begin:end], int(hashes[row]))
            break
        word = fours[starts[:active] + 4 * index]
        word *= multiplier
        word ^= word >> shift
        word *= multiplier
        some = hashes[:active]
        some *= multiplier
        some ^= word
    rest = lengths & 3
    tail = starts + (lengths & ~3)
    for index in (2, 1, 0):
        rows = np.flatnonzero(rest > index)
        if len(rows):
            byte = data[tail[rows] + index].astype(np.uint32)
            hashes[rows] ^= byte << np.uint32(8 * index)
    rows = np.flatnonzero(rest)
    hashes[rows] *= multiplier
    hashes ^= hashes >> np.uint32(13)
    hashes *= multiplier
    hashes ^= hashes >> np.uint32(15)
    if order is None:
        return hashes
    result = np.empty_like(hashes)
    result[order] = hashes
    return result


def _scalar_words(data: Bytes, value: int) -> int:
    """The loop over words for one long key."""
    for word in data.view("<u4").tolist() if len(data) else []:
        word = word * _MULTIPLIER & _MASK
        word = (word ^ word >> _SHIFT) * _MULTIPLIER & _MASK
        value = value * _MULTIPLIER & _MASK ^ word
    return value
