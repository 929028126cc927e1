"""The state and rules of a fake cluster's transaction coordinator, for all transactional ids.

The rules are Kafka's for clients of transactions V1 (Produce up to 11, EndTxn up to 4) and, where
it differs, V2 (KIP-890), in the order in which `TransactionCoordinator` applies them. A real
coordinator keeps this state in a replicated log, so that it survives lost brokers and moves of the
coordinator; here it belongs to the cluster, whose lock guards it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.constants import NO_PRODUCER_ID
from sparkkafka.testing.fake.groups.state import OffsetsPartition
from sparkkafka.testing.fake.log.log import PartitionLog
from sparkkafka.testing.fake.log.producers import NO_EPOCH, Refused, now_ms

NOT_STARTED = -1
# transaction.max.timeout.ms
MAX_TIMEOUT_MS = 900_000
# Only the broker uses the epoch after it, so that it can always fence (isEpochExhausted).
LAST_EPOCH = (1 << 15) - 2

TopicAndNumber = tuple[str, int]


class TransactionState(enum.StrEnum):
    """States, with their names in DescribeTransactions."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


# States of real brokers that the fake never has, but that a filter may name.
OTHER_STATES = ("PrepareEpochFence", "Dead")
PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


class NoLeaderError(Exception):
    """The partition has no leader now, so nothing can be written to it."""


class TransactionSnapshot(NamedTuple):
    """The state of one transactional id. `partitions` are those without a marker yet.

    `start_ms` is when the first partition was added, -1 if none was.
    """

    transactional_id: str
    state: TransactionState
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    partitions: tuple[TopicAndNumber, ...]
    start_ms: int


@dataclass(slots=True)
class FakeTransaction:
    """One transactional id (TransactionMetadata).

    A repeated InitProducerId may still name `last_epoch` or `previous_producer_id`.
    """

    transactional_id: str
    producer_id: int
    timeout_ms: int
    producer_epoch: int = NO_EPOCH
    last_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    state: TransactionState = TransactionState.EMPTY
    partitions: set[TopicAndNumber] = field(default_factory=set)
    start_ms: int = NOT_STARTED

    def snapshot(self) -> TransactionSnapshot:
        """Return a copy of the state, for tests."""
        return TransactionSnapshot(
            self.transactional_id,
            self.state,
            self.producer_id,
            self.producer_epoch,
            self.timeout_ms,
            tuple(sorted(self.partitions)),
            self.start_ms,
        )


