"""Measures reads and writes of both formats in one Spark session, in turns."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench import data, floor
from tests.bench.cases import (
    ALL_COLUMNS,
    AT_LEAST_ONCE,
    JVM,
    ONE_ROW_TARGET_S,
    PARTITIONS,
    PYKAFKA,
    SUM,
    Read,
    Stream,
    Write,
)
from tests.bench.data import Contents, Topic
from tests.bench.floor import FLOOR_FORMAT, floor_options
from tests.bench.results import Row
from tests.bench.stream_rows import micro_batches
from tests.bench.worker_memory import WorkerMemory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OURS, THEIRS = PYKAFKA, "kafka"
LOCAL = "local[2]"
FORMATS = (OURS, THEIRS)
_RIVALS = {
    JVM: THEIRS,
    floor.FLOOR: FLOOR_FORMAT,
    ALL_COLUMNS: ALL_COLUMNS,
    AT_LEAST_ONCE: AT_LEAST_ONCE,
}
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

_WARM_UP_ROUNDS = 2
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


class WrongResultError(AssertionError):
    """A read or write that was measured did not do what it should have done."""


class SparkBench:
    """Rows of a session. `say` gets a line for each; `pairs_of` decides how many pairs of runs a
    row gets that wants so many."""

    def __init__(
        self,
        spark: SparkSession,
        bootstrap_servers: str,
        say: Callable[[str], None],
        pairs_of: Callable[[int], int] = lambda wanted: wanted,
    ) -> None:
        self._spark = spark
        self._servers = bootstrap_servers
        self._say = say
        self._pairs_of = pairs_of
        self.memory = WorkerMemory()

    def warm_up(self) -> None:
        """Java compiles what runs often, Python workers are forked, classes loaded."""
        floor.register(self._spark)
        topic = Topic(100, 200_000)
        with self._filled(topic) as contents:
            for _ in range(_WARM_UP_ROUNDS):
                for name in FORMATS:
                    self._noop(self._load(name, topic))
                    self._check(self._load(name, topic), topic.name, contents)
        with (
            self._cached(Write("warm-up", 100, 100_000, None)) as frame,
            self._write_topics("warm") as topics,
        ):
            for _ in range(_WARM_UP_ROUNDS):
                for name in FORMATS:
                    self._write(name, frame, topics[name], {})
        self.memory.measure_idle(self._spark)

    # --- reads ----------------------------------------------------------------------------------

    def reads(self, topic: Topic, cases: Sequence[Read]) -> Iterator[Row]:
        """The rows of one topic, which exists only meanwhile."""
        with self._filled(topic) as contents:
            self._renew_workers(topic)
            # Both must give what was written. What sums is checked in each run.
            if not any(case.sink == SUM for case in cases):
                for name in FORMATS:
                    self._check(self._load(name, topic), topic.name, contents)
            for case in cases:
                yield self._read(case, contents)

    def _renew_workers(self, topic: Topic) -> None:
        """New ones, that have read a little: the first run that counts is not to start Python."""
        self.memory.renew_workers()
        options, _ = _last_offsets(topic, 0.01)
        self._noop(self._load(OURS, topic, options))

    def _read(self, case: Read, contents: Contents) -> Row:
        if case.rival == floor.FLOOR:
            return self._floor_read(case, contents)
        part, rows = _part(case, contents.rows)

        def load(name: str) -> DataFrame:
            if name == OURS:
                frame = self._load(OURS, case.topic, {**part, **case.options}, case.schema)
            else:
                frame = self._load(OURS if name == ALL_COLUMNS else name, case.topic, part)
            frame = frame.selectExpr(case.select)
            return frame.where(case.where) if case.where else frame

        def run(name: str) -> None:
            if case.sink == SUM:
                self._check(load(name), f"{name}: {case.name}", contents)
            else:
                self._noop(load(name))

        with self._filter_pushdown(case):
            if part or case.found is not None:
                for name in FORMATS:
                    wanted = rows if case.found is None else case.found
                    _expect(load(name).count(), wanted, f"{name}: rows of {case.name}")
            if case.schema:
                self._check(load(OURS), f"{OURS}: {case.name}", contents)
            row = Row(case.group, case.name, "rows/s", case.rival, target=case.target)
            return self._in_turns(row, case.pairs, run, per_second=rows)

    @contextlib.contextmanager
    def _filter_pushdown(self, case: Read) -> Iterator[None]:
        if not case.pushes_filters:
            yield
            return
        self._spark.conf.set(_PUSHDOWN, "true")
        try:
            yield
        finally:
            self._spark.conf.unset(_PUSHDOWN)

    def _floor_read(self, case: Read, contents: Contents) -> Row:
        topic, rows = case.topic, contents.rows
        options = floor_options(contents.value_bytes // rows, rows, topic.partitions)
        prebuilt = self._spark.read.format(FLOOR_FORMAT).options(**options).load()
        _expect(prebuilt.count(), rows, f"prebuilt rows of {case.name}")

        def run(name: str) -> None:
            self._noop(self._load(name, topic) if name == OURS else prebuilt)

        row = Row(case.group, case.name, "rows/s", case.rival, target=case.target)
        return self._in_turns(row, case.pairs, run, per_second=rows)

    def one_row(self, pairs: int) -> Row:
        """What a read costs that reads nothing to speak of."""
        topic = Topic(100, 1, partitions=1)
        row = Row(
            *("latency", "one row of one partition, collect()", "s", JVM),
            target=ONE_ROW_TARGET_S,
            target_kind="difference",
        )
        with self._filled(topic):

            def run(name: str) -> None:
                _expect(len(self._load(name, topic).collect()), 1, f"{name}: rows of {row.name}")

            for name in FORMATS:
                run(name)
            return self._in_turns(row, pairs, run)

    def _load(
        self,
        name: str,
        topic: Topic,
        options: Mapping[str, str] | None = None,
        schema: str = "",
    ) -> DataFrame:
        reader = (
            self._spark.read.format(name)
            .option("kafka.bootstrap.servers", self._servers)
            .option("subscribe", topic.name)
            .options(**(options or {}))
        )
        return (reader.schema(schema) if schema else reader).load()

    def _noop(self, frame: DataFrame) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def _check(self, frame: DataFrame, what: str, contents: Contents) -> None:
        # Counting costs nothing to speak of beside the sum.
        first = frame.selectExpr("count(*)", SUM).first()
        found = None if first is None else Contents(*first)
        _expect(found, contents, what)

    # --- writes ---------------------------------------------------------------------------------

    def write(self, case: Write, number: int) -> Row:
        row = Row(case.group, case.name, "rows/s", case.rival, target=case.target)
        formats = (OURS, _RIVALS[case.rival])
        with self._cached(case) as frame, self._write_topics(str(number), formats) as topics:
            self.memory.renew_workers()
            runs = dict.fromkeys(formats, 0)

            def run(name: str) -> None:
                options = case.options if name == OURS else {}
                self._write(name, frame, topics[name], {**case.settings, **options})
                runs[name] += 1

            for name in formats:
                run(name)
            self._in_turns(row, case.pairs, run, per_second=case.rows)
            for name in set(formats) - {FLOOR_FORMAT}:
                found = self._rows_in(topics[name], committed=case.is_transactional)
                _expect(found, runs[name] * case.rows, f"{name}: rows written by {case.name}")
        return row

    def _rows_in(self, topic: str, *, committed: bool) -> int:
        if not committed:
            return data.records_in(self._servers, topic, PARTITIONS)
        # Offsets count the ends of transactions as well.
        rows = (
            self._spark.read.format(OURS)
            .option("kafka.bootstrap.servers", self._servers)
            .option("subscribe", topic)
            .option("kafka.isolation.level", "read_committed")
            .load()
        )
        return rows.count()

    def _write(self, name: str, frame: DataFrame, topic: str, settings: Mapping[str, str]) -> None:
        (
            frame.write.format(OURS if name == AT_LEAST_ONCE else name)
            .option("kafka.bootstrap.servers", self._servers)
            .option("topic", topic)
            .options(**settings)
            .mode("append")
            .save()
        )

    @contextlib.contextmanager
    def _cached(self, case: Write) -> Iterator[DataFrame]:
        """Rows in memory, so that both write what nobody needs to make."""
        # Hashes as hex, and 8 equal bytes after each 16: texts that differ, as texts do.
        parts = -(-case.value_bytes // 24)
        text = ", ".join(f"hex(xxhash64(id, {seed})), 'username'" for seed in range(parts))
        columns = [
            f"substring(rpad(concat({text}), {case.value_bytes}, 'x'), 1, "
            f"{case.value_bytes}) as value"
        ]
        if case.with_keys:
            columns.insert(0, "lpad(hex(id), 8, '0') as key")
        frame = self._spark.range(0, case.rows, 1, PARTITIONS).selectExpr(*columns).persist()
        try:
            _expect(frame.count(), case.rows, f"rows to write for {case.name}")
            yield frame
        finally:
            frame.unpersist(blocking=True)

    @contextlib.contextmanager
    def _write_topics(
        self, label: str, formats: Sequence[str] = FORMATS
    ) -> Iterator[dict[str, str]]:
        topics = {name: f"bench-write-{label}-{n}" for n, name in enumerate(formats)}
        with data.open_cluster(self._servers) as cluster:
            for topic in topics.values():
                data.make_topic(cluster, topic, PARTITIONS)
        try:
            yield topics
        finally:
            for topic in topics.values():
                data.remove_topic(self._servers, topic)

    # --- streams --------------------------------------------------------------------------------

    def stream(self, case: Stream) -> Iterator[Row]:
        pairs = self._pairs_of(case.pairs)
        formats = (OURS, _RIVALS[case.rival])
        return micro_batches(self._spark, self._servers, case, pairs, self.memory, formats)

    # --- columns with a schema ------------------------------------------------------------------

    def schemas(self, names: Sequence[str], *, quick: bool) -> Iterator[Row]:
        """Those rows of the group `SCHEMAS`."""
        from sparkkafka.testing.registry import SchemaRegistry
        from tests.bench.schema_rows import SchemaBench

        with SchemaRegistry() as registry:
            bench = SchemaBench(
                self._spark,
                self._servers,
                registry,
                self.memory,
                self._say,
                self._pairs_of,
                quick=quick,
            )
            yield from bench.rows(names)

    # --- both -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _filled(self, topic: Topic) -> Iterator[Contents]:
        contents = data.write_topic(self._servers, topic)
        try:
            yield contents
        finally:
            data.remove_topic(self._servers, topic.name)

    def _in_turns(
        self, row: Row, pairs: int, run: Callable[[str], None], *, per_second: int | None = None
    ) -> Row:
        """Ours, theirs, ours, theirs, … Figures are seconds, or `per_second` rows by seconds."""
        self.memory.reset()
        for _ in range(self._pairs_of(pairs)):
            with self.memory.watch():
                ours_s = _seconds(run, OURS)
            theirs_s = _seconds(run, _RIVALS[row.rival])
            row.ours.append(per_second / ours_s if per_second else ours_s)
            row.theirs.append(per_second / theirs_s if per_second else theirs_s)
        row.worker_rss_mb = self.memory.beyond_idle_mb
        return row


def _seconds(run: Callable[[str], None], name: str) -> float:
    started = time.monotonic()
    run(name)
    return time.monotonic() - started


def _part(case: Read, rows: int) -> tuple[dict[str, str], int]:
    """The offset options of a case that reads a part of its topic, and how many rows those are."""
    if case.last_share is not None:
        return _last_offsets(case.topic, case.last_share)
    if case.first_share is not None:
        wanted = int(case.topic.rows // case.topic.partitions * case.first_share)
        return {"endingOffsets": _offsets(case.topic, wanted)}, wanted * case.topic.partitions
    return {}, rows


def _last_offsets(topic: Topic, share: float) -> tuple[dict[str, str], int]:
    held = topic.rows // topic.partitions
    wanted = int(held * share)
    return {"startingOffsets": _offsets(topic, held - wanted)}, wanted * topic.partitions


def _offsets(topic: Topic, offset: int) -> str:
    """JSON for the options: that offset in each partition."""
    return json.dumps({topic.name: dict.fromkeys(map(str, range(topic.partitions)), offset)})


def _expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise WrongResultError(f"{what}: {found} instead of {wanted}")


@contextlib.contextmanager
def open_spark(
    folder: Path, connector: Sequence[Path], master: str = LOCAL
) -> Iterator[SparkSession]:
    """A session with both connectors. What Spark keeps on disk goes into `folder`."""
    # Before pyspark starts its JVM: workers must run this interpreter, which has the package.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Spark says so of a pandas that it does not use here, in each worker.
    os.environ["PYTHONWARNINGS"] = "ignore:PySpark does not yet fully support pandas:FutureWarning"
    # An installed package is compiled; a checkout may be forbidden to keep what it compiles, and
    # Spark starts a process for the commit of each micro-batch.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
    from pyspark.sql import SparkSession

    (folder / "tmp").mkdir()
    (folder / "log4j2.properties").write_text(_LOGGING)
    java_options = (
        f"-Djava.io.tmpdir={folder / 'tmp'}",
        f"-Dlog4j2.configurationFile=file:{folder / 'log4j2.properties'}",
    )
    spark = (
        SparkSession.builder.master(master)
        .appName("sparkkafka-bench")
        .config("spark.jars", ",".join(map(str, connector)))
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.driver.extraJavaOptions", " ".join(java_options))
        .getOrCreate()
    )
    # pyspark's own handler cancels jobs over the very connection that was interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield spark
    finally:
        spark.stop()
