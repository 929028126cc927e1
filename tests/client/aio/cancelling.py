"""Cancels a coroutine at its n-th step, as a task's `cancel` does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


class CancelledAt:
    """Await it to run a coroutine, which is cancelled where it waits for the n-th time (from 0).

    `is_complete` is whether it ended before that.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, None], step: int) -> None:
        self._coroutine = coroutine
        self._step = step
        self.is_complete = False

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
                waited_for.cancel()
            try:
                yield waited_for
            except asyncio.CancelledError as cancelled:
                error = cancelled
