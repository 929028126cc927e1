"""Kafka for Spark in pure Python.

    kafka = {"kafka.bootstrap.servers": "host:9092", "subscribe": "orders"}
    df = spark.read.format("pykafka").options(**kafka).load()

After `pip install` the format is known to each Spark session; `register(spark)` is for sessions
where it is not (one that looked its data sources up before the install, or a package that was added
with `addPyFile`).

Workers must run the driver's Python. Spark starts them as `$PYSPARK_PYTHON`, else as the `python3`
of the PATH, which outside an activated virtual environment is another one. So importing
`sparkkafka`, before the session is made, sets PYSPARK_PYTHON to this interpreter where nothing else
decides; see `sparkkafka.spark.registration` for when it does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparkkafka.logs import apply_levels
from sparkkafka.spark.registration import choose_worker_python, needs_pyspark, register

if TYPE_CHECKING:
    from sparkkafka.monitoring.lineage import lineage
    from sparkkafka.monitoring.listener import metrics
    from sparkkafka.spark.datasource import KafkaDataSource
    from sparkkafka.spark.read.batch_offsets import commit, resolve_offsets
    from sparkkafka.spark.stream.group_committer import commit_to_group
    from sparkkafka.spark.stream.progress import lag, progress

__version__ = "0.1.0.dev0"
__all__ = [
    "KafkaDataSource",
    "__version__",
    "commit",
    "commit_to_group",
    "lag",
    "lineage",
    "metrics",
    "progress",
    "register",
    "resolve_offsets",
]

# Imported when they are first used, so that `import sparkkafka.client` does not import pyspark.
_LATE = {
    "KafkaDataSource": "sparkkafka.spark.datasource",
    "commit": "sparkkafka.spark.read.batch_offsets",
    "commit_to_group": "sparkkafka.spark.stream.group_committer",
    "lag": "sparkkafka.spark.stream.progress",
    "lineage": "sparkkafka.monitoring.lineage",
    "metrics": "sparkkafka.monitoring.listener",
    "progress": "sparkkafka.spark.stream.progress",
    "resolve_offsets": "sparkkafka.spark.read.batch_offsets",
}
_PACKAGES = ("cdc", "plot")  # imported when they are first used, as `sparkkafka.plot`


def __getattr__(name: str) -> Any:
    """Import a package, or a name that needs PySpark, when it is first used."""
    if name not in _LATE and name not in _PACKAGES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs_pyspark(f"sparkkafka.{name}"):
        if name in _PACKAGES:
            return import_module(f"sparkkafka.{name}")
        return getattr(import_module(_LATE[name]), name)


def __dir__() -> list[str]:
    """Return all public names for completion, also those that are not imported yet."""
    return sorted({*globals(), *__all__, *_PACKAGES})


apply_levels()
choose_worker_python()
