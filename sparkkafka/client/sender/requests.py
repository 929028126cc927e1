"""Batches of partitions -> the bytes of a Produce request."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sparkkafka.client.net.connection import Connection
from sparkkafka.client.sender.partition_queue import PartitionQueue, ProducerBatch
from sparkkafka.config.options import ProducerOptions
from sparkkafka.errors import UnsupportedVersionError
from sparkkafka.protocol.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from sparkkafka.protocol.records.batches import batch_parts
from sparkkafka.protocol.records.compression import Codec, codec_by_name

ZSTD_PRODUCE_VERSION = 7  # KIP-110


class ProduceRequests:
    """Makes the requests of one producer; `transactional_id` None if it is not transactional."""

    def __init__(
        self,
        options: ProducerOptions,
        timeout_ms: int,
        transactional_id: Callable[[], str] | None,
    ) -> None:
        self._options = options
        self._timeout_ms = timeout_ms
        self._transactional_id = transactional_id
        self._codec = codec_by_name(options.compression_type)

    def check_codec(self, connection: Connection, prefix: str) -> None:
        """Raises UnsupportedVersionError if the broker does not know the compression; `prefix` is
        that of the user's settings."""
        if self._codec == Codec.ZSTD and not connection.supports(
            ProduceRequest, ZSTD_PRODUCE_VERSION
        ):
            raise UnsupportedVersionError(
                f"{connection} does not know zstd (Kafka 2.1 and later do); choose another "
                f"{prefix}compression.type"
            )

    def build(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """The batch's bytes: made once, at the first send."""
        if batch.wire is None:
            if self._options.enable_idempotence:
                queue.take_sequence(batch)
            batch.wire = batch_parts(
                batch.encoded.payload,
                record_count=batch.encoded.record_count,
                base_timestamp=batch.encoded.base_timestamp,
                max_timestamp=batch.encoded.max_timestamp,
                codec=self._codec,
                level=self._options.compression_level,
                producer_id=queue.producer_id,
                producer_epoch=queue.producer_epoch,
                base_sequence=batch.base_sequence,
                transactional=self._transactional_id is not None,
            )

    def request(self, chosen: Iterable[tuple[PartitionQueue, ProducerBatch]]) -> ProduceRequest:
        """One request with these batches, which are built, at most one of a partition."""
        topics: dict[str, list[PartitionProduceData]] = {}
        for queue, batch in chosen:
            topics.setdefault(queue.tp.topic, []).append(
                PartitionProduceData(index=queue.tp.partition, records=batch.wire)
            )
        return ProduceRequest(
            transactional_id=None if self._transactional_id is None else self._transactional_id(),
            acks=self._options.acks,
            timeout_ms=self._timeout_ms,
            topic_data=[
                TopicProduceData(name=name, partition_data=rows) for name, rows in topics.items()
            ],
        )
