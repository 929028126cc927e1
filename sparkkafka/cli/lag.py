"""`lag`: how far a group or a streaming query is behind, once or redrawn until q."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Final

import typer
from typer import Argument, Option

from sparkkafka.cli import commands, tables
from sparkkafka.cli.bounded_admin import BoundedAdmin
from sparkkafka.cli.session import Session
from sparkkafka.client.lags import AgeReader, PartitionLag, list_lags
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import (
    CheckpointError,
    ErrorCode,
    KafkaError,
    OptionError,
    UnknownTopicError,
    counted,
    some,
)

app = typer.Typer(rich_markup_mode=None, add_completion=False)

COLUMNS: Final = ("topic", "partition", "committed", "end", "lag", "behind", "gone")
BAR_CELLS: Final = 30
"""The width of the longest bar that --watch draws."""

CommittedOf = Callable[[BoundedAdmin], Mapping[TopicPartition, int | None]]
"""A function that looks up the committed offset of each partition (None: there is none)."""


@dataclass(frozen=True)
class LagOptions:
    """The options of `lag` and of `checkpoint lag`."""

    watch: Annotated[bool, Option("--watch", "-w", help="Redraw until q or Ctrl-C.")] = False
    interval: Annotated[
        float | None, Option(metavar="SECONDS", help="Time between two lookups, with --watch: 2.")
    ] = None
    ages: Annotated[
        bool, Option("--ages/--no-ages", help="Fetch the oldest unread record, to show its age.")
    ] = True
    as_json: commands.AsJson = False


@app.command()
@commands.with_option_groups
def lag(
    context: typer.Context,
    *,
    group: Annotated[
        str | None,
        Argument(metavar="GROUP", help="The consumer group.", autocompletion=commands.group_names),
    ] = None,
    checkpoint: str | None = Option(
        None, metavar="DIR", help="The checkpoint of a streaming query, instead of a group."
    ),
    options: LagOptions,
) -> None:
    """Show the lag of a group or of a streaming query, in offsets and in seconds; without either
    the lag of each consumer group in offsets, the largest first.

    The seconds are the age of the oldest unread record: this machine's clock minus the record's
    timestamp. The command fetches that record (READ on the topic). With --watch --json each lookup
    is one line of JSON.

    \b
      sparkkafka -b localhost:9092 lag
      sparkkafka -b localhost:9092 lag billing
      sparkkafka -b localhost:9092 lag billing --watch
      sparkkafka -b localhost:9092 lag --checkpoint /data/checkpoints/orders
    """
    session = commands.session_of(context)
    if group is not None and checkpoint is not None:
        raise OptionError("GROUP and --checkpoint exclude each other: remove one")
    if group is not None:
        committed_of = partial(committed_of_group, group=group)
        show_lag(session, f"group {group}", committed_of, options)
    elif checkpoint is not None:
        show_lag_of_checkpoint(session, checkpoint, options)
    else:
        if options.watch or options.interval is not None:
            raise OptionError(
                "--watch and --interval are for one GROUP or --checkpoint: `sparkkafka top` "
                "redraws all groups"
            )
        _print_lag_of_groups(session, options.as_json)


def _print_lag_of_groups(session: Session, as_json: bool) -> None:
    """Print a row for each consumer group, the largest lag first. Raises typer.Exit (1) if a group
    could not be looked up."""
    with session.admin() as admin:
        listed = admin.list_consumer_groups()
        names = [row.group_id for row in listed]
        described = admin.describe_consumer_groups(names)
        committed = admin.offsets_of_groups(names)
        partitions = {tp: None for offsets in committed.values_by_item.values() for tp in offsets}
        ends = {row.partition: row for row in list_lags(admin, partitions)}  # nothing committed yet
    rows: list[dict[str, Any]] = []
    for group, offsets in committed.values_by_item.items():
        lags = [replace(ends[tp], committed=offset) for tp, offset in offsets.items()]
        description = described.values_by_item.get(group)
        rows.append(
            {
                "group": group,
                "state": None if description is None else description.state,
                "members": None if description is None else len(description.members),
                "partitions": len(lags),
                "lag": tables.sum_of(row.lag for row in lags),
                "gone": sum(row.gone for row in lags),
                "unknown": sum(row.lag is None for row in lags),
            }
        )
    rows.sort(key=lambda row: (1 if row["lag"] is None else -row["lag"], row["group"]))
    columns = ("group", "state", "members", "partitions", "lag", "gone", "unknown")
    empty = None if listed.errors else "no consumer groups"
    tables.print_rows(columns, rows, as_json, empty=empty)
    if rows and not as_json:
        total = tables.text_of(sum(row["lag"] or 0 for row in rows))
        tables.print_line(f"{counted(len(rows), 'group')}: {total} behind in all")
    errors = [*listed.errors.values(), *described.errors.values(), *committed.errors.values()]
    # A deleted topic is no error: groups keep its offsets for days.
    unknown = (row.error for row in ends.values() if row.error is not None)
    errors += (error for error in unknown if not isinstance(error, UnknownTopicError))
    commands.fail_each({str(error): error for error in errors}.values())


def show_lag_of_checkpoint(session: Session, location: str, options: LagOptions) -> None:
    """Show how far a streaming query is behind. Its position is the end of its last finished batch,
    where its next start continues."""
    from sparkkafka.checkpoints.against_kafka import next_offsets
    from sparkkafka.checkpoints.logs import Checkpoint

    checkpoint = Checkpoint(location)

    def committed_of(admin: BoundedAdmin) -> Mapping[TopicPartition, int | None]:
        """Return the offset at which the query's next start continues, by partition."""
        current = checkpoint.reload()
        if not current.committed:
            raise CheckpointError(
                f"{current.location}: no batch has finished yet, so the lag is not known"
            )
        return next_offsets(current, admin)

    show_lag(session, f"checkpoint {checkpoint.location}", committed_of, options)


