"""Lag and speed of a streaming query over time, from the reports of progress that Spark keeps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import OptionError
from sparkkafka.plot import canvas
from sparkkafka.spark.registration import needs_pyspark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC, PARTITION = "topic", "partition"


def lag(query: StreamingQuery | Iterable[Any], *, by: str = TOPIC, ax: Axes | None = None) -> Axes:
    """How many offsets each micro-batch left unread, by topic, or with by="partition" by partition.

    `query` is a streaming query, or reports of its progress: of two runs
    `[*first.recentProgress, *second.recentProgress]`. Spark keeps the last 100 of a query
    (spark.sql.streaming.numRecentProgressUpdates). The lag is that of `sparkkafka.lag`; a batch
    repeated after a restart, which does not tell it, is a gap. Of more than five lines the five
    that were the longest behind have a name, and the others are grey.

    Raises OptionError if there is no progress yet or none that tells a lag (Spark 4.2 and later
    does), ImportError without matplotlib.
    """
    if by not in (TOPIC, PARTITION):
        raise OptionError(f"by is {TOPIC!r} or {PARTITION!r}, got {by!r}")
    canvas.needs_matplotlib("lag")
    with needs_pyspark("sparkkafka.plot.lag"):
        from sparkkafka.spark.stream.progress import reported_lag
    reports = _reports(query)
    lags = [reported_lag(report) for report in reports]
    if all(found is None for found in lags):
        raise OptionError(
            f"none of {len(reports)} reports of progress says where the logs end: Spark 4.2 and "
            "later does, except for a batch repeated after a restart. sparkkafka.lag(query, "
            "options) asks the brokers for the lag of now"
        )
    names = sorted({tp for found in lags for tp in found or ()})
    if not names:
        raise OptionError("this query has no lag to draw: none of its sources is Kafka's")
    lines = _by_partition(names, lags) if by == PARTITION else _by_topic(names, lags)
    (axes,) = canvas.new_axes(ax, 1, "lag")
    canvas.lines(axes, _times(reports), lines, named=len(lines) > 1)
    what = _name(reports) or (canvas.short(names[0].topic) if len(lines) == 1 else "")
    _dress(axes, f"Lag after each batch{what and f': {what}'}", "offsets not read")
    return axes


def throughput(query: StreamingQuery | Iterable[Any], *, ax: Axes | None = None) -> Axes:
    """Rows a second of each micro-batch, while it runs and with the waits between batches.

    They are Spark's processedRowsPerSecond (rows of the batch by the time that it took) and
    inputRowsPerSecond (by the time since the batch before it began). `query` is as for `lag`.

    Raises OptionError if there is no progress yet, ImportError without matplotlib.
    """
    canvas.needs_matplotlib("throughput")
    reports = _reports(query)
    lines = {
        "while a batch runs": [_rate(report, "processedRowsPerSecond") for report in reports],
        "waits included": [_rate(report, "inputRowsPerSecond") for report in reports],
    }
    (axes,) = canvas.new_axes(ax, 1, "throughput")
    canvas.lines(axes, _times(reports), lines, named=True)
    what = _name(reports)
    _dress(axes, f"Throughput{what and f': {what}'}", "rows/s")
    return axes


def _dress(axes: Axes, title: str, y: str) -> None:
    from matplotlib import rcParams

    canvas.dress(axes, title=title, x=f"start of the batch ({rcParams['timezone']})", y=y)


def _reports(query: Any) -> list[Any]:
    """In the order of time. Raises OptionError if there are none."""
    with needs_pyspark("sparkkafka.plot"):
        from sparkkafka.spark.stream.progress import field_of, parse_progress
    found = getattr(query, "recentProgress", query)
    if isinstance(found, str | Mapping) or not isinstance(found, Iterable):
        found = [found]
    reports = [parse_progress(one) for one in found]
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
    return sorted(reports, key=lambda report: str(field_of(report, "timestamp")))


def _field(report: Any, name: str) -> Any:
    from sparkkafka.spark.stream.progress import field_of

    return field_of(report, name)


def _times(reports: Iterable[Any]) -> list[datetime]:
    return [datetime.fromisoformat(_field(report, "timestamp")) for report in reports]


def _name(reports: list[Any]) -> str:
    names = {_field(report, "name") for report in reports}
    return canvas.short(str(names.pop())) if len(names) == 1 and None not in names else ""


def _rate(report: Any, name: str) -> float:
    """NaN where Spark has none: of a first batch nobody knows when the one before it began."""
    rate = _field(report, name)
    return float(rate) if rate is not None and math.isfinite(rate) else math.nan


_Lags = Iterable[Mapping[TopicPartition, int] | None]


def _by_partition(partitions: Iterable[TopicPartition], lags: _Lags) -> dict[str, list[float]]:
    found = list(lags)
    return {
        f"{tp.topic}-{tp.partition}": [
            math.nan if one is None else one.get(tp, math.nan) for one in found
        ]
        for tp in partitions
    }


def _by_topic(partitions: Iterable[TopicPartition], lags: _Lags) -> dict[str, list[float]]:
    found = list(lags)
    lines: dict[str, list[float]] = {}
    for topic in dict.fromkeys(tp.topic for tp in partitions):
        lines[topic] = [
            math.nan
            if one is None or all(tp.topic != topic for tp in one)
            else sum(behind for tp, behind in one.items() if tp.topic == topic)
            for one in found
        ]
    return lines
