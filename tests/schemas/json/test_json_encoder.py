"""Encoding: texts that the standard library reads back, and schemas that are deterministic."""

from __future__ import annotations

import base64
import datetime
import json
import math
import subprocess
import sys
from decimal import Decimal
from typing import Any

import jsonschema
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkkafka.errors import OptionError
from sparkkafka.schemas.json.format import arrow_type, decoder, encoder, schema_of
from sparkkafka.schemas.values import Schema, ValueRowError
from tests.schemas.json.json_cases import UTC
from tests.support.properties import examples

NO_SCHEMA = Schema("json", "")

_MICROS = st.datetimes(datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30))
SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    (pa.decimal128(38, 10), st.decimals(-(10**20), 10**20, places=10)),
    (pa.decimal128(5, 0), st.integers(-99999, 99999).map(Decimal)),
    (pa.string(), st.text(st.characters(exclude_categories=["Cs"]))),
    (pa.string(), st.text('"\\\b\n\x00\x1f\x7fé{}', max_size=8)),
    (pa.binary(), st.binary()),
    (pa.date32(), st.dates()),
    (UTC, _MICROS.map(lambda each: each.replace(tzinfo=datetime.UTC))),
    (pa.timestamp("us"), _MICROS),
    (pa.duration("us"), st.timedeltas(datetime.timedelta(-(10**6)), datetime.timedelta(10**6))),
    (pa.null(), st.none()),
]
_NAMES = st.text('ab"\\é\n', min_size=1, max_size=4)
Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def _lists(inner: Typed) -> Typed:
    return pa.list_(inner[0]), st.lists(st.none() | inner[1], max_size=4)


def _maps(inner: Typed) -> Typed:
    pairs = st.dictionaries(_NAMES, st.none() | inner[1], max_size=3).map(lambda d: [*d.items()])
    return pa.map_(pa.string(), inner[0]), pairs


@st.composite
def _structs(draw: st.DrawFn, inner: st.SearchStrategy[Typed]) -> Typed:
    fields = draw(st.dictionaries(_NAMES, inner, min_size=1, max_size=4))
    values = st.fixed_dictionaries({name: st.none() | each[1] for name, each in fields.items()})
    return pa.struct([(name, each[0]) for name, each in fields.items()]), values


TYPED: st.SearchStrategy[Typed] = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: inner.map(_lists) | inner.map(_maps) | _structs(inner),
    max_leaves=6,
)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=examples(40))
def test_what_is_written_is_read_back(data: st.DataObject) -> None:
    kind, values = data.draw(TYPED)
    rows = data.draw(st.lists(st.none() | values, min_size=1, max_size=6))
    array = pa.array(rows, kind)
    cut = data.draw(st.integers(0, len(rows)))
    for part in (array, array.slice(cut), array.slice(0, cut)):
        texts = encoder(NO_SCHEMA, kind).encode(part)
        assert texts.type == pa.binary()
        assert texts.is_valid().to_pylist() == part.is_valid().to_pylist()
        for text in texts.to_pylist():
            if text is not None:
                json.loads(text, parse_constant=pytest.fail)
        read = decoder(NO_SCHEMA, None, kind).decode(texts)
        assert read.reasons == ()
        assert repr(read.values.to_pylist()) == repr(part.to_pylist())


@given(typed=TYPED, data=st.data())
@settings(max_examples=examples(30))
def test_the_schema_of_a_type_gives_the_type_and_takes_its_values(
    typed: Typed, data: st.DataObject
) -> None:
    kind, values = pa.struct([("f", typed[0])]), typed[1]
    schema = schema_of(kind, "orders")
    assert schema == schema_of(kind, "orders")
    node = json.loads(schema.text)
    assert node["title"] == "orders"
    assert node["$schema"] == "http://json-schema.org/draft-07/schema#"
    jsonschema.Draft7Validator.check_schema(node)
    read_back = arrow_type(schema)
    assert read_back == _with_strings(kind)
    rows = data.draw(st.lists(st.fixed_dictionaries({"f": st.none() | values}), max_size=4))
    for text in encoder(schema, kind).encode(pa.array(rows, kind)).to_pylist():
        jsonschema.validate(json.loads(text), node)


def _with_strings(kind: pa.DataType) -> pa.DataType:
    """Durations are strings to a JSON Schema."""
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _with_strings(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), _with_strings(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_with_strings(kind.value_type))
    return pa.string() if pa.types.is_duration(kind) else kind


