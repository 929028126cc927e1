"""commit(asynchronous=True): in the order of the calls, with callbacks on the user's thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sparkkafka.client.consumer import consumer_coordinator
from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition
from sparkkafka.errors import (
    BrokerError,
    CommitFailedError,
    ErrorCode,
    KafkaTimeoutError,
    OptionError,
)
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Delay, Drop, ErrorResponse
from tests.client.support import fill, settings
from tests.support.waiting import Hold

WAIT_S = 10.0
TP = TopicPartition("t", 0)


@pytest.fixture
def filled(fake_cluster: FakeCluster) -> FakeCluster:
    fake_cluster.create_topic("t", partitions=2)
    fill(fake_cluster, "t", 100, partitions=2)
    fake_cluster.clear_requests()
    return fake_cluster


def consumer(cluster: Any, **config: Any) -> Consumer:
    given = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    given |= {"request_timeout_ms": 1500, "default_api_timeout_ms": 3000}  # below WAIT_S
    return Consumer(settings(cluster, **(given | config)))


@pytest.fixture(params=["assign", "classic", "consumer"])
def member(filled: FakeCluster, request: pytest.FixtureRequest) -> Iterator[Consumer]:
    """A consumer that reads both partitions: without a membership, and in both protocols."""
    protocol = "classic" if request.param == "assign" else request.param
    with consumer(filled, group_protocol=protocol) as source:
        if request.param == "assign":
            source.assign([TP, TopicPartition("t", 1)])
        else:
            source.subscribe(["t"])
            while not source.assignment():
                source.poll(WAIT_S)
        filled.clear_requests()
        yield source


class RecordingCallback:
    """A callback that records its arguments and its threads."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, Exception | None]] = []
        self.threads: set[int] = set()

    def __call__(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], error: Exception | None
    ) -> None:
        self.rows.append((offsets[TP].offset, error))
        self.threads.add(threading.get_ident())


def committed(cluster: FakeCluster) -> list[int]:
    """The offsets of TP in the order in which the broker got commits of them."""
    return [
        partition.committed_offset
        for request in cluster.requests_of("OffsetCommit")
        for topic in request.message.topics
        for partition in topic.partitions
        if partition.partition_index == 0
    ]


def refuse_later(cluster: FakeCluster, code: ErrorCode) -> Hold:
    """Let the next commit be refused with this code, once the Hold is released."""
    hold = Hold()

    def refuse(request: object) -> ErrorCode:
        hold(request)
        return code

    cluster.fault(refuse, api="OffsetCommit")
    return hold


@pytest.mark.slow
def test_it_does_not_wait_and_callbacks_run_in_poll(filled: FakeCluster, member: Consumer) -> None:
    recorded = RecordingCallback()
    hold = Hold()
    filled.fault(hold, api="OffsetCommit")
    member.commit({TP: 5}, asynchronous=True, callback=recorded)
    member.commit({TP: OffsetAndMetadata(6, "why")}, asynchronous=True, callback=recorded)
    assert recorded.rows == []
    hold.release()
    until_s = time.monotonic() + WAIT_S
    while len(recorded.rows) < 2 and time.monotonic() < until_s:
        member.poll(0.05)
    assert recorded.rows == [(5, None), (6, None)]
    assert recorded.threads == {threading.get_ident()}
    assert committed(filled) == [5, 6]
    assert filled.committed_metadata("g")["t", 0] == "why"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_metadata_that_utf8_cannot_encode_is_refused(
    filled: FakeCluster, member: Consumer, asynchronous: bool
) -> None:
    with pytest.raises(OptionError, match=r"the metadata beside offset 5 of t-0 .* UTF-8"):
        member.commit({TP: OffsetAndMetadata(5, "\udcff")}, asynchronous=asynchronous)
    member.commit({TP: 6})
    assert committed(filled) == [6]


def test_a_poll_that_waits_calls_back_at_once(filled: FakeCluster) -> None:
    with consumer(filled) as source:
        source.assign({TP: -1})
        source.poll(0.1)
        filled.fault(Delay(200), api="OffsetCommit", times=1)
        # The record that ends the wait is written by the callback.
        source.commit({TP: 5}, asynchronous=True, callback=lambda *_: fill(filled, "t", 1))
        assert len(source.poll(60.0)) == 1


def test_a_later_commit_that_waits_is_not_overtaken(filled: FakeCluster, member: Consumer) -> None:
    recorded = RecordingCallback()
    filled.fault(ErrorResponse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), api="OffsetCommit", times=3)
    for offset in range(1, 6):
        member.commit({TP: offset}, asynchronous=True, callback=recorded)
    member.commit({TP: 6})
    # The callbacks of all before it have run, and each earlier one came first.
    assert recorded.rows == [(offset, None) for offset in range(1, 6)]
    assert committed(filled) == [1, 1, 1, 1, 2, 3, 4, 5, 6]
    assert filled.committed("g")["t", 0] == 6


