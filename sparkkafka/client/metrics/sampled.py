"""A series of values with totals, and rates over the last half minute, as Kafka's clients have it.

These are Java's SampledStat and Rate, with their defaults: two samples of 30 s each
(metrics.sample.window.ms, metrics.num.samples). A sample is dropped when it is a minute old, so
that rates cover the last 30 to 60 seconds.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

WINDOW_S = 30.0

NO_VALUE = math.nan
"""The mean or the maximum of no values, as in Java."""

Metrics = dict[str, dict[str, float]]
"""By group, then by name. A group of one topic or partition is named as in JMX:
"consumer-fetch-manager-metrics,topic=orders,partition=0"."""


class _Sample:
    """Statistics of the values from `start_s` on, for WINDOW_S."""

    __slots__ = ("count", "largest", "start_s", "total")

    def __init__(self, start_s: float) -> None:
        self.start_s = start_s
        self.count = 0
        self.total = 0.0
        self.largest = -math.inf


class Window(NamedTuple):
    """Statistics of the last 30 to 60 s. `rate` is the sum of the values per second, `count_rate`
    their number per second."""

    rate: float
    count_rate: float
    mean: float
    largest: float


class Sampled:
    """A series of values by time; `count` and `total` (the sum) are of all of them. Not
    thread-safe: its owner has a lock."""

    __slots__ = ("_current", "_previous", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._current = _Sample(time.monotonic())
        self._previous: _Sample | None = None

    def record(self, value: float, now_s: float) -> None:
        """Add a value at this monotonic time."""
        sample = self._current
        if now_s - sample.start_s >= WINDOW_S:
            self._previous = sample
            sample = self._current = _Sample(now_s)
        sample.count += 1
        sample.total += value
        if value > sample.largest:
            sample.largest = value
        self.count += 1
        self.total += value

    def window(self, now_s: float) -> Window:
        """Return statistics of the last two samples."""
        samples = [
            sample
            for sample in (self._previous, self._current)
            if sample is not None and now_s - sample.start_s < 2 * WINDOW_S
        ]
        count = sum(sample.count for sample in samples)
        total = sum(sample.total for sample in samples)
        elapsed_s = now_s - samples[0].start_s if samples else 0.0
        if elapsed_s < WINDOW_S:
            # Java's Rate.windowSize: the first window is extended by a whole one, or else the first
            # value after a start would be a rate of thousands.
            elapsed_s += WINDOW_S
        return Window(
            total / elapsed_s,
            count / elapsed_s,
            total / count if count else NO_VALUE,
            max(sample.largest for sample in samples) if count else NO_VALUE,
        )


def sum_rate_and_total(name: str, series: Sampled, now_s: float) -> dict[str, float]:
    """`name-rate` and `name-total` of the values' sum."""
    return {f"{name}-rate": series.window(now_s).rate, f"{name}-total": series.total}


def count_rate_and_total(name: str, series: Sampled, now_s: float) -> dict[str, float]:
    """`name-rate` and `name-total` of the number of values."""
    return {f"{name}-rate": series.window(now_s).count_rate, f"{name}-total": float(series.count)}


def mean_and_max(name: str, series: Sampled, now_s: float) -> dict[str, float]:
    """`name-avg` and `name-max`."""
    window = series.window(now_s)
    return {f"{name}-avg": window.mean, f"{name}-max": window.largest}