def written(kind: pa.DataType, *values: Any, schema: Any = None) -> list[str]:
    given = Schema("json", "" if schema is None else json.dumps(schema))
    return [
        None if text is None else text.decode()
        for text in encoder(given, kind).encode(pa.array(values, kind)).to_pylist()
    ]


def test_texts() -> None:
    kind = pa.struct(
        [
            ("id", pa.int64()),
            ("x", pa.float64()),
            ("d", pa.decimal128(10, 2)),
            ("at", UTC),
            ("local", pa.timestamp("us")),
            ("day", pa.date32()),
            ("raw", pa.binary()),
            ("s", pa.string()),
            ("tags", pa.list_(pa.string())),
            ("m", pa.map_(pa.string(), pa.int8())),
            ("in", pa.struct([("y", pa.bool_())])),
            ("took", pa.duration("us")),
        ]
    )
    row = {
        "id": 1,
        "x": 2.0,
        "d": Decimal("1.20"),
        "at": datetime.datetime(2024, 1, 2, 3, 4, 5, 6, datetime.UTC),
        "local": datetime.datetime(2024, 1, 2),
        "day": datetime.date(2024, 1, 2),
        "raw": b"\0\xff",
        "s": 'é"\n',
        "tags": ["a", None],
        "m": [("k", 1), ("l", None)],
        "in": {"y": None},
        "took": datetime.timedelta(seconds=90, milliseconds=500),
    }
    assert written(kind, row, {}, None) == [
        '{"id":1,"x":2.0,"d":1.20,"at":"2024-01-02T03:04:05.000006Z",'
        '"local":"2024-01-02T00:00:00.000000","day":"2024-01-02","raw":"AP8=","s":"é\\"\\n",'
        '"tags":["a",null],"m":{"k":1,"l":null},"in":{},"took":"PT90.5S"}',
        "{}",
        None,
    ]
    assert written(pa.float64(), 1e16, 0.1, -0.0, 5e-324) == ["1e+16", "0.1", "-0.0", "5e-324"]


def test_null_lists_with_items_and_null_structs_with_values() -> None:
    """What lies under a null is not written, and not looked at."""
    validity = pa.py_buffer(b"\x05")
    items = pa.array([1.0, math.nan, 2.0])
    lists = pa.Array.from_buffers(
        pa.list_(pa.float64()),
        3,
        [validity, pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in range(4)))],
        children=[items],
    )
    texts = encoder(NO_SCHEMA, lists.type).encode(lists)
    assert texts.to_pylist() == [b"[1.0]", None, b"[2.0]"]
    structs = pa.Array.from_buffers(
        pa.struct([("x", pa.float64())]), 3, [validity], children=[items]
    )
    texts = encoder(NO_SCHEMA, structs.type).encode(structs)
    assert texts.to_pylist() == [b'{"x":1.0}', None, b'{"x":2.0}']


NAN = pa.struct([("l", pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.float64()))])))])


@pytest.mark.parametrize(
    ("kind", "rows", "row", "reason"),
    [
        (pa.float64(), [1.0, None, math.nan], 2, "the value is nan, which JSON does not have"),
        (pa.float32(), [-math.inf], 0, "the value is -inf"),
        (
            NAN,
            [{"l": []}, None, {"l": [None, {"m": [("a", 1.0), ("b", math.inf)]}]}],
            2,
            "field l[1].m.b is inf, which JSON does not have",
        ),
        (
            pa.map_(pa.string(), pa.float64()),
            [[("a", 1.0)], [("a{b", math.nan)]],
            1,
            "field a{b is nan, which JSON does not have",
        ),
        (pa.struct([("d", pa.date32())]), [{"d": 3_000_000}], 0, "field d is a date outside of"),
        (UTC, [2**62], 0, "the value is a time outside of the years 0 to 9999"),
    ],
)
def test_values_that_json_does_not_have(
    kind: pa.DataType, rows: list[Any], row: int, reason: str
) -> None:
    with pytest.raises(ValueRowError) as caught:
        written(kind, *rows)
    assert caught.value.row == row
    assert caught.value.reason.startswith(reason)


REQUIRED = {
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": ["string", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "opt": {"type": "integer"},
    },
    "required": ["id", "note"],
}
ROW = pa.struct(
    [("id", pa.int64()), ("note", pa.string()), ("tags", pa.list_(pa.string())), ("opt", pa.int8())]
)


