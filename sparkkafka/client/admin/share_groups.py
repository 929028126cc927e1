"""List, describe and delete share groups (KIP-932); list, alter and delete their offsets.

A share group has one offset for each partition: all records before it are finished. Where it begins
in a new partition is its own setting share.auto.offset.reset, latest by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparkkafka.client import arguments
from sparkkafka.client.admin import groups
from sparkkafka.client.admin.acls import authorized_operations
from sparkkafka.client.admin.groups import NO_SUCH_GROUP, GroupListing, assigned_partitions
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.request_driver import (
    FOR_GROUP,
    ApiHandler,
    Outcome,
    Outcomes,
    ToCoordinator,
    call_each,
)
from sparkkafka.client.group.committed_offsets import coordinator_of
from sparkkafka.client.values import Listing, Results, TopicPartition, by_topic, rows_by_topic
from sparkkafka.errors import BrokerError, ErrorCode, OptionError
from sparkkafka.protocol import messages

_HINTS: Mapping[int, str] = {
    ErrorCode.NON_EMPTY_GROUP: (
        "the group has members: stop its consumers first (those that died count until "
        "group.share.session.timeout.ms has passed)"
    ),
    ErrorCode.GROUP_ID_NOT_FOUND: NO_SUCH_GROUP,
}


@dataclass(frozen=True, kw_only=True)
class ShareMemberDescription:
    """A member of a share group. `assignment` has the partitions that it reads, which other members
    may read too; `topics` are those it subscribes to."""

    member_id: str
    client_id: str
    host: str
    assignment: frozenset[TopicPartition]
    topics: frozenset[str]
    member_epoch: int
    rack_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class ShareGroupDescription:
    """A share group. `coordinator` is a node id; `authorized_operations` are this user's, None if
    they were not requested."""

    group_id: str
    state: str
    assignor: str
    members: tuple[ShareMemberDescription, ...]
    coordinator: int | None
    group_epoch: int
    target_assignment_epoch: int
    authorized_operations: frozenset[str] | None = None


class ShareGroupOffset(NamedTuple):
    """The offset of a share group in a partition: all records before `start_offset` are finished.

    `lag` counts the unfinished records from there on (None before Kafka 4.2).
    """

    start_offset: int
    leader_epoch: int | None = None
    lag: int | None = None


class _DescribeShareGroups(ApiHandler[str, ShareGroupDescription]):
    request_type = messages.ShareGroupDescribeRequest
    name_format = "group {!r}"
    acl = "DESCRIBE on group {}, and on the topics that its members subscribe to"
    hints = _HINTS

    def __init__(self, cluster: Cluster, operations: bool) -> None:
        self._cluster = cluster
        self._operations = operations

    def build(self, items: Sequence[str], version: int) -> Any:
        return messages.ShareGroupDescribeRequest(
            group_ids=list(items), include_authorized_operations=self._operations
        )

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        return [(row.group_id, Outcome.of(row, self._description(row))) for row in response.groups]

    def _description(self, row: Any) -> ShareGroupDescription:
        return ShareGroupDescription(
            group_id=row.group_id,
            state=row.group_state,
            assignor=row.assignor_name,
            members=tuple(
                ShareMemberDescription(
                    member_id=member.member_id,
                    client_id=member.client_id,
                    host=member.client_host,
                    assignment=assigned_partitions(member.assignment),
                    topics=frozenset(member.subscribed_topic_names),
                    member_epoch=member.member_epoch,
                    rack_id=member.rack_id,
                )
                for member in row.members
            ),
            coordinator=self._cluster.coordinators.get((FOR_GROUP, row.group_id)),
            group_epoch=row.group_epoch,
            target_assignment_epoch=row.assignment_epoch,
            authorized_operations=authorized_operations(row.authorized_operations),
        )


class _DescribeOffsets(ApiHandler[str, dict[TopicPartition, Outcome]]):
    """The offsets of a group, each with its own error; the item is the group."""

    request_type = messages.DescribeShareGroupOffsetsRequest
    name_format = "group {!r}"
    acl = "DESCRIBE on group {}"
    hints = _HINTS

    def __init__(self, partitions: Sequence[TopicPartition] | None) -> None:
        self._partitions = partitions

    def build(self, items: Sequence[str], version: int) -> Any:
        topics = None
        if self._partitions is not None:
            topics = [
                messages.DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=numbers)
                for name, numbers in by_topic(self._partitions).items()
            ]
        group = messages.DescribeShareGroupOffsetsRequestGroup(group_id=items[0], topics=topics)
        return messages.DescribeShareGroupOffsetsRequest(groups=[group])

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        for group in response.groups:
            offsets = {
                TopicPartition(topic.topic_name, row.partition_index): Outcome(
                    row.error_code, _share_offset(row), row.error_message
                )
                for topic in group.topics
                for row in topic.partitions
            }
            yield group.group_id, Outcome(group.error_code, offsets, group.error_message)


def _share_offset(row: Any) -> ShareGroupOffset | None:
    """Read the offset of a partition, None if the group has not begun there."""
    if row.start_offset < 0:
        return None
    return ShareGroupOffset(
        row.start_offset,
        row.leader_epoch if row.leader_epoch >= 0 else None,
        row.lag if row.lag >= 0 else None,
    )


class _AlterOffsets(ApiHandler[TopicPartition, None]):
    request_type = messages.AlterShareGroupOffsetsRequest
    name_format = "{} of group {handler.group_id!r}"
    acl = "READ on group {handler.group_id} and on topic {0.topic}"
    hints = _HINTS

    def __init__(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.group_id = group_id
        self._offsets = offsets

    def build(self, items: Sequence[TopicPartition], version: int) -> Any:
        def row(tp: TopicPartition) -> messages.AlterShareGroupOffsetsRequestPartition:
            return messages.AlterShareGroupOffsetsRequestPartition(
                partition_index=tp.partition, start_offset=self._offsets[tp]
            )

        topics = [
            messages.AlterShareGroupOffsetsRequestTopic(topic_name=name, partitions=rows)
            for name, rows in rows_by_topic(items, row).items()
        ]
        return messages.AlterShareGroupOffsetsRequest(group_id=self.group_id, topics=topics)

    def read(self, response: Any, items: Sequence[TopicPartition]) -> Outcomes[TopicPartition]:
        return [
            (TopicPartition(topic.topic_name, row.partition_index), Outcome.of(row))
            for topic in response.responses
            for row in topic.partitions
        ]


class _DeleteShareOffsets(ApiHandler[str, None]):
    """Items are topics."""

    request_type = messages.DeleteShareGroupOffsetsRequest
    name_format = "topic {!r} of group {handler.group_id!r}"
    acl = "DELETE on group {handler.group_id} and READ on topic {}"
    hints = _HINTS

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id

    def build(self, items: Sequence[str], version: int) -> Any:
        topics = [messages.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in items]
        return messages.DeleteShareGroupOffsetsRequest(group_id=self.group_id, topics=topics)

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        return [(row.topic_name, Outcome.of(row)) for row in response.responses]


class ShareGroupAdmin(groups.GroupAdmin):
    """The calls of `Admin` about share groups."""

    def list_share_groups(
        self, *, states: Iterable[str] | None = None, timeout_s: float | None = None
    ) -> Listing[GroupListing]:
        """List the share groups of all brokers, or only those in some states (Stable, Empty).
        Share groups need Kafka 4.1.

        A broker that fails is in `errors`, and what it coordinates is missing. Raises KafkaError if
        all brokers fail, OptionError for an unknown state.
        """
        with self._call(timeout_s) as (cluster, deadline):
            return groups.list_groups(
                cluster,
                deadline,
                states=states,
                types=["share"],
                known_states=frozenset({"Dead", "Empty", "Stable"}),
            )

    def describe_share_groups(
        self,
        group_ids: Iterable[str],
        *,
        include_authorized_operations: bool = False,
        timeout_s: float | None = None,
    ) -> Results[str, ShareGroupDescription]:
        """Describe share groups: state, and members with their partitions, by group id. A group
        that does not exist, or is of another kind, is a BrokerError GROUP_ID_NOT_FOUND."""
        arguments.checked_flag(include_authorized_operations, "include_authorized_operations")
        with self._call(timeout_s) as (cluster, deadline):
            handler = _DescribeShareGroups(cluster, include_authorized_operations)
            items, lookup = (
                arguments.checked_names(group_ids, "group_ids"),
                ToCoordinator(cluster, FOR_GROUP),
            )
            return call_each(cluster, items, handler, lookup, deadline, "describing share groups")

    def describe_share_group(
        self, group_id: str, *, timeout_s: float | None = None
    ) -> ShareGroupDescription:
        """Describe one group; its error is raised."""
        return self.describe_share_groups([group_id], timeout_s=timeout_s)[group_id]

    def delete_share_groups(
        self, group_ids: Iterable[str], *, timeout_s: float | None = None
    ) -> Results[str, None]:
        """Delete groups without members, with all their offsets. Results are by group id.
        Errors: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, and so on."""
        return self.delete_consumer_groups(group_ids, timeout_s=timeout_s)

    def list_share_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, ShareGroupOffset | None]:
        """List the group's offsets: in all partitions that it has read, or in `partitions` (None:
        it has not begun there). Raises KafkaError if the group does not exist or cannot be read."""
        arguments.checked_name(group_id, "group_id")
        items = (
            None if partitions is None else arguments.checked_partitions(partitions, "partitions")
        )
        with self._call(timeout_s) as (cluster, deadline):
            handler, lookup = _DescribeOffsets(items), ToCoordinator(cluster, FOR_GROUP)
            what = f"listing the offsets of share group {group_id!r}"
            outcomes = call_each(cluster, [group_id], handler, lookup, deadline, what)[group_id]
            results: dict[TopicPartition, Any] = dict.fromkeys(items or ())
            for tp, outcome in outcomes.items():
                where = f"{handler.request_type.API_NAME} of {tp} of group {group_id!r}"
                if outcome.code:
                    results[tp] = BrokerError(outcome.code, where, outcome.message)
                elif outcome.value is not None or items is not None:
                    results[tp] = outcome.value
            return Results(results)

    def alter_share_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        *,
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, None]:
        """Set the offsets from which a group resumes reading; it must exist and have no members.
        Errors of items: NON_EMPTY_GROUP, UnknownTopicError, … Raises OptionError for a negative
        offset."""
        arguments.checked_name(group_id, "group_id")
        items = {}
        for key, offset in arguments.checked_mapping(
            offsets, "offsets", 'TopicPartition("orders", 0): 100'
        ).items():
            tp = arguments.checked_partition(key, "offsets")
            items[tp] = arguments.checked_int(offset, f"offsets: the offset of {tp}")
            if not 0 <= items[tp] < 1 << 63:
                raise OptionError(f"offsets: the offset of {tp} is not negative, got {offset}")
        with self._call(timeout_s) as (cluster, deadline):
            handler, lookup = _AlterOffsets(group_id, items), coordinator_of(cluster, group_id)
            what = f"setting the offsets of share group {group_id!r}"
            return call_each(cluster, items, handler, lookup, deadline, what)

    def delete_share_group_offsets(
        self, group_id: str, topics: Iterable[str], *, timeout_s: float | None = None
    ) -> Results[str, None]:
        """Delete the offsets of topics in a group without members: it then begins as in new topics.
        By topic. Errors of items: NON_EMPTY_GROUP, UnknownTopicError, and so on."""
        arguments.checked_name(group_id, "group_id")
        items, handler = arguments.checked_names(topics, "topics"), _DeleteShareOffsets(group_id)
        what = f"deleting offsets of share group {group_id!r}"
        with self._call(timeout_s) as (cluster, deadline):
            lookup = coordinator_of(cluster, group_id)
            return call_each(cluster, items, handler, lookup, deadline, what)
