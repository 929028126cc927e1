"""Streams while topics, partitions and brokers come and go. No Spark session."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
)

from sparkkafka.client import Producer
from sparkkafka.errors import (
    BrokerError,
    DataLossError,
    ErrorCode,
    KafkaConnectionError,
    KafkaTimeoutError,
    UnknownTopicError,
)
from sparkkafka.spark.stream import planner
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import ErrorResponse, RecordedRequest
from tests.client.support import settings
from tests.spark.stream.stream_support import (
    fake,
    fill,
    ranges,
    reader,
    short_grace,
    stop_readers,
)
from tests.support.topics import delete_during_lookups

__all__ = ["fake", "short_grace", "stop_readers"]  # fixtures


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


def test_all_topics_of_a_pattern_are_deleted(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint then ends at {}, so that a topic that comes back is read from its start."""
    fake.create_topic("t")
    fill(fake, "t", 5)
    start = {"t": {"0": 5}}
    strict, lossy = (
        reader(fake, subscribePattern="^t", failOnDataLoss=w) for w in ("true", "false")
    )
    fake.delete_topic("t")
    for source in (strict, lossy):
        assert source.latestOffset(start, ReadAllAvailable()) == {}
    with pytest.raises(DataLossError, match="Partitions t-0 have been deleted"):
        strict.partitions(start, {})
    assert list(lossy.partitions(start, {})) == []
    assert "Partitions t-0 have been deleted" in caplog.text
    assert lossy.latestOffset({}, ReadAllAvailable()) == {}
    fake.create_topic("t")
    fill(fake, "t", 3)
    end = lossy.latestOffset({}, ReadAllAvailable())
    assert ranges(lossy.partitions({}, end)) == [("t", 0, 0, 3)]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_of_a_pattern_that_the_user_may_no_longer_see(fake: FakeCluster, fail: str) -> None:
    """Brokers leave it out of the list of all topics, and refuse it by name. Its records are not
    lost, so the query does not drop its offsets."""
    fake.create_topic("t")
    source = reader(fake, subscribePattern="^[tu]$", failOnDataLoss=fail)

    def refuse(request: RecordedRequest) -> ErrorResponse | None:
        denied = [row.name for row in request.message.topics or ()] == ["u"]
        return ErrorResponse(int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)) if denied else None

    fake.fault(refuse, api="Metadata", times=None)
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED from Metadata of topic u"):
        source.latestOffset({"t": {"0": 0}, "u": {"0": 5}}, ReadAllAvailable())


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


@pytest.mark.parametrize(
    ("how", "value"),
    [
        ("subscribePattern", "^[tuv]$"),
        ("subscribe", "t,u,v"),
        ("assign", '{"t":[0],"u":[0],"v":[0]}'),
    ],
)
def test_topics_that_are_deleted_in_turn_during_a_lookup(how: str, value: str) -> None:
    with FakeCluster(brokers=1) as fake:
        for topic in "tuv":
            fake.create_topic(topic)
            fill(fake, topic, 5)
        lossy = reader(fake, **{how: value}, failOnDataLoss="false")
        start = lossy.initialOffset()
        delete_during_lookups(fake, "u", "v")
        end = lossy.latestOffset(start, ReadAllAvailable())
        assert end == {"t": {"0": 5}}
        assert ranges(lossy.partitions(start, end)) == [("t", 0, 0, 5)]
        strict = reader(fake, **{how: value})
        end = strict.latestOffset(start, ReadAllAvailable())
        with pytest.raises(DataLossError, match="Partitions u-0, v-0 have been deleted"):
            strict.partitions(start, end)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_topics_of_a_pattern_that_are_deleted_while_a_query_starts(fail: str) -> None:
    """A query without offsets has lost nothing: the JVM connector lists the topics again too."""
    with FakeCluster(brokers=1) as fake:
        for topic in "tuv":
            fake.create_topic(topic)
            fill(fake, topic, 5)
        source = reader(fake, subscribePattern="^[tuv]$", failOnDataLoss=fail)
        delete_during_lookups(fake, "u", "v")
        assert source.initialOffset() == {"t": {"0": 0}}
        source.prepareForTriggerAvailableNow()
        assert source.latestOffset({"t": {"0": 0}}, ReadAllAvailable()) == {"t": {"0": 5}}


def test_topics_of_a_pattern_that_are_deleted_while_available_now_starts() -> None:
    with FakeCluster(brokers=1) as fake:
        for topic in "tuv":
            fake.create_topic(topic)
            fill(fake, topic, 5)
        source = reader(fake, subscribePattern="^[tuv]$", failOnDataLoss="false")
        start = source.initialOffset()
        delete_during_lookups(fake, "u", "v")
        source.prepareForTriggerAvailableNow()
        fill(fake, "t", 3)
        assert source.latestOffset(start, ReadAllAvailable()) == {"t": {"0": 5}}


def test_a_subscribed_topic_that_is_deleted_while_a_query_starts() -> None:
    with FakeCluster(brokers=1) as fake:
        for topic in "tu":
            fake.create_topic(topic)
        source = reader(fake, subscribe="t,u", failOnDataLoss="false")
        delete_during_lookups(fake, "u")
        with pytest.raises(
            UnknownTopicError, match="Metadata of topic u: the topic does not exist"
        ):
            source.initialOffset()


