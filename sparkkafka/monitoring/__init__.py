"""Metrics of Spark's queries, for operators: `sparkkafka.metrics(spark, …)`.

Begin with `listener.py`. Values come from Spark's progress (`listener`), from the datagrams of the
driver's processes and the tasks (`receiver`), and from the brokers (`lookups`). `aggregator` adds
them up, and `prometheus` and `otel` export them. `catalogue` names each metric. `lineage` is apart
from them: `sparkkafka.lineage(spark)`, OpenLineage events.
"""
