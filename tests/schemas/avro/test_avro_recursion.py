"""What cannot become a column and is not asked for is skipped: records in themselves, decimals of
many digits. fastavro writes them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sparkkafka.errors import OptionError, SchemaError
from sparkkafka.schemas.avro import format as avro
from tests.schemas.avro.avro_cases import Json, decode, record, schema, written

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
    words = r"field in.*: type Value contains itself.*Name the fields to be read, without this one"
    with pytest.raises(SchemaError, match=words):
        avro.arrow_type(schema(definition))
    with pytest.raises((SchemaError, OptionError), match="cannot be"):
        decode(definition, [], wanted=pa.struct([("in", pa.string())]))


def test_levels_that_are_asked_for_are_read() -> None:
    wanted = pa.struct([("id", pa.int32()), ("in", ENDS)])
    got = decode(LIST, [written(LIST, chain(depth)) for depth in (0, 1, 5)], wanted=wanted)
    assert [each["in"] and each["in"]["id"] for each in got.values.to_pylist()] == [None, 0, 4]


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
            for byte in (0, 1, 2, 3, 4, 0x7F, 0x80, 0xFF)
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
    words = r"field in: decimal\(60, 2\): Spark and Arrow have at most 38 digits.*without this one"
    for wanted in (pa.decimal128(38, 2), pa.binary()):
        with pytest.raises(SchemaError, match=words):
            decode(definition, [], wanted=pa.struct([("in", wanted)]))


def test_numbers_of_a_wide_decimal_that_are_not_wide() -> None:
    """The writer's schema allows more digits than the reader's; what counts are the values."""
    wide = {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2}
    payloads = [b"\x04\x01\x00", b"\x22" + (10**38).to_bytes(17, "big")]
    got = decode(wide, payloads, {**wide, "precision": 38})
    assert got.values.to_pylist() == [Decimal("2.56"), None]
    given = pa.array([Decimal("2.56")], pa.decimal128(38, 2))
    assert avro.encoder(schema(wide), given.type).encode(given).to_pylist() == [payloads[0]]
