"""Transactions by their transactional ids: begin, add partitions, offsets, end.

Kafka ties a transaction to no connection: whoever knows its id, producer id and epoch may end it.
So one process can write in a transaction that another ends. Each request may be repeated until its
response is known (KIP-98, TransactionCoordinator.scala).

Kafka has two protocols. In the first (all brokers; Produce up to 11, EndTxn up to 4), requests of
their own add partitions and groups to a transaction, and the epoch stays the same from one
transaction to the next. In the second (KIP-890: finalized feature transaction.version 2, Kafka
4.0), a write adds its partition, and each end returns the next epoch, so that no late request can
reach the next transaction. The functions here use the first, unless a version is passed.

A `SenderTransaction` is what a sender's batches are part of: `SingleTransaction` of a Spark task,
which the driver ends, or a Producer's `TransactionManager`, one transaction after another. Each has
connections to its coordinator of its own: the sender's carry requests whose responses are to come.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.request_driver import (
    FOR_TRANSACTION,
    NO_VERSION,
    ApiHandler,
    Outcome,
    Outcomes,
    ToCoordinator,
    call_each,
    find_coordinator,
)
from sparkkafka.client.deadline import CloseSignal, Deadline
from sparkkafka.client.values import (
    Results,
    TopicPartition,
    by_topic,
    some_partitions,
)
from sparkkafka.config.options import ClientOptions
from sparkkafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    error_description,
    is_retriable,
)
from sparkkafka.protocol.constants import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
)
from sparkkafka.protocol.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
)

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

MAX_TIMEOUT_CONFIG = "transaction.max.timeout.ms"
DEFAULT_MAX_TIMEOUT_MS = 900_000
"""A broker's transaction.max.timeout.ms if nobody changed it."""

ABORT_TIMEOUT_MS = 10_000
"""How long a failed task tries to abort what it wrote."""


BUSY_BACKOFF_MS = 20
"""First wait after CONCURRENT_TRANSACTIONS and the like: markers take a few milliseconds (Java's
TransactionManager waits as long)."""


class Transaction(NamedTuple):
    """The ids with which any process can write in a transaction and end it."""

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

