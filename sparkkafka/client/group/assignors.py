"""How a group's leader shares partitions out: range, roundrobin, sticky and cooperative-sticky.

All four give what Java's classes of these names give (sticky_assignor.py says where another result
is possible), so it does not matter which member of a mixed group is the leader. A member keeps one
assignor object of each kind it offers, for as long as it lives: the sticky ones remember.

Racks are not looked at (KIP-881): replicas' racks are no part of what `assign` is told. A member's
rack is only sent, for leaders that do look at it.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol

from sparkkafka.client.group.sticky_assignor import (
    Assignments,
    Claim,
    Homes,
    assign_sticky,
    find_homes,
    java_order,
    withhold_moving,
)
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import DecodeError
from sparkkafka.protocol.messages.consumer_protocol import (
    NO_GENERATION,
    decode_cooperative_generation,
    decode_sticky_user_data,
    decode_subscription,
    encode_cooperative_user_data,
    encode_sticky_user_data,
)
from sparkkafka.protocol.wire.primitives import BytesLike

log = logging.getLogger(__name__)


class MemberSubscription(NamedTuple):
    """What the leader knows of a member. Without a generation it is NO_GENERATION."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION
    rack_id: str | None = None
    user_data: bytes = b""
    group_instance_id: str | None = None


def read_subscription(
    encoded: BytesLike, group_instance_id: str | None = None
) -> MemberSubscription:
    """From the metadata of a member in the JoinGroup answer. Raises DecodeError for other bytes."""
    read = decode_subscription(encoded)
    return MemberSubscription(
        topics=read.topics,
        owned=tuple(TopicPartition(*partition) for partition in read.owned),
        generation_id=read.generation_id,
        rack_id=read.rack_id,
        user_data=read.user_data or b"",
        group_instance_id=group_instance_id,
    )


class Assignor(Protocol):
    """One way of sharing out. `name` is that on the wire.

    `cooperative`: members keep what they have through a rebalance, and join once more when they
    had to let something go.
    """

    name: ClassVar[str]
    cooperative: ClassVar[bool]

    def user_data(self) -> bytes | None:
        """What goes into this member's subscription, None for nothing."""
        return None

    @abstractmethod
    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> Assignments:
        """The partitions of each member, in order.

        `partitions` has the number of partitions of each topic that exists. A topic that nobody
        subscribes to is not shared out.
        """

    def on_assignment(self, assignment: Iterable[TopicPartition], generation_id: int) -> None:
        """To be called with what this member got, whoever is the leader."""


class RangeAssignor(Assignor):
    """Each topic by itself: a run of neighbouring partitions to each of its subscribers.

    So members get the same numbers of topics that have as many partitions and the same
    subscribers, as a join of the topics needs it.
    """

    name: ClassVar[str] = "range"
    cooperative: ClassVar[bool] = False

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> Assignments:
        assigned: Assignments = {member: [] for member in members}
        subscribers: dict[str, list[str]] = {}
        for member in _in_java_order(members):
            for topic in set(members[member].topics):
                subscribers.setdefault(topic, []).append(member)
        for topic in sorted(subscribers.keys() & partitions.keys()):
            each, more = divmod(partitions[topic], len(subscribers[topic]))
            first = 0
            for place, member in enumerate(subscribers[topic]):
                stop = first + each + (place < more)
                assigned[member] += [TopicPartition(topic, n) for n in range(first, stop)]
                first = stop
        return assigned


class RoundRobinAssignor(Assignor):
    """All partitions of all topics in order, dealt out in turn; who does not subscribe is passed
    over."""

    name: ClassVar[str] = "roundrobin"
    cooperative: ClassVar[bool] = False

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> Assignments:
        assigned: Assignments = {member: [] for member in members}
        wanted = {member: frozenset(row.topics) for member, row in members.items()}
        turns = _in_java_order(members)
        turn = 0
        for topic in sorted(frozenset().union(*wanted.values()) & partitions.keys()):
            for number in range(partitions[topic]):
                while topic not in wanted[turns[turn]]:
                    turn = (turn + 1) % len(turns)
                assigned[turns[turn]].append(TopicPartition(topic, number))
                turn = (turn + 1) % len(turns)
        return assigned


