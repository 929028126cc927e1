"""Checks arguments of the library's calls; errors say what is wrong with them. Also maps the
columns of a table to the fields of a record.

A `checked_…` function returns its value, converted to the type that it returns if need be, or
raises OptionError. `what` is the name of the argument in the error.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self, TypeVar

from sparkkafka.client.values import OffsetAndMetadata, TopicPartition, checked_topic
from sparkkafka.config.kinds import INT32_MAX, INT64_MAX
from sparkkafka.errors import OptionError

T = TypeVar("T")

OTHER_METHODS: Mapping[str, str] = {
    "alter_configs": "incremental_alter_configs({resource: {name: value}})",
    "commit_async": "commit(asynchronous=True)",
    "consume": "poll returns up to max.poll.records records",
    "consumer_group_metadata": "group_metadata()",
    "get_watermark_offsets": "offsets_for(topic), beginning_offsets and end_offsets have them",
    "getmany": "poll returns up to max.poll.records records",
    "getone": "iterate over the consumer, or call poll",
    "partitions_for_topic": "partitions_for(topic)",
    "poll": "not needed: a thread sends, and calls callbacks",
    "produce": "send(topic, value, key) queues a record",
    "send_and_wait": "await send(topic, value, key)",
    "start": "it is ready once it is made; use it under `with` or `async with`",
    "stop": "close()",
    "store_offsets": "commit({partition: offset}, asynchronous=True)",
    "topics": "list_topics()",
    "transaction": "begin_transaction() and commit_transaction()",
}
"""What to call in place of methods of confluent-kafka, kafka-python and aiokafka."""


class _ClientType(type):
    """Leaves the methods of other libraries' clients out of dir() of a class, from which mocks take
    a client's methods."""

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if hasattr(cls, name)]


