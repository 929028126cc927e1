"""How the fake broker answers for groups: FindCoordinator, OffsetCommit, OffsetFetch, and the
heartbeats and rebalances of members of both protocols. `GroupControls` is what tests may do to
them.

A group with members accepts commits only from them, like a real one.
`FakeCluster.set_group_members` makes a group refuse commits from outside without members.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.constants import NO_OFFSET
from sparkkafka.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    Coordinator,
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupResponse,
    MemberResponse,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
    SyncGroupRequest,
    SyncGroupResponse,
    TxnOffsetCommitRequest,
)
from sparkkafka.testing.fake.call import Call, CloseConnection
from sparkkafka.testing.fake.groups.consumer_protocol import (
    heartbeat as consumer_protocol_heartbeat,
)
from sparkkafka.testing.fake.groups.members import FakeMember, GroupState, Membership
from sparkkafka.testing.fake.groups.state import CommittedOffset
from sparkkafka.testing.fake.log.producers import Refused
from sparkkafka.testing.fake.state import ClusterState

COORDINATOR_TYPES = (0, 1)  # group, transaction
COORDINATOR_VERSION_WITH_LIST = 4
OFFSET_FETCH_VERSION_WITH_ERROR = 2
OFFSET_FETCH_VERSION_WITH_GROUPS = 8


def find_coordinator(call: Call) -> FindCoordinatorResponse:
    """Answer FindCoordinator, in the form with one key or with several."""
    message = call.message
    batched = call.version >= COORDINATOR_VERSION_WITH_LIST
    injected = call.error_of()
    code = injected.code if injected is not None else 0
    if message.key_type not in COORDINATOR_TYPES and not code:
        code = ErrorCode.INVALID_REQUEST
    rows = []
    for key in message.coordinator_keys if batched else [message.key]:
        node_id = call.state.coordinator(key)
        if node_id is None:  # this broker went down meanwhile
            code = code or ErrorCode.COORDINATOR_NOT_AVAILABLE
        row = None if node_id is None else call.state.addresses[node_id]
        rows.append(
            Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=None)
            if code or row is None
            else Coordinator(
                key=key, node_id=row.node_id, host=row.host, port=row.port, error_message=None
            )
        )
    if batched:
        return FindCoordinatorResponse(coordinators=rows)
    return FindCoordinatorResponse(
        error_code=rows[0].error_code,
        error_message=None,
        node_id=rows[0].node_id,
        host=rows[0].host,
        port=rows[0].port,
    )


def group_error(call: Call, group_id: str) -> int:
    """Return the error of any request to this broker about this group, 0 if there is none."""
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID
    if call.state.coordinator(group_id) != call.broker_id:
        return ErrorCode.NOT_COORDINATOR
    return 0


def is_too_large(message: OffsetCommitRequest | TxnOffsetCommitRequest) -> bool:
    """Return whether the offsets make a larger batch than message.max.bytes: a coordinator writes
    those of one request as one batch, with about 60 bytes a record beside names and metadata."""
    size_bytes = sum(
        60 + len(message.group_id) + len(topic.name) + len(row.committed_metadata or "")
        for topic in message.topics
        for row in topic.partitions
    )
    return size_bytes > 1_048_588


def offset_commit(call: Call) -> OffsetCommitResponse:
    """Answer OffsetCommit, of a group's member or of a client that is none."""
    message: OffsetCommitRequest = call.message
    code = group_error(call, message.group_id)
    group = call.state.group(message.group_id)
    if not code:
        try:
            group.check_commit(
                message.member_id, message.group_instance_id, message.generation_id_or_member_epoch
            )
        except Refused as error:
            code = error.code
    if not code and is_too_large(message):
        code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    topics = [
        OffsetCommitResponseTopic(
            name=topic.name,
            partitions=[
                OffsetCommitResponsePartition(
                    partition_index=row.partition_index,
                    error_code=_commit_offset(call, topic.name, row, code),
                )
                for row in topic.partitions
            ],
        )
        for topic in message.topics
    ]
    call.changed.notify_all()
    return OffsetCommitResponse(topics=topics)


def _commit_offset(call: Call, topic: str, row: OffsetCommitRequestPartition, code: int) -> int:
    """Commit one partition's offset, unless there is an error; return the code."""
    injected = call.error_of(topic, row.partition_index)
    if not code:
        try:
            call.state.partition(topic, row.partition_index)
        except KeyError:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not code and len(row.committed_metadata or "") > call.state.groups.max_metadata_bytes:
        code = ErrorCode.OFFSET_METADATA_TOO_LARGE
    if not code and (injected is None or injected.applied):
        offsets = call.state.group(call.message.group_id).offsets
        offsets[topic, row.partition_index] = CommittedOffset(
            row.committed_offset,
            row.committed_leader_epoch,
            row.committed_metadata or "",
            call.state.groups.next_serial(),
        )
    return injected.code if injected is not None else code


