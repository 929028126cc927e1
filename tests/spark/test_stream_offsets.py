"""The driver's side of a stream against brokers that misbehave. No Spark session."""

from __future__ import annotations

import json
import logging
import pickle
import threading
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from sparkkafka.errors import DataLossError, KafkaTimeoutError, OptionError, UnknownTopicError
from sparkkafka.options import parse_stream_options
from sparkkafka.spark import stream_offsets
from sparkkafka.spark.reader import KafkaBatchReader, KafkaInputPartition
from sparkkafka.spark.schema import default_columns
from sparkkafka.spark.stream_admission import LimitedStreamReader
from sparkkafka.spark.stream_reader import BookkeepingStreamReader
from sparkkafka.testing.fake_cluster import FakeCluster

QUICK = {
    "kafka.request.timeout.ms": "2000",
    "kafka.default.api.timeout.ms": "3000",
    "kafka.retry.backoff.ms": "5",
    "kafka.retry.backoff.max.ms": "40",
    "kafka.reconnect.backoff.ms": "5",
    "kafka.reconnect.backoff.max.ms": "40",
    "fetchOffset.retryIntervalMs": "20",
}
Tree = dict[str, dict[str, int]]


_opened: list[Any] = []


@pytest.fixture(autouse=True)
def stop_readers() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().stop()


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a topic that is not there is looked for."""
    monkeypatch.setattr("sparkkafka.client.cluster.UNKNOWN_TOPIC_GRACE_MS", 100)
    monkeypatch.setattr("sparkkafka.client.cluster.KNOWN_TOPIC_GRACE_MS", 300)


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with FakeCluster(brokers=2) as cluster:
        yield cluster


def fill(cluster: FakeCluster, topic: str, *counts: int) -> None:
    """Let the partitions 0, 1, … be so many offsets longer."""
    for partition, count in enumerate(counts):
        if count:
            end = cluster.log(topic, partition).end_offset + count
            cluster.append(topic, partition, b"?", end_offset=end)


def reader(cluster: FakeCluster, kind: Any = LimitedStreamReader, **options: str) -> Any:
    chosen = {"subscribe", "subscribePattern", "assign"} & set(options)
    given = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "startingOffsets": "earliest",
        **QUICK,
        **({} if chosen else {"subscribe": "t"}),
        **{name.replace("__", "."): value for name, value in options.items()},
    }
    _opened.append(kind(parse_stream_options(given), default_columns(include_headers=False)))
    return _opened[-1]


def ranges(partitions: list[KafkaInputPartition]) -> list[tuple[str, int, int, int]]:
    return [(p.topic, p.partition, p.start, p.end) for p in partitions]


def batches(source: Any, start: Tree, limit: Any = None, most: int = 100) -> list[Tree]:
    """The ends of the batches until there is no more to read."""
    limit = limit or source.getDefaultReadLimit()
    ends: list[Tree] = []
    for _ in range(most):
        end = source.latestOffset(start, limit)
        if end == start:
            return ends
        source.partitions(start, end)
        ends.append(end)
        start = end
    raise AssertionError(f"no end after {most} batches: {ends[-3:]}")


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
    from sparkkafka.client.groups import commit_offsets
    from sparkkafka.client.metadata import TopicPartition
    from tests.client.support import open_cluster

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
    from sparkkafka.options import parse_read_options

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
    began = time.monotonic()
    fill(fake, "t", 2)
    assert source.latestOffset(end, limit) == end
    fill(fake, "t", 3)
    full = source.latestOffset(end, limit)
    assert full == {"t": {"0": 8}}
    fill(fake, "t", 1)
    while (late := source.latestOffset(full, limit)) == full:
        assert time.monotonic() - began < 20
        time.sleep(0.05)
    assert late == {"t": {"0": 9}}
    assert time.monotonic() - began >= 1.5


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


# --- topics and partitions that come and go --------------------------------------------------


def test_new_partitions_and_topics_start_at_earliest(fake: FakeCluster) -> None:
    fake.create_topic("a1")
    fill(fake, "a1", 5)
    source = reader(fake, subscribePattern="^a", startingOffsets="latest")
    start = source.initialOffset()
    assert start == {"a1": {"0": 5}}
    fake.create_topic("a2", partitions=2)
    fill(fake, "a2", 4, 9)
    fake.advance_log_start("a2", 1, 3)
    fake.add_partitions("a1", 2)
    fill(fake, "a1", 0, 2)
    end = source.latestOffset(start, ReadAllAvailable())
    planned = ranges(source.partitions(start, end))
    assert planned == [("a1", 1, 0, 2), ("a2", 0, 0, 4), ("a2", 1, 3, 9)]


def test_an_added_partition_that_lost_records(fake: FakeCluster) -> None:
    fake.create_topic("t")
    source = reader(fake)
    start = source.initialOffset()
    fake.add_partitions("t", 2)
    fill(fake, "t", 0, 9)
    fake.advance_log_start("t", 1, 4)
    end = source.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLossError, match="Added partition t-1 starts from 4 instead of 0"):
        source.partitions(start, end)
    lossy = reader(fake, failOnDataLoss="false")
    assert ranges(lossy.partitions(start, end)) == [("t", 1, 4, 9)]


@pytest.mark.parametrize("how", ["subscribe", "subscribePattern", "assign"])
def test_a_topic_that_is_deleted(
    fake: FakeCluster, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    value = {"subscribe": "t,u", "subscribePattern": "^[tu]$", "assign": '{"t":[0],"u":[0]}'}[how]
    for topic in "tu":
        fake.create_topic(topic)
        fill(fake, topic, 5)
    sources = [reader(fake, **{how: value}, failOnDataLoss=word) for word in ("true", "false")]
    start = sources[0].initialOffset()
    assert sources[1].initialOffset() == start == {"t": {"0": 0}, "u": {"0": 0}}
    fake.delete_topic("u")
    for source in sources:
        end = source.latestOffset(start, ReadAllAvailable())
        assert end == {"t": {"0": 5}}
        if source is sources[0]:
            with pytest.raises(DataLossError, match="Partitions u-0 have been deleted"):
                source.partitions(start, end)
        else:
            assert ranges(source.partitions(start, end)) == [("t", 0, 0, 5)]
            assert "Partitions u-0 have been deleted" in caplog.text
    # It comes back: a new topic, read from its first offset.
    fake.create_topic("u")
    fill(fake, "u", 2)
    again = sources[1].latestOffset(end, ReadAllAvailable())
    assert ranges(sources[1].partitions(end, again)) == [("u", 0, 0, 2)]
    # A restart whose checkpoint names a topic that is gone.
    fake.delete_topic("u")
    source = reader(fake, **{how: value}, failOnDataLoss="false")
    assert source.latestOffset(again, ReadAllAvailable()) == {"t": {"0": 5}}


@pytest.mark.parametrize("how", ["subscribe", "assign"])
def test_a_restart_when_a_topic_was_deleted_meanwhile(fake: FakeCluster, how: str) -> None:
    value = {"subscribe": "t,u", "assign": '{"t":[0],"u":[0]}'}[how]
    fake.create_topic("t")
    fill(fake, "t", 5)
    strict, lossy = (reader(fake, **{how: value}, failOnDataLoss=w) for w in ("true", "false"))
    both = {"t": {"0": 3}, "u": {"0": 3}}
    for source in (strict, lossy):
        source.prepareForTriggerAvailableNow()
        end = source.latestOffset(both, ReadAllAvailable())
        assert end == {"t": {"0": 5}}
    with pytest.raises(DataLossError, match="Partitions u-0 have been deleted"):
        strict.partitions(both, end)
    assert ranges(lossy.partitions(both, end)) == [("t", 0, 3, 5)]
    fill(fake, "t", 2)
    assert lossy.latestOffset(end, ReadAllAvailable()) == end

    # The checkpoint of a run that went on without the topic.
    strict, lossy = (reader(fake, **{how: value}, failOnDataLoss=w) for w in ("true", "false"))
    assert lossy.latestOffset(end, ReadAllAvailable()) == {"t": {"0": 7}}
    with pytest.raises(UnknownTopicError, match="Metadata of topic u: the topic does not exist"):
        strict.latestOffset(end, ReadAllAvailable())
    # A new query has no checkpoint: its topics must exist.
    for source in (strict, lossy):
        source.prepareForTriggerAvailableNow()
        with pytest.raises(UnknownTopicError, match="Metadata of topic u: the topic does not"):
            source.initialOffset()


def test_a_topic_of_the_checkpoint_is_given_more_time(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that were just started know of no topic for a moment."""
    monkeypatch.setattr("sparkkafka.client.cluster.KNOWN_TOPIC_GRACE_MS", 2_000)
    threading.Timer(0.5, fake.create_topic, ["t"]).start()
    assert reader(fake, subscribe="t").latestOffset({"t": {"0": 0}}, ReadAllAvailable()) == {
        "t": {"0": 0}
    }


