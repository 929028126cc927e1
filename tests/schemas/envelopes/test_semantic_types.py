"""Debezium's and Connect's semantic types as types of Spark, and values that were not sent."""

from __future__ import annotations

import base64
import datetime
import json
import math
import random
from decimal import Context, Decimal
from typing import Any
from unittest.mock import ANY

import numpy as np
import pyarrow as pa
import pytest

from sparkkafka.errors import OptionError, SchemaError
from sparkkafka.schemas.avro import format as avro
from sparkkafka.schemas.envelopes.connect_types import ConnectType, type_of_connect_schema
from sparkkafka.schemas.envelopes.decode import Envelope, decoder, full_type, sample_type
from sparkkafka.schemas.envelopes.encode import encoded_type, wire_values
from sparkkafka.schemas.envelopes.semantic_types import (
    INFINITIES,
    PLACEHOLDER,
    BadRows,
    FieldContext,
    Placeholder,
    check_target,
    convert,
    find_placeholders,
    value_type,
)
from sparkkafka.schemas.json import format as json_format
from sparkkafka.schemas.values import Schema, TooManyRowsError
from tests.schemas.envelopes.debezium_records import (
    avro_envelope,
    connect_envelope,
    connect_field,
    payload,
    with_schema,
)
from tests.spark.typed_support import framed

TIME, DATA = "io.debezium.time.", "io.debezium.data."
CONNECT = "org.apache.kafka.connect.data."
ENVELOPE = Envelope("debezium", unwraps=True)


def converted(
    values: Any, node: ConnectType, target: pa.DataType | None = None
) -> tuple[list[Any], dict[int, str]]:
    array = pa.array(values, node.wire)
    bad_rows = BadRows()
    context = FieldContext(bad_rows, np.arange(len(array)), "x")
    result = convert(array, node, target or value_type(node), context)
    result.validate(full=True)
    return result.to_pylist(), bad_rows.reasons


def of(kind: str, semantic: str = "", **parameters: str) -> ConnectType:
    return type_of_connect_schema(connect_field("x", kind, semantic, **parameters))


def text_of(number: int) -> str:
    size = (number.bit_length() + 8) // 8
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


UTC = datetime.UTC
MOMENT = datetime.datetime(2024, 2, 29, 12, 34, 56, 789_012)
EARLY = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999)


@pytest.mark.parametrize(
    ("kind", "semantic", "value", "expected"),
    [
        ("int32", f"{TIME}Date", -1, datetime.date(1969, 12, 31)),
        ("int32", f"{CONNECT}Date", 19782, datetime.date(2024, 2, 29)),
        ("string", f"{TIME}IsoDate", "2024-02-29Z", datetime.date(2024, 2, 29)),
        ("int32", f"{TIME}Time", 45_296_789, "12:34:56.789"),
        ("int64", f"{TIME}MicroTime", 86_400_000_000, "24:00:00.000000"),
        ("int64", f"{TIME}MicroTime", -3_000_000_001, "-00:50:00.000001"),
        ("int64", f"{TIME}NanoTime", 1, "00:00:00.000000001"),
        ("int64", f"{TIME}Timestamp", 1_709_210_096_789, MOMENT.replace(microsecond=789_000)),
        ("int64", f"{TIME}MicroTimestamp", 1_709_210_096_789_012, MOMENT),
        ("int64", f"{TIME}NanoTimestamp", -1, EARLY),
        ("string", f"{TIME}IsoTimestamp", "2024-02-29T12:34:56.789012Z", MOMENT),
        ("string", f"{TIME}ZonedTimestamp", "2024-02-29T14:34:56.789012345+02:00", MOMENT),
        ("int64", f"{CONNECT}Timestamp", 1_709_210_096_789, MOMENT.replace(microsecond=789_000)),
        ("int64", f"{TIME}MicroDuration", -1, datetime.timedelta(microseconds=-1)),
        ("int64", f"{TIME}NanoDuration", 1_500, datetime.timedelta(microseconds=1)),
        ("int32", f"{TIME}Year", 2024, 2024),
        ("string", f"{TIME}Interval", "P1Y2M", "P1Y2M"),
        ("string", f"{TIME}ZonedTime", "10:34:56Z", "10:34:56Z"),
        ("string", f"{DATA}Json", '{"a": 1}', '{"a": 1}'),
        ("string", f"{DATA}Uuid", "a0ee", "a0ee"),
        ("string", f"{DATA}EnumSet", "a,b", "a,b"),
        ("bytes", f"{DATA}Bits", "AQo=", b"\x01\x0a"),
    ],
)
def test_a_semantic_type(kind: str, semantic: str, value: Any, expected: Any) -> None:
    values, bad_rows = converted([value, None], of(kind, semantic))
    assert not bad_rows
    found = values[0]
    if isinstance(found, datetime.datetime) and found.tzinfo is not None:
        assert semantic.endswith(("ZonedTimestamp", f"{CONNECT}Timestamp"))
        found = found.astimezone(UTC).replace(tzinfo=None)
    assert [found, values[1]] == [expected, None]


