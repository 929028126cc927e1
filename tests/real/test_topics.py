"""Topics made, described and deleted, brokers described, offsets looked up: on a real broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from confluent_kafka.admin import OffsetSpec

from sparkkafka.client.admin.brokers import describe_cluster
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.configs import ConfigResource, describe_configs
from sparkkafka.client.cluster.offsets import OffsetLookup
from sparkkafka.client.cluster.request_driver import FOR_GROUP, FOR_TRANSACTION, find_coordinator
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import BrokerError, ErrorCode, UnknownTopicError
from sparkkafka.protocol.constants import EARLIEST, LATEST, NO_OFFSET
from sparkkafka.protocol.messages import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    MetadataRequest,
    MetadataRequestTopic,
)
from tests.real.peers import WAIT_S, Record, confluent_write
from tests.support.options import parse_client_options
from tests.support.topics import create_topic, delete_topic
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real

RESOURCE_TOPIC = 2
T0_MS = 1_700_000_000_000


@pytest.fixture
def cluster(kafka_cluster: Any) -> Iterator[Cluster]:
    settings = {
        "bootstrap.servers": kafka_cluster.bootstrap_servers,
        "request.timeout.ms": "10000",
        "default.api.timeout.ms": "20000",
    }
    with Cluster(parse_client_options(settings)) as opened:
        yield opened


@pytest.fixture
def other(kafka_cluster: Any) -> Any:
    """The second opinion."""
    return confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})


def a_name() -> str:
    return f"admin-{uuid.uuid4().hex[:12]}"


# --- topics ----------------------------------------------------------------------------------


def topic_configs(cluster, name, keys=None):
    topic = ConfigResource("topic", name)
    entries = describe_configs(cluster, [topic], cluster.deadline(), keys=keys)[topic]
    return {key: entry.value for key, entry in entries.items()}


def test_a_topic_is_made_with_its_settings_and_deleted(cluster, other):
    name = a_name()
    settings = {"cleanup.policy": "compact", "max.message.bytes": "54321"}
    create_topic(cluster, name, partitions=3, replication_factor=1, configs=settings)
    seen = other.list_topics(name, WAIT_S).topics[name]
    assert seen.error is None
    assert sorted(seen.partitions) == [0, 1, 2]
    assert topic_configs(cluster, name, list(settings)) == settings
    resource = confluent_kafka.admin.ConfigResource("topic", name)
    theirs = other.describe_configs([resource], request_timeout=WAIT_S)[resource].result(WAIT_S)
    assert topic_configs(cluster, name) == {key: entry.value for key, entry in theirs.items()}
    delete_topic(cluster, name)
    assert name not in other.list_topics(timeout=WAIT_S).topics
    create_topic(cluster, name)  # partitions and copies as the broker's settings say
    assert len(cluster.topics([name])[name].partitions) == 1
    delete_topic(cluster, name)


def test_a_topic_can_be_written_to_as_soon_as_it_is_made(cluster, kafka_cluster):
    name = a_name()
    create_topic(cluster, name, partitions=20)
    tps = [TopicPartition(name, partition) for partition in range(20)]
    assert {
        row.offset for row in OffsetLookup(cluster).list(dict.fromkeys(tps, LATEST)).values()
    } == {0}


def test_settings_that_are_not_there_are_left_out(cluster, new_topic):
    assert topic_configs(cluster, new_topic(), ["retention.ms", "no.such.setting"]).keys() == {
        "retention.ms"
    }


def test_errors_of_topics_have_the_code_and_the_name(cluster, new_topic):
    there = new_topic()
    missing = a_name()
    for code, name, act in (
        (ErrorCode.TOPIC_ALREADY_EXISTS, there, create_topic),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, "not/a/name", create_topic),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, missing, delete_topic),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, missing, topic_configs),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, "not/a/name", topic_configs),
    ):
        with pytest.raises(BrokerError) as raised:
            act(cluster, name)
        assert (raised.value.code, name in str(raised.value)) == (code, True), act
    for bad, code in (
        ({"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"replication_factor": 9}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"configs": {"no.such.setting": "1"}}, ErrorCode.INVALID_CONFIG),
    ):
        with pytest.raises(BrokerError) as raised:
            create_topic(cluster, missing, **{"partitions": 1, "replication_factor": 1} | bad)
        assert raised.value.code == code
        assert raised.value.broker_message


# --- brokers ---------------------------------------------------------------------------------


def test_the_cluster_is_described_as_it_is(cluster, other, kafka_cluster):
    described = other.describe_cluster(request_timeout=WAIT_S).result(WAIT_S)
    assert [
        (b.node_id, b.host, b.port) for b in describe_cluster(cluster, cluster.deadline()).brokers
    ] == [(node.id, node.host, node.port) for node in described.nodes]
    assert [(b.host, b.port) for b in describe_cluster(cluster, cluster.deadline()).brokers] == [
        kafka_cluster.address(0)
    ]
    cluster.request_metadata([], cluster.deadline())
    assert cluster.cluster_id == described.cluster_id
    assert cluster.metadata.controller_id == described.controller.id
    assert cluster.controller(cluster.deadline()) in kafka_cluster.broker_ids


@pytest.mark.parametrize("kind", [FOR_GROUP, FOR_TRANSACTION])
def test_coordinators_are_found(cluster, kafka_cluster, kind):
    """The first look also makes the broker create its internal topic, which takes a moment."""
    found = find_coordinator(cluster, a_name(), kind, cluster.deadline())
    assert found in kafka_cluster.broker_ids


# --- offsets ---------------------------------------------------------------------------------


def test_offsets_by_time_are_those_of_confluent_kafka(cluster, kafka_cluster, new_topic):
    topic = new_topic(partitions=3)
    servers = kafka_cluster.bootstrap_servers
    ordered = [Record(None, b"%d" % i, (), T0_MS + 100 * (i // 3)) for i in range(60)]
    # Times that go back: the response is the first offset at or after, not the nearest time.
    jumping = [Record(None, b"", (), T0_MS + (i * 7919) % 2000) for i in range(60)]
    confluent_write(servers, topic, ordered, 0, batch_num_messages=7)
    confluent_write(servers, topic, jumping, 1, compression_type="lz4", batch_num_messages=7)
    last_ms = max(record.timestamp_ms for record in ordered)
    times = [0, T0_MS - 1, T0_MS, T0_MS + 1, T0_MS + 100, T0_MS + 950, last_ms, last_ms + 1]
    times += [T0_MS + 100_000]
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "times"})
    try:
        for time_ms in times:
            wanted = {TopicPartition(topic, p): time_ms for p in range(3)}
            ours = OffsetLookup(cluster).list(wanted)
            theirs = consumer.offsets_for_times(
                [confluent_kafka.TopicPartition(topic, p, time_ms) for p in range(3)], WAIT_S
            )
            assert {tp.partition: row.offset for tp, row in ours.items()} == {
                tp.partition: tp.offset for tp in theirs
            }, time_ms
            for records, partition in ((ordered, 0), (jumping, 1)):
                later = [i for i, r in enumerate(records) if r.timestamp_ms >= time_ms]
                found = ours[TopicPartition(topic, partition)]
                if later:
                    assert found[:2] == (later[0], records[later[0]].timestamp_ms)
                else:
                    assert found[:2] == (NO_OFFSET, -1)
            assert ours[TopicPartition(topic, 2)].offset == NO_OFFSET
    finally:
        consumer.close()


def test_one_call_may_want_different_things_of_partitions(cluster, kafka_cluster, new_topic):
    topic = new_topic(partitions=3)
    for partition in range(3):
        records = [Record(None, b"v", (), T0_MS + i) for i in range(10)]
        confluent_write(kafka_cluster.bootstrap_servers, topic, records, partition)
    wanted = {
        TopicPartition(topic, 0): EARLIEST,
        TopicPartition(topic, 1): LATEST,
        TopicPartition(topic, 2): T0_MS + 4,
    }
    assert [OffsetLookup(cluster).list(wanted)[tp].offset for tp in sorted(wanted)] == [0, 10, 4]


def test_read_committed_ends_where_an_open_transaction_starts(
    cluster, other, kafka_cluster, new_topic
):
    topic = new_topic()
    servers = kafka_cluster.bootstrap_servers
    confluent_write(servers, topic, [Record(None, b"before")] * 5)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for _ in range(3):
        producer.produce(topic, value=b"open", partition=0)
    assert producer.flush(WAIT_S) == 0
    confluent_write(servers, topic, [Record(None, b"after")] * 2)

    def ends() -> dict[str, int]:
        tp = TopicPartition(topic, 0)
        at_broker = confluent_kafka.TopicPartition(topic, 0)
        found = {}
        for level in ("read_uncommitted", "read_committed"):
            found[level] = OffsetLookup(cluster, level).list({tp: LATEST})[tp].offset
            theirs = other.list_offsets(
                {at_broker: OffsetSpec.latest()},
                isolation_level=confluent_kafka.IsolationLevel[level.upper()],
                request_timeout=WAIT_S,
            )
            assert theirs[at_broker].result(WAIT_S).offset == found[level]
        return found

    assert ends() == {"read_uncommitted": 10, "read_committed": 5}
    producer.abort_transaction(WAIT_S)
    # The marker takes an offset, and is written after the coordinator's response.
    tp = TopicPartition(topic, 0)
    assert wait_until(
        lambda: OffsetLookup(cluster, "read_committed").list({tp: LATEST})[tp].offset == 11
    )
    assert ends() == {"read_uncommitted": 11, "read_committed": 11}


def test_errors_of_offsets_name_the_topic(kafka_cluster, new_topic):
    there = new_topic(partitions=2)
    settings = {"bootstrap.servers": kafka_cluster.bootstrap_servers}
    # Short: a missing topic is waited for, as it may be a new one.
    settings["default.api.timeout.ms"] = settings["request.timeout.ms"] = "1500"
    with Cluster(parse_client_options(settings)) as cluster:
        for tp, code in (
            (TopicPartition(a_name(), 0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (TopicPartition(there, 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (TopicPartition("not/a/name", 0), ErrorCode.INVALID_TOPIC_EXCEPTION),
        ):
            with pytest.raises(BrokerError) as raised:
                OffsetLookup(cluster).list({tp: LATEST})
            assert raised.value.code == code
            assert tp.topic in str(raised.value)
            assert isinstance(raised.value, UnknownTopicError) == (
                code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )


# --- versions --------------------------------------------------------------------------------


def versions(cluster: Cluster, request_type: Any) -> range:
    """What this broker and we have in common, lowest first."""
    connection = cluster.any_connection(cluster.deadline())
    least, most = connection.versions[request_type.API_KEY]
    return range(max(least, request_type.MIN_VERSION), min(most, request_type.MAX_VERSION) + 1)


def ask(cluster: Cluster, request: Any, version: int) -> Any:
    deadline = cluster.deadline()
    return cluster.any_connection(deadline).call(request, deadline, version=version)


def test_every_version_makes_and_deletes_topics(cluster):
    """A client chooses the highest version only, so the others are shown here."""
    names = {version: a_name() for version in versions(cluster, CreateTopicsRequest)}
    assert len(names) > 3
    for version, name in names.items():
        topic = CreatableTopic(
            name=name,
            num_partitions=2,
            replication_factor=1,
            configs=[CreatableTopicConfig(name="retention.ms", value="77777")],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        (row,) = ask(cluster, request, version).topics
        assert (row.name, row.error_code) == (name, 0), version
        # The controller answers before the broker knows.
        assert wait_until(lambda name=name: name in cluster.all_topics())
        assert topic_configs(cluster, name, ["retention.ms"]) == {"retention.ms": "77777"}
    gone = set()
    for version, name in zip(versions(cluster, DeleteTopicsRequest), names.values(), strict=False):
        which = (
            {"topics": [DeleteTopicState(name=name)]} if version >= 6 else {"topic_names": [name]}
        )
        request = DeleteTopicsRequest(timeout_ms=10_000, **which)
        (row,) = ask(cluster, request, version).responses
        assert (row.name, row.error_code) == (name, 0), version
        gone.add(name)
    assert len(gone) == 6
    # delete_topic waits until metadata shows it; a bare request is answered before.
    assert wait_until(lambda: not gone & cluster.all_topics().keys())


def test_every_version_describes_the_same(cluster, kafka_cluster, new_topic):
    topic = new_topic(partitions=2, configs={"retention.ms": "88888"})
    records = [Record(None, b"v", (), T0_MS + i) for i in range(10)]
    confluent_write(kafka_cluster.bootstrap_servers, topic, records, 1)
    for version in versions(cluster, MetadataRequest):
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        response = ask(cluster, request, version)
        assert [(b.host, b.port) for b in response.brokers] == [kafka_cluster.address(0)]
        (row,) = response.topics
        assert (row.name, row.error_code) == (topic, 0), version
        assert sorted((p.partition_index, p.leader_id) for p in row.partitions) == [(0, 0), (1, 0)]
    for version in versions(cluster, ListOffsetsRequest):
        wanted = ListOffsetsPartition(partition_index=1, timestamp=T0_MS + 6)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])]
        )
        (row,) = ask(cluster, request, version).topics[0].partitions
        assert (row.error_code, row.offset, row.timestamp) == (0, 6, T0_MS + 6), version
    for version in versions(cluster, DescribeConfigsRequest):
        resource = DescribeConfigsResource(
            resource_type=RESOURCE_TOPIC, resource_name=topic, configuration_keys=["retention.ms"]
        )
        (row,) = ask(cluster, DescribeConfigsRequest(resources=[resource]), version).results
        assert row.error_code == 0, version
        assert [(config.name, config.value) for config in row.configs] == [
            ("retention.ms", "88888")
        ]
    for version in versions(cluster, DescribeClusterRequest):
        response = ask(cluster, DescribeClusterRequest(), version)
        assert [(b.host, b.port) for b in response.brokers] == [kafka_cluster.address(0)], version
