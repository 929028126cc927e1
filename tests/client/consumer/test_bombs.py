"""Small responses that unpack to hundreds of MB: what a process takes for them, by its peak RSS,
and that a poll keeps to its time.

The promise of max.decompressed.batch.bytes: a process that reads takes at most one and a half times
that and 20 MB, beside what it takes once its libraries are loaded: the peak of a process that reads
a small record of each of eight partitions. (The kernel counts 85 to 105 MB for these, by machine.)
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import struct
import time
from collections.abc import Callable
from typing import Any

import lz4.frame
import pytest
import zstandard
from crc32c import crc32c

from sparkkafka.client import Consumer
from sparkkafka.protocol.columns.columns import headers_cost_bytes
from sparkkafka.protocol.records.compression import Codec
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.support import forks, reference
from tests.support.batches import build_batch

pytestmark = pytest.mark.slow

MB = 1_000_000
MIB = 1 << 20
LIMIT = 64 * MIB
ALLOWED = LIMIT * 3 // 2 + 20 * MB

# What the child does: everything that it can read, and the errors, as JSON.
CHILD = """
import json, time
from sparkkafka.client import Consumer
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.consumer.range_reader import PlannedRange, RangeReader
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.client_settings import parse_admin_settings
from sparkkafka.config.options import FetchOptions
from sparkkafka.protocol.columns.columns import Selection

def memory(name):  # bytes
    lines = open("/proc/self/status")
    return next(int(l.split()[1]) * 1024 for l in lines if l.startswith(name))

def load(servers):  # print the bytes that a process takes once it has read from each broker
    rows = 0
    with Consumer({"bootstrap.servers": servers, "auto.offset.reset": "earliest"}) as c:
        c.assign([("loaded", partition) for partition in range(8)])
        while rows < 8:
            rows += c.poll_arrow(1.0).num_rows
    print(memory("VmHWM"))

def as_a_task(servers, limit, end):
    rows, seen, errors = 0, 0, []
    settings = {"bootstrap.servers": servers, "max.decompressed.batch.bytes": str(limit)}
    with Cluster(parse_admin_settings(settings)) as cluster, RangeReader(
        cluster, {TopicPartition("t", 0): PlannedRange(Selection(0, end))},
        FetchOptions(max_decompressed_batch_bytes=limit), poll_timeout_ms=30000,
    ) as reader:
        try:
            for _, chunk in reader:
                rows += len(chunk)
                seen += chunk.size_bytes
        except Exception as error:
            errors.append([type(error).__name__, str(error)])
    print(json.dumps({"rows": rows, "seen": seen, "errors": errors,
                      "peak": memory("VmHWM")}))

def as_a_consumer(servers, how, limit, timeout_s, max_calls):
    rows, errors, calls, seen = 0, [], 0, 0
    with Consumer({"bootstrap.servers": servers, "max.decompressed.batch.bytes": limit,
                   "max.partition.fetch.bytes": 64 << 20, "auto.offset.reset": "earliest"}) as c:
        parts = [("t", n) for n in range(len(c.partitions_for("t")))]
        c.assign(parts)
        c.seek_to_beginning()
        ends = c.end_offsets(parts)
        while calls < max_calls and any(c.position(tp) < ends[tp] for tp in parts):
            calls += 1
            try:
                if how == "poll":
                    for record in c.poll(timeout_s):
                        rows += 1
                        seen += len(record.value or b"") + sum(1 for _ in record.headers)
                        del record  # the next poll may take all memory that is allowed
                else:
                    table = c.poll_arrow(timeout_s)
                    rows += table.num_rows
                    seen += table.nbytes
                    del table
            except Exception as error:
                errors.append([type(error).__name__, str(error)])
                if error.next_offset is None:
                    break
                c.seek(("t", 0), error.next_offset)
    print(json.dumps({"rows": rows, "seen": seen, "errors": errors, "calls": calls,
                      "peak": memory("VmHWM")}))
