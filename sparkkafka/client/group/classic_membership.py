"""Membership under the classic protocol (group.protocol=classic).

The members themselves assign the partitions: all send JoinGroup, the coordinator makes one of them
the leader, and the leader's SyncGroup says who gets what. Eager members revoke all partitions
before they rejoin. Cooperative ones (KIP-429) keep theirs, revoke what the new assignment takes
away, and then rejoin, so that others can get it. (Java's ConsumerCoordinator.)

`ClassicMember.poll` starts a round with `join`; its thread joins, assigns the partitions if this
member is the leader, and puts the result into `joined`, where the next `poll` finds it. The thread
also sends the heartbeats (Java's AbstractCoordinator and its HeartbeatThread).
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from sparkkafka.client.cluster.cluster import Cluster, throttle
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.assignors import GroupAssignors, TopicWatch
from sparkkafka.client.group.commits import (
    commit_as_member,
    commit_failed,
)
from sparkkafka.client.group.membership import (
    FAR_S,
    POLL_OVERDUE,
    Commit,
    GroupMember,
    GroupMetadata,
    MemberThread,
    Offsets,
    RebalanceHooks,
    group_error,
)
from sparkkafka.client.metrics.fetching import FetchMetrics
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.values import TopicPartition, some_partitions, some_topics
from sparkkafka.config.client_settings import ConsumerOptions
from sparkkafka.config.kinds import INT32_MAX
from sparkkafka.errors import (
    CommitFailedError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    UnsupportedVersionError,
    error_name,
)
from sparkkafka.protocol.constants import NO_GENERATION, NO_MEMBER_ID
from sparkkafka.protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from sparkkafka.protocol.messages.consumer_protocol import PROTOCOL_TYPE

log = logging.getLogger(__name__)

INSTANCE_ID_VERSION = 5  # of JoinGroup (Kafka 2.3)
MEMBERS_VERSION = 3  # of LeaveGroup: several members

JOIN_LAPSE_MS = 5_000
"""The coordinator answers a JoinGroup after max.poll.interval.ms at the latest; this much more is
for the way (Java's JOIN_GROUP_TIMEOUT_LAPSE)."""

MAX_REASON_CHARS = 255  # brokers cut them there (KIP-800)

_LOST = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)


class Phase(enum.Enum):
    """Where the member stands."""

    OUTSIDE = "not joined, and not asked to"
    TO_JOIN = "JoinGroup has to be sent"
    JOINING = "waiting for the answer to JoinGroup"
    SYNCING = "waiting for the answer to SyncGroup"
    JOINED = "a member of the generation"


IN_ROUND = (Phase.TO_JOIN, Phase.JOINING, Phase.SYNCING)


class Generation(NamedTuple):
    """`generation_id` is that of the last JoinGroup that was answered."""

    generation_id: int = NO_GENERATION
    member_id: str = NO_MEMBER_ID
    protocol: str | None = None


class Joined(NamedTuple):
    """A rebalance that is over, as far as the brokers are concerned."""

    generation: Generation
    assignment: bytes


