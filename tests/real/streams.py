"""Streams of numbers for tests: a producer that keeps writing, queries, and what came out of them.

A value is a decimal number, each written once; so a row that is lost or doubled can be named.
Nothing here waits without an end.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import confluent_kafka.admin

from sparkkafka.client.cluster.offsets import OffsetLookup
from sparkkafka.client.values import TopicPartition
from sparkkafka.protocol.constants import LATEST
from tests.client.support import open_cluster
from tests.real.faults import failing
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WAIT_S = 60.0


def assert_each_once(values: Iterable[int], count: int) -> None:
    """0 … count-1, each once."""
    seen = Counter(values)
    missing = [n for n in range(count) if n not in seen]
    doubled = [n for n, times in seen.items() if times > 1]
    strange = [n for n in seen if not 0 <= n < count]
    assert (missing[:10], doubled[:10], strange[:10]) == ([], [], []), (
        f"of {count} rows {len(missing)} are lost and {len(doubled)} are there twice"
    )


# --- writing -------------------------------------------------------------------------------------


class SteadyWriter:
    """Writes 0, 1, 2, … in turns to the partitions of a topic until it is stopped.

    Idempotent, and patient enough for a broker that is away for a minute or two.
    """

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, per_second: int, linger_ms: int = 100
    ) -> None:
        self.count = 0
        self._topic, self._partitions, self._per_second = topic, partitions, per_second
        self._over = threading.Event()
        self._failures: list[str] = []
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": linger_ms,
                "topic.metadata.refresh.interval.ms": 1000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._write, name="steady-writer", daemon=True)

    def __enter__(self) -> SteadyWriter:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join(WAIT_S)

    def stop(self) -> int:
        """How many were written, all of them acknowledged."""
        assert self._thread.is_alive(), "the writer has ended by itself"
        self._over.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the writer does not stop"
        assert self._producer.flush(WAIT_S) == 0, "the brokers do not take the last records"
        assert not self._failures, self._failures[:3]
        return self.count

    def _write(self) -> None:
        started = time.monotonic()
        while not self._over.wait(0.02):
            due = int((time.monotonic() - started) * self._per_second)
            while self.count < due and not self._over.is_set():
                try:
                    self._producer.produce(
                        self._topic,
                        b"%d" % self.count,
                        partition=self.count % self._partitions,
                        on_delivery=self._delivered,
                    )
                except BufferError:
                    break  # a broker is away: go on later
                self.count += 1
            self._producer.poll(0)

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failures.append(str(error))


def write_values(bootstrap: str, topic: str, values: Iterable[object], partition: int = 0) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
    for value in values:
        producer.produce(topic, str(value).encode(), partition=partition)
    assert producer.flush(WAIT_S) == 0


# --- asking and changing the cluster -------------------------------------------------------------


def ends(cluster: Any, topic: str, partitions: int) -> dict[int, int]:
    """The end of each partition, as a read_uncommitted reader sees it."""
    wanted = {TopicPartition(topic, number): LATEST for number in range(partitions)}
    with open_cluster(cluster) as client:
        return {tp.partition: row.offset for tp, row in OffsetLookup(client).list(wanted).items()}


def administer(
    bootstrap: str, ask: Callable[[confluent_kafka.admin.AdminClient], Mapping[Any, Any]]
) -> None:
    """Waits for what `ask` asks for. (A client that is let go of cancels its requests.)"""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    for future in ask(admin).values():
        future.result(WAIT_S)


# --- queries -------------------------------------------------------------------------------------


@dataclass
class Job:
    """A stream of numbers from a topic into parquet files, or into other topics if there are
    `sink_options`. Crosses to a process as JSON.

    `columns` are what is written; `fault_rate` is the share of tasks that `faults` makes fail. With
    `database`, psycopg's connection string, it is a stream of changes into `table` there.
    """

    bootstrap: str
    folder: str
    options: dict[str, str]
    trigger: dict[str, Any] = field(default_factory=dict)
    sink_options: dict[str, str] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    fault_rate: float = 0.0
    master: str = "local[2]"
    database: str = ""
    table: str = ""

    @property
    def checkpoint(self) -> Path:
        return Path(self.folder) / "checkpoint"

    @property
    def sink(self) -> Path:
        return Path(self.folder) / "sink"

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> Job:
        return cls(**json.loads(text))

    def start(self, spark: SparkSession, **trigger: Any) -> StreamingQuery:
        """The query; `trigger` instead of that of the job."""
        given = trigger or self.trigger
        read = _whole_stream if self.database else stream_of
        frame = read(spark, self.bootstrap, self.options)
        if self.columns:
            frame = frame.selectExpr(*self.columns)
        if self.fault_rate:
            frame = frame.mapInArrow(failing(self.folder, self.fault_rate), frame.schema)
        if self.database:
            writer = frame.writeStream.foreachBatch(self._apply)
        elif self.sink_options:
            writer = (
                frame.writeStream.format("pykafka")
                .option("kafka.bootstrap.servers", self.bootstrap)
                .options(**self.sink_options)
            )
        else:
            writer = frame.writeStream.format("parquet").option("path", str(self.sink))
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return (writer.trigger(**given) if given else writer).start()

    def _apply(self, batch: DataFrame, _batch_id: int) -> None:
        import psycopg

        from sparkkafka import cdc

        cdc.apply(batch, self.table, connect=partial(psycopg.connect, self.database))

    def run_to_end(self, spark: SparkSession, seconds: float = 2 * WAIT_S) -> None:
        """AvailableNow. Raises what the query fails with."""
        await_end(self.start(spark, availableNow=True), seconds)

    def values(self, spark: SparkSession) -> list[int]:
        """The numbers that are in the sink by its own log: files of killed attempts lie beside."""
        frame = spark.read.schema("value string").parquet(str(self.sink))
        return [int(row.value) for row in frame.collect()]

    def batches(self) -> tuple[int, int]:
        """How many micro-batches were planned, and how many are finished."""
        return _logged(self.checkpoint / "offsets"), _logged(self.checkpoint / "commits")

    def last_finished(self) -> int:
        """The number of the last micro-batch that is finished; -1 before the first one."""
        folder = self.checkpoint / "commits"
        names = [path.name for path in folder.glob("*")] if folder.is_dir() else []
        return max((int(name) for name in names if name.isdigit()), default=-1)


def _logged(folder: Path) -> int:
    return sum(1 for path in folder.glob("*") if path.name.isdigit()) if folder.is_dir() else 0


def stream_of(spark: SparkSession, bootstrap: str, options: Mapping[str, str]) -> DataFrame:
    """value as text, partition and offset."""
    return _whole_stream(spark, bootstrap, options).selectExpr(
        "cast(value as string) as value", "topic", "partition", "offset"
    )


def _whole_stream(spark: SparkSession, bootstrap: str, options: Mapping[str, str]) -> DataFrame:
    given = {"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest", **options}
    return spark.readStream.format("pykafka").options(**given).load()


class Rows:
    """What queries with one checkpoint gave: rows (value, topic, partition, offset) by batch.

    A batch that is run again takes the place of its first run, so this is exactly-once.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.by_batch: dict[int, list[Any]] = {}

    def start(
        self, spark: SparkSession, bootstrap: str, *, trigger: Mapping[str, Any], **options: str
    ) -> StreamingQuery:
        def keep(frame: DataFrame, batch: int) -> None:
            self.by_batch[batch] = frame.collect()

        given = {name.replace("__", "."): value for name, value in options.items()}
        return (
            stream_of(spark, bootstrap, given)
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**trigger)
            .start()
        )

    def run_to_end(self, spark: SparkSession, bootstrap: str, **options: str) -> None:
        """AvailableNow. Raises what the query fails with."""
        await_end(self.start(spark, bootstrap, trigger={"availableNow": True}, **options))

    @contextmanager
    def running(
        self, spark: SparkSession, bootstrap: str, **options: str
    ) -> Iterator[StreamingQuery]:
        """A query that asks for more every 0.2 s."""
        trigger = {"processingTime": "200 milliseconds"}
        query = self.start(spark, bootstrap, trigger=trigger, **options)
        try:
            yield query
        finally:
            query.stop()

    @property
    def all(self) -> list[Any]:
        """In the order of batches."""
        return [row for batch in sorted(self.by_batch) for row in self.by_batch[batch]]

    @property
    def values(self) -> list[str]:
        return [row.value for row in self.all]

    def wait_for(self, count: int, query: StreamingQuery) -> None:
        """Until there are so many rows. Raises what the query fails with."""

        def enough() -> bool:
            _raise_failure(query)
            return len(self.values) >= count

        wait_until(enough, f"{count} rows, there are {self.values[:20]}")

    def offsets(self) -> dict[str, dict[str, int]]:
        """Where the last batch that was planned ends."""
        files = [path for path in (self.checkpoint / "offsets").iterdir() if path.name.isdigit()]
        last = max(files, key=lambda path: int(path.name))
        tree: dict[str, dict[str, int]] = json.loads(last.read_text().splitlines()[-1])
        return tree


def await_end(query: StreamingQuery, seconds: float = 2 * WAIT_S) -> None:
    try:
        assert query.awaitTermination(int(seconds)), f"the query does not end in {seconds:g} s"
    finally:
        query.stop()


def failure_of(query: StreamingQuery, seconds: float = WAIT_S) -> str:
    """The words that a query fails with, which it must do within `seconds`."""
    wait_until(lambda: not query.isActive, "the query goes on, failure is", seconds)
    error = query.exception()
    assert error is not None, "the query ended without an error"
    return str(error)


def _raise_failure(query: StreamingQuery) -> None:
    error = query.exception()
    if error is not None:
        raise error


def position(query: StreamingQuery) -> int:
    """The sum of the offsets that the query has read up to; 0 before its first batch."""
    _raise_failure(query)
    progress = query.lastProgress
    if progress is None:
        return 0
    end = progress.sources[0].endOffset
    tree = json.loads(end) if isinstance(end, str) else end or {}
    return sum(offset for partitions in tree.values() for offset in partitions.values())
