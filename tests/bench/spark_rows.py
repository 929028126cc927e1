"""Measures reads and writes of both formats in one Spark session, in turns."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparkkafka.client import Admin, NewTopic, Producer
from tests.bench import checks, data, floor
from tests.bench.cases import (
    ALL_COLUMNS,
    AT_LEAST_ONCE,
    FIRST_GROUPS,
    FIRST_ROWS,
    JVM,
    MAX_RIVAL_PARTITIONS,
    ONE_ROW_TARGET_S,
    PARTITIONS,
    PYKAFKA,
    SUM,
    TINY_TOPICS,
    Growth,
    Read,
    Stream,
    Write,
)
from tests.bench.checks import WrongResultError
from tests.bench.data import Contents, Topic
from tests.bench.first_rows import in_new_session
from tests.bench.floor import FLOOR_FORMAT, floor_options
from tests.bench.results import WRITTEN, Row
from tests.bench.stream_rows import micro_batches
from tests.bench.worker_memory import WorkerMemory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OURS, THEIRS = PYKAFKA, "kafka"
FORMATS = (OURS, THEIRS)
_RIVALS = {
    JVM: THEIRS,
    floor.FLOOR: FLOOR_FORMAT,
    ALL_COLUMNS: ALL_COLUMNS,
    AT_LEAST_ONCE: AT_LEAST_ONCE,
}
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

SESSION = {
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
}
"""Settings of the session, for both sides."""

_WARM_UP_ROUNDS = 2
_TIMEOUT_S = 300.0
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


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
                    self._sums({name: self._load(name, topic)}, topic.name, contents)
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
            # Both must give what was written.
            frames = {PYKAFKA: self._load(OURS, topic), JVM: self._load(THEIRS, topic)}
            whole = self._sums(frames, topic.name, contents)
            for case in cases:
                row = self._read(case, contents)
                row.checks = row.checks or whole
                yield row

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
                found = load(name).selectExpr(SUM).first()
                _expect(found and found[0], contents.value_bytes, f"{name}: {case.name}")
            else:
                self._noop(load(name))

        with self._filter_pushdown(case):
            row = Row(case.group, case.name, "rows/s", case.rival, target=case.target)
            given = {"select": case.select, "where": case.where, "schema": case.schema}
            given = {name: text for name, text in given.items() if text not in ("", "*")}
            row.settings = {PYKAFKA: {**part, **case.options, **given}, case.rival: {**part}}
            if case.where:
                row.settings[case.rival]["where"] = case.where
            if part or case.found is not None:
                row.checks = self._sums({PYKAFKA: load(OURS), case.rival: load(THEIRS)}, case.name)
                wanted = rows if case.found is None else case.found
                _expect(row.checks[PYKAFKA][0], wanted, f"rows of {case.name}")
            elif case.schema:
                row.checks = self._sums({PYKAFKA: load(OURS)}, case.name, contents)
            return self._in_turns(row, case.pairs, run, work=rows)

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
        row.settings = {case.rival: options}
        return self._in_turns(row, case.pairs, run, work=rows)

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
            frames = {PYKAFKA: self._load(OURS, topic), JVM: self._load(THEIRS, topic)}
            row.checks = self._sums(frames, row.name)
            return self._in_turns(row, pairs, run)

    def first(self, verb: str, pairs: int, rival: str) -> Row:
        """The first read or write of one row in a session, which a process of its own starts."""
        topic = Topic(100, 1, partitions=1)
        row = Row(FIRST_GROUPS[rival], FIRST_ROWS[verb], "s", rival)
        if rival == JVM:
            row.target, row.target_kind = ONE_ROW_TARGET_S, "difference"
        formats = (OURS, _RIVALS[rival])
        with self._filled(topic) as contents, self._write_topics("first", formats) as topics:
            for _ in range(pairs):
                for name, side in zip(formats, (PYKAFKA, rival), strict=True):
                    target = topic.name if verb == "read" else topics[name]
                    starts = checks.ends(self._servers, topics[name], PARTITIONS)
                    taken_s, found = in_new_session(name, verb, self._servers, target)
                    (row.ours_s if name == OURS else row.theirs_s).append(taken_s)
                    if name == FLOOR_FORMAT:
                        continue
                    if verb == "read":
                        row.checks[WRITTEN] = [contents.rows, contents.hashes]
                        row.checks[side] = found
                        continue
                    row.checks[WRITTEN] = found
                    back = checks.read_back(self._servers, target, starts)
                    row.checks |= {f"{program}, of {side}": n for program, n in back.items()}
            checks.compare(row.checks, row.name)
        return row

    def tiny_topics(self, count: int, *, rival: bool) -> Row:
        """One batch read of many topics of one row."""
        row = Row(TINY_TOPICS, f"{count:,} topics of one row", "s", JVM if rival else "")
        names = [f"bench-tiny-{count}-{number}" for number in range(count)]
        pattern = {"subscribePattern": f"bench-tiny-{count}-.*"}
        row.settings = {side: pattern for side in (PYKAFKA, row.rival) if side}
        row.checks[WRITTEN] = checks.sums(name.encode() for name in names)
        with Admin({"bootstrap.servers": self._servers}) as admin:
            admin.create_topics([NewTopic(name, partitions=1) for name in names]).all()
            with Producer({"bootstrap.servers": self._servers}) as producer:
                for name in names:
                    producer.send(name, name.encode())

            def run(name: str) -> None:
                reader = self._spark.read.format(name).options(**pattern)
                frame = reader.option("kafka.bootstrap.servers", self._servers).load()
                side = PYKAFKA if name == OURS else JVM
                row.checks |= self._sums({side: frame}, row.name)

            run(OURS)
            self._in_turns(row, 1, run)
            admin.delete_topics(names).all()
        checks.compare(row.checks, row.name)
        return row

    def growth(self, case: Growth) -> Row:
        """One micro-batch of a whole topic (`availableNow`, to `noop`). A batch read would start a
        task for each partition, a micro-batch puts small ranges together."""
        topic = case.topic
        with self._filled(topic) as contents, tempfile.TemporaryDirectory() as folder:
            row = Row(case.group, case.name, "rows/s", JVM if case.has_rival else "")
            stream = {"startingOffsets": "earliest", "trigger": "availableNow"}
            row.settings = {name: stream for name in (PYKAFKA, row.rival) if name}
            row.settings["topic"] = {
                "partitions": str(topic.partitions),
                "bytes of a value": str(topic.values),
                "rows": str(topic.rows),
                "tasks": str(case.tasks),
            }
            self.memory.renew_workers()
            runs = 0

            def run(name: str) -> None:
                nonlocal runs
                runs += 1
                self._micro_batch(name, topic, Path(folder, str(runs)))

            if case.pairs > 1:
                for name in FORMATS[: 1 + case.has_rival]:
                    run(name)
            self._in_turns(row, case.pairs, run, work=contents.rows)
            if topic.partitions <= MAX_RIVAL_PARTITIONS:
                frames = {PYKAFKA: self._load(OURS, topic), JVM: self._load(THEIRS, topic)}
                row.checks = self._sums(frames, row.name, contents)
            else:  # confluent-kafka reads the topic faster than Spark starts so many tasks
                starts = dict.fromkeys(range(topic.partitions), 0)
                found = checks.read_back(self._servers, topic.name, starts)
                row.checks = {WRITTEN: [contents.rows, contents.hashes], **found}
                checks.compare(row.checks, row.name)
            return row

    def _micro_batch(self, name: str, topic: Topic, checkpoint: Path) -> None:
        rows = (
            self._spark.readStream.format(name)
            .option("kafka.bootstrap.servers", self._servers)
            .option("subscribe", topic.name)
            .option("startingOffsets", "earliest")
            .load()
        )
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination(_TIMEOUT_S)
        finally:
            query.stop()
        found = sum(progress.numInputRows for progress in query.recentProgress)
        _expect(found, topic.rows, f"{name}: rows of the micro-batches of {topic.name}")

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

    def _sums(
        self, frames: Mapping[str, DataFrame], what: str, contents: Contents | None = None
    ) -> dict[str, list[int | None]]:
        """What each side finds, which must be equal, and `contents` if given."""
        found: dict[str, list[int | None]] = {}
        if contents is not None:
            found[WRITTEN] = [contents.rows, contents.hashes]
        for side, frame in frames.items():
            first = frame.selectExpr(*checks.SPARK_SUMS).first()
            found[side] = list(first) if first else []
        checks.compare(found, what)
        return found

    # --- writes ---------------------------------------------------------------------------------

    def write(self, case: Write, number: int) -> Row:
        row = Row(case.group, case.name, "rows/s", case.rival, target=case.target)
        row.settings = {PYKAFKA: {**case.settings, **case.options}, case.rival: {**case.settings}}
        formats = (OURS, _RIVALS[case.rival])
        with self._cached(case) as frame, self._write_topics(str(number), formats) as topics:
            self.memory.renew_workers()
            numbers = itertools.count(len(formats))

            def renew(name: str) -> None:
                """A new topic for each run: the memory of the last one's records is free for it.
                Memory that a virtual machine has not used before takes several times as long."""
                data.remove_topic(self._servers, topics[name])
                topics[name] = f"bench-write-{number}-{next(numbers)}"
                with data.open_cluster(self._servers) as cluster:
                    data.make_topic(cluster, topics[name], PARTITIONS)

            def run(name: str) -> None:
                options = case.options if name == OURS else {}
                self._write(name, frame, topics[name], {**case.settings, **options})

            for name in formats:
                run(name)
            self._in_turns(row, case.pairs, run, work=case.rows, prepare=renew)
            row.checks = self._sums({WRITTEN: frame}, case.name)
            for name in formats:  # the last run of each
                if name == FLOOR_FORMAT:
                    continue
                starts = dict.fromkeys(range(PARTITIONS), 0)
                back = checks.read_back(self._servers, topics[name], starts)
                side = PYKAFKA if name == OURS else case.rival
                row.checks |= {f"{program}, of {side}": found for program, found in back.items()}
            checks.compare(row.checks, case.name)
        return row

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

    def schemas(
        self, wanted: Callable[[str], bool], *, quick: bool
    ) -> Iterator[tuple[str, Callable[[], Iterator[Row]]]]:
        """What measures rows of orders and of the eight shapes whose "group: name" is wanted."""
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
            yield from bench.work(wanted)

    # --- both -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _filled(self, topic: Topic) -> Iterator[Contents]:
        contents = data.write_topic(self._servers, topic)
        try:
            yield contents
        finally:
            data.remove_topic(self._servers, topic.name)

    def _in_turns(
        self,
        row: Row,
        pairs: int,
        run: Callable[[str], None],
        *,
        work: int | None = None,
        prepare: Callable[[str], None] = lambda name: None,
    ) -> Row:
        """Ours, theirs, ours, theirs, …, `work` rows each. Without a rival only ours. `prepare`
        is called before each run and is not part of it."""
        self.memory.reset()
        row.work = [work, work] if work else []
        for _ in range(self._pairs_of(pairs)):
            prepare(OURS)
            with self.memory.watch():
                row.ours_s.append(_seconds(run, OURS))
            if row.rival:
                prepare(_RIVALS[row.rival])
                row.theirs_s.append(_seconds(run, _RIVALS[row.rival]))
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
def open_spark(folder: Path, connector: Sequence[Path], master: str) -> Iterator[SparkSession]:
    """A session with both connectors. What Spark keeps on disk goes into `folder`."""
    # Before pyspark starts its JVM: workers must run this interpreter, which has the package.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Spark says so of a pandas that it does not use here, in each worker.
    os.environ["PYTHONWARNINGS"] = "ignore:PySpark does not yet fully support pandas:FutureWarning"
    # An installed package is compiled; a checkout may be forbidden to keep what it compiles, and
    # Spark starts a process for the commit of each micro-batch. A session that another one's rows
    # start (first_rows.py) finds what that one has compiled.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(folder / "compiled"))
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
        .config(map=SESSION)
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
