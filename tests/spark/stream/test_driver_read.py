"""Small micro-batches whose rows come with the plan, without Spark.

`take` does what pyspark.sql.streaming.python_streaming_source_runner does with a plan.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper

from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.producer.producer import Producer
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import CorruptRecordError, DataLossError, ErrorCode
from sparkkafka.spark import pyspark_internals
from sparkkafka.spark.stream import reader as stream_reader
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import CutFrame, Delay, Drop, ErrorResponse, Garbage
from tests.client.support import settings, write
from tests.spark.stream.stream_support import (  # noqa: F401
    fake,
    flat,
    plan,
    reader,
    stop_readers,
)

PARTITIONS = 4
ROWS = 200


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is not a reason to leave a batch to tasks; tests of that set less."""
    monkeypatch.setattr(stream_reader, "DRIVER_READ_MS", 30_000)


@pytest.fixture
def cluster(fake: FakeCluster) -> FakeCluster:  # noqa: F811
    fake.create_topic("s", partitions=PARTITIONS)
    write(fake, "s", ROWS, partitions=PARTITIONS, per_send=10)
    return fake


def opened(cluster: FakeCluster, topic: str = "s", **options: str) -> Any:
    if "assign" not in options:
        options["subscribe"] = topic
    return reader(cluster, **{"maxRecordsReadByDriver": "10000", **options})


def take(source: Any) -> list[pa.RecordBatch] | None:
    """The rows that came with the plan just made; None if tasks are to read."""
    if not isinstance(source, _SimpleStreamReaderWrapper):
        return None
    rows = source.getCache({}, {})
    assert not isinstance(source, _SimpleStreamReaderWrapper)
    return list(rows)


def numbers(batches: list[pa.RecordBatch] | None) -> list[int]:
    assert batches is not None
    return sorted(int(value) for batch in batches for value in batch["value"].to_pylist())


def in_order(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """By offset: which leader answers first is its own matter."""
    by_offset = [("partition", "ascending"), ("offset", "ascending")]
    return pa.Table.from_batches(batches).sort_by(by_offset).combine_chunks()


def test_the_rows_come_with_the_plan_and_are_those_of_a_task(cluster: FakeCluster) -> None:
    source = opened(cluster)
    (task,) = plan(source)
    rows = take(source)
    assert numbers(rows) == list(range(ROWS))
    assert in_order(rows) == in_order(source.read(task))
    assert take(source) is None


def test_batch_after_batch_with_the_connections_of_the_plans(cluster: FakeCluster) -> None:
    source = opened(cluster)
    start = source.initialOffset()
    limit = source.getDefaultReadLimit()
    for turn in range(5):
        end = source.latestOffset(start, limit)
        source.partitions(start, end)
        assert numbers(take(source)) == list(range(ROWS if not turn else 8))
        start = end
        write(cluster, "s", 8, partitions=PARTITIONS, per_send=2)
        if turn == 1:
            cluster.clear_requests()
    mine = [row for row in cluster.requests if row.api == "ApiVersions"]
    assert len(mine) <= 2 * 4  # those of `write`
    assert cluster.requests_of("Fetch")


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({"maxRecordsReadByDriver": "199"}, 1),
        ({"maxRecordsReadByDriver": "0"}, 1),
        ({"minPartitions": "4"}, 4),
        ({"maxRecordsPerPartition": "50"}, 4),
        ({"maxRangesPerTask": "1"}, 4),
        ({"maxRangesPerTask": "3"}, 2),
    ],
)
def test_what_options_leave_to_tasks(
    cluster: FakeCluster, options: dict[str, str], tasks: int
) -> None:
    source = opened(cluster, **options)
    cluster.clear_requests()
    planned = plan(source)
    assert len(planned) == tasks
    assert sum(partition.count for partition in flat(planned)) == ROWS
    assert take(source) is None
    # Those that look where the logs end do not read.
    assert {row.message.max_bytes for row in cluster.requests_of("Fetch")} == {1}


@pytest.mark.parametrize("option", ["minPartitions", "maxRangesPerTask"])
def test_options_that_leave_one_task(cluster: FakeCluster, option: str) -> None:
    source = opened(cluster, assign='{"s": [2]}', **{option: "1"})
    assert len(plan(source)) == 1
    assert len(numbers(take(source))) == ROWS // PARTITIONS


def test_more_ranges_than_one_task_would_have(fake: FakeCluster) -> None:  # noqa: F811
    fake.create_topic("wide", partitions=300)
    write(fake, "wide", 300, partitions=300, per_send=1)
    timeouts = {"kafka.request.timeout.ms": "30000", "kafka.default.api.timeout.ms": "60000"}
    source = opened(fake, "wide", **timeouts)
    (task,) = plan(source)
    assert len(task.ranges) == 300
    assert numbers(take(source)) == list(range(300))


def test_nothing_to_read(cluster: FakeCluster) -> None:
    source = opened(cluster, startingOffsets="latest")
    start = source.initialOffset()
    assert source.partitions(start, start) == []
    assert take(source) is None


