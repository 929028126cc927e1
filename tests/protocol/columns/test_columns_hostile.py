"""Damaged record bytes: always CorruptRecordError, and never other records than the slow twin's.

The checksum is left out on purpose: these are the bytes that a correct checksum may still carry.
"""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkkafka.errors import CorruptRecordError
from sparkkafka.protocol.columns.columns import Selection
from sparkkafka.protocol.columns.decode import decode_batches
from sparkkafka.protocol.records.batches import RecordBatch
from tests.protocol.record_cases import (
    NOW,
    batch_of,
    contents,
    equal_records,
    reference_records,
    sample_records,
    to_records,
)
from tests.support import reference
from tests.support.properties import examples
from tests.support.reference import Record
from tests.support.waiting import processor_time

ALL = Selection(-(2**63), 2**64)

SAMPLE = [
    Record(0, NOW, b"key", b"value"),
    Record(1, NOW - 70, None, b""),
    Record(2, NOW + 10**6, b"", None, (("name", b"content"), ("n", None), ("", b""))),
    Record(3, NOW, b"k" * 70, b"v" * 130, (("ž", b"1"),)),
    Record(90, NOW, None, None),
]


def payload_of(records: Sequence[Record]) -> bytes:
    return reference.encode_payload(records, base_offset=records[0].offset, base_timestamp=NOW)


def same_verdict(batches: Sequence[RecordBatch]) -> bool:
    """Checks that both codecs say the same; whether they found damage."""
    expected: list[Record] | None = []
    damage = None
    for batch in batches:
        try:
            expected += [record._replace(attributes=0) for record in reference_records(batch)]
        except reference.Damaged as damaged:
            damage = damaged
            break
    if damage is None:
        assert to_records(decode_batches(batches, ALL)) == expected
        return False
    with pytest.raises(CorruptRecordError) as raised:
        decode_batches(batches, ALL)
    assert raised.value.position is not None
    assert raised.value.offset is not None
    # A count that the bytes cannot hold is seen before any record, and named by its batch.
    if damage.offset is not None and "records cannot lie in" not in raised.value.reason:
        assert raised.value.offset == damage.offset
    # What is not wanted must not make sound bytes damaged, nor run into trouble.
    with contextlib.suppress(CorruptRecordError):
        decode_batches(batches, ALL._replace(columns=frozenset({"value"})))
    return True


# ---------------------------------------------------------------------------- systematic damage


def test_cut_at_every_byte() -> None:
    payload = payload_of(SAMPLE)
    for size in range(len(payload)):
        assert same_verdict([batch_of(payload[:size], 5, last_offset_delta=90)]), size
    assert not same_verdict([batch_of(payload, 5, last_offset_delta=90)])


@pytest.mark.slow
def test_every_byte_changed() -> None:
    payload = payload_of(SAMPLE)
    damaged = 0
    for position in range(len(payload)):
        for change in ((0x01, 0x80), (0x02, 0xFF))[position % 2]:
            flipped = bytearray(payload)
            flipped[position] ^= change
            batch = batch_of(bytes(flipped), 5, last_offset_delta=90)
            damaged += same_verdict([batch])
    assert damaged > len(payload) // 4


@pytest.mark.parametrize("count", [-(2**31), -1, 0, 1, 4, 6, 35, 2**31 - 1])
def test_record_count_that_is_not_the_payload_s(count: int) -> None:
    batch = batch_of(payload_of(SAMPLE), count, last_offset_delta=90)
    with processor_time(2):
        assert same_verdict([batch])


def test_no_bytes_for_records_and_no_records_for_bytes() -> None:
    assert same_verdict([batch_of(b"", 1)])
    assert same_verdict([batch_of(b"\0", 0)])


@pytest.mark.slow
@pytest.mark.parametrize("position", [0, 1, 40, 5000, -1])
@pytest.mark.parametrize("sizes", ["equal", "mixed"])
def test_damage_in_a_large_batch(sizes: str, position: int) -> None:
    """Equal runs and seeds are in use here."""
    records = equal_records(1000, 50) if sizes == "equal" else sample_records(1000, headers=0)
    payload = payload_of(records)
    for change in (0x01, 0x40, 0xFF):
        damaged = bytearray(payload)
        damaged[position] ^= change
        same_verdict([batch_of(bytes(damaged), 1000)])
    if position == -1:
        assert same_verdict([batch_of(payload[:-1], 1000)])
        assert same_verdict([batch_of(payload + b"\0", 1000)])
        assert same_verdict([batch_of(payload, 999)])


def test_damage_in_one_of_many_batches() -> None:
    """All batches go in lockstep; the damaged one is named, wherever it is."""
    chance = np.random.default_rng(7)
    groups = [sample_records(30, first=30 * n, seed=n, sizes=(1, 20, 70)) for n in range(20)]
    payloads = [payload_of(group) for group in groups]
    damaged = 0
    for _ in range(60):
        which = int(chance.integers(20))
        bad = bytearray(payloads[which])
        bad[int(chance.integers(len(bad)))] ^= int(chance.integers(1, 256))
        batches = [
            batch_of(bytes(bad) if n == which else payload, 30, base_offset=30 * n)
            for n, payload in enumerate(payloads)
        ]
        damaged += same_verdict(batches)
    assert damaged > 5


# ---------------------------------------------------------------------------- lengths and counts


