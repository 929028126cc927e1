"""A row of the option table: what `option_table` and `security_table` consist of."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from sparkkafka.config.kinds import Kind


class Status(enum.Enum):
    """What happens to an option that is given."""

    USED = "used"
    IGNORED = "ignored"  # accepted, one warning: it has no meaning here
    REFUSED = "refused"


class Side(enum.Enum):
    READ = "read"
    WRITE = "write"
    BOTH = "both"

    def covers(self, other: Side) -> bool:
        return self is Side.BOTH or other is Side.BOTH or self is other


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One row. `field` is "client.x", "fetch.x", "producer.x", "read.x", "security.x" or "write.x".

    `alias_of`: another name, librdkafka's, of the row of that name.
    """

    name: str
    side: Side
    status: Status
    doc: str
    kind: Kind | None = None
    field: str | None = None
    default_text: str | None = None  # where the default cannot be shown as a value
    secret: bool = False
    alias_of: str = ""

    @property
    def key(self) -> str:
        """The name as Spark hands it over: lower case."""
        return self.name.lower()


def used(name: str, side: Side, field: str, kind: Kind, doc: str, **more: Any) -> Option:
    return Option(name=name, side=side, status=Status.USED, field=field, kind=kind, doc=doc, **more)


def each(status: Status, side: Side, names: str, doc: str, **more: Any) -> list[Option]:
    return [Option(name=name, side=side, status=status, doc=doc, **more) for name in names.split()]
