"""The report about an account: what works, what a service does not offer, and what helps then."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparkkafka.client import Producer
from sparkkafka.testing.account_check import AccountCheck, main
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Delay
from tests.real.tansu import PACKAGE, tansu
from tests.support.certificates import signed

LINE = re.compile(r"(ok|--|!!)  +\d+ ms  ([^:]+(?::\d+)?): (.+)")

GZIP_ONLY = {"codec snappy", "codec lz4", "codec zstd"}
REFUSED = {
    "event-hubs": GZIP_ONLY,
    "ydb": {"ACLs", "codec gzip", *GZIP_ONLY},
    "oci": {"idempotent producer", "transactions", *GZIP_ONLY},
    "ursa": {"log dirs", "transactions"},
    "confluent-cloud": set(),
}
"""Steps that a service refuses."""


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, str]]:
    """Return the exit code, and by step the mark and the text of its line."""
    code = main(arguments)
    lines = capsys.readouterr().out.splitlines()
    rows = [LINE.fullmatch(line) for line in lines]
    assert all(rows), lines
    return code, {row[2]: f"{row[1]} {row[3]}" for row in rows if row}


@pytest.mark.parametrize("profile", REFUSED)
def test_what_a_service_refuses_is_no_error_and_names_what_helps(
    profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["-X", "check.crcs=false"] if profile == "ydb" else []
    with FakeCluster(profile=profile) as cluster:
        cluster.create_topic("t")
        arguments = ("-b", cluster.bootstrap_servers, "--write", "t", "--timeout", "20")
        code, found = check(capsys, *arguments, *settings)
        assert code == 0
        refused = {step for step, text in found.items() if text.startswith("--")}
        assert {step for step in refused if "ApiVersions" not in step} == REFUSED[profile] | {
            "fetch of t"
        }
        for step in REFUSED[profile] - {"ACLs", "log dirs"}:
            assert re.search("set another codec|enable.idempotence|transactional.id", found[step])
        assert "as written" in found["read what was written"]
        assert "DeleteGroups" in {request.api for request in cluster.requests}
        if "transactions" not in refused:
            assert found["read_committed"].startswith("ok 1 record")


def test_nothing_is_written_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("orders", 2)
        with Producer({"bootstrap.servers": cluster.bootstrap_servers}) as producer:
            producer.send("orders", b"1", partition=1).result()
        cluster.clear_requests()
        # A file of settings has the group of a job, for which nothing may be committed.
        code, found = check(capsys, "-b", cluster.bootstrap_servers, "-X", "group.id=job")
        assert code == 0
        assert found["fetch of orders"] == "ok 1 record of orders"
        apis = {request.api for request in cluster.requests}
        assert not apis & {"Produce", "InitProducerId", "CreateTopics", "OffsetCommit", "JoinGroup"}


def test_a_topic_that_was_created_is_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeCluster() as cluster:
        code, found = check(capsys, "-b", cluster.bootstrap_servers, "--write", "new")
        assert code == 0
        assert found["deletion of new"] == "ok done"
        cluster.create_topic("new")  # refused if it exists


def test_topics_that_only_the_services_tools_create(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeCluster(profile="event-hubs") as cluster:
        code, found = check(capsys, "-b", cluster.bootstrap_servers, "--write", "new")
        assert code == 0
        assert "create it with the service's own tools" in found["creation of new"]
        assert "idempotent producer" not in found


def test_tls_and_a_login_whose_secrets_are_not_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = signed("authority")
    context = signed("server", authority, hosts=("127.0.0.1",)).server_context(tmp_path)
    (tmp_path / "ca.pem").write_text(authority.pem)
    file = tmp_path / "client.properties"
    file.touch(0o600)
    for password, expected in (("s3cret-word", 0), ("wr0ng-word", 1)):
        file.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nssl.truststore.type=PEM\n"
            f"ssl.truststore.location={tmp_path / 'ca.pem'}\n"
            f"sasl.username=alice\nsasl.password={password}\n"
        )
        with FakeCluster(sasl_users={"alice": "s3cret-word"}, tls_context=context) as cluster:
            arguments = ("-b", cluster.bootstrap_servers, "--command-config", str(file))
            code = main(arguments)
        printed = "".join(capsys.readouterr())
        assert code == expected, printed
        assert password not in printed
        assert "PLAIN as user alice" in printed
        assert re.search(
            r"^ok .* TLS 127\.0\.0\.1:\d+: TLSv1\.3, .*verified$", printed, re.MULTILINE
        )
        assert ("!!" in printed) == (expected == 1)


def test_a_step_ends_at_its_deadline_and_the_others_are_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("t")
        cluster.fault(Delay(60_000), api="ListGroups", times=None)
        code, found = check(capsys, "-b", cluster.bootstrap_servers, "--timeout", "0.5")
        assert code == 1
        assert found["groups"].startswith("!!")
        assert found["offsets of t"].startswith("ok")


@pytest.mark.real
def test_a_broker_by_other_hands(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(PACKAGE)
    with tansu() as address:
        # A group takes Tansu half a minute, and it shows what a transaction aborted.
        arguments = ("-b", address, "--write", "account-check", "--timeout", "2")
        code, found = check(capsys, *arguments)
    assert code == 1
    for step in ("codec zstd", "idempotent producer", "read what was written", "transactions"):
        assert found[step].startswith("ok"), found
    assert "of an aborted transaction" in found["read_committed"]
    assert found["group"].startswith("!!")
    assert found["deletion of account-check"] == "ok done"


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = check(capsys, "-b", "127.0.0.1:1", "--timeout", "2")
    assert code == 1
    assert found["connection 127.0.0.1:1"].startswith("!!")


def test_a_wrong_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-b", "x:1", "-X", "sasl.mechanism=NONE"]) == 2
    assert "sasl.mechanism" in capsys.readouterr().err


def test_a_topic_whose_creation_was_not_answered_is_deleted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("t")
        cluster.fault(Delay(20000), api="CreateTopics", times=None)
        arguments = ("-b", cluster.bootstrap_servers, "--write", "new", "--timeout", "1")
        code, found = check(capsys, *arguments)
        assert code == 1
        assert found["creation of new"].startswith("!!")
        assert found["deletion of new"] == "ok done"


@pytest.mark.parametrize("timeout", ["nan", "inf", "-1", "0", "1e300", "soon"])
def test_a_wrong_timeout_is_named(timeout: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["-b", "127.0.0.1:1", f"--timeout={timeout}"])
    assert f"{timeout} is not from 0.1 to 3600 seconds" in capsys.readouterr().err


def test_an_interrupted_report_ends_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(AccountCheck, "write_steps", interrupt)
    with FakeCluster() as cluster:
        assert main(["-b", cluster.bootstrap_servers, "--write", "new"]) == 130
    report = capsys.readouterr()
    assert report.err == "interrupted\n"
    assert "deletion of new: done" in report.out
