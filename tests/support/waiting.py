"""Waiting for an event, with a limit that a busy machine does not reach."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

WAIT_S = 60.0

_T = TypeVar("_T")


def wait_until(
    condition: Callable[[], _T], what: str = "", seconds: float = WAIT_S, poll_s: float = 0.05
) -> _T:
    """What `condition` gives once it is true; AssertionError after `seconds`."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, f"{what or 'it'}: not within {seconds:g} s"
        time.sleep(poll_s)
    return found
