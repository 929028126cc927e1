"""Share groups (KIP-932): membership, fetching and acknowledging, and the requests of Admin.

Members of a share group read the same partitions together. A member acquires ranges of records
from a leader for a limited time, and acknowledges each record as processed or not. Version 0 of the
first four was an early access of Kafka 4.0, which no later broker supports.
"""

from __future__ import annotations

import uuid as uuid_module

from sparkkafka.protocol.messages.data import NodeEndpoint
from sparkkafka.protocol.messages.groups import DescribedAssignment, HeartbeatAssignment
from sparkkafka.protocol.messages.metadata import NO_AUTHORIZED_OPERATIONS
from sparkkafka.protocol.wire.primitives import BytesLike
from sparkkafka.protocol.wire.schema import (
    INT8,
    INT32,
    STRING,
    Request,
    Response,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    nested,
    nullable_array,
    nullable_nested,
    nullable_string,
    records,
    request,
    response,
    string,
    struct,
    uuid,
)


@request(api_key=76, versions=(1, 1), flexible=0, kafka="4.1:1")
class ShareGroupHeartbeatRequest(Request["ShareGroupHeartbeatResponse"]):
    """Joins (`member_epoch` 0), stays in or leaves (-1) a share group. A null means that the value
    has not changed since the last heartbeat. The member generates its own id."""

    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    rack_id: str | None = nullable_string(None)
    subscribed_topic_names: list[str] | None = nullable_array(STRING, null_default=True)


@response(ShareGroupHeartbeatRequest)
class ShareGroupHeartbeatResponse(Response):
    """The member's epoch, and its assignment if that has changed."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    member_id: str | None = nullable_string(None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: HeartbeatAssignment | None = nullable_nested(HeartbeatAssignment)


@request(api_key=77, versions=(1, 1), flexible=0, kafka="4.1:1")
class ShareGroupDescribeRequest(Request["ShareGroupDescribeResponse"]):
    """Requests from a coordinator share groups."""

    group_ids: list[str] = array(STRING)
    include_authorized_operations: bool = boolean()


@struct
class DescribedShareMember:
    """A member, and the partitions that it reads with others."""

    member_id: str = string()
    rack_id: str | None = nullable_string(None)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(STRING)
    assignment: DescribedAssignment = nested(DescribedAssignment)


@struct
class DescribedShareGroup:
    """A share group; of any other kind, GROUP_ID_NOT_FOUND."""

    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()
    assignor_name: str = string()
    members: list[DescribedShareMember] = array(DescribedShareMember)
    authorized_operations: int = int32(NO_AUTHORIZED_OPERATIONS)


@response(ShareGroupDescribeRequest)
class ShareGroupDescribeResponse(Response):
    """The state of each group."""

    throttle_time_ms: int = int32()
    groups: list[DescribedShareGroup] = array(DescribedShareGroup)


@struct
class AcknowledgementBatch:
    """Acknowledges records, with one type for all of them or one for each offset:
    0 gap, 1 accept, 2 release, 3 reject, 4 renew (version 2)."""

    first_offset: int = int64()
    last_offset: int = int64()
    acknowledge_types: list[int] = array(INT8)


@struct
class ShareFetchPartition:
    """A partition to read, and acknowledgements of records that were acquired before."""

    partition_index: int = int32()
    acknowledgement_batches: list[AcknowledgementBatch] = array(AcknowledgementBatch)


@struct
class ShareFetchTopic:
    """Partitions of one topic, named by its id."""

    topic_id: uuid_module.UUID = uuid()
    partitions: list[ShareFetchPartition] = array(ShareFetchPartition)


@struct
class AcknowledgePartition:
    """Acknowledgements of one partition."""

    partition_index: int = int32()
    acknowledgement_batches: list[AcknowledgementBatch] = array(AcknowledgementBatch)


@struct
class AcknowledgeTopic:
    """Partitions of one topic, named by its id."""

    topic_id: uuid_module.UUID = uuid()
    partitions: list[AcknowledgePartition] = array(AcknowledgePartition)


@struct
class ForgottenShareTopic:
    """Partitions to drop from the share session."""

    topic_id: uuid_module.UUID = uuid()
    partitions: list[int] = array(INT32)


@request(api_key=78, versions=(1, 2), flexible=0, kafka="4.1:1 4.2:2")
class ShareFetchRequest(Request["ShareFetchResponse"]):
    """Acquires records of a leader, and acknowledges earlier ones.

    `share_session_epoch` 0 opens a session, -1 closes it, else it counts up. A session remembers
    partitions: later requests name new ones, and those with acknowledgements. `share_acquire_mode`
    0 rounds up to whole batches, 1 keeps to `max_records` (KIP-1206).
    """

    group_id: str | None = nullable_string(None)
    member_id: str | None = nullable_string()
    share_session_epoch: int = int32()
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(0x7FFFFFFF)
    max_records: int = int32(since=1)
    batch_size: int = int32(since=1)
    share_acquire_mode: int = int8(since=2, ignorable=True)
    is_renew_ack: bool = boolean(since=2)
    topics: list[ShareFetchTopic] = array(ShareFetchTopic)
    forgotten_topics_data: list[ForgottenShareTopic] = array(ForgottenShareTopic)


@struct
class AcquiredRecords:
    """Records that this member has acquired, and how often they have been delivered so far."""

    first_offset: int = int64()
    last_offset: int = int64()
    delivery_count: int = int16()


@struct
class ShareLeader:
    """The leader, as far as a broker that is not the leader knows it."""

    leader_id: int = int32()
    leader_epoch: int = int32()


@struct
class SharePartitionData:
    """Acquired records of one partition; `records` may contain others too.

    `acknowledge_error_code` is about the acknowledgements of the request.
    """

    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    acknowledge_error_code: int = int16()
    acknowledge_error_message: str | None = nullable_string(None)
    current_leader: ShareLeader = nested(ShareLeader)
    # A memoryview when decoded, any bytes when a test broker sends it.
    records: BytesLike = records(nullable=False)
    acquired_records: list[AcquiredRecords] = array(AcquiredRecords)


@struct
class ShareFetchableTopicResponse:
    """Partitions of one topic, named by its id."""

    topic_id: uuid_module.UUID = uuid()
    partitions: list[SharePartitionData] = array(SharePartitionData)


@response(ShareFetchRequest)
class ShareFetchResponse(Response):
    """Records by topic and partition. `error_code` is about the session or the group."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    acquisition_lock_timeout_ms: int = int32(since=1)
    responses: list[ShareFetchableTopicResponse] = array(ShareFetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint)


