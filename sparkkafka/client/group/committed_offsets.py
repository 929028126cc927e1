"""Offsets of a consumer group, read and committed without being a member of it.

Kafka keeps offsets for any group name. A group without members takes commits from anybody
(generation -1, member ""); one with members takes them from those alone. The coordinator is looked
up by each call, and again after each failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from sparkkafka.client.cluster.cluster import UNKNOWN_TOPIC_GRACE_MS, Cluster, throttle
from sparkkafka.client.cluster.coordinator import FOR_GROUP, find_coordinator
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition
from sparkkafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaError,
    UnknownTopicError,
    is_retriable,
    some,
)
from sparkkafka.protocol.messages import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

NO_OFFSET = -1
NO_GENERATION = -1
NO_MEMBER = ""
ALL_PARTITIONS = None

REQUIRE_STABLE_VERSION = 7
GROUPS_VERSION = 8  # the layout of OffsetFetch changed

# A broker writes the offsets of one request as one batch, and refuses a batch above its
# message.max.bytes (1 MB), 4.x without saying why. So many offsets go in several requests.
COMMIT_BYTES = 512_000
# Of one offset's record, beside the names: lengths, versions, two numbers and two timestamps.
RECORD_OVERHEAD_BYTES = 80

# What a coordinator says to a commit from outside of a group that has members.
_MEMBERS_ONLY = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)

_MESSAGES: Mapping[int, str] = {
    **dict.fromkeys(
        _MEMBERS_ONLY,
        "the group has active consumers, and only they may commit to it: use another group id, "
        "or stop them first",
    ),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (
        "this user may not use the group: grant READ on it (DESCRIBE is enough to look up offsets)"
    ),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "this user may not use the topic's offsets: grant READ on the topic (DESCRIBE is enough "
        "to look them up)"
    ),
}


class StoredOffset(NamedTuple):
    """An offset of a group with the text that is kept beside it (at most 4096 characters), and the
    leader's epoch at the record before it, -1 if that is not known."""

    offset: int
    metadata: str
    leader_epoch: int = -1


def fetch_stored(
    cluster: Cluster, group_id: str, *, deadline: Deadline | None = None
) -> dict[TopicPartition, StoredOffset]:
    """All offsets of a group, with the text beside each, of topics that this user may see.

    Waits and raises as `fetch_committed`.
    """
    coordinator = _Coordinator(
        cluster, group_id, deadline, f"looking up the offsets of group {group_id!r}"
    )
    while True:
        response = coordinator.call(
            OffsetFetchRequest, partial(_fetch_request, group_id, ALL_PARTITIONS)
        )
        if response is None:
            continue
        group = response.groups[0] if response.groups else response
        rows = {
            TopicPartition(topic.name, row.partition_index): row
            for topic in group.topics
            for row in topic.partitions
        }
        errors = {tp: row.error_code for tp, row in rows.items() if row.error_code}
        if group.error_code:
            coordinator.fail("OffsetFetch", group.error_code, ())
        elif errors:
            coordinator.judge("OffsetFetch", errors, errors)
        else:
            return {
                tp: StoredOffset(row.committed_offset, row.metadata or "")
                for tp, row in rows.items()
                if row.committed_offset != NO_OFFSET
            }


def fetch_committed(
    cluster: Cluster,
    group_id: str,
    partitions: Iterable[TopicPartition],
    *,
    deadline: Deadline | None = None,
) -> dict[TopicPartition, int]:
    """The group's committed offsets; partitions without one are left out.

    Offsets that an open transaction is about to change are waited for (Kafka 2.5+). Raises
    BrokerError naming group and partitions, KafkaTimeoutError (with the last failure).
    """
    found = fetch_committed_stored(cluster, group_id, partitions, deadline=deadline)
    return {tp: row.offset for tp, row in found.items()}


