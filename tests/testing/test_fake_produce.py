"""FakeCluster: a produce is accepted, refused and deduplicated as by a real broker."""

from __future__ import annotations

import time
from typing import Any

import pytest
from raw_client import Closed, RawClient, batch, produce_request, sequenced

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.messages import PartitionProduceData
from sparkkafka.protocol.records.compression import Codec, compress
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.log.log import PartitionLog
from tests.support import reference
from tests.support.reference import Record

CONTROL, TRANSACTIONAL, ZSTD = 0x20, 0x10, 4


@pytest.fixture
def one(fake_cluster_factory: Any) -> FakeCluster:
    """One broker with a topic t of one partition."""
    cluster: FakeCluster = fake_cluster_factory(1)
    cluster.create_topic("t")
    return cluster


def values(log: PartitionLog) -> list[bytes | None]:
    return [row.value for row in log.records()]


@pytest.mark.parametrize("version", range(3, 12))
def test_produce_in_each_version(one: FakeCluster, version: int) -> None:
    with RawClient(one) as client:
        assert client.produce("t", 0, batch([b"a", b"b"]), version=version).base_offset == 0
        row = client.produce("t", 0, batch([b"c"]), version=version)
    assert (row.error_code, row.base_offset, row.log_append_time_ms) == (0, 2, -1)
    assert values(one.log("t", 0)) == [b"a", b"b", b"c"]
    assert [row.base_offset for row in one.log("t", 0).batches()] == [0, 2]


def test_acks(one: FakeCluster) -> None:
    with RawClient(one) as client:
        assert client.produce("t", 0, batch([b"a"]), acks=1).error_code == 0
        row = client.produce("t", 0, batch([b"b"]), acks=2)
        assert row.error_code == ErrorCode.INVALID_REQUIRED_ACKS
        client.send(produce_request("t", 0, batch([b"c"]), acks=0), expect_response=False)
        # the next response on the wire is the next request's: there was none to acks 0
        assert client.produce("t", 0, batch([b"d"])).base_offset == 2
        # an error cannot be told, so the broker closes the connection
        client.send(produce_request("u", 0, batch([b"e"]), acks=0), expect_response=False)
        with pytest.raises(Closed):
            client.read(1)
    assert values(one.log("t", 0)) == [b"a", b"c", b"d"]


def test_the_wrong_broker_names_the_leader(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    fake_cluster.move_leader("t", 0, to=2)
    with RawClient(fake_cluster, 0) as client:
        response = client.call(produce_request("t", 0, batch([b"a"])))
        row = response.responses[0].partition_responses[0]
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (2, 1)
        endpoint = response.node_endpoints[0]
        assert f"{endpoint.host}:{endpoint.port}" == fake_cluster.address(2)
        old = client.produce("t", 0, batch([b"a"]), version=9)
        assert old.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        row = client.produce("t", 1, batch([b"a"]))
        assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def flip(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def gapped() -> bytes:
    now_ms = int(time.time() * 1000)
    rows = [Record(0, now_ms, None, b"a"), Record(2, now_ms, None, b"b")]
    return reference.encode_batch(rows, last_offset_delta=1)


GOOD = batch([b"a", b"b"])


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(b"", ErrorCode.INVALID_RECORD, id="nothing"),
        pytest.param(GOOD + GOOD, ErrorCode.INVALID_RECORD, id="two batches"),
        pytest.param(GOOD[:-1], ErrorCode.INVALID_RECORD, id="cut"),
        pytest.param(flip(GOOD, 16), ErrorCode.INVALID_RECORD, id="magic 3"),
        pytest.param(batch([b"a"], base_offset=5), ErrorCode.INVALID_RECORD, id="base offset"),
        pytest.param(flip(GOOD, len(GOOD) - 3), ErrorCode.CORRUPT_MESSAGE, id="payload flipped"),
        pytest.param(flip(GOOD, 18), ErrorCode.CORRUPT_MESSAGE, id="CRC flipped"),
        pytest.param(batch([]), ErrorCode.INVALID_RECORD, id="no records"),
        pytest.param(
            batch([b"a"], last_offset_delta=1), ErrorCode.INVALID_RECORD, id="last offset delta"
        ),
        pytest.param(gapped(), ErrorCode.INVALID_RECORD, id="offset deltas with a gap"),
        pytest.param(
            batch([b"a"], payload=b"\x02\0"), ErrorCode.INVALID_RECORD, id="damaged record"
        ),
        pytest.param(
            batch([b"a"], attributes=ZSTD), ErrorCode.INVALID_RECORD, id="does not decompress"
        ),
        pytest.param(batch([b"a"], attributes=CONTROL), ErrorCode.INVALID_RECORD, id="control"),
        pytest.param(
            sequenced([b"a"], -1), ErrorCode.INVALID_RECORD, id="producer without a sequence"
        ),
        pytest.param(
            sequenced([b"a"], 0, attributes=TRANSACTIONAL),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            id="no transactional id",
        ),
        pytest.param(
            batch([b"a"], time_ms=int(time.time() * 1000) + 2 * 3_600_000),
            ErrorCode.INVALID_TIMESTAMP,
            id="two hours ahead",
        ),
    ],
)
def test_what_a_broker_refuses(one: FakeCluster, data: bytes, code: ErrorCode) -> None:
    with RawClient(one) as client:
        row = client.produce("t", 0, data)
        assert (row.error_code, row.base_offset) == (code, -1)
        assert client.produce("t", 0, GOOD).base_offset == 0


