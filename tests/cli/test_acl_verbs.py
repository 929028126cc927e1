"""`acls` on fake brokers: options, output and errors."""

from __future__ import annotations

import io
import re

import pytest

from sparkkafka.cli.app import main
from sparkkafka.client import AclBinding
from sparkkafka.errors import ErrorCode
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import ErrorResponse
from tests.docs.snippets import page


def topic(*operations: str, name: str = "orders", who: str = "User:etl", **more: str) -> list:
    return [AclBinding("topic", name, who, operation, **more) for operation in operations]


@pytest.fixture
def fake():
    """This user may do anything, whatever ACLs exist."""
    with FakeCluster(super_users=["User:ANONYMOUS"]) as fake:
        yield fake


CREATE = ["acls", "create", "--principal", "User:etl"]


def test_what_the_options_name_is_created(command, admin):
    run = command(*CREATE, "--topic", "orders", "--operation", "read", "--operation", "Describe")
    assert run.out.splitlines() == [
        "PRINCIPAL  PERMISSION  OPERATION  RESOURCE  NAME    PATTERN",
        "User:etl   ALLOW       READ       topic     orders  LITERAL",
        "User:etl   ALLOW       DESCRIBE   topic     orders  LITERAL",
        "2 ACLs were created",
    ]
    assert admin.describe_acls() == sorted(topic("READ", "DESCRIBE"))
    command(*CREATE, "--topic", "a", "--topic", "b", "--operation", "describe-configs")
    command(*CREATE, "--cluster", "--operation", "AlterConfigs", "--deny", "--host", "10.0.0.1")
    command(
        *CREATE, "--principal", "User:x", "--group", "g", "--operation", "all",
        "--pattern", "prefixed",
    )  # fmt: skip
    command(*CREATE, "--user-principal", "User:y", "--operation", "create_tokens")
    command(*CREATE, "--delegation-token", "t", "--operation", "describe")
    expected = [
        *topic("READ", "DESCRIBE"),
        *topic("DESCRIBE_CONFIGS", name="a"),
        *topic("DESCRIBE_CONFIGS", name="b"),
        AclBinding(
            *("cluster", "kafka-cluster", "User:etl", "ALTER_CONFIGS"),
            host="10.0.0.1",
            permission_type="DENY",
        ),
        AclBinding("group", "g", "User:etl", "ALL", pattern_type="PREFIXED"),
        AclBinding("group", "g", "User:x", "ALL", pattern_type="PREFIXED"),
        AclBinding("user", "User:y", "User:etl", "CREATE_TOKENS"),
        AclBinding("delegation_token", "t", "User:etl", "DESCRIBE"),
    ]
    assert admin.describe_acls() == sorted(expected)


def test_what_jobs_need(command, admin):
    """The same as kafka-acls.sh; docs/exactly-once.md has the ACLs of --exactly-once."""
    on = ("--topic", "orders")
    command(*CREATE, "--producer", *on, "--transactional-id", "id")
    ids = [
        AclBinding("transactional_id", "id", "User:etl", operation)
        for operation in ("WRITE", "DESCRIBE")
    ]
    writing = [*topic("WRITE", "DESCRIBE", "CREATE"), *ids]
    assert admin.describe_acls() == sorted(writing)
    command(*CREATE, "--consumer", *on, "--group", "billing")
    reading = [*topic("READ", "DESCRIBE"), AclBinding("group", "billing", "User:etl", "READ")]
    assert admin.describe_acls() == sorted({*writing, *reading})
    command("acls", "delete", "--all", "--yes")

    command(*CREATE, "--exactly-once", "--prefix", "orders", "--topic", "out")
    documented = re.findall(
        r"^\| (?:tasks and driver|tasks|driver) \| (\w+) \| (TransactionalId|Group|the topics)",
        page("docs/exactly-once.md"),
        re.MULTILINE,
    )
    resources = {"TransactionalId": "transactional_id", "Group": "group", "the topics": "topic"}
    found = admin.describe_acls()
    assert sorted((row.operation, row.resource_type) for row in found) == sorted(
        (operation, resources[resource]) for operation, resource in documented
    )
    for row in found:
        expected = ("out", "LITERAL") if row.resource_type == "topic" else ("orders", "PREFIXED")
        assert (row.name, row.pattern_type) == expected


def test_list_with_filters(command, admin):
    prefix = topic("WRITE", name="ord", pattern_type="PREFIXED")
    deny = AclBinding("group", "g", "User:bob", "READ", permission_type="DENY", host="h")
    admin.create_acls([*topic("READ"), *topic("READ", who="User:bob"), *prefix, deny]).all()

    def listed(*options: str) -> list[AclBinding]:
        return [AclBinding(**row) for row in command("acls", "list", "--json", *options).json]

    assert len(listed()) == 4
    assert listed("--topic", "orders") == [*topic("READ", who="User:bob"), *topic("READ")]
    assert listed("--topic", "orders", "--pattern", "match", "--operation", "write") == prefix
    assert listed("--pattern", "prefixed") == prefix
    assert listed("--principal", "User:bob", "--permission", "deny") == [deny]
    assert listed("--host", "h") == [deny]
    assert listed("--group", "g", "--topic", "ord") == [deny, *prefix]
    assert listed("--cluster") == []
    out = command("acls", "list", "--host", "h").out.splitlines()
    assert out[0].split()[-1] == "HOST"
    assert out[1].split()[-1] == "h"


