"""Records that contain themselves: to a depth, by name, as text and bytes, or skipped; decimals of
many digits, which are skipped. fastavro writes them."""

from __future__ import annotations

import io
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from sparkkafka.errors import OptionError, SchemaError
from sparkkafka.schemas.avro import format as avro
from sparkkafka.schemas.values import ValueRowError
from tests.schemas.avro.avro_cases import Json, decode, oracle, record, schema, written

ENDS = pa.struct([("id", pa.int32()), ("last", pa.string())])


def around(kind: Json) -> Json:
    """A record with a field of this type between two others."""
    return record(("id", "int"), ("in", kind), ("last", "string"))


def value(number: int, inner: Any) -> dict[str, Any]:
    return {"id": number, "in": inner, "last": "x" * (number % 90)}


def chain(depth: int) -> dict[str, Any]:
    return value(depth, chain(depth - 1) if depth else None)


LIST = around(["null", "Value"])
TREE = around({"type": "array", "items": "Value"})
TABLE = around({"type": "map", "values": ["null", "Value", "string"]})
A = record(("v", {"type": "array", "items": "Value"}), ("a", ["null", "A"]), name="A")
EACH_OTHER = around(["null", A])
LEAF = {"v": [], "a": None}

CASES: list[tuple[Json, list[Any]]] = [
    (LIST, [chain(depth) for depth in (0, 1, 2, 99)]),
    (TREE, [value(0, []), value(1, [value(2, []), value(3, [value(4, [])] * 5)] * 20)]),
    (TABLE, [value(0, {}), value(1, {"a": None, "b": "t", "c": value(2, {"d": value(3, {})})})]),
    (EACH_OTHER, [value(0, None), value(1, {"v": [value(2, {"v": [], "a": LEAF})], "a": LEAF})]),
]


@pytest.mark.parametrize(("definition", "values"), CASES)
def test_a_record_in_itself_is_skipped(definition: Json, values: list[Any]) -> None:
    payloads = [written(definition, each) for each in values]
    for times in (1, 60):  # one by one, and in steps of NumPy
        got = decode(definition, payloads * times, wanted=ENDS)
        assert got.reasons == ()
        assert (
            got.values.to_pylist()
            == [{"id": each["id"], "last": each["last"]} for each in values] * times
        )
    # Cut off anywhere, it is a bad row; no row beside it is.
    longest = max(payloads[:3], key=len)[:400]
    cuts = [longest[:size] for size in range(len(longest))]
    got = decode(definition, [payloads[0], *cuts, payloads[0]], wanted=ENDS)
    assert got.bad_rows.tolist() == list(range(1, len(cuts) + 1))


@pytest.mark.parametrize("definition", [LIST, TREE, TABLE, EACH_OTHER])
def test_a_record_in_itself_is_refused_as_a_column(definition: Json) -> None:
    message = (
        r"field in.*: type Value contains itself, which no Spark type can\. Set "
        r"recursive\.fields\.max\.depth to .*, or in \.schema\(…\) .*"
        r"string \(its JSON text\) or binary$"
    )
    with pytest.raises(SchemaError, match=message):
        avro.arrow_type(schema(definition))
    with pytest.raises(OptionError, match=r"field in.* cannot become int .*JSON text"):
        decode(definition, [], wanted=pa.struct([("in", pa.int32())]))


def test_levels_that_are_asked_for_are_read() -> None:
    wanted = pa.struct([("id", pa.int32()), ("in", ENDS)])
    got = decode(LIST, [written(LIST, chain(depth)) for depth in (0, 1, 5)], wanted=wanted)
    assert [each["in"] and each["in"]["id"] for each in got.values.to_pylist()] == [None, 0, 4]


# --- to a depth, as text, as bytes --------------------------------------------------------------


def depth_type(definition: Json, depth: int) -> pa.DataType:
    return avro.arrow_type(schema(definition), depth=depth)


