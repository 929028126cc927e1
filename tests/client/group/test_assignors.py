"""range and roundrobin decide as Java and kafka-python do; what the sticky ones remember."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest
from assignor_cases import (
    ROUNDS,
    check_complete,
    java_of,
    members_of,
    partition_counts,
    topics_of_members,
)
from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.protocol.consumer.group import JoinGroupResponse
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from sparkkafka.client.group.assignors import (
    ASSIGNORS,
    Assignor,
    MemberSubscription,
    read_subscription,
)
from sparkkafka.client.values import TopicPartition
from sparkkafka.config import kinds
from sparkkafka.errors import DecodeError
from sparkkafka.protocol.messages.consumer_protocol import (
    decode_assignment,
    decode_cooperative_generation,
    decode_sticky_user_data,
    encode_assignment,
    encode_cooperative_user_data,
    encode_sticky_user_data,
    encode_subscription,
)

T = [TopicPartition("t", number) for number in range(8)]
PLAIN = [made for made in ROUNDS if made["assignor"] in ("range", "roundrobin")]


def member(*topics: str, **rest: Any) -> MemberSubscription:
    return MemberSubscription(topics, **rest)


def assignor(name: str) -> Assignor:
    return ASSIGNORS[name]()


def test_the_names_are_those_of_the_option() -> None:
    assert tuple(ASSIGNORS) == kinds.ASSIGNORS
    assert {name: kind().name for name, kind in ASSIGNORS.items()} == {n: n for n in ASSIGNORS}
    assert [name for name in ASSIGNORS if assignor(name).cooperative] == ["cooperative-sticky"]


@pytest.mark.parametrize("made", PLAIN, ids=lambda made: made["assignor"])
def test_java_decides_the_same(made: dict[str, Any]) -> None:
    assigned = assignor(made["assignor"]).assign(made["partitions"], members_of(made), {})
    assert {name: sorted(mine) for name, mine in assigned.items()} == java_of(made)


class PeerCluster:
    """The methods of its cluster metadata that kafka-python's assignors call."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts

    def topics(self) -> set[str]:
        return set(self._counts)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self._counts[topic])) if topic in self._counts else None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "peer"),
    [("range", RangePartitionAssignor), ("roundrobin", RoundRobinPartitionAssignor)],
)
@given(
    # kafka-python stumbles over a topic without partitions.
    counts=partition_counts.map(lambda counts: {t: n for t, n in counts.items() if n}),
    topics_of=topics_of_members,
)
def test_kafka_python_decides_the_same(
    name: str, peer: Any, counts: dict[str, int], topics_of: dict[str, frozenset[str]]
) -> None:
    if name == "roundrobin":
        # kafka-python 3.0.12 ends with a KeyError where it should pass a member over.
        topics_of = dict.fromkeys(topics_of, frozenset().union(*topics_of.values()))
    peer_members = [
        JoinGroupResponse.JoinGroupResponseMember(
            member_id=each,
            group_instance_id=None,
            metadata=ConsumerProtocolSubscription(version=0, topics=sorted(topics)),
        )
        for each, topics in topics_of.items()
    ]
    theirs = {
        each: sorted(TopicPartition(*partition) for partition in assignment.partitions())
        for each, assignment in peer().assign(PeerCluster(counts), peer_members).items()
    }
    ours = assignor(name).assign(
        counts, {each: member(*sorted(topics)) for each, topics in topics_of.items()}, {}
    )
    assert ours == theirs


@pytest.mark.slow
@pytest.mark.parametrize("name", ASSIGNORS)
@given(counts=partition_counts, topics_of=topics_of_members, source=st.data())
def test_every_partition_once_whatever_the_order_of_the_members(
    name: str,
    counts: dict[str, int],
    topics_of: dict[str, frozenset[str]],
    source: st.DataObject,
) -> None:
    order = source.draw(st.permutations(sorted(topics_of)))
    static = {each for each in order if source.draw(st.booleans())}
    members = {
        each: member(
            *topics_of[each], group_instance_id=f"instance-{each}" if each in static else None
        )
        for each in order
    }
    assigned = assignor(name).assign(counts, members, {})
    check_complete(assigned, counts, topics_of)
    again = {each: members[each] for each in sorted(members)}
    assert assignor(name).assign(counts, again, {}) == assigned


