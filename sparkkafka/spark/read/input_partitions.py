"""Splits a subscription's offsets into the ranges that tasks read. Pure functions, no I/O.

Offsets are those of Kafka: a range [start, end) ends before `end`. Names in square brackets in
messages are the error conditions of Spark's JVM connector, so that they can be searched for.

One difference from the JVM connector is intended: `assign` with a partition that does not exist
is an error (the JVM connector silently reads less).

Spark plans a Python data source once for each `load()` and reads the same input partitions in each
query of that DataFrame. A batch read therefore leaves the ends `earliest` and `latest` open, as the
JVM connector's KafkaOffsetReaderAdmin does, and the task binds them (bindOffsets=task).
"""

from __future__ import annotations

import heapq
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from sparkkafka.client.cluster.metadata import nearest_text, nearest_topics
from sparkkafka.client.values import Address, Offsets, TopicPartition
from sparkkafka.config import source
from sparkkafka.errors import OptionError, some
from sparkkafka.spark.read.data_loss import MAX_LISTED, Loss

GROUP_ROWS = 20_000
GROUP_BYTES = 4 * 2**20
"""The rows and bytes of ranges that share a task: about what one core reads in the 40 ms that a
task costs Spark."""

MAX_EMPTY_TASKS = 8
"""Tasks for partitions that are empty when a batch read is planned. A task costs Spark some 30 ms,
and partitions that share one are read one after the other if they have records later."""


