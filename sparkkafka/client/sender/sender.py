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
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.frames import FrameBuffer
from sparkkafka.client.sender.delivery import PartitionDelivery, learn_leaders
from sparkkafka.client.sender.delivery_book import DeliveryBook
from sparkkafka.client.sender.errors import Action, Verdict, judge
from sparkkafka.client.sender.partition_queue import EPOCH_LIMIT, PartitionQueue, ProducerBatch
from sparkkafka.client.sender.refusals import refusal_facts
from sparkkafka.client.sender.requests import ProduceRequests
from sparkkafka.client.sender.topic_lookup import TopicLookup
from sparkkafka.client.transactions.requests import Transaction
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import ProducerOptions
from sparkkafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    ProduceError,
)
from sparkkafka.protocol.columns.columns import split_encoded
from sparkkafka.protocol.messages import (
    ApiVersionsRequest,
    InitProducerIdRequest,
    PartitionProduceResponse,
)

log = logging.getLogger(__name__)

BUSY_CONNECT_MS = 3_000  # how long connecting may take while other brokers are being written to
NO_TRANSACTION_TIMEOUT_MS = 60_000  # not used by the broker without a transactional id


AWAY_S = 0.2  # a caller that comes back after longer has left answers unread
LONGEST_WAIT_S = 1.0
IDENTITY_ATTEMPT_MS = 5_000  # for a producer id, where other partitions may have one already
FACTS_EVERY_S = 1.0


class _Sent(NamedTuple):
    """A Produce request that waits for its answer."""

    deadline: Deadline
    batches: list[tuple[PartitionQueue, ProducerBatch]]


class SenderTransaction(Protocol):
    """The transaction that batches are part of.

    A KafkaTimeoutError of `begin` or `add` is one attempt that came to nothing: the sender tries
    again, as long as its batches live.
    """

    transactional_id: str

    @property
    def produce_version(self) -> int | None:
        """The version of Produce to use; None for the usual one."""

    def begin(self) -> Transaction: ...

    def add(self, partitions: Iterable[TopicPartition]) -> None: ...


