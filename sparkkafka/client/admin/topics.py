"""Create, delete, describe and list topics; add partitions, delete the oldest records (KIP-107),
move replicas to other brokers (KIP-455), elect leaders (KIP-460).

The controller answers before the other brokers know of a change. So creating waits until all
partitions have leaders, and deleting until metadata no longer has the topic.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sparkkafka.client import arguments
from sparkkafka.client.admin.acls import OPERATIONS_VERSION, authorized_operations
from sparkkafka.client.admin.calls import AdminCalls
from sparkkafka.client.cluster.cluster import UNKNOWN_TOPIC_GRACE_MS, Cluster
from sparkkafka.client.cluster.metadata import unknown_topic_error
from sparkkafka.client.cluster.offsets import OffsetSpec, list_offsets_each
from sparkkafka.client.cluster.request_driver import (
    NO_VERSION,
    ApiHandler,
    Outcome,
    Outcomes,
    ToAny,
    ToController,
    ToLeader,
)
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import Results, TopicPartition, by_partition, request_topics
from sparkkafka.config.source import encode_topic_id
from sparkkafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
    UnknownTopicError,
    is_retriable,
)
from sparkkafka.protocol import messages

ConfigValue = str | int | bool
"""A setting's value to set."""

BROKER_DEFAULT = -1
REFRESH_MS = 50  # the longest time between two requests for metadata that must show a change


@dataclass(frozen=True)
class NewTopic:
    """A topic to create: NewTopic("orders", 6, 3), NewTopic("orders", partitions=6).

    `partitions` and `replication_factor` are the broker's defaults (num.partitions,
    default.replication.factor) if left out, since Kafka 2.4. `replica_assignment` gives the
    brokers of each partition instead: {partition: [node id of the preferred leader, others]}.
    Whole numbers and bools in `configs` are turned into text. Raises OptionError for what cannot
    be a name, a number or a value.
    """

    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    replica_assignment: Mapping[int, Sequence[int]] | None = field(default=None, kw_only=True)
    configs: Mapping[str, ConfigValue] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        """Check all fields. Raises OptionError, which names the topic and the field."""
        arguments.checked_name(self.name, "a topic's name")
        arguments.checked_int(self.partitions, f"topic {self.name}: partitions")
        arguments.checked_int(self.replication_factor, f"topic {self.name}: replication_factor")
        arguments.checked_mapping(
            self.configs, f"topic {self.name}: configs", '"retention.ms": "3600000"'
        )
        for key, value in self.configs.items():
            arguments.checked_name(key, f"topic {self.name}: a name in configs")
            arguments.setting_text(value, f"topic {self.name}, {key}")
        if self.replica_assignment is not None:
            what = f"topic {self.name}: replica_assignment"
            for number, brokers in arguments.checked_mapping(
                self.replica_assignment, what, "0: [1, 2]"
            ).items():
                arguments.checked_int(number, f"each key of {what}")
                arguments.checked_ints(brokers, f"{what} of partition {number}")
        numbers = (self.partitions, self.replication_factor)
        if self.replica_assignment is not None and numbers != (BROKER_DEFAULT, BROKER_DEFAULT):
            raise OptionError(
                f"topic {self.name}: replica_assignment says how many partitions and replicas "
                "there are; leave partitions and replication_factor out"
            )


# --- creating ---------------------------------------------------------------------------------


class _CreateTopics(ApiHandler[str, None]):
    request_type = messages.CreateTopicsRequest
    name_format = "topic {}"
    acl = "CREATE on topic {}, or on the cluster"
    done_codes = frozenset({ErrorCode.TOPIC_ALREADY_EXISTS})

    def __init__(self, topics: Mapping[str, NewTopic], validate_only: bool) -> None:
        self._topics = topics
        self._validate_only = validate_only

    def build(self, items: Sequence[str], version: int) -> Any:
        """Build the request that creates the topics with these names."""
        return messages.CreateTopicsRequest(
            topics=[_creatable_topic(self._topics[name]) for name in items],
            validate_only=self._validate_only,
        )

    def unsupported_reason(self, item: str, version: int) -> str | None:
        """Return why brokers with this version of CreateTopics cannot create the topic, None if
        they can: before version 4 they have no defaults for partitions and replicas."""
        topic = self._topics[item]
        if version == NO_VERSION:
            return (
                "this broker creates no topics for Kafka clients (CreateTopics): create it with "
                "the service's own tools"
            )
        if topic.replica_assignment is not None or version >= 4:
            return None
        for name in ("partitions", "replication_factor"):
            if getattr(topic, name) == BROKER_DEFAULT:
                return self.needs(f"the brokers' default of {name}", 4) + f": set {name}"
        return None

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        """Return the error code of each topic: 0 if it was created."""
        return [(row.name, Outcome.of(row)) for row in response.topics]


