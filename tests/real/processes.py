"""Processes as the system sees them: a broker that stands still, what a process holds or leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from sparkkafka.testing.kafka.ports import ReservedPorts
from tests.support.waiting import wait_until

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
"""The module of the process in which a stream's reader lives on the driver."""


class Held(NamedTuple):
    rss_bytes: int
    threads: int
    open_files: int


def held_by(process: psutil.Process) -> Held:
    """Between two fetches: one that reads has a pair of sockets of its own to be woken by."""
    moments = []
    for _ in range(20):
        moments.append(_held_now(process))
        time.sleep(0.003)
    return min(moments, key=lambda held: held[1:])


def _held_now(process: psutil.Process) -> Held:
    return Held(
        process.memory_info().rss,
        process.num_threads(),
        process.num_fds(),
    )


def _listens(process: psutil.Process, port: int) -> bool:
    try:
        rows = process.net_connections("tcp")
    except psutil.NoSuchProcess:  # another of our children, which has just ended
        return False
    return any(row.status == psutil.CONN_LISTEN and row.laddr.port == port for row in rows)


@contextmanager
def stands_still(brokers: Any, number: int) -> Iterator[None]:
    """SIGSTOP for a broker's Java, SIGCONT at the end."""
    _, port = brokers.address(number)
    (java,) = (
        process for process in psutil.Process().children(recursive=True) if _listens(process, port)
    )
    java.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        java.send_signal(signal.SIGCONT)


def assert_a_killed_run_leaves_nothing(script: str, number: signal.Signals) -> None:
    """Kill a script that runs a broker or registry, once it has printed the folder and the port of
    that: its processes end, and the folder and the port are free."""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as run:
        assert run.stdout is not None
        folder, port = run.stdout.readline().split()
        assert Path(folder).is_dir()
        assert len(_processes_naming(folder)) == 2  # the launcher and Java
        os.kill(run.pid, number)
        run.wait(10)
    wait_until(lambda: not _processes_naming(folder) and not Path(folder).exists(), "an end")
    with ReservedPorts() as ports:
        assert ports.take(int(port)) == int(port)


def _processes_naming(text: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if any(text in word for word in process.cmdline()):
                found.append(process.pid)
        except psutil.Error:  # it ended meanwhile, or is another user's
            continue
    return found
