"""Some faults of docs/reliability.md with three real brokers: rows lost and doubled, and the error;
and which of three brokers in three racks gives the bytes.

The tasks' and the driver's code runs here without Spark, as in tests/spark/fault_runs.py. Missing
permissions are in test_unauthorised.py.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pyarrow as pa
import pytest

from sparkkafka.client.arguments import InputColumns
from sparkkafka.client.cluster.request_driver import FOR_TRANSACTION, find_coordinator
from sparkkafka.client.net.connection import Connection
from sparkkafka.config.options import WriteOptions, parse_write_options
from sparkkafka.errors import KafkaError, ProduceError
from sparkkafka.spark.decision_text import TaskReport, WriterNames
from sparkkafka.spark.exactly_once import TaskAttempt, commit_batch
from sparkkafka.spark.write.write_task import write_rows
from sparkkafka.testing.kafka import admin
from tests.client.support import numbers, open_cluster, read, read_range, write
from tests.real.processes import stands_still

pytestmark = pytest.mark.real

COLUMNS = InputColumns(value=0, topic=1, partition=2)
RACKS = ["left", "middle", "right"]
PARTITIONS = 3
ROWS = 3_000
ARROW_ROWS = 30
WAIT_S = 40.0
QUICK = {
    "kafka.linger.ms": "0",
    "kafka.request.timeout.ms": "4000",
    "kafka.delivery.timeout.ms": "40000",
    "kafka.max.block.ms": "40000",
    "kafka.default.api.timeout.ms": "40000",
    "kafka.retry.backoff.ms": "20",
    "kafka.retry.backoff.max.ms": "200",
}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def brokers() -> Iterator[Any]:
    from sparkkafka.testing.kafka.cluster import KafkaCluster

    properties = {
        "min.insync.replicas": 2,
        "replica.lag.time.max.ms": 3_000,
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }
    racks = {number: {"broker.rack": rack} for number, rack in enumerate(RACKS)}
    with KafkaCluster(3, properties, broker_properties=racks, heap_mb=384) as cluster:
        yield cluster


@pytest.fixture
def topic(brokers: Any) -> str:
    name = f"out{next(_numbers)}"
    brokers.create_topic(name, PARTITIONS, 3)
    return name


def options(brokers: Any, **given: str) -> WriteOptions:
    changed = {name.replace("_", "."): value for name, value in given.items()}
    return parse_write_options(
        {"kafka.bootstrap.servers": brokers.bootstrap_servers, **QUICK, **changed}
    )


def arrow(topic: str, rows: range, at: Callable[[int], object] | None = None) -> Iterator[Any]:
    """The rows in small Arrow batches, a little apart; `at` is called with each one's number."""
    for number, start in enumerate(range(rows.start, rows.stop, ARROW_ROWS)):
        if at is not None:
            at(number)
        time.sleep(0.02)  # so that some are acknowledged, and some not, when `at` strikes
        part = range(start, min(start + ARROW_ROWS, rows.stop))
        yield pa.record_batch(
            [
                pa.array([b"%d" % row for row in part], pa.binary()),
                pa.array([topic] * len(part), pa.string()),
                pa.array([row % PARTITIONS for row in part], pa.int32()),
            ],
            names=["value", "topic", "partition"],
        )


def once(number: int, act: Callable[[], object]) -> Callable[[int], None]:
    """Do it before that Arrow batch, in the middle of a write."""

    def at(now: int) -> None:
        if now == number:
            act()

    return at


def held(brokers: Any, topic: str, **config: Any) -> list[list[int]]:
    """Each partition's rows."""
    return [
        [int(value or b"") for value in read(brokers, topic, partition=number, **config)]
        for number in range(PARTITIONS)
    ]


def assert_each_once(brokers: Any, topic: str, **config: Any) -> None:
    found = held(brokers, topic, **config)
    seen = Counter(row for rows in found for row in rows)
    expected = Counter(range(ROWS))
    assert seen == expected, (
        f"lost {(expected - seen).total()}, doubled {(seen - expected).total()}"
    )
    assert all(rows == sorted(rows) for rows in found)


def assert_truthful(brokers: Any, topic: str, error: KafkaError) -> None:
    for (name, number), (written, _, unknown) in error.partitions.items():
        rows = held(brokers, name)[number]
        assert len(rows) == len(set(rows))
        assert written <= len(rows) <= written + unknown


def leader(brokers: Any, topic: str, partition: int = 0) -> int:
    running = next(number for number in brokers.broker_ids if brokers.is_running(number))
    return int(admin.view(brokers.address(running), 5.0).leaders[topic][partition])


def wait_until_in_sync(brokers: Any, topic: str) -> None:
    """All replicas of all partitions, so that the next test begins with a whole cluster."""
    client = confluent_kafka.admin.AdminClient({"bootstrap.servers": brokers.bootstrap_servers})
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        rows = client.list_topics(topic, timeout=10).topics[topic].partitions.values()
        if rows and all(len(row.isrs) == 3 for row in rows):
            return
        time.sleep(0.2)
    raise AssertionError("replicas did not come back in sync")


