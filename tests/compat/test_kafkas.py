"""What is asked of each Kafka. A docstring is the row of the table in docs/compatibility.md."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.client import Admin, ConfigResource, Consumer, OffsetSpec, Producer, TopicPartition
from sparkkafka.errors import UnsupportedVersionError
from tests.real.peers import confluent_read, confluent_write, mixed_records, our_rows

pytestmark = [pytest.mark.compat, pytest.mark.real]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
WAIT_S = 60.0

Topics = Callable[..., list[str]]


def read_all(settings: dict[str, Any], topic: str, count: int, consumer: Any = None) -> list[bytes]:
    """The values, in order of their text; AssertionError if they do not come."""
    found: list[bytes] = []
    until_s = time.monotonic() + WAIT_S
    with Consumer(settings | {"auto.offset.reset": "earliest"}) as reader:
        reader.subscribe([topic])
        while len(found) < count:
            assert time.monotonic() < until_s, f"{len(found)} of {count}"
            found += [row.value for row in reader.poll(0.5)]
        if settings.get("group.id"):
            reader.commit()
    return sorted(found)


def test_codecs(servers: str, topics: Topics) -> None:
    """all codecs, both ways with librdkafka"""
    records = mixed_records(300)
    for ours, theirs in (topics(f"{codec}-ours", f"{codec}-theirs") for codec in CODECS):
        codec = ours.split("-")[-2]
        with Producer({"bootstrap.servers": servers, "compression.type": codec}) as producer:
            for record in records:
                producer.send(ours, record.value, key=record.key, partition=0)
        confluent_write(servers, theirs, records, compression_type=codec)
        expected = sorted((row.key or b"", row.value or b"") for row in records)
        for found in (confluent_read(servers, ours, 2), our_rows(servers, theirs, 2)):
            assert sorted((row.key or b"", row.value or b"") for row in found) == expected, codec


def test_classic_groups(servers: str, topics: Topics) -> None:
    """consumer groups, classic protocol"""
    (topic,) = topics("t")
    with Producer({"bootstrap.servers": servers}) as producer:
        for n in range(20):
            producer.send(topic, b"%02d" % n, partition=n % 2)
    settings = {"bootstrap.servers": servers, "group.id": f"g-{topic}"}
    assert read_all(settings, topic, 20) == [b"%02d" % n for n in range(20)]
    with Admin({"bootstrap.servers": servers}) as admin:
        stored = admin.list_consumer_group_offsets(f"g-{topic}")
        assert {tp.partition: at.offset for tp, at in stored.items() if at} == {0: 10, 1: 10}


def test_next_generation_groups(servers: str, topics: Topics, hole: Callable[..., None]) -> None:
    """consumer groups, KIP-848"""
    (topic,) = topics("t")
    with Producer({"bootstrap.servers": servers}) as producer:
        producer.send(topic, b"1")
    settings = {
        "bootstrap.servers": servers,
        "group.id": f"g-{topic}",
        "group.protocol": "consumer",
    }
    try:
        assert read_all(settings, topic, 1) == [b"1"]
    except UnsupportedVersionError as error:
        hole(error)


def test_transactions(servers: str, topics: Topics) -> None:
    """transactions, with a group's offsets"""
    (topic,) = topics("t")
    settings = {"bootstrap.servers": servers}
    with Producer(settings | {"transactional.id": f"id-{topic}"}) as producer:
        producer.init_transactions()
        for value, ends in ((b"kept", True), (b"gone", False)):
            producer.begin_transaction()
            producer.send(topic, value, partition=0)
            if ends:
                producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, f"g-{topic}")
                producer.commit_transaction()
            else:
                producer.flush()
                producer.abort_transaction()
    seen = confluent_read(servers, topic, 2, "read_committed")
    assert [row.value for row in seen] == [b"kept"]
    committed = settings | {"isolation.level": "read_committed", "group.id": f"h-{topic}"}
    assert read_all(committed, topic, 1) == [b"kept"]


def test_administration(servers: str, topics: Topics, hole: Callable[..., None]) -> None:
    """Admin: topics, settings, offsets by time, deleted records"""
    (topic,) = topics("t")
    tp = TopicPartition(topic, 0)
    with Admin({"bootstrap.servers": servers}) as admin:
        with Producer({"bootstrap.servers": servers}) as producer:
            for n in range(3):
                producer.send(topic, b"v", partition=0, timestamp_ms=1_000 * (n + 1))
        at = OffsetSpec.for_timestamp(1_500)
        assert admin.list_offsets({tp: at})[tp].offset == 1
        assert admin.delete_records({tp: 2})[tp] == 2
        assert len(admin.describe_topic(topic).partitions) == 2
        resource = ConfigResource("topic", topic)
        changed = admin.incremental_alter_configs({resource: {"retention.ms": "86400000"}})
        if isinstance(changed.errors.get(resource), UnsupportedVersionError):
            hole(changed.errors[resource])
        else:
            found = admin.describe_configs([resource])[resource]
            assert found["retention.ms"].value == "86400000"
        admin.delete_topic(topic)
        assert topic not in admin.list_topics()


@pytest.mark.spark
def test_spark_reads_and_writes(spark: Any, servers: str, topics: Topics) -> None:
    """Spark: batch write and read"""
    (topic,) = topics("t")
    kafka = {"kafka.bootstrap.servers": servers}
    rows = spark.range(1000).selectExpr("CAST(id AS string) AS key", "CAST(id AS string) AS value")
    rows.write.format("pykafka").options(**kafka, topic=topic).mode("append").save()
    found = spark.read.format("pykafka").options(**kafka, subscribe=topic).load()
    assert found.selectExpr("sum(CAST(CAST(value AS string) AS int))").first()[0] == 499500


@pytest.mark.spark
def test_exactly_once(
    spark: Any, servers: str, topics: Topics, tmp_path: Path, hole: Callable[..., None]
) -> None:
    """Spark: exactly-once stream from topic to topic"""
    source, target = topics("in", "out")
    kafka = {"kafka.bootstrap.servers": servers}
    values = spark.range(500).selectExpr("CAST(id AS string) AS value")
    values.write.format("pykafka").options(**kafka, topic=source).mode("append").save()
    stream = spark.readStream.format("pykafka").options(
        **kafka, subscribe=source, startingOffsets="earliest"
    )
    limits = {"kafka.request.timeout.ms": 10_000, "kafka.delivery.timeout.ms": 20_000}
    query = (
        stream.load()
        .select("value")
        .writeStream.format("pykafka")
        .options(**kafka, **limits, topic=target, deliveryGuarantee="exactly-once")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)
    seen = confluent_read(servers, target, 2, "read_committed")
    assert sorted(int(row.value or b"") for row in seen) == list(range(500))
