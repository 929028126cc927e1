"""What verbs print: aligned tables for people, JSON for programs. rich is imported when it is used.

Text that comes from a cluster may hold anything: what a terminal would obey is shown, not sent.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

PROGRAM: Final = "sparkkafka"
NOTHING: Final = "-"
BETWEEN: Final = "  "
MAX_DRAWN: Final = 1_000
"""Rows that rich lays out, at half a millisecond each."""
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str | None = None
) -> None:
    """Rows under headings, numbers to the right. A column of which no row has a value is left out.

    Values are text, numbers or None. On a terminal too long a line is folded, in a pipe, and in a
    table of more rows than anybody wants to fold, never. Without rows there is only the line
    `empty`, if one is given.
    """
    found = list(rows)
    if not found:
        if empty is not None:
            print_line(empty)
    elif sys.stdout.isatty() and len(found) <= MAX_DRAWN:
        from rich.console import Console

        Console(highlight=False).print(table_of(columns, found))
    else:
        _print_lines(_Cells(columns, found))


def table_of(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Any:
    """The table of `print_table` for rich, None without rows. Values may be `rich.text.Text`."""
    from rich.table import Table
    from rich.text import Text

    cells = _Cells(columns, list(rows))
    if not cells.rows:
        return None
    table = Table(box=None, pad_edge=False, padding=(0, len(BETWEEN), 0, 0), header_style="bold")
    for heading, number in zip(cells.headings, cells.are_numbers, strict=True):
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for row in cells:
        table.add_row(*(cell if isinstance(cell, Text) else Text(text_of(cell)) for cell in row))
    return table


class _Cells:
    """The columns of a table that have values, and the values in them, row by row."""

    def __init__(self, columns: Sequence[str], rows: list[Sequence[Any]]) -> None:
        self.rows = rows
        self._shown = [n for n in range(len(columns)) if any(row[n] is not None for row in rows)]
        self.headings = [columns[n].upper() for n in self._shown]
        self.are_numbers = [
            all(isinstance(row[n], int | float | None) for row in rows) for n in self._shown
        ]

    def __iter__(self) -> Iterator[list[Any]]:
        return ([row[n] for n in self._shown] for row in self.rows)


def _print_lines(cells: _Cells) -> None:
    from rich.cells import cell_len

    lines = [cells.headings, *([text_of(cell) for cell in row] for row in cells)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = []
        for text, width, number in zip(line, widths, cells.are_numbers, strict=True):
            room = " " * (width - cell_len(text))
            padded.append(room + text if number else text + room)
        sys.stdout.write(f"{BETWEEN.join(padded).rstrip()}\n")


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


def records(count: int) -> str:
    """ "1 record", "1,234 records"."""
    return f"{count:,} {'record' if count == 1 else 'records'}"


def print_note(words: str) -> None:
    """What a person wants to know and no program reads: a line on stderr, which may be closed."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{printable(words)}\n")
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
