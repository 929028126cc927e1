"""The types that a JSON Schema gives, and wanted types that narrow them."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkkafka.errors import OptionError, SchemaError
from sparkkafka.schemas.json import schema as json_schema
from sparkkafka.schemas.json.format import arrow_type, decoder, encoder
from sparkkafka.schemas.values import Schema, ValueRowError
from tests.schemas.json.json_cases import UTC
from tests.support.properties import examples

CONNECT = "org.apache.kafka.connect.data."


def schema(node: Any, **references: Any) -> Schema:
    named = tuple((name, schema(each)) for name, each in references.items())
    return Schema("json", json.dumps(node), named)


def read(node: Any, *texts: str, wanted: pa.DataType | None = None) -> list[Any]:
    """Values, and reasons in the place of bad rows."""
    done = decoder(schema(node), None, wanted).decode(pa.array(map(str.encode, texts), pa.binary()))
    values: list[Any] = done.values.to_pylist()
    for row, reason in zip(done.bad_rows.tolist(), done.reasons, strict=True):
        values[row] = reason
    return values


@pytest.mark.parametrize(
    ("node", "kind"),
    [
        ({"type": "boolean"}, pa.bool_()),
        ({"type": "integer"}, pa.int64()),
        ({"type": "integer", "connect.type": "int8"}, pa.int8()),
        ({"type": "integer", "connect.type": "int16"}, pa.int16()),
        ({"type": "integer", "format": "int32"}, pa.int32()),
        ({"type": "number"}, pa.float64()),
        ({"type": "number", "connect.type": "float32"}, pa.float32()),
        ({"type": "string"}, pa.string()),
        ({"type": "string", "format": "uuid"}, pa.string()),
        ({"type": "string", "format": "date"}, pa.date32()),
        ({"type": "string", "format": "date-time"}, UTC),
        ({"type": "string", "format": "local-date-time"}, pa.timestamp("us")),
        ({"type": "string", "connect.type": "bytes"}, pa.binary()),
        ({"type": "string", "contentEncoding": "base64"}, pa.binary()),
        ({"type": "null"}, pa.null()),
        ({"type": "integer", "title": f"{CONNECT}Timestamp"}, UTC),
        ({"type": "integer", "title": f"{CONNECT}Date"}, pa.date32()),
        (
            {
                "type": "number",
                "title": f"{CONNECT}Decimal",
                "connect.parameters": {"scale": "2", "connect.decimal.precision": "9"},
            },
            pa.decimal128(9, 2),
        ),
        (
            {"type": "number", "title": f"{CONNECT}Decimal", "connect.parameters": {"scale": "4"}},
            pa.decimal128(38, 4),
        ),
        (
            {
                "type": "string",
                "connect.type": "bytes",
                "title": f"{CONNECT}Decimal",
                "connect.parameters": {"scale": "2"},
            },
            pa.decimal128(38, 2),
        ),
        # null beside a type
        ({"type": ["null", "integer"]}, pa.int64()),
        ({"type": ["string", "null"], "format": "date"}, pa.date32()),
        ({"oneOf": [{"type": "null"}, {"type": "integer", "connect.type": "int32"}]}, pa.int32()),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, pa.float64()),
        # unions
        ({"type": ["integer", "number"]}, pa.float64()),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, pa.float64()),
        ({"oneOf": [{"type": "string"}, {"type": "string", "format": "email"}]}, pa.string()),
        ({"type": ["integer", "string"]}, pa.string()),
        ({"oneOf": [{"type": "integer"}, {"type": "boolean"}]}, pa.string()),
        # without a type
        ({}, pa.string()),
        (True, pa.string()),
        ({"enum": ["A", "B"]}, pa.string()),
        ({"enum": [1, 2, None]}, pa.int64()),
        ({"enum": [1, 2.5]}, pa.float64()),
        ({"enum": ["A", 1]}, pa.string()),
        ({"const": True}, pa.bool_()),
        # containers
        ({"type": "array", "items": {"type": "integer"}}, pa.list_(pa.int64())),
        ({"type": "array"}, pa.list_(pa.string())),
        ({"items": {"type": "boolean"}}, pa.list_(pa.bool_())),
        ({"type": "array", "items": [{"type": "integer"}] * 2}, pa.list_(pa.string())),
        (
            {"type": "array", "prefixItems": [{"type": "integer"}] * 2, "items": False},
            pa.list_(pa.int64()),
        ),
        ({"type": "object"}, pa.string()),
        (
            {"type": "object", "additionalProperties": {"type": "number"}},
            pa.map_(pa.string(), pa.float64()),
        ),
        ({"type": "object", "additionalProperties": True}, pa.string()),
        (
            {"properties": {"b": {"type": "integer"}, "a": {"type": "string"}, "no": False}},
            pa.struct([("b", pa.int64()), ("a", pa.string())]),
        ),
        (
            {
                "allOf": [
                    {"properties": {"a": {"type": "integer"}}},
                    {"properties": {"b": {"type": "string"}}},
                ]
            },
            pa.struct([("a", pa.int64()), ("b", pa.string())]),
        ),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            },
            pa.struct([("a", pa.int64())]),
        ),
        (
            {
                "properties": {"kind": {"type": "string"}, "a": {"type": "integer"}},
                "oneOf": [
                    {"properties": {"kind": {"const": "x"}}, "required": ["a"]},
                    {"properties": {"kind": {"const": "y"}}},
                ],
            },
            pa.struct([("kind", pa.string()), ("a", pa.int64())]),
        ),
        (
            {
                "properties": {"a": {"type": "integer"}},
                "oneOf": [{"properties": {"b": {"type": "string"}}}, {}],
            },
            pa.string(),
        ),
        ({"properties": {"a": {"const": 1}}, "required": True}, pa.struct([("a", pa.int64())])),
        # references
        (
            {
                "$ref": "#/definitions/order",
                "definitions": {"order": {"properties": {"n": {"$ref": "#/definitions/n~1%25"}}},
                                "n/%": {"type": "integer"}},
            },
            pa.struct([("n", pa.int64())]),
        ),
        (
            {
                "type": "array",
                "items": {"$ref": "#item"},
                "$defs": {"x": {"$anchor": "item", "type": "boolean"}},
            },
            pa.list_(pa.bool_()),
        ),
        (
            {
                "$id": "http://x.test/a.json",
                "properties": {"a": {"$ref": "b.json"}, "b": {"$ref": "b.json#/$defs/y"}},
                "$defs": {
                    "x": {
                        "$id": "http://x.test/b.json",
                        "type": "integer",
                        "$defs": {"y": {"type": "boolean"}},
                    }
                },
            },
            pa.struct([("a", pa.int64()), ("b", pa.bool_())]),
        ),
        (
            {"items": {"$ref": "#x"}, "definitions": {"x": {"$id": "#x", "type": "null"}}},
            pa.list_(pa.null()),
        ),
        ({"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"type": "integer"}}}, pa.int64()),
        (
            {
                "allOf": [{"$ref": "#/$defs/rule"}],
                "properties": {"options": {"type": "string"}},
                "$defs": {
                    "rule": {
                        "type": ["boolean", "object", "array"],
                        "properties": {"severity": {"type": "string"}},
                    }
                },
            },
            pa.string(),
        ),
        (
            {
                "allOf": [
                    {"oneOf": [{"type": "number"}, {"$ref": "#/$defs/range"}]},
                    {"allOf": [{"properties": {"min": {"type": "integer"}}}]},
                ],
                "$defs": {
                    "range": {"type": "object", "properties": {"min": {"type": "integer"}}}
                },
            },
            pa.string(),
        ),
        (
            {"allOf": [{"enum": ["all", {"a": 1}]}, {"properties": {"a": {"type": "integer"}}}]},
            pa.string(),
        ),
        (
            {
                "allOf": [
                    {"type": ["integer", "string"]},
                    {"type": ["number", "string"]},
                    {"properties": {"a": {"type": "integer"}}},
                ]
            },
            pa.string(),
        ),
        (
            {
                "allOf": [
                    {"type": ["object", "string"]},
                    {"type": ["object", "null"], "properties": {"a": {"type": "integer"}}},
                ]
            },
            pa.struct([("a", pa.int64())]),
        ),
        ({"allOf": [{"type": ["integer", "null"]}, {"type": "number"}]}, pa.float64()),
        (
            {
                "allOf": [
                    {"properties": {"a": {"properties": {"b": {"type": "string"}}}}},
                    {"properties": {"a": {"type": "object"}, "c": {"type": "integer"}}},
                    {"properties": {"a": {"properties": {"d": {"type": "string"}}}}},
                ]
            },
            pa.struct([("a", pa.string()), ("c", pa.int64())]),
        ),
        (
            {
                "allOf": [
                    {"type": "object", "properties": {"a": {"type": "integer"}}},
                    {"type": "object", "additionalProperties": {"type": "number"}},
                ]
            },
            pa.string(),
        ),
        ({"allOf": [{"type": ["integer", "number"]}, {"minimum": 3}]}, pa.float64()),
    ],
)  # fmt: skip
def test_types(node: Any, kind: pa.DataType) -> None:
    assert arrow_type(schema(node)) == kind


# --- keywords beside $ref -------------------------------------------------------------------------

DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_07 = "http://json-schema.org/draft-07/schema#"
ID_AND_NAME = {
    "$ref": "#/$defs/a",
    "title": "Order",
    "properties": {"name": {"type": "string"}},
    "$defs": {"a": {"type": "object", "properties": {"id": {"type": "integer"}}}},
}


@pytest.mark.parametrize(
    ("draft", "names"),
    [
        (DRAFT_2020, ["id", "name"]),
        (DRAFT_2019, ["id", "name"]),
        ("https://json-schema.org/draft/2020-12/schema#", ["id", "name"]),
        (DRAFT_07, ["id"]),
        ("http://json-schema.org/draft-04/schema#", ["id"]),
        ("https://example.test/meta.json", ["id"]),
        (5, ["id"]),
        (None, ["id"]),
    ],
)
def test_keywords_beside_a_ref_apply_by_the_draft(draft: Any, names: list[str]) -> None:
    node = {**ID_AND_NAME, **({} if draft is None else {"$schema": draft})}
    assert [field.name for field in arrow_type(schema(node))] == names


def test_the_draft_is_that_of_the_document_with_the_ref() -> None:
    root = {"$schema": DRAFT_2020, "properties": {"o": {"$ref": "old.json", "required": ["id"]}}}
    old = schema(root, **{"old.json": {**ID_AND_NAME, "$schema": DRAFT_07}})
    assert arrow_type(old).field("o").type == pa.struct([("id", pa.int64())])
    root = {"$schema": DRAFT_07, "properties": {"o": {"$ref": "new.json", "type": "string"}}}
    new = schema(root, **{"new.json": {**ID_AND_NAME, "$schema": DRAFT_2019}})
    assert [field.name for field in arrow_type(new).field("o").type] == ["id", "name"]


@pytest.mark.parametrize(
    ("beside", "kind"),
    [
        ({"description": "of the customer", "$comment": "x", "default": 5}, pa.int64()),
        ({"minimum": 3, "if": {}, "not": {}}, pa.int64()),
        ({"type": ["integer", "null"]}, pa.int64()),
        ({"enum": [1, 2]}, pa.int64()),
        ({"type": "number"}, pa.float64()),
        ({"anyOf": [{"minimum": 3}, {"type": "null"}]}, pa.int64()),
    ],
)
def test_keywords_beside_the_ref_of_a_number(beside: dict[str, Any], kind: pa.DataType) -> None:
    node = {"$ref": "#/$defs/n", **beside, "$defs": {"n": {"type": "integer"}}}
    assert arrow_type(schema({"$schema": DRAFT_2020, **node})) == kind


def test_a_ref_and_a_type_beside_it_that_differ() -> None:
    node = {"a": {"$ref": "#/$defs/n", "type": "string"}}
    node = {"$schema": DRAFT_2020, "properties": node, "$defs": {"n": {"type": "integer"}}}
    with pytest.raises(
        SchemaError, match=r"field a: \$ref and the keywords beside it give it diff"
    ):
        arrow_type(schema(node))


def test_properties_beside_a_ref_that_recurs() -> None:
    node = {
        "$schema": DRAFT_2020,
        "$ref": "#/$defs/base",
        "properties": {"next": {"$ref": "#"}},
        "$defs": {"base": {"properties": {"id": {"type": "integer"}}}},
    }
    with pytest.raises(SchemaError, match=r"field next: '#' contains itself"):
        arrow_type(schema(node))
    one = pa.struct([("id", pa.int64()), ("next", pa.string())])
    assert arrow_type(schema(node), depth=1) == one
    assert arrow_type(schema(node), depth=2) == pa.struct([("id", pa.int64()), ("next", one)])
    itself = {"$schema": DRAFT_2020, "$ref": "#", "type": "object"}
    with pytest.raises(SchemaError, match="contains itself"):
        arrow_type(schema(itself))
    assert arrow_type(schema(itself), depth=2) == pa.string()


def test_required_beside_a_ref_and_in_a_part_of_all_of() -> None:
    """A required property that is null is refused when it is written, and not left out."""
    required = {"required": ["id"]}
    base = {"properties": {"id": {"type": "integer"}}}
    by_ref = {"$schema": DRAFT_2020, "$ref": "#/$defs/b", **required, "$defs": {"b": base}}
    kind = pa.struct([("id", pa.int64())])
    for node in (by_ref, {"allOf": [base, required]}, {"allOf": [base], **required}):
        with pytest.raises(ValueRowError, match="field id is null, which the JSON Schema forbids"):
            encoder(schema(node), kind).encode(pa.array([{"id": None}], kind))
    written = encoder(schema({**by_ref, "$schema": DRAFT_07}), kind)
    assert written.encode(pa.array([{"id": None}], kind)).to_pylist() == [b"{}"]


def test_registry_references() -> None:
    address = {"type": "object", "properties": {"zip": {"type": "integer"}}, "$defs": {
        "code": {"type": "string"}}}  # fmt: skip
    node = {
        "$id": "http://x.test/customer.json",
        "properties": {
            "a": {"$ref": "address.json"},
            "b": {"$ref": "address.json#/$defs/code"},
            "c": {"$ref": "http://x.test/customer.json#/properties/d"},
            "d": {"type": "boolean"},
        },
    }
    kind = pa.struct(
        [
            ("a", pa.struct([("zip", pa.int64())])),
            ("b", pa.string()),
            ("c", pa.bool_()),
            ("d", pa.bool_()),
        ]
    )
    for name in ("address.json", "http://x.test/address.json"):
        assert arrow_type(schema(node, **{name: address})) == kind
    with pytest.raises(
        SchemaError, match=r"field a: \$ref 'address.json' is not among .*: 'b.json'"
    ):
        arrow_type(schema(node, **{"b.json": address}))


def test_a_reference_by_full_url_beside_a_relative_one() -> None:
    """Both name one document: Confluent's JsonSchema puts a reference's name below the $id."""
    code = {"type": "string", "format": "date"}
    address = {
        "properties": {
            "zip": {"$ref": "http://x.test/v1/code.json"},
            "self": {"$ref": "#/$defs/n"},
        },
        "$defs": {"n": {"type": "integer"}},
    }
    node = {
        "$id": "http://x.test/v1/customer.json#",
        "properties": {
            "a": {"$ref": "address.json"},
            "b": {"$ref": "http://x.test/v1/address.json"},
            "c": {"$ref": "http://x.test/v1/address.json#/$defs/n"},
            "d": {"$ref": "/v1/address.json#/$defs/n"},
            "e": {"$ref": "http://x.test/v1/part.json"},
            "f": {"$ref": "part.json"},
        },
        "$defs": {"part": {"$id": "part.json", "type": "boolean"}},
    }
    text = Schema(
        "json", json.dumps(node), (("address.json", schema(address, **{"code.json": code})),)
    )
    inner = pa.struct([("zip", pa.date32()), ("self", pa.int64())])
    assert arrow_type(text) == pa.struct(
        [
            ("a", inner),
            ("b", inner),
            ("c", pa.int64()),
            ("d", pa.int64()),
            ("e", pa.bool_()),
            ("f", pa.bool_()),
        ]
    )
    with pytest.raises(SchemaError, match="is not among the schema's references"):
        arrow_type(schema({"$ref": "http://y.test/v1/address.json"}, **{"address.json": address}))
    with pytest.raises(SchemaError, match="is not among"):
        arrow_type(schema({"$ref": "b.json"}, **{"http://[x": address}))


NODE = {
    "properties": {
        "id": {"type": "integer"},
        "next": {"oneOf": [{"type": "null"}, {"$ref": "#"}]},
        "all": {"type": "array", "items": {"$ref": "#"}},
    }
}


def test_recursion_is_refused_by_name() -> None:
    with pytest.raises(SchemaError, match=r"field next: '#' contains itself, .*max\.depth"):
        arrow_type(schema(NODE))
    with pytest.raises(SchemaError, match="leads to more than 64 others"):
        arrow_type(schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}))


def test_a_given_type_ends_recursion() -> None:
    wanted = pa.struct([("next", pa.struct([("next", pa.struct([("id", pa.int64())]))]))])
    text = '{"id":1,"next":{"id":2,"next":{"id":3}}}'
    assert read(NODE, text, wanted=wanted) == [{"next": {"next": {"id": 3}}}]
    lists = pa.struct([("all", pa.list_(pa.struct([("id", pa.int64())])))])
    assert read(NODE, '{"all":[{"id":1}]}', wanted=lists) == [{"all": [{"id": 1}]}]


@pytest.mark.parametrize(
    ("text", "expected_error"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "nested too deep"),
        ("[1]", "a schema is an object or a boolean"),
        ('{"type":"integre"}', "no type of JSON Schema is called 'integre'"),
        ('{"properties":{"a":{"type":7}}}', "field a: type is 7"),
        ('{"properties":[]}', "properties is"),
        ('{"properties":{"a":{"$ref":"#/no"}}}', "field a: .* does not exist"),
        ('{"properties":{"a":{"$ref":"#no"}}}', "field a: .* does not exist"),
        ('{"$ref":5}', "not a text"),
        ('{"$ref":"http://[x#a"}', "is not a reference"),
        ('{"oneOf":{}}', "not a list of schemas"),
        ('{"allOf":[{"type":"integer"},{"type":"string"}]}', "parts of allOf"),
        (
            '{"properties":{"a":{"type":"number","title":"org.apache.kafka.connect.data.Decimal",'
            '"connect.parameters":{"scale":"40"}}}}',
            "field a: .* valid scale and precision",
        ),
    ],
)
def test_schemas_that_cannot_be_used(text: str, expected_error: str) -> None:
    with pytest.raises(SchemaError, match=expected_error):
        arrow_type(Schema("json", text))


@pytest.mark.slow
def test_schemas_that_multiply_or_nest_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert json_schema.MAX_SUBSCHEMAS == 20_000
    monkeypatch.setattr(json_schema, "MAX_SUBSCHEMAS", 2_000)
    doubled = {
        f"d{n}": {"properties": {side: {"$ref": f"#/$defs/d{n + 1}"} for side in "lr"}}
        for n in range(40)
    }
    with pytest.raises(SchemaError, match="more than 2000 parts"):
        arrow_type(schema({"$ref": "#/$defs/d0", "$defs": {**doubled, "d40": {"type": "null"}}}))
    unions = {f"d{n}": {"oneOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}
    with pytest.raises(SchemaError, match="more than 2000 parts"):
        arrow_type(schema({"$ref": "#/$defs/d0", "$defs": {**unions, "d60": {"type": "null"}}}))
    node: Any = {"type": "integer"}
    for _ in range(70):
        node = {"type": "array", "items": node}
    with pytest.raises(SchemaError, match="deeper than 64 levels"):
        arrow_type(schema(node))
    for _ in range(150):
        node = {"allOf": [node]}
    with pytest.raises(SchemaError, match="deep"):
        arrow_type(schema(node))


_WORDS = ["string", "integer", "object", "array", "null", "int8", "date", "#", "#/$defs/a", "a"]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 50) | st.floats() | st.sampled_from(_WORDS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "items",
                    "oneOf",
                    "anyOf",
                    "allOf",
                    "$ref",
                    "$defs",
                    "a",
                    "enum",
                    "const",
                    "required",
                    "title",
                    "format",
                    "additionalProperties",
                    "prefixItems",
                    "connect.type",
                    "connect.parameters",
                    "scale",
                    "$id",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=25,
)


@pytest.mark.slow
@given(node=_JSON, hint=st.booleans())
@settings(max_examples=examples(100))
def test_any_json_is_a_schema_or_an_error_that_says_so(node: Any, hint: bool) -> None:
    if hint and isinstance(node, dict):
        node |= {"type": "number", "title": f"{CONNECT}Decimal"}
    text = json.dumps({"properties": {"f": node, "g": {"$ref": "#/properties/f"}}})
    try:
        kind = arrow_type(Schema("json", text))
    except SchemaError:
        return
    read = decoder(Schema("json", text), None, None).decode(pa.array([b'{"f":1}', b"{}"]))
    assert read.values.type == kind
    read.values.validate(full=True)


ORDER = {
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": "number"},
        "name": {"type": "string"},
        "day": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
        "any": {},
        "home": {"type": "object", "properties": {"zip": {"type": "integer"}}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "tags": {"type": "array", "items": {"type": "string"}},
        "millis": {"type": "integer", "title": f"{CONNECT}Timestamp"},
        "cents": {
            "type": "string",
            "title": f"{CONNECT}Decimal",
            "connect.parameters": {"scale": "4"},
        },
    }
}


@pytest.mark.parametrize(
    ("name", "kind", "text", "value"),
    [
        ("id", pa.int8(), "7", 7),
        ("id", pa.float64(), "7", 7.0),
        ("id", pa.decimal128(5, 1), "7", Decimal("7.0")),
        ("id", pa.string(), "7", "7"),
        ("price", pa.float32(), "0.5", 0.5),
        ("name", pa.binary(), '"aGk="', b"hi"),
        ("name", pa.string(), "7", "field name: is a number, not a string"),
        ("any", pa.string(), '"x"', '"x"'),
        ("any", pa.string(), "[1.50]", "[1.50]"),
        ("any", pa.struct([("q", pa.int8())]), '{"q":1}', {"q": 1}),
        ("home", pa.struct([("zip", pa.int32())]), '{"zip":1}', {"zip": 1}),
        ("home", pa.map_(pa.string(), pa.int64()), '{"zip":1}', [("zip", 1)]),
        ("home", pa.string(), '{"zip": 1}', '{"zip":1}'),
        ("labels", pa.struct([("a", pa.string())]), '{"a":"b"}', {"a": "b"}),
        ("millis", pa.int64(), "5", 5),
        ("cents", pa.decimal128(9, 4), '"OpY="', Decimal("1.4998")),
    ],
)
def test_what_a_wanted_type_makes_of_the_schema(
    name: str, kind: pa.DataType, text: str, value: Any
) -> None:
    [got] = read(ORDER, f'{{"{name}":{text}}}', wanted=pa.struct([(name, kind)]))
    assert (got if isinstance(got, str) else got[name]) == value


@pytest.mark.parametrize(
    ("node", "text"),
    [
        ({"items": [{"type": "string"}, {}]}, '["x",1]'),
        ({"prefixItems": [{"type": "string"}, {"type": ["string", "integer"]}]}, '["x",1]'),
        ({"oneOf": [{"items": {"type": "string"}}, {"items": {}}]}, "[1]"),
        (
            {
                "anyOf": [
                    {"properties": {"v": {"type": "string"}}},
                    {"properties": {"v": {"type": ["string", "integer"]}}},
                ]
            },
            '{"v":1}',
        ),
        (
            {
                "oneOf": [
                    {"items": {"type": "string", "format": "date"}},
                    {"items": {"type": "integer", "title": f"{CONNECT}Date"}},
                ]
            },
            "[5]",
        ),
    ],
)
def test_schemas_differ_that_become_the_same_type_in_other_ways(node: Any, text: str) -> None:
    """Text and JSON text are both strings, and a date may be a number: a value of the second part
    would be bad as one of the first."""
    [got] = read({"properties": {"a": node}}, f'{{"a":{text}}}')
    assert got == {"a": ['"x"', "1"] if isinstance(got["a"], list) else text}


def test_all_parts_of_all_of_type_an_array_that_one_of_them_types() -> None:
    node = {"allOf": [{"type": "array", "items": {"type": "string"}}, {"type": "array"}]}
    assert read(node, '["x"]') == [["x"]]


@pytest.mark.parametrize(
    ("wanted", "expected_error"),
    [
        ([("nam", pa.string())], "no field nam: did you mean name"),
        ([("NAME", pa.string())], "no field NAME: did you mean name"),
        ([("zzz", pa.string())], "no field zzz: it has id, price"),
        ([("home", pa.struct([("zipp", pa.int8())]))], "no field home.zipp: did you mean zip"),
        ([("id", pa.bool_())], r"field id is integer \(bigint\) .* cannot become boolean"),
        ([("price", pa.int64())], "field price .* cannot become bigint"),
        ([("name", pa.int64())], "field name .* cannot become bigint"),
        ([("tags", pa.int64())], "field tags is an array .* cannot become bigint"),
        ([("tags", pa.list_(pa.int8()))], r"field tags\[\] is text"),
        ([("home", pa.list_(pa.int8()))], "field home is an object"),
        ([("id", pa.struct([("x", pa.int8())]))], "field id is integer"),
        # the bytes have the scale of the schema, and would be 100 times as much
        ([("cents", pa.decimal128(9, 2))], r"field cents .*\(38,4\).* become decimal\(9,2\)"),
    ],
)
def test_wanted_types_that_do_not_fit_the_schema(wanted: list[Any], expected_error: str) -> None:
    with pytest.raises(OptionError, match=expected_error):
        decoder(schema(ORDER), None, pa.struct(wanted))


def test_the_readers_schema_types() -> None:
    writer, reader = schema({"properties": {"a": {"type": "integer"}}}), schema(ORDER)
    assert decoder(writer, reader, None).type == arrow_type(reader)
    assert decoder(writer, None, None).type == arrow_type(writer)


def test_connects_times() -> None:
    node = {
        "properties": {
            "at": {"type": "integer", "title": f"{CONNECT}Timestamp"},
            "day": {"type": "integer", "title": f"{CONNECT}Date"},
        }
    }
    good = '{"at":1704164645123,"day":19724}'
    values = read(node, *[good] * 70, '{"at":1.5}', '{"at":9223372036854775807}', '{"day":"x"}')
    assert str(values[0]["at"]) == "2024-01-02 03:04:05.123000+00:00"
    assert str(values[0]["day"]) == "2024-01-02"
    assert values[70].startswith("field at: is a number that does not fit")
    assert values[71].startswith("field at: is a number of milliseconds too large")
    assert values[72].startswith("field day: is a string")


def test_what_only_checks_is_not_read() -> None:
    node = {
        "properties": {
            "a": {"type": "integer", "minimum": 5},
            "b": {"type": "string", "pattern": "x"},
        },
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    assert read(node, '{"a":1,"c":2}') == [{"a": 1, "b": None}]
