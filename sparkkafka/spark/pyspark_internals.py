"""Speed-ups that depend on pyspark's internals, and the one switch that turns them off.

Each of them depends on something that no API of Spark promises (it is so in Spark 4.0 to 4.3). None
of them changes which rows are read or written:

- A stream reader hands Spark the rows of a small micro-batch together with its plan, which Spark
  accepts only from its own wrapper of simple stream readers. Without: a Python task reads them.
- Java sends a task's rows over TCP only after Python's side has acknowledged the message before
  them, and systems delay an acknowledgement by up to 40 ms while nothing is sent back. In the other
  direction, Python's side holds back the end of what is written until Java's has acknowledged the
  rest (Nagle's algorithm). Two options of pyspark's socket end both waits; pyspark does not expose
  that socket, so it is searched for.
- After each task, pyspark's worker runs `gc.collect`, which visits all objects of the process,
  nearly all of them loaded modules: 10 ms of a core, and 75 to 120 ms while other work needs it. A
  new process spends 50 ms on collections while it imports the modules that plan.

`SPARKKAFKA_PYSPARK_INTERNALS=false` turns all of them off. The variable is read where Spark creates
a reader or writer, in a Python process of the driver, and the value is pickled to tasks. The docs'
page Supported versions says what each saves.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import stat
import sys
from collections.abc import Iterator
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, Any

from sparkkafka.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

VARIABLE = "SPARKKAFKA_PYSPARK_INTERNALS"

_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # Linux has it

MAX_FREEZES = 3
"""Frozen objects are never collected, even if they become a cycle of garbage later. So only the
first tasks freeze, which are those that load modules."""

_freeze_count = 0


def internals_enabled() -> bool:
    """Return whether the environment allows the use of pyspark's internals. Raises OptionError."""
    text = os.environ.get(VARIABLE, "true")
    enabled = {"true": True, "false": False}.get(text.strip().lower())
    if enabled is None:
        raise OptionError(
            f"the environment variable {VARIABLE} is {text!r}: set it to true (the default) or "
            "false, or remove it"
        )
    if not enabled:
        log.info("%s=false: speed-ups that depend on pyspark's internals are off", VARIABLE)
    return enabled


class PickledToTasks:
    """Base of readers and writers: Spark unpickles them at the start of each task.

    Raises OptionError if the switch has another value than true or false.
    """

    def __init__(self) -> None:
        self.uses_internals = internals_enabled()
        if self.uses_internals:
            # Planning imports modules, during which the collector would visit those of pyspark.
            freeze_loaded_objects()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.uses_internals:
            begin_task()


class RowsWithPlan:
    """Base of a stream reader that can hand Spark the rows of a micro-batch with its plan.

    Spark calls `partitions`, and then `getCache` if the reader is an instance of its wrapper. The
    reader reports that class only in between, while `rows_with_plan` is set: Spark calls other
    methods of such a wrapper in another way.
    """

    rows_with_plan: list[pa.RecordBatch] | None = None

    @property  # type: ignore[misc]  # an object's class can be set, this cannot
    def __class__(self) -> type:
        wrapper = None if self.rows_with_plan is None else simple_reader_wrapper()
        return wrapper or type(self)

    def getCache(self, start: object, end: object) -> Iterator[pa.RecordBatch] | None:
        """Return the rows of the micro-batch that was just planned; None if there are none, or if
        they were returned before."""
        rows, self.rows_with_plan = self.rows_with_plan, None
        return None if rows is None else iter(rows)


@cache
def simple_reader_wrapper() -> type | None:
    """Return the class whose instances Spark asks for rows with the plan, or None if this pyspark
    has none by that name."""
    try:
        from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
    except ImportError:
        return None
    wrapper: type = _SimpleStreamReaderWrapper
    return wrapper


def accepts_rows_with_plan(*, has_metadata: bool) -> bool:
    """Return whether Spark takes the rows of a micro-batch with its plan.

    Spark compares their schema with the query's, metadata of fields included (`has_metadata`); a
    pyspark that does not read metadata from Arrow fails that comparison.
    """
    if simple_reader_wrapper() is None:  # Spark asks no other reader for rows with the plan
        return False
    if not has_metadata:
        return True
    from pyspark.sql.pandas import types

    return hasattr(types, "metadata_key")


def begin_task() -> None:
    """Set up the speed-ups of a task. To be called before the task's rows arrive."""
    disable_socket_delays(find_spark_socket())
    freeze_loaded_objects()


def disable_socket_delays(descriptor: int | None) -> None:
    """Make TCP acknowledge immediately what was received and send immediately what is written."""
    if descriptor is None:
        return
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as sock:
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            if _QUICKACK is not None:
                sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def freeze_loaded_objects() -> None:
    """Exclude all objects of this process from later collections, without visiting them, so that
    pyspark's `gc.collect` after a task or a plan is short (see the top)."""
    global _freeze_count
    if _freeze_count < MAX_FREEZES:
        _freeze_count += 1
        gc.freeze()


def find_spark_socket() -> int | None:
    """Return the descriptor of pyspark's socket to Java, or None if this process has none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "worker":  # forked by pyspark's daemon
            sock = frame.f_locals.get("sock")
            if isinstance(sock, socket.socket):
                return sock.fileno()
        frame = frame.f_back
    # A process that was not forked by the daemon has connected to this port.
    port = os.environ.get("PYTHON_WORKER_FACTORY_PORT")
    if port is None:
        return None
    for descriptor in range(3, 32):  # the socket is opened early
        if _is_connected_to(descriptor, port):
            return descriptor
    return None


def _is_connected_to(descriptor: int, port: str) -> bool:
    """Return whether the descriptor is a socket that is connected to this port."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        with socket.socket(fileno=os.dup(descriptor)) as sock:
            peer = sock.getpeername()
    except OSError:
        return False
    return isinstance(peer, tuple) and str(peer[1]) == port
