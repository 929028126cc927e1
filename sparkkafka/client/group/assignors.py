"""How members of a classic group assign partitions: range, roundrobin, sticky, cooperative-sticky.

Each member sends its subscription (`GroupAssignors.subscriptions`), and the leader assigns
(`GroupAssignors.assign_for`). All four assignors return what Java's classes of these names return
(one exception is below), so any member of a group with clients in several languages may be the
leader. The sticky assignors have state, so a member keeps its assignor objects.

All but roundrobin prefer members in the rack of a replica (KIP-881), as in Java.

The range assignor (Java's RangeAssignor) assigns each topic separately: each subscriber gets a
range of neighbouring partitions. Where racks matter, a subscriber first gets partitions with a
replica in its rack. Topics with the same number of partitions and the same subscribers are assigned
together: a member gets the same partition numbers of all of them, as a join needs it.

The sticky assignors (Java's AbstractStickyAssignor, which StickyAssignor (KIP-54, KIP-341) and
CooperativeStickyAssignor (KIP-429) share) balance the members and move as little as possible:

- balance comes first: no member could take a partition from one that has two or more than it has;
- then a partition stays with its owner unless that would be unbalanced;
- where racks matter, a partition without a replica in its owner's rack moves to a member with one,
  if that is balanced;
- if several members claim a partition, the one with the highest generation owns it. If that is not
  one but several, nobody owns it, since at least one of them is wrong (KIP-792).

If all members subscribe to the same topics, the result is Java's, with one exception: if more
members have one partition more than the quota than may keep it, Java's hash order decides which of
them do, here the order of member ids. If subscriptions differ, partitions without an owner go to
the same members as in Java; what has to move after that is chosen so that as few as possible move.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.metadata import missing_topics_text
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition, some_topics
from sparkkafka.errors import BrokerError, DecodeError, ErrorCode, is_retriable
from sparkkafka.protocol.constants import NO_GENERATION
from sparkkafka.protocol.messages import (
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    consumer_protocol,
)
from sparkkafka.protocol.wire.primitives import BytesLike

log = logging.getLogger(__name__)

PartitionRacks = Mapping[str, Sequence[frozenset[str]]]
"""The racks of each partition's replicas, by topic and partition number."""


class Racks:
    """The racks of members, and of the partitions of `topics`.

    An object is true if racks matter: not if no member has a rack, no replica is in a member's
    rack, or each partition has replicas in all racks.
    """

    def __init__(
        self,
        member_racks: Mapping[str, str | None],
        partition_racks: PartitionRacks,
        topics: Iterable[str],
    ) -> None:
        self._of_member = {member: rack for member, rack in member_racks.items() if rack}
        self._of_partition = {name: partition_racks.get(name, ()) for name in topics}
        rack_sets = {racks for topic in self._of_partition.values() for racks in topic}
        all_racks = frozenset().union(*rack_sets)
        has_members = not all_racks.isdisjoint(self._of_member.values())
        self._do_matter = has_members and rack_sets != {all_racks}

    def __bool__(self) -> bool:
        return self._do_matter

    def allows(self, member: str, tp: TopicPartition) -> bool:
        """Return whether the partition has a replica in the member's rack, or the member has no
        rack."""
        rack = self._of_member.get(member)
        return rack is None or rack in self._racks_of(tp)

    def matches(self, member: str, tp: TopicPartition) -> bool:
        """Return whether the member has a rack and the partition has a replica in it."""
        return self._of_member.get(member) in self._racks_of(tp)

    def count_matching_members(self, tp: TopicPartition) -> int:
        """Return the number of members in the partition's racks."""
        racks = self._racks_of(tp)
        return sum(rack in racks for rack in self._of_member.values())

    def _racks_of(self, tp: TopicPartition) -> frozenset[str | None]:
        """Return the racks of the partition's replicas; empty if they are not known."""
        racks: Sequence[frozenset[str]] = self._of_partition.get(tp.topic, ())
        return racks[tp.partition] if tp.partition < len(racks) else frozenset()


def partition_racks(cluster: Cluster, topics: Iterable[str]) -> PartitionRacks:
    """Return the racks of the replicas of these topics, from cached metadata."""

    @cache
    def racks_of(replicas: tuple[int, ...]) -> frozenset[str]:
        """Return the racks of these brokers, as far as they have one."""
        brokers = (cluster.brokers.get(node_id) for node_id in replicas)
        return frozenset(broker.rack for broker in brokers if broker and broker.rack)

    racks: dict[str, Sequence[frozenset[str]]] = {}
    for name in topics:
        topic = cluster.known_topic(name)
        rows = topic.partitions if topic is not None else {}
        racks[name] = [
            racks_of(rows[number].replicas) if number in rows else frozenset()
            for number in range(len(rows))
        ]
    return racks


