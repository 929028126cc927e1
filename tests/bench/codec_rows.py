"""How fast one core decodes and encodes records, beside kafka-python: in processor time (other work
on the machine counts less), without network, checksum or compression.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import kafka
import numpy as np
import pyarrow as pa
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder

from sparkkafka.protocol.columns.columns import Selection
from sparkkafka.protocol.columns.decode import decode_chunks
from sparkkafka.protocol.columns.encode import RecordColumns, encode_batches
from sparkkafka.protocol.constants import RECORD_BATCH_OVERHEAD
from sparkkafka.protocol.records.batches import RecordBatch, split_batches
from tests.bench.checks import compare, sums
from tests.bench.results import WRITTEN, Row
from tests.bench.turns import take_turns
from tests.support.batches import build_batch

KILO_BATCH, MEGA_BATCH = 16 << 10, 1 << 20
BATCH_NAMES = {KILO_BATCH: "16 KB", MEGA_BATCH: "1 MB"}
WANTED = frozenset({"key", "value", "timestamp"})
RIVAL = f"kafka-python {kafka.__version__}"

DECODE_TARGETS = {"100": 5e6, "1000": 2.5}  # records/s, GB/s
ENCODE_TARGETS = {"100": 6e6}
SMALL_BATCH_SHARE = 0.75
"""Batches of 16 KB may decode by a quarter slower than the target."""

_RIVAL_BYTES = 2 << 20  # it is slow
_RIVAL_RECORDS = 20_000
_RESPONSE_BYTES = 4 << 20
_SINK_ROWS = 65536
_ALL_OFFSETS = 1 << 60

# What `columns` takes, and the words for it.
_SIZES = {
    "10": "10 B",
    "100": "100 B",
    "100+key": "100 B and key",
    "lognormal": "lognormal 10 B to 2 KB",
    "1000": "1 KB",
    "10000": "10 KB",
}
_LARGE = ("1000", "10000")  # told in GB/s
_ENCODED = ("100", "1000")


class EncodedResponse(NamedTuple):
    """One fetch's records: the bytes, and the same split into batches."""

    raw: bytes
    batches: list[RecordBatch]

    @property
    def payload_bytes(self) -> int:
        return sum(len(batch.data) for batch in self.batches)


