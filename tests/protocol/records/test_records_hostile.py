"""Hostile record bytes: one error type with a position, bounded memory and time, never an
IndexError, a struct.error, or rows that nobody wrote.

Damage is also made under a right CRC, or only the CRC check would be tested.
"""

from __future__ import annotations

import itertools
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecordsBuilder

from sparkkafka.errors import CorruptRecordError
from sparkkafka.protocol.records.batches import (
    AbortedTransactions,
    RecordBatch,
    control_type,
    first_batch_size,
    split_batches,
)
from sparkkafka.protocol.records.compression import Codec
from tests.support import reference
from tests.support.batches import build_batch
from tests.support.properties import examples
from tests.support.reference import Record
from tests.support.waiting import processor_time

MIB = 1 << 20
MAX_PAYLOAD = 64 * 1024
CONTENT = [Record(i, 1000 + i, b"key", b"value " * 10, (("h", b"x"),)) for i in range(4)]
HEADER_FIELDS = {  # position and format of each number in the header
    "base_offset": (0, ">q"),
    "batch_length": (8, ">i"),
    "leader_epoch": (12, ">i"),
    "magic": (16, ">b"),
    "crc": (17, ">I"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "record_count": (57, ">i"),
}


def new_format(codec: Codec) -> bytes:
    payload = reference.encode_payload(CONTENT, base_offset=0, base_timestamp=1000)
    data = build_batch(
        payload, record_count=4, base_timestamp=1000, max_timestamp=1003, codec=codec
    )
    assert split_batches(data)[0].codec is codec
    return data


def old_format(magic: int, codec: Codec) -> bytes:
    builder = MemoryRecordsBuilder(magic=magic, compression_type=codec, batch_size=MIB)
    for record in CONTENT:
        builder.append(timestamp=record.timestamp, key=record.key, value=record.value)
    builder.close()
    return bytes(builder.buffer())


def marker() -> bytes:
    record = Record(0, 1000, struct.pack(">hh", 0, 0), struct.pack(">hi", 0, 7))
    return reference.encode_batch([record], attributes=0x30, producer_id=1)


SAMPLES: dict[str, Callable[[], bytes]] = {
    **{f"magic 2 {codec.name}": (lambda codec=codec: new_format(codec)) for codec in Codec},
    "magic 2 marker": marker,
    "magic 0": lambda: old_format(0, Codec.NONE),
    "magic 0 gzip": lambda: old_format(0, Codec.GZIP),
    "magic 1": lambda: old_format(1, Codec.NONE),
    "magic 1 gzip": lambda: old_format(1, Codec.GZIP),
    "magic 1 lz4": lambda: old_format(1, Codec.LZ4),
}


def fixed_crcs(data: bytes | bytearray) -> bytes:
    """The same bytes with every CRC right, as far as the sizes in them lead."""
    out = bytearray(data)
    position = 0
    while len(out) - position >= 17:
        size = 12 + struct.unpack_from(">i", out, position + 8)[0]
        end = min(position + max(size, 17), len(out))
        if out[position + 16] == 2 and end - position >= 21:
            struct.pack_into(">I", out, position + 17, crc32c(out[position + 21 : end]))
        elif out[position + 16] < 2:
            struct.pack_into(">I", out, position + 12, zlib.crc32(out[position + 16 : end]))
        position = end
    return bytes(out)


def consume(data: bytes, *, check_crcs: bool = True) -> list[RecordBatch]:
    """Everything that this layer does with a response. Only CorruptRecordError may come out."""
    first_batch_size(data)
    transactions = AbortedTransactions([(1, 0)])
    batches = split_batches(data, check_crcs=check_crcs, max_payload_bytes=MAX_PAYLOAD)
    next_offset = -1
    for batch in batches:
        # What the layers above rely on.
        assert 0 <= batch.base_offset < batch.next_offset < 2**63
        assert batch.magic < 2 or batch.base_offset >= next_offset
        next_offset = batch.next_offset
        assert 0 <= batch.size_bytes <= len(data)
        transactions.visible(batch)
        payload = batch.payload(MAX_PAYLOAD)
        assert len(payload) <= MAX_PAYLOAD
        assert 0 <= batch.record_count * 7 <= len(payload)
        if batch.is_control:
            control_type(batch)
    return batches


def survives(data: bytes, **options: bool) -> bool:
    """Whether the bytes were taken; if not, the error has to say where."""
    try:
        consume(data, **options)
    except CorruptRecordError as error:
        assert error.position is not None
        assert 0 <= error.position <= max(len(data), MAX_PAYLOAD)
        return False
    return True


@pytest.mark.parametrize("sample", SAMPLES)
def test_cut_at_every_byte(sample: str) -> None:
    """A cut batch at the end is not there; it is no error, and never half a batch."""
    data = SAMPLES[sample]()
    whole = consume(data)
    total = sum(batch.record_count for batch in whole)
    for cut in range(len(data)):
        batches = consume(data[:cut])
        assert sum(batch.record_count for batch in batches) < total


@pytest.mark.parametrize("sample", SAMPLES)
def test_cut_inside_with_lengths_and_crc_made_right(sample: str) -> None:
    """The batch claims to be whole and is not: what is inside must be found short."""
    data = SAMPLES[sample]()
    for cut in range(17, len(data)):
        shorter = bytearray(data[:cut])
        size = 12 + struct.unpack_from(">i", data, 8)[0]
        if cut < size:
            struct.pack_into(">i", shorter, 8, cut - 12)
        taken = survives(fixed_crcs(shorter))
        if cut < size and "NONE" not in sample and "marker" not in sample:
            # Uncompressed records are the column decoder's to check, beyond their least size.
            assert not taken, cut


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_byte_flipped(sample: str) -> None:
    """With wrong CRCs: all damage under them is found. Outside: base offset and leader epoch."""
    data = SAMPLES[sample]()
    size = 12 + struct.unpack_from(">i", data, 8)[0]
    for index, flip in itertools.product(range(len(data)), (0x01, 0x80, 0xFF)):
        damaged = bytearray(data)
        damaged[index] ^= flip
        taken = survives(bytes(damaged))
        if "magic 2" in sample and index >= 17:
            assert not taken, index
        if "magic 2" not in sample and 12 <= index < size:
            assert not taken, index
        assert isinstance(survives(bytes(damaged), check_crcs=False), bool)


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES)
def test_every_byte_flipped_under_a_right_crc(sample: str) -> None:
    data = SAMPLES[sample]()
    tracemalloc.start()
    try:
        with processor_time(15):
            for index in range(len(data)):
                for flip in ((0x01, 0x80), (0x02, 0x40, 0xFF))[index % 2]:
                    damaged = bytearray(data)
                    damaged[index] ^= flip
                    survives(fixed_crcs(damaged))
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