def _creatable_topic(topic: NewTopic) -> messages.CreatableTopic:
    """Make the part of the request that creates this topic."""
    return messages.CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            messages.CreatableReplicaAssignment(partition_index=number, broker_ids=list(brokers))
            for number, brokers in (topic.replica_assignment or {}).items()
        ],
        configs=[
            messages.CreatableTopicConfig(name=key, value=arguments.setting_text(value, key))
            for key, value in topic.configs.items()
        ],
    )


def create_topics(
    cluster: Cluster, topics: Iterable[NewTopic], deadline: Deadline, *, validate_only: bool = False
) -> Results[str, None]:
    """Create topics, and wait until every partition of those that were created has a leader.

    Raises OptionError if a name occurs twice, or for anything but a NewTopic.
    """
    arguments.checked_flag(validate_only, "validate_only")
    by_name: dict[str, NewTopic] = {}
    for topic in arguments.checked_list(topics, NewTopic, "new_topics", 'NewTopic("orders")'):
        if topic.name in by_name:
            raise OptionError(f"topic {topic.name} is to be created twice in one call")
        by_name[topic.name] = topic
    handler = _CreateTopics(by_name, validate_only)
    results = ToController(cluster).call_each(by_name, handler, deadline, "creating topics")
    if validate_only:
        return results
    waited = _wait_for_leaders(cluster, results.values_by_item, deadline)
    return Results(results.outcomes | waited)


# --- deleting ---------------------------------------------------------------------------------


class _DeleteTopics(ApiHandler[str, None]):
    request_type = messages.DeleteTopicsRequest
    name_format = "topic {}"
    acl = "DELETE on topic {}"
    final_codes = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    done_codes = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})

    def build(self, items: Sequence[str], version: int) -> Any:
        """Build the request that deletes the topics with these names."""
        if version >= 6:  # a topic may have an id in place of its name
            topics = [messages.DeleteTopicState(name=name) for name in items]
            return messages.DeleteTopicsRequest(topics=topics)
        return messages.DeleteTopicsRequest(topic_names=list(items))

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        """Return the error code of each topic: 0 if it was deleted."""
        return [(row.name, Outcome.of(row)) for row in response.responses]


def delete_topics(
    cluster: Cluster, topic_names: Iterable[str], deadline: Deadline
) -> Results[str, None]:
    """Delete topics, and wait until metadata no longer shows them."""
    items, what = arguments.checked_names(topic_names, "topic_names"), "deleting topics"
    results = ToController(cluster).call_each(items, _DeleteTopics(), deadline, what)
    why = f"is marked for deletion, and still there after {deadline.text}"
    remaining = _wait_for_metadata(cluster, results.values_by_item, deadline, _is_gone)
    late = {name: KafkaTimeoutError(f"topic {name} {why}") for name in remaining}
    return Results(results.outcomes | late)


def _is_gone(name: str, failed: Mapping[str, int]) -> bool:
    """Return whether brokers no longer show a topic. `failed` has the error codes of topics without
    metadata."""
    # With a retriable error the topic may still exist, and 0 means that it does. Another error,
    # such as a missing permission, would not end.
    code = failed.get(name, 0)
    return code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or (code != 0 and not is_retriable(code))


# --- describing ---------------------------------------------------------------------------------


class PartitionDescription(NamedTuple):
    """A partition and the node ids of its brokers. `leader` is None while there is none, its epoch
    -1 if not known (before Kafka 2.3)."""

    partition: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TopicDescription:
    """A topic. `topic_id` is written as Kafka's tools write it, None before Kafka 2.8;
    `authorized_operations` are this user's, None if they were not requested."""

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


