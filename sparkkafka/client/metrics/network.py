"""Metrics of a client's connections: requests, responses, bytes, latencies.

All connections of a client share one `NetworkMetrics`, those of its other threads included. A
connection reports each request and each response to its `ConnectionMeter`. Nothing else counts
requests: a commit's latency is that of OffsetCommit, whichever part of the client sent it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable

from sparkkafka.client.metrics import sampled


class NetworkMetrics:
    """Network metrics of one client. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._sent = sampled.Sampled()
        """Sizes of requests."""
        self._received = sampled.Sampled()
        """Sizes of responses."""
        self._created = sampled.Sampled()
        self._closed = sampled.Sampled()
        self._latencies_ms: dict[str, sampled.Sampled] = {}
        self._last_sent_s: dict[str, float] = {}
        self._in_flight = 0

    def connected(self) -> ConnectionMeter:
        """Count a new connection; return the meter to which it reports its requests."""
        with self.lock:
            self._created.record(1, time.monotonic())
        return ConnectionMeter(self)

    def sent(self, api: str, size_bytes: int, *, expects_response: bool, now_s: float) -> None:
        """Count a request; a Produce with acks=0 expects no response."""
        with self.lock:
            self._sent.record(size_bytes, now_s)
            self._last_sent_s[api] = now_s
            self._in_flight += expects_response

    def received(self, api: str, size_bytes: int, sent_s: float) -> None:
        """Count the response to a request that was sent at `sent_s`."""
        now_s = time.monotonic()
        with self.lock:
            self._received.record(size_bytes, now_s)
            self._in_flight -= 1
            latencies = self._latencies_ms.get(api)
            if latencies is None:
                latencies = self._latencies_ms[api] = sampled.Sampled()
            latencies.record((now_s - sent_s) * 1000, now_s)

    def closed(self, unanswered: int) -> None:
        """Count a connection that has ended, and with it this many requests without a response."""
        with self.lock:
            self._closed.record(1, time.monotonic())
            self._in_flight -= unanswered

    # --- figures; with the lock -----------------------------------------------------------------

    def figures(self, now_s: float) -> dict[str, float]:
        """Return the metrics that all of Java's clients have."""
        return {
            "connection-count": float(self._created.count - self._closed.count),
            **sampled.count_rate_and_total("connection-creation", self._created, now_s),
            **sampled.count_rate_and_total("connection-close", self._closed, now_s),
            **sampled.count_rate_and_total("request", self._sent, now_s),
            **sampled.mean_and_max("request-size", self._sent, now_s),
            **sampled.sum_rate_and_total("outgoing-byte", self._sent, now_s),
            **sampled.count_rate_and_total("response", self._received, now_s),
            **sampled.sum_rate_and_total("incoming-byte", self._received, now_s),
        }

    @property
    def in_flight(self) -> int:
        """Requests whose responses have not been read."""
        return self._in_flight

    def latencies_ms(self, api: str) -> sampled.Sampled:
        """Latencies of this API, from writing the request to reading the response."""
        return self._latencies_ms.get(api) or sampled.Sampled()

    def since_sent_s(self, apis: Iterable[str], now_s: float) -> float:
        """Return the seconds since the last request of these APIs, NO_VALUE if there was none."""
        moments_s = [self._last_sent_s[api] for api in apis if api in self._last_sent_s]
        return now_s - max(moments_s) if moments_s else sampled.NO_VALUE


class ConnectionMeter:
    """Meter of one connection, whose responses arrive in the order of requests. For its thread."""

    __slots__ = ("_metrics", "_unanswered")

    def __init__(self, metrics: NetworkMetrics) -> None:
        self._metrics = metrics
        self._unanswered: deque[tuple[str, float]] = deque()  # API and time of sending

    def sent(self, api: str, size_bytes: int, *, expects_response: bool) -> None:
        """A request is about to be written."""
        now_s = time.monotonic()
        if expects_response:
            self._unanswered.append((api, now_s))
        self._metrics.sent(api, size_bytes, expects_response=expects_response, now_s=now_s)

    def received(self, size_bytes: int) -> None:
        """The response to the oldest request has been read."""
        if (
            self._unanswered
        ):  # or else an unrequested response, after which the connection is closed
            api, sent_s = self._unanswered.popleft()
            self._metrics.received(api, size_bytes, sent_s)

    def closed(self) -> None:
        """The connection has ended."""
        self._metrics.closed(len(self._unanswered))
        self._unanswered.clear()


class _NoMeter(ConnectionMeter):
    """Counts nothing, for connections of Spark's tasks and those that users make themselves."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    def sent(self, api: str, size_bytes: int, *, expects_response: bool) -> None:
        pass

    def received(self, size_bytes: int) -> None:
        pass

    def closed(self) -> None:
        pass


NO_METER = _NoMeter()
