"""Second clients: what confluent-kafka and kafka-python write and see, as plain rows.

A row is (partition, offset, timestamp type, timestamp ms, key, value, headers); headers are a tuple
of (name, value) pairs, None when the record has none.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import confluent_kafka
import kafka

from sparkkafka.client import Admin
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.offsets import OffsetLookup
from sparkkafka.client.consumer.range_reader import PlannedRange, RangeReader
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import UnsupportedVersionError
from sparkkafka.protocol.columns.columns import Selection
from sparkkafka.protocol.messages import FetchPartition, FetchRequest, FetchTopic
from sparkkafka.protocol.records.batches import split_batches
from tests.support.options import parse_client_options, parse_fetch_options
from tests.support.waiting import wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
WAIT_S = 30.0


class Row(NamedTuple):
    partition: int
    offset: int
    timestamp_type: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None


class Record(NamedTuple):
    """What a test asks a producer to write."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 1_700_000_000_000


def mixed_records(count: int = 300) -> list[Record]:
    """Nulls, empties, tombstones, headers, several sizes, timestamps that go back and forth."""
    records = []
    for i in range(count):
        key = [None, b"", f"key-{i % 17}".encode(), b"k" * (i % 300)][i % 4]
        value = [f"value {i}".encode(), b"", b"\x00\xff" * (i * 3), None][(i // 4) % 4]
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if i % 3 == 0:
            headers = (("trace", b"id-%d" % i), ("twice", b"1"), ("twice", None), ("", b""))
        records.append(Record(key, value, headers, 1_700_000_000_000 + (i * 37) % 1000 - 500))
    return records


# --- confluent-kafka (librdkafka) ----------------------------------------------------------------


def confluent_write(
    bootstrap: str, topic: str, records: Iterable[Record], partition: int = 0, **config: Any
) -> None:
    # A broker may refuse the first batches of a new topic (it is told of its leadership after the
    # metadata shows it); with more than one in flight the next ones would overtake them.
    settings = {"bootstrap.servers": bootstrap, "max.in.flight.requests.per.connection": 1} | {
        name.replace("_", "."): value for name, value in config.items()
    }
    producer = confluent_kafka.Producer(settings)
    for record in records:
        producer.produce(
            topic,
            key=record.key,
            value=record.value,
            headers=list(record.headers) or None,
            partition=partition,
            timestamp=record.timestamp_ms,
        )
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0


def confluent_transaction(
    bootstrap: str, topic: str, transactional_id: str, batches: Iterable[tuple[bool, list[Record]]]
) -> None:
    """Write each batch in a transaction of its own, committed (True) or aborted (False), and
    wait for the markers."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 1}
    )
    producer.init_transactions(WAIT_S)
    for commit, records in batches:
        producer.begin_transaction()
        for record in records:
            producer.produce(
                topic,
                key=record.key,
                value=record.value,
                partition=0,
                timestamp=record.timestamp_ms,
            )
        assert producer.flush(WAIT_S) == 0
        if commit:
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)
    wait_for_markers(bootstrap)


def confluent_read(
    bootstrap: str, topic: str, partitions: int = 1, isolation: str = "read_uncommitted"
) -> list[Row]:
    """Everything in the topic up to the end offsets of now, ordered by partition and offset; with
    read_committed all transactions that are committed now."""
    if isolation == "read_committed":
        wait_for_markers(bootstrap)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "second-client",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "check.crcs": True,
            "fetch.wait.max.ms": 10,
        }
    )
    rows: list[Row] = []
    try:
        # Else it asks a leader that it does not know yet for the offset, again after half a second.
        consumer.list_topics(topic, WAIT_S)
        consumer.assign(
            [
                confluent_kafka.TopicPartition(topic, p, confluent_kafka.OFFSET_BEGINNING)
                for p in range(partitions)
            ]
        )
        open_partitions = set(range(partitions))
        until = time.monotonic() + 2 * WAIT_S
        while open_partitions:
            assert time.monotonic() < until, f"confluent-kafka did not reach the end of {topic}"
            # Not `consume`, which waits for as many records as it may return.
            if (message := consumer.poll(0.5)) is None:
                continue
            if (error := message.error()) is None:
                rows.append(_confluent_row(message))
            else:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                open_partitions.discard(message.partition())
    finally:
        consumer.close()
    return sorted(rows, key=lambda row: row[:2])


def wait_for_markers(bootstrap: str) -> None:
    """Wait until each decided transaction has its markers: brokers answer EndTxn before they write
    them, and until then a reader's last stable offset is where the transaction begins."""
    with Admin({"bootstrap.servers": bootstrap}) as admin, suppress(UnsupportedVersionError):
        wait_until(
            lambda: not admin.list_transactions(states=["PrepareCommit", "PrepareAbort"]),
            "markers are written",
        )


def _confluent_row(message: Any) -> Row:
    # librdkafka counts timestamp types from 0 = not available; Kafka's own start at -1.
    kind, timestamp = message.timestamp()
    headers = message.headers()
    return Row(
        message.partition(),
        message.offset(),
        kind - 1,
        timestamp,
        message.key(),
        message.value(),
        tuple((name, value) for name, value in headers) if headers else None,
    )


# --- kafka-python --------------------------------------------------------------------------------


def for_kafka_python(records: Iterable[Record]) -> list[Record]:
    """The records that kafka-python agrees to write: a key or a value, and no null in headers."""
    return [
        record._replace(
            key=b"" if record.key is None and record.value is None else record.key,
            headers=tuple((name, value or b"") for name, value in record.headers),
        )
        for record in records
    ]


def kafka_python_write(
    bootstrap: str,
    topic: str,
    records: Iterable[Record],
    codec: str = "none",
    partition: int = 0,
    **config: Any,
) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        **config,
    )
    try:
        futures = [
            producer.send(
                topic,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                partition=partition,
                timestamp_ms=record.timestamp_ms,
            )
            for record in for_kafka_python(records)
        ]
        producer.flush(WAIT_S)
        for future in futures:
            future.get(WAIT_S)
    finally:
        producer.close()


def kafka_python_read(bootstrap: str, topic: str, partitions: int = 1) -> list[Row]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, check_crcs=True
    )
    rows: list[Row] = []
    try:
        assigned = [kafka.TopicPartition(topic, p) for p in range(partitions)]
        consumer.assign(assigned)
        consumer.seek_to_beginning(*assigned)
        ends = consumer.end_offsets(assigned)
        until = time.monotonic() + 2 * WAIT_S
        while any(consumer.position(tp) < ends[tp] for tp in assigned):
            assert time.monotonic() < until, f"kafka-python did not reach the end of {topic}"
            for messages in consumer.poll(timeout_ms=500).values():
                rows.extend(
                    Row(
                        m.partition,
                        m.offset,
                        m.timestamp_type,
                        m.timestamp,
                        m.key,
                        m.value,
                        tuple((name, value) for name, value in m.headers) if m.headers else None,
                    )
                    for m in messages
                )
    finally:
        consumer.close()
    return sorted(rows, key=lambda row: row[:2])


