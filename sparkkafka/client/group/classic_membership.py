"""Membership under the classic protocol (group.protocol=classic).

The members themselves assign the partitions: each sends a JoinGroup, the coordinator makes one of
them the leader, and the leader's SyncGroup has everyone's assignment. Eager members revoke all
partitions before they rejoin. Cooperative ones (KIP-429) keep theirs, revoke what the new
assignment takes away, and then rejoin, so that others can get it. (Java's ConsumerCoordinator.)

`ClassicMember.poll` begins a rebalance with `join`. Its thread joins, assigns the partitions if
this member is the leader, and keeps the result in `completed` until the next `poll` takes it. The
thread also sends the heartbeats, and notes in `rejoin_request` why `poll` has to join again (Java's
AbstractCoordinator and its HeartbeatThread).
"""

from __future__ import annotations

import enum
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from sparkkafka import errors
from sparkkafka.client.cluster.cluster import Cluster, throttle
from sparkkafka.client.deadline import Backoff, Deadline
from sparkkafka.client.group import committed_offsets, membership
from sparkkafka.client.group.assignors import GroupAssignors, TopicWatch
from sparkkafka.client.group.committed_offsets import TopicIds
from sparkkafka.client.metrics import FetchMetrics
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.values import TopicPartition, some_partitions, some_topics
from sparkkafka.config.client_settings import ConsumerOptions
from sparkkafka.config.kinds import INT32_MAX
from sparkkafka.protocol import messages
from sparkkafka.protocol.constants import NO_GENERATION, NO_MEMBER_ID
from sparkkafka.protocol.messages.consumer_protocol import PROTOCOL_TYPE

log = logging.getLogger(__name__)

_NO_MEMBER_CODES = (errors.ErrorCode.UNKNOWN_MEMBER_ID, errors.ErrorCode.ILLEGAL_GENERATION)
"""The error codes if the coordinator does not have this member, or has a later generation."""


class Phase(enum.Enum):
    """What the member waits for (Java's MemberState)."""

    OUTSIDE = "for poll to join"
    TO_JOIN = "for the thread to send the JoinGroup"
    JOINING = "for the response to JoinGroup"
    SYNCING = "for the response to SyncGroup"
    JOINED = "for the next rebalance: it is a member of the generation"


REBALANCING = (Phase.TO_JOIN, Phase.JOINING, Phase.SYNCING)


class Generation(NamedTuple):
    """The member's identity: what the last answered JoinGroup said."""

    generation_id: int = NO_GENERATION
    member_id: str = NO_MEMBER_ID
    assignor: str | None = None


class CompletedRebalance(NamedTuple):
    """A rebalance that the brokers have completed: its generation and this member's encoded
    assignment."""

    generation: Generation
    assignment: bytes


class RejoinRequest(NamedTuple):
    """Why `poll` has to join the group again: a rebalance began, the group removed this member,
    the subscription or partitions of the leader's topics changed, or revoked partitions can go to
    other members. The JoinGroup is sent at `not_before_s` (monotonic) at the earliest."""

    reason: str
    not_before_s: float = 0.0


