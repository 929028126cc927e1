"""A member of a group whose partitions the brokers assign (KIP-848), and what can go wrong."""

from __future__ import annotations

import re

import pytest

from sparkkafka.client.group.committed_offsets import GroupMetadata
from sparkkafka.errors import (
    BrokerError,
    CommitFailedError,
    ErrorCode,
    KafkaTimeoutError,
    UnsupportedVersionError,
)
from sparkkafka.testing.fake.faults import Delay, Drop, ErrorResponse
from tests.client.group.members import (
    EVERYTHING,
    TestMember,
    poll_until,
    rejoin_needed,
    settle,
    threads,
)

HEARTBEAT = "ConsumerGroupHeartbeat"


@pytest.fixture
def fake(fake_cluster):
    fake_cluster.create_topic("t", partitions=4)
    return fake_cluster


def member(fake, topics=("t",), **config) -> TestMember:
    return TestMember(fake, topics, group_protocol="consumer", **config)


def heartbeats(fake) -> list:
    return [row.message for row in fake.requests_of(HEARTBEAT)]


def test_alone_it_gets_everything_and_leaves(fake):
    with member(fake, client_rack="r1", group_remote_assignor="range") as one:
        assert one.member.metadata == GroupMetadata("g")
        assert rejoin_needed(one.member)
        one.poll()
        assert one.owned == EVERYTHING
        assert one.calls == [("assign", EVERYTHING)]
        assert not rejoin_needed(one.member)
        member_id = one.member.metadata.member_id
        assert re.fullmatch(r"[\w-]{22}", member_id)
        assert one.member.metadata == GroupMetadata("g", 1, member_id)
        one.commit({"t-1": 7})
        assert fake.committed("g") == {("t", 1): 7}
        fake.wait_for_requests(HEARTBEAT, 3)
    assert threads() == set()
    first, *others, last = heartbeats(fake)
    # One may have been due before poll took the assignment.
    acknowledged = next(row for row in others if row.topic_partitions)
    assert (first.member_epoch, first.member_id) == (0, member_id)
    assert first.subscribed_topic_names == ["t"]
    assert first.topic_partitions == []
    assert (first.rack_id, first.server_assignor) == ("r1", "range")
    assert first.rebalance_timeout_ms == 300_000
    # What has not changed is not said again.
    assert (acknowledged.member_epoch, acknowledged.subscribed_topic_names) == (1, None)
    assert (acknowledged.rebalance_timeout_ms, acknowledged.rack_id) == (-1, None)
    assert [row.partitions for row in acknowledged.topic_partitions] == [[0, 1, 2, 3]]
    assert last.member_epoch == -1
    assert fake.requests_of("OffsetCommit")[0].version == 9


def test_a_partition_is_assigned_again_once_it_is_revoked(fake):
    order = []
    with member(fake) as first, member(fake) as second:
        settle(first)
        first.hooks.on_revoke = lambda tps: (
            first.commit({str(tp): 5 for tp in tps}),
            order.append("let go"),
        )
        second.hooks.on_assign = lambda new: order.append("taken") if new else None
        settle(first, second)
    assert order == ["let go", "taken"]
    committed = [f"{topic}-{number}" for topic, number in sorted(fake.committed("g"))]
    assert " ".join(committed) == second.calls[-1][1]


def test_a_change_of_the_subscription(fake):
    fake.create_topic("u", partitions=1)
    with member(fake) as one:
        one.poll()
        one.member.subscribe(frozenset({"u"}))
        assert rejoin_needed(one.member)
        poll_until(lambda: one.owned == "u-0", one)
        # In two steps: the brokers give it nothing new before it has let go.
        assert one.calls[1:] == [("revoke", EVERYTHING), ("assign", ""), ("assign", "u-0")]


def test_new_partitions_and_new_topics(fake):
    with member(fake, ["t", "later"]) as one:
        one.poll()
        fake.add_partitions("t", 5)
        settle(one, count=5)
        fake.create_topic("later")
        settle(one, count=6)


def test_a_topic_that_was_created_anew_is_another_one(fake):
    with member(fake) as one:
        one.poll()
        fake.recreate_topic("t")
        poll_until(lambda: len(one.hooks.calls) > 2 and one.owned, one)
        calls = [row for row in one.calls if row[1]]
        assert calls[1:] == [("revoke", EVERYTHING), ("assign", EVERYTHING)]