@dataclass(frozen=True)
class KafkaInputPartition(InputPartition):
    """A range of one partition's offsets for a task: the records with start <= offset < end.

    `times_ms`: the first and the last time of the records to be read; the task drops others.
    `topic_id` (16 bytes; None before Kafka 2.8) distinguishes the topic from a later one of the
    same name. `leader` is the address of the partition's leader at planning time, to which the task
    connects first.

    In batch reads an end may be open, and the task binds it:

    - `open_start`: the task begins at the start of the log, if records from `start` on have been
      deleted. That is not data loss.
    - `open_end`: the task stops where the log ends when it begins to read. `end` is where it ended
      at planning, under the leader of `leader_epoch`.
    - `whole_log`: earliest to latest, not split. If the topic has been recreated, the task reads
      the new one.
    - `start_time_ms` and `end_time_ms`: times that no record had reached at planning; the task
      looks them up again.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: bytes | None = None
    leader: Address | None = None
    times_ms: tuple[int, int] | None = None
    open_start: bool = False
    open_end: bool = False
    whole_log: bool = False
    start_time_ms: int | None = None
    end_time_ms: int | None = None
    leader_epoch: int = -1

    @property
    def tp(self) -> TopicPartition:
        """The topic and partition of the range."""
        return TopicPartition(self.topic, self.partition)

    @property
    def ranges(self) -> tuple[KafkaInputPartition, ...]:
        """The one range of this input partition; `SmallRanges` has several."""
        return (self,)

    @property
    def count(self) -> int:
        """The number of offsets at planning; some may have no record."""
        return self.end - self.start

    def part(self, start: int, end: int) -> KafkaInputPartition:
        """Return the part of the range from `start` to `end`. It keeps an open start, and the end
        of the range stays open if it is that of the part."""
        open_end = self.open_end and end == self.end
        return replace(
            self,
            start=start,
            end=end,
            open_end=open_end,
            end_time_ms=self.end_time_ms if open_end else None,
            whole_log=self.whole_log and start == self.start and open_end,
        )


@dataclass(frozen=True)
class SmallRanges(InputPartition):
    """Ranges of several partitions for one task, of a micro-batch or of a batch read."""

    ranges: tuple[KafkaInputPartition, ...]


TaskPartition = KafkaInputPartition | SmallRanges


# --- topics and partitions -------------------------------------------------------------------


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile subscribePattern. Raises OptionError if Python and Java interpret it differently.

    Python refuses constructs that only Java has (\\p{Alpha}, (?<name>…), \\Q…\\E). It only warns of
    set operations in brackets ([a-z&&[^x]]), and not even of the union [a-z[0-9]], both of which
    Java interprets differently: an error here.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        try:
            compiled = re.compile(pattern, re.ASCII)
        except (re.error, FutureWarning, RecursionError, OverflowError) as error:
            raise OptionError(
                f"subscribePattern {pattern!r} is not a regular expression of Python ({error}). "
                "Correct it (.* matches all topics); write constructs that only Java has in "
                "another way"
            ) from None
    # Without escaped characters, and with "]" as the first character of a set.
    if re.search(r"\[\^?\]?[^]]*\[", re.sub(r"\\.", "x", pattern)):
        raise OptionError(
            f"subscribePattern {pattern!r} has [ within brackets, which begins another set in Java "
            "and is a character in Python. Write \\[ for the character, or all characters in one "
            "set"
        )
    return compiled


def matching_topics(pattern: re.Pattern[str], topics: Mapping[str, bool]) -> list[str]:
    """Return the names that contain a match, sorted. `topics` maps a name to "is internal".

    This is a search, not a full match, as Scala's findFirstIn in the JVM connector. Internal topics
    (__consumer_offsets) are left out, as in KafkaConsumer.
    """
    return sorted(
        name for name, internal in topics.items() if not internal and pattern.search(name)
    )


def check_assigned(
    assigned: Iterable[TopicPartition], existing: Mapping[str, Collection[int]]
) -> None:
    """Raise OptionError for assigned partitions that do not exist."""
    missing = [tp for tp in assigned if tp.partition not in existing.get(tp.topic, ())]
    if missing:
        facts = ", ".join(
            f"{topic} has {len(existing.get(topic, ()))} partitions"
            for topic in sorted({tp.topic for tp in missing})
        )
        raise OptionError(
            f"assign names partitions that do not exist: {partitions_text(missing)} ({facts}). "
            "Remove them from the option"
        )


def partitions_text(partitions: Iterable[TopicPartition]) -> str:
    """Return the first MAX_LISTED partitions, sorted, as text for a message; "none" if there are
    none."""
    return some(sorted(partitions), MAX_LISTED) or "none"


# --- offsets ---------------------------------------------------------------------------------


def check_bounds(starting: source.OffsetBound, ending: source.OffsetBound) -> None:
    """Check that the start is not after the end, as far as the options say both, and that both name
    the same partitions. Raises OptionError."""
    start_option = starting.option or "startingOffsets"
    end_option = ending.option or "endingOffsets"
    if starting.kind == ending.kind == "timestamp":
        if starting.timestamp_ms > ending.timestamp_ms:
            raise OptionError(
                "[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] startingTimestamp "
                f"{starting.timestamp_ms} is greater than endingTimestamp {ending.timestamp_ms}"
            )
        return
    if starting.kind != ending.kind or starting.kind not in ("specific", "timestamps"):
        return
    starts, ends = starting.offsets, ending.offsets
    if starts.keys() != ends.keys():
        raise OptionError(
            "[MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET] "
            f"{start_option} and {end_option} must name the same partitions; only in "
            f"{start_option}: {partitions_text(starts.keys() - ends.keys())}; only "
            f"in {end_option}: {partitions_text(ends.keys() - starts.keys())}"
        )
    if starting.from_time or ending.from_time:
        return  # `plan_ranges` treats offsets that were looked up by time
    for tp in sorted(starts):
        if 0 <= ends[tp] < starts[tp]:  # not negative: neither latest nor earliest
            raise OptionError(
                "[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] "
                f"{tp}: {start_option} {starts[tp]} is greater than "
                f"{end_option} {ends[tp]}"
            )


def check_named(
    option: str, bound: source.OffsetBound, partitions: Collection[TopicPartition]
) -> None:
    """Check that offsets or times by partition name each partition that is read, and no other.

    Raises OptionError. (The JVM connector's condition says "start offset" for both ends.)
    """
    if bound.kind not in ("specific", "timestamps"):
        return
    named, read = set(bound.offsets), set(partitions)
    if named != read:
        hint = " (use -2 for earliest)" if "starting" in option else " (use -1 for latest)"
        condition = "KAFKA_START_OFFSET"
        if bound.is_by_time:
            condition, hint = "KAFKA_TIMESTAMP_OFFSET", ""
        topics = {topic for topic, _ in read}
        others = sorted({topic for topic, _ in named} - topics)
        nearest = nearest_text(others, nearest_topics(others, topics))
        raise OptionError(
            f"[{condition}_DOES_NOT_MATCH_ASSIGNED] {bound.option or option} must name all "
            f"partitions that are read{hint} and no others. "
            f"Missing: {partitions_text(read - named)}; "
            f"too many: {partitions_text(named - read)}"
            f"{nearest and f' ({nearest})'}"
        )


def times_of(bound: source.OffsetBound, partitions: Collection[TopicPartition]) -> Offsets:
    """Return the time in ms to look up for each partition; empty if the bound is not by time."""
    if bound.kind == "timestamp":
        return dict.fromkeys(partitions, bound.timestamp_ms)
    if bound.kind == "timestamps":
        return {tp: bound.offsets[tp] for tp in partitions}
    return {}


def start_at_times(
    bound: source.OffsetBound, offsets_at_times: Offsets, *, no_match_strategy: str
) -> source.OffsetBound:
    """Return a start by time as offsets. `offsets_at_times` has -1 for a partition in which no
    record has that time or a later one: with the strategy "latest" it is not read, "error" raises
    OptionError. So does an offset of tiered storage that a partition does not have."""
    missing = sorted(tp for tp, offset in offsets_at_times.items() if offset < 0)
    if missing and bound.timestamp_ms in source.TIERED_OFFSETS.values():
        name = next(
            name for name, row in source.TIERED_OFFSETS.items() if row == bound.timestamp_ms
        )
        raise OptionError(
            f"{bound.option}={name}: there is no such offset in {partitions_text(missing)}: the "
            "topic has no tiered storage, or nothing of it is uploaded yet. Set "
            f"{bound.option}=earliest or earliest-local"
        )
    if missing and no_match_strategy == "error":
        raise OptionError(
            f"No offset matched from request of topic-partition {missing[0]} and timestamp "
            f"{times_of(bound, missing)[missing[0]]} ({bound.option}"
            + (f"; also {len(missing) - 1} more partitions" if len(missing) > 1 else "")
            + "): no record there has that time or a later one. Set "
            "startingOffsetsByTimestampStrategy=latest to read nothing of such partitions"
        )
    return bound_at_times(bound, offsets_at_times)


def bound_at_times(bound: source.OffsetBound, offsets_at_times: Offsets) -> source.OffsetBound:
    """Return a bound by time as offsets. `offsets_at_times` has -1, which means the end of the log,
    for a partition in which no record has that time or a later one; `missed_times_ms` of the result
    has these times."""
    times_ms = times_of(bound, offsets_at_times)
    missed = {tp: ms for tp, ms in times_ms.items() if offsets_at_times[tp] < 0}
    return source.OffsetBound(
        "specific", offsets_at_times, option=bound.option, from_time=True, missed_times_ms=missed
    )


def plan_ranges(
    partitions: Collection[TopicPartition],
    starting: source.OffsetBound,
    ending: source.OffsetBound,
    earliest: Offsets,
    latest: Offsets,
    *,
    bind_in_task: bool = False,
) -> tuple[list[KafkaInputPartition], list[Loss]]:
    """Return the ranges to read, sorted by topic and partition, and the losses.

    `latest` is the high watermark, or the last stable offset for read_committed. The bounds must
    have passed `check_named`. Ranges are narrowed to the offsets that exist; the losses name those
    that do not. Empty ranges are left out, unless `bind_in_task` leaves their end open: there may
    be records when the task runs. Raises OptionError for bounds that contradict each other.
    """
    check_bounds(starting, ending)
    from_time = starting.from_time or ending.from_time
    ranges, losses = [], []
    for tp in sorted(partitions):
        log_start, log_end = earliest[tp], latest[tp]
        start = offset_of(starting, tp, log_start, log_end)
        end = offset_of(ending, tp, log_start, log_end)
        planned = KafkaInputPartition(tp.topic, tp.partition, start, end)
        if bind_in_task:
            planned = _with_open_bounds(planned, starting, ending)
        if start == end:
            if planned.open_end:
                ranges.append(planned)
            continue
        if start > end and from_time:
            if _bound_number(starting, tp) < 0:
                continue  # no record to start with
            raise OptionError(
                f"[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] {tp}: {starting.option} means "
                f"offset {start}, which is behind {ending.option}, offset {end}"
            )
        if start > end:
            losses.append(_start_behind_end_loss(tp, start, ending, f"[{log_start}, {log_end})"))
            if planned.open_end:  # the log may have grown beyond the start when the task runs
                ranges.append(replace(planned, end=start))
            continue
        kept_start = min(max(start, log_start), log_end)
        kept_end = max(min(end, log_end), log_start)
        missing = (end - start) - max(0, kept_end - kept_start)
        if missing:
            text = f"{tp}: requested offsets [{start}, {end}), available [{log_start}, {log_end})"
            condition = "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE"
            losses.append(Loss(condition, text, missing, tp))
        if kept_start < kept_end or planned.open_end:
            ranges.append(replace(planned, start=kept_start, end=kept_end))
    return ranges, losses


def _with_open_bounds(
    planned: KafkaInputPartition, starting: source.OffsetBound, ending: source.OffsetBound
) -> KafkaInputPartition:
    """Return the range with those ends open for which the user gave no offset (see
    `KafkaInputPartition`).

    A start by time is open, too: if the record that was found is deleted, the first one that still
    exists has that time or a later one, if records are in order of time.
    """
    tp = planned.tp
    start_time_ms, end_time_ms = starting.missed_times_ms.get(tp), ending.missed_times_ms.get(tp)
    is_earliest = _bound_number(starting, tp) == source.EARLIEST_OFFSET
    # From latest to latest nothing is ever read.
    open_end = _bound_number(ending, tp) == source.LATEST_OFFSET and (
        _bound_number(starting, tp) != source.LATEST_OFFSET or start_time_ms is not None
    )
    return replace(
        planned,
        open_start=is_earliest or starting.from_time,
        open_end=open_end,
        whole_log=is_earliest and open_end,
        start_time_ms=start_time_ms,
        end_time_ms=end_time_ms if open_end else None,
    )


def _start_behind_end_loss(
    tp: TopicPartition, start: int, ending: source.OffsetBound, available: str
) -> Loss:
    """Return the loss of a partition whose start is behind its end. `available`: its offsets.

    `check_bounds` refuses two offsets of the user in this order, so one of the two is the start or
    the end of the log: all records before the user's end are deleted, or the log ends before the
    user's start. The number of missing records is unknown, since the user set only one offset.
    """
    stop = _bound_number(ending, tp)
    requested = f"from {start} on" if stop < 0 else f"before {stop}"
    text = f"{tp}: requested offsets {requested}, available {available}"
    return Loss("RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET", text, 0, tp)


def _bound_number(bound: source.OffsetBound, tp: TopicPartition) -> int:
    """Return the bound's offset in a partition, or EARLIEST_OFFSET or LATEST_OFFSET, which are
    negative."""
    if bound.kind == "specific":
        return bound.offsets[tp]
    return source.EARLIEST_OFFSET if bound.kind == "earliest" else source.LATEST_OFFSET


def offset_of(bound: source.OffsetBound, tp: TopicPartition, earliest: int, latest: int) -> int:
    """Return the offset that the bound means in a log with these first and end offsets."""
    number = _bound_number(bound, tp)
    return {source.EARLIEST_OFFSET: earliest, source.LATEST_OFFSET: latest}.get(number, number)


# --- tasks -----------------------------------------------------------------------------------


def split_ranges(
    ranges: Sequence[KafkaInputPartition],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[KafkaInputPartition]:
    """Split ranges until there are `min_partitions` (minPartitions), none longer than `max_records`
    (maxRecordsPerPartition). The parts of a range differ by one offset at most.

    The JVM connector's KafkaOffsetRangeCalculator rounds, and so may return fewer ranges than
    minPartitions.
    """
    counts = [1] * len(ranges)
    if max_records is not None:
        counts = [max(1, -(-whole.count // max_records)) for whole in ranges]
    missing = (min_partitions or 0) - sum(counts)
    # Give one more part to the range with the longest parts, until there are enough.
    longest = [
        (-whole.count / count, index)
        for index, (whole, count) in enumerate(zip(ranges, counts, strict=True))
    ]
    heapq.heapify(longest)
    while missing > 0 and longest:
        _, index = longest[0]
        size = ranges[index].count
        if counts[index] >= size:  # parts of one offset each cannot be split
            heapq.heappop(longest)
            continue
        counts[index] += 1
        missing -= 1
        heapq.heapreplace(longest, (-size / counts[index], index))
    return [
        part
        for whole, count in zip(ranges, counts, strict=True)
        for part in ([whole] if count == 1 else _split(whole, count))
    ]


def _split(whole: KafkaInputPartition, count: int) -> Iterator[KafkaInputPartition]:
    """Yield a range in `count` parts. Only the last one keeps an open end. All keep an open start,
    since retention may delete more than the first part."""
    start = whole.start
    for remaining in range(count, 0, -1):
        end = start + -(-(whole.end - start) // remaining)
        yield whole.part(start, end)
        start = end


def group_small_ranges(
    ranges: Sequence[KafkaInputPartition],
    offset_bytes: Mapping[TopicPartition, float],
    max_ranges: int | None = None,
) -> list[TaskPartition]:
    """Return the ranges as input partitions of a micro-batch, in which small ranges share a task.

    A task costs Spark some 40 ms, whatever it reads. A group has at most `max_ranges` ranges
    (maxRangesPerTask), GROUP_ROWS rows and GROUP_BYTES bytes. `offset_bytes` is the mean size of an
    offset by partition. Ranges of one leader are grouped together, since a task connects to each
    leader of its ranges.
    """
    groups: list[list[KafkaInputPartition]] = []
    free_share = 0.0  # the share of a task that the last group leaves free
    for planned in sorted(
        ranges, key=lambda planned: (planned.leader or ("", 0), planned.topic, planned.partition)
    ):
        mean_bytes = offset_bytes.get(planned.tp, 1_024)  # a guess if it is not known
        # The share of a task that this range takes. A range itself costs about as much as 150 rows.
        share = max((planned.count + 150) / GROUP_ROWS, planned.count * mean_bytes / GROUP_BYTES)
        if share > free_share or len(groups[-1]) == max_ranges:
            groups.append([])
            free_share = 1.0
        groups[-1].append(planned)
        free_share -= share
    return [group[0] if len(group) == 1 else SmallRanges(tuple(group)) for group in groups]


def group_empty_ranges(ranges: Sequence[KafkaInputPartition]) -> list[TaskPartition]:
    """Return the ranges as input partitions of a batch read, in which those that are empty now
    share MAX_EMPTY_TASKS tasks."""
    empty = [planned for planned in ranges if not planned.count]
    if len(empty) <= MAX_EMPTY_TASKS:
        return list(ranges)
    groups = [SmallRanges(tuple(empty[first::MAX_EMPTY_TASKS])) for first in range(MAX_EMPTY_TASKS)]
    return [*(planned for planned in ranges if planned.count), *groups]
