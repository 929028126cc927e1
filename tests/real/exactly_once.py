"""Exactly-once writes in short tests: what is visible, and tasks without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StringType, StructType

from sparkkafka.config.options import parse_write_options
from sparkkafka.spark.decision_text import NO_BATCH, TaskReport, WriterNames
from sparkkafka.spark.exactly_once import TaskAttempt
from sparkkafka.spark.write.write_task import write_rows
from sparkkafka.spark.write.writer import input_columns
from tests.real.peers import confluent_read

ROOT = Path(__file__).parents[2]

SCAN_S = 20.0
"""By then brokers have surely ended a transaction that is too old."""

_VALUE = StructType().add("value", StringType())


def visible(bootstrap: str, topic: str, partitions: int = 2) -> list[int]:
    """What a second client sees with read_committed, in order."""
    rows = confluent_read(bootstrap, topic, partitions, "read_committed")
    return sorted(int(row.value or b"") for row in rows)


def written(bootstrap: str, topic: str, partitions: int = 2) -> int:
    """How many rows are in the topic, visible or not."""
    return len(confluent_read(bootstrap, topic, partitions, "read_uncommitted"))


def options_of(bootstrap: str, **options: str) -> Any:
    """Dots in names are written as two underscores."""
    given = {name.replace("__", "."): value for name, value in options.items()}
    return parse_write_options(
        {"kafka.bootstrap.servers": bootstrap, "deliveryGuarantee": "exactly-once", **given}
    )


def job_names() -> WriterNames:
    return WriterNames.of_job(None, uuid.uuid4().hex)


def run_names(prefix: str) -> WriterNames:
    """Of a start of a query."""
    return WriterNames.of_query(prefix, "", str(uuid.uuid4()))


def run_task(
    options: Any,
    names: WriterNames,
    task: int,
    values: Iterable[int],
    query_id: str = "",
    batch_id: int = NO_BATCH,
) -> TaskReport:
    """What a task does: rows in a transaction, which stays open."""
    attempt = TaskAttempt(names, query_id, batch_id, task, 0)
    rows = pa.record_batch({"value": pa.array([str(value) for value in values])})
    report = write_rows(iter([rows]), input_columns(_VALUE, options.topic), options, attempt).report
    assert report is not None
    return report


_START = """
    import os, sys
    from pathlib import Path
    from sparkkafka.testing.kafka.java import export_java_home, find_java
    export_java_home(find_java())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    servers, topic, folder = sys.argv[1:]
    from pyspark.sql import SparkSession
    def session(master):
        return (SparkSession.builder.master(master).config("spark.ui.enabled", "false")
                .config("spark.ui.showConsoleProgress", "false")
                .config("spark.driver.host", "127.0.0.1")
                .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
                .getOrCreate())
    def rows(spark, count, tasks):
        return spark.range(0, count, 1, tasks).selectExpr("cast(id as string) value")
    def write(frame, timeout_ms="120000"):
        (frame.write.format("pykafka").mode("append").option("topic", topic)
         .option("kafka.bootstrap.servers", servers)
         .option("kafka.transaction.timeout.ms", timeout_ms)
         .option("deliveryGuarantee", "exactly-once").save())
"""


def start_script(text: str, bootstrap: str, topic: str, folder: Path) -> subprocess.Popen[bytes]:
    """A driver of its own: it has `session`, `rows`, `write`, and servers, topic and folder."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(_START) + textwrap.dedent(text))
    with (folder / "script.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, str(script), bootstrap, topic, str(folder)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
