"""The metrics, named by Prometheus' conventions, and `MetricAggregator`, which adds up their values
from progress, reports and lookups.

It stores queries by id, since reports have only the id and may come before the listener's first
event. They are exported under their name, if they have one.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from sparkkafka.client.values import Offsets, TopicPartition
from sparkkafka.spark.metric_reports import ALL_PARTITIONS, Count, Report, ends_key
from sparkkafka.spark.stream.progress import KafkaSourceProgress


class Value(StrEnum):
    """Names of the aggregator's values. Those that come from reports are in `Count`."""

    # from Spark's progress
    BATCHES = "batches"
    INPUT_ROWS = "input_rows"
    LAG = "lag"
    LAST_BATCH_S = "last_batch_s"
    LAST_TRIGGER_S = "last_trigger_s"
    TRIGGER_S = "trigger_s"
    DURATION_S = "duration_s"
    ACTIVE = "active"
    FAILURES = "failures"
    # from the brokers
    BEHIND_S = "behind_s"
    OLDEST_TRANSACTION_S = "oldest_transaction_s"
    LOOKUP_FAILURES = "lookup_failures"
    # of the reports themselves
    RECEIVED = "received"
    DROPPED = "dropped"


class Metric(NamedTuple):
    """A metric's `field` in the aggregator, its name and description, and its labels. Metrics with
    the label topic may also have partition. Names of counters end in _total; all others are gauges.
    """

    field: str
    name: str
    doc: str
    labels: tuple[str, ...] = ("query",)

    @property
    def is_counter(self) -> bool:
        return self.name.endswith("_total")


_BY_TOPIC: Final = ("query", "topic")

QUERY_METRICS: Final = (
    Metric(Value.ACTIVE, "sparkkafka_query_active", "1 while the query runs, 0 after its end."),
    Metric(Value.FAILURES, "sparkkafka_query_failures_total", "Ends of the query with an error."),
    Metric(Value.BATCHES, "sparkkafka_batches_total", "Finished micro-batches."),
    Metric(Value.INPUT_ROWS, "sparkkafka_input_rows_total",
        "Rows that Spark read from Kafka sources."),
    Metric(Value.LAST_BATCH_S, "sparkkafka_last_progress_timestamp_seconds",
        "When the query last made progress, or reported that there was nothing to do."),
    Metric(Value.LAST_TRIGGER_S, "sparkkafka_last_trigger_seconds",
        "Duration of the last micro-batch."),
    Metric(Value.TRIGGER_S, "sparkkafka_trigger_seconds_total", "Total duration of micro-batches."),
    Metric(Value.DURATION_S, "sparkkafka_trigger_part_seconds_total",
        "Parts of that duration by Spark's names: addBatch, latestOffset, walCommit, …",
        ("query", "part")),
    Metric(Count.RETRIES, "sparkkafka_plan_retries_total",
        "Requests of planning that were retried."),
    Metric(Count.WRITTEN_BYTES, "sparkkafka_written_bytes_total",
        "Written bytes of keys and values."),
    Metric(Count.WRITE_RETRIES, "sparkkafka_write_retries_total",
        "Record batches that were sent again."),
    Metric(Count.COMMITTED, "sparkkafka_transactions_committed_total",
        "Committed transactions of exactly-once writes."),
    Metric(Count.ABORTED, "sparkkafka_transactions_aborted_total",
        "Aborted transactions of exactly-once writes."),
    Metric(Value.OLDEST_TRANSACTION_S,
        "sparkkafka_oldest_open_transaction_timestamp_seconds",
        "When the query's oldest open transaction began. Without one there is no value."),
)  # fmt: skip

