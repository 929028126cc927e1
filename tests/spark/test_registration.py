"""format("pykafka") without a call, in classic and Connect sessions, and the workers' Python.

Each session runs in a process of its own: a process can have one kind of session only, and one JVM.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

import sparkkafka
from sparkkafka.spark import registration
from tests.support.quick_spark import VARIABLES

ROOT = Path(__file__).parent.parent.parent
AUTOLOAD = ROOT / "sparkkafka/spark/pyspark_pykafka.py"


def run(script: str, *arguments: str, **environment: str) -> str:
    """Run a script as a newcomer would: this interpreter, no activated environment."""
    decides = ("PYSPARK", "SPARK_")
    env = {k: v for k, v in os.environ.items() if k in VARIABLES or not k.startswith(decides)}
    env |= {"SPARK_LOCAL_IP": "127.0.0.1", **environment}
    # A PATH without this interpreter's directory; its python3, if any, is another Python.
    here = Path(sys.executable).parent
    env["PATH"] = os.pathsep.join(p for p in env["PATH"].split(os.pathsep) if Path(p) != here)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


# --- what is installed -------------------------------------------------------------------------


def test_the_module_that_spark_looks_for_is_installed_and_current() -> None:
    """An editable install holds a copy of the file: install again if this fails."""
    spec = importlib.util.find_spec("pyspark_pykafka")
    assert spec is not None
    assert Path(spec.origin or "").read_text() == AUTOLOAD.read_text()


def test_wheels_hold_it_at_their_root() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = config["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {str(AUTOLOAD.relative_to(ROOT)): "pyspark_pykafka.py"}


@pytest.mark.slow
def test_imports_stay_few() -> None:
    """Spark imports pyspark_pykafka in each session's first query, Kafka or not; and the client
    library is of use without pyspark."""
    loaded = "import sys; print([m for m in ('pyspark', 'numpy', 'pyarrow') if m in sys.modules])"
    assert run(f"import sparkkafka; {loaded}") == "[]\n"
    assert "'pyspark'" not in run(f"import sparkkafka.client.producer.producer; {loaded}")
    script = """
        import sys, pyspark_pykafka
        print([m for m in sys.modules if m.startswith("sparkkafka.") and
               m.split(".")[1] in ("client", "protocol")])
    """
    assert run(script) == "[]\n"


def test_exports() -> None:
    from sparkkafka.spark.datasource import KafkaDataSource

    late = ["KafkaDataSource", "commit", "commit_to_group", "lag", "lineage", "metrics"]
    late += ["progress", "resolve_offsets"]
    assert sorted(sparkkafka.__all__) == sorted([*late, "__version__", "register"])
    assert all(callable(getattr(sparkkafka, name)) for name in late)
    assert sparkkafka.KafkaDataSource is KafkaDataSource
    assert sparkkafka.KafkaDataSource.name() == "pykafka"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = sparkkafka.nothing


# --- the workers' Python -----------------------------------------------------------------------


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No Spark, nothing chosen, another python3 on the PATH."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT", "SPARK_ENV_LOADED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(registration, "_jvm_started", lambda: "SPARK_ENV_LOADED" in os.environ)
    monkeypatch.setattr(registration.shutil, "which", lambda name: "/elsewhere/python3")
    return monkeypatch


def test_worker_python_is_chosen_where_nothing_else_decides(bare: pytest.MonkeyPatch) -> None:
    registration.choose_worker_python()
    assert os.environ.pop("PYSPARK_PYTHON") == sys.executable


def test_worker_python_is_left_alone_where_something_else_decides(
    bare: pytest.MonkeyPatch,
) -> None:
    bare.setenv("PYSPARK_PYTHON", "mine")
    registration.choose_worker_python()
    assert os.environ["PYSPARK_PYTHON"] == "mine"
    bare.delenv("PYSPARK_PYTHON")
    bare.setenv("SPARK_ENV_LOADED", "1")
    registration.choose_worker_python()
    assert "PYSPARK_PYTHON" not in os.environ
    bare.delenv("SPARK_ENV_LOADED")
    activated = str(Path(sys.executable).parent / "python3")
    bare.setattr(registration.shutil, "which", lambda name: activated)
    registration.choose_worker_python()
    assert "PYSPARK_PYTHON" not in os.environ


@pytest.mark.parametrize("executable", ["python3", "/mine/python"])
def test_a_session_that_runs_another_python_is_named_in_a_warning(
    bare: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, executable: str
) -> None:
    context = SimpleNamespace(master="local[2]", pythonExec=executable)
    session = SimpleNamespace(_active_spark_context=context)
    bare.setattr(registration, "_context_class", lambda: session)
    registration.choose_worker_python()
    assert ("call sparkkafka.register(spark)" in caplog.text) == (executable == "python3")
    del os.environ["PYSPARK_PYTHON"]


class _Refusing:
    """A Connect session whose server refuses to register anything, with a condition of Spark's."""

    def __init__(self, condition: str) -> None:
        self.condition = condition

    @property
    def dataSource(self) -> Any:
        return self

    def register(self, source: Any) -> None:
        class Refused(AnalysisException):
            def getCondition(_) -> str:
                return self.condition

        raise Refused(f"[{self.condition}] said the server")


def test_what_spark_4_0_found_already_is_no_error() -> None:
    registration.register(_Refusing("DATA_SOURCE_ALREADY_EXISTS"))  # type: ignore[arg-type]
    with pytest.raises(AnalysisException, match="SOMETHING_ELSE"):
        registration.register(_Refusing("SOMETHING_ELSE"))  # type: ignore[arg-type]


