"""Messages that no writer makes, and that Protobuf reads: in parts, with groups, with numbers wider
than their fields. Each is what protobuf's own runtime says."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkkafka.schemas.protobuf import decode
from sparkkafka.schemas.protobuf import format as protobuf
from sparkkafka.schemas.schema_errors import MAX_OWN_REASONS
from tests.schemas.protobuf import oracle
from tests.schemas.protobuf.protos import CASES
from tests.schemas.protobuf.test_protobuf_decode import case, check
from tests.schemas.protobuf.test_protobuf_resolution import schema
from tests.support.properties import examples

SMALL = schema(
    """
    enum Closed { NIL = 0; UNIT = 1; }
    enum Sparse { LOW = -5; HIGH = 7; }
    message Inner { required int32 x = 1; optional int32 y = 2; }
    message M {
      optional group G = 1 { optional int32 x = 1; }
      required int32 z = 2;
      repeated group Gs = 3 { required int32 a = 1; }
      optional Inner inner = 4;
      map<int32, Closed> closed = 5;
      map<string, Inner> inners = 6;
      optional int32 i = 7;
      optional uint32 u = 8;
      optional sint32 s = 9;
      optional Closed e = 10;
      repeated int32 packed = 11 [packed = true];
      optional google.type.Date day = 12;
      oneof pick { int32 a = 13; Inner b = 14; }
      optional Sparse sparse = 15;
      extensions 100 to 199;
    }
    extend M { optional group Ext = 100 { optional int32 a = 1; } }
    """,
    "proto2",
    'import "google/type/date.proto";',
)
Z = "10 03"


def fields(row: dict[str, Any]) -> dict[str, Any]:
    """What is set, without z."""
    return {name: value for name, value in row.items() if value not in (None, []) and name != "z"}


@pytest.mark.parametrize("copies", [1, 40])
@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (f"0b 08 05 0c {Z}", {"g": {"x": 5}}),
        (f"a3 06 08 05 a4 06 {Z}", {}),  # an extension
        (f"c3 3e 08 05 c4 3e {Z}", {}),  # an unknown group
        (f"1b 08 05 1c 1b 08 06 1c {Z}", {"gs": [{"a": 5}, {"a": 6}]}),
        (f"22 02 10 07 22 02 08 05 {Z}", {"inner": {"x": 5, "y": 7}}),
        (f"22 02 08 05 22 02 10 07 {Z}", {"inner": {"x": 5, "y": 7}}),
        (f"32 0b 0a 01 61 12 02 10 07 12 02 08 05 {Z}", {"inners": [("a", {"x": 5, "y": 7})]}),
        (f"62 03 08 e8 0f 62 02 10 02 62 02 18 1d {Z}", {"day": (2024, 2, 29)}),
        (f"2a 04 08 01 10 63 {Z}", {}),
        (f"2a 06 08 01 10 63 10 01 {Z}", {}),
        (f"2a 06 08 01 10 01 10 63 {Z}", {}),
        (f"2a 06 08 01 10 01 18 05 {Z}", {"closed": [(1, "UNIT")]}),  # number 3
        (f"2a 07 0a 01 61 08 01 10 01 {Z}", {"closed": [(1, "UNIT")]}),  # a text as key
        (f"2a 08 08 01 1b 08 01 1c 10 01 {Z}", {"closed": [(1, "UNIT")]}),  # a group
        (f"2a 04 08 01 10 00 2a 04 08 01 10 01 {Z}", {"closed": [(1, "UNIT")]}),  # one key
        (  # a value without x, which is required: a later one replaces it
            f"32 07 0a 01 61 12 02 10 07 32 07 0a 01 61 12 02 08 05 {Z}",
            {"inners": [("a", {"x": 5, "y": None})]},
        ),
        (f"38 ff ff ff ff 0f {Z}", {"i": -1}),
        (f"38 80 80 80 80 10 {Z}", {"i": 0}),
        (f"40 ff ff ff ff ff ff ff ff ff 01 {Z}", {"u": (1 << 32) - 1}),
        (f"48 ff ff ff ff ff ff ff ff ff 01 {Z}", {"s": -(1 << 31)}),
        (f"50 81 80 80 80 10 {Z}", {"e": "UNIT"}),
        (f"5a 06 ff ff ff ff 0f 02 {Z}", {"packed": [-1, 2]}),
        (f"58 05 5a 02 07 08 58 09 {Z}", {"packed": [5, 7, 8, 9]}),
        # the runtime reads it, and loses an entry with a field that it does not know
        (
            f"58 05 5a 01 07 2a 07 08 01 10 01 0a 01 61 {Z}",
            {"packed": [5, 7], "closed": [(1, "UNIT")]},
        ),
        (f"78 03 {Z}", {}),
        (f"78 07 78 03 {Z}", {"sparse": "HIGH"}),
        (f"68 05 72 02 08 01 {Z}", {"b": {"x": 1, "y": None}}),
    ],
)
def test_what_protobuf_reads_is_good(payload: str, expected: dict[str, Any], copies: int) -> None:
    decoder = protobuf.decoder(SMALL, None, None, message=(1,))
    payloads = [bytes.fromhex(payload)] * copies
    check(oracle.Oracle(SMALL, "p.M"), decoder, list(payloads), strict=True)
    for row in decoder.decode(pa.array(payloads, pa.binary())).values.to_pylist():
        if "day" in expected:
            row["day"] = row["day"].timetuple()[:3]
        assert fields(row) == expected


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ("0b 08 05 0c", "z"),
        (f"1b 1c {Z}", "gs.a"),
        (f"22 02 10 07 22 02 10 07 {Z}", "inner.x"),
        (f"32 05 0a 01 61 12 00 {Z}", "inners.value.x"),
        (f"32 03 0a 01 61 {Z}", "inners.value.x"),
    ],
)
def test_what_is_required_and_missing_is_named(payload: str, path: str) -> None:
    decoder = protobuf.decoder(SMALL, None, None, message=(1,))
    decoded = decoder.decode(pa.array([bytes.fromhex(payload)], pa.binary()))
    assert decoded.reasons == (f"field {path}: it is required, and missing",)


def test_a_member_of_a_oneof_that_is_not_read_clears_the_one_that_is() -> None:
    wanted = pa.struct([("a", pa.int32())])
    decoder = protobuf.decoder(SMALL, None, wanted, message=(1,))
    payloads = [bytes.fromhex(text) for text in ("68 05 72 00", "72 00 68 05", "68 05")]
    for times in (1, 20):
        found = decoder.decode(pa.array(payloads * times, pa.binary()))
        assert found.values.field("a").to_pylist() == [None, 5, 5] * times


def test_members_of_a_oneof_are_null_where_another_one_is_set() -> None:
    text = schema(
        'message M { oneof pick { int32 a = 1 [default = 5]; string b = 2 [default = "none"]; } }',
        "proto2",
    )
    decoder = protobuf.decoder(text, None, None)
    for times in (1, 20):
        payloads = [b"", b"\x08\x07", b"\x12\x01x", b"\x08\x07\x12\x01x"] * times
        values = decoder.decode(pa.array(payloads, pa.binary())).values
        assert values.field("a").to_pylist() == [None, 7, None, None] * times
        assert values.field("b").to_pylist() == [None, None, "x", "x"] * times
        written = protobuf.encoder(text, decoder.type).encode(values).to_pylist()
        assert written == [*payloads[:3], payloads[2]] * times


def test_a_number_of_a_wider_writer_is_bad_and_not_cut() -> None:
    wide = b"\x08\xff\xff\xff\xff\x0f"
    head = 'import "google/protobuf/wrappers.proto";'

    def read(writer: str, reader: str, payload: bytes = wide) -> Any:
        message = "message M {{ {} a = 1; }} enum E {{ A = 0; }}"
        schemas = [schema(message.format(kind), head=head) for kind in (writer, reader)]
        decoded = protobuf.decoder(*schemas, None).decode(pa.array([payload], pa.binary()))
        return decoded.reasons[0] if decoded.reasons else decoded.values[0].as_py()["a"]

    assert read("int32", "int32") == read("E", "int32") == -1
    assert read("int64", "int32") == "field a: 4294967295 does not fit int32"
    assert read("uint32", "E") == "field a: 4294967295 does not fit enum"
    assert read("int64", "uint32") == 4294967295
    minus = b"\x08" + b"\xff" * 9 + b"\x01"
    assert read("int32", "uint32", minus) == "field a: 18446744073709551615 does not fit uint32"
    assert read("sint64", "sint32", minus) == f"field a: {-(1 << 63)} does not fit sint32"
    wrapped = b"\x0a\x06" + wide
    names = "google.protobuf.Int64Value", "google.protobuf.Int32Value"
    assert read(*names, wrapped) == "field a.value: 4294967295 does not fit int32"


@pytest.mark.parametrize(
    ("kinds", "payload", "number"),
    [
        (("int64", "int32"), "08 ff ff ff ff 0f", (1 << 32) - 1),
        (("int64", "uint32"), "08" + "ff" * 9 + "01", -1 & (1 << 64) - 1),
        (("sint64", "sint32"), "08 82 80 80 80 20", (1 << 32) + 1),
        (("repeated int64", "repeated int32"), "0a 06 05 80 80 80 80 10", 1 << 32),
    ],
)
def test_the_runtime_does_not_cut_a_number_of_a_wider_writer(
    kinds: tuple[str, str], payload: str, number: int
) -> None:
    message = "message M {{ {} a = 1; optional group G = 2 {{ }} }}"
    writer, reader = (
        schema(message.format(kind if " " in kind else f"optional {kind}"), "proto2")
        for kind in kinds
    )
    group, small = b"\x13\x14", b"\x08\x05"
    payloads = [small + group, bytes.fromhex(payload) + group]
    decoded = protobuf.decoder(writer, reader, None).decode(pa.array(payloads, pa.binary()))
    kind = kinds[1].split()[-1]
    assert decoded.bad_rows.tolist() == [1]
    assert decoded.reasons == (f"field a: {number} does not fit {kind}",)


def test_messages_in_parts_are_merged_without_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "ProtobufNormalizer", None)
    text = schema(
        "message M { N n = 1; } message N { int32 a = 1; N2 m = 2; string s = 3; } "
        "message N2 { repeated int32 x = 1; }"
    )
    truth, decoder = oracle.Oracle(text, "p.M"), protobuf.decoder(text, None, None)
    texts = "0a 02 08 05", "0a 05 12 03 0a 01 07", "0a 03 1a 01 61", "0a 02 1a 00", "0a 00"
    parts = [bytes.fromhex(part) for part in texts]
    payloads = [b"", *parts, *(item + other for item in parts for other in parts)]
    for times in (1, 30):
        check(truth, decoder, list(payloads * times), strict=True)
    monkeypatch.undo()  # an invalid text is bad, whatever follows
    check(truth, decoder, [bytes.fromhex("0a 03 1a 01 ff") + part for part in parts], strict=True)


def test_the_last_of_several_map_entries_counts_without_the_runtime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decode, "ProtobufNormalizer", None)
    text = schema(
        "message M { map<string, int32> a = 1; map<int32, N> b = 2; N n = 3; } "
        "message N { map<bool, string> c = 1; }"
    )
    truth, decoder = oracle.Oracle(text, "p.M"), protobuf.decoder(text, None, None)
    maps = "0a 05 0a 01 61 10 01", "0a 03 0a 01 61", "0a 05 0a 01 62 10 02"
    maps += "12 0b 08 05 12 07 0a 05 08 01 12 01 61", "12 04 08 05 12 00"
    maps += "1a 07 0a 05 08 01 12 01 61", "1a 07 0a 05 08 01 12 01 62"
    parts = [bytes.fromhex(part) for part in maps]
    payloads = [b"", *parts, *(item + other + item for item in parts for other in parts)]
    for times in (1, 30):
        check(truth, decoder, list(payloads * times), strict=True)


def test_unknown_numbers_of_a_closed_enum_are_null_without_the_runtime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decode, "ProtobufNormalizer", None)
    text = schema(
        "enum E { LOW = -5; HIGH = 7; } enum F { A = 0; B = 1; } "
        "message M { optional E e = 1; optional F f = 2; oneof o { F g = 3; int32 i = 4; } }",
        "proto2",
    )
    truth, decoder = oracle.Oracle(text, "p.M"), protobuf.decoder(text, None, None)
    numbers = "00", "01", "02", "07", "63", "fb ff ff ff ff ff ff ff ff 01", "ff ff ff ff 0f"
    payloads = [bytes.fromhex(f"{tag} {n}") for tag in ("08", "10", "18") for n in numbers]
    payloads += [b"", *(first + second for first in payloads[:7] for second in payloads[7:14])]
    for times in (1, 30):
        check(truth, decoder, list(payloads * times), strict=True)


def test_a_part_that_is_damaged_does_not_continue_in_the_next_one() -> None:
    text = schema(
        "message M { N n = 1; } message N { string s = 1; N2 m = 2; } message N2 { int32 x = 1; }"
    )
    truth, decoder = oracle.Oracle(text, "p.M"), protobuf.decoder(text, None, None)
    cut = [
        "0a 03 0a 05 61 0a 04 0a 02 62 63",  # a text of five bytes, of which one is there
        "0a 02 0a 80 0a 01 01",  # a length whose second byte is in the next part
        "0a 04 12 02 08 80 0a 04 12 02 08 01",
    ]
    whole = ["0a 03 0a 01 61", "0a 03 0a 01 61 0a 04 12 02 08 01"]
    for times in (1, 30):
        payloads = [bytes.fromhex(payload) for payload in (*cut, *whole) * times]
        check(truth, decoder, list(payloads), strict=True)
        alone = [decoder.decode(pa.array([payload], pa.binary())).reasons for payload in payloads]
        reasons = decoder.decode(pa.array(payloads, pa.binary())).reasons
        own = [reason for found in alone for reason in found]
        assert list(reasons[:MAX_OWN_REASONS]) == own[:MAX_OWN_REASONS]
        assert [text.split(":")[0] for text in reasons] == [text.split(":")[0] for text in own]
        assert len(reasons) == len(cut) * times


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=examples(12))
@given(data=st.data())
def test_bytes_that_no_writer_makes_are_what_protobuf_says(name: str, data: st.DataObject) -> None:
    truth, decoder = case(name)
    chance = random.Random(data.draw(st.integers(0, 1 << 32)))
    payloads: list[bytes | None] = [oracle.wire_message(truth.descriptor, chance) for _ in range(6)]
    if chance.random() < 0.3:
        chosen = chance.sample(list(decoder.type), chance.randint(1, 4))
        text, message = CASES[name]
        indexes = protobuf.message_indexes(text, message)
        decoder = protobuf.decoder(text, None, pa.struct(chosen), message=indexes)
    check(truth, decoder, payloads, strict=True)
    check(truth, decoder, payloads * 6, strict=True)
