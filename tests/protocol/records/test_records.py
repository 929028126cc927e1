"""RecordBatch v2: split, read, and built; against the scalar codec, kafka-python, and vectors."""

from __future__ import annotations

import base64
import json
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from sparkkafka.errors import CorruptRecordError, DecodeError, EncodeError
from sparkkafka.protocol.constants import RECORD_BATCH_OVERHEAD
from sparkkafka.protocol.records import batches
from sparkkafka.protocol.records.batches import (
    ABORT_MARKER,
    COMMIT_MARKER,
    NO_CONTROL_TYPE,
    AbortedTransactions,
    RecordBatch,
    control_type,
    first_batch_size,
    split_batches,
)
from sparkkafka.protocol.records.compression import Codec, compress
from tests.support import reference
from tests.support.batches import build_batch
from tests.support.properties import examples
from tests.support.reference import Record

MIB = 1 << 20
VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "records.json").read_text())

some_bytes = st.none() | st.binary(max_size=40)
some_records = st.lists(
    st.tuples(
        st.integers(-1, 2**62),
        some_bytes,
        some_bytes,
        st.lists(st.tuples(st.text(max_size=5), some_bytes), max_size=2),
    ),
    min_size=1,
    max_size=8,
).map(
    lambda rows: [
        Record(offset, timestamp, key, value, tuple(headers))
        for offset, (timestamp, key, value, headers) in enumerate(rows)
    ]
)


def simple(count: int, base_offset: int = 0, timestamp: int = 1000) -> list[Record]:
    return [
        Record(base_offset + i, timestamp + i, b"k%d" % i, b"value-%d" % i) for i in range(count)
    ]


def encoded(count: int = 3, base_offset: int = 0, **fields: Any) -> bytes:
    return reference.encode_batch(simple(count, base_offset), base_offset=base_offset, **fields)


def read(batch: RecordBatch) -> list[Record]:
    """A batch's records by the scalar codec, from the frame as this package read it."""
    return reference.decode_payload(
        bytes(batch.payload(64 * MIB)),
        record_count=batch.record_count,
        base_offset=batch.base_offset,
        last_offset_delta=batch.last_offset_delta,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
        log_append_time=batch.is_log_append_time,
    )


def rows(batches: list[RecordBatch]) -> list[Record]:
    return [record for batch in batches for record in read(batch)]


def control(
    kind: int, producer_id: int, offset: int, *, version: int = 0, key: bytes | None = None
) -> bytes:
    """A transaction marker as the coordinator writes it."""
    key = struct.pack(">hh", version, kind) if key is None else key
    marker = Record(offset, 1000, key, struct.pack(">hi", 0, 7))
    return reference.encode_batch(
        [marker],
        base_offset=offset,
        attributes=batches.CONTROL_FLAG | batches.TRANSACTIONAL_FLAG,
        producer_id=producer_id,
        producer_epoch=0,
    )


def transactional(producer_id: int, offset: int, count: int = 2) -> bytes:
    return encoded(
        count,
        offset,
        attributes=batches.TRANSACTIONAL_FLAG,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
    )


# --- against others -------------------------------------------------------------------------------


