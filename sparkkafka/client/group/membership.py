"""Membership in a group: what both protocols share.

The consumer polls a `GroupMember` on the user's thread. The member calls the consumer's
`RebalanceHooks` when partitions are revoked, lost or assigned. Commits are in `committed_offsets`.

The member's `MemberThread` sends all its requests except commits: it joins, sends heartbeats, and
leaves the group when max.poll.interval.ms is exceeded. The thread shares the metadata of the client
but has its own connections: a JoinGroup may wait for minutes, and heartbeats must not wait. The
thread never calls the user: it records what happened (under `lock`) and wakes the user's thread,
whose `poll` acts on it. So a `poll` with a timeout of 0 makes progress.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from sparkkafka.client.cluster.cluster import Cluster, throttle
from sparkkafka.client.cluster.request_driver import FOR_GROUP, find_group_coordinator
from sparkkafka.client.deadline import Deadline, Waker, poll_connections
from sparkkafka.client.group.committed_offsets import (
    MEMBER_HINTS,
    Committer,
    GroupMetadata,
    TopicIds,
    commit_failed,
)
from sparkkafka.client.metrics import FetchMetrics
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.values import TopicPartition, some_partitions
from sparkkafka.config.client_settings import ConsumerOptions
from sparkkafka.errors import BrokerError, CommitFailedError, ErrorCode, KafkaError, OptionError

log = logging.getLogger(__name__)


class RebalanceHooks:
    """What the consumer does in a rebalance: here nothing. Called on the thread that called
    `poll`."""

    def before_revoke(self, partitions: frozenset[TopicPartition]) -> None:
        """Commit the positions of partitions that will be revoked, and call the user. May raise."""

    def after_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Commit nothing: other members may own these partitions already. May raise."""

    def after_assign(
        self, new: frozenset[TopicPartition], all_owned: frozenset[TopicPartition]
    ) -> None:
        """Read `all_owned` from now on, since a rebalance has ended; `new` may be empty. May
        raise."""


MIN_LEAVE_MS = 1_000
"""The shortest time that a closing member takes to leave its group, in the background if the
caller's deadline is shorter."""

SLOW_S = 2.0
"""Failures that last longer are logged as warnings: a user waits for them."""

WARN_AGAIN_S = 10.0
"""The time between two warnings while failures last."""

MAX_SLEEP_S = 3600.0
"""The longest sleep of a thread that has nothing to do until it is woken."""

MAX_POLL_INTERVAL_EXCEEDED = "max.poll.interval.ms passed without a poll"


def group_error(code: int, group_id: str, where: str, hint: str | None = None) -> BrokerError:
    """Return the error of a member's request, with what to do about it."""
    return BrokerError(code, f"{where} of group {group_id!r}", hint or MEMBER_HINTS.get(code))


