"""What to read and from where to where: subscription and offsets of a read, parsed.

Words of errors begin as those of Spark's JVM connector (KafkaSourceProvider.validateBatchOptions),
which people search for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sparkkafka.config.kinds import INT64_MAX, integer
from sparkkafka.config.offset_json import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    PartitionKey,
    parse_assign,
    parse_offsets,
    parse_timestamps,
)
from sparkkafka.errors import OptionError


@dataclass(frozen=True)
class Subscription:
    """What to read: topics, a pattern, or partitions; the field that `strategy` names is set."""

    strategy: Literal["subscribe", "subscribePattern", "assign"]
    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[PartitionKey, ...] = ()


@dataclass(frozen=True)
class OffsetBound:
    """Where a range starts or ends. The JVM connector's KafkaOffsetRangeLimit.

    "earliest", "latest"; "specific": `offsets` by partition, which may be -1 (latest) or -2
    (earliest); "timestamp": the first record of `timestamp_ms` or later; "timestamps": likewise by
    partition, `offsets` then holding milliseconds; "committed": those of the consumer group, and
    `fallback` where it has none ("": that is an error). `option` is where it was given;
    `from_time` marks specific offsets that a time was turned into.
    """

    kind: Literal["earliest", "latest", "specific", "timestamp", "timestamps", "committed"]
    offsets: Mapping[PartitionKey, int] = field(default_factory=dict)
    timestamp_ms: int = 0
    fallback: Literal["", "earliest", "latest"] = ""
    option: str = field(default="", compare=False)
    from_time: bool = False

    @property
    def by_time(self) -> bool:
        return self.kind in ("timestamp", "timestamps")


FROM_EARLIEST = OffsetBound("earliest")
TO_LATEST = OffsetBound("latest")

_STRATEGIES: tuple[Literal["subscribe", "subscribePattern", "assign"], ...] = (
    "subscribe",
    "subscribePattern",
    "assign",
)


def parse_subscription(raw: Mapping[str, str]) -> Subscription:
    """The one of three options that says what to read. Raises OptionError for none and several."""
    chosen = [name for name in _STRATEGIES if name in raw]
    if not chosen:
        raise OptionError(
            "One of the following options must be specified for Kafka source: "
            f"{', '.join(_STRATEGIES)}"
        )
    if len(chosen) > 1:
        raise OptionError(
            "Only one of the following options can be specified for Kafka source: "
            f"{', '.join(_STRATEGIES)}; got {' and '.join(chosen)}"
        )
    strategy, text = chosen[0], raw[chosen[0]]
    if strategy == "subscribe":
        topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not topics:
            raise OptionError(
                f"No topics to subscribe to as specified value for option 'subscribe' is '{text}'"
            )
        return Subscription("subscribe", topics=topics)
    if strategy == "subscribePattern":
        if not text.strip():
            raise OptionError(
                "Pattern to subscribe is empty as specified value for option "
                f"'subscribePattern' is '{text}'"
            )
        return Subscription("subscribePattern", pattern=text)
    if not text.strip().startswith("{"):
        raise OptionError(
            "No topicpartitions to assign as specified value for option 'assign' is "
            f'{text}: expected JSON like {{"topicA":[0,1]}}'
        )
    return Subscription("assign", partitions=parse_assign(text))


_COMMITTED: dict[str, Literal["", "earliest", "latest"]] = {
    "committed": "",
    "committed,earliest": "earliest",
    "committed,latest": "latest",
}


def parse_bound(
    raw: Mapping[str, str], end: Literal["starting", "ending"], *, streaming: bool = False
) -> OffsetBound:
    """An endpoint of a read: startingTimestamp, else startingOffsetsByTimestamp, else
    startingOffsets, else the default (earliest; of a stream latest); likewise for the ending.

    As in the JVM connector, options of lower rank are not even looked at. Raises OptionError, in a
    batch also if the offset is the opposite end, as a word or for one partition.
    """
    option = f"{end}Timestamp"
    if option in raw:
        return OffsetBound("timestamp", timestamp_ms=_timestamp(raw[option], option), option=option)
    option = f"{end}OffsetsByTimestamp"
    if option in raw:
        return OffsetBound("timestamps", parse_timestamps(raw[option], option), option=option)
    option = f"{end}Offsets"
    words: tuple[Literal["earliest", "latest"], ...] = ("earliest",)
    banned, banned_offset = "latest", LATEST_OFFSET
    if end == "ending":
        words, banned, banned_offset = ("latest",), "earliest", EARLIEST_OFFSET
    if streaming:
        words, banned = ("latest", "earliest"), ""
    if option not in raw:
        return OffsetBound(words[0], option=option)
    text = raw[option].strip()
    word = text.lower()
    if banned and word == banned:
        raise OptionError(
            f"{end} offset can't be {banned} for batch queries on Kafka ({option}={banned})"
        )
    for known in words:
        if word == known:
            return OffsetBound(known, option=option)
    as_committed = ",".join(part.strip() for part in word.split(","))
    if end == "starting" and as_committed in _COMMITTED:
        return OffsetBound("committed", fallback=_COMMITTED[as_committed], option=option)
    if not word.startswith("{"):
        listed = [*words, *(("committed",) if end == "starting" else ())]
        raise OptionError(
            f"{option} must be {', '.join(listed)} or JSON like "
            f'{{"topicA":{{"0":23,"1":{-3 - banned_offset}}}}}, got {raw[option]!r}'
        )
    offsets = parse_offsets(raw[option], option)
    for (topic, partition), offset in sorted(offsets.items()):
        if banned and offset == banned_offset:
            raise OptionError(
                f"{option} for {topic}-{partition} can't be {banned} for batch queries on Kafka"
            )
    return OffsetBound("specific", offsets, option=option)


_MILLISECONDS = integer(0, INT64_MAX)


def _timestamp(text: str, option: str) -> int:
    try:
        value: int = _MILLISECONDS.parse(text)
    except ValueError:
        raise OptionError(
            f"{option}: Expected a single long value, got {text[:200]}: it is in milliseconds "
            "since 1970, for example 1700000000000"
        ) from None
    return value
