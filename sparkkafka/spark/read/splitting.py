"""Ranges of partitions cut into more and smaller ones: maxRecordsPerPartition, minPartitions.

The JVM connector's KafkaOffsetRangeCalculator, in the same order: first no range is longer than the
maximum, then there are as many as the minimum. Its shares are rounded, so it may end up with fewer
ranges than asked for; here it is that many exactly, as far as there are offsets.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from sparkkafka.spark.read.planning import OffsetRange


def split_ranges(
    ranges: Sequence[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[OffsetRange]:
    """The same offsets in the same order, in `min_partitions` ranges or more, none longer than
    `max_records`. Pieces of a range differ by one offset at most."""
    parts = [1] * len(ranges)
    if max_records is not None:
        parts = [-(-_size(whole) // max_records) for whole in ranges]
    missing = (min_partitions or 0) - sum(parts)
    if missing > 0:
        _add_parts(parts, [_size(whole) for whole in ranges], missing)
    return [
        piece for whole, count in zip(ranges, parts, strict=True) for piece in _pieces(whole, count)
    ]


def _add_parts(parts: list[int], sizes: list[int], missing: int) -> None:
    """Each further cut goes to the range whose pieces are longest."""
    longest = [
        (-size / count, at) for at, (size, count) in enumerate(zip(sizes, parts, strict=True))
    ]
    heapq.heapify(longest)
    while missing and longest:
        _, at = longest[0]
        if parts[at] >= sizes[at]:  # the longest piece is one offset: nothing is left to cut
            heapq.heappop(longest)
            continue
        parts[at] += 1
        missing -= 1
        heapq.heapreplace(longest, (-sizes[at] / parts[at], at))


def _pieces(whole: OffsetRange, count: int) -> Iterator[OffsetRange]:
    start = whole.start
    for left in range(count, 0, -1):
        end = start + -(-(whole.end - start) // left)
        yield OffsetRange(whole.topic, whole.partition, start, end)
        start = end


def _size(whole: OffsetRange) -> int:
    return whole.end - whole.start
