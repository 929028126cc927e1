"""Plain values that every part of the client speaks of: partitions, offsets, brokers."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

from sparkkafka.errors import OptionError

MOST_NAME_BYTES = 32_767
"""Longer texts have no place in a request; brokers allow much less."""


SHOWN_NAME = 40  # characters of a name that is none, in its error


Address = tuple[str, int]
"""Host and port of a broker."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def checked_topic(given: Any) -> str:
    """A topic's name that a request can hold: one that cannot would spoil what is asked with it.

    Which names are legal is for the brokers to say (INVALID_TOPIC_EXCEPTION). Raises OptionError.
    """
    if not isinstance(given, str) or not given:
        raise OptionError(f"topic must be the name of a topic, got {given!r}")
    # Most names are done here.
    if given.isascii() and len(given) <= MOST_NAME_BYTES:
        return given
    try:
        size_bytes = len(given.encode())
    except UnicodeEncodeError as error:
        why = f"UTF-8 cannot express it ({error.reason})"
    else:
        if size_bytes <= MOST_NAME_BYTES:
            return given
        why = f"it takes {size_bytes} bytes"
    shown = repr(given if len(given) <= SHOWN_NAME else given[:SHOWN_NAME] + "…")
    raise OptionError(
        f"{shown} is no topic's name: {why}; names have 1 to 249 characters of a-z A-Z 0-9 . _ -"
    )


def offset_number(given: Any) -> int | None:
    """An offset as int; None for what cannot be one."""
    if isinstance(given, bool):
        return None
    try:
        number = operator.index(given)
    except TypeError:
        return None
    return number if 0 <= number < 1 << 63 else None


class OffsetAndMetadata(NamedTuple):
    """An offset to commit, or one that is committed: the next one to read. Beside it a text (4096
    characters at most) and the leader epoch of the record before it (None: not known)."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


class Broker(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"broker {self.node_id} ({self.host}:{self.port})"


def some_of(rows: Iterable[object], most: int = 5, separator: str = ", ") -> str:
    """The first rows, and how many more there are: "a, b and 7 more"."""
    texts = [str(row) for row in rows]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more


def some_topics(names: Iterable[str] | None) -> str:
    """Topics for a message: "topic a", "topics a, b and 7 more"."""
    if names is None:
        return "all topics"
    listed = list(names)
    if not listed:
        return "the brokers"
    return f"topic{'' if len(listed) == 1 else 's'} {some_of(listed)}"


def some_partitions(partitions: Iterable[TopicPartition]) -> str:
    """Partitions for a message: "a-0, a-1 and 7 more", or "nothing"."""
    return some_of(sorted(partitions)) or "nothing"
