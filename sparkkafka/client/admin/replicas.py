"""Replicas that move to other brokers (KIP-455), and elections of leaders (KIP-460)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sparkkafka.client.admin.topics import broker_timeout_ms
from sparkkafka.client.arguments import mapping, numbers, one_of, partition, partitions
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.lookups import ToController
from sparkkafka.client.cluster.request_driver import ApiHandler, Row, call_all, call_each
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import Results, TopicPartition, by_topic
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError
from sparkkafka.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    ElectionPartitions,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)

ELECTION_TYPES: Final = {"PREFERRED": 0, "UNCLEAN": 1}

_UNCLEAN_VERSION = 1  # of ElectLeaders


class PartitionReassignment(NamedTuple):
    """A partition that moves: the node ids of all its replicas, of those that come and go."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


class _Alter(ApiHandler[TopicPartition, None]):
    request_type = AlterPartitionReassignmentsRequest
    acl = "ALTER on the cluster"
    final_codes = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})

    def __init__(self, wanted: Mapping[TopicPartition, list[int] | None], timeout_ms: int) -> None:
        self._wanted = wanted
        self._timeout_ms = timeout_ms

    def build(
        self, items: Sequence[TopicPartition], version: int
    ) -> AlterPartitionReassignmentsRequest:
        topics = [
            ReassignableTopic(
                name=name,
                partitions=[
                    ReassignablePartition(
                        partition_index=number, replicas=self._wanted[TopicPartition(name, number)]
                    )
                    for number in found
                ],
            )
            for name, found in by_topic(items).items()
        ]
        return AlterPartitionReassignmentsRequest(timeout_ms=self._timeout_ms, topics=topics)

    def read(
        self, response: Any, items: Sequence[TopicPartition]
    ) -> Iterable[tuple[TopicPartition, Row]]:
        return [
            (
                TopicPartition(topic.name, row.partition_index),
                Row(row.error_code, None, row.error_message),
            )
            for topic in response.responses
            for row in topic.partitions
        ]

    def done_before(self, item: TopicPartition, code: int) -> bool:
        """An earlier attempt, whose answer was lost, ended it."""
        return self._wanted[item] is None and code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def alter_partition_reassignments(
    cluster: Cluster,
    reassignments: Mapping[TopicPartition, Sequence[int] | None],
    deadline: Deadline,
) -> Results[TopicPartition, None]:
    """Begin to move replicas to these brokers, or (None) end that."""
    wanted: dict[TopicPartition, list[int] | None] = {}
    example = 'TopicPartition("orders", 0): [1, 2, 3]'
    for key, replicas in mapping(reassignments, "reassignments", example).items():
        tp = partition(key, "reassignments")
        wanted[tp] = None if replicas is None else numbers(replicas, f"reassignments[{tp}]")
    api = _Alter(wanted, broker_timeout_ms(cluster, deadline))
    return call_each(cluster, wanted, api, ToController(cluster), deadline, "moving replicas")


class _List(ApiHandler[str, dict[TopicPartition, PartitionReassignment]]):
    request_type = ListPartitionReassignmentsRequest
    acl = "DESCRIBE on the cluster"

    def __init__(self, wanted: Sequence[TopicPartition] | None, timeout_ms: int) -> None:
        self._wanted = wanted
        self._timeout_ms = timeout_ms

    def build(self, items: Sequence[str], version: int) -> ListPartitionReassignmentsRequest:
        topics = None
        if self._wanted is not None:
            topics = [
                ListPartitionReassignmentsTopics(name=name, partition_indexes=found)
                for name, found in by_topic(self._wanted).items()
            ]
        return ListPartitionReassignmentsRequest(timeout_ms=self._timeout_ms, topics=topics)

    def read(self, response: Any, items: Sequence[str]) -> Iterable[tuple[str, Row]]:
        found = {
            TopicPartition(topic.name, row.partition_index): PartitionReassignment(
                tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas)
            )
            for topic in response.topics
            for row in topic.partitions
        }
        return [(item, Row(0, found)) for item in items]


def list_partition_reassignments(
    cluster: Cluster, wanted: Iterable[TopicPartition] | None, deadline: Deadline
) -> dict[TopicPartition, PartitionReassignment]:
    """The partitions that are moving, of these or of all. Raises KafkaError."""
    chosen = None if wanted is None else partitions(wanted, "partitions")
    api = _List(chosen, broker_timeout_ms(cluster, deadline))
    item = "reassignments"
    return call_all(cluster, [item], api, ToController(cluster), deadline, item)[item]


# --- elections --------------------------------------------------------------------------------


class _Elect(ApiHandler[TopicPartition | None, Any]):
    """None is all partitions that need it; its value is {partition: error or None}."""

    request_type = ElectLeadersRequest
    acl = "ALTER on the cluster"
    final_codes = frozenset(
        {
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.ELECTION_NOT_NEEDED,
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        }
    )
    done_codes = frozenset({ErrorCode.ELECTION_NOT_NEEDED})

    def __init__(self, election_type: str, timeout_ms: int) -> None:
        self._type = election_type
        self._timeout_ms = timeout_ms

    def lacking(self, item: TopicPartition | None, version: int) -> str | None:
        if self._type == "UNCLEAN" and version < _UNCLEAN_VERSION:
            return self.needs("an election of type UNCLEAN", _UNCLEAN_VERSION)
        return None

    def build(self, items: Sequence[TopicPartition | None], version: int) -> ElectLeadersRequest:
        chosen = [item for item in items if item is not None]
        return ElectLeadersRequest(
            election_type=ELECTION_TYPES[self._type],
            topic_partitions=[
                ElectionPartitions(topic=name, partitions=found)
                for name, found in by_topic(chosen).items()
            ]
            if chosen
            else None,
            timeout_ms=self._timeout_ms,
        )

    def read(
        self, response: Any, items: Sequence[TopicPartition | None]
    ) -> Iterable[tuple[TopicPartition | None, Row]]:
        rows = {
            TopicPartition(topic.topic, row.partition_id): row
            for topic in response.replica_election_results
            for row in topic.partition_result
        }
        if None in items:
            return [(None, Row(0, {tp: _outcome(tp, row) for tp, row in rows.items()}))]
        return [(tp, Row(row.error_code, None, row.error_message)) for tp, row in rows.items()]

    def name(self, item: TopicPartition | None) -> str:
        return "all partitions" if item is None else str(item)


def _outcome(tp: TopicPartition, row: Any) -> KafkaError | None:
    if not row.error_code:
        return None
    return BrokerError(row.error_code, f"ElectLeaders of {tp}", row.error_message)


def elect_leaders(
    cluster: Cluster,
    election_type: str,
    wanted: Iterable[TopicPartition] | None,
    deadline: Deadline,
) -> Results[TopicPartition, None]:
    """Elect leaders of these partitions, or of all that need one. Raises KafkaError for these."""
    one_of(election_type, ELECTION_TYPES, "election_type")
    api = _Elect(election_type, broker_timeout_ms(cluster, deadline))
    route, what = ToController(cluster), "electing leaders"
    if wanted is None:
        return Results(call_all(cluster, [None], api, route, deadline, what)[None])
    chosen: list[TopicPartition | None] = [*partitions(wanted, "partitions")]
    return call_each(cluster, chosen, api, route, deadline, what)  # type: ignore[arg-type]
