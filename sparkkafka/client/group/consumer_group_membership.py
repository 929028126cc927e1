"""Membership under group.protocol=consumer (KIP-848): the coordinator assigns the partitions.

No rebalance stops the whole group. The responses to heartbeats have a member's target assignment,
and the coordinator gives a partition to another member only after its owner has revoked it.
Heartbeats report what has changed: the subscription, the owned partitions. The member reconciles on
the user's thread (it revokes, then takes over) and calls `acknowledge`, which sends a heartbeat
immediately. (Java's ConsumerHeartbeatRequestManager and ConsumerMembershipManager.)

Members of share groups (KIP-932) send the same heartbeats without owned partitions. The brokers may
assign a partition to several of them, so nothing is revoked: the next fetch reads the partitions of
a new assignment. (Java's ShareHeartbeatRequestManager and ShareMembershipManager.)
"""

from __future__ import annotations

import base64
import logging
import math
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from sparkkafka import errors
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group import committed_offsets, membership
from sparkkafka.client.group.committed_offsets import TopicIds
from sparkkafka.client.metrics import FetchMetrics
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.client_settings import ConsumerOptions
from sparkkafka.protocol import messages
from sparkkafka.protocol.constants import NO_GENERATION, NO_MEMBER_ID

log = logging.getLogger(__name__)

JOIN_EPOCH = 0
LEAVE_EPOCH = -1


Partitions = Mapping[TopicPartition, uuid.UUID]
"""Partitions with the ids of their topics: a topic that is recreated has another id."""


