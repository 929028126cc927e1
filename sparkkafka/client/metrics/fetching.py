"""Metrics of a Consumer (Java's groups consumer-metrics, consumer-fetch-manager-metrics and
consumer-coordinator-metrics) and of a ShareConsumer (consumer-share-metrics,
consumer-share-fetch-manager-metrics and consumer-share-coordinator-metrics)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from sparkkafka.client.metrics import sampled
from sparkkafka.client.metrics.network import NetworkMetrics
from sparkkafka.client.values import TopicPartition

FETCH = "consumer-fetch-manager-metrics"
HEARTBEATS = ("Heartbeat", "ConsumerGroupHeartbeat", "ShareGroupHeartbeat")


class PartitionFigures(NamedTuple):
    """Metrics of an assigned partition. `lag` is None before the first response; `lags` has the lag
    after each poll that returned records of it."""

    tp: TopicPartition
    lag: int | None
    lags: sampled.Sampled | None


class _TopicCounts:
    """What polls have returned of one topic."""

    __slots__ = ("bytes", "records")

    def __init__(self) -> None:
        self.bytes = sampled.Sampled()
        self.records = sampled.Sampled()


class FetchMetrics:
    """Metrics of one Consumer. Thread-safe."""

    _fetch_api = "Fetch"

    def __init__(self) -> None:
        self.network = NetworkMetrics()
        self._lock = self.network.lock
        self._topics: dict[str, _TopicCounts] = {}
        self._response_bytes = sampled.Sampled()
        self._response_records = sampled.Sampled()
        self._throttles_ms = sampled.Sampled()
        self._last_poll_s: float | None = None
        self._between_polls_ms = sampled.Sampled()
        self._idle_ratios = sampled.Sampled()
        self._since_last_ms = 0.0
        """The time between the beginnings of the last two polls."""
        self._rebalances = sampled.Sampled()
        self._failed_rebalances = sampled.Sampled()
        self._last_rebalance_s: float | None = None

    # --- called by the consumer -----------------------------------------------------------------

    def poll_begins(self) -> None:
        """Measure the time since the last poll began."""
        now_s = time.monotonic()
        with self._lock:
            if self._last_poll_s is not None:
                self._since_last_ms = (now_s - self._last_poll_s) * 1000
                self._between_polls_ms.record(self._since_last_ms, now_s)
            self._last_poll_s = now_s

    def poll_ends(self) -> None:
        """Measure which part of the user's loop was spent inside poll."""
        now_s = time.monotonic()
        with self._lock:
            took_ms = (now_s - (self._last_poll_s or now_s)) * 1000
            # Java's KafkaConsumerMetrics.recordPollEnd.
            if took_ms + self._since_last_ms:
                self._idle_ratios.record(took_ms / (took_ms + self._since_last_ms), now_s)

    def consumed(
        self, topic: str, records: int, size_bytes: float, lag: int, lags: sampled.Sampled
    ) -> None:
        """Count the records of a partition that a poll returns; `lag` more follow them, which is
        added to `lags`."""
        now_s = time.monotonic()
        with self._lock:
            self._consumed(topic, records, size_bytes, now_s)
            lags.record(lag, now_s)

    def _consumed(self, topic: str, records: int, size_bytes: float, now_s: float) -> None:
        counts = self._topics.get(topic)
        if counts is None:
            counts = self._topics[topic] = _TopicCounts()
        counts.records.record(records, now_s)
        counts.bytes.record(size_bytes, now_s)

    def response_read(self, records: int, size_bytes: int) -> None:
        """Count a Fetch response whose records are all decoded or dropped."""
        now_s = time.monotonic()
        with self._lock:
            self._response_records.record(records, now_s)
            self._response_bytes.record(size_bytes, now_s)

    def throttled(self, throttle_ms: int) -> None:
        with self._lock:
            self._throttles_ms.record(throttle_ms, time.monotonic())

    def rebalanced(self) -> None:
        """Count a rebalance that this member has completed."""
        now_s = time.monotonic()
        with self._lock:
            self._rebalances.record(1, now_s)
            self._last_rebalance_s = now_s

    def rebalance_failed(self) -> None:
        with self._lock:
            self._failed_rebalances.record(1, time.monotonic())

    # --- for the user ---------------------------------------------------------------------------

    def figures(self, partitions: Iterable[PartitionFigures]) -> sampled.Metrics:
        """Return all metrics, with those of the assigned partitions."""
        assigned = list(partitions)
        now_s = time.monotonic()
        with self._lock:
            found = {
                "consumer-metrics": {**self.network.figures(now_s), **self._poll_metrics(now_s)},
                "consumer-coordinator-metrics": self._coordinator_metrics(len(assigned), now_s),
                FETCH: self._fetch_metrics(now_s),
            }
            totals = found[FETCH]
            for topic, metrics in self._topic_metrics(totals, now_s).items():
                found[f"{FETCH},topic={topic}"] = metrics
            largest_lags = []
            for tp, lag, lags in assigned:
                if lag is None:
                    continue
                window = (lags or sampled.Sampled()).window(now_s)
                largest_lags.append(max(float(lag), window.largest))  # NaN is never larger
                found[f"{FETCH},topic={tp.topic},partition={tp.partition}"] = {
                    "records-lag": float(lag),
                    "records-lag-avg": window.mean,
                    "records-lag-max": window.largest,
                }
            totals["records-lag-max"] = max(largest_lags, default=sampled.NO_VALUE)
        return found

    def _topic_metrics(self, totals: dict[str, float], now_s: float) -> dict[str, dict[str, float]]:
        """Return the metrics of each topic by name; set their sums in `totals`."""
        for name in ("records-consumed", "bytes-consumed"):
            totals[f"{name}-rate"] = totals[f"{name}-total"] = 0.0
        found = {}
        for topic, counts in self._topics.items():
            found[topic] = {
                **sampled.sum_rate_and_total("records-consumed", counts.records, now_s),
                **sampled.sum_rate_and_total("bytes-consumed", counts.bytes, now_s),
            }
            for name, value in found[topic].items():
                totals[name] += value
        return found

    def _poll_metrics(self, now_s: float) -> dict[str, float]:
        return {
            "last-poll-seconds-ago": _seconds_since(self._last_poll_s, now_s),
            **sampled.mean_and_max("time-between-poll", self._between_polls_ms, now_s),
            "poll-idle-ratio-avg": self._idle_ratios.window(now_s).mean,
        }

    def _fetch_metrics(self, now_s: float) -> dict[str, float]:
        latencies_ms = self.network.latencies_ms(self._fetch_api)
        return {
            **sampled.count_rate_and_total("fetch", latencies_ms, now_s),
            **sampled.mean_and_max("fetch-latency", latencies_ms, now_s),
            **sampled.mean_and_max("fetch-size", self._response_bytes, now_s),
            **sampled.mean_and_max("fetch-throttle-time", self._throttles_ms, now_s),
            "records-per-request-avg": self._response_records.window(now_s).mean,
        }

    def _coordinator_metrics(self, partitions: int, now_s: float) -> dict[str, float]:
        commits_ms = self.network.latencies_ms("OffsetCommit")
        return {
            "assigned-partitions": float(partitions),
            **sampled.count_rate_and_total("commit", commits_ms, now_s),
            **sampled.mean_and_max("commit-latency", commits_ms, now_s),
            **self._membership_metrics(now_s),
        }

    def _membership_metrics(self, now_s: float) -> dict[str, float]:
        # A consumer is in a group of one protocol: the others have no heartbeats.
        heartbeats_ms = max(
            map(self.network.latencies_ms, HEARTBEATS), key=lambda latencies_ms: latencies_ms.count
        )
        return {
            **sampled.count_rate_and_total("heartbeat", heartbeats_ms, now_s),
            "heartbeat-response-time-max": heartbeats_ms.window(now_s).largest,
            "last-heartbeat-seconds-ago": self.network.since_sent_s(HEARTBEATS, now_s),
            "rebalance-total": float(self._rebalances.count),
            "rebalance-rate-per-hour": self._rebalances.window(now_s).count_rate * 3600,
            "failed-rebalance-total": float(self._failed_rebalances.count),
            "failed-rebalance-rate-per-hour": (
                self._failed_rebalances.window(now_s).count_rate * 3600
            ),
            "last-rebalance-seconds-ago": _seconds_since(self._last_rebalance_s, now_s),
        }


