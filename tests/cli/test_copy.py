"""`copy` and `bench` on fake brokers: topics that copy creates, and progress on a terminal."""

from __future__ import annotations

import re

import pytest

from sparkkafka.client import Producer
from sparkkafka.client.cluster.configs import ConfigResource
from sparkkafka.testing.fake.cluster import FakeCluster


@pytest.fixture
def source(fake):
    """A topic of three partitions, with a setting, and a record in each partition."""
    fake.create_topic("source", partitions=3, configs={"retention.ms": "5000"})
    with Producer({"bootstrap.servers": fake.bootstrap_servers}) as producer:
        for partition in range(3):
            producer.send("source", b"value", partition=partition)
    return "source"


def test_a_missing_target_gets_the_partitions_and_settings_of_the_source(
    command, admin, source
) -> None:
    run = command("copy", source, "target", "--create")
    assert run.err.splitlines() == [
        "topic target was created with 3 partitions and retention.ms=5000",
        "3 records copied from source to target",
    ]
    assert len(admin.describe_topic("target").partitions) == 3
    resource = ConfigResource("topic", "target")
    entries = admin.describe_configs([resource]).all()[resource]
    assert entries["retention.ms"].value == "5000"


def test_a_target_that_exists_is_not_changed(command, admin, source) -> None:
    admin.create_topic("target", partitions=4)
    run = command("copy", source, "target", "--create")
    note = "topic target exists: records are added to those that it has"
    assert run.err == f"{note}\n3 records copied from source to target\n"
    assert len(admin.describe_topic("target").partitions) == 4


def test_a_target_in_another_cluster_gets_the_replication_factor(command, source) -> None:
    with FakeCluster(3) as other:
        servers = other.bootstrap_servers
        options = ["--to-bootstrap-server", servers, "--create", "--replication-factor", "2"]
        command("copy", source, "target", *options)
        described = command("-b", servers, "topics", "describe", "target", "--json").json
    assert {len(row["replicas"]) for row in described[0]["partitions"]} == {2}


def test_a_topic_is_not_copied_into_itself_by_another_name_of_its_cluster(
    fake, command, admin, source
) -> None:
    servers = ",".join(reversed([fake.bootstrap_servers, "127.0.0.1:1"]))
    run = command("copy", source, source, "--to-bootstrap-server", servers, code=2)
    assert "copied into itself" in run.error
    assert fake.requests_of("Produce")[3:] == []


def test_copy_without_create_says_how_to_create_the_target(command, source) -> None:
    run = command("copy", source, "target", code=1)
    assert "target" in run.error
    assert "--create" in run.error
    assert "--create" in command("copy", source, "t", "--replication-factor", "2", code=2).error


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_shown_on_a_terminal_only(is_terminal, command, source, monkeypatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich draw into pytest's capture
    copied = command("copy", source, "again", "--create").err
    measured = command("bench", "--records", "100").err
    assert ("copy source to again" in copied) == is_terminal
    assert bool(re.search("write.*100 records", measured)) == is_terminal
    assert bool(re.search("read.*100 records", measured)) == is_terminal


def test_bench_names_its_units(command) -> None:
    lines = command("bench", "--records", "10").out.splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "MEASURE",
        "records",
        "seconds",
        "records/s",
        "MB/s",
        *(f"latency {name} ms" for name in ("p50", "p95", "p99", "max")),
    ]
