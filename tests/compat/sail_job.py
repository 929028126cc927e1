"""A program that writes and reads a topic on Sail: `sail_job.py SERVERS`.

test_sail.py runs it in an environment of its own: Sail does not take the newest client.
"""

from __future__ import annotations

import sys

from pysail.spark import SparkConnectServer
from pyspark.sql import SparkSession

from sparkkafka.spark.datasource import KafkaDataSource


def main(servers: str) -> None:
    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    host, port = server.listening_address
    spark = SparkSession.builder.remote(f"sc://{host}:{port}").getOrCreate()
    spark.dataSource.register(KafkaDataSource)
    options = {"kafka.bootstrap.servers": servers}
    rows = spark.sql(
        "SELECT CAST(id AS STRING) AS key, CAST(2 * id AS STRING) AS value FROM range(100)"
    )
    rows.write.format("pykafka").options(**options, topic="numbers").mode("append").save()
    read = spark.read.format("pykafka").options(**options, subscribe="numbers").load()
    typed = read.selectExpr("CAST(CAST(value AS STRING) AS INT) AS value", "partition")
    print("rows:", typed.count())
    print("sum:", typed.groupBy().sum("value").collect()[0][0])
    print("partitions:", sorted(row[0] for row in typed.select("partition").distinct().collect()))
    narrow = spark.read.format("pykafka").options(
        **options, subscribe="numbers", filterPushdown="true"
    )
    print("filtered:", narrow.load().where("partition = 1").count())
    spark.stop()
    server.stop()


if __name__ == "__main__":
    main(sys.argv[1])
