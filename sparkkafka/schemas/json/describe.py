"""An Arrow type -> its JSON Schema: draft-07, the same text for the same type.

Nullability becomes oneOf with null, and what JSON has no type for gets Kafka Connect's hints, both
as Connect's JsonSchemaData writes them. `document.py` reads the type back, but for durations, which
are strings to it. Objects are closed (additionalProperties false): by Confluent's rules of
compatibility optional fields can then be added.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from sparkkafka.errors import OptionError
from sparkkafka.schemas.json import plan
from sparkkafka.schemas.values import type_name

_CONNECT = "org.apache.kafka.connect.data."


def schema_text(given: pa.DataType, name: str) -> str:
    """The JSON Schema's text. Raises OptionError for a type that JSON has nothing for."""
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": name}
    return json.dumps({**head, **_described(given, "")}, ensure_ascii=False)


def _described(given: pa.DataType, path: str) -> dict[str, Any]:
    types = pa.types
    if types.is_struct(given):
        properties = {}
        for each in given:
            below = f"{path}.{each.name}" if path else each.name
            if each.name in properties:
                raise OptionError(f"the field {below} is there twice")
            properties[each.name] = _field(each, below)
        required = [each.name for each in given if not each.nullable]
        return {
            "type": "object",
            "properties": properties,
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }
    if types.is_map(given):
        if not types.is_string(given.key_type):
            raise OptionError(
                f"field {path}: JSON has strings as keys, not {type_name(given.key_type)}"
            )
        return {"type": "object", "additionalProperties": _field(given.item_field, f"{path}{{}}")}
    if types.is_list(given):
        return {"type": "array", "items": _field(given.value_field, f"{path}[]")}
    kind = plan.kind_of_type(given)
    if kind is None:
        raise OptionError(f"field {path}: {type_name(given)} cannot be written as JSON")
    if kind == plan.INTEGER:
        return {"type": "integer", "connect.type": f"int{given.bit_width}"}
    if kind == plan.FLOAT:
        return {"type": "number", "connect.type": f"float{given.bit_width}"}
    if kind == plan.DECIMAL:
        return {
            "type": "number",
            "title": f"{_CONNECT}Decimal",
            "connect.type": "bytes",
            "connect.version": 1,
            "connect.parameters": {
                "scale": str(given.scale),
                "connect.decimal.precision": str(given.precision),
            },
        }
    return dict(_PLAIN[kind])


def _field(each: pa.Field, path: str) -> dict[str, Any]:
    described = _described(each.type, path)
    if not each.nullable or described == _PLAIN[plan.NULL]:
        return described
    return {"oneOf": [{"type": "null"}, described]}


_PLAIN: dict[str, dict[str, Any]] = {
    plan.BOOL: {"type": "boolean"},
    plan.LENIENT: {"type": "string"},
    plan.BINARY: {"type": "string", "contentEncoding": "base64", "connect.type": "bytes"},
    plan.DATE: {"type": "string", "format": "date"},
    plan.TIMESTAMP: {"type": "string", "format": "date-time"},
    plan.LOCAL_TIMESTAMP: {"type": "string", "format": "local-date-time"},
    plan.DURATION: {"type": "string", "format": "duration"},
    plan.NULL: {"type": "null"},
}
