"""What is measured in Spark, with which targets: the table that `run.py` works through.

Rows per topic are chosen so that one run takes one to some seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from tests.bench.data import KILO_BATCH, MEGA_BATCH, Topic, timestamp_ms
from tests.bench.floor import FLOOR

PYKAFKA = "pykafka"
JVM = "JVM connector"
ALL_COLUMNS = "pykafka, all columns"
AT_LEAST_ONCE = "pykafka, at-least-once"
NOOP, SUM = "noop", "sum(length(value))"
PARTITIONS = 4

#: Least ratios wanted.
READ_TARGET = 2.0
CODEC_TARGET = VARIABLE_TARGET = 1.5
VALUE_ONLY_TARGET, BY_TIME_TARGET = 1.3, 10.0
#: Seconds that a read of one row may take longer than the JVM connector's.
ONE_ROW_TARGET_S = 0.5
#: Of writes with exactly-once beside those without; ms that it may add to a micro-batch.
EXACTLY_ONCE_TARGET, EXACTLY_ONCE_BATCH_TARGET_MS = 0.8, 150.0

SIZE_NAMES: dict[int | str, str] = {
    10: "10 B",
    100: "100 B",
    1000: "1 KB",
    10_000: "10 KB",
    "uniform": "10 B to 2 KB",
    "lognormal": "lognormal, median 150 B",
}
BATCH_NAMES = {KILO_BATCH: "16 KB batches", MEGA_BATCH: "1 MB batches"}
CODECS = ("gzip", "snappy", "lz4", "zstd")

BOUNDED = "read, all but the last 5 %"
VALUE_ONLY = "read, value alone by schema"
BY_TIME = "read, by time with filterPushdown"
MICRO_BATCHES = "micro-batches"
EXACTLY_ONCE = "exactly-once"
SPARK_ALONE = "Spark's Arrow transfer alone"
SCHEMAS = "schemas"

READ_AVRO, READ_FEW = "read Avro, 10 fields, noop", "read Avro, 2 of the 10 fields, noop"
READ_JSON, WRITE_AVRO = "read JSON, 10 fields, noop", "write Avro, 10 fields"
READ_CHANGES = "read Debezium's JSON, 10 columns, noop"
#: Rows of the group `SCHEMAS`.
SCHEMA_ROWS = (READ_AVRO, READ_FEW, READ_JSON, WRITE_AVRO, READ_CHANGES)

#: A session's first read and write, the groups of these rows by rival, and a group of the part
#: "growth".
FIRST_ROWS = {
    "read": "first read of a new session, one row of one partition, collect()",
    "write": "first write of a new session, one row",
}
FIRST_GROUPS = {JVM: "latency", FLOOR: SPARK_ALONE}
TINY_TOPICS = "tiny topics"

#: Headings of the part "spark", as the table has them.
GROUPS = (
    *(
        "read",
        BOUNDED,
        "read, sizes that vary",
        *(f"read, {codec}" for codec in CODECS),
        *("read, a part", VALUE_ONLY, BY_TIME),
    ),
    *("write", "latency", MICRO_BATCHES, EXACTLY_ONCE, SPARK_ALONE),
)

_ROWS: dict[int | str, int] = {
    10: 2_000_000,
    100: 1_600_000,
    1000: 320_000,
    10_000: 32_000,
    "uniform": 320_000,
    "lognormal": 800_000,
}


@dataclass(frozen=True)
class Read:
    """One row about reading, of the whole topic or of a part of each partition: `last_share` 0.01
    is its last 1 %, `first_share` 0.95 all but its last 5 %; `select` and `where` are SQL. `schema`
    and `options` are for our format alone. `found`: how many rows `where` must leave."""

    group: str
    name: str
    topic: Topic
    sink: str = NOOP
    target: float | None = None
    pairs: int = 3
    last_share: float | None = None
    first_share: float | None = None
    select: str = "*"
    where: str = ""
    found: int | None = None
    schema: str = ""
    options: dict[str, str] = field(default_factory=dict)
    rival: str = JVM

    @property
    def pushes_filters(self) -> bool:
        return "filterPushdown" in self.options


IN_TRANSACTIONS = {"deliveryGuarantee": "exactly-once"}


@dataclass(frozen=True)
class Write:
    """One row about writing `rows` rows without key, or with keys of 8 bytes. `settings` are for
    both sides, `options` for ours alone."""

    name: str
    value_bytes: int
    rows: int
    target: float | None
    with_keys: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    pairs: int = 3
    rival: str = JVM
    group: str = "write"

    @property
    def is_transactional(self) -> bool:
        return self.options == IN_TRANSACTIONS


@dataclass(frozen=True)
class Stream:
    """A streaming query that takes `batch_rows` rows of 100 B in each micro-batch, and two rows of
    the table about it: median and 95th percentile of `durationMs.triggerExecution`. The rows go
    nowhere, or `to_kafka` to a topic of as many partitions: with exactly-once on our side, unless
    `in_transactions` is off.
    `live`: the rows come while the query waits for them, those of each micro-batch in one request.
    `target`: how many ms our median may be above the rival's."""

    batch_rows: int
    partitions: int
    batches: int
    first_batches: int = 8
    """Not counted: Java compiles, workers are forked."""
    pairs: int = 2
    to_kafka: bool = False
    in_transactions: bool = True
    live: bool = False
    rival: str = JVM
    target: float | None = None

    @property
    def group(self) -> str:
        return EXACTLY_ONCE if self.to_kafka and self.in_transactions else MICRO_BATCHES

    @property
    def topic(self) -> Topic:
        rows = 0 if self.live else self.batch_rows * (self.first_batches + self.batches)
        return Topic(100, rows, KILO_BATCH, partitions=self.partitions)

    @property
    def name(self) -> str:
        rows = f"{self.batch_rows:,} row{'s' * (self.batch_rows > 1)} of 100 B"
        name = f"{rows} of {self.partitions} partition{'s' * (self.partitions > 1)}"
        if self.live:
            name = f"live end, {name}"
        if self.group == EXACTLY_ONCE:
            return f"micro-batches, {name}" + ", JVM source and sink" * (self.rival == JVM)
        return f"{name}, to another topic" if self.to_kafka else name

    @property
    def names(self) -> tuple[str, str]:
        return f"{self.name}, p50", f"{self.name}, p95"