def test_a_depth_is_counted_as_spark_counts_it() -> None:
    """Spark's recursiveFieldMaxDepth; where Spark leaves the next record out, it is a string."""
    one = pa.struct(
        [
            pa.field("id", pa.int32(), False),
            ("in", pa.string()),
            pa.field("last", pa.string(), False),
        ]
    )
    assert depth_type(LIST, 1) == one
    assert depth_type(LIST, 2).field("in").type == one
    assert depth_type(TREE, 1).field("in").type == pa.list_(pa.field("element", pa.string(), False))
    members = pa.struct([("member0", pa.string()), ("member1", pa.string())])
    assert depth_type(TABLE, 1).field("in").type == pa.map_(pa.string(), members)
    assert depth_type(EACH_OTHER, 1).field("in").type == pa.struct(
        [
            pa.field("v", pa.list_(pa.field("element", pa.string(), False)), False),
            ("a", pa.string()),
        ]
    )


def plain(value: Any) -> Any:
    """A value of a column, at all levels: texts that are JSON objects parsed, members as they are,
    maps as dicts."""
    if isinstance(value, str) and value.startswith("{"):
        return plain(json.loads(value))
    if isinstance(value, dict):
        if value and all(name.startswith("member") for name in value):
            return plain(next((each for each in value.values() if each is not None), None))
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(each, tuple) for each in value):
            return {key: plain(each) for key, each in value}
        return [plain(each) for each in value]
    return value


EMPTY_MAPS = ([], {})


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return all(same(*pair) for pair in zip(one, other, strict=True))
    return one == other or (one in EMPTY_MAPS and other in EMPTY_MAPS)


SHALLOW: list[tuple[Json, list[Any]]] = [(LIST, [chain(n) for n in (0, 1, 2, 9)]), *CASES[1:]]


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
@pytest.mark.parametrize(("definition", "values"), SHALLOW)
def test_what_is_deeper_is_json_text(definition: Json, values: list[Any], depth: int) -> None:
    payloads = [written(definition, each) for each in values]
    for times in (1, 60):  # one by one, and in steps of NumPy
        got = decode(definition, payloads * times, wanted=depth_type(definition, depth))
        assert got.reasons == ()
        rows = got.values.to_pylist()
        assert all(
            same(plain(row), each) for row, each in zip(rows, values * times, strict=True)
        ), rows
        # Written back, it is the same bytes: nothing is lost at any depth.
        encoder = avro.encoder(schema(definition), got.values.type)
        assert encoder.encode(got.values).to_pylist() == payloads * times


@pytest.mark.parametrize(("definition", "values"), SHALLOW)
@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_the_recurring_field_as_text_and_as_bytes(
    definition: Json, values: list[Any], kind: pa.DataType
) -> None:
    payloads = [written(definition, each) for each in values]
    wanted = pa.struct([("id", pa.int32()), ("in", kind), ("last", pa.string())])
    got = decode(definition, payloads * 60, wanted=wanted)
    assert got.reasons == ()
    rows = got.values.to_pylist()[: len(values)]
    for row, value_, payload in zip(rows, values, payloads, strict=True):
        if kind == pa.string():
            assert row["in"] is None or same(plain(json.loads(row["in"])), value_["in"])
        elif row["in"] is not None:
            assert row["in"] in payload
    encoder = avro.encoder(schema(definition), wanted)
    assert encoder.encode(got.values).to_pylist() == payloads * 60


def test_all_of_a_value_as_text() -> None:
    got = decode(LIST, [written(LIST, chain(1)), None], wanted=pa.string())
    assert got.values.to_pylist() == [
        '{"id":1,"in":{"id":0,"in":null,"last":""},"last":"x"}',
        None,
    ]


