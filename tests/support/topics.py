"""Topics made and removed: by requests, with errors raised, or by a fake broker amid a lookup."""

from __future__ import annotations

from collections.abc import Mapping

from sparkkafka.client.admin.topics import BROKER_DEFAULT, NewTopic, create_topics, delete_topics
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import RecordedRequest


def create_topic(
    cluster: Cluster,
    name: str,
    *,
    partitions: int = BROKER_DEFAULT,
    replication_factor: int = BROKER_DEFAULT,
    configs: Mapping[str, str] | None = None,
    deadline: Deadline | None = None,
) -> None:
    """Create a topic and wait until every partition has a leader.

    Raises BrokerError TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION and so on.
    """
    new = NewTopic(
        name,
        partitions=partitions,
        replication_factor=replication_factor,
        configs=configs or {},
    )
    create_topics(cluster, [new], deadline or cluster.deadline()).all()


def delete_topic(cluster: Cluster, name: str, *, deadline: Deadline | None = None) -> None:
    """Delete a topic and wait until metadata no longer shows it.

    Raises BrokerError UNKNOWN_TOPIC_OR_PARTITION and so on, KafkaTimeoutError if it stays.
    """
    delete_topics(cluster, [name], deadline or cluster.deadline()).all()


def delete_during_lookups(cluster: FakeCluster, *topics: str) -> None:
    """Delete the topics in turn, each when a ListOffsets request names it, and not before the
    client has stopped asking for the one before. Use a cluster of one broker."""
    waiting = list(topics)
    deleted: set[str] = set()

    def delete(request: RecordedRequest) -> None:
        asked = {topic for topic, _ in request.topic_partitions}
        if waiting and waiting[0] in asked and not deleted & asked:
            deleted.add(waiting[0])
            cluster.delete_topic(waiting.pop(0))

    cluster.fault(delete, api="ListOffsets", times=None)
