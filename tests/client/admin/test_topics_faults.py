"""Creating and deleting topics when responses are lost."""

from __future__ import annotations

import pytest

from sparkkafka.errors import BrokerError
from sparkkafka.testing.fake.faults import Drop
from tests.client.support import open_cluster
from tests.support.topics import create_topic, delete_topic


def test_a_lost_response_to_create_is_not_an_error(fake_cluster):
    fake_cluster.fault(Drop.AFTER, api="CreateTopics")
    with open_cluster(fake_cluster) as cluster:
        create_topic(cluster, "t", partitions=2, replication_factor=1)
        assert len(cluster.topics(["t"])["t"].partitions) == 2
        with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS"):
            create_topic(cluster, "t", partitions=2, replication_factor=1)


def test_a_lost_response_to_delete_is_not_an_error(fake_cluster):
    fake_cluster.create_topic("t")
    fake_cluster.fault(Drop.AFTER, api="DeleteTopics")
    with open_cluster(fake_cluster) as cluster:
        delete_topic(cluster, "t")
        with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            delete_topic(cluster, "t")
