"""`python -m tests.tools.demo`: Spark writes to a real broker and reads everything back.

Starts one broker on loopback, writes a million rows of about 100 bytes with `df.write`, reads them
with `spark.read`, and compares count and sum of hashes, both computed by Spark. Then it
stops the broker and Spark and removes the data, also after Ctrl-C or a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparkkafka.errors import KafkaError
from sparkkafka.testing.kafka.broker import raise_on_sigterm
from sparkkafka.testing.kafka.cluster import KafkaCluster
from sparkkafka.testing.kafka.java import export_java_home, find_java, say

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "demo"
WARM_UP_TOPIC = "demo-warm-up"
WARM_UP_ROWS = 20_000
PARTITIONS = 4
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo. Returns 0 if the rows read equal the rows written."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.demo", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="how many (1000000)")
    options = parser.parse_args(arguments)
    raise_on_sigterm()
    folder = Path(tempfile.mkdtemp(prefix="sparkkafka-demo-"))
    try:
        export_java_home(find_java(install=True))
        say("starting Kafka")
        with KafkaCluster(say=say) as cluster:
            for topic in (TOPIC, WARM_UP_TOPIC):
                cluster.create_topic(topic, PARTITIONS)
            say("starting Spark")
            with _spark(folder) as spark:
                same = _write_and_read(spark, cluster.bootstrap_servers, options.rows)
            say("stopping Kafka")
        shutil.rmtree(folder, ignore_errors=True)
        say("the broker and Spark are stopped, and their data are removed")
        return 0 if same else 1
    except KeyboardInterrupt:
        say("\ninterrupted: everything is stopped and removed")
        return 130
    except KafkaError as error:
        say(str(error))
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_and_read(spark: SparkSession, bootstrap_servers: str, rows: int) -> bool:
    """Write the rows and read them. Returns whether count and hashes are the same."""
    say(f"warming Spark up with {WARM_UP_ROWS:,} rows: it compiles and starts workers at first use")
    _write(_rows(spark, WARM_UP_ROWS), bootstrap_servers, WARM_UP_TOPIC)
    _count_and_hash(_read(spark, bootstrap_servers, WARM_UP_TOPIC))

    written = _rows(spark, rows)
    expected_count, expected_hash = _count_and_hash(written)
    with _timed(spark, "written with df.write", rows):
        _write(written, bootstrap_servers, TOPIC)
    with _timed(spark, "read with spark.read", rows):
        count, hash_sum = _count_and_hash(_read(spark, bootstrap_servers, TOPIC))
    same = (count, hash_sum) == (expected_count, expected_hash)
    say(
        f"written: {expected_count:,} rows, sum of hashes {expected_hash}\n"
        f"read:    {count:,} rows, sum of hashes {hash_sum}\n"
        + ("the same" if same else "NOT THE SAME: this is a bug")
    )
    say(
        "These rows/s are no benchmark: one short run, with Spark and the broker on this machine. "
        "docs/benchmarks.md has measured ones"
    )
    return same


def _write(frame: DataFrame, bootstrap_servers: str, topic: str) -> None:
    (
        frame.write.format("pykafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("topic", topic)
        .mode("append")
        .save()
    )


def _read(spark: SparkSession, bootstrap_servers: str, topic: str) -> DataFrame:
    return (
        spark.read.format("pykafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", topic)
        .load()
        .selectExpr("cast(key as string) as key", "cast(value as string) as value")
    )


def _rows(spark: SparkSession, rows: int) -> DataFrame:
    """Return rows with 8 bytes of key and 92 of value, which differ in each row."""
    noise = ", ".join(f"lpad(hex(xxhash64(id, {seed})), 16, '0')" for seed in range(5))
    return spark.range(0, rows, 1, 2 * PARTITIONS).selectExpr(
        "lpad(cast(id as string), 8, '0') as key",
        f"concat(lpad(cast(id as string), 12, '0'), {noise}) as value",
    )


def _count_and_hash(frame: DataFrame) -> tuple[int, int]:
    # As decimals: the sum of a million 64-bit hashes does not fit a bigint.
    row = frame.selectExpr("count(*)", "sum(cast(xxhash64(key, value) as decimal(38, 0)))").first()
    if row is None:
        raise AssertionError("an aggregate without groups has one row")
    return int(row[0]), int(row[1] or 0)


@contextlib.contextmanager
def _timed(spark: SparkSession, what: str, rows: int) -> Iterator[None]:
    """Print the tasks that are done while a step runs, and its rows per second at the end."""
    started = time.monotonic()
    finished = threading.Event()

    def follow() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not finished.wait(2.0):
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            done = sum(stage.numCompletedTasks for stage in stages if stage)
            total = sum(stage.numTasks for stage in stages if stage)
            tasks = f"{done} of {total} tasks done" if total else "planning or committing"
            say(f"  {time.monotonic() - started:.0f} s, {tasks}")

    follower = threading.Thread(target=follow, name="demo-progress", daemon=True)
    follower.start()
    try:
        yield
    finally:
        finished.set()
        follower.join()
    seconds = time.monotonic() - started
    size = f"{rows:,} rows, {rows * 100 / 1e6:.0f} MB"
    say(f"{what}: {size} in {seconds:.1f} s, {rows / seconds:,.0f} rows/s")


@contextlib.contextmanager
def _spark(folder: Path) -> Iterator[SparkSession]:
    # Before pyspark starts its JVM: workers must run this interpreter, which has the package.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Each Spark worker would warn of this pandas, which is not used here.
    os.environ["PYTHONWARNINGS"] = "ignore:PySpark does not yet fully support pandas:FutureWarning"
    from pyspark.sql import SparkSession

    (folder / "tmp").mkdir()
    (folder / "log4j2.properties").write_text(_LOGGING)
    java_options = (
        f"-Djava.io.tmpdir={folder / 'tmp'}",
        f"-Dlog4j2.configurationFile=file:{folder / 'log4j2.properties'}",
    )
    spark = (
        SparkSession.builder.master("local[*]")
        .appName("sparkkafka-demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.driver.extraJavaOptions", " ".join(java_options))
        .getOrCreate()
    )
    # pyspark's own handler would cancel jobs over the connection that was interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield spark
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
