"""Curves as HTML: where their points are, what the labels say, and how many points there are."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import pytest

from sparkkafka.spark.stream.progress import MAX_POINTS, Curve, Point, chart_html

START = datetime(2026, 1, 31, 23, 59, 50, tzinfo=UTC)


def curve(*values: tuple[float, float]) -> Curve:
    """Return a curve of (seconds after START, value)."""
    made = Curve("rows/s", "#16877a")
    for second, value in values:
        made.add(Point(START + timedelta(seconds=second), value))
    return made


def drawn(*curves: Curve) -> list[list[tuple[float, float]]]:
    """Return the points of each line, in the coordinates of its SVG."""
    tree = ElementTree.fromstring(chart_html(curves))
    return [
        [tuple(float(number) for number in point.split(",")) for point in line.split()]
        for line in (element.get("points") for element in tree.iter("polyline"))
    ]


def texts(*curves: Curve) -> list[str]:
    return [text for text in ElementTree.fromstring(chart_html(curves)).itertext() if text]


def test_curves_share_their_time_and_have_scales_of_their_own() -> None:
    rates, lags = curve((0, 0), (5, 1_000), (10, 400)), curve((5, 30), (20, 0))
    assert drawn(rates, lags) == [[(0, 100), (250, 0), (500, 60)], [(250, 40), (1000, 100)]]
    ends = ["23:59:50", "00:00:10 UTC"]
    assert texts(rates, lags) == ["rows/s", "1,000", "0", *ends, "rows/s", "50", "0", *ends]


def test_a_chart_of_days_has_dates() -> None:
    assert texts(curve((0, 1), (3 * 86_400, 1)))[-2:] == [
        "2026-01-31 23:59",
        "2026-02-03 23:59 UTC",
    ]


def test_one_point_is_a_line_and_none_is_no_chart() -> None:
    assert drawn(curve((0, 5))) == [[(0, 0), (1000, 0)]]
    assert chart_html([curve()]) == ""
    assert len(drawn(curve(), curve((0, 0)))) == 1


def test_points_that_are_not_later_are_skipped() -> None:
    made = curve((0, 1), (1, 2), (1, 3), (0, 4))
    made.add(None)
    assert [point.value for point in made.points] == [1, 2]


def test_a_long_curve_keeps_its_ends_and_few_points() -> None:
    made = curve(*((second, second) for second in range(10_000)))
    assert MAX_POINTS / 3 < len(made.points) <= MAX_POINTS
    assert (made.points[0].value, made.points[-1].value) == (0, 9_999)
    assert len(chart_html([made])) < 12_000


@pytest.mark.parametrize(
    ("value", "top"), [(0, "1"), (0.3, "1"), (1, "1"), (3, "5"), (99, "100"), (2e6, "2,000,000")]
)
def test_scales_end_at_round_numbers(value: Any, top: str) -> None:
    assert texts(curve((0, value)))[1] == top


def test_the_colours_fit_light_and_dark_themes() -> None:
    html = chart_html([curve((0, 1))])
    assert set(re.findall(r"#[0-9a-f]{6}", html)) == {"#16877a"}
    assert "currentColor" in html
