"""A Consumer's fetcher: records of many partitions from all their leaders concurrently.

Each leader has its own connection here, with one request in flight: ListOffsets for partitions
without a position, else a Fetch of all its partitions that have nothing left to decode. `receive`
takes what has come from any broker and waits for none in particular. Unread answers stay in the
sockets, so the brokers work while the user does.
"""

from __future__ import annotations

import logging
import select
import time
from collections import Counter
from typing import Any

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.offsets import list_offsets_request, unsupported_reason
from sparkkafka.client.consumer.fetch_request import (
    LEADER_ONLY_FETCH_VERSION,
    EpochEnd,
    FetchOffset,
    LogBounds,
    fetch_request,
    required_fetch_bytes,
    take_batches,
    truncation,
)
from sparkkafka.client.consumer.fetched_records import FetchedRecords, Frame, before_damage
from sparkkafka.client.consumer.leader_connections import (
    LeaderConnection,
    LeaderLookup,
    RequestedPartition,
)
from sparkkafka.client.consumer.subscription_state import PartitionState, SubscriptionState
from sparkkafka.client.deadline import Deadline, Waker
from sparkkafka.client.metrics.fetching import FetchMetrics
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.net.frames import FrameBuffer
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import FetchOptions
from sparkkafka.errors import (
    AuthenticationError,
    BrokerError,
    CorruptRecordError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    UnsupportedVersionError,
)
from sparkkafka.protocol.constants import (
    EARLIEST,
    LATEST,
    LATEST_TIERED,
    NO_LEADER_EPOCH,
    NO_OFFSET,
)
from sparkkafka.protocol.messages import FetchRequest, ListOffsetsRequest

log = logging.getLogger(__name__)


