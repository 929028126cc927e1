"""A member of a classic group, alone and with others, and what can go wrong with it."""

from __future__ import annotations

import time

import pytest

from sparkkafka.client.cluster import cluster as cluster_module
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.consumer.consumer_coordinator import make_member
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.assignors import GroupAssignors
from sparkkafka.client.group.classic_membership import ClassicMember, CompletedRebalance, Phase
from sparkkafka.client.group.committed_offsets import GroupMetadata
from sparkkafka.client.metrics import FetchMetrics
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.client_settings import parse_consumer_settings
from sparkkafka.errors import BrokerError, CommitFailedError, DecodeError, ErrorCode, OptionError
from sparkkafka.protocol.constants import NO_GENERATION
from sparkkafka.protocol.messages.consumer_protocol import decode_subscription, encode_assignment
from sparkkafka.testing.fake.faults import Delay, Drop, ErrorResponse, Garbage
from tests.client.group.members import (
    EVERYTHING,
    WAIT_S,
    Offset,
    TestMember,
    partition,
    poll_until,
    rejoin_needed,
    settle,
    threads,
)
from tests.client.support import settings

EAGER = {"partition_assignment_strategy": "range"}
COOPERATIVE = {"partition_assignment_strategy": "cooperative-sticky"}
BOTH_KINDS = pytest.mark.parametrize("kind", [EAGER, COOPERATIVE], ids=["eager", "cooperative"])
APIS = ["FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat"]


@pytest.fixture
def fake(fake_cluster):
    fake_cluster.create_topic("t", partitions=4)
    return fake_cluster


def out(fake, code):
    """A fault: the group has removed the member that sends the request."""
    if code != ErrorCode.UNKNOWN_MEMBER_ID:
        return code
    return lambda request: fake.remove_member("g", request.message.member_id)


# One member


@pytest.mark.parametrize("version", ["2.1", "2.8", "3.9", "4.0"])
def test_alone_it_gets_everything_and_leaves(fake_cluster_factory, version):
    fake = fake_cluster_factory(1, kafka_version=version)
    fake.create_topic("t", partitions=4)
    with TestMember(fake) as one:
        assert one.member.metadata == GroupMetadata("g")
        assert rejoin_needed(one.member)
        one.poll()
        assert one.owned == EVERYTHING
        assert one.calls == [("assign", EVERYTHING)]
        assert not rejoin_needed(one.member)
        member_id = one.member.metadata.member_id
        assert one.member.metadata == GroupMetadata("g", 1, member_id)
        assert fake.group_members("g") == [member_id]
        one.commit({"t-1": 7})
        assert fake.committed("g") == {("t", 1): 7}
    assert fake.group_members("g") == []
    assert one.calls == []
    assert threads() == set()
    join = fake.requests_of("JoinGroup")[-1].message
    assert (join.session_timeout_ms, join.rebalance_timeout_ms) == (10_000, 300_000)
    assert [row.name for row in join.protocols] == ["range", "cooperative-sticky"]


def test_without_a_subscription_poll_does_nothing(fake):
    options = parse_consumer_settings(settings(fake, group_id="g"))
    member = make_member(options, None, Cluster(options.client), lambda: None, FetchMetrics())
    member.poll()
    assert not rejoin_needed(member)
    member.close(Deadline(0))
    assert fake.requests == []


def test_a_group_id_is_needed():
    options = parse_consumer_settings(settings("unused:1"))
    for protocol in (ClassicMember, make_member):
        with pytest.raises(OptionError, match=r"group\.id"):
            protocol(options, None, Cluster(options.client), lambda: None, FetchMetrics())


def test_the_response_that_a_poll_could_not_wait_for_is_not_lost(fake):
    fake.fault(Delay(300), api="JoinGroup", nth=2)  # the first brings the member id
    with TestMember(fake) as one:
        one.poll(50)
        assert one.owned == ""
        assert rejoin_needed(one.member)
        one.poll()
        assert one.owned == EVERYTHING
    assert len(fake.requests_of("JoinGroup")) == 2


