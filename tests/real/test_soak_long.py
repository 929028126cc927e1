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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from tests.real.peers import confluent_read
from tests.real.streams import Job, SteadyWriter, administer, assert_each_once, ends, wait_until
from tests.real.transactions import held_back, open_ids

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.soak_long]

MINUTES = float(os.environ.get("SPARKKAFKA_SOAK_MINUTES") or 60)
PREFIX = "soak"
SOURCE, SINK = "soak-in", "soak-out"
FIRST_PARTITIONS, MOST_PARTITIONS = 4, 12
SINK_PARTITIONS = 4
PER_SECOND = 150
DRIVER_LIVES_S = (60.0, 900.0)
"""The longest is long enough to see a process grow."""
WAIT_S = 240.0
GROWTH_BYTES = 60_000_000
RUNNER = "python_streaming_source_runner"


class Held(NamedTuple):
    seconds: float
    rss_bytes: int
    threads: int
    open_files: int


def test_an_hour_of_faults(spark: SparkSession, tmp_path: Path) -> None:
    seed = int(os.environ.get("SPARKKAFKA_SEED") or time.time_ns() % 1_000_000)
    print(f"SPARKKAFKA_SEED={seed}, {MINUTES:g} minutes")
    with KafkaCluster(3, {"min.insync.replicas": 2}) as cluster:
        run = Run(cluster, tmp_path, random.Random(seed))
        count = run.through(spark)
        rows = confluent_read(cluster.bootstrap_servers, SINK, SINK_PARTITIONS, "read_committed")
        print(run.summary(count))
        assert_each_once([int(row.value or b"") for row in rows], count)
        assert open_ids(cluster.bootstrap_servers, PREFIX) == []
        assert held_back(cluster.bootstrap_servers, [SINK], SINK_PARTITIONS) == {}
        assert run.grown() == []


class Run:
    """The stream, its drivers, and what happens to them and to the brokers."""

    def __init__(self, cluster: KafkaCluster, folder: Path, luck: random.Random) -> None:
        self.cluster, self.folder, self.luck = cluster, folder, luck
        self.bootstrap = cluster.bootstrap_servers
        self.happened: Counter[str] = Counter()
        self.held: list[dict[str, list[Held]]] = []  # of each driver, by process
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
                with fault():
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

    def _faults(self, process: Popen[bytes]) -> list[tuple[str, Callable[[], object]]]:
        @contextmanager
        def broker_dies() -> Iterator[None]:
            broker = self.luck.choice(self.cluster.broker_ids)
            self.cluster.kill(broker)
            time.sleep(self.luck.uniform(0, 20))
            yield
            self.cluster.start(broker)

        @contextmanager
        def broker_is_paused() -> Iterator[None]:
            with self._stopped(self.luck.choice(self.cluster.broker_ids)):
                time.sleep(self.luck.uniform(2, 25))
                yield

        @contextmanager
        def broker_is_slow() -> Iterator[None]:
            broker = self.luck.choice(self.cluster.broker_ids)
            for _ in range(40):
                with self._stopped(broker):
                    time.sleep(0.2)
                time.sleep(0.05)
            yield

        @contextmanager
        def worker_dies() -> Iterator[None]:
            workers = [row for row in _python(process) if RUNNER not in " ".join(row.cmdline())]
            if workers:
                self.luck.choice(workers).send_signal(signal.SIGKILL)
            yield

        @contextmanager
        def leaders_move() -> Iterator[None]:
            places = [confluent_kafka.TopicPartition(SOURCE, n) for n in range(self.partitions)]
            kind = confluent_kafka.ElectionType.PREFERRED
            admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": self.bootstrap})
            admin.elect_leaders(kind, places).result(60)
            yield

        @contextmanager
        def partition_is_added() -> Iterator[None]:
            if self.partitions < MOST_PARTITIONS:
                self.partitions += 1
                wanted = [confluent_kafka.admin.NewPartitions(SOURCE, self.partitions)]
                administer(self.bootstrap, lambda admin: admin.create_partitions(wanted))
                time.sleep(5)  # until the writer has heard of it
                self.writer._partitions = self.partitions
            yield

        @contextmanager
        def read_records_are_deleted() -> Iterator[None]:
            done = self._finished_offsets()
            if done:
                with Admin({"bootstrap.servers": self.bootstrap}) as admin:
                    admin.delete_records(done).all()
            yield

        @contextmanager
        def nothing() -> Iterator[None]:
            yield

        return [
            ("a broker dies", broker_dies),
            ("a broker is paused", broker_is_paused),
            ("a broker is slow", broker_is_slow),
            ("a Python worker dies", worker_dies),
            ("leaders move", leaders_move),
            ("a partition is added", partition_is_added),
            ("records that were read are deleted", read_records_are_deleted),
            ("nothing", nothing),
        ]

    @contextmanager
    def _stopped(self, broker: int) -> Iterator[None]:
        process = _java_of(self.cluster, broker)
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

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
        for row in [psutil.Process(process.pid), *_python(process)]:
            try:
                name = f"{row.pid} {'runner' if RUNNER in ' '.join(row.cmdline()) else 'python'}"
                held = Held(now_s, row.memory_info().rss, row.num_threads(), row.num_fds())
            except psutil.Error:
                continue
            self.held[-1].setdefault(name, []).append(held)

    def grown(self) -> list[str]:
        """Processes that hold more at their end than in the middle of their lives."""
        found = []
        for number, processes in enumerate(self.held):
            for name, rows in processes.items():
                lived_s = rows[-1].seconds - rows[0].seconds
                if lived_s < 300:
                    continue
                middle, last = rows[len(rows) // 2], rows[-1]
                if (
                    last.rss_bytes - middle.rss_bytes > GROWTH_BYTES
                    or last.threads > max(row.threads for row in rows[: len(rows) // 2]) + 2
                    or last.open_files > max(row.open_files for row in rows[: len(rows) // 2]) + 8
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
                    first, last = rows[0], rows[-1]
                    lines.append(
                        f"driver {number}, {name}, {last.seconds - first.seconds:.0f} s: "
                        f"{first.rss_bytes / 1e6:.0f} -> {last.rss_bytes / 1e6:.0f} MB, "
                        f"{first.threads} -> {last.threads} threads, "
                        f"{first.open_files} -> {last.open_files} files"
                    )
        log = log_of(self.job).read_text(errors="replace")
        lines.append(f"lines with Error in the drivers' log: {log.count('Error')}")
        return "\n".join(lines)


def _python(process: Popen[bytes]) -> list[psutil.Process]:
    """Spark's Python processes of a driver: its planner, and workers in an executor's role."""
    found = []
    for row in psutil.Process(process.pid).children(recursive=True):
        try:
            if "pyspark" in " ".join(row.cmdline()) and "java" not in row.name():
                found.append(row)
        except psutil.Error:
            continue
    return found


def _java_of(cluster: KafkaCluster, broker: int) -> psutil.Process:
    config = str(cluster._broker(broker).config)
    for row in psutil.Process().children(recursive=True):
        try:
            if row.name() == "java" and config in row.cmdline():
                return row
        except psutil.Error:
            continue
    raise AssertionError(f"broker {broker} has no process")
