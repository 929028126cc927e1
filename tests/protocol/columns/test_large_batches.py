"""Batches that are decoded in parts: the same records, and the same verdict on damaged bytes, as by
the slow twin, wherever the parts end."""

from __future__ import annotations

import contextlib
import functools
import gzip
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkkafka.errors import BatchTooLargeError, CorruptRecordError
from sparkkafka.protocol.columns import decode
from sparkkafka.protocol.columns.columns import ALL_COLUMNS, HEADERS, DecodedRecords, Selection
from sparkkafka.protocol.columns.decode import decode_batches, decode_chunks, decode_large
from sparkkafka.protocol.records.batches import RecordBatch
from sparkkafka.protocol.records.compression import (
    PIECE_BYTES,
    Codec,
    compress,
    decompressed_pieces,
)
from tests.protocol.record_cases import (
    NOW,
    batch_of,
    contents,
    equal_records,
    sample_records,
    to_records,
)
from tests.support import reference
from tests.support.properties import examples
from tests.support.reference import Record

pytestmark = pytest.mark.slow

END = 2**62
MIB = 1 << 20


def payload_of(records: Sequence[Record]) -> bytes:
    return reference.encode_payload(records, base_offset=0, base_timestamp=NOW)


def whole(records: Sequence[Record]) -> RecordBatch:
    return batch_of(
        payload_of(records), len(records), last_offset_delta=records[-1].offset if records else 0
    )


def cut(payload: bytes, sizes: Sequence[int]) -> Iterator[memoryview]:
    """Pieces of these sizes, again and again."""
    view, index = memoryview(payload), 0
    while len(view):
        size = sizes[index % len(sizes)]
        yield view[:size]
        view, index = view[size:], index + 1


def in_parts(
    batch: RecordBatch,
    sizes: Sequence[int],
    start: int = 0,
    end: int = END,
    *,
    wanted: frozenset[str] = ALL_COLUMNS,
    times_ms: tuple[int, int] | None = None,
    limit: int = 1 << 30,
) -> Iterator[DecodedRecords]:
    pieces = cut(bytes(batch.data), sizes)
    return decode_large(batch, pieces, Selection(start, end, wanted, times_ms), limit)


def rows_of(chunks: Iterator[DecodedRecords]) -> list[Record]:
    return [row for chunk in chunks for row in to_records(chunk)]


LARGE = (8, 100, 3000)