class Sender(DeliveryBook):
    """Sends queued batches. Any error that it raises is final: some partition has a gap.

    Batches with an owner are another matter: the owner is told, other batches go on, and nothing
    is raised for them. `lookup` then finds leaders without waiting for any topic, and `wake_fd` is
    a descriptor that ends a wait when it can be read.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: ProducerOptions,
        transaction: SenderTransaction | None = None,
        *,
        lookup: TopicLookup | None = None,
        wake_fd: int | None = None,
    ) -> None:
        super().__init__(cluster, options)
        self._transaction = transaction
        self._lookup = lookup
        self._wake_fd = wake_fd
        self._requests = ProduceRequests(
            options,
            cluster.options.request_timeout_ms,
            # Asked for each request: a transaction may yet choose another of its ids as it begins.
            None if transaction is None else lambda: transaction.transactional_id,
        )
        self._facts_s = 0.0
        self._sent: dict[int, deque[_Sent]] = {}
        self._buffers: dict[int, FrameBuffer] = {}
        self._muted_until_s: dict[int, float] = {}
        self._left_s = time.monotonic()

    @property
    def in_flight(self) -> bool:
        """Whether an answer is still to come, of whichever batch."""
        return any(self._sent.values())

    def step(self, *, wait: bool, longest_s: float = LONGEST_WAIT_S) -> None:
        """Send what can be sent and take what has come; with `wait`, wait for something to come,
        `longest_s` at most.

        Raises ProduceError for a batch that cannot be delivered.
        """
        away_s = time.monotonic() - self._left_s
        if away_s > AWAY_S:
            self._come_back(away_s)
        told = self._told
        self._expire()
        self._send_ready()
        # Owners have been told something, which somebody may be waiting for.
        wait = wait and told == self._told
        for node_id in self._readable(self._wait_s(longest_s) if wait else 0.0):
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
            self.barrier()

    def _wait_s(self, longest_s: float) -> float:
        """How long nothing needs to be done unless an answer comes."""
        now_s = time.monotonic()
        limits = [longest_s]
        limits += [sent[0].deadline.remaining_s() for sent in self._sent.values() if sent]
        resume_s = [entry.not_before_s for entry in self._busy.values()]
        resume_s += self._muted_until_s.values()
        limits += [at_s - now_s for at_s in resume_s if at_s > now_s]
        return max(0.0, min(limits))

    def _send_ready(self) -> None:
        while True:
            by_leader = self._ready()
            progress = False
            if self._transaction is not None and not self._join(self._transaction, by_leader):
                return
            for node_id, batches in by_leader.items():
                if len(self._sent.get(node_id, ())) < self._options.max_in_flight:
                    progress = self._send_request(node_id, batches) or progress
            if not progress:
                return

    def _join(
        self,
        transaction: SenderTransaction,
        by_leader: Mapping[int, list[tuple[PartitionDelivery, ProducerBatch]]],
    ) -> bool:
        """Make partitions part of the transaction; whether they are. If no broker answers, their
        batches wait, and delivery.timeout.ms is their end, as in Java."""
        entries = [entry for batches in by_leader.values() for entry, _ in batches]
        try:
            transaction.add(entry.queue.tp for entry in entries)
        except KafkaTimeoutError as failure:
            for entry in entries:
                entry.last_error = failure
                entry.back_off()
            return False
        return True

    def _ready(self) -> dict[int, list[tuple[PartitionDelivery, ProducerBatch]]]:
        """{leader: what could go to it now}, at most one batch a partition."""
        now_s = time.monotonic()
        waiting = [
            entry
            for entry in self._busy.values()
            if entry.not_before_s <= now_s and entry.queue.has_unsent
        ]
        self._learn_leaders(waiting)
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
            if self._options.enable_idempotence:
                if entry.queue.wants_new_epoch and self._transaction is None:
                    self._next_epoch(entry.queue)
                if not entry.queue.has_identity and (
                    entry.queue.in_flight or not self._identify(entry)
                ):
                    continue
            batch = entry.queue.next_batch(node_id)
            if batch is not None:
                by_leader.setdefault(node_id, []).append((entry, batch))
        return by_leader

    def _learn_leaders(self, waiting: list[PartitionDelivery]) -> None:
        if self._lookup is None:
            learn_leaders(self._cluster, waiting)
            return
        unknown = [e for e in waiting if self._cluster.known_leader(e.queue.tp) is None]
        for entry, error in self._lookup.leaders(unknown):
            self._give_up_all(entry, str(error), error)

    def _next_epoch(self, queue: PartitionQueue) -> None:
        """Close a gap: go on at sequence 0 of the next epoch, which needs no broker's leave."""
        if queue.producer_epoch + 1 < EPOCH_LIMIT:
            queue.identify(queue.producer_id, queue.producer_epoch + 1)
        else:
            queue.forget_identity()
            self._identity = None

    def _identify(self, entry: PartitionDelivery) -> bool:
        """Give the partition a producer id: the producer's, or a new one after it was forgotten.

        Whether it has one now: the batches of owners wait for it, and are given up if it can
        never be had.
        """
        for unsure in [batch for batch in entry.queue.batches if batch.maybe_written]:
            error = entry.delivery_error(
                unsure,
                "the broker forgot this producer while an answer was missing, so nobody can tell "
                "whether sending again would double records",
                perhaps=True,
            )
            self._give_up(entry, unsure, error)
        try:
            if self._transaction is not None:
                self._identity = self._transaction.begin()[1:]
            elif self._identity is None:
                self._identity = self._ask_identity()
        except KafkaTimeoutError as failure:
            entry.last_error = failure
            entry.back_off()
            return False
        except KafkaError as failure:
            if self._transaction is not None:
                raise
            self._give_up_all(entry, str(failure), failure)
            return False
        entry.queue.identify(*self._identity)
        return True

    def _ask_identity(self) -> tuple[int, int]:
        response = self._cluster.call(
            InitProducerIdRequest(
                transactional_id=None, transaction_timeout_ms=NO_TRANSACTION_TIMEOUT_MS
            ),
            deadline=Deadline(min(self._options.delivery_timeout_ms, IDENTITY_ATTEMPT_MS)),
            what="getting a producer id",
        )
        return response.producer_id, response.producer_epoch

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
        except KafkaError as error:
            self._broker_lost(node_id, error, entries)
            return False
        try:
            self._requests.check_codec(connection, self._cluster.options.prefix)
        except KafkaError as error:
            for entry in entries:
                if entry.queue.batches[0].owner is None:
                    raise
                self._give_up_all(entry, str(error), error)
            return False
        chosen: list[tuple[PartitionDelivery, ProducerBatch]] = []
        total = 0
        for entry, batch in ready:
            self._requests.build(entry.queue, batch)
            if chosen and total + batch.wire_bytes > self._options.max_request_size:
                break
            chosen.append((entry, batch))
            total += batch.wire_bytes
        request = self._requests.request((entry.queue, batch) for entry, batch in chosen)
        for entry, batch in chosen:
            self.metrics.retries += batch.attempts > 0
            entry.queue.sent(batch, node_id)
        self.metrics.requests += 1
        sent = _Sent(deadline, [(entry.queue, batch) for entry, batch in chosen])
        self._sent.setdefault(node_id, deque()).append(sent)
        try:
            connection.send(
                request,
                deadline,
                version=None if self._transaction is None else self._transaction.produce_version,
                expect_reply=self._options.acks != 0,
            )
        except KafkaError as error:
            if connection.is_open:  # refused before a byte was sent: not the broker's fault
                self._unsendable(node_id, chosen, error)
            else:
                self._broker_lost(node_id, error, entries)
            return False
        if self._options.acks == 0:
            self._sent[node_id].pop()
            for entry, batch in chosen:
                self._acknowledged(entry, batch, base_offset=-1)
        return True

    def _unsendable(
        self,
        node_id: int,
        chosen: list[tuple[PartitionDelivery, ProducerBatch]],
        error: KafkaError,
    ) -> None:
        if any(batch.owner is None for _, batch in chosen):
            raise error
        self._sent[node_id].pop()
        for entry, batch in chosen:
            entry.queue.failed(batch, maybe_written=False)
            final = entry.delivery_error(batch, str(error), perhaps=batch.maybe_written)
            self._give_up(entry, batch, final)

    # --- failures -------------------------------------------------------------------------------

    def lose_connections(self) -> None:
        """Close what has answers to come: nobody waits for these any longer."""
        for node_id in [node for node, sent in self._sent.items() if sent]:
            connection = self._cluster.open_connection(node_id)
            if connection is not None:
                connection.close()
            error = KafkaConnectionError(f"broker {node_id}: the connection was given up")
            self._broker_lost(node_id, error, [])

    # --- answers --------------------------------------------------------------------------------

    def _readable(self, wait_s: float) -> list[int]:
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

    def _take_answer(self, node_id: int) -> None:
        sent = self._sent[node_id]
        connection = self._cluster.open_connection(node_id)
        try:
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
                    return
                answer = found
            response = answer[1]
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
            if batch.dropped:
                queue.late(batch)
                continue
            row = answered.get(queue.tp)
            code = int(ErrorCode.UNKNOWN_SERVER_ERROR) if row is None else row.error_code
            message = "the answer leaves the partition out" if row is None else row.error_message
            if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and queue.put_aside(batch):
                log.info("%s for %s: out of order, a later batch will tell", where, queue.tp)
                continue
            verdict = judge(
                code,
                record_count=batch.encoded.record_count,
                is_head=queue.is_head(batch)
                or queue.is_beyond_help(batch)
                or queue.asks_later_ones,
                maybe_written=batch.maybe_written,
                attempts_left=batch.attempts <= self._options.retries,
                transactional=self._transaction is not None,
            )
            entry = self._partitions[queue.tp]
            if verdict.action is Action.DONE:
                for written in queue.put_aside_before(batch):
                    self._acknowledged(entry, written, base_offset=-1)
                if row is None:
                    self._acknowledged(entry, batch, base_offset=-1)
                else:
                    self._acknowledged(entry, batch, row.base_offset, row.log_append_time_ms)
            else:
                refusal = BrokerError(
                    code, f"{where} for {queue.tp}", message, prefix=self._cluster.options.prefix
                )
                single = {} if row is None else _record_messages(row)
                try:
                    self._refused(entry, batch, verdict, refusal, single)
                except ProduceError as error:
                    failure = failure or error  # the rest of the answer counts as well
        if failure is not None:
            raise failure

    def _refused(
        self,
        entry: PartitionDelivery,
        batch: ProducerBatch,
        verdict: Verdict,
        error: BrokerError,
        record_messages: Mapping[int, str | None],
    ) -> None:
        """Carry out the verdict on a batch that a broker did not take."""
        queue = entry.queue
        entry.last_error = error
        if verdict.action is Action.FAIL:
            # Answered, and so no longer in flight: what it may have done, the verdict knows.
            queue.failed(batch, maybe_written=verdict.perhaps_written)
            facts = ""
            if batch.owner is None or time.monotonic() - self._facts_s > FACTS_EVERY_S:
                facts = refusal_facts(self._cluster, queue.tp, batch, error.code)
                self._facts_s = time.monotonic()
            final = entry.refusal_error(
                batch, verdict, error, retries=self._retries_text(), facts=facts
            )
            for doubtful in queue.put_aside_before(batch):
                text = f"{error}: no broker can tell whether it is written"
                unsure = entry.delivery_error(doubtful, text, perhaps=True, code=error.code)
                self._give_up(entry, doubtful, unsure, error)
            self._give_up(entry, batch, final, error, record_messages)
            return
        log.info("%s; %s", error, verdict.action.value)
        if verdict.action is Action.SPLIT:
            parts = split_encoded(batch.encoded)
            self.queued_bytes += sum(len(part.payload) for part in parts) - batch.size_bytes
            queue.split(batch, parts)
            return
        if verdict.action is Action.AFTER_PREDECESSOR:
            queue.out_of_order(batch)
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
                if batch.dropped:
                    queue.late(batch)
                    continue
                entry = self._partitions[queue.tp]
                queue.failed(batch, maybe_written=True)
                touched.append(entry)
                if batch.attempts > self._options.retries:
                    final = entry.delivery_error(
                        batch,
                        f"{error} ({batch.attempts} attempts, {self._retries_text()})",
                        perhaps=True,
                    )
                    self._give_up(entry, batch, final, error)
        for entry in dict.fromkeys(touched):
            entry.last_error = error
            self._cluster.forget(entry.queue.tp.topic)
            entry.back_off()
            for batch in [] if error.retriable else list(entry.queue.batches):
                final = entry.delivery_error(batch, str(error), perhaps=batch.maybe_written)
                self._give_up(entry, batch, final, error)

    def _retries_text(self) -> str:
        return f"{self._cluster.options.prefix}retries={self._options.retries}"

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


def _record_messages(row: PartitionProduceResponse) -> dict[int, str | None]:
    return {one.batch_index: one.batch_index_error_message for one in row.record_errors}
