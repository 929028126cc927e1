"""One partition's unacknowledged batches, in order: sequence numbers and retries.

No socket is touched here. The rules (KIP-98, KIP-360; Java's TransactionManager and Sender, the
broker's ProducerAppendInfo):

- Sequence numbers count records per (producer id, partition) and wrap from 2147483647 to 0.
- A batch keeps its bytes and sequence number from its first send: the broker recognises a duplicate
  by (producer id, epoch, first and last sequence) of the last five batches, without reading the
  data. A batch is split only after MESSAGE_TOO_LARGE, which means that this attempt wrote nothing;
  the parts share its sequence numbers. If an earlier attempt may have written it
  (max.message.bytes was lowered since?), it fails: the broker would not recognise the parts.
- All batches in flight are sent to one broker. When the leader moves, the new leader gets nothing
  before the old one has answered.
- After a failure nothing is sent until every batch in flight is answered (`QueueState.DRAINING`);
  then the rest is sent again, in sequence order. Otherwise a batch could reach the new leader
  before its predecessor, which is still on its way to the old one.
- Nothing new is sent while a batch is being sent again: it may be in the log, and the broker
  recognises only the last five.
- A broker that does not know a producer id takes any first sequence number (ProducerAppendInfo): if
  it refused one batch and took the next, the first could never be written. So only one batch is in
  flight while the log may be without this producer's state: at the start, after a failure, in a
  topic that was recreated, a minute after the last acknowledgement (producer.id.expiration.ms).
- A failed batch leaves a gap in the sequence numbers (`QueueState.GAP`). Nothing new is sent until
  all batches in flight are answered; those that may be written are sent again as they were, until
  the broker takes the last of them, or finds it out of order: then none of them was written
  (`on_out_of_order`). The rest then starts at sequence 0 of the next epoch (Java's
  bumpIdempotentProducerEpoch), and the broker refuses late batches of the old one.
- After an unclean restart a broker knows only a producer's last batch. Of several batches whose
  responses were lost it refuses the first ones as out of order, although they are in the log
  (`ProducerBatch.is_unresolved`). Once it takes a later one of them, or recognises it as a
  duplicate, all before it are in the log, because a broker takes a batch only behind its
  predecessor. This holds only in the log that they were sent to, by its topic id, and only if
  there is room for them in front of the later batch: see `Sender._resolve`.
- If the topic is recreated, what has no acknowledgement is sent to the new one, in the same order.
  Brokers that know it by its id (Kafka 4.1+) have put nothing into the new one before.
"""

from __future__ import annotations

import enum
import itertools
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sparkkafka.client.deadline import Backoff
from sparkkafka.client.producer.futures import RecordSlice, split_slices
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import KafkaError, PartitionOutcome
from sparkkafka.protocol.constants import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from sparkkafka.protocol.records.batches import EncodedBatch
from sparkkafka.protocol.wire.primitives import BytesLike

SEQUENCE_LIMIT = 1 << 31

PRODUCER_STATE_S = 60.0
"""How long after an acknowledgement a broker certainly knows the producer id."""


def next_sequence(sequence: int, record_count: int) -> int:
    """Return the first sequence number after a batch that begins at `sequence`: after 2147483647
    comes 0 (Java's `DefaultRecordBatch.incrementSequence`)."""
    return (sequence + record_count) % SEQUENCE_LIMIT


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """A queued record batch.

    `wire`, its header and records as sent, of `wire_bytes`, is set at the first send and never
    changes. `slices` are its records, which get the outcome; Spark's rows have none.

    `is_unresolved`: the broker refused it as out of order although it may be written; the response
    to a later batch shows whether it is. `later_batch_acknowledged`: the broker has acknowledged a
    later batch, so this one can no longer be written with its sequence numbers.
    """

    queue: PartitionQueue
    encoded: EncodedBatch
    created_at_s: float
    slices: Sequence[RecordSlice]
    has_failed: bool = False
    base_sequence: int = NO_SEQUENCE
    wire: tuple[bytes, BytesLike] | None = None
    wire_bytes: int = 0
    attempts: int = 0
    in_flight: bool = False
    maybe_written: bool = False
    is_unresolved: bool = False
    later_batch_acknowledged: bool = False
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.size_bytes = len(self.encoded.payload)

    @property
    def has_unknown_outcome(self) -> bool:
        """Whether the batch is not acknowledged and may be in the log."""
        return self.maybe_written or self.in_flight


