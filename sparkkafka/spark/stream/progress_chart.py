"""The curves that `sparkkafka.progress` shows in a notebook, as HTML with SVG.

They need no package, and take the notebook's font and text colour, so they fit light and dark
themes. All texts are HTML: the SVG is stretched to the width that there is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

MAX_POINTS: Final = 240
"""The points of a curve. A curve that has more keeps every second one."""

_WIDTH, _HEIGHT = 1000, 100
_GRID = (
    "display:grid;grid-template-columns:auto 1fr;gap:0.2em 0.6em;align-content:start;"
    "flex:1 1 16em;min-width:0"
)
_ENDS = "display:flex;justify-content:space-between"


class Point(NamedTuple):
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
        """Return the curve from `start` to `end`."""
        top = _round_up(max(point.value for point in self.points))
        seconds = max((end - start).total_seconds(), 1e-3)
        places = [
            (
                f"{_WIDTH * (point.time - start).total_seconds() / seconds:.0f}",
                f"{_HEIGHT * (1 - point.value / top):.1f}",
            )
            for point in self.points
        ]
        if len(places) == 1:  # a line as wide as the chart, since a point would not be visible
            places = [("0", places[0][1]), (f"{_WIDTH}", places[0][1])]
        line = " ".join(f"{x},{y}" for x, y in places)
        area = f"{places[0][0]},{_HEIGHT} {line} {places[-1][0]},{_HEIGHT}"
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
    """Return the curves that have points, on one time axis; side by side where that is wide
    enough."""
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
