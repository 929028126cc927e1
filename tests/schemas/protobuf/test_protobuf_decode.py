"""Each message, also a damaged one, decodes as by protobuf's own runtime, or is a bad row."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkkafka.config.kinds import PROTOBUF
from sparkkafka.schemas.protobuf import format as protobuf
from sparkkafka.schemas.schema_errors import MAX_OWN_REASONS, OTHER_REASON
from sparkkafka.schemas.values import Decoded, Schema
from tests.schemas.protobuf import oracle
from tests.schemas.protobuf.protos import CASES
from tests.support.properties import examples

SLOW = settings(
    max_examples=examples(8),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
_made: dict[str, tuple[oracle.Oracle, Any]] = {}


def case(name: str) -> tuple[oracle.Oracle, Any]:
    if name not in _made:
        schema, message = CASES[name]
        indexes = protobuf.message_indexes(schema, message)
        _made[name] = (
            oracle.Oracle(schema, message),
            protobuf.decoder(schema, None, None, message=indexes),
        )
    return _made[name]


def check(truth: oracle.Oracle, decoder: Any, payloads: list[bytes | None], strict: bool) -> None:
    """strict: a row that the oracle takes must not be bad."""
    decoded: Decoded = decoder.decode(pa.array(payloads, pa.binary()))
    decoded.values.validate(full=True)
    assert decoded.values.type == decoder.type
    assert len(decoded.values) == len(payloads)
    assert len(decoded.bad_rows) == len(decoded.reasons)
    assert sorted(set(decoded.bad_rows.tolist())) == decoded.bad_rows.tolist()
    bad = dict(zip(decoded.bad_rows.tolist(), decoded.reasons, strict=True))
    rows = with_json(oracle.rows_of(decoded.values), decoder.type, CASES_JSON)
    for row, payload in enumerate(payloads):
        if payload is None:
            assert rows[row] is None and row not in bad
            continue
        expected = truth.value(payload, decoder.type)
        if row in bad:
            assert rows[row] is None
            assert bad[row].startswith(("field ", "message ", "Error")), bad[row]
            assert expected is oracle.BAD or not strict, bad[row]
            continue
        assert expected is not oracle.BAD, (payload, rows[row])
        found = oracle.comparable(rows[row], decoder.type)
        assert found == oracle.comparable(expected, decoder.type), payload


CASES_JSON = ("w_struct", "w_value", "w_list", "value", "json")


def with_json(rows: list[Any], kind: pa.DataType, names: tuple[str, ...]) -> list[Any]:
    for row in rows:
        for name in names if row else ():
            if row.get(name) is not None:
                row[name] = json.loads(row[name])
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@SLOW
@given(data=st.data())
def test_messages_are_what_protobuf_says(name: str, data: st.DataObject) -> None:
    truth, decoder = case(name)
    some = data.draw(st.lists(oracle.messages(truth.descriptor), min_size=1, max_size=5))
    payloads: list[bytes | None] = [message.SerializeToString() for message in some]
    check(truth, decoder, [*payloads, None], strict=True)
    many = payloads * 8 + [None, b""] + payloads[::-1] * 8  # enough for waves
    check(truth, decoder, many, strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@SLOW
@given(data=st.data())
def test_damaged_messages_are_right_or_bad_and_harm_no_other(
    name: str, data: st.DataObject
) -> None:
    truth, decoder = case(name)
    some = data.draw(st.lists(oracle.messages(truth.descriptor), min_size=1, max_size=3))
    good = [message.SerializeToString() for message in some]
    chance = random.Random(data.draw(st.integers(0, 1 << 32)))
    damaged = [mutated(chance.choice(good), chance, good) for _ in range(30)]
    payloads = [*good, *damaged, *good]
    chance.shuffle(payloads)
    check(truth, decoder, payloads, strict=False)
    whole = outcomes(decoder, payloads)
    for row in range(0, len(payloads), 4):
        assert outcomes(decoder, payloads[row : row + 1]) == whole[row : row + 1]


def outcomes(decoder: Any, payloads: list[bytes]) -> list[str]:
    """The value of each row, or why it is bad."""
    decoded = decoder.decode(pa.array(payloads, pa.binary()))
    found = [repr(value) for value in oracle.rows_of(decoded.values)]
    for row, reason in zip(decoded.bad_rows.tolist(), decoded.reasons, strict=True):
        found[row] = reason
    return found


def mutated(payload: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    data = bytearray(payload)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(len(data) + 1)
        what = chance.randrange(8)
        if what == 0 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif what == 1:
            data[at:at] = chance.randbytes(chance.randrange(1, 4))
        elif what == 2:
            del data[at : at + chance.randrange(1, 5)]
        elif what == 3:
            del data[at:]
        elif what == 4 and at < len(data):
            data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, 3, 4, 6, 7, 0x0B))
        elif what == 5:
            data += chance.choice(others)  # protobuf merges what stands twice
        elif what == 6:
            other = chance.choice(others)
            begin = chance.randrange(len(other) + 1)
            data[at:at] = other[begin : begin + chance.randrange(12)]
        elif what == 7:
            data += chance.choice(UNKNOWN)
    return bytes(data)


UNKNOWN = [
    b"\xf8\xff\xff\xff\x0f\x01",  # the highest number
    b"\xc2\xbb\x01\x02ab",
    b"\xc5\xbb\x01abcd",
    b"\xc1\xbb\x01abcdefgh",
    b"\xc3\xbb\x01\x08\x01\xc4\xbb\x01",  # a group
    b"\xc3\xbb\x01" * 3 + b"\xc4\xbb\x01" * 3,
]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@SLOW
@given(data=st.data())
def test_any_choice_of_fields_is_read_as_all_are(name: str, data: st.DataObject) -> None:
    truth, decoder = case(name)
    schema, message = CASES[name]
    wanted = some_of(data.draw, decoder.type)
    fewer = protobuf.decoder(
        schema, None, wanted, message=protobuf.message_indexes(schema, message)
    )
    assert fewer.type == wanted
    some = data.draw(st.lists(oracle.messages(truth.descriptor), min_size=1, max_size=4))
    payloads: list[bytes | None] = [item.SerializeToString() for item in some]
    payloads += [item.SerializeToString() + data.draw(st.sampled_from(UNKNOWN)) for item in some]
    check(truth, fewer, payloads, strict=True)
    check(truth, fewer, payloads * 8, strict=True)


def some_of(draw: Any, kind: pa.DataType) -> pa.DataType:
    """The same with fewer fields, in another order; some numbers wider."""
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            return kind
        chosen = draw(st.lists(st.sampled_from(list(kind)), unique_by=lambda f: f.name))
        if not chosen:
            chosen = [kind[0]]
        return pa.struct([(field.name, some_of(draw, field.type)) for field in chosen])
    if pa.types.is_list(kind):
        return pa.list_(some_of(draw, kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, some_of(draw, kind.item_type))
    if kind in (pa.int32(), pa.float32()) and draw(st.booleans()):
        return pa.int64() if kind == pa.int32() else pa.float64()
    return kind


def test_the_first_of_many_refused_messages_have_figures() -> None:
    """As in Avro and JSON."""
    _, decoder = case("proto3")
    # Field 1 as a group that does not end, and without a wire type.
    decoded = decoder.decode(pa.array([b"\x0b", b"\x0e", b""] * 100, pa.binary()))
    assert decoded.bad_rows.tolist() == [row for row in range(300) if row % 3 != 2]
    refused, without_wire_type = decoded.reasons[::2], decoded.reasons[1::2]
    assert all("a group does not end" in text for text in refused[:MAX_OWN_REASONS])
    assert all("its bytes cannot be read" in text for text in refused[MAX_OWN_REASONS:])
    detailed, others = without_wire_type[:MAX_OWN_REASONS], without_wire_type[MAX_OWN_REASONS:]
    assert all("at byte 0: there is no wire type 6" in text for text in detailed)
    assert {text.split(": ", 1)[1] for text in others} == {OTHER_REASON}


DEFAULTS = {
    "double": "-2.5",
    "float": "0.5",
    **dict.fromkeys(("int32", "sint32", "sfixed32", "int64", "sint64", "sfixed64"), "-7"),
    **dict.fromkeys(("uint32", "fixed32"), "4294967295"),
    **dict.fromkeys(("uint64", "fixed64"), "18446744073709551615"),
    "bool": "true",
    "string": '"x"',
    "bytes": '"x"',
    "E": "B",
}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_a_default_stands_for_an_absent_field_of_any_type(kind: str) -> None:
    text = Schema(
        PROTOBUF,
        'syntax = "proto2"; enum E { A = 1; B = 2; } '
        f"message M {{ optional {kind} a = 1 [default = {DEFAULTS[kind]}]; }}",
    )
    truth = oracle.Oracle(text, "M")
    zero = truth.message()
    zero.a = 1 if kind == "E" else type(zero.a)()
    decoder = protobuf.decoder(text, None, None)
    for payloads in [b""] * 20, [b"", zero.SerializeToString()] * 20:
        check(truth, decoder, list(payloads), strict=True)


def test_a_decimal_of_any_scale_is_rescaled_or_bad() -> None:
    text = Schema(
        PROTOBUF,
        'syntax = "proto3"; import "confluent/type/decimal.proto"; '
        "message M { confluent.type.Decimal d = 1; }",
    )
    truth = oracle.Oracle(text, "M")
    decoder = protobuf.decoder(text, None, pa.struct([("d", pa.decimal128(5, 2))]))
    texts = "", "7b", "85", "ff85", "0f0a", "fe7961", "0186a0", "00" * 20 + "7b", "7f" * 17
    payloads: list[bytes | None] = [
        truth.message(d={"value": bytes.fromhex(value), "scale": scale}).SerializeToString()
        for value in texts
        for scale in (0, 1, 2, 3, 4, -1, -3, 300, 1 << 30)
    ]
    check(truth, decoder, payloads, strict=True)


def test_dates_of_the_calendar_and_nanos_of_both_signs() -> None:
    text = Schema(
        PROTOBUF,
        'syntax = "proto3"; import "google/type/date.proto"; '
        'import "google/protobuf/duration.proto"; '
        "message M { google.type.Date date = 1; google.protobuf.Duration wait = 2; }",
    )
    truth = oracle.Oracle(text, "M")
    payloads: list[bytes | None] = [
        truth.message(date={"year": year, "month": month, "day": day}).SerializeToString()
        for year in (0, 1, 1900, 2023, 2024, 9999, 10000)
        for month, day in ((0, 1), (1, 0), (2, 28), (2, 29), (2, 30), (4, 31), (12, 31), (13, 1))
    ]
    payloads += [
        truth.message(wait={"seconds": seconds, "nanos": nanos}).SerializeToString()
        for seconds in (-1, 0, 1)
        for nanos in (-1, -1000, -1001, 999, 1001)
    ]
    check(truth, protobuf.decoder(text, None, None), payloads, strict=True)


def test_an_invalid_text_that_is_overwritten_makes_its_own_row_bad() -> None:
    good, bad = b"\x0a\x01a\x0a\x01b", b"\x0a\x01\xff\x0a\x01b"
    decoder = protobuf.decoder(
        Schema(PROTOBUF, 'syntax = "proto3"; message M { string a = 1; }'), None, None
    )
    decoded = decoder.decode(pa.array([*[good] * 20, bad, *[good] * 20]))
    assert decoded.bad_rows.tolist() == [20]
    assert decoded.reasons == ("field a: its text is not UTF-8",)


FIELDS = """syntax = "proto3";
message M {
  int64 a = 1; string b = 2; repeated int32 c = 3; fixed32 d = 4; fixed64 e = 5; N f = 6;
  int64 z = 20;
  message N { int64 a = 1; string b = 2; }
}"""
GOOD = {
    "a number": b"\x08\xac\x02",
    "a text": b"\x12\x02ab",
    "packed numbers": b"\x1a\x02\x07\x08",
    "numbers one by one": b"\x18\x01\x18\xff\xff\x03",
    "fixed sizes": b"\x25\1\2\3\4\x29\1\2\3\4\5\6\7\x08",
    "a message": b"\x32\x03\x08\x96\x01",
    "a message in two parts": b"\x32\x03\x08\x96\x01\x32\x03\x12\x01x",
    "a tag of two bytes": b"\xa0\x01\x05",
    "a tag that is longer than it must be": b"\x88\x00\x05",
    "unknown fields": b"\xf0\x01\x05\xf2\x01\x01x\xf5\x01\1\2\3\4\xf1\x01\1\2\3\4\5\6\7\x08",
    "a number of more than 64 bits": b"\x08" + b"\xff" * 9 + b"\x7f",
}
DAMAGED = {
    "no tag": b"\x80",
    "field 0": b"\x02\x01x",
    "a tag of 33 bits": b"\x88\x80\x80\x80\x10\x01",
    "a tag of six bytes": b"\x88\x80\x80\x80\x80\x00\x01",
    "an unknown tag of six bytes": b"\xf0\x81\x80\x80\x80\x00\x01",
    "wire type 6": b"\x0e\x01",
    "wire type 7": b"\xf7\x01\x01",
    "the end of a group": b"\x0c",
    "a number that is cut off": b"\x08\xff",
    "a number of eleven bytes": b"\x08" + b"\xff" * 10 + b"\x01",
    "no number": b"\x08",
    "a length beyond the end": b"\x12\x05ab",
    "a length of 31 bits": b"\x12\xff\xff\xff\xff\x07ab",
    "a length of 63 bits": b"\x12" + b"\xff" * 8 + b"\x7f",
    "a length back to its tag": b"\x12" + b"\xf5" + b"\xff" * 8 + b"\x01",
    "a length of eleven bytes": b"\x12" + b"\xff" * 10 + b"\x01",
    "a length that is cut off": b"\x12\x80",
    "a fixed size that is cut off": b"\x29\1\2\3",
    "an unknown length beyond the end": b"\xf2\x01\x05x",
    "an unknown number that is cut off": b"\xf0\x01\xff",
}


@cache
def few_fields() -> Any:
    return protobuf.decoder(Schema(PROTOBUF, FIELDS), None, None)


@cache
def decoded_alone(payload: bytes) -> Decoded:
    decoded: Decoded = few_fields().decode(pa.array([payload], pa.binary()))
    return decoded


@pytest.mark.parametrize("damaged", ["", *DAMAGED])
@pytest.mark.parametrize("good", GOOD)
def test_many_messages_are_read_as_one_is(good: str, damaged: str) -> None:
    """A few messages are read one by one, many in steps over all of them."""
    payload = GOOD[good] + DAMAGED.get(damaged, b"")
    assert len(decoded_alone(payload).bad_rows) == bool(damaged)
    for others in [], list(GOOD.values()):
        payloads = [payload, *others]
        many = few_fields().decode(pa.array(payloads * 20, pa.binary()))
        bad = range(0, 20 * len(payloads), len(payloads)) if damaged else ()
        assert many.bad_rows.tolist() == list(bad)
        assert many.reasons == decoded_alone(payload).reasons * 20
        rows = [decoded_alone(each).values[0].as_py() for each in payloads]
        assert many.values.to_pylist() == rows * 20