def extremes(form: str) -> Iterator[int]:
    bits = 8 * struct.calcsize(form)
    for value in (0, 1, 2, 48, 49, 61, 127, -1, -2, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)):
        low = 0 if form == ">I" else -(2 ** (bits - 1))
        if low <= value < low + 2**bits:
            yield value
    if form != ">I":
        yield from (2 ** (bits - 1) - 1, -(2 ** (bits - 1)))


@pytest.mark.parametrize("field", HEADER_FIELDS)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_extreme_header_values(field: str, codec: Codec) -> None:
    position, form = HEADER_FIELDS[field]
    good = new_format(codec)
    for value in extremes(form):
        damaged = bytearray(good)
        struct.pack_into(form, damaged, position, value)
        data = bytes(damaged) if field == "crc" else fixed_crcs(damaged)
        taken = survives(data)
        survives(data + good)
        if field in ("base_offset", "last_offset_delta", "record_count") and value < 0:
            assert not taken
        if field == "record_count" and value > len(CONTENT) * 100:
            assert not taken
        if field == "batch_length" and value < 49:
            assert not taken
        if field == "magic" and value not in (0, 1, 2):
            assert not taken
        if field == "attributes" and value & 7 > 4:
            assert not taken


@pytest.mark.parametrize("length", [-(2**31), -13, -12, -1, 0, 13, 48])
def test_lengths_that_lead_nowhere(length: int) -> None:
    """A negative length would walk backwards, one of -12 stand still for ever."""
    data = bytearray(new_format(Codec.NONE))
    struct.pack_into(">i", data, 8, length)
    for bytes_left in (12, 17, 61, len(data)):
        if bytes_left < 17 and length >= 14:
            continue  # too short by format 2's rules, and the format is not known yet
        with pytest.raises(CorruptRecordError, match=f"batch length {length}") as caught:
            split_batches(data[:bytes_left])
        assert caught.value.position == 8
        with pytest.raises(CorruptRecordError, match=f"batch length {length}"):
            first_batch_size(data[:bytes_left])


