"""A Spark driver in a process of its own, so that a test may kill it: `-m tests.real.stream_job`.

Its argument is a `streams.Job` as JSON. It says `started` when the query runs, and ends when the
query does. It lives no longer than whoever holds its standard input; its JVM and Spark's workers
hold pipes and sockets to it, so they end with it.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from sparkkafka.testing.kafka.java import export_java_home, find_java
from tests.real.streams import Job


def main() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    export_java_home(find_java())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

    from pyspark.sql import SparkSession

    job = Job.of_json(sys.argv[1])
    folder = Path(job.folder)
    (folder / "tmp").mkdir(exist_ok=True)
    spark = (
        SparkSession.builder.master(job.master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        # It lives for seconds: a compiler that is quick to start makes it twice as fast.
        .config(
            "spark.driver.extraJavaOptions",
            f"-Djava.io.tmpdir={folder / 'tmp'} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        )
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    if job.fault_rate:
        # Rows go on to Kafka a few at a time, so some have gone when a task fails.
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 10)
    query = job.start(spark)
    print("started", flush=True)
    query.awaitTermination()


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main()