def show_lag(session: Session, title: str, committed_of: CommittedOf, options: LagOptions) -> None:
    """Print the lags, or redraw them until q. Raises OptionError, KafkaError; typer.Exit (1) if
    those of a partition could not be looked up."""
    if options.interval is not None and not options.watch:
        raise OptionError("--interval is for --watch: give that too")
    interval_s = 2.0 if options.interval is None else options.interval
    if not 0.5 <= interval_s <= 86_400:
        raise OptionError(f"--interval is at least 0.5 s, got {interval_s:g}")
    if options.watch and not options.as_json and not sys.stdout.isatty():
        raise OptionError("--watch redraws a terminal: in a pipe there is --watch --json")
    with ExitStack() as stack:
        ages = None
        if options.ages:
            ages = stack.enter_context(closing(AgeReader(session.settings("consumer"))))
        admin = stack.enter_context(session.admin())

        def look_up() -> list[PartitionLag]:
            """Look up the lags on the same connections, with a new deadline."""
            nonlocal ages
            admin.restart_deadline()
            lags = list_lags(admin, committed_of(admin))
            try:
                return lags if ages is None else ages.add_ages(lags, admin.deadline)
            except KafkaError as error:
                tables.print_error(f"ages are not shown: {error}")
                ages = None
                return lags

        rows = look_up()
        if options.watch and not options.as_json:
            tables.redraw(rows, look_up, partial(picture, title), interval_s)
            return
        while options.watch:  # until Ctrl-C
            json.dump(document_of(title, rows), sys.stdout)
            sys.stdout.write("\n")
            sys.stdout.flush()
            tables.pause(interval_s)
            rows = look_up()
    if options.as_json:
        tables.print_json(document_of(title, rows))
    else:
        tables.print_table(COLUMNS, [cells_of(row) for row in rows])
        tables.print_line(summary_of(title, rows))
    commands.fail_each(
        KafkaError(f"{row.partition}: {row.error}") for row in rows if row.error is not None
    )


def committed_of_group(admin: BoundedAdmin, group: str) -> dict[TopicPartition, int | None]:
    """Return the group's committed offsets; None for an assigned partition without one.

    Raises BrokerError GROUP_ID_NOT_FOUND for a group without members and offsets.
    """
    committed: dict[TopicPartition, int | None] = {
        tp: None if row is None else row.offset
        for tp, row in admin.list_consumer_group_offsets(group).all().items()
    }
    described = admin.describe_consumer_groups([group])
    for error in described.errors.values():
        if not committed or error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise admin.with_nearest_group(group, error)
    for row in described.values_by_item.values():
        for member in row.members:
            for tp in member.assignment:
                committed.setdefault(tp, None)
    return committed


