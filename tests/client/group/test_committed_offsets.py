"""Offsets of a group from outside of it, when the coordinator moves, loads, refuses or dies."""

from __future__ import annotations

import pytest

from sparkkafka.client.cluster.request_driver import ApiHandler
from sparkkafka.client.group.committed_offsets import (
    GroupMetadata,
    commit_group_offsets,
    fetch_all_committed,
)
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition
from sparkkafka.errors import (
    BrokerError,
    CommitFailedError,
    ErrorCode,
    KafkaTimeoutError,
    UnknownTopicError,
)
from sparkkafka.testing.fake.faults import Delay, Drop, ErrorResponse
from tests.client.support import commit_offsets, committed_offsets, open_cluster

TPS = [TopicPartition("t", number) for number in range(4)]
OFFSETS = {TPS[0]: 0, TPS[1]: 17, TPS[3]: 1 << 40}
RETRIED = [
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
]


@pytest.fixture
def fake(fake_cluster):
    fake_cluster.create_topic("t", partitions=4)
    return fake_cluster


def looks(fake) -> int:
    return len(fake.requests_of("FindCoordinator"))


@pytest.mark.parametrize("version", ["2.1", "2.8", "3.9", "4.0"])
def test_what_was_committed_is_found_and_the_rest_left_out(fake_cluster_factory, version):
    fake = fake_cluster_factory(3, kafka_version=version)
    fake.create_topic("t", partitions=4)
    with open_cluster(fake) as cluster:
        assert committed_offsets(cluster, "g", TPS) == {}
        commit_offsets(cluster, "g", OFFSETS, metadata="batch 7")
        assert committed_offsets(cluster, "g", TPS) == OFFSETS
        assert committed_offsets(cluster, "other", TPS) == {}
        commit_offsets(cluster, "g", {TPS[1]: 18, TPS[2]: 1})
        assert committed_offsets(cluster, "g", iter(TPS[1:3])) == {TPS[1]: 18, TPS[2]: 1}
    assert fake.committed("g")["t", 1] == 18
    stable = [getattr(r.message, "require_stable", False) for r in fake.requests_of("OffsetFetch")]
    assert set(stable) == {version != "2.1"}
    commit = fake.requests_of("OffsetCommit")[0].message
    assert (commit.generation_id_or_member_epoch, commit.member_id) == (-1, "")
    assert commit.topics[0].partitions[0].committed_metadata == "batch 7"


@pytest.mark.parametrize("version", ["2.1", "4.0"])
def test_a_broker_that_does_not_know_the_group_says_that_nothing_is_committed(
    fake_cluster_factory, version
):
    fake = fake_cluster_factory(3, kafka_version=version)
    fake.create_topic("t", partitions=4)
    rule = fake.fault(ErrorCode.GROUP_ID_NOT_FOUND, api="OffsetFetch", times=2)
    with open_cluster(fake) as cluster:
        assert committed_offsets(cluster, "g", TPS) == {}
        assert fetch_all_committed(cluster, "g") == {}
    assert rule.fired == 2


def test_nothing_to_do_asks_nobody(fake):
    with open_cluster(fake) as cluster:
        assert committed_offsets(cluster, "g", []) == {}
        commit_offsets(cluster, "g", {})
    assert fake.requests == []


def test_the_coordinator_is_looked_up_once_and_again_when_it_has_moved(fake):
    with open_cluster(fake) as cluster:
        commit_offsets(cluster, "g", OFFSETS)
        committed_offsets(cluster, "g", TPS)
        assert looks(fake) == 1
        fake.move_coordinator("g", (fake.coordinator("g") + 1) % 3)
        committed_offsets(cluster, "g", TPS)
        assert looks(fake) == 2
    assert fake.requests_of("OffsetFetch")[-1].broker == fake.coordinator("g")


