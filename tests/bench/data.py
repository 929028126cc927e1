"""Topics to read: made by this package's own producer, a block of columns at a time.

Values are words as in a log line, which codecs shrink two- to fourfold; keys are 8 hex digits.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sparkkafka.client import Admin
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.offsets import OffsetLookup
from sparkkafka.client.values import TopicPartition
from sparkkafka.protocol.columns.encode import RecordColumns
from tests.support.options import parse_client_options, parse_producer_options
from tests.support.partition_producer import PartitionProducer
from tests.support.topics import create_topic, delete_topic

KILO_BATCH, MEGA_BATCH = 16 * 1024, 1 << 20
KEY_BYTES = 8

_BLOCK_BYTES = 16 << 20  # repeats come later than any codec's window in a batch of 1 MB
_SEND_BYTES = 2 << 20
_MAX_MADE_AT_ONCE = 5_000  # KRaft refuses 10,000 changes in one request
_START_MS = 1_700_000_000_000
_RANDOM_SEED = 1


@dataclass(frozen=True)
class Topic:
    """What a topic holds. `values` is a size in bytes, or the name of a distribution of sizes:
    "uniform" (10 B to 2 KB) or "lognormal" (the same bounds, half of them below 150 B)."""

    values: int | str
    rows: int
    batch_bytes: int = MEGA_BATCH
    codec: str = "none"
    partitions: int = 4

    @property
    def name(self) -> str:
        """Fit for Kafka."""
        return f"bench-{self.values}-{self.batch_bytes}-{self.codec}-{self.partitions}-{self.rows}"


@dataclass(frozen=True)
class Contents:
    """What a whole read of the topic must give."""

    rows: int
    value_bytes: int
    hashes: int
    """The sum of the CRC-32 of all values."""


def value_lengths(values: int | str, count: int) -> np.ndarray:
    """Sizes of `count` values, the same in each call."""
    random = np.random.default_rng(_RANDOM_SEED)
    if values == "uniform":
        return random.integers(10, 2049, count)
    if values == "lognormal":
        return np.clip(random.lognormal(5, 1, count), 10, 2048).astype(np.int64)
    return np.full(count, int(values))


def make_columns(values: int | str, rows: int) -> RecordColumns:
    """At most `rows` records with keys, at most some 16 MB of values."""
    lengths = value_lengths(values, min(rows, _BLOCK_BYTES // 10))
    ends = np.cumsum(lengths)
    count = int(np.searchsorted(ends, _BLOCK_BYTES)) if ends[-1] > _BLOCK_BYTES else len(ends)
    offsets = np.append(0, ends[:count])
    return RecordColumns(
        keys=_binary(np.arange(count + 1) * KEY_BYTES, _hex_digits(count * KEY_BYTES)),
        values=_binary(offsets, _words(int(offsets[-1]))),
        headers=None,
        timestamps_ms=_timestamps_ms(0, count),
    )


def open_cluster(bootstrap_servers: str) -> Cluster:
    return Cluster(parse_client_options({"bootstrap.servers": bootstrap_servers}))


def write_topic(bootstrap_servers: str, topic: Topic) -> Contents:
    """Creates the topic and fills it, as many rows in each partition."""
    config = {
        "bootstrap.servers": bootstrap_servers,
        "batch.size": str(topic.batch_bytes),
        "linger.ms": "60000",  # full batches only
        "compression.type": topic.codec,
        "max.request.size": str(4 << 20),
        "buffer.memory": str(64 << 20),
    }
    rows = value_bytes = hashes = 0
    until = _hashes_until(topic.values)
    options = parse_producer_options(config)
    with open_cluster(bootstrap_servers) as cluster:
        make_topic(cluster, topic.name, min(topic.partitions, _MAX_MADE_AT_ONCE))
    if topic.partitions > _MAX_MADE_AT_ONCE:
        with Admin({"bootstrap.servers": bootstrap_servers}) as admin:
            admin.create_partitions({topic.name: topic.partitions}).all()
    with (
        open_cluster(bootstrap_servers) as cluster,
        PartitionProducer(cluster, options) as producer,
    ):
        for piece in _spans(topic):
            for partition in range(topic.partitions):
                producer.send(topic.name, partition, piece)
                rows += len(piece.timestamps_ms)
                value_bytes += _value_bytes(piece)
                first = piece.values.offset
                hashes += int(until[first + len(piece.values)] - until[first])
        producer.flush()
    return Contents(rows, value_bytes, hashes)


def make_topic(cluster: Cluster, name: str, partitions: int) -> None:
    create_topic(cluster, name, partitions=partitions)


def remove_topic(bootstrap_servers: str, name: str) -> None:
    with open_cluster(bootstrap_servers) as cluster:
        delete_topic(cluster, name)


def records_in(bootstrap_servers: str, name: str, partitions: int) -> int:
    """Records between the first and the end offsets; right for topics without transactions."""
    chosen = [TopicPartition(name, number) for number in range(partitions)]
    with open_cluster(bootstrap_servers) as cluster:
        first, end = OffsetLookup(cluster, "read_uncommitted").earliest_and_latest(chosen)
    return sum(end[tp] - first[tp] for tp in chosen)


def _spans(topic: Topic) -> Iterator[RecordColumns]:
    """One partition's records, in pieces that each go to every partition."""
    block = _block(topic.values)
    block_rows = len(block.timestamps_ms)
    step = max(1, block_rows * _SEND_BYTES // _value_bytes(block))
    rows = left = topic.rows // topic.partitions
    while left:
        for start in range(0, block_rows, step):
            count = min(step, left, block_rows - start)
            if not count:
                return
            yield RecordColumns(
                *(None if column is None else column.slice(start, count) for column in block[:3]),
                _timestamps_ms(rows - left, count),
            )
            left -= count


def timestamp_ms(number: int) -> int:
    """Of the record of that number in each partition; a hundred in a row have the same one."""
    return int(_timestamps_ms(number, 1)[0])


def _timestamps_ms(first: int, count: int) -> np.ndarray:
    return _START_MS + np.arange(first, first + count) // 100


@functools.lru_cache(maxsize=2)  # topics of one size follow each other
def _block(values: int | str) -> RecordColumns:
    return make_columns(values, 2**31)


@functools.lru_cache(maxsize=2)
def _hashes_until(values: int | str) -> np.ndarray:
    """The sum of the hashes of the block's first values, by their number."""
    hashes = [zlib.crc32(value.as_buffer()) for value in _block(values).values]
    return np.append(0, np.cumsum(np.array(hashes, np.int64)))


def _value_bytes(columns: RecordColumns) -> int:
    offsets = np.frombuffer(columns.values.buffers()[1], np.int32)
    first = columns.values.offset
    return int(offsets[first + len(columns.values)] - offsets[first])


def _binary(offsets: np.ndarray, content: np.ndarray) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _hex_digits(count: int) -> np.ndarray:
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    return digits[np.random.default_rng(_RANDOM_SEED).integers(0, 16, count)]


def _words(count: int) -> np.ndarray:
    """Text of that many bytes: names from a small vocabulary, and a number after every third."""
    random = np.random.default_rng(_RANDOM_SEED)
    letters = random.integers(97, 123, 16 * 200, dtype=np.uint8).tobytes()
    lengths = random.integers(4, 16, 200)
    names = [b'"%s": ' % letters[16 * i : 16 * i + n] for i, n in enumerate(lengths)]
    numbers = [b"%d, " % n for n in random.integers(0, 10**6, 20_000)]
    vocabulary = pa.array(names + numbers, pa.binary())
    picks = random.integers(0, len(names), count // 8 + 64)  # more than 8 bytes on average
    picks[3::4] = random.integers(len(names), len(vocabulary), len(picks[3::4]))
    return np.frombuffer(vocabulary.take(pa.array(picks)).buffers()[2], np.uint8)[:count]
