"""How often a property is tried: `make soak` looks ten times as long as `make test`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_TIMES = 10 if os.environ.get("SPARKKAFKA_LONG") else 1


def examples(count: int) -> int:
    """For `settings(max_examples=…)`: so many in `make test`."""
    return count * _TIMES


def load_profile() -> None:
    """What holds for all: a busy machine is no failure, an example may take as long as it does."""
    settings.register_profile(
        "tests",
        deadline=None,
        max_examples=examples(100),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("tests")
