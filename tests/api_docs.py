"""docs/client-api.md: every call of the client library, from the signatures and docstrings.

`python -m tests.api_docs` writes it anew; a test checks that it is current.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkkafka import client

PAGE = Path(__file__).resolve().parents[1] / "docs" / "client-api.md"

_FIRST = ("Consumer", "Records", "Record", "Producer", "Delivery", "TableDelivery", "Admin")
_GIVEN = ("AlterConfigOp", "ConfigResource", "OffsetAndMetadata", "TopicPartition")
_HEAD = """# The client library, call by call

What [client.md](client.md) shows by examples, in full: names, defaults and the first words of each
docstring (`help(…)` has the rest, with the errors raised). All names are in `sparkkafka.client`.
Where there is a `timeout_s`, None stands for `default.api.timeout.ms`, or what the docstring says.
Made by `python -m tests.api_docs`.
"""


def page() -> str:
    rest = sorted(set(client.__all__) - set(_FIRST))
    sections = (_section(name, getattr(client, name)) for name in (*_FIRST, *rest))
    return "\n".join((_HEAD, *sections))


def _section(name: str, cls: type) -> str:
    lines = [f"## {name}", "", _text(cls, whole=True), ""]
    if fields := _fields(cls):
        lines.append(
            f"`{name}{_signature(cls)}`"
            if _is_made_by_users(cls)
            else f"Fields: {', '.join(fields)}"
        )
        lines.append("")
    lines += [f"- {row}" for row in _calls(cls)]
    return "\n".join(lines).rstrip() + "\n"


def _calls(cls: type) -> Iterator[str]:
    for name, found in inspect.getmembers(cls):
        if name.startswith("_") or hasattr(tuple, name) or f"`{name}`" in _fields(cls):
            continue
        if isinstance(found, property):
            yield f"`{name}`: {_text(found)}"
        elif callable(found):
            yield f"`{name}{_signature(found)}`: {_text(found)}"


def _fields(cls: Any) -> list[str]:
    if dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls)]
    else:
        names = list(getattr(cls, "_fields", ()))
    return [f"`{name}`" for name in names if not name.startswith("_")]


def _is_made_by_users(cls: type) -> bool:
    return cls.__name__.startswith("New") or cls.__name__ in _GIVEN


def _signature(found: Any) -> str:
    signature = inspect.signature(found)
    rows = [
        row.replace(annotation=inspect.Parameter.empty)
        for row in signature.parameters.values()
        if row.name != "self"
    ]
    returned = signature.return_annotation
    bare = str(inspect.Signature(rows))
    bare = bare.replace("<factory>", "{}")
    nothing = ("None", None, inspect.Signature.empty)
    return bare if returned in nothing else f"{bare} -> {returned}"


def _text(found: Any, *, whole: bool = False) -> str:
    """The docstring's first paragraph on one line, or all of them."""
    text = inspect.getdoc(found) or ""
    paragraphs = [re.sub(r"\s+", " ", part).strip() for part in text.split("\n\n")]
    return "\n\n".join(paragraphs) if whole else paragraphs[0]


if __name__ == "__main__":
    PAGE.write_text(page())
