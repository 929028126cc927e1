"""Describe, list and delete consumer groups and share groups, and their offsets; remove members.

A consumer group is either classic (its members assign the partitions) or one of KIP-848 (the
brokers do). A coordinator only shows which by refusing the request of the other kind, so describing
tries KIP-848's request first, as Java's Admin does.

A share group (KIP-932) has one offset for each partition: all records before it are finished. Where
it begins in a new partition is its own setting share.auto.offset.reset, latest by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from sparkkafka import errors
from sparkkafka.client import arguments
from sparkkafka.client.admin.acls import authorized_operations
from sparkkafka.client.admin.brokers import lists_from_all_brokers
from sparkkafka.client.admin.calls import AdminCalls
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.request_driver import (
    FOR_GROUP,
    ApiHandler,
    Outcome,
    Outcomes,
    ToCoordinator,
)
from sparkkafka.client.group.committed_offsets import (
    NO_GROUP,
    CommitOffsets,
    FetchAllOffsets,
    FetchOffsets,
    OffsetsHandler,
    coordinator_of,
    partition_outcomes,
)
from sparkkafka.client.values import (
    Listing,
    OffsetAndMetadata,
    Results,
    TopicPartition,
    request_topics,
)
from sparkkafka.protocol import messages
from sparkkafka.protocol.messages import consumer_protocol

CONSUMER_PROTOCOL = "consumer"
DEAD = "Dead"
NO_SUCH_GROUP = "there is no such group"

GROUP_STATES = frozenset(
    {
        "Assigning",
        "CompletingRebalance",
        "Dead",
        "Empty",
        "PreparingRebalance",
        "Reconciling",
        "Stable",
    }
)
GROUP_TYPES = frozenset({"classic", "consumer"})
"""Classic groups, and those whose partitions the brokers assign (KIP-848)."""


@dataclass(frozen=True, kw_only=True)
class MemberDescription:
    """A member of a group.

    `assignment` has the partitions that the member owns, `target_assignment` those that it will own
    (KIP-848 only). `topics` are those it subscribes to, `topic_pattern` a pattern that the brokers
    evaluate (KIP-848). `member_epoch` is None in classic groups. `is_classic` says whether the
    member uses the classic protocol, None if that is not known (during an upgrade a group under
    KIP-848 may have both kinds).
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: frozenset[TopicPartition]
    topics: frozenset[str]
    target_assignment: frozenset[TopicPartition] | None = None
    topic_pattern: str | None = None
    rack_id: str | None = None
    member_epoch: int | None = None
    is_classic: bool | None = True


@dataclass(frozen=True, kw_only=True)
class ConsumerGroupDescription:
    """A group. `type` is classic or consumer (KIP-848); `assignor` is "" without members.

    `coordinator` is a node id. The epochs are None in classic groups. `authorized_operations` are
    the operations that this user may do, None if they were not requested.
    """

    group_id: str
    type: str
    state: str
    protocol_type: str
    assignor: str
    members: tuple[MemberDescription, ...]
    coordinator: int | None
    group_epoch: int | None = None
    target_assignment_epoch: int | None = None
    authorized_operations: frozenset[str] | None = None

    @property
    def is_simple(self) -> bool:
        """Whether the group has only offsets, and no member has ever joined it."""
        return not self.protocol_type


# --- describing -------------------------------------------------------------------------------


class _DescribeConsumerGroups(ApiHandler[str, Any]):
    """Describes groups by ConsumerGroupDescribe, which knows groups under KIP-848 only."""

    request_type: ClassVar[Any] = messages.ConsumerGroupDescribeRequest
    name_format = "group {!r}"
    acl = "DESCRIBE on group {}, and on the topics that its members subscribe to"

    def __init__(self, cluster: Cluster, operations: bool) -> None:
        self._cluster = cluster
        self._operations = operations

    def build(self, items: Sequence[str], version: int) -> Any:
        """Build the request for the descriptions of these groups."""
        return self.request_type(
            group_ids=list(items), include_authorized_operations=self._operations
        )

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        """Return the description of each group, or its error."""
        return [(row.group_id, Outcome.of(row, self._description(row))) for row in response.groups]

    def _description(self, group: Any) -> Any:
        """Return the description of a group, out of the response."""
        return ConsumerGroupDescription(
            group_id=group.group_id,
            type="consumer",
            state=group.group_state,
            protocol_type=CONSUMER_PROTOCOL,
            assignor=group.assignor_name,
            members=tuple(_consumer_member(member) for member in group.members),
            coordinator=self._cluster.coordinators.get((FOR_GROUP, group.group_id)),
            group_epoch=group.group_epoch,
            target_assignment_epoch=group.assignment_epoch,
            authorized_operations=authorized_operations(group.authorized_operations),
        )


