"""What this process is, for messages about what it lacks: "Spark's driver", "a Spark executor"."""

from __future__ import annotations

_role = "this process"


def role() -> str:
    return _role


def set_role(role: str) -> None:
    """Call this first in a process that others started, such as a worker of Spark."""
    global _role
    _role = role
