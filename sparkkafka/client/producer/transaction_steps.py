"""Steps of a Producer's transactions, as the user's threads take them.

What belongs to one step stands together here: which step must come before, whether the buffer takes
records in it, what the I/O thread is asked to do, and what an error leads to.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from sparkkafka.client.deadline import Deadline, deadline_of
from sparkkafka.client.group.committed_offsets import StoredOffset
from sparkkafka.client.producer.accumulator import RecordBuffer
from sparkkafka.client.producer.futures import NoticeBoard
from sparkkafka.client.producer.io_thread import ProducerLoop
from sparkkafka.client.transactions.manager import Step, TransactionManager, is_final
from sparkkafka.client.transactions.requests import GroupIdentity
from sparkkafka.client.values import TopicPartition, checked_topic, offset_number
from sparkkafka.config.client_settings import ProducerSettings
from sparkkafka.config.kinds import INT32_MAX
from sparkkafka.errors import (
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
    ProducerFencedError,
    TransactionError,
    UnsupportedVersionError,
)

log = logging.getLogger(__name__)

LEAST_ABORT_S = 1.0

_NOT_COMMITTED = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE})
"""Answers to a commit that say for sure that it did not happen, and that an abort is possible."""


class TransactionSteps:
    """The steps of one producer. `Producer` has the words for each."""

    def __init__(
        self,
        settings: ProducerSettings,
        manager: TransactionManager,
        buffer: RecordBuffer,
        board: NoticeBoard,
        loop: ProducerLoop,
    ) -> None:
        self._settings = settings
        self._manager = manager
        self._buffer = buffer
        self._board = board
        self._loop = loop
        with buffer.lock:
            self._refuse_by_step()

    def init(self, timeout_s: float | None) -> None:
        manager, name = self._manager, "init_transactions"
        with self._buffer.lock:
            if manager.step is not Step.UNINITIALIZED:
                raise TransactionError(f"{name}: it was called before; once is enough")
        deadline = self._deadline(timeout_s)
        try:
            self._loop.call(lambda: manager.init(deadline), deadline, name)
        except KafkaError as error:
            self._lost_if_final(error)
            raise manager.in_words(error) from error.__cause__
        self._move(Step.READY)

    def begin(self) -> None:
        manager, name = self._manager, "begin_transaction"
        with self._buffer.lock:
            manager.must_be({Step.READY}, name)
        if manager.wants_next_epoch:
            deadline = self._deadline(None)

            def next_epoch() -> None:
                if manager.next_epoch(deadline):
                    self._loop.sender.deliveries.forget_identities()

            try:
                self._loop.call(next_epoch, deadline, name)
            except KafkaError as error:
                self._lost_if_final(error)
                raise manager.in_words(error) from error.__cause__
        self._move(Step.OPEN)

    def commit(self, timeout_s: float | None) -> None:
        manager, name = self._manager, "commit_transaction"
        delivered_by = deadline_of(timeout_s)
        with self._buffer.lock:
            manager.must_be({Step.OPEN, Step.COMMITTING}, name)
        self._move(Step.COMMITTING)
        try:
            self._loop.wait_for_all(delivered_by)
        except BaseException:
            with self._buffer.lock:
                if manager.step is Step.COMMITTING:  # nothing was asked of the coordinator
                    manager.move(Step.OPEN)
                    self._refuse_by_step()
            raise
        self._board.take_failures()  # they stand in the reason, if there were any
        with self._buffer.lock:
            manager.must_be({Step.COMMITTING}, name)
        deadline = self._deadline(timeout_s)
        try:
            self._loop.call(lambda: self._end(deadline, commit=True, clean=True), deadline, name)
        except KafkaTimeoutError:
            raise
        except KafkaError as error:
            sure = getattr(error, "code", None) in _NOT_COMMITTED
            error = manager.in_words(error)
            self._move(Step.BROKEN if sure else Step.LOST, error)
            raise error from error.__cause__
        self._move(Step.READY)

    def abort(self, timeout_s: float | None) -> None:
        manager, name = self._manager, "abort_transaction"
        deadline = self._deadline(timeout_s)
        with self._buffer.lock:
            manager.must_be({Step.OPEN, Step.BROKEN, Step.ABORTING}, name)
        self._move(Step.ABORTING)
        try:
            self._loop.call(lambda: self._abort(deadline), deadline, name)
        except KafkaTimeoutError:
            raise
        except KafkaError as error:
            error = manager.in_words(error)
            self._move(Step.LOST, error)
            raise error from error.__cause__
        self._move(Step.READY)

    def _abort(self, deadline: Deadline) -> None:
        """In the I/O thread. What is in flight is waited for: a batch that comes after the end
        would, on brokers before 3.6, begin a transaction that nobody ends."""
        loop = self._loop
        loop.drop_unsent(TransactionError("the transaction was aborted"))
        request_ms = self._settings.client.request_timeout_ms
        clean = loop.settle(deadline.sooner(request_ms)) and not loop.sender.deliveries.has_gaps
        self._board.take_failures()
        self._end(deadline, commit=False, clean=clean)

    def _end(self, deadline: Deadline, *, commit: bool, clean: bool) -> None:
        """In the I/O thread."""
        if self._manager.end(deadline, commit=commit, clean=clean):
            self._loop.sender.deliveries.forget_identities()

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, Any],
        group: GroupIdentity | str,
        timeout_s: float | None,
    ) -> None:
        manager, name = self._manager, "send_offsets_to_transaction"
        identity = _group_identity(group)
        stored = _stored_offsets(offsets)
        with self._buffer.lock:
            manager.must_be({Step.OPEN}, name)
        if not stored:
            return
        deadline = self._deadline(timeout_s)
        try:
            self._loop.call(
                lambda: manager.commit_offsets(stored, identity, deadline), deadline, name
            )
        except KafkaError as error:
            error = manager.in_words(error)
            # A broker that is too old for these offsets can still abort.
            lost = is_final(error) and not isinstance(error, UnsupportedVersionError)
            self._move(Step.LOST if lost else Step.BROKEN, error)
            raise error from error.__cause__

    def spoil(self, error: KafkaError) -> None:
        """A record of an open transaction is lost, so it must not be committed. With the buffer's
        lock."""
        if self._manager.failed(error):
            self._refuse_by_step()
            reason = self._manager.reason
            if not isinstance(reason, ProducerFencedError):
                reason = TransactionError(f"the transaction can only be aborted, since {error}")
            self._loop.drop_later(reason)

    def error_of_record(self, error: KafkaError) -> KafkaError:
        """What the handle of a record that was given up raises: that the producer is fenced, if it
        is, as in Java; else the same error."""
        reason = self._manager.reason
        return reason if isinstance(reason, ProducerFencedError) else error

    @property
    def must_abort(self) -> bool:
        """Whether a transaction is open."""
        return self._manager.step in (Step.OPEN, Step.BROKEN, Step.ABORTING)

    def close(self, deadline: Deadline) -> None:
        """Abort what is open. Never raises."""
        manager = self._manager
        if not self.must_abort:
            return
        log.warning("transaction %s is aborted: the producer is closed", manager.transactional_id)
        try:
            self.abort(max(deadline.remaining_s(), LEAST_ABORT_S))
        except KafkaError as error:
            log.warning(
                "transaction %s could not be aborted; the brokers do it after "
                "transaction.timeout.ms: %s",
                manager.transactional_id,
                error,
            )

    def free(self) -> None:
        """Close connections, once the I/O thread has ended."""
        self._manager.close()

    def _lost_if_final(self, error: KafkaError) -> None:
        if is_final(error):
            self._move(Step.LOST, self._manager.in_words(error))

    def _move(self, to: Step, reason: KafkaError | None = None) -> None:
        """The next step, and whether records are taken in it."""
        with self._buffer.lock:
            if self._manager.step is not to:
                self._manager.move(to, reason)
                self._refuse_by_step()

    def _refuse_by_step(self) -> None:
        """Records are taken in an open transaction only. With the buffer's lock."""
        manager = self._manager
        if manager.step is Step.OPEN:
            self._buffer.refuse(None)
            return
        self._buffer.roll_all()

        def refusal() -> KafkaError:
            try:
                manager.must_be({Step.OPEN}, "send")
            except KafkaError as error:
                return error
            return TransactionError("send: the transaction has just ended")

        self._buffer.refuse(refusal)

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return deadline_of(timeout_s) or Deadline(self._settings.producer.max_block_ms)


