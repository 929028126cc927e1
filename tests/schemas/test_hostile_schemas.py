"""Schemas made to harm: whoever may register one must not be able to stop a read."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pyarrow as pa
import pytest

from sparkkafka.errors import SchemaError
from sparkkafka.schemas.avro import format as avro
from sparkkafka.schemas.values import Decoder, Schema


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
    decoder = made({"type": "enum", "name": "e" * 900, "symbols": ["A"]})
    decoded = decoder.decode(pa.array([b"\x02"] * 100_000))
    assert len(decoded.reasons) == 100_000
    assert sum({id(reason): len(reason) for reason in decoded.reasons}.values()) < 9 << 20


def test_a_message_with_a_long_name_is_short() -> None:
    with pytest.raises(SchemaError) as caught:
        made(record({"name": "n" * 1_000_000, "type": "nothing"}))
    assert len(str(caught.value)) <= 1000
