"""Describe, list and abort transactions, and fence producers (KIP-664).

A hanging transaction is one that its coordinator no longer knows, because a late write began it
again. It stays open in a partition forever, and readers with read_committed cannot pass it. Only
the leader of the partition knows it (`describe_producers`) and can end it (`abort_transaction`), as
kafka-transactions.sh does.

Brokers before 3.0 cannot describe and list transactions: UnsupportedVersionError says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from sparkkafka.client import arguments
from sparkkafka.client.admin.brokers import lists_from_all_brokers
from sparkkafka.client.admin.calls import AdminCalls
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.request_driver import (
    FOR_TRANSACTION,
    ApiHandler,
    Outcome,
    Outcomes,
    ToBroker,
    ToCoordinator,
    ToLeader,
)
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.producer.transactions import HINTS, Transaction, init_transactions, with_hint
from sparkkafka.client.values import Listing, Results, TopicPartition, by_partition, request_topics
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, OptionError
from sparkkafka.protocol import messages

ONGOING = "Ongoing"


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
        """The producer id and epoch that the producer sends with the records of the transaction."""
        return Transaction(self.transactional_id, self.producer_id, self.producer_epoch)

    @property
    def is_open(self) -> bool:
        return self.state == ONGOING


class ProducerState(NamedTuple):
    """A producer that wrote to a partition, as its leader knows it.

    `last_timestamp_ms` is that of its last batch; `transaction_start_offset` is the first offset
    of its open transaction, None if it has none. `coordinator_epoch` is None as long as no
    transaction of it ended here.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int | None
    transaction_start_offset: int | None


class FencedProducer(NamedTuple):
    """The producer id of a transactional id and the epoch that it got when its producer was
    fenced."""

    producer_id: int
    producer_epoch: int


# --- transactional ids --------------------------------------------------------------------------


class _DescribeTransactions(ApiHandler[str, TransactionDescription]):
    request_type = messages.DescribeTransactionsRequest
    name_format = "transactional id {!r}"
    acl = "DESCRIBE on transactional id {}"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def build(self, items: Sequence[str], version: int) -> Any:
        return messages.DescribeTransactionsRequest(transactional_ids=list(items))

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        """Yield the description of each transactional id, or its error."""
        for row in response.transaction_states:
            description = None if row.error_code else self._description(row)
            yield row.transactional_id, Outcome.of(row, description)

    def _description(self, row: Any) -> TransactionDescription:
        """Return the description of a transaction, out of its row in the response."""
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


class _DescribeKnown(_DescribeTransactions):
    """Describes transactional ids; None for one that its coordinator does not know."""

    empty_codes = frozenset({ErrorCode.TRANSACTIONAL_ID_NOT_FOUND})

    def explain(self, item: str, error: BrokerError) -> KafkaError:
        return with_hint(error, self._cluster.options.prefix, HINTS)


def describe_known_transactions(
    cluster: Cluster, transactional_ids: Iterable[str], deadline: Deadline
) -> dict[str, TransactionDescription]:
    """Describe transactional ids, without those that their coordinators do not know.

    Raises UnsupportedVersionError before Kafka 3.0, BrokerError (not authorised), or
    KafkaTimeoutError.
    """
    handler = _DescribeKnown(cluster)
    lookup, what = ToCoordinator(cluster, FOR_TRANSACTION), "describing transactions"
    descriptions = lookup.call_all(transactional_ids, handler, deadline, what)
    return {
        transactional_id: description
        for transactional_id, description in descriptions.items()
        if description is not None
    }


class TransactionListing(NamedTuple):
    """A transactional id, the producer id it has now, and the state of its transaction."""

    transactional_id: str
    producer_id: int
    state: str


