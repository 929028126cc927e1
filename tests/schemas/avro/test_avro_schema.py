"""Parsing schemas, and making them of Arrow types."""

from __future__ import annotations

import json
import pickle
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkkafka.errors import SchemaError
from sparkkafka.schemas.avro import format as avro
from sparkkafka.schemas.values import Schema
from tests.schemas.avro.avro_cases import decoded, record, schema, schemas, written
from tests.support.properties import examples

INNER = record(("a", "int"), name="Inner")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the Avro schema is not JSON"),
        ("", "the Avro schema is not JSON"),
        ("[" * 100_000, "nested too deeply|not JSON"),
        ("5", "the value: a type must be a name, an object or a list, not 5"),
        ('"nothing"', "the value: type 'nothing' is not defined"),
        ("[]", "a union has no branches"),
        ('["int", "int"]', "two branches of type int"),
        ('["int", ["null"]]', "a union stands directly in a union"),
        ("{}", "a type has no 'type'"),
        ('{"type": "array"}', "'items' is missing"),
        ('{"type": "map", "values": 5}', r"field \{\}: a type must be"),
        ('{"type": "record", "name": "R"}', "'fields' is missing"),
        ('{"type": "record", "fields": []}', "a type record has no name"),
        ('{"type": "record", "name": "R", "fields": 5}', "'fields' of record R is not a list"),
        ('{"type": "record", "name": "R", "fields": [{}]}', "a field of record R has no name"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "x"}]}',
            "field x: 'type' is missing",
        ),
        ('{"type": "record", "name": "int", "fields": []}', "may not be called 'int'"),
        ('{"type": "enum", "name": "E", "symbols": ["A", "A"]}', "enum E has a symbol twice"),
        ('{"type": "enum", "name": "E", "symbols": [1]}', "'symbols' must be a list of strings"),
        ('{"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}', 'its default "B"'),
        ('{"type": "fixed", "name": "F"}', "its size must be a number of bytes, not null"),
        ('{"type": "fixed", "name": "F", "size": -1}', "its size must be"),
        ('{"type": "fixed", "name": "F", "size": 99999999999}', "its size must be"),
        (
            '{"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 2}',
            r"the value: decimal\(39, 2\): Spark and Arrow have at most 38 digits",
        ),
        (
            '{"type": "fixed", "name": "F", "size": 40, "logicalType": "decimal", "precision": 60}',
            r"decimal\(60, 0\)",
        ),
    ],
)
def test_what_cannot_be_used_is_an_error_with_its_location(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        avro.arrow_type(Schema("avro", text))


@pytest.mark.parametrize(
    "definition",
    [
        record(("next", ["null", "Value"])),
        record(("children", {"type": "array", "items": "Value"})),
        record(("a", record(("b", {"type": "map", "values": "Value"}), name="In"))),
    ],
)
def test_recursive_types_are_refused_by_name(definition: Any) -> None:
    with pytest.raises(SchemaError, match=r"field .*: type Value contains itself"):
        avro.arrow_type(schema(definition))


def test_two_fields_of_one_name() -> None:
    with pytest.raises(SchemaError, match="field x: record Value has two fields of this name"):
        avro.arrow_type(schema(record(("x", "int"), ("x", "long"))))
    with pytest.raises(SchemaError, match="field b: type Inner is defined twice"):
        avro.arrow_type(schema(record(("a", INNER), ("b", INNER))))


def test_trees_that_are_too_deep_or_too_large() -> None:
    deep: Any = "int"
    for _ in range(63):
        deep = {"type": "array", "items": deep}
    avro.arrow_type(schema(deep))
    deep = {"type": "array", "items": deep}
    with pytest.raises(SchemaError, match="nested more than 64 deep"):
        avro.arrow_type(schema(deep))
    # Ten uses of a type with ten uses of a type …
    fields: list[tuple[str, Any]] = [("f0", "int")]
    for level in range(6):
        below = record(*fields, name=f"L{level}")
        fields = [("f0", below), *((f"f{i}", f"L{level}") for i in range(1, 10))]
    with pytest.raises(SchemaError, match="more than 20,000 types"):
        avro.arrow_type(schema(record(*fields)))


def test_a_deep_tree_is_read_and_written() -> None:
    deep: Any = "int"
    value: Any = 5
    for _ in range(60):
        deep = {"type": "array", "items": deep}
        value = [value]
    assert decoded(deep, [written(deep, value)]) == [value]
    column = avro.decoder(schema(deep), None, None).decode(pa.array([written(deep, value)])).values
    encoded = avro.encoder(schema(deep), column.type).encode(column)
    assert encoded.to_pylist() == [written(deep, value)]


def test_bare_names_of_types() -> None:
    assert avro.arrow_type(Schema("avro", "string")) == pa.string()
    assert avro.arrow_type(Schema("avro", ' "long" ')) == pa.int64()


def test_comments_are_taken_as_java_takes_them() -> None:
    """Jackson's ALLOW_COMMENTS: `//` to the end of the line, and `/* */`; none inside a string."""
    text = """// Licensed "as is" /*
    /* 'one' * two
    */ {"type": "record", "name": "R", /**/ "doc": "http://x /* no comment */ \\" // none",
      "fields": [ // the id
        {"name": "id", "type": "long"} /* , {"name": "gone"} */
      ]} // end"""
    assert avro.arrow_type(Schema("avro", text)) == pa.struct(
        [pa.field("id", pa.int64(), nullable=False)]
    )
    reference = Schema("avro", '{"type": "enum", "name": "E", /* one */ "symbols": ["A"]}')
    assert avro.arrow_type(Schema("avro", '// a name\n"E"', (("E", reference),))) == pa.string()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"type": /* a\n comment */ long}', r"line 2 column 13"),
        ('"long" /* without an end', "Extra data"),
        ('"long" /*/', "Extra data"),
        ('"lo/**/ng" # not a comment', "Extra data"),
    ],
)
def test_what_is_wrong_beside_comments_has_its_location(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=f"is not JSON: .*{message}"):
        avro.arrow_type(Schema("avro", text))


