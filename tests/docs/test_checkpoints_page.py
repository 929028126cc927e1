"""docs/cli.md, checkpoints: each command runs, in order, and prints what stands there."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.cli.app import main
from sparkkafka.client import Admin, Producer, TopicPartition
from tests.checkpoints.checkpoint_files import kafka_line, make_checkpoint, plan_text
from tests.docs.snippets import blocks, page
from tests.docs.test_cli_page import matches

PAGE = "docs/cli.md"
PART = page(PAGE).partition("\n## Checkpoints\n")[2]


def test_the_page_shows_what_the_command_prints(
    fake_cluster: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    fake_cluster.create_topic("orders", partitions=2)
    settings = {"bootstrap.servers": fake_cluster.bootstrap_servers}
    with Producer(settings) as producer:
        for number in range(60):
            producer.send("orders", b"v", partition=number % 2)
    with Admin(settings) as admin:
        admin.delete_records({TopicPartition("orders", 1): 12}).all()
    offsets = [{0: 5, 1: 5}, {0: 12, 1: 10}, {0: 20, 1: 18}]
    plans = {n: plan_text(kafka_line({"orders": each})) for n, each in enumerate(offsets)}
    make_checkpoint(tmp_path / "checkpoint", plans, [0, 1])
    count = 0
    for language, text in blocks(PART):
        assert language == "console"
        for command, *shown in (part.splitlines() for part in text.split("$ ")[1:]):
            program, *arguments = shlex.split(command)
            assert program == "sparkkafka"
            code = main(["-b", fake_cluster.bootstrap_servers, *arguments])
            out, err = capsys.readouterr()
            assert (code, err) == (0, ""), command
            assert matches(shown, out.splitlines()), f"{command}\n{out}"
            count += 1
    assert count == 7
    main(["-b", fake_cluster.bootstrap_servers, "lag", "--checkpoint", "checkpoint"])
    assert "48 behind in 2 partitions" in capsys.readouterr().out
