"""`check` on a real broker with TLS, SASL and ACLs: no problems, and each kind of problem."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from sparkkafka.client import Admin
from tests.cli.run import Command, Run

pytestmark = pytest.mark.real


@pytest.fixture
def admin(secured):
    with Admin({"bootstrap.servers": secured.cluster.bootstrap_servers}) as admin:
        yield admin


@pytest.fixture
def check(secured, capsys, monkeypatch, tmp_path):
    """`check("SASLTLS", "--read", "t", code=1)`: by the settings of a listener, of alice."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def run(listener: str, *arguments: str, code: int = 0, **changes: str) -> Run:
        mechanism = "SCRAM-SHA-512" if listener.startswith("S") else ""
        settings = secured.ours(listener, mechanism) | {
            key.replace("_", "."): value for key, value in changes.items()
        }
        path = tmp_path / "client.properties"
        lines = [
            f"{key}={value.replace(chr(92), chr(92) * 2)}\n"
            for key, value in settings.items()
            if "\n" not in value
        ]
        path.write_text("".join(lines))
        path.chmod(0o600)
        command = Command(capsys, secured.servers(listener))
        return command("-F", str(path), "check", *arguments, code=code)

    return run


def lines(run: Run, about: str) -> list[str]:
    return [line for line in run.out.splitlines() if about in line]


def test_everything_is_ok(check, secured, admin):
    admin.create_topic("check-well", partitions=2)
    run = check("SASLTLS", "--read", "check-well", "--group", "check-group", "--trigger", "1s")
    assert {line[:2] for line in run.out.splitlines()} == {"ok"}
    at = secured.servers("SASLTLS")
    for about in (
        f"{at} resolves: 127.0.0.1",
        f"{at} connects: TCP",
        f"{at} TLS: TLSv1.3, ",
        f"{at} certificate broker: of authority, ",
        f"{at} certificate authority: of authority, ",
        f"{at} SASL: SCRAM-SHA-512 as user alice",
        f"{at} API versions: those of Kafka ",
        "cluster: ",
        "clock: ",
        "topic check-well ACLs: READ, DESCRIBE allowed",
        "topic check-well partitions: 2 partitions, all led",
        "topic check-well settings: ",
        "group check-group ACLs: READ allowed",
    ):
        assert lines(run, about), f"{about!r} is not in\n{run.out}"
    # They run on one machine.
    (line,) = lines(run, "clock")
    assert float(line.split()[2]) < 2
    documents = check("SASLTLS", "--json").json
    assert {row["mark"] for row in documents} == {"ok"}
    # Nothing was changed: the group does not exist.
    assert "check-group" not in {row.group_id for row in admin.list_consumer_groups()}


@pytest.mark.parametrize(
    ("listener", "changes", "text"),
    [
        ("OTHERNAME", {}, "has the names other.example"),
        ("EXPIRED", {}, "has expired"),
        ("TLS", {"ssl_truststore_location": ""}, "is not signed by an authority"),
        ("SASLTLS", {"sasl_jaas_config": "PLAIN"}, "this listener"),
        ("SASLTLS", {"security_protocol": "PLAINTEXT"}, "TLS"),
        ("TLS", {"security_protocol": "PLAINTEXT"}, "TLS"),
        ("SASLTEXT", {"security_protocol": "SASL_SSL"}, "does not use TLS"),
    ],
)
def test_problems_of_a_connection(check, secured, listener, changes, text):
    if changes.get("sasl_jaas_config"):
        wrong = secured.ours("SASLTLS", "SCRAM-SHA-512", password="hunter2")
        changes, text = {"sasl_jaas_config": wrong["sasl.jaas.config"]}, "SCRAM-SHA-512"
    run = check(listener, code=1, **changes)
    assert "hunter2" not in run.out + run.err
    assert run.out.splitlines()[-1].startswith("!!  ")
    assert text in run.out.splitlines()[-1]