def _consumer_member(member: Any) -> MemberDescription:
    """Read a member of a KIP-848 group."""
    return MemberDescription(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.client_host,
        assignment=assigned_partitions(member.assignment),
        target_assignment=assigned_partitions(member.target_assignment),
        topics=frozenset(member.subscribed_topic_names),
        topic_pattern=member.subscribed_topic_regex or None,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        is_classic=None if member.member_type < 0 else member.member_type == 0,
    )


def assigned_partitions(assignment: Any) -> frozenset[TopicPartition]:
    """Return the partitions of an assignment in the response about a consumer or share group."""
    return frozenset(
        TopicPartition(topic.topic_name, number)
        for topic in assignment.topic_partitions
        for number in topic.partitions
    )


class _DescribeClassicGroups(_DescribeConsumerGroups):
    """Describes groups by DescribeGroups, which knows groups of the classic protocol only."""

    request_type: ClassVar[Any] = messages.DescribeGroupsRequest

    def build(self, items: Sequence[str], version: int) -> Any:
        """Build the request for the descriptions of these groups."""
        return messages.DescribeGroupsRequest(
            groups=list(items), include_authorized_operations=self._operations
        )

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        """Return the description of each group, or its error: also if the data of its members
        cannot be decoded."""
        outcomes = []
        for group in response.groups:
            try:
                outcome = Outcome.of(group, self._description(group))
            except errors.DecodeError as error:
                outcome = Outcome(errors.ErrorCode.INCONSISTENT_GROUP_PROTOCOL, None, str(error))
            if group.group_state == DEAD and not group.error_code:
                # Before version 6 brokers answer so for a group that does not exist.
                outcome = Outcome(errors.ErrorCode.GROUP_ID_NOT_FOUND, None, NO_SUCH_GROUP)
            outcomes.append((group.group_id, outcome))
        return outcomes

    def _description(self, group: Any) -> Any:
        """Return the description of a group, out of the response. Raises DecodeError."""
        return ConsumerGroupDescription(
            group_id=group.group_id,
            type="classic",
            state=group.group_state,
            protocol_type=group.protocol_type,
            assignor=group.protocol_data,
            members=tuple(_classic_member(member, group.protocol_type) for member in group.members),
            coordinator=self._cluster.coordinators.get((FOR_GROUP, group.group_id)),
            authorized_operations=authorized_operations(group.authorized_operations),
        )

    def needed_versions(self, item: str) -> Mapping[str, int]:
        """Return the version that has operations (KIP-430), if they are requested."""
        return {"include_authorized_operations": 3} if self._operations else {}


def _classic_member(member: Any, protocol_type: str) -> MemberDescription:
    """Read a member of a classic group. Raises DecodeError if the subscription or assignment of a
    consumer is damaged."""
    assignment: frozenset[TopicPartition] = frozenset()
    topics: frozenset[str] = frozenset()
    if protocol_type == CONSUMER_PROTOCOL:
        # Both are empty while the group rebalances.
        try:
            if member.member_assignment:
                decoded = consumer_protocol.decode_assignment(member.member_assignment)
                assignment = frozenset(TopicPartition(*tp) for tp in decoded.partitions)
            if member.member_metadata:
                topics = frozenset(
                    consumer_protocol.decode_subscription(member.member_metadata).topics
                )
        except errors.DecodeError as error:
            raise errors.DecodeError(f"member {member.member_id}: {error}") from error
    return MemberDescription(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        host=member.client_host,
        assignment=assignment,
        topics=topics,
    )


# --- deleting ---------------------------------------------------------------------------------


class _DeleteGroups(ApiHandler[str, None]):
    request_type = messages.DeleteGroupsRequest
    name_format = "group {!r}"
    acl = "DELETE on group {}"
    done_codes = frozenset({errors.ErrorCode.GROUP_ID_NOT_FOUND})
    hints: ClassVar[Mapping[int, str]] = {
        errors.ErrorCode.NON_EMPTY_GROUP: "the group has members: stop its consumers first, or "
        "wait until the session timeout of those that died has passed",
        errors.ErrorCode.GROUP_ID_NOT_FOUND: NO_SUCH_GROUP,
    }

    def build(self, items: Sequence[str], version: int) -> Any:
        return messages.DeleteGroupsRequest(groups_names=list(items))

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        """Return the error code of each group: 0 if it was deleted."""
        return [(row.group_id, Outcome.of(row)) for row in response.results]


