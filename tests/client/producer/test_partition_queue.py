"""Order and sequence numbers of one partition, without sockets or time."""

from __future__ import annotations

import time
from collections import deque

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkkafka.client.deadline import Backoff
from sparkkafka.client.producer import partition_queue as module
from sparkkafka.client.producer.partition_queue import (
    PRODUCER_STATE_S,
    PartitionQueue,
    ProducerBatch,
    next_sequence,
)
from sparkkafka.client.values import TopicPartition
from sparkkafka.protocol.columns.encode import RecordColumns, encode_batches, split_encoded
from sparkkafka.protocol.constants import NO_SEQUENCE


def batch(queue: PartitionQueue, records: int) -> ProducerBatch:
    columns = RecordColumns(
        keys=None,
        values=pa.array([b"v"] * records, pa.binary()),
        headers=None,
        timestamps_ms=np.zeros(records, np.int64),
    )
    (encoded,) = encode_batches(columns, max_batch_bytes=1 << 20)
    return ProducerBatch(queue, encoded, 0.0, ())


def queue_of(*sizes: int) -> PartitionQueue:
    """Batches behind a first one that is acknowledged, as sequence 0."""
    queue = new_queue(1, *sizes)
    queue.on_acknowledged(send_next(queue))
    return queue


def new_queue(*sizes: int) -> PartitionQueue:
    queue = PartitionQueue(TopicPartition("t", 0), Backoff(1, 1))
    queue.assign_producer_id(7, 0)
    for size in sizes:
        queue.batches.append(batch(queue, size))
    return queue


def send_next(queue: PartitionQueue, node_id: int = 0) -> ProducerBatch | None:
    ready = queue.next_batch(node_id)
    if ready is not None:
        queue.assign_sequence(ready)
        queue.on_sent(ready, node_id)
    return ready


def send_all(queue: PartitionQueue) -> list[ProducerBatch]:
    sent = []
    while (one := send_next(queue)) is not None:
        sent.append(one)
    return sent


@pytest.mark.parametrize(
    ("sequence", "count", "after"),
    [
        (0, 1, 1),
        (2147483646, 1, 2147483647),
        # Java's DefaultRecordBatch.incrementSequence: 0 follows 2147483647.
        (2147483647, 1, 0),
        (2147483640, 10, 2),
    ],
)
def test_sequence_numbers_wrap_to_zero(sequence, count, after):
    assert next_sequence(sequence, count) == after


def test_batches_go_in_order_with_consecutive_sequences():
    queue = queue_of(3, 4, 5)
    assert [item.base_sequence for item in send_all(queue)] == [1, 4, 8]
    assert queue.in_flight == 3
    assert send_next(queue) is None


def test_the_first_batch_of_a_producer_id_goes_alone():
    queue = new_queue(1, 1)
    first = send_next(queue)
    assert send_next(queue) is None
    queue.on_attempt_failed(first, maybe_written=False)
    assert send_next(queue) is first
    assert send_next(queue) is None
    queue.on_acknowledged(first)
    assert send_next(queue) is not None


def test_a_batch_goes_alone_to_a_log_that_may_not_know_the_producer(monkeypatch):
    queue = queue_of(1, 1, 1, 1, 1, 1)
    queue.set_topic_id(b"one")
    first, second = send_next(queue), send_next(queue)
    queue.on_acknowledged(first)
    queue.on_acknowledged(second)
    queue.set_topic_id(b"another")
    third = send_next(queue)
    assert send_next(queue) is None, "the topic was recreated"
    queue.on_acknowledged(third)
    fourth = send_next(queue)
    assert send_next(queue) is not None
    later_s = time.monotonic() + PRODUCER_STATE_S
    monkeypatch.setattr(module.time, "monotonic", lambda: later_s)
    assert send_next(queue) is None, "a minute without an acknowledgement"
    queue.on_acknowledged(fourth)
    assert send_next(queue) is not None


