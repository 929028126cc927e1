"""How a backlog is shared out: never above the cap, never starving."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkkafka.client.values import TopicPartition
from sparkkafka.spark.stream.planner import (
    last_served,
    offsets_within,
    prorate,
)

partitions = st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 30))
backlogs = st.dictionaries(partitions, st.integers(0, 10_000), max_size=40)


def tp(number: int) -> TopicPartition:
    return TopicPartition("t", number)


@given(backlogs, st.integers(1, 20_000), st.none() | partitions)
def test_exactly_the_cap_or_all_there_is(
    backlog: dict[TopicPartition, int], cap: int, after: TopicPartition | None
) -> None:
    shares = prorate(backlog, cap, after)
    assert sum(shares.values()) == min(cap, sum(backlog.values()))
    assert all(0 <= share <= backlog[tp] for tp, share in shares.items())
    assert {tp for tp, size in backlog.items() if size} == set(shares)


@given(backlogs, st.integers(1, 20_000))
def test_each_partition_gets_some_if_there_is_enough_and_shares_follow_the_backlog(
    backlog: dict[TopicPartition, int], cap: int
) -> None:
    sizes = {tp: size for tp, size in backlog.items() if size}
    shares = prorate(backlog, cap)
    if cap >= len(sizes):
        assert all(shares.values())
        total = sum(sizes.values())
        for one, size in sizes.items():
            # Within one offset of the fair share beyond the first offset, which all get.
            fair = 1 + (cap - len(sizes)) * (size - 1) / max(1, total - len(sizes))
            assert cap >= total or abs(shares[one] - fair) <= 1


@pytest.mark.slow
@given(backlogs, st.integers(1, 50), st.randoms(use_true_random=False))
def test_none_starves(backlog: dict[TopicPartition, int], cap: int, chance: Random) -> None:
    """Under any growth of the others, a partition with a backlog is served within n batches."""
    left = {tp: size for tp, size in backlog.items() if size}
    waited = dict.fromkeys(left, 0)
    after = None
    for _ in range(60):
        shares = prorate(left, cap, after)
        after = last_served(shares, after)
        for item in left:
            waited[item] = 0 if shares.get(item) or not left[item] else waited[item] + 1
            left[item] -= shares.get(item, 0)
            left[item] += chance.choice((0, 0, 1, 1000))
        assert all(batches <= len(left) for batches in waited.values())


def test_round_robin_below_one_each() -> None:
    backlog = {tp(number): 100 for number in range(5)}
    after, served = None, []
    for _ in range(5):
        shares = prorate(backlog, 2, after)
        after = last_served(shares, after)
        served.append([one.partition for one, share in shares.items() if share])
    assert served == [[0, 1], [2, 3], [0, 4], [1, 2], [3, 4]]


def test_bytes() -> None:
    sizes = {tp(0): 10.0, tp(1): 30.0}
    assert offsets_within({tp(0): 100, tp(1): 100}, sizes, 2000) == 100
    assert offsets_within({tp(0): 100, tp(1): 100}, sizes, 4000) == 200
    assert offsets_within({tp(0): 100, tp(1): 100}, sizes, 5) == 1
    # A partition of unknown size counts like the others.
    assert offsets_within({tp(0): 100, tp(2): 100}, sizes, 1000) == 100
    assert offsets_within({tp(2): 100}, {}, 10) == 100