def test_heartbeats_go_on_while_nobody_polls(fake):
    with TestMember(fake) as one:
        one.poll()
        beats = len(fake.requests_of("Heartbeat"))
        fake.wait_for_requests("Heartbeat", beats + 3)
        beat = fake.requests_of("Heartbeat")[-1].message
        assert (beat.member_id, beat.generation_id) == (one.member.metadata.member_id, 1)


def test_a_change_of_the_subscription_joins_again(fake):
    fake.create_topic("u", partitions=1)
    with TestMember(fake) as one:
        one.poll()
        one.member.subscribe(frozenset({"t", "u"}))
        assert rejoin_needed(one.member)
        one.poll()
        assert one.owned == f"{EVERYTHING} u-0"
        assert [name for name, _ in one.calls] == ["assign", "revoke", "assign"]


def test_cooperative_lets_go_of_what_it_no_longer_wants_before_it_joins(fake):
    fake.create_topic("u", partitions=1)
    with TestMember(fake, ["t", "u"], **COOPERATIVE) as one:
        one.poll()
        one.member.subscribe(frozenset({"u"}))
        one.poll()
        assert one.owned == "u-0"
        assert one.calls[1:] == [("revoke", EVERYTHING), ("assign", "")]
        owned = fake.requests_of("JoinGroup")[-1].message.protocols[0].metadata
        assert b"t" not in owned


def test_a_member_that_is_removed_while_it_revokes_does_not_claim_the_rest(fake):
    fake.create_topic("u", partitions=1)
    with TestMember(fake, ["t", "u"], **COOPERATIVE) as one:
        one.poll()

        def remove(_):
            fake.remove_member("g", one.thread.generation.member_id)
            until = time.monotonic() + WAIT_S
            while not one.thread.has_lost_membership and time.monotonic() < until:
                time.sleep(0.002)

        one.hooks.on_revoke = remove
        one.member.subscribe(frozenset({"u"}))
        one.poll()
        assert one.calls[1:] == [("revoke", EVERYTHING), ("lost", "u-0"), ("assign", "u-0")]
        joined = fake.requests_of("JoinGroup")[-1].message.protocols[0].metadata
        assert not decode_subscription(joined).owned


def test_no_topics_are_a_subscription_too(fake):
    """A pattern that nothing matches yet."""
    with TestMember(fake, []) as one:
        one.poll()
        assert one.calls == [("assign", "")]
        assert len(fake.group_members("g")) == 1


# Several


def test_eager_members_revoke_everything_first(fake):
    with TestMember(fake, **EAGER) as first, TestMember(fake, **EAGER) as second:
        settle(first)
        settle(first, second)
        assert first.calls == [
            ("assign", EVERYTHING),
            ("revoke", EVERYTHING),
            ("assign", first.owned),
        ]
        assert second.calls == [("assign", second.owned)]


def test_cooperative_members_revoke_only_what_moves(fake):
    with TestMember(fake, **COOPERATIVE) as first, TestMember(fake, **COOPERATIVE) as second:
        settle(first)
        settle(first, second)
        calls = first.calls
        assert calls[:3] == [("assign", EVERYTHING), ("revoke", second.owned), ("assign", "")]
        assert set(calls[3:]) <= {("assign", "")}
        assert [row for row in second.calls if row[1]] == [("assign", second.owned)]
        assert first.hooks.all_owned == first.member.assignment


def test_with_an_assignor_that_is_only_eager_all_are_eager(fake):
    """Java's rule, and its default list."""
    both = {"partition_assignment_strategy": "cooperative-sticky,range"}
    with TestMember(fake, **both) as first, TestMember(fake, **both) as second:
        settle(first)
        settle(first, second)
        assert ("revoke", EVERYTHING) in first.calls
        assert first.thread.generation.assignor == "cooperative-sticky"


