"""filterPushdown: fewer offsets, the same rows. Times in a partition are in no order."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceReader

from sparkkafka.client import Producer
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import parse_read_options
from sparkkafka.errors import DataLossError, OptionError
from sparkkafka.protocol.columns.encode import RecordColumns
from sparkkafka.spark.datasource import KafkaDataSource
from sparkkafka.spark.read.input_partitions import KafkaInputPartition
from sparkkafka.spark.read.reader import KafkaBatchReader
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.client.support import open_cluster
from tests.client.support import settings as client_settings
from tests.support.options import parse_producer_options
from tests.support.partition_producer import PartitionProducer

if not hasattr(DataSourceReader, "pushFilters"):
    pytest.skip("Spark hands filters to Python since 4.1", allow_module_level=True)

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from sparkkafka.spark.read import pushdown
from sparkkafka.spark.read.pushdown import (
    EVERYTHING,
    INT64_MAX,
    Bounds,
    FilterPushdownReader,
    Span,
    bounds_of,
)
from tests.support.properties import examples

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OFFSET, TIME, TOPIC, PARTITION = ("offset",), ("timestamp",), ("topic",), ("partition",)


def moment(ms: float) -> datetime:
    return EPOCH + timedelta(microseconds=round(ms * 1000))


# --- one filter ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "span"),
    [
        (EqualTo(OFFSET, 5), Span(5, 5)),
        (EqualNullSafe(OFFSET, 5), Span(5, 5)),
        (EqualNullSafe(OFFSET, None), pushdown.NOTHING),
        (GreaterThan(OFFSET, 5), Span(low=6)),
        (GreaterThanOrEqual(OFFSET, 5), Span(low=5)),
        (LessThan(OFFSET, 5), Span(high=4)),
        (LessThanOrEqual(OFFSET, 5), Span(high=5)),
        (In(OFFSET, [7, None, 3]), Span(3, 7)),
        (In(OFFSET, [None]), pushdown.NOTHING),
        (Not(GreaterThan(OFFSET, 5)), Span(high=5)),
        (Not(LessThan(OFFSET, 5)), Span(low=5)),
        (Not(EqualTo(OFFSET, 5)), EVERYTHING),
        (Not(In(OFFSET, [5])), EVERYTHING),
        (IsNull(OFFSET), pushdown.NOTHING),
        (IsNotNull(OFFSET), EVERYTHING),
        (GreaterThan(OFFSET, None), EVERYTHING),  # never true; Spark sees to it
        (GreaterThan(OFFSET, 5.5), EVERYTHING),
        (EqualTo(OFFSET, True), EVERYTHING),
    ],
)
def test_offsets(one: Filter, span: Span) -> None:
    assert bounds_of([one]) == Bounds(offsets=span)


@pytest.mark.parametrize(
    ("one", "span"),
    [
        (EqualTo(TIME, moment(1000)), Span(1000, 1000)),
        (GreaterThan(TIME, moment(1000)), Span(low=1001)),
        (GreaterThanOrEqual(TIME, moment(1000)), Span(low=1000)),
        (LessThan(TIME, moment(1000)), Span(high=999)),
        (LessThanOrEqual(TIME, moment(1000)), Span(high=1000)),
        # Spark counts microseconds, Kafka milliseconds.
        (GreaterThan(TIME, moment(1000.001)), Span(low=1001)),
        (GreaterThanOrEqual(TIME, moment(1000.001)), Span(low=1001)),
        (LessThan(TIME, moment(1000.001)), Span(high=1000)),
        (LessThanOrEqual(TIME, moment(1000.001)), Span(high=1000)),
        # Before 1970 too: -0.001 s is one below -0.0009 s.
        (GreaterThanOrEqual(TIME, moment(-0.9)), Span(low=0)),
        (LessThanOrEqual(TIME, moment(-0.9)), Span(high=-1)),
        (EqualTo(TIME, moment(-1)), Span(-1, -1)),
        (In(TIME, [moment(5), moment(2.5), None]), Span(5, 5)),
        (EqualTo(TIME, datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))), Span(0, 0)),
        (EqualTo(TIME, datetime(1970, 1, 1)), EVERYTHING),  # no zone, no moment
        (GreaterThan(TIME, None), EVERYTHING),
    ],
)
def test_times(one: Filter, span: Span) -> None:
    assert bounds_of([one]).times_ms == span


def test_a_moment_between_two_milliseconds_is_no_records_time() -> None:
    assert bounds_of([EqualTo(TIME, moment(1000.5))]).times_ms.is_empty


@pytest.mark.parametrize(
    ("filters", "admitted"),
    [
        ([EqualTo(TOPIC, "a")], {("a", 0), ("a", 1)}),
        ([Not(EqualTo(TOPIC, "a"))], {("bé", 0), ("bé", 1)}),
        ([In(TOPIC, ["x", "a", None])], {("a", 0), ("a", 1)}),
        ([Not(In(TOPIC, ["x", "a"]))], {("bé", 0), ("bé", 1)}),
        ([StringStartsWith(TOPIC, "a")], {("a", 0), ("a", 1)}),
        ([StringEndsWith(TOPIC, "é")], {("bé", 0), ("bé", 1)}),
        ([StringContains(TOPIC, "x")], set()),
        ([GreaterThan(TOPIC, "a"), LessThan(PARTITION, 1)], {("bé", 0)}),
        ([GreaterThanOrEqual(PARTITION, 1), LessThanOrEqual(TOPIC, "a")], {("a", 1)}),
        ([EqualNullSafe(PARTITION, 1), IsNotNull(PARTITION)], {("a", 1), ("bé", 1)}),
        ([EqualNullSafe(PARTITION, None)], set()),
        ([IsNull(TOPIC)], set()),
        ([In(TOPIC, [None])], set()),
    ],
)
def test_topics_and_partitions(filters: list[Filter], admitted: set[Any]) -> None:
    bounds = bounds_of(filters)
    assert {
        (topic, number)
        for topic in ("a", "bé")
        for number in (0, 1)
        if bounds.may_have_rows(topic, number)
    } == admitted


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("value",), b"x"),
        EqualTo(("headers", "key"), "x"),
        EqualTo(("timestampType",), 0),
        datasource.Filter(),
        EqualTo(PARTITION, None),
        EqualTo(PARTITION, 1.5),
        Not(In(TOPIC, ["b", None])),
        Not(datasource.Filter()),
    ],
)
def test_what_is_not_understood_restricts_nothing(one: Filter) -> None:
    bounds = bounds_of([one])
    assert (bounds.offsets, bounds.times_ms) == (EVERYTHING, EVERYTHING)
    assert bounds.may_have_rows("a", 0)


def test_times_to_look_up() -> None:
    def asked(low: int, high: int, disorder_ms: int | None) -> tuple[int | None, int | None]:
        return pushdown.times_to_look_up(Bounds(times_ms=Span(low, high)), disorder_ms)

    assert asked(10, 20, None) == (10, None)
    assert asked(10, 20, 5) == (10, 26)
    assert asked(0, INT64_MAX, 5) == (0, None)
    assert asked(0, 20, INT64_MAX) == (0, None)
    # -1, -2 and so on mean something else in ListOffsets.
    assert asked(-1, -1, None) == (None, None)
    assert asked(-10, -5, 2) == (None, 0)


# --- any filters, any records: a model -------------------------------------------------------


class Row(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: datetime


def is_true(one: Filter, row: Row) -> bool | None:
    """SQL's response, with None for null. Written apart from the code that it tests."""
    if isinstance(one, Not):
        inner = is_true(one.child, row)
        return None if inner is None else not inner
    mine = getattr(row, one.attribute[0])
    if isinstance(one, IsNull | IsNotNull):
        return isinstance(one, IsNotNull)
    value = one.value
    if isinstance(one, In):
        return True if mine in value else (None if None in value else False)
    if value is None:
        return False if isinstance(one, EqualNullSafe) else None
    return {
        EqualTo: lambda: mine == value,
        EqualNullSafe: lambda: mine == value,
        GreaterThan: lambda: mine > value,
        GreaterThanOrEqual: lambda: mine >= value,
        LessThan: lambda: mine < value,
        LessThanOrEqual: lambda: mine <= value,
    }[type(one)]()


