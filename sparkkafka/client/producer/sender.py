"""Sends record batches to partition leaders: which go when, in which requests, what is in flight.

A `Sender` has no thread: `step` sends what can be sent, reads the answers that are here, and
returns. `deliveries.py` has the state of its partitions, and what answers do to it.
"""

from __future__ import annotations

import logging
import select
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.metrics.sending import SendMetrics, SentBatch
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.net.frames import FrameBuffer
from sparkkafka.client.producer.deliveries import Deliveries, Sent
from sparkkafka.client.producer.partition_queue import PartitionQueue, ProducerBatch
from sparkkafka.client.producer.sender_transaction import SenderTransaction
from sparkkafka.client.producer.topic_lookup import TopicLookup
from sparkkafka.config.options import ProducerOptions
from sparkkafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    UnsupportedVersionError,
)
from sparkkafka.protocol.messages import (
    ApiVersionsRequest,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from sparkkafka.protocol.records.batches import HEADER_BYTES, batch_parts
from sparkkafka.protocol.records.codecs import Codec, codec_by_name

log = logging.getLogger(__name__)

BUSY_CONNECT_MS = 3_000  # how long connecting may take while other brokers are being written to
AWAY_S = 0.2  # a caller that comes back after longer has left answers unread
LONGEST_WAIT_S = 1.0
PATIENCE_S = 0.1
"""A leader that takes nothing of a request for so long holds nobody else up: the rest waits."""
ZSTD_PRODUCE_VERSION = 7  # KIP-110
LARGE_REQUEST_BYTES = 128 << 10
"""Below it a broker does not close a connection for the size of a request."""


class SentRequest(NamedTuple):
    """A Produce request that waits for its answer."""

    deadline: Deadline
    batches: list[Sent]


class Sender:
    """Sends the batches queued in `deliveries`.

    A batch that cannot be delivered does not affect the others, unless its owner raises: then the
    sender has failed. A wait ends when the descriptor `wake_fd` is readable.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: ProducerOptions,
        transaction: SenderTransaction | None = None,
        *,
        lookup: TopicLookup,
        wake_fd: int | None = None,
        metrics: SendMetrics | None = None,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._transaction = transaction
        self._lookup = lookup
        self._metrics = metrics
        self.deliveries = Deliveries(cluster, options, transaction, metrics)
        self._wake_fd = wake_fd
        self._codec = codec_by_name(options.compression_type)
        self._sent: dict[int, deque[SentRequest]] = {}  # by broker, in the order of their answers
        self._buffers: dict[int, FrameBuffer] = {}
        self._muted_until_s: dict[int, float] = {}
        self._left_s = time.monotonic()
        self._lookup_s = 0.0

    @property
    def in_flight(self) -> bool:
        """Whether an answer is still to come."""
        return any(self._sent.values())

    @property
    def unsettled(self) -> bool:
        """Whether a batch is queued, or an answer is still to come."""
        return bool(self.deliveries.busy) or self.in_flight

    def step(self, *, wait: bool, longest_s: float = LONGEST_WAIT_S) -> None:
        """Send what can be sent and read the answers that are here; with `wait`, wait for one, at
        most `longest_s`.

        Raises what the owner of a batch raises, and errors of the transaction.
        """
        away_s = time.monotonic() - self._left_s
        if away_s > AWAY_S:
            self._come_back(max(0.0, away_s - self._lookup_s))
        self._lookup_s = 0.0
        told = self.deliveries.told
        self.deliveries.expire()
        self._send_ready()
        # A caller may wait for an outcome that came just now.
        wait = wait and told == self.deliveries.told
        for node_id in self._readable(self._wait_s(longest_s) if wait else 0.0):
            self._take_answer(node_id)
        self._left_s = time.monotonic()

    def add_lookup_time(self, seconds: float) -> None:
        """The caller has spent this time on requests of its own, such as metadata: it counts as
        delivery.timeout.ms."""
        self._lookup_s += seconds

    def _come_back(self, away_s: float) -> None:
        """The caller was away for long, preparing its next rows: read the answers first. This time
        does not count as delivery.timeout.ms."""
        while nodes := self._readable(0.0):
            for node_id in nodes:
                self._take_answer(node_id)
        now_s = time.monotonic()
        for queue in self.deliveries.busy.values():
            for batch in queue.batches:
                batch.created_s = min(batch.created_s + away_s, now_s)

    def finish(self) -> None:
        """Send all batches and wait for their acknowledgements. Raises ProduceError."""
        while self.deliveries.busy:
            self.step(wait=True)
        if self._options.acks == 0:
            self.barrier()

    def barrier(self) -> None:
        """Wait until brokers have handled all requests sent with acks=0, which have no answers.

        Brokers handle a connection's requests in order, and close it when one fails: an answer to
        any request proves that all before it were handled.
        """
        deadline = Deadline(self._cluster.options.request_timeout_ms)
        while any(self._sent.values()) and not deadline.expired:  # of first batches: see `_acks`
            nodes = self._readable(0.0)
            for node_id in nodes:
                self._take_answer(node_id)
            if not nodes:
                deadline.pause(1)
        for node_id in list(self._sent):
            connection = self._cluster.connections.open_to(node_id)
            try:
                if connection is None:
                    raise KafkaConnectionError("the connection broke")
                connection.call(ApiVersionsRequest(), deadline)
            except KafkaError as error:
                log.warning("acks=0: broker %d may have lost records: %s", node_id, error)

    def lose_connections(self) -> None:
        for node_id in [node_id for node_id, sent in self._sent.items() if sent]:
            connection = self._cluster.connections.open_to(node_id)
            if connection is not None:
                connection.close()
            error = KafkaConnectionError(f"broker {node_id}: the connection was given up")
            self._broker_lost(node_id, error)

    # --- what goes when -------------------------------------------------------------------------

    def _send_ready(self) -> None:
        while True:
            by_leader = self._ready()
            progress = False
            if self._transaction is not None and not self._join(self._transaction, by_leader):
                return
            for node_id, batches in by_leader.items():
                if self._has_room(node_id):
                    progress = self._send_request(node_id, batches) or progress
            if not progress:
                return

    def _has_room(self, node_id: int) -> bool:
        if len(self._sent.get(node_id, ())) >= self._options.max_in_flight:
            return False
        connection = self._cluster.connections.open_to(node_id)
        return connection is None or not connection.has_unsent

    def _join(
        self, transaction: SenderTransaction, by_leader: Mapping[int, Iterable[Sent]]
    ) -> bool:
        """Add partitions to the transaction. False if no broker answers: their batches wait, at
        most for delivery.timeout.ms, as in Java."""
        queues = [queue for batches in by_leader.values() for queue, _ in batches]
        try:
            transaction.add((queue.tp for queue in queues), self.deliveries.attempt_ms)
        except KafkaTimeoutError as failure:
            for queue in queues:
                queue.back_off(failure)
            return False
        return True

    def _ready(self) -> dict[int, list[Sent]]:
        """By leader, the batches that could go now: at most one of a partition."""
        now_s = time.monotonic()
        waiting = [
            queue
            for queue in self.deliveries.busy.values()
            if queue.not_before_s <= now_s and queue.has_unsent
        ]
        unknown = [queue for queue in waiting if self._cluster.known_leader(queue.tp) is None]
        for queue, error in self._lookup.leaders(unknown, self.deliveries.attempt_ms):
            self.deliveries.give_up_all(queue, str(error), error)
        by_leader: dict[int, list[Sent]] = {}
        for queue in waiting:
            leader = self._cluster.known_leader(queue.tp)
            if leader is None or queue.not_before_s > now_s:
                continue
            if self._options.acks == 0 and queue.in_flight:  # an answer is awaited: see `_acks`
                continue
            node_id = leader.leader
            if not self._has_room(node_id) or self._muted_until_s.get(node_id, 0.0) > now_s:
                continue
            if self._options.enable_idempotence and not self.deliveries.identify(queue):
                continue
            queue.topic_id = self._cluster.topic_id(queue.tp.topic)
            batch = queue.next_batch(node_id)
            if batch is not None:
                by_leader.setdefault(node_id, []).append((queue, batch))
        return by_leader

    def _wait_s(self, longest_s: float) -> float:
        """How long there is nothing to do unless an answer comes."""
        now_s = time.monotonic()
        limits = [longest_s]
        limits += [sent[0].deadline.remaining_s() for sent in self._sent.values() if sent]
        resume_s = [queue.not_before_s for queue in self.deliveries.busy.values()]
        resume_s += self._muted_until_s.values()
        limits += [at_s - now_s for at_s in resume_s if at_s > now_s]
        limits.append(self.deliveries.next_expiry_s - now_s)
        return max(0.0, min(limits))

    # --- requests -------------------------------------------------------------------------------

    def _send_request(self, node_id: int, ready: list[Sent]) -> bool:
        """Send one Produce request with as many of these batches as fit into max.request.size."""
        deadline = Deadline(self._cluster.options.request_timeout_ms)
        queues = [queue for queue, _ in ready]
        connection = self._connection(node_id, deadline, queues)
        if connection is None:
            return False
        chosen: list[Sent] = []
        total = 0
        for queue, batch in ready:
            self._build(queue, batch)
            if chosen and total + batch.wire_bytes > self._options.max_request_size:
                break
            chosen.append((queue, batch))
            total += batch.wire_bytes
        acks = self._acks(node_id, chosen)
        request = self._request(chosen, acks)
        if self._metrics is not None:
            now_s = time.monotonic()
            self._metrics.sent(_figures(queue, batch, now_s) for queue, batch in chosen)
        for queue, batch in chosen:
            self.deliveries.metrics.retries += batch.attempts > 0
            queue.sent(batch, node_id)
        self.deliveries.metrics.requests += 1
        in_flight = self._sent.setdefault(node_id, deque())
        in_flight.append(SentRequest(deadline, chosen))
        try:
            connection.send(
                request,
                deadline,
                version=None if self._transaction is None else self._transaction.produce_version,
                expect_reply=acks != 0,
                # Without answers a request is done when it is sent.
                patience_s=PATIENCE_S if acks else None,
            )
        except KafkaError as error:
            if connection.is_open:  # it could not be encoded, no byte was sent
                in_flight.pop()
                self.deliveries.unsendable(chosen, error)
            else:
                self._broker_lost(node_id, error, queues)
            return False
        if acks == 0:
            in_flight.pop()
            for queue, batch in chosen:
                self.deliveries.acknowledged(queue, batch)
        return True

    def _connection(
        self, node_id: int, deadline: Deadline, queues: list[PartitionQueue]
    ) -> Connection | None:
        """The connection to send batches of these partitions over; None if connecting failed, or
        they were given up."""
        try:
            if self._sent.get(node_id) and self._cluster.connections.open_to(node_id) is None:
                raise KafkaConnectionError(f"broker {node_id}: the connection broke")
            # A leader that does not answer must not hold up the others for long.
            others = any(sent for other, sent in self._sent.items() if other != node_id)
            limit_ms = self.deliveries.attempt_ms
            if others:
                limit_ms = min(limit_ms, BUSY_CONNECT_MS)
            connection = self._cluster.connection(node_id, deadline.sooner(limit_ms))
        except KafkaError as error:
            self._broker_lost(node_id, error, queues)
            return None
        if self._codec != Codec.ZSTD or connection.supports(ProduceRequest, ZSTD_PRODUCE_VERSION):
            return connection
        too_old = UnsupportedVersionError(
            f"{connection} does not know zstd (Kafka 2.1 and later do); choose another "
            f"{self._cluster.options.prefix}compression.type"
        )
        for queue in queues:
            self.deliveries.give_up_all(queue, str(too_old), too_old)
        return None

    def _build(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Make the batch's bytes, once, at its first send."""
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
                transactional=self._transaction is not None,
            )

    def _acks(self, node_id: int, chosen: Iterable[Sent]) -> int:
        """With acks=0 a leader answers the first batch of each partition all the same: one that is
        not ready yet (of a new topic, or just elected) refuses it, and acks=0 would hide that."""
        if self._options.acks:
            return self._options.acks
        return 0 if all(queue.proven_node_id == node_id for queue, _ in chosen) else 1

    def _request(self, chosen: Iterable[Sent], acks: int) -> ProduceRequest:
        topics: dict[str, list[PartitionProduceData]] = {}
        for queue, batch in chosen:
            topics.setdefault(queue.tp.topic, []).append(
                PartitionProduceData(index=queue.tp.partition, records=batch.wire)
            )
        return ProduceRequest(
            # Read each time: a transaction may choose another of its ids when it begins.
            transactional_id=(
                None if self._transaction is None else self._transaction.transactional_id
            ),
            acks=acks,
            timeout_ms=self._cluster.options.request_timeout_ms,
            topic_data=[
                TopicProduceData(name=name, partition_data=rows) for name, rows in topics.items()
            ],
        )

    # --- answers --------------------------------------------------------------------------------

    def _readable(self, wait_s: float) -> list[int]:
        """Brokers with an answer arriving, ready for the rest of a half-sent request, or whose
        connection or deadline has ended."""
        sockets: dict[int, int] = {}
        events: dict[int, int] = {}
        wake_fd = self._wake_fd
        over: list[int] = []
        here: list[int] = []
        for node_id, sent in self._sent.items():
            if not sent:
                continue
            connection = self._cluster.connections.open_to(node_id)
            if connection is None or sent[0].deadline.expired:
                over.append(node_id)
            elif connection.has_input:
                here.append(node_id)
            else:
                sockets[connection.fileno()] = node_id
                events[connection.fileno()] = select.POLLIN | connection.has_unsent * select.POLLOUT
        if over or not (sockets or (wake_fd is not None and wait_s > 0)):
            if not over and not here and wait_s > 0:
                time.sleep(wait_s)
            return over + here
        poll = select.poll()
        for descriptor in sockets:
            poll.register(descriptor, events[descriptor])
        if wake_fd is not None:
            poll.register(wake_fd, select.POLLIN)
        ready = (descriptor for descriptor, _ in poll.poll(0 if here else wait_s * 1000))
        return here + [sockets[descriptor] for descriptor in ready if descriptor in sockets]

    def _take_answer(self, node_id: int) -> None:
        try:
            answer = self._receive(node_id)
        except KafkaError as error:
            self._broker_lost(node_id, error)
            return
        if answer is not None:
            connection, response = answer
            sent = self._sent[node_id].popleft()
            self.deliveries.answered(sent.batches, response, f"Produce @ {connection}")

    def _receive(self, node_id: int) -> tuple[Connection, ProduceResponse] | None:
        """The next answer of a broker, None if not all of it is here. Raises KafkaError."""
        deadline = self._sent[node_id][0].deadline
        connection = self._cluster.connections.open_to(node_id)
        if connection is None:
            raise KafkaConnectionError(f"broker {node_id}: the connection broke")
        if deadline.expired:
            # Fails at once and closes the connection: a late answer would be taken for the next
            # request's.
            answer = connection.receive(deadline)
        else:
            if connection.has_unsent:
                connection.send_rest(deadline)
            # The rest of this answer does not hold up other brokers' answers.
            found = connection.receive_ready(self._buffers.setdefault(node_id, FrameBuffer()))
            if found is None:
                return None
            answer = found
        response: ProduceResponse = answer[1]
        if self._metrics is not None:
            self._metrics.throttled(response.throttle_time_ms)
        if response.throttle_time_ms > 0:
            self._muted_until_s[node_id] = time.monotonic() + response.throttle_time_ms / 1000
        return connection, response

    def _broker_lost(
        self, node_id: int, error: KafkaError, queues: Iterable[PartitionQueue] = ()
    ) -> None:
        """The connection broke, and the batches of `queues` could not be sent."""
        requests = self._sent.pop(node_id, ())
        sizes = (sum(batch.wire_bytes for _, batch in row.batches) for row in requests)
        largest_bytes = max(sizes, default=0)
        is_closed = isinstance(error, KafkaConnectionError) and error.retriable
        if is_closed and largest_bytes >= LARGE_REQUEST_BYTES:
            # A broker gives no other answer to a request above its socket.request.max.bytes.
            error = KafkaConnectionError(
                f"{error}; the largest Produce request without an answer had {largest_bytes} bytes "
                "of records: if the broker closes the connection at each such request, lower "
                f"{self._cluster.options.prefix}max.request.size={self._options.max_request_size}"
            )
        sent = [batch for request in requests for batch in request.batches]
        self.deliveries.broker_lost(sent, error, queues)


def _figures(queue: PartitionQueue, batch: ProducerBatch, now_s: float) -> SentBatch:
    return SentBatch(
        queue.tp.topic,
        batch.encoded.record_count,
        batch.wire_bytes,
        HEADER_BYTES + batch.size_bytes,
        now_s - batch.created_s,
        batch.attempts > 0,
    )
