"""Lag and throughput of a streaming query over time, from the progress reports that Spark keeps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import OptionError
from sparkkafka.plot import canvas
from sparkkafka.spark.registration import needs_pyspark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql.streaming.query import StreamingQuery


def lag(
    query: StreamingQuery | Iterable[Any], *, by: str = "topic", ax: Axes | None = None
) -> Axes:
    """Draw the unread offsets after each micro-batch, by topic, or with by="partition" by
    partition.

    `query` is a streaming query, or progress reports, for example those of two runs:
    `[*first.recentProgress, *second.recentProgress]`. Spark keeps the last 100 reports of a query
    (spark.sql.streaming.numRecentProgressUpdates). The lag is that of `sparkkafka.lag`. A batch
    that was repeated after a restart does not report it, and is a gap. The five lines with the
    largest lags have a name, the others are grey.

    Raises OptionError if there is no report yet, or none with a lag (Spark 4.2 and later report
    it), ImportError without matplotlib.
    """
    if by not in ("topic", "partition"):
        raise OptionError(f"by is 'topic' or 'partition', got {by!r}")
    canvas.needs_matplotlib("lag")
    with needs_pyspark("sparkkafka.plot.lag"):
        from sparkkafka.spark.stream.progress import reported_lag
    reports = _reports(query)
    lags = [reported_lag(report) for report in reports]
    if all(row is None for row in lags):
        raise OptionError(
            f"none of {len(reports)} reports of progress says where the logs end: Spark 4.2 and "
            "later does, except for a batch repeated after a restart. sparkkafka.lag(query, "
            "options) asks the brokers for the lag of now"
        )
    partitions = sorted({tp for row in lags for tp in row or ()})
    if not partitions:
        raise OptionError("this query has no lag to draw: none of its sources is Kafka's")
    lines_by = _lines_by_topic if by == "topic" else _lines_by_partition
    lines = lines_by(partitions, lags)
    (axes,) = canvas.new_axes(ax, 1, "lag")
    canvas.draw_lines(axes, [*map(_start_time, reports)], lines, named=len(lines) > 1)
    what = _query_name(reports) or (canvas.shorten(partitions[0].topic) if len(lines) == 1 else "")
    _add_labels(axes, f"Lag after each batch{what and f': {what}'}", "offsets not read")
    return axes


def throughput(query: StreamingQuery | Iterable[Any], *, ax: Axes | None = None) -> Axes:
    """Draw the rows per second of each micro-batch, while it runs and with the waits between
    batches.

    These are Spark's processedRowsPerSecond (rows by the batch's duration) and inputRowsPerSecond
    (rows by the time since the previous batch started). `query` is as for `lag`.

    Raises OptionError if there is no report yet, ImportError without matplotlib.
    """
    canvas.needs_matplotlib("throughput")
    reports = _reports(query)
    lines = {
        "while a batch runs": [_rate(report, "processedRowsPerSecond") for report in reports],
        "waits included": [_rate(report, "inputRowsPerSecond") for report in reports],
    }
    (axes,) = canvas.new_axes(ax, 1, "throughput")
    canvas.draw_lines(axes, [*map(_start_time, reports)], lines, named=True)
    what = _query_name(reports)
    _add_labels(axes, f"Throughput{what and f': {what}'}", "rows/s")
    return axes


def _add_labels(axes: Axes, title: str, y: str) -> None:
    canvas.add_labels(axes, title=title, y=y)
    canvas.add_time_axis(axes, "start of the batch")


def _reports(query: Any) -> list[Any]:
    """Return the reports of a query, or the given ones, in chronological order. Raises OptionError
    if there are none, or something else is given."""
    with needs_pyspark("sparkkafka.plot"):
        from sparkkafka.spark.stream.progress import field_of, parse_progress
    progress = getattr(query, "recentProgress", query)
    if isinstance(progress, str | Mapping) or not isinstance(progress, Iterable):
        progress = [progress]
    reports = [parse_progress(row) for row in progress]
    if not reports:
        raise OptionError(
            "there is no progress to draw yet: the query has not finished a micro-batch. Wait for "
            "one, as sparkkafka.progress(query) does"
        )
    for report in reports:
        if not isinstance(field_of(report, "timestamp"), str):
            raise OptionError(
                "this takes a streaming query, or reports of its progress, not "
                f"{type(report).__name__}"
            )
    return sorted(reports, key=_start_time)


def _field(report: Any, name: str) -> Any:
    from sparkkafka.spark.stream.progress import field_of

    return field_of(report, name)


def _start_time(report: Any) -> datetime:
    return datetime.fromisoformat(_field(report, "timestamp"))


def _query_name(reports: list[Any]) -> str:
    """Return the query's name, "" if it has none or the reports are of several queries."""
    names = {_field(report, "name") for report in reports}
    return canvas.shorten(str(names.pop())) if len(names) == 1 and None not in names else ""


def _rate(report: Any, name: str) -> float:
    """Return a rate of a report, NaN if it has none: the first batch has no previous one."""
    rate = _field(report, name)
    return float(rate) if rate is not None and math.isfinite(rate) else math.nan


_Lags = Sequence[Mapping[TopicPartition, int] | None]
"""The lag by partition of each report; None for a report without it."""


def _lines_by_partition(
    partitions: Iterable[TopicPartition], lags: _Lags
) -> dict[str, list[float]]:
    """Return a line for each partition: its lag in each report, NaN if it is not known."""
    return {
        str(tp): [
            math.nan if batch_lags is None else batch_lags.get(tp, math.nan) for batch_lags in lags
        ]
        for tp in partitions
    }


def _lines_by_topic(partitions: Iterable[TopicPartition], lags: _Lags) -> dict[str, list[float]]:
    """Return a line for each topic: the sum of its partitions' lags in each report, NaN if none is
    known."""
    lines: dict[str, list[float]] = {}
    for topic in dict.fromkeys(tp.topic for tp in partitions):
        topic_lags = [
            [lag for tp, lag in (batch_lags or {}).items() if tp.topic == topic]
            for batch_lags in lags
        ]
        lines[topic] = [sum(values) if values else math.nan for values in topic_lags]
    return lines
