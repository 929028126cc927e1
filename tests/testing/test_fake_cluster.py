"""FakeCluster: lifecycle, metadata, topics; and two other clients that must get along with it."""

from __future__ import annotations

import socket
import threading
import time
import uuid
import warnings
from typing import Any

import pytest
from raw_client import Closed, RawClient, batch, fetch_request

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.messages import (
    ApiVersionsRequest,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    FetchRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    MetadataRequest,
    MetadataRequestTopic,
    ProduceRequest,
)
from sparkkafka.testing.fake.cluster import FakeCluster


def topics(client: RawClient, *names: str, version: int | None = None) -> list[Any]:
    rows = [MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=rows or None, allow_auto_topic_creation=False)
    return list(client.call(request, version).topics)


# --- lifecycle ------------------------------------------------------------------------------------


def test_leaves_no_thread_and_no_socket(recwarn: pytest.WarningsRecorder) -> None:
    before = set(threading.enumerate())
    with FakeCluster(brokers=3) as cluster:
        cluster.create_topic("t")
        with RawClient(cluster, 0) as client, RawClient(cluster, 1):
            # a long poll must not hold the end up
            client.send(fetch_request("t", 0, 0, max_wait_ms=60_000))
            cluster.wait_for_requests("Fetch")
            cluster.close()
    cluster.close()
    assert set(threading.enumerate()) - before == set()
    assert not recwarn.list


