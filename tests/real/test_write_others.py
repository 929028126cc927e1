"""What our producer wrote, read by confluent-kafka and kafka-python."""

from __future__ import annotations

import kafka.partitioner.default
import numpy as np
import pyarrow as pa
import pytest

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.errors import ProduceError, Written
from sparkkafka.protocol.columns.encode import RecordColumns
from sparkkafka.protocol.partitioning import KEY_RULES
from tests.real.peers import (
    CODECS,
    Record,
    confluent_read,
    kafka_python_read,
    mixed_records,
    our_rows,
)
from tests.support.options import parse_client_options, parse_producer_options
from tests.support.partition_producer import PartitionProducer

murmur2_partitions = KEY_RULES["murmur2_random"].partitions

pytestmark = pytest.mark.real

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def columns_of(records: list[Record]) -> RecordColumns:
    return RecordColumns(
        keys=pa.array([r.key for r in records], pa.binary()),
        values=pa.array([r.value for r in records], pa.binary()),
        headers=pa.array(
            [[{"key": k, "value": v} for k, v in r.headers] or None for r in records], HEADERS
        ),
        timestamps_ms=np.array([r.timestamp_ms for r in records], np.int64),
    )


def write(bootstrap: str, topic: str, records: list[Record], partition: int = 0, **config) -> None:
    settings = {"bootstrap.servers": bootstrap} | {
        name.replace("_", "."): value for name, value in config.items()
    }
    with (
        Cluster(parse_client_options(settings)) as cluster,
        PartitionProducer(cluster, parse_producer_options(settings)) as producer,
    ):
        producer.send(topic, partition, columns_of(records))


def contents(rows):
    return [(r.key, r.value, r.headers or (), r.timestamp_ms) for r in rows]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("batch_size", [1_000, 1_000_000])
def test_other_clients_read_what_we_wrote(kafka_cluster, new_topic, codec, batch_size):
    topic = new_topic()
    records = mixed_records()
    write(
        kafka_cluster.bootstrap_servers,
        topic,
        records,
        compression_type=codec,
        batch_size=batch_size,
    )
    seen = confluent_read(kafka_cluster.bootstrap_servers, topic)
    assert contents(seen) == [tuple(record) for record in records]
    assert seen == kafka_python_read(kafka_cluster.bootstrap_servers, topic)
    assert seen == list(our_rows(kafka_cluster.bootstrap_servers, topic))


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_each_acks_level_delivers(kafka_cluster, new_topic, acks):
    topic = new_topic()
    records = mixed_records(1_000)
    write(kafka_cluster.bootstrap_servers, topic, records, acks=acks)
    assert contents(confluent_read(kafka_cluster.bootstrap_servers, topic)) == [
        tuple(record) for record in records
    ]


def test_the_broker_refuses_a_batch_as_too_large_and_it_goes_in_parts(kafka_cluster, new_topic):
    topic = new_topic(configs={"max.message.bytes": "2000"})
    records = [Record(None, b"%06d" % i) for i in range(2_000)]
    write(kafka_cluster.bootstrap_servers, topic, records, batch_size=100_000)
    seen = confluent_read(kafka_cluster.bootstrap_servers, topic)
    assert [row.value for row in seen] == [record.value for record in records]


def test_a_record_that_no_batch_can_hold_is_an_error_with_its_location(kafka_cluster, new_topic):
    topic = new_topic(configs={"max.message.bytes": "2000"})
    with pytest.raises(ProduceError, match=r"max\.message\.bytes") as raised:
        write(kafka_cluster.bootstrap_servers, topic, [Record(None, b"x" * 5_000)])
    assert (raised.value.topic, raised.value.partition) == (topic, 0)
    assert raised.value.written is Written.NO


def test_keys_go_where_other_clients_put_them():
    keys = [None, b"", b"a", b"21", b"foobar"] + [bytes(range(n % 256)) for n in range(1, 300)]
    ours = murmur2_partitions(pa.array(keys, pa.binary()), 13).tolist()
    theirs = [
        -1 if key is None else (kafka.partitioner.default.murmur2(key) & 0x7FFFFFFF) % 13
        for key in keys
    ]
    assert ours == theirs
