"""Transactions by their ids, when coordinators are busy, move, refuse or die."""

from __future__ import annotations

import time

import pytest

from sparkkafka.client.admin.transactions import describe_known_transactions
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.committed_offsets import fetch_all_committed
from sparkkafka.client.producer.transactions import (
    FENCED,
    GONE,
    Transaction,
    add_partitions,
    commit_offsets_in,
    end_transactions,
    init_transactions,
    max_timeout_ms,
)
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition
from sparkkafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    UnknownTopicError,
)
from sparkkafka.testing.fake.faults import Delay, Drop, ErrorResponse
from tests.client.support import commit_offsets, committed_offsets, open_cluster

MINUTE_MS = 60_000
RELEASES = ["2.1", "2.8", "3.9", "4.0"]
TPS = [TopicPartition("t", number) for number in range(4)]
IDS = [f"x-{number}" for number in range(8)]  # on three brokers there are some at each
OFFSETS = {TPS[0]: OffsetAndMetadata(5, "five"), TPS[2]: OffsetAndMetadata(1 << 40, "")}
RETRIED = [
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
]
# Those of one transaction in their order.
APIS = ["InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"]


@pytest.fixture(params=["4.0"])
def fake(fake_cluster_factory, request):
    fake = fake_cluster_factory(3, kafka_version=request.param)
    fake.create_topic("t", partitions=4)
    assert {fake.coordinator(key) for key in IDS} == {0, 1, 2}
    return fake


@pytest.fixture
def cluster(fake):
    with open_cluster(fake) as cluster:
        yield cluster


def soon(cluster):
    return cluster.deadline().sooner(1_000)


class NotBefore(Deadline):
    """A second, and on a busy machine until the brokers have had `count` requests of `api`."""

    __slots__ = ("_api", "_count", "_fake")

    def __init__(self, fake, api, count):
        super().__init__(1_000)
        self._fake, self._api, self._count = fake, api, count

    def remaining_s(self):
        left_s = super().remaining_s()
        if left_s > 0.5 or len(self._fake.requests_of(self._api)) >= self._count:
            return left_s
        return 0.5 if time.monotonic() < self._at_s + 30 else left_s

    def until(self, close_signal):
        return self


def init(cluster, *keys, timeout_ms=MINUTE_MS):
    found = init_transactions(cluster, keys, timeout_ms, cluster.deadline())
    assert list(found) == list(keys) or set(found) == set(keys)
    return [found[key] for key in keys]


def end(cluster, *transactions, commit=True):
    found = end_transactions(cluster, transactions, commit=commit, deadline=cluster.deadline())
    return [found[row.transactional_id] for row in transactions]


def add(cluster, transaction, partitions, deadline):
    """Add partitions to one transaction. Raises its error."""
    (error,) = add_partitions(cluster, {transaction: partitions}, deadline).values()
    if error is not None:
        raise error


def one_of_everything(cluster, key="x", commit=True):
    """A transaction from begin to end."""
    (transaction,) = init(cluster, key)
    add(cluster, transaction, TPS[:2], cluster.deadline())
    commit_offsets_in(cluster, transaction, "g", OFFSETS, cluster.deadline())
    assert end(cluster, transaction, commit=commit) == [None]
    return transaction


def states(fake, *keys):
    return [str(fake.transaction(key).state) for key in keys]


def offsets_of(fake):
    return {TopicPartition(*key): offset for key, offset in fake.committed("g").items()}


COMMITTED = {tp: row.offset for tp, row in OFFSETS.items()}


# --- begin, add, end ------------------------------------------------------------------------------


