"""One partition's unacknowledged batches, in order: sequence numbers and retries.

No socket is touched here. The rules (KIP-98, KIP-360; Java's TransactionManager and
Sender, broker's ProducerAppendInfo):

- Sequence numbers count records per (producer id, partition) and wrap from 2147483647 to 0.
- A batch keeps its bytes and sequence number from its first send: the broker recognises a duplicate
  by (producer id, epoch, first and last sequence) of the last five batches, without looking at the
  data. A batch is split only after MESSAGE_TOO_LARGE, which means that this attempt wrote nothing;
  the parts share its sequence numbers.
- The broker checks the size first, and does not recognise a part of a batch that it has. So after
  an earlier attempt of unknown outcome (max.message.bytes was lowered since?) the first part goes
  alone. If the broker takes it, the batch was not written, nor will it be. If not, the outcome
  stays unknown, and all parts are given up.
- All batches in flight go to one broker. When the leader moves, the new one gets nothing before the
  old one has answered.
- After a failure nothing is sent until every batch in flight is answered (`draining`); then the
  rest goes again, in sequence order. Otherwise a batch could reach the new leader before its
  predecessor, which is still on its way to the old one.
- Nothing new is sent while a batch is being sent again: it may be in the log, and the broker
  recognises only the last five.
- A broker that does not know a producer id takes any first sequence number (ProducerAppendInfo): if
  it refused one batch and took the next, the first could never be written. So a batch is alone in
  flight until it is acknowledged, if the log may be without this producer's state: at the start,
  after a failure, in a topic that was recreated, after a minute without an acknowledgement
  (producer.id.expiration.ms).
- What was on its way together when a topic was recreated can be overtaken so all the same. Refused
  and not written, it goes again at sequence 0 of the next epoch, behind what overtook it.
- Giving up a batch leaves a gap in the sequence numbers. Nothing new is sent until all batches in
  flight are answered; those of unknown outcome go again as they were, until the broker takes them
  or finds them out of order, in which case they were never written. The rest then begins at
  sequence 0 of the next epoch (Java's bumpIdempotentProducerEpoch), and the broker refuses late
  batches of the old one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from sparkkafka.client.deadline import Backoff
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import KafkaError, PartitionOutcome, ProduceError
from sparkkafka.protocol.columns.encode import EncodedBatch
from sparkkafka.protocol.constants import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from sparkkafka.protocol.wire.primitives import BytesLike

SEQUENCE_LIMIT = 1 << 31
EPOCH_LIMIT = (1 << 15) - 1

KNOWN_S = 60.0
"""So long after an acknowledgement a broker surely knows the producer id."""


def next_sequence(sequence: int, record_count: int) -> int:
    """`DefaultRecordBatch.incrementSequence`: after 2147483647 comes 0."""
    return (sequence + record_count) % SEQUENCE_LIMIT


class BatchOwner(Protocol):
    """Is called once with the outcome of a batch: `delivered` or `failed`."""

    def delivered(self, base_offset: int, log_append_time_ms: int) -> None:
        """The batch is written. The offset is -1 if the broker did not return it, the time unless
        the topic has LogAppendTime."""

    def failed(self, error: ProduceError, record_messages: Mapping[int, str | None]) -> None:
        """The batch is given up. `record_messages` are the broker's messages about single records
        (KIP-467), by index in the batch. An owner may raise to stop the sender for good."""

    def split(self, counts: Sequence[int]) -> Sequence[BatchOwner]:
        """The owners of a batch's parts, which have this many records."""


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """A queued record batch; `owner` is called with its outcome.

    `wire`, its header and records as sent, is set at the first send and never changes. `whole` is
    the same object for all parts of a batch that may be written undivided. `refused`: a later batch
    will show whether this one is written (`put_aside`). `overtaken`: a later one was taken first.
    `topic_id` is what the topic's was before the first send.
    """

    encoded: EncodedBatch
    created_s: float
    owner: BatchOwner
    dropped: bool = False
    base_sequence: int = NO_SEQUENCE
    wire: tuple[bytes, BytesLike] | None = None
    attempts: int = 0
    in_flight: bool = False
    maybe_written: bool = False
    refused: bool = False
    overtaken: bool = False
    topic_id: bytes | None = None
    whole: object | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.encoded.payload)

    @property
    def open_outcome(self) -> bool:
        """Whether the batch may be in the log."""
        return self.maybe_written or self.in_flight

    @property
    def wire_bytes(self) -> int:
        """Bytes of the batch as sent; 0 before its first send."""
        return sum(map(len, self.wire or ()))


def records_in(batches: Iterable[ProducerBatch]) -> int:
    return sum(batch.encoded.record_count for batch in batches)


