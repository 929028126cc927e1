"""Connections to the leaders of partitions, each with one request in flight: the base of the
Consumer's Fetcher and of the ShareConsumer's.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from sparkkafka import errors
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.consumer.fetched_records import ResponseBuffer
from sparkkafka.client.consumer.subscription_state import PartitionState
from sparkkafka.client.deadline import Backoff, Deadline, Waker, poll_connections
from sparkkafka.client.metrics import FetchMetrics
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.net.frames import FrameBuffer
from sparkkafka.client.net.pool import ConnectionPool
from sparkkafka.client.values import Broker
from sparkkafka.config.options import FetchOptions

log = logging.getLogger(__name__)


class ConnectionAttempt:
    """Connects to `broker` in a thread, which calls `on_end` at its end.

    It takes a name lookup, handshakes of TCP and TLS, and several requests: seconds, if the broker
    does not answer. `connections` delay attempts after a refused password.
    """

    def __init__(
        self, broker: Broker, connections: ConnectionPool, on_end: Callable[[], None]
    ) -> None:
        self._broker = broker
        self._connections = connections
        self._on_end = on_end
        self.connection: Future[Connection] = Future()
        name = f"connecting to {broker}"
        threading.Thread(target=self._connect, name=name, daemon=True).start()

    def abandon(self) -> None:
        """Close the connection, now or as soon as it is open."""

        def close(connection: Future[Connection]) -> None:
            if connection.exception() is None:
                connection.result().close()

        self.connection.add_done_callback(close)

    def _connect(self) -> None:
        """Open the connection, in the thread."""
        options = self._connections.options
        limit_ms = options.socket_connection_setup_timeout_ms + options.request_timeout_ms
        try:
            connection = self._connections.open(
                self._broker.host, self._broker.port, Deadline(limit_ms)
            )
        except BaseException as error:
            if not isinstance(error, errors.KafkaError):
                error.add_note(f"while connecting to {self._broker}")
            self.connection.set_exception(error)
        else:
            self.connection.set_result(connection)
        with contextlib.suppress(OSError):  # the fetcher is closed
            self._on_end()


class LeaderConnection:
    """The connection to one broker, its request in flight, and the memory for responses."""

    is_fetch = False
    """Whether the request in flight is a Fetch, which a broker may answer after
    fetch.max.wait.ms."""

    def __init__(self, node_id: int, backoff: Backoff) -> None:
        self.node_id = node_id
        self.connection: Connection | None = None
        self.attempt: ConnectionAttempt | None = None
        self.requested: list[PartitionState] = []
        """The partitions of the request in flight."""
        self.topic_names: Mapping[uuid.UUID, str] = {}
        """The topics of the Fetch in flight by their ids, which stand for names in its response."""
        self.sent_at_s = 0.0
        self.not_before_s = 0.0  # no request is sent before this time
        self.backoff = backoff
        # After responses without news, for brokers that do not wait (fetch.max.wait.ms may be 0).
        self._idle_backoff = Backoff(10, 200)
        self._buffer: FrameBuffer | None = None  # with the first part of an incomplete response
        self._spare_buffers: list[FrameBuffer] = []

    @property
    def has_request(self) -> bool:
        """Whether a request is in flight."""
        return bool(self.requested)

    def open(
        self, broker: Broker, connections: ConnectionPool, on_end: Callable[[], None]
    ) -> Connection | None:
        """Return the connection to `broker`. If there is none, let a thread connect, which calls
        `on_end` at its end, and return None until then. Raises the error of that attempt."""
        connection = self.connection
        if connection is not None and connection.is_open:
            has_moved = (connection.host, connection.port) != (broker.host, broker.port)
            if not has_moved and not connection.has_expired:
                return connection
            self.close()
        if self.attempt is None:
            self.attempt = ConnectionAttempt(broker, connections, on_end)
            return None
        if not self.attempt.connection.done():
            return None
        attempt, self.attempt = self.attempt, None
        self.connection = attempt.connection.result()
        return self.connection

    def close(self) -> None:
        """Close the connection, and drop the request in flight."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        if self.attempt is not None:
            self.attempt.abandon()
            self.attempt = None
        for state in self.requested:
            state.requested_offset = None
        self.requested = []

    def read_response(
        self, *, is_ready: bool, limit_s: float, metrics: FetchMetrics | None
    ) -> tuple[Any, ResponseBuffer] | None:
        """Read the bytes of the response that have arrived. Return the response and its memory once
        it is complete, else None. `is_ready`: the socket has input.

        Raises KafkaTimeoutError if nothing has arrived `limit_s` after the request.
        """
        connection = self.connection
        if connection is None:
            return None
        # Of a partly read response more may have arrived although the socket is not ready.
        partial_bytes = connection.partial_bytes
        if is_ready or partial_bytes:
            if self._buffer is None:
                self._buffer = self._spare_buffers.pop() if self._spare_buffers else FrameBuffer()
            response = connection.receive_ready(self._buffer)
            if response is not None:
                memory = ResponseBuffer(self._buffer, self._spare_buffers, metrics)
                self._buffer = None
                self.backoff.reset()
                _, message = response  # the other is the correlation id
                return message, memory
            if is_ready or connection.partial_bytes > partial_bytes:  # bytes have arrived
                return None
        if time.monotonic() - self.sent_at_s > limit_s:
            raise errors.KafkaTimeoutError(
                f"{connection}: no response within {limit_s:g} s (request.timeout.ms)"
            )
        return None

    def back_off(self) -> None:
        """Delay the next request after a failure, longer after each one."""
        self.not_before_s = time.monotonic() + self.backoff.next_ms() / 1000

    def pace(self, max_wait_ms: int, *, has_news: bool) -> None:
        """Delay the next request if nothing has changed since the last one (`has_news` is False)
        and the broker answered before half of `max_wait_ms`: Tansu may answer immediately."""
        now_s = time.monotonic()
        if has_news:
            self._idle_backoff.reset()
        elif not max_wait_ms or (now_s - self.sent_at_s) * 1000 < max_wait_ms / 2:
            request_at_s = now_s + self._idle_backoff.next_ms() / 1000
            self.not_before_s = max(self.not_before_s, request_at_s)