# {prefix} stands before names of settings that have one in Spark.
HINTS: Mapping[int, str] = {
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


def with_hint(error: KafkaError, prefix: str, hints: Mapping[int, str] = HINTS) -> KafkaError:
    """Return the error with the hint for its code instead of its message, if there is one. `prefix`
    stands before names of settings: "kafka." in Spark."""
    if isinstance(error, BrokerError) and error.code in hints:
        return BrokerError(error.code, error.where, hints[error.code].format(prefix=prefix))
    return error


class RequestEach(ApiHandler[str, Any]):
    """A request of its own for each transactional id; the value is the response."""

    backoff_ms = BUSY_BACKOFF_MS
    grace_ms = math.inf  # topics of a transaction are known to be there

    def __init__(
        self,
        cluster: Cluster,
        requests: Mapping[str, Any],
        hints: Mapping[int, str],
        version: int | None = None,
    ) -> None:
        self._prefix = cluster.options.prefix
        self.requests = requests
        self._hints = hints
        self.request_type = type(next(iter(requests.values())))  # type: ignore[misc]
        self.version = version

    def split(self, items: Sequence[str], version: int) -> Iterable[Sequence[str]]:
        return [[item] for item in items]

    def build(self, items: Sequence[str], version: int) -> Any:
        return self.requests[items[0]]

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        return [(items[0], Outcome(0, response))]

    def name(self, item: str) -> str:
        return repr(item)

    def unsupported_reason(self, item: str, version: int) -> str | None:
        if version != NO_VERSION:
            return None
        hint = "set deliveryGuarantee=at-least-once" if self._prefix else "unset transactional.id"
        needs = self.needs(self.request_type.API_NAME, self.request_type.MIN_VERSION)
        return f"{needs}: this broker has no transactions; {hint} to write without them"

    def explain(self, item: str, error: BrokerError) -> KafkaError:
        return with_hint(error, self._prefix, self._hints)


def _call_each(
    cluster: Cluster, handler: RequestEach, deadline: Deadline, what: str
) -> Results[str, Any]:
    """Send the handler's request for each transactional id to its coordinator; `what` is for
    messages."""
    lookup = ToCoordinator(cluster, FOR_TRANSACTION)
    return call_each(cluster, handler.requests, handler, lookup, deadline, what)


def init_transactions(
    cluster: Cluster,
    transactional_ids: Iterable[str],
    timeout_ms: int,
    deadline: Deadline,
    *,
    owner: Transaction | None = None,
    hints: Mapping[int, str] = HINTS,
) -> dict[str, Transaction | KafkaError]:
    """Take over transactional ids: what is open under them is aborted, and whoever wrote in it can
    neither continue nor end it (InitProducerId).

    `timeout_ms` is how long a transaction may stay open. The value is the new owner's transaction,
    which begins with its first partition, or the error that is final for this id. With an `owner`
    only that one gets the next epoch (KIP-360, Kafka 2.5). `hints` are added to errors by code.
    """
    producer_id, producer_epoch = (
        (NO_PRODUCER_ID, NO_PRODUCER_EPOCH) if owner is None else owner[1:]
    )
    requests = {
        key: InitProducerIdRequest(
            transactional_id=key,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        for key in transactional_ids
    }
    if not requests:
        return {}
    handler = RequestEach(cluster, requests, hints)
    results = _call_each(cluster, handler, deadline, "taking over transactional ids")
    return results.errors | {
        key: Transaction(key, response.producer_id, response.producer_epoch)
        for key, response in results.values_by_item.items()
    }


def end_transactions(
    cluster: Cluster,
    transactions: Iterable[Transaction],
    *,
    commit: bool,
    deadline: Deadline | None = None,
) -> dict[str, KafkaError | None]:
    """Commit, or abort, transactions. To do it again changes nothing.

    Return, by transactional id, None if the transaction has ended like that; a BrokerError with a
    code of `GONE` if it has ended otherwise or has another owner; another error if its end is not
    known.
    """
    requests = {row.transactional_id: end_request(row, commit) for row in transactions}
    if not requests:
        return {}
    handler = RequestEach(cluster, requests, HINTS)
    what = "committing transactions" if commit else "aborting transactions"
    errors = _call_each(cluster, handler, deadline or cluster.deadline(), what).errors
    return {key: errors.get(key) for key in requests}


def end_request(transaction: Transaction, commit: bool) -> EndTxnRequest:
    """Return the request that commits, or aborts, a transaction."""
    return EndTxnRequest(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        committed=commit,
    )


def add_partitions(
    cluster: Cluster,
    transaction: Transaction,
    partitions: Iterable[TopicPartition],
    deadline: Deadline,
    hints: Mapping[int, str] = HINTS,
) -> None:
    """Make partitions part of the transaction, before anything is written to them.

    Raises BrokerError (fenced, not authorised), KafkaTimeoutError, and UnknownTopicError if a topic
    stays unknown to the deadline.
    """
    outcome = add_partitions_each(cluster, {transaction: partitions}, deadline, hints)
    error = outcome[transaction.transactional_id]
    if error is not None:
        raise error


class _AddPartitions(RequestEach):
    """Adds partitions to transactions. If some are refused, the transaction's error is that of one
    code, a final one if there is one, with all partitions that have it."""

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        refused: dict[int, list[TopicPartition]] = {}
        for topic in response.results_by_topic_v3_and_below:
            for row in topic.results_by_partition:
                tp = TopicPartition(topic.name, row.partition_index)
                refused.setdefault(row.partition_error_code, []).append(tp)
        # If one partition is refused, the others come back as not attempted.
        for passed in (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED):
            refused.pop(passed, None)
        if not refused:
            return [(items[0], Outcome(0))]
        code = min(refused, key=is_retriable)
        message = f"{some_partitions(refused[code])}: {error_description(code, self._prefix)}"
        return [(items[0], Outcome(code, None, message))]


def add_partitions_each(
    cluster: Cluster,
    partitions: Mapping[Transaction, Iterable[TopicPartition]],
    deadline: Deadline,
    hints: Mapping[int, str] = HINTS,
) -> dict[str, KafkaError | None]:
    """Do `add_partitions` for several transactions. Return the error of each by transactional id,
    None for success.

    Partitions that are part of the transaction already stay so: the response then shows whether the
    transaction is still open and its writer still the owner.
    """
    requests = {
        transaction.transactional_id: AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transaction.transactional_id,
            v3_and_below_producer_id=transaction.producer_id,
            v3_and_below_producer_epoch=transaction.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=numbers)
                for name, numbers in by_topic(chosen).items()
            ],
        )
        for transaction, chosen in partitions.items()
    }
    if not requests:
        return {}
    handler = _AddPartitions(cluster, requests, hints)
    errors = _call_each(cluster, handler, deadline, "adding partitions to a transaction").errors
    return {key: errors.get(key) for key in requests}


# --- transactions of a sender ---------------------------------------------------------------------


