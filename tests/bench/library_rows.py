"""The client library's own classes beside confluent-kafka and kafka-python, mostly on one core.

Both sides of a pair get the same core, with all their threads; the broker has the other to itself
where there are two. Rows of "all cores" share them with the broker. Every record is looked at, as a
program would, and Python's garbage collector is on, as in a program: a million objects are its work
too. One row is there without it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.client import Consumer, Producer, TopicPartition
from tests.bench import rivals
from tests.bench.client_rows import SEND_ROWS, read_checks, write, write_checks
from tests.bench.codec_rows import KILO_BATCH, columns
from tests.bench.data import make_topic, open_cluster, records_in, remove_topic
from tests.bench.results import Row
from tests.bench.turns import take_turns

PARTITIONS = 4
WIDE_PARTITIONS = 500  # of one row: each gets few records at a time
VALUE_BYTES = 100
POLL_TARGET, ARROW_TARGET, SEND_TARGET = 10.0, 4.0, 5.0
ALL_CORES_BYTES = 256
ALL_CORES_TARGET = 1.6e6  # records/s, which Feldera publishes for its Kafka input with threads
LONE_TARGET = 0.5  # of confluent-kafka's rate: at most twice its time
MAX_POLL_RECORDS = 10_000
# As much of a partition at a time as the tuned rival gets; Java's default, and ours, is 1 MiB.
FETCH_BYTES = int(rivals.TUNED_FETCH["fetch.message.max.bytes"])
SAME_FETCH = f"{FETCH_BYTES >> 20} MiB of a partition at a time on both sides"

# Records that ours and confluent-kafka, and that kafka-python reads or writes.
_FULL, _QUICK = (128 * SEND_ROWS, 60_000), (24 * SEND_ROWS, 16_000)
_SEND_SHARE = 8  # of the records that are read, `send` writes one in so many
_BYTES_PER_RECORD = 8
_LIMIT_S = 120.0


def library_rows(bootstrap_servers: str, *, quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Rows of poll, poll_arrow, send and send_table. Makes topics and deletes them."""
    many, few = _QUICK if quick else _FULL
    data = columns(str(VALUE_BYTES), many * (VALUE_BYTES + _BYTES_PER_RECORD) + 1)
    count = len(data.timestamps_ms)
    pairs = 2 if quick else 5
    rows: list[Row] = []

    def row(
        name: str,
        rival: str,
        target: float | None,
        ours: Callable[[], float],
        theirs: Callable[[], float],
        work: list[float],
        note: str = "",
        *,
        collects: bool = True,
    ) -> None:
        made = Row(
            *("client library", f"{name}, one core", "records/s", rival, work),
            target=target,
            note=note,
            checks=checks,
        )
        with one_core():
            rows.append(take_turns(made, ours, theirs, pairs, say, collects=collects))

    topic = "bench-library-read"
    ends = dict.fromkeys(range(PARTITIONS), count // PARTITIONS)
    few_ends = dict.fromkeys(ends, few // PARTITIONS)
    many, few = sum(ends.values()), sum(few_ends.values())
    with open_cluster(bootstrap_servers) as cluster:
        make_topic(cluster, topic, PARTITIONS)
    try:
        write(bootstrap_servers, topic, data, KILO_BATCH)
        checks = read_checks(bootstrap_servers, topic, data.values)
        row(
            "Consumer.poll of 100 B, 4 partitions",
            rivals.KAFKA_PYTHON,
            POLL_TARGET,
            lambda: poll(bootstrap_servers, topic, ends),
            lambda: rivals.kafka_python_read(bootstrap_servers, topic, few_ends),
            [many, few],
            f"max.poll.records={MAX_POLL_RECORDS} on both sides",
        )
        row(
            "Consumer.poll of 100 B, 4 partitions, rival tuned",
            rivals.CONFLUENT,
            None,
            lambda: poll(bootstrap_servers, topic, ends, FETCH_BYTES),
            lambda: rivals.confluent_read(bootstrap_servers, topic, ends, rivals.TUNED_FETCH),
            [many, many],
            SAME_FETCH,
        )
        for collects in (True, False):
            row(
                "Consumer.poll_arrow of 100 B, 4 partitions, rival tuned"
                + ("" if collects else ", no garbage collector"),
                rivals.CONFLUENT,
                ARROW_TARGET if collects else None,
                lambda: poll_arrow(bootstrap_servers, topic, ends, FETCH_BYTES),
                lambda: rivals.confluent_read(bootstrap_servers, topic, ends, rivals.TUNED_FETCH),
                [many, many],
                f"{SAME_FETCH}; its CRC check is off, as by default, ours on",
                collects=collects,
            )
    finally:
        remove_topic(bootstrap_servers, topic)

    topic = "bench-library-write"
    some = data.values.slice(0, count // _SEND_SHARE)
    values = some.to_pylist()
    with open_cluster(bootstrap_servers) as cluster:
        make_topic(cluster, topic, PARTITIONS)

    def counted(number: int, work: Callable[[], float], partitions: int = PARTITIONS) -> float:
        before = records_in(bootstrap_servers, topic, partitions)
        seconds = work()
        written = records_in(bootstrap_servers, topic, partitions) - before
        assert written == number, f"{written} records of {number} in {topic}"
        return seconds

    few_values = values[:few]

    def written(work: Callable[[], float], partitions: int = PARTITIONS) -> None:
        nonlocal checks
        checks = write_checks(bootstrap_servers, topic, partitions, values, work)

    try:
        written(lambda: send(bootstrap_servers, topic, values))
        row(
            "Producer.send of 100 B, 4 partitions",
            rivals.KAFKA_PYTHON,
            SEND_TARGET,
            lambda: counted(len(values), lambda: send(bootstrap_servers, topic, values)),
            lambda: counted(
                len(few_values),
                lambda: rivals.kafka_python_write(bootstrap_servers, topic, few_values, PARTITIONS),
            ),
            [len(values), len(few_values)],
        )
        row(
            "Producer.send of 100 B, 4 partitions",
            rivals.CONFLUENT,
            None,
            lambda: counted(len(values), lambda: send(bootstrap_servers, topic, values)),
            lambda: counted(
                len(values),
                lambda: rivals.confluent_write(bootstrap_servers, topic, values, PARTITIONS),
            ),
            [len(values), len(values)],
        )
        table = pa.table({"value": data.values})
        written(lambda: send_table(bootstrap_servers, topic, pa.table({"value": some})))
        row(
            "Producer.send_table of 100 B, 4 partitions",
            rivals.CONFLUENT,
            None,
            lambda: counted(count, lambda: send_table(bootstrap_servers, topic, table)),
            lambda: counted(
                len(values),
                lambda: rivals.confluent_write(bootstrap_servers, topic, values, PARTITIONS),
            ),
            [count, len(values)],
        )
    finally:
        remove_topic(bootstrap_servers, topic)

    rows += all_core_rows(bootstrap_servers, quick=quick, say=say)
    rows += small_rows(bootstrap_servers, quick=quick, say=say)
    from tests.bench.aio_rows import aio_rows  # aiokafka is installed for benchmarks only

    rows += aio_rows(bootstrap_servers, quick=quick, say=say)

    topic = "bench-library-write-wide"
    wide = WIDE_PARTITIONS
    with open_cluster(bootstrap_servers) as cluster:
        make_topic(cluster, topic, wide)
    try:
        written(lambda: send(bootstrap_servers, topic, values, wide), wide)
        row(
            f"Producer.send of 100 B, {wide} partitions",
            rivals.KAFKA_PYTHON,
            None,
            lambda: counted(
                len(values), lambda: send(bootstrap_servers, topic, values, wide), wide
            ),
            lambda: counted(
                len(few_values),
                lambda: rivals.kafka_python_write(bootstrap_servers, topic, few_values, wide),
                wide,
            ),
            [len(values), len(few_values)],
        )
        row(
            f"Producer.send of 100 B, {wide} partitions",
            rivals.CONFLUENT,
            None,
            lambda: counted(
                len(values), lambda: send(bootstrap_servers, topic, values, wide), wide
            ),
            lambda: counted(
                len(values),
                lambda: rivals.confluent_write(bootstrap_servers, topic, values, wide),
                wide,
            ),
            [len(values), len(values)],
        )
    finally:
        remove_topic(bootstrap_servers, topic)
    return rows


def all_core_rows(bootstrap_servers: str, *, quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Rows of reading with all cores, which the broker has too: records, and columns."""
    count = (24 if quick else 64) * SEND_ROWS
    data = columns(str(ALL_CORES_BYTES), count * (ALL_CORES_BYTES + _BYTES_PER_RECORD) + 1)
    rows: list[Row] = []
    for partitions in (1, PARTITIONS):
        topic = f"bench-library-read-all-cores-{partitions}"
        ends = dict.fromkeys(range(partitions), count // partitions)
        with open_cluster(bootstrap_servers) as cluster:
            make_topic(cluster, topic, partitions)
        try:
            write(bootstrap_servers, topic, data, KILO_BATCH, partitions)
            checks = read_checks(bootstrap_servers, topic, data.values, partitions)
            for name, ours in (("poll", poll), ("poll_arrow", poll_arrow)):
                made = Row(
                    "client library",
                    f"Consumer.{name} of {ALL_CORES_BYTES} B, {partitions} "
                    f"partition{'s' if partitions > 1 else ''}, rival tuned, all cores",
                    "records/s",
                    rivals.CONFLUENT,
                    [count, count],
                    target=ALL_CORES_TARGET,
                    target_kind="absolute",
                    note=SAME_FETCH,
                    checks=checks,
                )
                rows.append(
                    take_turns(
                        made,
                        lambda ours=ours, topic=topic, ends=ends: ours(  # type: ignore[misc]
                            bootstrap_servers, topic, ends, FETCH_BYTES
                        ),
                        lambda topic=topic, ends=ends: rivals.confluent_read(  # type: ignore[misc]
                            bootstrap_servers, topic, ends, rivals.TUNED_FETCH
                        ),
                        2 if quick else 5,
                        say,
                        collects=True,
                    )
                )
        finally:
            remove_topic(bootstrap_servers, topic)
    return rows


def small_rows(bootstrap_servers: str, *, quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Rows of small sends: one record at a time, and loops of `send` with default batches."""
    topic = "bench-library-small"
    lone, many = (300, 50_000) if quick else (1_000, 200_000)
    pairs = 2 if quick else 5
    value = bytes(VALUE_BYTES)
    values = [value] * many
    rivals_lone = {
        rivals.CONFLUENT: rivals.confluent_send_each,
        rivals.KAFKA_PYTHON: rivals.kafka_python_send_each,
    }
    rivals_loop = {
        rivals.CONFLUENT: rivals.confluent_send_loop,
        rivals.KAFKA_PYTHON: rivals.kafka_python_send_loop,
    }
    rows: list[Row] = []
    with open_cluster(bootstrap_servers) as cluster:
        make_topic(cluster, topic, 1)
    try:
        checks = write_checks(
            *(bootstrap_servers, topic, 1, [value] * (lone + 1)),
            lambda: send_each(bootstrap_servers, topic, value, lone),
        )
        for rival, each in rivals_lone.items():
            made = Row(
                "client library",
                "send().result() of 100 B, one after the other, linger.ms=0",
                "records/s",
                rival,
                [lone, lone],
                target=LONE_TARGET if rival == rivals.CONFLUENT else None,
                checks=checks,
            )
            rows.append(
                take_turns(
                    made,
                    lambda: send_each(bootstrap_servers, topic, value, lone),
                    lambda each=each: each(bootstrap_servers, topic, value, lone),  # type: ignore[misc]
                    pairs,
                    say,
                )
            )
        for rival, loop in rivals_loop.items():
            few = values if rival == rivals.CONFLUENT else values[: many // 4]
            for name, ours in (("send", send_loop), ("send_many", send_series)):
                # A first record opens the connection, before the time is taken.
                checks = write_checks(
                    *(bootstrap_servers, topic, 1, [value, *values]),
                    lambda ours=ours: ours(bootstrap_servers, topic, values),  # type: ignore[misc]
                )
                made = Row(
                    "client library",
                    f"{name} of 100 B, default batches, acks=1",
                    "records/s",
                    rival,
                    [many, len(few)],
                    checks=checks,
                    note="send of confluent-kafka and kafka-python in a loop",
                )
                rows.append(
                    take_turns(
                        made,
                        lambda ours=ours: ours(bootstrap_servers, topic, values),  # type: ignore[misc]
                        lambda loop=loop, few=few: loop(bootstrap_servers, topic, few),  # type: ignore[misc]
                        pairs,
                        say,
                    )
                )
    finally:
        remove_topic(bootstrap_servers, topic)
    return rows


def send_each(bootstrap_servers: str, topic: str, value: bytes, count: int) -> float:
    """Seconds until all records are acknowledged, each sent after the one before."""
    with Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0}) as producer:
        producer.send(topic, value).result(_LIMIT_S)
        begin = time.perf_counter()
        for _ in range(count):
            producer.send(topic, value).result(_LIMIT_S)
        return time.perf_counter() - begin


def _small_producer(bootstrap_servers: str) -> Producer:
    config = {"bootstrap.servers": bootstrap_servers, "acks": 1, "enable.idempotence": False}
    return Producer(config)


def send_loop(bootstrap_servers: str, topic: str, values: list[bytes]) -> float:
    """Seconds until all values are acknowledged, with default batches and acks=1."""
    with _small_producer(bootstrap_servers) as producer:
        producer.send(topic, values[0]).result(_LIMIT_S)
        begin = time.perf_counter()
        for value in values:
            producer.send(topic, value)
        producer.flush(_LIMIT_S)
        return time.perf_counter() - begin


def send_series(bootstrap_servers: str, topic: str, values: list[bytes]) -> float:
    """As `send_loop`, 1,000 values in each call of send_many."""
    with _small_producer(bootstrap_servers) as producer:
        producer.send(topic, values[0]).result(_LIMIT_S)
        begin = time.perf_counter()
        for low in range(0, len(values), 1_000):
            producer.send_many(topic, values[low : low + 1_000])
        producer.flush(_LIMIT_S)
        return time.perf_counter() - begin


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Threads that are started meanwhile share one core with this one."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _consumer(
    bootstrap_servers: str, topic: str, ends: Mapping[int, int], fetch_bytes: int
) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "auto.offset.reset": "earliest",
            "max.poll.records": MAX_POLL_RECORDS,
            "max.partition.fetch.bytes": fetch_bytes,
        }
    )
    consumer.assign([TopicPartition(topic, partition) for partition in ends])
    return consumer


