"""The transaction that a producer writes in: begun and filled here, ended elsewhere.

It talks to its coordinator over connections of its own: those of the producer carry record batches
whose answers are still to come.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Protocol, Self

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.configs import broker_configs
from sparkkafka.client.cluster.coordinator import FOR_TRANSACTION, find_coordinator
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.transactions.inspection import describe_transactions
from sparkkafka.client.transactions.requests import (
    EXPLANATIONS,
    FENCED,
    Transaction,
    add_partitions,
    explained,
    init_transactions,
)
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import ClientOptions
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, UnsupportedVersionError

log = logging.getLogger(__name__)

MAX_TIMEOUT_CONFIG = "transaction.max.timeout.ms"
DEFAULT_MAX_TIMEOUT_MS = 900_000
"""A broker's transaction.max.timeout.ms if nobody changed it."""

ABORT_TIMEOUT_MS = 10_000
"""How long a task that failed anyway tries to abort what it wrote."""


class SenderTransaction(Protocol):
    """The transaction that batches are part of.

    A KafkaTimeoutError of `begin` or `add` is one attempt that came to nothing: the sender tries
    again, as long as its batches live.
    """

    transactional_id: str

    @property
    def produce_version(self) -> int | None:
        """The version of Produce to use; None for the usual one."""

    def begin(self) -> Transaction: ...

    def add(self, partitions: Iterable[TopicPartition]) -> None: ...


class ProducerTransaction:
    """One transaction. Use it under `with`: an exception inside aborts it.

    `timeout_ms` None asks for the longest that the broker allows. `attempt_ms` is how long `begin`
    and `add` wait for answers: then they raise KafkaTimeoutError, and may be called again.
    `other_ids` are for the case that a transaction is open under `transactional_id` already: it may
    be somebody's who is still to count. `partitions` are those that it may be written to. `words`
    explain error codes to people.
    """

    produce_version: int | None = None

    def __init__(
        self,
        options: ClientOptions,
        transactional_id: str,
        timeout_ms: int | None,
        attempt_ms: int,
        other_ids: Iterable[str] = (),
        words: Mapping[int, str] = EXPLANATIONS,
    ) -> None:
        self._words = words
        self._cluster = Cluster(options)
        self._timeout_ms = timeout_ms
        self._attempt_ms = attempt_ms
        self.transactional_id = transactional_id
        self._other_ids = list(other_ids)
        self.identity: Transaction | None = None
        self.partitions: set[TopicPartition] = set()
        self._may_be_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        try:
            # Who took the id over has aborted ours; to take it back would abort what is theirs.
            fenced = getattr(error, "code", None) in FENCED
            if exc_type is not None and self._may_be_open and not fenced:
                self._abort()
        finally:
            self._cluster.close()

    def begin(self) -> Transaction:
        """Take over the transactional id (once), or the first of the others under which nothing is
        open. If there is none, what an earlier writer left open is aborted.

        Raises BrokerError (not authorised, timeout too long), KafkaTimeoutError.
        """
        if self.identity is None:
            deadline = Deadline(self._attempt_ms)
            if self._other_ids:
                self._choose_id(deadline)
            if self._timeout_ms is None:
                try:
                    node_id = find_coordinator(
                        self._cluster, self.transactional_id, FOR_TRANSACTION, deadline
                    )
                except KafkaError as error:
                    raise explained(error, self._cluster.options.prefix, self._words) from error
                self._timeout_ms = max_timeout_ms(self._cluster, node_id, deadline)
            self.identity = self._init(self._timeout_ms, deadline)
        return self.identity

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Make partitions part of it, those that are not yet. Raises as `begin`."""
        new = set(partitions) - self.partitions
        if new:
            transaction = self.begin()
            # Before the request: if its answer is lost, they may be part of it.
            self._may_be_open = True
            deadline = Deadline(self._attempt_ms)
            add_partitions(self._cluster, transaction, sorted(new), deadline, self._words)
            # After it: what was not answered is added again before anything is written.
            self.partitions |= new

    def _choose_id(self, deadline: Deadline) -> None:
        ids = [self.transactional_id, *self._other_ids]
        try:
            states = describe_transactions(self._cluster, ids, deadline)
        except UnsupportedVersionError:  # before Kafka 3.0
            return
        unused = [key for key in ids if key not in states or not states[key].is_open]
        self.transactional_id = next(iter(unused), self.transactional_id)

    def _init(self, timeout_ms: int, deadline: Deadline) -> Transaction:
        tid = self.transactional_id
        found = init_transactions(self._cluster, [tid], timeout_ms, deadline, words=self._words)[
            tid
        ]
        if isinstance(found, KafkaError):
            raise found
        return found

    def _abort(self) -> None:
        """By taking the id over again: whatever of ours is still on its way is then refused, on all
        versions of brokers. (EndTxn leaves the epoch as it is, and before Kafka 3.6 a late batch
        would open a transaction that nobody ends.)"""
        try:
            self._init(self._timeout_ms or 0, Deadline(ABORT_TIMEOUT_MS))
        except KafkaError as error:
            log.warning(
                "transaction %s could not be aborted (readers wait until the next batch, or "
                "%stransaction.timeout.ms, ends it): %s",
                self.transactional_id,
                self._cluster.options.prefix,
                error,
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
