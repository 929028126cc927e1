"""How the fake broker answers to members of groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup of
classic ones, ConsumerGroupHeartbeat; and what a test may see of and do to the members."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupResponse,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from sparkkafka.testing.fake.call import Call, CloseConnection
from sparkkafka.testing.fake.groups.consumer_protocol import beat
from sparkkafka.testing.fake.groups.groups import group_error
from sparkkafka.testing.fake.groups.members import FakeMember, GroupState, Membership
from sparkkafka.testing.fake.log.producers import Refused
from sparkkafka.testing.fake.state import ClusterState

ID_FIRST_VERSION = 4  # KIP-394
SKIP_ASSIGNMENT_VERSION = 9  # KIP-814
MEMBERS_VERSION = 3
TICK_S = 0.05  # how often who waits looks at sessions


def _refusal(call: Call, group_id: str) -> int:
    answer = call.top_level or call.injected()
    if answer is not None:
        return answer.code
    return group_error(call, group_id)


def _wait(call: Call, over: Callable[[], bool], membership: Membership) -> None:
    call.changed.notify_all()
    while not over():
        call.changed.wait(TICK_S)
        if call.stopped.is_set():
            raise CloseConnection
        membership.expire()
    call.changed.notify_all()


def join_group(call: Call) -> JoinGroupResponse:
    message: JoinGroupRequest = call.message
    code = _refusal(call, message.group_id)
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
    if member.joining != joining:  # it has asked again meanwhile
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
    message: SyncGroupRequest = call.message
    code = _refusal(call, message.group_id)
    if code:
        return SyncGroupResponse(error_code=code)
    group = call.state.group(message.group_id).membership
    generation_id = message.generation_id

    def now(*states: GroupState) -> bool:
        return group.generation_id == generation_id and group.state in states

    try:
        member = group.check(message.member_id, message.group_instance_id, generation_id)
        if group.state is GroupState.COMPLETING and group.leader == message.member_id:
            group.assign({row.member_id: row.assignment for row in message.assignments})
        _wait(call, lambda: not now(GroupState.COMPLETING), group)
        if not now(GroupState.STABLE):
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS, "the next one has begun")
    except Refused as error:
        return SyncGroupResponse(error_code=error.code)
    return SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        assignment=member.assignment,
    )


def heartbeat(call: Call) -> HeartbeatResponse:
    message = call.message
    code = _refusal(call, message.group_id)
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
    message = call.message
    code = _refusal(call, message.group_id)
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
    message: ConsumerGroupHeartbeatRequest = call.message
    answer = call.top_level or call.injected()
    code = answer.code if answer is not None else group_error(call, message.group_id)
    if code:
        text = answer.message if answer is not None else None
        return ConsumerGroupHeartbeatResponse(error_code=code, error_message=text)
    group = call.state.group(message.group_id).consumer_protocol
    try:
        topics = call.state.topics.values()
        return beat(
            group, message, {row.name: (row.topic_id, len(row.partitions)) for row in topics}
        )
    except Refused as error:
        return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
    finally:
        call.changed.notify_all()


class GroupControls:
    """The part of FakeCluster that is about members of groups."""

    _state: ClusterState
    _changed: threading.Condition

    def group_members(self, group_id: str) -> list[str]:
        """The ids of a classic group's members; those that are joining too."""
        with self._changed:
            return list(self._state.group(group_id).membership.members)

    def group_state(self, group_id: str) -> str:
        """Of a classic group, as DescribeGroups would say: Empty, PreparingRebalance, …"""
        with self._changed:
            return self._state.group(group_id).membership.state.value

    def group_generation(self, group_id: str) -> int:
        with self._changed:
            return self._state.group(group_id).membership.generation_id

    def remove_member(self, group_id: str, member_id: str) -> None:
        """As if its session had timed out, under either protocol."""
        with self._changed:
            group = self._state.group(group_id)
            if member_id in group.consumer_protocol.members:
                group.consumer_protocol.remove(member_id)
            else:
                group.membership.remove(member_id)
            self._changed.notify_all()
