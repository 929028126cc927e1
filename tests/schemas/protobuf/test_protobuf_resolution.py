"""Writer's and reader's schemas: fields are found by their numbers; and reads of some fields."""

from __future__ import annotations

import decimal
from typing import Any

import pyarrow as pa
import pytest

from sparkkafka.config.kinds import PROTOBUF
from sparkkafka.errors import OptionError, SchemaError
from sparkkafka.schemas.protobuf import format as protobuf
from sparkkafka.schemas.values import Schema, ValueRowError
from tests.schemas.protobuf import oracle
from tests.schemas.protobuf.protos import ALL3


def schema(body: str, syntax: str = "proto3", head: str = "") -> Schema:
    return Schema(PROTOBUF, f'syntax = "{syntax}"; package p; {head} {body}')


def payload(text: Schema, row: dict[str, Any]) -> pa.Array:
    kind = protobuf.arrow_type(text)
    return protobuf.encoder(text, kind).encode(pa.array([row], kind))


def test_fields_are_found_by_number() -> None:
    old = schema("message M { int32 id = 1; string name = 2; string gone = 3; }")
    new = schema(
        "message M { string title = 2; int64 id = 1; optional int32 added = 4; int32 zero = 5; }"
    )
    written = payload(old, {"id": -5, "name": "n", "gone": "g"})
    decoded = protobuf.decoder(old, new, None).decode(written)
    assert decoded.values.to_pylist() == [{"title": "n", "id": -5, "added": None, "zero": 0}]
    back = payload(new, {"title": "t", "id": 1 << 40, "added": 1, "zero": 2})
    decoded = protobuf.decoder(new, old, None).decode(back)
    assert decoded.reasons == ("field id: 1099511627776 does not fit int32",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("was", "becomes", "expected_error"),
    [
        ("int32 a = 1;", "string a = 1;", "field a .number 1. is int32 in the writer's"),
        ("int32 a = 1;", "sint32 a = 1;", "sint32 in the reader's"),
        ("float a = 1;", "fixed32 a = 1;", "float"),
        ("repeated string a = 1;", "string a = 1;", "is repeated"),
        ("map<string, string> a = 1;", "repeated string a = 1;", "is a map on one side"),
        ("N a = 1;", "bytes a = 1;", "message"),
        ("N a = 1;", "X a = 1;", r"field a\.x .number 1. is string"),
        ("map<string, N> a = 1;", "map<string, X> a = 1;", r"field a\.x|field a.*is string"),
    ],
)
def test_a_field_that_reads_bytes_wrong_is_an_error(
    was: str, becomes: str, expected_error: str
) -> None:
    kinds = "message N { string x = 1; } message X { int32 x = 1; }"
    writer = schema(f"message M {{ {was} }} {kinds}")
    reader = schema(f"message M {{ {becomes} }} {kinds}")
    with pytest.raises(SchemaError, match=expected_error):
        protobuf.decoder(writer, reader, None)
    if "repeated" not in was:
        return
    assert protobuf.decoder(reader, writer, None).decode(
        payload(reader, {"a": "x"})
    ).values.to_pylist() == [{"a": ["x"]}]


@pytest.mark.parametrize(
    ("was", "becomes", "expected_error"),
    [
        ("StringValue", "Int32Value", r"field a\.value .number 1. is string in the writer's"),
        (
            "Struct",
            "ListValue",
            r"field a .number 1. is a google\.protobuf\.Struct in the writer's",
        ),
        ("Duration", "Timestamp", r"is a google\.protobuf\.Duration in the writer's"),
    ],
)
def test_well_known_messages_are_not_read_as_others(
    was: str, becomes: str, expected_error: str
) -> None:
    files = "wrappers", "struct", "duration", "timestamp"
    head = "".join(f'import "google/protobuf/{file}.proto"; ' for file in files)
    writer, reader = (
        schema(f"message M {{ google.protobuf.{name} a = 1; }}", head=head)
        for name in (was, becomes)
    )
    with pytest.raises(SchemaError, match=expected_error):
        protobuf.decoder(writer, reader, None)


