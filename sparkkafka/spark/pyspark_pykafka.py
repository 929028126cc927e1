"""Makes `format("pykafka")` known to Spark without a call.

Spark imports every top-level module whose name starts with `pyspark_` and registers the class
`DefaultSource` in it. The build puts this file beside the package `sparkkafka`, in wheels and in
editable installs (pyproject.toml, force-include). Imports of this module must stay few: Spark
imports it in the first query of every session, whether Kafka is used or not.
"""

from __future__ import annotations

from sparkkafka.spark.datasource import KafkaDataSource as DefaultSource

__all__ = ["DefaultSource"]
