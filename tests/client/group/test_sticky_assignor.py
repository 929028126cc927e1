"""Sticky assignments: even, as still as can be, and as Java's; groups that live through changes."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from assignor_cases import (
    MEMBERS,
    ROUNDS,
    TOPICS,
    check_complete,
    check_even,
    claims_of,
    had_by,
    java_is_free,
    java_of,
    members_of,
    partition_counts,
    topics_of_members,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sparkkafka.client.group.assignors import (
    ASSIGNORS,
    Assignments,
    Assignor,
    Claim,
    MemberSubscription,
    Ownership,
    assign_sticky,
    find_owners,
)
from sparkkafka.client.values import TopicPartition
from tests.support.properties import examples

T = [TopicPartition("t", number) for number in range(12)]
STICKY = [made for made in ROUNDS if made["assignor"] == "sticky"]
COOPERATIVE = [made for made in ROUNDS if made["assignor"] == "cooperative-sticky"]


def stays(assigned: Assignments, ownership: Ownership) -> int:
    """How many partitions stay where they are."""
    return sum(ownership.owners.get(tp) == name for name, mine in assigned.items() for tp in mine)


def squares(assigned: Assignments) -> int:
    """The less, the more even."""
    return sum(len(mine) ** 2 for mine in assigned.values())


def check_still(
    assigned: Assignments, topics_of: Mapping[str, frozenset[str]], ownership: Ownership
) -> None:
    """Nothing moved that could go back without making it less even, and nothing was swapped."""
    moved: set[tuple[str, str, str]] = set()
    for name, mine in assigned.items():
        for tp in mine:
            home = ownership.owners.get(tp, name)
            if home != name and tp.topic in topics_of.get(home, ()):
                assert len(assigned[home]) >= len(mine)
                for other in assigned[home]:
                    # Nor could home give what is not its own for it.
                    assert ownership.owners.get(other) == home or other.topic not in topics_of[name]
                moved.add((tp.topic, home, name))
    for topic, giver, taker in moved:
        assert (topic, taker, giver) not in moved


# Java's decisions


def test_enough_of_javas_decisions_leave_no_choice() -> None:
    for rounds in (STICKY, COOPERATIVE):
        free = [java_is_free(members_of(made), made["partitions"]) for made in rounds]
        assert free.count(False) >= 30
        assert free.count(True) >= 30


@pytest.mark.parametrize("made", STICKY + COOPERATIVE, ids=lambda made: made["assignor"])
def test_as_java_where_java_has_no_choice(made: dict[str, Any]) -> None:
    members, counts = members_of(made), made["partitions"]
    assigned = ASSIGNORS[made["assignor"]]().assign(counts, members, {})
    fresh = not any(had_by(row) for row in members.values())
    if not java_is_free(members, counts) or (fresh and greedy_is_even(members, counts)):
        assert assigned == java_of(made)


def greedy_is_even(members: Mapping[str, MemberSubscription], counts: Mapping[str, int]) -> bool:
    """Whether it is even already when each partition went to the member with fewest."""
    topics_of = {name: frozenset(row.topics) for name, row in members.items()}
    assigned: Assignments = {name: [] for name in sorted(members)}
    takers = {topic: [name for name in assigned if topic in topics_of[name]] for topic in counts}
    for topic in sorted(counts, key=lambda topic: (len(takers[topic]), topic)):
        for number in range(counts[topic]):
            least = min(takers[topic], key=lambda name: len(assigned[name]))
            assigned[least].append(TopicPartition(topic, number))
    try:
        check_even(assigned, topics_of)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("made", STICKY)
def test_as_even_and_as_still_as_java(made: dict[str, Any]) -> None:
    members, counts = members_of(made), made["partitions"]
    ownership = find_owners(counts, claims_of(members))
    ours, java = ASSIGNORS["sticky"]().assign(counts, members, {}), java_of(made)
    assert squares(ours) <= squares(java)
    assert stays(ours, ownership) >= stays(java, ownership)


@pytest.mark.parametrize("made", COOPERATIVE)
def test_no_partition_before_its_owner_revoked_it(made: dict[str, Any]) -> None:
    members, counts = members_of(made), made["partitions"]
    assigned = ASSIGNORS["cooperative-sticky"]().assign(counts, members, {})
    ownership = find_owners(counts, claims_of(members))
    topics_of = {name: frozenset(row.topics) for name, row in members.items()}
    whole = assign_sticky(counts, topics_of, ownership)
    withheld = {
        tp
        for name, mine in whole.items()
        for tp in mine
        if ownership.owners.get(tp) != name and any(tp in row.owned for row in members.values())
    }
    check_complete(whole, counts, topics_of)
    check_complete(assigned, counts, topics_of, but=withheld)
    check_even(whole, topics_of)
    check_still(whole, topics_of, ownership)


# Conflicts


@pytest.mark.parametrize(
    ("generations", "owner"),
    [
        ({"a": 5, "b": 4}, "a"),
        ({"a": 4, "b": 5}, "b"),
        ({"a": 5, "b": 5}, None),
        ({"a": 5, "b": 5, "c": 6}, "c"),
        ({"c": 6, "a": 5, "b": 5}, "c"),
        ({"a": 5, "c": 4, "b": 5}, None),
        ({"a": 0, "b": -1}, "a"),
        ({"a": -1, "b": -1}, None),
    ],
)
def test_who_has_what_several_claim(generations: dict[str, int], owner: str | None) -> None:
    claims = {name: Claim([T[0]], generation) for name, generation in generations.items()}
    ownership = find_owners({"t": 1}, claims)
    assert ownership.owners == ({} if owner is None else {T[0]: owner})
    assert ownership.contested == (frozenset() if owner else {T[0]})
    members = {
        name: MemberSubscription(("t",), (T[0],), generation)
        for name, generation in generations.items()
    }
    assigned = ASSIGNORS["cooperative-sticky"]().assign({"t": 1}, members, {})
    assert assigned == {name: [T[0]] if name == owner else [] for name in members}


def test_a_partition_named_twice_by_one_member_is_no_conflict() -> None:
    ownership = find_owners({"t": 1}, {"a": Claim([T[0], T[0]], 3)})
    assert ownership.owners == {T[0]: "a"}
    assert not ownership.contested


def test_an_old_claim_that_nobody_disputes_is_good() -> None:
    """A member that missed a generation keeps what it has: KIP-792."""
    claims = {"a": Claim(T[:2], 9), "b": Claim(T[2:4], 1)}
    ownership = find_owners({"t": 4}, claims)
    topics_of = {"a": ["t"], "b": ["t"]}
    assert assign_sticky({"t": 4}, topics_of, ownership) == {"a": T[:2], "b": T[2:4]}


def test_partitions_that_do_not_exist_are_not_assigned() -> None:
    gone = [TopicPartition("t", 4), TopicPartition("t", -1), TopicPartition("u", 0)]
    ownership = find_owners({"t": 4}, {"a": Claim([*gone, T[0]], 3)})
    assert ownership.owners == {T[0]: "a"}
    assert assign_sticky({"t": 4}, {"a": ["t", "u"]}, ownership) == {"a": T[:4]}


def test_what_moves_on_goes_to_who_had_it_before() -> None:
    """b comes back: of what a gives away it gets what it had."""
    counts = {"t": 4, "u": 1}
    topics_of = {"a": ["t"], "b": ["t", "u"]}
    claims = {"a": Claim(T[:4], 5), "b": Claim([T[0]], 4)}
    assigned = assign_sticky(counts, topics_of, find_owners(counts, claims))
    assert assigned == {"a": T[1:4], "b": [T[0], TopicPartition("u", 0)]}


def test_who_has_most_gives_first() -> None:
    """Else c gives to b, b to a, and two partitions move where one would do."""
    counts = {"t": 2, "u": 1, "v": 3}
    topics_of = {"a": ["t", "v"], "b": ["t", "u", "v"], "c": ["t", "u", "v"]}
    t, u, v = ([TopicPartition(topic, number) for number in range(3)] for topic in "tuv")
    claims = {"a": Claim([], 1), "b": Claim(v[:2], 1), "c": Claim([*t[:2], u[0], v[2]], 1)}
    ownership = find_owners(counts, claims)
    assigned = assign_sticky(counts, topics_of, ownership)
    assert [len(mine) for mine in assigned.values()] == [2, 2, 2]
    assert stays(assigned, ownership) == 4


def test_what_went_away_comes_back_for_what_came() -> None:
    """c joins: b gives two to it, and a then one to b, for which b can have one of its own back."""
    counts = {"t": 3, "u": 2, "v": 3}
    topics_of = {"a": ["u", "v"], "b": ["t", "u"], "c": ["t", "u"]}
    t, u, v = ([TopicPartition(topic, number) for number in range(3)] for topic in "tuv")
    claims = {"a": Claim([u[1], *v], 1), "b": Claim([*t, u[0]], 1), "c": Claim([], -1)}
    ownership = find_owners(counts, claims)
    assigned = assign_sticky(counts, topics_of, ownership)
    assert [len(mine) for mine in assigned.values()] == [3, 3, 2]
    assert stays(assigned, ownership) == 6


# All groups


@st.composite
def random_claims(draw: st.DrawFn, topics_of: Mapping[str, frozenset[str]]) -> dict[str, Claim]:
    anything = st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(-1, 8))
    return {
        name: Claim(draw(st.lists(anything, max_size=10)), draw(st.integers(-1, 2)))
        for name in topics_of
    }


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(counts=partition_counts, topics_of=topics_of_members, source=st.data(), alike=st.booleans())
def test_complete_even_and_still(
    counts: dict[str, int],
    topics_of: dict[str, frozenset[str]],
    source: st.DataObject,
    alike: bool,
) -> None:
    if alike:
        topics_of = dict.fromkeys(topics_of, frozenset(counts))
    claims = source.draw(random_claims(topics_of))
    ownership = find_owners(counts, claims)
    assigned = assign_sticky(counts, topics_of, ownership)
    check_complete(assigned, counts, topics_of)
    check_even(assigned, topics_of)
    check_still(assigned, topics_of, ownership)
    if alike:
        sizes = [len(mine) for mine in assigned.values()]
        assert max(sizes) - min(sizes) <= 1
        assert stays(assigned, ownership) == most_that_can_stay(sum(sizes), len(sizes), ownership)
    # What is even already does not change, and the order of the members does not matter.
    settled = {name: Claim(mine, 7) for name, mine in assigned.items()}
    assert assign_sticky(counts, topics_of, find_owners(counts, settled)) == assigned
    order = source.draw(st.permutations(list(topics_of)))
    shuffled = find_owners(counts, {name: claims[name] for name in order})
    assert assign_sticky(counts, {name: topics_of[name] for name in order}, shuffled) == assigned


def most_that_can_stay(partition_count: int, member_count: int, ownership: Ownership) -> int:
    """With equal subscriptions: the quotient each, and one more for as many as there is a rest."""
    fewest, more = divmod(partition_count, member_count)
    owners = list(ownership.owners.values())
    sizes = [owners.count(name) for name in set(owners)]
    one_more = sum(size > fewest for size in sizes)
    return sum(min(size, fewest) for size in sizes) + min(one_more, more)


def test_hardly_ever_does_more_move_than_must() -> None:
    """Small groups with different subscriptions, against every other way to share out.

    Single moves do not find the best of all in one case of three hundred; they missed it four
    times as often before partitions could return home.
    """
    chance = random.Random(2)
    missed = cases = 0
    while cases < 600:
        counts = {topic: chance.randint(1, 3) for topic in TOPICS[: chance.randint(1, 3)]}
        topics_of = {
            name: frozenset(topic for topic in counts if chance.random() < 0.7)
            for name in MEMBERS[: chance.randint(2, 4)]
        }
        if sum(counts.values()) > 6:
            continue
        cases += 1
        had: dict[str, list[TopicPartition]] = {name: [] for name in topics_of}
        for topic, count in counts.items():
            takers = [name for name in topics_of if topic in topics_of[name]]
            for number in range(count if takers else 0):
                had[chance.choice(takers)].append(TopicPartition(topic, number))
        ownership = find_owners(counts, {name: Claim(mine, 1) for name, mine in had.items()})
        assigned = assign_sticky(counts, topics_of, ownership)
        most = most_that_could_stay(counts, topics_of, ownership, squares(assigned))
        missed += stays(assigned, ownership) < most
    assert missed <= 3


def most_that_could_stay(
    counts: Mapping[str, int],
    topics_of: Mapping[str, frozenset[str]],
    ownership: Ownership,
    most_squares: int,
) -> int:
    """How many could stay, of all ways to share out that are as even."""
    every = [TopicPartition(topic, number) for topic in counts for number in range(counts[topic])]
    takers = [[name for name in topics_of if tp.topic in topics_of[name]] for tp in every]
    shared = [(tp, names) for tp, names in zip(every, takers, strict=True) if names]
    best = 0
    for choice in itertools.product(*(names for _, names in shared)):
        if sum(size * size for size in Counter(choice).values()) <= most_squares:
            kept = sum(
                ownership.owners.get(tp) == name
                for (tp, _), name in zip(shared, choice, strict=True)
            )
            best = max(best, kept)
    return best


@settings(max_examples=examples(150))
@given(counts=partition_counts, topics_of=topics_of_members, leaver=st.sampled_from(MEMBERS))
def test_only_what_the_leaver_had_moves(
    counts: dict[str, int], topics_of: dict[str, frozenset[str]], leaver: str
) -> None:
    """With equal subscriptions: those who stay keep all."""
    topics_of = dict.fromkeys(topics_of, frozenset(counts))
    before = assign_sticky(counts, topics_of, find_owners(counts, {}))
    claims = {name: Claim(mine, 1) for name, mine in before.items() if name != leaver}
    rest = {name: topics for name, topics in topics_of.items() if name != leaver}
    after = assign_sticky(counts, rest, find_owners(counts, claims))
    for name, mine in after.items():
        assert set(before[name]) <= set(mine)


# A group through its life


class Group(RuleBasedStateMachine):
    """Members come, go and change their minds; the leader is anew chosen for each rebalance.

    What members hold is modelled as Java's consumer does it: eager ones hold nothing while they
    join, cooperative ones let go of what is gone from their assignment and then join again.
    """

    NAME = "sticky"

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {"t0": 3, "t1": 5}
        self.topics_of: dict[str, frozenset[str]] = {}
        self.assignors: dict[str, Assignor] = {}
        self.held: dict[str, set[TopicPartition]] = {}
        self.seen_generation: dict[str, int] = {}
        self.away: dict[str, Assignor] = {}
        self.generation_id = 0
        self.rebalanced = True

    @rule(name=st.sampled_from(MEMBERS), topics=st.frozensets(st.sampled_from(TOPICS), min_size=1))
    def join(self, name: str, topics: frozenset[str]) -> None:
        if name not in self.topics_of:
            # One that was away kept its assignor, which remembers.
            self.assignors[name] = self.away.pop(name, None) or ASSIGNORS[self.NAME]()
            self.held[name] = set()
            self.seen_generation[name] = -1
        self.topics_of[name] = topics
        self.held[name] = {tp for tp in self.held[name] if tp.topic in topics}
        self.rebalanced = False

    @precondition(lambda self: self.topics_of)
    @rule(source=st.data())
    def leave(self, source: st.DataObject) -> None:
        name = source.draw(st.sampled_from(sorted(self.topics_of)))
        for kept in (self.topics_of, self.held, self.seen_generation):
            del kept[name]  # type: ignore[attr-defined]
        self.away[name] = self.assignors.pop(name)
        self.rebalanced = False

    @rule(topic=st.sampled_from(TOPICS), more=st.integers(1, 4))
    def add_partitions(self, topic: str, more: int) -> None:
        self.counts[topic] = self.counts.get(topic, 0) + more
        self.rebalanced = False

    @precondition(lambda self: self.topics_of)
    @rule()
    def rebalance(self) -> None:
        rounds = 0
        while self.round():
            rounds += 1
            assert rounds < 4  # two do; a third is for those that held what was never theirs
        self.rebalanced = True

    def round(self) -> bool:
        """One JoinGroup and SyncGroup; whether a member has to join again."""
        self.generation_id += 1
        cooperative = ASSIGNORS[self.NAME]().cooperative
        if not cooperative:
            self.held = {name: set() for name in self.held}
        members = {
            name: MemberSubscription(
                tuple(sorted(topics)),
                tuple(sorted(self.held[name])),
                self.seen_generation[name],
                user_data=self.assignors[name].user_data() or b"",
            )
            for name, topics in self.topics_of.items()
        }
        leader = self.assignors[min(members)]
        assigned = leader.assign(self.counts, members, {})
        again = False
        for name, mine in assigned.items():
            again |= cooperative and not self.held[name] <= set(mine)
            for other, theirs in self.held.items():
                # What somebody holds is not given away before it has let go of it.
                assert other == name or not theirs & set(mine)
        for name, mine in assigned.items():
            self.held[name] = set(mine)
            self.seen_generation[name] = self.generation_id
            self.assignors[name].on_assignment(mine, self.generation_id)
        return again

    @invariant()
    def all_is_well(self) -> None:
        if self.rebalanced and self.topics_of:
            assigned = {name: sorted(mine) for name, mine in self.held.items()}
            check_complete(assigned, self.counts, self.topics_of)
            check_even(assigned, self.topics_of)

    @precondition(lambda self: self.rebalanced and self.topics_of)
    @rule()
    def rebalance_without_need(self) -> None:
        """A member restarts its session, say: nothing moves."""
        before = {name: set(mine) for name, mine in self.held.items()}
        assert not self.round()
        assert self.held == before


class CooperativeGroup(Group):
    NAME = "cooperative-sticky"


TestGroup = Group.TestCase
TestGroup.settings = settings(max_examples=examples(60), stateful_step_count=25)
TestCooperativeGroup = CooperativeGroup.TestCase
TestCooperativeGroup.settings = settings(max_examples=examples(60), stateful_step_count=25)
