"""Metrics of the clients under Kafka's names, for `metrics()` of Consumer, Producer and Admin.

They are updated once a request, batch or poll, never once a record. All connections of a client
share one `NetworkMetrics`, those of its other threads included: a commit's latency is that of
OffsetCommit, whichever part of the client sent it. As in Java, records and batches count when they
are sent, and again when they are retried.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from sparkkafka.client.values import TopicPartition
from sparkkafka.protocol.constants import RECORD_BATCH_OVERHEAD

WINDOW_S = 30.0

NO_VALUE = math.nan
"""The mean or the maximum of no values, as in Java."""

Metrics = dict[str, dict[str, float]]
"""By group, then by name. A group of one topic or partition is named as in JMX:
"consumer-fetch-manager-metrics,topic=orders,partition=0"."""


class _Sample:
    """Statistics of the values from `started_at_s` on, for WINDOW_S."""

    __slots__ = ("count", "largest", "started_at_s", "total")

    def __init__(self, started_at_s: float) -> None:
        self.started_at_s = started_at_s
        self.count = 0
        self.total = 0.0
        self.largest = -math.inf


class Window(NamedTuple):
    """Statistics of the last 30 to 60 s. `rate` is the sum of the values per second, `count_rate`
    their number per second."""

    rate: float
    count_rate: float
    mean: float
    largest: float


class Sampled:
    """A series of values by time; `count` and `total` (the sum) are of all of them. Not
    thread-safe: its owner has a lock.

    This is Java's SampledStat and Rate with their defaults: two samples of 30 s each
    (metrics.sample.window.ms, metrics.num.samples). A sample is dropped when it is a minute old.
    """

    __slots__ = ("_current", "_previous", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._current = _Sample(time.monotonic())
        self._previous: _Sample | None = None

    def record(self, value: float, now_s: float) -> None:
        """Add a value at this monotonic time."""
        sample = self._current
        if now_s - sample.started_at_s >= WINDOW_S:
            self._previous = sample
            sample = self._current = _Sample(now_s)
        sample.count += 1
        sample.total += value
        if value > sample.largest:
            sample.largest = value
        self.count += 1
        self.total += value

    def window(self, now_s: float) -> Window:
        """Return statistics of the last two samples."""
        samples = [
            sample
            for sample in (self._previous, self._current)
            if sample is not None and now_s - sample.started_at_s < 2 * WINDOW_S
        ]
        count = sum(sample.count for sample in samples)
        total = sum(sample.total for sample in samples)
        elapsed_s = now_s - samples[0].started_at_s if samples else 0.0
        if elapsed_s < WINDOW_S:
            # Java's Rate.windowSize: the first window is extended by a whole one, or else the first
            # value after a start would be a rate of thousands.
            elapsed_s += WINDOW_S
        return Window(
            total / elapsed_s,
            count / elapsed_s,
            total / count if count else NO_VALUE,
            max(sample.largest for sample in samples) if count else NO_VALUE,
        )


def sum_rate_and_total(name: str, series: Sampled, now_s: float) -> dict[str, float]:
    """`name-rate` and `name-total` of the values' sum."""
    return {f"{name}-rate": series.window(now_s).rate, f"{name}-total": series.total}


def count_rate_and_total(name: str, series: Sampled, now_s: float) -> dict[str, float]:
    """`name-rate` and `name-total` of the number of values."""
    return {f"{name}-rate": series.window(now_s).count_rate, f"{name}-total": float(series.count)}


def mean_and_max(name: str, series: Sampled, now_s: float) -> dict[str, float]:
    """`name-avg` and `name-max`."""
    window = series.window(now_s)
    return {f"{name}-avg": window.mean, f"{name}-max": window.largest}


