"""Spark drivers in processes of their own, which tests kill."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.real.streams import Job

ROOT = Path(__file__).parents[2]
START_S = 120.0  # on a busy machine; else a tenth of it


def log_of(job: Job) -> Path:
    """What all drivers of the job and their workers say."""
    return Path(job.folder) / "driver.log"


@contextmanager
def driver(job: Job) -> Iterator[subprocess.Popen[bytes]]:
    """A driver that runs the job; killed at the end with all that it started."""
    with log_of(job).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.real.stream_job", job.as_json()],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "SPARKKAFKA_LOGGING": str(ROOT / "conf" / "logging.ini")},
        )
    try:
        yield process
    finally:
        kill_family(process)


def kill_family(process: subprocess.Popen[bytes]) -> None:
    """As when the machine loses power: none of them can tell the others anything."""
    until = time.monotonic() + START_S
    while family := _session(process.pid):
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
        assert time.monotonic() < until, f"{family} do not end"
        time.sleep(0.002)
    process.wait(START_S)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _session(leader: int) -> list[int]:
    """Who belongs to the session; asked of the system without a look at each parent, which takes so
    long that a driver ends a micro-batch meanwhile."""
    found = []
    for pid in psutil.pids():
        with suppress(OSError):
            if os.getsid(pid) == leader:
                found.append(pid)
    return found


def wait_for_start(process: subprocess.Popen[bytes], job: Job) -> None:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], START_S)
    line = process.stdout.readline() if ready else b"nothing"
    assert line == b"started\n", (
        f"the driver says {line!r}; its log ends: {log_of(job).read_text()[-2000:]}"
    )
