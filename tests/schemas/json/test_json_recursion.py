"""JSON Schemas that contain themselves: to a depth, by name, as text and bytes, and back."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from sparkkafka.errors import SchemaError
from sparkkafka.schemas.json.format import arrow_type, decoder, encoder
from sparkkafka.schemas.values import Schema, ValueRowError

ID = {"id": {"type": "integer"}}
LIST = {"properties": {**ID, "next": {"oneOf": [{"type": "null"}, {"$ref": "#"}]}}}
TREE = {"properties": {**ID, "all": {"type": "array", "items": {"$ref": "#"}}}}
TABLE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "required": ["id"],
            "properties": {
                **ID,
                "by": {"type": "object", "additionalProperties": {"$ref": "#/$defs/node"}},
            },
        }
    },
}
EACH_OTHER = {
    "definitions": {
        "a": {"properties": {**ID, "b": {"$ref": "#/definitions/b"}}},
        "b": {"properties": {"as": {"type": "array", "items": {"$ref": "#/definitions/a"}}}},
    },
    "properties": {**ID, "a": {"$ref": "#/definitions/a"}},
}


def schema(node: Any, **references: Schema) -> Schema:
    return Schema("json", json.dumps(node), tuple(references.items()))


def chain(depth: int) -> dict[str, Any]:
    return {"id": depth, **({"next": chain(depth - 1)} if depth else {})}


DEEP_TREE = {"id": 1, "all": [{"id": 2, "all": [{"id": 3, "all": []}, {"id": 4}]}, {"id": 5}]}
DEEP_TABLE = {"id": 1, "by": {"x": {"id": 2, "by": {"y": {"id": 3, "by": {"z": {"id": 4}}}}}}}
DEEP_PAIR = {"id": 0, "a": {"id": 1, "b": {"as": [{"id": 2, "b": {"as": [{"id": 3}]}}]}}}

CASES: list[tuple[Any, list[Any]]] = [
    (LIST, [chain(depth) for depth in (0, 1, 2, 9)]),
    (TREE, [DEEP_TREE, {"id": 7}]),
    (TABLE, [DEEP_TABLE, {"id": 7, "by": {}}]),
    (EACH_OTHER, [DEEP_PAIR, {"id": 7}]),
]


def plain(value: Any) -> Any:
    """A value of a column without nulls, with texts of objects parsed and maps as dicts."""
    if isinstance(value, str) and value.startswith("{"):
        return plain(json.loads(value))
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        if value and all(isinstance(each, tuple) for each in value):
            return {key: plain(each) for key, each in value}
        return [plain(each) for each in value]
    return value


def without_empty(value: Any) -> Any:
    """Arrow gives an empty map as an empty list."""
    if isinstance(value, dict):
        return {name: without_empty(each) for name, each in value.items() if each != {}}
    return [without_empty(each) for each in value] if isinstance(value, list) else value


def test_types_to_a_depth() -> None:
    one = pa.struct([("id", pa.int64()), ("next", pa.string())])
    assert arrow_type(schema(LIST), depth=1) == one
    assert arrow_type(schema(LIST), depth=2) == pa.struct([("id", pa.int64()), ("next", one)])
    assert arrow_type(schema(TREE), depth=1).field("all").type == pa.list_(pa.string())
    by = arrow_type(schema(TABLE), depth=1).field("by").type
    assert by == pa.map_(pa.string(), pa.string())
    a = arrow_type(schema(EACH_OTHER), depth=1).field("a").type
    assert a.field("b").type == pa.struct([("as", pa.list_(pa.string()))])


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
@pytest.mark.parametrize(("node", "values"), CASES)
def test_what_is_deeper_is_json_text(node: Any, values: list[Any], depth: int) -> None:
    payloads = pa.array([json.dumps(each).encode() for each in values])
    kind = arrow_type(schema(node), depth=depth)
    got = decoder(schema(node), None, kind).decode(payloads)
    assert got.reasons == ()
    assert got.values.type == kind
    rows = [without_empty(plain(row)) for row in got.values.to_pylist()]
    expected = [without_empty(each) for each in values]
    assert [_no_empty_lists(row) for row in rows] == [_no_empty_lists(each) for each in expected]
    # Written back, nothing is lost at any depth.
    written = encoder(schema(node), kind).encode(got.values)
    assert [json.loads(each) for each in written.to_pylist()] == values


def _no_empty_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _no_empty_lists(each) for name, each in value.items() if each != []}
    return [_no_empty_lists(each) for each in value] if isinstance(value, list) else value


def test_references_to_other_documents() -> None:
    root = {"properties": {"tree": {"$ref": "tree.json"}, **ID}}
    whole = schema(root, **{"tree.json": Schema("json", json.dumps(TREE))})
    with pytest.raises(SchemaError, match=r"field tree.all\[\]: '#' contains itself"):
        arrow_type(whole)
    kind = arrow_type(whole, depth=2)
    assert kind.field("tree").type == arrow_type(schema(TREE), depth=2)
    payload = json.dumps({"tree": DEEP_TREE, "id": 1}).encode()
    got = decoder(whole, None, kind).decode(pa.array([payload]))
    assert got.values[0].as_py()["tree"]["all"][0]["all"][0] == '{"id":3,"all":[]}'
    assert json.loads(encoder(whole, kind).encode(got.values)[0].as_py()) == json.loads(payload)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
@pytest.mark.parametrize(
    ("node", "name", "value"), [(LIST, "next", chain(4)), (TREE, "all", DEEP_TREE)]
)
def test_the_recurring_field_as_text_and_as_bytes(
    node: Any, name: str, value: Any, kind: pa.DataType
) -> None:
    wanted = pa.struct([("id", pa.int64()), (name, kind)])
    payloads = pa.array([json.dumps(value).encode()] * 100)
    got = decoder(schema(node), None, wanted).decode(payloads)
    assert got.reasons == ()
    assert json.loads(got.values[0].as_py()[name]) == value[name]
    written = encoder(schema(node), wanted).encode(got.values)
    assert json.loads(written[99].as_py()) == value


@pytest.mark.parametrize(
    ("node", "name", "text", "expected_error"),
    [
        (LIST, "next", "{", "field next must be JSON text, and is not JSON"),
        (LIST, "next", "[1]", "field next must be the JSON text of an object, not an array"),
        (TREE, "all", '"x"', "field all must be the JSON text of an array, not a string"),
    ],
)
def test_texts_that_do_not_match_the_schema(
    node: Any, name: str, text: str, expected_error: str
) -> None:
    for kind, given in ((pa.string(), text), (pa.binary(), text.encode())):
        wanted = pa.struct([(name, kind)])
        with pytest.raises(ValueRowError, match=expected_error):
            encoder(schema(node), wanted).encode(pa.array([{name: given}], wanted))


def test_what_is_deeper_is_not_left_over() -> None:
    kind = arrow_type(schema(LIST), depth=1)
    payloads = pa.array([b'{"id":1,"next":{"id":2,"more":3},"more":4}'])
    got = decoder(schema(LIST), None, kind, rest=True).decode(payloads)
    assert got.values.to_pylist() == [{"id": 1, "next": '{"id":2,"more":3}'}]
    assert got.rest is not None
    assert got.rest.to_pylist() == ['{"more":4}']


@pytest.mark.slow
def test_a_depth_that_makes_too_large_a_type() -> None:
    wide = {"properties": {f"f{n}": {"$ref": "#"} for n in range(20)}}
    assert arrow_type(schema(wide), depth=3).num_fields == 20
    expected_error = (
        r"with recursive\.fields\.max\.depth=5 .* too many fields or levels\. Set a lower depth"
    )
    with pytest.raises(SchemaError, match=expected_error):
        arrow_type(schema(wide), depth=5)
    deep: Any = {"$ref": "#"}
    for _ in range(5):
        deep = {"type": "object", "additionalProperties": deep}
    with pytest.raises(SchemaError, match=r"depth=15 .* levels"):
        arrow_type(schema({"properties": {"m": deep}}), depth=15)
    assert arrow_type(schema({"properties": {"m": deep}}), depth=5).num_fields == 1
