"""What is encoded is what protobuf's own runtime reads; and values that a message cannot have."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkkafka.config.kinds import PROTOBUF
from sparkkafka.errors import OptionError
from sparkkafka.schemas import arrays
from sparkkafka.schemas.protobuf import format as protobuf
from sparkkafka.schemas.values import Schema, ValueRowError
from tests.schemas.protobuf import oracle
from tests.schemas.protobuf.protos import ALL2, ALL3, CASES
from tests.schemas.protobuf.test_protobuf_decode import CASES_JSON, SLOW, case, with_json


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@SLOW
@given(data=st.data())
def test_what_is_read_and_written_again_is_the_same(name: str, data: st.DataObject) -> None:
    truth, decoder = case(name)
    schema, message = CASES[name]
    some = data.draw(st.lists(oracle.messages(truth.descriptor), min_size=1, max_size=6))
    payloads = [message.SerializeToString() for message in some]
    payloads = [p for p in payloads if truth.value(p, decoder.type) is not oracle.BAD]
    values = decoder.decode(pa.array([None, *payloads, None, *payloads], pa.binary())).values
    begin = data.draw(st.integers(0, len(values)))
    some_values = values.slice(begin, data.draw(st.integers(0, len(values))))
    encoder = protobuf.encoder(
        schema, decoder.type, message=protobuf.message_indexes(schema, message)
    )
    for given_ in (values, some_values):
        written = encoder.encode(given_)
        assert written.type == pa.binary() and len(written) == len(given_)
        written.validate(full=True)
        rows = with_json(oracle.rows_of(pa.concat_arrays([given_])), decoder.type, CASES_JSON)
        for row, value in zip(written.to_pylist(), rows, strict=True):
            if value is None:
                assert row is None
                continue
            found = truth.value(row, decoder.type)
            assert oracle.comparable(found, decoder.type) == oracle.comparable(value, decoder.type)


def test_the_same_bytes_as_protobuf_s_own() -> None:
    truth, decoder = case("proto3")
    message = truth.message(f_double=-0.0, f_int32=-1, o_int32=0, r_sint32=[-1, 300], r_bool=[True])
    message.f_stop.at.lat = 0.5
    message.c_stop.name = ""
    message.w_int32.value = 0
    message.m_fixed_stop[-5].name = "x"
    payload = message.SerializeToString()
    values = decoder.decode(pa.array([payload], pa.binary())).values
    assert protobuf.encoder(ALL3, decoder.type).encode(values).to_pylist() == [payload]


def schema(body: str, syntax: str = "proto3", head: str = "") -> Schema:
    return Schema(PROTOBUF, f'syntax = "{syntax}"; {head} {body}')


def column(name: str, kind: pa.DataType, values: list[Any]) -> pa.Array:
    return pa.array([{name: value} for value in values], pa.struct([(name, kind)]))


TIME = 'import "google/protobuf/timestamp.proto";'
DATE = 'import "google/type/date.proto";'
STRUCT = 'import "google/protobuf/struct.proto";'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "head", "kind", "values", "row", "expected_error"),
    [
        ("int32 a = 1;", "", pa.int64(), [1, None, 1 << 31], 2, "2147483648 does not fit int32"),
        ("uint32 a = 1;", "", pa.int32(), [0, -1], 1, "-1 does not fit uint32"),
        ("uint64 a = 1;", "", pa.decimal128(20, 0), [-1], 0, "-1 does not fit uint64"),
        (
            "uint64 a = 1;",
            "",
            pa.decimal128(38, 0),
            [None, decimal.Decimal(1 << 64)],
            1,
            "18446744073709551616 does not fit uint64",
        ),
        (
            "int64 a = 1;",
            "",
            pa.decimal128(20, 0),
            [decimal.Decimal((1 << 63) - 1), decimal.Decimal(1 << 63)],
            1,
            "does not fit int64",
        ),
        (
            "repeated string a = 1;",
            "",
            pa.list_(pa.string()),
            [["x"], ["y", None]],
            1,
            "field a: element 1 is null",
        ),
        (
            "map<string, int32> a = 1;",
            "",
            pa.map_(pa.string(), pa.int32()),
            [None, [("k", None)]],
            1,
            "field a: a value is null",
        ),
        ("E a = 1;", "", pa.string(), ["X", "Z"], 1, "the enum has no value 'Z': it has X, Y"),
        ("repeated E a = 1;", "", pa.list_(pa.string()), [[], ["X", "Y", "W"]], 1, "value 'W'"),
        ("E a = 1;", "", pa.string(), ["-7", "--7"], 1, "the enum has no value '--7'"),
        ("E a = 1;", "", pa.string(), ["7", "7" * 5000], 1, "the enum has no value '777"),
        ("E a = 1;", "", pa.string(), [str(2**31 - 1), str(2**31)], 1, "no value '2147483648'"),
        (
            "google.type.Date a = 1;",
            DATE,
            pa.date32(),
            [dt.date(1, 1, 1), None, -800000],
            2,
            "year -221 is not one",
        ),
        (
            "google.protobuf.Struct a = 1;",
            STRUCT,
            pa.string(),
            ["{}", "[1]"],
            1,
            "not the JSON of a Str",
        ),
        (
            "google.protobuf.Value a = 1;",
            STRUCT,
            pa.string(),
            [None, "{"],
            1,
            "not the JSON of a Value",
        ),
        ("N a = 1;", "", pa.struct([("b", pa.int64())]), [{"b": 1}, {"b": 1 << 40}], 1, "a.b: 10"),
    ],
)
def test_a_value_that_cannot_be_names_row_and_field(
    body: str, head: str, kind: Any, values: list[Any], row: int, expected_error: str
) -> None:
    text = schema(
        f"message M {{ {body} }} message N {{ int32 b = 1; }} enum E {{ X = 0; Y = 1; }}", head=head
    )
    if kind == pa.date32():
        days = [None if v is None else v if isinstance(v, int) else v.toordinal() for v in values]
        plain = pa.array(days, pa.int32()).cast(pa.date32())
        given_ = pa.StructArray.from_arrays([plain], ["a"])
    else:
        given_ = column("a", kind, values)
    nulls = pa.nulls(2, given_.type)
    encoder = protobuf.encoder(text, given_.type)
    for array, at in (
        (given_, row),
        (pa.concat_arrays([nulls, given_]), row + 2),
        (pa.concat_arrays([nulls, given_]).slice(1), row + 1),
    ):
        with pytest.raises(ValueRowError, match=expected_error) as caught:
            encoder.encode(array)
        assert caught.value.row == at


def test_two_fields_of_a_oneof_are_an_error() -> None:
    text = schema("message M { oneof o { int32 a = 1; string b = 2; } }")
    kind = pa.struct([("a", pa.int32()), ("b", pa.string())])
    given_ = pa.array([{"a": 1, "b": None}, {"a": None, "b": ""}, {"a": 0, "b": "x"}], kind)
    encoder = protobuf.encoder(text, kind)
    assert encoder.encode(given_.slice(0, 2)).to_pylist() == [b"\x08\x01", b"\x12\x00"]
    with pytest.raises(ValueRowError, match="fields a and b belong to one oneof") as caught:
        encoder.encode(given_)
    assert caught.value.row == 2


def test_required_fields() -> None:
    text = schema("message M { required int32 a = 1; optional int32 b = 2; }", "proto2")
    with pytest.raises(OptionError, match="message M: field a is required, and no column has it"):
        protobuf.encoder(text, pa.struct([("b", pa.int32())]))
    encoder = protobuf.encoder(text, pa.struct([("a", pa.int32())]))
    with pytest.raises(ValueRowError, match="field a is required, and null") as caught:
        encoder.encode(column("a", pa.int32(), [0, None]))
    assert caught.value.row == 1
    assert encoder.encode(column("a", pa.int32(), [0])).to_pylist() == [b"\x08\x00"]


@pytest.mark.parametrize(
    ("body", "name", "kind", "expected_error"),
    [
        ("int32 abc = 1;", "abd", pa.int32(), "no field 'abd': did you mean abc"),
        ("int32 a = 1;", "a", pa.string(), "a is int32, which cannot be made of string"),
        ("int32 a = 1;", "a", pa.float64(), "a is int32, which cannot be made of double"),
        ("float a = 1;", "a", pa.float64(), "a is float, which cannot be made of double"),
        ("string a = 1;", "a", pa.binary(), "a is string, which cannot be made of binary"),
        ("repeated int32 a = 1;", "a", pa.int32(), "a is repeated"),
        ("int32 a = 1;", "a", pa.decimal128(10, 2), "cannot be made of decimal"),
    ],
)
def test_a_column_that_does_not_fit_is_an_error(
    body: str, name: str, kind: Any, expected_error: str
) -> None:
    with pytest.raises(OptionError, match=expected_error):
        protobuf.encoder(schema(f"message M {{ {body} }}"), pa.struct([(name, kind)]))


def test_nulls_below_nulls_are_not_written() -> None:
    """What stands under a null parent means nothing, and may be anything."""
    text = schema(
        "message M { N n = 1; repeated N l = 2; } message N { int32 x = 1; string s = 2; }"
    )
    inner = pa.struct([("x", pa.int64()), ("s", pa.string())])
    wild = pa.StructArray.from_arrays(
        [pa.array([1, 1 << 40, 3]), pa.array(["a", "b", "c"])],
        fields=list(inner),
        mask=pa.array([False, True, False]),
    )
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()), wild, mask=pa.array([False, True, False])
    )
    given_ = pa.StructArray.from_arrays([wild, lists], ["n", "l"])
    written = protobuf.encoder(text, given_.type).encode(given_)
    truth = oracle.Oracle(text, "M")
    rows = [truth.value(row.as_py(), protobuf.arrow_type(text)) for row in written]
    assert rows == [
        {"n": {"x": 1, "s": "a"}, "l": [{"x": 1, "s": "a"}]},
        {"n": None, "l": []},
        {"n": {"x": 3, "s": "c"}, "l": [{"x": 3, "s": "c"}]},
    ]


@pytest.mark.parametrize(
    ("kind", "arrow_type", "garbage", "value"),
    [
        ("int32", pa.int64(), 1 << 40, 7),
        ("uint64", pa.decimal128(20, 0), -1, 7),
        *(("double", kind, 1.5, 2.5) for kind in (pa.float64(), pa.float32())),
        ("float", pa.float32(), 1.5, 2.5),
        ("bool", pa.bool_(), True, True),
        *(("bytes", kind, "x", "y") for kind in (pa.binary(), pa.string())),
        ("E", pa.string(), "Z", "Y"),
        ("E", pa.int64(), 1 << 40, 1),
        ("google.type.Date", pa.date32(), 1 << 30, 7),
    ],
)
def test_what_lies_in_memory_at_a_null_is_not_written(
    kind: str, arrow_type: pa.DataType, garbage: Any, value: Any
) -> None:
    text = schema(f"message M {{ {kind} a = 1; }} enum E {{ X = 0; Y = 1; }}", head=DATE)
    dates = pa.int32() if arrow_type == pa.date32() else arrow_type
    wild = pa.array([garbage, value, garbage], dates).view(arrow_type)
    array = arrays.null_outside(wild, np.array([False, True, False]))
    encoder = protobuf.encoder(text, pa.struct([("a", arrow_type)]))
    written = encoder.encode(pa.StructArray.from_arrays([array], ["a"])).to_pylist()
    [expected] = encoder.encode(pa.StructArray.from_arrays([wild[1:2]], ["a"])).to_pylist()
    assert written == [b"", expected, b""] and expected


def test_durations_are_those_of_protobuf_s_own() -> None:
    text = schema(
        "message M { google.protobuf.Duration a = 1; }",
        head='import "google/protobuf/duration.proto";',
    )
    micros = [0, 1, -1, 1_000_000, -1_000_000, 1_500_000, -1_500_000, -999_999]
    durations = pa.array(micros, pa.duration("us"))
    values = pa.StructArray.from_arrays([durations], ["a"])
    message = oracle.Oracle(text, "M").message
    for row, number in zip(protobuf.encoder(text, values.type).encode(values), micros, strict=True):
        found = message.FromString(row.as_py()).a
        expected = type(found)()
        expected.FromMicroseconds(number)
        assert found == expected


def test_small_integers_enum_numbers_and_local_times() -> None:
    text = schema(
        "message M { int32 a = 1; sint64 b = 2; E c = 3; google.protobuf.Timestamp d = 4; "
        "bytes e = 5; double f = 6; } enum E { X = 0; Y = 5; }",
        head=TIME,
    )
    kind = pa.struct(
        [
            ("a", pa.int8()),
            ("b", pa.int16()),
            ("c", pa.int32()),
            ("d", pa.timestamp("us")),
            ("e", pa.string()),
            ("f", pa.float32()),
        ]
    )
    row = {"a": -1, "b": -300, "c": 5, "d": dt.datetime(1969, 1, 1), "e": "ü", "f": 0.5}
    written = protobuf.encoder(text, kind).encode(pa.array([row], kind))
    wanted = pa.struct([("c", pa.string()), ("d", pa.timestamp("us")), ("e", pa.binary())])
    values = protobuf.decoder(text, None, wanted).decode(written).values
    assert values.to_pylist() == [{"c": "Y", "d": row["d"], "e": "ü".encode()}]


def test_many_rows_and_sizes_of_all_widths() -> None:
    text = schema(
        "message M { string a = 1; N n = 2; repeated int64 l = 3; } message N { bytes b = 1; }"
    )
    kind = protobuf.arrow_type(text)
    lengths = [0, 1, 127, 128, 16383, 16384, 70000] * 30
    rows = [
        {"a": "x" * n, "n": {"b": b"y" * n}, "l": [1 << (7 * i) for i in range(9)] * (n % 5)}
        for n in lengths
    ]
    values = pa.array(rows, kind)
    written = protobuf.encoder(text, kind).encode(values)
    assert protobuf.decoder(text, None, None).decode(written).values.equals(values)


def test_decimals_of_all_sizes() -> None:
    text = schema(
        "message M { confluent.type.Decimal d = 1 [(confluent.field_meta) = { params: ["
        '{ key: "precision", value: "38" }, { key: "scale", value: "3" }] }]; }',
        head='import "confluent/type/decimal.proto"; import "confluent/meta.proto";',
    )
    kind = protobuf.arrow_type(text)
    assert kind == pa.struct([("d", pa.decimal128(38, 3))])
    edges = [0, 1, -1, 127, 128, -128, -129, 255, 256, (1 << 63) - 1, -(1 << 63), 1 << 63]
    edges += [1 << 64, -(1 << 64), 10**38 - 1, 1 - 10**38] + [10**n for n in range(38)]
    with decimal.localcontext(prec=60):
        values = [decimal.Decimal(edge).scaleb(-3) for edge in edges]
    given_ = column("d", kind[0].type, [*values, None])
    written = protobuf.encoder(text, kind).encode(given_)
    truth = oracle.Oracle(text, "M")
    for payload, edge in zip(written.to_pylist(), edges, strict=False):
        message = truth.message.FromString(payload).d
        assert int.from_bytes(message.value, "big", signed=True) == edge
        assert len(message.value) == (edge if edge >= 0 else ~edge).bit_length() // 8 + 1
        assert (message.precision, message.scale) == (len(str(abs(edge))), 3)
    assert protobuf.decoder(text, None, None).decode(written).values.equals(given_)
    other = protobuf.decoder(text, None, pa.struct([("d", pa.decimal128(5, 1))])).decode(written)
    assert other.values[0].as_py() == {"d": decimal.Decimal("0.0")}
    assert 1 in other.bad_rows.tolist()  # 0.001


def test_unknown_numbers_of_an_open_enum_come_back() -> None:
    text = schema("message M { E e = 1; repeated E r = 2; } enum E { X = 0; Y = 1; }")
    payload = b"\x08\x63\x12\x02\x01\x62"
    values = protobuf.decoder(text, None, None).decode(pa.array([payload] * 50)).values
    assert values[7].as_py() == {"e": "99", "r": ["Y", "98"]}
    assert protobuf.encoder(text, values.type).encode(values)[49].as_py() == payload


def test_a_closed_enum_has_no_other_numbers() -> None:
    text = schema("message M { optional E a = 1; } enum E { X = 0; Y = 5; }", "proto2")
    numbers = pa.array([None, 5, 3], pa.int32())
    encoder = protobuf.encoder(text, pa.struct([("a", pa.int32())]))
    written = encoder.encode(pa.StructArray.from_arrays([numbers[:2]], ["a"]))
    assert written.to_pylist() == [b"", b"\x08\x05"]
    with pytest.raises(ValueRowError, match=r"field a: .*3") as caught:
        encoder.encode(pa.StructArray.from_arrays([numbers], ["a"]))
    assert caught.value.row == 2


def test_no_rows() -> None:
    for text, name in ((ALL3, "all3.All"), (ALL2, "all2.All")):
        indexes = protobuf.message_indexes(text, name)
        kind = protobuf.arrow_type(text, message=indexes)
        decoder = protobuf.decoder(text, None, None, message=indexes)
        for payloads in (pa.nulls(0, pa.binary()), pa.nulls(3, pa.binary())):
            decoded = decoder.decode(payloads)
            assert decoded.values.type == kind and decoded.values.null_count == len(payloads)
            encoded = protobuf.encoder(text, kind, message=indexes).encode(decoded.values)
            assert encoded.equals(payloads)


@pytest.mark.parametrize("zone", ["UTC", "Etc/UTC", "Europe/Berlin", "+05:30", None])
def test_timestamps_of_any_zone_are_the_same_instants(zone: str | None) -> None:
    kind = pa.struct(
        [
            ("t", pa.timestamp("us", zone)),
            ("s", pa.struct([("t", pa.timestamp("us", zone))])),
            ("l", pa.list_(pa.timestamp("us", zone))),
            ("m", pa.map_(pa.string(), pa.timestamp("us", zone))),
        ]
    )
    micros = 1_700_000_000_123_456
    column_ = pa.array(
        [
            {"t": at, "s": {"t": at}, "l": [at or 0], "m": [("k", at or 0)]}
            for at in (micros, None, -1)
        ],
        pa.struct(
            [
                ("t", pa.int64()),
                ("s", pa.struct([("t", pa.int64())])),
                ("l", pa.list_(pa.int64())),
                ("m", pa.map_(pa.string(), pa.int64())),
            ]
        ),
    ).cast(kind)
    made = protobuf.schema_of(kind, "M")
    payloads = protobuf.encoder(made, kind).encode(column_)
    read = protobuf.decoder(made, None, None).decode(payloads).values
    assert read.field("t").cast(pa.int64()).to_pylist() == [micros, None, -1]
    assert read.field("t").type == pa.timestamp("us", "UTC")
    again = protobuf.decoder(made, None, kind).decode(payloads).values
    assert again.equals(column_)
