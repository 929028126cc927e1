"""A stream from Kafka to Kafka with drivers, brokers and tasks that are killed.

Three brokers, many tasks a micro-batch, two topics to write to. Drivers are killed with -9 at
random moments, and in the moment in which a micro-batch is decided; tasks fail; in the long form
brokers die as well.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import Popen

from pyspark.sql import SparkSession

from sparkkafka.testing.kafka.cluster import KafkaCluster
from tests.real.drivers import driver, log_of, wait_for_start
from tests.real.faults import counted
from tests.real.peers import Row, confluent_read, our_rows
from tests.real.streams import Job, SteadyWriter
from tests.real.transactions import DecisionWatch, open_ids, stored_decision, unfinished
from tests.support.waiting import wait_until

PREFIX = "kills"
REPLAYED = "was decided by an earlier start"
WAIT_S = 120.0


@dataclass(frozen=True)
class Plan:
    """How much is killed. `aimed`: the share of drivers that are killed once a micro-batch is
    decided; `brokers`: how many drivers' deaths come together with that of a broker; `tasks`: of
    each micro-batch, one for each partition."""

    tasks: int
    drivers: int
    brokers: int
    aimed: float
    fault_rate: float
    per_second: int


@dataclass
class Seen:
    """What happened."""

    in_window: int = 0
    half_done: int = 0
    brokers: int = 0
    ended_alone: int = 0


SHORT = Plan(tasks=4, drivers=1, brokers=0, aimed=1.0, fault_rate=0.03, per_second=100)
LONG = Plan(tasks=16, drivers=32, brokers=5, aimed=0.4, fault_rate=0.03, per_second=100)


class Run:
    """One topic into two others, through all that is planned."""

    def __init__(self, cluster: KafkaCluster, folder: Path, plan: Plan, guarantee: str) -> None:
        self.cluster, self.plan, self.folder = cluster, plan, folder
        self.bootstrap = cluster.bootstrap_servers
        self.aware = guarantee == "exactly-once"
        self.seen = Seen()
        seed = int(os.environ.get("SPARKKAFKA_SEED") or time.time_ns() % 1_000_000)
        print(f"SPARKKAFKA_SEED={seed}")  # pytest shows it if the test fails
        self.luck = random.Random(seed)
        name = f"{guarantee}-{plan.drivers}"
        self.source, self.topics = f"{name}-in", [f"{name}-out-0", f"{name}-out-1"]
        for topic in (self.source, *self.topics):
            cluster.create_topic(topic, plan.tasks, replication_factor=3)
        sink = {"deliveryGuarantee": guarantee}
        if self.aware:
            sink["transactionalIdPrefix"] = PREFIX
        # Values so far apart are in the same partition: each goes to both topics in turns.
        topic = f"IF(CAST(value AS LONG) DIV {plan.tasks} % 2 = 0, '{name}-out-0', '{name}-out-1')"
        self.job = Job(
            self.bootstrap,
            str(folder),
            {"subscribe": self.source, "maxOffsetsPerTrigger": "800"},
            sink_options=sink,
            columns=["value", "partition", f"{topic} AS topic"],
            fault_rate=plan.fault_rate,
            master="local[2,4]",
        )

    def through(self, spark: SparkSession) -> int:
        """How many rows were written to the source."""
        plan, started_s = self.plan, time.monotonic()
        # Few batches: three brokers that copy hundreds a second leave no time for drivers.
        rows = SteadyWriter(
            self.bootstrap, self.source, plan.tasks, plan.per_second, linger_ms=1000
        )
        with rows as writer:
            with_broker = set(self.luck.sample(range(plan.drivers), plan.brokers))
            for number in range(plan.drivers + 3):
                if number >= plan.drivers and (self.seen.in_window or not self.aware):
                    break  # one was killed where it matters
                began_s = time.monotonic()
                note = self._one_driver(number, number in with_broker)
                print(f"kill {number + 1} after {time.monotonic() - began_s:.1f} s: {note}")
            count = writer.stop()
        # What is left in one micro-batch, beside what was planned before.
        replace(self.job, fault_rate=0.0, options={"subscribe": self.source}).run_to_end(spark, 300)
        self.seconds = time.monotonic() - started_s
        return count

    def _one_driver(self, number: int, broker_too: bool) -> str:
        aimed = broker_too or self.luck.random() < self.plan.aimed
        before = self.job.last_finished()
        down: list[int] = []
        # A task for each partition in turns with one for all, whose rows the driver reads (in
        # `make test` notebook 3 kills such drivers).
        alone = {"maxRangesPerTask": "1"} if number % 2 == 0 else {}
        job = replace(self.job, options={**self.job.options, **alone})
        with driver(job) as process:
            wait_for_start(process, job)
            if aimed:
                self._until_decided(process, before)
                if broker_too:
                    # Some of the decided transactions cannot be ended any more.
                    down = [self.luck.choice(self.cluster.broker_ids)]
                    self.cluster.kill(down[0])
                    time.sleep(self.luck.uniform(0, 8))
                elif self.luck.random() < 0.5:
                    time.sleep(self.luck.uniform(0, 0.05))
            else:
                if number % 2:
                    self._until_finished(before)
                time.sleep(self.luck.uniform(0, 4))
            if process.poll() is not None:
                self.seen.ended_alone += 1
        note = self._after()
        for broker in down:
            self.cluster.start(broker)
            self.seen.brokers += 1
            note += f"; broker {broker} died and is back"
        return ("aimed: " if aimed else "") + note

    def _until_finished(self, before: int) -> None:
        wait_until(lambda: self.job.last_finished() > before, "a batch is finished", WAIT_S)

    def _until_decided(self, process: Popen[bytes], before: int) -> None:
        """Until a micro-batch is decided that is not one of an earlier driver; with at-least-once,
        until one has been planned and has tasks that write."""
        until = time.monotonic() + WAIT_S
        if not self.aware:
            self._until_finished(before)
            planned = self.job.batches()[0]
            wait_until(lambda: self.job.batches()[0] > planned, "a batch is planned", poll_s=0.01)
            time.sleep(self.luck.uniform(0.2, 1))
            return
        with DecisionWatch(self.bootstrap, PREFIX) as watch:
            while not watch.decided():
                assert process.poll() is None, "the driver ended by itself"
                assert time.monotonic() < until, f"no decision within {WAIT_S:g} s"
                time.sleep(0.01)  # or the broker that is asked has no time for anything else

    def _after(self) -> str:
        """What the driver left, by Kafka and the checkpoint."""
        finished = self.job.last_finished()
        if not self.aware:
            return f"batch {finished} was finished"
        left = len(open_ids(self.bootstrap, PREFIX))
        decision = stored_decision(self.bootstrap, PREFIX)
        note = f"batch {finished} was finished, {left} transactions are open"
        if decision is not None and decision.batch_id > finished:
            some, of = unfinished(self.bootstrap, PREFIX)
            self.seen.in_window += 1
            self.seen.half_done += some > 0
            note += f"; batch {decision.batch_id} was decided, {some} of its {of} are not ended"
        return note

    def rows(self) -> list[tuple[str, Row]]:
        """What read_committed sees, to a second client and our own reader alike."""
        found: list[tuple[str, Row]] = []
        tasks = self.plan.tasks
        for topic in self.topics:
            theirs = confluent_read(self.bootstrap, topic, tasks, "read_committed")
            ours = our_rows(self.bootstrap, topic, tasks, isolation_level="read_committed")
            assert sorted(row[:2] for row in ours) == [row[:2] for row in theirs]
            found += [(topic, row) for row in theirs]
        return found

    def summary(self, count: int) -> str:
        log = log_of(self.job).read_text(errors="replace")
        return (
            f"{count} rows, {self.job.last_finished() + 1} batches, {self.seconds:.0f} s, "
            f"{self.plan.drivers} drivers killed, {self.seen}, replays of decided batches in the "
            f"log {log.count(REPLAYED)}, task failures {counted(self.folder)}"
        )
