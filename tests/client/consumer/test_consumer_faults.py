"""Brokers that fail, move, lag and send damage: a consumer loses nothing, or says so."""

from __future__ import annotations

import contextlib
import logging
import re
import struct
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from sparkkafka.client.cluster import topic_lookup
from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.client.consumer.record import DamagedRecord, Record
from sparkkafka.client.group import membership
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.net.frames import FrameBuffer
from sparkkafka.client.values import LagInfo, TopicPartition
from sparkkafka.errors import (
    BrokerError,
    CorruptRecordError,
    DecodeError,
    ErrorCode,
    KafkaTimeoutError,
    NoOffsetError,
    UnknownTopicError,
)
from sparkkafka.protocol.messages import FetchResponse
from sparkkafka.testing.fake.faults import (
    CutFrame,
    Delay,
    Drop,
    ErrorResponse,
    Garbage,
    Throttle,
    WrongCorrelationId,
)
from tests.client.support import fill, settings
from tests.support import reference
from tests.support.batches import build_batch
from tests.support.waiting import finish

WAIT_S = 10.0
BATCHES = {"batch_size": 500, "linger_ms": 0}
SMALL = {"max_partition_fetch_bytes": 1_200}


def tps(count: int) -> list[TopicPartition]:
    return [TopicPartition("t", number) for number in range(count)]


def reading(bootstrap: Any, partitions: int = 1, **config: Any) -> Consumer:
    given = {"auto_offset_reset": "earliest"} | config
    opened = Consumer(settings(bootstrap, **given))
    opened.assign(tps(partitions))
    return opened


def take(source: Consumer, count: int, timeout_s: float = WAIT_S) -> list[Record]:
    """Poll until there are `count` records; retries may leave a poll empty."""
    found: list[Record] = []
    until_s = time.monotonic() + timeout_s
    while len(found) < count:
        assert time.monotonic() < until_s, f"{len(found)} of {count} records came"
        found += source.poll(0.5)
    return found


def by_partition(records: list[Record]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for record in records:
        found.setdefault(record.partition, []).append(record.offset)
    return found


def batch(*values: bytes, **more: Any) -> bytes:
    rows = [reference.Record(number, 0, None, value) for number, value in enumerate(values)]
    payload = reference.encode_payload(rows, base_offset=0, base_timestamp=0)
    return bytes(
        build_batch(payload, record_count=len(rows), base_timestamp=0, max_timestamp=0, **more)
    )


@pytest.fixture
def filled(fake_cluster):
    """Three partitions on three brokers, 500 records each."""
    fake_cluster.create_topic("t", partitions=3)
    fill(fake_cluster, "t", 1_500, partitions=3, **BATCHES)
    fake_cluster.clear_requests()
    return fake_cluster


ALL = {number: list(range(500)) for number in range(3)}


# --- connections and responses
# ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("nth", [1, 4])
@pytest.mark.parametrize(
    "action",
    [Drop.BEFORE, Drop.AFTER, CutFrame(0), CutFrame(3), CutFrame(40), CutFrame(-1)],
    ids=repr,
)
def test_a_lost_connection_loses_and_doubles_nothing(filled, action, nth):
    rule = filled.fault(action, api="Fetch", nth=nth)
    with reading(filled, 3, **SMALL) as source:
        assert by_partition(take(source, 1_500)) == ALL
    assert rule.fired == 1


@pytest.mark.slow
@pytest.mark.parametrize("api", ["Fetch", "ListOffsets"])
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    ],
    ids=lambda code: code.name,
)
def test_passing_errors_are_retried(filled, code, api):
    rule = filled.fault(code, api=api, topic="t", partition=1, times=2)
    with reading(filled, 3, **SMALL) as source:
        assert by_partition(take(source, 1_500)) == ALL
    assert rule.fired == 2


