"""Carry record batches to the leaders: requests in flight, answers, retries, errors.

A `Sender` holds a `PartitionQueue` for each partition and keeps up to `max_in_flight` Produce
requests on the way to each leader. It has no thread of its own: `step` sends what can be sent,
takes the answers that have come, and returns. Order and sequence numbers are the matter of
`partition_queue.py`, the meaning of error codes that of `produce_errors.py`; sockets and time are
handled here.
"""

from __future__ import annotations

import logging
import select
import time
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from sparkkafka.client.cluster import Cluster
from sparkkafka.client.connection import Connection
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.delivery import PartitionDelivery, ProducerMetrics, learn_leaders
from sparkkafka.client.metadata import TopicPartition
from sparkkafka.client.partition_queue import PartitionQueue, ProducerBatch
from sparkkafka.client.produce_errors import Action, Verdict, judge
from sparkkafka.client.producer_transaction import ProducerTransaction
from sparkkafka.client.refusals import refusal_facts
from sparkkafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    PartitionOutcome,
    ProduceError,
    UnsupportedVersionError,
)
from sparkkafka.options import ProducerOptions
from sparkkafka.protocol.columns import EncodedBatch, split_encoded
from sparkkafka.protocol.compression import Codec, codec_by_name
from sparkkafka.protocol.messages import (
    ApiVersionsRequest,
    InitProducerIdRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from sparkkafka.protocol.records import batch_parts

log = logging.getLogger(__name__)

ZSTD_PRODUCE_VERSION = 7  # KIP-110
BUSY_CONNECT_MS = 3_000  # how long connecting may take while other brokers are being written to
NO_TRANSACTION_TIMEOUT_MS = 60_000  # not used by the broker without a transactional id


AWAY_S = 0.2  # a caller that comes back after longer has left answers unread


class _Sent(NamedTuple):
    """A Produce request that waits for its answer."""

    deadline: Deadline
    batches: list[tuple[PartitionQueue, ProducerBatch]]


class Sender:
    """Sends queued batches. Any error that it raises is final: some partition has a gap."""

    def __init__(
        self,
        cluster: Cluster,
        options: ProducerOptions,
        transaction: ProducerTransaction | None = None,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._transaction = transaction
        self._codec = codec_by_name(options.compression_type)
        self._partitions: dict[TopicPartition, PartitionDelivery] = {}
        # Those with batches to send or to be answered. Rows can go to hundreds of topics, and each
        # step looks at every partition here.
        self._busy: dict[TopicPartition, PartitionDelivery] = {}
        self._sent: dict[int, deque[_Sent]] = {}
        self._muted_until_s: dict[int, float] = {}
        self._identity: tuple[int, int] | None = None
        self._left_s = time.monotonic()
        self.queued_bytes = 0
        self.metrics = ProducerMetrics()

    def add(self, tp: TopicPartition, encoded: Iterable[EncodedBatch]) -> None:
        """Queue batches of one partition behind what it has already."""
        entry = self._partitions.get(tp)
        if entry is None:
            entry = self._partitions[tp] = PartitionDelivery(tp, self._cluster.backoff())
        now_s = time.monotonic()
        for one in encoded:
            batch = ProducerBatch(one, now_s)
            entry.queue.append(batch)
            self.queued_bytes += batch.size_bytes
        if entry.queue.batches:
            self._busy[tp] = entry

    def step(self, *, wait: bool) -> None:
        """Send what can be sent and take what has come; with `wait`, wait for something to come.

        Raises ProduceError for a batch that cannot be delivered.
        """
        away_s = time.monotonic() - self._left_s
        if away_s > AWAY_S:
            self._come_back(away_s)
        self._expire()
        self._send_ready()
        for node_id in self._readable(self._wait_s() if wait else 0.0):
            self._take_answer(node_id)
        self._left_s = time.monotonic()

    def _come_back(self, away_s: float) -> None:
        """Make good that nobody was here, since the caller's next rows took long: first read what
        has been answered. The time does not count as delivery.timeout.ms."""
        while nodes := self._readable(0.0):
            for node_id in nodes:
                self._take_answer(node_id)
        now_s = time.monotonic()
        for entry in self._busy.values():
            for batch in entry.queue.batches:
                batch.created_s = min(batch.created_s + away_s, now_s)

    def finish(self) -> None:
        """Step until everything is acknowledged. Raises ProduceError."""
        while self._busy:
            self.step(wait=True)
        if self._options.acks == 0:
            self._barrier()

    def outcomes(self) -> dict[TopicPartition, PartitionOutcome]:
        """What is known about the records of each partition that was ever written to."""
        acks = self._options.acks
        return {tp: entry.outcome(acks=acks) for tp, entry in self._partitions.items()}

    def last_errors(self) -> str:
        """What went wrong last, for a message about waiting too long; "" if nothing did."""
        errors = {str(e.last_error) for e in self._busy.values() if e.last_error}
        return "; last failures: " + "; ".join(sorted(errors)[:3]) if errors else ""

    def _expire(self) -> None:
        """delivery.timeout.ms bounds a batch's life, in flight or not (KIP-91)."""
        limit_s = self._options.delivery_timeout_ms / 1000
        now_s = time.monotonic()
        for entry in self._busy.values():
            if entry.queue.batches and now_s - entry.queue.batches[0].created_s > limit_s:
                batch = entry.queue.batches[0]
                raise entry.delivery_error(
                    batch,
                    f"not acknowledged within kafka.delivery.timeout.ms="
                    f"{self._options.delivery_timeout_ms} after {batch.attempts} attempts",
                    perhaps=batch.maybe_written or batch.in_flight,
                ) from entry.last_error

    def _wait_s(self) -> float:
        """How long nothing needs to be done unless an answer comes."""
        now_s = time.monotonic()
        limits = [1.0]
        limits += [sent[0].deadline.remaining_s() for sent in self._sent.values() if sent]
        resume_s = [entry.not_before_s for entry in self._busy.values()]
        resume_s += self._muted_until_s.values()
        limits += [at_s - now_s for at_s in resume_s if at_s > now_s]
        return max(0.0, min(limits))

    def _send_ready(self) -> None:
        while True:
            by_leader = self._ready()
            progress = False
            if self._transaction is not None:
                self._transaction.add(
                    entry.queue.tp for batches in by_leader.values() for entry, _ in batches
                )
            for node_id, batches in by_leader.items():
                if len(self._sent.get(node_id, ())) < self._options.max_in_flight:
                    progress = self._send_request(node_id, batches) or progress
            if not progress:
                return

    def _ready(self) -> dict[int, list[tuple[PartitionDelivery, ProducerBatch]]]:
        """{leader: what could go to it now}, at most one batch a partition."""
        now_s = time.monotonic()
        waiting = [
            entry
            for entry in self._busy.values()
            if entry.not_before_s <= now_s and entry.queue.has_unsent
        ]
        learn_leaders(self._cluster, waiting)
        by_leader: dict[int, list[tuple[PartitionDelivery, ProducerBatch]]] = {}
        for entry in waiting:
            leader = self._cluster.known_leader(entry.queue.tp)
            if leader is None or entry.not_before_s > now_s:
                continue
            node_id = leader.leader
            if (
                len(self._sent.get(node_id, ())) >= self._options.max_in_flight
                or self._muted_until_s.get(node_id, 0.0) > now_s
            ):
                continue
            if self._options.enable_idempotence and not entry.queue.has_identity:
                if entry.queue.in_flight:
                    continue
                self._identify(entry)
            batch = entry.queue.next_batch(node_id)
            if batch is not None:
                by_leader.setdefault(node_id, []).append((entry, batch))
        return by_leader

    def _identify(self, entry: PartitionDelivery) -> None:
        """Give the partition a producer id: the task's, or a new one after it was forgotten."""
        unsure = next((batch for batch in entry.queue.batches if batch.maybe_written), None)
        if unsure is not None:
            raise entry.delivery_error(
                unsure,
                "the broker forgot this producer while an answer was missing, so nobody can tell "
                "whether sending again would double records",
                perhaps=True,
            )
        if self._transaction is not None:
            self._identity = self._transaction.begin()[1:]
        elif self._identity is None:
            limit_ms = min(self._options.max_block_ms, self._options.delivery_timeout_ms)
            try:
                response = self._cluster.call(
                    InitProducerIdRequest(
                        transactional_id=None, transaction_timeout_ms=NO_TRANSACTION_TIMEOUT_MS
                    ),
                    deadline=Deadline(limit_ms),
                    what="getting a producer id",
                )
            except KafkaError as error:
                code = getattr(error, "code", None)
                raise entry.metadata_error(str(error), code) from error
            self._identity = (response.producer_id, response.producer_epoch)
        entry.queue.identify(*self._identity)

    def _send_request(
        self, node_id: int, ready: list[tuple[PartitionDelivery, ProducerBatch]]
    ) -> bool:
        """Send one Produce request with as many of these batches as max.request.size lets in."""
        deadline = Deadline(self._cluster.options.request_timeout_ms)
        entries = [entry for entry, _ in ready]
        if self._sent.get(node_id) and self._cluster.open_connection(node_id) is None:
            self._broker_lost(
                node_id, KafkaConnectionError(f"broker {node_id}: the connection broke"), entries
            )
            return False
        # A leader that does not answer must not hold up the others for long.
        others = any(sent for other, sent in self._sent.items() if other != node_id)
        try:
            connection = self._cluster.connection(
                node_id, deadline.sooner(BUSY_CONNECT_MS) if others else deadline
            )
            self._check_codec(connection)
        except UnsupportedVersionError:
            raise
        except KafkaError as error:
            self._broker_lost(node_id, error, entries)
            return False
        chosen: list[tuple[PartitionDelivery, ProducerBatch]] = []
        total = 0
        for entry, batch in ready:
            self._build(entry.queue, batch)
            if chosen and total + batch.wire_bytes > self._options.max_request_size:
                break
            chosen.append((entry, batch))
            total += batch.wire_bytes
        topics: dict[str, list[PartitionProduceData]] = {}
        for entry, batch in chosen:
            topics.setdefault(entry.queue.tp.topic, []).append(
                PartitionProduceData(index=entry.queue.tp.partition, records=batch.wire)
            )
        transaction = self._transaction
        request = ProduceRequest(
            transactional_id=None if transaction is None else transaction.transactional_id,
            acks=self._options.acks,
            timeout_ms=self._cluster.options.request_timeout_ms,
            topic_data=[
                TopicProduceData(name=name, partition_data=rows) for name, rows in topics.items()
            ],
        )
        for entry, batch in chosen:
            self.metrics.retries += batch.attempts > 0
            entry.queue.sent(batch, node_id)
        self.metrics.requests += 1
        sent = _Sent(deadline, [(entry.queue, batch) for entry, batch in chosen])
        self._sent.setdefault(node_id, deque()).append(sent)
        try:
            connection.send(request, deadline, expect_reply=self._options.acks != 0)
        except KafkaError as error:
            if connection.is_open:  # refused before a byte was sent: not the broker's fault
                raise
            self._broker_lost(node_id, error, entries)
            return False
        if self._options.acks == 0:
            self._sent[node_id].pop()
            for entry, batch in chosen:
                self._acknowledged(entry, batch, base_offset=-1)
        return True

    def _build(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
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
                transactional=self._transaction is not None,
            )

    def _check_codec(self, connection: Connection) -> None:
        if self._codec == Codec.ZSTD and not connection.supports(
            ProduceRequest, ZSTD_PRODUCE_VERSION
        ):
            raise UnsupportedVersionError(
                f"{connection} does not know zstd (Kafka 2.1 and later do); choose another "
                "kafka.compression.type"
            )

    # --- answers --------------------------------------------------------------------------------

    def _readable(self, wait_s: float) -> list[int]:
        """Nodes whose next answer has begun to arrive, or whose connection or deadline is over."""
        sockets: dict[int, int] = {}
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
        if over or not sockets:
            if not over and not here and wait_s > 0:
                time.sleep(wait_s)
            return over + here
        poll = select.poll()
        for descriptor in sockets:
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(0 if here else wait_s * 1000)
        return here + [sockets[descriptor] for descriptor, _ in ready]

    def _take_answer(self, node_id: int) -> None:
        sent = self._sent[node_id]
        connection = self._cluster.open_connection(node_id)
        try:
            if connection is None:
                raise KafkaConnectionError(f"broker {node_id}: the connection broke")
            # Past its deadline this fails at once, and closes the connection: what comes later
            # would answer the wrong request.
            _, response = connection.receive(sent[0].deadline)
        except KafkaError as error:
            self._broker_lost(node_id, error, [])
            return
        answered = {
            (topic.name, row.index): row
            for topic in response.responses
            for row in topic.partition_responses
        }
        if response.throttle_time_ms > 0:
            self._muted_until_s[node_id] = time.monotonic() + response.throttle_time_ms / 1000
        where = f"Produce @ {connection}"
        failure: ProduceError | None = None
        for queue, batch in sent.popleft().batches:
            row = answered.get(queue.tp)
            code = int(ErrorCode.UNKNOWN_SERVER_ERROR) if row is None else row.error_code
            message = "the answer leaves the partition out" if row is None else row.error_message
            verdict = judge(
                code,
                record_count=batch.encoded.record_count,
                is_head=queue.is_head(batch),
                maybe_written=batch.maybe_written,
                attempts_left=batch.attempts <= self._options.retries,
                transactional=self._transaction is not None,
            )
            entry = self._partitions[queue.tp]
            if verdict.action is Action.DONE:
                self._acknowledged(entry, batch, base_offset=-1 if row is None else row.base_offset)
            else:
                refusal = BrokerError(code, f"{where} for {queue.tp}", message)
                try:
                    self._refused(entry, batch, verdict, refusal)
                except ProduceError as error:
                    failure = failure or error  # the rest of the answer counts as well
        if failure is not None:
            raise failure

    def _acknowledged(
        self, entry: PartitionDelivery, batch: ProducerBatch, base_offset: int
    ) -> None:
        entry.queue.acknowledged(batch)
        entry.acknowledged_records += batch.encoded.record_count
        if not entry.queue.batches:
            self._busy.pop(entry.queue.tp, None)
        entry.backoff.reset()
        entry.last_error = None
        self.queued_bytes -= batch.size_bytes
        self.metrics.count(entry.queue.tp, batch, base_offset)

    def _refused(
        self, entry: PartitionDelivery, batch: ProducerBatch, verdict: Verdict, error: BrokerError
    ) -> None:
        """Carry out the verdict on a batch that a broker did not take."""
        queue = entry.queue
        entry.last_error = error
        if verdict.action is Action.FAIL:
            # Answered, and so no longer in flight: what it may have done, the verdict knows.
            queue.failed(batch, maybe_written=verdict.perhaps_written)
            facts = refusal_facts(self._cluster, queue.tp, batch, error.code)
            raise entry.refusal_error(
                batch, verdict, error, retries=self._options.retries, facts=facts
            ) from error
        log.info("%s; %s", error, verdict.action.value)
        if verdict.action is Action.SPLIT:
            parts = split_encoded(batch.encoded)
            self.queued_bytes += sum(len(part.payload) for part in parts) - batch.size_bytes
            queue.split(batch, parts)
            return
        queue.failed(batch, maybe_written=verdict.perhaps_written)
        if verdict.action is Action.NEW_PRODUCER_ID:
            self._identity = None
            queue.forget_identity()
        elif verdict.action is Action.RETRY:
            self._cluster.note_error(queue.tp, error.code)
            entry.back_off()

    def _broker_lost(
        self, node_id: int, error: KafkaError, entries: Iterable[PartitionDelivery]
    ) -> None:
        """The connection is gone: everything that was on it may or may not be written.

        Raises ProduceError if `error` is not one that passes (a port that is not Kafka's).
        """
        log.info("%s", error)
        touched = list(entries)
        for sent in self._sent.pop(node_id, ()):
            for queue, batch in sent.batches:
                entry = self._partitions[queue.tp]
                queue.failed(batch, maybe_written=True)
                touched.append(entry)
                if batch.attempts > self._options.retries:
                    raise entry.delivery_error(
                        batch,
                        f"{error} ({batch.attempts} attempts, "
                        f"kafka.retries={self._options.retries})",
                        perhaps=True,
                    ) from error
        for entry in dict.fromkeys(touched):
            entry.last_error = error
            self._cluster.forget(entry.queue.tp.topic)
            entry.back_off()
            head = entry.queue.batches[0]
            if not error.retriable:
                raise entry.delivery_error(head, str(error), perhaps=head.maybe_written) from error

    def _barrier(self) -> None:
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