def reads(*, quick: bool) -> Iterator[Read]:
    """Rows of one topic follow each other."""
    if quick:
        yield from _plain_reads((100, 1000), pairs=2, sinks=(NOOP,), bounded=())
        yield from _codec_reads(("lz4",), (100,), (MEGA_BATCH,), pairs=2)
        yield from _variable_reads(("lognormal",), (MEGA_BATCH,), pairs=2, sinks=(NOOP,))
        return
    sinks = (SUM, NOOP)
    batches = (KILO_BATCH, MEGA_BATCH)
    yield from _plain_reads((10, 100, 1000, 10_000), pairs=3, sinks=sinks, bounded=batches)
    yield from _variable_reads(("uniform", "lognormal"), batches, pairs=3, sinks=sinks)
    yield from _parts()
    yield from _codec_reads(CODECS, (10, 100, 1000, 10_000), batches, pairs=2)


def _plain_reads(
    sizes: tuple[int, ...], *, pairs: int, sinks: tuple[str, ...], bounded: tuple[int, ...]
) -> Iterator[Read]:
    """`bounded`: sizes of batches of topics that are also read not quite to their end."""
    for size, batch in product(sizes, (KILO_BATCH, MEGA_BATCH)):
        topic = Topic(size, _ROWS[size], batch)
        for sink in sinks:
            name = f"{SIZE_NAMES[size]}, {BATCH_NAMES[batch]}, {sink}"
            yield Read("read", name, topic, sink, READ_TARGET, pairs)
        if size in (100, 1000) and batch in bounded:
            yield _bounded_read(size, topic, pairs)
            if batch == MEGA_BATCH:
                name = f"read {SIZE_NAMES[size]}, {BATCH_NAMES[batch]}, {NOOP}"
                yield Read(SPARK_ALONE, name, topic, NOOP, None, pairs, rival=FLOOR)
                yield _value_only_read(size, topic, pairs)


def _bounded_read(size: int, topic: Topic, pairs: int) -> Read:
    """The JVM connector waits in each task that comes to the end of an idle partition: its next
    fetch is on the way, and responses to its questions about offsets come after that one's, which
    has nothing to bring and takes fetch.max.wait.ms. Here neither waits. No target: at 1 KB even
    Spark's Arrow transfer alone is not much more than twice as fast as the connector then."""
    name = f"{SIZE_NAMES[size]}, {BATCH_NAMES[topic.batch_bytes]}, {NOOP}"
    return Read(BOUNDED, name, topic, NOOP, None, pairs, first_share=0.95)


