"""Sends record batches to partition leaders, and acts on the responses.

A `Sender` has no thread: `step` sends what can be sent, reads the responses that are here, and
returns. A Producer's I/O thread calls it in a loop, a Spark task between its rows. It also requests
the producer id of an idempotent producer without transactions; `transactions` has the others.
`partition_queue.py` has the rules of order, `produce_errors.py` the meaning of error codes.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.topic_lookup import TopicLookup
from sparkkafka.client.deadline import Deadline, Waker, poll_connections
from sparkkafka.client.metrics import SendMetrics
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.net.frames import FrameBuffer
from sparkkafka.client.producer.futures import RecordSlice, fail_records, split_slices
from sparkkafka.client.producer.partition_queue import PartitionQueue, ProducerBatch, QueueState
from sparkkafka.client.producer.produce_errors import (
    WRITTEN,
    Action,
    batch_error,
    decide,
    refusal_facts,
    refusal_text,
    with_codec_reason,
)
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.kinds import INT64_MAX
from sparkkafka.config.options import ProducerOptions
from sparkkafka.errors import (
    BrokerError,
    DeliveryTimeoutError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    PartitionOutcome,
    ProduceError,
    UnsupportedVersionError,
    counted,
)
from sparkkafka.protocol import messages
from sparkkafka.protocol.columns.encode import split_encoded
from sparkkafka.protocol.constants import NO_PRODUCER_ID
from sparkkafka.protocol.records.batches import EncodedBatch, batch_parts
from sparkkafka.protocol.records.compression import Codec, codec_of
from sparkkafka.protocol.wire.primitives import uuid_of

log = logging.getLogger(__name__)

AWAY_S = 0.2  # a caller that comes back after longer has left responses unread
MAX_WAIT_S = 1.0
PATIENCE_S = 0.1
"""If a leader accepts no bytes of a request for this long, the rest of it is sent later, so that
other leaders do not wait."""
TOPIC_ID_VERSION = 13  # of Produce: topic ids replace names (KIP-516)
MIN_ATTEMPT_MS = 1_000
"""The shortest timeout of a request for metadata or a producer id, and of a connection, even if a
batch expires sooner."""


class SenderTransaction(Protocol):
    """The transaction to which a sender's batches belong (see `transactions`).

    `produce_version` is the version of Produce to use; None for the default. `begin` returns the
    transactional id, producer id and epoch to write with, `add` adds partitions. They raise
    KafkaTimeoutError after `within_ms` at the latest; the sender calls them again until its batches
    expire.
    """

    transactional_id: str
    produce_version: int | None

    def begin(self, within_ms: float) -> tuple[str, int, int]: ...

    def add(self, partitions: Iterable[TopicPartition], within_ms: float) -> None: ...


class SentRequest(NamedTuple):
    """A Produce request whose response has not come; `deadline` is its request.timeout.ms."""

    connection: Connection
    version: int
    deadline: Deadline
    batches: list[ProducerBatch]


class ProducerMetrics(NamedTuple):
    """Counts since the producer was made: of acknowledged records and batches, and of Produce
    requests. Bytes are those of record batches as sent.

    `offsets` are the first and last offset written to each partition, as far as brokers returned
    them.
    """

    records: int
    batches: int
    batch_bytes: int
    requests: int
    retries: int
    offsets: dict[TopicPartition, tuple[int, int]]


class Sender:
    """The queues of all partitions, and the requests that empty them.

    `on_failure` gets the error of a batch, and returns the one that its records get. A batch that
    cannot be delivered does not affect the others, unless `on_failure` raises: then the sender has
    failed. `waker` ends its waits.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: ProducerOptions,
        transaction: SenderTransaction | None = None,
        *,
        lookup: TopicLookup,
        waker: Waker | None = None,
        metrics: SendMetrics | None = None,
        on_failure: Callable[[KafkaError], KafkaError] = lambda error: error,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._prefix = cluster.options.prefix
        self._transaction = transaction
        self._lookup = lookup
        self._send_metrics = metrics
        self._batches = self._batch_bytes = self._requests = self._retries = 0  # see `metrics`
        self._waker = waker
        self.on_failure = on_failure
        self._codec = codec_of(options.compression_type)
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        # Each step visits all of these: there can be hundreds of topics without batches.
        self._nonempty_queues: dict[TopicPartition, PartitionQueue] = {}
        self.queued_bytes = 0
        self._outcome_count = 0  # batches that were acknowledged or failed
        self._sent: dict[int, deque[SentRequest]] = {}  # by broker, in the order of their responses
        self._buffers: defaultdict[int, FrameBuffer] = defaultdict(FrameBuffer)
        self._muted_until_s: dict[int, float] = {}  # by broker: throttled, so it gets no request
        self._producer_id: tuple[int, int] | None = None
        self._producer_id_backoff = cluster.backoff()
        self._producer_id_error: KafkaError | None = None
        self._producer_id_not_before_s = 0.0  # when the next producer id may be requested
        self._expiring_since_s: float | None = None
        """When the first batch after the last response expired (monotonic)."""
        self._refusal_lookup_at_s = -math.inf  # when a broker was last asked why it refused a batch
        self._step_ended_at_s = time.monotonic()  # when the last `step` ended
        self._lookup_s = 0.0  # see `add_lookup_time`

    # --- queues -----------------------------------------------------------------------------------

    def append(
        self,
        tp: TopicPartition,
        encoded: Sequence[EncodedBatch],
        slices: Sequence[RecordSlice] = (),
        created_at_s: float | None = None,
    ) -> None:
        """Queue batches of one partition. `slices` are the futures of their records, in order;
        delivery.timeout.ms counts from `created_at_s` (monotonic), now by default."""
        queue = self._queues.get(tp)
        if queue is None:
            queue = self._queues[tp] = PartitionQueue(tp, self._cluster.backoff())
        self._cluster.look_for_leaders(tp.topic)
        since_s = time.monotonic() if created_at_s is None else created_at_s
        parts: Iterable[Sequence[RecordSlice]] = [slices]
        if len(encoded) != 1:
            parts = split_slices(slices, [batch.record_count for batch in encoded])
        for encoded_batch, part in zip(encoded, parts, strict=True):
            batch = ProducerBatch(queue, encoded_batch, since_s, part)
            queue.batches.append(batch)
            self.queued_bytes += batch.size_bytes
        if queue.batches:
            self._nonempty_queues[tp] = queue

    def has_unsent(self, tp: TopicPartition) -> bool:
        """Return whether a batch of the partition still waits to be sent."""
        queue = self._nonempty_queues.get(tp)
        return queue is not None and queue.has_unsent

    @property
    def has_gaps(self) -> bool:
        """Whether a batch failed that had sequence numbers."""
        return any(queue.state is QueueState.GAP for queue in self._queues.values())

    @property
    def has_in_flight(self) -> bool:
        """Whether a response is still to come."""
        return any(self._sent.values())

    @property
    def has_unacknowledged(self) -> bool:
        """Whether a batch is queued, or a response is still to come."""
        return bool(self._nonempty_queues) or self.has_in_flight

    @property
    def metrics(self) -> ProducerMetrics:
        """The counts so far."""
        return ProducerMetrics(
            sum(queue.acknowledged_records for queue in self._queues.values()),
            self._batches,
            self._batch_bytes,
            self._requests,
            self._retries,
            {
                tp: (queue.first_offset, queue.last_offset)
                for tp, queue in self._queues.items()
                if queue.last_offset >= 0
            },
        )

    def outcomes(self) -> dict[TopicPartition, PartitionOutcome]:
        """Count the records of each partition, by what is known of them."""
        acks = self._options.acks
        return {tp: queue.outcome(acks=acks) for tp, queue in self._queues.items()}

    def errors(self) -> list[KafkaError]:
        """Return the last error of each partition with unacknowledged batches. From any thread."""
        return [
            queue.last_error for queue in list(self._nonempty_queues.values()) if queue.last_error
        ]

    def unacknowledged_partitions(self) -> list[TopicPartition]:
        """Partitions with unacknowledged batches. From any thread."""
        return list(self._nonempty_queues)

    # --- the loop ---------------------------------------------------------------------------------

    def step(self, max_wait_s: Callable[[], float] | float = MAX_WAIT_S) -> None:
        """Send what can be sent, wait for a response at most `max_wait_s` (a function is called
        when all is sent), and read the responses that are here.

        Raises what `on_failure` raises, and errors of the transaction.
        """
        away_s = time.monotonic() - self._step_ended_at_s
        if away_s > AWAY_S:  # not time that batches have spent at a broker
            self._resume_after(max(0.0, away_s - self._lookup_s))
        self._lookup_s = 0.0
        outcome_count = self._outcome_count
        if self._nonempty_queues:
            self.expire()
            self._send_ready()
        wait_s = max_wait_s() if callable(max_wait_s) else max_wait_s
        if outcome_count != self._outcome_count:
            wait_s = 0.0  # the caller may wait for an outcome that came just now
        for node_id in self._poll_brokers(wait_s):
            self._take_response(node_id)
        self._step_ended_at_s = time.monotonic()

    def add_lookup_time(self, seconds: float) -> None:
        """Count time that the caller has spent on requests of its own, such as metadata, as part of
        delivery.timeout.ms. Other time between two steps does not count if it is long."""
        self._lookup_s += seconds

    def _resume_after(self, away_s: float) -> None:
        """Read the responses that came while the caller prepared its next rows, for `away_s`: that
        time does not count as part of delivery.timeout.ms."""
        while nodes := self._poll_brokers(0.0):
            for node_id in nodes:
                self._take_response(node_id)
        now_s = time.monotonic()
        for queue in self._nonempty_queues.values():
            for batch in queue.batches:
                batch.created_at_s = min(batch.created_at_s + away_s, now_s)

    def finish(self) -> None:
        """Send all batches and wait for their acknowledgements. Raises ProduceError."""
        while self._nonempty_queues:
            self.step()
        if self._options.acks == 0:  # there are no acknowledgements
            self.barrier()

    def barrier(self) -> None:
        """Wait until brokers have handled all requests sent with acks=0, which have no responses.

        Brokers handle a connection's requests in order, and close it when one fails: a response to
        any request proves that all before it were handled.
        """
        deadline = Deadline(self._cluster.options.request_timeout_ms)
        while self.has_in_flight and not deadline.expired:  # for first batches: see `_acks`
            nodes = self._poll_brokers(0.0)
            for node_id in nodes:
                self._take_response(node_id)
            if not nodes:
                deadline.pause(1)
        for node_id in list(self._sent):
            connection = self._cluster.connections.find_open(node_id)
            try:
                if connection is None:
                    raise KafkaConnectionError("the connection broke")
                connection.call(messages.ApiVersionsRequest(), deadline)
            except KafkaError as error:
                log.warning("acks=0: broker %d may have lost records: %s", node_id, error)

    def close_connections(self) -> None:
        """Close the connections with a response still to come: nothing sent over them may arrive
        after the end of the transaction."""
        for node_id in [node_id for node_id, sent in self._sent.items() if sent]:
            self._sent[node_id][0].connection.close()
            error = KafkaConnectionError(
                f"broker {node_id}: the connection was closed, since the transaction ends"
            )
            self._on_connection_lost(node_id, error)

    # --- what is sent when ------------------------------------------------------------------------

    def _send_ready(self) -> None:
        """Send batches until none is ready, or until no leader takes one."""
        while by_leader := self._ready_batches():
            is_sent = False
            if self._transaction is not None and not self._add_to_transaction(
                self._transaction, by_leader
            ):
                return
            for node_id, batches in by_leader.items():
                is_sent = self._send_request(node_id, batches) or is_sent
            if not is_sent:
                return

    def _can_send(self, node_id: int) -> bool:
        """Return whether a broker may get another request: fewer than
        max.in.flight.requests.per.connection wait for responses, and the last one is sent
        completely."""
        sent = self._sent.get(node_id)
        return not sent or (
            len(sent) < self._options.max_in_flight and not sent[0].connection.has_unsent
        )

    def _add_to_transaction(
        self, transaction: SenderTransaction, by_leader: Mapping[int, Iterable[ProducerBatch]]
    ) -> bool:
        """Add the partitions of these batches to the transaction. Return False if no broker
        answers: the batches wait, at most for delivery.timeout.ms, as in Java."""
        queues = [batch.queue for batches in by_leader.values() for batch in batches]
        try:
            transaction.add((queue.tp for queue in queues), self.attempt_ms)
        except KafkaTimeoutError as failure:
            for queue in queues:
                queue.back_off(failure)
            return False
        return True

    def _ready_batches(self) -> dict[int, list[ProducerBatch]]:
        """Return the batches that can be sent now, at most one of a partition, by the node id of
        their leader.

        Requests leaders and producer ids that are not known; fails the batches for which that
        fails with an error that is not retriable.
        """
        now_s = time.monotonic()
        waiting = [
            queue
            for queue in self._nonempty_queues.values()
            if queue.not_before_s <= now_s and queue.has_unsent
        ]
        if not waiting:
            return {}
        leaders = [self._cluster.known_leader(queue.tp) for queue in waiting]
        if None in leaders:
            unknown = [
                queue for queue, leader in zip(waiting, leaders, strict=True) if leader is None
            ]
            for queue, error in self._lookup.look_up_leaders(unknown, self.attempt_ms):
                self.fail_partition(queue, str(error), error)
            leaders = [self._cluster.known_leader(queue.tp) for queue in waiting]
        by_leader: dict[int, list[ProducerBatch]] = {}
        for queue, leader in zip(waiting, leaders, strict=True):
            if leader is None or queue.not_before_s > now_s:  # the lookups may delay it
                continue
            if self._options.acks == 0 and queue.in_flight:
                continue  # the first batch is sent with acks=1, and its response has not come
            node_id = leader.leader
            if not self._can_send(node_id) or self._muted_until_s.get(node_id, 0.0) > now_s:
                continue
            if self._options.enable_idempotence:  # batches need a producer id
                if queue.needs_next_epoch and self._transaction is None:
                    self._next_epoch(queue)
                if queue.producer_id == NO_PRODUCER_ID and (
                    queue.in_flight or not self._assign_producer_id(queue)
                ):
                    continue
            if not queue.in_flight:  # all in flight are for one topic
                topic_id = self._cluster.topic_id(queue.tp.topic)
                if topic_id != queue.topic_id:
                    queue.set_topic_id(topic_id)
            batch = queue.next_batch(node_id)
            if batch is not None:
                by_leader.setdefault(node_id, []).append(batch)
        return by_leader

    # --- producer ids -----------------------------------------------------------------------------

    def reset_producer_ids(self) -> None:
        """Request a new producer id or epoch for all partitions; nothing is in flight."""
        self._producer_id = None
        for queue in self._queues.values():
            queue.reset_producer_id()

    def _next_epoch(self, queue: PartitionQueue) -> None:
        """Continue at sequence 0 of the next epoch after a gap in the sequence numbers. This needs
        no request, but after the last epoch the next batch requests a new producer id."""
        if queue.producer_epoch + 1 < (1 << 15) - 1:  # the largest int16
            queue.assign_producer_id(queue.producer_id, queue.producer_epoch + 1)
        else:
            queue.reset_producer_id()
            self._producer_id = None

    def _assign_producer_id(self, queue: PartitionQueue) -> bool:
        """Assign the producer id to a partition; request it if there is none. Return False if no
        response comes, or if the broker refuses it: then the batches have failed.

        Batches that may be written under a former id fail: the broker would not recognise them.
        """
        for uncertain in [batch for batch in queue.batches if batch.maybe_written]:
            text = (
                "the broker forgot this producer while a response was missing, so it is not known "
                "whether sending again would duplicate records"
            )
            self._fail(uncertain, text)
        try:
            if self._transaction is not None:
                # The producer id and epoch, without the transactional id.
                self._producer_id = self._transaction.begin(self.attempt_ms)[1:]
            elif self._producer_id is None:
                if self._producer_id_error is not None and (
                    time.monotonic() < self._producer_id_not_before_s
                ):
                    queue.back_off(self._producer_id_error)
                    return False
                self._producer_id = self._request_producer_id()
        except KafkaError as failure:
            if isinstance(failure, KafkaTimeoutError) or (
                failure.retriable and self._transaction is None
            ):
                queue.back_off(failure)
                return False
            if self._transaction is not None:
                raise
            self.fail_partition(queue, str(failure), failure)
            return False
        queue.assign_producer_id(*self._producer_id)
        return True

    def _request_producer_id(self) -> tuple[int, int]:
        """Request a producer id for all partitions, once."""
        # Brokers ignore the timeout without a transactional id.
        request = messages.InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=60_000
        )
        # Not for long: other partitions may have a producer id already.
        deadline = Deadline(min(self.attempt_ms, 5_000))
        try:
            response = self._cluster.call(request, deadline=deadline, once=True)
        except KafkaError as error:
            if isinstance(error, UnsupportedVersionError):
                prefix = self._cluster.options.prefix
                error = UnsupportedVersionError(
                    f"{error}. Set {prefix}enable.idempotence=false to write to this broker; a "
                    "retry may then write records twice"
                )
            self._producer_id_error = error
            self._producer_id_not_before_s = (
                time.monotonic() + self._producer_id_backoff.next_ms() / 1000
            )
            raise error
        self._producer_id_error = None
        self._producer_id_backoff.reset()
        return response.producer_id, response.producer_epoch

    # --- requests -------------------------------------------------------------------------------

    def _send_request(self, node_id: int, ready: list[ProducerBatch]) -> bool:
        """Send one Produce request with as many of these batches as fit into max.request.size.
        Return False if it was not sent: the batches wait, or have failed."""
        deadline = Deadline(self._cluster.options.request_timeout_ms)
        connection = self._connection(node_id, deadline, ready)
        if connection is None:
            return False
        chosen: list[ProducerBatch] = []
        total = 0
        for batch in ready:
            self._build_wire(batch)
            if chosen and total + batch.wire_bytes > self._options.max_request_size:
                break
            chosen.append(batch)
            total += batch.wire_bytes
        acks = self._acks(node_id, chosen)
        version = self._produce_version(connection, chosen)
        request = self._produce_request(chosen, acks, version)
        for batch in chosen:
            batch.queue.on_sent(batch, node_id)
            self._retries += batch.attempts > 1
        self._requests += 1
        in_flight = self._sent.setdefault(node_id, deque())
        in_flight.append(SentRequest(connection, version, deadline, chosen))
        try:
            connection.send(
                request,
                deadline,
                version=version,
                expect_response=acks != 0,
                # With acks=0 there is no response: the request is done when all of it is sent.
                patience_s=PATIENCE_S if acks else None,
            )
        except KafkaError as error:
            if connection.is_open:  # the request could not be encoded: no byte was sent
                in_flight.pop()
                for batch in chosen:
                    batch.queue.on_attempt_failed(batch, maybe_written=False)
                    self._fail(batch, str(error), error)
            else:
                self._on_connection_lost(node_id, error, ready)
            return False
        if self._send_metrics is not None:
            self._send_metrics.sent(chosen)
        if acks == 0:
            in_flight.pop()
            for batch in chosen:
                self._acknowledge(batch)
        return True

    def _connection(
        self, node_id: int, deadline: Deadline, ready: list[ProducerBatch]
    ) -> Connection | None:
        """Return the connection for these batches. None: connecting failed, and they
        wait, or the broker is too old for the codec, and they have failed."""
        try:
            connection: Connection | None
            if sent := self._sent.get(node_id):
                connection = sent[0].connection
                if not connection.is_open:
                    raise KafkaConnectionError(f"broker {node_id}: the connection broke")
            else:
                connection = self._cluster.connections.find_usable(self._cluster.broker(node_id))
            if connection is None:
                # A leader that does not answer must not delay the others for long.
                others = any(sent for other, sent in self._sent.items() if other != node_id)
                limit_ms = min(self.attempt_ms, 3_000) if others else self.attempt_ms
                connection = self._cluster.connection(node_id, deadline.sooner(limit_ms))
        except KafkaError as error:
            self._on_connection_lost(node_id, error, ready)
            return None
        if self._codec != Codec.ZSTD or connection.supports(messages.ProduceRequest, 7):  # KIP-110
            return connection
        too_old = UnsupportedVersionError(
            f"{connection} does not know zstd (Kafka 2.1 and later do); choose another "
            f"{self._prefix}compression.type"
        )
        for batch in ready:
            self.fail_partition(batch.queue, str(too_old), too_old)
        return None

    def _build_wire(self, batch: ProducerBatch) -> None:
        """Set the batch's bytes and sequence numbers, once, at its first send."""
        if batch.wire is None:
            queue = batch.queue
            if self._options.enable_idempotence:
                queue.assign_sequence(batch)
            batch.wire = batch_parts(
                batch.encoded,
                codec=self._codec,
                level=self._options.compression_level,
                producer_id=queue.producer_id,
                producer_epoch=queue.producer_epoch,
                base_sequence=batch.base_sequence,
                transactional=self._transaction is not None,
            )
            batch.wire_bytes = sum(map(len, batch.wire))

    def _acks(self, node_id: int, chosen: Iterable[ProducerBatch]) -> int:
        """Return the acks of a request with these batches. With acks=0 it is 1 for the first batch
        that a leader gets of a partition, and for one that is larger than all before: a leader that
        is not ready yet (of a new topic, or just elected) refuses the first, and max.message.bytes
        of the topic may be too low for the other. acks=0 would hide that."""
        if self._options.acks:
            return self._options.acks
        is_proven = all(
            batch.queue.proven_node_id == node_id and batch.wire_bytes <= batch.queue.proven_bytes
            for batch in chosen
        )
        return 0 if is_proven else 1

    def _produce_version(self, connection: Connection, chosen: Iterable[ProducerBatch]) -> int:
        """Return the version of a Produce: one with topic ids if the broker has them and all ids
        are known. Then the broker itself refuses batches for a topic that was recreated (KIP-516).
        Transactions of the first protocol have none."""
        transaction = self._transaction
        highest = None if transaction is None else transaction.produce_version
        is_first_protocol = transaction is not None and highest is None
        if not is_first_protocol and None not in [batch.queue.topic_id for batch in chosen]:
            highest = messages.ProduceRequest.MAX_VERSION
        return connection.choose_version(messages.ProduceRequest, highest)

    def _produce_request(
        self, chosen: Iterable[ProducerBatch], acks: int, version: int
    ) -> messages.ProduceRequest:
        """Return the Produce request of this version for these batches."""
        topics: dict[str, messages.TopicProduceData] = {}
        for batch in chosen:
            queue = batch.queue
            name = queue.tp.topic
            topic = topics.get(name)
            if topic is None:
                if version >= TOPIC_ID_VERSION and queue.topic_id is not None:
                    topic = messages.TopicProduceData(topic_id=uuid_of(queue.topic_id))
                else:
                    topic = messages.TopicProduceData(name=name)
                topics[name] = topic
            topic.partition_data.append(
                messages.PartitionProduceData(index=queue.tp.partition, records=batch.wire)
            )
        return messages.ProduceRequest(
            # Read each time: a transaction may choose another of its ids when it begins.
            transactional_id=(
                None if self._transaction is None else self._transaction.transactional_id
            ),
            acks=acks,
            # The leader answers before this client gives up: that its followers lag, not nothing.
            timeout_ms=self._cluster.options.request_timeout_ms * 9 // 10,
            topic_data=list(topics.values()),
        )

    # --- responses --------------------------------------------------------------------------------

    def _poll_brokers(self, wait_s: float) -> list[int]:
        """Wait for brokers with a response, or that are ready for the rest of a half-sent request;
        return them. Those whose connection or deadline has ended are returned without a wait.

        Wait at most `wait_s`, and not longer than until a batch expires or may be sent again.
        """
        if wait_s > 0 and self._nonempty_queues:
            now_s = time.monotonic()
            until_s = min(now_s + wait_s, self._expiry_at_s)
            not_before_s = [queue.not_before_s for queue in self._nonempty_queues.values()]
            for due_s in (*not_before_s, *self._muted_until_s.values()):
                if now_s < due_s < until_s:
                    until_s = due_s
            wait_s = until_s - now_s
        ended: list[int] = []
        nodes: dict[Connection, int] = {}
        for node_id, sent in self._sent.items():
            if sent:
                connection, _, deadline, _ = sent[0]
                remaining_s = deadline.remaining_s()
                if not remaining_s or not connection.is_open:
                    ended.append(node_id)
                    wait_s = 0.0
                else:
                    nodes[connection] = node_id
                    wait_s = min(wait_s, remaining_s)
        ready = poll_connections(nodes, wait_s, self._waker)
        return [*ended, *map(nodes.__getitem__, ready)]

    def _take_response(self, node_id: int) -> None:
        """Read the next response of a broker, if all of it is here, and act on it."""
        connection, _, deadline, _ = self._sent[node_id][0]
        try:
            if connection.has_unsent:
                connection.send_rest(deadline)
            # The rest of this response does not delay other brokers' responses.
            received = connection.receive_ready(self._buffers[node_id])
            if received is None:
                if not deadline.expired:
                    return
                # Fails immediately and closes the connection: a late response would be taken for
                # the next request's.
                received = connection.receive(deadline)
        except KafkaError as error:
            if isinstance(error, KafkaTimeoutError):  # its text has the time of this call
                limit = f"{deadline.text} ({self._prefix}request.timeout.ms)"
                error = KafkaTimeoutError(f"{connection}: no response within {limit}")
            self._on_connection_lost(node_id, error)
            return
        response: messages.ProduceResponse
        _, response = received  # the other is the correlation id
        if self._send_metrics is not None:
            self._send_metrics.throttled(response.throttle_time_ms)
        if response.throttle_time_ms > 0:
            self._muted_until_s[node_id] = time.monotonic() + response.throttle_time_ms / 1000
        self._process_response(self._sent[node_id].popleft(), response)

    def _on_connection_lost(
        self, node_id: int, error: KafkaError, unsent: Iterable[ProducerBatch] = ()
    ) -> None:
        """Retry later what was sent over a connection that broke, and may be written, and batches
        in `unsent`, which could not be sent. All fail if `error` is final (a port that is not
        Kafka's)."""
        requests = self._sent.pop(node_id, ())
        sizes = (sum(batch.wire_bytes for batch in request.batches) for request in requests)
        largest_bytes = max(sizes, default=0)
        is_closed = isinstance(error, KafkaConnectionError) and error.retriable
        if is_closed and largest_bytes >= 128 << 10:  # smaller ones are no reason to close
            # A broker gives no other response to a request above its socket.request.max.bytes.
            error = KafkaConnectionError(
                f"{error}; the largest Produce request without a response had {largest_bytes} "
                "bytes of records: if the broker closes the connection at each such request, it is "
                "above socket.request.max.bytes of the broker: raise that, or lower "
                f"{self._prefix}max.request.size={self._options.max_request_size}"
            )
        log.info("%s", error)
        affected = [batch.queue for batch in unsent]
        for batch in (batch for request in requests for batch in request.batches):
            queue = batch.queue
            if batch.has_failed:
                queue.on_response(batch)
                continue
            queue.on_attempt_failed(batch, maybe_written=True)
            affected.append(queue)
            if batch.attempts > self._options.retries:
                text = (
                    f"{error} ({counted(batch.attempts, 'attempt')}, "
                    f"{self._prefix}retries={self._options.retries})"
                )
                self._fail(batch, text, error)
        for queue in dict.fromkeys(affected):
            queue.back_off(error)
            self._cluster.mark_stale(queue.tp.topic)
            for batch in [] if error.retriable else list(queue.batches):
                self._fail(batch, str(error), error)

    # --- what responses do ---------------------------------------------------------------------

    def _process_response(self, sent: SentRequest, response: messages.ProduceResponse) -> None:
        """Act on the response to a request. Raises what `on_failure` raises, at the end."""
        has_ids = sent.version >= TOPIC_ID_VERSION
        rows: dict[tuple[bytes | str | None, int], Any] = {
            (topic.topic_id.bytes if has_ids else topic.name, row.index): row
            for topic in response.responses
            for row in topic.partition_responses
        }
        failure: ProduceError | None = None
        for batch in sent.batches:
            queue = batch.queue
            if batch.has_failed:
                queue.on_response(batch)
                continue
            topic, partition = queue.tp
            row = rows.get((queue.topic_id if has_ids else topic, partition))
            try:
                if row is not None and row.error_code in WRITTEN:
                    self._on_written(batch, row, has_ids=has_ids)
                else:
                    self._on_refused(batch, row, sent.connection)
            except ProduceError as error:
                failure = failure or error  # the rest of the response counts as well
        if failure is not None:
            raise failure

    def _on_written(self, batch: ProducerBatch, row: Any, *, has_ids: bool) -> None:
        """Acknowledge a batch that the broker has written, or recognised as a duplicate. `row` is
        its part of the response."""
        queue = batch.queue
        # For `_acks`: this leader takes batches of the partition, up to this size.
        queue.proven_node_id = queue.node_id
        queue.proven_bytes = max(queue.proven_bytes, batch.wire_bytes)
        try:
            if unresolved := queue.unresolved_before(batch):
                self._resolve(queue, unresolved, row.base_offset, has_ids=has_ids)
        finally:
            # With acks=0 some batches have responses (`_acks`); their offsets are not reported.
            if self._options.acks == 0:
                self._acknowledge(batch)
            else:
                self._acknowledge(batch, row.base_offset, row.log_append_time_ms)

    def _on_refused(self, batch: ProducerBatch, row: Any, connection: Connection) -> None:
        """Decide about a batch that the broker refused. `row` is its part of the response, None if
        the response leaves it out."""
        queue = batch.queue
        code = int(ErrorCode.UNKNOWN_SERVER_ERROR) if row is None else row.error_code
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._recover_out_of_order(batch):
            return
        decision = decide(
            code,
            record_count=batch.encoded.record_count,
            is_head=queue.is_head(batch),
            maybe_written=batch.maybe_written,
            attempts_left=batch.attempts <= self._options.retries,
            transactional=self._transaction is not None,
        )
        message = "the response leaves the partition out" if row is None else row.error_message
        where = f"Produce @ {connection} for {queue.tp}"
        error = BrokerError(code, where, message, prefix=self._prefix)
        error = with_codec_reason(error, self._options.compression_type, self._prefix)
        queue.last_error = error
        if decision.action is Action.FAIL:
            # Not in flight any more; the decision says whether it may be written.
            queue.on_attempt_failed(batch, maybe_written=decision.maybe_written)
            facts = ""
            # Once a second at most: a topic may refuse all batches in flight, one after the other.
            if time.monotonic() - self._refusal_lookup_at_s > 1.0:
                facts = refusal_facts(self._cluster, queue.tp, batch, code)
                self._refusal_lookup_at_s = time.monotonic()
            for uncertain in queue.unresolved_before(batch):
                text = f"{error}: no broker knows whether it is written"
                self._fail(uncertain, text, error)
            text = refusal_text(batch, error, self._options, self._prefix, facts)
            records = [] if row is None else row.record_errors
            reasons = {record.batch_index: record.batch_index_error_message for record in records}
            self._fail(batch, text, error, reasons)
            return
        log.info("%s; %s", error, decision.action.value)
        if decision.action is Action.SPLIT:
            parts = split_encoded(batch.encoded)
            self.queued_bytes += sum(len(part.payload) for part in parts) - batch.size_bytes
            queue.split(batch, parts)
            return
        if decision.action is Action.AFTER_PREDECESSOR:
            queue.on_out_of_order(batch)
            return
        queue.on_attempt_failed(batch, maybe_written=decision.maybe_written)
        if decision.action is Action.NEW_PRODUCER_ID:
            self._producer_id = None
            queue.reset_producer_id()
        else:  # RETRY
            self._cluster.note_error(queue.tp, code)
            queue.back_off(error)

    def _recover_out_of_order(self, batch: ProducerBatch) -> bool:
        """Decide about a batch that the broker refused as out of order: keep it queued and return
        True, or return False: the refusal is judged like any other."""
        queue = batch.queue
        if not queue.is_head(batch):
            return False
        if batch.later_batch_acknowledged and not batch.maybe_written and self._transaction is None:
            log.warning(
                "%s: the leader took later records before %s, which are sent again behind them "
                "(it had lost the state of this producer)",
                queue.tp,
                counted(batch.encoded.record_count, "record"),
            )
            queue.on_attempt_failed(batch, maybe_written=False)
            queue.restart([batch])
            return True
        if not queue.mark_unresolved(batch):
            return False
        log.info(
            "%s: out of order; the response to a later batch will show whether it is written",
            queue.tp,
        )
        return True

    def _resolve(
        self,
        queue: PartitionQueue,
        unresolved: Sequence[ProducerBatch],
        base_offset: int,
        *,
        has_ids: bool,
    ) -> None:
        """Acknowledge the unresolved batches before a batch that is in the log (at `base_offset`,
        if it is not -1): they are there too, if it is the log that they were sent to (topic ids:
        Kafka 2.8+). Otherwise they fail. `has_ids`: the request had the id (Kafka 4.1+), else it is
        looked up."""
        is_sure = queue.fits_before(base_offset, unresolved) and (
            has_ids or self._has_same_topic_id(queue)
        )
        for earlier in unresolved:
            if is_sure:
                self._acknowledge(earlier)
            else:
                text = "it was refused as out of order, and no broker knows whether it is written"
                self._fail(earlier, text, queue.last_error)

    def _has_same_topic_id(self, queue: PartitionQueue) -> bool:
        """Look up the topic's id again. Return whether it is that of the last requests."""
        topic = queue.tp.topic
        try:
            self._cluster.request_metadata([topic], Deadline(3_000))
        except KafkaError as error:
            log.info("%s: whether the topic was recreated is not known: %s", queue.tp, error)
            return False
        return queue.topic_id is not None and self._cluster.topic_id(topic) == queue.topic_id

    def _acknowledge(
        self, batch: ProducerBatch, base_offset: int = -1, log_append_time_ms: int = -1
    ) -> None:
        """Report that a batch is written, and remove it; -1 is what the broker did not return."""
        if base_offset + batch.encoded.record_count > INT64_MAX:
            base_offset = -1  # no log is that long: the offset is wrong
        queue = batch.queue
        self._expiring_since_s = None  # a broker answers again: see `attempt_ms`
        queue.on_acknowledged(batch, base_offset)
        self._remove(batch)
        self._batches += 1
        self._batch_bytes += batch.wire_bytes
        self._outcome_count += 1
        for records, indexes in batch.slices:
            records.acknowledged(queue.tp, indexes, base_offset, log_append_time_ms)
            if base_offset >= 0:
                base_offset += len(indexes)

    def _remove(self, batch: ProducerBatch) -> None:
        """Stop counting a batch that has left its queue."""
        self.queued_bytes -= batch.size_bytes
        if not batch.queue.batches:
            self._nonempty_queues.pop(batch.queue.tp, None)

    # --- batches that fail ------------------------------------------------------------------------

    @property
    def _expiry_at_s(self) -> float:
        """When the first batch expires (monotonic seconds); infinite without batches."""
        created_at_s = math.inf
        for queue in self._nonempty_queues.values():
            if queue.batches:
                created_at_s = min(created_at_s, queue.batches[0].created_at_s)
        return created_at_s + self._options.delivery_timeout_ms / 1000

    @property
    def attempt_ms(self) -> float:
        """How long a request for metadata, a producer id or a connection may take: until the first
        batch expires, but at least MIN_ATTEMPT_MS, or more if batches have been expiring."""
        now_s = time.monotonic()
        least_ms: float = MIN_ATTEMPT_MS
        if self._expiring_since_s is not None:
            # Batches that expire must not cut short every attempt to reach a slow broker.
            expiring_ms = (now_s - self._expiring_since_s) * 1000
            least_ms = min(max(least_ms, expiring_ms), 6_000)
        return max(least_ms, (self._expiry_at_s - now_s) * 1000)

    def expire(self) -> None:
        """Fail the batches that are older than delivery.timeout.ms, in flight or not (KIP-91)."""
        limit_s = self._options.delivery_timeout_ms / 1000
        now_s = time.monotonic()
        for queue in list(self._nonempty_queues.values()):
            while queue.batches and now_s >= queue.batches[0].created_at_s + limit_s:
                batch = queue.batches[0]
                text = (
                    f"not acknowledged within {self._prefix}delivery.timeout.ms="
                    f"{self._options.delivery_timeout_ms} after "
                    f"{counted(batch.attempts, 'attempt')}"
                )
                if self._expiring_since_s is None:
                    self._expiring_since_s = now_s
                self._fail(batch, text, queue.last_error, error_type=DeliveryTimeoutError)

    def _fail(
        self,
        batch: ProducerBatch,
        text: str,
        cause: KafkaError | None = None,
        record_messages: Mapping[int, str | None] | None = None,
        *,
        error_type: type[ProduceError] = ProduceError,
    ) -> None:
        """Fail a batch with an error of this text and class (`error_type`), and remove it. Raises
        what `on_failure` raises."""
        queue = batch.queue
        error = batch_error(batch, text, cause, error_type)
        log.info("%s", error)
        self._outcome_count += 1
        if self._send_metrics is not None:
            self._send_metrics.failed(queue.tp.topic, batch.encoded.record_count)
        # First: if `on_failure` raises, the batch still counts in `outcomes`.
        reported = self.on_failure(error)
        fail_records(batch.slices, reported, record_messages or {}, queue.tp.partition)
        queue.fail(batch)
        self._remove(batch)

    def fail_partition(
        self,
        queue: PartitionQueue,
        text: str,
        cause: KafkaError | None = None,
        *,
        only_unsent: bool = False,
    ) -> None:
        """Fail all batches of a partition, or only those that were never sent (`only_unsent`)."""
        # First those that a broker may have written. If `on_failure` raises, it raises their error,
        # which says so.
        for batch in sorted(
            queue.batches, key=lambda batch: batch.has_unknown_outcome, reverse=True
        ):
            if not only_unsent or not batch.attempts:
                self._fail(batch, text, cause)

    def fail_all(self, text: str, *, only_unsent: bool = False) -> None:
        """Fail the batches of all partitions, as `fail_partition`."""
        for queue in list(self._nonempty_queues.values()):
            self.fail_partition(queue, text, only_unsent=only_unsent)