def test_a_planned_batch_whose_topic_is_gone(fake: FakeCluster) -> None:
    for topic in "tu":
        fake.create_topic(topic)
        fill(fake, topic, 5)
    start, end = {"t": {"0": 1}, "u": {"0": 2}}, {"t": {"0": 5}, "u": {"0": 5}}
    fake.delete_topic("u")
    with pytest.raises(DataLossError, match=r"offset \[2, 5\) for topic partition u-0: the part"):
        reader(fake, subscribe="t,u").partitions(start, end)
    lossy = reader(fake, subscribe="t,u", failOnDataLoss="false")
    assert ranges(lossy.partitions(start, end)) == [("t", 0, 1, 5)]


def test_a_topic_that_is_deleted_while_a_batch_is_planned(fake: FakeCluster) -> None:
    for topic in "tu":
        fake.create_topic(topic)
        fill(fake, topic, 5)
    source = reader(fake, subscribe="t,u", failOnDataLoss="false")
    start = source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    fake.delete_topic("u")
    assert ranges(source.partitions(start, end)) == [("t", 0, 0, 5)]


@pytest.mark.parametrize("new_length", [3, 8, 20])
def test_a_topic_made_again_while_the_query_runs(
    fake: FakeCluster, new_length: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Shorter, as long, or longer than it was: only the topic's id tells."""
    fake.create_topic("t")
    fill(fake, "t", 8)
    strict, lossy = reader(fake), reader(fake, failOnDataLoss="false", maxOffsetsPerTrigger="7")
    start = {"t": {"0": 8}}
    for source in (strict, lossy):
        assert source.latestOffset(start, source.getDefaultReadLimit()) == start
    fake.recreate_topic("t")
    fill(fake, "t", new_length)
    with pytest.raises(DataLossError, match="Topic t was deleted and made again while the query"):
        strict.latestOffset(start, ReadAllAvailable())
    limit = lossy.getDefaultReadLimit()
    end = lossy.latestOffset(start, limit)
    assert caplog.text.count("was deleted and made again") == 1
    read: list[tuple[int, int]] = []
    for _ in range(5):
        if end != start:
            read += [piece[2:] for piece in ranges(lossy.partitions(start, end))]
        start = end
        end = lossy.latestOffset(start, limit)
    if new_length != 8:
        offsets = [at for first, last in read for at in range(first, last)]
        assert offsets == list(range(new_length))
    assert end == {"t": {"0": new_length}}
    assert caplog.text.count("was deleted and made again") == 1


def test_a_broker_that_has_not_heard_of_the_new_topic(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake.create_topic("t")
    fill(fake, "t", 3)
    source = reader(fake, failOnDataLoss="false")
    start = source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    cluster = source._offsets._cluster
    old_id = cluster.topic_id("t")
    fake.recreate_topic("t")
    fill(fake, "t", 5)
    after = source.latestOffset(end, ReadAllAvailable())
    assert ranges(source.partitions(end, after)) == [("t", 0, 0, 5)]
    new_id = cluster.topic_id("t")
    monkeypatch.setattr(cluster, "topic_id", lambda _: old_id)
    fill(fake, "t", 1)
    later = source.latestOffset(after, ReadAllAvailable())
    (planned,) = source.partitions(after, later)
    assert (planned.start, planned.end, planned.topic_id) == (5, 6, new_id)
    assert caplog.text.count("was deleted and made again") == 1


def test_a_topic_made_again_between_two_runs_is_noticed_by_its_offsets(fake: FakeCluster) -> None:
    fake.create_topic("t")
    fill(fake, "t", 3)
    start = {"t": {"0": 8}}
    source = reader(fake)
    end = source.latestOffset(start, ReadAllAvailable())
    assert end == {"t": {"0": 3}}
    with pytest.raises(DataLossError, match="Partition t-0 offset was changed from 8 to 3"):
        source.partitions(start, end)
    assert reader(fake, failOnDataLoss="false").partitions(start, end) == []


def test_records_that_retention_deleted(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake.create_topic("t", partitions=2)
    fill(fake, "t", 10, 10)
    for partition in (0, 1):
        fake.advance_log_start("t", partition, 6)
    start, end = {"t": {"0": 2, "1": 3}}, {"t": {"0": 10, "1": 10}}
    with pytest.raises(DataLossError, match=r"offset \[2, 10\) for topic partition t-0: avail"):
        reader(fake).partitions(start, end)
    lossy = reader(fake, failOnDataLoss="false")
    assert ranges(lossy.partitions(start, end)) == [("t", 0, 6, 10), ("t", 1, 6, 10)]
    assert "2 findings, at least 7 offsets skipped" in caplog.text
    assert caplog.text.count("data loss") == 1


def test_a_leader_that_knows_less_for_a_moment(fake: FakeCluster) -> None:
    """KAFKA-7703: the end of the log seems to move back."""
    fake.create_topic("t")
    fill(fake, "t", 8)
    source = reader(fake, fetchOffset__numRetries="20")
    start = {"t": {"0": 8}}
    fake.truncate("t", 0, 0)
    threading.Timer(0.1, fill, (fake, "t", 9)).start()
    assert source.latestOffset(start, ReadAllAvailable()) == {"t": {"0": 9}}


# --- brokers that are away -------------------------------------------------------------------


def test_a_cluster_that_is_away_only_delays_a_batch(fake: FakeCluster) -> None:
    fake.create_topic("t", partitions=4)
    source = reader(fake)
    start = source.initialOffset()
    for broker in fake.broker_ids:
        fake.broker_down(broker)
    threading.Timer(0.5, lambda: [fake.broker_up(broker) for broker in (0, 1)]).start()
    assert source.latestOffset(start, ReadAllAvailable()) == start


def test_a_cluster_that_stays_away_is_an_error_with_all_attempts(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fake.create_topic("t")
    source = reader(fake, fetchOffset__numRetries="2", kafka__default__api__timeout__ms="300")
    start = source.initialOffset()
    for broker in fake.broker_ids:
        fake.broker_down(broker)
    began = time.monotonic()
    with pytest.raises(KafkaTimeoutError, match="can be reached") as caught:
        source.latestOffset(start, ReadAllAvailable())
    assert "2 times (fetchOffset.numRetries)" in caught.value.__notes__[0]
    assert "looking up the latest offsets: attempt 1 of 2 failed" in caplog.text
    assert time.monotonic() - began < 10
    # The same process goes on once it is there again.
    for broker in fake.broker_ids:
        fake.broker_up(broker)
    assert source.latestOffset(start, ReadAllAvailable()) == start


def test_a_wrong_address_is_not_tried_again_and_again(fake: FakeCluster) -> None:
    fake.create_topic("t")
    for broker in fake.broker_ids:
        fake.broker_down(broker)
    source = reader(fake, kafka__default__api__timeout__ms="300")
    with pytest.raises(KafkaTimeoutError) as caught:
        source.initialOffset()
    assert not hasattr(caught.value, "__notes__")


# --- what Spark does with a reader -----------------------------------------------------------


def test_a_pickled_reader_takes_no_sockets_along(fake: FakeCluster) -> None:
    fake.create_topic("t")
    source = reader(fake)
    source.initialOffset()
    copy = pickle.loads(pickle.dumps(source))
    _opened.append(copy)
    assert copy.options == source.options
    assert copy.initialOffset() == source.initialOffset()
    source.stop()
    source.stop()


def test_an_offset_of_another_source_is_refused(fake: FakeCluster) -> None:
    fake.create_topic("t")
    for bad in ([1], {"t": 5}, {"t": {"x": 1}}, {"t": {"0": "1"}}, {"t": {"0": -1}}):
        with pytest.raises(OptionError, match="it belongs to another source"):
            reader(fake).latestOffset(bad, ReadAllAvailable())


def test_older_sparks_have_limits_by_bookkeeping(fake: FakeCluster) -> None:
    fake.create_topic("t", partitions=2)
    fill(fake, "t", 10, 10)
    source = reader(fake, BookkeepingStreamReader, maxOffsetsPerTrigger="6")
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
    source = reader(fake, BookkeepingStreamReader, maxOffsetsPerTrigger="6")
    assert source.partitions({"t": {"0": 3, "1": 3}}, {"t": {"0": 3, "1": 3}}) == []
    assert sum(source.latestOffset()["t"].values()) == 12


@pytest.mark.parametrize("kind", [LimitedStreamReader, BookkeepingStreamReader])
def test_a_first_batch_that_is_repeated_loses_nothing(fake: FakeCluster, kind: Any) -> None:
    """Spark asks for the start of a first batch again, after a crash in it."""
    fake.create_topic("t", partitions=2)
    fill(fake, "t", 10, 10)
    given = {"startingOffsets": '{"t":{"0":-1,"1":-2}}'}

    def end_of(source: Any, start: Tree) -> Tree:
        if kind is LimitedStreamReader:
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


def test_ten_thousand_partitions(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning is a few requests whatever the number, and the driver's memory small."""
    topics = [f"many{number:03}" for number in range(100)]
    for topic in topics:
        fake.create_topic(topic, partitions=100)
        for partition in range(100):
            fake.append(topic, partition, b"?", end_offset=1000)
    assert stream_offsets.SIZES_MAX_AGE_S > 0
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
    assert len(planned) == 10_000
    assert sum(p.end - p.start for p in planned) == 500_000
    names = [request.api for request in fake.requests]
    assert names.count("Metadata") == 1
    assert names.count("ListOffsets") == 4  # two brokers, latest and earliest
    assert peak_bytes < 100_000_000
