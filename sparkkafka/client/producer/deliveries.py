"""The partitions of a sender: their batches and producer ids, and what a broker's answer does to
them.

`partition_queue.py` has the rules of order, `produce_errors.py` the meaning of error codes.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.metrics.sending import SendMetrics
from sparkkafka.client.producer.partition_queue import (
    EPOCH_LIMIT,
    BatchOwner,
    PartitionQueue,
    ProducerBatch,
    records_in,
)
from sparkkafka.client.producer.produce_errors import (
    ASK_MS,
    Action,
    Verdict,
    batch_error,
    judge,
    produce_error,
    refusal_facts,
    refusal_text,
)
from sparkkafka.client.producer.sender_transaction import SenderTransaction
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import ProducerOptions
from sparkkafka.errors import (
    BrokerError,
    DeliveryTimeoutError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    PartitionOutcome,
    ProduceError,
    counted,
)
from sparkkafka.protocol.columns.encode import EncodedBatch, split_encoded
from sparkkafka.protocol.messages import InitProducerIdRequest, ProduceResponse

log = logging.getLogger(__name__)

LAST_OFFSET = (1 << 63) - 1
NO_TRANSACTION_TIMEOUT_MS = 60_000  # not used by the broker without a transactional id
IDENTITY_ATTEMPT_MS = 5_000  # for a producer id, where other partitions may have one already
MIN_ATTEMPT_MS, MAX_MIN_ATTEMPT_MS = 1_000, 6_000
"""What a request for metadata, a producer id or a connection gets at least, however soon a batch
expires. The longer batches expire without an answer, the more it is: batches that expire one after
another must not cut short every attempt to reach a slow broker."""
FACTS_EVERY_S = 1.0

Sent = tuple[PartitionQueue, ProducerBatch]


@dataclass(slots=True)
class ProducerMetrics:
    """Counts since the producer was made. Bytes are those of record batches as sent."""

    records: int = 0
    batches: int = 0
    batch_bytes: int = 0
    requests: int = 0
    retries: int = 0
    offsets: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """Per partition: first and last offset written, as far as brokers returned them."""

    def count(self, tp: TopicPartition, batch: ProducerBatch, base_offset: int) -> None:
        """A batch was acknowledged; `base_offset` is -1 if the broker did not return it."""
        self.records += batch.encoded.record_count
        self.batches += 1
        self.batch_bytes += batch.wire_bytes
        if base_offset >= 0:
            end = base_offset + batch.encoded.record_count - 1
            first, last = self.offsets.get(tp, (base_offset, end))
            self.offsets[tp] = (min(first, base_offset), max(last, end))


class Deliveries:
    """The state of a `Sender`'s partitions. Calls the owners of batches with their outcomes."""

    def __init__(
        self,
        cluster: Cluster,
        options: ProducerOptions,
        transaction: SenderTransaction | None = None,
        send_metrics: SendMetrics | None = None,
    ) -> None:
        self._send_metrics = send_metrics
        self._cluster = cluster
        self._options = options
        self._transaction = transaction
        self.partitions: dict[TopicPartition, PartitionQueue] = {}
        # Partitions with batches. Each step visits all of these, and rows can go to hundreds of
        # topics.
        self.busy: dict[TopicPartition, PartitionQueue] = {}
        self.told = 0  # calls of owners
        self.queued_bytes = 0
        self.metrics = ProducerMetrics()
        self._identity: tuple[int, int] | None = None
        self._expiring_since_s: float | None = None  # the first batch expired after the last answer
        self._identity_backoff = cluster.backoff()
        self._identity_failure: KafkaError | None = None
        self._next_identity_s = 0.0  # monotonic
        self._facts_s = -math.inf

    def add(
        self,
        tp: TopicPartition,
        encoded: Iterable[EncodedBatch],
        owners: Iterable[BatchOwner],
        created_s: float | None = None,
    ) -> None:
        """Queue batches of one partition; delivery.timeout.ms counts from `created_s` (monotonic),
        now by default."""
        queue = self.partitions.get(tp)
        if queue is None:
            queue = self.partitions[tp] = PartitionQueue(tp, self._cluster.backoff())
        since_s = time.monotonic() if created_s is None else created_s
        for one, owner in zip(encoded, owners, strict=False):
            batch = ProducerBatch(one, since_s, owner)
            queue.append(batch)
            self.queued_bytes += batch.size_bytes
        if queue.batches:
            self.busy[tp] = queue

    @property
    def has_gaps(self) -> bool:
        """Whether a batch was given up that had sequence numbers."""
        return any(queue.has_gap for queue in self.partitions.values())

    def outcomes(self) -> dict[TopicPartition, PartitionOutcome]:
        """What is known about the records of each partition."""
        acks = self._options.acks
        return {tp: queue.outcome(acks=acks) for tp, queue in self.partitions.items()}

    def last_errors(self) -> str:
        """The last errors, to end a message with; "" if there are none."""
        errors = {str(error) for error in self.errors()}
        return "; last failures: " + "; ".join(sorted(errors)[:3]) if errors else ""

    def errors(self) -> list[KafkaError]:
        """The last error of each partition that waits. From any thread."""
        return [queue.last_error for queue in list(self.busy.values()) if queue.last_error]

    def waiting(self) -> list[TopicPartition]:
        """Partitions with unacknowledged batches. From any thread."""
        return list(self.busy)

    # --- producer ids ---------------------------------------------------------------------------

    def forget_identities(self) -> None:
        """Ask for a new producer id or epoch for all partitions; nothing is in flight."""
        self._identity = None
        for queue in self.partitions.values():
            queue.forget_identity()

    def identify(self, queue: PartitionQueue) -> bool:
        """Whether the partition has a producer id, which it is given if need be. Without one its
        batches wait, or are given up if brokers refuse to give one."""
        if queue.wants_new_epoch and self._transaction is None:
            self._next_epoch(queue)
        return queue.has_identity or (not queue.in_flight and self._give_identity(queue))

    def _next_epoch(self, queue: PartitionQueue) -> None:
        """Close a gap: go on at sequence 0 of the next epoch, without asking a broker."""
        if queue.producer_epoch + 1 < EPOCH_LIMIT:
            queue.identify(queue.producer_id, queue.producer_epoch + 1)
        else:
            queue.forget_identity()
            self._identity = None

    def _give_identity(self, queue: PartitionQueue) -> bool:
        for unsure in [batch for batch in queue.batches if batch.maybe_written]:
            text = (
                "the broker forgot this producer while an answer was missing, so nobody can tell "
                "whether sending again would double records"
            )
            self._give_up(queue, unsure, text)
        try:
            if self._transaction is not None:
                self._identity = self._transaction.begin(self.attempt_ms)[1:]
            elif self._identity is None:
                if self._identity_failure is not None and (
                    time.monotonic() < self._next_identity_s
                ):
                    queue.back_off(self._identity_failure)
                    return False
                self._identity = self._request_identity()
        except KafkaError as failure:
            if isinstance(failure, KafkaTimeoutError) or (
                failure.retriable and self._transaction is None
            ):
                queue.back_off(failure)
                return False
            if self._transaction is not None:
                raise
            self.give_up_all(queue, str(failure), failure)
            return False
        queue.identify(*self._identity)
        return True

    def _request_identity(self) -> tuple[int, int]:
        """One attempt, for all partitions."""
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=NO_TRANSACTION_TIMEOUT_MS
        )
        deadline = Deadline(min(self.attempt_ms, IDENTITY_ATTEMPT_MS))
        try:
            response = self._cluster.call(request, deadline=deadline, once=True)
        except KafkaError as error:
            self._identity_failure = error
            self._next_identity_s = time.monotonic() + self._identity_backoff.next_ms() / 1000
            raise
        self._identity_failure = None
        self._identity_backoff.reset()
        return response.producer_id, response.producer_epoch

    # --- answers --------------------------------------------------------------------------------

    def answered(self, sent: Iterable[Sent], response: ProduceResponse, where: str) -> None:
        """Process the answer to a request with these batches. Raises what an owner raises, at the
        end."""
        answers = {
            (topic.name, row.index): row
            for topic in response.responses
            for row in topic.partition_responses
        }
        failure: ProduceError | None = None
        for queue, batch in sent:
            if batch.dropped:
                queue.late(batch)
                continue
            row = answers.get(queue.tp)
            code = int(ErrorCode.UNKNOWN_SERVER_ERROR) if row is None else row.error_code
            if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._goes_on(queue, batch):
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
            if verdict.action is Action.DONE:
                queue.proven_node_id = queue.node_id
                try:
                    self._settle_put_aside(queue, batch, -1 if row is None else row.base_offset)
                except ProduceError as error:
                    failure = failure or error
                # With acks=0 some batches have answers (`Sender._acks`), but no offset is told.
                if row is None or self._options.acks == 0:
                    self.acknowledged(queue, batch)
                else:
                    self.acknowledged(queue, batch, row.base_offset, row.log_append_time_ms)
                continue
            message = "the answer leaves the partition out" if row is None else row.error_message
            prefix = self._cluster.options.prefix
            refusal = BrokerError(code, f"{where} for {queue.tp}", message, prefix=prefix)
            records = [] if row is None else row.record_errors
            try:
                self._refused(
                    queue,
                    batch,
                    verdict,
                    refusal,
                    {one.batch_index: one.batch_index_error_message for one in records},
                )
            except ProduceError as error:
                failure = failure or error  # the rest of the answer counts as well
        if failure is not None:
            raise failure

    def _goes_on(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """Whether a batch that was refused as out of order is neither lost nor wrong."""
        aside = queue.put_aside_before(batch)
        if not (aside or queue.is_head(batch)):
            return False
        is_late = not batch.maybe_written and batch.overtaken
        may_begin_anew = self._transaction is None and batch.whole is None
        if may_begin_anew and (is_late or self._was_recreated(queue)):
            queue.failed(batch, maybe_written=False)
            self._begin_anew(queue, [*aside, batch])
            return True
        if not queue.put_aside(batch):
            return False
        log.info("%s: out of order, a later batch will tell", queue.tp)
        return True

    def _begin_anew(self, queue: PartitionQueue, refused: list[ProducerBatch]) -> None:
        log.warning(
            "%s: the leader began a log without this producer (was the topic recreated?) and took "
            "later records before %s, which are sent again behind them",
            queue.tp,
            counted(records_in(refused), "record"),
        )
        queue.begin_anew(refused)

    def _settle_put_aside(
        self, queue: PartitionQueue, batch: ProducerBatch, base_offset: int
    ) -> None:
        """This batch is in the log, at this offset if it is not -1: so are those put aside before
        it, if the log is the one that they were sent to."""
        aside = queue.put_aside_before(batch)
        if not aside:
            return
        has_place = queue.has_place_for(aside, base_offset)
        recreated = self._was_recreated(queue) if has_place is not False else None
        # Before Kafka 2.8 topics have no ids. A new log begins with offset 0.
        is_same = has_place if recreated is None else not recreated
        if is_same:
            for written in aside:
                self.acknowledged(queue, written)
        elif is_same is False and self._transaction is None:
            self._begin_anew(queue, aside)
        else:
            for doubtful in aside:
                text = "it was refused as out of order, and nobody can tell whether it is written"
                self._give_up(queue, doubtful, text, queue.last_error)

    def _was_recreated(self, queue: PartitionQueue) -> bool | None:
        """Whether the topic is another one than that which has this producer's records. None if
        that is not known."""
        topic = queue.tp.topic
        if queue.log_id is None:
            return None
        try:
            self._cluster.look_up([topic], Deadline(ASK_MS))
        except KafkaError as error:
            log.info("%s: whether the topic was recreated is not known: %s", queue.tp, error)
            return None
        if self._cluster.topic_id(topic) is None:
            return None
        return self._cluster.was_recreated(topic, queue.log_id)

    def acknowledged(
        self,
        queue: PartitionQueue,
        batch: ProducerBatch,
        base_offset: int = -1,
        log_append_time_ms: int = -1,
    ) -> None:
        """A batch is written; -1 for what the broker did not return."""
        if base_offset + batch.encoded.record_count > LAST_OFFSET:
            base_offset = -1  # no log is that long: the offset is wrong
        self._expiring_since_s = None
        queue.acknowledged(batch, base_offset)
        self._done(queue, batch)
        self.metrics.count(queue.tp, batch, base_offset)
        self.told += 1
        batch.owner.delivered(base_offset, log_append_time_ms)

    def _done(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        self.queued_bytes -= batch.size_bytes
        if not queue.batches:
            self.busy.pop(queue.tp, None)

    def _refused(
        self,
        queue: PartitionQueue,
        batch: ProducerBatch,
        verdict: Verdict,
        error: BrokerError,
        record_messages: Mapping[int, str | None],
    ) -> None:
        """Carry out the verdict on a batch that a broker did not take."""
        queue.last_error = error
        if verdict.action is Action.FAIL:
            # Not in flight any more; the verdict says whether it may be written.
            queue.failed(batch, maybe_written=verdict.perhaps_written)
            facts = ""
            if time.monotonic() - self._facts_s > FACTS_EVERY_S:
                facts = refusal_facts(self._cluster, queue.tp, batch, error.code)
                self._facts_s = time.monotonic()
            for doubtful in queue.put_aside_before(batch):
                text = f"{error}: no broker can tell whether it is written"
                self._give_up(queue, doubtful, text, error, code=error.code)
            prefix = self._cluster.options.prefix
            text = refusal_text(batch, error, self._options, prefix, facts)
            self._give_up(queue, batch, text, error, record_messages, code=error.code)
            return
        log.info("%s; %s", error, verdict.action.value)
        if verdict.action is Action.SPLIT:
            self.split(queue, batch, split_encoded(batch.encoded))
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
            queue.back_off(error)

    def split(
        self, queue: PartitionQueue, batch: ProducerBatch, parts: Sequence[EncodedBatch]
    ) -> None:
        """Queue a batch again in parts."""
        self.queued_bytes += sum(len(part.payload) for part in parts) - batch.size_bytes
        queue.split(batch, parts)

    def broker_lost(
        self, sent: Iterable[Sent], error: KafkaError, others: Iterable[PartitionQueue]
    ) -> None:
        """The connection broke: batches sent over it may be written, batches of the `others` could
        not be sent. All are given up if `error` is final (a port that is not Kafka's)."""
        log.info("%s", error)
        touched = list(others)
        for queue, batch in sent:
            if batch.dropped:
                queue.late(batch)
                continue
            queue.failed(batch, maybe_written=True)
            touched.append(queue)
            if batch.attempts > self._options.retries:
                text = f"{error} ({counted(batch.attempts, 'attempt')}, {self._retries_text()})"
                self._give_up(queue, batch, text, error)
        for queue in dict.fromkeys(touched):
            queue.back_off(error)
            self._cluster.forget(queue.tp.topic)
            for batch in [] if error.retriable else list(queue.batches):
                self._give_up(queue, batch, str(error), error)

    def unsendable(self, sent: Iterable[Sent], error: KafkaError) -> None:
        for queue, batch in sent:
            queue.failed(batch, maybe_written=False)
            self._give_up(queue, batch, str(error), error)

    def _retries_text(self) -> str:
        return f"{self._cluster.options.prefix}retries={self._options.retries}"

    # --- giving up ------------------------------------------------------------------------------

    @property
    def next_expiry_s(self) -> float:
        """When the first batch expires (monotonic seconds); infinite without batches."""
        created_s = min(
            (queue.batches[0].created_s for queue in self.busy.values() if queue.batches),
            default=math.inf,
        )
        return created_s + self._options.delivery_timeout_ms / 1000

    @property
    def attempt_ms(self) -> float:
        """How long a request for metadata, a producer id or a connection may take: until the first
        batch expires, but at least MIN_ATTEMPT_MS, or more if batches have been expiring."""
        now_s = time.monotonic()
        least_ms: float = MIN_ATTEMPT_MS
        if self._expiring_since_s is not None:
            expiring_ms = (now_s - self._expiring_since_s) * 1000
            least_ms = min(max(least_ms, expiring_ms), MAX_MIN_ATTEMPT_MS)
        return max(least_ms, (self.next_expiry_s - now_s) * 1000)

    def expire(self) -> None:
        """delivery.timeout.ms bounds a batch's life, in flight or not (KIP-91)."""
        limit_s = self._options.delivery_timeout_ms / 1000
        now_s = time.monotonic()
        for queue in list(self.busy.values()):
            while queue.batches and now_s >= queue.batches[0].created_s + limit_s:
                batch = queue.batches[0]
                text = (
                    f"not acknowledged within {self._cluster.options.prefix}delivery.timeout.ms="
                    f"{self._options.delivery_timeout_ms} after "
                    f"{counted(batch.attempts, 'attempt')}"
                )
                if self._expiring_since_s is None:
                    self._expiring_since_s = now_s
                error = batch_error(queue, batch, text, kind=DeliveryTimeoutError)
                self._end(queue, batch, error, queue.last_error)

    def _give_up(
        self,
        queue: PartitionQueue,
        batch: ProducerBatch,
        text: str,
        cause: KafkaError | None = None,
        record_messages: Mapping[int, str | None] | None = None,
        *,
        code: int | None = None,
    ) -> None:
        """Give up a batch with an error of this text. Raises what its owner raises."""
        self._end(queue, batch, batch_error(queue, batch, text, code), cause, record_messages)

    def _end(
        self,
        queue: PartitionQueue,
        batch: ProducerBatch,
        error: ProduceError,
        cause: KafkaError | None,
        record_messages: Mapping[int, str | None] | None = None,
    ) -> None:
        """Give up a batch, and all other parts of a batch that may be written undivided."""
        if batch.dropped:  # with another part
            return
        error.__cause__ = cause
        log.info("%s", error)
        self.told += 1
        if self._send_metrics is not None:
            self._send_metrics.failed(queue.tp.topic, batch.encoded.record_count)
        # First: if the owner raises, the batch still counts in `outcomes`.
        batch.owner.failed(error, record_messages or {})
        parts = queue.parts_with(batch)
        queue.drop(batch)
        self._done(queue, batch)
        for part in parts:
            self._end(queue, part, error, cause)

    def give_up_all(
        self,
        queue: PartitionQueue,
        text: str,
        cause: KafkaError | None = None,
        *,
        sent: bool = True,
    ) -> None:
        """Give up all batches of a partition; without `sent`, only those never sent (whole or as
        part of a larger batch)."""
        code = cause.code if isinstance(cause, BrokerError) else None
        # Batches that may be written come first, as an owner may raise their error.
        for batch in sorted(queue.batches, key=lambda one: one.open_outcome, reverse=True):
            if sent or not (batch.attempts or batch.maybe_written):
                error = produce_error(queue.tp, text, code, perhaps=batch.open_outcome)
                self._end(queue, batch, error, cause)

    def give_up_everything(self, text: str, *, sent: bool = True) -> None:
        """As `give_up_all`, of all partitions."""
        for queue in list(self.busy.values()):
            self.give_up_all(queue, text, sent=sent)
