"""Varints of a column against those of one value, and against Kafka's format by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkkafka.protocol.records.varint_columns import (
    PAD,
    Varints,
    encode,
    encode_when_written,
    read,
    read_unsigned,
    write_varints,
)
from sparkkafka.protocol.wire.varints import BadVarintError, read_varint, varint_bytes
from tests.support import reference
from tests.support.properties import examples

BYTES = (0, 1, 2, 3, 63, 64, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
CODES = st.one_of(
    st.integers(0, 300), st.integers(0, 1 << 30), st.integers(0, 2**64 - 1), st.just(2**64 - 1)
)


@settings(max_examples=examples(300))
@given(
    st.lists(st.sampled_from(BYTES), min_size=1, max_size=60),
    st.lists(st.integers(0, 59), min_size=1, max_size=30),
    st.sampled_from((32, 64, 70)),
)
def test_a_column_is_read_as_each_value_is(raw: list[int], at: list[int], bits: int) -> None:
    """A varint that is cut off ends behind the data, whatever its value."""
    data = np.array(raw, np.uint8)
    positions = np.minimum(np.array(at, np.int64), len(raw) - 1)
    before = data.copy(), positions.copy()
    values, after, wrong = read_unsigned(data, positions, bits)
    flags = np.zeros(len(at), np.bool_) if wrong is None else wrong
    for index, position in enumerate(positions.tolist()):
        try:
            value, stop = read_varint(raw, position, len(raw), bits)
        except IndexError:
            assert after[index] > len(raw) or flags[index]
        except BadVarintError:
            assert flags[index]
        else:
            assert (values[index], after[index]) == (value & (1 << 64) - 1, stop)
            assert not flags[index]
    assert (data == before[0]).all()
    assert (positions == before[1]).all()


@given(
    st.lists(st.sampled_from(BYTES), min_size=1, max_size=20),
    st.lists(st.integers(-40, 90), min_size=1, max_size=20),
)
def test_positions_outside_of_the_data_end_outside(raw: list[int], at: list[int]) -> None:
    """Lengths of damaged records lead there."""
    data, positions = np.array(raw, np.uint8), np.array(at, np.int64)
    _, after, _ = read_unsigned(data, positions)
    assert (after[positions >= len(raw)] > len(raw)).all()
    assert (after > positions).all()


@pytest.mark.parametrize("widest", [1, 2, 3])
def test_every_value_of_one_and_two_bytes(widest: int) -> None:
    values = list(range(-70, 70))
    if widest > 1:
        values += range(-8200, 8200)
    if widest == 2:
        values = [value for value in values if -8192 <= value <= 8191]
    raw = b"".join(map(reference.encode_varint, values))
    ends = np.cumsum([len(reference.encode_varint(value)) for value in values])
    starts = np.append(0, ends[:-1])
    found, after = read(np.frombuffer(raw, np.uint8), starts)
    assert found.tolist() == values
    assert after.tolist() == ends.tolist()


@pytest.mark.parametrize("way", [encode, encode_when_written])
@given(codes=st.lists(CODES, max_size=40))
def test_codes_are_written_one_behind_the_other(
    way: Callable[[np.ndarray], Varints], codes: list[int]
) -> None:
    each = [varint_bytes(code) for code in codes]
    found = way(np.array(codes, np.uint64))
    starts = np.cumsum([0, *map(len, each)])
    out = np.zeros(int(starts[-1]) + PAD, np.uint8)
    write_varints(out, starts[:-1], found, 0)
    assert out[: starts[-1]].tobytes() == b"".join(each)
    assert np.broadcast_to(found.sizes, len(each)).tolist() == [len(data) for data in each]
    assert found.min_size <= min(map(len, each), default=1)


@given(st.lists(CODES, min_size=1, max_size=40), st.integers(0, 9), st.booleans(), st.data())
def test_codes_are_written_beside_other_bytes(
    codes: list[int], gap: int, has_room: bool, data: st.DataObject
) -> None:
    """With room, the bytes behind a varint are those that are written later."""
    rows = data.draw(st.lists(st.booleans(), min_size=len(codes), max_size=len(codes)))
    chosen = np.flatnonzero(rows)
    each = [varint_bytes(code) for code in codes]
    starts = np.cumsum([0, *(len(part) + gap for part in each)])
    out = np.full(int(starts[-1]) + PAD, 0xAA, np.uint8)
    found = encode(np.array(codes, np.uint64)[chosen])
    write_varints(out, starts[chosen], found, gap if has_room else 0)
    written = out.tobytes()
    for row, part in enumerate(each):
        begin, stop = int(starts[row]), int(starts[row]) + len(part)
        assert written[begin:stop] == (part if rows[row] else b"\xaa" * len(part))
        if not has_room:
            assert written[stop : int(starts[row + 1])] == b"\xaa" * gap
