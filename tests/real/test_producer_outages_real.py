"""The only broker is killed (-9) and started again, several times, while four producers write.

No record may fail, be lost, or be there twice: the defaults give each of them two minutes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparkkafka.client.producer.producer import Producer
from tests.client.support import numbers, open_cluster, values_of
from tests.real.peers import confluent_read
from tests.support.options import parse_producer_options
from tests.support.partition_producer import PartitionProducer

pytestmark = pytest.mark.real

KILLS = 2
PARTITIONS = 3
PAUSE_S = 0.01


@pytest.fixture
def one_broker() -> Iterator[Any]:
    from sparkkafka.testing.kafka.cluster import KafkaCluster

    with KafkaCluster(1) as cluster:
        yield cluster


def kill_again_and_again(cluster: Any, over: threading.Event, wrote: threading.Barrier) -> None:
    """Kill the broker for the first time when each producer has written records."""
    try:
        wrote.wait()
        for _ in range(KILLS):
            time.sleep(2)
            cluster.kill(cluster.broker_ids[0])
            time.sleep(2)
            cluster.start(cluster.broker_ids[0])
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


def test_no_record_fails_while_the_only_broker_is_killed_again_and_again(one_broker: Any) -> None:
    servers = one_broker.bootstrap_servers
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
        one_broker.create_topic(topic, partitions=PARTITIONS)
    threads = [
        threading.Thread(target=lambda t=topic, run=run: counts.update({t: run(t)}))
        for topic, run in tasks.items()
    ]
    for thread in threads:
        thread.start()
    kill_again_and_again(one_broker, over, wrote)
    for thread in threads:
        thread.join(200)
    assert counts.keys() == tasks.keys()
    for topic, count in counts.items():
        rows = confluent_read(servers, topic, PARTITIONS, "read_committed")
        assert sorted((row.value for row in rows), key=int) == numbers(count), topic
