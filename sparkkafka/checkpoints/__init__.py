"""Checkpoints of streaming queries, read and repaired without Spark: `Checkpoint`, in `logs.py`.

Spark keeps the offsets of each planned micro-batch, and which batches are finished, in small text
files. They are the same for this connector and for the JVM connector. `storage` lists and writes
files, `logs` parses them, `comparison` compares batches and finds damage, `against_kafka` says what
is left to read, what is lost, and what an exactly-once sink has decided, `reset` moves a query to
other offsets.

Names are imported when they are first used: reading local files does not load Arrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkkafka.checkpoints.against_kafka import (
        Position,
        Standing,
        decision_of,
        lag_of,
        positions_of,
    )
    from sparkkafka.checkpoints.comparison import (
        PartitionChange,
        SourceChange,
        VerifyFinding,
        diff,
        verify,
    )
    from sparkkafka.checkpoints.logs import Checkpoint, NextStart, Plan, SourceOffsets
    from sparkkafka.checkpoints.reset import ResetPlan, plan_reset

__all__ = [
    "Checkpoint",
    "NextStart",
    "PartitionChange",
    "Plan",
    "Position",
    "ResetPlan",
    "SourceChange",
    "SourceOffsets",
    "Standing",
    "VerifyFinding",
    "decision_of",
    "diff",
    "lag_of",
    "plan_reset",
    "positions_of",
    "verify",
]

_MODULES = {
    "comparison": "VerifyFinding PartitionChange SourceChange diff verify",
    "against_kafka": "Position Standing decision_of lag_of positions_of",
    "logs": "Checkpoint NextStart Plan SourceOffsets",
    "reset": "ResetPlan plan_reset",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
