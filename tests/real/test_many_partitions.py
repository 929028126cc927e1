"""Thousands of partitions over one Producer and one Consumer; figures: docs/performance.md.

The long form has 10,000. The broker's data lie in memory where there is a place for that: on a slow
disk the broker takes minutes to make so many logs, and refuses records for those it has not made.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from sparkkafka.testing.kafka.cluster import KafkaCluster

pytestmark = pytest.mark.real

TOPIC = "wide"
EACH = 10  # records of each partition
VALUE_BYTES = 100
MAX_MADE_AT_ONCE = 5_000  # KRaft refuses 10,000 changes in one request
WAIT_S = 240.0

SMALL_FILES = {
    "log.index.size.max.bytes": 4096,
    "log.segment.bytes": 16 << 20,
    "offsets.topic.num.partitions": 1,
}

_IN_MEMORY = Path("/dev/shm")


@pytest.fixture(
    scope="module", params=[1_000, pytest.param(10_000, marks=pytest.mark.soak)], ids=str
)
def wide(request: Any) -> Iterator[tuple[str, int]]:
    """Address and number of partitions of a topic that is filled."""
    partitions = request.param
    before = tempfile.tempdir
    if _IN_MEMORY.is_dir() and os.access(_IN_MEMORY, os.W_OK):
        tempfile.tempdir = str(_IN_MEMORY)
    try:
        with KafkaCluster(heap_mb=2_048, properties=SMALL_FILES) as cluster:
            address = cluster.bootstrap_servers
            with Admin({"bootstrap.servers": address}) as admin:
                first = min(partitions, MAX_MADE_AT_ONCE)
                admin.create_topics([NewTopic(TOPIC, partitions=first)]).all()
                if partitions > first:
                    admin.create_partitions({TOPIC: partitions}).all()
            fill(address, partitions)
            yield address, partitions
    finally:
        tempfile.tempdir = before


def fill(address: str, partitions: int) -> None:
    begin_s = time.monotonic()
    with Producer({"bootstrap.servers": address}) as producer:
        handles = [
            producer.send(TOPIC, value(partition, turn), partition=partition)
            for turn in range(EACH)
            for partition in range(partitions)
        ]
        producer.flush(WAIT_S)
        sent = producer.metrics()["producer-metrics"]["record-send-total"]
        assert sent >= EACH * partitions  # what was sent again counts again
    tell(f"{partitions} partitions written", begin_s)
    for number, handle in enumerate(handles):
        written = handle.result(0)
        assert (written.partition, written.offset) == (number % partitions, number // partitions)


def value(partition: int, turn: int) -> bytes:
    return (b"%d/%d" % (partition, turn)).ljust(VALUE_BYTES, b".")


def tell(what: str, begin_s: float) -> None:
    """Figures for those who look (`pytest -s`)."""
    facts = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    memory_mb = int(facts["VmRSS"].split()[0]) // 1024
    print(f"{what}: {time.monotonic() - begin_s:.1f} s, {memory_mb} MB in memory")


def consumer(address: str, **config: Any) -> Consumer:
    settings = {"bootstrap.servers": address, "auto.offset.reset": "earliest"}
    return Consumer(settings | {name.replace("_", "."): text for name, text in config.items()})


def all_of(partitions: int) -> list[TopicPartition]:
    return [TopicPartition(TOPIC, number) for number in range(partitions)]


def assigned(address: str, partitions: int) -> Consumer:
    opened = consumer(address)
    opened.assign(all_of(partitions))
    return opened


def subscribed(address: str, _: int) -> Consumer:
    opened = consumer(address, group_id="many")
    opened.subscribe([TOPIC])
    return opened


@pytest.mark.parametrize("opened", [assigned, subscribed])
def test_one_consumer_reads_all_of_it(
    wide: tuple[str, int], opened: Callable[[str, int], Consumer]
) -> None:
    address, partitions = wide
    begin_s = time.monotonic()
    positions = [0] * partitions
    with opened(address, partitions) as source:
        left = EACH * partitions
        while left:
            assert time.monotonic() - begin_s < WAIT_S, f"{left} records did not come"
            for record in source.poll(1.0):
                assert record.offset == positions[record.partition]
                assert record.value == value(record.partition, record.offset)
                positions[record.partition] += 1
                left -= 1
        tell(f"{partitions} partitions, {opened.__name__}, poll", begin_s)
        if opened is subscribed:
            begin_s = time.monotonic()
            source.commit()
            committed = source.committed(all_of(partitions))
            assert {row and row.offset for row in committed.values()} == {EACH}
            assert len(committed) == partitions
            tell(f"{partitions} offsets committed and asked for", begin_s)
    assert positions == [EACH] * partitions


def test_one_consumer_reads_all_of_it_as_tables(wide: tuple[str, int]) -> None:
    address, partitions = wide
    begin_s = time.monotonic()
    found: set[tuple[int, int]] = set()
    with assigned(address, partitions) as source:
        while len(found) < EACH * partitions:
            assert time.monotonic() - begin_s < WAIT_S, f"{len(found)} records came"
            table = source.poll_arrow(1.0)
            rows = list(
                zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)
            )
            found.update(rows)
            for row, content in zip(rows, table["value"].to_pylist(), strict=True):
                assert content == value(*row)
    tell(f"{partitions} partitions, poll_arrow", begin_s)
    assert found == {(number, turn) for number in range(partitions) for turn in range(EACH)}
