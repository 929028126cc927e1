"""Validity, spreading to rows, and UTF-8, for arrays of all kinds of types."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparkkafka.schemas.arrays import (
    is_utf8,
    null_outside,
    offsets_of,
    repeated_keys,
    replace_bad_texts,
    spread,
)

ARRAYS = [
    pa.array([1, None, 3, 4]),
    pa.array([True, False, None, True]),
    pa.array(["a", "", None, "dé"]),
    pa.array([b"x", None, b"", b"yy"]),
    pa.array([[1], None, [], [2, None]]),
    pa.array([[("a", 1)], None, [], [("b", None)]], pa.map_(pa.string(), pa.int64())),
    pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": ""}, {"a": 2, "b": None}]),
    pa.nulls(4),
]


@pytest.mark.parametrize("values", ARRAYS, ids=lambda values: str(values.type))
@pytest.mark.parametrize("start", [0, 1])
def test_null_outside(values: pa.Array, start: int) -> None:
    values = values.slice(start)
    mask = np.array([True, True, False, True])[start:]
    found = null_outside(values, mask)
    found.validate(full=True)
    expected = [row if keep else None for row, keep in zip(values.to_pylist(), mask, strict=True)]
    assert (found.type, found.to_pylist()) == (values.type, expected)


@pytest.mark.parametrize("values", ARRAYS, ids=lambda values: str(values.type))
def test_spread(values: pa.Array) -> None:
    found = spread(values, np.array([5, 0, 2, 3]), 7)
    found.validate(full=True)
    a, b, c, d = values.to_pylist()
    assert found.to_pylist() == [b, None, c, d, None, a, None]
    assert spread(values.slice(0, 0), np.zeros(0, np.int64), 2).to_pylist() == [None, None]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_offsets(dtype: Any) -> None:
    offsets = offsets_of(np.array([2, 0, 3]), dtype)
    assert (offsets.tolist(), offsets.dtype) == ([0, 2, 2, 5], dtype)
    assert offsets_of([]).tolist() == [0]


@pytest.mark.parametrize("count", [1, 40])
def test_a_key_is_repeated_only_by_the_whole_key_in_the_same_map(count: int) -> None:
    fillers = [f"filler {number}" for number in range(count)]
    keys = ["", "attribute", "attributE", "attribut", *fillers, "attribute", ""]
    counts = np.array([len(keys) - 2, 0, 2, 0])
    assert not len(repeated_keys(pa.array(keys), counts))
    assert not len(repeated_keys(pa.array(keys[:0]), counts * 0))
    repeated = repeated_keys(pa.array(["x", *keys]).slice(1), np.array([len(keys)]))
    assert sorted(repeated.tolist()) == [0, 1]


@pytest.mark.parametrize("keys", [[7, 8, 7], [True, False, True]], ids=["numbers", "booleans"])
def test_a_key_that_is_no_text_is_repeated_in_the_same_map(keys: list[Any]) -> None:
    assert repeated_keys(pa.array(keys), np.array([3])).tolist() == [0]
    assert not len(repeated_keys(pa.array(keys), np.array([2, 1])))


def test_utf8() -> None:
    texts = pa.array([b"a", b"\xff", "ö€".encode(), b"\xed\xa0\x80", b""])
    assert is_utf8(texts).tolist() == [True, False, True, False, True]
    assert is_utf8(texts.slice(1, 2)).tolist() == [False, True]


def test_which_bytes_are_utf8_is_what_python_says() -> None:
    chance = random.Random(5)
    edges = [0x41, 0x7F, 0x80, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xE0, 0xED, 0xF0, 0xF4, 0xF5, 0xFF]
    values = [bytes(chance.choices(edges, k=chance.randrange(5))) for _ in range(5_000)]
    values += [
        "".join(chance.choices("aé€😀", k=3)).encode()[: chance.randrange(13)] for _ in values
    ]
    chance.shuffle(values)
    same = [value.decode("utf-8", "replace").encode() == value for value in values]
    assert is_utf8(pa.array(values, pa.binary())).tolist() == same
    assert sum(same) > 2_000
    for longer in (b"", b"\xff" * 30):  # few bytes of a text are not ASCII, or many
        texts, flags = replace_bad_texts(
            pa.array(
                [
                    value if good else value + longer
                    for value, good in zip(values, same, strict=True)
                ]
            )
        )
        texts.validate(full=True)
        assert flags.tolist() == same
        assert all(
            text == value.decode()
            for text, value, good in zip(texts.to_pylist(), values, same, strict=True)
            if good
        )
