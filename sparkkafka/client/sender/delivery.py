"""How delivery to one partition goes: its queue and leader, when to try again, what was written of
it, and the words for a failure."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Backoff, Deadline
from sparkkafka.client.sender.errors import Verdict
from sparkkafka.client.sender.partition_queue import PartitionQueue, ProducerBatch
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    PartitionOutcome,
    ProduceError,
    UnknownTopicError,
    Written,
    is_retriable,
)


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
        if batch.owner is None:
            # All of them fail together. Records with a handle each go on, and may yet be written.
            waiting = sum(b.encoded.record_count for b in self.queue.batches)
            text += f", not acknowledged: {waiting}"
        return self._error(text, perhaps, code)

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

    def metadata_error(
        self, text: str, code: int | None, *, perhaps: bool | None = None
    ) -> ProduceError:
        """The error for a partition to which nothing can be sent; `perhaps` None: anything that is
        queued may be written."""
        if perhaps is None:
            perhaps = any(batch.maybe_written for batch in self.queue.batches)
        return self._error(text, perhaps, code)

    def _error(self, text: str, perhaps: bool, code: int | None) -> ProduceError:
        return ProduceError(
            text,
            topic=self.queue.tp.topic,
            partition=self.queue.tp.partition,
            written=Written.UNKNOWN if perhaps else Written.NO,
            code=code,
        )


def learn_leaders(cluster: Cluster, entries: Iterable[PartitionDelivery]) -> None:
    """One metadata request for all topics of which the cache knows no leader."""
    unknown = [entry for entry in entries if cluster.known_leader(entry.queue.tp) is None]
    if not unknown:
        return
    deadline = Deadline(cluster.options.request_timeout_ms)
    try:
        topics = cluster.topics({e.queue.tp.topic for e in unknown}, deadline)
    except UnknownTopicError as error:
        raise unknown[0].metadata_error(str(error), error.code) from error
    except KafkaError as error:
        if not (error.retriable or isinstance(error, KafkaTimeoutError)):
            code = getattr(error, "code", None)
            raise unknown[0].metadata_error(str(error), code) from error
        cluster.keep({entry.queue.tp.topic for entry in unknown})
        for entry in unknown:
            if cluster.known_leader(entry.queue.tp) is None:
                entry.last_error = error
                entry.back_off()
        return
    for entry in unknown:
        tp = entry.queue.tp
        row = topics[tp.topic].partitions.get(tp.partition)
        if row is None:
            raise entry.metadata_error(
                f"the topic has {len(topics[tp.topic].partitions)} partitions, counted from 0",
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            )
    leaderless = [e for e in unknown if cluster.known_leader(e.queue.tp) is None]
    for entry in leaderless:
        entry.last_error = BrokerError(
            ErrorCode.LEADER_NOT_AVAILABLE, f"Metadata of {entry.queue.tp}"
        )
        entry.back_off()
    for topic in {entry.queue.tp.topic for entry in leaderless}:
        cluster.forget(topic)
