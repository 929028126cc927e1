"""The client without Spark, beside confluent-kafka and kafka-python: decoding and encoding on one
core, then reading from and writing to a broker. `python tests/bench/client_rows.py [--quick]`
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping

import pyarrow as pa

from sparkkafka.client.consumer.range_reader import PlannedRange, RangeReader
from sparkkafka.client.values import TopicPartition
from sparkkafka.protocol.columns.columns import Selection
from sparkkafka.protocol.columns.encode import RecordColumns
from sparkkafka.testing.kafka.cluster import KafkaCluster
from tests.bench import checks, rivals
from tests.bench.codec_rows import KILO_BATCH, MEGA_BATCH, WANTED, codec_rows, columns, cut
from tests.bench.data import make_topic, open_cluster, records_in, remove_topic
from tests.bench.results import WRITTEN, Row
from tests.bench.turns import take_turns
from tests.support.options import parse_fetch_options, parse_producer_options
from tests.support.partition_producer import PartitionProducer

PARTITIONS = 4
SEND_ROWS = 16384
CONFLUENT_TARGET, KAFKA_PYTHON_TARGET = 4.0, 12.0  # reading values of 100 B
_POLL_TIMEOUT_MS = 60_000
_DEFAULT_QUEUE_RECORDS = PARTITIONS * 100_000  # below, librdkafka's defaults do not hold it back
_BYTES_PER_RECORD = 8  # that `columns` counts besides the value

_NAMES = {100: "100 B", 1000: "1 KB"}

# By size of values: records that ours and confluent-kafka, and that kafka-python reads or writes.
_FULL = {100: (64 * SEND_ROWS, 60_000), 1000: (12 * SEND_ROWS, 24_000)}
_QUICK = {100: (12 * SEND_ROWS, 16_000), 1000: (4 * SEND_ROWS, 6_000)}


def client_rows(bootstrap_servers: str, *, quick: bool, say: Callable[[str], None]) -> list[Row]:
    """All rows of the group "client". Makes topics and deletes them."""
    return [
        *codec_rows(quick=quick, say=say),
        *broker_rows(bootstrap_servers, quick=quick, say=say),
    ]


def broker_rows(bootstrap_servers: str, *, quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Reading and writing."""
    rows = []
    for value_bytes, (many, few) in (_QUICK if quick else _FULL).items():
        data = columns(str(value_bytes), many * (value_bytes + _BYTES_PER_RECORD) + 1)
        pairs = _Pairs(bootstrap_servers, value_bytes, data, few, 2 if quick else 3, say)
        for batch_name, batch_bytes in (("16 KB", KILO_BATCH), ("1 MB", MEGA_BATCH)):
            if batch_bytes == KILO_BATCH or value_bytes == 100:
                rows += pairs.read(batch_name, batch_bytes)
        rows += pairs.write()
    return rows