def test_nulls_by_the_schema() -> None:
    full = {"id": 1, "note": None, "tags": None, "opt": None}
    assert written(ROW, full, None, schema=REQUIRED) == ['{"id":1,"note":null}', None]
    with pytest.raises(ValueRowError) as caught:
        written(ROW, full, None, full | {"id": None}, schema=REQUIRED)
    assert (caught.value.row, caught.value.reason) == (
        2,
        "field id is null, which the JSON Schema forbids",
    )
    with pytest.raises(ValueRowError) as caught:
        written(ROW, full, full | {"tags": ["a", None]}, schema=REQUIRED)
    assert (caught.value.row, caught.value.reason) == (
        1,
        "field tags[1] is null, which the JSON Schema forbids",
    )


@pytest.mark.parametrize("word", ["oneOf", "anyOf"])
def test_only_what_all_branches_require_is_required(word: str) -> None:
    fields = {"id": {"type": "integer"}, "key": {"type": "string"}, "token": {"type": "string"}}
    branches = [
        {"type": "object", "properties": fields, "required": required}
        for required in (["id", "key"], ["id", "token"])
    ]
    kind = pa.struct([("id", pa.int64()), ("key", pa.string()), ("token", pa.string())])
    row = {"id": 1, "key": None, "token": "t"}
    assert written(kind, row, schema={word: branches}) == ['{"id":1,"token":"t"}']
    with pytest.raises(ValueRowError, match="field id is null"):
        written(kind, row | {"id": None}, schema={word: branches})


CONNECT = "org.apache.kafka.connect.data."


@pytest.mark.parametrize(
    ("node", "kind", "value", "text"),
    [
        ({"type": "number"}, pa.int32(), 5, "5"),
        ({"type": "number"}, pa.decimal128(5, 2), Decimal("1.50"), "1.50"),
        ({"type": "string"}, pa.decimal128(5, 2), Decimal("1.50"), '"1.50"'),
        ({"type": "string"}, pa.binary(), b"hi", '"aGk="'),
        ({"type": "string"}, pa.date32(), datetime.date(2024, 1, 2), '"2024-01-02"'),
        ({"type": "string", "format": "date"}, pa.string(), "x", '"x"'),
        (
            {"type": "integer", "title": f"{CONNECT}Timestamp"},
            UTC,
            datetime.datetime(1970, 1, 1, 0, 0, 1, 2000, datetime.UTC),
            "1002",
        ),
        (
            {"type": "integer", "title": f"{CONNECT}Date"},
            pa.date32(),
            datetime.date(1970, 1, 3),
            "2",
        ),
        ({}, pa.string(), '{"a": [1]}', '{"a": [1]}'),
        ({}, pa.list_(pa.int8()), [1, None], "[1,null]"),
        ({"oneOf": [{"type": "null"}, {"type": "boolean"}]}, pa.bool_(), True, "true"),
    ],
)
def test_by_the_schema(node: Any, kind: pa.DataType, value: Any, text: str) -> None:
    assert written(kind, value, schema=node) == [text]


@pytest.mark.parametrize(
    ("node", "kind", "expected_error"),
    [
        (REQUIRED, pa.struct([("id", pa.int64())]), "requires the field note"),
        (
            REQUIRED,
            pa.struct([*ROW, ("tag", pa.int8())]),
            "the JSON Schema has no field tag: did you mean tags",
        ),
        (REQUIRED, pa.int64(), "the value is bigint, which cannot be written as an object"),
        ({"type": "integer"}, pa.string(), "cannot be written as integer"),
        ({"type": "integer"}, pa.float64(), "cannot be written as integer"),
        ({"type": "integer", "connect.type": "int8"}, pa.int64(), "cannot be written as integer"),
        ({"type": "string"}, pa.bool_(), "the value is boolean, which cannot be written as text"),
        ({"items": {"type": "integer"}}, pa.list_(pa.bool_()), r"field \[\] is bool"),
        ({}, pa.uint8(), "uint8 cannot be written as JSON"),
        ({}, pa.map_(pa.int8(), pa.int8()), "JSON has strings as keys, not tinyint"),
    ],
)
def test_types_that_do_not_fit_the_schema(
    node: Any, kind: pa.DataType, expected_error: str
) -> None:
    with pytest.raises(OptionError, match=expected_error):
        encoder(Schema("json", json.dumps(node)), kind)


