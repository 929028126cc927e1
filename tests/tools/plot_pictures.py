"""The pictures of docs/plots.md: a real stream from a real broker, watched for a minute.

`python -m tests.tools.plot_pictures` makes them anew.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

import sparkkafka
from sparkkafka.testing.kafka.cluster import KafkaCluster
from tests.tools.writing import written

DOCS = Path(__file__).resolve().parents[2] / "docs"
PARTITIONS = 8
LARGE_PARTITION = 2
WATCHED_S = 60.0
BURST_S = (12.0, 30.0)
"""When more is written than the stream's cap lets through."""
CAP = 2_000
RECORDS, RECORDS_OF_BURST = 80, 300  # ten times a second


def records(seconds: float) -> Iterator[dict[str, Any]]:
    """The most for one partition, some keys more often."""
    burst = BURST_S[0] < seconds < BURST_S[1]
    for number in range(RECORDS_OF_BURST if burst else RECORDS):
        spread = number % 14
        yield {
            "value": b"x" * 200,
            "key": b"customer-%d" % (number % 100 * (number % 7) // 7),
            "partition": spread if spread < PARTITIONS else LARGE_PARTITION,
        }


def save(name: str, axes: Any) -> None:
    axes.figure.savefig(DOCS / f"plot-{name}.png", dpi=100)
    pyplot.close(axes.figure)


def main() -> None:
    matplotlib.use("Agg")
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
            "maxOffsetsPerTrigger": str(CAP),
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
        # The first batch starts Spark's workers, which is not what the pictures are about.
        while not query.recentProgress:
            query.awaitTermination(0.1)
        with written(kafka.bootstrap_servers, records):
            sparkkafka.progress(query, timeout_s=WATCHED_S)
        reports = query.recentProgress[2:]
        query.stop()
        save("lag", sparkkafka.plot.lag(reports, by="partition"))
        save("throughput", sparkkafka.plot.throughput(reports))
        save("partitions", sparkkafka.plot.partitions("orders", options, keys=10)[0])
    spark.stop()


if __name__ == "__main__":
    main()
