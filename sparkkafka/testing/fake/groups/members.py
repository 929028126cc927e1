"""Members of classic groups in the fake broker: joining, generations, sessions.

A small copy of a broker's group state machine: EMPTY or STABLE, then PREPARING while members join,
then COMPLETING until the leader has sent the assignments. There is no timer: sessions and the
rebalance timeout are checked whenever a member sends a request or waits. Plain state; the
cluster's lock guards it.
"""

from __future__ import annotations

import enum
import time
import uuid
from dataclasses import dataclass, field

from sparkkafka.errors import ErrorCode
from sparkkafka.testing.fake.log.producers import Refused


class GroupState(enum.Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(slots=True)
class FakeMember:
    """`joining` counts up with each JoinGroup that waits, so that an old one knows that it is."""

    member_id: str
    instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: list[tuple[str, bytes]]
    is_joining: bool = False
    joining: int = 0
    assignment: bytes = b""
    seen_s: float = field(default_factory=time.monotonic)

    @property
    def expired(self) -> bool:
        # Who waits in JoinGroup or SyncGroup is alive.
        late_s = time.monotonic() - self.seen_s
        return not self.is_joining and late_s * 1000 > self.session_timeout_ms


class Membership:
    """The members of one group."""

    def __init__(self) -> None:
        self.state = GroupState.EMPTY
        self.generation_id = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, FakeMember] = {}
        self._promised: set[str] = set()
        self._prepared_s = 0.0

    # --- looking ---------------------------------------------------------------------------------

    def check(
        self, member_id: str, instance_id: str | None = None, generation_id: int | None = None
    ) -> FakeMember:
        """The member, which is alive since it sends a request. Raises Refused."""
        self.expire()
        if instance_id is not None:
            static = self._static(instance_id)
            if static is not None and static.member_id != member_id:
                raise Refused(ErrorCode.FENCED_INSTANCE_ID, "the instance has another member id")
        member = self.members.get(member_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "no such member")
        if generation_id is not None and generation_id != self.generation_id:
            raise Refused(ErrorCode.ILLEGAL_GENERATION, f"it is {self.generation_id}")
        member.seen_s = time.monotonic()
        return member

    def _static(self, instance_id: str) -> FakeMember | None:
        rows = self.members.values()
        return next((row for row in rows if row.instance_id == instance_id), None)

    # --- joining ---------------------------------------------------------------------------------

    def join(self, joiner: FakeMember, protocol_type: str, *, id_first: bool) -> FakeMember:
        """A JoinGroup: it waits if `is_joining` is set on the member that is returned, else the
        generation stands. Raises Refused; MEMBER_ID_REQUIRED with the id as its message."""
        self.expire()
        self._check_protocols(joiner, protocol_type)
        static = None if joiner.instance_id is None else self._static(joiner.instance_id)
        if joiner.member_id == "":
            joiner.member_id = f"{joiner.instance_id or 'member'}-{uuid.uuid4()}"
            if static is not None:
                return self._replace(static, joiner)
            if id_first and joiner.instance_id is None:
                self._promised.add(joiner.member_id)
                raise Refused(ErrorCode.MEMBER_ID_REQUIRED, joiner.member_id)
            return self._add(joiner, protocol_type)
        if joiner.member_id in self._promised:
            self._promised.discard(joiner.member_id)
            return self._add(joiner, protocol_type)
        member = self.check(joiner.member_id, joiner.instance_id)
        same = member.protocols == joiner.protocols
        member.protocols = joiner.protocols
        member.session_timeout_ms = joiner.session_timeout_ms
        member.rebalance_timeout_ms = joiner.rebalance_timeout_ms
        follower = self.state is GroupState.STABLE and member.member_id != self.leader
        if same and (follower or self.state is GroupState.COMPLETING):
            return member  # an answer that was lost
        return self._await(member)

    def _check_protocols(self, joiner: FakeMember, protocol_type: str) -> None:
        others = [row for row in self.members.values() if row.member_id != joiner.member_id]
        names = {name for name, _ in joiner.protocols}
        for other in others:
            names &= {name for name, _ in other.protocols}
        if not names or (others and protocol_type != self.protocol_type):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "nothing in common")

    def _add(self, joiner: FakeMember, protocol_type: str) -> FakeMember:
        self.protocol_type = protocol_type
        self.members[joiner.member_id] = joiner
        return self._await(joiner)

    def _replace(self, old: FakeMember, joiner: FakeMember) -> FakeMember:
        """KIP-345: a static member is back and keeps its assignment."""
        self.members = {
            (joiner.member_id if row is old else key): (joiner if row is old else row)
            for key, row in self.members.items()
        }
        joiner.assignment = old.assignment
        if self.leader == old.member_id:
            self.leader = joiner.member_id
        if self.state is GroupState.STABLE and self._elected() == self.protocol:
            return joiner  # whatever it subscribes to
        return self._await(joiner)

    def _await(self, member: FakeMember) -> FakeMember:
        self.prepare()
        member.is_joining = True
        member.joining += 1
        self.advance()
        return member

    def prepare(self) -> None:
        """A rebalance begins, if none has."""
        if self.state is not GroupState.PREPARING:
            self.state = GroupState.PREPARING
            self._prepared_s = time.monotonic()

    def advance(self) -> None:
        """End PREPARING if all have joined, or those that have not took too long."""
        if self.state is not GroupState.PREPARING:
            return
        late = [row for row in self.members.values() if not row.is_joining]
        limit_ms = max((row.rebalance_timeout_ms for row in self.members.values()), default=0)
        if late and (time.monotonic() - self._prepared_s) * 1000 <= limit_ms:
            return
        for row in late:
            del self.members[row.member_id]
        if not self.members:
            self.state = GroupState.EMPTY
            return
        self.generation_id += 1
        self.state = GroupState.COMPLETING
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        self.protocol = self._elected()
        for row in self.members.values():
            row.is_joining = False
            row.assignment = b""
            row.seen_s = time.monotonic()

    def _elected(self) -> str:
        """Each member votes for the first of its protocols that all have."""
        lists = [[name for name, _ in row.protocols] for row in self.members.values()]
        common = set(lists[0]).intersection(*lists)
        votes = [next(name for name in names if name in common) for names in lists]
        return max(dict.fromkeys(votes), key=votes.count)

    # --- the rest --------------------------------------------------------------------------------

    def assign(self, assignments: dict[str, bytes]) -> None:
        """The leader's SyncGroup."""
        for member_id, row in self.members.items():
            row.assignment = assignments.get(member_id, b"")
            row.seen_s = time.monotonic()
        self.state = GroupState.STABLE

    def remove(self, member_id: str) -> None:
        """A member left, or was not heard of."""
        del self.members[member_id]
        if not self.members:
            self.state = GroupState.EMPTY
            self.generation_id += 1
            return
        self.prepare()
        self.advance()

    def expire(self) -> None:
        for row in list(self.members.values()):
            if row.expired:
                self.remove(row.member_id)
        self.advance()