class _ListTransactions(ApiHandler[int, list[TransactionListing]]):
    """Lists the transactions that each broker coordinates; items are node ids."""

    request_type = messages.ListTransactionsRequest
    name_format = "broker {}"
    acl = "DESCRIBE on each transactional id"

    def __init__(self, request: messages.ListTransactionsRequest) -> None:
        """`request` is the same for all brokers."""
        self._request = request

    def build(self, items: Sequence[int], version: int) -> Any:
        return self._request

    def read(self, response: Any, items: Sequence[int]) -> Outcomes[int]:
        """Return the transactions that a broker coordinates; the node id of the broker is the only
        item. A state in the filter that the broker does not know is an error."""
        unknown = response.unknown_state_filters
        if unknown:
            message = f"the broker knows no transaction state {', '.join(map(repr, unknown))}"
            return [(item, Outcome(ErrorCode.INVALID_REQUEST, message=message)) for item in items]
        listings = [
            TransactionListing(row.transactional_id, row.producer_id, row.transaction_state)
            for row in response.transaction_states
            # With a duration_filter brokers also return transactions that have ended, and those
            # that have not begun, as if they had begun in 1970.
            if self._request.duration_filter < 0
            or row.transaction_state
            in {ONGOING, "PrepareCommit", "PrepareAbort", "PrepareEpochFence"}
        ]
        return [(item, Outcome(0, listings)) for item in items]

    def needed_versions(self, item: int) -> Mapping[str, int]:
        """Return the versions that have the filters in use."""
        has_pattern = self._request.transactional_id_pattern is not None
        pattern = {"transactional_id_pattern": 2} if has_pattern else {}
        return pattern | ({"open_for_ms": 1} if self._request.duration_filter >= 0 else {})


def list_ongoing_transactions(cluster: Cluster, deadline: Deadline) -> list[str]:
    """List the transactional ids on all brokers that have an Ongoing transaction and that this user
    may see. Raises UnsupportedVersionError before Kafka 3.0, BrokerError, KafkaTimeoutError."""
    retry = cluster.retry(deadline, "listing ongoing transactions")
    handler = _ListTransactions(messages.ListTransactionsRequest(state_filters=[ONGOING]))
    while True:
        cluster.request_metadata([], deadline)
        brokers = sorted(cluster.brokers)
        responses = ToBroker(cluster).call_once(brokers, handler, deadline)
        failures = responses.errors.values()
        if not failures:
            return sorted({row.transactional_id for rows in responses.values() for row in rows})
        # The next attempt goes to all brokers: ids of one that failed may have moved to one that
        # has already answered. An error that is not retriable is raised first.
        retry.after(min(failures, key=lambda error: error.retriable))


def fence(
    cluster: Cluster,
    transactional_ids: Iterable[str],
    timeout_ms: int,
    deadline: Deadline,
    hints: Mapping[int, str] = HINTS,
) -> dict[str, Transaction | KafkaError]:
    """Take transactional ids over by InitProducerId, which aborts their open transactions. Return
    for each id its new transaction, which is still empty, or the error, with the hint for its code.

    The request's transaction timeout, `timeout_ms`, also limits how long the coordinator waits
    until replicas have stored the new epoch (KAFKA-16570). If the brokers allow less, shorter ones
    are tried, since not every user may see the brokers' limit.
    """
    results: dict[str, Transaction | KafkaError] = {}
    pending = list(transactional_ids)
    while pending:
        results |= init_transactions(cluster, pending, timeout_ms, deadline, hints=hints)
        if timeout_ms <= 1_000:
            break
        pending = [
            tid
            for tid, result in results.items()
            if isinstance(result, BrokerError)
            and result.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        ]
        timeout_ms //= 4
    return results


# --- partitions -------------------------------------------------------------------------------


class _DescribeProducers(ApiHandler[TopicPartition, tuple[ProducerState, ...]]):
    request_type = messages.DescribeProducersRequest
    acl = "READ on topic {0.topic}"

    def build(self, items: Sequence[TopicPartition], version: int) -> Any:
        """Build the request for the producers that the leader of these partitions knows."""
        return messages.DescribeProducersRequest(
            topics=request_topics(messages.ProducersTopic, items)
        )

    def read(self, response: Any, items: Sequence[TopicPartition]) -> Outcomes[TopicPartition]:
        """Yield the producers of each partition, or its error."""
        for tp, row in by_partition(response.topics):
            producers = tuple(_producer_state(state) for state in row.active_producers)
            yield tp, Outcome.of(row, producers)


