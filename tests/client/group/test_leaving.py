"""Consumers that leave their group, or want something else, inside a callback of a rebalance; and
those that leave while no broker answers."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from sparkkafka.client import share as share_module
from sparkkafka.client.consumer import consumer as consumer_module
from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.client.group.classic_membership import Phase
from sparkkafka.client.share import ShareConsumer
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import BrokerError, ConsumerStateError, ErrorCode
from sparkkafka.testing.fake.faults import Delay
from tests.client.group.members import EVERYTHING, TestMember, poll_until, settle
from tests.client.support import settings
from tests.support.waiting import finish, wait_until

WAIT_S = 10.0

P = [TopicPartition("t", number) for number in range(4)]

CLASSIC = {"heartbeat_interval_ms": 50, "session_timeout_ms": 10_000}
KINDS: dict[str, dict[str, Any]] = {
    "eager": CLASSIC | {"partition_assignment_strategy": "range"},
    "cooperative": CLASSIC | {"partition_assignment_strategy": "cooperative-sticky"},
    "brokers": {"group_protocol": "consumer"},
}
ALL_KINDS = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))


@pytest.fixture
def fake(fake_cluster):
    fake_cluster.create_topic("t", partitions=4)
    fake_cluster.create_topic("u", partitions=1)
    return fake_cluster


@contextmanager
def consumer(fake: Any, kind: dict[str, Any]) -> Iterator[Consumer]:
    given = {"group_id": "g", "auto_offset_reset": "earliest"}
    with Consumer(settings(fake, **(given | kind))) as source:
        yield source


def until(condition: Callable[[], bool], *sources: Consumer) -> None:
    """All poll in turn until the condition holds; who has left cannot."""
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s
        for source in sources:
            with suppress(ConsumerStateError):
                source.poll(0.02)


@ALL_KINDS
@pytest.mark.parametrize("how", ["unsubscribe", "close"])
def test_who_leaves_in_on_revoked_owns_nothing_and_is_not_notified(fake, kind, how):
    calls: list[tuple[str, list[TopicPartition]]] = []
    with consumer(fake, kind) as first, consumer(fake, kind) as second:

        def revoked(partitions: list[TopicPartition]) -> None:
            calls.append(("revoked", partitions))
            getattr(first, how)()

        first.subscribe(
            ["t"],
            on_assigned=lambda partitions: calls.append(("assigned", partitions)),
            on_revoked=revoked,
        )
        until(lambda: calls == [("assigned", P)], first)
        second.subscribe(["t"])
        until(lambda: second.assignment() == frozenset(P), second, first)
        with pytest.raises(ConsumerStateError):
            first.poll(0)
        if how == "unsubscribe":
            assert first.assignment() == frozenset()
            assert first.subscription() == frozenset()
        else:
            assert first._subscription.partitions == frozenset()
    assert {name for name, _ in calls[1:]} == {"revoked"}
    assert sorted(tp for _, partitions in calls[1:] for tp in partitions) == P  # each once


@ALL_KINDS
def test_who_leaves_in_on_assigned_owns_nothing(fake, kind):
    calls: list[str] = []
    with consumer(fake, kind) as one:

        def assigned(_: list[TopicPartition]) -> None:
            calls.append("assigned")
            one.unsubscribe()

        one.subscribe(["t"], on_assigned=assigned, on_revoked=lambda _: calls.append("revoked"))
        until(lambda: bool(calls), one)
        assert calls == ["assigned", "revoked"]
        assert one.assignment() == frozenset()
        with pytest.raises(ConsumerStateError):
            one.poll(0)
    assert fake.group_members("g") == []


@ALL_KINDS
def test_who_leaves_in_on_lost_is_not_notified_again_and_does_not_join(fake, kind):
    calls: list[str] = []
    with consumer(fake, kind) as one:

        def lost(_: list[TopicPartition]) -> None:
            calls.append("lost")
            one.unsubscribe()

        one.subscribe(["t"], on_revoked=lambda _: calls.append("revoked"), on_lost=lost)
        until(lambda: one.assignment() == frozenset(P), one)
        fake.remove_member("g", one.group_metadata().member_id)
        until(lambda: bool(calls), one)
        assert one.assignment() == frozenset()
    assert calls == ["lost"]
    assert fake.group_members("g") == []


@ALL_KINDS
@pytest.mark.parametrize("how", ["unsubscribe", "close"])
def test_who_leaves_after_the_group_removed_it_has_lost_its_partitions(fake, kind, how):
    calls: list[tuple[str, list[TopicPartition]]] = []
    with consumer(fake, kind) as one:
        one.subscribe(
            ["t"],
            on_revoked=lambda partitions: calls.append(("revoked", partitions)),
            on_lost=lambda partitions: calls.append(("lost", partitions)),
        )
        until(lambda: one.assignment() == frozenset(P), one)
        fake.remove_member("g", one.group_metadata().member_id)
        thread = one._coordinator._member._thread
        wait_until(lambda: thread.has_lost_membership)
        getattr(one, how)()
    assert calls == [("lost", P)]


def test_who_closes_before_all_have_joined_commits(fake):
    """A rebalance takes as long as the slowest member needs until its next poll."""
    kind = KINDS["cooperative"]
    calls: list[str] = []
    with TestMember(fake, **kind) as slow, TestMember(fake, **kind) as new:
        with consumer(fake, kind) as one:
            one.subscribe(
                ["t"],
                on_revoked=lambda _: calls.append("revoked"),
                on_lost=lambda _: calls.append("lost"),
            )
            until(lambda: one.assignment() == frozenset(P), one)
            poll_until(lambda: [one.poll(0), slow.owned] and len(one.assignment()) == 2, slow)
            calls.clear()
            owned = sorted(one.assignment())
            for tp in owned:
                one.seek(tp, 5)
            thread = one._coordinator._member._thread
            poll_until(lambda: [one.poll(0)] and thread.phase is Phase.JOINING, new)
        assert calls == ["revoked"]
        assert {tp: fake.committed("g")[tp] for tp in owned} == dict.fromkeys(owned, 5)


@ALL_KINDS
def test_what_a_callback_assigns_after_it_left_stays(fake, kind):
    with consumer(fake, kind) as first, consumer(fake, kind) as second:
        calls: list[list[TopicPartition]] = []

        def revoked(partitions: list[TopicPartition]) -> None:
            calls.append(partitions)
            if len(calls) == 1:  # not while it leaves
                first.unsubscribe()
                first.assign(P)

        first.subscribe(["t"], on_revoked=revoked)
        until(lambda: first.assignment() == frozenset(P), first)
        second.subscribe(["t"])
        until(lambda: second.assignment() == frozenset(P), second, first)
        assert first.assignment() == frozenset(P)


@ALL_KINDS
def test_a_callback_that_subscribes_anew_is_a_new_member(fake, kind):
    assigned: list[list[TopicPartition]] = []
    with consumer(fake, kind) as first, consumer(fake, kind) as second:

        def revoked(_: list[TopicPartition]) -> None:
            first.unsubscribe()
            first.subscribe(["u"], on_assigned=assigned.append)

        first.subscribe(["t"], on_revoked=revoked)
        until(lambda: first.assignment() == frozenset(P), first)
        second.subscribe(["t"])
        u = frozenset({TopicPartition("u", 0)})
        until(lambda: (first.assignment(), second.assignment()) == (u, frozenset(P)), second, first)
    assert [row for row in assigned if row] == [sorted(u)]


def test_an_eager_member_joins_with_what_the_callback_subscribes_to(fake):
    kind = KINDS["eager"] | {"heartbeat_interval_ms": 40}
    with TestMember(fake, **kind) as first, TestMember(fake, **kind) as second:
        settle(first)
        first.hooks.on_revoke = lambda _: first.member.subscribe(frozenset({"u"}))
        poll_until(lambda: first.owned == "u-0" and second.owned == EVERYTHING, first, second)
        new = [partitions for name, partitions in first.calls if name == "assign"]
    assert [row for row in new if row] == [EVERYTHING, "u-0"]  # nothing of t in between


@ALL_KINDS
def test_a_callback_that_fails_while_unsubscribing_keeps_nothing(fake, kind):
    def fail(_: list[TopicPartition]) -> None:
        raise ZeroDivisionError

    with consumer(fake, kind) as one:
        one.subscribe(["t"], on_revoked=fail)
        until(lambda: one.assignment() == frozenset(P), one)
        with pytest.raises(ZeroDivisionError):
            one.unsubscribe()
        assert one.assignment() == one.subscription() == frozenset()
        one.assign(P)  # it may do so: the subscription is over


@pytest.mark.parametrize(
    "kind", [KINDS["cooperative"], KINDS["brokers"]], ids=["classic", "brokers"]
)
def test_the_error_of_a_hook_that_closes_is_raised(fake, kind):
    def fail(_: frozenset[TopicPartition]) -> None:
        first.close()
        raise RuntimeError("the user's own")

    with TestMember(fake, **kind) as first, TestMember(fake, **kind) as second:
        settle(first)
        first.hooks.on_revoke = fail
        with pytest.raises(RuntimeError, match="the user's own"):
            poll_until(lambda: False, first, second)
        assert first.owned == ""
        assert [name for name, _ in first.calls] == ["assign", "revoke"]


@pytest.mark.parametrize(
    "kind", [KINDS["cooperative"], KINDS["brokers"]], ids=["classic", "brokers"]
)
@pytest.mark.parametrize("how", ["raise", "close"])
def test_what_a_hook_does_about_lost_partitions_hides_no_refusal(fake, kind, how):
    def lost(_: frozenset[TopicPartition]) -> None:
        if how == "raise":
            raise RuntimeError("the user's own")
        one.close()

    api = "ConsumerGroupHeartbeat" if "group_protocol" in kind else "Heartbeat"
    with TestMember(fake, group_instance_id="i", **kind) as one:
        settle(one)
        one.hooks.on_lost = lost
        fake.fault(ErrorCode.FENCED_INSTANCE_ID, api=api)
        if how == "raise":
            with pytest.raises(RuntimeError, match="the user's own"):
                poll_until(lambda: False, one)
        with pytest.raises(BrokerError, match="FENCED_INSTANCE_ID"):
            poll_until(lambda: False, one)


# --- no broker answers -----------------------------------------------------------------------

SLOW_REQUESTS = {"request_timeout_ms": 600_000, "default_api_timeout_ms": 600_000}

ALL_CLASSES = pytest.mark.parametrize(
    ("make", "kind"),
    [(Consumer, CLASSIC), (Consumer, KINDS["brokers"]), (ShareConsumer, {})],
    ids=["classic", "brokers", "share"],
)


@pytest.fixture
def no_thread_stays() -> Iterator[None]:
    """What goes on in the background ends with the broker, before the next test."""
    yield
    wait_until(lambda: all("kafka-group" not in row.name for row in threading.enumerate()))


@ALL_CLASSES
@pytest.mark.usefixtures("no_thread_stays")
def test_who_has_not_joined_does_not_wait_to_leave(make, kind):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        source = make(settings(host, group_id="g", **kind, **SLOW_REQUESTS))
        source.subscribe(["t"])
        assert len(source.poll(0.2)) == 0
        finish(lambda: source.close(600))


@ALL_CLASSES
def test_after_an_exception_nobody_waits_long_for_silent_brokers(
    no_thread_stays, fake_cluster_factory, make, kind, monkeypatch
):
    fake = fake_cluster_factory(1, kafka_version="4.2")
    fake.create_topic("t", partitions=1)
    for module in (consumer_module, share_module):
        monkeypatch.setattr(module, "CLOSE_AFTER_ERROR_S", 0.5)
    given = {"auto_offset_reset": "earliest"} if make is Consumer else {}

    def interrupted() -> None:
        with make(settings(fake, group_id="g", **kind, **SLOW_REQUESTS, **given)) as source:
            source.subscribe(["t"])
            while not source.assignment():
                source.poll(0.05)
            fake.fault(Delay(600_000, before=True), times=None)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish(interrupted)
    assert fake.requests


@contextmanager
def ctrl_c_after(delay_s: float) -> Iterator[None]:
    """Press Ctrl-C while the block waits, which it must then leave soon."""
    timer = threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    started_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        yield
    assert time.monotonic() - started_s < WAIT_S


@pytest.mark.parametrize("how", ["unsubscribe", "close"])
def test_ctrl_c_ends_the_wait_for_silent_brokers(no_thread_stays, fake, how):
    given = {"group_id": "g", "default_api_timeout_ms": 30_000}
    source = Consumer(settings(fake, **given, **CLASSIC))
    source.subscribe(["t"])
    until(source.assignment, source)
    source.position(P[0])  # there is something to commit
    fake.fault(Delay(600_000, before=True), times=None)
    with ctrl_c_after(0.3):
        getattr(source, how)()
    source.close(0)


def test_ctrl_c_while_leaving_ends_the_thread_of_who_has_not_joined():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        source = Consumer(settings(host, group_id="g", **CLASSIC, **SLOW_REQUESTS))
        source.subscribe(["t"])
        assert len(source.poll(0.2)) == 0
        with ctrl_c_after(0.3):
            source.close(600)
        wait_until(lambda: all("kafka-group" not in row.name for row in threading.enumerate()))
