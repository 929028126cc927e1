"""One stream, exactly once, for an hour on three brokers, while whatever can go wrong does.

`make soak-long`; SPARKKAFKA_SOAK_MINUTES makes it shorter, SPARKKAFKA_SEED repeats its choices.
At the end each row is there once, and no process that lived long has grown.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

import confluent_kafka
import confluent_kafka.admin
import psutil
import pytest
from pyspark.sql import SparkSession

from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.values import TopicPartition
from sparkkafka.testing.kafka.cluster import KafkaCluster
from tests.real.drivers import driver, log_of, wait_for_start
from tests.real.full_disk import SmallDisk
from tests.real.peers import confluent_read
from tests.real.processes import RUNNER, Held, held_by, stands_still
from tests.real.streams import Job, SteadyWriter, administer, assert_each_once, ends
from tests.real.transactions import held_back, open_ids
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.soak_long]

MINUTES = float(os.environ.get("SPARKKAFKA_SOAK_MINUTES") or 60)
PREFIX = "soak"
SOURCE, SINK = "soak-in", "soak-out"
FIRST_PARTITIONS, MAX_PARTITIONS = 4, 12
SINK_PARTITIONS = 4
PER_SECOND = 150
DRIVER_LIVES_S = (60.0, 900.0)
"""The longest is long enough to see a process grow."""
WAIT_S = 240.0
GROWTH_BYTES = 60_000_000


class Seen(NamedTuple):
    at_s: float
    held: Held


def test_an_hour_of_faults(spark: SparkSession, tmp_path: Path) -> None:
    seed = int(os.environ.get("SPARKKAFKA_SEED") or time.time_ns() % 1_000_000)
    print(f"SPARKKAFKA_SEED={seed}, {MINUTES:g} minutes")
    with (
        KafkaCluster(3, {"min.insync.replicas": 2}) as cluster,
        SmallDisk.of(cluster, cluster.broker_ids[-1]) as disk,
    ):
        run = Run(cluster, tmp_path, random.Random(seed), disk)
        count = run.through(spark)
        rows = confluent_read(cluster.bootstrap_servers, SINK, SINK_PARTITIONS, "read_committed")
        print(run.summary(count))
        assert_each_once([int(row.value or b"") for row in rows], count)
        assert open_ids(cluster.bootstrap_servers, PREFIX) == []
        assert held_back(cluster.bootstrap_servers, [SINK], SINK_PARTITIONS) == {}
        assert run.grown() == []


class Run:
    """The stream, its drivers, and what happens to them and to the brokers."""

    def __init__(
        self, cluster: KafkaCluster, folder: Path, luck: random.Random, disk: SmallDisk | None
    ) -> None:
        self.cluster, self.folder, self.luck, self.disk = cluster, folder, luck, disk
        self.bootstrap = cluster.bootstrap_servers
        self.happened: Counter[str] = Counter()
        self.held: list[dict[str, list[Seen]]] = []  # of each driver, by process
        cluster.create_topic(SOURCE, FIRST_PARTITIONS, replication_factor=3)
        cluster.create_topic(SINK, SINK_PARTITIONS, replication_factor=3)
        self.partitions = FIRST_PARTITIONS
        self.job = Job(
            self.bootstrap,
            str(folder),
            {"subscribe": SOURCE, "maxOffsetsPerTrigger": "5000"},
            sink_options={
                "topic": SINK,
                "deliveryGuarantee": "exactly-once",
                "transactionalIdPrefix": PREFIX,
            },
            columns=["value", f"partition % {SINK_PARTITIONS} AS partition"],
            master="local[2,8]",
        )

    def through(self, spark: SparkSession) -> int:
        """How many rows were written to the source."""
        until_s = time.monotonic() + MINUTES * 60
        rows = SteadyWriter(self.bootstrap, SOURCE, FIRST_PARTITIONS, PER_SECOND, linger_ms=50)
        with rows as self.writer:
            number = 0
            while time.monotonic() < until_s:
                self._one_driver(number, until_s)
                number += 1
            count = self.writer.stop()
        replace(self.job, options={"subscribe": SOURCE}).run_to_end(spark, 600)
        return count

    def _one_driver(self, number: int, until_s: float) -> None:
        ways = [{}, {"maxRangesPerTask": "1"}, {"maxRecordsReadByDriver": "0"}]
        job = replace(self.job, options={**self.job.options, **ways[number % len(ways)]})
        lives_s = DRIVER_LIVES_S[number % 2]
        ends_s = min(time.monotonic() + lives_s, until_s)
        self.held.append({})
        with driver(job) as process:
            wait_for_start(process, job)
            while time.monotonic() < ends_s:
                before = self.job.last_finished()
                name, fault = self.luck.choice(self._faults(process))
                print(f"{time.strftime('%H:%M:%S')} driver {number}, batch {before}: {name}")
                fault()
                self.happened[name] += 1
                time.sleep(self.luck.uniform(0, 10))
                if process.poll() is not None:
                    # A query may give up, as when brokers are away for too long: it goes on anew.
                    self.happened["a driver ended by itself"] += 1
                    return
                self._goes_on(process, before)
                self._note(process, time.monotonic())
        self.happened["a driver is killed"] += 1

    def _goes_on(self, process: Popen[bytes], before: int) -> None:
        wait_until(
            lambda: process.poll() is not None or self.job.last_finished() > before,
            f"a micro-batch after {before} is finished",
            WAIT_S,
        )

    # --- what happens -----------------------------------------------------------------------------

    def _faults(self, process: Popen[bytes]) -> list[tuple[str, Callable[[], None]]]:
        return [
            ("a broker dies", self._kill_broker),
            ("a broker is paused", self._pause_broker),
            ("a broker is slow", self._slow_broker),
            ("a Python worker dies", lambda: self._kill_worker(process)),
            ("leaders move", self._move_leaders),
            ("a partition is added", self._add_partition),
            ("records that were read are deleted", self._delete_read_records),
            ("nothing", lambda: None),
            *([("a disk is full", self._fill_disk)] if self.disk else ()),
        ]

    def _kill_broker(self) -> None:
        broker = self.luck.choice(self.cluster.broker_ids)
        self.cluster.kill(broker)
        time.sleep(self.luck.uniform(0, 20))
        self.cluster.start(broker)

    def _pause_broker(self) -> None:
        with stands_still(self.cluster, self.luck.choice(self.cluster.broker_ids)):
            time.sleep(self.luck.uniform(2, 25))

    def _slow_broker(self) -> None:
        broker = self.luck.choice(self.cluster.broker_ids)
        for _ in range(40):
            with stands_still(self.cluster, broker):
                time.sleep(0.2)
            time.sleep(0.05)

    def _fill_disk(self) -> None:
        assert self.disk is not None
        if self.disk.is_full_until_the_broker_dies():
            self.happened["a broker dies of its full disk"] += 1

    def _kill_worker(self, process: Popen[bytes]) -> None:
        workers = _processes(process)[1:]
        self.luck.shuffle(workers)
        for row in workers:
            with suppress(psutil.Error):
                if RUNNER not in row.cmdline():
                    row.send_signal(signal.SIGKILL)
                    return

    def _move_leaders(self) -> None:
        positions = [confluent_kafka.TopicPartition(SOURCE, n) for n in range(self.partitions)]
        kind = confluent_kafka.ElectionType.PREFERRED
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": self.bootstrap})
        admin.elect_leaders(kind, positions).result(60)

    def _add_partition(self) -> None:
        if self.partitions < MAX_PARTITIONS:
            self.partitions += 1
            wanted = [confluent_kafka.admin.NewPartitions(SOURCE, self.partitions)]
            administer(self.bootstrap, lambda admin: admin.create_partitions(wanted))
            time.sleep(5)  # until the writer has heard of it
            self.writer._partitions = self.partitions

    def _delete_read_records(self) -> None:
        done = self._finished_offsets()
        if done:
            with Admin({"bootstrap.servers": self.bootstrap}) as admin:
                admin.delete_records(done).all()

    def _finished_offsets(self) -> dict[TopicPartition, int]:
        """Up to which offsets micro-batches are finished."""
        last = self.job.last_finished()
        file = self.job.checkpoint / "offsets" / str(last)
        if last < 0 or not file.exists():
            return {}
        tree = json.loads(file.read_text().splitlines()[-1])
        return {TopicPartition(SOURCE, int(n)): at for n, at in tree[SOURCE].items()}

    # --- what is held -----------------------------------------------------------------------------

    def _note(self, process: Popen[bytes], now_s: float) -> None:
        for row in _processes(process):
            with suppress(psutil.Error):
                name = f"{row.pid} {'runner' if RUNNER in row.cmdline() else 'python'}"
                self.held[-1].setdefault(name, []).append(Seen(now_s, held_by(row)))

    def grown(self) -> list[str]:
        """Processes that hold more at their end than in the middle of their lives."""
        found = []
        for number, processes in enumerate(self.held):
            for name, rows in processes.items():
                lived_s = rows[-1].at_s - rows[0].at_s
                if lived_s < 300:
                    continue
                earlier = [row.held for row in rows[: len(rows) // 2]]
                middle, last = rows[len(rows) // 2].held, rows[-1].held
                if (
                    last.rss_bytes - middle.rss_bytes > GROWTH_BYTES
                    or last.threads > max(held.threads for held in earlier) + 2
                    or last.open_files > max(held.open_files for held in earlier) + 8
                ):
                    found.append(f"driver {number}: {name}: {middle} -> {last}")
        return found

    def summary(self, count: int) -> str:
        lines = [f"{count} rows, {self.job.last_finished() + 1} micro-batches"]
        lines += [f"{times} x {what}" for what, times in sorted(self.happened.items())]
        lines.append(f"rows in the sink's log: {sum(ends(self.cluster, SINK, 4).values())}")
        for number, processes in enumerate(self.held):
            for name, rows in processes.items():
                if len(rows) > 5:
                    first, last = rows[0].held, rows[-1].held
                    lines.append(
                        f"driver {number}, {name}, {rows[-1].at_s - rows[0].at_s:.0f} s: "
                        f"{first.rss_bytes / 1e6:.0f} -> {last.rss_bytes / 1e6:.0f} MB, "
                        f"{first.threads} -> {last.threads} threads, "
                        f"{first.open_files} -> {last.open_files} files"
                    )
        log = log_of(self.job).read_text(errors="replace")
        lines.append(f"lines with Error in the drivers' log: {log.count('Error')}")
        return "\n".join(lines)


def _processes(process: Popen[bytes]) -> list[psutil.Process]:
    """A driver, and below it Spark's Python: the planner, and workers in an executor's role."""
    if process.poll() is not None:
        return []
    driver = psutil.Process(process.pid)
    found = [driver]
    for row in driver.children(recursive=True):
        with suppress(psutil.Error):
            if "pyspark" in " ".join(row.cmdline()) and "java" not in row.name():
                found.append(row)
    return found
