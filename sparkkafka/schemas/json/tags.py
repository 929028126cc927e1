"""Tags of properties in a JSON Schema: Confluent's keyword `confluent:tags`."""

from __future__ import annotations

import json
from typing import Any

from sparkkafka.schemas.values import Schema

_DEFINITIONS = ("definitions", "$defs")


def inline_tags(schema: Schema) -> dict[str, frozenset[str]]:
    """Tags by the properties' paths, `$.customer.email`. A path in a definition, or in a schema
    that is referred to, begins with its name."""
    found: dict[str, frozenset[str]] = {}
    schemas = [("$", schema)]
    seen: set[int] = set()
    while schemas:
        root, one = schemas.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        schemas += one.references
        try:
            waiting: list[tuple[Any, str]] = [(json.loads(one.text), root)]
        except (ValueError, RecursionError):  # whoever uses the schema says what is wrong with it
            continue
        while waiting:
            node, path = waiting.pop()
            if isinstance(node, list):
                waiting += [(part, path) for part in node]
            if not isinstance(node, dict):
                continue
            tags = node.get("confluent:tags")
            if isinstance(tags, list):
                found[path] = frozenset(tag for tag in tags if isinstance(tag, str))
            for word, part in node.items():
                if word == "properties" and isinstance(part, dict):
                    waiting += [(below, f"{path}.{name}") for name, below in part.items()]
                elif word in _DEFINITIONS and isinstance(part, dict):
                    waiting += [(below, name) for name, below in part.items()]
                else:
                    waiting.append((part, path))
    return found
