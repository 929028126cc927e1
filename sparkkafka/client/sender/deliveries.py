"""What a sender has to deliver: queues of partitions, when to try again, what became of records."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Backoff
from sparkkafka.client.sender.partition_queue import BatchOwner, PartitionQueue, ProducerBatch
from sparkkafka.client.sender.produce_errors import Verdict
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import ProducerOptions
from sparkkafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaError,
    PartitionOutcome,
    ProduceError,
    Written,
    is_retriable,
)
from sparkkafka.protocol.columns.encode import EncodedBatch

log = logging.getLogger(__name__)

LAST_OFFSET = (1 << 63) - 1


@dataclass(slots=True)
class ProducerMetrics:
    """Counts since the producer was made. Bytes are those of record batches as sent."""

    records: int = 0
    batches: int = 0
    batch_bytes: int = 0
    requests: int = 0
    retries: int = 0
    offsets: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """Per partition: first and last offset written, as far as the broker told."""

    def count(self, tp: TopicPartition, batch: ProducerBatch, base_offset: int) -> None:
        """A batch was acknowledged; `base_offset` -1: the broker did not tell where it is."""
        self.records += batch.encoded.record_count
        self.batches += 1
        self.batch_bytes += batch.wire_bytes
        if base_offset >= 0:
            end = base_offset + batch.encoded.record_count - 1
            first, last = self.offsets.get(tp, (base_offset, end))
            self.offsets[tp] = (min(first, base_offset), max(last, end))


class PartitionDelivery:
    """A partition's queue, and when it may be tried again (monotonic seconds)."""

    def __init__(self, tp: TopicPartition, backoff: Backoff) -> None:
        self.queue = PartitionQueue(tp)
        self.not_before_s = 0.0
        self.backoff = backoff
        self.last_error: KafkaError | None = None
        self.acknowledged_records = 0

    def outcome(self, *, acks: int) -> PartitionOutcome:
        """What is known now about the records that were queued."""
        unknown, total = 0, 0
        for batch in self.queue.batches:
            total += batch.encoded.record_count
            if batch.in_flight or batch.maybe_written:
                unknown += batch.encoded.record_count
        sure = self.acknowledged_records if acks != 0 else 0
        return PartitionOutcome(sure, total - unknown, unknown + self.acknowledged_records - sure)

    def back_off(self) -> None:
        """Not to be tried again before a wait, which is longer each time."""
        self.not_before_s = time.monotonic() + self.backoff.next_ms() / 1000

    def delivery_error(
        self, batch: ProducerBatch, text: str, *, perhaps: bool, code: int | None = None
    ) -> ProduceError:
        """The error for a batch that cannot be delivered; `perhaps`: it may be written."""
        if self.last_error is not None and str(self.last_error) not in text:
            text += f"; the last failure: {self.last_error}"
        text += f"; records in this batch: {batch.encoded.record_count}"
        return self.metadata_error(text, code, perhaps=perhaps)

    def refusal_error(
        self,
        batch: ProducerBatch,
        verdict: Verdict,
        error: BrokerError,
        *,
        retries: str,
        facts: str = "",
    ) -> ProduceError:
        """The error for a batch that a broker refused for good; `retries` names that setting and
        its value, `facts` is what else is known of the reason."""
        text = str(error)
        if error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and batch.whole is not None:
            text += (
                ": it is part of a batch that was too large and was cut, and an earlier attempt at "
                "the whole of it, which may have been written, got no answer (was "
                "max.message.bytes lowered since?)"
            )
        elif error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            text += (
                ": the partition lost records that it had acknowledged (an unclean leader "
                "election?); records before this batch are missing"
            )
        elif is_retriable(error.code):
            text += f" ({batch.attempts} attempts, {retries})"
        text += facts
        perhaps = verdict.perhaps_written or batch.maybe_written
        return self.delivery_error(batch, text, perhaps=perhaps, code=error.code)

    def metadata_error(self, text: str, code: int | None, *, perhaps: bool) -> ProduceError:
        """The error for a partition to which nothing can be sent; `perhaps`: it may be written."""
        return ProduceError(
            text,
            topic=self.queue.tp.topic,
            partition=self.queue.tp.partition,
            written=Written.UNKNOWN if perhaps else Written.NO,
            code=code,
        )


