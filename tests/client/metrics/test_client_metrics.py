"""What the library's clients count, under Kafka's names, against a fake cluster."""

from __future__ import annotations

import math
import threading

import pytest

from sparkkafka.client import Admin, Consumer, Producer, TopicPartition
from sparkkafka.client.metrics import WINDOW_S, Sampled
from sparkkafka.errors import ErrorCode, KafkaTimeoutError, ProduceError
from sparkkafka.protocol.constants import RECORD_BATCH_OVERHEAD
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Drop
from tests.client.support import settings, write

WAIT_S = 30.0
FETCH = "consumer-fetch-manager-metrics"


# --- a series of values --------------------------------------------------------------------------


def test_rates_are_over_the_windows_of_java() -> None:
    """The figures of Java's Rate and SampledStat with two samples of 30 s."""
    series = Sampled()
    started_at_s = series._current.started_at_s
    series.record(60, started_at_s + 1)
    # Less than a window has passed: it counts as if there had been one before.
    assert series.window(started_at_s + 10).rate == pytest.approx(60 / (10 + WINDOW_S))
    series.record(30, started_at_s + 35)
    assert series.window(started_at_s + 45).rate == pytest.approx(90 / 45)
    assert series.window(started_at_s + 45).count_rate == pytest.approx(2 / 45)
    assert series.window(started_at_s + 45).mean == 45
    assert series.window(started_at_s + 45).largest == 60
    # The first sample is a minute old: only the second counts.
    at_s = started_at_s + 2 * WINDOW_S
    assert series.window(at_s).rate == pytest.approx(30 / (25 + WINDOW_S))
    assert series.window(at_s).largest == 30
    late = series.window(started_at_s + 500)
    assert late.rate == 0
    assert math.isnan(late.mean)
    assert math.isnan(late.largest)
    assert (series.total, series.count) == (90, 2)


# --- a consumer ----------------------------------------------------------------------------------