def poll(
    bootstrap_servers: str, topic: str, ends: Mapping[int, int], fetch_bytes: int = 1 << 20
) -> float:
    """Seconds to have all records of a topic in hand, and to look at key, value and offset."""
    left, begin = sum(ends.values()), time.perf_counter()
    with _consumer(bootstrap_servers, topic, ends, fetch_bytes) as consumer:
        while left > 0:
            for record in consumer.poll(1.0):
                record.key, record.value, record.offset  # noqa: B018
                left -= 1
            _check_time(begin, left, topic)
        return time.perf_counter() - begin


def poll_arrow(
    bootstrap_servers: str, topic: str, ends: Mapping[int, int], fetch_bytes: int
) -> float:
    """The same as Arrow tables; the values, all of one size, are measured."""
    left, begin, size_bytes = sum(ends.values()), time.perf_counter(), 0
    with _consumer(bootstrap_servers, topic, ends, fetch_bytes) as consumer:
        while left > 0:
            table = consumer.poll_arrow(1.0)
            left -= table.num_rows
            if table.num_rows:
                size_bytes += pc.sum(pc.binary_length(table["value"])).as_py()
            _check_time(begin, left, topic)
        seconds = time.perf_counter() - begin
    assert size_bytes and size_bytes % sum(ends.values()) == 0
    return seconds


def _producer(bootstrap_servers: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "linger.ms": rivals.LINGER_MS,
            "batch.size": rivals.BATCH_BYTES,
        }
    )


def send(
    bootstrap_servers: str, topic: str, values: list[bytes], partitions: int = PARTITIONS
) -> float:
    """Seconds until all values, in turn to each partition, are acknowledged."""
    begin = time.perf_counter()
    with _producer(bootstrap_servers) as producer:
        send = producer.send
        for number, value in enumerate(values):
            send(topic, value, partition=number % partitions)
        producer.flush(_LIMIT_S)
        return time.perf_counter() - begin


def send_table(bootstrap_servers: str, topic: str, table: pa.Table) -> float:
    begin = time.perf_counter()
    with _producer(bootstrap_servers) as producer:
        for low in range(0, table.num_rows, SEND_ROWS):
            producer.send_table(table.slice(low, SEND_ROWS), topic=topic)
        producer.flush(_LIMIT_S)
        return time.perf_counter() - begin


def _check_time(begin: float, left: int, topic: str) -> None:
    if time.perf_counter() - begin > _LIMIT_S:
        raise TimeoutError(f"{left} records of {topic} did not come")