class PartitionQueue:
    """Unacknowledged batches of one partition, oldest first. Nothing is sent before `not_before_s`
    (monotonic)."""

    def __init__(self, tp: TopicPartition, backoff: Backoff) -> None:
        self.tp = tp
        self.backoff = backoff
        self.not_before_s = 0.0
        self.last_error: KafkaError | None = None
        self.acknowledged_records = 0
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.batches: deque[ProducerBatch] = deque()
        self.in_flight = 0
        self.node_id: int | None = None
        self.proven_node_id: int | None = None
        """The leader that has taken a batch last."""
        self.topic_id: bytes | None = None
        """The topic's as far as the cache has it (Kafka 2.8+)."""
        self.log_id: bytes | None = None
        """The topic's when the last batch was sent that was acknowledged in its turn."""
        self.last_offset = -1
        """Of that batch, or of one before it."""
        self._records_behind = 0  # behind that offset, of batches acknowledged out of their turn
        self.has_gap = False
        self._dropped_in_flight = 0
        self._next_sequence = 0
        self._draining = False
        self._known_until_s = 0.0  # by the broker, which has this producer's state

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def has_identity(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID

    @property
    def has_unsent(self) -> bool:
        return len(self.batches) > self.in_flight - self._dropped_in_flight

    @property
    def wants_new_epoch(self) -> bool:
        """Whether a gap can be closed now: no batch has an unknown outcome."""
        return (
            self.has_gap
            and not self.in_flight
            and not any(batch.maybe_written for batch in self.batches)
        )

    def back_off(self, error: KafkaError) -> None:
        """Delay the next attempt, longer each time; `error` is the reason."""
        self.last_error = error
        self.not_before_s = time.monotonic() + self.backoff.next_ms() / 1000

    def outcome(self, *, acks: int) -> PartitionOutcome:
        """What is known about the records that were queued."""
        unknown, total = 0, 0
        for batch in self.batches:
            total += batch.encoded.record_count
            if batch.open_outcome:
                unknown += batch.encoded.record_count
        sure = self.acknowledged_records if acks != 0 else 0
        return PartitionOutcome(sure, total - unknown, unknown + self.acknowledged_records - sure)

    def identify(self, producer_id: int, producer_epoch: int) -> None:
        """Use this producer id from sequence 0 on.

        Only while nothing is in flight and no batch sent under another id may be written: the
        broker would not recognise its rebuilt copy as a duplicate.
        """
        if self.in_flight or any(batch.maybe_written for batch in self.batches):
            raise RuntimeError(f"{self.tp}: a new producer id while batches may be written")
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self._next_sequence = 0
        self._known_until_s = 0.0
        self.has_gap = False
        for batch in self.batches:
            batch.base_sequence = NO_SEQUENCE
            batch.wire = None
            batch.overtaken = False

    def forget_identity(self) -> None:
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.has_gap = False

    def append(self, batch: ProducerBatch) -> None:
        self.batches.append(batch)

    def next_batch(self, node_id: int) -> ProducerBatch | None:
        """The batch to send to this broker now, None if all are in flight or answers must come
        first (after a failure, a retry, a batch to a log that may not know the producer id, the
        first part of a batch that may be written, or from a former leader)."""
        if self.in_flight and self.node_id != node_id:
            return None
        if self.in_flight and self.has_identity and not self._is_known:
            return None
        if self._draining or self.has_gap:
            if self.in_flight:
                return None
            self._draining = False
        if self.asks_later_ones:
            if self.in_flight:
                return None
            return next(
                (one for one in self.batches if one.maybe_written and not one.refused), None
            )
        if self.has_gap:
            return next((batch for batch in self.batches if batch.maybe_written), None)
        repeated = False
        for batch in self.batches:
            if not batch.in_flight:
                return None if repeated and not batch.attempts else batch
            if batch.whole is not None:
                return None
            repeated = repeated or batch.attempts > 1
        return None

    @property
    def _is_known(self) -> bool:
        """Whether the log surely has this producer's state."""
        return time.monotonic() < self._known_until_s and self.topic_id == self.log_id

    def sent(self, batch: ProducerBatch, node_id: int) -> None:
        self.node_id = node_id
        batch.in_flight = True
        batch.attempts += 1
        self.in_flight += 1

    def take_sequence(self, batch: ProducerBatch) -> None:
        if batch.base_sequence == NO_SEQUENCE:
            batch.base_sequence = self._next_sequence
            batch.topic_id = self.topic_id
            self._next_sequence = next_sequence(self._next_sequence, batch.encoded.record_count)

    def is_head(self, batch: ProducerBatch) -> bool:
        """Whether every earlier batch has been acknowledged."""
        return bool(self.batches) and self.batches[0] is batch and not self.has_gap

    @property
    def asks_later_ones(self) -> bool:
        """Whether batches, always the first ones, are put aside."""
        return bool(self.batches) and self.batches[0].refused

    def put_aside(self, batch: ProducerBatch) -> bool:
        """Whether a later batch will show the outcome of this one, which was refused as out of
        order though it may be written.

        After an unclean shutdown a broker knows only a producer's last batch: of several whose
        answers were lost it refuses the first ones. Once it takes a later one, as new or as a
        duplicate, all before it are in the log, because a broker takes a batch only behind its
        predecessor, if the log has the producer's state (`Deliveries` looks whether it is the same
        log).
        """
        if not batch.maybe_written or batch.whole is not None:
            return False
        if not (self.asks_later_ones or self.is_head(batch)):
            return False
        if not any(
            one.maybe_written and not one.refused and one.whole is None and one is not batch
            for one in self.batches
        ):
            return False
        batch.refused = True
        self.failed(batch, maybe_written=True)
        return True

    def put_aside_before(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """The batches put aside whose outcome the answer to this one shows."""
        if not self.asks_later_ones:
            return []
        return [one for one in self.batches if one.refused and one is not batch]

    def begin_anew(self, refused: Sequence[ProducerBatch]) -> None:
        """These are not in the log that there is now: they go again under the next epoch, once all
        others have an outcome."""
        for batch in refused:
            batch.maybe_written = batch.refused = False
        self._draining = self.has_gap = True

    def has_place_for(self, earlier: Sequence[ProducerBatch], base_offset: int) -> bool | None:
        """Whether these can be in the log in front of a later batch, which is at `base_offset`;
        None if an offset is not known."""
        records = records_in(earlier)
        if 0 <= base_offset < records:
            return False
        if base_offset < 0 or self.last_offset < 0:
            return None
        return base_offset - self.last_offset > records + self._records_behind

    def is_beyond_help(self, batch: ProducerBatch) -> bool:
        """Whether a refusal as out of order is final though the batch is not the head: behind a
        gap, a part is refused whether its undivided batch is written or not."""
        return self.has_gap and batch.whole is not None

    def parts_with(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """The other parts of a batch that may be written undivided."""
        if batch.whole is None:
            return []
        return [
            other for other in self.batches if other.whole is batch.whole and other is not batch
        ]

    def _answered(self, batch: ProducerBatch) -> None:
        batch.in_flight = False
        self.in_flight -= 1
        if batch.dropped:
            self._dropped_in_flight -= 1

    def acknowledged(self, batch: ProducerBatch, base_offset: int = -1) -> None:
        """The broker has written it, at this offset if it is not -1."""
        if batch.in_flight:
            self._answered(batch)
        if batch is self.batches[0]:
            self._known_until_s = time.monotonic() + KNOWN_S
            self.log_id = batch.topic_id
            if base_offset >= 0:
                self.last_offset = base_offset + batch.encoded.record_count - 1
            self._records_behind = 0
        else:
            earlier = list(takewhile(lambda one: one is not batch, self.batches))
            # At an offset that was passed already it is another log, which has some place.
            is_full = self.has_place_for(earlier, base_offset) is False and (
                base_offset > self.last_offset or base_offset < records_in(earlier)
            )
            for one in earlier:
                one.overtaken = True
                one.maybe_written = one.maybe_written and not (is_full and self.has_identity)
            self._records_behind += batch.encoded.record_count
        self.acknowledged_records += batch.encoded.record_count
        self.backoff.reset()
        self.last_error = None
        # The broker took the first part as next in order, so the undivided batch is not in the log
        # and never will be. No other part was sent.
        for other in self.parts_with(batch):
            other.whole = None
            other.maybe_written = False
        self.batches.remove(batch)

    def failed(self, batch: ProducerBatch, *, maybe_written: bool) -> None:
        """The batch must be sent again; `maybe_written` if this attempt may have reached the
        log."""
        self._answered(batch)
        batch.maybe_written = batch.maybe_written or maybe_written
        self._draining = True
        self._known_until_s = 0.0

    def out_of_order(self, batch: ProducerBatch) -> None:
        """The broker misses the batch before. Behind a gap this proves that no attempt of this one
        was written: the broker would recognise it."""
        self.failed(batch, maybe_written=False)
        if self.has_gap:
            batch.maybe_written = False

    def drop(self, batch: ProducerBatch) -> None:
        """Give it up. An answer that comes later (`late`) is ignored."""
        self.batches.remove(batch)
        batch.dropped = True
        self._dropped_in_flight += batch.in_flight
        self.has_gap = self.has_gap or batch.base_sequence != NO_SEQUENCE

    def late(self, batch: ProducerBatch) -> None:
        """A batch that was given up was answered, or its connection broke."""
        self._answered(batch)

    def split(self, batch: ProducerBatch, parts: Sequence[EncodedBatch]) -> None:
        """Replace a batch that was too large by its parts, which share its sequence numbers."""
        position = self.batches.index(batch)
        sequence = batch.base_sequence
        whole = batch.whole
        if whole is None and batch.maybe_written and sequence != NO_SEQUENCE:
            whole = object()
        replacements = []
        owners = batch.owner.split([part.record_count for part in parts])
        for part, owner in zip(parts, owners, strict=True):
            new = ProducerBatch(part, batch.created_s, owner)
            new.maybe_written = batch.maybe_written
            new.whole = whole
            if sequence != NO_SEQUENCE:
                new.base_sequence = sequence
                sequence = next_sequence(sequence, part.record_count)
            replacements.append(new)
        self._answered(batch)
        self._draining = True
        rest = list(self.batches)
        rest[position : position + 1] = replacements
        self.batches = deque(rest)
