"""The driver's side of a stream: its start, what a batch takes, what is repeated. No Spark."""

from __future__ import annotations

import contextlib
import json
import logging
import pickle
import time
import tracemalloc
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from sparkkafka.client.cluster.offsets import ListedOffset
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import (
    BrokerError,
    DataLossError,
    OptionError,
    UnknownTopicError,
)
from sparkkafka.protocol.constants import LATEST
from sparkkafka.spark.datasource import KafkaDataSource
from sparkkafka.spark.read.reader import KafkaBatchReader
from sparkkafka.spark.stream import planner
from sparkkafka.spark.stream.reader import StreamReaderSpark40, StreamReaderSpark42
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.spark.stream.stream_support import (
    QUICK,
    Tree,
    batches,
    fake,
    fill,
    flat,
    opened,
    ranges,
    reader,
    short_grace,
    stop_readers,
)
from tests.support.waiting import wait_until

__all__ = ["fake", "short_grace", "stop_readers"]  # fixtures


# --- starting --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"t": {"0": 4, "1": 0}}),
        ({"startingOffsets": "latest"}, {"t": {"0": 10, "1": 3}}),
        ({"startingOffsets": '{"t":{"0":-1,"1":-2}}'}, {"t": {"0": 10, "1": 0}}),
        ({"startingOffsets": '{"t":{"0":7,"1":99}}'}, {"t": {"0": 7, "1": 99}}),
        ({"assign": '{"t":[1]}'}, {"t": {"1": 0}}),
        ({"subscribePattern": "^t$"}, {"t": {"0": 4, "1": 0}}),
        ({"subscribePattern": "nothing"}, {}),
    ],
)
def test_initial_offsets(fake: FakeCluster, options: dict[str, str], expected: Tree) -> None:
    fake.create_topic("t", partitions=2)
    fill(fake, "t", 10, 3)
    fake.advance_log_start("t", 0, 4)
    found = reader(fake, **options).initialOffset()
    assert found == expected
    assert json.dumps(found) == json.dumps(expected)  # order too


def test_committed_offsets(fake: FakeCluster) -> None:
    fake.create_topic("t", partitions=3)
    fill(fake, "t", 10, 10, 10)
    fake.advance_log_start("t", 1, 2)
    from tests.client.support import commit_offsets, open_cluster

    with open_cluster(fake) as cluster:
        commit_offsets(cluster, "g", {TopicPartition("t", 0): 5})
    group = {"kafka__group__id": "g"}
    for fallback, rest in (("earliest", [2, 0]), ("latest", [10, 10])):
        source = reader(fake, startingOffsets=f"committed,{fallback}", **group)
        assert source.initialOffset() == {"t": {"0": 5, "1": rest[0], "2": rest[1]}}
    with pytest.raises(OptionError, match="the group g has no committed offset of t-1, t-2"):
        reader(fake, startingOffsets="committed", **group).initialOffset()
    # Batch reads know the word too.
    given = {"kafka.bootstrap.servers": fake.bootstrap_servers, "subscribe": "t", **QUICK}
    from sparkkafka.config.options import parse_read_options

    options = parse_read_options(
        {**given, "startingOffsets": "committed,earliest", "kafka.group.id": "g"}
    )
    planned = KafkaBatchReader(options).partitions()
    assert ranges(planned) == [("t", 0, 5, 10), ("t", 1, 2, 10), ("t", 2, 0, 10)]


def test_startings_that_do_not_fit(fake: FakeCluster) -> None:
    fake.create_topic("t", partitions=2)
    with pytest.raises(OptionError, match="KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"):
        reader(fake, startingOffsets='{"t":{"0":1}}').initialOffset()
    with pytest.raises(OptionError, match="No offset matched from request of topic-partition t-0"):
        reader(fake, startingTimestamp="5").initialOffset()
    late = reader(fake, startingTimestamp="5", startingOffsetsByTimestampStrategy="latest")
    assert late.initialOffset() == {"t": {"0": 0, "1": 0}}
    with pytest.raises(UnknownTopicError, match="nothere"):
        reader(fake, subscribe="nothere").initialOffset()


# --- limits ----------------------------------------------------------------------------------


def test_no_limit(fake: FakeCluster) -> None:
    fake.create_topic("t", partitions=2)
    fill(fake, "t", 10, 3)
    source = reader(fake)
    assert isinstance(source.getDefaultReadLimit(), ReadAllAvailable)
    start = source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    assert end == {"t": {"0": 10, "1": 3}} == source.reportLatestOffset()
    assert ranges(source.partitions(start, end)) == [("t", 0, 0, 10), ("t", 1, 0, 3)]
    assert source.latestOffset(end, ReadAllAvailable()) == end
    fill(fake, "t", 0, 1)
    again = source.latestOffset(end, ReadAllAvailable())
    assert ranges(source.partitions(end, again)) == [("t", 1, 3, 4)]