class _DescribeTopics(ApiHandler[str, TopicDescription]):
    request_type = messages.MetadataRequest
    name_format = "topic {}"
    acl = "DESCRIBE on topic {}"
    final_codes = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})

    def __init__(self, include_authorized_operations: bool) -> None:
        self._operations = include_authorized_operations

    def build(self, items: Sequence[str], version: int) -> Any:
        """Build the request for the metadata of these topics, which creates none of them."""
        return messages.MetadataRequest(
            topics=[messages.MetadataRequestTopic(name=name) for name in items],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=self._operations,
        )

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        """Return the description of each topic, or its error."""
        return [
            (row.name, Outcome.of(row, None if row.error_code else _description(row)))
            for row in response.topics
        ]

    def needed_versions(self, item: str) -> Mapping[str, int]:
        """Return the version that has operations (KIP-430), if they are requested."""
        return {"include_authorized_operations": OPERATIONS_VERSION} if self._operations else {}


def _description(topic: Any) -> TopicDescription:
    """Read a topic of a Metadata response."""
    return TopicDescription(
        name=topic.name,
        topic_id=topic_id_text(topic.topic_id),
        is_internal=topic.is_internal,
        partitions=tuple(
            PartitionDescription(
                partition.partition_index,
                partition.leader_id if partition.leader_id >= 0 else None,
                partition.leader_epoch,
                tuple(partition.replica_nodes),
                tuple(partition.isr_nodes),
                tuple(partition.offline_replicas),
            )
            for partition in sorted(topic.partitions, key=lambda item: item.partition_index)
        ),
        authorized_operations=authorized_operations(topic.topic_authorized_operations),
    )


def topic_id_text(topic_id: uuid.UUID) -> str | None:
    """Return a topic id as Kafka's tools write it, None if the topic has none."""
    return encode_topic_id(topic_id.bytes) if topic_id.int else None


# --- waiting until brokers know of changes ----------------------------------------------------


def _wait_for_metadata(
    cluster: Cluster,
    names: Iterable[str],
    deadline: Deadline,
    is_done: Callable[[str, Mapping[str, int]], bool],
) -> list[str]:
    """Request metadata of topics until `is_done(name, {topic: error code})` is true for all.
    Returns those for which it was not at the deadline."""
    pending = list(names)
    backoff = cluster.backoff()
    while pending:
        try:
            failed = cluster.request_metadata(pending, deadline)
        except KafkaError:
            break  # the change itself has succeeded
        pending = [name for name in pending if not is_done(name, failed)]
        if pending:
            if deadline.expired:
                break
            deadline.pause(min(backoff.next_ms(), REFRESH_MS))
    return pending


def _wait_for_leaders(
    cluster: Cluster, names: Iterable[str] | Mapping[str, int], deadline: Deadline
) -> dict[str, KafkaError]:
    """Wait until all partitions of topics have leaders that brokers know. Returns {topic: error} of
    those that have not at the deadline.

    A mapping gives the number of partitions that each topic must have. Topics that this user may
    not see are left out.
    """
    counts = names if isinstance(names, Mapping) else {}

    def has_leaders(name: str, failed: Mapping[str, int]) -> bool:
        """Return whether waiting for this topic has ended; `failed` has the topics' error codes."""
        if name in failed:
            return not is_retriable(failed[name])  # this user may not see the topic: do not wait
        topic = cluster.known_topic(name)
        return (
            topic is not None
            and len(topic.partitions) >= (counts.get(name) or 1)
            and all(partition.leader in cluster.brokers for partition in topic.partitions.values())
        )

    errors: dict[str, KafkaError] = {}
    for name in _wait_for_metadata(cluster, names, deadline, has_leaders):
        errors[name] = KafkaTimeoutError(
            f"topic {name}: done, but after {deadline.text} not every partition has a "
            "leader that brokers know of; it may be usable in a moment"
        )
        cause = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"Metadata of topic {name}")
        errors[name].__cause__ = cause
    return errors


# --- partitions and records ---------------------------------------------------------------------


class NewPartitions(NamedTuple):
    """The new total of a topic's partitions. `assignments` may give the brokers of each
    new one, the preferred leader first."""

    total: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(eq=False)
