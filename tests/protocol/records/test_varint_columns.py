"""Varints of a column against those of one value, and against Kafka's format by hand."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkkafka.protocol.columns.byte_columns import VarintColumn, blobs_of, constant, join
from sparkkafka.protocol.records.varint_columns import encode_words, read, read_unsigned
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


@given(st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**56 - 1)), min_size=1, max_size=40))
def test_codes_are_encoded_as_each_one_is(codes: list[int]) -> None:
    words, sizes = encode_words(np.array(codes, np.uint64), max(codes))
    each = [varint_bytes(code) for code in codes]
    assert np.broadcast_to(sizes, len(codes)).tolist() == [len(data) for data in each]
    assert [int(word) for word in words] == [int.from_bytes(data, "little") for data in each]


def test_joined_rows_are_allocated_once() -> None:
    """Arrow doubles memory that turns out too small, and copies what it has."""
    texts = blobs_of(pa.array([b"x" * (row % 10) for row in range(1000)], pa.binary()))
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    content = join([*constant(b"ab"), texts] * 5, 1000, pool).buffers()[2].size
    assert pool.max_memory() < 1.1 * (content + 5 * 1000 * 4)  # with an offset for each copy


@given(st.lists(CODES, max_size=40), st.lists(st.binary(max_size=12), min_size=1, max_size=40))
def test_codes_are_written_beside_other_bytes(codes: list[int], others: list[bytes]) -> None:
    count = min(len(codes), len(others))
    column = VarintColumn(np.array(codes[:count], np.uint64), is_zigzag=False)
    beside = blobs_of(pa.array(others[:count], pa.binary()))
    joined = join([column, beside, column], count).to_pylist()
    each = [varint_bytes(code) for code in codes]
    assert joined == [code + other + code for code, other in zip(each, others, strict=False)]
