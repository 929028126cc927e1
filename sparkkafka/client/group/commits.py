"""Commits of a consumer that is in a group, of either protocol: waited for, or in the background.

Unlike `committed_offsets.commit_offsets`, `commit_as_member` says who commits, and the coordinator
refuses who is no longer a member: the partitions may be another's by then.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from sparkkafka.client.cluster.cluster import UNKNOWN_TOPIC_GRACE_MS, Cluster, throttle
from sparkkafka.client.cluster.coordinator import FOR_GROUP, forget_coordinators, known_coordinators
from sparkkafka.client.deadline import CloseSignal, Deadline, Retry
from sparkkafka.client.group.committed_offsets import StoredOffset, offsets_in_parts
from sparkkafka.client.group.membership import Commit, GroupMetadata, OffsetToCommit, group_error
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition, some_partitions
from sparkkafka.config.options import ClientOptions
from sparkkafka.errors import (
    BrokerError,
    CommitFailedError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    UnknownTopicError,
    UnsupportedVersionError,
    is_retriable,
)
from sparkkafka.protocol.messages import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

log = logging.getLogger(__name__)

Offsets: TypeAlias = Mapping[TopicPartition, OffsetAndMetadata]
CommitCallback: TypeAlias = Callable[
    [dict[TopicPartition, OffsetAndMetadata], Exception | None], object
]

CUT_S = 1.0
"""So long a thread that is told to end may take."""

INSTANCE_ID_VERSION = 7
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

_WORDS: Mapping[int, str] = {
    ErrorCode.REBALANCE_IN_PROGRESS: (
        "the group is rebalancing: call poll until that is over, then commit what is still this "
        "consumer's"
    ),
    ErrorCode.FENCED_INSTANCE_ID: (
        "another consumer has joined with the same group.instance.id and took this one's place: "
        "each consumer needs an id of its own"
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
    where = f"OffsetCommit of group {group_id!r}"
    return CommitFailedError(code, where, _WORDS.get(code, NO_LONGER_A_MEMBER))


def commit_as_member(
    cluster: Cluster,
    identity: Callable[[], GroupMetadata],
    offsets: Mapping[TopicPartition, OffsetToCommit],
    deadline: Deadline,
    *,
    least_version: int = 0,
) -> None:
    """Commit as whom `identity` says, which is asked for each request.

    Raises CommitFailedError when the group has moved on, BrokerError (naming group and partitions)
    for other refusals, KafkaTimeoutError with the last failure. A part may have been committed.
    """
    group_id = identity().group_id
    retry = cluster.retry(deadline, f"committing offsets of group {group_id!r}")
    grace = deadline.sooner(UNKNOWN_TOPIC_GRACE_MS)
    stored = {tp: StoredOffset(row.offset, row.metadata) for tp, row in offsets.items()}
    for part in offsets_in_parts(group_id, stored):
        pending = {tp: offsets[tp] for tp in part}
        while pending:
            asker = identity()
            try:
                response = _call(cluster, asker, pending, deadline, least_version)
                errors = _take_out(response, pending)
                if pending:
                    _judge(errors, pending, asker, grace)
            except KafkaError as error:
                if not isinstance(error, BrokerError) or error.code in _ELSEWHERE:
                    forget_coordinators(cluster, [group_id], FOR_GROUP)
                _wait(retry, error, group_id)


_ELSEWHERE = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
)


class _StaleEpoch(BrokerError):
    """The member's epoch has just changed; the next request has the new one (Java's
    CommitRequestManager)."""

    @property
    def retriable(self) -> bool:  # type: ignore[override]
        return True


def _wait(retry: Retry, error: KafkaError, group_id: str) -> None:
    try:
        retry.after(error)
    except KafkaTimeoutError:
        if isinstance(error, _StaleEpoch):
            raise commit_failed(error.code, group_id) from error
        raise


def _call(
    cluster: Cluster,
    asker: GroupMetadata,
    pending: Mapping[TopicPartition, OffsetToCommit],
    deadline: Deadline,
    least_version: int,
) -> OffsetCommitResponse:
    node_id = known_coordinators(cluster, [asker.group_id], FOR_GROUP, deadline)[asker.group_id]
    attempt = deadline.sooner(cluster.options.request_timeout_ms)
    connection = cluster.connection(node_id, attempt)
    version = connection.choose(OffsetCommitRequest)
    if version < least_version:
        raise UnsupportedVersionError(
            f"OffsetCommit: {connection} has no version {least_version}, which "
            "group.protocol=consumer needs: set group.protocol=classic"
        )
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for tp, row in pending.items():
        topics.setdefault(tp.topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=row.offset,
                committed_leader_epoch=-1 if row.leader_epoch is None else row.leader_epoch,
                committed_metadata=row.metadata,
            )
        )
    request = OffsetCommitRequest(
        group_id=asker.group_id,
        generation_id_or_member_epoch=asker.generation_id,
        member_id=asker.member_id,
        group_instance_id=asker.group_instance_id if version >= INSTANCE_ID_VERSION else None,
        topics=[
            OffsetCommitRequestTopic(name=name, partitions=rows) for name, rows in topics.items()
        ],
    )
    response: OffsetCommitResponse = connection.call(request, attempt, version=version)
    throttle(response, deadline)
    return response


def _take_out(
    response: OffsetCommitResponse, pending: dict[TopicPartition, OffsetToCommit]
) -> dict[TopicPartition, int]:
    """Take what is committed out of `pending`; returns the error codes of the others."""
    errors: dict[TopicPartition, int] = {}
    for topic in response.topics:
        for row in topic.partitions:
            tp = TopicPartition(topic.name, row.partition_index)
            if tp in pending and row.error_code:
                errors[tp] = row.error_code
            else:
                pending.pop(tp, None)
    return errors


def _judge(
    errors: Mapping[TopicPartition, int],
    pending: Mapping[TopicPartition, OffsetToCommit],
    asker: GroupMetadata,
    grace: Deadline,
) -> None:
    """Raise what the answer means: something final first, if there is any."""
    group_id = asker.group_id
    codes = sorted(set(errors.values()), key=is_retriable)
    if not codes:
        where = f"OffsetCommit of group {group_id!r} for {some_partitions(pending)}"
        message = "the broker's answer leaves them out"
        raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, where, message)
    moved_on = [code for code in codes if code in _MOVED_ON]
    if moved_on:
        raise commit_failed(moved_on[0], group_id)
    code = codes[0]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if is_retriable(code) and unknown in codes and grace.expired:
        code = unknown
    where = (
        f"OffsetCommit for {some_partitions(tp for tp, other in errors.items() if other == code)}"
    )
    if code == ErrorCode.STALE_MEMBER_EPOCH:
        raise _StaleEpoch(code, f"{where} of group {group_id!r}")
    if code == unknown and grace.expired:
        raise UnknownTopicError(code, f"{where} of group {group_id!r}")
    raise group_error(code, group_id, where, _WORDS.get(code))


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

    def __init__(self, options: ClientOptions, done: Callable[[], None]) -> None:
        self._close_signal = CloseSignal()
        self._cluster = Cluster(options, close_signal=self._close_signal)
        self._tell = done
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()  # the first one is under way
        self._ended: deque[tuple[_Job, Exception | None]] = deque()
        self._runs = False

    def submit(
        self, commit: Commit, offsets: Offsets, deadline: Deadline, callback: CommitCallback | None
    ) -> None:
        """Commit when all that was submitted before has come to its end."""
        with self._changed:
            self._jobs.append(_Job(commit, offsets, deadline, callback))
            if self._runs:
                return
            self._runs = True
        threading.Thread(target=self._run, name="kafka-commits", daemon=True).start()

    def wait(self, deadline: Deadline) -> bool:
        """Whether all have come to their end, within the deadline."""
        if not self._runs:
            return True
        with self._changed:
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
        """Give up what is not committed yet: its callbacks are told so, by `run_callbacks`."""
        self._close_signal.close_in(0)
        if not self.wait(Deadline(CUT_S * 100)):
            self._close_signal.cut_sockets()
        if self.wait(Deadline(CUT_S * 1000)):
            self._cluster.close()

    def _run(self) -> None:
        while True:
            with self._changed:
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
            with self._changed:
                self._jobs.popleft()
                self._ended.append((job, error))
            self._tell()
