"""From where to where a topic is read: words of the command line, and offsets of partitions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sparkkafka.cli.times import timestamp_ms_of
from sparkkafka.client.cluster.offsets import OffsetRange
from sparkkafka.client.values import TopicPartition, some_partitions
from sparkkafka.config.check import warn
from sparkkafka.errors import OptionError, some

if TYPE_CHECKING:
    from sparkkafka.client.consumer.consumer import Consumer
    from sparkkafka.client.deadline import Deadline

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
TAIL: Final = "tail"
OFFSET: Final = "offset"
TIME: Final = "time"
COMMITTED: Final = "committed"

_WORDS: Final = {
    "earliest": EARLIEST,
    "beginning": EARLIEST,
    "latest": LATEST,
    "end": LATEST,
    "committed": COMMITTED,
    "stored": COMMITTED,
}


@dataclass(frozen=True)
class Place:
    """Where to start or end in each partition. `number`: how many records before the end (TAIL), an
    offset, or ms since 1970 UTC."""

    kind: str
    number: int = 0


def place_of(text: str, option: str) -> Place:
    """earliest, latest, committed, -N, N, or @TIME. Raises OptionError."""
    word = text.strip().lower()
    if word in _WORDS:
        return Place(_WORDS[word])
    if word.startswith("@"):
        return Place(TIME, timestamp_ms_of(text.strip()[1:], f"the time of {option}"))
    if re.fullmatch(r"-?[0-9]{1,19}", word) and int(word) < 1 << 63:
        number = int(word)
        if word == "-0":
            return Place(LATEST)
        return Place(TAIL, -number) if number < 0 else Place(OFFSET, number)
    raise OptionError(
        f"{option} is earliest, latest, an offset, -N for the last N of each partition, or @TIME, "
        f"as in @2026-01-31T12:00 (UTC), @1769860800000 or @-2h; got {text!r}"
    )


def partitions_of(text: str, option: str) -> tuple[int, ...]:
    """0,3,5-7 -> their numbers. Raises OptionError."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", part)
        last = match and int(match[2] or match[1])
        if match is None or last is None or not int(match[1]) <= last < int(match[1]) + 100_000:
            raise OptionError(f"{option} is like 0, or 0,3,5-7; got {text!r}")
        found += range(int(match[1]), last + 1)
    return tuple(dict.fromkeys(found))


# --- offsets -------------------------------------------------------------------------------------


def chosen_ranges(
    consumer: Consumer, topic: str, partitions: Sequence[int] | None, deadline: Deadline
) -> dict[TopicPartition, OffsetRange]:
    """What the chosen partitions (None: all) have. Raises UnknownTopicError, OptionError for a
    partition that the topic does not have."""
    ranges = consumer.offsets_for(topic, deadline.remaining_s())
    if partitions is None:
        return ranges
    missing = [number for number in partitions if TopicPartition(topic, number) not in ranges]
    if missing:
        raise OptionError(
            f"topic {topic} has no partition {some(missing)}: it has {len(ranges)}, from 0 to "
            f"{len(ranges) - 1}"
        )
    return {TopicPartition(topic, n): ranges[TopicPartition(topic, n)] for n in partitions}


def starts(
    consumer: Consumer,
    ranges: Mapping[TopicPartition, OffsetRange],
    place: Place,
    deadline: Deadline,
) -> dict[TopicPartition, int]:
    """The first offset to read of each partition, for all starts but TAIL.

    An offset that is gone is a warning, and reading begins with the first that is left; one that is
    not there yet raises OptionError. Partitions without a committed offset begin at the earliest,
    those without a record so young at the end.
    """
    if place.kind == EARLIEST:
        return {tp: row.earliest for tp, row in ranges.items()}
    if place.kind == LATEST:
        return {tp: row.latest for tp, row in ranges.items()}
    if place.kind == TIME:
        return _at_time(consumer, ranges, place.number, deadline)
    if place.kind == COMMITTED:
        committed = consumer.committed(list(ranges), deadline.remaining_s())
        unread = [tp for tp, row in committed.items() if row is None]
        if unread:
            warn(
                f"cli group {unread[0].topic}",
                f"the group has no offset in {some_partitions(unread)}: reading begins at the "
                "earliest there",
            )
        wanted = {
            tp: ranges[tp].earliest if row is None else row.offset for tp, row in committed.items()
        }
    else:
        wanted = dict.fromkeys(ranges, place.number)
    return {tp: _in_range(tp, offset, ranges[tp]) for tp, offset in wanted.items()}


def _in_range(tp: TopicPartition, offset: int, row: OffsetRange) -> int:
    if offset > row.latest:
        raise OptionError(
            f"partition {tp} ends before offset {row.latest}: there is no offset {offset} yet"
        )
    if offset < row.earliest:
        warn(
            f"cli start {tp}",
            f"offset {offset} of partition {tp} is gone: reading begins at {row.earliest}, the "
            "first that is left",
        )
    return max(offset, row.earliest)


def ends(
    consumer: Consumer,
    ranges: Mapping[TopicPartition, OffsetRange],
    place: Place,
    deadline: Deadline,
) -> dict[TopicPartition, int]:
    """The offset before which reading ends, no later than what is there now. Raises OptionError for
    a place that is no end."""
    if place.kind == LATEST:
        return {tp: row.latest for tp, row in ranges.items()}
    if place.kind == OFFSET:
        return {tp: min(place.number, row.latest) for tp, row in ranges.items()}
    if place.kind == TIME:
        return _at_time(consumer, ranges, place.number, deadline)
    raise OptionError("--until is end, an offset, or @TIME")


def _at_time(
    consumer: Consumer,
    ranges: Mapping[TopicPartition, OffsetRange],
    time_ms: int,
    deadline: Deadline,
) -> dict[TopicPartition, int]:
    found = consumer.offsets_for_times(dict.fromkeys(ranges, time_ms), deadline.remaining_s())
    rows = {tp: found[tp] for tp in ranges}
    return {
        tp: ranges[tp].latest if row is None else min(row.offset, ranges[tp].latest)
        for tp, row in rows.items()
    }