@settings(max_examples=examples(100))
@given(
    some_records,
    st.integers(0, 2**40),
    st.sampled_from(list(Codec)),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**15 - 1),
    st.integers(-1, 2**31 - 1),
    st.booleans(),
)
def test_build_and_split_equal_the_scalar_codec(
    content: list[Record],
    base_offset: int,
    codec: Codec,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    is_transactional: bool,
) -> None:
    content = [record._replace(offset=record.offset + base_offset) for record in content]
    base_timestamp = content[0].timestamp
    payload = reference.encode_payload(
        content, base_offset=base_offset, base_timestamp=base_timestamp
    )
    built = build_batch(
        payload,
        record_count=len(content),
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp for record in content),
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=is_transactional,
        base_offset=base_offset,
    )
    packed = compress(codec, payload)
    used = codec if len(packed) < len(payload) else Codec.NONE
    assert built == reference.encode_batch(
        content,
        base_offset=base_offset,
        attributes=used | (16 if is_transactional else 0),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        payload=packed if used else payload,
    )
    (batch,) = split_batches(built)
    want = reference.decode_batch(built)
    # Of the fields, all but the CRC are there.
    fields = want._asdict() | {"magic": batch.magic, "data": batch.data, "size_bytes": len(built)}
    assert batch._asdict() == {name: fields[name] for name in batch._fields}
    assert bytes(batch.data) == want.payload
    assert batch.codec is used
    assert batch.is_transactional is is_transactional
    assert read(batch) == content


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd"])
def test_kafka_python_both_ways(codec: str) -> None:
    """Its builder's bytes read here, and what is built here read by it."""
    content = [(1000 + i, b"key" if i % 2 else None, b"value" * i, []) for i in range(20)]
    builder = MemoryRecordsBuilder(
        magic=2, compression_type=Codec[codec.upper()], batch_size=MIB, producer_id=9,
        producer_epoch=1, base_sequence=5, transactional=True,
    )  # fmt: skip
    for timestamp, key, value, headers in content:
        builder.append(timestamp=timestamp, key=key, value=value, headers=headers)
    builder.close()
    theirs = bytes(builder.buffer())
    (batch,) = split_batches(theirs)
    assert [(r.timestamp, r.key, r.value, []) for r in read(batch)] == content
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (9, 1, 5)
    assert batch.is_transactional

    ours = build_batch(
        batch.payload(MIB),
        record_count=20,
        base_timestamp=1000,
        max_timestamp=1019,
        codec=Codec[codec.upper()],
        producer_id=9,
        producer_epoch=1,
        base_sequence=5,
        transactional=True,
        partition_leader_epoch=0,  # kafka-python's; Java's producer writes -1
    )
    if codec == "none":
        assert ours == theirs
    their_batch = MemoryRecords(ours).next_batch()
    assert their_batch.validate_crc()
    assert [(r.timestamp, r.key, r.value, r.headers) for r in their_batch] == content


@pytest.mark.parametrize(
    "vector",
    VECTORS["vectors"],
    ids=lambda v: f"magic{v['magic']}-{v['codec']}-{v['origin'].split()[0]}-{v['idempotent']}",
)
def test_vectors_of_other_clients(vector: dict[str, Any]) -> None:
    def unpack(text: str | None) -> bytes | None:
        return None if text is None else zlib.decompress(base64.b64decode(text))

    data = unpack(vector["data"])
    assert data is not None
    (batch,) = split_batches(data)
    assert batch.magic == vector["magic"]
    assert batch.size_bytes == len(data)
    if batch.magic == 2:
        assert batch.codec is Codec[vector["codec"].upper()]
    assert (batch.producer_id, batch.producer_epoch) == (
        (4711, 3) if vector["idempotent"] else (-1, -1)
    )
    assert batch.timestamp_type == (0 if batch.magic else -1)
    assert rows([batch]) == [
        Record(
            row["offset"],
            row["timestamp"],
            unpack(row["key"]),
            unpack(row["value"]),
            tuple((name, unpack(value)) for name, value in row["headers"]),
        )
        for row in VECTORS["expected"][str(batch.magic)]
    ]


# --- the traps of a fetch response
# ------------------------------------------------------------------


def test_nothing_in_it() -> None:
    assert split_batches(b"") == []
    assert first_batch_size(b"") is None


def test_views_share_the_response() -> None:
    data = bytearray(encoded(3) + encoded(2, 3))
    batches = split_batches(data)
    assert [(b.base_offset, b.next_offset) for b in batches] == [(0, 3), (3, 5)]
    assert all(batch.data.obj is data for batch in batches)
    for kind in (bytes, memoryview):
        assert rows(split_batches(kind(data))) == simple(3) + [
            Record(3 + i, 1000 + i, b"k%d" % i, b"value-%d" % i) for i in range(2)
        ]


def test_signed_buffers_are_read_as_unsigned() -> None:
    """pyarrow's buffers export signed chars: magic 0xff would read as -1, an old format."""
    signed = memoryview(pa.py_buffer(encoded(3)))
    assert signed.format == "b"
    (batch,) = split_batches(signed)
    assert batch.data.format == "B"
    assert read(batch) == simple(3)
    damaged = bytearray(encoded(3))
    damaged[16] = 0xFF
    for function in (split_batches, first_batch_size):
        with pytest.raises(CorruptRecordError, match="magic"):
            function(memoryview(pa.py_buffer(bytes(damaged))))


