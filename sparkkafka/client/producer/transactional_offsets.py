"""Offsets of a group as part of a transaction, with which they are committed or dropped.

This module is separate from `transactions` since only these requests need the messages of groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.request_driver import FOR_TRANSACTION, ToCoordinator, call_all
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.committed_offsets import (
    CommitHandler,
    ToCoordinatorOfReader,
    TopicIds,
)
from sparkkafka.client.producer.transactions import (
    BUSY_BACKOFF_MS,
    HINTS,
    RequestEach,
    Transaction,
    with_hint,
)
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition
from sparkkafka.errors import BrokerError, CommitFailedError, ErrorCode, KafkaError
from sparkkafka.protocol.messages import (
    AddOffsetsToTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

if TYPE_CHECKING:
    from sparkkafka.client.group.membership import GroupMetadata

MEMBER_VERSION = 3  # TxnOffsetCommit has the member from this version on (KIP-447)

_OFFSET_HINTS: Mapping[int, str] = {
    **HINTS,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "offsets of a topic may be committed only with READ on the topic: grant it"
    ),
    **dict.fromkeys(
        (
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.FENCED_INSTANCE_ID,
            ErrorCode.STALE_MEMBER_EPOCH,
        ),
        "the consumer is not in the group any more, or a rebalance has taken its partitions: abort "
        "the transaction, and continue from the committed offsets",
    ),
}


class _CommitOffsetsInTransaction(CommitHandler):
    """Commits offsets of a group in a transaction; `member` None: for no member of the group.
    `explain` returns the error to raise for one of a broker."""

    request_type = TxnOffsetCommitRequest
    topic_id_version = 6
    backoff_ms = BUSY_BACKOFF_MS

    def __init__(
        self,
        transaction: Transaction,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        member: GroupMetadata | None,
        topic_ids: TopicIds,
        explain: Callable[[BrokerError], KafkaError],
    ) -> None:
        super().__init__(group_id, offsets, topic_ids)
        self._transaction = transaction
        self._member = member
        self._explain = explain
        if member is None:
            self.grace_ms = math.inf  # the topics are known to be there

    def build(self, items: Sequence[TopicPartition], version: int) -> TxnOffsetCommitRequest:
        transaction, member = self._transaction, self._member
        request = TxnOffsetCommitRequest(
            transactional_id=transaction.transactional_id,
            group_id=self.group_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            topics=self.request_topics(
                TxnOffsetCommitRequestTopic, TxnOffsetCommitRequestPartition, items
            ),
        )
        if member is not None:
            request.generation_id_or_member_epoch = member.generation_id
            request.member_id = member.member_id
            request.group_instance_id = member.group_instance_id
        return request

    def unsupported_reason(self, item: TopicPartition, version: int) -> str | None:
        member = self._member
        if version >= MEMBER_VERSION or member is None or not member.is_member:
            return None
        what = f"a commit for a member of group {self.group_id!r} in a transaction"
        return (
            f"{self.needs(what, MEMBER_VERSION)} (KIP-447): "
            "older brokers cannot check that it is still in the group, and nothing was committed. "
            "If each input partition has a transactional.id of its own, give the group's name, "
            f"{self.group_id!r}, in place of the member"
        )

    def explain(self, item: TopicPartition, error: BrokerError) -> KafkaError:
        return self._explain(error)


def commit_offsets_in(
    cluster: Cluster,
    transaction: Transaction,
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    deadline: Deadline,
    *,
    member: GroupMetadata | None = None,
    version: int | None = None,
    hints: Mapping[int, str] | None = None,
) -> None:
    """Make offsets of a group part of the transaction: they count once it is committed.

    With a `member` (KIP-447) the group's coordinator checks that it is still in the group, and its
    `topic_ids`, if it has them, that the topics were not recreated. `version` 5 or later of
    TxnOffsetCommit makes the group part of the transaction, without a request of its own; then 6
    (Kafka 4.4) is used if all topic ids are known.

    Raises BrokerError (fenced, not authorised), KafkaTimeoutError, UnknownTopicError for a
    recreated topic, and for a partition that stays unknown: to the deadline, or with a `member` for
    UNKNOWN_TOPIC_GRACE_MS.
    With a `member` CommitFailedError if it is not in the group, UnsupportedVersionError before
    Kafka 2.5, whose coordinators cannot check that (Java's client refuses as well:
    TxnOffsetCommitRequest.build).
    """
    tid = transaction.transactional_id
    if member is not None and member.is_outside:
        where = f"TxnOffsetCommit of group {group_id!r}"
        code = ErrorCode.UNKNOWN_MEMBER_ID
        raise CommitFailedError(code, where, _OFFSET_HINTS[code])
    hints = hints or _OFFSET_HINTS
    if version is None:
        request = AddOffsetsToTxnRequest(
            transactional_id=tid,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            group_id=group_id,
        )
        adding = RequestEach(cluster, {tid: request}, hints)
        lookup = ToCoordinator(cluster, FOR_TRANSACTION)
        what = f"adding group {group_id!r} to a transaction"
        call_all(cluster, [tid], adding, lookup, deadline, what)
    prefix = cluster.options.prefix
    topic_ids = {
        tp: topic_id
        for tp, topic_id in ((member and member.topic_ids) or {}).items()
        if tp in offsets
    }
    handler = _CommitOffsetsInTransaction(
        transaction,
        group_id,
        offsets,
        member,
        topic_ids,
        lambda error: with_hint(error, prefix, hints),
    )
    if version is not None and handler.has_all_ids:
        handler.highest_version = TxnOffsetCommitRequest.MAX_VERSION
    else:
        handler.version = version
    lookup = ToCoordinatorOfReader(cluster, handler, topic_ids)
    call_all(cluster, offsets, handler, lookup, deadline, f"writing offsets of group {group_id!r}")
