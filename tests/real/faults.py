"""Failures inside the tasks of a job, at random. Each is noted in a file, so tests count them."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

NOTES = "faults.log"
KINDS = ("raises", "dies", "a neighbour dies")


# Functions inside functions go to the workers by value: these need not find this module.


def fails_in(task: int, once: str = "") -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For `mapInArrow`: this task fails, once its rows are on their way and the file `once`, if one
    is named, is there."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        if context is not None and context.partitionId() == task:
            until_s = time.monotonic() + 60
            while once and not os.path.exists(once) and time.monotonic() < until_s:  # noqa: PTH110
                time.sleep(0.05)
            raise RuntimeError(f"task {task} was chosen to fail")

    return run


def slowly(seconds: float) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For `mapInArrow`: each task with rows ends so much later."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        for batch in batches:
            yield batch
            time.sleep(seconds if batch.num_rows else 0)

    return run


def failing(folder: str, rate: float) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For `mapInArrow`: hands rows on, and lets this share of tasks fail in the midst of them.

    A first attempt raises, or its worker kills itself with -9, or it kills another worker: that may
    be the one in which rows are written, of this task or of another one.
    """

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        luck = random.Random(os.urandom(8))
        fault = ""
        if context is not None and context.attemptNumber() == 0 and luck.random() < rate:
            fault = luck.choice(KINDS)
        for batch in batches:
            # Half of the rows are on their way to Kafka when it happens, or none.
            half = luck.choice([0, batch.num_rows // 2]) if fault else batch.num_rows
            yield batch.slice(0, half)
            if fault:
                _happen(fault, Path(folder) / NOTES)
                fault = ""
            yield batch.slice(half)

    return run


def _happen(fault: str, notes: Path) -> None:
    with notes.open("a") as file:
        file.write(f"{fault}\n")
    if fault == "raises":
        raise RuntimeError("this task was chosen to fail")
    pids = [os.getpid()] if fault == "dies" else _neighbours()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _neighbours() -> list[int]:
    """One worker that the same daemon has forked."""
    import psutil

    me = os.getpid()
    others = [row.pid for row in psutil.Process(os.getppid()).children() if row.pid != me]
    return random.Random(os.urandom(8)).sample(others, min(1, len(others)))


def counted(folder: Path) -> dict[str, int]:
    """How often each kind happened."""
    notes = folder / NOTES
    lines = notes.read_text().splitlines() if notes.exists() else []
    return {kind: lines.count(kind) for kind in KINDS}
