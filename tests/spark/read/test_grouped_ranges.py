"""Small ranges of a micro-batch share a task."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparkkafka.client.values import TopicPartition
from sparkkafka.spark.read.input_partitions import (
    GROUP_BYTES,
    GROUP_ROWS,
    KafkaInputPartition,
    SmallRanges,
    group_small_ranges,
)

LEADERS = (None, ("a", 9092), ("b", 9092), ("b", 9093))


def ranges(*sizes: int) -> list[KafkaInputPartition]:
    return [KafkaInputPartition("t", at, 100, 100 + size) for at, size in enumerate(sizes)]


def shapes(planned: list[object]) -> list[list[int]]:
    """The partitions of each task."""
    groups = [item.ranges if isinstance(item, SmallRanges) else (item,) for item in planned]
    return [[item.partition for item in group] for group in groups]


def test_small_ranges_share_a_task_and_large_ones_do_not() -> None:
    assert shapes(group_small_ranges(ranges(1, 1, 1), {})) == [[0, 1, 2]]
    assert shapes(group_small_ranges(ranges(1_500, 1_500, 2_500, 2_500), {})) == [[0, 1], [2], [3]]
    small = {TopicPartition("t", at): 100.0 for at in range(4)}
    assert shapes(group_small_ranges(ranges(2_500, 2_500, 2_500, 2_500), small)) == [[0, 1, 2, 3]]
    assert shapes(group_small_ranges(ranges(1_000_000, 1_000_000), small)) == [[0], [1]]
    assert shapes(group_small_ranges(ranges(5, 1_000_000, 5), small)) == [[0], [1], [2]]


def test_the_size_of_records_counts() -> None:
    large = {TopicPartition("t", at): 2.0**20 for at in range(3)}
    assert shapes(group_small_ranges(ranges(3, 3, 3), large)) == [[0], [1], [2]]
    assert shapes(group_small_ranges(ranges(1, 1, 1), large)) == [[0, 1, 2]]


def test_max_ranges_per_task() -> None:
    assert group_small_ranges(ranges(1, 1, 1), {}, 1) == ranges(1, 1, 1)
    assert shapes(group_small_ranges(ranges(1, 1, 1, 1, 1), {}, 2)) == [[0, 1], [2, 3], [4]]


def test_one_range_is_what_it_always_was() -> None:
    assert group_small_ranges(ranges(7), {}) == ranges(7)
    assert group_small_ranges([], {}) == []


@given(
    st.lists(
        st.tuples(st.integers(1, 30_000), st.sampled_from(LEADERS), st.floats(1, 10_000)),
        max_size=40,
    ),
    st.one_of(st.none(), st.integers(1, 5)),
)
def test_every_range_is_read_once(
    drawn: list[tuple[int, tuple[str, int] | None, float]], most: int | None
) -> None:
    given = [
        KafkaInputPartition("t", at, 5, 5 + size, leader=leader)
        for at, (size, leader, _) in enumerate(drawn)
    ]
    sizes = {TopicPartition("t", at): each for at, (_, _, each) in enumerate(drawn)}
    planned = group_small_ranges(given, sizes, most)
    groups = [item.ranges if isinstance(item, SmallRanges) else (item,) for item in planned]
    found = [item for group in groups for item in group]
    assert sorted(found, key=lambda one: one.partition) == given
    for group in groups:
        assert len(group) <= (most or len(group))
        if len(group) > 1:
            assert sum(item.count for item in group) <= GROUP_ROWS
            assert sum(item.count * sizes[item.tp] for item in group) <= GROUP_BYTES + 1
    leaders = [item.leader for item in found]
    assert leaders == sorted(leaders, key=lambda leader: leader or ("", 0))
