"""Reading and writing records: ListOffsets, Fetch, Produce."""

from __future__ import annotations

import uuid

from sparkkafka.protocol.constants import MAX_INT64
from sparkkafka.protocol.wire import schema as wire
from sparkkafka.protocol.wire.primitives import BytesLike


@wire.struct
class LeaderIdAndEpoch:
    """The leader, as far as a broker that is not the leader knows it (KIP-951)."""

    leader_id: int = wire.int32(-1)
    leader_epoch: int = wire.int32(-1)


@wire.struct
class ListOffsetsPartition:
    """`timestamp` is in ms, or -1 for the end, -2 for the start, -3 for the largest timestamp."""

    partition_index: int = wire.int32()
    current_leader_epoch: int = wire.int32(-1, since=4, ignorable=True)
    timestamp: int = wire.int64()


@wire.struct
class ListOffsetsTopic:
    """Partitions of one topic."""

    name: str = wire.string()
    partitions: list[ListOffsetsPartition] = wire.array(ListOffsetsPartition)


@wire.request(
    api_key=2,
    versions=(2, 11),
    flexible=6,
    kafka="2.1:4 2.2:5 2.8:6 3.0:7 3.5:8 3.9:9 4.0:10 4.2:11",
)
class ListOffsetsRequest(wire.Request["ListOffsetsResponse"]):
    """Requests from a leader offsets by timestamp.

    `replica_id` is -1 for a consumer. With `isolation_level` 1 (read committed) the end is the
    last stable offset. `timeout_ms` limits a lookup in the remote storage of a tiered topic.
    """

    replica_id: int = wire.int32()
    isolation_level: int = wire.int8(since=2)
    topics: list[ListOffsetsTopic] = wire.array(ListOffsetsTopic)
    timeout_ms: int = wire.int32(since=10, ignorable=True)


@wire.struct
class ListOffsetsPartitionResponse:
    """The offset found and its record's timestamp in ms; both are -1 if there is none."""

    partition_index: int = wire.int32()
    error_code: int = wire.int16()
    timestamp: int = wire.int64(-1, since=1)
    offset: int = wire.int64(-1, since=1)
    leader_epoch: int = wire.int32(-1, since=4)


@wire.struct
class ListOffsetsTopicResponse:
    """Offsets of one topic."""

    name: str = wire.string()
    partitions: list[ListOffsetsPartitionResponse] = wire.array(ListOffsetsPartitionResponse)


@wire.response(ListOffsetsRequest)
class ListOffsetsResponse(wire.Response):
    """Offsets by topic and partition."""

    throttle_time_ms: int = wire.int32(since=2, ignorable=True)
    topics: list[ListOffsetsTopicResponse] = wire.array(ListOffsetsTopicResponse)


@wire.struct
class FetchPartition:
    """The offset from which to read a partition, and the maximum of bytes.

    `log_start_offset` and `last_fetched_epoch` are for replicas; a consumer leaves them at -1, or
    sets `last_fetched_epoch` so that the leader reports a truncated log (KIP-595).
    """

    partition: int = wire.int32()
    current_leader_epoch: int = wire.int32(-1, since=9, ignorable=True)
    fetch_offset: int = wire.int64()
    last_fetched_epoch: int = wire.int32(-1, since=12)
    log_start_offset: int = wire.int64(-1, since=5, ignorable=True)
    partition_max_bytes: int = wire.int32()
    replica_directory_id: uuid.UUID = wire.uuid(since=17, tag=0, ignorable=True)
    high_watermark: int = wire.int64(MAX_INT64, since=18, tag=1, ignorable=True)


@wire.struct
class FetchTopic:
    """Partitions of one topic, which `topic` names until version 12, `topic_id` from 13 on."""

    topic: str = wire.string(until=12, ignorable=True)
    topic_id: uuid.UUID = wire.uuid(since=13, ignorable=True)
    partitions: list[FetchPartition] = wire.array(FetchPartition)


@wire.struct
class ForgottenTopic:
    """Partitions to drop from a fetch session (KIP-227)."""

    topic: str = wire.string(until=12, ignorable=True)
    topic_id: uuid.UUID = wire.uuid(since=13, ignorable=True)
    partitions: list[int] = wire.array(wire.INT32)


@wire.struct
class ReplicaState:
    """The broker that replicates; a consumer leaves it out."""

    replica_id: int = wire.int32(-1)
    replica_epoch: int = wire.int64(-1)


@wire.request(
    api_key=1,
    versions=(4, 18),
    flexible=12,
    usual=12,
    kafka="2.1:10 2.3:11 2.7:12 3.1:13 3.5:15 3.7:16 3.9:17 4.1:18",
)
class FetchRequest(wire.Request["FetchResponse"]):
    """Reads records, waiting up to `max_wait_ms` for `min_bytes` of them.

    `session_id` 0 with `session_epoch` -1 is a full fetch without a session (KIP-227);
    `isolation_level` 1 is read committed; `replica_id` -1 is a consumer.
    """

    cluster_id: str | None = wire.nullable_string(None, since=12, tag=0, ignorable=True)
    replica_id: int = wire.int32(-1, until=14)
    replica_state: ReplicaState = wire.nested(ReplicaState, since=15, tag=1)
    max_wait_ms: int = wire.int32()
    min_bytes: int = wire.int32()
    max_bytes: int = wire.int32(0x7FFFFFFF, since=3, ignorable=True)
    isolation_level: int = wire.int8(since=4, ignorable=True)
    session_id: int = wire.int32(since=7, ignorable=True)
    session_epoch: int = wire.int32(-1, since=7, ignorable=True)
    topics: list[FetchTopic] = wire.array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = wire.array(ForgottenTopic, since=7)
    rack_id: str = wire.string(since=11, ignorable=True)


