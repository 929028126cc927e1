"""Membership in a group: what both protocols share.

A `GroupMember` is what the consumer polls on the user's thread: it calls the consumer's
`RebalanceHooks` when partitions are revoked, lost or assigned. `GroupMetadata` is what a producer
commits offsets with.

All requests of a membership, except commits, are sent by its `MemberThread`. The thread shares the
metadata of the client but has its own connections: a JoinGroup may wait for minutes, and heartbeats
must not wait at all. The thread never calls the user: it records what happened (under `lock`) and
wakes the user's thread, whose `poll` acts on it. So a `poll` with a timeout of 0 makes progress.
"""

from __future__ import annotations

import logging
import select
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from sparkkafka.client.cluster.cluster import Cluster, throttle
from sparkkafka.client.cluster.request_driver import FOR_GROUP, find_coordinator_once
from sparkkafka.client.deadline import CloseSignal, Deadline, Waker
from sparkkafka.client.metrics.fetching import FetchMetrics
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition, some_partitions
from sparkkafka.config.client_settings import ConsumerOptions
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, OptionError
from sparkkafka.protocol.constants import NO_GENERATION, NO_MEMBER_ID

log = logging.getLogger(__name__)

Offsets: TypeAlias = Mapping[TopicPartition, OffsetAndMetadata]


class GroupMetadata(NamedTuple):
    """Which member of which generation speaks (Java's ConsumerGroupMetadata).

    `generation_id` is the member epoch under KIP-848; NO_GENERATION and NO_MEMBER_ID stand for
    somebody who is no member. `is_outside` is a consumer that subscribes to topics and is not in
    the group now: it was put out, or has not joined yet. Brokers would take its offsets in a
    transaction as those of anybody, so nothing is committed for it.
    """

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = NO_MEMBER_ID
    group_instance_id: str | None = None
    is_outside: bool = False


class RebalanceHooks(Protocol):
    """What the consumer does in a rebalance. Called on the thread that called `poll`."""

    def before_revoke(self, partitions: frozenset[TopicPartition]) -> None:
        """They are about to be revoked: commit, call the user's listener. May raise."""

    def after_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """They are no longer this member's, others may have them: do not commit. May raise."""

    def after_assign(
        self, new: frozenset[TopicPartition], all_owned: frozenset[TopicPartition]
    ) -> None:
        """A rebalance has ended; `new` may be empty. May raise."""


class Commit(Protocol):
    """Commits as the member for which it was made, over connections of the caller."""

    def __call__(self, cluster: Cluster, offsets: Offsets, deadline: Deadline) -> None:
        """Raises as `GroupMember.commit`."""


LEAVE_MS = 1_000
"""So long at least a member that closes tries to say so, in the background if need be."""

SLOW_S = 2.0
"""Failures that last longer are warned of: somebody waits by now."""

WARN_AGAIN_S = 10.0
"""While failures last, there is a warning that often."""

FAR_S = 3600.0

POLL_OVERDUE = "max.poll.interval.ms passed without a poll"

_HINTS: dict[int, str] = {
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (
        "this user may not use the group: grant READ on it, or set another group.id"
    ),
    ErrorCode.INVALID_GROUP_ID: "the brokers do not take this group.id: choose another one",
    ErrorCode.FENCED_INSTANCE_ID: (
        "another consumer has joined with the same group.instance.id and took this one's place: "
        "each consumer needs an id of its own"
    ),
    ErrorCode.GROUP_MAX_SIZE_REACHED: (
        "the group has as many members as the brokers allow (group.max.size, or "
        "group.consumer.max.size): stop a member first, or let an admin raise the limit"
    ),
}


def group_error(code: int, group_id: str, where: str, hint: str | None = None) -> BrokerError:
    """A broker's refusal of something that a member asked for, with what to do about it."""
    return BrokerError(code, f"{where} of group {group_id!r}", hint or member_hint(code))


def member_hint(code: int) -> str | None:
    """What a member can do about a refusal; None: what Kafka's table says."""
    return _HINTS.get(code)