def test_last_batch_cut_at_every_byte() -> None:
    first, second = encoded(3), encoded(4, 3)
    whole = first + second
    for cut in range(len(whole) + 1):
        batches = split_batches(memoryview(whole)[:cut])
        count = (cut >= len(first)) + (cut == len(whole))
        assert [b.base_offset for b in batches] == [0, 3][:count]
        size = first_batch_size(memoryview(whole)[:cut])
        assert size == (len(first) if cut >= 12 else None)


def test_batch_that_starts_before_the_wanted_offset() -> None:
    """The broker sends whole batches. The rows before the offset are for the reader to skip."""
    (batch,) = split_batches(encoded(10, 100))
    assert (batch.base_offset, batch.last_offset, batch.next_offset) == (100, 109, 110)


def test_end_offset_stops_before_damage_behind_it() -> None:
    data = bytearray(encoded(3) + encoded(3, 3) + encoded(3, 6))
    data[-1] ^= 1
    for end, count in [(1, 1), (3, 1), (4, 2), (6, 2)]:
        assert len(split_batches(data, end_offset=end)) == count
    for end_offset in (7, None):
        with pytest.raises(CorruptRecordError, match="offset 6: CRC-32C"):
            split_batches(data, end_offset=end_offset)


def test_log_append_time() -> None:
    data = encoded(3, attributes=8, max_timestamp=5555)
    (batch,) = split_batches(data)
    assert batch.is_log_append_time
    assert batch.timestamp_type == batches.LOG_APPEND_TIME
    assert [record.timestamp for record in read(batch)] == [5555] * 3
    ours = build_batch(
        batch.data, record_count=3, base_timestamp=1000, max_timestamp=5555, log_append_time=True
    )
    assert ours == data


def test_missing_and_negative_timestamps() -> None:
    content = [Record(i, t, None, b"v") for i, t in enumerate([-1, -1, -1])]
    (batch,) = split_batches(reference.encode_batch(content))
    assert (batch.base_timestamp, batch.max_timestamp) == (-1, -1)
    assert read(batch) == content
    # A delta may be negative, and a record may lack a timestamp between others.
    content = [Record(i, t, None, b"v") for i, t in enumerate([5000, 1, -1, 2**62])]
    (batch,) = split_batches(reference.encode_batch(content))
    assert read(batch) == content


def test_delete_horizon_only_changes_what_the_base_timestamp_means() -> None:
    content = simple(3)
    data = reference.encode_batch(content, attributes=0x40, base_timestamp=999_999)
    (batch,) = split_batches(data)
    assert batch.attributes & 0x40
    assert not batch.is_control
    assert not batch.is_log_append_time
    assert batch.timestamp_type == batches.CREATE_TIME
    assert read(batch) == content


def test_compaction_gaps() -> None:
    """KAFKA-5443: the next offset is the batch's, not the last record's."""
    kept = [record for record in simple(10, 50) if record.offset in (52, 57)]
    data = reference.encode_batch(kept, base_offset=50, last_offset_delta=9)
    (batch,) = split_batches(data)
    assert (batch.record_count, batch.last_offset, batch.next_offset) == (2, 59, 60)
    assert read(batch) == kept
    ours = build_batch(
        batch.data,
        record_count=2,
        last_offset_delta=9,
        base_offset=50,
        base_timestamp=1002,
        max_timestamp=1007,
    )
    assert ours == data


@pytest.mark.parametrize("attributes", [0, *Codec])
def test_batch_emptied_by_compaction(attributes: int) -> None:
    data = reference.encode_batch(
        base_offset=7, last_offset_delta=12, attributes=attributes, producer_id=4
    )
    (batch,) = split_batches(data)
    assert len(data) == 61
    assert (batch.record_count, batch.next_offset) == (0, 20)
    assert bytes(batch.payload(0)) == b""
    if not attributes:
        assert data == build_batch(
            b"",
            record_count=0,
            last_offset_delta=12,
            base_offset=7,
            base_timestamp=-1,
            max_timestamp=-1,
            producer_id=4,
        )


