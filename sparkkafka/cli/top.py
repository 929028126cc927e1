"""`top`: the brokers, topics and consumer groups of a cluster on one live screen."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, Literal, get_args

import typer
from typer import Option

from sparkkafka.cli import snapshots, tables
from sparkkafka.cli.commands import AsJson, seconds_of, session_of
from sparkkafka.errors import OptionError, counted

app = typer.Typer(rich_markup_mode=None, add_completion=False)

Sort = Literal["rate", "size", "name"]
BROKER_COLUMNS: Final = (
    *("broker", "address", "rack", "state", "controller", "leaders", "replicas", "out_of_sync"),
    *("size_bytes", "free_bytes"),
)
TOPIC_COLUMNS: Final = (
    *("topic", "partitions", "records_per_s", "bytes_per_s", "size_bytes", "skew"),
    *("without_leader", "out_of_sync"),
)
GROUP_COLUMNS: Final = ("group", "state", "members", "lag", "change/s", "catches_up_in", "topics")
MAX_PROBLEMS: Final = 3
"""Maximum number of lines about lookups that failed."""

Every = Annotated[
    str, Option("--every", metavar="TIME", help="Time between two snapshots: 2s, 500ms, 1m.")
]


@dataclass
class View:
    """How a snapshot is shown: the sort order, and the text that names of topics and groups must
    contain. While `is_typing`, the keys that are pressed change that text."""

    sort: Sort = "rate"
    filter: str = ""
    is_typing: bool = False

    def topics(self, snapshot: snapshots.Snapshot) -> list[snapshots.TopicRow]:
        """Return the topics to show, sorted."""
        shown = (row for row in snapshot.topics if self.filter.lower() in row.topic.lower())
        return sorted(shown, key=snapshots.TOPIC_ORDERS[self.sort])

    def groups(self, snapshot: snapshots.Snapshot) -> list[snapshots.GroupRow]:
        """Return the groups to show: by name, or those with the largest lag first."""
        shown = (row for row in snapshot.groups if self.filter.lower() in row.group.lower())
        return sorted(shown, key=snapshots.GROUP_ORDERS["name" if self.sort == "name" else "lag"])


@app.command()
def top(
    context: typer.Context,
    every: Every = "2s",
    once: bool = Option(False, "--once", help="Print one snapshot and end, for pipes and scripts."),
    sort: Sort = Option("rate", metavar="KEY", help="Sort by rate (and lag), size or name."),
    filter_: str = Option(
        "", "--filter", metavar="TEXT", help="Only topics and groups with it in the name."
    ),
    rows: int = Option(20, min=1, help="The most topics, and groups, of --once."),
    as_json: AsJson = False,
) -> None:
    """Show brokers, topics by rate and groups by lag on one screen, until q or Ctrl-C.

    Rates are changes between snapshots: records/s of the ends of logs (transaction markers count),
    bytes/s of the files on the leaders' disks, which need DESCRIBE on the cluster. CATCHES_UP_IN is
    the lag divided by the speed at which it shrinks. Keys: s sorts, / filters, q ends. --once and
    --json take two snapshots, --every apart.

    \b
      sparkkafka -b localhost:9092 top
      sparkkafka -b localhost:9092 top --once --sort size --rows 50
      sparkkafka -b localhost:9092 top --json | jq '.groups[] | select(.is_growing)'
    """
    interval_s = seconds_of_every(every)
    view = View(sort, filter_)
    is_single = once or as_json
    if not is_single and not sys.stdout.isatty():
        raise OptionError("top redraws a terminal: in a pipe there is --once or --json")
    with snapshots.Collector(session_of(context).admin()) as collector:
        snapshot = collector.collect()
        if is_single:
            tables.pause(interval_s)
            snapshot = collector.collect()
        if as_json:
            tables.print_json(snapshots.document_of(snapshot))
        elif once:
            print_snapshot(snapshot, view, rows)
        else:
            draw, on_key = partial(picture, view), partial(press, view)
            tables.redraw(snapshot, collector.collect, draw, interval_s, on_key)


def seconds_of_every(text: str) -> float:
    """Return the seconds of --every. Raises OptionError."""
    seconds = seconds_of(text, "--every")
    low, high = (0.5, 3_600.0)
    if not low <= seconds <= high:
        raise OptionError(f"--every is a time from 500ms to 1h, got {text[:100]!r}")
    return seconds


# --- cells ------------------------------------------------------------------------------------


def group_cells(row: snapshots.GroupRow) -> tuple[Any, ...]:
    """Return the cells of GROUP_COLUMNS, with the two topics that have the largest lag."""
    largest = sorted(row.lag_by_topic, key=lambda topic: (-row.lag_by_topic[topic], topic))
    more = f" +{len(largest) - 2}" if len(largest) > 2 else ""
    return (
        row.group,
        row.state,
        row.members,
        row.lag,
        row.lag_per_s,
        tables.duration_text(row.catch_up_s),
        f"{', '.join(largest[:2])}{more}" if largest else None,
    )


def headlines(snapshot: snapshots.Snapshot) -> tuple[str, str]:
    """Return two lines: the cluster's id and its numbers of brokers, topics and partitions; and the
    total rates and lag."""
    totals = snapshot.totals
    rate, growth, lag = totals["records_per_s"], totals["bytes_per_s"], totals["lag"]
    parts = [
        None if rate is None else f"{tables.text_of(rate)} records/s",
        None if growth is None else f"{tables.bytes_text(growth)}/s",
        counted(totals["groups"], "group")
        + (f" {tables.text_of(lag)} behind" if lag is not None else ""),
    ]
    return (
        f"cluster {snapshot.cluster_id}: {counted(totals['brokers'], 'broker')}, "
        f"{counted(totals['topics'], 'topic')} with {counted(totals['partitions'], 'partition')}",
        ", ".join(part for part in parts if part),
    )


def problem_lines(snapshot: snapshots.Snapshot) -> list[str]:
    """Return a line for each problem of the cluster, and for lookups that failed."""
    totals = snapshot.totals
    missing = [row for row in snapshot.brokers if row.state != "online"]
    lines = [f"broker {row.broker}: {row.state}" for row in missing]
    if totals["without_leader"]:
        lines.append(f"{counted(totals['without_leader'], 'partition')} without a leader")
    if totals["out_of_sync"]:
        lines.append(
            f"{counted(totals['out_of_sync'], 'partition')} under-replicated (replicas out of sync)"
        )
    if totals["groups_growing"]:
        lines.append(f"{counted(totals['groups_growing'], 'group')} with a lag that grows")
    more = len(snapshot.problems) - MAX_PROBLEMS
    return [
        *lines,
        *snapshot.problems[:MAX_PROBLEMS],
        *([f"and {counted(more, 'problem')} more"] if more > 0 else ()),
    ]


# --- once -------------------------------------------------------------------------------------


def print_snapshot(snapshot: snapshots.Snapshot, view: View, max_rows: int) -> None:
    """Print a snapshot, with at most `max_rows` topics and groups."""
    for line in headlines(snapshot):
        tables.print_line(line)
    for line in problem_lines(snapshot):
        tables.print_line(f"! {line}")
    tables.print_line("")
    tables.print_table(BROKER_COLUMNS, map(vars, snapshot.brokers))
    topics: list[Any] = list(map(vars, view.topics(snapshot)))
    groups: list[Any] = list(map(group_cells, view.groups(snapshot)))
    for columns, rows, what in ((TOPIC_COLUMNS, topics, "topic"), (GROUP_COLUMNS, groups, "group")):
        tables.print_line("")
        tables.print_table(columns, rows[:max_rows], empty=f"no {what}s")
        if (more := len(rows) - max_rows) > 0:
            tables.print_line(f"and {counted(more, what)} more (--rows, --filter)")


# --- repeatedly -------------------------------------------------------------------------------


def press(view: View, key: str) -> bool:
    """Handle a key. Return False for the one that ends the command."""
    if view.is_typing:
        if key in "\r\n\x1b":
            view.is_typing = False
            view.filter = "" if key == "\x1b" else view.filter
        elif key in "\x7f\b":
            view.filter = view.filter[:-1]
        elif key.isprintable():
            view.filter += key
    elif key == "s":
        sorts: tuple[Sort, ...] = get_args(Sort)
        view.sort = sorts[(sorts.index(view.sort) + 1) % len(sorts)]
    elif key == "/":
        view.is_typing, view.filter = True, ""
    return view.is_typing or key != "q"


def picture(view: View, snapshot: snapshots.Snapshot, failure: str, console: Any) -> Any:
    """Return a screen of the terminal's size: the headlines, the problems, brokers, and as many
    topics and groups as fit. `failure` is the error of the last lookup."""
    from rich.console import Group
    from rich.text import Text

    lines = [Text(tables.printable(line), style="bold") for line in headlines(snapshot)]
    lines += (Text(f"! {tables.printable(line)}", style="red") for line in problem_lines(snapshot))
    if failure:
        lines.append(Text(f"the last lookup failed: {tables.printable(failure)}", style="bold red"))
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.time_ms / 1000))
    shown = f"/{view.filter}_" if view.is_typing else f"filter {view.filter!r}, / changes it"
    status = Text(
        f"{clock}, took {snapshot.took_s:.1f} s   sorted by {view.sort}, s changes it   "
        f"{shown if view.filter or view.is_typing else '/ filters'}   q ends",
        style="dim",
    )
    for text in (*lines, status):
        text.no_wrap, text.overflow = True, "ellipsis"
    topics, groups = view.topics(snapshot), view.groups(snapshot)
    brokers = sorted(snapshot.brokers, key=lambda row: (row.state == "online", row.broker))
    # Each table has its heading, and below it a line that is empty or counts the other rows.
    row_count = max(console.height - len(lines) - 1 - 3 * 2, 3)
    lists: tuple[tuple[tuple[str, ...], Sequence[Any], str], ...] = (
        (BROKER_COLUMNS, brokers, "broker"),
        (TOPIC_COLUMNS, topics, "topic"),
        (GROUP_COLUMNS, groups, "group"),
    )
    counts = _shared_rows(row_count, len(brokers), len(topics), len(groups))
    parts: list[Any] = list(lines)
    for (columns, rows, what), count in zip(lists, counts, strict=True):
        cells = [
            group_cells(row) if what == "group" else tables.cells_of(columns, vars(row))
            for row in rows[:count]
        ]
        table = _fitting_table(columns, cells, [*map(_style_of, rows[:count])], console)
        parts.append(table or Text(f"no {what}s", style="dim"))
        more = len(rows) - len(cells)
        parts.append(Text(f"and {counted(more, what)} more" if more else "", style="dim"))
    return Group(*parts, status)


def _shared_rows(count: int, brokers: int, topics: int, groups: int) -> tuple[int, int, int]:
    """Return how many of `count` rows the brokers, topics and groups get, each at least one that it
    has: brokers up to a quarter, then groups up to half of the rest or what topics leave free."""
    for_brokers = min(brokers, max(count // 4, 1))
    rest = count - for_brokers
    for_groups = min(groups, max(rest // 2, rest - topics, 1))
    return for_brokers, max(rest - for_groups, 1), for_groups


def _style_of(row: snapshots.BrokerRow | snapshots.TopicRow | snapshots.GroupRow) -> str:
    """Return the colour of a row that has a problem, "" for other rows."""
    if isinstance(row, snapshots.TopicRow):
        return "red" if row.without_leader else "yellow" if row.out_of_sync else ""
    has_problem = row.is_growing if isinstance(row, snapshots.GroupRow) else row.state != "online"
    return "red" if has_problem else ""


def _fitting_table(
    columns: Sequence[str], cells: Sequence[Sequence[Any]], styles: Sequence[str], console: Any
) -> Any:
    """Return a table with one line for each row, in the row's style; None without rows. Columns for
    which the terminal is too narrow are left out, the least important first."""
    from rich.cells import cell_len
    from rich.measure import Measurement

    shown = list(range(len(columns)))
    less_important = (
        *("free_bytes", "replicas", "controller", "rack", "address", "size_bytes", "partitions"),
        *("skew", "topics", "members"),
    )
    dropped = [columns.index(name) for name in less_important if name in columns]
    unlimited = console.options.update(max_width=10_000)
    while True:
        table = tables.table_of(
            [columns[n] for n in shown], [[row[n] for n in shown] for row in cells]
        )
        if table is None:
            return None
        excess = Measurement.get(console, unlimited, table).maximum - console.width
        if not dropped or excess <= 0:
            break
        shown.remove(dropped.pop(0))
    for column in table.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    if excess > 0:  # the names are cut
        names = table.columns[0]
        names.max_width = max(8, max(map(cell_len, map(str, names.cells))) - excess)
    for row, style in zip(table.rows, styles, strict=True):
        row.style = style
    return table
