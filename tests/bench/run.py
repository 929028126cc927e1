"""Measures a part of the benchmarks: `python tests/bench/run.py PART [--quick] [--only TEXT …]`.

Parts are spark (the connectors), schemas (columns with a schema in Spark), decoders (no Kafka
and no Spark), growth, and client (no Spark). A part starts one broker and one Spark session; both,
and all data, are gone afterwards. `--write` writes the part's bundle,
docs/benchmarks/PART.json, and makes docs/benchmarks.md, its pictures and the tables of README.md
and docs/index.md of all bundles. Returns 1 if a row failed (not if it missed its target), and names
it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a script has only its own folder

from sparkkafka.errors import KafkaError
from sparkkafka.testing.kafka.broker import raise_on_sigterm
from sparkkafka.testing.kafka.cluster import KafkaCluster
from sparkkafka.testing.kafka.jars import (
    AVRO_JARS,
    CONNECTOR_JARS,
    KAFKA_VERSION,
    REGISTRY_JARS,
    find_jars,
)
from sparkkafka.testing.kafka.java import export_java_home, find_java
from tests.bench import cases, report
from tests.bench.checks import WrongResultError
from tests.bench.report import PARTS, Bundle
from tests.bench.results import Row
from tests.bench.spark_rows import SESSION, SparkBench, open_spark

ROOT = Path(__file__).resolve().parents[2]
#: After so many seconds a row gets at most so many pairs: a slow machine ends in time too.
_PATIENCE = {
    "spark": ((8 * 60, 1), (6 * 60, 2)),
    "growth": ((3 * 60, 1),),
    "schemas": ((3 * 60, 1), (2 * 60, 2)),
    "quick": ((90, 1),),
}
_MASTERS = {"growth": "local[4]"}
_LOCAL = "local[2]"
_CLIENT_GROUPS = ("client", "client library", "command")
#: More than this before anything was started means that others work too.
_BUSY_LOAD = 1.0
#: Of the broker: a removed topic's files, which are gigabytes, go soon (after a minute in Kafka).
_SOON_GONE = {"log.segment.delete.delay.ms": 100}
#: Of the part "growth" too: 10,000 logs with small indexes.
_SMALL_FILES = {"log.index.size.max.bytes": 4096, "log.segment.bytes": 16 << 20}
#: Where all files are if there is room: a row that writes gigabytes must not wait for the disk,
#: which would flush one side's records during the other side's run.
_IN_MEMORY, _MIN_FREE_BYTES = Path("/dev/shm"), 12 << 30


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--quick", action="store_true", help="the rows of most interest")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="rows whose 'group: name' contains it, or one of them if given several times",
    )
    parser.add_argument("--write", action="store_true", help="the bundle, the page, README.md")
    parser.add_argument("--bundle", type=Path, help="write the bundle to this file only")
    options = parser.parse_args(arguments)
    if options.write and (options.quick or options.only):
        parser.error("--write is for whole parts: not with --quick or --only")
    raise_on_sigterm()
    if _has_room(_IN_MEMORY):
        tempfile.tempdir = str(_IN_MEMORY)
    folder = Path(tempfile.mkdtemp(prefix="sparkkafka-bench-"))
    try:
        return _run(options, folder)
    except KeyboardInterrupt:
        print("\ninterrupted: everything is stopped and removed", file=sys.stderr)
        return 130
    except KafkaError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _has_room(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= _MIN_FREE_BYTES


def _run(options: argparse.Namespace, folder: Path) -> int:
    sets = [find_jars(jars) for jars in (CONNECTOR_JARS, AVRO_JARS, REGISTRY_JARS)]
    connector, spark_avro, registry = sets
    if connector is None or spark_avro is None or registry is None:
        command = "python -m sparkkafka.testing.kafka.jars connector avro registry"
        print(f"first run: {command}", file=sys.stderr)
        return 1
    java = find_java()
    export_java_home(java)
    jars = [*connector, *spark_avro]
    part, quick = options.part, options.quick
    properties = _SOON_GONE | (_SMALL_FILES if part == "growth" else {})
    more = {
        "Kafka broker": KAFKA_VERSION,
        "JVM connector's jars": ", ".join(sorted(path.stem for path in jars)),
        "Java": report.java_version(java),
        "files": "in memory (tmpfs)" if folder.is_relative_to(_IN_MEMORY) else "on a disk",
    }
    if part != "decoders":
        texts = (f"{name}={text}" for name, text in properties.items())
        more["broker's properties"] = ", ".join(texts)
    if part not in ("client", "decoders"):
        master = _MASTERS.get(part, _LOCAL)
        more["Spark session"] = ", ".join(
            [f"spark.master={master}", *(f"{name}={text}" for name, text in SESSION.items())]
        )
    facts = report.about(f"tests/bench/run.py {part}", more)
    bench = Bench(part, quick, options.only)
    bench.say(f"{part}; load of the machine: {bench.load:.1f}")
    if part == "decoders":
        bench.decoders()
        return _finish(options, bench, Bundle(part, facts, bench.rows))
    with KafkaCluster(heap_mb=2048 if part == "growth" else 512, properties=properties) as cluster:
        bench.say("Kafka is up")
        if part == "client":
            bench.client(cluster.bootstrap_servers)
        else:
            with open_spark(folder, jars, master) as spark:
                bench.say("Spark is up")
                spark_bench = SparkBench(
                    spark, cluster.bootstrap_servers, bench.say, bench.pairs_of
                )
                # Without it no figure would mean anything, so it may raise.
                spark_bench.warm_up()
                bench.say("warmed up")
                work = {"spark": bench.spark, "schemas": bench.schemas, "growth": bench.growth}
                work[part](spark_bench)
                facts["worker memory"] = spark_bench.memory.words
    return _finish(options, bench, Bundle(part, facts, bench.rows))


def _finish(options: argparse.Namespace, bench: Bench, bundle: Bundle) -> int:
    bundle.about["seconds"] = f"{bench.seconds:.0f}"
    print(report.plain_table(bundle.rows))
    if bench.load > _BUSY_LOAD:
        print(
            f"The machine was busy when this started (load {bench.load:.1f} on {os.cpu_count()} "
            "cores): figures and ratios are not to be trusted."
        )
    for name, reason in bench.failures:
        print(f"FAILED: {name}: {reason}", file=sys.stderr)
    bench.say("done")
    if options.bundle is not None:
        options.bundle.write_text(bundle.to_json(), "utf-8")
    if bench.failures or not bench.rows:
        print("nothing is written: rows failed, or none was wanted", file=sys.stderr)
        return 1
    if options.write:
        report.BUNDLES.mkdir(exist_ok=True)
        (report.BUNDLES / f"{bundle.part}.json").write_text(bundle.to_json(), "utf-8")
        report.write_pages(ROOT)
        print(f"docs/benchmarks/{bundle.part}.json and the pages are written")
    return 0


class Bench:
    """Works through the cases of a part and collects rows and failures."""

    def __init__(self, part: str, quick: bool, only: Sequence[str]) -> None:
        self.rows: list[Row] = []
        self.failures: list[tuple[str, str]] = []
        self.load = os.getloadavg()[0]
        self._quick = quick
        self._only = only
        self._started_s = time.monotonic()
        self._patience = _PATIENCE.get("quick" if quick else part, ())

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started_s

    def say(self, text: str) -> None:
        print(f"[{self.seconds:4.0f} s] {text}", flush=True)

    def pairs_of(self, wanted: int) -> int:
        """How many pairs of runs a row gets that wants so many."""
        most = (pairs for after_s, pairs in self._patience if self.seconds >= after_s)
        return min(wanted, next(most, wanted))

    def spark(self, spark: SparkBench) -> None:
        """Reads of compressed topics and first rows of sessions come last: when time runs out, it
        is they that get a single pair of runs."""
        quick = self._quick
        if self.wants("latency: one row of one partition"):
            pairs = cases.one_row_pairs(quick=quick)
            self._collect("latency", lambda: iter([spark.one_row(pairs)]))
        for number, write in enumerate(cases.writes(quick=quick)):
            name = f"{write.group}: {write.name}"
            if self.wants(name):
                self._collect(
                    name,
                    lambda write=write, number=number: iter([spark.write(write, number)]),
                )
        reads = list(cases.reads(quick=quick))
        self._reads(spark, [case for case in reads if case.topic.codec == "none"])
        for stream in cases.streams(quick=quick):
            if any(self.wants(f"{stream.group}: {name}") for name in stream.names):
                self._collect(
                    f"{stream.group}: {stream.name}", lambda stream=stream: spark.stream(stream)
                )
        self._reads(spark, [case for case in reads if case.topic.codec != "none"])
        pairs = self.pairs_of(cases.first_row_pairs(quick=quick))
        for verb, name in cases.FIRST_ROWS.items():
            for rival, group in cases.FIRST_GROUPS.items():
                if self.wants(f"{group}: {name}") and not (quick and rival == cases.FLOOR):
                    self._collect(
                        name,
                        lambda verb=verb, rival=rival, n=pairs: iter([spark.first(verb, n, rival)]),
                    )
        order = {name: number for number, name in enumerate(cases.GROUPS)}
        self.rows.sort(key=lambda row: order[row.group])

    def _reads(self, spark: SparkBench, reads: Sequence[cases.Read]) -> None:
        wanted = [case for case in reads if self.wants(f"{case.group}: {case.name}")]
        for topic, group in itertools.groupby(wanted, key=lambda case: case.topic):
            chosen = list(group)
            names = "; ".join(f"{case.group}: {case.name}" for case in chosen)
            self._collect(names, lambda topic=topic, chosen=chosen: spark.reads(topic, chosen))

    def schemas(self, spark: SparkBench) -> None:
        for names, measure in spark.schemas(self.wants, quick=self._quick):
            self._collect(names, measure)

    def decoders(self) -> None:
        """Rows without Kafka and Spark."""
        from tests.bench.shape_rows import shape_rows

        self._collect(
            "decoders and encoders",
            lambda: shape_rows(self.wants, quick=self._quick, say=self.say),
            told=True,
        )

    def growth(self, spark: SparkBench) -> None:
        for case in cases.growth(quick=self._quick):
            name = f"{case.group}: {case.name}"
            if self.wants(name):
                self._collect(name, lambda case=case: iter([spark.growth(case)]))
        for count, rival in cases.TINY_TOPIC_COUNTS.items():
            if self.wants(f"{cases.TINY_TOPICS}: {count:,} topics"):
                self._collect(
                    f"{count:,} topics",
                    lambda n=count, rival=rival: iter([spark.tiny_topics(n, rival=rival)]),
                )

    def client(self, bootstrap_servers: str) -> None:
        """Rows without Spark, of modules of their own."""
        from tests.bench.client_rows import client_rows
        from tests.bench.command_rows import command_rows
        from tests.bench.library_rows import library_rows

        modules = (client_rows, library_rows, command_rows)
        for name, rows in zip(_CLIENT_GROUPS, modules, strict=True):
            if self.wants(name):
                self._collect(
                    name,
                    lambda rows=rows: iter(
                        rows(bootstrap_servers, quick=self._quick, say=self.say)
                    ),
                    told=True,
                )

    def wants(self, name: str) -> bool:
        return not self._only or any(text in name for text in self._only)

    def _collect(
        self, names: str, measure: Callable[[], Iterator[Row]], *, told: bool = False
    ) -> None:
        """Takes the rows over; what goes wrong is remembered, and the other rows go on. `told`:
        whether the rows are shown where they are measured. Rows that fail are measured once more,
        unless a result was wrong: a broker or a query may be late once in half an hour."""
        for last in (False, True):
            rows: list[Row] = []
            try:
                for row in measure():
                    rows.append(row)
                    if not told:
                        self.say(f"{row.group}: {_line(row)}")
            except Exception as error:
                traceback.print_exc()
                if not last and not isinstance(error, WrongResultError):
                    self.say(f"failed, once more: {names}")
                    continue
                lines = str(error).strip().splitlines()
                reason = f"{type(error).__name__}: {lines[0] if lines else ''}"
                self.failures.append((names, reason))
                self.say(f"FAILED: {names}")
            self.rows += rows
            return


def _line(row: Row) -> str:
    name, ours, theirs, ratio, _, verdict, memory = report.cells(row)
    return f"{name}: {ours} / {theirs} = {ratio} {verdict}, workers {memory}"


if __name__ == "__main__":
    sys.exit(main())