@pytest.mark.parametrize(
    "text", ['"\\"' * 200_000, "/*" * 400_000, '"' + "\\" * 400_001, "//" * 400_000]
)
def test_comments_take_time_in_proportion(text: str) -> None:
    """A search that began again at each quote would not end."""
    with pytest.raises(SchemaError, match="is not JSON"):
        avro.arrow_type(Schema("avro", text))


def test_names_and_namespaces() -> None:
    definition = {
        "type": "record",
        "name": "com.example.Order",
        "fields": [
            {"name": "a", "type": {"type": "fixed", "name": "Id", "size": 2}},
            {"name": "b", "type": "Id"},  # by the record's namespace
            {"name": "c", "type": "com.example.Id"},
            {
                "name": "d",
                "type": {
                    "type": "record",
                    "name": "Part",
                    "namespace": "other",
                    "fields": [
                        {"name": "id", "type": "com.example.Id"},
                        {"name": "kind", "type": {"type": "enum", "name": "Id", "symbols": ["A"]}},
                    ],
                },
            },
            {"name": "e", "type": "other.Part"},
            {"name": "f", "type": "other.Id"},
        ],
    }
    part = {"id": b"\4\4", "kind": "A"}
    value = {"a": b"\1\1", "b": b"\2\2", "c": b"\3\3", "d": part, "e": part, "f": "A"}
    assert decoded(definition, [written(definition, value)]) == [value]
    fastavro.parse_schema(json.loads(json.dumps(definition)))
    wrong = {**definition, "fields": [*definition["fields"], {"name": "g", "type": "Part"}]}
    with pytest.raises(SchemaError, match=r"field g: type 'com.example.Part' is not defined"):
        avro.arrow_type(schema(wrong))


def test_a_type_in_an_object_of_its_own() -> None:
    """{"type": {"type": …}} is common, and so is the name of a type in one."""
    definition = record(("a", {"type": INNER}), ("b", {"type": "Inner"}), ("c", {"type": ["int"]}))
    value = {"a": {"a": 1}, "b": {"a": 2}, "c": 3}
    plain = record(("a", INNER), ("b", "Inner"), ("c", ["int"]))
    assert decoded(definition, [written(plain, value)]) == [value]
    assert avro.arrow_type(schema(definition)).field("c").type == pa.int32()


def test_references() -> None:
    money = Schema("avro", json.dumps(record(("amount", "long"), name="shop.Money")))
    item = Schema(
        "avro",
        json.dumps(record(("price", "shop.Money"), name="shop.Item")),
        (("shop.Money", money),),
    )
    order = Schema(
        "avro",
        json.dumps(
            record(("items", {"type": "array", "items": "shop.Item"}), ("sum", "shop.Money"))
        ),
        (("shop.Item", item), ("shop.Money", money)),
    )
    order = pickle.loads(pickle.dumps(order))
    payload = b"\x02\x0a\x00\x0e"
    column = avro.decoder(order, None, None).decode(pa.array([payload])).values
    assert column.to_pylist() == [{"items": [{"price": {"amount": 5}}], "sum": {"amount": 7}}]
    assert avro.encoder(order, column.type).encode(column).to_pylist() == [payload]
    missing = Schema("avro", order.text, (("shop.Money", money),))
    with pytest.raises(SchemaError, match=r"field items\[\]: type 'shop.Item' is not defined"):
        avro.arrow_type(missing)
    broken = Schema("avro", order.text, (("shop.Item", Schema("avro", "{")),))
    with pytest.raises(SchemaError, match=r"reference 'shop.Item': the Avro schema is not JSON"):
        avro.arrow_type(broken)


