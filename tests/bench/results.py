"""What a benchmark measured: pairs of figures, ours and the rival's, taken in turn in one run.

Machines are noisy, so nothing is judged by a figure of its own: each pair is measured back to back,
and a row is judged by the median of its pairs' ratios.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

WORKER_RSS_TARGET_MB = 150.0
"""Most memory that a row may take in a Python worker, beyond an idle worker's."""


@dataclass
class Row:
    """One line of the table. `ours[i]` and `theirs[i]` were measured one after the other."""

    group: str
    """Heading that the row stands under: "read", "read, gzip", "write", "latency", "client", …"""
    name: str
    """What was done: "100 B, 16 KB batches, none, noop"."""
    unit: str
    """Of both figures: "rows/s", "M records/s", "GB/s", "s"."""
    rival: str
    """Who `theirs` is: "JVM connector", "confluent-kafka 2.16.1", …"""
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    target: float | None = None
    """Least median ratio wanted; for `target_kind` "absolute" least figure of ours, for
    "difference" the largest ours - theirs."""
    target_kind: str = "ratio"
    worker_rss_mb: float | None = None
    """Peak of the largest Python worker beyond an idle worker's, in MB of 10**6 bytes."""
    note: str = ""
    measured: str = ""
    """When and with what, if not in the run that the report is about; for people."""

    @property
    def less_is_better(self) -> bool:
        return self.unit in ("s", "ms")

    @property
    def ratios(self) -> list[float]:
        """How many times better we are than the rival, pair by pair."""
        pairs = zip(self.ours, self.theirs, strict=True)
        if self.less_is_better:
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