@pytest.mark.parametrize("code", RETRIED)
@pytest.mark.parametrize("version", ["2.1", "4.0"])
def test_a_coordinator_that_is_not_ready_is_asked_again(fake_cluster_factory, code, version):
    fake = fake_cluster_factory(3, kafka_version=version)
    fake.create_topic("t", partitions=4)
    rules = [fake.fault(code, api="OffsetCommit", times=2)]
    with open_cluster(fake) as cluster:
        commit_offsets(cluster, "g", OFFSETS)
        rules.append(fake.fault(code, api="OffsetFetch", times=2))
        assert committed_offsets(cluster, "g", TPS) == OFFSETS
        # One that loads is still the right one.
        assert looks(fake) == (1 if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else 5)
    assert [rule.fired for rule in rules] == [2, 2]


@pytest.mark.parametrize("code", RETRIED)
def test_finding_the_coordinator_is_tried_again(fake, code):
    fake.fault(code, api="FindCoordinator", times=2)
    with open_cluster(fake) as cluster:
        commit_offsets(cluster, "g", OFFSETS)
    assert fake.committed("g") == {tuple(tp): offset for tp, offset in OFFSETS.items()}


@pytest.mark.parametrize("api", ["OffsetCommit", "OffsetFetch"])
def test_the_coordinator_moves_between_lookup_and_request(fake, api):
    with open_cluster(fake) as cluster:
        commit_offsets(cluster, "g", OFFSETS)
        old = fake.coordinator("g")
        fake.fault(lambda _: fake.move_coordinator("g", (old + 1) % 3), api=api)
        commit_offsets(cluster, "g", {TPS[2]: 5})
        assert committed_offsets(cluster, "g", TPS) == OFFSETS | {TPS[2]: 5}
    assert [row.broker for row in fake.requests_of(api)][-1] == (old + 1) % 3


def test_the_coordinator_dies(fake):
    with open_cluster(fake) as cluster:
        commit_offsets(cluster, "g", OFFSETS)
        fake.broker_down(fake.coordinator("g"))
        assert committed_offsets(cluster, "g", TPS) == OFFSETS


def test_the_coordinator_does_not_answer(fake):
    fake.fault(Delay(5_000), api="OffsetFetch")
    with open_cluster(fake, request_timeout_ms=300) as cluster:
        commit_offsets(cluster, "g", OFFSETS)
        assert committed_offsets(cluster, "g", TPS) == OFFSETS


@pytest.mark.parametrize("drop", list(Drop))
@pytest.mark.parametrize("api", ["OffsetCommit", "OffsetFetch", "FindCoordinator"])
def test_a_lost_response(fake, api, drop):
    fake.fault(drop, api=api, times=2)
    with open_cluster(fake) as cluster:
        commit_offsets(cluster, "g", OFFSETS)
        assert committed_offsets(cluster, "g", TPS) == OFFSETS


def test_offsets_that_a_transaction_is_about_to_change_are_waited_for(fake):
    rule = fake.fault(ErrorCode.UNSTABLE_OFFSET_COMMIT, api="OffsetFetch", topic="t", times=2)
    with open_cluster(fake) as cluster:
        commit_offsets(cluster, "g", OFFSETS)
        assert committed_offsets(cluster, "g", TPS) == OFFSETS
    assert rule.fired == 2


def test_partitions_that_went_through_are_not_sent_again(fake):
    fake.fault(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, api="OffsetCommit", topic="t", partition=1)
    with open_cluster(fake) as cluster:
        commit_offsets(cluster, "g", OFFSETS)
        assert committed_offsets(cluster, "g", TPS) == OFFSETS
    named = [
        [number for _, number in row.topic_partitions] for row in fake.requests_of("OffsetCommit")
    ]
    assert named == [[0, 1, 3], [1]]


