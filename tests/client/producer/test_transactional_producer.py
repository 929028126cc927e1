"""Transactions of the library's Producer: order of the calls, faults, fencing, offsets."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sparkkafka.client.cluster.request_driver import ApiHandler
from sparkkafka.client.group.committed_offsets import GroupMetadata
from sparkkafka.client.producer.producer import Producer
from sparkkafka.client.producer.transactions import TRANSITIONS, State
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition
from sparkkafka.errors import (
    BrokerError,
    CommitFailedError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
    ProduceError,
    ProducerFencedError,
    TransactionError,
    UnknownTopicError,
)
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Delay, Drop, ErrorResponse
from tests.client.support import settings
from tests.support.waiting import wait_until

WAIT_S = 20
TP = TopicPartition("t", 0)


@pytest.fixture(params=["2.1 v1", "4.0 v1", "4.0 v2"])
def fake(fake_cluster_factory: Any, request: Any) -> FakeCluster:
    """Brokers of several ages, and with either protocol of transactions."""
    release, version = request.param.split(" v")
    cluster: FakeCluster = fake_cluster_factory(
        3, kafka_version=release, transaction_version=int(version)
    )
    cluster.create_topic("t", partitions=3)
    return cluster


@contextlib.contextmanager
def opened(cluster: Any, tid: str = "tid", **config: Any) -> Iterator[Producer]:
    producer = Producer(settings(cluster, transactional_id=tid, **config))
    try:
        yield producer
    finally:
        with contextlib.suppress(KafkaError):
            producer.close(timeout_s=1)


@pytest.fixture
def producer(fake: FakeCluster) -> Iterator[Producer]:
    with opened(fake) as producer:
        producer.init_transactions()
        yield producer


def committed(cluster: FakeCluster, topic: str = "t") -> list[Any]:
    return sorted(record.value for record in cluster.read_committed(topic))


def test_what_is_committed_is_seen_and_what_is_aborted_is_not(
    fake: FakeCluster, producer: Producer
) -> None:
    for number in range(4):
        producer.begin_transaction()
        handles = [producer.send("t", b"%d-%d" % (number, row)) for row in range(3)]
        if number % 2:
            producer.flush()
            producer.abort_transaction()
            assert [handle.exception() for handle in handles] == [None] * 3
        else:
            assert committed(fake) == [b"0-0", b"0-1", b"0-2"][: 3 * (number // 2)]
            producer.commit_transaction()
            assert all(handle.done() for handle in handles)
    assert committed(fake) == [b"0-0", b"0-1", b"0-2", b"2-0", b"2-1", b"2-2"]
    assert fake.open_transactions() == []
    # The first owner of the id; later ones of it have later epochs.
    assert len(fake.requests_of("InitProducerId")) == 1


def test_empty_transactions_ask_nobody(fake: FakeCluster, producer: Producer) -> None:
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        end()
    assert fake.requests_of("EndTxn") == []


def test_records_that_wait_are_dropped_by_an_abort(fake: FakeCluster) -> None:
    with opened(fake, linger_ms=60_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        handle = producer.send("t", b"never")
        producer.abort_transaction()
        with pytest.raises(KafkaError, match="the transaction was aborted"):
            handle.result(0)
        producer.begin_transaction()
        producer.send("t", b"then")
        producer.commit_transaction()
    assert committed(fake) == [b"then"]
    assert len(fake.requests_of("Produce")) == 1


def test_the_order_of_calls(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    with opened(fake_cluster) as producer:
        for action in (
            producer.begin_transaction,
            producer.commit_transaction,
            producer.abort_transaction,
            lambda: producer.send("t", b""),
            lambda: producer.send_offsets_to_transaction({TP: 1}, "g"),
        ):
            with pytest.raises(TransactionError, match="init_transactions was not called"):
                action()
        producer.init_transactions()
        with pytest.raises(TransactionError, match="once is enough"):
            producer.init_transactions()
        for action in (
            producer.commit_transaction,
            producer.abort_transaction,
            lambda: producer.send("t", b""),
            lambda: producer.send_offsets_to_transaction({TP: 1}, "g"),
        ):
            with pytest.raises(TransactionError, match="no transaction is open"):
                action()
        producer.begin_transaction()
        with pytest.raises(TransactionError, match="a transaction is open already"):
            producer.begin_transaction()
        producer.commit_transaction()
    with contextlib.closing(Producer(settings(fake_cluster))) as plain:
        with pytest.raises(TransactionError, match=r"need the setting transactional\.id"):
            plain.init_transactions()


def test_each_state_has_its_next_states() -> None:
    assert set(TRANSITIONS) == set(State)
    reached = {to for moves in TRANSITIONS.values() for to in moves}
    assert reached == set(State) - {State.UNINITIALIZED, State.FATAL_ERROR}


def test_a_failed_record_makes_a_commit_an_error_and_an_abort_mends_it(
    fake: FakeCluster, producer: Producer
) -> None:
    producer.begin_transaction()
    producer.send("t", b"good", partition=1)
    producer.flush()
    fake.fault(ErrorCode.INVALID_RECORD, api="Produce", topic="t", partition=0)
    bad = producer.send("t", b"bad", partition=0)
    with pytest.raises(ProduceError, match="INVALID_RECORD"):
        bad.result(WAIT_S)
    with pytest.raises(TransactionError, match=r"can only be aborted.*INVALID_RECORD") as raised:
        producer.commit_transaction()
    assert isinstance(raised.value.__cause__, ProduceError)
    with pytest.raises(TransactionError, match=r"can only be aborted.*INVALID_RECORD"):
        producer.send("t", b"")
    producer.abort_transaction()
    assert fake.open_transactions() == []
    if min(row.version for row in fake.requests_of("InitProducerId")) < 3:
        with pytest.raises(KafkaError, match=r"brokers before Kafka 2\.5"):
            producer.begin_transaction()
        with pytest.raises(TransactionError, match="cannot continue: close it"):
            producer.begin_transaction()
        return
    producer.begin_transaction()
    for partition in range(3):
        producer.send("t", b"%d" % partition, partition=partition)
    producer.commit_transaction()
    assert committed(fake) == [b"0", b"1", b"2"]
    assert fake.open_transactions() == []


def test_a_failure_while_committing(fake: FakeCluster, producer: Producer) -> None:
    """The commit waits for the records first, and so hears of it."""
    fake.fault(ErrorCode.INVALID_RECORD, api="Produce")
    producer.begin_transaction()
    producer.send("t", b"")
    with pytest.raises(TransactionError, match="INVALID_RECORD"):
        producer.commit_transaction()
    assert fake.requests_of("EndTxn") == []


def test_a_record_that_send_refuses_spoils_the_transaction(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    with opened(fake_cluster, max_request_size=1_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        with pytest.raises(ProduceError, match=r"max\.request\.size"):
            producer.send("t", bytes(2_000))
        with pytest.raises(TransactionError, match=r"max\.request\.size"):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send("t", b"small")
        producer.commit_transaction()
    assert committed(fake_cluster) == [b"small"]


@pytest.mark.slow
@pytest.mark.parametrize("action", [Drop.AFTER, Drop.BEFORE])
@pytest.mark.parametrize("api", ["Produce", "EndTxn", "AddPartitionsToTxn", "InitProducerId"])
def test_lost_responses(fake: FakeCluster, api: str, action: Drop) -> None:
    """Each transaction is seen once and whole, whatever response got lost."""
    fake.fault(action, api=api)
    rule = fake.fault(action, api=api, nth=2)
    with opened(fake) as producer:
        producer.init_transactions()
        for number in range(3):
            producer.begin_transaction()
            for row in range(5):
                producer.send("t", b"%d%d" % (number, row))
            producer.commit_transaction()
    assert committed(fake) == [b"%d%d" % (n, row) for n in range(3) for row in range(5)]
    assert fake.open_transactions() == []
    second = fake.requests_of("AddPartitionsToTxn") == []
    if api != "InitProducerId" and not (second and api == "AddPartitionsToTxn"):
        assert rule.fired


def test_after_a_lost_response_to_a_commit_the_epoch_moves_on(
    fake_cluster_factory: Any,
) -> None:
    """KAFKA-17754: the first request may be on its way still, and would end the next one."""
    fake = fake_cluster_factory(1, kafka_version="3.9")
    fake.create_topic("t")
    fake.fault(Drop.AFTER, api="EndTxn")
    with opened(fake) as producer:
        producer.init_transactions()
        epochs = []
        for number in range(3):
            producer.begin_transaction()
            producer.send("t", b"%d" % number)
            producer.commit_transaction()
            epochs.append(fake.transaction("tid").producer_epoch)
    assert epochs == [0, 1, 1]
    assert committed(fake) == [b"0", b"1", b"2"]


def test_a_commit_whose_outcome_is_not_known_may_be_repeated(
    fake: FakeCluster, producer: Producer
) -> None:
    producer.begin_transaction()
    producer.send("t", b"once")
    producer.flush()
    fake.hold_markers()
    rule = fake.fault(Delay(60_000), api="EndTxn")
    with pytest.raises(KafkaTimeoutError, match="committing a transaction"):
        producer.commit_transaction(timeout_s=0.3)
    assert rule.fired
    with pytest.raises(TransactionError, match="call commit_transaction again"):
        producer.abort_transaction()
    with pytest.raises(TransactionError, match="call commit_transaction again"):
        producer.begin_transaction()
    fake.release_markers()
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send("t", b"then")
    producer.commit_transaction()
    assert committed(fake) == [b"once", b"then"]


def test_a_flush_of_a_commit_that_takes_too_long_may_still_be_aborted(
    fake: FakeCluster, producer: Producer
) -> None:
    producer.begin_transaction()
    rule = fake.fault(Delay(500, before=True), api="Produce")
    producer.send("t", b"")
    with pytest.raises(KafkaTimeoutError, match="flush"):
        producer.commit_transaction(timeout_s=0.05)
    producer.abort_transaction()
    assert rule.fired
    assert committed(fake) == []
    assert fake.open_transactions() == []


def test_a_commit_with_a_response_that_says_nothing_is_not_to_be_aborted(
    fake: FakeCluster, producer: Producer
) -> None:
    """It may have happened: whoever aborts, and does all again, would double it."""
    fake.fault(ErrorResponse(ErrorCode.UNKNOWN_SERVER_ERROR, applied=True), api="EndTxn")
    producer.begin_transaction()
    producer.send("t", b"once")
    with pytest.raises(BrokerError, match="UNKNOWN_SERVER_ERROR"):
        producer.commit_transaction()
    with pytest.raises(TransactionError, match="cannot continue"):
        producer.abort_transaction()
    assert committed(fake) == [b"once"]


def test_the_later_producer_fences_the_earlier(fake: FakeCluster, producer: Producer) -> None:
    producer.begin_transaction()
    producer.send("t", b"zombie")
    producer.flush()
    with opened(fake) as second:
        second.init_transactions()
        second.begin_transaction()
        second.send("t", b"second")
        message = "taken over this transactional id, 'tid'.*close this producer and make a new one"
        for action in (
            producer.commit_transaction,
            producer.begin_transaction,
            producer.abort_transaction,
            lambda: producer.send("t", b""),
        ):
            with pytest.raises(ProducerFencedError, match=message) as raised:
                action()
            assert raised.value.name in ("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
        producer.close()
        second.commit_transaction()
    assert committed(fake) == [b"second"]


def test_an_id_that_the_brokers_have_forgotten_needs_a_new_producer(
    fake: FakeCluster, producer: Producer
) -> None:
    """No transaction used it for transactional.id.expiration.ms. Java's error is fatal as well."""
    fake.state.transactions.by_id.clear()
    producer.begin_transaction()
    with pytest.raises(ProducerFencedError, match=r"transactional.id.expiration.ms .*make a new"):
        producer.send("t", b"late").result(WAIT_S)
    with pytest.raises(ProducerFencedError, match=r"transactional.id.expiration.ms .*make a new"):
        producer.abort_transaction()
    with opened(fake) as second:
        second.init_transactions()
        second.begin_transaction()
        second.send("t", b"second")
        second.commit_transaction()
    assert committed(fake) == [b"second"]