class ClassicMemberThread(MemberThread):
    """`lock` guards its fields; only the thread changes them after `join`."""

    def __init__(
        self,
        options: ConsumerOptions,
        group_id: str,
        assignors: GroupAssignors,
        cluster: Cluster,
        on_change: Callable[[], None],
        metrics: FetchMetrics | None = None,
    ) -> None:
        super().__init__(options, group_id, cluster, on_change, metrics)
        self.phase = Phase.OUTSIDE
        self.generation = Generation()
        self.joined: Joined | None = None
        self.rejoin_reason: str | None = None
        """Why the group has to be joined again, for `poll` to do."""
        self._assignors = assignors
        self._protocols: list[JoinGroupRequestProtocol] = []
        self._reason: str | None = None
        self._given_id = False
        self._connection: Connection | None = None  # with a JoinGroup or SyncGroup in flight
        self._node_id = -1  # its broker
        self._answer_due = Deadline(0)
        self._next_heartbeat_s = 0.0
        self._join_not_before_s = 0.0
        self._watch: TopicWatch | None = None  # the leader's

    # --- called by the member --------------------------------------------------------------------

    def join(self, protocols: list[JoinGroupRequestProtocol], reason: str) -> None:
        """Begin a rebalance, unless one is in progress."""
        with self.lock:
            self._protocols, self._reason = protocols, reason
            self.rejoin_reason = None
            self.joined = None
            self.phase = Phase.TO_JOIN
        self.wake()

    def request_rejoin(self, reason: str, *, pause_ms: float = 0) -> None:
        """With the next `join`, which is sent after the pause."""
        with self.lock:
            self._join_not_before_s = time.monotonic() + pause_ms / 1000
            self._request_rejoin(reason)

    def lose_membership(self, generation: Generation, code: int, where: str) -> None:
        """The coordinator says so of `generation`; nothing happens if there is a newer one."""
        with self.lock:
            if generation == self.generation:
                if code == ErrorCode.FENCED_INSTANCE_ID:  # joining again would fence the other one
                    self.failure = group_error(code, self.group_id, where)
                self._lose(code, where)

    # --- state: with the lock --------------------------------------------------------------------

    def _request_rejoin(self, reason: str) -> None:
        if self.rejoin_reason is None:
            log.info("group %s: has to be joined again: %s", self.group_id, reason)
            self.rejoin_reason = reason
            self.on_change()

    def _lose(self, code: int, where: str) -> None:
        # With ILLEGAL_GENERATION the member id may still be good (Java's
        # resetStateOnResponseError).
        keep_id = code == ErrorCode.ILLEGAL_GENERATION
        reason = f"{where} was answered with {error_name(code)}"
        self._reset(self.generation.member_id if keep_id else NO_MEMBER_ID, reason)

    def _reset(self, member_id: str, reason: str) -> None:
        log.info("group %s: no longer a member: %s", self.group_id, reason)
        self.generation = Generation(member_id=member_id)
        self.phase = Phase.OUTSIDE
        self.joined = None
        self.lost = True
        self.rejoin_reason = reason
        self._watch = None
        self.on_change()

    # --- the thread ------------------------------------------------------------------------------

    @property
    def pending(self) -> Connection | None:
        return self._connection if self.phase in (Phase.JOINING, Phase.SYNCING) else None

    def step(self, answered: bool) -> float:
        phase = self.phase
        if phase is Phase.TO_JOIN:
            pause_s = self._join_not_before_s - time.monotonic()
            if pause_s > 0:
                return pause_s
            self._send_join()
            phase = self.phase
        elif phase in (Phase.JOINING, Phase.SYNCING):
            if answered or self._connection is None or not self._connection.is_open:
                self._take_answer()
                return 0
            if self._answer_due.expired:
                raise KafkaTimeoutError(f"no answer to {phase.name} within {self._answer_due.text}")
        if phase is Phase.OUTSIDE:
            return FAR_S
        if phase is Phase.JOINING:
            return self._answer_due.remaining_s()
        return self._stay()

    def failed(self, error: KafkaError) -> float:
        phase = self.phase
        passing = (
            error.retriable
            # Of JoinGroup: the coordinator could not write the group down in time.
            or getattr(error, "code", 0) == ErrorCode.REBALANCE_IN_PROGRESS
        )
        if phase is Phase.JOINED:
            if not passing:
                self.fail(error)
            wait_s = self.retry_later(error, "a heartbeat")
            self._next_heartbeat_s = time.monotonic() + wait_s
            return wait_s
        self._close_connection()
        self.metrics.rebalance_failed()
        with self.lock:
            if self.phase in IN_ROUND:
                self.phase = Phase.TO_JOIN if passing else Phase.OUTSIDE
            if not passing:
                self.fail(error)
        return self.retry_later(error, "joining")

    @property
    def must_leave(self) -> bool:
        """Static members need not: they come back, or time out (KIP-345)."""
        return self.generation.member_id != NO_MEMBER_ID and not self.options.group_instance_id

    def leave(self, deadline: Deadline) -> None:
        self._close_connection()
        if self.must_leave:
            self._send_leave(self.generation.member_id, "the consumer is being closed", deadline)
            log.info("group %s: left", self.group_id)

    def close_connections(self) -> None:
        self._close_connection()
        super().close_connections()

    def _send_leave(self, member_id: str, reason: str, deadline: Deadline) -> None:
        node_id = self.coordinator(deadline)
        connection = self.cluster.connection(node_id, deadline)
        if connection.choose(LeaveGroupRequest) >= MEMBERS_VERSION:
            members = [MemberIdentity(member_id=member_id, reason=reason)]
            request = LeaveGroupRequest(group_id=self.group_id, members=members)
        else:
            request = LeaveGroupRequest(group_id=self.group_id, member_id=member_id)
        response = connection.call(request, deadline)
        code = response.error_code or next((row.error_code for row in response.members), 0)
        if code:
            raise group_error(code, self.group_id, "LeaveGroup")

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- joining ---------------------------------------------------------------------------------

    def _take_connection(self, deadline: Deadline) -> Connection:
        """Take the connection to the coordinator out of the cluster's, until the answer is here.

        The coordinator answers JoinGroup when all members have joined, and a connection's requests
        in their order: a heartbeat in the meantime goes over another connection.
        """
        self._close_connection()
        node_id = self.coordinator(deadline)
        try:
            broker = self.cluster.broker(node_id)
            connection = self.cluster.connections.to(broker, deadline)
        except KafkaError:
            self.forget_coordinator()
            raise
        self.cluster.connections.take_idle(broker)
        self._connection, self._node_id = connection, node_id
        return connection

    def _send_join(self) -> None:
        deadline = self.request_deadline()
        connection = self._take_connection(deadline)
        options = self.options
        version = connection.choose(JoinGroupRequest)
        if options.group_instance_id is not None and version < INSTANCE_ID_VERSION:
            raise UnsupportedVersionError(
                f"{connection}: group.instance.id needs brokers of Kafka 2.3 or later: leave it out"
            )
        # The second time is only with the id that it was given (MEMBER_ID_REQUIRED).
        level = logging.DEBUG if self._given_id else logging.INFO
        self._given_id = False
        log.log(level, "group %s: joining: %s", self.group_id, self._reason)
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=options.session_timeout_ms,
            rebalance_timeout_ms=options.max_poll_interval_ms,
            member_id=self.generation.member_id,
            group_instance_id=options.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=self._protocols,
            reason=(self._reason or "")[:MAX_REASON_CHARS],
        )
        connection.send(request, deadline)
        lapse_ms = min(options.max_poll_interval_ms + JOIN_LAPSE_MS, INT32_MAX)
        self._answer_due = Deadline(max(options.client.request_timeout_ms, lapse_ms))
        with self.lock:
            if self.phase is Phase.TO_JOIN:
                self.phase = Phase.JOINING

    def _take_answer(self) -> None:
        """What came on the connection, or that it broke."""
        connection = self._connection
        if connection is None:
            raise KafkaConnectionError("the connection to the coordinator broke")
        _, response = connection.receive(self.request_deadline())
        self._connection = None
        self.cluster.connections.put_back(self._node_id, connection)
        throttle(response, self.request_deadline())
        if isinstance(response, JoinGroupResponse):
            self._take_join(response)
        elif isinstance(response, SyncGroupResponse):
            self._take_sync(response)

    def _take_join(self, response: JoinGroupResponse) -> None:
        code = response.error_code
        if code:
            self._join_refused(code, response.member_id)
            return
        self._check_type(response.protocol_type, "JoinGroup")
        self.succeeded()
        generation = Generation(
            response.generation_id, response.member_id, response.protocol_name or ""
        )
        with self.lock:
            self.generation = generation
            self.phase = Phase.SYNCING
            self._watch = None
        self._next_heartbeat_s = time.monotonic() + self.options.heartbeat_interval_ms / 1000
        is_leader = response.leader == response.member_id
        who = f"{generation.member_id}{', its leader' if is_leader else ''}"
        log.info(
            "group %s: joined generation %d as %s, assignor %s",
            self.group_id,
            generation.generation_id,
            who,
            generation.protocol,
        )
        shared: Mapping[str, bytes] = {}
        if is_leader:
            shared, self._watch = self._assignors.assign_for(
                self.cluster, self.group_id, response, self.request_deadline()
            )
        deadline = self.request_deadline()
        self._take_connection(deadline).send(
            SyncGroupRequest(
                group_id=self.group_id,
                generation_id=generation.generation_id,
                member_id=generation.member_id,
                group_instance_id=self.options.group_instance_id,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=generation.protocol,
                assignments=[
                    SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                    for member_id, assignment in shared.items()
                ],
            ),
            deadline,
        )
        # The answer comes when the leader has sent its SyncGroup, for which the coordinator gives
        # it the rebalance timeout. Java asks again after request.timeout.ms, and so does this.
        self._answer_due = deadline

    def _join_refused(self, code: int, member_id: str) -> None:
        if code == ErrorCode.MEMBER_ID_REQUIRED:  # KIP-394
            with self.lock:
                self.generation = Generation(member_id=member_id)
                self.phase = Phase.TO_JOIN
            self._given_id = True
            return
        if code in _LOST:
            self._lost_in_round(code, "JoinGroup")
            return
        hint = None
        if code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            hint = (
                "the other members have none of this one's assignors "
                f"({', '.join(row.name for row in self._protocols)}): set "
                "partition.assignment.strategy to one that all have; or the group is of another "
                "kind: then set another group.id"
            )
        elif code == ErrorCode.INVALID_SESSION_TIMEOUT:
            hint = (
                f"session.timeout.ms={self.options.session_timeout_ms} is not within the brokers' "
                "group.min.session.timeout.ms and group.max.session.timeout.ms"
            )
        raise self.refused(code, "JoinGroup", hint)

    def _take_sync(self, response: SyncGroupResponse) -> None:
        code = response.error_code
        if code in _LOST:
            self._lost_in_round(code, "SyncGroup")
            return
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            log.info("group %s: the next rebalance began before this one ended", self.group_id)
            self.metrics.rebalance_failed()
            with self.lock:
                self.phase = Phase.TO_JOIN
            return
        if code:
            raise self.refused(code, "SyncGroup")
        self._check_type(response.protocol_type, "SyncGroup")
        self.succeeded()
        with self.lock:
            if self.phase is Phase.SYNCING:  # and no heartbeat has said that we are out
                self.phase = Phase.JOINED
                self.joined = Joined(self.generation, bytes(response.assignment))
                self.on_change()

    def _lost_in_round(self, code: int, where: str) -> None:
        self.metrics.rebalance_failed()
        self.succeeded()
        with self.lock:
            self._lose(code, where)

    def _check_type(self, protocol_type: str | None, where: str) -> None:
        if protocol_type is not None and protocol_type != PROTOCOL_TYPE:
            raise group_error(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                self.group_id,
                where,
                f"its members are of the type {protocol_type!r}, not consumers: set another "
                "group.id",
            )

    # --- staying ---------------------------------------------------------------------------------

    def _stay(self) -> float:
        """Heartbeats, max.poll.interval.ms, and the leader's look at the topics."""
        if self.poll_overdue:
            self._leave_slow_poller()
            return 0
        now_s = time.monotonic()
        if now_s >= self._next_heartbeat_s:
            self._heartbeat()
        watch = self._watch
        if self.phase is Phase.JOINED and watch is not None and watch.until_check_s() <= 0:
            self._check_topics(watch)
        if self.phase is Phase.OUTSIDE:
            return 0
        waits = [self._next_heartbeat_s - time.monotonic(), self.until_poll_due_s()]
        if self.phase is Phase.SYNCING:
            waits.append(self._answer_due.remaining_s())
        elif watch is not None:
            waits.append(watch.until_check_s())
        return max(0.0, min(waits))

    def _heartbeat(self) -> None:
        options = self.options
        generation = self.generation
        limit_ms = min(options.client.request_timeout_ms, options.session_timeout_ms)
        self._next_heartbeat_s = time.monotonic() + options.heartbeat_interval_ms / 1000
        try:
            response = self.call(
                HeartbeatRequest(
                    group_id=self.group_id,
                    generation_id=generation.generation_id,
                    member_id=generation.member_id,
                    group_instance_id=options.group_instance_id,
                ),
                Deadline(limit_ms),
            )
        except KafkaError as error:
            if self.phase is Phase.SYNCING and error.retriable:
                # SyncGroup has a connection of its own: its failures are looked for there.
                self._next_heartbeat_s = time.monotonic() + self.retry_later(error, "a heartbeat")
                return
            raise
        code = response.error_code
        if not code:
            self.succeeded()
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.succeeded()
            with self.lock:
                if self.phase is Phase.JOINED:
                    self._request_rejoin("the group is rebalancing")
        elif code in (*_LOST, ErrorCode.FENCED_INSTANCE_ID):
            self.lose_membership(generation, code, "Heartbeat")
            self._close_connection()
        else:
            raise self.refused(code, "Heartbeat")

    def _leave_slow_poller(self) -> None:
        member_id = self.generation.member_id
        with self.lock:
            if not self.poll_overdue:  # it came just now
                return
            self._reset(NO_MEMBER_ID, POLL_OVERDUE)
        self._close_connection()
        is_static = self.options.group_instance_id is not None
        self.leave_after_missed_poll(
            None if is_static else partial(self._send_leave, member_id, POLL_OVERDUE)
        )

    def _check_topics(self, watch: TopicWatch) -> None:
        """The leader rejoins when partitions were added, or topics came or went."""
        limit = Deadline(self.options.heartbeat_interval_ms)
        try:
            changed = watch.look(self.cluster, limit.sooner(self.options.client.request_timeout_ms))
        except KafkaError as error:
            log.info("group %s: looking at the topics failed: %s", self.group_id, error)
            return
        with self.lock:
            if changed and self.phase is Phase.JOINED:
                self._request_rejoin(f"the partitions of {some_topics(changed)} changed")


