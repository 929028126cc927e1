"""FakeCluster: transactions end, time out, fence and hang as on a real broker.

What each request is answered stands in tests/real/test_fake_transactions_real.py, where a real
broker answers beside the fake; here is what a test can do with the fake besides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from raw_client import Closed, RawClient, produce_request, sequenced

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Delay, Drop, ErrorResponse
from sparkkafka.testing.fake.transactions.transactions import LAST_EPOCH, TransactionState

TRANSACTIONAL = 0x10
MINUTE_MS = 60_000


class Writer(RawClient):
    """A client of the transactional id "x" that remembers who it is."""

    producer_id = -1
    epoch = -1

    def init(self, tid: str = "x", timeout_ms: int = MINUTE_MS) -> int:
        response = self.call(
            InitProducerIdRequest(transactional_id=tid, transaction_timeout_ms=timeout_ms)
        )
        if not response.error_code:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        return int(response.error_code)

    def add(self, *partitions: int, topic: str = "t", tid: str = "x") -> list[int]:
        response = self.call(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=tid,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=[
                    AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))
                ],
            )
        )
        return [
            item.partition_error_code
            for row in response.results_by_topic_v3_and_below
            for item in row.results_by_partition
        ]

    def write(self, value: bytes, sequence: int, partition: int = 0, topic: str = "t") -> int:
        data = sequenced(
            [value],
            sequence,
            producer_id=self.producer_id,
            epoch=self.epoch,
            attributes=TRANSACTIONAL,
        )
        request = produce_request(topic, partition, data)
        request.transactional_id = "x"
        return int(self.call(request).responses[0].partition_responses[0].error_code)

    def end(self, *, commit: bool = True, tid: str = "x") -> int:
        request = EndTxnRequest(
            transactional_id=tid,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        return int(self.call(request).error_code)


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


def state(cluster: FakeCluster, tid: str = "x") -> TransactionState:
    found = cluster.transaction(tid)
    assert found is not None
    return found.state


def committed(cluster: FakeCluster) -> list[bytes | None]:
    return [row.value for row in cluster.read_committed("t")]


def test_a_transaction_from_start_to_end(one: FakeCluster, writer: Writer) -> None:
    assert one.transaction("x") is None
    assert writer.init() == 0
    assert state(one) == "Empty"
    assert writer.add(0, 2) == [0, 0]
    assert writer.write(b"a", 0) == 0
    assert writer.write(b"b", 0, partition=2) == 0
    found = one.transaction("x")
    assert found is not None
    assert one.open_transactions() == [found]
    assert found[:6] == (
        "x",
        TransactionState.ONGOING,
        writer.producer_id,
        0,
        MINUTE_MS,
        (("t", 0), ("t", 2)),
    )
    assert found.start_ms > 0
    assert committed(one) == []
    assert writer.end() == 0
    assert committed(one) == [b"a", b"b"]
    assert state(one) is TransactionState.COMPLETE_COMMIT
    assert one.open_transactions() == []
    assert writer.add(1) == [0]
    assert writer.write(b"c", 0, partition=1) == 0
    assert writer.end(commit=False) == 0
    assert committed(one) == [b"a", b"b"]
    assert [row.value for row in one.log("t", 1).records()] == [b"c"]
    control = one.log("t", 1).batches()[-1]
    assert (control.is_control, control.producer_epoch) == (True, 0)


def test_a_reader_of_committed_records_sees_what_is_committed(
    one: FakeCluster, writer: Writer
) -> None:
    writer.init()
    for value, commit in ((b"a", True), (b"b", False), (b"c", True)):
        writer.add(0)
        writer.write(value, {b"a": 0, b"b": 1, b"c": 2}[value])
        writer.end(commit=commit)
    row = writer.fetch("t", 0, 0, isolation=1)
    assert row.last_stable_offset == 6
    assert row.aborted_transactions is not None
    assert [item.first_offset for item in row.aborted_transactions] == [2]
    assert committed(one) == [b"a", b"c"]


# --- markers that wait ----------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_held_markers(one: FakeCluster, writer: Writer, commit: bool) -> None:
    writer.init()
    writer.add(0, 1)
    writer.write(b"a", 0)
    writer.write(b"b", 0, partition=1)
    one.hold_markers()
    assert writer.end(commit=commit) == 0
    prepared = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    assert state(one) is prepared
    assert writer.end(commit=commit) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert writer.end(commit=not commit) == ErrorCode.INVALID_TXN_STATE
    assert writer.init() == ErrorCode.CONCURRENT_TRANSACTIONS
    assert writer.add(0) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    # in the open partition a write still passes, in another the coordinator is asked
    assert writer.write(b"c", 1) == 0
    assert writer.write(b"c", 0, partition=2) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert one.expire_transactions(later_ms=10 * MINUTE_MS) == []
    assert committed(one) == []
    one.release_markers("t", 1)
    assert committed(one) == ([b"b"] if commit else [])
    found = one.transaction("x")
    assert found is not None
    assert (found.state, found.partitions) == (prepared, (("t", 0),))
    assert one.open_transactions() == [found]
    one.release_markers()
    assert committed(one) == ([b"a", b"c", b"b"] if commit else [])
    assert writer.end(commit=commit) == 0
    assert writer.init() == 0
    assert writer.epoch == 1


def test_a_write_of_the_next_epoch_waits_for_the_markers(one: FakeCluster, writer: Writer) -> None:
    writer.init()
    writer.add(0)
    writer.write(b"a", 0)
    one.hold_markers()
    assert writer.end() == 0
    # as with transactions V2, where each end raises the epoch
    one.state.transactions.by_id["x"].producer_epoch = writer.epoch = writer.epoch + 1
    assert writer.write(b"b", 0) == ErrorCode.NOT_ENOUGH_REPLICAS
    one.release_markers()
    assert committed(one) == [b"a"]


def test_init_waits_for_the_markers_of_its_abort(one: FakeCluster, writer: Writer) -> None:
    writer.init()
    writer.add(0)
    writer.write(b"a", 0)
    one.hold_markers()
    for _ in range(3):
        assert writer.init() == ErrorCode.CONCURRENT_TRANSACTIONS
    assert state(one) is TransactionState.PREPARE_ABORT
    one.release_markers()
    assert writer.init() == 0
    assert writer.epoch == 2, "the abort took an epoch, of which nobody heard"


def test_a_marker_waits_for_a_leader(fake_cluster_factory: Any) -> None:
    cluster: FakeCluster = fake_cluster_factory(2)
    cluster.create_topic("t", partitions=2, replication_factor=1)
    down = cluster.leader("t", 1)
    cluster.move_coordinator("x", 1 - down)
    with Writer(cluster, 1 - down) as writer:
        writer.init()
        writer.add(0, 1)
        assert writer.write(b"a", 0) == 0
        cluster.broker_down(down)
        assert writer.end() == 0
        assert state(cluster) is TransactionState.PREPARE_COMMIT
        assert writer.end() == ErrorCode.CONCURRENT_TRANSACTIONS
        cluster.broker_up(down)
        assert state(cluster) is TransactionState.COMPLETE_COMMIT
        assert writer.end() == 0
    assert committed(cluster) == [b"a"]


def test_a_topic_is_deleted_in_a_transaction(one: FakeCluster, writer: Writer) -> None:
    one.create_topic("u")
    writer.init()
    writer.add(0)
    writer.add(0, topic="u")
    writer.write(b"a", 0)
    assert writer.write(b"b", 0, topic="u") == 0
    one.delete_topic("u")
    assert writer.write(b"c", 1, topic="u") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert writer.end() == 0
    assert state(one) is TransactionState.COMPLETE_COMMIT
    assert committed(one) == [b"a"]


# --- fencing and time -----------------------------------------------------------------------------


def test_a_transaction_times_out(one: FakeCluster, writer: Writer) -> None:
    writer.init()
    writer.add(0)
    writer.write(b"a", 0)
    with Writer(one) as other:
        other.init("y", timeout_ms=2 * MINUTE_MS)
        other.add(1, tid="y")
        assert one.expire_transactions() == []
        assert one.expire_transactions(later_ms=MINUTE_MS + 1) == ["x"]
        assert [row.transactional_id for row in one.open_transactions()] == ["y"]
        assert other.end(tid="y") == 0
    assert writer.end() == ErrorCode.PRODUCER_FENCED
    assert writer.write(b"b", 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert committed(one) == []
    found = one.transaction("x")
    assert found is not None
    assert (found.state, found.producer_epoch) == (TransactionState.COMPLETE_ABORT, 1)
    assert writer.init() == 0
    assert writer.epoch == 2


def test_a_marker_fences_partitions_that_had_no_data(one: FakeCluster, writer: Writer) -> None:
    writer.init()
    writer.add(0, 1)
    assert one.expire_transactions(later_ms=2 * MINUTE_MS) == ["x"]
    assert writer.write(b"a", 0, partition=1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert one.log("t", 1).producers[writer.producer_id].epoch == 1


def test_epochs_end(one: FakeCluster, writer: Writer) -> None:
    writer.init()
    first = writer.producer_id
    one.state.transactions.by_id["x"].producer_epoch = writer.epoch = LAST_EPOCH - 1
    assert writer.init() == 0
    assert (writer.producer_id, writer.epoch) == (first, LAST_EPOCH)
    writer.add(0)
    assert writer.init() == ErrorCode.CONCURRENT_TRANSACTIONS, "the last epoch can be fenced, too"
    assert writer.init() == 0
    assert (writer.producer_id != first, writer.epoch) == (True, 0)


def test_a_transactional_id_expires(one: FakeCluster, writer: Writer) -> None:
    writer.init()
    writer.add(0)
    with pytest.raises(ValueError, match="Ongoing"):
        one.forget_transactional_id("x")
    writer.end()
    one.forget_transactional_id("x")
    assert one.transaction("x") is None
    assert writer.end() == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert writer.add(0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    first = writer.producer_id
    assert writer.init() == 0
    assert (writer.producer_id != first, writer.epoch) == (True, 0)
    with pytest.raises(KeyError):
        one.forget_transactional_id("y")


def test_the_longest_timeout_can_be_set(fake_cluster_factory: Any) -> None:
    cluster: FakeCluster = fake_cluster_factory(1, max_transaction_timeout_ms=1000)
    with Writer(cluster) as writer:
        assert writer.init(timeout_ms=1001) == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert cluster.transaction("x") is None
        assert writer.init(timeout_ms=1000) == 0


@pytest.mark.parametrize(
    "options",
    [{"transaction_verification": False}, {"kafka_version": "2.8"}],
    ids=["switch", "release"],
)
def test_without_verification_a_late_write_hangs(
    fake_cluster_factory: Any, options: dict[str, Any]
) -> None:
    cluster: FakeCluster = fake_cluster_factory(1, **options)
    cluster.create_topic("t")
    with Writer(cluster) as writer:
        writer.init()
        writer.add(0)
        writer.write(b"a", 0)
        writer.end()
        assert writer.write(b"late", 1) == 0
    assert cluster.open_transactions() == []
    assert cluster.log("t", 0).last_stable_offset == 2
    assert committed(cluster) == [b"a"]


# --- brokers and faults ---------------------------------------------------------------------------


def test_the_coordinator_moves(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    fake_cluster.move_leader("t", 0, to=0)
    fake_cluster.move_coordinator("x", 1)
    with Writer(fake_cluster, 1) as old, Writer(fake_cluster, 0) as new:
        assert new.init() == ErrorCode.NOT_COORDINATOR
        assert old.init() == 0
        assert old.add(0) == [0]
        new.producer_id, new.epoch = old.producer_id, old.epoch
        assert new.add(0) == [ErrorCode.NOT_COORDINATOR]
        assert new.write(b"a", 0) == 0
        fake_cluster.move_coordinator("x", 0)
        assert old.end() == ErrorCode.NOT_COORDINATOR
        fake_cluster.broker_down(1)
        assert new.end() == 0
    assert committed(fake_cluster) == [b"a"]


def test_an_end_whose_response_is_lost(one: FakeCluster, writer: Writer) -> None:
    writer.init()
    writer.add(0)
    writer.write(b"a", 0)
    one.fault(Drop.BEFORE, api="EndTxn")
    with pytest.raises(Closed):
        writer.end()
    assert state(one) is TransactionState.ONGOING
    one.fault(Drop.AFTER, api="EndTxn")
    with Writer(one) as again:
        again.producer_id, again.epoch = writer.producer_id, writer.epoch
        with pytest.raises(Closed):
            again.end()
    assert committed(one) == [b"a"]
    with Writer(one) as again:
        again.producer_id, again.epoch = writer.producer_id, writer.epoch
        assert again.end() == 0


def test_faults_of_the_coordinator(one: FakeCluster, writer: Writer) -> None:
    one.fault(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, api="InitProducerId")
    assert writer.init() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert one.transaction("x") is None
    one.fault(Delay(1), api="InitProducerId")
    assert writer.init() == 0

    one.fault(ErrorCode.CONCURRENT_TRANSACTIONS, api="AddPartitionsToTxn")
    assert writer.add(0, 1) == [ErrorCode.CONCURRENT_TRANSACTIONS] * 2
    one.fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED, api="AddPartitionsToTxn", partition=1)
    assert writer.add(0, 1) == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ]
    assert state(one) is TransactionState.EMPTY
    one.fault(
        ErrorResponse(ErrorCode.REQUEST_TIMED_OUT, applied=True),
        api="AddPartitionsToTxn",
        topic="t",
    )
    assert writer.add(0, 1) == [ErrorCode.REQUEST_TIMED_OUT] * 2
    assert state(one) is TransactionState.ONGOING
    assert len(one.requests_of("AddPartitionsToTxn", topic="t", partition=1)) == 3

    writer.write(b"a", 0)
    one.fault(ErrorCode.COORDINATOR_NOT_AVAILABLE, api="EndTxn")
    assert writer.end() == ErrorCode.COORDINATOR_NOT_AVAILABLE
    one.fault(
        ErrorResponse(ErrorCode.UNKNOWN_SERVER_ERROR, applied=True, top_level=True), api="EndTxn"
    )
    assert writer.end() == ErrorCode.UNKNOWN_SERVER_ERROR
    assert committed(one) == [b"a"]
    one.fault(lambda request: ErrorCode.INVALID_TXN_STATE, api="EndTxn")
    assert writer.end() == ErrorCode.INVALID_TXN_STATE
    assert writer.end() == 0


def test_old_brokers_offer_old_versions(fake_cluster_factory: Any) -> None:
    cluster: FakeCluster = fake_cluster_factory(1, kafka_version="2.1")
    with Writer(cluster) as writer:
        assert writer.framing.versions is not None
        found = {
            cls.API_NAME: writer.framing.versions[cls.API_KEY][1]
            for cls in (InitProducerIdRequest, AddPartitionsToTxnRequest, EndTxnRequest)
        }
    assert found == {"InitProducerId": 1, "AddPartitionsToTxn": 1, "EndTxn": 1}


def test_metadata_of_a_groups_offsets(one: FakeCluster, writer: Writer) -> None:
    request = OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(
                name="t",
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=1, committed_offset=5, committed_metadata="batch 7"
                    )
                ],
            )
        ],
    )
    assert writer.call(request).topics[0].partitions[0].error_code == 0
    assert one.committed("g") == {("t", 1): 5}
    assert one.committed_metadata("g") == {("t", 1): "batch 7"}
