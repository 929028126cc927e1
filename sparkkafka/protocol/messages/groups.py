"""Consumer groups: their offsets and members.

OffsetCommit, OffsetFetch; JoinGroup, SyncGroup, Heartbeat and LeaveGroup of the
classic protocol; ConsumerGroupHeartbeat of KIP-848. For Admin: ListGroups, DescribeGroups,
ConsumerGroupDescribe, DeleteGroups and OffsetDelete.
"""

from __future__ import annotations

import uuid

from sparkkafka.protocol.messages.metadata import NO_AUTHORIZED_OPERATIONS
from sparkkafka.protocol.wire import schema as wire


@wire.struct
class OffsetCommitRequestPartition:
    """The next offset to read, and a string of at most 4096 bytes to store with it."""

    partition_index: int = wire.int32()
    committed_offset: int = wire.int64()
    committed_leader_epoch: int = wire.int32(-1, since=6, ignorable=True)
    committed_metadata: str | None = wire.nullable_string()


@wire.struct
class OffsetCommitRequestTopic:
    """Partitions of one topic, which `name` names until version 9, `topic_id` from 10 on."""

    name: str = wire.string(until=9, ignorable=True)
    topic_id: uuid.UUID = wire.uuid(since=10, ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = wire.array(OffsetCommitRequestPartition)


@wire.request(
    api_key=8, versions=(2, 10), flexible=8, usual=9, kafka="2.1:6 2.3:7 2.4:8 3.7:9 4.2:10"
)
class OffsetCommitRequest(wire.Request["OffsetCommitResponse"]):
    """Commits offsets of a group. A group without members has generation -1 and member "".

    Version 9 has the layout of version 8; members under KIP-848 must send it.
    """

    group_id: str = wire.string()
    generation_id_or_member_epoch: int = wire.int32(-1, since=1, ignorable=True)
    member_id: str = wire.string(since=1, ignorable=True)
    group_instance_id: str | None = wire.nullable_string(None, since=7)
    retention_time_ms: int = wire.int64(-1, since=2, until=4, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = wire.array(OffsetCommitRequestTopic)


@wire.struct
class OffsetCommitResponsePartition:
    """The outcome of one partition."""

    partition_index: int = wire.int32()
    error_code: int = wire.int16()


@wire.struct
class OffsetCommitResponseTopic:
    """Partitions of one topic, named as in the request."""

    name: str = wire.string(until=9, ignorable=True)
    topic_id: uuid.UUID = wire.uuid(since=10, ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = wire.array(OffsetCommitResponsePartition)


@wire.response(OffsetCommitRequest)
class OffsetCommitResponse(wire.Response):
    """The outcome of each partition."""

    throttle_time_ms: int = wire.int32(since=3, ignorable=True)
    topics: list[OffsetCommitResponseTopic] = wire.array(OffsetCommitResponseTopic)


@wire.struct
class OffsetFetchRequestTopic:
    """Partitions of one topic, until version 7."""

    name: str = wire.string()
    partition_indexes: list[int] = wire.array(wire.INT32)


@wire.struct
class OffsetFetchRequestTopics:
    """Partitions of one topic, from version 8 on; from version 10 on its id stands for its name."""

    name: str = wire.string(until=9, ignorable=True)
    topic_id: uuid.UUID = wire.uuid(since=10, ignorable=True)
    partition_indexes: list[int] = wire.array(wire.INT32)


@wire.struct
class OffsetFetchRequestGroup:
    """One group; `topics` None means all topics with committed offsets. Id and epoch are those of a
    member under KIP-848."""

    group_id: str = wire.string()
    member_id: str | None = wire.nullable_string(None, since=9, ignorable=True)
    member_epoch: int = wire.int32(-1, since=9, ignorable=True)
    topics: list[OffsetFetchRequestTopics] | None = wire.nullable_array(OffsetFetchRequestTopics)


@wire.request(
    api_key=9, versions=(1, 10), flexible=6, usual=9, kafka="2.1:5 2.4:6 2.5:7 3.0:8 3.7:9 4.2:10"
)
class OffsetFetchRequest(wire.Request["OffsetFetchResponse"]):
    """Requests committed offsets: of one group until version 7, of `groups` from version 8 on.

    `topics` None (from version 2 on) means all. `require_stable` waits for open transactions. Topic
    ids (version 10) are not sent: coordinators delete the offsets of a topic with the topic.
    """

    group_id: str = wire.string(until=7)
    topics: list[OffsetFetchRequestTopic] | None = wire.nullable_array(
        OffsetFetchRequestTopic, until=7, nullable_since=2
    )
    groups: list[OffsetFetchRequestGroup] = wire.array(OffsetFetchRequestGroup, since=8)
    require_stable: bool = wire.boolean(since=7)


@wire.struct
class OffsetFetchResponsePartition:
    """A committed offset, -1 if there is none; until version 7."""

    partition_index: int = wire.int32()
    committed_offset: int = wire.int64()
    committed_leader_epoch: int = wire.int32(-1, since=5, ignorable=True)
    metadata: str | None = wire.nullable_string()
    error_code: int = wire.int16()


@wire.struct
class OffsetFetchResponseTopic:
    """Partitions of one topic, until version 7."""

    name: str = wire.string()
    partitions: list[OffsetFetchResponsePartition] = wire.array(OffsetFetchResponsePartition)


@wire.struct
class OffsetFetchResponsePartitions:
    """A committed offset, -1 if there is none; from version 8 on."""

    partition_index: int = wire.int32()
    committed_offset: int = wire.int64()
    committed_leader_epoch: int = wire.int32(-1, ignorable=True)
    metadata: str | None = wire.nullable_string()
    error_code: int = wire.int16()


@wire.struct
class OffsetFetchResponseTopics:
    """Partitions of one topic, from version 8 on, named as in the request."""

    name: str = wire.string(until=9, ignorable=True)
    topic_id: uuid.UUID = wire.uuid(since=10, ignorable=True)
    partitions: list[OffsetFetchResponsePartitions] = wire.array(OffsetFetchResponsePartitions)


@wire.struct
class OffsetFetchResponseGroup:
    """Offsets of one group."""

    group_id: str = wire.string()
    topics: list[OffsetFetchResponseTopics] = wire.array(OffsetFetchResponseTopics)
    error_code: int = wire.int16()


@wire.response(OffsetFetchRequest)
class OffsetFetchResponse(wire.Response):
    """Offsets of one group until version 7, `groups` from version 8 on."""

    throttle_time_ms: int = wire.int32(since=3, ignorable=True)
    topics: list[OffsetFetchResponseTopic] = wire.array(OffsetFetchResponseTopic, until=7)
    error_code: int = wire.int16(since=2, until=7, ignorable=True)
    groups: list[OffsetFetchResponseGroup] = wire.array(OffsetFetchResponseGroup, since=8)


@wire.struct
class JoinGroupRequestProtocol:
    """An assignor that the member supports, and its subscription in that assignor's form."""

    name: str = wire.string()
    metadata: bytes = wire.bytes_()


@wire.request(api_key=11, versions=(2, 9), flexible=6, kafka="2.1:3 2.2:4 2.3:5 2.4:6 2.5:7 3.2:9")
class JoinGroupRequest(wire.Request["JoinGroupResponse"]):
    """Joins a group, or joins it again. The response comes when all members have joined.

    A new member has the id "". From version 4 on the response is then MEMBER_ID_REQUIRED with the
    id to join with.
    """

    group_id: str = wire.string()
    session_timeout_ms: int = wire.int32()
    rebalance_timeout_ms: int = wire.int32(-1, since=1, ignorable=True)
    member_id: str = wire.string()
    group_instance_id: str | None = wire.nullable_string(None, since=5)
    protocol_type: str = wire.string()
    protocols: list[JoinGroupRequestProtocol] = wire.array(JoinGroupRequestProtocol)
    reason: str | None = wire.nullable_string(None, since=8, ignorable=True)


@wire.struct
class JoinGroupResponseMember:
    """A member as the leader sees it."""

    member_id: str = wire.string()
    group_instance_id: str | None = wire.nullable_string(None, since=5, ignorable=True)
    metadata: bytes = wire.bytes_()


@wire.response(JoinGroupRequest)
class JoinGroupResponse(wire.Response):
    """The new generation. The leader's response lists all members."""

    throttle_time_ms: int = wire.int32(since=2, ignorable=True)
    error_code: int = wire.int16()
    generation_id: int = wire.int32(-1)
    protocol_type: str | None = wire.nullable_string(None, since=7, ignorable=True)
    protocol_name: str | None = wire.nullable_string(nullable_since=7)
    leader: str = wire.string()
    skip_assignment: bool = wire.boolean(since=9)
    member_id: str = wire.string()
    members: list[JoinGroupResponseMember] = wire.array(JoinGroupResponseMember)


@wire.struct
class SyncGroupRequestAssignment:
    """The assignment of one member."""

    member_id: str = wire.string()
    assignment: bytes = wire.bytes_()


@wire.request(api_key=14, versions=(1, 5), flexible=4, kafka="2.1:2 2.3:3 2.4:4 2.5:5")
class SyncGroupRequest(wire.Request["SyncGroupResponse"]):
    """Requests the member's assignment. The leader's request has the assignments of all members."""

    group_id: str = wire.string()
    generation_id: int = wire.int32()
    member_id: str = wire.string()
    group_instance_id: str | None = wire.nullable_string(None, since=3)
    protocol_type: str | None = wire.nullable_string(None, since=5, ignorable=True)
    protocol_name: str | None = wire.nullable_string(None, since=5, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = wire.array(SyncGroupRequestAssignment)


@wire.response(SyncGroupRequest)
class SyncGroupResponse(wire.Response):
    """The member's assignment."""

    throttle_time_ms: int = wire.int32(since=1, ignorable=True)
    error_code: int = wire.int16()
    protocol_type: str | None = wire.nullable_string(None, since=5, ignorable=True)
    protocol_name: str | None = wire.nullable_string(None, since=5, ignorable=True)
    assignment: bytes = wire.bytes_()


@wire.request(api_key=12, versions=(1, 4), flexible=4, kafka="2.1:2 2.3:3 2.4:4")
class HeartbeatRequest(wire.Request["HeartbeatResponse"]):
    """Reports that the member is alive. The response's error code says what the member has to
    do."""

    group_id: str = wire.string()
    generation_id: int = wire.int32()
    member_id: str = wire.string()
    group_instance_id: str | None = wire.nullable_string(None, since=3)


@wire.response(HeartbeatRequest)
class HeartbeatResponse(wire.Response):
    """0, or an error code such as REBALANCE_IN_PROGRESS."""

    throttle_time_ms: int = wire.int32(since=1, ignorable=True)
    error_code: int = wire.int16()


@wire.struct
class MemberIdentity:
    """A member that leaves."""

    member_id: str = wire.string()
    group_instance_id: str | None = wire.nullable_string(None, nullable_since=3)
    reason: str | None = wire.nullable_string(None, since=5, ignorable=True)


@wire.request(api_key=13, versions=(1, 5), flexible=4, kafka="2.1:2 2.4:4 3.2:5")
class LeaveGroupRequest(wire.Request["LeaveGroupResponse"]):
    """Leaves a group: one member until version 2, `members` from version 3 on."""

    group_id: str = wire.string()
    member_id: str = wire.string(until=2)
    members: list[MemberIdentity] = wire.array(MemberIdentity, since=3)


@wire.struct
class MemberResponse:
    """The outcome of one member."""

    member_id: str = wire.string()
    group_instance_id: str | None = wire.nullable_string(nullable_since=3)
    error_code: int = wire.int16()


@wire.response(LeaveGroupRequest)
class LeaveGroupResponse(wire.Response):
    """The outcome of the members."""

    throttle_time_ms: int = wire.int32(since=1, ignorable=True)
    error_code: int = wire.int16()
    members: list[MemberResponse] = wire.array(MemberResponse, since=3)


@wire.struct
class HeartbeatTopicPartitions:
    """Partitions of one topic, named by its id."""

    topic_id: uuid.UUID = wire.uuid()
    partitions: list[int] = wire.array(wire.INT32)


@wire.request(api_key=68, versions=(0, 1), flexible=0, kafka="3.7:0 4.0:1")
class ConsumerGroupHeartbeatRequest(wire.Request["ConsumerGroupHeartbeatResponse"]):
    """Joins, stays in or leaves a group whose partitions the brokers assign (KIP-848).

    `member_epoch` 0 joins, -1 leaves, -2 leaves temporarily (a static member). A null (or -1, for
    the timeout) means that the value has not changed since the last heartbeat. From version 1 on
    the member generates its own id.
    """

    group_id: str = wire.string()
    member_id: str = wire.string()
    member_epoch: int = wire.int32()
    instance_id: str | None = wire.nullable_string(None)
    rack_id: str | None = wire.nullable_string(None)
    rebalance_timeout_ms: int = wire.int32(-1)
    subscribed_topic_names: list[str] | None = wire.nullable_array(wire.STRING, null_default=True)
    subscribed_topic_regex: str | None = wire.nullable_string(None, since=1)
    server_assignor: str | None = wire.nullable_string(None)
    topic_partitions: list[HeartbeatTopicPartitions] | None = wire.nullable_array(
        HeartbeatTopicPartitions, null_default=True
    )


@wire.struct
class HeartbeatAssignment:
    """The partitions that the member is to read."""

    topic_partitions: list[HeartbeatTopicPartitions] = wire.array(HeartbeatTopicPartitions)


@wire.response(ConsumerGroupHeartbeatRequest)
class ConsumerGroupHeartbeatResponse(wire.Response):
    """The member's epoch, and its assignment if that has changed."""

    throttle_time_ms: int = wire.int32()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(None)
    member_id: str | None = wire.nullable_string(None)
    member_epoch: int = wire.int32()
    heartbeat_interval_ms: int = wire.int32()
    assignment: HeartbeatAssignment | None = wire.nullable_nested(HeartbeatAssignment)


# --- requests of Admin ----------------------------------------------------------------------------


@wire.request(api_key=16, versions=(0, 5), flexible=3, kafka="2.1:2 2.4:3 2.6:4 3.8:5")
class ListGroupsRequest(wire.Request["ListGroupsResponse"]):
    """Requests from a broker the groups that it coordinates; empty filters match all."""

    states_filter: list[str] = wire.array(wire.STRING, since=4)
    types_filter: list[str] = wire.array(wire.STRING, since=5)


@wire.struct
class ListedGroup:
    """One group; `protocol_type` is consumer, or "" if it has offsets and never had members."""

    group_id: str = wire.string()
    protocol_type: str = wire.string()
    group_state: str = wire.string(since=4, ignorable=True)
    group_type: str = wire.string(since=5, ignorable=True)


@wire.response(ListGroupsRequest)
class ListGroupsResponse(wire.Response):
    """The groups of this broker, as far as the user may see them."""

    throttle_time_ms: int = wire.int32(since=1, ignorable=True)
    error_code: int = wire.int16()
    groups: list[ListedGroup] = wire.array(ListedGroup)


@wire.request(api_key=15, versions=(0, 6), flexible=5, kafka="2.1:2 2.3:3 2.4:5 4.0:6")
class DescribeGroupsRequest(wire.Request["DescribeGroupsResponse"]):
    """Requests from a coordinator classic groups."""

    groups: list[str] = wire.array(wire.STRING)
    include_authorized_operations: bool = wire.boolean(since=3)


@wire.struct
class DescribedGroupMember:
    """A member; the bytes are those of the group's protocol (a consumer's subscription and
    assignment)."""

    member_id: str = wire.string()
    group_instance_id: str | None = wire.nullable_string(None, since=4, ignorable=True)
    client_id: str = wire.string()
    client_host: str = wire.string()
    member_metadata: bytes = wire.bytes_()
    member_assignment: bytes = wire.bytes_()


@wire.struct
class DescribedGroup:
    """A classic group. One that does not exist is Dead until version 5, an error from 6 on."""

    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(None, since=6)
    group_id: str = wire.string()
    group_state: str = wire.string()
    protocol_type: str = wire.string()
    protocol_data: str = wire.string()
    members: list[DescribedGroupMember] = wire.array(DescribedGroupMember)
    authorized_operations: int = wire.int32(NO_AUTHORIZED_OPERATIONS, since=3)


@wire.response(DescribeGroupsRequest)
class DescribeGroupsResponse(wire.Response):
    """The state of each group."""

    throttle_time_ms: int = wire.int32(since=1, ignorable=True)
    groups: list[DescribedGroup] = wire.array(DescribedGroup)


@wire.request(api_key=69, versions=(0, 1), flexible=0, kafka="3.8:0 4.0:1")
class ConsumerGroupDescribeRequest(wire.Request["ConsumerGroupDescribeResponse"]):
    """Requests from a coordinator groups whose partitions the brokers assign (KIP-848)."""

    group_ids: list[str] = wire.array(wire.STRING)
    include_authorized_operations: bool = wire.boolean()


@wire.struct
class DescribedTopicPartitions:
    """Partitions of one topic."""

    topic_id: uuid.UUID = wire.uuid()
    topic_name: str = wire.string()
    partitions: list[int] = wire.array(wire.INT32)


@wire.struct
class DescribedAssignment:
    """The partitions that a member reads, or is to read."""

    topic_partitions: list[DescribedTopicPartitions] = wire.array(DescribedTopicPartitions)


@wire.struct
class DescribedConsumer:
    """A member; `member_type` is 1 for this protocol, 0 for the classic one, -1 if not known."""

    member_id: str = wire.string()
    instance_id: str | None = wire.nullable_string(None)
    rack_id: str | None = wire.nullable_string(None)
    member_epoch: int = wire.int32()
    client_id: str = wire.string()
    client_host: str = wire.string()
    subscribed_topic_names: list[str] = wire.array(wire.STRING)
    subscribed_topic_regex: str | None = wire.nullable_string(None)
    assignment: DescribedAssignment = wire.nested(DescribedAssignment)
    target_assignment: DescribedAssignment = wire.nested(DescribedAssignment)
    member_type: int = wire.int8(-1, since=1, ignorable=True)


@wire.struct
class DescribedConsumerGroup:
    """A group of this protocol; of any other, GROUP_ID_NOT_FOUND."""

    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(None)
    group_id: str = wire.string()
    group_state: str = wire.string()
    group_epoch: int = wire.int32()
    assignment_epoch: int = wire.int32()
    assignor_name: str = wire.string()
    members: list[DescribedConsumer] = wire.array(DescribedConsumer)
    authorized_operations: int = wire.int32(NO_AUTHORIZED_OPERATIONS)


@wire.response(ConsumerGroupDescribeRequest)
class ConsumerGroupDescribeResponse(wire.Response):
    """The state of each group."""

    throttle_time_ms: int = wire.int32()
    groups: list[DescribedConsumerGroup] = wire.array(DescribedConsumerGroup)


@wire.request(api_key=42, versions=(0, 3), flexible=2, kafka="2.1:1 2.4:2 4.4:3")
class DeleteGroupsRequest(wire.Request["DeleteGroupsResponse"]):
    """Deletes groups without members; goes to their coordinator."""

    groups_names: list[str] = wire.array(wire.STRING)


@wire.struct
class DeletableGroupResult:
    """The outcome of one group."""

    group_id: str = wire.string()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(None, since=3, ignorable=True)


@wire.response(DeleteGroupsRequest)
class DeleteGroupsResponse(wire.Response):
    """The outcome of each group."""

    throttle_time_ms: int = wire.int32()
    results: list[DeletableGroupResult] = wire.array(DeletableGroupResult)


@wire.struct
class OffsetDeleteRequestPartition:
    """A partition whose committed offset is deleted."""

    partition_index: int = wire.int32()


@wire.struct
class OffsetDeleteRequestTopic:
    """Partitions of one topic."""

    name: str = wire.string()
    partitions: list[OffsetDeleteRequestPartition] = wire.array(OffsetDeleteRequestPartition)


@wire.request(api_key=47, versions=(0, 0), flexible=None, kafka="2.4:0")
class OffsetDeleteRequest(wire.Request["OffsetDeleteResponse"]):
    """Deletes committed offsets of a group, of topics that no member subscribes to (KIP-496)."""

    group_id: str = wire.string()
    topics: list[OffsetDeleteRequestTopic] = wire.array(OffsetDeleteRequestTopic)


@wire.struct
class OffsetDeleteResponsePartition:
    """The outcome of one partition."""

    partition_index: int = wire.int32()
    error_code: int = wire.int16()


@wire.struct
class OffsetDeleteResponseTopic:
    """Partitions of one topic."""

    name: str = wire.string()
    partitions: list[OffsetDeleteResponsePartition] = wire.array(OffsetDeleteResponsePartition)


@wire.response(OffsetDeleteRequest)
class OffsetDeleteResponse(wire.Response):
    """The outcome of each partition, or of the group as a whole."""

    error_code: int = wire.int16()
    throttle_time_ms: int = wire.int32(ignorable=True)
    topics: list[OffsetDeleteResponseTopic] = wire.array(OffsetDeleteResponseTopic)
