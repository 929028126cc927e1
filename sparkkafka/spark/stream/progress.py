"""A live line about a streaming query: rows, speed, lag.

In a notebook one output that changes in place, on a terminal one line that is written anew, in a
pipe a line for each batch.
"""

from __future__ import annotations

import html
import math
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from sparkkafka.client.deadline import Deadline, seconds_of
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import parse_group_options
from sparkkafka.errors import KafkaError, OptionError
from sparkkafka.spark.stream.lag_and_commits import field_of, lag, reported_lag

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_MAX_STATE = 60  # characters: Spark's text of a state can fill a page
_MIN_INTERVAL_S = 0.1
_SPARK_CLASS = re.compile(r" from org\.apache\.spark\.\S+")
"""In "Getting offsets from …": the class is the same for all Python sources."""


def progress(
    query: StreamingQuery,
    options: Mapping[str, Any] | None = None,
    *,
    timeout_s: float = 60.0,
    interval_s: float = 1.0,
) -> None:
    """Show a line about the query that stays up to date: its batch, rows a second, and lag.

    It ends with the query or after `timeout_s`. Interrupt (Ctrl-C) ends it too, and leaves the
    query running. A failed query's error is raised, as `awaitTermination` does.

    The line is renewed every `interval_s`. The lag is that of `sparkkafka.lag`; with the query's
    `options` (`kafka.bootstrap.servers`, …) the brokers are asked each time.
    """
    deadline = Deadline(seconds_of(timeout_s) * 1000)
    interval_s = max(seconds_of(interval_s, "interval_s"), _MIN_INTERVAL_S)
    if not hasattr(type(query), "lastProgress") or not hasattr(type(query), "isActive"):
        raise OptionError(f"progress() takes a streaming query, not {type(query).__name__}")
    if options is not None:
        parse_group_options(options)  # a bad option is an error, not an unknown lag
    output = _output()
    status: _Status | None = None
    try:
        with _interrupt_is_ours():
            while True:
                # In this order: the last report of a query that is over is its last one.
                active = query.isActive
                report = query.lastProgress
                status = _status_of(query, report, options, min(interval_s, deadline.remaining_s()))
                if not active or deadline.expired:
                    break
                output.show(status)
                deadline.pause(interval_s * 1000)
        error = None if active else query.exception()
        state = status.state if active else ("ended" if error is None else "failed")
        output.show(status._replace(state=state), last=True)
        if error is not None:
            raise error
    except KeyboardInterrupt:
        if status is not None:
            output.show(status._replace(state="interrupted: it runs on"), last=True)


# --- the line -----------------------------------------------------------------------------------


class _Status(NamedTuple):
    name: str
    batch: int | None
    parts: tuple[str, ...]
    state: str

    def text(self) -> str:
        return "  ".join([self.name, *self.parts, self.state])

    def markup(self) -> str:
        """Return HTML with bold numbers."""
        parts = [re.sub(r"\d[\d,.]*", r"<b>\g<0></b>", html.escape(part)) for part in self.parts]
        name, state = html.escape(self.name), f"<i>{html.escape(self.state)}</i>"
        return " &emsp; ".join([name, *parts, state])


def _status_of(
    query: StreamingQuery, report: Any, options: Mapping[str, Any] | None, timeout_s: float
) -> _Status:
    name = query.name or str(query.id)[:8]
    state = _SPARK_CLASS.sub("", str((query.status or {}).get("message", "")))
    state = state if len(state) <= _MAX_STATE else f"{state[: _MAX_STATE - 3]}..."
    if report is None:
        return _Status(name, None, ("no batch is over yet",), state)
    batch = field_of(report, "batchId")
    rows, took_ms = field_of(report, "numInputRows"), field_of(report, "batchDuration")
    rows_per_s = field_of(report, "processedRowsPerSecond")
    took = "" if took_ms is None else f" in {took_ms / 1000:.1f} s"
    parts = [f"batch {batch}", f"{rows or 0:,} rows{took}"]
    if rows_per_s is not None and math.isfinite(rows_per_s):
        parts.append(f"{rows_per_s:,.0f} rows/s")
    return _Status(name, batch, (*parts, _lag_of(report, options, timeout_s)), state)


def _lag_of(report: Any, options: Mapping[str, Any] | None, timeout_s: float) -> str:
    """Return the lag in offsets, "?" if it is unknown."""
    try:
        found: Mapping[TopicPartition, int] | None
        if options is None:
            found = reported_lag(report)
        else:
            found = lag(report, options, timeout_s=max(timeout_s, _MIN_INTERVAL_S))
    except KafkaError:  # the query fails by itself if the error lasts
        found = None
    return "lag ?" if found is None else f"lag {sum(found.values()):,}"


@contextmanager
def _interrupt_is_ours() -> Iterator[None]:
    """Spark's own handler of SIGINT cancels all jobs, which would fail the query."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if before in (signal.SIG_IGN, None):  # None: it is not Python's
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# --- outputs ------------------------------------------------------------------------------------


class _Lines:
    """A pipe or a file: one line for each batch, and a last one."""

    def __init__(self) -> None:
        self._batch: int | None = -1

    def show(self, status: _Status, *, last: bool = False) -> None:
        if last or status.batch != self._batch:
            self._batch = status.batch
            sys.stdout.write(f"{status.text()}\n")
            sys.stdout.flush()


class _Terminal:
    """Rewrites one line, cut to the width of the terminal."""

    def show(self, status: _Status, *, last: bool = False) -> None:
        width = shutil.get_terminal_size().columns - 1
        line = "".join(char if char.isprintable() else "?" for char in status.text())
        line = line if len(line) <= width else f"{line[: max(0, width - 3)]}..."
        sys.stdout.write(f"\r{line}\x1b[K" + "\n" * last)
        sys.stdout.flush()


class _Cell:
    """A notebook's output, changed in place."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, status: _Status, *, last: bool = False) -> None:
        from IPython.display import display

        data = {"text/plain": status.text(), "text/html": status.markup()}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(data, raw=True)


def _output() -> _Lines | _Terminal | _Cell:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is not None:
        return _Cell()
    return _Terminal() if sys.stdout.isatty() else _Lines()
