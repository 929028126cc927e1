"""The output of verbs: aligned tables and redrawn screens for people, JSON for programs.

Text from a cluster may contain any characters. Control characters are shown as escapes, so that a
terminal does not execute them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from sparkkafka.errors import KafkaError

T = TypeVar("T")
Row = Sequence[Any] | Mapping[str, Any]
pause = time.sleep  # tests replace it

PROGRAM: Final = "sparkkafka"
COLUMN_GAP: Final = "  "
MAX_DRAWN: Final = 1_000
"""Maximum number of rows that rich lays out: it takes half a millisecond for each."""
PROBLEM_COLUMNS: Final = frozenset(
    ("controller", "gone", "internal", "lost", "out_of_sync", "unknown", "without_leader")
)
"""Columns whose 0 and "no" are not shown, so that the other values stand out."""


def print_table(columns: Sequence[str], rows: Iterable[Row], *, empty: str | None = None) -> None:
    """Print rows under headings, numbers to the right, without columns that have no value.

    A row has a value (text, number or None) for each column, or is a mapping that `cells_of`
    formats. On a terminal a line that is too long is folded; in a pipe, and in a table of more than
    MAX_DRAWN rows, it is not. Without rows only the line `empty` is printed, if it is given.
    """
    cells = [cells_of(columns, row) if isinstance(row, Mapping) else row for row in rows]
    if not cells:
        if empty is not None:
            print_line(empty)
    elif sys.stdout.isatty() and len(cells) <= MAX_DRAWN:
        from rich.console import Console  # slow to import, like all of rich

        Console(highlight=False).print(table_of(columns, cells))
    else:
        from rich.cells import cell_len

        headings, are_numbers, shown = _without_empty_columns(columns, cells)
        lines = [headings, *([text_of(cell) for cell in row] for row in shown)]
        widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            padded = []
            for text, width, is_number in zip(line, widths, are_numbers, strict=True):
                padding = " " * (width - cell_len(text))
                padded.append(padding + text if is_number else text + padding)
            sys.stdout.write(f"{COLUMN_GAP.join(padded).rstrip()}\n")


def cells_of(columns: Iterable[str], row: Mapping[str, Any]) -> list[Any]:
    """Return the cells of a row as it is printed as JSON. The column's name decides their form:
    bytes get a unit, lists become text, and 0 and False in PROBLEM_COLUMNS become None."""
    cells = []
    for name in columns:
        value = row.get(name)
        if name in PROBLEM_COLUMNS:
            value = value or None
        elif "bytes" in name:
            value = bytes_text(value)
        elif isinstance(value, list):
            value = ",".join(map(str, value)) or None
        cells.append(value)
    return cells


def table_of(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Any:
    """Return the table of `print_table` as a `rich.table.Table`; None without rows. Values may also
    be `rich.text.Text`."""
    from rich.table import Table
    from rich.text import Text

    headings, are_numbers, cells = _without_empty_columns(columns, list(rows))
    if not cells:
        return None
    table = Table(box=None, pad_edge=False, padding=(0, len(COLUMN_GAP), 0, 0), header_style="bold")
    for heading, is_number in zip(headings, are_numbers, strict=True):
        table.add_column(heading, justify="right" if is_number else "left", overflow="fold")
    for row in cells:
        table.add_row(*(cell if isinstance(cell, Text) else Text(text_of(cell)) for cell in row))
    return table


def _without_empty_columns(
    columns: Sequence[str], rows: list[Sequence[Any]]
) -> tuple[list[str], list[bool], list[list[Any]]]:
    """Leave out columns that have no value. Return the headings of the others (SIZE for size_bytes,
    RECORDS/S for records_per_s), whether they hold numbers, and their cells row by row."""
    shown = [n for n in range(len(columns)) if any(row[n] is not None for row in rows)]
    names = (columns[n].removesuffix("_bytes").replace("_per_s", "/s") for n in shown)
    are_numbers = [all(isinstance(row[n], int | float | None) for row in rows) for n in shown]
    # As text, numbers have no commas: a broker may be 1001.
    ids = [n for n in shown if columns[n] in ("broker", "leader", "partition")]
    cells = [
        [str(row[n]) if n in ids and row[n] is not None else row[n] for n in shown] for row in rows
    ]
    return [name.upper() for name in names], are_numbers, cells


def text_of(value: Any) -> str:
    """Format a cell: "-" for None, yes or no, numbers with commas."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return printable(str(value))


def has_colours() -> bool:
    """Return whether stdout is a terminal, and NO_COLOR (no-color.org) does not turn colours
    off."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def printable(text: str) -> str:
    """Replace characters that are not printable, as those that move a terminal's cursor or change
    its colours, by escapes like \\x1b."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape", "replace").decode()
        for character in text
    )