def test_bytes_of_all_lengths_in_base64() -> None:
    values = [bytes(range(size)) for size in range(20)] + [None, b""]
    texts = [None if value is None else base64.b64encode(value).decode() for value in values]
    assert converted(texts, of("bytes")) == (values, {})


@pytest.mark.parametrize(
    ("node", "value", "good", "target"),
    [
        (of("int64", f"{TIME}MicroTime"), -(2**63), -3_020_399_999_999, pa.string()),
        (of("int64", f"{TIME}NanoTime"), 2**63 - 1, 3_020_399_999_999_999, pa.string()),
        (of("string", f"{TIME}IsoDate"), "2024-01-01ZZZ", "2024-01-01Z", pa.date32()),
        (of("string", f"{TIME}IsoTimestamp"), "2024-01-01T00:00:00ZZ", None, pa.timestamp("us")),
        (of("string"), "0x1", "1", pa.int32()),
        (of("string"), "0X1f", "-7", pa.int64()),
    ],
)
def test_a_value_that_no_database_has(
    node: ConnectType, value: Any, good: Any, target: pa.DataType
) -> None:
    values, bad_rows = converted([good, value, good], node, target)
    assert list(bad_rows) == [1]
    assert values[1] is None
    assert values[0] == values[2]
    assert (values[0] is None) == (good is None)


def test_the_reason_has_the_bad_value_of_its_row() -> None:
    texts, target = ["1.5", "7", "99999999999", None, "x"], pa.int32()
    assert converted(texts, of("string"), target) == (
        [None, 7, None, None, None],
        {row: f"field x: {texts[row]!r} is not of type int" for row in (0, 2, 4)},
    )
    days, target = of("int32", f"{TIME}Date"), pa.timestamp("us")
    values, bad_rows = converted([2**31 - 1, 0], days, target)  # a day that Python does not have
    assert values == [None, datetime.datetime(1970, 1, 1)]
    assert "2147483647" in bad_rows[0]


@pytest.mark.parametrize("text", ["!!!!", "AAA", "A===", "AA=A", "é==="])
def test_a_text_that_is_no_base64(text: str) -> None:
    values, bad_rows = converted(["QQ==", text, "QUI="], of("bytes"))
    assert bad_rows == {1: "field x: the text is not base64"}
    assert [values[0], values[2]] == [b"A", b"AB"]


def test_decimals() -> None:
    node = of("bytes", f"{CONNECT}Decimal", scale="2", **{"connect.decimal.precision": "20"})
    numbers = [0, -1, 127, 128, 255, -256, 2**63, -(2**64), 10**20 - 1, -(10**20) + 1]
    values, bad_rows = converted([text_of(number) for number in [*numbers, 10**20]], node)
    assert values[:-1] == [Decimal(number).scaleb(-2) for number in numbers]
    assert bad_rows == {10: "field x: a number of more than 20 digits"}
    assert converted([text_of(12345)], node, pa.float64())[0] == [123.45]
    long = of("bytes", f"{CONNECT}Decimal", scale="1", **{"connect.decimal.precision": "50"})
    assert converted([text_of(-(10**49)), text_of(5)], long)[0] == [f"-1{'0' * 48}.0", "0.5"]


def test_bytes_of_a_decimal_that_only_repeat_its_sign() -> None:
    """Java writes no such bytes, but other writers do."""
    node = of("bytes", f"{CONNECT}Decimal", scale="2", **{"connect.decimal.precision": "38"})
    numbers = [5, -5, 10**38 - 1, -(10**38) + 1, 10**38, 2**200]
    texts = [
        base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()
        for number in numbers
        for size in (26, 300)
    ]
    values, bad_rows = converted(texts, node)
    expected = [Decimal(number).scaleb(-2, Context(prec=38)) for number in numbers[:4]]
    assert values == [*(number for number in expected for _ in range(2)), *[None] * 4]
    assert list(bad_rows) == [8, 9, 10, 11]


@pytest.mark.parametrize("parameters", [{}, {"scale": "two"}, {"scale": None}])
def test_a_decimal_without_a_readable_scale_names_its_field(parameters: Any) -> None:
    field = connect_field("price", "bytes", f"{CONNECT}Decimal") | {"parameters": parameters}
    with pytest.raises(SchemaError, match=r"field price: its scale, .* is not a number"):
        type_of_connect_schema({"type": "struct", "fields": [field]})


