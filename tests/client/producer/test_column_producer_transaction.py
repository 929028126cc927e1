"""A producer in a transaction: nothing is seen before the commit, then each row once."""

from __future__ import annotations

import contextlib
import logging
import random

import pytest

from sparkkafka.client.producer.transactions import (
    FENCED,
    SingleTransaction,
    Transaction,
    end_transactions,
    init_transactions,
)
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, KafkaTimeoutError, ProduceError
from sparkkafka.testing.fake.faults import CutFrame, Drop, ErrorResponse
from tests.client.support import log_values, numbers, open_cluster, read, settings, values_of
from tests.support.options import parse_client_options, parse_producer_options
from tests.support.partition_producer import PartitionProducer
from tests.support.properties import seeds

RELEASES = ["2.1", "2.8", "3.9", "4.0"]
TPS = [TopicPartition("t", number) for number in range(4)]
SMALL = {"batch_size": 200, "linger_ms": 0}


@pytest.fixture(params=["4.0"])
def fake(fake_cluster_factory, request):
    fake = fake_cluster_factory(3, kafka_version=request.param)
    fake.create_topic("t", partitions=4)
    return fake


def transaction_of(fake, *, timeout_ms=60_000, attempt_ms=6_000):
    return SingleTransaction(parse_client_options(settings(fake)), "x", timeout_ms, attempt_ms)


@contextlib.contextmanager
def producing(fake, transaction, **config):
    config = SMALL | config
    with (
        open_cluster(fake) as cluster,
        PartitionProducer(
            cluster, parse_producer_options(settings(fake, **config)), transaction
        ) as made,
    ):
        yield made


def write_all(fake, transaction, count, partitions=1, **config):
    """Numbers in turns of ten to each partition; the transaction stays open."""
    with producing(fake, transaction, **config) as producer:
        for turn, start in enumerate(range(0, count, 10)):
            rows = values_of(range(start, min(start + 10, count)))
            producer.send("t", turn % partitions, rows)
        producer.flush()
        return producer.metrics


def end(fake, identity, *, commit=True):
    with open_cluster(fake) as cluster:
        deadline = cluster.deadline()
        return end_transactions(cluster, [identity], commit=commit, deadline=deadline)["x"]


def take_over(fake):
    with open_cluster(fake) as cluster:
        return init_transactions(cluster, ["x"], 60_000, cluster.deadline())["x"]


def state(fake):
    return str(fake.transaction("x").state)


def seen(fake):
    return [row.value for row in fake.read_committed("t")]


# --- SingleTransaction --------------------------------------------------------------------------


def test_it_begins_once(fake):
    with transaction_of(fake) as transaction:
        assert transaction.identity is None
        first = transaction.begin()
        assert first == transaction.begin() == transaction.identity == Transaction("x", 1000, 0)
    assert len(fake.requests_of("InitProducerId")) == 1
    assert fake.transaction("x").timeout_ms == 60_000


def test_only_new_partitions_are_added(fake):
    with transaction_of(fake) as transaction:
        transaction.add([])
        assert fake.requests == []
        for partitions in ([TPS[0]], [TPS[0]], TPS[:3], iter(TPS[:3]), [TPS[1], TPS[3]]):
            transaction.add(partitions)
        assert transaction.partitions == set(TPS)
    asked = [row.topic_partitions for row in fake.requests_of("AddPartitionsToTxn")]
    assert asked == [[("t", 0)], [("t", 1), ("t", 2)], [("t", 3)]]
    assert fake.transaction("x").partitions == tuple(map(tuple, TPS))
    assert state(fake) == "Ongoing"  # to end it is left to others


def test_partitions_that_could_not_be_added_are_not_taken_for_added(fake):
    refuse = fake.fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED, api="AddPartitionsToTxn", times=2)
    with transaction_of(fake) as transaction:
        for _ in range(2):
            with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
                transaction.add(TPS[:2])
        assert (refuse.fired, transaction.partitions) == (2, set())
        transaction.add(TPS[:2])
    assert fake.transaction("x").partitions == tuple(map(tuple, TPS[:2]))


def test_the_longest_timeout_that_brokers_allow(fake_cluster_factory):
    fake = fake_cluster_factory(3, max_transaction_timeout_ms=123_000)
    with transaction_of(fake, timeout_ms=None) as transaction:
        transaction.begin()
    assert fake.transaction("x").timeout_ms == 123_000
    with transaction_of(fake, timeout_ms=123_001) as transaction:
        with pytest.raises(BrokerError, match=r"transaction\.timeout\.ms is above the broker's"):
            transaction.begin()


def test_a_broker_that_cannot_be_asked_for_the_longest_timeout(fake):
    fake.fault(Drop.BEFORE, api="DescribeConfigs", times=None)
    with transaction_of(fake, timeout_ms=None, attempt_ms=300) as transaction:
        with pytest.raises(KafkaTimeoutError, match=r"Set .*transaction\.timeout\.ms, then"):
            transaction.begin()