@pytest.mark.parametrize("name", ASSIGNORS)
def test_a_group_of_nobody(name: str) -> None:
    assert assignor(name).assign({"t": 3}, {}, {}) == {}


@pytest.mark.parametrize("name", ASSIGNORS)
def test_a_topic_named_twice_counts_once(name: str) -> None:
    members = {"a": member("t", "t"), "b": member("t")}
    assigned = assignor(name).assign({"t": 4}, members, {})
    assert [len(mine) for mine in assigned.values()] == [2, 2]


def test_range_gives_the_same_numbers_of_topics_alike() -> None:
    members = {name: member("t", "u") for name in ("a", "b", "c")}
    assigned = assignor("range").assign({"t": 7, "u": 7}, members, {})
    numbers = {"a": [0, 1, 2], "b": [3, 4], "c": [5, 6]}
    assert assigned == {
        name: [TopicPartition(topic, number) for topic in ("t", "u") for number in mine]
        for name, mine in numbers.items()
    }


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_static_members_come_first_by_their_instance(name: str) -> None:
    """So that a static member that comes back, with a new member id, gets what it had."""
    members = {
        "a": member("t"),
        "z-1": member("t", group_instance_id="one"),
        "b-2": member("t", group_instance_id="two"),
    }
    assigned = assignor(name).assign({"t": 3}, members, {})
    assert assigned == {"z-1": [T[0]], "b-2": [T[1]], "a": [T[2]]}
    back = {"a": member("t"), "b-2": members["b-2"], "c-3": members["z-1"]}
    assert assignor(name).assign({"t": 3}, back, {})["c-3"] == [T[0]]


@pytest.mark.parametrize("name", ASSIGNORS)
def test_member_ids_are_ordered_as_java_orders_strings(name: str) -> None:
    """Java compares UTF-16 units: U+1F600, a pair of surrogates there, comes before U+FFFD."""
    members = {"�": member("t"), "\U0001f600": member("t")}
    assert assignor(name).assign({"t": 1}, members, {}) == {"\U0001f600": [T[0]], "�": []}


# Mixed groups: kafka-python's members led by ours, and ours led by kafka-python's


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("range", RangePartitionAssignor),
        ("roundrobin", RoundRobinPartitionAssignor),
        ("sticky", StickyPartitionAssignor),
        ("cooperative-sticky", CooperativeStickyAssignor),
    ],
)
def test_either_leads_a_mixed_group(name: str, peer: Any) -> None:
    """Leaders take turns; c leaves after the second rebalance."""
    counts = {"t": 5, "u": 4}
    ours, theirs = assignor(name), {each: peer() for each in ("b", "c")}
    held: dict[str, list[TopicPartition]] = {each: [] for each in "abc"}
    for generation_id, leader in ((1, "a"), (2, "b"), (3, "a"), (4, "b"), (5, "a")):
        if generation_id == 3:
            del held["c"], theirs["c"]
        encoded = {
            "a": encode_subscription(
                ["t", "u"],
                user_data=ours.user_data(),
                owned=held["a"] if ours.cooperative else [],
                generation_id=generation_id - 1 if held["a"] else -1,
            )
        }
        for each, member_of_peer in theirs.items():
            metadata = member_of_peer.metadata({"t", "u"})
            encoded[each] = ConsumerProtocolSubscription.encode(metadata, version=metadata.version)
        if leader == "a":
            members = {each: read_subscription(data) for each, data in encoded.items()}
            response = {
                each: encode_assignment(mine)
                for each, mine in ours.assign(counts, members, {}).items()
            }
        else:
            peer_members = [
                JoinGroupResponse.JoinGroupResponseMember(
                    member_id=each,
                    group_instance_id=None,
                    metadata=ConsumerProtocolSubscription.decode(data),
                )
                for each, data in encoded.items()
            ]
            decided = theirs[leader].assign(PeerCluster(counts), peer_members)
            response = {
                each: ConsumerProtocolAssignment.encode(mine, version=mine.version)
                for each, mine in decided.items()
            }
        for each in held:
            read = decode_assignment(response[each])
            held[each] = sorted(TopicPartition(*partition) for partition in read.partitions)
            if each == "a":
                ours.on_assignment(held[each], generation_id)
            else:
                theirs[each].on_assignment(
                    ConsumerProtocolAssignment.decode(response[each]), generation_id
                )
    check_complete(held, counts, dict.fromkeys(held, frozenset(counts)))
    assert sorted(len(mine) for mine in held.values()) == [4, 5]


