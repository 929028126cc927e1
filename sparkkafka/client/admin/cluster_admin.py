"""What Admin does to a cluster as a whole: brokers, replicas, leaders, quotas and features.

Each call takes the lock and a deadline; a module beside this one checks its arguments and does it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from sparkkafka.client.admin import brokers as broker_calls
from sparkkafka.client.admin import features, quotas, replicas
from sparkkafka.client.admin.brokers import ClusterDescription, LogDirDescription
from sparkkafka.client.admin.features import FeatureMetadata, FeatureUpdate
from sparkkafka.client.admin.quotas import (
    ClientQuotaAlteration,
    ClientQuotaEntity,
    ClientQuotaFilter,
)
from sparkkafka.client.admin.replicas import PartitionReassignment
from sparkkafka.client.arguments import NotPickled
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline, deadline_of
from sparkkafka.client.metrics.network import NetworkMetrics
from sparkkafka.client.metrics.sampled import Metrics
from sparkkafka.client.net.connecting import where
from sparkkafka.client.values import Results, TopicPartition
from sparkkafka.config.client_settings import parse_admin_settings
from sparkkafka.errors import KafkaError


class ClusterAdmin(NotPickled):
    """The part of `Admin` with the connections, and the calls that are about no topic or group."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Raises OptionError for a setting that is missing, unknown or has a bad value."""
        self._metrics = NetworkMetrics()
        self._cluster = Cluster(parse_admin_settings(config), metrics=self._metrics)
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        servers = ",".join(where(*at) for at in self._cluster.options.bootstrap_servers)
        return f"<Admin {servers}{' closed' if self._closed else ''}>"

    def close(self) -> None:
        """Close the connections; waits for a call that another thread is in. May be repeated."""
        with self._lock:
            self._closed = True
            self._cluster.close()

    def metrics(self) -> Metrics:
        """Requests, bytes and connections under Kafka's names; see `Consumer.metrics`."""
        with self._metrics.lock:
            return {"admin-client-metrics": self._metrics.figures(time.monotonic())}

    @contextmanager
    def _call(self, timeout_s: float | None) -> Iterator[tuple[Cluster, Deadline]]:
        """One call at a time: those of other threads wait for their turn."""
        with self._lock:
            if self._closed:
                raise KafkaError("this Admin is closed: make a new one")
            yield self._cluster, deadline_of(timeout_s) or self._cluster.deadline()

    def describe_cluster(
        self, *, include_authorized_operations: bool = False, timeout_s: float | None = None
    ) -> ClusterDescription:
        """The cluster's id, controller, and live brokers with their racks. Raises KafkaError."""
        with self._call(timeout_s) as (cluster, deadline):
            return broker_calls.describe_cluster(
                cluster, deadline, include_authorized_operations=include_authorized_operations
            )

    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, *, timeout_s: float | None = None
    ) -> Results[int, dict[str, LogDirDescription]]:
        """What brokers (all, or these node ids) have on disk. By node id, then by path."""
        with self._call(timeout_s) as (cluster, deadline):
            return broker_calls.describe_log_dirs(cluster, brokers, deadline)

    def describe_client_quotas(
        self, quota_filter: ClientQuotaFilter = quotas.ALL, *, timeout_s: float | None = None
    ) -> dict[ClientQuotaEntity, dict[str, float]]:
        """The quotas of users, client ids and addresses (Kafka 2.6) that a filter matches, all
        without one. By entity, then by name: producer_byte_rate and consumer_byte_rate are bytes a
        second, request_percentage per cent of a thread. Raises KafkaError."""
        with self._call(timeout_s) as (cluster, deadline):
            return quotas.describe_client_quotas(cluster, quota_filter, deadline)

    def alter_client_quotas(
        self,
        alterations: Iterable[ClientQuotaAlteration],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> Results[ClientQuotaEntity, None]:
        """Set quotas, and take away those that are None (Kafka 2.6). By entity. Errors of items:
        INVALID_REQUEST for a name or value that brokers do not take, … Raises OptionError."""
        with self._call(timeout_s) as (cluster, deadline):
            return quotas.alter_client_quotas(
                cluster, alterations, deadline, validate_only=validate_only
            )

    def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None],
        *,
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, None]:
        """Begin to move the replicas of partitions to these brokers, the preferred leader first;
        None ends a move that is under way (Kafka 2.4). It is done when
        `list_partition_reassignments` has the partition no more.

        Errors of items: INVALID_REPLICA_ASSIGNMENT, NO_REASSIGNMENT_IN_PROGRESS, … Raises
        OptionError.
        """
        with self._call(timeout_s) as (cluster, deadline):
            return replicas.alter_partition_reassignments(cluster, reassignments, deadline)

    def list_partition_reassignments(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The partitions, of these or of all, whose replicas are moving. Raises KafkaError."""
        with self._call(timeout_s) as (cluster, deadline):
            return replicas.list_partition_reassignments(cluster, partitions, deadline)

    def elect_leaders(
        self,
        election_type: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, None]:
        """Elect leaders (Kafka 2.4): PREFERRED makes the first replica the leader, UNCLEAN any that
        lives, which loses what it does not have. Of these partitions, or of all that need it
        (raises KafkaError for these).

        Errors of items: ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE,
        ELIGIBLE_LEADERS_NOT_AVAILABLE, … Raises OptionError.
        """
        with self._call(timeout_s) as (cluster, deadline):
            return replicas.elect_leaders(cluster, election_type, partitions, deadline)

    def describe_features(self, *, timeout_s: float | None = None) -> FeatureMetadata:
        """The levels of features, such as metadata.version, that the cluster uses, and those that
        a broker could use. Empty before Kafka 2.7. Raises KafkaError."""
        with self._call(timeout_s) as (cluster, deadline):
            return features.describe_features(cluster, deadline)

    def update_features(
        self,
        updates: Mapping[str, FeatureUpdate],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> Results[str, None]:
        """Set the levels of features (Kafka 2.7). By feature; brokers from 4.0 on update all or
        none. Errors of items: INVALID_UPDATE_VERSION, FEATURE_UPDATE_FAILED, … Raises
        OptionError."""
        with self._call(timeout_s) as (cluster, deadline):
            return features.update_features(cluster, updates, deadline, validate_only=validate_only)