class ConsumerGroupMemberThread(membership.MemberThread):
    """Sends the heartbeats. `lock` guards its fields."""

    heartbeat_type: ClassVar[Any] = messages.ConsumerGroupHeartbeatRequest
    min_heartbeat_version = 1
    """From this version on the member makes its own id (KIP-1082)."""
    needs = (
        "group.protocol=consumer needs brokers of Kafka 4.0 or later with the feature "
        "group.version=1: set group.protocol=classic"
    )
    """What an error says if the coordinator does not know the protocol."""

    def __init__(
        self,
        options: ConsumerOptions,
        cluster: Cluster,
        on_change: Callable[[], None],
        metrics: FetchMetrics,
    ) -> None:
        super().__init__(options, cluster, on_change, metrics)
        # A random UUID as Kafka writes them: 22 characters of URL-safe base64.
        self.member_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self.epoch = JOIN_EPOCH
        self.is_in_group = False
        """Whether the member has joined or is joining, so that it sends heartbeats."""
        self.is_joining = False
        """Whether the response to the first heartbeat has not arrived, or the names of the topics
        in its assignment are not known yet."""
        self.target: Partitions | None = None
        """A target assignment that the member has not taken yet."""
        self._topics: frozenset[str] = frozenset()
        self._owned: Partitions = {}
        self._topic_names: dict[uuid.UUID, str] = {}
        self._unnamed_target: messages.HeartbeatAssignment | None = None
        """A target assignment with ids of topics whose names are not known yet."""
        # What the last heartbeat with a response reported; None: the next one reports it again.
        self._reported_topics: frozenset[str] | None = None
        self._reported_owned: Partitions | None = None
        # The time between heartbeats until a response has the group's.
        self._interval_s = 1.0
        self._lookup_at_s = 0.0

    # --- called by the member --------------------------------------------------------------------

    def join(self, topics: frozenset[str]) -> None:
        """Join with these topics: the next heartbeat has the epoch 0. It is sent immediately, or
        after a backoff if the coordinator has refused the last one."""
        with self.lock:
            self.is_in_group = self.is_joining = True
            self.epoch = JOIN_EPOCH
            self._owned = {}
            self._topics = topics
        self.wake()

    def subscribe(self, topics: frozenset[str]) -> None:
        """Report this subscription immediately."""
        with self.lock:
            self._topics = topics
            self.heartbeat_now()

    def take_target(self) -> Partitions | None:
        """Return a target assignment that has come since the last call, None if none has."""
        with self.lock:
            target, self.target = self.target, None
        return target

    def put_back(self, target: Partitions) -> None:
        """Keep a target that the member could not take, unless a newer one has come."""
        with self.lock:
            if self.target is None and self.is_in_group:
                self.target = target

    def acknowledge(self, owned: Partitions) -> None:
        """Report immediately that the member owns these partitions."""
        with self.lock:
            if self.has_lost_membership or not self.is_in_group:
                return
            self._owned = dict(owned)
            self.heartbeat_now()

    def heartbeat_now(self) -> None:
        """Send the next heartbeat immediately."""
        with self.lock:
            self.heartbeat_at_s = 0.0
        self.wake()

    def reset_membership(self, reason: str) -> None:
        """Forget the epoch and the assignment, and join again as a new member. Call it with `lock`
        held."""
        log.info("group %s: no longer a member: %s", self.group_id, reason)
        if self.is_joining:
            self.metrics.rebalance_failed()
        self.is_in_group = self.is_joining = False
        self.epoch = JOIN_EPOCH
        self.target = None
        self.has_lost_membership = True
        self._unnamed_target = None
        self._owned = {}
        self.heartbeat_at_s = 0.0
        self._report_again()
        self.on_change()

    def _report_again(self) -> None:
        """Let the next heartbeat report subscription and owned partitions, changed or not."""
        self._reported_topics = None
        self._reported_owned = None

    # --- the thread ------------------------------------------------------------------------------

    def step(self, has_response: bool) -> float:
        return self.run_due_tasks() if self.is_in_group else math.inf

    def on_error(self, error: errors.KafkaError) -> float:
        """Let the next heartbeat retry a retriable error; return the seconds until then.

        `poll` raises any other error. It also ends the membership, unless the user may not read a
        topic: then another subscription may help.
        """
        is_about_topics = getattr(error, "code", 0) == errors.ErrorCode.TOPIC_AUTHORIZATION_FAILED
        with self.lock:
            self._report_again()  # the coordinator may not have the last heartbeat
            if not error.retriable:
                self.raise_in_poll(error)
            if not error.retriable and not is_about_topics:
                was_member = self.epoch != JOIN_EPOCH
                self.reset_membership(f"{error}")
                self.has_lost_membership = was_member
        return self.retry_heartbeat_later(error)

    @property
    def must_leave(self) -> bool:
        """Whether the coordinator has given this member an epoch."""
        return self.is_in_group and self.epoch != JOIN_EPOCH

    def begin_leave(self, reason: str) -> Callable[[Deadline], None] | None:
        """Return the function that sends the last heartbeat, None if the member has not joined."""
        return partial(self._send_leave, self._leave_request()) if self.is_in_group else None

    def _send_leave(self, request: Any, deadline: Deadline) -> None:
        """Send the last heartbeat. Raises BrokerError if the coordinator refuses it."""
        response = self.call(request, deadline)
        if response.error_code:
            raise membership.group_error(
                response.error_code, self.group_id, request.API_NAME, response.error_message
            )

    def _leave_request(self) -> Any:
        """Return the heartbeat with which this member leaves."""
        is_static = self.options.group_instance_id is not None
        # A static member leaves with epoch -2: it will come back, so the coordinator keeps its
        # partitions.
        return messages.ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=-2 if is_static else LEAVE_EPOCH,
            instance_id=self.options.group_instance_id,
        )

    # --- heartbeats ------------------------------------------------------------------------------

    def send_heartbeat(self) -> None:
        """Send a heartbeat; keep the epoch and the target assignment of its response."""
        deadline = self.request_deadline()
        self._check_version(deadline)
        request, topics, owned = self._heartbeat_request()
        response = self.call(request, deadline)
        code = response.error_code
        if code in (errors.ErrorCode.FENCED_MEMBER_EPOCH, errors.ErrorCode.UNKNOWN_MEMBER_ID):
            self.reset_retries()
            with self.lock:
                self.reset_membership(f"a heartbeat was answered with {errors.error_name(code)}")
            return
        if code:
            hint = self._heartbeat_hint(code, response.error_message)
            raise self.coordinator_error(code, request.API_NAME, hint)
        self.reset_retries()
        self._on_heartbeat_response(response, topics, owned)

    def _check_version(self, deadline: Deadline) -> None:
        """Raise UnsupportedVersionError if the coordinator does not know the protocol."""
        try:
            connection = self.cluster.connection(self.coordinator(deadline), deadline)
        except errors.KafkaError:
            self.forget_coordinator()
            raise
        if not connection.supports(self.heartbeat_type, self.min_heartbeat_version):
            raise errors.UnsupportedVersionError(f"{connection}: {self.needs}")

    def _heartbeat_request(self) -> tuple[Any, frozenset[str], Partitions]:
        """Return a heartbeat, and the topics and owned partitions that it reports."""
        options = self.options
        with self.lock:
            # Set before the fields are read: a later change sets it to 0 again.
            self.heartbeat_at_s = time.monotonic() + self._interval_s
            topics, owned, epoch = self._topics, self._owned, self.epoch
            reported_topics, reported_owned = self._reported_topics, self._reported_owned
        request = messages.ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=options.group_instance_id,
        )
        is_join = epoch == JOIN_EPOCH
        if is_join:
            log.info("group %s: joining as %s", self.group_id, self.member_id)
        if is_join or reported_topics is None:  # or after a failure: all is reported again
            request.rack_id = options.fetch.client_rack or None
            request.rebalance_timeout_ms = options.max_poll_interval_ms
            request.server_assignor = options.group_remote_assignor
        if is_join or reported_topics != topics:
            request.subscribed_topic_names = sorted(topics)
        if is_join:  # a member that joins owns nothing
            owned = {}
            request.topic_partitions = []
        elif reported_owned != owned:
            numbers: dict[uuid.UUID, list[int]] = {}
            for tp, topic_id in owned.items():
                numbers.setdefault(topic_id, []).append(tp.partition)
            request.topic_partitions = [
                messages.HeartbeatTopicPartitions(topic_id=topic_id, partitions=sorted(rows))
                for topic_id, rows in numbers.items()
            ]
        return request, topics, owned

    def _on_heartbeat_response(
        self,
        response: messages.ConsumerGroupHeartbeatResponse,
        topics: frozenset[str],
        owned: Partitions,
    ) -> None:
        """Keep the member's epoch, the interval between heartbeats, and the target assignment of a
        response. `topics` and `owned` are what the heartbeat reported."""
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
            # Without an assignment it has joined, and owns nothing yet.
            self.is_joining = self.is_joining and response.assignment is not None
            self._reported_topics, self._reported_owned = topics, owned
            self._interval_s = max(response.heartbeat_interval_ms, 1) / 1000
            if self.heartbeat_at_s > 0:  # otherwise there is a change to report
                self.heartbeat_at_s = time.monotonic() + self._interval_s
        if response.assignment is not None and not self._set_target(response.assignment):
            self._look_up_names(response.assignment)

    def _set_target(self, assignment: messages.HeartbeatAssignment) -> bool:
        """Keep the target assignment until `take_target`; return False if the name of one of its
        topics is not known."""
        rows = assignment.topic_partitions
        if any(row.topic_id not in self._topic_names for row in rows):
            return False
        with self.lock:
            if self.is_in_group:
                self._unnamed_target = None
                self.is_joining = False
                self.target = {
                    TopicPartition(self._topic_names[row.topic_id], number): row.topic_id
                    for row in rows
                    for number in row.partitions
                }
                self.on_change()
        return True

    def check_metadata(self) -> float:
        """Look up the names of assigned topics again if that is due. Return the seconds until it is
        due, math.inf if all names are known."""
        if self._unnamed_target is not None and time.monotonic() >= self._lookup_at_s:
            self._look_up_names(self._unnamed_target)
        if self._unnamed_target is None:
            return math.inf
        return self._lookup_at_s - time.monotonic()

    def _look_up_names(self, assignment: messages.HeartbeatAssignment) -> None:
        """Look up the names of the assigned topics. Metadata may be older than the assignment:
        then `check_metadata` tries again."""
        self._unnamed_target = assignment
        self._lookup_at_s = time.monotonic() + self.options.client.retry_backoff_max_ms / 1000
        names = sorted(self._topics)
        try:
            failed = self.cluster.request_metadata(names, self.request_deadline())
        except errors.KafkaError as error:
            log.info("group %s: looking up assigned topics failed: %s", self.group_id, error)
            return
        ids = {name: self.cluster.topic_id(name) for name in names if name not in failed}
        self._topic_names = {
            uuid.UUID(bytes=topic_id): name for name, topic_id in ids.items() if topic_id
        }
        if not self._set_target(assignment):
            log.info("group %s: not all assigned topics are known here yet", self.group_id)

    def _heartbeat_hint(self, code: int, message: str | None) -> str | None:
        """Return what to do about a heartbeat's error; None: what MEMBER_HINTS says."""
        options = self.options
        if code == errors.ErrorCode.UNRELEASED_INSTANCE_ID:
            return (
                f"a member with group.instance.id={options.group_instance_id} is in the group: "
                "close that consumer first, or wait until the brokers drop it "
                "(group.consumer.session.timeout.ms); each consumer needs an id of its own"
            )
        if code == errors.ErrorCode.UNSUPPORTED_ASSIGNOR:
            return (
                f"the brokers have no assignor {options.group_remote_assignor!r} "
                f"(group.remote.assignor): {message or 'choose another one, or leave it out'}"
            )
        if code == errors.ErrorCode.UNSUPPORTED_VERSION:
            return self.needs
        if code in (
            errors.ErrorCode.GROUP_ID_NOT_FOUND,
            errors.ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ):
            kind = (message or "the group is of another kind").rstrip(".")
            return f"{kind}: set another group.id"
        if code in (
            errors.ErrorCode.GROUP_AUTHORIZATION_FAILED,
            errors.ErrorCode.FENCED_INSTANCE_ID,
        ):
            return None
        return message