def test_offset_gaps_between_batches_are_fine_but_not_steps_back() -> None:
    assert len(split_batches(encoded(2, 10) + encoded(2, 1000))) == 2
    for offset in (11, 0):
        with pytest.raises(CorruptRecordError, match=f"offset {offset}: batch of offset"):
            split_batches(encoded(2, 10) + encoded(2, offset))


def test_crc_is_castagnoli_and_can_be_left_unchecked() -> None:
    data = bytearray(encoded(3))
    assert struct.unpack_from(">I", data, 17)[0] == reference.crc32c(bytes(data[21:]))
    data[-2] ^= 1
    with pytest.raises(CorruptRecordError) as caught:
        split_batches(data)
    assert (caught.value.position, caught.value.offset) == (17, 0)
    (batch,) = split_batches(data, check_crcs=False)
    assert batch.record_count == 3


@pytest.mark.parametrize("codec", list(Codec))
def test_payload_bound(codec: Codec) -> None:
    content = [Record(i, 0, None, b"x" * 100) for i in range(100)]
    payload = reference.encode_payload(content, base_offset=0, base_timestamp=0)
    data = build_batch(payload, record_count=100, base_timestamp=0, max_timestamp=0, codec=codec)
    (batch,) = split_batches(data)
    assert batch.codec is codec
    assert bytes(batch.payload(len(payload))) == payload
    with pytest.raises(CorruptRecordError, match="offset 0"):
        batch.payload(len(payload) - 1)


# --- control batches and transactions -------------------------------------------------------------


def test_control_types() -> None:
    for kind in (ABORT_MARKER, COMMIT_MARKER, 2, 6, 99, -5):
        (batch,) = split_batches(control(kind, 1, 10))
        assert batch.is_control
        assert control_type(batch) == kind
        assert batch.next_offset == 11
        assert not AbortedTransactions(None).visible(batch)
    # A later version of the key may be longer; the type keeps its place.
    (batch,) = split_batches(control(0, 1, 10, key=struct.pack(">hhq", 3, 1, 0)))
    assert control_type(batch) == COMMIT_MARKER
    # Compaction can take the record out and keep the batch.
    empty = reference.encode_batch(attributes=0x30, producer_id=1)
    assert control_type(split_batches(empty)[0]) == NO_CONTROL_TYPE


@pytest.mark.parametrize("key", [b"", b"\0", b"\0\0\0", struct.pack(">hh", -1, 0)])
def test_unreadable_control_key(key: bytes) -> None:
    (batch,) = split_batches(control(0, 1, 10, key=key))
    with pytest.raises(CorruptRecordError, match="offset 10: control record"):
        control_type(batch)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_huge_control_batch_is_damage(codec: Codec) -> None:
    """No setting allows it, so the error names none (a BatchTooLargeError would)."""
    data = build_batch(
        bytes(2 << 20), record_count=1, base_timestamp=0, max_timestamp=0, codec=codec, control=True
    )
    with pytest.raises(CorruptRecordError, match="control batch of more than") as raised:
        control_type(split_batches(data)[0])
    assert type(raised.value) is CorruptRecordError


def test_control_record_without_key() -> None:
    data = reference.encode_batch([Record(0, 0, None, b"")], attributes=0x30, producer_id=1)
    with pytest.raises(CorruptRecordError, match="offset 0"):
        control_type(split_batches(data)[0])


def visible_offsets(parts: list[bytes], aborted: list[tuple[int, int]] | None) -> list[int]:
    transactions = AbortedTransactions(aborted)
    return [b.base_offset for b in split_batches(b"".join(parts)) if transactions.visible(b)]


