"""How the fake broker serves share groups (KIP-932).

A group begins with the first record of a partition (as with share.auto.offset.reset=earliest).
Records stay acquired until they are acknowledged or the session ends: there is no lock timeout.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.messages import (
    AcknowledgementBatch,
    AcknowledgePartitionData,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    SharePartitionData,
)
from sparkkafka.testing.fake.call import Call
from sparkkafka.testing.fake.groups.apis import group_error
from sparkkafka.testing.fake.groups.share_state import Partition, ShareGroup, SharePartition
from sparkkafka.testing.fake.log.producers import Refused

OPEN_EPOCH = 0
CLOSE_EPOCH = -1
LOCK_MS = 30_000


def share_group_heartbeat(call: Call) -> ShareGroupHeartbeatResponse:
    """Answer ShareGroupHeartbeat (KIP-932)."""
    message: ShareGroupHeartbeatRequest = call.message
    injected = call.error_of()
    code = injected.code if injected is not None else group_error(call, message.group_id)
    if code:
        text = injected.message if injected is not None else None
        return ShareGroupHeartbeatResponse(error_code=code, error_message=text)
    group = call.state.group(message.group_id).share
    epoch, topics = group.members.get(message.member_id, (0, frozenset()))
    if message.member_epoch < 0:
        group.members.pop(message.member_id, None)
        return ShareGroupHeartbeatResponse(member_id=message.member_id, member_epoch=-1)
    if message.member_epoch and message.member_id not in group.members:
        return ShareGroupHeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    if not message.member_epoch:
        epoch = max([row[0] for row in group.members.values()], default=0) + 1
        group.reported.pop(message.member_id, None)
    if message.subscribed_topic_names is not None:
        topics = frozenset(message.subscribed_topic_names)
    group.members[message.member_id] = epoch, topics
    found = HeartbeatAssignment(
        topic_partitions=[
            HeartbeatTopicPartitions(
                topic_id=topic.topic_id, partitions=list(range(len(topic.partitions)))
            )
            for name, topic in call.state.topics.items()
            if name in topics
        ]
    )
    is_new = group.reported.get(message.member_id) != found
    group.reported[message.member_id] = found
    return ShareGroupHeartbeatResponse(
        member_id=message.member_id,
        member_epoch=epoch,
        heartbeat_interval_ms=200,
        assignment=found if is_new else None,
    )


def share_fetch(call: Call) -> ShareFetchResponse:
    """Answer ShareFetch with records that the member now has acquired."""
    message: ShareFetchRequest = call.message
    code = _session_error(call)
    if code:
        return ShareFetchResponse(error_code=code)
    group = call.state.group(message.group_id or "").share
    member_id = message.member_id or ""
    epoch, known = group.sessions.get((member_id, call.broker_id), (OPEN_EPOCH, set()))
    known |= {(row.topic_id, part.partition_index) for row in message.topics
              for part in row.partitions}  # fmt: skip
    known -= {(row.topic_id, part) for row in message.forgotten_topics_data
              for part in row.partitions}  # fmt: skip
    group.sessions[member_id, call.broker_id] = epoch + 1, known
    acknowledged = _acknowledge(
        call, {(row.topic_id, part.partition_index): part.acknowledgement_batches
               for row in message.topics for part in row.partitions}
    )  # fmt: skip
    until_s = time.monotonic() + message.max_wait_ms / 1000
    while True:
        rows = [_acquire(call, group, key, acknowledged.get(key, 0)) for key in sorted(known)]
        some = [row for row in rows if row[1].acquired_records or row[1].error_code]
        remaining_s = until_s - time.monotonic()
        if some or any(acknowledged.values()) or remaining_s <= 0 or call.stopped.is_set():
            break
        call.changed.wait(remaining_s)
    reported = [row for row in rows if row in some or row[0] in acknowledged]
    return ShareFetchResponse(
        acquisition_lock_timeout_ms=LOCK_MS,
        responses=[
            ShareFetchableTopicResponse(
                topic_id=topic_id, partitions=[row for key, row in reported if key[0] == topic_id]
            )
            for topic_id in dict.fromkeys(key[0] for key, _ in reported)
        ],
    )


def _acquire(
    call: Call, group: ShareGroup, key: Partition, acknowledge_code: int
) -> tuple[Partition, SharePartitionData]:
    """Acquire records of a partition for the member, and return the key and the partition's
    data."""
    row = SharePartitionData(
        partition_index=key[1], acknowledge_error_code=acknowledge_code, records=b""
    )
    topic = call.state.topic_by_id(key[0])
    try:
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, "")
        call.check_fault(topic.name, key[1])
        found = call.state.led_by(call.broker_id, topic.name, key[1])
    except Refused as error:
        row.error_code, row.error_message = error.code, error.message or None
        return key, row
    log = found.log
    shared = group.partitions.setdefault(key, SharePartition(log.start_offset))
    if shared.leader_epoch != log.leader_epoch:
        shared.held, shared.leader_epoch = {}, log.leader_epoch
    shared.start = max(shared.start, log.start_offset)
    row.acquired_records = shared.acquire(
        call.message.member_id or "", log.end_offset, call.message.max_records
    )
    if row.acquired_records:
        first = row.acquired_records[0].first_offset
        row.records = log.read(first, 1 << 20, first_whole=True, read_committed=False).data
    return key, row


def share_acknowledge(call: Call) -> ShareAcknowledgeResponse:
    """Answer ShareAcknowledge."""
    message: ShareAcknowledgeRequest = call.message
    code = _session_error(call)
    if code:
        return ShareAcknowledgeResponse(error_code=code)
    group = call.state.group(message.group_id or "").share
    key = message.member_id or "", call.broker_id
    batches = {(row.topic_id, part.partition_index): part.acknowledgement_batches
               for row in message.topics for part in row.partitions}  # fmt: skip
    codes = _acknowledge(call, batches)
    if message.share_session_epoch == CLOSE_EPOCH:
        _end_session(call, group)
    else:
        epoch, partitions = group.sessions[key]
        group.sessions[key] = epoch + 1, partitions
    call.changed.notify_all()
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=LOCK_MS,
        responses=[
            ShareAcknowledgeTopicResponse(
                topic_id=topic_id,
                partitions=[
                    AcknowledgePartitionData(partition_index=number, error_code=found)
                    for (other, number), found in codes.items()
                    if other == topic_id
                ],
            )
            for topic_id in dict.fromkeys(key[0] for key in codes)
        ],
    )


def _session_error(call: Call) -> int:
    """Open a session if the request begins one. Return the error if the request does not fit its
    session, else 0."""
    message = call.message
    if call.top_level is not None:
        return call.top_level.code
    group = call.state.group(message.group_id or "").share
    key = message.member_id or "", call.broker_id
    if message.share_session_epoch == OPEN_EPOCH:
        if any(part.acknowledgement_batches for row in message.topics for part in row.partitions):
            return ErrorCode.INVALID_REQUEST
        _end_session(call, group)
        return 0
    if key not in group.sessions:
        return ErrorCode.SHARE_SESSION_NOT_FOUND
    if message.share_session_epoch not in (group.sessions[key][0], CLOSE_EPOCH):
        return ErrorCode.INVALID_SHARE_SESSION_EPOCH
    return 0


def _end_session(call: Call, group: ShareGroup) -> None:
    """End the member's session with this broker, which releases the records that the member has
    acquired of the partitions that this broker leads: it knows no others."""
    member_id = call.message.member_id or ""
    _, partitions = group.sessions.pop((member_id, call.broker_id), (0, set()))
    for topic_id, number in partitions & group.partitions.keys():
        topic = call.state.topic_by_id(topic_id)
        if topic is not None and topic.partitions[number].leader == call.broker_id:
            group.partitions[topic_id, number].release(member_id)


def _acknowledge(
    call: Call, batches: Mapping[Partition, list[AcknowledgementBatch]]
) -> dict[Partition, int]:
    """Process acknowledgements, and return the error code (0: none) of each partition with some."""
    group = call.state.group(call.message.group_id or "").share
    found = {}
    for key, rows in batches.items():
        if not rows:
            continue
        topic = call.state.topic_by_id(key[0])
        try:
            if topic is None:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, "")
            epoch = call.state.led_by(call.broker_id, topic.name, key[1]).log.leader_epoch
            shared = group.partitions.get(key)
            code = (
                ErrorCode.INVALID_RECORD_STATE
                if shared is None or shared.leader_epoch != epoch
                else shared.acknowledge(
                    call.message.member_id or "", rows, may_renew=call.message.is_renew_ack
                )
            )
        except Refused as error:
            code = error.code
        found[key] = code
    return found