class _Pairs:
    """Rows of one size of values. `few` records are enough for kafka-python, which is slow."""

    def __init__(
        self,
        bootstrap: str,
        value_bytes: int,
        data: RecordColumns,
        few: int,
        pairs: int,
        say: Callable[[str], None],
    ) -> None:
        self._bootstrap = bootstrap
        self._value_bytes = value_bytes
        self._data = data
        self._count = len(data.timestamps_ms)
        self._few = few
        self._pairs = pairs
        self._say = say

    def read(self, batch_name: str, batch_bytes: int) -> list[Row]:
        topic = f"bench-client-read-{self._value_bytes}-{batch_bytes}"
        what = f"read {_NAMES[self._value_bytes]}, {batch_name} batches, {PARTITIONS} partitions"
        wanted = self._value_bytes == 100
        with open_cluster(self._bootstrap) as cluster:
            make_topic(cluster, topic, PARTITIONS)
        try:
            write(self._bootstrap, topic, self._data, batch_bytes)
            ends = dict.fromkeys(range(PARTITIONS), self._count // PARTITIONS)
            few_ends = dict.fromkeys(ends, self._few // PARTITIONS)

            found = read_checks(self._bootstrap, topic, self._data.values)

            def ours() -> float:
                return read(self._bootstrap, topic, ends)

            def confluent(config: Mapping[str, object]) -> Callable[[], float]:
                return lambda: rivals.confluent_read(self._bootstrap, topic, ends, config)

            def kafka_python() -> float:
                return rivals.kafka_python_read(self._bootstrap, topic, few_ends)

            many = [sum(ends.values())] * 2
            few = [many[0], sum(few_ends.values())]
            target = CONFLUENT_TARGET if wanted else None
            tuning = ", ".join(f"{name}={value}" for name, value in rivals.TUNED_FETCH.items())
            tuned = confluent(rivals.TUNED_FETCH)
            note = f"{tuning}; its CRC check is off, as by default, ours on"
            rows = [
                self._row(
                    *(f"{what}, rival tuned", rivals.CONFLUENT, tuned, ours, many, found),
                    *(target, note, rivals.TUNED_FETCH),
                )
            ]
            if batch_bytes != KILO_BATCH:
                return rows
            if self._count > _DEFAULT_QUEUE_RECORDS:
                note = "its defaults; its CRC check is off, ours on"
                plain = confluent({})
                rows.append(
                    self._row(what, rivals.CONFLUENT, plain, ours, many, found, target, note)
                )
            target = KAFKA_PYTHON_TARGET if wanted else None
            rows.append(
                self._row(what, rivals.KAFKA_PYTHON, kafka_python, ours, few, found, target)
            )
            return rows
        finally:
            remove_topic(self._bootstrap, topic)

    def write(self) -> list[Row]:
        topic = f"bench-client-write-{self._value_bytes}"
        what = f"write {_NAMES[self._value_bytes]}, {PARTITIONS} partitions"
        values = self._data.values.to_pylist()
        with open_cluster(self._bootstrap) as cluster:
            make_topic(cluster, topic, PARTITIONS)

        def counted(count: int, work: Callable[[], float]) -> float:
            before = records_in(self._bootstrap, topic, PARTITIONS)
            seconds = work()
            written = records_in(self._bootstrap, topic, PARTITIONS) - before
            assert written == count, f"{written} records of {count} in {topic}"
            return seconds

        def ours() -> float:
            return counted(
                self._count,
                lambda: write(self._bootstrap, topic, self._data, rivals.BATCH_BYTES),
            )

        def confluent() -> float:
            return counted(
                self._count,
                lambda: rivals.confluent_write(self._bootstrap, topic, values, PARTITIONS),
            )

        some = values[: self._few]

        def kafka_python() -> float:
            return counted(
                self._few,
                lambda: rivals.kafka_python_write(self._bootstrap, topic, some, PARTITIONS),
            )

        try:
            found = write_checks(self._bootstrap, topic, PARTITIONS, values, ours)
            work = [self._count, self._count]
            few = [self._count, len(some)]
            return [
                self._row(what, rivals.CONFLUENT, confluent, ours, work, found),
                self._row(what, rivals.KAFKA_PYTHON, kafka_python, ours, few, found),
            ]
        finally:
            remove_topic(self._bootstrap, topic)

    def _row(
        self,
        name: str,
        rival: str,
        theirs: Callable[[], float],
        ours: Callable[[], float],
        work: list[float],
        found: dict[str, list[int | None]],
        target: float | None = None,
        note: str = "",
        settings: Mapping[str, object] | None = None,
    ) -> Row:
        row = Row("client", name, "records/s", rival, work, target=target, note=note)
        row.checks = found
        row.settings = {rival: {name: str(value) for name, value in (settings or {}).items()}}
        return take_turns(row, ours, theirs, self._pairs, self._say)


def read_checks(
    bootstrap_servers: str, topic: str, values: pa.Array, partitions: int = PARTITIONS
) -> dict[str, list[int | None]]:
    """What was written to a topic and what both sides read of it."""
    ends = checks.ends(bootstrap_servers, topic, partitions)
    options = parse_fetch_options({"bootstrap.servers": bootstrap_servers})
    ours: list[bytes] = []
    with open_cluster(bootstrap_servers) as cluster:
        for partition, end in ends.items():
            planned = {TopicPartition(topic, partition): PlannedRange(Selection(0, end, WANTED))}
            with RangeReader(cluster, planned, options, poll_timeout_ms=_POLL_TIMEOUT_MS) as reader:
                for _, records in reader:
                    ours += records.values.to_pylist()
    found = {WRITTEN: checks.sums(values.to_pylist()), "pykafka": checks.sums(ours)}
    found |= checks.read_back(bootstrap_servers, topic, dict.fromkeys(ends, 0))
    checks.compare(found, topic)
    return found


def write_checks(
    bootstrap_servers: str,
    topic: str,
    partitions: int,
    values: list[bytes],
    write: Callable[[], object],
) -> dict[str, list[int | None]]:
    """What a run of `write` writes, and what confluent-kafka reads back of it."""
    starts = checks.ends(bootstrap_servers, topic, partitions)
    write()
    found = {WRITTEN: checks.sums(values)}
    found |= checks.read_back(bootstrap_servers, topic, starts)
    checks.compare(found, topic)
    return found


def read(bootstrap_servers: str, topic: str, ends: Mapping[int, int]) -> float:
    """Seconds to read offsets [0, end) of each partition, one after the other."""
    count = 0
    begin = time.perf_counter()
    with open_cluster(bootstrap_servers) as cluster:
        options = parse_fetch_options({"bootstrap.servers": bootstrap_servers})
        for partition, end in ends.items():
            planned = {TopicPartition(topic, partition): PlannedRange(Selection(0, end, WANTED))}
            with RangeReader(cluster, planned, options, poll_timeout_ms=_POLL_TIMEOUT_MS) as reader:
                count += sum(len(records) for _, records in reader)
    seconds = time.perf_counter() - begin
    assert count == sum(ends.values()), f"{count} records of {topic}, not {sum(ends.values())}"
    return seconds


def write(
    bootstrap_servers: str,
    topic: str,
    data: RecordColumns,
    batch_bytes: int,
    partitions: int = PARTITIONS,
) -> float:
    """Seconds until all records, in turn to each partition, are acknowledged."""
    begin = time.perf_counter()
    options = parse_producer_options(
        {
            "bootstrap.servers": bootstrap_servers,
            "batch.size": str(batch_bytes),
            "linger.ms": str(rivals.LINGER_MS),
        }
    )
    with (
        open_cluster(bootstrap_servers) as cluster,
        PartitionProducer(cluster, options) as producer,
    ):
        for turn, low in enumerate(range(0, len(data.timestamps_ms), SEND_ROWS)):
            producer.send(topic, turn % partitions, cut(data, low, SEND_ROWS))
        producer.flush()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less data, fewer pairs")
    quick = parser.parse_args().quick

    def say(text: str) -> None:
        print(f"{time.monotonic() - started_s:5.0f} s  {text}", flush=True)

    with KafkaCluster() as cluster:
        started_s = time.monotonic()
        rows = client_rows(cluster.bootstrap_servers, quick=quick, say=say)
        print(f"{len(rows)} rows in {time.monotonic() - started_s:.0f} s")


if __name__ == "__main__":
    main()
