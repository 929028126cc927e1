"""A task of a write against brokers to break: what is checked before anything is sent, topics that
are made, the bound of memory, and what the task reports. No Spark session."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparkkafka.client.producer.column_producer import ColumnProducer
from sparkkafka.config.options import parse_write_options
from sparkkafka.errors import (
    BrokerError,
    EncodeError,
    ErrorCode,
    ProduceError,
    UnknownTopicError,
    Written,
)
from sparkkafka.spark.write import write_task
from sparkkafka.spark.write.commit_message import KafkaCommitMessage
from sparkkafka.spark.write.writer import input_columns
from sparkkafka.testing.fake.faults import Delay, ErrorResponse
from tests.client.support import QUICK, log_values, open_cluster, reader
from tests.spark.schemas import ddl

MIB = 2**20


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a topic that is not there is looked for."""
    monkeypatch.setattr("sparkkafka.client.cluster.cluster.UNKNOWN_TOPIC_GRACE_MS", 300)


def write(cluster: Any, *batches: pa.RecordBatch, **given: str) -> KafkaCommitMessage:
    """Names with __ for dots."""
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    options |= {f"kafka.{name}": value for name, value in QUICK.items()}
    options |= {name.replace("__", "."): value for name, value in given.items()}
    parsed = parse_write_options(options)
    kinds = {"value": "binary", "topic": "string", "partition": "int", "timestamp": "timestamp"}
    schema = ddl(", ".join(f"{name} {kinds[name]}" for name in batches[0].schema.names))
    return write_task.write_rows(iter(batches), input_columns(schema, parsed.topic), parsed)


def batch(values: list[bytes | None], **columns: Any) -> pa.RecordBatch:
    kinds = {"topic": pa.string(), "partition": pa.int32(), "timestamp": pa.timestamp("us", "UTC")}
    arrays = {name: pa.array(column, kinds[name]) for name, column in columns.items()}
    return pa.record_batch({"value": pa.array(values, pa.binary()), **arrays})


def sent_requests(cluster: Any) -> int:
    return len(cluster.requests_of("Produce"))


# --- before anything is sent -----------------------------------------------------------------


def test_a_record_above_max_request_size_stops_the_whole_arrow_batch(fake_cluster: Any) -> None:
    fake_cluster.create_topic("t", partitions=3)
    rows = [b"small"] * 50 + [b"x" * 2000] + [b"small"] * 50
    with pytest.raises(ProduceError) as caught:
        write(
            fake_cluster,
            batch(rows, partition=[0] * 50 + [2] + [1] * 50),
            topic="t",
            kafka__max__request__size="1000",
        )
    assert "topic t partition 2: a record takes 20" in str(caught.value)
    assert "kafka.max.request.size=1000" in str(caught.value)
    assert caught.value.written is Written.NO
    assert sent_requests(fake_cluster) == 0