@pytest.mark.parametrize("fake", RELEASES, indirect=True)
def test_several_at_several_coordinators(fake, cluster):
    rows = init(cluster, *IDS)
    assert all(isinstance(row, Transaction) for row in rows)
    assert len({row.producer_id for row in rows}) == len(IDS)
    assert [row.producer_epoch for row in rows] == [0] * len(IDS)
    outcome = add_partitions(cluster, {row: TPS for row in rows}, cluster.deadline())
    assert outcome == dict.fromkeys(IDS)
    found = fake.transaction("x-3")
    assert (found.state, found.timeout_ms) == ("Ongoing", MINUTE_MS)
    assert found.partitions == tuple(map(tuple, TPS))
    assert end(cluster, *rows[:4]) == [None] * 4
    assert end(cluster, *rows[4:], commit=False) == [None] * 4
    assert states(fake, *IDS) == ["CompleteCommit"] * 4 + ["CompleteAbort"] * 4
    for api in ("InitProducerId", "AddPartitionsToTxn", "EndTxn"):
        asked = [row.broker for row in fake.requests_of(api)]
        assert sorted(asked) == sorted(fake.coordinator(key) for key in IDS)


@pytest.mark.parametrize("fake", RELEASES, indirect=True)
def test_to_end_again_changes_nothing_and_the_opposite_is_refused(fake, cluster):
    rows = init(cluster, "x", "y")
    add_partitions(cluster, dict.fromkeys(rows, TPS[:1]), cluster.deadline())
    for _ in range(2):
        assert end(cluster, rows[0]) + end(cluster, rows[1], commit=False) == [None, None]
    errors = [*end(cluster, rows[0], commit=False), *end(cluster, rows[1], commit=True)]
    assert [error.code for error in errors] == [ErrorCode.INVALID_TXN_STATE] * 2
    assert all(error.code in GONE for error in errors)
    assert states(fake, "x", "y") == ["CompleteCommit", "CompleteAbort"]


@pytest.mark.parametrize("fake", RELEASES, indirect=True)
def test_who_takes_over_aborts_and_fences(fake, cluster):
    (first,) = init(cluster, "x")
    add(cluster, first, TPS[:1], cluster.deadline())
    commit_offsets_in(cluster, first, "g", OFFSETS, cluster.deadline())
    (second,) = init(cluster, "x")
    assert second.producer_epoch > first.producer_epoch
    assert fake.log("t", 0).end_offset == 1  # the marker
    assert (fake.pending_offsets("g"), fake.committed("g")) == ({}, {})
    for commit in (True, False):
        (error,) = end(cluster, first, commit=commit)
        assert error.code in FENCED
        assert "another writer has taken over" in str(error)
    with pytest.raises(BrokerError, match="another writer has taken over") as raised:
        add(cluster, first, TPS, cluster.deadline())
    assert raised.value.code in FENCED
    with pytest.raises(BrokerError, match="another writer has taken over"):
        commit_offsets_in(cluster, first, "g", OFFSETS, cluster.deadline())
    assert end(cluster, second)[0].code == ErrorCode.INVALID_TXN_STATE  # nothing was added


def test_a_transaction_that_timed_out_is_fenced(fake, cluster):
    (row,) = init(cluster, "x", timeout_ms=1_000)
    add(cluster, row, TPS[:1], cluster.deadline())
    assert fake.expire_transactions(2_000) == ["x"]
    (error,) = end(cluster, row)
    assert error.code in FENCED and "transaction.timeout.ms" in str(error)


def test_an_id_that_nobody_knows_is_gone(fake, cluster):
    (error,) = end(cluster, Transaction("nobody", 17, 0))
    assert error.code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert error.code in GONE


def test_to_add_again_tells_whether_it_is_open(fake, cluster):
    rows = init(cluster, *IDS[:3])
    parts = dict.fromkeys(rows, TPS[:2])
    add_partitions(cluster, parts, cluster.deadline())
    init(cluster, IDS[1])
    outcome = add_partitions(cluster, parts, cluster.deadline())
    assert [outcome[key] is None for key in IDS[:3]] == [True, False, True]
    assert outcome[IDS[1]].code in FENCED


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t-1: this user has no permission on the topic"),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t-1: the topic or partition does not exist"),
    ],
)
def test_a_partition_that_is_refused_is_named(fake, cluster, code, message):
    (row,) = init(cluster, "x")
    fake.fault(ErrorResponse(code), api="AddPartitionsToTxn", partition=1, times=None)
    with pytest.raises(KafkaError, match=message):
        add(cluster, row, TPS[1:2], Deadline(500))


