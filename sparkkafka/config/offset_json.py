"""The JSON of offsets and of assigned partitions, as Spark's Kafka source writes and reads it.

    offsets      {"topicA": {"0": 23, "1": -1}, "topicB": {"0": -2}}
    timestamps   {"topicA": {"0": 1700000000000}}
    partitions   {"topicA": [0, 1], "topicB": [2]}

Stricter than the JVM connector's `JsonUtils` where that one would guess: a partition that is
named twice, or an offset that is not a whole number, is an error that names topic and partition.
Errors are `OptionError`; they start with the words a user of the JVM connector knows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from sparkkafka.errors import OptionError

EARLIEST_OFFSET = -2
"""In offset JSON: the first offset that the partition still has (ListOffsets' -2)."""
LATEST_OFFSET = -1
"""In offset JSON: the offset after the last record (ListOffsets' -1)."""

MAX_OFFSET = 2**63 - 1
MAX_PARTITION = 2**31 - 1

PartitionKey = tuple[str, int]
"""(topic, partition). A client `TopicPartition` compares and hashes equal to it."""

_OFFSETS_EXAMPLE = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_TIMESTAMPS_EXAMPLE = '{"topicA":{"0":123456789,"1":123456789},"topicB":{"0":123456789}}'
_ASSIGN_EXAMPLE = '{"topicA":[0,1],"topicB":[0,1]}'
_PARTITION = re.compile(r"[0-9]{1,10}")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class _Pairs(list[tuple[str, Any]]):
    """A JSON object before its keys are merged, so that doubled keys can be seen."""


def parse_offsets(text: str, option: str) -> dict[PartitionKey, int]:
    """Offsets by (topic, partition). -1 stands for latest, -2 for earliest.

    Raises OptionError for anything but an object of objects of whole numbers >= -2, and for
    topics or partitions that are named twice.
    """

    def check(offset: int) -> str:
        if offset < EARLIEST_OFFSET:
            return (
                f"is {offset}; negative values other than -1 (latest) and -2 (earliest) have no "
                "meaning"
            )
        return ""

    return _numbers(text, _Failure(option, _OFFSETS_EXAMPLE, text), "offset", check)


def parse_timestamps(text: str, option: str) -> dict[PartitionKey, int]:
    """Milliseconds since 1970 by (topic, partition).

    Raises OptionError for anything but an object of objects of whole numbers >= 0, and for topics
    or partitions that are named twice.
    """

    def check(timestamp_ms: int) -> str:
        return f"is {timestamp_ms}, before 1970" if timestamp_ms < 0 else ""

    return _numbers(text, _Failure(option, _TIMESTAMPS_EXAMPLE, text), "timestamp", check)


def _numbers(
    text: str, fail: _Failure, noun: str, check: Callable[[int], str]
) -> dict[PartitionKey, int]:
    numbers: dict[PartitionKey, int] = {}
    for topic, partitions in _topics(text, fail):
        if not isinstance(partitions, _Pairs):
            raise fail(f'the {noun}s of topic {topic!r} are not an object {{"partition": {noun}}}')
        for name, number in partitions:
            # json has no integer keys: Spark writes the partition number as a string.
            if not _PARTITION.fullmatch(name) or int(name) > MAX_PARTITION:
                raise fail(f"{name!r} of topic {topic!r} is not a partition number")
            key = (topic, int(name))
            where = f"topic {topic!r} partition {key[1]}"
            if key in numbers:
                raise fail(f"{where} is given twice")
            # bool is an int in Python; `true` is no offset.
            if type(number) is not int:
                raise fail(f"the {noun} of {where} is not a whole number: {_shown(number)}")
            if reason := check(number):
                raise fail(f"the {noun} of {where} {reason}")
            if number > MAX_OFFSET:
                raise fail(f"the {noun} of {where} does not fit into 64 bits: {number}")
            numbers[key] = number
    return numbers


def parse_assign(text: str, option: str = "assign") -> tuple[PartitionKey, ...]:
    """Assigned partitions, sorted. Raises OptionError for anything but an object of lists of
    partition numbers, and for partitions that are named twice."""
    fail = _Failure(option, _ASSIGN_EXAMPLE, text)
    assigned: set[PartitionKey] = set()
    for topic, partitions in _topics(text, fail):
        # _Pairs is a list too: an object where a list belongs must not pass.
        if not isinstance(partitions, list) or isinstance(partitions, _Pairs):
            raise fail(f"the partitions of topic {topic!r} are not a list")
        for partition in partitions:
            if type(partition) is not int or not 0 <= partition <= MAX_PARTITION:
                raise fail(f"{_shown(partition)} of topic {topic!r} is not a partition number")
            if (topic, partition) in assigned:
                raise fail(f"topic {topic!r} partition {partition} is given twice")
            assigned.add((topic, partition))
    return tuple(sorted(assigned))


def offsets_of_tree(tree: Any) -> dict[PartitionKey, int]:
    """Offsets from the parsed JSON of a checkpoint, which may be empty. Raises OptionError."""
    try:
        return {
            (topic, _number(partition)): _whole(offset)
            for topic, partitions in tree.items()
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise OptionError(
            f"the checkpoint holds {json.dumps(tree)[:500]}, which are not offsets of Kafka "
            f"(expected e.g. {_OFFSETS_EXAMPLE}): it belongs to another source; choose another "
            "checkpointLocation"
        ) from None


def tree_of_offsets(offsets: Mapping[PartitionKey, int]) -> dict[str, dict[str, int]]:
    """Offsets as nested dictionaries: topics and partitions in ascending order, names as keys."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return topics


def _number(partition: str) -> int:
    number = int(partition)
    if str(number) != partition or not 0 <= number <= MAX_PARTITION:
        raise ValueError  # "00" would be a second name of "0"
    return number


def _whole(offset: Any) -> int:
    if type(offset) is not int or not 0 <= offset <= MAX_OFFSET:
        raise ValueError
    return offset


def format_offsets(offsets: Mapping[PartitionKey, int]) -> str:
    """The JSON of offsets: no blanks, topics and partitions in ascending order."""
    return json.dumps(tree_of_offsets(offsets), separators=(",", ":"))


class _Failure:
    """Builds the error of one option value."""

    def __init__(self, option: str, example: str, text: str) -> None:
        self._option, self._example = option, example
        self._text = text if len(text) <= 500 else text[:500] + "…"

    def __call__(self, reason: str) -> OptionError:
        return OptionError(
            f"option {self._option}: Expected e.g. {self._example}, got {self._text}: {reason}"
        )


def _topics(text: str, fail: _Failure) -> _Pairs:
    try:
        tree = json.loads(text, object_pairs_hook=_Pairs, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        # int() refuses numbers of more than 4300 digits with a ValueError too.
        raise fail(f"not valid JSON ({error})") from None
    if not isinstance(tree, _Pairs):
        raise fail("not a JSON object")
    if not tree:
        raise fail("no topic is given")
    seen = set()
    for topic, _ in tree:
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise fail(f"{topic!r} cannot be a topic name")
        if topic in seen:
            raise fail(f"topic {topic!r} is given twice")
        seen.add(topic)
    return tree


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _shown(value: object) -> str:
    if isinstance(value, _Pairs):
        return "an object"
    return "null" if value is None else repr(value)