def test_each_member_gets_what_it_subscribes_to(fake):
    fake.create_topic("u", partitions=2)
    with TestMember(fake, ["t"]) as first, TestMember(fake, ["u"]) as second:
        poll_until(lambda: (first.owned, second.owned) == (EVERYTHING, "u-0 u-1"), first, second)


@BOTH_KINDS
def test_offsets_can_be_committed_while_partitions_are_revoked(fake, kind):
    with TestMember(fake, **kind) as first, TestMember(fake, **kind) as second:
        settle(first)
        first.hooks.on_revoke = lambda tps: first.commit({str(tp): 5 for tp in tps})
        settle(first, second)
    assert {("t", tp.partition) for tp in map(partition, second.owned.split())} <= set(
        fake.committed("g")
    )


@BOTH_KINDS
def test_a_hook_that_raises_ends_the_poll_and_not_the_rebalance(fake, kind):
    def fail(_):
        raise RuntimeError("the user's own")

    with TestMember(fake, **kind) as first, TestMember(fake, **kind) as second:
        first.hooks.on_assign = fail
        with pytest.raises(RuntimeError, match="the user's own"):
            first.poll()
        assert first.owned == EVERYTHING
        first.hooks.on_assign = lambda _: None
        first.hooks.on_revoke = fail
        with pytest.raises(RuntimeError, match="the user's own"):
            settle(first, second)
        first.hooks.on_revoke = lambda _: None
        settle(first, second)


@pytest.mark.slow
def test_the_leader_sees_new_partitions(fake, monkeypatch):
    monkeypatch.setattr(cluster_module, "MIN_METADATA_AGE_MS", 50)
    with TestMember(fake, metadata_max_age_ms=0) as first, TestMember(fake) as second:
        settle(first)
        settle(first, second)
        fake.add_partitions("t", 6)
        settle(first, second, count=6)


@pytest.mark.slow
def test_a_topic_that_comes_later(fake):
    with TestMember(fake, ["t", "later"]) as one:
        settle(one)
        fake.create_topic("later", partitions=1)
        settle(one, count=5)


# Static members (KIP-345)


def test_a_static_member_comes_back_without_a_rebalance(fake):
    static = {"group_instance_id": "i-1", **EAGER}
    with TestMember(fake, **EAGER) as first:
        settle(first)
        second = TestMember(fake, **static)
        settle(first, second)
        owned = second.owned
        second.close()
        assert len(fake.group_members("g")) == 2
        generation, _ = fake.group_generation("g"), first.calls
        with TestMember(fake, **static) as again:
            again.poll()
            assert again.owned == owned
            first.poll()
            assert fake.group_generation("g") == generation
            assert first.calls == []
            assert again.member.metadata.group_instance_id == "i-1"


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2.8", "4.0"])
def test_a_static_leader_comes_back(fake_cluster_factory, version, monkeypatch):
    """From JoinGroup 9 on it is the leader again, and must not assign anew (KIP-814)."""
    monkeypatch.setattr(cluster_module, "MIN_METADATA_AGE_MS", 50)
    fake = fake_cluster_factory(1, kafka_version=version)
    fake.create_topic("t", partitions=4)
    first = TestMember(fake, group_instance_id="i-1")
    settle(first)
    with TestMember(fake, group_instance_id="i-2") as second:
        settle(first, second)
        owned = first.owned
        first.close()
        with TestMember(fake, group_instance_id="i-1", metadata_max_age_ms=0) as again:
            again.poll()
            assert again.owned == owned
            second.poll()
            if version == "4.0":  # and it watches the topics, as a leader does
                fake.add_partitions("t", 6)
                settle(again, second, count=6)


def test_two_with_one_instance_id(fake):
    with (
        TestMember(fake, group_instance_id="i-1") as first,
        TestMember(fake, group_instance_id="i-1") as second,
    ):
        first.poll()
        second.poll()
        assert second.owned == EVERYTHING
        with pytest.raises(BrokerError, match=r"FENCED_INSTANCE_ID.*group\.instance\.id.*own"):
            poll_until(lambda: False, first)
        assert first.owned == ""
        assert first.calls[1:] == [("lost", EVERYTHING)]
        # A program that polls on does not take the id back.
        for _ in range(5):
            with pytest.raises(BrokerError, match="FENCED_INSTANCE_ID"):
                first.poll()
            second.poll()
        assert second.calls == [("assign", EVERYTHING)]


