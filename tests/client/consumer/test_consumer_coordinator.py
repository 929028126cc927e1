"""Consumer with subscribe: topics, patterns, positions, commits and callbacks in rebalances.

Membership itself is another module's: here a stub says what is assigned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sparkkafka.client.cluster import cluster as cluster_module
from sparkkafka.client.consumer import consumer_coordinator
from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.committed_offsets import Committer, GroupMetadata, TopicIds
from sparkkafka.client.group.membership import RebalanceHooks
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition
from sparkkafka.config.client_settings import ConsumerOptions
from sparkkafka.errors import (
    CommitFailedError,
    ConsumerStateError,
    ErrorCode,
    OptionError,
)
from tests.client.support import fill, settings

WAIT_S = 10.0


class StubMember:
    """A member whose group does what `rebalances` says, one at each poll."""

    def __init__(self, options: ConsumerOptions, hooks: RebalanceHooks) -> None:
        self.hooks = hooks
        self.options = options
        self.topics: list[frozenset[str]] = []
        self.assignment: frozenset[TopicPartition] = frozenset()
        self.rebalances: list[Callable[[], None]] = []
        self.commits: list[dict[TopicPartition, int]] = []
        self.refuses = False
        self.events: list[str] = []
        self.is_closed = False

    @property
    def metadata(self) -> GroupMetadata:
        return GroupMetadata("g", 7, "member-1")

    def subscribe(self, topics: frozenset[str]) -> None:
        self.topics.append(topics)

    def poll(self) -> None:
        if self.rebalances:
            self.rebalances.pop(0)()

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        deadline: Deadline,
        topic_ids: TopicIds | None = None,
    ) -> None:
        if self.refuses:
            raise CommitFailedError(ErrorCode.ILLEGAL_GENERATION, "OffsetCommit of group 'g'")
        self.commits.append({tp: row.offset for tp, row in offsets.items()})
        self.events.append("commit")

    def committer(self, topic_ids: TopicIds | None = None) -> Committer:
        if self.refuses:
            raise CommitFailedError(ErrorCode.ILLEGAL_GENERATION, "OffsetCommit of group 'g'")
        return lambda cluster, offsets, deadline: self.commit(offsets, deadline)

    def close(self, deadline: Deadline, *, leave: bool = True) -> None:
        self.is_closed = True
        self.events.append("close")

    def gives(self, *partitions: TopicPartition) -> None:
        def run() -> None:
            new = frozenset(partitions)
            added, self.assignment = new - self.assignment, new
            self.hooks.after_assign(added, new)

        self.rebalances.append(run)

    def takes(self, *partitions: TopicPartition, lost: bool = False) -> None:
        def run() -> None:
            gone = frozenset(partitions)
            if not lost:
                self.hooks.before_revoke(gone)
            self.assignment -= gone
            if lost:
                self.hooks.after_lost(gone)

        self.rebalances.append(run)


@pytest.fixture
def members(monkeypatch):
    made: list[StubMember] = []

    def make(options: ConsumerOptions, hooks: RebalanceHooks, *_: object) -> StubMember:
        made.append(StubMember(options, hooks))
        return made[-1]

    monkeypatch.setattr(consumer_coordinator, "make_member", make)
    return made


@pytest.fixture
def filled(fake_cluster):
    fake_cluster.create_topic("t", partitions=3)
    fill(fake_cluster, "t", 300, partitions=3)
    return fake_cluster


def consumer(bootstrap: Any, **config: Any) -> Consumer:
    given = {"group_id": "g", "auto_offset_reset": "earliest", "max_poll_records": 10}
    return Consumer(settings(bootstrap, **(given | config)))


P = [TopicPartition("t", number) for number in range(3)]


def test_what_the_group_gives_is_read_from_the_committed_offset(filled, members):
    with consumer(filled, enable_auto_commit=False) as source:
        source.assign(P)
        source.commit({P[1]: 60})
        source.unsubscribe()
        source.subscribe(["t"])
        (member,) = members
        assert member.topics == [frozenset({"t"})]
        assert source.subscription() == frozenset({"t"})
        assert source.poll(0) is not None
        assert source.assignment() == frozenset()
        member.gives(P[0], P[1])
        seen: dict[int, list[int]] = {0: [], 1: []}
        while min(map(len, seen.values())) < 40:
            for record in source.poll(WAIT_S):
                seen[record.partition].append(record.offset)
        assert seen[1] == list(range(60, 60 + len(seen[1])))
        assert seen[0] == list(range(len(seen[0])))
        source.commit()
        assert member.commits == [{P[0]: len(seen[0]), P[1]: 60 + len(seen[1])}]
        found = source.group_metadata()
        assert found == GroupMetadata("g", 7, "member-1", topic_ids=found.topic_ids)
        assert found.topic_ids is not None
        assert found.topic_ids.keys() == {P[0], P[1]}
    assert member.is_closed
    assert len(member.commits) == 1  # close commits nothing without enable.auto.commit


def test_callbacks_and_commits_of_a_rebalance(filled, members):
    calls: list[tuple[str, list[TopicPartition]]] = []
    with consumer(filled) as source:

        def recorder(name: str) -> Callable[[list[TopicPartition]], None]:
            def callback(partitions: list[TopicPartition]) -> None:
                calls.append((name, partitions))
                members[0].events.append(name)
                # The consumer may be used here; what goes away is still there.
                assert source.assignment() >= set(partitions)
                if name == "revoked":
                    source.commit({partitions[0]: source.position(partitions[0])})

            return callback

        source.subscribe(
            "t",
            on_assigned=recorder("assigned"),
            on_revoked=recorder("revoked"),
            on_lost=recorder("lost"),
        )
        member = members[0]
        member.gives(*P)
        first = source.poll(WAIT_S)
        position = {record.partition: record.next_offset for record in first}
        (number,) = position
        member.takes(P[number])
        source.poll(0)
        assert member.events == ["assigned", "commit", "revoked", "commit"]
        # Automatic: where poll has got to, of all partitions; then the callback's own.
        assert member.commits[0][P[number]] == position[number]
        assert member.commits[1] == {P[number]: position[number]}
        rest = [tp for tp in P if tp != P[number]]
        assert source.assignment() == frozenset(rest)
        member.takes(rest[0], lost=True)
        member.events.clear()
        source.poll(0)
        assert member.events == ["lost"]  # nothing is committed: others may have committed more
        assert source.assignment() == frozenset(rest[1:])
        assert calls == [("assigned", P), ("revoked", [P[number]]), ("lost", [rest[0]])]
        source.position(rest[1])  # known from now on: without it there is nothing to commit
        member.events.clear()
    assert member.events == ["commit", "revoked", "commit", "close"]


def test_without_on_lost_on_revoked_is_called(filled, members):
    revoked: list[list[TopicPartition]] = []
    with consumer(filled) as source:
        source.subscribe(["t"], on_revoked=revoked.append)
        members[0].gives(*P)
        source.poll(0)
        members[0].takes(P[0], lost=True)
        source.poll(0)
        assert revoked == [[P[0]]]


def test_a_callback_that_fails_comes_out_of_poll_and_the_partitions_are_gone(filled, members):
    with consumer(filled) as source:

        def fail(partitions: list[TopicPartition]) -> None:
            raise ZeroDivisionError

        source.subscribe(["t"], on_revoked=fail)
        members[0].gives(*P)
        source.poll(WAIT_S)
        members[0].takes(P[0])
        with pytest.raises(ZeroDivisionError):
            source.poll(0)
        assert source.assignment() == frozenset(P[1:])
        source.poll(WAIT_S)
        with pytest.raises(ZeroDivisionError):
            source.close()
    assert members[0].is_closed


def test_kept_partitions_keep_position_and_buffers(filled, members):
    with consumer(filled) as source:
        source.subscribe(["t"])
        members[0].gives(P[0])
        assert [record.offset for record in source.poll(WAIT_S)] == list(range(10))
        members[0].gives(P[0], P[1])
        found = {P[0]: 10, P[1]: 0}
        for _ in range(12):
            for record in source.poll(WAIT_S):
                tp = TopicPartition(record.topic, record.partition)
                assert record.offset == found[tp]
                found[tp] += 1
        assert found[P[1]] > 0


def test_automatic_commits_go_through_the_member_and_only_forward(filled, members):
    with consumer(filled, auto_commit_interval_ms=0) as source:
        source.subscribe(["t"])
        member = members[0]
        member.gives(P[0])
        for _ in range(5):
            source.poll(WAIT_S)
        offsets = [row[P[0]] for row in member.commits if P[0] in row]
        assert offsets == sorted(offsets)
        assert offsets[-1] == source.position(P[0]) - 10  # not what the last poll returned
    assert member.commits[-1] == {P[0]: 50}


def test_a_commit_that_comes_too_late(filled, members, caplog):
    with consumer(filled, auto_commit_interval_ms=0) as source:
        source.subscribe(["t"])
        members[0].gives(P[0])
        source.poll(WAIT_S)
        members[0].refuses = True
        assert source.poll(WAIT_S)  # an automatic commit that fails is no error
        assert "automatic commit" in caplog.text
        with pytest.raises(CommitFailedError):
            source.commit()


# --- topics --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (re.compile(r"t|u.*"), {"t", "u1", "u2"}),
        ("^u", {"u1", "u2"}),
        (["^u1$", "t", "absent"], {"t", "u1"}),
        ("^nothing", set()),
        ("^_", set()),
    ],
)
def test_patterns(filled, members, pattern, names):
    for name in ("u1", "u2", "xu3", "__consumer_offsets"):
        filled.create_topic(name)
    with consumer(filled) as source:
        source.subscribe(pattern)
        assert members[0].topics == []
        source.poll(0)
        assert members[0].topics == [frozenset(names)]
        assert source.subscription() == frozenset(names)


def test_internal_topics_if_they_are_not_excluded(filled, members):
    filled.create_topic("__consumer_offsets")
    with consumer(filled, exclude_internal_topics=False) as source:
        source.subscribe("^_")
        source.poll(0)
        assert members[0].topics == [frozenset({"__consumer_offsets"})]


def test_new_topics_are_found_when_metadata_is_old(filled, members, monkeypatch):
    monkeypatch.setattr(cluster_module, "MIN_METADATA_AGE_MS", 50)
    with consumer(filled, metadata_max_age_ms=50) as source:
        source.subscribe("^u")
        source.poll(0)
        filled.create_topic("u1")
        for _ in range(100):
            if source.subscription():
                break
            source.poll(0.05)
        assert members[0].topics == [frozenset(), frozenset({"u1"})]


def test_subscribe_and_assign_exclude_each_other(filled, members):
    with consumer(filled) as source:
        source.subscribe(["t"])
        with pytest.raises(ConsumerStateError, match="unsubscribe"):
            source.assign(P)
        source.unsubscribe()
        assert source.subscription() == frozenset()
        source.assign(P)
        with pytest.raises(ConsumerStateError, match="unsubscribe"):
            source.subscribe(["t"])
        source.unsubscribe()
        source.subscribe(["t"])
        source.subscribe(["t", "u"])
        assert [row.topics for row in members] == [
            [frozenset({"t"})],
            [frozenset({"t"}), frozenset({"t", "u"})],
        ]
        assert members[0].is_closed


def test_a_pattern_without_its_sign_is_an_error(filled):
    with consumer(filled) as source, pytest.raises(OptionError, match=r"a pattern begins with \^"):
        source.subscribe("m.*")


@pytest.mark.parametrize("bad", [[], "", [""], [1], "^("])
def test_what_is_no_topic(filled, members, bad):
    with consumer(filled) as source, pytest.raises(OptionError):
        source.subscribe(bad)
    assert members == []


def test_committed_says_what_is_beside_the_offset(filled, members):
    with consumer(filled) as source:
        source.assign(P)
        source.commit({P[0]: OffsetAndMetadata(5, "text", 0), P[1]: OffsetAndMetadata(6)})
        assert source.committed(P) == {
            P[0]: OffsetAndMetadata(5, "text", 0),
            P[1]: OffsetAndMetadata(6),
            P[2]: None,
        }


def test_close_in_a_callback_ends_the_poll(filled, members):
    with consumer(filled, auto_commit_interval_ms=0) as source:
        source.subscribe(["t"], on_assigned=lambda _: source.close())
        members[0].gives(*P)
        with pytest.raises(ConsumerStateError, match="closed by a callback"):
            source.poll(WAIT_S)
        assert members[0].is_closed


@pytest.mark.parametrize("what", ["unsubscribe", "poll"])
def test_what_a_callback_does_calls_no_callbacks_without_end(filled, what):
    calls = []

    def revoked(partitions: list[TopicPartition]) -> None:
        calls.append(partitions)
        assert len(calls) < 10
        if what == "poll":
            source.poll(0)
        else:
            source.unsubscribe()

    with consumer(filled) as source:
        source.subscribe(["t"], on_revoked=revoked)
        assert source.poll(WAIT_S)
        source.subscribe(["t", "u"], on_revoked=revoked)
        source.poll(0.5)
        assert 1 <= len(calls) <= 2
        assert bool(source.assignment()) == (what == "poll")
