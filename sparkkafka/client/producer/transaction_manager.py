"""The states of a Producer's transactions, in the user's threads: which call may follow which,
whether the producer takes records, what the I/O thread does, and where an error leads. The requests
are in `transactions`; `sender` requests the producer id of a producer without transactions.

    UNINITIALIZED -> READY -> IN_TRANSACTION -> COMMITTING_TRANSACTION -> READY
                                             -> ABORTING_TRANSACTION   -> READY
                              IN_TRANSACTION -> ABORTABLE_ERROR -> ABORTING_TRANSACTION
                                         any -> FATAL_ERROR
"""

from __future__ import annotations

import copy
import enum
import logging
from collections.abc import Callable, Iterable, Mapping

from sparkkafka.client.arguments import checked_mapping, checked_partition, offset_to_commit
from sparkkafka.client.deadline import Deadline, deadline_of
from sparkkafka.client.group.membership import GroupMetadata
from sparkkafka.client.producer.futures import OutcomeNotifier
from sparkkafka.client.producer.io_thread import ProducerThread
from sparkkafka.client.producer.send_buffer import SendBuffer
from sparkkafka.client.producer.transactions import FENCED, ProducerTransactions
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition, checked_topic
from sparkkafka.config.client_settings import ProducerSettings
from sparkkafka.errors import (
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
    ProduceError,
    ProducerFencedError,
    TransactionError,
    UnsupportedVersionError,
)

log = logging.getLogger(__name__)

MIN_ABORT_S = 1.0

_NOT_COMMITTED = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE})
"""Responses to a commit that say for sure that it did not happen, and that an abort is possible."""

_FINAL = FENCED | {
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
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


TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.UNINITIALIZED: frozenset({State.READY, State.FATAL_ERROR}),
    State.READY: frozenset({State.IN_TRANSACTION, State.FATAL_ERROR}),
    State.IN_TRANSACTION: frozenset(
        {
            State.COMMITTING_TRANSACTION,
            State.ABORTING_TRANSACTION,
            State.ABORTABLE_ERROR,
            State.FATAL_ERROR,
        }
    ),
    State.COMMITTING_TRANSACTION: frozenset(
        {State.IN_TRANSACTION, State.READY, State.ABORTABLE_ERROR, State.FATAL_ERROR}
    ),
    State.ABORTING_TRANSACTION: frozenset({State.READY, State.FATAL_ERROR}),
    State.ABORTABLE_ERROR: frozenset({State.ABORTING_TRANSACTION, State.FATAL_ERROR}),
    State.FATAL_ERROR: frozenset({State.FATAL_ERROR}),
}


