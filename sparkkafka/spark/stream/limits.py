"""How much of a backlog one micro-batch of a stream takes. Pure functions of numbers.

`maxOffsetsPerTrigger` is a hard cap here. (The JVM connector gives each partition at least one
offset, so that its batches exceed the cap on wide topics.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from sparkkafka.client.values import TopicPartition

Counts = dict[TopicPartition, int]


def prorate(
    backlog: Mapping[TopicPartition, int], cap: int, after: TopicPartition | None = None
) -> Counts:
    """How many offsets of each partition's backlog are taken, `cap` in all or the whole backlog.

    Every partition with a backlog gets one offset, and what is left of the cap is shared out by
    backlog. If there are more partitions than `cap`, those that come next after `after` in sorted
    order get one each, so that calls which hand over the last partition served starve none.
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
    """The partition to hand over as `after` next time: the last one served, going round."""
    served = sorted(tp for tp, share in shares.items() if share)
    before = [tp for tp in served if after is not None and tp <= after]
    return (before or served)[-1] if served else after


def offsets_within(
    backlog: Mapping[TopicPartition, int],
    offset_bytes: Mapping[TopicPartition, float],
    cap_bytes: int,
) -> int:
    """The number of offsets, shared out by backlog, that have about `cap_bytes`; at least one.

    `offset_bytes` is the mean size of an offset of each partition; one that is not known counts
    as the mean of the others.
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
