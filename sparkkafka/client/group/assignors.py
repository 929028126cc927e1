"""How members of a classic group assign partitions: range, roundrobin, sticky, cooperative-sticky.

Each member sends its subscription (`GroupAssignors.subscriptions`), the leader assigns
(`GroupAssignors.assign`). All four assignors return what Java's classes of these names return
(`assign_sticky` says where another result is possible), so any member of a mixed group may be the
leader. A member keeps one assignor object of each kind it offers for its whole life: the sticky
ones have state.

All but roundrobin prefer members in the rack of a replica (KIP-881), as in Java.

The range assignment: each topic separately, a run of neighbouring partitions to each subscriber, by
the rules of Java's RangeAssignor. Where racks matter, a subscriber first gets partitions with a
replica in its rack. Topics with as many partitions and the same subscribers are assigned together:
a member gets the same partition numbers of all of them, as a join needs it.

The sticky assignment: as even as possible, and nothing moves without need, by the rules of Java's
AbstractStickyAssignor, which StickyAssignor (KIP-54, KIP-341) and CooperativeStickyAssignor
(KIP-429) share:

- even first: no member could take a partition from one that has two or more than it has;
- then sticky: a partition stays where it is (its home) unless that would be uneven;
- where racks matter, a partition that is not near its home moves to a member that is near, if that
  is even;
- of two members that claim a partition the one of the higher generation has it; of equal
  generations none has it, since at least one of them is wrong (KIP-792).

Where all members subscribe to the same topics, the result is Java's, with one exception: if more
members have one partition too many than may keep it, Java's hash order decides who does, here the
order of their ids. Where subscriptions differ, partitions without a home go to the same members as
in Java; what has to move after that is chosen so that as few as possible move.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.metadata import missing_topics
from sparkkafka.client.deadline import Deadline
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

PartitionRacks = Mapping[str, Sequence[frozenset[str]]]
"""By topic and number of partition the racks of its replicas."""

NO_RACKS: PartitionRacks = MappingProxyType({})


class Racks:
    """The racks of members, and of the partitions of `topics`.

    They are true if they make a difference: not if no member has one, no replica is in one of
    theirs, or every partition is in all racks.
    """

    def __init__(
        self,
        member_racks: Mapping[str, str | None],
        partition_racks: PartitionRacks,
        topics: Iterable[str],
    ) -> None:
        self._of_member = {member: rack for member, rack in member_racks.items() if rack}
        self._of_partition = {name: partition_racks.get(name, ()) for name in topics}
        every = {racks for topic in self._of_partition.values() for racks in topic}
        everywhere = frozenset().union(*every)
        has_near = not everywhere.isdisjoint(self._of_member.values())
        self._matter = has_near and every != {everywhere}

    def __bool__(self) -> bool:
        return self._matter

    def near(self, member: str, tp: TopicPartition) -> bool:
        """Whether the partition has a replica in the member's rack, or the member has no rack."""
        rack = self._of_member.get(member)
        return rack is None or rack in self._racks_of(tp)

    def same(self, member: str, tp: TopicPartition) -> bool:
        """Whether the member has a rack, and the partition a replica in it."""
        return self._of_member.get(member) in self._racks_of(tp)

    def neighbours(self, tp: TopicPartition) -> int:
        """How many members are in the partition's racks."""
        racks = self._racks_of(tp)
        return sum(rack in racks for rack in self._of_member.values())

    def _racks_of(self, tp: TopicPartition) -> frozenset[str | None]:
        racks: Sequence[frozenset[str]] = self._of_partition.get(tp.topic, ())
        return racks[tp.partition] if tp.partition < len(racks) else frozenset()


