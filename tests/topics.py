"""One topic made or removed, its error raised."""

from __future__ import annotations

from collections.abc import Mapping

from sparkkafka.client.admin.topics import BROKER_DEFAULT, NewTopic, create_topics, delete_topics
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline


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