class StickyAssignor(Assignor):
    """Even and sticky, for members that let go of everything before each rebalance.

    So what a member had is in its user data, together with the generation in which it got that.
    """

    name: ClassVar[str] = "sticky"
    cooperative: ClassVar[bool] = False

    def __init__(self) -> None:
        self._last: tuple[TopicPartition, ...] | None = None
        self._generation_id = NO_GENERATION

    def user_data(self) -> bytes | None:
        if self._last is None:
            return None
        return encode_sticky_user_data(self._last, self._generation_id)

    def on_assignment(self, assignment: Iterable[TopicPartition], generation_id: int) -> None:
        self._last = tuple(sorted(assignment))
        self._generation_id = generation_id

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> Assignments:
        claims = {member: _sticky_claim(member, row) for member, row in members.items()}
        assigned, _ = _assign(partitions, members, claims)
        return assigned


class CooperativeStickyAssignor(Assignor):
    """Even and sticky, for members that keep what they have through a rebalance.

    What moves from one to another is withheld in the first round: its owner sees that it is gone,
    lets go of it and joins again, and the second round gives it away.
    """

    name: ClassVar[str] = "cooperative-sticky"
    cooperative: ClassVar[bool] = True

    def __init__(self) -> None:
        self._generation_id = NO_GENERATION

    def user_data(self) -> bytes | None:
        """The generation, for leaders that do not read it from the subscription."""
        return encode_cooperative_user_data(self._generation_id)

    def on_assignment(self, assignment: Iterable[TopicPartition], generation_id: int) -> None:
        self._generation_id = generation_id

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> Assignments:
        claims = {member: Claim(row.owned, _generation(row)) for member, row in members.items()}
        assigned, homes = _assign(partitions, members, claims)
        first_round, withheld = withhold_moving(assigned, homes)
        if withheld:
            log.debug("%d partitions move once their owners let go of them", len(withheld))
        return first_round


ASSIGNORS: Mapping[str, Callable[[], Assignor]] = MappingProxyType(
    {
        kind.name: kind
        for kind in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
    }
)
"""By the names of `partition.assignment.strategy`."""


def _in_java_order(members: Mapping[str, MemberSubscription]) -> list[str]:
    """Static members first, by group.instance.id, so that a restart changes nothing (KIP-345).

    The others by member id. Java's AbstractPartitionAssignor.MemberInfo.
    """

    def key(member: str) -> tuple[bool, bytes, bytes]:
        instance = members[member].group_instance_id
        return instance is None, java_order(instance or ""), java_order(member)

    return sorted(members, key=key)


def _assign(
    partitions: Mapping[str, int],
    members: Mapping[str, MemberSubscription],
    claims: Mapping[str, Claim],
) -> tuple[Assignments, Homes]:
    homes = find_homes(partitions, claims)
    if homes.contested:
        log.warning(
            "%d partitions, %s first, are claimed by several members of the group in one "
            "generation: none of them keeps these",
            len(homes.contested),
            min(homes.contested),
        )
    topics_of = {member: row.topics for member, row in members.items()}
    return assign_sticky(partitions, topics_of, homes), homes


def _sticky_claim(member: str, row: MemberSubscription) -> Claim:
    # What is owned is not looked at: Java's sticky members own nothing by now.
    if not row.user_data:
        return Claim((), NO_GENERATION)
    try:
        previous, generation_id = decode_sticky_user_data(row.user_data)
    except DecodeError as error:
        # As in Java: the worst that follows is that its partitions move.
        log.warning("what member %s says it had cannot be read and is ignored: %s", member, error)
        return Claim((), NO_GENERATION)
    return Claim(tuple(TopicPartition(*tp) for tp in previous), generation_id)


def _generation(row: MemberSubscription) -> int:
    if row.generation_id >= 0 or not row.user_data:
        return max(row.generation_id, NO_GENERATION)
    try:
        return max(decode_cooperative_generation(row.user_data), NO_GENERATION)
    except DecodeError:
        return NO_GENERATION  # as in Java; a member that says none, and a leader older than it
