"""How the fake broker answers Produce, Fetch and ListOffsets."""

from __future__ import annotations

import time
from typing import NamedTuple

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.constants import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from sparkkafka.protocol.messages import (
    AbortedTransaction,
    BatchIndexAndErrorMessage,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    NodeEndpoint,
    PartitionData,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from sparkkafka.testing.fake.call import Call, CloseConnection, reported_in
from sparkkafka.testing.fake.log.producers import Refused, transactional_header
from sparkkafka.testing.fake.log.records import without_crcs
from sparkkafka.testing.fake.state import FakePartition, Quirk
from sparkkafka.testing.fake.topic_ids import set_topic_names
from sparkkafka.testing.fake.transactions.apis import verify_write

ALL_REPLICAS = -1
NO_RESPONSE = 0
UNKNOWN_OFFSET = -1
READ_COMMITTED = 1
# fetch.max.bytes of a broker
BROKER_FETCH_MAX_BYTES = 55 << 20
# KIP-951: from this version on a refusal names the leader.
PRODUCE_VERSION_WITH_LEADER = 10
FETCH_VERSION_WITH_RACK = 11
LIST_OFFSETS_VERSION_WITH_EPOCH = 4
# Kinds of offsets that came later than times, with the version of ListOffsets that brought them.
_FIRST_VERSIONS = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


def produce(call: Call) -> ProduceResponse | None:
    """Answer Produce; None with acks=0."""
    message: ProduceRequest = call.message
    refused = _transaction_error(message)
    topics = [
        TopicProduceResponse(
            name=topic.name,
            partition_responses=[
                _produce_to_partition(call, topic.name, row, refused)
                for row in topic.partition_data
            ],
        )
        for topic in message.topic_data
    ]
    call.changed.notify_all()
    rows = [row for topic in topics for row in topic.partition_responses]
    if message.acks == NO_RESPONSE:
        if any(row.error_code for row in rows):
            # A broker has no other way to report an error
            # (KafkaApis.sendNoOpResponseExemptThrottle).
            raise CloseConnection
        return None
    leaders = {row.current_leader.leader_id for row in rows} - {-1}
    return ProduceResponse(
        responses=topics,
        node_endpoints=[
            NodeEndpoint(node_id=row.node_id, host=row.host, port=row.port, rack=row.rack)
            for node_id in sorted(leaders)
            for row in (call.state.addresses[node_id],)
        ],
    )


def _transaction_error(message: ProduceRequest) -> Refused | None:
    """Return the error of the whole request if its batches do not fit its transactional id."""
    headers = [
        header
        for topic in message.topic_data
        for row in topic.partition_data
        if (header := transactional_header(_records(row))) is not None
    ]
    if headers and message.transactional_id is None:
        return Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "no transactional id")
    if len({(row.producer_id, row.producer_epoch) for row in headers}) > 1:
        return Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "more than one producer")
    return None


def _records(row: PartitionProduceData) -> memoryview:
    return memoryview(row.records or b"")  # type: ignore[arg-type]  # decoded: no list


def _produce_to_partition(
    call: Call, topic: str, row: PartitionProduceData, refused: Refused | None
) -> PartitionProduceResponse:
    """Append the batch of one partition, unless it is refused or a fault is injected."""
    try:
        call.check_fault(topic, row.index)
        if refused is not None:
            raise refused
        partition = _partition_to_write(call, topic, row.index)
        header = transactional_header(_records(row))
        if header is not None:
            verify_write(call, partition.log, (topic, row.index), header)
        appended = partition.log.produce(
            _records(row), call.version, check_records=call.check_records
        )
        call.check_fault(topic, row.index, applied=True)
    except Refused as error:
        response = PartitionProduceResponse(
            index=row.index,
            base_offset=UNKNOWN_OFFSET,
            error_code=error.code,
            error_message=error.message or None,
            record_errors=[
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text)
                for index, text in error.record_errors
            ],
        )
        if (
            error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            and call.version >= PRODUCE_VERSION_WITH_LEADER
        ):
            response.current_leader = _current_leader(call, topic, row.index)
        return response
    return PartitionProduceResponse(
        index=row.index,
        base_offset=appended.base_offset,
        log_append_time_ms=appended.log_append_time_ms,
        log_start_offset=partition.log.start_offset,
    )


def _partition_to_write(call: Call, topic: str, number: int) -> FakePartition:
    """Return the partition if this broker may append to it now. Raises Refused."""
    acks = call.message.acks
    if acks not in (ALL_REPLICAS, NO_RESPONSE, 1):
        raise Refused(ErrorCode.INVALID_REQUIRED_ACKS, f"acks {acks}")
    partition = call.state.led_by(call.broker_id, topic, number)
    in_sync = len(call.state.in_sync(partition))
    required = int(partition.log.config["min.insync.replicas"])
    if acks == ALL_REPLICAS and in_sync < required:
        raise Refused(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"{in_sync} replicas in sync, min.insync.replicas is {required}",
        )
    return partition


def _current_leader(call: Call, topic: str, number: int) -> LeaderIdAndEpoch:
    """Return the leader of a partition, for a response that refuses a request."""
    try:
        partition = call.state.partition(topic, number)
    except KeyError:
        return LeaderIdAndEpoch()
    return LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.log.leader_epoch)


