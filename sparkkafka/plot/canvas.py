"""Axes that look alike: colours, grids, numbers; matplotlib is imported when it is used.

Colours are those of Okabe and Ito, which colour-blind people tell apart; each line has a marker of
its own, too. Everything else is in the colours of matplotlib's current style, light or dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from sparkkafka.errors import OptionError
from sparkkafka.extras import needs_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")
MARKERS: Final = ("o", "s", "^", "D", "v")
MAX_NAMED: Final = len(COLOURS)
"""Lines with a colour and a name; the others are grey."""

_NAME_CHARACTERS = 32
_MARGIN = timedelta(seconds=10)
_WIDTH, _PANEL_WIDTH, _HEIGHT = 8.0, 4.5, 3.6  # inches


def needs_matplotlib(what: str) -> None:
    """Before anything is asked or read. Raises ImportError, which says what to install."""
    with needs_extra(f"sparkkafka.plot.{what} needs matplotlib, which is not here", "plot"):
        import matplotlib  # noqa: F401


def new_axes(ax: Any, count: int, what: str) -> list[Axes]:
    """`count` axes side by side: those given, else those of a new figure.

    Raises OptionError for axes that are none, or not as many.
    """
    from matplotlib import pyplot
    from matplotlib.axes import Axes

    if ax is None:
        size = (_WIDTH if count == 1 else _PANEL_WIDTH * count, _HEIGHT)
        _, made = pyplot.subplots(1, count, figsize=size, layout="constrained", squeeze=False)
        return list(made.flat)
    given = list(getattr(ax, "flat", ax)) if isinstance(ax, Iterable) else [ax]
    if len(given) != count or not all(isinstance(one, Axes) for one in given):
        raise OptionError(f"{what} draws into {count} of matplotlib's Axes, got ax={ax!r}")
    return given


def short(name: str, most: int = _NAME_CHARACTERS) -> str:
    """A name that leaves room for the picture, without what matplotlib takes for a formula."""
    name = "".join(one if one.isprintable() else "�" for one in name)
    if len(name) > most:
        name = f"{name[: most - 8]}…{name[-7:]}"
    return name.replace("$", r"\$")


def _in_legend(name: str) -> str:
    """Legends leave out what begins with "_", as __consumer_offsets does: a space of no width is in
    front of it there."""
    return f"\u200b{short(name)}" if name.startswith("_") else short(name)


def grey(ax: Axes) -> tuple[Any, float]:
    """(colour, alpha) of what is in the background, for light and dark styles."""
    return ax.xaxis.label.get_color(), 0.3


def dress(ax: Axes, *, title: str, x: str, y: str, grid: str = "y") -> None:
    """Labels, numbers with commas from 0 on, a faint grid."""
    colour, alpha = grey(ax)
    ax.set_title(title, loc="left")
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(axis=grid, color=colour, alpha=alpha / 2, linewidth=0.8)  # type: ignore[arg-type]
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def lines(
    ax: Any, times: Sequence[datetime], series: Mapping[str, Sequence[float]], *, named: bool
) -> None:
    """A line for each series, over time; NaN is a gap. Of many the largest have a colour each.

    `named`: with a legend, beside the picture.
    """
    import matplotlib.dates

    dates: Any = matplotlib.dates  # without types
    # By what was the largest at any time: NaN never is larger.
    by_size = sorted(series, key=lambda name: -max((v for v in series[name] if v == v), default=0))
    for number, name in enumerate(by_size[:MAX_NAMED]):
        ax.plot(
            times,
            series[name],
            color=COLOURS[number],
            marker=MARKERS[number],
            markevery=1 + len(times) // 50,
            # The next one lies on it, and is thinner: lines that are the same are all seen.
            markersize=6.5 - 0.9 * number,
            linewidth=2.6 - 0.4 * number,
            label=_in_legend(name),
            zorder=2 + number / 10,
        )
    colour, alpha = grey(ax)
    label: str | None = f"{len(series) - MAX_NAMED} others"
    for name in by_size[MAX_NAMED:]:
        ax.plot(
            times, series[name], color=colour, alpha=alpha, linewidth=0.8, label=label, zorder=1.5
        )
        label = None  # one entry for all
    if len(series) == 1:
        ax.fill_between(times, series[by_size[0]], color=COLOURS[0], alpha=0.15, linewidth=0)
    if times[0] == times[-1]:
        ax.set_xlim(times[0] - _MARGIN, times[0] + _MARGIN)
    locator = dates.AutoDateLocator(maxticks=8)
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.set_ylim(0, max(1.0, ax.get_ylim()[1]))
    if named:
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize="small")
