"""Admin's calls about transactions."""

from __future__ import annotations

from collections.abc import Iterable

from sparkkafka.client.admin import listings
from sparkkafka.client.admin import transactions as transaction_calls
from sparkkafka.client.admin.admin_base import AdminBase
from sparkkafka.client.admin.listings import TransactionListing
from sparkkafka.client.admin.transactions import (
    FencedProducer,
    ProducerState,
    TransactionDescription,
)
from sparkkafka.client.arguments import names, numbers, one_name, whole
from sparkkafka.client.cluster.results import Listing, Results
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import OptionError


class AdminTransactions(AdminBase):
    """See `Admin`."""

    def list_transactions(
        self,
        *,
        states: Iterable[str] | None = None,
        producer_ids: Iterable[int] | None = None,
        open_for_ms: int | None = None,
        transactional_id_pattern: str | None = None,
        timeout_s: float | None = None,
    ) -> Listing[TransactionListing]:
        """The transactional ids of all brokers (Kafka 3.0): those in some states (Ongoing, Empty,
        …), of some producer ids, whose transaction is open for longer than `open_for_ms`
        (Kafka 3.8), or that a regular expression of RE2 matches as a whole (Kafka 4.1).

        `open_for_ms` leaves out what is not open (Empty, CompleteCommit, …), which brokers, and
        other clients with them, also list for a duration.

        A broker that fails is in `errors`. Raises the error that all brokers have in common.
        """
        states = None if states is None else names(states, "states")
        producer_ids = None if producer_ids is None else numbers(producer_ids, "producer_ids")
        if open_for_ms is not None and whole(open_for_ms, "open_for_ms") < 0:
            raise OptionError(f"open_for_ms is not negative, got {open_for_ms}")
        if transactional_id_pattern is not None:
            one_name(transactional_id_pattern, "transactional_id_pattern")
        with self._call(timeout_s) as (cluster, deadline):
            return listings.list_transactions(
                cluster,
                deadline,
                states=states,
                producer_ids=producer_ids,
                open_for_ms=open_for_ms,
                transactional_id_pattern=transactional_id_pattern,
            )

    def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout_s: float | None = None
    ) -> Results[str, TransactionDescription]:
        """State, producer, age and partitions of transactions (Kafka 3.0). By transactional id.

        An id that is not known is a BrokerError TRANSACTIONAL_ID_NOT_FOUND.
        """
        chosen = names(transactional_ids, "transactional_ids")
        with self._call(timeout_s) as (cluster, deadline):
            return transaction_calls.describe_transactions(cluster, chosen, deadline)

    def describe_producers(
        self, partitions: Iterable[TopicPartition], *, timeout_s: float | None = None
    ) -> Results[TopicPartition, tuple[ProducerState, ...]]:
        """The producers that each partition's leader knows, and since which offset their
        transactions are open (Kafka 2.8)."""
        with self._call(timeout_s) as (cluster, deadline):
            return transaction_calls.describe_producers(cluster, partitions, deadline)

    def abort_transaction(
        self, partition: TopicPartition, start_offset: int, *, timeout_s: float | None = None
    ) -> ProducerState:
        """Abort the transaction that is open in a partition since `start_offset`.

            for state in admin.describe_producers([tp])[tp]:
                if state.transaction_start_offset is not None: ...   # since when, and whose

        This is for a hanging transaction, which holds up readers of read_committed and which its
        coordinator does not know (any more): it writes an abort marker into this partition and
        asks nobody. To do it to a transaction that is alive tears it apart, other partitions may
        still be committed; for that there is `fence_producers`.

        Returns the producer whose transaction it was. Raises BrokerError INVALID_TXN_STATE if no
        transaction began there that is still open, other KafkaErrors.
        """
        with self._call(timeout_s) as (cluster, deadline):
            return transaction_calls.abort_transaction(cluster, partition, start_offset, deadline)

    def fence_producers(
        self, transactional_ids: Iterable[str], *, timeout_s: float | None = None
    ) -> Results[str, FencedProducer]:
        """Shut out whoever writes under these ids, and abort what they have open. By
        transactional id."""
        chosen = names(transactional_ids, "transactional_ids")
        with self._call(timeout_s) as (cluster, deadline):
            return transaction_calls.fence_producers(cluster, chosen, deadline)