def _producer_state(state: Any) -> ProducerState:
    """Return the ProducerState of a producer in the response, with None in place of -1."""
    start = state.current_txn_start_offset
    return ProducerState(
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.last_timestamp,
        state.coordinator_epoch if state.coordinator_epoch >= 0 else None,
        start if start >= 0 else None,
    )


class _Abort(ApiHandler[TopicPartition, None]):
    """Writes an abort marker for this producer into partitions, in place of the coordinator."""

    request_type = messages.WriteTxnMarkersRequest
    name_format = "{}, producer id {handler.producer_id}"
    acl = "ALTER on the cluster (CLUSTER_ACTION before Kafka 3.8)"
    hints: ClassVar[Mapping[int, str]] = {
        ErrorCode.INVALID_PRODUCER_EPOCH: (
            "the producer has another epoch by now: describe_producers says whether its "
            "transaction is still open"
        ),
        ErrorCode.TRANSACTION_COORDINATOR_FENCED: (
            "the coordinator has another epoch by now: describe_producers has it"
        ),
    }

    def __init__(self, producer_id: int, producer_epoch: int, coordinator_epoch: int) -> None:
        self.producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._coordinator_epoch = coordinator_epoch

    def build(self, items: Sequence[TopicPartition], version: int) -> Any:
        """Build the request that writes an abort marker to these partitions."""
        marker = messages.WritableTxnMarker(
            producer_id=self.producer_id,
            producer_epoch=self._producer_epoch,
            transaction_result=False,  # an abort
            coordinator_epoch=self._coordinator_epoch,
            topics=request_topics(messages.WritableTxnMarkerTopic, items),
        )
        return messages.WriteTxnMarkersRequest(markers=[marker])

    def read(self, response: Any, items: Sequence[TopicPartition]) -> Outcomes[TopicPartition]:
        """Yield the error code of each partition: 0 if the marker was written."""
        for marker in response.markers:
            for tp, row in by_partition(marker.topics):
                yield tp, Outcome.of(row)


def _checked_ids(value: Iterable[str]) -> list[str]:
    """Return the argument `transactional_ids` as a list. Raises OptionError, also for an empty id,
    which brokers refuse as an invalid request."""
    transactional_ids = arguments.checked_names(value, "transactional_ids")
    if "" in transactional_ids:
        raise OptionError("transactional_ids: a transactional id is not empty, got ''")
    return transactional_ids