def test_a_fenced_producer_cannot_take_the_id_back_by_an_abort(
    fake: FakeCluster, producer: Producer
) -> None:
    producer.begin_transaction()
    producer.send("t", b"zombie")
    producer.flush()
    with opened(fake) as second:
        second.init_transactions()
        second.begin_transaction()
        second.send("t", b"second")
        second.flush()
        late = [producer.send("t", b"late", partition=number % 3) for number in range(9)]
        # The one that the broker refused, and those that are given up with it: as in Java.
        for handle in late:
            with pytest.raises(ProducerFencedError, match=r"taken over.*make a new one"):
                handle.result(WAIT_S)
        assert isinstance(late[0].exception().__cause__, ProduceError | BrokerError)
        # A write has met it, and the first call says so.
        for action in (producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(ProducerFencedError, match=r"taken over.*make a new one") as raised:
                action()
            assert raised.value.name in ("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
        second.commit_transaction()
    assert committed(fake) == [b"second"]


@pytest.mark.parametrize("is_committed", [True, False])
def test_close_raises_a_fence_only_if_no_call_has_raised_it(
    fake: FakeCluster, producer: Producer, is_committed: bool
) -> None:
    with opened(fake) as second:
        second.init_transactions()
    producer.begin_transaction()
    late = producer.send("t", b"late")
    wait_until(late.done, "the broker refuses the record")
    if is_committed:
        with pytest.raises(ProducerFencedError):
            producer.commit_transaction()
        producer.close()
    else:
        with pytest.raises(ProducerFencedError):
            producer.close()


def test_a_record_in_flight_raises_the_fence_also_in_an_abort(
    fake: FakeCluster, producer: Producer
) -> None:
    producer.begin_transaction()
    producer.send("t", b"zombie", partition=0)
    producer.flush()
    with opened(fake) as second:
        second.init_transactions()
        before = len(fake.requests_of("Produce"))
        fake.fault(Delay(100, before=True), api="Produce")
        late = producer.send("t", b"late", partition=0)
        fake.wait_for_requests("Produce", before + 1)
        for action in (producer.abort_transaction, late.result):
            with pytest.raises(ProducerFencedError, match=r"taken over.*make a new one"):
                action()


def test_a_transaction_that_was_open_for_too_long(fake: FakeCluster, producer: Producer) -> None:
    producer.begin_transaction()
    producer.send("t", b"late")
    producer.flush()
    assert fake.expire_transactions(later_ms=10**8) == ["tid"]
    with pytest.raises(BrokerError, match=r"open for longer than"):
        producer.commit_transaction()
    assert committed(fake) == []


def test_offsets_of_a_group(fake: FakeCluster, producer: Producer) -> None:
    other = TopicPartition("t", 2)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        {TP: 5, other: OffsetAndMetadata(7, "seven", 3)}, GroupMetadata("g")
    )
    assert fake.committed("g") == {}
    producer.commit_transaction()
    assert fake.committed("g") == {("t", 0): 5, ("t", 2): 7}
    assert fake.committed_metadata("g") == {("t", 0): "", ("t", 2): "seven"}
    producer.begin_transaction()
    producer.send_offsets_to_transaction({TP: 9}, "g")
    producer.abort_transaction()
    assert fake.committed("g") == {("t", 0): 5, ("t", 2): 7}
    assert fake.pending_offsets("g") == {}
    producer.begin_transaction()
    producer.send_offsets_to_transaction({}, "g")
    producer.send_offsets_to_transaction({TP: 10}, "g")
    producer.commit_transaction()
    assert fake.committed("g")["t", 0] == 10


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([TP], "offsets is a dict such as .*, got \\[TopicPartition"),
        (None, "offsets is a dict such as .*, got None"),
        ({"t": 1}, "a partition is TopicPartition.*, got 't'"),
        ({("t", "0"): 1}, "the partition of topic t is a whole number"),
        ({TP: "1"}, "cannot commit offset '1' of t-0; give a whole number"),
    ],
)
def test_offsets_that_are_none(fake_cluster: FakeCluster, offsets: Any, message: str) -> None:
    with opened(fake_cluster) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        with pytest.raises(OptionError, match=message):
            producer.send_offsets_to_transaction(offsets, "g")