class MemberThread(ABC):
    """The thread that keeps a member in its group. Its public methods may be called by any thread.

    `lock` guards the fields of subclasses. `on_change` is called, with the lock held, after each
    change that `GroupMember.poll` has to act on; it only wakes the user's thread. `cluster` is a
    view of the consumer's, with connections of this thread.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        cluster: Cluster,
        on_change: Callable[[], None],
        metrics: FetchMetrics,
    ) -> None:
        self.on_change = on_change
        self.metrics = metrics
        self.options = options
        self.group_id = options.group_id or ""
        self.lock = threading.RLock()
        self.failure: Exception | None = None
        """A final error that the next `poll` raises, once."""
        self.has_lost_membership = False
        """Whether the group has removed this member, so that others may own its partitions."""
        self.polled_at_s = time.monotonic()
        """The time of the user's last `poll` (monotonic)."""
        self.heartbeat_at_s = 0.0
        """The monotonic time at which the next heartbeat is due."""
        self.final_failure: Exception | None = None
        """An error after which this member never joins again: every `poll` raises it."""
        self.cluster = cluster.for_thread()
        self.backoff = self.cluster.backoff()
        self._waker = Waker()
        self._thread = threading.Thread(
            target=self._run, name=f"kafka-group-{self.group_id}", daemon=True
        )
        self._stopping: Deadline | None = None
        """The deadline of `stop`, once it was called."""
        # The steps that have failed in a row: since when, how many, and the last warning's time.
        self._failing_since_s: float | None = None
        self._failures = 0
        self._warned_at_s: float | None = None

    # --- called by the member --------------------------------------------------------------------

    @property
    def seconds_until_leave(self) -> float:
        """Seconds until max.poll.interval.ms is exceeded without a poll, so that this member leaves
        its group and others get its partitions."""
        return self.polled_at_s + self.options.max_poll_interval_ms / 1000 - time.monotonic()

    def start(self) -> None:
        self._thread.start()

    def stop(self, deadline: Deadline) -> None:
        """Leave the group, and end the thread. A leave that takes longer than the deadline
        continues in the background.

        If the group does not have this member yet, this waits at most MIN_LEAVE_MS for a request in
        flight, which may join the group, and then cuts the connections.
        """
        with self.lock:
            self._stopping = deadline
            must_leave = self.must_leave
        self._waker.wake()
        limit = deadline if must_leave else deadline.sooner(MIN_LEAVE_MS)
        try:
            self._thread.join(limit.remaining_s())
        finally:  # also after Ctrl-C in `join`, from which on `is_alive` is wrong (Python 3.11)
            if not must_leave:
                self.cluster.close_signal.close_in(0)
                self.cluster.close_signal.cut_sockets()
        if self._thread.is_alive() and must_leave:
            log.info("group %s: still leaving, in the background", self.group_id)

    def stop_in_background(self) -> None:
        """End the thread of a member that was dropped without `close`, and leave the group. The
        garbage collector calls this, so it neither waits nor takes a lock."""
        if self._stopping is None:
            self._stopping = Deadline(MIN_LEAVE_MS)
            self._waker.wake()

    def wake(self) -> None:
        self._waker.wake()

    def take_failure(self) -> Exception | None:
        """Return the error that `poll` has to raise now, None if there is none. The final one is
        returned each time, another error once."""
        with self.lock:
            failure, self.failure = self.failure, None
        return self.final_failure or failure

    # --- what the protocols do differently -------------------------------------------------------

    @abstractmethod
    def step(self, has_response: bool) -> float:
        """Send the requests and read the response that are due now. Return the seconds until the
        next step.

        `has_response`: a response has arrived on `awaited_connection`. `on_error` gets a KafkaError
        that this raises.
        """

    @abstractmethod
    def on_error(self, error: KafkaError) -> float:
        """Handle an error of `step`; return the seconds to wait before the next step."""

    @abstractmethod
    def send_heartbeat(self) -> None:
        """Send a heartbeat, act on its response, and set `heartbeat_at_s`."""

    @abstractmethod
    def check_metadata(self) -> float:
        """Look up topics in the metadata, if the protocol needs that now. Return the seconds until
        the next lookup."""

    @abstractmethod
    def reset_membership(self, reason: str) -> None:
        """Forget the membership, which the group has ended or this member ends. With the lock."""

    @property
    @abstractmethod
    def must_leave(self) -> bool:
        """Whether the coordinator must be told that this member leaves. `stop` waits for that."""

    @abstractmethod
    def begin_leave(self, reason: str) -> Callable[[Deadline], None] | None:
        """Drop the request in flight. Return the function that sends the LeaveGroup (or the last
        heartbeat), None if the group needs none. This thread calls it, before `reset_membership`.
        """

    @property
    def awaited_connection(self) -> Connection | None:
        """The connection whose response ends the sleep of this thread."""
        return None

    # --- the thread ------------------------------------------------------------------------------

    def run_due_tasks(self) -> float:
        """Run those tasks of a member that are due: leave after max.poll.interval.ms, send a
        heartbeat, look up topics. Return the seconds until the next one is due."""
        if self.seconds_until_leave <= 0:
            self._leave_after_max_poll_interval()
            return 0
        if time.monotonic() >= self.heartbeat_at_s:
            self.send_heartbeat()
        metadata_wait_s = self.check_metadata()
        heartbeat_wait_s = self.heartbeat_at_s - time.monotonic()
        return max(0.0, min(heartbeat_wait_s, self.seconds_until_leave, metadata_wait_s))

    def raise_in_poll(self, error: Exception) -> None:
        """Let the next `poll` raise this error."""
        with self.lock:
            self.failure = error
            self.on_change()

    def retry_later(self, error: KafkaError, doing: str) -> float:
        """Log an error that a retry may fix; return the seconds to wait before the retry."""
        now_s = time.monotonic()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        self._failures += 1
        failing_s = now_s - self._failing_since_s
        if self._warned_at_s is None:
            is_warning_due = failing_s >= SLOW_S
        else:
            is_warning_due = now_s - self._warned_at_s >= WARN_AGAIN_S
        if is_warning_due:
            self._warned_at_s = now_s
            log.warning(
                "group %s: %s failed %d times within %.0f s, trying again: %s",
                self.group_id,
                doing,
                self._failures,
                failing_s,
                error,
            )
        else:
            log.info("group %s: %s failed, trying again: %s", self.group_id, doing, error)
        return self.backoff.next_ms() / 1000

    def retry_heartbeat_later(self, error: KafkaError) -> float:
        """Log a heartbeat's error and schedule its retry; return the seconds until then."""
        wait_s = self.retry_later(error, "a heartbeat")
        self.heartbeat_at_s = time.monotonic() + wait_s
        return wait_s

    def reset_retries(self) -> None:
        """Count failures from zero again, as the coordinator has answered."""
        if self._warned_at_s is not None and self._failing_since_s is not None:
            log.info(
                "group %s: the coordinator answers again, after %d failures within %.0f s",
                self.group_id,
                self._failures,
                time.monotonic() - self._failing_since_s,
            )
        self._failing_since_s = self._warned_at_s = None
        self._failures = 0
        self.backoff.reset()

    def request_deadline(self) -> Deadline:
        return Deadline(self.options.client.request_timeout_ms, self.cluster.close_signal)

    def coordinator(self, deadline: Deadline) -> int:
        """Return the node id of the group's coordinator; look it up once if it is not known."""
        known = self.cluster.coordinators.get((FOR_GROUP, self.group_id))
        if known is not None:
            return known
        node_id = find_group_coordinator(self.cluster, self.group_id, deadline)
        log.info("group %s: the coordinator is broker %d", self.group_id, node_id)
        return node_id

    def forget_coordinator(self) -> None:
        """Let the next request look up the group's coordinator."""
        self.cluster.coordinators.pop((FOR_GROUP, self.group_id), None)

    def coordinator_error(self, code: int, where: str, hint: str | None = None) -> BrokerError:
        """Return the error of a response. A broker that is not the coordinator is forgotten."""
        if code in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR):
            self.forget_coordinator()
        return group_error(code, self.group_id, where, hint)

    def call(self, request: Any, deadline: Deadline) -> Any:
        """Send a request to the coordinator, once, and return the response. After a failure the
        next call looks up the coordinator."""
        try:
            connection = self.cluster.connection(self.coordinator(deadline), deadline)
            response = connection.call(request, deadline)
        except KafkaError:
            self.forget_coordinator()
            raise
        throttle(response, deadline)
        return response

    def _leave_after_max_poll_interval(self) -> None:
        """Leave the group, since the user has not polled for max.poll.interval.ms. The next `poll`
        joins again."""
        with self.lock:
            if self.seconds_until_leave > 0:  # a poll came just now
                return
            send_leave = self.begin_leave(MAX_POLL_INTERVAL_EXCEEDED)
            self.reset_membership(MAX_POLL_INTERVAL_EXCEEDED)
        log.warning(
            "group %s: no poll for %d ms (max.poll.interval.ms), so this member leaves the group "
            "and others get its partitions. The loop around poll takes too long with what one poll "
            "returns: raise max.poll.interval.ms, or lower max.poll.records",
            self.group_id,
            self.options.max_poll_interval_ms,
        )
        if send_leave is None:
            return
        try:
            send_leave(self.request_deadline())
        except KafkaError as error:
            log.info("group %s: leaving failed: %s", self.group_id, error)

    def _run(self) -> None:
        """Run the steps until `stop`, then leave the group."""
        try:
            has_response = False
            while self._stopping is None:
                try:
                    wait_s = self.step(has_response)
                except KafkaError as error:
                    wait_s = self.on_error(error)
                awaited = self.awaited_connection
                connections = [awaited] if awaited is not None and awaited.is_open else []
                has_response = bool(
                    poll_connections(connections, min(wait_s, MAX_SLEEP_S), self._waker)
                )
        except Exception as error:  # a bug; the user must not wait for a thread that has ended
            log.exception("group %s: the member's thread failed", self.group_id)
            self.final_failure = error
            self.raise_in_poll(error)
        finally:
            try:
                self._leave_at_the_end()
            finally:
                self.close_connections()
                self._waker.close()

    def close_connections(self) -> None:
        """Close the connections of the thread, at its end."""
        self.cluster.close()

    def _leave_at_the_end(self) -> None:
        """Leave the group. Failures are logged."""
        deadline = self._stopping or Deadline(MIN_LEAVE_MS)
        try:
            send_leave = self.begin_leave("the consumer is being closed")
            if send_leave is not None:
                remaining_ms = max(deadline.remaining_s() * 1000, MIN_LEAVE_MS)
                send_leave(Deadline(remaining_ms, self.cluster.close_signal))
                log.info("group %s: left", self.group_id)
        except Exception as error:  # the thread ends here: nobody could catch it
            log.info(
                "group %s: leaving failed, the group removes this member after its session "
                "timeout: %s",
                self.group_id,
                error,
            )


