"""Commits of a consumer that is in a group, of either protocol: waited for, or in the background.

Unlike `committed_offsets.commit_stored`, `commit_as_member` says who commits, and the coordinator
refuses who is no longer a member: the partitions may be another's by then.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.request_driver import call_all
from sparkkafka.client.deadline import CloseSignal, Deadline
from sparkkafka.client.group.committed_offsets import (
    INSTANCE_ID_VERSION,
    CommitOffsets,
    coordinator_of,
)
from sparkkafka.client.group.membership import Commit, GroupMetadata, Offsets, member_hint
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition, some_partitions
from sparkkafka.errors import (
    BrokerError,
    CommitFailedError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
)
from sparkkafka.protocol.messages import OffsetCommitRequest

log = logging.getLogger(__name__)

CommitCallback: TypeAlias = Callable[
    [dict[TopicPartition, OffsetAndMetadata], Exception | None], object
]

CUT_S = 1.0
"""The longest that a thread may take to end."""

EPOCH_VERSION = 9  # for members under KIP-848

_MOVED_ON = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)

_HINTS: Mapping[int, str] = {
    ErrorCode.REBALANCE_IN_PROGRESS: (
        "the group is rebalancing: call poll until that is over, then commit what is still this "
        "consumer's"
    ),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "this user may not commit offsets of the topic: grant READ on it"
    ),
    ErrorCode.OFFSET_METADATA_TOO_LARGE: (
        "the text beside an offset is longer than the brokers' offset.metadata.max.bytes"
    ),
}

NO_LONGER_A_MEMBER = (
    "this consumer is no longer a member of that generation, its partitions may be another's: the "
    "time between two polls was longer than max.poll.interval.ms, or the brokers heard nothing for "
    "session.timeout.ms. Call poll to join again. To avoid it, raise max.poll.interval.ms or lower "
    "max.poll.records"
)


def commit_failed(code: int, group_id: str) -> CommitFailedError:
    """The group has moved on, as `code` says; with what to do about it."""
    return _moved_on(code, f"OffsetCommit of group {group_id!r}")


def _moved_on(code: int, where: str) -> CommitFailedError:
    return CommitFailedError(code, where, _hint(code) or NO_LONGER_A_MEMBER)


def _hint(code: int) -> str | None:
    return _HINTS.get(code) or member_hint(code)


class _StaleEpoch(BrokerError):
    """The member's epoch has just changed; the next request has the new one (Java's
    CommitRequestManager)."""

    _retriable = True


class _CommitAsMember(CommitOffsets):
    """`identity` is asked for each request."""

    def __init__(
        self, identity: Callable[[], GroupMetadata], offsets: Offsets, least_version: int
    ) -> None:
        super().__init__(identity().group_id, offsets)
        self._identity = identity
        self._least_version = least_version

    def build(self, items: Sequence[TopicPartition], version: int) -> OffsetCommitRequest:
        request = super().build(items, version)
        identity = self._identity()
        request.generation_id_or_member_epoch = identity.generation_id
        request.member_id = identity.member_id
        if version >= INSTANCE_ID_VERSION:
            request.group_instance_id = identity.group_instance_id
        return request

    def lacking(self, item: TopicPartition, version: int) -> str | None:
        if version >= self._least_version:
            return None
        return (
            f"there is no version {self._least_version} of OffsetCommit, which "
            "group.protocol=consumer needs: set group.protocol=classic"
        )

    def explain(self, item: TopicPartition, error: BrokerError) -> KafkaError:
        code, where = error.code, error.where
        if code in _MOVED_ON:
            return _moved_on(code, where)
        if code == ErrorCode.STALE_MEMBER_EPOCH:
            return _StaleEpoch(code, where)
        return BrokerError(code, where, _hint(code))


def commit_as_member(
    cluster: Cluster,
    identity: Callable[[], GroupMetadata],
    offsets: Offsets,
    deadline: Deadline,
    *,
    least_version: int = 0,
) -> None:
    """Commit as whom `identity` says, which is asked for each request.

    Raises CommitFailedError when the group has moved on, BrokerError (naming group and partitions)
    for other refusals, KafkaTimeoutError with the last failure. A part may have been committed.
    """
    handler = _CommitAsMember(identity, offsets, least_version)
    group_id = handler.group_id
    lookup = coordinator_of(cluster, group_id)
    what = f"committing offsets of group {group_id!r}"
    try:
        call_all(cluster, offsets, handler, lookup, deadline, what)
    except KafkaTimeoutError as late:
        if isinstance(late.__cause__, _StaleEpoch):
            raise commit_failed(late.__cause__.code, group_id) from late.__cause__
        raise


class _Job(NamedTuple):
    commit: Commit
    offsets: Offsets
    deadline: Deadline
    callback: CommitCallback | None


class AsyncCommits:
    """Commits of one consumer that nobody waits for: in a thread, in the order of the calls.

    So an earlier one never overtakes a later one, though each is tried again until its deadline
    (Java tries once, since its commits are under way together). The thread lives while there is
    something to commit, and calls `done` after each commit. Callbacks run where the consumer is
    used: in poll, commit and close, as in Java.
    """

    def __init__(self, cluster: Cluster, done: Callable[[], None]) -> None:
        """`cluster` is the consumer's: its metadata is shared, its connections are not."""
        self._close_signal = CloseSignal()
        self._cluster = cluster.for_thread(self._close_signal)
        self._tell = done
        # Taken by itself: Ctrl-C inside Condition.__enter__, which is Python, could leave it taken.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._jobs: deque[_Job] = deque()  # the first one is under way
        self._ended: deque[tuple[_Job, Exception | None]] = deque()
        self._runs = False

    def submit(
        self, commit: Commit, offsets: Offsets, deadline: Deadline, callback: CommitCallback | None
    ) -> None:
        """Commit when all that was submitted before has come to its end."""
        with self._lock:
            self._jobs.append(_Job(commit, offsets, deadline, callback))
            if self._runs:
                return
            self._runs = True
        threading.Thread(target=self._run, name="kafka-commits", daemon=True).start()

    def wait(self, deadline: Deadline) -> bool:
        """Whether all have come to their end, within the deadline."""
        if not self._runs:
            return True
        with self._lock:
            return self._changed.wait_for(lambda: not self._runs, deadline.remaining_s())

    def run_callbacks(self) -> None:
        """Of those that have ended, in their order. Raises what a callback raises; the next call
        goes on after it."""
        while self._ended:
            job, error = self._ended.popleft()
            if job.callback is not None:
                job.callback(dict(job.offsets), error)
            elif error is not None:
                log.warning(
                    "the asynchronous commit of %s failed: %s", some_partitions(job.offsets), error
                )

    def close(self) -> None:
        """Give up what is not committed yet; `run_callbacks` passes the error to its callbacks."""
        self._close_signal.close_in(0)
        if not self.wait(Deadline(CUT_S * 100)):
            self._close_signal.cut_sockets()
        if self.wait(Deadline(CUT_S * 1000)):
            self._cluster.close()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._runs = False
                    self._changed.notify_all()
                    return
                job = self._jobs[0]
            error: Exception | None = None
            try:
                job.commit(self._cluster, job.offsets, job.deadline.until(self._close_signal))
            except KafkaError as failure:
                error = failure
            except Exception as bug:
                log.exception("an asynchronous commit failed")
                error = bug
            with self._lock:
                self._jobs.popleft()
                self._ended.append((job, error))
            self._tell()