def test_a_schema_is_not_in_its_repr() -> None:
    assert "amount" not in repr(schema(record(("amount", "long"))))


# ---------------------------------------------------------------------------- of Arrow types


def test_the_schema_that_spark_makes() -> None:
    """Text compared with what Spark 4's SchemaConverters.toAvroType gives: unions with null at
    their end, names by place."""
    given_type = pa.struct(
        [
            pa.field("id", pa.int64(), False),
            ("name", pa.string()),
            pa.field("at", pa.timestamp("us", "UTC"), False),
            pa.field("price", pa.decimal128(10, 2), False),
            ("parts", pa.list_(pa.field("element", pa.struct([("day", pa.date32())]), False))),
        ]
    )
    assert json.loads(avro.schema_of(given_type, "com.example.Order").text) == {
        "type": "record",
        "name": "Order",
        "namespace": "com.example",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["string", "null"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {
                "name": "price",
                "type": {
                    "type": "fixed",
                    "name": "com.example.Order.price.fixed",
                    "size": 5,
                    "logicalType": "decimal",
                    "precision": 10,
                    "scale": 2,
                },
            },
            {
                "name": "parts",
                "type": [
                    {
                        "type": "array",
                        "items": {
                            "type": "record",
                            "name": "parts",
                            "fields": [
                                {
                                    "name": "day",
                                    "type": [{"type": "int", "logicalType": "date"}, "null"],
                                }
                            ],
                            "namespace": "com.example.Order",
                        },
                    },
                    "null",
                ],
            },
        ],
    }


SCALARS = [
    pa.bool_(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us", "UTC"),
    pa.timestamp("us"),
    pa.duration("us"),
    pa.decimal128(1, 0),
    pa.decimal128(18, 18),
    pa.decimal128(38, 10),
    pa.null(),
]


def fields_of(inner: st.SearchStrategy[pa.DataType], name: str) -> st.SearchStrategy[pa.Field]:
    return st.builds(
        lambda kind, nullable: pa.field(name, kind, nullable or kind == pa.null()),
        inner,
        st.booleans(),
    )


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        fields_of(inner, "element").map(pa.list_),
        fields_of(inner, "value").map(lambda field: pa.map_(pa.string(), field)),
        st.tuples(*(fields_of(inner, name) for name in "ab")).map(lambda f: pa.struct(list(f))),
    )


@settings(max_examples=examples(60))
@given(st.recursive(st.sampled_from(SCALARS), nested, max_leaves=8))
def test_a_type_becomes_a_schema_of_the_same_type(kind: pa.DataType) -> None:
    given_type = pa.struct([("x", kind), ("y", pa.list_(kind))])
    made = avro.schema_of(given_type, "Top")
    assert made == avro.schema_of(given_type, "Top")
    assert avro.arrow_type(made) == given_type
    fastavro.parse_schema(json.loads(made.text))
    avro.encoder(made, given_type)


def test_small_numbers_are_ints() -> None:
    made = avro.schema_of(pa.struct([("a", pa.int8()), ("b", pa.int16())]), "Top")
    assert avro.arrow_type(made) == pa.struct([("a", pa.int32()), ("b", pa.int32())])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (pa.struct([("a b", pa.int32())]), "field a b: 'a b' is not a name in Avro"),
        (pa.struct([("größe", pa.int32())]), "field größe: 'größe' is not a name in Avro"),
        (pa.struct([("a", pa.struct([("1", pa.int32())]))]), "field a.1: '1' is not a name"),
        (pa.struct([("a", pa.uint64())]), "field a: Avro has no type for uint64"),
        (
            pa.struct([("a", pa.map_(pa.int32(), pa.int32()))]),
            "field a: Avro has no type for map<int,int>",
        ),
    ],
)
def test_what_avro_lacks(kind: pa.DataType, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        avro.schema_of(kind, "Top")
    with pytest.raises(SchemaError, match="is not a name in Avro"):
        avro.schema_of(pa.struct([]), "my topic")


@settings(max_examples=examples(40))
@given(schemas())
def test_any_schema_has_a_type(definition: Any) -> None:
    kind = avro.arrow_type(schema(definition))
    assert avro.decoder(schema(definition), None, None).type == kind
    avro.encoder(schema(definition), kind)
