"""From a subscription and offsets to the ranges that tasks read. Pure functions, no I/O.

Offsets are those of Kafka: a range [start, end) ends before `end`. Names in square brackets in
messages are the error conditions of Spark's JVM connector, so that they can be searched for.

One difference from the JVM connector is on purpose: `assign` with a partition that does not exist
is an error (the JVM connector silently reads less).

Spark plans a Python data source once for each `load()` and reads the same input partitions in each
query of that DataFrame. A batch read therefore leaves the ends `earliest` and `latest` open, as the
JVM connector's KafkaOffsetReaderAdmin does, and the task binds them (bindOffsets=task).
"""

from __future__ import annotations

import heapq
import logging
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from sparkkafka.client.values import Address, TopicPartition
from sparkkafka.config.source import EARLIEST_OFFSET, LATEST_OFFSET, OffsetBound, PartitionKey
from sparkkafka.errors import DataLossError, OptionError, counted, some
from sparkkafka.spark.metric_reports import LOST, Report

log = logging.getLogger(__name__)

MAX_SHOWN = 10
"""How many partitions an error message lists."""

ROWS_OF_A_GROUP = 20_000
BYTES_OF_A_GROUP = 4 * 2**20
ROWS_OF_A_RANGE = 150
"""What a range costs a task besides its rows, in rows."""
UNKNOWN_OFFSET_BYTES = 1_024

MAX_EMPTY_TASKS = 8
"""Tasks for partitions that are empty when a batch read is planned. A task costs Spark some 30 ms,
and partitions that share one are read one after the other if they have records later."""


@dataclass(frozen=True)
class KafkaInputPartition(InputPartition):
    """The records of one partition with start <= offset < end, from planning to one task.

    `times_ms` (first, last, both included) leaves out records of other times. `topic_id` (16 bytes;
    None before Kafka 2.8) tells the topic from a later one of the same name. `leader` is the
    address of the partition's leader at planning time: the task asks it first.

    Open ends, which the task binds (batch reads only). `open_start`: records from `start` on may be
    deleted by then, which is no data loss; the task begins where the log does. `open_end`: the task
    stops where the log ends when it begins to read; `end` is where it ended at planning, under the
    leader of `leader_epoch`. `whole_log`: earliest to latest, uncut; if the topic has been
    recreated, the task reads the new one. `start_time_ms` and `end_time_ms`: times that no record
    had reached at planning; the task looks them up again.
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
        return TopicPartition(self.topic, self.partition)

    @property
    def count(self) -> int:
        """The number of offsets at planning; some may have no record."""
        return self.end - self.start


@dataclass(frozen=True)
class SmallRanges(InputPartition):
    """Ranges of several partitions for one task, of a micro-batch or of a batch read."""

    ranges: tuple[KafkaInputPartition, ...]


class Loss(NamedTuple):
    """What a batch read or a micro-batch cannot read, with the JVM connector's error condition.

    `missing` counts offsets where that is possible; some may never have held a record (compaction,
    markers).
    """

    condition: str
    text: str
    missing: int
    tp: TopicPartition | None = None


# --- topics and partitions -------------------------------------------------------------------


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """The expression of subscribePattern. Raises OptionError if Python reads it unlike Java.

    Python's compiler refuses what only Java knows (\\p{Alpha}, (?<name>…), \\Q…\\E), and warns of
    set operations in brackets ([a-z&&[^x]]), which mean something else there: an error here too.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        try:
            return re.compile(pattern, re.ASCII)
        except (re.error, FutureWarning, RecursionError, OverflowError) as error:
            raise OptionError(
                f"subscribePattern {pattern!r} is not a regular expression that Python reads "
                f"({error}); constructs that only Java knows must be written in another way"
            ) from None


def matching_topics(pattern: re.Pattern[str], topics: Mapping[str, bool]) -> list[str]:
    """Names in which the pattern is found, sorted. `topics` maps a name to "is internal".

    A search, not a full match, as Scala's findFirstIn in the JVM connector. Internal topics
    (__consumer_offsets) are left out, as in KafkaConsumer.
    """
    return sorted(
        name for name, internal in topics.items() if not internal and pattern.search(name)
    )


