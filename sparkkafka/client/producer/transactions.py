"""Transactions by their transactional ids: begin, add partitions and offsets, end.

Kafka ties a transaction to no connection: whoever knows its id, producer id and epoch may end it.
So one process can write in a transaction that another ends. Each request may be repeated until its
response is known (KIP-98, TransactionCoordinator.scala).

Kafka has two protocols. In the first (all brokers; Produce up to 11, EndTxn up to 4), requests of
their own add partitions and groups to a transaction, and the epoch stays the same from one
transaction to the next. In the second (KIP-890: finalized feature transaction.version 2, Kafka
4.0), a write adds its partition, and each end returns the next epoch, so that no late request can
reach the next transaction. The functions here use the first, unless a version is passed.

The batches of a `Sender` are part of a `SingleTransaction`, that of a Spark task, which the driver
ends, or of the `TransactionManager` of a Producer, one transaction after another. Each has its own
connections to the coordinator, because those of the sender carry requests in flight. A producer
without transactions gets its producer id in `sender`.
"""

from __future__ import annotations

import copy
import enum
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from sparkkafka.client.arguments import offsets_to_commit
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.request_driver import (
    FOR_TRANSACTION,
    NO_VERSION,
    ApiHandler,
    Outcome,
    Outcomes,
    ToCoordinator,
    find_coordinator,
)
from sparkkafka.client.deadline import CloseSignal, Deadline, deadline_of
from sparkkafka.client.group.committed_offsets import (
    CommitHandler,
    GroupMetadata,
    ToCoordinatorOfReader,
    TopicIds,
)
from sparkkafka.client.values import (
    OffsetAndMetadata,
    Results,
    TopicPartition,
    request_topics,
    some_partitions,
)
from sparkkafka.config.client_settings import ProducerSettings
from sparkkafka.config.options import ClientOptions
from sparkkafka.errors import (
    BrokerError,
    CommitFailedError,
    EncodeError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
    ProduceError,
    ProducerFencedError,
    TransactionError,
    UnsupportedVersionError,
    error_description,
    is_retriable,
)
from sparkkafka.protocol import messages
from sparkkafka.protocol.constants import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

if TYPE_CHECKING:
    from sparkkafka.client.producer.futures import OutcomeNotifier
    from sparkkafka.client.producer.io_thread import ProducerThread
    from sparkkafka.client.producer.record_accumulator import SendBuffer

log = logging.getLogger(__name__)

MAX_TIMEOUT_CONFIG = "transaction.max.timeout.ms"

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
"""The error codes if another writer has taken over the transactional id, or the broker has ended
the transaction because it was open for longer than its timeout, or has forgotten the id after
transactional.id.expiration.ms (INVALID_PRODUCER_ID_MAPPING). Only a new producer can continue."""

GONE = FENCED | {ErrorCode.INVALID_TXN_STATE}
"""The error codes of EndTxn, AddPartitionsToTxn, … for a transaction that is not open any more."""

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
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: (
        "the brokers have dropped this transactional id, since no transaction used it for their "
        "transactional.id.expiration.ms (7 days), or another writer has taken it over"
    ),
}


def with_hint(error: KafkaError, prefix: str, hints: Mapping[int, str]) -> KafkaError:
    """Return the error with the hint for its code instead of its message, if there is one. `prefix`
    stands before names of settings: "kafka." in Spark."""
    if isinstance(error, BrokerError) and error.code in hints:
        return BrokerError(error.code, error.where, hints[error.code].format(prefix=prefix))
    return error


class RequestEach(ApiHandler[str, Any]):
    """Sends one request for each transactional id to its coordinator; the value is the response.
    `hints` are texts of errors by error code."""

    backoff_ms = BUSY_BACKOFF_MS
    grace_ms = math.inf  # topics of a transaction are known to exist

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
        """Return the response as the value of the only item, a transactional id."""
        return [(items[0], Outcome(0, response))]

    def name(self, item: str) -> str:
        return repr(item)

    def unsupported_reason(self, item: str, version: int) -> str | None:
        """Return why this request cannot be sent, None if the broker knows it."""
        if version != NO_VERSION:
            return None
        hint = "set deliveryGuarantee=at-least-once" if self._prefix else "unset transactional.id"
        needs = self.needs(self.request_type.API_NAME, self.request_type.MIN_VERSION)
        return f"{needs}: this broker has no transactions; {hint} to write without them"

    def explain(self, item: str, error: BrokerError) -> KafkaError:
        return with_hint(error, self._prefix, self._hints)