def test_max_offsets_is_a_hard_cap(fake: FakeCluster) -> None:
    fake.create_topic("t", partitions=5)
    fill(fake, "t", 100, 10, 1, 0, 7)
    source = reader(fake, maxOffsetsPerTrigger="20")
    assert source.getDefaultReadLimit() == ReadMaxRows(20)
    ends = batches(source, source.initialOffset())
    sums = [sum(end["t"].values()) for end in ends]
    assert sums == [20, 40, 60, 80, 100, 118]
    # A restart on a wide topic: fewer offsets than partitions, and all have their turn.
    source = reader(fake, maxOffsetsPerTrigger="1")
    ends = batches(source, {"t": {"0": 97, "1": 7, "2": 0, "3": 0, "4": 4}})
    assert [sum(end["t"].values()) for end in ends] == list(range(109, 119))
    # Trigger.Once takes all.
    assert sum(source.latestOffset(ends[0], ReadAllAvailable())["t"].values()) == 118


def test_splits_within_a_micro_batch(fake: FakeCluster) -> None:
    fake.create_topic("t", partitions=2)
    fill(fake, "t", 10, 3)
    source = reader(fake, maxRecordsPerPartition="4", minPartitions="5")
    start = source.initialOffset()
    pieces = source.partitions(start, source.latestOffset(start, ReadAllAvailable()))
    assert [piece[2:] for piece in ranges(pieces)] == [(0, 3), (3, 6), (6, 8), (8, 10), (0, 3)]


def test_min_offsets_wait_until_the_delay_is_over(fake: FakeCluster) -> None:
    fake.create_topic("t")
    fill(fake, "t", 3)
    source = reader(fake, minOffsetsPerTrigger="5", maxTriggerDelay="1500ms")
    limit = source.getDefaultReadLimit()
    assert limit == ReadMinRows(5)
    start = source.initialOffset()
    end = source.latestOffset(start, limit)
    assert end == {"t": {"0": 3}}  # the first batch is not held back, as in the JVM connector
    began_s = time.monotonic()
    fill(fake, "t", 2)
    assert source.latestOffset(end, limit) == end
    fill(fake, "t", 3)
    full = source.latestOffset(end, limit)
    assert full == {"t": {"0": 8}}
    fill(fake, "t", 1)
    late = wait_until(lambda: (end := source.latestOffset(full, limit)) != full and end)
    assert late == {"t": {"0": 9}}
    assert time.monotonic() - began_s >= 1.5


def test_min_and_max_together(fake: FakeCluster) -> None:
    fake.create_topic("t")
    fill(fake, "t", 100)
    source = reader(fake, minOffsetsPerTrigger="5", maxOffsetsPerTrigger="40", maxTriggerDelay="1h")
    limit = source.getDefaultReadLimit()
    start = source.initialOffset()
    ends = batches(source, start)
    assert ends == [{"t": {"0": 40}}, {"t": {"0": 80}}, {"t": {"0": 100}}]
    fill(fake, "t", 4)
    assert source.latestOffset(ends[-1], limit) == ends[-1]


def test_max_bytes_are_estimated_from_sizes_on_disk(fake: FakeCluster) -> None:
    fake.create_topic("t", partitions=2)
    for partition in (0, 1):
        for _ in range(10):
            fake.append("t", partition, bytes(1000))
    source = reader(fake, maxBytesPerTrigger="5000")
    assert source.getDefaultReadLimit() == ReadMaxBytes(5000)
    ends = batches(source, source.initialOffset())
    assert [sum(end["t"].values()) for end in ends] == [5, 10, 15, 20]
    # Together with a cap on offsets the smaller one holds.
    source = reader(fake, maxBytesPerTrigger="5000", maxOffsetsPerTrigger="2")
    assert sum(batches(source, source.initialOffset())[0]["t"].values()) == 2