class _RangeTopic:
    """The partitions of one topic, while the range assignor assigns them to its subscribers."""

    def __init__(
        self,
        name: str,
        count: int,
        members: Sequence[str],
        member_racks: Mapping[str, str | None],
        partition_racks: PartitionRacks,
    ) -> None:
        self.name = name
        self.members = tuple(members)
        mine = {member: member_racks.get(member) for member in members}
        self.racks = Racks(mine, partition_racks, [name])
        self.unassigned = dict.fromkeys(range(count))
        self.assigned: dict[str, list[int]] = {member: [] for member in members}
        self._quota, self._extra_count = divmod(count, len(members))

    def capacity(self, member: str) -> int:
        """Return how many more partitions the member may get."""
        return self._quota + (self._extra_count > 0) - len(self.assigned[member])

    def allows(self, member: str, number: int) -> bool:
        """Return what `Racks.allows` says for this partition of the topic."""
        return self.racks.allows(member, TopicPartition(self.name, number))

    def assign(self, member: str, numbers: Sequence[int]) -> None:
        """Give these partitions, which fit into its capacity, to a member."""
        mine = self.assigned[member]
        mine += numbers
        # The first `_extra_count` members that exceed the quota get one more than that.
        self._extra_count -= len(mine) > self._quota
        for number in numbers:
            del self.unassigned[number]

    def assign_ranges(self, *, rack_only: bool = False) -> None:
        """Give each subscriber its share; with `rack_only` only what is in its rack."""
        if rack_only and not self.racks:
            return
        for member in self.members:
            capacity = self.capacity(member)
            numbers: list[int] = []
            for number in self.unassigned:
                if len(numbers) >= capacity:
                    break
                if not rack_only or self.allows(member, number):
                    numbers.append(number)
            if numbers:
                self.assign(member, numbers)


def _assign_by_rack_together(topics: Sequence[_RangeTopic]) -> None:
    """Assign each partition number of all topics to the first member whose rack has replicas of all
    these partitions."""
    members = dict.fromkeys(topics[0].members)
    for number in range(len(topics[0].unassigned)):
        for member in members:
            if all(topic.capacity(member) > 0 and topic.allows(member, number) for topic in topics):
                for topic in topics:
                    topic.assign(member, [number])
                if topics[0].capacity(member) <= 0:
                    del members[member]
                break


Assignments = dict[str, list[TopicPartition]]
"""The partitions of each member id, in order."""


class Claim(NamedTuple):
    """The partitions that a member says it owns, and the generation in which it got them."""

    partitions: Collection[TopicPartition]
    generation_id: int


class Ownership(NamedTuple):
    """The owner of each partition, and all members that claim it."""

    owners: dict[TopicPartition, str]
    claimants: dict[TopicPartition, frozenset[str]]
    contested: frozenset[TopicPartition]
    """Partitions that several members of the highest generation claim, so that none owns them."""


