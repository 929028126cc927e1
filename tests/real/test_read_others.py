"""Topics that other clients filled: we read the rows that confluent-kafka's consumer sees."""

from __future__ import annotations

import itertools
import time

import pytest

from tests.real.peers import (
    CODECS,
    Record,
    confluent_read,
    confluent_transaction,
    confluent_write,
    for_kafka_python,
    kafka_python_write,
    mixed_records,
    our_rows,
)

pytestmark = pytest.mark.real


@pytest.mark.parametrize("codec", CODECS)
def test_confluent_kafka_wrote(kafka_cluster, new_topic, codec):
    topic = new_topic()
    records = mixed_records()
    confluent_write(
        kafka_cluster.bootstrap_servers, topic, records, compression_type=codec, linger_ms=50
    )
    rows = list(our_rows(kafka_cluster.bootstrap_servers, topic))
    assert rows == confluent_read(kafka_cluster.bootstrap_servers, topic)
    assert [(r.key, r.value, r.headers or (), r.timestamp_ms) for r in rows] == [
        tuple(record) for record in records
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_python_wrote(kafka_cluster, new_topic, codec):
    topic = new_topic()
    records = mixed_records()
    kafka_python_write(kafka_cluster.bootstrap_servers, topic, records, codec, linger_ms=50)
    rows = list(our_rows(kafka_cluster.bootstrap_servers, topic))
    assert rows == confluent_read(kafka_cluster.bootstrap_servers, topic)
    assert [(r.key, r.value, r.headers or (), r.timestamp_ms) for r in rows] == [
        tuple(record) for record in for_kafka_python(records)
    ]


def test_several_writers_and_codecs_in_one_partition(kafka_cluster, new_topic):
    topic = new_topic()
    for codec in CODECS:
        confluent_write(
            kafka_cluster.bootstrap_servers, topic, mixed_records(50), compression_type=codec
        )
        kafka_python_write(kafka_cluster.bootstrap_servers, topic, mixed_records(50), codec)
    rows = list(our_rows(kafka_cluster.bootstrap_servers, topic))
    assert len(rows) == 500
    assert rows == confluent_read(kafka_cluster.bootstrap_servers, topic)


def test_small_fetches_cut_batches_and_nothing_is_lost(kafka_cluster, new_topic):
    topic = new_topic()
    confluent_write(kafka_cluster.bootstrap_servers, topic, mixed_records(2_000), batch_size=2_000)
    whole = list(our_rows(kafka_cluster.bootstrap_servers, topic))
    cut = list(our_rows(kafka_cluster.bootstrap_servers, topic, max_partition_fetch_bytes=3_000))
    assert cut == whole == confluent_read(kafka_cluster.bootstrap_servers, topic)


def test_a_batch_larger_than_the_fetch_size_is_read(kafka_cluster, new_topic):
    topic = new_topic()
    confluent_write(kafka_cluster.bootstrap_servers, topic, [Record(b"k", b"x" * 900_000)])
    (row,) = our_rows(kafka_cluster.bootstrap_servers, topic, max_partition_fetch_bytes=1_000)
    assert row.value == b"x" * 900_000


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_transactions_committed_and_aborted(kafka_cluster, new_topic, isolation):
    topic = new_topic()
    batches = [
        (number % 3 != 0, [Record(None, f"{number}-{i}".encode()) for i in range(7)])
        for number in range(12)
    ]
    confluent_transaction(kafka_cluster.bootstrap_servers, topic, topic, batches)
    rows = list(our_rows(kafka_cluster.bootstrap_servers, topic, isolation_level=isolation))
    assert rows == confluent_read(kafka_cluster.bootstrap_servers, topic, isolation=isolation)
    expected = [
        record.value
        for committed, records in batches
        for record in records
        if committed or isolation == "read_uncommitted"
    ]
    assert [row.value for row in rows] == expected


def test_a_topic_with_only_aborted_records_is_empty_for_read_committed(kafka_cluster, new_topic):
    topic = new_topic()
    batches = [(False, [Record(None, b"never")] * 5)] * 3
    confluent_transaction(kafka_cluster.bootstrap_servers, topic, topic, batches)
    assert (
        list(our_rows(kafka_cluster.bootstrap_servers, topic, isolation_level="read_committed"))
        == []
    )


def test_log_append_time(kafka_cluster, new_topic):
    topic = new_topic(configs={"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000) - 1_000
    confluent_write(kafka_cluster.bootstrap_servers, topic, mixed_records(100))
    rows = list(our_rows(kafka_cluster.bootstrap_servers, topic))
    assert rows == confluent_read(kafka_cluster.bootstrap_servers, topic)
    assert {row.timestamp_type for row in rows} == {1}
    assert all(before_ms <= row.timestamp_ms <= before_ms + 60_000 for row in rows)


def test_compaction_leaves_gaps(kafka_cluster, new_topic):
    bootstrap = kafka_cluster.bootstrap_servers
    topic = new_topic(
        configs={
            "cleanup.policy": "compact",
            "segment.ms": "200",
            "min.cleanable.dirty.ratio": "0.001",
            "max.compaction.lag.ms": "100",
        },
    )
    now_ms = int(time.time() * 1000)
    # Every 50th key is there once and stays, so that gaps come between.
    records = [
        Record(b"once-%d" % i if i % 50 == 0 else b"key-%d" % (i % 5), b"%d" % i, (), now_ms)
        for i in range(500)
    ]
    confluent_write(bootstrap, topic, records, batch_num_messages=10)
    # The active segment is never compacted: a later record starts a new one.
    until = time.monotonic() + 60
    rows = []
    while time.monotonic() < until:
        time.sleep(0.5)
        roll = Record(b"roll", b"roll", (), int(time.time() * 1000))
        confluent_write(bootstrap, topic, [roll])
        rows = list(our_rows(bootstrap, topic))
        if len(rows) < 300:
            break
    assert len(rows) < 300, "the broker did not compact the topic in time"
    assert sum(b.offset - a.offset > 1 for a, b in itertools.pairwise(rows)) > 5
    last = {row.key: row.value for row in rows if row.key != b"roll"}
    assert last == {record.key: record.value for record in records}
    # Compaction goes on between two reads, so compare what both saw.
    kept = {row.offset: row for row in confluent_read(bootstrap, topic)}
    common = [row for row in rows if row.offset in kept]
    assert len(common) > 5
    assert common == [kept[row.offset] for row in common]