@wire.struct
class EpochEndOffset:
    """The end of what leader and reader have in common (KIP-595); -1, -1 if they do not differ."""

    epoch: int = wire.int32(-1)
    end_offset: int = wire.int64(-1)


@wire.struct
class SnapshotId:
    """A snapshot to fetch instead; only for KRaft's own log."""

    end_offset: int = wire.int64(-1)
    epoch: int = wire.int32(-1)


@wire.struct
class AbortedTransaction:
    """Records of `producer_id` from `first_offset` on belong to an aborted transaction."""

    producer_id: int = wire.int64()
    first_offset: int = wire.int64()


@wire.struct
class PartitionData:
    """The records and offsets of one partition.

    `aborted_transactions` and `last_stable_offset` are for read committed; the list may be null
    and is not always sorted. `records` may end in the middle of a batch.
    """

    partition_index: int = wire.int32()
    error_code: int = wire.int16()
    high_watermark: int = wire.int64()
    last_stable_offset: int = wire.int64(-1, since=4, ignorable=True)
    log_start_offset: int = wire.int64(-1, since=5, ignorable=True)
    diverging_epoch: EpochEndOffset = wire.nested(EpochEndOffset, since=12, tag=0)
    current_leader: LeaderIdAndEpoch = wire.nested(LeaderIdAndEpoch, since=12, tag=1)
    snapshot_id: SnapshotId = wire.nested(SnapshotId, since=12, tag=2)
    aborted_transactions: list[AbortedTransaction] | None = wire.nullable_array(
        AbortedTransaction, since=4, ignorable=True
    )
    preferred_read_replica: int = wire.int32(-1, since=11)
    # A memoryview when decoded, any bytes when a test broker sends it.
    records: BytesLike | None = wire.records()


@wire.struct
class FetchableTopicResponse:
    """Partitions of one topic, named as in the request."""

    topic: str = wire.string(until=12, ignorable=True)
    topic_id: uuid.UUID = wire.uuid(since=13, ignorable=True)
    partitions: list[PartitionData] = wire.array(PartitionData)


@wire.struct
class NodeEndpoint:
    """The address of a leader that `current_leader` names (KIP-951)."""

    node_id: int = wire.int32()
    host: str = wire.string()
    port: int = wire.int32()
    rack: str | None = wire.nullable_string(None)


@wire.response(FetchRequest)
class FetchResponse(wire.Response):
    """Records by topic and partition. `error_code` is about the fetch session."""

    throttle_time_ms: int = wire.int32(since=1, ignorable=True)
    error_code: int = wire.int16(since=7, ignorable=True)
    session_id: int = wire.int32(since=7)
    responses: list[FetchableTopicResponse] = wire.array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = wire.array(NodeEndpoint, since=16, tag=0)


@wire.struct
class PartitionProduceData:
    """One record batch for a partition: brokers refuse more than one."""

    index: int = wire.int32()
    records: wire.RecordsLike | None = wire.records()


@wire.struct
class TopicProduceData:
    """Partitions of one topic, which `name` names until version 12, `topic_id` from 13 on."""

    name: str = wire.string(until=12, ignorable=True)
    topic_id: uuid.UUID = wire.uuid(since=13, ignorable=True)
    partition_data: list[PartitionProduceData] = wire.array(PartitionProduceData)


@wire.request(
    api_key=0,
    versions=(3, 13),
    flexible=9,
    usual=11,
    kafka="2.1:7 2.4:8 2.8:9 3.7:10 3.8:11 4.0:12 4.1:13",
)
class ProduceRequest(wire.Request["ProduceResponse"]):
    """Writes records. `acks` is -1 (all in sync), 1 (leader) or 0, to which there is no
    response."""

    transactional_id: str | None = wire.nullable_string(None, since=3)
    acks: int = wire.int16()
    timeout_ms: int = wire.int32()
    topic_data: list[TopicProduceData] = wire.array(TopicProduceData)


@wire.struct
class BatchIndexAndErrorMessage:
    """A record, by its index in the batch, that made the broker refuse the whole batch."""

    batch_index: int = wire.int32()
    batch_index_error_message: str | None = wire.nullable_string(None)


@wire.struct
class PartitionProduceResponse:
    """The offset that the batch got. `log_append_time_ms` is -1 unless the topic uses
    LogAppendTime."""

    index: int = wire.int32()
    error_code: int = wire.int16()
    base_offset: int = wire.int64()
    log_append_time_ms: int = wire.int64(-1, since=2, ignorable=True)
    log_start_offset: int = wire.int64(-1, since=5, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = wire.array(
        BatchIndexAndErrorMessage, since=8, ignorable=True
    )
    error_message: str | None = wire.nullable_string(None, since=8, ignorable=True)
    current_leader: LeaderIdAndEpoch = wire.nested(LeaderIdAndEpoch, since=10, tag=0)


@wire.struct
class TopicProduceResponse:
    """Partitions of one topic, named as in the request."""

    name: str = wire.string(until=12, ignorable=True)
    topic_id: uuid.UUID = wire.uuid(since=13, ignorable=True)
    partition_responses: list[PartitionProduceResponse] = wire.array(PartitionProduceResponse)


@wire.response(ProduceRequest)
class ProduceResponse(wire.Response):
    """The outcome of each partition's batch."""

    responses: list[TopicProduceResponse] = wire.array(TopicProduceResponse)
    throttle_time_ms: int = wire.int32(since=1, ignorable=True)
    node_endpoints: list[NodeEndpoint] = wire.array(NodeEndpoint, since=10, tag=0)
