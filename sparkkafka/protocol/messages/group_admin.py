"""Groups from outside: ListGroups, DescribeGroups, ConsumerGroupDescribe, DeleteGroups,
OffsetDelete."""

from __future__ import annotations

import uuid as uuid_module

from sparkkafka.protocol.messages.metadata import NO_AUTHORIZED_OPERATIONS
from sparkkafka.protocol.wire.fields import (
    INT32,
    STRING,
    array,
    boolean,
    bytes_,
    int8,
    int16,
    int32,
    nested,
    nullable_string,
    string,
    struct,
    uuid,
)
from sparkkafka.protocol.wire.schema import Request, Response, request, response


@request(api_key=16, versions=(0, 5), flexible=3)
class ListGroupsRequest(Request["ListGroupsResponse"]):
    """Asks a broker for the groups that it coordinates; empty filters let everything through."""

    states_filter: list[str] = array(STRING, since=4)
    types_filter: list[str] = array(STRING, since=5)


@struct
class ListedGroup:
    """One group; `protocol_type` is consumer, or "" if there are offsets and never were members."""

    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4, ignorable=True)
    group_type: str = string(since=5, ignorable=True)


@response(ListGroupsRequest)
class ListGroupsResponse(Response):
    """The groups of this broker, as far as the user may see them."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)


@request(api_key=15, versions=(0, 6), flexible=5)
class DescribeGroupsRequest(Request["DescribeGroupsResponse"]):
    """Asks a coordinator for classic groups."""

    groups: list[str] = array(STRING)
    include_authorized_operations: bool = boolean(since=3)


@struct
class DescribedGroupMember:
    """A member; the bytes are those of the group's protocol (a consumer's subscription and
    assignment)."""

    member_id: str = string()
    group_instance_id: str | None = nullable_string(None, since=4, nullable_since=4, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = bytes_()
    member_assignment: bytes = bytes_()


@struct
class DescribedGroup:
    """A classic group. One that does not exist is Dead until version 5, an error from 6 on."""

    error_code: int = int16()
    error_message: str | None = nullable_string(None, since=6, nullable_since=6)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32(NO_AUTHORIZED_OPERATIONS, since=3)


@response(DescribeGroupsRequest)
class DescribeGroupsResponse(Response):
    """The state of each group."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    groups: list[DescribedGroup] = array(DescribedGroup)


@request(api_key=69, versions=(0, 1), flexible=0)
class ConsumerGroupDescribeRequest(Request["ConsumerGroupDescribeResponse"]):
    """Asks a coordinator for groups whose partitions the brokers assign (KIP-848)."""

    group_ids: list[str] = array(STRING)
    include_authorized_operations: bool = boolean()


@struct
class DescribedTopicPartitions:
    """Partitions of one topic."""

    topic_id: uuid_module.UUID = uuid()
    topic_name: str = string()
    partitions: list[int] = array(INT32)


@struct
class DescribedAssignment:
    """What a member has, or is to have."""

    topic_partitions: list[DescribedTopicPartitions] = array(DescribedTopicPartitions)


@struct
class DescribedConsumer:
    """A member; `member_type` is 1 for this protocol, 0 for the classic one, -1 if not known."""

    member_id: str = string()
    instance_id: str | None = nullable_string(None)
    rack_id: str | None = nullable_string(None)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(STRING)
    subscribed_topic_regex: str | None = nullable_string(None)
    assignment: DescribedAssignment = nested(DescribedAssignment)
    target_assignment: DescribedAssignment = nested(DescribedAssignment)
    member_type: int = int8(-1, since=1, ignorable=True)


@struct
class DescribedConsumerGroup:
    """A group of this protocol; of any other, GROUP_ID_NOT_FOUND."""

    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()
    assignor_name: str = string()
    members: list[DescribedConsumer] = array(DescribedConsumer)
    authorized_operations: int = int32(NO_AUTHORIZED_OPERATIONS)


@response(ConsumerGroupDescribeRequest)
class ConsumerGroupDescribeResponse(Response):
    """The state of each group."""

    throttle_time_ms: int = int32()
    groups: list[DescribedConsumerGroup] = array(DescribedConsumerGroup)


@request(api_key=42, versions=(0, 2), flexible=2)
class DeleteGroupsRequest(Request["DeleteGroupsResponse"]):
    """Deletes groups without members; goes to their coordinator."""

    groups_names: list[str] = array(STRING)


@struct
class DeletableGroupResult:
    """What became of one group."""

    group_id: str = string()
    error_code: int = int16()


@response(DeleteGroupsRequest)
class DeleteGroupsResponse(Response):
    """What became of each group."""

    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)


@struct
class OffsetDeleteRequestPartition:
    """A partition."""

    partition_index: int = int32()


@struct
class OffsetDeleteRequestTopic:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition)


@request(api_key=47, versions=(0, 0), flexible=None)
class OffsetDeleteRequest(Request["OffsetDeleteResponse"]):
    """Deletes committed offsets of a group, of topics that no member subscribes to (KIP-496)."""

    group_id: str = string()
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic)


@struct
class OffsetDeleteResponsePartition:
    """What became of one partition."""

    partition_index: int = int32()
    error_code: int = int16()


@struct
class OffsetDeleteResponseTopic:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition)


@response(OffsetDeleteRequest)
class OffsetDeleteResponse(Response):
    """What became of each partition, or of the group as a whole."""

    error_code: int = int16()
    throttle_time_ms: int = int32(ignorable=True)
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic)
