"""How members of a classic group share partitions out: each says what it wants
(`GroupAssignors.subscriptions`), the leader assigns (`GroupAssignors.assign`) by range, roundrobin,
sticky or cooperative-sticky.

All four give what Java's classes of these names give (sticky_assignor.py says where another result
is possible), so it does not matter which member of a mixed group is the leader. A member keeps one
assignor object of each kind it offers, for as long as it lives: the sticky ones remember.

All but roundrobin, as in Java, prefer members that are near (racks.py).
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.metadata import missing_topics
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.racks import NO_RACKS, PartitionRacks, Racks, partition_racks
from sparkkafka.client.group.range_assignor import assign_ranges
from sparkkafka.client.group.sticky_assignor import (
    Assignments,
    Claim,
    Homes,
    assign_sticky,
    find_homes,
    java_order,
    withhold_moving,
)
from sparkkafka.client.values import TopicPartition, some_topics
from sparkkafka.errors import BrokerError, DecodeError, ErrorCode, is_retriable
from sparkkafka.protocol.constants import NO_GENERATION
from sparkkafka.protocol.messages import (
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from sparkkafka.protocol.messages.consumer_protocol import (
    decode_assignment,
    decode_cooperative_generation,
    decode_sticky_user_data,
    decode_subscription,
    encode_assignment,
    encode_cooperative_user_data,
    encode_sticky_user_data,
    encode_subscription,
)
from sparkkafka.protocol.wire.primitives import BytesLike

log = logging.getLogger(__name__)

MISSING_TOPIC_LOOK_S = 1.0
"""A leader looks so often for subscribed topics that do not exist, else every metadata.max.age.ms
(Java asks for metadata at about this pace while there is such a topic)."""


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
        self,
        partitions: Mapping[str, int],
        members: Mapping[str, MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> Assignments:
        """The partitions of each member, in order.

        `partitions` has the number of partitions of each topic that exists, `racks` those of their
        replicas. A topic that nobody subscribes to is not shared out.
        """

    def on_assignment(self, assignment: Iterable[TopicPartition], generation_id: int) -> None:
        """To be called with what this member got, whoever is the leader."""


class RangeAssignor(Assignor):
    """Each topic by itself: a run of neighbouring partitions to each of its subscribers."""

    name: ClassVar[str] = "range"
    cooperative: ClassVar[bool] = False

    def assign(
        self,
        partitions: Mapping[str, int],
        members: Mapping[str, MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> Assignments:
        subscribers: dict[str, list[str]] = {}
        for member in _in_java_order(members):
            for topic in set(members[member].topics):
                subscribers.setdefault(topic, []).append(member)
        return assign_ranges(partitions, subscribers, _racks_of(members), racks)


class RoundRobinAssignor(Assignor):
    """All partitions of all topics in order, dealt out in turn; who does not subscribe is passed
    over."""

    name: ClassVar[str] = "roundrobin"
    cooperative: ClassVar[bool] = False

    def assign(
        self,
        partitions: Mapping[str, int],
        members: Mapping[str, MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
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
        self,
        partitions: Mapping[str, int],
        members: Mapping[str, MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> Assignments:
        claims = {member: _sticky_claim(member, row) for member, row in members.items()}
        assigned, _ = _assign(partitions, members, claims, racks)
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
        self,
        partitions: Mapping[str, int],
        members: Mapping[str, MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> Assignments:
        claims = {member: Claim(row.owned, _generation(row)) for member, row in members.items()}
        assigned, homes = _assign(partitions, members, claims, racks)
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
    partition_racks: PartitionRacks,
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
    racks = Racks(_racks_of(members), partition_racks, partitions)
    return assign_sticky(partitions, topics_of, homes, racks or None), homes


def _racks_of(members: Mapping[str, MemberSubscription]) -> dict[str, str | None]:
    return {member: row.rack_id for member, row in members.items()}


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


class GroupAssignors:
    """The assignors of `partition.assignment.strategy`, best liked first, one object of each.

    `cooperative`: members keep their partitions through a rebalance (KIP-429). As in Java's
    ConsumerCoordinator that is so if all assignors of the list can do it; cooperative-sticky can be
    eager as well, so that with `range,cooperative-sticky` a group can move from one to the other.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._assignors: dict[str, Assignor] = {name: ASSIGNORS[name]() for name in names}
        self.cooperative = all(row.cooperative for row in self._assignors.values())

    def subscriptions(
        self,
        topics: Iterable[str],
        owned: Iterable[TopicPartition],
        generation_id: int,
        rack_id: str | None,
    ) -> list[JoinGroupRequestProtocol]:
        """What this member says in JoinGroup, once for each assignor."""
        topics, owned = list(topics), list(owned)
        return [
            JoinGroupRequestProtocol(
                name=name,
                metadata=encode_subscription(
                    topics,
                    user_data=assignor.user_data(),
                    owned=owned,
                    generation_id=generation_id,
                    rack_id=rack_id,
                ),
            )
            for name, assignor in self._assignors.items()
        ]

    def share_out(
        self,
        cluster: Cluster,
        group_id: str,
        response: JoinGroupResponse,
        deadline: Deadline,
    ) -> tuple[dict[str, bytes], TopicWatch]:
        """What the leader assigns to each member, and what it has to watch from then on.

        Raises DecodeError, which names the member, and what `partition_counts` raises.
        """
        members = {member.member_id: _subscription(member) for member in response.members}
        topics = {topic for row in members.values() for topic in row.topics}
        counts = partition_counts(cluster, topics, deadline)
        has_racks = any(row.rack_id for row in members.values())
        racks = partition_racks(cluster, counts) if has_racks else NO_RACKS
        watch = TopicWatch(topics, counts, racks, cluster.options.metadata_max_age_ms)
        if watch.missing:
            log.warning(
                "group %s: %s: nobody gets partitions of a topic until it appears",
                group_id,
                missing_topics(watch.missing),
            )
        if response.skip_assignment:
            # A static leader that came back: all keep what they have (KIP-814).
            return {}, watch
        assigned = self._assignor(response.protocol_name or "").assign(counts, members, racks)
        return {member: encode_assignment(mine) for member, mine in assigned.items()}, watch

    def read_assignment(
        self, protocol: str, encoded: bytes, generation_id: int
    ) -> frozenset[TopicPartition]:
        """What this member got, which its assignor learns. Raises DecodeError."""
        # A leader that leaves a member out gives it nothing, not even an empty list.
        rows = decode_assignment(encoded).partitions if encoded else ()
        assigned = [TopicPartition(*row) for row in rows]
        self._assignor(protocol).on_assignment(assigned, generation_id)
        return frozenset(assigned)

    def _assignor(self, protocol: str) -> Assignor:
        if protocol not in self._assignors:
            raise BrokerError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                "JoinGroup",
                f"the coordinator chose the assignor {protocol!r}, but this member has only "
                f"{', '.join(self._assignors)} (partition.assignment.strategy)",
            )
        return self._assignors[protocol]