TOPIC_METRICS: Final = (
    Metric(Count.OFFSETS, "sparkkafka_read_offsets_total",
        "Offsets read by finished micro-batches, markers and gaps included.", _BY_TOPIC),
    Metric(Value.LAG, "sparkkafka_lag_records", "Unread offsets.", _BY_TOPIC),
    Metric(Value.BEHIND_S, "sparkkafka_lag_seconds",
        "Age of the oldest unread record; for a topic the largest of its partitions.", _BY_TOPIC),
    Metric(Count.RECORDS, "sparkkafka_read_records_total",
        "Records read by tasks, or by the driver for a small micro-batch.", _BY_TOPIC),
    Metric(Count.BYTES, "sparkkafka_read_bytes_total",
        "Bytes of their keys, values and headers, as far as the query reads these columns.",
        _BY_TOPIC),
    Metric(Count.RETRIES, "sparkkafka_read_retries_total", "Fetches that were retried.", _BY_TOPIC),
    Metric(Count.LOST, "sparkkafka_lost_offsets_total",
        "Deleted offsets that were skipped (failOnDataLoss=false).", _BY_TOPIC),
    Metric(Count.BAD, "sparkkafka_bad_records_total", "Records that their schema cannot read.",
        _BY_TOPIC),
    Metric(Count.DEAD, "sparkkafka_dead_letters_total",
        "Bad records of the topic written to the dead-letter topic.", _BY_TOPIC),
    Metric(Count.ROWS, "sparkkafka_written_rows_total",
        "Rows written to the topic; with exactly-once only visible ones.", _BY_TOPIC),
)  # fmt: skip

# Metrics of the export, not of a query.
EXPORT_METRICS: Final = (
    Metric(Value.RECEIVED, "sparkkafka_reports_received_total",
        "Valid reports from the driver's processes and the tasks.", ()),
    Metric(Value.DROPPED, "sparkkafka_reports_dropped_total",
        "Dropped reports, by reason: signature, form, repeated, or too many names.", ("reason",)),
    Metric(Value.LOOKUP_FAILURES, "sparkkafka_lookup_failures_total",
        "Failed lookups of lags and transactions.", ()),
)  # fmt: skip

METRICS: Final = (*QUERY_METRICS, *TOPIC_METRICS, *EXPORT_METRICS)


BATCH_JOBS: Final = "batch"
"""The name under which reads and writes outside of streaming queries are exported."""

MAX_QUERIES: Final = 200
MAX_PARTITIONS: Final = 10_000
"""Per query with the label partition. More are dropped: each is a time series in Prometheus."""
MAX_SUMMED: Final = 100_000
"""Per query without the label partition. That many partitions take some 70 MB here."""
MAX_UNMATCHED: Final = 256
"""The number of plans' reports whose query is not known yet, and of batches without a report yet,
that are kept."""
MAX_DELAY_S: Final = 10.0
"""The maximum time between the end of a batch and its plan's report. A later report belongs to
another query, which reads the same offsets."""

Totals = defaultdict[str, float]
"""Values by the names of `metric_reports.Count` and `Value`."""


class Sample(NamedTuple):
    """A value of a metric. `labels` are in the metric's order. If partitions are exported, the last
    one is partition, "" for the counts of tasks that sum up many partitions."""

    metric: Metric
    labels: Mapping[str, str]
    value: float


@dataclass
class Query:
    """The values of one query. `name` is "" before the listener's first event. `ended_at_s` is the
    end of the query, `last_seen_at_s` the time of its last event or report (both monotonic).

    `durations_s` are the sums of the durationMs of its batches by name (addBatch, …). `counts` are
    by (topic, partition). `read` has the offsets up to which it has read. `lags` are in offsets,
    looked up at the brokers if `looked_up`, else from Spark's progress; `ages_s` are the ages of
    the oldest unread records. `prefix` is that of its transactional ids, "" if no report had one.
    """

    id: str
    name: str = ""
    ended_at_s: float | None = None
    last_seen_at_s: float = field(default_factory=time.monotonic)
    totals: Totals = field(default_factory=lambda: defaultdict(float))
    durations_s: Totals = field(default_factory=lambda: defaultdict(float))
    gauges: dict[str, float] = field(default_factory=dict)
    counts: dict[tuple[str, int], Totals] = field(default_factory=dict)
    read: Offsets = field(default_factory=dict)
    lags: Offsets = field(default_factory=dict)
    ages_s: dict[TopicPartition, float] = field(default_factory=dict)
    looked_up: bool = False
    prefix: str = ""


