"""Brokers that fail or lose records: the fetcher gives the whole range once, or a loud error."""

from __future__ import annotations

import logging
import re
import time

import pytest

from sparkkafka.client.consumer.range_reader import OpenBounds, PlannedRange, RangeReader
from sparkkafka.client.producer.producer import Producer
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import (
    BrokerError,
    CorruptRecordError,
    DataLossError,
    DecodeError,
    ErrorCode,
    KafkaTimeoutError,
)
from sparkkafka.protocol.columns.columns import Selection
from sparkkafka.testing.fake.faults import (
    CutFrame,
    Delay,
    Drop,
    ErrorResponse,
    Garbage,
    Throttle,
    WrongCorrelationId,
)
from tests.client.support import (
    fill,
    numbers,
    open_cluster,
    read,
    read_range,
    reader,
    settings,
)
from tests.support import reference
from tests.support.batches import build_batch
from tests.support.options import parse_fetch_options

# Several batches, and fetches that hold two or three of them.
BATCHES = {"batch_size": 500, "linger_ms": 0}
SMALL_FETCH = {"max_partition_fetch_bytes": 1_200}


@pytest.fixture
def filled(fake_cluster):
    fake_cluster.create_topic("t")
    fill(fake_cluster, "t", 1_000, **BATCHES)
    fake_cluster.clear_requests()
    return fake_cluster


@pytest.mark.slow
@pytest.mark.parametrize("nth", [1, 2, 4])
@pytest.mark.parametrize(
    "action",
    [Drop.BEFORE, Drop.AFTER, CutFrame(0), CutFrame(3), CutFrame(4), CutFrame(40), CutFrame(-1)],
    ids=repr,
)
def test_a_lost_connection_loses_and_doubles_nothing(filled, action, nth):
    rule = filled.fault(action, api="Fetch", nth=nth)
    assert read(filled, "t", **SMALL_FETCH) == numbers(1_000)
    assert rule.fired == 1


@pytest.mark.slow
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
        ErrorCode.OFFSET_OUT_OF_RANGE,  # a leader that lags: the offset is there
    ],
    ids=lambda code: code.name,
)
def test_passing_errors_are_retried(filled, code):
    filled.fault(code, api="Fetch", nth=2, times=2)
    assert read(filled, "t", **SMALL_FETCH) == numbers(1_000)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, 9999],
)
def test_final_errors_name_the_partition_and_the_broker(filled, code):
    filled.fault(ErrorResponse(code), api="Fetch", times=None)
    with pytest.raises(BrokerError, match=rf"error {int(code)} .*t-0 @ 127\.0\.0\.1:") as raised:
        read(filled, "t")
    assert raised.value.code == code


def test_garbage_is_a_decode_error_that_names_the_broker(filled):
    filled.fault(Garbage(b"\x00\x00\x00\x10" + b"\xff" * 16), api="Fetch")
    with pytest.raises(DecodeError, match=r"127\.0\.0\.1:\d+"):
        read(filled, "t")


def test_a_response_to_another_request_is_a_decode_error(filled):
    filled.fault(WrongCorrelationId(), api="Fetch")
    with pytest.raises(DecodeError, match=r"127\.0\.0\.1"):
        read(filled, "t")


def test_a_moved_leader_is_found(filled):
    def move(request):
        filled.move_leader("t", 0, (filled.leader("t", 0) + 1) % 3)

    filled.fault(move, api="Fetch", nth=2)
    filled.fault(move, api="Fetch", nth=3)
    assert read(filled, "t", **SMALL_FETCH) == numbers(1_000)


def test_a_broker_that_dies_while_it_is_read(filled):
    dead = []

    def kill(request):
        if not dead:
            dead.append(request.broker)
            filled.broker_down(request.broker)

    filled.fault(kill, api="Fetch", nth=2)
    assert read(filled, "t", **SMALL_FETCH) == numbers(1_000)
    assert dead


def test_throttling_is_obeyed(filled):
    filled.fault(Throttle(400), api="Fetch")
    started = time.monotonic()
    assert read(filled, "t", **SMALL_FETCH) == numbers(1_000)
    assert time.monotonic() - started >= 0.35


def test_any_part_of_the_range(filled):
    with open_cluster(filled) as cluster:
        for start, end in [(0, 1), (7, 7), (3, 4), (49, 51), (100, 900), (999, 1_000)]:
            assert read_range(cluster, "t", start, end) == numbers(1_000)[start:end]


def test_the_next_fetch_is_sent_before_the_last_is_decoded(filled):
    with open_cluster(filled) as cluster, reader(cluster, "t", 0, 1_000, **SMALL_FETCH) as source:
        records = iter(source)
        next(records)
        filled.wait_for_requests("Fetch", 2)


def test_without_a_response_it_gives_up_and_says_where(filled):
    filled.fault(Delay(30_000, before=True), api="Fetch", times=None)
    gave_up = pytest.raises(KafkaTimeoutError, match=r"t-0 at offset 0.*0\.8 s.*quota\?")
    with open_cluster(filled) as cluster, gave_up:
        read_range(cluster, "t", 0, 1_000, poll_timeout_ms=800, request_timeout_ms=300)