def test_nothing_to_do_asks_nobody(fake, cluster):
    assert init_transactions(cluster, [], MINUTE_MS, cluster.deadline()) == {}
    assert end_transactions(cluster, [], commit=True, deadline=cluster.deadline()) == {}
    assert add_partitions(cluster, {}, cluster.deadline()) == {}
    assert describe_known_transactions(cluster, [], cluster.deadline()) == {}
    assert fake.requests == []


def test_an_end_waits_for_nobody_but_the_decision(fake, cluster):
    """EndTxn is answered before the markers are written; a second one waits for them."""
    (row,) = init(cluster, "x")
    add(cluster, row, TPS[:1], cluster.deadline())
    fake.hold_markers()
    assert end(cluster, row) == [None]
    assert states(fake, "x") == ["PrepareCommit"]
    fake.fault(lambda _: fake.release_markers(), api="EndTxn", nth=3)
    assert end(cluster, row) == [None]
    assert states(fake, "x") == ["CompleteCommit"]
    assert len(fake.requests_of("EndTxn")) == 4


def test_to_take_over_waits_for_the_markers(fake, cluster):
    (row,) = init(cluster, "x")
    add(cluster, row, TPS[:1], cluster.deadline())
    fake.hold_markers()
    end(cluster, row)
    fake.fault(lambda _: fake.release_markers(), api="InitProducerId", nth=2)
    (second,) = init(cluster, "x")
    assert second == Transaction("x", row.producer_id, row.producer_epoch + 1)


# --- offsets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fake", RELEASES, indirect=True)
@pytest.mark.parametrize("commit", [True, False])
def test_offsets_count_once_it_is_committed(fake, cluster, commit):
    commit_offsets(cluster, "g", {TPS[0]: 1, TPS[3]: 3}, metadata="old")
    old = {TPS[0]: OffsetAndMetadata(1, "old"), TPS[3]: OffsetAndMetadata(3, "old")}
    (row,) = init(cluster, "x")
    commit_offsets_in(cluster, row, "g", OFFSETS, cluster.deadline())
    assert fake.pending_offsets("g") == {tuple(tp): row.offset for tp, row in OFFSETS.items()}
    assert offsets_of(fake) == {TPS[0]: 1, TPS[3]: 3}
    assert end(cluster, row, commit=commit) == [None]
    assert fake.pending_offsets("g") == {}
    expected = old | OFFSETS if commit else old
    assert fetch_all_committed(cluster, "g") == expected
    assert committed_offsets(cluster, "g", TPS) == {tp: r.offset for tp, r in expected.items()}


# The deadline may also come while a response is under way.
UNSTABLE = "UNSTABLE_OFFSET_COMMIT"


def test_who_reads_offsets_waits_for_the_transaction(fake, cluster):
    commit_offsets(cluster, "g", {TPS[0]: 1})
    (row,) = init(cluster, "x")
    commit_offsets_in(cluster, row, "g", OFFSETS, cluster.deadline())
    for fetch in (
        fetch_all_committed,
        lambda *args, **kw: committed_offsets(*args, [TPS[0]], **kw),
    ):
        with pytest.raises(KafkaTimeoutError, match=UNSTABLE):
            fetch(cluster, "g", deadline=soon(cluster))
    fake.hold_markers()
    end(cluster, row)
    fake.clear_requests()
    fake.fault(lambda _: fake.release_markers(), api="OffsetFetch", nth=3)
    assert fetch_all_committed(cluster, "g") == OFFSETS
    assert len(fake.requests_of("OffsetFetch")) == 3


