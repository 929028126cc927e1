"""Plots for people who run streams, with matplotlib (the extra `plot`).

    sparkkafka.plot.lag(query)                     the lag of a query over time
    sparkkafka.plot.throughput(query)              its rows per second over time
    sparkkafka.plot.partitions("orders", options)  records, bytes and keys of each partition
    sparkkafka.plot.style(dark=True)               the style of this project, for your own plots

Each plot draws into `ax`, if it is given, else into a new figure of pyplot, in the current style.
matplotlib is imported when it is used.

Colour-blind people can distinguish the colours, which are those of Okabe and Ito, darker or lighter
where the background needs it; lines also differ by their markers. Everything else has the colours
of matplotlib's current style.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline, seconds_of
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import FetchOptions, parse_group_options
from sparkkafka.errors import BrokerError, ErrorCode, OptionError, needs_extra, printable
from sparkkafka.spark.delegation_tokens import with_token
from sparkkafka.spark.registration import needs_pyspark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["lag", "partitions", "style", "throughput"]

# --- the common look: colours, labels, grids, time axes -------------------------------------------


_ON_LIGHT: Final = ("#0072B2", "#D55E00", "#008F68", "#C0619A", "#2F93CB")
_ON_DARK: Final = ("#56B4E9", "#F0803C", "#1FBF90", "#E594C4", "#F0E442")
MARKERS: Final = ("o", "s", "^", "D", "v")
MAX_NAMED: Final = len(MARKERS)
"""The number of lines that have a colour and a name; others are grey."""
_WIDTH: Final = 8.0
"""The width of figures in inches."""
_MIN_SPAN_S: Final = 10
"""The seconds that a time axis has at least, so that its ticks are whole seconds."""


def style(*, dark: bool = False) -> dict[str, Any]:
    """Return the style of this project's notebooks and docs, light or dark, as settings of
    matplotlib: for `pyplot.style.use(style())`, or `with pyplot.style.context(style(dark=True))`.

    The plots of this package look alike in every style; this one also applies to your own plots.
    """
    needs_matplotlib("style")
    from cycler import cycler

    back, front, grid = ("#121419", "#d5d9e2", "#3d424e") if dark else ("white", "black", "#d9d9d9")
    colours = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    return {
        **dict.fromkeys(colours, front),
        **dict.fromkeys(("figure.facecolor", "axes.facecolor"), back),
        "axes.prop_cycle": cycler(color=_ON_DARK if dark else _ON_LIGHT),
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.color": grid,
        "legend.frameon": False,
        "figure.figsize": (_WIDTH, 3.6),
        "figure.constrained_layout.use": True,
    }


def colours_of(ax: Axes) -> Sequence[str]:
    """Return the colours of lines and bars that are visible on the background of `ax`."""
    from matplotlib.colors import to_rgba

    red, green, blue, alpha = to_rgba(ax.get_facecolor())
    if alpha == 0:
        red, green, blue, _ = to_rgba(ax.figure.figure.get_facecolor())
    # The brightness that eyes see, of which green is the largest part.
    return _ON_LIGHT if 0.3 * red + 0.6 * green + 0.1 * blue > 0.5 else _ON_DARK


def needs_matplotlib(what: str) -> None:
    """Raise ImportError, which says what to install, if matplotlib is missing. `what` is the
    function that needs it."""
    with needs_extra(f"sparkkafka.plot.{what} needs matplotlib, which is not here", "plot"):
        import matplotlib  # noqa: F401


def new_axes(ax: Any, count: int, what: str) -> list[Axes]:
    """Return `count` axes: those in `ax`, or those of a new figure if it is None, two in a row and
    a third one below them.

    Raises OptionError if `ax` is something else, or not as many axes. `what`: the function, for
    that error.
    """
    from matplotlib import pyplot
    from matplotlib.axes import Axes

    if ax is None:
        names = {1: "a", 2: "ab", 3: "ab;cc"}[count]
        inches = (_WIDTH, 3.6 if count < 3 else 6.4)
        _, by_name = pyplot.subplot_mosaic(names, figsize=inches, layout="constrained")
        return list(by_name.values())
    axes = list(getattr(ax, "flat", ax)) if isinstance(ax, Iterable) else [ax]
    if len(axes) != count or not all(isinstance(row, Axes) for row in axes):
        raise OptionError(f"{what} draws into {count} of matplotlib's Axes, got ax={ax!r}")
    return axes


def shorten(name: str, max_length: int = 32) -> str:
    """Shorten a name for a plot, and escape "$", which begins a formula in matplotlib."""
    name = printable(name, "�")
    if len(name) > max_length:
        name = f"{name[: max_length - 8]}…{name[-7:]}"
    return name.replace("$", r"\$")


def _legend_name(name: str) -> str:
    """Return a name for the legend. Legends skip names that begin with "_", like
    __consumer_offsets, so a zero-width space comes before these."""
    return f"\u200b{shorten(name)}" if name.startswith("_") else shorten(name)


def faint_style(ax: Axes) -> tuple[Any, float]:
    """Return colour and alpha of faint lines, such as grids, in light and dark styles."""
    return ax.xaxis.label.get_color(), 0.3


def add_labels(ax: Axes, *, title: str, x: str = "", y: str = "", grid: str = "y") -> None:
    """Add a title, labels and a faint grid."""
    colour, alpha = faint_style(ax)
    ax.set_title(title, loc="left", fontsize=11)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(visible=False)
    ax.grid(axis=grid, color=colour, alpha=alpha / 2, linewidth=0.8)  # type: ignore[arg-type]
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def draw_lines(
    ax: Any, times: Sequence[datetime], series: Mapping[str, Sequence[float]], *, named: bool
) -> None:
    """Draw a line for each series over time; NaN is a gap. The largest ones have colours, the
    others are grey. `named`: draw a legend beside the plot."""
    colours = colours_of(ax)
    # By the largest value, without NaN.
    by_size = sorted(series, key=lambda name: -max((v for v in series[name] if v == v), default=0))
    for number, name in enumerate(by_size[:MAX_NAMED]):
        ax.plot(
            times,
            series[name],
            color=colours[number],
            marker=MARKERS[number],
            markevery=1 + len(times) // 50,  # some 50 markers at most
            # Later lines are thinner, so that lines on top of each other are all visible.
            markersize=6.5 - 0.9 * number,
            linewidth=2.6 - 0.4 * number,
            label=_legend_name(name),
            zorder=2 + number / 10,
        )
    colour, alpha = faint_style(ax)
    others = len(series) - MAX_NAMED
    label: str | None = "1 other" if others == 1 else f"{others} others"
    for name in by_size[MAX_NAMED:]:
        ax.plot(
            times, series[name], color=colour, alpha=alpha, linewidth=0.8, label=label, zorder=1.5
        )
        label = None  # one legend entry for all
    if len(series) == 1:
        ax.fill_between(times, series[by_size[0]], color=colours[0], alpha=0.15, linewidth=0)
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.set_ylim(0, max(1.0, ax.get_ylim()[1]))
    if named:
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize="small")


def add_time_axis(ax: Axes, what: str) -> None:
    """Label the x-axis, whose data are times: with times of day, with days where a day begins, and
    with the dates, the time zone and `what` they are as its label."""
    import matplotlib
    import matplotlib.dates

    dates: Any = matplotlib.dates  # it has no type hints
    # With other pairs of numbers the locator finds no step for some lengths.
    is_wide = ax.get_window_extent().width / ax.figure.dpi > 5
    minimum, maximum = (3, 7) if is_wide else (2, 5)
    locator = dates.AutoDateLocator(minticks=minimum, maxticks=maximum)
    formatter = dates.ConciseDateFormatter(
        locator,
        formats=["%Y", "%b", "%b %d", "%H:%M", "%H:%M", "%H:%M:%S"],
        zero_formats=["%Y", "%Y", "%b %d", "%b %d", "%H:%M", "%H:%M:%S"],
        show_offset=False,
    )
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(formatter)
    first, last = ax.dataLim.intervalx
    if (last - first) * 86_400 < _MIN_SPAN_S:  # matplotlib shows four years around one point
        half = _MIN_SPAN_S / 86_400 / 2
        middle = (first + last) / 2
        ax.set_xlim(middle - half, middle + half)
    days = {f"{dates.num2date(time):%Y-%m-%d}": None for time in (first, last)}
    ax.set_xlabel(f"{what}, {' to '.join(days)} {matplotlib.rcParams['timezone']}")


# --- lag and throughput of a streaming query ------------------------------------------------------


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
    needs_matplotlib("lag")
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
    names = {tp: tp.topic if by == "topic" else str(tp) for tp in partitions}
    lines: dict[str, list[float]] = {name: [] for name in names.values()}
    for batch_lags in lags:
        totals: dict[str, float] = {}
        for tp, lag in (batch_lags or {}).items():
            totals[names[tp]] = totals.get(names[tp], 0) + lag
        for name, line in lines.items():
            line.append(totals.get(name, math.nan))
    (axes,) = new_axes(ax, 1, "lag")
    draw_lines(axes, [*map(_start_time, reports)], lines, named=len(lines) > 1)
    what = _query_name(reports) or (shorten(partitions[0].topic) if len(lines) == 1 else "")
    _add_labels(axes, f"Lag after each batch{what and f': {what}'}", "offsets not read")
    return axes


def throughput(query: StreamingQuery | Iterable[Any], *, ax: Axes | None = None) -> Axes:
    """Draw the rows per second of each micro-batch, while it runs and with the waits between
    batches.

    These are Spark's processedRowsPerSecond (rows by the batch's duration) and inputRowsPerSecond
    (rows by the time since the previous batch started). `query` is as for `lag`.

    Raises OptionError if there is no report yet, ImportError without matplotlib.
    """
    needs_matplotlib("throughput")
    reports = _reports(query)
    lines = {
        "while a batch runs": [_rate(report, "processedRowsPerSecond") for report in reports],
        "waits included": [_rate(report, "inputRowsPerSecond") for report in reports],
    }
    (axes,) = new_axes(ax, 1, "throughput")
    draw_lines(axes, [*map(_start_time, reports)], lines, named=True)
    what = _query_name(reports)
    _add_labels(axes, f"Throughput{what and f': {what}'}", "rows/s")
    return axes


def _add_labels(axes: Axes, title: str, y: str) -> None:
    add_labels(axes, title=title, y=y)
    add_time_axis(axes, "start of the batch")


def _reports(query: Any) -> list[Any]:
    """Return the progress reports of a query, in chronological order. `query` can also be reports.
    Raises OptionError if there are none, or for another object."""
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
    return shorten(str(names.pop())) if len(names) == 1 and None not in names else ""


def _rate(report: Any, name: str) -> float:
    """Return a rate of a report, NaN if it has none: the first batch has no previous one."""
    rate = _field(report, name)
    return float(rate) if rate is not None and math.isfinite(rate) else math.nan


# --- the skew of partitions -----------------------------------------------------------------------


_KEY_BYTES: Final = 64
"""The part of a key that is read for its label."""


def partitions(
    source: DataFrame | str,
    options: Mapping[str, Any] | None = None,
    *,
    keys: int = 0,
    sample: int = 10_000,
    timeout_s: float = 60.0,
    ax: Any = None,
) -> list[Axes]:
    """Draw bars of the records and of the bytes in each partition. A partition with more than twice
    the mean has another colour.

    `source` is one of two:

    - The name of a topic, with `options` (`kafka.bootstrap.servers`, …). Records are counted as the
      end minus the first offset (transaction markers and compacted records count, too), bytes are
      those on the leader's disk, which need DESCRIBE on the cluster.
    - A DataFrame with the column `partition`. Spark counts the rows and the bytes of `key` and
      `value`.

    `keys` also draws this number of the most frequent keys in a sample of about `sample` records:
    the last records of each partition of a topic, or random rows of a DataFrame (which is then read
    twice). The title says how many were sampled. Keys of a topic are read within `timeout_s`.

    Returns the Axes: two, or three with `keys`; `ax` must be as many. Raises OptionError for wrong
    use, KafkaError from the brokers, ImportError without matplotlib.
    """
    needs_matplotlib("partitions")
    for name, value, minimum, maximum in (("keys", keys, 0, 50), ("sample", sample, 1, 1_000_000)):
        is_int = isinstance(value, int) and not isinstance(value, bool)
        if not is_int or not minimum <= value <= maximum:
            raise OptionError(
                f"{name} is a whole number from {minimum} to {maximum:,}, got {value!r}"
            )
    if isinstance(source, str):
        if options is None:
            raise OptionError(
                f'options that name the brokers are missing: partitions("{source}", '
                '{"kafka.bootstrap.servers": "host:9092"})'
            )
        skew = _topic_skew(source, options, keys, sample, Deadline(seconds_of(timeout_s) * 1000))
    elif options is not None:
        raise OptionError("options are for the name of a topic: a DataFrame has its own")
    else:
        skew = _dataframe_skew(source, keys, sample)
    if not skew.records:
        raise OptionError("there is no partition to draw: the DataFrame has no rows")
    axes = new_axes(ax, 3 if keys else 2, "partitions")
    what = shorten(skew.name, 18)
    _draw_bars(axes[0], skew.records, f"Records{what and f': {what}'}", "records", "{x:,.0f}")
    _draw_bars(axes[1], skew.sizes, f"Bytes{what and f': {what}'}", skew.bytes_label, None)
    if keys:
        _draw_key_bars(axes[2], skew.keys, skew.sampled)
    return axes


class _Skew(NamedTuple):
    """Records and bytes by partition; `sizes` is None if they are not known, and `bytes_label` then
    says why. `keys` are the most frequent keys of the `sampled` records, in order."""

    name: str
    records: Mapping[int, int]
    sizes: Mapping[int, int] | None
    bytes_label: str
    keys: list[tuple[bytes | None, int]]
    sampled: int


# --- a topic -----------------------------------------------------------------------------------


def _topic_skew(
    topic: str, options: Mapping[str, Any], keys: int, sample: int, deadline: Deadline
) -> _Skew:
    """Look up the skew of a topic."""
    from sparkkafka.client.admin.brokers import partition_sizes
    from sparkkafka.client.cluster.offsets import OffsetLookup

    parsed = parse_group_options(with_token(options))
    with Cluster(parsed.client) as cluster:
        numbers = sorted(cluster.topics([topic], deadline)[topic].partitions)
        topic_partitions = [TopicPartition(topic, number) for number in numbers]
        lookup = OffsetLookup(cluster, parsed.isolation_level)
        first, end = lookup.earliest_and_latest(topic_partitions, deadline)
        bytes_label = "bytes on the leader's disk"
        sizes: dict[int, int] | None = None
        try:
            by_partition = partition_sizes(cluster, topic_partitions, deadline=deadline)
            sizes = {tp.partition: size for tp, size in by_partition.items()}
        except BrokerError as error:
            if error.code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise
            bytes_label = "the sizes on disk need\nDESCRIBE on the cluster"
        counts: Counter[bytes | None] = Counter()
        if keys:
            fetch = FetchOptions(isolation_level=parsed.isolation_level)
            per_partition = max(1, sample // len(topic_partitions))
            for tp in topic_partitions:
                start = max(first[tp], end[tp] - per_partition)
                for batch in _fetch_keys(cluster, tp, range(start, end[tp]), fetch, deadline):
                    counts.update(batch)
    return _Skew(
        topic,
        {tp.partition: end[tp] - first[tp] for tp in topic_partitions},
        sizes,
        bytes_label,
        counts.most_common(keys),
        counts.total(),
    )


def _fetch_keys(
    cluster: Cluster, tp: TopicPartition, offsets: range, fetch: FetchOptions, deadline: Deadline
) -> Iterator[list[bytes | None]]:
    """Yield the keys of these records, cut to _KEY_BYTES."""
    # Not at the top: they load Arrow.
    import pyarrow.compute as pc

    from sparkkafka.client.consumer.range_reader import PlannedRange, RangeReader
    from sparkkafka.protocol.columns.columns import KEY, Selection

    selection = Selection(offsets.start, offsets.stop, frozenset({KEY}))
    remaining_ms = max(1, int(deadline.remaining_s() * 1000))
    ranges = {tp: PlannedRange(selection)}
    with RangeReader(
        cluster, ranges, fetch, poll_timeout_ms=remaining_ms, fail_on_data_loss=False
    ) as reader:
        for _, records in reader:
            yield pc.binary_slice(records.keys, 0, _KEY_BYTES).to_pylist()
            if deadline.expired:
                return


# --- a DataFrame -------------------------------------------------------------------------------


def _dataframe_skew(rows: DataFrame, keys: int, sample: int) -> _Skew:
    """Count the skew of a DataFrame with Spark."""
    from pyspark.sql import functions as f

    type_by_column = dict(rows.dtypes) if hasattr(rows, "dtypes") else {}
    if "partition" not in type_by_column:
        raise OptionError(
            "partitions() takes the name of a topic, or a DataFrame with the column partition, as "
            f"format('pykafka') gives it; got {type(rows).__name__} with {sorted(type_by_column)}"
        )
    countable = ("binary", "string")
    if keys and type_by_column.get("key") not in countable:
        raise OptionError(
            f"keys={keys} needs a column key of binary or string, it is {type_by_column.get('key')}"
        )
    sized = [name for name in ("key", "value") if type_by_column.get(name) in countable]
    size = sum((f.coalesce(f.octet_length(name), f.lit(0)) for name in sized), f.lit(0))
    topic = f.col("topic") if "topic" in type_by_column else f.lit("")
    by_partition = (
        rows.groupBy(topic.alias("topic"), "partition")
        .agg(f.count(f.lit(1)).alias("rows"), f.sum(size).alias("bytes"))
        .collect()
    )
    names = sorted({str(row["topic"]) for row in by_partition})
    if len(names) > 1:
        raise OptionError(
            f"the rows are of {len(names)} topics ({', '.join(names[:3])}, …): choose one, as with "
            f"df.where(\"topic = '{names[0]}'\")"
        )
    records = {row["partition"]: row["rows"] for row in by_partition}
    frequent: list[tuple[bytes | None, int]] = []
    sampled = 0
    if keys and records:
        # A random sample: the first rows would be those of the first partitions.
        share = min(1.0, sample / sum(records.values()))
        chosen = rows if share == 1.0 else rows.sample(share)
        key = f.substring(f.col("key").cast("binary"), 1, _KEY_BYTES)
        grouped = chosen.select(key.alias("key")).rollup("key")
        # One action gives the total, which is the first row, and the most frequent keys.
        is_total, count = f.grouping_id(), f.count(f.lit(1))
        ordered = grouped.agg(is_total.alias("total"), count.alias("rows")).orderBy(
            f.desc("total"), f.desc("rows")
        )
        for row in ordered.limit(keys + 1).collect():
            if row["total"]:
                sampled = row["rows"]
            else:
                frequent.append((None if row["key"] is None else bytes(row["key"]), row["rows"]))
    return _Skew(
        names[0] if names else "",
        records,
        {row["partition"]: row["bytes"] for row in by_partition} if sized else None,
        f"bytes of {' and '.join(sized)}" if sized else "no column key or value\nof bytes or text",
        frequent,
        sampled,
    )


# --- drawing -----------------------------------------------------------------------------------


def _draw_bars(
    ax: Axes, heights: Mapping[int, int] | None, title: str, y_label: str, number_format: str | None
) -> None:
    """Draw a bar for each partition; bars above twice the mean get the second colour. If `heights`
    is None, write `y_label`, which then says why they are unknown. `number_format` formats the y
    axis; None formats bytes with a unit."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    if heights is None:
        _draw_text(ax, title, y_label)
        return
    mean = sum(heights.values()) / len(heights)
    palette = colours_of(ax)
    colours = [palette[height > 2 * mean] for height in heights.values()]
    # Many bars have no gaps, since only the gaps would be visible.
    width = 0.8 if len(heights) <= 50 else 1.0
    # With an edge, since a bar narrower than a pixel may not be drawn at all.
    ax.bar(
        list(heights),
        list(heights.values()),
        width=width,
        color=colours,
        edgecolor=colours,
        linewidth=0.8,
    )
    colour, _ = faint_style(ax)
    ax.axhline(mean, color=colour, linestyle="--", linewidth=1)
    largest = max(heights.values()) / mean if mean else 1.0
    label = f"partition (largest: {largest:.1f} × mean)"
    add_labels(ax, title=title, x=label, y=y_label)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True, min_n_ticks=1))
    ax.set_xlim(min(heights) - 0.7, max(heights) + 0.7)
    ax.yaxis.set_major_formatter(number_format or EngFormatter(unit="B", places=None))
    ax.set_ylim(0, max(1.0, 1.05 * max(heights.values())))


