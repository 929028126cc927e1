"""spark-submit on a standalone cluster of two workers, whose Python lacks this package: it comes as
a wheel, named .zip, by --py-files, or within a packed environment by spark.archives."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.find_spark_home import _find_spark_home

from tests.real.peers import confluent_read
from tests.real.standalone import executors, standalone

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.soak]

ROOT = Path(__file__).parents[2]
ROWS = 1_000
KILLED_ROWS, A_BATCH = 10_000, 500
NEEDED = ("pyarrow", "numpy", "numpy.libs", "crc32c", "lz4", "cryptography", "cffi", "pycparser")

JOB = """
    import json, sys
    from pyspark.sql import SparkSession

    servers, source, target, folder, rows, a_batch = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    import sparkkafka
    sparkkafka.register(spark)
    kafka = {"kafka.bootstrap.servers": servers}
    frame = spark.range(0, int(rows), 1, 4).selectExpr("CAST(id AS string) AS value")
    frame.write.format("pykafka").options(**kafka, topic=source).mode("append").save()
    read = spark.read.format("pykafka").options(**kafka, subscribe=source).load()
    count = read.repartition(4).count()
    stream = spark.readStream.format("pykafka").options(
        **kafka, subscribe=source, startingOffsets="earliest", maxRecordsReadByDriver="0",
        maxOffsetsPerTrigger=a_batch,
    )
    query = (
        stream.load().select("value").writeStream.format("pykafka")
        .options(**kafka, topic=target, deliveryGuarantee="exactly-once")
        .option("checkpointLocation", folder).trigger(availableNow=True).start()
    )
    assert query.awaitTermination(200)
    if query.exception():
        raise query.exception()
    print("found " + json.dumps({"count": count, "from": sparkkafka.__file__}))
    spark.stop()
"""


def by_wheel(folder: Path) -> tuple[list[str], dict[str, str]]:
    """--py-files, and a Python that has what the package needs."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,) = (folder / "dist").glob("*.whl")
    environment = _environment(folder, linked=True)
    package = wheel.rename(folder / "sparkkafka.zip")  # a .whl Spark hands to the driver alone
    return ["--py-files", str(package)], {"PYSPARK_PYTHON": str(environment / "bin" / "python")}


def packed(folder: Path) -> tuple[list[str], dict[str, str]]:
    """spark.archives with an environment that has the package too."""
    environment = _environment(folder, linked=False)
    packages = next(environment.glob("lib/python*/site-packages"))
    shutil.copytree(ROOT / "sparkkafka", packages / "sparkkafka")
    archive = folder / "environment.tar.gz"  # of another kind Spark refuses the links to Python
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(environment, ".")
    return (
        ["--conf", f"spark.archives={archive}#environment"],
        {
            "PYSPARK_PYTHON": "./environment/bin/python",
            "PYSPARK_DRIVER_PYTHON": str(environment / "bin" / "python"),
        },
    )


def _environment(folder: Path, *, linked: bool) -> Path:
    home = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    theirs = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    ours = next(home.glob("lib/python*/site-packages"))
    for path in theirs.iterdir():
        name = path.name
        if linked and "kafka" not in name.partition("-")[0] and path.suffix != ".pth":
            (ours / name).symlink_to(path)
        elif not linked and (name.partition("-")[0] in NEEDED or name.startswith("_cffi_backend")):
            (shutil.copytree if path.is_dir() else shutil.copy)(path, ours / name)
    return home


@pytest.mark.parametrize("install", [by_wheel, packed])
def test_a_job_by_spark_submit(
    install: Callable[[Path], tuple[list[str], dict[str, str]]],
    kafka_cluster: Any,
    new_topic: Any,
    tmp_path: Path,
) -> None:
    source, target = new_topic(partitions=4), new_topic(partitions=4)
    with submitted(install(tmp_path), tmp_path, kafka_cluster, source, target, ROWS) as job:
        found = result(job)
    assert found["count"] == ROWS
    assert str(ROOT) not in found["from"]
    rows = confluent_read(kafka_cluster.bootstrap_servers, target, 4, "read_committed")
    assert sorted(int(row.value or b"") for row in rows) == list(range(ROWS))


def test_an_executor_is_killed(kafka_cluster: Any, new_topic: Any, tmp_path: Path) -> None:
    """Twice, while an exactly-once stream runs: each row is there once."""
    source, target = new_topic(partitions=4), new_topic(partitions=4)
    commits = tmp_path / "checkpoint" / "commits"
    install = by_wheel(tmp_path)
    with submitted(install, tmp_path, kafka_cluster, source, target, KILLED_ROWS) as job:
        for batches in (2, 8):
            until_s = time.monotonic() + 200
            while not (commits / str(batches)).exists():
                assert job.poll() is None and time.monotonic() < until_s, text_of(job)
                time.sleep(0.05)
            executors(os.getpid())[0].kill()
        found = result(job)
    assert found["count"] == KILLED_ROWS
    rows = confluent_read(kafka_cluster.bootstrap_servers, target, 4, "read_committed")
    assert sorted(int(row.value or b"") for row in rows) == list(range(KILLED_ROWS))
    assert not (commits / str(KILLED_ROWS // A_BATCH + 2)).exists()


@contextmanager
def submitted(
    install: tuple[list[str], dict[str, str]],
    folder: Path,
    kafka_cluster: Any,
    source: str,
    target: str,
    rows: int,
) -> Iterator[subprocess.Popen[str]]:
    """The job runs, on a cluster of its own."""
    options, variables = install
    without = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    plain = {name: value for name, value in os.environ.items() if name not in without}
    script = folder / "job.py"
    script.write_text(textwrap.dedent(JOB))
    with standalone(folder, plain) as master, (folder / "job.log").open("w") as log:
        submit = [
            *(str(Path(_find_spark_home()) / "bin" / "spark-submit"), "--master", master),
            *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false"),
            *("--executor-memory", "512m", *options, str(script)),
            *(kafka_cluster.bootstrap_servers, source, target, str(folder / "checkpoint")),
            *(str(rows), str(A_BATCH)),
        ]
        job = subprocess.Popen(
            submit, cwd=folder, env=plain | variables, stdout=subprocess.PIPE, stderr=log, text=True
        )
        job.log = folder / "job.log"  # type: ignore[attr-defined]
        try:
            yield job
        finally:
            job.kill()
            job.communicate(timeout=60)


def text_of(job: Any) -> str:
    return str(job.log.read_text(errors="replace")[-4000:])


def result(job: subprocess.Popen[str]) -> dict[str, Any]:
    """What the job prints at its end."""
    output, _ = job.communicate(timeout=400)
    assert job.returncode == 0, text_of(job)
    (line,) = (line for line in output.splitlines() if line.startswith("found "))
    return dict(json.loads(line.removeprefix("found ")))
