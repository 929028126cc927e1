"""Columns into records: byte-equal to the slow twin and to kafka-python, cut and split rightly."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder

from sparkkafka.errors import EncodeError
from sparkkafka.protocol.columns.columns import HEADERS_TYPE, Selection
from sparkkafka.protocol.columns.decode import decode_batches
from sparkkafka.protocol.columns.encode import (
    MAX_BATCH_BYTES,
    RecordColumns,
    RecordFields,
    encode_batches,
    encode_records,
    encode_runs,
    record_sizes,
    run_sizes,
    sliced,
    split_encoded,
)
from sparkkafka.protocol.records.batches import EncodedBatch, split_batches
from tests.protocol.record_cases import (
    NOW,
    contents,
    equal_records,
    sample_records,
    to_columns,
    to_records,
)
from tests.support import reference
from tests.support.batches import build_batch
from tests.support.properties import examples
from tests.support.reference import Record

WHOLE = MAX_BATCH_BYTES


def reference_payload(records: list[Record]) -> bytes:
    """Offset deltas and timestamp deltas count from the first of the records."""
    return reference.encode_payload(
        records, base_offset=records[0].offset, base_timestamp=records[0].timestamp
    )


def check(
    records: list[Record], columns: RecordColumns, max_batch_bytes: int
) -> list[EncodedBatch]:
    """Encodes and compares every batch with the slow twin."""
    batches = encode_batches(columns, max_batch_bytes=max_batch_bytes)
    sizes = record_sizes(columns)
    first = 0
    for batch in batches:
        part = records[first : first + batch.record_count]
        expected = reference_payload(part)
        assert bytes(batch.payload) == expected
        assert batch.base_timestamp == part[0].timestamp
        assert batch.max_timestamp == max(record.timestamp for record in part)
        assert 61 + len(expected) <= max_batch_bytes or batch.record_count == 1
        assert len(expected) <= sizes[first : first + len(part)].sum()
        first += batch.record_count
    assert first == len(records)
    return batches


# ---------------------------------------------------------------------------- against others


@pytest.mark.slow
@settings(max_examples=examples(120))
@given(st.lists(contents, max_size=60), st.sampled_from((61, 100, 300, 16384, WHOLE)))
def test_any_records_equal_the_slow_twin(rows: list, max_batch_bytes: int) -> None:
    records = [Record(n, *row) for n, row in enumerate(rows)]
    check(records, to_columns(records), max_batch_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("max_batch_bytes", [1000, 16384, 1 << 20])
@pytest.mark.parametrize("headers", [0, 0.2])
@pytest.mark.parametrize("count", [1, 64, 65, 9000])
def test_many_records_equal_the_slow_twin(count: int, headers: float, max_batch_bytes: int) -> None:
    records = sample_records(count, headers=headers)
    columns = to_columns(records)
    if not headers:
        columns = columns._replace(headers=None)
    check(records, columns, max_batch_bytes)


@pytest.mark.parametrize("missing", [("keys",), ("values",), ("keys", "values", "headers")])
def test_columns_that_are_not_there_are_null(missing: tuple[str, ...]) -> None:
    records = sample_records(300)
    columns = to_columns(records)._replace(**dict.fromkeys(missing))
    fields = {"keys": {"key": None}, "values": {"value": None}, "headers": {"headers": ()}}
    for name in missing:
        records = [record._replace(**fields[name]) for record in records]
    check(records, columns, 4096)


def test_whole_batch_equals_kafka_python() -> None:
    records = sample_records(2000, sizes=(0, 1, 63, 64, 200, 8192))
    builder = DefaultRecordBatchBuilder(2, 0, True, 4711, 3, 99, 1 << 30)
    for record in records:
        headers = [(name, content) for name, content in record.headers]
        builder.append(record.offset, record.timestamp, record.key, record.value, headers)
    (batch,) = encode_batches(to_columns(records), max_batch_bytes=WHOLE)
    ours = build_batch(
        batch.payload,
        record_count=batch.record_count,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
        producer_id=4711,
        producer_epoch=3,
        base_sequence=99,
        transactional=True,
    )
    theirs = bytearray(builder.build())
    theirs[12:16] = ours[12:16]  # partitionLeaderEpoch: 0 there, -1 as in Java here; broker's own
    assert bytes(ours) == bytes(theirs)


def test_there_and_back() -> None:
    records = sample_records(5000)
    whole = b""
    offset = 0
    for batch in encode_batches(to_columns(records), max_batch_bytes=16384):
        whole += build_batch(
            batch.payload,
            record_count=batch.record_count,
            base_timestamp=batch.base_timestamp,
            max_timestamp=batch.max_timestamp,
            base_offset=offset,
        )
        offset += batch.record_count
    decoded = decode_batches(split_batches(whole), Selection(0, 2**62))
    assert to_records(decoded) == records


# ---------------------------------------------------------------------------- column types


TEXTS = ["a", None, "", "žluťoučký kůň", "x" * 64, "a", "xyz"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.string_view(),
        pa.binary_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.binary()),
    ],
    ids=str,
)
def test_kinds_of_text_and_bytes(kind: pa.DataType) -> None:
    bare = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = "string" in str(bare)
    values = [t if t is None or is_text else t.encode() for t in TEXTS]
    column = pa.array(values, kind) if kind is bare else pa.array(values, bare).cast(kind)
    records = [Record(n, NOW, t and t.encode(), t and t.encode()) for n, t in enumerate(TEXTS)]
    records[2] = Record(2, NOW, b"", b"")
    stamps = np.full(len(TEXTS), NOW)
    check(records, RecordColumns(column, column, None, stamps), WHOLE)
    sliced = column.slice(2, 4)
    check(records[2:6], RecordColumns(sliced, sliced, None, stamps[:4]), WHOLE)


def test_fixed_size_bytes_and_the_null_type() -> None:
    fixed = pa.array([b"abcd", None, b"efgh"], pa.binary(4))
    records = [Record(n, NOW, key, None) for n, key in enumerate((b"abcd", None, b"efgh"))]
    check(records, RecordColumns(fixed, pa.nulls(3), None, np.full(3, NOW)), WHOLE)
    check(records[1:], RecordColumns(fixed[1:], pa.nulls(2), None, np.full(2, NOW)), WHOLE)


def test_null_entries_may_hide_bytes() -> None:
    """Arrow leaves open what lies under a null."""
    hidden = pa.Array.from_buffers(
        pa.binary(),
        3,
        [
            pa.py_buffer(b"\x05"),
            pa.py_buffer(np.array([0, 2, 5, 6], np.int32)),
            pa.py_buffer(b"aabbbc"),
        ],
    )
    assert hidden.to_pylist() == [b"aa", None, b"c"]
    records = [Record(n, NOW, blob, blob) for n, blob in enumerate((b"aa", None, b"c"))]
    check(records, RecordColumns(hidden, hidden, None, np.full(3, NOW)), WHOLE)


def test_sliced_columns() -> None:
    records = sample_records(500, headers=0.5)
    columns = to_columns(records)
    for low, high in ((1, 500), (0, 499), (37, 411), (250, 251), (7, 7)):
        part = RecordColumns(
            *(column.slice(low, high - low) for column in columns[:3]),
            columns.timestamps_ms[low:high],
        )
        expected = [r._replace(offset=n) for n, r in enumerate(records[low:high])]
        check(expected, part, 2000)


def test_headers_in_other_shapes() -> None:
    pairs = [[("a", b"1"), ("a", None)], None, [], [("", b"")], [("ž", b"22")]]
    records = [
        Record(n, NOW, None, b"v", tuple(some) if some else ()) for n, some in enumerate(pairs)
    ]
    rows = [None if p is None else [{"key": k, "value": v} for k, v in p] for p in pairs]
    text, blob = pa.field("key", pa.string()), pa.field("value", pa.binary())
    large = [pa.field("key", pa.large_string()), pa.field("value", pa.large_binary())]
    values = pa.array([b"v"] * 5)
    for kind in (
        pa.list_(pa.struct([text, blob])),
        pa.list_(pa.struct([blob, text])),
        pa.large_list(pa.struct(large)),
        pa.list_(pa.struct([pa.field("key", pa.binary()), pa.field("value", pa.string())])),
    ):
        some = rows
        if pa.types.is_binary(kind.value_type.field("key").type):
            some = [
                r
                and [
                    {"key": h["key"].encode(), "value": h["value"] and h["value"].decode()}
                    for h in r
                ]
                for r in rows
            ]
            some[3] = [{"key": b"", "value": ""}]
        column = pa.array(some, kind)
        check(records, RecordColumns(None, values, column, np.full(5, NOW)), WHOLE)


def test_null_lists_may_hide_headers() -> None:
    entries = pa.array(
        [{"key": "a", "value": b"1"}, {"key": "b", "value": None}, {"key": "c"}],
        HEADERS_TYPE.value_type,
    )
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()), entries, mask=pa.array([False, True, False])
    )
    records = [
        Record(0, NOW, None, None, (("a", b"1"),)),
        Record(1, NOW, None, None),
        Record(2, NOW, None, None, (("c", None),)),
    ]
    check(records, RecordColumns(None, None, lists, np.full(3, NOW)), WHOLE)


# ---------------------------------------------------------------------------- refusals


def test_null_header_key_names_the_row() -> None:
    rows = [None, [{"key": "a", "value": b""}], [], [{"key": "b"}, {"key": None, "value": b"x"}]]
    columns = RecordColumns(None, pa.nulls(4), pa.array(rows, HEADERS_TYPE), np.full(4, NOW))
    with pytest.raises(EncodeError, match="row 3: a header key is null"):
        encode_batches(columns, max_batch_bytes=WHOLE)
    null_entry = pa.array([[None], None, None, None], HEADERS_TYPE)
    with pytest.raises(EncodeError, match="row 0: a header key is null"):
        record_sizes(columns._replace(headers=null_entry))


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("keys", pa.array([1, 2]), "key column is int64"),
        ("values", pa.array([1.5, 2]), "value column is double"),
        ("values", pa.array([b"a"]), "value column has 1 rows, timestamps 2"),
        ("headers", pa.array(["a", "b"]), "headers column is string"),
        ("headers", pa.array([["a"], None]), "headers column is list"),
        ("headers", pa.array([[{"k": "a"}], None]), "headers have fields"),
        ("headers", pa.array([[{"key": 1, "value": b""}], None]), "header key column is int64"),
    ],
)
def test_columns_of_another_type_or_length(name: str, column: pa.Array, message: str) -> None:
    columns = RecordColumns(None, None, None, np.full(2, NOW))._replace(**{name: column})
    with pytest.raises(EncodeError, match=message):
        encode_batches(columns, max_batch_bytes=WHOLE)


# ---------------------------------------------------------------------------- cuts and splits


def test_no_rows_no_batches() -> None:
    empty = to_columns([])
    assert encode_batches(empty, max_batch_bytes=1000) == []
    assert record_sizes(empty).tolist() == []


def test_batches_are_nearly_full() -> None:
    records = equal_records(20_000, 100)
    batches = encode_batches(to_columns(records), max_batch_bytes=16384)
    fill = [61 + len(batch.payload) for batch in batches[:-1]]
    assert min(fill) > 16384 * 0.97
    assert max(fill) <= 16384


def test_a_record_beyond_the_limit_stands_alone() -> None:
    sizes = [10, 10, 5000, 10, 6000, 7000, 10]
    records = [Record(n, NOW, None, b"v" * size) for n, size in enumerate(sizes)]
    batches = check(records, to_columns(records), 1000)
    assert [batch.record_count for batch in batches] == [2, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("count", [2, 3, 130, 9001])
def test_split_in_two(count: int) -> None:
    records = sample_records(count)
    (batch,) = encode_batches(to_columns(records), max_batch_bytes=WHOLE)
    first, second = split_encoded(batch)
    middle = count // 2
    for half, part in ((first, records[:middle]), (second, records[middle:])):
        assert half.record_count == len(part)
        assert bytes(half.payload) == reference_payload(part)
        assert half.base_timestamp == part[0].timestamp
        assert half.max_timestamp == max(record.timestamp for record in part)


def test_one_record_cannot_be_split() -> None:
    (batch,) = encode_batches(to_columns(equal_records(1, 5)), max_batch_bytes=WHOLE)
    with pytest.raises(EncodeError, match="one record"):
        split_encoded(batch)


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=200),
            st.none() | st.binary(max_size=20_000),
            st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9))),
            st.integers(0, 1 << 62),
        ),
        min_size=1,
        max_size=70,
    )
)
@settings(max_examples=examples(30))
def test_a_few_records_are_encoded_as_by_the_slow_twin(records: list[RecordFields]) -> None:
    encoded = encode_records(records)
    slow = reference.encode_payload(
        [
            Record(offset, timestamp_ms, key, value, tuple(headers))
            for offset, (key, value, headers, timestamp_ms) in enumerate(records)
        ],
        base_offset=0,
        base_timestamp=records[0][3],
    )
    assert bytes(encoded.payload) == slow
    assert encoded.record_count == len(records)
    assert encoded.base_timestamp == records[0][3]
    assert encoded.max_timestamp == max(record[3] for record in records)


def test_payloads_share_one_buffer() -> None:
    """No copy for each batch: only the last of each few megabytes is one."""
    batches = encode_batches(to_columns(equal_records(5000, 100)), max_batch_bytes=16384)
    owners = {id(batch.payload.obj) for batch in batches[:-1]}
    assert len(owners) == 1


# ---------------------------------------------------------------------------- several runs


@settings(max_examples=examples(60))
@given(st.lists(contents, max_size=40), st.data(), st.integers(100, 2000))
def test_runs_that_are_encoded_together_are_each_what_they_would_be_alone(
    rows: list, data: st.DataObject, max_batch_bytes: int
) -> None:
    records = [Record(n, *row) for n, row in enumerate(rows)]
    cuts = data.draw(st.sets(st.integers(1, len(records)), max_size=8)) if records else set()
    run_ends = sorted({*cuts, len(records)}) if records else []
    columns = to_columns(records)
    runs = encode_runs(columns, run_ends, max_batch_bytes=max_batch_bytes)
    assert len(runs) == len(run_ends)
    sizes = record_sizes(columns)
    first = 0
    for batches, end in zip(runs, run_ends, strict=True):
        for batch in batches:
            part = records[first : first + batch.record_count]
            expected = reference_payload(part)
            assert bytes(batch.payload) == expected
            assert batch.base_timestamp == part[0].timestamp
            assert batch.max_timestamp == max(record.timestamp for record in part)
            assert 61 + len(expected) <= max_batch_bytes or batch.record_count == 1
            assert len(expected) <= sizes[first : first + len(part)].sum()
            first += batch.record_count
        assert first == end


def test_a_run_that_needs_two_batches_is_cut_in_the_middle_and_others_are_whole() -> None:
    columns = to_columns(equal_records(300, 100))
    runs = encode_runs(columns, [10, 210, 300], max_batch_bytes=16384)
    counts = [[batch.record_count for batch in batches] for batches in runs]
    assert counts[0] == [10] and counts[2] == [90]
    assert sum(counts[1]) == 200 and len(counts[1]) == 2
    assert min(counts[1]) >= 95


@pytest.mark.parametrize("rows", [20, 2000])
def test_the_size_of_a_run_is_never_too_small(rows: int) -> None:
    columns = to_columns(equal_records(rows, 100))
    run_ends = [rows // 4, rows // 2, rows]
    payloads = encode_runs(columns, run_ends, max_batch_bytes=WHOLE)
    for size, (batch,), low, high in zip(
        run_sizes(columns, run_ends), payloads, [0, *run_ends], run_ends, strict=False
    ):
        assert len(batch.payload) <= size <= len(batch.payload) + 16 * (high - low)
        (alone,) = encode_batches(sliced(columns, low, high), max_batch_bytes=WHOLE)
        assert bytes(alone.payload) == bytes(batch.payload)