def passing(rows: list[Row], filters: list[Filter]) -> list[Row]:
    return [row for row in rows if all(is_true(item, row) for item in filters)]


# Few different times around zero, so that comparisons meet them.
TIMES_MS = st.one_of(st.integers(-4, 12), st.sampled_from([-1, 10**6]))
VALUES = {
    OFFSET: st.integers(-2, 25),
    TIME: st.tuples(TIMES_MS, st.sampled_from([0, 0, 0.001, 0.999])).map(
        lambda parts: moment(parts[0] + parts[1])
    ),
    TOPIC: st.sampled_from(["a", "b", "c", ""]),
    PARTITION: st.integers(-1, 3),
}


def comparisons(column: tuple[str]) -> st.SearchStrategy[Filter]:
    value = VALUES[column]
    kinds = [EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, EqualNullSafe]
    maybe = st.one_of(value, value, value, value, st.none())
    plain = st.one_of(
        st.builds(lambda kind, v: kind(column, v), st.sampled_from(kinds), maybe),
        st.lists(maybe, min_size=1, max_size=4).map(lambda values: In(column, values)),
        st.sampled_from([IsNull(column), IsNotNull(column), IsNotNull(column)]),
    )
    return st.one_of(plain, plain, plain, plain.map(Not))


ONE_FILTER = st.sampled_from([TIME, TIME, TIME, OFFSET, TOPIC, PARTITION]).flatmap(comparisons)
FILTERS = st.lists(ONE_FILTER, min_size=1, max_size=3)
PARTITIONS = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.integers(0, 2)).map(lambda key: TopicPartition(*key)),
    # (gap before the offset, ms)
    st.lists(st.tuples(st.integers(0, 2), TIMES_MS), max_size=12),
    min_size=1,
    max_size=4,
)