class Deliveries:
    """The state of a `Sender`'s partitions: queued batches, and what their owners were told."""

    def __init__(self, cluster: Cluster, options: ProducerOptions) -> None:
        self._cluster = cluster
        self._options = options
        self.partitions: dict[TopicPartition, PartitionDelivery] = {}
        # Those with batches to send or to be answered. Rows can go to hundreds of topics, and each
        # step looks at every partition here.
        self.busy: dict[TopicPartition, PartitionDelivery] = {}
        self.told = 0  # how often an owner was told what became of its batch
        self.queued_bytes = 0
        self.metrics = ProducerMetrics()

    def add(
        self,
        tp: TopicPartition,
        encoded: Iterable[EncodedBatch],
        owners: Iterable[BatchOwner],
        created_s: float | None = None,
    ) -> None:
        """Queue batches of one partition behind what it has already; `created_s` (monotonic) is
        when delivery.timeout.ms began for them, now by default."""
        entry = self.partitions.get(tp)
        if entry is None:
            entry = self.partitions[tp] = PartitionDelivery(tp, self._cluster.backoff())
        since_s = time.monotonic() if created_s is None else created_s
        for one, owner in zip(encoded, owners, strict=False):
            batch = ProducerBatch(one, since_s, owner)
            entry.queue.append(batch)
            self.queued_bytes += batch.size_bytes
        if entry.queue.batches:
            self.busy[tp] = entry

    @property
    def has_gaps(self) -> bool:
        """Whether a batch was given up that sequence numbers had been spent on."""
        return any(entry.queue.has_gap for entry in self.partitions.values())

    def outcomes(self) -> dict[TopicPartition, PartitionOutcome]:
        """What is known about the records of each partition that was ever written to."""
        acks = self._options.acks
        return {tp: entry.outcome(acks=acks) for tp, entry in self.partitions.items()}

    def last_errors(self) -> str:
        """What went wrong last, for a message about waiting too long; "" if nothing did."""
        errors = {str(error) for error in self.errors()}
        return "; last failures: " + "; ".join(sorted(errors)[:3]) if errors else ""

    def errors(self) -> list[KafkaError]:
        """What went wrong last with each partition that waits. Any thread may ask."""
        return [entry.last_error for entry in list(self.busy.values()) if entry.last_error]

    def waiting(self) -> list[TopicPartition]:
        """Partitions whose batches are not all acknowledged. Any thread may ask."""
        return list(self.busy)

    def acknowledged(
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
            self.busy.pop(entry.queue.tp, None)
        entry.backoff.reset()
        entry.last_error = None
        self.queued_bytes -= batch.size_bytes
        self.metrics.count(entry.queue.tp, batch, base_offset)
        self.told += 1
        batch.owner.delivered(base_offset, log_append_time_ms)

    def split(
        self, entry: PartitionDelivery, batch: ProducerBatch, parts: Sequence[EncodedBatch]
    ) -> None:
        """A batch goes again in parts."""
        self.queued_bytes += sum(len(part.payload) for part in parts) - batch.size_bytes
        entry.queue.split(batch, parts)

    def expire(self) -> None:
        """delivery.timeout.ms bounds a batch's life, in flight or not (KIP-91)."""
        limit_s = self._options.delivery_timeout_ms / 1000
        now_s = time.monotonic()
        for entry in list(self.busy.values()):
            while entry.queue.batches and now_s - entry.queue.batches[0].created_s > limit_s:
                batch = entry.queue.batches[0]
                error = entry.delivery_error(
                    batch,
                    f"not acknowledged within {self._cluster.options.prefix}delivery.timeout.ms="
                    f"{self._options.delivery_timeout_ms} after {batch.attempts} attempts",
                    perhaps=batch.maybe_written or batch.in_flight,
                )
                self.give_up(entry, batch, error, entry.last_error)

    def give_up(
        self,
        entry: PartitionDelivery,
        batch: ProducerBatch,
        error: ProduceError,
        cause: BaseException | None = None,
        record_messages: Mapping[int, str | None] | None = None,
    ) -> None:
        """A batch cannot be delivered. With a part of a batch that may be written undivided go the
        others. Raises what its owner does.
        """
        if batch.dropped:  # with another part
            return
        error.__cause__ = cause
        log.info("%s", error)
        self.told += 1
        # First: an owner that raises leaves everything as it is, to be counted.
        batch.owner.failed(error, record_messages or {})
        parts = entry.queue.parts_with(batch)
        entry.queue.drop(batch)
        self.queued_bytes -= batch.size_bytes
        if not entry.queue.batches:
            self.busy.pop(entry.queue.tp, None)
        for part in parts:
            self.give_up(entry, part, error, cause)

    def give_up_all(self, entry: PartitionDelivery, text: str, cause: KafkaError | None) -> None:
        """Nothing of a partition can be delivered."""
        code = getattr(cause, "code", None)

        def perhaps(batch: ProducerBatch) -> bool:
            return batch.maybe_written or batch.in_flight

        # Those that may be written first: an owner that raises ends it with this error.
        for batch in sorted(entry.queue.batches, key=perhaps, reverse=True):
            error = entry.metadata_error(text, code, perhaps=perhaps(batch))
            self.give_up(entry, batch, error, cause)

    def give_up_unsent(self, text: str) -> None:
        """As `give_up_everything`, but for what was never sent (nor was part of a larger batch that
        may be written)."""
        for entry in list(self.busy.values()):
            for batch in list(entry.queue.batches):
                if batch.attempts or batch.maybe_written:
                    continue
                error = entry.metadata_error(text, None, perhaps=False)
                self.give_up(entry, batch, error)

    def give_up_everything(self, text: str) -> None:
        """Tell all owners that their batches are given up, for the reason `text`."""
        for entry in list(self.busy.values()):
            self.give_up_all(entry, text, None)

    def forget_identities(self) -> None:
        """All partitions write under a new identity from now on; nothing is in flight."""
        for entry in self.partitions.values():
            entry.queue.forget_identity()