def test_an_open_transaction_that_holds_readers_back_is_named(fake_cluster):
    fake_cluster.create_topic("t")
    payload = reference.encode_payload(
        [reference.Record(0, 0, None, b"open")], base_offset=0, base_timestamp=0
    )
    data = build_batch(
        payload,
        record_count=1,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    fake_cluster.append("t", 0, data)
    with open_cluster(fake_cluster) as cluster:
        with pytest.raises(KafkaTimeoutError, match=r"pollTimeoutMs\).*open transaction"):
            read_range(
                cluster,
                "t",
                0,
                1,
                isolation_level="read_committed",
                poll_timeout_ms=400,
                fetch_max_wait_ms=50,
            )


def test_a_broker_that_does_not_wait_is_not_asked_without_pause(filled):
    with open_cluster(filled) as cluster, pytest.raises((DataLossError, KafkaTimeoutError)):
        read_range(cluster, "t", 1_000, 1_001, poll_timeout_ms=1_500, fetch_max_wait_ms=0)
    assert len(filled.requests_of("Fetch")) < 60


def test_fetch_sizes_go_over_the_wire(filled):
    config = {"fetch_max_bytes": 1_200, "max_partition_fetch_bytes": 800, "fetch_min_bytes": 3}
    assert read(filled, "t", **config) == numbers(1_000)
    for request in filled.requests_of("Fetch"):
        (topic,) = request.message.topics
        (partition,) = topic.partitions
        assert request.message.max_bytes == 1_200
        assert request.message.min_bytes == 3
        assert partition.partition_max_bytes == 800


# --- data loss -----------------------------------------------------------------------------------


def skipped(caplog) -> list[tuple[int, int]]:
    """First and last offset of what the log says is lost."""
    found = re.findall(r"offsets (\d+) to (\d+) are gone.*offsets skipped", caplog.text)
    return [(int(first), int(last)) for first, last in found]


def test_offsets_that_retention_deleted(filled):
    filled.advance_log_start("t", 0, 300)
    with (
        open_cluster(filled) as cluster,
        pytest.raises(
            DataLossError,
            match=r"t-0: offsets 0 to 299 are gone.*\[0, 1000\).*\[300, 1000\).*"
            "set failOnDataLoss=false to",
        ),
    ):
        read_range(cluster, "t", 0, 1_000)


def test_offsets_that_retention_deleted_are_counted_and_the_rest_is_read(filled, caplog):
    filled.advance_log_start("t", 0, 300)
    with open_cluster(filled) as cluster, caplog.at_level(logging.WARNING):
        with reader(cluster, "t", 0, 1_000, fail_on_data_loss=False) as source:
            values = [value for _, records in source for value in records.values.to_pylist()]
    assert skipped(caplog) == [(0, 299)]
    assert values == numbers(1_000)[300:]
    assert "300 offsets skipped" in caplog.text


def test_records_deleted_while_they_are_read(filled, caplog):
    def delete(request):
        filled.advance_log_start("t", 0, 700)

    filled.fault(delete, api="Fetch", nth=3)
    with (
        open_cluster(filled) as cluster,
        reader(cluster, "t", 0, 1_000, fail_on_data_loss=False, **SMALL_FETCH) as source,
    ):
        values = [value for _, records in source for value in records.values.to_pylist()]
    ((first, _),) = skipped(caplog)
    assert values == numbers(first) + numbers(1_000)[700:]


def test_a_topic_deleted_while_it_is_read(filled):
    filled.fault(lambda request: filled.delete_topic("t"), api="Fetch", nth=2)
    with open_cluster(filled) as cluster, pytest.raises(DataLossError, match="t-0"):
        read_range(cluster, "t", 0, 1_000, poll_timeout_ms=1_000, **SMALL_FETCH)


def test_a_topic_made_again_with_fewer_records(filled):
    filled.recreate_topic("t")
    fill(filled, "t", 10)
    with open_cluster(filled) as cluster, pytest.raises(DataLossError, match=r"\[0, 10\)"):
        read_range(cluster, "t", 500, 1_000)


def test_no_record_of_a_topic_made_again_is_read(fake_cluster_factory):
    """The leader, which is the same, refuses a Fetch with the old id, before the metadata says that
    there is another. By its name it would give the new topic's records."""
    fake = fake_cluster_factory(1)
    fake.create_topic("t")
    fill(fake, "t", 1_000, **BATCHES)

    def recreate(request):
        fake.recreate_topic("t")
        fill(fake, "t", 10)  # each number has another offset than before
        fill(fake, "t", 990, **BATCHES)

    fake.fault(recreate, api="Fetch", nth=2)
    values: list[bytes] = []
    planned = topic_id(fake)
    with (
        pytest.raises(DataLossError, match="recreated"),
        open_cluster(fake) as cluster,
        reader(cluster, "t", 0, 1_000, topic_id=planned, **SMALL_FETCH) as source,
    ):
        for _, records in source:
            values += records.values.to_pylist()
    assert values == numbers(len(values))


def topic_id(cluster) -> bytes | None:
    with open_cluster(cluster) as client:
        client.topics(["t"])
        return client.topic_id("t")


def test_a_topic_made_again_with_as_many_records_is_known_by_its_id(filled, caplog):
    planned = topic_id(filled)
    filled.recreate_topic("t")
    fill(filled, "t", 1_000)
    with open_cluster(filled) as cluster:
        with pytest.raises(DataLossError, match=r"t-0: offsets 0 to 999.*recreated"):
            read_range(cluster, "t", 0, 1_000, topic_id=planned)
        with reader(cluster, "t", 0, 1_000, topic_id=planned, fail_on_data_loss=False) as source:
            assert list(source) == []
        assert skipped(caplog) == [(0, 999)]
        assert read_range(cluster, "t", 0, 1_000, topic_id=topic_id(filled)) == numbers(1_000)


@pytest.mark.slow
def test_a_topic_that_is_unknown_for_a_while_loses_nothing(filled, caplog, monkeypatch):
    """Also with failOnDataLoss=false: brokers that start may not know a topic for seconds."""
    monkeypatch.setattr("sparkkafka.client.cluster.cluster.UNKNOWN_TOPIC_GRACE_MS", 500)
    since: list[float] = []

    def unknown_at_first(request):
        since.append(time.monotonic())
        lost = time.monotonic() - since[0] < 1
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if lost else None

    filled.fault(unknown_at_first, api="Metadata", times=None)
    with (
        open_cluster(filled) as cluster,
        reader(cluster, "t", 0, 1_000, fail_on_data_loss=False, poll_timeout_ms=20_000) as source,
    ):
        values = [value for _, records in source for value in records.values.to_pylist()]
    assert values == numbers(1_000)
    assert skipped(caplog) == []


def test_a_log_that_ends_below_the_range(filled):
    """The topic was recreated and holds the first part of the range only."""
    with open_cluster(filled) as cluster, pytest.raises(DataLossError, match="ends at 1000"):
        read_range(cluster, "t", 900, 1_100, poll_timeout_ms=800)


# --- hostile bytes -------------------------------------------------------------------------------


def stored(cluster, topic="t"):
    return bytes(cluster.log(topic, 0).raw())


def test_a_flipped_bit_fails_the_checksum_and_names_the_location(filled):
    raw = bytearray(stored(filled))
    raw[200] ^= 4
    filled.create_topic("bad")
    filled.append("bad", 0, bytes(raw), end_offset=1_000)
    with (
        open_cluster(filled) as cluster,
        pytest.raises(
            CorruptRecordError, match=r"topic bad partition 0 offset \d+.*(CRC|checksum)"
        ),
    ):
        read_range(cluster, "bad", 0, 1_000)


def test_damage_behind_the_range_is_nobodys_business(filled):
    raw = bytearray(stored(filled))
    raw[-30] ^= 4
    filled.create_topic("bad")
    filled.append("bad", 0, bytes(raw), end_offset=1_000)
    with open_cluster(filled) as cluster:
        assert read_range(cluster, "bad", 0, 20) == numbers(20)
        with pytest.raises(CorruptRecordError, match="topic bad partition 0"):
            read_range(cluster, "bad", 0, 1_000)


def test_every_truncation_of_the_records_ends_in_an_error_or_the_records(filled):
    raw = stored(filled)[:700]
    for cut in range(13, len(raw), 13):
        name = f"cut-{cut}"
        filled.create_topic(name)
        filled.append(name, 0, raw[:cut], end_offset=1_000)
        with open_cluster(filled) as cluster:
            try:
                values = read_range(cluster, name, 0, 20, poll_timeout_ms=150, fetch_max_wait_ms=20)
                assert values == numbers(20)[: len(values)]
            except (CorruptRecordError, DataLossError, KafkaTimeoutError):
                pass


def test_a_response_frame_that_claims_to_be_huge(filled):
    filled.fault(Garbage(b"\x7f\xff\xff\xff" + b"x" * 100), api="Fetch")
    with pytest.raises(DecodeError):
        read(filled, "t")


@pytest.mark.parametrize("partitions", [[0], [0, 1]])
def test_aborted_records_at_the_start_of_a_read_with_open_ends(fake_cluster, partitions):
    """The first response moves the position, although the reader has seen no record."""
    fake_cluster.create_topic("t", partitions=2)
    with Producer(settings(fake_cluster, transactional_id="x")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_many("t", numbers(100), partition=0).result(10)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send_many("t", numbers(10), partition=1).result(10)
        producer.commit_transaction()
    ends = OpenBounds(start=True, end=True, whole_log=True)
    ranges = {
        TopicPartition("t", number): PlannedRange(Selection(0, 0), open_bounds=ends)
        for number in partitions
    }
    given = settings(fake_cluster, isolation_level="read_committed")
    with (
        open_cluster(fake_cluster) as cluster,
        RangeReader(
            cluster, ranges, parse_fetch_options(given), poll_timeout_ms=5_000
        ) as ranges_read,
    ):
        found = [value for _, records in ranges_read for value in records.values.to_pylist()]
    assert found == (numbers(10) if 1 in partitions else [])