def offset_fetch(call: Call) -> OffsetFetchResponse:
    """Answer OffsetFetch, in the form with one group or with several."""
    message: OffsetFetchRequest = call.message
    if call.version >= OFFSET_FETCH_VERSION_WITH_GROUPS:
        groups = []
        for requested in message.groups:
            code = _fetch_error(call, requested.group_id)
            topics = [] if code else _fetch_offsets(call, requested.group_id, requested.topics)
            groups.append(
                OffsetFetchResponseGroup(
                    group_id=requested.group_id,
                    error_code=code,
                    topics=[
                        OffsetFetchResponseTopics(
                            name=name,
                            partitions=[OffsetFetchResponsePartitions(**row) for row in rows],
                        )
                        for name, rows in topics
                    ],
                )
            )
        return OffsetFetchResponse(groups=groups)
    code = _fetch_error(call, message.group_id)
    old = call.version < OFFSET_FETCH_VERSION_WITH_ERROR  # an error stands at each partition
    topics = _fetch_offsets(call, message.group_id, message.topics, code) if old or not code else []
    return OffsetFetchResponse(
        error_code=0 if old else code,
        topics=[
            OffsetFetchResponseTopic(
                name=name, partitions=[OffsetFetchResponsePartition(**row) for row in rows]
            )
            for name, rows in topics
        ],
    )


def _fetch_error(call: Call, group_id: str) -> int:
    """Return the error of a whole group, 0 if there is none. A fault rule with a topic is an error
    of that topic's partitions only."""
    injected = call.top_level
    if injected is None and call.fault is not None and call.fault.partition is None:
        injected = call.error_of()
    return injected.code if injected is not None else group_error(call, group_id)


def _fetch_offsets(
    call: Call, group_id: str, topics: Any, code: int = 0
) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return (topic, fields of its partitions) for these topics, None for all that have offsets.
    `code` is an error for all partitions."""
    group = call.state.group(group_id)
    offsets = group.offsets
    if topics is None:
        # As on a broker, these lack partitions whose first offset is still pending.
        requested: dict[str, list[int]] = {}
        for name, number in offsets:
            requested.setdefault(name, []).append(number)
    else:
        requested = {row.name: row.partition_indexes for row in topics}
    found = []
    for name, numbers in requested.items():
        rows: list[dict[str, Any]] = []
        for number in numbers:
            injected = call.error_of(name, number)
            error = injected.code if injected is not None else code
            if not error and call.message.require_stable and group.is_pending((name, number)):
                error = ErrorCode.UNSTABLE_OFFSET_COMMIT
            committed = None if error else offsets.get((name, number))
            committed = committed or CommittedOffset(NO_OFFSET, -1, "")
            rows.append(
                {
                    "partition_index": number,
                    "committed_offset": committed.offset,
                    "committed_leader_epoch": committed.leader_epoch,
                    "metadata": committed.metadata,
                    "error_code": error,
                }
            )
        found.append((name, rows))
    return found


ID_FIRST_VERSION = 4  # KIP-394
SKIP_ASSIGNMENT_VERSION = 9  # KIP-814
MEMBERS_VERSION = 3


def _request_error(call: Call, group_id: str) -> int:
    """Return the error of a member's request, 0 if there is none."""
    injected = call.error_of()
    return group_error(call, group_id) if injected is None else injected.code


def _wait(call: Call, over: Callable[[], bool], membership: Membership) -> None:
    """Wait until `over` is true, and meanwhile expire sessions every 50 ms. Raises CloseConnection
    if this side closes the connection."""
    call.changed.notify_all()
    while not over():
        call.changed.wait(0.05)
        if call.stopped.is_set():
            raise CloseConnection
        membership.expire()
    call.changed.notify_all()


def join_group(call: Call) -> JoinGroupResponse:
    """Answer JoinGroup once all members of the group have joined."""
    message: JoinGroupRequest = call.message
    code = _request_error(call, message.group_id)
    if not code and not call.state.groups.takes(message.group_id):
        code = ErrorCode.GROUP_MAX_SIZE_REACHED
    if code:
        return JoinGroupResponse(error_code=code, member_id=message.member_id)
    group = call.state.group(message.group_id).membership
    joiner = FakeMember(
        message.member_id,
        message.group_instance_id,
        message.session_timeout_ms,
        message.rebalance_timeout_ms,
        [(row.name, row.metadata) for row in message.protocols],
    )
    try:
        member = group.join(
            joiner, message.protocol_type, id_first=call.version >= ID_FIRST_VERSION
        )
    except Refused as error:
        member_id = message.member_id
        if error.code == ErrorCode.MEMBER_ID_REQUIRED:
            member_id = error.message
        return JoinGroupResponse(error_code=error.code, member_id=member_id)
    returned = not member.is_joining and member is joiner and group.state is GroupState.STABLE
    joining = member.joining
    _wait(call, lambda: not member.is_joining or member.joining != joining, group)
    if group.members.get(member.member_id) is not member:
        return JoinGroupResponse(
            error_code=ErrorCode.UNKNOWN_MEMBER_ID, member_id=message.member_id
        )
    if member.joining != joining:  # it has joined again meanwhile
        return JoinGroupResponse(
            error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=message.member_id
        )
    is_leader = group.leader == member.member_id
    skips = returned and is_leader and call.version >= SKIP_ASSIGNMENT_VERSION
    return JoinGroupResponse(
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader="the one before" if returned and is_leader and not skips else group.leader or "",
        skip_assignment=skips,
        member_id=member.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=row.member_id,
                group_instance_id=row.instance_id,
                metadata=dict(row.protocols)[group.protocol or ""],
            )
            for row in group.members.values()
        ]
        if is_leader
        else [],
    )


