"""What a ShareConsumer counts: Java's groups consumer-share-metrics,
consumer-share-fetch-manager-metrics and consumer-share-coordinator-metrics."""

from __future__ import annotations

import time

from sparkkafka.client.metrics.fetching import FetchMetrics
from sparkkafka.client.metrics.sampled import Metrics, Sampled, rate_and_total

SHARE_FETCH = "consumer-share-fetch-manager-metrics"


class ShareMetrics(FetchMetrics):
    """Counts of one ShareConsumer. From any thread."""

    _fetch_api = "ShareFetch"

    def __init__(self) -> None:
        super().__init__()
        self._acknowledged = Sampled()
        self._refused = Sampled()

    def handed_out(self, topic: str, records: int, size_bytes: float) -> None:
        """A poll returns so many records of a topic."""
        with self._lock:
            self._consumed(topic, records, size_bytes, time.monotonic())

    def acknowledged(self, records: int, *, failed: bool) -> None:
        """A leader has answered to so many acknowledgements, or they are lost."""
        now_s = time.monotonic()
        with self._lock:
            self._acknowledged.record(records, now_s)
            if failed:
                self._refused.record(records, now_s)

    def share_figures(self) -> Metrics:
        now_s = time.monotonic()
        with self._lock:
            totals = {
                **self._fetches(now_s),
                **rate_and_total("acknowledgements-send", self._acknowledged, now_s),
                **rate_and_total("acknowledgements-error", self._refused, now_s),
            }
            found = {
                "consumer-share-metrics": {**self.network.figures(now_s), **self._polls(now_s)},
                "consumer-share-coordinator-metrics": self._membership(now_s),
                SHARE_FETCH: totals,
            }
            for topic, row in self._by_topic(totals, now_s).items():
                found[f"{SHARE_FETCH},topic={topic}"] = row
        return found
