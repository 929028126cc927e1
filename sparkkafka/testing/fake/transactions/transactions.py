"""What a transaction coordinator knows and decides, for all transactional ids of a fake cluster.

The rules are Kafka's for clients of transactions V1 (Produce up to 11, EndTxn up to 4) and, where
that differs, V2 (KIP-890), in the order in which `TransactionCoordinator` applies them. A real
coordinator keeps this in a replicated log, so it outlives brokers and moves of the coordinator;
here it is simply the cluster's. Plain state without sockets and threads; the cluster's lock guards
it.
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
# The epoch after it is the broker's alone, so that it can always fence (isEpochExhausted).
LAST_EPOCH = (1 << 15) - 2

TopicAndNumber = tuple[str, int]


class TransactionState(enum.StrEnum):
    """The names that DescribeTransactions gives."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


# States that a broker knows by name and the fake never has: a filter may name them.
OTHER_STATES = ("PrepareEpochFence", "Dead")
PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


class NoLeaderError(Exception):
    """The partition exists but nobody can write to it now."""


class TransactionSnapshot(NamedTuple):
    """One transactional id at a moment. `partitions` are those that have no marker yet.

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

    `last_epoch` and `previous_producer_id` are what a repeated InitProducerId may still name.
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
    """All transactional ids of a cluster; its methods raise Refused for what a broker refuses.

    `log_of` finds the log of a partition: None if the partition is gone, NoLeaderError if it cannot
    be written to now. With `keeps_last_epoch` (brokers from 4.0 on) the writer of a transaction
    that the broker aborted may name its epoch in InitProducerId. While `holds_markers` is set,
    ended transactions wait in a Prepare state.
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

    # --- what clients ask ------------------------------------------------------------------------

    def init(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None
    ) -> FakeTransaction:
        """InitProducerId: a new epoch. `expected` is the (producer id, epoch) of KIP-360.

        An ongoing transaction is aborted, and the caller is to retry (CONCURRENT_TRANSACTIONS).
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
        if found.producer_epoch >= LAST_EPOCH and epoch in (None, found.producer_epoch):
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
        elif epoch != found.last_epoch:  # equal: the same request again, whose answer got lost
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
        """AddPartitionsToTxn, AddOffsetsToTxn: the transaction begins, or gets larger."""
        found = self._known(transactional_id, producer_id)
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
        """EndTxn up to version 4. The decision stands when this returns; markers may be to come."""
        found = self._known(transactional_id, producer_id)
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
        """EndTxn from version 5 on (V2): what the next transaction is written with."""
        found = self.by_id.get(transactional_id)
        if found is None or producer_id not in (found.producer_id, found.previous_producer_id):
            raise Refused(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"{transactional_id!r} is not known with producer id {producer_id}",
            )
        again = producer_epoch == found.producer_epoch - 1
        if producer_epoch != found.producer_epoch and not again:
            raise Refused(ErrorCode.PRODUCER_FENCED, f"the epoch is {found.producer_epoch}")
        prepared = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        complete = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        if again:
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
        """What a partition's leader verifies before a producer's first write of a transaction.

        Raises Refused with TRANSACTION_ABORTABLE if the partition was not added.
        """
        found = self._known(transactional_id, producer_id)
        if producer_epoch != found.producer_epoch:
            raise Refused(ErrorCode.PRODUCER_FENCED, f"the epoch is {found.producer_epoch}")
        if found.state in PREPARED:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS, f"the state is {found.state}")
        if partition not in found.partitions:
            raise Refused(
                ErrorCode.TRANSACTION_ABORTABLE, "the partition is not part of the transaction"
            )

    # --- what the coordinator does on its own ----------------------------------------------------

    def expire(self, at_ms: int) -> list[str]:
        """The scan for timeouts, as if it were `at_ms`: which transactions it aborted."""
        late = [
            row
            for row in self.by_id.values()
            if row.state is TransactionState.ONGOING and row.start_ms + row.timeout_ms < at_ms
        ]
        for row in late:
            self._abort(row)
        return [row.transactional_id for row in late]

    def write_markers(self, topic: str | None = None, number: int | None = None) -> None:
        """Write the markers that are outstanding, perhaps those of one topic or partition only.

        A partition without a leader keeps its transaction waiting; one that is gone needs none.
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
        """What waited for a leader to come back; nothing while a test holds markers."""
        if not self.holds_markers:
            self.write_markers()

    def _prepare(self, found: FakeTransaction, *, commit: bool) -> None:
        found.state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        self.write_waiting_markers()

    def _abort(self, found: FakeTransaction) -> None:
        """The broker's own abort, with an epoch that fences the writer."""
        # The last epoch lets the fenced writer continue by KIP-360, with the epoch that fenced it.
        found.last_epoch = found.producer_epoch if self.keeps_last_epoch else NO_EPOCH
        found.producer_epoch += 1
        self._prepare(found, commit=False)

    def _known(self, transactional_id: str, producer_id: int) -> FakeTransaction:
        found = self.by_id.get(transactional_id)
        if found is None or found.producer_id != producer_id:
            raise Refused(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"{transactional_id!r} is not known with producer id {producer_id}",
            )
        return found


def _may_continue(found: FakeTransaction, producer_id: int, producer_epoch: int) -> bool:
    return (
        found.producer_epoch == NO_EPOCH
        or producer_id == found.producer_id
        or (producer_id == found.previous_producer_id and producer_epoch >= LAST_EPOCH)
    )
