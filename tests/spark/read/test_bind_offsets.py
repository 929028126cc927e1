"""bindOffsets: input partitions that are planned once and read by several queries, as in Spark."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, LessThan

from sparkkafka.client import deadline
from sparkkafka.config.options import parse_read_options, parse_stream_options
from sparkkafka.config.source import TO_LATEST, OffsetBound
from sparkkafka.errors import (
    BrokerError,
    DataLossError,
    ErrorCode,
    OptionError,
    UnsupportedVersionError,
)
from sparkkafka.spark.datasource import KafkaDataSource
from sparkkafka.spark.read.input_partitions import (
    MAX_EMPTY_TASKS,
    KafkaInputPartition,
    bound_at_times,
    start_at_times,
)
from sparkkafka.spark.read.reader import KafkaBatchReader
from tests.client.support import commit_offsets, list_short_ends, open_cluster, write
from tests.spark.read.test_input_partitions import T0, at, plan
from tests.support import reference
from tests.support.batches import build_batch
from tests.support.clock import Clock

HOUR_MS = 3_600_000
T_MS = 1_700_000_000_000  # the time of what `write` writes


class Planned:
    """What Spark keeps of a load(): a reader, and its input partitions."""

    def __init__(self, fake: Any, topic: str = "t", filters: Any = (), **options: str) -> None:
        given = {
            "kafka.bootstrap.servers": fake.bootstrap_servers,
            "subscribe": topic,
            "kafka.retry.backoff.ms": "5",
            "kafka.request.timeout.ms": "15000",
            **options,
        }
        source = KafkaDataSource({**given, **({"filterPushdown": "true"} if filters else {})})
        reader = source.reader(source.schema())
        if filters:
            reader.pushFilters(list(filters))
        self.partitions: list[Any] = list(reader.partitions())
        self._reader = pickle.loads(pickle.dumps(reader))

    def rows(self) -> list[tuple[int, int]]:
        """Partition and offset of each row of one query."""
        return [
            (row["partition"], row["offset"])
            for partition in self.partitions
            for batch in self._reader.read(partition)
            for row in batch.to_pylist()
        ]

    def offsets(self) -> list[int]:
        return [offset for _, offset in self.rows()]


def upto(end: int, start: int = 0) -> list[int]:
    return list(range(start, end))


@pytest.fixture
def three(fake_cluster: Any) -> Any:
    """The topic t with three records."""
    fake_cluster.create_topic("t")
    write(fake_cluster, "t", 3)
    return fake_cluster


def append(fake: Any, timestamp_ms: int = T_MS, **more: Any) -> None:
    """One batch with one record."""
    payload = reference.encode_payload(
        [reference.Record(0, 0, None, b"x")], base_offset=0, base_timestamp=0
    )
    fields = {"record_count": 1, "base_timestamp": timestamp_ms, "max_timestamp": timestamp_ms}
    fake.append("t", 0, build_batch(payload, **{**fields, **more}), assign_offsets=True)


# --- what a later query sees ---------------------------------------------------------------------


def test_each_query_sees_what_is_there(three: Any) -> None:
    planned = Planned(three)
    assert planned.offsets() == upto(3)
    write(three, "t", 2)
    assert planned.offsets() == upto(5)
    three.advance_log_start("t", 0, 2)
    write(three, "t", 1)
    assert planned.offsets() == upto(6, 2)
    three.advance_log_start("t", 0, 6)
    assert planned.offsets() == []


def test_a_plan_that_binds_offsets_reads_the_same_again(three: Any) -> None:
    planned = Planned(three, bindOffsets="plan")
    write(three, "t", 2)
    assert planned.offsets() == upto(3)
    three.advance_log_start("t", 0, 1)
    with pytest.raises(DataLossError, match=r"t-0: offsets 0 to 0 are gone; the range is \[0, 3\)"):
        planned.rows()


def test_a_partition_that_is_empty_at_first(fake_cluster: Any) -> None:
    fake_cluster.create_topic("t", partitions=2)
    planned = Planned(fake_cluster)
    assert len(planned.partitions) == 2
    assert planned.rows() == []
    write(fake_cluster, "t", 4, partitions=2, per_send=2)
    assert planned.rows() == [(0, 0), (0, 1), (1, 0), (1, 1)]
    empty = {"bindOffsets": "plan", "startingOffsets": '{"t":{"0":2,"1":2}}'}
    assert Planned(fake_cluster, **empty).partitions == []


def test_many_empty_partitions_share_tasks(fake_cluster: Any) -> None:
    fake_cluster.create_topic("t", partitions=30)
    planned = Planned(fake_cluster)
    assert len(planned.partitions) == MAX_EMPTY_TASKS
    assert planned.rows() == []
    write(fake_cluster, "t", 60, partitions=30, per_send=2)
    assert sorted(planned.rows()) == [(number, at) for number in range(30) for at in (0, 1)]
    assert len(Planned(fake_cluster).partitions) == 30


def test_an_empty_partition_is_answered_at_once(fake_cluster: Any) -> None:
    """A broker would wait fetch.max.wait.ms for records that nobody asked for."""
    fake_cluster.create_topic("t")
    planned = Planned(fake_cluster)
    fake_cluster.clear_requests()
    assert planned.rows() == []
    (fetch,) = fake_cluster.requests_of("Fetch")
    assert fetch.message.max_wait_ms == 1


def answer_late(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first response to a Fetch come 11 s after its task has begun to read."""
    clock = Clock()
    clock.patch(monkeypatch, deadline)
    fake.fault(lambda request: setattr(clock, "ahead_s", 11.0), api="Fetch")