class TopicWatch:
    """The leader's eye on what it shared out: more partitions, topics that come or go, and replicas
    in other racks are a reason to share out anew (Java's ConsumerCoordinator compares metadata
    snapshots). Without `racks` nobody looks at them."""

    def __init__(
        self,
        topics: Iterable[str],
        counts: Mapping[str, int],
        racks: PartitionRacks,
        metadata_max_age_ms: int,
    ) -> None:
        self._topics = frozenset(topics)
        self._counts = counts
        self._racks = racks
        self.missing = sorted(self._topics - counts.keys())
        age_s = max(metadata_max_age_ms / 1000, MISSING_TOPIC_LOOK_S)
        self._interval_s = MISSING_TOPIC_LOOK_S if self.missing else age_s
        self._next_look_s = time.monotonic() + self._interval_s

    def until_look_s(self) -> float:
        """Seconds until the next look is due."""
        return self._next_look_s - time.monotonic()

    def look(self, cluster: Cluster, deadline: Deadline) -> list[str]:
        """The topics that are not as they were. Raises KafkaError if that cannot be told."""
        self._next_look_s = time.monotonic() + self._interval_s
        now = partition_counts(cluster, self._topics, deadline)
        racks = partition_racks(cluster, now) if self._racks else NO_RACKS
        return sorted(
            name
            for name in self._topics
            if now.get(name) != self._counts.get(name) or racks.get(name) != self._racks.get(name)
        )


def _subscription(member: JoinGroupResponseMember) -> MemberSubscription:
    try:
        return read_subscription(member.metadata, member.group_instance_id)
    except DecodeError as error:
        raise DecodeError(
            f"the subscription of the group's member {member.member_id!r} cannot be read: {error}"
        ) from error


def partition_counts(cluster: Cluster, topics: Iterable[str], deadline: Deadline) -> dict[str, int]:
    """The number of partitions of each topic that exists now; the others are left out.

    Raises BrokerError, which names topics, if this user may not see some of them.
    """
    names = sorted(topics)
    if not names:
        return {}
    failed = cluster.look_up(names, deadline)
    final = {name: code for name, code in failed.items() if not is_retriable(code)}
    if final:
        code = next(iter(final.values()))
        bad = [name for name, other in final.items() if other == code]
        raise BrokerError(
            code,
            f"Metadata of {some_topics(bad)}",
            "the group subscribes to it, and this member has to share out its partitions: grant "
            "DESCRIBE on the topic to all members"
            if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            else None,
        )
    return {name: cluster.partition_count(name) or 0 for name in names if name not in failed}
