"""Groups whose partitions the fake broker assigns (KIP-848): ConsumerGroupHeartbeat.

Members get partitions in turn, in the order of their ids. A member first revokes the partitions
that it must give up, and reports that; only then its epoch rises and others get these partitions.
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
LEAVE_TEMPORARILY_EPOCH = -2  # a static member that will return

Partition = tuple[uuid.UUID, int]


@dataclass(slots=True)
class AssignedMember:
    """A member. `reported` is the assignment of its last response; `away`: a static member that has
    left for now."""

    member_id: str
    instance_id: str | None
    topics: frozenset[str] = frozenset()
    epoch: int = 0
    previous_epoch: int = 0
    assigned: frozenset[Partition] = frozenset()
    """The partitions that the member may own, or has not yet reported as revoked."""
    reported: frozenset[Partition] | None = None
    away: bool = False


@dataclass(slots=True)
class ConsumerProtocolGroup:
    """A group. `target` has the partitions that each member is to have in this epoch, `interval_ms`
    is the heartbeat interval that members get."""

    members: dict[str, AssignedMember] = field(default_factory=dict)
    epoch: int = 0
    target: dict[str, frozenset[Partition]] = field(default_factory=dict)
    interval_ms: int = 50
    _seen: object = None

    def remove(self, member_id: str) -> None:
        del self.members[member_id]
        # The next epoch also begins if the same member is back before any other request.
        self._seen = None

    def update_targets(self, topics: dict[str, tuple[uuid.UUID, int]]) -> None:
        """Begin a new epoch with new targets if members, subscriptions or partitions have changed.
        `topics` has the id and the number of partitions of each."""
        rows = sorted(self.members.values(), key=lambda row: row.instance_id or row.member_id)
        seen = [(row.instance_id or row.member_id, row.topics) for row in rows], topics
        if seen == self._seen:
            return
        self._seen = seen
        self.epoch += 1
        members = [row.member_id for row in rows]
        shares: dict[str, set[Partition]] = {name: set() for name in members}
        for topic, (topic_id, count) in sorted(topics.items()):
            subscribers = [name for name in members if topic in self.members[name].topics]
            for number in range(count if subscribers else 0):
                shares[subscribers[number % len(subscribers)]].add((topic_id, number))
        self.target = {name: frozenset(share) for name, share in shares.items()}

    def reconcile(self, member: AssignedMember, owned: frozenset[Partition] | None) -> None:
        """Bring a member's partitions closer to its target: without those that it has revoked, and
        with those that no other member owns. `owned` is what it reports, None for no change."""
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

    def assignment_of(self, member: AssignedMember) -> frozenset[Partition]:
        return member.assigned & self.target[member.member_id]


def heartbeat(
    group: ConsumerProtocolGroup,
    message: ConsumerGroupHeartbeatRequest,
    topics: dict[str, tuple[uuid.UUID, int]],
) -> ConsumerGroupHeartbeatResponse:
    """Answer one heartbeat. `topics` are all topics, with id and number of partitions. Raises
    Refused."""
    if message.server_assignor not in (None, *ASSIGNORS):
        raise Refused(
            ErrorCode.UNSUPPORTED_ASSIGNOR, f"supported assignors: {', '.join(ASSIGNORS)}"
        )
    member = group.members.get(message.member_id)
    if message.member_epoch < 0:
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "no such member")
        if message.member_epoch == LEAVE_TEMPORARILY_EPOCH:
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
    group.update_targets(topics)
    group.reconcile(member, owned)
    assigned = group.assignment_of(member)
    # A member that sends all fields has perhaps lost the last response, so it gets the assignment.
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
    """Add a member. It replaces the static member of its instance id that has left for now."""
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
    """Return an assignment as the response has it: the partitions by topic id."""
    numbers: dict[uuid.UUID, list[int]] = {}
    for topic_id, number in sorted(partitions):
        numbers.setdefault(topic_id, []).append(number)
    return HeartbeatAssignment(
        topic_partitions=[
            HeartbeatTopicPartitions(topic_id=topic_id, partitions=rows)
            for topic_id, rows in numbers.items()
        ]
    )