# --- sessions --------------------------------------------------------------------------------

CONNECT = """
    import sys
    servers, topic = sys.argv[1:]
    import sparkkafka
    from pyspark.sql import SparkSession
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    from pyspark.sql.connect.session import SparkSession as ConnectSession
    assert isinstance(spark, ConnectSession)
    rows = [(f"k{i}", f"v{i}") for i in range(100)]
    df = spark.createDataFrame(rows, "key string, value string")
    kafka = {"kafka.bootstrap.servers": servers}
    df.write.format("pykafka").options(**kafka).option("topic", topic).mode("append").save()
    got = spark.read.format("pykafka").options(**kafka).option("subscribe", topic).load()
    got = got.selectExpr("cast(key as string)", "cast(value as string)").collect()
    assert sorted(map(tuple, got)) == sorted(rows), got[:5]
    print("same", len(got))
    sparkkafka.register(spark)  # over the one that Spark found by itself
    df = spark.read.format("pykafka").options(**kafka).option("subscribe", topic).load()
    print("again", df.count())
    spark.stop()
"""


@pytest.mark.real
@pytest.mark.spark
@pytest.mark.usefixtures("connect_port")
def test_over_connect_without_a_call(kafka_cluster: Any, new_topic: Callable[..., str]) -> None:
    """The import sets the Python of the workers, as in a classic session."""
    output = run(CONNECT, kafka_cluster.bootstrap_servers, new_topic(partitions=2))
    assert "same 100" in output
    assert "again 100" in output


SWITCHED = """
    from pathlib import Path
    log = Path(sys.argv[3])
    started = lambda: len(log.read_text().splitlines()) if log.exists() else 0
    kafka = {"kafka.bootstrap.servers": servers}
    def write(value):
        df = spark.range(1).selectExpr(f"'{value}' as value")
        df.write.format("pykafka").options(**kafka).option("topic", topic).mode("append").save()
    def read():
        reader = spark.read.format("pykafka").options(**kafka).option("subscribe", topic)
        return sorted(bytes(row.value).decode() for row in reader.load().collect())
    write("found")
    by_other = started()
    assert by_other > 0
    import sparkkafka
    sparkkafka.register(spark)
    write("switched")
    print("read", *read())
    stream = (spark.readStream.format("pykafka").options(**kafka).option("subscribe", topic)
              .option("startingOffsets", "earliest").load().writeStream.format("memory")
              .queryName("seen").option("checkpointLocation", str(log) + "-checkpoint")
              .trigger(availableNow=True).start())
    assert stream.awaitTermination(120)
    print("stream", spark.table("seen").count())
    later = started() - by_other
    print("of the other Python:", later)
    spark.stop()
"""


@pytest.mark.real
@pytest.mark.spark
def test_workers_are_switched_though_the_other_python_has_it_too(
    kafka_cluster: Any, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Then Spark has found the format by itself, to be run by the other Python. The session is a
    classic one, older than the registration."""
    log = tmp_path / "starts"
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text(f'#!/bin/sh\necho start >> "{log}"\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o755)
    script = textwrap.dedent(
        """
        import sys
        servers, topic = sys.argv[1:3]
        from pyspark.sql import SparkSession
        spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
                 .config("spark.driver.host", "127.0.0.1")
                 .config("spark.python.use.daemon", "false")  # else workers are started but once
                 .config("spark.python.worker.reuse", "false").getOrCreate())
        """
    ) + textwrap.dedent(SWITCHED)
    path = os.pathsep.join((str(other.parent), os.environ["PATH"]))
    servers = kafka_cluster.bootstrap_servers
    output = run(script, servers, new_topic(), str(log), PATH=path)
    assert "read found switched" in output
    assert "stream 2" in output
    assert "of the other Python: 0" in output, output


def test_over_connect_there_are_no_delegation_tokens(caplog: pytest.LogCaptureFixture) -> None:
    """The server's processes plan, and their environment is not the client's to change."""
    settings = {
        "spark.kafka.clusters.main.auth.bootstrap.servers": "h:1",
        "spark.kafka.clusters.main.sasl.token.mechanism": "SCRAM-SHA-512",
        "spark.master": "local",
    }
    registered: list[Any] = []
    spark: Any = SimpleNamespace(
        conf=SimpleNamespace(getAll=settings),
        dataSource=SimpleNamespace(register=registered.append),
    )
    registration.register(spark)
    assert "set for main: with Spark Connect pykafka gets no delegation tokens" in caplog.text
    caplog.clear()
    del settings["spark.kafka.clusters.main.auth.bootstrap.servers"]
    del settings["spark.kafka.clusters.main.sasl.token.mechanism"]
    registration.register(spark)
    assert not caplog.records
    assert len(registered) == 2


@pytest.mark.slow
def test_without_pyspark_the_client_library_works_and_the_rest_says_what_to_install() -> None:
    program = """
        import sys
        sys.modules["pyspark"] = None  # as where it is not installed
        import sparkkafka, sparkkafka.client
        from sparkkafka.client import Admin, Consumer, Producer
        for use in (
            "sparkkafka.register(None)", "sparkkafka.lag", "from sparkkafka import cdc",
            "from sparkkafka.functions import to_avro",
        ):
            try:
                exec(use)
            except ImportError as error:
                print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name, line in zip(
        ("register", "lag", "cdc", "functions"), done.stdout.splitlines(), strict=True
    ):
        assert line.startswith(
            f"sparkkafka.{name} needs PySpark 4.0 or later, which is not here: pip install 'sp"
        )
