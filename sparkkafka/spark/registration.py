"""Registration with a session, and the Python that Spark's workers run.

Spark starts workers as `$PYSPARK_PYTHON`, else as the `python3` of the PATH. Outside an activated
virtual environment that is another Python without this package: the format is then "not found"
(DATA_SOURCE_NOT_FOUND), or workers die with "No module named …".
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkkafka.errors import needs_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkkafka.spark.delegation_tokens import TokenKeeper

log = logging.getLogger(__name__)

_keeper: TokenKeeper | None = None


def choose_worker_python() -> None:
    """Set PYSPARK_PYTHON to this interpreter, so that Spark's workers have this package.

    Nothing is set if PYSPARK_PYTHON is set, if a JVM already runs (it has its environment from
    spark-submit), or if `python3` on the PATH is this environment's: on the machines of a cluster
    this interpreter's path may not exist, while `python3` does. A local session that already runs
    another Python is named in a warning.
    """
    if _runs_another_python(getattr(_context_class(), "_active_spark_context", None)):
        log.warning(
            "the Spark session is older than `import sparkkafka` and runs another Python than this "
            "one, so it may not find the format: call sparkkafka.register(spark), or import "
            "sparkkafka before the session is created"
        )
    if "PYSPARK_PYTHON" in os.environ or _jvm_started() or _python3_is_ours() or not sys.executable:
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable


def needs_pyspark(what: str) -> AbstractContextManager[None]:
    """Raise ImportError, which says what to install, if this block cannot import pyspark. `what` is
    the function that needs it.

    A plain install brings no Spark: platforms have their own, and the client library needs none.
    """
    needs = f"{what} needs PySpark 4.0 or later, which is not here"
    return needs_extra(needs, "spark", "pyspark", note=" (sparkkafka.client needs none)")


def register(spark: SparkSession) -> None:
    """Make `format("pykafka")` known to this session, classic or Connect, and to this thread of it.

    Classic Spark looks up the format of a write in the thread's active session. Threads that you
    start yourself have none, and after Ctrl-C no thread has one: call this there, too.

    If a local classic session was started with another `python3` than this one, and without
    PYSPARK_PYTHON, its workers use this interpreter for what is registered from now on.
    """
    with needs_pyspark("sparkkafka.register"):
        from pyspark.errors import AnalysisException

        from sparkkafka.spark.datasource import KafkaDataSource

    context: Any = getattr(spark, "_sc", None)  # None with Connect, whose server decides
    _keep_tokens(spark, context)
    if _runs_another_python(context):
        log.warning(
            "PYSPARK_PYTHON was not set when Spark started, and python3 on the PATH is another "
            "Python; workers use %s from now on. Import sparkkafka before the session is made, or "
            "set PYSPARK_PYTHON, to avoid this warning",
            sys.executable,
        )
        context.pythonExec = sys.executable
    if context is not None:
        _activate(spark)
    # The file that contains this module, if it was imported from an archive (--py-files): Spark
    # hands that to tasks, but not to the process that plans micro-batches.
    archive = next((str(path) for path in Path(__file__).parents if path.is_file()), "")
    if context is not None and archive:
        paths = context.environment.get("PYTHONPATH", "").split(os.pathsep)
        paths = [archive, *(path for path in paths if path not in ("", archive))]
        context.environment["PYTHONPATH"] = os.pathsep.join(paths)
    try:
        spark.dataSource.register(KafkaDataSource)
    except AnalysisException as error:
        # Spark 4.0 refuses to register a source that it has found in a `pyspark_` module, which
        # always runs in the Python that found it.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def _activate(spark: Any) -> None:
    """Set the session as the active one of this thread. After Ctrl-C py4j uses another connection,
    and with it another thread of Java, which has none."""
    from py4j.protocol import Py4JError

    try:
        session_class = spark._jvm.org.apache.spark.sql.classic.SparkSession
        session_class.setActiveSession(spark._jsparkSession)
    except (Py4JError, AttributeError, TypeError) as error:  # a platform that blocks access to Java
        log.debug("the thread's active session was not set: %r", error)


def _keep_tokens(spark: SparkSession, context: Any) -> None:
    """Get the delegation tokens of spark.kafka.clusters.*, and renew them from now on. `context` is
    the session's SparkContext; None with Connect, where there are no tokens.

    The processes that plan queries find the tokens' file by an environment variable, which a
    Connect client cannot set for its server's processes.
    """
    global _keeper
    from sparkkafka.spark import delegation_tokens  # many modules, for few processes

    try:
        conf = dict(spark.conf.getAll)
    except Exception:  # Spark 4.0's Connect, or a server that does not allow it
        return
    names = [*delegation_tokens.configured_clusters(conf)]
    if not names:
        return
    if context is None:
        log.warning(
            "spark.kafka.clusters.* is set for %s: with Spark Connect pykafka gets no delegation "
            "tokens. Give reads and writes kafka.security.protocol and kafka.sasl.*; a delegation "
            "token is SCRAM with tokenauth=true in kafka.sasl.jaas.config",
            ", ".join(names[:5]),
        )
        return
    clusters = delegation_tokens.parse_clusters(conf)
    if _keeper is None or _keeper.clusters != tuple(clusters) or not _keeper.path.exists():
        if _keeper is not None:
            _keeper.close()
        _keeper = delegation_tokens.TokenKeeper(clusters)
    context.environment[delegation_tokens.VARIABLE] = str(_keeper.path)


def _runs_another_python(context: Any) -> bool:
    """Return whether this is the context of a local session whose workers run the `python3` of the
    PATH, which is not this interpreter. `context` is None without a classic session."""
    return (
        context is not None
        and context.master.startswith("local")
        and context.pythonExec == "python3"
        and bool(sys.executable)
        and not _python3_is_ours()
    )


def _jvm_started() -> bool:
    """Return whether Spark's JVM runs, or started this process."""
    if "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_ENV_LOADED" in os.environ:
        return True
    return getattr(_context_class(), "_gateway", None) is not None


def _context_class() -> Any:
    """Return the class SparkContext if it was imported, None otherwise."""
    module = sys.modules.get("pyspark.core.context") or sys.modules.get("pyspark.context")
    return getattr(module, "SparkContext", None)


def _python3_is_ours() -> bool:
    """Return whether `python3` on the PATH is of the same environment as this interpreter."""
    path = shutil.which("python3")
    # Folders, not files: an environment's python is a link to the one that created it.
    return path is not None and Path(path).parent.resolve() == Path(sys.executable).parent.resolve()