# What comes in, and what goes out


def test_a_subscription_as_the_leader_reads_it() -> None:
    encoded = encode_subscription(
        ["t", "u"], user_data=b"x", owned=[("t", 1)], generation_id=3, rack_id="r"
    )
    assert read_subscription(encoded, "member", "instance") == MemberSubscription(
        ("t", "u"), (T[1],), 3, "r", b"x", "instance"
    )
    assert read_subscription(encode_subscription(["t"])) == MemberSubscription(("t",))
    with pytest.raises(DecodeError):
        read_subscription(b"\0")


def test_what_members_send() -> None:
    range_, sticky, cooperative = map(assignor, ("range", "sticky", "cooperative-sticky"))
    assert range_.user_data() is None
    assert sticky.user_data() is None
    assert decode_cooperative_generation(cooperative.user_data() or b"") == -1
    for each in (range_, sticky, cooperative):
        each.on_assignment([T[1], T[0]], 7)
    assert range_.user_data() is None
    assert decode_sticky_user_data(sticky.user_data() or b"") == ((("t", 0), ("t", 1)), 7)
    assert decode_cooperative_generation(cooperative.user_data() or b"") == 7
    sticky.on_assignment([], 8)
    assert decode_sticky_user_data(sticky.user_data() or b"") == ((), 8)


def test_sticky_looks_at_user_data_only() -> None:
    """An eager member owns nothing when it joins; what it says of it is not to be relied on."""
    members = {
        "a": member("t", owned=tuple(T[:4]), generation_id=9),
        "b": member("t", user_data=encode_sticky_user_data([T[0], T[1]], 3)),
    }
    assert assignor("sticky").assign({"t": 4}, members, {}) == {"a": T[2:4], "b": T[:2]}


def test_unreadable_user_data_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    members = {
        "a": member("t", user_data=b"\0\0\0\1nonsense"),
        "b": member("t", user_data=encode_sticky_user_data([T[0], T[1]], 3)),
    }
    with caplog.at_level(logging.WARNING):
        assert assignor("sticky").assign({"t": 4}, members, {})["b"] == T[:2]
    assert "member a" in caplog.text


@pytest.mark.parametrize(
    ("rows", "owner"),
    [
        # Two claim T[0]: by the subscription's generation, by Java's user data, by librdkafka's.
        ({"a": {"generation_id": 4}, "b": {"generation_id": 5}}, "b"),
        (
            {
                "a": {"user_data": encode_cooperative_user_data(5)},
                "b": {"user_data": encode_cooperative_user_data(4)},
            },
            "a",
        ),
        (
            {
                "a": {"user_data": encode_sticky_user_data([T[0]], 5)},
                "b": {"user_data": encode_cooperative_user_data(4)},
            },
            "a",
        ),
        # The subscription's own counts first; none, and what cannot be read, are the oldest.
        ({"a": {"generation_id": 4, "user_data": encode_cooperative_user_data(9)}, "b": {}}, "a"),
        ({"a": {"user_data": b"?"}, "b": {"generation_id": 0}}, "b"),
        ({"a": {"generation_id": -5}, "b": {}}, None),
    ],
)
def test_generations_of_cooperative_members(
    rows: dict[str, dict[str, Any]], owner: str | None
) -> None:
    members = {name: member("t", owned=(T[0],), **row) for name, row in rows.items()}
    assigned = assignor("cooperative-sticky").assign({"t": 2}, members, {})
    assert [name for name, mine in assigned.items() if T[0] in mine] == ([owner] if owner else [])


def test_contested_partitions_are_named(caplog: pytest.LogCaptureFixture) -> None:
    members = {name: member("t", owned=(T[0], T[1]), generation_id=2) for name in "ab"}
    with caplog.at_level(logging.WARNING):
        assert assignor("cooperative-sticky").assign({"t": 2}, members, {}) == {"a": [], "b": []}
    assert "2 partitions, t-0 first" in caplog.text