class NetworkMetrics:
    """Network metrics of one client, which the `ConnectionMeter`s of its connections update.
    `lock` guards all of them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sent = Sampled()
        """Sizes of requests."""
        self.received = Sampled()
        """Sizes of responses."""
        self.created = Sampled()
        """One for each new connection."""
        self.closed = Sampled()
        """One for each connection that ended."""
        self.latencies: defaultdict[str, Sampled] = defaultdict(Sampled)
        """By API, in ms: from writing the request to reading the response."""
        self.last_sent_at_s: dict[str, float] = {}
        """By API (monotonic)."""
        self.in_flight = 0
        """Requests whose responses have not been read."""

    def connected(self) -> ConnectionMeter:
        """Count a new connection; return the meter to which it reports its requests."""
        with self.lock:
            self.created.record(1, time.monotonic())
        return ConnectionMeter(self)

    # --- figures; with the lock -----------------------------------------------------------------

    def figures(self, now_s: float) -> dict[str, float]:
        """Return those metrics that every Java client has."""
        return {
            "connection-count": float(self.created.count - self.closed.count),
            **count_rate_and_total("connection-creation", self.created, now_s),
            **count_rate_and_total("connection-close", self.closed, now_s),
            **count_rate_and_total("request", self.sent, now_s),
            **mean_and_max("request-size", self.sent, now_s),
            **sum_rate_and_total("outgoing-byte", self.sent, now_s),
            **count_rate_and_total("response", self.received, now_s),
            **sum_rate_and_total("incoming-byte", self.received, now_s),
        }

    def latencies_ms(self, api: str) -> Sampled:
        """Latencies of this API, from writing the request to reading the response."""
        return self.latencies.get(api) or Sampled()

    def seconds_since_sent(self, apis: Iterable[str], now_s: float) -> float:
        """Return the seconds since the last request of one of these APIs, NO_VALUE if there was
        none."""
        sent_at_s = [self.last_sent_at_s[api] for api in apis if api in self.last_sent_at_s]
        return now_s - max(sent_at_s) if sent_at_s else NO_VALUE


class ConnectionMeter:
    """Meter of one connection, whose responses arrive in the order of requests. For its thread."""

    __slots__ = ("_metrics", "_unanswered")

    def __init__(self, metrics: NetworkMetrics) -> None:
        self._metrics = metrics
        self._unanswered: deque[tuple[str, float]] = deque()  # API and time of sending

    def sent(self, api: str, size_bytes: int, at_s: float, *, expects_response: bool) -> None:
        """Count a request that was written from `at_s` (monotonic) on; a Produce with acks=0
        expects no response."""
        metrics = self._metrics
        if expects_response:
            self._unanswered.append((api, at_s))
        with metrics.lock:
            metrics.sent.record(size_bytes, at_s)
            metrics.last_sent_at_s[api] = at_s
            metrics.in_flight += expects_response

    def received(self, size_bytes: int, now_s: float) -> None:
        """Count the response to the oldest request."""
        if not self._unanswered:  # an unrequested response, which closes the connection
            return
        api, sent_at_s = self._unanswered.popleft()
        metrics = self._metrics
        with metrics.lock:
            metrics.received.record(size_bytes, now_s)
            metrics.in_flight -= 1
            metrics.latencies[api].record((now_s - sent_at_s) * 1000, now_s)

    def closed(self) -> None:
        """Count the end of a connection, and with it the requests without a response."""
        with self._metrics.lock:
            self._metrics.closed.record(1, time.monotonic())
            self._metrics.in_flight -= len(self._unanswered)
        self._unanswered.clear()


FETCH = "consumer-fetch-manager-metrics"
HEARTBEATS = ("Heartbeat", "ConsumerGroupHeartbeat", "ShareGroupHeartbeat")


class PartitionFigures(NamedTuple):
    """Metrics of an assigned partition. `lag` is None before the first response; `lags` has the lag
    after each poll that returned records of it."""

    tp: TopicPartition
    lag: int | None
    lags: Sampled | None


class _ClientMetrics:
    """Base of the metrics of a Consumer or Producer. Thread-safe."""

    def __init__(self) -> None:
        self.network = NetworkMetrics()
        self._lock = self.network.lock
        self._throttles_ms = Sampled()
        self._topics: defaultdict[str, defaultdict[str, Sampled]] = defaultdict(
            lambda: defaultdict(Sampled)
        )
        """By topic, then by the name of the metric."""

    def throttled(self, throttle_ms: int) -> None:
        with self._lock:
            self._throttles_ms.record(throttle_ms, time.monotonic())

    def _topic_metrics(
        self, names: Iterable[str], totals: dict[str, float], now_s: float
    ) -> dict[str, dict[str, float]]:
        """Return sums with these names of each topic by its name; set those of all in `totals`."""
        for name in names:
            totals[f"{name}-rate"] = totals[f"{name}-total"] = 0.0
        figures: dict[str, dict[str, float]] = {}
        for topic, counts in self._topics.items():
            figures[topic] = {}
            for name in names:
                figures[topic] |= sum_rate_and_total(name, counts[name], now_s)
            for name, value in figures[topic].items():
                totals[name] += value
        return figures


class FetchMetrics(_ClientMetrics):
    """Metrics of one Consumer: Java's groups consumer-metrics, consumer-fetch-manager-metrics and
    consumer-coordinator-metrics. Thread-safe."""

    _fetch_api = "Fetch"
    _topic_names = ("records-consumed", "bytes-consumed")

    def __init__(self) -> None:
        super().__init__()
        self._response_bytes = Sampled()
        self._response_records = Sampled()
        self._polled_at_s: float | None = None
        self._between_polls_ms = Sampled()
        self._idle_ratios = Sampled()
        self._since_last_ms = 0.0
        """The time between the beginnings of the last two polls."""
        self._rebalances = Sampled()
        self._failed_rebalances = Sampled()
        self._rebalanced_at_s: float | None = None

    # --- called by the consumer -----------------------------------------------------------------

    def poll_begins(self) -> None:
        """Measure the time since the last poll began."""
        now_s = time.monotonic()
        with self._lock:
            if self._polled_at_s is not None:
                self._since_last_ms = (now_s - self._polled_at_s) * 1000
                self._between_polls_ms.record(self._since_last_ms, now_s)
            self._polled_at_s = now_s

    def poll_ends(self) -> None:
        """Measure which part of the user's loop was spent inside poll."""
        now_s = time.monotonic()
        with self._lock:
            took_ms = (now_s - (self._polled_at_s or now_s)) * 1000
            # Java's KafkaConsumerMetrics.recordPollEnd.
            if took_ms + self._since_last_ms:
                self._idle_ratios.record(took_ms / (took_ms + self._since_last_ms), now_s)

    def consumed(
        self, topic: str, records: int, size_bytes: float, lag: int = 0, lags: Sampled | None = None
    ) -> None:
        """Count records of a topic that a poll returns, and record the partition's lag after them
        in `lags`."""
        now_s = time.monotonic()
        with self._lock:
            counts = self._topics[topic]
            counts["records-consumed"].record(records, now_s)
            counts["bytes-consumed"].record(size_bytes, now_s)
            if lags is not None:
                lags.record(lag, now_s)

    def response_read(self, records: int, size_bytes: int) -> None:
        """Count a Fetch response whose records are all decoded or dropped."""
        now_s = time.monotonic()
        with self._lock:
            self._response_records.record(records, now_s)
            self._response_bytes.record(size_bytes, now_s)

    def rebalanced(self) -> None:
        """Count a rebalance that this member has completed."""
        now_s = time.monotonic()
        with self._lock:
            self._rebalances.record(1, now_s)
            self._rebalanced_at_s = now_s

    def rebalance_failed(self) -> None:
        with self._lock:
            self._failed_rebalances.record(1, time.monotonic())

    # --- for the user ---------------------------------------------------------------------------

    def figures(self, partitions: Iterable[PartitionFigures]) -> Metrics:
        """Return all metrics, with those of the assigned partitions."""
        assigned = list(partitions)
        now_s = time.monotonic()
        with self._lock:
            figures = {
                "consumer-metrics": {**self.network.figures(now_s), **self._poll_metrics(now_s)},
                "consumer-coordinator-metrics": self._coordinator_metrics(len(assigned), now_s),
                FETCH: self._fetch_metrics(now_s),
            }
            totals = figures[FETCH]
            for topic, metrics in self._topic_metrics(self._topic_names, totals, now_s).items():
                figures[f"{FETCH},topic={topic}"] = metrics
            largest_lags = []
            for tp, lag, lags in assigned:
                if lag is None:
                    continue
                window = (lags or Sampled()).window(now_s)
                largest_lags.append(max(float(lag), window.largest))  # NaN is never larger
                figures[f"{FETCH},topic={tp.topic},partition={tp.partition}"] = {
                    "records-lag": float(lag),
                    "records-lag-avg": window.mean,
                    "records-lag-max": window.largest,
                }
            totals["records-lag-max"] = max(largest_lags, default=NO_VALUE)
        return figures

    def _poll_metrics(self, now_s: float) -> dict[str, float]:
        """Return Kafka's metrics of the calls of poll, by name; `now_s` is monotonic."""
        return {
            "last-poll-seconds-ago": _seconds_since(self._polled_at_s, now_s),
            **mean_and_max("time-between-poll", self._between_polls_ms, now_s),
            "poll-idle-ratio-avg": self._idle_ratios.window(now_s).mean,
        }

    def _fetch_metrics(self, now_s: float) -> dict[str, float]:
        """Return the metrics of fetches by their Kafka names. `now_s`: monotonic."""
        latencies_ms = self.network.latencies_ms(self._fetch_api)
        return {
            **count_rate_and_total("fetch", latencies_ms, now_s),
            **mean_and_max("fetch-latency", latencies_ms, now_s),
            **mean_and_max("fetch-size", self._response_bytes, now_s),
            **mean_and_max("fetch-throttle-time", self._throttles_ms, now_s),
            "records-per-request-avg": self._response_records.window(now_s).mean,
        }

    def _coordinator_metrics(self, partitions: int, now_s: float) -> dict[str, float]:
        """Return the metrics of the group by their Kafka names. `partitions`: how many are
        assigned."""
        commits_ms = self.network.latencies_ms("OffsetCommit")
        return {
            "assigned-partitions": float(partitions),
            **count_rate_and_total("commit", commits_ms, now_s),
            **mean_and_max("commit-latency", commits_ms, now_s),
            **self._membership_metrics(now_s),
        }

    def _membership_metrics(self, now_s: float) -> dict[str, float]:
        """Return the metrics of heartbeats and rebalances by their Kafka names."""
        # A consumer is in a group of one protocol: the others have no heartbeats.
        heartbeats_ms = max(
            map(self.network.latencies_ms, HEARTBEATS), key=lambda latencies_ms: latencies_ms.count
        )
        return {
            **count_rate_and_total("heartbeat", heartbeats_ms, now_s),
            "heartbeat-response-time-max": heartbeats_ms.window(now_s).largest,
            "last-heartbeat-seconds-ago": self.network.seconds_since_sent(HEARTBEATS, now_s),
            "rebalance-total": float(self._rebalances.count),
            "rebalance-rate-per-hour": self._rebalances.window(now_s).count_rate * 3600,
            "failed-rebalance-total": float(self._failed_rebalances.count),
            "failed-rebalance-rate-per-hour": (
                self._failed_rebalances.window(now_s).count_rate * 3600
            ),
            "last-rebalance-seconds-ago": _seconds_since(self._rebalanced_at_s, now_s),
        }