def test_broker_down_refuses_and_comes_back_on_its_port(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t", partitions=3)
    led = next(number for number in range(3) if fake_cluster.leader("t", number) == 1)
    address = fake_cluster.address(1)
    with RawClient(fake_cluster, 1) as client:
        fake_cluster.broker_down(1)
        with pytest.raises(Closed):
            client.read(1)
    with pytest.raises(ConnectionRefusedError):
        RawClient(fake_cluster, 1)
    assert fake_cluster.leader("t", led) != 1
    with RawClient(fake_cluster, 0) as client:
        response = client.call(MetadataRequest(topics=None))
        assert sorted(row.node_id for row in response.brokers) == [0, 2]
        row = response.topics[0].partitions[led]
        assert (row.error_code, row.leader_epoch) == (0, 1)
        assert (row.isr_nodes, row.offline_replicas) == (
            [node for node in row.replica_nodes if node != 1],
            [1],
        )
    fake_cluster.broker_up(1)
    assert fake_cluster.address(1) == address
    with RawClient(fake_cluster, 1) as client:
        assert len(client.call(MetadataRequest(topics=[])).brokers) == 3


def test_a_broker_death_that_nobody_has_noticed(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    leader = fake_cluster.leader("t", 0)
    fake_cluster.broker_down(leader, move_leaders=False)
    with RawClient(fake_cluster, (leader + 1) % 3) as client:
        response = client.call(MetadataRequest(topics=None))
    assert len(response.brokers) == 3
    assert response.topics[0].partitions[0].leader_id == leader


def test_a_partition_without_a_live_replica(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t", replication_factor=1)
    leader = fake_cluster.leader("t", 0)
    fake_cluster.broker_down(leader)
    with RawClient(fake_cluster, (leader + 1) % 3) as client:
        row = topics(client, "t")[0].partitions[0]
        assert (row.error_code, row.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    fake_cluster.broker_up(leader)
    assert fake_cluster.leader("t", 0) == leader


def test_ipv6() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6 loopback: {error}")
    with FakeCluster(host="::1") as cluster:
        assert cluster.bootstrap_servers.startswith("[::1]:")
        with RawClient(cluster) as client:
            assert client.call(MetadataRequest(topics=[])).brokers[0].host == "::1"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",  # a length of 1195725856
        b"\xff\xff\xff\xff",
        b"\0\0\0\x02\0\0",
        b"\0\0\0\x0a\0\x03\0\x09\0\0\0\x01\xff\xff",  # Metadata 9 without a body
    ],
)
def test_bytes_that_are_no_request_close_the_connection(
    fake_cluster: FakeCluster, data: bytes
) -> None:
    with RawClient(fake_cluster, handshake=False) as client:
        client.sock.sendall(data)
        with pytest.raises(Closed):
            client.read(1)
    with RawClient(fake_cluster) as client:
        assert client.call(MetadataRequest(topics=[])).cluster_id == fake_cluster.cluster_id


def test_requests_are_answered_in_order(fake_cluster: FakeCluster) -> None:
    with RawClient(fake_cluster) as client:
        for _ in range(20):
            client.send(MetadataRequest(topics=[]))
            client.send(DescribeClusterRequest())
        # Framing checks each correlation id
        kinds = [type(client.receive()).__name__ for _ in range(40)]
    assert kinds == ["MetadataResponse", "DescribeClusterResponse"] * 20


# --- ApiVersions ----------------------------------------------------------------------------------


def test_api_versions_of_a_new_and_an_old_release() -> None:
    with FakeCluster(kafka_version="2.1") as old, RawClient(old) as client:
        versions = dict(client.framing.versions or {})
        assert versions[FetchRequest.API_KEY] == (4, 10)
        assert versions[ProduceRequest.API_KEY] == (0, 7)
        assert DescribeClusterRequest.API_KEY not in versions
        refused = client.call(ApiVersionsRequest(), 3)
        # KIP-511 came with 2.4: before it there is no range in the refusal
        assert (refused.error_code, refused.api_keys) == (ErrorCode.UNSUPPORTED_VERSION, [])
        assert client.call(ApiVersionsRequest(), 2).error_code == 0
    changes = {"ApiVersions": (0, 2), "DescribeCluster": None}
    with (
        FakeCluster(api_versions=changes) as cluster,
        RawClient(cluster, handshake=False) as client,
    ):
        refused = client.call(ApiVersionsRequest(), 3)
        assert [(row.api_key, row.max_version) for row in refused.api_keys] == [(18, 2)]
        offered = client.call(ApiVersionsRequest(), 2).api_keys
        assert DescribeClusterRequest.API_KEY not in {row.api_key for row in offered}


def test_a_version_that_was_not_offered_closes_the_connection() -> None:
    with FakeCluster(kafka_version="2.1") as cluster, RawClient(cluster) as client:
        client.send(MetadataRequest(topics=[]), 8)
        with pytest.raises(Closed):
            client.receive()
        assert cluster.requests_of("Metadata")[0].version == 8


def test_names_that_do_not_exist_are_refused(fake_cluster: FakeCluster) -> None:
    with pytest.raises(ValueError, match="no such API here: 'Fetsh'"):
        fake_cluster.fault(ErrorCode(6), api="Fetsh")
    with pytest.raises(ValueError, match="no such API here"):
        FakeCluster(api_versions={"Fetsh": (0, 1)})
    with pytest.raises(ValueError, match="no such Kafka release here"):
        FakeCluster(kafka_version="0.7")
    with pytest.raises(ValueError, match="INVALID_CONFIG"):
        fake_cluster.create_topic("t", configs={"max.mesage.bytes": "1"})
    with pytest.raises(KeyError, match="t-0 does not exist"):
        fake_cluster.log("t", 0)
    with pytest.raises(ValueError, match="no such API: 'Fetsh'"):
        fake_cluster.requests_of("Fetsh")
    with pytest.raises(ValueError, match=r"no broker 9, there are \[0, 1, 2\]"):
        fake_cluster.broker_down(9)


# --- Metadata, topics, configurations -------------------------------------------------------------


@pytest.mark.parametrize("version", range(4, 13))
def test_metadata_in_each_version(fake_cluster: FakeCluster, version: int) -> None:
    fake_cluster.create_topic("a", partitions=6)
    with RawClient(fake_cluster, 2) as client:
        known, unknown, invalid = topics(client, "a", "b", "c/d", version=version)
        assert [row.leader_id for row in known.partitions] == [0, 1, 2, 0, 1, 2]
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert invalid.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert topics(client, "b")[0].error_code, "asking must not create it"


def test_recreated_topic_has_another_id_and_no_records(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t", partitions=2, configs={"cleanup.policy": "compact"})
    fake_cluster.append("t", 0, batch([b"x"]))
    with RawClient(fake_cluster) as client:
        before = topics(client, "t")[0]
        fake_cluster.recreate_topic("t")
        after = topics(client, "t")[0]
        assert before.topic_id != after.topic_id
        assert len(after.partitions) == 2
        by_id = MetadataRequestTopic(topic_id=before.topic_id, name=None)
        gone = client.call(MetadataRequest(topics=[by_id]), 12).topics[0]
        assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert fake_cluster.log("t", 0).end_offset == 0
    assert fake_cluster.log("t", 0).config["cleanup.policy"] == "compact"


def test_partitions_can_be_added(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t", partitions=2)
    fake_cluster.add_partitions("t", 4)
    with RawClient(fake_cluster) as client:
        assert len(topics(client, "t")[0].partitions) == 4


@pytest.mark.parametrize("version", range(2, 8))
def test_create_topics(fake_cluster: FakeCluster, version: int) -> None:
    def create(name: str, partitions: int = 1, replicas: int = 1, **configs: str) -> Any:
        rows = [
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ]
        topic = CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=replicas, configs=rows
        )
        return client.call(CreateTopicsRequest(topics=[topic]), version).topics[0]

    with RawClient(fake_cluster) as client:
        made = create("new", 2, 3, max_message_bytes="1000")
        assert made.error_code == 0
        if version >= 7:
            assert made.topic_id != uuid.UUID(int=0)
        assert fake_cluster.log("new", 1).config["max.message.bytes"] == "1000"
        for row, code in (
            (create("new"), ErrorCode.TOPIC_ALREADY_EXISTS),
            (create(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (create("x", 0), ErrorCode.INVALID_PARTITIONS),
            (create("x", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR),
            (create("x", no_such_thing="1"), ErrorCode.INVALID_CONFIG),
        ):
            assert row.error_code == code
        assert create("defaults", -1, -1).error_code == 0
        assert fake_cluster.leader("defaults", 0) in (0, 1, 2)


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_topics(fake_cluster: FakeCluster, version: int) -> None:
    fake_cluster.create_topic("t")
    with RawClient(fake_cluster) as client:
        request = DeleteTopicsRequest(topic_names=["t", "u"])
        if version >= 6:
            request = DeleteTopicsRequest(
                topics=[DeleteTopicState(name="t"), DeleteTopicState(name="u")]
            )
        codes = {row.name: row.error_code for row in client.call(request, version).responses}
        assert codes == {"t": 0, "u": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert topics(client) == []


def test_only_the_controller_of_an_old_cluster_creates_topics() -> None:
    with FakeCluster(brokers=2, kafka_version="2.8") as cluster:
        request = CreateTopicsRequest(
            topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
        )
        with RawClient(cluster, 1) as client:
            assert client.call(request).topics[0].error_code == ErrorCode.NOT_CONTROLLER
            controller = client.call(MetadataRequest(topics=[])).controller_id
        with RawClient(cluster, controller) as client:
            assert client.call(request).topics[0].error_code == 0


@pytest.mark.parametrize("version", range(1, 5))
def test_describe_configs(fake_cluster: FakeCluster, version: int) -> None:
    fake_cluster.create_topic("t", configs={"retention.ms": "5"})
    with RawClient(fake_cluster, 1) as client:
        response = client.call(
            DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(
                        resource_type=2,
                        resource_name="t",
                        configuration_keys=["retention.ms", "cleanup.policy"],
                    ),
                    DescribeConfigsResource(
                        resource_type=4, resource_name="1", configuration_keys=None
                    ),
                    DescribeConfigsResource(
                        resource_type=2, resource_name="u", configuration_keys=None
                    ),
                ],
                include_synonyms=True,
            ),
            version,
        )
    topic, broker, missing = response.results
    assert {row.name: (row.value, row.config_source) for row in topic.configs} == {
        "retention.ms": ("5", 1),
        "cleanup.policy": ("delete", 5),
    }
    assert "message.max.bytes" in {row.name for row in broker.configs}
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", [1, 3, 4])
def test_coordinators_and_producer_ids(fake_cluster: FakeCluster, version: int) -> None:
    with RawClient(fake_cluster) as client:
        if version >= 4:
            request = FindCoordinatorRequest(coordinator_keys=["g"])
            found = client.call(request, version).coordinators[0]
        else:
            found = client.call(FindCoordinatorRequest(key="g"), version)
        assert fake_cluster.address(found.node_id) == f"{found.host}:{found.port}"
        ids = {
            client.call(
                InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
            ).producer_id
            for _ in range(3)
        }
        assert len(ids) == 3
        refused = client.call(InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1))
        assert refused.error_code == ErrorCode.INVALID_REQUEST


# --- other clients --------------------------------------------------------------------------------


def test_kafka_python_writes_and_reads(fake_cluster: FakeCluster) -> None:
    with warnings.catch_warnings():
        # its import calls importlib.resources.read_text
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka
    fake_cluster.create_topic("t", partitions=4)
    sent = [(b"k%d" % index, b"v%d" % index, index % 4) for index in range(200)]
    producer = kafka.KafkaProducer(
        bootstrap_servers=fake_cluster.bootstrap_servers, compression_type="gzip"
    )
    try:
        futures = [
            producer.send("t", key=key, value=value, partition=number, headers=[("h", b"x")])
            for key, value, number in sent
        ]
        producer.flush(10)
        assert {row.get(10).partition for row in futures} == {0, 1, 2, 3}
    finally:
        producer.close(5)
    records = fake_cluster.log("t", 1).records()
    assert [row.value for row in records] == [value for _, value, number in sent if number == 1]
    assert records[0].headers == (("h", b"x"),)
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=fake_cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        group_id=None,
    )
    try:
        consumer.assign([kafka.TopicPartition("t", number) for number in range(4)])
        found: list[tuple[bytes, bytes, int]] = []
        until_s = time.monotonic() + 20
        while len(found) < len(sent) and time.monotonic() < until_s:
            for rows in consumer.poll(200).values():
                found += [(row.key, row.value, row.partition) for row in rows]
    finally:
        consumer.close()
    assert sorted(found) == sorted(sent)


@pytest.mark.parametrize("release", ["2.1", "4.0"])
def test_librdkafka_writes_and_reads(fake_cluster_factory: Any, release: str) -> None:
    import confluent_kafka

    cluster: FakeCluster = fake_cluster_factory(3, kafka_version=release)
    cluster.create_topic("t", partitions=2)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "enable.idempotence": True,
            "compression.type": "lz4",
        }
    )
    for index in range(1000):
        producer.produce("t", value=b"v%d" % index, partition=index % 2)
    assert producer.flush(20) == 0
    assert [len(cluster.log("t", number).records()) for number in range(2)] == [500, 500]
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"}
    )
    try:
        start = confluent_kafka.OFFSET_BEGINNING
        consumer.assign([confluent_kafka.TopicPartition("t", n, start) for n in range(2)])
        found: list[bytes] = []
        until_s = time.monotonic() + 20
        while len(found) < 1000 and time.monotonic() < until_s:
            found += [row.value() for row in consumer.consume(1000, 0.2) if not row.error()]
    finally:
        consumer.close()
    assert sorted(found) == sorted(b"v%d" % index for index in range(1000))


def test_records_are_no_bytes_to_append(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    with pytest.raises(TypeError, match="got list: use a Producer to append records"):
        fake_cluster.append("t", 0, [b"x"])  # type: ignore[arg-type]
