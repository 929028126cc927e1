"""Ranges of several partitions: whatever happens, each record comes once, in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.consumer.range_reader import OpenBounds, PlannedRange, RangeReader
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import (
    BrokerError,
    CorruptRecordError,
    DataLossError,
    DecodeError,
    ErrorCode,
)
from sparkkafka.protocol.columns.columns import Selection
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import CutFrame, Drop, ErrorResponse, Garbage, Throttle
from tests.client.support import fill, numbers, open_cluster, reader, settings
from tests.support.options import parse_fetch_options

PARTITIONS = 6
COUNT = 1_200
BATCHES = {"batch_size": 500, "linger_ms": 0}
SMALL_FETCH = {"max_partition_fetch_bytes": 1_200}


@pytest.fixture
def filled(fake_cluster: FakeCluster) -> FakeCluster:
    fake_cluster.create_topic("t", partitions=PARTITIONS)
    fill(fake_cluster, "t", COUNT, partitions=PARTITIONS, **BATCHES)
    fake_cluster.clear_requests()
    return fake_cluster


def expected(partition: int) -> list[bytes]:
    """As `write` spreads them, 50 in turn."""
    turns = [numbers(COUNT)[at : at + 50] for at in range(0, COUNT, 50)]
    return [value for turn in turns[partition::PARTITIONS] for value in turn]


def planned(start: int = 0, end: int = 200, **more: Any) -> dict[TopicPartition, PlannedRange]:
    return {
        TopicPartition("t", number): PlannedRange(Selection(start, end), **more)
        for number in range(PARTITIONS)
    }


def opened(
    cluster: Cluster, ranges: dict[TopicPartition, PlannedRange], **config: Any
) -> RangeReader:
    timeout_ms = config.pop("poll_timeout_ms", 5_000)
    fail = config.pop("fail_on_data_loss", True)
    return RangeReader(
        cluster,
        ranges,
        parse_fetch_options(settings("unused:1", **config)),
        poll_timeout_ms=timeout_ms,
        fail_on_data_loss=fail,
    )


def values_of(source: RangeReader) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    for tp, records in source:
        assert len(records)
        found[tp.partition] += records.values.to_pylist()
    return found


def read_all(
    cluster: Cluster, ranges: dict[TopicPartition, PlannedRange], **config: Any
) -> dict[int, list[bytes]]:
    with opened(cluster, ranges, **config) as source:
        return values_of(source)


def everything() -> dict[int, list[bytes]]:
    return {at: expected(at) for at in range(PARTITIONS)}


def test_one_request_to_each_leader(filled: FakeCluster) -> None:
    with open_cluster(filled) as cluster:
        assert read_all(cluster, planned()) == everything()
    fetches = [request for request in filled.requests if request.api == "Fetch"]
    assert len(fetches) == 3
    requested = sum(len(topic.partitions) for fetch in fetches for topic in fetch.message.topics)
    assert requested == PARTITIONS


def test_the_connection_that_metadata_came_by_is_used(filled: FakeCluster) -> None:
    with open_cluster(filled) as cluster:
        read_all(cluster, planned())
    assert len([request for request in filled.requests if request.api == "ApiVersions"]) == 3


def test_ranges_are_cut_at_both_ends(filled: FakeCluster) -> None:
    ranges = planned(13, 117)
    with open_cluster(filled) as cluster:
        found = read_all(cluster, ranges, **SMALL_FETCH)
    assert found == {number: expected(number)[13:117] for number in range(PARTITIONS)}


def test_only_the_chosen_columns_are_decoded(filled: FakeCluster) -> None:
    chosen = {TopicPartition("t", 0): PlannedRange(Selection(0, 200, frozenset({"timestamp"})))}
    with open_cluster(filled) as cluster, opened(cluster, chosen) as source:
        pieces = [records for _, records in source]
    assert sum(map(len, pieces)) == 200
    assert all(piece.values is None and piece.timestamps_ms is not None for piece in pieces)


@pytest.mark.slow
@pytest.mark.parametrize("nth", [1, 2, 5])
@pytest.mark.parametrize(
    "action",
    [Drop.BEFORE, Drop.AFTER, CutFrame(0), CutFrame(4), CutFrame(40), CutFrame(-1), Throttle(50)],
    ids=repr,
)
def test_a_lost_connection_loses_and_doubles_nothing(
    filled: FakeCluster, action: Any, nth: int
) -> None:
    rule = filled.fault(action, api="Fetch", nth=nth)
    with open_cluster(filled) as cluster:
        assert read_all(cluster, planned(), **SMALL_FETCH) == everything()
    assert rule.fired == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    ],
    ids=lambda code: code.name,
)
def test_passing_errors_lose_and_double_nothing(filled: FakeCluster, code: ErrorCode) -> None:
    filled.fault(code, api="Fetch", nth=2, times=3)
    with open_cluster(filled) as cluster:
        assert read_all(cluster, planned(), **SMALL_FETCH) == everything()


def test_an_error_that_no_retry_fixes_is_raised(filled: FakeCluster) -> None:
    filled.fault(ErrorResponse(ErrorCode.TOPIC_AUTHORIZATION_FAILED), api="Fetch", times=None)
    with open_cluster(filled) as cluster, opened(cluster, planned()) as source:
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            list(source)


def test_garbage_is_a_decode_error_that_names_the_broker(filled: FakeCluster) -> None:
    filled.fault(Garbage(b"\x00\x00\x00\x10" + b"\xff" * 16), api="Fetch")
    with (
        open_cluster(filled) as cluster,
        opened(cluster, planned()) as source,
        pytest.raises(DecodeError, match=r"127\.0\.0\.1:\d+"),
    ):
        list(source)


def test_a_damaged_batch_is_an_error_behind_the_sound_ones(filled: FakeCluster) -> None:
    raw = bytearray(filled.log("t", 0).raw())
    raw[-30] ^= 4
    filled.create_topic("bad", partitions=1)
    filled.append("bad", 0, bytes(raw), end_offset=200)
    tp = TopicPartition("bad", 0)
    found: list[bytes] = []
    with open_cluster(filled) as cluster:
        with opened(cluster, {tp: PlannedRange(Selection(0, 200))}) as source:
            with pytest.raises(
                CorruptRecordError, match=r"topic bad partition 0 offset \d+"
            ) as raised:
                for _, records in source:
                    found += records.values.to_pylist()
    assert found == expected(0)[: raised.value.offset]
    assert len(found) >= 100


def test_offsets_that_are_gone_are_data_loss_of_their_range(filled: FakeCluster) -> None:
    with Admin(settings(filled)) as admin:
        admin.delete_records({TopicPartition("t", 2): 150}).all()
    with open_cluster(filled) as cluster:
        with opened(cluster, planned()) as source, pytest.raises(DataLossError, match="t-2"):
            list(source)
        with opened(cluster, planned(), fail_on_data_loss=False) as source:
            found = values_of(source)
    assert source.lost == {TopicPartition("t", 2): 150}
    assert found == everything() | {2: expected(2)[150:]}


def test_a_topic_made_again_is_data_loss(filled: FakeCluster) -> None:
    with open_cluster(filled) as cluster:
        cluster.topics(["t"])
        topic_id = cluster.topic_id("t")
    with open_cluster(filled) as cluster:
        assert read_all(cluster, planned(topic_id=topic_id)) == everything()
    filled.delete_topic("t")
    filled.create_topic("t", partitions=PARTITIONS)
    fill(filled, "t", COUNT, partitions=PARTITIONS, **BATCHES)
    with open_cluster(filled) as cluster:
        ranges = planned(topic_id=topic_id)
        with opened(cluster, ranges) as source, pytest.raises(DataLossError, match="recreated"):
            list(source)
        with opened(cluster, ranges, fail_on_data_loss=False) as source:
            assert not list(source)
        assert source.lost == dict.fromkeys(ranges, 200)


def test_a_partition_that_gives_nothing_does_not_keep_the_others(filled: FakeCluster) -> None:
    beyond = planned() | {TopicPartition("t", 3): PlannedRange(Selection(0, 250))}
    rows = 0
    config = {"fetch_max_wait_ms": 50, "poll_timeout_ms": 800}
    with open_cluster(filled) as cluster, opened(cluster, beyond, **config) as source:
        with pytest.raises(DataLossError, match=r"t-3.* ends at 200"):
            for _, records in source:
                rows += len(records)
    assert rows == PARTITIONS * 200


def test_open_ends_are_bound_by_the_first_responses(filled: FakeCluster) -> None:
    """One request to each leader, though the last partition is empty."""
    filled.create_topic("empty")
    ends = OpenBounds(end=True, leader_epoch=0)
    ranges = planned(0, 0, open_bounds=ends)
    ranges[TopicPartition("empty", 0)] = PlannedRange(Selection(0, 0), open_bounds=ends)
    with open_cluster(filled) as cluster:
        assert read_all(cluster, ranges, fetch_max_wait_ms=20_000) == everything()
    fetches = filled.requests_of("Fetch")
    assert {request.message.max_wait_ms for request in fetches[:3]} == {1}


def test_a_moved_leader_is_found(filled: FakeCluster) -> None:
    def move(request: Any) -> None:
        filled.move_leader("t", 0, (filled.leader("t", 0) + 1) % 3)

    filled.fault(move, api="Fetch", nth=2)
    with open_cluster(filled) as cluster:
        assert read_all(cluster, planned(), **SMALL_FETCH) == everything()


def test_leaving_early_closes_all_connections(filled: FakeCluster) -> None:
    with open_cluster(filled) as cluster, opened(cluster, planned(), **SMALL_FETCH) as source:
        rows: Iterator[Any] = iter(source)
        next(rows)
    assert source._fetcher.is_closed


def test_a_single_range_reads_the_same(filled: FakeCluster) -> None:
    with open_cluster(filled) as cluster:
        with reader(cluster, "t", 20, 90, partition=4) as single:
            values = [value for _, records in single for value in records.values.to_pylist()]
        assert read_all(cluster, planned(20, 90))[4] == values
