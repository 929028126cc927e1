"""docs/cli.md: each command of the page runs, in order, and prints what stands there; its
reference is the one that the command itself makes."""

from __future__ import annotations

import re
import shlex

import pytest

from sparkkafka.cli.app import main
from sparkkafka.client import Admin, Producer, TopicPartition
from tests.docs.snippets import AUTHORIZER, blocks, page
from tests.support.waiting import wait_until
from tests.tools import cli_docs

PAGE = "docs/cli.md"
PART = page(PAGE).partition("\n## Read, write and copy records\n")[0]
MORE = "…"  # anything, in a line; alone any lines


def matches(shown: list[str], printed: list[str]) -> bool:
    if not shown:
        return not printed
    if shown[0] == MORE:
        return any(matches(shown[1:], printed[n:]) for n in range(len(printed) + 1))
    pattern = ".*".join(re.escape(part) for part in shown[0].split(MORE))
    return (bool(printed) and re.fullmatch(pattern, printed[0]) is not None) and matches(
        shown[1:], printed[1:]
    )


@pytest.mark.real
def test_the_page_shows_what_the_command_prints(
    kafka_cluster_factory, capsys, monkeypatch, tmp_path
):
    servers = kafka_cluster_factory(1, AUTHORIZER).bootstrap_servers
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "etl-password").write_text("hush")
    settings = {"bootstrap.servers": servers}
    for language, text in blocks(PART):
        if language == "toml":
            (tmp_path / "sparkkafka").mkdir()
            (tmp_path / "sparkkafka" / "config.toml").write_text(
                text.replace("localhost:9092", servers)
            )
        if language != "console":
            continue
        if "sparkkafka lag" in text:
            with Producer(settings) as producer:
                for partition in (0, 1):
                    for _ in range(10):
                        producer.send("orders", b"value", partition=partition)
            with Admin(settings) as admin:
                read = {TopicPartition("orders", 0): 4, TopicPartition("orders", 1): 10}
                admin.alter_consumer_group_offsets("billing", read).all()
        for command, *shown in (part.splitlines() for part in text.split("$ ")[1:]):
            program, *arguments = shlex.split(command)
            assert program == "sparkkafka"
            code = main(arguments)
            out, err = capsys.readouterr()
            assert (code, err) == (0, ""), command
            printed = out.replace(servers, "localhost:9092").splitlines()
            assert matches(shown, printed), f"{command}\n{out}"
            # The controller has it; brokers tell it a moment later.
            with Admin(settings) as admin:
                if "acls create" in command:
                    wait_until(lambda admin=admin: len(admin.describe_acls()) == 3)
                elif "users create" in command:
                    wait_until(lambda admin=admin: admin.describe_user_scram_credentials().all())


def test_the_reference_is_that_of_the_command():
    assert cli_docs.PAGE.read_text("utf-8") == cli_docs.reference(), (
        "run python -m tests.tools.cli_docs"
    )


def test_the_page_names_no_option_that_is_not_there():
    reference = cli_docs.reference()
    for option in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page(PAGE))) - {"--help"}:
        assert option in reference, option
