"""Measuring in turn: ours, the rival, ours, the rival, … in one quiet process."""

from __future__ import annotations

import contextlib
import gc
import statistics
from collections.abc import Callable, Iterator

from tests.bench.results import Row


@contextlib.contextmanager
def quiet(*, collects: bool = False) -> Iterator[None]:
    """No garbage collection in between; reference counting frees what both sides make.

    With `collects` it goes on, as in a program, but looks at nothing that was there before.
    """
    gc.collect()
    gc.freeze()
    if not collects:
        gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def take_turns(
    row: Row,
    ours: Callable[[], float],
    theirs: Callable[[], float],
    pairs: int,
    say: Callable[[str], None],
    *,
    collects: bool = False,
) -> Row:
    """Fills the row. Both give the seconds of a run; the first of each is a warm-up."""
    with quiet(collects=collects):
        ours(), theirs()
        for _ in range(pairs):
            row.ours_s.append(ours())
            row.theirs_s.append(theirs())
    low, high = row.spread
    goal = "" if row.met is None else f", target {row.target:g} {'met' if row.met else 'MISSED'}"
    say(
        f"{row.name}: {statistics.median(row.ours):.3f} {row.unit}, {row.ratio:.1f} "
        f"({low:.1f} to {high:.1f}) times {row.rival}{goal}"
    )
    return row