class Transactions:
    """All transactional ids of a cluster. Methods raise Refused where a broker returns an error.

    `log_of` returns the log of a partition, None if the partition is deleted, and raises
    NoLeaderError if it has no leader. With `keeps_last_epoch` (brokers from 4.0 on) the writer of a
    transaction that the broker aborted may name its epoch in InitProducerId. While `holds_markers`
    is set, ended transactions wait in a Prepare state.
    """

    def __init__(
        self,
        log_of: Callable[[str, int], PartitionLog | OffsetsPartition | None],
        new_producer_id: Callable[[], int],
    ) -> None:
        self.by_id: dict[str, FakeTransaction] = {}
        self.max_timeout_ms = MAX_TIMEOUT_MS
        self.keeps_last_epoch = False
        self.verifies = True
        self.version = 1
        self.holds_markers = False
        self._log_of = log_of
        self._new_producer_id = new_producer_id

    # --- requests of clients ---------------------------------------------------------------------

    def init(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None
    ) -> FakeTransaction:
        """Begin a new epoch (InitProducerId). `expected` is the (producer id, epoch) of KIP-360.

        An ongoing transaction is aborted, and CONCURRENT_TRANSACTIONS makes the client retry.
        """
        found = self.by_id.get(transactional_id)
        if found is None:
            found = FakeTransaction(transactional_id, self._new_producer_id(), timeout_ms)
            self.by_id[transactional_id] = found
        if expected is not None and not _may_continue(found, *expected):
            raise Refused(ErrorCode.PRODUCER_FENCED, "another producer has this id now")
        if found.state in PREPARED:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS, f"the state is {found.state}")
        if found.state is TransactionState.ONGOING:
            self._abort(found)
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS, "an open transaction is being aborted")
        epoch = None if expected is None else expected[1]
        # `last_epoch`: that of the request before, by which a repeated request is recognised.
        if found.producer_epoch >= LAST_EPOCH and epoch in (None, found.producer_epoch):
            # No epoch is left: begin with a new producer id.
            found.previous_producer_id = found.producer_id
            found.producer_id = self._new_producer_id()
            found.last_epoch = NO_EPOCH if epoch is None else found.producer_epoch
            found.producer_epoch = 0
        elif epoch is None:
            found.last_epoch = NO_EPOCH
            found.producer_epoch += 1
        elif found.producer_epoch == NO_EPOCH or epoch == found.producer_epoch:
            found.last_epoch = found.producer_epoch
            found.producer_epoch += 1
        elif epoch != found.last_epoch:  # equal: the same request again, whose response got lost
            raise Refused(ErrorCode.PRODUCER_FENCED, f"the epoch is {found.producer_epoch}")
        found.timeout_ms = timeout_ms
        found.state = TransactionState.EMPTY
        found.start_ms = NOT_STARTED
        return found

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicAndNumber],
    ) -> None:
        """Begin the transaction, or add to it (AddPartitionsToTxn, AddOffsetsToTxn)."""
        found = self._lookup(transactional_id, producer_id)
        if producer_epoch != found.producer_epoch:
            raise Refused(ErrorCode.PRODUCER_FENCED, f"the epoch is {found.producer_epoch}")
        if found.state in PREPARED:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS, f"the state is {found.state}")
        if found.state is not TransactionState.ONGOING:
            found.state = TransactionState.ONGOING
            found.start_ms = now_ms()
        found.partitions.update(partitions)

    def end(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool
    ) -> None:
        """Decide the end of the transaction (EndTxn up to version 4). Markers may come later."""
        found = self._lookup(transactional_id, producer_id)
        if producer_epoch != found.producer_epoch:
            raise Refused(ErrorCode.PRODUCER_FENCED, f"the epoch is {found.producer_epoch}")
        if found.state is TransactionState.ONGOING:
            self._prepare(found, commit=commit)
            return
        prepared = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        complete = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        if found.state is prepared:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS, f"the state is {found.state}")
        if found.state is not complete:
            raise Refused(ErrorCode.INVALID_TXN_STATE, f"the state is {found.state}")

    def end_with_new_epoch(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool
    ) -> tuple[int, int]:
        """Decide the end of the transaction (EndTxn from version 5 on, V2), and return the producer
        id and epoch for the next one."""
        found = self.by_id.get(transactional_id)
        if found is None or producer_id not in (found.producer_id, found.previous_producer_id):
            raise Refused(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"{transactional_id!r} is not known with producer id {producer_id}",
            )
        is_repeated = producer_epoch == found.producer_epoch - 1
        if producer_epoch != found.producer_epoch and not is_repeated:
            raise Refused(ErrorCode.PRODUCER_FENCED, f"the epoch is {found.producer_epoch}")
        prepared = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        complete = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        if is_repeated:
            if found.state is prepared:
                raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS, f"the state is {found.state}")
            if found.state in (TransactionState.ONGOING, TransactionState.EMPTY):
                raise Refused(ErrorCode.PRODUCER_FENCED, f"the epoch is {found.producer_epoch}")
            if found.state is not complete:
                raise Refused(ErrorCode.INVALID_TXN_STATE, f"the state is {found.state}")
            return found.producer_id, found.producer_epoch
        if found.state in PREPARED:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS, f"the state is {found.state}")
        ongoing = found.state is TransactionState.ONGOING
        if not ongoing and commit:
            raise Refused(ErrorCode.INVALID_TXN_STATE, f"the state is {found.state}")
        found.last_epoch = found.producer_epoch
        found.producer_epoch += 1
        if ongoing:
            self._prepare(found, commit=commit)
        else:
            found.state = TransactionState.COMPLETE_ABORT
        return found.producer_id, found.producer_epoch

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partition: TopicAndNumber,
    ) -> None:
        """Raise Refused (TRANSACTION_ABORTABLE) if a partition is not part of the transaction: its
        leader verifies that before a producer's first write.
        """
        found = self._lookup(transactional_id, producer_id)
        if producer_epoch != found.producer_epoch:
            raise Refused(ErrorCode.PRODUCER_FENCED, f"the epoch is {found.producer_epoch}")
        if found.state in PREPARED:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS, f"the state is {found.state}")
        if partition not in found.partitions:
            raise Refused(
                ErrorCode.TRANSACTION_ABORTABLE, "the partition is not part of the transaction"
            )

    # --- changes by the coordinator itself -------------------------------------------------------

    def expire(self, at_ms: int) -> list[str]:
        """Abort ongoing transactions whose timeout is over at `at_ms`. Returns their ids."""
        late = [
            row
            for row in self.by_id.values()
            if row.state is TransactionState.ONGOING and row.start_ms + row.timeout_ms < at_ms
        ]
        for row in late:
            self._abort(row)
        return [row.transactional_id for row in late]

    def write_markers(self, topic: str | None = None, number: int | None = None) -> None:
        """Write the markers that are outstanding, or only those of one topic or partition.

        A transaction waits for a partition that has no leader. A deleted one needs no marker.
        """
        for row in self.by_id.values():
            if row.state not in PREPARED:
                continue
            commit = row.state is TransactionState.PREPARE_COMMIT
            for name, partition in sorted(row.partitions):
                if topic not in (None, name) or number not in (None, partition):
                    continue
                try:
                    log = self._log_of(name, partition)
                except NoLeaderError:
                    continue
                if log is not None:
                    log.append_marker(row.producer_id, row.producer_epoch, commit=commit)
                row.partitions.remove((name, partition))
            if not row.partitions:
                row.state = (
                    TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
                )

    def write_waiting_markers(self) -> None:
        """Write markers that waited for a leader, unless a test holds markers back."""
        if not self.holds_markers:
            self.write_markers()

    def _prepare(self, found: FakeTransaction, *, commit: bool) -> None:
        found.state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        self.write_waiting_markers()

    def _abort(self, found: FakeTransaction) -> None:
        """Abort a transaction with a new epoch, which fences the writer."""
        # The last epoch lets the fenced writer continue by KIP-360, with the epoch that fenced it.
        found.last_epoch = found.producer_epoch if self.keeps_last_epoch else NO_EPOCH
        found.producer_epoch += 1
        self._prepare(found, commit=False)

    def _lookup(self, transactional_id: str, producer_id: int) -> FakeTransaction:
        """Return the transaction of this id. Raises Refused if another producer id has it."""
        found = self.by_id.get(transactional_id)
        if found is None or found.producer_id != producer_id:
            raise Refused(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"{transactional_id!r} is not known with producer id {producer_id}",
            )
        return found


def _may_continue(found: FakeTransaction, producer_id: int, producer_epoch: int) -> bool:
    """Return whether InitProducerId may continue with this producer id and epoch (KIP-360)."""
    return (
        found.producer_epoch == NO_EPOCH
        or producer_id == found.producer_id
        or (producer_id == found.previous_producer_id and producer_epoch >= LAST_EPOCH)
    )
