"""The content of plots, read from matplotlib's Axes: of artificial reports and a fake cluster."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

import sparkkafka
from sparkkafka import plot
from sparkkafka.client import Producer
from sparkkafka.errors import ErrorCode, OptionError, UnknownTopicError
from sparkkafka.testing.fake.cluster import FakeCluster

pyplot = pytest.importorskip("matplotlib.pyplot")
to_rgb = pytest.importorskip("matplotlib.colors").to_rgb
pyplot.switch_backend("Agg")


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    yield
    pyplot.close("all")


def report(second: int, read: Any, ends: Any, **more: Any) -> dict[str, Any]:
    """Return a progress report of Spark, as its JSON has it."""
    source = {"description": "PythonMicroBatchStream@1", "endOffset": read, "latestOffset": ends}
    return {
        "name": "orders-to-files",
        "timestamp": f"2026-01-31T06:00:{second:02}.500Z",
        "processedRowsPerSecond": 100.0 * second,
        "inputRowsPerSecond": 10.0,
        "sources": [source],
        **more,
    }


def tree(topic: str, offsets: dict[int, int]) -> dict[str, dict[str, int]]:
    return {topic: {str(number): offset for number, offset in offsets.items()}}


def two_topics(second: int, behind: int) -> dict[str, Any]:
    read = tree("t", {0: 5, 1: 5}) | tree("u", {0: 1})
    ends = tree("t", {0: 5 + behind, 1: 6}) | tree("u", {0: 1 + 3 * behind})
    return report(second, read, ends)


def drawn(axes: Any) -> dict[str, list[float]]:
    return {line.get_label(): list(line.get_ydata()) for line in axes.lines}


# --- lag and throughput -------------------------------------------------------------------------


def test_lag_by_topic_and_by_partition() -> None:
    query = SimpleNamespace(recentProgress=[two_topics(2, 20), two_topics(1, 10)])
    axes = sparkkafka.plot.lag(query)
    assert drawn(axes) == {"u": [30, 60], "t": [11, 21]}
    assert "orders-to-files" in axes.get_title("left")
    assert "UTC" in axes.get_xlabel()
    assert axes.get_ylabel() == "offsets not read"
    assert axes.get_ylim()[0] == 0
    _, mine = pyplot.subplots()
    assert sparkkafka.plot.lag(query, by="partition", ax=mine) is mine
    assert drawn(mine) == {"u-0": [30, 60], "t-0": [10, 20], "t-1": [1, 1]}
    assert [text.get_text() for text in mine.get_legend().get_texts()] == ["u-0", "t-0", "t-1"]
    assert len({line.get_color() for line in mine.lines}) == 3
    assert len({line.get_marker() for line in mine.lines}) == 3


def test_of_many_partitions_the_largest_five_have_a_name() -> None:
    read = tree("t", dict.fromkeys(range(200), 0))
    ends = tree("t", {number: number for number in range(200)})
    axes = sparkkafka.plot.lag([report(1, read, ends), report(2, read, ends)], by="partition")
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["t-199", "t-198", "t-197", "t-196", "t-195", "195 others"]
    assert len(axes.lines) == 200


def test_names_that_matplotlib_would_hide_or_parse() -> None:
    reports = [report(1, tree("_t", {0: 0, 1: 0}), tree("_t", {0: 1, 1: 2}))]
    axes = sparkkafka.plot.lag(reports, by="partition")
    names = [text.get_text().strip("\u200b") for text in axes.get_legend().get_texts()]
    assert names == ["_t-1", "_t-0"]
    axes.figure.canvas.draw()  # the font has all glyphs


def test_a_batch_without_lag_is_a_gap_and_a_single_one_a_point() -> None:
    read, ends = tree("t", {0: 1}), tree("t", {0: 3})
    reports = [report(1, read, ends), report(2, read, "null"), json.dumps(report(3, read, ends))]
    first, gap, last = drawn(sparkkafka.plot.lag(reports))["t"]
    assert (first, last) == (2, 2)
    assert math.isnan(gap)
    axes = sparkkafka.plot.lag(reports[0])
    low, high = axes.get_xlim()
    assert (high - low) * 86_400 < 60  # matplotlib shows four years around one point
    assert axes.get_legend() is None


def test_throughput() -> None:
    first = report(1, {}, {}, inputRowsPerSecond=math.nan)
    axes = sparkkafka.plot.throughput([first, report(2, {}, {})])
    lines = drawn(axes)
    assert lines["while a batch runs"] == [100, 200]
    assert math.isnan(lines["waits included"][0])
    assert lines["waits included"][1] == 10
    assert axes.get_ylabel() == "rows/s"


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (SimpleNamespace(recentProgress=[]), {}, "no progress to draw yet: .*progress"),
        ([report(1, tree("t", {0: 1}), "null")], {}, "none of 1 reports .* Spark 4.2"),
        ([report(1, "5", "7")], {}, "none of its sources is Kafka's"),
        ("not JSON", {}, "takes a query, a report"),
        ([object()], {}, "takes a query, a report .* not <object"),
        ([], {"by": "broker"}, "by is 'topic' or 'partition', got 'broker'"),
        ([two_topics(1, 1)], {"ax": "top"}, "draws into 1 of matplotlib's Axes"),
    ],
)
def test_errors_leave_no_figure(given: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        sparkkafka.plot.lag(given, **options)
    assert pyplot.get_fignums() == []


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for call in (sparkkafka.plot.lag, sparkkafka.plot.throughput, sparkkafka.plot.partitions):
        with pytest.raises(ImportError, match=rf"{call.__name__} needs .*'sparkkafka\[plot\]'"):
            call([])
    with pytest.raises(ImportError, match=r"style needs .*'sparkkafka\[plot\]'"):
        sparkkafka.plot.style()


# --- partitions of a topic ----------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as fake:
        fake.create_topic("t", partitions=4)
        with Producer({"bootstrap.servers": fake.bootstrap_servers}) as producer:
            for number in range(60):
                key = None if number % 6 == 5 else b"k%d" % (number % 6 // 2)
                producer.send("t", b"v", key=key, partition=1 if number < 50 else 3)
        yield fake


def test_partitions_of_a_topic_and_the_keys_of_its_last_records(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {0: 0, 1: 5_000, 2: 0, 3: 1_000}
    monkeypatch.setattr(
        "sparkkafka.client.admin.brokers.partition_sizes",
        lambda cluster, partitions, deadline: {tp: sizes[tp.partition] for tp in partitions},
    )
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    records, size, keys = sparkkafka.plot.partitions("t", options, keys=2, sample=40)
    assert [bar.get_height() for bar in records.patches] == [0, 50, 0, 10]
    assert [bar.get_height() for bar in size.patches] == list(sizes.values())
    assert "3.3 × mean" in records.get_xlabel()
    colours = [bar.get_facecolor() for bar in records.patches]
    assert colours[1] != colours[0] == colours[2] == colours[3]
    # The last ten of each partition.
    assert keys.get_title("left") == "Keys of 20 records"
    assert [label.get_text() for label in keys.get_yticklabels()] == ["k0", "k1"]
    assert [bar.get_width() for bar in keys.patches] == [30, 30]


def test_sizes_without_permission(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any, **options: Any) -> Any:
        raise plot.BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "DescribeLogDirs")

    monkeypatch.setattr("sparkkafka.client.admin.brokers.partition_sizes", refused)
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    _, given = pyplot.subplots(1, 2)
    axes = sparkkafka.plot.partitions("t", options, ax=given)
    assert axes == list(given)
    assert len(axes[0].patches) == 4
    assert "DESCRIBE on the cluster" in axes[1].texts[0].get_text()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("t",), {}, r'partitions\("t", \{"kafka.bootstrap.servers"'),
        ((object(), {}), {}, "a DataFrame has its own"),
        ((object(),), {}, "name of a topic, or a DataFrame with the column partition"),
        (("t", {}), {"keys": 51}, "keys is a whole number from 0 to 50, got 51"),
        (("t", {}), {"sample": 0}, "sample is a whole number from 1 to 1,000,000, got 0"),
        (("t", {}), {}, "kafka.bootstrap.servers"),
    ],
)
def test_wrong_use_of_partitions(
    arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        sparkkafka.plot.partitions(*arguments, **options)
    assert pyplot.get_fignums() == []


def test_a_missing_topic(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkkafka.client.cluster.cluster.UNKNOWN_TOPIC_GRACE_MS", 100)
    with pytest.raises(UnknownTopicError, match="gone"):
        sparkkafka.plot.partitions(
            "gone", {"kafka.bootstrap.servers": cluster.bootstrap_servers}, timeout_s=20
        )


# --- how it looks -------------------------------------------------------------------------------


def texts_of(axes: Any) -> list[Any]:
    """Return the titles, labels, ticks and legend texts that are visible."""
    legend = axes.get_legend()
    texts = [
        axes.title,
        axes._left_title,
        axes.xaxis.label,
        axes.yaxis.label,
        *axes.get_xticklabels(),
        *axes.get_yticklabels(),
        *(legend.get_texts() if legend else ()),
    ]
    return [text for text in texts if text.get_text() and text.get_visible()]


def assert_nothing_overlaps(figure: Any) -> None:
    figure.canvas.draw()
    boxes = [text.get_window_extent() for axes in figure.axes for text in texts_of(axes)]
    for axes in figure.axes:
        assert axes._left_title.get_window_extent().x1 <= figure.bbox.x1
        if axes.get_legend():  # outside of the data
            assert not axes.get_legend().get_window_extent().overlaps(axes.bbox)
            assert axes.get_legend().get_window_extent().x1 <= figure.bbox.x1
    assert not [
        (box, other) for n, box in enumerate(boxes) for other in boxes[:n] if box.overlaps(other)
    ]


STYLES = {
    "default": "default",
    "light": sparkkafka.plot.style(),
    "dark": sparkkafka.plot.style(dark=True),
    "dark_background": "dark_background",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("style", "count"), [("default", 1), ("light", 200), ("dark", 1), ("dark_background", 200)]
)
def test_nothing_overlaps(style: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Titles, labels, ticks and legends do not overlap."""
    keys = [(b"a customer with a long name %d" % number, 50 - number) for number in range(12)]
    heights = {number: 1_000_000 + number for number in range(count)}
    seen = plot._Skew("a-topic-with-a-long-name" * 3, heights, heights, "bytes", keys, 1_000)
    monkeypatch.setattr(plot, "_topic_skew", lambda *given: seen)
    tops = tree("a-topic-with-a-long-name" * 3, heights)
    with pyplot.style.context(STYLES[style]):
        axes = sparkkafka.plot.partitions("t", {}, keys=12)
        figures = [axes[0].figure]
        reports = [report(n, tree("t", {}), tops) for n in range(30)]
        for progress in reports:
            progress["sources"][0]["endOffset"] = tree("a-topic-with-a-long-name" * 3, {0: 0})
        figures.append(sparkkafka.plot.lag(reports).figure)
        for figure in figures:
            assert_nothing_overlaps(figure)


