"""The transactions of a Producer: which step may follow which, and the requests for each.

    UNINITIALIZED -> READY -> OPEN -> COMMITTING -> READY
                                   -> ABORTING   -> READY
                              OPEN -> BROKEN -> ABORTING     a record failed: it can only be aborted
                               any -> LOST                   fenced, or an error that is for good

Two protocols. In the first (all brokers), partitions and groups are made part of a transaction by
requests of their own, and the epoch stays the same from one transaction to the next. In the second
(KIP-890: finalized feature transaction.version 2, Kafka 4.0), a write makes its partition part of
the transaction, and each end gives the next epoch, so that nothing late can reach the next one.

Steps are taken in the user's threads, requests are sent in the producer's I/O thread.
"""

from __future__ import annotations

import copy
import enum
import logging
from collections.abc import Iterable, Mapping

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.coordinator import FOR_TRANSACTION, known_coordinators
from sparkkafka.client.deadline import CloseSignal, Deadline
from sparkkafka.client.group.committed_offsets import StoredOffset
from sparkkafka.client.transactions.requests import (
    FENCED,
    GroupIdentity,
    Transaction,
    add_partitions,
    commit_offsets_in,
    end_transaction,
    init_transactions,
)
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import ClientOptions
from sparkkafka.errors import (
    BrokerError,
    EncodeError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    ProduceError,
    ProducerFencedError,
    TransactionError,
    UnsupportedVersionError,
)
from sparkkafka.protocol.messages import EndTxnRequest, ProduceRequest, TxnOffsetCommitRequest

log = logging.getLogger(__name__)

FEATURE = "transaction.version"
SECOND_PROTOCOL = 2
# What only the second protocol may use (KIP-890; brokers do not enforce it).
PRODUCE_VERSION, END_VERSION, OFFSETS_VERSION = 12, 5, 5


class Step(enum.Enum):
    """Where a transactional producer stands; the value says it to people."""

    UNINITIALIZED = "init_transactions was not called"
    READY = "no transaction is open: call begin_transaction"
    OPEN = "a transaction is open already"
    COMMITTING = "a commit has begun and its outcome is not known: call commit_transaction again"
    ABORTING = "an abort has begun and is not confirmed: call abort_transaction again"
    BROKEN = "the transaction can only be aborted: call abort_transaction"
    LOST = "the producer cannot go on: close it and make a new one"


MOVES: Mapping[Step, frozenset[Step]] = {
    Step.UNINITIALIZED: frozenset({Step.READY, Step.LOST}),
    Step.READY: frozenset({Step.OPEN, Step.LOST}),
    Step.OPEN: frozenset({Step.COMMITTING, Step.ABORTING, Step.BROKEN, Step.LOST}),
    Step.COMMITTING: frozenset({Step.OPEN, Step.READY, Step.BROKEN, Step.LOST}),
    Step.ABORTING: frozenset({Step.READY, Step.LOST}),
    Step.BROKEN: frozenset({Step.ABORTING, Step.LOST}),
    Step.LOST: frozenset({Step.LOST}),
}


