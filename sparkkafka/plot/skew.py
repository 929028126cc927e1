"""The skew of partitions: their records and bytes, and the most frequent keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline, seconds_of
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import FetchOptions, parse_group_options
from sparkkafka.errors import BrokerError, ErrorCode, OptionError
from sparkkafka.plot import canvas
from sparkkafka.spark.delegation_tokens import with_token

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import DataFrame

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
    canvas.needs_matplotlib("partitions")
    for name, value, minimum, maximum in (
        ("keys", keys, 0, 50),
        ("sample", sample, 1, 1_000_000),
    ):
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
    axes = canvas.new_axes(ax, 3 if keys else 2, "partitions")
    what = canvas.shorten(skew.name, 18)
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


# --- a topic ------------------------------------------------------------------------------------


def _topic_skew(
    topic: str, options: Mapping[str, Any], keys: int, sample: int, deadline: Deadline
) -> _Skew:
    """Look up the skew of a topic."""
    from sparkkafka.client.admin.brokers import partition_sizes
    from sparkkafka.client.cluster.offsets import earliest_and_latest

    parsed = parse_group_options(with_token(options))
    with Cluster(parsed.client) as cluster:
        numbers = sorted(cluster.topics([topic], deadline)[topic].partitions)
        topic_partitions = [TopicPartition(topic, number) for number in numbers]
        first, end = earliest_and_latest(
            cluster, topic_partitions, isolation_level=parsed.isolation_level, deadline=deadline
        )
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
    left_ms = max(1, int(deadline.remaining_s() * 1000))
    ranges = {tp: PlannedRange(selection)}
    with RangeReader(
        cluster, ranges, fetch, poll_timeout_ms=left_ms, fail_on_data_loss=False
    ) as reader:
        for _, records in reader:
            yield pc.binary_slice(records.keys, 0, _KEY_BYTES).to_pylist()
            if deadline.expired:
                return


# --- a DataFrame --------------------------------------------------------------------------------


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


# --- drawing ------------------------------------------------------------------------------------


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
    palette = canvas.colours_of(ax)
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
    colour, _ = canvas.faint_style(ax)
    ax.axhline(mean, color=colour, linestyle="--", linewidth=1)
    largest = max(heights.values()) / mean if mean else 1.0
    label = f"partition (largest: {largest:.1f} × mean)"
    canvas.add_labels(ax, title=title, x=label, y=y_label)
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
    ax.barh(positions, [100 * count / sampled for _, count in keys], color=canvas.colours_of(ax)[0])
    canvas.add_labels(ax, title=title, x="% of the sampled records", grid="x")
    ax.set_yticks(positions, [canvas.shorten(_key_label(key), 24) for key, _ in keys])
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
    canvas.add_labels(ax, title=title)
    ax.text(0.5, 0.5, text, ha="center", va="center", transform=ax.transAxes)
    ax.set(xticks=[], yticks=[])