def records_in(batches: Iterable[ProducerBatch]) -> int:
    """Return the number of records in these batches."""
    return sum(batch.encoded.record_count for batch in batches)


class QueueState(enum.Enum):
    """What a partition may send. A failure leads from SENDING to DRAINING, the loss of a sequence
    number to GAP, and only a new producer id or epoch leads out of GAP."""

    SENDING = "batches in their order, several in flight"
    DRAINING = "nothing: a batch failed, and others are still in flight"
    GAP = "only batches that may be written, one at a time, before the next epoch"


class PartitionQueue:
    """Unacknowledged batches of one partition, oldest first. Nothing is sent before `not_before_s`
    (monotonic)."""

    def __init__(self, tp: TopicPartition, backoff: Backoff) -> None:
        self.tp = tp
        self.backoff = backoff
        self.not_before_s = 0.0  # nothing is sent before this time
        self.last_error: KafkaError | None = None
        self.acknowledged_records = 0
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.batches: deque[ProducerBatch] = deque()
        self.in_flight = 0  # batches
        self.node_id: int | None = None
        """The broker to which the last batch was sent: all in flight were."""
        self.proven_node_id: int | None = None
        """The leader that took the last batch."""
        self.proven_bytes = 0
        """The size of the largest batch that a leader took."""
        self.state = QueueState.SENDING
        self.first_offset = self.last_offset = -1
        """Those of the records that were acknowledged; -1 if the broker returned none."""
        self.topic_id: bytes | None = None
        """The topic's id in the metadata (Kafka 2.8+), None before the first one is known."""
        self._failed_in_flight = 0  # batches that failed before their response came
        self._next_sequence = 0
        self._broker_knows_id_until_s = 0.0  # see PRODUCER_STATE_S

    def set_topic_id(self, topic_id: bytes | None) -> None:
        """Set the id of the topic that the broker knows now. A new id is that of a recreated topic:
        what is known of the old log no longer counts."""
        if topic_id is None:  # from a broker before Kafka 2.8, perhaps of a cluster in an upgrade
            return
        if self.topic_id is not None and topic_id != self.topic_id:
            self.first_offset = self.last_offset = -1
            self._broker_knows_id_until_s = 0.0
            for batch in self.batches:
                batch.is_unresolved = False
        self.topic_id = topic_id

    @property
    def has_unsent(self) -> bool:
        """Whether a queued batch is not in flight."""
        return len(self.batches) > self.in_flight - self._failed_in_flight

    @property
    def needs_next_epoch(self) -> bool:
        """Whether the queue is behind a gap, and the next epoch can be requested: no batch has an
        unknown outcome."""
        return (
            self.state is QueueState.GAP
            and not self.in_flight
            and not any(batch.maybe_written for batch in self.batches)
        )

    def back_off(self, error: KafkaError) -> None:
        """Delay the next attempt, longer each time; `error` is the reason."""
        self.last_error = error
        self.not_before_s = time.monotonic() + self.backoff.next_ms() / 1000

    def outcome(self, *, acks: int) -> PartitionOutcome:
        """Return the number of records that are written, not written, and possibly written."""
        total = records_in(self.batches)
        unknown = records_in(batch for batch in self.batches if batch.has_unknown_outcome)
        written = self.acknowledged_records if acks != 0 else 0
        return PartitionOutcome(
            written, total - unknown, unknown + self.acknowledged_records - written
        )

    # --- producer ids -----------------------------------------------------------------------------

    def assign_producer_id(self, producer_id: int, producer_epoch: int) -> None:
        """Use this producer id, with sequence numbers from 0 on.

        Raises RuntimeError while a batch is in flight, or may be written under another id: the
        broker would not recognise its copy under the new id as a duplicate.
        """
        if self.in_flight or any(batch.maybe_written for batch in self.batches):
            raise RuntimeError(f"{self.tp}: a new producer id while batches may be written")
        self.state = QueueState.SENDING
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self._next_sequence = 0
        self._broker_knows_id_until_s = 0.0
        for batch in self.batches:
            batch.base_sequence = NO_SEQUENCE
            batch.wire = None
            batch.later_batch_acknowledged = False

    def reset_producer_id(self) -> None:
        """Drop the producer id: no batch is sent before `assign_producer_id`."""
        if self.state is QueueState.GAP:  # the gap is in the numbers of the old id
            self.state = QueueState.DRAINING
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH

    # --- what is sent when ------------------------------------------------------------------------

    def next_batch(self, node_id: int) -> ProducerBatch | None:
        """Return the batch to send to this broker now, None if there is none or a response must
        arrive first.

        It must arrive first while batches are in flight to a former leader, or after one failed;
        while a batch is sent again; and while the broker may not know the producer id: then only
        one batch may be in flight (see the module's rules).
        """
        if self.in_flight:
            is_from_former_leader = self.node_id != node_id
            if is_from_former_leader or self.state is not QueueState.SENDING or self.has_unresolved:
                return None
            may_not_know_id = time.monotonic() >= self._broker_knows_id_until_s
            if self.producer_id != NO_PRODUCER_ID and may_not_know_id:
                return None
        elif self.state is QueueState.DRAINING:
            self.state = QueueState.SENDING
        if self.has_unresolved or self.state is QueueState.GAP:
            # The response to this one shows the outcome of the unresolved ones before it.
            may_be_written = (batch for batch in self.batches if batch.maybe_written)
            return next((batch for batch in may_be_written if not batch.is_unresolved), None)
        is_retrying = False
        for batch in self.batches:
            if not batch.in_flight:
                # Nothing new while a batch is being sent again.
                return None if is_retrying and not batch.attempts else batch
            is_retrying = is_retrying or batch.attempts > 1
        return None

    def assign_sequence(self, batch: ProducerBatch) -> None:
        """Give the batch its sequence numbers, unless it has them from an earlier attempt."""
        if batch.base_sequence == NO_SEQUENCE:
            batch.base_sequence = self._next_sequence
            self._next_sequence = next_sequence(self._next_sequence, batch.encoded.record_count)

    def on_sent(self, batch: ProducerBatch, node_id: int) -> None:
        """Note that a batch is being sent to this broker."""
        self.node_id = node_id
        batch.in_flight = True
        batch.attempts += 1
        self.in_flight += 1

    def is_head(self, batch: ProducerBatch) -> bool:
        """Return whether no earlier batch has to be acknowledged first: there is none, or those
        before it are unresolved (`next_batch` then sends none but the first behind them). Behind a
        gap return False for every batch."""
        if self.state is QueueState.GAP or not self.batches:
            return False
        return self.batches[0] is batch or self.has_unresolved

    # --- outcomes ---------------------------------------------------------------------------------

    def on_response(self, batch: ProducerBatch) -> None:
        """Note that a batch is not in flight any more, because its response has arrived or its
        connection broke."""
        batch.in_flight = False
        self.in_flight -= 1
        if batch.has_failed:
            self._failed_in_flight -= 1

    def on_acknowledged(self, batch: ProducerBatch, base_offset: int = -1) -> None:
        """Remove a batch that the broker has written, at this offset if it is not -1."""
        if batch.in_flight:
            self.on_response(batch)
        if batch is self.batches[0]:  # else the broker may know the id by this batch only
            self._broker_knows_id_until_s = time.monotonic() + PRODUCER_STATE_S
        for earlier in self.batches:
            if earlier is batch:
                break
            earlier.later_batch_acknowledged = True
        record_count = batch.encoded.record_count
        if base_offset >= 0:
            if not 0 <= self.first_offset <= base_offset:
                self.first_offset = base_offset
            self.last_offset = max(self.last_offset, base_offset + record_count - 1)
        self.acknowledged_records += record_count
        if self.last_error is not None:
            self.backoff.reset()
            self.last_error = None
        self.batches.remove(batch)

    def on_attempt_failed(self, batch: ProducerBatch, *, maybe_written: bool) -> None:
        """Note that an attempt to send a batch has failed. The batch stays queued.

        `maybe_written`: this attempt may have reached the log.
        """
        self.on_response(batch)
        batch.maybe_written = batch.maybe_written or maybe_written
        if self.state is QueueState.SENDING:
            self.state = QueueState.DRAINING
        self._broker_knows_id_until_s = 0.0  # the new leader, if it is one, may not know the id

    def on_out_of_order(self, batch: ProducerBatch) -> None:
        """Act on OUT_OF_ORDER_SEQUENCE_NUMBER, which says that the broker does not have the batch
        before this one.

        Behind a gap, the outcome of this batch stays open if a later batch may be in the log, since
        a broker may remember only a producer's last batch. If there is no such batch, no attempt of
        this batch or of the unresolved ones before it was written: the broker would recognise the
        last of them.
        """
        self.on_attempt_failed(batch, maybe_written=False)
        if self.state is not QueueState.GAP:
            return
        position = self.batches.index(batch)
        later = itertools.islice(self.batches, position + 1, None)
        if any(other.has_unknown_outcome for other in later):
            batch.is_unresolved = batch.maybe_written
        else:
            for refused in [*self.unresolved_before(batch), batch]:
                refused.maybe_written = refused.is_unresolved = False

    def fail(self, batch: ProducerBatch) -> None:
        """Remove a batch that has finally failed. If it had sequence numbers, they are a gap, and
        the queue is in QueueState.GAP. If its response is still to come, it counts as in flight
        until then, and the response changes nothing else."""
        self.batches.remove(batch)
        batch.has_failed = True
        if batch.in_flight:
            self._failed_in_flight += 1
        if batch.base_sequence != NO_SEQUENCE:
            self.state = QueueState.GAP

    def restart(self, refused: Iterable[ProducerBatch]) -> None:
        """Let batches that the broker has refused, and that are certainly not in the log, be sent
        under the next epoch, once no other batch has an unknown outcome."""
        for batch in refused:
            batch.maybe_written = batch.is_unresolved = False
        self.state = QueueState.GAP

    # --- unresolved batches -----------------------------------------------------------------------

    @property
    def has_unresolved(self) -> bool:
        """Whether the first batch is unresolved. (Without a gap, unresolved batches come before all
        others.)"""
        return bool(self.batches) and self.batches[0].is_unresolved

    def unresolved_before(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """Return the unresolved batches, which come before this one: its response shows their
        outcome."""
        if not self.has_unresolved and self.state is not QueueState.GAP:
            return []
        return [other for other in self.batches if other.is_unresolved and other is not batch]

    def fits_before(self, base_offset: int, earlier: Sequence[ProducerBatch]) -> bool:
        """Return whether the batches `earlier` fit into the log between the last acknowledged
        record and a batch at `base_offset`. Return True if one of these offsets is not known."""
        if base_offset < 0 or self.last_offset < 0:
            return True
        return base_offset - self.last_offset > records_in(earlier)

    def mark_unresolved(self, batch: ProducerBatch) -> bool:
        """Mark a batch that the broker refused as out of order as unresolved, and return True; if
        no later batch can show its outcome, return False."""
        if not batch.maybe_written or batch.later_batch_acknowledged or not self.is_head(batch):
            return False
        # Without such a batch, no response would show the outcome.
        if not any(
            other.maybe_written and not other.is_unresolved and other is not batch
            for other in self.batches
        ):
            return False
        batch.is_unresolved = True
        self.on_attempt_failed(batch, maybe_written=True)
        return True

    def split(self, batch: ProducerBatch, parts: Sequence[EncodedBatch]) -> None:
        """Replace a batch that was too large by its parts, which share its sequence numbers."""
        position = self.batches.index(batch)
        sequence = batch.base_sequence
        replacements = []
        slices = split_slices(batch.slices, [part.record_count for part in parts])
        for part, part_slices in zip(parts, slices, strict=True):
            new = ProducerBatch(self, part, batch.created_at_s, part_slices)
            if sequence != NO_SEQUENCE:
                new.base_sequence = sequence
                sequence = next_sequence(sequence, part.record_count)
            replacements.append(new)
        self.on_response(batch)
        if self.state is QueueState.SENDING:
            self.state = QueueState.DRAINING
        remaining = list(self.batches)
        remaining[position : position + 1] = replacements
        self.batches = deque(remaining)