def test_a_hook_that_raises_ends_the_poll_and_not_the_membership(fake):
    def fail(_):
        raise RuntimeError("the user's own")

    with member(fake) as first, member(fake) as second:
        first.hooks.on_assign = first.hooks.on_revoke = fail
        with pytest.raises(RuntimeError, match="the user's own"):
            first.poll()
        assert first.owned == EVERYTHING
        with pytest.raises(RuntimeError, match="the user's own"):
            settle(first, second)
        first.hooks.on_assign = first.hooks.on_revoke = lambda _: None
        settle(first, second)


def test_ctrl_c_while_letting_go_leaves_no_partition_to_nobody(fake):
    def interrupted(_):
        raise KeyboardInterrupt

    with member(fake) as first, member(fake) as second:
        settle(first)
        first.hooks.on_revoke = interrupted
        with pytest.raises(KeyboardInterrupt):
            settle(first, second)
        first.hooks.on_revoke = lambda _: None
        assert rejoin_needed(first.member)
        settle(first, second)


# Static members


def test_a_static_member_comes_back(fake):
    with member(fake) as first:
        settle(first)
        second = member(fake, group_instance_id="i")
        settle(first, second)
        owned = second.owned
        second.close()
        assert [row.member_epoch for row in heartbeats(fake) if row.member_epoch < 0] == [-2]
        with member(fake, group_instance_id="i") as again:
            settle(first, again)
            assert again.owned == owned
        assert [name for name, _ in first.calls].count("revoke") == 1


def test_two_with_one_instance_id(fake):
    with (
        member(fake, group_instance_id="i") as first,
        member(fake, group_instance_id="i") as second,
    ):
        first.poll()
        with pytest.raises(BrokerError, match=r"UNRELEASED_INSTANCE_ID.*group\.instance\.id=i"):
            second.poll()
        first.poll()
        assert first.owned == EVERYTHING


# Faults


@pytest.mark.slow
@pytest.mark.parametrize("drop", list(Drop))
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_response_is_lost(fake, nth, drop):
    with member(fake) as first, member(fake) as second:
        rule = fake.fault(drop, api=HEARTBEAT, nth=nth)
        settle(first)
        settle(first, second)
        poll_until(lambda: rule.fired, first, second)
        settle(first, second)
        assert not any(name == "lost" for name, _ in first.calls + second.calls)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ],
)
def test_refusals_that_pass(fake, code):
    rule = fake.fault(code, api=HEARTBEAT, times=4)
    with member(fake) as one:
        settle(one)
        assert rule.fired == 4
        assert one.calls == [("assign", EVERYTHING)]


@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
def test_the_group_has_gone_on_without_it(fake, code):
    with member(fake) as one:
        settle(one)
        member_id = one.member.metadata.member_id
        fake.clear_requests()
        fake.fault(code, api=HEARTBEAT)
        poll_until(lambda: len(one.hooks.calls) == 3, one)
        assert one.calls[1:] == [("lost", EVERYTHING), ("assign", EVERYTHING)]
        joins = [row for row in heartbeats(fake) if row.member_epoch == 0]
        assert [row.member_id for row in joins] == [member_id]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "grant READ"),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, r"group\.consumer\.max\.size"),
        (ErrorCode.UNSUPPORTED_VERSION, r"Kafka 4\.0.*set group\.protocol=classic"),
        (ErrorResponse(ErrorCode.INVALID_REQUEST, message="no good"), "no good"),
        (
            ErrorResponse(ErrorCode.GROUP_ID_NOT_FOUND, message="Group g is not a share group."),
            r"Group g is not a share group: set another group\.id",
        ),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, r"of another kind: set another group\.id"),
    ],
)
def test_final_refusals_say_what_to_do(fake, fault, message):
    rule = fake.fault(fault, api=HEARTBEAT, times=None)
    with member(fake) as one:
        with pytest.raises(BrokerError, match=rf"{HEARTBEAT} of group 'g'.*{message}"):
            one.poll()
        assert rule.fired == 1
        fake.clear_faults()
        one.poll()
        assert one.owned == EVERYTHING