def test_only_the_shown_acls_are_deleted(command, admin, fake):
    admin.create_acls([*topic("READ", "WRITE"), *topic("READ", who="User:bob")]).all()
    dry = command("acls", "delete", "--principal", "User:etl", "--dry-run")
    assert dry.out.splitlines()[-1] == "2 ACLs would be deleted"
    assert len(admin.describe_acls()) == 3
    assert (
        "There is no terminal to ask on"
        in command("acls", "delete", "--principal", "User:etl", code=2).error
    )
    run = command("acls", "delete", "--principal", "User:etl", "--yes")
    assert run.out.splitlines()[-1] == "2 ACLs were deleted"
    assert admin.describe_acls() == topic("READ", who="User:bob")
    assert {row.resource_name_filter for row in fake.requests_of("DeleteAcls")[-1].message.filters}
    again = command("acls", "delete", "--principal", "User:etl", "--yes", code=1)
    assert "ACLs for User:etl match nothing" in again.error
    empty = command("acls", "delete", "--principal", "User:etl", "--dry-run", "--json")
    assert empty.json == {"executed": False, "acls": []}


def test_deleting_asks_for_confirmation(command, admin, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    admin.create_acls(topic("READ")).all()
    monkeypatch.setattr("sys.stdin", Terminal("n\ny\n"))
    run = command("acls", "delete", "--topic", "orders", code=1)
    assert "Delete 1 ACL (ALLOW READ on topic orders for User:etl)?" in run.err
    assert len(admin.describe_acls()) == 1
    command("acls", "delete", "--topic", "orders")
    assert admin.describe_acls() == []


def test_failed_items_are_named_and_the_others_are_done(command, admin, fake):
    refusal = ErrorResponse(ErrorCode.INVALID_REQUEST, message="not this")
    fake.fault(refusal, api="CreateAcls", topic="orders")
    run = command(
        *CREATE, "--topic", "orders", "--topic", "b", "--operation", "read", "--json", code=1
    )
    assert "CreateAcls of ALLOW READ on topic orders for User:etl" in run.error
    assert [row["name"] for row in run.json["acls"]] == ["b"]
    command(*CREATE, "--topic", "orders", "--operation", "read")
    fake.fault(refusal, api="DeleteAcls", topic="orders")
    run = command("acls", "delete", "--principal", "User:etl", "--yes", code=1)
    assert "not deleted: ALLOW READ on topic orders" in run.error
    assert run.out.splitlines()[-1] == "1 ACL was deleted"
    assert admin.describe_acls() == topic("READ")


def test_a_cluster_without_an_authorizer(command, fake):
    fake.fault(ErrorCode.SECURITY_DISABLED, api="DescribeAcls")
    assert "no authorizer" in command("acls", "list", code=1).error


WRONG = [
    ("acls create --topic t --operation read", "Give --principal User:NAME"),
    ("acls create --principal User:a --operation read", "Give --topic, --group"),
    ("acls create --principal User:a --topic t", "Give --operation, or --producer"),
    ("acls create --principal a --topic t --operation read", "did you mean 'User:a'"),
    ("acls create --principal user:a --topic t --operation read", "write 'User:a'"),
    ("acls create --principal User:a --topic t --operation reed", "did you mean 'READ'"),
    ("acls create --principal User:a --group g --operation write", "a group has no such operation"),
    ("acls create --principal User:a --topic t --operation read --pattern match", "--pattern must"),
    ("acls create --principal User:a --producer", "which topics"),
    ("acls create --principal User:a --producer --topic t --group g", "--group is for --consumer"),
    ("acls create --principal User:a --consumer --topic t --transactional-id i", "for --producer"),
    ("acls create --principal User:a --consumer --topic t --cluster", "are about topics"),
    (
        "acls create --principal User:a --consumer --topic t --operation read",
        "exclude --operation and --deny",
    ),
    (
        "acls create --principal User:a --consumer --topic t --deny",
        "exclude --operation and --deny",
    ),
    ("acls create --principal User:a --exactly-once --topic t", "needs --prefix"),
    ("acls create --principal User:a --topic t --operation read --prefix p", "for --exactly-once"),
    ("acls delete --yes", "or else --all"),
    ("acls delete --pattern match --yes", "or else --all"),
    ("acls delete --topic t --all --yes", "or else --all"),
    ("acls list --permission alow", "did you mean 'ALLOW'"),
    ("acls list --principal etl", "did you mean 'User:etl'"),
    ("acls list --pattern prefix", "did you mean 'PREFIXED'"),
]


def test_wrong_use_is_one_line(command, fake, capsys):
    for given, text in WRONG:
        assert text in command(*given.split(), code=2).error, given
    assert fake.requests_of("CreateAcls") == fake.requests_of("DeleteAcls") == []
    # With --dry-run no broker is contacted, but an invalid ACL is an error.
    assert main([*CREATE, "--topic", "t", "--operation", "read", "--dry-run"]) == 0
    assert "1 ACL would be created" in capsys.readouterr().out
    assert main([*CREATE[:-1], "etl", "--topic", "t", "--operation", "read", "--dry-run"]) == 2
