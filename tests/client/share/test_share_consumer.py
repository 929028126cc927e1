"""A ShareConsumer beside fake brokers: what it says to them, and what can go wrong."""

from __future__ import annotations

import contextlib
import logging
import random
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.client import AcknowledgeType, Deadline, ShareConsumer, ShareRecord
from sparkkafka.client import share as module
from sparkkafka.client.share import ShareFetcher
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import (
    AcknowledgeError,
    BrokerError,
    ConsumerStateError,
    CorruptRecordError,
    DecodeError,
    ErrorCode,
    KafkaTimeoutError,
    OptionError,
    UnsupportedVersionError,
    WakeupError,
)
from sparkkafka.protocol.messages import (
    AcquiredRecords,
    ShareAcknowledgeResponse,
    ShareFetchableTopicResponse,
    ShareFetchResponse,
    SharePartitionData,
)
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Delay, Drop, ErrorResponse
from tests.client.support import fill, settings
from tests.support.waiting import Hold, wait_until

EXPLICIT = {"share.acknowledgement.mode": "explicit"}
TP = TopicPartition("t", 0)
WAIT_S = 10.0


@pytest.fixture
def fake(fake_cluster_factory: Any) -> FakeCluster:
    cluster: FakeCluster = fake_cluster_factory(2, kafka_version="4.2")
    cluster.create_topic("t", partitions=2)
    return cluster


def member(fake: FakeCluster, topic: str = "t", **config: Any) -> ShareConsumer:
    given = settings(fake, group_id="g", fetch_max_wait_ms=100, retry_backoff_ms=20)
    found = ShareConsumer(given | {name.replace("_", "."): row for name, row in config.items()})
    found.subscribe([topic])
    return found


def poll(consumer: ShareConsumer, count: int = 1) -> list[ShareRecord]:
    """What polls return until there are this many records."""
    found: list[ShareRecord] = []
    end_s = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < end_s, f"{len(found)} records of {count}"
        found += consumer.poll(0.2)
    return found


def said(fake: FakeCluster) -> list[tuple[int, int, tuple[int, ...]]]:
    """Acknowledgements in the order in which they came: first offset, last, types."""
    return [
        (batch.first_offset, batch.last_offset, tuple(batch.acknowledge_types))
        for row in fake.requests
        if row.api in ("ShareFetch", "ShareAcknowledge") and row.message is not None
        for topic in row.message.topics
        for part in topic.partitions
        for batch in part.acknowledgement_batches
    ]


def share(fake: FakeCluster, partition: int = 0) -> Any:
    """What the fake knows of a partition of the group."""
    topic = fake.state.topics["t"]
    return fake.state.group("g").share.partitions[topic.topic_id, partition]


def respond_with(
    fake: FakeCluster, rows: list[SharePartitionData], *, times: int | None = 1
) -> None:
    """The leader of t-0 answers so to ShareFetch."""
    topic_id = fake.state.topics["t"].topic_id
    part = ShareFetchableTopicResponse(topic_id=topic_id, partitions=rows)
    fake.fault(
        lambda _: ShareFetchResponse(responses=[part]),
        api="ShareFetch",
        broker=fake.leader("t", 0),
        times=times,
    )


