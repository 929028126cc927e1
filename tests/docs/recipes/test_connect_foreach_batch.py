"""The server starts with the shown commands, and a client's function runs in it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.testing.kafka.java import export_java_home, find_java
from sparkkafka.testing.kafka.ports import ReservedPorts
from tests.docs.snippets import blocks, page, snippets
from tests.support.waiting import wait_until

PAGE = "docs/recipes/connect-foreach-batch.md"


@pytest.mark.real
@pytest.mark.spark
@pytest.mark.soak  # a server of its own
def test_connect_foreach_batch(kafka_cluster: Any, tmp_path: Path) -> None:
    servers = kafka_cluster.bootstrap_servers
    export_java_home(find_java())
    log, folder = tmp_path / "logs", Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "SPARK_LOG_DIR": str(log),
        "SPARK_PID_DIR": str(tmp_path),
        "SPARK_IDENT_STRING": "recipe",
    }

    def bash(script: str) -> None:
        command = ["bash", "-e", "-c", script]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr

    shown = re.search(r"(?:^    .*\n)+", page(PAGE), re.MULTILINE)
    assert shown is not None
    install, *lines = (line.strip() for line in shown[0].splitlines())
    assert install.startswith("pip install ")
    *lines, start = lines
    (stop,) = re.findall(r'`("\$spark/sbin/stop.*?)`', page(PAGE))
    names = "\n".join(lines)
    with ReservedPorts() as ports, contextlib.ExitStack() as stack:
        port = str(ports.take())
        ports.hand_over()
        stack.callback(bash, f"{names}\n{stop}")
        bash(f"{names}\n{start} --conf spark.connect.grpc.binding.port={port}")
        wait_until(
            lambda: any("Spark Connect server started" in _text(path) for path in log.iterdir()),
            "the server",
        )
        code = "\n".join(snippets(page(PAGE))).replace("localhost:9092", servers)
        code = code.replace("15002", port).replace("checkpoints/", f"{tmp_path}/")
        client = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert client.returncode == 0, client.stderr[-3000:]
        (printed,) = (text for language, text in blocks(page(PAGE)) if language == "")
        assert client.stdout == printed
        assert re.search(r"^batch 0 in process \d+$", _text(next(log.iterdir())), re.MULTILINE)


def _text(path: Path) -> str:
    return path.read_text("utf-8", "replace")