def columns(sizes: str, total_bytes: int) -> RecordColumns:
    """Values of one size or of a distribution ("100", "50-150", "lognormal"), in all about
    `total_bytes`; "+key", "+headers", "+binary" behind it ask for these."""
    random = np.random.default_rng(1)
    name, _, extra = sizes.partition("+")
    if name == "lognormal":
        lengths = np.clip(random.lognormal(5, 1, 1_000_000), 10, 2048).astype(np.int64)
    elif "-" in name:
        low, high = map(int, name.split("-"))
        lengths = random.integers(low, high, 1_000_000)
    else:
        lengths = np.full(min(total_bytes // int(name) + 1, 2_000_001), int(name))
    count = min(int(np.searchsorted(np.cumsum(lengths + 8), total_bytes)), 2_000_000)
    ends = np.cumsum(lengths[:count])
    text = random.integers(32, 127, int(ends[-1]), dtype=np.uint8)
    if "binary" in extra:
        text = random.integers(0, 256, int(ends[-1]), dtype=np.uint8)
    offsets = np.append(0, ends).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    values = pa.Array.from_buffers(pa.binary(), count, buffers)
    keys = None
    if "key" in extra:
        keys = pa.array([b"key-%08d" % i for i in range(count)], pa.binary())
    headers = None
    if "headers" in extra:
        pair = [{"key": "trace", "value": b"0123456789abcdef"}, {"key": "kind", "value": b"order"}]
        headers = pa.array([pair] * count)
    timestamps = 1_700_000_000_000 + np.arange(count) // 100
    return RecordColumns(keys, values, headers, timestamps)


def cut(data: RecordColumns, low: int, count: int) -> RecordColumns:
    """Rows low..low+count, sharing the memory."""
    keys, values, headers = (None if c is None else c.slice(low, count) for c in data[:3])
    return RecordColumns(keys, values, headers, data.timestamps_ms[low : low + count])


def responses(data: RecordColumns, batch_bytes: int) -> list[EncodedResponse]:
    """Fetch responses of about 4 MB each, batches one after the other in one buffer."""
    found: list[EncodedResponse] = []
    whole = bytearray()
    offset = 0
    for encoded in encode_batches(data, max_batch_bytes=batch_bytes):
        whole += build_batch(
            encoded.payload,
            record_count=encoded.record_count,
            base_timestamp=encoded.base_timestamp,
            max_timestamp=encoded.max_timestamp,
            base_offset=offset,
        )
        offset += encoded.record_count
        if len(whole) >= _RESPONSE_BYTES or offset == len(data.timestamps_ms):
            raw = bytes(whole)
            found.append(EncodedResponse(raw, split_batches(raw)))
            whole.clear()
    return found


class Done(NamedTuple):
    records: int
    size_bytes: int
    """Of encoded records, without the batches' headers."""


def decode(fetched: list[EncodedResponse], wanted: frozenset[str] = WANTED) -> Done:
    """Decodes as the source does, chunk by chunk."""
    records = size_bytes = 0
    for response in fetched:
        size_bytes += response.payload_bytes
        for chunk in decode_chunks(response.batches, Selection(0, _ALL_OFFSETS, wanted)):
            records += len(chunk)
    return Done(records, size_bytes)


def encode(data: RecordColumns, batch_bytes: int) -> Done:
    """Encodes as the sink does, one Arrow batch after the other."""
    size_bytes = 0
    for low in range(0, len(data.timestamps_ms), _SINK_ROWS):
        for batch in encode_batches(cut(data, low, _SINK_ROWS), max_batch_bytes=batch_bytes):
            size_bytes += len(batch.payload)
    return Done(len(data.timestamps_ms), size_bytes)


def rival_decode(fetched: list[EncodedResponse]) -> Done:
    records = size_bytes = 0
    for response in fetched:
        size_bytes += response.payload_bytes
        for batch in MemoryRecords(response.raw):
            for record in batch:
                record.key, record.value, record.offset, record.timestamp  # noqa: B018
                records += 1
    return Done(records, size_bytes)


def rival_encode(rows: list[tuple[int, bytes]], batch_bytes: int) -> Done:
    """Batches of (timestamp, value). They are not closed, which would add the checksum."""
    size_bytes = offset = 0
    builder = _rival_builder(batch_bytes)
    for timestamp_ms, value in rows:
        if builder.append(offset, timestamp_ms, None, value, []) is None:
            size_bytes += builder.size() - RECORD_BATCH_OVERHEAD
            builder = _rival_builder(batch_bytes)
            builder.append(0, timestamp_ms, None, value, [])
            offset = 0
        offset += 1
    return Done(len(rows), size_bytes + builder.size() - RECORD_BATCH_OVERHEAD)


def _rival_builder(batch_bytes: int) -> DefaultRecordBatchBuilder:
    return DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=batch_bytes,
    )


def codec_rows(*, quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Rows of decoding and encoding; no broker is needed."""
    total_bytes, pairs = (8 << 20, 2) if quick else (64 << 20, 4)
    rows = []
    for sizes in _SIZES:
        data = columns(sizes, total_bytes)
        few = cut(data, 0, _few(data))
        plain = list(zip(few.timestamps_ms.tolist(), few.values.to_pylist(), strict=True))
        for batch_bytes, batch_name in BATCH_NAMES.items():
            # A quarter slower will do for small batches.
            share = SMALL_BATCH_SHARE if batch_bytes == KILO_BATCH else 1.0
            target = DECODE_TARGETS.get(sizes)
            row = _row(f"decode {_SIZES[sizes]}, {batch_name} batches", sizes)
            row.target = target and share * target
            fetched, fetched_few = responses(data, batch_bytes), responses(few, batch_bytes)
            row.checks = {WRITTEN: sums(few.values.to_pylist()), **_decoded(fetched_few)}
            compare(row.checks, row.name)
            row.work = [_work(row, decode(fetched)), _work(row, rival_decode(fetched_few))]
            take_turns(
                row,
                _seconds(lambda all=fetched: decode(all)),
                _seconds(lambda all=fetched_few: rival_decode(all)),
                pairs,
                say,
            )
            rows.append(row)
            checks = row.checks  # of what our encoder made: kafka-python decodes it
            if sizes not in _ENCODED:
                continue
            row = _row(f"encode {_SIZES[sizes]}, {batch_name} batches", sizes)
            row.target = ENCODE_TARGETS.get(sizes) if batch_bytes == MEGA_BATCH else None
            row.checks = checks
            row.work = [
                _work(row, encode(data, batch_bytes)),
                _work(row, rival_encode(plain, batch_bytes)),
            ]
            take_turns(
                row,
                _seconds(lambda data=data, size=batch_bytes: encode(data, size)),
                _seconds(lambda plain=plain, size=batch_bytes: rival_encode(plain, size)),
                pairs,
                say,
            )
            rows.append(row)
    return rows


def _row(name: str, sizes: str) -> Row:
    return Row(
        group="client",
        name=f"{name}, one core",
        unit="GB/s" if sizes in _LARGE else "records/s",
        rival=RIVAL,
        target_kind="absolute",
        note="processor time, without checksum",
    )


def _few(data: RecordColumns) -> int:
    """How many of the records the rival gets."""
    return min(_RIVAL_RECORDS, len(data.values) * _RIVAL_BYTES // max(data.values.nbytes, 1))


def _decoded(fetched: list[EncodedResponse]) -> dict[str, list[int | None]]:
    """What both sides find in the same batches."""
    ours: list[bytes] = []
    theirs: list[bytes] = []
    for response in fetched:
        for chunk in decode_chunks(response.batches, Selection(0, _ALL_OFFSETS, WANTED)):
            ours += chunk.values.to_pylist()
        theirs += [record.value for batch in MemoryRecords(response.raw) for record in batch]
    return {"pykafka": sums(ours), RIVAL: sums(theirs)}


def _work(row: Row, done: Done) -> int:
    return done.size_bytes if row.unit == "GB/s" else done.records


def _seconds(work: Callable[[], Done]) -> Callable[[], float]:
    def seconds() -> float:
        begin = time.process_time()
        work()
        return time.process_time() - begin

    return seconds