def test_available_now_ends_where_the_log_ended(fake: FakeCluster) -> None:
    fake.create_topic("t", partitions=2)
    fill(fake, "t", 10, 3)
    source = reader(fake, maxOffsetsPerTrigger="6", minOffsetsPerTrigger="6", maxTriggerDelay="1h")
    start = source.initialOffset()
    source.prepareForTriggerAvailableNow()
    fill(fake, "t", 50, 50)
    fake.add_partitions("t", 3)
    fill(fake, "t", 0, 0, 50)
    ends = batches(source, start)
    assert ends[-1] == {"t": {"0": 10, "1": 3}}
    assert len(ends) == 3
    assert source.reportLatestOffset() == {"t": {"0": 60, "1": 53, "2": 50}}
    # The next run finds the new partition, and begins at its first offset.
    source = reader(fake)
    source.prepareForTriggerAvailableNow()
    end = batches(source, ends[-1])[-1]
    assert end == {"t": {"0": 60, "1": 53, "2": 50}}
    assert ("t", 2, 0, 50) in ranges(source.partitions(ends[-1], end))


def test_available_now_that_starts_at_latest_while_records_arrive(fake: FakeCluster) -> None:
    """Spark asks for the end of the run, then twice for its start."""
    fake.create_topic("t")
    fill(fake, "t", 10)
    source = reader(fake, startingOffsets="latest")
    source.prepareForTriggerAvailableNow()
    fill(fake, "t", 1)
    start = source.initialOffset()
    assert start == {"t": {"0": 11}}
    fill(fake, "t", 1)
    limit = source.getDefaultReadLimit()
    end = source.latestOffset(start, limit)
    assert end == start
    fill(fake, "t", 1)
    assert source.initialOffset() == start
    assert source.partitions(source.initialOffset(), end) == []
    assert source.latestOffset(end, limit) == end
    # The next run goes on there.
    source = reader(fake, startingOffsets="latest")
    source.prepareForTriggerAvailableNow()
    assert batches(source, end) == [{"t": {"0": 13}}]


# --- what Spark does with a reader -----------------------------------------------------------


def test_a_pickled_reader_takes_no_sockets_along(fake: FakeCluster) -> None:
    fake.create_topic("t")
    source = reader(fake)
    source.initialOffset()
    copy = pickle.loads(pickle.dumps(source))
    opened.append(copy)
    assert copy.options == source.options
    assert copy.initialOffset() == source.initialOffset()
    source.stop()
    source.stop()


def test_an_offset_of_another_source_is_refused(fake: FakeCluster) -> None:
    fake.create_topic("t")
    for bad in (
        [1],
        {"t": 5},
        {"t": {"x": 1}},
        {"t": {"0": "1"}},
        {"t": {"0": -1}},
        {"t": {"00": 1}},
    ):
        with pytest.raises(OptionError, match="it belongs to another source"):
            reader(fake).latestOffset(bad, ReadAllAvailable())


def test_older_sparks_have_limits_by_bookkeeping(fake: FakeCluster) -> None:
    fake.create_topic("t", partitions=2)
    fill(fake, "t", 10, 10)
    source = reader(fake, StreamReaderSpark40, maxOffsetsPerTrigger="6")
    ends = []
    start = None
    for _ in range(4):
        end = source.latestOffset()  # of a new query Spark asks this first
        start = start or source.initialOffset()
        source.partitions(start, end)
        ends.append(sum(end["t"].values()))
        start = end
    assert ends == [6, 12, 18, 20]
    assert source.latestOffset() == start
    # After a restart Spark has the last batch planned again.
    source = reader(fake, StreamReaderSpark40, maxOffsetsPerTrigger="6")
    assert source.partitions({"t": {"0": 3, "1": 3}}, {"t": {"0": 3, "1": 3}}) == []
    assert sum(source.latestOffset()["t"].values()) == 12


@pytest.mark.parametrize("kind", [StreamReaderSpark42, StreamReaderSpark40])
def test_a_first_batch_that_is_repeated_loses_nothing(fake: FakeCluster, kind: Any) -> None:
    """Spark asks for the start of a first batch again, after a crash in it."""
    fake.create_topic("t", partitions=2)
    fill(fake, "t", 10, 10)
    given = {"startingOffsets": '{"t":{"0":-1,"1":-2}}'}

    def end_of(source: Any, start: Tree) -> Tree:
        if kind is StreamReaderSpark42:
            return source.latestOffset(start, ReadAllAvailable())
        return source.latestOffset()

    first = reader(fake, kind, **given)
    start = first.initialOffset()
    assert start == {"t": {"0": 10, "1": 0}}
    fill(fake, "t", 5, 5)  # between the two questions
    end = end_of(first, start)
    assert end == {"t": {"0": 10, "1": 15}}
    second = reader(fake, kind, **given)
    again = second.initialOffset()
    assert again == {"t": {"0": 15, "1": 0}}
    assert ranges(second.partitions(again, end)) == [("t", 1, 0, 15)]
    after = end_of(second, end)
    assert ranges(second.partitions(end, after)) == [("t", 0, 10, 15)]
    # The rule is for the first batch only.
    fake.truncate("t", 0, 0)
    with pytest.raises(DataLossError):
        second.partitions(after, end_of(second, after))


