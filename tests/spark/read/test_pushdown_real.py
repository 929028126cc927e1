"""filterPushdown through Spark and on a real broker: the same rows, of fewer offsets."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, functions
from pyspark.sql.datasource import DataSourceReader

from sparkkafka.client.cluster.offsets import OffsetLookup
from sparkkafka.client.values import TopicPartition
from tests.client.support import open_cluster
from tests.real.peers import Record, confluent_write
from tests.spark.read.test_batch_read import delete_records

if not hasattr(DataSourceReader, "pushFilters"):
    pytest.skip("Spark hands filters to Python since 4.1", allow_module_level=True)

from pyspark.sql.datasource import GreaterThan, GreaterThanOrEqual, LessThan

from tests.spark.read.test_pushdown import TIME, moment, pushing, rows_of, write_times

CONF = "spark.sql.python.filterPushdown.enabled"

T0 = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC
PER_PARTITION = 20_000
STEP_MS = 1000
# The middle percent of the hours that a partition covers.
MIDDLE_MS = T0 + PER_PARTITION * STEP_MS // 2
SLICE_MS = PER_PARTITION * STEP_MS // 100


@pytest.fixture(scope="module")
def pushed_down(spark: Any) -> Iterator[None]:
    spark.conf.set(CONF, "true")
    yield
    spark.conf.unset(CONF)


@pytest.fixture(scope="module")
def ordered(kafka_cluster: Any) -> str:
    """A record a second in each of two partitions."""
    kafka_cluster.create_topic("ordered", partitions=2)
    times_ms = [T0 + n * STEP_MS for n in range(PER_PARTITION)]
    for partition in range(2):
        write_times(kafka_cluster, "ordered", partition, times_ms, batch_size=4000)
    return "ordered"


@pytest.mark.real
@pytest.mark.spark
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_the_same_rows(
    spark: Any,
    kafka_cluster: Any,
    new_topic: Callable[..., str],
    read: Callable[..., Any],
    pushed_down: None,
    zone: str,
) -> None:
    topic, other = new_topic(partitions=3), new_topic()
    chance = random.Random(3)
    for partition in range(3):
        times = [T0 + chance.randrange(-50_000, 50_000) for _ in range(60)] + [5, 0]
        confluent_write(
            *(kafka_cluster.bootstrap_servers, topic),
            [Record(None, b"v", (), ms) for ms in times],
            partition,
        )
    confluent_write(kafka_cluster.bootstrap_servers, other, [Record(None, b"w", (), T0)])
    spark.conf.set("spark.sql.session.timeZone", zone)
    names = f"{topic},{other}"
    columns = ("topic", "partition", "offset", "timestamp", "value")
    pushed = {"subscribe": names, "filterPushdown": "true"}
    known = {**pushed, "maxTimestampDisorderMs": str(2 * T0)}
    plain = read(subscribe=names).select(*columns).cache()  # once, for all filters
    wheres = (
        "offset > 20",
        "offset between 10 and 20 and partition < 2",
        "offset in (3, 40) and partition in (1, 2)",
        "offset = 7 or offset = 9",
        f"topic = '{other}'",
        f"topic <> '{other}' and partition <> 1",
        "partition is null",
        "timestamp >= '2023-11-14 22:13:20'",
        "timestamp >= timestamp'2023-11-15 03:43:20 Asia/Kolkata'",
        "timestamp > timestamp'2023-11-14 14:13:30.500001 America/Los_Angeles'",
        "timestamp <= timestamp'2023-11-14 22:13:10Z'",
        f"timestamp between timestamp_millis({T0}) and timestamp_millis({T0 + 9_999})",
        f"timestamp in (timestamp_millis({T0}), timestamp_millis(5))",
        "cast(timestamp as date) = date'2023-11-14'",
        "timestamp < '1980-01-01'",
        "timestamp < '1960-01-01'",
        "timestamp > '9999-01-01'",
        "timestamp > current_timestamp()",
        f"timestamp >= timestamp_millis({T0}) and value = 'v' and offset % 2 = 0",
    )
    if zone != "UTC":  # the other filters are the same in each zone
        wheres = tuple(where for where in wheres if "timestamp" in where)

    def found(frame_of: Callable[[], Any]) -> list[Any]:
        """The rows of all filters, each with the number of its filter, of one query."""
        frames = [
            frame_of().where(where).select(functions.lit(number).alias("filter"), *columns)
            for number, where in enumerate(wheres)
        ]
        return sorted(functools.reduce(DataFrame.union, frames).collect())

    try:
        expected = found(lambda: plain)
        assert {row.filter for row in expected} > {0, 1, 2, 3}
        for options in (pushed, known):
            rows = found(lambda options=options: read(**options))
            for number, where in enumerate(wheres):
                passed, passing = (
                    [row for row in side if row.filter == number] for side in (rows, expected)
                )
                assert passed == passing, where
    finally:
        plain.unpersist()
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def offsets_planned(reader: Any) -> int:
    return sum(part.end - part.start for part in reader.partitions())


@pytest.mark.real
def test_a_percent_of_the_time_is_a_percent_of_the_offsets(
    kafka_cluster: Any, ordered: str
) -> None:
    percent = 2 * PER_PARTITION // 100
    last = [GreaterThanOrEqual(TIME, moment(T0 + PER_PARTITION * STEP_MS - SLICE_MS))]
    assert offsets_planned(pushing(kafka_cluster, ordered, last)) == percent
    middle = [
        GreaterThanOrEqual(TIME, moment(MIDDLE_MS)),
        LessThan(TIME, moment(MIDDLE_MS + SLICE_MS)),
    ]
    sound = pushing(kafka_cluster, ordered, middle)
    assert offsets_planned(sound) == PER_PARTITION  # the second half of both partitions
    assert len(rows_of(sound)) == percent  # but Spark is given no more than this
    promised = pushing(kafka_cluster, ordered, middle, maxTimestampDisorderMs="0")
    assert offsets_planned(promised) == percent
    slack = pushing(kafka_cluster, ordered, middle, maxTimestampDisorderMs=str(SLICE_MS))
    assert offsets_planned(slack) == 2 * percent
    late = [GreaterThan(TIME, moment(T0 + PER_PARTITION * STEP_MS))]
    assert offsets_planned(pushing(kafka_cluster, ordered, late)) == 0


@pytest.mark.real
@pytest.mark.spark
def test_spark_is_given_a_percent(
    spark: Any, read: Callable[..., Any], ordered: str, pushed_down: None
) -> None:
    frame = read(subscribe=ordered, filterPushdown="true").where(
        f"timestamp >= timestamp_millis({MIDDLE_MS}) "
        f"and timestamp < timestamp_millis({MIDDLE_MS + SLICE_MS})"
    )
    assert frame.count() == 2 * PER_PARTITION // 100
    parts = [
        read(subscribe=ordered, filterPushdown="true").where(f"partition = {n} and offset < 10")
        for n in (0, 1)
    ]
    assert parts[0].union(parts[1]).count() == 20


@pytest.mark.real
@pytest.mark.spark
@pytest.mark.parametrize("query", ["another query", "one query"])
@pytest.mark.xfail(strict=True, reason="Spark 4.1 to 4.3 at least keep what was planned last")
def test_a_frame_that_is_used_twice(
    read: Callable[..., Any], ordered: str, pushed_down: None, query: str
) -> None:
    """PythonDataSourceV2.setReadInfo: partitions and reader of the last filters stay with the
    relation, for all scans of it. docs/batch.md says to call load() anew; a Spark that
    passes here makes that needless."""
    frame = read(subscribe=ordered, filterPushdown="true")
    first = frame.where("partition = 0 and offset < 10")
    if query == "another query":
        assert first.count() == 10
        assert frame.count() == 2 * PER_PARTITION
    else:
        second = frame.where("partition = 1 and offset < 10")
        rows = first.union(second).select("partition").distinct().collect()
        assert {row.partition for row in rows} == {0, 1}


@pytest.mark.real
def test_that_a_broker_finds_no_record_does_not_mean_that_there_is_none(
    kafka_cluster: Any, new_topic: Callable[..., str]
) -> None:
    """ListOffsets looks into the first segment that is late enough. Its late record is deleted
    here, so the response is "none", although the next segment holds one."""
    topic = new_topic(configs={"segment.ms": "1", "message.timestamp.type": "CreateTime"})
    for ms in (T0 + 5000, T0 + 500, T0 + 5002):
        confluent_write(kafka_cluster.bootstrap_servers, topic, [Record(None, b"v", (), ms)])
    delete_records(kafka_cluster.bootstrap_servers, topic, 0, 1)
    tp = TopicPartition(topic, 0)
    with open_cluster(kafka_cluster) as cluster:
        assert OffsetLookup(cluster).list({tp: T0 + 4000})[tp].offset == -1
    reader = pushing(kafka_cluster, topic, [GreaterThan(TIME, moment(T0 + 4000))])
    assert [row.offset for row in rows_of(reader)] == [2]


@pytest.mark.real
@pytest.mark.spark
def test_spark_says_what_to_set(spark: Any, read: Callable[..., Any], ordered: str) -> None:
    spark.conf.unset(CONF)
    with pytest.raises(PySparkException) as caught:
        read(subscribe=ordered, filterPushdown="true").where("offset > 5").count()
    assert (
        "FilterPushdownReader implements pushFilters() but filter pushdown is disabled because "
        f"configuration '{CONF}' is false. Set it to true"
    ) in str(caught.value)