def record(
    *,
    length: int | None = None,
    key: int = -1,
    value: int = -1,
    headers: int = 0,
    rest: bytes = b"",
    offset: int = 0,
) -> bytes:
    """A record with any numbers in it, true or not."""
    body = b"\0" + reference.encode_varlong(0) + reference.encode_varint(offset)
    body += reference.encode_varint(key) + reference.encode_varint(value)
    body += reference.encode_varint(headers) + rest
    return reference.encode_varint(len(body) if length is None else length) + body


EXTREMES = (-(2**31), -(2**31) + 1, -100, -2, 1, 5, 6, 7, 100, 8191, 8192, 2**30, 2**31 - 1)


@pytest.mark.slow
@pytest.mark.parametrize("number", EXTREMES)
@pytest.mark.parametrize("field", ["length", "key", "value", "headers", "offset"])
def test_numbers_that_are_not_true(field: str, number: int) -> None:
    with processor_time(5):
        for rest in (b"", b"\0" * 300):
            good = record()
            bad = record(**{field: number}, rest=rest)
            for payload, count in ((bad, 1), (good + bad, 2), (bad + good, 2), (bad * 300, 300)):
                same_verdict([batch_of(payload, count)])
            same_verdict([batch_of(bad, 1, base_offset=n) for n in range(20)])


@pytest.mark.parametrize("number", [*EXTREMES, -1])
@pytest.mark.parametrize("rows", [1, 40])
def test_numbers_in_headers_that_are_not_true(rows: int, number: int) -> None:
    size = reference.encode_varint(number)
    one = reference.encode_varint(1) + b"k"
    for rest in (size, size + one, one + size, one + size + b"\0" * 9, size + b"\0" * 200):
        payload = record(headers=1, rest=rest) * rows
        same_verdict([batch_of(payload, rows)])


def test_null_header_key_and_header_key_that_is_not_text() -> None:
    for rest in (b"\x01\x00", b"\x02\xff\x00", b"\x06\xed\xa0\x80\x00", b"\x02\xc3\x00"):
        for rows in (1, 40):
            payload = record() + record(headers=1, rest=rest, offset=1) * rows
            batch = batch_of(payload, rows + 1)
            assert same_verdict([batch])
            with pytest.raises(CorruptRecordError, match="header key") as raised:
                decode_batches([batch], ALL)
            assert raised.value.offset == 1


def test_varints_longer_than_their_type() -> None:
    for varint in (b"\x80" * 5 + b"\0", b"\xff" * 4 + b"\x10", b"\xff" * 12, b"\xff" * 4 + b"\x7f"):
        for payload in (
            varint + b"\0" * 20,
            b"\x28\0" + varint + b"\0" * 20,
            b"\x28\0\0" + varint + b"\0" * 20,
            b"\x28\0\0\0" + varint + b"\0" * 20,
        ):
            same_verdict([batch_of(payload[:21], 1), batch_of(payload[:21], 1)])
    assert same_verdict([batch_of(b"\x20\0" + b"\xff" * 9 + b"\x02" + b"\0\x01\x01\0", 1)])
    assert not same_verdict([batch_of(b"\x1e\0" + b"\xff" * 9 + b"\x01" + b"\0\x01\x01\0", 1)])


def test_offsets_outside_64_bits() -> None:
    for base in (-1, -(2**63), 2**63 - 1):
        batch = batch_of(record() + record(offset=1), 2, base_offset=base)
        with pytest.raises(CorruptRecordError):
            decode_batches([batch], Selection(0, 2**62))


@pytest.mark.slow
def test_millions_of_headers_take_bounded_time_and_memory() -> None:
    count = 200_000
    payload = record(headers=count, rest=b"\0\x01" * count)
    with processor_time(20):
        assert not same_verdict([batch_of(payload, 1)])
        assert same_verdict([batch_of(record(headers=count, rest=b"\0\x01" * (count - 1)), 1)])


def test_claims_allocate_nothing() -> None:
    tracemalloc.start()
    try:
        for batch in (
            batch_of(record(headers=2**31 - 1), 1),
            batch_of(record(value=2**31 - 1), 1),
            batch_of(record(length=2**31 - 1), 1),
            batch_of(record(), 2**31 - 1),
        ):
            with pytest.raises(CorruptRecordError):
                decode_batches([batch], ALL)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------------------- random damage


@pytest.mark.slow
@settings(max_examples=examples(250))
@given(st.data())
def test_damaged_records(data: st.DataObject) -> None:
    rows = data.draw(st.lists(contents, min_size=1, max_size=5))
    records = [Record(n, *row) for n, row in enumerate(rows)]
    payload = bytearray(payload_of(records))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(payload) - 1))
        what = data.draw(st.sampled_from(("change", "remove", "insert")))
        byte = data.draw(st.integers(0, 255))
        if what == "change":
            payload[position] = byte
        elif what == "insert":
            payload.insert(position, byte)
        elif len(payload) > 1:
            del payload[position]
    same_verdict([batch_of(bytes(payload), len(records))])


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from((0, 0, 0, 1, 2, 6, 12, 14, 20, 128, 255)), max_size=40),
            st.integers(0, 4),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_bytes_that_are_nearly_records(groups: list[tuple[list[int], int]]) -> None:
    same_verdict([batch_of(bytes(raw), count) for raw, count in groups])


@settings(max_examples=examples(100))
@given(st.binary(max_size=60), st.integers(-1, 9))
def test_any_bytes(raw: bytes, count: int) -> None:
    same_verdict([batch_of(raw, count)])
