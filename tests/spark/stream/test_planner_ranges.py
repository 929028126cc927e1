"""From the offsets of a micro-batch to ranges, and what counts as data loss."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkkafka.client.values import TopicPartition
from sparkkafka.spark.read.data_loss import loss_error, loss_warning
from sparkkafka.spark.read.input_partitions import KafkaInputPartition
from sparkkafka.spark.stream.planner import (
    partitions_to_check,
    plan_micro_batch,
    recreated_loss,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
Offsets = dict[TopicPartition, int]
offsets = st.dictionaries(st.sampled_from([A0, A1, B0]), st.integers(0, 20))


@given(offsets, offsets, offsets, offsets, st.booleans())
def test_ranges_are_what_is_wanted_and_there(
    start: Offsets, end: Offsets, earliest: Offsets, latest: Offsets, again: bool
) -> None:
    latest = {tp: max(at, earliest[tp]) for tp, at in latest.items() if tp in earliest}
    known = latest if again else {}
    plan = plan_micro_batch(start, end, earliest, known)
    got = {TopicPartition(r.topic, r.partition): range(r.start, r.end) for r in plan.ranges}
    assert len(got) == len(plan.ranges)
    assert [*got] == sorted(got)
    for tp, to in end.items():
        first = earliest.get(tp, 0)
        begin = start.get(tp, first)
        there = range(first, known.get(tp, 10**9)) if tp in earliest else range(0)
        expected = {at for at in range(begin, to) if at in there}
        if start.get(tp) != to:  # else it does not move
            assert set(got.get(tp, ())) == expected
    missing = sum(max(0, to - start.get(tp, earliest.get(tp, 0))) for tp, to in end.items())
    missing -= sum(map(len, got.values()))
    names = ("COULD_NOT_READ_OFFSET_RANGE", "INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS")
    counted = [x for x in plan.losses if x.condition.endswith(names)]
    assert sum(loss.missing for loss in counted) == missing


def test_only_what_moves_is_checked() -> None:
    assert partitions_to_check({A0: 1, A1: 2}, {A0: 1, A1: 5, B0: 0}) == [A1, B0]


def test_a_new_topic_starts_where_it_begins() -> None:
    plan = plan_micro_batch({A0: 3}, {A0: 3, B0: 9}, {B0: 4}, {})
    assert plan.ranges == [KafkaInputPartition("b", 0, 4, 9)]
    assert (plan.losses, plan.late_topics) == ([], {"b": [B0]})


@pytest.mark.parametrize(
    ("start", "end", "earliest", "latest", "condition", "message"),
    [
        ({A0: 3, A1: 1}, {A0: 3}, {}, {}, "PARTITIONS_DELETED", "Partitions a-1 have been deleted"),
        (
            {A0: 3}, {A0: 3, A1: 9}, {A1: 4}, {}, "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
            "Added partition a-1 starts from 4 instead of 0",
        ),
        (
            {A0: 30}, {A0: 7}, {A0: 0}, {}, "PARTITION_OFFSET_CHANGED",
            "Partition a-0 offset was changed from 30 to 7",
        ),
        (
            {A0: 3}, {A0: 9}, {A0: 5}, {}, "COULD_NOT_READ_OFFSET_RANGE",
            "Could not read records in offset [3, 9) for topic partition a-0: first is 5",
        ),
        (
            {A0: 3}, {A0: 9}, {A0: 0}, {A0: 6}, "COULD_NOT_READ_OFFSET_RANGE",
            "offset [3, 9) for topic partition a-0: available are [0, 6)",
        ),
        (
            {A0: 3}, {A0: 9}, {}, {}, "COULD_NOT_READ_OFFSET_RANGE",
            "offset [3, 9) for topic partition a-0: the partition is gone",
        ),
        (
            {A0: 3}, {A0: 3, A1: 9}, {}, {}, "INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS",
            "Cannot find initial offsets for partitions a-1. They may have been deleted",
        ),
    ],
)  # fmt: skip
def test_losses(
    start: Offsets, end: Offsets, earliest: Offsets, latest: Offsets, condition: str, message: str
) -> None:
    losses = plan_micro_batch(start, end, earliest, latest).losses
    assert [loss.condition for loss in losses] == [f"KAFKA_DATA_LOSS.{condition}"]
    text = str(loss_error(losses, streaming=True))
    assert text.startswith(
        f"[KAFKA_DATA_LOSS.{condition}] Some data may have been lost because they are not available"
    )
    assert message in text
    assert "failOnDataLoss=false" in text
    assert message in loss_warning(losses, streaming=True)


def test_a_topic_made_again_was_reported_and_gives_nothing_yet() -> None:
    plan = plan_micro_batch({A0: 30, B0: 2}, {A0: 1, B0: 3}, {A0: 1, B0: 0}, {}, recreated={"a"})
    assert plan.ranges == [KafkaInputPartition("b", 0, 2, 3)]
    assert plan.losses == []
    assert "Topic a was deleted and recreated" in str(
        loss_error([recreated_loss("a")], streaming=True)
    )


def test_long_lists_are_cut_and_totals_kept() -> None:
    start = {TopicPartition("t", number): 0 for number in range(30)}
    end = dict.fromkeys(start, 10)
    losses = plan_micro_batch(start, end, dict.fromkeys(start, 4), {}).losses
    text = loss_warning(losses, streaming=True)
    assert "failOnDataLoss=false: 120 offsets or more skipped" in text
    assert text.endswith(" and 20 more")
