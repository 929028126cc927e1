"""What `sparkkafka.protocol` makes public: one batch, number or key at a time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as other_murmur2

import sparkkafka.protocol as public
from sparkkafka.errors import (
    BatchTooLargeError,
    CorruptRecordError,
    DecodeError,
    EncodeError,
    OptionError,
)
from sparkkafka.protocol import (
    AbortedTransactions,
    Codec,
    PlainRecord,
    crc32c,
    decode_records,
    decode_unsigned_varint,
    decode_varint,
    decode_varlong,
    encode_batch,
    encode_unsigned_varint,
    encode_varint,
    encode_varlong,
    murmur2,
    partition_of,
    split_batches,
)
from sparkkafka.protocol.partitioning import KEY_RULES
from sparkkafka.protocol.records.batches import CONTROL_FLAG
from tests.support.batches import build_batch

BLOBS = st.none() | st.binary(max_size=20)
RECORDS = st.builds(
    PlainRecord,
    value=BLOBS,
    key=BLOBS,
    headers=st.lists(st.tuples(st.text(max_size=5), BLOBS), max_size=3).map(tuple),
    timestamp_ms=st.integers(-1, 2**50),
    offset=st.none(),
)
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.slow
@given(records=st.lists(RECORDS, min_size=1, max_size=5), compression=st.sampled_from(CODECS))
def test_records_come_back(records: list[PlainRecord], compression: str) -> None:
    data = encode_batch(records, compression=compression, base_offset=7)
    found = list(decode_records(data))
    assert [row._replace(offset=None) for row in found] == records
    assert [row.offset for row in found] == list(range(7, 7 + len(records)))
    assert encode_batch(found, compression=compression, base_offset=7) == data
    (batch,) = split_batches(data)
    assert crc32c(data[21:]) == int.from_bytes(data[17:21], "big")
    assert batch.record_count == len(records)


def test_a_batch_of_a_transaction() -> None:
    data = encode_batch(
        [PlainRecord(b"v")], producer_id=5, producer_epoch=1, base_sequence=3, transactional=True
    )
    (batch,) = split_batches(data)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (5, 1, 3)
    assert batch.is_transactional
    assert not AbortedTransactions([(5, 0)]).visible(batch)


def test_control_records_and_what_is_cut_off_are_left() -> None:
    whole = encode_batch([PlainRecord(b"v")])
    marker = build_batch(
        b"\x18" + bytes(12), record_count=1, base_timestamp=0, max_timestamp=0, control=True,
        base_offset=1,
    )  # fmt: skip
    assert split_batches(marker)[0].attributes & CONTROL_FLAG
    assert [row.value for row in decode_records(whole + marker + whole[:-1])] == [b"v"]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "no records"),
        ([b"v"], "record 0 is a PlainRecord, got bytes"),
        ([PlainRecord("text")], "str where bytes are required"),  # type: ignore[arg-type]
        ([PlainRecord(b"v", headers=(("h",),))], "pairs of str and bytes"),  # type: ignore[arg-type]
        ([PlainRecord(b"v", timestamp_ms=2**70)], "timestamp_ms"),
        ([PlainRecord(b"v", timestamp_ms=1.7e9)], "timestamp_ms"),  # type: ignore[arg-type]
        ([PlainRecord(b"v"), PlainRecord(b"w", offset=9)], "record 1 has offset 9"),
    ],
)
def test_what_is_no_batch(records: list[Any], message: str) -> None:
    with pytest.raises(EncodeError, match=message):
        encode_batch(records)


@pytest.mark.parametrize("wrong", ["brotli", "GZIP", None, 7, True])
def test_an_unknown_compression_is_named(wrong: Any) -> None:
    with pytest.raises(OptionError, match=rf"^compression is one of none .*got {wrong!r}$"):
        encode_batch([PlainRecord(b"v")], compression=wrong)


def test_a_compression_by_name_number_or_codec() -> None:
    records = [PlainRecord(b"snow " * 100)]
    for codec in Codec:
        named = encode_batch(records, compression=codec.name.lower())
        assert split_batches(named)[0].codec is codec
        assert encode_batch(records, compression=codec) == named
        assert encode_batch(records, compression=int(codec)) == named


def test_damage_and_bounds() -> None:
    data = bytearray(encode_batch([PlainRecord(bytes(5000))], compression="gzip"))
    with pytest.raises(BatchTooLargeError, match="1000"):
        list(decode_records(data, max_payload_bytes=1000))
    data[-1] ^= 1
    with pytest.raises(CorruptRecordError, match="CRC-32C"):
        list(decode_records(data))


@given(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=3))
def test_varints(value: int, before: bytes) -> None:
    data = encode_varint(value)
    assert 1 <= len(data) <= 5
    assert decode_varint(before + data, len(before)) == (value, len(before) + len(data))
    assert encode_varlong(value) == data
    assert decode_unsigned_varint(encode_unsigned_varint(value & 0xFFFFFFFF)) == (
        value & 0xFFFFFFFF,
        len(encode_unsigned_varint(value & 0xFFFFFFFF)),
    )


def test_the_edges_of_varints() -> None:
    assert [encode_varint(value) for value in (0, -1, 1, -64, 64)] == [
        b"\0", b"\1", b"\2", b"\x7f", b"\x80\1",
    ]  # fmt: skip
    assert decode_varlong(encode_varlong(-(2**63))) == (-(2**63), 10)
    for encode, bad in (
        (encode_varint, 2**31),
        (encode_varlong, 2**63),
        (encode_unsigned_varint, -1),
    ):
        with pytest.raises(EncodeError):
            encode(bad)
    for decode, data in ((decode_varint, b"\x80"), (decode_varint, b"\xff" * 6)):
        with pytest.raises(DecodeError):
            decode(data)


def test_checksums_and_hashes() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720's check value
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283
    for key in (b"", b"a", b"21", b"foobar", bytes(range(40))):
        assert murmur2(key) == other_murmur2(key) & 0xFFFFFFFF
        assert partition_of(key, 7) == (other_murmur2(key) & 0x7FFFFFFF) % 7
    assert murmur2(memoryview(b"21")) == murmur2(b"21")
    for wrong in ("text", 5, None):
        with pytest.raises(EncodeError, match="bytes are required"):
            murmur2(wrong)  # type: ignore[arg-type]
        with pytest.raises(EncodeError, match="bytes are required"):
            crc32c(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", KEY_RULES)
def test_partitions_are_those_of_the_columns(rule: str) -> None:
    keys = [None, b"", b"k1", b"k2"]
    columns = KEY_RULES[rule].partitions(pa.array(keys, pa.binary()), 5).tolist()
    assert [partition_of(key, 5, rule) for key in keys] == [
        None if partition < 0 else partition for partition in columns
    ]


def test_wrong_partitions() -> None:
    with pytest.raises(EncodeError, match="partition_count is 1 or more, got 0"):
        partition_of(b"k", 0)
    with pytest.raises(EncodeError, match="rule is one of murmur2_random"):
        partition_of(b"k", 1, "random")


def test_the_public_names_are_what_they_are_called() -> None:
    """Also when modules of like names have been imported."""
    import sparkkafka.protocol.partitioning  # noqa: F401

    for name in public.__all__:
        found = getattr(public, name)
        assert callable(found), name
        assert found.__name__ == name
        assert found.__doc__, name
    assert set(public.__all__) <= set(dir(public))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        public.nothing  # noqa: B018
