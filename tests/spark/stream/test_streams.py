"""Streaming reads through Spark: the same rows, offsets and checkpoints as the JVM connector's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyspark
import pytest
from chispa import assert_df_equality
from kafka import KafkaAdminClient
from pyspark.errors import StreamingQueryException

import sparkkafka
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import OptionError
from sparkkafka.spark.stream import group_committer
from tests.docs.snippets import blocks, page, snippets
from tests.real.peers import Record, confluent_write

pytestmark = [pytest.mark.real, pytest.mark.spark]

WAIT_S = 60
NOW = {"availableNow": True}
LATER_THAN_4_1 = find_spec("pyspark.sql.streaming.datasource") is not None
limited_to_the_end = pytest.mark.skipif(
    not LATER_THAN_4_1, reason="Spark 4.0 and 4.1 make one batch of AvailableNow and Once"
)


def records(first: int, count: int) -> list[Record]:
    def headers(n: int) -> tuple[tuple[str, bytes], ...]:
        return tuple((f"h{turn}", b"%d-%d" % (n, turn)) for turn in range(n % 3))

    return [Record(b"k%d" % n, b"%d" % n, headers(n)) for n in range(first, first + count)]


@pytest.fixture
def produce(kafka_cluster: Any) -> Callable[..., None]:
    """`produce(topic, 0, first=10, count=5)`: values are numbers."""

    def write(topic: str, partition: int, first: int, count: int) -> None:
        servers = kafka_cluster.bootstrap_servers
        confluent_write(servers, topic, records(first, count), partition)

    return write


class Streams:
    """Queries from Kafka into Parquet files; stopped at the end."""

    def __init__(self, spark: Any, servers: str, folder: Path) -> None:
        self.spark, self.servers, self.folder = spark, servers, folder
        self.started: list[Any] = []

    def frame(self, format: str = "pykafka", **options: str) -> Any:
        given = {name.replace("__", "."): value for name, value in options.items()}
        return (
            self.spark.readStream.format(format)
            .options(
                **{
                    "kafka.bootstrap.servers": self.servers,
                    "startingOffsets": "earliest",
                    **given,
                }
            )
            .load()
        )

    def start(self, frame: Any, name: str = "q", trigger: dict[str, Any] | None = None) -> Any:
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(self.folder / f"{name}-rows"))
            .option("checkpointLocation", str(self.folder / name))
            .queryName(name)
            .trigger(**(trigger or NOW))
            .start()
        )
        self.started.append(query)
        return query

    def run(self, frame: Any, name: str = "q", trigger: dict[str, Any] | None = None) -> Any:
        query = self.start(frame, name, trigger)
        assert query.awaitTermination(WAIT_S), query.status
        return query

    def rows(self, name: str = "q") -> Any:
        return self.spark.read.parquet(str(self.folder / f"{name}-rows"))

    def values(self, name: str = "q") -> list[int]:
        return sorted(int(row.value) for row in self.rows(name).collect())

    def offsets(self, name: str = "q") -> list[dict[str, dict[str, int]]]:
        """What the checkpoint says of each batch."""
        files = sorted((self.folder / name / "offsets").glob("[0-9]*"), key=lambda f: int(f.name))
        return [json.loads(file.read_text().splitlines()[2]) for file in files]


@pytest.fixture
def streams(spark: Any, kafka_cluster: Any, tmp_path: Path) -> Iterator[Streams]:
    made = Streams(spark, kafka_cluster.bootstrap_servers, tmp_path)
    yield made
    for query in made.started:
        query.stop()


def until(condition: Callable[[], Any], what: str) -> Any:
    end_s = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < end_s, f"waited {WAIT_S} s for {what}"
        time.sleep(0.1)
    return found


# --- rows ------------------------------------------------------------------------------------


def test_the_rows_of_a_batch_read(
    streams: Streams, spark: Any, new_topic: Any, produce: Any, kafka_cluster: Any
) -> None:
    topic = new_topic(partitions=3)
    for partition in (0, 2):
        produce(topic, partition, 100 * partition, 30)
    streams.run(streams.frame(subscribe=topic, includeHeaders="true"))
    batch = (
        spark.read.format("pykafka")
        .options(
            **{
                "kafka.bootstrap.servers": kafka_cluster.bootstrap_servers,
                "subscribe": topic,
                "includeHeaders": "true",
            }
        )
        .load()
    )
    by = ["partition", "offset"]
    assert_df_equality(streams.rows().orderBy(by), batch.orderBy(by))
    assert batch.count() == 60


def test_columns_by_schema(streams: Streams, spark: Any, new_topic: Any, produce: Any) -> None:
    topic = new_topic()
    produce(topic, 0, 0, 5)
    frame = (
        spark.readStream.format("pykafka")
        .schema("offset bigint, value string")
        .options(
            **{
                "kafka.bootstrap.servers": streams.servers,
                "subscribe": topic,
                "startingOffsets": "earliest",
            }
        )
        .load()
    )
    streams.run(frame)
    rows = streams.rows().orderBy("offset").collect()
    assert [tuple(row) for row in rows] == [(n, str(n)) for n in range(5)]


def test_a_stream_starts_at_latest(streams: Streams, new_topic: Any, produce: Any) -> None:
    topic = new_topic()
    produce(topic, 0, 0, 5)
    frame = streams.frame(subscribe=topic, startingOffsets="latest")
    query = streams.start(frame, trigger={"processingTime": "100 milliseconds"})
    until(lambda: streams.offsets() or query.lastProgress, "the first trigger")
    produce(topic, 0, 5, 5)
    query.processAllAvailable()
    query.stop()
    assert streams.values() == [5, 6, 7, 8, 9]


@limited_to_the_end
def test_foreach_batch_with_a_write(
    streams: Streams, spark: Any, new_topic: Any, produce: Any, read: Any
) -> None:
    source, target = new_topic(partitions=2), new_topic()
    produce(source, 0, 0, 5)
    produce(source, 1, 5, 5)

    def copy(frame: Any, _: int) -> None:
        frame.select("key", "value").write.format("pykafka").option(
            "kafka.bootstrap.servers", streams.servers
        ).option("topic", target).mode("append").save()

    query = (
        streams.frame(subscribe=source, maxOffsetsPerTrigger="4")
        .writeStream.foreachBatch(copy)
        .option("checkpointLocation", str(streams.folder / "copy"))
        .trigger(availableNow=True)
        .start()
    )
    streams.started.append(query)
    assert query.awaitTermination(WAIT_S)
    assert sorted(int(row.value) for row in read(subscribe=target).collect()) == list(range(10))


# --- checkpoints -----------------------------------------------------------------------------


@pytest.mark.jvm
def test_a_checkpoint_goes_on_under_the_other_connector(
    streams: Streams, new_topic: Any, produce: Any, jvm_connector: str
) -> None:
    """The next test begins with each of the two."""
    topic = new_topic(partitions=2)
    for run, format in enumerate((jvm_connector, "pykafka", jvm_connector)):
        for partition in (0, 1):
            produce(topic, partition, 100 * run + 50 * partition, 50)
        streams.run(streams.frame(format, subscribe=topic, maxOffsetsPerTrigger="60"))
        assert streams.offsets()[-1] == {topic: {"0": 50 * run + 50, "1": 50 * run + 50}}
    assert streams.values() == list(range(300))


@pytest.mark.jvm
@pytest.mark.parametrize(("first", "second"), [("pykafka", "kafka"), ("kafka", "pykafka")])
def test_a_batch_that_was_planned_is_finished_by_the_other_connector(
    streams: Streams, new_topic: Any, produce: Any, jvm_connector: str, first: str, second: str
) -> None:
    """As after a kill between the batch's plan and its end: its offsets are in the log, its
    commit is not."""
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        produce(topic, partition, 50 * partition, 50)
    streams.run(streams.frame(first, subscribe=topic, maxOffsetsPerTrigger="40"))
    planned = streams.offsets()
    last = len(planned) - 1
    (streams.folder / "q" / "commits" / str(last)).unlink()
    (streams.folder / "q" / "commits" / f".{last}.crc").unlink(missing_ok=True)
    (streams.folder / "q-rows" / "_spark_metadata" / str(last)).unlink()
    (streams.folder / "q-rows" / "_spark_metadata" / f".{last}.crc").unlink(missing_ok=True)
    assert len(streams.values()) < 100
    produce(topic, 0, 100, 10)
    streams.run(streams.frame(second, subscribe=topic))
    assert streams.offsets()[: len(planned)] == planned
    assert streams.values() == list(range(110))


@pytest.mark.jvm
def test_progress_has_the_same_offsets(
    streams: Streams, new_topic: Any, produce: Any, jvm_connector: str
) -> None:
    topic = new_topic(partitions=12)
    for partition in range(12):
        produce(topic, partition, 0, partition + 1)
    found = {}
    for format in ("pykafka", "kafka"):
        query = streams.run(streams.frame(format, subscribe=topic), name=format)
        (progress,) = [p for p in query.recentProgress if p.numInputRows]
        source = json.loads(progress.json)["sources"][0]
        found[format] = [source[name] for name in ("endOffset", "latestOffset", "numInputRows")]
    assert found["pykafka"] == found["kafka"]


# --- triggers and limits ---------------------------------------------------------------------


@limited_to_the_end
def test_available_now_under_a_cap(streams: Streams, new_topic: Any, produce: Any) -> None:
    topic = new_topic(partitions=5)
    for partition, count in enumerate((40, 7, 0, 1, 13)):
        produce(topic, partition, 100 * partition, count)
    query = streams.run(streams.frame(subscribe=topic, maxOffsetsPerTrigger="25"))
    rows = [p.numInputRows for p in query.recentProgress if p.numInputRows]
    assert rows == [25, 25, 11]
    # Nothing is left, and nothing comes twice.
    again = streams.run(streams.frame(subscribe=topic, maxOffsetsPerTrigger="25"))
    assert sum(p.numInputRows for p in again.recentProgress) == 0
    assert len(streams.values()) == len(set(streams.values())) == 61


@limited_to_the_end
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_trigger_once_reads_all_there_is(streams: Streams, new_topic: Any, produce: Any) -> None:
    topic = new_topic()
    produce(topic, 0, 0, 30)
    query = streams.run(
        streams.frame(subscribe=topic, maxOffsetsPerTrigger="9"), trigger={"once": True}
    )
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [30]


def test_min_offsets_per_trigger(streams: Streams, new_topic: Any, produce: Any) -> None:
    topic = new_topic()
    produce(topic, 0, 0, 3)
    frame = streams.frame(subscribe=topic, minOffsetsPerTrigger="10", maxTriggerDelay="10m")
    query = streams.start(frame, trigger={"processingTime": "0 seconds"})
    until(lambda: len(streams.offsets()) == 1, "the first batch, which does not wait")
    produce(topic, 0, 3, 5)
    time.sleep(1)
    produce(topic, 0, 8, 5)
    until(lambda: len(streams.offsets()) == 2, "the second batch")
    until(lambda: query.lastProgress and query.lastProgress.batchId == 1, "its end")
    query.stop()
    assert streams.offsets() == [{topic: {"0": 3}}, {topic: {"0": 13}}]
    # What waits is read by AvailableNow whatever the minimum.
    produce(topic, 0, 13, 1)
    streams.run(frame)
    assert streams.values() == list(range(14))


@limited_to_the_end
def test_max_bytes_per_trigger(streams: Streams, new_topic: Any, kafka_cluster: Any) -> None:
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        many = [Record(None, b"x" * 1000) for _ in range(500)]
        confluent_write(kafka_cluster.bootstrap_servers, topic, many, partition)
    query = streams.run(streams.frame(subscribe=topic, maxBytesPerTrigger="200000"))
    rows = [p.numInputRows for p in query.recentProgress if p.numInputRows]
    assert sum(rows) == 1000
    assert all(150 <= count <= 210 for count in rows[:-1]), rows


# --- groups and lag --------------------------------------------------------------------------


def group_offsets(servers: str, group: str) -> dict[tuple[str, int], int]:
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        found = admin.list_group_offsets({group: None})[group]
    finally:
        admin.close()
    return {(tp.topic, tp.partition): row.offset for tp, row in found.items()}


@limited_to_the_end
def test_offsets_in_a_group_and_lag(
    streams: Streams, spark: Any, new_topic: Any, produce: Any
) -> None:
    topic, other = new_topic(partitions=2), new_topic()
    produce(topic, 0, 0, 10)
    produce(topic, 1, 10, 5)
    produce(other, 0, 0, 3)
    group = f"of-{topic}"
    options = {
        "kafka.bootstrap.servers": streams.servers,
        "kafka.group.id": group,
        "subscribe": topic,
    }
    committer = sparkkafka.commit_to_group(spark, options, query="followed")
    both = {"subscribe": f"{topic},{other}"}
    try:
        query = streams.run(streams.frame(**both, maxOffsetsPerTrigger="10"), name="followed")
        streams.run(streams.frame(**both), name="another")
        # The last batch too, and of the topics only those that the options name.
        ends = {(topic, 0): 10, (topic, 1): 5}
        until(lambda: committer.committed == ends, "the commit")
        assert group_offsets(streams.servers, group) == ends
    finally:
        spark.streams.removeListener(committer)
    t0, t1, o0 = TopicPartition(topic, 0), TopicPartition(topic, 1), TopicPartition(other, 0)
    assert sparkkafka.lag(query) == {t0: 0, t1: 0, o0: 0}
    firsts = [p for p in query.recentProgress if p.batchId == 0]
    assert sum(sparkkafka.lag(firsts[0]).values()) == 8
    produce(topic, 1, 15, 4)
    assert sparkkafka.lag(query) == {t0: 0, t1: 0, o0: 0}
    assert sparkkafka.lag(query, options) == {t0: 0, t1: 4, o0: 0}
    committer.flush(query)
    assert committer.committed == ends
    # A new query begins where the group is.
    frame = streams.frame(subscribe=topic, startingOffsets="committed", kafka__group__id=group)
    streams.run(frame, name="next")
    assert streams.values("next") == [15, 16, 17, 18]


def test_flush_and_lag_without_the_listener(
    streams: Streams, spark: Any, new_topic: Any, produce: Any
) -> None:
    """Both have the query's own report only, which PySpark 4.0 and 4.1 tell in a form of their own.

    No limit here: those make one batch of AvailableNow.
    """
    topic = new_topic()
    produce(topic, 0, 0, 30)
    group, t0 = f"of-{topic}", TopicPartition(topic, 0)
    options = {
        "kafka.bootstrap.servers": streams.servers,
        "kafka.group.id": group,
        "subscribe": topic,
    }
    committer = sparkkafka.commit_to_group(spark, options, query="flushed")
    spark.streams.removeListener(committer)
    query = streams.run(streams.frame(subscribe=topic), name="flushed")
    produce(topic, 0, 30, 20)
    assert sparkkafka.lag(query, options) == {t0: 20}
    if LATER_THAN_4_1:
        assert sparkkafka.lag(query) == {t0: 0}
    else:
        with pytest.raises(OptionError, match=r"Spark 4\.2 and later does"):
            sparkkafka.lag(query)
    assert committer.committed == {}
    committer.flush(query)
    assert committer.committed == {t0: 30}
    assert group_offsets(streams.servers, group) == {(topic, 0): 30}


CONNECT = """
import json, sys
import sparkkafka
from pyspark.sql import SparkSession
from pyspark.sql.connect.streaming.query import StreamingQuery
from sparkkafka.spark.stream.progress import _NotebookOutput
from sparkkafka.spark.stream.progress import chart_html

