"""Rules of writing: what a column may be for a schema, and values that the schema cannot have."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any

import pyarrow as pa
import pytest

from sparkkafka.errors import OptionError
from sparkkafka.protocol.columns import byte_columns
from sparkkafka.schemas.avro import format as avro
from sparkkafka.schemas.values import ValueRowError
from tests.schemas.avro.avro_cases import oracle, record, schema, written

D = decimal.Decimal
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "F", "size": 3}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def encode(definition: Any, values: list[Any], kind: pa.DataType) -> list[bytes | None]:
    encoded = avro.encoder(schema(definition), kind).encode(pa.array(values, kind))
    encoded.validate(full=True)
    result: list[bytes | None] = encoded.to_pylist()
    return result


@pytest.mark.parametrize(
    ("definition", "kind", "value", "raw"),
    [
        ("int", pa.int8(), -1, -1),
        ("int", pa.int16(), 300, 300),
        ("long", pa.int32(), -300, -300),
        ("double", pa.float32(), 0.5, 0.5),
        ("double", pa.int32(), 3, 3.0),
        ("string", pa.large_string(), "größe", "größe"),
        ("bytes", pa.large_binary(), b"x", b"x"),
        (ENUM, pa.string(), "B", "B"),
        (FIXED, pa.binary(), b"abc", b"abc"),
        (logical("int", "date"), pa.date32(), datetime.date(1969, 12, 31), -1),
        (logical("int", "time-millis"), pa.int32(), 7, 7),
        (logical("long", "timestamp-millis"), pa.timestamp("us", "UTC"), -1, -1),
        (logical("long", "timestamp-millis"), pa.timestamp("us", "Europe/Berlin"), 1999, 1),
        (logical("long", "timestamp-micros"), pa.timestamp("us", "UTC"), -5, -5),
        (logical("long", "timestamp-nanos"), pa.timestamp("us", "UTC"), -5, -5000),
        (logical("long", "timestamp-nanos"), pa.int64(), -5, -5),
        (logical("long", "local-timestamp-millis"), pa.timestamp("us"), 5000, 5),
        (logical("long", "local-timestamp-micros"), pa.timestamp("us"), 5000, 5000),
        (
            logical("bytes", "decimal", precision=9, scale=2),
            pa.decimal128(9, 2),
            D("-1.28"),
            b"\x80",
        ),
        (
            logical("bytes", "decimal", precision=9, scale=2),
            pa.decimal128(9, 2),
            D("1.28"),
            b"\0\x80",
        ),
        (logical("bytes", "decimal", precision=9, scale=2), pa.decimal128(9, 2), D("0.00"), b"\0"),
        (
            logical("bytes", "decimal", precision=9, scale=2),
            pa.decimal128(5, 1),
            D("1.3"),
            b"\0\x82",
        ),
        (
            {**FIXED, **logical("fixed", "decimal", precision=6, scale=0)},
            pa.decimal128(6, 0),
            D(-2),
            b"\xff\xff\xfe",
        ),
        (
            {**FIXED, "size": 20, **logical("fixed", "decimal", precision=38, scale=0)},
            pa.decimal128(38, 0),
            D(-(10**38) + 1),
            (-(10**38) + 1).to_bytes(20, "big", signed=True),
        ),
        (
            {**FIXED, **logical("fixed", "uuid"), "size": 16},
            pa.string(),
            "01234567-89AB-cdef-fedc-ba9876543210",
            uuid.UUID("01234567-89ab-cdef-fedc-ba9876543210").bytes,
        ),
        (["null", "int"], pa.int32(), 5, ("int", 5)),
        (["int", "null"], pa.int32(), None, None),
        (["null", "int", "string"], pa.string(), "x", ("string", "x")),
        (["long", "int"], pa.int32(), 5, ("int", 5)),  # the branch of the same type
        (["long", "string"], pa.int32(), 5, ("long", 5)),  # or else one that takes it
        (["int", "long"], pa.int64(), 5, ("long", 5)),
        (
            ["null", "int", "string"],
            pa.struct([("member0", pa.int32()), ("member1", pa.string())]),
            {"member1": "x"},
            ("string", "x"),
        ),
        (["string", "int"], pa.struct([("member1", pa.int32())]), {"member1": 5}, ("int", 5)),
        ({"type": "array", "items": "int"}, pa.large_list(pa.int32()), [1, 2], [1, 2]),
        ({"type": "map", "values": "int"}, pa.map_(pa.string(), pa.int32()), {"a": 1}, {"a": 1}),
    ],
)
def test_kinds_of_columns(definition: Any, kind: pa.DataType, value: Any, raw: Any) -> None:
    """Beside a first and a last field, in a row among others, and in a nullable one."""
    around = record(("first", "string"), ("x", definition), ("last", "long"))
    given = pa.struct([("first", pa.string()), ("x", kind), ("last", pa.int64())])
    row = {"first": "a" * 9, "x": value, "last": 300}
    expected = written(around, {**row, "x": raw})
    assert encode(around, [row, None, row], given) == [expected, None, expected]
    if value is not None:
        # In the topmost place null is not a value: it is a record without one.
        assert encode(definition, [value, None], kind) == [written(definition, raw), None]


@pytest.mark.parametrize(
    ("definition", "kind", "good", "bad", "reason"),
    [
        ("int", pa.int32(), 1, None, "null, which the Avro schema does not allow here"),
        ("null", pa.int32(), None, 5, "a value where the Avro schema has only null"),
        (ENUM, pa.string(), "A", "C", "'C' is not a symbol of the enum: A, B"),
        (FIXED, pa.binary(), b"abc", b"ab", "2 bytes for a fixed of 3"),
        (
            logical("bytes", "decimal", precision=3, scale=0),
            pa.decimal128(5, 0),
            D(-999),
            D(-1000),
            "the decimal has more than 3 digits",
        ),
        (
            logical("bytes", "decimal", precision=20, scale=0),
            pa.decimal128(38, 0),
            D(10**20 - 1),
            D(10**20),
            "the decimal has more than 20 digits",
        ),
        (
            logical("long", "timestamp-nanos"),
            pa.timestamp("us", "UTC"),
            9_223_372_036_854_775,
            9_223_372_036_854_776,
            "the time is out of the range of 64 bits of nanoseconds",
        ),
        (
            {**FIXED, **logical("fixed", "uuid"), "size": 16},
            pa.string(),
            "01234567-89ab-cdef-fedc-ba9876543210",
            "01234567-89ab-cdef-fedc-ba987654321g",
            "the text is no UUID",
        ),
        (
            {**FIXED, **logical("fixed", "uuid"), "size": 16},
            pa.string(),
            "01234567-89ab-cdef-fedc-ba9876543210",
            "01234567089ab-cdef-fedc-ba9876543210",
            "the text is no UUID",
        ),
        (
            ["null", "int", "string"],
            pa.struct([("member0", pa.int32()), ("member1", pa.string())]),
            {"member0": 1},
            {"member0": 1, "member1": "x"},
            "2 members of the union have a value, not one",
        ),
        (
            ["null", "int", "string"],
            pa.struct([("member0", pa.int32()), ("member1", pa.string())]),
            {"member0": 1},
            {},
            "0 members of the union have a value, not one",
        ),
    ],
)
def test_values_that_the_schema_cannot_have(
    definition: Any, kind: pa.DataType, good: Any, bad: Any, reason: str
) -> None:
    """The error names row and field, wherever the value stands."""
    around = record(("x", definition))
    given = pa.struct([("x", kind)])
    rows = [{"x": good}] * 9000
    rows[1] = None  # type: ignore[call-overload]
    rows[8500] = rows[8700] = {"x": bad}
    with pytest.raises(ValueRowError) as caught:
        encode(around, rows, given)
    assert caught.value.row == 8500
    assert caught.value.reason.startswith(f"field x: {reason}")
    if definition == "null":
        return  # two arrays of null are alike
    items = record(("xs", ["null", {"type": "array", "items": definition}]))
    given = pa.struct([("xs", pa.list_(kind))])
    lists = [None, [good] * 3, [], [good, bad], [good]]
    column = pa.array([{"xs": each} for each in lists], given)
    for first in (0, 2):
        with pytest.raises(ValueRowError) as caught:
            avro.encoder(schema(items), given).encode(column[first:])
        assert caught.value.row == 3 - first
        assert caught.value.reason.startswith(f"field xs[]: {reason}")


@pytest.mark.parametrize(
    ("definition", "kind", "message"),
    [
        (
            record(("x", "int")),
            pa.struct([("x", pa.int64())]),
            "field x: bigint cannot be written as",
        ),
        (record(("x", "string")), pa.struct([("x", pa.int64())]), "field x: bigint .* as string"),
        (record(("x", "float")), pa.struct([("x", pa.float64())]), "field x: double .* as float"),
        (
            record(("x", "long")),
            pa.struct([("x", pa.timestamp("us", "UTC"))]),
            "field x: timestamp.* as long of the Avro schema",
        ),
        (
            record(("x", logical("long", "timestamp-micros"))),
            pa.struct([("x", pa.timestamp("us"))]),
            r"field x: timestamp_ntz cannot be written as long \(timestamp-micros\)",
        ),
        (
            record(("x", logical("bytes", "decimal", precision=9, scale=1))),
            pa.struct([("x", pa.decimal128(9, 2))]),
            r"field x: decimal\(9,2\) cannot",
        ),
        (
            record(("price", "int"), ("name", "string")),
            pa.struct([("price", pa.int32()), ("name", pa.string()), ("prise", pa.int32())]),
            "field prise of the column is not in record Value of the Avro schema: did you mean "
            r"price\? It has price, name",
        ),
        (
            record(("x", record(("y", "int"), ("z", "int"), name="In"))),
            pa.struct([("x", pa.struct([("y", pa.int32())]))]),
            "field x.z of the Avro schema is not in the column, and has neither a default nor null",
        ),
        (
            record(("x", ["int", "string"])),
            pa.struct([("x", pa.bool_())]),
            r"field x: boolean fits no branch of union \[int, string\]",
        ),
        (record(("x", ["int", "string"])), pa.struct([("x", pa.null())]), "field x: null cannot"),
        (record(("x", ["null", "int"])), pa.struct([("x", pa.string())]), "field x: string cannot"),
        (
            record(("x", {"type": "map", "values": "int"})),
            pa.struct([("x", pa.map_(pa.int32(), pa.int32()))]),
            "field x: map<int,int> cannot be written as map of int",
        ),
        (
            record(("x", "int")),
            pa.struct([("x", pa.int32()), ("x", pa.int32())]),
            "field x appears twice in the column",
        ),
        ("int", pa.struct([("x", pa.int32())]), "the value: struct<x:int> cannot be written"),
    ],
)
def test_columns_that_do_not_fit(definition: Any, kind: pa.DataType, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        avro.encoder(schema(definition), kind)


def test_fields_that_the_column_lacks_have_their_defaults() -> None:
    definition = record(
        ("n", ["null", "int"]),
        ("x", "int"),
        ("d", {"type": "array", "items": "string"}, ["a", "b"]),
        ("e", ["string", "null"], "y"),
    )
    payload = encode(definition, [{"x": 5}], pa.struct([("x", pa.int32())]))[0]
    assert oracle(definition, payload or b"") == {"n": None, "x": 5, "d": ["a", "b"], "e": "y"}


def test_another_column_than_was_said() -> None:
    encoder = avro.encoder(schema("int"), pa.int32())
    with pytest.raises(OptionError, match="the column is bigint, but it was int when"):
        encoder.encode(pa.array([1], pa.int64()))


def test_slices_and_what_stands_under_nulls() -> None:
    definition = record(
        ("a", ["null", {"type": "array", "items": ["null", "string"]}]),
        ("m", {"type": "map", "values": ["null", "double"]}),
        ("s", ["null", record(("x", "int"), ("t", "boolean"), name="In")]),
    )
    rows = [
        {
            "a": None if i % 5 == 0 else [None if j % 2 else f"v{j}" for j in range(i % 4)],
            "m": {f"k{j}": None if j else i / 7 for j in range(i % 3)},
            "s": None if i % 3 else {"x": i, "t": i % 2 == 0},
        }
        for i in range(50)
    ]
    kind = pa.struct(
        [
            ("a", pa.list_(pa.string())),
            ("m", pa.map_(pa.string(), pa.float64())),
            ("s", pa.struct([("x", pa.int32()), ("t", pa.bool_())])),
        ]
    )
    whole = pa.array(rows, kind)
    encoder = avro.encoder(schema(definition), kind)
    all_of_them = encoder.encode(whole).to_pylist()
    decoder = avro.decoder(schema(definition), None, None)
    for low, count in [(0, 50), (7, 20), (13, 0), (49, 1), (3, 9)]:
        assert encoder.encode(whole.slice(low, count)).to_pylist() == all_of_them[low : low + count]
        back = decoder.decode(pa.array(all_of_them[low : low + count], pa.binary()))
        assert back.values.to_pylist() == whole.slice(low, count).to_pylist()
    # Null lists and structs may have anything below them.
    struct = whole.field(2)
    masked = pa.StructArray.from_arrays(
        [struct.field(0), struct.field(1)], fields=list(struct.type), mask=pa.array([True] * 50)
    )
    column = pa.StructArray.from_arrays([whole.field(0), whole.field(1), masked], fields=list(kind))
    back = decoder.decode(encoder.encode(column))
    assert back.values.field(2).null_count == 50


def test_texts_of_all_lengths() -> None:
    """They are copied by words of eight, four, two and one bytes, or by many words."""
    texts = [bytes([65 + i % 26]) * i for i in range(300)] + [b"x" * 100_000]
    definition = record(("a", "bytes"), ("b", "bytes"))
    kind = pa.struct([("a", pa.binary()), ("b", pa.binary())])
    for some in (texts, texts[:9], texts[:40], texts[-1:], [b""]):
        rows = [{"a": a, "b": b} for a, b in zip(some, reversed(some), strict=True)]
        assert encode(definition, rows, kind) == [written(definition, row) for row in rows]


def _longs(bits: int) -> list[int]:
    powers = [1 << k for k in range(bits)]
    found = [sign * (power - less) for power in powers for sign in (1, -1) for less in (0, 1)]
    return [0, *found, *found[::-3], 7]


@pytest.mark.slow
@pytest.mark.parametrize("bits", [6, 13, 20, 27, 34, 55, 63])
@pytest.mark.parametrize("behind", [0, 1, 9])
def test_words_spoil_nothing_behind_them(bits: int, behind: int) -> None:
    """Numbers and texts of all lengths, with few bytes of their own record behind them, or none."""
    longs = _longs(bits)
    texts = ["ü" * (n % 3) + "x" * (n % 29) for n in range(len(longs))]
    shapes: list[tuple[Any, pa.DataType, list[Any]]] = [
        ("long", pa.int64(), longs),
        ("string", pa.string(), texts),
        (["null", "long"], pa.int64(), [None if n % 3 == 0 else v for n, v in enumerate(longs)]),
        (["null", "string"], pa.string(), [None if n % 4 else v for n, v in enumerate(texts)]),
        (["string", "null"], pa.string(), [None if n % 4 == 1 else v for n, v in enumerate(texts)]),
        (["null", "double"], pa.float64(), [None if n % 5 == 1 else n / 7 for n in longs]),
        (
            {"type": "array", "items": "long"},
            pa.list_(pa.int64()),
            [longs[n : n + n % 7] for n in range(len(longs))],
        ),
        (
            {"type": "array", "items": record(("a", "long"), ("b", "string"), name="Item")},
            pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())])),
            [[{"a": v, "b": texts[n]}] * (n % 4) for n, v in enumerate(longs)],
        ),
    ]
    for definition, kind, values in shapes:
        around = record(("x", definition), *((f"z{n}", "boolean") for n in range(behind)))
        given = pa.struct([("x", kind), *((f"z{n}", pa.bool_()) for n in range(behind))])
        rows = [{"x": value, **{f"z{n}": True for n in range(behind)}} for value in values]
        expected = [written(around, row) for row in rows]
        assert encode(around, rows, given) == expected
        column = pa.array([None, *rows, None], given)
        framed = avro.encoder(schema(around), given).encode(column, b"\0\0\0\1\7").to_pylist()
        assert framed == [None, *(b"\0\0\0\1\7" + item for item in expected), None]


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.float64()])
def test_what_stands_under_nulls_of_a_union_is_not_written(kind: pa.DataType) -> None:
    branch = {"int64": "long", "string": "string", "double": "double"}[str(kind)]
    full = pa.array(
        [str(n) * (5 + n) if branch == "string" else 1 << n % 50 for n in range(60)], kind
    )
    mask = pa.array([n % 3 != 0 for n in range(60)], pa.bool_())
    column = pa.Array.from_buffers(kind, 60, [mask.buffers()[1], *full.buffers()[1:]])
    definition = record(("x", ["null", branch]), ("y", "boolean"))
    rows = [{"x": value, "y": True} for value in column.to_pylist()]
    struct = pa.StructArray.from_arrays([column, pa.array([True] * 60)], names=["x", "y"])
    encoded = avro.encoder(schema(definition), struct.type).encode(struct)
    assert encoded.to_pylist() == [written(definition, row) for row in rows]
    assert rows[0]["x"] is None
    assert rows[1]["x"] is not None


def test_null_times_and_unions_may_have_anything_below_them() -> None:
    nanos = logical("long", "timestamp-nanos")
    definition = record(("t", ["null", nanos]), ("u", ["null", nanos, "string"]))
    micros = pa.array([1 << 62, 5]).view(pa.timestamp("us", "UTC"))
    valid = pa.array([None, 1]).buffers()[0]
    times = pa.Array.from_buffers(micros.type, 2, [valid, micros.buffers()[1]])
    unions = pa.StructArray.from_arrays(
        [micros, pa.nulls(2, pa.string())],
        names=["member0", "member1"],
        mask=pa.array([True, False]),
    )
    column = pa.StructArray.from_arrays([times, unions], names=["t", "u"])
    rows = [{"t": None, "u": None}, {"t": 5000, "u": 5000}]
    encoded = avro.encoder(schema(definition), column.type).encode(column)
    assert encoded.to_pylist() == [written(definition, row) for row in rows]


@pytest.mark.parametrize("branches", [64, 65, 128, 129, 300])
def test_unions_with_many_branches(branches: int) -> None:
    records = [record(("a", "int"), name=f"R{n}") for n in range(branches - 2)]
    rows = [{"x": 5}, {"x": None}]
    for union in (["long", *records, "null"], ["null", *records, "long"]):
        definition = record(("x", union))
        expected = [written(definition, row) for row in rows]
        assert encode(definition, rows, pa.struct([("x", pa.int64())])) == expected


def test_nothing() -> None:
    for kind, definition in [(pa.int32(), "int"), (pa.struct([]), record())]:
        assert encode(definition, [], kind) == []
        assert encode(definition, [None], kind) == [None]
    assert encode(record(), [{}], pa.struct([])) == [b""]


def test_constants_of_all_lengths() -> None:
    """Defaults of a word, of a view, and longer ones, between other fields."""
    for size in range(0, 40):
        default = "d" * size
        definition = record(("a", "int"), ("x", "string", default), ("b", "string"))
        kind = pa.struct([("a", pa.int32()), ("b", pa.string())])
        rows = [{"a": 300 * n, "b": "b" * (7 * n)} for n in range(4)]
        expected = [written(definition, {**row, "x": default}) for row in rows]
        assert encode(definition, rows, kind) == expected


def test_words_of_each_width_in_front_of_short_bytes() -> None:
    """A boolean with a length, a float, a double, and a double with a length behind it, in front of
    bytes that follow at once in memory, in a slice of a column, with bytes that nulls hide."""
    fixed = {"type": "fixed", "name": "Three", "size": 3}
    definition = record(
        *[("t", "string"), ("b", "boolean"), ("s", "string"), ("f", "float"), ("x", fixed)],
        *[("d", "double"), ("y", "Three"), ("e", "double"), ("u", ["null", "string"])],
    )
    rows = [
        {
            **{"t": "t" * (n % 40), "b": n % 2 == 0, "s": "ü" * (n % 5), "f": n / 4, "x": b"xyz"},
            **{"d": n / 7, "y": b"\xff\0\xff", "e": -n / 3, "u": None if n % 3 else "u" * n},
        }
        for n in range(30)
    ]
    three = pa.binary()
    kinds = [pa.string(), pa.bool_(), pa.string(), pa.float32(), three, pa.float64(), three]
    kind = pa.struct(list(zip("tbsfxdyeu", [*kinds, pa.float64(), pa.string()], strict=True)))
    values = pa.array(rows, kind)
    hidden = pa.array(["hidden" if row["u"] is None else row["u"] for row in rows])
    buffers = [values.field("u").buffers()[0], *hidden.buffers()[1:]]
    children = [values.field(i) for i in range(8)]
    children.append(pa.Array.from_buffers(pa.string(), len(rows), buffers))
    values = pa.StructArray.from_arrays(children, fields=list(kind))
    encoded = avro.encoder(schema(definition), kind).encode(values[3:])
    assert encoded.to_pylist() == [written(definition, row) for row in rows[3:]]


def test_rows_that_are_too_large_together_are_encoded_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    definition = record(("a", "string"), ("x", {"type": "array", "items": "long"}))
    rows = [{"a": "a" * n, "x": [n] * n} for n in range(60)]
    for text in (pa.string(), pa.large_string()):
        kind = pa.struct([("a", text), ("x", pa.list_(pa.int64()))])
        monkeypatch.setattr(byte_columns, "MAX_BYTES", 300)
        expected = [written(definition, row) for row in rows]
        assert encode(definition, [None, *rows], kind) == [None, *expected]
        monkeypatch.setattr(byte_columns, "MAX_BYTES", 100)
        with pytest.raises(ValueRowError, match="the value takes more than 2 GiB") as error:
            encode(definition, [None, *rows], kind)
        assert error.value.row == 50
