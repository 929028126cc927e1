"""The subjects of schemas, by strategy."""

from __future__ import annotations

import pytest

from sparkkafka.config.formats import ColumnFormat
from sparkkafka.config.kinds import AVRO, JSON, PROTOBUF
from sparkkafka.errors import SchemaError
from sparkkafka.schemas.registry.subjects import needs_record_name, record_name, subject_of
from sparkkafka.schemas.values import Schema


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
    assert needs_record_name(column) == ("Order" in subject)


def test_a_record_without_a_name() -> None:
    with pytest.raises(SchemaError, match=r"key\.subject\.name\.strategy=record needs a schema"):
        subject_of(ColumnFormat(column="key", strategy="record"), "orders")


@pytest.mark.parametrize(
    ("kind", "text", "name"),
    [
        (AVRO, '{"type": "record", "name": "Order", "namespace": "shop"}', "shop.Order"),
        (AVRO, '{"type": "record", "name": "shop.Order", "namespace": "x"}', "shop.Order"),
        (AVRO, '{"type": "enum", "name": "Order"}', "Order"),
        (AVRO, '{"type": "fixed", "name": "Order", "namespace": ""}', "Order"),
        (AVRO, '// made\n{"type": "record", "name": /* new */ "Order"}', "Order"),
        (AVRO, '{"type": "record"}', ""),
        (AVRO, '{"type": "long"}', "long"),
        (AVRO, '{"type": "array", "items": "long"}', "array"),
        (AVRO, '"long"', "long"),
        (AVRO, "long", "long"),
        (AVRO, '["null", "long"]', ""),
        (AVRO, "{", ""),
        (JSON, '{"title": "Order", "type": "object"}', "Order"),
        (JSON, '{"title": 7}', ""),
        (JSON, "true", ""),
        (PROTOBUF, "message Order {}", ""),
    ],
)
def test_the_names_of_records(kind: str, text: str, name: str) -> None:
    assert record_name(Schema(kind, text)) == name