class SenderTransaction(ABC):
    """The transaction that a sender's batches are part of.

    `begin` and `add` wait at most `attempt_ms`, or `within_ms` if that is less, then raise
    KafkaTimeoutError; the sender calls them again while its batches live. `hints` are added to
    errors by code.
    """

    def __init__(
        self,
        options: ClientOptions,
        transactional_id: str,
        attempt_ms: int,
        hints: Mapping[int, str] = HINTS,
        close_signal: CloseSignal | None = None,
        *,
        for_task: bool = False,
    ) -> None:
        self._cluster = Cluster(options, close_signal=close_signal, for_task=for_task)
        self._attempt_ms = attempt_ms
        self._hints = hints
        self.transactional_id = transactional_id
        self.produce_version: int | None = None
        """The version of Produce to use; None for the default."""
        self.identity: Transaction | None = None
        self.partitions: set[TopicPartition] = set()
        # Whether it has partitions or groups, or may have them because a response was lost.
        self._has_started = False

    @abstractmethod
    def begin(self, within_ms: float = math.inf) -> Transaction:
        """Return the producer id and epoch to write with."""

    def add(self, partitions: Iterable[TopicPartition], within_ms: float = math.inf) -> None:
        """Make those of the partitions that are not yet part of the transaction part of it. Raises
        BrokerError (not authorised, fenced), KafkaTimeoutError."""
        new = set(partitions) - self.partitions
        if new:
            deadline = Deadline(min(self._attempt_ms, within_ms))
            transaction = self.begin(within_ms)
            self._has_started = True  # before the request: if its response is lost, they may be
            if self.produce_version is None:
                add_partitions(self._cluster, transaction, sorted(new), deadline, self._hints)
            # After it: without a response they are added again before anything is written.
            self.partitions |= new

    def _take_over(
        self, timeout_ms: int, deadline: Deadline, owner: Transaction | None = None
    ) -> Transaction:
        """Take over the transactional id, as `init_transactions`; raise its error."""
        tid = self.transactional_id
        identity = init_transactions(
            self._cluster, [tid], timeout_ms, deadline, owner=owner, hints=self._hints
        )[tid]
        if isinstance(identity, KafkaError):
            raise identity
        return identity


class SingleTransaction(SenderTransaction):
    """One transaction, begun and filled here, ended elsewhere. Use it under `with`: an exception
    inside aborts it.

    `timeout_ms` None requests the longest that the broker allows. `choose_id` returns the
    transactional id to use in place of `transactional_id`.
    """

    def __init__(
        self,
        options: ClientOptions,
        transactional_id: str,
        timeout_ms: int | None,
        attempt_ms: int,
        choose_id: Callable[[Cluster, Deadline], str] | None = None,
        hints: Mapping[int, str] = HINTS,
    ) -> None:
        super().__init__(options, transactional_id, attempt_ms, hints, for_task=True)
        self._timeout_ms = timeout_ms
        self._choose_id = choose_id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        try:
            # A writer that took the id over has aborted ours; taking it back would abort theirs.
            fenced = getattr(error, "code", None) in FENCED
            if exc_type is not None and self._has_started and not fenced:
                self._abort()
        finally:
            self._cluster.__exit__(exc_type)

    def begin(self, within_ms: float = math.inf) -> Transaction:
        """Take over the transactional id, once. What an earlier writer left open is aborted.

        Raises BrokerError (not authorised, timeout too long), KafkaTimeoutError.
        """
        if self.identity is None:
            deadline = Deadline(min(self._attempt_ms, within_ms))
            if self._choose_id is not None:
                self.transactional_id = self._choose_id(self._cluster, deadline)
            if self._timeout_ms is None:
                try:
                    node_id = find_coordinator(
                        self._cluster, self.transactional_id, FOR_TRANSACTION, deadline
                    )
                except KafkaError as error:
                    raise with_hint(error, self._cluster.options.prefix, self._hints) from error
                try:
                    self._timeout_ms = max_timeout_ms(self._cluster, node_id, deadline)
                except KafkaTimeoutError as error:
                    raise KafkaTimeoutError(
                        f"{MAX_TIMEOUT_CONFIG} of broker {node_id} cannot be read: {error}. Set "
                        f"{self._cluster.options.prefix}transaction.timeout.ms, then it is not "
                        "needed"
                    ) from error
            self.identity = self._take_over(self._timeout_ms, deadline)
        return self.identity

    def _abort(self) -> None:
        """Abort by taking the id over again: all brokers then refuse late batches. (EndTxn keeps
        the epoch, and before Kafka 3.6 a late batch would open a transaction that nobody ends.)"""
        try:
            self._take_over(self._timeout_ms or 0, Deadline(ABORT_TIMEOUT_MS))
        except KafkaError as error:
            log.warning(
                "transaction %s could not be aborted (readers wait until the next batch, or "
                "%stransaction.timeout.ms, ends it): %s",
                self.transactional_id,
                self._cluster.options.prefix,
                error,
            )


def max_timeout_ms(cluster: Cluster, node_id: int, deadline: Deadline) -> int:
    """Return the largest transaction timeout that a broker allows, or Kafka's default for it if
    this user may not see settings of brokers. Raises KafkaTimeoutError."""
    from sparkkafka.client.cluster.configs import broker_configs  # imports all messages of Admin

    try:
        configs = broker_configs(cluster, node_id, [MAX_TIMEOUT_CONFIG], deadline=deadline)
    except BrokerError as error:
        if error.code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        return DEFAULT_MAX_TIMEOUT_MS
    return int(configs.get(MAX_TIMEOUT_CONFIG) or DEFAULT_MAX_TIMEOUT_MS)
