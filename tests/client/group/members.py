"""Members of groups for tests: driven by hand, with hooks that remember."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.consumer.consumer_coordinator import make_member
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.classic_membership import ClassicMember, Phase
from sparkkafka.client.group.consumer_group_membership import ConsumerGroupMember
from sparkkafka.client.metrics import FetchMetrics
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.client_settings import parse_consumer_settings
from tests.client.support import settings

WAIT_S = 10.0

EVERYTHING = "t-0 t-1 t-2 t-3"
"""All of the topic that most tests have."""


class Offset(NamedTuple):
    """What a consumer commits."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


class RememberingHooks:
    """`calls` are ("revoke" | "lost" | "assign", partitions in order); an assignment's are the new
    ones. `on_revoke` and the others are called with the partitions."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[TopicPartition]]] = []
        self.on_revoke: Callable[[frozenset[TopicPartition]], Any] = lambda _: None
        self.on_lost: Callable[[frozenset[TopicPartition]], Any] = lambda _: None
        self.on_assign: Callable[[frozenset[TopicPartition]], Any] = lambda _: None
        self.all_owned: frozenset[TopicPartition] = frozenset()

    def before_revoke(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("revoke", sorted(partitions)))
        self.on_revoke(partitions)

    def after_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("lost", sorted(partitions)))
        self.on_lost(partitions)

    def after_assign(
        self, new: frozenset[TopicPartition], all_owned: frozenset[TopicPartition]
    ) -> None:
        self.calls.append(("assign", sorted(new)))
        self.all_owned = all_owned
        self.on_assign(new)


class TestMember:
    """A member with its hooks; `owned` is "t-0 t-1"."""

    __test__ = False
    call_ms = 3_000
    """How long `close` and `commit` may take."""

    def __init__(self, bootstrap: Any, topics: Iterable[str] = ("t",), **config: Any) -> None:
        given = {"group_id": "g"} | config
        if given.get("group_protocol") != "consumer":
            given = {"heartbeat_interval_ms": 40, "session_timeout_ms": 10_000} | given
        self.hooks = RememberingHooks()
        options = parse_consumer_settings(settings(bootstrap, **given))
        self.cluster = Cluster(options.client)
        self._changed = threading.Event()
        self.member = make_member(
            options, self.hooks, self.cluster, self._changed.set, FetchMetrics()
        )
        self.member.subscribe(frozenset(topics))

    def __enter__(self) -> TestMember:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self, *, leave: bool = True) -> None:
        if not leave and self.thread is not None:  # as a process that dies
            self.thread.begin_leave = lambda reason: None
        self.member.close(Deadline(self.call_ms))
        self.cluster.close()

    def poll(self, ms: float = 3_000) -> None:
        """Poll, and again after each change, until nothing is to be done or the time is over."""
        deadline = Deadline(ms)
        while True:
            self._changed.clear()
            self.member.poll()
            if deadline.expired or not rejoin_needed(self.member):
                return
            self._changed.wait(deadline.remaining_s())

    @property
    def owned(self) -> str:
        return text(self.member.assignment)

    @property
    def calls(self) -> list[tuple[str, str]]:
        """The calls of hooks since the last access."""
        calls, self.hooks.calls = self.hooks.calls, []
        return [(name, text(partitions)) for name, partitions in calls]

    def commit(self, offsets: dict[str, int], ms: float | None = None) -> None:
        """{"t-0": 5}"""
        self.commit_offsets(
            {partition(name): Offset(offset) for name, offset in offsets.items()}, ms
        )

    def commit_offsets(
        self, offsets: dict[TopicPartition, Offset], ms: float | None = None
    ) -> None:
        cluster = self.member._cluster  # type: ignore[attr-defined]
        self.member.committer({})(cluster, offsets, Deadline(ms or self.call_ms))

    @property
    def thread(self) -> Any:
        return self.member._thread  # type: ignore[attr-defined]


def threads() -> set[str]:
    """The names of members' threads that are running."""
    return {row.name for row in threading.enumerate() if row.name.startswith("kafka-group-")}


def text(partitions: Iterable[TopicPartition]) -> str:
    return " ".join(map(str, sorted(partitions)))


def partition(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


def poll_until(
    condition: Callable[[], Any], *members: TestMember, ms: float = 10, timeout_s: float = WAIT_S
) -> None:
    """All poll in turn until the condition holds."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, [
            (row.owned, row.thread and getattr(row.thread, "phase", "")) for row in members
        ]
        for row in members:
            row.poll(ms)
        if ms == 0:
            time.sleep(0.002)


def rejoin_needed(member: ClassicMember | ConsumerGroupMember) -> bool:
    """Whether the next `poll` of a member has something to do with the group."""
    if member._topics is None or member._is_closed:
        return False
    if member._thread is None or member._topics != member._joined_topics:
        return True
    with member._thread.lock:
        thread: Any = member._thread
        if thread.has_lost_membership or thread.failure is not None:
            return True
        if isinstance(member, ConsumerGroupMember):
            return thread.is_joining or not thread.is_in_group or thread.target is not None
        is_over = thread.phase is Phase.JOINED and thread.completed is None
        return not is_over or thread.rejoin_request is not None


def settle(*members: TestMember, count: int = 4, timeout_s: float = WAIT_S) -> None:
    """All poll until together they own `count` partitions, evenly, each once."""
    poll_until(lambda: is_settled(members, count), *members, timeout_s=timeout_s)


def is_settled(members: Iterable[TestMember], count: int) -> bool:
    shares = [row.member.assignment for row in members]
    sizes = [len(share) for share in shares]
    once = len(frozenset().union(*shares)) == sum(sizes) == count
    busy = any(rejoin_needed(row.member) for row in members)
    return once and max(sizes) - min(sizes) <= 1 and not busy