SCALARS = record(
    ("t", {"type": "long", "logicalType": "timestamp-micros"}),
    ("d", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ("b", "bytes"),
    ("f", {"type": "fixed", "name": "F", "size": 3}),
    ("e", {"type": "enum", "name": "E", "symbols": ["a", "b"]}),
    ("x", "double"),
    ("u", ["null", "int", "string"]),
    ("m", {"type": "map", "values": "Value"}),
)


def scalars(number: int, inner: dict[str, Any]) -> dict[str, Any]:
    return {
        "t": 1_700_000_000_123_456 + number,
        "d": (-number * 100 + 5).to_bytes(4, "big", signed=True),
        "b": bytes([number, 255, 0]),
        "f": b"\0\1\2",
        "e": "ab"[number % 2],
        "x": number / 3,
        "u": [None, number, f'"{number}"\n'][number % 3],
        "m": inner,
    }


def test_all_types_as_text_and_back() -> None:
    values = [scalars(n, {"k": scalars(n + 1, {"l": scalars(n + 2, {})})}) for n in range(100)]
    payloads = [written(SCALARS, each) for each in values]
    wanted = pa.struct([("m", pa.string())])
    text = decode(SCALARS, payloads, wanted=wanted).values[1].as_py()["m"]
    assert json.loads(text)["k"]["t"] == "2023-11-14T22:13:20.123458Z"
    assert json.loads(text)["k"]["d"] == -1.95
    assert json.loads(text)["k"]["u"] == {"member1": '"2"\n'}
    got = decode(SCALARS, payloads, wanted=depth_type(SCALARS, 1))
    encoder = avro.encoder(schema(SCALARS), got.values.type)
    read_back = decode(SCALARS, encoder.encode(got.values).to_pylist(), wanted=got.values.type)
    assert read_back.values.equals(got.values)


def test_what_json_does_not_have_is_a_bad_record() -> None:
    payloads = [
        written(SCALARS, {**scalars(n, {}), "m": {"k": {**scalars(n, {}), "x": x}}})
        for n, x in enumerate([1.0, float("nan"), 2.0] * 30)
    ]
    got = decode(SCALARS, payloads, wanted=depth_type(SCALARS, 1))
    assert got.bad_rows.tolist() == list(range(1, 90, 3))
    assert got.reasons[0] == "field Value: field x is nan, which JSON does not have"


EVENT = json.loads((Path(__file__).parents[2] / "vectors" / "cloudevents.avsc").read_text("utf-8"))


def event_data(depth: int, number: int) -> Any:
    """A JSON value as the schema has it: objects are maps, whose objects are records."""
    leaf = [None, True, number / 4, f"text {number}"][number % 4]
    if not depth:
        return {"value": {"leaf": leaf}}
    below = event_data(depth - 1, number + 1)
    return {"value": {"leaf": leaf, "object": {"k": below}, "list": [below, below]}}


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_cloudevents_in_avro(depth: int) -> None:
    """Against fastavro, which writes and reads the events."""
    events = [
        {"attribute": {"id": str(number), "int": number, "flag": True, "raw": b"\0"}, "data": data}
        for number, data in enumerate(
            [
                None,
                b"bytes",
                "text",
                True,
                {"a": None, "b": 1.5, "c": event_data(0, 1), "d": event_data(3, 2)},
                [event_data(0, 3), event_data(3, 0)],
            ]
        )
    ]
    payloads = [written(EVENT, event) for event in events] * 4
    kind = depth_type(EVENT, depth)
    got = decode(EVENT, payloads, wanted=kind)
    assert got.reasons == ()
    for row, payload in zip(got.values.to_pylist(), payloads, strict=True):
        expected = fastavro.schemaless_reader(io.BytesIO(payload), EVENT, None)
        assert same(plain(row), plain(expected))
    assert avro.encoder(schema(EVENT), kind).encode(got.values).to_pylist() == payloads
    with pytest.raises(SchemaError, match=r"AvroCloudEventData contains itself"):
        avro.arrow_type(schema(EVENT))


def test_text_is_bounded_in_depth_and_memory() -> None:
    wanted = pa.struct([("id", pa.int32()), ("in", pa.string())])
    got = decode(LIST, [linked(20), linked(5_000), linked(1)], wanted=wanted)
    assert got.bad_rows.tolist() == [1]
    assert re.search("nested in itself more than [0-9]+ levels deep", got.reasons[0])
    text = got.values[0].as_py()["in"]
    deep = text
    for _ in range(5_000):
        deep = f'{{"id":1,"in":{deep},"last":""}}'
    kind = pa.struct([*wanted, ("last", pa.string())])
    with pytest.raises(ValueRowError, match=r"nested deeper than|levels deep"):
        avro.encoder(schema(LIST), kind).encode(pa.array([{"id": 1, "in": deep, "last": ""}], kind))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "field in: it must be JSON text, and in it the value is an array"),
        ("{", "is not JSON"),
        ('{"id":1,"in":null,"last":"","more":1}', "field more: the schema has no such field"),
        ('{"id":1,"in":{"id":"x","in":null,"last":""},"last":""}', "field id"),
        ('{"id":1}', "field Value.last: null"),
    ],
)
def test_texts_that_are_not_of_the_record(text: str, message: str) -> None:
    kind = pa.struct([("id", pa.int32()), ("in", pa.string()), ("last", pa.string())])
    rows = pa.array([{"id": 1, "in": None, "last": ""}, {"id": 1, "in": text, "last": ""}], kind)
    with pytest.raises(ValueRowError, match=message) as caught:
        avro.encoder(schema(LIST), kind).encode(rows)
    assert caught.value.row == 1


