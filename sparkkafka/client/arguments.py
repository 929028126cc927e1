"""Arguments of the library's calls that are of the wrong kind: told in words, before they fail
somewhere inside, or on the wire."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from sparkkafka.client.metadata import TopicPartition
from sparkkafka.errors import OptionError

T = TypeVar("T")


def one_name(given: str, what: str) -> str:
    """A name, as text. Raises OptionError for anything else."""
    if not isinstance(given, str):
        raise OptionError(f"{what} is a name as text, got {given!r}")
    return given


def names(given: Iterable[str], what: str) -> list[str]:
    """The names of a call on several. A plain string would be taken for its letters."""
    if isinstance(given, str):
        raise OptionError(f"{what} is a list of names: write [{given!r}], not {given!r}")
    if not isinstance(given, Iterable) or isinstance(given, bytes | bytearray):
        raise OptionError(f"{what} is a list of names, got {given!r}")
    chosen = list(given)
    for one in chosen:
        if not isinstance(one, str):
            raise OptionError(f"{what} is a list of names as text; {one!r} in it is none")
    return chosen


def whole(given: int, what: str) -> int:
    """A whole number, which a bool is not. Raises OptionError for anything else."""
    try:
        if not isinstance(given, bool):
            return operator.index(given)  # NumPy's too
    except TypeError:
        pass
    raise OptionError(f"{what} is a whole number, got {given!r}")


def numbers(given: Iterable[int], what: str) -> list[int]:
    """The whole numbers of a call on several."""
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | bytearray):
        raise OptionError(f"{what} is a list of whole numbers, such as [1], got {given!r}")
    return [whole(one, f"each of {what}") for one in given]


def objects(given: Iterable[T], kind: type[T], what: str, example: str) -> list[T]:
    """The objects of a call on several. One alone may be a tuple, and be taken for its fields."""
    if isinstance(given, kind):
        raise OptionError(f"{what} is a list: write [{example}], not {example}")
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | bytearray):
        raise OptionError(f"{what} is a list such as [{example}], got {given!r}")
    return list(given)


def mapping(given: Mapping[Any, T], what: str, example: str) -> Mapping[Any, T]:
    """A mapping. Raises OptionError for anything else."""
    if not isinstance(given, Mapping):
        raise OptionError(f"{what} is a dict such as {{{example}}}, got {given!r}")
    return given


def partition(given: TopicPartition, what: str) -> TopicPartition:
    """A partition; a plain (topic, number) will do. Raises OptionError for what is none."""
    match given:
        case (str(topic), number):
            return TopicPartition(topic, whole(number, f"{what}: the partition of topic {topic}"))
    raise OptionError(f'{what}: a partition is TopicPartition("orders", 0), got {given!r}')


def partitions(given: Iterable[TopicPartition], what: str) -> list[TopicPartition]:
    """The partitions of a call on several."""
    rows = objects(given, TopicPartition, what, 'TopicPartition("orders", 0)')
    return [partition(row, what) for row in rows]


def setting_text(given: Any, where: str) -> str:
    """A setting's value as Kafka wants it: numbers and bools become text. `where` names the topic
    (or what has it) and the setting. Raises OptionError for other types."""
    if isinstance(given, str):
        return given
    if isinstance(given, bool):
        return "true" if given else "false"
    try:
        return str(operator.index(given))
    except TypeError:
        raise OptionError(
            f"{where}: a setting's value is text, a whole number or a bool, got {given!r}"
        ) from None
