"""The part of FakeCluster that is about transactions: what a test sees of them and does to them."""

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
    """Methods of FakeCluster. Transactions belong to the cluster: neither a broker that dies nor a
    coordinator that moves changes them.
    """

    state: ClusterState
    _changed: threading.Condition

    def transaction(self, transactional_id: str) -> TransactionSnapshot | None:
        """What the coordinator knows of a transactional id, None if nothing."""
        with self._changed:
            found = self.state.transactions.by_id.get(transactional_id)
            return None if found is None else found.snapshot()

    def open_transactions(self) -> list[TransactionSnapshot]:
        """Those that are ongoing or whose markers are outstanding, in order of their start."""
        with self._changed:
            rows = [row.snapshot() for row in self.state.transactions.by_id.values()]
        open_ = [row for row in rows if row.state in (TransactionState.ONGOING, *PREPARED)]
        return sorted(open_, key=lambda row: row.start_ms)

    def expire_transactions(self, later_ms: int = 0) -> list[str]:
        """Run the coordinator's scan for timeouts, as if it were `later_ms` later.

        Ongoing transactions that began longer ago than their timeout are aborted with a new epoch,
        which fences their writer. Returns their transactional ids. Nothing else ever runs the scan.
        """
        with self._changed:
            found = self.state.transactions.expire(now_ms() + later_ms)
            self._changed.notify_all()
            return found

    def pending_offsets(self, group_id: str) -> dict[tuple[str, int], int]:
        """Offsets of a group that wait for the end of a transaction: {(topic, partition): offset}.

        The partition of __consumer_offsets that is part of such a transaction is
        `fake_group_state.offsets_partition(group_id)`.
        """
        with self._changed:
            pending = self.state.group(group_id).pending.values()
            return {key: row.offset for rows in pending for key, row in rows.items()}

    def hold_markers(self) -> None:
        """From now on EndTxn is answered, but no marker is written.

        The transaction is prepared meanwhile: it cannot be changed any more, a repeated EndTxn, an
        InitProducerId or AddPartitionsToTxn gets CONCURRENT_TRANSACTIONS, read_committed does not
        see it, and its offsets of groups stay unstable.
        """
        with self._changed:
            self.state.transactions.holds_markers = True

    def release_markers(self, topic: str | None = None, partition: int | None = None) -> None:
        """Write the markers that are held back, and end the holding.

        With a topic, and perhaps a partition, only the markers there; others stay held back.
        """
        with self._changed:
            if topic is None:
                self.state.transactions.holds_markers = False
            self.state.transactions.write_markers(topic, partition)
            self._changed.notify_all()

    def forget_transactional_id(self, transactional_id: str) -> None:
        """As after transactional.id.expiration.ms. Raises ValueError if its transaction is open,
        which never expires, and KeyError if it is not known.
        """
        with self._changed:
            state = self.state.transactions.by_id[transactional_id].state
            if state in (TransactionState.ONGOING, *PREPARED):
                raise ValueError(f"{transactional_id!r} is {state}, so it does not expire")
            del self.state.transactions.by_id[transactional_id]

    def read_committed(self, topic: str) -> list[FakeRecord]:
        """All records that a read_committed reader sees now, partition after partition."""
        with self._changed:
            return [
                record
                for partition in self.state.topics[topic].partitions
                for record in partition.log.records(committed=True)
            ]
