"""The cluster and its brokers, and what takes how much space on their disks (DescribeLogDirs)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from sparkkafka.client.admin.acls import OPERATIONS_VERSION, authorized_operations
from sparkkafka.client.arguments import flag, numbers
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.lookups import ToAny, ToBroker, ToLeader
from sparkkafka.client.cluster.request_driver import ApiHandler, Row, call_all, call_each
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import (
    Broker,
    Listing,
    Results,
    TopicPartition,
    by_partition,
    by_topic,
)
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, UnsupportedVersionError
from sparkkafka.protocol.messages import (
    DescribableLogDirTopic,
    DescribeClusterRequest,
    DescribeLogDirsRequest,
    MetadataRequest,
)

log = logging.getLogger(__name__)

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


class _DescribeCluster(ApiHandler[str, ClusterDescription]):
    request_type: ClassVar[Any] = DescribeClusterRequest
    acl = "DESCRIBE on the cluster"

    def __init__(self, include_authorized_operations: bool) -> None:
        self._operations = include_authorized_operations

    def build(self, items: Sequence[str], version: int) -> Any:
        return DescribeClusterRequest(include_cluster_authorized_operations=self._operations)

    def read(self, response: Any, items: Sequence[str]) -> Iterable[tuple[str, Row]]:
        brokers = (Broker(row.broker_id, row.host, row.port, row.rack) for row in response.brokers)
        return [(_CLUSTER, Row(0, _cluster(response, brokers)))]


class _DescribeOldCluster(_DescribeCluster):
    """Brokers before Kafka 2.8 answer the same by Metadata."""

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
        results = call_each(
            cluster,
            [_CLUSTER],
            api(include_authorized_operations),
            ToAny(),
            deadline,
            "describing the cluster",
        )
        if api is _DescribeOldCluster or not isinstance(
            results.errors.get(_CLUSTER), UnsupportedVersionError
        ):
            break
    return results[_CLUSTER]


def list_of_all_brokers(
    cluster: Cluster, api: ApiHandler[int, Any], deadline: Deadline, what: str
) -> Listing[Any]:
    """What all brokers list. Raises the error that all have in common."""
    brokers = [broker.node_id for broker in describe_cluster(cluster, deadline).brokers]
    results = call_each(cluster, brokers, api, ToBroker(cluster), deadline, what)
    errors = results.errors
    if errors and len(errors) == len(brokers):
        raise next(iter(errors.values()))
    for node_id, error in errors.items():
        log.warning("%s: what broker %d knows is missing: %s", what, node_id, error)
    rows = [row for found in results.values_by_item.values() for row in found]
    return Listing(rows, errors)


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


class _DescribeLogDirs(ApiHandler[int, dict[str, LogDirDescription]]):
    request_type = DescribeLogDirsRequest
    named = "broker {}"
    acl = "DESCRIBE on the cluster"

    def build(self, items: Sequence[int], version: int) -> DescribeLogDirsRequest:
        return DescribeLogDirsRequest(topics=None)

    def read(self, response: Any, items: Sequence[int]) -> Iterable[tuple[int, Row]]:
        # Before version 3 there is no field for it: a refusal shows no directory at all.
        code = 0 if response.results else int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        found = {row.log_dir: _log_dir(row) for row in response.results}
        return [(item, Row(code, found)) for item in items]


def _log_dir(row: Any) -> LogDirDescription:
    return LogDirDescription(
        replicas={
            tp: ReplicaInfo(one.partition_size, one.offset_lag, one.is_future_key)
            for tp, one in by_partition(row.topics)
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
        wanted = [broker.node_id for broker in describe_cluster(cluster, deadline).brokers]
    else:
        wanted = numbers(brokers, "brokers")
    route = ToBroker(cluster)
    return call_each(
        cluster, wanted, _DescribeLogDirs(), route, deadline, "looking at log directories"
    )


class _PartitionSizes(ApiHandler[TopicPartition, int]):
    request_type = DescribeLogDirsRequest
    acl = "DESCRIBE on the cluster (an ACL of the resource Cluster): sizes need it"

    def build(self, items: Sequence[TopicPartition], version: int) -> DescribeLogDirsRequest:
        return DescribeLogDirsRequest(
            topics=[
                DescribableLogDirTopic(topic=name, partitions=numbers)
                for name, numbers in by_topic(items).items()
            ]
        )

    def read(
        self, response: Any, items: Sequence[TopicPartition]
    ) -> Iterable[tuple[TopicPartition, Row]]:
        if not response.results:
            # Before version 3 there is no field for it: a refusal shows no directory at all.
            return [(tp, Row(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)) for tp in items]
        # A leader without the partition: its disk failed, or it leads no longer.
        codes = [row.error_code for row in response.results if row.error_code]
        absent = Row(codes[0] if codes else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return [
            *dict.fromkeys(items, absent).items(),
            *(
                (tp, Row(0, row.partition_size))
                for result in response.results
                for tp, row in by_partition(result.topics)
                if not row.is_future_key  # a copy on its way to another directory
            ),
        ]


def partition_sizes(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, deadline: Deadline | None = None
) -> dict[TopicPartition, int]:
    """Bytes of each partition's log segments on its leader's disk, as compressed as they lie there.

    Raises BrokerError (CLUSTER_AUTHORIZATION_FAILED without DESCRIBE on the cluster),
    KafkaTimeoutError (with the last failure) at the deadline.
    """
    what = "asking for the sizes of partitions"
    return call_all(cluster, partitions, _PartitionSizes(), ToLeader(cluster), deadline, what)
