"""The transactions that a sender writes in: one of a Spark task, which the driver ends, or those of
a library's Producer.

Each has connections to its coordinator: the sender's carry requests whose answers are to come.

Kafka has two protocols. In the first (all brokers), requests of their own add partitions and groups
to a transaction, and the epoch stays the same from one transaction to the next. In the second
(KIP-890: finalized feature transaction.version 2, Kafka 4.0), a write adds its partition, and each
end returns the next epoch, so that no late request can reach the next transaction.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Self

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.configs import broker_configs
from sparkkafka.client.cluster.request_driver import FOR_TRANSACTION, find_coordinator
from sparkkafka.client.deadline import CloseSignal, Deadline
from sparkkafka.client.producer.transaction_requests import (
    EXPLANATIONS,
    FENCED,
    GroupIdentity,
    Transaction,
    add_partitions,
    commit_offsets_in,
    end_transaction,
    explained,
    init_transactions,
)
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition
from sparkkafka.config.options import ClientOptions
from sparkkafka.errors import (
    BrokerError,
    EncodeError,
    ErrorCode,
    KafkaError,
    TransactionError,
    UnsupportedVersionError,
)
from sparkkafka.protocol.messages import EndTxnRequest, ProduceRequest, TxnOffsetCommitRequest

log = logging.getLogger(__name__)

FEATURE = "transaction.version"
SECOND_PROTOCOL = 2
# What only the second protocol may use (KIP-890; brokers do not enforce it).
PRODUCE_VERSION, END_VERSION, OFFSETS_VERSION = 12, 5, 5

MAX_TIMEOUT_CONFIG = "transaction.max.timeout.ms"
DEFAULT_MAX_TIMEOUT_MS = 900_000
"""A broker's transaction.max.timeout.ms if nobody changed it."""

ABORT_TIMEOUT_MS = 10_000
"""How long a failed task tries to abort what it wrote."""


class SenderTransaction(ABC):
    """The transaction that a sender's batches are part of.

    `begin` and `add` wait at most `attempt_ms`, or `within_ms` if that is less, then raise
    KafkaTimeoutError; the sender calls them again while its batches live. `words` explain error
    codes to people.
    """

    def __init__(
        self,
        options: ClientOptions,
        transactional_id: str,
        attempt_ms: int,
        words: Mapping[int, str] = EXPLANATIONS,
        close_signal: CloseSignal | None = None,
        *,
        for_task: bool = False,
    ) -> None:
        self._cluster = Cluster(options, close_signal=close_signal, for_task=for_task)
        self._attempt_ms = attempt_ms
        self._words = words
        self.transactional_id = transactional_id
        self.identity: Transaction | None = None
        self.partitions: set[TopicPartition] = set()
        self._has_parts = False  # or may have: an answer was lost

    @property
    def produce_version(self) -> int | None:
        """The version of Produce to use; None for the default."""
        return None

    @abstractmethod
    def begin(self, within_ms: float = math.inf) -> Transaction:
        """The identity to write with."""

    def add(self, partitions: Iterable[TopicPartition], within_ms: float = math.inf) -> None:
        """Make partitions part of the transaction, those that are not yet. Raises BrokerError (not
        authorised, fenced), KafkaTimeoutError."""
        new = set(partitions) - self.partitions
        if new:
            deadline = Deadline(min(self._attempt_ms, within_ms))
            transaction = self.begin(within_ms)
            self._has_parts = True  # before the request: if its answer is lost, they may be
            if self.produce_version is None:
                add_partitions(self._cluster, transaction, sorted(new), deadline, self._words)
            # After it: without an answer they are added again before anything is written.
            self.partitions |= new

    def _take_over(
        self, timeout_ms: int, deadline: Deadline, owner: Transaction | None = None
    ) -> Transaction:
        tid = self.transactional_id
        found = init_transactions(
            self._cluster, [tid], timeout_ms, deadline, owner=owner, words=self._words
        )[tid]
        if isinstance(found, KafkaError):
            raise found
        return found


class ProducerTransaction(SenderTransaction):
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
        words: Mapping[int, str] = EXPLANATIONS,
    ) -> None:
        super().__init__(options, transactional_id, attempt_ms, words, for_task=True)
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
            if exc_type is not None and self._has_parts and not fenced:
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
                    raise explained(error, self._cluster.options.prefix, self._words) from error
                self._timeout_ms = max_timeout_ms(self._cluster, node_id, deadline)
            self.identity = self._take_over(self._timeout_ms, deadline)
        return self.identity

    def _abort(self) -> None:
        """By taking the id over again: all brokers then refuse late batches. (EndTxn keeps the
        epoch, and before Kafka 3.6 a late batch would open a transaction that nobody ends.)"""
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


