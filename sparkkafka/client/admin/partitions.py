"""Changes of partitions: add some to a topic, delete the oldest records (KIP-107), move replicas to
other brokers (KIP-455), elect leaders (KIP-460)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sparkkafka.client import arguments
from sparkkafka.client.admin.calls import AdminCalls, call_one
from sparkkafka.client.admin.topics import (
    REFRESH_MS,
    broker_timeout_ms,
    wait_for_leaders,
    with_errors,
)
from sparkkafka.client.cluster.cluster import UNKNOWN_TOPIC_GRACE_MS, Cluster
from sparkkafka.client.cluster.offsets import OffsetSpec, list_offsets_each
from sparkkafka.client.cluster.request_driver import (
    ApiHandler,
    Outcome,
    Outcomes,
    ToController,
    ToLeader,
    call_all,
    call_each,
)
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import Results, TopicPartition, by_partition, by_topic
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, OptionError
from sparkkafka.protocol import messages

HIGH_WATERMARK = -1
"""Delete everything that all replicas in sync have."""


class NewPartitions(NamedTuple):
    """The new total of a topic's partitions. `assignments` may give the brokers of each
    new one, the preferred leader first."""

    total: int
    assignments: Sequence[Sequence[int]] | None = None


class _CreatePartitions(ApiHandler[str, None]):
    request_type = messages.CreatePartitionsRequest
    name_format = "topic {}"
    acl = "ALTER on topic {}"
    final_codes = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})

    def __init__(
        self,
        cluster: Cluster,
        items: Mapping[str, NewPartitions],
        deadline: Deadline,
        validate_only: bool,
    ) -> None:
        self._cluster = cluster
        self._items = items
        self._deadline = deadline
        self._validate_only = validate_only

    def build(self, items: Sequence[str], version: int) -> messages.CreatePartitionsRequest:
        return messages.CreatePartitionsRequest(
            topics=[
                messages.CreatePartitionsTopic(
                    name=name,
                    count=new.total,
                    assignments=None
                    if new.assignments is None
                    else [
                        messages.CreatePartitionsAssignment(broker_ids=list(brokers))
                        for brokers in new.assignments
                    ],
                )
                for name, new in ((name, self._items[name]) for name in items)
            ],
            timeout_ms=broker_timeout_ms(self._cluster, self._deadline),
            validate_only=self._validate_only,
        )

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        return [(row.name, Outcome.of(row)) for row in response.results]

    def is_already_done(self, item: str, code: int) -> bool:
        """Return whether INVALID_PARTITIONS means that an earlier attempt has succeeded: the topic
        has the requested total. The broker that gets the request may learn of it a moment later."""
        if code != ErrorCode.INVALID_PARTITIONS:
            return False
        total = self._items[item].total
        grace = self._deadline.sooner(UNKNOWN_TOPIC_GRACE_MS)
        while True:
            self._cluster.request_metadata([item], grace)
            count = self._cluster.partition_count(item) or 0
            if count >= total or grace.expired:
                return count == total
            grace.pause(REFRESH_MS)


class _DeleteRecords(ApiHandler[TopicPartition, int]):
    request_type = messages.DeleteRecordsRequest
    acl = "DELETE on topic {0.topic}"

    def __init__(self, before: Mapping[TopicPartition, int], timeout_ms: int) -> None:
        self._before = before
        self._timeout_ms = timeout_ms

    def build(self, items: Sequence[TopicPartition], version: int) -> messages.DeleteRecordsRequest:
        return messages.DeleteRecordsRequest(
            topics=[
                messages.DeleteRecordsTopic(
                    name=name,
                    partitions=[
                        messages.DeleteRecordsPartition(
                            partition_index=number,
                            offset=self._before[TopicPartition(name, number)],
                        )
                        for number in numbers
                    ],
                )
                for name, numbers in by_topic(items).items()
            ],
            timeout_ms=self._timeout_ms,
        )

    def read(self, response: Any, items: Sequence[TopicPartition]) -> Outcomes[TopicPartition]:
        return [
            (tp, Outcome(row.error_code, row.low_watermark))
            for tp, row in by_partition(response.topics)
        ]

    def name(self, item: TopicPartition) -> str:
        return f"{item} before offset {self._before[item]}"


# --- replicas and leaders -------------------------------------------------------------------------

ELECTION_TYPES: Final = {"PREFERRED": 0, "UNCLEAN": 1}


class PartitionReassignment(NamedTuple):
    """A reassignment: node ids of all replicas, of those being added and those being removed."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