def java_order(text: str) -> bytes:
    """Return a sort key with the order of Java's String.compareTo, which compares UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")


def find_owners(partition_counts: Mapping[str, int], claims: Mapping[str, Claim]) -> Ownership:
    """Find the owner of each claimed partition that exists: the only member that claims it in the
    highest generation. A partition that several claim there is contested, and has no owner."""
    claimants: dict[TopicPartition, list[str]] = {}
    for member, claim in claims.items():
        for tp in set(claim.partitions):
            if 0 <= tp.partition < partition_counts.get(tp.topic, 0):
                claimants.setdefault(tp, []).append(member)
    owners: dict[TopicPartition, str] = {}
    contested: set[TopicPartition] = set()
    for tp, members in claimants.items():
        highest = max(claims[member].generation_id for member in members)
        candidates = [member for member in members if claims[member].generation_id == highest]
        if len(candidates) == 1:
            owners[tp] = candidates[0]
        else:
            contested.add(tp)
    frozen = {tp: frozenset(members) for tp, members in claimants.items()}
    return Ownership(owners, frozen, frozenset(contested))


def assign_sticky(
    partition_counts: Mapping[str, int],
    topics_of: Mapping[str, Collection[str]],
    ownership: Ownership,
    racks: Racks | None = None,
) -> Assignments:
    """Assign every partition of a subscribed topic to one of its subscribers.

    `partition_counts` has the topics that exist; `topics_of` the topics to which each member
    subscribes, which may not exist; `racks` is None if racks do not matter.
    """
    if not topics_of:
        return {}
    subscribed = {
        member: frozenset(topic for topic in topics if partition_counts.get(topic, 0) > 0)
        for member, topics in sorted(topics_of.items(), key=lambda item: java_order(item[0]))
    }
    owners = {
        tp: member
        for tp, member in ownership.owners.items()
        if tp.topic in subscribed.get(member, ()) and (racks is None or racks.allows(member, tp))
    }
    [topics, *others] = set(subscribed.values())
    if not others:
        all_partitions = [
            TopicPartition(topic, number)
            for topic in sorted(topics)
            for number in range(partition_counts[topic])
        ]
        assigned = _assign_equally(all_partitions, list(subscribed), owners, racks)
    else:
        kept = ownership._replace(owners=owners)
        assigned = _Balancer(partition_counts, subscribed, kept, racks).balance()
    return {member: sorted(assigned[member]) for member in topics_of}


def withhold_moving(
    assigned: Assignments, ownership: Ownership
) -> tuple[Assignments, frozenset[TopicPartition]]:
    """Return the assignment of the first of two cooperative rebalances, and the partitions that
    nobody gets in it (KIP-429).

    A member keeps reading its partitions during a cooperative rebalance. A partition that moves is
    withheld until its owner has revoked it and joined again, and so is one that several members
    claim.
    """
    withheld = frozenset(
        tp
        for member, partitions in assigned.items()
        for tp in partitions
        if ownership.owners.get(tp) != member and ownership.claimants.get(tp)
    )
    first = {
        member: [tp for tp in partitions if tp not in withheld]
        for member, partitions in assigned.items()
    }
    return first, withheld


def _assign_equally(
    all_partitions: Iterable[TopicPartition],
    members: list[str],
    owners: Mapping[TopicPartition, str],
    racks: Racks | None,
) -> Assignments:
    """Assign where all members subscribe to the same topics: each gets `quota` partitions, and
    `extra_count` of the members get one more.

    `all_partitions` and `members` are sorted.
    """
    unassigned = [tp for tp in all_partitions if tp not in owners]
    quota, extra_count = divmod(len(unassigned) + len(owners), len(members))
    owned: Assignments = {member: [] for member in members}
    for tp, member in owners.items():
        owned[member].append(tp)

    # A member keeps what it owns, up to the quota, or one more if `extra_count` is not used up.
    assigned: Assignments = {}
    below_quota: list[str] = []
    at_quota: list[str] = []
    for member in members:
        # By number first, so that a member keeps partitions of each topic.
        mine = sorted(owned[member], key=lambda tp: (tp.partition, tp.topic))
        kept_count = quota
        if len(mine) > quota and extra_count:
            kept_count += 1
            extra_count -= 1
        elif len(mine) < quota:
            below_quota.append(member)
        else:
            at_quota.append(member)
        assigned[member] = mine[:kept_count]
        unassigned += mine[kept_count:]
    unassigned.sort()
    if racks is not None:
        unassigned = _assign_by_rack(
            unassigned, assigned, below_quota, at_quota, quota, extra_count, racks
        )

    # One each in turn to members below the quota; then one more each to members at the quota, first
    # to those that were there before. This is Java's order, so a Java leader would not differ.
    remaining = iter(unassigned)
    while below_quota:
        still_below: list[str] = []
        for member in below_quota:
            assigned[member].append(next(remaining))
            (still_below if len(assigned[member]) < quota else at_quota).append(member)
        below_quota = still_below
    for member, tp in zip(at_quota, remaining, strict=False):
        assigned[member].append(tp)
    return assigned


def _assign_by_rack(
    unassigned: list[TopicPartition],
    assigned: Assignments,
    below_quota: list[str],
    at_quota: list[str],
    quota: int,
    extra_count: int,
    racks: Racks,
) -> list[TopicPartition]:
    """Give members partitions with replicas in their racks, as far as the quota allows; return the
    other partitions. Members that reach the quota move from `below_quota` to `at_quota`; members
    that get one more than that leave `at_quota`."""
    remaining: list[TopicPartition] = []
    turn = 0  # members below the quota take turns: the index of the first candidate
    for tp in sorted(unassigned, key=racks.count_matching_members):  # fewest choices first
        turns = [*range(turn, len(below_quota)), *range(turn)]
        index = next((n for n in turns if racks.matches(below_quota[n], tp)), None)
        if index is not None:
            member = below_quota[index]
            assigned[member].append(tp)
            if len(assigned[member]) < quota:
                index += 1
            else:
                del below_quota[index]
                at_quota.append(member)
            turn = index % len(below_quota) if below_quota else 0
            continue
        matching = (n for n, member in enumerate(at_quota) if racks.matches(member, tp))
        index = next(matching, None) if extra_count else None
        if index is not None:
            assigned[at_quota.pop(index)].append(tp)
            extra_count -= 1
        else:
            remaining.append(tp)
    return remaining


class _Balancer:
    """Assigns where members subscribe to different topics: by single moves until none improves the
    balance.

    A move goes from a member to one that has at least two fewer, so the sum of the squares of all
    counts falls with each move. A return to the owner leaves that sum the same or lowers it, and
    lowers the number of partitions that are not with their owner. So the moves end.
    """

    def __init__(
        self,
        partition_counts: Mapping[str, int],
        subscribed: Mapping[str, frozenset[str]],
        ownership: Ownership,
        racks: Racks | None,
    ) -> None:
        """`subscribed` has the members in order, each with its topics."""
        self._owners = ownership.owners
        self._racks = racks
        self._claimants = ownership.claimants
        subscribers: dict[str, list[str]] = {}
        for member, topics in subscribed.items():
            for topic in topics:
                subscribers.setdefault(topic, []).append(member)
        # Topics with the fewest subscribers come first, while these have most capacity.
        self._topics = sorted(subscribers, key=lambda topic: (len(subscribers[topic]), topic))
        self._shared_topics = [topic for topic in self._topics if len(subscribers[topic]) > 1]
        self._subscribers = subscribers
        self._subscribed = subscribed
        self._counts = partition_counts
        self._size = dict.fromkeys(subscribed, 0)
        """The number of partitions that each member holds, which is its assignment so far."""
        self._holder: dict[TopicPartition, str] = {}
        self._held_counts: dict[str, dict[str, int]] = {topic: {} for topic in subscribers}
        """By topic: the number of partitions of it that each member holds (without zeros)."""
        # The partition numbers that a member holds, by member and topic (without empty sets): of
        # partitions that it owns, and of others, which may be moved without loss of stickiness.
        self._own: dict[str, dict[str, set[int]]] = {member: {} for member in subscribed}
        self._foreign: dict[str, dict[str, set[int]]] = {member: {} for member in subscribed}

    def balance(self) -> Assignments:
        """Give partitions to their owners, the others to the members with the fewest partitions
        (first to those in their racks), then move partitions until the members are balanced."""
        for tp, owner in self._owners.items():
            self._give(tp, owner)
        passes = (True, False) if self._racks else (False,)
        for rack_only in passes:
            for topic in self._topics:
                for number in range(self._counts[topic]):
                    tp = TopicPartition(topic, number)
                    taker = None if tp in self._holder else self._smallest_subscriber(tp, rack_only)
                    if taker is not None:
                        self._give(tp, taker)
        while self._balance_topics() or self._return_to_owners():
            pass
        assigned: Assignments = {member: [] for member in self._size}
        for tp, member in self._holder.items():
            assigned[member].append(tp)
        return assigned

    def _balance_topics(self) -> bool:
        """Move partitions of each topic until it is balanced; return whether anything moved.

        Large differences come first: a move between members that differ little could later block a
        move between members that differ a lot.
        """
        has_moved = False
        min_size = min(self._size.values())  # moves never lower it
        gap = max(self._size.values()) - min_size
        while gap >= 2:
            for topic in self._shared_topics:
                while True:
                    # Of several, the last by id: the order of a dict depends on the arguments.
                    giver = max(self._held_counts[topic], key=lambda name: (self._size[name], name))
                    if self._size[giver] < min_size + gap:
                        break
                    taker = min(self._subscribers[topic], key=self._size.__getitem__)
                    if self._size[giver] < self._size[taker] + gap:
                        break
                    self._move(self._choose_partition(topic, giver, taker), giver, taker)
                    has_moved = True
            gap = gap * 2 // 3  # in few steps down to 2, and then to 1, which ends the loop
        return has_moved

    def _return_to_owners(self) -> bool:
        """Return partitions to owners where the balance stays; return whether anything moved.

        Either the owner has fewer partitions than the holder, or it gives the holder a partition
        that it does not own itself.
        """
        has_moved = False
        for tp, owner in sorted(self._owners.items()):
            holder = self._holder[tp]
            if holder == owner:
                continue
            if self._size[owner] >= self._size[holder]:
                common = self._foreign[owner].keys() & self._subscribed[holder]
                if not common:
                    continue
                self._move(self._choose_partition(min(common), owner, holder), owner, holder)
            self._move(tp, holder, owner)
            has_moved = True
        return has_moved

    def _smallest_subscriber(self, tp: TopicPartition, rack_only: bool) -> str | None:
        """Return the subscriber with the fewest partitions, and of several the first. With
        `rack_only`, only subscribers that `Racks.allows` count."""
        members: Iterable[str] = self._subscribers[tp.topic]
        if rack_only and self._racks is not None:
            racks = self._racks
            members = (member for member in members if racks.allows(member, tp))
        return min(members, key=self._size.__getitem__, default=None)

    def _choose_partition(self, topic: str, giver: str, taker: str) -> TopicPartition:
        """Choose the partition to move. One that the giver does not own comes before one that it
        owns, then one that is nearer to the taker's rack, then one that the taker claims."""
        numbers = self._foreign[giver].get(topic) or self._own[giver][topic]

        def preference(number: int) -> tuple[int, bool, int]:
            """Return a sort key of a partition: the one with the greatest key is moved."""
            tp = TopicPartition(topic, number)
            racks = self._racks
            # 1 if only the taker's rack has a replica, -1 if only the giver's has one.
            nearer = racks.allows(taker, tp) - racks.allows(giver, tp) if racks else 0
            return nearer, taker in self._claimants.get(tp, ()), number

        return TopicPartition(topic, max(numbers, key=preference))

    def _move(self, tp: TopicPartition, giver: str, taker: str) -> None:
        """Take a partition from its holder, and give it to another member."""
        held = self._held_numbers(tp, giver)
        held[tp.topic].discard(tp.partition)
        if not held[tp.topic]:
            del held[tp.topic]
        self._size[giver] -= 1
        counts = self._held_counts[tp.topic]
        counts[giver] -= 1
        if not counts[giver]:
            del counts[giver]
        self._give(tp, taker)

    def _give(self, tp: TopicPartition, member: str) -> None:
        """Let a member hold a partition that nobody holds."""
        self._holder[tp] = member
        self._held_numbers(tp, member).setdefault(tp.topic, set()).add(tp.partition)
        self._size[member] += 1
        counts = self._held_counts[tp.topic]
        counts[member] = counts.get(member, 0) + 1

    def _held_numbers(self, tp: TopicPartition, member: str) -> dict[str, set[int]]:
        """Return one of the member's two dicts of partition numbers by topic: `_own` if it owns
        this partition, else `_foreign`."""
        return (self._own if self._owners.get(tp) == member else self._foreign)[member]


