"""Tags of fields in a .proto: Confluent's option `(confluent.field_meta).tags`."""

from __future__ import annotations

from typing import Any

from sparkkafka.schemas.bounds import of_schema
from sparkkafka.schemas.protobuf.descriptors import file_of
from sparkkafka.schemas.protobuf.types import field_meta
from sparkkafka.schemas.values import Schema


@of_schema
def inline_tags(schema: Schema) -> dict[str, frozenset[str]]:
    """Tags by the fields' full names, `package.Message.field`: of the file's messages, and of all
    that these have. Raises SchemaError for a schema that cannot be used."""
    file = file_of(schema)
    found: dict[str, frozenset[str]] = {}
    seen: set[str] = set()
    waiting: list[Any] = [file.pool.FindMessageTypeByName(name) for name, _ in file.names()]
    while waiting:
        message = waiting.pop()
        if message.full_name in seen:
            continue
        seen.add(message.full_name)
        for field in message.fields:
            meta = field_meta(field)
            if meta is not None and meta.tags:
                found[field.full_name] = frozenset(meta.tags)
            if field.message_type is not None:
                waiting.append(field.message_type)
    return found