class ClassicMemberThread(membership.MemberThread):
    """Joins and sends heartbeats. `lock` guards its fields; after `join` only the thread changes
    them."""

    def __init__(
        self,
        options: ConsumerOptions,
        cluster: Cluster,
        on_change: Callable[[], None],
        metrics: FetchMetrics,
    ) -> None:
        super().__init__(options, cluster, on_change, metrics)
        self.assignors = GroupAssignors(options.partition_assignment_strategy)
        self.phase = Phase.OUTSIDE
        self.generation = Generation()
        self.completed: CompletedRebalance | None = None
        """A completed rebalance whose assignment `poll` has not taken yet."""
        self.rejoin_request: RejoinRequest | None = None
        self._protocols: list[messages.JoinGroupRequestProtocol] = []
        self._join_request = RejoinRequest("")
        self._has_new_id = False
        """Whether the next JoinGroup repeats the last one with the member id that the coordinator
        gave (KIP-394)."""
        self._connection: Connection | None = None  # with a JoinGroup or SyncGroup in flight
        self._node_id = -1  # its broker
        self._response_due = Deadline(0)
        """The deadline of the response that `_connection` awaits."""
        self._topic_watch: TopicWatch | None = None  # only in the leader

    # --- called by the member --------------------------------------------------------------------

    def join(
        self, protocols: list[messages.JoinGroupRequestProtocol], request: RejoinRequest
    ) -> None:
        """Begin a rebalance. The member calls it when none is in progress."""
        with self.lock:
            self._protocols, self._join_request = protocols, request
            self.rejoin_request = None
            self.completed = None
            self.phase = Phase.TO_JOIN
        self.wake()

    def request_rejoin(self, reason: str, *, pause_ms: float = 0) -> None:
        """Let the next `poll` join again; the JoinGroup is sent after the pause."""
        with self.lock:
            if self.rejoin_request is None:
                log.info("group %s: has to be joined again: %s", self.group_id, reason)
                not_before_s = time.monotonic() + pause_ms / 1000
                self.rejoin_request = RejoinRequest(reason, not_before_s)
                self.on_change()

    def lose_membership(self, generation: Generation, code: int, where: str) -> None:
        """Give up the membership, since the response to the request `where` has the error `code`.

        Does nothing if the member has another generation than `generation` by now.
        """
        with self.lock:
            if generation != self.generation:
                return
            if code == errors.ErrorCode.FENCED_INSTANCE_ID:
                # Joining again would fence the other consumer.
                self.final_failure = membership.group_error(code, self.group_id, where)
            self.reset_membership(f"{where} was answered with {errors.error_name(code)}")
            if code == errors.ErrorCode.ILLEGAL_GENERATION:
                # The member id may still be valid (Java's resetStateOnResponseError).
                self.generation = Generation(member_id=generation.member_id)

    def reset_membership(self, reason: str) -> None:
        """Forget the generation and rejoin as a new member. The owner of the thread learns that its
        partitions are lost. Call it with `lock` held."""
        log.info("group %s: no longer a member: %s", self.group_id, reason)
        self.generation = Generation()
        self.phase = Phase.OUTSIDE
        self.completed = None
        self.has_lost_membership = True
        self.rejoin_request = RejoinRequest(reason)
        self._topic_watch = None
        self.on_change()

    # --- the thread ------------------------------------------------------------------------------

    @property
    def awaited_connection(self) -> Connection | None:
        """The connection with a JoinGroup or SyncGroup in flight, None without one."""
        return self._connection if self.phase in (Phase.JOINING, Phase.SYNCING) else None

    def step(self, has_response: bool) -> float:
        """Send the JoinGroup or read a response of the rebalance, if `phase` says that this is due,
        and send due heartbeats. Return the seconds until the next step."""
        phase = self.phase
        if phase is Phase.TO_JOIN:
            pause_s = self._join_request.not_before_s - time.monotonic()
            if pause_s > 0:
                return pause_s
            self._send_join()
            phase = self.phase
        elif phase in (Phase.JOINING, Phase.SYNCING):
            if has_response or self._connection is None or not self._connection.is_open:
                self._read_response()
                return 0
            if self._response_due.expired:
                raise errors.KafkaTimeoutError(
                    f"no response to {phase.name} within {self._response_due.text}"
                )
        if phase is Phase.OUTSIDE:
            return math.inf
        if phase is Phase.JOINING:
            return self._response_due.remaining_s()
        return self.run_due_tasks()

    def on_error(self, error: errors.KafkaError) -> float:
        """Let a retriable error be retried, and let `poll` raise any other. Return the seconds
        until the next step.

        A member that has joined sends its heartbeat again; during a rebalance it sends JoinGroup.
        """
        phase = self.phase
        is_retriable = (
            error.retriable
            # In response to JoinGroup: the coordinator could not store the group in time.
            or getattr(error, "code", 0) == errors.ErrorCode.REBALANCE_IN_PROGRESS
        )
        if phase is Phase.JOINED:
            if not is_retriable:
                self.raise_in_poll(error)
            return self.retry_heartbeat_later(error)
        self._close_connection()
        self.metrics.rebalance_failed()
        wait_s = self.retry_later(error, "joining")
        with self.lock:
            if self.phase in REBALANCING:
                self.phase = Phase.TO_JOIN if is_retriable else Phase.OUTSIDE
            if not is_retriable:
                # A program that polls on must not flood the coordinator.
                self.rejoin_request = RejoinRequest("joining failed", time.monotonic() + wait_s)
                self.raise_in_poll(error)
        return wait_s

    @property
    def must_leave(self) -> bool:
        """Whether the group has this member, and it is not static. A static member sends no leave:
        it comes back, or its session times out (KIP-345)."""
        return self.generation.member_id != NO_MEMBER_ID and not self.options.group_instance_id

    def begin_leave(self, reason: str) -> Callable[[Deadline], None] | None:
        """Drop the request in flight. Return the function that sends the LeaveGroup, None if the
        group needs none."""
        self._close_connection()
        if not self.must_leave:
            return None
        return partial(self._send_leave, self.generation.member_id, reason)

    def close_connections(self) -> None:
        self._close_connection()
        super().close_connections()

    def _send_leave(self, member_id: str, reason: str, deadline: Deadline) -> None:
        """Send a LeaveGroup. Raises BrokerError if the coordinator refuses it."""
        node_id = self.coordinator(deadline)
        connection = self.cluster.connection(node_id, deadline)
        if connection.choose_version(messages.LeaveGroupRequest) >= 3:  # a list (KIP-345)
            members = [messages.MemberIdentity(member_id=member_id, reason=reason)]
            request = messages.LeaveGroupRequest(group_id=self.group_id, members=members)
        else:
            request = messages.LeaveGroupRequest(group_id=self.group_id, member_id=member_id)
        response = connection.call(request, deadline)
        code = response.error_code or next((member.error_code for member in response.members), 0)
        if code:
            raise membership.group_error(code, self.group_id, "LeaveGroup")

    def _close_connection(self) -> None:
        """Close the connection on which a JoinGroup or SyncGroup is in flight, so that its response
        is dropped."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- joining ---------------------------------------------------------------------------------

    def _take_connection(self, deadline: Deadline) -> Connection:
        """Take the connection to the coordinator out of the pool until the response has arrived.

        The coordinator answers JoinGroup when all members have joined, and answers a connection's
        requests in their order: heartbeats in the meantime need another connection.
        """
        self._close_connection()
        node_id = self.coordinator(deadline)
        try:
            broker = self.cluster.broker(node_id)
            connection = self.cluster.connections.to(broker, deadline)
        except errors.KafkaError:
            self.forget_coordinator()
            raise
        self.cluster.connections.take_idle(broker)  # so that no other request uses it
        self._connection, self._node_id = connection, node_id
        return connection

    def _send_join(self) -> None:
        """Send the JoinGroup, whose response ends the wait in JOINING."""
        deadline = self.request_deadline()
        connection = self._take_connection(deadline)
        options = self.options
        version = connection.choose_version(messages.JoinGroupRequest)
        if options.group_instance_id is not None and version < 5:
            raise errors.UnsupportedVersionError(
                f"{connection}: group.instance.id needs brokers of Kafka 2.3 or later: leave it out"
            )
        # With the new id it is the second half of the same attempt (KIP-394).
        level = logging.DEBUG if self._has_new_id else logging.INFO
        self._has_new_id = False
        log.log(level, "group %s: joining: %s", self.group_id, self._join_request.reason)
        # Brokers cut longer reasons (KIP-800).
        request = messages.JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=options.session_timeout_ms,
            rebalance_timeout_ms=options.max_poll_interval_ms,
            member_id=self.generation.member_id,
            group_instance_id=options.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=self._protocols,
            reason=self._join_request.reason[:255],
        )
        connection.send(request, deadline)
        # The coordinator answers a JoinGroup after max.poll.interval.ms at the latest; this is
        # added for the network (Java's JOIN_GROUP_TIMEOUT_LAPSE).
        lapse_ms = min(options.max_poll_interval_ms + 5_000, INT32_MAX)
        self._response_due = Deadline(max(options.client.request_timeout_ms, lapse_ms))
        with self.lock:
            if self.phase is Phase.TO_JOIN:
                self.phase = Phase.JOINING

    def _read_response(self) -> None:
        """Read the response to the JoinGroup or SyncGroup. Raises KafkaConnectionError if the
        connection broke."""
        connection = self._connection
        if connection is None:
            raise errors.KafkaConnectionError("the connection to the coordinator broke")
        _, response = connection.receive(self.request_deadline())
        self._connection = None
        self.cluster.connections.put_back(self._node_id, connection)
        throttle(response, self.request_deadline())
        if isinstance(response, messages.JoinGroupResponse):
            self._on_join_response(response)
        elif isinstance(response, messages.SyncGroupResponse):
            self._on_sync_response(response)

    def _on_join_response(self, response: messages.JoinGroupResponse) -> None:
        """Become a member of the new generation; the leader assigns. Send the SyncGroup."""
        code = response.error_code
        if code:
            self._on_join_error(code, response.member_id)
            return
        self._check_protocol_type(response.protocol_type, "JoinGroup")
        self.reset_retries()
        generation = Generation(
            response.generation_id, response.member_id, response.protocol_name or ""
        )
        with self.lock:
            self.generation = generation
            self.phase = Phase.SYNCING
            self._topic_watch = None
        self.heartbeat_at_s = time.monotonic() + self.options.heartbeat_interval_ms / 1000
        is_leader = response.leader == response.member_id
        log.info(
            "group %s: joined generation %d as %s, assignor %s",
            self.group_id,
            generation.generation_id,
            f"{generation.member_id}{', its leader' if is_leader else ''}",
            generation.assignor,
        )
        assignments: Mapping[str, bytes] = {}
        if is_leader:
            assignments, self._topic_watch = self.assignors.assign_for(
                self.cluster, self.group_id, response, self.request_deadline()
            )
        deadline = self.request_deadline()
        self._take_connection(deadline).send(
            messages.SyncGroupRequest(
                group_id=self.group_id,
                generation_id=generation.generation_id,
                member_id=generation.member_id,
                group_instance_id=self.options.group_instance_id,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=generation.assignor,
                assignments=[
                    messages.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                    for member_id, assignment in assignments.items()
                ],
            ),
            deadline,
        )
        # The response comes when the leader has sent its SyncGroup, for which it has the rebalance
        # timeout. As in Java the request is sent again after request.timeout.ms.
        self._response_due = deadline

    def _on_join_error(self, code: int, member_id: str) -> None:
        """Act on the error code of a JoinGroup: join again with `member_id`, which the coordinator
        gave to a new member, or give up the membership. Raises BrokerError for another code."""
        if code == errors.ErrorCode.MEMBER_ID_REQUIRED:  # KIP-394
            with self.lock:
                self.generation = Generation(member_id=member_id)
                self.phase = Phase.TO_JOIN
            self._has_new_id = True
            return
        if code in _NO_MEMBER_CODES:
            self._lose_in_rebalance(code, "JoinGroup")
            return
        hint = None
        if code == errors.ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            hint = (
                "the other members have none of this one's assignors "
                f"({', '.join(protocol.name for protocol in self._protocols)}): set "
                "partition.assignment.strategy to one that all have; or the group is of another "
                "kind: then set another group.id"
            )
        elif code == errors.ErrorCode.INVALID_SESSION_TIMEOUT:
            hint = (
                f"session.timeout.ms={self.options.session_timeout_ms} is not within the brokers' "
                "group.min.session.timeout.ms and group.max.session.timeout.ms"
            )
        raise self.coordinator_error(code, "JoinGroup", hint)

    def _on_sync_response(self, response: messages.SyncGroupResponse) -> None:
        """Keep the assignment for `poll`, or join again."""
        code = response.error_code
        if code in _NO_MEMBER_CODES:
            self._lose_in_rebalance(code, "SyncGroup")
            return
        if code == errors.ErrorCode.REBALANCE_IN_PROGRESS:
            log.info("group %s: the next rebalance began before this one ended", self.group_id)
            self.metrics.rebalance_failed()
            with self.lock:
                self.phase = Phase.TO_JOIN
            return
        if code:
            raise self.coordinator_error(code, "SyncGroup")
        self._check_protocol_type(response.protocol_type, "SyncGroup")
        self.reset_retries()
        with self.lock:
            if self.phase is Phase.SYNCING:  # not after a heartbeat that ended the membership
                self.phase = Phase.JOINED
                assignment = bytes(response.assignment)
                self.completed = CompletedRebalance(self.generation, assignment)
                self.on_change()

    def _lose_in_rebalance(self, code: int, where: str) -> None:
        """Give up the membership in a rebalance, since the response to the request `where`,
        JoinGroup or SyncGroup, has the error `code`."""
        self.metrics.rebalance_failed()
        self.reset_retries()
        self.lose_membership(self.generation, code, where)

    def _check_protocol_type(self, protocol_type: str | None, where: str) -> None:
        """Raise BrokerError if the group is not one of consumers."""
        if protocol_type is not None and protocol_type != PROTOCOL_TYPE:
            raise membership.group_error(
                errors.ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                self.group_id,
                where,
                f"its members are of the type {protocol_type!r}, not consumers: set another "
                "group.id",
            )

    # --- staying ---------------------------------------------------------------------------------

    def check_metadata(self) -> float:
        """As the leader of a stable group, look up the subscribed topics if that is due, and let
        `poll` join again if they changed. Return the seconds until the next lookup, or, before the
        response to SyncGroup, until its deadline."""
        if self.phase is Phase.SYNCING:
            return self._response_due.remaining_s()
        watch = self._topic_watch
        if watch is None or self.phase is not Phase.JOINED:
            # A heartbeat's response has just changed the phase: the next step acts on it.
            return math.inf if self.phase is Phase.JOINED else 0
        if watch.seconds_until_lookup() <= 0:
            self._rejoin_if_topics_changed(watch)
        return watch.seconds_until_lookup()

    def send_heartbeat(self) -> None:
        """Send a Heartbeat, whose response may begin a rebalance or end the membership."""
        options = self.options
        generation = self.generation
        limit_ms = min(options.client.request_timeout_ms, options.session_timeout_ms)
        self.heartbeat_at_s = time.monotonic() + options.heartbeat_interval_ms / 1000
        try:
            response = self.call(
                messages.HeartbeatRequest(
                    group_id=self.group_id,
                    generation_id=generation.generation_id,
                    member_id=generation.member_id,
                    group_instance_id=options.group_instance_id,
                ),
                Deadline(limit_ms),
            )
        except errors.KafkaError as error:
            if self.phase is Phase.SYNCING and error.retriable:
                # SyncGroup has another connection, which shows its own failures.
                self.retry_heartbeat_later(error)
                return
            raise
        code = response.error_code
        if not code:
            self.reset_retries()
        elif code == errors.ErrorCode.REBALANCE_IN_PROGRESS:
            self.reset_retries()
            with self.lock:
                if self.phase is Phase.JOINED:
                    self.request_rejoin("the group is rebalancing")
        elif code in (*_NO_MEMBER_CODES, errors.ErrorCode.FENCED_INSTANCE_ID):
            self.lose_membership(generation, code, "Heartbeat")
            self._close_connection()
        else:
            raise self.coordinator_error(code, "Heartbeat")

    def _rejoin_if_topics_changed(self, watch: TopicWatch) -> None:
        """Rejoin if partitions or topics were added or removed, so that all members get a new
        assignment."""
        limit = Deadline(self.options.heartbeat_interval_ms)
        try:
            limit = limit.sooner(self.options.client.request_timeout_ms)
            changed = watch.changed_topics(self.cluster, limit)
        except errors.KafkaError as error:
            log.info("group %s: looking up the topics failed: %s", self.group_id, error)
            return
        with self.lock:
            if changed and self.phase is Phase.JOINED:
                self.request_rejoin(f"the partitions of {some_topics(changed)} changed")


class ClassicMember(membership.GroupMember[ClassicMemberThread]):
    """A member of a classic group."""

    thread_type = ClassicMemberThread
    _last_generation_id = NO_GENERATION
    """The generation of the last rebalance that `poll` has completed."""
    _surplus_backoff: Backoff | None = None
    """Waits while the leader assigns topics to which this member does not subscribe."""

    @property
    def metadata(self) -> committed_offsets.GroupMetadata:
        """Return the member's identity, for commits in a transaction."""
        thread = self._thread
        if thread is None:
            return self._metadata_in(NO_GENERATION, NO_MEMBER_ID)
        with thread.lock:
            generation, phase = thread.generation, thread.phase
        # During a rebalance: the generation of the last one that `poll` has completed.
        known = generation.generation_id if phase is Phase.JOINED else self._last_generation_id
        return self._metadata_in(known, generation.member_id)

    def _step(self, thread: ClassicMemberThread, topics: frozenset[str]) -> bool:
        """Take over the assignment of a completed rebalance, or else begin a rebalance if one is
        due. Return whether anything was done."""
        with thread.lock:
            completed, thread.completed = thread.completed, None
        if completed is not None:
            self._end_rebalance(completed, thread)
            return True
        return self._begin_rebalance(thread, topics)

    def committer(self, topic_ids: TopicIds) -> committed_offsets.Committer:
        """Return a function that commits as this member in its generation. After the next rebalance
        the coordinator refuses such commits."""
        thread = self._thread
        if thread is None:
            raise self._commit_failed(errors.ErrorCode.UNKNOWN_MEMBER_ID)
        with thread.lock:
            generation, phase = thread.generation, thread.phase
        # Until all members have joined, which may take max.poll.interval.ms, the coordinator takes
        # commits of the last generation: a cooperative member reads on meanwhile. (Java's refuses.)
        reads_on = thread.assignors.cooperative and phase in (Phase.TO_JOIN, Phase.JOINING)
        is_known = generation.generation_id != NO_GENERATION
        if phase is not Phase.JOINED and not (reads_on and is_known):
            code = (
                errors.ErrorCode.REBALANCE_IN_PROGRESS
                if phase in REBALANCING
                else errors.ErrorCode.UNKNOWN_MEMBER_ID
            )
            raise self._commit_failed(code)
        identity = self._metadata_in(generation.generation_id, generation.member_id)

        def commit(
            cluster: Cluster, offsets: committed_offsets.NewOffsets, deadline: Deadline
        ) -> None:
            """Commit as the member of the generation in which the committer was made. Raises
            CommitFailedError if that generation has ended."""
            try:
                committed_offsets.commit_group_offsets(
                    cluster,
                    self._group_id,
                    offsets,
                    deadline=deadline,
                    topic_ids=topic_ids,
                    identity=lambda: identity,
                )
            except errors.CommitFailedError as error:
                if thread.phase is not Phase.JOINED:
                    raise  # the rebalance's own responses say whether this is a member
                if error.code == errors.ErrorCode.REBALANCE_IN_PROGRESS:
                    thread.request_rejoin("a commit was answered with REBALANCE_IN_PROGRESS")
                else:
                    thread.lose_membership(generation, error.code, "OffsetCommit")
                raise

        return commit

    # --- rebalances ------------------------------------------------------------------------------

    def _lose(self) -> None:
        """Drop all partitions, and the generation in which they were assigned."""
        self._last_generation_id = NO_GENERATION
        super()._lose()

    def _begin_rebalance(self, thread: ClassicMemberThread, topics: frozenset[str]) -> bool:
        """Begin a rebalance if one is due and none is in progress: revoke partitions, then let the
        thread send a JoinGroup. Return whether anything was done."""
        with thread.lock:
            if thread.has_lost_membership or thread.phase in REBALANCING:
                return thread.has_lost_membership  # True: `poll` handles the loss, then calls again
            request = thread.rejoin_request
            is_joined = thread.phase is Phase.JOINED
        if request is None:
            if is_joined and topics == self._joined_topics:
                return False
            request = RejoinRequest("the subscription changed" if is_joined else "first time")
        revoked: Iterable[TopicPartition] = self._owned
        if thread.assignors.cooperative:
            revoked = [tp for tp in self._owned if tp.topic not in topics]
        error = self._revoke(revoked)
        if error is not None:
            raise error
        if self._is_closed or self._topics != topics:  # the hook closed it, or subscribed anew
            return True
        with thread.lock:
            if thread.has_lost_membership:  # the membership ended while the hook ran
                return True
        thread.join(
            thread.assignors.subscriptions(
                topics,
                sorted(self._owned),
                self._last_generation_id,
                self._options.fetch.client_rack or None,
            ),
            request,
        )
        self._joined_topics = topics
        return True

    def _end_rebalance(self, completed: CompletedRebalance, thread: ClassicMemberThread) -> None:
        """Take over the assignment of a completed rebalance; a cooperative member first revokes
        what it has lost."""
        generation = completed.generation
        try:
            assigned = thread.assignors.read_assignment(
                generation.assignor or "", completed.assignment, generation.generation_id
            )
        except errors.KafkaError:
            thread.request_rejoin("the assignment could not be read")
            raise
        self._last_generation_id = generation.generation_id
        surplus = {tp for tp in assigned if tp.topic not in self._joined_topics}
        if surplus:
            # The leader may assign these again in each rebalance, so each waits longer.
            self._surplus_backoff = self._surplus_backoff or self._cluster.backoff()
            thread.request_rejoin(
                f"the leader assigned {some_partitions(surplus)}, to which this member does not "
                "subscribe",
                pause_ms=self._surplus_backoff.next_ms(),
            )
            return
        self._surplus_backoff = None
        error = None
        if thread.assignors.cooperative:
            revoked = self.assignment - assigned
            if revoked:  # first: after Ctrl-C in a hook other members must still get these
                thread.request_rejoin("it revoked partitions, which others can get now")
            error = self._revoke(revoked)
        self._take_over(dict.fromkeys(assigned), error)