def _seconds_since(moment_s: float | None, now_s: float) -> float:
    return sampled.NO_VALUE if moment_s is None else now_s - moment_s


# --- of a ShareConsumer ---------------------------------------------------------------------------

SHARE_FETCH = "consumer-share-fetch-manager-metrics"


class ShareMetrics(FetchMetrics):
    """Metrics of one ShareConsumer. Thread-safe."""

    _fetch_api = "ShareFetch"

    def __init__(self) -> None:
        super().__init__()
        self._acknowledged = sampled.Sampled()
        self._refused = sampled.Sampled()

    def handed_out(self, topic: str, records: int, size_bytes: float) -> None:
        """Count the records of a topic that a poll returns."""
        with self._lock:
            self._consumed(topic, records, size_bytes, time.monotonic())

    def acknowledged(self, records: int, *, failed: bool) -> None:
        """Count acknowledgements that a leader has answered, or that are lost."""
        now_s = time.monotonic()
        with self._lock:
            self._acknowledged.record(records, now_s)
            if failed:
                self._refused.record(records, now_s)

    def share_figures(self) -> sampled.Metrics:
        """Return all metrics."""
        now_s = time.monotonic()
        with self._lock:
            totals = {
                **self._fetch_metrics(now_s),
                **sampled.sum_rate_and_total("acknowledgements-send", self._acknowledged, now_s),
                **sampled.sum_rate_and_total("acknowledgements-error", self._refused, now_s),
            }
            found = {
                "consumer-share-metrics": {
                    **self.network.figures(now_s),
                    **self._poll_metrics(now_s),
                },
                "consumer-share-coordinator-metrics": self._membership_metrics(now_s),
                SHARE_FETCH: totals,
            }
            for topic, metrics in self._topic_metrics(totals, now_s).items():
                found[f"{SHARE_FETCH},topic={topic}"] = metrics
        return found