class _AlterReassignments(ApiHandler[TopicPartition, None]):
    request_type = messages.AlterPartitionReassignmentsRequest
    acl = "ALTER on the cluster"
    final_codes = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})

    def __init__(self, items: Mapping[TopicPartition, list[int] | None], timeout_ms: int) -> None:
        self._items = items
        self._timeout_ms = timeout_ms

    def build(
        self, items: Sequence[TopicPartition], version: int
    ) -> messages.AlterPartitionReassignmentsRequest:
        topics = [
            messages.ReassignableTopic(
                name=name,
                partitions=[
                    messages.ReassignablePartition(
                        partition_index=number, replicas=self._items[TopicPartition(name, number)]
                    )
                    for number in numbers
                ],
            )
            for name, numbers in by_topic(items).items()
        ]
        return messages.AlterPartitionReassignmentsRequest(
            timeout_ms=self._timeout_ms, topics=topics
        )

    def read(self, response: Any, items: Sequence[TopicPartition]) -> Outcomes[TopicPartition]:
        return [(tp, Outcome.of(row)) for tp, row in by_partition(response.responses)]

    def is_already_done(self, item: TopicPartition, code: int) -> bool:
        """Return whether an earlier attempt, whose response was lost, has cancelled the
        reassignment."""
        return self._items[item] is None and code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


# --- elections --------------------------------------------------------------------------------


class _ElectLeaders(ApiHandler[TopicPartition | None, Any]):
    """Items are partitions, or one item None for all that need an election; its value is
    {partition: error or None}."""

    request_type = messages.ElectLeadersRequest
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

    def needed_versions(self, item: TopicPartition | None) -> Mapping[str, int]:
        return {"an election of type UNCLEAN": 1} if self._type == "UNCLEAN" else {}

    def build(
        self, items: Sequence[TopicPartition | None], version: int
    ) -> messages.ElectLeadersRequest:
        chosen = [item for item in items if item is not None]
        return messages.ElectLeadersRequest(
            election_type=ELECTION_TYPES[self._type],
            topic_partitions=[
                messages.ElectionPartitions(topic=name, partitions=numbers)
                for name, numbers in by_topic(chosen).items()
            ]
            if chosen
            else None,
            timeout_ms=self._timeout_ms,
        )

    def read(
        self, response: Any, items: Sequence[TopicPartition | None]
    ) -> Outcomes[TopicPartition | None]:
        rows = {
            TopicPartition(topic.topic, row.partition_id): row
            for topic in response.replica_election_results
            for row in topic.partition_result
        }
        if None in items:
            return [(None, Outcome(0, {tp: _election_error(tp, row) for tp, row in rows.items()}))]
        return [(tp, Outcome.of(row)) for tp, row in rows.items()]

    def name(self, item: TopicPartition | None) -> str:
        return "all partitions" if item is None else str(item)


def _election_error(tp: TopicPartition, row: Any) -> KafkaError | None:
    """Return the error of a partition in the response about all of them; None if it has a
    leader."""
    if not row.error_code:
        return None
    return BrokerError(row.error_code, f"ElectLeaders of {tp}", row.error_message)