def test_one_metadata_request_and_no_wakeups_without_a_reason(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(fake, "t", 30)
    fake.clear_requests()
    wakeups = 0
    receive = ShareFetcher.receive

    def counting(fetcher: ShareFetcher, wait_s: float) -> None:
        nonlocal wakeups
        wakeups += 1
        receive(fetcher, wait_s)

    with member(fake, fetch_max_wait_ms=2_000) as consumer:
        poll(consumer, 30)
        consumer.poll(0)  # accepts them, and requests more
        monkeypatch.setattr(ShareFetcher, "receive", counting)
        assert not consumer.poll(1.5)
        assert wakeups <= 5
    assert len(fake.requests_of("Metadata")) == 1
    assert len(fake.requests_of("FindCoordinator")) == 1


def test_records_are_accepted_by_the_next_poll(fake: FakeCluster) -> None:
    fill(fake, "t", 30)
    with member(fake) as consumer:
        assert consumer.acquisition_lock_timeout_ms is None
        first = poll(consumer)
        assert [row.value for row in first] == [b"%d" % n for n in range(30)]
        assert first[0] == ("t", 0, 0, 1_700_000_000_000, 0, None, b"0", (), 1)
        assert consumer.acquisition_lock_timeout_ms == 30_000
        assert consumer.assignment() == {TP, TopicPartition("t", 1)}
        assert said(fake) == []
        assert consumer.poll(0.3) == []
        assert said(fake) == [(0, 29, (1,))]
        assert share(fake).start == 30
    opened, *_, closed = [row.message for row in fake.requests_of("ShareFetch")] + [
        row.message for row in fake.requests_of("ShareAcknowledge")
    ]
    assert (opened.share_session_epoch, closed.share_session_epoch) == (0, -1)
    beats = [row.message for row in fake.requests_of("ShareGroupHeartbeat")]
    assert (beats[0].member_epoch, beats[0].subscribed_topic_names) == (0, ["t"])
    assert (beats[-1].member_epoch, beats[-1].subscribed_topic_names) == (-1, None)
    assert {row.subscribed_topic_names for row in map(lambda row: row, beats[1:])} == {None}


def test_metrics(fake: FakeCluster) -> None:
    fill(fake, "t", 30)
    with member(fake) as consumer:
        poll(consumer)
        consumer.commit()
        poll_again = consumer.poll(0)
        share(fake).held.clear()
        found = consumer.metrics()
    assert poll_again == []
    fetching = found["consumer-share-fetch-manager-metrics"]
    assert fetching["records-consumed-total"] == fetching["acknowledgements-send-total"] == 30
    assert fetching["bytes-consumed-total"] == sum(len(b"%d" % n) for n in range(30))
    assert fetching["acknowledgements-error-total"] == 0
    assert fetching["fetch-total"] >= 1
    assert found["consumer-share-fetch-manager-metrics,topic=t"]["records-consumed-total"] == 30
    assert found["consumer-share-coordinator-metrics"]["heartbeat-total"] >= 1
    assert found["consumer-share-metrics"]["request-total"] > 3


def test_a_session_names_only_what_is_new(fake: FakeCluster) -> None:
    fake.create_topic("one")
    fill(fake, "one", 10)
    with member(fake, "one") as consumer:
        poll(consumer, 10)
        consumer.poll(0.3)
        fill(fake, "one", 10)
        poll(consumer, 10)
    fetches = [row.message for row in fake.requests_of("ShareFetch")]
    assert [row.share_session_epoch for row in fetches] == list(range(len(fetches)))
    assert [len(row.topics) for row in fetches[:2]] == [1, 1], "the second one acknowledges"
    assert not any(row.topics for row in fetches[2:])


def test_commit_waits_for_the_response(fake: FakeCluster) -> None:
    fill(fake, "t", 10)
    results: list[Any] = []
    with member(fake) as consumer:
        consumer.set_acknowledgement_commit_callback(lambda *row: results.append(row))
        poll(consumer)
        consumer.commit()
        assert share(fake).start == 10
        assert results == [(TP, [range(10)], None)]
        consumer.commit()
        assert said(fake) == [(0, 9, (1,))], "nothing is said twice"


def test_close_gives_back_what_is_not_acknowledged(fake: FakeCluster) -> None:
    fill(fake, "t", 10)
    with member(fake) as consumer:
        poll(consumer)
    assert said(fake) == []
    with member(fake) as other:
        assert [row.delivery_count for row in poll(other)] == [2] * 10


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_a_member_that_is_dropped_without_close_leaves(fake: FakeCluster) -> None:
    """Its thread must not keep it alive: it would hold its records, and stay in the group."""
    fill(fake, "t", 3, partitions=2)
    dropped = member(fake)
    poll(dropped, 3)
    threads = [thread for thread in threading.enumerate() if thread.name == "kafka-group-g"]
    assert threads
    reference = weakref.ref(dropped)
    del dropped
    assert reference() is None
    wait_until(lambda: not fake.group_members("g"), WAIT_S)
    for thread in threads:  # its end leaves sockets open, and must be in this test
        thread.join(WAIT_S)


def test_explicit(fake: FakeCluster) -> None:
    fill(fake, "t", 6)
    with member(fake, **EXPLICIT) as consumer:
        rows = poll(consumer)
        consumer.acknowledge(rows[0])
        consumer.acknowledge(rows[1], AcknowledgeType.RELEASE)
        consumer.acknowledge_offset(TP, 2, AcknowledgeType.REJECT)
        with pytest.raises(
            ConsumerStateError, match=r"3 records .* not acknowledged.* offset 3 of"
        ):
            consumer.poll(0)
        consumer.commit()
        assert said(fake) == [(0, 2, (1, 2, 3))]
        with pytest.raises(ConsumerStateError, match="no record 1 of t-0"):
            consumer.acknowledge(rows[1])
        for row in rows[3:]:
            consumer.acknowledge(row)
        again = poll(consumer)
        assert [(row.offset, row.delivery_count) for row in again] == [(1, 2)]
        consumer.acknowledge(again[0])
    assert share(fake).start == 6, "close sends what was acknowledged"


def test_renewed_records_come_again_before_new_ones(fake: FakeCluster) -> None:
    fill(fake, "t", 6)
    with member(fake, **EXPLICIT) as consumer:
        rows = poll(consumer)
        for row in rows:
            kind = AcknowledgeType.RENEW if row.offset in (1, 4) else AcknowledgeType.ACCEPT
            consumer.acknowledge(row, kind)
        fill(fake, "t", 3)
        again = poll(consumer)
        assert again == [rows[1], rows[4]], "the same records, not delivered anew"
        assert said(fake) == [(0, 5, (1, 4, 1, 1, 4, 1))]
        assert sorted(share(fake).held) == [1, 4]
        with pytest.raises(ConsumerStateError, match=r"2 records .* not acknowledged"):
            consumer.poll(0)
        consumer.acknowledge(again[0], AcknowledgeType.RENEW)
        consumer.acknowledge(again[1])
        consumer.commit()
        with pytest.raises(ConsumerStateError, match="no record 1 of t-0"):
            consumer.acknowledge(again[0])
        assert poll(consumer) == [rows[1]]
        consumer.acknowledge(rows[1])
        assert [row.offset for row in poll(consumer)] == [6, 7, 8]
    assert share(fake).start == 6
    renewing = [row.message.is_renew_ack for row in fake.requests_of("ShareAcknowledge")]
    assert renewing.count(True) == 2
    assert not any(row.message.is_renew_ack for row in fake.requests_of("ShareFetch"))


def test_a_renewal_that_fails(fake: FakeCluster) -> None:
    fill(fake, "t", 2)
    results = []
    with member(fake, **EXPLICIT) as consumer:
        consumer.set_acknowledgement_commit_callback(lambda *row: results.append(row))
        for row in poll(consumer):
            consumer.acknowledge(row, AcknowledgeType.RENEW)
        share(fake).held.clear()
        again = poll(consumer)
        assert [row.delivery_count for row in again] == [2, 2], "it is handed out anew"
    assert results[0][1] == [range(2)]
    assert results[0][2].code == ErrorCode.INVALID_RECORD_STATE


def test_who_ends_gives_back_what_it_would_have_renewed(fake: FakeCluster) -> None:
    fill(fake, "t", 3)
    with member(fake, **EXPLICIT) as consumer:
        for row in poll(consumer):
            consumer.acknowledge(row, AcknowledgeType.RENEW)
    assert said(fake) == [(0, 2, (2,))]
    with member(fake) as consumer:
        assert [row.delivery_count for row in poll(consumer)] == [2] * 3


def test_a_renewal_needs_kafka_4_2(fake_cluster_factory: Any) -> None:
    old = {"ShareAcknowledge": (1, 1)}
    cluster = fake_cluster_factory(1, kafka_version="4.2", api_versions=old)
    cluster.create_topic("t")
    fill(cluster, "t", 1)
    with member(cluster, **EXPLICIT) as consumer:
        (row,) = poll(consumer)
        with pytest.raises(UnsupportedVersionError, match=r"RENEW needs Kafka 4.2 .* t-0"):
            consumer.acknowledge(row, AcknowledgeType.RENEW)
        consumer.acknowledge(row)
        consumer.commit()


def test_acknowledge_says_what_it_wants(fake: FakeCluster) -> None:
    fill(fake, "t", 2)
    with member(fake) as consumer:
        (row, *_) = poll(consumer)
        with pytest.raises(ConsumerStateError, match=r"share.acknowledgement.mode=explicit"):
            consumer.acknowledge(row)
    with member(fake, **EXPLICIT) as consumer:
        (row, *_) = poll(consumer)
        with pytest.raises(OptionError, match="kind is an AcknowledgeType"):
            consumer.acknowledge(row, 1)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="record is a ShareRecord"):
            consumer.acknowledge(("t", 0, 0))  # type: ignore[arg-type]
        with pytest.raises(ConsumerStateError, match="no record 7 of"):
            consumer.acknowledge_offset(TP, 7)