class ConsumerGroupMember(membership.GroupMember[ConsumerGroupMemberThread]):
    """A member of a group under KIP-848."""

    thread_type = ConsumerGroupMemberThread
    _loss_count = 0
    """How often the group has removed this member."""
    _has_reconciled = False
    """Whether the member has reconciled a target since it joined."""

    @property
    def metadata(self) -> committed_offsets.GroupMetadata:
        """Return the member's identity, for commits in a transaction."""
        thread = self._thread
        epoch, member_id = NO_GENERATION, NO_MEMBER_ID
        if thread is not None:
            with thread.lock:
                # Epoch 0 is that of a member that joins.
                epoch, member_id = thread.epoch or NO_GENERATION, thread.member_id
        return self._metadata_in(epoch, member_id)

    def _step(self, thread: ConsumerGroupMemberThread, topics: frozenset[str]) -> bool:
        """Join, report a new subscription, or reconcile a target assignment. Return whether `poll`
        must call again: a step was taken, or the membership was lost."""
        with thread.lock:
            is_in_group, has_lost_membership = thread.is_in_group, thread.has_lost_membership
        if has_lost_membership:
            return True
        if not is_in_group:
            self._has_reconciled = False
            self._joined_topics = topics
            thread.join(topics)
        elif topics != self._joined_topics:
            self._joined_topics = topics
            thread.subscribe(topics)
        elif (target := thread.take_target()) is not None:
            self._reconcile(target, thread)
        else:
            return False
        return True

    def committer(self, topic_ids: TopicIds) -> committed_offsets.Committer:
        """Return a function that commits offsets as this member. `topic_ids` has the ids of the
        topics that were read."""
        old_identity, loss_count = self._identity(), self._loss_count

        def commit(
            cluster: Cluster, offsets: committed_offsets.NewOffsets, deadline: Deadline
        ) -> None:
            """Commit the offsets. Raises CommitFailedError if the member has lost a partition
            since."""

            def identity() -> committed_offsets.GroupMetadata:
                """Return the member with its present epoch, for each attempt of the request."""
                # If the epoch has risen since, partitions that the member still owns may be
                # committed. Under the new epoch the coordinator would also take offsets of
                # partitions that other members own by now.
                now = self._identity()
                was_lost = self._loss_count != loss_count  # a new member may have the same epoch
                if was_lost or (now != old_identity and not offsets.keys() <= self.assignment):
                    raise self._commit_failed(errors.ErrorCode.STALE_MEMBER_EPOCH)
                return now

            try:
                identity()  # raises before anything is sent
                committed_offsets.commit_group_offsets(
                    cluster,
                    self._group_id,
                    offsets,
                    deadline=deadline,
                    topic_ids=topic_ids,
                    identity=identity,
                    min_version=9,  # the first with the member epoch
                )
            except errors.CommitFailedError:
                if self._thread is not None:  # a heartbeat's response says what has changed
                    self._thread.heartbeat_now()
                raise

        return commit

    def _identity(self) -> committed_offsets.GroupMetadata:
        """Return `metadata` for a commit. Raises CommitFailedError if this is not a member."""
        metadata = self.metadata
        if metadata.generation_id == NO_GENERATION:
            raise self._commit_failed(errors.ErrorCode.UNKNOWN_MEMBER_ID)
        return metadata

    def _lose(self) -> None:
        """Drop all partitions; commits of the lost membership fail from now on."""
        self._loss_count += 1
        self._has_reconciled = False
        super()._lose()

    def _reconcile(self, target: Partitions, thread: ConsumerGroupMemberThread) -> None:
        """Revoke the partitions that `target` does not have, take over those that are new, and let
        a heartbeat acknowledge the target. As in Java a hook that raises stops none of these."""
        if self._has_reconciled and target == self._owned:
            thread.acknowledge(target)  # the same target again, after a lost response
            return
        self._has_reconciled = True
        # A topic of the same name but another id is another topic.
        revoked = [tp for tp, topic_id in self._owned.items() if target.get(tp) != topic_id]
        try:
            error = self._revoke(revoked)
        except BaseException:  # Ctrl-C: the next poll takes this target over
            thread.put_back(target)
            raise
        try:
            self._take_over(dict(target), error)
        finally:
            if not self._is_closed:
                thread.acknowledge(target)