def sync_group(call: Call) -> SyncGroupResponse:
    """Answer SyncGroup once the leader has sent the assignment."""
    message: SyncGroupRequest = call.message
    code = _request_error(call, message.group_id)
    if code:
        return SyncGroupResponse(error_code=code)
    group = call.state.group(message.group_id).membership
    generation_id = message.generation_id

    def is_still(*states: GroupState) -> bool:
        return group.generation_id == generation_id and group.state in states

    try:
        member = group.check(message.member_id, message.group_instance_id, generation_id)
        if group.state is GroupState.COMPLETING and group.leader == message.member_id:
            group.assign({row.member_id: row.assignment for row in message.assignments})
        _wait(call, lambda: not is_still(GroupState.COMPLETING), group)
        if not is_still(GroupState.STABLE):
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS, "the next one has begun")
    except Refused as error:
        return SyncGroupResponse(error_code=error.code)
    return SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        assignment=member.assignment,
    )


def heartbeat(call: Call) -> HeartbeatResponse:
    """Answer Heartbeat."""
    message = call.message
    code = _request_error(call, message.group_id)
    if not code:
        group = call.state.group(message.group_id).membership
        try:
            group.check(message.member_id, message.group_instance_id, message.generation_id)
        except Refused as error:
            code = error.code
        else:
            if group.state is GroupState.PREPARING:
                code = ErrorCode.REBALANCE_IN_PROGRESS
    return HeartbeatResponse(error_code=code)


def leave_group(call: Call) -> LeaveGroupResponse:
    """Answer LeaveGroup, in the form with one member or with several."""
    message = call.message
    code = _request_error(call, message.group_id)
    if code:
        return LeaveGroupResponse(error_code=code)
    group = call.state.group(message.group_id).membership
    old = call.version < MEMBERS_VERSION
    rows = []
    for member_id in [message.member_id] if old else [row.member_id for row in message.members]:
        code = 0
        try:
            group.check(member_id)
            group.remove(member_id)
        except Refused as error:
            code = error.code
        rows.append(MemberResponse(member_id=member_id, group_instance_id=None, error_code=code))
    call.changed.notify_all()
    return (
        LeaveGroupResponse(error_code=rows[0].error_code)
        if old
        else LeaveGroupResponse(members=rows)
    )


def consumer_group_heartbeat(call: Call) -> ConsumerGroupHeartbeatResponse:
    """Answer ConsumerGroupHeartbeat (KIP-848)."""
    message: ConsumerGroupHeartbeatRequest = call.message
    injected = call.error_of()
    code = injected.code if injected is not None else group_error(call, message.group_id)
    if code:
        text = injected.message if injected is not None else None
        return ConsumerGroupHeartbeatResponse(error_code=code, error_message=text)
    group = call.state.group(message.group_id).consumer_protocol
    try:
        topics = call.state.topics.values()
        return consumer_protocol_heartbeat(
            group, message, {row.name: (row.topic_id, len(row.partitions)) for row in topics}
        )
    except Refused as error:
        return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
    finally:
        call.changed.notify_all()


class GroupControls:
    """Methods of FakeCluster for the members of groups."""

    state: ClusterState
    _changed: threading.Condition

    def group_members(self, group_id: str) -> list[str]:
        """Return the ids of a classic group's members, also of those that are joining."""
        with self._changed:
            return list(self.state.group(group_id).membership.members)

    def group_state(self, group_id: str) -> str:
        """Return a classic group's state as in DescribeGroups: Empty, PreparingRebalance, …"""
        with self._changed:
            return self.state.group(group_id).membership.state.value

    def group_generation(self, group_id: str) -> int:
        with self._changed:
            return self.state.group(group_id).membership.generation_id

    def remove_member(self, group_id: str, member_id: str) -> None:
        """Remove a member, of either protocol, as if its session had timed out."""
        with self._changed:
            group = self.state.group(group_id)
            if member_id in group.consumer_protocol.members:
                group.consumer_protocol.remove(member_id)
            else:
                group.membership.remove(member_id)
            self._changed.notify_all()
