"""The cluster and its brokers, the space that partitions take on their disks (DescribeLogDirs), and
features with their levels (KIP-584), such as metadata.version."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sparkkafka import __version__
from sparkkafka.client import arguments
from sparkkafka.client.admin.acls import OPERATIONS_VERSION, authorized_operations
from sparkkafka.client.admin.calls import AdminCalls, call_one
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.request_driver import (
    ApiHandler,
    Outcome,
    Outcomes,
    ToBroker,
    ToController,
    ToLeader,
)
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import (
    Broker,
    Listing,
    Results,
    TopicPartition,
    by_partition,
    request_topics,
)
from sparkkafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaError,
    OptionError,
    UnsupportedVersionError,
)
from sparkkafka.protocol import messages

log = logging.getLogger(__name__)

# --- the cluster ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ClusterDescription:
    """The cluster. `controller_id` is the node id of the controller; KRaft clusters name any broker
    instead. `authorized_operations` are this user's, None if they were not requested."""

    cluster_id: str | None
    controller_id: int | None
    brokers: tuple[Broker, ...]
    authorized_operations: frozenset[str] | None = None


def _read_cluster(response: Any, id_field: str) -> ClusterDescription:
    """Return the ClusterDescription of a response to DescribeCluster or Metadata. `id_field` is
    the name of the field with a broker's node id."""
    brokers = (
        Broker(getattr(row, id_field), row.host, row.port, row.rack) for row in response.brokers
    )
    return ClusterDescription(
        cluster_id=response.cluster_id,
        controller_id=response.controller_id if response.controller_id >= 0 else None,
        brokers=tuple(sorted(brokers)),
        authorized_operations=authorized_operations(response.cluster_authorized_operations),
    )


def describe_cluster(
    cluster: Cluster, deadline: Deadline, *, include_authorized_operations: bool = False
) -> ClusterDescription:
    """Describe the cluster: id, controller and live brokers. Raises KafkaError."""
    operations = arguments.checked_flag(
        include_authorized_operations, "include_authorized_operations"
    )
    what, acl = "the cluster", "DESCRIBE on the cluster"
    request: Any = messages.DescribeClusterRequest(include_cluster_authorized_operations=operations)
    try:
        return call_one(
            cluster, what, request, lambda row: _read_cluster(row, "broker_id"), deadline, acl=acl
        )
    except UnsupportedVersionError:  # brokers before Kafka 2.8 answer the same by Metadata
        request = messages.MetadataRequest(
            topics=[],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=operations,
        )
        return call_one(
            cluster,
            what,
            request,
            lambda row: _read_cluster(row, "node_id"),
            deadline,
            acl=acl,
            versions={"include_authorized_operations": OPERATIONS_VERSION} if operations else {},
        )


def lists_from_all_brokers(
    cluster: Cluster, handler: ApiHandler[int, Any], deadline: Deadline, what: str
) -> Listing[Any]:
    """Request a list of what it coordinates from each broker, and join them, sorted by the name
    that each entry begins with. The `errors` of the result are by broker, of those that failed.
    Raises an error if all failed. `what` names the operation in logs."""
    brokers = [broker.node_id for broker in describe_cluster(cluster, deadline).brokers]
    results = ToBroker(cluster).call_each(brokers, handler, deadline, what)
    errors = results.errors
    if errors and len(errors) == len(brokers):
        raise next(iter(errors.values()))
    for node_id, error in errors.items():
        log.warning("%s: what broker %d knows is missing: %s", what, node_id, error)
    # What got another coordinator meanwhile is listed twice.
    by_name = {entry[0]: entry for entries in results.values_by_item.values() for entry in entries}
    return Listing([by_name[name] for name in sorted(by_name)], errors)


# --- their disks ------------------------------------------------------------------------------


class ReplicaInfo(NamedTuple):
    """The log of a replica. `offset_lag` is the number of offsets from its end to the leader's high
    watermark. `is_future`: it is a copy that is being moved into this directory."""

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
        """The bytes of all partitions in the directory."""
        return sum(replica.size_bytes for replica in self.replicas.values())


