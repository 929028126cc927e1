"""Offsets committed by a member of a group, of either protocol.

Unlike `groups.commit_offsets` it says who commits, and the coordinator refuses who is no longer a
member: the partitions may be another's by then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sparkkafka.client.cluster.cluster import UNKNOWN_TOPIC_GRACE_MS, Cluster, throttle
from sparkkafka.client.cluster.coordinator import FOR_GROUP, forget_coordinators, known_coordinators
from sparkkafka.client.deadline import Deadline, Retry
from sparkkafka.client.group.committed_offsets import StoredOffset, offsets_in_parts
from sparkkafka.client.group.membership import GroupMetadata, OffsetToCommit, group_error
from sparkkafka.client.values import TopicPartition, some_partitions
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
