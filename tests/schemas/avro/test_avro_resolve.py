"""Schema resolution: payloads of one schema read as another one's values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sparkkafka.errors import SchemaError
from sparkkafka.schemas.avro import format as avro
from tests.schemas.avro.avro_cases import (
    Json,
    decode,
    decoded,
    oracle,
    plain,
    record,
    schema,
    schemas,
    values,
    written,
)
from tests.support.properties import examples

INNER = record(("a", "int"), ("b", "string"), name="Inner")


def enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F", **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def mapping(items: Any) -> dict[str, Any]:
    return {"type": "map", "values": items}


# writer's type, reader's type, value; each stands in a record between two other fields
CASES: dict[str, tuple[Any, Any, list[Any]]] = {
    "int to long": ("int", "long", [1, -(2**31), 2**31 - 1]),
    "int to float": ("int", "float", [1, 16777217]),
    "int to double": ("int", "double", [1, 2**31 - 1]),
    "long to float": ("long", "float", [1, 2**53 + 1]),
    "long to double": ("long", "double", [1, 2**53 + 1, -(2**63)]),
    "float to double": ("float", "double", [0.5, -0.0]),
    "string to bytes": ("string", "bytes", ["", "größe"]),
    "bytes to string": ("bytes", "string", [b"", "größe".encode()]),
    "to nullable": ("int", ["null", "int"], [1, 2]),
    "to nullable, promoted": ("int", ["null", "long"], [1, 2]),
    "from nullable": (["null", "int"], "int", [("int", 1), ("int", 2)]),
    "nullable, the other way round": (["null", "int"], ["int", "null"], [None, ("int", 1)]),
    "nullable, promoted": (["null", "int"], ["null", "double"], [None, ("int", 1)]),
    "branches turned": (["int", "string"], ["string", "int"], [("int", 1), ("string", "x")]),
    "branch to one of several": ("string", ["int", "null", "string"], ["a", "b"]),
    "branch added": (["int", "string"], ["int", "string", "boolean"], [("string", "x")]),
    "branches merged": (["int", "long"], "long", [("int", 1), ("long", 2**40)]),
    "branches merged in a branch": (
        ["null", "int", "long"],
        ["null", "long"],
        [None, ("int", 1), ("long", 2)],
    ),
    "branches promoted to one": (["int", "float"], "double", [("int", 1), ("float", 0.5)]),
    "enum with more symbols": (enum("A", "B"), enum("B", "C", "A"), ["A", "B"]),
    "enum with a default": (enum("A", "B", "C"), enum("A", "X", default="X"), ["A", "B", "C"]),
    "enum renamed by alias": (enum("A"), enum("A", name="New", aliases=["E"]), ["A"]),
    "enum in another namespace": (enum("A", name="one.E"), enum("A", name="two.E"), ["A"]),
    "fixed": (fixed(3), fixed(3, name="New", aliases=["F"]), [b"abc"]),
    "array items promoted": (array("int"), array("long"), [[], [1, 2]]),
    "array items to nullable": (array("int"), array(["null", "int"]), [[1, 2]]),
    "map values promoted": (mapping("int"), mapping("double"), [{}, {"a": 1, "b": 2}]),
    "array of records": (
        array(INNER),
        array(record(("b", "string"), ("c", "long", 7), name="Inner")),
        [[], [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]],
    ),
    "record with less": (INNER, record(("b", "string"), name="Inner"), [{"a": 1, "b": "x"}]),
    "record turned": (
        INNER,
        record(("b", "string"), ("a", "long"), name="Inner"),
        [{"a": 1, "b": "x"}],
    ),
    "record renamed by alias in a union": (
        ["null", INNER],
        ["null", {**record(("b", "string"), name="New"), "aliases": ["Inner"]}],
        [None, ("Inner", {"a": 1, "b": "x"})],
    ),
    "two records in a union": (
        [record(("a", "int"), name="One"), record(("a", "int"), name="Two")],
        [record(("a", "int"), name="Two"), record(("a", "int"), name="One")],
        [("One", {"a": 1}), ("Two", {"a": 2})],
    ),
    "a named type used again": (
        record(("x", INNER), ("y", "Inner"), name="Pair"),
        record(("y", record(("a", "long"), name="Inner")), ("x", "Inner"), name="Pair"),
        [{"x": {"a": 1, "b": ""}, "y": {"a": 2, "b": ""}}],
    ),
}


def test_a_renamed_record_in_a_union_is_the_first_that_has_its_fields() -> None:
    # Java's Resolver does the same, and what matches by name comes first there too.
    old = record(("a", "int"), name="Old")
    union = [
        "null",
        record(("b", "int"), name="One"),
        record(("a", "string"), name="Two"),
        record(("a", "long"), ("b", "int", 7), name="Three"),
        record(("a", "int"), name="Four"),
    ]
    named = [*union, record(("a", "int"), name="other.Old")]
    for writer, value in ((old, {"a": 5}), (["null", old], ("Old", {"a": 5}))):
        payload = written(writer, value)
        assert decoded(writer, [payload], union) == [{"a": 5, "b": 7}]
        assert decoded(writer, [payload], named) == [{"a": 5}]
    (reason,) = decode(["null", old], [payload], union[:3]).reasons
    assert "record Old of the writer's Avro schema cannot be read as union" in reason


def test_records_that_could_be_many_others_take_bounded_work() -> None:
    def nested(levels: int, name: str, leaf: str) -> Any:
        made: Any = leaf
        for level in range(levels):
            made = [
                record(("x", made if branch == 0 else leaf), name=f"{name}{level}_{branch}")
                for branch in range(3)
            ]
        return made

    writer, reader = nested(40, "Old", "int"), nested(40, "New", "string")
    with pytest.raises(SchemaError):
        avro.decoder(schema(writer), schema(reader), None)


@pytest.mark.parametrize("case", CASES)
def test_as_fastavro_resolves(case: str) -> None:
    writer_type, reader_type, rows = CASES[case]
    writer = record(("first", "long"), ("x", writer_type), ("last", "string"))
    reader = record(("last", "string"), ("x", reader_type), ("first", "long"))
    payloads = [written(writer, {"first": i, "x": x, "last": "z"}) for i, x in enumerate(rows)]
    got = decoded(writer, payloads, reader)
    assert got == [oracle(writer, payload, reader) for payload in payloads]
    # The same without a record around it.
    payloads = [written(writer_type, x) for x in rows]
    assert decoded(writer_type, payloads, reader_type) == [
        oracle(writer_type, payload, reader_type) for payload in payloads
    ]


DEFAULTS: dict[str, tuple[Any, Any]] = {
    "null": ("null", None),
    "boolean": ("boolean", True),
    "int": ("int", -7),
    "long": ("long", 2**40),
    "float": ("float", 0.25),
    "double": ("double", 1),
    "string": ("string", "größe"),
    "nullable": (["null", "string"], None),
    "nullable with a value first": (["string", "null"], "x"),
    "of a later branch": (["null", "int", "string"], "x"),
    "enum": (enum("A", "B"), "B"),
    "array": (array("int"), [1, 2, 3]),
    "empty array": (array("int"), []),
    "map": (mapping("string"), {"a": "x"}),
    "record": (INNER, {"a": 3, "b": "y"}),
    "record with defaults of its own": (record(("a", "int", 5), name="Deep"), {}),
    "date": ({"type": "int", "logicalType": "date"}, 19000),
    "timestamp": ({"type": "long", "logicalType": "timestamp-millis"}, 1000),
}


@pytest.mark.parametrize("case", DEFAULTS)
def test_defaults(case: str) -> None:
    kind, default = DEFAULTS[case]
    writer = record(("a", "int"))
    reader = record(("new", kind, default), ("a", "int"))
    payloads = [written(writer, {"a": i}) for i in range(3)]
    got = decoded(writer, payloads, reader)
    if case == "record with defaults of its own":  # fastavro takes {} as it is
        assert [row["new"] for row in got] == [{"a": 5}] * 3
        return
    assert got == [oracle(writer, payload, reader) for payload in payloads]


def test_default_of_bytes_is_latin_1() -> None:
    reader = record(("b", "bytes", "\u00ff\u0001"), ("f", fixed(2), "\u0000\u00fe"))
    empty = record()
    assert decoded(empty, [b""], reader) == [{"b": b"\xff\x01", "f": b"\x00\xfe"}]
    money = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    assert decoded(empty, [b""], record(("m", money, "\u00ff"))) == [{"m": -1}]


def test_aliases_of_fields() -> None:
    writer = record(("old", "int"), ("b", "string"))
    reader = record(("new", "long"), ("b", "string"))
    reader["fields"][0]["aliases"] = ["older", "old"]
    payloads = [written(writer, {"old": 5, "b": "x"})]
    assert decoded(writer, payloads, reader) == [{"new": 5, "b": "x"}]
    assert oracle(writer, payloads[0], reader) == {"new": 5, "b": "x"}


def test_names_come_before_aliases() -> None:
    writer = record(("a", "int"))
    reader = record(("b", "int", 7), ("a", "int"))
    reader["fields"][0]["aliases"] = ["a"]
    assert decoded(writer, [written(writer, {"a": 1})], reader) == [{"b": 7, "a": 1}]
    reader = record(("b", "int"), ("c", "int"))
    for field in reader["fields"]:
        field["aliases"] = ["a"]
    with pytest.raises(
        SchemaError, match=r"field c: two fields of the reader's .* the writer's 'a'"
    ):
        decode(writer, [], reader)


def test_topmost_records_may_have_any_name() -> None:
    """As in Java: only unions choose by name."""
    writer = record(("a", "int"), name="com.example.Old")
    reader = record(("a", "int"), name="New")
    assert decoded(writer, [written(writer, {"a": 1})], reader) == [{"a": 1}]


@pytest.mark.parametrize(
    ("writer", "reader", "message"),
    [
        ("string", "int", "field x: string of the writer's Avro schema cannot be read as int"),
        ("long", "int", "long of the writer's Avro schema cannot be read as int"),
        ("double", "float", "double of the writer"),
        ("int", ["null", "string"], r"int of the writer's Avro schema cannot be read as union"),
        (["null", "int"], "string", "field x: null of the writer"),
        (INNER, record(("a", "string"), name="Inner"), "field x.a: int"),
        (INNER, record(("c", "string"), name="Inner"), "field x.c: .* without a default"),
        (enum("A"), enum("A", name="Other"), "field x: enum E .* not enum Other"),
        (fixed(3), fixed(4), "field x: fixed F has 3 bytes in the writer's .* and 4"),
        (fixed(3), fixed(3, name="Other"), "field x: fixed F .* not fixed Other"),
        (
            fixed(8, logicalType="decimal", precision=9, scale=2),
            fixed(8, logicalType="decimal", precision=9, scale=3),
            "field x: the decimals .* different scales, 2 .* and 3",
        ),
    ],
)
def test_what_cannot_resolve_is_an_error_immediately(
    writer: Any, reader: Any, message: str
) -> None:
    with pytest.raises(SchemaError, match=message):
        decode(record(("x", writer)), [], record(("x", reader)))


@pytest.mark.parametrize(
    ("writer", "reader", "values", "message"),
    [
        (array("long"), array("int"), [[], [5], []], "field x[]: long of the writer's"),
        (mapping("long"), mapping("int"), [{}, {"k": 5}, {}], "field x{}: long of the writer's"),
        (
            mapping(array(mapping("string"))),
            mapping(array(mapping("int"))),
            [{}, {"k": [{"k": "x"}]}, {"k": [{}, {}]}],
            "field x{}[]{}: string of the writer's",
        ),
        (
            array(INNER),
            array(record(("c", "int"), name="Inner")),
            [[], [{"a": 5, "b": ""}], []],
            "field x[]: field x[].c: the reader's Avro schema has it without a default",
        ),
        (
            ["null", mapping(["null", "long"])],
            ["null", mapping(["null", "int"])],
            [None, ("map", {"k": ("long", 5)}), ("map", {"k": None})],
            "field x{}: long of the writer's",
        ),
    ],
)
def test_items_that_do_not_resolve_are_bad_where_there_are_any(
    writer: Any, reader: Any, values: list[Any], message: str
) -> None:
    """As in Java: an empty map<long> is an empty map<int>."""
    payloads: list[bytes | None] = [
        written(record(("x", writer), ("last", "int")), {"x": value, "last": 7}) for value in values
    ]
    result = decode(
        record(("x", writer), ("last", "int")), payloads, record(("last", "int"), ("x", reader))
    )
    assert result.bad_rows.tolist() == [1]
    assert result.reasons[0].startswith(message)
    assert [row["last"] for row in plain(result.values) if row] == [7, 7]
    rows = [row["x"] for row in plain(result.values) if row]
    assert rows == [_bare(values[0]), _bare(values[2])]


def _bare(value: Any) -> Any:
    """A value without fastavro's names of branches."""
    return value[1] if isinstance(value, tuple) else value


