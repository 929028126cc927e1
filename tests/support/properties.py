"""How often a property or a random run is tried: `make soak` tries forty times as many examples of
a property as `make test`."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

_LONG = "SPARKKAFKA_LONG" in os.environ


def examples(count: int) -> int:
    """For `settings(max_examples=…)`: `count` / 4 in `make test`, ten times `count` in soaks.

    Each run draws other examples, and what a run has found is a case of its own.
    """
    return 10 * count if _LONG else max(count // 4, 5)


def seeds(few: int, many: int) -> list[Any]:
    """For `parametrize`: seeds of random runs, the first few in `make test`."""
    marks = [()] * few + [pytest.mark.soak] * (many - few)
    return [pytest.param(seed, marks=mark) for seed, mark in enumerate(marks)]


def load_profile() -> None:
    """Set what holds for all properties: no deadline, since a busy machine is not a failure."""
    settings.register_profile(
        "tests",
        deadline=None,
        max_examples=examples(100),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("tests")