def cells_of(row: PartitionLag) -> tuple[Any, ...]:
    """Return the cells of a row of the table."""
    return (
        *row.partition,
        row.committed,
        row.latest,
        row.lag,
        tables.duration_text(row.behind_s),
        row.gone or None,
    )


def _oldest_s(rows: list[PartitionLag]) -> float | None:
    """Return the age of the oldest unread record; None if no age is known."""
    return max((row.behind_s for row in rows if row.behind_s is not None), default=None)


def summary_of(title: str, rows: list[PartitionLag]) -> str:
    """Return a line with the total, the age of the oldest record, and what retention deleted."""
    total = sum(row.lag or 0 for row in rows)
    parts = [f"{title}: {tables.text_of(total)} behind in {counted(len(rows), 'partition')}"]
    if oldest_s := _oldest_s(rows):
        parts.append(f"the oldest unread record is {tables.duration_text(oldest_s)} old")
    if unknown := sum(row.lag is None for row in rows):
        parts.append(f"no offset in {unknown}")
    if gone := sum(row.gone for row in rows):
        parts.append(f"{tables.text_of(gone)} offsets were deleted by retention")
    beyond = [row.partition for row in rows if row.beyond]
    if beyond:
        parts.append(
            f"{some(beyond, limit=3)} ended before the committed offset: the topic was recreated, "
            "or has lost records"
        )
    return ", ".join(parts)


def document_of(title: str, rows: list[PartitionLag]) -> dict[str, Any]:
    """Return the lags as a JSON document."""
    return {
        "of": title,
        "time_ms": int(time.time() * 1000),
        "lag": sum(row.lag or 0 for row in rows),
        "behind_s": _oldest_s(rows),
        "gone": sum(row.gone for row in rows),
        "partitions": [
            {
                **row.partition._asdict(),
                "committed": row.committed,
                "earliest": row.earliest,
                "latest": row.latest,
                "lag": row.lag,
                "behind_s": row.behind_s,
                "gone": row.gone,
                "beyond": row.beyond,
                "error": None if row.error is None else str(row.error),
            }
            for row in rows
        ],
    }


def picture(title: str, rows: list[PartitionLag], failure: str, console: Any) -> Any:
    """Return what --watch draws: rows with bars, and the summary. If the terminal is too small for
    all rows, it shows those with the largest lags."""
    from rich.console import Group
    from rich.measure import Measurement
    from rich.text import Text

    footer = [Text(f"{tables.printable(summary_of(title, rows))}   {time.strftime('%H:%M:%S')}")]
    if failure:
        footer.append(Text(f"the last lookup failed: {tables.printable(failure)}", style="red"))
    footer.append(Text("q ends", style="dim"))
    # Two lines are for the headings and the count of rows that are left out.
    lines_below = sum(len(text.wrap(console, console.width)) for text in footer)
    max_rows = max(console.height - 2 - lines_below, 1)
    shown = rows
    if len(rows) > max_rows:
        shown = sorted(rows, key=lambda row: -(row.lag or 0))[:max_rows]
        footer.insert(0, Text(f"and {counted(len(rows) - len(shown), 'partition')} with less lag"))
    cells = [cells_of(row) for row in shown]
    table = tables.table_of(COLUMNS, cells)
    if table is None:
        return Group(*footer)
    table_width = Measurement.get(console, console.options, table).maximum
    bar_width = min(BAR_CELLS, console.width - table_width - 2)  # 2 is the gap between columns
    if bar_width >= 8:
        largest = max((row.lag or 0 for row in rows), default=0)
        bars = [bar(row.lag or 0, largest, bar_width) for row in shown]
        table = tables.table_of(
            (*COLUMNS, ""), [(*row, drawn) for row, drawn in zip(cells, bars, strict=True)]
        )
    return Group(table, *footer)


def bar(lag_offsets: int, largest: int, max_cells: int = BAR_CELLS) -> Any:
    """Return a bar of text. The `largest` lag has `max_cells`, others a proportional length; a lag
    above 0 has at least an eighth of a cell."""
    from rich.text import Text

    eighths = -(-lag_offsets * max_cells * 8 // largest) if largest else 0
    cells, rest = divmod(eighths, 8)
    return Text("█" * cells + (" ▏▎▍▌▋▊▉"[rest] if rest else ""), style="cyan")
