"""A consumer's side of its group: subscription, rebalances, commits (Java's ConsumerCoordinator).

A `GroupMember` has the membership (JoinGroup, heartbeats, max.poll.interval.ms) under either
protocol. This module has topic patterns, automatic commits (enable.auto.commit) and asynchronous
ones, the user's callbacks, and what happens to partitions in a rebalance.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from sparkkafka import errors
from sparkkafka.client.arguments import checked_names
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.request_driver import find_group_coordinator
from sparkkafka.client.cluster.topic_lookup import MissingTopicsLookup
from sparkkafka.client.consumer.subscription_state import SubscriptionState
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.committed_offsets import (
    Committer,
    GroupMetadata,
    NewOffsets,
    commit_group_offsets,
    fetch_committed,
)
from sparkkafka.client.group.membership import MIN_LEAVE_MS, GroupMember, RebalanceHooks
from sparkkafka.client.metrics import FetchMetrics
from sparkkafka.client.values import (
    OffsetAndMetadata,
    TopicPartition,
    checked_topic,
    some_partitions,
)
from sparkkafka.config.client_settings import ConsumerOptions
from sparkkafka.protocol.constants import NO_GENERATION
from sparkkafka.protocol.messages import ConsumerGroupHeartbeatRequest

log = logging.getLogger(__name__)

Callback: TypeAlias = Callable[[list[TopicPartition]], object]
Topics: TypeAlias = str | re.Pattern[str] | Iterable[str]

# The longest wait of an automatic commit for its response; if it fails, the next one commits more.
AUTO_COMMIT_MS = 5_000

# A commit that is due inside poll gets poll's remaining time, but at least MIN_COMMIT_MS, so that
# poll(0) can commit, too. That minimum doubles after each failure, up to 1 s.
MIN_COMMIT_MS = 100


CommitCallback: TypeAlias = Callable[
    [dict[TopicPartition, OffsetAndMetadata], Exception | None], object
]


class ConsumerCoordinator(RebalanceHooks):
    """Manages one consumer's subscription, group membership and commits. It is also the
    RebalanceHooks of the member."""

    def __init__(
        self,
        options: ConsumerOptions,
        cluster: Cluster,
        subscription: SubscriptionState,
        wake: Callable[[], None],
        metrics: FetchMetrics,
    ) -> None:
        """`wake` ends a wait of poll; any thread may call it."""
        self._metrics = metrics
        self._wake = wake
        self._commits = AsyncCommits(cluster, wake)
        self._options = options
        self._cluster = cluster
        self._subscription = subscription
        self._member: GroupMember[Any] | None = None
        self._missing_topics = MissingTopicsLookup(cluster, options.group_id)
        self._pattern: re.Pattern[str] | None = None
        self._matched_at_s = 0.0
        """When topics were last matched with the pattern (monotonic); 0: not yet."""
        self._is_assigned_by_user = False
        self._has_left = False
        """Whether `unsubscribe` has ended a membership."""
        self._commit_at_s = 0.0
        self._min_commit_ms = MIN_COMMIT_MS
        self._on_assigned: Callback | None = None
        self._on_revoked: Callback | None = None
        self._on_lost: Callback | None = None
        self._callback_depth = 0
        """Above 0 while a callback of the user runs."""
        self._is_leaving = False
        self._being_revoked: frozenset[TopicPartition] = frozenset()
        """The partitions with which on_revoked or on_lost was called, while that runs."""
        self.topics: frozenset[str] = frozenset()

    # --- subscription -----------------------------------------------------------------------

    @property
    def is_subscribed(self) -> bool:
        return self._member is not None

    @property
    def metadata(self) -> GroupMetadata:
        """The identity of this member, for offsets in a transaction. Raises OptionError without a
        group.id."""
        group_id = self.need_group("group_metadata")
        topic_ids = self._subscription.topic_ids(self._subscription.partitions)
        if self._member is not None:
            metadata = self._member.metadata
            is_outside = metadata.generation_id == NO_GENERATION
            return metadata._replace(is_outside=is_outside, topic_ids=topic_ids)
        return GroupMetadata(
            group_id,
            group_instance_id=self._options.group_instance_id,
            is_outside=self._has_left,
            topic_ids=topic_ids,
        )

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Let the consumer read these partitions, which the user assigns. Raises ConsumerStateError
        after `subscribe`."""
        if self._member is not None:
            raise errors.ConsumerStateError(
                "assign and subscribe exclude each other: call unsubscribe first"
            )
        if self._is_assigned_by_user:
            self._auto_commit_now(Deadline(AUTO_COMMIT_MS), "before partitions change")
        self._is_assigned_by_user = True
        self._has_left = False
        self._schedule_auto_commit()
        self._subscription.assign(partitions)

    def subscribe(
        self,
        topics: Topics,
        on_assigned: Callback | None,
        on_revoked: Callback | None,
        on_lost: Callback | None,
    ) -> None:
        """Subscribe to these topics; the next `poll` joins the group. Raises ConsumerStateError
        after `assign`."""
        self.need_group("subscribe")
        pattern, names = _parse_topics(topics)
        if self._is_assigned_by_user:
            raise errors.ConsumerStateError(
                "subscribe and assign exclude each other: call unsubscribe first"
            )
        self._on_assigned, self._on_revoked, self._on_lost = on_assigned, on_revoked, on_lost
        self._pattern, self._matched_at_s = pattern, 0.0
        if self._member is None:
            self._member = make_member(
                self._options, self, self._cluster, self._wake, self._metrics
            )
            self._schedule_auto_commit()
        if pattern is None:
            self._set_topics(frozenset(names))

    def unsubscribe(self, deadline: Deadline) -> None:
        """Leave the group, if this is a member, and drop all partitions."""
        try:
            self._leave(deadline, commit=True)
        finally:  # also if a callback fails: the group assigns the partitions to other members
            self._subscription.assign([])
            self._has_left = self._has_left or not self._is_assigned_by_user
            self._is_assigned_by_user = False
            self._pattern = None
            self.topics = frozenset()

    def _set_topics(self, topics: frozenset[str]) -> None:
        """Subscribe the member to these topics."""
        self.topics = topics
        self._missing_topics.restart()
        if self._member is not None:
            self._member.subscribe(topics)

    def _match_topics(self, deadline: Deadline) -> None:
        """Subscribe to the topics that match the pattern, if a lookup is due (every
        metadata.max.age.ms)."""
        pattern = self._pattern
        age_ms = self._cluster.metadata_age_ms
        is_due = not self._matched_at_s or (time.monotonic() - self._matched_at_s) * 1000 >= age_ms
        if pattern is None or not is_due:
            return
        try:
            topics = self._cluster.all_topics(deadline)
        except errors.KafkaError as error:
            if not error.retriable:
                raise
            log.warning("which topics match %r is not known: %s", pattern.pattern, error)
            return
        self._matched_at_s = time.monotonic()
        names = frozenset(
            name
            for name, topic in topics.items()
            if pattern.fullmatch(name)
            and not (topic.is_internal and self._options.exclude_internal_topics)
        )
        if names != self.topics or not self.topics:  # without a match, too, the member joins
            log.info("%d topics match %r", len(names), pattern.pattern)
            self._set_topics(names)

    # --- rebalances -------------------------------------------------------------------------

    def poll(self, deadline: Deadline, lookup_deadline: Deadline) -> None:
        """Run the callbacks of commits, continue a rebalance, and commit automatically if that is
        due. `deadline` is the commit's; `lookup_deadline`, that of metadata requests, is later if
        `deadline` is too short for a response."""
        self._commits.run_callbacks()
        if self._member is not None and not self._callback_depth:
            self._match_topics(lookup_deadline)
            if self._pattern is None and self._missing_topics.is_due:
                assigned_topics = {tp.topic for tp in self._subscription.partitions}
                self._missing_topics.look_up(self.topics - assigned_topics, lookup_deadline)
            topics_are_known = self._pattern is None or self._matched_at_s
            if topics_are_known and self._choose_protocol(lookup_deadline):
                self._member.poll()
        self._auto_commit_if_due(deadline)

    def _choose_protocol(self, deadline: Deadline) -> bool:
        """If group.protocol is auto, replace it: by `consumer` if the group's coordinator knows
        KIP-848, else by `classic`. Return False if no coordinator has been found yet."""
        options = self._options
        if options.group_protocol != "auto":
            return True
        group_id = self.need_group("subscribe")
        try:
            node_id = find_group_coordinator(self._cluster, group_id, deadline)
            connection = self._cluster.connection(node_id, deadline)
        except errors.KafkaError as error:
            if not error.retriable:
                raise
            log.info("group %s: its coordinator is not known yet: %s", group_id, error)
            return False
        # In version 1 the member makes its own id (KIP-1082).
        has_kip_848 = connection.features.get("group.version", 0) >= 1 and connection.supports(
            ConsumerGroupHeartbeatRequest, 1
        )
        self._options = replace(options, group_protocol="consumer" if has_kip_848 else "classic")
        log.info(
            "group %s: group.protocol=auto chose %s: %s %s KIP-848 (group.version)",
            group_id,
            self._options.group_protocol,
            connection,
            "has" if has_kip_848 else "does not have",
        )
        self._member = make_member(self._options, self, self._cluster, self._wake, self._metrics)
        self._member.subscribe(self.topics)
        return True

    @property
    def step_wait_s(self) -> float:
        """Seconds until `poll` must be called again: to restart max.poll.interval.ms, and to commit
        automatically. If something happens in the group, `wake` is called earlier."""
        waits_s = [self._options.max_poll_interval_ms / 1000 / 3]  # well before it is over
        if self._options.enable_auto_commit:
            # The shortest time between commits of a poll that waits, even if
            # auto.commit.interval.ms is less.
            waits_s.append(max(self._commit_at_s - time.monotonic(), 0.1))
        return min(waits_s)

    def before_revoke(self, partitions: frozenset[TopicPartition]) -> None:
        """Commit positions (with enable.auto.commit), call on_revoked, and stop reading these
        partitions."""
        self._finish_async_commits(Deadline(AUTO_COMMIT_MS), "before a rebalance")
        self._auto_commit_now(Deadline(AUTO_COMMIT_MS), "before a rebalance")
        self._call_and_unassign(self._on_revoked, partitions)

    def after_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Call on_lost, or without one on_revoked, and stop reading these partitions."""
        log.warning(
            "the group removed this member, which has lost %s",
            ", ".join(map(str, sorted(partitions))),
        )
        self._call_and_unassign(self._on_lost or self._on_revoked, partitions)

    def after_assign(
        self, new: frozenset[TopicPartition], all_owned: frozenset[TopicPartition]
    ) -> None:
        """Read all owned partitions, and call on_assigned with the new ones, even if none are."""
        self._subscription.assign(sorted(all_owned))
        self._call(self._on_assigned, new, even_if_none=True)

    def _call_and_unassign(
        self, callback: Callback | None, partitions: frozenset[TopicPartition]
    ) -> None:
        """Call the user's callback, and drop the partitions even if that fails."""
        member, self._being_revoked = self._member, partitions
        try:
            self._call(callback, partitions)
        finally:
            self._being_revoked = frozenset()
            if self._member is member:  # otherwise the callback left the group
                self._subscription.assign(self._subscription.partitions - partitions)

    # --- offsets ----------------------------------------------------------------------------

    def commit(self, offsets: NewOffsets, deadline: Deadline) -> None:
        """Commit, and wait for the response. Raises OptionError without a group.id."""
        try:
            self._commit(offsets, deadline)
        finally:
            self._commits.run_callbacks()

    def _commit(self, offsets: NewOffsets, deadline: Deadline) -> None:
        """Commit after all asynchronous commits, which must not overwrite it."""
        group_id = self.need_group("commit")
        if not self._commits.wait(deadline):
            raise errors.KafkaTimeoutError(
                f"nothing was committed: earlier asynchronous commits of group {group_id!r} were "
                f"not done within {deadline.text}, and come first"
            )
        if offsets:
            self._committer(offsets)(self._cluster, offsets, deadline)

    def commit_later(
        self, offsets: NewOffsets, deadline: Deadline, callback: CommitCallback | None
    ) -> None:
        """Commit in the background, as the present member of the group. Raises OptionError without
        a group.id; the callback gets other errors."""
        try:
            commit = self._committer(offsets)
        except errors.CommitFailedError as error:
            commit = partial(_fail, error)
        self._commits.submit(commit, offsets, deadline, callback)

    def _committer(self, offsets: NewOffsets) -> Committer:
        """Return the function that commits these offsets: as the present member of the group, or,
        after `assign`, as a client that is not a member. Raises OptionError without a group.id,
        CommitFailedError if the member has left the group."""
        group_id = self.need_group("commit")
        topic_ids = self._subscription.topic_ids(offsets)
        if self._member is not None:
            return self._member.committer(topic_ids)

        def commit(cluster: Cluster, offsets: NewOffsets, deadline: Deadline) -> None:
            commit_group_offsets(cluster, group_id, offsets, deadline=deadline, topic_ids=topic_ids)

        return commit

    def _finish_async_commits(self, deadline: Deadline, when: str) -> None:
        """Wait for asynchronous commits, and call their callbacks."""
        if not self._commits.wait(deadline):
            group_id = self._options.group_id
            log.warning("group %s: asynchronous commits are not done %s", group_id, when)
        self._commits.run_callbacks()

    def committed(
        self, partitions: list[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offset of each partition, None if there is none. Raises OptionError
        without a group.id."""
        group_id = self.need_group("committed")
        committed = fetch_committed(self._cluster, group_id, partitions, deadline=deadline)
        return {tp: committed.get(tp) for tp in partitions}

    def _schedule_auto_commit(self) -> None:
        """Let the next automatic commit be due after auto.commit.interval.ms."""
        interval_s = self._options.auto_commit_interval_ms / 1000
        self._commit_at_s = time.monotonic() + interval_s

    def _auto_commit_if_due(self, deadline: Deadline) -> None:
        """Commit automatically within poll's time; if that fails, a later poll or close commits."""
        if not self._options.enable_auto_commit or time.monotonic() < self._commit_at_s:
            return
        # Brokers need longer for thousands of partitions.
        min_ms = self._min_commit_ms + 0.05 * len(self._subscription)
        remaining_ms = max(deadline.remaining_s() * 1000, min_ms)
        if self._auto_commit_now(Deadline(min(remaining_ms, AUTO_COMMIT_MS)), "in time"):
            self._min_commit_ms = MIN_COMMIT_MS
        else:  # the brokers were too slow: give the next commit more time
            self._min_commit_ms = min(2 * self._min_commit_ms, 1_000)
            # From the end of this commit: else a short interval leaves no time for anything else.
            wait_s = min(self._options.auto_commit_interval_ms, AUTO_COMMIT_MS) / 1000
            self._commit_at_s = time.monotonic() + wait_s

    def _auto_commit_now(self, deadline: Deadline, when: str) -> bool:
        """Commit the positions if enable.auto.commit is set; return False if that failed. As in
        Java a failure raises nothing: this or another member gets the same records again."""
        if not self._options.enable_auto_commit:
            return True
        self._schedule_auto_commit()
        offsets = self._subscription.positions_to_commit()
        try:
            self._commit(offsets, deadline)
        except errors.KafkaError as error:
            log.warning("the automatic commit %s failed: %s", when, error)
            return False
        return True

    def need_group(self, what: str) -> str:
        """Return the group.id; raises OptionError without one. `what` needs it."""
        if self._options.group_id is None:
            raise errors.OptionError(f"{what} needs a group: set group.id")
        return self._options.group_id

    # --- the end ----------------------------------------------------------------------------

    def close(self, deadline: Deadline, *, commit: bool) -> None:
        """Leave the group, with `commit` after an automatic commit, and run the last callbacks."""
        try:
            self._leave(deadline, commit=commit)
        finally:
            self._commits.close()
            self._commits.run_callbacks()

    def _leave(self, deadline: Deadline, *, commit: bool) -> None:
        """Commit, call on_revoked or on_lost, leave the group."""
        if self._is_leaving:  # a callback of this very call unsubscribes or closes
            return
        self._is_leaving = True
        member, owned = self._member, self._subscription.partitions
        # If on_revoked unsubscribes or closes, it has just got `_being_revoked`.
        not_notified = owned - self._being_revoked
        try:
            self._finish_async_commits(deadline, "at the end")
            if commit and owned:
                self._auto_commit_now(deadline.sooner(AUTO_COMMIT_MS), "at the end")
            if member is not None and not_notified:
                try:
                    member.committer({})  # raises if it cannot commit any more
                    callback = self._on_revoked
                except errors.CommitFailedError:  # as in Java
                    callback = self._on_lost or self._on_revoked
                self._call(callback, not_notified)
        except KeyboardInterrupt:  # while brokers are silent; the group may take some time to leave
            deadline = deadline.sooner(MIN_LEAVE_MS)
            raise
        finally:
            try:
                self._finish_async_commits(deadline, "at the end")  # the commits of on_revoked
            finally:
                self._is_leaving = False
                self._member = None
                if member is not None:
                    member.close(deadline)

    def _call(
        self,
        callback: Callback | None,
        partitions: frozenset[TopicPartition],
        *,
        even_if_none: bool = False,
    ) -> None:
        """Call the user's callback with the partitions; without partitions only if `even_if_none`.
        If the callback calls `poll`, that does nothing in the group."""
        if callback is None or not (partitions or even_if_none):
            return
        self._callback_depth += 1
        try:
            callback(sorted(partitions))
        finally:
            self._callback_depth -= 1


def make_member(
    options: ConsumerOptions,
    hooks: RebalanceHooks,
    cluster: Cluster,
    wake: Callable[[], None],
    metrics: FetchMetrics,
) -> GroupMember[Any]:
    """Return a member for group.protocol; for auto a classic one, which has not joined when
    `_choose_protocol` replaces it. Raises OptionError without group.id."""
    # Not at the top: a consumer that assigns its partitions itself needs neither.
    from sparkkafka.client.group.classic_membership import ClassicMember
    from sparkkafka.client.group.consumer_group_membership import ConsumerGroupMember

    member = ConsumerGroupMember if options.group_protocol == "consumer" else ClassicMember
    return member(options, hooks, cluster, wake, metrics)


def _fail(error: errors.KafkaError, *_: Any) -> None:
    """Raise the error of a commit that could not begin, so that its callback gets it."""
    raise error


def _parse_topics(topics: Topics) -> tuple[re.Pattern[str] | None, list[str]]:
    """Return a pattern for whole names and no names, or None and the names. Raises OptionError."""
    if isinstance(topics, re.Pattern):
        return topics, []
    names = [topics] if isinstance(topics, str) else checked_names(topics, "topics")
    if not all(names):
        raise errors.OptionError("topics: not a topic's name: ''")
    if not names:
        raise errors.OptionError("subscribe needs topics; unsubscribe() ends a subscription")
    if not any(name.startswith("^") for name in names):
        for name in names:
            if re.search(r"[\\*+?|(){}\[\]$]", name):
                raise errors.OptionError(
                    f"topics: {name!r} is not a topic's name; a pattern begins with ^"
                )
        return None, [checked_topic(name) for name in names]
    # As in librdkafka: text that begins with ^ is a pattern for the beginning of a name, other text
    # is a name.
    parts = [f"{name}.*" if name.startswith("^") else re.escape(name) for name in names]
    try:
        return re.compile("|".join(f"(?:{part})" for part in parts)), []
    except re.error as error:
        raise errors.OptionError(f"topic pattern {topics!r}: {error}") from error


# --- asynchronous commits ------------------------------------------------------------------------


class _AsyncCommit(NamedTuple):
    commit: Committer
    offsets: NewOffsets
    deadline: Deadline
    callback: CommitCallback | None


class AsyncCommits:
    """Asynchronous commits of one consumer, made by a thread in the order of the calls.

    Each is retried until its deadline before the next one is sent, so an earlier commit never
    overwrites a later one. (Java sends them concurrently and therefore tries each once.) The thread
    ends when nothing is left to commit. It calls `wake` after each commit; `run_callbacks` then
    calls the user on the user's thread: in poll, commit and close, as in Java.
    """

    def __init__(self, cluster: Cluster, wake: Callable[[], None]) -> None:
        """The thread shares the metadata of the consumer's `cluster`, but not its connections."""
        self._cluster = cluster.for_thread()
        self._wake = wake
        # Not the condition is taken but its lock: Ctrl-C inside Condition.__enter__, which is
        # Python code, could leave it locked.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._queue: deque[_AsyncCommit] = deque()  # the first one is in flight
        self._ended: deque[tuple[_AsyncCommit, Exception | None]] = deque()
        self._is_running = False

    def submit(
        self,
        commit: Committer,
        offsets: NewOffsets,
        deadline: Deadline,
        callback: CommitCallback | None,
    ) -> None:
        """Queue a commit behind those that were submitted earlier."""
        with self._lock:
            self._queue.append(_AsyncCommit(commit, offsets, deadline, callback))
            if self._is_running:
                return
            self._is_running = True
        threading.Thread(target=self._commit_all, name="kafka-commits", daemon=True).start()

    def wait(self, deadline: Deadline) -> bool:
        """Wait until all commits have ended; return False if the deadline is over earlier."""
        if not self._is_running:
            return True
        with self._lock:
            return self._changed.wait_for(lambda: not self._is_running, deadline.remaining_s())

    def run_callbacks(self) -> None:
        """Call the callbacks of commits that have ended, in order. Raises what a callback raises;
        the next call continues with the next callback."""
        while self._ended:
            commit, error = self._ended.popleft()
            if commit.callback is not None:
                commit.callback(dict(commit.offsets), error)
            elif error is not None:
                log.warning(
                    "the asynchronous commit of %s failed: %s",
                    some_partitions(commit.offsets),
                    error,
                )

    def close(self) -> None:
        """Give up the commits that have not ended; `run_callbacks` passes the error to their
        callbacks."""
        self._cluster.close_signal.close_in(0)
        if not self.wait(Deadline(100)):  # the thread waits for a socket, which has no signal
            self._cluster.close_signal.cut_sockets()
        if self.wait(Deadline(1_000)):  # else the thread still uses it
            self._cluster.close()

    def _commit_all(self) -> None:
        """Make the commits in the queue, then end."""
        while True:
            with self._lock:
                if not self._queue:
                    self._is_running = False
                    self._changed.notify_all()
                    return
                queued = self._queue[0]
            error: Exception | None = None
            try:
                if queued.offsets:  # no member need be in its group to commit nothing
                    queued.commit(self._cluster, queued.offsets, queued.deadline)
            except errors.KafkaError as failure:
                error = failure
            except Exception as bug:
                log.exception("an asynchronous commit failed")
                error = bug
            with self._lock:
                self._queue.popleft()
                self._ended.append((queued, error))
            self._wake()
