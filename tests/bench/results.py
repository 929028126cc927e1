"""What a benchmark measured: pairs of runs, ours and the rival's, taken in turn in one run.

Machines are noisy, so nothing is judged by a figure of its own: each pair is measured back to back,
and a row is judged by the median of its pairs' ratios.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

WORKER_RSS_TARGET_MB = 150.0
"""Most memory that a row may take in a Python worker, beyond an idle worker's."""

SCALES = {"records/s": 1.0, "rows/s": 1.0, "GB/s": 1e9, "s": 1.0, "ms": 1e-3}
"""The units of figures, and by what `work / seconds`, or seconds, are divided."""

WRITTEN = "written"
"""The name in `Row.checks` of what was put in."""


@dataclass
class Row:
    """One line of the table. `ours_s[i]` and `theirs_s[i]` were measured one after the other."""

    group: str
    """Heading that the row stands under: "read", "read, gzip", "write", "latency", "client", …"""
    name: str
    """What was done: "100 B, 16 KB batches, none, noop"."""
    unit: str
    """Of both figures, one of `SCALES`."""
    rival: str
    """Who `theirs_s` is of: "JVM connector", "confluent-kafka 2.16.1", …; "" if nobody."""
    work: list[float] = field(default_factory=list)
    """Rows, records or bytes of each run: ours and the rival's. Not used if the unit is a time."""
    ours_s: list[float] = field(default_factory=list)
    theirs_s: list[float] = field(default_factory=list)
    target: float | None = None
    """Least median ratio wanted; for `target_kind` "absolute" least figure of ours, for
    "difference" the largest ours - theirs."""
    target_kind: str = "ratio"
    worker_rss_mb: float | None = None
    """Peak of the largest Python worker beyond an idle worker's, in MB of 10**6 bytes."""
    note: str = ""
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    """By side, what it was configured with beyond its defaults and the address of the broker."""
    checks: dict[str, list[int | None]] = field(default_factory=dict)
    """By program, the count and the sum of hashes of what it wrote or read. All are equal."""

    @property
    def is_time(self) -> bool:
        return self.unit in ("s", "ms")

    @property
    def ours(self) -> list[float]:
        """Our figures in `unit`."""
        return self._figures(self.ours_s, 0)

    @property
    def theirs(self) -> list[float]:
        return self._figures(self.theirs_s, 1)

    def _figures(self, seconds: list[float], side: int) -> list[float]:
        scale = SCALES[self.unit]
        if self.is_time:
            return [value / scale for value in seconds]
        return [self.work[side] / value / scale for value in seconds]

    @property
    def ratios(self) -> list[float]:
        """How many times better we are than the rival, pair by pair."""
        pairs = zip(self.ours, self.theirs, strict=True)
        if self.is_time:
            return [theirs / ours for ours, theirs in pairs]
        return [ours / theirs for ours, theirs in pairs]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """Smallest and largest ratio."""
        return min(self.ratios), max(self.ratios)

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None if there is none."""
        if self.target is None:
            return None
        if self.target_kind == "absolute":
            return statistics.median(self.ours) >= self.target
        if self.target_kind == "difference":
            return median_difference(self.ours, self.theirs) <= self.target
        return self.ratio >= self.target

    @property
    def rss_met(self) -> bool | None:
        """Whether the workers stayed below `WORKER_RSS_TARGET_MB`; None if nobody looked."""
        if self.worker_rss_mb is None:
            return None
        return self.worker_rss_mb <= WORKER_RSS_TARGET_MB


def median_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(a - b for a, b in zip(ours, theirs, strict=True))
