"""FakeCluster: what a reader gets, and when."""

from __future__ import annotations

from typing import Any

import pytest
from raw_client import RawClient, batch, fetch_request, sequenced

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.records.batches import split_batches
from sparkkafka.testing.fake.cluster import FakeCluster

TRANSACTIONAL = 0x10


@pytest.fixture
def one(fake_cluster_factory: Any) -> FakeCluster:
    """One broker with a topic t of one partition: three batches at the offsets 0, 2 and 4."""
    cluster: FakeCluster = fake_cluster_factory(1)
    cluster.create_topic("t")
    for index in range(3):
        data = batch([b"a", b"b"], time_ms=1000 + 100 * index)
        cluster.append("t", 0, data, assign_offsets=True)
    return cluster


@pytest.mark.parametrize("version", range(4, 13))
def test_fetch_in_each_version(one: FakeCluster, version: int) -> None:
    with RawClient(one) as client:
        row = client.fetch("t", 0, 3, version)
    assert (row.high_watermark, row.last_stable_offset) == (6, 6)
    assert [item.base_offset for item in split_batches(row.records)] == [2, 4]


def test_the_first_batch_is_whole_and_the_last_is_cut(one: FakeCluster) -> None:
    size = len(one.log("t", 0).raw()) // 3
    with RawClient(one) as client:
        for limit in range(2 * size + 2):
            assert len(client.fetch("t", 0, 0, max_bytes=limit).records) == max(limit, size)


def test_only_the_first_partition_gets_a_batch_that_does_not_fit(
    fake_cluster_factory: Any,
) -> None:
    cluster = fake_cluster_factory(1)
    cluster.create_topic("t", partitions=2)
    for number in range(2):
        cluster.append("t", number, batch([b"a"]))
    request = fetch_request("t", 0, 0, max_bytes=10)
    request.topics += fetch_request("t", 1, 0, max_bytes=10).topics
    with RawClient(cluster) as client:
        first, second = client.call(request).responses
    assert len(first.partitions[0].records) > 61
    assert bytes(second.partitions[0].records) == b""


def test_a_fetch_waits_for_bytes_but_not_longer_than_asked(one: FakeCluster) -> None:
    with RawClient(one) as client:
        assert bytes(client.fetch("t", 0, 6, max_wait_ms=300).records) == b""
        client.send(fetch_request("t", 0, 6, max_wait_ms=30_000))
        one.wait_for_requests("Fetch", 2)
        one.append("t", 0, batch([b"late"]), assign_offsets=True)
        assert client.receive().responses[0].partitions[0].high_watermark == 7


def test_a_waiting_fetch_learns_that_the_leader_moved(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    with RawClient(fake_cluster, 0) as client:
        client.send(fetch_request("t", 0, 0, max_wait_ms=30_000))
        fake_cluster.wait_for_requests("Fetch")
        fake_cluster.move_leader("t", 0, to=1)
        row = client.receive().responses[0].partitions[0]
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        row = client.fetch("t", 0, 0, epoch=0)
        assert row.error_code == ErrorCode.FENCED_LEADER_EPOCH
    with RawClient(fake_cluster, 1) as client:
        assert client.fetch("t", 0, 0, epoch=1).error_code == 0
        assert client.fetch("t", 0, 0, epoch=2).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert client.offset("t", 0, -1, epoch=0).error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_offsets_out_of_range(one: FakeCluster) -> None:
    one.advance_log_start("t", 0, 3)
    with RawClient(one) as client:
        for offset, code in ((2, 1), (3, 0), (6, 0), (7, 1)):
            assert client.fetch("t", 0, offset).error_code == code
        # the batch that holds the start is still there as a whole
        assert split_batches(client.fetch("t", 0, 3).records)[0].base_offset == 2
        assert client.offset("t", 0, -2).offset == 3
    assert [row.offset for row in one.log("t", 0).records()] == [3, 4, 5]
    with pytest.raises(ValueError, match="can move within"):
        one.advance_log_start("t", 0, 7)


def test_offsets_by_time(one: FakeCluster) -> None:
    with RawClient(one) as client:
        for timestamp, offset, found in (
            (0, 0, 1000),
            (1001, 1, 1001),
            (1002, 2, 1100),
            (1201, 5, 1201),
            (1202, -1, -1),
            (-3, 5, 1201),
            (-1, 6, -1),
            (-2, 0, -1),
            (-4, 0, -1),  # no tiered storage: all is on the disk
            (-5, -1, -1),
        ):
            row = client.offset("t", 0, timestamp)
            assert (row.error_code, row.offset, row.timestamp) == (0, offset, found)
        assert client.offset("t", 0, -7).error_code == ErrorCode.UNSUPPORTED_VERSION
        assert client.offset("t", 1, -1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_read_committed_ends_at_the_open_transaction(fake_cluster_factory: Any) -> None:
    cluster: FakeCluster = fake_cluster_factory(1)
    cluster.create_topic("t")

    def write(producer_id: int, *values: bytes, sequence: int = 0) -> None:
        data = sequenced(list(values), sequence, producer_id=producer_id, attributes=TRANSACTIONAL)
        cluster.append("t", 0, data, assign_offsets=True)

    write(1, b"a0", b"a1")  # offsets 0, 1
    write(2, b"b0")  # 2
    cluster.append_marker("t", 0, 1, 0, commit=False)  # 3
    with RawClient(cluster) as client:
        row = client.fetch("t", 0, 0, isolation=1)
        assert (row.high_watermark, row.last_stable_offset) == (4, 2)
        assert [item.base_offset for item in split_batches(row.records)] == [0]
        assert [(item.producer_id, item.first_offset) for item in row.aborted_transactions] == [
            (1, 0)
        ]
        assert client.offset("t", 0, -1, isolation=1).offset == 2
        assert client.offset("t", 0, -1, isolation=0).offset == 4
        assert client.fetch("t", 0, 0).aborted_transactions is None
        cluster.append_marker("t", 0, 2, 0, commit=True)  # 4
        row = client.fetch("t", 0, 1, isolation=1)
        assert row.last_stable_offset == 5
        # the aborted one begins before the offset that was asked for, and is told all the same
        assert [item.first_offset for item in row.aborted_transactions] == [0]
        assert split_batches(row.records)[-1].is_control
    assert [row.value for row in cluster.log("t", 0).records()] == [b"a0", b"a1", b"b0"]
    assert [row.value for row in cluster.log("t", 0).records(committed=True)] == [b"b0"]


def test_a_truncated_log_is_an_error_for_readers_of_the_lost_part(one: FakeCluster) -> None:
    one.truncate("t", 0, 4)
    assert one.log("t", 0).end_offset == 4
    with RawClient(one) as client:
        row = client.fetch("t", 0, 5, last_fetched_epoch=0)
        assert (row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == (0, 4)
        assert client.fetch("t", 0, 4, last_fetched_epoch=0).diverging_epoch.epoch == -1


def test_preloaded_bytes_come_back_as_they_are(one: FakeCluster) -> None:
    log = one.log("t", 0)
    before = log.raw()
    good = batch([b"c"], base_offset=10)  # a gap, as compaction leaves it
    hostile = b"\xff" * 70
    assert one.append("t", 0, good) == 6
    assert log.end_offset == 11
    assert one.append("t", 0, hostile) == 11
    assert log.end_offset == 12
    one.append("t", 0, b"", end_offset=20)
    with RawClient(one) as client:
        assert bytes(client.fetch("t", 0, 0).records) == before + good + hostile
        assert bytes(client.fetch("t", 0, 7).records) == good + hostile
        assert bytes(client.fetch("t", 0, 15).records) == hostile