@request(api_key=79, versions=(1, 2), flexible=0, kafka="4.1:1 4.2:2")
class ShareAcknowledgeRequest(Request["ShareAcknowledgeResponse"]):
    """Acknowledges records without reading more, within the session of ShareFetch."""

    group_id: str | None = nullable_string(None)
    member_id: str | None = nullable_string()
    share_session_epoch: int = int32()
    is_renew_ack: bool = boolean(since=2)
    topics: list[AcknowledgeTopic] = array(AcknowledgeTopic)


@struct
class AcknowledgePartitionData:
    """The outcome of one partition's acknowledgements."""

    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    current_leader: ShareLeader = nested(ShareLeader)


@struct
class ShareAcknowledgeTopicResponse:
    """Partitions of one topic, named by its id."""

    topic_id: uuid_module.UUID = uuid()
    partitions: list[AcknowledgePartitionData] = array(AcknowledgePartitionData)


@response(ShareAcknowledgeRequest)
class ShareAcknowledgeResponse(Response):
    """The outcome of each partition's acknowledgements."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    acquisition_lock_timeout_ms: int = int32(since=2, ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse] = array(ShareAcknowledgeTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint)


@struct
class DescribeShareGroupOffsetsRequestTopic:
    """Partitions of one topic."""

    topic_name: str = string()
    partitions: list[int] = array(INT32)


@struct
class DescribeShareGroupOffsetsRequestGroup:
    """One group; `topics` None means all of its topics."""

    group_id: str = string()
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = nullable_array(
        DescribeShareGroupOffsetsRequestTopic
    )


@request(api_key=90, versions=(0, 1), flexible=0, kafka="4.1:0 4.2:1")
class DescribeShareGroupOffsetsRequest(Request["DescribeShareGroupOffsetsResponse"]):
    """Requests from a coordinator the offsets of share groups."""

    groups: list[DescribeShareGroupOffsetsRequestGroup] = array(
        DescribeShareGroupOffsetsRequestGroup
    )


@struct
class DescribeShareGroupOffsetsResponsePartition:
    """The first unacknowledged offset, -1 before the group has read; `lag` -1 is not known."""

    partition_index: int = int32()
    start_offset: int = int64()
    leader_epoch: int = int32()
    lag: int = int64(-1, since=1, ignorable=True)
    error_code: int = int16()
    error_message: str | None = nullable_string(None)


@struct
class DescribeShareGroupOffsetsResponseTopic:
    """Partitions of one topic."""

    topic_name: str = string()
    topic_id: uuid_module.UUID = uuid()
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = array(
        DescribeShareGroupOffsetsResponsePartition
    )


@struct
class DescribeShareGroupOffsetsResponseGroup:
    """One group."""

    group_id: str = string()
    topics: list[DescribeShareGroupOffsetsResponseTopic] = array(
        DescribeShareGroupOffsetsResponseTopic
    )
    error_code: int = int16()
    error_message: str | None = nullable_string(None)


@response(DescribeShareGroupOffsetsRequest)
class DescribeShareGroupOffsetsResponse(Response):
    """Offsets by group, topic and partition."""

    throttle_time_ms: int = int32()
    groups: list[DescribeShareGroupOffsetsResponseGroup] = array(
        DescribeShareGroupOffsetsResponseGroup
    )


@struct
class AlterShareGroupOffsetsRequestPartition:
    """The offset from which the group is to read a partition."""

    partition_index: int = int32()
    start_offset: int = int64()


@struct
class AlterShareGroupOffsetsRequestTopic:
    """Partitions of one topic."""

    topic_name: str = string()
    partitions: list[AlterShareGroupOffsetsRequestPartition] = array(
        AlterShareGroupOffsetsRequestPartition
    )


@request(api_key=91, versions=(0, 0), flexible=0, kafka="4.1:0")
class AlterShareGroupOffsetsRequest(Request["AlterShareGroupOffsetsResponse"]):
    """Sets the offsets from which a group without members resumes."""

    group_id: str = string()
    topics: list[AlterShareGroupOffsetsRequestTopic] = array(AlterShareGroupOffsetsRequestTopic)


@struct
class AlterShareGroupOffsetsResponsePartition:
    """The outcome of one partition."""

    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)


@struct
class AlterShareGroupOffsetsResponseTopic:
    """Partitions of one topic."""

    topic_name: str = string()
    topic_id: uuid_module.UUID = uuid()
    partitions: list[AlterShareGroupOffsetsResponsePartition] = array(
        AlterShareGroupOffsetsResponsePartition
    )


@response(AlterShareGroupOffsetsRequest)
class AlterShareGroupOffsetsResponse(Response):
    """The outcome of each partition, or of the group as a whole."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = array(
        AlterShareGroupOffsetsResponseTopic
    )


@struct
class DeleteShareGroupOffsetsRequestTopic:
    """A topic whose offsets are deleted."""

    topic_name: str = string()


@request(api_key=92, versions=(0, 0), flexible=0, kafka="4.1:0")
class DeleteShareGroupOffsetsRequest(Request["DeleteShareGroupOffsetsResponse"]):
    """Deletes all offsets of topics from a group without members."""

    group_id: str = string()
    topics: list[DeleteShareGroupOffsetsRequestTopic] = array(DeleteShareGroupOffsetsRequestTopic)


@struct
class DeleteShareGroupOffsetsResponseTopic:
    """The outcome of one topic."""

    topic_name: str = string()
    topic_id: uuid_module.UUID = uuid()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)


@response(DeleteShareGroupOffsetsRequest)
class DeleteShareGroupOffsetsResponse(Response):
    """The outcome of each topic, or of the group as a whole."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = array(
        DeleteShareGroupOffsetsResponseTopic
    )
