"""Progress of streaming queries: the offsets that Spark reports, lag, and its live display.

Spark reports the offsets of each source as JSON; those of Kafka sources are {"topic": {"0": 23}}.
In PySpark 4.0 and 4.1 a query's own `lastProgress` has the text of a Python dictionary instead.
"""

from __future__ import annotations

import ast
import json
import math
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from html import escape
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, TypeGuard

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.offsets import OffsetLookup
from sparkkafka.client.deadline import Deadline, deadline_of, seconds_of
from sparkkafka.client.values import Offsets
from sparkkafka.config.options import parse_group_options
from sparkkafka.config.source import offsets_of_tree
from sparkkafka.errors import KafkaError, OptionError, printable
from sparkkafka.protocol.constants import LATEST
from sparkkafka.spark.delegation_tokens import with_token

# Spark 4.0 and 4.1 report the end of the batch as latestOffset of a Python source.
_LATEST_IS_REPORTED = find_spec("pyspark.sql.streaming.datasource") is not None


class KafkaSourceProgress(NamedTuple):
    """The part of a progress report for one Kafka source.

    `end` is the end of the batch, `latest` the ends of the logs (None if they are not reported),
    `start` the start of the batch (None for a query's first one), `rows` the number of its rows.
    """

    end: Offsets
    latest: Offsets | None
    start: Offsets | None
    rows: int


def lag(
    query: StreamingQuery | StreamingQueryProgress | Mapping[str, Any] | str | None,
    options: Mapping[str, Any] | None = None,
    *,
    timeout_s: float | None = None,
) -> Offsets:
    """Return how many offsets the query's last micro-batch left unread, by partition.

    `query` is a streaming query, one of its progress reports, or such a report as a dictionary or
    as JSON. If several Kafka sources read a partition, it counts once, with its largest lag. Empty
    before the first batch.

    Without `options` the lag is measured against the ends of the logs before the batch. Spark 4.2
    and later reports them, except for a batch repeated after a restart; if they are not reported,
    this raises OptionError. With the query's `options` (`kafka.bootstrap.servers`, …) the ends are
    looked up now, for at most `timeout_s` (by default kafka.default.api.timeout.ms), and errors of
    that lookup are raised.

    Other sources than Kafka's do not count. Raises OptionError, too, if a source may be Kafka's and
    its offsets cannot be read.
    """
    sources = kafka_sources(query)
    if options is not None:
        latest = _look_up_ends(options, sources, deadline_of(timeout_s))
        sources = [source._replace(latest=latest) for source in sources]
    lags = _lags(sources)
    if lags is None:
        why = (
            "its last batch is one that was repeated after a restart"
            if _LATEST_IS_REPORTED
            else "Spark 4.2 and later does"
        )
        raise OptionError(
            f"the progress of this query does not say where the logs end ({why}); pass the "
            "query's options to look that up: lag(query, options)"
        )
    return lags


def reported_lag(progress: Any) -> Offsets | None:
    """Return `lag` without options; None if the report does not say where the logs end."""
    return _lags(kafka_sources(progress))


def _lags(sources: Iterable[KafkaSourceProgress]) -> Offsets | None:
    """Return the lag by partition, the largest one of several sources; None if the ends of the logs
    of one are not known."""
    lags: Offsets = {}
    for source in sources:
        if source.latest is None:
            return None
        for tp, offset in source.end.items():
            if tp in source.latest:
                lags[tp] = max(lags.get(tp, 0), source.latest[tp] - offset)
    return dict(sorted(lags.items()))


def end_offsets(progress: Any) -> Offsets:
    """Return the end offsets of the reported batch, of all Kafka sources of the query.

    If two sources read a partition, the smaller offset counts. Raises OptionError if the offsets of
    a source that may be Kafka's cannot be read.
    """
    ends: Offsets = {}
    for source in kafka_sources(progress):
        for tp, offset in source.end.items():
            ends[tp] = min(offset, ends.get(tp, offset))
    return ends


def kafka_sources(query: Any) -> list[KafkaSourceProgress]:
    """Return the progress of each Kafka source of a query or a report. Raises OptionError as
    `lag`."""
    progress = parse_progress(getattr(query, "lastProgress", query))
    if progress is None:
        return []
    sources = []
    for source in field_of(progress, "sources") or ():
        description = str(field_of(source, "description"))
        end = _kafka_offsets(field_of(source, "endOffset"), description)
        if end is not None:
            latest = None
            if _LATEST_IS_REPORTED:  # from Spark 4.2 on
                latest = _kafka_offsets(field_of(source, "latestOffset"), description)
            start = _kafka_offsets(field_of(source, "startOffset"), description)
            rows = field_of(source, "numInputRows")
            sources.append(KafkaSourceProgress(end, latest, start, int(rows or 0)))
    return sources


