"""Brokers and Sparks that start quickly, for the tests.

Most of them live for seconds, in which Java loads classes and compiles them. So they use the first
compiler only, a collector without threads, and an archive of classes that are loaded already
(class data sharing), which `python -m tests.support.quick_spark` makes once in this environment.
Without the archive all works as well, at twice the time.

Spark's Python processes import PySpark from the archive pyspark.zip, which holds sources only: each
process compiles them anew, for half a second or more. `SPARK_HOME` is a folder of links here in
which that archive is a folder, so that they find PySpark compiled.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path

from sparkkafka.testing.kafka.jars import cache_directory, ensure_jars, kafka_jars
from sparkkafka.testing.kafka.java import export_java_home, find_java, say
from sparkkafka.testing.kafka.process import UnavailableError

QUICK = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]

_SPARK = """
    from pyspark.sql import SparkSession

    def same(batches):
        yield from batches

    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1").getOrCreate()
    )
    rows = spark.range(0, 100, 1, 2).selectExpr("id", "cast(id as string) AS value")
    rows.mapInArrow(same, rows.schema).groupBy("value").count().collect()
    rows.write.format("noop").mode("append").save()
    spark.stop()
"""


VARIABLES = (
    "SPARK_HOME",
    "SPARK_LOCAL_DIRS",
    "SPARK_LAUNCHER_OPTS",
    "SPARK_SUBMIT_OPTS",
    "KAFKA_JVM_PERFORMANCE_OPTS",
)
"""The environment variables that `set_environment` sets."""


def set_environment(environment: MutableMapping[str, str], folder: Path) -> None:
    """Make all Java and Spark processes that are started from here quick, and keep their temporary
    files in `folder`: a driver that is killed removes none of them."""
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    if (home := _home()).exists():
        environment["SPARK_HOME"] = str(home)
    environment["SPARK_LOCAL_DIRS"] = str(folder)
    environment["SPARK_LAUNCHER_OPTS"] = " ".join([*QUICK, "-Xshare:auto"])
    spark = [*QUICK, *_sharing(_archive("spark")), f"-Djava.io.tmpdir={folder / 'tmp'}"]
    spark.append("-Dspark.ui.enabled=false")  # unless a session asks for it
    spark.append("-XX:MetaspaceSize=512m")  # else the heap is collected for more classes, twice
    environment["SPARK_SUBMIT_OPTS"] = " ".join(spark)
    environment["KAFKA_JVM_PERFORMANCE_OPTS"] = " ".join([*QUICK, *_sharing(_archive("kafka"))])


def outside(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without folders for temporary files, for programs that have their own."""
    kept = {name: value for name, value in environment.items() if name != "SPARK_LOCAL_DIRS"}
    options = kept.get("SPARK_SUBMIT_OPTS", "").split()
    options = [option for option in options if "java.io.tmpdir" not in option]
    return kept | {"SPARK_SUBMIT_OPTS": " ".join(options)}


def _home() -> Path:
    """Return the path of the Spark whose archives of Python modules are folders instead."""
    import pyspark

    key = hashlib.sha256(pyspark.__file__.encode()).hexdigest()[:12]
    return Path(sys.prefix) / "share" / "quick-spark" / f"{pyspark.__version__}-{key}"


def _make_home(home: Path) -> None:
    import py4j
    import pyspark

    installed = Path(pyspark.__file__).parent
    making = home.with_name("new")
    shutil.rmtree(making, ignore_errors=True)
    (making / "python" / "lib").mkdir(parents=True)
    for entry in installed.iterdir():
        if entry.name != "python":
            (making / entry.name).symlink_to(entry)
    for archive in (installed / "python" / "lib").glob("*.zip"):
        package = py4j if archive.name.startswith("py4j") else pyspark
        source = Path(package.__file__).parent
        modules = making / "python" / "lib" / archive.name
        modules.mkdir()
        (modules / source.name).symlink_to(source)
    making.replace(home)


def _sharing(archive: Path | None) -> list[str]:
    if archive is None or not archive.exists():
        return []
    # A change of jars after the archive was made is a warning, which tests would find in logs.
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:class+path=off"]


def _archive(program: str) -> Path | None:
    """Return the path of the class archive of these jars and this Java; None without Java."""
    import pyspark

    try:
        java = find_java().resolve()
    except UnavailableError:
        return None
    of_spark = Path(pyspark.__file__).parent / "jars"
    jars = of_spark if program == "spark" else cache_directory() / kafka_jars().name
    if not jars.exists():
        return None
    key = f"{java} {java.stat().st_mtime_ns} {jars} {jars.stat().st_mtime_ns}"
    name = f"{program}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.jsa"
    return Path(sys.prefix) / "share" / "class-data" / name


def main() -> None:
    ensure_jars(kafka_jars())
    export_java_home(find_java())
    if not (home := _home()).exists():
        _make_home(home)
    makers: dict[str, Callable[[Path], None]] = {"kafka": _make_of_kafka, "spark": _make_of_spark}
    for program, make in makers.items():
        archive = _archive(program)
        if archive is None or archive.exists():
            continue
        say(f"archiving the classes of {program}, once")
        archive.parent.mkdir(parents=True, exist_ok=True)
        for old in archive.parent.glob(f"{program}-*"):
            old.unlink()
        making = archive.with_suffix(".new")
        make(making)
        if making.exists():
            making.replace(archive)


def _make_of_kafka(archive: Path) -> None:
    from sparkkafka.testing.kafka.cluster import KafkaCluster

    os.environ["KAFKA_JVM_PERFORMANCE_OPTS"] = " ".join(QUICK)
    with KafkaCluster(1, jvm_options=[f"-XX:ArchiveClassesAtExit={archive}"]) as cluster:
        cluster.create_topic("one", partitions=4)
        cluster.stop(0)


def _make_of_spark(archive: Path) -> None:
    script = archive.with_suffix(".py")
    script.write_text(textwrap.dedent(_SPARK))
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": " ".join([*QUICK, f"-XX:ArchiveClassesAtExit={archive}"]),
    }
    # This program, not Python, starts Java and waits until it has ended, with the archive written.
    submit = [str(Path(sys.executable).with_name("spark-submit")), str(script)]
    subprocess.run(submit, env=environment, check=True, capture_output=True, timeout=300)
    script.unlink()


if __name__ == "__main__":
    main()
