"""The commands behind the Makefile, and the Makefile's own promises."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sparkkafka.testing.kafka.broker import instructions, read_properties
from sparkkafka.testing.kafka.cluster import KafkaCluster
from sparkkafka.testing.kafka.ports import LOOPBACK, ReservedPorts

ROOT = Path(__file__).parents[2]


@pytest.mark.real
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)]
)
def test_a_broker_runs_until_it_gets_a_signal(
    kafka_cluster: KafkaCluster, number: signal.Signals
) -> None:
    with ReservedPorts() as ports:
        port = ports.take()
    command = [sys.executable, "-m", "sparkkafka.testing.kafka.broker", "--port", str(port)]
    properties = ["--properties", str(ROOT / "conf" / "broker.properties")]
    with subprocess.Popen([*command, *properties], stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        reported = ""
        while ".load().show()" not in reported:
            line = run.stderr.readline()
            assert line, reported
            reported += line
        assert (
            f"Kafka answers at 127.0.0.1:{port} and has these topics: orders, shouted" in reported
        )
        socket.create_connection((LOOPBACK, port), 5).close()
        run.send_signal(number)
        try:
            assert "stopped, and its data removed" in run.communicate(timeout=120)[1]
        finally:
            run.kill()
    assert run.returncode == 0
    with ReservedPorts() as ports:
        ports.take(port)


@pytest.mark.real
def test_a_port_in_use_is_one_clear_line(kafka_cluster: KafkaCluster) -> None:
    _, port = kafka_cluster.address(0)
    run = subprocess.run(
        [sys.executable, "-m", "sparkkafka.testing.kafka.broker", "--port", str(port)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 1
    assert f"cannot use port {port} of 127.0.0.1" in run.stderr.splitlines()[-1]


def test_properties_files(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_text("# comment\n! other\n\n a.b = c d\nlisteners=X://:1\nempty=\nlong=a,\\\n  b\n")
    assert read_properties(file) == {"a.b": "c d", "empty": "", "long": "a,b"}


def test_make_help_lists_every_target() -> None:
    run = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert phony is not None
    assert re.findall(r"^make ([\w-]+) +\S", run.stdout, re.M) == phony[1].split()


def test_make_says_what_is_wrong_with_the_python(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    for name in ("Makefile", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    run = subprocess.run(
        ["make", f"PYTHON={old}", "lint"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert run.returncode != 0
    assert f"Python 3.11 or newer is needed and was not found at {old}: " in run.stderr
    assert not (tmp_path / ".venv").exists()


def test_ci_runs_lint_and_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "exec make lint test"


def test_a_broker_without_topics_says_so() -> None:
    none = instructions("h:1", [])
    assert "has no topics yet." in none
    assert '.option("topic", "orders").option("createTopic", "true")' in none
    two = instructions("h:1", ["a", "b"])
    assert "has these topics: a, b." in two
    assert "createTopic" not in two
