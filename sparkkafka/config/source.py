"""Subscription and offsets of a read: dataclasses, and the text of options and checkpoints.

Messages begin as those of Spark's JVM connector (KafkaSourceProvider.validateBatchOptions,
JsonUtils), since people search for them. The JSON is the connector's too:

    offsets      {"topicA": {"0": 23, "1": -1}, "topicB": {"0": -2}}
    timestamps   {"topicA": {"0": 1700000000000}}
    partitions   {"topicA": [0, 1], "topicB": [2]}

Unlike `JsonUtils`, a partition that occurs twice, or an offset that is not a whole number, is an
error that names topic and partition.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

from sparkkafka.config.kinds import INT32_MAX, INT64_MAX, integer, kind
from sparkkafka.errors import OptionError

EARLIEST_OFFSET = -2
"""In offset JSON: the first offset that the partition still has (ListOffsets' -2)."""
LATEST_OFFSET = -1
"""In offset JSON: the offset after the last record (ListOffsets' -1)."""
TIERED_OFFSETS = {"earliest-local": -4, "latest-tiered": -5, "earliest-pending-upload": -6}
"""Offsets of tiered storage, by their names and ListOffsets' numbers."""

_Strategy = Literal["subscribe", "subscribePattern", "assign"]
_OFFSETS_EXAMPLE = '{"topicA":{"0":23,"1":4500},"topicB":{"0":7}}'


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


Offsets = dict[TopicPartition, int]
"""One offset in each of some partitions, which is mostly the next one to read there."""


@dataclass(frozen=True)
class ConsumerStrategy:
    """The topics, pattern or partitions to read. `strategy` is the option that is set."""

    strategy: _Strategy
    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True)
class OffsetBound:
    """Where a range of offsets starts or ends. The JVM connector's KafkaOffsetRangeLimit.

    `kind` is:
    "earliest" or "latest".
    "specific": `offsets` by partition, which may be -1 (latest) or -2 (earliest). If they were
    looked up by time, `from_time` is true, and `missed_times_ms` has the times of partitions
    without a record of that time or later.
    "timestamp": the first record of `timestamp_ms` or later, in each partition. A negative number
    is one of TIERED_OFFSETS.
    "timestamps": the same with a time for each partition; `offsets` has the milliseconds.
    "committed": the offsets of the consumer group, and `fallback` for partitions without one (""
    makes that an error).

    `option` is the name of the option that set the bound.
    """

    kind: Literal["earliest", "latest", "specific", "timestamp", "timestamps", "committed"]
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp_ms: int = 0
    fallback: Literal["", "earliest", "latest"] = ""
    option: str = field(default="", compare=False)
    from_time: bool = False
    missed_times_ms: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def is_by_time(self) -> bool:
        return self.kind in ("timestamp", "timestamps")


FROM_EARLIEST = OffsetBound("earliest")
TO_LATEST = OffsetBound("latest")


def parse_subscription(raw: Mapping[str, str]) -> ConsumerStrategy:
    """Parse subscribe, subscribePattern or assign, whichever is set. Raises OptionError if none or
    several are set."""
    strategies = get_args(_Strategy)
    chosen = [name for name in strategies if name in raw]
    if not chosen:
        raise OptionError(
            "One of the following options must be specified for Kafka source: "
            f"{', '.join(strategies)}. To read a topic, set subscribe to its name: topic is the "
            "option of writes"
        )
    if len(chosen) > 1:
        raise OptionError(
            "Only one of the following options can be specified for Kafka source: "
            f"{', '.join(strategies)}; got {' and '.join(chosen)}"
        )
    strategy, text = chosen[0], raw[chosen[0]]
    if strategy == "subscribe":
        topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not topics:
            raise OptionError(
                f"No topics to subscribe to as specified value for option 'subscribe' is '{text}'"
            )
        if text.lstrip().startswith("["):  # Spark's text of a Python list
            raise OptionError(
                f"subscribe names topics in one text, separated by commas: topicA,topicB; got a "
                f"list, {text}"
            )
        return ConsumerStrategy("subscribe", topics=topics)
    if strategy == "subscribePattern":
        if not text.strip():
            raise OptionError(
                "Pattern to subscribe is empty as specified value for option "
                f"'subscribePattern' is '{text}'"
            )
        return ConsumerStrategy("subscribePattern", pattern=text)
    if not text.strip().startswith("{"):
        raise OptionError(
            "No topicpartitions to assign as specified value for option 'assign' is "
            f'{text[:200]}: expected JSON like {{"topicA":[0,1]}}'
        )
    return ConsumerStrategy("assign", partitions=parse_assign(text))