class TransactionManager:
    """The calls of one producer; `Producer` documents them."""

    def __init__(
        self,
        settings: ProducerSettings,
        transaction: ProducerTransactions,
        buffer: SendBuffer,
        notifier: OutcomeNotifier,
        thread: ProducerThread,
    ) -> None:
        self.state = State.UNINITIALIZED
        self._reason: KafkaError | None = None  # of ABORTABLE_ERROR or FATAL_ERROR
        self._settings = settings
        self._transaction = transaction
        self._buffer = buffer
        self._notifier = notifier
        self._thread = thread
        thread.on_failure = self._on_failure
        with buffer.lock:
            self._refuse_by_state()

    # --- the user's calls -------------------------------------------------------------------------

    def init(self, timeout_s: float | None) -> None:
        """Do `Producer.init_transactions`."""
        name = "init_transactions"
        with self._buffer.lock:
            if self.state is not State.UNINITIALIZED:
                raise TransactionError(f"{name}: it was called before; once is enough")
        deadline = self._deadline(timeout_s)
        self._call(lambda: self._transaction.init(deadline), deadline, name, _fatal_if_final)
        self._transition(State.READY)

    def begin(self) -> None:
        """Do `Producer.begin_transaction`."""
        name = "begin_transaction"
        with self._buffer.lock:
            self._require_state({State.READY}, name)
        if self._transaction.wants_next_epoch:
            deadline = self._deadline(None)

            def next_epoch() -> None:
                if self._transaction.next_epoch(deadline):
                    self._thread.sender.reset_producer_ids()

            self._call(next_epoch, deadline, name, _fatal_if_final)
        self._transition(State.IN_TRANSACTION)

    def commit(self, timeout_s: float | None) -> None:
        """Do `Producer.commit_transaction`."""
        name = "commit_transaction"
        delivered_by = deadline_of(timeout_s)
        with self._buffer.lock:
            self._require_state({State.IN_TRANSACTION, State.COMMITTING_TRANSACTION}, name)
        self._transition(State.COMMITTING_TRANSACTION)
        try:
            self._thread.wait_for_all(delivered_by)
        except BaseException:
            with self._buffer.lock:
                # Nothing was sent to the coordinator.
                if self.state is State.COMMITTING_TRANSACTION:
                    self._set_state(State.IN_TRANSACTION)
            raise
        self._notifier.take_failures()  # they stand in the reason, if there were any
        with self._buffer.lock:
            self._require_state({State.COMMITTING_TRANSACTION}, name)
        deadline = self._deadline(timeout_s)

        def state_after(error: KafkaError) -> State | None:
            if isinstance(error, KafkaTimeoutError):
                return None
            is_certain = getattr(error, "code", None) in _NOT_COMMITTED
            return State.ABORTABLE_ERROR if is_certain else State.FATAL_ERROR

        self._call(
            lambda: self._end(deadline, commit=True, clean=True), deadline, name, state_after
        )
        self._transition(State.READY)

    def abort(self, timeout_s: float | None) -> None:
        """Do `Producer.abort_transaction`."""
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

    def _abort(self, deadline: Deadline) -> None:
        """Fail what is not sent, and end the transaction, in the I/O thread. This waits for batches
        in flight: before Kafka 3.6, a batch that arrives after the end begins a transaction that
        nobody ends."""
        thread = self._thread
        thread.fail_unsent(TransactionError("the transaction was aborted"))
        request_ms = self._settings.client.request_timeout_ms
        clean = thread.await_responses(deadline.sooner(request_ms)) and not thread.sender.has_gaps
        self._notifier.take_failures()
        self._end(deadline, commit=False, clean=clean)

    def _end(self, deadline: Deadline, *, commit: bool, clean: bool) -> None:
        """End the transaction, in the I/O thread: see `ProducerTransactions.end`."""
        if self._transaction.end(deadline, commit=commit, clean=clean):
            self._thread.sender.reset_producer_ids()

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: GroupMetadata | str,
        timeout_s: float | None,
    ) -> None:
        """Do `Producer.send_offsets_to_transaction`."""
        name = "send_offsets_to_transaction"
        member = _group_metadata(group)
        stored = _offsets_to_commit(offsets, f"{name}: offsets")
        with self._buffer.lock:
            self._require_state({State.IN_TRANSACTION}, name)
        if not stored:
            return
        deadline = self._deadline(timeout_s)

        def state_after(error: KafkaError) -> State:
            # A broker that is too old for these offsets can still abort.
            lost = _is_final(error) and not isinstance(error, UnsupportedVersionError)
            return State.FATAL_ERROR if lost else State.ABORTABLE_ERROR

        self._call(
            lambda: self._transaction.commit_offsets(stored, member, deadline),
            deadline,
            name,
            state_after,
        )

    @property
    def must_abort(self) -> bool:
        """Whether a transaction is open that `close` must abort."""
        return self.state in (
            State.IN_TRANSACTION,
            State.ABORTABLE_ERROR,
            State.ABORTING_TRANSACTION,
        )

    def close(self, deadline: Deadline) -> None:
        """Abort what is open (`must_abort`). Never raises."""
        tid = self._transaction.transactional_id
        log.warning("transaction %s is aborted: the producer is closed", tid)
        try:
            self.abort(max(deadline.remaining_s(), MIN_ABORT_S))
        except KafkaError as error:
            log.warning(
                "transaction %s could not be aborted; the brokers do it after "
                "transaction.timeout.ms: %s",
                tid,
                error,
            )

    def free(self) -> None:
        """Close connections, once the I/O thread has ended."""
        self._transaction.close()

    # --- records that fail ----------------------------------------------------------------------

    def _on_failure(self, error: KafkaError) -> KafkaError:
        """Note that records failed, in the I/O thread. Return what their handles raise:
        ProducerFencedError if the producer is fenced, as in Java; else the same error."""
        with self._buffer.lock:
            self.record_failed(error)
            reason = self._reason
        return reason if isinstance(reason, ProducerFencedError) else self._as_fenced(error)

    def record_failed(self, error: KafkaError) -> None:
        """Note that a record failed: its transaction must not be committed any more. With the
        buffer's lock."""
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
        """Run `action` in the I/O thread. `state_after` returns the state that an error leads
        to, None for no other. Raises the error."""
        try:
            self._thread.call(action, deadline, name)
        except KafkaError as error:
            reported = self._as_fenced(error)
            state = state_after(error)
            if state is not None:
                self._transition(state, reported)
            raise reported from error.__cause__

    def _transition(self, to: State, reason: KafkaError | None = None) -> None:
        """Go to another state; `reason` is the error that led there. Takes the buffer's lock."""
        with self._buffer.lock:
            if self.state is not to:
                self._set_state(to, reason)

    def _set_state(self, to: State, reason: KafkaError | None = None) -> None:
        """Go to a state, with the buffer's lock. Raises TransactionError if none leads there from
        the current one."""
        if to not in TRANSITIONS[self.state]:
            raise TransactionError(f"from {self.state.name} to {to.name}: {self.state.value}")
        self.state = to
        self._reason = reason
        self._refuse_by_state()

    def _refuse_by_state(self) -> None:
        """Take records only in an open transaction. With the buffer's lock."""
        if self.state is State.IN_TRANSACTION:
            self._buffer.refuse(None)
            return
        self._buffer.close_open()

        def refusal() -> KafkaError:
            try:
                self._require_state({State.IN_TRANSACTION}, "send")
            except KafkaError as error:
                return error
            return TransactionError("send: the transaction has just ended")

        self._buffer.refuse(refusal)

    def _require_state(self, states: Iterable[State], doing: str) -> None:
        """Raise TransactionError in any other state, caused by the error that led there; that error
        itself if it is ProducerFencedError. `doing` is the call, for the message."""
        if self.state in states:
            return
        reason = self._reason
        if isinstance(reason, ProducerFencedError):
            again = copy.copy(reason)
            again.args = (f"{doing}: {again}", *again.args[1:])
            raise again from reason
        text = f"{doing}: {self.state.value}"
        if reason is not None:
            text += f" (transactional.id {self._transaction.transactional_id!r}: {reason})"
        raise TransactionError(text) from reason

    def _as_fenced(self, error: KafkaError) -> KafkaError:
        """Return ProducerFencedError for an error whose code means it; else the same error."""
        code = getattr(error, "code", None)
        if code not in FENCED or isinstance(error, ProducerFencedError):
            return error
        where = getattr(error, "where", "") or "a write"
        if isinstance(error, ProduceError):
            where = f"Produce of {TopicPartition(error.topic, error.partition)}"
        fenced = ProducerFencedError(
            code,
            where,
            "another producer has taken over this transactional id, "
            f"{self._transaction.transactional_id!r} (or the transaction was open for longer than "
            "transaction.timeout.ms, and the brokers ended it): close this producer and make a new "
            "one",
        )
        fenced.__cause__ = error
        return fenced

    def _deadline(self, timeout_s: float | None) -> Deadline:
        """Return the deadline of a call: max.block.ms without `timeout_s`."""
        return deadline_of(timeout_s) or Deadline(self._settings.producer.max_block_ms)


def _is_final(error: KafkaError) -> bool:
    """Whether a producer cannot continue after this error."""
    if isinstance(error, KafkaTimeoutError):
        return False
    return getattr(error, "code", None) in _FINAL or isinstance(error, UnsupportedVersionError)


def _fatal_if_final(error: KafkaError) -> State | None:
    """Return FATAL_ERROR for an error after which a producer cannot continue; None: the state
    stays."""
    return State.FATAL_ERROR if _is_final(error) else None


def _group_metadata(group: GroupMetadata | str) -> GroupMetadata:
    """Check the argument `group`; a group's name stands for no member of it. Raises OptionError."""
    found = GroupMetadata(group) if isinstance(group, str) else group
    if not isinstance(found, GroupMetadata) or not found.group_id:
        raise OptionError(
            f"group must be a group's name, or a consumer's group metadata, got {group!r}"
        )
    return found


def _offsets_to_commit(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata], what: str
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Check the argument `offsets`, and return what is committed for each. Raises OptionError."""
    found = {}
    for key, value in checked_mapping(offsets, what, 'TopicPartition("orders", 0): 5').items():
        tp = checked_partition(key, what)
        checked_topic(tp.topic)
        found[tp] = offset_to_commit(tp, value, what)
    return found