def test_a_commit_that_is_fenced_does_not_fence_the_other_member(fake):
    quiet = {"group_instance_id": "i-1", "heartbeat_interval_ms": 9_000}
    with TestMember(fake, **quiet) as first, TestMember(fake, **quiet) as second:
        first.poll()
        second.poll()
        with pytest.raises(CommitFailedError, match="FENCED_INSTANCE_ID"):
            first.commit({"t-0": 1})
        with pytest.raises(BrokerError, match=r"FENCED_INSTANCE_ID.*own"):
            first.poll()
        second.commit({"t-0": 2})


def test_static_members_need_kafka_2_3(fake_cluster_factory):
    fake = fake_cluster_factory(1, kafka_version="2.1")
    with (
        TestMember(fake, group_instance_id="i") as one,
        pytest.raises(Exception, match=r"group\.instance\.id needs .*2\.3"),
    ):
        one.poll()


# Faults


@pytest.mark.slow
@pytest.mark.parametrize("drop", list(Drop))
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("nth", [1, 2])
@BOTH_KINDS
def test_a_response_is_lost(fake, api, nth, drop, kind):
    """Of two members, in whatever step."""
    with TestMember(fake, **kind) as first, TestMember(fake, **kind) as second:
        rule = fake.fault(drop, api=api, nth=nth)
        settle(first)
        settle(first, second)
        poll_until(lambda: rule.fired, first, second)
        settle(first, second)
        # A member whose response was lost joined again with the same id.
        assert len(fake.group_members("g")) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REBALANCE_IN_PROGRESS,
    ],
)
@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup", "Heartbeat"])
def test_refusals_that_pass(fake, api, code):
    rule = fake.fault(code, api=api, times=2)
    with TestMember(fake) as one:
        settle(one)
        poll_until(lambda: rule.fired == 2, one)
        settle(one)
        assert [name for name, _ in one.calls].count("lost") == 0


@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID])
@BOTH_KINDS
def test_a_heartbeat_says_that_the_member_is_out(fake, code, kind):
    with TestMember(fake, **kind) as one:
        settle(one)
        generations = []
        one.hooks.on_lost = lambda _: generations.append(one.member.metadata.generation_id)
        fake.fault(out(fake, code), api="Heartbeat")
        poll_until(lambda: len(one.hooks.calls) == 3, one)
        assert one.calls == [("assign", EVERYTHING), ("lost", EVERYTHING), ("assign", EVERYTHING)]
        assert generations == [NO_GENERATION]


@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID])
@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup"])
def test_out_while_joining(fake, api, code):
    """What a cooperative member had is lost, and it joins with nothing."""
    with TestMember(fake, **COOPERATIVE) as one:
        settle(one)
        fake.fault(out(fake, code), api=api)
        one.member.subscribe(frozenset({"t", "none"}))
        poll_until(lambda: len(one.hooks.calls) == 3, one)
        assert one.calls == [("assign", EVERYTHING), ("lost", EVERYTHING), ("assign", EVERYTHING)]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, r"range.*partition\.assignment\.strategy"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "grant READ"),
        (ErrorCode.INVALID_SESSION_TIMEOUT, r"session\.timeout\.ms=10000.*group\.max\.session"),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, r"group\.max\.size"),
        (ErrorCode.INVALID_GROUP_ID, r"group\.id"),
        (ErrorCode.FENCED_INSTANCE_ID, r"group\.instance\.id"),
        (ErrorCode.UNKNOWN_SERVER_ERROR, "its own log"),
    ],
)
def test_final_refusals_say_what_to_do(fake, code, message):
    rule = fake.fault(code, api="JoinGroup", times=None)
    with TestMember(fake) as one:
        with pytest.raises(
            BrokerError, match=rf"{code.name} from JoinGroup of group 'g'.*{message}"
        ):
            one.poll()
        assert rule.fired == 1  # no storm
        fake.clear_faults()
        one.poll()
        assert one.owned == EVERYTHING