@pytest.mark.parametrize(
    ("kids", "given", "value", "path"),
    [
        ({"type": "array", "items": "Value"}, pa.list_(pa.string()), [None], "in[]"),
        ({"type": "array", "items": "Value"}, pa.list_(pa.string()), ["null"], "in[]"),
        ({"type": "array", "items": ["null", "Value"]}, pa.list_(pa.string()), ["null"], "in[]"),
        ({"type": "array", "items": "Value"}, pa.string(), "[null]", "in[]"),
        ({"type": "array", "items": "Value"}, pa.string(), "null", "in"),
        ({"type": "map", "values": "Value"}, pa.map_(pa.string(), pa.string()), [("a", "null")],
         "in{}"),
    ],
)  # fmt: skip
def test_a_null_in_text_names_its_field(
    kids: Json, given: pa.DataType, value: Any, path: str
) -> None:
    kind = pa.struct([("id", pa.int32()), ("in", given), ("last", pa.string())])
    rows = pa.array([{"id": 1, "in": value, "last": ""}], kind)
    with pytest.raises(ValueRowError, match=rf"^field {re.escape(path)}: null, which the Avro"):
        avro.encoder(schema(around(kids)), kind).encode(rows)


def test_a_null_in_text_is_the_null_branch_of_a_union() -> None:
    definition = around({"type": "array", "items": ["null", "int", "Value"]})
    kind = pa.struct([("id", pa.int32()), ("in", pa.list_(pa.string())), ("last", pa.string())])
    rows = pa.array([{"id": 1, "in": ["null"], "last": ""}], kind)
    [payload] = avro.encoder(schema(definition), kind).encode(rows).to_pylist()
    assert oracle(definition, payload) == {"id": 1, "in": [None], "last": ""}


def test_bytes_that_are_not_of_the_record() -> None:
    kind = pa.struct([("id", pa.int32()), ("in", pa.binary()), ("last", pa.string())])
    for wrong in (b"", b"\x02", written(LIST, chain(1)) + b"\0"):
        rows = pa.array([{"id": 1, "in": wrong, "last": ""}], kind)
        with pytest.raises(ValueRowError, match="field in: it must be the bytes of one value"):
            avro.encoder(schema(LIST), kind).encode(rows)


