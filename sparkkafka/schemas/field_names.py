"""How messages name the fields of a schema, and the names that were probably meant."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection
from typing import Final

import pyarrow as pa

from sparkkafka.errors import OptionError, some
from sparkkafka.schemas.bounds import cut

MAX_PATH: Final = 300
"""The most characters of a field's path in messages: names and depth multiply its length."""


def label(path: str) -> str:
    """Return what messages call a field: "field customer.age", or "the value" for the outermost
    type."""
    return f"field {path}" if path else "the value"


def child_path(path: str, name: str) -> str:
    """Return the path of a field below `path`, cut to MAX_PATH."""
    return cut(f"{path}.{name}" if path else name, MAX_PATH)


def check_distinct(struct: pa.StructType, path: str) -> None:
    """Raises OptionError if a struct has two fields of one name."""
    for name, count in Counter(field.name for field in struct).items():
        if count > 1:
            raise OptionError(f"{label(child_path(path, name))} appears twice in the column")


def names_hint(name: str, known: Collection[str]) -> str:
    """Return what a message about an unknown name adds: "did you mean price? It has id, price"."""
    near = difflib.get_close_matches(name[:100], known, n=3)
    near = near or [other for other in known if other.lower() == name.lower()]
    names = some((cut(other, 200) for other in known), 20) or "none"
    return f"did you mean {' or '.join(near)}? It has {names}" if near else f"it has {names}"
