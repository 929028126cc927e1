"""What a sender has to deliver: queued batches of all partitions, and what became of them."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Mapping

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.sender.delivery import PartitionDelivery, ProducerMetrics
from sparkkafka.client.sender.partition_queue import BatchOwner, ProducerBatch
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import ProducerOptions
from sparkkafka.errors import KafkaError, PartitionOutcome, ProduceError
from sparkkafka.protocol.columns.columns import EncodedBatch

log = logging.getLogger(__name__)

LAST_OFFSET = (1 << 63) - 1


class DeliveryBook:
    """The side of a `Sender` that is about batches; how they are carried is the other.

    A batch without an owner that cannot be delivered raises ProduceError. Of one with an owner it
    is told, and the others go on.
    """

    def __init__(self, cluster: Cluster, options: ProducerOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._partitions: dict[TopicPartition, PartitionDelivery] = {}
        # Those with batches to send or to be answered. Rows can go to hundreds of topics, and each
        # step looks at every partition here.
        self._busy: dict[TopicPartition, PartitionDelivery] = {}
        self._identity: tuple[int, int] | None = None
        self._told = 0  # how often an owner was told what became of its batch
        self.queued_bytes = 0
        self.metrics = ProducerMetrics()

    def add(
        self,
        tp: TopicPartition,
        encoded: Iterable[EncodedBatch],
        owners: Iterable[BatchOwner] | None = None,
        created_s: float | None = None,
    ) -> None:
        """Queue batches of one partition behind what it has already; `created_s` (monotonic) is
        when delivery.timeout.ms began for them, now by default."""
        entry = self._partitions.get(tp)
        if entry is None:
            entry = self._partitions[tp] = PartitionDelivery(tp, self._cluster.backoff())
        since_s = time.monotonic() if created_s is None else created_s
        all_owners = itertools.repeat(None) if owners is None else iter(owners)
        for one in encoded:
            batch = ProducerBatch(one, since_s, next(all_owners))
            entry.queue.append(batch)
            self.queued_bytes += batch.size_bytes
        if entry.queue.batches:
            self._busy[tp] = entry

    @property
    def busy(self) -> bool:
        """Whether any batch is neither acknowledged nor given up."""
        return bool(self._busy)

    @property
    def has_gaps(self) -> bool:
        """Whether a batch was given up that sequence numbers had been spent on."""
        return any(entry.queue.has_gap for entry in self._partitions.values())

    def outcomes(self) -> dict[TopicPartition, PartitionOutcome]:
        """What is known about the records of each partition that was ever written to."""
        acks = self._options.acks
        return {tp: entry.outcome(acks=acks) for tp, entry in self._partitions.items()}

    def last_errors(self) -> str:
        """What went wrong last, for a message about waiting too long; "" if nothing did."""
        errors = {str(error) for error in self.errors()}
        return "; last failures: " + "; ".join(sorted(errors)[:3]) if errors else ""

    def errors(self) -> list[KafkaError]:
        """What went wrong last with each partition that waits. Any thread may ask."""
        return [entry.last_error for entry in list(self._busy.values()) if entry.last_error]

    def waiting(self) -> list[TopicPartition]:
        """Partitions whose batches are not all acknowledged. Any thread may ask."""
        return list(self._busy)

    def _acknowledged(
        self,
        entry: PartitionDelivery,
        batch: ProducerBatch,
        base_offset: int,
        log_append_time_ms: int = -1,
    ) -> None:
        if base_offset + batch.encoded.record_count > LAST_OFFSET:
            # No log reaches so far: the answer is wrong in this, and tells no offset.
            base_offset = -1
        entry.queue.acknowledged(batch)
        entry.acknowledged_records += batch.encoded.record_count
        if not entry.queue.batches:
            self._busy.pop(entry.queue.tp, None)
        entry.backoff.reset()
        entry.last_error = None
        self.queued_bytes -= batch.size_bytes
        self.metrics.count(entry.queue.tp, batch, base_offset)
        if batch.owner is not None:
            self._told += 1
            batch.owner.delivered(base_offset, log_append_time_ms)

    def _expire(self) -> None:
        """delivery.timeout.ms bounds a batch's life, in flight or not (KIP-91)."""
        limit_s = self._options.delivery_timeout_ms / 1000
        now_s = time.monotonic()
        for entry in list(self._busy.values()):
            while entry.queue.batches and now_s - entry.queue.batches[0].created_s > limit_s:
                batch = entry.queue.batches[0]
                error = entry.delivery_error(
                    batch,
                    f"not acknowledged within {self._cluster.options.prefix}delivery.timeout.ms="
                    f"{self._options.delivery_timeout_ms} after {batch.attempts} attempts",
                    perhaps=batch.maybe_written or batch.in_flight,
                )
                self._give_up(entry, batch, error, entry.last_error)

    def _give_up(
        self,
        entry: PartitionDelivery,
        batch: ProducerBatch,
        error: ProduceError,
        cause: BaseException | None = None,
        record_messages: Mapping[int, str | None] | None = None,
    ) -> None:
        """A batch cannot be delivered. Raises `error` if it has no owner, who is told instead.

        With a part of a batch that may be written undivided go the others.
        """
        if batch.dropped:  # with another part
            return
        if batch.owner is None:
            raise error from cause
        error.__cause__ = cause
        log.info("%s", error)
        parts = entry.queue.parts_with(batch)
        entry.queue.drop(batch)
        self.queued_bytes -= batch.size_bytes
        if not entry.queue.batches:
            self._busy.pop(entry.queue.tp, None)
        self._told += 1
        batch.owner.failed(error, record_messages or {})
        for part in parts:
            self._give_up(entry, part, error, cause)

    def _give_up_all(self, entry: PartitionDelivery, text: str, cause: KafkaError | None) -> None:
        """Nothing of a partition can be delivered. Raises ProduceError if there is no owner."""
        code = getattr(cause, "code", None)
        for batch in list(entry.queue.batches):
            perhaps = batch.maybe_written or batch.in_flight
            error = entry.metadata_error(text, code, perhaps=perhaps if batch.owner else None)
            self._give_up(entry, batch, error, cause)

    def give_up_unsent(self, text: str) -> None:
        """As `give_up_everything`, but for what was never sent (nor was part of a larger batch that
        may be written)."""
        for entry in list(self._busy.values()):
            for batch in list(entry.queue.batches):
                if batch.attempts or batch.maybe_written:
                    continue
                error = entry.metadata_error(text, None, perhaps=False)
                self._give_up(entry, batch, error)

    def give_up_everything(self, text: str) -> None:
        """Tell all owners that their batches are given up, for the reason `text`."""
        for entry in list(self._busy.values()):
            self._give_up_all(entry, text, None)

    def forget_identities(self) -> None:
        """All partitions write under a new identity from now on; nothing is in flight."""
        self._identity = None
        for entry in self._partitions.values():
            entry.queue.forget_identity()
