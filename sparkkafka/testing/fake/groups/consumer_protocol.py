"""Groups whose partitions the fake broker assigns (KIP-848): ConsumerGroupHeartbeat.

Partitions go in turn to the members in order of their ids. A member first lets go of what it is not
to have any more, and says so; only then does its epoch rise, and only then can others have it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)
from sparkkafka.testing.fake.log.producers import Refused

ASSIGNORS = ("uniform", "range")
LEAVE_EPOCH = -1
LEAVE_FOR_A_MOMENT_EPOCH = -2

Partition = tuple[uuid.UUID, int]


@dataclass(slots=True)
class AssignedMember:
    member_id: str
    instance_id: str | None
    topics: frozenset[str] = frozenset()
    epoch: int = 0
    previous_epoch: int = 0
    assigned: frozenset[Partition] = frozenset()
    """What the member may own, or has not reported yet as revoked."""
    reported: frozenset[Partition] | None = None
    away: bool = False


@dataclass(slots=True)
class ConsumerProtocolGroup:
    """`interval_ms` is the heartbeat interval that members get."""

    members: dict[str, AssignedMember] = field(default_factory=dict)
    epoch: int = 0
    target: dict[str, frozenset[Partition]] = field(default_factory=dict)
    interval_ms: int = 50
    _seen: object = None

    def remove(self, member_id: str) -> None:
        del self.members[member_id]
        # The next epoch also begins if the same member is back before any other request.
        self._seen = None

    def retarget(self, topics: dict[str, tuple[uuid.UUID, int]]) -> None:
        """New targets in a new epoch, if members, subscriptions or partitions have changed."""
        rows = sorted(self.members.values(), key=lambda row: row.instance_id or row.member_id)
        seen = [(row.instance_id or row.member_id, row.topics) for row in rows], topics
        if seen == self._seen:
            return
        self._seen = seen
        self.epoch += 1
        members = [row.member_id for row in rows]
        shares: dict[str, set[Partition]] = {name: set() for name in members}
        for topic, (topic_id, count) in sorted(topics.items()):
            takers = [name for name in members if topic in self.members[name].topics]
            for number in range(count if takers else 0):
                shares[takers[number % len(takers)]].add((topic_id, number))
        self.target = {name: frozenset(share) for name, share in shares.items()}

    def step(self, member: AssignedMember, owned: frozenset[Partition] | None) -> None:
        """Move a member on towards its target, as far as what it and others own lets it."""
        target = self.target[member.member_id]
        kept = member.assigned & target
        if owned is not None and owned <= kept:
            member.assigned = kept
        if member.assigned - target and member.epoch:
            return  # it has to revoke partitions first
        others = frozenset[Partition]().union(
            *(row.assigned for row in self.members.values() if row is not member)
        )
        member.assigned = target - others
        if member.epoch != self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch

    def may_have(self, member: AssignedMember) -> frozenset[Partition]:
        return member.assigned & self.target[member.member_id]


def beat(
    group: ConsumerProtocolGroup,
    message: ConsumerGroupHeartbeatRequest,
    topics: dict[str, tuple[uuid.UUID, int]],
) -> ConsumerGroupHeartbeatResponse:
    """One heartbeat; `topics`: all of them, with id and number of partitions. Raises Refused."""
    if message.server_assignor not in (None, *ASSIGNORS):
        raise Refused(
            ErrorCode.UNSUPPORTED_ASSIGNOR, f"supported assignors: {', '.join(ASSIGNORS)}"
        )
    member = group.members.get(message.member_id)
    if message.member_epoch < 0:
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "no such member")
        if message.member_epoch == LEAVE_FOR_A_MOMENT_EPOCH:
            member.away = True
        else:
            group.remove(message.member_id)
        return ConsumerGroupHeartbeatResponse(
            member_id=message.member_id, member_epoch=message.member_epoch
        )
    if message.member_epoch == 0:
        member = _join(group, message)
    elif member is None:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "no such member")
    elif message.member_epoch not in (member.epoch, member.previous_epoch):
        raise Refused(ErrorCode.FENCED_MEMBER_EPOCH, f"the epoch is {member.epoch}")
    if message.subscribed_topic_names is not None:
        member.topics = frozenset(message.subscribed_topic_names)
    owned = (
        None
        if message.topic_partitions is None
        else frozenset(
            (row.topic_id, number) for row in message.topic_partitions for number in row.partitions
        )
    )
    group.retarget(topics)
    group.step(member, owned)
    assigned = group.may_have(member)
    # Who says all that there is to say has perhaps not seen an answer.
    full = owned is not None and message.subscribed_topic_names is not None
    is_new = full or assigned != member.reported
    member.reported = assigned
    return ConsumerGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=group.interval_ms,
        assignment=_assignment(assigned) if is_new else None,
    )


def _join(group: ConsumerProtocolGroup, message: ConsumerGroupHeartbeatRequest) -> AssignedMember:
    if message.topic_partitions or message.subscribed_topic_names is None:
        raise Refused(ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty when joining")
    joiner = AssignedMember(message.member_id, message.instance_id)
    if message.instance_id is not None:
        for other in list(group.members.values()):
            if other.instance_id != message.instance_id or other.member_id == message.member_id:
                continue
            if not other.away:
                raise Refused(ErrorCode.UNRELEASED_INSTANCE_ID, "it has a member")
            joiner.assigned, joiner.epoch = other.assigned, other.epoch
            group.remove(other.member_id)
            group.target[joiner.member_id] = group.target[other.member_id]
    group.members[message.member_id] = joiner
    return joiner


def _assignment(partitions: frozenset[Partition]) -> HeartbeatAssignment:
    numbers: dict[uuid.UUID, list[int]] = {}
    for topic_id, number in sorted(partitions):
        numbers.setdefault(topic_id, []).append(number)
    return HeartbeatAssignment(
        topic_partitions=[
            HeartbeatTopicPartitions(topic_id=topic_id, partitions=rows)
            for topic_id, rows in numbers.items()
        ]
    )
