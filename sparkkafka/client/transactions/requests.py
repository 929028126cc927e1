"""Transactions by their transactional ids: begin, add partitions, offsets, end.

Kafka ties a transaction to no connection: whoever knows its id, producer id and epoch may end it.
So one process can write in a transaction that another ends. By default requests of the first
protocol version of transactions are used (Produce up to 11, EndTxn up to 4), which all brokers from
2.1 to 4.x answer alike, and each may be repeated until its answer is known (kafka-protocol.md §3.3,
TransactionCoordinator.scala).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from sparkkafka.client.cluster.cluster import UNKNOWN_TOPIC_GRACE_MS, Cluster
from sparkkafka.client.cluster.coordinator import FOR_GROUP, FOR_TRANSACTION, call_coordinators
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.committed_offsets import StoredOffset, offsets_in_parts
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import (
    BrokerError,
    CommitFailedError,
    EncodeError,
    ErrorCode,
    KafkaError,
    UnknownTopicError,
    UnsupportedVersionError,
    is_retriable,
)
from sparkkafka.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from sparkkafka.protocol.wire.releases import first_kafka

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1

MEMBER_VERSION = 3  # of TxnOffsetCommit (KIP-447)


class Transaction(NamedTuple):
    """What it takes to write in a transaction and to end it, from any process."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class GroupIdentity(Protocol):
    """Which member of a group offsets are committed for (GroupMetadata)."""

    @property
    def group_id(self) -> str: ...
    @property
    def generation_id(self) -> int: ...
    @property
    def member_id(self) -> str: ...
    @property
    def group_instance_id(self) -> str | None: ...


FENCED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)
"""Another writer has taken over the transactional id, or the broker ended the transaction because
it was open for longer than its timeout."""

GONE = FENCED | {ErrorCode.INVALID_TXN_STATE}
"""What EndTxn and the like say of a transaction that is not open any more."""

# {prefix} stands before names of settings that have one in Spark.
EXPLANATIONS: Mapping[int, str] = {
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "this user may not use the transactional id: grant WRITE on it"
    ),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: ("this user may not use the group: grant READ on it"),
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: (
        "{prefix}transaction.timeout.ms is above the broker's transaction.max.timeout.ms: set it "
        "lower"
    ),
    **dict.fromkeys(
        FENCED,
        "another writer has taken over this transactional id, or the transaction was open for "
        "longer than {prefix}transaction.timeout.ms and the broker ended it",
    ),
}

_OF_END: Mapping[int, str] = {
    **EXPLANATIONS,
    ErrorCode.INVALID_TXN_STATE: (
        "the transaction has ended otherwise: it was open for longer than transaction.timeout.ms "
        "and the broker aborted it, or another writer has taken over this transactional id"
    ),
}

_OF_OFFSETS: Mapping[int, str] = {
    **EXPLANATIONS,
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
        "the transaction, and go on from the committed offsets",
    ),
}


def explained(
    error: KafkaError, prefix: str, words: Mapping[int, str] = EXPLANATIONS
) -> KafkaError:
    """The same error in words for people; `prefix` is that of their settings."""
    if isinstance(error, BrokerError) and error.code in words:
        return BrokerError(error.code, error.where, words[error.code].format(prefix=prefix))
    return error


def init_transactions(
    cluster: Cluster,
    transactional_ids: Iterable[str],
    timeout_ms: int,
    deadline: Deadline,
    *,
    owner: Transaction | None = None,
    words: Mapping[int, str] = EXPLANATIONS,
) -> dict[str, Transaction | KafkaError]:
    """Take over transactional ids: what is open under them is aborted, and whoever wrote in it can
    neither go on nor end it (InitProducerId).

    `timeout_ms` is how long a transaction may stay open. The value is the new owner's transaction,
    which begins with its first partition, or the error that is final for this id. With an `owner`
    only that one gets the next epoch (KIP-360, Kafka 2.5). `words` explain error codes to people.
    """
    known = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH) if owner is None else owner[1:]
    answers = call_coordinators(
        cluster,
        {
            key: InitProducerIdRequest(
                transactional_id=key,
                transaction_timeout_ms=timeout_ms,
                producer_id=known[0],
                producer_epoch=known[1],
            )
            for key in transactional_ids
        },
        FOR_TRANSACTION,
        deadline,
        "taking over transactional ids",
    )
    return {
        key: explained(answer, cluster.options.prefix, words)
        if isinstance(answer, KafkaError)
        else Transaction(key, answer.producer_id, answer.producer_epoch)
        for key, answer in answers.items()
    }