def _draw_key_bars(ax: Axes, keys: list[tuple[bytes | None, int]], sampled: int) -> None:
    """Draw a bar for each of the most frequent keys."""
    title = f"Keys of {sampled:,} records"
    if not keys:
        _draw_text(ax, title, "no records")
        return
    positions = range(len(keys))
    ax.barh(positions, [100 * count / sampled for _, count in keys], color=colours_of(ax)[0])
    add_labels(ax, title=title, x="% of the sampled records", grid="x")
    ax.set_yticks(positions, [shorten(_key_label(key), 24) for key, _ in keys])
    if len(keys) > 12:
        ax.tick_params(axis="y", labelsize=max(4.0, 120 / len(keys)))
    ax.invert_yaxis()  # the most frequent on top


def _key_label(key: bytes | None) -> str:
    """Return a key as text: as hex if it is not UTF-8, "(no key)" for None."""
    if key is None:
        return "(no key)"
    try:
        return key.decode() or "(empty)"
    except UnicodeDecodeError:
        return f"0x{key.hex()}"


def _draw_text(ax: Axes, title: str, text: str) -> None:
    """Write a text in the place of a plot."""
    add_labels(ax, title=title)
    ax.text(0.5, 0.5, text, ha="center", va="center", transform=ax.transAxes)
    ax.set(xticks=[], yticks=[])
