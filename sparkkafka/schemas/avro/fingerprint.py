"""The fingerprint of an Avro schema: CRC-64-AVRO of its Parsing Canonical Form.

Source: Avro's specification, "Transforming into Parsing Canonical Form" and "Schema Fingerprints".
"""

from __future__ import annotations

import json
from functools import cache, lru_cache
from typing import Any, Final

from sparkkafka.errors import SchemaError
from sparkkafka.schemas.avro.schema import json_of
from sparkkafka.schemas.bounds import schema_errors
from sparkkafka.schemas.values import Schema

_EMPTY: Final = 0xC15D213AA4D7A795
_NAMED: Final = ("record", "error", "enum", "fixed")
_PRIMITIVES: Final = frozenset(
    ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
)


@lru_cache(256)
def fingerprint(schema: Schema) -> int:
    """Return the schema's 64-bit fingerprint. Raises SchemaError for a schema that is invalid, or
    whose types are in other schemas."""
    with schema_errors("Avro schema"):
        if schema.references:
            raise SchemaError(
                "the Avro schema refers to other schemas, and a fingerprint is of one whole schema"
            )
        text = schema.text.strip()
        parsed = text if text in _PRIMITIVES else json_of(schema.text)
        return _crc(json.dumps(_canonical(parsed, ""), separators=(",", ":"), ensure_ascii=False))


@cache
def _table() -> tuple[int, ...]:
    """Return the checksum's step for each byte."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_EMPTY & -(value & 1))
        table.append(value)
    return tuple(table)


def _crc(text: str) -> int:
    """Return CRC-64-AVRO of the text in UTF-8."""
    value, table = _EMPTY, _table()
    for byte in text.encode():
        value = (value >> 8) ^ table[(value ^ byte) & 0xFF]
    return value


def _canonical(schema: Any, namespace: str) -> Any:
    """Return the canonical form of a type in this namespace: full names, only the attributes that
    parsing needs, in the order of the specification."""
    if isinstance(schema, list):
        return [_canonical(branch, namespace) for branch in schema]
    if isinstance(schema, str):
        return schema if schema in _PRIMITIVES else _full_name(schema, namespace)
    kind = schema["type"]
    if not isinstance(kind, str):  # {"type": {"type": …}}
        return _canonical(kind, namespace)
    if kind == "array":
        return {"type": kind, "items": _canonical(schema["items"], namespace)}
    if kind == "map":
        return {"type": kind, "values": _canonical(schema["values"], namespace)}
    if kind not in _NAMED:
        return _canonical(kind, namespace)
    name = schema["name"]
    if "." not in name:
        name = _full_name(name, schema.get("namespace", namespace) or "")
    form: dict[str, Any] = {"name": name, "type": kind}
    if kind == "enum":
        return {**form, "symbols": schema["symbols"]}
    if kind == "fixed":
        return {**form, "size": int(schema["size"])}
    inner = name.rpartition(".")[0]
    form["fields"] = [
        {"name": field["name"], "type": _canonical(field["type"], inner)}
        for field in schema["fields"]
    ]
    return form


def _full_name(name: str, namespace: str) -> str:
    """Return a name with its namespace, if it has one."""
    return name if "." in name or not namespace else f"{namespace}.{name}"