def test_an_empty_partition_that_is_answered_late_has_lost_nothing(
    three: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    three.advance_log_start("t", 0, 3)
    planned = Planned(three)
    answer_late(three, monkeypatch)
    assert planned.rows() == []


def test_a_new_leader_has_time_to_learn_the_high_watermark_after_its_election(
    three: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(three)
    planned = Planned(three, bindOffsets="plan", startingOffsets='{"t":{"0":3}}')
    three.truncate("t", 0, 3)
    answer_late(three, monkeypatch)
    three.fault(lambda request: append(three), api="Fetch")  # the second one
    assert planned.offsets() == [3]


def test_binding_costs_no_round_trip(three: Any) -> None:
    for mode in ("plan", "task"):
        planned = Planned(three, bindOffsets=mode)
        three.clear_requests()
        assert planned.offsets() == upto(3)
        apis = [request.api for request in three.requests if request.api != "ApiVersions"]
        assert apis == ["Metadata", "Fetch"]


def test_a_log_that_grows_while_it_is_read_has_an_end(three: Any) -> None:
    planned = Planned(three, **{"kafka.max.partition.fetch.bytes": "1"})
    three.fault(lambda request: append(three), api="Fetch", times=None, nth=2)
    write(three, "t", 2, batch_size=1, per_send=1, linger_ms=0)
    assert planned.offsets() == upto(5)


@pytest.mark.parametrize("kind", ["earliest", "number"])
def test_offsets_by_number_are_kept(three: Any, kind: str) -> None:
    starting = "earliest" if kind == "earliest" else '{"t":{"0":1}}'
    planned = Planned(three, startingOffsets=starting, endingOffsets='{"t":{"0":2}}')
    write(three, "t", 2)
    first = 0 if kind == "earliest" else 1
    assert planned.offsets() == upto(2, first)
    three.advance_log_start("t", 0, 1)
    assert planned.offsets() == [1]


def test_a_start_by_number_that_is_deleted_later_is_a_loss(three: Any, caplog: Any) -> None:
    starting = '{"t":{"0":1}}'
    planned = Planned(three, startingOffsets=starting)
    lenient = Planned(three, startingOffsets=starting, failOnDataLoss="false")
    write(three, "t", 3)
    assert planned.offsets() == upto(6, 1)
    three.advance_log_start("t", 0, 5)
    with pytest.raises(DataLossError, match=r"offsets 1 to 4 are gone; the range is \[1, latest\)"):
        planned.rows()
    with caplog.at_level(logging.WARNING):
        assert lenient.offsets() == [5]
    assert "4 offsets skipped" in caplog.text


def test_a_start_beyond_the_end(three: Any) -> None:
    starting = '{"t":{"0":4}}'
    with pytest.raises(DataLossError, match=r"requested offsets from 4 on, available \[0, 3\)"):
        Planned(three, startingOffsets=starting)
    planned = Planned(three, startingOffsets=starting, failOnDataLoss="false")
    assert planned.rows() == []
    write(three, "t", 3)
    assert planned.offsets() == [4, 5]
    at_the_end = Planned(three, startingOffsets='{"t":{"0":6}}')
    assert at_the_end.rows() == []
    write(three, "t", 1)
    assert at_the_end.offsets() == [6]


def test_committed_offsets_are_looked_up_by_the_plan(three: Any) -> None:
    def commit(offset: int) -> None:
        with open_cluster(three) as cluster:
            commit_offsets(cluster, "g", {T0: offset})

    commit(1)
    planned = Planned(three, startingOffsets="committed", **{"kafka.group.id": "g"})
    commit(3)
    write(three, "t", 2)
    assert planned.offsets() == upto(5, 1)
    none = Planned(three, startingOffsets="committed,latest", **{"kafka.group.id": "none"})
    every = Planned(three, startingOffsets="committed,earliest", **{"kafka.group.id": "none"})
    write(three, "t", 1)
    assert none.partitions == []  # from latest to latest
    assert every.offsets() == upto(6)


def test_times_that_no_record_has_reached_are_looked_up_again(three: Any) -> None:
    late = str(T_MS + HOUR_MS)
    until = Planned(three, endingTimestamp=late)
    since = Planned(three, startingTimestamp=late, startingOffsetsByTimestampStrategy="latest")
    assert (until.offsets(), since.offsets()) == (upto(3), [])
    append(three)
    assert (until.offsets(), since.offsets()) == (upto(4), [])
    append(three, timestamp_ms=T_MS + HOUR_MS)
    append(three, timestamp_ms=T_MS + 2 * HOUR_MS)
    assert (until.offsets(), since.offsets()) == (upto(4), [4, 5])


def test_a_start_by_time_follows_retention(three: Any) -> None:
    append(three, timestamp_ms=T_MS + HOUR_MS)
    append(three, timestamp_ms=T_MS + HOUR_MS)
    planned = Planned(three, startingTimestamp=str(T_MS + HOUR_MS))
    assert planned.offsets() == [3, 4]
    three.advance_log_start("t", 0, 4)
    append(three, timestamp_ms=T_MS + HOUR_MS)
    assert planned.offsets() == [4, 5]


# --- cut ranges ----------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["minPartitions", "maxRecordsPerPartition"])
def test_only_the_last_piece_of_a_partition_grows(three: Any, option: str) -> None:
    write(three, "t", 3)
    planned = Planned(three, **{option: "3" if option == "minPartitions" else "2"})
    assert [(part.start, part.end) for part in planned.partitions] == [(0, 2), (2, 4), (4, 6)]
    write(three, "t", 2)
    assert planned.offsets() == upto(8)
    three.advance_log_start("t", 0, 3)  # the first piece and a part of the second
    assert planned.offsets() == upto(8, 3)
    three.recreate_topic("t")
    write(three, "t", 3)
    with pytest.raises(DataLossError, match="deleted and recreated"):
        planned.rows()


def test_filters_that_are_pushed_leave_the_end_open_unless_they_bound_it(three: Any) -> None:
    def filtered(*filters: Any) -> Planned:
        return Planned(three, filters=filters)

    above = filtered(GreaterThanOrEqual(("offset",), 1))
    below = filtered(LessThan(("offset",), 2))
    far = filtered(LessThan(("offset",), 100))
    elsewhere = filtered(EqualTo(("partition",), 1))
    beyond = filtered(GreaterThan(("offset",), 7))
    write(three, "t", 2)
    assert above.offsets() == upto(5, 1)
    assert below.offsets() == upto(2)
    assert far.offsets() == upto(5)
    assert (elsewhere.partitions, beyond.partitions) == ([], [])
    three.advance_log_start("t", 0, 4)
    assert above.offsets() == [4]
    assert below.offsets() == []


# --- other logs ----------------------------------------------------------------------------------


def test_offsets_of_tiered_storage(three: Any) -> None:
    """The topic has none: all of it is on the leader's disk."""
    assert Planned(three, startingOffsets="earliest-local").offsets() == Planned(three).offsets()
    with pytest.raises(OptionError, match="startingOffsets=latest-tiered: there is no such offset"):
        Planned(three, startingOffsets="latest-tiered").offsets()
    with pytest.raises(UnsupportedVersionError, match=r"needs Kafka 4\.2"):
        Planned(three, startingOffsets="earliest-pending-upload").offsets()


def test_a_topic_that_is_recreated_is_read_whole(three: Any) -> None:
    three.advance_log_start("t", 0, 2)
    planned = Planned(three)
    three.recreate_topic("t")
    assert planned.rows() == []
    write(three, "t", 1)
    assert planned.offsets() == [0]  # below the start of the log that was planned
    write(three, "t", 9)
    assert planned.offsets() == upto(10)


def test_a_topic_that_is_recreated_on_brokers_without_topic_ids(fake_cluster_factory: Any) -> None:
    fake = fake_cluster_factory(kafka_version="2.1")
    fake.create_topic("t")
    write(fake, "t", 5)
    fake.advance_log_start("t", 0, 3)
    planned = Planned(fake)
    fake.recreate_topic("t")
    write(fake, "t", 9)
    assert planned.offsets() == upto(9)


def test_numbers_are_offsets_of_the_topic_that_was_planned(three: Any, caplog: Any) -> None:
    planned = Planned(three, startingOffsets='{"t":{"0":1}}')
    lenient = Planned(three, endingOffsets='{"t":{"0":2}}', failOnDataLoss="false")
    three.recreate_topic("t")
    write(three, "t", 9)
    with pytest.raises(DataLossError, match="the topic has been deleted and recreated"):
        planned.rows()
    with caplog.at_level(logging.WARNING):
        assert lenient.rows() == []
    assert "recreated" in caplog.text


def test_a_topic_that_is_recreated_while_it_is_read(three: Any) -> None:
    write(three, "t", 40, batch_size=1, per_send=1, linger_ms=0)
    planned = Planned(three, **{"kafka.max.partition.fetch.bytes": "1"})

    def recreate(request: Any) -> None:
        three.recreate_topic("t")
        three.disconnect(request.broker)

    three.fault(recreate, api="Fetch", nth=5)
    with pytest.raises(DataLossError, match="recreated"):
        planned.rows()


def test_a_topic_that_is_deleted(three: Any) -> None:
    planned = Planned(three, **{"kafkaConsumer.pollTimeoutMs": "1000"})
    three.delete_topic("t")
    with pytest.raises(DataLossError, match=r"the range is \[0, latest\)"):
        planned.rows()


def test_a_topic_that_is_deleted_before_its_times_are_looked_up_again(
    three: Any, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr("sparkkafka.client.cluster.cluster.KNOWN_TOPIC_GRACE_MS", 300)
    late = str(T_MS + HOUR_MS)
    since = {"startingTimestamp": late, "startingOffsetsByTimestampStrategy": "latest"}
    strict = [Planned(three, endingTimestamp=late), Planned(three, **since)]
    lenient = [
        Planned(three, endingTimestamp=late, failOnDataLoss="false"),
        Planned(three, **since, failOnDataLoss="false"),
    ]
    three.delete_topic("t")
    for planned in strict:
        with pytest.raises(DataLossError, match="the topic was deleted"):
            planned.rows()
    with caplog.at_level(logging.WARNING):
        assert [planned.rows() for planned in lenient] == [[], []]
    assert caplog.text.count("failOnDataLoss=false") == 2


def test_a_recreated_topic_that_ends_before_the_planned_start(three: Any) -> None:
    three.advance_log_start("t", 0, 2)
    planned = Planned(three, endingTimestamp=str(T_MS + HOUR_MS))
    three.recreate_topic("t")
    append(three)
    append(three, timestamp_ms=T_MS + HOUR_MS)
    assert planned.offsets() == [0]


def test_a_broker_whose_fetch_responses_have_another_start(three: Any) -> None:
    write(three, "t", 3)
    three.advance_log_start("t", 0, 3)
    planned = Planned(three, **{"kafkaConsumer.pollTimeoutMs": "5000"})
    fetch = three.handlers["Fetch"]

    def begin_at_zero(*args: Any) -> Any:
        response = fetch(*args)
        for topic in response.responses:
            for row in topic.partitions:
                row.log_start_offset = 0
        return response

    three.handlers["Fetch"] = begin_at_zero
    assert planned.offsets() == upto(6, 3)


def test_records_deleted_while_they_are_read_are_a_loss(three: Any) -> None:
    """The first response has bound the range: what goes after that was promised."""
    write(three, "t", 40, batch_size=1, per_send=1, linger_ms=0)
    planned = Planned(three, **{"kafka.max.partition.fetch.bytes": "1"})
    three.fault(lambda request: three.advance_log_start("t", 0, 40), api="Fetch", nth=5)
    with pytest.raises(DataLossError, match=r"are gone; the range is \[\d+, 43\)"):
        planned.rows()


def test_partitions_that_are_added_need_a_new_load(three: Any) -> None:
    planned = Planned(three)
    three.add_partitions("t", 2)
    write(three, "t", 2, partitions=2, per_send=1)
    assert planned.rows() == [(0, offset) for offset in range(4)]
    assert len(Planned(three).rows()) == 5


# --- what the end of a log is --------------------------------------------------------------------


def test_read_committed_ends_at_the_last_stable_offset(three: Any) -> None:
    planned = Planned(three, **{"kafka.isolation.level": "read_committed"})
    open_transaction = {
        "producer_id": 7,
        "producer_epoch": 0,
        "base_sequence": 0,
        "transactional": True,
    }
    append(three, **open_transaction)
    append(three)
    assert planned.offsets() == upto(3)
    three.append_marker("t", 0, 7, 0, commit=True)
    assert planned.offsets() == upto(5)
    append(three, **{**open_transaction, "base_sequence": 1})
    three.append_marker("t", 0, 7, 0, commit=False)
    assert planned.offsets() == upto(5)  # the log ends with an aborted record and a marker


def test_a_log_whose_last_records_are_compacted_away(three: Any) -> None:
    planned = Planned(three)
    times = {"base_timestamp": T_MS, "max_timestamp": T_MS}
    emptied = build_batch(b"", record_count=0, last_offset_delta=4, base_offset=3, **times)
    three.append("t", 0, emptied)
    assert planned.offsets() == upto(3)


def test_a_new_leader_is_asked_for_its_end(fake_cluster_factory: Any) -> None:
    """KIP-207: it learns the high watermark late, and only ListOffsets waits until it knows it."""
    fake = fake_cluster_factory(brokers=2)
    fake.create_topic("t", replication_factor=2)
    write(fake, "t", 3)
    planned = Planned(fake)
    fake.move_leader("t", 0, 1 - fake.leader("t", 0))
    fake.clear_requests()
    fake.fault(ErrorCode.OFFSET_NOT_AVAILABLE, api="ListOffsets", times=2)
    assert planned.offsets() == upto(3)
    assert len(fake.requests_of("ListOffsets")) == 3


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_new_leader_that_lists_an_end_inside_the_last_batch(
    fake_cluster_factory: Any, isolation: str
) -> None:
    fake = fake_cluster_factory(brokers=2)
    fake.create_topic("t", replication_factor=2)
    write(fake, "t", 50)
    list_short_ends(fake)
    planned = Planned(fake, **{"kafka.isolation.level": isolation})
    fake.move_leader("t", 0, 1 - fake.leader("t", 0))
    assert planned.offsets() == upto(50)
    write(fake, "t", 50)
    assert planned.offsets() == upto(100)


def test_a_log_that_lost_its_end(three: Any) -> None:
    """An unclean leader election: the ends are the log's, wherever they are."""
    planned = Planned(three)
    by_number = Planned(three, startingOffsets='{"t":{"0":2}}')
    three.truncate("t", 0, 0)
    assert planned.offsets() == []
    with pytest.raises(DataLossError, match=r"the range is \[2, latest\)"):
        by_number.rows()
    write(three, "t", 1)
    assert planned.offsets() == [0]


def test_the_end_is_the_leaders_not_that_of_a_replica(fake_cluster_factory: Any) -> None:
    fake = fake_cluster_factory(brokers=2, racks=["a", "b"], rack_aware=True)
    fake.create_topic("t", replication_factor=2)
    write(fake, "t", 3)
    near = "b" if fake.leader("t", 0) == 0 else "a"
    planned = Planned(fake, **{"kafka.client.rack": near})
    write(fake, "t", 2)
    assert planned.offsets() == upto(5)


def test_errors_before_the_first_response_are_retried(three: Any) -> None:
    planned = Planned(three)
    three.fault(ErrorCode.NOT_LEADER_OR_FOLLOWER, api="Fetch", times=2)
    write(three, "t", 1)
    assert planned.offsets() == upto(4)


def test_a_refused_read_says_so(three: Any) -> None:
    planned = Planned(three)
    three.fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED, api="Fetch", times=None)
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        planned.rows()


# --- planning ------------------------------------------------------------------------------------


def open_plan(*args: Any) -> list[KafkaInputPartition]:
    return plan(*args, bind_in_task=True)[0]


def test_which_ends_are_open() -> None:
    earliest = OffsetBound("earliest")

    def ends(starting: OffsetBound, ending: OffsetBound) -> list[tuple[bool, bool, bool]]:
        planned = open_plan(starting, ending, (2, 9))
        return [(part.open_start, part.open_end, part.whole_log) for part in planned]

    assert ends(earliest, TO_LATEST) == ends(at(-2), at(-1)) == [(True, True, True)]
    assert ends(earliest, at(5)) == [(True, False, False)]
    assert ends(at(5), TO_LATEST) == [(False, True, False)]
    assert ends(at(5), at(7)) == [(False, False, False)]
    assert ends(at(-1), TO_LATEST) == []  # nothing lies between latest and latest
    times = OffsetBound("timestamp", timestamp_ms=70)
    found = start_at_times(times, {T0: 4}, no_match_strategy="error")
    assert ends(found, bound_at_times(times, {T0: 6})) == [(True, False, False)]
    (late,) = open_plan(found, bound_at_times(times, {T0: -1}), (2, 9))
    assert (late.open_end, late.end_time_ms, late.start_time_ms) == (True, 70, None)


def test_the_option_has_no_effect_in_a_stream(caplog: Any) -> None:
    given = {"kafka.bootstrap.servers": "nowhere.invalid:1", "subscribe": "t"}
    with caplog.at_level(logging.WARNING):
        parse_stream_options({**given, "bindOffsets": "plan"})
    assert "bindOffsets has no effect in a stream" in caplog.text
    assert parse_read_options(given).bind_offsets == "task"
    assert KafkaBatchReader(parse_read_options({**given, "bindOffsets": "Plan"})).options
