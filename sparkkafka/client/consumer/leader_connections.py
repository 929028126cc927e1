"""The brokers that a consumer reads from: who leads what, and a connection to each."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable

from sparkkafka.client.cluster.cluster import (
    UNKNOWN_TOPIC_GRACE_MS,
    Cluster,
)
from sparkkafka.client.cluster.metadata import missing_topics, no_leader, no_partition
from sparkkafka.client.consumer.fetch_request import IDLE_BACKOFF_MAX_MS, IDLE_BACKOFF_MS
from sparkkafka.client.consumer.subscription_state import PartitionState, SubscriptionState
from sparkkafka.client.deadline import Backoff, Deadline
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.net.frames import FrameBuffer
from sparkkafka.client.net.pool import ConnectionPool
from sparkkafka.client.values import Broker, TopicPartition
from sparkkafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaError,
    UnknownTopicError,
)

log = logging.getLogger(__name__)


class Connecting:
    """An attempt to connect to `broker` in a thread, which calls `done` when it has ended.

    It takes a name lookup, a TCP and perhaps a TLS handshake, and several requests: seconds, if the
    broker does not answer. `connections` delay attempts after a refused password.
    """

    def __init__(
        self, broker: Broker, connections: ConnectionPool, done: Callable[[], None]
    ) -> None:
        self._broker = broker
        self._connections = connections
        self._done = done
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._error: BaseException | None = None
        self._is_abandoned = False
        self._thread = threading.Thread(
            target=self._run, name=f"connecting to {broker}", daemon=True
        )
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return self._connection is not None or self._error is not None

    def result(self) -> Connection:
        """The connection, once `has_ended`; raises what went wrong."""
        self._thread.join()
        if self._connection is None:
            raise self._error or RuntimeError("connecting has not ended")
        return self._connection

    def abandon(self) -> None:
        """Close the connection, now or when it is there."""
        with self._lock:
            self._is_abandoned = True
            connection = self._connection
        if connection is not None:
            connection.close()

    def _run(self) -> None:
        options = self._connections.options
        limit_ms = options.socket_connection_setup_timeout_ms + options.request_timeout_ms
        try:
            connection = self._connections.open(
                self._broker.host, self._broker.port, Deadline(limit_ms)
            )
        except BaseException as error:
            # `result` raises it.
            if not isinstance(error, KafkaError):
                error.add_note(f"while connecting to {self._broker}")
            self._error = error
        else:
            with self._lock:
                self._connection = connection
                if self._is_abandoned:
                    connection.close()
        with contextlib.suppress(OSError):  # the fetcher is closed
            self._done()


class RequestedPartition:
    """A partition in a request, and the offset or time asked for."""

    __slots__ = ("offset", "state")

    def __init__(self, state: PartitionState, offset: int) -> None:
        self.state = state
        self.offset = offset

    def is_current(self, is_fetch: bool) -> bool:
        """Whether the answer is still wanted: a seek may have come between."""
        state = self.state
        if is_fetch:
            return state.fetch_offset == self.offset
        return state.fetch_offset is None and state.lookup == self.offset


class LeaderConnection:
    """One broker: its connection and the request in flight."""

    def __init__(self, node_id: int, backoff: Backoff) -> None:
        self.node_id = node_id
        self.connection: Connection | None = None
        self.connecting: Connecting | None = None
        self.requested: dict[TopicPartition, RequestedPartition] = {}
        self.is_fetch = False
        self.sent_s = 0.0
        self.not_before_s = 0.0
        self.backoff = backoff
        self.idle = Backoff(IDLE_BACKOFF_MS, IDLE_BACKOFF_MAX_MS)
        self.buffer: FrameBuffer | None = None  # being filled
        self.spare: list[FrameBuffer] = []

    def open(
        self, broker: Broker, connections: ConnectionPool, done: Callable[[], None]
    ) -> Connection | None:
        """The connection to `broker`, None while it is being made; `done` is called then.

        Raises what connecting raised.
        """
        connection = self.connection
        if connection is not None and connection.is_open:
            is_there = (connection.host, connection.port) == broker[1:3]
            if is_there and not connection.has_expired:
                return connection
            self.close()  # or the broker moved to another address
        if self.connecting is None:
            self.connecting = Connecting(broker, connections, done)
            return None
        if not self.connecting.has_ended:
            return None
        connecting, self.connecting = self.connecting, None
        self.connection = connecting.result()
        return self.connection

    def close(self) -> None:
        """Forget the connection, and what is in flight on it."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        if self.connecting is not None:
            self.connecting.abandon()
            self.connecting = None
        for partition in self.requested.values():
            partition.state.in_flight = False
        self.requested = {}

    def wait(self) -> None:
        self.not_before_s = time.monotonic() + self.backoff.next_ms() / 1000

    def pace(self, max_wait_ms: int, *, is_new: bool) -> None:
        """An answer has come. If it says nothing new, and the broker did not wait for records as
        requested, this side waits."""
        now_s = time.monotonic()
        quick = (now_s - self.sent_s) * 1000 < max_wait_ms / 2
        if is_new:
            self.idle.reset()
        elif quick or not max_wait_ms:
            self.not_before_s = max(self.not_before_s, now_s + self.idle.next_ms() / 1000)


