"""Schemas of a write, with a registry of one process."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparkkafka.config import kinds
from sparkkafka.config.formats import ColumnFormat, FormatOptions
from sparkkafka.config.registry import RegistryOptions
from sparkkafka.errors import OptionError, RegistryError, SchemaError
from sparkkafka.schemas.registry.client import RegistryClient
from sparkkafka.schemas.schema_choice import encode_plan, reader_schema, record_name, subject_of
from sparkkafka.schemas.values import Schema
from tests.schemas.small_registry import small_registry

COLUMN = ColumnFormat(column="value", format="json")
ROWS = pa.struct([("id", pa.int64())])
AVRO = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'


@pytest.mark.parametrize("register", [False, True])
def test_a_subject_of_another_format(register: bool) -> None:
    with small_registry() as small:
        small.add("t-value", AVRO)
        small.incompatible = ["unknown type: [record]"]
        formats = FormatOptions(value=COLUMN, auto_register_schemas=register)
        message = (
            r"t-value has avro schemas \(version 1.* written as json: set valueFormat=avro, or"
        )
        with (
            RegistryClient(RegistryOptions(url=small.url)) as registry,
            pytest.raises(OptionError, match=message),
        ):
            encode_plan(formats, COLUMN, "t", ROWS, registry)


def test_a_refusal_in_the_same_format_stays() -> None:
    with small_registry() as small:
        small.add("t-value", "{}", "JSON")
        small.incompatible = ["id is new"]
        formats = FormatOptions(value=COLUMN, auto_register_schemas=True)
        with (
            RegistryClient(RegistryOptions(url=small.url)) as registry,
            pytest.raises(RegistryError, match=r"id is new\n.* made from the rows' type"),
        ):
            encode_plan(formats, COLUMN, "t", ROWS, registry)


def test_a_message_that_is_not_there() -> None:
    text = 'syntax = "proto3"; message Order { int64 id = 1; }'
    column = ColumnFormat(column="key", format="protobuf", schema=text, message="Nope")
    with pytest.raises(OptionError, match="option keySchemaMessage: the schema has no message 'No"):
        reader_schema(column, "t", None)


# --- subjects by strategy -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "subject"),
    [
        (ColumnFormat(column="value"), "orders-value"),
        (ColumnFormat(column="key"), "orders-key"),
        (ColumnFormat(column="value", strategy="record"), "shop.Order"),
        (ColumnFormat(column="key", strategy="topic-record"), "orders-shop.Order"),
        (ColumnFormat(column="value", strategy="record", subject="mine"), "mine"),
    ],
)
def test_strategies(column: ColumnFormat, subject: str) -> None:
    assert subject_of(column, "orders", "shop.Order") == subject


def test_a_record_without_a_name() -> None:
    with pytest.raises(SchemaError, match=r"key\.subject\.name\.strategy=record needs a schema"):
        subject_of(ColumnFormat(column="key", strategy="record"), "orders")


@pytest.mark.parametrize(
    ("kind", "text", "name"),
    [
        (
            kinds.AVRO,
            '{"type": "record", "name": "Order", "namespace": "shop", "fields": []}',
            "shop.Order",
        ),
        (
            kinds.AVRO,
            '{"type": "record", "name": "shop.Order", "namespace": "x", "fields": []}',
            "shop.Order",
        ),
        (kinds.AVRO, '{"type": "enum", "name": "Order", "symbols": ["A"]}', "Order"),
        (kinds.AVRO, '{"type": "fixed", "name": "Order", "namespace": "", "size": 1}', "Order"),
        (
            kinds.AVRO,
            '// made\n{"type": "record", "name": /* new */ "Order", "fields": []}',
            "Order",
        ),
        (kinds.AVRO, '{"type": "record"}', ""),
        (kinds.AVRO, '{"type": "long"}', "long"),
        (kinds.AVRO, '{"type": "array", "items": "long"}', "array"),
        (kinds.AVRO, '"long"', "long"),
        (kinds.AVRO, "long", "long"),
        (kinds.AVRO, '["null", "long"]', ""),
        (kinds.AVRO, "{", ""),
        (kinds.JSON, '{"title": "Order", "type": "object"}', "Order"),
        (kinds.JSON, '{"title": 7}', ""),
        (kinds.JSON, "true", ""),
        (kinds.PROTOBUF, "message Order {}", ""),
    ],
)
def test_the_names_of_records(kind: str, text: str, name: str) -> None:
    assert record_name(Schema(kind, text)) == name