def test_text_and_bytes_of_an_older_schema() -> None:
    newer = record(
        ("id", "long"), ("more", "int", 7), ("in", ["null", "Value"]), ("last", "string")
    )
    payloads = [written(LIST, chain(n)) for n in (0, 1, 3)]
    for kind in (pa.string(), pa.binary()):
        wanted = pa.struct([("more", pa.int32()), ("in", kind)])
        got = decode(LIST, payloads, newer, wanted)
        assert got.reasons == ()
        found = got.values.to_pylist()[2]["in"]
        if kind == pa.string():
            expected = json.loads(found)
        else:
            expected = fastavro.schemaless_reader(io.BytesIO(found), newer)
        assert expected["in"]["more"] == 7
        assert expected["in"]["in"] == {"id": 0, "more": 7, "in": None, "last": ""}
    # A record that does not resolve is a branch that cannot be read.
    unfit = record(("id", "long"), ("in", ["null", "Value"]), ("last", "int"))
    got = decode(LIST, payloads, unfit, pa.struct([("in", pa.string())]))
    assert got.bad_rows.tolist() == [1, 2]
    assert (
        "field Value.last: string of the writer's Avro schema cannot be read as int"
        in (got.reasons[0])
    )


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_records_in_each_other_that_are_used_outside_of_it(depth: int) -> None:
    """The inner record by itself begins a way down of its own."""
    b = record(("a", ["null", "A"]), ("n", "int"), name="B")
    a = record(("b", ["null", b]), ("x", "int"), name="A")
    definition = record(("a", a), ("b", "B"), ("all", {"type": "array", "items": "B"}))
    deep = {"a": {"b": {"a": {"b": {"a": None, "n": 5}, "x": 4}, "n": 3}, "x": 2}, "n": 1}
    event = {"a": {"b": deep, "x": 1}, "b": deep, "all": [deep, {"a": None, "n": 9}]}
    kind = depth_type(definition, depth)
    assert depth > 1 or kind.field("b").type.field("a").type.field("b").type == pa.string()
    payload = written(definition, event)
    got = decode(definition, [payload], wanted=kind)
    assert plain(got.values[0].as_py()) == event
    assert avro.encoder(schema(definition), kind).encode(got.values)[0].as_py() == payload


def test_a_union_with_a_string_is_no_text() -> None:
    """A string that is written to it is its string, and so none is read that would be JSON."""
    kind = ["null", "Value", "string", {"type": "bytes", "logicalType": "decimal", "precision": 4}]
    definition = around(kind)
    for given, value_ in ((pa.string(), "text"), (pa.binary(), b"\x05")):
        wanted = pa.struct([("id", pa.int32()), ("in", given), ("last", pa.string())])
        rows = pa.array([{"id": 1, "in": value_, "last": ""}], wanted)
        payload = avro.encoder(schema(definition), wanted).encode(rows)[0].as_py()
        read = fastavro.schemaless_reader(io.BytesIO(payload), definition, None)
        assert read["in"] == ("text" if given == pa.string() else Decimal(5))
        with pytest.raises(OptionError, match=r"field in: union .* cannot become .*a struct of"):
            decode(definition, [], wanted=wanted)
    # What recurs in it is a member.
    member = pa.struct([("in", pa.struct([("member0", pa.string())]))])
    got = decode(definition, [written(definition, value(1, value(2, None)))], wanted=member)
    assert json.loads(got.values[0].as_py()["in"]["member0"])["id"] == 2


def test_items_without_bytes_do_not_become_texts_without_end() -> None:
    nothing = record(*[(f"a_name_of_some_length_{n}", "null") for n in range(500)], name="Nothing")
    items = {"type": "array", "items": nothing}
    definition = record(("v", ["null", "Value"]), ("items", items), ("blob", "bytes"))
    # 65,536 items of no bytes, of which each would be 18 KB of names.
    blob = b"\x80\x80\x08" + b"\0" * (1 << 16)
    inner = b"\0" + b"\x80\x80\x08\0" + blob
    wanted = pa.struct([("v", pa.string())])
    got = decode(definition, [b"\2" + inner + b"\0\0"], wanted=wanted)
    assert got.reasons == ("field Value: its JSON text takes too much memory, for so few bytes",)


