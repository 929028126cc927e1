"""The brokers that a consumer reads from: which leads each partition, and a connection to each."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sparkkafka import errors
from sparkkafka.client.cluster.cluster import UNKNOWN_TOPIC_GRACE_MS, Cluster
from sparkkafka.client.cluster.metadata import (
    missing_topics_text,
    no_leader_error,
    unknown_partition_error,
)
from sparkkafka.client.consumer.fetched_records import ResponseBuffer
from sparkkafka.client.consumer.subscription_state import PartitionState, SubscriptionState
from sparkkafka.client.deadline import Backoff, Deadline
from sparkkafka.client.metrics import FetchMetrics
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.net.frames import FrameBuffer
from sparkkafka.client.net.pool import ConnectionPool
from sparkkafka.client.values import Broker, TopicPartition

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
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._error: BaseException | None = None
        self._is_abandoned = False
        self._thread = threading.Thread(
            target=self._connect, name=f"connecting to {broker}", daemon=True
        )
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return self._connection is not None or self._error is not None

    def result(self) -> Connection:
        """Return the connection, once `has_ended`. Raises what connecting raised."""
        self._thread.join()
        if self._connection is None:
            raise self._error or RuntimeError("connecting has not ended")
        return self._connection

    def abandon(self) -> None:
        """Close the connection, now or as soon as it is open."""
        with self._lock:
            self._is_abandoned = True
            connection = self._connection
        if connection is not None:
            connection.close()

    def _connect(self) -> None:
        """Open the connection, in the thread; close it if the attempt has been abandoned."""
        options = self._connections.options
        limit_ms = options.socket_connection_setup_timeout_ms + options.request_timeout_ms
        try:
            connection = self._connections.open(
                self._broker.host, self._broker.port, Deadline(limit_ms)
            )
        except BaseException as error:
            # `result` raises it.
            if not isinstance(error, errors.KafkaError):
                error.add_note(f"while connecting to {self._broker}")
            self._error = error
        else:
            with self._lock:
                self._connection = connection
                if self._is_abandoned:
                    connection.close()
        with contextlib.suppress(OSError):  # the fetcher is closed
            self._on_end()


class LeaderConnection:
    """The connection to one broker, its request in flight, and the memory for responses."""

    def __init__(self, node_id: int, backoff: Backoff) -> None:
        self.node_id = node_id
        self.connection: Connection | None = None
        self.attempt: ConnectionAttempt | None = None
        self.requested: list[PartitionState] = []
        """The partitions of the request in flight."""
        self.is_fetch = False
        """Whether the request in flight is a Fetch, not a ListOffsets."""
        self.topic_names: Mapping[uuid.UUID, str] = {}
        """The topics of the Fetch in flight by their ids, which stand for names in its response."""
        self.sent_s = 0.0
        self.not_before_s = 0.0
        self.backoff = backoff
        # After responses without news, for brokers that do not wait (fetch.max.wait.ms may be 0).
        self._idle_backoff = Backoff(10, 200)
        self._buffer: FrameBuffer | None = None  # with the first part of an incomplete response
        self._spare_buffers: list[FrameBuffer] = []

    def open(
        self, broker: Broker, connections: ConnectionPool, on_end: Callable[[], None]
    ) -> Connection | None:
        """Return the connection to `broker`, None while a thread connects, which then calls
        `on_end`. Raises what connecting raised."""
        connection = self.connection
        if connection is not None and connection.is_open:
            has_moved = (connection.host, connection.port) != (broker.host, broker.port)
            if not has_moved and not connection.has_expired:
                return connection
            self.close()
        if self.attempt is None:
            self.attempt = ConnectionAttempt(broker, connections, on_end)
            return None
        if not self.attempt.has_ended:
            return None
        attempt, self.attempt = self.attempt, None
        self.connection = attempt.result()
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
        begun_bytes = connection.begun_bytes  # more may have arrived though the socket is not ready
        if is_ready or begun_bytes:
            if self._buffer is None:
                self._buffer = self._spare_buffers.pop() if self._spare_buffers else FrameBuffer()
            response = connection.receive_ready(self._buffer)
            if response is not None:
                memory = ResponseBuffer(self._buffer, self._spare_buffers, metrics)
                self._buffer = None
                self.backoff.reset()
                return response[1], memory
            if is_ready or connection.begun_bytes > begun_bytes:
                return None
        if time.monotonic() - self.sent_s > limit_s:
            raise errors.KafkaTimeoutError(
                f"{connection}: no response within {limit_s:g} s (request.timeout.ms)"
            )
        return None

    def back_off(self) -> None:
        """Send the next request later, after a failure."""
        self.not_before_s = time.monotonic() + self.backoff.next_ms() / 1000

    def pace(self, max_wait_ms: int, *, has_news: bool) -> None:
        """Send the next request later, if the response has no news (it changes nothing about the
        next request) and the broker did not wait `max_wait_ms` for records."""
        now_s = time.monotonic()
        if has_news:
            self._idle_backoff.reset()
        elif not max_wait_ms or (now_s - self.sent_s) * 1000 < max_wait_ms / 2:
            next_s = now_s + self._idle_backoff.next_ms() / 1000
            self.not_before_s = max(self.not_before_s, next_s)


class LeaderLookup:
    """Finds the leaders of assigned partitions, and reports missing topics and partitions."""

    def __init__(self, cluster: Cluster, subscription: SubscriptionState) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._backoff = cluster.backoff()
        self.not_before_s = 0.0
        self._unknown_since_s: dict[str, float] = {}
        """Topics that brokers do not know, and since when (monotonic)."""
        self._nearest: dict[str, str] = {}
        """The existing topic with the most similar name, for messages about an unknown one."""
        self._missing_since_s: dict[TopicPartition, float] = {}
        """Partitions that do not exist in their topic, and since when (monotonic)."""

    def refresh(self, topics: Iterable[str], deadline: Deadline) -> None:
        """Request the metadata of these topics once, and note why partitions without a leader wait.
        Raises errors that a retry cannot fix; the next call retries the others."""
        names = sorted(topics)
        try:
            failed = self._cluster.request_metadata(names, deadline)
        except errors.KafkaError as error:
            if not error.retriable:
                raise
            log.warning("%s", error)
            for state in self._subscription:
                if state.tp.topic in names:
                    state.last_failure = error
            self._back_off()
            return
        now_s = time.monotonic()
        is_leaderless = False
        newly_unknown = [
            name
            for name, code in failed.items()
            if code == errors.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            and name not in self._unknown_since_s
        ]
        self._nearest |= self._cluster.nearest_topics(newly_unknown, deadline)
        # Topics that exist, perhaps again.
        for name in names:
            if name not in failed:
                self._unknown_since_s.pop(name, None)
        # Partitions that are not assigned any more.
        for tp in [tp for tp in self._missing_since_s if tp not in self._subscription]:
            del self._missing_since_s[tp]
        for state in self._subscription:
            name = state.tp.topic
            if name in failed:
                self._on_failed_topic(state, failed[name], now_s)
            elif name in names and self._cluster.known_leader(state.tp) is None:
                self._on_missing_leader(state, now_s)
                is_leaderless = True
            elif name in names:
                self._missing_since_s.pop(state.tp, None)
                if isinstance(state.last_failure, errors.UnknownTopicError):
                    state.last_failure = None
        for name, since_s in self._unknown_since_s.items():
            if (now_s - since_s) * 1000 >= self._cluster.grace_ms([name]):
                # All its partitions have failed now. Once their errors are cleared, they wait as
                # long again.
                self._unknown_since_s[name] = now_s
        if failed or is_leaderless:
            self._back_off()
        else:
            self._backoff.reset()

    def _back_off(self) -> None:
        self.not_before_s = time.monotonic() + self._backoff.next_ms() / 1000

    def _on_failed_topic(self, state: PartitionState, code: int, now_s: float) -> None:
        """Note why the partition waits. Fail it if the error is final, or if its topic has not
        existed for the grace period."""
        error = errors.BrokerError(code, f"Metadata of {state.tp}")
        state.last_failure = error
        if not error.retriable:
            self._subscription.fail(state, error)
            return
        topic = state.tp.topic
        is_unknown = code == errors.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if is_unknown:
            state.last_failure = errors.UnknownTopicError(code, f"Metadata of {state.tp}")
        if is_unknown and topic not in self._unknown_since_s:
            log.warning(
                "%s, or this user may not see it (needs DESCRIBE on the topic): it is not read "
                "until it appears",
                missing_topics_text([topic], self._nearest),
            )
        # The cluster's other users may have noticed it earlier.
        first_s = self._cluster.unknown_since_s([topic], now_s)[topic]
        since_s = self._unknown_since_s.setdefault(topic, first_s)
        grace_ms = self._cluster.grace_ms([topic])
        if is_unknown and (now_s - since_s) * 1000 >= grace_ms:
            self._subscription.fail(
                state,
                errors.UnknownTopicError(
                    code,
                    f"Metadata of {state.tp}",
                    f"no broker has known it for {grace_ms / 1000:g} s: it was deleted, or "
                    f"{missing_topics_text([topic], self._nearest)}, or this user may not see it "
                    "(needs DESCRIBE on the topic)",
                ),
            )

    def _on_missing_leader(self, state: PartitionState, now_s: float) -> None:
        """Note why the partition waits: it has no leader, or it does not exist in its topic. Fail
        it if it has not existed for the grace period."""
        tp = state.tp
        count = self._cluster.partition_count(tp.topic) or 0
        if tp.partition < count:
            state.last_failure = no_leader_error(tp)
            return
        error = unknown_partition_error(tp, count)
        state.last_failure = error
        if tp not in self._missing_since_s:
            log.warning("%s", error)
        # If it has just been added, brokers will soon have it.
        since_s = self._missing_since_s.setdefault(tp, now_s)
        if (now_s - since_s) * 1000 >= UNKNOWN_TOPIC_GRACE_MS:
            del self._missing_since_s[tp]
            self._subscription.fail(state, error)