def test_an_unchecked_host_name_is_a_problem(check):
    run = check("OTHERNAME", code=1, ssl_endpoint_identification_algorithm="")
    (line,) = lines(run, "OTHERNAME TLS") or lines(run, " TLS: ")
    assert line.startswith("!!")
    assert "the name is not checked" in line


@pytest.mark.parametrize(
    ("kind", "operation", "arguments", "text"),
    [
        (ResourceType.TOPIC, AclOperation.DESCRIBE, ["--read"], "not allowed: READ"),
        (ResourceType.TOPIC, AclOperation.READ, ["--write"], "not allowed: WRITE"),
        (ResourceType.TOPIC, AclOperation.WRITE, ["--write", "--exactly-once"], "allowed: READ"),
        (ResourceType.GROUP, AclOperation.DESCRIBE, ["--group"], "grant READ on group"),
        (ResourceType.TRANSACTIONAL_ID, AclOperation.DESCRIBE, ["--prefix"], "grant WRITE on"),
    ],
)
def test_missing_acls(check, secured, admin, kind, operation, arguments, text):
    name = f"check-{kind.name.lower()}-{operation.name.lower()}"
    topic = name if kind is ResourceType.TOPIC else f"{name}-topic"
    admin.create_topic(topic)
    guarded = f"{name}-decisions" if "--prefix" in arguments else name
    secured.guard(kind, guarded, operation, "alice")
    if arguments[0] == "--group":
        arguments = ["--read", topic, "--group", name]
    elif arguments[0] == "--prefix":
        arguments = ["--write", topic, "--exactly-once", "--prefix", name]
    else:
        arguments = [arguments[0], topic, *arguments[1:]]
    run = check("SASLTEXT", *arguments, code=1)
    wrong = [line for line in run.out.splitlines() if line.startswith("!!")]
    assert len(wrong) == 1, run.out
    assert text in wrong[0]


def test_exactly_once_checks_internal_topics(check, admin):
    admin.create_topic("check-exactly")
    run = check("SASLTEXT", "--write", "check-exactly", "--exactly-once", "--prefix", "mine")
    assert lines(run, "ok  topic check-exactly ACLs: WRITE, DESCRIBE, READ allowed")
    assert lines(run, "ok  group mine-decisions ACLs: READ allowed")
    assert lines(run, "ok  transactional ids mine… ACLs: WRITE allowed")
    assert lines(run, "topic __consumer_offsets settings: cleanup.policy=compact")
    assert admin.describe_transactions(["mine-decisions"]).errors


@pytest.mark.parametrize(
    ("configs", "arguments", "text"),
    [
        ({"max.message.bytes": 1000}, ["--write"], "max.request.size to 1000"),
        ({"min.insync.replicas": 2}, ["--write"], "there are 1 replicas"),
        ({"unclean.leader.election.enable": True}, ["--write"], "set it to false"),
        ({"retention.ms": 60_000}, ["--trigger", "1h", "--read"], "below the trigger's 1h00m"),
    ],
)
def test_harmful_settings(check, admin, configs, arguments, text):
    topic = "check-" + "-".join(configs)
    admin.create_topic(topic, configs=configs)
    run = check("SASLTEXT", *arguments, topic, code=1)
    wrong = [line for line in run.out.splitlines() if line.startswith("!!")]
    assert len(wrong) == 1, run.out
    assert text in wrong[0]


def test_a_missing_topic(check):
    run = check("SASLTEXT", "--read", "check-nowhere", code=1)
    assert lines(run, "!!  topic check-nowhere: ")


@pytest.mark.parametrize(
    "arguments", [["--exactly-once"], ["--prefix", "p"], ["--trigger", "1s"], ["--trigger", "soon"]]
)
def test_options_that_would_have_no_effect_are_refused(check, arguments):
    run = check("SASLTEXT", *arguments, code=2)
    assert run.out == ""
    assert "--" in run.error
