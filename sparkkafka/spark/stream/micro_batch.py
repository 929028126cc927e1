"""How much a micro-batch takes, and the ranges that its tasks read. Pure functions, no I/O.

`maxOffsetsPerTrigger` is a hard cap here. (The JVM connector gives each partition at least one
offset, so that its batches exceed the cap on wide topics.)

Offsets of a stream are those of its checkpoint: by partition, the next one to read. The rules are
those of the JVM connector (KafkaOffsetReaderAdmin.getOffsetRangesFromResolvedOffsets), but for one:
a topic that is new to the query may begin at any offset. Only a partition that was added to a topic
of the query must begin at 0, or it counts as data loss.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping
from typing import NamedTuple

from sparkkafka.client.values import TopicPartition
from sparkkafka.spark.read.planning import KafkaInputPartition, Loss, listed

Offsets = dict[TopicPartition, int]


# --- limits -------------------------------------------------------------------------------------


def prorate(
    backlog: Mapping[TopicPartition, int], cap: int, after: TopicPartition | None = None
) -> Offsets:
    """How many offsets to take of each partition's backlog: `cap` in all, or the whole backlog.

    Every partition with a backlog gets one offset, and the rest of the cap is shared out by
    backlog. With more partitions than `cap`, those that follow `after` in sorted order get one
    each; a caller that passes the last partition served starves none.
    """
    sizes = {tp: size for tp, size in sorted(backlog.items()) if size > 0}
    total = sum(sizes.values())
    if total <= cap:
        return sizes
    if len(sizes) >= cap:
        order = list(sizes)
        first = bisect_right(order, after) if after is not None else 0
        served = set((order[first:] + order[:first])[:cap])
        return {tp: int(tp in served) for tp in order}
    # Largest remainders: shares add up to the cap exactly, and none exceeds its backlog.
    rest, over = cap - len(sizes), total - len(sizes)
    shares = {tp: 1 + rest * (size - 1) // over for tp, size in sizes.items()}
    missing = cap - sum(shares.values())
    by_remainder = sorted(sizes, key=lambda tp: -(rest * (sizes[tp] - 1) % over))
    for tp in by_remainder[:missing]:
        shares[tp] += 1
    return shares


def last_served(
    shares: Mapping[TopicPartition, int], after: TopicPartition | None
) -> TopicPartition | None:
    """The partition to pass as `after` next time: the last one served, in a circle."""
    served = sorted(tp for tp, share in shares.items() if share)
    before = [tp for tp in served if after is not None and tp <= after]
    return (before or served)[-1] if served else after


def offsets_within(
    backlog: Mapping[TopicPartition, int],
    offset_bytes: Mapping[TopicPartition, float],
    cap_bytes: int,
) -> int:
    """How many offsets, shared out by backlog, take about `cap_bytes`; at least one.

    `offset_bytes` is the mean size of an offset by partition; an unknown one counts as the mean of
    the others.
    """
    sizes = {tp: size for tp, size in backlog.items() if size > 0}
    known = [tp for tp in sizes if tp in offset_bytes]
    total = sum(sizes.values())
    known_offsets = sum(sizes[tp] for tp in known)
    if not known_offsets:
        return max(total, 1)
    mean_bytes = sum(sizes[tp] * offset_bytes[tp] for tp in known) / known_offsets
    if total * mean_bytes <= cap_bytes:
        return max(total, 1)
    return max(1, int(cap_bytes / mean_bytes))


# --- ranges -------------------------------------------------------------------------------------


class StreamPlan(NamedTuple):
    """`late_topics`: topics new to the query whose first records are gone already."""

    ranges: list[KafkaInputPartition]
    losses: list[Loss]
    late_topics: dict[str, list[TopicPartition]]


def partitions_to_check(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    """The partitions whose first offset the plan needs: those that move, and new ones."""
    return [tp for tp, offset in end.items() if start.get(tp) != offset]


def plan_micro_batch(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    *,
    recreated: Collection[str] = (),
) -> StreamPlan:
    """The ranges of a micro-batch, in order, without empty ones; and what it cannot read.

    `earliest` has the first offset of each of `partitions_to_check` that exists; `latest` the ends
    of those that were not just looked up (Spark plans a batch again after a restart). Topics of
    `recreated` have been reported and start again at their `end`.
    """
    ranges: list[KafkaInputPartition] = []
    losses: list[Loss] = []
    late_topics: dict[str, list[TopicPartition]] = {}
    known_topics = {tp.topic for tp in start}
    removed = sorted(tp for tp in start if tp not in end)
    if removed:
        gone = f"Partitions {listed(removed)} have been deleted (or are no longer subscribed to)"
        losses.append(Loss("KAFKA_DATA_LOSS.PARTITIONS_DELETED", gone, 0))
    for tp in sorted(partitions_to_check(start, end)):
        to, first = end[tp], earliest.get(tp)
        if tp.topic in recreated:
            continue
        known = tp in start
        if first is None:
            losses.append(_gone(tp, start.get(tp), to))
            continue
        begin = start[tp] if known else first
        if to < begin:
            losses.append(_moved_back(tp, begin, first, to))
            continue
        if not known and tp.topic in known_topics and first > 0:
            losses.append(
                Loss(
                    "KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
                    f"Added partition {tp} starts from {first} instead of 0",
                    first,
                    tp,
                )
            )
        elif not known and first > 0:
            late_topics.setdefault(tp.topic, []).append(tp)
        last = max(first, latest.get(tp, to))
        kept_start, kept_end = max(begin, first), min(to, last)
        missing = (to - begin) - max(0, kept_end - kept_start)
        if missing:
            available = f"available are [{first}, {last})" if tp in latest else f"first is {first}"
            losses.append(_unreadable(tp, begin, to, available, missing))
        if kept_start < kept_end:
            ranges.append(KafkaInputPartition(tp.topic, tp.partition, kept_start, kept_end))
    return StreamPlan(ranges, losses, late_topics)


def _gone(tp: TopicPartition, start: int | None, end: int) -> Loss:
    if start is None:
        return Loss(
            "KAFKA_DATA_LOSS.INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS",
            f"Cannot find initial offsets for partitions {tp}. They may have been deleted",
            end,
            tp,
        )
    return _unreadable(tp, start, end, "the partition is gone", max(0, end - start))


def _unreadable(tp: TopicPartition, start: int, end: int, found: str, missing: int) -> Loss:
    return Loss(
        "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE",
        f"Could not read records in offset [{start}, {end}) for topic partition {tp}: {found}",
        missing,
        tp,
    )


def _moved_back(tp: TopicPartition, start: int, first: int, end: int) -> Loss:
    return Loss(
        "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED",
        f"Partition {tp} offset was changed from {start} to {end}: the start offset was set beyond "
        "the end of the log, or the topic was deleted and recreated. With failOnDataLoss=false the "
        f"query goes on at {end} and leaves out [{first}, {end}): a new checkpoint, or sparkkafka "
        "checkpoint reset, reads it",
        0,
    )


def recreated_loss(topic: str) -> Loss:
    """A topic whose id changed while the query runs."""
    return Loss(
        "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED",
        f"Topic {topic} was deleted and recreated while the query was running (its id changed)",
        0,
    )
