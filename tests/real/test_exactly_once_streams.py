"""Streams with deliveryGuarantee=exactly-once on a real broker: restarts, prefixes, timeouts.

What happens when drivers are killed is tested in test_brokers_die.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.spark import exactly_once
from sparkkafka.spark.decision_text import Decision, TaskReport
from sparkkafka.testing.kafka.cluster import KafkaCluster
from tests.real.drivers import kill_family
from tests.real.exactly_once import (
    SCAN_S,
    options_of,
    run_names,
    run_task,
    start_script,
    visible,
)
from tests.real.faults import fails_in, slowly
from tests.real.streams import administer, failure_of, write_values
from tests.real.transactions import held_back, open_ids, stored_decision
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.spark]

SCRIPT_S = 120.0
TIMEOUT = "kafka.transaction.timeout.ms"


class Streams:
    """Queries from a topic to another, both named after the test; so is the prefix."""

    def __init__(self, spark: SparkSession, cluster: KafkaCluster, folder: Path, name: str) -> None:
        self.spark, self.folder, self.name = spark, folder, name
        self.cluster, self.bootstrap = cluster, cluster.bootstrap_servers
        self.source, self.target, self.prefix = f"{name}-in", f"{name}-out", f"{name}-tx"
        for topic in (self.source, self.target):
            cluster.create_topic(topic, partitions=2)
        self.started: list[Any] = []

    def fill(self, values: range) -> None:
        for partition in (0, 1):
            write_values(self.bootstrap, self.source, values[partition::2], partition)

    def frame(self, **options: str) -> Any:
        return (
            self.spark.readStream.format("pykafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .options(subscribe=self.source, startingOffsets="earliest", **options)
            .load()
            .select("value")
        )

    def start(
        self, frame: Any = None, checkpoint: str = "checkpoint", live: bool = False, **options: str
    ) -> Any:
        trigger: Any = {"processingTime": "200 milliseconds"} if live else {"availableNow": True}
        given = {"transactionalIdPrefix": self.prefix, "topic": self.target} | {
            name.replace("__", "."): value for name, value in options.items()
        }
        query = (
            (self.frame() if frame is None else frame)
            .writeStream.format("pykafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("deliveryGuarantee", "exactly-once")
            .options(**given)
            .option("checkpointLocation", str(self.folder / checkpoint))
            .trigger(**trigger)
            .start()
        )
        self.started.append(query)
        return query

    def run(self, frame: Any = None, **options: Any) -> None:
        query = self.start(frame, **options)
        assert query.awaitTermination(60), query.status

    def failure(self, frame: Any = None, **options: Any) -> str:
        return failure_of(self.start(frame, **options))

    def visible(self) -> list[int]:
        return visible(self.bootstrap, self.target)

    def forget_last_commit(self) -> int:
        """As if the driver had died before Spark noted the last micro-batch as done."""
        folder = self.folder / "checkpoint" / "commits"
        last = max(int(path.name) for path in folder.iterdir() if path.name.isdigit())
        for name in (str(last), f".{last}.crc"):
            (folder / name).unlink(missing_ok=True)
        return last

    def query_id(self) -> str:
        text = (self.folder / "checkpoint" / "metadata").read_text()
        return str(json.loads(text)["id"])

    def nothing_open(self) -> None:
        assert open_ids(self.bootstrap, self.prefix) == []
        assert held_back(self.bootstrap, [self.target], 2) == {}


@pytest.fixture
def streams(
    spark: SparkSession,
    kafka_cluster: KafkaCluster,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Streams]:
    made = Streams(spark, kafka_cluster, tmp_path, request.node.originalname.removeprefix("test_"))
    yield made
    for query in made.started:
        query.stop()


# --- restarts ------------------------------------------------------------------------------------


def test_restarts_from_the_checkpoint(streams: Streams) -> None:
    """Of a query whose first and last micro-batches have no rows, and of one that died before Spark
    noted the last micro-batch as done: what was decided is not written again."""
    number = "cast(string(value) as int)"
    limited = streams.frame(maxOffsetsPerTrigger="20").where(
        f"{number} between 60 and 79 or {number} >= 100"
    )
    streams.fill(range(90))
    streams.run(limited)
    assert streams.visible() == list(range(60, 80))
    decision = stored_decision(streams.bootstrap, streams.prefix)
    assert decision is not None
    # Micro-batches without rows have nothing to decide.
    assert (decision.batch_id, decision.query_id) == (3, streams.query_id())
    assert streams.forget_last_commit() == 4
    streams.fill(range(100, 150))
    streams.run(limited)
    visible = [*range(60, 80), *range(100, 150)]
    assert streams.visible() == visible
    assert streams.forget_last_commit() == 7
    streams.run(limited)
    assert streams.visible() == visible
    decision = stored_decision(streams.bootstrap, streams.prefix)
    assert decision is not None
    assert (decision.batch_id, decision.query_id) == (7, streams.query_id())
    streams.nothing_open()


def test_a_batch_with_a_task_that_fails(streams: Streams) -> None:
    """Spark stops the other tasks with a kill, so they cannot take back what they wrote."""
    streams.fill(range(100))
    frame = streams.frame().repartition(4)
    words = streams.failure(frame.mapInArrow(fails_in(3), frame.schema))
    assert "task 3 was chosen to fail" in words
    assert streams.visible() == []
    streams.nothing_open()
    streams.run(frame)
    assert streams.visible() == list(range(100))


def test_a_new_checkpoint_under_an_old_prefix(streams: Streams) -> None:
    """The old query, of more tasks, died twice: right after a decision, which is finished, and in
    the midst of a micro-batch, which is aborted."""
    options = options_of(streams.bootstrap, topic=streams.target)
    names = run_names(streams.prefix)
    reports = [run_task(options, names, task, [100 + task], "old", 7) for task in (0, 1)]
    decide_only(streams, reports, number=0)
    wide = run_names(streams.prefix)
    for task in range(16):
        run_task(options, wide, task, [1000 + task], "old", 8)
    # Of a query whose prefix is longer, and of a batch job: both are alive, for all we know.
    others = [run_names(f"{streams.prefix}-b"), run_names(streams.prefix)._replace(run="job1")]
    elsewhere = f"{streams.name}-elsewhere"  # readers of the target would wait for them
    streams.cluster.create_topic(elsewhere)
    for other in others:
        run_task(options_of(streams.bootstrap, topic=elsewhere), other, 0, [2000], "query", 0)
    assert len(open_ids(streams.bootstrap, streams.prefix)) >= 18
    streams.fill(range(50))
    streams.run()
    left = open_ids(streams.bootstrap, streams.prefix)
    assert left == sorted(other.transactional_id(0, 0) for other in others)
    assert streams.visible() == [*range(50), 100, 101]


# --- timeouts ------------------------------------------------------------------------------------


def test_timeouts_of_transactions(streams: Streams) -> None:
    """One above what the broker allows, and one that the micro-batch takes longer than."""
    streams.fill(range(100))
    words = streams.failure(kafka__transaction__timeout__ms="900001")
    assert f"{TIMEOUT} is above the broker's transaction.max.timeout.ms" in words
    frame = streams.frame()
    # Two tasks at a time: the transactions of the first two wait for those of the others.
    slow = frame.repartition(4).mapInArrow(slowly(2.0), frame.schema)
    words = streams.failure(slow, kafka__transaction__timeout__ms="1000")
    assert TIMEOUT in words
    assert "nothing becomes visible" in words or "longer than" in words
    assert streams.visible() == []
    assert stored_decision(streams.bootstrap, streams.prefix) is None
    streams.run(kafka__transaction__timeout__ms="60000")
    assert streams.visible() == list(range(100))
    streams.nothing_open()


def decide_only(streams: Streams, reports: list[TaskReport], number: int) -> None:
    """As a driver that dies right after it has decided."""
    names = reports[0].names
    decision = Decision(
        query_id=reports[0].query_id,
        run=names.run,
        batch_id=reports[0].batch_id,
        number=number,
        application="a test",
        transactions=tuple(row.transaction for row in reports if row.transaction is not None),
    )
    options = options_of(streams.bootstrap, topic=streams.target)
    with Cluster(options.client) as cluster:
        decider = exactly_once._become_decider(cluster, names)
        partitions = sorted({tp for report in reports for tp in report.partitions})
        exactly_once._decide(cluster, decider, decision, partitions)


def test_a_decided_transaction_that_expired(streams: Streams) -> None:
    """The broker has ended one of the two transactions of a decided micro-batch."""
    streams.fill(range(2))
    streams.run()
    # In place of what the query wrote, so micro-batch 0 has rows 0 and 1 in any case.
    streams.forget_last_commit()
    names = run_names(streams.prefix)
    reports = [
        run_task(
            options_of(streams.bootstrap, topic=streams.target, kafka__transaction__timeout__ms=ms),
            names,
            task,
            [100 + task],
            streams.query_id(),
            0,
        )
        for task, ms in enumerate(("60000", "1000"))
    ]
    decide_only(streams, reports, number=1)
    gone = names.transactional_id(1, 0)
    wait_until(lambda: gone not in open_ids(streams.bootstrap), "the broker ends it", SCAN_S)
    words = streams.failure()
    assert "DataLossError" in words
    assert f"batch 0 of query {streams.query_id()} was decided" in words
    assert "1 of its 2 transactions without it: rows of tasks 1 are lost" in words
    assert f"delete the consumer group {streams.prefix}-decisions" in words
    assert "failOnDataLoss=false" in words
    assert TIMEOUT in words
    assert streams.visible() == [0, 1, 100]
    # It stays so until somebody decides what to do, here to go on without it.
    streams.fill(range(2, 10))
    streams.run(failOnDataLoss="false")
    assert streams.visible() == [*range(10), 100]
    streams.nothing_open()
    # Without the group a micro-batch that was decided is written again.
    streams.forget_last_commit()
    decisions = f"{streams.prefix}-decisions"
    administer(streams.bootstrap, lambda admin: admin.delete_consumer_groups([decisions]))
    streams.run()
    assert streams.visible() == sorted([*range(10), *range(2, 10), 100])
    streams.nothing_open()


# --- other ways to run a stream ------------------------------------------------------------------


def test_each_batch_of_foreach_batch_is_all_or_nothing(streams: Streams) -> None:
    streams.fill(range(100))
    tries: list[int] = []

    def write(frame: Any, batch: int) -> None:
        tries.append(batch)
        if tries == [0, 1]:
            frame = frame.repartition(3).mapInArrow(fails_in(2), frame.schema)
        (
            frame.write.format("pykafka")
            .option("kafka.bootstrap.servers", streams.bootstrap)
            .options(topic=streams.target, deliveryGuarantee="exactly-once")
            .mode("append")
            .save()
        )

    def start() -> Any:
        query = (
            streams.frame(maxOffsetsPerTrigger="50")
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(streams.folder / "foreach"))
            .trigger(availableNow=True)
            .start()
        )
        streams.started.append(query)
        return query

    assert "task 2 was chosen to fail" in failure_of(start())
    assert len(streams.visible()) == 50
    assert held_back(streams.bootstrap, [streams.target], 2) == {}
    assert start().awaitTermination(60)
    assert tries == [0, 1, 1]
    assert streams.visible() == list(range(100))


# In `make test` test_exactly_once_model.py has two queries with one prefix.
@pytest.mark.soak
@pytest.mark.flaky(
    reruns=2, reason="each query may fence the other at the same moment: then both fail, rightly"
)
def test_two_live_queries_with_one_prefix(streams: Streams) -> None:
    streams.fill(range(20))
    first = streams.start(checkpoint="first", live=True)
    wait_until(lambda: len(streams.visible()) == 20, "the first query writes")
    second = streams.start(checkpoint="second", live=True)
    wait_until(lambda: len(streams.visible()) == 40, "the second query writes")
    streams.fill(range(20, 40))
    words = failure_of(first)
    assert f"transactionalIdPrefix {streams.prefix} is used by another query as well" in words
    assert str(second.id) in words
    assert str(first.id) in words
    assert f"{streams.prefix}-decisions" in words
    # The other one goes on, and is the only one that wrote what came since.
    wait_until(lambda: len(streams.visible()) >= 60, "the second query goes on")
    assert streams.visible() == sorted([*range(20), *range(40)])
    assert second.exception() is None


# A stream over Connect, whose tasks and commits are those of any other, is in test_streams.py.
@pytest.mark.soak
@pytest.mark.usefixtures("connect_port")
def test_spark_connect(streams: Streams, tmp_path: Path) -> None:
    streams.fill(range(100))
    process = start_script(
        f"""
        spark = SparkSession.builder.remote("local[2]").getOrCreate()
        from pyspark.sql.connect.session import SparkSession as ConnectSession
        assert isinstance(spark, ConnectSession)
        query = (spark.readStream.format("pykafka").option("kafka.bootstrap.servers", servers)
                 .options(subscribe="{streams.source}", startingOffsets="earliest",
                          maxOffsetsPerTrigger="40").load().select("value")
                 .writeStream.format("pykafka").option("kafka.bootstrap.servers", servers)
                 .options(topic=topic, deliveryGuarantee="exactly-once",
                          transactionalIdPrefix="{streams.prefix}")
                 .option("checkpointLocation", folder + "/connect")
                 .trigger(availableNow=True).start())
        query.awaitTermination()
        """,
        streams.bootstrap,
        streams.target,
        tmp_path,
    )
    try:
        status = process.wait(SCRIPT_S)
    finally:
        kill_family(process)
    assert status == 0, (tmp_path / "script.log").read_text()[-3000:]
    assert streams.visible() == list(range(100))
    decision = stored_decision(streams.bootstrap, streams.prefix)
    assert decision is not None
    assert decision.batch_id == 2
    streams.nothing_open()
