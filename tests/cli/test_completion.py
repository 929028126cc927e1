"""Completion of verbs, options, topics, groups and profiles: shells' protocols, and a real bash."""

from __future__ import annotations

import os
import pty
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparkkafka.cli.app import main
from sparkkafka.client import Admin, TopicPartition
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Delay

COMPLETE_VARIABLE = "_SPARKKAFKA_COMPLETE"


@pytest.fixture
def servers(fake: FakeCluster) -> str:
    for name in ("orders", "orders-eu", "payments", "__hidden"):
        fake.create_topic(name)
    settings = {"bootstrap.servers": fake.bootstrap_servers}
    with Admin(settings) as admin:
        for group in ("billing", "audit"):
            admin.alter_consumer_group_offsets(group, {TopicPartition("orders", 0): 0}).all()
    return fake.bootstrap_servers


@pytest.fixture
def candidates(monkeypatch, capsys, tmp_path):
    """`candidates("topics describe or")` are those that the shell gets for the last word; nothing
    is printed on stderr."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def run(line: str, shell: str = "fish") -> str:
        monkeypatch.setenv(COMPLETE_VARIABLE, f"complete_{shell}")
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"sparkkafka {line}")
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        words = ["sparkkafka", *line.split(" ")]
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        with pytest.raises(SystemExit):
            main([])
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return run


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("topics describe ord", ["orders", "orders-eu"]),
        ("topics describe orders pay", ["payments"]),
        ("topics describe __", ["__hidden"]),
        ("read pay", ["payments"]),
        ("read payments --group b", ["billing"]),
        ("copy orders pay", ["payments"]),
        ("check --read pay", ["payments"]),
        ("lag ", ["audit", "billing"]),
        ("groups describe ", ["audit", "billing"]),
        ("groups reset billing --topic pay", ["payments"]),
        ("acls list --topic pay", ["payments"]),
        ("topics describe nothing", []),
    ],
)
def test_names_of_the_cluster(line, found, servers, candidates) -> None:
    assert candidates(f"-b {servers} {line}").split() == found


def test_the_cluster_after_the_verb(servers, candidates) -> None:
    assert candidates(f"topics describe -b {servers} pay").split() == ["payments"]


def test_profiles_and_the_cluster_of_one(servers, candidates, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "sparkkafka"
    folder.mkdir()
    text = f'[profiles.test]\nbootstrap.servers = "{servers}"\n[profiles.prod]\na = "b"\n'
    (folder / "config.toml").write_text(text)
    assert candidates("--profile ").split() == ["test", "prod"]
    assert candidates("--profile test lag b").split() == ["billing"]
    monkeypatch.setenv("SPARKKAFKA_PROFILE", "test")
    assert candidates("lag b").split() == ["billing"]


def test_verbs_and_options(candidates) -> None:
    assert candidates("che").splitlines() == [
        "check\tCheck whether a job can run.",
        "checkpoint\tA streaming query's checkpoint: show, diff, lag, verify, reset.",
    ]
    assert candidates("topics add").split()[0] == "add-partitions"
    assert "--key-delimiter" in candidates("read orders --key")
    assert "--profile" in candidates("--prof")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_names_that_a_shell_would_run_or_split_are_left_out(
    shell, fake, servers, candidates
) -> None:
    with Admin({"bootstrap.servers": fake.bootstrap_servers}) as admin:
        for group in (
            "$(id)",
            r"\$(id)",
            "`id`",
            'a\\";id',
            "a;id",
            "a b",
            "a\nb",
            "*",
            "-X",
            "\x1b[m",
        ):
            admin.alter_consumer_group_offsets(group, {TopicPartition("orders", 0): 0}).all()
    found = candidates(f"-b {servers} groups describe ", shell)
    assert found.replace("_arguments '*: :((", "").replace("))'", "").replace('"', "").split() == [
        "audit",
        "billing",
    ]


def test_zsh(servers, candidates) -> None:
    line = f"-b {servers} topics describe ord"
    assert candidates(line, "zsh") == '_arguments \'*: :(("orders"\n"orders-eu"))\'\n'


@pytest.mark.parametrize("line", ["-b 127.0.0.1:1 lag ", "-b nobody.invalid:1 lag ", "lag "])
def test_without_a_cluster_nothing_is_printed(line, candidates) -> None:
    assert candidates(line) == ""


def test_a_cluster_that_does_not_answer(fake, servers, candidates, monkeypatch) -> None:
    fake.fault(Delay(60_000), api="ListGroups", times=None)
    monkeypatch.setattr("sparkkafka.cli.commands.COMPLETION_TIMEOUT_S", 0.2)
    assert candidates(f"-b {servers} --timeout 86400 lag ") == ""


def test_a_wrong_setting_prints_nothing(servers, candidates) -> None:
    assert candidates(f"-b {servers} -X ssl.keystore.locaton=x lag ") == ""


@pytest.mark.slow
def test_bash_completes_what_is_typed(servers: str, tmp_path: Path) -> None:
    """A real bash, which splits localhost:9092 at the colon."""
    program = tmp_path / "sparkkafka"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m sparkkafka "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
        "TERM": "dumb",
    }
    run = subprocess.run(
        ["bash", "-c", "sparkkafka --install-completion && true"],  # not instead of bash
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["bash", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as shell:
        os.close(theirs)
        os.write(ours, f"sparkkafka -b {servers} topics describe pay\t".encode())
        shown = read_until(ours, "payments")
        os.write(ours, b"\x15exit\n")  # Ctrl-U clears the line
        shell.wait(60)
    os.close(ours)
    assert "sparkkafka: " not in shown


def read_until(terminal: int, text: str) -> str:
    """What the terminal shows, up to the text."""
    shown, deadline = "", time.monotonic() + 60
    while text not in shown:
        ready, _, _ = select.select([terminal], [], [], deadline - time.monotonic())
        assert ready, shown
        shown += os.read(terminal, 4096).decode()
    return shown
