"""conf/ works as it is: Spark runs with its files, and Python's logging takes its file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.kafka.java import export_java_home, find_java
from tests.client.support import write
from tests.spark.job_without_internals import check_that_it_ran, without_internals

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"

_SESSION = """
import json, sys, warnings
warnings.simplefilter("ignore")
import sparkkafka
from pyspark.sql import SparkSession
from tests.spark.job_without_internals import run_job
servers, folder = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
for name, level in (("org.example.Chatty", "info"), ("org.example.Loud", "warn")):
    log = spark._jvm.org.apache.logging.log4j.LogManager.getLogger(name)
    getattr(log, level)("hello from " + name)
print("CONF " + json.dumps(dict(spark.sparkContext.getConf().getAll())))
run_job(spark, servers, "source", "target", folder + "/job")
options = {"kafka.bootstrap.servers": servers, "subscribe": "t", "kafka.group.id": "g",
           "startingOffsets": "earliest", "maxOffsetsPerTrigger": "10"}
sparkkafka.commit_to_group(spark, options)
query = (
    spark.readStream.format("pykafka").options(**options).load().writeStream.format("noop")
    .option("checkpointLocation", folder + "/ck").trigger(availableNow=True).start()
)
assert query.awaitTermination(60)
"""


def defaults() -> dict[str, str]:
    lines = (CONF / "spark-defaults.conf").read_text().splitlines()
    pairs = (line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    return {name: value.strip() for name, value in pairs}


@pytest.mark.spark
def test_spark_runs_with_conf(fake_cluster: FakeCluster, tmp_path: Path) -> None:
    """And without pyspark's internals. The last batch of a stream is committed to the group though
    the program ends then."""
    for name, partitions in (("source", 2), ("target", 2), ("t", 1)):
        fake_cluster.create_topic(name, partitions)
    write(fake_cluster, "t", 25)
    export_java_home(find_java())
    environment = {
        **without_internals(),
        "SPARK_CONF_DIR": str(CONF),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    run = subprocess.run(
        [sys.executable, "-c", _SESSION, fake_cluster.bootstrap_servers, str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,  # Spark may leave folders where it runs
        timeout=180,
        check=False,
    )
    check_that_it_ran(run)
    assert fake_cluster.committed("g") == {("t", 0): 25}
    used = json.loads(re.search(r"^CONF (.*)$", run.stdout, re.MULTILINE)[1])
    assert {name: used.get(name) for name in defaults()} == defaults()
    assert re.search(r"^\d\d:\d\d:\d\d\.\d{3} WARN  Loud - hello from", run.stderr, re.MULTILINE)
    assert "Chatty" not in run.stderr
    assert "default log4j profile" not in run.stderr
    assert "NativeCodeLoader" not in run.stderr


def test_python_logging_takes_the_file() -> None:
    script = f"""
import logging, logging.config
early = logging.getLogger("sparkkafka.client.cluster.cluster")
logging.config.fileConfig({str(CONF / "logging.ini")!r}, disable_existing_loggers=False)
early.info("bootstrap done")
early.debug("not shown")
logging.getLogger("other").info("not shown")
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    (line,) = run.stderr.splitlines()
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d\.\d{3} INFO  sparkkafka.client.cluster.cluster - bootstrap done", line
    )
