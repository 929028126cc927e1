"""Reads narrowed by Spark's filters and limits: the options filterPushdown, which needs Spark 4.1,
and limitPushdown, which needs 4.4.

Spark checks every filter again. So a read may return too many rows, but must not leave out a row
that passes: an unknown kind of filter restricts nothing.

Records of a partition are in order of offset, not of time, and ListOffsets returns the first record
with a time or a later one.

- All records before that one are earlier, so it is a correct start for `timestamp >= t`.
- Records after it may be earlier again. It is a correct end for `timestamp < t` only if the user
  says by how much records are out of order at most (maxTimestampDisorderMs). Brokers cannot say
  that: they know the latest times of their segments and batches, not the earliest; LogAppendTime
  is the clock of the broker that led the partition, and a topic may have had it temporarily.
  Without the option the rest of the range is fetched, and the task drops records that are too late.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.offsets import OffsetLookup, largest_timestamps
from sparkkafka.client.values import Offsets, TopicPartition
from sparkkafka.config.options import ReadOptions
from sparkkafka.errors import UnknownTopicError
from sparkkafka.spark.read.input_partitions import KafkaInputPartition
from sparkkafka.spark.read.reader import KafkaBatchReader
from sparkkafka.spark.schema import ReadColumn

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class Span(NamedTuple):
    """The integers from `low` to `high`, both included; none if high < low."""

    low: int = INT64_MIN
    high: int = INT64_MAX

    def intersect(self, other: Span) -> Span:
        """Return the integers that are in both spans."""
        return Span(max(self.low, other.low), min(self.high, other.high))

    @property
    def is_empty(self) -> bool:
        """Whether no integer is in the span."""
        return self.high < self.low


EVERYTHING = Span()
NOTHING = Span(1, 0)


@dataclass(frozen=True)
class Bounds:
    """The offsets and times (ms) of rows that can pass, and the filters on topic and partition."""

    offsets: Span = EVERYTHING
    times_ms: Span = EVERYTHING
    topic: tuple[Filter, ...] = ()
    partition: tuple[Filter, ...] = ()

    def may_have_rows(self, topic: str, partition: int) -> bool:
        """Return whether rows of this partition can pass the filters on topic and partition."""
        return all(_passes(condition, topic) is not False for condition in self.topic) and all(
            _passes(condition, partition) is not False for condition in self.partition
        )


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """Return the offset and time bounds that satisfy all filters, and the other conditions."""
    offsets, times_ms = EVERYTHING, EVERYTHING
    others: dict[str, list[Filter]] = {"topic": [], "partition": []}
    for condition in filters:
        column = _column_of(condition)
        if column == "offset":
            offsets = offsets.intersect(_span_of_filter(condition))
        elif column == "timestamp":
            times_ms = times_ms.intersect(_span_of_filter(condition))
        elif column in others:
            others[column].append(condition)
    return Bounds(offsets, times_ms, tuple(others["topic"]), tuple(others["partition"]))


def narrow_by_offsets(
    ranges: Iterable[KafkaInputPartition], bounds: Bounds
) -> list[KafkaInputPartition]:
    """Return the parts of the ranges within the bounds' offsets, topics and partitions; none if no
    time can pass."""
    if bounds.times_ms.is_empty:
        return []
    offsets = bounds.offsets
    return [
        part
        for whole in ranges
        if bounds.may_have_rows(whole.topic, whole.partition)
        for part in _intersect(whole, offsets.low, offsets.high + 1)
    ]


def times_to_look_up(bounds: Bounds, disorder_ms: int | None) -> tuple[int | None, int | None]:
    """Return the times (ms) to look up: ranges start at the first record of the one, and end before
    the first record of the other. None if the filters set no such time.

    A record is at most `disorder_ms` earlier than any record before it; None if that is unknown.
    """
    low, high = bounds.times_ms
    start_ms = low if low >= 0 else None  # negative times have other meanings in ListOffsets
    end_ms = None
    if disorder_ms is not None and high + disorder_ms < INT64_MAX:
        # The record is later than high + disorder, so all behind it are later than high.
        end_ms = max(0, high + disorder_ms + 1)
    return start_ms, end_ms


def narrow_by_times(
    ranges: Iterable[KafkaInputPartition],
    start_ms: int | None,
    starts: Offsets,
    ends: Offsets,
    largest_ms: Offsets,
) -> list[KafkaInputPartition]:
    """Return the parts of the ranges between `starts` and `ends`, which have by partition the
    offsets of the first records at the two times that were looked up, -1 if the broker found none.

    A broker may find no record although there is one: it searches only the first segment with so
    late a time, and the record that had this time may be deleted or compacted away. So a range is
    dropped only if `largest_ms`, the largest time of its partition, is before `start_ms` as well.
    """
    narrowed = []
    for whole in ranges:
        start, end = starts.get(whole.tp, -1), ends.get(whole.tp, -1)
        if start < 0 and start_ms is not None and largest_ms.get(whole.tp, INT64_MAX) < start_ms:
            continue
        narrowed += _intersect(whole, start, end if end >= 0 else whole.end)
    return narrowed


def _intersect(whole: KafkaInputPartition, start: int, end: int) -> list[KafkaInputPartition]:
    """Return the part of the range from `start` to `end`, if it is not empty.

    An open end stays open unless `end` is before it. An open start stays open, since no filter
    requires deleted records.
    """
    part = whole.part(max(whole.start, start), min(whole.end, end))
    return [part] if part.count > 0 or (part.count == 0 and part.open_end) else []


# --- a filter --------------------------------------------------------------------------------


def _column_of(condition: Filter) -> str:
    """Return the column of a filter; "" for an unknown kind of filter, or a field of a struct."""
    inner = condition.child if isinstance(condition, Not) else condition
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _span_of_filter(condition: Filter) -> Span:
    """Return the offsets or milliseconds that can pass a filter on offset or timestamp; EVERYTHING
    for an unknown kind of filter."""
    match condition:
        case IsNull() | Not(IsNotNull()) | EqualNullSafe(_, None):
            return NOTHING
        case In(_, values):
            spans = [_span_of_value(value) for value in values if value is not None]
            spans = [span for span in spans if not span.is_empty]
            if not spans:
                return NOTHING
            return Span(min(span.low for span in spans), max(span.high for span in spans))
        case EqualTo(_, value) | EqualNullSafe(_, value):
            return _span_of_value(value)
        case GreaterThanOrEqual(_, value) | Not(LessThan(_, value)):
            return Span(low=_span_of_value(value).low)
        case LessThanOrEqual(_, value) | Not(GreaterThan(_, value)):
            return Span(high=_span_of_value(value).high)
        case GreaterThan(_, value) | Not(LessThanOrEqual(_, value)):
            exact = _span_of_value(value)
            return EVERYTHING if exact == EVERYTHING else Span(low=exact.high + 1)
        case LessThan(_, value) | Not(GreaterThanOrEqual(_, value)):
            exact = _span_of_value(value)
            return EVERYTHING if exact == EVERYTHING else Span(high=exact.low - 1)
    return EVERYTHING


def _span_of_value(value: object) -> Span:
    """Return the span of one offset or one millisecond that a value means; EVERYTHING for a value
    of another type. A time between two milliseconds gives an empty span, whose `low` is the later
    and whose `high` the earlier one."""
    if isinstance(value, int) and not isinstance(value, bool):
        return Span(value, value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        microseconds = (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        return Span(-(-microseconds // 1000), microseconds // 1000)
    return EVERYTHING


def _passes(condition: Filter, known: str | int) -> bool | None:
    """Return whether a row with this value of the column passes; None if that is unknown. (If `IN`
    is null in SQL, this returns False; `NOT` of it is then True, which restricts nothing.)"""
    match condition:
        case Not(child):
            inner = _passes(child, known)
            return None if inner is None else not inner
        case IsNull() | EqualNullSafe(_, None):
            return False
        case IsNotNull():
            return True
        case In(_, values):
            if known in values:
                return True
            value_types = {type(value) for value in values if value is not None}
            return False if value_types <= {type(known)} else None
    value, compare = getattr(condition, "value", None), _COMPARISONS.get(type(condition))
    return compare(known, value) if compare and type(value) is type(known) else None


# Python's order of strings is that of their UTF-8 bytes, which Spark compares.
_COMPARISONS: Mapping[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: operator.contains,
}


# --- the reader ---------------------------------------------------------------------------------


class FilterPushdownReader(KafkaBatchReader):
    """Reads only what can pass the filters.

    It is a class of its own since Spark fails every read of a reader class that has `pushFilters`
    while spark.sql.python.filterPushdown.enabled is false. Spark's error names the class.
    """

    def __init__(self, options: ReadOptions, columns: tuple[ReadColumn, ...] | None = None) -> None:
        super().__init__(options, columns)
        self.bounds = Bounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep the filters for `partitions`, which Spark calls next, and return all of them: Spark
        checks them again at almost no cost.

        Spark (4.1 to 4.3) keeps the input partitions with the DataFrame's relation (one
        PythonDataSourceV2.readInfo for all its scans), also for a later query without filters.
        Python cannot see that, so the docs say to call load() for each query.
        """
        self.bounds = bounds_of(filters)
        return filters

    def narrow(
        self, cluster: Cluster, ranges: list[KafkaInputPartition]
    ) -> list[KafkaInputPartition]:
        """Return the parts of the ranges that can have rows which pass the pushed filters."""
        narrowed = narrow_by_offsets(ranges, self.bounds)
        start_ms, end_ms = times_to_look_up(self.bounds, self.options.max_timestamp_disorder_ms)
        partitions = [planned.tp for planned in narrowed]
        try:
            starts = _first_offsets_at(cluster, partitions, start_ms)
            ends = _first_offsets_at(cluster, partitions, end_ms)
            without_start = [tp for tp, offset in starts.items() if offset < 0]
            largest_ms = largest_timestamps(cluster, without_start)  # see `narrow_by_times`
            narrowed = narrow_by_times(narrowed, start_ms, starts, ends, largest_ms)
        except UnknownTopicError as error:
            # A topic was deleted after its offsets were bound. Its tasks apply failOnDataLoss.
            log.warning("filterPushdown: filters on timestamp narrow no offsets: %s", error)
        # A warning, since the next query of the same DataFrame may miss rows without an error.
        log.warning(
            "filterPushdown: the filters of this query leave %d of %d offsets to read. Spark may "
            "keep them for later queries of the same DataFrame: call load() for each query",
            sum(planned.count for planned in narrowed),
            sum(planned.count for planned in ranges),
        )
        if self.bounds.times_ms == EVERYTHING:
            return narrowed
        first_ms, last_ms = self.bounds.times_ms  # the tasks drop records outside of these
        return [replace(planned, times_ms=(first_ms, last_ms)) for planned in narrowed]