def test_a_commit_that_waits_in_vain_commits_nothing(filled: FakeCluster) -> None:
    with consumer(filled) as source:
        source.assign([TP])
        filled.fault(Delay(800, before=True), api="OffsetCommit", times=1)
        source.commit({TP: 5}, asynchronous=True)
        with pytest.raises(KafkaTimeoutError, match=r"nothing was committed: earlier .*group 'g'"):
            source.commit({TP: 6}, timeout_s=0.2)
    assert filled.committed("g") == {("t", 0): 5}


def test_without_offsets_it_is_where_poll_is(filled: FakeCluster, member: Consumer) -> None:
    member.seek_to_beginning()
    count = 0
    while count < 100:
        count += len(member.poll(WAIT_S))
    member.commit(asynchronous=True)
    member.seek(TP, 3)  # what counts is where it was at the call
    member.commit({}, timeout_s=WAIT_S)
    assert filled.committed("g") == {("t", 0): 50, ("t", 1): 50}


def test_close_waits_for_them_and_tells(filled: FakeCluster) -> None:
    recorded = RecordingCallback()
    source = consumer(filled)
    source.subscribe(["t"])
    while not source.assignment():
        source.poll(WAIT_S)
    filled.fault(Delay(300, before=True), api="OffsetCommit", times=1)
    source.commit({TP: 5}, asynchronous=True, callback=recorded)
    source.commit({TP: 6}, asynchronous=True, callback=recorded)
    source.close()
    assert recorded.rows == [(5, None), (6, None)]
    assert filled.committed("g") == {("t", 0): 6}


