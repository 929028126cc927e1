"""The fast way to join records against the general one, on the same rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkkafka.errors import EncodeError
from sparkkafka.protocol.columns import encode
from sparkkafka.protocol.columns.encode import (
    Blobs,
    RecordColumns,
    encode_batches,
    join_records,
    record_sizes,
    size_estimate,
)
from tests.support.properties import examples

NOW = 1_700_000_000_000
# Around Arrow's inline size, and where varints of a length or of the whole record grow.
LENGTHS = (None, 0, 1, 11, 12, 13, 50, 55, 62, 63, 64, 65, 127, 128, 8180, 8191, 8192, 8193)


def blobs(lengths: list[int | None], seed: int = 1) -> pa.Array:
    """Values of these lengths, all different."""
    random = np.random.default_rng(seed)
    return pa.array([None if n is None else random.bytes(n) for n in lengths], pa.binary())


def encoded(columns: RecordColumns, max_batch_bytes: int) -> list[tuple]:
    return [
        (bytes(batch.payload), *batch[1:])
        for batch in encode_batches(columns, max_batch_bytes=max_batch_bytes)
    ]


def check(monkeypatch: pytest.MonkeyPatch, columns: RecordColumns, max_batch_bytes: int) -> int:
    """How many times the fast way was taken, after comparing it with the general one."""
    taken = []

    def join(*args: object) -> object:
        result = join_records(*args)
        taken.append(result is not None)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(encode, "join_records", join)
        fast = encoded(columns, max_batch_bytes)
    with monkeypatch.context() as patch:
        patch.setattr(encode, "join_records", lambda *args: None)
        assert fast == encoded(columns, max_batch_bytes)
    total, largest = size_estimate(columns)
    sizes = record_sizes(columns)
    assert total + 8 * len(sizes) >= sum(len(payload) for payload, *_ in fast)
    assert largest + 8 >= sizes.max(initial=0)
    return sum(taken)


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(
    st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=80),
    st.one_of(st.none(), st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=5)),
    st.lists(st.sampled_from((0, 0, 0, 1, -1, 63, 64, 8191, 1 << 20, 1 << 40)), min_size=1),
    st.sampled_from((61, 300, 16384, 1 << 20)),
)
def test_any_rows(values, keys, deltas, max_batch_bytes):
    count = len(values)
    columns = RecordColumns(
        None if keys is None else blobs((keys * count)[:count], seed=2),
        blobs(values),
        None,
        NOW + np.cumsum((deltas * count)[:count]),
    )
    check(pytest.MonkeyPatch(), columns, max_batch_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("key_bytes", [None, 0, 8, 12, 13, 40])
@pytest.mark.parametrize("value_bytes", [0, 10, 12, 13, 100, 1000, 10_000])
def test_usual_rows_take_the_fast_way(monkeypatch, key_bytes, value_bytes):
    count = 5_000 if value_bytes < 1000 else 300
    keys = None if key_bytes is None else blobs([key_bytes] * count, seed=2)
    columns = RecordColumns(keys, blobs([value_bytes] * count), None, np.full(count, NOW))
    for max_batch_bytes in (16384, 1 << 20):
        assert check(monkeypatch, columns, max_batch_bytes)


def test_slices_and_variable_sizes_take_it_too(monkeypatch):
    lengths = np.random.default_rng(3).integers(0, 2048, 5000).tolist()
    columns = RecordColumns(
        blobs([n % 30 for n in lengths], seed=2).slice(100, 4800),
        blobs(lengths).slice(100, 4800),
        None,
        NOW + np.arange(4800) // 100,
    )
    assert check(monkeypatch, columns, 1 << 20)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary(), pa.large_string()])
def test_other_types(monkeypatch, kind):
    values = pa.array([f"value {i}" * (i % 9) for i in range(500)], kind)
    check(monkeypatch, RecordColumns(values, values, None, np.full(500, NOW)), 4096)


def test_what_does_not_fit_is_left_to_the_general_way():
    def join(lengths: list[int], deltas: list[int], counts: list[int]) -> object:
        array = np.array(lengths, np.int64)
        starts = np.cumsum(array) - array
        values = blobs(lengths)
        column = Blobs(values, starts, array, int(array.min()), int(array.max()))
        return join_records(None, column, np.array(deltas, np.int64), counts)

    assert join([5, 5], [0, 0], [2]) is not None
    assert join([1 << 20, 5], [0, 0], [2]) is None  # lengths of four bytes
    assert join([5, 5], [0, 1 << 20], [2]) is None  # a timestamp delta of four bytes
    assert join([5] * 65_537, [0] * 65_537, [65_536, 1]) is not None


def test_columns_of_unequal_length_are_refused_before_they_are_queued() -> None:
    two = np.zeros(2, np.int64)
    for columns in (
        RecordColumns(pa.array([b"k"]), pa.array([b"a", b"b"]), None, two),
        RecordColumns(None, pa.array([b"a", b"b", b"c"]), None, two),
        RecordColumns(None, pa.array([b"a"]), None, two[:0]),
    ):
        with pytest.raises(EncodeError, match=r"column has . rows, timestamps"):
            size_estimate(columns)


def test_timestamps_at_both_ends_of_time() -> None:
    far = np.array([-(2**63), 2**63 - 1])
    columns = RecordColumns(None, pa.array([b"a", b"b"]), None, far)
    total, largest = size_estimate(columns)
    assert total >= int(record_sizes(columns).sum())
    assert largest >= int(record_sizes(columns).max())
