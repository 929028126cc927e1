"""A member of a group under the classic protocol (group.protocol=classic).

In a classic group the members themselves assign the partitions: all join (JoinGroup), the brokers
make one the leader, which says who gets what (SyncGroup). A `ClassicMemberThread` talks to the
coordinator; here is what a rebalance means for the consumer: what it has to let go of, and when.

Eager members let go of everything before they join again. Cooperative ones (KIP-429) keep what they
have, let go of what the new assignment takes away, and then join once more, so that it can be given
to others. Java's ConsumerCoordinator.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping

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
from sparkkafka.client.group.commits import commit_as_member, commit_failed
from sparkkafka.client.group.member_thread import (
    NO_GENERATION,
    POLL_MARK_MS,
    Commit,
    GroupMetadata,
    RebalanceHooks,
)
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition, some_partitions
from sparkkafka.config.client_settings import ConsumerOptions
from sparkkafka.errors import CommitFailedError, ErrorCode, KafkaError, OptionError

log = logging.getLogger(__name__)

_NOTHING: frozenset[TopicPartition] = frozenset()


class ClassicMember:
    """A member of a classic group. See `GroupMember` for its methods."""

    def __init__(self, options: ConsumerOptions, hooks: RebalanceHooks) -> None:
        if options.group_id is None:
            raise OptionError("a member of a group needs the group's name: set group.id")
        self._options = options
        self._group_id = options.group_id
        self._hooks = hooks
        self._assignors = GroupAssignors(options.partition_assignment_strategy)
        self._cluster = Cluster(options.client)  # for commits
        self._thread: ClassicMemberThread | None = None
        self._wanted: frozenset[str] | None = None
        self._joined_with: frozenset[str] = frozenset()
        self._owned = _NOTHING
        self._last_generation_id = NO_GENERATION
        self._unwanted = self._cluster.backoff()
        self._closed = False

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return self._owned

    @property
    def metadata(self) -> GroupMetadata:
        thread = self._thread
        if thread is None:
            return GroupMetadata(self._group_id, group_instance_id=self._options.group_instance_id)
        with thread.lock:
            generation, phase = thread.generation, thread.phase
        # During a rebalance it is the last generation that is over.
        known = generation.generation_id if phase is Phase.JOINED else self._last_generation_id
        return GroupMetadata(
            self._group_id, known, generation.member_id, self._options.group_instance_id
        )

    def subscribe(self, topics: frozenset[str]) -> None:
        self._wanted = frozenset(topics)

    def poll(self, deadline: Deadline) -> None:
        if self._wanted is None or self._closed:
            return
        thread = self._started_thread()
        while not self._closed:  # a hook may have done it
            thread.mark_polled()
            with thread.lock:
                lost, thread.lost = thread.lost, False
                failure = None if lost else thread.take_failure()
                joined = None
                if failure is None:
                    joined, thread.joined = thread.joined, None
            if lost:
                self._lose()
                failure = thread.take_failure()  # if the hook raises, the next poll says this
            if failure is not None:
                raise failure
            if self._closed:
                return
            if joined is not None:
                self._end_rebalance(joined, thread)
            elif not self._begin_rebalance(thread) and not self._wait(thread, deadline):
                return

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: Deadline
    ) -> None:
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

        def commit(
            cluster: Cluster,
            offsets: Mapping[TopicPartition, OffsetAndMetadata],
            deadline: Deadline,
        ) -> None:
            try:
                commit_as_member(cluster, lambda: asker, offsets, deadline)
            except CommitFailedError as error:
                if error.code == ErrorCode.REBALANCE_IN_PROGRESS:
                    thread.ask_to_rejoin("a commit was answered with REBALANCE_IN_PROGRESS")
                else:
                    thread.lose_membership(generation, error.code, "OffsetCommit")
                raise

        return commit

    def close(self, deadline: Deadline, *, leave: bool = True) -> None:
        self._closed = True
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop(deadline, leave=leave)
        self._cluster.close()
        self._owned = _NOTHING

    def _asker(self, generation: Generation) -> GroupMetadata:
        return GroupMetadata(
            self._group_id,
            generation.generation_id,
            generation.member_id,
            self._options.group_instance_id,
        )

    def _started_thread(self) -> ClassicMemberThread:
        if self._thread is None:
            self._thread = ClassicMemberThread(self._options, self._group_id, self._assignors)
            weakref.finalize(self, self._thread.let_go).atexit = False
            self._thread.start()
        return self._thread

    def _wait(self, thread: ClassicMemberThread, deadline: Deadline) -> bool:
        """Wait for a change while a rebalance is in progress; returns whether time is left."""
        with thread.lock:
            if thread.phase not in IN_ROUND and thread.joined is None and thread.failure is None:
                return False
            if deadline.expired:
                return False
            if thread.phase in IN_ROUND and thread.failure is None:
                thread.changed.wait(min(deadline.remaining_s(), POLL_MARK_MS / 1000))
        return True

    # --- rebalances ------------------------------------------------------------------------------

    def _lose(self) -> None:
        self._last_generation_id = NO_GENERATION
        lost, self._owned = self._owned, _NOTHING
        if lost:
            log.info(
                "group %s: lost %s, which may be others' by now",
                self._group_id,
                some_partitions(lost),
            )
            self._hooks.after_lost(lost)

    def _begin_rebalance(self, thread: ClassicMemberThread) -> bool:
        """Join if due and no rebalance is in progress; returns whether anything was done."""
        wanted = self._wanted or frozenset()
        with thread.lock:
            if thread.lost or thread.phase in IN_ROUND:
                return thread.lost
            reason = thread.rejoin_reason
            if thread.phase is Phase.JOINED and reason is None and wanted == self._joined_with:
                return False
        if reason is None:
            reason = "first time" if thread.phase is Phase.OUTSIDE else "the subscription changed"
        cooperative = self._assignors.cooperative
        gone = {tp for tp in self._owned if tp.topic not in wanted}
        error = self._let_go(frozenset(gone) if cooperative else self._owned)
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
            gone = self._owned - assigned
            if gone:  # first: Ctrl-C in a hook must not leave what is new to nobody
                thread.ask_to_rejoin("partitions were let go of, which others can have now")
            error = self._let_go(gone)
            if self._closed:  # the hook did it: nobody is left who could own anything
                if error is not None:
                    raise error
                return
        new = assigned - self._owned
        self._owned = assigned
        log.info(
            "group %s: generation %d, assigned %s (new: %s)",
            self._group_id,
            generation.generation_id,
            some_partitions(assigned),
            some_partitions(new),
        )
        try:
            self._hooks.after_assign(new, assigned)
        except Exception as second:
            raise (error or second) from None
        if error is not None:
            raise error

    def _let_go(self, partitions: frozenset[TopicPartition]) -> Exception | None:
        """Call `before_revoke`; the partitions are gone even if that fails, as in Java."""
        if not partitions:
            return None
        log.info("group %s: letting go of %s", self._group_id, some_partitions(partitions))
        try:
            self._hooks.before_revoke(partitions)
        except Exception as error:
            return error
        finally:
            self._owned -= partitions
        return None
