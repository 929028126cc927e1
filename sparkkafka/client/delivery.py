"""How delivery to one partition goes: its queue, when to try again, and the words for a failure."""

from __future__ import annotations

from sparkkafka.client.deadline import Backoff
from sparkkafka.client.metadata import TopicPartition
from sparkkafka.client.partition_queue import PartitionQueue, ProducerBatch
from sparkkafka.errors import KafkaError, ProduceError, Written


class PartitionDelivery:
    """A partition's queue, and when it may be tried again (monotonic seconds)."""

    def __init__(self, tp: TopicPartition, backoff: Backoff) -> None:
        self.queue = PartitionQueue(tp)
        self.not_before_s = 0.0
        self.backoff = backoff
        self.last_error: KafkaError | None = None

    def delivery_error(
        self, batch: ProducerBatch, text: str, *, perhaps: bool, code: int | None = None
    ) -> ProduceError:
        """The error for a batch that cannot be delivered; `perhaps`: it may be written."""
        if self.last_error is not None and str(self.last_error) not in text:
            text += f"; the last failure: {self.last_error}"
        return self._error(
            f"{text} ({batch.encoded.record_count} records in this batch, "
            f"{sum(b.encoded.record_count for b in self.queue.batches)} not acknowledged)",
            perhaps,
            code,
        )

    def metadata_error(self, text: str, code: int | None) -> ProduceError:
        """The error for a partition to which nothing can be sent."""
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
