"""What the tests of assignors share: Java's decisions, random groups, and what is always so."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from sparkkafka.client.group.assignors import (
    Assignments,
    Claim,
    MemberSubscription,
    Racks,
    find_owners,
)
from sparkkafka.client.values import TopicPartition
from sparkkafka.protocol.messages.consumer_protocol import decode_sticky_user_data

_VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "assignors.json").read_text())
ROUNDS: list[dict[str, Any]] = _VECTORS["rounds"]
RACK_ROUNDS: list[dict[str, Any]] = _VECTORS["rack_rounds"]

TOPICS = ("t0", "t1", "t2", "t3")
MEMBERS = ("a", "b", "c", "d", "e", "f", "B", "Z")

partition_counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 7))
topics_of_members = st.dictionaries(
    st.sampled_from(MEMBERS), st.frozensets(st.sampled_from((*TOPICS, "missing"))), min_size=1
)


def partitions(texts: Iterable[str]) -> list[TopicPartition]:
    found = (text.rpartition(":") for text in texts)
    return [TopicPartition(topic, int(number)) for topic, _, number in found]


def members_of(made: Mapping[str, Any]) -> dict[str, MemberSubscription]:
    """The members of a captured round."""
    return {
        member: MemberSubscription(
            topics=tuple(row["topics"]),
            owned=tuple(partitions(row.get("owned", ()))),
            generation_id=row.get("generation_id", -1),
            user_data=bytes.fromhex(row.get("user_data", "")),
            group_instance_id=row.get("group_instance_id"),
            rack_id=row.get("rack_id"),
        )
        for member, row in made["members"].items()
    }


def java_of(made: Mapping[str, Any]) -> Assignments:
    """What Java decided in a captured round."""
    return {member: sorted(partitions(texts)) for member, texts in made["assigned"].items()}


def had_by(member: MemberSubscription) -> set[TopicPartition]:
    if not member.user_data:
        return set(member.owned)
    previous = decode_sticky_user_data(member.user_data).previous
    return {TopicPartition(*partition) for partition in previous}


def check_complete(
    assigned: Assignments,
    counts: Mapping[str, int],
    topics_of: Mapping[str, Collection[str]],
    *,
    but: Collection[TopicPartition] = (),
) -> None:
    """Every partition (`but` some) that anyone subscribes to goes once, to who subscribes to it."""
    assert assigned.keys() == topics_of.keys()
    subscribed = {topic for topics in topics_of.values() for topic in topics}
    every = {
        TopicPartition(topic, number)
        for topic, count in counts.items()
        if topic in subscribed
        for number in range(count)
    }
    given = [tp for mine in assigned.values() for tp in mine]
    assert len(given) == len(set(given))
    assert set(given) == every - set(but)
    for member, mine in assigned.items():
        assert {tp.topic for tp in mine} <= set(topics_of[member])
        assert mine == sorted(mine)


def check_even(assigned: Assignments, topics_of: Mapping[str, Collection[str]]) -> None:
    """Nobody could take a partition from a member that has two or more than it has."""
    for mine in assigned.values():
        for topic in {tp.topic for tp in mine}:
            for other, topics in topics_of.items():
                assert topic not in topics or len(mine) <= len(assigned[other]) + 1


def claims_of(members: Mapping[str, MemberSubscription]) -> dict[str, Claim]:
    return {name: Claim(had_by(row), row.generation_id) for name, row in members.items()}


def java_is_free(
    members: Mapping[str, MemberSubscription], counts: Mapping[str, int], racks: Racks | None = None
) -> bool:
    """Whether the hash order of Java's maps decides something, or what it moves is its own choice.

    With equal subscriptions: who of more members than may keeps one partition more.
    """
    ownership = find_owners(counts, claims_of(members))
    topics_of = [frozenset(row.topics) for row in members.values()]
    if len(set(topics_of)) > 1:
        return True
    fewest, more = divmod(sum(counts.values()), len(members))
    owners = [
        owner for tp, owner in ownership.owners.items() if racks is None or racks.allows(owner, tp)
    ]
    sizes = [owners.count(name) for name in members]
    return 0 < more < sum(size > fewest for size in sizes)
