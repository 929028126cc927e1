"""Ranges cut by minPartitions and maxRecordsPerPartition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkkafka.spark.read.input_partitions import KafkaInputPartition, split_ranges


def ranges(*sizes: int) -> list[KafkaInputPartition]:
    return [KafkaInputPartition("t", at, 100, 100 + size) for at, size in enumerate(sizes)]


def sizes(pieces: list[KafkaInputPartition]) -> list[tuple[int, int]]:
    return [(piece.partition, piece.end - piece.start) for piece in pieces]


def test_without_options_nothing_is_cut() -> None:
    assert split_ranges(ranges(5, 1000)) == ranges(5, 1000)
    assert split_ranges([], min_partitions=5, max_records=1) == []


@pytest.mark.parametrize(
    ("given", "wanted", "expected"),
    [
        ((10,), 4, [(0, 3), (0, 3), (0, 2), (0, 2)]),
        ((10, 10), 2, [(0, 10), (1, 10)]),
        ((10, 10), 1, [(0, 10), (1, 10)]),  # a least number, not a largest one
        ((1, 100), 4, [(0, 1), (1, 34), (1, 33), (1, 33)]),
        ((2, 1), 9, [(0, 1), (0, 1), (1, 1)]),  # an offset is the smallest piece
    ],
)
def test_min_partitions(
    given: tuple[int, ...], wanted: int, expected: list[tuple[int, int]]
) -> None:
    assert sizes(split_ranges(ranges(*given), min_partitions=wanted)) == expected


def test_max_records() -> None:
    assert sizes(split_ranges(ranges(10, 3), max_records=4)) == [(0, 4), (0, 3), (0, 3), (1, 3)]
    both = split_ranges(ranges(10, 3), max_records=4, min_partitions=5)
    assert sizes(both) == [(0, 3), (0, 3), (0, 2), (0, 2), (1, 3)]


@given(
    st.lists(st.integers(1, 2000), max_size=6),
    st.one_of(st.none(), st.integers(1, 60)),
    st.one_of(st.none(), st.integers(30, 3000)),
)
def test_pieces_cover_the_ranges_and_are_balanced(
    given_sizes: list[int], min_partitions: int | None, max_records: int | None
) -> None:
    whole = ranges(*given_sizes)
    pieces = split_ranges(whole, min_partitions=min_partitions, max_records=max_records)
    at = iter(pieces)
    for item in whole:
        expected = item.start
        lengths = []
        while expected < item.end:
            piece = next(at)
            assert (piece.topic, piece.partition, piece.start) == (
                item.topic,
                item.partition,
                expected,
            )
            assert piece.start < piece.end
            lengths.append(piece.end - piece.start)
            expected = piece.end
        assert expected == item.end
        assert max(lengths) - min(lengths) <= 1
        assert max_records is None or max(lengths) <= max_records
    assert next(at, None) is None
    if min_partitions is not None:
        assert len(pieces) >= min(min_partitions, sum(given_sizes))
    if max_records is None and min_partitions is not None and len(pieces) > len(whole):
        # No range is left whole that is longer than twice the pieces of another.
        longest = max(piece.end - piece.start for piece in pieces)
        shortest_cut = min(
            (item.end - item.start) / sum(1 for p in pieces if p.partition == item.partition)
            for item in whole
            if sum(1 for p in pieces if p.partition == item.partition) > 1
        )
        assert longest <= 2 * shortest_cut + 1