def test_more_topics_are_deleted_than_there_are_attempts() -> None:
    with FakeCluster(brokers=1) as fake:
        for topic in "tuv":
            fake.create_topic(topic)
        options = {"subscribePattern": "^[tuv]$", "fetchOffset__numRetries": "2"}
        source = reader(fake, **options, failOnDataLoss="false")
        delete_during_lookups(fake, "u", "v")
        with pytest.raises(UnknownTopicError, match="Metadata of v-0") as caught:
            source.initialOffset()
        assert "failed 2 times (fetchOffset.numRetries)" in caught.value.__notes__[0]


def test_a_topic_of_the_checkpoint_is_given_more_time(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that were just started know of no topic for a moment."""
    monkeypatch.setattr("sparkkafka.client.cluster.cluster.KNOWN_TOPIC_GRACE_MS", 2_000)
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


def test_a_topic_that_is_deleted_while_a_batch_is_planned(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few partitions nothing is asked then: their tasks find out."""
    monkeypatch.setattr(planner, "MAX_PARTITIONS_WITH_EARLIEST", 0)
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
    with pytest.raises(DataLossError, match="Topic t was deleted and recreated while the query"):
        strict.latestOffset(start, ReadAllAvailable())
    limit = lossy.getDefaultReadLimit()
    end = lossy.latestOffset(start, limit)
    assert end == {"t": {"0": 0}}  # what the checkpoint remembers is of the new topic from here on
    # A kill before that batch is done.
    lossy = reader(fake, failOnDataLoss="false", maxOffsetsPerTrigger="7")
    assert lossy.partitions(start, end) == []
    start, end = end, lossy.latestOffset(end, limit)
    assert caplog.text.count("was deleted and recreated while") == 1
    read: list[tuple[int, int]] = []
    for _ in range(5):
        if end != start:
            read += [piece[2:] for piece in ranges(lossy.partitions(start, end))]
        start = end
        end = lossy.latestOffset(start, limit)
    offsets = [at for first, last in read for at in range(first, last)]
    assert offsets == list(range(new_length))
    assert end == {"t": {"0": new_length}}
    assert caplog.text.count("was deleted and recreated while") == 1


def test_a_broker_that_has_not_heard_of_the_new_topic(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake.create_topic("t")
    fill(fake, "t", 3)
    source = reader(fake, failOnDataLoss="false")
    start = source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    cluster = source._planner.cluster
    old_id = cluster.topic_id("t")
    fake.recreate_topic("t")
    fill(fake, "t", 5)
    after = source.latestOffset(end, ReadAllAvailable())
    assert after == {"t": {"0": 0}}
    assert source.partitions(end, after) == []
    end, after = after, source.latestOffset(after, ReadAllAvailable())
    assert ranges(source.partitions(end, after)) == [("t", 0, 0, 5)]
    new_id = cluster.topic_id("t")
    monkeypatch.setattr(cluster, "topic_id", lambda _: old_id)
    fill(fake, "t", 1)
    later = source.latestOffset(after, ReadAllAvailable())
    (planned,) = source.partitions(after, later)
    assert (planned.start, planned.end, planned.topic_id) == (5, 6, new_id)
    assert caplog.text.count("was deleted and recreated") == 1


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


@pytest.mark.parametrize("lossy", ["true", "false"])
def test_a_query_that_is_read_committed_since_its_restart_waits_for_an_open_transaction(
    fake: FakeCluster, lossy: str, caplog: pytest.LogCaptureFixture
) -> None:
    fake.create_topic("t")
    start, committed = {"t": {"0": 5}}, {"kafka__isolation__level": "read_committed"}
    with Producer(settings(fake, transactional_id="x")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(5):
            producer.send("t", b"%d" % number, partition=0)
        producer.flush()
        source = reader(fake, failOnDataLoss=lossy, **committed)
        end = source.latestOffset(start, ReadAllAvailable())
        assert end == start
        assert source.partitions(start, end) == []
        producer.commit_transaction()
    end = source.latestOffset(start, ReadAllAvailable())
    assert end == {"t": {"0": 6}}
    assert ranges(source.partitions(start, end)) == [("t", 0, 5, 6)]
    assert "data loss" not in caplog.text


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
    assert "failOnDataLoss=false: 7 offsets or more skipped" in caplog.text
    assert caplog.text.count("data loss") == 1


def test_a_leader_that_knows_less_for_a_moment(fake: FakeCluster) -> None:
    """KAFKA-7703: the end of the log seems to move back."""
    fake.create_topic("t")
    fill(fake, "t", 8)
    source = reader(fake, fetchOffset__numRetries="1000")
    start = {"t": {"0": 8}}
    fake.truncate("t", 0, 0)
    threading.Timer(0.1, fill, (fake, "t", 9)).start()
    # The high watermark is listed after the end: it may see what the end did not.
    assert source.latestOffset(start, ReadAllAvailable())["t"]["0"] in (8, 9)
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
    with pytest.raises(KafkaTimeoutError, match=r"0\.3 s.*can be reached") as caught:
        source.latestOffset(start, ReadAllAvailable())
    assert "2 times (fetchOffset.numRetries)" in caught.value.__notes__[0]
    assert "looking up the latest offsets: attempt 1 of 2 failed" in caplog.text
    # The same process goes on once it is there again.
    for broker in fake.broker_ids:
        fake.broker_up(broker)
    assert source.latestOffset(start, ReadAllAvailable()) == start


def test_a_wrong_address_is_not_tried_again_and_again(fake: FakeCluster) -> None:
    fake.create_topic("t")
    for broker in fake.broker_ids:
        fake.broker_down(broker)
    source = reader(fake, kafka__default__api__timeout__ms="300")
    with pytest.raises(KafkaConnectionError) as caught:
        source.initialOffset()
    assert not hasattr(caught.value, "__notes__")
