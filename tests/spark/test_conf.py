"""conf/ works as it is: Spark runs with its files, and Python's logging takes its file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sparkkafka.testing.kafka.java import export_java_home, find_java

CONF = Path(__file__).parents[2] / "conf"

_SESSION = """
import json, sys, warnings
warnings.simplefilter("ignore")
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.range(1).show()
for name, level in (("org.example.Chatty", "info"), ("org.example.Loud", "warn")):
    log = spark._jvm.org.apache.logging.log4j.LogManager.getLogger(name)
    getattr(log, level)("hello from " + name)
print("CONF " + json.dumps(dict(spark.sparkContext.getConf().getAll())))
spark.stop()
"""


def defaults() -> dict[str, str]:
    lines = (CONF / "spark-defaults.conf").read_text().splitlines()
    pairs = (line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    return {name: value.strip() for name, value in pairs}


@pytest.mark.spark
def test_spark_runs_with_conf(tmp_path: Path) -> None:
    export_java_home(find_java())
    environment = {
        **os.environ,
        "SPARK_CONF_DIR": str(CONF),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    run = subprocess.run(
        [sys.executable, "-c", _SESSION],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,  # Spark may leave folders where it runs
        timeout=180,
        check=False,
    )
    assert run.returncode == 0, run.stderr
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