DAY = 86_400


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (0, r"06:00:\d\d"),
        (4, r"06:00:\d\d"),
        (60, r"06:0\d:\d\d"),
        (179, r"06:0\d(:\d\d)?"),
        (600, r"06:\d\d"),
        (3 * 3_600, r"0\d:00"),
        (DAY, r"\d\d:00|Feb 01"),
        (3 * DAY, r"(Jan|Feb) \d\d"),
        (90 * DAY, r"Feb|Mar|Apr|May"),
        (900 * DAY, r"[A-Z][a-z][a-z]|202\d"),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_a_time_axis_of_any_length_is_readable(seconds: int, labels: str, count: int) -> None:
    _, plots = pyplot.subplots(1, count, figsize=(8, 3), layout="constrained", squeeze=False)
    start = datetime(2026, 1, 31, 6, 0, 3, tzinfo=UTC)
    read, ends = tree("t", {0: 1, 1: 1}), tree("t", {0: 3, 1: 9})
    times = [start + timedelta(seconds=seconds * part / 20) for part in range(21)]
    reports = [
        report(1, read, ends, timestamp=time.isoformat(timespec="milliseconds")) for time in times
    ]
    axes = sparkkafka.plot.throughput(reports, ax=plots[0][0])
    assert_nothing_overlaps(axes.figure)
    low, high = sorted(axes.get_xlim())
    drawn_ticks = [
        text.get_text()
        for text, at in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True)
        if low <= at <= high
    ]
    assert 2 <= len(drawn_ticks) <= 8
    assert seconds >= DAY or len(set(drawn_ticks)) == len(drawn_ticks)
    assert all(re.fullmatch(labels, text) for text in drawn_ticks), drawn_ticks
    days = dict.fromkeys(f"{time:%Y-%m-%d}" for time in (times[0], times[-1]))
    assert axes.get_xlabel() == f"start of the batch, {' to '.join(days)} UTC"


