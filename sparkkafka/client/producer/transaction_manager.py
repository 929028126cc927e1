"""The transactions of a Producer: its state, the calls that each state allows, and the requests.

`transactions` has the requests that Spark's writes send as well. For a producer without
transactions, `Sender` requests the producer id.

    UNINITIALIZED -> READY -> IN_TRANSACTION -> COMMITTING_TRANSACTION -> READY
                                             -> ABORTING_TRANSACTION   -> READY
                              IN_TRANSACTION -> ABORTABLE_ERROR -> ABORTING_TRANSACTION
                                         any -> FATAL_ERROR
"""

from __future__ import annotations

import copy
import enum
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from sparkkafka.client.arguments import offsets_to_commit
from sparkkafka.client.cluster.request_driver import (
    FOR_TRANSACTION,
    ToCoordinator,
    call_all,
    find_coordinator,
)
from sparkkafka.client.deadline import CloseSignal, Deadline, deadline_of
from sparkkafka.client.group.committed_offsets import GroupMetadata
from sparkkafka.client.producer.futures import OutcomeNotifier
from sparkkafka.client.producer.record_accumulator import SendBuffer
from sparkkafka.client.producer.transactions import (
    FENCED,
    HINTS,
    RequestEach,
    SenderTransaction,
    Transaction,
    commit_offsets_in,
    end_request,
)
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition
from sparkkafka.config.client_settings import ProducerSettings
from sparkkafka.errors import (
    BrokerError,
    EncodeError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
    ProduceError,
    ProducerFencedError,
    TransactionError,
    UnsupportedVersionError,
)
from sparkkafka.protocol.constants import NO_PRODUCER_ID
from sparkkafka.protocol.messages import EndTxnRequest, ProduceRequest, TxnOffsetCommitRequest

if TYPE_CHECKING:
    from sparkkafka.client.producer.io_thread import ProducerThread

log = logging.getLogger(__name__)

TRANSACTION_VERSION_2 = 2
# Versions that only the second protocol may use (KIP-890; brokers do not enforce it).
PRODUCE_VERSION, END_VERSION, OFFSETS_VERSION = 12, 5, 5

_NOT_COMMITTED = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE})
"""Responses to a commit that say for sure that it did not happen, and that an abort is possible."""

_FINAL = FENCED | {
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


_END_HINTS: Mapping[int, str] = {
    **HINTS,
    ErrorCode.INVALID_TXN_STATE: (
        "the transaction has ended otherwise: it was open for longer than transaction.timeout.ms "
        "and the broker aborted it, or another writer has taken over this transactional id"
    ),
}


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


class TransactionManager(SenderTransaction):
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
        with self._buffer.lock:
            if self.state is not State.UNINITIALIZED:
                raise TransactionError(f"{name}: it was called before; once is enough")
        deadline = self._deadline(timeout_s)
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
            is_certain = getattr(error, "code", None) in _NOT_COMMITTED
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
        member = _group_metadata(group)
        stored = offsets_to_commit(offsets, f"{name}: offsets")
        with self._buffer.lock:
            self._require_state({State.IN_TRANSACTION}, name)
        if not stored:
            return
        deadline = self._deadline(timeout_s)

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
                (ProduceRequest, PRODUCE_VERSION),
                (EndTxnRequest, END_VERSION),
                (TxnOffsetCommitRequest, OFFSETS_VERSION),
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
            if self._has_gaps:
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
        else:
            self._response_lost = False
            self._thread.sender.reset_producer_ids()

    def _send_end(self, transaction: Transaction, deadline: Deadline, *, commit: bool) -> None:
        """Send EndTxn until there is a response. Sets `_response_lost` if a response was lost, and
        the next producer id and epoch, if the response has them (KIP-890)."""
        tid = transaction.transactional_id

        def note_lost_response(error: KafkaError) -> None:
            self._response_lost = self._response_lost or not isinstance(error, BrokerError)

        handler = RequestEach(
            self._cluster, {tid: end_request(transaction, commit)}, _END_HINTS, self._end_version
        )
        lookup = ToCoordinator(self._cluster, FOR_TRANSACTION)
        what = "committing a transaction" if commit else "aborting a transaction"
        try:
            response = call_all(
                self._cluster, [tid], handler, lookup, deadline, what, on_retry=note_lost_response
            )[tid]
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
                "transaction %s could not be aborted; the brokers do it after "
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
            again = copy.copy(reason)
            again.args = (f"{doing}: {again}", *again.args[1:])
            raise again from reason
        text = f"{doing}: {self.state.value}"
        if reason is not None:
            text += f" (transactional.id {self.transactional_id!r}: {reason})"
        raise TransactionError(text) from reason

    def _as_fenced(self, error: KafkaError) -> KafkaError:
        """Return a ProducerFencedError in place of an error whose code says that the producer is
        fenced; else the same error."""
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
    return getattr(error, "code", None) in _FINAL or isinstance(error, UnsupportedVersionError)


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
