"""A job with SPARKKAFKA_PYSPARK_INTERNALS=false, in a Spark of its own: the variable must be set
before Spark's JVM starts.

`python -m tests.spark.job_without_internals SERVERS SOURCE TARGET FOLDER` writes 500 rows to the
topic SOURCE, reads them, and streams them to TARGET.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from sparkkafka.spark.pyspark_internals import VARIABLE
from sparkkafka.testing.kafka.java import export_java_home, find_java

ROWS = 500
LIMIT_S = 300


def without_internals() -> dict[str, str]:
    """Variables of a process that runs the job."""
    return {
        **os.environ,
        VARIABLE: "false",
        "SPARKKAFKA_LOGGING": "spark.pyspark_internals:info",
        "PYSPARK_PYTHON": sys.executable,
    }


def check_that_it_ran(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr[-5000:]
    off = f"{VARIABLE}=false: speed-ups that depend on pyspark's internals are off"
    assert off in done.stderr  # said by Spark's Python processes


def run_job_without_internals(servers: str, source: str, target: str, folder: Path) -> None:
    """Run the job in a process of its own. Fails unless it succeeds with the switch off."""
    export_java_home(find_java())
    command = [sys.executable, "-m", "tests.spark.job_without_internals"]
    done = subprocess.run(
        [*command, servers, source, target, str(folder)],
        cwd=Path(__file__).parents[2],
        env={**without_internals(), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    check_that_it_ran(done)


def run_job(spark: SparkSession, servers: str, source: str, target: str, folder: str) -> None:
    kafka = {"kafka.bootstrap.servers": servers}
    rows = spark.range(ROWS).selectExpr("CAST(id AS string) AS value")
    rows.write.format("pykafka").options(**kafka, topic=source).mode("append").save()
    read = spark.read.format("pykafka").options(**kafka)
    assert read.option("subscribe", source).load().distinct().count() == ROWS
    stream = spark.readStream.format("pykafka").options(
        **kafka, subscribe=source, startingOffsets="earliest"
    )
    writer = stream.load().select("value").writeStream.format("pykafka")
    query = (
        writer.options(**kafka, topic=target)
        .option("checkpointLocation", str(Path(folder) / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(LIMIT_S)
    values = read.option("subscribe", target).load().selectExpr("CAST(value AS string)").collect()
    assert sorted(int(row.value) for row in values) == list(range(ROWS))


if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    run_job(session, *sys.argv[1:])
    session.stop()