def _call_each(
    cluster: Cluster,
    requests: Mapping[str, Any],
    hints: Mapping[int, str],
    deadline: Deadline,
    what: str,
    handler_type: type[RequestEach] = RequestEach,
) -> Results[str, Any]:
    """Send the request for each transactional id to its coordinator. Return the response or the
    error of each; `what` names the operation in errors."""
    if not requests:
        return Results({})
    handler = handler_type(cluster, requests, hints)
    lookup = ToCoordinator(cluster, FOR_TRANSACTION)
    return lookup.call_each(requests, handler, deadline, what)


def init_transactions(
    cluster: Cluster,
    transactional_ids: Iterable[str],
    timeout_ms: int,
    deadline: Deadline,
    *,
    owner: Transaction | None = None,
    hints: Mapping[int, str] = HINTS,
) -> dict[str, Transaction | KafkaError]:
    """Take over transactional ids by InitProducerId: the coordinator aborts their open
    transactions, and the producers that wrote in them are fenced.

    `timeout_ms` is how long a transaction may stay open. Return for each id the new transaction,
    which begins with its first partition, or the error that a retry cannot fix. With an `owner`
    the coordinator raises the epoch only if that transaction is the present one (KIP-360, Kafka
    2.5). `hints` are the texts of errors by code.
    """
    producer_id, producer_epoch = (
        # `owner` without its transactional id, which is then the only one of `transactional_ids`.
        (NO_PRODUCER_ID, NO_PRODUCER_EPOCH) if owner is None else owner[1:]
    )
    requests = {
        key: messages.InitProducerIdRequest(
            transactional_id=key,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        for key in transactional_ids
    }
    results = _call_each(cluster, requests, hints, deadline, "taking over transactional ids")
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
    """Commit or abort transactions by EndTxn. Repeating a call changes nothing.

    Return by transactional id: None if the transaction is committed (or aborted) as requested; a
    BrokerError with a code of `GONE` if it has ended the other way or another producer has taken
    the id over; another error if its outcome is not known.
    """
    requests = {row.transactional_id: end_request(row, commit) for row in transactions}
    what = "committing transactions" if commit else "aborting transactions"
    errors = _call_each(cluster, requests, HINTS, deadline or cluster.deadline(), what).errors
    return {key: errors.get(key) for key in requests}


def end_request(transaction: Transaction, commit: bool) -> messages.EndTxnRequest:
    """Return the request that commits, or aborts, a transaction."""
    return messages.EndTxnRequest(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        committed=commit,
    )


class _AddPartitions(RequestEach):
    """Adds partitions to transactions. If the broker refuses some, the transaction's error has one
    of their codes (one that is not retriable, if there is one) and names all partitions with it."""

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        """Return the outcome of the only item, the transactional id: an error if a partition was
        refused, whose message names the refused partitions."""
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


def add_partitions(
    cluster: Cluster,
    partitions: Mapping[Transaction, Iterable[TopicPartition]],
    deadline: Deadline,
    hints: Mapping[int, str] = HINTS,
) -> dict[str, KafkaError | None]:
    """Add partitions to transactions, which must precede the first write to them. Return the error
    of each transaction by its id, None for success: BrokerError (fenced, not authorised),
    KafkaTimeoutError, UnknownTopicError if a topic stays unknown to the deadline.

    A partition may already be in its transaction: then the response shows whether the transaction
    is still open and still has this owner.
    """
    requests = {
        transaction.transactional_id: messages.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transaction.transactional_id,
            v3_and_below_producer_id=transaction.producer_id,
            v3_and_below_producer_epoch=transaction.producer_epoch,
            v3_and_below_topics=request_topics(messages.AddPartitionsToTxnTopic, chosen),
        )
        for transaction, chosen in partitions.items()
    }
    what = "adding partitions to a transaction"
    errors = _call_each(cluster, requests, hints, deadline, what, _AddPartitions).errors
    return {key: errors.get(key) for key in requests}


# --- offsets of a group -------------------------------------------------------------------------

MEMBER_VERSION = 3  # TxnOffsetCommit has the member from this version on (KIP-447)

_NOT_IN_GROUP = (
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.STALE_MEMBER_EPOCH,
)
_OFFSET_HINTS: Mapping[int, str] = {
    **HINTS,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "offsets of a topic may be committed only with READ on the topic: grant it"
    ),
    **dict.fromkeys(
        _NOT_IN_GROUP,
        "the consumer is not in the group any more, or a rebalance has taken its partitions: abort "
        "the transaction, and continue from the committed offsets",
    ),
}


