"""The fast ways to record starts against following the prefixes one by one: the same verdict on
each batch and, where it is sound, the same positions. Also on damaged bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sparkkafka.protocol.columns import record_starts
from tests.support import reference
from tests.support.properties import examples


def slow_starts(payload: bytes, count: int) -> list[int] | None:
    """None for bytes that are not `count` records, one behind the other."""
    starts = []
    position = 0
    for _ in range(count):
        starts.append(position)
        try:
            length, position = reference.decode_varint(payload, position, len(payload))
        except reference.Damaged:
            return None
        position += length
        if length < 0 or position > len(payload):
            return None
    return starts if position == len(payload) else None


def same_as_slow(batches: list[tuple[bytes, int]], gap_bytes: int = 61) -> list[bool]:
    """Checks `find` on batches of (payload, count); returns which are sound."""
    whole = bytearray()
    begins = []
    for payload, _ in batches:
        whole += b"\xff" * gap_bytes  # headers, which nothing may read as records
        begins.append(len(whole))
        whole += payload
    found = record_starts.find_records(
        np.frombuffer(bytes(whole), np.uint8),
        np.array(begins),
        np.array(
            [begin + len(payload) for begin, (payload, _) in zip(begins, batches, strict=True)]
        ),
        np.array([count for _, count in batches]),
    )
    first = 0
    for index, (payload, count) in enumerate(batches):
        expected = slow_starts(payload, count)
        assert bool(found.proven[index]) == (expected is not None), index
        if expected is not None:
            rows = slice(first, first + count)
            starts = [start + begins[index] for start in expected]
            ends = [*starts[1:], begins[index] + len(payload)]
            assert found.starts[rows].tolist() == starts
            assert found.ends[rows].tolist() == ends
            bodies = [at + width(payload[at - begins[index] :]) for at in starts]
            assert found.bodies[rows].tolist() == bodies
        first += count
    return found.proven.tolist()


def width(raw: bytes) -> int:
    return next(index for index, byte in enumerate(raw, 1) if byte < 0x80)


def records(lengths: list[int], filler: int = 0x61) -> bytes:
    """Records of so many bytes each behind the prefix; the first is the attributes."""
    return b"".join(
        reference.encode_varint(length) + b"\0" + bytes([filler]) * (length - 1)
        for length in lengths
    )


def changed(payload: bytes, position: int, change: int) -> bytes:
    out = bytearray(payload)
    out[position % len(out)] ^= change
    return bytes(out)


lengths = st.lists(st.sampled_from((6, 6, 7, 20, 63, 64, 70, 8191, 8192)), min_size=1, max_size=12)


@settings(max_examples=examples(150))
@given(st.data())
def test_any_batches(data: st.DataObject) -> None:
    """Few or many batches, copies among them, some of them damaged."""
    kinds = data.draw(st.lists(lengths, min_size=1, max_size=4))
    order = data.draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=30))
    batches = [(records(kinds[index]), len(kinds[index])) for index in order]
    for _ in range(data.draw(st.integers(0, 3))):
        index = data.draw(st.integers(0, len(batches) - 1))
        payload, count = batches[index]
        payload = changed(payload, data.draw(st.integers(0, 10**6)), data.draw(st.integers(1, 255)))
        batches[index] = payload, count
    same_as_slow(batches)


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(st.data())
def test_large_batches_beside_small_ones(data: st.DataObject) -> None:
    """Seeds and equal runs, chains of known and of unknown counts in one call."""
    chance = np.random.default_rng(data.draw(st.integers(0, 1000)))
    batches = []
    for count in data.draw(st.lists(st.sampled_from((1, 3, 90, 255, 256, 700, 1500)), max_size=12)):
        low, high = data.draw(st.sampled_from(((20, 21), (6, 40), (50, 300), (6, 9000))))
        some = chance.integers(low, high, count).tolist()
        batches.append((records(some, data.draw(st.sampled_from((0, 0x61, 0x0C)))), count))
    batches.append((records([9] * 4), 4))
    if data.draw(st.booleans()):
        index = data.draw(st.integers(0, len(batches) - 1))
        payload = changed(batches[index][0], int(chance.integers(10**6)), 1 + chance.integers(255))
        batches[index] = payload, batches[index][1]
    same_as_slow(batches)


def test_copies_that_are_not_copies() -> None:
    """Equal bytes and counts, other sizes of records."""
    plain, turned = records([20] * 30 + [30] * 30), records([30] * 30 + [20] * 30)
    assert len(plain) == len(turned)
    for at in (0, 1, 10, 20, 38, 39):  # the first, the last and the middle are looked at
        batches = [(plain, 60)] * 40
        batches[at] = (turned, 60)
        assert all(same_as_slow(batches))
    assert all(same_as_slow([(plain, 60), (turned, 60)] * 20))
    assert all(same_as_slow([(plain, 60)] * 20 + [(records([20] * 7), 7)]))
    assert all(same_as_slow([(records([20] * 7), 7)] * 2 + [(plain, 60)] * 20))


@pytest.mark.parametrize("at", [0, 7, 10, 19])
def test_one_damaged_copy(at: int) -> None:
    plain = records([20] * 60)
    for position, change in ((0, 2), (1, 1), (21, 0x80), (21, 1), (len(plain) - 21, 2)):
        batches = [(plain, 60)] * 20
        batches[at] = (changed(plain, position, change), 60)
        proven = same_as_slow(batches)
        assert proven.count(False) == (position != 1)
    batches = [(plain, 60)] * 20
    # A number that is longer than its type, where a record begins.
    batches[at] = (plain[:21] + b"\xff" * 6 + plain[27:], 60)
    assert same_as_slow(batches) == [index != at for index in range(20)]


@given(st.lists(st.lists(st.sampled_from([0x80, 0xFF, 0x90, 0x0F, 0x10, 0x02]), min_size=1)))
def test_lengths_that_are_no_numbers(rows: list[list[int]]) -> None:
    data = np.array([byte for row in rows for byte in [*row, 2]] + [2] * 8, np.uint8)
    starts = np.arange(len(data) - 5)
    lengths, bodies, invalid = record_starts._read_lengths(data, starts)
    for at in starts.tolist():
        try:
            expected = reference.decode_varint(data.tobytes(), at, len(data))
        except reference.Damaged:
            assert invalid is not None
            assert invalid[at]
            continue
        assert invalid is None or not invalid[at]
        assert (int(lengths[at]), int(bodies[at])) == expected


def test_counts_that_are_not_true() -> None:
    plain = records([20, 21, 22] * 20)
    for count in (1, 59, 61, len(plain) // 7):
        for at in (0, 10, 19):
            batches = [(plain, 60)] * 20
            batches[at] = (plain, count)
            assert same_as_slow(batches) == [index != at for index in range(20)]
        assert not any(same_as_slow([(plain, count)] * 20))


def test_chains_of_very_unlike_counts_take_little_memory() -> None:
    """A row of 255 steps for each of thousands of chains would take 100 times the records."""
    batches = [(records([6]), 1)] * 3000 + [(records([6, 7] * 127), 254)] * 9
    assert all(same_as_slow(batches, 0))
    chains = np.array([0, *range(7, 7 * 20, 7)])
    counts = np.array([1] * 19 + [200])
    data = np.frombuffer(records([6] * 219), np.uint8)
    found = record_starts.lockstep_counted(data, chains, chains + 7 * counts, counts)
    assert found.tolist() == list(range(0, 7 * 219, 7))


@pytest.mark.slow
def test_windows_of_seeds_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch of large records must not make the windows of tiny ones large."""
    shapes: list[tuple[int, ...]] = []

    def noted(data: NDArray[np.uint8], shape: tuple[int, ...], strides: object) -> object:
        shapes.append(shape)
        return np.lib.stride_tricks.as_strided(data, shape, strides)  # type: ignore[arg-type]

    monkeypatch.setattr(record_starts, "as_strided", noted)
    chance = np.random.default_rng(3)
    tiny = chance.integers(6, 9, 30_000).tolist()
    huge = chance.integers(3000, 4000, 200).tolist()
    assert all(same_as_slow([(records(tiny), len(tiny)), (records(huge), len(huge))]))
    assert [window < 200 for _, window in shapes] == [True]


def test_positions_may_run_on_behind_the_data() -> None:
    """Chains of known counts are not stopped at their ends."""
    last = records([6] * 10 + [8000])
    for cut in range(1, 60, 7):
        batches = [(records([6, 9] * 5), 10)] * 10 + [(last[:-cut], 11)]
        assert same_as_slow(batches) == [True] * 10 + [False]
