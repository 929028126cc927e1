"""The sticky assignment: as even as can be, and nothing moves that need not.

The rules are those of Java's AbstractStickyAssignor, which both its StickyAssignor (KIP-54,
KIP-341) and its CooperativeStickyAssignor (KIP-429) use:

- even first: no member could take a partition from one that has two or more than it has;
- then sticky: a partition stays where it is (its home) unless that would be uneven;
- where racks matter (KIP-881), what is not near its home moves, to who has it near if that is even;
- of two members that claim a partition the one of the higher generation has it; of equal
  generations nobody has, for one of them at least is wrong and nobody knows which (KIP-792).

Where all members subscribe to the same topics, the result is Java's own, but for one thing: of more
members with one partition too many than may keep it, Java's hash order says who does, here the
order of their ids. Where subscriptions differ, what has no home goes to the same members as in
Java; what has to move after that is chosen in another way, so that as few as possible move.

Plain functions of their arguments: same in, same out, in every process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from sparkkafka.client.group.racks import Racks
from sparkkafka.client.values import TopicPartition

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
        # Topics with fewest takers first, while there is most room for them.
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
