"""How often a property or a random run is tried: `make soak` looks longer than `make test`, at
properties ten times as long."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

_TIMES = 10 if os.environ.get("SPARKKAFKA_LONG") else 1


def examples(count: int) -> int:
    """For `settings(max_examples=…)`: so many in `make test`."""
    return count * _TIMES


def seeds(few: int, many: int) -> list[Any]:
    """For `parametrize`: seeds of random runs, the first few in `make test`."""
    marks = [()] * few + [pytest.mark.soak] * (many - few)
    return [pytest.param(seed, marks=mark) for seed, mark in enumerate(marks)]


def load_profile() -> None:
    """What holds for all: a busy machine is no failure, an example may take as long as it does."""
    settings.register_profile(
        "tests",
        deadline=None,
        max_examples=examples(100),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("tests")
