"""How the fake broker answers TxnOffsetCommit: the offsets of a group as part of a transaction."""

from __future__ import annotations

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.messages import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from sparkkafka.testing.fake.call import Call
from sparkkafka.testing.fake.groups.groups import (
    METADATA_MAX_BYTES,
    NO_GENERATION,
    group_error,
    is_too_large,
)
from sparkkafka.testing.fake.groups.state import OFFSETS_TOPIC, CommittedOffset, offsets_partition
from sparkkafka.testing.fake.log.producers import Refused

# Transactions V2: the request itself makes the group part of the transaction.
VERSION_V2 = 5

# What a transaction coordinator says to the coordinator of the group that asks it.
_UNVERIFIED: dict[int, ErrorCode] = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    # KIP-890: only newer versions of the request (from 4 on) know it.
    ErrorCode.TRANSACTION_ABORTABLE: ErrorCode.INVALID_TXN_STATE,
}


def txn_offset_commit(call: Call) -> TxnOffsetCommitResponse:
    message: TxnOffsetCommitRequest = call.message
    codes: dict[tuple[str, int], int] = {}
    offsets: dict[tuple[str, int], CommittedOffset] = {}
    state = call.state
    for topic in message.topics:
        for row in topic.partitions:
            key = (topic.name, row.partition_index)
            codes[key] = 0
            if not state.has_partition(*key):
                codes[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif len(row.committed_metadata or "") > METADATA_MAX_BYTES:
                codes[key] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            answer = call.injected(*key)
            if not codes[key] and (answer is None or answer.applied):
                offsets[key] = CommittedOffset(
                    row.committed_offset,
                    row.committed_leader_epoch,
                    row.committed_metadata or "",
                    state.groups.next_serial(),
                )
    try:
        _check(call, message)
        state.groups.add_pending(
            message.group_id, message.producer_id, message.producer_epoch, offsets
        )
    except Refused as error:
        # A topic that does not exist is found before the group's coordinator is asked.
        for key, code in codes.items():
            if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                codes[key] = error.code
    for key in codes:
        answer = call.injected(*key)
        if answer is not None:
            codes[key] = answer.code
    call.changed.notify_all()
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=row.partition_index,
                        error_code=codes[topic.name, row.partition_index],
                    )
                    for row in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


def _check(call: Call, message: TxnOffsetCommitRequest) -> None:
    """Raises Refused for what is wrong with all partitions."""
    code = group_error(call, message.group_id)
    if code:
        raise Refused(code, f"group {message.group_id!r}")
    _verify(call, message)
    if is_too_large(message):
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "so say brokers from 4.0 on")
    # Unlike OffsetCommit, this one may come from outside of a group that has members.
    if message.generation_id == NO_GENERATION and not message.member_id:
        return
    group = call.state.groups.group(message.group_id)
    if group.membership.members or group.consumer_protocol.members:
        try:
            group.check_commit(message.member_id, message.group_instance_id, message.generation_id)
        except Refused as error:
            if error.code == ErrorCode.STALE_MEMBER_EPOCH:
                raise Refused(ErrorCode.ILLEGAL_GENERATION, error.message) from error
            raise
        return
    if message.generation_id == NO_GENERATION and not group.has_members:
        return
    raise Refused(
        ErrorCode.UNKNOWN_MEMBER_ID if group.exists else ErrorCode.ILLEGAL_GENERATION,
        f"there is no member {message.member_id!r}",
    )


def _verify(call: Call, message: TxnOffsetCommitRequest) -> None:
    """Transaction verification (KIP-890, 3.6), as for Produce: is the group part of it?"""
    state = call.state
    number = offsets_partition(message.group_id)
    if not state.transactions.verifies or state.groups.has_open(
        number, message.producer_id, message.producer_epoch
    ):
        return
    try:
        if not message.transactional_id:
            raise Refused(ErrorCode.INVALID_REQUEST, "an empty transactional id")
        if state.coordinator(message.transactional_id) is None:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no coordinator is up")
        owner = (message.transactional_id, message.producer_id, message.producer_epoch)
        if call.version >= VERSION_V2:
            state.transactions.write_waiting_markers()
            state.transactions.add_partitions(*owner, [(OFFSETS_TOPIC, number)])
        else:
            state.transactions.verify(*owner, (OFFSETS_TOPIC, number))
    except Refused as error:
        raise Refused(_UNVERIFIED.get(error.code, error.code), error.message) from error
