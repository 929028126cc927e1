"""docs/plots.md, live: what it shows of `top --once` is printed, and its options are there."""

from __future__ import annotations

import re
import shlex

from sparkkafka.cli import tables
from sparkkafka.cli.app import main
from sparkkafka.client import Admin, TopicPartition
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.cli.run import produce
from tests.docs.snippets import blocks, page
from tests.tools import cli_docs

PAGE = "docs/plots.md"


def masked(line: str) -> str:
    """The line with 0 for each number and size, and single spaces."""
    return re.sub(r"[\d.,]+( k?B)?", "0", " ".join(line.split()))


def test_the_page_shows_what_the_command_prints(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (text,) = (text for _, text in blocks(page(PAGE)) if "--once" in text)
    (command, *shown) = text.removeprefix("$ sparkkafka ").splitlines()
    with FakeCluster() as fake:
        fake.state.cluster_id = shown[0].split()[1].rstrip(":")
        fake.create_topic("orders", partitions=2)
        fake.create_topic("payments")
        produce(fake, "orders", {0: 10, 1: 10})
        monkeypatch.setattr(tables, "pause", lambda seconds: produce(fake, "orders", {0: 40}))
        with Admin({"bootstrap.servers": fake.bootstrap_servers}) as admin:
            read = {TopicPartition("orders", 0): 4, TopicPartition("orders", 1): 10}
            admin.alter_consumer_group_offsets("billing", read).all()
        arguments = shlex.split(command.replace("localhost:9092", fake.bootstrap_servers))
        assert main(arguments) == 0
        printed, err = capsys.readouterr()
        printed = printed.replace(fake.bootstrap_servers, "localhost:9092")
    assert err == ""
    assert [masked(line) for line in shown] == [masked(line) for line in printed.splitlines()]


def test_the_page_names_no_option_that_is_not_there():
    reference = cli_docs.reference()
    for option in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page(PAGE))):
        assert option in reference, option