def test_damage_in_text_is_a_row_good_or_bad() -> None:
    for definition, values in SHALLOW:
        payload = written(definition, values[1])[:300]
        changed = [
            payload[:at] + bytes([byte]) + payload[at + 1 :]
            for at in range(len(payload))
            for byte in ((0, 2, 0x80), (1, 3, 0x7F, 0xFF))[at % 2]
        ]
        decode(definition, changed, wanted=depth_type(definition, 1))  # which checks what it gets


def test_a_depth_that_makes_too_large_a_type() -> None:
    wide = record(*[(f"f{n}", ["null", "Value"]) for n in range(20)])
    assert depth_type(wide, 3).num_fields == 20
    message = (
        r"with recursive\.fields\.max\.depth=5 .* more than 20,000 fields\. Set a lower depth, or"
    )
    with pytest.raises(SchemaError, match=message):
        depth_type(wide, 5)
    nested = around(
        {"type": "map", "values": {"type": "array", "items": {"type": "map", "values": "Value"}}}
    )
    with pytest.raises(SchemaError, match=r"depth=15 .* nests in more than 60 levels"):
        depth_type(nested, 15)


def linked(depth: int) -> bytes:
    return b"\x02\x02" * depth + b"\x02\x00" + b"\x00" * (depth + 1)


def test_depth_and_steps_are_bounded() -> None:
    """A value a level deeper is a byte or two: no stack and no memory goes with them."""
    got = decode(LIST, [linked(9_000), linked(200_000), linked(1)], wanted=ENDS)
    assert dict(zip(got.bad_rows.tolist(), got.reasons, strict=True)) == {
        1: "field Value: it is nested too deep to be skipped"
    }
    # Without a byte, and so without an end.
    for endless in (around("Value"), around(["Value"])):
        got = decode(endless, [b"\x00" * 50_000, b"\x02"], wanted=ENDS)
        assert got.bad_rows.tolist() == [0, 1]
    # More items than bytes.
    many = b"\x02" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" + b"\x00" * 64
    for broken in (many, b"\x02\x02\x02" + many[1:], b"\x02\x01\x02\x02\x00\x00", b"\x02\x03\x7f"):
        assert decode(TREE, [broken] * 3, wanted=ENDS).bad_rows.tolist() == [0, 1, 2]


def test_bytes_that_were_changed_are_rows_good_or_bad() -> None:
    for definition, values in CASES:
        payload = written(definition, values[1])[:300]
        changed = [
            payload[:at] + bytes([byte]) + payload[at + 1 :]
            for at in range(len(payload))
            for byte in ((0, 2, 4, 0x80), (1, 3, 0x7F, 0xFF))[at % 2]
        ]
        decode(definition, changed, wanted=ENDS)  # which checks what it gets


def test_a_schema_that_recurs_is_resolved_and_written() -> None:
    newer = record(("last", "string"), ("more", "int", 7), ("in", ["null", "Value"], None))
    wanted = pa.struct([("more", pa.int32()), ("last", pa.string())])
    got = decode(LIST, [written(LIST, chain(3))], newer, wanted)
    assert got.values.to_pylist() == [{"more": 7, "last": "xxx"}]
    rows = pa.array([{"id": 1, "last": "a"}], ENDS)
    assert avro.encoder(schema(LIST), ENDS).encode(rows).to_pylist() == [
        written(LIST, {"id": 1, "in": None, "last": "a"})
    ]