def test_a_consumer_counts_records_bytes_and_lag(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t", partitions=2)
    write(fake_cluster, "t", 1_000, partitions=2)
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    given = settings(fake_cluster, max_poll_records=100, auto_offset_reset="earliest")
    with Consumer(given) as consumer:
        before = consumer.metrics()
        assert before[FETCH]["records-consumed-total"] == 0
        assert math.isnan(before[FETCH]["records-lag-max"])
        consumer.assign([first, second])
        got = consumer.poll(WAIT_S)
        assert len(got) == 100
        tp = got[0].partition
        part = consumer.metrics()[f"{FETCH},topic=t,partition={tp}"]
        assert part["records-lag"] == part["records-lag-max"] == 400
        assert consumer.metrics()[FETCH]["records-lag-max"] in (400, 500)  # both responses, or one
        count = 100
        while count < 1_000:
            count += len(consumer.poll(WAIT_S))
        found = consumer.metrics()
    totals, topic = found[FETCH], found[f"{FETCH},topic=t"]
    assert totals["records-consumed-total"] == topic["records-consumed-total"] == 1_000
    digits = sum(len(str(number)) for number in range(1_000))
    assert topic["bytes-consumed-total"] == pytest.approx(digits, abs=20)
    assert totals["records-consumed-rate"] > 0
    assert found[f"{FETCH},topic=t,partition=0"]["records-lag"] == 0
    assert found[f"{FETCH},topic=t,partition=1"]["records-lag"] == 0
    assert totals["fetch-total"] >= 1
    assert totals["fetch-latency-max"] >= totals["fetch-latency-avg"] > 0
    assert totals["fetch-size-max"] >= totals["fetch-size-avg"] > 0
    assert 0 < totals["records-per-request-avg"] <= 1_000
    polls = found["consumer-metrics"]
    assert polls["last-poll-seconds-ago"] >= 0
    assert polls["time-between-poll-max"] >= polls["time-between-poll-avg"] >= 0
    assert 0 < polls["poll-idle-ratio-avg"] <= 1
    assert polls["incoming-byte-total"] > digits
    assert polls["request-total"] >= polls["response-total"] > 0
    assert polls["connection-count"] >= 1


def test_tables_count_as_records_do(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    write(fake_cluster, "t", 300)
    with Consumer(settings(fake_cluster)) as consumer:
        consumer.assign({TopicPartition("t", 0): 0})
        count = 0
        while count < 300:
            count += consumer.poll_arrow(WAIT_S, max_records=70).num_rows
        assert consumer.metrics()[FETCH]["records-consumed-total"] == 300


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_of_a_group_counts_commits_heartbeats_and_rebalances(
    fake_cluster: FakeCluster, protocol: str
) -> None:
    fake_cluster.create_topic("t", partitions=3)
    write(fake_cluster, "t", 30, partitions=3, per_send=10)
    given = settings(
        fake_cluster, group_id="g", group_protocol=protocol, auto_offset_reset="earliest"
    )
    if protocol == "classic":
        given["heartbeat.interval.ms"] = "50"
    with Consumer(given | {"enable.auto.commit": "false"}) as consumer:
        consumer.subscribe(["t"])
        count = 0
        while count < 30:
            count += len(consumer.poll(WAIT_S))
        consumer.commit()
        consumer.commit()
        done = threading.Event()
        consumer.commit(asynchronous=True, callback=lambda *_: done.set())
        beats = 0.0
        while not (done.is_set() and beats):
            consumer.poll(0.05)
            beats = consumer.metrics()["consumer-coordinator-metrics"]["heartbeat-total"]
        found = consumer.metrics()["consumer-coordinator-metrics"]
    assert found["assigned-partitions"] == 3
    assert found["commit-total"] == 3
    assert found["commit-latency-max"] >= found["commit-latency-avg"] > 0
    assert found["rebalance-total"] >= 1
    assert found["failed-rebalance-total"] == 0
    assert found["last-rebalance-seconds-ago"] >= 0
    assert found["heartbeat-response-time-max"] > 0
    assert found["last-heartbeat-seconds-ago"] >= 0


def test_a_join_that_breaks_off_is_a_failed_rebalance(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    write(fake_cluster, "t", 1)
    fake_cluster.fault(Drop.BEFORE, api="SyncGroup", times=1)
    given = settings(fake_cluster, group_id="g", auto_offset_reset="earliest")
    with Consumer(given) as consumer:
        consumer.subscribe(["t"])
        while not len(consumer.poll(WAIT_S)):
            pass
        found = consumer.metrics()["consumer-coordinator-metrics"]
    assert found["failed-rebalance-total"] == 1
    assert found["rebalance-total"] == 1


# --- a producer ----------------------------------------------------------------------------------


def test_a_producer_counts_what_it_sends(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t", partitions=2)
    given = settings(fake_cluster, compression_type="gzip", linger_ms=60_000)
    with Producer(given) as producer:
        for number in range(1_000):
            producer.send("t", b"a value that is the same each time", partition=number % 2)
        held = producer.metrics()["producer-metrics"]
        assert held["buffer-available-bytes"] < held["buffer-total-bytes"] == 32 << 20
        producer.flush(WAIT_S)
        found = producer.metrics()
    totals, topic = found["producer-metrics"], found["producer-topic-metrics,topic=t"]
    batches = [batch for p in (0, 1) for batch in fake_cluster.log("t", p).batches()]
    sizes = [RECORD_BATCH_OVERHEAD + len(batch.data) for batch in batches]
    size_bytes = sum(sizes)
    assert totals["record-send-total"] == topic["record-send-total"] == 1_000
    assert totals["byte-total"] == topic["byte-total"] == size_bytes
    assert totals["batch-size-avg"] == pytest.approx(size_bytes / len(batches))
    assert totals["batch-size-max"] == max(sizes)
    assert 0 < totals["compression-rate-avg"] < 0.2
    assert topic["compression-rate"] == totals["compression-rate-avg"]
    assert totals["record-queue-time-max"] >= totals["record-queue-time-avg"] > 0
    assert totals["request-latency-max"] >= totals["request-latency-avg"] > 0
    assert totals["record-error-total"] == totals["record-retry-total"] == 0
    assert totals["buffer-available-bytes"] == totals["buffer-total-bytes"]
    assert totals["requests-in-flight"] == 0
    assert totals["connection-creation-total"] >= totals["connection-count"] >= 1
    assert totals["outgoing-byte-total"] > size_bytes


def test_retries_and_errors_count_records(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    fake_cluster.fault(ErrorCode.NOT_LEADER_OR_FOLLOWER, api="Produce", times=1)
    with Producer(settings(fake_cluster)) as producer:
        producer.send_many("t", [b"1", b"2", b"3"])
        producer.flush(WAIT_S)
        found = producer.metrics()["producer-metrics"]
        assert (found["record-retry-total"], found["record-send-total"]) == (3, 6)
        fake_cluster.fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED, api="Produce")
        with pytest.raises(ProduceError):
            producer.send("t", b"4").result(WAIT_S)
        found = producer.metrics()
    assert found["producer-metrics"]["record-error-total"] == 1
    assert found["producer-topic-metrics,topic=t"]["record-error-total"] == 1


def test_waiting_for_memory_counts(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    go_on = threading.Event()

    def wait(_: object) -> None:
        go_on.wait(WAIT_S)

    fake_cluster.fault(wait, api="Produce", times=1)
    given = settings(fake_cluster, buffer_memory=20_000, max_block_ms=50)
    with Producer(given) as producer:
        try:
            with pytest.raises(KafkaTimeoutError):
                for _ in range(50):
                    producer.send("t", bytes(1_000))
        finally:
            go_on.set()
        found = producer.metrics()["producer-metrics"]
        assert found["buffer-exhausted-total"] == 1
        assert found["bufferpool-wait-time-ns-total"] >= 40e6
        assert found["waiting-threads"] == 0


# --- all of them ---------------------------------------------------------------------------------


def test_an_admin_counts_requests(fake_cluster: FakeCluster) -> None:
    with Admin(settings(fake_cluster)) as admin:
        assert admin.metrics()["admin-client-metrics"]["request-total"] == 0
        admin.describe_cluster()
        found = admin.metrics()["admin-client-metrics"]
        assert found["connection-count"] >= 1
        assert found["request-total"] == found["response-total"] >= 2
    assert admin.metrics()["admin-client-metrics"]["connection-count"] == 0
    assert admin.metrics()["admin-client-metrics"]["connection-close-total"] >= 1


def test_a_connection_that_breaks_takes_its_requests_with_it(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    fake_cluster.fault(Drop.BEFORE, api="Produce", times=1)
    with Producer(settings(fake_cluster)) as producer:
        producer.send("t", b"1").result(WAIT_S)
        found = producer.metrics()["producer-metrics"]
    assert found["requests-in-flight"] == 0
    assert found["connection-close-total"] >= 1


def test_all_figures_are_floats_under_names_of_kafka(fake_cluster: FakeCluster) -> None:
    with Producer(settings(fake_cluster)) as producer, Consumer(settings(fake_cluster)) as reader:
        found = producer.metrics() | reader.metrics()
    assert set(found) == {
        "producer-metrics",
        "consumer-metrics",
        "consumer-coordinator-metrics",
        FETCH,
    }
    for group in found.values():
        for name, value in group.items():
            assert type(value) is float, name
            assert name == name.lower()
            assert "_" not in name
