"""Bytes made to hurt: bad rows, or rows that cost what their bytes cost; never another row."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pyarrow as pa
import pytest

from sparkkafka.config.kinds import PROTOBUF
from sparkkafka.errors import SchemaError
from sparkkafka.protocol.wire.varints import varint_bytes
from sparkkafka.schemas import values
from sparkkafka.schemas.protobuf import format as protobuf
from sparkkafka.schemas.protobuf import wire
from sparkkafka.schemas.values import Schema
from tests.schemas.protobuf import oracle
from tests.schemas.protobuf.test_protobuf_decode import check

TEXT = Schema(
    PROTOBUF,
    """
    syntax = "proto3";
    message M {
      int32 id = 1;
      string s = 2;
      repeated int32 packed = 3;
      repeated int32 plain = 4 [packed = false];
      repeated N ns = 5;
      map<int32, N> by = 6;
      N one = 7;
      repeated string texts = 8;
    }
    message N { int64 a = 1; string b = 2; O o = 3; repeated O os = 4; }
    message O { double c = 1; }
    """,
)
GOOD = b"\x08\x07\x12\x02ok"
BOMBS = {
    "length of 2 GiB": b"\x12\xff\xff\xff\xff\x07",
    "length of 2**63": b"\x12\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    "length of 2**64 - 1": b"\x12" + b"\xff" * 9 + b"\x01",
    "length that wraps around": b"\x12" + b"\xfe" * 9 + b"\x01ab",
    "packed length of 2**31": b"\x1a\x80\x80\x80\x80\x08",
    "nested length beyond the outer": b"\x3a\x02\x12\x7f",
    "endless varint": b"\x08" + b"\x80" * 1000,
    "endless tag": b"\x80" * 1000,
    "packed endless varint": b"\x1a\x0c" + b"\x80" * 11 + b"\x01",
    "packed cut off": b"\x1a\x02\x01\x80",
    "open groups": b"\x0b" * 100_000,
    "open and closed groups": b"\x7b" * 100_000 + b"\x7c" * 100_000,
    "just too many levels": b"\x7b" * 101 + b"\x7c" * 101,
    "groups of the wrong number": b"\x7b\x74",
    "group that ends": b"\x7c",
    "wire type 6": b"\x0e\x01",
    "wire type 7": b"\x0f\x01",
    "number 0": b"\x00\x01",
    "number 0 in two bytes": b"\x80\x00\x01",
    "text of surrogates": b"\x12\x03\xed\xa0\x80",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("copies", [1, 40])
def test_a_bomb_is_a_bad_row_alone(name: str, copies: int) -> None:
    payloads = [GOOD] * 20 + [BOMBS[name]] * copies + [GOOD] * 20
    decoder = protobuf.decoder(TEXT, None, None)
    check(oracle.Oracle(TEXT, "M"), decoder, list(payloads), strict=True)
    decoded = decoder.decode(pa.array(payloads, pa.binary()))
    assert decoded.bad_rows.tolist() == list(range(20, 20 + copies))
    assert all(len(reason) < 500 for reason in decoded.reasons)


@pytest.mark.parametrize("copies", [1, 40])
@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (
            b"\x08\x07\x12\x05ok",
            "field s: at byte 2: a length of 5 goes beyond the end, which is 2",
        ),
        (b"\x08\x07\x12\xff", "field s: at byte 2: a varint is cut off"),
        (b"\x08\x07\x20", "field plain: at byte 2: a varint is cut off"),
        (b"\x08\x07\x80", "message M: at byte 2: a varint is cut off"),
        (b"\x08\x07\x08" + b"\x80" * 10, "field id: at byte 2: a varint is longer than 10 bytes"),
        (b"\x08\x07\x12" + b"\x80" * 10, "field s: at byte 2: a varint is longer than 10 bytes"),
        (b"\x08\x07\x7d\x00", "message M: unknown field 15: at byte 2: a value needs 4 bytes, and"),
        (b"\x3a\x02\x12\x7f", "field one.b: at byte 2: a length of 127 goes beyond the end, whi"),
        (b"\x3a\x05\x1a\x03\x09\x00\x00", "field one.o.c: at byte 4: a value needs 8 bytes, an"),
        (b"\x32\x04\x12\x02\x08\xff", "field by.value.a: at byte 4: a varint is cut off"),
        (b"\x32\x02\x08\x80\x2a\x01\x08", "field by.key: at byte 2: a varint is cut off"),
        (b"\x3a\x00\x3a\x01\x08", "field one.a: at byte 4: a varint is cut off"),  # in parts
        (b"\x00\x01", "message M: at byte 0: there is no valid tag"),
        (b"\x0e\x01", "field id: at byte 0: there is no wire type 6"),
    ],
)
def test_the_reason_for_damaged_bytes_says_where_they_are(
    payload: bytes, reason: str, copies: int
) -> None:
    rows = [GOOD, payload] * copies
    decoded = protobuf.decoder(TEXT, None, None).decode(pa.array(rows, pa.binary()))
    assert decoded.bad_rows.tolist() == list(range(1, 2 * copies, 2))
    assert {text[: len(reason)] for text in decoded.reasons} == {reason}


def heavy(payload: bytes) -> tuple[pa.Array, int]:
    """The values, and the most memory (of numpy and Python) in bytes."""
    decoder = protobuf.decoder(TEXT, None, None)
    payloads = pa.array([GOOD, payload, GOOD], pa.binary())
    tracemalloc.start()
    try:
        decoded = decoder.decode(payloads)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert decoded.values[0].as_py()["s"] == decoded.values[2].as_py()["s"] == "ok"
    assert len(decoded.bad_rows) == 0
    return decoded.values, peak


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "payload", "field", "count"),
    [
        ("plain numbers", b"\x20\x05" * 25_000, "plain", 25_000),
        ("texts", b"\x42\x01x" * 25_000, "texts", 25_000),
        ("empty messages", b"\x2a\x00" * 25_000, "ns", 25_000),
        ("messages in messages", b"\x2a\x04\x22\x00\x22\x00" * 25_000, "ns", 25_000),
        ("packed and plain in turn", b"\x1a\x01\x05\x18\x06" * 25_000, "packed", 50_000),
        ("one field again and again", b"\x08\x01" * 25_000, "plain", 0),
        ("a message again and again", b"\x3a\x02\x08\x01" * 25_000, "plain", 0),
        ("unknown fields", b"\x78\x01" * 25_000, "plain", 0),
        ("a key again and again", b"\x32\x02\x08\x01" * 25_000, "by", 1),
    ],
)
def test_a_large_message_costs_what_its_bytes_cost(
    what: str, payload: bytes, field: str, count: int
) -> None:
    values, peak = heavy(payload)
    assert len(values.field(field)[1]) == count
    assert peak < 400 * len(payload) + (8 << 20), what


def test_messages_that_take_too_much_as_columns_are_a_bad_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(values, "BASE_BUDGET", 100_000)
    decoder = protobuf.decoder(TEXT, None, None)
    large = pa.array([b"\x2a\x00" * 10_000], pa.binary())
    assert not len(decoder.decode(large).bad_rows)
    monkeypatch.setattr(values, "BUDGET_PER_BYTE", 2)
    decoded = decoder.decode(large)
    assert decoded.bad_rows.tolist() == [0]
    assert decoded.reasons[0].startswith("field ns: its 10,000 messages take too much memory")
    with pytest.raises(values.TooManyRowsError):
        decoder.decode(pa.array([GOOD, large[0].as_py()]))
    decoded = decoder.decode(pa.array([b"\x2a\x00" * 10, GOOD], pa.binary()))
    assert len(decoded.values[0].as_py()["ns"]) == 10
    assert decoded.values[1].as_py()["s"] == "ok"


def test_empty_rows_of_many_columns_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "BASE_BUDGET", 100_000)
    fields = "".join(f"int64 f{number} = {number}; " for number in range(1, 1001))
    decoder = protobuf.decoder(
        Schema(PROTOBUF, f'syntax = "proto3"; message M {{ {fields} }}'), None, None
    )
    with pytest.raises(values.TooManyRowsError):
        decoder.decode(pa.array([b""] * 100))
    assert len(decoder.decode(pa.array([b""] * 5)).values) == 5


def test_a_json_text_that_takes_too_much_is_a_bad_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "BASE_BUDGET", 0)
    fields = f"bool {'x' * 255} = 1; repeated M ms = 2;"
    text = Schema(PROTOBUF, f'syntax = "proto3"; message M {{ {fields} }}')
    decoder = protobuf.decoder(text, None, pa.struct([("ms", pa.list_(pa.string()))]))
    element = b"\x12\x02\x08\x01"
    large = b"\x12\xa0\x1f" + element * 1000
    decoded = decoder.decode(pa.array([large]))
    assert decoded.reasons == (
        "field ms: its JSON text takes too much memory for the size of the payload",
    )
    with pytest.raises(values.TooManyRowsError):
        decoder.decode(pa.array([large, element]))


def test_fields_in_any_order_and_unknown_ones_between() -> None:
    truth = oracle.Oracle(TEXT, "M")
    message = truth.message(id=3, s="x", packed=[1, 300], plain=[-1, 2], texts=["a", "b"])
    message.ns.add(a=1, b="y").os.add(c=0.5)
    message.one.a = 9
    parts = []
    for field, _ in message.ListFields():
        part = truth.message()
        if field.is_repeated:
            getattr(part, field.name).MergeFrom(getattr(message, field.name))
        elif field.message_type is not None:
            getattr(part, field.name).CopyFrom(getattr(message, field.name))
        else:
            setattr(part, field.name, getattr(message, field.name))
        parts.append(part.SerializeToString())
    between = b"\xfa\x01\x03abc\x8d\x02abcd\xf8\x07\x01"
    payloads = []
    for turn in range(len(parts)):
        turned = parts[turn:] + parts[:turn]
        payloads += [b"".join(turned), between.join(turned[::-1]), between + b"".join(turned)]
    check(truth, protobuf.decoder(TEXT, None, None), list(payloads * 10), strict=True)


def test_names_and_defaults_that_a_few_bytes_become_are_short() -> None:
    for body, expected_error in (
        ("message M { optional E e = 1; } enum E { %s = 0; }" % ("X" * 300), "field e: its enum"),
        (
            'message M { optional string s = 1 [default = "%s"]; }' % ("x" * 1001),
            "field s: its def",
        ),
    ):
        with pytest.raises(SchemaError, match=expected_error):
            protobuf.arrow_type(Schema(PROTOBUF, f'syntax = "proto2"; {body}'))


def test_fields_in_descending_order_are_not_searched_again_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = range(1, 301)
    fields = "".join(f"repeated int32 f{number} = {number};" for number in numbers)
    text = Schema(PROTOBUF, f'syntax = "proto2"; message M {{ {fields} }}')
    ascending = [varint_bytes(number << 3) + b"\x05" for number in numbers]
    payloads = pa.array([b"".join(ascending), *[b"".join(ascending[::-1])] * 20])
    decoder = protobuf.decoder(text, None, None)
    calls = 0
    read_wave = wire._Tokenizer._read_wave

    def count_call(self: Any, known: Any) -> bool:
        nonlocal calls
        calls += 1
        return read_wave(self, known)

    monkeypatch.setattr(wire._Tokenizer, "_read_wave", count_call)
    decoded = decoder.decode(payloads)
    assert decoded.values[0].as_py() == {f"f{number}": [5] for number in numbers}
    assert decoded.values[1:].equals(decoded.values[:-1])
    assert calls < 10 * len(numbers)