def _sleep(waker: Waker, wait_s: float, connection: Connection | None) -> bool:
    """Until woken, or `connection` has something to read: whether that is so."""
    poll = select.poll()
    poll.register(waker, select.POLLIN)
    answer = -1
    is_here = False
    if connection is not None and connection.is_open:
        answer = connection.fileno()
        poll.register(answer, select.POLLIN)
        # With TLS, or a session renewed, an answer may be here without a sign of the socket.
        is_here = connection.has_input
    wait_ms = 0.0 if is_here else max(0.0, wait_s) * 1000
    ready = {descriptor for descriptor, _ in poll.poll(wait_ms)}
    waker.drain()
    return is_here or answer in ready


class MemberThread(ABC):
    """Begins with `start`, ends with `stop`. Everything public may be used from any thread.

    `lock` guards what the classes below keep. `on_change` is called after each change that `poll`
    has to act on, with the lock held: it only wakes the user's thread. `cluster` is that thread's.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        group_id: str,
        cluster: Cluster,
        on_change: Callable[[], None],
        metrics: FetchMetrics | None = None,
    ) -> None:
        self.on_change = on_change
        self.metrics = metrics or FetchMetrics()
        self.options = options
        self.group_id = group_id
        self.lock = threading.RLock()
        self.failure: Exception | None = None
        """What is final, for `poll` to raise, once."""
        self.lost = False
        """The group has gone on without this member: what it owned may be another's."""
        self._bug: Exception | None = None
        self._close_signal = CloseSignal()
        self.cluster = cluster.for_thread(self._close_signal)
        self.backoff = self.cluster.backoff()
        self._waker = Waker()
        self._thread = threading.Thread(
            target=self._run, name=f"kafka-group-{group_id}", daemon=True
        )
        self._polled_s = time.monotonic()
        self._stopping: tuple[Deadline, bool] | None = None
        self._failing_since_s: float | None = None
        self._failures = 0
        self._warned_s: float | None = None

    # --- called by the member --------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self, deadline: Deadline, *, leave: bool) -> None:
        """End, and leave the group if `leave`; what takes longer continues in the background.

        The connection that waits for a JoinGroup is closed, whoever is at the other end. Who is not
        known to be a member waits for the answer that would make it one, but not for long.
        """
        with self.lock:
            self._stopping = (deadline, leave)
            must_leave = self.must_leave
        self._waker.wake()
        self._thread.join((deadline if must_leave else deadline.sooner(LEAVE_MS)).remaining_s())
        if not self._thread.is_alive():
            return
        if must_leave:
            log.info("group %s: still leaving, in the background", self.group_id)
        else:
            self._close_signal.close_in(0)
            self._close_signal.cut_sockets()

    def stop_in_background(self) -> None:
        """As `stop`, for a member that nobody has closed: waits for nothing, takes no lock."""
        if self._stopping is None:
            self._stopping = Deadline(LEAVE_MS), True
            self._waker.wake()

    def mark_polled(self) -> None:
        self._polled_s = time.monotonic()

    def wake(self) -> None:
        self._waker.wake()

    def take_failure(self) -> Exception | None:
        with self.lock:
            failure, self.failure = self.failure, None
        return self._bug or failure

    # --- the thread ------------------------------------------------------------------------------

    @abstractmethod
    def step(self, answered: bool) -> float:
        """Do what is due; returns how many seconds nothing will be.

        `answered`: there is something to read on `pending`. KafkaErrors go to `failed`.
        """

    @abstractmethod
    def failed(self, error: KafkaError) -> float:
        """`step` raised `error`; returns how many seconds to wait before the next step."""

    @property
    @abstractmethod
    def must_leave(self) -> bool:
        """The group has this member and is to hear that it leaves: worth waiting for."""

    @abstractmethod
    def leave(self, deadline: Deadline) -> None:
        """Announce to the group that this member leaves, if it may have it."""

    @property
    def pending(self) -> Connection | None:
        """The connection on which an answer is awaited while the thread sleeps."""
        return None

    @property
    def poll_overdue(self) -> bool:
        return self.until_poll_due_s() <= 0

    def until_poll_due_s(self) -> float:
        """Seconds until max.poll.interval.ms has passed since the last `poll`."""
        due_s = self._polled_s + self.options.max_poll_interval_ms / 1000
        return due_s - time.monotonic()

    def fail(self, error: Exception) -> None:
        """Let `poll` raise it."""
        with self.lock:
            self.failure = error
            self.on_change()

    def retry_later(self, error: KafkaError, doing: str) -> float:
        """The wait after a failure that may pass, which is logged."""
        now_s = time.monotonic()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        self._failures += 1
        lasts_s = now_s - self._failing_since_s
        quiet_s = lasts_s if self._warned_s is None else now_s - self._warned_s
        if quiet_s >= (SLOW_S if self._warned_s is None else WARN_AGAIN_S):
            self._warned_s = now_s
            log.warning(
                "group %s: %s failed %d times within %.0f s, trying again: %s",
                self.group_id,
                doing,
                self._failures,
                lasts_s,
                error,
            )
        else:
            log.info("group %s: %s failed, trying again: %s", self.group_id, doing, error)
        return self.backoff.next_ms() / 1000

    def succeeded(self) -> None:
        """An answer came: the next failure is a first one."""
        if self._warned_s is not None and self._failing_since_s is not None:
            log.info(
                "group %s: the coordinator answers again, after %d failures within %.0f s",
                self.group_id,
                self._failures,
                time.monotonic() - self._failing_since_s,
            )
        self._failing_since_s = self._warned_s = None
        self._failures = 0
        self.backoff.reset()

    def request_deadline(self) -> Deadline:
        return Deadline(self.options.client.request_timeout_ms, self._close_signal)

    def coordinator(self, deadline: Deadline) -> int:
        """The node id of the group's coordinator. One look-up if it is not known."""
        known = self.cluster.coordinators.get((FOR_GROUP, self.group_id))
        if known is not None:
            return known
        node_id = find_coordinator_once(self.cluster, self.group_id, FOR_GROUP, deadline)
        log.info("group %s: the coordinator is broker %d", self.group_id, node_id)
        return node_id

    def forget_coordinator(self) -> None:
        self.cluster.coordinators.pop((FOR_GROUP, self.group_id), None)

    def refused(self, code: int, where: str, hint: str | None = None) -> BrokerError:
        """The coordinator's error, to be raised; one that is not the coordinator is forgotten."""
        if code in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR):
            self.forget_coordinator()
        return group_error(code, self.group_id, where, hint)

    def call(self, request: Any, deadline: Deadline, *, version: int | None = None) -> Any:
        """One request to the coordinator, one attempt; a failure makes it unknown."""
        try:
            connection = self.cluster.connection(self.coordinator(deadline), deadline)
            response = connection.call(request, deadline, version=version)
        except KafkaError:
            self.forget_coordinator()
            raise
        throttle(response, deadline)
        return response

    def leave_after_missed_poll(self, send_leave: Callable[[Deadline], None] | None) -> None:
        """The user polls too rarely, so this member is none any more: say so, to the coordinator
        with `send_leave`."""
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
            log.info("group %s: could not say that it leaves: %s", self.group_id, error)

    def _run(self) -> None:
        try:
            answered = False
            while self._stopping is None:
                try:
                    wait_s = self.step(answered)
                except KafkaError as error:
                    wait_s = self.failed(error)
                answered = _sleep(self._waker, min(wait_s, FAR_S), self.pending)
        except Exception as error:  # a bug; the user must not wait for a thread that is gone
            log.exception("group %s: the member's thread failed", self.group_id)
            self._bug = error
            self.fail(error)
        finally:
            try:
                self._leave_at_the_end()
            finally:
                self.close_connections()
                self._waker.close()

    def close_connections(self) -> None:
        self.cluster.close()

    def _leave_at_the_end(self) -> None:
        deadline, leave = self._stopping or (Deadline(LEAVE_MS), True)
        if not leave:
            return
        try:
            left_ms = max(deadline.remaining_s() * 1000, LEAVE_MS)
            self.leave(Deadline(left_ms, self._close_signal))
        except Exception as error:  # the thread ends here: it is for the log only
            log.info(
                "group %s: could not say that this member leaves, the group will notice by itself: "
                "%s",
                self.group_id,
                error,
            )


