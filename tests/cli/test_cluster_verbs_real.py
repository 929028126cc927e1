"""topics, brokers, groups and lag on a real broker."""

from __future__ import annotations

import time

import pytest

from sparkkafka.client import (
    Admin,
    ConfigResource,
    Consumer,
    OffsetAndMetadata,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from tests.cli.run import Command

pytestmark = pytest.mark.real


@pytest.fixture
def command(kafka_cluster, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return Command(capsys, kafka_cluster.bootstrap_servers)


@pytest.fixture
def admin(kafka_cluster):
    with Admin({"bootstrap.servers": kafka_cluster.bootstrap_servers}) as admin:
        yield admin


@pytest.fixture
def filled(kafka_cluster, new_topic):
    """A topic of two partitions with 10 records of known times in each."""
    topic = new_topic(partitions=2, prefix="filled")
    with Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers}) as producer:
        for partition in (0, 1):
            for n in range(10):
                producer.send(
                    topic, b"value", partition=partition, timestamp_ms=1_700_000_000_000 + n * 1000
                )
        producer.flush()
    return topic


def test_a_topic_from_creation_to_deletion(command, admin, new_topic):
    name = new_topic(prefix="name") + "-mine"
    run = command("topics", "create", name, "-p", "2", "-c", "retention.ms=3600000", "--dry-run")
    assert "could be created" in run.out
    assert name not in admin.list_topics()
    assert command("topics", "create", name, "-p", "2", "-c", "retention.ms=3600000").err == ""
    assert "TOPIC_ALREADY_EXISTS" in command("topics", "create", name, code=1).error

    (row,) = [row for row in command("topics", "list", "--json").json if row["topic"] == name]
    assert (row["partitions"], row["replicas"], row["out_of_sync"]) == (2, 1, 0)
    assert name in command("topics", "list").out

    command("topics", "alter", name, "-c", "max.message.bytes=2000000", "--default", "retention.ms")
    (described,) = command("topics", "describe", name, "--json").json
    assert described["configs"]["max.message.bytes"] == "2000000"
    assert described["configs"].get("retention.ms") != "3600000"
    assert [p["partition"] for p in described["partitions"]] == [0, 1]
    assert {(p["earliest"], p["latest"], p["size_bytes"]) for p in described["partitions"]} == {
        (0, 0, 0)
    }
    text = command("topics", "describe", name).out
    assert "  max.message.bytes=2000000\n" in text
    assert "LEADER" in text

    assert "--yes" in command("topics", "add-partitions", name, "3", code=2).error
    command("topics", "add-partitions", name, "3", "--yes")
    assert len(admin.describe_topic(name).partitions) == 3
    again = command("topics", "create", name, "--if-not-exists").out
    assert again == f"topic {name} already exists\n"
    assert "TOPIC_ALREADY_EXISTS" in command("topics", "create", name, code=1).error
    assert "--yes" in command("topics", "delete", name, code=2).error
    assert command("topics", "delete", name, "--yes").out == f"topic {name} was deleted\n"
    gone = command("topics", "delete", name, "--if-exists").out
    assert gone == f"topic {name} does not exist\n"
    assert name not in admin.list_topics()


@pytest.mark.parametrize(
    "verb",
    [
        "topics describe no-such-topic",
        "topics alter no-such-topic -c retention.ms=1",
        "topics add-partitions no-such-topic 3 --yes",
        "topics delete no-such-topic --yes",
        "groups reset some-group --topic no-such-topic --to-latest",
    ],
)
def test_a_missing_topic_is_one_line(command, verb):
    run = command(*verb.split(), code=1)
    assert run.out == ""
    assert "no-such-topic" in run.error


@pytest.mark.parametrize(
    "verb", ["lag no-such-group", "groups describe no-such-group", "groups delete no-such-group"]
)
def test_a_missing_group_is_one_line(command, verb):
    run = command(*verb.split(), code=1)
    assert run.out == ""
    assert "no-such-group" in run.error


