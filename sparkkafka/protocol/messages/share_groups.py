"""Share groups (KIP-932): membership, fetching and acknowledging, and the requests of Admin.

Members of a share group read the same partitions together. A member acquires ranges of records
from a leader for a limited time, and acknowledges each record as processed or not. Version 0 of the
first four was an early access of Kafka 4.0, which no later broker supports.
"""

from __future__ import annotations

import uuid

from sparkkafka.protocol.messages.data import NodeEndpoint
from sparkkafka.protocol.messages.groups import DescribedAssignment, HeartbeatAssignment
from sparkkafka.protocol.messages.metadata import NO_AUTHORIZED_OPERATIONS
from sparkkafka.protocol.wire import schema as wire
from sparkkafka.protocol.wire.primitives import BytesLike


@wire.request(api_key=76, versions=(1, 1), flexible=0, kafka="4.1:1")
class ShareGroupHeartbeatRequest(wire.Request["ShareGroupHeartbeatResponse"]):
    """Joins (`member_epoch` 0), stays in or leaves (-1) a share group. A null means that the value
    has not changed since the last heartbeat. The member generates its own id."""

    group_id: str = wire.string()
    member_id: str = wire.string()
    member_epoch: int = wire.int32()
    rack_id: str | None = wire.nullable_string(None)
    subscribed_topic_names: list[str] | None = wire.nullable_array(wire.STRING, null_default=True)


@wire.response(ShareGroupHeartbeatRequest)
class ShareGroupHeartbeatResponse(wire.Response):
    """The member's epoch, and its assignment if that has changed."""

    throttle_time_ms: int = wire.int32()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(None)
    member_id: str | None = wire.nullable_string(None)
    member_epoch: int = wire.int32()
    heartbeat_interval_ms: int = wire.int32()
    assignment: HeartbeatAssignment | None = wire.nullable_nested(HeartbeatAssignment)


@wire.request(api_key=77, versions=(1, 1), flexible=0, kafka="4.1:1")
class ShareGroupDescribeRequest(wire.Request["ShareGroupDescribeResponse"]):
    """Requests from a coordinator share groups."""

    group_ids: list[str] = wire.array(wire.STRING)
    include_authorized_operations: bool = wire.boolean()


@wire.struct
class DescribedShareMember:
    """A member, and the partitions that it reads with others."""

    member_id: str = wire.string()
    rack_id: str | None = wire.nullable_string(None)
    member_epoch: int = wire.int32()
    client_id: str = wire.string()
    client_host: str = wire.string()
    subscribed_topic_names: list[str] = wire.array(wire.STRING)
    assignment: DescribedAssignment = wire.nested(DescribedAssignment)


@wire.struct
class DescribedShareGroup:
    """A share group; of any other kind, GROUP_ID_NOT_FOUND."""

    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(None)
    group_id: str = wire.string()
    group_state: str = wire.string()
    group_epoch: int = wire.int32()
    assignment_epoch: int = wire.int32()
    assignor_name: str = wire.string()
    members: list[DescribedShareMember] = wire.array(DescribedShareMember)
    authorized_operations: int = wire.int32(NO_AUTHORIZED_OPERATIONS)


@wire.response(ShareGroupDescribeRequest)
class ShareGroupDescribeResponse(wire.Response):
    """The state of each group."""

    throttle_time_ms: int = wire.int32()
    groups: list[DescribedShareGroup] = wire.array(DescribedShareGroup)


@wire.struct
class AcknowledgementBatch:
    """Acknowledges records, with one type for all of them or one for each offset:
    0 gap, 1 accept, 2 release, 3 reject, 4 renew (version 2)."""

    first_offset: int = wire.int64()
    last_offset: int = wire.int64()
    acknowledge_types: list[int] = wire.array(wire.INT8)


@wire.struct
class ShareFetchPartition:
    """A partition to read, and acknowledgements of records that were acquired before."""

    partition_index: int = wire.int32()
    acknowledgement_batches: list[AcknowledgementBatch] = wire.array(AcknowledgementBatch)


@wire.struct
class ShareFetchTopic:
    """Partitions of one topic, named by its id."""

    topic_id: uuid.UUID = wire.uuid()
    partitions: list[ShareFetchPartition] = wire.array(ShareFetchPartition)


@wire.struct
class AcknowledgePartition:
    """Acknowledgements of one partition."""

    partition_index: int = wire.int32()
    acknowledgement_batches: list[AcknowledgementBatch] = wire.array(AcknowledgementBatch)


@wire.struct
class AcknowledgeTopic:
    """Partitions of one topic, named by its id."""

    topic_id: uuid.UUID = wire.uuid()
    partitions: list[AcknowledgePartition] = wire.array(AcknowledgePartition)