def test_a_first_offset_that_is_pending_is_not_among_all_offsets(fake, cluster):
    """So on real brokers too: only who names the partition is told to wait."""
    (row,) = init(cluster, "x")
    commit_offsets_in(cluster, row, "g", OFFSETS, cluster.deadline())
    fake.hold_markers()
    end(cluster, row)
    assert fetch_all_committed(cluster, "g") == {}
    with pytest.raises(KafkaTimeoutError, match=UNSTABLE):
        committed_offsets(cluster, "g", OFFSETS, deadline=soon(cluster))


def test_more_offsets_than_fit_one_batch(fake, cluster):
    """A broker refuses, without saying why, what makes a batch above its message.max.bytes."""
    fake.create_topic("wide", partitions=600)
    wide = {
        TopicPartition("wide", number): OffsetAndMetadata(number, "m" * 4_000)
        for number in range(600)
    }
    (row,) = init(cluster, "x")
    commit_offsets_in(cluster, row, "g", wide, cluster.deadline())
    assert end(cluster, row) == [None]
    assert fetch_all_committed(cluster, "g") == wide
    assert 2 < len(fake.requests_of("TxnOffsetCommit")) < 10
    assert len(fake.requests_of("AddOffsetsToTxn")) == 1


def test_offsets_that_a_broker_refuses(fake, cluster):
    (row,) = init(cluster, "x")
    long = {TPS[0]: OffsetAndMetadata(1, "m" * 5_000)}
    with pytest.raises(BrokerError, match="OFFSET_METADATA_TOO_LARGE"):
        commit_offsets_in(cluster, row, "g", long, cluster.deadline())
    with pytest.raises(BrokerError, match="INVALID_GROUP_ID"):
        commit_offsets_in(cluster, row, "", OFFSETS, cluster.deadline())
    missing = OFFSETS | {TopicPartition("nowhere", 0): OffsetAndMetadata(1, "")}
    with pytest.raises(UnknownTopicError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        commit_offsets_in(cluster, row, "g", missing, soon(cluster))


# --- what passes ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fake", "api"),
    [*(("4.0", api) for api in APIS), ("2.1", "AddPartitionsToTxn")],
    indirect=["fake"],
)
@pytest.mark.parametrize("code", RETRIED)
def test_a_coordinator_that_is_not_ready_is_asked_again(fake, cluster, api, code):
    rule = fake.fault(code, api=api, times=2)
    one_of_everything(cluster)
    assert rule.fired == 2
    assert (states(fake, "x"), offsets_of(fake)) == (["CompleteCommit"], COMMITTED)
    # Once for the transactional id, once for the group; a busy coordinator is still the right one.
    looks = len(fake.requests_of("FindCoordinator"))
    busy = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert looks == (2 if code in busy else 4)


@pytest.mark.parametrize("code", RETRIED[:2])
def test_finding_the_coordinator_is_tried_again(fake, cluster, code):
    rule = fake.fault(code, api="FindCoordinator", times=3)
    one_of_everything(cluster)
    assert rule.fired == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fake", "commit", "api"),
    [
        *(("4.0", True, api) for api in (*APIS, "FindCoordinator")),
        *(("2.1", True, api) for api in ("AddPartitionsToTxn", "EndTxn")),
        ("4.0", False, "EndTxn"),
    ],
    indirect=["fake"],
)
@pytest.mark.parametrize("drop", list(Drop))
def test_a_request_is_repeated_if_its_response_is_lost(fake, cluster, api, drop, commit):
    rule = fake.fault(drop, api=api, times=2)
    one_of_everything(cluster, commit=commit)
    assert rule.fired == 2
    assert states(fake, "x") == ["CompleteCommit" if commit else "CompleteAbort"]
    assert offsets_of(fake) == (COMMITTED if commit else {})
    assert fake.log("t", 1).end_offset == 1  # one marker


