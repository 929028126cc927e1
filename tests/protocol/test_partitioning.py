"""Keys go to the partition that Java's producer, or librdkafka's, would choose."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as scalar_murmur2

from sparkkafka.config.kinds import PARTITIONERS, RANDOM, ROUND_ROBIN
from sparkkafka.errors import EncodeError
from sparkkafka.protocol.partitioning import KEY_RULES, NO_PARTITION, crc32, fnv1a, murmur2
from tests.support.properties import examples

murmur2_partitions = KEY_RULES["murmur2_random"].partitions

# From Kafka's own UtilsTest.testMurmur2, as Java's signed ints.
JAVA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}

# From librdkafka's own unittest_fnv1a, which has them from Go's hash/fnv by way of Sarama.
GO_VECTORS = {
    b"kafka": 0xD33C4E1,
    b"giberish123456789": 0x77A58295,
    b"1234": 0x23BDD03,
    b"234": 0x2DEA3CD2,
    b"34": 0x740FA83E,
    b"4": 0x310CA263,
    b"PreAmbleWillBeRemoved,ThePrePartThatIs": 0x65CBD69C,
    b"reAmbleWillBeRemoved,ThePrePartThatIs": 0x6E49C79A,
    b"": 0x7EE3623B,
}


def scalar_fnv1a(key: bytes) -> int:
    """As librdkafka's rd_fnv1a: 32 bits, then the absolute value of the signed number."""
    value = 0x811C9DC5
    for byte in key:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value if value < 1 << 31 else (1 << 32) - value


HASHES = [(murmur2, scalar_murmur2), (crc32, zlib.crc32), (fnv1a, scalar_fnv1a)]
each_hash = pytest.mark.parametrize(
    ("fast", "slow"), HASHES, ids=[fast.__name__ for fast, _ in HASHES]
)
Fast = Callable[[pa.Array], np.ndarray]
Slow = Callable[[bytes], int]


def test_hashes_equal_java_s_vectors() -> None:
    hashes = murmur2(pa.array(list(JAVA_VECTORS), pa.binary()))
    assert hashes.view(np.int32).tolist() == list(JAVA_VECTORS.values())
    for key, expected in JAVA_VECTORS.items():
        assert murmur2(pa.array([key], pa.binary())).view(np.int32).tolist() == [expected]


@settings(max_examples=examples(150))
@given(st.lists(st.none() | st.binary(max_size=70), max_size=60), st.integers(1, 2**31 - 1))
def test_partitions_equal_the_scalar_hash(keys: list[bytes | None], count: int) -> None:
    expected = [
        NO_PARTITION if key is None else (scalar_murmur2(key) & 0x7FFFFFFF) % count for key in keys
    ]
    partitions = murmur2_partitions(pa.array(keys, pa.binary()), count)
    assert partitions.dtype == np.int32
    assert partitions.tolist() == expected


def test_hashes_equal_librdkafka_s_vectors() -> None:
    assert fnv1a(pa.array(list(GO_VECTORS), pa.binary())).tolist() == list(GO_VECTORS.values())
    for key, expected in GO_VECTORS.items():
        assert scalar_fnv1a(key) == expected


def test_fnv1a_of_the_one_number_that_has_no_positive_twin() -> None:
    """librdkafka negates it, which leaves it as it is, and then takes it as unsigned."""
    key = bytes.fromhex("025796df4d")  # found by calculating back
    assert scalar_fnv1a(key) == 1 << 31
    assert fnv1a(pa.array([key], pa.binary())).tolist() == [1 << 31]
    assert KEY_RULES["fnv1a"].partitions(pa.array([key]), 7).tolist() == [(1 << 31) % 7]


@each_hash
@settings(max_examples=examples(100))
@given(st.lists(st.binary(max_size=70), max_size=60))
def test_hashes_equal_the_scalar_ones(fast: Fast, slow: Slow, keys: list[bytes]) -> None:
    assert fast(pa.array(keys, pa.binary())).tolist() == [slow(key) for key in keys]


@each_hash
@pytest.mark.parametrize("length", [*range(13), 36, 100])
def test_columns_of_one_length(length: int, fast: Fast, slow: Slow) -> None:
    random = np.random.default_rng(length)
    keys = [random.bytes(length) for _ in range(50)]
    assert fast(pa.array(keys, pa.binary())).tolist() == [slow(k) for k in keys]


@each_hash
def test_few_keys_much_longer_than_the_rest(fast: Fast, slow: Slow) -> None:
    random = np.random.default_rng(1)
    keys = [random.bytes(size) for size in (3, 5000, 0, 7, 12, 4001, 8, 9, 10, 11, 12, 13, 5002)]
    assert fast(pa.array(keys, pa.binary())).tolist() == [slow(k) for k in keys]


@each_hash
def test_keys_of_more_words_than_16_bits_count(fast: Fast, slow: Slow) -> None:
    keys = [b"x" * 300_001, b"", b"y" * 262_144, b"z" * 7]
    assert fast(pa.array(keys, pa.binary())).tolist() == [slow(k) for k in keys]


@each_hash
def test_slices_and_blocks(fast: Fast, slow: Slow) -> None:
    keys = [b"key-%d" % (i * i * i) for i in range(40_000)]
    part = pa.array(keys, pa.binary()).slice(1003, 20_001)
    assert fast(part).tolist() == [slow(key) for key in keys[1003 : 1003 + 20_001]]


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


# --- librdkafka's rules ---------------------------------------------------------------------------

SOME_KEYS = [b"a", None, b"", b"foobar", None, b""]


@pytest.mark.parametrize(
    ("name", "hash_of", "null", "empty"),
    [
        # rdkafka_msg.c: only consistent_random takes an empty key for none, and those without
        # _random hash a null key as an empty one.
        ("murmur2_random", lambda key: scalar_murmur2(key) & 0x7FFFFFFF, "any", "hash"),
        ("murmur2", lambda key: scalar_murmur2(key) & 0x7FFFFFFF, "hash", "hash"),
        ("consistent_random", zlib.crc32, "any", "any"),
        ("consistent", zlib.crc32, "hash", "hash"),
        ("fnv1a_random", scalar_fnv1a, "any", "hash"),
        ("fnv1a", scalar_fnv1a, "hash", "hash"),
    ],
)
def test_rules_for_null_and_empty_keys(name: str, hash_of: Slow, null: str, empty: str) -> None:
    def expected(key: bytes | None) -> int:
        if key is None and null == "any":
            return NO_PARTITION
        return NO_PARTITION if key == b"" and empty == "any" else hash_of(key or b"") % 1009

    rule = KEY_RULES[name]
    got = rule.partitions(pa.array(SOME_KEYS, pa.binary()), 1009)
    assert got.tolist() == [expected(key) for key in SOME_KEYS]
    assert got.dtype == np.int32
    assert [rule.partition(key, 1009) for key in SOME_KEYS] == [expected(key) for key in SOME_KEYS]
    assert rule.partitions(pa.nulls(2), 1009).tolist() == [expected(None)] * 2


def test_each_name_that_an_option_takes_has_its_rule() -> None:
    assert {*KEY_RULES, RANDOM, ROUND_ROBIN} == set(PARTITIONERS)