LeaderT = TypeVar("LeaderT", bound=LeaderConnection)


class LeaderFetcher(ABC, Generic[LeaderT]):
    """Sends requests to all leaders concurrently, on connections of its own, and receives the
    responses. For one thread, except `wake`. `options` are those of the next requests."""

    def __init__(
        self, cluster: Cluster, options: FetchOptions, metrics: FetchMetrics | None
    ) -> None:
        self._cluster = cluster
        self.options = options
        self._metrics = metrics
        self._leaders: dict[int, LeaderT] = {}  # by node id
        self._waker = Waker()
        self.wake = self._waker.wake
        """Ends a `receive` that waits. May be called from any thread; a thread that has this
        function does not keep the fetcher alive."""

    def close(self) -> None:
        """Close all connections."""
        for leader in self._leaders.values():
            leader.close()
        self._leaders.clear()
        self._waker.close()

    def receive(self, wait_s: float) -> None:
        """Wait until bytes arrive, and act on the responses that are complete. Raises errors that a
        retry cannot fix."""
        waiting = [
            (leader, leader.connection)
            for leader in self._leaders.values()
            if leader.has_request and leader.connection is not None and leader.connection.is_open
        ]
        for _, connection in waiting:
            connection.prepare_to_poll()
        ready = poll_connections([connection for _, connection in waiting], wait_s, self._waker)
        for leader, connection in waiting:
            wait_ms = self.options.fetch_max_wait_ms if leader.is_fetch else 0
            limit_s = (self._cluster.options.request_timeout_ms + wait_ms) / 1000
            try:
                received = leader.read_response(
                    is_ready=connection in ready, limit_s=limit_s, metrics=self._metrics
                )
                if received is None:
                    self._receive_in_kernel(leader)
                    continue
                response, buffer = received
                try:
                    self._on_response(leader, connection, response, buffer)
                finally:
                    buffer.release()
            except errors.KafkaError as error:
                self._on_broker_failure(leader, error)
            except BaseException:  # Ctrl-C: the response is lost
                self._on_interrupt(leader)
                raise

    @property
    def step_wait_s(self) -> float:
        """Seconds until the next request after a backoff may be sent; at most 1."""
        now_s = time.monotonic()
        times = [now_s + 1.0, *self._retry_at_s()]
        times += [
            leader.not_before_s for leader in self._leaders.values() if not leader.has_request
        ]
        return min(at_s for at_s in times if at_s > now_s) - now_s

    @abstractmethod
    def _on_response(
        self, leader: LeaderT, connection: Connection, response: Any, buffer: ResponseBuffer
    ) -> None:
        """End the request in flight, and act on its response."""

    @abstractmethod
    def _on_broker_failure(self, leader: LeaderT, error: errors.KafkaError) -> None:
        """Act on an error of a connection or a missing response. Raises errors that a retry cannot
        fix."""

    @abstractmethod
    def _retry_at_s(self) -> Iterable[float]:
        """Return the monotonic times of other requests after a backoff, also those in the past."""

    def _receive_in_kernel(self, leader: LeaderT) -> None:
        """Called while a response is incomplete."""

    def _on_interrupt(self, leader: LeaderT) -> None:
        """Drop the request in flight, after Ctrl-C: it may have been sent, or its response lost."""
        leader.close()

    def _close_failed(self, leader: LeaderT, error: errors.KafkaError, *, is_final: bool) -> None:
        """Close the connection after an error, and delay the next request. Raises a final error."""
        leader.close()
        leader.back_off()
        if is_final:
            raise error
        level = logging.INFO if isinstance(error, errors.KafkaConnectionError) else logging.WARNING
        log.log(level, "broker %d: trying again: %s", leader.node_id, error)
