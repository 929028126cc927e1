"""Idempotence and transactions: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn,
TxnOffsetCommit, DescribeTransactions, ListTransactions, DescribeProducers, WriteTxnMarkers.

Usual versions end where KIP-890's second part begins (transactions V2): these are valid on brokers
2.1 to 4.x. Later ones are for clusters whose feature transaction.version is 2.
"""

from __future__ import annotations

import uuid as uuid_module

from sparkkafka.protocol.wire.schema import (
    INT32,
    INT64,
    STRING,
    Request,
    Response,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    nullable_string,
    request,
    response,
    string,
    struct,
    uuid,
)


@request(api_key=22, versions=(0, 5), flexible=2, kafka="2.1:1 2.4:2 2.5:3 2.7:4 3.8:5")
class InitProducerIdRequest(Request["InitProducerIdResponse"]):
    """Requests a producer id; with a transactional id also aborts its open transaction.

    `producer_id` and `producer_epoch` other than -1 request the next epoch of a known id (KIP-360).
    """

    transactional_id: str | None = nullable_string()
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(-1, since=3)
    producer_epoch: int = int16(-1, since=3)


@response(InitProducerIdRequest)
class InitProducerIdResponse(Response):
    """The producer id and epoch to write with."""

    throttle_time_ms: int = int32(ignorable=True)
    error_code: int = int16()
    producer_id: int = int64(-1)
    producer_epoch: int = int16()


@struct
class AddPartitionsToTxnTopic:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[int] = array(INT32)


@request(api_key=24, versions=(0, 3), flexible=3, kafka="2.1:1 2.7:2 2.8:3 3.6:4 3.8:5")
class AddPartitionsToTxnRequest(Request["AddPartitionsToTxnResponse"]):
    """Makes partitions part of the transaction, before anything is written to them.

    The fields' prefix is Kafka's: versions from 4 on, for brokers only, have another layout.
    """

    v3_and_below_transactional_id: str = string(until=3)
    v3_and_below_producer_id: int = int64(until=3)
    v3_and_below_producer_epoch: int = int16(until=3)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, until=3)


@struct
class AddPartitionsToTxnPartitionResult:
    """One partition; if any is refused, the others have OPERATION_NOT_ATTEMPTED."""

    partition_index: int = int32()
    partition_error_code: int = int16()


@struct
class AddPartitionsToTxnTopicResult:
    """Partitions of one topic."""

    name: str = string()
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(
        AddPartitionsToTxnPartitionResult
    )


@response(AddPartitionsToTxnRequest)
class AddPartitionsToTxnResponse(Response):
    """The outcome of each partition."""

    throttle_time_ms: int = int32()
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, until=3
    )


@request(api_key=25, versions=(0, 4), flexible=3, kafka="2.1:1 2.7:2 2.8:3 3.8:4")
class AddOffsetsToTxnRequest(Request["AddOffsetsToTxnResponse"]):
    """Makes the offsets of a group part of the transaction, before TxnOffsetCommit."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


@response(AddOffsetsToTxnRequest)
class AddOffsetsToTxnResponse(Response):
    """0, or why the offsets are not part of the transaction."""

    throttle_time_ms: int = int32()
    error_code: int = int16()


@request(api_key=26, versions=(0, 5), flexible=3, usual=4, kafka="2.1:1 2.7:2 2.8:3 3.8:4 4.0:5")
class EndTxnRequest(Request["EndTxnResponse"]):
    """Commits (`committed` true) or aborts the open transaction."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


@response(EndTxnRequest)
class EndTxnResponse(Response):
    """The outcome. Markers may still be written after it.

    From version 5 on it has the producer id and epoch of the next transaction.
    """

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(-1, since=5, ignorable=True)
    producer_epoch: int = int16(-1, since=5, ignorable=True)


@struct
class TxnOffsetCommitRequestPartition:
    """The next offset to read."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(-1, since=2, ignorable=True)
    committed_metadata: str | None = nullable_string()


@struct
class TxnOffsetCommitRequestTopic:
    """Partitions of one topic, which `name` names until version 5, `topic_id` from 6 on."""

    name: str = string(until=5, ignorable=True)
    topic_id: uuid_module.UUID = uuid(since=6, ignorable=True)
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


@request(api_key=28, versions=(0, 6), flexible=3, usual=3, kafka="2.1:2 2.5:3 3.8:4 4.0:5 4.4:6")
class TxnOffsetCommitRequest(Request["TxnOffsetCommitResponse"]):
    """Commits offsets of a group with the transaction; goes to the group's coordinator."""

    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id_or_member_epoch: int = int32(-1, since=3)
    member_id: str = string(since=3)
    group_instance_id: str | None = nullable_string(None, since=3)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


@struct
class TxnOffsetCommitResponsePartition:
    """The outcome of one partition."""

    partition_index: int = int32()
    error_code: int = int16()


