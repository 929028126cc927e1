"""Keys go to the partition that Java's producer would choose."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as scalar_murmur2

from sparkkafka.errors import EncodeError
from sparkkafka.protocol.partitioner import NO_PARTITION, murmur2, murmur2_partitions

# From Kafka's own UtilsTest.testMurmur2, as Java's signed ints.
JAVA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_hashes_equal_java_s_vectors() -> None:
    hashes = murmur2(pa.array(list(JAVA_VECTORS), pa.binary()))
    assert hashes.view(np.int32).tolist() == list(JAVA_VECTORS.values())
    for key, expected in JAVA_VECTORS.items():
        assert murmur2(pa.array([key], pa.binary())).view(np.int32).tolist() == [expected]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.none() | st.binary(max_size=70), max_size=60), st.integers(1, 2**31 - 1))
def test_partitions_equal_the_scalar_hash(keys: list[bytes | None], count: int) -> None:
    expected = [
        NO_PARTITION if key is None else (scalar_murmur2(key) & 0x7FFFFFFF) % count for key in keys
    ]
    partitions = murmur2_partitions(pa.array(keys, pa.binary()), count)
    assert partitions.dtype == np.int32
    assert partitions.tolist() == expected


@pytest.mark.parametrize("length", [*range(13), 36, 100])
def test_columns_of_one_length(length: int) -> None:
    random = np.random.default_rng(length)
    keys = [random.bytes(length) for _ in range(50)]
    assert murmur2(pa.array(keys, pa.binary())).tolist() == [scalar_murmur2(k) for k in keys]


def test_few_keys_much_longer_than_the_rest() -> None:
    random = np.random.default_rng(1)
    keys = [random.bytes(size) for size in (3, 5000, 0, 7, 12, 4001, 8, 9, 10, 11, 12, 13, 5002)]
    assert murmur2(pa.array(keys, pa.binary())).tolist() == [scalar_murmur2(k) for k in keys]


def test_slices_of_a_column_and_many_rows() -> None:
    keys = [b"key-%d" % (i * i) if i % 7 else None for i in range(40_000)]
    whole = murmur2_partitions(pa.array(keys, pa.binary()), 12)
    assert whole.tolist() == [
        NO_PARTITION if key is None else (scalar_murmur2(key) & 0x7FFFFFFF) % 12 for key in keys
    ]
    sliced = murmur2_partitions(pa.array(keys, pa.binary()).slice(1003, 20_001), 12)
    assert np.array_equal(sliced, whole[1003 : 1003 + 20_001])


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.large_binary(), pa.dictionary(pa.int32(), pa.string())],
)
def test_other_types_of_text(kind: pa.DataType) -> None:
    keys = ["21", None, "", "žluťoučký kůň", "foobar"]
    expected = murmur2_partitions(
        pa.array([None if k is None else k.encode() for k in keys], pa.binary()), 100
    )
    assert np.array_equal(murmur2_partitions(pa.array(keys, kind), 100), expected)


def test_no_keys_only_nulls_only_empty_ones() -> None:
    assert murmur2_partitions(pa.array([], pa.binary()), 3).tolist() == []
    assert murmur2_partitions(pa.nulls(3), 3).tolist() == [NO_PARTITION] * 3
    assert murmur2_partitions(pa.nulls(3, pa.binary()), 3).tolist() == [NO_PARTITION] * 3
    expected = (scalar_murmur2(b"") & 0x7FFFFFFF) % 7
    assert murmur2_partitions(pa.array([b"", b""], pa.binary()), 7).tolist() == [expected] * 2


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="partition_count must be positive, got 0"):
        murmur2_partitions(pa.array([b"a"]), 0)
    with pytest.raises(EncodeError, match="key column is int64"):
        murmur2_partitions(pa.array([1]), 3)