# --- ours ----------------------------------------------------------------------------------------


def our_rows(bootstrap: str, topic: str, partitions: int = 1, **config: Any) -> Iterator[Row]:
    """The same rows through sparkkafka.client."""
    settings = {"bootstrap.servers": bootstrap} | {
        name.replace("_", "."): value for name, value in config.items()
    }
    fetch = parse_fetch_options(settings)
    with Cluster(parse_client_options(settings)) as cluster:
        tps = [TopicPartition(topic, p) for p in range(partitions)]
        level = fetch.isolation_level
        first, end = OffsetLookup(cluster, level).earliest_and_latest(tps)
        end = OffsetLookup(cluster, level).confirmed_ends(end)
        for tp in tps:
            ranges = {tp: PlannedRange(Selection(first[tp], end[tp]))}
            with RangeReader(cluster, ranges, fetch, poll_timeout_ms=20_000) as reader:
                for _, records in reader:
                    yield from rows_of(tp.partition, records)


def codecs_in(bootstrap: str, topic: str, partitions: int = 1) -> set[str]:
    """How the first batches of each partition are compressed: a producer may have chosen not to."""
    found = set()
    with Cluster(parse_client_options({"bootstrap.servers": bootstrap})) as cluster:
        for partition in range(partitions):
            leader = cluster.topics([topic])[topic].partitions[partition].leader
            wanted = FetchPartition(
                partition=partition, fetch_offset=0, partition_max_bytes=1_000_000
            )
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                topics=[FetchTopic(topic=topic, partitions=[wanted])],
            )
            deadline = cluster.deadline()
            response = cluster.connection(leader, deadline).call(request, deadline)
            (row,) = response.responses[0].partitions
            found |= {batch.codec.name.lower() for batch in split_batches(row.records)}
    return found


def rows_of(partition: int, records: Any) -> Iterator[Row]:
    keys, values = records.keys.to_pylist(), records.values.to_pylist()
    headers = records.headers.to_pylist()
    types = records.timestamp_types
    for i, offset in enumerate(records.offsets.tolist()):
        yield Row(
            partition,
            offset,
            int(types[i]),
            int(records.timestamps_ms[i]),
            keys[i],
            values[i],
            tuple((h["key"], h["value"]) for h in headers[i]) if headers[i] is not None else None,
        )