# --- removing members -------------------------------------------------------------------------


class _RemoveMembers(ApiHandler[str, None]):
    """Removes members from a group. Items are their group.instance.ids, or with `by_member_id`
    their member ids."""

    request_type = messages.LeaveGroupRequest
    name_format = "member {!r} of group {handler.group_id!r}"
    acl = "READ on group {handler.group_id}"
    done_codes = frozenset({errors.ErrorCode.UNKNOWN_MEMBER_ID})
    hints: ClassVar[Mapping[int, str]] = {
        errors.ErrorCode.UNKNOWN_MEMBER_ID: "the group has no such member"
    }

    def __init__(self, group_id: str, reason: str, by_member_id: bool) -> None:
        self.group_id = group_id
        self._reason = reason
        self._by_member_id = by_member_id

    def build(self, items: Sequence[str], version: int) -> Any:
        """Build the LeaveGroup of these members. `items` are either their member ids or their
        group.instance.ids."""
        return messages.LeaveGroupRequest(
            group_id=self.group_id,
            members=[
                messages.MemberIdentity(
                    member_id=item if self._by_member_id else "",
                    group_instance_id=None if self._by_member_id else item,
                    reason=self._reason,
                )
                for item in items
            ],
        )

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        """Return the error code of each member: 0 if it was removed."""
        return [
            (row.member_id if self._by_member_id else row.group_instance_id, Outcome.of(row))
            for row in response.members
        ]

    def needed_versions(self, item: str) -> Mapping[str, int]:
        """Return the first version with a list of members (KIP-345)."""
        return {"removing members": 3}


# --- listing ------------------------------------------------------------------------------------


class GroupListing(NamedTuple):
    """A group. `state` is None before Kafka 2.6, `type` (classic, consumer, share, …) before 3.8.

    `is_simple`: the group has only offsets, and no member has ever joined it.
    """

    group_id: str
    protocol_type: str
    state: str | None
    type: str | None

    @property
    def is_simple(self) -> bool:
        return not self.protocol_type


class _ListGroups(ApiHandler[int, list[GroupListing]]):
    """Lists the groups that each broker coordinates; items are node ids."""

    request_type = messages.ListGroupsRequest
    name_format = "broker {}"
    acl = "DESCRIBE on the cluster, or on each group"

    def __init__(self, states: list[str], types: list[str]) -> None:
        self._states = states
        self._types = types

    def build(self, items: Sequence[int], version: int) -> Any:
        return messages.ListGroupsRequest(states_filter=self._states, types_filter=self._types)

    def read(self, response: Any, items: Sequence[int]) -> Outcomes[int]:
        """Return the groups that a broker coordinates; the node id of the broker is the only item.
        Old brokers name no state (before Kafka 2.6) or type (before 3.8)."""
        groups = [
            GroupListing(
                row.group_id, row.protocol_type, row.group_state or None, row.group_type or None
            )
            for row in response.groups
        ]
        return [(item, Outcome(0, groups)) for item in items]

    def needed_versions(self, item: int) -> Mapping[str, int]:
        """Return the versions that have the filters in use."""
        filters = {"a filter of types": (self._types, 5), "a filter of states": (self._states, 4)}
        return {what: since for what, (names, since) in filters.items() if names}


# --- committed offsets ---------------------------------------------------------------------------


