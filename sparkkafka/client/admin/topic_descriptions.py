"""What topics there are, and how each is laid out over the brokers."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparkkafka.client.admin.brokers import authorized_operations
from sparkkafka.client.arguments import flag
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.lookups import ToAny
from sparkkafka.client.cluster.requests import ApiHandler, Row, call_each
from sparkkafka.client.cluster.results import Results
from sparkkafka.client.deadline import Deadline
from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.messages import MetadataRequest, MetadataRequestTopic

OPERATIONS_VERSION = 8  # of Metadata


class PartitionDescription(NamedTuple):
    """Brokers by their node ids. `leader` is None while there is none, its epoch -1 if not known
    (before Kafka 2.3)."""

    partition: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TopicDescription:
    """A topic. `topic_id` is written as Kafka's tools write it, None before Kafka 2.8;
    `authorized_operations` are this user's, None if they were not asked for."""

    name: str
    topic_id: str | None
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]
    authorized_operations: frozenset[str] | None = None


class TopicListing(NamedTuple):
    """A topic as `list_topics` names it."""

    name: str
    topic_id: str | None
    is_internal: bool


class _Describe(ApiHandler[str, TopicDescription]):
    request_type = MetadataRequest
    final_codes = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})

    def __init__(self, include_authorized_operations: bool) -> None:
        self._operations = include_authorized_operations

    def build(self, items: Sequence[str], version: int) -> MetadataRequest:
        return MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in items],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=self._operations,
        )

    def read(self, response: Any, items: Sequence[str]) -> Iterable[tuple[str, Row]]:
        return [
            (row.name, Row(row.error_code, None if row.error_code else _description(row)))
            for row in response.topics
        ]

    def lacking(self, item: str, version: int) -> str | None:
        if self._operations and version < OPERATIONS_VERSION:
            return self.needs("include_authorized_operations", OPERATIONS_VERSION)
        return None

    def name(self, item: str) -> str:
        return f"topic {item}"

    def grant(self, item: str) -> str:
        return f"DESCRIBE on topic {item}"


def describe_topics(
    cluster: Cluster,
    names: Iterable[str],
    deadline: Deadline,
    *,
    include_authorized_operations: bool = False,
) -> Results[str, TopicDescription]:
    """Partitions, their leaders and replicas. A topic that does not exist is an error at once."""
    flag(include_authorized_operations, "include_authorized_operations")
    api = _Describe(include_authorized_operations)
    return call_each(cluster, names, api, ToAny(), deadline, "describing topics")


def list_topics(
    cluster: Cluster, deadline: Deadline, *, include_internal: bool = False
) -> dict[str, TopicListing]:
    """All topics that this user may see, by name."""
    flag(include_internal, "include_internal")
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    response = cluster.call(request, deadline=deadline, what="listing topics")
    return {
        row.name: TopicListing(row.name, id_text(row.topic_id), row.is_internal)
        for row in sorted(response.topics, key=lambda row: str(row.name))
        if row.name
        and row.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # it is being deleted
        and (include_internal or not row.is_internal)
    }


def _description(row: Any) -> TopicDescription:
    return TopicDescription(
        name=row.name,
        topic_id=id_text(row.topic_id),
        is_internal=row.is_internal,
        partitions=tuple(
            PartitionDescription(
                partition.partition_index,
                partition.leader_id if partition.leader_id >= 0 else None,
                partition.leader_epoch,
                tuple(partition.replica_nodes),
                tuple(partition.isr_nodes),
                tuple(partition.offline_replicas),
            )
            for partition in sorted(row.partitions, key=lambda one: one.partition_index)
        ),
        authorized_operations=authorized_operations(row.topic_authorized_operations),
    )


def id_text(topic_id: uuid.UUID) -> str | None:
    """A topic id as Kafka's tools write it: base64 for URLs, without padding. None for no id."""
    if not topic_id.int:
        return None
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