class MetricAggregator:
    """Adds up the values of all queries. Thread-safe.

    `partitions`: values are exported by partition. `forget_s`: the seconds for which a query is
    still exported after its end.
    """

    def __init__(self, *, partitions: bool = False, forget_s: float = 300.0) -> None:
        self._partitions = partitions
        self._max_partitions = MAX_PARTITIONS if partitions else MAX_SUMMED
        self._forget_s = forget_s
        self._lock = threading.Lock()
        self._queries: dict[str, Query] = {"": Query("", BATCH_JOBS)}
        # A plan's report has no query's id. It is matched with a finished batch by a hash of the
        # batch's ends (`ends_key`): reports whose batch has not finished yet, the offsets in them,
        # and finished batches (query, time) whose report has not come yet.
        self._unmatched: OrderedDict[str, list[Report]] = OrderedDict()
        self._unmatched_offsets: OrderedDict[str, dict[tuple[str, int], int]] = OrderedDict()
        self._batch_ends: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._own: Totals = defaultdict(float)  # metrics of the export (`EXPORT_METRICS`)
        self._dropped: Totals = defaultdict(float)  # reports, by reason

    # --- events and reports -----------------------------------------------------------------------

    def query_started(self, query_id: str, name: str | None) -> None:
        """Mark the query as running. Each event of it calls this, since its start may have been
        before the listener's."""
        with self._lock:
            query = self._query(query_id)
            if query is None:
                return
            label = name if name and name != BATCH_JOBS else query_id
            if query.name != label:
                # The newer of two queries with one name counts, since a series has one value.
                same_name = [other.id for other in self._queries.values() if other.name == label]
                for other_id in same_name:
                    del self._queries[other_id]
                query.name = label
            query.ended_at_s = None
            query.gauges[Value.ACTIVE] = 1
            query.totals[Value.FAILURES] += 0  # a counter that is exported before it counts

    def query_ended(self, query_id: str, *, failed: bool) -> None:
        """Mark the query as ended."""
        with self._lock:
            query = self._queries.get(query_id)
            if query is not None and query_id:  # "" stands for batch jobs
                query.ended_at_s = time.monotonic()
                query.gauges[Value.ACTIVE] = 0
                query.gauges.pop(Value.OLDEST_TRANSACTION_S, None)
                query.totals[Value.FAILURES] += failed

    def query_idle(self, query_id: str) -> None:
        """Set the time of the query's last progress: it has reported that it had nothing to do."""
        with self._lock:
            query = self._queries.get(query_id)
            if query is not None:
                query.gauges[Value.LAST_BATCH_S] = time.time()

    def add_batch(
        self, query_id: str, sources: Sequence[KafkaSourceProgress], durations_ms: Mapping[str, int]
    ) -> None:
        """Add a finished micro-batch. `durations_ms` are those of its parts, by Spark's names."""
        with self._lock:
            query = self._query(query_id)
            if query is None:
                return
            trigger_s = durations_ms.get("triggerExecution", 0) / 1000  # of the whole batch
            query.gauges[Value.LAST_BATCH_S] = time.time()
            query.gauges[Value.LAST_TRIGGER_S] = trigger_s
            query.totals[Value.BATCHES] += 1
            query.totals[Value.INPUT_ROWS] += sum(source.rows for source in sources)
            query.totals[Value.TRIGGER_S] += trigger_s
            for part, took_ms in durations_ms.items():
                if part != "triggerExecution":
                    query.durations_s[part] += took_ms / 1000
            query.read = {}
            lags: Offsets = {}
            for source in sources:
                self._add_source(query, source, lags)
            if query.looked_up:  # these lags are newer than those of Spark's progress
                lags |= query.lags
            query.lags = {tp: lags[tp] for tp in query.read if tp in lags}

    def _add_source(self, query: Query, source: KafkaSourceProgress, lags: Offsets) -> None:
        """Add the offsets that one source read in a finished micro-batch and the report of the
        batch's plan; add the source's lag to `lags`."""
        for tp, offset in source.end.items():
            counts = self._counts(query, *tp)
            if counts is None:
                continue
            # If two sources read a partition, the one that is further behind counts.
            query.read[tp] = min(offset, query.read.get(tp, offset))
            before = (source.start or {}).get(tp)
            if before is not None:
                counts[Count.OFFSETS] += max(0, offset - before)
            if source.latest is not None and tp in source.latest:
                lags[tp] = max(0, source.latest[tp] - offset, lags.get(tp, 0))
        if source.start != source.end:
            ends = [(*tp, offset) for tp, offset in source.end.items()]
            key = ends_key(ends, is_first=source.start is None)
            # Spark's progress has no start for new partitions: the plan's report has their offsets.
            for (topic, partition), count in self._unmatched_offsets.get(key, {}).items():
                counts = self._counts(query, topic, partition)
                is_new = TopicPartition(topic, partition) not in (source.start or ())
                if counts is not None and is_new:
                    counts[Count.OFFSETS] += count
            self._match(key, query.id)

    def add_report(self, report: Report) -> None:
        """Add a report with a valid signature.

        A planner's report names its micro-batch by a hash of the offsets (`ends`), so it is added
        once a batch with these offsets has finished.
        """
        with self._lock:
            self._own[Value.RECEIVED] += 1
            query_id = report.query
            if report.ends:
                # 0.0, long ago: no batch with these ends has finished yet.
                query_id, ended_at_s = self._batch_ends.pop(report.ends, ("", 0.0))
                if time.monotonic() - ended_at_s > MAX_DELAY_S:
                    self._keep_until_batch_ends(report)
                    return
            self._add_to_query(query_id, report)

    def count_dropped(self, reason: str) -> None:
        """Count a report that was dropped for this reason."""
        with self._lock:
            self._dropped[reason] += 1

    def count_lookup_failure(self) -> None:
        with self._lock:
            self._own[Value.LOOKUP_FAILURES] += 1

    # --- lookups ----------------------------------------------------------------------------------

    def running_queries(self) -> dict[str, tuple[Offsets, str]]:
        """Return for each running query, by id, the offsets up to which it has read, and the prefix
        of its transactional ids."""
        with self._lock:
            # Batch jobs have no id, and queries of which only reports have come no name.
            return {
                query.id: (dict(query.read), query.prefix or f"sparkkafka-{query.id}")
                for query in self._queries.values()
                if query.id and query.name and query.ended_at_s is None
            }

    def set_lags(
        self, query_id: str, lags: Offsets, ages_s: Mapping[TopicPartition, float]
    ) -> None:
        """Set the lags that were looked up at the brokers. If there are none, the lookup failed:
        then the lags from Spark's progress are exported again."""
        with self._lock:
            query = self._queries.get(query_id)
            if query is not None:
                query.looked_up = bool(lags)
                query.lags |= lags
                query.ages_s = dict(ages_s)

    def set_oldest_transaction(self, query_id: str, started_at_s: float | None) -> None:
        """Set when the query's oldest open transaction began, in seconds since 1970; None if it has
        none."""
        with self._lock:
            query = self._queries.get(query_id)
            if query is None:
                return
            if started_at_s is None:
                query.gauges.pop(Value.OLDEST_TRANSACTION_S, None)
            else:
                query.gauges[Value.OLDEST_TRANSACTION_S] = started_at_s

    # --- export -----------------------------------------------------------------------------------

    def samples(self, metrics: Collection[Metric] = METRICS) -> list[Sample]:
        """Return the current values of these metrics."""
        with self._lock:
            self._forget_ended()
            return [
                Sample(metric, dict(zip(metric.labels, labels, strict=True)) | partition, value)
                for metric in metrics
                for labels, partition, value in self._values(metric)
            ]

    def _values(self, metric: Metric) -> Iterator[tuple[tuple[str, ...], dict[str, str], float]]:
        """Yield the values of a metric, each with the values of the metric's labels in their order,
        and with the label partition if it is exported."""
        if metric in EXPORT_METRICS:
            if metric.field == Value.DROPPED:
                yield from (((name,), {}, count) for name, count in sorted(self._dropped.items()))
            else:
                yield (), {}, self._own[metric.field]
            return
        for query in self._queries.values():
            if not query.name:
                continue
            if metric in TOPIC_METRICS:
                for (topic, number), value in sorted(self._by_topic(query, metric.field).items()):
                    partition = "" if number == ALL_PARTITIONS else str(number)
                    label = {"partition": partition} if self._partitions else {}
                    yield (query.name, topic), label, value
            elif metric.field == Value.DURATION_S:
                for part, seconds in sorted(query.durations_s.items()):
                    yield (query.name, part), {}, seconds
            else:
                values = query.totals if metric.is_counter else query.gauges
                if metric.field in values:
                    yield (query.name,), {}, values[metric.field]

    def _by_topic(self, query: Query, name: str) -> dict[tuple[str, int], float]:
        """Return the values of a field by (topic, partition). If partitions are not exported, there
        is one value for each topic, with ALL_PARTITIONS as its partition."""
        values: dict[tuple[str, int], float]
        if name == Value.LAG:
            values = {(tp.topic, tp.partition): lag for tp, lag in query.lags.items()}
        elif name == Value.BEHIND_S:
            values = {(tp.topic, tp.partition): age_s for tp, age_s in query.ages_s.items()}
        else:
            values = {key: row[name] for key, row in query.counts.items() if name in row}
        if self._partitions:
            return values
        by_topic: dict[tuple[str, int], float] = {}
        for (topic, _), value in values.items():
            key = (topic, ALL_PARTITIONS)
            if name == Value.BEHIND_S:
                by_topic[key] = max(by_topic.get(key, 0.0), value)
            else:
                by_topic[key] = by_topic.get(key, 0) + value
        return by_topic

    # --- internals --------------------------------------------------------------------------------

    def _query(self, query_id: str) -> Query | None:
        """Return the query with this id, new if it is not known; None if there are too many."""
        query = self._queries.get(query_id)
        if query is None:
            self._forget_ended()
            if len(self._queries) > MAX_QUERIES:
                self._dropped["too many queries"] += 1
                return None
            query = self._queries[query_id] = Query(query_id)
        query.last_seen_at_s = time.monotonic()
        return query

    def _counts(self, query: Query, topic: str, partition: int) -> Totals | None:
        """Return the counts of a partition, new if it has none; None if there are too many."""
        counts = query.counts.get((topic, partition))
        if counts is None:
            if len(query.counts) >= self._max_partitions:
                self._dropped["too many partitions"] += 1
                return None
            counts = query.counts[topic, partition] = defaultdict(float)
        return counts

    def _add_to_query(self, query_id: str, report: Report) -> None:
        """Add a report to the values of a query."""
        query = self._query(query_id)
        if query is None:
            return
        query.prefix = report.prefix or query.prefix
        for name, count in report.totals.items():
            query.totals[name] += count
        for (topic, partition), reported in report.counts.items():
            counts = self._counts(query, topic, partition)
            if counts is not None:
                for name, count in reported.items():
                    counts[name] += count

    def _match(self, ends: str, query_id: str) -> None:
        """Add the plans' reports with the ends of a finished batch (`ends_key`) to its query. If no
        such report has come yet, remember the ends, and `add_report` adds it to the query."""
        reports = self._unmatched.pop(ends, None)
        if reports is None:
            self._batch_ends[ends] = query_id, time.monotonic()
            self._drop_oldest(self._batch_ends)
            return
        for report in reports:
            self._add_to_query(query_id, report)

    def _keep_until_batch_ends(self, report: Report) -> None:
        """Keep a plan's report until a batch with its ends has finished. Its offsets are kept
        separately: they count for each query whose batch has these ends, and for each attempt."""
        offsets: dict[tuple[str, int], int] = {
            partition: counts.pop(Count.OFFSETS)
            for partition, counts in report.counts.items()
            if Count.OFFSETS in counts
        }
        if offsets:
            self._unmatched_offsets.setdefault(report.ends, {}).update(offsets)
            self._drop_oldest(self._unmatched_offsets)
        self._unmatched.setdefault(report.ends, []).append(report)
        self._drop_oldest(self._unmatched)

    @staticmethod
    def _drop_oldest(rows: OrderedDict[str, Any]) -> None:
        """Remove the oldest rows if there are more than MAX_UNMATCHED."""
        while len(rows) > MAX_UNMATCHED:
            rows.popitem(last=False)

    def _forget_ended(self) -> None:
        """Remove queries that ended at least `forget_s` seconds ago, and queries without an event
        whose last report is that old."""
        now_s = time.monotonic()
        for query in list(self._queries.values()):
            since_s = query.ended_at_s if query.name else query.last_seen_at_s
            if query.id and since_s is not None and now_s - since_s > self._forget_s:
                del self._queries[query.id]