class ClassicMember(GroupMember[ClassicMemberThread]):
    """A member of a classic group."""

    def __init__(
        self,
        options: ConsumerOptions,
        hooks: RebalanceHooks,
        cluster: Cluster,
        wake: Callable[[], None],
        metrics: FetchMetrics | None = None,
    ) -> None:
        super().__init__(options, hooks, cluster, wake, metrics)
        self._assignors = GroupAssignors(options.partition_assignment_strategy)
        self._last_generation_id = NO_GENERATION
        self._unwanted = self._cluster.backoff()

    @property
    def metadata(self) -> GroupMetadata:
        thread = self._thread
        if thread is None:
            return GroupMetadata(self._group_id, group_instance_id=self._options.group_instance_id)
        with thread.lock:
            generation, phase = thread.generation, thread.phase
        # During a rebalance it is the last generation that is over.
        known = generation.generation_id if phase is Phase.JOINED else self._last_generation_id
        return self._identity(generation._replace(generation_id=known))

    def _identity(self, generation: Generation) -> GroupMetadata:
        return GroupMetadata(
            self._group_id,
            generation.generation_id,
            generation.member_id,
            self._options.group_instance_id,
        )

    def _new_thread(self) -> ClassicMemberThread:
        return ClassicMemberThread(
            self._options,
            self._group_id,
            self._assignors,
            self._cluster,
            self._wake,
            self._metrics,
        )

    def _step(self, thread: ClassicMemberThread, wanted: frozenset[str]) -> bool:
        with thread.lock:
            joined, thread.joined = thread.joined, None
        if joined is not None:
            self._end_rebalance(joined, thread)
            return True
        return self._begin_rebalance(thread, wanted)

    def commit(self, offsets: Offsets, deadline: Deadline) -> None:
        self.committer()(self._cluster, offsets, deadline)

    def committer(self) -> Commit:
        thread = self._thread
        if thread is None:
            raise commit_failed(ErrorCode.UNKNOWN_MEMBER_ID, self._group_id)
        with thread.lock:
            generation, phase = thread.generation, thread.phase
        if phase is not Phase.JOINED:
            code = (
                ErrorCode.REBALANCE_IN_PROGRESS
                if phase in IN_ROUND
                else ErrorCode.UNKNOWN_MEMBER_ID
            )
            raise commit_failed(code, self._group_id)
        identity = self._identity(generation)

        def commit(cluster: Cluster, offsets: Offsets, deadline: Deadline) -> None:
            try:
                commit_as_member(cluster, lambda: identity, offsets, deadline)
            except CommitFailedError as error:
                if error.code == ErrorCode.REBALANCE_IN_PROGRESS:
                    thread.request_rejoin("a commit was answered with REBALANCE_IN_PROGRESS")
                else:
                    thread.lose_membership(generation, error.code, "OffsetCommit")
                raise

        return commit

    # --- rebalances ------------------------------------------------------------------------------

    def _lose(self) -> None:
        self._last_generation_id = NO_GENERATION
        super()._lose()

    def _begin_rebalance(self, thread: ClassicMemberThread, wanted: frozenset[str]) -> bool:
        """Join if due and no rebalance is in progress; returns whether anything was done."""
        with thread.lock:
            if thread.lost or thread.phase in IN_ROUND:
                return thread.lost
            reason = thread.rejoin_reason
            if thread.phase is Phase.JOINED and reason is None and wanted == self._joined_with:
                return False
        if reason is None:
            reason = "first time" if thread.phase is Phase.OUTSIDE else "the subscription changed"
        gone: Iterable[TopicPartition] = self._owned
        if self._assignors.cooperative:
            gone = [tp for tp in self._owned if tp.topic not in wanted]
        error = self._revoke(gone)
        if error is not None:
            raise error
        if self._closed or self._wanted != wanted:  # the hook did it
            return True
        with thread.lock:
            if thread.lost:  # while the hook ran
                return True
        thread.join(
            self._assignors.subscriptions(
                wanted,
                sorted(self._owned),
                self._last_generation_id,
                self._options.fetch.client_rack or None,
            ),
            reason,
        )
        self._joined_with = wanted
        return True

    def _end_rebalance(self, joined: Joined, thread: ClassicMemberThread) -> None:
        generation = joined.generation
        try:
            assigned = self._assignors.read_assignment(
                generation.protocol or "", joined.assignment, generation.generation_id
            )
        except KafkaError:
            thread.request_rejoin("the assignment could not be read")
            raise
        self._last_generation_id = generation.generation_id
        surplus = {tp for tp in assigned if tp.topic not in self._joined_with}
        if surplus:
            thread.request_rejoin(
                f"the leader assigned {some_partitions(surplus)}, to which this member does not "
                "subscribe",
                # The leader may do so each time.
                pause_ms=self._unwanted.next_ms(),
            )
            return
        self._unwanted.reset()
        error = None
        if self._assignors.cooperative:
            gone = self.assignment - assigned
            if gone:  # first: Ctrl-C in a hook must not leave what is new to nobody
                thread.request_rejoin("it revoked partitions, which others can get now")
            error = self._revoke(gone)
            if self._closed:  # the hook did it: nobody is left who could own anything
                if error is not None:
                    raise error
                return
        self._take_over(dict.fromkeys(assigned), error)
