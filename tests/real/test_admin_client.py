"""Admin on a real broker: confluent-kafka and kafka-python see what it did, it what they did."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import kafka
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import ConfigResource as TheirResource

from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.admin.brokers import FeatureUpdate
from sparkkafka.client.admin.quotas import (
    ClientQuotaAlteration,
    ClientQuotaEntity,
    ClientQuotaFilter,
    ClientQuotaFilterComponent,
)
from sparkkafka.client.admin.topics import NewTopic
from sparkkafka.client.cluster.configs import AlterConfigOp, ConfigResource
from sparkkafka.client.cluster.offsets import OffsetSpec
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition
from sparkkafka.errors import BrokerError, ErrorCode, UnknownTopicError
from tests.real.peers import WAIT_S, Record, confluent_read, confluent_write
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real

T0_MS = 1_700_000_000_000


@pytest.fixture
def admin(kafka_cluster: Any) -> Iterator[Admin]:
    with Admin({"bootstrap.servers": kafka_cluster.bootstrap_servers}) as opened:
        yield opened


@pytest.fixture
def other(kafka_cluster: Any) -> Any:
    return confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})


def a_name(prefix: str = "adm") -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def theirs(futures: dict[Any, Any]) -> dict[Any, Any]:
    return {item: future.result(WAIT_S) for item, future in futures.items()}


@contextlib.contextmanager
def member(servers: str, group: str, topic: str, **config: Any) -> Iterator[Any]:
    """A consumer of confluent-kafka that has got its partitions."""
    named = {key.replace("_", "."): value for key, value in config.items()}
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        | named
    )
    try:
        consumer.subscribe([topic])
        wait_until(lambda: consumer.poll(0.1) is not None or consumer.assignment())
        wait_until(consumer.assignment)
        yield consumer
    finally:
        consumer.close()


# --- topics, settings, records ----------------------------------------------------------------


def test_topics_are_what_another_client_sees(admin, other):
    name, by_them = a_name(), a_name()
    created = admin.create_topics(
        [
            NewTopic(name, partitions=3, replication_factor=1, configs={"retention.ms": "77"}),
            NewTopic("not/a/name"),
            NewTopic(a_name(), replica_assignment={0: [0], 1: [0]}),
        ]
    )
    assert [error.code for error in created.errors.values()] == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    theirs(other.create_topics([confluent_kafka.admin.NewTopic(by_them, 2, 1)]))
    assert wait_until(lambda: by_them in admin.list_topics())
    collection = confluent_kafka.TopicCollection([name, by_them])
    described = theirs(other.describe_topics(collection, request_timeout=WAIT_S))
    ours = admin.describe_topics([name, by_them, "missing"], include_authorized_operations=True)
    assert isinstance(ours.errors["missing"], UnknownTopicError)
    for topic in (name, by_them):
        mine, their = ours[topic], described[topic]
        # librdkafka writes the other base64.
        assert mine.topic_id == str(their.topic_id).translate(str.maketrans("+/", "-_"))
        assert mine.is_internal == their.is_internal
        assert [(row.partition, row.leader, row.replicas, row.isr) for row in mine.partitions] == [
            (
                row.id,
                row.leader.id,
                tuple(node.id for node in row.replicas),
                tuple(node.id for node in row.isr),
            )
            for row in their.partitions
        ]
        assert {"READ", "WRITE", "ALTER_CONFIGS"} <= mine.authorized_operations
    assert admin.list_topics()[name].topic_id == ours[name].topic_id
    grown = admin.create_partitions({name: 5, by_them: 2})
    assert grown.errors[by_them].code == ErrorCode.INVALID_PARTITIONS
    assert sorted(other.list_topics(name, WAIT_S).topics[name].partitions) == [0, 1, 2, 3, 4]
    deleted = admin.delete_topics([name, by_them, "missing"])
    assert list(deleted.errors) == ["missing"]
    assert not {name, by_them} & other.list_topics(timeout=WAIT_S).topics.keys()


def test_settings_change_alone_and_both_ways(admin, other, new_topic):
    topic = new_topic(configs={"retention.ms": "88888", "max.message.bytes": "54321"})
    resource = ConfigResource("topic", topic)
    missing = ConfigResource("topic", "missing")
    their_resource = TheirResource("topic", topic)

    def seen() -> dict[str, Any]:
        found = theirs(other.describe_configs([their_resource]))[their_resource]
        return {name: entry.value for name, entry in found.items()}

    bad = ConfigResource("broker", "0")
    changed = admin.incremental_alter_configs(
        {
            resource: {"retention.ms": "99999", "max.message.bytes": None},
            missing: {"retention.ms": "1"},
            bad: {"log.cleaner.threads": "minus"},
        }
    )
    assert changed[resource] is None
    assert isinstance(changed.errors[missing], UnknownTopicError)
    assert changed.errors[bad].code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)
    assert wait_until(lambda: seen()["retention.ms"] == "99999")
    assert seen()["max.message.bytes"] != "54321"
    for operation, policy in (("append", "delete,compact"), ("subtract", "delete")):
        change = AlterConfigOp("cleanup.policy", "compact", operation)
        admin.incremental_alter_configs({resource: [change]}).all()
        assert wait_until(lambda policy=policy: seen()["cleanup.policy"] == policy)
    entry = confluent_kafka.admin.ConfigEntry(
        "segment.ms", "123456", incremental_operation=confluent_kafka.admin.AlterConfigOpType.SET
    )
    theirs(
        other.incremental_alter_configs(
            [TheirResource("topic", topic, incremental_configs=[entry])]
        )
    )
    assert wait_until(
        lambda: admin.describe_configs([resource])[resource]["segment.ms"].value == "123456"
    )
    ours = admin.describe_configs([resource], include_synonyms=True, include_documentation=True)
    full = ours[resource]
    assert {name: entry.value for name, entry in full.items()} == seen()
    retention = full["retention.ms"]
    assert (retention.source, retention.type) == ("DYNAMIC_TOPIC_CONFIG", "LONG")
    assert retention.synonyms[0][1:] == ("99999", "DYNAMIC_TOPIC_CONFIG")
    assert "log" in (retention.documentation or "")
    validated = {resource: {"retention.ms": "1"}}
    admin.incremental_alter_configs(validated, validate_only=True).all()
    assert seen()["retention.ms"] == "99999"


def test_settings_of_brokers_and_groups(admin, other):
    broker, group = ConfigResource("broker", "0"), ConfigResource("group", a_name("group"))
    changes = {group: {"consumer.session.timeout.ms": "50000"}}
    admin.incremental_alter_configs(changes).all()
    found = wait_until(
        lambda: (
            row
            if (row := admin.describe_configs([group, broker]))[group][
                "consumer.session.timeout.ms"
            ].value
            == "50000"
            else None
        )
    )
    assert found[group]["consumer.session.timeout.ms"].source == "DYNAMIC_GROUP_CONFIG"
    their_broker = TheirResource("broker", "0")
    their_values = theirs(other.describe_configs([their_broker]))[their_broker]
    assert {name: entry.value for name, entry in found[broker].items()} == {
        name: entry.value for name, entry in their_values.items()
    }


def test_records_are_deleted_up_to_an_offset(admin, other, kafka_cluster, new_topic):
    topic = new_topic(partitions=4)
    servers = kafka_cluster.bootstrap_servers
    for number in range(3):
        records = [Record(None, b"v%d" % i, (), T0_MS + i) for i in range(10)]
        confluent_write(servers, topic, records, number)
    tps = [TopicPartition(topic, number) for number in range(4)]
    done = admin.delete_records({tps[0]: 4, tps[1]: -1, tps[3]: 5})
    assert done.values_by_item == {tps[0]: 4, tps[1]: 10}
    assert done.errors[tps[3]].code == ErrorCode.OFFSET_OUT_OF_RANGE
    earliest = {
        confluent_kafka.TopicPartition(topic, number): confluent_kafka.admin.OffsetSpec.earliest()
        for number in range(4)
    }
    seen = theirs(other.list_offsets(earliest, request_timeout=WAIT_S))
    assert [seen[tp].offset for tp in sorted(seen)] == [4, 10, 0, 0]
    theirs(other.delete_records([confluent_kafka.TopicPartition(topic, 2, 7)]))
    specs = {tps[0]: OffsetSpec.for_timestamp(T0_MS + 2), tps[2]: OffsetSpec.earliest()}
    specs |= {tps[1]: OffsetSpec.for_timestamp(T0_MS), tps[3]: OffsetSpec.earliest_local()}
    assert {tp: row.offset for tp, row in admin.list_offsets(specs).all().items()} == {
        tps[0]: 4,
        tps[1]: -1,
        tps[2]: 7,
        tps[3]: 0,
    }
    newest = admin.list_offsets({tps[0]: OffsetSpec.max_timestamp()})[tps[0]]
    assert (newest.offset, newest.timestamp_ms) == (9, T0_MS + 9)


def test_the_cluster_and_its_disks(admin, other, kafka_cluster, new_topic):
    topic = new_topic(partitions=2)
    servers = kafka_cluster.bootstrap_servers
    confluent_write(servers, topic, [Record(None, b"x" * 1000)] * 100, 1)
    mine = admin.describe_cluster(include_authorized_operations=True)
    their = other.describe_cluster(request_timeout=WAIT_S).result(WAIT_S)
    assert mine.cluster_id == their.cluster_id
    assert mine.controller_id == their.controller.id
    assert [(b.node_id, b.host, b.port) for b in mine.brokers] == [
        (node.id, node.host, node.port) for node in their.nodes
    ]
    assert {"CREATE", "ALTER"} <= mine.authorized_operations
    (directory,) = admin.describe_log_dirs()[0].values()
    second = kafka.KafkaAdminClient(bootstrap_servers=servers)
    try:
        (response,) = second.describe_log_dirs()
        (log_dir,) = response["log_dirs"]
        sizes = {
            (row["name"], part["partition_index"]): part["partition_size"]
            for row in log_dir["topics"]
            for part in row["partitions"]
            if row["name"] == topic
        }
    finally:
        second.close()
    assert sizes == {
        tuple(tp): r.size_bytes for tp, r in directory.replicas.items() if tp[0] == topic
    }
    assert sizes[topic, 1] > 1000
    assert directory.size_bytes >= sizes[topic, 1]
    assert directory.total_bytes > directory.usable_bytes > 0


# --- groups -----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_is_described_as_they_see_it(
    admin, other, kafka_cluster, new_topic, protocol
):
    topic, group, simple = new_topic(partitions=3), a_name("group"), a_name("simple")
    tps = [TopicPartition(topic, number) for number in range(3)]
    admin.alter_consumer_group_offsets(simple, {tps[0]: 1}).all()
    config = {"group_protocol": protocol, "group_instance_id": "one", "client_id": "app"}
    with member(kafka_cluster.bootstrap_servers, group, topic, **config) as consumer:
        wait_until(lambda: len(consumer.assignment()) == 3 or consumer.poll(0.05))
        described = wait_until(
            lambda: (
                row
                if (row := admin.describe_consumer_group(group)).members
                and len(row.members[0].assignment) == 3
                and row.state == "Stable"
                else None
            )
        )
        their = theirs(other.describe_consumer_groups([group], request_timeout=WAIT_S))[group]
        assert described.type == protocol
        assert their.state == ConsumerGroupState.STABLE
        assert their.type == ConsumerGroupType[protocol.upper()]
        assert (described.assignor, described.coordinator) == (
            their.partition_assignor,
            their.coordinator.id,
        )
        (mine,) = described.members
        (them,) = their.members
        assert (mine.member_id, mine.group_instance_id, mine.client_id, mine.host) == (
            them.member_id,
            "one",
            "app",
            them.host,
        )
        assert mine.assignment == frozenset(tps)
        assert {(tp.topic, tp.partition) for tp in them.assignment.topic_partitions} == set(tps)
        assert mine.topics == {topic}
        if protocol == "consumer":
            assert mine.target_assignment == frozenset(tps)
            assert mine.member_epoch == described.group_epoch > 0

        both = admin.describe_consumer_groups([simple, group, "missing"])
        assert both[simple].is_simple and both[simple].state == "Empty"
        assert both.errors["missing"].code == ErrorCode.GROUP_ID_NOT_FOUND
        listed = {row.group_id: row for row in admin.list_consumer_groups().all()}
        assert (listed[group].type, listed[group].state) == (protocol, "Stable")
        assert listed[simple].is_simple
        stable = admin.list_consumer_groups(states=["Stable"], types=[protocol])
        assert group in {row.group_id for row in stable}
        assert simple not in {row.group_id for row in stable}

        consumer.commit(offsets=[confluent_kafka.TopicPartition(*tps[0], 7)], asynchronous=False)
        assert admin.list_consumer_group_offsets(group)[tps[0]].offset == 7
        with pytest.raises(BrokerError, match="active consumers"):
            admin.alter_consumer_group_offsets(group, {tps[0]: 0}).all()
        kept = admin.delete_consumer_group_offsets(group, [tps[0]])
        assert kept.errors[tps[0]].code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        deleted = admin.delete_consumer_groups([group, simple, "missing"])
        assert {key: error.code for key, error in deleted.errors.items()} == {
            group: ErrorCode.NON_EMPTY_GROUP,
            "missing": ErrorCode.GROUP_ID_NOT_FOUND,
        }
        if protocol == "classic":
            removed = admin.remove_members_from_consumer_group(group, ["one", "two"], reason="test")
            assert list(removed.errors) == ["two"]
            assert wait_until(lambda: not admin.describe_consumer_group(group).members)
    if protocol == "consumer":
        # A static member that leaves is expected back.
        admin.remove_members_from_consumer_group(group, ["one"]).all()
    wait_until(lambda: admin.describe_consumer_group(group).state == "Empty")
    assert admin.delete_consumer_groups([group]).all() == {group: None}


def test_offsets_of_a_group_are_seen_by_another_client(admin, other, kafka_cluster, new_topic):
    topic, group = new_topic(partitions=3), a_name("group")
    tps = [TopicPartition(topic, number) for number in range(3)]
    set_ = admin.alter_consumer_group_offsets(
        group, {tps[0]: 5, tps[1]: OffsetAndMetadata(6, "why", 0), tps[2]: 7}
    )
    assert set_.all() == dict.fromkeys(tps)
    request = confluent_kafka.ConsumerGroupTopicPartitions(group)
    (future,) = other.list_consumer_group_offsets([request]).values()
    seen = {row.partition: row.offset for row in future.result(WAIT_S).topic_partitions}
    assert seen == {0: 5, 1: 6, 2: 7}
    # confluent-kafka reads a text beside an offset beyond its end, so another one does it.
    second = kafka.KafkaAdminClient(bootstrap_servers=kafka_cluster.bootstrap_servers)
    try:
        response = second.list_group_offsets([group])[group]
    finally:
        second.close()
    assert {tp.partition: (row.offset, row.metadata) for tp, row in response.items()} == {
        0: (5, ""),
        1: (6, "why"),
        2: (7, ""),
    }
    assert admin.list_consumer_group_offsets(group)[tps[1]] == (6, "why", 0)
    admin.delete_consumer_group_offsets(group, [tps[2]]).all()
    their_change = confluent_kafka.ConsumerGroupTopicPartitions(
        group, [confluent_kafka.TopicPartition(topic, 0, 9)]
    )
    (future,) = other.alter_consumer_group_offsets([their_change]).values()
    future.result(WAIT_S)
    found = admin.list_consumer_group_offsets(group, [*tps, TopicPartition("missing", 0)])
    assert found.all() == {
        tps[0]: (9, "", None),
        tps[1]: (6, "why", 0),
        tps[2]: None,
        ("missing", 0): None,
    }
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": kafka_cluster.bootstrap_servers, "group.id": group}
    )
    try:
        rows = consumer.committed(
            [confluent_kafka.TopicPartition(topic, number) for number in range(2)], WAIT_S
        )
        assert [row.offset for row in rows] == [9, 6]
    finally:
        consumer.close()


# --- transactions -----------------------------------------------------------------------------


def open_transaction(servers: str, transactional_id: str, topic: str) -> Any:
    """A producer of confluent-kafka that has written and goes no further."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "transactional.id": transactional_id}
    )
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, value=b"open", partition=0)
    assert producer.flush(WAIT_S) == 0
    return producer