def parse_progress(progress: Any) -> Any:
    """Return a progress report, parsed if it is JSON. Raises OptionError."""
    try:
        report = json.loads(progress) if isinstance(progress, str) else progress
    except ValueError:
        report = ()
    if report is not None and field_of(report, "sources") is None:
        raise OptionError(
            "this takes a query, a report of its progress, or that as JSON, not "
            f"{repr(progress)[:100]}"
        )
    return report


def field_of(holder: Any, name: str) -> Any:
    """Return a field of a report, which is an attribute or a key; None if it is missing."""
    # The attribute first: over Connect a report is a dictionary with attributes, and numInputRows
    # is only an attribute.
    value = getattr(holder, name, None)
    return holder.get(name) if value is None and isinstance(holder, Mapping) else value


def _kafka_offsets(value: Any, description: str) -> Offsets | None:
    """Return the offsets of a Kafka source; None if the value is not such offsets."""
    try:
        tree = _parse_json_or_python(value) if isinstance(value, str) else value
    except ValueError:
        # The description has Spark's class, which is the same for all Python sources: this may be
        # a Kafka source, or another one.
        if "PythonMicroBatchStream" in description or "KafkaV2[" in description:
            raise OptionError(
                f"the progress of this query reports offsets of the source {description} that "
                f"cannot be read: {value[:200]!r} is neither JSON nor a dictionary of Python's"
            ) from None
        return None
    if not isinstance(tree, Mapping):
        return None
    try:
        return offsets_of_tree(tree)
    except OptionError:  # another source's
        return None