def parse_bound(
    raw: Mapping[str, str], bound: Literal["starting", "ending"], *, streaming: bool = False
) -> OffsetBound:
    """Parse the start or end of a read from the options that begin with `bound`: startingTimestamp,
    else startingOffsetsByTimestamp, else startingOffsets, else the default (earliest; of a stream
    latest); the same for the end.

    As in the JVM connector, an overridden option is not checked. Raises OptionError, also if a
    batch read starts at latest or ends at earliest, in all partitions or in one.
    """
    option = f"{bound}Timestamp"
    if option in raw:
        try:
            timestamp_ms: int = integer(0, INT64_MAX).parse(raw[option])
        except ValueError:
            raise OptionError(
                f"{option}: Expected a single long value, got {raw[option][:200]}: it is in "
                "milliseconds since 1970, for example 1700000000000, and not negative"
            ) from None
        return OffsetBound("timestamp", timestamp_ms=timestamp_ms, option=option)
    option = f"{bound}OffsetsByTimestamp"
    if option in raw:
        return OffsetBound("timestamps", parse_timestamps(raw[option], option), option=option)
    option = f"{bound}Offsets"
    allowed: tuple[Literal["earliest", "latest"], ...] = ("earliest",)
    # A batch read that starts at latest, or ends at earliest, would read nothing.
    refused, refused_offset = "latest", LATEST_OFFSET
    if bound == "ending":
        allowed, refused, refused_offset = ("latest",), "earliest", EARLIEST_OFFSET
    if streaming:
        allowed, refused = ("latest", "earliest"), ""
    if option not in raw:
        return OffsetBound(allowed[0], option=option)
    value = ",".join(part.strip() for part in raw[option].lower().split(","))
    if refused and value == refused:
        raise OptionError(
            f"{bound} offset can't be {refused} for batch queries on Kafka ({option}={refused}): "
            f"nothing would be read; set {allowed[0]}, offsets or a timestamp"
        )
    for edge in allowed:
        if value == edge:
            return OffsetBound(edge, option=option)
    if bound == "starting":
        if value in TIERED_OFFSETS:
            return OffsetBound("timestamp", timestamp_ms=TIERED_OFFSETS[value], option=option)
        fallbacks: tuple[Literal["", "earliest", "latest"], ...] = ("", "earliest", "latest")
        for fallback in fallbacks:
            if value == f"committed,{fallback}".removesuffix(","):
                return OffsetBound("committed", fallback=fallback, option=option)
    if not value.startswith("{"):
        example = EARLIEST_OFFSET if bound == "starting" else LATEST_OFFSET
        listed = [*allowed, *(("committed",) if bound == "starting" else ())]
        raise OptionError(
            f"{option} must be {', '.join(listed)} or JSON like "
            f'{{"topicA":{{"0":23,"1":{example}}}}}, got {raw[option][:200]!r}'
        )
    offsets = parse_offsets(raw[option], option)
    for tp, offset in sorted(offsets.items()):
        if refused and offset == refused_offset:
            raise OptionError(f"{option} for {tp} can't be {refused} for batch queries on Kafka")
    return OffsetBound("specific", offsets, option=option)


# --- JSON ---------------------------------------------------------------------------------------


class _Pairs(list[tuple[str, Any]]):
    """The pairs of a JSON object, with duplicate keys."""


def parse_offsets(text: str, option: str) -> Offsets:
    """Parse offsets by partition; -1 is latest, -2 earliest.

    Raises OptionError unless it is an object of objects of whole numbers >= -2, with each topic and
    partition once.
    """
    hint = "; negative values other than -1 (latest) and -2 (earliest) have no meaning"
    return _parse_numbers(text, option, _OFFSETS_EXAMPLE, "offset", EARLIEST_OFFSET, hint)


def parse_timestamps(text: str, option: str) -> dict[TopicPartition, int]:
    """Parse milliseconds since 1970 by partition.

    Raises OptionError unless it is an object of objects of whole numbers >= 0, with each topic and
    partition once.
    """
    example = '{"topicA":{"0":123456789,"1":123456789},"topicB":{"0":123456789}}'
    return _parse_numbers(text, option, example, "timestamp", 0, ", before 1970")


def _parse_numbers(
    text: str, option: str, example: str, noun: str, minimum: int, hint: str
) -> dict[TopicPartition, int]:
    """Parse JSON {topic: {partition: number}} to whole numbers by partition. `noun` names
    the number in errors, and `hint` follows a number below `minimum`."""
    error = partial(_json_error, option, example, text)
    numbers: dict[TopicPartition, int] = {}
    for topic, partitions in _parse_topics(text, error):
        if not isinstance(partitions, _Pairs):
            raise error(f'the {noun}s of topic {topic!r} are not an object {{"partition": {noun}}}')
        for name, number in partitions:
            # json has no integer keys: Spark writes the partition number as a string.
            if not re.fullmatch(r"[0-9]{1,10}", name) or int(name) > INT32_MAX:
                raise error(f"{name!r} of topic {topic!r} is not a partition number")
            tp = TopicPartition(topic, int(name))
            where = f"topic {topic!r} partition {tp.partition}"
            if tp in numbers:
                raise error(f"{where} is given twice")
            # bool is an int in Python, but `true` is not an offset.
            if type(number) is not int:
                raise error(f"the {noun} of {where} is not a whole number: {_json_text(number)}")
            if number > INT64_MAX:
                raise error(f"the {noun} of {where} does not fit into 64 bits: {number}")
            if number < minimum:
                raise error(f"the {noun} of {where} is {number}{hint}")
            numbers[tp] = number
    return numbers