MISSING_TOPIC_CHECK_S = 1.0
"""The time between a leader's lookups of subscribed topics that do not exist (about Java's); if all
exist it is metadata.max.age.ms."""


class MemberSubscription(NamedTuple):
    """What a member's JoinGroup says of it, for the leader."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION
    rack_id: str | None = None
    user_data: bytes = b""
    group_instance_id: str | None = None


def read_subscription(
    encoded: BytesLike, member_id: str = "", group_instance_id: str | None = None
) -> MemberSubscription:
    """Decode a member's metadata in the response to JoinGroup. Raises DecodeError, which names the
    member."""
    try:
        read = consumer_protocol.decode_subscription(encoded)
    except DecodeError as error:
        raise DecodeError(
            f"the subscription of the group's member {member_id!r} cannot be read: {error}"
        ) from error
    return MemberSubscription(
        topics=read.topics,
        owned=tuple(TopicPartition(*partition) for partition in read.owned),
        generation_id=read.generation_id,
        rack_id=read.rack_id,
        user_data=read.user_data or b"",
        group_instance_id=group_instance_id,
    )


Counts: TypeAlias = Mapping[str, int]
"""The number of partitions of the topics that exist."""
Members: TypeAlias = Mapping[str, MemberSubscription]
"""The subscriptions by member id."""


class Assignor(Protocol):
    """Assigns the partitions of a group to its members. `name` is its name in JoinGroup.

    `cooperative`: members keep their partitions during a rebalance, and join again after they had
    to revoke some.
    """

    name: ClassVar[str]
    cooperative: ClassVar[bool] = False

    def user_data(self) -> bytes | None:
        """Return the bytes `userData` of this member's subscription, which the assignor of the
        leader reads; None if this assignor sends none."""
        return None

    @abstractmethod
    def assign(self, counts: Counts, members: Members, racks: PartitionRacks) -> Assignments:
        """Return the partitions of each member, in order."""

    def on_assignment(self, assignment: Iterable[TopicPartition], generation_id: int) -> None:
        """Remember the assignment of this member, which the leader's assignor made."""


