"""Measures micro-batches: what Spark says of each (`recentProgress`), both formats in turns.

At the live end of a topic, rows come while the query waits, and the next batch begins as soon as
one is over. Otherwise Trigger.AvailableNow with a cap works through a topic that was filled before,
so batches follow each other without a pause and all have the same size. What Spark itself does for
every batch (a plan, and two files of the checkpoint) counts for both.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sparkkafka.client import Producer
from tests.bench import checks, data
from tests.bench.cases import AT_LEAST_ONCE, IN_TRANSACTIONS, PYKAFKA, Stream
from tests.bench.results import WRITTEN, Row
from tests.bench.worker_memory import WorkerMemory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: How many batches Spark remembers (100 unless told).
_REMEMBERED = "spark.sql.streaming.numRecentProgressUpdates"
_TIMEOUT_S = 300
_ONE_REQUEST = {"linger.ms": 60_000, "batch.size": 4 << 20, "max.request.size": 8 << 20}


class UnfinishedStreamError(AssertionError):
    """A query did not read its topic in the batches that it was to take."""


def micro_batches(
    spark: SparkSession,
    bootstrap_servers: str,
    case: Stream,
    pairs: int,
    memory: WorkerMemory,
    formats: tuple[str, str],
) -> Iterator[Row]:
    """The rows of a case, "p50" and "p95": a pair of figures for each pair of queries."""
    median, high = (Row(case.group, name, "ms", case.rival) for name in case.names)
    if case.target is not None:
        median.target, median.target_kind = case.target, "difference"
    if case.live:
        with data.open_cluster(bootstrap_servers) as cluster:
            data.make_topic(cluster, case.topic.name, case.partitions)
    else:
        contents = data.write_topic(bootstrap_servers, case.topic)
        if case.to_kafka:
            median.checks[WRITTEN] = [contents.rows, contents.hashes]
            high.checks = median.checks
    try:
        memory.renew_workers()
        memory.reset()
        with (
            _remembering(spark, case.first_batches + case.batches),
            tempfile.TemporaryDirectory(prefix="sparkkafka-bench-") as folder,
        ):
            for number in range(pairs):
                for name in formats:
                    ours = name == formats[0]
                    with memory.watch() if ours else contextlib.nullcontext():
                        durations_ms, settings, found = _run(
                            *(spark, bootstrap_servers, case, name),
                            Path(folder, f"{number}-{name}"),
                        )
                    for row, share in ((median, 0.5), (high, 0.95)):
                        seconds = row.ours_s if ours else row.theirs_s
                        seconds.append(quantile(durations_ms, share) / 1e3)
                        side = PYKAFKA if ours else case.rival
                        row.settings[side], row.checks = settings, row.checks | found
    finally:
        data.remove_topic(bootstrap_servers, case.topic.name)
    checks.compare(median.checks, median.name)
    median.worker_rss_mb = high.worker_rss_mb = memory.beyond_idle_mb
    yield median
    yield high


def _run(
    spark: SparkSession, bootstrap_servers: str, case: Stream, name: str, checkpoint: Path
) -> tuple[list[float], dict[str, str], dict[str, list[int | None]]]:
    """One query; how long each of its batches took in ms, without the first ones; its options; and
    how many rows came (into a topic also what confluent-kafka reads back of it)."""
    side = PYKAFKA if name == PYKAFKA else case.rival
    rows_in_all = case.batch_rows * (case.first_batches + case.batches)
    more = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(case.batch_rows)}
    if case.live:
        more = {"startingOffsets": "latest"}
    rows = (
        spark.readStream.format(_format(name))
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", case.topic.name)
        .options(**more)
        .load()
    )
    if case.live:
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        durations_ms = _live_durations_ms(writer, bootstrap_servers, case, name)
        return durations_ms, more, {side: [rows_in_all, None]}
    with _sink(bootstrap_servers, case, name) as (sink, options):
        durations_ms = _durations_ms(
            (rows.select("value") if case.to_kafka else rows)
            .writeStream.format(sink)
            .options(**options)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True),
            case,
            name,
        )
        more |= {"trigger": "availableNow"}
        if not case.to_kafka:
            return durations_ms, more, {side: [rows_in_all, None]}
        starts = dict.fromkeys(range(case.partitions), 0)
        back = checks.read_back(bootstrap_servers, options["topic"], starts)
        more |= {name: text for name, text in options.items() if name in IN_TRANSACTIONS}
        return durations_ms, more, {f"{program}, of {side}": n for program, n in back.items()}


def _durations_ms(writer: DataStreamWriter, case: Stream, name: str) -> list[float]:
    query = writer.start()
    try:
        ended = query.awaitTermination(_TIMEOUT_S)
    finally:
        query.stop()
    # The last trigger finds nothing to do.
    batches = [batch for batch in query.recentProgress if batch.numInputRows]
    rows = [batch.numInputRows for batch in batches]
    if not ended or rows != [case.batch_rows] * (case.first_batches + case.batches):
        raise UnfinishedStreamError(f"{name}: batches of {rows} rows in {case.name}")
    return [float(batch.durationMs["triggerExecution"]) for batch in batches[case.first_batches :]]


def _live_durations_ms(
    writer: DataStreamWriter, bootstrap_servers: str, case: Stream, name: str
) -> list[float]:
    """As `_durations_ms`, of the batches that have all rows of a turn and no others."""
    # All rows of a turn come in one request.
    settings = {"bootstrap.servers": bootstrap_servers, **_ONE_REQUEST}
    query = writer.start()
    try:
        query.processAllAvailable()
        with Producer(settings) as producer:
            for number in range(case.first_batches + case.batches):
                for row in range(case.batch_rows):
                    producer.send(case.topic.name, bytes(100), partition=row % case.partitions)
                producer.flush()
                _await_rows(query, (number + 1) * case.batch_rows)
        batches = [batch for batch in query.recentProgress if batch.numInputRows]
    finally:
        query.stop()
    whole = [batch for batch in batches if batch.numInputRows == case.batch_rows]
    counted = whole[case.first_batches :]
    if len(counted) < case.batches / 2:
        rows = [batch.numInputRows for batch in batches]
        raise UnfinishedStreamError(f"{name}: batches of {rows} rows in {case.name}")
    return [float(batch.durationMs["triggerExecution"]) for batch in counted]


def _await_rows(query: StreamingQuery, rows: int) -> None:
    end_s = time.monotonic() + _TIMEOUT_S
    seen = -1
    while True:
        last = query.lastProgress
        if last is not None and last.batchId != seen:
            seen = last.batchId
            if sum(batch.numInputRows for batch in query.recentProgress) >= rows:
                return
        if time.monotonic() > end_s or not query.isActive:
            raise UnfinishedStreamError(f"no {rows} rows: {query.status}, {query.exception()}")
        time.sleep(0.05)


@contextlib.contextmanager
def _sink(
    bootstrap_servers: str, case: Stream, name: str
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Format and options; a topic that it needs exists meanwhile."""
    if not case.to_kafka:
        yield "noop", {}
        return
    topic = f"{case.topic.name}-copy"
    with data.open_cluster(bootstrap_servers) as cluster:
        data.make_topic(cluster, topic, case.partitions)
    try:
        options = {"kafka.bootstrap.servers": bootstrap_servers, "topic": topic}
        whole = case.in_transactions and name == PYKAFKA
        yield _format(name), options | (IN_TRANSACTIONS if whole else {})
    finally:
        data.remove_topic(bootstrap_servers, topic)


def _format(name: str) -> str:
    return PYKAFKA if name == AT_LEAST_ONCE else name


def quantile(figures: list[float], share: float) -> float:
    """The smallest figure that at least that share of them does not exceed."""
    return sorted(figures)[max(0, math.ceil(share * len(figures)) - 1)]


@contextlib.contextmanager
def _remembering(spark: SparkSession, batches: int) -> Iterator[None]:
    spark.conf.set(_REMEMBERED, str(batches + 10))
    try:
        yield
    finally:
        spark.conf.unset(_REMEMBERED)