@pytest.mark.parametrize("parts", [{}, {"scale": "string", "value": "bytes"}, {"scale": "int32"}])
def test_a_number_without_its_parts_names_its_field(parts: dict[str, str]) -> None:
    fields = [connect_field(name, kind) for name, kind in parts.items()]
    field = connect_field("n", "struct", f"{DATA}VariableScaleDecimal") | {"fields": fields}
    with pytest.raises(SchemaError, match=r"field n: a .*VariableScaleDecimal has an int"):
        type_of_connect_schema({"type": "struct", "fields": [field]})


def test_days_beyond_dates_are_bad() -> None:
    values, bad_rows = converted([1, 2**40], of("int64", f"{TIME}Date"))
    assert values == [datetime.date(1970, 1, 2), None]
    assert bad_rows == {1: "field x: '1099511627776' is not of type int"}


@pytest.mark.parametrize(
    ("kind", "value"), [("boolean", True), ("double", 1.5), ("bytes", "QQ=="), ("struct", {})]
)
def test_a_semantic_type_of_another_type_than_debezium_s_is_bad(kind: str, value: Any) -> None:
    node = type_of_connect_schema({"type": kind, "name": f"{TIME}Date", "fields": []})
    assert converted([None, value, None], node) == ([None] * 3, {1: ANY})
    assert converted([None], node) == ([None], {})
    lists = ConnectType(children={"": node}, is_list=True)
    assert converted([[], None], lists) == ([[], None], {})


def test_an_operation_that_is_no_text_makes_its_records_bad() -> None:
    columns = [connect_field("id", "int64")]
    good, odd = connect_envelope(columns), connect_envelope(columns)
    odd["fields"][4] = connect_field("op", "int32")
    texts = [
        with_schema(good, payload("c", None, {"id": 1})),
        with_schema(odd, payload("c", None, {"id": 2}) | {"op": 1}),
    ]
    target = sample_type(json_format, ENVELOPE, texts[:1], [], infers=False)
    assert target is not None
    made = decoder(json_format, ENVELOPE, Schema("json", ""), None, target)
    decoded = made.decode(pa.array(texts, pa.binary()))
    assert decoded.bad_rows.tolist() == [1]
    assert "field op is not a string" in decoded.reasons[0]


def test_a_column_of_two_types_in_one_schema_makes_its_records_bad() -> None:
    """As damage of the schema's text: it must not stop the batch."""
    place = connect_field("place", "struct") | {"fields": [connect_field("x", "int64")]}
    good, odd = connect_envelope([place]), connect_envelope([place])
    odd["fields"][0]["fields"] = [place | {"fields": [connect_field("y", "int64")]}]
    row = {"place": {"x": 1}}
    texts = [with_schema(schema, payload("d", row, None)) for schema in (good, odd)]
    target = sample_type(json_format, ENVELOPE, texts[:1], [], infers=False)
    assert target is not None
    made = decoder(json_format, ENVELOPE, Schema("json", ""), None, target)
    decoded = made.decode(pa.array(texts, pa.binary()))
    assert decoded.values[0].as_py()["row"] == row
    assert decoded.bad_rows.tolist() == [1]
    assert "field place has another type in before than in after" in decoded.reasons[0]


def test_decimals_with_a_scale_of_their_own() -> None:
    fields = [connect_field("scale", "int32"), connect_field("value", "bytes")]
    schema = {"type": "struct", "name": f"{DATA}VariableScaleDecimal", "fields": fields}
    node = type_of_connect_schema(schema)
    huge = 10**9_000 + 7
    numbers = [(2, 12345), (0, -7), (3, 1), (10, 1), (-2, 5), (1, huge)]
    rows = [{"scale": scale, "value": text_of(number)} for scale, number in numbers]
    values, bad_rows = converted([*rows[:3], None], node)
    assert (values, bad_rows) == (["123.45", "-7", "0.001", None], {})
    values, _ = converted(rows, node)
    assert values[:5] == ["123.45", "-7", "0.001", "0.0000000001", "500"]
    assert values[5] == f"1{'0' * 8_999}.7"
    assert converted(rows[:1], node, pa.decimal128(10, 3))[0] == [Decimal("123.450")]
    chance = random.Random(7)
    numbers = [
        (chance.randrange(40), chance.randrange(-(10 ** chance.randrange(1, 45)), 10**9))
        for _ in range(300)
    ]
    rows = [{"scale": scale, "value": text_of(number)} for scale, number in numbers]
    values, _ = converted(rows, node)
    for value, (scale, number) in zip(values, numbers, strict=True):
        assert value == format(Decimal(number).scaleb(-scale, Context(prec=60)), "f")