class RangeAssignor(Assignor):
    """Assigns each topic separately: a range of adjacent partitions to each subscriber."""

    name: ClassVar[str] = "range"

    def assign(self, counts: Counts, members: Members, racks: PartitionRacks) -> Assignments:
        """Assign first to members in the partition's rack (KIP-881), then all that is left."""
        subscribers: dict[str, list[str]] = {}
        for member in _in_java_order(members):
            for name in set(members[member].topics):
                subscribers.setdefault(name, []).append(member)
        member_racks = _member_racks(members)
        topics = [
            _RangeTopic(name, counts[name], names, member_racks, racks)
            for name, names in sorted(subscribers.items())
            if counts.get(name)
        ]
        # First by racks: topics with the same subscribers and number of partitions together.
        if any(topic.racks for topic in topics):
            together: dict[tuple[tuple[str, ...], int], list[_RangeTopic]] = {}
            for topic in topics:
                together.setdefault((topic.members, len(topic.unassigned)), []).append(topic)
            for group in together.values():
                if len(group) > 1:
                    _assign_by_rack_together(group)
                else:
                    group[0].assign_ranges(rack_only=True)
        # Then what is not assigned yet.
        assigned: Assignments = {member: [] for member in members}
        for topic in topics:
            topic.assign_ranges()
            for member, numbers in topic.assigned.items():
                assigned[member] += [TopicPartition(topic.name, n) for n in sorted(numbers)]
        return assigned


