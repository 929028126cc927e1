"""ACLs and SCRAM users on a real broker, seen by a second client, and the reverse."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import admin as other

from sparkkafka.client import (
    AclBinding,
    AclBindingFilter,
    Admin,
    Consumer,
    Producer,
    ScramCredentialInfo,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from sparkkafka.errors import AuthenticationError, BrokerError, ErrorCode
from tests.cli.run import Command
from tests.client.admin.test_acls import CLUSTER, EVERYTHING, FILTERS
from tests.real.secured import PASSWORDS, Secured
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
LOGIN_S = 10.0  # for one that must succeed in the end, since brokers hear of passwords one by one


@pytest.fixture
def admin(secured: Secured) -> Iterator[Admin]:
    with Admin({"bootstrap.servers": secured.cluster.bootstrap_servers}) as admin:
        yield admin


@pytest.fixture
def second(secured: Secured) -> Any:
    return other.AdminClient({"bootstrap.servers": secured.cluster.bootstrap_servers})


@pytest.fixture
def name() -> str:
    return f"acl-{uuid.uuid4().hex[:8]}"


@contextlib.contextmanager
def stored(admin: Admin, bindings: list[AclBinding]) -> Iterator[None]:
    """These ACLs are in force; afterwards they are gone."""
    filters = [binding.to_filter() for binding in bindings]
    try:
        admin.create_acls(bindings).all()
        wait_until(lambda: {*bindings} <= {*admin.describe_acls()})
        yield
    finally:
        admin.delete_acls(filters)
        wait_until(lambda: not {*bindings} & {*admin.describe_acls()})


def test_filters_are_those_of_the_fake_broker(admin: Admin, secured: Secured) -> None:
    with stored(admin, EVERYTHING):
        for wanted, expected in FILTERS:
            found = [row for row in admin.describe_acls(wanted) if row in EVERYTHING]
            assert found == sorted(expected), wanted
        # One of them keeps everybody but User:ops, and super users, from the cluster.
        with Admin(secured.ours("SASLTEXT", SHA_512)) as alice:
            for act, message in (
                (lambda: alice.describe_acls(), "grant DESCRIBE on the cluster"),
                (lambda: alice.create_acls([CLUSTER]).all(), "grant ALTER on the cluster"),
                (alice.describe_user_scram_credentials, "grant DESCRIBE on the cluster"),
                (
                    lambda: alice.alter_user_scram_credentials(
                        [UserScramCredentialDeletion("bob", SHA_512)]
                    ).all(),
                    "grant ALTER on the cluster",
                ),
            ):
                with pytest.raises(BrokerError, match=message):
                    act()
        many = AclBindingFilter("topic", "orders", pattern_type="MATCH")
        deleted = admin.delete_acls([many, AclBindingFilter("topic", "no-such-topic")]).all()
        assert deleted[many] == sorted(dict(FILTERS)[many])
        assert deleted[AclBindingFilter("topic", "no-such-topic")] == []


def test_what_one_client_creates_the_other_sees_and_deletes(
    admin: Admin, second: Any, name: str
) -> None:
    ours = AclBinding("transactional_id", name, "User:etl", "WRITE", pattern_type="PREFIXED")
    theirs = other.AclBinding(
        *(other.ResourceType.TRANSACTIONAL_ID, name, other.ResourcePatternType.PREFIXED),
        *("User:etl", "*", other.AclOperation.WRITE, other.AclPermissionType.ALLOW),
    )
    any_of_it = other.AclBindingFilter(
        *(other.ResourceType.ANY, name, other.ResourcePatternType.ANY, None, None),
        *(other.AclOperation.ANY, other.AclPermissionType.ANY),
    )

    def seen_by_second() -> list[Any]:
        return list(second.describe_acls(any_of_it, request_timeout=30).result(30))

    admin.create_acls([ours]).all()
    wait_until(lambda: seen_by_second() == [theirs])
    assert second.delete_acls([any_of_it], request_timeout=30)[any_of_it].result(30) == [theirs]
    wait_until(lambda: admin.describe_acls(ours.to_filter()) == [])

    second.create_acls([theirs], request_timeout=30)[theirs].result(30)
    wait_until(lambda: admin.describe_acls(AclBindingFilter(name=name)) == [ours])
    assert admin.delete_acls([ours.to_filter()])[ours.to_filter()] == [ours]
    wait_until(lambda: seen_by_second() == [])


def test_an_acl_shuts_out_and_lets_in(admin: Admin, secured: Secured, name: str) -> None:
    secured.cluster.create_topic(name)
    of_bob = AclBinding("topic", name, "User:bob", "READ")
    of_alice = AclBinding("topic", name[:-1], "User:alice", "ALL", pattern_type="PREFIXED")
    with Admin(secured.ours("SASLTEXT", SHA_512)) as alice:
        with stored(admin, [of_bob]):
            error = alice.describe_topics([name]).errors[name]
            assert isinstance(error, BrokerError)
            assert error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            with stored(admin, [of_alice]):
                assert alice.describe_topic(name).name == name


def test_what_the_command_grants_is_enough(
    admin: Admin, secured: Secured, name: str, capsys: Any, monkeypatch: Any, tmp_path: Any
) -> None:
    """To write and to read in a group, where nobody else may do anything."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    command = Command(capsys, secured.cluster.bootstrap_servers)
    settings = secured.ours("SASLTEXT", SHA_512)
    reading = {"group.id": name, "auto.offset.reset": "earliest"}
    of_bob = [AclBinding(kind, name, "User:bob", "ALL") for kind in ("topic", "group")]
    job = ("--topic", name, "--group", name, "--producer", "--consumer")
    secured.cluster.create_topic(name)
    with stored(admin, of_bob):
        with Producer(settings) as producer, pytest.raises(BrokerError, match=name):
            producer.send(name, b"refused").result(30)
        try:
            made = command("acls", "create", "--principal", "User:alice", *job, "--json").json
            granted = [AclBinding(**row) for row in made["acls"]]
            wait_until(lambda: {*granted} <= {*admin.describe_acls()})
            with Producer(settings) as producer:
                producer.send(name, b"written").result(30)
            with Consumer(settings | reading) as consumer:
                consumer.subscribe([name])
                assert [record.value for record in consumer.poll(30)] == [b"written"]
                consumer.commit()
        finally:
            # Not all of hers: other tests have given her some.
            mine = ("--principal", "User:alice", "--topic", name, "--group", name)
            gone = command("acls", "delete", *mine, "--yes")
    assert gone.out.splitlines()[-1] == f"{len(granted)} ACLs were deleted"


