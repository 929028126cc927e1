"""A micro-batch is planned and read while Spark writes its offsets down, without Spark."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sparkkafka.config.options import parse_stream_options
from sparkkafka.config.source import offsets_of_tree
from sparkkafka.errors import DataLossError
from sparkkafka.spark.schema import default_columns
from sparkkafka.spark.stream.reader import PlanAhead, StreamReaderSpark40
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Delay
from tests.client.support import write
from tests.spark.stream.stream_support import (  # noqa: F401
    QUICK,
    fake,
    offered,
    ranges,
    reader,
    short_grace,
    stop_readers,
)
from tests.support.waiting import Hold

ROWS = 200


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkkafka.spark.stream.reader.DRIVER_READ_MS", 30_000)


@pytest.fixture
def cluster(fake: FakeCluster) -> FakeCluster:  # noqa: F811
    fake.create_topic("t", partitions=2)
    write(fake, "t", ROWS, partitions=2, per_send=10)
    return fake


def count(source: Any) -> int:
    return sum(batch.num_rows for batch in source.getCache({}, {}))


def test_everything_is_there_when_spark_asks_for_the_plan(cluster: FakeCluster) -> None:
    source = reader(cluster, maxRecordsReadByDriver="1000")
    start = source.initialOffset()
    end = offered(source, start)
    source._plan_ahead.wait()
    cluster.clear_requests()
    (task,) = source.partitions(start, end)
    assert count(source) == ROWS
    assert not cluster.requests
    assert [item.end for item in task.ranges] == [100, 100]
    # Nothing new: nothing is planned.
    assert offered(source, end) == end
    assert source._plan_ahead._thread is None


def test_responses_are_not_held_up(cluster: FakeCluster) -> None:
    """What Spark asks while a plan is being made."""
    source = reader(cluster, maxRecordsReadByDriver="1000")
    start = source.initialOffset()
    hold = Hold()
    cluster.fault(hold, api="Fetch", times=None)
    end = offered(source, start)
    assert source.reportLatestOffset() == {"t": {"0": 100, "1": 100}}
    source.commit(start)
    hold.release()
    source.partitions(start, end)
    assert count(source) == ROWS


def test_another_batch_than_was_offered(cluster: FakeCluster) -> None:
    source = reader(cluster)
    start = source.initialOffset()
    offered(source, start)
    planned = source.partitions(start, {"t": {"0": 7, "1": 0}})
    assert ranges(planned) == [("t", 0, 0, 7)]
    # And it was asked for but once.
    end = {"t": {"0": 100, "1": 100}}
    assert ranges(source.partitions({"t": {"0": 7, "1": 0}}, end)) == [
        ("t", 0, 7, 100),
        ("t", 1, 0, 100),
    ]


def test_an_error_is_raised_where_spark_hears_it(cluster: FakeCluster) -> None:
    source = reader(cluster)
    start = {"t": {"0": 0, "1": 500}}
    end = offered(source, start)
    source._plan_ahead.wait()
    for _ in range(2):
        with pytest.raises(DataLossError, match="was changed from 500 to 100"):
            source.partitions(start, end)


def test_old_sparks_too(cluster: FakeCluster) -> None:
    given = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "subscribe": "t",
        "startingOffsets": "earliest",
        **QUICK,
        "maxRecordsReadByDriver": "1000",
    }
    columns = default_columns(include_headers=False)
    source = StreamReaderSpark40(parse_stream_options(given), columns)
    try:
        start, end = source.initialOffset(), source.latestOffset()
        source._plan_ahead.wait()
        cluster.clear_requests()
        source.partitions(start, end)
        assert count(source) == ROWS
        assert not cluster.requests
        assert source.latestOffset() == end
    finally:
        source.stop()


@pytest.mark.parametrize("api", ["Fetch", "ListOffsets"])
def test_a_query_ends_while_its_plan_waits(cluster: FakeCluster, api: str) -> None:
    """Whatever the plan waits for, its thread ends with the query."""
    source = reader(cluster, maxRecordsReadByDriver="1000")
    start, end = {"t": {"0": 0, "1": 0}}, {"t": {"0": 100, "1": 100}}
    source.initialOffset()
    cluster.clear_requests()
    cluster.fault(Delay(60_000), api=api, times=None)
    source._plan_ahead.begin(offsets_of_tree(start), offsets_of_tree(end))
    cluster.wait_for_requests(api)
    thread = source._plan_ahead._thread
    source.stop()
    assert not thread.is_alive()


def test_one_plan_at_a_time() -> None:
    goes_on = threading.Event()
    running: list[int] = []
    made: list[int] = []

    def make(start: Any, end: Any) -> int:
        made.append(end["n"])
        running.append(1)
        assert len(running) == 1
        goes_on.wait(30)
        running.pop()
        return int(end["n"])

    ahead: Any = PlanAhead(make)  # type: ignore[arg-type]
    ahead.begin({}, {"n": 1})
    threading.Timer(0.05, goes_on.set).start()
    ahead.begin({}, {"n": 2})
    assert ahead.take({}, {"n": 2}) == 2
    assert made == [1, 2]
    assert ahead.take({}, {"n": 2}) == 2
    assert made == [1, 2, 2], "what was taken is not kept"