class _DescribeLogDirs(ApiHandler[int, dict[str, LogDirDescription]]):
    request_type = messages.DescribeLogDirsRequest
    name_format = "broker {}"
    acl = "DESCRIBE on the cluster"

    def build(self, items: Sequence[int], version: int) -> Any:
        """Build the request for all partitions in all log directories of a broker."""
        return messages.DescribeLogDirsRequest(topics=None)

    def read(self, response: Any, items: Sequence[int]) -> Outcomes[int]:
        """Return the log directories of the broker, which is the only item, by path."""
        # Before version 3 there is no error code: a denied request lists no directories.
        code = 0 if response.results else int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        log_dirs = {row.log_dir: _read_log_dir(row) for row in response.results}
        return [(item, Outcome(code, log_dirs)) for item in items]


def _read_log_dir(row: Any) -> LogDirDescription:
    """Read a log directory of a DescribeLogDirs response."""
    return LogDirDescription(
        replicas={
            tp: ReplicaInfo(replica.partition_size, replica.offset_lag, replica.is_future_key)
            for tp, replica in by_partition(row.topics)
        },
        error=BrokerError(row.error_code, f"directory {row.log_dir}") if row.error_code else None,
        total_bytes=row.total_bytes if row.total_bytes >= 0 else None,
        usable_bytes=row.usable_bytes if row.usable_bytes >= 0 else None,
    )