"""


def packed(codec: Codec, make: Callable[[Callable[[bytes], None]], None]) -> bytes:
    """What `make` writes, compressed as a stream, so that a test does not hold it all."""
    if codec is Codec.GZIP:
        out = io.BytesIO()
        with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=6) as stream:
            make(lambda data: stream.write(data) and None)
        return out.getvalue()
    if codec is Codec.ZSTD:
        out = io.BytesIO()
        with zstandard.ZstdCompressor().stream_writer(out, closefd=False) as writer:
            make(lambda data: writer.write(data) and None)
        return out.getvalue()
    if codec is Codec.LZ4:
        parts = []
        context = lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX64KB)
        parts.append(context.begin())
        make(lambda data: parts.append(context.compress(data)))
        return b"".join(parts) + context.flush()
    import pyarrow as pa

    snappy = pa.Codec("snappy")
    chunks = [b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)]

    def add(data: bytes) -> None:
        for start in range(0, len(data), 1 << 15):
            chunk = snappy.compress(data[start : start + (1 << 15)], asbytes=True)
            chunks.extend((struct.pack(">i", len(chunk)), chunk))

    make(add)
    return b"".join(chunks)


def batch(codec: Codec, count: int, make: Callable[[Callable[[bytes], None]], None]) -> bytes:
    """A batch of a valid checksum around what `make` writes."""
    return batch_of_packed(codec, count, packed(codec, make))


def batch_of_packed(codec: Codec, count: int, data: bytes) -> bytes:
    plain = bytearray(
        build_batch(b"\0" * 7, record_count=1, base_timestamp=0, max_timestamp=0)[:61]
    )
    plain += data
    struct.pack_into(">i", plain, 8, len(plain) - 12)
    struct.pack_into(">h", plain, 21, int(codec))
    struct.pack_into(">i", plain, 23, count - 1)
    struct.pack_into(">i", plain, 57, count)
    struct.pack_into(">I", plain, 17, crc32c(bytes(plain[21:])))
    return bytes(plain)


@functools.cache
def zeros(codec: Codec, size: int) -> bytes:
    """A batch of one record with a value of this many zeros. Compressing it takes seconds."""
    return batch(codec, 1, one_record(size))


def one_record(size: int, unit: bytes = bytes(MIB)) -> Callable[[Callable[[bytes], None]], None]:
    """A record with a value of this many bytes."""
    head = b"\0\0\0\x01" + reference.encode_varint(size)

    def write(add: Callable[[bytes], None]) -> None:
        add(reference.encode_varint(len(head) + size + 1) + head)
        for start in range(0, size, len(unit)):
            add(unit[: size - start])
        add(b"\0")

    return write


@functools.cache
def many_records() -> bytes:
    """A batch of 500,000 records."""
    return batch(Codec.ZSTD, 500_000, small_records(500_000, 110))


def small_records(count: int, size: int) -> Callable[[Callable[[bytes], None]], None]:
    def write(add: Callable[[bytes], None]) -> None:
        for start in range(0, count, 1000):
            add(
                b"".join(
                    reference.encode_record(
                        timestamp_delta=0, offset_delta=n, key=None, value=b"v" * size
                    )
                    for n in range(start, min(count, start + 1000))
                )
            )

    return write


def records_of(*sizes: int) -> Callable[[Callable[[bytes], None]], None]:
    """Records with values of these sizes."""

    def write(add: Callable[[bytes], None]) -> None:
        for number, size in enumerate(sizes):
            head = b"\0\0" + reference.encode_varint(number) + b"\x01"
            head += reference.encode_varint(size)
            add(reference.encode_varint(len(head) + size + 1) + head)
            add(bytes(size))
            add(b"\0")

    return write


def headers_record(count: int, name: bytes, content: bytes, value: bytes = b"") -> bytes:
    """A record with this many equal headers."""
    header = reference.encode_varint(len(name)) + name
    header += reference.encode_varint(len(content)) + content
    body = b"\0\0\0\x01" + reference.encode_varint(len(value)) + value
    body += reference.encode_varint(count) + header * count
    return reference.encode_varint(len(body)) + body


@functools.cache
def loaded_bytes() -> int:
    """What a process takes that has read a small record of each of eight partitions."""
    with FakeCluster(3) as fake:
        fake.create_topic("loaded", partitions=8)
        for partition in range(8):
            data = batch(Codec.ZSTD, 1, one_record(5))
            fake.append("loaded", partition, data, assign_offsets=True)
        ended = forks.run(CHILD, {"loaded": f"load({fake.bootstrap_servers!r})"})["loaded"]
    return int(ended.text.splitlines()[-1])


def read(
    fake: FakeCluster, how: str, limit: int = LIMIT, timeout_s: float = 1.0, max_calls: int = 500
) -> dict[str, Any]:
    servers = fake.bootstrap_servers
    code = f"as_a_consumer({servers!r}, {how!r}, {limit}, {timeout_s}, {max_calls})"
    if how == "fetcher":  # as Spark's tasks read
        code = f"as_a_task({servers!r}, {limit}, {max_calls})"
    ended = forks.run(CHILD, {how: code})[how]
    assert ended.code == 0, ended
    found = json.loads(ended.text.splitlines()[-1])
    found["peak"] -= loaded_bytes()
    return found


CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


@pytest.mark.parametrize(
    ("codec", "how"), [*((codec, "poll") for codec in CODECS), (Codec.ZSTD, "poll_arrow")]
)
def test_a_bomb_is_refused_in_bounded_memory(fake_cluster, codec: Codec, how: str) -> None:
    """250 MB of zeros in one valid record, after the largest that is allowed; what follows it is
    read."""
    fake_cluster.create_topic("t")
    size = LIMIT - 100
    fake_cluster.append("t", 0, zeros(codec, size), assign_offsets=True)
    fake_cluster.append("t", 0, zeros(codec, 250 * MB), assign_offsets=True)
    fake_cluster.append("t", 0, batch(codec, 1, one_record(5)), assign_offsets=True)
    found = read(fake_cluster, how)
    [[kind, words]] = found["errors"]
    assert kind == "BatchTooLargeError"
    assert "topic t partition 0 offset 1" in words
    assert "max.decompressed.batch.bytes" in words
    assert str(LIMIT) in words
    assert found["rows"] == 2
    assert found["seen"] >= size + 5
    assert found["peak"] < ALLOWED


@pytest.mark.parametrize("how", ["poll", "fetcher"])
def test_one_block_of_snappy(fake_cluster, how: str) -> None:
    """As librdkafka writes it: unpacked whole, and the record is copied out of it."""
    import cramjam

    fake_cluster.create_topic("t")
    for size in (LIMIT * 7 // 10 - 100, LIMIT * 7 // 10 + 100):
        plain = bytearray()
        one_record(size)(plain.extend)
        data = bytes(cramjam.snappy.compress_raw(plain))
        fake_cluster.append("t", 0, batch_of_packed(Codec.SNAPPY, 1, data), assign_offsets=True)
    found = read(fake_cluster, how, max_calls=200 if how != "fetcher" else 2)
    assert found["rows"] == 1
    [[kind, words]] = found["errors"]
    assert kind == "BatchTooLargeError"
    assert "at most 70 % of the" in words
    assert "max.decompressed.batch.bytes" in words
    assert found["peak"] < ALLOWED


def test_what_a_task_of_spark_takes(fake_cluster) -> None:
    fake_cluster.create_topic("t")
    size = LIMIT - 100
    fake_cluster.append("t", 0, zeros(Codec.SNAPPY, size), assign_offsets=True)
    fake_cluster.append("t", 0, zeros(Codec.SNAPPY, 250 * MB), assign_offsets=True)
    found = read(fake_cluster, "fetcher", max_calls=2)
    assert found["rows"] == 1
    assert found["seen"] >= size
    [[kind, words]] = found["errors"]
    assert kind == "BatchTooLargeError"
    assert "topic t partition 0 offset 1" in words
    assert "max.decompressed.batch.bytes" in words
    assert found["peak"] < ALLOWED


@pytest.mark.parametrize("how", ["poll", "poll_arrow"])
def test_a_large_batch_of_small_records_streams_out(fake_cluster, how: str) -> None:
    """500,000 records of 60 MB in one batch take a fraction of it."""
    fake_cluster.create_topic("t")
    fake_cluster.append("t", 0, many_records(), assign_offsets=True)
    found = read(fake_cluster, how, max_calls=5000)
    assert not found["errors"]
    assert found["rows"] == 500_000
    assert found["peak"] < (60 * MB if how == "poll" else 100 * MB)


def test_many_large_batches_do_not_add_up_in_one_poll(fake_cluster) -> None:
    fake_cluster.create_topic("t")
    for _ in range(12):
        fake_cluster.append("t", 0, zeros(Codec.ZSTD, 30 * MB), assign_offsets=True)
    for how in ("poll", "poll_arrow"):
        found = read(fake_cluster, how, timeout_s=20)
        assert not found["errors"]
        assert found["rows"] == 12
        assert found["peak"] < ALLOWED


@pytest.mark.parametrize("how", ["poll", "poll_arrow"])
def test_partitions_take_turns_with_their_large_records(fake_cluster, how: str) -> None:
    """Each could hold the second record of a batch while another has its turn."""
    fake_cluster.create_topic("t", partitions=8)
    data = batch(Codec.ZSTD, 2, records_of(30 * MB, 30 * MB))
    for partition in range(8):
        fake_cluster.append("t", partition, data, assign_offsets=True)
    found = read(fake_cluster, how, timeout_s=5)
    assert not found["errors"]
    assert found["rows"] == 16
    assert found["peak"] < ALLOWED


@pytest.mark.parametrize("how", ["poll", "poll_arrow"])
def test_large_records_before_damage(fake_cluster, how: str) -> None:
    """The reader looks ahead to the damage, but not with a large record in its hands."""
    fake_cluster.create_topic("t")
    for _ in range(3):
        data = zeros(Codec.ZSTD, LIMIT - 100)
        fake_cluster.append("t", 0, data, assign_offsets=True)
    damaged = bytearray(batch(Codec.ZSTD, 1, one_record(5)))
    damaged[-1] ^= 1
    fake_cluster.append("t", 0, bytes(damaged), assign_offsets=True)
    found = read(fake_cluster, how, timeout_s=20)
    [[kind, words]] = found["errors"]
    assert kind == "CorruptRecordError"
    assert "topic t partition 0 offset 3" in words
    assert words.count("The position stays at 3.") == 1  # what stands before it has been read
    assert found["rows"] == 3
    assert found["peak"] < ALLOWED


@pytest.mark.parametrize(
    ("name", "content", "value_bytes", "limit"),
    [
        (b"ab", b"cd", 0, LIMIT),  # an object each for poll
        ("žž".encode(), b"", 0, LIMIT),
        (b"", b"", 50 * MB, LIMIT),  # besides a large value
        (b"", b"", 0, 16 * MIB),  # in a record that is not a large one, of a batch as it came
    ],
)
def test_what_headers_take(
    fake_cluster, name: bytes, content: bytes, value_bytes: int, limit: int
) -> None:
    fake_cluster.create_topic("t")
    header_bytes = 2 + len(name) + len(content)
    for cost in (2, 1):  # of half the limit, and of all of it
        count, space = 0, limit // cost - value_bytes
        if space > 0:
            count = space // (headers_cost_bytes(1000, 1000 * header_bytes) // 1000 + 1) - 10
        record = headers_record(count, name, content, bytes(value_bytes))
        codec = Codec.ZSTD if value_bytes else Codec.NONE
        plain = build_batch(record, record_count=1, base_timestamp=0, max_timestamp=0, codec=codec)
        fake_cluster.append("t", 0, plain, assign_offsets=True)
    record = headers_record(2 * count, name, content, bytes(value_bytes))
    plain = build_batch(record, record_count=1, base_timestamp=0, max_timestamp=0, codec=codec)
    fake_cluster.append("t", 0, plain, assign_offsets=True)
    found = read(fake_cluster, "poll", limit=limit, timeout_s=20)
    [[kind, words]] = found["errors"]
    assert kind == "BatchTooLargeError"
    assert f"it has {2 * count} headers in" in words
    assert "topic t partition 0 offset 2" in words
    assert found["rows"] == 2
    assert found["peak"] < limit * 3 // 2 + 20 * MB


def test_three_million_empty_headers(fake_cluster) -> None:
    """6 MB in one record: decoded by columns, over as many polls as it takes."""
    fake_cluster.create_topic("t")
    count = 3_000_000
    body = b"\0\0\0\x01\x01" + reference.encode_varint(count) + b"\0\0" * count
    record = reference.encode_varint(len(body)) + body
    plain = build_batch(record, record_count=1, base_timestamp=0, max_timestamp=0, codec=Codec.ZSTD)
    fake_cluster.append("t", 0, plain, assign_offsets=True)
    found = read(fake_cluster, "poll_arrow", limit=256 * MIB, timeout_s=0.1)
    assert not found["errors"]
    assert found["rows"] == 1
    assert found["calls"] > 1
    assert found["peak"] < 256 * MIB * 3 // 2 + 20 * MB


def test_a_poll_whose_time_is_over_goes_on_at_the_next(fake_cluster_factory) -> None:
    """A record of 100 MB takes many polls of no time at all; another partition waits for it, as
    only one large record at a time is put together. Nothing is lost."""
    fake = fake_cluster_factory(1)
    fake.create_topic("t", partitions=2)
    for partition in (0, 1):
        fake.append("t", partition, zeros(Codec.ZSTD, 100 * MB), assign_offsets=True)
        fake.append("t", partition, batch(Codec.ZSTD, 3, small_records(3, 5)), assign_offsets=True)
    found: list[tuple[int, int, int]] = []
    calls = 0
    until_s = time.monotonic() + 60
    with Consumer(
        {"bootstrap.servers": fake.bootstrap_servers, "auto.offset.reset": "earliest"}
    ) as consumer:
        consumer.assign([("t", 0), ("t", 1)])
        while len(found) < 8:
            assert time.monotonic() < until_s
            calls += 1
            found += [(r.partition, r.offset, len(r.value or b"")) for r in consumer.poll(0)]
    assert calls > 20
    for partition in (0, 1):
        rows = [row[1:] for row in found if row[0] == partition]
        assert rows == [(0, 100 * MB), (1, 5), (2, 5), (3, 5)]
