"""Members of classic groups in the fake broker: joining, generations, sessions.

A small copy of a broker's group state machine: EMPTY or STABLE, then PREPARING while members join,
then COMPLETING until the leader has sent the assignments. There is no timer: sessions and the
rebalance timeout are checked whenever a member sends a request or waits. The cluster's lock guards
the state.
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
    """A member. `joining` counts its JoinGroup requests: one that waits ends when a later one
    comes. `seen_at_s` is the time of its last request."""

    member_id: str
    instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: list[tuple[str, bytes]]
    is_joining: bool = False
    joining: int = 0
    assignment: bytes = b""
    seen_at_s: float = field(default_factory=time.monotonic)

    @property
    def is_expired(self) -> bool:
        # A member that waits in JoinGroup is alive.
        late_s = time.monotonic() - self.seen_at_s
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
        self._issued_ids: set[str] = set()
        self._prepared_at_s = 0.0

    # --- lookups ---------------------------------------------------------------------------------

    def check(
        self, member_id: str, instance_id: str | None = None, generation_id: int | None = None
    ) -> FakeMember:
        """Return the member that sends a request, and renew its session. Raises Refused if it is no
        member, or has another instance id or generation."""
        self.expire()
        if instance_id is not None:
            static = self._static_member(instance_id)
            if static is not None and static.member_id != member_id:
                raise Refused(ErrorCode.FENCED_INSTANCE_ID, "the instance has another member id")
        member = self.members.get(member_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "no such member")
        if generation_id is not None and generation_id != self.generation_id:
            raise Refused(ErrorCode.ILLEGAL_GENERATION, f"it is {self.generation_id}")
        member.seen_at_s = time.monotonic()
        return member

    def _static_member(self, instance_id: str) -> FakeMember | None:
        rows = self.members.values()
        return next((row for row in rows if row.instance_id == instance_id), None)

    # --- joining ---------------------------------------------------------------------------------

    def join(self, joiner: FakeMember, protocol_type: str, *, id_first: bool) -> FakeMember:
        """Process a JoinGroup. The caller waits while `is_joining` of the returned member is set.

        With `id_first` a new member only gets an id: raises Refused (MEMBER_ID_REQUIRED) with the
        id as its message, as for any other error.
        """
        self.expire()
        self._check_protocols(joiner, protocol_type)
        static = None if joiner.instance_id is None else self._static_member(joiner.instance_id)
        if joiner.member_id == "":
            joiner.member_id = f"{joiner.instance_id or 'member'}-{uuid.uuid4()}"
            if static is not None:
                return self._replace(static, joiner)
            if id_first and joiner.instance_id is None:
                self._issued_ids.add(joiner.member_id)
                raise Refused(ErrorCode.MEMBER_ID_REQUIRED, joiner.member_id)
            return self._add(joiner, protocol_type)
        if joiner.member_id in self._issued_ids:
            self._issued_ids.discard(joiner.member_id)
            return self._add(joiner, protocol_type)
        member = self.check(joiner.member_id, joiner.instance_id)
        same = member.protocols == joiner.protocols
        member.protocols = joiner.protocols
        member.session_timeout_ms = joiner.session_timeout_ms
        member.rebalance_timeout_ms = joiner.rebalance_timeout_ms
        follower = self.state is GroupState.STABLE and member.member_id != self.leader
        if same and (follower or self.state is GroupState.COMPLETING):
            return member  # it joins again because the response was lost
        return self._wait_for_others(member)

    def _check_protocols(self, joiner: FakeMember, protocol_type: str) -> None:
        """Raise Refused if the member has no assignor that all others have as well."""
        others = [row for row in self.members.values() if row.member_id != joiner.member_id]
        names = {name for name, _ in joiner.protocols}
        for other in others:
            names &= {name for name, _ in other.protocols}
        if not names or (others and protocol_type != self.protocol_type):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "nothing in common")

    def _add(self, joiner: FakeMember, protocol_type: str) -> FakeMember:
        self.protocol_type = protocol_type
        self.members[joiner.member_id] = joiner
        return self._wait_for_others(joiner)

    def _replace(self, old: FakeMember, joiner: FakeMember) -> FakeMember:
        """Replace a static member that is back under a new id; it keeps its assignment
        (KIP-345)."""
        rows = [joiner if row is old else row for row in self.members.values()]  # in their order
        self.members = {row.member_id: row for row in rows}
        joiner.assignment = old.assignment
        if self.leader == old.member_id:
            self.leader = joiner.member_id
        if self.state is GroupState.STABLE and self._elect_protocol() == self.protocol:
            return joiner  # without a rebalance, also if it subscribes to other topics
        return self._wait_for_others(joiner)

    def _wait_for_others(self, member: FakeMember) -> FakeMember:
        """Begin a rebalance in which this member has joined; it ends once all others have."""
        self.begin_rebalance()
        member.is_joining = True
        member.joining += 1
        self.end_joining()
        return member

    def begin_rebalance(self) -> None:
        """Begin a rebalance, unless one has begun."""
        if self.state is not GroupState.PREPARING:
            self.state = GroupState.PREPARING
            self._prepared_at_s = time.monotonic()

    def end_joining(self) -> None:
        """Begin a new generation if all members have joined, or the rebalance timeout is over: then
        without those that have not."""
        if self.state is not GroupState.PREPARING:
            return
        late = [row for row in self.members.values() if not row.is_joining]
        limit_ms = max((row.rebalance_timeout_ms for row in self.members.values()), default=0)
        if late and (time.monotonic() - self._prepared_at_s) * 1000 <= limit_ms:
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
        self.protocol = self._elect_protocol()
        for row in self.members.values():
            row.is_joining = False
            row.assignment = b""
            row.seen_at_s = time.monotonic()

    def _elect_protocol(self) -> str:
        """Return the protocol with most votes: a member's is its first one that all others have."""
        lists = [[name for name, _ in row.protocols] for row in self.members.values()]
        common = set(lists[0]).intersection(*lists)
        votes = [next(name for name in names if name in common) for names in lists]
        return max(dict.fromkeys(votes), key=votes.count)

    # --- the others ------------------------------------------------------------------------------

    def assign(self, assignments: dict[str, bytes]) -> None:
        """Set the assignments that the leader has sent with SyncGroup."""
        for member_id, row in self.members.items():
            row.assignment = assignments.get(member_id, b"")
            row.seen_at_s = time.monotonic()
        self.state = GroupState.STABLE

    def remove(self, member_id: str) -> None:
        """Remove a member that has left, or whose session has timed out."""
        del self.members[member_id]
        if not self.members:
            self.state = GroupState.EMPTY
            self.generation_id += 1
            return
        self.begin_rebalance()
        self.end_joining()

    def expire(self) -> None:
        """Remove members whose session has timed out, and end a rebalance that takes too long."""
        for row in list(self.members.values()):
            if row.is_expired:
                self.remove(row.member_id)
        self.end_joining()
