"""The common look of all plots: colours, labels, grids, time axes.

matplotlib is imported when it is used.

Colour-blind people can distinguish the colours, which are those of Okabe and Ito, darker or lighter
where the background needs it; lines also differ by their markers. Everything else has the colours
of matplotlib's current style.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from sparkkafka.errors import OptionError
from sparkkafka.extras import needs_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    others are grey. `named`: with a legend beside the plot."""
    colours = colours_of(ax)
    # By the largest value, without NaN.
    by_size = sorted(series, key=lambda name: -max((v for v in series[name] if v == v), default=0))
    for number, name in enumerate(by_size[:MAX_NAMED]):
        ax.plot(
            times,
            series[name],
            color=colours[number],
            marker=MARKERS[number],
            markevery=1 + len(times) // 50,
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
