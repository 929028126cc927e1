"""Schemas of a write, with a registry of one process."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparkkafka.config.formats import ColumnFormat, FormatOptions
from sparkkafka.config.registry import RegistryOptions
from sparkkafka.errors import OptionError, RegistryError
from sparkkafka.schemas.choice import encode_plan, reader_schema
from sparkkafka.schemas.registry.client import RegistryClient
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
        words = r"t-value has avro schemas \(version 1.* written as json: set valueFormat=avro, or"
        with (
            RegistryClient(RegistryOptions(url=small.url)) as registry,
            pytest.raises(OptionError, match=words),
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
