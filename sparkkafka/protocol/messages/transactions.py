"""Idempotence and transactions: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn,
TxnOffsetCommit, DescribeTransactions, ListTransactions, DescribeProducers, WriteTxnMarkers.

Usual versions end where KIP-890's second part begins (transactions V2): these are valid on brokers
2.1 to 4.x. Later ones are for clusters whose feature transaction.version is 2.
"""

from __future__ import annotations

import uuid

from sparkkafka.protocol.wire import schema as wire


@wire.request(api_key=22, versions=(0, 5), flexible=2, kafka="2.1:1 2.4:2 2.5:3 2.7:4 3.8:5")
class InitProducerIdRequest(wire.Request["InitProducerIdResponse"]):
    """Requests a producer id; with a transactional id also aborts its open transaction.

    `producer_id` and `producer_epoch` other than -1 request the next epoch of a known id (KIP-360).
    """

    transactional_id: str | None = wire.nullable_string()
    transaction_timeout_ms: int = wire.int32()
    producer_id: int = wire.int64(-1, since=3)
    producer_epoch: int = wire.int16(-1, since=3)


@wire.response(InitProducerIdRequest)
class InitProducerIdResponse(wire.Response):
    """The producer id and epoch to write with."""

    throttle_time_ms: int = wire.int32(ignorable=True)
    error_code: int = wire.int16()
    producer_id: int = wire.int64(-1)
    producer_epoch: int = wire.int16()


@wire.struct
class AddPartitionsToTxnTopic:
    """Partitions of one topic."""

    name: str = wire.string()
    partitions: list[int] = wire.array(wire.INT32)


@wire.request(api_key=24, versions=(0, 3), flexible=3, kafka="2.1:1 2.7:2 2.8:3 3.6:4 3.8:5")
class AddPartitionsToTxnRequest(wire.Request["AddPartitionsToTxnResponse"]):
    """Makes partitions part of the transaction, before anything is written to them.

    The fields' prefix is Kafka's: versions from 4 on, for brokers only, have another layout.
    """

    v3_and_below_transactional_id: str = wire.string(until=3)
    v3_and_below_producer_id: int = wire.int64(until=3)
    v3_and_below_producer_epoch: int = wire.int16(until=3)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = wire.array(
        AddPartitionsToTxnTopic, until=3
    )


@wire.struct
class AddPartitionsToTxnPartitionResult:
    """One partition; if any is refused, the others have OPERATION_NOT_ATTEMPTED."""

    partition_index: int = wire.int32()
    partition_error_code: int = wire.int16()


@wire.struct
class AddPartitionsToTxnTopicResult:
    """Partitions of one topic."""

    name: str = wire.string()
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = wire.array(
        AddPartitionsToTxnPartitionResult
    )


@wire.response(AddPartitionsToTxnRequest)
class AddPartitionsToTxnResponse(wire.Response):
    """The outcome of each partition."""

    throttle_time_ms: int = wire.int32()
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = wire.array(
        AddPartitionsToTxnTopicResult, until=3
    )


@wire.request(api_key=25, versions=(0, 4), flexible=3, kafka="2.1:1 2.7:2 2.8:3 3.8:4")
class AddOffsetsToTxnRequest(wire.Request["AddOffsetsToTxnResponse"]):
    """Makes the offsets of a group part of the transaction, before TxnOffsetCommit."""

    transactional_id: str = wire.string()
    producer_id: int = wire.int64()
    producer_epoch: int = wire.int16()
    group_id: str = wire.string()


@wire.response(AddOffsetsToTxnRequest)
class AddOffsetsToTxnResponse(wire.Response):
    """0, or why the offsets are not part of the transaction."""

    throttle_time_ms: int = wire.int32()
    error_code: int = wire.int16()


@wire.request(
    api_key=26, versions=(0, 5), flexible=3, usual=4, kafka="2.1:1 2.7:2 2.8:3 3.8:4 4.0:5"
)
class EndTxnRequest(wire.Request["EndTxnResponse"]):
    """Commits (`committed` true) or aborts the open transaction."""

    transactional_id: str = wire.string()
    producer_id: int = wire.int64()
    producer_epoch: int = wire.int16()
    committed: bool = wire.boolean()