def test_a_program_that_polls_on_after_a_refusal_floods_no_coordinator(fake):
    rule = fake.fault(ErrorCode.GROUP_AUTHORIZATION_FAILED, api="JoinGroup", times=None)
    with TestMember(fake, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000) as one:
        with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
            one.poll()
        for _ in range(3):
            one.poll(100)
        assert rule.fired == 1


def test_a_group_that_this_user_may_not_find(fake):
    rule = fake.fault(
        ErrorResponse(ErrorCode.GROUP_AUTHORIZATION_FAILED), api="FindCoordinator", times=None
    )
    with TestMember(fake) as one, pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        one.poll()
    assert rule.fired <= 2


def test_members_with_nothing_in_common(fake):
    with (
        TestMember(fake, **EAGER) as first,
        TestMember(fake, partition_assignment_strategy="roundrobin") as second,
    ):
        settle(first)
        with pytest.raises(BrokerError, match=r"INCONSISTENT_GROUP_PROTOCOL.*\(roundrobin\)"):
            second.poll()


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup", "Heartbeat"])
def test_a_response_that_is_none(fake, api):
    fake.fault(Garbage(b"HTTP/1.1 400 Bad Request"), api=api)
    with TestMember(fake) as one:
        with pytest.raises(DecodeError, match="HTTP"):
            poll_until(lambda: False, one)
        settle(one)


def test_a_member_that_sends_no_subscription(fake):
    def spoil(request):
        for row in request.message.protocols:
            row.metadata = b"\xff"

    fake.fault(spoil, api="JoinGroup", times=None)
    with TestMember(fake) as one, pytest.raises(DecodeError, match=r"subscription of .* member"):
        one.poll()


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit"])
def test_the_coordinator_moves(fake, api):
    with TestMember(fake, **COOPERATIVE) as first, TestMember(fake, **COOPERATIVE) as second:
        settle(first)
        to = (fake.coordinator("g") + 1) % 3
        rule = fake.fault(lambda _: fake.move_coordinator("g", to), api=api)
        settle(first, second)
        first.commit({first.owned.split()[0]: 3})
        poll_until(lambda: rule.fired, first, second)
        settle(first, second)
        fake.clear_requests()
        fake.wait_for_requests("Heartbeat", 2, broker=to)
        assert not any(name == "lost" for name, _ in first.calls + second.calls)


def test_the_brokers_are_away_for_a_while(fake):
    with TestMember(fake) as one:
        for broker in fake.broker_ids:
            fake.broker_down(broker)
        one.poll(100)  # no error: as Java's
        for broker in fake.broker_ids:
            fake.broker_up(broker)
        settle(one)


def test_a_static_member_that_polls_too_slowly_says_nothing(fake):
    with TestMember(fake, group_instance_id="i", max_poll_interval_ms=200) as one:
        settle(one)
        poll_until(lambda: one.thread.phase is Phase.OUTSIDE)
        settle(one)
        assert fake.requests_of("LeaveGroup") == []
        assert ("lost", EVERYTHING) in one.calls


# Commits


def test_a_commit_carries_offset_metadata_and_epoch(fake):
    with TestMember(fake) as one:
        settle(one)
        one.commit_offsets({TopicPartition("t", 2): Offset(9, "note", 4)}, ms=3000)
        generation = one.member.metadata
    request = fake.requests_of("OffsetCommit")[-1].message
    row = request.topics[0].partitions[0]
    assert (row.committed_offset, row.committed_metadata, row.committed_leader_epoch) == (
        9,
        "note",
        4,
    )
    assert request.member_id == generation.member_id
    assert request.generation_id_or_member_epoch == generation.generation_id