def test_a_program_that_polls_on_after_a_refusal_floods_no_coordinator(fake):
    rule = fake.fault(ErrorCode.UNRELEASED_INSTANCE_ID, api=HEARTBEAT, times=None)
    with member(fake, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000) as one:
        with pytest.raises(BrokerError, match="UNRELEASED_INSTANCE_ID"):
            one.poll()
        for _ in range(3):
            one.poll(100)
        assert rule.fired == 1


def test_a_final_refusal_takes_the_partitions(fake):
    with member(fake) as one:
        settle(one)
        fake.fault(ErrorCode.GROUP_AUTHORIZATION_FAILED, api=HEARTBEAT)
        with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
            poll_until(lambda: False, one)
        assert one.calls[1:] == [("lost", EVERYTHING)]


def test_topics_that_may_not_be_seen_are_an_error_and_no_end(fake):
    fake.fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED, api=HEARTBEAT)
    with member(fake) as one:
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            one.poll()
        one.poll()
        assert one.owned == EVERYTHING


def test_an_assignor_that_the_brokers_lack(fake):
    with (
        member(fake, group_remote_assignor="odd") as one,
        pytest.raises(BrokerError, match=r"'odd' \(group\.remote\.assignor\).*uniform, range"),
    ):
        one.poll()


@pytest.mark.parametrize("offer", [None, (0, 0)])
def test_brokers_before_kafka_4(fake_cluster_factory, offer):
    fake = fake_cluster_factory(1, api_versions={HEARTBEAT: offer})
    with (
        member(fake) as one,
        pytest.raises(UnsupportedVersionError, match=r"Kafka 4\.0.*group\.protocol=classic"),
    ):
        one.poll()
    assert heartbeats(fake) == []


def test_the_coordinator_moves(fake):
    with member(fake) as first, member(fake) as second:
        settle(first)
        to = (fake.coordinator("g") + 1) % 3
        fake.move_coordinator("g", to)
        settle(first, second)
        first.commit({first.owned.split()[0]: 3})
        fake.clear_requests()
        fake.wait_for_requests(HEARTBEAT, 2, broker=to)
        assert not any(name == "lost" for name, _ in first.calls + second.calls)


def test_metadata_does_not_know_the_topic_yet(fake):
    fake.fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, api="Metadata", topic="t", times=2)
    with member(fake) as one:
        poll_until(lambda: one.owned == EVERYTHING, one)


# Commits


def test_a_commit_with_an_epoch_that_is_over_goes_again_with_the_new_one(fake):
    with member(fake) as one:
        settle(one)
        rule = fake.fault(ErrorCode.STALE_MEMBER_EPOCH, api="OffsetCommit", times=2)
        one.commit({"t-0": 1})
        assert rule.fired == 2
    assert fake.committed("g") == {("t", 0): 1}


def test_an_epoch_that_stays_stale(fake):
    with member(fake) as one:
        settle(one)
        fake.fault(ErrorCode.STALE_MEMBER_EPOCH, api="OffsetCommit", times=None)
        with pytest.raises(CommitFailedError, match="STALE_MEMBER_EPOCH"):
            one.commit({"t-0": 1}, ms=2_000)  # one response at least, on a busy machine, too


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH])
def test_a_commit_after_the_group_has_moved_on(fake, code):
    with member(fake) as one:
        settle(one)
        rule = fake.fault(code, api="OffsetCommit", times=None)
        with pytest.raises(CommitFailedError, match="Call poll to join again"):
            one.commit({"t-0": 1})
        assert rule.fired == 1


def test_a_commit_that_is_never_answered(fake):
    fake.fault(Delay(5_000), api="OffsetCommit", times=None)
    with member(fake, request_timeout_ms=100) as one:
        settle(one)
        with pytest.raises(KafkaTimeoutError, match="committing offsets of group 'g'"):
            one.commit({"t-0": 1}, ms=400)


# The end


def test_close_without_leaving(fake):
    one = member(fake)
    settle(one)
    one.close(leave=False)
    assert not any(row.member_epoch < 0 for row in heartbeats(fake))
    assert threads() == set()
