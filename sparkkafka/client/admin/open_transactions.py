"""What coordinators know of transactions (KIP-664): the state of some ids, and which are open.

Brokers before 3.0 do not have these requests; `UnsupportedVersionError` says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.request_driver import (
    FOR_TRANSACTION,
    ApiHandler,
    Row,
    ToBroker,
    ToCoordinator,
    call_all,
    call_once,
)
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.producer.transactions import HINTS, Transaction, with_hint
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError
from sparkkafka.protocol.messages import (
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)

ONGOING = "Ongoing"
OPEN_STATES = frozenset({ONGOING, "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})


class TransactionDescription(NamedTuple):
    """The state of a transactional id at its coordinator.

    `state` is Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort or Dead.
    `started_ms` counts from 1970 UTC, None if no transaction is open; `partitions` are those of
    the open transaction.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: frozenset[TopicPartition]
    coordinator: int | None

    @property
    def transaction(self) -> Transaction:
        """The ids that its producer sends with the records."""
        return Transaction(self.transactional_id, self.producer_id, self.producer_epoch)

    @property
    def is_open(self) -> bool:
        return self.state == ONGOING


class DescribeTransactions(ApiHandler[str, TransactionDescription]):
    request_type = DescribeTransactionsRequest
    named = "transactional id {!r}"
    acl = "DESCRIBE on transactional id {}"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def build(self, items: Sequence[str], version: int) -> DescribeTransactionsRequest:
        return DescribeTransactionsRequest(transactional_ids=list(items))

    def read(self, response: Any, items: Sequence[str]) -> Iterable[tuple[str, Row]]:
        return [
            (row.transactional_id, Row(row.error_code, self._description(row)))
            for row in response.transaction_states
        ]

    def _description(self, row: Any) -> TransactionDescription:
        started_ms = row.transaction_start_time_ms
        return TransactionDescription(
            transactional_id=row.transactional_id,
            state=row.transaction_state,
            producer_id=row.producer_id,
            producer_epoch=row.producer_epoch,
            timeout_ms=row.transaction_timeout_ms,
            started_ms=started_ms if started_ms >= 0 else None,
            partitions=frozenset(
                TopicPartition(topic.topic, number)
                for topic in row.topics
                for number in topic.partitions
            ),
            coordinator=self._cluster.coordinators.get((FOR_TRANSACTION, row.transactional_id)),
        )


class _DescribeKnown(DescribeTransactions):
    """`DescribeTransactions` with None for an id that its coordinator does not know."""

    def read(self, response: Any, items: Sequence[str]) -> Iterable[tuple[str, Row]]:
        for item, row in super().read(response, items):
            unknown = row.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            yield item, Row(0) if unknown else row

    def explain(self, item: str, error: BrokerError) -> KafkaError:
        return with_hint(error, self._cluster.options.prefix, HINTS)


def describe_transactions(
    cluster: Cluster, transactional_ids: Iterable[str], deadline: Deadline
) -> dict[str, TransactionDescription]:
    """Describe the transactional ids that their coordinators know.

    Raises UnsupportedVersionError before Kafka 3.0, BrokerError (not authorised), or
    KafkaTimeoutError.
    """
    handler = _DescribeKnown(cluster)
    lookup = ToCoordinator(cluster, FOR_TRANSACTION)
    what = "asking for the state of transactions"
    found = call_all(cluster, transactional_ids, handler, lookup, deadline, what)
    return {key: state for key, state in found.items() if state is not None}


class TransactionListing(NamedTuple):
    """A transactional id, the producer id it has now, and the state of its transaction."""

    transactional_id: str
    producer_id: int
    state: str


class ListTransactions(ApiHandler[int, list[TransactionListing]]):
    """The transactions that a broker coordinates; items are node ids."""

    request_type = ListTransactionsRequest
    named = "broker {}"
    acl = "DESCRIBE on each transactional id"

    def __init__(
        self,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        open_for_ms: int | None = None,
        pattern: str | None = None,
    ) -> None:
        self._states = states
        self._producer_ids = producer_ids
        self._open_for_ms = -1 if open_for_ms is None else open_for_ms
        self._pattern = pattern

    def build(self, items: Sequence[int], version: int) -> ListTransactionsRequest:
        return ListTransactionsRequest(
            state_filters=list(self._states),
            producer_id_filters=list(self._producer_ids),
            duration_filter=self._open_for_ms,
            transactional_id_pattern=self._pattern,
        )

    def read(self, response: Any, items: Sequence[int]) -> Iterable[tuple[int, Row]]:
        unknown = response.unknown_state_filters
        if unknown:
            message = f"the broker knows no transaction state {', '.join(map(repr, unknown))}"
            return [(item, Row(ErrorCode.INVALID_REQUEST, message=message)) for item in items]
        found = [
            TransactionListing(row.transactional_id, row.producer_id, row.transaction_state)
            for row in response.transaction_states
            # Brokers also list ended transactions, and those that never began as open since 1970.
            if self._open_for_ms < 0 or row.transaction_state in OPEN_STATES
        ]
        return [(item, Row(0, found)) for item in items]

    def lacking(self, item: int, version: int) -> str | None:
        if self._pattern is not None and version < 2:
            return self.needs("transactional_id_pattern", 2)
        if self._open_for_ms >= 0 and version < 1:
            return self.needs("open_for_ms", 1)
        return None


def list_open_transactions(cluster: Cluster, deadline: Deadline) -> list[str]:
    """List the transactional ids of all brokers that have an open transaction and that this user
    may see.

    Raises UnsupportedVersionError before Kafka 3.0, BrokerError, KafkaTimeoutError.
    """
    retry = cluster.retry(deadline, "asking for open transactions")
    handler = ListTransactions([ONGOING])
    while True:
        cluster.look_up([], deadline)
        brokers = sorted(cluster.brokers)
        answers = call_once(cluster, brokers, handler, ToBroker(cluster), deadline)
        failures = answers.errors.values()
        if not failures:
            return sorted({row.transactional_id for rows in answers.values() for row in rows})
        # All brokers are asked again: ids of one that failed may have moved to one that has already
        # answered. An error that is not retriable is raised first.
        retry.after(min(failures, key=lambda error: error.retriable))