@wire.response(EndTxnRequest)
class EndTxnResponse(wire.Response):
    """The outcome. Markers may still be written after it.

    From version 5 on it has the producer id and epoch of the next transaction.
    """

    throttle_time_ms: int = wire.int32()
    error_code: int = wire.int16()
    producer_id: int = wire.int64(-1, since=5, ignorable=True)
    producer_epoch: int = wire.int16(-1, since=5, ignorable=True)


@wire.struct
class TxnOffsetCommitRequestPartition:
    """The next offset to read."""

    partition_index: int = wire.int32()
    committed_offset: int = wire.int64()
    committed_leader_epoch: int = wire.int32(-1, since=2, ignorable=True)
    committed_metadata: str | None = wire.nullable_string()


@wire.struct
class TxnOffsetCommitRequestTopic:
    """Partitions of one topic, which `name` names until version 5, `topic_id` from 6 on."""

    name: str = wire.string(until=5, ignorable=True)
    topic_id: uuid.UUID = wire.uuid(since=6, ignorable=True)
    partitions: list[TxnOffsetCommitRequestPartition] = wire.array(TxnOffsetCommitRequestPartition)


@wire.request(
    api_key=28, versions=(0, 6), flexible=3, usual=3, kafka="2.1:2 2.5:3 3.8:4 4.0:5 4.4:6"
)
class TxnOffsetCommitRequest(wire.Request["TxnOffsetCommitResponse"]):
    """Commits offsets of a group with the transaction; goes to the group's coordinator."""

    transactional_id: str = wire.string()
    group_id: str = wire.string()
    producer_id: int = wire.int64()
    producer_epoch: int = wire.int16()
    generation_id_or_member_epoch: int = wire.int32(-1, since=3)
    member_id: str = wire.string(since=3)
    group_instance_id: str | None = wire.nullable_string(None, since=3)
    topics: list[TxnOffsetCommitRequestTopic] = wire.array(TxnOffsetCommitRequestTopic)


@wire.struct
class TxnOffsetCommitResponsePartition:
    """The outcome of one partition."""

    partition_index: int = wire.int32()
    error_code: int = wire.int16()


@wire.struct
class TxnOffsetCommitResponseTopic:
    """Partitions of one topic, named as in the request."""

    name: str = wire.string(until=5, ignorable=True)
    topic_id: uuid.UUID = wire.uuid(since=6, ignorable=True)
    partitions: list[TxnOffsetCommitResponsePartition] = wire.array(
        TxnOffsetCommitResponsePartition
    )


@wire.response(TxnOffsetCommitRequest)
class TxnOffsetCommitResponse(wire.Response):
    """The outcome of each partition."""

    throttle_time_ms: int = wire.int32()
    topics: list[TxnOffsetCommitResponseTopic] = wire.array(TxnOffsetCommitResponseTopic)


@wire.request(api_key=65, versions=(0, 0), flexible=0, kafka="3.0:0")
class DescribeTransactionsRequest(wire.Request["DescribeTransactionsResponse"]):
    """Requests from a coordinator the state of transactional ids (KIP-664, Kafka 3.0)."""

    transactional_ids: list[str] = wire.array(wire.STRING)


@wire.struct
class TopicData:
    """Partitions of one topic."""

    topic: str = wire.string()
    partitions: list[int] = wire.array(wire.INT32)


@wire.struct
class DescribedTransactionState:
    """One transactional id: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, …

    `topics` are the partitions of the open transaction; while it ends, those without a marker.
    """

    error_code: int = wire.int16()
    transactional_id: str = wire.string()
    transaction_state: str = wire.string()
    transaction_timeout_ms: int = wire.int32()
    transaction_start_time_ms: int = wire.int64()
    producer_id: int = wire.int64()
    producer_epoch: int = wire.int16()
    topics: list[TopicData] = wire.array(TopicData)


@wire.response(DescribeTransactionsRequest)
class DescribeTransactionsResponse(wire.Response):
    """The state of each id."""

    throttle_time_ms: int = wire.int32()
    transaction_states: list[DescribedTransactionState] = wire.array(DescribedTransactionState)


@wire.request(api_key=66, versions=(0, 2), flexible=0, kafka="3.0:0 3.8:1 4.1:2")
class ListTransactionsRequest(wire.Request["ListTransactionsResponse"]):
    """Requests from a coordinator its transactional ids that match filters (KIP-664, Kafka 3.0).

    An empty filter matches all. `transactional_id_pattern` is a regular expression for the whole id
    (KIP-1152).
    """

    state_filters: list[str] = wire.array(wire.STRING)
    producer_id_filters: list[int] = wire.array(wire.INT64)
    duration_filter: int = wire.int64(-1, since=1)
    transactional_id_pattern: str | None = wire.nullable_string(None, since=2)


