"""The metadata that the threads of one client share."""

from __future__ import annotations

from sparkkafka.client.cluster.offsets import OffsetLookup
from sparkkafka.client.cluster.request_driver import FOR_GROUP, find_coordinator
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import Broker, TopicPartition
from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.constants import LATEST
from sparkkafka.protocol.messages import MetadataRequest, MetadataRequestTopic
from tests.client.support import open_cluster

TP = TopicPartition("t", 0)


def test_threads_share_metadata_but_no_connections(fake_cluster):
    fake_cluster.create_topic("t")
    with open_cluster(fake_cluster) as cluster, cluster.for_thread() as other:
        node_id = find_coordinator(cluster, "g", FOR_GROUP, Deadline(10_000))
        cluster.request_metadata(["t"], Deadline(10_000))
        assert other.coordinators == {(FOR_GROUP, "g"): node_id}
        assert other.known_leader(TP) == cluster.known_leader(TP) is not None
        other.note_error(TP, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert cluster.known_leader(TP) is None
        deadline = Deadline(10_000)
        assert other.connection(node_id, deadline) is not cluster.connection(node_id, deadline)


def test_what_a_thread_reads_does_not_change_under_it(fake_cluster):
    fake_cluster.create_topic("t")
    with open_cluster(fake_cluster) as cluster, cluster.for_thread() as other:
        cluster.request_metadata(["t"], Deadline(10_000))
        brokers, topics = cluster.brokers, cluster.metadata.topics
        before = dict(brokers), dict(topics)
        fake_cluster.create_topic("u")
        other.request_metadata(["u"], Deadline(10_000))
        other.metadata.add_broker(Broker(99, "localhost", 9))
        other.metadata.forget_brokers()
        assert (brokers, topics) == before
        assert not cluster.brokers
        assert cluster.metadata.topics.keys() == {"t", "u"}


def test_outdated_leader_epochs_of_old_brokers_are_not_sent(fake_cluster_factory):
    """Brokers before Kafka 2.4 report outdated leader epochs during a reassignment (KAFKA-9212)."""
    fake_cluster = fake_cluster_factory(2, kafka_version="2.3")
    fake_cluster.create_topic("t")
    ask = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    with open_cluster(fake_cluster) as cluster:
        outdated = cluster.call(ask)
        outdated.topics[0].partitions[0].leader_epoch = 0
        for _ in range(2):
            fake_cluster.move_leader("t", 0, 1 - fake_cluster.leader("t", 0))
        fake_cluster.fault(lambda _: outdated, api="Metadata", times=100)
        assert OffsetLookup(cluster).list({TP: LATEST}, Deadline(5_000))[TP].offset == 0


def test_a_broker_that_missed_an_election_is_not_believed(fake_cluster_factory):
    """A former leader that is cut off from the controller may lack records that were read."""
    fake_cluster = fake_cluster_factory(3, kafka_version="4.0")
    fake_cluster.create_topic("t", partitions=2)
    ask = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    with open_cluster(fake_cluster) as cluster:
        before = cluster.call(ask)
        fake_cluster.move_leader("t", 0, (fake_cluster.leader("t", 0) + 1) % 3)
        cluster.request_metadata(["t"], Deadline(10_000))
        now = cluster.known_leader(TP)
        assert now is not None
        assert now.leader_epoch > before.topics[0].partitions[0].leader_epoch
        fake_cluster.fault(lambda _: before, api="Metadata")
        cluster.request_metadata(["t"], Deadline(10_000))
        assert cluster.known_leader(TP) == now
        # Leader epochs of a recreated topic begin again.
        fake_cluster.recreate_topic("t")
        cluster.request_metadata(["t"], Deadline(10_000))
        new = cluster.known_leader(TP)
        assert new is not None
        assert new.leader_epoch < now.leader_epoch