def disorder_of(times_ms: list[int]) -> int:
    """By how much a record is earlier than one before it, at most."""
    return max((a - b for a, b in itertools.combinations(times_ms, 2)), default=0)


def test_disorder_of() -> None:
    assert [disorder_of(times) for times in ([], [1, 2], [5, 1, 9, 7])] == [0, -1, 4]


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(PARTITIONS, FILTERS, st.data())
def test_no_row_is_lost(
    partitions: dict[TopicPartition, list[tuple[int, int]]], filters: list[Filter], data: Any
) -> None:
    logs: dict[TopicPartition, list[tuple[int, int]]] = {}
    for tp, records in partitions.items():
        offset, logs[tp] = -1, []
        for gap, ms in records:
            offset += 1 + gap
            logs[tp].append((offset, ms))
    disorder_ms = None
    if data.draw(st.booleans(), "disorder known"):
        disorder_ms = max(0, *(disorder_of([ms for _, ms in log]) for log in logs.values()), 0)
        disorder_ms += data.draw(st.integers(0, 3), "more")

    def first_at(time_ms: int | None) -> dict[TopicPartition, int]:
        """ListOffsets, which may find nothing although there is something."""
        if time_ms is None:
            return {}
        assert time_ms >= 0
        blind = data.draw(st.sets(st.sampled_from(sorted(logs))), "blind")
        return {
            tp: next((at for at, ms in log if ms >= time_ms and tp not in blind), -1)
            for tp, log in logs.items()
        }

    ranges = [
        KafkaInputPartition(tp.topic, tp.partition, data.draw(st.integers(0, 3)), log[-1][0] + 1)
        for tp, log in logs.items()
        if log
    ]
    ranges = [whole for whole in ranges if whole.start < whole.end]
    bounds = bounds_of(filters)
    start_ms, end_ms = pushdown.times_to_look_up(bounds, disorder_ms)
    reported = data.draw(st.sets(st.sampled_from(sorted(logs))), "told")
    largest_ms = {tp: max(ms for _, ms in logs[tp]) for tp in reported if logs[tp]}
    kept = pushdown.narrow_by_times(
        pushdown.narrow_by_offsets(ranges, bounds),
        start_ms,
        first_at(start_ms),
        first_at(end_ms),
        largest_ms,
    )

    def rows(some: list[KafkaInputPartition], times_ms: Span) -> list[Row]:
        return [
            Row(item.topic, item.partition, at, moment(ms))
            for item in some
            for at, ms in logs[TopicPartition(item.topic, item.partition)]
            if item.start <= at < item.end and times_ms.low <= ms <= times_ms.high
        ]

    assert passing(rows(kept, bounds.times_ms), filters) == passing(
        rows(ranges, EVERYTHING), filters
    )


# --- the reader, on brokers that are not real ------------------------------------------------


def write_times(bootstrap: Any, topic: str, partition: int, times_ms: list[int], **config: Any):
    columns = RecordColumns(
        keys=None,
        values=pa.array([b"%d" % n for n in range(len(times_ms))], pa.binary()),
        headers=None,
        timestamps_ms=np.array(times_ms, np.int64),
    )
    with (
        open_cluster(bootstrap) as cluster,
        PartitionProducer(
            cluster, parse_producer_options(client_settings(bootstrap, **config))
        ) as producer,
    ):
        producer.send(topic, partition, columns)
        producer.flush()


def reader_of(bootstrap: Any, subscribe: str, **options: str) -> Any:
    given = {
        "kafka.bootstrap.servers": bootstrap.bootstrap_servers,
        "subscribe": subscribe,
        **options,
    }
    source = KafkaDataSource(given)
    return source.reader(source.schema())


