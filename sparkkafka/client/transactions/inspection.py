"""What coordinators know of transactions (KIP-664): the state of some ids, and which are open.

Brokers before 3.0 do not have these requests; `UnsupportedVersionError` says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.coordinator import (
    FOR_TRANSACTION,
    forget_coordinators,
    known_coordinators,
)
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.transactions.requests import Transaction, explained
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError
from sparkkafka.protocol.messages import (
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)

ONGOING = "Ongoing"


class TransactionState(NamedTuple):
    """What a coordinator says of a transactional id. Times in milliseconds since 1970, UTC."""

    transaction: Transaction
    state: str
    started_ms: int
    timeout_ms: int
    partitions: tuple[TopicPartition, ...]

    @property
    def is_open(self) -> bool:
        return self.state == ONGOING


def describe_transactions(
    cluster: Cluster, transactional_ids: Iterable[str], deadline: Deadline
) -> dict[str, TransactionState]:
    """The state of each transactional id that its coordinator knows.

    Raises UnsupportedVersionError before Kafka 3.0, BrokerError (not authorised), or
    KafkaTimeoutError.
    """
    found: dict[str, TransactionState] = {}
    pending = set(transactional_ids)
    retry = cluster.retry(deadline, "asking for the state of transactions")
    while pending:
        failures: list[KafkaError] = []
        by_node: dict[int, list[str]] = {}
        try:
            coordinators = known_coordinators(cluster, sorted(pending), FOR_TRANSACTION, deadline)
        except KafkaError as error:
            raise explained(error, cluster.options.prefix) from error
        for key, node in coordinators.items():
            by_node.setdefault(node, []).append(key)
        requests = {
            node: DescribeTransactionsRequest(transactional_ids=keys)
            for node, keys in by_node.items()
        }
        for answer in cluster.call_each(requests, deadline, version=0).values():
            if isinstance(answer, KafkaError):
                failures.append(answer)
                continue
            for row in answer.transaction_states:
                where = f"DescribeTransactions of {row.transactional_id!r}"
                if row.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    pending.discard(row.transactional_id)
                elif row.error_code:
                    refusal = BrokerError(row.error_code, where)
                    failures.append(explained(refusal, cluster.options.prefix))
                else:
                    pending.discard(row.transactional_id)
                    found[row.transactional_id] = _state(row)
        if pending:
            forget_coordinators(cluster, pending, FOR_TRANSACTION)
            left_out = BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "DescribeTransactions")
            retry.after(_worst(failures) or left_out)
    return found


def _worst(failures: Iterable[KafkaError]) -> KafkaError | None:
    """One that does not pass, if there is any: waiting for the others would be in vain."""
    return min(failures, key=lambda error: error.retriable, default=None)


def _state(row: Any) -> TransactionState:
    return TransactionState(
        Transaction(row.transactional_id, row.producer_id, row.producer_epoch),
        row.transaction_state,
        row.transaction_start_time_ms,
        row.transaction_timeout_ms,
        tuple(
            TopicPartition(topic.topic, number)
            for topic in row.topics
            for number in topic.partitions
        ),
    )


def list_open_transactions(cluster: Cluster, deadline: Deadline) -> list[str]:
    """Transactional ids that have an open transaction, of all brokers, as far as this user may see
    them.

    Raises UnsupportedVersionError before Kafka 3.0, BrokerError, KafkaTimeoutError.
    """
    found: set[str] = set()
    retry = cluster.retry(deadline, "asking for open transactions")
    while True:
        failures: list[KafkaError] = []
        nodes = [broker.node_id for broker in cluster.describe(deadline)]
        requests = dict.fromkeys(nodes, ListTransactionsRequest(state_filters=[ONGOING]))
        for node, answer in cluster.call_each(requests, deadline).items():
            if isinstance(answer, KafkaError):
                failures.append(answer)
            elif answer.error_code:
                where = f"ListTransactions @ broker {node}"
                failures.append(BrokerError(answer.error_code, where))
            else:
                found.update(row.transactional_id for row in answer.transaction_states)
        failure = _worst(failures)
        if failure is None:
            return sorted(found)
        # All are asked again: the ids of a broker that failed may have gone to one that has
        # answered already.
        retry.after(failure)
