"""Assignors prefer members in the racks of a partition's replicas (KIP-881), as Java's do."""

from __future__ import annotations

from typing import Any

import pytest
from assignor_cases import (
    RACK_ROUNDS,
    TOPICS,
    check_complete,
    check_even,
    java_is_free,
    java_of,
    members_of,
)
from hypothesis import given
from hypothesis import strategies as st

from sparkkafka.client import Admin
from sparkkafka.client.cluster import cluster as cluster_module
from sparkkafka.client.group.assignors import (
    ASSIGNORS,
    Assignments,
    MemberSubscription,
    PartitionRacks,
    Racks,
)
from sparkkafka.client.values import TopicPartition
from tests.client.group.members import TestMember, poll_until, settle
from tests.client.support import settings

KINDS = pytest.mark.parametrize("name", ["range", "sticky", "cooperative-sticky"])


def racks_of(made: dict[str, Any]) -> PartitionRacks:
    return {topic: [frozenset(row) for row in rows] for topic, rows in made["racks"].items()}


def near(
    assigned: Assignments, members: dict[str, MemberSubscription], racks: PartitionRacks
) -> int:
    """How many partitions have a replica in the rack of their reader."""
    return sum(
        members[name].rack_id in racks[tp.topic][tp.partition]
        for name, mine in assigned.items()
        for tp in mine
    )


@pytest.mark.parametrize("made", RACK_ROUNDS, ids=lambda made: made["assignor"])
def test_as_java(made: dict[str, Any]) -> None:
    members, counts, racks = members_of(made), made["partitions"], racks_of(made)
    assigned = ASSIGNORS[made["assignor"]]().assign(counts, members, racks)
    matter = Racks({name: row.rack_id for name, row in members.items()}, racks, counts)
    if made["assignor"] == "range" or not java_is_free(members, counts, matter or None):
        assert {name: sorted(mine) for name, mine in assigned.items()} == java_of(made)
    elif made["assignor"] == "sticky":
        sizes = [sorted(map(len, found.values())) for found in (assigned, java_of(made))]
        assert sizes[0] == sizes[1]


def test_racks_matter_in_these_rounds() -> None:
    """Java's decisions are others than without racks, and mostly without a choice of its own."""
    other = 0
    for made in RACK_ROUNDS:
        members = members_of(made)
        without = ASSIGNORS[made["assignor"]]().assign(made["partitions"], members, {})
        other += {name: sorted(mine) for name, mine in without.items()} != java_of(made)
    assert other > len(RACK_ROUNDS) / 4


rack_names = st.sampled_from(["a", "b", "c"])


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, MemberSubscription], PartitionRacks]:
    counts = draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 7), min_size=1))
    topics = st.frozensets(st.sampled_from(sorted(counts)), min_size=1).map(tuple)
    members = st.builds(MemberSubscription, topics=topics, rack_id=st.one_of(st.none(), rack_names))
    racks = {
        topic: draw(st.lists(st.frozensets(rack_names), min_size=count, max_size=count))
        for topic, count in counts.items()
    }
    named = draw(st.dictionaries(st.sampled_from("uvwxyzAB"), members, min_size=1))
    return counts, named, racks


@pytest.mark.slow
@KINDS
@given(group=groups())
def test_as_even_and_complete_as_without(name: str, group: Any) -> None:
    counts, members, racks = group
    topics_of = {member: row.topics for member, row in members.items()}
    assigned = ASSIGNORS[name]().assign(counts, members, racks)
    check_complete(assigned, counts, topics_of)
    if name != "range":
        check_even(assigned, topics_of)
    else:
        for topic in counts:
            takers = [member for member, row in members.items() if topic in row.topics]
            sizes = [sum(tp.topic == topic for tp in assigned[member]) for member in takers]
            assert not sizes or max(sizes) - min(sizes) <= 1


@KINDS
def test_each_reads_in_its_rack_where_that_is_even(name: str) -> None:
    racks = {"t": [frozenset("ba"[number % 2]) for number in range(6)]}
    members = {
        "first": MemberSubscription(("t",), rack_id="a"),
        "last": MemberSubscription(("t",), rack_id="b"),
    }
    assigned = ASSIGNORS[name]().assign({"t": 6}, members, racks)
    assert near(assigned, members, racks) == 6
    assert near(ASSIGNORS[name]().assign({"t": 6}, members, {}), members, racks) < 6


def test_members_with_other_topics_get_what_is_near() -> None:
    """Subscriptions differ: the sticky ones' other way of sharing out."""
    racks = {"t": [frozenset("b"), frozenset("a")], "u": [frozenset("a")]}
    members = {
        "first": MemberSubscription(("t",), rack_id="a"),
        "second": MemberSubscription(("t", "u"), rack_id="b"),
    }
    assigned = ASSIGNORS["sticky"]().assign({"t": 2, "u": 1}, members, racks)
    assert assigned == {
        "first": [TopicPartition("t", 1)],
        "second": [TopicPartition("t", 0), TopicPartition("u", 0)],
    }


def test_the_leader_looks_at_racks_and_sees_replicas_that_move(
    fake_cluster_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "MIN_METADATA_AGE_MS", 50)
    fake = fake_cluster_factory(2, racks=["a", "b"])
    fake.create_topic("t", partitions=2, replication_factor=1)
    leaders = [fake.leader("t", number) for number in range(2)]
    kind = {"partition_assignment_strategy": "cooperative-sticky", "metadata_max_age_ms": 0}
    racks = ["ab"[leaders[number]] for number in (1, 0)]  # the other way round than by order
    with TestMember(fake, client_rack=racks[0], **kind) as first:
        settle(first, count=2)
        with TestMember(fake, client_rack=racks[1], **kind) as second:
            settle(first, second, count=2)
            assert (first.owned, second.owned) == ("t-1", "t-0")
            with Admin(settings(fake)) as admin:
                admin.alter_partition_reassignments({("t", n): [leaders[1 - n]] for n in (0, 1)})
            fake.finish_reassignments()
            poll_until(lambda: (first.owned, second.owned) == ("t-0", "t-1"), first, second)
