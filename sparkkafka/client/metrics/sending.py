"""Metrics of a Producer: Java's groups producer-metrics and producer-topic-metrics.

As in Java, records and batches count when they are sent, and again when they are retried.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from sparkkafka.client.metrics import sampled
from sparkkafka.client.metrics.network import NetworkMetrics


class SentBatch(NamedTuple):
    """A batch of a request. `queued_s` is how long it has waited since its first record came;
    `is_retry`: it was sent before."""

    topic: str
    records: int
    wire_bytes: int
    uncompressed_bytes: int
    queued_s: float
    is_retry: bool


class _TopicCounts:
    __slots__ = ("compression", "errors", "records", "retries", "wire_bytes")

    def __init__(self) -> None:
        self.records = sampled.Sampled()
        self.wire_bytes = sampled.Sampled()
        self.compression = sampled.Sampled()
        self.retries = sampled.Sampled()
        self.errors = sampled.Sampled()


class SendMetrics:
    """Metrics of one Producer. Thread-safe."""

    def __init__(self, buffer_memory: int) -> None:
        self.network = NetworkMetrics()
        self._lock = self.network.lock
        self._buffer_memory = buffer_memory
        self._topics: dict[str, _TopicCounts] = {}
        self._request_records = sampled.Sampled()
        self._batch_bytes = sampled.Sampled()
        self._queue_times_ms = sampled.Sampled()
        self._compression = sampled.Sampled()
        self._throttles_ms = sampled.Sampled()
        self._waits_s = sampled.Sampled()  # for memory of the buffer
        self._exhausted = sampled.Sampled()  # waits that timed out

    # --- called by the producer -----------------------------------------------------------------

    def sent(self, batches: Iterable[SentBatch], now_s: float) -> None:
        """Count the batches of a Produce request that is sent now (monotonic)."""
        total = 0
        with self._lock:
            for batch in batches:
                counts = self._counts_of(batch.topic)
                counts.records.record(batch.records, now_s)
                counts.wire_bytes.record(batch.wire_bytes, now_s)
                if batch.is_retry:
                    counts.retries.record(batch.records, now_s)
                ratio = batch.wire_bytes / max(batch.uncompressed_bytes, 1)
                counts.compression.record(ratio, now_s)
                self._compression.record(ratio, now_s)
                self._batch_bytes.record(batch.wire_bytes, now_s)
                self._queue_times_ms.record(batch.queued_s * 1000, now_s)
                total += batch.records
            self._request_records.record(total, now_s)

    def failed(self, topic: str, records: int) -> None:
        """Count records that failed."""
        with self._lock:
            self._counts_of(topic).errors.record(records, time.monotonic())

    def throttled(self, throttle_ms: int) -> None:
        with self._lock:
            self._throttles_ms.record(throttle_ms, time.monotonic())

    def waited_for_memory(self, since_s: float, *, timed_out: bool) -> None:
        """Count a caller's wait for memory of the buffer."""
        now_s = time.monotonic()
        with self._lock:
            self._waits_s.record(now_s - since_s, now_s)
            if timed_out:
                self._exhausted.record(1, now_s)

    def _counts_of(self, topic: str) -> _TopicCounts:
        counts = self._topics.get(topic)
        if counts is None:
            counts = self._topics[topic] = _TopicCounts()
        return counts

    # --- for the user ---------------------------------------------------------------------------

    def figures(self, buffered_bytes: int, waiting_threads: int) -> sampled.Metrics:
        """Return all metrics. The buffer has `buffered_bytes` now, and `waiting_threads` wait for
        memory in it."""
        now_s = time.monotonic()
        with self._lock:
            latencies_ms = self.network.latencies_ms("Produce")
            totals = {
                **self.network.figures(now_s),
                "requests-in-flight": float(self.network.in_flight),
                **sampled.mean_and_max("request-latency", latencies_ms, now_s),
                **sampled.mean_and_max("produce-throttle-time", self._throttles_ms, now_s),
                **sampled.mean_and_max("batch-size", self._batch_bytes, now_s),
                **sampled.mean_and_max("record-queue-time", self._queue_times_ms, now_s),
                "compression-rate-avg": self._compression.window(now_s).mean,
                "records-per-request-avg": self._request_records.window(now_s).mean,
                "buffer-total-bytes": float(self._buffer_memory),
                "buffer-available-bytes": float(max(0, self._buffer_memory - buffered_bytes)),
                "bufferpool-wait-time-ns-total": self._waits_s.total * 1e9,
                "bufferpool-wait-ratio": self._waits_s.window(now_s).rate,
                **sampled.count_rate_and_total("buffer-exhausted", self._exhausted, now_s),
                "waiting-threads": float(waiting_threads),
            }
            for name in ("record-send", "byte", "record-retry", "record-error"):
                totals[f"{name}-rate"] = totals[f"{name}-total"] = 0.0
            found = {"producer-metrics": totals}
            for topic, counts in self._topics.items():
                metrics = {
                    **sampled.sum_rate_and_total("record-send", counts.records, now_s),
                    **sampled.sum_rate_and_total("byte", counts.wire_bytes, now_s),
                    **sampled.sum_rate_and_total("record-retry", counts.retries, now_s),
                    **sampled.sum_rate_and_total("record-error", counts.errors, now_s),
                }
                for name, value in metrics.items():
                    totals[name] += value
                metrics["compression-rate"] = counts.compression.window(now_s).mean
                found[f"producer-topic-metrics,topic={topic}"] = metrics
        return found
