"""Transactions by their transactional ids: begin, add partitions, offsets, end.

Kafka ties a transaction to no connection: whoever knows its id, producer id and epoch may end it.
So tasks write in transactions that the driver ends. Only requests of the first protocol version of
transactions are used (Produce up to 11, EndTxn up to 4), which all brokers from 2.1 to 4.x answer
alike, and each may be repeated until its answer is known (kafka-protocol.md §3.3,
TransactionCoordinator.scala).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sparkkafka.client.cluster import Cluster
from sparkkafka.client.coordinator import FOR_GROUP, FOR_TRANSACTION, call_coordinators
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.groups import StoredOffset, offsets_in_parts
from sparkkafka.client.metadata import TopicPartition
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, is_retriable
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


class Transaction(NamedTuple):
    """What it takes to write in a transaction and to end it, from any process."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


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

_EXPLANATIONS: Mapping[int, str] = {
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "this user may not use the transactional id: grant WRITE on it (a prefixed ACL on "
        "transactionalIdPrefix covers all ids of a query)"
    ),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (
        "this user may not use the group in which decisions are kept: grant READ on it"
    ),
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: (
        "kafka.transaction.timeout.ms is above the broker's transaction.max.timeout.ms: set it "
        "lower. Left out, it is the broker's maximum, or 15 minutes if this user may not see that "
        "(DESCRIBE_CONFIGS on the cluster)"
    ),
    **dict.fromkeys(
        FENCED,
        "another writer has taken over this transactional id, or the transaction was open for "
        "longer than kafka.transaction.timeout.ms and the broker ended it",
    ),
}

_OF_OFFSETS: Mapping[int, str] = {
    **_EXPLANATIONS,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "decisions are kept beside offsets of the topics that are written: grant READ on the topic "
        "as well, WRITE alone is not enough for this"
    ),
}


def explained(error: KafkaError, words: Mapping[int, str] = _EXPLANATIONS) -> KafkaError:
    """The same error in words for those who run a query."""
    if isinstance(error, BrokerError) and error.code in words:
        return BrokerError(error.code, error.where, words[error.code])
    return error


def init_transactions(
    cluster: Cluster, transactional_ids: Iterable[str], timeout_ms: int, deadline: Deadline
) -> dict[str, Transaction | KafkaError]:
    """Take over transactional ids: what is open under them is aborted, and whoever wrote in it can
    neither go on nor end it (InitProducerId).

    `timeout_ms` is how long a transaction may stay open. The value is the new owner's transaction,
    which begins with its first partition, or the error that is final for this id.
    """
    answers = call_coordinators(
        cluster,
        {
            key: InitProducerIdRequest(transactional_id=key, transaction_timeout_ms=timeout_ms)
            for key in transactional_ids
        },
        FOR_TRANSACTION,
        deadline,
        "taking over transactional ids",
    )
    return {
        key: explained(answer)
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
        key: explained(answer) if isinstance(answer, KafkaError) else None
        for key, answer in answers.items()
    }


def add_partitions(
    cluster: Cluster,
    transaction: Transaction,
    partitions: Iterable[TopicPartition],
    deadline: Deadline,
) -> None:
    """Make partitions part of the transaction, before anything is written to them.

    Raises BrokerError (fenced, not authorised), KafkaTimeoutError (also if a topic stays unknown).
    """
    outcome = add_partitions_each(cluster, {transaction: partitions}, deadline)
    error = outcome[transaction.transactional_id]
    if error is not None:
        raise error


def add_partitions_each(
    cluster: Cluster,
    partitions: Mapping[Transaction, Iterable[TopicPartition]],
    deadline: Deadline,
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
    return {
        key: explained(answer) if isinstance(answer, KafkaError) else None
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
) -> None:
    """Make offsets of a group part of the transaction: they count once it is committed.

    Raises BrokerError (fenced, not authorised), KafkaTimeoutError (also if a topic stays unknown).
    """
    tid, pid, epoch = transaction
    _only(
        call_coordinators(
            cluster,
            {
                tid: AddOffsetsToTxnRequest(
                    transactional_id=tid, producer_id=pid, producer_epoch=epoch, group_id=group_id
                )
            },
            FOR_TRANSACTION,
            deadline,
            f"adding group {group_id!r} to a transaction",
        )
    )
    for part in offsets_in_parts(group_id, offsets):
        _only(
            call_coordinators(
                cluster,
                {group_id: _offsets_request(transaction, group_id, part)},
                FOR_GROUP,
                deadline,
                f"writing offsets of group {group_id!r}",
                code_of=_worst_offset_code,
            )
        )


def _offsets_request(
    transaction: Transaction, group_id: str, offsets: Mapping[TopicPartition, StoredOffset]
) -> TxnOffsetCommitRequest:
    topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
    for tp, stored in offsets.items():
        topics.setdefault(tp.topic, []).append(
            TxnOffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=stored.offset,
                committed_metadata=stored.metadata,
            )
        )
    return TxnOffsetCommitRequest(
        transactional_id=transaction.transactional_id,
        group_id=group_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[
            TxnOffsetCommitRequestTopic(name=name, partitions=rows) for name, rows in topics.items()
        ],
    )


def _worst_offset_code(response: Any) -> int:
    codes = {row.error_code for topic in response.topics for row in topic.partitions}
    return min(codes - {ErrorCode.NONE}, key=is_retriable, default=0)


def _only(outcome: Mapping[str, Any | KafkaError]) -> Any:
    """The one answer. Raises if it is an error."""
    (answer,) = outcome.values()
    if isinstance(answer, KafkaError):
        raise explained(answer, _OF_OFFSETS)
    return answer
