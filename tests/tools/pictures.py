"""Saves pictures of the docs, light and dark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib
from matplotlib import pyplot

import sparkkafka

DOCS = Path(__file__).resolve().parents[2] / "docs"


def save_both(name: str, draw: Callable[[], object], folder: Path = DOCS) -> None:
    """Save the figure that `draw` draws: as NAME.png for light pages, NAME-dark.png for dark ones.
    The background is transparent."""
    matplotlib.use("Agg")
    for dark in (False, True):
        with pyplot.style.context(sparkkafka.plot.style(dark=dark)):
            draw()
            # Without the version of matplotlib, the same data give the same bytes.
            pyplot.savefig(
                folder / f"{name}{'-dark' if dark else ''}.png",
                dpi=130,
                transparent=True,
                pil_kwargs={"optimize": True},
                metadata={"Software": None},
            )
            pyplot.close()
