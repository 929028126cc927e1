"""Describing, listing and fencing transactions: what is requested, and what happens if coordinators
are busy, move, refuse or die."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

from sparkkafka.client import Admin, Deadline, TopicPartition
from sparkkafka.client.admin.transactions import (
    describe_known_transactions,
    list_ongoing_transactions,
)
from sparkkafka.client.producer.transactions import add_partitions
from sparkkafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaTimeoutError,
    UnsupportedVersionError,
)
from sparkkafka.testing.fake.faults import Drop, ErrorResponse
from tests.client.producer.test_transactions import (
    IDS,
    MINUTE_MS,
    RETRIED,
    TPS,
    NotBefore,
    end,
    init,
    soon,
)
from tests.client.support import open_cluster, settings

# --- fencing ----------------------------------------------------------------------------------


def timeouts(cluster: Any) -> list[int]:
    requests = cluster.requests_of("InitProducerId")
    return [request.message.transaction_timeout_ms for request in requests]


@pytest.mark.parametrize(("timeout_s", "sent_ms"), [(None, 3000), (2, 2000), (60, 3000)])
def test_fencing_gives_the_coordinator_time_to_replicate(
    fake_cluster: Any, timeout_s: float | None, sent_ms: int
) -> None:
    """KAFKA-16570: with 1 ms a coordinator with replicas has never stored it in time."""
    with Admin(settings(fake_cluster, request_timeout_ms=3000)) as admin:
        admin.fence_producers(["tx"], timeout_s=timeout_s).all()
    assert timeouts(fake_cluster) == [sent_ms]


def test_fencing_keeps_to_what_the_broker_allows(fake_cluster_factory: Any) -> None:
    strict = fake_cluster_factory(1, max_transaction_timeout_ms=800)
    with Admin(settings(strict, request_timeout_ms=3000)) as admin:
        assert admin.fence_producers(["a", "b"]).errors == {}
    assert timeouts(strict) == [3000, 3000, 750, 750]


# --- listing ----------------------------------------------------------------------------------


def test_open_for_lists_only_what_is_open(fake_cluster: Any) -> None:
    """Brokers also list what ended, or never began: by their clock that is open since 1970."""
    fake_cluster.create_topic("t")
    with open_cluster(fake_cluster) as cluster:
        rows = init(cluster, "empty", "ended", "open")
        add_partitions(
            cluster, {row: [TopicPartition("t", 0)] for row in rows[1:]}, cluster.deadline()
        )
        end(cluster, rows[1])
    with Admin(settings(fake_cluster)) as admin:
        listed = {row.transactional_id: row.state for row in admin.list_transactions()}
        assert listed == {"empty": "Empty", "ended": "CompleteCommit", "open": "Ongoing"}
        deadline = Deadline(5_000)
        while not (found := admin.list_transactions(open_for_ms=0)):
            assert not deadline.expired  # it is open since less than a millisecond
        assert [row.transactional_id for row in found] == ["open"]
        zero: Any = pa.scalar(0)  # a column's value
        assert not admin.list_transactions(open_for_ms=zero, states=["Empty"])


# --- known and ongoing transactions ----------------------------------------------------------


@pytest.fixture(params=["4.0"])
def fake(fake_cluster_factory, request):
    fake = fake_cluster_factory(3, kafka_version=request.param)
    fake.create_topic("t", partitions=4)
    return fake


@pytest.fixture
def cluster(fake):
    with open_cluster(fake) as cluster:
        yield cluster


def open_all(cluster):
    rows = init(cluster, *IDS)
    add_partitions(cluster, dict.fromkeys(rows, TPS[1:3]), cluster.deadline())
    return rows


@pytest.mark.parametrize("fake", ["3.9", "4.0"], indirect=True)
def test_states_of_several_coordinators(fake, cluster):
    rows = open_all(cluster)
    end(cluster, *rows[:2])
    end(cluster, *rows[2:4], commit=False)
    found = describe_known_transactions(cluster, [*IDS, "unknown"], cluster.deadline())
    assert set(found) == set(IDS)
    assert [found[row.transactional_id].transaction for row in rows] == rows
    assert [found[key].state for key in IDS] == (
        ["CompleteCommit"] * 2 + ["CompleteAbort"] * 2 + ["Ongoing"] * 4
    )
    assert [found[key].is_open for key in IDS] == [False] * 4 + [True] * 4
    last = found[IDS[-1]]
    assert (last.partitions, last.timeout_ms) == (frozenset(TPS[1:3]), MINUTE_MS)
    assert abs(last.started_ms - time.time() * 1000) < 60_000
    assert list_ongoing_transactions(cluster, cluster.deadline()) == sorted(IDS[4:])
    assert {row.broker for row in fake.requests_of("ListTransactions")} == {0, 1, 2}


@pytest.mark.parametrize("fake", ["2.1", "2.8"], indirect=True)
def test_brokers_before_3_0_do_not_describe_states(fake, cluster):
    open_all(cluster)
    with pytest.raises(UnsupportedVersionError):
        describe_known_transactions(cluster, IDS, cluster.deadline())
    with pytest.raises(UnsupportedVersionError):
        list_ongoing_transactions(cluster, cluster.deadline())


@pytest.mark.parametrize("api", ["DescribeTransactions", "ListTransactions"])
@pytest.mark.parametrize("action", [*RETRIED[:3], *Drop])
def test_states_are_requested_again(fake, cluster, api, action):
    open_all(cluster)
    rule = fake.fault(action, api=api, times=2)
    found = describe_known_transactions(cluster, IDS, cluster.deadline())
    assert all(found[key].is_open for key in IDS)
    assert list_ongoing_transactions(cluster, cluster.deadline()) == IDS
    assert rule.fired == 2


def test_the_coordinator_moves_before_it_answers(fake, cluster):
    open_all(cluster)
    to = (fake.coordinator("x-1") + 1) % 3
    fake.fault(lambda _: fake.move_coordinator("x-1", to), api="DescribeTransactions")
    assert set(describe_known_transactions(cluster, IDS, cluster.deadline())) == set(IDS)


@pytest.mark.parametrize("dies", [0, 1, 2])
def test_open_transactions_of_a_broker_that_dies_are_found_elsewhere(fake, cluster, dies):
    open_all(cluster)
    fake.fault(lambda _: fake.broker_down(dies), api="ListTransactions", broker=dies)
    assert list_ongoing_transactions(cluster, cluster.deadline()) == IDS


@pytest.mark.parametrize("api", ["FindCoordinator", "DescribeTransactions"])
def test_states_that_this_user_may_not_see(fake, cluster, api):
    open_all(cluster)
    fake.fault(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, api=api, times=None)
    cluster.coordinators.clear()
    with pytest.raises(BrokerError, match="this user may not use the transactional id"):
        describe_known_transactions(cluster, IDS, cluster.deadline())


@pytest.mark.parametrize("refuses", [0, 1, 2])
@pytest.mark.parametrize("api", ["DescribeTransactions", "ListTransactions"])
def test_a_refusal_is_raised_although_others_are_not_ready(fake, cluster, api, refuses):
    open_all(cluster)
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    fake.fault(code, api=api, broker=refuses, times=None)
    fake.fault(RETRIED[0], api=api, times=None)
    with pytest.raises(BrokerError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        if api == "DescribeTransactions":
            describe_known_transactions(cluster, IDS, soon(cluster))
        list_ongoing_transactions(cluster, soon(cluster))


@pytest.mark.slow
@pytest.mark.parametrize("call", [describe_known_transactions, list_ongoing_transactions])
def test_states_that_no_broker_reports_in_time(fake, cluster, call):
    open_all(cluster)
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    for api in ("DescribeTransactions", "ListTransactions"):
        fake.fault(ErrorResponse(code), api=api, times=None)
    described = call is describe_known_transactions
    args, api = ((IDS,), "DescribeTransactions") if described else ((), "ListTransactions")
    with pytest.raises(KafkaTimeoutError, match=r"transactions: gave up.*LOAD_IN_PROGRESS"):
        call(cluster, *args, NotBefore(fake, api, 9))
