"""Decimals as bytes, against Python's integers."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from sparkkafka.schemas import decimals

POWERS = [1 << bits for bits in range(126)] + [10**digits for digits in range(38)]
NUMBERS = sorted(
    {sign * (power + more) for power in POWERS for sign in (1, -1) for more in (-1, 0, 1)}
)
NUMBERS = [number for number in NUMBERS if abs(number) < 10**38]


def words_of(numbers: list[int]) -> decimals.DecimalWords:
    return decimals.words_of(pa.array(map(Decimal, numbers), pa.decimal128(38, 0)))


def python_bytes(number: int) -> bytes:
    bits = (number if number >= 0 else ~number).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


def test_the_fewest_bytes() -> None:
    sizes = decimals.min_sizes(words_of(NUMBERS)).tolist()
    assert sizes == [len(python_bytes(number)) for number in NUMBERS]
    content = decimals.to_bytes(words_of(NUMBERS)).tobytes()
    expected = b"".join(number.to_bytes(16, "big", signed=True) for number in NUMBERS)
    assert content == expected


def test_bytes_are_read_back() -> None:
    values = [python_bytes(number) for number in NUMBERS]
    lengths = np.array([len(value) for value in values])
    data = np.frombuffer(b"".join(values), np.uint8)
    words = decimals.read_words(data, np.cumsum(lengths) - lengths, lengths)
    assert words.tolist() == words_of(NUMBERS).tolist()
    none = decimals.read_words(data, np.array([0, len(data)]), np.array([0, 0]))
    assert none.tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("limit", [9, 10**18 - 1, 2**63 - 1, 2**64, 10**20 - 1, 10**38 - 1])
def test_exceeds_marks_numbers_beyond_the_limit(limit: int) -> None:
    expected = [abs(number) > limit for number in NUMBERS]
    assert decimals.exceeds(words_of(NUMBERS), limit).tolist() == expected


def test_words_of_a_slice() -> None:
    array = pa.array([Decimal(1), Decimal(-1), None], pa.decimal128(9, 0))
    assert decimals.words_of(array.slice(1, 1)).tolist() == [[2**64 - 1, 2**64 - 1]]
    assert decimals.words_of(array.slice(0, 0)).shape == (0, 2)