def test_null_records_are_refused(one: FakeCluster) -> None:
    request = produce_request("t", 0, b"")
    request.topic_data[0].partition_data = [PartitionProduceData(index=0, records=None)]
    with RawClient(one) as client:
        row = client.call(request).responses[0].partition_responses[0]
    assert row.error_code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", list(Codec))
def test_compressed_batches_are_decompressed_to_be_checked(one: FakeCluster, codec: Codec) -> None:
    rows = [Record(index, int(time.time() * 1000), None, b"v%d" % index) for index in range(50)]
    payload = reference.encode_payload(rows, base_offset=0, base_timestamp=rows[0].timestamp)
    data = reference.encode_batch(
        rows, attributes=int(codec), payload=bytes(compress(codec, payload))
    )
    with RawClient(one) as client:
        assert client.produce("t", 0, data).error_code == 0
        if codec is Codec.ZSTD:
            row = client.produce("t", 0, data, version=6)
            assert row.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert values(one.log("t", 0)) == [row.value for row in rows]


def test_topic_configurations_are_obeyed(fake_cluster_factory: Any) -> None:
    cluster: FakeCluster = fake_cluster_factory(2)
    cluster.create_topic("small", configs={"max.message.bytes": str(len(GOOD))})
    cluster.create_topic("compacted", configs={"cleanup.policy": "compact,delete"})
    cluster.create_topic("stamped", configs={"message.timestamp.type": "LogAppendTime"})
    cluster.create_topic("safe", configs={"min.insync.replicas": "2"})
    for topic in ("small", "compacted", "stamped", "safe"):
        cluster.move_leader(topic, 0, to=0)
    with RawClient(cluster) as client:
        assert client.produce("small", 0, GOOD).error_code == 0
        row = client.produce("small", 0, batch([b"a", b"bc"]))
        assert row.error_code == ErrorCode.MESSAGE_TOO_LARGE

        row = client.produce("compacted", 0, GOOD)
        assert row.error_code == ErrorCode.INVALID_RECORD
        assert [item.batch_index for item in row.record_errors] == [0, 1]
        assert row.error_message

        before_ms = int(time.time() * 1000)
        row = client.produce("stamped", 0, batch([b"a"], time_ms=5))
        assert row.log_append_time_ms >= before_ms
        record = cluster.log("stamped", 0).records()[0]
        assert record.timestamp_ms == row.log_append_time_ms
        stored = cluster.log("stamped", 0).batches()[0]  # checks the new CRC
        assert stored.is_log_append_time

        assert client.produce("safe", 0, GOOD).error_code == 0
        cluster.broker_down(1)
        row = client.produce("safe", 0, GOOD)
        assert row.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert client.produce("safe", 0, GOOD, acks=1).error_code == 0


# --- idempotence ----------------------------------------------------------------------------------


def test_the_last_five_batches_are_deduplicated(one: FakeCluster) -> None:
    with RawClient(one) as client:
        for index in range(6):
            row = client.produce("t", 0, sequenced([b"a", b"b"], 2 * index))
            assert (row.error_code, row.base_offset) == (0, 2 * index)
        for index in range(1, 6):
            row = client.produce("t", 0, sequenced([b"a", b"b"], 2 * index))
            assert (row.error_code, row.base_offset) == (0, 2 * index)
        row = client.produce("t", 0, sequenced([b"a", b"b"], 0))
        assert row.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        # same first but another last sequence: no duplicate
        row = client.produce("t", 0, sequenced([b"a"], 10))
        assert row.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        # the data is not compared, as in Kafka
        assert client.produce("t", 0, sequenced([b"x", b"y"], 10)).base_offset == 10
    assert one.log("t", 0).end_offset == 12


def test_sequences_and_epochs(one: FakeCluster) -> None:
    def code(sequence: int, epoch: int = 0, producer_id: int = 7, count: int = 1) -> int:
        data = sequenced([b"a"] * count, sequence, epoch=epoch, producer_id=producer_id)
        return int(client.produce("t", 0, data).error_code)

    with RawClient(one) as client:
        assert code(100) == 0, "a broker without state accepts any sequence"
        assert code(102) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert code(101) == 0
        assert code(0, producer_id=8) == 0, "producers do not disturb each other"
        assert code(102, epoch=1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert code(0, epoch=1) == 0
        assert code(102, epoch=0) == ErrorCode.INVALID_PRODUCER_EPOCH
        one.log("t", 0).forget_producers()
        assert code(500, epoch=0) == 0


def test_sequences_wrap_to_zero(one: FakeCluster) -> None:
    with RawClient(one) as client:
        for sequence, count in ((2**31 - 2, 1), (2**31 - 1, 2), (1, 1)):
            data = sequenced([b"a"] * count, sequence)
            assert client.produce("t", 0, data).error_code == 0, sequence


def test_producer_state_survives_a_leader_move(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    data = sequenced([b"a"], 0)
    with RawClient(fake_cluster, 0) as client:
        assert client.produce("t", 0, data).base_offset == 0
    fake_cluster.move_leader("t", 0, to=1)
    with RawClient(fake_cluster, 1) as client:
        assert client.produce("t", 0, data).base_offset == 0
        assert client.produce("t", 0, sequenced([b"b"], 1)).base_offset == 1
    assert [row.partition_leader_epoch for row in fake_cluster.log("t", 0).batches()] == [0, 1]


def test_truncation_takes_the_producer_state_back(one: FakeCluster) -> None:
    with RawClient(one) as client:
        for sequence in range(3):
            client.produce("t", 0, sequenced([b"a"], sequence))
        one.truncate("t", 0, 1)
        row = client.produce("t", 0, sequenced([b"a"], 2))
        assert row.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert client.produce("t", 0, sequenced([b"a"], 1)).base_offset == 1