class TransactionAdmin(AdminCalls):
    """The calls of `Admin` about transactions and producers."""

    def list_transactions(
        self,
        *,
        states: Iterable[str] | None = None,
        producer_ids: Iterable[int] | None = None,
        open_for_ms: int | None = None,
        transactional_id_pattern: str | None = None,
        timeout_s: float | None = None,
    ) -> Listing[TransactionListing]:
        """List the transactional ids of all brokers (Kafka 3.0): those in some states (Ongoing,
        Empty, …), of some producer ids, whose transaction is open for longer than `open_for_ms`
        (Kafka 3.8), or that a regular expression of RE2 matches as a whole (Kafka 4.1).

        `open_for_ms` leaves out transactions that are not open (Empty, CompleteCommit, …); brokers,
        and so other clients, list these too.

        A broker that fails is in `errors`. Raises KafkaError if all brokers fail.
        """
        states = [] if states is None else arguments.checked_names(states, "states")
        ids = [] if producer_ids is None else arguments.checked_ints(producer_ids, "producer_ids")
        if open_for_ms is not None:
            open_for_ms = arguments.checked_int(open_for_ms, "open_for_ms", 0)
        if transactional_id_pattern is not None:
            arguments.checked_name(transactional_id_pattern, "transactional_id_pattern")
        request = messages.ListTransactionsRequest(
            state_filters=states,
            producer_id_filters=ids,
            duration_filter=-1 if open_for_ms is None else open_for_ms,
            transactional_id_pattern=transactional_id_pattern,
        )
        handler = _ListTransactions(request)
        with self._call(timeout_s) as (cluster, deadline):
            return lists_from_all_brokers(cluster, handler, deadline, "listing transactions")

    def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout_s: float | None = None
    ) -> Results[str, TransactionDescription]:
        """Describe transactions: state, producer, age and partitions (Kafka 3.0). Return results by
        transactional id. The error of an id that is not known is a BrokerError
        TRANSACTIONAL_ID_NOT_FOUND."""
        items = _checked_ids(transactional_ids)
        handler = _DescribeTransactions(self._cluster)
        lookup = ToCoordinator(self._cluster, FOR_TRANSACTION)
        return self._each(items, handler, lookup, "describing transactions", timeout_s)

    def describe_producers(
        self, partitions: Iterable[TopicPartition], *, timeout_s: float | None = None
    ) -> Results[TopicPartition, tuple[ProducerState, ...]]:
        """Describe the producers that each partition's leader knows, and the offset since which
        their transactions are open (Kafka 2.8)."""
        items = arguments.checked_partitions(partitions)
        lookup, what = ToLeader(self._cluster), "describing producers"
        return self._each(items, _DescribeProducers(), lookup, what, timeout_s)

    def abort_transaction(
        self, partition: TopicPartition, start_offset: int, *, timeout_s: float | None = None
    ) -> ProducerState:
        """Abort the transaction that is open in a partition since `start_offset`, as
        `describe_producers` returns it. Returns the producer whose transaction it was.

        This is for a hanging transaction, which blocks readers with read_committed and which its
        coordinator no longer knows: the leader writes an abort marker into this partition without a
        request to the coordinator. A transaction that is still in progress would be aborted in this
        partition only, and may be committed in others: use `fence_producers` for it. Raises
        BrokerError INVALID_TXN_STATE if no open transaction began there, other KafkaErrors.
        """
        tp = arguments.checked_partition(partition, "partition")
        start_offset = arguments.checked_int(start_offset, f"{tp}: start_offset")
        with self._call(timeout_s) as (cluster, deadline):
            producers = self.describe_producers([tp], timeout_s=deadline.remaining_s())[tp]
            for producer in producers:
                if producer.transaction_start_offset == start_offset:
                    # The partition's leader takes a missing coordinator epoch for 0.
                    epoch = producer.coordinator_epoch or 0
                    handler = _Abort(producer.producer_id, producer.producer_epoch, epoch)
                    what = f"aborting the transaction of producer id {producer.producer_id} in {tp}"
                    ToLeader(cluster).call_each([tp], handler, deadline, what).all()
                    return producer
            starts = sorted(
                producer.transaction_start_offset
                for producer in producers
                if producer.transaction_start_offset is not None
            )
            raise BrokerError(
                ErrorCode.INVALID_TXN_STATE,
                f"DescribeProducers of {tp}",
                f"no transaction is open there since offset {start_offset}; open ones began at "
                f"{', '.join(map(str, starts)) or 'no offset'}",
            )

    def fence_producers(
        self, transactional_ids: Iterable[str], *, timeout_s: float | None = None
    ) -> Results[str, FencedProducer]:
        """Fence the producers with these transactional ids, and abort their open transactions.
        Return results by transactional id."""
        items = dict.fromkeys(_checked_ids(transactional_ids))
        with self._call(timeout_s) as (cluster, deadline):
            timeout_ms = max(int(min(cluster.options.request_timeout_ms, deadline.total_ms)), 1)
            fenced = fence(cluster, items, timeout_ms, deadline)
            return Results(
                {  # a Transaction without its transactional id, or the error
                    tid: FencedProducer(*result[1:]) if isinstance(result, Transaction) else result
                    for tid, result in fenced.items()
                }
            )