def test_existing_topics_are_shown_beside_errors(command, filled):
    run = command("topics", "describe", filled, "no-such-topic", code=1)
    assert filled in run.out
    assert "no-such-topic" in run.error


def test_brokers(command):
    listed = command("brokers", "list", "--json").json
    (row,) = listed["brokers"]
    assert row["controller"] is True
    assert row["size_bytes"] >= 0
    assert row["release"][0] in "34"
    assert command.servers.endswith(f":{row['port']}")
    described = command("brokers", "describe", str(row["broker"]), "--json").json
    assert described["log_dirs"][0]["error"] is None
    assert described["configs"]
    assert "PATH" in command("brokers", "describe", str(row["broker"])).out
    assert "there is no broker 99" in command("brokers", "describe", "99", code=2).error


def test_lag_in_offsets_and_in_seconds(command, admin, filled):
    zero, one = TopicPartition(filled, 0), TopicPartition(filled, 1)
    admin.alter_consumer_group_offsets(f"g-{filled}", {zero: 4, one: 10}).all()
    before_s = time.time()
    found = command("lag", f"g-{filled}", "--json").json
    assert found["lag"] == 6
    first, second = found["partitions"]
    assert (first["committed"], first["latest"], first["lag"]) == (4, 10, 6)
    # The timestamp of the record at offset 4.
    assert first["behind_s"] == pytest.approx(before_s - 1_700_000_004, abs=60)
    assert (second["lag"], second["behind_s"]) == (0, 0.0)
    text = command("lag", f"g-{filled}").out
    assert "6 behind in 2 partitions" in text
    without = command("lag", f"g-{filled}", "--json", "--no-ages").json
    assert without["behind_s"] is None


def test_offsets_deleted_by_retention_are_shown(command, admin, filled):
    zero = TopicPartition(filled, 0)
    admin.alter_consumer_group_offsets(f"g-{filled}", {zero: 2}).all()
    admin.delete_records({zero: 5}).all()
    found = command("lag", f"g-{filled}", "--json").json
    assert (found["lag"], found["gone"]) == (8, 3)
    # It is the oldest record that is left.
    assert found["behind_s"] == pytest.approx(time.time() - 1_700_000_005, abs=60)
    assert "3 offsets were deleted" in command("lag", f"g-{filled}").out
    admin.alter_consumer_group_offsets(f"g-{filled}", {zero: 500}).all()
    assert command("lag", f"g-{filled}", "--json").json["partitions"][0]["beyond"] > 0
    text = f"{filled}-0 ended before the committed offset: the topic was recreated"
    assert text in command("lag", f"g-{filled}").out


def test_watch_needs_a_terminal_or_json(command):
    assert "--watch --json" in command("lag", "some-group", "--watch", code=2).error


@pytest.mark.parametrize(
    ("way", "offsets"),
    [
        (["--to-earliest"], [0, 0]),
        (["--to-latest"], [10, 10]),
        (["--to-offset", "7"], [7, 7]),
        (["--shift-by", "-1"], [3, 5]),
        (["--to-time", "1700000003000"], [3, 3]),
        (["--to-time", "2023-11-14T22:13:23.500Z"], [4, 4]),
        (["--to-time", "-1h"], [10, 10]),
    ],
)
def test_reset(command, admin, filled, way, offsets):
    group = f"g-{filled}"
    start = {TopicPartition(filled, 0): 4, TopicPartition(filled, 1): 6}
    admin.alter_consumer_group_offsets(group, start).all()
    shown = command("groups", "reset", group, "--all-topics", *way, "--json").json
    assert [row["to"] for row in shown["partitions"]] == offsets
    assert not shown["executed"]
    assert admin.list_consumer_group_offsets(group).all() == {
        tp: OffsetAndMetadata(offset) for tp, offset in start.items()
    }
    done = command("groups", "reset", group, "--all-topics", *way, "--execute")
    assert "2 partitions were reset" in done.out
    found = admin.list_consumer_group_offsets(group).all()
    assert [found[tp].offset for tp in sorted(found)] == offsets


