"""Members of groups on a real broker: ours among themselves and with other clients.

After each change each partition has one owner, and all have as many as they should.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import confluent_kafka
import kafka
import pytest
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import BrokerError, CommitFailedError
from tests.client.group.members import Offset, TestMember, rejoin_needed
from tests.client.support import committed_offsets
from tests.real.peers import Record, confluent_write
from tests.support.options import parse_client_options
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.real

PARTITIONS = 6
SESSION = {"session.timeout.ms": 20_000, "heartbeat.interval.ms": 200}
"""A busy machine must not make the broker miss a member that is alive."""
POLL_MS = 600_000
QUICK = {name.replace(".", "_"): value for name, value in SESSION.items()}
KAFKA_PYTHON = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}


class Peer(Protocol):
    """A member of a group, whoever's."""

    def poll_once(self) -> None: ...
    def owns(self) -> set[int]: ...
    def close(self) -> None: ...


class Ours(TestMember):
    call_ms = 30_000

    def poll_once(self) -> None:
        self.poll(20)

    def owns(self) -> set[int]:
        return {tp.partition for tp in self.member.assignment}

    @property
    def is_leader(self) -> bool:
        return self.thread._topic_watch is not None


class Confluent:
    def __init__(self, servers: str, group: str, topic: str, **config: Any) -> None:
        given = {name.replace("_", "."): value for name, value in config.items()}
        if given.get("group.protocol") != "consumer":
            given = SESSION | given
        self._consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False} | given
        )
        self._consumer.subscribe([topic])

    def poll_once(self) -> None:
        self._consumer.poll(0.02)

    def owns(self) -> set[int]:
        return {tp.partition for tp in self._consumer.assignment()}

    def close(self) -> None:
        self._consumer.close()


class KafkaPython(kafka.ConsumerRebalanceListener):
    """Polls on a thread of its own, for longer than any test takes: when a poll ends while it joins
    because of new metadata, it never reads the response (need_rejoin is False by then), and sends
    no heartbeats."""

    def __init__(self, servers: str, group: str, topic: str, strategy: str) -> None:
        self._servers, self._topic = servers, topic
        self._owned: frozenset[int] = frozenset()
        self._stopped = threading.Event()
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=servers,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[KAFKA_PYTHON[strategy]],
            session_timeout_ms=SESSION["session.timeout.ms"],
            heartbeat_interval_ms=SESSION["heartbeat.interval.ms"],
        )
        self._consumer.subscribe([topic], listener=self)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._consumer.poll(timeout_ms=POLL_MS)
        self._consumer.close()

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._owned = frozenset(tp.partition for tp in assigned)

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._owned = frozenset()

    def poll_once(self) -> None:
        time.sleep(0.02)

    def owns(self) -> set[int]:
        return set(self._owned)

    def close(self) -> None:
        if not self._stopped.is_set():
            self._stopped.set()
            for number in self._owned:  # which ends the poll
                confluent_write(self._servers, self._topic, [Record(None, b"end")], number)
        self._thread.join(WAIT_S)


class Group:
    """A group of its own with a topic of its own."""

    def __init__(self, servers: str, topic: str, stack: ExitStack) -> None:
        self.servers, self.topic, self._stack = servers, topic, stack
        self.name = f"members-{uuid.uuid4().hex[:12]}"

    def ours(self, **config: Any) -> Ours:
        quick = {} if config.get("group_protocol") == "consumer" else QUICK
        slow = {"request_timeout_ms": 30_000, "default_api_timeout_ms": 60_000}
        return self._kept(
            Ours(self.servers, [self.topic], group_id=self.name, **slow | quick | config)
        )

    def confluent(self, **config: Any) -> Confluent:
        return self._kept(Confluent(self.servers, self.name, self.topic, **config))

    def kafka_python(self, strategy: str) -> KafkaPython:
        return self._kept(KafkaPython(self.servers, self.name, self.topic, strategy))

    def _kept(self, member: Any) -> Any:
        self._stack.callback(member.close)
        return member


@pytest.fixture
def group(kafka_cluster: Any, new_topic: Callable[..., str]) -> Iterator[Group]:
    with ExitStack() as stack:
        yield Group(kafka_cluster.bootstrap_servers, new_topic(partitions=PARTITIONS), stack)