def test_a_batch_that_was_refused_and_overtaken_restarts_at_the_next_epoch():
    queue = queue_of(1, 2, 1)
    first, refused, later = send_all(queue)
    queue.on_acknowledged(first)
    queue.on_attempt_failed(refused, maybe_written=False)
    queue.on_acknowledged(later)
    assert refused.later_batch_acknowledged
    queue.restart([refused])
    assert queue.needs_next_epoch
    queue.assign_producer_id(7, 1)
    assert send_all(queue) == [refused]
    assert refused.base_sequence == 0
    assert not refused.later_batch_acknowledged


def test_the_offsets_of_a_recreated_topic_begin_anew():
    queue = queue_of(1, 1)
    queue.set_topic_id(b"one")
    queue.on_acknowledged(send_next(queue), base_offset=100)
    queue.set_topic_id(b"another")
    queue.on_acknowledged(send_next(queue), base_offset=0)
    assert (queue.first_offset, queue.last_offset) == (0, 0)


def test_the_offsets_include_those_written_after_a_log_was_truncated():
    queue = queue_of(2, 1)
    queue.on_acknowledged(send_next(queue), base_offset=100)
    queue.on_acknowledged(send_next(queue), base_offset=90)
    assert (queue.first_offset, queue.last_offset) == (90, 101)


def test_earlier_batches_fit_between_the_last_offset_and_a_later_one():
    queue = queue_of(5)
    queue.last_offset = 9
    assert queue.fits_before(15, queue.batches)
    assert not queue.fits_before(14, queue.batches)


def test_what_an_earlier_topic_left_open_is_sent_to_the_new_one():
    queue = queue_of(1, 1)
    queue.set_topic_id(b"one")
    first, second = send_all(queue)
    for batch in (first, second):
        queue.on_attempt_failed(batch, maybe_written=True)
    assert send_next(queue) is first
    assert queue.mark_unresolved(first)
    assert queue.unresolved_before(second) == [first]
    queue.set_topic_id(None)  # not known to the broker that was asked
    assert queue.unresolved_before(second) == [first]
    queue.set_topic_id(b"another")
    assert not queue.unresolved_before(second)
    assert send_next(queue) is first


def test_the_new_leader_gets_nothing_before_the_old_one_has_answered():
    queue = queue_of(1, 1)
    first = send_next(queue, node_id=1)
    assert send_next(queue, node_id=2) is None
    queue.on_attempt_failed(first, maybe_written=True)
    assert send_next(queue, node_id=2) is first


def test_after_a_failure_nothing_is_sent_until_all_are_answered():
    queue = queue_of(1, 1, 1, 1)
    first, second, third = (send_next(queue) for _ in range(3))
    queue.on_attempt_failed(first, maybe_written=True)
    assert send_next(queue) is None  # two are still in flight
    queue.on_attempt_failed(second, maybe_written=False)  # out of order: its predecessor is missing
    queue.on_attempt_failed(third, maybe_written=False)
    assert send_all(queue) == [first]  # alone: the log may be without the producer's state
    queue.on_acknowledged(first)
    again = send_all(queue)
    # The fourth is new: it waits, since the broker must not forget the second one meanwhile.
    assert [item.base_sequence for item in again] == [2, 3]
    for item in again:
        queue.on_acknowledged(item)
    assert [item.base_sequence for item in send_all(queue)] == [4]
    assert first.maybe_written
    assert not second.maybe_written


def test_a_batch_keeps_its_sequence_when_it_is_sent_again():
    queue = queue_of(2, 2)
    first, second = send_all(queue)
    queue.on_acknowledged(second)  # without idempotence responses may overtake
    queue.on_attempt_failed(first, maybe_written=True)
    assert send_next(queue) is first
    assert first.base_sequence == 1
    assert first.attempts == 2