def partition_racks(cluster: Cluster, topics: Iterable[str]) -> PartitionRacks:
    """What the cache of metadata says of these topics. Partitions are numbered without gaps."""
    seen: dict[tuple[int, ...], frozenset[str]] = {}

    def racks_of(replicas: tuple[int, ...]) -> frozenset[str]:
        if replicas not in seen:
            brokers = (cluster.brokers.get(node_id) for node_id in replicas)
            seen[replicas] = frozenset(row.rack for row in brokers if row and row.rack)
        return seen[replicas]

    found: dict[str, Sequence[frozenset[str]]] = {}
    for name in topics:
        topic = cluster.known_topic(name)
        rows = topic.partitions if topic is not None else {}
        found[name] = [
            racks_of(rows[number].replicas) if number in rows else frozenset()
            for number in range(len(rows))
        ]
    return found


def assign_ranges(
    partition_counts: Mapping[str, int],
    subscribers: Mapping[str, Sequence[str]],
    member_racks: Mapping[str, str | None],
    partition_racks: PartitionRacks,
) -> Assignments:
    """`subscribers` of each topic, in the order in which they get theirs."""
    topics = [
        _Topic(name, partition_counts[name], members, member_racks, partition_racks)
        for name, members in sorted(subscribers.items())
        if partition_counts.get(name)
    ]
    if any(topic.racks for topic in topics):
        together: dict[tuple[tuple[str, ...], int], list[_Topic]] = {}
        for topic in topics:
            together.setdefault((topic.members, len(topic.unassigned)), []).append(topic)
        for group in together.values():
            if len(group) > 1:
                _assign_near_together(group)
            else:
                group[0].assign_ranges(near_only=True)
    assigned: Assignments = {member: [] for member in member_racks}
    for topic in topics:
        topic.assign_ranges()
        for member, numbers in topic.assigned.items():
            assigned[member] += [TopicPartition(topic.name, n) for n in sorted(numbers)]
    return assigned


class _Topic:
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
        self._each, self._more = divmod(count, len(members))

    def capacity(self, member: str) -> int:
        """How many more the member may have."""
        return self._each + (self._more > 0) - len(self.assigned[member])

    def near(self, member: str, number: int) -> bool:
        return self.racks.near(member, TopicPartition(self.name, number))

    def assign(self, member: str, numbers: Sequence[int]) -> None:
        mine = self.assigned[member]
        mine += numbers
        self._more -= len(mine) > self._each
        for number in numbers:
            del self.unassigned[number]

    def assign_ranges(self, *, near_only: bool = False) -> None:
        if near_only and not self.racks:
            return
        for member in self.members:
            capacity = self.capacity(member)
            numbers: list[int] = []
            for number in self.unassigned:
                if len(numbers) >= capacity:
                    break
                if not near_only or self.near(member, number):
                    numbers.append(number)
            if numbers:
                self.assign(member, numbers)


def _assign_near_together(topics: Sequence[_Topic]) -> None:
    """Each number of all these topics to the first member that is near all of these partitions."""
    members = dict.fromkeys(topics[0].members)
    for number in range(len(topics[0].unassigned)):
        for member in members:
            if all(topic.capacity(member) > 0 and topic.near(member, number) for topic in topics):
                for topic in topics:
                    topic.assign(member, [number])
                if topics[0].capacity(member) <= 0:
                    del members[member]
                break


Assignments = dict[str, list[TopicPartition]]
"""Member id to its partitions, in order."""


class Claim(NamedTuple):
    """What a member says that it has, and in which generation of the group it got that."""

    partitions: Collection[TopicPartition]
    generation_id: int


class Homes(NamedTuple):
    """Whose each partition is, out of all who claim it."""

    owners: dict[TopicPartition, str]
    claimants: dict[TopicPartition, frozenset[str]]
    contested: frozenset[TopicPartition]
    """Claimed by several in the highest generation: no owner."""


def java_order(text: str) -> bytes:
    """Sorts like Java's String.compareTo, which compares UTF-16 units and not characters."""
    return text.encode("utf-16-be", "surrogatepass")