def _seconds_since(at_s: float | None, now_s: float) -> float:
    return NO_VALUE if at_s is None else now_s - at_s


# --- of a ShareConsumer ---------------------------------------------------------------------------

SHARE_FETCH = "consumer-share-fetch-manager-metrics"


class ShareMetrics(FetchMetrics):
    """Metrics of one ShareConsumer. Thread-safe."""

    _fetch_api = "ShareFetch"

    def __init__(self) -> None:
        super().__init__()
        self._acknowledged = Sampled()
        self._refused = Sampled()

    def acknowledged(self, records: int, *, failed: bool) -> None:
        """Count acknowledgements for which the leader's response has arrived, or whose response is
        lost."""
        now_s = time.monotonic()
        with self._lock:
            self._acknowledged.record(records, now_s)
            if failed:
                self._refused.record(records, now_s)

    def share_figures(self) -> Metrics:
        """Return all metrics."""
        now_s = time.monotonic()
        with self._lock:
            totals = {
                **self._fetch_metrics(now_s),
                **sum_rate_and_total("acknowledgements-send", self._acknowledged, now_s),
                **sum_rate_and_total("acknowledgements-error", self._refused, now_s),
            }
            figures = {
                "consumer-share-metrics": {
                    **self.network.figures(now_s),
                    **self._poll_metrics(now_s),
                },
                "consumer-share-coordinator-metrics": self._membership_metrics(now_s),
                SHARE_FETCH: totals,
            }
            for topic, metrics in self._topic_metrics(self._topic_names, totals, now_s).items():
                figures[f"{SHARE_FETCH},topic={topic}"] = metrics
        return figures