def pushing(bootstrap: Any, subscribe: str, filters: list[Filter], **options: str) -> Any:
    reader = reader_of(bootstrap, subscribe, filterPushdown="true", **options)
    assert list(reader.pushFilters(filters)) == filters  # Spark checks all of them again
    return reader


def ranges_of(reader: Any) -> list[tuple[str, int, int, int]]:
    return [(part.topic, part.partition, part.start, part.end) for part in reader.partitions()]


def rows_of(reader: Any) -> list[Row]:
    parts = reader.partitions()
    away = pickle.loads(pickle.dumps(reader))  # as Spark does
    return [
        Row(row["topic"], row["partition"], row["offset"], row["timestamp"])
        for part in parts
        for batch in away.read(part)
        for row in batch.to_pylist()
    ]


@pytest.fixture(scope="module")
def mixed() -> Iterator[Any]:
    """Topics a and b of two partitions, with times in no order, in batches of few records."""
    from sparkkafka.testing.fake.cluster import FakeCluster

    chance = random.Random(7)
    with FakeCluster() as cluster:
        for topic in "ab":
            cluster.create_topic(topic, partitions=2)
            for partition in range(2):
                times_ms = [chance.choice([-1, *range(-4, 13)]) for _ in range(22)]
                write_times(cluster, topic, partition, times_ms, batch_size=120)
                cluster.append_marker(topic, partition, 99, 0, commit=True)
        cluster.advance_log_start("a", 1, 3)
        yield cluster


