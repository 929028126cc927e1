"""Tests of the threads' clients over the asyncio classes: the same functions, other classes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType
from typing import Any

import pytest

from tests.client.aio.blocking import Blocking


def add_tests(
    namespace: dict[str, Any], module: ModuleType, left_out: set[str], short: set[str]
) -> None:
    """Add the fixtures and the tests of a module to another one, but for some tests. `short`: those
    of each run, which call each method; the others show the same code again, and are for soaks."""
    for name, value in vars(module).items():
        if type(value).__name__ == "FixtureFunctionDefinition":
            namespace[name] = value
        elif name.startswith("test_") and callable(value) and name not in left_out:
            kind = module.__name__.rpartition(".")[2].removeprefix("test_")
            added = value if name in short else pytest.mark.soak(copied(value))
            namespace[f"test_{kind}_{name.removeprefix('test_')}"] = added
    unknown = (left_out | short) - vars(module).keys()
    assert not unknown, f"{module.__name__} has no {unknown}"


def copied(test: Any) -> Any:
    """A function of its own, whose marks are not those of the other."""
    found = FunctionType(test.__code__, test.__globals__, closure=test.__closure__)
    functools.update_wrapper(found, test)
    del found.__wrapped__  # type: ignore[attr-defined]
    return found


def exchanging(classes: Mapping[ModuleType, tuple[str, Callable[[Any], Any]]]) -> Any:
    """A fixture for all tests: in each module the class of this name is an asyncio class."""

    @pytest.fixture(autouse=True)
    def exchange(monkeypatch: pytest.MonkeyPatch) -> None:
        for module, (name, made) in classes.items():
            monkeypatch.setattr(module, name, lambda config, made=made: Blocking(made(config)))

    return exchange
