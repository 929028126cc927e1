"""The numbers of all queries, added up from progress, reports and lookups. From any thread.

A query is known by its id until it is exported, under its name if it has one: reports have the id
only, and may come before the listener hears of the query.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sparkkafka.client.values import TopicPartition
from sparkkafka.monitoring import catalogue
from sparkkafka.monitoring.catalogue import Metric
from sparkkafka.spark.metric_reports import ALL_PARTITIONS, OFFSETS, Report, ends_key
from sparkkafka.spark.stream.progress import KafkaSourceProgress, Offsets

BATCH_JOBS: Final = "batch"
"""The query of reads and writes that belong to no streaming query."""

MAX_QUERIES: Final = 200
MAX_PARTITIONS: Final = 10_000
"""Of a query. Further ones are dropped: whoever keeps series has no room for any number."""
MAX_SUMMED: Final = 100_000
"""The same where partitions are only added up: some 70 MB of them."""
MAX_WAITING: Final = 256
"""Plans whose query is not known yet, and ends of batches whose plan has not come yet."""
LATE_S: Final = 10.0
"""How much later than the end of its batch a plan may come. (Another query that reads the same
offsets comes later.)"""

Totals = defaultdict[str, float]


class Sample(NamedTuple):
    """One value; `labels` in the order of the metric's, and behind them a partition if asked for:
    "" stands for all, of tasks that read very many."""

    metric: Metric
    labels: Mapping[str, str]
    value: float


def _totals() -> Totals:
    return defaultdict(float)


@dataclass
class Query:
    """`name` is "" before the listener hears of it; `ended_s` on the monotonic clock."""

    id: str
    name: str = ""
    ended_s: float | None = None
    heard_s: float = field(default_factory=time.monotonic)
    totals: Totals = field(default_factory=_totals)
    parts_s: Totals = field(default_factory=_totals)
    gauges: dict[str, float] = field(default_factory=dict)
    counts: dict[tuple[str, int], Totals] = field(default_factory=dict)
    read: dict[TopicPartition, int] = field(default_factory=dict)
    lags: dict[TopicPartition, int] = field(default_factory=dict)
    ages_s: dict[TopicPartition, float] = field(default_factory=dict)
    looked_up: bool = False
    prefix: str = ""


class Numbers:
    """See the top. `forget_s`: how long a query that has ended is still exported."""

    def __init__(self, *, partitions: bool = False, forget_s: float = 300.0) -> None:
        self._partitions = partitions
        self._most_partitions = MAX_PARTITIONS if partitions else MAX_SUMMED
        self._forget_s = forget_s
        self._lock = threading.Lock()
        self._queries: dict[str, Query] = {"": Query("", BATCH_JOBS)}
        self._waiting: OrderedDict[str, list[Report]] = OrderedDict()
        self._offsets: OrderedDict[str, dict[tuple[str, int], int]] = OrderedDict()
        self._ended: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._own: Totals = _totals()
        self._dropped: Totals = _totals()

    # --- what is told -----------------------------------------------------------------------------

    def started(self, query_id: str, name: str | None) -> None:
        """The listener hears of a query: of its start, or anything later."""
        with self._lock:
            query = self._query(query_id)
            if query is None:
                return
            label = name if name and name != BATCH_JOBS else query_id
            if query.name != label:
                # Of two with one name the newer one counts: a series has one value.
                same = [one.id for one in self._queries.values() if one.name == label]
                for other in same:
                    del self._queries[other]
                query.name = label
            query.ended_s = None
            query.gauges[catalogue.ACTIVE] = 1
            query.totals[catalogue.FAILURES] += 0

    def ended(self, query_id: str, *, failed: bool) -> None:
        with self._lock:
            query = self._queries.get(query_id)
            if query is not None and query_id:
                query.ended_s = time.monotonic()
                query.gauges[catalogue.ACTIVE] = 0
                query.gauges.pop(catalogue.OLDEST_TRANSACTION_S, None)
                query.totals[catalogue.FAILURES] += failed

    def idle(self, query_id: str) -> None:
        """The query had nothing to do."""
        with self._lock:
            query = self._queries.get(query_id)
            if query is not None:
                query.gauges[catalogue.LAST_BATCH_S] = time.time()

    def batch(
        self, query_id: str, sources: Sequence[KafkaSourceProgress], durations_ms: Mapping[str, int]
    ) -> None:
        """A micro-batch is finished: its Kafka sources, and durations under Spark's names."""
        with self._lock:
            query = self._query(query_id)
            if query is None:
                return
            whole_s = durations_ms.get("triggerExecution", 0) / 1000
            query.gauges[catalogue.LAST_BATCH_S] = time.time()
            query.gauges[catalogue.LAST_TRIGGER_S] = whole_s
            query.totals[catalogue.BATCHES] += 1
            query.totals[catalogue.INPUT_ROWS] += sum(one.rows for one in sources)
            query.totals[catalogue.TRIGGER_S] += whole_s
            for part, took_ms in durations_ms.items():
                if part != "triggerExecution":
                    query.parts_s[part] += took_ms / 1000
            query.read = {}
            lags: Offsets = {}
            for one in sources:
                self._source(query, one, lags)
            query.lags = {
                tp: query.lags[tp] if query.looked_up and tp in query.lags else lags[tp]
                for tp in query.read
                if tp in lags or (query.looked_up and tp in query.lags)
            }

    def _source(self, query: Query, source: KafkaSourceProgress, lags: Offsets) -> None:
        moved = source.start != source.end
        for tp, at in source.end.items():
            row = self._row(query, *tp)
            if row is None:
                continue
            # Two sources may read one partition: what both have read, and the longer way to go.
            query.read[tp] = min(at, query.read.get(tp, at))
            before = (source.start or {}).get(tp)
            if before is not None:
                row[OFFSETS] += max(0, at - before)
            if source.latest is not None and tp in source.latest:
                lags[tp] = max(0, source.latest[tp] - at, lags.get(tp, 0))
        if moved:
            ends = [(*tp, at) for tp, at in source.end.items()]
            key = ends_key(ends, is_first=source.start is None)
            for (topic, partition), count in self._offsets.get(key, {}).items():
                row = self._row(query, topic, partition)
                if row is not None and TopicPartition(topic, partition) not in (source.start or ()):
                    row[OFFSETS] += count
            self._match(key, query.id)

    def report(self, report: Report) -> None:
        """A report whose signature is right."""
        with self._lock:
            self._own[catalogue.RECEIVED] += 1
            query_id = report.query
            if report.ends:
                query_id, ended_s = self._ended.pop(report.ends, ("", 0.0))
                if time.monotonic() - ended_s > LATE_S:
                    self._wait(report)
                    return
            self._add(query_id, report)

    def dropped(self, reason: str) -> None:
        with self._lock:
            self._dropped[reason] += 1

    def lookup_failed(self) -> None:
        with self._lock:
            self._own[catalogue.LOOKUP_FAILURES] += 1

    # --- lookups ----------------------------------------------------------------------------------

    def active(self) -> dict[str, tuple[dict[TopicPartition, int], str]]:
        """By id of each query that runs: where it has read to, and its transactions' prefix."""
        with self._lock:
            return {
                one.id: (dict(one.read), one.prefix or f"sparkkafka-{one.id}")
                for one in self._queries.values()
                if one.id and one.name and one.ended_s is None
            }

    def looked_up(
        self,
        query_id: str,
        lags: Mapping[TopicPartition, int],
        ages_s: Mapping[TopicPartition, float],
    ) -> None:
        """What the brokers say; no lags: the lookup failed, and progress counts again."""
        with self._lock:
            query = self._queries.get(query_id)
            if query is not None:
                query.looked_up = bool(lags)
                query.lags |= lags
                query.ages_s = dict(ages_s)

    def oldest_transaction(self, query_id: str, started_s: float | None) -> None:
        with self._lock:
            query = self._queries.get(query_id)
            if query is None:
                return
            if started_s is None:
                query.gauges.pop(catalogue.OLDEST_TRANSACTION_S, None)
            else:
                query.gauges[catalogue.OLDEST_TRANSACTION_S] = started_s

    # --- what is exported -------------------------------------------------------------------------

    def samples(self, metrics: Collection[Metric] = catalogue.ALL) -> list[Sample]:
        """The values of now, of all metrics or some."""
        with self._lock:
            self._forget()
            shown = [query for query in self._queries.values() if query.name]
            return [
                Sample(metric, dict(zip(metric.labels, place, strict=False)) | more, value)
                for metric in metrics
                for place, more, value in self._values(metric, shown)
            ]

    def _values(
        self, metric: Metric, shown: Iterable[Query]
    ) -> Iterator[tuple[tuple[str, ...], dict[str, str], float]]:
        """(values of the metric's labels, the label partition if it is asked for, value)"""
        if metric in catalogue.OWN:
            if metric.field == catalogue.DROPPED:
                yield from (((why,), {}, count) for why, count in sorted(self._dropped.items()))
            else:
                yield (), {}, self._own[metric.field]
            return
        for query in shown:
            if metric in catalogue.BY_TOPIC:
                for (topic, number), value in sorted(self._by_place(query, metric.field).items()):
                    partition = "" if number == ALL_PARTITIONS else str(number)
                    more = {"partition": partition} if self._partitions else {}
                    yield (query.name, topic), more, value
            elif metric.field == catalogue.PART_S:
                for part, seconds in sorted(query.parts_s.items()):
                    yield (query.name, part), {}, seconds
            else:
                values = query.totals if metric.is_counter else query.gauges
                if metric.field in values:
                    yield (query.name,), {}, values[metric.field]

    def _by_place(self, query: Query, name: str) -> dict[tuple[str, int], float]:
        values: dict[tuple[str, int], float]
        if name == catalogue.LAG:
            values = {(tp.topic, tp.partition): lag for tp, lag in query.lags.items()}
        elif name == catalogue.BEHIND_S:
            values = {(tp.topic, tp.partition): age_s for tp, age_s in query.ages_s.items()}
        else:
            values = {key: row[name] for key, row in query.counts.items() if name in row}
        if self._partitions:
            return values
        found: dict[tuple[str, int], float] = {}
        for (topic, _), value in values.items():
            key = (topic, ALL_PARTITIONS)
            if name in catalogue.LARGEST_OF_PARTITIONS:
                found[key] = max(found.get(key, 0.0), value)
            else:
                found[key] = found.get(key, 0) + value
        return found

    # --- inside -----------------------------------------------------------------------------------

    def _query(self, query_id: str) -> Query | None:
        query = self._queries.get(query_id)
        if query is None:
            self._forget()
            if len(self._queries) > MAX_QUERIES:
                self._dropped["too many queries"] += 1
                return None
            query = self._queries[query_id] = Query(query_id)
        query.heard_s = time.monotonic()
        return query

    def _row(self, query: Query, topic: str, partition: int) -> Totals | None:
        row = query.counts.get((topic, partition))
        if row is None:
            if len(query.counts) >= self._most_partitions:
                self._dropped["too many partitions"] += 1
                return None
            row = query.counts[topic, partition] = _totals()
        return row

    def _add(self, query_id: str, report: Report) -> None:
        query = self._query(query_id)
        if query is None:
            return
        query.prefix = report.prefix or query.prefix
        for name, count in report.totals.items():
            query.totals[name] += count
        for (topic, partition), counts in report.counts.items():
            row = self._row(query, topic, partition)
            if row is not None:
                for name, count in counts.items():
                    row[name] += count

    def _match(self, ends: str, query_id: str) -> None:
        """A batch of the query ends there: so do plans that say so."""
        waiting = self._waiting.pop(ends, None)
        if waiting is None:
            self._ended[ends] = query_id, time.monotonic()
            self._shorten(self._ended)
            return
        for report in waiting:
            self._add(query_id, report)

    def _wait(self, report: Report) -> None:
        """Keep the report of a plan until its batch is finished. Its offsets are kept apart: they
        are those of each query whose batch ends there, and of each attempt at the batch."""
        offsets: dict[tuple[str, int], int] = {
            partition: counts.pop(OFFSETS)
            for partition, counts in report.counts.items()
            if OFFSETS in counts
        }
        if offsets:
            self._offsets.setdefault(report.ends, {}).update(offsets)
            self._shorten(self._offsets)
        self._waiting.setdefault(report.ends, []).append(report)
        self._shorten(self._waiting)

    @staticmethod
    def _shorten(rows: OrderedDict[str, Any]) -> None:
        while len(rows) > MAX_WAITING:
            rows.popitem(last=False)

    def _forget(self) -> None:
        now_s = time.monotonic()
        for one in list(self._queries.values()):
            since_s = one.ended_s if one.name else one.heard_s
            if one.id and since_s is not None and now_s - since_s > self._forget_s:
                del self._queries[one.id]
