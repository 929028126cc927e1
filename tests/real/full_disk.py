"""A broker whose disk can become full: its data get a small file system (tmpfs) of their own.

Only root can mount one; `SmallDisk.of` says None elsewhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sparkkafka.testing.kafka.cluster import KafkaCluster

SIZE_MB = 1024
DIES_WITHIN_S = 60.0


class SmallDisk:
    """The disk of one broker."""

    def __init__(self, cluster: KafkaCluster, broker_id: int, folder: Path) -> None:
        self._cluster, self._broker_id = cluster, broker_id
        self._filler = folder / "filler"

    @classmethod
    @contextmanager
    def of(cls, cluster: KafkaCluster, broker_id: int) -> Iterator[SmallDisk | None]:
        """Move a broker's data to a disk of SIZE_MB, for as long as this lasts; the cluster is
        closed soon after."""
        folder = Path(cluster.broker(broker_id).folder) / "data"
        if os.geteuid() != 0 or shutil.which("mount") is None:
            yield None
            return
        cluster.stop(broker_id)
        before = folder.rename(folder.with_name("data-before"))
        folder.mkdir()
        options = f"size={SIZE_MB}m"
        mounted = not subprocess.call(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder])
        try:
            shutil.copytree(before, folder, dirs_exist_ok=True)
            cluster.start(broker_id)
            yield cls(cluster, broker_id, folder) if mounted else None
        finally:
            if mounted:
                cluster.kill(broker_id)
                subprocess.call(["umount", "-l", folder])

    def is_full_until_the_broker_dies(self) -> bool:
        """A broker that cannot write to its only log folder ends itself. Room is made then, and the
        broker started. Whether it died of it."""
        died = False
        try:
            with self._filler.open("wb") as file, suppress(OSError):
                while True:
                    file.write(bytes(1 << 20))
                    file.flush()
            until_s = time.monotonic() + DIES_WITHIN_S
            while not died and time.monotonic() < until_s:
                time.sleep(0.2)
                died = not self._cluster.is_running(self._broker_id)
        finally:
            self._filler.unlink(missing_ok=True)
        if died:
            self._cluster.start(self._broker_id)
        return died