def test_the_readers_message_has_the_writers_name() -> None:
    old = schema("message M { int32 id = 1; }")
    new = schema("message First { string x = 1; } message M { int32 id = 1; int32 more = 2; }")
    kind = protobuf.decoder(old, new, None).type
    assert kind.names == ["id", "more"]
    with pytest.raises(SchemaError, match=r"no message p\.First"):
        protobuf.decoder(new, old, None)


def test_only_wanted_fields_are_read() -> None:
    truth = oracle.Oracle(ALL3, "all3.All")
    message = truth.message(f_int32=7, f_string="s", r_int32=[1, 2], c_int64=9, o_uint64=5)
    message.f_stop.at.lat = 1.5
    message.f_stop.name = "skipped"
    message.w_struct["a"] = 1
    wanted = pa.struct(
        [
            ("c_int64", pa.int64()),
            ("f_stop", pa.struct([("at", pa.struct([("lat", pa.float64())]))])),
            ("f_int32", pa.int64()),
            ("o_uint64", pa.int64()),
            ("f_enum", pa.int32()),
            ("r_int32", pa.list_(pa.int64())),
            ("w_struct", pa.string()),
            ("w_time", pa.struct([("nanos", pa.int32())])),
        ]
    )
    decoder = protobuf.decoder(ALL3, None, wanted)
    assert decoder.type == wanted
    for count in (1, 100):
        decoded = decoder.decode(pa.array([message.SerializeToString()] * count, pa.binary()))
        decoded.values.validate(full=True)
        assert decoded.values.type == wanted
        assert decoded.values[-1].as_py() == {
            "c_int64": 9,
            "f_stop": {"at": {"lat": 1.5}},
            "f_int32": 7,
            "o_uint64": 5,
            "f_enum": 0,
            "r_int32": [1, 2],
            "w_struct": '{"a":1.0}',
            "w_time": None,
        }


@pytest.mark.parametrize(
    ("name", "kind", "expected_error"),
    [
        ("f_int33", pa.int32(), "no field 'f_int33': did you mean .*f_int32"),
        ("f_int64", pa.int32(), "f_int64 is int64, which cannot become int"),
        ("f_string", pa.int32(), "f_string is string, which cannot become int"),
        ("f_uint64", pa.decimal128(20, 1), "takes 20 digits before the point"),
        ("f_stop", pa.string(), "f_stop is a message, which becomes a struct, not string"),
        ("r_int32", pa.int32(), "r_int32 is repeated, which becomes an array"),
        ("m_string_int", pa.string(), "m_string_int is a map"),
        ("w_time", pa.int64(), r"google\.protobuf\.Timestamp, which cannot become bigint"),
        ("f_stop", pa.struct([("att", pa.null())]), "f_stop has no field 'att': did you mean at"),
    ],
)
def test_a_wanted_type_that_cannot_be_is_an_error(
    name: str, kind: Any, expected_error: str
) -> None:
    with pytest.raises(OptionError, match=expected_error):
        protobuf.decoder(ALL3, None, pa.struct([(name, kind)]))


def test_wider_types_of_numbers() -> None:
    text = schema("message M { uint64 a = 1; int32 b = 2; uint32 c = 3; float d = 4; }")
    written = payload(
        text, {"a": decimal.Decimal((1 << 64) - 1), "b": -3, "c": (1 << 32) - 1, "d": 0.5}
    )
    wanted = pa.struct(
        [
            ("a", pa.decimal128(25, 3)),
            ("b", pa.decimal128(12, 2)),
            ("c", pa.float64()),
            ("d", pa.float64()),
        ]
    )
    values = protobuf.decoder(text, None, wanted).decode(written).values
    assert values.to_pylist() == [
        {
            "a": decimal.Decimal("18446744073709551615.000"),
            "b": decimal.Decimal("-3.00"),
            "c": 4294967295.0,
            "d": 0.5,
        }
    ]
    narrow = pa.struct([("a", pa.int64()), ("c", pa.int32())])
    decoded = protobuf.decoder(text, None, narrow).decode(written)
    assert decoded.reasons == ("field a: 18446744073709551615 does not fit int64",)
    among = protobuf.decoder(text, None, narrow).decode(pa.array([b"\x08\x05", written[0].as_py()]))
    assert among.bad_rows.tolist() == [1] and among.reasons == decoded.reasons