def luminance(colour: Any) -> float:
    """Return the relative luminance, as WCAG defines it."""
    parts = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in to_rgb(colour)
    ]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: Any, other: Any) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("style", STYLES)
def test_lines_bars_and_texts_are_visible_on_their_background(
    style: str, cluster: FakeCluster
) -> None:
    read = tree("t", dict.fromkeys(range(5), 0))
    ends = tree("t", {number: number for number in range(5)})
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    with pyplot.style.context(STYLES[style]):
        lines = sparkkafka.plot.lag([report(1, read, ends), report(2, read, ends)], by="partition")
        bars, _ = sparkkafka.plot.partitions("t", options)
        back = lines.get_facecolor()
        assert {line.get_color() for line in lines.lines}.isdisjoint({"white", "black"})
        assert all(contrast(line.get_color(), back) >= 3 for line in lines.lines)
        assert all(contrast(bar.get_facecolor(), back) >= 3 for bar in bars.patches)
        lines.figure.canvas.draw()
        assert all(contrast(text.get_color(), back) >= 7 for text in texts_of(lines))


def test_the_style_is_for_own_plots_too() -> None:
    with pyplot.style.context(sparkkafka.plot.style(dark=True)):
        figure, axes = pyplot.subplots()
        (line,) = axes.plot([1, 2])
        assert line.get_color() == sparkkafka.plot.colours_of(axes)[0]
        assert contrast(figure.get_facecolor(), "white") > 10
        assert not axes.spines["top"].get_visible()


def test_a_transparent_plot_has_the_colours_for_its_figure() -> None:
    figure, axes = pyplot.subplots(facecolor="black")
    axes.set_facecolor("none")
    assert contrast(sparkkafka.plot.colours_of(axes)[0], "black") > 6
    figure.set_facecolor("white")
    assert contrast(sparkkafka.plot.colours_of(axes)[0], "white") > 3