class _CommitOffsetsInTransaction(CommitHandler):
    """Commits offsets of a group in a transaction: as this `member` of the group, or with None as
    no member. `hints` are the texts of errors by code."""

    request_type = messages.TxnOffsetCommitRequest
    topic_id_version = 6
    backoff_ms = BUSY_BACKOFF_MS

    def __init__(
        self,
        cluster: Cluster,
        transaction: Transaction,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        member: GroupMetadata | None,
        hints: Mapping[int, str],
    ) -> None:
        self.topic_ids: TopicIds = (member and member.topic_ids) or {}
        super().__init__(group_id, offsets, self.topic_ids)
        self._prefix = cluster.options.prefix
        self._transaction = transaction
        self._member = member
        self._hints = hints
        if member is None:
            self.grace_ms = math.inf  # the topics are known to exist

    def build(
        self, items: Sequence[TopicPartition], version: int
    ) -> messages.TxnOffsetCommitRequest:
        """Build the TxnOffsetCommit of these partitions, with the member if there is one."""
        transaction, member = self._transaction, self._member
        request = messages.TxnOffsetCommitRequest(
            transactional_id=transaction.transactional_id,
            group_id=self.group_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            topics=self.request_topics(
                messages.TxnOffsetCommitRequestTopic,
                messages.TxnOffsetCommitRequestPartition,
                items,
            ),
        )
        if member is not None:
            request.generation_id_or_member_epoch = member.generation_id
            request.member_id = member.member_id
            request.group_instance_id = member.group_instance_id
        return request

    def unsupported_reason(self, item: TopicPartition, version: int) -> str | None:
        """Return why this version of TxnOffsetCommit cannot be used, None if it can: older ones
        cannot name the group's member, whose generation the coordinator checks."""
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
        """Return the error for users: CommitFailedError if the member is no longer in the group."""
        if error.code in _NOT_IN_GROUP:  # as Java's producer
            return CommitFailedError(error.code, error.where, _OFFSET_HINTS[error.code])
        return with_hint(error, self._prefix, self._hints)


def commit_offsets_in(
    cluster: Cluster,
    transaction: Transaction,
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    deadline: Deadline,
    *,
    member: GroupMetadata | None = None,
    version: int | None = None,
    hints: Mapping[int, str] = _OFFSET_HINTS,
) -> None:
    """Commit offsets of a group in the transaction: they become valid when it is committed.

    With a `member` (KIP-447) the group's coordinator checks that it is still in the group, and its
    `topic_ids`, if it has them, that the topics were not recreated. With `version` 5 or later of
    TxnOffsetCommit the request also adds the group to the transaction (before, AddOffsetsToTxn
    does); version 6 (Kafka 4.4) is used if all topic ids are known.

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
    if version is None:
        request = messages.AddOffsetsToTxnRequest(
            transactional_id=tid,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            group_id=group_id,
        )
        adding = RequestEach(cluster, {tid: request}, hints)
        what = f"adding group {group_id!r} to a transaction"
        ToCoordinator(cluster, FOR_TRANSACTION).call_all([tid], adding, deadline, what)
    handler = _CommitOffsetsInTransaction(cluster, transaction, group_id, offsets, member, hints)
    if version is not None and handler.has_all_ids:
        handler.highest_version = messages.TxnOffsetCommitRequest.MAX_VERSION
    else:
        handler.version = version
    lookup = ToCoordinatorOfReader(cluster, handler, handler.topic_ids)
    what = f"committing offsets of group {group_id!r} in a transaction"
    lookup.call_all(offsets, handler, deadline, what)


# --- the transaction of a task ------------------------------------------------------------------


class ProducerTransaction(ABC):
    """The transaction in which a producer writes: the `SenderTransaction` of its sender.

    `begin` and `add` wait at most `attempt_ms`, or `within_ms` if that is less, then raise
    KafkaTimeoutError. `hints` are the texts of errors by code.
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
        """Add to the transaction those of the partitions that are not in it yet. Raises BrokerError
        (not authorised, fenced), KafkaTimeoutError."""
        new = set(partitions) - self.partitions
        if new:
            deadline = Deadline(min(self._attempt_ms, within_ms))
            transaction = self.begin(within_ms)
            self._has_started = True  # before the request: if its response is lost, they may be
            if self.produce_version is None:  # else Produce adds them itself (KIP-890)
                added = {transaction: sorted(new)}
                errors = add_partitions(self._cluster, added, deadline, self._hints)
                error = errors[transaction.transactional_id]
                if error is not None:
                    raise error
            # After the request: without a response they are added again before the first write.
            self.partitions |= new

    def _take_over(
        self, timeout_ms: int, deadline: Deadline, owner: Transaction | None = None
    ) -> Transaction:
        """Take over the transactional id by `init_transactions`. Raises the id's error."""
        tid = self.transactional_id
        identity = init_transactions(
            self._cluster, [tid], timeout_ms, deadline, owner=owner, hints=self._hints
        )[tid]
        if isinstance(identity, KafkaError):
            raise identity
        return identity