def find_homes(partition_counts: Mapping[str, int], claims: Mapping[str, Claim]) -> Homes:
    """Who of several has a partition. Partitions that do not exist (any more) are left out."""
    claimants: dict[TopicPartition, list[str]] = {}
    for member, claim in claims.items():
        for tp in set(claim.partitions):
            if 0 <= tp.partition < partition_counts.get(tp.topic, 0):
                claimants.setdefault(tp, []).append(member)
    owners: dict[TopicPartition, str] = {}
    contested: set[TopicPartition] = set()
    for tp, rivals in claimants.items():
        latest = max(claims[member].generation_id for member in rivals)
        last = [member for member in rivals if claims[member].generation_id == latest]
        if len(last) == 1:
            owners[tp] = last[0]
        else:
            contested.add(tp)
    everyone = {tp: frozenset(rivals) for tp, rivals in claimants.items()}
    return Homes(owners, everyone, frozenset(contested))


def assign_sticky(
    partition_counts: Mapping[str, int],
    topics_of: Mapping[str, Collection[str]],
    homes: Homes,
    racks: Racks | None = None,
) -> Assignments:
    """Every partition of a subscribed topic to one of its subscribers.

    `partition_counts` are the topics that exist; `topics_of` what each member subscribes to, topics
    that do not exist among them; `homes` is of `find_homes`; `racks` are those that matter.
    """
    if not topics_of:
        return {}
    wanted = {
        member: frozenset(topic for topic in topics if partition_counts.get(topic, 0) > 0)
        for member, topics in topics_of.items()
    }
    owners = {
        tp: member
        for tp, member in homes.owners.items()
        if tp.topic in wanted.get(member, ()) and (racks is None or racks.near(member, tp))
    }
    members = sorted(wanted, key=java_order)
    if len(set(wanted.values())) == 1:
        topics = sorted(wanted[members[0]])
        all_partitions = [
            TopicPartition(topic, number)
            for topic in topics
            for number in range(partition_counts[topic])
        ]
        assigned = _share_equally(all_partitions, members, owners, racks)
    else:
        assigned = _Balancer(
            partition_counts, members, wanted, owners, homes.claimants, racks
        ).balance()
    return {member: sorted(assigned[member]) for member in topics_of}


def withhold_moving(
    assigned: Assignments, homes: Homes
) -> tuple[Assignments, frozenset[TopicPartition]]:
    """The assignment of the first of two rounds, and what it withholds (KIP-429).

    A member keeps reading what it has during a cooperative rebalance. What it is to lose nobody
    gets before it has let go and joined again; so with what several members claim.
    """

    def moves(tp: TopicPartition, member: str) -> bool:
        if homes.owners.get(tp) == member:
            return False
        return bool(homes.claimants.get(tp))

    withheld = frozenset(
        tp for member, partitions in assigned.items() for tp in partitions if moves(tp, member)
    )
    now = {
        member: [tp for tp in partitions if tp not in withheld]
        for member, partitions in assigned.items()
    }
    return now, withheld


def _share_equally(
    all_partitions: Iterable[TopicPartition],
    members: list[str],
    owners: Mapping[TopicPartition, str],
    racks: Racks | None,
) -> Assignments:
    """All members subscribe to the same: each gets the quotient, the first ones one more.

    `all_partitions` and `members` are sorted.
    """
    waiting = [tp for tp in all_partitions if tp not in owners]
    fewest, more_count = divmod(len(waiting) + len(owners), len(members))
    owned: Assignments = {member: [] for member in members}
    for tp, member in owners.items():
        owned[member].append(tp)

    assigned: Assignments = {}
    short: list[str] = []
    enough: list[str] = []
    for member in members:
        # By number first, so that a member's share has something of each topic.
        mine = sorted(owned[member], key=lambda tp: (tp.partition, tp.topic))
        quota = fewest
        if len(mine) > fewest and more_count:
            quota += 1
            more_count -= 1
        elif len(mine) < fewest:
            short.append(member)
        else:
            enough.append(member)
        assigned[member] = mine[:quota]
        waiting += mine[quota:]
    waiting.sort()
    if racks is not None:
        waiting = _share_near(waiting, assigned, short, enough, (fewest, more_count), racks)

    # One each in turn to those with too few; then one more each to as many as are left over, first
    # to those that had enough before. Java's order, so that a Java leader would not differ.
    place = 0
    while short:
        still_short: list[str] = []
        for member in short:
            assigned[member].append(waiting[place])
            place += 1
            (still_short if len(assigned[member]) < fewest else enough).append(member)
        short = still_short
    for member, tp in zip(enough, waiting[place:], strict=False):
        assigned[member].append(tp)
    return assigned


