"""Membership under group.protocol=consumer (KIP-848): the coordinator assigns the partitions.

No rebalance stops the whole group: the coordinator's heartbeat answers say which partitions a
member is to have, and it gives a partition to another member only after its owner has revoked it.
Heartbeats report what has changed: the subscription, the owned partitions. The member reconciles on
the user's thread (it revokes, then takes over) and calls `acknowledge`; the next heartbeat is sent
immediately. Java's ConsumerHeartbeatRequestManager and ConsumerMembershipManager.
"""

from __future__ import annotations

import base64
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.commits import (
    EPOCH_VERSION,
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
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.client_settings import ConsumerOptions
from sparkkafka.errors import (
    CommitFailedError,
    ErrorCode,
    KafkaError,
    UnsupportedVersionError,
    error_name,
)
from sparkkafka.protocol.constants import NO_GENERATION, NO_MEMBER_ID
from sparkkafka.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)

log = logging.getLogger(__name__)

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_FOR_A_MOMENT_EPOCH = -2

FIRST_INTERVAL_MS = 1_000
"""Between heartbeats, until an answer has said how often."""

Partitions = Mapping[TopicPartition, uuid.UUID]
"""Partitions with the ids of their topics: one that is created anew has another id."""


class ConsumerGroupMemberThread(MemberThread):
    """`lock` guards its fields. A share group's is `share.share_membership`'s."""

    heartbeat_type: ClassVar[Any] = ConsumerGroupHeartbeatRequest
    least_version = 1
    """From here on the member makes its id (KIP-1082)."""
    needs = (
        "group.protocol=consumer needs brokers of Kafka 4.0 or later with the feature "
        "group.version=1: set group.protocol=classic"
    )

    def __init__(
        self,
        options: ConsumerOptions,
        group_id: str,
        cluster: Cluster,
        on_change: Callable[[], None],
        metrics: FetchMetrics | None = None,
    ) -> None:
        super().__init__(options, group_id, cluster, on_change, metrics)
        self.member_id = new_member_id()
        self.epoch = JOIN_EPOCH
        self.inside = False
        """Joined, or about to: heartbeats are sent."""
        self.joining = False
        """No target assignment has come yet."""
        self.target: Partitions | None = None
        """The target assignment, until the member takes it."""
        self._topics: frozenset[str] = frozenset()
        self._owned: Partitions = {}
        self._names: dict[uuid.UUID, str] = {}
        self._unnamed: HeartbeatAssignment | None = None
        # What the last answered heartbeat said; None: the next one says it again.
        self._reported_topics: frozenset[str] | None = None
        self._reported_owned: Partitions | None = None
        self._interval_s = FIRST_INTERVAL_MS / 1000
        self._next_heartbeat_s = 0.0
        self._next_look_s = 0.0

    # --- called by the member --------------------------------------------------------------------

    def join(self, topics: frozenset[str]) -> None:
        with self.lock:
            self.inside = self.joining = True
            self.epoch = JOIN_EPOCH
            self._topics = topics
            self._owned = {}
            self._next_heartbeat_s = 0.0
        self.wake()

    def subscribe(self, topics: frozenset[str]) -> None:
        with self.lock:
            self._topics = topics
            self._next_heartbeat_s = 0.0
        self.wake()

    def take_target(self) -> Partitions | None:
        with self.lock:
            target, self.target = self.target, None
        return target

    def put_back(self, target: Partitions) -> None:
        """The member could not take this target: keep it, unless a newer one has come."""
        with self.lock:
            if self.target is None and self.inside:
                self.target = target

    def acknowledge(self, owned: Partitions) -> None:
        """The member owns these partitions now: the next heartbeat says so, at once."""
        with self.lock:
            if self.lost or not self.inside:
                return
            self._owned = dict(owned)
            self._next_heartbeat_s = 0.0
        self.wake()

    def hurry(self) -> None:
        """Send the next heartbeat now: a refused commit says that something has changed."""
        with self.lock:
            self._next_heartbeat_s = 0.0
        self.wake()

    # --- state: with the lock --------------------------------------------------------------------

    def _reset(self, reason: str, *, lost: bool = True) -> None:
        log.info("group %s: no longer a member: %s", self.group_id, reason)
        if self.joining:
            self.metrics.rebalance_failed()
        self.inside = self.joining = False
        self.epoch = JOIN_EPOCH
        self.target = None
        self.lost = lost
        self._unnamed = None
        self._owned = {}
        self._report_again()
        self.on_change()

    def _report_again(self) -> None:
        self._reported_topics = None
        self._reported_owned = None

    # --- the thread ------------------------------------------------------------------------------

    def step(self, answered: bool) -> float:
        if not self.inside:
            return FAR_S
        if self.poll_overdue:
            self._leave_slow_poller()
            return 0
        if time.monotonic() >= self._next_heartbeat_s:
            self._heartbeat()
        if self._unnamed is not None and time.monotonic() >= self._next_look_s:
            self._look_up_names(self._unnamed)
        waits = [self._next_heartbeat_s - time.monotonic(), self.until_poll_due_s()]
        if self._unnamed is not None:
            waits.append(self._next_look_s - time.monotonic())
        return max(0.0, min(waits))

    def failed(self, error: KafkaError) -> float:
        passing = error.retriable
        topics_only = getattr(error, "code", 0) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        with self.lock:
            self._report_again()
            if not passing:
                self.fail(error)
            if not passing and not topics_only:
                self._reset(f"{error}", lost=bool(self.epoch))
        wait_s = self.retry_later(error, "a heartbeat")
        self._next_heartbeat_s = time.monotonic() + wait_s
        return wait_s

    @property
    def must_leave(self) -> bool:
        return self.inside and self.epoch != JOIN_EPOCH

    def leave(self, deadline: Deadline) -> None:
        if self.inside:
            self._send_leave(deadline)
            log.info("group %s: left", self.group_id)

    def _send_leave(self, deadline: Deadline) -> None:
        request = self._leave_request()
        response = self.call(request, deadline)
        if response.error_code:
            raise group_error(
                response.error_code, self.group_id, request.API_NAME, response.error_message
            )

    def _leave_request(self) -> Any:
        static = self.options.group_instance_id is not None
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=LEAVE_FOR_A_MOMENT_EPOCH if static else LEAVE_EPOCH,
            instance_id=self.options.group_instance_id,
        )

    def _leave_slow_poller(self) -> None:
        with self.lock:
            if not self.poll_overdue:  # a poll came just now
                return
            self._reset(POLL_OVERDUE)
        self.leave_after_missed_poll(self._send_leave)

    # --- heartbeats ------------------------------------------------------------------------------

    def _heartbeat(self) -> None:
        deadline = self.request_deadline()
        self._check_version(deadline)
        request, topics, owned = self._request()
        response = self.call(request, deadline)
        code = response.error_code
        if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.succeeded()
            with self.lock:
                self._reset(f"a heartbeat was answered with {error_name(code)}")
            return
        if code:
            hint = self._refusal(code, response.error_message)
            raise self.refused(code, request.API_NAME, hint)
        self.succeeded()
        self._take_response(response, topics, owned)

    def _check_version(self, deadline: Deadline) -> None:
        try:
            connection = self.cluster.connection(self.coordinator(deadline), deadline)
        except KafkaError:
            self.forget_coordinator()
            raise
        if not connection.supports(self.heartbeat_type, self.least_version):
            raise UnsupportedVersionError(f"{connection}: {self.needs}")

    def _request(self) -> tuple[Any, frozenset[str], Partitions]:
        """A heartbeat, and the topics and partitions that the coordinator knows after it."""
        options = self.options
        with self.lock:
            # First: a change from here on goes into the next heartbeat, at once.
            self._next_heartbeat_s = time.monotonic() + self._interval_s
            topics, owned, epoch = self._topics, self._owned, self.epoch
            reported_topics, reported_owned = self._reported_topics, self._reported_owned
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=options.group_instance_id,
        )
        joining = epoch == JOIN_EPOCH
        if joining:
            log.info("group %s: joining as %s", self.group_id, self.member_id)
        if joining or reported_topics is None:
            request.rack_id = options.fetch.client_rack or None
            request.rebalance_timeout_ms = options.max_poll_interval_ms
            request.server_assignor = options.group_remote_assignor
        if joining or reported_topics != topics:
            request.subscribed_topic_names = sorted(topics)
        if joining:
            owned = {}
            request.topic_partitions = []
        elif reported_owned != owned:
            request.topic_partitions = _by_topic_id(owned)
        return request, topics, owned

    def _take_response(
        self, response: ConsumerGroupHeartbeatResponse, topics: frozenset[str], owned: Partitions
    ) -> None:
        with self.lock:
            if self.epoch != response.member_epoch:
                log.info(
                    "group %s: member %s has epoch %d",
                    self.group_id,
                    self.member_id,
                    response.member_epoch,
                )
            self.epoch = response.member_epoch
            if response.member_id:
                self.member_id = response.member_id
            self.joining = self.joining and response.assignment is not None
            self._reported_topics, self._reported_owned = topics, owned
            self._interval_s = max(response.heartbeat_interval_ms, 1) / 1000
            if self._next_heartbeat_s > 0:  # no change since
                self._next_heartbeat_s = time.monotonic() + self._interval_s
        if response.assignment is not None:
            self._take_target(response.assignment)

    def _take_target(self, assignment: HeartbeatAssignment) -> None:
        named = self._named(assignment)
        if named is None:
            self._look_up_names(assignment)
            return
        with self.lock:
            if self.inside:
                self._unnamed = None
                self.joining = False
                self.target = named
                self.on_change()

    def _named(self, assignment: HeartbeatAssignment) -> Partitions | None:
        rows = assignment.topic_partitions
        if any(row.topic_id not in self._names for row in rows):
            return None
        return {
            TopicPartition(self._names[row.topic_id], number): row.topic_id
            for row in rows
            for number in row.partitions
        }

    def _look_up_names(self, assignment: HeartbeatAssignment) -> None:
        """Metadata may be behind what the coordinator knows: look again until all are there."""
        self._unnamed = assignment
        self._next_look_s = time.monotonic() + self.options.client.retry_backoff_max_ms / 1000
        names = sorted(self._topics)
        try:
            failed = self.cluster.look_up(names, self.request_deadline())
        except KafkaError as error:
            log.info("group %s: looking up assigned topics failed: %s", self.group_id, error)
            return
        ids = {name: self.cluster.topic_id(name) for name in names if name not in failed}
        self._names = {uuid.UUID(bytes=row): name for name, row in ids.items() if row is not None}
        if self._named(assignment) is not None:
            self._take_target(assignment)
        else:
            log.info("group %s: not all assigned topics are known here yet", self.group_id)

    def _refusal(self, code: int, message: str | None) -> str | None:
        """What a heartbeat's error code means; None: what it always means."""
        options = self.options
        hint = None
        if code == ErrorCode.UNRELEASED_INSTANCE_ID:
            hint = (
                f"a member with group.instance.id={options.group_instance_id} is in the group: "
                "close that consumer first, or wait until the brokers drop it "
                "(group.consumer.session.timeout.ms); each consumer needs an id of its own"
            )
        elif code == ErrorCode.UNSUPPORTED_ASSIGNOR:
            hint = (
                f"the brokers have no assignor {options.group_remote_assignor!r} "
                f"(group.remote.assignor): {message or 'choose another one, or leave it out'}"
            )
        elif code == ErrorCode.UNSUPPORTED_VERSION:
            hint = self.needs
        elif code not in (ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.FENCED_INSTANCE_ID):
            hint = message
        return hint