def test_fewer_replicas_than_min_insync_for_a_while(
    brokers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A follower stands still until the leaders refuse to write without it, and goes on."""
    topic = "strict"
    brokers.create_topic(topic, PARTITIONS, 3, {"min.insync.replicas": 3})
    caplog.set_level(logging.INFO, "sparkkafka.client.producer")
    standing = threading.Event()

    def away() -> None:
        with stands_still(brokers, (leader(brokers, topic) + 1) % 3):
            standing.set()
            until = time.monotonic() + WAIT_S
            while "NOT_ENOUGH_REPLICAS" not in caplog.text and time.monotonic() < until:
                time.sleep(0.1)

    thread = threading.Thread(target=away)

    def strike() -> None:
        thread.start()
        assert standing.wait(WAIT_S)

    write_rows(arrow(topic, range(ROWS), once(50, strike)), COLUMNS, options(brokers))
    thread.join()
    assert "NOT_ENOUGH_REPLICAS" in caplog.text
    assert_each_once(brokers, topic)
    wait_until_in_sync(brokers, topic)


def test_the_topic_is_deleted_during_the_write(brokers: Any, topic: str) -> None:
    client = confluent_kafka.admin.AdminClient({"bootstrap.servers": brokers.bootstrap_servers})

    def delete() -> None:
        client.delete_topics([topic])[topic].result(20)

    with pytest.raises(KafkaError, match=f"{topic}.*does not exist") as raised:
        write_rows(arrow(topic, range(ROWS), once(50, delete)), COLUMNS, options(brokers))
    assert sum(row.written_records for row in raised.value.partitions.values()) > 0


def test_delivery_timeout_passes(brokers: Any, topic: str) -> None:
    """The leader stands still for longer than kafka.delivery.timeout.ms; it may have appended."""
    lead = leader(brokers, topic)
    stopped = stands_still(brokers, lead)
    given = options(
        brokers,
        kafka_request_timeout_ms="1000",
        kafka_delivery_timeout_ms="2000",
    )
    try:
        with pytest.raises(ProduceError, match=r"kafka\.delivery\.timeout\.ms=2000") as raised:
            write_rows(arrow(topic, range(ROWS), once(50, stopped.__enter__)), COLUMNS, given)
    finally:
        stopped.__exit__(None, None, None)
    wait_until_in_sync(brokers, topic)
    assert_truthful(brokers, topic, raised.value)


# --- replicas of one's own rack -------------------------------------------------------------------


@pytest.fixture
def bytes_of(brokers: Any, monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Bytes of records that came from each broker, counted at the connections."""
    numbers_by_port = {brokers.address(number)[1]: number for number in brokers.broker_ids}
    counted: Counter[int] = Counter()
    plain = Connection.receive_ready

    def receive_ready(self: Connection, *args: Any) -> tuple[int, Any] | None:
        received = plain(self, *args)
        for topic in () if received is None else getattr(received[1], "responses", ()):
            for row in getattr(topic, "partitions", ()):
                records = getattr(row, "records", None) or b""
                counted[numbers_by_port[self.port]] += len(records)
        return received

    monkeypatch.setattr(Connection, "receive_ready", receive_ready)
    return counted


def test_the_bytes_come_from_ones_own_rack(brokers: Any, bytes_of: Counter[int]) -> None:
    """From a follower or, if that is in the rack, from the leader; so without a rack."""
    brokers.create_topic("racks", replication_factor=3)
    write(brokers, "racks", ROWS, batch_size=2_000, linger_ms=0)
    wait_until_in_sync(brokers, "racks")
    lead = leader(brokers, "racks")
    for near, config in [(lead, {}), *((n, {"client_rack": RACKS[n]}) for n in range(3))]:
        bytes_of.clear()
        with open_cluster(brokers) as cluster:
            assert read_range(cluster, "racks", 0, ROWS, **config) == numbers(ROWS)
        assert list(+bytes_of) == [near]
        assert bytes_of[near] > ROWS * 5


def test_what_was_just_written_is_read_from_a_replica_that_lags(
    brokers: Any, bytes_of: Counter[int]
) -> None:
    """The follower learns of the new end a moment later: no data loss, and no long wait."""
    brokers.create_topic("fresh", replication_factor=3)
    near = (leader(brokers, "fresh") + 1) % 3
    with open_cluster(brokers) as cluster:
        for start in range(0, 500, 100):
            write(brokers, "fresh", 100)
            values = read_range(cluster, "fresh", start, start + 100, client_rack=RACKS[near])
            assert values == numbers(100)
    assert bytes_of[near] > 0


# --- the coordinator ------------------------------------------------------------------------------


def test_the_coordinator_is_killed_during_an_exactly_once_batch(brokers: Any, topic: str) -> None:
    """The decision's coordinator dies between the tasks and the commit."""
    given = options(brokers, deliveryGuarantee="exactly-once")
    query = str(uuid.uuid4())
    names = WriterNames.of_query(None, query, str(uuid.uuid4()))
    share = ROWS // 2
    reports: list[TaskReport] = []
    for task in range(2):
        rows = range(task * share, (task + 1) * share)
        report = write_rows(
            arrow(topic, rows), COLUMNS, given, TaskAttempt(names, query, 0, task, 0)
        ).report
        assert report is not None
        reports.append(report)
    with open_cluster(brokers) as client:
        victim = find_coordinator(client, names.decisions, FOR_TRANSACTION, client.deadline())
    assert held(brokers, topic, isolation_level="read_committed") == [[]] * PARTITIONS
    brokers.kill(victim)  # for good: no test comes after this one
    commit_batch(given, 0, reports)
    # The decision stands; its markers reach partitions once they have new leaders.
    until = time.monotonic() + WAIT_S
    while sum(map(len, held(brokers, topic, isolation_level="read_committed"))) < ROWS:
        assert time.monotonic() < until
        time.sleep(0.2)
    assert_each_once(brokers, topic, isolation_level="read_committed")