class PartitionAdmin(AdminCalls):
    """The calls of `Admin` about partitions: their number, records, replicas and leaders."""

    def create_partitions(
        self,
        totals: Mapping[str, int | NewPartitions],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> Results[str, None]:
        """Give topics more partitions and wait until all have leaders. Results are by topic name.

        `totals` has the new total of each topic. Keys may then go to other partitions than before.
        Errors of items: INVALID_PARTITIONS if there are as many already, UnknownTopicError, …
        """
        arguments.checked_flag(validate_only, "validate_only")
        items = {
            topic: total if isinstance(total, NewPartitions) else NewPartitions(total)
            for topic, total in arguments.checked_mapping(totals, "totals", '"orders": 6').items()
        }
        for topic, new in items.items():
            arguments.checked_name(topic, "each key of totals")
            arguments.checked_int(new.total, f"topic {topic}: the total of partitions (totals)")
            if new.assignments is not None:
                what = f"topic {topic}: assignments"
                if isinstance(new.assignments, str | bytes) or not isinstance(
                    new.assignments, Sequence
                ):
                    raise OptionError(
                        f"{what} is a list of lists of node ids, got {new.assignments!r}"
                    )
                for brokers in new.assignments:
                    arguments.checked_ints(brokers, f"each row of {what}")
        with self._call(timeout_s) as (cluster, deadline):
            handler = _CreatePartitions(cluster, items, deadline, validate_only)
            results = call_each(
                cluster, items, handler, ToController(cluster), deadline, "growing topics"
            )
            if validate_only:
                return results
            counts = {name: items[name].total for name in results.values_by_item}
            return with_errors(results, wait_for_leaders(cluster, counts, deadline))

    def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_s: float | None = None
    ) -> Results[TopicPartition, int]:
        """Delete the records before an offset (-1: all that exist now) in each partition. The value
        is the first offset that is left. Errors of items: OFFSET_OUT_OF_RANGE beyond the end,
        POLICY_VIOLATION if compacted, …"""
        items = {
            (checked_tp := arguments.checked_partition(tp, "before")): arguments.checked_int(
                offset, f"before of {checked_tp}: the offset"
            )
            for tp, offset in arguments.checked_mapping(
                before, "before", 'TopicPartition("orders", 0): 100'
            ).items()
        }
        with self._call(timeout_s) as (cluster, deadline):
            ends = list_offsets_each(
                cluster,
                {
                    tp: OffsetSpec.latest()
                    for tp, offset in items.items()
                    if offset == HIGH_WATERMARK
                },
                deadline,
            )
            errors = ends.errors
            items |= {tp: end.offset for tp, end in ends.values_by_item.items()}
            with_offset = [tp for tp in items if tp not in errors]
            handler = _DeleteRecords(items, broker_timeout_ms(cluster, deadline))
            deleted = call_each(
                cluster, with_offset, handler, ToLeader(cluster), deadline, "deleting records"
            )
            outcome: dict[TopicPartition, int | KafkaError] = {
                tp: errors.get(tp) or deleted.errors.get(tp) or deleted[tp] for tp in items
            }
            return Results(outcome)

    def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None],
        *,
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, None]:
        """Begin to move the replicas of partitions to these brokers, the preferred leader first;
        None cancels a reassignment (Kafka 2.4). It has ended when `list_partition_reassignments` no
        longer lists the partition.

        Errors of items: INVALID_REPLICA_ASSIGNMENT, NO_REASSIGNMENT_IN_PROGRESS, … Raises
        OptionError.
        """
        items: dict[TopicPartition, list[int] | None] = {}
        example = 'TopicPartition("orders", 0): [1, 2, 3]'
        for key, replicas in arguments.checked_mapping(
            reassignments, "reassignments", example
        ).items():
            tp = arguments.checked_partition(key, "reassignments")
            items[tp] = (
                None
                if replicas is None
                else arguments.checked_ints(replicas, f"reassignments[{tp}]")
            )
        with self._call(timeout_s) as (cluster, deadline):
            handler = _AlterReassignments(items, broker_timeout_ms(cluster, deadline))
            return call_each(
                cluster, items, handler, ToController(cluster), deadline, "moving replicas"
            )

    def list_partition_reassignments(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, PartitionReassignment]:
        """List the partitions, of these or of all, whose replicas are moving. Raises KafkaError."""
        topics = None
        if partitions is not None:
            chosen = arguments.checked_partitions(partitions, "partitions")
            topics = [
                messages.ListPartitionReassignmentsTopics(name=name, partition_indexes=numbers)
                for name, numbers in by_topic(chosen).items()
            ]

        def read(response: Any) -> dict[TopicPartition, PartitionReassignment]:
            return {
                tp: PartitionReassignment(
                    tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas)
                )
                for tp, row in by_partition(response.topics)
            }

        with self._call(timeout_s) as (cluster, deadline):
            request = messages.ListPartitionReassignmentsRequest(
                timeout_ms=broker_timeout_ms(cluster, deadline), topics=topics
            )
            acl = "DESCRIBE on the cluster"
            return call_one(
                cluster, "reassignments", request, read, deadline, acl=acl, to_controller=True
            )

    def elect_leaders(
        self,
        election_type: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, None]:
        """Elect leaders (Kafka 2.4) of these partitions, or (None) of all that need it: KafkaError
        is raised if that request fails. PREFERRED makes the first replica the leader; UNCLEAN any
        live replica, and records that it does not have are lost.

        Errors of items: ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE,
        ELIGIBLE_LEADERS_NOT_AVAILABLE, … Raises OptionError.
        """
        arguments.checked_choice(election_type, ELECTION_TYPES, "election_type")
        with self._call(timeout_s) as (cluster, deadline):
            handler = _ElectLeaders(election_type, broker_timeout_ms(cluster, deadline))
            lookup, what = ToController(cluster), "electing leaders"
            if partitions is None:
                return Results(call_all(cluster, [None], handler, lookup, deadline, what)[None])
            chosen: list[TopicPartition | None] = [
                *arguments.checked_partitions(partitions, "partitions")
            ]
            return call_each(cluster, chosen, handler, lookup, deadline, what)  # type: ignore[arg-type]
