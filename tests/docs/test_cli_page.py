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
VARIABLE = {
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?": "TIME",
    r"\b\d{4}-\d\d-\d\d[-\dT:.Z+]*": "TIME",
    r"\b\d{8}T\d{6}Z\b": "TIME",
    r"\b[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}\b": "UUID",
    r"(?<=id )[\w-]{20,22}|(?<=cluster: )[\w-]{20,22}": "ID",
    r"(?<=Kafka )\d[\d.]*": "RELEASE",
    r"(?<=\"ts\":)\d+": "MS",
    r"\b\d+(\.\d+)? ?m?s\b|\b\d+[mh]\d+[sm]?\b|\b\d+d\d+h\b": "DURATION",
    r"\b\d+(\.\d+)? (B|kB)\b": "SIZE",
    r"(ahead of|behind) that of": "near that of",
    r"^(seconds|records/s|MB/s|latency).*": r"\1",
}
"""What differs from run to run, and the text in its place on both sides of a comparison."""


def normalized(lines: list[str]) -> list[str]:
    """The lines without what differs from run to run, and without columns' widths."""
    found = []
    for line in lines:
        for pattern, text in VARIABLE.items():
            line = re.sub(pattern, text, line)
        found.append(" ".join(line.split()))
    return found


def matches(shown: list[str], printed: list[str]) -> bool:
    return normalized(shown) == normalized(printed)


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