@pytest.mark.parametrize("where", ["coordinator", "response"])
def test_close_gives_up_at_its_deadline_and_says_so(filled: FakeCluster, where: str) -> None:
    recorded = RecordingCallback()
    source = consumer(filled)
    source.assign([TP])
    if where == "response":
        filled.fault(Delay(60_000), api="OffsetCommit", times=None)
    else:
        filled.fault(Drop.BEFORE, api="FindCoordinator", times=None)
    source.commit({TP: 5}, asynchronous=True, callback=recorded)
    source.commit({TP: 6}, asynchronous=True, callback=recorded)
    source.close(0.3)
    assert [row[0] for row in recorded.rows] == [5, 6]
    assert all(row[1] is not None for row in recorded.rows)
    until_s = time.monotonic() + WAIT_S
    while any(thread.name == "kafka-commits" for thread in threading.enumerate()):
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_refusal_is_for_the_callback_or_the_log(
    filled: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    recorded = RecordingCallback()
    with consumer(filled) as source:
        source.assign([TP])
        filled.fault(
            ErrorResponse(ErrorCode.GROUP_AUTHORIZATION_FAILED), api="OffsetCommit", times=2
        )
        source.commit({TP: 5}, asynchronous=True, callback=recorded)
        with caplog.at_level(logging.WARNING):
            source.commit({TP: 6}, asynchronous=True)
            source.commit({TP: 7}, asynchronous=True, callback=recorded)
            source.commit({})
    ((_, refused), last) = recorded.rows
    assert isinstance(refused, BrokerError)
    assert "grant READ on group g" in str(refused)
    assert last == (7, None)
    (row,) = [row.getMessage() for row in caplog.records if "asynchronous" in row.getMessage()]
    assert "the asynchronous commit of t-0 failed" in row


@pytest.mark.slow
@pytest.mark.parametrize("member", ["classic", "consumer"], indirect=True)
def test_what_is_lost_by_then_is_not_committed(filled: FakeCluster, member: Consumer) -> None:
    """As the member that it was: the coordinator refuses, whoever has the partition by then."""
    recorded = RecordingCallback()
    metadata = member.group_metadata()
    filled.fault(Delay(500, before=True), api="OffsetCommit", times=1)
    member.commit({TP: 5}, asynchronous=True, callback=recorded)
    member.commit({TP: 6}, asynchronous=True, callback=recorded)
    filled.wait_for_requests("OffsetCommit", 1)
    filled.remove_member("g", metadata.member_id)
    until_s = time.monotonic() + WAIT_S
    while len(recorded.rows) < 2 and time.monotonic() < until_s:
        member.poll(0.05)
    assert isinstance(recorded.rows[1][1], CommitFailedError)
    assert 6 not in filled.committed("g").values()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_rebalance_waits_for_them_before_it_revokes(filled: FakeCluster, protocol: str) -> None:
    events = []
    with consumer(filled, group_protocol=protocol) as source:
        source.subscribe(["t"], on_revoked=lambda _: events.append("revoked"))
        while not source.assignment():
            source.poll(WAIT_S)
        filled.fault(Delay(200), api="OffsetCommit")
        source.commit({TP: 5}, asynchronous=True, callback=lambda *_: events.append("committed"))
        source.subscribe(["other"], on_revoked=lambda _: events.append("revoked"))
        while source.assignment():
            source.poll(0.05)
    assert events == ["committed", "revoked"]


def test_one_of_an_earlier_generation_that_is_refused_ends_no_membership(
    filled: FakeCluster,
) -> None:
    recorded = RecordingCallback()
    lost: list[TopicPartition] = []
    hold = refuse_later(filled, ErrorCode.ILLEGAL_GENERATION)
    filled.create_topic("u")
    with consumer(filled, partition_assignment_strategy="cooperative-sticky") as source:
        source.subscribe(["t"], on_lost=lost.extend)
        while not source.assignment():
            source.poll(WAIT_S)
        source.commit({TP: 5}, asynchronous=True, callback=recorded)
        source.subscribe(["t", "u"], on_lost=lost.extend)
        while len(source.assignment()) < 3:  # keeps its partitions meanwhile
            source.poll(0.05)
        hold.release()
        while not recorded.rows:
            source.poll(0.05)
        source.poll(0)
        assert [type(error) for _, error in recorded.rows] == [CommitFailedError]
        assert not lost
        assert len(source.assignment()) == 3


def test_one_of_a_lost_membership_is_not_sent_again_by_the_next(filled: FakeCluster) -> None:
    recorded = RecordingCallback()
    lost: list[TopicPartition] = []
    hold = refuse_later(filled, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    with consumer(filled, group_protocol="consumer") as source:
        source.subscribe(["t"], on_lost=lost.extend)
        while not source.assignment():
            source.poll(WAIT_S)
        source.commit({TP: 5}, asynchronous=True, callback=recorded)
        filled.wait_for_requests("OffsetCommit")
        filled.remove_member("g", source.group_metadata().member_id)
        while not lost or not source.assignment():
            source.poll(0.05)
        hold.release()
        while not recorded.rows:
            source.poll(0.05)
    # Another member may have had the partition meanwhile, and committed more.
    assert [type(error) for _, error in recorded.rows] == [CommitFailedError]
    assert filled.committed("g") == {}


def test_one_of_a_revoked_partition_is_not_sent_again_in_the_next_epoch(
    filled: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_coordinator, "AUTO_COMMIT_MS", 50)  # a rebalance waits as long
    recorded = RecordingCallback()
    hold = refuse_later(filled, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    given = {"group_protocol": "consumer"}
    with consumer(filled, **given) as source, consumer(filled, **given) as other:
        source.subscribe(["t"])
        while len(source.assignment()) < 2:
            source.poll(0.05)
        epoch = source.group_metadata().generation_id
        source.commit({TP: 5, TopicPartition("t", 1): 5}, asynchronous=True, callback=recorded)
        other.subscribe(["t"])
        while not other.assignment() or source.group_metadata().generation_id == epoch:
            source.poll(0.05)
            other.poll(0.05)
        hold.release()
        while not recorded.rows:
            source.poll(0.05)
    assert [type(error) for _, error in recorded.rows] == [CommitFailedError]
    assert filled.committed("g") == {}


def test_one_that_is_no_member_yet_gets_the_error_in_the_callback(filled: FakeCluster) -> None:
    recorded = RecordingCallback()
    with consumer(filled) as source:
        source.subscribe(["t"])
        source.commit({TP: 5}, asynchronous=True, callback=recorded)
        while not recorded.rows:
            source.poll(0.05)
    assert isinstance(recorded.rows[0][1], CommitFailedError)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_to_commit_nothing_no_member_need_be_in_its_group(
    filled: FakeCluster, protocol: str
) -> None:
    """As a synchronous commit before the first assignment, which loops around poll may make."""
    errors: list[Exception | None] = []
    with consumer(filled, group_protocol=protocol) as source:
        source.subscribe(["t"])
        source.commit()
        source.commit(asynchronous=True, callback=lambda _, error: errors.append(error))
    assert errors == [None]


def test_what_a_callback_raises_comes_out_of_the_call(filled: FakeCluster) -> None:
    recorded = RecordingCallback()

    def spoil(*_: Any) -> None:
        raise ZeroDivisionError

    with consumer(filled) as source:
        source.assign([TP])
        source.commit({TP: 5}, asynchronous=True, callback=spoil)
        source.commit({TP: 6}, asynchronous=True, callback=recorded)
        with pytest.raises(ZeroDivisionError):
            source.commit({TP: 7})
        source.poll(0)
        assert recorded.rows == [(6, None)]
    assert filled.committed("g") == {("t", 0): 7}


def test_a_callback_is_for_asynchronous_ones_in_a_group(filled: FakeCluster) -> None:
    with consumer(filled) as source:
        with pytest.raises(OptionError, match="callback needs asynchronous=True"):
            source.commit({TP: 5}, callback=print)
        with pytest.raises(OptionError, match="cannot commit offset -1"):
            source.commit({TP: -1}, asynchronous=True)
    with Consumer(settings(filled)) as source:
        source.assign([TP])
        with pytest.raises(OptionError, match=r"set group\.id"):
            source.commit({TP: 5}, asynchronous=True)