class _CreatePartitions(ApiHandler[str, None]):
    request_type = messages.CreatePartitionsRequest
    name_format = "topic {}"
    acl = "ALTER on topic {}"
    final_codes = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})

    cluster: Cluster
    items: Mapping[str, NewPartitions]
    deadline: Deadline
    validate_only: bool

    def build(self, items: Sequence[str], version: int) -> Any:
        """Build the request that raises the number of partitions of these topics."""
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
                for name, new in ((name, self.items[name]) for name in items)
            ],
            validate_only=self.validate_only,
        )

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        """Return the error code of each topic: 0 if partitions were added."""
        return [(row.name, Outcome.of(row)) for row in response.results]

    def is_already_done(self, item: str, code: int) -> bool:
        """Return whether INVALID_PARTITIONS means that an earlier attempt has succeeded: the topic
        has the requested total. The broker that gets the request may learn of it a moment later."""
        if code != ErrorCode.INVALID_PARTITIONS:
            return False
        total = self.items[item].total
        grace = self.deadline.sooner(UNKNOWN_TOPIC_GRACE_MS)
        while True:
            self.cluster.request_metadata([item], grace)
            count = self.cluster.partition_count(item) or 0
            if count >= total or grace.expired:
                return count == total
            grace.pause(REFRESH_MS)


class _DeleteRecords(ApiHandler[TopicPartition, int]):
    request_type = messages.DeleteRecordsRequest
    acl = "DELETE on topic {0.topic}"

    def __init__(self, before: Mapping[TopicPartition, int]) -> None:
        self._before = before

    def build(self, items: Sequence[TopicPartition], version: int) -> Any:
        """Build the request that deletes the records before an offset of each partition."""
        topics = request_topics(
            messages.DeleteRecordsTopic,
            items,
            lambda tp: messages.DeleteRecordsPartition(
                partition_index=tp.partition, offset=self._before[tp]
            ),
        )
        return messages.DeleteRecordsRequest(topics=topics)

    def read(self, response: Any, items: Sequence[TopicPartition]) -> Outcomes[TopicPartition]:
        """Return the first offset that is left in each partition, or its error."""
        return [
            (tp, Outcome.of(row, row.low_watermark)) for tp, row in by_partition(response.topics)
        ]

    def name(self, item: TopicPartition) -> str:
        """Name a partition and the offset before which its records are deleted."""
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

    def __init__(self, items: Mapping[TopicPartition, list[int] | None]) -> None:
        self._items = items

    def build(self, items: Sequence[TopicPartition], version: int) -> Any:
        """Build the request that assigns new replicas to these partitions; None in place of
        replicas cancels the reassignment of a partition."""
        topics = request_topics(
            messages.ReassignableTopic,
            items,
            lambda tp: messages.ReassignablePartition(
                partition_index=tp.partition, replicas=self._items[tp]
            ),
        )
        return messages.AlterPartitionReassignmentsRequest(topics=topics)

    def read(self, response: Any, items: Sequence[TopicPartition]) -> Outcomes[TopicPartition]:
        """Return the error code of each partition: 0 if its reassignment has begun, or is
        cancelled."""
        return [(tp, Outcome.of(row)) for tp, row in by_partition(response.responses)]

    def is_already_done(self, item: TopicPartition, code: int) -> bool:
        """Return whether an earlier attempt, whose response was lost, has cancelled the
        reassignment."""
        return self._items[item] is None and code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


class _ElectLeaders(ApiHandler[TopicPartition | None, Any]):
    """Elects leaders. Items are partitions, or one item None for all that need an election, whose
    value is {partition: error or None}."""

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

    def __init__(self, election_type: str) -> None:
        self._type = election_type

    def needed_versions(self, item: TopicPartition | None) -> Mapping[str, int]:
        """Return the version that has types of elections, unless the type is that of version 0."""
        return {"an election of type UNCLEAN": 1} if self._type == "UNCLEAN" else {}

    def build(self, items: Sequence[TopicPartition | None], version: int) -> Any:
        """Build the request for elections in these partitions; None stands for all partitions."""
        chosen = [item for item in items if item is not None]
        return messages.ElectLeadersRequest(
            election_type=ELECTION_TYPES[self._type],
            topic_partitions=request_topics(messages.ElectionPartitions, chosen) or None,
        )

    def read(
        self, response: Any, items: Sequence[TopicPartition | None]
    ) -> Outcomes[TopicPartition | None]:
        """Return the error code of each election; for the item None, which elects leaders of all
        partitions, the errors by partition."""
        rows = {
            TopicPartition(topic.topic, row.partition_id): row
            for topic in response.replica_election_results
            for row in topic.partition_result
        }
        if None not in items:
            return [(tp, Outcome.of(row)) for tp, row in rows.items()]
        errors = {
            tp: BrokerError(row.error_code, f"ElectLeaders of {tp}", row.error_message)
            if row.error_code
            else None
            for tp, row in rows.items()
        }
        return [(None, Outcome(0, errors))]

    def name(self, item: TopicPartition | None) -> str:
        return "all partitions" if item is None else str(item)


