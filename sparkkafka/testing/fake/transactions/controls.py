"""Methods of FakeCluster by which a test inspects and changes transactions."""

from __future__ import annotations

import threading

from sparkkafka.testing.fake.log.producers import now_ms
from sparkkafka.testing.fake.log.records import FakeRecord
from sparkkafka.testing.fake.state import ClusterState
from sparkkafka.testing.fake.transactions.transactions import (
    PREPARED,
    TransactionSnapshot,
    TransactionState,
)


class TransactionControls:
    """Methods of FakeCluster. Transactions belong to the cluster: a broker that dies or a
    coordinator that moves does not change them."""

    state: ClusterState
    _changed: threading.Condition

    def transaction(self, transactional_id: str) -> TransactionSnapshot | None:
        """Return the state of a transactional id, None if the coordinator does not know it."""
        with self._changed:
            found = self.state.transactions.by_id.get(transactional_id)
            return None if found is None else found.snapshot()

    def open_transactions(self) -> list[TransactionSnapshot]:
        """Return transactions that are ongoing or lack markers, in the order of their start."""
        with self._changed:
            rows = [row.snapshot() for row in self.state.transactions.by_id.values()]
        open_ = [row for row in rows if row.state in (TransactionState.ONGOING, *PREPARED)]
        return sorted(open_, key=lambda row: row.start_ms)

    def expire_transactions(self, later_ms: int = 0) -> list[str]:
        """Abort ongoing transactions whose timeout is over, `later_ms` from now.

        The abort has a new epoch, which fences the writer. Returns the transactional ids.
        Transactions time out only by this method.
        """
        with self._changed:
            found = self.state.transactions.expire(now_ms() + later_ms)
            self._changed.notify_all()
            return found

    def pending_offsets(self, group_id: str) -> dict[tuple[str, int], int]:
        """Return a group's offsets of open transactions: {(topic, partition): offset}.

        Such a transaction has the partition `groups.state.offsets_partition(group_id)` of
        __consumer_offsets.
        """
        with self._changed:
            pending = self.state.group(group_id).pending.values()
            return {key: row.offset for rows in pending for key, row in rows.items()}

    def hold_markers(self) -> None:
        """Write no markers from now on, although EndTxn succeeds.

        The transaction is then in a Prepare state: it cannot be changed, a repeated EndTxn, an
        InitProducerId or AddPartitionsToTxn gets CONCURRENT_TRANSACTIONS, read_committed does not
        return its records, and its offsets of groups stay unstable.
        """
        with self._changed:
            self.state.transactions.holds_markers = True

    def release_markers(self, topic: str | None = None, partition: int | None = None) -> None:
        """Write the markers that `hold_markers` holds back, and end it.

        With a topic, and perhaps a partition, write only the markers there and hold back others.
        """
        with self._changed:
            if topic is None:
                self.state.transactions.holds_markers = False
            self.state.transactions.write_markers(topic, partition)
            self._changed.notify_all()

    def forget_transactional_id(self, transactional_id: str) -> None:
        """Forget an id, as after transactional.id.expiration.ms.

        Raises ValueError if its transaction is open, since that never expires, and KeyError if the
        id is not known.
        """
        with self._changed:
            state = self.state.transactions.by_id[transactional_id].state
            if state in (TransactionState.ONGOING, *PREPARED):
                raise ValueError(f"{transactional_id!r} is {state}, so it does not expire")
            del self.state.transactions.by_id[transactional_id]

    def read_committed(self, topic: str) -> list[FakeRecord]:
        """Return the records that a read_committed reader sees now, partition after partition."""
        with self._changed:
            return [
                record
                for partition in self.state.topics[topic].partitions
                for record in partition.log.records(committed=True)
            ]
