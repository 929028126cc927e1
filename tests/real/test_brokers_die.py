"""Three brokers, one killed and started again during a stream, a write and a read; and drivers of
an exactly-once stream.

No row may be lost, none may be there twice, and the job may not fail. A second client and our own
reader see each row of the exactly-once stream once with read_committed; the same run with
at-least-once shows rows twice: this test can fail.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.cluster.offsets import OffsetLookup
from sparkkafka.client.values import TopicPartition
from sparkkafka.protocol.constants import LATEST
from sparkkafka.testing.kafka.cluster import KafkaCluster
from tests.client.support import open_cluster
from tests.real.faults import counted, slowly
from tests.real.kills import LONG, PREFIX, SHORT, Plan, Run
from tests.real.peers import confluent_read
from tests.real.streams import Job, SteadyWriter, assert_each_once, position
from tests.real.transactions import held_back, open_ids
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.spark]

ROWS = 100_000
PARTITIONS = 6


@pytest.fixture(scope="module")
def three_brokers() -> Iterator[KafkaCluster]:
    with KafkaCluster(3, {"min.insync.replicas": 2}) as cluster:
        yield cluster


def rows(spark: SparkSession, count: int = ROWS) -> DataFrame:
    number = F.col("id").cast("string")
    return spark.range(0, count, 1, 4).select(
        number.alias("key"), F.rpad(number, 100, "-").alias("value")
    )


def written(cluster, topic: str) -> int:
    """How many offsets the topic has by now."""
    tps = [TopicPartition(topic, p) for p in range(PARTITIONS)]
    with open_cluster(cluster) as client:
        found = OffsetLookup(client).list(dict.fromkeys(tps, LATEST))
    return sum(row.offset for row in found.values())


@contextmanager
def killed_once(
    cluster, when: Callable[[], bool], *, for_good: bool = False
) -> Iterator[list[str]]:
    """Kill a broker as soon as `when` says so, start it 3 s later unless it is killed for good;
    lists what was done."""
    done: list[str] = []
    over = threading.Event()

    def strike() -> None:
        while not over.wait(0.05):
            if when():
                cluster.kill(1)
                done.append("killed")
                if for_good:
                    return
                over.wait(3)
                cluster.start(1)
                done.append("started")
                return

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join(120)
        assert not thread.is_alive()


def slow(df: DataFrame) -> DataFrame:
    """Takes some seconds, in which a broker can be killed; few of them are of the processor."""
    return df.mapInArrow(slowly(0.3), df.schema)


def read(spark: SparkSession, cluster, topic: str, **options: str) -> DataFrame:
    return (
        spark.read.format("pykafka")
        .option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        .option("subscribe", topic)
        .options(**options)
        .load()
    )


def counts(df: DataFrame) -> tuple[int, int, int]:
    """(rows, distinct keys, keys out of range)."""
    number = F.col("key").cast("string").cast("bigint")
    row = df.agg(
        F.count("*"),
        F.count_distinct(number),
        F.count(F.when((number < 0) | (number >= ROWS) | number.isNull(), 1)),
    ).first()
    assert row is not None
    return tuple(row)


def test_fencing_where_the_transaction_log_has_followers(three_brokers):
    """Its append waits for them as long as the transaction may be open."""
    config = {"bootstrap.servers": three_brokers.bootstrap_servers}
    with Admin(config) as admin:
        fenced = admin.fence_producers(["fenced"])
        assert not fenced.errors
        assert fenced["fenced"].producer_epoch >= 0


def test_the_records_are_where_javas_partitioner_puts_them(spark, three_brokers, jvm_connector):
    """The same rows through the JVM connector's sink: the same partition for each key."""
    found = []
    for topic, sink in (("by-java", jvm_connector), ("by-us", "pykafka")):
        three_brokers.create_topic(topic, partitions=PARTITIONS)
        (
            rows(spark, 1_000)
            .write.format(sink)
            .option("kafka.bootstrap.servers", three_brokers.bootstrap_servers)
            .option("topic", topic)
            .mode("append")
            .save()
        )
        read = confluent_read(three_brokers.bootstrap_servers, topic, PARTITIONS)
        found.append(sorted((row.key, row.value, row.partition) for row in read))
    assert len(found[0]) == 1_000
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "kills", [pytest.param(1, id="1"), pytest.param(6, id="6", marks=pytest.mark.soak)]
)
def test_brokers_die_one_by_one(
    kills: int, spark: SparkSession, three_brokers: KafkaCluster, tmp_path: Path
) -> None:
    """Under a stream, which continues with the new leaders."""
    topic, cluster = f"streamed-{kills}", three_brokers
    cluster.create_topic(topic, PARTITIONS, replication_factor=3)
    options = {
        "subscribe": topic,
        "maxOffsetsPerTrigger": "2000",
        "kafka.request.timeout.ms": "5000",
    }
    job = Job(cluster.bootstrap_servers, str(tmp_path), options, {"processingTime": "1 second"})
    with SteadyWriter(cluster.bootstrap_servers, topic, PARTITIONS, per_second=300) as writer:
        query = job.start(spark)
        try:
            wait_until(lambda: position(query) > 0, "the first batch")
            for number in range(kills):
                broker = cluster.broker_ids[number % 3]
                cluster.kill(broker)
                killed_at, killed_s = writer.count, time.monotonic()
                # Beyond what there was at the kill: the new leaders are found and read.
                wait_until(lambda at=killed_at: position(query) > at + 100, "goes on", 90)
                print(
                    f"broker {broker}: goes on {time.monotonic() - killed_s:.1f} s after its death"
                )
                cluster.start(broker)
                print(f"broker {broker}: back {time.monotonic() - killed_s:.1f} s after its death")
            count = writer.stop()
            wait_until(lambda: position(query) == count, "the end", 90)
        finally:
            query.stop()
    assert_each_once(job.values(spark), count)
    print(f"{kills} kills, {count} rows, {job.batches()[1]} batches")


