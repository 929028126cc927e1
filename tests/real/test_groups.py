"""Offsets of groups on a real broker: what one client commits, the others see."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import kafka
import pytest

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import BrokerError
from tests.client.support import commit_offsets, committed_offsets
from tests.real.peers import WAIT_S, Record, confluent_write
from tests.support.options import parse_client_options

pytestmark = pytest.mark.real


@pytest.fixture
def cluster(kafka_cluster: Any) -> Iterator[Cluster]:
    settings = {"bootstrap.servers": kafka_cluster.bootstrap_servers}
    with Cluster(parse_client_options(settings)) as opened:
        yield opened


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


def tps(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


def test_others_see_what_we_commit(cluster, kafka_cluster, new_topic, group):
    topic = new_topic(partitions=3)
    offsets = {TopicPartition(topic, 0): 0, TopicPartition(topic, 2): 12_345_678_901}
    commit_offsets(cluster, group, offsets, metadata="batch 3")
    admin = kafka.KafkaAdminClient(bootstrap_servers=kafka_cluster.bootstrap_servers)
    try:
        listed = admin.list_group_offsets(group)
    finally:
        admin.close()
    listed = listed.get(group, listed)
    assert {(tp.topic, tp.partition): (row.offset, row.metadata) for tp, row in listed.items()} == {
        tuple(tp): (offset, "batch 3") for tp, offset in offsets.items()
    }
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": kafka_cluster.bootstrap_servers, "group.id": group}
    )
    try:
        theirs = consumer.committed(
            [confluent_kafka.TopicPartition(topic, number) for number in range(3)], WAIT_S
        )
    finally:
        consumer.close()
    assert {tp.partition: tp.offset for tp in theirs if tp.offset >= 0} == {0: 0, 2: 12_345_678_901}


def test_we_see_what_others_commit(cluster, kafka_cluster, new_topic, group):
    topic = new_topic(partitions=3)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": kafka_cluster.bootstrap_servers, "group.id": group}
    )
    try:
        wanted = [confluent_kafka.TopicPartition(topic, number, 7 + number) for number in (0, 1)]
        consumer.commit(offsets=wanted, asynchronous=False)
    finally:
        consumer.close()
    found = committed_offsets(cluster, group, tps(topic, 3))
    assert found == {TopicPartition(topic, 0): 7, TopicPartition(topic, 1): 8}
    other = kafka.KafkaConsumer(
        bootstrap_servers=kafka_cluster.bootstrap_servers,
        group_id=group,
        enable_auto_commit=False,
    )
    try:
        tp = kafka.TopicPartition(topic, 2)
        other.assign([tp])
        other.commit({tp: kafka.structs.OffsetAndMetadata(99, "", -1)})
    finally:
        other.close()
    assert committed_offsets(cluster, group, tps(topic, 3)) == found | {
        TopicPartition(topic, 2): 99
    }


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_a_member_is_refused_clearly(
    cluster, kafka_cluster, new_topic, group, protocol
):
    topic = new_topic()
    servers = kafka_cluster.bootstrap_servers
    confluent_write(servers, topic, [Record(None, b"v")] * 3)
    member = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    tp = TopicPartition(topic, 0)
    try:
        member.subscribe([topic])
        until = time.monotonic() + WAIT_S
        while (message := member.poll(0.5)) is None or message.error():
            assert time.monotonic() < until
        with pytest.raises(BrokerError, match=rf"{group}.*active consumers.*another group id"):
            commit_offsets(cluster, group, {tp: 2})
        member.commit(message, asynchronous=False)
        assert committed_offsets(cluster, group, [tp]) == {tp: 1}
    finally:
        member.close()
    commit_offsets(cluster, group, {tp: 2})  # the member is gone
    assert committed_offsets(cluster, group, [tp]) == {tp: 2}


def test_offsets_that_fill_more_than_one_batch(cluster, new_topic, group, monkeypatch):
    """As 10,000 partitions with long names do: a broker writes the offsets of a request as one
    batch, of 1 MB at most."""
    topic = new_topic(partitions=300)
    offsets = {tp: 1_000_000 + tp.partition for tp in tps(topic, 300)}
    commit_offsets(cluster, group, offsets, metadata="m" * 4_000)
    assert committed_offsets(cluster, group, offsets) == offsets
    monkeypatch.setattr("sparkkafka.client.group.committed_offsets.MAX_COMMIT_BYTES", 10_000_000)
    # 4.x has no better code for it; 3.x says INVALID_COMMIT_OFFSET_SIZE.
    with pytest.raises(BrokerError, match=r"UNKNOWN_SERVER_ERROR|INVALID_COMMIT_OFFSET_SIZE"):
        commit_offsets(cluster, group, offsets, metadata="m" * 4_000)