@struct
class TxnOffsetCommitResponseTopic:
    """Partitions of one topic, named as in the request."""

    name: str = string(until=5, ignorable=True)
    topic_id: uuid_module.UUID = uuid(since=6, ignorable=True)
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)


@response(TxnOffsetCommitRequest)
class TxnOffsetCommitResponse(Response):
    """The outcome of each partition."""

    throttle_time_ms: int = int32()
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)


@request(api_key=65, versions=(0, 0), flexible=0, kafka="3.0:0")
class DescribeTransactionsRequest(Request["DescribeTransactionsResponse"]):
    """Requests from a coordinator the state of transactional ids (KIP-664, Kafka 3.0)."""

    transactional_ids: list[str] = array(STRING)


@struct
class TopicData:
    """Partitions of one topic."""

    topic: str = string()
    partitions: list[int] = array(INT32)


@struct
class DescribedTransactionState:
    """One transactional id: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, …

    `topics` are the partitions of the open transaction; while it ends, those without a marker.
    """

    error_code: int = int16()
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = int32()
    transaction_start_time_ms: int = int64()
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: list[TopicData] = array(TopicData)


@response(DescribeTransactionsRequest)
class DescribeTransactionsResponse(Response):
    """The state of each id."""

    throttle_time_ms: int = int32()
    transaction_states: list[DescribedTransactionState] = array(DescribedTransactionState)


@request(api_key=66, versions=(0, 2), flexible=0, kafka="3.0:0 3.8:1 4.1:2")
class ListTransactionsRequest(Request["ListTransactionsResponse"]):
    """Requests from a coordinator its transactional ids that match filters (KIP-664, Kafka 3.0).

    An empty filter matches all. `transactional_id_pattern` is a regular expression for the whole id
    (KIP-1152).
    """

    state_filters: list[str] = array(STRING)
    producer_id_filters: list[int] = array(INT64)
    duration_filter: int = int64(-1, since=1)
    transactional_id_pattern: str | None = nullable_string(None, since=2)


@struct
class ListedTransactionState:
    """One transactional id."""

    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


@response(ListTransactionsRequest)
class ListTransactionsResponse(Response):
    """The transactional ids of this coordinator that the user may see."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: list[str] = array(STRING)
    transaction_states: list[ListedTransactionState] = array(ListedTransactionState)


@struct
class ProducersTopic:
    """Partitions of one topic."""

    name: str = string()
    partition_indexes: list[int] = array(INT32)


@request(api_key=61, versions=(0, 0), flexible=0, kafka="2.8:0")
class DescribeProducersRequest(Request["DescribeProducersResponse"]):
    """Requests from leaders the producers of partitions (KIP-664, Kafka 2.8)."""

    topics: list[ProducersTopic] = array(ProducersTopic)


@struct
class DescribedProducer:
    """A producer id in a partition; `current_txn_start_offset` is -1 without open transaction."""

    producer_id: int = int64()
    producer_epoch: int = int32()
    last_sequence: int = int32(-1)
    last_timestamp: int = int64(-1)
    coordinator_epoch: int = int32()
    current_txn_start_offset: int = int64(-1)


@struct
class ProducersPartitionResponse:
    """The producers of one partition."""

    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    active_producers: list[DescribedProducer] = array(DescribedProducer)


@struct
class ProducersTopicResponse:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[ProducersPartitionResponse] = array(ProducersPartitionResponse)


@response(DescribeProducersRequest)
class DescribeProducersResponse(Response):
    """The producers of each partition."""

    throttle_time_ms: int = int32()
    topics: list[ProducersTopicResponse] = array(ProducersTopicResponse)


@struct
class WritableTxnMarkerTopic:
    """Partitions of one topic."""

    name: str = string()
    partition_indexes: list[int] = array(INT32)


@struct
class WritableTxnMarker:
    """The end of a producer's transaction: committed if `transaction_result`, else aborted.
    Coordinators send `transaction_version` 2 if the marker's epoch must be newer than the log's."""

    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_result: bool = boolean()
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic)
    coordinator_epoch: int = int32()
    transaction_version: int = int8(since=2, ignorable=True)


@request(api_key=27, versions=(1, 2), flexible=1, kafka="2.1:0 2.8:1 4.2:2")
class WriteTxnMarkersRequest(Request["WriteTxnMarkersResponse"]):
    """Has leaders write markers: for coordinators, and to abort a hanging transaction."""

    markers: list[WritableTxnMarker] = array(WritableTxnMarker)


@struct
class WritableTxnMarkerPartitionResult:
    """The outcome of one partition."""

    partition_index: int = int32()
    error_code: int = int16()


@struct
class WritableTxnMarkerTopicResult:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult)


@struct
class WritableTxnMarkerResult:
    """The outcome of one producer's markers."""

    producer_id: int = int64()
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult)


@response(WriteTxnMarkersRequest)
class WriteTxnMarkersResponse(Response):
    """The outcome of each marker."""

    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult)
