"""`cdc.apply` into Delta and Iceberg, in an older Spark: neither has a release for this one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sparkkafka.testing.kafka.jars import JarSet, ensure_jars
from tests.tools.compat import ROOT, python_with

pytestmark = [pytest.mark.spark, pytest.mark.soak]

SPARK = "4.1.4"
MODULES = {
    "delta": (
        ("io.delta", "delta-spark_4.1_2.13", "4.4.0", False),
        ("io.delta", "delta-storage", "4.4.0", False),
    ),
    "iceberg": (("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.12.0", False),),
}


@pytest.mark.parametrize("format", MODULES)
def test_tables_have_the_source_s_rows_and_versions(format: str, tmp_path: Path) -> None:
    python = str(python_with(f"spark-{SPARK}", f"pyspark=={SPARK}"))
    jars = ensure_jars(
        JarSet(f"{format}-for-spark-4.1", f"{format} for Spark 4.1", MODULES[format])
    )
    done = subprocess.run(
        [python, "-m", "tests.cdc.merge_job", format, ",".join(map(str, jars)), str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-5000:]