class Fetcher:
    """Keeps the partitions of `assignment` supplied with records. For one thread, except `wake`.

    `cluster` gives metadata; no request of this class uses its connections. `for_task`: the
    connection that metadata came by is taken over, which saves a short task a new one.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: FetchOptions,
        assignment: SubscriptionState,
        metrics: FetchMetrics | None = None,
        *,
        for_task: bool = False,
    ) -> None:
        self._metrics = metrics
        self._cluster = cluster
        self.options = options
        """Of the next requests."""
        self._assignment = assignment
        self._for_task = for_task
        self._leaders: dict[int, LeaderConnection] = {}
        self._lookup = LeaderLookup(cluster, assignment, for_task=for_task)
        self._waker = Waker()
        self.retries: Counter[TopicPartition] = Counter()
        """How often a partition was requested again after an error."""

    def close(self) -> None:
        for leader in self._leaders.values():
            if self._for_task and leader.connection is not None and not leader.requested:
                self._cluster.connections.put_back(leader.node_id, leader.connection)
                leader.connection = None
            leader.close()
        self._leaders.clear()
        self._waker.close()

    @property
    def is_closed(self) -> bool:
        return self._waker.fileno() < 0

    def wake(self) -> None:
        """End a `receive` that waits. From any thread."""
        self._waker.wake()

    # --- asking -----------------------------------------------------------------------------

    def send(self, deadline: Deadline | None, *, draining: bool = False) -> None:
        """Send a request to each idle leader. Waits for metadata only, until the deadline; None:
        does not wait.

        `draining`: the buffered records are about to be taken, so the next ones are requested.
        Raises what no retry can fix: no authentication, no authorisation.
        """
        now_s = time.monotonic()
        wanting = [row for row in self._assignment if row.wants_request(now_s, draining=draining)]
        if not wanting:
            return
        if deadline is not None and now_s >= self._lookup.not_before_s:
            known = self._cluster.known_leader
            unknown = {row.tp.topic for row in wanting if known(row.tp) is None}
            if unknown:
                self._lookup.refresh(unknown, deadline)
        by_node: dict[int, list[PartitionState]] = {}
        for state in wanting:
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
                if self._for_task and leader.connection is None:
                    leader.connection = self._cluster.connections.take_idle(broker)
                connection = leader.open(broker, self._cluster.connections, self.wake)
                if connection is not None:
                    self._send_request(leader, connection, states)
            except KafkaError as error:
                self._failed(leader, error)
            except BaseException:  # Ctrl-C: no answer may come that is not in `requested`
                leader.close()
                raise

    def can_request(self, state: PartitionState) -> bool:
        """Whether the broker to ask for this partition is known and idle."""
        node_id = self._node_of(state)
        leader = None if node_id is None else self._leaders.get(node_id)
        return node_id is not None and (leader is None or not leader.requested)

    def _node_of(self, state: PartitionState) -> int | None:
        """The broker to ask: a replica for records only, None if there is no leader now."""
        replica = state.replica.node_id
        if replica is not None and state.fetch_offset is not None:
            if replica in self._cluster.brokers:
                return replica
            state.replica.give_up()
        known = self._cluster.known_leader(state.tp)
        return None if known is None else known.leader

    def _send_request(
        self, leader: LeaderConnection, connection: Connection, states: list[PartitionState]
    ) -> None:
        for topic in {state.tp.topic for state in states}:
            self._lookup.note_id(topic)
        lost = [state for state in states if state.fetch_offset is None]
        request: FetchRequest | ListOffsetsRequest
        version = None
        if lost:
            states = self._without_unsupported(lost, connection)
            if not states:
                return
            times = [(row.tp, LATEST if row.lookup is None else row.lookup) for row in states]
            isolation_level = self.options.isolation_level
            request = list_offsets_request(self._cluster, times, isolation_level)
        else:
            states.sort(key=lambda state: state.required_bytes is None)
            version = connection.choose(FetchRequest)
            if any(state.replica.leader_only for state in states):
                version = min(LEADER_ONLY_FETCH_VERSION, version)
            wanted = {row.tp: self._fetch_offset(row) for row in states}
            request = fetch_request(self.options, wanted, version)
        leader.is_fetch = not lost
        leader.sent_s = time.monotonic()
        for state in states:
            offset = state.lookup if lost else state.fetch_offset
            leader.requested[state.tp] = RequestedPartition(state, offset or 0)
            state.in_flight = True
        connection.send(
            request, Deadline(self._cluster.options.request_timeout_ms), version=version
        )
        self._expect_unattended(leader)

    def _without_unsupported(
        self, lost: list[PartitionState], connection: Connection
    ) -> list[PartitionState]:
        """Leaves out, with an error, those whose kind of offset the broker does not know."""
        version = connection.choose(ListOffsetsRequest)
        found = []
        for state in lost:
            why = unsupported_reason(LATEST if state.lookup is None else state.lookup, version)
            if why is None:
                found.append(state)
            else:
                error = UnsupportedVersionError(f"ListOffsets of {state.tp} @ {connection}: {why}")
                self._assignment.fail(state, error)
        return found

    def _expect_unattended(self, leader: LeaderConnection) -> None:
        """This leader's answer may stay unread for a while."""
        if leader.is_fetch and leader.connection is not None:
            wanted = len(leader.requested) * self.options.max_partition_fetch_bytes
            leader.connection.expect_unattended(min(wanted, self.options.fetch_max_bytes))

    def _fetch_offset(self, state: PartitionState) -> FetchOffset:
        known = self._cluster.known_leader(state.tp)
        return FetchOffset(
            state.fetch_offset or 0,
            NO_LEADER_EPOCH if known is None else known.leader_epoch,
            state.required_bytes,
            # A replica may not have heard of the last epoch yet.
            state.fetch_epoch if state.replica.node_id is None else NO_LEADER_EPOCH,
        )

    # --- answers ----------------------------------------------------------------------------

    def receive(self, wait_s: float) -> None:
        """Take the answers that are there, waiting for the first of them.

        Errors of a partition go to its state. Raises what no retry can fix.
        """
        waiting = {
            leader.connection.fileno(): leader
            for leader in self._leaders.values()
            if leader.requested and leader.connection is not None and leader.connection.is_open
        }
        poll = select.poll()
        poll.register(self._waker, select.POLLIN)
        for descriptor, leader in waiting.items():
            poll.register(descriptor, select.POLLIN)
            if leader.connection is not None:
                leader.connection.expect_polled()
        # TLS and re-authentication buffer input that the socket does not show.
        ready = {
            descriptor
            for descriptor, leader in waiting.items()
            if leader.connection is not None and leader.connection.has_input
        }
        wait_ms = 0.0 if ready else max(0.0, wait_s) * 1000
        ready |= {descriptor for descriptor, _ in poll.poll(wait_ms)}
        if self._waker.fileno() in ready:
            self._waker.drain()
        for descriptor, leader in waiting.items():
            try:
                if not self._read(leader, is_ready=descriptor in ready):
                    if self._is_overdue(leader):
                        raise KafkaTimeoutError(
                            f"{leader.connection}: no answer within {self._limit_s(leader):g} s "
                            "(request.timeout.ms)"
                        )
                    self._expect_unattended(leader)
            except KafkaError as error:
                self._failed(leader, error)
            except BaseException:  # Ctrl-C: the answer is lost, so it is requested for again
                leader.close()
                raise

    def _limit_s(self, leader: LeaderConnection) -> float:
        wait_ms = self.options.fetch_max_wait_ms if leader.is_fetch else 0
        return (self._cluster.options.request_timeout_ms + wait_ms) / 1000

    def _is_overdue(self, leader: LeaderConnection) -> bool:
        return time.monotonic() - leader.sent_s > self._limit_s(leader)

    def _read(self, leader: LeaderConnection, *, is_ready: bool) -> bool:
        """Read what has come of an answer; returns whether anything has."""
        connection = leader.connection
        if connection is None:
            return False
        begun_bytes = connection.begun_bytes
        if not is_ready and not begun_bytes:
            return False
        if leader.buffer is None:
            leader.buffer = leader.spare.pop() if leader.spare else FrameBuffer()
        answer = connection.receive_ready(leader.buffer)
        if answer is None:
            return is_ready or connection.begun_bytes > begun_bytes
        frame = Frame(leader.buffer, leader.spare, self._metrics)
        leader.buffer = None
        requested, leader.requested = leader.requested, {}
        for row in requested.values():
            row.state.in_flight = False
        leader.backoff.reset()
        try:
            self._take(leader, connection, requested, answer[1], frame)
        finally:
            frame.release()
        return True

    def _take(
        self,
        leader: LeaderConnection,
        connection: Connection,
        requested: dict[TopicPartition, RequestedPartition],
        response: Any,
        frame: Frame,
    ) -> None:
        now_s = time.monotonic()
        if self._metrics is not None and leader.is_fetch:
            self._metrics.throttled(response.throttle_time_ms)
        if response.throttle_time_ms > 0:
            log.info("%s: throttled for %d ms", connection, response.throttle_time_ms)
            leader.not_before_s = now_s + response.throttle_time_ms / 1000
        name = "Fetch" if leader.is_fetch else "ListOffsets"
        code = response.error_code if leader.is_fetch else 0
        prefix = self._cluster.options.prefix
        rows: dict[tuple[str, int], Any] = {
            (topic.topic if leader.is_fetch else topic.name, row.partition_index): row
            for topic in (response.responses if leader.is_fetch else response.topics)
            for row in topic.partitions
        }
        is_new = False
        for tp, partition in requested.items():
            state = partition.state
            if self._assignment.get(tp) is not state or not partition.is_current(leader.is_fetch):
                is_new = True  # revoked, or a seek came between: the answer is dropped
                continue
            row = rows.get(tp)
            where = f"{name} of {tp} @ {connection}"
            if code or row is None:
                left_out = None if code else "the answer leaves it out"
                number = code or ErrorCode.UNKNOWN_SERVER_ERROR
                error = BrokerError(number, where, left_out, prefix=prefix)
                self._refused(leader, state, error)
            elif row.error_code:
                error = BrokerError(row.error_code, where, prefix=prefix)
                self._refused(leader, state, error)
            elif leader.is_fetch:
                is_new = self._take_records(leader, state, row, frame) or is_new
            else:
                self._take_position(state, row.offset)
        leader.pace(self.options.fetch_max_wait_ms, is_new=is_new or not leader.is_fetch)

    def _take_position(self, state: PartitionState, offset: int) -> None:
        state.backoff.reset()
        if offset == NO_OFFSET:  # no record is that late, or none has been tiered
            state.seek(None, lookup=EARLIEST if state.lookup == LATEST_TIERED else LATEST)
        else:
            log.debug("%s: reading from offset %d", state.tp, offset)
            state.seek(offset)

    def _take_records(
        self, leader: LeaderConnection, state: PartitionState, row: Any, frame: Frame
    ) -> bool:
        """Whether the answer says anything new of the partition."""
        tp, offset = state.tp, state.fetch_offset or 0
        state.backoff.reset()
        bounds = LogBounds(row.log_start_offset, row.high_watermark, row.last_stable_offset)
        end_offset = bounds.end_offset(self.options.isolation_level)
        state.end_offset = end_offset if end_offset >= 0 else None
        state.log_bounds = bounds if state.replica.node_id is None else None
        if row.preferred_read_replica >= 0 and state.replica.node_id is None:
            log.info("%s: reading from broker %d", tp, row.preferred_read_replica)
            state.replica.follow(row.preferred_read_replica)
            return True
        found_end = truncation(row)
        if found_end is not None:
            self._truncated(state, found_end)
            return True
        if not row.records:
            return False
        damage: CorruptRecordError | None = None
        try:
            taken = take_batches(row, self.options, state.selection.end_offset)
            if taken is None:
                state.required_bytes = required_fetch_bytes(row.records, state.required_bytes)
                return True
        except CorruptRecordError as error:
            taken, damage = before_damage(tp, row, self.options, error, offset)
        state.required_bytes = None
        self._assignment.move_to_end(state)
        next_offset = offset if taken is None else max(offset, taken.next_offset)
        last_epoch = state.fetch_epoch if taken is None else taken.last_epoch
        visible = [] if taken is None else taken.visible
        if visible or damage is not None:
            state.add(
                FetchedRecords(
                    tp,
                    visible,
                    offset,
                    next_offset,
                    frame,
                    damage,
                    last_epoch=last_epoch,
                    selection=state.selection,
                    max_payload_bytes=self.options.max_decompressed_batch_bytes,
                )
            )
            self._assignment.note_ready(state)
        else:
            state.skip_to(next_offset, last_epoch)
        return True

    def _truncated(self, state: PartitionState, found: EpochEnd) -> None:
        """The leader does not have the record before `fetch_offset` as it was read."""
        if state.fetch_offset != state.position:
            log.info("%s: fetching anew from offset %s on: %s", state.tp, state.position, found)
            state.drop()  # the user has not seen it: ask about what was seen
        else:
            state.out_of_range, state.truncated = True, found
            self._assignment.note_ready(state)

    # --- failures ---------------------------------------------------------------------------

    def _refused(self, leader: LeaderConnection, state: PartitionState, error: BrokerError) -> None:
        """A broker answered for one partition with an error."""
        self._cluster.note_error(state.tp, error.code)
        if leader.is_fetch and state.replica.node_id == leader.node_id:
            # Also OFFSET_OUT_OF_RANGE: only the leader can say that records are lost.
            log.info("%s: back to the leader: %s", state.tp, error)
            state.replica.give_up()
        elif error.code == ErrorCode.OFFSET_OUT_OF_RANGE and state.fetch_epoch != NO_LEADER_EPOCH:
            state.fetch_epoch = NO_LEADER_EPOCH  # it may be this that the leader does not have
        elif error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            state.out_of_range = True
            self._assignment.note_ready(state)
        elif error.retriable:
            self.retry(state, error)
        else:
            self._assignment.fail(state, error)

    def _failed(self, leader: LeaderConnection, error: KafkaError) -> None:
        """No answer from a broker: send another request later, perhaps to another broker."""
        states = [requested.state for requested in leader.requested.values()]
        if leader.connection is None:  # it could not even be reached
            states = [row for row in self._assignment if self._node_of(row) == leader.node_id]
        is_replica = bool(states)
        for state in states:
            self._note_failure(state, error)
            if state.replica.node_id == leader.node_id:
                state.replica.give_up()
            else:
                is_replica = False
            self._cluster.forget(state.tp.topic)
        leader.close()
        leader.wait()
        # Of a mere replica no error is final, but the leader would refuse a user as well.
        if not error.retriable and (not is_replica or isinstance(error, AuthenticationError)):
            raise error
        level = logging.INFO if isinstance(error, KafkaConnectionError) else logging.WARNING
        log.log(level, "broker %d: trying again: %s", leader.node_id, error)

    def retry(self, state: PartitionState, error: KafkaError) -> None:
        """Request this partition again after a backoff."""
        log.info("%s: trying again: %s", state.tp, error)
        self._note_failure(state, error)
        state.wait()

    def _note_failure(self, state: PartitionState, error: KafkaError) -> None:
        state.trouble = error
        self.retries[state.tp] += 1

    @property
    def next_step_s(self) -> float:
        """Seconds until something that waits may go on; at most one."""
        now_s = time.monotonic()
        times = [now_s + 1.0]
        times += [row.not_before_s for row in self._leaders.values() if not row.requested]
        times += [row.not_before_s for row in self._assignment if row.not_before_s > now_s]
        if self._lookup.not_before_s > now_s:
            times.append(self._lookup.not_before_s)
        return max(0.0, min(time_s for time_s in times if time_s > now_s) - now_s)
