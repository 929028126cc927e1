"""Which columns of a table are written as what of a record.

Needs neither Arrow nor numpy, so that processes which only plan a write start fast; the caller, who
knows the table's kind of schema, checks types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sparkkafka.errors import OptionError


@dataclass(frozen=True)
class InputColumns:
    """The positions of a record's columns in a table, None for those that it lacks. (A table may
    have a name twice: the first one counts.)"""

    value: int
    key: int | None = None
    headers: int | None = None
    topic: int | None = None
    partition: int | None = None
    timestamp: int | None = None
    fixed_topic: str | None = None


def find_columns(
    names: Sequence[str],
    topic: str | None,
    fits: Callable[[str, int], bool],
    missing: Mapping[str, str],
) -> InputColumns:
    """Finds the columns; names count in their exact case, other columns are ignored.

    `fits` says whether the column of this name and position is written, or raises OptionError for
    its type. `missing` has the messages for a table without value and without topic, in the order
    of the checks. With a `topic` the column topic is ignored, whatever its type.
    """
    positions: dict[str, int] = {}
    for number, name in enumerate(names):
        positions.setdefault(name, number)

    def find(name: str) -> int | None:
        position = positions.get(name)
        return position if position is not None and fits(name, position) else None

    found: dict[str, int] = {}
    for name, words in missing.items():
        if name == "topic" and topic is not None:
            continue
        at = find(name)
        if at is None:
            raise OptionError(words)
        found[name] = at
    return InputColumns(
        value=found["value"],
        key=find("key"),
        headers=find("headers"),
        topic=found.get("topic"),
        partition=find("partition"),
        timestamp=find("timestamp"),
        fixed_topic=topic,
    )
