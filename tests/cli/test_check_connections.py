"""Findings of `check` about sockets, certificates and versions, with fake brokers."""

from __future__ import annotations

import socket

import pytest
from cryptography import x509

from sparkkafka.cli.check import (
    DECISIONS,
    DEFAULT_PREFIX,
    OK,
    PROBLEM,
    UNKNOWN,
    certificate_findings,
    ok,
)
from sparkkafka.protocol.messages import release_of
from sparkkafka.spark.decision_text import WriterNames
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.cli.run import Command
from tests.support.certificates import signed


@pytest.mark.parametrize(
    ("days", "mark"), [((-300, 65), OK), ((-340, 25), PROBLEM), ((0, 1), OK), ((-9, 1), PROBLEM)]
)
def test_a_certificate_must_be_renewed_in_the_last_third_of_its_life(days, mark):
    identity = signed("broker", signed("authority"), hosts=("localhost",), days=days)
    certificate = x509.load_pem_x509_certificate(identity.pem.encode())
    (finding,) = certificate_findings("h:1", [certificate])
    assert finding.mark == mark
    assert "for localhost" in finding.text
    assert ("renew it" in finding.text) == (mark == PROBLEM)


def test_the_registrys_certificate_and_the_clients_own(command, tmp_path):
    """Any TLS server can be the registry: only its certificate is checked."""
    authority = signed("authority", days=(-300, 300))
    soon = signed("me", authority, days=(-300, 20))
    names = ("localhost", "127.0.0.1")
    context = signed("server", authority, hosts=names, days=(-9, 200)).server_context(tmp_path)
    (tmp_path / "ca.pem").write_text(authority.pem)
    (tmp_path / "me.p12").write_bytes(soon.pkcs12("hush", [authority]))
    given = []
    for prefix in ("", "schema.registry."):
        given += ["-X", f"{prefix}ssl.truststore.location={tmp_path}/ca.pem"]
        given += ["-X", f"{prefix}ssl.keystore.location={tmp_path}/me.p12"]
        given += ["-X", f"{prefix}ssl.keystore.password=hush"]
    with FakeCluster(tls_context=context) as fake:
        address = fake.bootstrap_servers
        urls = f"https://{address},https://127.0.0.1:9"
        given += ["-X", "security.protocol=SSL", "-X", f"schema.registry.url={urls}"]
        lines = command(address)("check", *given, code=1).out.splitlines()
    for whose in ("client", "registry client"):
        (line,) = [line for line in lines if f"  {whose} certificate me" in line]
        assert line.startswith("!!")
        assert "19 days left, for me: renew it before" in line
        assert any(line.startswith(f"ok  {whose} certificate authority: ") for line in lines)
    for at in (address, f"registry https://{address}"):
        assert any(line.startswith(f"ok  {at} certificate server: of auth") for line in lines)
    assert any(line.startswith("!!  registry https://127.0.0.1:9 TLS: ") for line in lines)
    assert "hush" not in "".join(lines)


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return lambda servers: Command(capsys, servers)


def test_one_of_two_bootstrap_servers_does_not_answer(command):
    with FakeCluster() as fake, socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{held.getsockname()[1]}"
        run = command(f"{dead},{fake.bootstrap_servers}")("check", code=1)
    (line,) = [line for line in run.out.splitlines() if line.startswith(PROBLEM)]
    assert line.startswith(f"!!  {dead} connects: ")
    assert "cluster: " in run.out


def test_a_name_that_does_not_resolve(command):
    run = command("no-such-host.invalid:9092")("check", code=1)
    assert run.out.startswith("!!  no-such-host.invalid:9092 resolves: ")


def test_a_broker_unreachable_at_its_advertised_address(command):
    with FakeCluster(brokers=2) as fake:
        fake.broker_down(1, move_leaders=False)
        run = command(fake.address(0))("check", code=1)
    (line,) = [line for line in run.out.splitlines() if line.startswith(PROBLEM)]
    assert line.startswith("!!  broker 1 (127.0.0.1:")
    assert "advertised.listeners" in line


def test_a_cluster_that_does_not_report_its_time(command):
    with FakeCluster() as fake:
        run = command(fake.bootstrap_servers)("check")
    (line,) = [line for line in run.out.splitlines() if line.startswith(UNKNOWN)]
    assert line.startswith("??  clock: this cluster does not report its time")


@pytest.mark.parametrize("version", ["2.1", "2.8"])  # the fake lacks APIs of later releases
def test_the_release_is_shown(command, version):
    with FakeCluster(kafka_version=version) as fake:
        run = command(fake.bootstrap_servers)("check")
    assert f"API versions: those of Kafka {version}, " in run.out


def test_release_of():
    from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

    from sparkkafka.protocol.messages import REQUESTS

    for release, offered in BROKER_API_VERSIONS.items():
        if release < (2, 1):
            continue
        names = {
            REQUESTS[key].API_NAME: most for key, (_, most) in offered.items() if key in REQUESTS
        }
        found = release_of(names)
        newer = {(3, 4): "3.3"}  # it has no new API versions that are used here
        assert found == newer.get(release, f"{release[0]}.{release[1]}")
    assert release_of({}) == ""


def test_the_group_of_decisions_is_that_of_an_exactly_once_query():
    assert WriterNames.of_job("mine", "0" * 32).decisions == f"mine{DECISIONS}"
    assert WriterNames.of_job(None, "0" * 32).prefix == DEFAULT_PREFIX


def test_on_a_terminal_continuation_lines_are_indented(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    ok("topic t", "max.message.bytes=1048588, " * 2 + "min.insync.replicas=1").print()
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.endswith("  topic t: max.message.bytes=1048588,")
    assert rest == ["    max.message.bytes=1048588,", "    min.insync.replicas=1"]


@pytest.mark.parametrize(("value", "marks"), [("", "\x1b[32m\x1b[1mok\x1b[0m"), ("1", "ok")])
def test_no_color_turns_the_colour_of_marks_off(monkeypatch, capsys, value, marks):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", value)
    ok("topic t", "3 partitions").print()
    assert capsys.readouterr().out == f"{marks}  topic t: 3 partitions\n"