url, servers, topic, folder = sys.argv[1:]
spark = SparkSession.builder.remote(url).getOrCreate()
group = "of-" + topic
options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "kafka.group.id": group,
           "startingOffsets": "earliest"}
committer = sparkkafka.commit_to_group(spark, options, query="flushed")
spark.streams.removeListener(committer)
query = (
    spark.readStream.format("pykafka").options(**options).load().writeStream.format("noop")
    .queryName("flushed").option("checkpointLocation", folder + "/ck").trigger(availableNow=True)
    .start()
)
assert isinstance(query, StreamingQuery)
assert query.awaitTermination(60)
spark.range(20).selectExpr("cast(id as string) value").write.format("pykafka").options(
    **{"kafka.bootstrap.servers": servers, "topic": topic}).mode("append").save()
try:
    alone = list(sparkkafka.lag(query).values())
except Exception as error:
    alone = str(error)
before = list(committer.committed.values())
committer.flush(query)
sparkkafka.progress(query)
rates = _NotebookOutput(query.recentProgress)._rates
print(json.dumps({
    "processed": len(sparkkafka.plot.throughput(query).lines[0].get_xdata()),
    "curves": chart_html([rates]).count("<svg"),
    "lag": list(sparkkafka.lag(query, options).values()),
    "alone": alone,
    "before": before,
    "flushed": [[*tp, offset] for tp, offset in committer.committed.items()],
}))
spark.stop()
"""


def test_foreach_batch_flush_and_lag_over_connect(
    new_topic: Any, produce: Any, kafka_cluster: Any, tmp_path: Path, connect_url: str
) -> None:
    topic = new_topic()
    produce(topic, 0, 0, 30)
    servers = kafka_cluster.bootstrap_servers
    code, printed = CONNECT, ""
    if pyspark.__version__ >= "4.3":  # the recipe runs in the same process, to start only one
        recipe = page("docs/recipes/connect-foreach-batch.md")
        (printed,) = (text for language, text in blocks(recipe) if language == "")
        code = "\n".join([*snippets(recipe), CONNECT])
        code = code.replace("sc://localhost:15002/;token=change-me", connect_url)
        code = code.replace("localhost:9092", servers).replace("checkpoints/", f"{tmp_path}/")
        code = code.replace("visit", f"visit{time.time_ns()}")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, connect_url, servers, topic, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert printed in done.stdout
    *_, line, last = done.stdout.splitlines()
    assert re.fullmatch(r"flushed  batch 0  30 rows .*  lag [0?]  ended", line)
    reported = json.loads(last)
    alone = reported.pop("alone")
    assert reported == {
        "lag": [20],
        "before": [],
        "flushed": [[topic, 0, 30]],
        "processed": 1,
        "curves": 1,
    }
    assert alone == [0] if LATER_THAN_4_1 else "Spark 4.2 and later does" in alone
    assert group_offsets(servers, f"of-{topic}") == {(topic, 0): 30}


def test_a_committer_that_cannot_commit_does_no_harm(
    streams: Streams,
    spark: Any,
    new_topic: Any,
    produce: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_committer, "COMMIT_TIMEOUT_MS", 500)
    topic = new_topic()
    produce(topic, 0, 0, 5)
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.group.id": "g"}
    committer = sparkkafka.commit_to_group(spark, options)
    try:
        streams.run(streams.frame(subscribe=topic))
        until(lambda: "were not committed to group g" in caplog.text, "the warning")
    finally:
        spark.streams.removeListener(committer)
    assert streams.values() == list(range(5))


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "TOPIC", "endingOffsets": "latest"}, "ending offset not valid in streaming"),
        (
            {"subscribe": "TOPIC", "startingOffsets": '{"TOPIC":{"0":9,"1":0}}'},
            "[KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED]",
        ),
    ],
)
def test_errors_name_the_culprit(
    streams: Streams, new_topic: Any, options: dict[str, str], message: str
) -> None:
    topic = new_topic(partitions=2)
    given = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    with pytest.raises(StreamingQueryException) as caught:
        streams.run(streams.frame(**given))
    assert message.replace("TOPIC", topic) in str(caught.value)
    # Spark's, if streamReader raises: it would be the last line, and hide the error.
    assert "UnboundLocalError" not in str(caught.value)


def test_a_checkpoint_of_another_source(streams: Streams, spark: Any, new_topic: Any) -> None:
    rate = spark.readStream.format("rate").option("rowsPerSecond", "100").load()
    query = streams.start(rate, trigger={"processingTime": "0 seconds"})
    until(lambda: len(streams.offsets()) > 1, "two batches")
    query.stop()
    with pytest.raises(StreamingQueryException, match="it belongs to another source"):
        streams.run(streams.frame(subscribe=new_topic()))


def test_small_ranges_share_a_task_and_its_rows_are_the_same(
    streams: Streams, new_topic: Any, produce: Any
) -> None:
    topic = new_topic(partitions=5)
    for partition in range(5):
        produce(topic, partition, first=partition * 100, count=partition)
    ways: dict[str, tuple[dict[str, str], int]] = {
        "driver": ({}, 1),
        "together": ({"maxRecordsReadByDriver": "0"}, 1),
        "alone": ({"maxRangesPerTask": "1"}, 4),
    }
    found = []
    for name, (options, tasks) in ways.items():
        frame = streams.frame(subscribe=topic, **options)
        streams.run(frame.selectExpr("*", "spark_partition_id() AS task"), name)
        rows = streams.rows(name).orderBy("partition", "offset").collect()
        assert len({row.task for row in rows}) == tasks
        found.append([row[:-1] for row in rows])
    assert found[0] == found[1] == found[2]
    assert [int(row.value) for row in rows] == [p * 100 + n for p in range(5) for n in range(p)]


def block_manager(jvm: Any) -> Any:
    """Of Spark's driver. (py4j's own way loads classes that pip's Spark does not have.)"""
    look_up = jvm.java.lang.invoke.MethodHandles.publicLookup()
    method_type = jvm.java.lang.invoke.MethodType.methodType
    env_class = jvm.java.lang.Class.forName("org.apache.spark.SparkEnv")
    made = jvm.java.lang.Class.forName("org.apache.spark.storage.BlockManager")
    env = look_up.findStatic(env_class, "get", method_type(env_class)).invokeWithArguments([])
    return look_up.findVirtual(env_class, "blockManager", method_type(made)).invokeWithArguments(
        [env]
    )