def test_a_default_that_does_not_fit_its_type() -> None:
    for kind, default in [
        ("int", "x"),
        ("int", 2**31),
        (enum("A"), "B"),
        (fixed(2), "x"),
        ("bytes", "\u0100"),
        ("boolean", 1),
        (["null", "int"], "x"),
    ]:
        with pytest.raises(SchemaError, match="the default of field x"):
            decode(record(), [], record(("x", kind, default)))
    with pytest.raises(SchemaError, match="of field x: it has no field 'a', which has no default"):
        decode(record(), [], record(("x", INNER, {"b": "x"})))


@pytest.mark.parametrize(
    ("kind", "default", "message"),
    [
        (array("int"), [1, None], r"field x\[\]: None is not int"),
        (array(array("string")), [["a"], [None]], r"field x\[\]\[\]: None is not string"),
        (array(["int", "string"]), [None], r"field x\[\]: None fits no branch of union \[int, str"),
        (mapping("int"), {"a": None}, r"field x\{\}: None is not int"),
        (INNER, {"a": None}, r"field x\.a: None is not "),
        (array("int"), None, r"field x: None is not array of int"),
    ],
)
def test_a_default_names_the_part_that_does_not_fit(kind: Json, default: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=f"the default of {message}"):
        decode(record(), [], record(("x", kind, default)))


