"""Primitives: their bytes, their limits, and that nothing outside the buffer is read."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkkafka.errors import DecodeError, EncodeError
from sparkkafka.protocol.wire import schema
from sparkkafka.protocol.wire.codec import ValueCodec, value_codec
from sparkkafka.protocol.wire.primitives import MAX_ELEMENTS, MAX_TAGGED_FIELDS, Reader, Writer

TYPES: dict[str, schema.WireType] = {
    "int8": schema.INT8,
    "int16": schema.INT16,
    "int32": schema.INT32,
    "int64": schema.INT64,
    "uuid": schema.UUID,
    "string": schema.STRING,
    "bytes": schema.BYTES,
    "records": schema.RECORDS,
    "array": schema.ArrayOf(schema.INT8),
}


def codec(kind: str) -> ValueCodec:
    """The codec of a type by its name in Kafka's protocol guide: compact_nullable_string; or of a
    varint."""
    if kind.endswith(("varint", "varlong")):
        return ValueCodec(1, getattr(Reader, kind), getattr(Writer, kind))
    return value_codec(
        TYPES[kind.split("_")[-1]],
        nullable="nullable" in kind,
        version=0,
        flexible="compact" in kind,
    )


def written(kind: str, value: Any) -> bytes:
    writer = Writer()
    codec(kind).write(writer, value)
    return writer.getvalue()


def read(kind: str, data: bytes) -> Any:
    """The value, which must take all of `data`, also when it lies inside a larger buffer."""
    reader = Reader(data)
    value = codec(kind).read(reader)
    reader.expect_end()
    inside = Reader(b"\xaa" * 3 + data + b"\xbb" * 9, 3, 3 + len(data))
    assert codec(kind).read(inside) == value
    assert inside.pos == 3 + len(data)
    return value


# Type, value, bytes. Numbers from the protocol guide and from KIP-482.
EXAMPLES: list[tuple[str, Any, str]] = [
    ("int8", -1, "ff"),
    ("int8", 127, "7f"),
    ("int16", -2, "fffe"),
    ("int16", 300, "012c"),
    ("int32", -(2**31), "80000000"),
    ("int32", 1, "00000001"),
    ("int64", 2**63 - 1, "7fffffffffffffff"),
    ("int64", -1, "ffffffffffffffff"),
    ("uuid", uuid.UUID(int=1), "00000000000000000000000000000001"),
    ("unsigned_varint", 0, "00"),
    ("unsigned_varint", 127, "7f"),
    ("unsigned_varint", 128, "8001"),
    ("unsigned_varint", 16383, "ff7f"),
    ("unsigned_varint", 16384, "808001"),
    ("unsigned_varint", 2**32 - 1, "ffffffff0f"),
    ("varint", 0, "00"),
    ("varint", -1, "01"),
    ("varint", 1, "02"),
    ("varint", 63, "7e"),
    ("varint", -64, "7f"),
    ("varint", 64, "8001"),
    ("varint", 2**31 - 1, "feffffff0f"),
    ("varint", -(2**31), "ffffffff0f"),
    ("varlong", -1, "01"),
    ("varlong", 2**63 - 1, "feffffffffffffffff01"),
    ("varlong", -(2**63), "ffffffffffffffffff01"),
    ("string", "", "0000"),
    ("string", "ü", "0002c3bc"),
    ("nullable_string", None, "ffff"),
    ("nullable_string", "", "0000"),
    ("compact_string", "", "01"),
    ("compact_string", "ab", "036162"),
    ("compact_nullable_string", None, "00"),
    ("compact_nullable_string", "a", "0261"),
    ("bytes", b"", "00000000"),
    ("bytes", b"a", "0000000161"),
    ("nullable_bytes", None, "ffffffff"),
    ("nullable_bytes", b"a", "0000000161"),
    ("compact_bytes", b"", "01"),
    ("compact_bytes", b"a", "0261"),
    ("compact_nullable_bytes", None, "00"),
    ("compact_nullable_bytes", b"", "01"),
    ("array", [], "00000000"),
    ("nullable_array", None, "ffffffff"),
    ("nullable_array", [1, -1], "0000000201ff"),
    ("compact_array", [], "01"),
    ("compact_nullable_array", None, "00"),
    ("compact_nullable_array", [5], "0205"),
]


@pytest.mark.parametrize(("kind", "value", "text"), EXAMPLES)
def test_examples(kind: str, value: Any, text: str) -> None:
    data = bytes.fromhex(text)
    assert written(kind, value) == data
    found = read(kind, data)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("kind", "value", "text"), EXAMPLES)
def test_examples_cut_short(kind: str, value: Any, text: str) -> None:
    data = bytes.fromhex(text)
    for size in range(len(data)):
        for reader in (Reader(data[:size]), Reader(data, 0, size)):
            with pytest.raises(DecodeError) as caught:
                codec(kind).read(reader)
            assert caught.value.position is not None
            assert 0 <= caught.value.position <= size


@pytest.mark.parametrize("form", ["", "nullable_", "compact_", "compact_nullable_"])
def test_records_are_not_copied(form: str) -> None:
    data = bytearray(written(f"{form}bytes", b"abc"))
    view = codec(f"{form}records").read(Reader(data))
    copy = codec(f"{form}bytes").read(Reader(data))
    data[-1] = ord("z")
    assert (view, copy) == (b"abz", b"abc")
    assert written(f"{form}records", b"abc") == written(f"{form}records", [b"a", b"bc"])
    if "nullable" in form:
        assert read(f"{form}records", written(f"{form}records", None)) is None


INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "unsigned_varint": (0, 2**32 - 1),
    "varint": (-(2**31), 2**31 - 1),
    "varlong": (-(2**63), 2**63 - 1),
}


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_round_trip(kind: str) -> None:
    low, high = INTEGERS[kind]
    # Both ends, and both sides of each length of a varint.
    values = {low, high, 0} | {
        sign * 2**bits + near for bits in range(64) for sign in (1, -1) for near in (-1, 0, 1)
    }
    for value in values:
        if low <= value <= high:
            assert read(kind, written(kind, value)) == value


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_out_of_range(kind: str) -> None:
    for value in (INTEGERS[kind][0] - 1, INTEGERS[kind][1] + 1):
        with pytest.raises(EncodeError, match=str(value)):
            written(kind, value)


@given(st.text() | st.none(), st.binary() | st.none())
def test_text_and_bytes_round_trip(text: str | None, data: bytes | None) -> None:
    for form in ("nullable_", "compact_nullable_"):
        assert read(form + "string", written(form + "string", text)) == text
        assert read(form + "bytes", written(form + "bytes", data)) == data


@pytest.mark.parametrize("data", [bytearray(b"ab"), memoryview(b"ab"), memoryview(b"xaybz")[1:4:2]])
def test_bytes_of_any_kind(data: Any) -> None:
    expected = bytes(data)
    assert written("bytes", data) == len(expected).to_bytes(4, "big") + expected


def test_numbers_that_are_not_bytes_are_measured_in_bytes() -> None:
    numbers = memoryview(struct.pack("=2q", 1, 2)).cast("q")
    assert written("bytes", numbers) == b"\0\0\0\x10" + bytes(numbers)
    assert Reader(numbers).span(16) == bytes(numbers)


def test_string_limits() -> None:
    longest = "x" * 32767
    for kind in ("string", "compact_string"):
        assert read(kind, written(kind, longest)) == longest
        with pytest.raises(EncodeError, match="32768 bytes"):
            written(kind, longest + "x")
        with pytest.raises(EncodeError, match="UTF-8"):
            written(kind, "\ud800")
        with pytest.raises(EncodeError, match="bytes where a string"):
            written(kind, b"x")
    with pytest.raises(EncodeError, match="str where bytes"):
        written("bytes", "x")
    with pytest.raises(EncodeError, match=r"not a uuid\.UUID"):
        written("uuid", "x")


@pytest.mark.parametrize(
    ("kind", "text", "message", "position"),
    [
        ("string", "ffff", "null where a value", 0),
        ("string", "fffe", "negative length -2", 0),
        ("nullable_string", "8000", "negative length -32768", 0),
        ("string", "0003c3bc", "need 3 bytes, have 2", 2),
        ("string", "0003c32861", "not UTF-8", 2),
        ("string", "000361eda0", "not UTF-8", 3),
        ("compact_string", "00", "null where a value", 0),
        ("compact_string", "02ff", "not UTF-8", 1),
        ("compact_string", "ffffffff0f", "need 4294967294 bytes, have 0", 5),
        ("bytes", "ffffffff", "null where a value", 0),
        ("nullable_bytes", "fffffffe", "negative length -2", 0),
        ("bytes", "7fffffff00", "need 2147483647 bytes, have 1", 4),
        ("records", "80000000", "negative length", 0),
        ("compact_bytes", "00", "null where a value", 0),
        ("array", "ffffffff", "null where a value", 0),
        ("array", "80000000", "negative length", 0),
        ("array", "0000000300", "3 elements", 4),
        ("compact_array", "00", "null where a value", 0),
        ("compact_array", "ffffffff0f", "4294967294 elements", 5),
        ("compact_nullable_array", "0300", "2 elements", 1),
        ("unsigned_varint", "ffffffff10", "too large", 0),
        ("unsigned_varint", "808080808000", "longer than 5 bytes", 0),
        ("varint", "ffffffff1f", "too large", 0),
        ("varlong", "ffffffffffffffffff02", "too large", 0),
        ("varlong", "8080808080808080808000", "longer than 10 bytes", 0),
    ],
)
def test_bad_bytes(kind: str, text: str, message: str, position: int) -> None:
    for lead in (0, 5):
        reader = Reader(bytes(lead) + bytes.fromhex(text), lead)
        with pytest.raises(DecodeError, match=message) as caught:
            codec(kind).read(reader)
        assert caught.value.position == lead + position


def test_varints_longer_than_needed_are_read() -> None:
    """As the Java client does; only the number counts."""
    assert read("unsigned_varint", bytes.fromhex("8100")) == 1
    assert read("varint", bytes.fromhex("8280808000")) == 1
    assert read("varlong", bytes.fromhex("82808080808080808000")) == 1


def test_more_elements_than_any_broker_sends_are_refused() -> None:
    """Each takes more memory than its bytes, so that the size of a frame is no limit."""
    data = (MAX_ELEMENTS + 1).to_bytes(4, "big") + bytes(MAX_ELEMENTS + 1)
    with pytest.raises(DecodeError, match="1000001 elements, more than the limit of 1000000"):
        read("array", data)
    writer = Writer()
    writer.tagged_fields([(tag, b"") for tag in range(MAX_TAGGED_FIELDS + 1)])
    with pytest.raises(DecodeError, match="10001 elements, more than the limit of 10000"):
        Reader(writer.getvalue()).tagged_fields()


def test_the_length_of_an_array_is_compared_with_the_size_of_its_elements() -> None:
    numbers = value_codec(schema.ArrayOf(schema.INT32), nullable=False, version=0, flexible=False)
    assert numbers.read(Reader(b"\0\0\0\x02" + bytes(8))) == [0, 0]
    with pytest.raises(DecodeError, match="2 elements of 4 or more bytes, but only 7"):
        numbers.read(Reader(b"\0\0\0\x02" + bytes(7)))


def test_span_and_claim() -> None:
    reader = Reader(b"abcdef", 1, 5)
    assert reader.remaining == 4
    assert reader.span(0) == b""
    assert reader.span(3) == b"bcd"
    assert reader.claim(1) == 4
    assert reader.remaining == 0
    with pytest.raises(DecodeError, match="need 1 bytes, have 0"):
        reader.span(1)
    with pytest.raises(DecodeError, match="negative size -1"):
        reader.claim(-1)
    assert reader.pos == 5  # failures do not move it
    reader.expect_end()
    with pytest.raises(DecodeError, match="2 bytes left over"):
        Reader(b"ab").expect_end()


@pytest.mark.parametrize(("pos", "end"), [(3, None), (0, 3), (2, 1), (-1, None)])
def test_reader_outside_its_buffer(pos: int, end: int | None) -> None:
    with pytest.raises(DecodeError, match="in a buffer of 2"):
        Reader(b"ab", pos, end)


def test_tagged_fields() -> None:
    writer = Writer()
    writer.tagged_fields([(0, b"ab"), (5, b""), (300, bytearray(200))])
    data = writer.getvalue()
    reader = Reader(data)
    found = reader.tagged_fields()
    reader.expect_end()
    assert [(tag, data[start:stop]) for tag, start, stop in found] == [
        (0, b"ab"),
        (5, b""),
        (300, bytes(200)),
    ]
    assert Reader(b"\0").tagged_fields() == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0200000000", "tag 0 after tag 0"),
        ("0205000400", "tag 4 after tag 5"),
        ("0100056161", "need 5 bytes, have 2"),
        ("03000000", "3 elements"),
        ("ffffffff0f", "4294967295 elements"),
    ],
)
def test_bad_tagged_fields(text: str, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        Reader(bytes.fromhex(text)).tagged_fields()


_READS: list[Callable[[Reader], Any]] = [
    *(codec(kind).read for kind in {kind for kind, _, _ in EXAMPLES}),
    Reader.tagged_fields,
]


@given(st.lists(st.sampled_from(_READS), max_size=8), st.binary(max_size=40))
def test_any_reads_of_any_bytes(reads: list[Callable[[Reader], Any]], data: bytes) -> None:
    reader = Reader(data)
    for read_value in reads:
        before = reader.pos
        try:
            read_value(reader)
        except DecodeError as error:
            assert error.position is not None
            assert before <= error.position <= len(data)
            return
        assert before <= reader.pos <= len(data)
