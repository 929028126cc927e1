"""Records, batches and payloads for the tests of columns; conversions to and from the slow twin."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from sparkkafka.protocol.columns.columns import HEADERS_TYPE, DecodedRecords
from sparkkafka.protocol.columns.encode import RecordColumns
from sparkkafka.protocol.records.batches import RecordBatch, split_batches
from tests.support import reference
from tests.support.reference import Record

NOW = 1_700_000_000_000

# Sizes on both sides of each change in a varint's width (zigzag doubles them).
EDGE_SIZES = (0, 1, 63, 64, 100, 8191, 8192)


def batch_of(
    payload: bytes,
    record_count: int,
    *,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    base_timestamp: int = NOW,
    max_timestamp: int = NOW,
    attributes: int = 0,
) -> RecordBatch:
    """A batch around any payload, sound or not, as if its checksum had been right."""
    if last_offset_delta is None:
        last_offset_delta = max(record_count - 1, 0)
    return RecordBatch(
        base_offset=base_offset,
        partition_leader_epoch=0,
        magic=2,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=record_count,
        data=memoryview(payload),
        size_bytes=61 + len(payload),
    )


def reference_records(batch: RecordBatch) -> list[Record]:
    """What the slow twin makes of an uncompressed batch; raises reference.Damaged."""
    return reference.decode_payload(
        bytes(batch.data),
        record_count=batch.record_count,
        base_offset=batch.base_offset,
        last_offset_delta=batch.last_offset_delta,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
        log_append_time=batch.is_log_append_time,
    )


def response(groups: Sequence[Sequence[Record]], **fields: Any) -> list[RecordBatch]:
    """Batches of one fetch response: all in one buffer, with headers in between."""
    whole = bytearray()
    for records in groups:
        whole += reference.encode_batch(records, base_offset=records[0].offset, **fields)
    return split_batches(whole)


def to_records(decoded: DecodedRecords) -> list[Record]:
    """Rows as the slow twin has them. All columns must have been wanted."""
    assert decoded.keys is not None
    assert decoded.values is not None
    assert decoded.headers is not None
    assert decoded.timestamps_ms is not None
    for column in (decoded.keys, decoded.values, decoded.headers):
        column.validate(full=True)
        assert len(column) == len(decoded)
    return [
        Record(offset, timestamp, key, value, tuple((h["key"], h["value"]) for h in headers or ()))
        for offset, timestamp, key, value, headers in zip(
            decoded.offsets.tolist(),
            decoded.timestamps_ms.tolist(),
            decoded.keys.to_pylist(),
            decoded.values.to_pylist(),
            decoded.headers.to_pylist(),
            strict=True,
        )
    ]


def to_columns(records: Sequence[Record]) -> RecordColumns:
    return RecordColumns(
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        pa.array(
            [[{"key": k, "value": v} for k, v in r.headers] or None for r in records], HEADERS_TYPE
        ),
        np.array([record.timestamp for record in records], np.int64),
    )


def sample_records(
    count: int,
    *,
    first: int = 0,
    sizes: Sequence[int] = (0, 1, 20, 63, 64, 200),
    headers: float = 0.1,
    seed: int = 0,
) -> list[Record]:
    """Records of mixed shapes, the same for the same arguments."""
    chance = random.Random(seed)
    records = []
    for index in range(count):
        key = None if chance.random() < 0.3 else chance.randbytes(chance.choice(sizes))
        value = None if chance.random() < 0.1 else chance.randbytes(chance.choice(sizes))
        some = ()
        if chance.random() < headers:
            some = tuple(
                (f"h{n}", None if n == 1 else b"x" * n) for n in range(chance.choice((1, 2, 20)))
            )
        timestamp = NOW + index + chance.randint(-100, 100)
        records.append(Record(first + index, timestamp, key, value, some))
    return records


def equal_records(count: int, size: int, first: int = 0) -> list[Record]:
    """Values of one size, no keys: the shape that many producers write."""
    return [Record(first + n, NOW + n // 10, None, b"v" * size) for n in range(count)]


blobs = st.none() | st.one_of(
    st.binary(max_size=12),
    st.sampled_from(EDGE_SIZES).map(lambda size: b"\0\x10" * (size // 2) + b"x" * (size % 2)),
)
timestamps = st.one_of(
    st.integers(NOW - 100, NOW + 100),
    st.sampled_from((-1, 0, -(2**63), 2**63 - 1)),
    st.integers(-(2**63), 2**63 - 1),
)
headers = st.lists(
    st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3
).map(tuple)
contents = st.tuples(timestamps, blobs, blobs, st.just(()) | headers)
"""Everything of a record but its offset."""
