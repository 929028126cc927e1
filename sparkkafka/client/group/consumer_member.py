"""One member of a group whose partitions the brokers assign (group.protocol=consumer, KIP-848).

No rebalance stops the whole group: the coordinator tells each member what to revoke and
what to take over, and gives a partition away once its owner has said that it is free.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.commits import EPOCH_VERSION, commit_as_member, commit_failed
from sparkkafka.client.group.consumer_thread import ConsumerMemberThread, Partitions
from sparkkafka.client.group.member_thread import (
    NO_GENERATION,
    NO_MEMBER_ID,
    POLL_MARK_MS,
    Commit,
    GroupMetadata,
    RebalanceHooks,
)
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition, some_partitions
from sparkkafka.config.client_settings import ConsumerOptions
from sparkkafka.errors import CommitFailedError, ErrorCode, OptionError

log = logging.getLogger(__name__)


class ConsumerMember:
    """A member under KIP-848. See `GroupMember` for its methods."""

    def __init__(self, options: ConsumerOptions, hooks: RebalanceHooks) -> None:
        if options.group_id is None:
            raise OptionError("a member of a group needs the group's name: set group.id")
        self._options = options
        self._group_id = options.group_id
        self._hooks = hooks
        self._cluster = Cluster(options.client)  # for commits
        self._thread: ConsumerMemberThread | None = None
        self._wanted: frozenset[str] | None = None
        self._joined_with: frozenset[str] | None = None
        self._times_lost = 0
        self._owned: Partitions = {}
        self._settled = False
        """The member has reconciled a target since it joined."""
        self._closed = False

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._owned)

    @property
    def metadata(self) -> GroupMetadata:
        thread = self._thread
        epoch, member_id = NO_GENERATION, NO_MEMBER_ID
        if thread is not None:
            with thread.lock:
                epoch, member_id = thread.epoch or NO_GENERATION, thread.member_id
        return GroupMetadata(self._group_id, epoch, member_id, self._options.group_instance_id)

    def subscribe(self, topics: frozenset[str]) -> None:
        self._wanted = frozenset(topics)

    def poll(self, deadline: Deadline) -> None:
        if self._wanted is None or self._closed:
            return
        if self._thread is None:
            self._thread = ConsumerMemberThread(self._options, self._group_id)
            weakref.finalize(self, self._thread.let_go).atexit = False
            self._thread.start()
        thread = self._thread
        while not self._closed:  # a hook may have done it
            thread.mark_polled()
            with thread.lock:
                lost, thread.lost = thread.lost, False
                inside = thread.inside
                failure = None if lost else thread.take_failure()
            if lost:
                self._lose()
                failure = thread.take_failure()  # if the hook raises, the next poll says this
            if failure is not None:
                raise failure
            if self._closed:
                return
            if not inside:
                self._settled = False
                self._joined_with = self._wanted
                thread.join(self._wanted)
            elif self._wanted != self._joined_with:
                self._joined_with = self._wanted
                thread.subscribe(self._wanted)
            elif (target := thread.take_target()) is not None:
                self._reconcile(target, thread)
            elif not self._wait(thread, deadline):
                return

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: Deadline
    ) -> None:
        self._commit(self._cluster, self._asker, offsets, deadline)

    def committer(self) -> Commit:
        first, times_lost = self._asker(), self._times_lost

        def commit(
            cluster: Cluster,
            offsets: Mapping[TopicPartition, OffsetAndMetadata],
            deadline: Deadline,
        ) -> None:
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
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        deadline: Deadline,
    ) -> None:
        try:
            commit_as_member(cluster, asker, offsets, deadline, least_version=EPOCH_VERSION)
        except CommitFailedError:
            thread = self._thread
            if thread is not None:
                thread.hurry()
            raise

    def close(self, deadline: Deadline, *, leave: bool = True) -> None:
        self._closed = True
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop(deadline, leave=leave)
        self._cluster.close()
        self._owned = {}

    def _asker(self) -> GroupMetadata:
        metadata = self.metadata
        if metadata.generation_id == NO_GENERATION:
            raise commit_failed(ErrorCode.UNKNOWN_MEMBER_ID, self._group_id)
        return metadata

    def _wait(self, thread: ConsumerMemberThread, deadline: Deadline) -> bool:
        """Until something has changed, while the member joins: whether there is time left."""
        with thread.lock:
            if thread.failure is not None or thread.target is not None or thread.lost:
                return True
            if not thread.joining or deadline.expired:
                return False
            thread.changed.wait(min(deadline.remaining_s(), POLL_MARK_MS / 1000))
        return True

    def _lose(self) -> None:
        lost, self._owned = self.assignment, {}
        self._times_lost += 1
        self._settled = False
        if lost:
            log.info("group %s: lost %s", self._group_id, some_partitions(lost))
            self._hooks.after_lost(lost)

    def _reconcile(self, target: Partitions, thread: ConsumerMemberThread) -> None:
        """Revoke, assign, acknowledge: each also if a hook fails, as in Java."""
        if self._settled and target == self._owned:
            thread.acknowledge(target)  # the same target again, after a lost answer
            return
        self._settled = True
        errors: list[Exception] = []
        # A topic of the same name but another id is another topic.
        gone = frozenset(tp for tp, topic_id in self._owned.items() if target.get(tp) != topic_id)
        if gone:
            log.info("group %s: letting go of %s", self._group_id, some_partitions(gone))
            try:
                self._hooks.before_revoke(gone)
            except Exception as error:
                errors.append(error)
            except BaseException:  # Ctrl-C: nothing was assigned yet, the next poll does it
                thread.put_back(target)
                raise
            finally:
                self._owned = {tp: row for tp, row in self._owned.items() if tp not in gone}
            if self._closed:  # by the hook: it owns nothing any more
                if errors:
                    raise errors[0]
                return
        new = frozenset(target.keys() - self._owned.keys())
        self._owned = dict(target)
        log.info(
            "group %s: assigned %s (new: %s)",
            self._group_id,
            some_partitions(self._owned),
            some_partitions(new),
        )
        try:
            self._hooks.after_assign(new, self.assignment)
        except Exception as error:
            errors.append(error)
        finally:
            if not self._closed:
                thread.acknowledge(self._owned)
        if errors:
            raise errors[0]
