"""Reading and writing records: ListOffsets, Fetch, Produce."""

from __future__ import annotations

import uuid as uuid_module

from sparkkafka.protocol.constants import MAX_INT64
from sparkkafka.protocol.wire.primitives import BytesLike
from sparkkafka.protocol.wire.schema import (
    INT32,
    RecordsLike,
    Request,
    Response,
    array,
    int8,
    int16,
    int32,
    int64,
    nested,
    nullable_array,
    nullable_string,
    records,
    request,
    response,
    string,
    struct,
    uuid,
)


@struct
class LeaderIdAndEpoch:
    """The leader, as far as a broker that is not the leader knows it (KIP-951)."""

    leader_id: int = int32(-1)
    leader_epoch: int = int32(-1)


@struct
class ListOffsetsPartition:
    """`timestamp` is in ms, or -1 for the end, -2 for the start, -3 for the largest timestamp."""

    partition_index: int = int32()
    current_leader_epoch: int = int32(-1, since=4, ignorable=True)
    timestamp: int = int64()


@struct
class ListOffsetsTopic:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


@request(
    api_key=2,
    versions=(2, 11),
    flexible=6,
    kafka="2.1:4 2.2:5 2.8:6 3.0:7 3.5:8 3.9:9 4.0:10 4.2:11",
)
class ListOffsetsRequest(Request["ListOffsetsResponse"]):
    """Requests from a leader offsets by timestamp.

    `replica_id` is -1 for a consumer. With `isolation_level` 1 (read committed) the end is the
    last stable offset. `timeout_ms` limits a lookup in the remote storage of a tiered topic.
    """

    replica_id: int = int32()
    isolation_level: int = int8(since=2)
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = int32(since=10, ignorable=True)


@struct
class ListOffsetsPartitionResponse:
    """The offset found and its record's timestamp in ms; both are -1 if there is none."""

    partition_index: int = int32()
    error_code: int = int16()
    timestamp: int = int64(-1, since=1)
    offset: int = int64(-1, since=1)
    leader_epoch: int = int32(-1, since=4)


@struct
class ListOffsetsTopicResponse:
    """Offsets of one topic."""

    name: str = string()
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


@response(ListOffsetsRequest)
class ListOffsetsResponse(Response):
    """Offsets by topic and partition."""

    throttle_time_ms: int = int32(since=2, ignorable=True)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)


@struct
class FetchPartition:
    """The offset from which to read a partition, and the maximum of bytes.

    `log_start_offset` and `last_fetched_epoch` are for replicas; a consumer leaves them at -1, or
    sets `last_fetched_epoch` so that the leader reports a truncated log (KIP-595).
    """

    partition: int = int32()
    current_leader_epoch: int = int32(-1, since=9, ignorable=True)
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32(-1, since=12)
    log_start_offset: int = int64(-1, since=5, ignorable=True)
    partition_max_bytes: int = int32()
    replica_directory_id: uuid_module.UUID = uuid(since=17, tag=0, ignorable=True)
    high_watermark: int = int64(MAX_INT64, since=18, tag=1, ignorable=True)


@struct
class FetchTopic:
    """Partitions of one topic, which `topic` names until version 12, `topic_id` from 13 on."""

    topic: str = string(until=12, ignorable=True)
    topic_id: uuid_module.UUID = uuid(since=13, ignorable=True)
    partitions: list[FetchPartition] = array(FetchPartition)


@struct
class ForgottenTopic:
    """Partitions to drop from a fetch session (KIP-227)."""

    topic: str = string(until=12, ignorable=True)
    topic_id: uuid_module.UUID = uuid(since=13, ignorable=True)
    partitions: list[int] = array(INT32)


@struct
class ReplicaState:
    """The broker that replicates; a consumer leaves it out."""

    replica_id: int = int32(-1)
    replica_epoch: int = int64(-1)


@request(
    api_key=1,
    versions=(4, 18),
    flexible=12,
    usual=12,
    kafka="2.1:10 2.3:11 2.7:12 3.1:13 3.5:15 3.7:16 3.9:17 4.1:18",
)
class FetchRequest(Request["FetchResponse"]):
    """Reads records, waiting up to `max_wait_ms` for `min_bytes` of them.

    `session_id` 0 with `session_epoch` -1 is a full fetch without a session (KIP-227);
    `isolation_level` 1 is read committed; `replica_id` -1 is a consumer.
    """

    cluster_id: str | None = nullable_string(None, since=12, tag=0, ignorable=True)
    replica_id: int = int32(-1, until=14)
    replica_state: ReplicaState = nested(ReplicaState, since=15, tag=1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(0x7FFFFFFF, since=3, ignorable=True)
    isolation_level: int = int8(since=4, ignorable=True)
    session_id: int = int32(since=7, ignorable=True)
    session_epoch: int = int32(-1, since=7, ignorable=True)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, since=7)
    rack_id: str = string(since=11, ignorable=True)