@pytest.mark.parametrize("timeout_ms", [None, 60_000])
def test_no_permission_is_an_error_that_names_the_grant(fake, timeout_ms):
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    fake.fault(code, api="FindCoordinator", times=None)
    with transaction_of(fake, timeout_ms=timeout_ms) as transaction:
        with pytest.raises(BrokerError, match="grant WRITE on it"):
            transaction.begin()


def test_an_attempt_ends(fake):
    fake.fault(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, api="InitProducerId", times=None)
    with transaction_of(fake, attempt_ms=1_500) as transaction:
        with pytest.raises(KafkaTimeoutError, match=r"1\.5 s.*COORDINATOR_LOAD_IN_PROGRESS"):
            transaction.begin()


@pytest.mark.parametrize("fake", RELEASES, indirect=True)
def test_an_exception_aborts_it(fake):
    with pytest.raises(ZeroDivisionError), transaction_of(fake) as transaction:
        write_all(fake, transaction, 40, partitions=2)
        assert state(fake) == "Ongoing"
        raise ZeroDivisionError
    assert (state(fake), fake.open_transactions(), seen(fake)) == ("Empty", [], [])
    assert read(fake, "t", isolation_level="read_committed") == []
    # What of it is still on its way cannot be written, and nobody can commit it.
    assert fake.transaction("x").producer_epoch > transaction.identity.producer_epoch
    assert end(fake, transaction.identity).code in FENCED
    ends = [fake.log("t", number).end_offset for number in range(4)]
    with pytest.raises(KafkaError):
        write_all(fake, transaction, 10)
    assert ends == [fake.log("t", number).end_offset for number in range(4)]


@pytest.mark.parametrize("drop", list(Drop))
def test_an_add_without_response_is_aborted_as_well(fake, drop):
    """The partition may be part of it, so readers might wait for its end."""
    with transaction_of(fake, attempt_ms=1_500) as transaction:
        transaction.begin()
        rule = fake.fault(drop, api="AddPartitionsToTxn", times=None)
        with pytest.raises(KafkaTimeoutError), transaction:
            transaction.add(TPS[:1])
    assert rule.fired > 0
    assert (state(fake), fake.open_transactions()) == ("Empty", [])
    assert fake.transaction("x").producer_epoch > 0


@pytest.mark.parametrize("begun", [False, True])
def test_an_exception_before_anything_was_added_does_nothing(fake, begun):
    with pytest.raises(ZeroDivisionError), transaction_of(fake) as transaction:
        if begun:
            transaction.begin()
        raise ZeroDivisionError
    assert len(fake.requests_of("InitProducerId")) == begun


def test_an_abort_that_fails_hides_no_other_failure(fake, caplog, monkeypatch):
    monkeypatch.setattr("sparkkafka.client.producer.transactions.ABORT_TIMEOUT_MS", 200)
    with pytest.raises(ZeroDivisionError), transaction_of(fake) as transaction:
        transaction.add(TPS[:1])
        fake.fault(ErrorCode.COORDINATOR_NOT_AVAILABLE, api="InitProducerId", times=None)
        with caplog.at_level(logging.WARNING):
            raise ZeroDivisionError
    assert "gave up after 0.2 s" in caplog.text
    assert "transaction x could not be aborted" in caplog.text


# --- Producer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fake", RELEASES, indirect=True)
@pytest.mark.parametrize("commit", [True, False])
def test_rows_are_seen_after_the_commit_and_not_before(fake, commit):
    with transaction_of(fake) as transaction:
        metrics = write_all(fake, transaction, 200, partitions=4)
    assert (metrics.records, metrics.retries) == (200, 0)
    assert transaction.partitions == set(TPS)
    assert sorted(v for n in range(4) for v in log_values(fake, "t", n)) == sorted(numbers(200))
    assert seen(fake) == []
    assert read(fake, "t", isolation_level="read_committed") == []
    assert end(fake, transaction.identity, commit=commit) is None
    assert sorted(seen(fake)) == (sorted(numbers(200)) if commit else [])
    found = read(fake, "t", partition=1, isolation_level="read_committed")
    assert len(found) == (50 if commit else 0)
    produced = fake.requests_of("Produce")
    assert {row.message.transactional_id for row in produced} == {"x"}
    assert {row.message.acks for row in produced} == {-1}


def test_nothing_written_leaves_no_transaction(fake):
    with transaction_of(fake) as transaction, producing(fake, transaction) as producer:
        producer.flush()
    assert transaction.identity is None
    assert fake.transaction("x") is None


def test_partitions_are_added_before_they_are_written(fake):
    with transaction_of(fake) as transaction:
        write_all(fake, transaction, 100, partitions=4)
    added: set[tuple[str, int | None]] = set()
    for row in fake.requests:
        if row.api == "AddPartitionsToTxn":
            added.update(row.topic_partitions)
        elif row.api == "Produce":
            assert added.issuperset(row.topic_partitions)