def test_an_open_transaction_is_seen_and_a_hanging_one_ended(admin, kafka_cluster, new_topic):
    topic, tid = new_topic(partitions=2), a_name("tid")
    tp = TopicPartition(topic, 0)
    servers = kafka_cluster.bootstrap_servers
    confluent_write(servers, topic, [Record(None, b"before")] * 5)
    producer = open_transaction(servers, tid, topic)
    confluent_write(servers, topic, [Record(None, b"after")] * 2)

    listed = admin.list_transactions(states=["Ongoing"], transactional_id_pattern=f"{tid}.*")
    assert [(row.transactional_id, row.state) for row in listed.all()] == [(tid, "Ongoing")]
    assert tid not in {row.transactional_id for row in admin.list_transactions(open_for_ms=600_000)}
    described = admin.describe_transactions([tid, "missing"])
    state = described[tid]
    assert (state.state, state.partitions, state.timeout_ms) == ("Ongoing", {tp}, 60_000)
    assert abs(state.started_ms / 1000 - time.time()) < 60
    assert described.errors["missing"].code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    by_id = admin.list_transactions(producer_ids=[state.producer_id]).all()
    assert [row.transactional_id for row in by_id] == [tid]

    def committed_end() -> int:
        wanted = {tp: OffsetSpec.latest()}
        return admin.list_offsets(wanted, isolation_level="read_committed")[tp].offset

    assert committed_end() == 5
    producers = admin.describe_producers([tp, TopicPartition(topic, 1)])
    assert producers[TopicPartition(topic, 1)] == ()
    (found,) = [row for row in producers[tp] if row.transaction_start_offset is not None]
    assert (found.producer_id, found.transaction_start_offset) == (state.producer_id, 5)
    with pytest.raises(BrokerError, match="open ones began at 5") as raised:
        admin.abort_transaction(tp, 4)
    assert raised.value.code == ErrorCode.INVALID_TXN_STATE
    aborted = admin.abort_transaction(tp, found.transaction_start_offset)
    assert aborted.producer_id == state.producer_id
    # Its readers get past it, and do not see what was in it.
    # Its coordinator would abort it after a minute.
    assert wait_until(lambda: committed_end() == 9, seconds=20)
    rows = confluent_read(servers, topic, isolation="read_committed")
    assert [row.value for row in rows] == [b"before"] * 5 + [b"after"] * 2
    with pytest.raises(BrokerError, match="no offset"):
        admin.abort_transaction(tp, 5)
    fenced = admin.fence_producers([tid])[tid]
    assert fenced.producer_epoch > state.producer_epoch
    assert wait_until(
        lambda: admin.describe_transactions([tid])[tid].state != "Ongoing", seconds=20
    )
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(WAIT_S)


