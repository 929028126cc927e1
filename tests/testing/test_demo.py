"""The demo, ended in each way: the same rows, Ctrl-C, SIGTERM, a failure. Nothing may be left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.quick_spark import outside
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.spark]

# The line that the demo shows every other second of the timed write.
WRITING = re.compile(r"^  \d+ s, ")
# Enough rows that the write is still running when a test has seen that line.
MANY_ROWS = 2_000_000
START_SECONDS = 150.0
END_SECONDS = 60.0


class Demo:
    """A demo that runs, in a process group and with a temporary folder of its own."""

    def __init__(self, process: subprocess.Popen[str], temporary: Path) -> None:
        self.process = process
        self.temporary = temporary
        self.lines: list[str] = []
        self._writes = threading.Event()
        self._reader = threading.Thread(target=self._follow)
        self._reader.start()

    def _follow(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            for line in stderr:
                self.lines.append(line)
                if WRITING.match(line):
                    self._writes.set()
        self._writes.set()  # or it never will

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def wait_until_it_writes(self) -> None:
        assert self._writes.wait(START_SECONDS), self.text
        assert self.process.poll() is None, self.text

    def wait(self) -> int:
        """Return the exit status once all output is read."""
        status = self.process.wait(END_SECONDS)
        self._reader.join(END_SECONDS)
        return status

    def descendants(self) -> list[psutil.Process]:
        """All processes that have the demo's temporary folder, orphans included."""
        found = []
        for process in psutil.process_iter():
            try:
                theirs = process.environ().get("TMPDIR") == str(self.temporary)
                if theirs and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:  # it ended meanwhile, or is another user's
                continue
        return found

    def javas(self) -> list[psutil.Process]:
        return [process for process in self.descendants() if "java" in process.name()]

    def nothing_is_left(self) -> bool:
        # Spark's Python workers notice a moment later that their JVM is gone.
        wait_until(lambda: not self.descendants(), "processes are left", seconds=10)
        return not [*self.temporary.iterdir()]


@contextmanager
def demo(temporary: Path, rows: int) -> Iterator[Demo]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.tools.demo", "--rows", str(rows)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        # It has folders of its own, and removes them.
        env={**outside(os.environ), "TMPDIR": str(temporary)},
        start_new_session=True,
    )
    run = Demo(process, temporary)
    try:
        yield run
    finally:
        for left in run.descendants():
            left.kill()
        run.wait()


def test_what_it_read_is_what_it_wrote(tmp_path: Path, kafka_cluster: object) -> None:
    with demo(tmp_path, rows=5_000) as run:
        assert run.process.wait(START_SECONDS) == 0, run.text
        assert run.nothing_is_left()
    hashes = re.findall(r"^(?:written|read): +5,000 rows, sum of hashes (-?\d+)$", run.text, re.M)
    assert len(hashes) == 2 and hashes[0] == hashes[1] and int(hashes[0]) != 0
    assert run.text.endswith("the broker and Spark are stopped, and their data are removed\n")
    for step in ("written with df.write: 5,000 rows", "read with spark.read: 5,000 rows"):
        assert re.search(rf"^{step}.* rows/s$", run.text, re.M)
    assert "These rows/s are no benchmark" in run.text


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_is_stopped_while_it_writes(
    tmp_path: Path, kafka_cluster: object, number: signal.Signals
) -> None:
    with demo(tmp_path, MANY_ROWS) as run:
        run.wait_until_it_writes()
        assert len(run.javas()) == 2, "Kafka's and Spark's"
        if number == signal.SIGINT:
            os.killpg(run.process.pid, number)  # as a terminal does: to Spark's workers as well
        else:
            run.process.send_signal(number)
        assert run.wait() == 130, run.text
        assert run.nothing_is_left(), run.descendants()
    assert "interrupted: everything is stopped and removed" in run.text
    assert "Traceback" not in run.text.partition("interrupted:")[2]


@pytest.mark.soak
def test_it_fails_while_it_writes(tmp_path: Path, kafka_cluster: object) -> None:
    """Spark's JVM is gone at once, as when the machine runs out of memory."""
    with demo(tmp_path, MANY_ROWS) as run:
        run.wait_until_it_writes()
        (spark,) = [p for p in run.javas() if "org.apache.spark.deploy.SparkSubmit" in p.cmdline()]
        spark.kill()
        assert run.wait() not in (0, 130), run.text
        assert run.nothing_is_left(), run.descendants()