@pytest.mark.parametrize("lost", [False, True], ids=["block", "no block"])
def test_rows_of_the_driver_and_a_task_if_they_are_lost(
    streams: Streams, spark: Any, new_topic: Any, produce: Any, lost: bool
) -> None:
    """Spark keeps them as a block; without it the task reads the range."""
    topic = new_topic(partitions=3)
    block_id = spark._jvm.org.apache.spark.storage.PythonStreamBlockId
    blocks = block_manager(spark._jvm)
    found: list[int] = []
    removed: list[Any] = []

    def each(frame: Any, number: int) -> None:
        if lost:
            for stream in range(1, 400):
                for block in range(1, 4):
                    one = block_id(stream, block)
                    if blocks.getStatus(one).isDefined():
                        blocks.removeBlock(one, True)
                        removed.append(one)
        found.extend(int(row.value) for row in frame.collect())

    for turn in range(2):
        for partition in range(3):
            produce(topic, partition, first=turn * 30 + partition * 10, count=10)
        frame = streams.frame(subscribe=topic, includeHeaders="true")
        query = (
            frame.writeStream.foreachBatch(each)
            .option("checkpointLocation", str(streams.folder / "each"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)
        assert sum(item.numInputRows for item in query.recentProgress) == 30
    assert sorted(found) == list(range(60))
    assert bool(removed) is lost