class RoundRobinAssignor(Assignor):
    """Assigns all partitions of all topics in order, one to each member in turn. Members that do
    not subscribe to the topic are skipped."""

    name: ClassVar[str] = "roundrobin"

    def assign(self, counts: Counts, members: Members, racks: PartitionRacks) -> Assignments:
        """Assign the partitions in the order of topics and numbers, to members in Java's order."""
        assigned: Assignments = {member: [] for member in members}
        subscribed = {
            member: frozenset(subscription.topics) for member, subscription in members.items()
        }
        turns = _in_java_order(members)
        turn = 0
        for topic in sorted(frozenset().union(*subscribed.values()) & counts.keys()):
            for number in range(counts[topic]):
                while topic not in subscribed[turns[turn]]:
                    turn = (turn + 1) % len(turns)
                assigned[turns[turn]].append(TopicPartition(topic, number))
                turn = (turn + 1) % len(turns)
        return assigned


class StickyAssignor(Assignor):
    """Balanced and sticky, for members that revoke all partitions before each rebalance.

    A member's user data has the partitions that it had, and the generation in which it got them.
    """

    name: ClassVar[str] = "sticky"

    def __init__(self) -> None:
        self._last_assignment: tuple[TopicPartition, ...] | None = None
        self._generation_id = NO_GENERATION

    def user_data(self) -> bytes | None:
        """Return the last assignment as the user data of a JoinGroup, None before the first one."""
        if self._last_assignment is None:
            return None
        return consumer_protocol.encode_sticky_user_data(self._last_assignment, self._generation_id)

    def on_assignment(self, assignment: Iterable[TopicPartition], generation_id: int) -> None:
        """Remember the assignment for the user data of the next JoinGroup."""
        self._last_assignment = tuple(sorted(assignment))
        self._generation_id = generation_id

    def assign(self, counts: Counts, members: Members, racks: PartitionRacks) -> Assignments:
        """Assign all partitions; members keep those that their user data says they had."""
        claims = {
            member: _previous_claim(member, subscription)
            for member, subscription in members.items()
        }
        assigned, _ = _assign_by_claims(counts, members, claims, racks)
        return assigned