def print_json(value: Any) -> None:
    """Print one JSON document and a line end."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # a lone surrogate, or a stdout that is not UTF-8
        text = json.dumps(value, indent=2)
    sys.stdout.write(f"{text}\n")


def print_rows(
    columns: Sequence[str], rows: list[dict[str, Any]], as_json: bool, *, empty: str | None
) -> None:
    """Print rows as one JSON document, or as a table with these columns."""
    if as_json:
        print_json(rows)
    else:
        print_table(columns, rows, empty=empty)


def print_documents(
    documents: Sequence[Any], print_document: Callable[[Any], None], as_json: bool
) -> None:
    """Print documents as one JSON document, or each for people, with an empty line between them."""
    if as_json:
        print_json(documents)
        return
    for number, document in enumerate(documents):
        if number:
            print_line("")
        print_document(document)


def print_line(text: str) -> None:
    """Print a line of text, control characters as escapes."""
    sys.stdout.write(f"{printable(text)}\n")


def print_configs(configs: Mapping[str, str | None]) -> None:
    """Print settings of a broker or a topic; None is the value of a sensitive one."""
    for name, value in configs.items():
        print_line(f"  {name}={'(hidden)' if value is None else value}")


def print_error(message: str) -> None:
    """Print an error on stderr in one line, with the command's name before it."""
    print_note(f"{PROGRAM}: {' '.join(message.split())}")


def print_note(text: str) -> None:
    """Print a line for people on stderr. If stderr is closed, nothing happens."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{printable(text)}\n")
        sys.stderr.flush()


def sum_of(values: Iterable[Any]) -> Any:
    """Return the sum of the values that are not None; None if there is none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def bytes_text(size_bytes: float | None) -> str | None:
    """Format bytes with a unit of powers of 1000: 1,536 -> "1.5 kB". None stays None."""
    if size_bytes is None:
        return None
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    size, exponent = float(size_bytes), 0
    while round(abs(size), 1) >= 1000 and exponent < len(units) - 1:
        size, exponent = size / 1000, exponent + 1
    decimals = 1 if exponent else 0
    return f"{size:.{decimals}f} {units[exponent]}"


def duration_text(seconds: float | None) -> str | None:
    """Format a duration in its two largest units: 90 -> "1m30s", 200,000 -> "2d7h". None stays
    None."""
    if seconds is None:
        return None
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
    minutes, seconds_left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours}h"
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds_left:02}s"


# --- screens that are redrawn -----------------------------------------------------------------


def redraw(
    shown: T,
    look_up: Callable[[], T],
    picture: Callable[[T, str, Any], Any],
    interval_s: float,
    press: Callable[[str], bool] = lambda key: key != "q",
) -> None:
    """Draw on the terminal's alternate screen, which has no remains of earlier drawings when the
    window changes its size, until `press` returns False for a key, or Ctrl-C. The last drawing
    stays on the normal screen.

    `picture` draws what was looked up last, first `shown`, and the error of a lookup that failed
    since (the cluster may be restarting), for a rich Console.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    failure = ""
    try:
        with Live(console=console, auto_refresh=False, screen=True) as live, _keys() as read_keys:
            snapshot_at_s = time.monotonic() + interval_s
            while True:
                live.update(picture(shown, failure, console), refresh=True)
                keys = read_keys(snapshot_at_s - time.monotonic())
                if keys is not None:
                    if not all(map(press, keys)):
                        return
                    continue
                snapshot_at_s = time.monotonic() + interval_s
                try:
                    shown, failure = look_up(), ""
                except KafkaError as error:
                    failure = str(error)
    finally:
        console.print(picture(shown, failure, console))


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str | None]]:
    """Yield a function that waits at most some seconds for keys, and returns them; None if no key
    was pressed. If stdin is no terminal, it only waits."""
    if not sys.stdin.isatty():
        yield lambda seconds: pause(max(0.0, seconds))
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read_keys(seconds: float) -> str | None:
        """Return the keys that are pressed within this time, None if none is, "" for keys without
        a character."""
        if not select.select([descriptor], [], [], max(0.0, seconds))[0]:
            return None
        read = os.read(descriptor, 64).decode("utf-8", "replace")
        if not read:  # the terminal is gone
            raise KeyboardInterrupt
        # An arrow key is ESC and other characters. No such key has a meaning here.
        return "" if len(read) > 1 and read[0] == "\x1b" else read

    tty.setcbreak(descriptor)  # Ctrl-C still interrupts
    try:
        yield read_keys
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
