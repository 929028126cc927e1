"""A stream reader and brokers to break, for tests without a Spark session.

Test modules import the fixtures `fake`, `short_grace` and `stop_readers` from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sparkkafka.config.options import parse_stream_options
from sparkkafka.spark.read.input_partitions import KafkaInputPartition, SmallRanges
from sparkkafka.spark.schema import default_columns
from sparkkafka.testing.fake.cluster import FakeCluster

pytest.importorskip("pyspark.sql.streaming.datasource", reason="Spark 4.0 and 4.1 have no limits")
from sparkkafka.spark.stream.reader import StreamReaderSpark42

QUICK = {
    "kafka.request.timeout.ms": "2000",
    "kafka.default.api.timeout.ms": "3000",
    "kafka.retry.backoff.ms": "5",
    "kafka.retry.backoff.max.ms": "40",
    "kafka.reconnect.backoff.ms": "5",
    "kafka.reconnect.backoff.max.ms": "40",
    "fetchOffset.retryIntervalMs": "20",
    "maxRecordsReadByDriver": "0",  # what `fill` makes has offsets only
}
Tree = dict[str, dict[str, int]]


opened: list[Any] = []


@pytest.fixture(autouse=True)
def stop_readers() -> Iterator[None]:
    yield
    while opened:
        opened.pop().stop()


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a topic that is not there is looked for."""
    monkeypatch.setattr("sparkkafka.client.cluster.cluster.UNKNOWN_TOPIC_GRACE_MS", 50)
    monkeypatch.setattr("sparkkafka.client.cluster.cluster.KNOWN_TOPIC_GRACE_MS", 100)


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with FakeCluster(brokers=2) as cluster:
        yield cluster


def fill(cluster: FakeCluster, topic: str, *counts: int) -> None:
    """Let the partitions 0, 1, … be so many offsets longer."""
    for partition, count in enumerate(counts):
        if count:
            end = cluster.log(topic, partition).end_offset + count
            cluster.append(topic, partition, b"?", end_offset=end)


def reader(cluster: FakeCluster, kind: Any = StreamReaderSpark42, **options: str) -> Any:
    chosen = {"subscribe", "subscribePattern", "assign"} & set(options)
    given = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "startingOffsets": "earliest",
        **QUICK,
        **({} if chosen else {"subscribe": "t"}),
        **{name.replace("__", "."): value for name, value in options.items()},
    }
    opened.append(kind(parse_stream_options(given), default_columns(include_headers=False)))
    return opened[-1]


def plan(source: Any) -> list[KafkaInputPartition | SmallRanges]:
    """The first micro-batch of a reader."""
    start = source.initialOffset()
    return list(source.partitions(start, offered(source, start)))


def offered(source: Any, start: Tree, limit: Any = None) -> Tree:
    """The end of the next micro-batch, as Spark asks for it: it is planned from here on."""
    end: Tree = source.latestOffset(start, limit or source.getDefaultReadLimit())
    source.reportLatestOffset()
    return end


def flat(planned: list[KafkaInputPartition | SmallRanges]) -> list[KafkaInputPartition]:
    """The ranges of all tasks."""
    found = [item.ranges if isinstance(item, SmallRanges) else (item,) for item in planned]
    return [item for group in found for item in group]


def ranges(
    planned: list[KafkaInputPartition | SmallRanges],
) -> list[tuple[str, int, int, int]]:
    """The ranges of all tasks, in order of topic and partition."""
    return sorted((p.topic, p.partition, p.start, p.end) for p in flat(planned))


def batches(source: Any, start: Tree, limit: Any = None, most: int = 100) -> list[Tree]:
    """The ends of the batches until there is no more to read."""
    ends: list[Tree] = []
    for _ in range(most):
        end = offered(source, start, limit)
        if end == start:
            return ends
        source.partitions(start, end)
        ends.append(end)
        start = end
    raise AssertionError(f"no end after {most} batches: {ends[-3:]}")