def test_the_head_is_the_oldest_unacknowledged_batch():
    queue = queue_of(1, 1)
    first, second = send_all(queue)
    assert queue.is_head(first)
    assert not queue.is_head(second)
    queue.on_acknowledged(first)
    assert queue.is_head(second)


def test_halves_of_a_batch_that_was_too_large_share_its_sequences():
    queue = queue_of(1, 10, 1)
    first, large, last = send_all(queue)
    queue.on_acknowledged(first)
    queue.split(large, split_encoded(large.encoded))
    assert send_next(queue) is None, "the last one is in flight"
    queue.on_attempt_failed(last, maybe_written=False)
    (half,) = send_all(queue)
    assert (half.base_sequence, half.encoded.record_count) == (2, 5)
    assert len(queue.batches) == 3
    queue.on_acknowledged(half)
    again = send_all(queue)
    assert [(b.base_sequence, b.encoded.record_count) for b in again] == [(7, 5), (12, 1)]


def test_parts_of_a_batch_that_is_not_written_go_together():
    queue = queue_of(10)
    large = send_next(queue)
    queue.split(large, split_encoded(large.encoded))
    assert len(send_all(queue)) == 2


def test_a_new_producer_id_starts_from_zero_and_builds_anew():
    queue = queue_of(2, 3)
    for item in send_all(queue):
        item.wire = b"built"
        queue.on_attempt_failed(item, maybe_written=False)
    queue.assign_producer_id(8, 0)
    assert [item.base_sequence for item in queue.batches] == [NO_SEQUENCE, NO_SEQUENCE]
    assert [item.wire for item in queue.batches] == [None, None]
    first = send_next(queue)
    assert send_next(queue) is None
    queue.on_acknowledged(first)
    second = send_next(queue)
    assert [first.base_sequence, second.base_sequence] == [0, 2]


def test_a_new_producer_id_is_refused_while_batches_are_in_flight():
    queue = queue_of(1)
    sent = send_next(queue)
    with pytest.raises(RuntimeError, match="t-0"):
        queue.assign_producer_id(8, 0)
    queue.on_attempt_failed(sent, maybe_written=True)
    with pytest.raises(RuntimeError, match="t-0"):
        queue.assign_producer_id(8, 0)


class Broker:
    """The broker's rules for one producer id: append only what continues the sequence, and know
    the last five batches again."""

    def __init__(self) -> None:
        self.log: list[int] = []
        self.last_five: deque[tuple[int, int]] = deque(maxlen=5)

    def produce(self, sequence: int, count: int) -> str:
        if not self.log and sequence:
            self.log.append(-1)  # an unknown producer id may begin anywhere: a gap for ever
        if (sequence, count) in self.last_five:
            return "duplicate"
        if sequence != len(self.log):
            return "out of order"
        self.log.extend(range(sequence, sequence + count))
        self.last_five.append((sequence, count))
        return "ok"


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=20),
    fates=st.lists(
        st.sampled_from(["ok", "lost before", "lost after", "error after"]), max_size=60
    ),
)
def test_every_record_is_appended_once_whatever_is_lost(sizes, fates):
    """Up to five requests in flight, each lost before or after the append, or answered."""
    queue, broker, fate = new_queue(*sizes), Broker(), iter(fates)
    for _ in range(1_000):
        if not queue.batches:
            break
        flight = []
        while len(flight) < 5 and (one := send_next(queue)) is not None:
            flight.append(one)
        for one in flight:
            happens = next(fate, "ok")
            if happens == "lost before":
                queue.on_attempt_failed(one, maybe_written=True)
                continue
            response = broker.produce(one.base_sequence, one.encoded.record_count)
            if happens in ("lost after", "error after"):
                queue.on_attempt_failed(one, maybe_written=True)
            elif response == "out of order":
                assert not queue.is_head(one)
                queue.on_attempt_failed(one, maybe_written=False)
            else:
                queue.on_acknowledged(one)
    assert broker.log == list(range(sum(sizes)))
    assert len(queue.batches) == 0