def plans(short: Plan, long: Plan) -> pytest.MarkDecorator:
    long_form = pytest.param(long, id="long", marks=pytest.mark.soak)
    return pytest.mark.parametrize("plan", [pytest.param(short, id="short"), long_form])


@plans(SHORT, LONG)
def test_each_row_is_visible_once(
    plan: Plan, spark: SparkSession, three_brokers: KafkaCluster, tmp_path: Path
) -> None:
    run = Run(three_brokers, tmp_path, plan, "exactly-once")
    count = run.through(spark)
    rows = run.rows()
    print(run.summary(count))
    assert_each_once([int(row.value or b"") for _, row in rows], count)
    of_partition: dict[tuple[str, int], list[int]] = {}
    for topic, row in rows:
        of_partition.setdefault((topic, row.partition), []).append(int(row.value or b""))
    assert len(of_partition) == plan.tasks * len(run.topics)
    for key, values in of_partition.items():
        assert values == sorted(values), f"{key} is not in the source's order"
    # Nothing is left that readers would have to wait for.
    assert open_ids(run.bootstrap, PREFIX) == []
    assert held_back(run.bootstrap, run.topics, plan.tasks) == {}
    # And the kills were where it matters.
    assert run.seen.in_window > 0
    if plan is LONG:
        assert run.seen.in_window >= plan.drivers * plan.aimed / 3
        assert run.seen.half_done > 0
        assert run.seen.brokers >= 4
        assert all(counted(tmp_path).values()), counted(tmp_path)


# In `make test` notebook 3 shows it. Fewer kills are enough to see it.
@pytest.mark.soak
@pytest.mark.parametrize("plan", [replace(LONG, drivers=12, brokers=2)], ids=["long"])
def test_at_least_once_shows_rows_twice(
    plan: Plan, spark: SparkSession, three_brokers: KafkaCluster, tmp_path: Path
) -> None:
    run = Run(three_brokers, tmp_path, plan, "at-least-once")
    count = run.through(spark)
    times = Counter(int(row.value or b"") for _, row in run.rows())
    doubled = sum(1 for n in times.values() if n > 1)
    print(run.summary(count), f"{doubled} rows are there more than once")
    assert sorted(times) == list(range(count)), "rows are lost"
    assert doubled > 0


def test_a_broker_dies_during_a_write_and_during_a_read(spark, three_brokers):
    # The last test: the read leaves the broker dead.
    topic = "survives"
    three_brokers.create_topic(topic, partitions=PARTITIONS, replication_factor=3)

    def in_the_middle() -> bool:
        return written(three_brokers, topic) > ROWS // 10

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", ROWS // 40)
    with killed_once(three_brokers, in_the_middle) as done:
        (
            slow(rows(spark))
            .write.format("pykafka")
            .option("kafka.bootstrap.servers", three_brokers.bootstrap_servers)
            .option("topic", topic)
            # Small batches and requests, so that many are in flight when the broker dies.
            .option("kafka.batch.size", 32_768)
            .option("kafka.request.timeout.ms", 5_000)
            .mode("append")
            .save()
        )
        assert "killed" in done, "the write was over before the broker was killed"
    assert done == ["killed", "started"]

    # Small fetches, so that few rows have been read ahead when the broker dies.
    started = time.monotonic()
    with killed_once(
        three_brokers, lambda: time.monotonic() - started > 1.5, for_good=True
    ) as done:
        rows_read = read(
            spark,
            three_brokers,
            topic,
            **{
                "kafka.max.partition.fetch.bytes": "100000",
                "kafka.request.timeout.ms": "5000",
            },
        )
        assert counts(slow(rows_read)) == (ROWS, ROWS, 0)
        assert done == ["killed"], "the read was over before the broker was killed"
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
