"""Checks arguments of the library's calls and says in words what is wrong with them. Also maps a
table's columns to a record's fields."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from sparkkafka.client.values import OffsetAndMetadata, TopicPartition, offset_number
from sparkkafka.config.kinds import INT32_MAX
from sparkkafka.errors import OptionError

T = TypeVar("T")


class NotPickled:
    """A client: its connections and threads stay where they are."""

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(
            f"{'an' if name[0] in 'AEIOU' else 'a'} {name} cannot be pickled or copied: it has "
            "connections. Make one where it is used (in the task or the process), from the same "
            "settings"
        )


def checked_name(given: str, what: str) -> str:
    """A name, as text. Raises OptionError for anything else."""
    if not isinstance(given, str):
        raise OptionError(f"{what} is a name as text, got {given!r}")
    return given


def checked_principal(given: Any, what: str) -> tuple[str, str]:
    """User:alice as its type and its name. Raises OptionError."""
    kind, _, name = checked_name(given, what).partition(":")
    if not kind or not name:
        hint = f": did you mean {f'User:{given}'!r}?" if given and ":" not in given else ""
        raise OptionError(f"{what} is written as User:alice, got {given!r}{hint}")
    return kind, name


def checked_choice(given: str, allowed: Iterable[str], what: str) -> str:
    """One of some names, in their exact spelling. Raises OptionError, with the nearest, if not."""
    known = list(allowed)
    if isinstance(given, str) and given in known:
        return given
    from difflib import get_close_matches  # few make this mistake

    by_plain_name = {plain_name(name): name for name in known}
    near = (
        get_close_matches(plain_name(given), by_plain_name, n=1) if isinstance(given, str) else []
    )
    hint = f": did you mean {by_plain_name[near[0]]!r}?" if near else ""
    raise OptionError(f"{what} must be one of {', '.join(known)}, got {given!r}{hint}")


def plain_name(name: str) -> str:
    """A name of Kafka's as others write it, for comparisons: DescribeConfigs, describe-configs."""
    return name.lower().replace("_", "").replace("-", "")


def _is_list(given: Any) -> bool:
    """Whether it has items of its own: text has letters, and a mapping has values besides, which
    would be ignored."""
    return isinstance(given, Iterable) and not isinstance(
        given, str | bytes | bytearray | memoryview | Mapping
    )


def checked_names(given: Iterable[str], what: str) -> list[str]:
    """The names of a call on several. A plain string would be taken for its letters."""
    if isinstance(given, str):
        raise OptionError(f"{what} is a list of names: write [{given!r}], not {given!r}")
    if not _is_list(given):
        raise OptionError(f"{what} is a list of names, got {given!r}")
    chosen = list(given)
    for one in chosen:
        if not isinstance(one, str):
            raise OptionError(f"{what} is a list of names as text; {one!r} in it is none")
    return chosen


def checked_int(given: int, what: str) -> int:
    """A whole number, which a bool is not. Raises OptionError for anything else."""
    try:
        if not isinstance(given, bool):
            return operator.index(given)  # NumPy's too
    except TypeError:
        pass
    raise OptionError(f"{what} is a whole number, got {given!r}")


