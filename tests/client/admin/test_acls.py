"""ACLs by Admin on fake brokers: what is stored, what filters match, each error, lost responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sparkkafka.client import AclBinding, AclBindingFilter, Admin
from sparkkafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaTimeoutError,
    OptionError,
    UnsupportedVersionError,
)
from sparkkafka.protocol.messages import CreateAclsResponse, DescribeAclsResource
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Drop, ErrorResponse
from tests.client.support import settings

READ = AclBinding("topic", "orders", "User:alice", "READ")
WRITE = AclBinding("topic", "orders", "User:bob", "WRITE", host="10.0.0.1")
ALL_TOPICS = AclBinding("topic", "*", "User:ops", "ALL")
PREFIX = AclBinding("topic", "ord", "User:alice", "DESCRIBE", pattern_type="PREFIXED")
DENIED = AclBinding("group", "g", "User:bob", "READ", permission_type="DENY")
CLUSTER = AclBinding("cluster", "kafka-cluster", "User:ops", "ALTER")
EVERYTHING = [READ, WRITE, ALL_TOPICS, PREFIX, DENIED, CLUSTER]


@pytest.fixture
def fake_cluster(fake_cluster_factory: Any) -> FakeCluster:
    """We may do anything, whatever ACLs there are."""
    cluster: FakeCluster = fake_cluster_factory(3, super_users=["User:ANONYMOUS"])
    return cluster


@pytest.fixture
def admin(fake_cluster: Any) -> Iterator[Admin]:
    with Admin(settings(fake_cluster)) as admin:
        yield admin


@pytest.fixture
def stored(admin: Admin) -> Admin:
    assert admin.create_acls(EVERYTHING).all() == dict.fromkeys(EVERYTHING)
    return admin


FILTERS: list[tuple[AclBindingFilter, list[AclBinding]]] = [
    (AclBindingFilter(), EVERYTHING),
    (AclBindingFilter("topic"), [READ, WRITE, ALL_TOPICS, PREFIX]),
    (AclBindingFilter("topic", "orders"), [READ, WRITE]),
    (AclBindingFilter("topic", "orders", pattern_type="LITERAL"), [READ, WRITE]),
    (AclBindingFilter("topic", "orders", pattern_type="PREFIXED"), []),
    (AclBindingFilter("topic", "orders", pattern_type="MATCH"), [READ, WRITE, ALL_TOPICS, PREFIX]),
    (AclBindingFilter("topic", "order", pattern_type="MATCH"), [ALL_TOPICS, PREFIX]),
    (AclBindingFilter(pattern_type="PREFIXED"), [PREFIX]),
    (AclBindingFilter(name="*"), [ALL_TOPICS]),
    (AclBindingFilter(principal="User:alice"), [READ, PREFIX]),
    (AclBindingFilter(operation="READ"), [READ, DENIED]),
    (AclBindingFilter(host="10.0.0.1"), [WRITE]),
    (AclBindingFilter(permission_type="DENY"), [DENIED]),
    (WRITE.to_filter(), [WRITE]),
    (AclBindingFilter("user"), []),
]


def test_a_filter_finds_what_it_finds_in_kafka(stored: Admin) -> None:
    assert stored.describe_acls() == sorted(EVERYTHING)
    for wanted, found in FILTERS:
        assert stored.describe_acls(wanted) == sorted(found), wanted


def test_created_twice_is_there_once_and_deleted_is_gone(stored: Admin, fake_cluster: Any) -> None:
    stored.create_acls([READ, READ]).all()
    assert len(fake_cluster.requests_of("CreateAcls")[-1].message.creations) == 1
    wide, one, none = (
        AclBindingFilter(principal="User:alice"),
        CLUSTER.to_filter(),
        AclBindingFilter(principal="User:nobody"),
    )
    assert stored.delete_acls([wide, one, none]).all() == {
        wide: sorted([READ, PREFIX]),
        one: [CLUSTER],
        none: [],
    }
    assert stored.describe_acls() == sorted([WRITE, ALL_TOPICS, DENIED])
    assert stored.delete_acls([wide])[wide] == []


def test_as_text() -> None:
    assert str(READ) == "ALLOW READ on topic orders for User:alice"
    assert str(PREFIX) == "ALLOW DESCRIBE on topic ord (PREFIXED) for User:alice"
    assert str(WRITE) == "ALLOW WRITE on topic orders for User:bob from 10.0.0.1"
    assert str(AclBindingFilter()) == "all ACLs"
    assert str(AclBindingFilter("transactional_id")) == "ACLs on transactional id"
    assert str(DENIED.to_filter()) == "ACLs to DENY READ on group g for User:bob from *"


def test_one_that_is_refused_is_no_error_of_the_others(stored: Admin, fake_cluster: Any) -> None:
    other = AclBinding("topic", "other", "User:alice", "READ")
    fake_cluster.fault(
        ErrorResponse(ErrorCode.INVALID_REQUEST, message="not this one"),
        api="CreateAcls",
        topic="orders",
    )
    results = stored.create_acls([READ, other])
    assert results[other] is None
    with pytest.raises(BrokerError, match=r"CreateAcls of ALLOW READ on topic orders.*not this"):
        results.all()

    refused = AclBindingFilter("topic", "orders")
    fake_cluster.fault(
        ErrorResponse(ErrorCode.UNKNOWN_SERVER_ERROR, message="a full disk"),
        api="DeleteAcls",
        topic="orders",
    )
    results_of = stored.delete_acls([other.to_filter(), refused])
    assert results_of[other.to_filter()] == [other]
    with pytest.raises(BrokerError) as caught:
        results_of.all()
    assert "not deleted: ALLOW READ on topic orders for User:alice" in str(caught.value)
    assert "(a full disk); deleted: none" in str(caught.value)


def test_a_filter_that_is_asked_again_tells_all_that_it_has_deleted(
    stored: Admin, fake_cluster: Any
) -> None:
    """A part of it was refused for now: the second response has only that."""
    wanted = AclBindingFilter("topic", "orders", pattern_type="MATCH")
    rule = fake_cluster.fault(ErrorCode.REQUEST_TIMED_OUT, api="DeleteAcls", topic="orders")
    assert stored.delete_acls([wanted])[wanted] == sorted([READ, WRITE, ALL_TOPICS, PREFIX])
    assert rule.fired == 1
    assert stored.describe_acls() == sorted([DENIED, CLUSTER])


CALLS = {
    "DescribeAcls": lambda admin: admin.describe_acls(),
    "CreateAcls": lambda admin: admin.create_acls([READ]).all(),
    "DeleteAcls": lambda admin: admin.delete_acls([READ.to_filter()]).all(),
}


@pytest.mark.parametrize("api", CALLS)
def test_each_error(stored: Admin, fake_cluster: Any, api: str) -> None:
    grant = "DESCRIBE" if api == "DescribeAcls" else "ALTER"
    for code, message in (
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"grant {grant} on the cluster"),
        (ErrorCode.SECURITY_DISABLED, "no authorizer"),
        (ErrorCode.INVALID_REQUEST, "INVALID_REQUEST"),
    ):
        fake_cluster.fault(code, api=api)
        with pytest.raises(BrokerError, match=message) as caught:
            CALLS[api](stored)
        assert caught.value.code == code


@pytest.mark.parametrize("api", CALLS)
def test_a_lost_response_is_asked_for_again(stored: Admin, fake_cluster: Any, api: str) -> None:
    for drop in Drop:
        rule = fake_cluster.fault(drop, api=api, times=2)
        CALLS[api](stored)
        assert rule.fired == 2
    left = [*EVERYTHING] if api != "DeleteAcls" else [row for row in EVERYTHING if row != READ]
    assert stored.describe_acls() == sorted(left)
    fake_cluster.fault(Drop.BEFORE, api=api, times=None)
    with Admin(settings(fake_cluster, default_api_timeout_ms=300)) as short:
        with pytest.raises(KafkaTimeoutError):
            CALLS[api](short)


def test_the_controller_of_old_brokers_is_asked(fake_cluster_factory: Any) -> None:
    fake = fake_cluster_factory(3, kafka_version="2.1")
    with Admin(settings(fake)) as admin:
        assert admin.create_acls([READ, PREFIX]).all()
        assert admin.describe_acls() == sorted([READ, PREFIX])
        assert admin.delete_acls([AclBindingFilter()])[AclBindingFilter()]
        of_users = AclBinding("user", "alice", "User:bob", "CREATE_TOKENS")
        for act in (
            lambda: admin.create_acls([of_users]).all(),
            lambda: admin.describe_acls(of_users.to_filter()),
        ):
            with pytest.raises(UnsupportedVersionError, match=r"resource_type user .*Kafka 3\.3"):
                act()
    assert {row.broker for row in fake.requests_of("CreateAcls")} == {0}
    assert {row.version for row in fake.requests_of("DeleteAcls")} == {1}


def test_a_broker_that_leaves_out_an_acl(stored: Admin, fake_cluster: Any) -> None:
    fake_cluster.fault(lambda _: CreateAclsResponse(), api="CreateAcls")
    with pytest.raises(BrokerError, match="leaves it out"):
        stored.create_acls([READ]).all()


def test_what_a_newer_broker_has_is_shown_by_its_number(stored: Admin, fake_cluster: Any) -> None:
    plain = fake_cluster.handlers["DescribeAcls"]

    def newer(call: Any) -> Any:
        response = plain(call)
        resource: DescribeAclsResource = response.resources[0]
        resource.resource_type, resource.acls[0].operation = 99, 98
        return response

    fake_cluster.handlers["DescribeAcls"] = newer
    found = stored.describe_acls(READ.to_filter())
    assert [str(row) for row in found] == ["ALLOW 98 on 99 orders for User:alice"]


def binding(**changes: Any) -> AclBinding:
    given = {"resource_type": "topic", "name": "t", "principal": "User:a", "operation": "READ"}
    return AclBinding(**given | changes)


WRONG: list[tuple[Any, str]] = [
    (lambda a: a.create_acls(READ), r"bindings is a list: write \[AclBinding"),
    (lambda a: a.create_acls(["x"]), "bindings is a list such as .*AclBinding.*got 'x' in it"),
    (lambda a: a.create_acls([READ.to_filter()]), "got AclBindingFilter.* in it"),
    (lambda a: a.create_acls([binding(resource_type="topics")]), "did you mean 'topic'"),
    (lambda a: a.create_acls([binding(resource_type="TransactionalId")]), "'transactional_id'"),
    (lambda a: a.create_acls([binding(operation="read")]), "READ, WRITE, .*did you mean 'READ'"),
    (lambda a: a.create_acls([binding(operation="DescribeConfigs")]), "mean 'DESCRIBE_CONFIGS'"),
    (lambda a: a.create_acls([binding(operation=3)]), "operation must be one of ALL, .*got 3"),
    (lambda a: a.create_acls([binding(pattern_type="MATCH")]), "MATCH is for filters"),
    (lambda a: a.create_acls([binding(pattern_type="PREFIX")]), "LITERAL, PREFIXED, got 'PREFIX'"),
    (lambda a: a.create_acls([binding(permission_type="allow")]), "did you mean 'ALLOW'"),
    (lambda a: a.create_acls([binding(principal="alice")]), "did you mean 'User:alice'"),
    (lambda a: a.create_acls([binding(principal="User:")]), "written as User:alice, got 'User:'"),
    (lambda a: a.create_acls([binding(principal="user:a")]), "is not a user: write 'User:a'"),
    (lambda a: a.create_acls([binding(principal=None)]), "a principal is a name as text"),
    (lambda a: a.create_acls([binding(name="")]), "name is empty"),
    (lambda a: a.create_acls([binding(host="")]), "host is empty"),
    (lambda a: a.create_acls([binding(resource_type="cluster")]), "\"kafka-cluster\", got 't'"),
    (lambda a: a.delete_acls(AclBindingFilter()), "filters is a list: write"),
    (lambda a: a.delete_acls([READ]), r"write to_filter\(\) of ALLOW READ on topic orders"),
    (lambda a: a.delete_acls(["orders"]), "a filter is AclBindingFilter.*got 'orders'"),
    (lambda a: a.describe_acls(AclBindingFilter("topik")), "did you mean 'topic'"),
    (lambda a: a.describe_acls(AclBindingFilter(pattern_type="ANY")), "MATCH, LITERAL, PREFIXED"),
    (lambda a: a.describe_acls(AclBindingFilter(name=5)), "a filter's name is a name as text"),
    (lambda a: a.describe_acls(AclBindingFilter(principal="alice")), "mean 'User:alice'"),
]


def test_what_cannot_be_an_acl_is_an_error_that_says_so(admin: Admin, fake_cluster: Any) -> None:
    for act, message in WRONG:
        with pytest.raises(OptionError, match=message):
            act(admin)
    assert fake_cluster.requests == []