@pytest.fixture(params=LARGE)
def large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Records above this size count as large."""
    monkeypatch.setattr(decode, "PIECE_BYTES", request.param)
    return request.param


@pytest.mark.parametrize("sizes", [(70, 1, 30), (1000, 3), (1 << 20,)])
def test_the_same_records_wherever_pieces_end(large: int, sizes: Sequence[int]) -> None:
    for records in (
        sample_records(100),
        sample_records(20, sizes=(0, 8192, 70)),
        equal_records(400, 50),
        [Record(5, NOW, None, None, tuple((f"h{n}", b"x" * n) for n in range(300)))],
    ):
        assert rows_of(in_parts(whole(records), sizes)) == records


@settings(max_examples=examples(75))
@given(
    st.lists(contents, min_size=1, max_size=12),
    st.lists(st.integers(1, 200), min_size=1, max_size=4),
    st.sampled_from([8, 60, 500]),
)
def test_any_records_equal_the_slow_twin(rows: list, sizes: list[int], large: int) -> None:
    records = [Record(2 * offset, *row) for offset, row in enumerate(rows)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "PIECE_BYTES", large)
        assert rows_of(in_parts(whole(records), sizes)) == records


SAMPLE = [
    Record(0, NOW, b"key", b"value"),
    Record(1, NOW - 70, None, b""),
    Record(2, NOW + 10**6, b"", None, (("name", b"content"), ("n", None), ("", b""))),
    Record(3, NOW, b"k" * 70, b"v" * 130, (("ž", b"1"),)),
    Record(90, NOW, None, None),
]


def verdict(batch: RecordBatch, sizes: Sequence[int]) -> bool:
    """Whether both codecs find damage, at the same record and behind the same records."""
    expected: list[Record] | None = None
    with contextlib.suppress(reference.Damaged):
        expected = reference.decode_payload(
            bytes(batch.data),
            record_count=batch.record_count,
            base_offset=0,
            last_offset_delta=batch.last_offset_delta,
            base_timestamp=NOW,
            max_timestamp=NOW,
            log_append_time=False,
        )
    if expected is not None:
        plain = [row._replace(attributes=0) for row in expected]
        assert rows_of(in_parts(batch, sizes)) == plain
        return False
    with pytest.raises(CorruptRecordError) as raised:
        rows_of(in_parts(batch, sizes))
    assert raised.value.offset is not None
    assert 0 <= raised.value.position <= len(batch.data)
    return True


def test_every_byte_changed_and_every_cut(large: int) -> None:
    payload = payload_of(SAMPLE)
    damaged = 0
    changes = (0x01, 0x02, 0x80, 0xFF)
    for position in range(len(payload)):
        # One change at each position, another one with each size of large records.
        flipped = bytearray(payload)
        flipped[position] ^= changes[(position + large // 100) % 4]
        damaged += verdict(batch_of(bytes(flipped), 5, last_offset_delta=90), (40,))
    for position in range(LARGE.index(large), len(payload), len(LARGE)):  # each with one size
        assert verdict(batch_of(payload[:position], 5, last_offset_delta=90), (40,))
    assert damaged > len(payload) // 8
    assert verdict(batch_of(payload + b"\0", 5, last_offset_delta=90), (40,))
    assert verdict(batch_of(payload, 4, last_offset_delta=90), (40,))
    assert verdict(batch_of(payload, 6, last_offset_delta=90), (40,))


def test_range_times_and_columns(large: int) -> None:
    records = [record._replace(timestamp=NOW + record.offset) for record in sample_records(200)]
    batch = whole(records)
    for start, end in ((0, 10), (50, 120), (199, END), (300, END)):
        found = rows_of(in_parts(batch, (333,), start, end))
        assert found == [row for row in records if start <= row.offset < end]
    found = rows_of(in_parts(batch, (333,), times_ms=(NOW + 20, NOW + 30)))
    assert found == records[20:31]
    for name in ("key", "value", "headers", "timestamp"):
        chunks = list(in_parts(batch, (333,), wanted=frozenset({name})))
        for column in ("keys", "values", "headers", "timestamps_ms"):
            is_there = all(getattr(chunk, column) is not None for chunk in chunks)
            assert is_there == (column.startswith(name)), column


def test_steps_are_small_enough_to_check_the_deadline_between_them() -> None:
    """One record of 40 MiB: an empty chunk for each piece of it."""
    payload = payload_of([Record(0, NOW, b"k", bytes(40 * MIB))])
    batch = batch_of(payload, 1)
    chunks = list(decode_chunks([batch], Selection(), pauses=True))
    assert len(chunks) > 10
    assert [len(chunk) for chunk in chunks if len(chunk)] == [1]
    assert [len(chunk) for chunk in decode_chunks([batch], Selection())] == [1]
    large = next(chunk.large for chunk in chunks if len(chunk))
    assert large is not None
    assert large.key == b"k"
    assert large.value == bytes(40 * MIB)


@pytest.mark.parametrize("codec", list(Codec))
def test_each_codec_gives_pieces(codec: Codec) -> None:
    data = np.arange(5 * MIB // 4).tobytes()
    pieces = list(decompressed_pieces(codec, compress(codec, data), len(data)))
    assert b"".join(pieces) == data
    if codec is not Codec.NONE:
        assert len(pieces) > 2
        assert max(map(len, pieces)) <= PIECE_BYTES


@functools.cache
def large_payload(count: int) -> bytes:
    """20 MiB."""
    return payload_of(equal_records(count, 20 * MIB // count))


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("count", [1, 50, 30_000])
def test_large_batches_of_each_codec(codec: Codec, count: int) -> None:
    payload = large_payload(count)
    batch = batch_of(payload, count, attributes=int(codec))
    if codec is not Codec.NONE:
        batch = batch._replace(data=memoryview(compress(codec, payload)))
    offset = 0
    for chunk in decode_chunks([batch], Selection()):
        assert chunk.offsets.tolist() == list(range(offset, offset + len(chunk)))
        offset += len(chunk)
        assert set(pc.binary_length(chunk.values).to_pylist()) == {20 * MIB // count}
        assert chunk.size_bytes < 12 * MIB or len(chunk) == 1
    assert offset == count


def header_record(count: int, value: bytes | None = b"", size: int = 0) -> Record:
    return Record(0, NOW, None, b"v" * size, (("", value),) * count)


@pytest.mark.parametrize("size", [0, 6 * MIB])
def test_many_headers_of_one_record(size: int) -> None:
    records = [header_record(300_000, size=size), *equal_records(3, 5, 1)]
    payload = payload_of(records)
    found = decode_batches([batch_of(payload, 4)], Selection())
    values = found.headers.slice(0, 1).flatten().field(1)
    assert pc.binary_length(values).to_pylist() == [0] * 300_000
    assert found.headers.slice(1).null_count == 3
    # Damage in the last of them is seen.
    position = payload.index(b"\0\0" * 1000) + 2 * 299_990
    bad = bytearray(payload)
    bad[position] = 3  # no length is -2
    with pytest.raises(CorruptRecordError):
        decode_batches([batch_of(bytes(bad), 4)], Selection())


def test_headers_of_many_rows_come_few_rows_at_a_time() -> None:
    records = [Record(n, NOW, None, b"v", (("k", None),) * 1000) for n in range(100)]
    batch = batch_of(payload_of(records), 100)
    chunks = list(decode_chunks([batch], Selection()))
    assert max(len(chunk) for chunk in chunks) <= 66
    assert [row for chunk in chunks for row in to_records(chunk)] == records
    # Nobody asked for them: they cost nothing.
    wanted = frozenset({"value"})
    assert [n.headers for n in decode_chunks([batch], Selection(0, END, wanted))]


def test_what_headers_take_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bytes each on the wire, many times that in memory."""
    monkeypatch.setattr(decode, "PIECE_BYTES", MIB // 4)
    large = payload_of([header_record(MIB // 4, size=1)])
    batch = batch_of(large, 1)
    with pytest.raises(BatchTooLargeError, match=f"{MIB // 4} headers in {MIB // 2} bytes"):
        list(decode_chunks([batch], Selection(), max_payload_bytes=4 * MIB))
    few = list(decode_chunks([batch], Selection(0, END, ALL_COLUMNS - {HEADERS})))
    assert few[-1].values.to_pylist() == [b"v"]
    rows = list(decode_chunks([batch], Selection(), max_payload_bytes=32 * MIB))
    assert pc.list_value_length(rows[-1].headers).to_pylist() == [MIB // 4]


def test_a_length_is_refused_before_its_bytes_come() -> None:
    head = reference.encode_varint(100 * MIB)
    payload = head + bytes(6 * MIB)
    batch = batch_of(payload, 1)
    with pytest.raises(BatchTooLargeError, match="are allowed"):
        list(in_parts(batch, (5 * MIB,), limit=50 * MIB))
    with pytest.raises(CorruptRecordError):
        list(in_parts(batch, (5 * MIB,)))


@pytest.mark.parametrize(
    ("codec", "nothing"),
    [(Codec.GZIP, gzip.compress(b"", mtime=0)), (Codec.SNAPPY, b"\0\0\0\x01\0")],
)
def test_parts_that_give_nothing_leave_time_to_check_the_deadline(
    codec: Codec, nothing: bytes
) -> None:
    """A few MB of them took seconds. They may stand anywhere, also inside a record's numbers."""
    record = payload_of([Record(0, NOW, b"key", b"v" * 300)])
    start = b"\x82SNAPPY\x00\0\0\0\1\0\0\0\1" if codec is Codec.SNAPPY else b""

    def part(data: bytes) -> bytes:
        return compress(codec, data)[len(start) :]

    for at in (1, 200, len(record)):
        data = start + part(record[:at]) + 20_000 * nothing
        if at < len(record):
            data += part(record[at:]) + 10_000 * nothing
        assert sum(not len(n) for n in decompressed_pieces(codec, data, MIB)) >= 18
        batch = batch_of(record, 1)._replace(attributes=codec, data=memoryview(data))
        chunks = list(decode_chunks([batch], Selection(), pauses=True))
        assert sum(not len(chunk) for chunk in chunks) >= 18
        assert [row.value for chunk in chunks for row in to_records(chunk)] == [b"v" * 300]
        with pytest.MonkeyPatch.context() as patch:  # and as a large record
            patch.setattr(decode, "PIECE_BYTES", 8)
            chunks = list(decode_chunks([batch], Selection(), pauses=True))
        assert sum(not len(chunk) for chunk in chunks) >= 18
        assert [row.value for chunk in chunks for row in to_records(chunk)] == [b"v" * 300]