class SingleTransaction(ProducerTransaction):
    """The transaction of one Spark task: the task begins it and writes in it, the driver ends it.
    Use it under `with`: an exception inside aborts it.

    `timeout_ms` None requests the longest timeout that the broker allows. `choose_id` returns the
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
        """Abort the transaction after an exception, unless another producer has taken over the
        id."""
        try:
            # If another writer took the id over, this transaction is aborted already, and taking
            # the id back would abort the other writer's.
            fenced = getattr(error, "code", None) in FENCED
            if exc_type is not None and self._has_started and not fenced:
                self._abort()
        finally:
            self._cluster.__exit__(exc_type)  # after a success it keeps the connections for tasks

    def begin(self, within_ms: float = math.inf) -> Transaction:
        """Take over the transactional id, once. This aborts a transaction that an earlier writer
        left open. Return the producer id and epoch to write with.

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
        """Abort the transaction by taking the transactional id over again: brokers then refuse
        batches that arrive late.

        (EndTxn keeps the epoch, and before Kafka 3.6 a late batch would begin a transaction that
        nobody ends.)
        """
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
    """Return the broker's transaction.max.timeout.ms, or Kafka's default for it if this user may
    not describe settings of brokers. Raises KafkaTimeoutError."""
    # Not at the top: it imports all messages of Admin.
    from sparkkafka.client.cluster.configs import ConfigResource, describe_configs

    broker = ConfigResource("broker", str(node_id))
    try:
        entries = describe_configs(cluster, [broker], deadline, keys=[MAX_TIMEOUT_CONFIG])[broker]
    except BrokerError as error:
        if error.code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        entries = {}
    entry = entries.get(MAX_TIMEOUT_CONFIG)
    return int(entry.value) if entry and entry.value else 900_000


# --- the transactions of a Producer -------------------------------------------------------------
#
#   UNINITIALIZED -> READY -> IN_TRANSACTION -> COMMITTING_TRANSACTION -> READY
#                                            -> ABORTING_TRANSACTION   -> READY
#                             IN_TRANSACTION -> ABORTABLE_ERROR -> ABORTING_TRANSACTION
#                                        any -> FATAL_ERROR

TRANSACTION_VERSION_2 = 2
# Versions that only the second protocol may use (KIP-890; brokers do not enforce it).
PRODUCE_VERSION, END_VERSION, OFFSETS_VERSION = 12, 5, 5


class State(enum.Enum):
    """The state of a transactional producer; the value is for messages."""

    UNINITIALIZED = "init_transactions was not called: call it before the first transaction"
    READY = "no transaction is open: call begin_transaction"
    IN_TRANSACTION = "a transaction is open already"
    COMMITTING_TRANSACTION = (
        "a commit has begun and its outcome is not known: call commit_transaction again"
    )
    ABORTING_TRANSACTION = "an abort has begun and is not confirmed: call abort_transaction again"
    ABORTABLE_ERROR = "the transaction can only be aborted: call abort_transaction"
    FATAL_ERROR = "the producer cannot continue: close it and make a new one"


TRANSITIONS: Mapping[State, tuple[State, ...]] = {
    State.UNINITIALIZED: (State.READY,),
    State.READY: (State.IN_TRANSACTION,),
    State.IN_TRANSACTION: (
        State.COMMITTING_TRANSACTION,
        State.ABORTING_TRANSACTION,
        State.ABORTABLE_ERROR,
    ),
    State.COMMITTING_TRANSACTION: (State.IN_TRANSACTION, State.READY, State.ABORTABLE_ERROR),
    State.ABORTING_TRANSACTION: (State.READY,),
    State.ABORTABLE_ERROR: (State.ABORTING_TRANSACTION,),
    State.FATAL_ERROR: (),
}
"""The states to which each state leads, besides FATAL_ERROR, to which all of them do."""


