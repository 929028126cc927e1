"""Cancels a coroutine at its n-th step, as a task's `cancel` does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

import pytest

begun_or_not = pytest.mark.parametrize("turns", [0, 5])
"""The `turns` of CancelledAt: a call behind another has not begun, or it has."""


class CancelledAt:
    """Await it to run a coroutine, which is cancelled where it waits for the n-th time (from 0).

    The loop has `turns` turns before that. `is_complete` is whether it ended without.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, None], step: int, turns: int) -> None:
        self._coroutine = coroutine
        self._step = step
        self._turns = turns
        self.is_complete = False

    def _cancel(self, future: asyncio.Future[Any], turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._cancel, future, turns - 1)
        else:
            future.cancel()

    def __await__(self) -> Generator[Any, Any, None]:
        error: BaseException | None = None
        for step in range(1 << 30):
            try:
                if error is not None:
                    waited_for = self._coroutine.throw(error)
                else:
                    waited_for = self._coroutine.send(None)
            except StopIteration:
                self.is_complete = step <= self._step
                return
            except asyncio.CancelledError:
                assert step > self._step, "cancelled by someone else"
                return
            error = None
            if step == self._step:
                if waited_for is None:  # sleep(0)
                    error = asyncio.CancelledError()
                    continue
                self._cancel(waited_for, self._turns)
            try:
                yield waited_for
            except asyncio.CancelledError as cancelled:
                error = cancelled