def test_a_null_union_that_recurs_is_the_bytes_of_null() -> None:
    """Also if the reader's schema is another one: of a long, which was an int."""
    older, newer = (
        record(("in", ["int", {"type": "array", "items": "Value"}, "null"])),
        record(("in", ["long", {"type": "array", "items": "Value"}, "null"])),
    )
    payloads = [written(older, {"in": value}) for value in (None, 5, [{"in": None}])]
    wanted = pa.struct([("in", pa.binary())])
    for reader in (older, newer):
        got = decode(older, payloads, reader, wanted)
        assert [row["in"] for row in got.values.to_pylist()] == payloads
        assert avro.encoder(schema(reader), wanted).encode(got.values).to_pylist() == payloads


def test_a_branch_that_recurs_and_is_not_asked_for() -> None:
    kind = record(("id", "int"), ("in", ["int", "string", {"type": "array", "items": "Value"}]))
    wanted = pa.struct([("id", pa.int32()), ("in", pa.struct([("member1", pa.string())]))])
    inner = {"id": 2, "in": 3}
    payloads = [written(kind, {"id": 1, "in": each}) for each in (5, "five", [inner] * 9)]
    got = decode(kind, payloads, wanted=wanted)
    assert got.reasons == ()
    assert [each["in"]["member1"] for each in got.values.to_pylist()] == [None, "five", None]


def mutual(count: int, width: int) -> Json:
    """Each record stands in those that it is in."""
    inner: Json = "int"
    for level in range(count):
        fields = [(f"f{number}", ["null", f"L{number}"]) for number in range(level, count)]
        wide = [(f"w{number}", "int") for number in range(width)]
        inner = record(("in", inner), *fields, *wide, name=f"L{level}")
    return record(("id", "int"), ("in", ["null", inner]))


@pytest.mark.slow
def test_many_types_that_stand_in_each_other() -> None:
    wanted = pa.struct([("id", pa.int32())])
    payload = b"\x02\x02" + b"\x00" * 40 + b"\x02" * 900 + b"\x00" * 9000
    assert decode(mutual(55, 1), [b"\x02\x00", payload], wanted=wanted).bad_rows.tolist() == [1]
    with pytest.raises(SchemaError, match="too many steps"):
        decode(mutual(55, 320), [], wanted=wanted)


# --- decimals -----------------------------------------------------------------------------------

WIDE = {"logicalType": "decimal", "precision": 60, "scale": 2}
DECIMALS: list[Json] = [
    {"type": "bytes", **WIDE},
    {"type": "fixed", "name": "F", "size": 30, **WIDE},
    ["null", {"type": "bytes", **WIDE}],
]


@pytest.mark.parametrize("kind", DECIMALS)
def test_a_decimal_of_many_digits(kind: Json) -> None:
    definition = around(kind)
    big = (-(10**59)).to_bytes(30, "big", signed=True)
    payloads = [written(definition, value(number, big)) for number in (1, 2)]
    got = decode(definition, [*payloads, payloads[0][:-9]], wanted=ENDS)
    assert got.values.to_pylist()[:2] == [{"id": 1, "last": "x"}, {"id": 2, "last": "xx"}]
    assert got.bad_rows.tolist() == [2]
    message = (
        r"field in: decimal\(60, 2\): Spark and Arrow have at most 38 digits.*without this one"
    )
    for wanted in (pa.decimal128(38, 2), pa.binary()):
        with pytest.raises(SchemaError, match=message):
            decode(definition, [], wanted=pa.struct([("in", wanted)]))


def test_numbers_of_a_wide_decimal_that_are_not_wide() -> None:
    """The writer's schema allows more digits than the reader's; what counts are the values."""
    wide = {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2}
    payloads = [b"\x04\x01\x00", b"\x22" + (10**38).to_bytes(17, "big")]
    got = decode(wide, payloads, {**wide, "precision": 38})
    assert got.values.to_pylist() == [Decimal("2.56"), None]
    given = pa.array([Decimal("2.56")], pa.decimal128(38, 2))
    assert avro.encoder(schema(wide), given.type).encode(given).to_pylist() == [payloads[0]]