def test_huge_length_is_a_cut_batch_that_names_its_size() -> None:
    data = bytearray(new_format(Codec.NONE))
    struct.pack_into(">i", data, 8, 2**31 - 1)
    assert split_batches(data) == []
    assert first_batch_size(data) == 12 + 2**31 - 1


@pytest.mark.parametrize("codec", list(Codec))
def test_record_count_beyond_the_bytes(codec: Codec) -> None:
    """So that nobody above allocates 2**31 rows for a batch of 200 bytes."""
    data = bytearray(new_format(codec))
    struct.pack_into(">i", data, 57, 2**31 - 1)
    (batch,) = split_batches(fixed_crcs(data))
    with pytest.raises(CorruptRecordError, match="offset 0: 2147483647 records cannot lie in"):
        batch.payload(MIB)


def test_counts_without_bytes() -> None:
    for count in (-1, -(2**31), 1, 2**31 - 1):
        data = reference.encode_batch(record_count=count)
        with pytest.raises(CorruptRecordError, match=f"{count} records in 0 bytes") as caught:
            split_batches(data)
        assert caught.value.position == 57


@pytest.mark.slow
@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_bombs_in_batches(codec: Codec) -> None:
    payload = reference.encode_payload(
        [Record(0, 0, None, bytes(32 * MIB))], base_offset=0, base_timestamp=0
    )
    data = build_batch(payload, record_count=1, base_timestamp=0, max_timestamp=0, codec=codec)
    (batch,) = split_batches(data)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError, match="offset 0"):
            batch.payload(MIB)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_many_tiny_batches_take_linear_time() -> None:
    one = 61
    data = b"".join(reference.encode_batch(base_offset=offset) for offset in range(2000))
    assert len(data) == 2000 * one
    with processor_time(2):
        for _ in range(10):
            assert len(split_batches(data)) == 2000


@settings(max_examples=examples(400))
@given(st.binary(max_size=200))
def test_noise(noise: bytes) -> None:
    survives(noise)
    survives(noise, check_crcs=False)


@settings(max_examples=examples(300))
@given(
    st.integers(-1, 2**40),
    st.integers(-5, 250),
    st.sampled_from([0, 1, 2, 3]),
    st.binary(max_size=200),
)
def test_noise_behind_a_plausible_header(
    offset: int, length: int, magic: int, noise: bytes
) -> None:
    data = struct.pack(">qiib", offset, length, -1, magic) + noise
    survives(data, check_crcs=False)
    survives(fixed_crcs(data))


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.sampled_from(list(SAMPLES)), st.data())
def test_several_bytes_changed_under_a_right_crc(sample: str, data: st.DataObject) -> None:
    damaged = bytearray(SAMPLES[sample]())
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    survives(fixed_crcs(damaged))
    survives(bytes(damaged), check_crcs=False)


def test_oracle_of_this_file_makes_right_crcs() -> None:
    for make in SAMPLES.values():
        assert fixed_crcs(make()) == make()
