"""Commits of a member of a group, under both protocols: synchronous, or in the background.

Unlike `committed_offsets.commit_group_offsets`, `commit_as_member` sends the member's identity. The
coordinator refuses the commit of a former member, whose partitions other members may own.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from sparkkafka import errors
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.request_driver import call_all
from sparkkafka.client.deadline import CloseSignal, Deadline
from sparkkafka.client.group import committed_offsets
from sparkkafka.client.group.membership import MEMBER_HINTS, Commit, GroupMetadata, Offsets
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition, some_partitions
from sparkkafka.protocol.messages import OffsetCommitRequest

log = logging.getLogger(__name__)

CommitCallback: TypeAlias = Callable[
    [dict[TopicPartition, OffsetAndMetadata], Exception | None], object
]

EPOCH_VERSION = 9
"""From this version on OffsetCommit has the member epoch of KIP-848."""

_NOT_A_MEMBER_NOW = frozenset(
    {
        errors.ErrorCode.UNKNOWN_MEMBER_ID,
        errors.ErrorCode.ILLEGAL_GENERATION,
        errors.ErrorCode.REBALANCE_IN_PROGRESS,
        errors.ErrorCode.FENCED_MEMBER_EPOCH,
        errors.ErrorCode.FENCED_INSTANCE_ID,
    }
)

_HINTS: Mapping[int, str] = {
    **MEMBER_HINTS,
    errors.ErrorCode.REBALANCE_IN_PROGRESS: (
        "the group is rebalancing: call poll until that is over, then commit what is still this "
        "consumer's"
    ),
    errors.ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "this user may not commit offsets of the topic: grant READ on it"
    ),
    errors.ErrorCode.OFFSET_METADATA_TOO_LARGE: (
        "the text beside an offset is longer than the brokers' offset.metadata.max.bytes"
    ),
}

NO_LONGER_A_MEMBER = (
    "this consumer is no longer a member of that generation, its partitions may be another's: the "
    "time between two polls was longer than max.poll.interval.ms, or the brokers heard nothing for "
    "session.timeout.ms. Call poll to join again. To avoid it, raise max.poll.interval.ms or lower "
    "max.poll.records"
)


def commit_failed(code: int, group_id: str) -> errors.CommitFailedError:
    """Return the error of a commit by a client that is not a member, or whose group rebalances."""
    where = f"OffsetCommit of group {group_id!r}"
    return errors.CommitFailedError(code, where, _HINTS.get(code, NO_LONGER_A_MEMBER))


class _StaleEpoch(errors.BrokerError):
    """The member's epoch has just changed: a retry sends the new one (Java's
    CommitRequestManager)."""

    _retriable = True


class _CommitAsMember(committed_offsets.CommitOffsets):
    """Commits offsets as a member. `identity`, called for each request, returns the member as it is
    then. The request must have at least `min_version`.
    """

    def __init__(
        self,
        identity: Callable[[], GroupMetadata],
        offsets: Offsets,
        cluster: Cluster,
        topic_ids: committed_offsets.TopicIds,
        min_version: int,
    ) -> None:
        super().__init__(identity().group_id, offsets, cluster, topic_ids)
        self._identity = identity
        self._min_version = min_version

    def build(self, items: Sequence[TopicPartition], version: int) -> OffsetCommitRequest:
        request = super().build(items, version)
        identity = self._identity()
        request.generation_id_or_member_epoch = identity.generation_id
        request.member_id = identity.member_id
        if version >= committed_offsets.INSTANCE_ID_VERSION:
            request.group_instance_id = identity.group_instance_id
        return request

    def unsupported_reason(self, item: TopicPartition, version: int) -> str | None:
        if version >= self._min_version:
            return None
        return (
            f"there is no version {self._min_version} of OffsetCommit, which "
            "group.protocol=consumer needs: set group.protocol=classic"
        )

    def explain(self, item: TopicPartition, error: errors.BrokerError) -> errors.KafkaError:
        code, where = error.code, error.where
        if code in _NOT_A_MEMBER_NOW:
            return errors.CommitFailedError(code, where, _HINTS.get(code, NO_LONGER_A_MEMBER))
        if code == errors.ErrorCode.STALE_MEMBER_EPOCH:
            return _StaleEpoch(code, where)
        return errors.BrokerError(code, where, _HINTS.get(code))


def commit_as_member(
    cluster: Cluster,
    identity: Callable[[], GroupMetadata],
    offsets: Offsets,
    topic_ids: committed_offsets.TopicIds,
    deadline: Deadline,
    *,
    min_version: int = 0,
) -> None:
    """Commit as the member that `identity` returns, which is called for each request.

    `topic_ids` has the ids of the topics that were read, as far as they are known. Raises
    CommitFailedError if the coordinator does not have that member or its group rebalances,
    UnknownTopicError for a topic that does not exist or was recreated, BrokerError (naming group
    and partitions) for other refusals, KafkaTimeoutError with the last failure. Some of the offsets
    may have been committed.
    """
    handler = _CommitAsMember(identity, offsets, cluster, topic_ids, min_version)
    group_id = handler.group_id
    lookup = committed_offsets.ToCoordinatorOfReader(cluster, handler, topic_ids)
    what = f"committing offsets of group {group_id!r}"
    try:
        call_all(cluster, offsets, handler, lookup, deadline, what)
    except errors.KafkaTimeoutError as late:
        if isinstance(late.__cause__, _StaleEpoch):
            raise commit_failed(late.__cause__.code, group_id) from late.__cause__
        raise


class _AsyncCommit(NamedTuple):
    commit: Commit
    offsets: Offsets
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
        """The thread shares the metadata of `cluster`, the consumer's, not its connections."""
        self._close_signal = CloseSignal()
        self._cluster = cluster.for_thread(self._close_signal)
        self._wake = wake
        # Not the condition is taken but its lock: Ctrl-C inside Condition.__enter__, which is
        # Python code, could leave it locked.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._queue: deque[_AsyncCommit] = deque()  # the first one is in flight
        self._ended: deque[tuple[_AsyncCommit, Exception | None]] = deque()
        self._is_running = False

    def submit(
        self, commit: Commit, offsets: Offsets, deadline: Deadline, callback: CommitCallback | None
    ) -> None:
        """Commit after all that was submitted before."""
        with self._lock:
            self._queue.append(_AsyncCommit(commit, offsets, deadline, callback))
            if self._is_running:
                return
            self._is_running = True
        threading.Thread(target=self._commit_all, name="kafka-commits", daemon=True).start()

    def wait(self, deadline: Deadline) -> bool:
        """Wait until all have ended; return False if the deadline passes before."""
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
        """Give up what is not committed yet; `run_callbacks` passes the error to its callbacks."""
        self._close_signal.close_in(0)
        if not self.wait(Deadline(100)):
            self._close_signal.cut_sockets()
        if self.wait(Deadline(1_000)):
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
                queued.commit(
                    self._cluster,
                    queued.offsets,
                    queued.deadline.with_close_signal(self._close_signal),
                )
            except errors.KafkaError as failure:
                error = failure
            except Exception as bug:
                log.exception("an asynchronous commit failed")
                error = bug
            with self._lock:
                self._queue.popleft()
                self._ended.append((queued, error))
            self._wake()