class RepeatedTransaction(SenderTransaction):
    """The transactions of a library's Producer, one after another, under one transactional id.

    Every method is called in the Producer's I/O thread. `transaction_steps` says when.
    """

    def __init__(
        self,
        options: ClientOptions,
        transactional_id: str,
        timeout_ms: int,
        attempt_ms: int,
        close_signal: CloseSignal | None = None,
    ) -> None:
        super().__init__(options, transactional_id, attempt_ms, close_signal=close_signal)
        self._timeout_ms = timeout_ms
        self._second_protocol = False
        self._answer_lost = False
        self._has_gaps = False

    def close(self) -> None:
        self._cluster.close()

    @property
    def produce_version(self) -> int | None:
        return PRODUCE_VERSION if self._second_protocol else None

    def begin(self, within_ms: float = math.inf) -> Transaction:
        if self.identity is None:
            raise TransactionError("write: init_transactions was not called")
        return self.identity

    def init(self, deadline: Deadline) -> None:
        """Take the transactional id over. Raises BrokerError, KafkaTimeoutError."""
        self.identity = self._take_over(self._timeout_ms, deadline)
        self._second_protocol = self._brokers_have_second_protocol(deadline)
        log.info(
            "transactional.id %s: producer id %d epoch %d, %s protocol",
            *self.identity,
            "second" if self._second_protocol else "first",
        )

    def _brokers_have_second_protocol(self, deadline: Deadline) -> bool:
        tid = self.transactional_id
        node_id = self._cluster.coordinators.get((FOR_TRANSACTION, tid))
        if node_id is None:
            node_id = find_coordinator(self._cluster, tid, FOR_TRANSACTION, deadline)
        connection = self._cluster.connection(node_id, deadline)
        return connection.features.get(FEATURE, 0) >= SECOND_PROTOCOL and all(
            connection.versions.get(kind.API_KEY, (0, 0))[1] >= version
            for kind, version in (
                (ProduceRequest, PRODUCE_VERSION),
                (EndTxnRequest, END_VERSION),
                (TxnOffsetCommitRequest, OFFSETS_VERSION),
            )
        )

    def end(self, deadline: Deadline, *, commit: bool, clean: bool) -> bool:
        """End the transaction; True if the identity changed.

        `clean`: every record was acknowledged, or never sent. Raises KafkaTimeoutError if the
        outcome is not known: then only the same may be tried again.
        """
        before = self.begin()
        if self._has_parts:
            self._end(before, deadline, commit=commit)
        if self.identity == before:
            self._has_gaps = self._has_gaps or not clean
        else:
            self._answer_lost = False
        self.partitions = set()
        self._has_parts = False
        return self.identity != before

    @property
    def wants_next_epoch(self) -> bool:
        """Whether the next transaction needs another epoch: sequence numbers have a gap, or
        (KAFKA-17754) a repeated request may still be on its way and would end it."""
        return self._has_gaps or self._answer_lost

    def next_epoch(self, deadline: Deadline) -> bool:
        """Get the next epoch (KIP-360); True if the identity changed.

        Raises UnsupportedVersionError if the brokers cannot give it and it has to be, BrokerError,
        KafkaTimeoutError.
        """
        before = self.begin()
        try:
            self.identity = self._take_over(self._timeout_ms, deadline, owner=before)
        except EncodeError as error:  # the version lacks the fields
            if self._has_gaps:
                raise UnsupportedVersionError(
                    f"transactional.id {self.transactional_id!r}: brokers before Kafka 2.5 cannot "
                    "give the next epoch after an error; close the producer and make a new one"
                ) from error
        self._has_gaps = self._answer_lost = False
        return self.identity != before

    def _end(self, transaction: Transaction, deadline: Deadline, *, commit: bool) -> None:
        def note(error: KafkaError) -> None:
            self._answer_lost = self._answer_lost or not isinstance(error, BrokerError)

        try:
            self.identity = end_transaction(
                self._cluster,
                transaction,
                commit=commit,
                deadline=deadline,
                version=END_VERSION if self._second_protocol else None,
                on_retry=note,
            )
        except BrokerError as error:
            # The coordinator has no partitions: the requests that added them did not arrive.
            if commit or error.code != ErrorCode.INVALID_TXN_STATE:
                raise
            self._answer_lost = True

    def commit_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: GroupIdentity,
        deadline: Deadline,
    ) -> None:
        """Offsets of a group count once the transaction is committed. Raises BrokerError."""
        self._has_parts = True
        commit_offsets_in(
            self._cluster,
            self.begin(),
            group.group_id,
            offsets,
            deadline,
            member=group,
            version=OFFSETS_VERSION if self._second_protocol else None,
        )


def max_timeout_ms(cluster: Cluster, node_id: int, deadline: Deadline) -> int:
    """The largest transaction timeout that a broker allows; its default if this user may not see
    settings of brokers. Raises KafkaTimeoutError."""
    try:
        configs = broker_configs(cluster, node_id, [MAX_TIMEOUT_CONFIG], deadline=deadline)
    except BrokerError as error:
        if error.code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        return DEFAULT_MAX_TIMEOUT_MS
    return int(configs.get(MAX_TIMEOUT_CONFIG) or DEFAULT_MAX_TIMEOUT_MS)