@pytest.mark.parametrize(
    "number", ["0.00", "1.27", "1.28", "-1.28", "-1.29", "655.36", "9" * 36 + ".99", "-" + "9" * 36]
)
def test_connects_decimals_in_base64(number: str) -> None:
    """Bytes as Java's BigInteger has them: big-endian, two's complement, as few as will do."""
    node = {
        "type": "string",
        "connect.type": "bytes",
        "title": f"{CONNECT}Decimal",
        "connect.parameters": {"scale": "2"},
    }
    [text] = written(pa.decimal128(38, 2), Decimal(number), schema=node)
    digits = base64.b64decode(json.loads(text))
    unscaled = int(number.replace(".", "") if "." in number else f"{number}00")
    assert int.from_bytes(digits, "big", signed=True) == unscaled
    if len(digits) > 1:  # one byte less would not do
        with pytest.raises(OverflowError):
            unscaled.to_bytes(len(digits) - 1, "big", signed=True)
    read = decoder(Schema("json", json.dumps(node)), None, None).decode(pa.array([text.encode()]))
    assert read.values.to_pylist() == [Decimal(number)]
    narrow = decoder(Schema("json", json.dumps(node)), None, pa.decimal128(4, 2))
    read = narrow.decode(
        pa.array([text.encode(), b'"not base64"', b"1.5", b'"' + b"A" * 400 + b'"'])
    )
    assert read.bad_rows.tolist() == ([] if abs(unscaled) < 10**4 else [0]) + [1, 2, 3]


def test_json_text_is_checked() -> None:
    with pytest.raises(ValueRowError, match="must be JSON text, and is not JSON") as caught:
        written(pa.string(), "1", None, "{", schema={})
    assert caught.value.row == 2
    with pytest.raises(ValueRowError, match="must be JSON text"):
        written(pa.string(), "\ufeff1", schema={})


def test_the_schemas_of_types_with_required_fields() -> None:
    kind = pa.struct([pa.field("id", pa.int32(), nullable=False), ("name", pa.string())])
    assert json.loads(schema_of(kind, "orders-value").text) == {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "orders-value",
        "type": "object",
        "properties": {
            "id": {"type": "integer", "connect.type": "int32"},
            "name": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        },
        "required": ["id"],
        "additionalProperties": False,
    }
    with pytest.raises(OptionError, match="field a: uint8 cannot be written"):
        schema_of(pa.struct([("a", pa.uint8())]), "x")


def test_pandas_is_not_imported() -> None:
    """It would take half a second in each worker (see protocol/records/arrow.py)."""
    program = """
import sys
import numpy as np, pyarrow as pa
from sparkkafka.protocol.records.arrow import from_numpy
from sparkkafka.schemas.json.format import decoder, encoder, schema_of
from sparkkafka.schemas.values import Schema
kind = pa.struct([("a", pa.int64()), ("t", pa.timestamp("us", "UTC")), ("b", pa.binary()),
                  ("f", pa.float32()), ("l", pa.list_(pa.decimal128(5, 2))), ("d", pa.date32()),
                  ("m", pa.map_(pa.string(), pa.float64())), ("u", pa.duration("us"))])
some = pa.struct([each for each in kind if each.name not in "mu"])
text = b'{"a":1,"t":"2024-01-01T00:00:00Z","b":"aGk=","f":1,"l":[1.5],"d":"2024-01-01","x":1,'
text += b'"m":{"k":1},"u":"PT1S"}'
flat = pa.struct([each for each in kind if each.name in "atb"])
odd = b'{"a":1.0,"t":"2024-01-01T00:00:00.1234567Z","b":"aGk="}\\n'
for each, text, bad in ((kind, text, b"{"), (some, text, b"{"), (flat, odd, odd[:-4] + b'"}')):
    for rest in (False, True):
        texts = text * 100 + bad
        offsets = np.array([*range(0, len(texts), len(text)), len(texts)], np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(texts)]
        payloads = pa.Array.from_buffers(pa.binary(), 101, buffers)
        read = decoder(Schema("json", ""), None, each, rest=rest).decode(payloads)
        encoder(schema_of(each, "x"), each).encode(read.values)
        assert len(read.bad_rows) == (bad == b"{" or not rest)
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