class _PartitionSizes(ApiHandler[TopicPartition, int]):
    """Requests from each partition's leader the bytes of the partition's log segments on its
    disk."""

    request_type = messages.DescribeLogDirsRequest
    acl = "DESCRIBE on the cluster (an ACL of the resource Cluster): sizes need it"

    def build(self, items: Sequence[TopicPartition], version: int) -> Any:
        """Build the request for the sizes of these partitions on one broker."""
        return messages.DescribeLogDirsRequest(
            topics=request_topics(messages.DescribableLogDirTopic, items)
        )

    def read(self, response: Any, items: Sequence[TopicPartition]) -> Outcomes[TopicPartition]:
        """Return the bytes of each partition in its leader's directories, or the error why the
        leader has it in none."""
        if not response.results:
            # Before version 3 there is no error code: a denied request lists no directories.
            return [(tp, Outcome(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)) for tp in items]
        # A leader without the partition has a failed disk, or is no longer the leader.
        codes = [row.error_code for row in response.results if row.error_code]
        not_found = Outcome(codes[0] if codes else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return [  # a later outcome of a partition replaces an earlier one
            *dict.fromkeys(items, not_found).items(),
            *(
                (tp, Outcome(0, row.partition_size))
                for result in response.results
                for tp, row in by_partition(result.topics)
                if not row.is_future_key  # a copy on its way to another directory
            ),
        ]


def partition_sizes(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, deadline: Deadline | None = None
) -> dict[TopicPartition, int]:
    """Return the bytes of each partition's log segments on its leader's disk (compressed).

    Raises BrokerError (CLUSTER_AUTHORIZATION_FAILED without DESCRIBE on the cluster),
    KafkaTimeoutError (with the last failure) at the deadline.
    """
    what = "reading the sizes of partitions"
    return ToLeader(cluster).call_all(partitions, _PartitionSizes(), deadline, what)


# --- features -------------------------------------------------------------------------------------

UPGRADE_TYPES: Final = {"UPGRADE": 1, "SAFE_DOWNGRADE": 2, "UNSAFE_DOWNGRADE": 3}


class FeatureRange(NamedTuple):
    """The lowest and the highest level of a feature."""

    min_version_level: int
    max_version_level: int


@dataclass(frozen=True)
class FeatureMetadata:
    """`finalized_features` are the levels that the whole cluster uses, with their epoch (None if
    not known). `supported_features` are those that the broker which answered can use."""

    finalized_features: Mapping[str, FeatureRange]
    finalized_features_epoch: int | None
    supported_features: Mapping[str, FeatureRange]


@dataclass(frozen=True)
class FeatureUpdate:
    """The new level of a feature, 0 to remove it. `upgrade_type` is UPGRADE, SAFE_DOWNGRADE
    (where nothing is lost) or UNSAFE_DOWNGRADE."""

    max_version_level: int
    upgrade_type: str = "UPGRADE"


def _read_features(response: Any) -> FeatureMetadata:
    """Read the features of an ApiVersions response."""
    epoch = response.finalized_features_epoch
    finalized = {
        row.name: FeatureRange(row.min_version_level, row.max_version_level)
        for row in response.finalized_features
    }
    supported = {
        row.name: FeatureRange(row.min_version, row.max_version)
        for row in response.supported_features
    }
    return FeatureMetadata(finalized, epoch if epoch >= 0 else None, supported)


class _UpdateFeatures(ApiHandler[str, None]):
    request_type = messages.UpdateFeaturesRequest
    name_format = "feature {}"
    acl = "ALTER on the cluster"

    def __init__(self, updates: Mapping[str, FeatureUpdate], validate_only: bool) -> None:
        self._updates = updates
        self._validate_only = validate_only

    def needed_versions(self, item: str) -> Mapping[str, int]:
        """Return the version with `validate_only`, if that is requested."""
        return {"validate_only": 1} if self._validate_only else {}

    def build(self, items: Sequence[str], version: int) -> Any:
        """Build the request that sets these features, named by `items`, to their new levels."""
        request = messages.UpdateFeaturesRequest(validate_only=self._validate_only)
        for name in items:
            update = self._updates[name]
            key = messages.FeatureUpdateKey(
                feature=name, max_version_level=update.max_version_level
            )
            # KIP-584: version 0 cannot tell a safe downgrade from an unsafe one.
            if version < 1:
                key.allow_downgrade = update.upgrade_type != "UPGRADE"
            else:
                key.upgrade_type = UPGRADE_TYPES[update.upgrade_type]
            request.feature_updates.append(key)
        return request

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        """Return the error code of each feature: 0 if it was updated."""
        # From version 2 on the response has one error for all features, and no results.
        outcomes = dict.fromkeys(items, Outcome(0))
        outcomes |= {row.feature: Outcome.of(row) for row in response.results}
        return list(outcomes.items())


class ClusterAdmin(AdminCalls):
    """The calls of `Admin` about the cluster: brokers, log directories, features."""

    def describe_cluster(
        self, *, include_authorized_operations: bool = False, timeout_s: float | None = None
    ) -> ClusterDescription:
        """Describe the cluster: id, controller, and live brokers with their racks. Raises
        KafkaError."""
        with self._call(timeout_s) as (cluster, deadline):
            return describe_cluster(
                cluster, deadline, include_authorized_operations=include_authorized_operations
            )

    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, *, timeout_s: float | None = None
    ) -> Results[int, dict[str, LogDirDescription]]:
        """Describe the log directories of these brokers, or of all. Return them by node id, then by
        path."""
        with self._call(timeout_s) as (cluster, deadline):
            if brokers is None:
                items = [broker.node_id for broker in describe_cluster(cluster, deadline).brokers]
            else:
                items = arguments.checked_ints(brokers, "brokers")
            what = "reading log directories"
            return ToBroker(cluster).call_each(items, _DescribeLogDirs(), deadline, what)

    def describe_features(self, *, timeout_s: float | None = None) -> FeatureMetadata:
        """Describe the levels of features, such as metadata.version: those that the cluster uses,
        and those that a broker could use. Empty before Kafka 2.7. Raises KafkaError."""
        request = messages.ApiVersionsRequest(
            client_software_name="sparkkafka", client_software_version=__version__
        )
        return self._one("features", request, _read_features, timeout_s)

    def update_features(
        self,
        updates: Mapping[str, FeatureUpdate],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> Results[str, None]:
        """Set the levels of features (Kafka 2.7). Return results by feature; brokers from 4.0 on
        update all or none. Errors: INVALID_UPDATE_VERSION, FEATURE_UPDATE_FAILED, … Raises
        OptionError."""
        arguments.checked_flag(validate_only, "validate_only")
        example = '"metadata.version": FeatureUpdate(20)'
        for name, update in arguments.checked_mapping(updates, "updates", example).items():
            arguments.checked_name(name, "each key of updates")
            if not isinstance(update, FeatureUpdate):
                raise OptionError(f"updates is a dict such as {{{example}}}, got {update!r} in it")
            what = f"feature {name}: max_version_level"
            arguments.checked_int(update.max_version_level, what, 0, 2**15 - 1)  # an int16
            arguments.checked_choice(
                update.upgrade_type, UPGRADE_TYPES, f"feature {name}: upgrade_type"
            )
        handler, lookup = _UpdateFeatures(updates, validate_only), ToController(self._cluster)
        return self._each(updates, handler, lookup, "updating features", timeout_s)