@pytest.mark.parametrize("bad", ["topic", "partition", "size"])
def test_a_bad_row_in_the_last_piece_stops_the_first_piece(
    fake_cluster: Any, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    monkeypatch.setattr(write_task, "MIN_PIECE_BYTES", 1000)
    for name in "ab":
        fake_cluster.create_topic(name)
    rows = [b"x" * 100] * 100
    topics: list[str | None] = ["a", "b"] * 50
    partitions = [0] * 100
    if bad == "size":
        rows[-1] = b"x" * 5000
    elif bad == "topic":
        topics[-1] = None
    else:
        partitions[-1] = 1
    with pytest.raises((EncodeError, ProduceError)):
        write(
            fake_cluster,
            batch(rows, topic=topics, partition=partitions),
            kafka__buffer__memory="1000",
            kafka__max__request__size="4000",
        )
    assert sent_requests(fake_cluster) == 0


def test_records_just_below_the_limit_go_through(fake_cluster: Any) -> None:
    fake_cluster.create_topic("t", partitions=2)
    rows = [b"x" * 920, b"y" * 900, b"z"]
    write(
        fake_cluster,
        batch(rows, partition=[0, 1, 0]),
        topic="t",
        kafka__max__request__size="1000",
    )
    assert log_values(fake_cluster, "t", 0) == [rows[0], rows[2]]
    assert log_values(fake_cluster, "t", 1) == [rows[1]]


# --- refused by the broker -------------------------------------------------------------------


def test_a_record_above_the_topics_limit_names_both(fake_cluster: Any) -> None:
    fake_cluster.create_topic("t", configs={"max.message.bytes": "1000"})
    rows = batch([b"a", bytes(np.random.default_rng(0).bytes(3000))])
    with pytest.raises(ProduceError) as caught:
        write(fake_cluster, rows, topic="t")
    assert "MESSAGE_TOO_LARGE" in str(caught.value)
    assert "one record of 30" in str(caught.value)
    assert "above the topic's max.message.bytes=1000; raise that" in str(caught.value)
    assert log_values(fake_cluster, "t") == [b"a"]


def test_a_large_record_that_compresses_below_the_topics_limit_is_written(
    fake_cluster: Any,
) -> None:
    fake_cluster.create_topic("t", configs={"max.message.bytes": "1000"})
    write(fake_cluster, batch([b"a" * 3000]), topic="t", kafka__compression__type="gzip")
    assert log_values(fake_cluster, "t") == [b"a" * 3000]


def test_a_limit_that_may_not_be_asked_for_is_an_error_all_the_same(fake_cluster: Any) -> None:
    fake_cluster.create_topic("t", configs={"max.message.bytes": "1000"})
    fake_cluster.fault(
        ErrorResponse(ErrorCode.TOPIC_AUTHORIZATION_FAILED), api="DescribeConfigs", times=None
    )
    with pytest.raises(ProduceError, match=r"MESSAGE_TOO_LARGE.*max\.message\.bytes \(not known"):
        write(fake_cluster, batch([b"x" * 3000]), topic="t")


def test_a_time_that_the_topic_refuses_names_the_settings(fake_cluster: Any) -> None:
    fake_cluster.create_topic("t", configs={"message.timestamp.before.max.ms": "60000"})
    with pytest.raises(ProduceError) as caught:
        write(fake_cluster, batch([b"old"], timestamp=[5_000_000]), topic="t")
    assert "INVALID_TIMESTAMP" in str(caught.value)
    assert "begins at timestamp 5000 ms" in str(caught.value)
    assert "message.timestamp.before.max.ms=60000" in str(caught.value)
    assert "drop the column timestamp" in str(caught.value)


def test_timestamps_of_rows_arrive(fake_cluster: Any) -> None:
    fake_cluster.create_topic("t")
    write(fake_cluster, batch([b"1", b"2"], timestamp=[5_000_999, None]), topic="t")
    with open_cluster(fake_cluster) as cluster:
        with reader(cluster, "t", 0, 2) as source:
            ((_, records),) = source
    first_ms, second_ms = records.timestamps_ms.tolist()
    assert first_ms == 5000
    assert second_ms > 1_600_000_000_000


# --- topics that are missing -----------------------------------------------------------------


def test_a_missing_topic_is_an_error_that_names_the_option(fake_cluster: Any) -> None:
    with pytest.raises(UnknownTopicError, match=r"topic new.*createTopic=true"):
        write(fake_cluster, batch([b"v"]), topic="new")
    assert not fake_cluster.requests_of("CreateTopics")


def test_topics_are_made_as_the_options_say(fake_cluster: Any) -> None:
    fake_cluster.create_topic("old", partitions=1)
    rows = batch([b"1", b"2", b"3"], topic=["new", "old", "newer"], partition=[6, 0, 0])
    write(
        fake_cluster,
        rows,
        createTopic="true",
        createTopic__partitions="7",
        createTopic__replicationFactor="2",
        createTopic__configs='{"min.insync.replicas": "2", "retention.ms": 1000}',
    )
    (request,) = fake_cluster.requests_of("CreateTopics")
    made = {topic.name: topic for topic in request.message.topics}
    assert set(made) == {"new", "newer"}
    assert (made["new"].num_partitions, made["new"].replication_factor) == (7, 2)
    assert {c.name: c.value for c in made["new"].configs} == {
        "min.insync.replicas": "2",
        "retention.ms": "1000",
    }
    assert log_values(fake_cluster, "new", 6) == [b"1"]
    assert log_values(fake_cluster, "old", 0) == [b"2"]


def test_another_task_that_was_faster_is_no_error(fake_cluster: Any) -> None:
    fake_cluster.create_topic("t")
    # The first look finds nothing, as before the other task made the topic.
    fake_cluster.fault(
        ErrorResponse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), api="Metadata", topic="t"
    )
    message = write(fake_cluster, batch([b"v"]), topic="t", createTopic="true")
    assert len(fake_cluster.requests_of("CreateTopics")) == 1
    assert message.rows == 1


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "grant CREATE on topic new, .*createTopic=true needs that right",
        ),
        (
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            "grant CREATE on topic new, .*createTopic=true needs that right",
        ),
        (ErrorCode.POLICY_VIOLATION, "because of createTopic=true"),
    ],
)
def test_a_topic_that_may_not_be_made(fake_cluster: Any, code: ErrorCode, message: str) -> None:
    fake_cluster.fault(ErrorResponse(code, message="no"), api="CreateTopics", times=None)
    with pytest.raises(
        BrokerError, match=f"{code.name} from CreateTopics of topic new @ .*{message}"
    ):
        write(fake_cluster, batch([b"v"]), topic="new", createTopic="true")