def test_two_members_share_one_partition(fake: FakeCluster) -> None:
    fill(fake, "t", 40)
    with member(fake, max_poll_records=10) as first, member(fake, max_poll_records=10) as second:
        got = [poll(consumer, 10) for consumer in (first, second, first, second)]
        for consumer in (first, second):
            consumer.commit()
    assert sorted(row.offset for rows in got for row in rows) == list(range(40))
    assert share(fake).start == 40


def test_a_lost_session_gives_the_records_to_others(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fill(fake, "t", 10)
    with member(fake) as consumer:
        poll(consumer)
        fake.fault(
            ErrorResponse(ErrorCode.SHARE_SESSION_NOT_FOUND, top_level=True), api="ShareAcknowledge"
        )
        with pytest.raises(AcknowledgeError, match="SHARE_SESSION_NOT_FOUND") as caught:
            consumer.commit()
        assert list(caught.value.errors) == [TP]
        caplog.clear()
        again = poll(consumer)
        assert [row.delivery_count for row in again] == [2] * 10
        consumer.commit()
        assert caplog.records == []
    epochs = [row.message.share_session_epoch for row in fake.requests_of("ShareFetch")
              if row.broker == fake.leader("t", 0)]  # fmt: skip
    assert epochs.count(0) == 2


def test_a_broken_connection_is_reported(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fill(fake, "t", 10)
    with member(fake) as consumer:
        poll(consumer)
        fake.fault(Drop.BEFORE, api="ShareFetch", broker=fake.leader("t", 0))
        again = poll(consumer)  # accepts the first ones, which does not arrive
        assert [row.delivery_count for row in again] == [2] * 10
        consumer.poll(0)
        assert "acknowledgements of t-0 failed" in caplog.text


def test_records_of_a_session_that_is_over_cannot_be_acknowledged(fake: FakeCluster) -> None:
    """Between poll and acknowledge, another fetch of the same leader found the session gone."""
    fill(fake, "t", 10)
    with member(fake, **EXPLICIT) as consumer:
        rows = poll(consumer)
        for session in consumer._fetcher._leaders.values():
            session.lose()
        for row in rows:
            consumer.acknowledge(row)
        with pytest.raises(AcknowledgeError, match=r"share session with broker . .* is over"):
            consumer.commit()


def test_time_is_over(fake: FakeCluster) -> None:
    fill(fake, "t", 10)
    with member(fake) as consumer:
        poll(consumer)
        share(fake).held.clear()
        with pytest.raises(
            AcknowledgeError, match=r"group.share.record.lock.duration.ms had passed"
        ):
            consumer.commit()


def test_the_leader_moves(fake: FakeCluster) -> None:
    fill(fake, "t", 10)
    with member(fake) as consumer:
        rows = poll(consumer)
        former = fake.leader("t", 0)
        fake.move_leader("t", 0, 1 - former)
        with pytest.raises(AcknowledgeError, match="NOT_LEADER_OR_FOLLOWER"):
            consumer.commit()
        # The end of its session comes after the new leader has handed out the records.
        late = fake.fault(Delay(100, before=True), api="ShareAcknowledge", broker=former)
        again = poll(consumer)
        assert [row.offset for row in again] == [row.offset for row in rows]
        sessions = fake.state.group("g").share.sessions
        wait_until(lambda: {broker for _, broker in sessions} == {1 - former})
        assert late.fired == 1
        consumer.commit()
        assert share(fake).start == 10


def test_a_broker_that_dies(fake: FakeCluster) -> None:
    fill(fake, "t", 40, partitions=2, per_send=10)
    seen: set[tuple[int, int]] = set()
    with member(fake) as consumer:
        rows = poll(consumer)
        fake.broker_down(fake.leader("t", 0))
        end_s = time.monotonic() + WAIT_S
        while len(seen) < 40:
            assert time.monotonic() < end_s
            seen |= {(row.partition, row.offset) for row in rows}
            with contextlib.suppress(AcknowledgeError):
                consumer.commit()
            rows = consumer.poll(0.2)
        with contextlib.suppress(AcknowledgeError):
            consumer.commit()


def test_an_outage_does_not_warn_of_each_lookup(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fill(fake, "t", 10)
    with member(fake) as consumer:
        poll(consumer)
        consumer.commit()  # else the outage may hit its acknowledgements, which is a warning
        for broker in fake.broker_ids:
            fake.broker_down(broker)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            assert consumer.poll(2.5) == []
        assert "metadata of topic t: gave up" in caplog.text
        warnings = [row for row in caplog.records if row.levelno >= logging.WARNING]
        assert [row.message for row in warnings if "heartbeat" not in row.message] == []
        for broker in fake.broker_ids:
            fake.broker_up(broker)


def test_no_response_to_commit(fake: FakeCluster) -> None:
    fill(fake, "t", 10)
    with member(fake) as consumer:
        poll(consumer)
        hold = Hold()
        fake.fault(hold, api="ShareAcknowledge")
        with pytest.raises(KafkaTimeoutError, match="whether the brokers have them is not known"):
            consumer.commit(0.2)
        hold.release()


def test_damage_is_an_error_once_and_the_rest_is_read(fake: FakeCluster) -> None:
    for _ in range(3):
        fill(fake, "t", 20)
    raw = bytearray(fake.log("t", 0).raw())
    first, second, third = (batch.size_bytes for batch in fake.log("t", 0).batches())
    raw[first + second - 3] ^= 0xFF
    fake.recreate_topic("t")
    for start, size in ((0, first), (first, second), (first + second, third)):
        fake.append("t", 0, bytes(raw[start : start + size]))
    good: list[int] = []
    errors = []
    with member(fake) as consumer:
        end_s = time.monotonic() + WAIT_S
        while len(good) < 40:
            assert time.monotonic() < end_s, (good, errors)
            try:
                good += [row.offset for row in consumer.poll(0.2)]
            except CorruptRecordError as error:
                errors.append(error)
        consumer.commit()
    assert sorted(good) == [*range(20), *range(40, 60)]
    assert [(error.topic, error.offset) for error in errors] == [("t", 20)]
    assert (20, 39, (3,)) in said(fake)


@pytest.mark.parametrize(
    "rows",
    [[(0, 9), (5, 7)], [(9, 0)], [(-5, 3)]],
    ids=["overlap", "backwards", "negative"],
)
def test_ranges_that_are_none(fake: FakeCluster, rows: list[tuple[int, int]]) -> None:
    acquired = [AcquiredRecords(first_offset=a, last_offset=b, delivery_count=1) for a, b in rows]
    row = SharePartitionData(partition_index=0, records=b"", acquired_records=acquired)
    respond_with(fake, [row], times=None)
    with member(fake) as consumer, pytest.raises(DecodeError, match="not ranges in order"):
        poll(consumer)


@pytest.mark.parametrize("numbers", [[7], [0, 0]], ids=["not requested", "twice"])
def test_partitions_that_a_response_cannot_have(fake: FakeCluster, numbers: list[int]) -> None:
    rows = [SharePartitionData(partition_index=number, records=b"") for number in numbers]
    respond_with(fake, rows, times=None)
    with member(fake) as consumer, pytest.raises(DecodeError, match="or has it twice"):
        poll(consumer)


def test_a_response_to_acknowledgements_that_leaves_one_out(fake: FakeCluster) -> None:
    fill(fake, "t", 3)
    with member(fake) as consumer:
        poll(consumer)
        fake.fault(lambda _: ShareAcknowledgeResponse(), api="ShareAcknowledge")
        with pytest.raises(AcknowledgeError, match="the response leaves t-0 out"):
            consumer.commit()


def test_records_that_were_not_sent_are_not_taken_for_gaps(fake: FakeCluster) -> None:
    """A broker that acquires more than it sends: what is missing must not be lost."""
    acquired = [AcquiredRecords(first_offset=0, last_offset=9, delivery_count=1)]
    row = SharePartitionData(partition_index=0, records=b"", acquired_records=acquired)
    respond_with(fake, [row])
    with member(fake) as consumer:
        end_s = time.monotonic() + WAIT_S
        while not said(fake):
            assert consumer.poll(0.1) == []
            assert time.monotonic() < end_s
    assert said(fake)[0] == (0, 9, (2,))


def test_a_range_that_no_memory_could_hold_costs_nothing(fake: FakeCluster) -> None:
    last = 2**62
    acquired = [AcquiredRecords(first_offset=0, last_offset=last, delivery_count=1)]
    respond_with(
        fake, [SharePartitionData(partition_index=0, records=b"", acquired_records=acquired)]
    )
    fake.fault(lambda _: ShareAcknowledgeResponse(), api="ShareAcknowledge", times=None)
    with member(fake) as consumer:
        end_s = time.monotonic() + WAIT_S
        while not said(fake):
            assert consumer.poll(0.1) == []
            assert time.monotonic() < end_s
    assert said(fake)[0] == (0, last, (2,))


def test_who_may_not_read(fake: FakeCluster) -> None:
    fake.fault(
        ErrorResponse(ErrorCode.GROUP_AUTHORIZATION_FAILED, top_level=True),
        api="ShareGroupHeartbeat",
        times=None,
    )
    with member(fake) as consumer, pytest.raises(BrokerError, match="grant READ on it"):
        poll(consumer)


def test_an_error_of_one_partition_leaves_the_others_alone(fake: FakeCluster) -> None:
    """In one response: the session goes on, and what else was acquired in it."""
    fake.create_topic("two", partitions=4)
    fill(fake, "two", 40, partitions=4, per_send=10)
    hidden = fake.leader("two", 0)
    topic_id = fake.state.topics["two"].topic_id
    handler = fake.handlers["ShareFetch"]

    def denied(call: Any) -> Any:
        response = handler(call)
        for topic in response.responses:
            for row in topic.partitions:
                if topic.topic_id == topic_id and row.partition_index == 0:
                    row.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    row.records, row.acquired_records = b"", []
        return response

    fake.handlers["ShareFetch"] = denied
    seen: list[ShareRecord] = []
    errors = 0
    with member(fake, "two") as consumer:
        end_s = time.monotonic() + WAIT_S
        while len(seen) < 30 or not errors:
            assert time.monotonic() < end_s, (len(seen), errors)
            try:
                seen += consumer.poll(0.2)
            except BrokerError as error:
                assert "TOPIC_AUTHORIZATION_FAILED" in str(error)
                errors += 1
        consumer.commit()
    assert {row.delivery_count for row in seen} == {1}
    assert len({(row.partition, row.offset) for row in seen}) == 30
    opened = [row for row in fake.requests_of("ShareFetch")
              if row.broker == hidden and row.message.share_session_epoch == 0]  # fmt: skip
    assert len(opened) == 1


def test_an_error_of_a_whole_response_keeps_the_session(fake: FakeCluster) -> None:
    fill(fake, "t", 10)
    with member(fake) as consumer:
        first = poll(consumer)
        fake.fault(
            ErrorResponse(ErrorCode.UNKNOWN_SERVER_ERROR, top_level=True), api="ShareAcknowledge"
        )
        with pytest.raises(AcknowledgeError, match="UNKNOWN_SERVER_ERROR"):
            consumer.commit()
        assert first[0].delivery_count == 1
        assert share(fake).held, "they are still this member's"


def test_an_outcome_beside_an_error_is_reported(fake: FakeCluster) -> None:
    fill(fake, "t", 10)
    results: list[Any] = []
    with member(fake) as consumer:
        consumer.set_acknowledgement_commit_callback(lambda *row: results.append(row))
        poll(consumer)
        share(fake).held.clear()
        fake.fault(
            ErrorResponse(ErrorCode.TOPIC_AUTHORIZATION_FAILED), api="ShareFetch", times=None
        )
        end_s = time.monotonic() + WAIT_S
        while not results:
            assert time.monotonic() < end_s
            with contextlib.suppress(BrokerError):
                consumer.poll(0.1)
    (row,) = results
    assert row[0] == TP
    assert row[2] is not None


def test_a_topic_that_may_not_be_read(fake: FakeCluster) -> None:
    fill(fake, "t", 3)
    error = ErrorResponse(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    # Of the leader that has the records: they might arrive before an error of the other one.
    fake.fault(error, api="ShareFetch", broker=fake.leader("t", 0))
    with (
        member(fake) as consumer,
        pytest.raises(BrokerError, match=r"TOPIC_AUTHORIZATION_FAILED.*t-0"),
    ):
        poll(consumer)


@pytest.mark.parametrize("release", ["2.8", "4.0"])
def test_older_brokers(fake_cluster_factory: Any, release: str) -> None:
    cluster = fake_cluster_factory(1, kafka_version=release)
    cluster.create_topic("t")
    with (
        member(cluster) as consumer,
        pytest.raises(UnsupportedVersionError, match=r"need brokers of Kafka 4.1 or later"),
    ):
        poll(consumer)


def test_a_limit_of_records_needs_kafka_4_2(fake_cluster_factory: Any) -> None:
    cluster = fake_cluster_factory(1, kafka_version="4.2", api_versions={"ShareFetch": (1, 1)})
    cluster.create_topic("t")
    limit = {"share.acquire.mode": "record_limit"}
    with (
        member(cluster, **limit) as consumer,
        pytest.raises(UnsupportedVersionError, match=r"record_limit needs Kafka 4.2"),
    ):
        poll(consumer)


def test_wakeup_from_another_thread(fake: FakeCluster) -> None:
    with member(fake) as consumer:
        consumer.poll(0.3)
        timer = threading.Timer(0.3, consumer.wakeup)
        timer.start()
        with pytest.raises(WakeupError):
            consumer.poll(WAIT_S)
        timer.join()


def test_ctrl_c_inside_poll_gives_the_records_back(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(fake, "t", 5)
    with member(fake) as consumer:
        collect = module.ShareConsumer._collect

        def interrupted(*given: Any) -> Any:
            if collect(*given):
                raise KeyboardInterrupt
            return []

        with monkeypatch.context() as patched:
            patched.setattr(module.ShareConsumer, "_collect", interrupted)
            with pytest.raises(KeyboardInterrupt):
                poll(consumer)
        assert [row.delivery_count for row in poll(consumer)] == [2] * 5


@pytest.mark.slow
def test_ctrl_c_at_each_line_loses_no_record(fake: FakeCluster) -> None:
    """KeyboardInterrupt at the n-th line of a poll: no record is accepted, or a gap, that no poll
    has returned."""
    folder = str(Path(module.__file__).parent)
    line, is_over = random.randrange(10), False  # each run takes others
    while not is_over and line < 900:
        line += 10
        left = line
        name = f"lines-{line}"
        fake.create_topic(name)
        fill(fake, name, 20)

        def trace(frame: Any, event: str, arg: Any) -> Any:
            nonlocal left
            code = frame.f_code
            if event == "exception" and arg[0] is GeneratorExit:
                return lambda *_: None  # Python drops what is raised while it closes a generator
            # Nor where a lock is held: a trace can raise before its release, where no signal does.
            held = ("FetchMetrics", "ShareMetrics", "NetworkMetrics", "ShareMember")
            if not code.co_filename.startswith(folder) or code.co_qualname.startswith(held):
                return None
            if event == "line":
                left -= 1
                if left == 0:
                    raise KeyboardInterrupt
            return trace

        returned: set[int] = set()
        with member(fake, name, group_id=name, fetch_max_wait_ms=10) as consumer:
            fetcher, end_s = consumer._fetcher, time.monotonic() + WAIT_S
            while not fetcher.acquired:
                assert time.monotonic() < end_s
                consumer._member.poll()
                fetcher.assign(consumer._member.partitions, consumer._member.metadata.member_id)
                fetcher.fetch(Deadline(100))
                fetcher.receive(0.05)
            before = sys.gettrace()
            sys.settrace(trace)
            try:
                returned |= {row.offset for row in consumer.poll(0)}
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(before)
            is_over = left > 0
            for _ in range(2):  # what it has taken, it goes on with
                returned |= {row.offset for row in consumer.poll(0.02)}
            with contextlib.suppress(AcknowledgeError):
                consumer.commit(5)
            topic_id = fake.state.topics[name].topic_id
            found = fake.state.group(name).share.partitions[topic_id, 0]
            done = {*range(found.start), *found.done}
            assert done <= returned, (line, sorted(done - returned))


def test_it_is_used_by_one_thread_and_not_after_close(fake: FakeCluster) -> None:
    consumer = ShareConsumer(settings(fake, group_id="g"))
    with pytest.raises(ConsumerStateError, match="call subscribe"):
        consumer.poll(0)
    with pytest.raises(OptionError, match="topics is empty"):
        consumer.subscribe([])
    consumer.close()
    consumer.close()
    with pytest.raises(ConsumerStateError, match="closed"):
        consumer.poll(0)


def test_unsubscribe_and_again(fake: FakeCluster) -> None:
    fill(fake, "t", 10)
    with member(fake) as consumer:
        poll(consumer)
        consumer.unsubscribe()
        assert (consumer.subscription(), consumer.assignment()) == (set(), set())
        consumer.subscribe("t")
        assert [row.delivery_count for row in poll(consumer)] == [2] * 10


def test_settings_that_a_share_consumer_does_not_have(fake: FakeCluster) -> None:
    for name, value, message in [
        ("auto.offset.reset", "earliest", "share.auto.offset.reset"),
        ("isolation.level", "read_committed", "share.isolation.level"),
        ("enable.auto.commit", "true", "acknowledged"),
        ("group.instance.id", "a", "no static members"),
        ("session.timeout.ms", "10000", "group.share.session.timeout.ms"),
        ("partition.assignment.strategy", "range", "brokers assign"),
        ("max.partition.fetch.bytes", "1000", "fetch.max.bytes"),
        ("group.protocol", "consumer", "brokers assign"),
    ]:
        with pytest.raises(OptionError, match=message) as caught:
            ShareConsumer(settings(fake, group_id="g") | {name: value})
        assert name in str(caught.value)
    with pytest.raises(OptionError, match=r"set group\.id"):
        ShareConsumer(settings(fake))
    with pytest.raises(OptionError, match="implicit"):
        ShareConsumer(settings(fake, group_id="g") | {"share.acknowledgement.mode": "maybe"})


def test_a_failure_without_a_callback_is_a_warning(
    fake: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fill(fake, "t", 10)
    with member(fake) as consumer:
        poll(consumer)
        share(fake).held.clear()
        with caplog.at_level(logging.WARNING):
            consumer.poll(0.3)
            consumer.poll(0)
        assert "acknowledgements of t-0 failed" in caplog.text
