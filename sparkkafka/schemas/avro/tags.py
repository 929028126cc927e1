"""Tags of fields in an Avro schema: Confluent's property `confluent:tags`."""

from __future__ import annotations

import json
from typing import Any

from sparkkafka.schemas.avro.schema import ARRAY, MAP, RECORD
from sparkkafka.schemas.values import Schema


def inline_tags(schema: Schema) -> dict[str, frozenset[str]]:
    """Tags by the fields' full names, `namespace.Record.field`, of all texts of the schema."""
    found: dict[str, frozenset[str]] = {}
    for text in _texts(schema):
        try:
            waiting = [(json.loads(text), "")]
        except (ValueError, RecursionError):  # whoever uses the schema says what is wrong with it
            continue
        while waiting:
            node, namespace = waiting.pop()
            if isinstance(node, list):
                waiting += [(branch, namespace) for branch in node]
            elif not isinstance(node, dict):
                continue
            elif node.get("type") in (ARRAY, MAP):
                waiting.append((node.get("items", node.get("values")), namespace))
            elif node.get("type") == RECORD:
                name = _full_name(node, namespace)
                for field in _rows(node.get("fields")):
                    if not isinstance(field, dict):
                        continue
                    tags = frozenset(
                        tag for tag in _rows(field.get("confluent:tags")) if isinstance(tag, str)
                    )
                    if tags:
                        found[f"{name}.{field.get('name')}"] = tags
                    waiting.append((field.get("type"), name.rpartition(".")[0]))
            elif isinstance(node.get("type"), dict | list):
                waiting.append((node["type"], namespace))
    return found


def _texts(schema: Schema) -> list[str]:
    """Each text once."""
    found: dict[str, None] = {}
    waiting = [schema]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            found[one.text] = None
            waiting += [reference for _, reference in one.references]
    return list(found)


def _full_name(record: dict[str, Any], namespace: str) -> str:
    name = str(record.get("name"))
    own = record.get("namespace", namespace)
    return name if "." in name or not isinstance(own, str) or not own else f"{own}.{name}"


def _rows(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