def test_reset_stays_within_the_partition_and_names_partitions(command, admin, filled):
    group = f"g-{filled}"
    run = command(
        "groups", "reset", group, "--topic", f"{filled}:1", "--to-offset", "99", "--execute"
    )
    assert f"{filled}-1: offset 99 is not there, 10 is the nearest" in run.err
    assert admin.list_consumer_group_offsets(group).all() == {
        TopicPartition(filled, 1): OffsetAndMetadata(10)
    }
    assert (
        "none with the number 7"
        in command("groups", "reset", group, "--topic", f"{filled}:7", "--to-latest", code=2).error
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--all-topics"],
        ["--all-topics", "--to-latest", "--to-earliest"],
        ["--to-latest"],
        ["--all-topics", "--topic", "t", "--to-latest"],
        ["--all-topics", "--to-time", "yesterday"],
        ["--all-topics", "--to-offset", "-1"],
    ],
)
def test_reset_needs_one_target_and_one_choice_of_topics(command, arguments):
    run = command("groups", "reset", "some-group", *arguments, code=2)
    assert run.out == ""
    assert "--" in run.error


def test_a_group_with_members_is_described_and_not_reset(command, kafka_cluster, admin, filled):
    group = f"g-{filled}"
    settings = {
        "bootstrap.servers": kafka_cluster.bootstrap_servers,
        "group.id": group,
        "client.id": "reader",
        "auto.offset.reset": "earliest",
    }
    with Consumer(settings) as consumer:
        consumer.subscribe([filled])
        while len(consumer.assignment()) < 2:
            consumer.poll(0.5)
        (described,) = command("groups", "describe", group, "--json").json
        assert (described["state"], described["members"]) == ("Stable", 1)
        assert {row["client_id"] for row in described["partitions"]} == {"reader"}
        assert "1 member" in command("groups", "describe", group).out
        run = command("groups", "reset", group, "--all-topics", "--to-latest", code=1)
        assert "has 1 member (reader at" in run.error
        assert "NON_EMPTY_GROUP" in command("groups", "delete", group, "--yes", code=1).error
    assert {"group": group, "state": "Empty", "type": "classic", "simple": False} in command(
        "groups", "list", "--json"
    ).json
    assert "--yes" in command("groups", "delete", group, code=2).error
    command("groups", "delete", group, "--yes")
    assert group not in command("groups", "list").out


def test_a_share_group(command, kafka_cluster, admin, filled):
    group = f"s-{filled}"
    resource = ConfigResource("group", group)
    admin.incremental_alter_configs({resource: {"share.auto.offset.reset": "earliest"}}).all()
    settings = {"bootstrap.servers": kafka_cluster.bootstrap_servers, "group.id": group}
    with ShareConsumer(settings | {"client.id": "worker"}) as consumer:
        consumer.subscribe([filled])
        while not consumer.poll(0.5):
            pass
        consumer.commit()
        (described,) = command("groups", "describe", group, "--json").json
        assert (described["type"], described["state"], described["members"]) == (
            "share", "Stable", 1,
        )  # fmt: skip
        assert {row["client_id"] for row in described["partitions"]} == {"worker"}
        assert "share, 1 member" in command("groups", "describe", group).out
        run = command("groups", "reset", group, "--all-topics", "--to-latest", code=1)
        assert "has 1 member (worker at" in run.error
    rows = command("groups", "list", "--state", "Empty", "--json").json
    assert {"group": group, "state": "Empty", "type": "share", "simple": False} in rows
    assert "it is a share group" in command("lag", group, code=1).error
    command("groups", "reset", group, "--topic", f"{filled}:1", "--to-offset", "1", "--execute")
    (described,) = command("groups", "describe", group, "--json").json
    assert [row["committed"] for row in described["partitions"] if row["partition"] == 1] == [1]
    command("groups", "delete", group, "--yes")
    assert group not in command("groups", "list").out