def check_assigned(
    assigned: Iterable[PartitionKey], existing: Mapping[str, Collection[int]]
) -> list[TopicPartition]:
    """The assigned partitions. Raises OptionError naming those that their topic does not have."""
    chosen = [TopicPartition(*key) for key in assigned]
    missing = [tp for tp in chosen if tp.partition not in existing.get(tp.topic, ())]
    if missing:
        facts = ", ".join(
            f"{topic} has {len(existing.get(topic, ()))} partitions"
            for topic in sorted({tp.topic for tp in missing})
        )
        raise OptionError(
            f"assign names partitions that do not exist: {listed(missing)} ({facts}). "
            "Remove them from the option"
        )
    return chosen


# --- offsets ---------------------------------------------------------------------------------


def check_bounds(starting: OffsetBound, ending: OffsetBound) -> None:
    """Checks what needs no broker. Raises OptionError."""
    first_name = starting.option or "startingOffsets"
    last_name = ending.option or "endingOffsets"
    if starting.kind == ending.kind == "timestamp":
        if starting.timestamp_ms > ending.timestamp_ms:
            raise OptionError(
                "[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] startingTimestamp "
                f"{starting.timestamp_ms} is greater than endingTimestamp {ending.timestamp_ms}"
            )
        return
    if starting.kind != ending.kind or starting.kind not in ("specific", "timestamps"):
        return
    first, last = starting.offsets, ending.offsets
    if set(first) != set(last):
        raise OptionError(
            "[MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET] "
            f"{first_name} and {last_name} must name the same partitions; only in {first_name}: "
            f"{listed(_keys(set(first) - set(last)))}; only in {last_name}: "
            f"{listed(_keys(set(last) - set(first)))}"
        )
    if starting.from_time or ending.from_time:
        return
    for key in sorted(first):
        if 0 <= last[key] < first[key]:
            raise OptionError(
                "[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] "
                f"{TopicPartition(*key)}: {first_name} {first[key]} is greater than "
                f"{last_name} {last[key]}"
            )


def check_named(option: str, bound: OffsetBound, partitions: Collection[TopicPartition]) -> None:
    """Offsets or times by partition must name each partition that is read, and no other one.

    Raises OptionError. (The words "start offset" in the condition's name are the JVM connector's
    for both ends.)
    """
    if bound.kind not in ("specific", "timestamps"):
        return
    named = set(bound.offsets)
    read: set[PartitionKey] = {(tp.topic, tp.partition) for tp in partitions}
    if named != read:
        hint = " (use -2 for earliest)" if "starting" in option else " (use -1 for latest)"
        condition = "KAFKA_START_OFFSET"
        if bound.by_time:
            condition, hint = "KAFKA_TIMESTAMP_OFFSET", ""
        raise OptionError(
            f"[{condition}_DOES_NOT_MATCH_ASSIGNED] {bound.option or option} must name all "
            f"partitions that are read{hint} and no others. "
            f"Missing: {listed(_keys(read - named))}; too many: {listed(_keys(named - read))}"
        )


