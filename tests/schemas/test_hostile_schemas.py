"""Schemas made to harm: whoever may register one must not be able to stop a read."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pyarrow as pa
import pytest

from sparkkafka.errors import SchemaError
from sparkkafka.schemas import schema_errors
from sparkkafka.schemas.avro import format as avro
from sparkkafka.schemas.values import Decoder, Schema
from tests.support.waiting import processor_time

pytestmark = pytest.mark.slow


def record(*fields: dict[str, Any], name: str = "r") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def made(writer: Any, reader: Any = None) -> Decoder:
    read = None if reader is None else Schema("avro", json.dumps(reader))
    return avro.decoder(Schema("avro", json.dumps(writer)), read, None)


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        ("avro", record({"name": "\ud800", "type": "long"})),
        ("avro", record({"name": "\ud800", "type": "nothing"})),
        ("avro", {"type": "enum", "name": "t", "symbols": ["\ud800"]}),
        ("json", {"type": "object", "properties": {"\ud800": {"type": "integer"}}}),
        ("json", {"type": "object", "properties": {"\ud800": {"type": "\ud800"}}}),
    ],
)
def test_half_a_surrogate_pair(kind: str, schema: Any) -> None:
    with pytest.raises(SchemaError) as caught:
        import_module(f"sparkkafka.schemas.{kind}.format").decoder(
            Schema(kind, json.dumps(schema)), None, None
        )
    str(caught.value).encode()


def test_a_requirement_that_is_no_list() -> None:
    text = '{"type":"object","properties":{"a":{"type":"integer"}},"required":5}'
    decoder = import_module("sparkkafka.schemas.json.format").decoder(
        Schema("json", text), None, None
    )
    assert decoder.decode(pa.array([b'{"a":1}'])).values.to_pylist() == [{"a": 1}]


def test_reasons_with_a_long_name_are_cut() -> None:
    decoder = made(record({"name": "n" * 1_000_000, "type": "int"}))
    decoded = decoder.decode(pa.array([b"\x80"] * 500))
    assert len(decoded.reasons) == 500
    assert sum(map(len, decoded.reasons)) < 500 * 1000
    assert decoded.reasons[0].endswith("the payload ends in the middle of it")


def test_reasons_together_are_bounded() -> None:
    enum = {"type": "enum", "name": "e", "symbols": ["A"]}
    decoder = made(record({"name": "n" * 290, "type": enum}))
    decoded = decoder.decode(pa.array([b"\x02"] * 100_000))
    assert len(decoded.reasons) == 100_000
    assert sum({id(reason): len(reason) for reason in decoded.reasons}.values()) < 9 << 20


def test_a_message_with_a_long_name_is_short() -> None:
    with pytest.raises(SchemaError) as caught:
        made(record({"name": "n" * 1_000_000, "type": "nothing"}))
    assert len(str(caught.value)) <= 1000


def test_a_schema_that_many_names_refer_to_is_parsed_once() -> None:
    leaf = record(*({"name": f"f{i}", "type": "long"} for i in range(2000)), name="leaf")
    shared = Schema("avro", json.dumps(leaf))
    top = json.dumps(record({"name": "a", "type": "n7"}))
    schema = Schema("avro", top, tuple((f"n{i}", shared) for i in range(4000)))
    with processor_time(5):
        assert avro.arrow_type(schema).field("a").type.num_fields == 2000


def test_references_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkkafka.schemas.avro.schema._MAX_PARSED", 10_000)
    fields = [{"name": f"f{i}", "type": "long"} for i in range(1200)]
    references = tuple(
        (f"n{i}", Schema("avro", json.dumps(record(*fields, name=f"n{i}")))) for i in range(10)
    )
    with pytest.raises(SchemaError, match="more than 10,000 types, with its references"):
        avro.arrow_type(Schema("avro", '"long"', references))


def branches(count: int, *fields: dict[str, Any]) -> list[Any]:
    return ["null", *(record(*fields, name=f"r{i}") for i in range(count))]


def test_a_union_of_too_many_branches() -> None:
    with pytest.raises(SchemaError, match="field u: a union has more than 2,000 branches"):
        made(record({"name": "u", "type": branches(2000)}))


def test_a_union_of_many_branches() -> None:
    with processor_time(10):
        decoder = made(record({"name": "u", "type": branches(1000, {"name": "a", "type": "int"})}))
    decoded = decoder.decode(pa.array([b"\xd0\x0f\x0e"]))  # branch 1000
    assert decoded.values[0].as_py()["u"]["member999"] == {"a": 7}


def test_branches_times_fields_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_errors, "MAX_STEPS", schema_errors.MAX_STEPS // 100)
    many = ({"name": f"f{i}", "type": "int", "default": 0} for i in range(1000))
    writer = record({"name": "u", "type": branches(200)}, name="t")
    reader = record({"name": "u", "type": ["null", record(*many, name="other")]}, name="t")
    with pytest.raises(SchemaError, match="too many steps"):
        made(writer, reader)


def test_branches_times_a_default_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_errors, "MAX_STEPS", schema_errors.MAX_STEPS // 10)
    fields = [{"name": "m", "type": {"type": "map", "values": "int"}}, {"name": "z", "type": "int"}]
    default = {"m": {str(i): i for i in range(1000)}}
    reader = record({"name": "u", "type": branches(600, *fields), "default": default}, name="t")
    with pytest.raises(SchemaError, match="too many steps"):
        made(record(name="t"), reader)
