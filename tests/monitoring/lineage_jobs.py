"""The same jobs with OpenLineage's agent and format("kafka"), and with `sparkkafka.lineage` and
format("pykafka"): `lineage_jobs.py SERVERS JARS FOLDER`. Topics a and b exist, with records.

Run by test_lineage_agent.py, since the agent is loaded when Spark's JVM starts.
"""

from __future__ import annotations

import sys

from openlineage.client import OpenLineageClient
from pyspark.sql import SparkSession

import sparkkafka


def run(spark: SparkSession, name: str, servers: str, folder: str) -> None:
    kafka = {"kafka.bootstrap.servers": servers}
    rows = spark.read.format(name).options(**kafka, subscribe="a").load()
    rows.select("key", "value").write.format(name).options(**kafka, topic="b").mode("append").save()
    stream = spark.readStream.format(name).options(
        **kafka, subscribe="a", startingOffsets="earliest"
    )
    query = (
        stream.load()
        .select("key", "value")
        .writeStream.format(name)
        .options(**kafka, topic="b")
        .option("checkpointLocation", f"{folder}/{name}")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(200)


def main(servers: str, jars: str, folder: str) -> None:
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("Orders job")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.extraListeners", "io.openlineage.spark.agent.OpenLineageSparkListener")
        .config("spark.openlineage.namespace", "shop")
        .config("spark.openlineage.transport.type", "file")
        .config("spark.openlineage.transport.location", f"{folder}/agent.json")
    )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    run(spark, "kafka", servers, folder)
    transport = {"type": "file", "log_file_path": f"{folder}/ours.json", "append": True}
    lineage = sparkkafka.lineage(spark, OpenLineageClient(config={"transport": transport}))
    run(spark, "pykafka", servers, folder)
    lineage.close()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