def test_read_committed_hides_what_was_aborted() -> None:
    parts = [
        transactional(1, 0),  # aborted
        transactional(2, 2),  # committed, interleaved with 1
        encoded(2, 4),  # no producer
        encoded(2, 6, producer_id=1, producer_epoch=0, base_sequence=9),  # 1, idempotent only
        control(ABORT_MARKER, 1, 8),
        transactional(1, 9),  # 1 again, committed
        control(COMMIT_MARKER, 2, 11),
        control(COMMIT_MARKER, 1, 12),
        transactional(1, 13),  # and again, aborted
        transactional(2, 15),  # aborted
        control(ABORT_MARKER, 2, 17),
        control(ABORT_MARKER, 1, 18),
        encoded(1, 19),
    ]
    aborted = [(1, 0), (1, 13), (2, 15)]
    want = [2, 4, 6, 9, 19]
    assert visible_offsets(parts, aborted) == want
    # Redpanda does not sort the list.
    for _ in range(10):
        random.shuffle(aborted)
        assert visible_offsets(parts, aborted) == want
    # read_uncommitted: everything but the markers.
    for nothing in (None, []):
        assert visible_offsets(parts, nothing) == [0, 2, 4, 6, 9, 13, 15, 19]


def test_aborted_transaction_that_began_before_the_fetch_offset() -> None:
    parts = [transactional(1, 100), control(ABORT_MARKER, 1, 102), transactional(1, 103)]
    assert visible_offsets(parts, [(1, 3)]) == [103]


def test_abort_marker_twice_and_for_a_stranger() -> None:
    parts = [
        transactional(1, 0),
        control(ABORT_MARKER, 1, 2),
        control(ABORT_MARKER, 1, 3),
        control(ABORT_MARKER, 55, 4),
        transactional(1, 5),
    ]
    assert visible_offsets(parts, [(1, 0), (1, 0)]) == [5]


def test_only_an_abort_marker_ends_an_aborted_transaction() -> None:
    """As in Java: a COMMIT of that producer is for a transaction that the list does not know."""
    parts = [control(COMMIT_MARKER, 1, 0), transactional(1, 1), control(2, 1, 3)]
    assert visible_offsets([*parts, transactional(1, 4)], [(1, 0)]) == []


def test_transaction_that_begins_inside_the_batch_range() -> None:
    """Entries count up to the batch's last offset: first_offset may lie inside after compaction."""
    assert visible_offsets([transactional(1, 10, count=5)], [(1, 12)]) == []
    assert visible_offsets([transactional(1, 10, count=5)], [(1, 15)]) == [10]


# --- building -------------------------------------------------------------------------------------


def test_incompressible_payload_is_sent_as_it_is() -> None:
    """So a batch is never larger than 61 bytes + payload, whatever the codec."""
    payload = reference.encode_payload(
        [Record(0, 0, None, random.Random(1).randbytes(500))], base_offset=0, base_timestamp=0
    )
    for codec in Codec:
        built = build_batch(payload, record_count=1, base_timestamp=0, max_timestamp=0, codec=codec)
        assert len(built) == 61 + len(payload)
        assert split_batches(built)[0].codec is Codec.NONE


def test_level_is_passed_on() -> None:
    payload = reference.encode_payload(simple(2000), base_offset=0, base_timestamp=0)
    sizes = [
        len(
            build_batch(
                payload,
                record_count=2000,
                base_timestamp=0,
                max_timestamp=0,
                codec=Codec.GZIP,
                level=level,
            )
        )
        for level in (1, 9)
    ]
    assert sizes[0] > sizes[1]


@pytest.mark.parametrize(
    "fields",
    [
        {"record_count": -1},
        {"record_count": 0},
        {"record_count": 2**31},
        {"base_timestamp": 2**63},
        {"max_timestamp": -(2**63) - 1},
        {"producer_id": 2**63},
        {"producer_epoch": 2**15},
        {"base_sequence": 2**31},
        {"base_offset": -(2**63) - 1},
    ],
    ids=str,
)
def test_values_that_the_header_cannot_hold(fields: dict[str, int]) -> None:
    encoded = batches.EncodedBatch(b"1234567", record_count=1, base_timestamp=0, max_timestamp=0)
    own = {name: value for name, value in fields.items() if name in encoded._fields}
    others: dict[str, Any] = {name: value for name, value in fields.items() if name not in own}
    with pytest.raises(EncodeError):
        batches.batch_parts(encoded._replace(**own), **others)


def test_header_constants() -> None:
    assert RECORD_BATCH_OVERHEAD == batches.HEADER.size == reference.BATCH_HEADER.size
    assert batches.MIN_BATCH_LENGTH == 49
    assert issubclass(CorruptRecordError, DecodeError)
