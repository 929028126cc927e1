"""writeStream.format("pykafka") on a real broker, beside the JVM connector's sink."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from sparkkafka.spark.datasource import KafkaDataSource
from sparkkafka.spark.write.writer import KafkaStreamWriter
from tests.real.peers import Record, Row, confluent_read, confluent_write
from tests.spark.schemas import ddl

pytestmark = [pytest.mark.real, pytest.mark.spark]

WAIT_S = 90


class Sinks:
    """Queries from one topic to another; stopped at the end."""

    def __init__(self, spark: Any, cluster: Any, folder: Path) -> None:
        self.spark, self.cluster, self.folder = spark, cluster, folder
        self.started: list[Any] = []

    def source(self, topic: str, **options: str) -> Any:
        return (
            self.spark.readStream.format("pykafka")
            .option("kafka.bootstrap.servers", self.cluster.bootstrap_servers)
            .options(subscribe=topic, startingOffsets="earliest", **options)
            .load()
        )

    def run(
        self, frame: Any, name: str, mode: str = "append", format: str = "pykafka", **options: str
    ) -> Any:
        query = (
            frame.writeStream.format(format)
            .option("kafka.bootstrap.servers", self.cluster.bootstrap_servers)
            .options(**{key.replace("__", "."): value for key, value in options.items()})
            .option("checkpointLocation", str(self.folder / name))
            .outputMode(mode)
            .trigger(availableNow=True)
            .start()
        )
        self.started.append(query)
        assert query.awaitTermination(WAIT_S), query.status
        return query

    def rows(self, topic: str, partitions: int = 1) -> list[Row]:
        return confluent_read(self.cluster.bootstrap_servers, topic, partitions)

    def committed(self, name: str) -> int:
        return len(list((self.folder / name / "commits").glob("[0-9]*")))


@pytest.fixture
def sinks(spark: Any, kafka_cluster: Any, tmp_path: Path) -> Iterator[Sinks]:
    made = Sinks(spark, kafka_cluster, tmp_path)
    yield made
    for query in made.started:
        query.stop()


@pytest.fixture
def filled(kafka_cluster: Any, new_topic: Callable[..., str]) -> str:
    """Two partitions of 50 records with keys, headers and times."""
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        confluent_write(
            kafka_cluster.bootstrap_servers,
            topic,
            [
                Record(b"k%d" % (n % 7), b"%d" % n, (("h", b"%d" % n),))
                for n in range(partition * 50, partition * 50 + 50)
            ],
            partition,
        )
    return topic


def test_append_in_several_batches_then_on_from_the_checkpoint(
    sinks: Sinks, filled: str, kafka_cluster: Any, new_topic: Callable[..., str]
) -> None:
    target = new_topic(partitions=2)
    frame = sinks.source(filled, maxOffsetsPerTrigger="30", includeHeaders="true")
    sinks.run(frame.drop("topic"), "q", topic=target)
    assert sinks.committed("q") == 4
    expected = [
        (r.partition, r.key, r.value, r.headers, r.timestamp_ms) for r in sinks.rows(filled, 2)
    ]
    got = [(r.partition, r.key, r.value, r.headers, r.timestamp_ms) for r in sinks.rows(target, 2)]
    assert sorted(got) == sorted(expected)
    for partition in (0, 1):  # in the order of the source
        numbers = [int(row[2]) for row in got if row[0] == partition]
        assert numbers == sorted(numbers)

    confluent_write(kafka_cluster.bootstrap_servers, filled, [Record(b"k", b"100")], 0)
    sinks.run(frame.drop("topic"), "q", topic=target)
    values = sorted(int(row.value) for row in sinks.rows(target, 2))
    assert values == list(range(101))


def test_the_topic_of_each_row(sinks: Sinks, filled: str, new_topic: Callable[..., str]) -> None:
    targets = [new_topic(), new_topic()]
    frame = sinks.source(filled).selectExpr(
        f"IF(partition = 0, '{targets[0]}', '{targets[1]}') AS topic", "value"
    )
    sinks.run(frame, "q")
    for partition, target in enumerate(targets):
        values = {int(row.value) for row in sinks.rows(target)}
        assert values == set(range(partition * 50, partition * 50 + 50))


def test_complete_appends_each_batch_s_whole_result(
    sinks: Sinks, filled: str, new_topic: Callable[..., str]
) -> None:
    target = new_topic()
    counts = (
        sinks.source(filled, maxOffsetsPerTrigger="50")
        .groupBy("key")
        .count()
        .selectExpr("key", "CAST(count AS STRING) AS value")
    )
    sinks.run(counts, "q", mode="complete", topic=target)
    rows = sinks.rows(target)
    assert sinks.committed("q") == 2
    assert len(rows) == 14
    assert Counter(row.key for row in rows) == {b"k%d" % n: 2 for n in range(7)}
    assert sum(int(row.value) for row in rows) == 50 + 100


def test_update_is_refused_by_spark(
    sinks: Sinks, filled: str, new_topic: Callable[..., str]
) -> None:
    counts = sinks.source(filled).groupBy("key").count().selectExpr("key", "key AS value")
    with pytest.raises(PySparkException, match="does not support Update mode"):
        sinks.run(counts, "q", mode="update", topic=new_topic())


def test_update_by_foreach_batch(sinks: Sinks, filled: str, new_topic: Callable[..., str]) -> None:
    """What docs/streams.md shows for output mode update."""
    target = new_topic()
    servers = sinks.cluster.bootstrap_servers

    def write_batch(batch: Any, batch_id: int) -> None:
        (
            batch.write.format("pykafka")
            .option("kafka.bootstrap.servers", servers)
            .option("topic", target)
            .mode("append")
            .save()
        )

    counts = (
        sinks.source(filled, maxOffsetsPerTrigger="50")
        .groupBy("value")
        .count()
        .selectExpr("value AS key", "CAST(count AS STRING) AS value")
    )
    query = (
        counts.writeStream.foreachBatch(write_batch)
        .outputMode("update")
        .option("checkpointLocation", str(sinks.folder / "q"))
        .trigger(availableNow=True)
        .start()
    )
    sinks.started.append(query)
    assert query.awaitTermination(WAIT_S), query.status
    # Each key is in one batch only, so each comes once: complete would give 50 of them twice.
    assert sorted(int(row.key) for row in sinks.rows(target)) == list(range(100))


def test_a_failed_batch_is_written_again(
    sinks: Sinks, filled: str, new_topic: Callable[..., str]
) -> None:
    """At least once: what a failed micro-batch has sent stays, and comes again."""
    target = new_topic(partitions=2)
    frame = sinks.source(filled)
    bad = frame.selectExpr("value", "IF(value = '75', 9, partition) AS partition")
    with pytest.raises(PySparkException) as caught:
        sinks.run(bad, "q", topic=target)
    assert f"partition 9 of topic {target} does not exist" in str(caught.value)
    assert sinks.committed("q") == 0
    sinks.run(frame.select("value", "partition"), "q", topic=target)
    counts = Counter(int(row.value) for row in sinks.rows(target, 2))
    assert set(counts) == set(range(100))
    assert max(counts.values()) <= 2


def test_missing_topics_are_made(sinks: Sinks, filled: str) -> None:
    sinks.run(
        sinks.source(filled).select("value"),
        "q",
        topic=f"{filled}-made",
        createTopic="true",
        createTopic__partitions="3",
        createTopic__configs=json.dumps({"retention.ms": "7200000"}),
    )
    assert len(sinks.rows(f"{filled}-made", 3)) == 100


def test_a_bad_option_fails_the_query_by_name(sinks: Sinks, filled: str) -> None:
    with pytest.raises(PySparkException, match=r"did you mean 'topic'\?"):
        sinks.run(sinks.source(filled).select("value"), "q", topc="t")


@pytest.mark.jvm
def test_both_sinks_write_the_same(
    sinks: Sinks, filled: str, new_topic: Callable[..., str], jvm_connector: str
) -> None:
    """From the same stream; the times are ours to keep, so the column is left out."""
    seen = {}
    for format in ("pykafka", jvm_connector):
        target = new_topic(partitions=5)
        frame = sinks.source(filled, includeHeaders="true").select("key", "value", "headers")
        sinks.run(frame, f"q-{format}", format=format, topic=target)
        seen[format] = [(r.partition, r.key, r.value, r.headers) for r in sinks.rows(target, 5)]
        assert len(seen[format]) == 100
    assert Counter(seen["pykafka"]) == Counter(seen[jvm_connector])


def test_overwrite_means_complete_mode() -> None:
    options = {"kafka.bootstrap.servers": "nowhere.invalid:9092", "topic": "t"}
    for overwrite in (False, True):
        made = KafkaDataSource(options).streamWriter(ddl("value string"), overwrite=overwrite)
        assert isinstance(made, KafkaStreamWriter)