@wire.struct
class ForgottenShareTopic:
    """Partitions to drop from the share session."""

    topic_id: uuid.UUID = wire.uuid()
    partitions: list[int] = wire.array(wire.INT32)


@wire.request(api_key=78, versions=(1, 2), flexible=0, kafka="4.1:1 4.2:2")
class ShareFetchRequest(wire.Request["ShareFetchResponse"]):
    """Acquires records of a leader, and acknowledges earlier ones.

    `share_session_epoch` 0 opens a session, -1 closes it, else it counts up. A session remembers
    partitions: later requests name new ones, and those with acknowledgements. `share_acquire_mode`
    0 rounds up to whole batches, 1 keeps to `max_records` (KIP-1206).
    """

    group_id: str | None = wire.nullable_string(None)
    member_id: str | None = wire.nullable_string()
    share_session_epoch: int = wire.int32()
    max_wait_ms: int = wire.int32()
    min_bytes: int = wire.int32()
    max_bytes: int = wire.int32(0x7FFFFFFF)
    max_records: int = wire.int32(since=1)
    batch_size: int = wire.int32(since=1)
    share_acquire_mode: int = wire.int8(since=2, ignorable=True)
    is_renew_ack: bool = wire.boolean(since=2)
    topics: list[ShareFetchTopic] = wire.array(ShareFetchTopic)
    forgotten_topics_data: list[ForgottenShareTopic] = wire.array(ForgottenShareTopic)


@wire.struct
class AcquiredRecords:
    """Records that this member has acquired, and how often they have been delivered so far."""

    first_offset: int = wire.int64()
    last_offset: int = wire.int64()
    delivery_count: int = wire.int16()


@wire.struct
class ShareLeader:
    """The leader, as far as a broker that is not the leader knows it."""

    leader_id: int = wire.int32()
    leader_epoch: int = wire.int32()


@wire.struct
class SharePartitionData:
    """Acquired records of one partition; `records` may contain others too.

    `acknowledge_error_code` is about the acknowledgements of the request.
    """

    partition_index: int = wire.int32()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(None)
    acknowledge_error_code: int = wire.int16()
    acknowledge_error_message: str | None = wire.nullable_string(None)
    current_leader: ShareLeader = wire.nested(ShareLeader)
    # A memoryview when decoded, any bytes when a test broker sends it.
    records: BytesLike = wire.records(nullable=False)
    acquired_records: list[AcquiredRecords] = wire.array(AcquiredRecords)


@wire.struct
class ShareFetchableTopicResponse:
    """Partitions of one topic, named by its id."""

    topic_id: uuid.UUID = wire.uuid()
    partitions: list[SharePartitionData] = wire.array(SharePartitionData)