def fetch_committed_stored(
    cluster: Cluster,
    group_id: str,
    partitions: Iterable[TopicPartition],
    *,
    deadline: Deadline | None = None,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """`fetch_committed` with what is kept beside each offset."""
    pending = dict.fromkeys(partitions)
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    coordinator = _Coordinator(
        cluster, group_id, deadline, f"looking up the offsets of group {group_id!r}"
    )
    while pending:
        response = coordinator.call(
            OffsetFetchRequest, partial(_fetch_request, group_id, list(pending))
        )
        if response is None:
            continue
        group = response.groups[0] if response.groups else response
        errors: dict[TopicPartition, int] = {}
        if group.error_code:
            errors = dict.fromkeys(pending, group.error_code)
        else:
            for tp, row in _rows(group, pending):
                if row.error_code:
                    errors[tp] = row.error_code
                    continue
                del pending[tp]
                if row.committed_offset != NO_OFFSET:
                    epoch = row.committed_leader_epoch
                    found[tp] = OffsetAndMetadata(
                        row.committed_offset, row.metadata or "", epoch if epoch >= 0 else None
                    )
        coordinator.judge("OffsetFetch", errors, pending)
    return found


def commit_offsets(
    cluster: Cluster,
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    *,
    metadata: str = "",
    deadline: Deadline | None = None,
) -> None:
    """`commit_stored` with the same text beside all offsets."""
    stored = {tp: OffsetAndMetadata(offset, metadata) for tp, offset in offsets.items()}
    commit_stored(cluster, group_id, stored, deadline=deadline)


def commit_stored(
    cluster: Cluster,
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    deadline: Deadline | None = None,
) -> None:
    """Commit offsets (the next ones to read) of a group that has no members at the moment.

    Raises BrokerError, naming group and partitions, if the group has members or the broker
    refuses for another reason; KafkaTimeoutError (with the last failure). In both cases a part
    may have been committed.
    """
    coordinator = _Coordinator(
        cluster, group_id, deadline, f"committing offsets of group {group_id!r}"
    )
    for part in offsets_in_parts(group_id, offsets):
        pending = dict(part)
        while pending:
            response = coordinator.call(
                OffsetCommitRequest, partial(_commit_request, group_id, pending)
            )
            if response is None:
                continue
            errors = {}
            for tp, row in _rows(response, pending):
                if row.error_code:
                    errors[tp] = row.error_code
                else:
                    del pending[tp]
            coordinator.judge("OffsetCommit", errors, pending)


class _Coordinator:
    """The coordinator of a group, for the requests of one call; found anew after failures."""

    def __init__(
        self, cluster: Cluster, group_id: str, deadline: Deadline | None, what: str
    ) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._deadline = deadline or cluster.deadline()
        self._retry = cluster.retry(self._deadline, what)
        # Brokers learn of a new topic one by one.
        self._grace = self._deadline.sooner(UNKNOWN_TOPIC_GRACE_MS)
        self._node_id: int | None = None

    def call(self, request_type: Any, request_of: Callable[[int], Any]) -> Any:
        """One attempt; None after a failure that may pass, which has been waited for."""
        cluster = self._cluster
        try:
            if self._node_id is None:
                self._node_id = find_coordinator(cluster, self._group_id, FOR_GROUP, self._deadline)
            attempt = self._deadline.sooner(cluster.options.request_timeout_ms)
            connection = cluster.connection(self._node_id, attempt)
            version = connection.choose(request_type)
            response = connection.call(request_of(version), attempt, version=version)
        except KafkaError as error:
            self._node_id = None
            if isinstance(error, BrokerError) and error.code in _MESSAGES:
                error = BrokerError(
                    error.code,
                    f"FindCoordinator of group {self._group_id!r}",
                    _MESSAGES[error.code],
                )
            self._retry.after(error)
            return None
        throttle(response, self._deadline)
        return response

    def judge(
        self,
        api: str,
        errors: Mapping[TopicPartition, int],
        pending: Mapping[TopicPartition, Any],
    ) -> None:
        """Raise for what does not pass, wait for what may; return at once if nothing is pending."""
        if not pending:
            return
        if not errors:
            raise BrokerError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                self._where(api, pending),
                "the broker's answer leaves them out",
            )
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        code = min(errors.values(), key=is_retriable)  # what does not pass is told first
        final = is_retriable(code) and unknown in errors.values() and self._grace.expired
        if final:
            code = unknown
        partitions = [tp for tp, other in errors.items() if other == code]
        if final:
            raise UnknownTopicError(code, self._where(api, partitions))
        self.fail(api, code, partitions)

    def fail(self, api: str, code: int, partitions: Iterable[TopicPartition]) -> None:
        """Raise if the error does not pass, else wait."""
        where = self._where(api, partitions)
        self._node_id = None
        self._retry.after(BrokerError(code, where, _MESSAGES.get(code)))

    def _where(self, api: str, partitions: Iterable[TopicPartition]) -> str:
        text = some(partitions)
        return f"{api} of group {self._group_id!r}" + (f" for {text}" if text else "")


def _rows(
    answer: Any, wanted: Mapping[TopicPartition, Any]
) -> Iterator[tuple[TopicPartition, Any]]:
    for topic in answer.topics:
        for row in topic.partitions:
            tp = TopicPartition(topic.name, row.partition_index)
            if tp in wanted:
                yield tp, row


def _fetch_request(
    group_id: str, partitions: Iterable[TopicPartition] | None, version: int
) -> OffsetFetchRequest:
    topics: dict[str, list[int]] = {}
    for tp in partitions or ():
        topics.setdefault(tp.topic, []).append(tp.partition)
    every = partitions is ALL_PARTITIONS
    if version >= GROUPS_VERSION:
        wanted = [
            OffsetFetchRequestTopics(name=name, partition_indexes=numbers)
            for name, numbers in topics.items()
        ]
        group = OffsetFetchRequestGroup(group_id=group_id, topics=None if every else wanted)
        return OffsetFetchRequest(groups=[group], require_stable=True)
    rows = [
        OffsetFetchRequestTopic(name=name, partition_indexes=numbers)
        for name, numbers in topics.items()
    ]
    return OffsetFetchRequest(
        group_id=group_id,
        topics=None if every else rows,
        require_stable=version >= REQUIRE_STABLE_VERSION,
    )


def _commit_request(
    group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], _version: int
) -> OffsetCommitRequest:
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for tp, row in offsets.items():
        topics.setdefault(tp.topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=row.offset,
                committed_leader_epoch=-1 if row.leader_epoch is None else row.leader_epoch,
                committed_metadata=row.metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=NO_GENERATION,
        member_id=NO_MEMBER,
        topics=[
            OffsetCommitRequestTopic(name=name, partitions=rows) for name, rows in topics.items()
        ],
    )


_Stored = TypeVar("_Stored", StoredOffset, OffsetAndMetadata)


def offsets_in_parts(
    group_id: str, offsets: Mapping[TopicPartition, _Stored]
) -> Iterator[dict[TopicPartition, _Stored]]:
    """The offsets in parts whose records a broker can write as one batch."""
    part: dict[TopicPartition, _Stored] = {}
    size_bytes = 0
    fixed_bytes = RECORD_OVERHEAD_BYTES + len(group_id.encode())
    for tp, stored in offsets.items():
        record_bytes = fixed_bytes + len(tp.topic) + len(stored.metadata.encode())
        if part and size_bytes + record_bytes > COMMIT_BYTES:
            yield part
            part, size_bytes = {}, 0
        part[tp] = stored
        size_bytes += record_bytes
    if part:
        yield part