def _parse_json_or_python(text: str) -> Any:
    """Parse JSON, or the text of a Python value, which some versions of PySpark have in its place.
    Raises ValueError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _look_up_ends(
    options: Mapping[str, Any], sources: Iterable[KafkaSourceProgress], deadline: Deadline | None
) -> Offsets:
    """Return the present ends of the logs that the sources read."""
    parsed = parse_group_options(with_token(options))
    with Cluster(parsed.client) as cluster:
        ends = {tp: LATEST for source in sources for tp in source.end}
        return OffsetLookup(cluster, parsed.isolation_level).offsets(ends, deadline)


# --- a live display ------------------------------------------------------------------------------

_MIN_INTERVAL_S = 0.1


def progress(
    query: StreamingQuery,
    options: Mapping[str, Any] | None = None,
    *,
    timeout_s: float = 60.0,
    interval_s: float = 1.0,
) -> None:
    """Show the query's batch, rows per second, and lag while it runs.

    A notebook gets one output that changes in place: a line, and curves of the rows per second and
    of the lag, from the first report that Spark still keeps. A terminal shows one line that is
    rewritten; a pipe gets a line for each batch. It ends with the query or after `timeout_s`.
    Interrupt (Ctrl-C) ends it too, and leaves the query running. A failed query's error is raised,
    as `awaitTermination` does.

    The display is renewed every `interval_s`. The lag is that of `sparkkafka.lag`; with the query's
    `options` (`kafka.bootstrap.servers`, …) the ends of the logs are looked up each time.
    """
    deadline = Deadline(seconds_of(timeout_s) * 1000)
    interval_s = max(seconds_of(interval_s, "interval_s"), _MIN_INTERVAL_S)
    if not hasattr(type(query), "lastProgress") or not hasattr(type(query), "isActive"):
        raise OptionError(f"progress() takes a streaming query, not {type(query).__name__}")
    if options is not None:
        parse_group_options(options)  # a bad option is an error, not an unknown lag
    output = _choose_output(query)
    status: _StatusLine | None = None
    try:
        with _python_sigint_handler():
            while True:
                # In this order, so that the report of a query that has ended is its last one.
                active = query.isActive
                report = query.lastProgress
                status = _status_line(
                    query, report, options, min(interval_s, deadline.remaining_s())
                )
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
            output.show(status._replace(state="interrupted: the query is still running"), last=True)


class _StatusLine(NamedTuple):
    """A line about a query: its name, `parts` with the numbers of batch `batch`, and its state.
    `rate` and `lag` are points of curves, None if they are not known."""

    name: str
    batch: int | None
    parts: tuple[str, ...]
    state: str
    rate: Point | None = None
    lag: Point | None = None

    def text(self) -> str:
        """Return the line as plain text."""
        return "  ".join([self.name, *self.parts, self.state])

    def html(self) -> str:
        """Return HTML with bold numbers."""
        parts = [re.sub(r"\d[\d,.]*", r"<b>\g<0></b>", escape(part)) for part in self.parts]
        name, state = escape(self.name), f"<i>{escape(self.state)}</i>"
        return " &emsp; ".join([name, *parts, state])


def _status_line(
    query: StreamingQuery, report: Any, options: Mapping[str, Any] | None, timeout_s: float
) -> _StatusLine:
    """Return the line about a query and its last report, None if there is none. `options` and
    `timeout_s` are for the lookup of the lag."""
    name = query.name or str(query.id)[:8]
    # "Getting offsets from …": Spark's class is the same for all Python sources.
    message = str((query.status or {}).get("message", ""))
    state = re.sub(r" from org\.apache\.spark\.\S+", "", message)
    state = state if len(state) <= 60 else f"{state[:57]}..."
    if report is None:
        return _StatusLine(name, None, ("no batch has finished yet",), state)
    batch = field_of(report, "batchId")
    rows, took_ms = field_of(report, "numInputRows"), field_of(report, "batchDuration")
    took = "" if took_ms is None else f" in {took_ms / 1000:.1f} s"
    parts = [f"batch {batch}", f"{rows or 0:,} rows{took}"]
    rate = field_of(report, "processedRowsPerSecond")
    if _is_number(rate):
        parts.append(f"{rate:,.0f} rows/s")
    lag_now = _lag_sum(report, options, timeout_s)
    parts.append("lag ?" if lag_now is None else f"lag {lag_now:,}")
    # Ends that were looked up are those of now, not those of the report.
    lag_time = _start_time(report) if options is None else datetime.now(UTC)
    return _StatusLine(
        name, batch, tuple(parts), state, _rate_point(report), _point(lag_time, lag_now)
    )


def _lag_sum(report: Any, options: Mapping[str, Any] | None, timeout_s: float) -> int | None:
    """Return how many offsets all sources of the reported batch have not read yet; None if that is
    unknown. With `options`, the present ends of the logs are looked up, for at most `timeout_s`."""
    try:
        lags: Offsets | None
        if options is None:
            lags = reported_lag(report)
        else:
            lags = lag(report, options, timeout_s=max(timeout_s, _MIN_INTERVAL_S))
    except KafkaError:  # if the error lasts, the query fails with it
        lags = None
    return None if lags is None else sum(lags.values())


def _rate_point(report: Any) -> Point | None:
    """Return the rows/s of the reported batch as a point of the curve; None if the report has no
    such number."""
    return _point(_start_time(report), field_of(report, "processedRowsPerSecond"))


def _point(time: datetime | None, value: float | None) -> Point | None:
    """Return a point of a curve; None without a time or a finite number."""
    return Point(time, value) if time is not None and _is_number(value) else None


def _is_number(value: float | None) -> TypeGuard[float]:
    """Return whether this is a finite number."""
    return value is not None and math.isfinite(value)


def _start_time(report: Any) -> datetime | None:
    """Return when the reported batch started."""
    timestamp = field_of(report, "timestamp")
    return datetime.fromisoformat(timestamp) if timestamp else None


@contextmanager
def _python_sigint_handler() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt in this block: Spark's own handler cancels all jobs, which
    fails the query."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if before in (signal.SIG_IGN, None):  # None: the handler was not installed by Python
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _LinePerBatch:
    """Writes one line for each batch, and a last one, to a pipe or a file."""

    def __init__(self) -> None:
        self._batch: int | None = -1

    def show(self, status: _StatusLine, *, last: bool = False) -> None:
        """Write the line if its batch is new, or if it is the last line."""
        if last or status.batch != self._batch:
            self._batch = status.batch
            sys.stdout.write(f"{status.text()}\n")
            sys.stdout.flush()


class _TerminalLine:
    """Rewrites one line, cut to the width of the terminal."""

    def show(self, status: _StatusLine, *, last: bool = False) -> None:
        """Write the line over the one before; the last line ends with a newline."""
        width = shutil.get_terminal_size().columns - 1
        line = printable(status.text(), "?")
        line = line if len(line) <= width else f"{line[: max(0, width - 3)]}..."
        sys.stdout.write(f"\r{line}\x1b[K" + "\n" * last)
        sys.stdout.flush()


class _NotebookOutput:
    """Shows the line and curves in a notebook, in one output that changes in place. The curves
    begin with `reports`."""

    def __init__(self, reports: Iterable[Any]) -> None:
        self._handle: Any = None
        self._rates = Curve("rows/s", "#1f9d8b")
        self._lags = Curve("lag (offsets)", "#d9622b")
        for report in reports:
            self._rates.add(_rate_point(report))
            self._lags.add(_point(_start_time(report), _lag_sum(report, None, 0)))

    def show(self, status: _StatusLine, *, last: bool = False) -> None:
        """Show the line, and the curves with its rate and lag added, in place of those before."""
        from IPython.display import display

        self._rates.add(status.rate)
        self._lags.add(status.lag)
        html = f"<div>{status.html()}</div>{chart_html((self._rates, self._lags))}"
        data = {"text/plain": status.text(), "text/html": html}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(data, raw=True)


def _choose_output(query: StreamingQuery) -> _LinePerBatch | _TerminalLine | _NotebookOutput:
    """Return the output for a notebook, a terminal, or anything else."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is not None:
        return _NotebookOutput(query.recentProgress)
    return _TerminalLine() if sys.stdout.isatty() else _LinePerBatch()