class LeaderLookup:
    """Finds the leaders of assigned partitions, and reports missing topics and partitions.

    `for_task`: a reader of ranges has its own rules for topics that were recreated.
    """

    def __init__(
        self, cluster: Cluster, assignment: SubscriptionState, *, for_task: bool = False
    ) -> None:
        self._for_task = for_task
        self._cluster = cluster
        self._assignment = assignment
        self._backoff = cluster.backoff()
        self.not_before_s = 0.0
        self._unknown_since_s: dict[str, float] = {}
        self._nearest: dict[str, str] = {}
        self._lacking_since_s: dict[TopicPartition, float] = {}
        self._topic_ids: dict[str, bytes] = {}

    def refresh(self, topics: Iterable[str], deadline: Deadline) -> None:
        """Ask once for the metadata of these topics. Raises what no retry can fix; the next call
        retries the rest."""
        names = sorted(topics)
        for name in names:
            self.note_id(name)
        try:
            failed = self._cluster.look_up(names, deadline)
        except KafkaError as error:
            if not error.retriable:
                raise
            log.warning("no metadata of %d topics: %s", len(names), error)
            for state in self._assignment:
                if state.tp.topic in names:
                    state.trouble = error
            self._wait()
            return
        now_s = time.monotonic()
        leaderless = False
        fresh = [
            name
            for name, code in failed.items()
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and name not in self._unknown_since_s
        ]
        self._nearest |= self._cluster.nearest_topics(fresh, deadline)
        for name in names:
            if name not in failed:
                self._unknown_since_s.pop(name, None)
                self.note_id(name)
        for tp in [tp for tp in self._lacking_since_s if tp not in self._assignment]:
            del self._lacking_since_s[tp]
        for state in self._assignment:
            name = state.tp.topic
            if name in failed:
                self._note_unknown(state, failed[name], now_s)
            elif name in names and self._cluster.known_leader(state.tp) is None:
                self._note_leaderless(state, now_s)
                leaderless = True
            elif name in names:
                self._lacking_since_s.pop(state.tp, None)
                if isinstance(state.trouble, UnknownTopicError):
                    state.trouble = None
        for name, since_s in self._unknown_since_s.items():
            if (now_s - since_s) * 1000 >= self._cluster.grace_ms([name]):
                self._unknown_since_s[name] = now_s  # all its partitions have the error now
        if failed or leaderless:
            self._wait()
        else:
            self._backoff.reset()

    def _wait(self) -> None:
        self.not_before_s = time.monotonic() + self._backoff.next_ms() / 1000

    def _note_unknown(self, state: PartitionState, code: int, now_s: float) -> None:
        error = BrokerError(code, f"Metadata of {state.tp}")
        state.trouble = error
        if not error.retriable:
            self._assignment.fail(state, error)
            return
        topic = state.tp.topic
        gone = code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if gone:
            state.trouble = UnknownTopicError(code, f"Metadata of {state.tp}")
        if gone and topic not in self._unknown_since_s:
            log.warning(
                "%s, or this user may not see it (needs DESCRIBE on the topic): it is not read "
                "until it appears",
                missing_topics([topic], self._nearest),
            )
        first_s = self._cluster.unknown_since_s([topic], now_s)[topic]
        since_s = self._unknown_since_s.setdefault(topic, first_s)
        grace_ms = self._cluster.grace_ms([topic])
        if gone and (now_s - since_s) * 1000 >= grace_ms:
            self._assignment.fail(
                state,
                UnknownTopicError(
                    code,
                    f"Metadata of {state.tp}",
                    f"no broker has known it for {grace_ms / 1000:g} s: it was deleted, or "
                    f"{missing_topics([topic], self._nearest)}, or this user may not see it (needs "
                    "DESCRIBE on the topic)",
                ),
            )

    def note_id(self, topic: str) -> None:
        """Warn if the topic has another id than before. As in Java's client, reading continues from
        the same offsets. Another thread may have refreshed the metadata, so requests check too."""
        found = self._cluster.topic_id(topic)
        if found is None or self._for_task:
            return
        if self._topic_ids.setdefault(topic, found) != found:
            self._topic_ids[topic] = found
            log.warning(
                "topic %s has been deleted and recreated: it is read from the offsets that were "
                "next in the old one; seek_to_beginning reads all of the new one",
                topic,
            )

    def _note_leaderless(self, state: PartitionState, now_s: float) -> None:
        """The topic exists, but this partition does not, or has no leader."""
        tp = state.tp
        count = self._cluster.partition_count(tp.topic) or 0
        if tp.partition < count:
            state.trouble = no_leader(tp)
            return
        error = no_partition(tp, count)
        state.trouble = error
        if tp not in self._lacking_since_s:
            log.warning("%s", error)
        # It may have been added just now: brokers learn of it soon.
        since_s = self._lacking_since_s.setdefault(tp, now_s)
        if (now_s - since_s) * 1000 >= UNKNOWN_TOPIC_GRACE_MS:
            del self._lacking_since_s[tp]
            self._assignment.fail(state, error)
