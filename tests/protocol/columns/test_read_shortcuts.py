"""Short cuts of reading against the long way round: narrow varints, and batches without markers."""

from __future__ import annotations

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkkafka.protocol.records import varints
from sparkkafka.protocol.records.batches import RecordBatch, split_batches
from sparkkafka.protocol.records.control_batches import AbortedTransactions
from tests.properties import examples


def result(way: object, data: np.ndarray, at: np.ndarray, bits: int) -> object:
    try:
        values, after = way(data, at, bits)  # type: ignore[operator]
    except varints.BadVarintError:
        return "bad"
    assert values.dtype == after.dtype == np.int64
    return values.tolist(), after.tolist()


@settings(max_examples=examples(300))
@given(
    st.lists(st.sampled_from((0, 1, 2, 3, 63, 64, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF)), min_size=1),
    st.lists(st.integers(0, 40), min_size=1, max_size=30),
    st.sampled_from((varints.VARINT_BITS, varints.VARLONG_BITS)),
)
def test_narrow_varints_equal_those_of_any_length(raw: list[int], at: list[int], bits: int) -> None:
    """Also where positions lie behind the data, which damaged records lead to."""
    data, positions = np.array(raw, np.uint8), np.array(at, np.int64)
    before = data.copy(), positions.copy()
    assert result(varints.read, data, positions, bits) == result(
        varints.read_any, data, positions, bits
    )
    assert (data == before[0]).all()
    assert (positions == before[1]).all()


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
    read, after = varints.read(np.frombuffer(raw, np.uint8), starts)
    assert read.tolist() == values
    assert after.tolist() == ends.tolist()


def batch(base_offset: int, producer_id: int, attributes: int, key: bytes) -> bytes:
    records = [reference.Record(base_offset, 0, key, b"")]
    return reference.encode_batch(
        records, base_offset=base_offset, attributes=attributes, producer_id=producer_id
    )


@settings(max_examples=examples(150))
@given(
    st.lists(
        st.tuples(
            st.integers(1, 3),
            st.sampled_from((0, 0x10, 0x30)),  # plain, transactional, marker
            st.sampled_from((b"\0\0\0\0", b"\0\0\0\1")),  # abort, commit
        ),
        max_size=12,
    ),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 12)), max_size=4),
)
def test_visible_batches_at_once_and_one_by_one(
    rows: list[tuple[int, int, bytes]], aborted: list[tuple[int, int]]
) -> None:
    batches = split_batches(b"".join(batch(n, *row) for n, row in enumerate(rows)))
    assert all(type(item) is RecordBatch for item in batches)
    one_by_one = AbortedTransactions(aborted)
    expected = [item for item in batches if one_by_one.visible(item)]
    assert AbortedTransactions(aborted).visible_of(batches) == expected
    assert AbortedTransactions(None).visible_of(batches) == [
        item for item in batches if not item.is_control
    ]
