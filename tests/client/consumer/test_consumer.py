"""Consumer with assign: positions, buffers, pauses, where it begins; brokers that do not fail."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparkkafka.client.cluster import request_driver
from sparkkafka.client.cluster.offsets import OffsetSpec
from sparkkafka.client.consumer import consumer as consumer_module
from sparkkafka.client.consumer import record
from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.client.consumer.record import RECORD_SCHEMA, Record, Records
from sparkkafka.client.consumer.subscription_state import PartitionState
from sparkkafka.client.producer.producer import Producer
from sparkkafka.client.values import LagInfo, OffsetAndMetadata, TopicPartition
from sparkkafka.errors import (
    BrokerError,
    ConsumerStateError,
    ErrorCode,
    KafkaTimeoutError,
    NoOffsetError,
    OptionError,
    UnknownTopicError,
    UnsupportedVersionError,
    WakeupError,
)
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Delay
from tests.client.support import fill, numbers, settings
from tests.support import reference
from tests.support.batches import build_batch

WAIT_S = 10.0
EARLIEST = {"auto_offset_reset": "earliest"}


def tps(count: int, topic: str = "t") -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


def consumer(bootstrap: Any, **config: Any) -> Consumer:
    return Consumer(settings(bootstrap, **(EARLIEST | config)))


def reading(bootstrap: Any, partitions: int = 1, **config: Any) -> Consumer:
    opened = consumer(bootstrap, **config)
    opened.assign(tps(partitions))
    return opened


def take(source: Consumer, count: int) -> list[Record]:
    """Poll until there are `count` records."""
    found: list[Record] = []
    while len(found) < count:
        records = source.poll(WAIT_S)
        assert records, f"{len(found)} of {count} records came"
        found += records
    return found


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


@pytest.fixture
def filled(fake_cluster: Any) -> Iterator[Any]:
    """1,000 numbers in one partition, in batches of about 50."""
    fake_cluster.create_topic("t")
    fill(fake_cluster, "t", 1_000, batch_size=500, linger_ms=0)
    fake_cluster.clear_requests()
    return fake_cluster


# --- records -------------------------------------------------------------------------------------


def test_poll_gives_all_in_order_up_to_max_poll_records(filled):
    with reading(filled, max_poll_records=300, max_partition_fetch_bytes=1_200) as source:
        records = source.poll(WAIT_S)
        assert 0 < len(records) <= 300
        found = [*records, *take(source, 1_000 - len(records))]
        assert values(found) == numbers(1_000)
        assert [row.offset for row in found] == list(range(1_000))
        assert [row.next_offset for row in found] == list(range(1, 1_001))
        assert found[0] == Record("t", 0, 0, 1_700_000_000_000, 0, None, b"0", (), 1)
        assert source.position(TopicPartition("t", 0)) == 1_000
        assert not source.poll(0)


def test_records_are_a_sequence_by_partition_too(fake_cluster):
    fake_cluster.create_topic("t", partitions=3)
    fill(fake_cluster, "t", 150, partitions=3)
    with reading(fake_cluster, 3) as source:
        found = take(source, 150)
        assert sorted(int(value or b"") for value in values(found)) == list(range(150))
        source.seek_to_beginning()
        records = source.poll(WAIT_S)
    assert len(records) == len(list(records)) == len(records[:])
    assert records[0] in records
    assert {tp: len(rows) for tp, rows in records.by_partition.items()} == {
        tp: 50 for tp in records.by_partition
    }
    assert set(records.next_offsets.values()) == {50}
    assert repr(Records()) == "<Records none>"
    assert not Records()


def test_keys_headers_nulls_and_times(fake_cluster, monkeypatch):
    monkeypatch.setattr(record, "_HEADERS_AT_ONCE", 2)  # fewer than the first record has
    fake_cluster.create_topic("t")
    rows = [
        reference.Record(0, 5, b"k", None, (("a", b"1"), ("a", None), ("", b""))),
        reference.Record(1, -3, None, b""),
        reference.Record(4, 0, b"", b"v", (("b", b"2"),)),  # compaction took what was between
    ]
    payload = reference.encode_payload(rows, base_offset=0, base_timestamp=0)
    data = build_batch(
        payload, record_count=3, last_offset_delta=6, base_timestamp=0, max_timestamp=5
    )
    fake_cluster.append("t", 0, data, end_offset=7)
    with reading(fake_cluster) as source:
        found = take(source, 3)
        assert source.position(TopicPartition("t", 0)) == 7
        source.seek(TopicPartition("t", 0), 0)
        table = source.poll_arrow(WAIT_S)
    assert found == [
        Record("t", 0, 0, 5, 0, b"k", None, (("a", b"1"), ("a", None), ("", b"")), 1),
        Record("t", 0, 1, -3, 0, None, b"", (), 4),
        Record("t", 0, 4, 0, 0, b"", b"v", (("b", b"2"),), 7),
    ]
    assert table.schema == RECORD_SCHEMA
    rows_of_table = table.to_pylist()
    assert [row["next_offset"] for row in rows_of_table] == [1, 4, 7]
    assert rows_of_table[0]["headers"] == [
        {"key": "a", "value": b"1"},
        {"key": "a", "value": None},
        {"key": "", "value": b""},
    ]
    assert rows_of_table[1]["headers"] is None
    assert [row["value"] for row in rows_of_table] == [None, b"", b"v"]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [5_000, -3_000, 0]


def test_poll_arrow_takes_all_or_max_records_and_mixes_with_poll(filled):
    with reading(filled, max_poll_records=10) as source:
        assert source.poll_arrow(WAIT_S, max_records=7)["offset"].to_pylist() == list(range(7))
        assert [row.offset for row in source.poll(WAIT_S)] == list(range(7, 17))
        three = source.poll_arrow(WAIT_S, max_records=pa.scalar(3))
        assert three["offset"].to_pylist() == [17, 18, 19]
        rest = source.poll_arrow(WAIT_S)
        assert rest["value"].to_pylist() == numbers(1_000)[20:]
        assert source.position(TopicPartition("t", 0)) == 1_000
        empty = source.poll_arrow(0.05)
        assert (empty.num_rows, empty.schema) == (0, RECORD_SCHEMA)
        with pytest.raises(OptionError, match="max_records"):
            source.poll_arrow(0, max_records=0)


MANY = 300


@pytest.fixture
def wide(fake_cluster: Any) -> Any:
    """Two records in each of many partitions."""
    fake_cluster.create_topic("t", partitions=MANY)
    with Producer(settings(fake_cluster.bootstrap_servers)) as producer:
        for number in range(2 * MANY):
            producer.send("t", b"%d" % number, partition=number % MANY)
    return fake_cluster


def test_a_poll_does_not_visit_thousands_of_partitions(wide, monkeypatch):
    looks = [0]
    needs_request = PartitionState.needs_request

    def counted(*args: Any, **named: Any) -> bool:
        looks[0] += 1
        return needs_request(*args, **named)

    monkeypatch.setattr(PartitionState, "needs_request", counted)
    with reading(wide, MANY, max_poll_records=4) as source:
        found = take(source, 2 * MANY)
    assert len({(row.partition, row.offset) for row in found}) == 2 * MANY
    # 150 polls, most of which found partitions that were read to the end.
    assert looks[0] < 20 * MANY


def test_a_few_rows_of_many_partitions_take_little_memory(wide):
    with reading(wide, MANY) as source:
        table = source.poll_arrow(WAIT_S)
        while table.num_rows < 2 * MANY:
            table = pa.concat_tables([table, source.poll_arrow(WAIT_S)])
    assert sorted(table["partition"].to_pylist()) == sorted([*range(MANY), *range(MANY)])
    assert set(table["topic"].to_pylist()) == {"t"}
    assert table.get_total_buffer_size() < 2_000 * MANY


def test_a_time_that_arrow_cannot_hold_is_an_error_and_the_position_stays(fake_cluster):
    fake_cluster.create_topic("t")
    payload = reference.encode_payload(
        [reference.Record(0, 0, None, b"v")], base_offset=0, base_timestamp=0
    )
    time_ms = 2**62
    data = build_batch(payload, record_count=1, base_timestamp=time_ms, max_timestamp=time_ms)
    fake_cluster.append("t", 0, data)
    with reading(fake_cluster) as source:
        with pytest.raises(Exception, match=r"topic t partition 0 offset 0: the timestamp"):
            source.poll_arrow(WAIT_S)
        assert source.position(TopicPartition("t", 0)) == 0
        assert take(source, 1)[0].timestamp_ms == time_ms


# --- positions -----------------------------------------------------------------------------------


def test_position_is_behind_what_was_returned_not_what_was_fetched(filled):
    with reading(filled, max_poll_records=10) as source:
        take(source, 10)
        assert source.position(TopicPartition("t", 0)) == 10
        (lag,) = source.lag().values()
        assert lag == LagInfo(position=10, end=1_000, lag=990)
        assert lag.end - lag.position == lag.lag
        source.seek(TopicPartition("t", 0), 1_200)
        assert source.lag() == {TopicPartition("t", 0): (1_200, 1_000, 0)}


@pytest.mark.parametrize(
    "given",
    [
        [{"topic": "t", "partition": 0, "offset": 3}],
        {"topic": "t", "partition": 0, "offset": 3},
        [("t", 0, 3)],
        "t",
        TopicPartition("t", 0),
    ],
    ids=str,
)
def test_assign_of_a_wrong_kind_names_the_way_to_say_where_to_begin(filled, given):
    with reading(filled) as source:
        with pytest.raises(OptionError) as caught:
            source.assign(given)
        assert 'assign({TopicPartition("orders", 0): 17})' in str(caught.value)
        source.assign({TopicPartition("t", 0): 17})
        assert source.position(TopicPartition("t", 0)) == 17


def test_a_seek_throws_away_what_is_buffered_and_what_is_in_flight(filled):
    tp = TopicPartition("t", 0)
    with reading(filled, max_poll_records=10, max_partition_fetch_bytes=1_200) as source:
        take(source, 10)
        filled.wait_for_requests("Fetch", 1)
        source.seek(tp, 900)
        assert source.position(tp) == 900
        assert values(take(source, 100)) == numbers(1_000)[900:]
        source.seek(tp, 3)  # a fetch at the end is in flight
        assert values(take(source, 10)) == numbers(1_000)[3:13]


def test_seek_to_both_ends(filled):
    tp = TopicPartition("t", 0)
    with reading(filled) as source:
        source.seek_to_end([tp])
        assert source.position(tp) == 1_000
        source.seek_to_beginning()
        assert source.position(tp) == 0
        with pytest.raises(ConsumerStateError, match=r"t-7 is not assigned.*t-0"):
            source.seek(TopicPartition("t", 7), 0)
        with pytest.raises(OptionError, match="offset -3"):
            source.seek(tp, -3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "position"),
    [
        (3, 3),
        (np.int64(5), 5),
        (OffsetAndMetadata(7), 7),
        (-1, 1_000),
        (-2, 0),
        (OffsetSpec.latest(), 1_000),
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.for_timestamp(1_700_000_000_000), 0),
        (OffsetSpec.for_timestamp(1_700_000_000_001), 1_000),  # nothing is so young: the end
    ],
)
def test_assign_and_seek_say_where_to_begin(filled, start, position):
    tp = TopicPartition("t", 0)
    # Whatever the group has committed, and auto.offset.reset says.
    with consumer(filled, group_id="g", auto_offset_reset="none") as source:
        source.assign({tp: start})
        assert source.position(tp) == position
        assert values(source.poll(WAIT_S if position < 1_000 else 0.1))[:1] == (
            [b"%d" % position] if position < 1_000 else []
        )
        source.seek(tp, 500)
        source.assign([tp])  # as before: it keeps its position
        assert source.position(tp) == 500
        source.seek(tp, start)
        assert source.position(tp) == position
        source.assign({tp: 17})
        assert source.position(tp) == 17
        source.assign({})
        assert source.assignment() == frozenset()


def test_what_an_old_broker_cannot_look_up_is_an_error(fake_cluster_factory):
    cluster = fake_cluster_factory(1, kafka_version="2.1")
    cluster.create_topic("t")
    with consumer(cluster) as source:
        source.assign({TopicPartition("t", 0): OffsetSpec.max_timestamp()})
        with pytest.raises(UnsupportedVersionError, match=r"t-0.*Kafka 3\.0"):
            source.poll(WAIT_S)
        source.seek(TopicPartition("t", 0), 0)
        assert source.position(TopicPartition("t", 0)) == 0
    assert not cluster.requests_of("ListOffsets")  # it would take -3 for a time


def test_a_batch_that_begins_before_the_position(filled):
    with reading(filled) as source:
        source.seek(TopicPartition("t", 0), 27)
        assert source.poll(WAIT_S)[0].offset == 27


@pytest.mark.parametrize(
    ("reset", "position"),
    [
        ("earliest", 100),
        ("latest", 1_000),
        ("by_duration:P3650D", 100),
        ("by_duration:PT1S", 1_000),
    ],
)
def test_where_it_begins_without_a_committed_offset(filled, reset, position):
    filled.advance_log_start("t", 0, 100)
    with reading(filled, auto_offset_reset=reset) as source:
        assert source.position(TopicPartition("t", 0)) == position


def test_none_says_what_is_there(filled):
    filled.advance_log_start("t", 0, 100)
    tp = TopicPartition("t", 0)
    with reading(filled, auto_offset_reset="none", group_id="g") as source:
        for _ in range(2):
            with pytest.raises(
                NoOffsetError, match=r"topic t partition 0: group 'g' .*\[100, 1000\)"
            ) as raised:
                source.poll(WAIT_S)
        assert (raised.value.topic, raised.value.partition) == ("t", 0)
        with pytest.raises(NoOffsetError):
            source.position(tp)
        source.seek(tp, 998)
        assert values(take(source, 2)) == [b"998", b"999"]


def test_none_looks_the_offsets_of_all_partitions_up_once(fake_cluster):
    fake_cluster.create_topic("t", partitions=3)
    fill(fake_cluster, "t", 30, partitions=3, per_send=10)
    with consumer(fake_cluster, auto_offset_reset="none", group_id="g") as source:
        source.assign([TopicPartition("t", number) for number in range(3)])
        failed = set()
        for _ in range(6):
            with pytest.raises(NoOffsetError, match=r"the log has offsets \[0, 10\)") as raised:
                source.poll(WAIT_S)
            failed.add(raised.value.partition)
    assert failed == {0, 1, 2}
    # For the first offsets and for the ends. Java's client sends none, and does not say them.
    leaders = {fake_cluster.leader("t", number) for number in range(3)}
    assert len(fake_cluster.requests_of("ListOffsets")) == 2 * len(leaders)


def test_none_says_what_is_there_although_another_partition_is_refused(fake_cluster):
    fake_cluster.create_topic("t", partitions=2)
    fill(fake_cluster, "t", 20, partitions=2, per_send=10)
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    fake_cluster.fault(code, api="ListOffsets", topic="t", partition=1, times=None)
    errors = {}
    with consumer(fake_cluster, auto_offset_reset="none", group_id="g") as source:
        source.assign([TopicPartition("t", number) for number in range(2)])
        for _ in range(4):
            with pytest.raises(NoOffsetError) as raised:
                source.poll(WAIT_S)
            errors[raised.value.partition] = str(raised.value)
    assert "the log has offsets [0, 10)" in errors[0]
    assert "TOPIC_AUTHORIZATION_FAILED" in errors[1]


@pytest.mark.parametrize("offset", [5, 5_000, sys.maxsize])
@pytest.mark.parametrize(("reset", "position"), [("earliest", 100), ("latest", 1_000)])
def test_out_of_range_goes_where_the_setting_says(filled, offset, reset, position):
    filled.advance_log_start("t", 0, 100)
    tp = TopicPartition("t", 0)
    with reading(filled, auto_offset_reset=reset) as source:
        source.seek(tp, offset)
        records = source.poll(0.5 if reset == "latest" else WAIT_S)
        assert [row.offset for row in records[:1]] == ([100] if reset == "earliest" else [])
        assert source.position(tp) == (position if not records else records[-1].next_offset)


def test_out_of_range_is_an_error_under_none(filled):
    filled.advance_log_start("t", 0, 100)
    tp = TopicPartition("t", 0)
    with reading(filled, auto_offset_reset="none") as source:
        source.seek(tp, 5)
        for _ in range(2):
            with pytest.raises(NoOffsetError, match=r"offset 5 is out of range.*\[100, 1000\)"):
                source.poll(WAIT_S)
        assert source.position(tp) == 5
        source.seek(tp, 990)
        assert values(take(source, 10)) == numbers(1_000)[990:]


def test_assign_keeps_positions_of_what_stays(fake_cluster):
    fake_cluster.create_topic("t", partitions=2)
    fill(fake_cluster, "t", 200, partitions=2, per_send=100)
    with consumer(fake_cluster, max_poll_records=10) as source:
        source.assign([TopicPartition("t", 0)])
        take(source, 10)
        source.assign(tps(2))
        assert source.assignment() == frozenset(tps(2))
        assert source.position(TopicPartition("t", 0)) == 10
        assert len(take(source, 190)) == 190
        source.assign([])
        assert source.assignment() == frozenset()
        with pytest.raises(ConsumerStateError, match=r"subscribe.*assign"):
            source.poll(0)


# --- pause ---------------------------------------------------------------------------------------


def test_paused_partitions_keep_what_is_buffered(fake_cluster):
    fake_cluster.create_topic("t", partitions=2)
    fill(fake_cluster, "t", 200, partitions=2, per_send=100)
    first, second = tps(2)
    with reading(fake_cluster, 2, max_poll_records=10) as source:
        source.pause([second])
        assert source.paused() == {second}
        assert {row.partition for row in take(source, 100)} == {0}
        source.pause([first])
        assert not source.poll(0.05)
        source.resume([first, second])
        assert {row.partition for row in take(source, 60)} == {1}
        source.pause([second])
        assert not source.poll(0)
        fake_cluster.clear_requests()
        source.resume([second])
        assert [row.offset for row in source.poll(WAIT_S)] == list(range(60, 70))
        assert fake_cluster.requests_of("Fetch", partition=1) == []


# --- what a cluster has --------------------------------------------------------------------------


def test_offsets_and_topics(fake_cluster):
    fake_cluster.create_topic("t", partitions=2)
    fake_cluster.create_topic("other")
    fill(fake_cluster, "t", 100, partitions=2)
    fake_cluster.advance_log_start("t", 0, 10)
    with consumer(fake_cluster) as source:
        assert source.beginning_offsets(tps(2)) == dict(zip(tps(2), [10, 0], strict=True))
        assert source.end_offsets([("t", 0), ("t", 1)]) == dict.fromkeys(tps(2), 50)
        found = source.offsets_for_times(dict(zip(tps(2), [0, 2_000_000_000_000], strict=True)))
        first = found[TopicPartition("t", 0)]
        assert first is not None
        assert (first.offset, first.timestamp_ms) == (10, 1_700_000_000_000)
        assert found[TopicPartition("t", 1)] is None
        with pytest.raises(OptionError, match=r"t-0.*-5"):
            source.offsets_for_times({TopicPartition("t", 0): -5})
        infos = source.partitions_for("t")
        assert [(row.topic, row.partition) for row in infos] == [("t", 0), ("t", 1)]
        assert [row.leader.node_id for row in infos if row.leader] == [
            fake_cluster.leader("t", number) for number in (0, 1)
        ]
        assert list(source.list_topics()) == ["other", "t"]
        with pytest.raises(UnknownTopicError, match="missing"):
            source.partitions_for("missing", timeout_s=0.2)


def test_both_ends_of_all_partitions_take_two_rounds(fake_cluster, monkeypatch):
    rounds = []
    run = request_driver._Attempt.run

    def counted(attempt, items, lookup):
        before = len(fake_cluster.requests)
        run(attempt, items, lookup)
        rounds.append({row.broker for row in fake_cluster.requests[before:]})

    monkeypatch.setattr(request_driver._Attempt, "run", counted)
    fake_cluster.create_topic("t", partitions=6)
    fill(fake_cluster, "t", 600, partitions=6, per_send=100)
    fake_cluster.advance_log_start("t", 2, 40)
    with consumer(fake_cluster) as source:
        source.partitions_for("t")
        fake_cluster.clear_requests()
        found = source.offsets_for("t")
        # Two to each of three leaders, none waits for another, and a Fetch that confirms the ends.
        assert rounds == [{0, 1, 2}, {0, 1, 2}]
        assert list(found) == tps(6)
        assert found[tps(6)[2]] == (40, 100)
        assert {row.earliest for tp, row in found.items() if tp.partition != 2} == {0}
        assert {row.latest for row in found.values()} == {100}
        requests = fake_cluster.requests_of("ListOffsets")
        assert len(requests) == 6
        for broker in fake_cluster.broker_ids:
            first, second = (row for row in requests if row.broker == broker)
            assert first.connection == second.connection
            assert first.topic_partitions == second.topic_partitions
        with pytest.raises(UnknownTopicError, match="missing"):
            source.offsets_for("missing", timeout_s=0.2)


# --- offsets of a group, without being a member --------------------------------------------------


def test_commit_and_begin_there(filled):
    tp = TopicPartition("t", 0)
    config = {"group_id": "g", "enable_auto_commit": False, "max_poll_records": 10}
    with reading(filled, **config) as source:
        assert source.committed([tp]) == {tp: None}
        take(source, 10)
        source.commit()
        assert source.committed([tp]) == {tp: OffsetAndMetadata(10, leader_epoch=0)}
        take(source, 10)
    assert filled.committed("g") == {("t", 0): 10}
    with reading(filled, **config) as source:
        assert source.poll(WAIT_S)[0].offset == 10
        source.commit({tp: 500})
        source.commit({tp: OffsetAndMetadata(501, "why")})
        found = source.committed([tp])[tp]
        assert found is not None
        assert (found.offset, found.metadata) == (501, "why")
        assert source.group_metadata()[:3] == ("g", -1, "")
        with pytest.raises(OptionError, match="offset -2"):
            source.commit({tp: -2})


def test_automatic_commits_come_at_a_later_poll_and_in_close(filled):
    config = {"group_id": "g", "auto_commit_interval_ms": 0, "max_poll_records": 10}
    with reading(filled, **config) as source:
        take(source, 10)
        assert filled.committed("g").get(("t", 0), 0) == 0  # what is returned may not be done
        take(source, 10)
        assert filled.committed("g") == {("t", 0): 10}
    assert filled.committed("g") == {("t", 0): 20}


def test_back_to_what_is_committed(fake_cluster):
    fake_cluster.create_topic("t", partitions=3)
    fill(fake_cluster, "t", 300, partitions=3)
    first, second, third = tps(3)
    config = {"group_id": "g", "enable_auto_commit": False, "max_poll_records": 10}
    with reading(fake_cluster, 3, **config) as source:
        take(source, 120)
        source.commit({first: 20, second: 30})
        source.seek(second, 70)
        source.seek(third, 50)
        source.seek_to_committed([first])
        assert [source.position(tp) for tp in tps(3)] == [20, 70, 50]
        source.seek_to_committed()
        assert [source.position(tp) for tp in tps(3)] == [20, 30, 0]
        source.seek_to_committed()  # of what is sought nothing is left to be returned
        found = take(source, 80 + 70 + 100)
        assert {
            tp: [row.offset for row in found if row.partition == tp.partition] for tp in tps(3)
        } == {first: [*range(20, 100)], second: [*range(30, 100)], third: [*range(100)]}
        with pytest.raises(ConsumerStateError, match="t-9 is not assigned"):
            source.seek_to_committed([TopicPartition("t", 9)])


def test_leaving_by_an_exception_commits_nothing(filled):
    with pytest.raises(ZeroDivisionError):
        with reading(filled, group_id="g", max_poll_records=10) as source:
            take(source, 10)
            raise ZeroDivisionError
    assert filled.committed("g") == {}


def test_a_failed_automatic_commit_does_not_end_a_poll(filled, caplog):
    filled.set_group_members("g")
    config = {"group_id": "g", "auto_commit_interval_ms": 0, "max_poll_records": 10}
    with reading(filled, **config) as source:
        assert values(take(source, 1_000)) == numbers(1_000)
        with pytest.raises(BrokerError, match="active consumers"):
            source.commit()
    assert "automatic commit" in caplog.text


def test_what_needs_a_group_says_so(filled):
    with reading(filled) as source:
        take(source, 1)
        for call in (
            source.commit,
            source.group_metadata,
            source.seek_to_committed,
            lambda: source.committed(tps(1)),
        ):
            with pytest.raises(OptionError, match=r"set group\.id"):
                call()
        with pytest.raises(OptionError, match=r"subscribe needs a group: set group\.id"):
            source.subscribe(["t"])


# --- use -----------------------------------------------------------------------------------------


def test_nothing_is_sent_by_the_constructor_and_close_may_be_called_again(filled):
    source = consumer(filled)
    assert filled.requests == []
    assert repr(source) == "<Consumer, 0 partitions>"
    source.close()
    source.close()
    with pytest.raises(ConsumerStateError, match="closed"):
        source.assign(tps(1))


def test_close_closes_all_connections(filled):
    source = reading(filled)
    take(source, 1_000)
    source.close()
    for broker in filled.broker_ids:
        filled.broker_down(broker)  # waits until its threads, one a connection, have ended
        assert filled.connections(broker) == 0


@pytest.mark.parametrize("bad", ["t", ("t", -1), ("t", "x"), (1, 1), None, ("t", 0, 0)])
def test_what_is_no_partition(filled, bad):
    with consumer(filled) as source, pytest.raises(OptionError, match=r"partitions: .*partition"):
        source.assign([bad])


def test_timeouts(filled):
    with reading(filled) as source:
        with pytest.raises(OptionError, match="timeout_s"):
            source.poll(-1)
        take(source, 1_000)
        with pytest.raises(UnknownTopicError, match="t-9"):
            source.end_offsets([TopicPartition("t", 9)], timeout_s=1)
        filled.fault(Delay(30_000, before=True), api="ListOffsets", times=None)
        with pytest.raises(KafkaTimeoutError, match="listing offsets"):
            source.end_offsets(tps(1), timeout_s=0.2)
        source.seek_to_beginning()
        with pytest.raises(KafkaTimeoutError, match=r"no position of t-0 within 0\.2 s"):
            source.position(TopicPartition("t", 0), timeout_s=0.2)


def test_a_program_that_polls_on_after_a_refusal_floods_no_broker(filled):
    rule = filled.fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED, api="ListOffsets", times=None)
    backoff = {"retry_backoff_ms": 60_000, "retry_backoff_max_ms": 60_000}
    with reading(filled, **backoff) as source:
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED from ListOffsets of t-0"):
            source.poll(WAIT_S)
        for _ in range(3):
            assert not source.poll(0.1)
    assert rule.fired == 1


@pytest.mark.parametrize("group", [None, "g"])
def test_short_polls_get_there_if_opening_a_connection_takes_long(filled, monkeypatch, group):
    monkeypatch.setattr(consumer_module, "MIN_RESPONSE_MS", 100)
    filled.fault(Delay(300, before=True), api="ApiVersions", times=None)
    found: list[Record] = []
    until_s = time.monotonic() + WAIT_S
    with reading(filled, group_id=group) as source:
        while not found:
            assert time.monotonic() < until_s
            found += source.poll(0.01)


@pytest.mark.parametrize("group", [None, "g"])
def test_position_ends_in_its_time_if_no_broker_answers(filled, group):
    filled.fault(Delay(60_000, before=True), times=None)
    with reading(filled, group_id=group) as source:
        began_s = time.monotonic()
        for _ in range(3):  # a poll would take 1 s, 2 s and 4 s
            with pytest.raises(KafkaTimeoutError, match=r"no position of t-0 within 0\.1 s"):
                source.position(tps(1)[0], 0.1)
        assert time.monotonic() - began_s < 3


def test_poll_with_0_gets_there(filled):
    found: list[Record] = []
    with reading(filled) as source:
        while len(found) < 1_000:
            found += source.poll(0)
    assert values(found) == numbers(1_000)


def test_two_threads_at_the_same_time_get_an_error(filled):
    with reading(filled) as source:
        take(source, 1_000)
        filled.clear_requests()
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                source.poll(WAIT_S)
            except BaseException as error:
                errors.append(error)

        source.seek_to_end()
        thread = threading.Thread(target=wait)
        thread.start()
        filled.wait_for_requests("ListOffsets")
        with pytest.raises(ConsumerStateError, match="another thread"):
            source.poll(0)
        with pytest.raises(ConsumerStateError, match="another thread"):
            source.close()
        source.wakeup()
        thread.join(WAIT_S)
        assert [type(error) for error in errors] == [WakeupError]
        source.wakeup()
        with pytest.raises(WakeupError):
            source.poll(WAIT_S)
        fill(filled, "t", 1)
        assert len(take(source, 1)) == 1


@pytest.mark.parametrize(
    "call", ["assign", "seek_to_beginning", "seek_to_end", "lag", "pause", "committed"]
)
def test_one_partition_instead_of_a_list_is_an_error_that_says_so(
    fake_cluster: FakeCluster, call: str
) -> None:
    with Consumer({"bootstrap.servers": fake_cluster.bootstrap_servers}) as consumer:
        with pytest.raises(OptionError, match=r"partitions is a list: write \[TopicPartition"):
            getattr(consumer, call)(TopicPartition("t", 0))


def _in_child(source: Consumer, results: Any) -> None:
    try:
        source.poll(1)
    except ConsumerStateError as error:
        results.put(str(error))
    source.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_gets_an_error_and_leaves_the_connections_alone(filled):
    with reading(filled, max_poll_records=100, group_id="g") as source:
        found = [*source.poll(WAIT_S)]
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        child = context.Process(target=_in_child, args=(source, results))
        child.start()
        assert "made before a fork" in results.get(timeout=WAIT_S)
        child.join(WAIT_S)
        assert not filled.committed("g")
        found += take(source, 1_000 - len(found))
        assert values(found) == numbers(1_000)
    assert filled.committed("g") == {("t", 0): 1_000}


@pytest.mark.parametrize("offset", [-3, True, 1 << 63, 1.5, "7", None])
def test_what_is_no_offset(filled, offset):
    with reading(filled, group_id="g") as source:
        with pytest.raises(OptionError, match="cannot seek to offset"):
            source.seek(tps(1)[0], offset)
        with pytest.raises(OptionError, match="cannot seek to offset"):
            source.assign({tps(1)[0]: offset})
        for given in (offset, -1, -2, OffsetSpec.latest()):
            with pytest.raises(OptionError, match="cannot commit offset"):
                source.commit({tps(1)[0]: given})


def test_numbers_of_numpy_are_offsets(filled):
    with reading(filled, group_id="g") as source:
        source.seek(tps(1)[0], np.int64(990))
        assert source.position(tps(1)[0]) == 990
        source.commit({tps(1)[0]: np.int64(17)})
    assert filled.committed("g") == {("t", 0): 990}


T0 = TopicPartition("t", 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "given", "message"),
    [
        ("seek", (T0, "5"), r"cannot seek to offset '5' of t-0; give a whole number"),
        ("seek", (T0, None), r"cannot seek to offset None of t-0"),
        ("seek", (T0, 1.5), r"cannot seek to offset 1\.5"),
        ("poll", (None,), r"timeout_s is a number of seconds, at least 0; got None"),
        ("poll", ("1",), "timeout_s"),
        ("poll_arrow", (float("nan"),), "timeout_s"),
        ("position", (T0, -1), "timeout_s"),
        ("position", (T0, "1"), "timeout_s"),
        ("close", (float("nan"),), "timeout_s"),
        ("commit", ([Record("t", 0, 0, 0, 0, None, b"", (), 1)],), r"records\.next_offsets"),
        (
            "commit",
            (Records(),),
            r"offsets .*next_offsets.* is a dict .*, got <Records",
        ),
        ("commit", ({T0: None},), "cannot commit offset None of t-0"),
        ("commit", ({T0: OffsetAndMetadata(-3)},), "cannot commit offset -3 of t-0"),
        ("commit", ({"t": 1},), "offsets .*: a partition is .*, got 't'"),
        ("offsets_for_times", ({T0: 1.5},), r"times_ms: the time of t-0.* got 1\.5"),
        ("offsets_for_times", ({T0: "now"},), "times_ms: the time of t-0.* got 'now'"),
        ("offsets_for_times", ([T0],), r"times_ms is a dict such as .*, got \["),
    ],
)
def test_wrong_arguments_are_errors_with_a_message(filled, call, given, message):
    with reading(filled, group_id="g") as source, pytest.raises(OptionError, match=message):
        getattr(source, call)(*given)


def test_what_committed_gives_can_be_sought_and_whole_floats_are_times(filled):
    with reading(filled, group_id="g", enable_auto_commit=False) as source:
        source.commit({T0: OffsetAndMetadata(3)})
        found = source.committed([T0])[T0]
        assert found is not None
        source.seek(T0, found)
        assert source.position(T0) == 3
        listed = source.offsets_for_times({T0: 1.7e12})[T0]
        assert listed is not None
        assert listed.offset == 0
