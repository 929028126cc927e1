"""Reads from a broker whose ListOffsets ends inside the last batch, as Tansu 0.6 answers.

Each record is read once, although the offsets of the checkpoint may lie inside of a batch.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from sparkkafka.config.options import parse_read_options
from sparkkafka.spark.read.read_task import read_ranges
from sparkkafka.spark.read.reader import KafkaBatchReader
from sparkkafka.spark.schema import default_columns
from sparkkafka.spark.stream.reader import StreamReaderSpark40
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.client.support import list_short_ends, numbers, write
from tests.spark.stream.stream_support import (
    QUICK,
    Tree,
    batches,
    fake,
    flat,
    offered,
    ranges,
    reader,
    short_grace,
    stop_readers,
)

__all__ = ["fake", "short_grace", "stop_readers"]  # fixtures


@pytest.fixture
def filled(fake: FakeCluster) -> FakeCluster:
    """Two batches of 100 records."""
    fake.create_topic("t")
    write(fake, "t", 200, per_send=100, linger_ms=0)
    list_short_ends(fake)
    return fake


def add_batch(cluster: FakeCluster) -> None:
    write(cluster, "t", 100, per_send=100)


def values_of(source: Any, planned: Any) -> list[bytes | None]:
    return [
        value
        for part in flat(planned)
        for rows in read_ranges(source.options, source.columns, (part,))
        for value in rows.column(rows.schema.get_field_index("value")).to_pylist()
    ]


def read_all(source: Any, start: Tree) -> tuple[list[bytes | None], Tree]:
    """The values of micro-batches until there is nothing new, and where the query is then."""
    found: list[bytes | None] = []
    while (end := offered(source, start)) != start:
        found += values_of(source, source.partitions(start, end))
        start = end
    return found, start


def test_a_new_query_reads_the_last_batch_to_its_end(
    filled: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    source = reader(filled)
    found, at = read_all(source, source.initialOffset())
    assert (found, at) == (numbers(200), {"t": {"0": 200}})
    add_batch(filled)
    found, at = read_all(source, at)
    assert (found, at) == (numbers(100), {"t": {"0": 300}})
    warnings = [row for row in caplog.records if row.levelno >= logging.WARNING]
    assert ["says in ListOffsets" in row.getMessage() for row in warnings] == [True]


def test_records_of_a_log_that_was_empty_are_read_at_the_next_trigger(fake: FakeCluster) -> None:
    """The first lookup sees nothing wrong, and the second has something new."""
    fake.create_topic("t")
    list_short_ends(fake)
    source = reader(fake)
    found, at = read_all(source, source.initialOffset())
    assert (found, at) == ([], {"t": {"0": 0}})
    for _ in range(3):
        add_batch(fake)
        more, at = read_all(source, at)
        found += more
    assert (found, at) == (numbers(100) * 3, {"t": {"0": 300}})


@pytest.mark.parametrize("at", [0, 1, 100, 101, 150, 200])
def test_a_restart_goes_on_where_the_checkpoint_is(filled: FakeCluster, at: int) -> None:
    """Also behind the end that ListOffsets says: no data is lost."""
    found, end = read_all(reader(filled), {"t": {"0": at}})
    assert (found, end) == (numbers(200)[at:], {"t": {"0": 200}})


def test_a_query_from_latest_reads_nothing_of_the_last_batch(filled: FakeCluster) -> None:
    source = reader(filled, startingOffsets="latest")
    start = source.initialOffset()
    assert start == {"t": {"0": 200}}
    assert offered(source, start) == start


def test_available_now_reads_all(filled: FakeCluster) -> None:
    source = reader(filled)
    start = source.initialOffset()
    source.prepareForTriggerAvailableNow()
    add_batch(filled)
    assert batches(source, start) == [{"t": {"0": 200}}]


def test_caps_are_exact(filled: FakeCluster) -> None:
    source = reader(filled, maxOffsetsPerTrigger="30")
    start = source.initialOffset()
    assert offered(source, start) == {"t": {"0": 30}}
    found, _ = read_all(source, start)
    assert found == numbers(200)


def test_spark_before_4_2(filled: FakeCluster) -> None:
    source = reader(filled, kind=StreamReaderSpark40)
    start = source.initialOffset()
    end = source.latestOffset()
    assert end == {"t": {"0": 200}}
    assert values_of(source, source.partitions(start, end)) == numbers(200)
    assert source.latestOffset() == end


def test_brokers_of_kafka_are_asked_once_about_an_end_that_is_quiet(fake: FakeCluster) -> None:
    fake.create_topic("t", partitions=2)
    write(fake, "t", 200, partitions=2)
    source = reader(fake)
    _, at = read_all(source, source.initialOffset())
    fake.clear_requests()
    for _ in range(3):
        assert offered(source, at) == at
    assert fake.requests_of("Fetch") == []
    assert fake.requests_of("ListOffsets")


def batch_source(cluster: FakeCluster, **options: str) -> KafkaBatchReader:
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "t", **QUICK}
    return KafkaBatchReader(
        parse_read_options({**given, **options}), default_columns(include_headers=False)
    )


def batch_read(cluster: FakeCluster, **options: str) -> list[tuple[str, int, int, int]]:
    return ranges(batch_source(cluster, **options).partitions())


def test_a_batch_read(filled: FakeCluster) -> None:
    assert batch_read(filled, bindOffsets="plan") == [("t", 0, 0, 200)]
    # Ends that the user gives are exact.
    assert batch_read(filled, endingOffsets='{"t":{"0":150}}') == [("t", 0, 0, 150)]


def test_a_batch_read_whose_tasks_bind_the_end(filled: FakeCluster) -> None:
    source = batch_source(filled)
    assert values_of(source, source.partitions()) == numbers(200)