def test_a_branch_that_the_reader_lacks_is_a_bad_row() -> None:
    writer = record(("x", ["null", "int", "string"]))
    reader = record(("x", ["null", "int"]))
    rows = [None, ("int", 1), ("string", "x"), ("int", 2)]
    result = decode(writer, [written(writer, {"x": x}) for x in rows], reader)
    assert result.bad_rows.tolist() == [2]
    assert result.reasons == (
        "field x: string of the writer's Avro schema cannot be read as union [null, int] of the "
        "reader's",
    )
    assert plain(result.values) == [{"x": None}, {"x": 1}, None, {"x": 2}]


def test_of_several_branches_the_same_type_comes_first() -> None:
    """As in Java: fastavro would take the first one that a promotion leads to."""
    union = ["null", "double", "int", "string"]
    expected = {"member0": None, "member1": 5, "member2": None}
    assert decode("int", [written("int", 5)], union).values.to_pylist() == [expected]
    writer = ["string", "int"]
    result = decode(writer, [written(writer, ("int", 5))], union)
    assert result.values.to_pylist() == [expected]


def test_a_symbol_that_the_reader_lacks_is_a_bad_row() -> None:
    writer, reader = record(("x", enum("A", "B"))), record(("x", enum("B")))
    result = decode(writer, [written(writer, {"x": x}) for x in "BAB"], reader)
    assert result.bad_rows.tolist() == [1]
    assert result.reasons == ("field x: the reader's enum has no symbol 'A'",)
    assert plain(result.values) == [{"x": "B"}, None, {"x": "B"}]


