"""Record batches into columns: the fast path against the slow twin, and each rule of the format."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkkafka.errors import BatchTooLargeError, CorruptRecordError, DecodeError
from sparkkafka.protocol.columns import record_starts
from sparkkafka.protocol.columns.columns import CHUNK_RECORDS, DecodedRecords, Selection
from sparkkafka.protocol.columns.decode import decode_batches, decode_chunks
from sparkkafka.protocol.records.batches import Codec, RecordBatch, split_batches
from sparkkafka.protocol.records.compression import compress
from tests.protocol.record_cases import (
    NOW,
    batch_of,
    contents,
    equal_records,
    response,
    sample_records,
    to_records,
)
from tests.support import reference
from tests.support.batches import build_batch
from tests.support.properties import examples
from tests.support.reference import Record

ALL = Selection(0, 2**62)


def decode(*batches: RecordBatch) -> list[Record]:
    return to_records(decode_batches(batches, ALL))


# ---------------------------------------------------------------------------- against the twin


@pytest.mark.slow
@settings(max_examples=examples(80))
@given(
    st.lists(st.tuples(st.lists(contents, min_size=1, max_size=8), st.integers(0, 70)), max_size=12)
)
def test_any_batches_equal_the_slow_twin(groups: list) -> None:
    offset = 0
    records = []
    for rows, gap in groups:
        offset += gap  # between batches
        batch = []
        for index, row in enumerate(rows):
            offset += index % 3  # compaction gaps inside a batch
            batch.append(Record(offset, *row))
            offset += 1
        records.append(batch)
    assert decode(*response(records)) == [record for batch in records for record in batch]


SHAPES = {
    "one record": [1],
    "one small batch": [100],
    "few small batches": [30, 1, 50],
    "many small batches": [120] * 15,
    "batches of very unlike counts": [1, 3, 700, 1, 1, 2, 90, 1, 5, 5, 5, 300],
    "one large batch": [2000],
    "large and small batches": [1500, 5, 5, 5, 1000, 1, 1, 1, 1, 1, 1, 300],
    "more than one chunk": [17_000, 500, 100],
}
CONTENT = {
    "equal sizes": lambda n, first: equal_records(n, 100, first),
    "tiny values": lambda n, first: equal_records(n, 1, first),
    "mixed sizes": lambda n, first: sample_records(n, first=first, seed=first, headers=0),
    "mixed sizes and headers": lambda n, first: sample_records(n, first=first, seed=first),
    "some large": lambda n, first: sample_records(
        n, first=first, seed=first, sizes=(1,) * 4 + (50,) * 24 + (9000,), headers=0
    ),
    "zeros": lambda n, first: [
        Record(first + i, NOW, b"\0" * (i % 40), b"\0" * 60) for i in range(n)
    ],
}


def build(shape: str, content: str) -> list[list[Record]]:
    groups = []
    first = 0
    for count in SHAPES[shape]:
        groups.append(CONTENT[content](count, first))
        first += count
    return groups


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "content"),
    [
        (shape, content)
        for shape in SHAPES
        for content in CONTENT
        if shape != "more than one chunk" or content in ("equal sizes", "mixed sizes and headers")
    ],
)
def test_shapes_of_batches(shape: str, content: str) -> None:
    groups = build(shape, content)
    expected = [record for group in groups for record in group]
    assert decode(*response(groups)) == expected


# ---------------------------------------------------------------------------- record starts


def slow_starts(payload: bytes) -> list[int]:
    starts = []
    position = 0
    while position < len(payload):
        starts.append(position)
        length, position = reference.decode_varint(payload, position, len(payload))
        position += length
    return starts


def seeds_of(data, end, count):
    """Begins of chains in one batch that fills `data` to `end`."""
    one = (np.array([number], np.int64) for number in (0, end, count))
    return record_starts._likely_starts(data, *one)[0]


@pytest.mark.parametrize("content", CONTENT)
def test_each_way_to_find_starts(content: str) -> None:
    count = 2000
    payload = reference.encode_payload(
        CONTENT[content](count, 0), base_offset=0, base_timestamp=NOW
    )
    expected = slow_starts(payload)
    data = np.frombuffer(payload, np.uint8)
    end = len(data)
    assert record_starts.follow_prefixes(data, 0, end, count).tolist() == expected
    runs = record_starts.equal_runs(data, 0, end, count)
    if content in ("equal sizes", "tiny values"):
        assert runs is not None
    if runs is not None:
        assert runs.tolist() == expected
    chains = np.array(expected[::97])
    limits = np.append(chains[1:], end)
    assert record_starts.lockstep(data, chains, limits).tolist() == expected
    seeds = seeds_of(data, end, count)
    assert seeds[0] == 0
    if content in ("equal sizes", "mixed sizes"):
        assert len(seeds) > count // 64 // 2
        assert set(seeds.tolist()) <= set(expected)
    one = [np.array([n]) for n in (0, end, count)]
    bounds = record_starts.find_records(data, *one)
    assert bounds.proven.tolist() == [True]
    assert bounds.starts.tolist() == expected
    assert bounds.ends.tolist() == [*expected[1:], end]


def test_values_that_resemble_records_mislead_only_for_a_while() -> None:
    """Kafka records as values of Kafka records: seeds are wrong, the result must not be."""
    inner = reference.encode_payload(equal_records(40, 13), base_offset=0, base_timestamp=NOW)
    records = [Record(n, NOW, None, inner[: 300 + n % 50]) for n in range(2000)]
    payload = reference.encode_payload(records, base_offset=0, base_timestamp=NOW)
    expected = slow_starts(payload)
    data = np.frombuffer(payload, np.uint8)
    seeds = seeds_of(data, len(data), 2000)
    assert not set(seeds.tolist()) <= set(expected)
    assert decode(batch_of(payload, 2000)) == records


def test_a_long_run_broken_once() -> None:
    """A run that is only looked at in some places would miss this."""
    for odd in (1, 63, 64, 500, 1998, 1999):
        records = equal_records(2000, 100)
        records[odd] = records[odd]._replace(value=b"w" * 99)
        assert decode(*response([records])) == records


def padded(value: int, size: int) -> bytes:
    """A varint with as many bytes as wanted."""
    raw = value * 2 if value >= 0 else -value * 2 - 1
    out = [raw >> 7 * index & 0x7F | 0x80 for index in range(size)]
    out[-1] &= 0x7F
    return bytes(out)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("count", [1, 40, 600])
def test_numbers_of_one_to_five_bytes(size: int, count: int) -> None:
    """Longer than they need to be, which Java reads as well."""
    payload = b""
    for index in range(count):
        number = max(size, 2) if index > 63 else size
        body = b"\0" + padded(-3, size) + padded(index, max(number, 1 + (index > 8191)))
        body += padded(-1, size) + padded(5, size) + b"value" + padded(1, size)
        body += padded(2, size) + b"ab" + padded(-1, size)
        payload += padded(len(body), size) + body
    expected = [Record(n, NOW - 3, None, b"value", (("ab", None),)) for n in range(count)]
    assert decode(batch_of(payload, count)) == expected
    # Many such batches go another way.
    batches = [batch_of(payload, count, base_offset=n * count) for n in range(10)]
    assert len(decode(*batches)) == 10 * count


@pytest.mark.slow
def test_record_of_more_than_a_megabyte() -> None:
    """Its length takes four bytes."""
    records = [
        Record(0, NOW, b"k", b"v" * 3_000_000),
        Record(1, NOW, b"k" * 2_000_000, None),
        Record(2, NOW, None, b""),
    ]
    assert decode(*response([records])) == records


# ---------------------------------------------------------------------------- rules of the format


def test_null_and_empty_are_told_apart() -> None:
    records = [
        Record(0, NOW, None, None),
        Record(1, NOW, b"", b""),
        Record(2, NOW, b"", None, (("", None), ("", b""), ("h", b"1"), ("h", b"2"))),
        Record(3, NOW, None, b""),
    ]
    decoded = decode_batches(response([records]), ALL)
    assert to_records(decoded) == records
    assert decoded.headers.is_null().to_pylist() == [True, True, False, True]
    assert decoded.headers[2].as_py() == [
        {"key": "", "value": None},
        {"key": "", "value": b""},
        {"key": "h", "value": b"1"},
        {"key": "h", "value": b"2"},
    ]


def test_log_append_time_overrides_every_timestamp() -> None:
    records = equal_records(30, 5)
    batches = response([records], attributes=8, max_timestamp=NOW + 999)
    batches += response([[r._replace(offset=r.offset + 30) for r in records]])
    decoded = decode_batches(batches, ALL)
    assert set(decoded.timestamps_ms[:30].tolist()) == {NOW + 999}
    assert decoded.timestamps_ms[30:].tolist() == [record.timestamp for record in records]
    assert decoded.timestamp_types.tolist() == [1] * 30 + [0] * 30
    assert decoded.timestamp_types.dtype == np.int32


def test_no_timestamp_and_timestamps_of_64_bits() -> None:
    for stamps in ([-1, -1], [-1, NOW], [2**63 - 1, -(2**63), 0], [NOW, NOW - 10**9, NOW + 10**9]):
        records = [Record(n, stamp, None, b"v") for n, stamp in enumerate(stamps)]
        assert decode(*response([records])) == records


def test_message_format_0_has_no_timestamp_type() -> None:
    batch = batch_of(
        reference.encode_payload(equal_records(2, 3), base_offset=0, base_timestamp=-1), 2
    )
    assert decode_batches([batch._replace(magic=0)], ALL).timestamp_types.tolist() == [-1, -1]
    assert decode_batches([batch._replace(magic=1)], ALL).timestamp_types.tolist() == [0, 0]


def test_offsets_far_apart_after_compaction() -> None:
    records = [
        Record(offset, NOW, b"k", b"v") for offset in (10**12, 10**12 + 7, 10**12 + 2**31 - 1)
    ]
    assert decode(*response([records])) == records


def test_batch_emptied_by_compaction() -> None:
    empty = batch_of(b"", 0, base_offset=5, last_offset_delta=10)
    after = response([[Record(16, NOW, None, b"v")]])
    assert [record.offset for record in decode(empty, *after)] == [16]
    assert len(decode_batches([empty], ALL)) == 0


@pytest.mark.parametrize(("start", "end"), [(0, 99), (7, 8), (12, 50), (25, 26), (30, 99), (9, 9)])
def test_only_offsets_that_were_asked_for(start: int, end: int) -> None:
    groups = [
        [Record(n, NOW + n, b"k", b"%d" % n, (("h", b"%d" % n),)) for n in offsets]
        for offsets in ((0, 1, 4, 7, 8, 12), (20, 25), tuple(range(26, 60)))
    ]
    expected = [r for group in groups for r in group if start <= r.offset < end]
    decoded = decode_batches(response(groups), Selection(start, end))
    assert to_records(decoded) == expected


@functools.cache
def numbered(deltas: tuple[int, ...]) -> bytes:
    """Records with these offset deltas."""
    return b"".join(
        reference.encode_record(timestamp_delta=0, offset_delta=d, key=None, value=b"%d" % d * 4)
        for d in deltas
    )


@pytest.mark.slow
@pytest.mark.parametrize("before", [0, 5, CHUNK_RECORDS - 1, CHUNK_RECORDS])
@pytest.mark.parametrize(("deltas", "bad"), [((1, 1), 2), ((2, 1), 3), ((0, 1, 1), 2)])
def test_offsets_must_ascend_inside_a_batch(before: int, deltas: Sequence[int], bad: int) -> None:
    """Wherever chunks and pieces end; `bad` is the smallest offset of the wrong record."""
    wrong = tuple(before + delta for delta in deltas)
    every = [*range(before), *wrong]
    payload = numbered(tuple(range(before))) + numbered(wrong)
    batch = batch_of(payload, len(every), last_offset_delta=before + 5)
    rows: list[int] = []
    with pytest.raises(CorruptRecordError, match=f"record {len(every)} of") as raised:
        for chunk in decode_chunks([batch], ALL):
            rows += chunk.offsets.tolist()
    assert raised.value.offset == before + bad
    assert rows == every[: len(rows)]


def test_batches_outside_the_range_are_not_even_read() -> None:
    batches = response([equal_records(3, 5), equal_records(3, 5, 3), equal_records(3, 5, 6)])
    broken = [batch._replace(data=memoryview(b"broken")) for batch in batches]
    good = decode_batches([broken[0], batches[1], broken[2]], Selection(3, 6))
    assert good.offsets.tolist() == [3, 4, 5]


@settings(max_examples=examples(80))
@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.lists(st.integers(-5, 5).map(lambda n: n * 1000), min_size=1, max_size=6),
        ),
        max_size=8,
    ),
    st.integers(-6, 6).map(lambda n: n * 1000),
    st.integers(-1000, 6000),
    st.sampled_from([frozenset({"value"}), frozenset({"timestamp", "value", "headers"})]),
)
def test_only_times_that_were_asked_for(
    groups: list, first_ms: int, more_ms: int, wanted: frozenset
) -> None:
    batches, expected, offset = [], [], 0
    for append_time, stamps in groups:
        headers = (("h", b"1"),)
        records = [
            Record(offset + n, stamp, None, b"%d" % (offset + n), headers)
            for n, stamp in enumerate(stamps)
        ]
        offset += len(records)
        batches += response([records], attributes=8 if append_time else 0)
        for record in records:
            time_ms = max(stamps) if append_time else record.timestamp
            if first_ms <= time_ms <= first_ms + more_ms:
                expected.append((record.offset, time_ms))
    chunks = list(
        decode_chunks(batches, Selection(0, 2**62, wanted, (first_ms, first_ms + more_ms)))
    )
    assert [offset for chunk in chunks for offset in chunk.offsets] == [at for at, _ in expected]
    values = [value for chunk in chunks for value in chunk.values.to_pylist()]
    assert values == [b"%d" % at for at, _ in expected]
    for chunk in chunks:
        assert (chunk.timestamps_ms is not None) == ("timestamp" in wanted)
        assert chunk.headers is None or len(chunk.headers) == len(chunk)
    if "timestamp" in wanted:
        found = [time_ms for chunk in chunks for time_ms in chunk.timestamps_ms]
        assert found == [time_ms for _, time_ms in expected]


def test_batches_of_other_times_are_not_even_read() -> None:
    """max_timestamp tells of too early records, and of too late ones if all have it."""
    early, late = response([equal_records(3, 5), equal_records(3, 5, 3)])
    broken = {"data": memoryview(b"broken")}
    batches = [
        early._replace(max_timestamp=99, **broken),
        late._replace(max_timestamp=201, attributes=8, **broken),
    ]
    assert list(decode_chunks(batches, ALL._replace(times_ms=(100, 200)))) == []
    with pytest.raises(DecodeError):
        list(decode_chunks([batches[1]._replace(attributes=0)], ALL._replace(times_ms=(100, 200))))


def test_attributes_of_a_record_are_ignored() -> None:
    records = [Record(n, NOW, None, b"v", attributes=n * 37 % 256) for n in range(50)]
    assert decode(*response([records])) == [record._replace(attributes=0) for record in records]


@pytest.mark.parametrize(
    "wanted", [set(), {"offset"}, {"key"}, {"value"}, {"headers"}, {"timestamp"}, {"key", "value"}]
)
def test_only_wanted_columns(wanted: set[str]) -> None:
    records = sample_records(300)
    decoded = decode_batches(response([records]), ALL._replace(columns=frozenset(wanted)))
    assert decoded.offsets.tolist() == [record.offset for record in records]
    got = {
        name
        for name, column in (
            ("key", decoded.keys),
            ("value", decoded.values),
            ("headers", decoded.headers),
            ("timestamp", decoded.timestamps_ms),
        )
        if column is not None
    }
    assert got == wanted - {"offset"}
    if decoded.values is not None:
        assert decoded.values.to_pylist() == [record.value for record in records]
    nothing = decode_batches([], ALL._replace(columns=frozenset(wanted)))
    assert (nothing.keys is None, len(nothing)) == ("key" not in wanted, 0)


def test_unknown_column_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown columns"):
        decode_batches([], ALL._replace(columns=frozenset({"values"})))


@pytest.mark.parametrize("codec", list(Codec))
def test_compressed_batches(codec: Codec) -> None:
    """Payloads then lie in buffers of their own."""
    groups = [sample_records(80, first=80 * n, seed=n) for n in range(10)]
    whole = b"".join(
        build_batch(
            reference.encode_payload(group, base_offset=group[0].offset, base_timestamp=NOW),
            record_count=80,
            base_timestamp=NOW,
            max_timestamp=NOW + 200,
            base_offset=group[0].offset,
            codec=codec,
        )
        for group in groups
    )
    assert decode(*split_batches(whole)) == [record for group in groups for record in group]


def test_batches_out_of_order_and_from_several_buffers() -> None:
    first, second, third = (response([equal_records(20, 30, 20 * n)] * 1)[0] for n in (0, 1, 2))
    both = response([equal_records(20, 30, 60), equal_records(20, 30, 80)])
    order = [third, first, both[1], both[0], second]
    offsets = decode_batches(order, ALL).offsets.reshape(5, 20)[:, 0]
    assert offsets.tolist() == [40, 0, 80, 60, 20]


# ---------------------------------------------------------------------------- pieces and memory


@pytest.mark.slow
def test_chunks_are_bounded_and_complete() -> None:
    groups = [equal_records(9000, 10, 9000 * n) for n in range(5)]
    groups.append(equal_records(40_000, 10, 45_000))
    chunks = list(decode_chunks(response(groups), ALL))
    assert max(len(chunk) for chunk in chunks) <= CHUNK_RECORDS
    assert len(chunks) == 6
    assert np.concatenate([chunk.offsets for chunk in chunks]).tolist() == list(range(85_000))


def test_columns_outlive_a_receive_buffer_that_is_used_again() -> None:
    records = sample_records(200)
    buffer = bytearray(reference.encode_batch(records))
    decoded = decode_batches(split_batches(buffer), ALL)
    buffer[:] = b"\xff" * len(buffer)
    assert to_records(decoded) == records


def test_payload_limit_reaches_decompression() -> None:
    payload = reference.encode_payload(equal_records(1000, 20), base_offset=0, base_timestamp=NOW)
    data = memoryview(compress(Codec.ZSTD, payload))
    packed = batch_of(payload, 1000, attributes=int(Codec.ZSTD))._replace(data=data)
    decode_batches([packed], ALL, max_payload_bytes=len(payload))
    with pytest.raises(BatchTooLargeError, match=f"the {len(payload) - 1} bytes allowed"):
        decode_batches([packed], ALL, max_payload_bytes=len(payload) - 1)


def test_slices_share_memory() -> None:
    records = sample_records(100)
    decoded = decode_batches(response([records]), ALL)
    part = decoded.slice(20, 30)
    assert to_records(part) == records[20:30]
    assert np.shares_memory(part.offsets, decoded.offsets)
    assert part.values.buffers()[2].address == decoded.values.buffers()[2].address
    assert len(decoded.slice(90, 500)) == 10
    assert len(decoded.slice(30, 20)) == 0


def test_too_much_for_one_array_is_an_error_not_wrong_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def overflow(arrays: list[pa.Array]) -> pa.Array:
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")

    monkeypatch.setattr(pa, "concat_arrays", overflow)
    batches = response([equal_records(CHUNK_RECORDS, 1), equal_records(10, 1, CHUNK_RECORDS)])
    with pytest.raises(DecodeError, match="too much data for one Arrow array"):
        decode_batches(batches, ALL)
    assert isinstance(next(iter(decode_chunks(batches, ALL))), DecodedRecords)
