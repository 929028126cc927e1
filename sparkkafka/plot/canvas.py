"""The common look of all plots: colours, labels, grids. matplotlib is imported when it is used.

The colours are those of Okabe and Ito, which colour-blind people can distinguish; lines also differ
by their markers. Everything else has the colours of matplotlib's current style, light or dark.
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
"""The number of lines that have a colour and a name; others are grey."""


def needs_matplotlib(what: str) -> None:
    """Raise ImportError, which says what to install, if matplotlib is missing. `what` is the
    function that needs it."""
    with needs_extra(f"sparkkafka.plot.{what} needs matplotlib, which is not here", "plot"):
        import matplotlib  # noqa: F401


def new_axes(ax: Any, count: int, what: str) -> list[Axes]:
    """Return `count` axes side by side: those in `ax`, or those of a new figure if it is None.

    Raises OptionError if `ax` is something else, or not as many axes. `what`: the function, for
    that error.
    """
    from matplotlib import pyplot
    from matplotlib.axes import Axes

    if ax is None:
        inches = (8.0 if count == 1 else 4.5 * count, 3.6)
        _, grid = pyplot.subplots(1, count, figsize=inches, layout="constrained", squeeze=False)
        return list(grid.flat)
    axes = list(getattr(ax, "flat", ax)) if isinstance(ax, Iterable) else [ax]
    if len(axes) != count or not all(isinstance(row, Axes) for row in axes):
        raise OptionError(f"{what} draws into {count} of matplotlib's Axes, got ax={ax!r}")
    return axes


def shorten(name: str, max_length: int = 32) -> str:
    """Shorten a name for a plot, and escape "$", which begins a formula in matplotlib."""
    name = "".join(character if character.isprintable() else "�" for character in name)
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


def add_labels(ax: Axes, *, title: str, x: str, y: str, grid: str = "y") -> None:
    """Add a title, labels and a faint grid."""
    colour, alpha = faint_style(ax)
    ax.set_title(title, loc="left")
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(axis=grid, color=colour, alpha=alpha / 2, linewidth=0.8)  # type: ignore[arg-type]
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def draw_lines(
    ax: Any, times: Sequence[datetime], series: Mapping[str, Sequence[float]], *, named: bool
) -> None:
    """Draw a line for each series over time; NaN is a gap. The largest ones have colours, the
    others are grey. `named`: with a legend beside the plot."""
    import matplotlib.dates

    dates: Any = matplotlib.dates  # it has no type hints
    # By the largest value, without NaN.
    by_size = sorted(series, key=lambda name: -max((v for v in series[name] if v == v), default=0))
    for number, name in enumerate(by_size[:MAX_NAMED]):
        ax.plot(
            times,
            series[name],
            color=COLOURS[number],
            marker=MARKERS[number],
            markevery=1 + len(times) // 50,
            # Later lines are thinner, so that lines on top of each other are all visible.
            markersize=6.5 - 0.9 * number,
            linewidth=2.6 - 0.4 * number,
            label=_legend_name(name),
            zorder=2 + number / 10,
        )
    colour, alpha = faint_style(ax)
    label: str | None = f"{len(series) - MAX_NAMED} others"
    for name in by_size[MAX_NAMED:]:
        ax.plot(
            times, series[name], color=colour, alpha=alpha, linewidth=0.8, label=label, zorder=1.5
        )
        label = None  # one legend entry for all
    if len(series) == 1:
        ax.fill_between(times, series[by_size[0]], color=COLOURS[0], alpha=0.15, linewidth=0)
    if times[0] == times[-1]:
        ax.set_xlim(times[0] - timedelta(seconds=10), times[0] + timedelta(seconds=10))
    locator = dates.AutoDateLocator(maxticks=8)
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.set_ylim(0, max(1.0, ax.get_ylim()[1]))
    if named:
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize="small")