def test_a_type_that_cannot_hold_the_default_is_refused() -> None:
    text = schema("message M { optional uint32 a = 1 [default = 2147483648]; }", "proto2")
    narrow = pa.struct([("a", pa.int32())])
    with pytest.raises(OptionError, match="field a: its default 2147483648 does not fit int"):
        protobuf.decoder(text, None, narrow)
    written = protobuf.encoder(text, narrow).encode(pa.array([{"a": None}, {"a": 7}], narrow))
    assert written.to_pylist() == [b"", b"\x08\x07"]  # null is absent


def test_recursive_messages_are_refused_by_name_unless_left_out() -> None:
    text = schema("message M { string name = 1; N next = 2; } message N { M back = 1; }")
    with pytest.raises(SchemaError, match=r"field next\.back: message p\.M contains itself"):
        protobuf.arrow_type(text)
    wanted = pa.struct([("name", pa.string())])
    got = protobuf.decoder(text, None, wanted).decode(pa.array([b"\x0a\x01x"], pa.binary()))
    assert got.values.to_pylist() == [{"name": "x"}]


def test_a_message_without_fields_is_a_struct_without_fields() -> None:
    text = schema(
        "message M { int32 a = 1; oneof k { google.protobuf.Empty started = 2; N stopped = 3; } "
        "repeated N ns = 4; map<string, N> m = 5; O o = 6; } message N {} message O { N n = 1; }",
        head='import "google/protobuf/empty.proto";',
    )
    nothing = pa.struct([])
    kind = protobuf.arrow_type(text)
    assert kind == pa.struct(
        [
            ("a", pa.int32()),
            *(("started", nothing), ("stopped", nothing)),
            ("ns", pa.list_(pa.field("element", nothing, nullable=False))),
            ("m", pa.map_(pa.string(), pa.field("value", nothing, nullable=False))),
            ("o", pa.struct([("n", nothing)])),
        ]
    )
    rows = [
        {"a": 5, "started": {}, "stopped": None, "ns": [{}, {}], "m": [("k", {})], "o": {"n": {}}},
        {"a": 0, "started": None, "stopped": {}, "ns": [], "m": [], "o": {"n": None}},
        {"a": 0, "started": None, "stopped": None, "ns": [], "m": [], "o": None},
        None,
    ]
    payloads = [
        b"\x08\x05\x12\x00\x22\x00\x22\x00\x2a\x05\x0a\x01k\x12\x00\x32\x02\x0a\x00",
        *(b"\x1a\x00\x32\x00", b"", None),
    ]
    for times in (1, 20):
        decoded = protobuf.decoder(text, None, None).decode(pa.array(payloads * times, pa.binary()))
        decoded.values.validate(full=True)
        assert decoded.values.type == kind
        assert decoded.values.to_pylist() == rows * times
        encoder = protobuf.encoder(text, kind)
        assert encoder.encode(decoded.values).to_pylist() == payloads * times
        assert encoder.encode(decoded.values.slice(1)).to_pylist() == (payloads * times)[1:]
        assert encoder.encode(pa.array(rows * times, kind)).to_pylist() == payloads * times
    both = pa.array([{**rows[0], "stopped": {}}], kind)
    with pytest.raises(ValueRowError, match="started and stopped belong to one oneof"):
        encoder.encode(both)
    # What is in it are unknown fields.
    decoder = protobuf.decoder(text, None, pa.struct([("stopped", nothing)]))
    decoded = decoder.decode(pa.array([b"\x1a\x02\x08\x01", b"\x1a\x01\x08"]))
    assert decoded.values.to_pylist() == [{"stopped": {}}, None]
    assert protobuf.arrow_type(protobuf.schema_of(kind, "p.M")) == kind


def test_a_topmost_message_without_fields() -> None:
    nothing = schema("message M {}")
    assert protobuf.arrow_type(nothing) == pa.struct([])
    decoded = protobuf.decoder(nothing, None, None).decode(pa.array([b"", b"\x08", None]))
    assert decoded.values.to_pylist() == [{}, None, None]
    assert decoded.bad_rows.tolist() == [1]
    encoder = protobuf.encoder(nothing, pa.struct([]))
    assert encoder.encode(decoded.values).to_pylist() == [b"", None, None]


def test_rest_is_json_s_alone() -> None:
    with pytest.raises(OptionError, match="rest"):
        protobuf.decoder(ALL3, None, None, rest=True)