class TopicAdmin(AdminCalls):
    """The calls of `Admin` about topics and their partitions."""

    def create_topics(
        self,
        new_topics: Iterable[NewTopic],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> Results[str, None]:
        """Create topics and wait until all their partitions have leaders. Return results by topic
        name.

        With `validate_only` the broker checks the topics but creates none. Errors of items:
        TOPIC_ALREADY_EXISTS, INVALID_REPLICATION_FACTOR, INVALID_CONFIG, … Raises OptionError for a
        duplicate name.
        """
        with self._call(timeout_s) as (cluster, deadline):
            return create_topics(cluster, new_topics, deadline, validate_only=validate_only)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = BROKER_DEFAULT,
        replication_factor: int = BROKER_DEFAULT,
        configs: Mapping[str, ConfigValue] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Create one topic. Raises its error. `partitions` and `replication_factor` are by default
        those of the broker's configuration."""
        configs = {} if configs is None else configs
        new = NewTopic(name, partitions, replication_factor, configs=configs)
        self.create_topics([new], timeout_s=timeout_s).all()

    def delete_topics(
        self, topic_names: Iterable[str], *, timeout_s: float | None = None
    ) -> Results[str, None]:
        """Delete topics and wait until brokers no longer list them. Return results by topic name.
        Errors: UnknownTopicError, TOPIC_DELETION_DISABLED, and so on."""
        with self._call(timeout_s) as (cluster, deadline):
            return delete_topics(cluster, topic_names, deadline)

    def delete_topic(self, name: str, *, timeout_s: float | None = None) -> None:
        """Delete one topic. Raises its error; an unknown topic's error names similar ones."""
        results = self.delete_topics([name], timeout_s=timeout_s)
        for error in self._with_nearest_topics(results.errors, timeout_s).values():
            raise error

    def describe_topics(
        self,
        topic_names: Iterable[str],
        *,
        include_authorized_operations: bool = False,
        timeout_s: float | None = None,
    ) -> Results[str, TopicDescription]:
        """Describe topics: partitions with leaders, replicas and in-sync replicas. Return results
        by topic name. The error of a topic that does not exist is an UnknownTopicError, without a
        wait."""
        arguments.checked_flag(include_authorized_operations, "include_authorized_operations")
        handler = _DescribeTopics(include_authorized_operations)
        items = arguments.checked_names(topic_names, "topic_names")
        return self._each(items, handler, ToAny(self._cluster), "describing topics", timeout_s)

    def describe_topic(self, name: str, *, timeout_s: float | None = None) -> TopicDescription:
        """Describe one topic. Raises the topic's error; that of a missing topic names the most
        similar one."""
        described = self.describe_topics([name], timeout_s=timeout_s)
        for error in self._with_nearest_topics(described.errors, timeout_s).values():
            raise error
        return described[name]

    def _with_nearest_topics(
        self, errors: Mapping[str, KafkaError], timeout_s: float | None = None
    ) -> dict[str, KafkaError]:
        """Return the errors by topic. That of a missing topic also names the most similar topic,
        and does not advise to create the topic, because this method is for topics that the user
        wants to describe, change or delete."""
        missing = [name for name, error in errors.items() if isinstance(error, UnknownTopicError)]
        if not missing:
            return dict(errors)
        try:
            with self._call(timeout_s) as (cluster, deadline):
                nearest = cluster.nearest_topics(missing, deadline)
        except KafkaError:  # the list is only for a hint
            return dict(errors)
        return {
            **errors,
            **{name: unknown_topic_error([name], nearest=nearest, advice="") for name in missing},
        }

    def list_topics(
        self, *, include_internal: bool = False, timeout_s: float | None = None
    ) -> dict[str, TopicListing]:
        """List all topics that this user may see, sorted by name. Raises KafkaError."""
        arguments.checked_flag(include_internal, "include_internal")
        request = messages.MetadataRequest(topics=None, allow_auto_topic_creation=False)
        with self._call(timeout_s) as (cluster, deadline):
            response = cluster.call(request, deadline=deadline, what="listing topics")
            return {
                row.name: TopicListing(row.name, topic_id_text(row.topic_id), row.is_internal)
                for row in sorted(response.topics, key=lambda row: str(row.name))
                if row.name
                and row.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # it is being deleted
                and (include_internal or not row.is_internal)
            }

    def create_partitions(
        self,
        totals: Mapping[str, int | NewPartitions],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> Results[str, None]:
        """Give topics more partitions and wait until all have leaders. Return results by topic
        name.

        `totals` has the new number of partitions of each topic. Keys may then go to other
        partitions than before. Errors of items: INVALID_PARTITIONS if there are as many already,
        UnknownTopicError, …
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
            what = "adding partitions to topics"
            results = ToController(cluster).call_each(items, handler, deadline, what)
            if validate_only:
                return results
            counts = {name: items[name].total for name in results.values_by_item}
            return Results(results.outcomes | _wait_for_leaders(cluster, counts, deadline))

    def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_s: float | None = None
    ) -> Results[TopicPartition, int]:
        """Delete the records before an offset (-1: all that exist now) in each partition. Return by
        partition the first offset that is left.

        Errors of items: OFFSET_OUT_OF_RANGE beyond the end, POLICY_VIOLATION if the topic is
        compacted, …
        """
        items = {
            tp: arguments.checked_int(offset, f"before of {tp}: the offset")
            for tp, offset in arguments.checked_by_partition(before, "before", "100").items()
        }
        with self._call(timeout_s) as (cluster, deadline):
            to_the_end = [tp for tp, offset in items.items() if offset == -1]  # high watermark
            specs = dict.fromkeys(to_the_end, OffsetSpec.latest())
            ends = list_offsets_each(cluster, specs, deadline)
            items |= {tp: end.offset for tp, end in ends.values_by_item.items()}
            with_offset = [tp for tp in items if tp not in ends.errors]
            handler, what = _DeleteRecords(items), "deleting records"
            deleted = ToLeader(cluster).call_each(with_offset, handler, deadline, what)
            outcomes = {**ends.errors, **deleted.outcomes}
            return Results({tp: outcomes[tp] for tp in items})

    def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None],
        *,
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, None]:
        """Begin to move the replicas of each partition to the given brokers, the preferred leader
        first; with None cancel the reassignment (Kafka 2.4).

        A reassignment has ended when `list_partition_reassignments` no longer lists the partition.
        Errors of items: INVALID_REPLICA_ASSIGNMENT, NO_REASSIGNMENT_IN_PROGRESS, … Raises
        OptionError.
        """
        what = "reassignments"
        items = {
            tp: None if replicas is None else arguments.checked_ints(replicas, f"{what}[{tp}]")
            for tp, replicas in arguments.checked_by_partition(
                reassignments, what, "[1, 2, 3]"
            ).items()
        }
        handler, lookup = _AlterReassignments(items), ToController(self._cluster)
        return self._each(items, handler, lookup, "moving replicas", timeout_s)

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_s: float | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """List the partitions whose replicas are moving: all, or those among `partitions`. Raises
        KafkaError."""
        topics = None
        if partitions is not None:
            chosen = arguments.checked_partitions(partitions)
            topics = request_topics(messages.ListPartitionReassignmentsTopics, chosen)

        def read(response: Any) -> dict[TopicPartition, PartitionReassignment]:
            """Return the reassignments in the response."""
            return {
                tp: PartitionReassignment(
                    tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas)
                )
                for tp, row in by_partition(response.topics)
            }

        request = messages.ListPartitionReassignmentsRequest(topics=topics)
        acl = "DESCRIBE on the cluster"
        return self._one("reassignments", request, read, timeout_s, acl=acl, to_controller=True)

    def elect_leaders(
        self,
        election_type: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, None]:
        """Elect leaders (Kafka 2.4) of `partitions`; with None of all partitions that need an
        election, and then KafkaError is raised if the request fails.

        PREFERRED makes the first replica the leader. UNCLEAN makes any live replica the leader, and
        the records that it does not have are lost. Errors of items: ELECTION_NOT_NEEDED,
        PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE, … Raises OptionError.
        """
        arguments.checked_choice(election_type, ELECTION_TYPES, "election_type")
        handler, lookup = _ElectLeaders(election_type), ToController(self._cluster)
        chosen: list[TopicPartition | None] = [None]
        if partitions is not None:
            chosen = [*arguments.checked_partitions(partitions)]
        results = self._each(chosen, handler, lookup, "electing leaders", timeout_s)
        return Results(results[None]) if partitions is None else results  # type: ignore[return-value]