def parse_assign(text: str) -> tuple[TopicPartition, ...]:
    """Parse assigned partitions, and sort them. Raises OptionError unless it is an object of lists
    of partition numbers, with each partition once."""
    error = partial(_json_error, "assign", '{"topicA":[0,1],"topicB":[0,1]}', text)
    assigned: set[TopicPartition] = set()
    for topic, partitions in _parse_topics(text, error):
        # _Pairs is a list too, but an object is not allowed here.
        if not isinstance(partitions, list) or isinstance(partitions, _Pairs):
            raise error(f"the partitions of topic {topic!r} are not a list")
        for partition in partitions:
            if type(partition) is not int or not 0 <= partition <= INT32_MAX:
                raise error(f"{_json_text(partition)} of topic {topic!r} is not a partition number")
            tp = TopicPartition(topic, partition)
            if tp in assigned:
                raise error(f"topic {topic!r} partition {partition} is given twice")
            assigned.add(tp)
    return tuple(sorted(assigned))


@kind("JSON")
def topic_ids(text: str) -> dict[str, bytes]:
    """Parse the option topicIds: {topic: id}."""
    error = partial(_json_error, "topicIds", '{"topicA":"7wCdKXxUTUGWEtq1EzBqVA"}', text)
    ids = {}
    for topic, value in _parse_topics(text, error):
        # 16 bytes as Base64 for URLs: only two bits are left for the last character.
        if not isinstance(value, str) or not re.fullmatch("[A-Za-z0-9_-]{21}[AQgw]", value):
            raise error(f"{_json_text(value)} is not an id of topic {topic!r}")
        ids[topic] = base64.urlsafe_b64decode(f"{value}==")
    return ids


def encode_topic_id(topic_id: bytes) -> str:
    """Return an id as Kafka's tools write it: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def offsets_of_tree(tree: Any) -> Offsets:
    """Return the offsets by partition of a checkpoint's parsed JSON, which may be empty. Raises
    OptionError."""
    offsets = {}
    try:
        for topic, partitions in tree.items():
            for partition, offset in partitions.items():
                number = int(partition)
                is_partition = str(number) == partition and 0 <= number <= INT32_MAX  # not "00"
                if not is_partition or type(offset) is not int or not 0 <= offset <= INT64_MAX:
                    raise ValueError
                offsets[TopicPartition(topic, number)] = offset
    except (AttributeError, TypeError, ValueError):
        raise OptionError(
            f"the checkpoint holds {json.dumps(tree)[:500]}, which are not offsets of Kafka "
            f"(expected e.g. {_OFFSETS_EXAMPLE}): it belongs to another source. Set another "
            "checkpointLocation"
        ) from None
    return offsets


def tree_of_offsets(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets as a checkpoint's JSON has them, {topic: {partition: offset}}, with topics and
    partitions in ascending order."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return topics


def _json_error(option: str, example: str, text: str, reason: str) -> OptionError:
    """Return the error for an option whose JSON has another form than `example`."""
    shown = text if len(text) <= 500 else text[:500] + "…"
    return OptionError(f"option {option}: Expected e.g. {example}, got {shown}: {reason}")


def _parse_topics(text: str, error: Callable[[str], OptionError]) -> _Pairs:
    """Return the pairs of a JSON object whose keys are topic names, each once."""

    def refuse_constant(name: str) -> None:
        raise ValueError(f"{name} is not JSON")  # NaN and Infinity, which Python's parser takes

    try:
        tree = json.loads(text, object_pairs_hook=_Pairs, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as cause:
        # int() refuses numbers of more than 4300 digits with a ValueError too.
        raise error(f"not valid JSON ({cause})") from None
    if not isinstance(tree, _Pairs):
        raise error("not a JSON object")
    if not tree:
        raise error("no topic is given")
    seen = set()
    for topic, _ in tree:
        if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", topic) or topic in (".", ".."):
            raise error(f"{topic!r} cannot be a topic name")
        if topic in seen:
            raise error(f"topic {topic!r} is given twice")
        seen.add(topic)
    return tree


def _json_text(value: object) -> str:
    """Return a JSON value as text for an error."""
    if isinstance(value, _Pairs):
        return "an object"
    return "null" if value is None else repr(value)