# --- the curves of a notebook ------------------------------------------------------------

MAX_POINTS: Final = 240
"""The points of a curve. A curve that has more keeps every second one."""

_WIDTH, _HEIGHT = 1000, 100
_GRID = (
    "display:grid;grid-template-columns:auto 1fr;gap:0.2em 0.6em;align-content:start;"
    "flex:1 1 16em;min-width:0"
)
_ENDS = "display:flex;justify-content:space-between"


class Point(NamedTuple):
    """One value of a curve, and when it was measured."""

    time: datetime
    value: float


class Curve:
    """A value over time, which is drawn in `colour` below `title`."""

    def __init__(self, title: str, colour: str) -> None:
        self.points: list[Point] = []
        self._title = title
        self._colour = colour

    def add(self, point: Point | None) -> None:
        """Add a point, unless it is None or not later than the last one."""
        if point is None or (self.points and point.time <= self.points[-1].time):
            return
        self.points.append(point)
        if len(self.points) > MAX_POINTS:
            self.points = self.points[::-2][::-1]  # with the last one

    def html(self, start: datetime, end: datetime) -> str:
        """Return HTML in which the curve is drawn; its axis of time reaches from `start` to
        `end`."""
        top = _round_up(max(point.value for point in self.points))
        seconds = max((end - start).total_seconds(), 1e-3)
        corners = [
            (
                f"{_WIDTH * (point.time - start).total_seconds() / seconds:.0f}",
                f"{_HEIGHT * (1 - point.value / top):.1f}",
            )
            for point in self.points
        ]
        if len(corners) == 1:  # a line as wide as the chart, since a point would not be visible
            corners = [("0", corners[0][1]), (f"{_WIDTH}", corners[0][1])]
        line = " ".join(f"{x},{y}" for x, y in corners)
        area = f"{corners[0][0]},{_HEIGHT} {line} {corners[-1][0]},{_HEIGHT}"
        first, last = (_clock(time, end - start) for time in (start, end))
        return (
            f'<div style="{_GRID}">'
            f'<b style="grid-column:1/-1">{self._title}</b>'
            f'<span style="{_ENDS};flex-direction:column;text-align:right">'
            f"<span>{top:,.0f}</span><span>0</span></span>"
            f'<svg role="img" aria-label="{self._title} from {first} to {last}" '
            f'viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" '
            'style="width:100%;height:7em;border:solid currentColor;border-width:0 0 1px 1px;'
            f'overflow:visible"><polygon points="{area}" fill="{self._colour}" '
            f'fill-opacity="0.2"/><polyline points="{line}" fill="none" stroke="{self._colour}" '
            'stroke-width="2" stroke-linejoin="round" vector-effect="non-scaling-stroke"/></svg>'
            f'<span style="grid-column:2;{_ENDS}"><span>{first}</span><span>{last} UTC</span>'
            "</span></div>"
        )


def chart_html(curves: Iterable[Curve]) -> str:
    """Return HTML with the curves that have points, on one time axis, and side by side where that
    is wide enough; "" if none has a point."""
    drawn = [curve for curve in curves if curve.points]
    if not drawn:
        return ""
    start = min(curve.points[0].time for curve in drawn)
    end = max(curve.points[-1].time for curve in drawn)
    html = "".join(curve.html(start, end) for curve in drawn)
    style = "display:flex;flex-wrap:wrap;gap:1em 2em;max-width:60em;margin-top:0.6em"
    return f'<div style="{style}">{html}</div>'


def _round_up(value: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20, … that is not smaller than a value."""
    power = 10.0 ** math.floor(math.log10(max(value, 1)))
    return next(factor * power for factor in (1, 2, 5, 10) if value <= factor * power)


def _clock(time: datetime, span: timedelta) -> str:
    """Return a time of day, with the date if the chart is longer than a day."""
    return f"{time.astimezone(UTC):{'%H:%M:%S' if span < timedelta(days=1) else '%Y-%m-%d %H:%M'}}"