def test_a_first_batch_that_is_repeated_when_there_are_new_partitions(fake: FakeCluster) -> None:
    fake.create_topic("t")
    fill(fake, "t", 10)
    end = {"t": {"0": 4}}
    fake.add_partitions("t", 2)
    fill(fake, "t", 0, 3)
    source = reader(fake)
    start = source.initialOffset()
    assert start == {"t": {"0": 0, "1": 0}}
    assert ranges(source.partitions(start, end)) == [("t", 0, 0, 4)]
    after = source.latestOffset(end, ReadAllAvailable())
    assert ranges(source.partitions(end, after)) == [("t", 0, 4, 10), ("t", 1, 0, 3)]


def test_offsets_as_json_must_name_partitions_that_are_added_during_the_first_batch(
    fake: FakeCluster,
) -> None:
    """The checkpoint does not have the start: the option is looked up again."""
    fake.create_topic("t")
    fill(fake, "t", 10)
    end = {"t": {"0": 8}}
    fake.add_partitions("t", 2)
    fill(fake, "t", 0, 3)
    with pytest.raises(OptionError, match=r"startingOffsets must name .* Missing: t-1; too many"):
        reader(fake, startingOffsets='{"t":{"0":4}}').initialOffset()
    source = reader(fake, startingOffsets='{"t":{"0":4,"1":-2}}')
    assert ranges(source.partitions(source.initialOffset(), end)) == [("t", 0, 4, 8)]
    after = source.latestOffset(end, ReadAllAvailable())
    assert ranges(source.partitions(end, after)) == [("t", 0, 8, 10), ("t", 1, 0, 3)]


def test_a_first_batch_from_a_group_that_moves(fake: FakeCluster) -> None:
    from tests.client.support import commit_offsets, open_cluster

    fake.create_topic("t")
    fill(fake, "t", 20)
    given = {"startingOffsets": "committed", "kafka__group__id": "g"}

    def commit(offset: int) -> None:
        with open_cluster(fake) as cluster:
            commit_offsets(cluster, "g", {TopicPartition("t", 0): offset})

    commit(2)
    source = reader(fake, **given)
    start = source.initialOffset()
    commit(9)
    assert source.initialOffset() == start == {"t": {"0": 2}}
    end = source.latestOffset(start, ReadAllAvailable())
    assert end == start  # the first batch writes it down
    for moved in (9, 1):
        commit(moved)
        source = reader(fake, **given)
        assert source.partitions(source.initialOffset(), end) == []
        after = source.latestOffset(end, ReadAllAvailable())
        assert ranges(source.partitions(end, after)) == [("t", 0, 2, 20)]


def test_available_now_when_the_log_gets_shorter(fake: FakeCluster) -> None:
    fake.create_topic("t")
    for _ in range(10):
        fill(fake, "t", 10)
    source = reader(fake, maxOffsetsPerTrigger="40", failOnDataLoss="false")
    start = source.initialOffset()
    source.prepareForTriggerAvailableNow()
    limit = source.getDefaultReadLimit()
    end = source.latestOffset(start, limit)
    fake.truncate("t", 0, 50)
    assert batches(source, end) == [{"t": {"0": 50}}]


@pytest.mark.slow
def test_a_topic_that_is_deleted_while_its_end_is_looked_up(fake: FakeCluster) -> None:
    for topic in "tu":
        fake.create_topic(topic)
        fill(fake, topic, 5)
    sources = [reader(fake, subscribe="t,u", failOnDataLoss=word) for word in ("true", "false")]
    start = sources[0].initialOffset()
    sources[1].initialOffset()
    for source in sources:
        partitions = source._planner._subscribed_partitions

        def look(*args: Any, partitions: Any = partitions) -> Any:
            found = partitions(*args)
            with contextlib.suppress(KeyError):
                fake.delete_topic("u")
            return found

        source._planner._subscribed_partitions = look
        end = source.latestOffset(start, ReadAllAvailable())
        assert end == {"t": {"0": 5}}
        fake.create_topic("u")
        fill(fake, "u", 5)


