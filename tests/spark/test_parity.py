"""Both connectors on the same topics with the same options: the same rows, or both refuse.

Where they differ on purpose docs/migrate.md says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tests.real.peers import Record, confluent_write

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.jvm]

T0 = 1_700_000_000_000
"""Time of the first records, in ms. A step is a second."""

REFUSED = "refused"

IMPATIENT = {
    "kafkaConsumer.pollTimeoutMs": "3000",
    "kafka.fetch.max.wait.ms": "20",
    "fetchOffset.retryIntervalMs": "10",
}
"""The JVM connector waits for what never comes, and half a second behind the end of a range."""

Read = Callable[..., Any]


def ms(step: float) -> str:
    return str(T0 + int(1000 * step))


@dataclass(frozen=True)
class Topics:
    """`a` has three partitions: ten records a second apart; ten whose times go back and forth;
    none. `b` has one, of five records, later by an hour."""

    a: str
    b: str


@pytest.fixture(scope="module")
def topics(kafka_cluster: Any) -> Topics:
    a, b = "parityone", "paritytwo"
    kafka_cluster.create_topic(a, partitions=3)
    kafka_cluster.create_topic(b, partitions=1)
    servers = kafka_cluster.bootstrap_servers
    straight = [Record(b"k%d" % i, b"%d" % i, (), T0 + 1000 * i) for i in range(10)]
    jumping = [
        Record(None, b"%d" % i, (("h", b"x"),), T0 + 1000 * step)
        for i, step in enumerate((5, 1, 9, 2, 0, 7, 3, 8, 4, 6))
    ]
    late = [Record(None, None if i == 2 else b"b", (), T0 + 3_600_000 + i) for i in range(5)]
    confluent_write(servers, a, straight, 0)
    confluent_write(servers, a, jumping, 1)
    confluent_write(servers, b, late, 0)
    return Topics(a, b)


def by_partition(topic: str, *numbers: int | str) -> str:
    """JSON of offsets or times of the partitions 0, 1, …"""
    return json.dumps({topic: {str(at): int(number) for at, number in enumerate(numbers)}})


LATEST = {"startingOffsetsByTimestampStrategy": "latest"}


def case(name: str, topic: str = "A", **options: Any) -> Any:
    """Options of one read. "A" and "B" stand for the topics; tuples for JSON by partition of A."""
    chosen = {"subscribe", "subscribePattern", "assign"} & set(options)
    given = options if chosen else {"subscribe": topic, **options}
    return pytest.param(given, id=name)


def again(name: str, topic: str = "A", **options: Any) -> Any:
    """A rule that another case compares as well, with further options; for `make soak`."""
    return pytest.param(*case(name, topic, **options).values, id=name, marks=pytest.mark.soak)


CASES = [
    case("whole topic"),
    again("two topics", subscribe="A,B"),
    case("topics with blanks", subscribe=" A , B ,"),
    again("pattern", subscribePattern="^(A|B)$"),
    case("pattern, part of a name", subscribePattern="^A"),
    case("pattern without a match", subscribePattern="^no-such-topic-at-all$"),
    case("bad pattern", subscribePattern="(("),
    again("assign one", assign='{"A":[1]}'),
    case("assign all of two topics", assign='{"A":[0,1,2],"B":[0]}'),
    again("assign no JSON", assign="A:0"),
    case("assign bad JSON", assign='{"A":[0'),
    case("assign text for numbers", assign='{"A":["x"]}'),
    case("two subscriptions", subscribe="A", assign='{"A":[0]}'),
    case("no subscription", topic=""),
    again("earliest", startingOffsets="earliest", endingOffsets="latest"),
    case("words in capitals", startingOffsets=" EARLIEST ", endingOffsets="Latest"),
    case("starts at the latest", startingOffsets="latest"),
    case("ends at the earliest", endingOffsets="earliest"),
    case("starts at a word", startingOffsets="begin"),
    again("starting offsets", startingOffsets=(3, 0, 0)),
    again("starting offsets, earliest by number", startingOffsets=(-2, 4, -2)),
    case("starting offsets, latest by number", startingOffsets=(-1, 4, -2)),
    again("ending offsets", endingOffsets=(3, 10, 0)),
    case("ending offsets, latest by number", endingOffsets=(-1, 4, -1)),
    case("ending offsets, earliest by number", endingOffsets=(-2, 4, -1)),
    case("both offsets", startingOffsets=(2, 3, 0), endingOffsets=(5, 9, 0)),
    case("empty ranges", startingOffsets=(5, 10, 0), endingOffsets=(5, 10, 0)),
    case("start behind end", startingOffsets=(6, 0, 0), endingOffsets=(5, 1, 0)),
    case("a partition is missing", startingOffsets=(1, 1)),
    case("a partition too many", startingOffsets=(1, 1, 0, 0)),
    again("a missing one at the end", endingOffsets=(1, 1)),
    case(
        "other partitions at both ends",
        assign='{"A":[0]}',
        startingOffsets=(1,),
        endingOffsets='{"A":{"1":2}}',
    ),
    case("offsets of another topic", startingOffsets='{"B":{"0":1}}'),
    case("offsets that are text", startingOffsets='{"A":{"0":"x"}}'),
    again("offsets that are a list", startingOffsets='{"A":[1]}'),
    again("offsets cut off", startingOffsets='{"A":{"0":1'),
    again("starting time", startingTimestamp=ms(3), **LATEST),
    case("starting time between records", startingTimestamp=ms(3.5), **LATEST),
    again(
        "strategy in capitals", startingTimestamp=ms(3), startingOffsetsByTimestampStrategy="LATEST"
    ),
    case("starting time before all, error", assign='{"A":[0,1]}', startingTimestamp=ms(-5)),
    again("starting time, an empty partition", startingTimestamp=ms(3)),
    case("starting time behind all", startingTimestamp=ms(50)),
    case("starting time behind all, latest", startingTimestamp=ms(50), **LATEST),
    case("bad strategy", startingTimestamp=ms(50), startingOffsetsByTimestampStrategy="first"),
    case("starting time is a word", startingTimestamp="yesterday"),
    again("starting time is a date", startingTimestamp="2023-11-14"),
    again("ending time", endingTimestamp=ms(4)),
    case("ending time before all", endingTimestamp=ms(-1)),
    case("ending time behind all", endingTimestamp=ms(99)),
    case("both times", startingTimestamp=ms(2), endingTimestamp=ms(7), **LATEST),
    again("both times, equal", startingTimestamp=ms(2), endingTimestamp=ms(2), **LATEST),
    case("start time behind end time", startingTimestamp=ms(7), endingTimestamp=ms(2), **LATEST),
    again(
        "times by partition",
        startingOffsetsByTimestamp=(ms(3), ms(8), ms(0)),
        **LATEST,
    ),
    case(
        "times by partition at both ends",
        startingOffsetsByTimestamp=(ms(3), ms(1), ms(0)),
        endingOffsetsByTimestamp=(ms(8), ms(9), ms(1)),
        **LATEST,
    ),
    again("ending times by partition", endingOffsetsByTimestamp=(ms(3), ms(8), ms(0))),
    case("times by partition, one missing", startingOffsetsByTimestamp=(ms(3), ms(8)), **LATEST),
    again(
        "times by partition, start behind end",
        startingOffsetsByTimestamp=(ms(3), ms(8), ms(0)),
        endingOffsetsByTimestamp=(ms(2), ms(9), ms(1)),
        **LATEST,
    ),
    again("times by partition, bad JSON", startingOffsetsByTimestamp='{"A":{"0":', **LATEST),
    case(
        "time before offsets",
        startingTimestamp=ms(5),
        startingOffsets=(0, 0, 0),
        **LATEST,
    ),
    case(
        "time by partition before offsets",
        startingOffsetsByTimestamp=(ms(5), ms(5), ms(5)),
        startingOffsets="latest",
        **LATEST,
    ),
    case(
        "time before time by partition",
        startingTimestamp=ms(5),
        startingOffsetsByTimestamp="no JSON",
        **LATEST,
    ),
    case("ending time before offsets", endingTimestamp=ms(5), endingOffsets="earliest"),
    case(
        "starting time, ending offsets",
        startingTimestamp=ms(3),
        endingOffsets=(9, 9, 0),
        **LATEST,
    ),
    case(
        "starting time behind ending offsets",
        startingTimestamp=ms(8),
        endingOffsets=(2, 10, 0),
        **LATEST,
    ),
    case(
        "starting offsets, ending time",
        startingOffsets=(1, 0, 0),
        endingTimestamp=ms(6),
    ),
    again("minPartitions", minPartitions="7"),
    again("minPartitions of no use", minPartitions="1"),
    case("minPartitions 0", minPartitions="0"),
    again("minPartitions no number", minPartitions="many"),
    again("maxRecordsPerPartition", maxRecordsPerPartition="3"),
    again("maxRecordsPerPartition 0", maxRecordsPerPartition="0"),
    case("both splits", maxRecordsPerPartition="6", minPartitions="9"),
    again("splits of offsets", minPartitions="5", startingOffsets=(2, 3, 0)),
    again("headers", includeHeaders="true"),
    case("headers in capitals", includeHeaders="TRUE"),
    case("failOnDataLoss no boolean", failOnDataLoss="maybe"),
    case("end behind the log", endingOffsets=(99, 10, 0)),
    case("end behind the log, may lose", endingOffsets=(99, 10, 0), failOnDataLoss="false"),
    case("start behind the log", startingOffsets=(99, 0, 0)),
    case("no such topic", subscribe="no-such-topic-at-all"),
    case("refused property", kafka__auto__offset__reset="earliest"),
    again("refused deserializer", kafka__key__deserializer="x"),
    again("refused commit", kafka__enable__auto__commit="true"),
    case("isolation", kafka__isolation__level="read_committed"),
    case("bad isolation", kafka__isolation__level="maybe"),
]


@pytest.mark.parametrize("options", CASES)
def test_same_rows_or_both_refuse(
    options: dict[str, Any], topics: Topics, read: Read, jvm_connector: str
) -> None:
    given = {name: _text(value, topics) for name, value in options.items()}
    given = {name: text for name, text in given.items() if text}
    given |= IMPATIENT
    ours, theirs = _rows(read, "pykafka", given), _rows(read, jvm_connector, given)
    assert ours == theirs


def _text(value: Any, topics: Topics) -> str:
    text = by_partition("A", *value) if isinstance(value, tuple) else str(value)
    names = {"A": topics.a, "B": topics.b}
    return re.sub(r"\b[AB]\b", lambda match: names[match[0]], text)


def _rows(read: Read, format: str, options: dict[str, str]) -> Any:
    try:
        return sorted(map(repr, read(format, **options).collect()))
    except (PySparkException, Py4JJavaError):
        return REFUSED


# --- streams ---------------------------------------------------------------------------------


STREAMS = [
    case("whole topic", startingOffsets="earliest"),
    case("from the default, latest"),
    again("latest", startingOffsets=" LATEST"),
    again("two topics", subscribe="A,B", startingOffsets="earliest"),
    again("pattern", subscribePattern="^(A|B)$", startingOffsets="earliest"),
    again("pattern without a match", subscribePattern="^no-such$", startingOffsets="earliest"),
    again("assign", assign='{"A":[0,1]}', startingOffsets="earliest"),
    again("two subscriptions", subscribe="A", assign='{"A":[0]}'),
    again("no subscription", topic=""),
    again("offsets", startingOffsets=(3, 4, 0)),
    case("offsets, all three kinds", startingOffsets=(3, -1, -2)),
    again("offsets, one missing", startingOffsets=(3, 4)),
    case("offsets behind the log", startingOffsets=(99, 4, 0)),
    case("offsets behind the log, may lose", startingOffsets=(99, 4, 0), failOnDataLoss="false"),
    again("offsets, bad JSON", startingOffsets='{"A":{"0":1'),
    again("offsets, a word", startingOffsets="begin"),
    case("time", startingTimestamp=ms(3), **LATEST),
    case("time behind all", startingTimestamp=ms(50)),
    again("time behind all, latest", startingTimestamp=ms(50), **LATEST),
    again("times", startingOffsetsByTimestamp=(ms(3), ms(8), ms(0)), **LATEST),
    again("times, one missing", startingOffsetsByTimestamp=(ms(3), ms(8)), **LATEST),
    again("time before offsets", startingTimestamp=ms(5), startingOffsets="no JSON", **LATEST),
    case("ending offsets", startingOffsets="earliest", endingOffsets="latest"),
    again("ending times", endingOffsetsByTimestamp=(ms(3), ms(8), ms(0))),
    case("cap", startingOffsets="earliest", maxOffsetsPerTrigger="6"),
    again("cap 1000", startingOffsets="earliest", maxOffsetsPerTrigger="1000"),
    again("cap no number", startingOffsets="earliest", maxOffsetsPerTrigger="many"),
    case("minimum above cap", maxOffsetsPerTrigger="6", minOffsetsPerTrigger="7"),
    case("minimum", startingOffsets="earliest", minOffsetsPerTrigger="5"),
    case("delay", startingOffsets="earliest", minOffsetsPerTrigger="5", maxTriggerDelay="1s"),
    again("delay, bad unit", minOffsetsPerTrigger="5", maxTriggerDelay="1 week"),
    again("splits", startingOffsets="earliest", minPartitions="7", maxRecordsPerPartition="4"),
    again("headers", startingOffsets="earliest", includeHeaders="true"),
    case("no such topic", subscribe="no-such-topic-at-all"),
    again("refused property", kafka__auto__offset__reset="earliest"),
    again("isolation", startingOffsets="earliest", kafka__isolation__level="read_committed"),
]  # fmt: skip


@pytest.mark.parametrize("options", STREAMS)
def test_streams_have_the_same_rows_and_offsets_or_both_refuse(
    options: dict[str, Any],
    topics: Topics,
    spark: Any,
    kafka_cluster: Any,
    jvm_connector: str,
    tmp_path: Path,
) -> None:
    given = {name: _text(value, topics).replace("__", ".") for name, value in options.items()}
    given = {name.replace("__", "."): text for name, text in given.items() if text}
    given |= {
        "kafka.bootstrap.servers": kafka_cluster.bootstrap_servers,
        **IMPATIENT,
    }
    found = [_stream(spark, format, given, tmp_path) for format in ("pykafka", jvm_connector)]
    assert found[0] == found[1]


def _stream(spark: Any, format: str, options: dict[str, str], folder: Path) -> Any:
    """The rows, and the offsets at the end."""
    rows: list[str] = []

    def take(frame: Any, _: int) -> None:
        rows.extend(map(repr, frame.collect()))

    try:
        query = (
            spark.readStream.format(format)
            .options(**options)
            .load()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(folder / format))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()
    except (PySparkException, Py4JJavaError):
        return REFUSED
    written = sorted((folder / format / "offsets").glob("[0-9]*"), key=lambda f: int(f.name))
    # Where there is no partition, one of the two may not even make a batch.
    end = json.loads(written[-1].read_text().splitlines()[2]) if written else {}
    return sorted(rows), end
