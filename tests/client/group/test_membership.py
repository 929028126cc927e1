"""A member of a group, under either protocol: what the two share."""

from __future__ import annotations

import gc
import logging
import time

import pytest

from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.errors import CommitFailedError, ErrorCode
from tests.client.group.members import (
    EVERYTHING,
    TestMember,
    poll_until,
    rejoin_needed,
    settle,
    threads,
)
from tests.client.support import fill, settings

CLASSIC = {"partition_assignment_strategy": "range"}
COOPERATIVE = {"partition_assignment_strategy": "cooperative-sticky"}
CONSUMER = {"group_protocol": "consumer"}
BOTH_PROTOCOLS = pytest.mark.parametrize("config", [CLASSIC, CONSUMER], ids=["classic", "consumer"])


@pytest.fixture
def fake(fake_cluster):
    fake_cluster.create_topic("t", partitions=4)
    return fake_cluster


def has_sent_leave(fake, config) -> bool:
    if config is CONSUMER:
        return fake.requests_of("ConsumerGroupHeartbeat")[-1].message.member_epoch == -1
    return bool(fake.requests_of("LeaveGroup"))


@BOTH_PROTOCOLS
def test_the_first_poll_sends_the_first_request(fake, config):
    with TestMember(fake, **config) as one:
        with pytest.raises(CommitFailedError):
            one.commit({"t-0": 1})
    assert fake.requests == []


@BOTH_PROTOCOLS
def test_polls_without_time_make_progress(fake, config):
    with TestMember(fake, **config) as one:
        polls = 0

        def done() -> bool:
            nonlocal polls
            polls += 1
            return one.owned == EVERYTHING

        poll_until(done, one, ms=0)
    assert polls > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky", "cooperative-sticky", "kip-848"])
def test_members_come_and_go(fake, name):
    config = CONSUMER if name == "kip-848" else {"partition_assignment_strategy": name}
    with TestMember(fake, **config) as first:
        settle(first)
        with TestMember(fake, **config) as second:
            settle(first, second)
            with TestMember(fake, **config) as third:
                settle(first, second, third)
            settle(first, second)
        settle(first)
        if config is not CONSUMER:  # the fake cluster names members of classic groups only
            assert fake.group_members("g") == [first.member.metadata.member_id]
    assert {name for name, _ in first.calls} == {"revoke", "assign"}


@BOTH_PROTOCOLS
def test_the_coordinator_dies(fake, config):
    heartbeat = "ConsumerGroupHeartbeat" if config is CONSUMER else "Heartbeat"
    with TestMember(fake, **config) as one:
        settle(one)
        fake.broker_down(fake.coordinator("g"))
        seen = len(fake.requests_of(heartbeat))
        fake.wait_for_requests(heartbeat, seen + 3)
        one.commit({"t-0": 3})
        settle(one)
        assert one.calls == [("assign", EVERYTHING)]


@BOTH_PROTOCOLS
def test_the_session_expires(fake, config):
    with TestMember(fake, **config) as first, TestMember(fake, **config) as second:
        settle(first)
        settle(first, second)
        owned, removed = second.owned, second.member.metadata.member_id
        second.hooks.calls.clear()
        fake.remove_member("g", removed)
        poll_until(lambda: second.hooks.calls, first, second)
        assert second.calls[0] == ("lost", owned)
        settle(first, second)


@pytest.mark.parametrize("config", [COOPERATIVE, CONSUMER], ids=["classic", "consumer"])
def test_a_member_leaves_after_max_poll_interval_and_the_next_poll_rejoins(fake, caplog, config):
    caplog.set_level(logging.WARNING)
    with TestMember(fake, max_poll_interval_ms=200, **config) as one:
        settle(one)
        poll_until(lambda: has_sent_leave(fake, config), ms=0)
        assert rejoin_needed(one.member)
        with pytest.raises(CommitFailedError, match=r"max\.poll\.interval\.ms.*max\.poll\.records"):
            one.commit({"t-0": 1})
        settle(one)
        assert one.calls == [("assign", EVERYTHING), ("lost", EVERYTHING), ("assign", EVERYTHING)]
    (line,) = [row.getMessage() for row in caplog.records if "max.poll" in row.getMessage()]
    assert "group g: no poll for 200 ms (max.poll.interval.ms)" in line
    assert "max.poll.records" in line


@BOTH_PROTOCOLS
def test_close_with_no_broker_up(fake, config):
    one = TestMember(fake, **config)
    settle(one)
    for broker in fake.broker_ids:
        fake.broker_down(broker)
    one.close()
    one.close()
    one.poll()


@pytest.mark.slow
@BOTH_PROTOCOLS
def test_a_member_that_was_dropped_without_close_leaves(fake, config):
    one = TestMember(fake, **config)
    settle(one)
    assert threads()
    del one
    until_s = time.monotonic() + 120
    while threads() or fake.group_members("g"):
        gc.collect()  # once is not enough: its thread may hold it just then, for a heartbeat
        assert time.monotonic() < until_s
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("release", "level", "config", "chosen", "reason"),
    [
        ("4.4", 1, {}, "consumer", "has KIP-848"),
        ("4.0", 0, {}, "classic", "does not have KIP-848"),
        ("3.9", 0, {}, "classic", "does not have KIP-848"),
        ("4.4", 1, {"session_timeout_ms": 9_000}, "classic", "session.timeout.ms is set"),
    ],
)
def test_auto_chooses_the_protocol_that_the_brokers_have(
    fake_cluster_factory, caplog, release, level, config, chosen, reason
):
    fake = fake_cluster_factory(1, kafka_version=release)
    if level:
        fake.state.cluster_wide.features["group.version"] = level
    fake.create_topic("t")
    fill(fake, "t", 3)
    caplog.set_level(logging.INFO, "sparkkafka")
    given = {"group_id": "g", "group_protocol": "auto", "auto_offset_reset": "earliest", **config}
    with Consumer(settings(fake, **given)) as source:
        source.subscribe(["t"])
        seen = []
        end_s = time.monotonic() + 30
        while len(seen) < 3:
            assert time.monotonic() < end_s
            seen += source.poll(0.2)
        source.commit()
    assert fake.committed("g") == {("t", 0): 3}
    apis = {request.api for request in fake.requests}
    assert ("ConsumerGroupHeartbeat" in apis, "JoinGroup" in apis) == (
        chosen == "consumer",
        chosen == "classic",
    )
    assert f"group.protocol=auto chose {chosen}" in caplog.text
    assert reason in caplog.text


def test_auto_waits_for_a_coordinator(fake, caplog):
    """Until one answers neither protocol is chosen, and poll returns nothing."""
    fake.fault(ErrorCode.COORDINATOR_NOT_AVAILABLE, api="FindCoordinator", times=2)
    caplog.set_level(logging.INFO, "sparkkafka")
    with Consumer(settings(fake, group_id="g", group_protocol="auto")) as source:
        source.subscribe(["t"])
        end_s = time.monotonic() + 30
        while not source.assignment():
            assert time.monotonic() < end_s
            source.poll(0.2)
    assert "its coordinator is not known yet" in caplog.text
    assert "group.protocol=auto chose classic" in caplog.text