@pytest.mark.parametrize("api", APIS)
def test_a_response_that_does_not_come(fake, api):
    fake.fault(Delay(5_000), api=api)
    with open_cluster(fake, request_timeout_ms=300) as cluster:
        one_of_everything(cluster)
    assert (states(fake, "x"), offsets_of(fake)) == (["CompleteCommit"], COMMITTED)


@pytest.mark.parametrize("api", APIS)
def test_the_coordinator_moves_between_lookup_and_request(fake, cluster, api):
    key = "g" if api == "TxnOffsetCommit" else "x"
    to = (fake.coordinator(key) + 1) % 3
    fake.fault(lambda _: fake.move_coordinator(key, to), api=api)
    one_of_everything(cluster)
    assert [row.broker for row in fake.requests_of(api)][-1] == to
    assert (states(fake, "x"), offsets_of(fake)) == (["CompleteCommit"], COMMITTED)


def test_the_coordinator_dies_between_requests(fake, cluster):
    rows = init(cluster, *IDS)
    add_partitions(cluster, dict.fromkeys(rows, TPS), cluster.deadline())
    fake.create_topic("elsewhere")
    dead = fake.coordinator(IDS[0])
    fake.broker_down(dead)
    assert end(cluster, *rows) == [None] * len(rows)
    fake.broker_up(dead)
    assert set(states(fake, *IDS)) <= {"CompleteCommit", "PrepareCommit"}
    assert end(cluster, *rows) == [None] * len(rows)
    assert set(states(fake, *IDS)) == {"CompleteCommit"}


def test_one_that_fails_does_not_hold_up_or_repeat_the_others(fake, cluster):
    rows = init(cluster, *IDS)
    bad = fake.coordinator(IDS[0])
    fake.clear_requests()
    fake.fault(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, api="AddPartitionsToTxn", broker=bad)
    outcome = add_partitions(cluster, dict.fromkeys(rows, TPS), cluster.deadline())
    assert outcome == dict.fromkeys(IDS)
    assert len(fake.requests_of("AddPartitionsToTxn")) == len(IDS) + 1


# --- what does not pass ---------------------------------------------------------------------------


def test_a_deadline_gives_each_key_its_last_failure(fake, cluster):
    rows = init(cluster, *IDS)
    add_partitions(cluster, dict.fromkeys(rows, TPS[:1]), cluster.deadline())
    bad = fake.coordinator(IDS[0])
    fake.fault(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, api="EndTxn", broker=bad, times=None)
    started_s = time.monotonic()
    asked = len([key for key in IDS if fake.coordinator(key) != bad])
    at = NotBefore(fake, "EndTxn", asked + 3 * (len(IDS) - asked))
    found = end_transactions(cluster, rows, commit=True, deadline=at)
    assert time.monotonic() - started_s < 40
    for key in IDS:
        if fake.coordinator(key) != bad:
            assert found[key] is None
            continue
        error = found[key]
        assert isinstance(error, KafkaTimeoutError)
        assert f"COORDINATOR_LOAD_IN_PROGRESS from EndTxn of '{key}'" in str(error)
        assert "committing transactions: gave up after 1 s;" in str(error)
        assert error.__cause__.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
def test_every_call_ends_at_its_deadline(fake, cluster, api):
    (row,) = init(cluster, "x")
    add(cluster, row, TPS[:1], cluster.deadline())
    fake.fault(ErrorCode.CONCURRENT_TRANSACTIONS, api=api, times=None)
    before = len(fake.requests_of(api))
    act = {
        "InitProducerId": lambda at: init_transactions(cluster, ["x"], MINUTE_MS, at)["x"],
        "AddPartitionsToTxn": lambda at: add(cluster, row, TPS[1:], at),
        "AddOffsetsToTxn": lambda at: commit_offsets_in(cluster, row, "g", OFFSETS, at),
        "TxnOffsetCommit": lambda at: commit_offsets_in(cluster, row, "g", OFFSETS, at),
        "EndTxn": lambda at: end_transactions(cluster, [row], commit=True, deadline=at)["x"],
    }
    with pytest.raises(KafkaTimeoutError, match=f"CONCURRENT_TRANSACTIONS from {api}"):
        if (error := act[api](NotBefore(fake, api, before + 3))) is not None:
            raise error


