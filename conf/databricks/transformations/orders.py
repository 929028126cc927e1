"""A declarative pipeline from Kafka into a table, and from there into Kafka again.

The same file runs on Databricks (Lakeflow Declarative Pipelines) and on plain Spark 4.1 or later.
"""

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
kafka = {"kafka.bootstrap.servers": spark.conf.get("spark.orders.bootstrap.servers")}


@dp.table
def orders():
    return (
        spark.readStream.format("pykafka")
        .options(**kafka, subscribe="orders", startingOffsets="earliest")
        .load()
        .selectExpr("CAST(value AS STRING) AS value", "timestamp")
    )


dp.create_sink("shouted", "pykafka", {**kafka, "topic": "shouted"})


@dp.append_flow(target="shouted")
def shout():
    return spark.readStream.table("orders").selectExpr("upper(value) AS value")
