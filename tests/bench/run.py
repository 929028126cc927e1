"""Measures sparkkafka beside its rivals: `python tests/bench/run.py [--quick] [--only TEXT …]`.

Starts one broker and one Spark session; both, and all data, are gone afterwards. `--write` brings
docs/benchmarks.* and the README's table up to date; with `--only` it renews those rows alone, and
the pages say when and at which commit. Returns 1 if a row failed (not if it missed its target), and
names it.
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
from tests.bench.report import Report
from tests.bench.results import Row
from tests.bench.spark_rows import LOCAL, SparkBench, open_spark

ROOT = Path(__file__).resolve().parents[2]
#: After so many seconds a row gets at most so many pairs: a slow machine ends in time too.
_PATIENCE = ((9 * 60, 1), (5 * 60, 2))
_QUICK_PATIENCE = ((90, 1),)
_CLIENT = "client"
_LIBRARY = "client library"
_COMMAND = "command"
#: More than this before anything was started means that others work too.
_BUSY_LOAD = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the rows of most interest")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="rows whose 'group: name' contains it, or one of them if given several times",
    )
    parser.add_argument("--write", action="store_true", help="docs/benchmarks.* and README.md")
    parser.add_argument(
        "--master", default=LOCAL, help='of Spark, e.g. "local-cluster[2,1,2048]"; %(default)s'
    )
    options = parser.parse_args(arguments)
    if options.write and (options.quick or options.master != LOCAL):
        parser.error("--write is for whole rows: not with --quick, nor with another --master")
    raise_on_sigterm()
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


def _run(options: argparse.Namespace, folder: Path) -> int:
    sets = [find_jars(jars) for jars in (CONNECTOR_JARS, AVRO_JARS, REGISTRY_JARS)]
    connector, spark_avro, registry = sets
    if connector is None or spark_avro is None or registry is None:
        command = "python -m sparkkafka.testing.kafka.jars connector avro registry"
        print(f"first run: {command}", file=sys.stderr)
        return 1
    java = find_java()
    export_java_home(java)
    command = "make bench" if options.write and not options.only else "python tests/bench/run.py"
    command += " --quick" * options.quick
    jars = [*connector, *spark_avro]
    facts = report.about(command, kafka=KAFKA_VERSION, connector=jars, java=java)
    bench = Bench(options.quick, options.only)
    if not bench.wants_anything:
        groups = "; ".join((*cases.GROUPS, _CLIENT, _LIBRARY, _COMMAND))
        wanted = " or ".join(map(repr, options.only))
        print(
            f"no row has {wanted} in its 'group: name'; groups are: {groups}",
            file=sys.stderr,
        )
        return 2
    bench.say(f"load of the machine: {bench.load:.1f}; warming up takes a minute")
    with KafkaCluster() as cluster:
        bench.say("Kafka is up")
        if bench.wants_spark:
            with open_spark(folder, jars, options.master) as spark:
                bench.say("Spark is up")
                spark_bench = SparkBench(
                    spark, cluster.bootstrap_servers, bench.say, bench.pairs_of
                )
                bench.run_spark(spark_bench)
                facts["worker memory"] = spark_bench.memory.words
        bench.run_client(cluster.bootstrap_servers)
    result = Report(facts, bench.rows)
    print(report.plain_table(result))
    if any(len(row.ours) == 1 and row.met is not None for row in bench.rows):
        print("One pair of runs is not a verdict: on a busy machine rows get fewer pairs.")
    if bench.load > _BUSY_LOAD:
        print(
            f"The machine was busy when this started (load {bench.load:.1f} on {os.cpu_count()} "
            "cores): figures and ratios are not to be trusted."
        )
    for name, reason in bench.failures:
        print(f"FAILED: {name}: {reason}", file=sys.stderr)
    bench.say("done")
    if bench.failures or not bench.rows:
        print("nothing is written: rows failed", file=sys.stderr)
        return 1
    if options.write:
        _write(result, merge=bool(options.only))
    return 0


def _write(result: Report, *, merge: bool) -> None:
    docs = ROOT / "docs"
    docs.mkdir(exist_ok=True)
    if merge:
        published = Report.from_json((docs / "benchmarks.json").read_text("utf-8"))
        result = report.merged(published, result, (*cases.GROUPS, _CLIENT, _LIBRARY, _COMMAND))
    text = result.to_json()
    (docs / "benchmarks.json").write_text(text, "utf-8")
    # Pages are made of what the JSON says, which is rounded: a test makes them again.
    result = Report.from_json(text)
    (docs / "benchmarks.md").write_text(report.page(result), "utf-8")
    report.plot(result, docs)
    for path, update in (
        (ROOT / "README.md", report.update_readme),
        (docs / "index.md", report.update_front_page),
    ):
        path.write_text(update(path.read_text("utf-8"), result), "utf-8")
    print("docs/benchmarks.* and the figures in README.md and docs/index.md are written")


class Bench:
    """Works through the cases and collects rows and failures."""

    def __init__(self, quick: bool, only: Sequence[str]) -> None:
        self.rows: list[Row] = []
        self.failures: list[tuple[str, str]] = []
        self.load = os.getloadavg()[0]
        self._quick = quick
        self._only = only
        self._started_s = time.monotonic()
        self._reads = [
            case for case in cases.reads(quick=quick) if self._wanted(f"{case.group}: {case.name}")
        ]
        self._writes = [
            case for case in cases.writes(quick=quick) if self._wanted(f"{case.group}: {case.name}")
        ]
        self._streams = [
            case
            for case in cases.streams(quick=quick)
            if any(self._wanted(f"{case.group}: {name}") for name in case.names)
        ]
        self._one_row = self._wanted("latency: one row of one partition")
        self._schemas = [
            name
            for name in cases.SCHEMA_ROWS
            if self._wanted(f"{cases.SCHEMAS}: {name}") and (only or not quick)
        ]
        self._total = len(self._reads) + len(self._writes) + self._one_row
        self._total += sum(len(case.names) for case in self._streams)
        self._total += len(self._schemas) + (cases.READ_FEW in self._schemas)  # of two rivals

    @property
    def wants_spark(self) -> bool:
        return self._total > 0

    @property
    def wants_anything(self) -> bool:
        return self.wants_spark or any(map(self._wanted, (_CLIENT, _LIBRARY, _COMMAND)))

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._started_s:4.0f} s] {text}", flush=True)

    def pairs_of(self, wanted: int) -> int:
        """How many pairs of runs a row gets that wants so many."""
        passed_s = time.monotonic() - self._started_s
        patience = _QUICK_PATIENCE if self._quick else _PATIENCE
        most = next((pairs for after_s, pairs in patience if passed_s >= after_s), wanted)
        return min(wanted, most)

    def run_spark(self, spark: SparkBench) -> None:
        # Without it no figure would mean anything, so it may raise.
        spark.warm_up()
        self.say("warmed up")
        if self._one_row:
            pairs = cases.one_row_pairs(quick=self._quick)
            self._collect("latency", lambda: iter([spark.one_row(pairs)]))
        for number, case in enumerate(self._writes):
            self._collect(
                f"{case.group}: {case.name}",
                lambda case=case, number=number: iter([spark.write(case, number)]),
            )
        if self._schemas:
            self._collect(cases.SCHEMAS, lambda: spark.schemas(self._schemas, quick=self._quick))
        for case in self._streams:
            self._collect(f"{case.group}: {case.name}", lambda case=case: spark.stream(case))
        for topic, group in itertools.groupby(self._reads, key=lambda case: case.topic):
            chosen = list(group)
            names = "; ".join(f"{case.group}: {case.name}" for case in chosen)
            self._collect(names, lambda topic=topic, chosen=chosen: spark.reads(topic, chosen))
        order = {name: number for number, name in enumerate(cases.GROUPS)}
        self.rows.sort(key=lambda row: order.get(row.group, len(order)))

    def run_client(self, bootstrap_servers: str) -> None:
        """Rows without Spark, of modules of their own."""
        from tests.bench.client_rows import client_rows
        from tests.bench.command_rows import command_rows
        from tests.bench.library_rows import library_rows

        for name, rows in (
            (_CLIENT, client_rows),
            (_LIBRARY, library_rows),
            (_COMMAND, command_rows),
        ):
            if self._wanted(name):
                self._collect(
                    name,
                    lambda rows=rows: iter(
                        rows(bootstrap_servers, quick=self._quick, say=self.say)
                    ),
                )

    def _wanted(self, name: str) -> bool:
        return not self._only or any(text in name for text in self._only)

    def _collect(self, names: str, measure: Callable[[], Iterator[Row]]) -> None:
        """Takes the rows over; what goes wrong is remembered, and the other rows go on."""
        try:
            for row in measure():
                self.rows.append(row)
                if not _has_told(row):
                    done = sum(1 for row in self.rows if not _has_told(row))
                    self.say(f"{done}/{self._total} {row.group}: {_line(row)}")
        except Exception as error:
            traceback.print_exc()
            lines = str(error).strip().splitlines()
            self.failures.append((names, f"{type(error).__name__}: {lines[0] if lines else ''}"))
            self.say(f"FAILED: {names}")


def _has_told(row: Row) -> bool:
    """Whether the row was shown when it was measured: it is of a module without Spark."""
    return row.group.startswith((_CLIENT, _COMMAND))


def _line(row: Row) -> str:
    name, ours, theirs, ratio, _, verdict, memory = report.cells(row)
    return f"{name}: {ours} / {theirs} = {ratio} {verdict}, workers {memory}"


if __name__ == "__main__":
    sys.exit(main())