class ClientBase(metaclass=_ClientType):
    """Base of all clients. Its errors say what to do for settings and methods of other libraries'
    clients, and that a client cannot be pickled."""

    def __new__(cls, *args: object, **keywords: object) -> Self:
        """Make the client. Raises TypeError for settings as keywords, which other libraries
        take."""
        if "bootstrap_servers" in keywords:
            try:  # a user's subclass may have such an argument
                inspect.signature(cls.__init__).bind(None, *args, **keywords)
            except TypeError:
                raise TypeError(
                    f"{cls.__name__} takes its settings as a dict with Kafka's names, "
                    f'{cls.__name__}({{"bootstrap.servers": "host:9092"}}), not as keywords as '
                    "aiokafka and kafka-python do. Tables of their calls and ours are in "
                    "docs/client-asyncio.md and docs/client.md under Migrate"
                ) from None
        return super().__new__(cls)

    def __dir__(self) -> list[str]:
        """List the attributes without those methods."""
        return [name for name in super().__dir__() if hasattr(self, name)]

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: a client has connections, which cannot be pickled."""
        name = type(self).__name__
        raise TypeError(
            f"{'an' if name[0] in 'AEIOU' else 'a'} {name} cannot be pickled or copied: it has "
            "connections. Make one where it is used (in the task or the process), from the same "
            "settings"
        )


class _OtherMethod:
    """A method of other libraries' clients: using it raises AttributeError, which says what to call
    in its place.

    A `__getattr__` could say that, too, but Python 3.11 then takes twice as long for each attribute
    of a client: a sixth of the time of `Producer.send`."""

    def __init__(self, name: str, hint: str) -> None:
        self._name = name
        self._hint = hint

    def __get__(self, client: object, kind: type) -> NoReturn:
        text = f"{kind.__name__!r} object has no attribute {self._name!r}: {self._hint}"
        raise AttributeError(text, name=self._name, obj=client)


for _name, _hint in OTHER_METHODS.items():
    setattr(ClientBase, _name, _OtherMethod(_name, _hint))


def checked_name(value: str, what: str) -> str:
    """Return a name, which must be a str. Raises OptionError for anything else."""
    if not isinstance(value, str):
        raise OptionError(f"{what} is a name as text, got {value!r}")
    return value


def checked_principal(value: Any, what: str) -> tuple[str, str]:
    """Split User:alice into type and name. Raises OptionError."""
    kind, _, name = checked_name(value, what).partition(":")
    if not kind or not name:
        hint = f": did you mean {f'User:{value}'!r}?" if value and ":" not in value else ""
        raise OptionError(f"{what} is written as User:alice, got {value!r}{hint}")
    return kind, name


def checked_choice(value: str, allowed: Iterable[str], what: str) -> str:
    """Return one of the allowed names. Raises OptionError, which names the most similar one."""
    known = list(allowed)
    if isinstance(value, str) and value in known:
        return value
    from difflib import get_close_matches  # not above: it is rarely needed

    by_normalized_name = {normalized_name(name): name for name in known}
    near = (
        get_close_matches(normalized_name(value), by_normalized_name, n=1)
        if isinstance(value, str)
        else []
    )
    hint = f": did you mean {by_normalized_name[near[0]]!r}?" if near else ""
    raise OptionError(f"{what} must be one of {', '.join(known)}, got {value!r}{hint}")


def normalized_name(name: str) -> str:
    """Return a name in lower case without underscores and dashes, to compare DescribeConfigs
    with describe-configs."""
    return name.lower().replace("_", "").replace("-", "")


def _is_list(value: Any) -> bool:
    """Return whether the value is iterable, but neither text nor a mapping (with values to
    lose)."""
    return isinstance(value, Iterable) and not isinstance(
        value, str | bytes | bytearray | memoryview | Mapping
    )


def checked_names(value: Iterable[str], what: str) -> list[str]:
    """Return a list of names. A plain string is an error: its letters would be the names."""
    if isinstance(value, str):
        raise OptionError(f"{what} is a list of names: write [{value!r}], not {value!r}")
    if not _is_list(value):
        raise OptionError(f"{what} is a list of names, got {value!r}")
    chosen = list(value)
    for name in chosen:
        if not isinstance(name, str):
            raise OptionError(f"{what} is a list of names as text; {name!r} in it is none")
    return chosen


def whole_number(value: Any) -> int | None:
    """Return a whole number (also NumPy's) as int, None for anything else, also for a bool."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def offset_number(value: Any) -> int | None:
    """Return an offset as int; None if it cannot be one."""
    number = whole_number(value)
    return number if number is not None and 0 <= number <= INT64_MAX else None


def checked_int(value: Any, what: str, low: int | None = None, high: int = INT64_MAX) -> int:
    """Return a whole number; if `low` is given, one from `low` to `high`. Raises OptionError for
    anything else, also for a bool."""
    number = whole_number(value)
    if number is not None and (low is None or low <= number <= high):
        return number
    limits = "" if low is None else f" of {low} or more"
    if low is not None and high < INT64_MAX:
        limits = f" from {low} to {high}"
    raise OptionError(f"{what} is a whole number{limits}, got {value!r}")


def whole_float_as_int(value: Any) -> Any:
    """Return a float that is a whole number (as NumPy and pandas make them) as int, all else
    unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def checked_ints(value: Iterable[int], what: str) -> list[int]:
    """Return a list of whole numbers. Raises OptionError for anything else."""
    if not _is_list(value):
        raise OptionError(f"{what} is a list of whole numbers, such as [1], got {value!r}")
    return [checked_int(number, f"each of {what}") for number in value]


def checked_list(
    value: Iterable[T], kind: type[T], what: str, example: str, *, strict: bool = True
) -> list[T]:
    """Return a list of objects of the type `kind`. A single one is an error: if it is a tuple, its
    fields would be the objects. `example` is code that makes one, for the error. The caller checks
    the objects if `strict` is False."""
    if isinstance(value, kind):
        raise OptionError(f"{what} is a list: write [{example}], not {example}")
    if not _is_list(value):
        raise OptionError(f"{what} is a list such as [{example}], got {value!r}")
    chosen = list(value)
    for item in chosen if strict else ():
        if not isinstance(item, kind):
            raise OptionError(f"{what} is a list such as [{example}], got {item!r} in it")
    return chosen


def checked_mapping(value: Mapping[Any, T], what: str, example: str) -> Mapping[Any, T]:
    """Return a mapping. Raises OptionError for anything else; `example` is an item of it."""
    if not isinstance(value, Mapping):
        raise OptionError(f"{what} is a dict such as {{{example}}}, got {value!r}")
    return value


def checked_flag(value: bool, what: str) -> bool:
    """Return True or False. Raises OptionError for anything else: any text would count as True."""
    if not isinstance(value, bool):
        raise OptionError(f"{what} is True or False, got {value!r}")
    return value


def checked_function(value: Callable[..., T] | None, what: str) -> Callable[..., T] | None:
    """Return a function, or None. Raises OptionError for anything else."""
    if value is not None and not callable(value):
        raise OptionError(f"{what} is a function, got {value!r}")
    return value


def checked_partition(value: TopicPartition, what: str) -> TopicPartition:
    """Return a TopicPartition, also for a (topic, number) tuple. Raises OptionError for anything
    else."""
    match value:
        case (str(topic), number):
            name = f"{what}: the partition of topic {topic}"
            return TopicPartition(topic, checked_int(number, name, 0, INT32_MAX))
    raise OptionError(f'{what}: a partition is TopicPartition("orders", 0), got {value!r}')


def checked_partitions(value: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return the argument `partitions` as a list. Raises OptionError for anything else."""
    example = 'TopicPartition("orders", 0)'
    partitions = checked_list(value, TopicPartition, "partitions", example, strict=False)
    return [checked_partition(partition, "partitions") for partition in partitions]


def checked_by_partition(
    value: Mapping[TopicPartition, T], what: str, example: str
) -> dict[TopicPartition, T]:
    """Return a dict by partition. Raises OptionError for anything else; `example` is a value of
    it."""
    mapping = checked_mapping(value, what, f'TopicPartition("orders", 0): {example}')
    return {checked_partition(key, what): item for key, item in mapping.items()}


def offsets_to_commit(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata], what: str = "offsets"
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets to commit by partition, also for whole numbers. Raises OptionError."""
    by_partition = checked_by_partition(offsets, what, "100")
    return {tp: _offset_to_commit(tp, value) for tp, value in by_partition.items()}


def _offset_to_commit(tp: TopicPartition, value: int | OffsetAndMetadata) -> OffsetAndMetadata:
    """Return an offset to commit, also for a whole number (int or float).

    Raises OptionError, also for a negative offset: only `seek` accepts -1 and -2.
    """
    checked_topic(tp.topic)
    to_commit = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
    offset = offset_number(whole_float_as_int(to_commit.offset))
    if offset is None:
        raise OptionError(
            f"cannot commit offset {to_commit.offset!r} of {tp}; give a whole number, at least 0"
        )
    metadata = "" if to_commit.metadata is None else to_commit.metadata
    name = f"the metadata beside offset {offset} of {tp}"
    if not isinstance(metadata, str):
        raise OptionError(f"{name} is text, got {metadata!r}")
    as_bytes(name, metadata)  # raises for what UTF-8 cannot encode
    epoch = to_commit.leader_epoch
    if epoch is not None:
        name = f"the leader_epoch beside offset {offset} of {tp}"
        epoch = checked_int(epoch, name, -1, INT32_MAX)
    return OffsetAndMetadata(offset, metadata, epoch)


def setting_text(value: Any, where: str) -> str:
    """Return a setting's value as text, also of a number or bool. `where` names the setting and its
    topic (or other resource) in errors. Raises OptionError for other types."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    number = whole_number(value)
    if number is None:
        raise OptionError(
            f"{where}: a setting's value is text, a whole number or a bool, got {value!r}"
        )
    return str(number)


# --- records ------------------------------------------------------------------------------------

HEADER_PAIRS = "(key, value) pairs: a str, and bytes or a str (sent as UTF-8) or None"
HEADER_LENGTHS_BYTES = 10  # the most that the varint lengths of a header's key and value take


def as_bytes(name: str, value: Any) -> bytes:
    """Return the bytes to send: text is encoded as UTF-8. Raises OptionError that names the value
    `name`, for anything but text or bytes."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise OptionError(f"{name} is text that UTF-8 cannot encode: {error}") from error
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise OptionError(
        f"{name} must be bytes, bytearray, memoryview, str or None, got {type(value).__name__}: "
        "convert it first"
    )


def checked_headers(headers: Any) -> tuple[list[tuple[str, bytes | None]], int]:
    """Return headers as pairs of str and bytes (or None), and an upper bound of their encoded
    bytes. Raises OptionError."""
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
        size_bytes += len(as_bytes("the key of a header", name)) + HEADER_LENGTHS_BYTES
        size_bytes += len(content or b"")
    return checked, size_bytes


# --- tables -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputColumns:
    """The positions of a record's columns in a table, None for a missing one. (If a table has a
    name twice, the first counts.) `fixed_topic` is the topic of all records; if it is None, the
    column `topic` has the topics."""

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
    """Find the columns by their exact names; other columns are ignored.

    `fits` says whether the column with this name and position is written, or raises OptionError for
    its type. `missing` has the messages for a table without the columns value and topic, in the
    order of the checks. With a `topic` the column topic is ignored, whatever its type.
    """
    positions: dict[str, int] = {}
    for position, name in enumerate(names):
        positions.setdefault(name, position)

    def find(name: str) -> int | None:
        """Return the position of the column with this name, None if it is not written."""
        index = positions.get(name)
        return index if index is not None and fits(name, index) else None

    required: dict[str, int] = {}
    for name, message in missing.items():
        if name == "topic" and topic is not None:
            continue
        required_position = find(name)
        if required_position is None:
            raise OptionError(message)
        required[name] = required_position
    return InputColumns(
        value=required["value"],
        key=find("key"),
        headers=find("headers"),
        topic=required.get("topic"),
        partition=find("partition"),
        timestamp=find("timestamp"),
        fixed_topic=topic,
    )
