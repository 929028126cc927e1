"""The cluster and its brokers: who they are, and what they have on their disks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from sparkkafka.client.admin.operations import authorized_operations
from sparkkafka.client.arguments import flag
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.lookups import ToAny, ToBroker
from sparkkafka.client.cluster.requests import ItemApi, Row, call_items
from sparkkafka.client.cluster.results import Results
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import Broker, TopicPartition
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, UnsupportedVersionError
from sparkkafka.protocol.messages import (
    DescribeClusterRequest,
    DescribeLogDirsRequest,
    MetadataRequest,
)

ERROR_CODE_VERSION = 3  # of DescribeLogDirs
OPERATIONS_VERSION = 8  # of Metadata
_CLUSTER = "the cluster"


# --- the cluster ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ClusterDescription:
    """The cluster. `controller_id` is the node id of the controller; KRaft clusters name any broker
    instead. `authorized_operations` are this user's, None if they were not asked for."""

    cluster_id: str | None
    controller_id: int | None
    brokers: tuple[Broker, ...]
    authorized_operations: frozenset[str] | None = None


class _DescribeCluster(ItemApi[str, ClusterDescription]):
    request_type: ClassVar[Any] = DescribeClusterRequest

    def __init__(self, include_authorized_operations: bool) -> None:
        self._operations = include_authorized_operations

    def build(self, items: Sequence[str], version: int) -> Any:
        return DescribeClusterRequest(include_cluster_authorized_operations=self._operations)

    def read(self, response: Any, items: Sequence[str]) -> Iterable[tuple[str, Row]]:
        brokers = (Broker(row.broker_id, row.host, row.port, row.rack) for row in response.brokers)
        return [(_CLUSTER, Row(0, _cluster(response, brokers)))]

    def grant(self, item: str) -> str:
        return "DESCRIBE on the cluster"


class _DescribeOldCluster(_DescribeCluster):
    """Brokers before Kafka 2.8 tell the same by Metadata."""

    request_type: ClassVar[Any] = MetadataRequest

    def build(self, items: Sequence[str], version: int) -> Any:
        return MetadataRequest(
            topics=[],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=self._operations,
        )

    def lacking(self, item: str, version: int) -> str | None:
        if self._operations and version < OPERATIONS_VERSION:
            return self.needs("include_authorized_operations", OPERATIONS_VERSION)
        return None

    def read(self, response: Any, items: Sequence[str]) -> Iterable[tuple[str, Row]]:
        brokers = (Broker(row.node_id, row.host, row.port, row.rack) for row in response.brokers)
        return [(_CLUSTER, Row(0, _cluster(response, brokers)))]


def _cluster(response: Any, brokers: Iterable[Broker]) -> ClusterDescription:
    return ClusterDescription(
        cluster_id=response.cluster_id,
        controller_id=response.controller_id if response.controller_id >= 0 else None,
        brokers=tuple(sorted(brokers)),
        authorized_operations=authorized_operations(response.cluster_authorized_operations),
    )


def describe_cluster(
    cluster: Cluster, deadline: Deadline, *, include_authorized_operations: bool = False
) -> ClusterDescription:
    """The cluster's id, controller and live brokers. Raises KafkaError."""
    flag(include_authorized_operations, "include_authorized_operations")
    for api in (_DescribeCluster, _DescribeOldCluster):
        results = call_items(
            cluster,
            [_CLUSTER],
            api(include_authorized_operations),
            ToAny(cluster),
            deadline,
            "describing the cluster",
        )
        if api is _DescribeOldCluster or not isinstance(
            results.errors.get(_CLUSTER), UnsupportedVersionError
        ):
            break
    return results[_CLUSTER]


# --- their disks ------------------------------------------------------------------------------


class ReplicaInfo(NamedTuple):
    """A replica's log. `offset_lag` is how far it is behind the leader's high watermark; a future
    one is a copy on its way into this directory."""

    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, kw_only=True)
class LogDirDescription:
    """A log directory of a broker.

    `error` is set if the directory is offline; `total_bytes` and `usable_bytes` of its volume are
    None before Kafka 3.3.
    """

    replicas: dict[TopicPartition, ReplicaInfo] = field(default_factory=dict)
    error: KafkaError | None = None
    total_bytes: int | None = None
    usable_bytes: int | None = None

    @property
    def size_bytes(self) -> int:
        """All that partitions take in it."""
        return sum(replica.size_bytes for replica in self.replicas.values())


class _DescribeLogDirs(ItemApi[int, dict[str, LogDirDescription]]):
    request_type = DescribeLogDirsRequest

    def build(self, items: Sequence[int], version: int) -> DescribeLogDirsRequest:
        return DescribeLogDirsRequest(topics=None)

    def read(self, response: Any, items: Sequence[int]) -> Iterable[tuple[int, Row]]:
        # Before version 3 there is no field for it: a refusal shows no directory at all.
        code = 0 if response.results else int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        found = {row.log_dir: _log_dir(row) for row in response.results}
        return [(item, Row(code, found)) for item in items]

    def name(self, item: int) -> str:
        return f"broker {item}"

    def grant(self, item: int) -> str:
        return "DESCRIBE on the cluster"


def _log_dir(row: Any) -> LogDirDescription:
    return LogDirDescription(
        replicas={
            TopicPartition(topic.name, partition.partition_index): ReplicaInfo(
                partition.partition_size, partition.offset_lag, partition.is_future_key
            )
            for topic in row.topics
            for partition in topic.partitions
        },
        error=BrokerError(row.error_code, f"directory {row.log_dir}") if row.error_code else None,
        total_bytes=row.total_bytes if row.total_bytes >= 0 else None,
        usable_bytes=row.usable_bytes if row.usable_bytes >= 0 else None,
    )


def describe_log_dirs(
    cluster: Cluster, brokers: Iterable[int] | None, deadline: Deadline
) -> Results[int, dict[str, LogDirDescription]]:
    """Each broker's directories by their paths; None means all live brokers."""
    if brokers is None:
        brokers = [broker.node_id for broker in describe_cluster(cluster, deadline).brokers]
    route = ToBroker(cluster)
    return call_items(
        cluster, brokers, _DescribeLogDirs(), route, deadline, "looking at log directories"
    )