@pytest.mark.parametrize("code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, 9999])
def test_final_errors_come_from_poll_and_others_are_read(filled, code):
    filled.fault(ErrorResponse(code), api="Fetch", topic="t", partition=1, times=None)
    found: list[Record] = []
    errors = 0
    with reading(filled, 3, **SMALL) as source:
        while len(found) < 1_000 or errors < 2:
            try:
                found += source.poll(WAIT_S)
            except BrokerError as error:
                assert error.code == code
                assert "Fetch of t-1 @ 127.0.0.1:" in str(error)
                errors += 1
        assert by_partition(found) == {0: ALL[0], 2: ALL[2]}
        filled.clear_faults()
        late: list[Record] = []
        errors = 0
        while len(late) < 500:
            try:
                late += source.poll(WAIT_S)
            except BrokerError:  # its response was under way when the fault ended
                errors += 1
        assert by_partition(late) == {1: ALL[1]}
        assert errors <= 1


@pytest.mark.parametrize(
    "action", [Garbage(b"\x00\x00\x00\x10" + b"\xff" * 16), WrongCorrelationId()], ids=repr
)
def test_garbage_is_an_error_that_names_the_broker_and_the_next_poll_goes_on(filled, action):
    filled.fault(action, api="Fetch", broker=filled.leader("t", 0))
    found: list[Record] = []
    errors = []
    with reading(filled, 3, **SMALL) as source:
        while len(found) < 1_500:
            try:
                found += source.poll(WAIT_S)
            except DecodeError as error:
                errors.append(str(error))
    assert by_partition(found) == ALL
    assert len(errors) == 1
    assert filled.address(filled.leader("t", 0)) in errors[0]


def test_a_slow_broker_does_not_hold_up_the_others(filled):
    slow = filled.leader("t", 1)
    rule = filled.fault(Delay(600_000, before=True), api="Fetch", broker=slow, times=None)
    with reading(filled, 3, request_timeout_ms=600_000, **SMALL) as source:
        assert by_partition(take(source, 1_000)) == {0: ALL[0], 2: ALL[2]}
        assert rule.fired == 1  # and still waits


def test_a_broker_that_does_not_answer_is_asked_again(filled):
    slow = filled.leader("t", 1)
    filled.fault(Delay(20_000, before=True), api="Fetch", broker=slow)
    with reading(filled, 3, request_timeout_ms=300, fetch_max_wait_ms=100, **SMALL) as source:
        assert by_partition(take(source, 1_500)) == ALL


def test_a_moved_leader_is_found(filled):
    def move(request):
        for number in range(3):
            filled.move_leader("t", number, (filled.leader("t", number) + 1) % 3)

    filled.fault(move, api="Fetch", nth=2)
    filled.fault(move, api="Fetch", nth=6)
    with reading(filled, 3, **SMALL) as source:
        assert by_partition(take(source, 1_500)) == ALL


def test_a_broker_that_dies_while_it_is_read(filled):
    dead = []

    def kill(request):
        if not dead:
            dead.append(request.broker)
            filled.broker_down(request.broker)

    filled.fault(kill, api="Fetch", nth=4)
    with reading(filled, 3, **SMALL) as source:
        assert by_partition(take(source, 1_500)) == ALL
    assert dead


def test_a_cluster_that_is_away_for_a_while(filled):
    with reading(filled, 3, max_poll_records=100, **SMALL) as source:
        found = take(source, 100)
        for broker in filled.broker_ids:
            filled.broker_down(broker, move_leaders=False)
        until_s = time.monotonic() + 1.0
        while time.monotonic() < until_s:
            found += source.poll(0.05)
        for broker in filled.broker_ids:
            filled.broker_up(broker)
        found += take(source, 1_500 - len(found))
    assert by_partition(found) == ALL


@pytest.mark.slow
def test_polls_keep_their_time_while_brokers_are_away_and_commit_later(filled):
    config = {"group_id": "g", "auto_commit_interval_ms": 100, "max_poll_records": 10}
    config |= {"default_api_timeout_ms": 600_000, "request_timeout_ms": 600_000}
    with reading(filled, 1, **config, **SMALL) as source:
        source.poll(WAIT_S)
        for broker in filled.broker_ids:
            filled.broker_down(broker, move_leaders=False)
        until_s = time.monotonic() + 1.5
        while time.monotonic() < until_s:
            finish(lambda: source.poll(0.3))
        for broker in filled.broker_ids:
            filled.broker_up(broker)
        until_s = time.monotonic() + WAIT_S
        while filled.committed("g").get(("t", 0), 0) < 20:
            assert time.monotonic() < until_s
            source.poll(0.1)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_whose_brokers_are_away_is_logged_now_and_then(
    filled, caplog, monkeypatch, protocol
):
    monkeypatch.setattr(membership, "SLOW_S", 0.4)
    monkeypatch.setattr(membership, "WARN_AGAIN_S", 1.0)
    caplog.set_level(logging.INFO, logger="sparkkafka.client.group.membership")
    given = {"group_id": "g", "auto_offset_reset": "earliest", "group_protocol": protocol}
    if protocol == "classic":
        given["heartbeat_interval_ms"] = "40"

    def messages(level: int) -> list[str]:
        rows = [row for row in caplog.records if row.name.endswith("membership")]
        return [row.getMessage() for row in rows if row.levelno == level]

    def poll_until(done: Callable[[], bool]) -> None:
        until_s = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < until_s
            source.poll(0.05)

    with Consumer(settings(filled, **given)) as source:
        source.subscribe(["t"])
        poll_until(lambda: len(source.assignment()) == 3)
        for broker in filled.broker_ids:
            filled.broker_down(broker, move_leaders=False)
        began_s = time.monotonic()
        poll_until(lambda: len(messages(logging.WARNING)) == 2)
        assert time.monotonic() - began_s > 1.3
        assert re.search(r"group g: .* failed \d+ times within \d+ s", messages(logging.WARNING)[0])
        for broker in filled.broker_ids:
            filled.broker_up(broker)
        poll_until(lambda: any("answers again, after" in row for row in messages(logging.INFO)))
        assert len(messages(logging.WARNING)) <= 3


def test_throttling_is_obeyed(filled, caplog):
    caplog.set_level("INFO", "sparkkafka")
    leader = filled.leader("t", 0)
    filled.fault(Throttle(700), api="Fetch", broker=leader)
    with reading(filled, 1, fetch_max_wait_ms=100, request_timeout_ms=300, **SMALL) as source:
        take(source, 500)
    # A request that was sent earlier would time out, since the broker reads nothing meanwhile.
    assert "trying again" not in caplog.text
    first, second = filled.requests_of("Fetch", broker=leader)[:2]
    assert second.time_s - first.time_s >= 0.65


def test_a_broker_that_does_not_wait_is_not_asked_without_pause(filled):
    with reading(filled, 1, fetch_max_wait_ms=0) as source:
        take(source, 500)
        filled.clear_requests()
        assert not source.poll(1.0)
    assert len(filled.requests_of("Fetch")) < 40


# --- requests ----------------------------------------------------------------------------------


def test_one_fetch_a_leader_with_all_its_partitions(fake_cluster_factory):
    fake = fake_cluster_factory(2)
    fake.create_topic("t", partitions=6)
    fill(fake, "t", 600, partitions=6)
    config = {"fetch_max_bytes": 5_000, "fetch_min_bytes": 2, "max_partition_fetch_bytes": 1_500}
    with reading(fake, 6, isolation_level="read_committed", **config) as source:
        found = take(source, 600)
    assert by_partition(found) == {number: list(range(100)) for number in range(6)}
    requests = fake.requests_of("Fetch")
    assert {len(request.topic_partitions) for request in requests[:2]} == {3}
    for request in requests:
        assert request.message.max_bytes == 5_000
        assert request.message.min_bytes == 2
        assert request.message.isolation_level == 1
        assert request.message.session_epoch == -1
        rows = [row for topic in request.message.topics for row in topic.partitions]
        assert {row.partition_max_bytes for row in rows} == {1_500}
    assert len({request.connection for request in requests}) == 2


def test_the_next_fetch_is_under_way_while_the_user_works(filled):
    with reading(filled, 1, **SMALL) as source:
        source.poll(WAIT_S)
        filled.wait_for_requests("Fetch", 2)


def test_no_partition_starves_under_fetch_max_bytes(fake_cluster_factory):
    fake = fake_cluster_factory(1)
    fake.create_topic("t", partitions=4)
    fill(fake, "t", 4_000, partitions=4, **BATCHES)
    with reading(fake, 4, fetch_max_bytes=1_200, **SMALL) as source:
        seen = by_partition(take(source, 2_000))
    assert set(seen) == {0, 1, 2, 3}
    assert min(map(len, seen.values())) > 200


def test_a_batch_larger_than_the_fetch_size(fake_cluster_factory):
    fake = fake_cluster_factory(1)
    fake.create_topic("t", partitions=2)
    for number in (0, 1):
        fake.append("t", number, batch(b"x" * 50_000), assign_offsets=True)
        fake.append("t", number, batch(b"y"), assign_offsets=True)
    with reading(fake, 2, fetch_max_bytes=1_000, max_partition_fetch_bytes=1_000) as source:
        assert by_partition(take(source, 4)) == {0: [0, 1], 1: [0, 1]}


@pytest.mark.parametrize("rack_fault", [None, ErrorCode.OFFSET_OUT_OF_RANGE, Drop.BEFORE])
def test_a_replica_of_ones_own_rack(fake_cluster_factory, rack_fault):
    fake = fake_cluster_factory(3, racks=["a", "b", "c"], rack_aware=True)
    fake.create_topic("t")
    fill(fake, "t", 500, **BATCHES)
    fake.clear_requests()
    if rack_fault is not None:
        fake.fault(rack_fault, api="Fetch", broker=2)
    with reading(fake, 1, client_rack="c", **SMALL) as source:
        assert by_partition(take(source, 500)) == {0: ALL[0]}
    brokers = [request.broker for request in fake.requests_of("Fetch")]
    assert brokers[:2] == [0, 2]
    assert set(brokers[2:]) == ({2} if rack_fault is None else {0})


# --- topics that change --------------------------------------------------------------------------


def test_a_deleted_topic_is_an_error_when_it_does_not_come_back(filled, monkeypatch):
    monkeypatch.setattr("sparkkafka.client.cluster.cluster.KNOWN_TOPIC_GRACE_MS", 300)
    with reading(filled, 3) as source:
        take(source, 1_500)
        filled.delete_topic("t")
        with pytest.raises(UnknownTopicError, match=r"t-\d.*deleted"):
            take(source, 1)


@pytest.mark.parametrize("release", ["3.0", "4.2"])  # Fetch has names, or topic ids
def test_a_recreated_topic_is_read_by_auto_offset_reset(fake_cluster_factory, release, caplog):
    """Its offsets are not those of the old one."""
    fake = fake_cluster_factory(1, kafka_version=release)
    fake.create_topic("t")
    fill(fake, "t", 100)
    with reading(fake, 1, fetch_max_wait_ms=10) as source:
        take(source, 100)
        fake.delete_topic("t")
        source.poll(0.3)
        fake.create_topic("t")
        fill(fake, "t", 300)
        assert [record.offset for record in take(source, 300)] == list(range(300))
    assert "t-0: the topic was deleted and recreated, offset 100 is of the old one" in caplog.text


def test_a_recreated_topic_is_an_error_without_auto_offset_reset(fake_cluster):
    fake_cluster.create_topic("t")
    fill(fake_cluster, "t", 100)
    with reading(fake_cluster, 1, auto_offset_reset="none", fetch_max_wait_ms=10) as source:
        source.seek_to_beginning()
        take(source, 100)
        fake_cluster.recreate_topic("t")
        fill(fake_cluster, "t", 300)
        with pytest.raises(NoOffsetError, match=r"topic was deleted and recreated.* \[0, 300\)"):
            take(source, 1)
        source.seek_to_beginning()
        assert len(take(source, 300)) == 300


def test_a_response_with_another_topic_id_is_refused(filled, monkeypatch, caplog):
    receive_ready = Connection.receive_ready
    wrong = [3]

    def receive(self, buffer):
        response = receive_ready(self, buffer)
        if response is not None and isinstance(response[1], FetchResponse) and wrong[0]:
            wrong[0] -= 1
            for topic in response[1].responses:
                topic.topic_id = uuid.UUID(int=7)
        return response

    monkeypatch.setattr(Connection, "receive_ready", receive)
    with reading(filled) as source:
        assert len(take(source, 500)) == 500
        assert source._fetcher.retries[TopicPartition("t", 0)] == 3
        assert "INCONSISTENT_TOPIC_ID" in str(source._subscription.state(tps(1)[0]).last_failure)
    assert caplog.text.count("has a topic id that was not requested") == 3


def test_partitions_that_never_come_are_an_error(filled, monkeypatch):
    monkeypatch.setattr(topic_lookup, "UNKNOWN_TOPIC_GRACE_MS", 300)
    with reading(filled, 5) as source:
        reported = set()
        until_s = time.monotonic() + WAIT_S
        while len(reported) < 2:
            assert time.monotonic() < until_s, reported
            try:
                source.poll(0.1)
            except UnknownTopicError as error:
                reported.add(str(error).split(":")[0])


def test_a_topic_that_is_not_there_is_awaited(fake_cluster):
    with reading(fake_cluster, 2) as source:
        for _ in range(5):
            assert not source.poll(0.05)
        with pytest.raises(
            KafkaTimeoutError, match=r"no position of t-0 within 0\.2 s: .*UNKNOWN_TOPIC_OR_PART"
        ):
            source.position(TopicPartition("t", 0), timeout_s=0.2)


def test_a_partition_that_a_topic_lacks_is_an_error_soon(filled, monkeypatch):
    monkeypatch.setattr(topic_lookup, "UNKNOWN_TOPIC_GRACE_MS", 300)
    with reading(filled, 1) as source:
        source.assign([TopicPartition("t", 7)])
        assert not source.poll(0.1)
        with pytest.raises(UnknownTopicError, match=r"t-7.*it has partitions 0 to 2"):
            source.poll(WAIT_S)


def test_a_topic_that_comes_later(fake_cluster):
    with reading(fake_cluster, 1) as source:
        assert not source.poll(0.2)
        fake_cluster.create_topic("t")
        fill(fake_cluster, "t", 3)
        assert len(take(source, 3)) == 3


def test_new_partitions_may_be_assigned(filled):
    with reading(filled, 3) as source:
        take(source, 1_500)
        filled.add_partitions("t", 5)
        fill(filled, "t", 250, partitions=5)
        source.assign(tps(5))
        assert {number: len(rows) for number, rows in by_partition(take(source, 250)).items()} == (
            dict.fromkeys(range(5), 50)
        )


# --- transactions and damage ---------------------------------------------------------------------


def test_read_committed_leaves_out_what_was_aborted(fake_cluster):
    fake_cluster.create_topic("t")

    def transaction(producer: int, *values: bytes, commit: bool) -> None:
        data = batch(
            *values, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
        )
        fake_cluster.append("t", 0, data, assign_offsets=True)
        fake_cluster.append_marker("t", 0, producer, 0, commit=commit)

    transaction(1, b"a", b"b", commit=True)
    transaction(2, b"no", b"no", commit=False)
    transaction(1, b"c", commit=True)
    transaction(2, b"no", commit=False)
    tp = TopicPartition("t", 0)
    with reading(fake_cluster, isolation_level="read_committed") as source:
        found = take(source, 3)
        assert [record.value for record in found] == [b"a", b"b", b"c"]
        assert [record.next_offset for record in found] == [1, 6, 10]
        assert source.position(tp) == 10
        assert source.lag() == {tp: LagInfo(position=10, end=10, lag=0)}
        # A range without visible records: the position moves past it.
        source.seek(tp, 8)
        until_s = time.monotonic() + WAIT_S
        while source.position(tp) < 10:
            assert not source.poll(0.1)
            assert time.monotonic() < until_s
    with reading(fake_cluster) as source:
        assert len(take(source, 6)) == 6


def test_the_position_stays_at_buffered_records_before_an_aborted_transaction(fake_cluster):
    fake_cluster.create_topic("t")
    fill(fake_cluster, "t", 10)
    data = batch(b"no", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    fake_cluster.append("t", 0, data, assign_offsets=True)
    fake_cluster.append_marker("t", 0, 1, 0, commit=False)
    tp = TopicPartition("t", 0)
    config = {"isolation_level": "read_committed", "max_partition_fetch_bytes": 1}
    with reading(fake_cluster, max_poll_records=3, **config) as source:
        take(source, 3)
        fake_cluster.wait_for_requests("Fetch", 2)
        source.pause([tp])
        assert not source.poll(0.2)  # takes the response without records for the reader
        assert source.position(tp) == 3
        source.resume([tp])
        assert [record.offset for record in take(source, 7)] == list(range(3, 10))


def corrupt(fake: Any, good_before: int, *, how: str) -> None:
    """One batch each for good_before numbers, three records of which one is bad, a last one."""
    for number in range(good_before):
        fake.append("t", 0, batch(b"%d" % number), assign_offsets=True)
    bad = bytearray(batch(b"x", b"y", b"z"))
    if how == "crc":
        bad[-2] ^= 0xFF
    else:  # a header count that is too large, in the last byte of the last record
        bad[-1] = 0x7E
        from crc32c import crc32c

        bad[17:21] = struct.pack(">I", crc32c(bytes(bad[21:])))
    fake.append("t", 0, bytes(bad), assign_offsets=True)
    fake.append("t", 0, batch(b"last"), assign_offsets=True)


@pytest.mark.parametrize("arrow", [False, True])
@pytest.mark.parametrize("how", ["crc", "record"])
@pytest.mark.parametrize("good_before", [0, 2])
def test_damage_is_reported_after_the_records_before_it(fake_cluster, how, good_before, arrow):
    fake_cluster.create_topic("t")
    corrupt(fake_cluster, good_before, how=how)
    tp = TopicPartition("t", 0)
    with reading(fake_cluster) as source:
        poll = source.poll_arrow if arrow else source.poll
        assert len(take(source, good_before)) == good_before
        for _ in range(2):
            with pytest.raises(CorruptRecordError, match="Seek past the damage") as raised:
                poll(WAIT_S)
            error = raised.value
            assert str(error).count("Seek past the damage") == 1
            assert (error.topic, error.partition) == ("t", 0)
            assert error.offset == good_before + (0 if how == "crc" else 2)
            assert error.next_offset == good_before + 3
            assert source.position(tp) == good_before
        source.seek(tp, error.next_offset)
        assert [record.value for record in take(source, 1)] == [b"last"]


@pytest.mark.parametrize("how", ["crc", "record"])
@pytest.mark.parametrize("good_before", [0, 2])
def test_a_damaged_batch_can_be_a_record_that_says_so(fake_cluster, how, good_before):
    fake_cluster.create_topic("t")
    corrupt(fake_cluster, good_before, how=how)
    tp = TopicPartition("t", 0)
    with reading(fake_cluster, damaged="yield") as source:
        *good, damaged, last = take(source, good_before + 2)
        assert [record.value for record in good] == [b"%d" % n for n in range(good_before)]
        assert {record.error for record in (*good, last)} == {None}
        assert isinstance(damaged, DamagedRecord)
        assert (damaged.offset, damaged.next_offset) == (good_before, good_before + 3)
        assert (damaged.key, damaged.value, damaged.topic) == (None, None, "t")
        assert damaged.error.code == "CORRUPT_RECORD"
        assert last.value == b"last"
        assert source.position(tp) == good_before + 4
        source.seek(tp, 0)
        if good_before == 0:
            with pytest.raises(CorruptRecordError, match="Seek past the damage"):
                source.poll_arrow(WAIT_S)


def test_a_damaged_header_skips_no_sound_batch(fake_cluster_factory):
    last = bytearray(batch(b"last"))
    last[:8] = struct.pack(">q", 3)
    for offset_delta, next_offset in ((0, 1), (2**31 - 1, 3)):
        bad = bytearray(batch(b"x", b"y", b"z"))
        bad[23:27] = struct.pack(">i", offset_delta)
        fake = fake_cluster_factory(1)
        fake.create_topic("t")
        fake.append("t", 0, bytes(bad + last))
        with reading(fake, damaged="yield") as source:
            assert [record.next_offset for record in take(source, 1)] == [next_offset]
            if next_offset == 1:
                assert [record.value for record in take(source, 1)] == [b"last"]
                continue
            # The broker believes the header, too: it returns this batch again.
            with pytest.raises(CorruptRecordError, match="Seek past the damage"):
                source.poll(WAIT_S)


def test_damage_in_one_partition_does_not_stop_the_others(fake_cluster_factory):
    fake = fake_cluster_factory(1)
    fake.create_topic("t", partitions=3)
    fill(fake, "t", 1_500, partitions=3, **BATCHES)
    log = fake.log("t", 0)
    corrupt_from = log.end_offset
    bad = bytearray(batch(b"x"))
    bad[-1] ^= 0xFF
    fake.append("t", 0, bytes(bad), assign_offsets=True)
    found: list[Record] = []
    errors = 0
    with reading(fake, 3, max_poll_records=50, **SMALL) as source:
        until_s = time.monotonic() + WAIT_S
        while len(found) < 1_500 or not errors:
            assert time.monotonic() < until_s
            try:
                found += source.poll(0.5)
            except CorruptRecordError as error:
                assert error.offset == corrupt_from
                errors += 1
    assert by_partition(found) == ALL


def test_crcs_are_not_checked_if_the_setting_says_so(fake_cluster):
    fake_cluster.create_topic("t")
    corrupt(fake_cluster, 1, how="crc")
    with reading(fake_cluster, check_crcs=False) as source:
        assert len(take(source, 5)) == 5


def test_ctrl_c_while_records_are_made_loses_nothing(filled, monkeypatch):
    from sparkkafka.client.consumer import subscription_state

    real = subscription_state.RecordBlock
    with reading(filled, 3) as source:
        taken = []

        def interrupted(*args: Any) -> Any:
            taken.append(args)
            if len(taken) == 2:
                raise KeyboardInterrupt
            return real(*args)

        monkeypatch.setattr(subscription_state, "RecordBlock", interrupted)
        with pytest.raises(KeyboardInterrupt):
            source.seek_to_beginning()
            for _ in range(100):
                records = source.poll(WAIT_S)
                source.seek_to_beginning([TopicPartition("t", row.partition) for row in records])
        assert by_partition(take(source, 1_500)) == ALL


def test_ctrl_c_while_the_next_records_are_asked_for_loses_nothing(filled, monkeypatch):
    with reading(filled, 3) as source:
        real = source._fetcher.send

        def interrupted(deadline: Any, **more: Any) -> None:
            if deadline is None:
                monkeypatch.undo()
                raise KeyboardInterrupt
            real(deadline, **more)

        monkeypatch.setattr(source._fetcher, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            for _ in range(100):
                assert not source.poll(0.5)
        assert by_partition(take(source, 1_500)) == ALL


def test_ctrl_c_while_a_response_is_read_loses_nothing(filled, monkeypatch):
    real = Connection.receive_ready

    def interrupted(connection: Connection, buffer: FrameBuffer) -> Any:
        if real(connection, buffer) is not None:
            connection.close()
            raise KeyboardInterrupt

    with reading(filled, 3) as source:
        monkeypatch.setattr(Connection, "receive_ready", interrupted)
        with pytest.raises(KeyboardInterrupt):
            for _ in range(100):
                assert not source.poll(0.5)
        monkeypatch.undo()
        assert by_partition(take(source, 1_500)) == ALL


@pytest.mark.slow
def test_ctrl_c_behind_a_question_loses_nothing(filled, monkeypatch):
    """The user goes back, and the response must not pass for that to the next question."""
    real = Connection.receive_in_kernel
    ahead: list[bool] = []
    used: list[Connection] = []

    def interrupted(connection: Connection, size_bytes: int) -> None:
        real(connection, size_bytes)
        if ahead:
            used.append(connection)
            if len(used) % 2:
                raise KeyboardInterrupt

    with reading(filled, 3, **SMALL) as source:
        send = source._fetcher.send

        def noted(deadline: Any, **more: Any) -> None:
            if deadline is None:
                ahead.append(True)
            try:
                send(deadline, **more)
            finally:
                ahead.clear()

        monkeypatch.setattr(source._fetcher, "send", noted)
        monkeypatch.setattr(Connection, "receive_in_kernel", interrupted)
        rows: list[Record] = []
        until_s = time.monotonic() + WAIT_S
        while len(rows) < 1_500 and time.monotonic() < until_s:
            with contextlib.suppress(KeyboardInterrupt):
                rows += source.poll(0.5)
        assert by_partition(rows) == ALL
        assert len(used) > 2


@pytest.mark.parametrize("offset", [-1, -5])
def test_an_offset_that_no_broker_of_kafka_returns_is_requested_after_a_backoff(
    fake_cluster, offset
):
    fake_cluster.create_topic("t")
    handler = fake_cluster.handlers["ListOffsets"]

    def wrong(*arguments: Any) -> Any:
        response = handler(*arguments)
        response.topics[0].partitions[0].offset = offset
        return response

    fake_cluster.handlers["ListOffsets"] = wrong
    with reading(fake_cluster) as source:
        assert not source.poll(1.0)
        assert len(fake_cluster.requests_of("ListOffsets")) < 100
        with pytest.raises(KafkaTimeoutError, match=f"returned offset {offset}"):
            source.position(TopicPartition("t", 0), timeout_s=0.5)


def test_offsets_of_a_topic_without_a_name_are_requested_again(fake_cluster):
    fake_cluster.create_topic("t")
    fill(fake_cluster, "t", 3)
    handler = fake_cluster.handlers["ListOffsets"]
    names = iter([""])

    def wrong(*arguments: Any) -> Any:
        response = handler(*arguments)
        response.topics[0].name = next(names, response.topics[0].name)
        return response

    fake_cluster.handlers["ListOffsets"] = wrong
    with reading(fake_cluster) as source:
        assert len(take(source, 3)) == 3