def test_no_broker_can_be_reached(fake, cluster):
    (row,) = init(cluster, "x")
    for node_id in fake.broker_ids:
        fake.broker_down(node_id)
    found = end_transactions(cluster, [row], commit=True, deadline=soon(cluster))
    assert isinstance(found["x"], KafkaTimeoutError)
    assert "no broker of bootstrap.servers can be reached" in str(found["x"])


@pytest.mark.parametrize("api", ["FindCoordinator", *APIS])
def test_no_permission_on_the_transactional_id(fake, cluster, api):
    fake.fault(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, api=api, times=None)
    with pytest.raises(BrokerError, match=r"TRANSACTIONAL_ID_AUTH.*'x'.*grant WRITE on it"):
        rows = init(cluster, "x")
        if isinstance(rows[0], BrokerError):
            raise rows[0]
        add(cluster, rows[0], TPS[:1], cluster.deadline())
        try:
            commit_offsets_in(cluster, rows[0], "g", OFFSETS, cluster.deadline())
        except BrokerError as error:
            raise BrokerError(error.code, str(error).replace("'g'", "'x'")) from error
        (error,) = end(cluster, rows[0])
        raise error
    assert len(fake.requests_of(api)) == 1


@pytest.mark.parametrize("api", ["AddOffsetsToTxn", "TxnOffsetCommit"])
def test_no_permission_on_the_group(fake, cluster, api):
    (row,) = init(cluster, "x")
    fake.fault(ErrorCode.GROUP_AUTHORIZATION_FAILED, api=api)
    with pytest.raises(BrokerError, match=r"GROUP_AUTHORIZATION_FAILED.*grant READ on it"):
        commit_offsets_in(cluster, row, "g", OFFSETS, cluster.deadline())


def test_no_permission_on_a_topic_is_reported_before_what_passes(fake, cluster):
    (row,) = init(cluster, "x")
    fake.fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED, api="AddPartitionsToTxn", partition=1)
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        add(cluster, row, TPS, cluster.deadline())
    assert states(fake, "x") == ["Empty"]
    fake.fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED, api="TxnOffsetCommit", partition=2)
    with pytest.raises(BrokerError, match=r"TOPIC_AUTHORIZATION.*READ on the topic: grant it"):
        commit_offsets_in(cluster, row, "g", OFFSETS, cluster.deadline())


def test_a_timeout_that_brokers_do_not_allow(fake_cluster_factory):
    fake = fake_cluster_factory(3, max_transaction_timeout_ms=5_000)
    with open_cluster(fake) as cluster:
        error, other = init(cluster, "x", "y", timeout_ms=5_001)
        assert error.code == other.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert ": transaction.timeout.ms is above the broker's" in str(error)
        assert max_timeout_ms(cluster, 1, cluster.deadline()) == 5_000
        fake.fault(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, api="DescribeConfigs")
        assert max_timeout_ms(cluster, 1, cluster.deadline()) == 900_000
        fake.fault(ErrorCode.INVALID_REQUEST, api="DescribeConfigs")
        with pytest.raises(BrokerError, match="INVALID_REQUEST"):
            max_timeout_ms(cluster, 1, cluster.deadline())


def test_a_topic_that_brokers_learn_of_late(fake, cluster):
    (row,) = init(cluster, "x")
    fake.fault(lambda _: fake.create_topic("late"), api="AddPartitionsToTxn", nth=2)
    add(cluster, row, [TPS[0], TopicPartition("late", 0)], cluster.deadline())
    assert fake.transaction("x").partitions == (("late", 0), ("t", 0))
