"""Peak memory of the Python processes in which Spark runs tasks.

Only workers of `pyspark.daemon pyspark.worker` under this process count: planning and commits have
daemons of their own. Linux keeps a high-water mark for each process, which can be reset; where
that is not allowed, the resident size is sampled.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SAMPLE_SECONDS = 0.02
_RESET_PEAK = "5"  # proc(5), clear_refs: the peak becomes the current size
_TASK_DAEMON = ["-m", "pyspark.daemon", "pyspark.worker"]


class WorkerMemory:
    """Largest resident size of any worker, in bytes, while `watch` lasts."""

    def __init__(self) -> None:
        self.idle_bytes = 0
        self.peak_bytes = 0
        self._sampling = not _peaks_can_be_reset()

    @property
    def words(self) -> str:
        """What was looked at, for people."""
        how = "resident size, sampled" if self._sampling else "high-water mark of the resident size"
        return f"{how}; {self.idle_bytes / 1e6:.0f} MB when idle"

    @property
    def beyond_idle_mb(self) -> float:
        """Peak since `reset` beyond an idle worker's, in MB of 10**6 bytes."""
        return max(0, self.peak_bytes - self.idle_bytes) / 1e6

    def measure_idle(self, spark: SparkSession) -> None:
        """What a worker takes for nothing: a task that hands Arrow batches through."""
        self.renew_workers()
        with self.watch():
            frame = spark.range(0, 64, 1, 2)
            frame.mapInArrow(lambda batches: batches, "id long").collect()
        self.idle_bytes = self.peak_bytes
        self.peak_bytes = 0

    def reset(self) -> None:
        self.peak_bytes = 0

    def renew_workers(self) -> None:
        """Ends the idle workers, so that Spark forks new ones: one that keeps memory from earlier
        work would hide what the next work takes. Call it while no task runs."""
        workers = task_workers()
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        psutil.wait_procs(workers, timeout=5)

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Around work in Spark, of which no task is left at the end."""
        if self._sampling:
            with self._sampled():
                yield
            return
        for worker in task_workers():
            # A worker may end by itself at any time: Spark ends those that are idle for a minute.
            with contextlib.suppress(OSError):
                _clear_refs(worker.pid)
        yield
        for worker in task_workers():
            with contextlib.suppress(OSError):
                self.peak_bytes = max(self.peak_bytes, _high_water_bytes(worker.pid))

    @contextlib.contextmanager
    def _sampled(self) -> Iterator[None]:
        finished = threading.Event()

        def follow() -> None:
            while not finished.wait(_SAMPLE_SECONDS):
                for worker in task_workers():
                    with contextlib.suppress(psutil.Error):
                        self.peak_bytes = max(self.peak_bytes, worker.memory_info().rss)

        follower = threading.Thread(target=follow, name="bench-memory", daemon=True)
        follower.start()
        try:
            yield
        finally:
            finished.set()
            follower.join()


def task_workers() -> list[psutil.Process]:
    """Children of the daemon that runs tasks; the daemon itself is a child of the driver's Java."""
    workers = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[-3:] == _TASK_DAEMON:
                workers += [
                    child for child in process.children() if child.cmdline()[-3:] == _TASK_DAEMON
                ]
    return workers


def _clear_refs(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)


def _high_water_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0  # a process that is ending has no memory any more


def _peaks_can_be_reset() -> bool:
    own = psutil.Process().pid
    try:
        _clear_refs(own)
        return _high_water_bytes(own) > 0
    except OSError:
        return False
