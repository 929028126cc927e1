"""A member of a group as the consumer sees it: what a rebalance means, under either protocol.

In a classic group (group.protocol=classic) the members themselves assign the partitions: all join
(JoinGroup), the brokers make one the leader, which says who gets what (SyncGroup). Eager members
let go of everything before they join again. Cooperative ones (KIP-429) keep what they have, let go
of what the new assignment takes away, and then join once more, so that it can be given to others.
Java's ConsumerCoordinator.

Under group.protocol=consumer (KIP-848) no rebalance stops the whole group: the coordinator tells
each member what to revoke and what to take over, and gives a partition away once its owner has said
that it is free.

A thread beside each member talks to the coordinator.
"""

from __future__ import annotations

import logging
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.assignors import GroupAssignors
from sparkkafka.client.group.classic_thread import (
    IN_ROUND,
    ClassicMemberThread,
    Generation,
    Joined,
    Phase,
)
from sparkkafka.client.group.commits import (
    EPOCH_VERSION,
    Offsets,
    commit_as_member,
    commit_failed,
)
from sparkkafka.client.group.consumer_thread import ConsumerMemberThread, Partitions
from sparkkafka.client.group.member_thread import (
    Commit,
    GroupMetadata,
    MemberThread,
    RebalanceHooks,
)
from sparkkafka.client.metrics.fetching import FetchMetrics
from sparkkafka.client.values import TopicPartition, some_partitions
from sparkkafka.config.client_settings import ConsumerOptions
from sparkkafka.errors import CommitFailedError, ErrorCode, KafkaError, OptionError
from sparkkafka.protocol.constants import NO_GENERATION, NO_MEMBER_ID

log = logging.getLogger(__name__)

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
            weakref.finalize(self, self._thread.let_go).atexit = False
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

    def _let_go(self, partitions: Iterable[TopicPartition]) -> Exception | None:
        """Call `before_revoke`; the partitions are gone even if that fails, as in Java."""
        gone = frozenset(partitions)
        if not gone:
            return None
        log.info("group %s: letting go of %s", self._group_id, some_partitions(gone))
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
        return self._asker(generation._replace(generation_id=known))

    def _asker(self, generation: Generation) -> GroupMetadata:
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
        asker = self._asker(generation)

        def commit(cluster: Cluster, offsets: Offsets, deadline: Deadline) -> None:
            try:
                commit_as_member(cluster, lambda: asker, offsets, deadline)
            except CommitFailedError as error:
                if error.code == ErrorCode.REBALANCE_IN_PROGRESS:
                    thread.ask_to_rejoin("a commit was answered with REBALANCE_IN_PROGRESS")
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
        error = self._let_go(gone)
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
            thread.ask_to_rejoin("the assignment could not be read")
            raise
        self._last_generation_id = generation.generation_id
        surplus = {tp for tp in assigned if tp.topic not in self._joined_with}
        if surplus:
            thread.ask_to_rejoin(
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
                thread.ask_to_rejoin("partitions were let go of, which others can have now")
            error = self._let_go(gone)
            if self._closed:  # the hook did it: nobody is left who could own anything
                if error is not None:
                    raise error
                return
        self._take_over(dict.fromkeys(assigned), error)


class ConsumerMember(GroupMember[ConsumerMemberThread]):
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

    def _new_thread(self) -> ConsumerMemberThread:
        return ConsumerMemberThread(
            self._options, self._group_id, self._cluster, self._wake, self._metrics
        )

    def _step(self, thread: ConsumerMemberThread, wanted: frozenset[str]) -> bool:
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
        self._commit(self._cluster, self._asker, offsets, deadline)

    def committer(self) -> Commit:
        first, times_lost = self._asker(), self._times_lost

        def commit(cluster: Cluster, offsets: Offsets, deadline: Deadline) -> None:
            def asker() -> GroupMetadata:
                # The epoch goes up while the member keeps what it has: that may be committed.
                # Under the new epoch the coordinator would also take what is another's by now.
                now = self._asker()
                lost = self._times_lost != times_lost  # a new member may have the same epoch
                if lost or (now != first and not offsets.keys() <= self.assignment):
                    raise commit_failed(ErrorCode.STALE_MEMBER_EPOCH, self._group_id)
                return now

            self._commit(cluster, asker, offsets, deadline)

        return commit

    def _commit(
        self,
        cluster: Cluster,
        asker: Callable[[], GroupMetadata],
        offsets: Offsets,
        deadline: Deadline,
    ) -> None:
        try:
            commit_as_member(cluster, asker, offsets, deadline, least_version=EPOCH_VERSION)
        except CommitFailedError:
            thread = self._thread
            if thread is not None:
                thread.hurry()
            raise

    def _asker(self) -> GroupMetadata:
        metadata = self.metadata
        if metadata.generation_id == NO_GENERATION:
            raise commit_failed(ErrorCode.UNKNOWN_MEMBER_ID, self._group_id)
        return metadata

    def _lose(self) -> None:
        self._times_lost += 1
        self._settled = False
        super()._lose()

    def _reconcile(self, target: Partitions, thread: ConsumerMemberThread) -> None:
        """Revoke, assign, acknowledge: each also if a hook fails, as in Java."""
        if self._settled and target == self._owned:
            thread.acknowledge(target)  # the same target again, after a lost answer
            return
        self._settled = True
        # A topic of the same name but another id is another topic.
        gone = [tp for tp, topic_id in self._owned.items() if target.get(tp) != topic_id]
        try:
            error = self._let_go(gone)
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
