"""Every verb fails in one line, with the right exit code, within --timeout."""

from __future__ import annotations

import socket

import pytest

from sparkkafka.cli.app import main

VERBS = [["topics", "list"]]


@pytest.fixture
def dead_port():
    """A port that nobody listens at, held so that nobody else gets it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_dead_cluster(verb, dead_port, capsys):
    assert main(["-b", f"127.0.0.1:{dead_port}", "--timeout", "1", *verb]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert f"127.0.0.1:{dead_port}" in line


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_no_cluster_is_named(verb, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(verb) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "-b HOST:PORT" in line


def test_options_of_all_verbs_may_stand_behind_the_verb(dead_port, capsys):
    assert main(["topics", "list", "--timeout", "1", "-b", f"127.0.0.1:{dead_port}"]) == 1
    assert f"127.0.0.1:{dead_port}" in capsys.readouterr().err