class TransactionManager(ProducerTransaction):
    """The transactions of a Producer, one after another, under one transactional id.

    The user's threads call the methods that have the names of Producer's methods, whose docstrings
    say what they do. The methods that send requests run in the I/O thread.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        transactional_id: str,
        buffer: SendBuffer,
        notifier: OutcomeNotifier,
        close_signal: CloseSignal,
    ) -> None:
        options = settings.producer
        attempt_ms = min(settings.client.request_timeout_ms, options.delivery_timeout_ms)
        super().__init__(settings.client, transactional_id, attempt_ms, close_signal=close_signal)
        self.state = State.UNINITIALIZED
        self._reason: KafkaError | None = None  # the cause of ABORTABLE_ERROR or FATAL_ERROR
        self.is_fence_reported = False
        """Whether a call has raised that the producer is fenced: `close` need not raise it too."""
        self._timeout_ms = options.transaction_timeout_ms or 60_000  # Java's default
        # The versions of the second protocol (KIP-890), if the coordinator has it.
        self._end_version: int | None = None
        self._offsets_version: int | None = None
        self._response_lost = False  # when EndTxn was sent again
        self._has_gaps = False  # the sequence numbers have gaps
        self._settings = settings
        self._buffer = buffer
        self._notifier = notifier
        self._thread: ProducerThread
        with buffer.lock:
            self._refuse_by_state()

    def use_thread(self, thread: ProducerThread) -> None:
        """Let this I/O thread run the requests of transactions, and let its sender report failed
        records here. Called once, before the thread starts."""
        self._thread = thread
        thread.sender.on_failure = self._on_failure

    # --- the user's calls -------------------------------------------------------------------------

    def init_transactions(self, timeout_s: float | None) -> None:
        """Get a producer id and epoch, which fences earlier producers of this transactional.id and
        ends their transaction. Raises TransactionError for a second call, KafkaTimeoutError, and a
        BrokerError after which the producer is of no use."""
        name = "init_transactions"
        deadline = self._deadline(timeout_s)
        with self._buffer.lock:
            if self.state is not State.UNINITIALIZED:
                raise TransactionError(f"{name}: it was called before; once is enough")
        self._call(lambda: self._init(deadline), deadline, name, _fatal_if_final)
        self._transition(State.READY)

    def begin_transaction(self) -> None:
        """Begin a transaction. First get the next epoch from the coordinator if a batch of the
        last transaction was lost. Raises TransactionError in any state but READY."""
        name = "begin_transaction"
        with self._buffer.lock:
            self._require_state({State.READY}, name)
        # Sequence numbers have a gap, or (KAFKA-17754) a repeated request may still be on its way
        # and would end the next transaction.
        if self._has_gaps or self._response_lost:
            deadline = self._deadline(None)
            self._call(lambda: self._next_epoch(deadline), deadline, name, _fatal_if_final)
        self._transition(State.IN_TRANSACTION)

    def commit_transaction(self, timeout_s: float | None) -> None:
        """Wait until all records are written, then commit."""
        name = "commit_transaction"
        delivery_deadline = deadline_of(timeout_s)
        with self._buffer.lock:
            self._require_state({State.IN_TRANSACTION, State.COMMITTING_TRANSACTION}, name)
        self._transition(State.COMMITTING_TRANSACTION)
        try:
            self._thread.wait_for_all(delivery_deadline)
        except BaseException:
            with self._buffer.lock:
                # Nothing was sent to the coordinator.
                if self.state is State.COMMITTING_TRANSACTION:
                    self._set_state(State.IN_TRANSACTION)
            raise
        self._notifier.take_failures()  # the error of commit_transaction names them
        with self._buffer.lock:
            self._require_state({State.COMMITTING_TRANSACTION}, name)
        deadline = self._deadline(timeout_s)

        def state_after(error: KafkaError) -> State | None:
            """Return the state after a commit that failed; None if its outcome is not known."""
            if isinstance(error, KafkaTimeoutError):
                return None
            # These say that the commit did not happen, and that an abort is possible.
            not_committed = (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE)
            is_certain = getattr(error, "code", None) in not_committed
            return State.ABORTABLE_ERROR if is_certain else State.FATAL_ERROR

        self._call(
            lambda: self._end(deadline, commit=True, clean=True), deadline, name, state_after
        )
        self._transition(State.READY)

    def abort_transaction(self, timeout_s: float | None) -> None:
        """Drop unsent records and abort the transaction. After KafkaTimeoutError it can be called
        again; any other error of the coordinator is fatal."""
        name = "abort_transaction"
        deadline = self._deadline(timeout_s)
        with self._buffer.lock:
            self._require_state(
                {State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.ABORTING_TRANSACTION}, name
            )
        self._transition(State.ABORTING_TRANSACTION)
        self._call(
            lambda: self._abort(deadline),
            deadline,
            name,
            lambda error: None if isinstance(error, KafkaTimeoutError) else State.FATAL_ERROR,
        )
        self._transition(State.READY)

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: GroupMetadata | str,
        timeout_s: float | None,
    ) -> None:
        """Commit offsets of a group (the next ones to read) as a part of the transaction. `group`
        is the consumer's membership, or only the name of its group."""
        name = "send_offsets_to_transaction"
        deadline = self._deadline(timeout_s)
        member = _group_metadata(group)
        stored = offsets_to_commit(offsets, f"{name}: offsets")
        with self._buffer.lock:
            self._require_state({State.IN_TRANSACTION}, name)
        if not stored:
            return

        def commit_offsets() -> None:
            """Add the group to the transaction, and commit the offsets in it."""
            self._has_started = True
            commit_offsets_in(
                self._cluster,
                self.begin(),
                member.group_id,
                stored,
                deadline,
                member=member,
                version=self._offsets_version,
            )

        def state_after(error: KafkaError) -> State:
            """Return the state after offsets could not be added to the transaction."""
            # A broker that is too old for these offsets can still abort.
            lost = _is_final(error) and not isinstance(error, UnsupportedVersionError)
            return State.FATAL_ERROR if lost else State.ABORTABLE_ERROR

        self._call(commit_offsets, deadline, name, state_after)

    # --- requests, in the I/O thread --------------------------------------------------------------

    def begin(self, within_ms: float = math.inf) -> Transaction:
        """Return the producer id and epoch with which the sender writes: those of
        `init_transactions` or of the last end of a transaction."""
        if self.identity is None:
            raise TransactionError("write: init_transactions was not called")
        return self.identity

    def _init(self, deadline: Deadline) -> None:
        """Take the transactional id over, and find out which protocol its coordinator has."""
        tid = self.transactional_id
        self.identity = self._take_over(self._timeout_ms, deadline)
        node_id = self._cluster.coordinators.get((FOR_TRANSACTION, tid))
        if node_id is None:
            node_id = find_coordinator(self._cluster, tid, FOR_TRANSACTION, deadline)
        connection = self._cluster.connection(node_id, deadline)
        feature_level = connection.features.get("transaction.version", 0)
        # `versions` has the lowest and the highest version of each request.
        has_version_2 = feature_level >= TRANSACTION_VERSION_2 and all(
            connection.versions.get(kind.API_KEY, (0, 0))[1] >= version
            for kind, version in (
                (messages.ProduceRequest, PRODUCE_VERSION),
                (messages.EndTxnRequest, END_VERSION),
                (messages.TxnOffsetCommitRequest, OFFSETS_VERSION),
            )
        )
        if has_version_2:
            self.produce_version = PRODUCE_VERSION
            self._end_version, self._offsets_version = END_VERSION, OFFSETS_VERSION
        log.info(
            "transactional.id %s: producer id %d epoch %d, %s protocol",
            *self.identity,
            "second" if has_version_2 else "first",
        )

    def _next_epoch(self, deadline: Deadline) -> None:
        """Request the next producer epoch (KIP-360). Raises UnsupportedVersionError if brokers are
        too old for that and the sequence numbers have a gap."""
        before = self.begin()
        try:
            self.identity = self._take_over(self._timeout_ms, deadline, owner=before)
        except EncodeError as error:  # the version lacks the fields
            if self._has_gaps:  # else the present epoch will do
                raise UnsupportedVersionError(
                    f"transactional.id {self.transactional_id!r}: brokers before Kafka 2.5 cannot "
                    "give the next epoch after an error; close the producer and make a new one"
                ) from error
        self._has_gaps = self._response_lost = False
        if self.identity != before:
            self._thread.sender.reset_producer_ids()

    def _abort(self, deadline: Deadline) -> None:
        """Abort the transaction: fail the records that were not sent, wait for batches in flight,
        and send EndTxn.

        It waits because before Kafka 3.6 a batch that arrives after EndTxn begins a transaction
        that nobody ends.
        """
        thread = self._thread
        thread.fail_unsent(TransactionError("the transaction was aborted"))
        request_ms = self._settings.client.request_timeout_ms
        clean = thread.await_responses(deadline.sooner(request_ms)) and not thread.sender.has_gaps
        self._notifier.take_failures()
        self._end(deadline, commit=False, clean=clean)

    def _end(self, deadline: Deadline, *, commit: bool, clean: bool) -> None:
        """Commit or abort the transaction. `clean`: every record was acknowledged, or never sent.
        Raises KafkaTimeoutError if the outcome is not known: then only the same call may be
        repeated."""
        before = self.begin()
        if self._has_started:
            self._send_end(before, deadline, commit=commit)
        self.partitions = set()
        self._has_started = False
        if self.identity == before:
            self._has_gaps = self._has_gaps or not clean
        else:  # the next epoch (KIP-890), in which sequence numbers begin anew
            self._response_lost = False
            self._thread.sender.reset_producer_ids()

    def _send_end(self, transaction: Transaction, deadline: Deadline, *, commit: bool) -> None:
        """Send EndTxn until there is a response. Sets `_response_lost` if a response was lost, and
        the next producer id and epoch, if the response has them (KIP-890)."""
        tid = transaction.transactional_id

        def note_lost_response(error: KafkaError) -> None:
            """Remember that a response was lost: a BrokerError is a response."""
            self._response_lost = self._response_lost or not isinstance(error, BrokerError)

        hints = {
            **HINTS,
            ErrorCode.INVALID_TXN_STATE: (
                "the transaction has ended otherwise: it was open for longer than "
                "transaction.timeout.ms and the broker aborted it, or another writer has taken "
                "over this transactional id"
            ),
        }
        handler = RequestEach(
            self._cluster, {tid: end_request(transaction, commit)}, hints, self._end_version
        )
        lookup = ToCoordinator(self._cluster, FOR_TRANSACTION)
        what = "committing a transaction" if commit else "aborting a transaction"
        try:
            responses = lookup.call_all([tid], handler, deadline, what, on_retry=note_lost_response)
            response = responses[tid]
        except BrokerError as error:
            # The coordinator has no partitions: the requests that added them did not arrive. They
            # may still do, so the next transaction needs a new epoch (`_response_lost`).
            if commit or error.code != ErrorCode.INVALID_TXN_STATE:
                raise
            self._response_lost = True
            return
        if response.producer_id != NO_PRODUCER_ID:
            self.identity = Transaction(tid, response.producer_id, response.producer_epoch)

    # --- the end ----------------------------------------------------------------------------------

    @property
    def must_abort(self) -> bool:
        """Whether `close` must abort an open transaction: not one whose commit has begun, which the
        coordinator may have committed."""
        return self.state in (
            State.IN_TRANSACTION,
            State.ABORTABLE_ERROR,
            State.ABORTING_TRANSACTION,
        )

    def abort_open(self, timeout_s: float) -> None:
        """Abort the open transaction, because the producer closes. A failure is logged, not
        raised."""
        tid = self.transactional_id
        log.warning("transaction %s is aborted: the producer is closed", tid)
        try:
            self.abort_transaction(timeout_s)
        except KafkaError as error:
            log.warning(
                "transaction %s could not be aborted; if it is open, the brokers do it after "
                "transaction.timeout.ms: %s",
                tid,
                error,
            )

    def close(self) -> None:
        """Close the connections, once the I/O thread has ended."""
        self._cluster.close()

    # --- records that fail ----------------------------------------------------------------------

    def _on_failure(self, error: KafkaError) -> KafkaError:
        """Record in the I/O thread that records failed with this error. Return the error that their
        handles raise: ProducerFencedError if the producer is fenced, as in Java; else the same."""
        with self._buffer.lock:
            self.record_failed(error)
            reason = self._reason
        return reason if isinstance(reason, ProducerFencedError) else self._as_fenced(error)

    def record_failed(self, error: KafkaError) -> None:
        """Go to the state ABORTABLE_ERROR, or FATAL_ERROR if the producer is fenced, because a
        record of the transaction has failed. The caller holds the buffer's lock."""
        if self.state not in (State.IN_TRANSACTION, State.COMMITTING_TRANSACTION):
            return
        reported = self._as_fenced(error)
        fenced = isinstance(reported, ProducerFencedError)
        self._set_state(State.FATAL_ERROR if fenced else State.ABORTABLE_ERROR, reported)
        if not fenced:
            reported = TransactionError(f"the transaction can only be aborted, since {error}")
        self._thread.fail_later(reported)

    # --- from state to state ----------------------------------------------------------------------

    def _call(
        self,
        action: Callable[[], None],
        deadline: Deadline,
        name: str,
        state_after: Callable[[KafkaError], State | None],
    ) -> None:
        """Run `action` in the I/O thread. If it fails, go to the state that `state_after` returns
        for the error (None: the state stays), and raise the error."""
        try:
            self._thread.call(action, deadline, name)
        except KafkaError as error:
            reported = self._as_fenced(error)
            state = state_after(error)
            if state is not None:
                self._transition(state, reported)
            raise reported from error.__cause__

    def _transition(self, to: State, reason: KafkaError | None = None) -> None:
        """Take the buffer's lock and call `_set_state`, unless `to` is the present state."""
        with self._buffer.lock:
            if self.state is not to:
                self._set_state(to, reason)

    def _set_state(self, to: State, reason: KafkaError | None = None) -> None:
        """Go to this state, because of the error `reason` if there is one. The caller holds the
        buffer's lock. Raises TransactionError if the current state does not lead there."""
        if to is not State.FATAL_ERROR and to not in TRANSITIONS[self.state]:
            raise TransactionError(f"from {self.state.name} to {to.name}: {self.state.value}")
        self.state = to
        self._reason = reason
        self._refuse_by_state()

    def _refuse_by_state(self) -> None:
        """Let the buffer refuse records, unless a transaction is open. The caller holds the
        buffer's lock."""
        if self.state is State.IN_TRANSACTION:
            self._buffer.refuse(None)
            return
        self._buffer.close_open()

        def refusal() -> KafkaError:
            """Return the error of records that come after the transaction has ended."""
            try:
                self._require_state({State.IN_TRANSACTION}, "send")
            except KafkaError as error:
                return error
            return TransactionError("send: the transaction has just ended")

        self._buffer.refuse(refusal)

    def _require_state(self, states: Iterable[State], doing: str) -> None:
        """Raise TransactionError unless the state is one of these.

        Its cause is the error that led to the state; if that is a ProducerFencedError, raise it
        instead. `doing` names the call in the message.
        """
        if self.state in states:
            return
        reason = self._reason
        if isinstance(reason, ProducerFencedError):
            self.is_fence_reported = True
            again = copy.copy(reason)
            again.args = (f"{doing}: {again}", *again.args[1:])
            raise again from reason
        text = f"{doing}: {self.state.value}"
        if reason is not None:
            text += f" (transactional.id {self.transactional_id!r}: {reason})"
        raise TransactionError(text) from reason

    def _as_fenced(self, error: KafkaError) -> KafkaError:
        """Return a ProducerFencedError in place of an error with one of the codes FENCED; else the
        same error."""
        code = getattr(error, "code", None)
        if code not in FENCED or isinstance(error, ProducerFencedError):
            return error
        where = getattr(error, "where", "") or "a write"
        if isinstance(error, ProduceError):
            where = f"Produce of {TopicPartition(error.topic, error.partition)}"
        why = (
            f"another producer has taken over this transactional id, {self.transactional_id!r} (or "
            "the transaction was open for longer than transaction.timeout.ms, and the brokers "
            "ended it)"
        )
        if code == ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            why = f"transactional.id {self.transactional_id!r}: {HINTS[code]}"
        fenced = ProducerFencedError(code, where, f"{why}: close this producer and make a new one")
        fenced.__cause__ = error
        return fenced

    def _deadline(self, timeout_s: float | None) -> Deadline:
        """Return the deadline of a call: `timeout_s`, or max.block.ms if that is None."""
        return deadline_of(timeout_s) or Deadline(self._settings.producer.max_block_ms)


def _is_final(error: KafkaError) -> bool:
    """Return whether a producer cannot continue after this error."""
    if isinstance(error, KafkaTimeoutError):
        return False
    final = FENCED | {
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
    return getattr(error, "code", None) in final or isinstance(error, UnsupportedVersionError)


def _fatal_if_final(error: KafkaError) -> State | None:
    """Return FATAL_ERROR if a producer cannot continue after this error, else None: the state
    stays."""
    return State.FATAL_ERROR if _is_final(error) else None


def _group_metadata(group: GroupMetadata | str) -> GroupMetadata:
    """Return the argument `group` as GroupMetadata; a group's name becomes that of a client that is
    not a member. Raises OptionError."""
    metadata = GroupMetadata(group) if isinstance(group, str) else group
    if not isinstance(metadata, GroupMetadata) or not metadata.group_id:
        raise OptionError(
            f"group must be a group's name, or a consumer's group metadata, got {group!r}"
        )
    return metadata