class CooperativeStickyAssignor(Assignor):
    """Balanced and sticky, for members that keep their partitions during a rebalance.

    A partition that moves is withheld in the first rebalance: its owner revokes it and joins again,
    and the second rebalance assigns it to another member.
    """

    name: ClassVar[str] = "cooperative-sticky"
    cooperative: ClassVar[bool] = True

    def __init__(self) -> None:
        self._generation_id = NO_GENERATION

    def user_data(self) -> bytes | None:
        """Return the generation, for leaders that do not read it from the subscription."""
        return consumer_protocol.encode_cooperative_user_data(self._generation_id)

    def on_assignment(self, assignment: Iterable[TopicPartition], generation_id: int) -> None:
        """Remember the generation for the user data of the next JoinGroup."""
        self._generation_id = generation_id

    def assign(self, counts: Counts, members: Members, racks: PartitionRacks) -> Assignments:
        """Assign partitions; those that another member still owns are left out until it has revoked
        them."""
        claims = {
            member: Claim(subscription.owned, _generation_of(subscription))
            for member, subscription in members.items()
        }
        assigned, ownership = _assign_by_claims(counts, members, claims, racks)
        first, withheld = withhold_moving(assigned, ownership)
        if withheld:
            log.debug("%d partitions move once their owners have revoked them", len(withheld))
        return first


ASSIGNORS: Mapping[str, Callable[[], Assignor]] = MappingProxyType(
    {
        assignor.name: assignor
        for assignor in (
            RangeAssignor,
            RoundRobinAssignor,
            StickyAssignor,
            CooperativeStickyAssignor,
        )
    }
)
"""By the names of `partition.assignment.strategy`."""


def _in_java_order(members: Members) -> list[str]:
    """Sort static members by group.instance.id, so that a restart changes nothing (KIP-345), and
    after them the others by member id (Java's AbstractPartitionAssignor.MemberInfo)."""

    def key(member: str) -> tuple[bool, bytes, bytes]:
        """Return the sort key of a member: static ones come first."""
        instance = members[member].group_instance_id
        return instance is None, java_order(instance or ""), java_order(member)

    return sorted(members, key=key)


def _assign_by_claims(
    counts: Counts, members: Members, claims: Mapping[str, Claim], partition_racks: PartitionRacks
) -> tuple[Assignments, Ownership]:
    """Assign by the rules of the sticky assignors, with the owners that follow from `claims`."""
    ownership = find_owners(counts, claims)
    if ownership.contested:
        log.warning(
            "%d partitions, %s first, are claimed by several members of the group in one "
            "generation: none of them keeps these",
            len(ownership.contested),
            min(ownership.contested),
        )
    topics_of = {member: subscription.topics for member, subscription in members.items()}
    racks = Racks(_member_racks(members), partition_racks, counts)
    return assign_sticky(counts, topics_of, ownership, racks or None), ownership


def _member_racks(members: Members) -> dict[str, str | None]:
    """Return the rack of each member, None for one without."""
    return {member: subscription.rack_id for member, subscription in members.items()}


def _previous_claim(member: str, subscription: MemberSubscription) -> Claim:
    """Return the partitions that a member of the assignor sticky had, from its user data: it
    revoked all before it joined."""
    if not subscription.user_data:
        return Claim((), NO_GENERATION)
    try:
        previous, generation_id = consumer_protocol.decode_sticky_user_data(subscription.user_data)
    except DecodeError as error:
        # As in Java. At worst its partitions move.
        log.warning("what member %s says it had cannot be read and is ignored: %s", member, error)
        return Claim((), NO_GENERATION)
    return Claim(tuple(TopicPartition(*tp) for tp in previous), generation_id)


def _generation_of(subscription: MemberSubscription) -> int:
    """Return the generation in a member's subscription, else that in its user data."""
    if subscription.generation_id >= 0 or not subscription.user_data:
        return max(subscription.generation_id, NO_GENERATION)
    try:
        return max(
            consumer_protocol.decode_cooperative_generation(subscription.user_data), NO_GENERATION
        )
    except DecodeError:
        return NO_GENERATION  # as in Java