def _share_near(
    waiting: list[TopicPartition],
    assigned: Assignments,
    short: list[str],
    enough: list[str],
    quota: tuple[int, int],
    racks: Racks,
) -> list[TopicPartition]:
    """Gives members what is in their racks, as far as the quota lets them; returns the rest.

    `quota`: all get as many, and so many of them one more. `short` and `enough` lose who is full.
    """
    fewest, more_count = quota
    rest: list[TopicPartition] = []
    turn = 0
    for tp in sorted(waiting, key=racks.neighbours):  # those that fewest can have as near
        turns = [*range(turn, len(short)), *range(turn)]
        place = next((n for n in turns if racks.same(short[n], tp)), None)
        if place is not None:
            member = short[place]
            assigned[member].append(tp)
            if len(assigned[member]) < fewest:
                place += 1
            else:
                del short[place]
                enough.append(member)
            turn = place % len(short) if short else 0
            continue
        near = (n for n, member in enumerate(enough) if racks.same(member, tp))
        place = next(near, None) if more_count else None
        if place is not None:
            assigned[enough.pop(place)].append(tp)
            more_count -= 1
        else:
            rest.append(tp)
    return rest


class _Balancer:
    """Members subscribe to different topics: single moves until none makes it more even.

    A move goes from a member to one that has at least two fewer, so the sum of the squares of all
    counts falls with each; a return home leaves it the same or lower, and lowers the number of
    partitions away from home. So it ends.
    """

    def __init__(
        self,
        partition_counts: Mapping[str, int],
        members: list[str],
        wanted: Mapping[str, frozenset[str]],
        homes: Mapping[TopicPartition, str],
        claimants: Mapping[TopicPartition, frozenset[str]],
        racks: Racks | None,
    ) -> None:
        self._homes = homes
        self._racks = racks
        self._claimants = claimants
        takers: dict[str, list[str]] = {}
        for member in members:
            for topic in wanted[member]:
                takers.setdefault(topic, []).append(member)
        # Topics with fewest takers first, while there is most capacity for them.
        self._topics = sorted(takers, key=lambda topic: (len(takers[topic]), topic))
        self._shared_topics = [topic for topic in self._topics if len(takers[topic]) > 1]
        self._takers = takers
        self._wanted = wanted
        self._counts = partition_counts
        self._size = dict.fromkeys(members, 0)
        self._holder: dict[TopicPartition, str] = {}
        self._holders: dict[str, dict[str, int]] = {topic: {} for topic in takers}
        # By member and topic, never empty: the numbers of partitions at home, and of those that
        # are not, which cost nothing to move on.
        self._settled: dict[str, dict[str, set[int]]] = {member: {} for member in members}
        self._free: dict[str, dict[str, set[int]]] = {member: {} for member in members}

    def balance(self) -> Assignments:
        for tp, home in self._homes.items():
            self._give(tp, home)
        for near_only in (True, False) if self._racks else (False,):
            for topic in self._topics:
                for number in range(self._counts[topic]):
                    tp = TopicPartition(topic, number)
                    taker = None if tp in self._holder else self._taker(tp, near_only)
                    if taker is not None:
                        self._give(tp, taker)
        while self._level() or self._return_home():
            pass
        assigned: Assignments = {member: [] for member in self._size}
        for tp, member in self._holder.items():
            assigned[member].append(tp)
        return assigned

    def _level(self) -> bool:
        """Moves within each topic until it is even there; whether anything moved.

        Large differences first: what goes from one to the next with a small one may be in the way
        of a large one later.
        """
        moved = False
        fewest = min(self._size.values())  # moves never lower it
        gap = max(self._size.values()) - fewest
        while gap >= 2:
            for topic in self._shared_topics:
                while True:
                    giver = self._most(topic)
                    if self._size[giver] < fewest + gap:
                        break
                    taker = self._least(topic)
                    if self._size[giver] < self._size[taker] + gap:
                        break
                    self._move(self._choose(topic, giver, taker), giver, taker)
                    moved = True
            gap = 2 if gap == 3 else gap * 2 // 3
        return moved

    def _return_home(self) -> bool:
        """Brings home what can go home without loss of evenness; whether anything moved.

        Either home has fewer, or it gives something for it that is not at home there.
        """
        moved = False
        for tp, home in sorted(self._homes.items()):
            holder = self._holder[tp]
            if holder == home:
                continue
            if self._size[home] >= self._size[holder]:
                common = self._free[home].keys() & self._wanted[holder]
                if not common:
                    continue
                self._move(self._choose(min(common), home, holder), home, holder)
            self._move(tp, holder, home)
            moved = True
        return moved

    def _taker(self, tp: TopicPartition, near_only: bool) -> str | None:
        if not near_only or self._racks is None:
            return self._least(tp.topic)
        near = (member for member in self._takers[tp.topic] if self._racks.near(member, tp))
        return min(near, key=self._size.__getitem__, default=None)

    def _least(self, topic: str) -> str:
        size = self._size
        # The first of equals, and takers are in order.
        return min(self._takers[topic], key=size.__getitem__)

    def _most(self, topic: str) -> str:
        # Of equals the last by id: the order of a dict's keys would depend on the arguments'.
        return max(self._holders[topic], key=lambda member: (self._size[member], member))

    def _choose(self, topic: str, giver: str, taker: str) -> TopicPartition:
        """What goes: rather what is not at home, then what is nearer to the taker, and then what
        the taker claims too."""
        numbers = self._free[giver].get(topic) or self._settled[giver][topic]

        def preference(number: int) -> tuple[int, bool, int]:
            tp = TopicPartition(topic, number)
            nearer = self._racks.near(taker, tp) - self._racks.near(giver, tp) if self._racks else 0
            return nearer, taker in self._claimants.get(tp, ()), number

        return TopicPartition(topic, max(numbers, key=preference))

    def _move(self, tp: TopicPartition, giver: str, taker: str) -> None:
        held = self._held(tp, giver)
        held[tp.topic].discard(tp.partition)
        if not held[tp.topic]:
            del held[tp.topic]
        self._size[giver] -= 1
        holders = self._holders[tp.topic]
        holders[giver] -= 1
        if not holders[giver]:
            del holders[giver]
        self._give(tp, taker)

    def _give(self, tp: TopicPartition, member: str) -> None:
        self._holder[tp] = member
        self._held(tp, member).setdefault(tp.topic, set()).add(tp.partition)
        self._size[member] += 1
        holders = self._holders[tp.topic]
        holders[member] = holders.get(member, 0) + 1

    def _held(self, tp: TopicPartition, member: str) -> dict[str, set[int]]:
        return (self._settled if self._homes.get(tp) == member else self._free)[member]


MISSING_TOPIC_CHECK_S = 1.0
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
    """Even and sticky, for members that revoke all partitions before each rebalance.

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
            log.debug("%d partitions move once their owners have revoked them", len(withheld))
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

    def assign_for(
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
        age_s = max(metadata_max_age_ms / 1000, MISSING_TOPIC_CHECK_S)
        self._interval_s = MISSING_TOPIC_CHECK_S if self.missing else age_s
        self._next_look_s = time.monotonic() + self._interval_s

    def until_check_s(self) -> float:
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
