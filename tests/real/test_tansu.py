"""Our client on Tansu, a broker by other hands: what it does there, and what Tansu itself lacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

from sparkkafka.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from sparkkafka.errors import UnsupportedVersionError
from sparkkafka.spark.datasource import KafkaDataSource
from tests.real.tansu import PACKAGE, tansu
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real

pytest.importorskip(PACKAGE)

VALUE = StructType().add("value", BinaryType())


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with tansu() as address:
        yield address


@pytest.fixture
def topic(servers: str, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")
    with Admin({"bootstrap.servers": servers}) as admin:
        admin.create_topics([NewTopic(name, 2, 1)]).all()
    return str(name)


def records_of(servers: str, topic: str, count: int, **settings: Any) -> list[Any]:
    """Return the records of partition 0."""
    found: list[Any] = []
    with Consumer({"bootstrap.servers": servers, **settings}) as consumer:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        consumer.seek(tp, 0)

        def has_all() -> bool:
            found.extend(consumer.poll(0.2))
            return len(found) >= count

        wait_until(has_all)
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_codecs_headers_and_idempotence(servers: str, topic: str, codec: str) -> None:
    settings = {"bootstrap.servers": servers, "compression.type": codec}
    with Producer(settings) as producer:
        for number in range(200):
            key, headers = b"%d" % number, [("h", b"%d" % number), ("none", None)]
            producer.send(topic, b"v" * number, key=key, headers=headers, partition=0)
    found = records_of(servers, topic, 200)
    assert [record.offset for record in found] == list(range(200))
    assert [len(record.value) for record in found] == list(range(200))
    assert found[7].headers == (("h", b"7"), ("none", None))


def test_spark_writes_reads_and_streams(servers: str, topic: str) -> None:
    options = {"kafka.bootstrap.servers": servers}
    values = [b"%03d" % number for number in range(1000)]
    writer = KafkaDataSource({**options, "topic": topic}).writer(VALUE, False)
    batch = pa.record_batch({"value": pa.array(values, pa.binary())})
    writer.commit([writer.write(iter([batch]))])
    source = KafkaDataSource({**options, "subscribe": topic, "startingOffsets": "earliest"})
    reader, stream = source.reader(source.schema()), source.streamReader(source.schema())
    try:
        start = stream.initialOffset()
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        for of, planned in (
            (reader, reader.partitions()),
            (stream, stream.partitions(start, end)),
        ):
            found = [
                row["value"]
                for partition in planned
                for batch in of.read(partition)
                for row in batch.to_pylist()
            ]
            assert sorted(found) == values
    finally:
        stream.stop()


def test_a_committed_transaction_and_its_offsets(servers: str, topic: str) -> None:
    settings = {"bootstrap.servers": servers, "transactional.id": f"id-{topic}"}
    with Producer(settings) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"kept", partition=0)
        producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, f"g-{topic}")
        producer.commit_transaction()
    (record,) = records_of(servers, topic, 1, **{"isolation.level": "read_committed"})
    assert record.value == b"kept"
    with Admin({"bootstrap.servers": servers}) as admin:
        stored = admin.list_consumer_group_offsets(f"g-{topic}")
    assert {tp.partition: at.offset for tp, at in stored.items() if at} == {0: 1}


def test_what_it_does_not_offer_is_named(servers: str, topic: str) -> None:
    settings = {"bootstrap.servers": servers, "group.id": "g", "group.protocol": "consumer"}
    with (
        Consumer(settings) as consumer,
        pytest.raises(UnsupportedVersionError, match=r"set group\.protocol=classic"),
    ):
        consumer.subscribe([topic])
        wait_until(lambda: consumer.poll(0.2))
    with (
        Admin({"bootstrap.servers": servers}) as admin,
        pytest.raises(UnsupportedVersionError, match="does not offer CreatePartitions"),
    ):
        admin.create_partitions({topic: 3}).all()
