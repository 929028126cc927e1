"""Sizes of partitions on a real broker's disk."""

from __future__ import annotations

import os

import pytest

from sparkkafka.client.admin.brokers import partition_sizes
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.values import TopicPartition
from tests.real.peers import Record, confluent_write
from tests.support.options import parse_client_options

pytestmark = pytest.mark.real


def test_the_size_is_about_what_was_written(kafka_cluster, new_topic):
    topic = new_topic(partitions=3)
    records = [Record(None, os.urandom(1_000)) for _ in range(500)]
    for partition, count in ((0, 500), (1, 100)):
        confluent_write(kafka_cluster.bootstrap_servers, topic, records[:count], partition)
    settings = {"bootstrap.servers": kafka_cluster.bootstrap_servers}
    with Cluster(parse_client_options(settings)) as cluster:
        sizes = partition_sizes(cluster, [TopicPartition(topic, number) for number in range(3)])
    assert 500_000 < sizes[TopicPartition(topic, 0)] < 550_000
    assert 100_000 < sizes[TopicPartition(topic, 1)] < 120_000
    assert sizes[TopicPartition(topic, 2)] == 0
