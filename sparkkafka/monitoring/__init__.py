"""Metrics of Spark's queries, for operators: `sparkkafka.metrics(spark, …)`.

Begin with `listener.py`. It gets Spark's progress and the datagrams of the driver's processes and
the tasks, and queries the brokers. `aggregator` names each metric and adds up the values;
`prometheus` and `otel` export them. `lineage` is apart from them: `sparkkafka.lineage(spark)`,
OpenLineage events.
"""