@pytest.mark.slow
@settings(
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(FILTERS, st.booleans(), st.sampled_from([{}, {"minPartitions": "9"}]))
def test_the_readers_rows(
    mixed: Any, filters: list[Filter], disorder: bool, options: dict[str, str]
) -> None:
    everything = rows_of(reader_of(mixed, "a,b"))
    assert len(everything) == 4 * 22 - 3
    if disorder:
        options = {**options, "maxTimestampDisorderMs": "17"}
    found = rows_of(pushing(mixed, "a,b", filters, **options))
    assert passing(found, filters) == passing(everything, filters)


def test_the_bounds_of_the_read_come_first(mixed: Any) -> None:
    starting = '{"a":{"0":5,"1":5}}'
    ending = '{"a":{"0":15,"1":15}}'
    reader = pushing(
        *(mixed, "a", [GreaterThan(OFFSET, 8), LessThan(PARTITION, 1)]),
        startingOffsets=starting,
        endingOffsets=ending,
        maxRecordsPerPartition="4",
    )
    assert ranges_of(reader) == [("a", 0, 9, 12), ("a", 0, 12, 15)]
    reader = pushing(mixed, "a", [LessThan(OFFSET, 8), LessThan(PARTITION, 1)])
    assert ranges_of(reader) == [("a", 0, 0, 8)]


def test_a_loss_is_a_loss_also_where_no_row_passes(mixed: Any) -> None:
    """What failOnDataLoss says depends on the options of a read, not on the query around it."""
    options = {"startingOffsets": '{"a":{"0":0,"1":0}}'}
    for filters in ([], [EqualTo(PARTITION, 0)], [GreaterThan(OFFSET, 10)]):
        with pytest.raises(DataLossError, match="a-1"):
            pushing(mixed, "a", filters, **options).partitions()
    reader = pushing(mixed, "a", [LessThan(OFFSET, 5)], failOnDataLoss="false", **options)
    assert ranges_of(reader) == [("a", 0, 0, 5), ("a", 1, 3, 5)]


def test_no_filter_and_no_time_cost_no_request(fake_cluster: Any) -> None:
    fake_cluster.create_topic("t")
    write_times(fake_cluster, "t", 0, [5, 6])
    for filters in ([], [GreaterThan(OFFSET, 0)], [LessThan(TIME, moment(6))]):
        fake_cluster.clear_requests()
        pushing(fake_cluster, "t", filters).partitions()
        assert len(fake_cluster.requests_of("ListOffsets")) == 2  # earliest and latest
    assert pushing(fake_cluster, "t", [IsNull(TIME)]).partitions() == []


def test_a_partition_without_late_records_is_left_out(fake_cluster: Any) -> None:
    fake_cluster.create_topic("t", partitions=2)
    write_times(fake_cluster, "t", 0, [100, 300, 200])
    write_times(fake_cluster, "t", 1, [100, 110, 120])
    assert ranges_of(pushing(fake_cluster, "t", [GreaterThan(TIME, moment(250))])) == [
        ("t", 0, 1, 3)
    ]


def test_an_old_broker_cannot_say_that_there_are_none(fake_cluster_factory: Any) -> None:
    cluster = fake_cluster_factory(1, kafka_version="2.1")
    cluster.create_topic("t")
    write_times(cluster, "t", 0, [100, 300, 200])
    reader = pushing(cluster, "t", [GreaterThan(TIME, moment(400))])
    assert ranges_of(reader) == [("t", 0, 0, 3)]
    assert [partition.times_ms for partition in reader.partitions()] == [(401, INT64_MAX)]
    assert rows_of(reader) == []


def test_without_the_option_the_reader_is_the_plain_one() -> None:
    source = KafkaDataSource({"kafka.bootstrap.servers": "nowhere:1", "subscribe": "t"})
    assert type(source.reader(source.schema())) is KafkaBatchReader
    assert KafkaBatchReader.pushFilters is DataSourceReader.pushFilters


@pytest.mark.parametrize("option", [("filterPushdown", "true"), ("bindOffsets", "plan")])
def test_spark_4_0_is_told_apart(option: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(DataSourceReader, "pushFilters")
    source = KafkaDataSource(
        {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "t", **dict([option])}
    )
    with pytest.raises(OptionError, match=rf"{'='.join(option)} needs Spark 4\.1"):
        source.reader(source.schema())


def test_what_is_shipped_is_plain() -> None:
    reader = FilterPushdownReader(
        parse_read_options({"kafka.bootstrap.servers": "nowhere:1", "subscribe": "t"})
    )
    list(reader.pushFilters([GreaterThan(TIME, moment(5)), In(TOPIC, ["t"])]))
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.bounds == reader.bounds
    assert dataclasses.asdict(KafkaInputPartition("t", 0, 1, 2))["start"] == 1


# --- limits --------------------------------------------------------------------------------------


@pytest.fixture
def spark_4_4(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's development version: the class has a method that pushes no limit."""
    if not hasattr(DataSourceReader, "pushLimit"):
        monkeypatch.setattr(DataSourceReader, "pushLimit", lambda *_: False, raising=False)


@pytest.mark.usefixtures("spark_4_4")
@pytest.mark.parametrize("filters", ["true", "false"])
def test_a_limit_reads_that_many_rows_of_one_range(fake_cluster: FakeCluster, filters: str) -> None:
    fake_cluster.create_topic("limited", 2)
    servers = {"bootstrap.servers": fake_cluster.bootstrap_servers}
    with Producer({**servers, "batch.size": "1000", "compression.type": "none"}) as producer:
        for number in range(5_000):
            producer.send("limited", b"%0100d" % number, partition=number % 2)
    source = KafkaDataSource(
        {
            "kafka.bootstrap.servers": fake_cluster.bootstrap_servers,
            "kafka.max.partition.fetch.bytes": "10000",
            "subscribe": "limited",
            "limitPushdown": "true",
            "filterPushdown": filters,
        }
    )
    reader = source.reader(source.schema())
    assert reader.pushLimit(10) is True
    assert (
        type(reader).pushFilters
        is (DataSourceReader if filters == "false" else FilterPushdownReader).pushFilters
    )
    reader = pickle.loads(pickle.dumps(reader))
    first, second = reader.partitions()
    assert first.count == second.count == 2_500
    fake_cluster.clear_requests()
    rows = [row for batch in reader.read(first) for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(10))
    assert {row["partition"] for row in rows} == {first.partition}
    # One response has the rows, and one more may be on its way.
    assert 1 <= len(fake_cluster.requests_of("Fetch")) <= 3
    reader.pushLimit(0)
    fake_cluster.clear_requests()
    assert list(reader.read(first)) == []
    assert fake_cluster.requests_of("Fetch") == []


@pytest.mark.usefixtures("spark_4_4")
def test_a_range_with_fewer_rows_than_the_limit(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("few")
    with Producer({"bootstrap.servers": fake_cluster.bootstrap_servers}) as producer:
        producer.send("few", b"1")
    source = KafkaDataSource(
        {
            "kafka.bootstrap.servers": fake_cluster.bootstrap_servers,
            "subscribe": "few",
            "limitPushdown": "true",
        }
    )
    reader = source.reader(source.schema())
    reader.pushLimit(10)
    (partition,) = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(partition)) == 1


def test_a_spark_without_limits_is_told_apart() -> None:
    if hasattr(DataSourceReader, "pushLimit"):
        pytest.skip("this Spark has pushLimit")
    source = KafkaDataSource(
        {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "t", "limitPushdown": "true"}
    )
    with pytest.raises(OptionError, match=r"limitPushdown=true needs Spark 4\.4 or later"):
        source.reader(source.schema())
