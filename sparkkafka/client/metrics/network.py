"""What a client's connections do: requests, answers, bytes, and how long brokers took.

One `NetworkMetrics` is shared by all connections of a client, those of its threads included. A
connection tells its `ConnectionMeter` of each request and each answer, and nobody else counts any:
so a commit's latency is that of OffsetCommit, whoever sent it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable

from sparkkafka.client.metrics.sampled import (
    NOTHING,
    Sampled,
    count_and_total,
    mean_and_max,
    rate_and_total,
)


class NetworkMetrics:
    """Counts since the client was made. From any thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._sent = Sampled()
        """Sizes of requests."""
        self._received = Sampled()
        """Sizes of answers."""
        self._created = Sampled()
        self._closed = Sampled()
        self._latencies_ms: dict[str, Sampled] = {}
        self._last_sent_s: dict[str, float] = {}
        self._in_flight = 0

    def connected(self) -> ConnectionMeter:
        """A connection was made; it tells the meter what becomes of it."""
        with self.lock:
            self._created.record(1, time.monotonic())
        return ConnectionMeter(self)

    def sent(self, api: str, size_bytes: int, *, expects_reply: bool, now_s: float) -> None:
        with self.lock:
            self._sent.record(size_bytes, now_s)
            self._last_sent_s[api] = now_s
            self._in_flight += expects_reply

    def received(self, api: str, size_bytes: int, sent_s: float) -> None:
        now_s = time.monotonic()
        with self.lock:
            self._received.record(size_bytes, now_s)
            self._in_flight -= 1
            latencies = self._latencies_ms.get(api)
            if latencies is None:
                latencies = self._latencies_ms[api] = Sampled()
            latencies.record((now_s - sent_s) * 1000, now_s)

    def closed(self, unanswered: int) -> None:
        with self.lock:
            self._closed.record(1, time.monotonic())
            self._in_flight -= unanswered

    # --- figures; with the lock -----------------------------------------------------------------

    def figures(self, now_s: float) -> dict[str, float]:
        """Those that Java's clients of every kind have."""
        return {
            "connection-count": float(self._created.count - self._closed.count),
            **count_and_total("connection-creation", self._created, now_s),
            **count_and_total("connection-close", self._closed, now_s),
            **count_and_total("request", self._sent, now_s),
            **mean_and_max("request-size", self._sent, now_s),
            **rate_and_total("outgoing-byte", self._sent, now_s),
            **count_and_total("response", self._received, now_s),
            **rate_and_total("incoming-byte", self._received, now_s),
        }

    @property
    def in_flight(self) -> int:
        """Requests whose answer has not been read."""
        return self._in_flight

    def latency_ms(self, api: str) -> Sampled:
        """Of each answer to this API, from when its request was written until it was read."""
        return self._latencies_ms.get(api) or Sampled()

    def since_sent_s(self, apis: Iterable[str], now_s: float) -> float:
        """Seconds since a request of one of these APIs was sent."""
        moments_s = [self._last_sent_s[api] for api in apis if api in self._last_sent_s]
        return now_s - max(moments_s) if moments_s else NOTHING


class ConnectionMeter:
    """Of one connection, whose answers come in the order of its requests. For its thread."""

    __slots__ = ("_metrics", "_waiting")

    def __init__(self, metrics: NetworkMetrics) -> None:
        self._metrics = metrics
        self._waiting: deque[tuple[str, float]] = deque()

    def sent(self, api: str, size_bytes: int, *, expects_reply: bool) -> None:
        """A request is about to be written."""
        now_s = time.monotonic()
        if expects_reply:
            self._waiting.append((api, now_s))
        self._metrics.sent(api, size_bytes, expects_reply=expects_reply, now_s=now_s)

    def received(self, size_bytes: int) -> None:
        """The answer to the oldest request is here whole."""
        if self._waiting:  # else an answer that nobody asked for: the connection will be closed
            api, sent_s = self._waiting.popleft()
            self._metrics.received(api, size_bytes, sent_s)

    def closed(self) -> None:
        """The connection has ended."""
        self._metrics.closed(len(self._waiting))
        self._waiting.clear()


class _NoMeter(ConnectionMeter):
    """Of a connection that nobody asks: those of Spark's tasks, and those made by hand."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    def sent(self, api: str, size_bytes: int, *, expects_reply: bool) -> None:
        pass

    def received(self, size_bytes: int) -> None:
        pass

    def closed(self) -> None:
        pass


NO_METER = _NoMeter()