@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID])
def test_a_commit_after_the_group_has_moved_on(fake, code):
    with TestMember(fake) as one:
        settle(one)
        rule = fake.fault(out(fake, code), api="OffsetCommit", times=None)
        with pytest.raises(CommitFailedError, match=r"max\.poll\.interval\.ms.*Call poll") as info:
            one.commit({"t-0": 1})
        assert info.value.code == code
        assert rule.fired == 1
        fake.clear_faults()
        settle(one)
        assert one.calls[1:] == [("lost", EVERYTHING), ("assign", EVERYTHING)]
        one.commit({"t-0": 1})


def test_a_commit_while_the_group_rebalances(fake):
    with TestMember(fake) as one:
        settle(one)
        fake.fault(ErrorCode.REBALANCE_IN_PROGRESS, api="OffsetCommit")
        with pytest.raises(CommitFailedError, match="rebalancing: call poll until"):
            one.commit({"t-0": 1})
        assert rejoin_needed(one.member)
        settle(one)
        assert one.calls[1:] == [("revoke", EVERYTHING), ("assign", EVERYTHING)]
        one.commit({"t-0": 1})
        assert fake.committed("g") == {("t", 0): 1}


def test_commits_count_until_all_have_joined(fake):
    with (
        TestMember(fake, **COOPERATIVE) as first,
        TestMember(fake, **COOPERATIVE) as slow,
        TestMember(fake, **COOPERATIVE) as new,
    ):
        settle(first, slow)
        poll_until(lambda: first.thread.phase is Phase.JOINING, first, new)  # `slow` does not poll
        first.commit({"t-0": 3})
        assert fake.committed("g") == {("t", 0): 3}
        fake.fault(ErrorCode.ILLEGAL_GENERATION, api="OffsetCommit")  # all have joined just then
        with pytest.raises(CommitFailedError):
            first.commit({"t-0": 4})
        settle(first, slow, new)
        assert [name for name, _ in first.calls].count("lost") == 0


def test_commits_count_if_the_next_rebalance_begins_before_the_last_one_ended(fake):
    with TestMember(fake, **COOPERATIVE) as first, TestMember(fake, **COOPERATIVE) as new:
        with TestMember(fake, **COOPERATIVE) as dead:
            settle(first, dead)
            generation_id = fake.group_generation("g")
            fake.fault(Delay(200, before=True), api="SyncGroup", times=2)
            first.thread.request_rejoin("for the test")
            poll_until(
                lambda: {first.thread.phase, dead.thread.phase} == {Phase.SYNCING}, first, dead
            )
            dead.close(leave=False)  # the rebalance waits for it
        poll_until(lambda: first.thread.phase is Phase.JOINING, first, new)
        assert first.thread.generation.generation_id == generation_id + 1
        first.commit({"t-0": 3})
        assert fake.committed("g") == {("t", 0): 3}


def test_a_heartbeat_does_not_wait_behind_a_sync_group(fake):
    fake.fault(Delay(2_000, before=True), api="SyncGroup")
    with TestMember(fake) as one:
        poll_until(lambda: fake.requests_of("Heartbeat"), one)
        sync, heartbeat = fake.requests_of("SyncGroup")[0], fake.requests_of("Heartbeat")[0]
        assert sync.connection != heartbeat.connection


def test_a_heartbeat_in_a_rebalance_begins_no_other(fake):
    fake.fault(Delay(300, before=True), api="SyncGroup")
    rule = fake.fault(ErrorCode.REBALANCE_IN_PROGRESS, api="Heartbeat")
    with TestMember(fake) as one:
        settle(one)
        assert rule.fired == 1
        assert one.calls == [("assign", EVERYTHING)]


def test_a_commit_between_join_and_sync_is_not_even_sent(fake):
    fake.fault(Delay(2_000, before=True), api="SyncGroup")
    with TestMember(fake) as one:
        poll_until(lambda: one.thread and one.thread.phase is Phase.SYNCING, one)
        with pytest.raises(CommitFailedError, match="rebalancing"):
            one.commit({"t-0": 1})
        assert fake.requests_of("OffsetCommit") == []