def test_a_cluster_without_an_authorizer(kafka_cluster: Any) -> None:
    with Admin({"bootstrap.servers": kafka_cluster.bootstrap_servers}) as admin:
        for act in (admin.describe_acls, lambda: admin.create_acls([CLUSTER]).all()):
            with pytest.raises(BrokerError, match="Authorizer is configured") as caught:
                act()
            assert caught.value.code == ErrorCode.SECURITY_DISABLED


# --- users ------------------------------------------------------------------------------------


def client_of(secured: Secured, mechanism: str, user: str, password: str, **more: Any) -> Any:
    """librdkafka's."""
    config = secured.confluent("SASLTEXT", mechanism)
    return other.AdminClient(config | {"sasl.username": user, "sasl.password": password} | more)


def is_refused(secured: Secured, mechanism: str, user: str, password: str) -> None:
    errors: list[Any] = []
    client = client_of(secured, mechanism, user, password, error_cb=errors.append)

    def is_told() -> bool:
        with pytest.raises(confluent_kafka.KafkaException):
            client.list_topics(timeout=0.2)
        client.poll(0)
        return any(row.code() == confluent_kafka.KafkaError._AUTHENTICATION for row in errors)

    wait_until(is_told)


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_a_user_of_ours_logs_in_until_it_is_deleted(
    admin: Admin, secured: Secured, name: str, mechanism: str
) -> None:
    password = PASSWORDS["bob"]  # with all that is special somewhere
    admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(name, mechanism, password, iterations=4097)]
    ).all()
    wait_until(lambda: name in admin.describe_user_scram_credentials())
    found = admin.describe_user_scram_credentials([name])[name]
    assert found == (ScramCredentialInfo(mechanism, 4097),)
    assert client_of(secured, mechanism, name, password).list_topics(timeout=LOGIN_S).brokers
    is_refused(secured, mechanism, name, f"{password}!")
    settings = secured.ours("SASLTEXT", mechanism, user="bob")
    login = settings["sasl.jaas.config"].replace('username="bob"', f'username="{name}"')
    with Admin(settings | {"sasl.jaas.config": login}) as ours:
        assert ours.describe_cluster().brokers

    admin.alter_user_scram_credentials([UserScramCredentialDeletion(name, mechanism)]).all()
    wait_until(lambda: name not in admin.describe_user_scram_credentials())
    is_refused(secured, mechanism, name, password)
    with Admin(settings | {"sasl.jaas.config": login}) as ours:
        with pytest.raises(AuthenticationError, match=name):
            ours.describe_cluster()


def test_a_user_of_the_other_client(admin: Admin, second: Any, secured: Secured, name: str) -> None:
    how = other.ScramCredentialInfo(other.ScramMechanism.SCRAM_SHA_256, 5000)
    change = other.UserScramCredentialUpsertion(name, how, b"hush")
    second.alter_user_scram_credentials([change])[name].result(30)
    wait_until(lambda: name in admin.describe_user_scram_credentials())
    assert admin.describe_user_scram_credentials()[name] == (ScramCredentialInfo(SHA_256, 5000),)
    # Both mechanisms of a user in one call, and another user's error beside it.
    results = admin.alter_user_scram_credentials(
        [
            UserScramCredentialDeletion(name, SHA_256),
            UserScramCredentialUpsertion(name, SHA_512, "hush", iterations=16384),
            UserScramCredentialDeletion("nobody", SHA_512),
        ]
    )
    assert list(results.errors) == ["nobody"]
    with pytest.raises(BrokerError, match=r"RESOURCE_NOT_FOUND.*user nobody"):
        results.all()

    def told() -> list[Any]:
        found = second.describe_user_scram_credentials([name])[name].result(30)
        return [(info.mechanism, info.iterations) for info in found.scram_credential_infos]

    wait_until(lambda: told() == [(other.ScramMechanism.SCRAM_SHA_512, 16384)])
    gone = other.UserScramCredentialDeletion(name, other.ScramMechanism.SCRAM_SHA_512)
    second.alter_user_scram_credentials([gone])[name].result(30)
    wait_until(lambda: name not in admin.describe_user_scram_credentials())
    missing = admin.describe_user_scram_credentials([name]).errors[name]
    assert isinstance(missing, BrokerError)
    assert missing.code == ErrorCode.RESOURCE_NOT_FOUND
