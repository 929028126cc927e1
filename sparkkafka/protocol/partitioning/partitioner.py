"""Which partition a key goes to, for a column of keys at once, as other producers choose.

Programs that join topics, or look for a key in one partition, rely on all producers agreeing on it.
Java's choice is murmur2 without its sign bit, modulo the partition count (`Utils.murmur2`,
`BuiltInPartitioner.partitionForKey`); librdkafka has several, by the names that `KEY_RULES` has
(`rdkafka_msg.c`), and by default consistent_random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkkafka.protocol.columns.input_columns import as_binary
from sparkkafka.protocol.partitioning.hashes import Words, crc32, fnv1a, murmur2
from sparkkafka.protocol.records.arrow import is_valid, or_zero

NO_PARTITION = -1

Partitions = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class KeyRule:
    """How keys choose. `null_is_empty`: a null key goes where an empty one does; otherwise it has
    no partition of its own. `empty_is_null`: an empty key has none either."""

    hash: Callable[[pa.Array], Words]
    drop_sign_bit: bool = False
    null_is_empty: bool = False
    empty_is_null: bool = False

    def partitions(self, keys: pa.Array, partition_count: int) -> Partitions:
        """The partition of each key; NO_PARTITION for those for which the caller picks any.

        `keys` is binary or string (see `RecordColumns`). Raises ValueError for a partition count
        below one, EncodeError for keys of another type.
        """
        if partition_count < 1:
            raise ValueError(f"partition_count must be positive, got {partition_count}")
        keys = as_binary(keys, "key")
        hashes = self.hash(keys)
        if self.drop_sign_bit:
            hashes &= np.uint32(0x7FFFFFFF)
        partitions: Partitions = (hashes % np.uint32(partition_count)).astype(np.int32)
        if self.empty_is_null:
            partitions[or_zero(pc.binary_length(keys)) == 0] = NO_PARTITION
        if keys.null_count:
            partitions[~is_valid(keys)] = self.of_null(partition_count)
        return partitions

    def of_null(self, partition_count: int) -> int:
        """Where a null key goes, NO_PARTITION for anywhere."""
        if not self.null_is_empty:
            return NO_PARTITION
        return int(self.partitions(_ONE_EMPTY_KEY, partition_count)[0])


_NOTHING = pa.py_buffer(bytes(8))
_ONE_EMPTY_KEY = pa.Array.from_buffers(pa.binary(), 1, [None, _NOTHING, _NOTHING])

KEY_RULES: Mapping[str, KeyRule] = {
    "murmur2_random": KeyRule(murmur2, drop_sign_bit=True),
    "murmur2": KeyRule(murmur2, drop_sign_bit=True, null_is_empty=True),
    "consistent_random": KeyRule(crc32, empty_is_null=True),
    "consistent": KeyRule(crc32, null_is_empty=True),
    "fnv1a_random": KeyRule(fnv1a),
    "fnv1a": KeyRule(fnv1a, null_is_empty=True),
}
"""By librdkafka's names. Java's default is murmur2_random."""
