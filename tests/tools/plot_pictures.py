"""Makes the pictures of docs/plots.md, light and dark, from a minute of a real stream on a real
broker.

`python -m tests.tools.plot_pictures` replaces them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import sparkkafka
from sparkkafka.testing.kafka.cluster import KafkaCluster
from tests.tools.pictures import save_both
from tests.tools.writing import write_in_background

PARTITIONS = 8


def records(seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the records of a tenth of a second: most for partition 2, and some keys more often than
    others. For 18 seconds they are more than maxOffsetsPerTrigger."""
    for number in range(300 if 12 < seconds < 30 else 80):
        spread = number % 14
        yield {
            "value": b"x" * 200,
            "key": b"customer-%d" % (number % 100 * (number % 7) // 7),
            "partition": spread if spread < PARTITIONS else 2,
        }


def main() -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    with KafkaCluster(brokers=1) as kafka, tempfile.TemporaryDirectory() as folder:
        kafka.create_topic("orders", partitions=PARTITIONS)
        options = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "subscribe": "orders",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "2000",
        }
        query = (
            spark.readStream.format("pykafka")
            .options(**options)
            .load()
            .writeStream.format("noop")
            .queryName("orders-to-files")
            .option("checkpointLocation", folder)
            .trigger(processingTime="1 second")
            .start()
        )
        # The first batch starts Spark's workers, so it is not typical.
        while not query.recentProgress:
            query.awaitTermination(0.1)
        with write_in_background(kafka.bootstrap_servers, records):
            sparkkafka.progress(query, timeout_s=60)
        reports = query.recentProgress[2:]
        query.stop()
        save_both("plot-lag", lambda: sparkkafka.plot.lag(reports, by="partition"))
        save_both("plot-throughput", lambda: sparkkafka.plot.throughput(reports))
        save_both("plot-partitions", lambda: sparkkafka.plot.partitions("orders", options, keys=10))
    spark.stop()


if __name__ == "__main__":
    main()
