"""The subject of a topic's schemas, by Confluent's three subject name strategies.

Sources: TopicNameStrategy, RecordNameStrategy and TopicRecordNameStrategy of Confluent's
kafka-schema-serializer.
"""

from __future__ import annotations

import json
import re
from typing import Any

from sparkkafka.config.formats import ColumnFormat
from sparkkafka.config.kinds import AVRO, JSON, RECORD_NAME, TOPIC_NAME
from sparkkafka.errors import SchemaError
from sparkkafka.schemas.avro.schema import json_of as parse_avro_schema
from sparkkafka.schemas.values import Schema


def needs_record_name(column: ColumnFormat) -> bool:
    """Whether `subject_of` needs the record's name."""
    return not column.subject and column.strategy != TOPIC_NAME


def subject_of(column: ColumnFormat, topic: str, record_name: str = "") -> str:
    """Return the subject of the column's schemas in this topic.

    `record_name` is the record's full name, if `needs_record_name`. Raises SchemaError without it.
    """
    if column.subject:
        return column.subject
    if column.strategy == TOPIC_NAME:
        return f"{topic}-{column.column}"
    if not record_name:
        raise SchemaError(
            f"{column.column}.subject.name.strategy={column.strategy} needs a schema with a name: "
            "a record of Avro, a message of Protobuf, or a JSON Schema with a title; set "
            f"{column.column}Subject, or the strategy {TOPIC_NAME}"
        )
    return record_name if column.strategy == RECORD_NAME else f"{topic}-{record_name}"


def record_name(schema: Schema) -> str:
    """Return the full name of an Avro schema (the type's for a primitive), or the title of a JSON
    Schema; "" if it has none, and for Protobuf, whose text would have to be compiled."""
    if schema.format not in (AVRO, JSON):
        return ""
    try:
        parsed = (parse_avro_schema if schema.format == AVRO else json.loads)(schema.text)
    except (ValueError, RecursionError):  # an Avro type may be written as a bare name
        name = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", schema.text.strip())
        return name[0] if name else ""
    if schema.format == AVRO:
        return _avro_name(parsed)
    title = parsed.get("title") if isinstance(parsed, dict) else None
    return title if isinstance(title, str) else ""


def _avro_name(parsed: Any) -> str:
    if isinstance(parsed, str):
        return parsed
    if not isinstance(parsed, dict):
        return ""
    kind, name, namespace = parsed.get("type"), parsed.get("name"), parsed.get("namespace")
    if kind not in ("record", "error", "enum", "fixed"):
        return kind if isinstance(kind, str) else ""
    if not isinstance(name, str):
        return ""
    if "." in name or not isinstance(namespace, str) or not namespace:
        return name
    return f"{namespace}.{name}"