def test_a_deadline_ends_it_and_tells_the_last_failure(fake):
    fake.fault(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, api="OffsetCommit", times=None)
    with open_cluster(fake) as cluster:
        message = r"group 'g'.*1\.5 s.*COORDINATOR_LOAD_IN_PROGRESS"
        with pytest.raises(KafkaTimeoutError, match=message):
            commit_offsets(cluster, "g", OFFSETS, deadline=cluster.deadline().sooner(1_500))


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
    ],
)
def test_each_sign_of_members_is_reported_as_such(fake, code):
    fake.fault(code, api="OffsetCommit")
    with open_cluster(fake) as cluster:
        with pytest.raises(BrokerError, match=r"group 'g' .*active consumers.*another group id"):
            commit_offsets(cluster, "g", OFFSETS)
    assert len(fake.requests_of("OffsetCommit")) == 1


def test_a_group_with_members_is_only_described(fake):
    with open_cluster(fake) as cluster:
        commit_offsets(cluster, "g", OFFSETS)
        fake.set_group_members("g")
        with pytest.raises(BrokerError, match="active consumers") as raised:
            commit_offsets(cluster, "g", {TPS[0]: 99})
        assert raised.value.code == ErrorCode.UNKNOWN_MEMBER_ID
        assert committed_offsets(cluster, "g", TPS) == OFFSETS


@pytest.mark.parametrize("api", ["OffsetCommit", "OffsetFetch", "FindCoordinator"])
def test_no_permission_on_the_group(fake, api):
    fake.fault(ErrorCode.GROUP_AUTHORIZATION_FAILED, api=api)
    act = committed_offsets if api == "OffsetFetch" else commit_offsets
    with open_cluster(fake) as cluster:
        with pytest.raises(
            BrokerError, match=r"GROUP_AUTHORIZATION.*group 'g'.*grant (READ|DESCRIBE)"
        ):
            act(cluster, "g", OFFSETS)
    assert len(fake.requests_of(api)) == 1


@pytest.mark.parametrize("api", ["OffsetCommit", "OffsetFetch"])
def test_no_permission_on_a_topic_names_its_partitions(fake, api):
    fake.create_topic("free")
    fake.fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED, api=api, topic="t")
    act = committed_offsets if api == "OffsetFetch" else commit_offsets
    with open_cluster(fake) as cluster:
        with pytest.raises(
            BrokerError, match=r"group 'g' for t-0, t-1, t-3 @ .*: not allowed: grant"
        ):
            act(cluster, "g", OFFSETS | {TopicPartition("free", 0): 1})


def test_what_does_not_pass_is_reported_before_what_may(fake):
    offsets = OFFSETS | {TopicPartition("nowhere", 0): 1}
    fake.fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED, api="OffsetCommit", partition=1)
    with open_cluster(fake) as cluster:
        with pytest.raises(BrokerError, match=r"TOPIC_AUTHORIZATION_FAILED.* t-1 @ "):
            commit_offsets(cluster, "g", offsets)


def test_a_missing_topic_is_named_after_a_while(fake, monkeypatch):
    monkeypatch.setattr(ApiHandler, "grace_ms", 300)
    with open_cluster(fake) as cluster:
        with pytest.raises(UnknownTopicError, match=r"group 'g' for nowhere-0, t-9 @ "):
            commit_offsets(
                cluster,
                "g",
                {TopicPartition("nowhere", 0): 1, TPS[0]: 5, TopicPartition("t", 9): 2},
            )
    assert fake.committed("g") == {("t", 0): 5}