ThreadT = TypeVar("ThreadT", bound=MemberThread)


class GroupMember(ABC, Generic[ThreadT]):
    """Membership in a group. Used by one thread, but for `metadata`.

    Nothing is on the network before the first `poll`.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        hooks: RebalanceHooks,
        cluster: Cluster,
        wake: Callable[[], None],
        metrics: FetchMetrics | None = None,
    ) -> None:
        """`cluster` is the consumer's: commits that are waited for go over its connections, and
        the membership shares its metadata. `wake` is called from any thread when `poll` has
        something to do."""
        if options.group_id is None:
            raise OptionError("a member of a group needs the group's name: set group.id")
        self._options = options
        self._group_id = options.group_id
        self._hooks = hooks
        self._metrics = metrics or FetchMetrics()
        self._cluster = cluster
        self._wake = wake
        self._thread: ThreadT | None = None
        self._wanted: frozenset[str] | None = None
        self._joined_with: frozenset[str] = frozenset()
        self._owned: Mapping[TopicPartition, Any] = {}
        """Under KIP-848 with the ids of the topics."""
        self._closed = False

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """What this member owns."""
        return frozenset(self._owned)

    @property
    @abstractmethod
    def metadata(self) -> GroupMetadata: ...

    def subscribe(self, topics: frozenset[str]) -> None:
        """The names of the wanted topics; may be called again, the next `poll` acts on it."""
        self._wanted = frozenset(topics)

    def poll(self) -> None:
        """Do all that is due, waiting for nothing but hooks; the next call continues what is begun.

        Raises what is final, and what hooks raise.
        """
        if self._wanted is None or self._closed:
            return
        if self._thread is None:
            self._thread = self._new_thread()
            weakref.finalize(self, self._thread.stop_in_background).atexit = False
            self._thread.start()
        thread = self._thread
        while not self._closed:  # a hook may have done it
            thread.mark_polled()
            with thread.lock:
                lost, thread.lost = thread.lost, False
                failure = None if lost else thread.take_failure()
            if lost:
                self._lose()
                failure = thread.take_failure()  # if the hook raises, the next poll says this
            if failure is not None:
                raise failure
            if self._closed or not self._step(thread, self._wanted):
                return

    @abstractmethod
    def _new_thread(self) -> ThreadT: ...

    @abstractmethod
    def _step(self, thread: ThreadT, wanted: frozenset[str]) -> bool:
        """Do the next thing that is due; returns False if there was none."""

    @abstractmethod
    def commit(self, offsets: Offsets, deadline: Deadline) -> None:
        """Commit offsets as this member.

        Raises CommitFailedError when the group has moved on, BrokerError for other refusals,
        KafkaTimeoutError with the last failure. In the last two cases a part may be committed.
        """

    @abstractmethod
    def committer(self) -> Commit:
        """For commits later and in another thread: as the member that this is now. What it has
        lost by then it cannot commit. Raises CommitFailedError if it is no member."""

    def close(self, deadline: Deadline, *, leave: bool = True) -> None:
        """Leave the group (a static member under its session timeout does not), end the thread.

        Calls no hook. Failures are logged.
        """
        self._closed = True
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop(deadline, leave=leave)
        self._owned = {}

    def _lose(self) -> None:
        lost, self._owned = self.assignment, {}
        if lost:
            some = some_partitions(lost)
            log.info("group %s: lost %s, which may be others' by now", self._group_id, some)
            self._hooks.after_lost(lost)

    def _revoke(self, partitions: Iterable[TopicPartition]) -> Exception | None:
        """Call `before_revoke`; the partitions are gone even if that fails, as in Java."""
        gone = frozenset(partitions)
        if not gone:
            return None
        log.info("group %s: revoking %s", self._group_id, some_partitions(gone))
        try:
            self._hooks.before_revoke(gone)
        except Exception as error:
            return error
        finally:
            self._owned = {tp: row for tp, row in self._owned.items() if tp not in gone}
        return None

    def _take_over(self, owned: Mapping[TopicPartition, Any], error: Exception | None) -> None:
        """Own these. Raises `error`, which an earlier hook raised, else that of `after_assign`."""
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
