"""A Spark standalone cluster on loopback: a master, and workers with a core and a folder each."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
from pyspark.find_spark_home import _find_spark_home

from sparkkafka.testing.kafka.java import find_java
from sparkkafka.testing.kafka.ports import ReservedPorts

WORKERS = 2
START_S = 90.0
_DEPLOY = "org.apache.spark.deploy"


def executors(pid: int) -> list[psutil.Process]:
    """Those that this process has started."""
    return [
        row
        for row in psutil.Process(pid).children(recursive=True)
        if row.name() == "java" and "CoarseGrainedExecutorBackend" in " ".join(row.cmdline())
    ]


@contextmanager
def standalone(folder: Path, environment: dict[str, str] | None = None) -> Iterator[str]:
    """Its address. Workers and executors have this environment; by itself this process' own."""
    with ReservedPorts() as ports, ExitStack() as stack:
        port = ports.take()
        master = f"spark://127.0.0.1:{port}"
        address = ["--host", "127.0.0.1", "--webui-port", "0"]
        given = [("master", ["master.Master", *address, "--port", str(port)])]
        for number in range(WORKERS):
            work = ["-c", "1", "-m", "1g", "-d", str(folder / f"work-{number}"), master]
            given.append((f"worker-{number}", ["worker.Worker", *address, *work]))
        for name, arguments in given:
            _start(stack, folder, name, arguments, environment)
        _wait_for(folder / "master.log", "Registering worker", WORKERS)
        yield master


def _start(
    stack: ExitStack,
    folder: Path,
    name: str,
    arguments: list[str],
    environment: dict[str, str] | None,
) -> None:
    home = Path(_find_spark_home())
    log = stack.enter_context((folder / f"{name}.log").open("wb"))
    process = subprocess.Popen(
        [str(home / "bin" / "spark-class"), f"{_DEPLOY}.{arguments[0]}", *arguments[1:]],
        env={
            **(os.environ if environment is None else environment),
            "JAVA_HOME": str(Path(find_java()).resolve().parents[1]),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
        },
        stdout=log,
        stderr=log,
    )
    stack.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for item in executors(process.pid) if process.poll() is None else ():
        item.kill()
    process.kill()
    process.wait(30)


def _wait_for(log: Path, words: str, count: int) -> None:
    until_s = time.monotonic() + START_S
    while log.read_text(errors="replace").count(words) < count:
        assert time.monotonic() < until_s, log.read_text(errors="replace")[-3000:]
        time.sleep(0.1)