# --- memory ----------------------------------------------------------------------------------


@pytest.fixture
def buffered(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """What the producer holds unacknowledged, noted after each Produce request is built."""
    seen: list[int] = []
    original = ColumnProducer._wait_for_memory

    def noting(self: ColumnProducer) -> None:
        seen.append(self.buffered_bytes)
        original(self)
        seen.append(self.buffered_bytes)

    monkeypatch.setattr(ColumnProducer, "_wait_for_memory", noting)
    yield seen


@pytest.mark.slow
@pytest.mark.parametrize(("row_bytes", "rows"), [(100, 40_000), (100_000, 300), (700_000, 60)])
def test_a_slow_broker_holds_the_task_back(
    fake_cluster: Any, buffered: list[int], row_bytes: int, rows: int
) -> None:
    """Neither one large Arrow batch nor many make the task hold more than it may."""
    fake_cluster.create_topic("t", partitions=4)
    slow = fake_cluster.fault(Delay(20), api="Produce", times=None)
    value = pa.array([b"x" * row_bytes] * rows, pa.binary())
    partition = pa.array(np.arange(rows, dtype=np.int32) % 4)
    arrow = pa.record_batch({"value": value, "partition": partition})
    limit = 2 * MIB
    message = write(
        fake_cluster,
        arrow,
        *[arrow.slice(0, rows // 2)] * 2,
        topic="t",
        kafka__buffer__memory=str(limit),
    )
    assert message.rows == 2 * rows
    assert slow.fired > 4
    assert max(buffered) > limit / 2, "the limit is never reached"
    # The Arrow batch in hand takes half of buffer.memory. One piece of it, of about buffer.memory
    # as well, comes on top; numbers before each record too.
    assert max(buffered) < 1.8 * limit
    assert min(buffered[-20:]) <= limit / 2


# --- what the task reports -------------------------------------------------------------------


def test_the_message_says_what_was_written(
    fake_cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fake_cluster.create_topic("t", partitions=2)
    fake_cluster.append("t", 1, b"?", end_offset=5)
    fake_cluster.fault(ErrorResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER), api="Produce", nth=1)
    with caplog.at_level(logging.INFO, "sparkkafka.spark.write.write_task"):
        message = write(
            fake_cluster,
            batch([b"aa", None, b"c"], partition=[0, 1, 1]),
            batch([b"d"], partition=[1]),
            topic="t",
        )
    assert (message.rows, message.payload_bytes) == (4, 4)
    assert message.partitions == {("t", 0): (1, 0, 0), ("t", 1): (3, 5, 7)}
    assert message.batches == 2
    assert message.retries >= 1
    assert message.batch_bytes > 2 * 61
    assert pickle.loads(pickle.dumps(message)) == message
    (line,) = caplog.messages
    assert line.startswith("wrote 4 rows (4 bytes of keys and values) in 2 batches (")
    assert "offsets t-0: 0..0, t-1: 5..7 in " in line


def test_offsets_are_not_known_without_responses(fake_cluster: Any) -> None:
    fake_cluster.create_topic("t")
    message = write(fake_cluster, batch([b"v"]), topic="t", kafka__acks="0")
    assert message.partitions == {("t", 0): (1, -1, -1)}


def test_hundreds_of_topics_make_a_small_message_and_a_short_line(fake_cluster: Any) -> None:
    names = [f"topic-{number:03d}" for number in range(300)]
    message = write(
        fake_cluster,
        batch([b"v"] * 1200, topic=names * 4),
        createTopic="true",
        createTopic__partitions="2",
    )
    assert {topic for topic, _ in message.partitions} == set(names)
    assert sum(rows for rows, _, _ in message.partitions.values()) == 1200
    assert len(pickle.dumps(message)) < 20_000
    assert len(message.text()) < 1000
    assert message.text().endswith(" and 280 more")
    assert all(
        len(log_values(fake_cluster, name, 0)) + len(log_values(fake_cluster, name, 1)) == 4
        for name in names
    )