@pytest.mark.parametrize(("release", "version"), [("4.1", 9), ("4.4", 10)])
def test_offsets_of_a_topic_that_was_recreated_are_refused(
    fake_cluster_factory, monkeypatch, release, version
):
    """By its id, which the metadata had before. By its name they would be the new topic's."""
    monkeypatch.setattr(ApiHandler, "grace_ms", 200)
    fake = fake_cluster_factory(1, kafka_version=release)
    fake.create_topic("t")
    with open_cluster(fake) as cluster:
        cluster.topics(["t"])
        commit_group_offsets(cluster, "g", {TPS[0]: OffsetAndMetadata(1)})
        assert fake.committed("g") == {("t", 0): 1}
        fake.recreate_topic("t")
        if version == 10:
            with pytest.raises(UnknownTopicError, match="UNKNOWN_TOPIC_ID"):
                commit_group_offsets(cluster, "g", {TPS[0]: OffsetAndMetadata(5)})
        else:
            commit_group_offsets(cluster, "g", {TPS[0]: OffsetAndMetadata(5)})
    # Coordinators delete what was committed of a deleted topic.
    assert fake.committed("g") == ({} if version == 10 else {("t", 0): 5})
    assert {row.version for row in fake.requests_of("OffsetCommit")} == {version}


def test_a_commit_ends_once_its_member_has_lost_the_partitions(fake):
    """Between two attempts: the first response says that the member's epoch is stale."""
    fake.fault(ErrorCode.STALE_MEMBER_EPOCH, api="OffsetCommit")
    calls = []

    def identity():
        calls.append(len(fake.requests_of("OffsetCommit")))
        if len(calls) > 1:
            raise CommitFailedError(ErrorCode.STALE_MEMBER_EPOCH, "OffsetCommit", "lost")
        return GroupMetadata("g", 1, "member")

    with open_cluster(fake) as cluster, pytest.raises(CommitFailedError, match="lost"):
        commit_group_offsets(cluster, "g", {TPS[0]: OffsetAndMetadata(1)}, identity=identity)
    assert calls == [0, 1]


def test_a_topic_that_brokers_learn_of_late(fake):
    fake.fault(lambda _: fake.create_topic("late"), api="OffsetCommit", nth=2)
    late = {TopicPartition("late", 0): 3}
    with open_cluster(fake) as cluster:
        commit_offsets(cluster, "g", late)
        assert committed_offsets(cluster, "g", late) == late


@pytest.mark.parametrize(
    ("group", "metadata", "message"),
    [("", "", "INVALID_GROUP_ID"), ("g", "x" * 5_000, "OFFSET_METADATA_TOO_LARGE.*t-0")],
)
def test_other_refusals(fake, group, metadata, message):
    with open_cluster(fake) as cluster:
        with pytest.raises(BrokerError, match=message):
            commit_offsets(cluster, group, {TPS[0]: 1}, metadata=metadata)


def test_a_response_that_leaves_partitions_out(fake):
    fake.handlers["OffsetCommit"] = lambda call: type(call.message).RESPONSE()
    with open_cluster(fake) as cluster:
        with pytest.raises(BrokerError, match=r"t-0, t-1.*leaves it out"):
            commit_offsets(cluster, "g", OFFSETS)


def test_a_top_level_error_of_an_old_broker(fake_cluster_factory):
    fake = fake_cluster_factory(1, kafka_version="2.8")
    fake.create_topic("t", partitions=4)
    fake.fault(ErrorResponse(ErrorCode.NOT_COORDINATOR, top_level=True), api="OffsetFetch")
    with open_cluster(fake) as cluster:
        assert committed_offsets(cluster, "g", TPS) == {}
    assert len(fake.requests_of("OffsetFetch")) == 2


@pytest.mark.slow
def test_ten_thousand_partitions(fake):
    """With long names; the fake refuses, as a broker, what does not fit one batch."""
    topic, group = "long-" + "x" * 200, "g" * 200
    fake.create_topic(topic, partitions=10_000)
    offsets = {TopicPartition(topic, number): number for number in range(10_000)}
    with open_cluster(fake) as cluster:
        commit_offsets(cluster, group, offsets, metadata="m" * 100)
        assert committed_offsets(cluster, group, offsets) == offsets
    assert looks(fake) == 1
    assert 1 < len(fake.requests_of("OffsetCommit")) < 20