def settle(*members: Peer) -> None:
    """All poll until each partition has one owner, all have as many, and it stays so."""
    until = time.monotonic() + WAIT_S
    good = 0
    while good < 3:
        for member in members:
            member.poll_once()
        shares = [member.owns() for member in members]
        once = sorted(number for share in shares for number in share) == list(range(PARTITIONS))
        even = {len(share) for share in shares} == {PARTITIONS // len(members)}
        ours = [row.member for row in members if isinstance(row, Ours)]
        busy = any(rejoin_needed(row) for row in ours)
        good = good + 1 if once and even and not busy else 0
        assert time.monotonic() < until, shares


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_ours_come_and_go(group, strategy):
    config = {"partition_assignment_strategy": strategy}
    first = group.ours(**config)
    settle(first)
    second = group.ours(**config)
    settle(first, second)
    third = group.ours(**config)
    settle(first, second, third)
    first.close()  # the leader
    settle(second, third)
    second.close()
    settle(third)
    revoked = [row for row in third.calls if row[0] == "revoke"]
    if strategy == "cooperative-sticky":
        assert revoked == []  # it only ever got more


# Either leads with the strategy that has data of its own; of the others ours does.
@pytest.mark.parametrize(
    ("strategy", "ours_first"),
    [("cooperative-sticky", True), ("cooperative-sticky", False), ("range", True)],
)
def test_ours_with_confluent_kafka(group, strategy, ours_first):
    config = {"partition_assignment_strategy": strategy}
    _mixed(
        lambda: group.ours(**config),
        lambda: group.confluent(**config),
        ours_first=ours_first,
    )


@pytest.mark.parametrize(
    ("strategy", "ours_first"), [("sticky", True), ("sticky", False), ("roundrobin", True)]
)
def test_ours_with_kafka_python(group, strategy, ours_first):
    _mixed(
        lambda: group.ours(partition_assignment_strategy=strategy),
        lambda: group.kafka_python(strategy),
        ours_first=ours_first,
    )


def _mixed(
    make_ours: Callable[[], Ours], make_theirs: Callable[[], Peer], *, ours_first: bool
) -> None:
    """The first member is the leader until it leaves."""
    first = make_ours() if ours_first else make_theirs()
    settle(first)
    second = make_theirs() if ours_first else make_ours()
    settle(first, second)
    third = make_ours()
    settle(first, second, third)
    for member in (first, second, third):
        if isinstance(member, Ours):
            assert member.is_leader == (member is first)
            assert all(name != "lost" for name, _ in member.calls)
    third.close()
    settle(first, second)
    first.close()
    settle(second)


def test_a_static_member_restarts_without_a_rebalance(group):
    config = {"partition_assignment_strategy": "cooperative-sticky"}
    first = group.ours(**config)
    settle(first)
    second = group.ours(group_instance_id="two", **config)
    settle(first, second)
    owned, generation = second.owns(), first.member.metadata.generation_id
    first.hooks.calls.clear()
    second.close()
    again = group.ours(group_instance_id="two", **config)
    settle(first, again)
    assert again.owns() == owned
    assert first.member.metadata.generation_id == generation
    assert first.calls == []


def test_a_static_leader_restarts_without_a_rebalance(group):
    first = group.ours(group_instance_id="one")
    settle(first)
    second = group.ours(group_instance_id="two")
    settle(first, second)
    owned, generation = first.owns(), second.member.metadata.generation_id
    first.close()
    again = group.ours(group_instance_id="one")
    settle(again, second)
    assert again.owns() == owned
    assert again.is_leader
    assert second.member.metadata.generation_id == generation


def test_a_member_that_dies_is_missed(group):
    quick = {"session_timeout_ms": 1_000, "heartbeat_interval_ms": 100}
    first, second = group.ours(**quick), group.ours(**quick)
    settle(first, second)
    second.close(leave=False)
    settle(first)


def test_commits_of_members(group, kafka_cluster):
    first = group.ours()
    settle(first)
    first.commit({f"{group.topic}-0": 3, f"{group.topic}-5": 9})
    commit_in_first_generation = first.member.committer({})
    second = group.ours()
    settle(first, second)
    late = {TopicPartition(group.topic, 0): Offset(4)}
    with pytest.raises(CommitFailedError, match="ILLEGAL_GENERATION"):
        commit_in_first_generation(first.cluster, late, Deadline(first.call_ms))
    settle(first, second)
    options = parse_client_options({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    with Cluster(options) as cluster:
        tps = [TopicPartition(group.topic, number) for number in range(PARTITIONS)]
        assert committed_offsets(cluster, group.name, tps) == {tps[0]: 3, tps[5]: 9}


def test_refusals_have_a_message(group):
    with group.ours(session_timeout_ms=900, heartbeat_interval_ms=100) as first:
        with pytest.raises(BrokerError, match=r"session\.timeout\.ms=900 is not within"):
            first.poll(WAIT_S * 1000)
    second = group.ours(partition_assignment_strategy="range")
    settle(second)
    with group.ours(partition_assignment_strategy="roundrobin") as third:
        with pytest.raises(BrokerError, match=r"INCONSISTENT_GROUP_PROTOCOL.*roundrobin"):
            third.poll(WAIT_S * 1000)


# KIP-848


def test_brokers_assign(group):
    config = {"group_protocol": "consumer", "group_remote_assignor": "range"}
    first = group.ours(**config)
    settle(first)
    second = group.ours(**config)
    settle(first, second)
    theirs = group.confluent(**config)
    settle(first, second, theirs)
    first.commit({f"{group.topic}-{min(first.owns())}": 3})
    first.close()
    settle(second, theirs)
    theirs.close()
    settle(second)
    assert all(name != "lost" for name, _ in first.calls + second.calls)


def test_brokers_assign_to_a_static_member_that_restarts(group):
    config = {"group_protocol": "consumer", "group_instance_id": "one"}
    first, second = group.ours(**config), group.ours(group_protocol="consumer")
    settle(first, second)
    owned = first.owns()
    with group.ours(**config) as rival, pytest.raises(BrokerError, match="UNRELEASED_INSTANCE_ID"):
        rival.poll(WAIT_S * 1000)
    second.hooks.calls.clear()
    first.close()
    again = group.ours(**config)
    settle(again, second)
    assert again.owns() == owned
    assert second.calls == []


def test_an_assignor_that_the_brokers_lack(group):
    config = {"group_protocol": "consumer", "group_remote_assignor": "odd"}
    with group.ours(**config) as one:
        with pytest.raises(BrokerError, match=r"UNSUPPORTED_ASSIGNOR.*group\.remote\.assignor"):
            one.poll(WAIT_S * 1000)
