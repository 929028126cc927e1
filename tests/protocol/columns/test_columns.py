"""Byte strings are copied out of a buffer, whatever their lengths."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from sparkkafka.protocol.columns.columns import gather


@pytest.mark.parametrize("shortest", [-1, 0, 1, 12, 13, 64, 300])
def test_byte_strings_are_gathered(shortest: int) -> None:
    chance = random.Random(shortest)
    data = chance.randbytes(100_000)
    lengths = [shortest, *(chance.randrange(shortest, shortest + 20) for _ in range(100))]
    starts, at = [], 0
    for length in lengths:
        at += chance.randrange(5)
        starts.append(at)
        at += max(length, 0)
    gathered = gather(pa.py_buffer(data), np.array(starts), np.array(lengths))
    gathered.validate(full=True)
    assert gathered.type == pa.binary()
    assert gathered.to_pylist() == [
        data[start : start + length] if length >= 0 else None
        for start, length in zip(starts, lengths, strict=True)
    ]
