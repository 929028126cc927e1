"""Topics that other producers filled, with each codec, read by Spark.

The producers are confluent-kafka (librdkafka), kafka-python, and Java's through the JVM connector's
sink. Our rows are those that confluent-kafka's consumer sees, and those of `format("kafka")`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from chispa import assert_df_equality
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from tests.real.peers import (
    CODECS,
    Record,
    codecs_in,
    confluent_read,
    confluent_transaction,
    confluent_write,
    for_kafka_python,
    kafka_python_write,
    mixed_records,
)
from tests.spark.read.test_batch_read import as_peer_rows

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.jvm]

PARTITIONS = 3
LINGER_MS = 30_000  # flush ends it; librdkafka sends a batch that does not become smaller as it is
ORDER = ["topic", "partition", "offset"]
SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("partition", IntegerType()),
        StructField(
            "headers",
            ArrayType(
                StructType([StructField("key", StringType()), StructField("value", BinaryType())])
            ),
        ),
    ]
)


class Filled(NamedTuple):
    """A topic, and by partition the records that its producer was given."""

    topic: str
    codec: str
    records: list[list[Record]]


def confluent_kafka_fills(bootstrap: str, filled: Filled) -> None:
    for partition, records in enumerate(filled.records):
        confluent_write(
            bootstrap,
            filled.topic,
            records,
            partition,
            compression_type=filled.codec,
            linger_ms=LINGER_MS,
        )


def kafka_python_fills(bootstrap: str, filled: Filled) -> None:
    for partition, records in enumerate(filled.records):
        kafka_python_write(
            bootstrap, filled.topic, records, filled.codec, partition, linger_ms=LINGER_MS
        )


def java_fills(bootstrap: str, filled: Filled, spark: Any, format: str) -> None:
    rows = [
        (record.key, record.value, partition, list(record.headers) or None)
        for partition, records in enumerate(filled.records)
        for record in records
    ]
    (
        spark.createDataFrame(rows, SCHEMA)
        .coalesce(1)
        .write.format(format)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.compression.type", filled.codec)
        .option("kafka.linger.ms", LINGER_MS)
        .option("topic", filled.topic)
        .mode("append")
        .save()
    )


def test_rows_are_those_that_confluent_kafka_and_the_jvm_connector_see(
    spark: Any, kafka_cluster: Any, read: Callable[..., Any], jvm_connector: str
) -> None:
    """One topic for each producer and codec, and one read of them all."""
    bootstrap = kafka_cluster.bootstrap_servers
    topics: list[Filled] = []
    for writer in ("confluent-kafka", "kafka-python", "java"):
        records = mixed_records()
        if writer == "kafka-python":
            records = for_kafka_python(records)
        by_partition = [records[partition::PARTITIONS] for partition in range(PARTITIONS)]
        for codec in CODECS:
            filled = Filled(f"by-{writer}-{codec}", codec, by_partition)
            kafka_cluster.create_topic(filled.topic, partitions=PARTITIONS)
            if writer == "confluent-kafka":
                confluent_kafka_fills(bootstrap, filled)
            elif writer == "kafka-python":
                kafka_python_fills(bootstrap, filled)
            else:
                java_fills(bootstrap, filled, spark, jvm_connector)
            topics.append(filled)
    options = {"subscribePattern": "^by-", "includeHeaders": "true"}
    ours = read(**options).cache()  # once, for all topics
    try:
        for filled in topics:
            # librdkafka leaves a batch as it is if compression would not make it smaller.
            codecs = codecs_in(bootstrap, filled.topic, PARTITIONS)
            assert filled.codec in codecs <= {filled.codec, "none"}
            rows = as_peer_rows(ours.where(f"topic = '{filled.topic}'"))
            assert rows == confluent_read(bootstrap, filled.topic, PARTITIONS)
            for partition, records in enumerate(filled.records):
                assert [
                    (key, value, headers or ()) for at, _, _, _, key, value, headers in rows
                    if at == partition
                ] == [record[:3] for record in records]  # fmt: skip
        theirs = read(jvm_connector, **options)
        assert ours.schema == theirs.schema
        assert_df_equality(ours.orderBy(ORDER), theirs.orderBy(ORDER))
    finally:
        ours.unpersist()


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_transactions_are_seen_as_the_jvm_connector_sees_them(
    kafka_cluster: Any,
    new_topic: Callable[..., str],
    read: Callable[..., Any],
    jvm_connector: str,
    isolation: str,
) -> None:
    topic = new_topic()
    records = mixed_records(40)
    confluent_transaction(
        kafka_cluster.bootstrap_servers,
        topic,
        topic,
        [(True, records[:10]), (False, records[10:20]), (False, records[20:25]), (True, records)],
    )
    options = {"subscribe": topic, "kafka.isolation.level": isolation}
    ours, theirs = read(**options), read(jvm_connector, **options)
    assert_df_equality(ours.orderBy(ORDER), theirs.orderBy(ORDER))
    assert ours.count() == (50 if isolation == "read_committed" else 65)