def test_offsets_without_records(cluster: FakeCluster) -> None:
    """A transaction's marker: a batch of no rows is one all the same."""
    source = opened(cluster)
    plan(source)
    take(source)
    at = {"s": dict.fromkeys(map(str, range(PARTITIONS)), ROWS // PARTITIONS)}
    cluster.append_marker("s", 1, producer_id=7, producer_epoch=0, commit=False)
    end = source.latestOffset(at, source.getDefaultReadLimit())
    source.partitions(at, end)
    assert take(source) == []


def test_rows_larger_than_they_seemed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stream_reader, "MAX_DRIVER_BYTES", 500)
    source = opened(cluster, assign='{"s": [0]}')  # of one range, sizes are not asked for
    with caplog.at_level(logging.INFO, stream_reader.log.name):
        planned = plan(source)
    assert take(source) is None
    assert "it is larger than estimated" in caplog.text
    assert len(numbers(list(source.read(planned[0])))) == ROWS // PARTITIONS
    # Not tried again soon, but later.
    cluster.clear_requests()
    plan(source)
    assert not cluster.requests_of("Fetch")
    monkeypatch.setattr(stream_reader, "MAX_DRIVER_BYTES", 4 * 2**20)
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 61)
    plan(source)
    assert len(numbers(take(source))) == ROWS // PARTITIONS


def test_large_responses_are_not_asked_for(fake: FakeCluster) -> None:  # noqa: F811
    fake.create_topic("large", partitions=6)
    with Producer(settings(fake)) as producer:
        for number in range(60):
            producer.send("large", bytes(250_000), partition=number % 6)
    source = opened(fake, "large")
    fake.clear_requests()
    plan(source)
    assert take(source) is None
    asked = [row.message.max_bytes for row in fake.requests_of("Fetch")]
    assert asked
    assert max(asked) <= 2 * 2**20  # of two leaders


@pytest.mark.parametrize(
    "action",
    [
        ErrorResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ErrorResponse(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ErrorResponse(ErrorCode.KAFKA_STORAGE_ERROR),
        Drop.BEFORE,
        Drop.AFTER,
        CutFrame(40),
        Garbage(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        Delay(5_000),
    ],
    ids=str,
)
def test_what_is_not_smooth_is_for_tasks_or_mended(cluster: FakeCluster, action: Any) -> None:
    source = opened(cluster)
    start = source.initialOffset()
    end = source.latestOffset(start, source.getDefaultReadLimit())
    cluster.fault(action, api="Fetch")
    (task,) = source.partitions(start, end)
    rows = take(source)
    if rows is None:
        rows = list(source.read(task))
    assert numbers(rows) == list(range(ROWS))
    # The connections are fit for the next questions.
    assert source.latestOffset(end, source.getDefaultReadLimit()) == end


def test_tasks_say_what_is_wrong(cluster: FakeCluster) -> None:
    raw = bytearray(cluster.log("s", 0).raw())
    raw[-30] ^= 4
    cluster.create_topic("bad", partitions=2)
    cluster.append("bad", 0, bytes(cluster.log("s", 1).raw()), end_offset=50)
    cluster.append("bad", 1, bytes(raw), end_offset=50)
    source = opened(cluster, "bad")
    (task,) = plan(source)
    assert take(source) is None
    with pytest.raises(CorruptRecordError, match="topic bad partition 1"):
        list(source.read(task))


def plan_while(source: Any, happens: Callable[[], None]) -> Any:
    """The one task of a first micro-batch; something happens before the driver reads it."""
    planned = source._planner.plan

    def plan_and(*given: Any) -> Any:
        tasks = planned(*given)
        happens()
        return tasks

    source._planner.plan = plan_and
    (task,) = plan(source)
    return task


def test_records_that_go_meanwhile(cluster: FakeCluster) -> None:
    def delete() -> None:
        with Admin(settings(cluster)) as admin:
            admin.delete_records({TopicPartition("s", 1): 30}).all()

    source = opened(cluster)
    task = plan_while(source, delete)
    assert take(source) is None
    with pytest.raises(DataLossError, match="0 to 29 are gone"):
        list(source.read(task))


@pytest.mark.parametrize("fetch_version", [12, 13])
def test_a_topic_that_is_made_again_meanwhile(
    fake_cluster_factory: Callable[..., FakeCluster], fetch_version: int
) -> None:
    """Version 13 has topic ids."""
    cluster = fake_cluster_factory(1, api_versions={"Fetch": (4, fetch_version)})
    cluster.create_topic("s", partitions=PARTITIONS)
    write(cluster, "s", ROWS, partitions=PARTITIONS, per_send=10)

    def make_again() -> None:
        cluster.delete_topic("s")
        cluster.create_topic("s", partitions=PARTITIONS)
        write(cluster, "s", ROWS, partitions=PARTITIONS, per_send=10)

    source = opened(cluster)
    task = plan_while(source, make_again)
    assert take(source) is None
    with pytest.raises(DataLossError, match="deleted and recreated"):
        list(source.read(task))


def test_topics_that_a_fetch_has_by_their_ids_are_not_looked_up_again(cluster: FakeCluster) -> None:
    source = opened(cluster)
    plan_while(source, cluster.clear_requests)
    assert numbers(take(source)) == list(range(ROWS))
    assert not cluster.requests_of("Metadata")


def read_by_tasks(source: Any) -> None:
    (task,) = plan(source)
    assert take(source) is None
    assert numbers(list(source.read(task))) == list(range(ROWS))


def test_a_pyspark_without_the_wrapper(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark_internals, "simple_reader_wrapper", lambda: None)
    read_by_tasks(opened(cluster))


def test_tasks_read_if_internals_are_off(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(pyspark_internals.VARIABLE, "false")
    read_by_tasks(opened(cluster))


def test_rows_with_a_plan_are_not_pickled(cluster: FakeCluster) -> None:
    source = opened(cluster)
    plan(source)
    source.rows_with_plan = take(source)
    assert source.__getstate__()["rows_with_plan"] is None
    source.rows_with_plan = None
    assert pickle.loads(pickle.dumps(source)).options == source.options