@pytest.mark.parametrize(("scale", "size"), [(2**31 - 1, 1), (-(2**31), 1), (0, 70_000)])
def test_a_decimal_of_too_many_digits_is_bad(scale: int, size: int) -> None:
    """Its digits would take gigabytes of memory, or minutes."""
    fields = [connect_field("scale", "int32"), connect_field("value", "bytes")]
    schema = {"type": "struct", "name": f"{DATA}VariableScaleDecimal", "fields": fields}
    text = base64.b64encode(b"\1" * size).decode()
    reason = (
        "field x: a number of more than 147455 digits, a scale beyond 16383, or too many such "
        "numbers"
    )
    rows = [{"scale": 0, "value": "AQ=="}, {"scale": scale, "value": text}]
    assert converted(rows, type_of_connect_schema(schema)) == (["1", None], {1: reason})
    own = of("bytes", f"{CONNECT}Decimal", scale=str(scale), **{"connect.decimal.precision": "50"})
    values, bad_rows = converted([None, text], own)
    assert (values, bad_rows) == ([None, None], {1: reason})


def test_the_memory_of_long_decimals_is_bounded() -> None:
    """A number of a few bytes has 16,383 digits by its scale."""
    fields = [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}]
    name = f"{DATA}VariableScaleDecimal"
    number = {"type": "record", "name": "Number", "connect.name": name, "fields": fields}
    schema = avro_envelope([("id", "long"), ("n", number)])
    change = payload("c", None, {"id": 1, "n": {"scale": -16_383, "value": b"\1"}})
    written = Schema("avro", json.dumps(schema))
    made = decoder(avro, ENVELOPE, written, None, full_type(avro, ENVELOPE, written, (0,), None))
    text = framed(1, schema, change)[5:]
    with pytest.raises(TooManyRowsError):
        made.decode(pa.array([text] * 5_000, pa.binary()))
    assert len(made.decode(pa.array([text] * 50, pa.binary())).bad_rows) == 0