@wire.struct
class ListedTransactionState:
    """One transactional id."""

    transactional_id: str = wire.string()
    producer_id: int = wire.int64()
    transaction_state: str = wire.string()


@wire.response(ListTransactionsRequest)
class ListTransactionsResponse(wire.Response):
    """The transactional ids of this coordinator that the user may see."""

    throttle_time_ms: int = wire.int32()
    error_code: int = wire.int16()
    unknown_state_filters: list[str] = wire.array(wire.STRING)
    transaction_states: list[ListedTransactionState] = wire.array(ListedTransactionState)


@wire.struct
class ProducersTopic:
    """Partitions of one topic."""

    name: str = wire.string()
    partition_indexes: list[int] = wire.array(wire.INT32)


@wire.request(api_key=61, versions=(0, 0), flexible=0, kafka="2.8:0")
class DescribeProducersRequest(wire.Request["DescribeProducersResponse"]):
    """Requests from leaders the producers of partitions (KIP-664, Kafka 2.8)."""

    topics: list[ProducersTopic] = wire.array(ProducersTopic)


@wire.struct
class DescribedProducer:
    """A producer id in a partition; `current_txn_start_offset` is -1 without open transaction."""

    producer_id: int = wire.int64()
    producer_epoch: int = wire.int32()
    last_sequence: int = wire.int32(-1)
    last_timestamp: int = wire.int64(-1)
    coordinator_epoch: int = wire.int32()
    current_txn_start_offset: int = wire.int64(-1)


@wire.struct
class ProducersPartitionResponse:
    """The producers of one partition."""

    partition_index: int = wire.int32()
    error_code: int = wire.int16()
    error_message: str | None = wire.nullable_string(None)
    active_producers: list[DescribedProducer] = wire.array(DescribedProducer)


@wire.struct
class ProducersTopicResponse:
    """Partitions of one topic."""

    name: str = wire.string()
    partitions: list[ProducersPartitionResponse] = wire.array(ProducersPartitionResponse)


@wire.response(DescribeProducersRequest)
class DescribeProducersResponse(wire.Response):
    """The producers of each partition."""

    throttle_time_ms: int = wire.int32()
    topics: list[ProducersTopicResponse] = wire.array(ProducersTopicResponse)


@wire.struct
class WritableTxnMarkerTopic:
    """Partitions of one topic."""

    name: str = wire.string()
    partition_indexes: list[int] = wire.array(wire.INT32)


@wire.struct
class WritableTxnMarker:
    """The end of a producer's transaction: committed if `transaction_result`, else aborted.
    Coordinators send `transaction_version` 2 if the marker's epoch must be newer than the log's."""

    producer_id: int = wire.int64()
    producer_epoch: int = wire.int16()
    transaction_result: bool = wire.boolean()
    topics: list[WritableTxnMarkerTopic] = wire.array(WritableTxnMarkerTopic)
    coordinator_epoch: int = wire.int32()
    transaction_version: int = wire.int8(since=2, ignorable=True)


@wire.request(api_key=27, versions=(1, 2), flexible=1, kafka="2.1:0 2.8:1 4.2:2")
class WriteTxnMarkersRequest(wire.Request["WriteTxnMarkersResponse"]):
    """Has leaders write markers: for coordinators, and to abort a hanging transaction."""

    markers: list[WritableTxnMarker] = wire.array(WritableTxnMarker)


@wire.struct
class WritableTxnMarkerPartitionResult:
    """The outcome of one partition."""

    partition_index: int = wire.int32()
    error_code: int = wire.int16()


@wire.struct
class WritableTxnMarkerTopicResult:
    """Partitions of one topic."""

    name: str = wire.string()
    partitions: list[WritableTxnMarkerPartitionResult] = wire.array(
        WritableTxnMarkerPartitionResult
    )


@wire.struct
class WritableTxnMarkerResult:
    """The outcome of one producer's markers."""

    producer_id: int = wire.int64()
    topics: list[WritableTxnMarkerTopicResult] = wire.array(WritableTxnMarkerTopicResult)


@wire.response(WriteTxnMarkersRequest)
class WriteTxnMarkersResponse(wire.Response):
    """The outcome of each marker."""

    markers: list[WritableTxnMarkerResult] = wire.array(WritableTxnMarkerResult)