def _value_only_read(size: int, topic: Topic, pairs: int) -> Read:
    return Read(
        VALUE_ONLY,
        f"{SIZE_NAMES[size]}, {BATCH_NAMES[topic.batch_bytes]}, {NOOP}",
        topic,
        target=VALUE_ONLY_TARGET,
        pairs=pairs,
        schema="value binary",
        rival=ALL_COLUMNS,
    )


def _variable_reads(
    names: tuple[str, ...], batches: tuple[int, ...], *, pairs: int, sinks: tuple[str, ...]
) -> Iterator[Read]:
    for values, batch in product(names, batches):
        topic = Topic(values, _ROWS[values], batch)
        for sink in sinks:
            name = f"{SIZE_NAMES[values]}, {BATCH_NAMES[batch]}, {sink}"
            yield Read("read, sizes that vary", name, topic, sink, VARIABLE_TARGET, pairs)


def _codec_reads(
    codecs: tuple[str, ...],
    sizes: tuple[int, ...],
    batches: tuple[int, ...],
    *,
    pairs: int,
) -> Iterator[Read]:
    for codec, size, batch in product(codecs, sizes, batches):
        topic = Topic(size, _ROWS[size] // 16 * 5, batch, codec)
        name = f"{SIZE_NAMES[size]}, {BATCH_NAMES[batch]}, {NOOP}"
        yield Read(f"read, {codec}", name, topic, NOOP, CODEC_TARGET, pairs)


def _parts() -> Iterator[Read]:
    """Parts of a topic: its end, one column, a time; then times that the reader may make use of.
    In all but the first the connector reads the whole topic, and we do so without the option."""
    topic = Topic(100, 4_000_000)
    group, suffix = "read, a part", "100 B, 1 MB batches, noop"
    yield Read(group, f"last 1 % by startingOffsets, {suffix}", topic, last_share=0.01)
    yield Read(group, f"value only, by select, {suffix}", topic, pairs=2, select="value")
    where, found = _times(topic, 0.99)
    name = f"last 1 % by timestamp, by where, {suffix}"
    yield Read(group, name, topic, pairs=2, where=where, found=found)

    topic = Topic(100, 2_000_000)
    push = {"filterPushdown": "true"}
    in_order = {**push, "maxTimestampDisorderMs": "0"}
    last, middle = _times(topic, 0.99), _times(topic, 0.495, 0.505)
    for name, target, options, (where, found) in (
        ("last 1 %", BY_TIME_TARGET, push, last),
        ("middle 1 %, maxTimestampDisorderMs=0", BY_TIME_TARGET, in_order, middle),
        ("middle 1 %", None, push, middle),
    ):
        yield Read(
            BY_TIME,
            f"{name}, {suffix}",
            topic,
            target=target,
            where=where,
            found=found,
            options=options,
        )


def _times(topic: Topic, start: float, end: float | None = None) -> tuple[str, int]:
    """A filter on the timestamps of those shares of each partition, and how many rows it leaves.

    A hundred records have the same time, so both ends are a little earlier."""
    held = topic.rows // topic.partitions
    first, last = (int(held * share) // 100 * 100 for share in (start, end or 1))
    where = f"timestamp >= timestamp_millis({timestamp_ms(first)})"
    if end is not None:
        where += f" AND timestamp < timestamp_millis({timestamp_ms(last)})"
    return where, ((last if end else held) - first) * topic.partitions


#: 100-byte records in more and more partitions; the JVM connector up to `MAX_RIVAL_PARTITIONS`.
GROWTH_PARTITIONS = (1, 4, 64, 1_000, 10_000)
MAX_RIVAL_PARTITIONS = 64
#: Sizes of values in four partitions.
GROWTH_SIZES = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
#: Tasks at a time, of a partition each.
GROWTH_TASKS = (1, 2, 3, 4)
_GROWTH_ROWS, _GROWTH_BYTES = 1_000_000, 128_000_000


@dataclass(frozen=True)
class Growth:
    """One row about reading a topic: what grows, and how many runs of each side it gets."""

    group: str
    name: str
    topic: Topic
    tasks: int = 4
    pairs: int = 2

    @property
    def has_rival(self) -> bool:
        return self.topic.partitions <= MAX_RIVAL_PARTITIONS


def growth(*, quick: bool) -> Iterator[Growth]:
    """A row of 10,000 partitions starts as many tasks, so it gets one run."""
    for partitions in GROWTH_PARTITIONS[: 3 if quick else None]:
        rows = _GROWTH_ROWS // partitions * partitions
        topic = Topic(100, rows, partitions=partitions)
        name = f"100 B, {partitions:,} partition{'s' * (partitions > 1)}"
        pairs = 1 if partitions > 1_000 else 2
        yield Growth("growth by partitions", name, topic, min(partitions, 4), pairs)
    for size in GROWTH_SIZES[: 3 if quick else None]:
        rows = min(2 * _GROWTH_ROWS, _GROWTH_BYTES // size)
        name = f"{SIZE_NAMES.get(size) or ('100 KB' if size == 100_000 else '1 MB')}, 4 partitions"
        yield Growth("growth by size of records", name, Topic(size, rows))
    for tasks in GROWTH_TASKS:
        topic = Topic(1000, _GROWTH_BYTES // 1000 // 12 * 12, partitions=tasks)
        name = f"1 KB, {tasks} task{'s' * (tasks > 1)} at a time"
        yield Growth("growth by tasks", name, topic, tasks)


#: The same for both: batches of up to 1 MB that wait for 20 ms, and room for them.
TUNED = {
    "kafka.linger.ms": "20",
    "kafka.batch.size": str(1 << 20),
    "kafka.max.request.size": str(8 << 20),
    "kafka.buffer.memory": str(64 << 20),
}


def writes(*, quick: bool) -> Iterator[Write]:
    small, large = (600_000, 90_000) if quick else (2_400_000, 360_000)
    pairs, many = (2, 2) if quick else (3, 5)
    yield Write("100 B, defaults", 100, small, 2.5, pairs=many)
    yield Write("1 KB, defaults", 1000, large, 1.3, pairs=many)
    yield Write("100 B, tuned", 100, small, 1.3, settings=TUNED, pairs=many)
    yield Write("1 KB, tuned", 1000, large, 1.0, settings=TUNED, pairs=many)
    for size, rows in () if quick else ((100, small), (1000, large)):
        name = f"write {SIZE_NAMES[size]}, defaults"
        yield Write(name, size, rows, None, pairs=pairs, rival=FLOOR, group=SPARK_ALONE)
    if not quick:
        name = "100 B and keys of 8 B, defaults"
        yield Write(name, 100, small, None, with_keys=True, pairs=pairs)
        for codec in ("lz4", "zstd"):
            compressed = {"kafka.compression.type": codec}
            yield Write(f"1 KB, {codec}", 1000, large, None, settings=compressed, pairs=pairs)
    for size, rows in ((100, 1_000_000), (1000, 250_000)):
        if size == 100 or not quick:
            yield Write(
                f"write {SIZE_NAMES[size]}, defaults",
                *(size, rows, EXACTLY_ONCE_TARGET),
                options=IN_TRANSACTIONS,
                pairs=pairs,
                rival=AT_LEAST_ONCE,
                group=EXACTLY_ONCE,
            )


#: Partitions with a new row each -> micro-batches that count.
LIVE_BATCHES = {1: 20, 4: 20, 16: 6, 64: 2}


#: Topics of one row -> whether the JVM connector reads them too, half a second each.
TINY_TOPIC_COUNTS = {64: True, 1_000: False}


def one_row_pairs(*, quick: bool) -> int:
    return 3 if quick else 7


def first_row_pairs(*, quick: bool) -> int:
    return 1 if quick else 3


def streams(*, quick: bool) -> Iterator[Stream]:
    """The smallest micro-batch there can be (one without rows is none), and one of some size; then
    what exactly-once adds to a small one, and the JVM connector beside it, which has no such."""
    if not quick:
        yield Stream(1, 1, 30)
        yield Stream(10_000, 4, 30)
        for partitions, batches in LIVE_BATCHES.items():
            pairs = 2 if partitions < 64 else 1  # there the JVM connector takes 17 s for each
            yield Stream(partitions, partitions, batches, 2, pairs, live=True)
        yield Stream(10_000, 4, 20, 20, live=True)
    # Into a topic more of Java's code takes part on our side: it takes longer to compile.
    to_kafka = Stream(
        *((400, 4, 10) if quick else (400, 4, 30, 60)),
        pairs=1 if quick else 3,
        to_kafka=True,
        rival=AT_LEAST_ONCE,
        target=EXACTLY_ONCE_BATCH_TARGET_MS,
    )
    yield to_kafka
    if not quick:
        beside_jvm = replace(to_kafka, pairs=3, rival=JVM, target=None)
        yield beside_jvm
        yield replace(beside_jvm, in_transactions=False)
