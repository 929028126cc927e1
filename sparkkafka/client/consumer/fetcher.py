"""A Consumer's fetcher: records of many partitions from all their leaders concurrently.

Each leader has its own connection here, with one request in flight: ListOffsets for partitions
without a position, else a Fetch of all its partitions whose buffered records are all decoded.
`receive` takes the responses that have arrived, from any broker. Unread responses stay in the
sockets, so the brokers work while the user does. `LeaderFetcher`, with the connections, is also the
base of the ShareConsumer's fetcher.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from sparkkafka import errors
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.offsets import list_offsets_request, unsupported_reason
from sparkkafka.client.cluster.topic_lookup import TopicLookup
from sparkkafka.client.consumer import fetched_records
from sparkkafka.client.consumer.subscription_state import (
    EpochEnd,
    LogBounds,
    PartitionState,
    SubscriptionState,
)
from sparkkafka.client.deadline import Backoff, Deadline, Waker, poll_connections
from sparkkafka.client.metrics import FetchMetrics
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.net.frames import FrameBuffer
from sparkkafka.client.net.pool import ConnectionPool
from sparkkafka.client.values import Broker, TopicPartition
from sparkkafka.config.options import FetchOptions
from sparkkafka.protocol import messages
from sparkkafka.protocol.constants import (
    CONSUMER_REPLICA_ID,
    EARLIEST_PENDING_UPLOAD,
    ISOLATION_LEVELS,
    LATEST,
    LATEST_TIERED,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    NO_SESSION_EPOCH,
)

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
    ) -> tuple[Any, fetched_records.ResponseBuffer] | None:
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
                memory = fetched_records.ResponseBuffer(self._buffer, self._spare_buffers, metrics)
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
        self,
        leader: LeaderT,
        connection: Connection,
        response: Any,
        buffer: fetched_records.ResponseBuffer,
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


class Fetcher(LeaderFetcher[LeaderConnection]):
    """Fetches records for the partitions of `subscription`. For one thread, except `wake`.

    The fetcher has a connection of its own to each leader; those of `cluster` are for metadata
    requests. With `for_task` it borrows idle ones of `cluster`, because a new connection takes time
    that a short task would notice.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: FetchOptions,
        subscription: SubscriptionState,
        metrics: FetchMetrics | None = None,
        *,
        for_task: bool = False,
    ) -> None:
        super().__init__(cluster, options, metrics)
        self._subscription = subscription
        self._for_task = for_task
        self._lookup = TopicLookup(cluster)
        self.fetches_by_name = False
        """Whether a Fetch named its topics instead of sending their ids, so that the records may be
        those of a recreated topic."""
        self.retries: Counter[TopicPartition] = Counter()
        """The number of requests of each partition that were repeated after an error."""

    def close(self) -> None:
        """Close all connections; with `for_task`, return idle ones to the pool of `cluster`."""
        for leader in self._leaders.values():
            if self._for_task and leader.connection is not None and not leader.requested:
                self._cluster.connections.put_back(leader.node_id, leader.connection)
                leader.connection = None
        super().close()

    @property
    def is_closed(self) -> bool:
        return self._waker.fileno() < 0

    # --- requests ---------------------------------------------------------------------------

    def send(self, deadline: Deadline | None, *, is_draining: bool = False) -> None:
        """Send a request to each leader that has none in flight. Wait for metadata until the
        deadline; without one, wait for nothing.

        `is_draining`: the caller will take the buffered records now, so request the next ones.
        Raises errors that a retry cannot fix: failed authentication or authorization.
        """
        now_s = time.monotonic()
        needing = [
            state
            for state in self._subscription
            if state.needs_request(now_s, is_draining=is_draining)
        ]
        if not needing:
            return
        if deadline is not None:
            self._look_up_leaders(needing, deadline)
        by_node: dict[int, list[PartitionState]] = {}
        for state in needing:
            node_id = self._node_of(state)
            if node_id is not None:
                by_node.setdefault(node_id, []).append(state)
        for node_id, states in by_node.items():
            leader = self._leaders.get(node_id)
            if leader is None:
                leader = self._leaders[node_id] = LeaderConnection(node_id, self._cluster.backoff())
            if leader.requested or now_s < leader.not_before_s:
                continue
            try:
                broker = self._cluster.broker(node_id)
                if self._for_task and leader.connection is None:  # connecting takes too long
                    leader.connection = self._cluster.connections.take_idle(broker)
                connection = leader.open(broker, self._cluster.connections, self.wake)
                if connection is not None:
                    self._send_request(leader, connection, states)
            except errors.KafkaError as error:
                self._on_broker_failure(leader, error)
            except BaseException:  # Ctrl-C: `requested` may lack a request that was sent
                self._on_interrupt(leader)
                raise

    def _look_up_leaders(self, states: list[PartitionState], deadline: Deadline) -> None:
        """Look up the leaders of those partitions whose leader is not known. If a partition does
        not exist, let poll raise the error."""
        known = self._cluster.known_leader
        leaderless = [state for state in states if known(state.tp) is None]
        for state, error in self._lookup.look_up_leaders(leaderless, deadline.remaining_s() * 1000):
            if isinstance(error, errors.UnknownTopicError):
                where = f"Metadata of {state.tp}"
                error = errors.UnknownTopicError(error.code, where, error.broker_message)
            self._subscription.fail(state, error)
        for state in leaderless:
            if (
                isinstance(state.last_failure, errors.UnknownTopicError)
                and known(state.tp) is not None
            ):
                state.last_failure = None  # the partition exists again

    def can_request(self, state: PartitionState) -> bool:
        """Return whether the broker for this partition is known and idle."""
        node_id = self._node_of(state)
        leader = None if node_id is None else self._leaders.get(node_id)
        return node_id is not None and (leader is None or not leader.requested)

    def _node_of(self, state: PartitionState) -> int | None:
        """Return the id of the broker for the partition's next request: the leader, or, for a
        Fetch, the replica that the leader named. None if no leader is known."""
        replica = state.replica.node_id
        if replica is not None and state.fetch_offset is not None:
            if replica in self._cluster.brokers:
                return replica
            state.replica.return_to_leader()
        known = self._cluster.known_leader(state.tp)
        return None if known is None else known.leader

    def _send_request(
        self, leader: LeaderConnection, connection: Connection, states: list[PartitionState]
    ) -> None:
        """Send a ListOffsets for the partitions without a fetch offset; if there are none, send a
        Fetch for all."""
        states = [state for state in states if not self._was_recreated(state)]
        if not states:
            return
        without_offset = [state for state in states if state.fetch_offset is None]
        request: messages.FetchRequest | messages.ListOffsetsRequest
        version = None
        if without_offset:
            states = self._without_unsupported_lookups(without_offset, connection)
            if not states:
                return
            lookups = [(state.tp, state.lookup_ms or 0) for state in states]  # none is None
            isolation_level = self.options.isolation_level
            request = list_offsets_request(self._cluster, lookups, isolation_level)
        else:
            version = self._fetch_version(states, connection)
            # From this version on (Kafka 3.1) topics have their ids, not their names.
            self.fetches_by_name = self.fetches_by_name or version < 13
            request = self._fetch_request(states, version)
        leader.is_fetch = not without_offset
        leader.topic_names = {
            topic.topic_id: topic.topic
            for topic in request.topics
            if isinstance(topic, messages.FetchTopic)
        }
        leader.sent_at_s = time.monotonic()
        for state in states:
            leader.requested.append(state)
            requested = state.fetch_offset if leader.is_fetch else state.lookup_ms
            state.requested_offset = requested or 0
        connection.send(
            request, Deadline(self._cluster.options.request_timeout_ms), version=version
        )
        self._receive_in_kernel(leader)

    def _was_recreated(self, state: PartitionState) -> bool:
        """Return whether the topic was recreated since the position was set. If so, let poll apply
        auto.offset.reset. With `for_task` return False: `RangeReader` checks this itself."""
        topic_id = self._cluster.topic_id(state.tp.topic)
        if self._for_task or state.fetch_offset is None or topic_id is None:
            return False
        state.topic_id = state.topic_id or topic_id
        if state.topic_id == topic_id:
            return False
        state.is_out_of_range = True
        self._subscription.enqueue_if_ready(state)
        return True

    def _fetch_version(self, states: list[PartitionState], connection: Connection) -> int:
        """Return the version of a Fetch. If the broker and the metadata have topic ids, it is one
        with ids: then the broker refuses to read a topic that was recreated (KIP-516)."""
        if any(state.replica.leader_only for state in states):
            # Up to this version a Fetch has no rack, so the leader names no replica.
            return connection.choose_version(messages.FetchRequest, 10)
        if any(self._cluster.topic_id(state.tp.topic) is None for state in states):
            return connection.choose_version(messages.FetchRequest)  # its usual versions have names
        return connection.choose_version(messages.FetchRequest, messages.FetchRequest.MAX_VERSION)

    def _fetch_request(self, states: list[PartitionState], version: int) -> messages.FetchRequest:
        """Return one Fetch for these partitions. A broker adds records to its response in their
        order, up to fetch.max.bytes."""
        options = self.options
        topics: dict[str, list[messages.FetchPartition]] = {}
        for state in states:
            tp = state.tp
            leader_epoch = self._cluster.leader_epoch(tp)
            # A leader of a later epoch checks whether its log has what was read (KIP-320). The
            # Fetch itself requests that, as those of followers do (KIP-595), so that nothing can
            # happen between check and read. A replica may not know the last epoch yet.
            # From this version on (Kafka 2.7) a leader checks the leader epoch of the record before
            # the offset.
            checks_epoch = version >= 12 and state.replica.node_id is None
            is_older = checks_epoch and state.fetch_epoch < leader_epoch
            topics.setdefault(tp.topic, []).append(
                messages.FetchPartition(
                    partition=tp.partition,
                    current_leader_epoch=leader_epoch,
                    fetch_offset=state.fetch_offset or 0,
                    last_fetched_epoch=state.fetch_epoch if is_older else NO_LEADER_EPOCH,
                    partition_max_bytes=options.max_partition_fetch_bytes,
                )
            )
        return messages.FetchRequest(
            replica_id=CONSUMER_REPLICA_ID,
            max_wait_ms=options.fetch_max_wait_ms,
            min_bytes=options.fetch_min_bytes,
            max_bytes=options.fetch_max_bytes,
            isolation_level=ISOLATION_LEVELS[options.isolation_level],
            session_id=0,  # none (KIP-227): sessions help readers of thousands of quiet partitions
            session_epoch=NO_SESSION_EPOCH,
            topics=[
                messages.FetchTopic(
                    topic=name, topic_id=self._cluster.topic_uuid(name), partitions=rows
                )
                for name, rows in topics.items()
            ],
            rack_id=options.client_rack,
        )

    def _without_unsupported_lookups(
        self, states: list[PartitionState], connection: Connection
    ) -> list[PartitionState]:
        """Return the partitions whose kind of offset (latest, earliest local, …) the broker knows.
        Let poll raise an error for the others."""
        version = connection.choose_version(messages.ListOffsetsRequest)
        supported = []
        for state in states:
            why = unsupported_reason(state.lookup_ms or 0, version)
            if why is None:
                supported.append(state)
            else:
                error = errors.UnsupportedVersionError(
                    f"ListOffsets of {state.tp} @ {connection}: {why}"
                )
                self._subscription.fail(state, error)
        return supported

    def _receive_in_kernel(self, leader: LeaderConnection) -> None:
        """Let the operating system receive the response to a Fetch while the user processes other
        records."""
        if leader.is_fetch and leader.connection is not None:
            size_bytes = len(leader.requested) * self.options.max_partition_fetch_bytes
            leader.connection.receive_in_kernel(min(size_bytes, self.options.fetch_max_bytes))

    # --- responses ----------------------------------------------------------------------------

    def _on_response(
        self,
        leader: LeaderConnection,
        connection: Connection,
        response: Any,
        buffer: fetched_records.ResponseBuffer,
    ) -> None:
        """End the request in flight, and act on its response, whose bytes are in `buffer`, for each
        requested partition: records, an offset, or an error.

        The next request is sent immediately if this response changes it (`has_news`), else after a
        pause.
        """
        # Each partition with the offset to fetch or the timestamp to look up.
        requested = [(state, state.requested_offset) for state in leader.requested]
        leader.requested = []
        for state, _ in requested:
            state.requested_offset = None
        now_s = time.monotonic()
        if self._metrics is not None and leader.is_fetch:
            self._metrics.throttled(response.throttle_time_ms)
        if response.throttle_time_ms > 0:
            log.info("%s: throttled for %d ms", connection, response.throttle_time_ms)
            leader.not_before_s = now_s + response.throttle_time_ms / 1000
        api = "Fetch" if leader.is_fetch else "ListOffsets"
        code = response.error_code if leader.is_fetch else 0
        prefix = self._cluster.options.prefix
        rows = _rows_by_partition(leader, response)
        if not code and any(not topic for topic, _ in rows):  # as Java, ignore the response
            code = errors.ErrorCode.INCONSISTENT_TOPIC_ID
            log.warning("%s: a Fetch response has a topic id that was not requested", connection)
        has_news = not leader.is_fetch  # a Fetch can follow
        for state, offset in requested:
            tp = state.tp
            needs_fetch = state.fetch_offset is not None
            needed_offset = state.fetch_offset if needs_fetch else state.lookup_ms
            is_revoked = self._subscription.get(tp) is not state
            if is_revoked or needs_fetch is not leader.is_fetch or needed_offset != offset:
                has_news = True  # revoked, or moved by a seek: drop this part of the response
                continue
            row = rows.get(tp)
            where = f"{api} of {tp} @ {connection}"
            if row is None and leader.is_fetch and not code:
                continue  # no records now: Tansu leaves the partition out of its response
            if code or row is None:
                reason = None if code else "the response leaves it out"
                error = errors.BrokerError(
                    code or errors.ErrorCode.UNKNOWN_SERVER_ERROR, where, reason, prefix=prefix
                )
                self._on_partition_error(leader, state, error)
            elif row.error_code:
                error = errors.BrokerError(row.error_code, where, prefix=prefix)
                self._on_partition_error(leader, state, error)
            elif leader.is_fetch:
                has_news = self._take_records(state, row, buffer) or has_news
            else:
                self._take_listed_offset(state, row.offset, where)
        leader.pace(self.options.fetch_max_wait_ms, has_news=has_news)

    def _take_listed_offset(self, state: PartitionState, offset: int, where: str) -> None:
        """Set the position to the offset that the leader looked up. For an offset that no Kafka
        broker returns, send the request again after a backoff."""
        if offset < NO_OFFSET or (offset == NO_OFFSET and state.lookup_ms == LATEST):
            reason = f"it returned offset {offset}"
            self.retry(
                state, errors.BrokerError(errors.ErrorCode.UNKNOWN_SERVER_ERROR, where, reason)
            )
            return
        if offset == NO_OFFSET and state.lookup_ms in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            error = errors.NoOffsetError(
                "there is no such offset: the topic has no tiered storage, or nothing of it is "
                "uploaded yet. Seek to the earliest or earliest local offset",
                topic=state.tp.topic,
                partition=state.tp.partition,
            )
            self._subscription.fail(state, error)
        elif offset == NO_OFFSET:  # no record is that late
            state.seek(None, lookup_ms=LATEST)
        else:
            log.debug("%s: reading from offset %d", state.tp, offset)
            state.seek(offset)

    def _take_records(
        self, state: PartitionState, row: Any, buffer: fetched_records.ResponseBuffer
    ) -> bool:
        """Buffer the records of a partition; return whether the response changes its next
        request."""
        tp, offset = state.tp, state.fetch_offset or 0
        bounds = LogBounds(row.log_start_offset, row.high_watermark, row.last_stable_offset)
        end_offset = bounds.end_offset(self.options.isolation_level)
        state.end_offset = end_offset if end_offset >= 0 else None
        # Only the leader's bounds show what is lost and how far the log goes: a follower lags.
        state.log_bounds = bounds if state.replica.node_id is None else None
        if row.preferred_read_replica >= 0 and state.replica.node_id is None:
            log.info("%s: reading from broker %d", tp, row.preferred_read_replica)
            state.replica.use(row.preferred_read_replica)
            return True
        diverging = EpochEnd(row.diverging_epoch.epoch, row.diverging_epoch.end_offset)
        if diverging.end_offset >= 0:
            self._on_truncation(state, diverging)
            return True
        state.backoff.reset()
        if not row.records:
            return False  # none has come within fetch.max.wait.ms
        selection = state.selection._replace(start_offset=offset)
        taken = fetched_records.take_batches(tp, row, self.options, selection, state.fetch_epoch)
        self._subscription.move_to_end(state)
        if taken.visible or taken.damage is not None:
            max_bytes = self.options.max_decompressed_batch_bytes
            state.add(fetched_records.FetchedRecords(taken, selection, buffer, max_bytes))
            self._subscription.enqueue_if_ready(state)
        else:
            state.skip_to(taken.next_offset, taken.last_epoch)
        return True

    def _on_truncation(self, state: PartitionState, diverging: EpochEnd) -> None:
        """Act on a response which says that the leader's log lacks the record before
        `fetch_offset`. If poll has returned that record, let poll raise an error or reset the
        position; else drop the record and fetch it again."""
        if state.fetch_offset != state.position:
            log.info("%s: fetching again from offset %s: %s", state.tp, state.position, diverging)
            state.drop()
        else:
            state.is_out_of_range, state.truncated = True, diverging
            self._subscription.enqueue_if_ready(state)

    # --- failures ---------------------------------------------------------------------------

    def _on_partition_error(
        self, leader: LeaderConnection, state: PartitionState, error: errors.BrokerError
    ) -> None:
        """Act on a broker's error for a partition: request it again, reset its position, or let
        poll raise the error."""
        self._cluster.note_error(state.tp, error.code)
        if leader.is_fetch and state.replica.node_id == leader.node_id:
            # OFFSET_OUT_OF_RANGE is no exception: only the leader knows whether records are lost.
            log.info("%s: back to the leader: %s", state.tp, error)
            state.replica.return_to_leader()
        elif (
            error.code == errors.ErrorCode.OFFSET_OUT_OF_RANGE
            and state.fetch_epoch != NO_LEADER_EPOCH
        ):
            state.fetch_epoch = NO_LEADER_EPOCH  # the leader may have the offset, not the epoch
        elif error.code == errors.ErrorCode.OFFSET_OUT_OF_RANGE:
            state.is_out_of_range = True
            self._subscription.enqueue_if_ready(state)
        elif error.retriable:
            self.retry(state, error)
        else:
            state.back_off()  # a program that polls on must not flood the broker
            self._subscription.fail(state, error)

    def _on_broker_failure(self, leader: LeaderConnection, error: errors.KafkaError) -> None:
        """After an error of a connection, or without a response, request the broker's partitions
        again later, perhaps from another broker. Raises errors that a retry cannot fix."""
        states = list(leader.requested)
        if leader.connection is None:  # the leader could not be reached
            states = [
                state for state in self._subscription if self._node_of(state) == leader.node_id
            ]
        by_replica = [state for state in states if state.replica.node_id == leader.node_id]
        for state in states:
            self._note_failure(state, error)
            self._cluster.mark_stale(state.tp.topic)
        for state in by_replica:
            state.replica.return_to_leader()
        # An error of a replica is not final, since the leader has the records too; but the leader
        # would refuse the user as well.
        is_only_replica = bool(states) and len(by_replica) == len(states)
        is_final = not is_only_replica or isinstance(error, errors.AuthenticationError)
        self._close_failed(leader, error, is_final=is_final and not error.retriable)

    def retry(self, state: PartitionState, error: errors.KafkaError) -> None:
        """Request this partition again after a backoff."""
        log.info("%s: trying again: %s", state.tp, error)
        self._note_failure(state, error)
        state.back_off()

    def _note_failure(self, state: PartitionState, error: errors.KafkaError) -> None:
        """Keep the error for the message of a later timeout, and count the retry that follows."""
        state.last_failure = error
        self.retries[state.tp] += 1

    def _retry_at_s(self) -> Iterable[float]:
        return [state.not_before_s for state in self._subscription]


def _rows_by_partition(leader: LeaderConnection, response: Any) -> dict[tuple[str, int], Any]:
    """Return the parts of the response to a Fetch or ListOffsets by topic and partition. The topic
    is "" if a Fetch response has the id of one that was not requested."""
    rows: dict[tuple[str, int], Any] = {}
    for topic in response.responses if leader.is_fetch else response.topics:
        name = topic.topic if leader.is_fetch else topic.name
        if leader.is_fetch and not name:  # since Kafka 3.1 it has ids instead of names
            name = leader.topic_names.get(topic.topic_id, "")
        rows |= {(name, row.partition_index): row for row in topic.partitions}
    return rows
