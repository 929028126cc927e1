"""Checkpoints of streaming queries, read and mended without Spark: `Checkpoint`, in `logs.py`.

Spark keeps which batch was planned up to where, and which is finished, as small text files. They
are the same for this connector and for the JVM connector. `storage` finds and writes files, `logs`
says what is in them, `changes` compares batches and finds damage, `positions` asks Kafka what is
left to read and what is lost, `decisions` what an exactly-once sink decided. `reset` moves a query,
with `targets` (to which offsets), `soundness` (from which batch on) and `backups` (of what was
before).

Names are imported when they are first used: a look at local files loads no Arrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkkafka.checkpoints.changes import Finding, PartitionChange, SourceChange, diff, verify
    from sparkkafka.checkpoints.decisions import Standing, decision_of
    from sparkkafka.checkpoints.logs import Checkpoint, NextStart, Plan, SourceOffsets
    from sparkkafka.checkpoints.positions import Position, lag_of, positions_of
    from sparkkafka.checkpoints.reset import ResetPlan, plan_reset

__all__ = [
    "Checkpoint",
    "Finding",
    "NextStart",
    "PartitionChange",
    "Plan",
    "Position",
    "ResetPlan",
    "SourceChange",
    "SourceOffsets",
    "Standing",
    "decision_of",
    "diff",
    "lag_of",
    "plan_reset",
    "positions_of",
    "verify",
]

_MODULES = {
    "changes": "Finding PartitionChange SourceChange diff verify",
    "decisions": "Standing decision_of",
    "logs": "Checkpoint NextStart Plan SourceOffsets",
    "positions": "Position lag_of positions_of",
    "reset": "ResetPlan plan_reset",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