def end_transactions(
    cluster: Cluster, transactions: Iterable[Transaction], *, commit: bool, deadline: Deadline
) -> dict[str, KafkaError | None]:
    """Commit, or abort, transactions. To do it again changes nothing.

    By transactional id: None if that is how it ended; a BrokerError with a code of `GONE` if it
    ended otherwise or has another owner; another error if that is not known.
    """
    answers = call_coordinators(
        cluster,
        {
            row.transactional_id: EndTxnRequest(
                transactional_id=row.transactional_id,
                producer_id=row.producer_id,
                producer_epoch=row.producer_epoch,
                committed=commit,
            )
            for row in transactions
        },
        FOR_TRANSACTION,
        deadline,
        "committing transactions" if commit else "aborting transactions",
    )
    return {
        key: explained(answer, cluster.options.prefix) if isinstance(answer, KafkaError) else None
        for key, answer in answers.items()
    }


def end_transaction(
    cluster: Cluster,
    transaction: Transaction,
    *,
    commit: bool,
    deadline: Deadline,
    version: int | None = None,
    on_retry: Callable[[KafkaError], None] = lambda error: None,
) -> Transaction:
    """Commit, or abort, a transaction, and return what the next one is written with.

    The same producer id and epoch, unless `version` is 5 or later (KIP-890). Raises BrokerError
    with a code of `GONE` if it ended otherwise or has another owner, KafkaTimeoutError if its end
    is not known. `on_retry` hears of failures that were retried.
    """
    tid, producer_id, producer_epoch = transaction
    answer = _only(
        call_coordinators(
            cluster,
            {
                tid: EndTxnRequest(
                    transactional_id=tid,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    committed=commit,
                )
            },
            FOR_TRANSACTION,
            deadline,
            "committing a transaction" if commit else "aborting a transaction",
            version=version,
            on_retry=on_retry,
        ),
        cluster.options.prefix,
        _OF_END,
    )
    if answer.producer_id == NO_PRODUCER_ID:
        return transaction
    return Transaction(tid, answer.producer_id, answer.producer_epoch)


def add_partitions(
    cluster: Cluster,
    transaction: Transaction,
    partitions: Iterable[TopicPartition],
    deadline: Deadline,
    words: Mapping[int, str] = EXPLANATIONS,
) -> None:
    """Make partitions part of the transaction, before anything is written to them.

    Raises BrokerError (fenced, not authorised), KafkaTimeoutError (also if a topic stays unknown).
    """
    outcome = add_partitions_each(cluster, {transaction: partitions}, deadline, words)
    error = outcome[transaction.transactional_id]
    if error is not None:
        raise error


def add_partitions_each(
    cluster: Cluster,
    partitions: Mapping[Transaction, Iterable[TopicPartition]],
    deadline: Deadline,
    words: Mapping[int, str] = EXPLANATIONS,
) -> dict[str, KafkaError | None]:
    """`add_partitions` for several transactions; the error of each by transactional id, or None.

    Of partitions that are part of it already, nothing changes: the answer then tells whether the
    transaction is still open and its writer still the owner.
    """
    answers = call_coordinators(
        cluster,
        {row.transactional_id: _add_request(row, rows) for row, rows in partitions.items()},
        FOR_TRANSACTION,
        deadline,
        "adding partitions to a transaction",
        code_of=_worst_add_code,
    )
    prefix = cluster.options.prefix
    return {
        key: explained(answer, prefix, words) if isinstance(answer, KafkaError) else None
        for key, answer in answers.items()
    }


def _add_request(
    transaction: Transaction, partitions: Iterable[TopicPartition]
) -> AddPartitionsToTxnRequest:
    topics: dict[str, list[int]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transaction.transactional_id,
        v3_and_below_producer_id=transaction.producer_id,
        v3_and_below_producer_epoch=transaction.producer_epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=name, partitions=rows) for name, rows in topics.items()
        ],
    )


def _worst_add_code(response: Any) -> int:
    codes = {
        row.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for row in topic.results_by_partition
    }
    # If one partition is refused, the others come back as not attempted.
    codes -= {ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED}
    return min(codes, key=is_retriable, default=0)