class LimitPushdownReader(KafkaBatchReader):
    """Stops each task after the rows that LIMIT needs.

    The ranges of offsets stay whole: compacted topics and transactions have fewer records than
    offsets, and Spark would take a range that ends too early for the end of the topic. A query like
    `df.limit(10).collect()` runs one task first, and more only if that has too few rows. Like
    pushFilters, pushLimit fails all reads of its class while Spark's setting is false.
    """

    limit: int | None = None

    def pushLimit(self, limit: int) -> bool:
        """Keep the limit for `read`. Spark calls this only if it has no filter left to check."""
        self.limit = limit
        return True

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of an input partition, at most as many as LIMIT needs."""
        batches = super().read(partition)
        return batches if self.limit is None else _first_rows(batches, self.limit)


class PushdownReader(LimitPushdownReader, FilterPushdownReader):
    """For filters and limits."""


def _first_rows(batches: Iterator[pa.RecordBatch], count: int) -> Iterator[pa.RecordBatch]:
    """Yield the first rows, and end the read: for none, before it begins."""
    while count > 0 and (batch := next(batches, None)) is not None:
        yield batch.slice(0, count)
        count -= batch.num_rows


def _first_offsets_at(
    cluster: Cluster, partitions: list[TopicPartition], time_ms: int | None
) -> Offsets:
    """Look up the first offset with this time or a later one, by partition, -1 for none. Without a
    time nothing is looked up.

    Records of open and aborted transactions count too: the first record is never after the first
    visible one.
    """
    if time_ms is None or not partitions:
        return {}
    return OffsetLookup(cluster).offsets(dict.fromkeys(partitions, time_ms))