class SendMetrics(_ClientMetrics):
    """Metrics of one Producer: producer-metrics and producer-topic-metrics. Thread-safe."""

    def __init__(self, buffer_memory: int) -> None:
        super().__init__()
        self._buffer_memory = buffer_memory
        self._request_records = Sampled()
        self._batch_bytes = Sampled()
        self._queue_times_ms = Sampled()
        self._compression = Sampled()
        self._waits_s = Sampled()  # for memory of the buffer
        self._exhausted = Sampled()  # waits that timed out

    # --- called by the producer -----------------------------------------------------------------

    def sent(self, batches: Iterable[Any]) -> None:
        """Count the batches, ProducerBatch objects, of a Produce request that is sent now."""
        now_s = time.monotonic()
        total = 0
        with self._lock:
            for batch in batches:
                counts = self._topics[batch.queue.tp.topic]
                records, wire_bytes = batch.encoded.record_count, batch.wire_bytes
                counts["record-send"].record(records, now_s)
                counts["byte"].record(wire_bytes, now_s)
                if batch.attempts > 1:
                    counts["record-retry"].record(records, now_s)
                ratio = wire_bytes / (RECORD_BATCH_OVERHEAD + batch.size_bytes)
                counts["compression"].record(ratio, now_s)
                self._compression.record(ratio, now_s)
                self._batch_bytes.record(wire_bytes, now_s)
                self._queue_times_ms.record((now_s - batch.created_at_s) * 1000, now_s)
                total += records
            self._request_records.record(total, now_s)

    def failed(self, topic: str, records: int) -> None:
        """Count records that failed."""
        with self._lock:
            self._topics[topic]["record-error"].record(records, time.monotonic())

    def waited_for_memory(self, since_s: float, *, timed_out: bool) -> None:
        """Count a caller's wait for memory of the buffer."""
        now_s = time.monotonic()
        with self._lock:
            self._waits_s.record(now_s - since_s, now_s)
            if timed_out:
                self._exhausted.record(1, now_s)

    # --- for the user ---------------------------------------------------------------------------

    def figures(self, buffered_bytes: int, waiting_threads: int) -> Metrics:
        """Return all metrics. The buffer has `buffered_bytes` now, and `waiting_threads` wait for
        memory in it."""
        now_s = time.monotonic()
        with self._lock:
            latencies_ms = self.network.latencies_ms("Produce")
            totals = {
                **self.network.figures(now_s),
                "requests-in-flight": float(self.network.in_flight),
                **mean_and_max("request-latency", latencies_ms, now_s),
                **mean_and_max("produce-throttle-time", self._throttles_ms, now_s),
                **mean_and_max("batch-size", self._batch_bytes, now_s),
                **mean_and_max("record-queue-time", self._queue_times_ms, now_s),
                "compression-rate-avg": self._compression.window(now_s).mean,
                "records-per-request-avg": self._request_records.window(now_s).mean,
                "buffer-total-bytes": float(self._buffer_memory),
                "buffer-available-bytes": float(max(0, self._buffer_memory - buffered_bytes)),
                "bufferpool-wait-time-ns-total": self._waits_s.total * 1e9,
                "bufferpool-wait-ratio": self._waits_s.window(now_s).rate,
                **count_rate_and_total("buffer-exhausted", self._exhausted, now_s),
                "waiting-threads": float(waiting_threads),
            }
            figures = {"producer-metrics": totals}
            names = ("record-send", "byte", "record-retry", "record-error")
            for topic, metrics in self._topic_metrics(names, totals, now_s).items():
                compression = self._topics[topic]["compression"].window(now_s).mean
                metrics["compression-rate"] = compression
                figures[f"producer-topic-metrics,topic={topic}"] = metrics
        return figures
