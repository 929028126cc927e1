"""What verbs print: aligned tables for people, JSON for programs. rich is imported when it is used.

Text that comes from a cluster may hold anything: what a terminal would obey is shown, not sent.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

PROGRAM: Final = "sparkkafka"
NOTHING: Final = "-"
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Rows under headings, numbers to the right. A column of which no row has a value is left out.

    Values are text, numbers, None or `rich.text.Text`. On a terminal too long a line is folded, in
    a pipe never.
    """
    from rich.console import Console

    table = table_of(columns, rows)
    if table is None:
        return
    if sys.stdout.isatty():
        Console(highlight=False).print(table)
        return
    console = Console(width=10_000, highlight=False, color_system=None)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        sys.stdout.write(f"{line.rstrip()}\n")


def table_of(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Any:
    """The `rich.table.Table` of `print_table`; None without rows."""
    from rich.table import Table
    from rich.text import Text

    found = [list(row) for row in rows]
    if not found:
        return None
    shown = [n for n in range(len(columns)) if any(row[n] is not None for row in found)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for n in shown:
        number = all(isinstance(row[n], int | float | None) for row in found)
        table.add_column(columns[n].upper(), justify="right" if number else "left", overflow="fold")
    for row in found:
        cells = (row[n] for n in shown)
        table.add_row(*(cell if isinstance(cell, Text) else Text(text_of(cell)) for cell in cells))
    return table


def text_of(value: Any) -> str:
    """A cell: "-" for None, numbers with commas, yes or no."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return printable(str(value))


def printable(text: str) -> str:
    """The text without what moves a terminal's cursor or its colours: \\x1b for the byte itself."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "replace").decode()
        for one in text
    )


def print_json(value: Any) -> None:
    """One JSON document, and a line end."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # half of a pair, or a stdout that is not of UTF-8
        text = json.dumps(value, indent=2)
    sys.stdout.write(f"{text}\n")


def print_line(text: str) -> None:
    """A line of text; what a terminal would obey is shown."""
    sys.stdout.write(f"{printable(text)}\n")


def print_error(words: str) -> None:
    """One line on stderr, which may be closed."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{PROGRAM}: {printable(' '.join(words.split()))}\n")
        sys.stderr.flush()


def bytes_text(size_bytes: int | None) -> str | None:
    """1,536 -> "1.5 kB", in powers of 1000; None stays None."""
    if size_bytes is None:
        return None
    size = float(size_bytes)
    for unit in _UNITS:
        if abs(size) < 1000 or unit == _UNITS[-1]:
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def duration_text(seconds: float | None) -> str | None:
    """90 -> "1m30s", 200,000 -> "2d7h"; the two largest units. None stays None."""
    if seconds is None:
        return None
    if seconds < _MINUTE_S:
        return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
    whole = int(seconds)
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S}m{whole % _MINUTE_S:02}s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S}h{whole % _HOUR_S // _MINUTE_S:02}m"
    return f"{whole // _DAY_S}d{whole % _DAY_S // _HOUR_S}h"
