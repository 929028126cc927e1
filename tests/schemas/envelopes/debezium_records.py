"""Records as Debezium's Postgres connector writes them, and their schemas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def connect_field(
    name: str, kind: str, semantic: str = "", *, optional: bool = True, **parameters: str
) -> dict[str, Any]:
    """A field of Connect's schema in JSON."""
    return {
        "type": kind,
        "optional": optional,
        **({"name": semantic, "version": 1} if semantic else {}),
        **({"parameters": parameters} if parameters else {}),
        "field": name,
    }


def connect_envelope(columns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The schema beside the payload of a table's changes."""
    row = {"type": "struct", "fields": list(columns), "optional": True, "name": "s.t.Value"}
    source = [
        connect_field("version", "string"),
        connect_field("connector", "string"),
        connect_field("ts_ms", "int64"),
        connect_field("snapshot", "string", "io.debezium.data.Enum", allowed="true,last,false"),
        connect_field("table", "string"),
        connect_field("lsn", "int64"),
    ]
    transaction = [
        connect_field("id", "string"),
        connect_field("total_order", "int64"),
        connect_field("data_collection_order", "int64"),
    ]
    return {
        "type": "struct",
        "fields": [
            {**row, "field": "before"},
            {**row, "field": "after"},
            {"type": "struct", "fields": source, "optional": False, "field": "source"},
            {"type": "struct", "fields": transaction, "optional": True, "field": "transaction"},
            connect_field("op", "string", optional=False),
            connect_field("ts_ms", "int64"),
            connect_field("ts_us", "int64"),
        ],
        "optional": False,
        "name": "s.t.Envelope",
    }


def payload(op: str, before: Any, after: Any, *, lsn: int = 1) -> dict[str, Any]:
    """An envelope of the table t."""
    source = {"version": "3.2.0.Final", "connector": "postgresql", "ts_ms": 1_700_000_000_000}
    source |= {"snapshot": "false", "table": "t", "lsn": lsn}
    transaction = {"id": "7:1", "total_order": 1, "data_collection_order": 1}
    return {
        "before": before,
        "after": after,
        "source": source,
        "transaction": transaction,
        "op": op,
        "ts_ms": 1_700_000_000_001,
        "ts_us": 1_700_000_000_001_002,
    }


def with_schema(schema: Any, value: Any) -> bytes:
    """As Connect's JsonConverter writes a value."""
    return json.dumps({"schema": schema, "payload": value}, separators=(",", ":")).encode()


def avro_type(kind: Any) -> Any:
    """(type, semantic type) or a type, as Confluent's AvroConverter writes it, optional."""
    if isinstance(kind, tuple):
        kind, semantic, *more = kind
        kind = {"type": kind, "connect.version": 1, "connect.name": semantic}
        for properties in more:
            kind.update(properties)
    return kind


def avro_envelope(columns: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The Avro schema of a table's changes; the first column is its key."""
    fields: list[Any] = [{"name": columns[0][0], "type": avro_type(columns[0][1])}]
    for name, kind in columns[1:]:
        fields.append({"name": name, "type": ["null", avro_type(kind)], "default": None})
    row = {"type": "record", "name": "Value", "fields": fields, "connect.name": "s.t.Value"}
    source = {
        "type": "record",
        "name": "Source",
        "namespace": "io.debezium.connector.postgresql",
        "fields": [
            {"name": "version", "type": "string"},
            {"name": "connector", "type": "string"},
            {"name": "ts_ms", "type": "long"},
            {"name": "snapshot", "type": ["null", "string"], "default": None},
            {"name": "table", "type": "string"},
            {"name": "lsn", "type": ["null", "long"], "default": None},
        ],
    }
    transaction = {
        "type": "record",
        "name": "block",
        "namespace": "event",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "total_order", "type": "long"},
            {"name": "data_collection_order", "type": "long"},
        ],
    }
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": "s.t",
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": source},
            {"name": "transaction", "type": ["null", transaction], "default": None},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"], "default": None},
            {"name": "ts_us", "type": ["null", "long"], "default": None},
        ],
        "connect.name": "s.t.Envelope",
    }