@pytest.mark.parametrize(
    "fault",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
        Drop.BEFORE,
        Drop.AFTER,
    ],
)
def test_a_commit_is_tried_again(fake, fault):
    rule = fake.fault(fault, api="OffsetCommit", times=2)
    with TestMember(fake) as one:
        settle(one)
        one.commit({"t-0": 1, "t-3": 2})
    assert rule.fired == 2
    assert fake.committed("g") == {("t", 0): 1, ("t", 3): 2}


def test_a_commit_that_is_refused_names_partition_and_right(fake):
    fake.fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED, api="OffsetCommit", partition=3)
    with TestMember(fake) as one:
        settle(one)
        with pytest.raises(BrokerError, match=r"OffsetCommit of group 'g' for t-3 @ .*grant READ"):
            one.commit({"t-0": 1, "t-3": 2})
    assert fake.committed("g") == {("t", 0): 1}


# The end


def test_close_while_a_join_is_pending(fake):
    """The group must not wait for a member that is gone."""
    with TestMember(fake, **EAGER) as first:
        settle(first)
        second = TestMember(fake, **EAGER)
        second.poll(0)
        fake.wait_for_requests("JoinGroup", 4)  # `two` waits for `one`, which does not poll
        second.close()
        settle(first)
        assert len(fake.group_members("g")) == 1
    assert threads() == set()


def test_a_hook_may_close_the_member(fake):
    with TestMember(fake) as one:
        one.hooks.on_assign = lambda _: one.close()
        one.poll()
        assert one.owned == ""
    assert fake.group_members("g") == []


@BOTH_KINDS
def test_a_hook_that_subscribes_anew_gets_nothing_of_the_old_subscription(fake, kind):
    fake.create_topic("u", partitions=1)
    fake.create_topic("v", partitions=1)
    with TestMember(fake, **kind) as one:
        one.poll()
        one.hooks.on_revoke = lambda _: one.member.subscribe(frozenset({"v"}))
        one.member.subscribe(frozenset({"u"}))
        one.poll()
        assert one.calls[1:] == [("revoke", EVERYTHING), ("assign", "v-0")]


def test_close_without_leaving(fake):
    one = TestMember(fake)
    settle(one)
    one.close(leave=False)
    assert len(fake.group_members("g")) == 1
    assert fake.requests_of("LeaveGroup") == []
    assert threads() == set()


def test_a_bug_in_the_thread_ends_the_poll(fake, monkeypatch):
    def fail(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(GroupAssignors, "assign_for", fail)
    with TestMember(fake) as one:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="a bug"):
                one.poll()


def test_ctrl_c_in_a_hook_leaves_no_partition_to_nobody(fake, monkeypatch):
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with TestMember(fake, **COOPERATIVE) as one:
        settle(one)
        less = encode_assignment([("t", 0), ("t", 1)])
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(one.hooks, "before_revoke", interrupted)
            completed = CompletedRebalance(one.thread.generation, less)
            one.member._end_rebalance(completed, one.thread)
        assert one.owned == "t-0 t-1" or rejoin_needed(one.member)
        settle(one)


@BOTH_KINDS
def test_a_leader_that_assigns_what_nobody_wanted_is_asked_again_but_not_in_a_hurry(
    fake, kind, monkeypatch
):
    read = GroupAssignors.read_assignment
    stray = TopicPartition("other", 0)
    with TestMember(fake, retry_backoff_ms=100, retry_backoff_max_ms=1_000, **kind) as one:
        with monkeypatch.context() as patch:
            patch.setattr(GroupAssignors, "read_assignment", lambda *args: read(*args) | {stray})
            one.poll(1_000)
            assert one.owned == ""
        assert 3 <= len(fake.requests_of("JoinGroup")) <= 8
        settle(one)