def without_point(given: Any) -> Any:
    """A float that is a whole number (NumPy and pandas make such) as int, all else as it is."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


def checked_ints(given: Iterable[int], what: str) -> list[int]:
    """The whole numbers of a call on several."""
    if not _is_list(given):
        raise OptionError(f"{what} is a list of whole numbers, such as [1], got {given!r}")
    return [checked_int(one, f"each of {what}") for one in given]


def checked_list(given: Iterable[T], kind: type[T], what: str, example: str) -> list[T]:
    """The objects of a call on several. One alone may be a tuple, and be taken for its fields."""
    if isinstance(given, kind):
        raise OptionError(f"{what} is a list: write [{example}], not {example}")
    if not _is_list(given):
        raise OptionError(f"{what} is a list such as [{example}], got {given!r}")
    return list(given)


def checked_mapping(given: Mapping[Any, T], what: str, example: str) -> Mapping[Any, T]:
    """A mapping. Raises OptionError for anything else."""
    if not isinstance(given, Mapping):
        raise OptionError(f"{what} is a dict such as {{{example}}}, got {given!r}")
    return given


def checked_flag(given: bool, what: str) -> bool:
    """True or False: any text would count as True. Raises OptionError for anything else."""
    if not isinstance(given, bool):
        raise OptionError(f"{what} is True or False, got {given!r}")
    return given


def checked_function(given: Callable[..., T] | None, what: str) -> Callable[..., T] | None:
    """Something to call, or None. Raises OptionError for anything else."""
    if given is not None and not callable(given):
        raise OptionError(f"{what} is a function, got {given!r}")
    return given


def checked_partition(given: TopicPartition, what: str) -> TopicPartition:
    """A partition; a plain (topic, number) will do. Raises OptionError for what is none."""
    match given:
        case (str(topic), number):
            found = checked_int(number, f"{what}: the partition of topic {topic}")
            if not 0 <= found <= INT32_MAX:
                raise OptionError(
                    f"{what}: the partition of topic {topic} is from 0 to {INT32_MAX}, got {found}"
                )
            return TopicPartition(topic, found)
    raise OptionError(f'{what}: a partition is TopicPartition("orders", 0), got {given!r}')


def checked_partitions(given: Iterable[TopicPartition], what: str) -> list[TopicPartition]:
    """The partitions of a call on several."""
    rows = checked_list(given, TopicPartition, what, 'TopicPartition("orders", 0)')
    return [checked_partition(row, what) for row in rows]


def offset_to_commit(
    tp: TopicPartition, given: int | OffsetAndMetadata, what: str
) -> OffsetAndMetadata:
    """An offset for a group, with what is kept beside it; a whole number, also as float, will do.

    Raises OptionError, also for one below 0: -1 and -2 have a meaning for `seek` alone.
    """
    row = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
    offset = offset_number(without_point(row.offset))
    if offset is None:
        raise OptionError(
            f"{what}: cannot commit offset {row.offset!r} of {tp}; give a whole number, at least 0"
        )
    if row.metadata is not None and not isinstance(row.metadata, str):
        raise OptionError(
            f"{what}: the metadata beside offset {offset} of {tp} is text, got {row.metadata!r}"
        )
    epoch = row.leader_epoch
    if epoch is not None:
        epoch = checked_int(epoch, f"{what}: the leader_epoch beside offset {offset} of {tp}")
        if not -1 <= epoch <= INT32_MAX:
            raise OptionError(
                f"{what}: the leader_epoch beside offset {offset} of {tp} is not negative, got "
                f"{epoch}"
            )
    return OffsetAndMetadata(offset, row.metadata or "", epoch)


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


# --- of records ---------------------------------------------------------------------------------

HEADER_PAIRS = "(key, value) pairs: a str, and bytes or a str (sent as UTF-8) or None"
HEADER_NUMBERS_BYTES = 10  # the most that the lengths of one header take


def as_bytes(name: str, given: Any) -> bytes:
    """The bytes to send. Raises OptionError for what is neither text nor bytes."""
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError as error:
            raise OptionError(f"{name} is text that UTF-8 cannot express: {error}") from error
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise OptionError(
        f"{name} must be bytes, bytearray, memoryview, str or None, got {type(given).__name__}: "
        "convert it first"
    )


def checked_headers(headers: Any) -> tuple[list[tuple[str, bytes | None]], int]:
    """Headers as (str, bytes or None) pairs, and the bytes that they take at most. Raises
    OptionError."""
    if isinstance(headers, Mapping):
        headers = list(headers.items())
    if isinstance(headers, str | bytes) or not isinstance(headers, Sequence):
        raise OptionError(
            f"headers must be a dict or a list of {HEADER_PAIRS}, got {type(headers).__name__}"
        )
    checked: list[tuple[str, bytes | None]] = []
    size_bytes = 0
    for header in headers:
        if not isinstance(header, tuple | list) or len(header) != 2:
            raise OptionError(f"headers must be {HEADER_PAIRS}, got {header!r}")
        name, content = header
        if not isinstance(name, str):
            raise OptionError(f"the key of a header must be str, got {type(name).__name__}")
        content = None if content is None else as_bytes(f"header {name!r}", content)
        checked.append((name, content))
        size_bytes += len(as_bytes("the key of a header", name)) + HEADER_NUMBERS_BYTES
        size_bytes += len(content or b"")
    return checked, size_bytes


def checked_number(name: str, given: Any, most: int) -> int:
    """A whole number of 0 or more. Raises OptionError."""
    try:
        number = operator.index(given)
    except TypeError:
        raise OptionError(f"{name} must be a whole number, got {given!r}") from None
    if isinstance(given, bool) or not 0 <= number <= most:
        raise OptionError(f"{name} must be a whole number from 0 to {most}, got {given!r}")
    return number


# --- of tables ----------------------------------------------------------------------------------


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