@wire.response(ShareFetchRequest)
class ShareFetchResponse(wire.Response):
    """Records by topic and partition. `error_code` is about the session or the group."""

    throttle_time_ms: int = wire.int32()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(None)
    acquisition_lock_timeout_ms: int = wire.int32(since=1)
    responses: list[ShareFetchableTopicResponse] = wire.array(ShareFetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = wire.array(NodeEndpoint)


@wire.request(api_key=79, versions=(1, 2), flexible=0, kafka="4.1:1 4.2:2")
class ShareAcknowledgeRequest(wire.Request["ShareAcknowledgeResponse"]):
    """Acknowledges records without reading more, within the session of ShareFetch."""

    group_id: str | None = wire.nullable_string(None)
    member_id: str | None = wire.nullable_string()
    share_session_epoch: int = wire.int32()
    is_renew_ack: bool = wire.boolean(since=2)
    topics: list[AcknowledgeTopic] = wire.array(AcknowledgeTopic)


@wire.struct
class AcknowledgePartitionData:
    """The outcome of one partition's acknowledgements."""

    partition_index: int = wire.int32()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(None)
    current_leader: ShareLeader = wire.nested(ShareLeader)


@wire.struct
class ShareAcknowledgeTopicResponse:
    """Partitions of one topic, named by its id."""

    topic_id: uuid.UUID = wire.uuid()
    partitions: list[AcknowledgePartitionData] = wire.array(AcknowledgePartitionData)


@wire.response(ShareAcknowledgeRequest)
class ShareAcknowledgeResponse(wire.Response):
    """The outcome of each partition's acknowledgements."""

    throttle_time_ms: int = wire.int32()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(None)
    acquisition_lock_timeout_ms: int = wire.int32(since=2, ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse] = wire.array(ShareAcknowledgeTopicResponse)
    node_endpoints: list[NodeEndpoint] = wire.array(NodeEndpoint)


@wire.struct
class DescribeShareGroupOffsetsRequestTopic:
    """Partitions of one topic."""

    topic_name: str = wire.string()
    partitions: list[int] = wire.array(wire.INT32)


@wire.struct
class DescribeShareGroupOffsetsRequestGroup:
    """One group; `topics` None means all of its topics."""

    group_id: str = wire.string()
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = wire.nullable_array(
        DescribeShareGroupOffsetsRequestTopic
    )


@wire.request(api_key=90, versions=(0, 1), flexible=0, kafka="4.1:0 4.2:1")
class DescribeShareGroupOffsetsRequest(wire.Request["DescribeShareGroupOffsetsResponse"]):
    """Requests from a coordinator the offsets of share groups."""

    groups: list[DescribeShareGroupOffsetsRequestGroup] = wire.array(
        DescribeShareGroupOffsetsRequestGroup
    )


@wire.struct
class DescribeShareGroupOffsetsResponsePartition:
    """The first unacknowledged offset, -1 before the group has read; `lag` -1 is not known."""

    partition_index: int = wire.int32()
    start_offset: int = wire.int64()
    leader_epoch: int = wire.int32()
    lag: int = wire.int64(-1, since=1, ignorable=True)
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(None)


@wire.struct
class DescribeShareGroupOffsetsResponseTopic:
    """Partitions of one topic."""

    topic_name: str = wire.string()
    topic_id: uuid.UUID = wire.uuid()
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = wire.array(
        DescribeShareGroupOffsetsResponsePartition
    )


@wire.struct
class DescribeShareGroupOffsetsResponseGroup:
    """One group."""

    group_id: str = wire.string()
    topics: list[DescribeShareGroupOffsetsResponseTopic] = wire.array(
        DescribeShareGroupOffsetsResponseTopic
    )
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(None)


@wire.response(DescribeShareGroupOffsetsRequest)
class DescribeShareGroupOffsetsResponse(wire.Response):
    """Offsets by group, topic and partition."""

    throttle_time_ms: int = wire.int32()
    groups: list[DescribeShareGroupOffsetsResponseGroup] = wire.array(
        DescribeShareGroupOffsetsResponseGroup
    )


@wire.struct
class AlterShareGroupOffsetsRequestPartition:
    """The offset from which the group is to read a partition."""

    partition_index: int = wire.int32()
    start_offset: int = wire.int64()


@wire.struct
class AlterShareGroupOffsetsRequestTopic:
    """Partitions of one topic."""

    topic_name: str = wire.string()
    partitions: list[AlterShareGroupOffsetsRequestPartition] = wire.array(
        AlterShareGroupOffsetsRequestPartition
    )


@wire.request(api_key=91, versions=(0, 0), flexible=0, kafka="4.1:0")
class AlterShareGroupOffsetsRequest(wire.Request["AlterShareGroupOffsetsResponse"]):
    """Sets the offsets from which a group without members resumes."""

    group_id: str = wire.string()
    topics: list[AlterShareGroupOffsetsRequestTopic] = wire.array(
        AlterShareGroupOffsetsRequestTopic
    )


@wire.struct
class AlterShareGroupOffsetsResponsePartition:
    """The outcome of one partition."""

    partition_index: int = wire.int32()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(None)


@wire.struct
class AlterShareGroupOffsetsResponseTopic:
    """Partitions of one topic."""

    topic_name: str = wire.string()
    topic_id: uuid.UUID = wire.uuid()
    partitions: list[AlterShareGroupOffsetsResponsePartition] = wire.array(
        AlterShareGroupOffsetsResponsePartition
    )


@wire.response(AlterShareGroupOffsetsRequest)
class AlterShareGroupOffsetsResponse(wire.Response):
    """The outcome of each partition, or of the group as a whole."""

    throttle_time_ms: int = wire.int32()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = wire.array(
        AlterShareGroupOffsetsResponseTopic
    )


@wire.struct
class DeleteShareGroupOffsetsRequestTopic:
    """A topic whose offsets are deleted."""

    topic_name: str = wire.string()


@wire.request(api_key=92, versions=(0, 0), flexible=0, kafka="4.1:0")
class DeleteShareGroupOffsetsRequest(wire.Request["DeleteShareGroupOffsetsResponse"]):
    """Deletes all offsets of topics from a group without members."""

    group_id: str = wire.string()
    topics: list[DeleteShareGroupOffsetsRequestTopic] = wire.array(
        DeleteShareGroupOffsetsRequestTopic
    )


@wire.struct
class DeleteShareGroupOffsetsResponseTopic:
    """The outcome of one topic."""

    topic_name: str = wire.string()
    topic_id: uuid.UUID = wire.uuid()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(None)


@wire.response(DeleteShareGroupOffsetsRequest)
class DeleteShareGroupOffsetsResponse(wire.Response):
    """The outcome of each topic, or of the group as a whole."""

    throttle_time_ms: int = wire.int32()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = wire.array(
        DeleteShareGroupOffsetsResponseTopic
    )