def new_member_id() -> str:
    """A random UUID as Kafka writes them: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()


def _by_topic_id(partitions: Partitions) -> list[HeartbeatTopicPartitions]:
    numbers: dict[uuid.UUID, list[int]] = {}
    for tp, topic_id in partitions.items():
        numbers.setdefault(topic_id, []).append(tp.partition)
    return [
        HeartbeatTopicPartitions(topic_id=topic_id, partitions=sorted(rows))
        for topic_id, rows in numbers.items()
    ]


class ConsumerGroupMember(GroupMember[ConsumerGroupMemberThread]):
    """A member under KIP-848."""

    def __init__(
        self,
        options: ConsumerOptions,
        hooks: RebalanceHooks,
        cluster: Cluster,
        wake: Callable[[], None],
        metrics: FetchMetrics | None = None,
    ) -> None:
        super().__init__(options, hooks, cluster, wake, metrics)
        self._times_lost = 0
        self._settled = False
        """The member has reconciled a target since it joined."""

    @property
    def metadata(self) -> GroupMetadata:
        thread = self._thread
        epoch, member_id = NO_GENERATION, NO_MEMBER_ID
        if thread is not None:
            with thread.lock:
                epoch, member_id = thread.epoch or NO_GENERATION, thread.member_id
        return GroupMetadata(self._group_id, epoch, member_id, self._options.group_instance_id)

    def _new_thread(self) -> ConsumerGroupMemberThread:
        return ConsumerGroupMemberThread(
            self._options, self._group_id, self._cluster, self._wake, self._metrics
        )

    def _step(self, thread: ConsumerGroupMemberThread, wanted: frozenset[str]) -> bool:
        with thread.lock:
            inside, lost = thread.inside, thread.lost
        if lost:
            return True
        if not inside:
            self._settled = False
            self._joined_with = wanted
            thread.join(wanted)
        elif wanted != self._joined_with:
            self._joined_with = wanted
            thread.subscribe(wanted)
        elif (target := thread.take_target()) is not None:
            self._reconcile(target, thread)
        else:
            return False
        return True

    def commit(self, offsets: Offsets, deadline: Deadline) -> None:
        self._commit(self._cluster, self._identity, offsets, deadline)

    def committer(self) -> Commit:
        first, times_lost = self._identity(), self._times_lost

        def commit(cluster: Cluster, offsets: Offsets, deadline: Deadline) -> None:
            def identity() -> GroupMetadata:
                # The epoch goes up while the member keeps what it has: that may be committed.
                # Under the new epoch the coordinator would also take what is another's by now.
                now = self._identity()
                lost = self._times_lost != times_lost  # a new member may have the same epoch
                if lost or (now != first and not offsets.keys() <= self.assignment):
                    raise commit_failed(ErrorCode.STALE_MEMBER_EPOCH, self._group_id)
                return now

            self._commit(cluster, identity, offsets, deadline)

        return commit

    def _commit(
        self,
        cluster: Cluster,
        identity: Callable[[], GroupMetadata],
        offsets: Offsets,
        deadline: Deadline,
    ) -> None:
        try:
            commit_as_member(cluster, identity, offsets, deadline, least_version=EPOCH_VERSION)
        except CommitFailedError:
            thread = self._thread
            if thread is not None:
                thread.hurry()
            raise

    def _identity(self) -> GroupMetadata:
        metadata = self.metadata
        if metadata.generation_id == NO_GENERATION:
            raise commit_failed(ErrorCode.UNKNOWN_MEMBER_ID, self._group_id)
        return metadata

    def _lose(self) -> None:
        self._times_lost += 1
        self._settled = False
        super()._lose()

    def _reconcile(self, target: Partitions, thread: ConsumerGroupMemberThread) -> None:
        """Revoke, assign, acknowledge: each also if a hook fails, as in Java."""
        if self._settled and target == self._owned:
            thread.acknowledge(target)  # the same target again, after a lost answer
            return
        self._settled = True
        # A topic of the same name but another id is another topic.
        gone = [tp for tp, topic_id in self._owned.items() if target.get(tp) != topic_id]
        try:
            error = self._revoke(gone)
        except BaseException:  # Ctrl-C: nothing was assigned yet, the next poll does it
            thread.put_back(target)
            raise
        if self._closed:  # by the hook: it owns nothing any more
            if error is not None:
                raise error
            return
        try:
            self._take_over(dict(target), error)
        finally:
            if not self._closed:
                thread.acknowledge(target)
