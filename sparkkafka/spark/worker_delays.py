"""Removes three delays that Spark's Python processes add to small tasks: two waits and a clean-up.

They come from how Spark runs Python (4.0 to 4.3), and are gone by means that change nothing else;
docs/performance-writes.md has the figures.

- Over TCP, Java sends a task's rows only after Python's system has acknowledged the message before
  them, and systems put that off by up to 40 ms, as long as nothing is sent back.
- The other way round, Python's system keeps the end of what is written until Java's has
  acknowledged what went before (Nagle's algorithm).
- After each task, Spark's process looks through all objects that it has (`gc.collect`), nearly all
  of which are modules: 10 ms of a core, and 75 to 120 ms while others need it too.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import stat
import sys
from types import FrameType
from typing import Any

_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # Linux has it

_FIRST_DESCRIPTORS = 32
"""Where a process looks for its socket to Java, which it opens first thing."""

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
    hurry(socket_of_spark())
    spare_collections()


def hurry(descriptor: int | None) -> None:
    """Acknowledge at once what has been received, and send at once what is written."""
    if descriptor is None:
        return
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as sock:
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            if _QUICKACK is not None:
                sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def spare_collections() -> None:
    """Leave what is here now out of later collections. Cheap: nothing is looked at."""
    global _freezes
    if _freezes < MOST_FREEZES:
        _freezes += 1
        gc.freeze()


def socket_of_spark() -> int | None:
    """The descriptor of the socket to Java, which pyspark hands to nobody."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "worker":  # forked by pyspark's daemon
            found = frame.f_locals.get("sock")
            if isinstance(found, socket.socket):
                return found.fileno()
        frame = frame.f_back
    # Or started for itself: it has connected to this port.
    port = os.environ.get("PYTHON_WORKER_FACTORY_PORT")
    if port is None:
        return None
    return next(filter(lambda fd: _leads_to(fd, port), range(3, _FIRST_DESCRIPTORS)), None)


def _leads_to(descriptor: int, port: str) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        with socket.socket(fileno=os.dup(descriptor)) as sock:
            peer = sock.getpeername()
    except OSError:
        return False
    return isinstance(peer, tuple) and str(peer[1]) == port