def test_a_time_keeps_its_meaning() -> None:
    """Java would take milliseconds for microseconds."""
    writer = {"type": "long", "logicalType": "timestamp-millis"}
    reader = {"type": "long", "logicalType": "timestamp-micros"}
    assert decoded(writer, [written("long", 5)], reader) == [5000]
    assert decoded("long", [written("long", 5)], reader) == [5]
    assert decoded("int", [written("int", 5)], writer) == [5000]


def test_promoted_numbers_are_rounded_once() -> None:
    """A float of the reader's schema is one, also where a double was asked for."""
    writer, reader = record(("x", "int")), record(("x", "float"))
    wanted = pa.struct([("x", pa.float64())])
    result = decode(writer, [written(writer, {"x": 16777217})], reader, wanted)
    assert result.values.to_pylist() == [{"x": 16777216.0}]


@st.composite
def evolutions(draw: st.DrawFn) -> tuple[Any, Any, list[bytes]]:
    """A schema, what became of it, and payloads of the old one."""
    writer = draw(schemas())
    # fastavro takes the first branch that a number can be promoted to, Java the same type first.
    assume(not several_numbers(writer))
    rows = draw(st.lists(values(writer), max_size=4))
    reader = evolved(draw, writer)
    return writer, reader, [written(writer, row) for row in rows]


