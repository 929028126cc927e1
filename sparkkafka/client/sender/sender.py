"""Carry record batches to the leaders: requests in flight, answers, retries, errors.

A `Sender` has no thread of its own: `step` sends what can be sent, takes the answers that have
come, and returns. `deliveries.py` has the state of its partitions, `partition_queue.py` the rules
of order and sequence numbers, `requests.py` what is on the way, `produce_errors.py` the meaning of
error codes.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping
from typing import Protocol

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.sender.deliveries import Deliveries, PartitionDelivery
from sparkkafka.client.sender.partition_queue import EPOCH_LIMIT, PartitionQueue, ProducerBatch
from sparkkafka.client.sender.produce_errors import Action, Verdict, judge, refusal_facts
from sparkkafka.client.sender.requests import ProduceRequests, SentRequest
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
from sparkkafka.protocol.columns.encode import split_encoded
from sparkkafka.protocol.messages import InitProducerIdRequest, PartitionProduceResponse

log = logging.getLogger(__name__)

BUSY_CONNECT_MS = 3_000  # how long connecting may take while other brokers are being written to
NO_TRANSACTION_TIMEOUT_MS = 60_000  # not used by the broker without a transactional id
AWAY_S = 0.2  # a caller that comes back after longer has left answers unread
LONGEST_WAIT_S = 1.0
IDENTITY_ATTEMPT_MS = 5_000  # for a producer id, where other partitions may have one already
FACTS_EVERY_S = 1.0


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


class Sender:
    """Sends queued batches, and tells their owners what became of them (`deliveries`).

    One that cannot be delivered leaves the others alone, unless its owner raises: then the sender
    has failed. `wake_fd` is a descriptor that ends a wait when it can be read.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: ProducerOptions,
        transaction: SenderTransaction | None = None,
        *,
        lookup: TopicLookup,
        wake_fd: int | None = None,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._transaction = transaction
        self._lookup = lookup
        self.deliveries = Deliveries(cluster, options)
        self._requests = ProduceRequests(
            cluster,
            options,
            # Asked for each request: a transaction may yet choose another of its ids as it begins.
            None if transaction is None else lambda: transaction.transactional_id,
            wake_fd,
        )
        self._identity: tuple[int, int] | None = None
        self._facts_s = -math.inf
        self._left_s = time.monotonic()

    @property
    def in_flight(self) -> bool:
        """Whether an answer is still to come, of whichever batch."""
        return self._requests.in_flight

    @property
    def unsettled(self) -> bool:
        """Whether a batch is neither acknowledged nor given up, or an answer is still to come."""
        return bool(self.deliveries.busy) or self.in_flight

    def forget_identities(self) -> None:
        """All partitions write under a new identity from now on; nothing is in flight."""
        self._identity = None
        self.deliveries.forget_identities()

    def barrier(self) -> None:
        """Wait until brokers have handled all that was sent with acks=0."""
        self._requests.barrier()

    def step(self, *, wait: bool, longest_s: float = LONGEST_WAIT_S) -> None:
        """Send what can be sent and take what has come; with `wait`, wait for something to come,
        `longest_s` at most.

        Raises what the owner of a batch does, and a transaction's error.
        """
        away_s = time.monotonic() - self._left_s
        if away_s > AWAY_S:
            self._come_back(away_s)
        told = self.deliveries.told
        self.deliveries.expire()
        self._send_ready()
        # Owners have been told something, which somebody may be waiting for.
        wait = wait and told == self.deliveries.told
        for node_id in self._requests.readable(self._wait_s(longest_s) if wait else 0.0):
            self._take_answer(node_id)
        self._left_s = time.monotonic()

    def _come_back(self, away_s: float) -> None:
        """Make good that nobody was here, since the caller's next rows took long: first read what
        has been answered. The time does not count as delivery.timeout.ms."""
        while nodes := self._requests.readable(0.0):
            for node_id in nodes:
                self._take_answer(node_id)
        now_s = time.monotonic()
        for entry in self.deliveries.busy.values():
            for batch in entry.queue.batches:
                batch.created_s = min(batch.created_s + away_s, now_s)

    def finish(self) -> None:
        """Step until everything is acknowledged. Raises ProduceError."""
        while self.deliveries.busy:
            self.step(wait=True)
        if self._options.acks == 0:
            self.barrier()

    def _wait_s(self, longest_s: float) -> float:
        """How long nothing needs to be done unless an answer comes."""
        now_s = time.monotonic()
        limits = [longest_s]
        limits += self._requests.remaining_s()
        resume_s = [entry.not_before_s for entry in self.deliveries.busy.values()]
        resume_s += self._requests.resume_s()
        limits += [at_s - now_s for at_s in resume_s if at_s > now_s]
        return max(0.0, min(limits))

    def _send_ready(self) -> None:
        while True:
            by_leader = self._ready()
            progress = False
            if self._transaction is not None and not self._join(self._transaction, by_leader):
                return
            for node_id, batches in by_leader.items():
                if self._requests.on_the_way(node_id) < self._options.max_in_flight:
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
            for entry in self.deliveries.busy.values()
            if entry.not_before_s <= now_s and entry.queue.has_unsent
        ]
        self._learn_leaders(waiting)
        by_leader: dict[int, list[tuple[PartitionDelivery, ProducerBatch]]] = {}
        for entry in waiting:
            leader = self._cluster.known_leader(entry.queue.tp)
            if leader is None or entry.not_before_s > now_s:
                continue
            node_id = leader.leader
            if not self._requests.may_send(node_id, now_s):
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
        unknown = [e for e in waiting if self._cluster.known_leader(e.queue.tp) is None]
        for entry, error in self._lookup.leaders(unknown):
            self.deliveries.give_up_all(entry, str(error), error)

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
            self.deliveries.give_up(entry, unsure, error)
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
            self.deliveries.give_up_all(entry, str(failure), failure)
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
        if self._requests.on_the_way(node_id) and self._cluster.open_connection(node_id) is None:
            self._broker_lost(
                node_id, KafkaConnectionError(f"broker {node_id}: the connection broke"), entries
            )
            return False
        # A leader that does not answer must not hold up the others for long.
        others = self._requests.waits_for_others(node_id)
        try:
            connection = self._cluster.connection(
                node_id, deadline.sooner(BUSY_CONNECT_MS) if others else deadline
            )
        except KafkaError as error:
            self._broker_lost(node_id, error, entries)
            return False
        try:
            self._requests.check_codec(connection)
        except KafkaError as error:
            for entry in entries:
                self.deliveries.give_up_all(entry, str(error), error)
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
            self.deliveries.metrics.retries += batch.attempts > 0
            entry.queue.sent(batch, node_id)
        self.deliveries.metrics.requests += 1
        sent = SentRequest(deadline, [(entry.queue, batch) for entry, batch in chosen])
        self._requests.add(node_id, sent)
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
            self._requests.take_back(node_id)
            for entry, batch in chosen:
                self.deliveries.acknowledged(entry, batch, base_offset=-1)
        return True

    def _unsendable(
        self,
        node_id: int,
        chosen: list[tuple[PartitionDelivery, ProducerBatch]],
        error: KafkaError,
    ) -> None:
        self._requests.take_back(node_id)
        for entry, batch in chosen:
            entry.queue.failed(batch, maybe_written=False)
            final = entry.delivery_error(batch, str(error), perhaps=batch.maybe_written)
            self.deliveries.give_up(entry, batch, final, error)

    # --- failures -------------------------------------------------------------------------------

    def lose_connections(self) -> None:
        """Close what has answers to come: nobody waits for these any longer."""
        for node_id in self._requests.brokers():
            connection = self._cluster.open_connection(node_id)
            if connection is not None:
                connection.close()
            error = KafkaConnectionError(f"broker {node_id}: the connection was given up")
            self._broker_lost(node_id, error, [])

    # --- answers --------------------------------------------------------------------------------

    def _take_answer(self, node_id: int) -> None:
        try:
            found = self._requests.receive(node_id)
        except KafkaError as error:
            self._broker_lost(node_id, error, [])
            return
        if found is None:
            return
        connection, sent, response = found
        answered = {
            (topic.name, row.index): row
            for topic in response.responses
            for row in topic.partition_responses
        }
        where = f"Produce @ {connection}"
        failure: ProduceError | None = None
        for queue, batch in sent.batches:
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
            entry = self.deliveries.partitions[queue.tp]
            if verdict.action is Action.DONE:
                for written in queue.put_aside_before(batch):
                    self.deliveries.acknowledged(entry, written, base_offset=-1)
                offset = -1 if row is None else row.base_offset
                time_ms = -1 if row is None else row.log_append_time_ms
                self.deliveries.acknowledged(entry, batch, offset, time_ms)
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
            if time.monotonic() - self._facts_s > FACTS_EVERY_S:
                facts = refusal_facts(self._cluster, queue.tp, batch, error.code)
                self._facts_s = time.monotonic()
            final = entry.refusal_error(
                batch, verdict, error, retries=self._retries_text(), facts=facts
            )
            for doubtful in queue.put_aside_before(batch):
                text = f"{error}: no broker can tell whether it is written"
                unsure = entry.delivery_error(doubtful, text, perhaps=True, code=error.code)
                self.deliveries.give_up(entry, doubtful, unsure, error)
            self.deliveries.give_up(entry, batch, final, error, record_messages)
            return
        log.info("%s; %s", error, verdict.action.value)
        if verdict.action is Action.SPLIT:
            self.deliveries.split(entry, batch, split_encoded(batch.encoded))
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

        Batches are given up if `error` is not one that passes (a port that is not Kafka's).
        """
        log.info("%s", error)
        touched = list(entries)
        for sent in self._requests.lost(node_id):
            for queue, batch in sent.batches:
                if batch.dropped:
                    queue.late(batch)
                    continue
                entry = self.deliveries.partitions[queue.tp]
                queue.failed(batch, maybe_written=True)
                touched.append(entry)
                if batch.attempts > self._options.retries:
                    final = entry.delivery_error(
                        batch,
                        f"{error} ({batch.attempts} attempts, {self._retries_text()})",
                        perhaps=True,
                    )
                    self.deliveries.give_up(entry, batch, final, error)
        for entry in dict.fromkeys(touched):
            entry.last_error = error
            self._cluster.forget(entry.queue.tp.topic)
            entry.back_off()
            for batch in [] if error.retriable else list(entry.queue.batches):
                final = entry.delivery_error(batch, str(error), perhaps=batch.maybe_written)
                self.deliveries.give_up(entry, batch, final, error)

    def _retries_text(self) -> str:
        return f"{self._cluster.options.prefix}retries={self._options.retries}"


def _record_messages(row: PartitionProduceResponse) -> dict[int, str | None]:
    return {one.batch_index: one.batch_index_error_message for one in row.record_errors}
