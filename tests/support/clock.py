"""A clock for the module under test that can be set forward, so that no test waits for minutes."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

import pytest


class Clock:
    """Stands for the module `time` where `patch` puts it, and is `ahead_s` ahead of it."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def patch(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        for module in modules:
            monkeypatch.setattr(module, "time", self)
