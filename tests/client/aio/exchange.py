"""Tests of the threads' clients over the asyncio classes: the same functions, other classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import pytest

from tests.client.aio.blocking import Blocking


def add_tests(namespace: dict[str, Any], module: ModuleType, left_out: set[str]) -> None:
    """Add the fixtures and the tests of a module to another one, but for some tests."""
    for name, value in vars(module).items():
        if type(value).__name__ == "FixtureFunctionDefinition":
            namespace[name] = value
        elif name.startswith("test_") and callable(value) and name not in left_out:
            short = module.__name__.rpartition(".")[2].removeprefix("test_")
            namespace[f"test_{short}_{name.removeprefix('test_')}"] = value
    unknown = left_out - vars(module).keys()
    assert not unknown, f"{module.__name__} has no {unknown}"


def exchanging(classes: Mapping[ModuleType, tuple[str, Callable[[Any], Any]]]) -> Any:
    """A fixture for all tests: in each module the class of this name is an asyncio class."""

    @pytest.fixture(autouse=True)
    def exchange(monkeypatch: pytest.MonkeyPatch) -> None:
        for module, (name, made) in classes.items():
            monkeypatch.setattr(module, name, lambda config, made=made: Blocking(made(config)))

    return exchange
