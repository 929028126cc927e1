"""The only broker ends and comes back at another address, in a new leader epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.client.producer.producer import Producer
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition
from sparkkafka.errors import LogTruncationError
from sparkkafka.testing.kafka.cluster import CLIENT_LISTENER, KafkaCluster
from sparkkafka.testing.kafka.ports import ReservedPorts
from sparkkafka.testing.kafka.properties import write_properties

pytestmark = pytest.mark.real

TOPIC = "moved"
WAIT_S = 60.0


def moved(cluster: KafkaCluster, port: int) -> None:
    """Start the only broker anew, at this port."""
    broker = cluster.broker(0)
    cluster.stop(0)
    broker.ports[CLIENT_LISTENER] = port
    write_properties(broker.config, cluster.properties_of(broker))
    cluster.start(0)


def values(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < count:
        records = consumer.poll(WAIT_S)
        assert len(records)
        found += [record.value for record in records]
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with KafkaCluster(1) as opened:
        yield opened


def test_clients_find_a_cluster_again_by_bootstrap_servers(cluster):
    cluster.create_topic(TOPIC, partitions=1)
    with ReservedPorts() as ports:
        there = ports.take()
        servers = f"{cluster.bootstrap_servers},127.0.0.1:{there}"
        config = {"bootstrap.servers": servers}
        read = config | {"group.id": "g", "auto.offset.reset": "earliest"}
        with Producer(config) as producer, Consumer(read) as consumer, Admin(config) as admin:
            consumer.subscribe([TOPIC])
            for number in range(5):
                producer.send(TOPIC, b"%d" % number).result(WAIT_S)
            assert values(consumer, 5) == [b"0", b"1", b"2", b"3", b"4"]
            assert len(admin.describe_topics([TOPIC])) == 1
            moved(cluster, there)
            for number in range(5, 15):
                producer.send(TOPIC, b"%d" % number).result(WAIT_S)
            assert values(consumer, 10) == [b"%d" % number for number in range(5, 15)]
            consumer.commit()
            assert len(admin.describe_topics([TOPIC])) == 1
            assert admin.describe_cluster().brokers[0].port == there
        # The log of the first leader epoch ended at 5.
        at = OffsetAndMetadata(10, leader_epoch=0)
        with Consumer(config | {"auto.offset.reset": "none"}) as consumer:
            consumer.assign({TopicPartition(TOPIC, 0): at})
            with pytest.raises(LogTruncationError, match=r"epoch 0 ends at offset 5\.") as raised:
                values(consumer, 1)
            assert raised.value.end_offset == 5
        with Consumer(config | {"auto.offset.reset": "latest"}) as consumer:
            consumer.assign({TopicPartition(TOPIC, 0): at})
            assert values(consumer, 10)[0] == b"5"
