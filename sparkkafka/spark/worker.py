"""Removes two delays that Spark's Python processes add to small tasks: a wait and a clean-up.

Both come from how Spark runs Python (4.0 to 4.3), and both are gone by means that change nothing
else; docs/performance-sink.md has the figures.

- Over TCP, Java sends a task's rows only after Python's system has acknowledged the message before
  them, and systems put that off by up to 40 ms, as long as nothing is sent back.
- After each task, Spark's process looks through all objects that it has (`gc.collect`), nearly all
  of which are modules: 10 ms of a core, and 75 to 120 ms while others need it too.
"""

from __future__ import annotations

import contextlib
import gc
import socket
import sys
from types import FrameType
from typing import Any

_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # Linux has it

MOST_FREEZES = 3
"""What is frozen is left out by later collections, for good if it becomes a cycle of garbage. So it
is done at the first tasks only, which load the modules."""

_freezes = 0


class PickledToTasks:
    """A reader or writer: Spark unpickles it first thing in each of its tasks."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        begin_task()


def begin_task() -> None:
    """Call it early: the rows of the task are not here yet."""
    acknowledge(_socket_of_spark())
    spare_collections()


def acknowledge(sock: socket.socket | None) -> None:
    """Acknowledge at once what has been received."""
    if sock is None or _QUICKACK is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):  # it is only quicker with it
        sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)


def spare_collections() -> None:
    """Leave what is here now out of later collections. Cheap: nothing is looked at."""
    global _freezes
    if _freezes < MOST_FREEZES:
        _freezes += 1
        gc.freeze()


def _socket_of_spark() -> socket.socket | None:
    """That of the process's task, if it is a worker that pyspark's daemon has forked: Spark hands
    it to nobody."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "worker":
            found = frame.f_locals.get("sock")
            if isinstance(found, socket.socket):
                return found
        frame = frame.f_back
    return None
