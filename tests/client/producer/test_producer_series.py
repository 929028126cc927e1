"""`Producer.send_many`, and headers as `send` and it take them."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

from sparkkafka.client.producer.futures import RecordFailure, WrittenRange
from sparkkafka.client.producer.producer import Producer
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import (
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
    ProduceError,
    TransactionError,
    UnknownTopicError,
)
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Delay
from tests.client.support import log_values, numbers, settings

WAIT_S = 20


@pytest.fixture
def producer(fake_cluster: FakeCluster) -> Any:
    fake_cluster.create_topic("t")
    fake_cluster.create_topic("two", partitions=2)
    with Producer(settings(fake_cluster)) as producer:
        yield producer


def test_values_in_their_order_between_those_of_send(
    fake_cluster: FakeCluster, producer: Producer
) -> None:
    producer.send("t", b"0")
    written = producer.send_many("t", [b"%d" % number for number in range(1, 5_000)])
    producer.send("t", b"5000")
    assert written.result(WAIT_S) == {TopicPartition("t", 0): WrittenRange(1, 4_999, 4_999)}
    assert (written.done(), written.failures(), written.exception()) == (True, [], None)
    producer.flush(WAIT_S)
    assert log_values(fake_cluster, "t") == numbers(5_001)


def test_a_record_is_what_send_takes(fake_cluster: FakeCluster, producer: Producer) -> None:
    records = [
        None,
        "text",
        bytearray(b"b"),
        {"value": b"v", "key": "k", "headers": {"h": "1"}, "partition": 1, "timestamp_ms": 17},
        {"key": b"tombstone", "partition": 0},
    ]
    producer.send_many("two", iter(records)).result(WAIT_S)
    found = [row for p in (0, 1) for row in fake_cluster.log("two", p).records()]
    assert len(found) == 5
    row = next(row for row in found if row.value == b"v")
    assert (row.key, row.timestamp_ms) == (b"k", 17)
    assert [tuple(header) for header in row.headers] == [("h", b"1")]
    assert {row.value for row in found} == {None, b"text", b"b", b"v"}
    assert [row.value for row in fake_cluster.log("two", 0).records() if row.key] == [None]


def test_records_of_several_topics(fake_cluster: FakeCluster, producer: Producer) -> None:
    records = [
        {"topic": "two", "value": b"0", "partition": 1},
        b"1",
        {"topic": "t", "value": b"2"},
        {"topic": "two", "value": b"3"},
        {"value": b"4", "partition": None, "topic": None},
    ]
    written = producer.send_many("t", records, partition=0).result(WAIT_S)
    assert written == {
        TopicPartition("t", 0): WrittenRange(0, 2, 3),
        TopicPartition("two", 0): WrittenRange(0, 0, 1),
        TopicPartition("two", 1): WrittenRange(0, 0, 1),
    }
    assert log_values(fake_cluster, "t") == [b"1", b"2", b"4"]
    assert log_values(fake_cluster, "two", 0) == [b"3"]
    assert log_values(fake_cluster, "two", 1) == [b"0"]


def test_a_series_without_a_topic(fake_cluster: FakeCluster, producer: Producer) -> None:
    records = [{"topic": name, "value": b"%d" % n} for n, name in enumerate(("t", "two", "t"))]
    series = producer.send_many(None, [*records, {"topic": "two", "value": b"3", "partition": 7}])
    assert [(row.index, row.topic, row.partition) for row in series.failures(WAIT_S)] == [
        (3, "two", 7)
    ]
    assert log_values(fake_cluster, "t") == [b"0", b"2"]
    with pytest.raises(OptionError, match="record 1 of the series: it has no topic"):
        producer.send_many(None, [records[0], b"1"])


def test_a_partition_for_all_values(fake_cluster: FakeCluster, producer: Producer) -> None:
    values = [b"%d" % number for number in range(100)]
    producer.send_many("two", values, partition=1).result(WAIT_S)
    assert log_values(fake_cluster, "two", 1) == values
    with pytest.raises(OptionError, match="partition is a whole number"):
        producer.send_many("two", values, partition=-1)


def test_many_chunks_and_few_bytes_of_buffer(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    config = settings(fake_cluster, buffer_memory=4_000, batch_size=300)
    with Producer(config) as producer:
        written = producer.send_many("t", [b"%d" % number for number in range(2_000)])
        assert written.result(WAIT_S)[TopicPartition("t", 0)].record_count == 2_000
    assert log_values(fake_cluster, "t") == numbers(2_000)


def test_one_callback_when_all_are_there(fake_cluster: FakeCluster, producer: Producer) -> None:
    fake_cluster.fault(Delay(100), api="Produce")
    called, seen = threading.Event(), []
    written = producer.send_many("two", [{"value": b"", "partition": n % 2} for n in range(40)])
    written.add_callback(lambda handle: (seen.append((handle, handle.done())), called.set()))
    assert called.wait(WAIT_S)
    assert seen == [(written, True)]


def test_nothing_to_send_is_done_at_once(producer: Producer) -> None:
    seen: list[Any] = []
    written = producer.send_many("t", [])
    written.add_callback(seen.append)
    assert (written.result(), written.failures(), seen) == ({}, [], [written])


def test_the_failures_and_only_they(fake_cluster: FakeCluster, producer: Producer) -> None:
    fake_cluster.fault(
        ErrorCode.TOPIC_AUTHORIZATION_FAILED, api="Produce", topic="two", partition=1, times=None
    )
    partitions = [0, 1, 0, 7, 1, 0]
    written = producer.send_many("two", [{"value": b"x", "partition": n} for n in partitions])
    failures = written.failures(WAIT_S)
    assert [(row.index, row.topic, row.partition) for row in failures] == [
        (1, "two", 1),
        (3, "two", 7),
        (4, "two", 1),
    ]
    kinds = [type(row.error) for row in failures]
    assert kinds == [ProduceError, UnknownTopicError, ProduceError]
    assert written.written()[TopicPartition("two", 0)].record_count == 3
    assert isinstance(failures[0], RecordFailure)
    producer.flush(WAIT_S)  # they were asked for, so nobody is told again
    with pytest.raises(KafkaError):
        written.result()


def test_a_failure_does_not_count_records_that_are_written_after_it(
    fake_cluster: FakeCluster,
) -> None:
    """ "Not acknowledged: 3 (records not written)" was said of a record before two that were."""
    fake_cluster.create_topic("small", configs={"max.message.bytes": "300"})
    with Producer(settings(fake_cluster)) as producer:
        series = producer.send_many("small", [b"1", b"2" * 400, b"3"])
        (failure,) = series.failures(WAIT_S)
    assert log_values(fake_cluster, "small") == [b"1", b"3"]
    assert "records in this batch: 1 (records not written)" in str(failure.error)
    assert "not acknowledged" not in str(failure.error)


def test_failures_of_a_table(fake_cluster: FakeCluster, producer: Producer) -> None:
    table = pa.table(
        {
            "topic": ["two", "t", "two", "two"],
            "partition": pa.array([0, 0, 9, 1], pa.int32()),
            "value": [b"a", b"b", b"c", b"d"],
        }
    )
    failures = producer.send_table(table).failures(WAIT_S)
    assert [(row.index, row.topic, row.partition) for row in failures] == [(2, "two", 9)]


def test_types_of_several_tables_share_a_batch(fake_cluster: FakeCluster) -> None:
    """A field that cannot be null makes another type, as Spark's and Iceberg's tables have it."""
    fake_cluster.create_topic("t")
    key = pa.field("key", pa.string(), nullable=False)
    structs = [
        pa.struct([key, ("value", pa.binary())]),
        pa.struct([("key", pa.string_view()), ("value", pa.string())]),
        pa.struct([("key", pa.large_string()), pa.field("value", pa.large_binary())]),
    ]
    headers = [pa.list_(pa.field("element", structs[0], nullable=False))]
    headers += [pa.large_list(struct) for struct in structs]
    values = [
        pa.array([b"1"]),
        pa.array([b"2"], pa.binary(1)),
        pa.array(["3"], pa.large_string()),
        pa.DictionaryArray.from_arrays([0], pa.array(["4"], pa.string_view())),  # of Polars
    ]
    with Producer(settings(fake_cluster, linger_ms=60_000)) as producer:
        producer.send("t", b"0", headers={"h": b"0"})
        for number, (kind, value) in enumerate(zip(headers, values, strict=True), 1):
            header = {"key": "h", "value": str(number)}
            columns = {"value": value, "headers": pa.array([[header]], kind)}
            producer.send_table(pa.table(columns), "t")
        producer.flush(WAIT_S)
    assert [(row.value, *row.headers) for row in fake_cluster.log("t", 0).records()] == [
        (b"%d" % number, ("h", b"%d" % number)) for number in range(5)
    ]


def test_failures_have_a_deadline(fake_cluster: FakeCluster, producer: Producer) -> None:
    fake_cluster.fault(Delay(400), api="Produce")
    written = producer.send_many("t", [b"0"])
    with pytest.raises(KafkaTimeoutError):
        written.failures(0.01)
    assert written.failures(WAIT_S) == []


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (b"0", "of one record, call send"),
        ("0", "of one record, call send"),
        ({"value": b"0"}, "of one record, call send"),
        (7, "records must be a list"),
        ([b"0", 7], r"record 1 of the series: value must be bytes.*got int"),
        ([b"0", {"values": b"0"}], r"record 1 of the series: it has 'values'; a record has topic"),
        ([{"partition": -1}], r"record 0 .*partition is a whole number"),
        ([b"0", {"topic": 7}], r"record 1 .*topic must be the name of a topic"),
        ([{"timestamp_ms": "x"}], r"record 0 .*timestamp_ms"),
        ([{"headers": 7}], r"record 0 .*headers must be a dict or a list"),
    ],
)
def test_what_is_wrong_is_an_error_before_anything_is_queued(
    fake_cluster: FakeCluster, producer: Producer, records: Any, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        producer.send_many("t", records)
    producer.flush(WAIT_S)
    assert log_values(fake_cluster, "t") == []


def test_a_record_that_is_too_large_is_named(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    with Producer(settings(fake_cluster, max_request_size=2_000, batch_size=500)) as producer:
        with pytest.raises(ProduceError, match=r"record 2 of the series: .*max\.request\.size"):
            producer.send_many("t", [b"", b"", bytes(2_000)])
    assert log_values(fake_cluster, "t") == []


def test_a_series_outside_of_a_transaction(fake_cluster: FakeCluster) -> None:
    with Producer(settings(fake_cluster, transactional_id="x")) as producer:
        producer.init_transactions()
        with pytest.raises(TransactionError):
            producer.send_many("t", [b"0"])


def test_the_topic_that_is_not_there(fake_cluster: FakeCluster, monkeypatch: Any) -> None:

    monkeypatch.setattr("sparkkafka.client.cluster.cluster.UNKNOWN_TOPIC_GRACE_MS", 100)
    with Producer(settings(fake_cluster)) as producer:
        failures = producer.send_many("nowhere", [b"0", b"1"]).failures(WAIT_S)
    assert [(row.index, row.partition) for row in failures] == [(0, -1), (1, -1)]
    assert isinstance(failures[0].error, UnknownTopicError)


@pytest.mark.parametrize(
    "headers",
    [
        {"a": b"1", "b": "ü", "c": None},
        [("a", b"1"), ("b", "ü"), ("c", None)],
        (["a", bytearray(b"1")], ("b", memoryview("ü".encode())), ("c", None)),
    ],
)
def test_headers_are_a_dict_or_pairs_and_their_values_what_a_value_may_be(
    fake_cluster: FakeCluster, producer: Producer, headers: Any
) -> None:
    producer.send("t", b"", headers=headers).result(WAIT_S)
    (row,) = fake_cluster.log("t", 0).records()
    assert [tuple(header) for header in row.headers] == [
        ("a", b"1"),
        ("b", "ü".encode()),
        ("c", None),
    ]


@pytest.mark.parametrize(
    "headers", [{"a": 1}, [("a", 1)], [("a",)], {7: b""}, "a", 7, {"a": b""}.items()]
)
def test_the_message_about_headers_is_true(producer: Producer, headers: Any) -> None:
    with pytest.raises(OptionError, match=r"header.*(str|bytes)"):
        producer.send("t", b"", headers=headers)
