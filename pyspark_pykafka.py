"""Makes `format("pykafka")` known to Spark without a call.

Spark imports every top-level module whose name starts with `pyspark_` and registers the class
`DefaultSource` in it, so this module is installed beside the package `sparkkafka` (pyproject.toml,
force-include). It must import little: Spark imports it in the first query of every session, whether
Kafka is used or not.
"""

from __future__ import annotations

from sparkkafka.spark.datasource import KafkaDataSource as DefaultSource

__all__ = ["DefaultSource"]