@struct
class EpochEndOffset:
    """The end of what leader and reader have in common (KIP-595); -1, -1 if they do not differ."""

    epoch: int = int32(-1)
    end_offset: int = int64(-1)


@struct
class SnapshotId:
    """A snapshot to fetch instead; only for KRaft's own log."""

    end_offset: int = int64(-1)
    epoch: int = int32(-1)


@struct
class AbortedTransaction:
    """Records of `producer_id` from `first_offset` on belong to an aborted transaction."""

    producer_id: int = int64()
    first_offset: int = int64()


@struct
class PartitionData:
    """The records and offsets of one partition.

    `aborted_transactions` and `last_stable_offset` are for read committed; the list may be null
    and is not always sorted. `records` may end in the middle of a batch.
    """

    partition_index: int = int32()
    error_code: int = int16()
    high_watermark: int = int64()
    last_stable_offset: int = int64(-1, since=4, ignorable=True)
    log_start_offset: int = int64(-1, since=5, ignorable=True)
    diverging_epoch: EpochEndOffset = nested(EpochEndOffset, since=12, tag=0)
    current_leader: LeaderIdAndEpoch = nested(LeaderIdAndEpoch, since=12, tag=1)
    snapshot_id: SnapshotId = nested(SnapshotId, since=12, tag=2)
    aborted_transactions: list[AbortedTransaction] | None = nullable_array(
        AbortedTransaction, since=4, ignorable=True
    )
    preferred_read_replica: int = int32(-1, since=11)
    # A memoryview when decoded, any bytes when a test broker sends it.
    records: BytesLike | None = records()


@struct
class FetchableTopicResponse:
    """Partitions of one topic, named as in the request."""

    topic: str = string(until=12, ignorable=True)
    topic_id: uuid_module.UUID = uuid(since=13, ignorable=True)
    partitions: list[PartitionData] = array(PartitionData)


@struct
class NodeEndpoint:
    """The address of a leader that `current_leader` names (KIP-951)."""

    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = nullable_string(None)


@response(FetchRequest)
class FetchResponse(Response):
    """Records by topic and partition. `error_code` is about the fetch session."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16(since=7, ignorable=True)
    session_id: int = int32(since=7)
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=16, tag=0)


@struct
class PartitionProduceData:
    """One record batch for a partition: brokers refuse more than one."""

    index: int = int32()
    records: RecordsLike | None = records()


@struct
class TopicProduceData:
    """Partitions of one topic, which `name` names until version 12, `topic_id` from 13 on."""

    name: str = string(until=12, ignorable=True)
    topic_id: uuid_module.UUID = uuid(since=13, ignorable=True)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


@request(
    api_key=0,
    versions=(3, 13),
    flexible=9,
    usual=11,
    kafka="2.1:7 2.4:8 2.8:9 3.7:10 3.8:11 4.0:12 4.1:13",
)
class ProduceRequest(Request["ProduceResponse"]):
    """Writes records. `acks` is -1 (all in sync), 1 (leader) or 0, to which there is no
    response."""

    transactional_id: str | None = nullable_string(None, since=3)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)


@struct
class BatchIndexAndErrorMessage:
    """A record, by its index in the batch, that made the broker refuse the whole batch."""

    batch_index: int = int32()
    batch_index_error_message: str | None = nullable_string(None)


@struct
class PartitionProduceResponse:
    """The offset that the batch got. `log_append_time_ms` is -1 unless the topic uses
    LogAppendTime."""

    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64()
    log_append_time_ms: int = int64(-1, since=2, ignorable=True)
    log_start_offset: int = int64(-1, since=5, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = array(
        BatchIndexAndErrorMessage, since=8, ignorable=True
    )
    error_message: str | None = nullable_string(None, since=8, ignorable=True)
    current_leader: LeaderIdAndEpoch = nested(LeaderIdAndEpoch, since=10, tag=0)


@struct
class TopicProduceResponse:
    """Partitions of one topic, named as in the request."""

    name: str = string(until=12, ignorable=True)
    topic_id: uuid_module.UUID = uuid(since=13, ignorable=True)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


@response(ProduceRequest)
class ProduceResponse(Response):
    """The outcome of each partition's batch."""

    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32(since=1, ignorable=True)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=10, tag=0)