def test_offsets_of_an_open_transaction_are_waited_for(admin, kafka_cluster, new_topic):
    topic, group, tid = new_topic(), a_name("group"), a_name("tid")
    tp = TopicPartition(topic, 0)
    admin.alter_consumer_group_offsets(group, {tp: 1}).all()
    producer = open_transaction(kafka_cluster.bootstrap_servers, tid, topic)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": kafka_cluster.bootstrap_servers, "group.id": group}
    )
    try:
        offsets = [confluent_kafka.TopicPartition(topic, 0, 2)]
        who = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction(offsets, who, WAIT_S)
    finally:
        consumer.close()
    assert admin.list_consumer_group_offsets(group, [tp])[tp].offset == 1

    def error() -> str:  # with its reason, unless the machine was too busy for one response
        stable = admin.list_consumer_group_offsets(group, [tp], require_stable=True, timeout_s=0.5)
        return str(stable.errors[tp])

    wait_until(lambda: "UNSTABLE_OFFSET_COMMIT" in error())
    producer.commit_transaction(WAIT_S)
    stable = admin.list_consumer_group_offsets(group, require_stable=True)
    assert stable.all() == {tp: (2, "", None)}


# --- the cluster ------------------------------------------------------------------------------


def test_client_quotas(admin: Admin) -> None:
    name, rate = a_name("user"), "producer_byte_rate"
    user = ClientQuotaEntity({"user": name})
    app = ClientQuotaEntity({"user": name, "client-id": None})
    of_user = ClientQuotaFilter([ClientQuotaFilterComponent.of_entity("user", name)])
    refused = ClientQuotaAlteration(ClientQuotaEntity({"user": a_name()}), {"speed": 1})
    changes = [ClientQuotaAlteration(user, {rate: 5e6}), ClientQuotaAlteration(app, {rate: 1024})]
    admin.alter_client_quotas(changes, validate_only=True).all()
    assert not admin.describe_client_quotas(of_user)
    results = admin.alter_client_quotas([*changes, refused])
    assert list(results.errors) == [refused.entity]
    both = {user: {rate: 5e6}, app: {rate: 1024.0}}
    wait_until(lambda: admin.describe_client_quotas(of_user) == both)
    strict = ClientQuotaFilter(of_user.components, strict=True)
    assert list(admin.describe_client_quotas(strict)) == [user]
    admin.alter_client_quotas([ClientQuotaAlteration(item, {rate: None}) for item in both]).all()
    wait_until(lambda: not admin.describe_client_quotas(of_user))