class _DeleteOffsets(OffsetsHandler):
    request_type = messages.OffsetDeleteRequest
    acl = "DELETE on group {handler.group_id} and READ on topic {0.topic}"
    final_codes = frozenset({errors.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    done_codes = NO_GROUP  # a group is deleted with its last offset

    def build(self, items: Sequence[TopicPartition], version: int) -> Any:
        """Build the request that deletes the committed offsets of these partitions."""
        return messages.OffsetDeleteRequest(
            group_id=self.group_id,
            topics=request_topics(
                messages.OffsetDeleteRequestTopic,
                items,
                lambda tp: messages.OffsetDeleteRequestPartition(partition_index=tp.partition),
            ),
        )

    def read(self, response: Any, items: Sequence[TopicPartition]) -> Outcomes[TopicPartition]:
        """Return the error code of each partition: 0 if its offset was deleted."""
        return partition_outcomes(response)


# --- share groups (KIP-932) -----------------------------------------------------------------------

_SHARE_HINTS: Mapping[int, str] = {
    errors.ErrorCode.NON_EMPTY_GROUP: (
        "the group has members: stop its consumers first (those that died count until "
        "group.share.session.timeout.ms has passed)"
    ),
    errors.ErrorCode.GROUP_ID_NOT_FOUND: NO_SUCH_GROUP,
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


class _DescribeShareGroups(_DescribeConsumerGroups):
    """Describes share groups by ShareGroupDescribe."""

    request_type = messages.ShareGroupDescribeRequest
    hints = _SHARE_HINTS

    def _description(self, group: Any) -> ShareGroupDescription:
        """Return the description of a share group, out of the response."""
        return ShareGroupDescription(
            group_id=group.group_id,
            state=group.group_state,
            assignor=group.assignor_name,
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
                for member in group.members
            ),
            coordinator=self._cluster.coordinators.get((FOR_GROUP, group.group_id)),
            group_epoch=group.group_epoch,
            target_assignment_epoch=group.assignment_epoch,
            authorized_operations=authorized_operations(group.authorized_operations),
        )


class _DescribeShareOffsets(ApiHandler[str, dict[TopicPartition, Outcome]]):
    """Describes the offsets of a share group, each with its own error; the item is the group."""

    request_type = messages.DescribeShareGroupOffsetsRequest
    name_format = "group {!r}"
    acl = "DESCRIBE on group {}"
    hints = _SHARE_HINTS

    def __init__(self, partitions: Sequence[TopicPartition] | None) -> None:
        self._partitions = partitions

    def build(self, items: Sequence[str], version: int) -> Any:
        """Build the request for the start offsets of one share group, the only item: of the chosen
        partitions, else of all that the group has."""
        topics = None
        if self._partitions is not None:
            topic_type = messages.DescribeShareGroupOffsetsRequestTopic
            topics = request_topics(topic_type, self._partitions)
        group = messages.DescribeShareGroupOffsetsRequestGroup(group_id=items[0], topics=topics)
        return messages.DescribeShareGroupOffsetsRequest(groups=[group])

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        """Yield each group's start offsets, with an outcome for each partition."""
        for group in response.groups:
            offsets = {
                TopicPartition(topic.topic_name, row.partition_index): Outcome.of(
                    row, _share_offset(row)
                )
                for topic in group.topics
                for row in topic.partitions
            }
            yield group.group_id, Outcome.of(group, offsets)


def _share_offset(partition: Any) -> ShareGroupOffset | None:
    """Return the offset of a partition in a response, None if the group has not read the
    partition."""
    if partition.start_offset < 0:
        return None
    return ShareGroupOffset(
        partition.start_offset,
        partition.leader_epoch if partition.leader_epoch >= 0 else None,
        partition.lag if partition.lag >= 0 else None,
    )


class _AlterShareOffsets(ApiHandler[TopicPartition, None]):
    request_type = messages.AlterShareGroupOffsetsRequest
    name_format = "{} of group {handler.group_id!r}"
    acl = "READ on group {handler.group_id} and on topic {0.topic}"
    hints = _SHARE_HINTS

    def __init__(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.group_id = group_id
        self._offsets = offsets

    def build(self, items: Sequence[TopicPartition], version: int) -> Any:
        """Build the request that sets the share group's start offsets of these partitions."""

        def row(tp: TopicPartition) -> messages.AlterShareGroupOffsetsRequestPartition:
            """Return the part of the request about one partition."""
            return messages.AlterShareGroupOffsetsRequestPartition(
                partition_index=tp.partition, start_offset=self._offsets[tp]
            )

        topics = request_topics(messages.AlterShareGroupOffsetsRequestTopic, items, row)
        return messages.AlterShareGroupOffsetsRequest(group_id=self.group_id, topics=topics)

    def read(self, response: Any, items: Sequence[TopicPartition]) -> Outcomes[TopicPartition]:
        """Return the error code of each partition: 0 if its start offset was set."""
        return [
            (TopicPartition(topic.topic_name, row.partition_index), Outcome.of(row))
            for topic in response.responses
            for row in topic.partitions
        ]


class _DeleteShareOffsets(ApiHandler[str, None]):
    """Deletes the offsets of topics in a share group; items are topics."""

    request_type = messages.DeleteShareGroupOffsetsRequest
    name_format = "topic {!r} of group {handler.group_id!r}"
    acl = "DELETE on group {handler.group_id} and READ on topic {}"
    hints = _SHARE_HINTS

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id

    def build(self, items: Sequence[str], version: int) -> Any:
        """Build the request that deletes the share group's offsets of these topics."""
        topics = [messages.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in items]
        return messages.DeleteShareGroupOffsetsRequest(group_id=self.group_id, topics=topics)

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        """Return the error code of each topic: 0 if its offsets were deleted."""
        return [(row.topic_name, Outcome.of(row)) for row in response.responses]


class GroupAdmin(AdminCalls):
    """The calls of `Admin` about consumer groups and share groups."""

    def list_groups(
        self,
        *,
        states: Iterable[str] | None = None,
        types: Iterable[str] | None = None,
        timeout_s: float | None = None,
    ) -> Listing[GroupListing]:
        """List groups of all kinds (KIP-1043): as `list_consumer_groups`, and share groups,
        Streams' and Connect's. `types` are classic, consumer, share and streams."""
        return self._list_groups(states, types, timeout_s, GROUP_TYPES | {"share", "streams"})

    def _list_groups(
        self,
        states: Iterable[str] | None,
        types: Iterable[str] | None,
        timeout_s: float | None,
        known_types: Iterable[str],
        known_states: Iterable[str] = GROUP_STATES,
    ) -> Listing[GroupListing]:
        """List groups of all kinds, sorted by name. Raises OptionError for a state or type that is
        not one of the known ones."""
        states = [] if states is None else arguments.checked_names(states, "states")
        types = [] if types is None else arguments.checked_names(types, "types")
        handler = _ListGroups(states, types)
        with self._call(timeout_s) as (cluster, deadline):
            # Brokers would list nothing for a name that they do not know.
            for state in states:
                arguments.checked_choice(state, sorted(known_states), "each of states")
            for kind in types:
                arguments.checked_choice(kind, sorted(known_types), "each of types")
            return lists_from_all_brokers(cluster, handler, deadline, "listing groups")

    def list_consumer_groups(
        self,
        *,
        states: Iterable[str] | None = None,
        types: Iterable[str] | None = None,
        timeout_s: float | None = None,
    ) -> Listing[GroupListing]:
        """List the consumer groups of all brokers, or only those in some states (Stable, Empty, …;
        Kafka 2.6) or of some types (classic, consumer; Kafka 3.8).

        A broker that fails is in `errors`, and what it coordinates is missing. Raises KafkaError if
        all brokers fail, OptionError for an unknown state or type.
        """
        groups = self._list_groups(states, types, timeout_s, GROUP_TYPES)
        # "" is of a group that only has offsets, from a client that is no member.
        consumer_groups = [
            group for group in groups if group.protocol_type in ("", CONSUMER_PROTOCOL)
        ]
        return Listing(consumer_groups, groups.errors)

    def describe_consumer_groups(
        self,
        group_ids: Iterable[str],
        *,
        include_authorized_operations: bool = False,
        timeout_s: float | None = None,
    ) -> Results[str, ConsumerGroupDescription]:
        """Describe groups of either protocol: state, and members with their partitions. Return
        results by group id. The error of a group that does not exist is a BrokerError
        GROUP_ID_NOT_FOUND."""
        arguments.checked_flag(include_authorized_operations, "include_authorized_operations")
        items = list(dict.fromkeys(arguments.checked_names(group_ids, "group_ids")))
        kip_848, classic = (
            handler_type(self._cluster, include_authorized_operations)
            for handler_type in (_DescribeConsumerGroups, _DescribeClassicGroups)
        )
        with self._call(timeout_s) as (cluster, deadline):
            lookup, what = ToCoordinator(cluster, FOR_GROUP), "describing groups"
            results = lookup.call_each(items, kip_848, deadline, what)
            # Coordinators answer so for classic groups, and old ones for all.
            others = [
                group_id
                for group_id, error in results.errors.items()
                if isinstance(error, errors.UnsupportedVersionError)
                or getattr(error, "code", 0)
                in (errors.ErrorCode.GROUP_ID_NOT_FOUND, errors.ErrorCode.UNSUPPORTED_VERSION)
            ]
            described = lookup.call_each(others, classic, deadline, what)
        return Results(results.outcomes | described.outcomes)

    def describe_consumer_group(
        self, group_id: str, *, timeout_s: float | None = None
    ) -> ConsumerGroupDescription:
        """Describe one group. Raises the group's error."""
        return self.describe_consumer_groups([group_id], timeout_s=timeout_s)[group_id]

    def delete_consumer_groups(
        self, group_ids: Iterable[str], *, timeout_s: float | None = None
    ) -> Results[str, None]:
        """Delete groups that have no members, with all their offsets. Return results by group id.
        Errors: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, and so on."""
        items = arguments.checked_names(group_ids, "group_ids")
        lookup = ToCoordinator(self._cluster, FOR_GROUP)
        return self._each(items, _DeleteGroups(), lookup, "deleting groups", timeout_s)

    def remove_members_from_consumer_group(
        self,
        group_id: str,
        instance_ids: Iterable[str] | None,
        *,
        reason: str = "",
        timeout_s: float | None = None,
    ) -> Results[str, None]:
        """Remove static members by their group.instance.id (KIP-345). Return results by
        group.instance.id. With None remove all members, and return results by member id.

        A consumer that still runs joins again, static or not: stop it first. Errors of items:
        UNKNOWN_MEMBER_ID, UnsupportedVersionError before Kafka 2.4, and so on.
        """
        instance_ids = (
            None if instance_ids is None else arguments.checked_names(instance_ids, "instance_ids")
        )
        arguments.checked_name(group_id, "group_id")
        arguments.checked_name(reason, "reason")
        with self._call(timeout_s) as (cluster, deadline):
            message = f"member was removed by an admin{': ' + reason if reason else ''}"
            if instance_ids is None:
                group = self.describe_consumer_group(group_id, timeout_s=deadline.remaining_s())
                items: Iterable[str] = [member.member_id for member in group.members]
            else:
                items = instance_ids
            handler = _RemoveMembers(group_id, message, by_member_id=instance_ids is None)
            what = f"removing members of {group_id!r}"
            return coordinator_of(cluster, group_id).call_each(items, handler, deadline, what)

    def list_consumer_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, OffsetAndMetadata | None]:
        """List the committed offsets of a group: all, or those of `partitions`, with None for a
        partition without one.

        `require_stable` waits for open transactions that are about to change them. Raises
        KafkaError if `partitions` is None and the coordinator does not answer.
        """
        arguments.checked_name(group_id, "group_id")
        arguments.checked_flag(require_stable, "require_stable")
        with self._call(timeout_s) as (cluster, deadline):
            offsets: dict[TopicPartition, OffsetAndMetadata | errors.KafkaError | None] = {}
            what = f"looking up the offsets of group {group_id!r}"
            if partitions is None:
                handler, lookup = FetchAllOffsets(require_stable), ToCoordinator(cluster, FOR_GROUP)
                outcomes = lookup.call_each([group_id], handler, deadline, what)[group_id]
                offsets = {
                    tp: outcome.value
                    for tp, outcome in outcomes.items()
                    if not outcome.code and outcome.value
                }
                # Partitions with an error are fetched again by name, with retries.
                chosen = [tp for tp, outcome in outcomes.items() if outcome.code]
            else:
                chosen = arguments.checked_partitions(partitions)
            by_name = FetchOffsets(group_id, require_stable)
            results = coordinator_of(cluster, group_id).call_each(chosen, by_name, deadline, what)
            return Results(offsets | results.outcomes)

    def alter_consumer_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        *,
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, None]:
        """Set the offsets from which a group resumes reading. It must have no members; if it does
        not exist, it is created. Errors of items: UNKNOWN_MEMBER_ID if it has members,
        UnknownTopicError, and so on. Raises OptionError for a negative offset."""
        arguments.checked_name(group_id, "group_id")
        chosen = arguments.offsets_to_commit(offsets)
        handler = CommitOffsets(group_id, chosen)
        what = f"setting the offsets of group {group_id!r}"
        return self._each(chosen, handler, coordinator_of(self._cluster, group_id), what, timeout_s)

    def delete_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], *, timeout_s: float | None = None
    ) -> Results[TopicPartition, None]:
        """Delete committed offsets of a group. Errors of items: GROUP_SUBSCRIBED_TO_TOPIC while
        members subscribe to the topic, UnsupportedVersionError before Kafka 2.4, and so on."""
        arguments.checked_name(group_id, "group_id")
        chosen = arguments.checked_partitions(partitions)
        handler = _DeleteOffsets(group_id)
        what = f"deleting offsets of group {group_id!r}"
        return self._each(chosen, handler, coordinator_of(self._cluster, group_id), what, timeout_s)

    # --- share groups ---------------------------------------------------------------------------

    def list_share_groups(
        self, *, states: Iterable[str] | None = None, timeout_s: float | None = None
    ) -> Listing[GroupListing]:
        """List the share groups of all brokers, or only those in some states (Stable, Empty).
        Share groups need Kafka 4.1.

        A broker that fails is in `errors`, and what it coordinates is missing. Raises KafkaError if
        all brokers fail, OptionError for an unknown state.
        """
        known_states = ("Dead", "Empty", "Stable")
        return self._list_groups(states, ["share"], timeout_s, ["share"], known_states)

    def describe_share_groups(
        self,
        group_ids: Iterable[str],
        *,
        include_authorized_operations: bool = False,
        timeout_s: float | None = None,
    ) -> Results[str, ShareGroupDescription]:
        """Describe share groups: state, and members with their partitions. Return results by group
        id. The error of a group that does not exist, or is of another kind, is a BrokerError
        GROUP_ID_NOT_FOUND."""
        arguments.checked_flag(include_authorized_operations, "include_authorized_operations")
        items = arguments.checked_names(group_ids, "group_ids")
        handler = _DescribeShareGroups(self._cluster, include_authorized_operations)
        lookup = ToCoordinator(self._cluster, FOR_GROUP)
        return self._each(items, handler, lookup, "describing share groups", timeout_s)

    def describe_share_group(
        self, group_id: str, *, timeout_s: float | None = None
    ) -> ShareGroupDescription:
        """Describe one share group. Raises the group's error."""
        return self.describe_share_groups([group_id], timeout_s=timeout_s)[group_id]

    def delete_share_groups(
        self, group_ids: Iterable[str], *, timeout_s: float | None = None
    ) -> Results[str, None]:
        """Delete share groups that have no members, with all their offsets. Return results by group
        id. Errors: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, and so on."""
        return self.delete_consumer_groups(group_ids, timeout_s=timeout_s)

    def list_share_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, ShareGroupOffset | None]:
        """List the offsets of a share group: in all partitions that it has read, or in
        `partitions`, with None for a partition that it has not read. A group that does not exist
        has read none. Raises KafkaError if the group cannot be read."""
        arguments.checked_name(group_id, "group_id")
        items = None if partitions is None else arguments.checked_partitions(partitions)
        with self._call(timeout_s) as (cluster, deadline):
            handler, lookup = _DescribeShareOffsets(items), ToCoordinator(cluster, FOR_GROUP)
            what = f"listing the offsets of share group {group_id!r}"
            outcomes = lookup.call_each([group_id], handler, deadline, what)[group_id]
            results: dict[TopicPartition, Any] = dict.fromkeys(items or ())
            for tp, outcome in outcomes.items():
                where = f"{handler.request_type.API_NAME} of {tp} of group {group_id!r}"
                if outcome.code:
                    results[tp] = errors.BrokerError(outcome.code, where, outcome.message)
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
        items = {
            tp: arguments.checked_int(offset, f"offsets: the offset of {tp}", 0)
            for tp, offset in arguments.checked_by_partition(offsets, "offsets", "100").items()
        }
        handler = _AlterShareOffsets(group_id, items)
        what = f"setting the offsets of share group {group_id!r}"
        return self._each(items, handler, coordinator_of(self._cluster, group_id), what, timeout_s)

    def delete_share_group_offsets(
        self, group_id: str, topics: Iterable[str], *, timeout_s: float | None = None
    ) -> Results[str, None]:
        """Delete the offsets of topics in a share group that has no members: the group then reads
        these topics like new ones. Return results by topic. Errors of items: NON_EMPTY_GROUP,
        UnknownTopicError, and so on."""
        arguments.checked_name(group_id, "group_id")
        items, handler = arguments.checked_names(topics, "topics"), _DeleteShareOffsets(group_id)
        what = f"deleting offsets of share group {group_id!r}"
        return self._each(items, handler, coordinator_of(self._cluster, group_id), what, timeout_s)