def times_of(
    bound: OffsetBound, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """The milliseconds whose offsets a bound by time asks for; empty for other bounds."""
    if bound.kind == "timestamp":
        return dict.fromkeys(partitions, bound.timestamp_ms)
    if bound.kind == "timestamps":
        return {tp: bound.offsets[tp] for tp in partitions}
    return {}


def start_at_times(
    bound: OffsetBound, found: Mapping[TopicPartition, int], *, no_match_strategy: str
) -> OffsetBound:
    """A start by time as offsets. `found` is -1 where no record is of that time or later.

    Of such a partition nothing is read with the strategy "latest"; "error" raises OptionError.
    """
    missing = sorted(tp for tp, offset in found.items() if offset < 0)
    if missing and no_match_strategy == "error":
        raise OptionError(
            f"No offset matched from request of topic-partition {missing[0]} and timestamp "
            f"{times_of(bound, missing)[missing[0]]} ({bound.option}"
            + (f"; also {len(missing) - 1} more partitions" if len(missing) > 1 else "")
            + "): no record there has that time or a later one. Set "
            "startingOffsetsByTimestampStrategy=latest to read nothing of such partitions"
        )
    return _resolved(bound, found)


def end_at_times(bound: OffsetBound, found: Mapping[TopicPartition, int]) -> OffsetBound:
    """An end by time as offsets; the end of the log (-1) where no record is that late."""
    return _resolved(bound, found)


def _resolved(bound: OffsetBound, found: Mapping[TopicPartition, int]) -> OffsetBound:
    offsets: dict[PartitionKey, int] = {(tp.topic, tp.partition): at for tp, at in found.items()}
    missed_ms: dict[PartitionKey, int] = {
        tp: ms for tp, ms in times_of(bound, found).items() if found[tp] < 0
    }
    return OffsetBound(
        "specific", offsets, option=bound.option, from_time=True, missed_times_ms=missed_ms
    )


def plan_ranges(
    partitions: Collection[TopicPartition],
    starting: OffsetBound,
    ending: OffsetBound,
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    *,
    bind_in_task: bool = False,
) -> tuple[list[KafkaInputPartition], list[Loss]]:
    """Ranges to read, by topic and partition; and what is missing.

    `latest` is the high watermark, or the last stable offset for read_committed. Ranges are cut to
    what is available, and the losses say what was cut off. Empty ranges are left out, unless
    `bind_in_task` leaves their end open: there may be records when the task runs. Raises
    OptionError for bounds that do not fit the partitions or each other.
    """
    check_bounds(starting, ending)
    check_named("startingOffsets", starting, partitions)
    check_named("endingOffsets", ending, partitions)
    from_time = starting.from_time or ending.from_time
    ranges, losses = [], []
    for tp in sorted(partitions):
        first, last = earliest[tp], latest[tp]
        start = _resolve(starting, tp, first, last)
        end = _resolve(ending, tp, first, last)
        wanted_from, wanted_to = _given(starting, tp), _given(ending, tp)
        planned = KafkaInputPartition(tp.topic, tp.partition, start, end)
        if bind_in_task:
            planned = _with_open_ends(planned, starting, ending)
        if start == end:
            if planned.open_end:
                ranges.append(planned)
            continue
        if start > end and from_time:
            if wanted_from is None:
                continue  # nothing was found to start with
            raise OptionError(
                f"[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] {tp}: {starting.option} means "
                f"offset {start}, which is behind {ending.option}, offset {end}"
            )
        if start > end:
            losses.append(_nothing_left(tp, start, wanted_to, f"[{first}, {last})"))
            if planned.open_end:
                ranges.append(replace(planned, end=start))
            continue
        kept_start, kept_end = min(max(start, first), last), max(min(end, last), first)
        missing = (end - start) - max(0, kept_end - kept_start)
        if missing:
            losses.append(_lost(tp, start, end, f"[{first}, {last})", missing))
        if kept_start < kept_end or planned.open_end:
            ranges.append(replace(planned, start=kept_start, end=kept_end))
    return ranges, losses


def _with_open_ends(
    planned: KafkaInputPartition, starting: OffsetBound, ending: OffsetBound
) -> KafkaInputPartition:
    """The range with the ends open that are no offsets of the user's.

    A start by time is open too: if the record that was found is deleted, the first one that is left
    is of that time or later, as far as records are in order of time.
    """
    tp = planned.tp
    start_time_ms, end_time_ms = starting.missed_times_ms.get(tp), ending.missed_times_ms.get(tp)
    is_earliest = _word(starting, tp) == EARLIEST_OFFSET
    # From latest to latest nothing is ever read.
    open_end = _word(ending, tp) == LATEST_OFFSET and (
        _word(starting, tp) != LATEST_OFFSET or start_time_ms is not None
    )
    return replace(
        planned,
        open_start=is_earliest or starting.from_time,
        open_end=open_end,
        whole_log=is_earliest and open_end,
        start_time_ms=start_time_ms,
        end_time_ms=end_time_ms if open_end else None,
    )


def _given(bound: OffsetBound, tp: TopicPartition) -> int | None:
    """The offset that the user wrote, or None for earliest and latest in either form."""
    word = _word(bound, tp)
    return word if word >= 0 else None


def _word(bound: OffsetBound, tp: TopicPartition) -> int:
    """The bound as a number: an offset, EARLIEST_OFFSET or LATEST_OFFSET."""
    if bound.kind == "specific":
        return bound.offsets[tp]
    return EARLIEST_OFFSET if bound.kind == "earliest" else LATEST_OFFSET


def _resolve(bound: OffsetBound, tp: TopicPartition, earliest: int, latest: int) -> int:
    word = _word(bound, tp)
    return {EARLIEST_OFFSET: earliest, LATEST_OFFSET: latest}.get(word, word)


# --- tasks -----------------------------------------------------------------------------------


def split_ranges(
    ranges: Sequence[KafkaInputPartition],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[KafkaInputPartition]:
    """The same offsets in the same order, in `min_partitions` (minPartitions) ranges or more, none
    longer than `max_records` (maxRecordsPerPartition). Pieces of a range differ by one at most.

    As the JVM connector's KafkaOffsetRangeCalculator, but that rounds its shares, and may give
    fewer ranges than asked for.
    """
    parts = [1] * len(ranges)
    if max_records is not None:
        parts = [max(1, -(-whole.count // max_records)) for whole in ranges]
    missing = (min_partitions or 0) - sum(parts)
    if missing > 0:
        _add_parts(parts, [whole.count for whole in ranges], missing)
    return [
        piece
        for whole, count in zip(ranges, parts, strict=True)
        for piece in _pieces_of(whole, count)
    ]


def _add_parts(parts: list[int], sizes: list[int], missing: int) -> None:
    """Each further cut goes to the range whose pieces are longest."""
    longest = [
        (-size / count, at) for at, (size, count) in enumerate(zip(sizes, parts, strict=True))
    ]
    heapq.heapify(longest)
    while missing and longest:
        _, at = longest[0]
        if parts[at] >= sizes[at]:  # pieces of one offset each cannot be cut
            heapq.heappop(longest)
            continue
        parts[at] += 1
        missing -= 1
        heapq.heapreplace(longest, (-sizes[at] / parts[at], at))


def _pieces_of(whole: KafkaInputPartition, count: int) -> Iterator[KafkaInputPartition]:
    """Only the last piece keeps an open end. All keep an open start: retention may take more than
    the first."""
    if count == 1:
        yield whole
        return
    start = whole.start
    for left in range(count, 0, -1):
        end = start + -(-(whole.end - start) // left)
        is_last = left == 1
        yield replace(
            whole,
            start=start,
            end=end,
            open_end=whole.open_end and is_last,
            end_time_ms=whole.end_time_ms if is_last else None,
            whole_log=False,
        )
        start = end


def grouped(
    ranges: Sequence[KafkaInputPartition],
    offset_bytes: Mapping[TopicPartition, float],
    most_ranges: int | None = None,
) -> list[InputPartition]:
    """The ranges as tasks of a micro-batch: small ones travel together, large ones alone.

    A task costs Spark some 40 ms, whatever it reads. Together are at most `most_ranges`
    (maxRangesPerTask) and about what one core reads in that time: ROWS_OF_A_GROUP, of
    BYTES_OF_A_GROUP by `offset_bytes`, the mean size of an offset by partition. Ranges of one
    leader come together, since a task has a connection to each leader of its own.
    """
    groups: list[list[KafkaInputPartition]] = []
    room = 0.0
    for one in sorted(ranges, key=lambda one: (one.leader or ("", 0), one.topic, one.partition)):
        each_bytes = offset_bytes.get(one.tp, UNKNOWN_OFFSET_BYTES)
        share = max(
            (one.count + ROWS_OF_A_RANGE) / ROWS_OF_A_GROUP,
            one.count * each_bytes / BYTES_OF_A_GROUP,
        )
        if share > room or len(groups[-1]) == most_ranges:
            groups.append([])
            room = 1.0
        groups[-1].append(one)
        room -= share
    return [group[0] if len(group) == 1 else SmallRanges(tuple(group)) for group in groups]


def grouped_empty(ranges: Sequence[KafkaInputPartition]) -> list[InputPartition]:
    """The ranges as tasks of a batch read: those that are empty now share MAX_EMPTY_TASKS tasks."""
    empty = [planned for planned in ranges if not planned.count]
    if len(empty) <= MAX_EMPTY_TASKS:
        return list(ranges)
    groups = [SmallRanges(tuple(empty[at::MAX_EMPTY_TASKS])) for at in range(MAX_EMPTY_TASKS)]
    return [*(planned for planned in ranges if planned.count), *groups]


# --- losses ----------------------------------------------------------------------------------


def _lost(tp: TopicPartition, start: int, end: int, available: str, missing: int) -> Loss:
    condition = "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE"
    text = f"{tp}: wanted offsets [{start}, {end}), available {available}"
    return Loss(condition, text, missing, tp)


def _nothing_left(tp: TopicPartition, start: int, wanted_to: int | None, available: str) -> Loss:
    """The start is behind the end. `check_bounds` refuses two given offsets in this order, so one
    of them is an end of the log: all records before a given end are deleted, or the log ends
    before a given start. How many are missing is not known: the user gave one end only."""
    wanted = f"from {start} on" if wanted_to is None else f"before {wanted_to}"
    text = f"{tp}: wanted offsets {wanted}, available {available}"
    return Loss("RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET", text, 0, tp)


def accept_losses(
    losses: list[Loss], report: Report, *, fail: bool, streaming: bool = False
) -> None:
    """failOnDataLoss=true: raises DataLossError. false: one warning, and for `sparkkafka.metrics`
    the offsets that can be counted."""
    if fail:
        raise loss_error(losses, streaming=streaming)
    for loss in losses:
        if loss.tp is not None:
            report.add(LOST, loss.missing, *loss.tp)
    log.warning("%s", loss_warning(losses, streaming=streaming))


def loss_error(losses: list[Loss], *, streaming: bool = False) -> DataLossError:
    """The error of failOnDataLoss=true: what was wanted, what exists, and what to do. Of a stream
    it begins with the JVM connector's words."""
    what = describe(losses)
    if streaming:
        text = (
            "Some data may have been lost because they are not available in Kafka any more; either "
            "the data was aged out by Kafka or the topic may have been deleted before all the data "
            f"in the topic was processed. Reason: {what}. To go on with what is left, restart the "
            "query with failOnDataLoss=false; to read again from startingOffsets, use a new "
            "checkpoint location"
        )
    else:
        text = (
            f"{what}. Records were deleted (retention, or the topic was recreated), or the offsets "
            "lie beyond the end of the log. Choose startingOffsets and endingOffsets within what "
            "is available, or set failOnDataLoss=false to read what there is"
        )
    conditions = sorted({loss.condition for loss in losses})
    return DataLossError(f"[{', '.join(conditions)}] {text}")


def loss_warning(losses: list[Loss], *, streaming: bool = False) -> str:
    """The one log line of failOnDataLoss=false."""
    missing = sum(loss.missing for loss in losses)
    if streaming:
        count = f"{missing} offsets or more" if missing else "an unknown number of offsets"
        skipped = f"{count} skipped"
    else:
        count = f"{missing} wanted offsets" if missing else "wanted offsets"
        where = counted(len(losses), "partition")
        skipped = f"{count} in {where} are not there and are skipped"
    return f"data loss, failOnDataLoss=false: {skipped}: {describe(losses)}"


def describe(losses: list[Loss]) -> str:
    return some((loss.text for loss in losses), MAX_SHOWN, between="; ")


def _keys(keys: Iterable[PartitionKey]) -> list[TopicPartition]:
    return sorted(TopicPartition(*key) for key in keys)


def listed(partitions: list[TopicPartition]) -> str:
    return some(partitions, MAX_SHOWN) or "none"