class _Outsider:
    """Somebody who is no member of the group."""

    generation_id = -1
    member_id = ""
    group_instance_id = None

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id


def _group_identity(group: GroupIdentity | str) -> GroupIdentity:
    if isinstance(group, str):
        group = _Outsider(group)
    if not getattr(group, "group_id", ""):
        raise OptionError(
            f"group must be a group's name, or a consumer's group metadata, got {group!r}"
        )
    return group


def _stored_offsets(offsets: Any) -> dict[TopicPartition, StoredOffset]:
    if not isinstance(offsets, Mapping):
        raise OptionError(
            "offsets must be a mapping of TopicPartition to the next offset to read, got "
            f"{type(offsets).__name__}"
        )
    for tp in offsets:
        fits = isinstance(tp, tuple) and list(map(type, tp)) == [str, int]
        if not fits or not 0 <= tp[1] <= INT32_MAX:
            raise OptionError(f"offsets are of a TopicPartition each, got {tp!r}")
        checked_topic(tp[0])
    return {TopicPartition(*tp): _stored_offset(tp, given) for tp, given in offsets.items()}


def _stored_offset(tp: Any, given: Any) -> StoredOffset:
    offset = offset_number(getattr(given, "offset", given))
    if isinstance(given, bool) or offset is None:
        name = "-".join(map(str, tp))
        raise OptionError(f"the offset of {name} must be a number of 0 or more, got {given!r}")
    epoch = getattr(given, "leader_epoch", None)
    return StoredOffset(
        offset, getattr(given, "metadata", None) or "", -1 if epoch is None else epoch
    )