class GroupAssignors:
    """The assignors of `partition.assignment.strategy` in order of preference.

    `cooperative`: members keep their partitions during a rebalance (KIP-429). As in Java's
    ConsumerCoordinator this needs that all assignors of the list are cooperative. With
    `range,cooperative-sticky` members are eager, so a group can change from one to the other.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._assignors: dict[str, Assignor] = {name: ASSIGNORS[name]() for name in names}
        self.cooperative = all(assignor.cooperative for assignor in self._assignors.values())

    def subscriptions(
        self,
        topics: Iterable[str],
        owned: Iterable[TopicPartition],
        generation_id: int,
        rack_id: str | None,
    ) -> list[JoinGroupRequestProtocol]:
        """Return the protocols of a JoinGroup: for each assignor its name and the subscription,
        with the assignor's user data."""
        topics, owned = list(topics), list(owned)
        return [
            JoinGroupRequestProtocol(
                name=name,
                metadata=consumer_protocol.encode_subscription(
                    topics,
                    user_data=assignor.user_data(),
                    owned=owned,
                    generation_id=generation_id,
                    rack_id=rack_id,
                ),
            )
            for name, assignor in self._assignors.items()
        ]

    def assign_for(
        self, cluster: Cluster, group_id: str, response: JoinGroupResponse, deadline: Deadline
    ) -> tuple[dict[str, bytes], TopicWatch]:
        """As the leader, return the encoded assignment of each member, and the topics to watch.

        Raises DecodeError, which names the member, and what `partition_counts` raises.
        """
        members = {
            member.member_id: read_subscription(
                member.metadata, member.member_id, member.group_instance_id
            )
            for member in response.members
        }
        topics = {topic for subscription in members.values() for topic in subscription.topics}
        counts = partition_counts(cluster, topics, deadline)
        has_racks = any(subscription.rack_id for subscription in members.values())
        racks = partition_racks(cluster, counts) if has_racks else {}
        watch = TopicWatch(topics, counts, racks, cluster.options.metadata_max_age_ms)
        if watch.missing:
            log.warning(
                "group %s: %s: no member gets partitions of a topic until it appears",
                group_id,
                missing_topics_text(watch.missing),
            )
        if response.skip_assignment:
            # A static leader came back: all members keep what they have (KIP-814).
            return {}, watch
        assigned = self._assignor(response.protocol_name or "").assign(counts, members, racks)
        return {
            member: consumer_protocol.encode_assignment(mine) for member, mine in assigned.items()
        }, watch

    def read_assignment(
        self, protocol: str, encoded: bytes, generation_id: int
    ) -> frozenset[TopicPartition]:
        """Decode this member's assignment, which its assignor remembers. Raises DecodeError."""
        # A member that the leader left out gets no bytes, not even an empty list.
        rows = consumer_protocol.decode_assignment(encoded).partitions if encoded else ()
        assigned = [TopicPartition(*row) for row in rows]
        self._assignor(protocol).on_assignment(assigned, generation_id)
        return frozenset(assigned)

    def _assignor(self, protocol: str) -> Assignor:
        """Return the assignor that the coordinator chose. Raises BrokerError for an unknown one."""
        if protocol not in self._assignors:
            raise BrokerError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                "JoinGroup",
                f"the coordinator chose the assignor {protocol!r}, but this member has only "
                f"{', '.join(self._assignors)} (partition.assignment.strategy)",
            )
        return self._assignors[protocol]


class TopicWatch:
    """The topics of a leader's assignment, as the metadata had them: the number of partitions,
    whether topics exist, and (with `racks`) the racks of replicas. If these change the leader
    rejoins, so that all members get a new assignment (Java's ConsumerCoordinator compares metadata
    snapshots)."""

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
        age_s = max(metadata_max_age_ms / 1000, MISSING_TOPIC_CHECK_S)
        self._interval_s = MISSING_TOPIC_CHECK_S if self.missing else age_s
        self._lookup_at_s = time.monotonic() + self._interval_s

    def seconds_until_lookup(self) -> float:
        """Seconds until the next lookup is due."""
        return self._lookup_at_s - time.monotonic()

    def changed_topics(self, cluster: Cluster, deadline: Deadline) -> list[str]:
        """Look up all topics; return those that changed. Raises KafkaError if that failed."""
        self._lookup_at_s = time.monotonic() + self._interval_s
        counts = partition_counts(cluster, self._topics, deadline)
        racks = partition_racks(cluster, counts) if self._racks else {}
        return sorted(
            name
            for name in self._topics
            if counts.get(name) != self._counts.get(name)
            or racks.get(name) != self._racks.get(name)
        )


def partition_counts(cluster: Cluster, topics: Iterable[str], deadline: Deadline) -> dict[str, int]:
    """Look up the number of partitions of each topic that exists.

    Raises BrokerError, which names topics, if this user may not see some of them.
    """
    names = sorted(topics)
    if not names:
        return {}
    failed = cluster.request_metadata(names, deadline)
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