def several_numbers(definition: Any) -> bool:
    if isinstance(definition, list):
        numbers = {"int", "long", "float", "double", "string", "bytes"}
        kinds = [each if isinstance(each, str) else each["type"] for each in definition]
        return sum(kind in numbers for kind in kinds) > 1 or any(map(several_numbers, definition))
    if isinstance(definition, dict):
        inner = [definition.get("type"), definition.get("items"), definition.get("values")]
        return any(map(several_numbers, [*inner, *definition.get("fields", [])]))
    return False


PROMOTED = {
    "int": ["long", "float", "double", ["null", "int"]],
    "long": ["double", ["long", "null"]],
    "float": ["double"],
    "string": ["bytes"],
}


def evolved(draw: st.DrawFn, definition: Any) -> Any:
    if isinstance(definition, str):
        return draw(st.sampled_from([definition, *PROMOTED.get(definition, [])]))
    if isinstance(definition, list):
        return [each if isinstance(each, str) else evolved(draw, each) for each in definition]
    if definition["type"] == "array":
        return {**definition, "items": evolved(draw, definition["items"])}
    if definition["type"] == "map":
        return {**definition, "values": evolved(draw, definition["values"])}
    if definition["type"] != "record":
        return definition
    fields = [
        {**field, "type": evolved(draw, field["type"])}
        for field in draw(st.permutations(definition["fields"]))
        if draw(st.integers(0, 3))
    ]
    if draw(st.booleans()):
        kind, default = draw(
            st.sampled_from(
                [("int", 5), ("string", "d"), (["null", "long"], None), (array("int"), [1])]
            )
        )
        fields.insert(0, {"name": "added", "type": kind, "default": default})
    return {**definition, "fields": fields}


@pytest.mark.slow
@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(evolutions())
def test_any_evolution_is_as_fastavro_has_it(case: tuple[Any, Any, list[bytes]]) -> None:
    writer, reader, payloads = case
    assert decoded(writer, payloads, reader) == [
        oracle(writer, payload, reader) for payload in payloads
    ]