def commit_offsets_in(
    cluster: Cluster,
    transaction: Transaction,
    group_id: str,
    offsets: Mapping[TopicPartition, StoredOffset],
    deadline: Deadline,
    *,
    member: GroupIdentity | None = None,
    version: int | None = None,
    words: Mapping[int, str] | None = None,
) -> None:
    """Make offsets of a group part of the transaction: they count once it is committed.

    With a `member` (KIP-447) the group's coordinator checks that it is still in the group.
    `version` 5 or later of TxnOffsetCommit makes the group part of the transaction by itself.

    Raises BrokerError (fenced, not authorised), KafkaTimeoutError; for a topic or partition that
    stays unknown KafkaTimeoutError, or with a `member` UnknownTopicError before. With a `member`
    CommitFailedError if it is not in the group, UnsupportedVersionError before Kafka 2.5, whose
    coordinators cannot check that (Java's client refuses as well: TxnOffsetCommitRequest.build).
    """
    tid, pid, epoch = transaction
    if member is not None and getattr(member, "is_outside", False):
        where = f"TxnOffsetCommit of group {group_id!r}"
        code = ErrorCode.UNKNOWN_MEMBER_ID
        raise CommitFailedError(code, where, _OF_OFFSETS[code])
    words = words or _OF_OFFSETS
    if version is None:
        _only(
            call_coordinators(
                cluster,
                {
                    tid: AddOffsetsToTxnRequest(
                        transactional_id=tid,
                        producer_id=pid,
                        producer_epoch=epoch,
                        group_id=group_id,
                    )
                },
                FOR_TRANSACTION,
                deadline,
                f"adding group {group_id!r} to a transaction",
            ),
            cluster.options.prefix,
            words,
        )
    # Brokers learn of a new topic one by one. Without a member the topics are known to be there.
    grace = deadline if member is None else deadline.sooner(UNKNOWN_TOPIC_GRACE_MS)

    def code_of(response: Any) -> int:
        unknown = _unknown_places(response)
        if unknown and grace.expired and not deadline.expired:
            where = f"TxnOffsetCommit of group {group_id!r} for {', '.join(unknown[:5])}"
            raise UnknownTopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, where)
        return _worst_offset_code(response)

    for part in offsets_in_parts(group_id, offsets):
        answers = call_coordinators(
            cluster,
            {group_id: _offsets_request(transaction, group_id, part, member)},
            FOR_GROUP,
            deadline,
            f"writing offsets of group {group_id!r}",
            code_of=code_of,
            version=version,
        )
        (failure,) = answers.values()
        if isinstance(failure, EncodeError):  # the version has no fields for the member
            kafka = first_kafka(TxnOffsetCommitRequest.API_NAME, MEMBER_VERSION)
            raise UnsupportedVersionError(
                f"offsets of a member of group {group_id!r} in a transaction need {kafka} or later "
                "(KIP-447): older brokers cannot check that it is still in the group, and nothing "
                "was committed. If each input partition has a transactional.id of its own, give "
                f"the group's name, {group_id!r}, in place of the member"
            ) from failure
        _only(answers, cluster.options.prefix, words)


def _offsets_request(
    transaction: Transaction,
    group_id: str,
    offsets: Mapping[TopicPartition, StoredOffset],
    member: GroupIdentity | None,
) -> TxnOffsetCommitRequest:
    topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
    for tp, stored in offsets.items():
        topics.setdefault(tp.topic, []).append(
            TxnOffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=stored.offset,
                committed_leader_epoch=stored.leader_epoch,
                committed_metadata=stored.metadata,
            )
        )
    request = TxnOffsetCommitRequest(
        transactional_id=transaction.transactional_id,
        group_id=group_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[
            TxnOffsetCommitRequestTopic(name=name, partitions=rows) for name, rows in topics.items()
        ],
    )
    if member is not None:
        request.generation_id = member.generation_id
        request.member_id = member.member_id
        request.group_instance_id = member.group_instance_id
    return request


def _unknown_places(response: Any) -> list[str]:
    return [
        str(TopicPartition(topic.name, row.partition_index))
        for topic in response.topics
        for row in topic.partitions
        if row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ]


def _worst_offset_code(response: Any) -> int:
    codes = {row.error_code for topic in response.topics for row in topic.partitions}
    return min(codes - {ErrorCode.NONE}, key=is_retriable, default=0)


def _only(outcome: Mapping[str, Any | KafkaError], prefix: str, words: Mapping[int, str]) -> Any:
    """The one answer. Raises if it is an error."""
    (answer,) = outcome.values()
    if isinstance(answer, KafkaError):
        raise explained(answer, prefix, words)
    return answer
