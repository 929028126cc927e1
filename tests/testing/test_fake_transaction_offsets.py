"""FakeCluster: offsets of groups in transactions, and what it tells of transactions.

What each request is answered stands in tests/real/test_fake_transactions_real.py; here is what
takes several brokers, held markers, faults or old releases.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from raw_client import Closed, RawClient

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.messages import (
    AddOffsetsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Drop, ErrorResponse
from sparkkafka.testing.fake.groups.state import OFFSETS_TOPIC, offsets_partition

UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT


class Writer(RawClient):
    """A client of one transactional id that remembers who it is."""

    tid = "x"
    producer_id = -1
    epoch = -1

    def init(self) -> int:
        response = self.call(
            InitProducerIdRequest(transactional_id=self.tid, transaction_timeout_ms=60_000)
        )
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        return int(response.error_code)

    def add_offsets(self, group: str = "g") -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.tid,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return int(self.call(request).error_code)

    def offsets(self, offsets: dict[int, int], group: str = "g") -> list[int]:
        request = TxnOffsetCommitRequest(
            transactional_id=self.tid,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name="t",
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=number, committed_offset=offset, committed_metadata=""
                        )
                        for number, offset in offsets.items()
                    ],
                )
            ],
        )
        return [row.error_code for row in self.call(request).topics[0].partitions]

    def end(self, *, commit: bool = True) -> int:
        request = EndTxnRequest(
            transactional_id=self.tid,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        return int(self.call(request).error_code)

    def committed(
        self, version: int, *, every: bool = True, stable: bool = False
    ) -> list[tuple[int, int, int]]:
        """(partition, offset, error) of all, or of partitions 0 and 1."""
        names: dict[str, Any] = {"name": "t", "partition_indexes": [0, 1]}
        if version >= 8:
            topics: Any = None if every else [OffsetFetchRequestTopics(**names)]
            group = OffsetFetchRequestGroup(group_id="g", topics=topics)
            request = OffsetFetchRequest(groups=[group], require_stable=stable)
            response = self.call(request, version).groups[0]
        else:
            topics = None if every else [OffsetFetchRequestTopic(**names)]
            request = OffsetFetchRequest(group_id="g", topics=topics, require_stable=stable)
            response = self.call(request, version)
        return sorted(
            (row.partition_index, row.committed_offset, row.error_code)
            for topic in response.topics
            for row in topic.partitions
        )


@pytest.fixture
def one(fake_cluster_factory: Any) -> FakeCluster:
    """One broker with a topic t of three partitions."""
    cluster: FakeCluster = fake_cluster_factory(1)
    cluster.create_topic("t", partitions=3)
    return cluster


@pytest.fixture
def writer(one: FakeCluster) -> Iterator[Writer]:
    with Writer(one) as client:
        yield client


def test_held_markers_hold_offsets_as_well(one: FakeCluster, writer: Writer) -> None:
    writer.init()
    assert writer.add_offsets() == 0
    found = one.transaction("x")
    assert found is not None
    position = (OFFSETS_TOPIC, offsets_partition("g"))
    assert (found.state, found.partitions) == ("Ongoing", (position,))
    assert writer.offsets({0: 5}) == [0]
    one.hold_markers()
    assert writer.end() == 0
    assert (one.pending_offsets("g"), one.committed("g")) == ({("t", 0): 5}, {})
    assert writer.offsets({1: 6}) == [0]  # this writer's transaction has no marker there yet
    one.release_markers("t")
    assert one.committed("g") == {}
    one.release_markers(*position)
    assert one.committed("g") == {("t", 0): 5, ("t", 1): 6}
    assert one.pending_offsets("g") == {}
    assert writer.end() == 0


@pytest.mark.parametrize("version", range(2, 9))
def test_pending_offsets_at_each_version_of_offset_fetch(
    one: FakeCluster, writer: Writer, version: int
) -> None:
    writer.init()
    writer.add_offsets()
    writer.offsets({0: 5})
    writer.end()
    writer.add_offsets()
    writer.offsets({0: 50, 1: 60})
    # Partition 1 has its first offset pending, so it is not among all.
    assert writer.committed(version) == [(0, 5, 0)]
    assert writer.committed(version, every=False) == [(0, 5, 0), (1, -1, 0)]
    if version >= 7:
        assert writer.committed(version, stable=True) == [(0, -1, UNSTABLE)]
        assert writer.committed(version, every=False, stable=True) == [
            (0, -1, UNSTABLE),
            (1, -1, UNSTABLE),
        ]
    writer.end()
    assert writer.committed(version) == [(0, 50, 0), (1, 60, 0)]
    assert writer.committed(version, stable=version >= 7) == [(0, 50, 0), (1, 60, 0)]


def test_two_transactions_on_one_group(one: FakeCluster, writer: Writer) -> None:
    with Writer(one) as other:
        other.tid = "y"
        for client, offset in ((writer, 1), (other, 2)):
            client.init()
            client.add_offsets()
            assert client.offsets({0: offset}) == [0]
        assert other.end() == 0
        assert one.committed("g") == {("t", 0): 2}
        assert writer.committed(8, stable=True) == [(0, -1, UNSTABLE)]
        assert writer.end() == 0
    # The later commit was y's, though x's transaction ended later.
    assert one.committed("g") == {("t", 0): 2}
    assert writer.committed(8, stable=True) == [(0, 2, 0)]


def test_each_goes_to_its_own_coordinator(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    fake_cluster.move_coordinator("x", 0)
    fake_cluster.move_coordinator("g", 1)
    wrong = ErrorCode.NOT_COORDINATOR
    with Writer(fake_cluster, 0) as first, Writer(fake_cluster, 1) as second:
        assert first.init() == 0
        second.producer_id, second.epoch = first.producer_id, first.epoch
        assert (second.add_offsets(), first.add_offsets()) == (wrong, 0)
        assert (first.offsets({0: 1}), second.offsets({0: 1})) == ([wrong], [0])
        assert (second.end(), first.end()) == (wrong, 0)
        assert fake_cluster.committed("g") == {("t", 0): 1}
        request = DescribeTransactionsRequest(transactional_ids=["x", "y"])
        codes = [
            [row.error_code for row in client.call(request).transaction_states]
            for client in (first, second)
        ]
        here = fake_cluster.coordinator("y")
        missing = [ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if here == n else wrong for n in (0, 1)]
        assert codes == [[0, missing[0]], [wrong, missing[1]]]
        listed = [
            [row.transactional_id for row in client.call(request).transaction_states]
            for client in (first, second)
            for request in [ListTransactionsRequest()]
        ]
        assert listed == [["x"], []]


@pytest.mark.parametrize("applied", [False, True])
def test_faults(one: FakeCluster, writer: Writer, applied: bool) -> None:
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    writer.init()
    one.fault(ErrorResponse(code, applied=applied), api="AddOffsetsToTxn")
    assert writer.add_offsets() == code
    found = one.transaction("x")
    assert found is not None and bool(found.partitions) is applied
    assert writer.add_offsets() == 0
    one.fault(ErrorResponse(code, applied=applied), api="TxnOffsetCommit", topic="t", partition=1)
    assert writer.offsets({0: 1, 1: 2}) == [0, code]
    assert set(one.pending_offsets("g")) == {("t", 0)} | ({("t", 1)} if applied else set())
    for api, request in (
        ("DescribeTransactions", DescribeTransactionsRequest(transactional_ids=["x"])),
        ("ListTransactions", ListTransactionsRequest()),
    ):
        one.fault(code, api=api)
        response = writer.call(request)
        responses = response.transaction_states or [response]
        assert [row.error_code for row in responses] == [code]
        assert len(writer.call(request).transaction_states) == 1


@pytest.mark.parametrize("drop", list(Drop))
def test_lost_connections(one: FakeCluster, writer: Writer, drop: Drop) -> None:
    writer.init()
    one.fault(drop, api="AddOffsetsToTxn")
    with pytest.raises(Closed):
        writer.add_offsets()
    found = one.transaction("x")
    assert found is not None and bool(found.partitions) is (drop is Drop.AFTER)


def test_without_verification_an_offset_may_come_late(fake_cluster_factory: Any) -> None:
    """As before Kafka 3.6: nobody ends it, so it stays pending until this writer's next end."""
    cluster: FakeCluster = fake_cluster_factory(1, kafka_version="2.8")
    cluster.create_topic("t")
    with Writer(cluster) as writer:
        writer.init()
        writer.add_offsets()
        writer.end()
        assert writer.offsets({0: 1}) == [0]
        assert writer.committed(7, every=False, stable=True)[0] == (0, -1, UNSTABLE)
        old = writer.epoch
        writer.init()
        writer.add_offsets()
        assert writer.offsets({0: 2}) == [0]
        writer.epoch = old
        assert writer.offsets({0: 3}) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        writer.epoch += 1
        assert writer.end() == 0
    assert cluster.committed("g") == {("t", 0): 2}


@pytest.mark.parametrize(
    ("release", "add", "commit", "describe", "listing"),
    [
        ("2.1", 1, 2, None, None),
        ("2.8", 3, 3, None, None),
        ("3.9", 4, 4, 0, 1),
        ("4.0", 4, 5, 0, 1),
    ],
)
def test_what_each_release_offers(
    fake_cluster_factory: Any,
    release: str,
    add: int,
    commit: int,
    describe: int | None,
    listing: int | None,
) -> None:
    cluster: FakeCluster = fake_cluster_factory(1, kafka_version=release)
    with RawClient(cluster) as client:
        offered = client.framing.versions
    expected = {25: add, 28: commit, 65: describe, 66: listing}
    assert {key: offered[key][1] if key in offered else None for key in expected} == expected
