"""Subscriptions and offsets -> ranges: no broker, no Spark."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkkafka.client.values import TopicPartition
from sparkkafka.config.source import FROM_EARLIEST, TO_LATEST, OffsetBound
from sparkkafka.errors import DataLossError, OptionError
from sparkkafka.spark.read.data_loss import Loss, loss_error, loss_warning
from sparkkafka.spark.read.input_partitions import (
    KafkaInputPartition,
    bound_at_times,
    check_assigned,
    check_bounds,
    check_named,
    compile_pattern,
    matching_topics,
    plan_ranges,
    start_at_times,
    times_of,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def at(*offsets: int) -> OffsetBound:
    return OffsetBound(
        "specific", {TopicPartition("t", i): offset for i, offset in enumerate(offsets)}
    )


def plan(
    starting: OffsetBound,
    ending: OffsetBound,
    *available: tuple[int, int],
    bind_in_task: bool = False,
) -> tuple[list[KafkaInputPartition], list[Loss]]:
    partitions = [TopicPartition("t", i) for i in range(len(available))]
    return plan_ranges(
        partitions,
        starting,
        ending,
        {tp: available[tp.partition][0] for tp in partitions},
        {tp: available[tp.partition][1] for tp in partitions},
        bind_in_task=bind_in_task,
    )


# --- topics ----------------------------------------------------------------------------------


def test_patterns_are_searched_for_not_matched() -> None:
    topics = {"orders": False, "old-orders-2": False, "order": False, "__orders": True}
    assert matching_topics(compile_pattern("orders"), topics) == ["old-orders-2", "orders"]
    assert matching_topics(compile_pattern("^orders$"), topics) == ["orders"]
    assert matching_topics(compile_pattern("nothing"), topics) == []


@pytest.mark.parametrize(
    "pattern",
    ["(", "*", r"\p{Alpha}+", "(?<name>a)", r"\Qa.b\E", "[a-z&&[^b]]"],
)
def test_patterns_that_python_reads_otherwise_than_java(pattern: str) -> None:
    with pytest.raises(OptionError) as caught:
        compile_pattern(pattern)
    assert f"{pattern!r} is not a regular expression of Python (" in str(caught.value)
    assert "(.* matches all topics)" in str(caught.value)


@pytest.mark.parametrize("pattern", ["[a-z[0-9]]", "[^]a[b]]"])
def test_a_set_within_another(pattern: str) -> None:
    with pytest.raises(OptionError, match=r"begins another set in Java") as caught:
        compile_pattern(pattern)
    assert repr(pattern) in str(caught.value)
    assert "Write \\[ for the character" in str(caught.value)


@pytest.mark.parametrize("pattern", [r"[a\[b]", r"\[[ab]", r"[ab]\[", r"[ab][cd]", r"[\\][b]"])
def test_a_bracket_that_begins_no_set_within_another(pattern: str) -> None:
    assert compile_pattern(pattern).pattern == pattern


def test_assigned_partitions_must_exist() -> None:
    existing = {"t": (0, 1)}
    check_assigned([T1], existing)
    with pytest.raises(OptionError, match=r"do not exist: t-2, t-7 \(t has 2 partitions\)"):
        check_assigned([TopicPartition("t", i) for i in (0, 2, 7)], existing)


# --- ranges ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("starting", "ending", "available", "ranges"),
    [
        (FROM_EARLIEST, TO_LATEST, (0, 10), [(0, 10)]),
        (FROM_EARLIEST, TO_LATEST, (4, 4), []),
        (at(-2), at(-1), (3, 10), [(3, 10)]),
        (at(5), TO_LATEST, (3, 10), [(5, 10)]),
        (FROM_EARLIEST, at(7), (3, 10), [(3, 7)]),
        (at(5), at(7), (3, 10), [(5, 7)]),
        (at(3), at(10), (3, 10), [(3, 10)]),
        (at(10), TO_LATEST, (3, 10), []),
        # Nothing is wanted, so nothing can be missing.
        (at(5), at(5), (8, 10), []),
        (at(90), at(90), (8, 10), []),
    ],
)
def test_ranges(
    starting: OffsetBound,
    ending: OffsetBound,
    available: tuple[int, int],
    ranges: list[tuple[int, int]],
) -> None:
    planned, losses = plan(starting, ending, available)
    assert planned == [KafkaInputPartition("t", 0, start, end) for start, end in ranges]
    assert losses == []


@pytest.mark.parametrize(
    ("starting", "ending", "available", "ranges", "missing"),
    [
        (at(1), TO_LATEST, (3, 10), [(3, 10)], 2),
        (FROM_EARLIEST, at(12), (3, 10), [(3, 10)], 2),
        (at(1), at(12), (3, 10), [(3, 10)], 4),
        (at(0), at(2), (3, 10), [], 2),
        (at(20), at(25), (3, 10), [], 5),
        (at(12), TO_LATEST, (3, 10), [], 0),  # the user gave one end only: nobody can count
        (FROM_EARLIEST, at(1), (3, 10), [], 0),
        (at(0), at(5), (5, 5), [], 5),
    ],
)
def test_what_is_missing_is_counted_and_left_out(
    starting: OffsetBound,
    ending: OffsetBound,
    available: tuple[int, int],
    ranges: list[tuple[int, int]],
    missing: int,
) -> None:
    planned, losses = plan(starting, ending, available)
    assert planned == [KafkaInputPartition("t", 0, start, end) for start, end in ranges]
    assert [loss.missing for loss in losses] == [missing]


@given(
    st.integers(-2, 60).filter(lambda o: o != -1),
    st.integers(-1, 60),
    st.integers(0, 50),
    st.integers(0, 50),
)
def test_ranges_hold_what_is_wanted_and_available(
    start: int, end: int, first: int, size: int
) -> None:
    last = first + size
    begin = first if start == -2 else start
    stop = last if end == -1 else end
    if start >= 0 and 0 <= end < start:
        with pytest.raises(OptionError):
            plan(at(start), at(end), (first, last))
        return
    planned, losses = plan(at(start), at(end), (first, last))
    read = {offset for r in planned for offset in range(r.start, r.end)}
    expected = set(range(begin, stop))
    assert read == expected & set(range(first, last))
    if begin <= stop:
        assert sum(loss.missing for loss in losses) == len(expected - read)
    else:
        assert losses
    assert all(r.start < r.end for r in planned)


def test_order_is_by_topic_and_partition_number() -> None:
    tps = [TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 9)]
    planned, _ = plan_ranges(
        tps, FROM_EARLIEST, TO_LATEST, dict.fromkeys(tps, 0), dict.fromkeys(tps, 1)
    )
    assert [(r.topic, r.partition) for r in planned] == [("a", 9), ("a", 10), ("b", 0)]


def test_no_partitions() -> None:
    assert plan(FROM_EARLIEST, TO_LATEST) == ([], [])


# --- errors ----------------------------------------------------------------------------------


def test_start_above_end_names_partition_and_offsets() -> None:
    with pytest.raises(OptionError) as caught:
        check_bounds(at(0, 9), at(1, 5))
    assert "[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] t-1" in str(caught.value)
    assert "9 is greater than endingOffsets 5" in str(caught.value)


def test_start_and_end_must_name_the_same_partitions() -> None:
    with pytest.raises(OptionError, match="MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START") as caught:
        check_bounds(at(0, 0, 0), OffsetBound("specific", {T0: 1, TopicPartition("u", 4): 1}))
    assert "only in startingOffsets: t-1, t-2; only in endingOffsets: u-4" in str(caught.value)


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_each_partition_must_be_named(option: str) -> None:
    with pytest.raises(OptionError, match="KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED") as caught:
        check_named(option, at(0), [T0, T1])
    assert f"{option} must name all partitions" in str(caught.value)
    assert "Missing: t-1; too many: none" in str(caught.value)


def test_no_other_partition_may_be_named() -> None:
    with pytest.raises(OptionError, match="Missing: none; too many: t-1"):
        check_named("startingOffsets", at(0, 0), [T0])


def test_the_error_for_a_topic_that_is_not_read_names_the_nearest_one() -> None:
    orders = [TopicPartition("orders", 0), TopicPartition("payments", 0)]
    named = OffsetBound("specific", dict.fromkeys([TopicPartition("ordrs", 0), orders[1]], 1))
    for option in ("startingOffsets", "endingOffsets"):
        with pytest.raises(OptionError, match=r"too many: ordrs-0 \(the nearest is orders\)$"):
            check_named(option, named, orders)


# --- times -----------------------------------------------------------------------------------

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
AT_100 = OffsetBound("timestamp", timestamp_ms=100, option="startingTimestamp")
BY_PARTITION = OffsetBound("timestamps", {T0: 7, T1: 9}, option="a")


def test_times_of_partitions() -> None:
    assert times_of(AT_100, [T0, T1]) == {T0: 100, T1: 100}
    assert times_of(BY_PARTITION, [T0, T1]) == {T0: 7, T1: 9}
    assert times_of(TO_LATEST, [T0]) == {}


def test_a_start_without_a_record_is_an_error_or_reads_nothing() -> None:
    with pytest.raises(OptionError) as caught:
        start_at_times(AT_100, {T0: 5, T1: -1}, no_match_strategy="error")
    assert "No offset matched from request of topic-partition t-1 and timestamp 100" in str(
        caught.value
    )
    assert "startingOffsetsByTimestampStrategy=latest" in str(caught.value)
    start = start_at_times(AT_100, {T0: 5, T1: -1}, no_match_strategy="latest")
    ranges = [KafkaInputPartition("t", 0, 5, 9)]
    assert plan(start, TO_LATEST, (0, 9), (0, 9)) == (ranges, [])
    # The end that was given is before the end of the log: still nothing, and no loss.
    assert plan(start, at(9, 3), (0, 9), (0, 9)) == (ranges, [])


def test_an_end_without_a_record_is_the_end_of_the_log() -> None:
    end = bound_at_times(AT_100, {T0: -1, T1: 4})
    assert plan(FROM_EARLIEST, end, (0, 9), (2, 9)) == (
        [KafkaInputPartition("t", 0, 0, 9), KafkaInputPartition("t", 1, 2, 4)],
        [],
    )


def test_a_time_that_contradicts_an_offset_is_an_error() -> None:
    start = start_at_times(AT_100, {T0: 5}, no_match_strategy="error")
    with pytest.raises(OptionError, match=r"\[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET\] t-0"):
        plan(start, at(3), (0, 9))


def test_times_that_contradict_each_other() -> None:
    before = OffsetBound("timestamp", timestamp_ms=99, option="endingTimestamp")
    check_bounds(AT_100, AT_100)
    with pytest.raises(
        OptionError, match="startingTimestamp 100 is greater than endingTimestamp 99"
    ):
        check_bounds(AT_100, before)
    with pytest.raises(OptionError, match=r"UNRESOLVED.* t-1: a 9 is greater than b 8"):
        check_bounds(BY_PARTITION, OffsetBound("timestamps", {T0: 7, T1: 8}, option="b"))


def test_times_must_name_each_partition() -> None:
    with pytest.raises(
        OptionError, match=r"KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED.* a must"
    ):
        check_named("startingOffsets", BY_PARTITION, [T0])


def test_loss_error_says_what_was_wanted_what_is_there_and_what_to_do() -> None:
    _, losses = plan(at(1, 0), at(12, 5), (3, 10), (0, 9))
    error = loss_error(losses)
    assert isinstance(error, DataLossError)
    assert "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE" in str(error)
    assert "t-0: requested offsets [1, 12), available [3, 10)" in str(error)
    assert "t-1" not in str(error)
    assert "failOnDataLoss=false" in str(error)
    # Such records exist: kafka-get-offsets.sh shows a larger end than "available".
    assert "(with read_committed, beyond the start of an open transaction)" in str(error)


def test_loss_error_when_nothing_of_the_range_can_be_left() -> None:
    _, losses = plan(at(200), TO_LATEST, (3, 29))
    assert "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET" in str(loss_error(losses))
    assert loss_warning(losses) == (
        "data loss, failOnDataLoss=false: requested offsets in 1 partition do not exist and are "
        "skipped: t-0: requested offsets from 200 on, available [3, 29)"
    )
    _, losses = plan(FROM_EARLIEST, at(2), (3, 29))
    assert "t-0: requested offsets before 2, available [3, 29)" in str(loss_error(losses))


def test_warning_counts_all_and_lists_some() -> None:
    losses = [Loss("LOST", f"t-{i}", 5) for i in range(30)]
    text = loss_warning(losses)
    assert "150 requested offsets in 30 partitions" in text
    assert text.endswith(" and 20 more")