def test_offsets_of_a_topic_that_is_not_there(
    fake: FakeCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ApiHandler, "grace_ms", 300)
    producer.begin_transaction()
    with pytest.raises(UnknownTopicError, match=r"group 'g' for zzz-0"):
        producer.send_offsets_to_transaction({TP: 1, TopicPartition("zzz", 0): 5}, "g", WAIT_S)
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({TP: 1}, "g")
    producer.commit_transaction()


def test_offsets_of_a_member_that_is_not_in_the_group(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    with opened(fake_cluster) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        message = "not in the group any more.*abort the transaction"
        with pytest.raises(CommitFailedError, match=message):
            producer.send_offsets_to_transaction({TP: 5}, GroupMetadata("g", 3, "gone"))
        with pytest.raises(TransactionError, match="can only be aborted"):
            producer.commit_transaction()
        producer.abort_transaction()
        request = fake_cluster.requests_of("TxnOffsetCommit")[0].message
        assert (request.generation_id_or_member_epoch, request.member_id) == (3, "gone")
        producer.begin_transaction()
        for offsets, group, said in (
            ({TP: -1}, "g", "cannot commit offset .* of t-0; give a whole number"),
            ({TP: "5"}, "g", "cannot commit offset .* of t-0; give a whole number"),
            ({TP: 5}, "", "group must be a group's name"),
        ):
            with pytest.raises(OptionError, match=said):
                producer.send_offsets_to_transaction(offsets, group)


def test_no_authorisation(fake_cluster: FakeCluster) -> None:
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    fake_cluster.fault(code, api="InitProducerId")
    with opened(fake_cluster) as producer:
        with pytest.raises(BrokerError, match="may not use the transactional id"):
            producer.init_transactions()
        with pytest.raises(TransactionError, match="cannot continue"):
            producer.begin_transaction()


def test_close_and_leaving_with_an_error_abort(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    with pytest.raises(ZeroDivisionError):
        with Producer(settings(fake_cluster, transactional_id="a")) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"").result(WAIT_S)
            _ = 1 / 0
    assert fake_cluster.open_transactions() == []
    assert committed(fake_cluster) == []
    with Producer(settings(fake_cluster, transactional_id="a")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"").result(WAIT_S)
    assert fake_cluster.open_transactions() == []
    assert committed(fake_cluster) == []


def test_threads_send_in_one_transaction(fake: FakeCluster, producer: Producer) -> None:
    producer.begin_transaction()

    def work(number: int) -> None:
        for row in range(200):
            producer.send("t", b"%d:%03d" % (number, row))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    producer.commit_transaction()
    assert committed(fake) == [b"%d:%03d" % (n, row) for n in range(4) for row in range(200)]


def test_moving_coordinators(fake: FakeCluster, producer: Producer) -> None:
    for number in range(3):
        producer.begin_transaction()
        producer.send("t", b"%d" % number)
        producer.flush()
        fake.move_coordinator("tid", (fake.coordinator("tid") + 1) % 3)
        fake.move_coordinator("g", (fake.coordinator("g") + 1) % 3)
        producer.send_offsets_to_transaction({TP: number}, "g")
        producer.commit_transaction()
    assert committed(fake) == [b"0", b"1", b"2"]
    assert fake.committed("g") == {("t", 0): 2}


def test_a_commit_in_a_callback_can_still_be_aborted(producer: Producer) -> None:
    errors: list[KafkaError] = []
    tried = threading.Event()

    def commit(_: object) -> None:
        producer.send("t", b"more")
        try:
            producer.commit_transaction()
        except KafkaError as error:
            errors.append(error)
        tried.set()

    producer.begin_transaction()
    producer.send("t", b"x").add_callback(commit)
    assert tried.wait(WAIT_S)
    assert "not in a callback" in str(errors[0])
    producer.abort_transaction()
    producer.begin_transaction()