class TransactionManager:
    """One transactional id. Also what the sender asks for its identity (`SenderTransaction`)."""

    def __init__(
        self,
        options: ClientOptions,
        transactional_id: str,
        timeout_ms: int,
        attempt_ms: int,
        close_signal: CloseSignal | None = None,
    ) -> None:
        self.transactional_id = transactional_id
        self.step = Step.UNINITIALIZED
        self.reason: KafkaError | None = None
        """Why the transaction is broken, or the producer lost."""
        # Of its own: the sender's connections have answers to come.
        self._cluster = Cluster(options, close_signal=close_signal)
        self._timeout_ms = timeout_ms
        self._attempt_ms = attempt_ms
        self._identity: Transaction | None = None
        self._second = False
        self._partitions: set[TopicPartition] = set()
        self._has_parts = False
        self._answer_lost = False
        self._has_gaps = False

    def close(self) -> None:
        self._cluster.close()

    # --- steps ----------------------------------------------------------------------------------

    def must_be(self, wanted: Iterable[Step], doing: str) -> None:
        """Raises TransactionError, with the reason as its cause, if the step is another; the
        reason itself if it is ProducerFencedError."""
        if self.step in wanted:
            return
        if isinstance(self.reason, ProducerFencedError):
            again = copy.copy(self.reason)
            again.args = (f"{doing}: {again}", *again.args[1:])
            raise again from self.reason
        text = f"{doing}: {self.step.value}"
        if self.reason is not None:
            text += f" (transactional.id {self.transactional_id!r}: {self.reason})"
        raise TransactionError(text) from self.reason

    def move(self, to: Step, reason: KafkaError | None = None) -> None:
        if to not in MOVES[self.step]:
            raise TransactionError(f"from {self.step.name} to {to.name}: {self.step.value}")
        self.step = to
        self.reason = reason

    def failed(self, error: KafkaError) -> bool:
        """Records of the open transaction were given up, or something else went wrong with it.

        Returns whether the step has changed.
        """
        if self.step not in (Step.OPEN, Step.COMMITTING):
            return False
        error = self.in_words(error)
        fenced = isinstance(error, ProducerFencedError)
        self.move(Step.LOST if fenced else Step.BROKEN, error)
        return True

    def in_words(self, error: KafkaError) -> KafkaError:
        """ProducerFencedError for what says that; else the same error."""
        code = getattr(error, "code", None)
        if code not in FENCED or isinstance(error, ProducerFencedError):
            return error
        where = getattr(error, "where", "") or "a write"
        if isinstance(error, ProduceError):
            where = f"Produce of {TopicPartition(error.topic, error.partition)}"
        fenced = ProducerFencedError(
            code,
            where,
            f"another producer has taken over this transactional id, {self.transactional_id!r} "
            "(or the transaction was open for longer than transaction.timeout.ms, and the brokers "
            "ended it): close this producer and make a new one",
        )
        fenced.__cause__ = error
        return fenced

    # --- what the sender asks; in the I/O thread -------------------------------------------------

    @property
    def produce_version(self) -> int | None:
        return PRODUCE_VERSION if self._second else None

    def begin(self) -> Transaction:
        """The identity to write with."""
        if self._identity is None:
            raise TransactionError(f"write: {Step.UNINITIALIZED.value}")
        return self._identity

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Make partitions part of the transaction. Raises BrokerError, KafkaTimeoutError after
        `attempt_ms`."""
        new = set(partitions) - self._partitions
        if not new:
            return
        # Before the request: if its answer is lost, they may be part of it.
        self._has_parts = True
        if not self._second:
            deadline = Deadline(self._attempt_ms)
            add_partitions(self._cluster, self.begin(), sorted(new), deadline)
        self._partitions |= new

    # --- requests; in the I/O thread -------------------------------------------------------------

    def init(self, deadline: Deadline) -> None:
        """Take the transactional id over. Raises BrokerError, KafkaTimeoutError."""
        self._take_over(deadline, owner=None)
        self._second = self._has_second_protocol(deadline)
        log.info(
            "transactional.id %s: producer id %d epoch %d, %s protocol",
            *self.begin(),
            "second" if self._second else "first",
        )

    def _take_over(self, deadline: Deadline, owner: Transaction | None) -> None:
        tid = self.transactional_id
        found = init_transactions(self._cluster, [tid], self._timeout_ms, deadline, owner=owner)[
            tid
        ]
        if isinstance(found, KafkaError):
            raise found
        self._identity = found

    def _has_second_protocol(self, deadline: Deadline) -> bool:
        tid = self.transactional_id
        node_id = known_coordinators(self._cluster, [tid], FOR_TRANSACTION, deadline)[tid]
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
        """End the transaction; whether the identity is another one now.

        `clean` says that every record was acknowledged, or never sent. Raises KafkaTimeoutError if
        the outcome is not known: the same may be tried again, and nothing else.
        """
        before = self.begin()
        if self._has_parts:
            self._end(deadline, commit=commit)
        if self._identity == before:
            self._has_gaps = self._has_gaps or not clean
        else:
            self._answer_lost = False
        self._partitions = set()
        self._has_parts = False
        return self._identity != before

    @property
    def wants_next_epoch(self) -> bool:
        """Whether the next transaction is to be written with another epoch: sequence numbers have a
        gap, or (KAFKA-17754) a repeated request may still be on its way and would end it."""
        return self._has_gaps or self._answer_lost

    def next_epoch(self, deadline: Deadline) -> bool:
        """Get it (KIP-360); whether the identity is another one now.

        Raises UnsupportedVersionError if the brokers cannot give it and it has to be, BrokerError,
        KafkaTimeoutError.
        """
        before = self.begin()
        try:
            self._take_over(deadline, owner=before)
        except EncodeError as error:  # the version lacks the fields
            if self._has_gaps:
                raise UnsupportedVersionError(
                    f"transactional.id {self.transactional_id!r}: brokers before Kafka 2.5 cannot "
                    "give the next epoch after an error; close the producer and make a new one"
                ) from error
        self._has_gaps = self._answer_lost = False
        return self._identity != before

    def _end(self, deadline: Deadline, *, commit: bool) -> None:
        def note(error: KafkaError) -> None:
            self._answer_lost = self._answer_lost or not isinstance(error, BrokerError)

        try:
            self._identity = end_transaction(
                self._cluster,
                self.begin(),
                commit=commit,
                deadline=deadline,
                version=END_VERSION if self._second else None,
                on_retry=note,
            )
        except BrokerError as error:
            # The coordinator knows of no partition: the requests that added them did not arrive.
            if commit or error.code != ErrorCode.INVALID_TXN_STATE:
                raise
            self._answer_lost = True

    def commit_offsets(
        self,
        offsets: Mapping[TopicPartition, StoredOffset],
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
            version=OFFSETS_VERSION if self._second else None,
        )


def is_final(error: KafkaError) -> bool:
    """Whether a producer cannot go on after this error of a transaction's request."""
    if isinstance(error, KafkaTimeoutError):
        return False
    code = getattr(error, "code", None)
    return code in FENCED or code in _FINAL or isinstance(error, UnsupportedVersionError)


_FINAL = frozenset(
    {
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
