"""Fingerprints are those that fastavro computes."""

from __future__ import annotations

import json
from typing import Any

import fastavro.schema
import pytest

from sparkkafka.config.kinds import AVRO
from sparkkafka.errors import SchemaError
from sparkkafka.schemas.avro.schema import fingerprint
from sparkkafka.schemas.values import Schema

RECORD = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "doc": "text",
    "fields": [
        {"name": "id", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 1},
        {"name": "next", "type": ["null", "Order"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "other.Hash", "size": 4}},
        {"name": "kinds", "type": {"type": "array", "items": "Kind"}},
        {"name": "sums", "type": {"type": "map", "values": {"type": "string"}}},
        {"name": "late", "type": {"type": "record", "name": "In", "namespace": "", "fields": []}},
    ],
}


@pytest.mark.parametrize("schema", ["long", {"type": "string"}, ["null", "int"], RECORD])
def test_against_fastavro(schema: Any) -> None:
    canonical = fastavro.schema.to_parsing_canonical_form(schema)
    expected = fastavro.schema.fingerprint(canonical, "CRC-64-AVRO")
    ours = fingerprint(Schema(AVRO, json.dumps(schema)))
    assert ours == int.from_bytes(bytes.fromhex(expected), "little")


def test_the_value_of_the_specification() -> None:
    assert fingerprint(Schema(AVRO, '"null"')) == 0x63DD24E7CC258F8A


def test_a_schema_that_refers_to_others_is_an_error() -> None:
    other = Schema(AVRO, '"int"')
    with pytest.raises(SchemaError, match="refers to other schemas"):
        fingerprint(Schema(AVRO, '{"type": "A"}', (("A", other),)))
    with pytest.raises(SchemaError, match="a type record has no name"):
        fingerprint(Schema(AVRO, '{"type": "record"}'))