def test_reassignments_elections_and_features(
    admin: Admin, kafka_cluster: Any, new_topic: Any
) -> None:
    tp = TopicPartition(new_topic(), 0)
    (node,) = kafka_cluster.broker_ids
    admin.alter_partition_reassignments({tp: [node]}).all()
    wait_until(lambda: tp not in admin.list_partition_reassignments([tp]))
    results = admin.alter_partition_reassignments({tp: [node + 7], TopicPartition(tp[0], 9): None})
    assert [error.code for error in results.errors.values()] == [
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert admin.elect_leaders("PREFERRED").all() == {}
    for election in ("PREFERRED", "UNCLEAN"):
        results = admin.elect_leaders(election, [tp])
        assert results.errors[tp].code == ErrorCode.ELECTION_NOT_NEEDED
    found = admin.describe_features()
    peer = kafka.KafkaAdminClient(bootstrap_servers=kafka_cluster.bootstrap_servers)
    try:
        seen = peer.describe_features()
    finally:
        peer.close()
    level = found.finalized_features["metadata.version"].max_version_level
    assert f"{level}" in str(seen)
    assert found.supported_features["metadata.version"].max_version_level >= level
    same = {"metadata.version": FeatureUpdate(level)}
    assert admin.update_features(same, validate_only=True).all() == {"metadata.version": None}
    results = admin.update_features({"metadata.version": FeatureUpdate(32000)})
    with pytest.raises(BrokerError, match=r"feature metadata\.version.*32000"):
        results.all()