ThreadT = TypeVar("ThreadT", bound=MemberThread)


class GroupMember(ABC, Generic[ThreadT]):
    """Membership in a group. For one thread, except `metadata`. The first `poll` sends the first
    request."""

    thread_type: type[ThreadT]

    def __init__(
        self,
        options: ConsumerOptions,
        hooks: RebalanceHooks,
        cluster: Cluster,
        wake: Callable[[], None],
        metrics: FetchMetrics,
    ) -> None:
        """`cluster` is the consumer's: synchronous commits use its connections, and the membership
        shares its metadata. `wake` is called from any thread when `poll` has something to do."""
        if options.group_id is None:
            raise OptionError("a member of a group needs the group's name: set group.id")
        self._options = options
        self._group_id = options.group_id
        self._hooks = hooks
        self._metrics = metrics
        self._cluster = cluster
        self._wake = wake
        self._thread: ThreadT | None = None
        self._topics: frozenset[str] | None = None
        self._joined_topics: frozenset[str] = frozenset()
        self._owned: Mapping[TopicPartition, Any] = {}
        """The partitions that this member owns, under KIP-848 with the ids of their topics."""
        self._is_closed = False

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this member owns."""
        return frozenset(self._owned)

    @property
    @abstractmethod
    def metadata(self) -> GroupMetadata: ...

    def _metadata_in(self, generation_id: int, member_id: str) -> GroupMetadata:
        """Return this member's identity in a generation or epoch."""
        instance_id = self._options.group_instance_id
        return GroupMetadata(self._group_id, generation_id, member_id, instance_id)

    def _commit_failed(self, code: int) -> CommitFailedError:
        """Return the error of a commit as this member."""
        return commit_failed(code, self._group_id)

    def subscribe(self, topics: frozenset[str]) -> None:
        """Replace the topics of this member; the next `poll` joins with them."""
        self._topics = frozenset(topics)

    def poll(self) -> None:
        """Begin or continue the rebalance that is due: join, revoke partitions, take over a new
        assignment. Does not wait for brokers: a later call continues.

        Raises the thread's errors that are not retriable, and what hooks raise.
        """
        if self._topics is None or self._is_closed:
            return
        if self._thread is None:
            self._thread = self.thread_type(self._options, self._cluster, self._wake, self._metrics)
            # If this member is garbage-collected without `close`. (At exit the thread just ends.)
            weakref.finalize(self, self._thread.stop_in_background).atexit = False
            self._thread.start()
        thread = self._thread
        while not self._is_closed:  # a hook may have closed it
            thread.polled_at_s = time.monotonic()
            with thread.lock:
                has_lost, thread.has_lost_membership = thread.has_lost_membership, False
                failure = None if has_lost else thread.take_failure()
            if has_lost:
                self._lose()
                failure = thread.take_failure()  # if the hook raises, the next poll raises this
            if failure is not None:
                raise failure
            if self._is_closed or not self._step(thread, self._topics):
                return

    @abstractmethod
    def _step(self, thread: ThreadT, topics: frozenset[str]) -> bool:
        """Do the next part of a rebalance, if one is due for a subscription to `topics`. Return
        whether `poll` must call again."""

    @abstractmethod
    def committer(self, topic_ids: TopicIds) -> Committer:
        """Return a function that commits as this member, and that another thread may call later.

        The commit of a partition that the member has lost by then fails. `topic_ids` has the ids of
        the topics that were read. Raises CommitFailedError if this is not a member of the group.
        """

    def close(self, deadline: Deadline) -> None:
        """Leave the group (a static member stays until its session timeout) and end the thread.

        Calls no hook. Failures are logged.
        """
        self._is_closed = True
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop(deadline)
        self._owned = {}

    def _lose(self) -> None:
        """Drop all partitions, as the group has removed this member. Raises what `after_lost`
        raises."""
        lost, self._owned = self.assignment, {}
        if lost:
            names = some_partitions(lost)
            log.info("group %s: lost %s, which other members may own", self._group_id, names)
            self._hooks.after_lost(lost)

    def _revoke(self, partitions: Iterable[TopicPartition]) -> Exception | None:
        """Call the hook `before_revoke`, and return its error: as in Java the partitions are
        revoked in any case, and the rebalance ends before the error is raised."""
        revoked = frozenset(partitions)
        if not revoked:
            return None
        log.info("group %s: revoking %s", self._group_id, some_partitions(revoked))
        try:
            self._hooks.before_revoke(revoked)
        except Exception as error:
            return error
        finally:
            self._owned = {
                tp: topic_id for tp, topic_id in self._owned.items() if tp not in revoked
            }
        return None

    def _take_over(self, owned: Mapping[TopicPartition, Any], error: Exception | None) -> None:
        """Set the partitions that this member owns after a rebalance, and call the hook
        `after_assign`: not if the hook `before_revoke` has closed it, so that it owns nothing.
        `error` is what that hook raised: raises that, else what `after_assign` raises."""
        if self._is_closed:
            if error is not None:
                raise error
            return
        new = frozenset(owned.keys() - self._owned.keys())
        self._owned = owned
        self._metrics.rebalanced()
        log.info(
            "group %s: generation %d, assigned %s (new: %s)",
            self._group_id,
            self.metadata.generation_id,
            some_partitions(owned),
            some_partitions(new),
        )
        try:
            self._hooks.after_assign(new, self.assignment)
        except Exception:
            if error is None:
                raise
        if error is not None:
            raise error