class _FetchResult(NamedTuple):
    """A response of `size` bytes of records. `must_respond`: without waiting for min_bytes."""

    response: FetchResponse
    size: int
    must_respond: bool


def fetch(call: Call) -> FetchResponse:
    """Answer once there are min_bytes or an error, or max_wait_ms is over."""
    message: FetchRequest = call.message
    if call.top_level is not None:
        return FetchResponse(error_code=call.top_level.code)
    if message.session_id:
        # No sessions are handed out (KIP-227 lets a broker do so: its cache is full), so this one
        # is not known.
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    max_bytes = min(message.max_bytes, BROKER_FETCH_MAX_BYTES)
    min_bytes = min(message.min_bytes, max_bytes)
    until_s = time.monotonic() + message.max_wait_ms / 1000
    while True:
        set_topic_names(message, call.state)
        result = _read_partitions(call, message, max_bytes)
        remaining_s = until_s - time.monotonic()
        if (
            result.must_respond
            or result.size >= min_bytes
            or not message.topics
            or remaining_s <= 0
            or call.stopped.is_set()
        ):
            return result.response
        call.changed.wait(remaining_s)


def _read_partitions(call: Call, message: FetchRequest, max_bytes: int) -> _FetchResult:
    """Return the records of all partitions of a Fetch, about `max_bytes`."""
    size = 0
    must_respond = False
    topics: list[FetchableTopicResponse] = []
    for topic in message.topics:
        rows: list[PartitionData] = []
        for requested in topic.partitions:
            try:
                call.check_fault(topic.topic, requested.partition)
                row = _read_partition(
                    call, topic.topic, requested, message.isolation_level, max_bytes, size
                )
                size += len(row.records or b"")
                if row.diverging_epoch.epoch >= 0 or row.preferred_read_replica >= 0:
                    must_respond = True
            except Refused as error:
                must_respond = True
                row = PartitionData(
                    partition_index=requested.partition,
                    error_code=error.code,
                    high_watermark=UNKNOWN_OFFSET,
                    records=b"",
                )
            rows.append(row)
        topics.append(FetchableTopicResponse(topic=topic.topic, partitions=rows))
    return _FetchResult(FetchResponse(responses=topics), size, must_respond)


def _read_partition(
    call: Call, topic: str, requested: FetchPartition, isolation: int, max_bytes: int, size: int
) -> PartitionData:
    """Read one partition, after `size` bytes of others. Raises Refused."""
    rack_aware = call.state.rack_aware and call.version >= FETCH_VERSION_WITH_RACK
    partition = call.state.led_by(
        call.broker_id,
        topic,
        requested.partition,
        requested.current_leader_epoch,
        or_follows=rack_aware,
    )
    log = partition.log
    row = PartitionData(
        partition_index=requested.partition,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.start_offset,
        records=b"",
    )
    if rack_aware and partition.leader == call.broker_id and call.message.rack_id:
        near = call.state.replica_in_rack(partition, call.message.rack_id)
        if near is not None:
            row.preferred_read_replica = near
            return row
    if requested.last_fetched_epoch >= 0:
        epoch, end = log.epoch_end(requested.last_fetched_epoch)
        if epoch < requested.last_fetched_epoch or end < requested.fetch_offset:
            row.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end)
            return row
    found = log.read(
        requested.fetch_offset,
        max(0, min(requested.partition_max_bytes, max_bytes - size)),
        first_whole=size == 0,
        read_committed=isolation == READ_COMMITTED,
    )
    row.records = found.data
    if Quirk.NO_CRC in call.state.quirks:
        row.records = without_crcs(found.data)
    if found.aborted is not None:
        row.aborted_transactions = [
            AbortedTransaction(producer_id=producer_id, first_offset=first)
            for producer_id, first in found.aborted
        ]
    else:
        row.aborted_transactions = None
    return row


def list_offsets(call: Call) -> ListOffsetsResponse:
    """Answer ListOffsets."""
    message: ListOffsetsRequest = call.message
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    _list_partition_offset(call, topic.name, row) for row in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


def _list_partition_offset(
    call: Call, topic: str, requested: ListOffsetsPartition
) -> ListOffsetsPartitionResponse:
    """Return the offset of one partition that the request's timestamp names."""
    response = ListOffsetsPartitionResponse(partition_index=requested.partition_index)
    found = None
    with reported_in(response):
        call.check_fault(topic, requested.partition_index)
        partition = call.state.led_by(
            call.broker_id, topic, requested.partition_index, requested.current_leader_epoch
        )
        is_kind = requested.timestamp < EARLIEST
        if is_kind and call.version < _FIRST_VERSIONS.get(requested.timestamp, 99):
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {requested.timestamp}")
        found = partition.log.find_offset(
            requested.timestamp,
            read_committed=call.message.isolation_level == READ_COMMITTED,
            of_batch=Quirk.BATCH_TIMES in call.state.quirks,
        )
    if found is not None:
        response.offset = found.offset
        # Brokers give no time for the two ends of the log.
        if requested.timestamp not in (LATEST, EARLIEST, EARLIEST_LOCAL):
            response.timestamp = found.timestamp_ms
        if call.version >= LIST_OFFSETS_VERSION_WITH_EPOCH:
            response.leader_epoch = (
                partition.log.leader_epoch
                if Quirk.CURRENT_EPOCH in call.state.quirks
                else found.leader_epoch
            )
    return response
