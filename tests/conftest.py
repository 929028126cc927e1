"""Fixtures of the project's own tests. Those with real brokers come from the package's plugin."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib.util
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.parallel import HEAVY
from tests.support.properties import load_profile
from tests.support.slowest import pytest_runtest_logreport, pytest_terminal_summary  # noqa: F401

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.real.secured import Secured


_numbers = itertools.count()

load_profile()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background has them and what they start ignore Ctrl-C;
    # some tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


LATE_WORKER = pytest.mark.flaky(
    reruns=1,
    only_rerun="Python worker failed to connect back",
    reason="Spark waits 10 s for a new Python process, a constant of PythonWorkerFactory",
)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.support.parallel import LongestFirst

    return LongestFirst(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        from tests.support.parallel import in_turn

        items[:] = in_turn(items)
    for item in items:
        if item.get_closest_marker("spark") and not item.get_closest_marker("flaky"):
            item.add_marker(LATE_WORKER)
    if any(item.get_closest_marker(mark) for item in items for mark in HEAVY):
        from tests.support.quick_spark import set_environment

        folder: Path = config._tmp_path_factory.mktemp("java")  # type: ignore[attr-defined]
        set_environment(os.environ, folder)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Keep the garbage collector away from the collected tests, which are many and stay until the
    end: it took half of the time of a collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def new_topic(kafka_cluster: Any) -> Callable[..., str]:
    """Make a topic with a name of its own: `new_topic(partitions=4, configs={…})`."""

    def make(
        partitions: int = 1, configs: Mapping[str, str] | None = None, prefix: str = "topic"
    ) -> str:
        name = f"{prefix}-{next(_numbers)}"
        kafka_cluster.create_topic(name, partitions=partitions, configs=dict(configs or {}))
        return name

    return make


@pytest.fixture
def no_warnings_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process warns once of each option: another test may have had the warning."""
    from sparkkafka.config import parsed_options

    monkeypatch.setattr(parsed_options, "_warned", set())


@pytest.fixture
def nothing_is_cached() -> Iterator[None]:
    """Clients of this process share schemas by registry, and tokens by endpoint."""
    from sparkkafka.client.auth import oauth
    from sparkkafka.schemas.registry import client as registry_client

    def forget() -> None:
        registry_client._caches.clear()
        oauth._sources.clear()

    forget()
    yield
    forget()


@pytest.fixture
def connect_port() -> Iterator[None]:
    """A Connect server of `remote("local")` always has the same port: one test at a time."""
    path = Path(tempfile.gettempdir(), f"sparkkafka-connect-{os.getuid()}.lock")
    until_s = time.monotonic() + 900
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < until_s, f"{path} is locked by somebody else"
                time.sleep(0.2)
        yield


@pytest.fixture(scope="session")
def secured() -> Iterator[Secured]:
    """One real broker with TLS, SASL and ACLs, see tests/real/secured.py. Give each test topics
    and a client id of its own."""
    from sparkkafka.testing.kafka.process import UnavailableError
    from tests.real.secured import secured_broker

    with contextlib.ExitStack() as stack:
        try:
            broker = stack.enter_context(secured_broker())
        except UnavailableError as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"no real Kafka: {error}")
        yield broker


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One local Spark for the session: two cores, no web page, UTC, no file in the clone."""
    from sparkkafka.testing.kafka.jars import AVRO_JARS, CONNECTOR_JARS, find_jars
    from sparkkafka.testing.kafka.java import export_java_home, find_java

    export_java_home(find_java())
    # Workers must run this interpreter: another one has neither pyarrow nor this package.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("sparkkafka-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        # Half of the time of a small query would go to the compiler of its Java code. The Sparks of
        # other processes compile theirs.
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.connect.grpc.binding.address", "127.0.0.1")  # of `connect_url`
        .config("spark.connect.grpc.binding.port", "0")
    )
    # Jars cannot be added to a running JVM's class loader in time, so the rival is loaded from the
    # start when it is at hand; `jvm_connector` says what to do when it is not. So are Spark's Avro
    # functions.
    jars = [*(find_jars(CONNECTOR_JARS) or ()), *(find_jars(AVRO_JARS) or ())]
    if importlib.util.find_spec("pyspark.sql.streaming.datasource"):  # Spark 4.2
        # The usual one starts a process, chmod, for each file of a checkpoint.
        manager = "streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        builder = builder.config(
            "spark.sql.streaming.checkpointFileManagerClass",
            f"org.apache.spark.sql.execution.{manager}",
        )
        # Its streams fail in a Spark before its own version: SupportsRealTimeMode is not there.
        if jars:
            builder = builder.config("spark.jars", ",".join(map(str, jars)))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def connect_url(spark: SparkSession) -> str:
    """The URL of a Spark Connect server in the JVM of `spark`: a JVM less for each client."""
    package: Any = spark._jvm.org.apache.spark.sql.connect.service  # type: ignore[union-attr]
    service = getattr(getattr(package, "SparkConnectService$"), "MODULE$")
    service.start(spark._jsc.sc())
    return f"sc://127.0.0.1:{service.localPort()}"


@pytest.fixture(scope="session")
def jvm_connector(spark: SparkSession) -> str:
    """The format name of Spark's own connector in the `spark` session; for `jvm`-marked tests."""
    _require_jars(spark, "spark-sql-kafka", "JVM connector", "connector")
    return "kafka"


@pytest.fixture(scope="session")
def spark_avro(spark: SparkSession) -> ModuleType:
    """Spark's own `from_avro` and `to_avro`, in the `spark` session; for `jvm`-marked tests."""
    _require_jars(spark, "spark-avro", "spark-avro", "avro")
    from pyspark.sql.avro import functions

    return functions


def _require_jars(spark: SparkSession, jar: str, name: str, argument: str) -> None:
    if jar not in spark.conf.get("spark.jars", ""):
        reason = (
            f"run `python -m sparkkafka.testing.kafka.jars {argument}` first (`make test` does)"
        )
        if os.environ.get("CI"):
            pytest.fail(f"no {name}: {reason}", pytrace=False)
        pytest.skip(f"no {name}: {reason}")
