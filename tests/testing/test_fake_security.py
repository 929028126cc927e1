"""The fake cluster enforces the ACLs that it stores, and knows its SCRAM users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

from sparkkafka.client import (
    AclBinding,
    Admin,
    Consumer,
    Producer,
    TopicPartition,
    UserScramCredentialUpsertion,
)
from sparkkafka.errors import AuthenticationError, BrokerError, KafkaError
from sparkkafka.testing.fake.cluster import FakeCluster

PASSWORDS = {"admin": "a", "alice": "b", "bob": "c"}
WAIT_S = 30.0


@pytest.fixture
def fake(fake_cluster_factory: Any) -> FakeCluster:
    cluster: FakeCluster = fake_cluster_factory(1, sasl_users=PASSWORDS, super_users=["User:admin"])
    for topic in ("orders", "orders-eu", "free"):
        cluster.create_topic(topic)
    return cluster


def config_of(fake: FakeCluster, user: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": fake.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORDS.get(user, ""),
        **more,
    }


def grant(fake: FakeCluster, *acls: AclBinding) -> None:
    with Admin(config_of(fake, "admin")) as admin:
        admin.create_acls(list(acls)).all()


def write(fake: FakeCluster, user: str, topic: str = "orders", **more: Any) -> None:
    with Producer(config_of(fake, user, **more)) as producer:
        producer.send(topic, b"v").result(WAIT_S)


def read(fake: FakeCluster, user: str, topic: str = "orders", **more: Any) -> list[bytes | None]:
    with Consumer(config_of(fake, user, **more, **{"auto.offset.reset": "earliest"})) as consumer:
        if "group.id" in more:
            consumer.subscribe([topic])
        else:
            consumer.assign([TopicPartition(topic, 0)])
        found: list[bytes | None] = []
        while not found:
            found += [record.value for record in consumer.poll(WAIT_S)]
        return found


def commit(fake: FakeCluster, user: str) -> None:
    with Admin(config_of(fake, user)) as admin:
        admin.alter_consumer_group_offsets("g", {TopicPartition("orders", 0): 0}).all()


def transact(fake: FakeCluster, user: str) -> None:
    with Producer(config_of(fake, user, **{"transactional.id": "t"})) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"v")
        producer.commit_transaction()


def refused(code: str, call: Callable[[], Any]) -> None:
    with pytest.raises(KafkaError, match=f"{code}_AUTHORIZATION_FAILED"):
        call()


def test_what_no_acl_is_about_everyone_may_use(fake: FakeCluster) -> None:
    write(fake, "bob")
    assert read(fake, "bob", **{"group.id": "g"}) == [b"v"]


def test_who_is_not_allowed_is_refused(fake: FakeCluster) -> None:
    grant(fake, AclBinding("topic", "orders", "User:alice", "WRITE"))
    write(fake, "alice")
    refused("TOPIC", lambda: read(fake, "alice"))
    refused("TOPIC", lambda: write(fake, "bob"))
    refused("TOPIC", lambda: write(fake, "bob", acks="0", **{"enable.idempotence": "false"}))
    write(fake, "bob", "free")
    with Admin(config_of(fake, "bob")) as admin:
        assert sorted(admin.list_topics()) == ["free", "orders-eu"]
    assert read(fake, "admin") == [b"v"]
    # WRITE implies DESCRIBE.
    with Admin(config_of(fake, "alice")) as admin:
        assert "orders" in admin.list_topics()


def test_a_denied_acl_denies(fake: FakeCluster) -> None:
    everyone = AclBinding("topic", "*", "User:*", "ALL")
    grant(fake, everyone, AclBinding("topic", "orders", "User:bob", "READ", permission_type="DENY"))
    write(fake, "bob")
    refused("TOPIC", lambda: read(fake, "bob"))
    assert read(fake, "alice") == [b"v"]


def test_prefixes_and_hosts(fake: FakeCluster) -> None:
    far = AclBinding("topic", "orders", "User:alice", "ALL", host="10.1.2.3")
    grant(fake, far, AclBinding("topic", "orders", "User:bob", "ALL", pattern_type="PREFIXED"))
    for topic in ("orders", "orders-eu"):
        write(fake, "bob", topic)
        refused("TOPIC", lambda topic=topic: write(fake, "alice", topic))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups(fake: FakeCluster, protocol: str) -> None:
    write(fake, "bob")
    grant(fake, AclBinding("group", "g", "User:alice", "READ"))
    settings = {"group.id": "g", "group.protocol": protocol}
    assert read(fake, "alice", **settings) == [b"v"]
    commit(fake, "alice")
    refused("GROUP", lambda: read(fake, "bob", **settings))
    refused("GROUP", lambda: commit(fake, "bob"))


def test_transactional_ids_and_the_cluster(fake: FakeCluster) -> None:
    grant(
        fake,
        AclBinding("transactional_id", "t", "User:alice", "WRITE"),
        AclBinding("cluster", "kafka-cluster", "User:alice", "DESCRIBE"),
    )
    transact(fake, "alice")
    refused("TRANSACTIONAL_ID", lambda: transact(fake, "bob"))
    with Admin(config_of(fake, "alice")) as admin:
        assert len(admin.describe_acls()) == 2
        refused("CLUSTER", lambda: admin.create_acls([admin.describe_acls()[0]]).all())
    with Admin(config_of(fake, "bob")) as admin:
        refused("CLUSTER", admin.describe_acls)


def test_without_sasl_all_are_anonymous(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    config = {"bootstrap.servers": fake_cluster.bootstrap_servers}
    denied = AclBinding("topic", "t", "User:ANONYMOUS", "WRITE", permission_type="DENY")
    with Admin(config) as admin, Producer(config) as producer:
        producer.send("t", b"1").result(WAIT_S)
        admin.create_acls([denied]).all()
        refused("TOPIC", lambda: producer.send("t", b"2").result(WAIT_S))
        admin.delete_acls([denied.to_filter()]).all()
    with Producer(config) as producer:
        producer.send("t", b"3").result(WAIT_S)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_users(fake: FakeCluster, mechanism: str) -> None:
    scram = config_of(fake, "carol") | {"sasl.mechanism": mechanism, "sasl.password": "hush"}
    with pytest.raises(AuthenticationError), Admin(scram) as admin:
        admin.list_topics()
    with Admin(config_of(fake, "admin")) as admin:
        user = UserScramCredentialUpsertion("carol", mechanism, password="hush")
        admin.alter_user_scram_credentials([user]).all()
    grant(fake, AclBinding("topic", "orders", "User:carol", "WRITE"))
    with Producer(scram) as producer:
        producer.send("orders", b"v").result(WAIT_S)
    with pytest.raises(AuthenticationError), Admin(scram | {"sasl.password": "no"}) as admin:
        admin.list_topics()
    # A second client's SCRAM, and its errors.
    other = confluent_kafka.Producer(
        {name: value for name, value in scram.items() if name != "sasl.mechanism"}
        | {"sasl.mechanisms": mechanism}
    )
    reported: list[Any] = []
    other.produce("orders", b"w", on_delivery=lambda error, _: reported.append(error))
    assert other.flush(WAIT_S) == 0
    assert reported == [None]
    with pytest.raises(BrokerError), Consumer(scram) as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        consumer.poll(WAIT_S)
