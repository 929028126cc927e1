"""Checkpoints of real queries: what they show, and which rows Spark writes after a reset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.checkpoints.against_kafka import decision_of, next_offsets, positions_of
from sparkkafka.checkpoints.comparison import diff, verify
from sparkkafka.checkpoints.logs import Checkpoint
from sparkkafka.checkpoints.reset import KEPT, plan_reset
from sparkkafka.client import Admin, Deadline
from sparkkafka.client.lags import AgeReader, list_lags
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.source import FROM_EARLIEST, TO_LATEST, OffsetBound, parse_bound
from sparkkafka.errors import CheckpointError
from tests.real.exactly_once import visible
from tests.real.streams import await_end, failure_of, write_values

pytestmark = [pytest.mark.real, pytest.mark.spark]


def to(text: str) -> OffsetBound:
    return parse_bound({"startingOffsets": text}, "starting", streaming=True)


class Query:
    """A query from a topic of one partition into Parquet files, with AvailableNow."""

    def __init__(self, spark: Any, bootstrap: str, topic: str, folder: Path) -> None:
        self.spark, self.bootstrap, self.topic, self.folder = spark, bootstrap, topic, folder
        self.checkpoint_folder = folder / "checkpoint"

    def fill(self, values: Iterable[int], topic: str = "") -> None:
        write_values(self.bootstrap, topic or self.topic, values)

    def frame(self, format: str = "pykafka", topic: str = "", **options: str) -> Any:
        return (
            self.spark.readStream.format(format)
            .option("kafka.bootstrap.servers", self.bootstrap)
            .options(subscribe=topic or self.topic, startingOffsets="earliest", **options)
            .load()
            .selectExpr("cast(value as string) as value")
        )

    def start(self, frame: Any) -> Any:
        return (
            frame.writeStream.format("parquet")
            .option("path", str(self.folder / "rows"))
            .option("checkpointLocation", str(self.checkpoint_folder))
            .trigger(availableNow=True)
            .start()
        )

    def run(self, frame: Any) -> None:
        await_end(self.start(frame))

    def counts(self) -> Counter[int]:
        rows = self.spark.read.schema("value string").parquet(str(self.folder / "rows"))
        return Counter(int(row.value) for row in rows.collect())

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.checkpoint_folder)

    def reset(self, bound: OffsetBound, admin: Admin | None = None, **more: Any) -> str:
        """The files are new, so `stopped` must be set."""
        return plan_reset(self.checkpoint, bound, admin, stopped=True, **more).apply()


@pytest.fixture
def query(spark: Any, kafka_cluster: Any, new_topic: Callable[..., str], tmp_path: Path) -> Query:
    return Query(spark, kafka_cluster.bootstrap_servers, new_topic(), tmp_path)


@pytest.fixture
def admin(kafka_cluster: Any) -> Any:
    with Admin({"bootstrap.servers": kafka_cluster.bootstrap_servers}) as client:
        yield client


def errors(checkpoint: Checkpoint) -> list[Any]:
    return [row for row in verify(checkpoint) if row.level == "error"]


def test_shown_reset_and_run_on(query: Query, admin: Admin) -> None:
    frame = query.frame(maxOffsetsPerTrigger="40")
    tp = TopicPartition(query.topic, 0)
    query.fill(range(100))
    query.run(frame)
    checkpoint = query.checkpoint
    assert verify(checkpoint) == []
    assert checkpoint.planned == checkpoint.committed == (0, 1, 2)
    (change,) = diff(checkpoint.plan(0), checkpoint.plan(2))
    assert (change.partitions[0].before, change.partitions[0].after) == (40, 100)
    (position,) = positions_of(checkpoint, admin)
    assert (position.partition, position.next_offset, position.left) == (tp, 100, 0)

    # back: records that are read again are there twice
    query.reset(to(f'{{"{query.topic}":{{"0":70}}}}'), admin)
    query.run(frame)
    expected = Counter(range(100)) + Counter(range(70, 100))
    assert query.counts() == expected

    # forward: skipped records are missing
    query.fill(range(100, 110))
    query.reset(TO_LATEST, admin)
    query.fill(range(110, 115))
    query.run(frame)
    expected += Counter(range(110, 115))
    assert query.counts() == expected

    query.reset(FROM_EARLIEST, admin)
    query.run(frame)
    assert query.counts() == expected + Counter(range(115))
    assert errors(query.checkpoint) == []


def test_lost_and_unread_offsets(query: Query, admin: Admin) -> None:
    query.fill(range(10))
    query.run(query.frame())
    query.fill(range(10, 40))
    tp = TopicPartition(query.topic, 0)
    admin.delete_records({tp: 25}).all()
    (row,) = positions_of(query.checkpoint, admin)
    assert (row.next_offset, row.earliest, row.latest, row.lost, row.left) == (10, 25, 40, 15, 15)
    with closing(AgeReader({"bootstrap.servers": query.bootstrap})) as ages:
        lags = list_lags(admin, next_offsets(query.checkpoint, admin))
        (lag,) = ages.add_ages(lags, Deadline(30_000))
    assert (lag.partition, lag.committed, lag.lag, lag.gone) == (tp, 10, 30, 15)
    assert lag.behind_s is not None
    assert 0 <= lag.behind_s < 3600
    assert "data" in failure_of(query.start(query.frame())).lower()
    # With `drop` there is nothing to drop: the failed start has planned a batch or not.
    unfinished = query.checkpoint.next_start().kind == "repeat"
    query.reset(FROM_EARLIEST, admin, unfinished="drop" if unfinished else None)
    query.run(query.frame())
    assert query.counts() == Counter([*range(10), *range(25, 40)])


@pytest.mark.jvm
def test_one_source_of_two(
    query: Query, admin: Admin, new_topic: Callable[..., str], jvm_connector: str
) -> None:
    other = new_topic()
    query.fill(range(10))
    query.fill(range(100, 110), topic=other)
    frame = query.frame().union(query.frame(jvm_connector, other))
    query.run(frame)
    assert verify(query.checkpoint) == []
    with pytest.raises(CheckpointError, match="2 Kafka sources"):
        query.reset(FROM_EARLIEST, admin)
    query.reset(FROM_EARLIEST, admin, source="1")
    query.run(frame)
    assert query.counts() == Counter([*range(10), *range(100, 110), *range(100, 110)])


def test_state_goes_on(query: Query, admin: Admin) -> None:
    frame = query.frame().dropDuplicates(["value"])
    query.fill(range(10))
    query.run(frame)
    with pytest.raises(CheckpointError, match="deduplication drops them"):
        query.reset(FROM_EARLIEST, admin)
    query.reset(FROM_EARLIEST, admin, keep_state=True)
    query.fill(range(10, 15))
    query.run(frame)
    assert query.counts() == Counter(range(15))


@pytest.mark.parametrize("name", ["offsets", "commits"])
def test_a_torn_file_is_repaired(query: Query, name: str) -> None:
    """The last file is cut off, as after a power failure."""
    query.fill(range(10))
    query.run(query.frame())
    query.fill(range(10, 20))
    query.run(query.frame())
    torn = query.checkpoint_folder / name / "1"
    content = torn.read_bytes()
    torn.write_bytes(content[: len(content) // 2])
    assert failure_of(query.start(query.frame()))
    assert any(f"{name}/1" in row.where for row in errors(query.checkpoint))
    if name == "offsets":
        # It is finished, so its rows are there: only its end is unknown.
        bound = to(f'{{"{query.topic}":{{"0":20}}}}')
        query.reset(bound, unfinished="done")
    else:
        query.reset(KEPT, unfinished="done")
    assert errors(query.checkpoint) == []
    query.fill(range(20, 30))
    query.run(query.frame())
    assert query.counts() == Counter(range(30))


def test_an_unfinished_batch_is_dropped(query: Query, admin: Admin) -> None:
    """As a killed driver leaves one."""
    query.fill(range(25))
    killed = True

    def write(frame: Any, batch: int) -> None:
        assert not (killed and batch == 1), "killed"
        frame.write.mode("append").parquet(str(query.folder / "rows"))

    def start_query(**options: str) -> Any:
        stream = query.frame(**options).writeStream.foreachBatch(write)
        stream = stream.option("checkpointLocation", str(query.checkpoint_folder))
        return stream.trigger(availableNow=True).start()

    assert "killed" in failure_of(start_query(maxOffsetsPerTrigger="10"))
    start = query.checkpoint.next_start()
    assert (start.kind, start.batch_id) == ("repeat", 1)
    (row,) = positions_of(query.checkpoint, admin)
    assert (row.next_offset, row.left) == (10, 15)
    with pytest.raises(CheckpointError, match="batch 1 is planned and not finished"):
        query.reset(KEPT, admin)
    query.reset(to(f'{{"{query.topic}":{{"0":5}}}}'), admin, unfinished="drop")
    killed = False
    await_end(start_query())
    assert query.counts() == Counter(range(25)) + Counter(range(5, 10))


def test_exactly_once(query: Query, admin: Admin, new_topic: Callable[..., str]) -> None:
    target = new_topic(partitions=2)
    query.fill(range(20))

    def start() -> Any:
        return (
            query.frame()
            .writeStream.format("pykafka")
            .option("kafka.bootstrap.servers", query.bootstrap)
            .option("topic", target)
            .option("deliveryGuarantee", "exactly-once")
            .option("checkpointLocation", str(query.checkpoint_folder))
            .trigger(availableNow=True)
            .start()
        )

    def seen() -> Counter[int]:
        return Counter(visible(query.bootstrap, target))

    assert decision_of_new(query, admin) == "none"
    await_end(start())
    assert seen() == Counter(range(20))
    assert decision_of(query.checkpoint, admin).verdict == "done"

    query.reset(to(f'{{"{query.topic}":{{"0":15}}}}'), admin)
    await_end(start())
    expected = Counter(range(20)) + Counter(range(15, 20))
    assert seen() == expected

    # As if the driver had died after the decision for batch 1, before Spark committed the batch.
    for name in ("1", ".1.crc"):
        (query.checkpoint_folder / "commits" / name).unlink(missing_ok=True)
    status = decision_of(query.checkpoint, admin)
    assert status.verdict == "decided"
    assert status.decision is not None
    assert status.decision.batch_id == 1
    for choice in ("done", "drop"):
        with pytest.raises(CheckpointError, match="Start the query once"):
            query.reset(FROM_EARLIEST, admin, unfinished=choice)
    await_end(start())
    assert seen() == expected

    # As if it had died before the decision: planned, and nothing decided.
    plan = (query.checkpoint_folder / "offsets" / "1").read_text()
    query.fill(range(20, 30))
    (query.checkpoint_folder / "offsets" / "2").write_text(plan.replace("20", "30"))
    assert decision_of(query.checkpoint, admin).verdict == "undecided"
    with pytest.raises(CheckpointError, match="cannot count as done"):
        query.reset(KEPT, admin, unfinished="done")
    query.reset(KEPT, admin, unfinished="drop")
    await_end(start())
    assert seen() == expected + Counter(range(20, 30))

    # An older copy: Spark would plan a batch that is already decided.
    for batch in (1, 2):
        for folder in ("offsets", "commits"):
            (query.checkpoint_folder / folder / str(batch)).unlink()
    assert decision_of(query.checkpoint, admin).verdict == "ahead"


def decision_of_new(query: Query, admin: Admin) -> str:
    """Before the first batch."""
    folder = query.folder / "new"
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"00000000-0000-0000-0000-000000000000"}')
    return decision_of(Checkpoint(folder), admin).verdict
