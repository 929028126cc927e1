"""Where the columns of a record stand in a table. Needs neither Arrow nor numpy, so that processes
which only plan a write start fast."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowColumns:
    """Where the columns of a record stand in a table; None for those it does not have.

    Positions, not names: a table may hold a name twice, and the first one counts.
    """

    value: int
    key: int | None = None
    headers: int | None = None
    topic: int | None = None
    partition: int | None = None
    timestamp: int | None = None
    fixed_topic: str | None = None
