"""Each verb's help has examples, and they run."""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from sparkkafka.cli.app import main
from sparkkafka.cli.commands import VERBS, root_command
from sparkkafka.client import Admin, Producer, TopicPartition
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.checkpoints.checkpoint_files import kafka_line, make_checkpoint, plan_text

NOT_RUN = ("--watch", "--schema-registry", "--records 1000000", "--seconds 30")
"""Options in examples that do not end, need a registry, or take long; other tests run them. `top`
needs a terminal, and `ui` runs until Ctrl-C."""


def commands(command: typer.main.TyperGroup) -> Iterator[typer.core.TyperCommand]:
    """The command and those below it."""
    yield command
    for child in getattr(command, "commands", {}).values():
        yield from commands(child)


def examples(verb: str) -> list[str]:
    """The examples in the help of a verb, without the remarks beside them."""
    root = root_command()
    command = root.get_command(typer.Context(root), verb) if verb else root
    texts = [found.help or "" for found in commands(command)] if verb else [root.help]
    return [
        re.split(r"\s{2,}", line.strip())[0]
        for text in texts
        for paragraph in text.split("\n\n")
        if paragraph.strip(" \n").startswith("\b")
        for line in paragraph.splitlines()
        if re.match(r"(echo .* \| )?sparkkafka ", line.strip())
    ]


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> Iterator[FakeCluster]:
    """A cluster with the topics, groups, files and profiles that the examples name. The profile
    test, and the file two, name another cluster."""
    with FakeCluster(2) as fake, FakeCluster() as other:
        other.create_topic("orders", partitions=2)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sparkkafka.cli.tables.pause", lambda _: None)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        (tmp_path / "sparkkafka").mkdir()
        setting = f'bootstrap.servers = "{fake.bootstrap_servers}"\n'
        profiles = f'default = "prod"\n[profiles.prod]\n{setting}[profiles.test]\n'
        profiles += setting.replace(fake.bootstrap_servers, other.bootstrap_servers)
        (tmp_path / "sparkkafka" / "config.toml").write_text(profiles)
        (tmp_path / "two").write_text(other.bootstrap_servers)
        (tmp_path / "client.properties").write_text(setting.replace('"', ""))
        for topic in ("orders", "orders-test", "results"):
            fake.create_topic(topic, partitions=2)
        fake.create_topic("shop.public.orders", configs={"cleanup.policy": "compact"})
        settings = {"bootstrap.servers": fake.bootstrap_servers}
        with Producer(settings) as producer:
            for partition in (0, 1):
                producer.send("orders", b"value", key=b"key", partition=partition)
        with Admin(settings) as admin:
            for group in ("billing", "my-group"):
                admin.alter_consumer_group_offsets(group, {TopicPartition("orders", 0): 0}).all()
        (tmp_path / "orders.txt").write_text("key:value\n")
        (tmp_path / "orders.jsonl").write_text('{"key":"key","payload":"value"}\n')
        (tmp_path / "orders.csv").write_text("key,value\n61,62\n")
        (tmp_path / "rows.csv").write_text("id,name\n1,one\n")
        pq.write_table(pa.table({"value": [b"value"]}), tmp_path / "orders.parquet")
        plans = {n: plan_text(kafka_line({"orders": {0: n, 1: n}})) for n in (0, 1)}
        make_checkpoint(tmp_path / "checkpoint", plans, [0, 1])
        yield fake


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_the_examples_of_a_verb_s_help_run(verb, cluster, tmp_path, monkeypatch, capsys) -> None:
    found = examples(verb)
    assert found, f"sparkkafka {verb} --help has no example"
    for line in found:
        if any(text in line for text in NOT_RUN) or re.search(" (top$|ui)", line):
            continue
        typed, command, _ = re.split(r"(?:\A| \| )(sparkkafka .*?)(?= \| |\Z)", line)
        for old, new in (
            ("topics create orders", "topics create new"),
            ("users create etl", "users create etl --yes --password-file -"),
            ("--password-file /run/secrets/etl", ""),
            ("/data/checkpoints/orders", str(tmp_path / "checkpoint")),
            ("DIR", str(tmp_path / "checkpoint")),
            ("two:9092", (tmp_path / "two").read_text()),
        ):
            command = command.replace(old, new)
        command = re.sub("(localhost|one):9092", cluster.bootstrap_servers, command)
        if verb == "read":
            command += " -e"  # some examples run until Ctrl-C
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode() or b"hush\n")))
        code = main(shlex.split(command)[1:])
        assert code == 0, f"{line}\n{capsys.readouterr()}"
