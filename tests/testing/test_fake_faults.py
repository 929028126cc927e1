"""FakeCluster: each fault does what it says, to the request that it was meant for."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from raw_client import Closed, RawClient, batch, fetch_request, produce_request, sequenced

from sparkkafka.errors import DecodeError, ErrorCode
from sparkkafka.protocol.messages import (
    ApiVersionsRequest,
    DescribeClusterRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import (
    CutFrame,
    Delay,
    Drop,
    ErrorResponse,
    Garbage,
    RecordedRequest,
    Throttle,
    WrongCorrelationId,
)
from tests.support.waiting import wait_until

DATA = batch([b"a"])


@pytest.fixture
def one(fake_cluster_factory: Any) -> FakeCluster:
    """One broker with a topic t of two partitions."""
    cluster: FakeCluster = fake_cluster_factory(1)
    cluster.create_topic("t", partitions=2)
    return cluster


def test_drop_before_and_after(one: FakeCluster) -> None:
    for action, end in ((Drop.BEFORE, 0), (Drop.AFTER, 1)):
        one.fault(api="Produce", action=action)
        with RawClient(one) as client:
            client.send(produce_request("t", 0, sequenced([b"a"], 0)))
            with pytest.raises(Closed) as closed:
                client.receive()
            assert closed.value.rest == b""
        assert one.log("t", 0).end_offset == end
    with RawClient(one) as client:
        assert client.produce("t", 0, sequenced([b"a"], 0)).base_offset == 0
    assert one.log("t", 0).end_offset == 1
    assert len(one.requests_of("Produce")) == 3


def test_an_error_code_hits_its_partition_only(one: FakeCluster) -> None:
    rule = one.fault(ErrorCode.NOT_LEADER_OR_FOLLOWER, api="Produce", topic="t", partition=1)
    request = produce_request("t", 0, DATA)
    request.topic_data += produce_request("t", 1, DATA).topic_data
    with RawClient(one) as client:
        assert client.produce("t", 0, DATA).error_code == 0
        assert rule.fired == 0
        first, second = client.call(request).responses
        assert first.partition_responses[0].error_code == 0
        assert second.partition_responses[0].error_code == 6
        assert rule.fired == 1
        assert client.produce("t", 1, DATA).error_code == 0
    assert [one.log("t", number).end_offset for number in range(2)] == [2, 1]


def test_an_error_that_comes_after_the_append(one: FakeCluster) -> None:
    one.fault(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, api="Produce")
    one.fault(ErrorResponse(ErrorCode.REQUEST_TIMED_OUT, applied=True), api="Produce")
    one.fault(ErrorResponse(ErrorCode.REQUEST_TIMED_OUT), api="Produce")
    with RawClient(one) as client:
        codes = [client.produce("t", 0, DATA).error_code for _ in range(4)]
    assert codes == [20, 7, 7, 0]
    assert one.log("t", 0).end_offset == 3


def test_nth_times_and_broker(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    rule = fake_cluster.fault(ErrorCode.OFFSET_NOT_AVAILABLE, api="Fetch", broker=0, nth=2, times=2)
    with RawClient(fake_cluster, 0) as client, RawClient(fake_cluster, 1) as other:
        codes = []
        for _ in range(4):
            other.fetch("t", 0, 0)
            codes.append(client.fetch("t", 0, 0).error_code)
    assert codes == [0, 78, 78, 0]
    assert (rule.matched, rule.fired, rule.spent) == (3, 2, True)
    with pytest.raises(ValueError, match="count from 1"):
        fake_cluster.fault(Drop.AFTER, nth=0)
    with pytest.raises(TypeError, match="not an action"):
        fake_cluster.fault(6)  # type: ignore[arg-type]


def test_a_rule_without_end_can_be_cleared(one: FakeCluster) -> None:
    one.fault(ErrorCode.UNKNOWN_LEADER_EPOCH, times=None, topic="t")
    with RawClient(one) as client:
        assert {client.fetch("t", 0, 0).error_code for _ in range(5)} == {75}
        assert client.offset("t", 0, -1).error_code == 75
        one.clear_faults()
        assert client.fetch("t", 0, 0).error_code == 0


def test_a_code_that_is_not_in_the_table(one: FakeCluster) -> None:
    one.fault(ErrorResponse(9999), api="Produce")
    with RawClient(one) as client:
        assert client.produce("t", 0, DATA).error_code == 9999


def test_errors_in_metadata(one: FakeCluster) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    one.fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED, api="Metadata", topic="t")
    one.fault(ErrorCode.LEADER_NOT_AVAILABLE, api="Metadata", topic="t", partition=1)
    one.fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED, api="Metadata", topic="u")
    with RawClient(one) as client:
        assert client.call(request).topics[0].error_code == 29
        first, second = client.call(MetadataRequest(topics=None)).topics[0].partitions
        assert (first.error_code, first.leader_id) == (0, 0)
        assert (second.error_code, second.leader_id) == (5, -1)
        missing = client.call(MetadataRequest(topics=[MetadataRequestTopic(name="u")]))
        assert missing.topics[0].error_code == 29
        assert client.call(request).topics[0].error_code == 0


def test_errors_of_a_whole_response(one: FakeCluster) -> None:
    one.fault(ErrorResponse(ErrorCode.UNKNOWN_SERVER_ERROR, top_level=True), api="Fetch")
    one.fault(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, api="DescribeCluster")
    with RawClient(one) as client:
        response = client.call(fetch_request("t", 0, 0))
        assert (response.error_code, response.responses) == (-1, [])
        assert client.call(DescribeClusterRequest()).error_code == 31
        assert client.call(DescribeClusterRequest()).error_code == 0


@pytest.mark.slow
def test_delays(one: FakeCluster) -> None:
    one.fault(Delay(700), api="Produce")
    one.fault(Delay(700, before=True), api="Produce")
    with RawClient(one) as client:
        for number, applied_at_once in ((0, True), (1, False)):
            started_s = time.monotonic()
            client.send(produce_request("t", number, DATA))
            one.wait_for_requests("Produce", number + 1)
            if applied_at_once:
                wait_until(lambda: one.log("t", 0).end_offset)
            else:
                assert one.log("t", number).end_offset == 0
            assert client.receive().responses[0].partition_responses[0].error_code == 0
            assert time.monotonic() - started_s >= 0.7
            assert one.log("t", number).end_offset == 1


def test_throttling_mutes_the_connection(one: FakeCluster) -> None:
    one.fault(Throttle(700), api="Fetch")
    with RawClient(one) as client:
        assert client.call(fetch_request("t", 0, 0)).throttle_time_ms == 700
        answered_s = time.monotonic()
        assert client.call(fetch_request("t", 0, 0)).throttle_time_ms == 0
        assert one.requests_of("Fetch")[1].time_s - answered_s > 0.6


def test_a_throttled_fetch_may_be_empty(one: FakeCluster) -> None:
    one.fault(Throttle(7, empty=True), api="Fetch")
    with RawClient(one) as client:
        client.produce("t", 0, DATA)
        empty = client.call(fetch_request("t", 0, 0))
        row = empty.responses[0].partitions[0]
        assert (empty.throttle_time_ms, row.error_code, row.high_watermark) == (7, 0, 1)
        assert len(row.records) == 0
        assert len(client.call(fetch_request("t", 0, 0)).responses[0].partitions[0].records)


def test_a_request_above_the_limit_closes_the_connection(fake_cluster_factory: Any) -> None:
    cluster = fake_cluster_factory(1, max_request_bytes=1_000)
    cluster.create_topic("t")
    with RawClient(cluster) as client:
        assert client.produce("t", 0, batch([b"x" * 800])).error_code == 0
        client.send(produce_request("t", 0, batch([b"x" * 1_000])))
        with pytest.raises(Closed):
            client.receive()
    assert cluster.log("t", 0).end_offset == 1


def test_a_frame_can_be_cut_at_every_byte(one: FakeCluster) -> None:
    with RawClient(one) as client:
        client.send(MetadataRequest(topics=[]))
        frame = client.read(4)
        frame += client.read(int.from_bytes(frame, "big"))
    for size in range(0, len(frame), 7):
        one.fault(CutFrame(size), api="Metadata")
        with RawClient(one) as client:
            client.send(MetadataRequest(topics=[]))
            with pytest.raises(Closed) as closed:
                client.read(len(frame))
            assert len(closed.value.rest) == size
    one.fault(CutFrame(-1), api="Metadata")
    with RawClient(one) as client:
        client.send(MetadataRequest(topics=[]))
        with pytest.raises(Closed) as closed:
            client.read(len(frame))
        assert len(closed.value.rest) == len(frame) - 1


def test_garbage_and_wrong_correlation_ids(one: FakeCluster) -> None:
    one.fault(Garbage(b"HTTP/1.1 400 Bad Request\r\n\r\n"), api="ApiVersions")
    with (
        RawClient(one, handshake=False) as client,
        pytest.raises(DecodeError, match="HTTP"),
    ):
        client.call(ApiVersionsRequest())
    one.fault(WrongCorrelationId(), api="Metadata")
    with RawClient(one) as client, pytest.raises(DecodeError, match="response to request"):
        client.call(MetadataRequest(topics=[]))


def test_callable_faults(one: FakeCluster) -> None:
    seen: list[RecordedRequest] = []

    def action(request: RecordedRequest) -> Any:
        seen.append(request)
        one.create_topic(f"made-{len(seen)}")  # may change the cluster
        return (None, MetadataResponse(cluster_id="made up"), Drop.BEFORE)[len(seen) - 1]

    one.fault(action, api="Metadata", times=3)
    with RawClient(one) as client:
        response = client.call(MetadataRequest(topics=None))
        assert sorted(row.name for row in response.topics) == ["made-1", "t"]
        assert client.call(MetadataRequest(topics=[])).cluster_id == "made up"
        client.send(MetadataRequest(topics=[]))
        with pytest.raises(Closed):
            client.receive()
    assert [row.client_id for row in seen] == ["raw"] * 3
    assert {row.message.allow_auto_topic_creation for row in seen} == {True}


def test_a_callable_may_take_its_own_broker_down(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    fake_cluster.fault(lambda request: fake_cluster.broker_down(request.broker), api="Produce")
    with RawClient(fake_cluster, 0) as client:
        client.send(produce_request("t", 0, DATA))
        with pytest.raises(Closed):
            client.receive()
    # The leader moves after the connection is closed: that is when a controller notices.
    until_s = time.monotonic() + 10
    while fake_cluster.leader("t", 0) == 0 and time.monotonic() < until_s:
        time.sleep(0.01)
    assert fake_cluster.leader("t", 0) != 0


def test_a_failure_of_the_fake_does_not_stay_unseen() -> None:
    cluster = FakeCluster()
    with pytest.raises(RuntimeError, match="made the fake broker fail"), cluster:
        cluster.fault(lambda request: 1 // 0, api="Metadata")
        with RawClient(cluster) as client:
            client.send(MetadataRequest(topics=[]))
            with pytest.raises(Closed):
                client.receive()
    assert isinstance(cluster.failures[0], ZeroDivisionError)


def test_the_request_log(one: FakeCluster) -> None:
    with RawClient(one) as client:
        client.produce("t", 0, DATA)
        client.produce("t", 1, DATA)
        client.fetch("t", 1, 0)
    assert [row.api for row in one.requests] == ["ApiVersions", "Produce", "Produce", "Fetch"]
    assert len({row.connection for row in one.requests}) == 1
    assert len(one.requests_of("Produce")) == 2
    found = one.requests_of("Produce", topic="t", partition=1)
    assert [row.topic_partitions for row in found] == [[("t", 1)]]
    assert one.requests_of("Produce", topic="u") == []
    assert one.requests_of("Produce", broker=1) == []
    # as sent, not as stored
    assert bytes(found[0].message.topic_data[0].partition_data[0].records) == DATA
    with pytest.raises(TimeoutError, match="1 of 2 Fetch requests"):
        one.wait_for_requests("Fetch", 2, timeout_s=0.05)
    one.clear_requests()
    assert one.requests == []


def test_disconnect_keeps_the_broker_up(one: FakeCluster) -> None:
    with RawClient(one) as client:
        assert one.connections(0) == 1
        one.disconnect(0)
        with pytest.raises(Closed):
            client.read(1)
    with RawClient(one) as client:
        assert client.fetch("t", 0, 0).error_code == 0


def test_many_clients_at_once_lose_nothing(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            with RawClient(fake_cluster, 0) as client:
                for index in range(50):
                    row = client.produce("t", 0, sequenced([b"a"], index, producer_id=number))
                    assert row.error_code == 0
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures
    assert [row.offset for row in fake_cluster.log("t", 0).records()] == list(range(300))
