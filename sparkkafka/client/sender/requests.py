"""Produce requests: their bytes, which ones are on the way to which broker, and their answers."""

from __future__ import annotations

import logging
import select
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.net.frames import FrameBuffer
from sparkkafka.client.sender.partition_queue import PartitionQueue, ProducerBatch
from sparkkafka.config.options import ProducerOptions
from sparkkafka.errors import KafkaConnectionError, KafkaError, UnsupportedVersionError
from sparkkafka.protocol.messages import (
    ApiVersionsRequest,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from sparkkafka.protocol.records.batches import batch_parts
from sparkkafka.protocol.records.codecs import Codec
from sparkkafka.protocol.records.compression import codec_by_name

log = logging.getLogger(__name__)

ZSTD_PRODUCE_VERSION = 7  # KIP-110


class SentRequest(NamedTuple):
    """A Produce request that waits for its answer."""

    deadline: Deadline
    batches: list[tuple[PartitionQueue, ProducerBatch]]


class ProduceRequests:
    """The requests of one producer, at most `max_in_flight` on the way to each broker.

    `transactional_id` is None if the producer is not transactional; `wake_fd` is a descriptor that
    ends a wait when it can be read.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: ProducerOptions,
        transactional_id: Callable[[], str] | None,
        wake_fd: int | None,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._transactional_id = transactional_id
        self._wake_fd = wake_fd
        self._codec = codec_by_name(options.compression_type)
        self._sent: dict[int, deque[SentRequest]] = {}
        self._buffers: dict[int, FrameBuffer] = {}
        self._muted_until_s: dict[int, float] = {}

    # --- making them ----------------------------------------------------------------------------

    def check_codec(self, connection: Connection) -> None:
        """Raises UnsupportedVersionError if the broker does not know the compression."""
        if self._codec == Codec.ZSTD and not connection.supports(
            ProduceRequest, ZSTD_PRODUCE_VERSION
        ):
            raise UnsupportedVersionError(
                f"{connection} does not know zstd (Kafka 2.1 and later do); choose another "
                f"{self._cluster.options.prefix}compression.type"
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
            timeout_ms=self._cluster.options.request_timeout_ms,
            topic_data=[
                TopicProduceData(name=name, partition_data=rows) for name, rows in topics.items()
            ],
        )

    # --- on the way -----------------------------------------------------------------------------

    @property
    def in_flight(self) -> bool:
        """Whether an answer is still to come, of whichever batch."""
        return any(self._sent.values())

    def on_the_way(self, node_id: int) -> int:
        """How many requests to this broker wait for their answers."""
        return len(self._sent.get(node_id, ()))

    def waits_for_others(self, node_id: int) -> bool:
        """Whether an answer of another broker is still to come."""
        return any(sent for other, sent in self._sent.items() if other != node_id)

    def may_send(self, node_id: int, now_s: float) -> bool:
        """Whether the broker may get one more now: it has room, and does not throttle us."""
        return (
            self.on_the_way(node_id) < self._options.max_in_flight
            and self._muted_until_s.get(node_id, 0.0) <= now_s
        )

    def add(self, node_id: int, sent: SentRequest) -> None:
        """A request is on its way."""
        self._sent.setdefault(node_id, deque()).append(sent)

    def take_back(self, node_id: int) -> None:
        """The last request has no answer to come."""
        self._sent[node_id].pop()

    def lost(self, node_id: int) -> Iterable[SentRequest]:
        """All that were on the way to a broker whose connection is gone."""
        return self._sent.pop(node_id, ())

    def brokers(self) -> list[int]:
        """Those with answers to come."""
        return [node_id for node_id, sent in self._sent.items() if sent]

    def remaining_s(self) -> list[float]:
        """For each broker how long its next answer may still take."""
        return [sent[0].deadline.remaining_s() for sent in self._sent.values() if sent]

    def resume_s(self) -> Iterable[float]:
        """When brokers that throttled us may get requests again (monotonic seconds)."""
        return self._muted_until_s.values()

    def readable(self, wait_s: float) -> list[int]:
        """Nodes whose next answer has begun to arrive, or whose connection or deadline is over."""
        sockets: dict[int, int] = {}
        wake_fd = self._wake_fd
        over: list[int] = []
        here: list[int] = []
        for node_id, sent in self._sent.items():
            if not sent:
                continue
            connection = self._cluster.open_connection(node_id)
            if connection is None or sent[0].deadline.expired:
                over.append(node_id)
            elif connection.has_input:
                here.append(node_id)
            else:
                sockets[connection.fileno()] = node_id
        if over or not (sockets or (wake_fd is not None and wait_s > 0)):
            if not over and not here and wait_s > 0:
                time.sleep(wait_s)
            return over + here
        poll = select.poll()
        for descriptor in sockets:
            poll.register(descriptor, select.POLLIN)
        if wake_fd is not None:
            poll.register(wake_fd, select.POLLIN)
        ready = (descriptor for descriptor, _ in poll.poll(0 if here else wait_s * 1000))
        return here + [sockets[descriptor] for descriptor in ready if descriptor in sockets]

    def receive(self, node_id: int) -> tuple[Connection, SentRequest, ProduceResponse] | None:
        """The next answer of a broker, None if not all of it is here. Raises KafkaError."""
        sent = self._sent[node_id]
        connection = self._cluster.open_connection(node_id)
        if connection is None:
            raise KafkaConnectionError(f"broker {node_id}: the connection broke")
        if sent[0].deadline.expired:
            # This fails at once, and closes the connection: what comes later would answer the
            # wrong request.
            answer = connection.receive(sent[0].deadline)
        else:
            # Other brokers' answers do not wait for the rest of this one.
            buffer = self._buffers.setdefault(node_id, FrameBuffer())
            found = connection.receive_ready(buffer)
            if found is None:
                return None
            answer = found
        response: ProduceResponse = answer[1]
        if response.throttle_time_ms > 0:
            self._muted_until_s[node_id] = time.monotonic() + response.throttle_time_ms / 1000
        return connection, sent.popleft(), response

    def barrier(self) -> None:
        """acks=0 has no answers; but brokers work a connection's requests off in order, and close
        it when one fails, so one answered question proves that all before it were handled."""
        deadline = Deadline(self._cluster.options.request_timeout_ms)
        for node_id in list(self._sent):
            connection = self._cluster.open_connection(node_id)
            try:
                if connection is None:
                    raise KafkaConnectionError("the connection broke")
                connection.call(ApiVersionsRequest(), deadline)
            except KafkaError as error:
                log.warning("acks=0: broker %d may have lost records: %s", node_id, error)
