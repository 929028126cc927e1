"""The only broker is killed (-9) and started again; it ends and comes back at another address, in a
new leader epoch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
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
from tests.client.support import numbers, open_cluster, values_of
from tests.real.peers import confluent_read
from tests.support.options import parse_producer_options
from tests.support.partition_producer import PartitionProducer

pytestmark = pytest.mark.real

TOPIC = "moved"
WAIT_S = 60.0
PARTITIONS = 3
PAUSE_S = 0.01


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster(1) as opened:
        yield opened


# --- killed ---------------------------------------------------------------------------------------


def kill_once(cluster: KafkaCluster, over: threading.Event, wrote: threading.Barrier) -> None:
    """Kill the broker when each producer has written records."""
    try:
        wrote.wait()
        time.sleep(1)
        cluster.kill(0)
        time.sleep(2)
        cluster.start(0)
        time.sleep(1)
    finally:
        over.set()


def records_one_by_one(
    servers: str, topic: str, over: threading.Event, wrote: threading.Barrier, **config: Any
) -> int:
    with Producer({"bootstrap.servers": servers, **config}) as producer:
        handles = [producer.send(topic, b"0")]
        handles[0].result(60)
        wrote.wait()
        while not over.is_set():
            handles.append(producer.send(topic, b"%d" % len(handles)))
            time.sleep(PAUSE_S)
        assert [error for handle in handles if (error := handle.exception(150))] == []
    return len(handles)


def transactions(servers: str, topic: str, over: threading.Event, wrote: threading.Barrier) -> int:
    with Producer({"bootstrap.servers": servers, "transactional.id": topic}) as producer:
        producer.init_transactions()
        count = 0
        while not over.is_set():
            producer.begin_transaction()
            for _ in range(20):
                producer.send(topic, b"%d" % count)
                count += 1
                time.sleep(PAUSE_S)
            producer.commit_transaction()
            if count == 20:
                wrote.wait()
    return count


def columns(servers: str, topic: str, over: threading.Event, wrote: threading.Barrier) -> int:
    """What Spark's tasks run. The records' times are of now: a broker that starts forgets producers
    whose newest record is older than a day (producer.id.expiration.ms), and knows no repetition."""
    options = parse_producer_options({"bootstrap.servers": servers})
    count = 0
    with open_cluster(servers) as cluster, PartitionProducer(cluster, options) as producer:
        while not over.is_set():
            for partition in range(PARTITIONS):
                rows = values_of(range(count, count + 5))
                rows.timestamps_ms[:] = time.time_ns() // 1_000_000
                producer.send(topic, partition, rows)
                count += 5
            if count == 5 * PARTITIONS:
                producer.flush()
                wrote.wait()
            time.sleep(PAUSE_S)
    return count


def test_no_record_fails_while_the_only_broker_is_killed(cluster: KafkaCluster) -> None:
    """Four producers write meanwhile: no record may fail, be lost, or be there twice. The defaults
    give each of them two minutes."""
    servers = cluster.bootstrap_servers
    over = threading.Event()
    wrote = threading.Barrier(5, timeout=100)  # so the topics' metadata and the ids are known
    counts: dict[str, int] = {}
    tasks: dict[str, Callable[[str], int]] = {
        "defaults": lambda topic: records_one_by_one(servers, topic, over, wrote),
        "short": lambda topic: records_one_by_one(
            servers, topic, over, wrote, **{"max.block.ms": 1_000, "metadata.max.age.ms": 1_000}
        ),
        "transactions": lambda topic: transactions(servers, topic, over, wrote),
        "columns": lambda topic: columns(servers, topic, over, wrote),
    }
    for topic in tasks:
        cluster.create_topic(topic, partitions=PARTITIONS)
    threads = [
        threading.Thread(target=lambda t=topic, run=run: counts.update({t: run(t)}))
        for topic, run in tasks.items()
    ]
    for thread in threads:
        thread.start()
    kill_once(cluster, over, wrote)
    for thread in threads:
        thread.join(200)
    assert counts.keys() == tasks.keys()
    for topic, count in counts.items():
        rows = confluent_read(servers, topic, PARTITIONS, "read_committed")
        assert sorted((row.value for row in rows), key=int) == numbers(count), topic


# --- moved ----------------------------------------------------------------------------------------


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