# --- share groups -------------------------------------------------------------------------------

NEEDS_SHARE = "share groups need brokers of Kafka 4.1 or later with the feature share.version=1"


class ShareMemberThread(ConsumerGroupMemberThread):
    """Sends the heartbeats of a share group's member, which do not report owned partitions."""

    heartbeat_type = messages.ShareGroupHeartbeatRequest
    needs = NEEDS_SHARE
    _early_heartbeats_left = 0

    def join(self, topics: frozenset[str]) -> None:
        # The first responses have no partitions while the coordinator initializes the group's
        # state of these. The interval between heartbeats is 5 s, so the first are sent sooner.
        self._early_heartbeats_left = 10
        super().join(topics)

    def _on_heartbeat_response(
        self, response: Any, topics: frozenset[str], owned: Partitions
    ) -> None:
        """Keep what the response says, as for a consumer group. Until it assigns partitions (see
        `join`), send the next heartbeat 0.3 s later, at most ten times."""
        super()._on_heartbeat_response(response, topics, owned)
        with self.lock:
            if response.assignment is not None and response.assignment.topic_partitions:
                self._early_heartbeats_left = 0
            elif self._early_heartbeats_left:
                self._early_heartbeats_left -= 1
                self.heartbeat_at_s = min(self.heartbeat_at_s, time.monotonic() + 0.3)

    def _heartbeat_request(self) -> tuple[Any, frozenset[str], Partitions]:
        """Return a heartbeat, the topics that it reports, and no partitions."""
        with self.lock:
            # Set before the fields are read: a later change sets it to 0 again.
            self.heartbeat_at_s = time.monotonic() + self._interval_s
            topics, epoch, reported = self._topics, self.epoch, self._reported_topics
        request = messages.ShareGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.member_id, member_epoch=epoch
        )
        if epoch == JOIN_EPOCH or reported != topics:
            request.rack_id = self.options.fetch.client_rack or None
            request.subscribed_topic_names = sorted(topics)
        return request, topics, {}

    def _leave_request(self) -> Any:
        """Return the heartbeat with which this member leaves."""
        return messages.ShareGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.member_id, member_epoch=LEAVE_EPOCH
        )


class ShareMember(ConsumerGroupMember):
    """The membership of a ShareConsumer."""

    thread_type = ShareMemberThread

    @property
    def partitions(self) -> Partitions:
        """The assigned partitions, with the ids of their topics."""
        return self._owned

    def _reconcile(self, target: Partitions, thread: ConsumerGroupMemberThread) -> None:
        """Take over the new assignment, which heartbeats do not report."""
        if target != self._owned:
            self._take_over(target, None)
