"""Topics that Java's producer filled, through the JVM connector's sink, with each codec.

Our rows are those that confluent-kafka's consumer sees, and those of `format("kafka")`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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

from tests.real.peers import CODECS, confluent_read, confluent_transaction, mixed_records
from tests.spark.test_batch_read import as_peer_rows

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.jvm]

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


def rows_with_two_partitions() -> list[tuple[Any, ...]]:
    return [
        (record.key, record.value, number % 2, list(record.headers) or None)
        for number, record in enumerate(mixed_records())
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_java_wrote(
    spark: Any,
    kafka_cluster: Any,
    new_topic: Callable[..., str],
    read: Callable[..., Any],
    jvm_connector: str,
    codec: str,
) -> None:
    topic = new_topic(partitions=2)
    written = rows_with_two_partitions()
    (
        spark.createDataFrame(written, SCHEMA)
        .coalesce(1)
        .write.format(jvm_connector)
        .option("kafka.bootstrap.servers", kafka_cluster.bootstrap_servers)
        .option("kafka.compression.type", codec)
        .option("kafka.linger.ms", 50)
        .option("topic", topic)
        .mode("append")
        .save()
    )
    ours = read(subscribe=topic, includeHeaders="true")
    assert as_peer_rows(ours) == confluent_read(
        kafka_cluster.bootstrap_servers, topic, partitions=2
    )
    theirs = read(jvm_connector, subscribe=topic, includeHeaders="true")
    assert ours.schema == theirs.schema
    assert_df_equality(ours.orderBy(ORDER), theirs.orderBy(ORDER))
    for partition in (0, 1):
        rows = ours.where(f"partition = {partition}").orderBy("offset").collect()
        assert [(row.key, row.value) for row in rows] == [
            (key, value) for key, value, at, _ in written if at == partition
        ]


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