def test_ends_of_logs_that_cannot_be(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.create_topic("t")
    source = reader(fake)
    start = source.initialOffset()
    monkeypatch.setattr(
        "sparkkafka.client.cluster.offsets.ToLeader.call_all",
        lambda _, questions, *more: {
            question: ListedOffset(-1 if question.timestamp_ms == LATEST else 0, -1, -1)
            for question in questions
        },
    )
    with pytest.raises(BrokerError, match="its log ends at offset -1"):
        source.latestOffset(start, ReadAllAvailable())


def test_first_offsets_come_with_the_ends(fake: FakeCluster) -> None:
    """A batch of few partitions is planned without another request; the batch after asks anew."""
    fake.create_topic("t", partitions=planner.MAX_PARTITIONS_WITH_EARLIEST)
    source = reader(fake)
    start = source.initialOffset()
    source.latestOffset(start, ReadAllAvailable())  # the first lookup asks for more

    def requests_of_a_batch() -> list[str]:
        nonlocal start
        fill(fake, "t", 3)
        fake.clear_requests()
        end = source.latestOffset(start, ReadAllAvailable())
        assert len(flat(source.partitions(start, end))) == 1
        start = end
        return [request.api for request in fake.requests]

    for _ in range(2):
        # Two brokers, the first and the end offsets of each.
        assert requests_of_a_batch() == ["Metadata"] + 4 * ["ListOffsets"]
    fill(fake, "t", 3)
    end = source.latestOffset(start, ReadAllAvailable())
    fake.advance_log_start("t", 0, 8)
    source.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLossError, match="first is 8"):
        source.partitions(start, end)


def test_first_offsets_of_many_partitions_are_not_asked_for_in_vain(fake: FakeCluster) -> None:
    fake.create_topic("t", partitions=planner.MAX_PARTITIONS_WITH_EARLIEST + 1)
    source = reader(fake)
    start = source.initialOffset()
    fill(fake, "t", 3)
    fake.clear_requests()
    end = source.latestOffset(start, ReadAllAvailable())
    assert [request.api for request in fake.requests].count("ListOffsets") == 2
    assert len(flat(source.partitions(start, end))) == 1
    assert [request.api for request in fake.requests].count("ListOffsets") == 3


def test_a_line_for_each_batch(fake: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sparkkafka")
    fake.create_topic("t", partitions=2)
    for _ in range(10):
        fake.append("t", 0, bytes(1_000_000))
    source = reader(fake, maxOffsetsPerTrigger="6")
    start = source.initialOffset()
    source.partitions(start, source.latestOffset(start, source.getDefaultReadLimit()))
    source.reportLatestOffset()
    source.commit(start)
    (line,) = [m for m in caplog.messages if m.startswith("batch of")]
    assert line.startswith("batch of 6 offsets in 1 partitions, about 6.000 MB, ")
    assert line.endswith("lag 4 offsets")


# --- size ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_thousand_partitions(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning is a few requests whatever the number, and the driver's memory small."""
    topics = [f"many{number:03}" for number in range(20)]
    for topic in topics:
        fake.create_topic(topic, partitions=100)
        for partition in range(100):
            fake.append(topic, partition, b"?", end_offset=1000)
    monkeypatch.setattr(planner, "SIZES_LIMIT_MS", 60_000)  # tracemalloc makes it slow
    source = reader(
        fake, subscribePattern="^many", maxOffsetsPerTrigger="500000",
        kafka__request__timeout__ms="30000", kafka__default__api__timeout__ms="60000",
    )  # fmt: skip
    start = source.initialOffset()
    fake.clear_requests()
    tracemalloc.start()
    end = source.latestOffset(start, source.getDefaultReadLimit())
    planned = source.partitions(start, end)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(flat(planned)) == 2_000
    assert len(planned) < 200
    assert sum(p.end - p.start for p in flat(planned)) == 500_000
    names = [request.api for request in fake.requests]
    assert names.count("Metadata") == 1
    # Two brokers: latest and earliest, and earliest again for the mean sizes of offsets.
    assert names.count("ListOffsets") == 6
    assert names.count("DescribeLogDirs") == 2
    assert peak_bytes < 20_000_000


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "6"}])
def test_limits_that_leave_records_unread_are_a_warning_before_spark_42(
    limit: dict[str, str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkkafka.spark.datasource.find_spec", lambda name: None)
    source = KafkaDataSource({"kafka.bootstrap.servers": "h:1", "subscribe": "t", **limit})
    assert isinstance(source.streamReader(source.schema()), StreamReaderSpark40)
    assert ("availableNow and once run one micro-batch" in caplog.text) == bool(limit)
