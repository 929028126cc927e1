"""Sizes of partitions, when leaders move, disks fail, or the broker refuses."""

from __future__ import annotations

import pytest

from sparkkafka.client.admin.brokers import partition_sizes
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import BrokerError, ErrorCode, KafkaTimeoutError
from sparkkafka.protocol.messages import DescribeLogDirsPartition
from sparkkafka.testing.fake.faults import Drop
from tests.client.support import fill, open_cluster

TPS = [TopicPartition("t", number) for number in range(4)]


@pytest.fixture
def fake(fake_cluster):
    fake_cluster.create_topic("t", partitions=4, replication_factor=2)
    fill(fake_cluster, "t", 300, partitions=3)
    fake_cluster.clear_requests()
    return fake_cluster


def stored(fake) -> dict[TopicPartition, int]:
    return {tp: len(fake.log(*tp).raw()) for tp in TPS}


@pytest.mark.parametrize("version", ["2.1", "2.8", "4.0"])
def test_each_leader_is_asked_once(fake_cluster_factory, version):
    fake = fake_cluster_factory(3, kafka_version=version)
    fake.create_topic("t", partitions=4)
    fill(fake, "t", 300, partitions=3)
    with open_cluster(fake) as cluster:
        assert partition_sizes(cluster, TPS) == stored(fake)
        assert partition_sizes(cluster, []) == {}
    assert stored(fake)[TPS[3]] == 0 < min(stored(fake)[tp] for tp in TPS[:3])
    asked = fake.requests_of("DescribeLogDirs")
    assert sorted(request.broker for request in asked) == [0, 1, 2]
    assert sorted(tp for request in asked for tp in request.topic_partitions) == TPS


def test_copies_on_their_way_to_another_disk_do_not_count(fake):
    plain = fake.handlers["DescribeLogDirs"]

    def with_copies(call):
        response = plain(call)
        for topic in response.results[0].topics:
            topic.partitions += [
                DescribeLogDirsPartition(
                    partition_index=row.partition_index, partition_size=1, is_future_key=True
                )
                for row in topic.partitions
            ]
        return response

    fake.handlers["DescribeLogDirs"] = with_copies
    with open_cluster(fake) as cluster:
        assert partition_sizes(cluster, TPS) == stored(fake)


@pytest.mark.parametrize("version", ["2.1", "4.0"])
def test_no_permission(fake_cluster_factory, version):
    """Old brokers refuse without a code: they show no directory."""
    fake = fake_cluster_factory(1, kafka_version=version)
    fake.create_topic("t", partitions=4)
    fake.fault(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, api="DescribeLogDirs", times=None)
    with open_cluster(fake) as cluster:
        with pytest.raises(BrokerError, match=r"CLUSTER_AUTH.*grant DESCRIBE on the cluster"):
            partition_sizes(cluster, TPS)
    assert len(fake.requests_of("DescribeLogDirs")) == 1


def test_a_leader_that_moved_is_found(fake):
    with open_cluster(fake) as cluster:
        before = cluster.topics(["t"])["t"].partitions[0].leader
        elsewhere = next(
            node
            for node in fake.broker_ids
            if TPS[0] not in _held_by(fake, node) and node != before
        )
        fake.move_leader("t", 0, elsewhere)
        _take_replica_away(fake, before)
        assert partition_sizes(cluster, TPS) == stored(fake)
    assert fake.requests_of("DescribeLogDirs")[-1].broker == elsewhere


def _held_by(fake, node: int) -> list[TopicPartition]:
    return [tp for tp in TPS if node in fake.state.partition(*tp).replicas]


def _take_replica_away(fake, node: int) -> None:
    partition = fake.state.partition(*TPS[0])
    partition.replicas = tuple(row for row in partition.replicas if row != node)


@pytest.mark.parametrize("drop", list(Drop))
def test_a_lost_response(fake, drop):
    fake.fault(drop, api="DescribeLogDirs", times=2)
    with open_cluster(fake) as cluster:
        assert partition_sizes(cluster, TPS) == stored(fake)


def test_a_leader_that_dies(fake):
    with open_cluster(fake) as cluster:
        cluster.topics(["t"])
        fake.broker_down(fake.leader("t", 1))
        assert partition_sizes(cluster, TPS) == stored(fake)


def test_a_disk_that_failed(fake):
    rule = fake.fault(
        ErrorCode.KAFKA_STORAGE_ERROR, api="DescribeLogDirs", topic="t", partition=1, times=2
    )
    with open_cluster(fake) as cluster:
        assert partition_sizes(cluster, TPS) == stored(fake)
    assert rule.fired == 2


def test_partition_sizes_fail_if_the_storage_error_stays(fake):
    fake.fault(
        ErrorCode.KAFKA_STORAGE_ERROR, api="DescribeLogDirs", topic="t", partition=1, times=None
    )
    with open_cluster(fake, default_api_timeout_ms=400) as cluster:
        with pytest.raises(KafkaTimeoutError, match=r"sizes.*KAFKA_STORAGE_ERROR.* t-1"):
            partition_sizes(cluster, TPS)