@pytest.mark.slow
@pytest.mark.parametrize(("fake", "nth"), [("2.1", 1), ("4.0", 3)], indirect=["fake"])
@pytest.mark.parametrize(
    "action",
    [
        Drop.BEFORE,
        Drop.AFTER,
        CutFrame(9),
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
    ],
)
def test_what_passes_is_sent_again_and_nothing_doubled(fake, action, nth):
    rule = fake.fault(action, api="Produce", nth=nth, times=2)
    with transaction_of(fake) as transaction:
        write_all(fake, transaction, 200)
    assert end(fake, transaction.identity) is None
    assert rule.fired == 2
    assert seen(fake) == numbers(200)


@pytest.mark.parametrize("api", ["InitProducerId", "AddPartitionsToTxn"])
@pytest.mark.parametrize(
    "action", [*Drop, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR]
)
def test_the_coordinator_is_asked_again(fake, api, action):
    rule = fake.fault(action, api=api, times=2)
    with transaction_of(fake) as transaction:
        write_all(fake, transaction, 100, partitions=2)
    assert end(fake, transaction.identity) is None
    assert rule.fired == 2
    assert sorted(seen(fake)) == sorted(numbers(100))


def test_leader_and_coordinator_move(fake):
    moves = [
        lambda _: fake.move_leader("t", 0, (fake.leader("t", 0) + 1) % 3),
        lambda _: fake.move_coordinator("x", (fake.coordinator("x") + 1) % 3),
    ]
    fake.fault(moves[0], api="Produce", nth=2, times=3)
    fake.fault(moves[1], api="AddPartitionsToTxn")
    with transaction_of(fake) as transaction:
        write_all(fake, transaction, 200)
    assert end(fake, transaction.identity) is None
    assert seen(fake) == numbers(200)


@pytest.mark.slow
@pytest.mark.parametrize("fake", ["2.1", "4.0"], indirect=True)
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ],
)
def test_what_is_final_fails_at_once_and_aborts(fake, code):
    rule = fake.fault(ErrorResponse(code), api="Produce", nth=2, times=None)
    with pytest.raises(ProduceError, match=code.name) as raised:
        with transaction_of(fake) as transaction:
            write_all(fake, transaction, 200, max_in_flight_requests_per_connection=1)
    assert raised.value.code == code
    assert rule.fired == 1
    assert len(fake.requests_of("Produce")) == 2
    # A fenced writer leaves the id to whoever has it now.
    assert state(fake) == ("Ongoing" if code in FENCED else "Empty")
    assert seen(fake) == []


@pytest.mark.parametrize("fake", RELEASES, indirect=True)
def test_another_writer_takes_over(fake):
    with pytest.raises(KafkaError) as raised, transaction_of(fake) as transaction:
        with producing(fake, transaction) as producer:
            producer.send("t", 0, values_of(range(20)))
            producer.flush()
            second = take_over(fake)
            producer.send("t", 0, values_of(range(20, 40)))
            producer.flush()
    assert raised.value.code in FENCED
    assert second.producer_epoch > transaction.identity.producer_epoch
    assert fake.transaction("x").producer_epoch == second.producer_epoch  # is left alone
    assert seen(fake) == []
    assert log_values(fake, "t") == numbers(20)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(2, 6))
@pytest.mark.parametrize("fake", ["2.1", "4.0"], indirect=True)
def test_faults_at_random(fake, seed):
    chance = random.Random(seed)
    actions = [
        *Drop,
        CutFrame(7),
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ]
    apis = ["Produce", "AddPartitionsToTxn", "InitProducerId", "EndTxn"]
    for _ in range(12):
        fake.fault(chance.choice(actions), api=chance.choice(apis), nth=chance.randint(1, 9))
    with transaction_of(fake) as transaction:
        write_all(fake, transaction, 600, partitions=4)
    assert seen(fake) == []
    assert end(fake, transaction.identity) is None
    assert sorted(seen(fake)) == sorted(numbers(600))
    for number in range(4):
        found = [int(value) for value in log_values(fake, "t", number)]
        assert found == sorted(found)


def test_the_broker_ends_it_after_its_timeout(fake):
    with pytest.raises(KafkaError) as raised, transaction_of(fake) as transaction:
        with producing(fake, transaction) as producer:
            producer.send("t", 0, values_of(range(20)))
            producer.flush()
            assert fake.expire_transactions(61_000) == ["x"]
            producer.send("t", 1, values_of(range(20)))
            producer.flush()
    assert raised.value.code in FENCED
    assert "transaction.timeout.ms" in str(raised.value)
    assert seen(fake) == []


def test_a_producer_that_failed_stays_failed(fake):
    fake.fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED, api="AddPartitionsToTxn")
    with transaction_of(fake) as transaction, open_cluster(fake) as cluster:
        producer = PartitionProducer(
            cluster, parse_producer_options(settings(fake, **SMALL)), transaction
        )
        for _ in range(2):
            with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
                producer.send("t", 0, values_of(range(20)))
                producer.flush()
    assert fake.requests_of("Produce") == []