@pytest.mark.parametrize(
    ("text", "year"),
    [("+12024", 12_024), ("+20222", 20_222), ("-0044", -44), ("-0001", -1), ("+290000", 290_000)],
)
def test_a_year_beyond_four_digits(text: str, year: int) -> None:
    """Such years are typing errors, or before Christ."""
    cycles = year // 400 - 5
    day = (datetime.date(year - 400 * cycles, 2, 3) - datetime.date(1970, 1, 1)).days
    day += cycles * 146_097
    moment = day * 86_400_000_000 + 10_800_000_000
    times = ["{}-02-03T03:00:00Z", "{}-02-03T05:00:00.0000009+02:00", "{}-02-30T03:00:00Z"]
    for kind, texts, expected in (
        ("ZonedTimestamp", times, [moment, moment, None]),
        ("IsoTimestamp", times[:1], [moment]),
        ("IsoDate", ["{}-02-03Z"], [day]),
    ):
        node = of("string", f"{TIME}{kind}")
        array = pa.array([time.format(text) for time in texts] + [None])
        bad_rows = BadRows()
        context = FieldContext(bad_rows, np.arange(len(array)), "x")
        result = convert(array, node, value_type(node), context)
        number = pa.int32() if kind == "IsoDate" else pa.int64()
        assert result.view(number).to_pylist() == [*expected, None]
        assert list(bad_rows.reasons) == [2][: len(texts) // 3]


def test_times_beyond_python_s_are_written_as_debezium_does() -> None:
    texts = {
        9_223_372_036_825_200_000: "infinity",
        -9_223_372_036_832_400_000: "-infinity",
        2**62: "+148108-07-06T14:00:27.387904Z",
        -(2**62): "-144169-06-28T09:59:32.612096Z",
        253_402_300_800_000_000: "+10000-01-01T00:00:00.000000Z",
        -1: "1969-12-31T23:59:59.999999Z",
    }
    column = pa.timestamp("us", "UTC")
    array = pa.array([None, *texts, None], pa.int64()).view(column).slice(1)
    written = wire_values(array, encoded_type(column, "x").wire)
    assert written.to_pylist() == [*texts.values(), None]
    node = of("string", f"{TIME}ZonedTimestamp")
    context = FieldContext(BadRows(), np.arange(len(array)), "x")
    assert convert(written, node, column, context).equals(array)


def test_infinity_of_postgres() -> None:
    node = of("string", f"{TIME}ZonedTimestamp")
    array = pa.array(["infinity", "-infinity", "2024-02-29T12:34:56Z", None, "soon"])
    bad_rows = BadRows()
    result = convert(array, node, value_type(node), FieldContext(bad_rows, np.arange(5), "x"))
    assert result.view(pa.int64()).to_pylist()[:2] == [
        9_223_372_036_825_200_000,
        -9_223_372_036_832_400_000,
    ]
    assert bad_rows.reasons == {4: "field x: 'soon' is not of type timestamp"}


def test_infinite_dates_of_debezium_are_the_days_of_infinite_times() -> None:
    """Debezium's numbers overflow: that of infinity is long before that of the first day."""
    node = of("int32", f"{TIME}Date")
    infinities, days = (106_751_991, -106_751_992), (0, -2_440_588, 2_145_031_948)
    of_snapshots = (-622_191_234, -625_821_272, -622_191_233, -625_821_271)
    sent = [None, *of_snapshots, -2_147_472_692, -2_147_472_691, *days]
    context = FieldContext(BadRows(), np.arange(len(sent)), "x")
    dates = convert(pa.array(sent, pa.int32()), node, value_type(node), context)
    assert dates.view(pa.int32()).to_pylist() == [None, *infinities * 3, *days]
    times_us = pa.array(INFINITIES.values(), pa.int64()).cast(pa.timestamp("us"))
    assert dates[1:3].equals(times_us.cast(pa.date32(), safe=False))
    # Connect's Date in Avro has the logical type date.
    node = ConnectType(pa.date32(), f"{CONNECT}Date")
    decoded = pa.array(sent, pa.int32()).view(pa.date32())
    assert convert(decoded, node, value_type(node), context).equals(dates)


@pytest.mark.parametrize(
    ("kind", "infinity", "minus_infinity"),
    [
        ("IsoDate", "+292278994-08-16Z", "+292269055-12-02Z"),
        ("IsoDate", "-5877611-06-21Z", "-5877611-06-22Z"),
        ("IsoTimestamp", "+294247-01-10T04:00:25.2Z", "-290308-12-21T19:59:27.6Z"),
        ("ZonedTimestamp", "infinity", "+292269055-12-02T23:00:00.000000Z"),
        ("NanoTimestamp", 2**63 - 1, -(2**63)),
    ],
)
def test_other_forms_of_infinity(kind: str, infinity: Any, minus_infinity: Any) -> None:
    """As Debezium 3.6 sends them, the first of IsoDate in snapshots and arrays."""
    node = of("int64" if kind == "NanoTimestamp" else "string", f"{TIME}{kind}")
    context = FieldContext(BadRows(), np.arange(3), "x")
    times = convert(pa.array([None, infinity, minus_infinity]), node, value_type(node), context)
    unit_us, number = (86_400 * 10**6, pa.int32()) if kind == "IsoDate" else (1, pa.int64())
    expected = [time_us // unit_us for time_us in INFINITIES.values()]
    assert times.view(number).to_pylist() == [None, *expected]
    assert not context.bad_rows.reasons


def test_lists_and_maps_with_semantic_types() -> None:
    dates = {"type": "array", "items": connect_field("x", "int32", f"{TIME}Date")}
    node = type_of_connect_schema(dates)
    assert converted([[0, None], None, [1]], node)[0] == [
        [datetime.date(1970, 1, 1), None],
        None,
        [datetime.date(1970, 1, 2)],
    ]
    raw = type_of_connect_schema({"type": "map", "values": connect_field("x", "bytes")})
    values, bad_rows = converted([[("a", "QQ==")], None, [("b", None), ("c", "?")]], raw)
    assert values == [[("a", b"A")], None, [("b", None), ("c", None)]]
    assert list(bad_rows) == [2]


def test_another_type_of_the_user() -> None:
    values, bad_rows = converted(["1.50", "x", None], of("string"), pa.decimal128(10, 2))
    assert values == [Decimal("1.50"), None, None]
    assert bad_rows == {1: "field x: 'x' is not of type decimal(10,2)"}
    with pytest.raises(OptionError, match=r"field x is .*Date, which cannot become boolean"):
        check_target(of("int32", f"{TIME}Date"), pa.bool_(), "x", lenient=False)


@pytest.mark.parametrize("scale", [0, 5, 38])
def test_small_numbers_in_texts(scale: int) -> None:
    """Arrow takes some of them for 0, and crashes with others."""
    fitting = ["1.5e1", "0E-10", "0E-5840000", "10e-1", f"3.{'0' * 60}"]
    others = ["1e-39", "0.01E-584", "1E-5840000", f"0.{'0' * 38}1", f"1.{'2' * 37}E-9", "e-40"]
    texts = [*(text for text in fitting if scale < 38 or text[0] == "0"), None, *others]
    values, bad_rows = converted(texts, of("string"), pa.decimal128(38, scale))
    good = texts.index(None)
    assert values[:good] == [Decimal(text or "") for text in texts[:good]]
    assert values[good:] == [None] * (1 + len(others))
    assert sorted(bad_rows) == list(range(good + 1, len(texts)))


def test_large_numbers_in_texts() -> None:
    """Arrow takes some of them modulo 2**128."""
    texts = [str(2**128 + 1), f"-{2**127}", "1" + "0" * 60, f"{2**128}.5", "99E36", "1e38", "+1"]
    values, bad_rows = converted(texts, of("string"), pa.decimal128(38, 0))
    assert values == [*[None] * 4, Decimal("99e36"), None, Decimal(1)]
    assert list(bad_rows) == [0, 1, 2, 3, 5]
    texts = ["9" * 20, "9" * 10, "00000012.5", "-1234567890.5"]
    values, bad_rows = converted(texts, of("string"), pa.decimal128(38, 28))
    assert values == [None, Decimal("9" * 10), Decimal("12.5"), Decimal("-1234567890.5")]
    assert list(bad_rows) == [0]


def test_numbers_as_another_type_of_number() -> None:
    """Arrow converts decimals to binary fractions inexactly, and back; larger decimals than fit it
    takes modulo 2**128."""
    digits = {"connect.decimal.precision": "20"}
    tenths = of("bytes", f"{CONNECT}Decimal", scale="1", **digits)
    texts = [text_of(number) for number in (6, 99_999, -1_018_5)]
    assert converted(texts, tenths, pa.float64()) == ([0.6, 9999.9, -1018.5], {})
    values, bad_rows = converted([text_of(12), text_of(10**20 - 1)], tenths, pa.decimal128(38, 38))
    assert (values, list(bad_rows)) == ([None, None], [0, 1])
    values, bad_rows = converted([0.1, 1e-9, 2.675, math.nan], of("double"), pa.decimal128(30, 20))
    assert (values[:3], list(bad_rows)) == (
        [Decimal("0.1"), Decimal("1e-9"), Decimal("2.675")],
        [3],
    )
    assert converted([2.675], of("double"), pa.decimal128(10, 2))[0] == [None]
    assert converted([5, 10**10], of("int64"), pa.decimal128(10, 0))[0] == [Decimal(5), None]


CODES = list(PLACEHOLDER.bytes)
TEXT = PLACEHOLDER.text


@pytest.mark.parametrize(
    ("values", "node"),
    [
        (["a", TEXT, None], of("string")),
        ([b"a", PLACEHOLDER.bytes, None], ConnectType(pa.binary())),
        (["QQ==", PLACEHOLDER.base64, None], of("bytes")),
        (["{}", f'{{"{TEXT}":"{TEXT}"}}', None], of("string", f"{DATA}Json")),
        ([["a", "b"], [TEXT], ["a"], None], pa.list_(pa.string())),
        ([[1] * 28, CODES, [], None], pa.list_(pa.int32())),
        ([[1], CODES, CODES[1:], None], pa.list_(pa.int64())),
        ([["a"], ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], [], None], pa.list_(pa.string())),
        ([[("a", "b")], [(TEXT, TEXT)], [], None], pa.map_(pa.string(), pa.string())),
    ],
)
def test_values_that_were_not_sent(values: list[Any], node: Any) -> None:
    if isinstance(node, pa.DataType):
        is_map = pa.types.is_map(node)
        item = ConnectType(node.item_type if is_map else node.value_type)
        node = ConnectType(children={"": item}, is_list=not is_map, is_map=is_map)
    array = pa.array(values, node.wire)
    flags = find_placeholders(array, node)
    assert flags is not None
    assert flags.tolist() == [number == 1 for number in range(len(values))]
    flags = find_placeholders(array.slice(1), node)
    assert flags is not None
    assert flags.tolist() == [number == 0 for number in range(len(values) - 1)]
    assert find_placeholders(array.slice(2), node) is None


def test_a_batch_may_have_two_placeholders_of_arrays() -> None:
    values = [[TEXT], [PLACEHOLDER.uuid], ["a"], None]
    flags = find_placeholders(
        pa.array(values), ConnectType(children={"": of("string")}, is_list=True)
    )
    assert flags is not None
    assert flags.tolist() == [True, True, False, False]


def test_a_connector_has_a_placeholder_of_its_own() -> None:
    own = Placeholder("(größer)")
    numbers = ConnectType(children={"": ConnectType(pa.int64())}, is_list=True)
    for value, node in (
        ("(größer)", of("string")),
        ("KGdyw7bDn2VyKQ==", of("bytes")),
        ('{"(größer)":"(größer)"}', of("string", f"{DATA}Json")),
        (list("(größer)".encode()), numbers),
    ):
        array = pa.array([value], node.wire)
        assert find_placeholders(array, node, own) is not None
        assert find_placeholders(array, node) is None


def test_numbers_that_json_has_as_text() -> None:
    """Connect writes NaN and infinity of doubles as texts. Numbers that are too large are bad."""
    schema = connect_envelope([connect_field("id", "int64"), connect_field("d", "double")])
    numbers = [1.5, "NaN", "-Infinity", None, "x", 10**309]
    texts = [with_schema(schema, payload("c", None, {"id": 1, "d": value})) for value in numbers]
    target = sample_type(json_format, ENVELOPE, texts, [], infers=False)
    assert target is not None
    decoded = decoder(json_format, ENVELOPE, Schema("json", ""), None, target).decode(
        pa.array(texts, pa.binary())
    )
    rows = [row and row["row"]["d"] for row in decoded.values.to_pylist()]
    assert repr(rows) == "[1.5, nan, -inf, None, None, None]"
    assert [reason[:12] for reason in decoded.reasons] == ["field d: 'x'", "field d: '10"]
    _, bad_rows = converted([1e38, math.inf, 1e39], of("double"), pa.float32())
    assert bad_rows == {2: "field x: '1e+39' is not of type float"}


def test_decimals_that_json_has_as_numbers() -> None:
    """JsonConverter with decimal.format=NUMERIC. A base64 text can be all digits."""
    parameters = {"scale": "2", "connect.decimal.precision": "10"}
    price = connect_field("price", "bytes", f"{CONNECT}Decimal", **parameters)
    whole = connect_field("whole", "bytes", f"{CONNECT}Decimal", scale="0")
    values = [(123.45, 1234), (-7, None), (None, "1234"), ("MDk=", 10**20), (1e9, 5)]
    schema = connect_envelope([connect_field("id", "int64"), price, whole])
    texts = [
        with_schema(schema, payload("c", None, {"id": 1, "price": price, "whole": whole}))
        for price, whole in values
    ]
    target = sample_type(json_format, ENVELOPE, texts, [], infers=False)
    assert target is not None
    decoded = decoder(json_format, ENVELOPE, Schema("json", ""), None, target).decode(
        pa.array(texts, pa.binary())
    )
    rows = [
        row and (row["row"]["price"], row["row"]["whole"]) for row in decoded.values.to_pylist()
    ]
    expected = [("123.45", "1234"), ("-7.00", None), (None, "-2658824"), ("123.45", "1" + "0" * 20)]
    assert rows == [
        *(tuple(text and Decimal(text) for text in pair) for pair in expected),
        None,
    ]
    assert decoded.reasons == ("field price: '1000000000.0' is not of type decimal(10,2)",)


def test_a_decimal_that_is_a_number_beside_a_text_of_its_name() -> None:
    """The transaction has an id, and the source a version."""
    parameters = {"scale": "0", "connect.decimal.precision": "10"}
    names = ["id", "version", "op"]
    columns = [connect_field(name, "bytes", f"{CONNECT}Decimal", **parameters) for name in names]
    row = dict.fromkeys(names, 1234)
    event = payload("u", {"id": None}, row)
    event["source"]["query"] = 'UPDATE t SET a = \'{"id": "\''
    text = with_schema(connect_envelope(columns), event)
    target = sample_type(json_format, ENVELOPE, [text], [], infers=False)
    assert target is not None
    decoded = decoder(json_format, ENVELOPE, Schema("json", ""), None, target).decode(
        pa.array([text], pa.binary())
    )
    assert decoded.values[0].as_py()["row"] == row


def test_a_decimal_of_digits_in_base64_beside_a_number_of_its_name() -> None:
    """And a list of many: each item must not cost a copy of the payload."""
    parameters = {"scale": "2", "connect.decimal.precision": "10"}
    lsn = connect_field("lsn", "bytes", f"{CONNECT}Decimal", **parameters)
    prices = {"type": "array", "items": lsn, "optional": True, "field": "prices"}
    row = {"lsn": "1234", "prices": ["1234"] * 24_000}
    event = payload("c", None, row)
    event["source"]["lsn"] = 77
    text = with_schema(connect_envelope([lsn, prices]), event)
    target = sample_type(json_format, ENVELOPE, [text], [], infers=False)
    assert target is not None
    decoded = decoder(json_format, ENVELOPE, Schema("json", ""), None, target).decode(
        pa.array([text], pa.binary())
    )
    decoded_row = decoded.values[0].as_py()["row"]
    assert decoded_row["lsn"] == Decimal("-26588.24")
    assert set(decoded_row["prices"]) == {Decimal("-26588.24")}


def test_a_map_whose_keys_are_numbers_is_the_text_of_its_pairs() -> None:
    """As in pgvector's SparseVector: Connect writes pairs."""
    pairs = {"type": "map", "keys": {"type": "int16"}, "values": {"type": "double"}}
    vector = connect_field("v", "struct", f"{DATA}SparseVector")
    vector |= {"fields": [connect_field("dimensions", "int16"), {**pairs, "field": "vector"}]}
    text = with_schema(
        connect_envelope([vector]),
        payload("c", None, {"v": {"dimensions": 9, "vector": [[1, 0.5], [7, 2.5]]}}),
    )
    target = sample_type(json_format, ENVELOPE, [text], [], infers=False)
    assert target is not None
    [row] = (
        decoder(json_format, ENVELOPE, Schema("json", ""), None, target)
        .decode(pa.array([text], pa.binary()))
        .values.to_pylist()
    )
    assert row["row"]["v"] == {"dimensions": 9, "vector": "[[1,0.5],[7,2.5]]"}


def test_avro_decimals_of_unknown_precision() -> None:
    """Confluent's converter writes a precision of 64 if Connect does not know it."""
    cash = ("bytes", f"{CONNECT}Decimal", {"scale": 2, "precision": 64, "logicalType": "decimal"})
    text = avro_envelope([("id", "long"), ("cash", (*cash[:2], {**cash[2]}))])
    parameters = {"connect.parameters": {"scale": "2"}}
    text["fields"][0]["type"][1]["fields"][1]["type"][1].update(parameters)
    schema = Schema("avro", json.dumps(text))
    target = pa.struct(
        [
            ("row", pa.struct([("cash", pa.decimal128(38, 2))])),
            ("change", pa.struct([("op", pa.string())])),
        ]
    )
    plain = json.loads(json.dumps(text).replace('"logicalType": "decimal"', '"doc": "none"'))
    record = payload("c", None, {"id": 1, "cash": (12345).to_bytes(2, "big")})
    made = decoder(avro, ENVELOPE, schema, None, target)
    decoded = made.decode(pa.array([framed(1, plain, record)[5:]], pa.binary()))
    assert decoded.reasons == ()
    assert decoded.values[0].as_py() == {"row": {"cash": Decimal("123.45")}, "change": {"op": "c"}}


def test_texts_are_split_once_in_any_order_of_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers that sort names write the payload first; a decoder costs milliseconds."""
    columns = [connect_field("id", "int64")]
    schemas = [connect_envelope(columns), {**connect_envelope(columns), "name": "other"}]
    texts = [
        json.dumps({"payload": payload("c", None, {"id": id}), "schema": schemas[id % 2]}).encode()
        for id in range(40)
    ]
    texts[7] = with_schema(schemas[0], payload("c", None, {"id": 7})) + b"\n"
    texts[8] = b'{"payload": 1, "x": 2}'
    target = sample_type(json_format, ENVELOPE, texts, [], infers=False)
    assert target is not None
    made = decoder(json_format, ENVELOPE, Schema("json", ""), None, target)
    calls: list[bytes] = []
    decoder_of = made._decoder_of  # type: ignore[attr-defined]
    monkeypatch.setattr(made, "_decoder_of", lambda text: calls.append(text) or decoder_of(text))
    decoded = made.decode(pa.array(texts, pa.binary()))
    ids = [row and row["row"]["id"] for row in decoded.values.to_pylist()]
    assert ids == [None if id == 8 else id for id in range(40)]
    assert decoded.bad_rows.tolist() == [8]
    assert len(calls) == 3


def test_each_record_with_a_schema_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkkafka.schemas.envelopes.decode._MAX_CALL_SCHEMAS", 5)
    columns = [connect_field("id", "int64")]
    texts = [
        with_schema({**connect_envelope(columns), "name": f"v{id}"}, payload("c", None, {"id": id}))
        for id in range(70)
    ]
    target = sample_type(json_format, ENVELOPE, texts[:1], [], infers=False)
    assert target is not None
    made = decoder(json_format, ENVELOPE, Schema("json", ""), None, target)
    decoded = made.decode(pa.array(texts, pa.binary()))
    ids = [row and row["row"]["id"] for row in decoded.values.to_pylist()]
    assert ids == [*range(69), None]
    assert "records in a row have a schema of their own" in decoded.reasons[0]


@pytest.mark.parametrize("kind", [[], {}, None, 1])
def test_a_schema_with_another_type_than_a_text_is_an_error(kind: Any) -> None:
    with pytest.raises(SchemaError, match="unknown type"):
        type_of_connect_schema({"type": kind})
