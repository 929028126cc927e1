"""Metrics of Spark's queries, for operators: `sparkkafka.metrics(spark, …)`.

Begin with `listener.py`. It gets Spark's progress, and the datagrams of the driver's processes and
the tasks; `lookups` queries the brokers. `aggregator` adds
them up, and `prometheus` and `otel` export them. `catalogue` names each metric. `lineage` is apart
from them: `sparkkafka.lineage(spark)`, OpenLineage events.
"""
