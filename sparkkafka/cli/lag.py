"""`lag`: how far a group is behind, once or redrawn until Ctrl-C.

`show` is for anything that has offsets: it takes a function that gives them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Final

import typer

from sparkkafka.cli.bounded_admin import BoundedAdmin
from sparkkafka.cli.commands import AsJson, fail_each, not_empty, session_of
from sparkkafka.cli.session import DEFAULT_TIMEOUT_S, Session
from sparkkafka.cli.tables import (
    duration_text,
    print_error,
    print_json,
    print_line,
    print_table,
    printable,
    table_of,
    text_of,
)
from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.lags import Ages, PartitionLag, lags_of
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, OptionError, counted, some

app = typer.Typer(rich_markup_mode=None)
pause = time.sleep

MIN_INTERVAL_S: Final = 0.5
USUAL_INTERVAL_S: Final = 2.0
BAR_CELLS: Final = 30
MIN_BAR_CELLS: Final = 8
"""With less room there are no bars."""

CommittedOf = Callable[[Admin], Mapping[TopicPartition, int | None]]

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Redraw until Ctrl-C.")]
Interval = Annotated[
    float | None,
    typer.Option("--interval", metavar="SECONDS", help="Between two looks, with --watch: 2."),
]
WithAges = Annotated[
    bool, typer.Option("--ages/--no-ages", help="Fetch the oldest unread record for its age.")
]


@app.command()
def lag(
    context: typer.Context,
    group: Annotated[
        str | None, typer.Argument(metavar="GROUP", help="The consumer group.", callback=not_empty)
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint", metavar="DIR", help="A streaming query's, instead of a group."
        ),
    ] = None,
    watch: Watch = False,
    interval: Interval = None,
    ages: WithAges = True,
    as_json: AsJson = False,
) -> None:
    """How far a group, or a streaming query, is behind: in offsets, and in seconds.

    Seconds are the age of the oldest record that is not read yet, by its timestamp and this
    machine's clock; that record is fetched (READ on the topic). With --watch --json each look is
    one line of JSON.

    \b
      sparkkafka -b localhost:9092 lag billing
      sparkkafka -b localhost:9092 lag billing --watch
      sparkkafka -b localhost:9092 lag --checkpoint /data/checkpoints/orders
    """
    if group is not None and checkpoint is None:
        title = f"group {group}"
        committed_of: CommittedOf = partial(committed_of_group, group=group)
    elif checkpoint is not None and group is None:
        title, committed_of = _of_checkpoint(checkpoint)
    else:
        raise OptionError("give the name of a GROUP or --checkpoint DIR, and not both")
    show(
        session_of(context),
        title,
        committed_of,
        watch=watch,
        interval_s=interval,
        ages=ages,
        as_json=as_json,
    )


def _of_checkpoint(location: str) -> tuple[str, CommittedOf]:
    """What counts is where the next start would read on: the end of the last finished batch."""
    from sparkkafka.checkpoints.logs import Checkpoint
    from sparkkafka.checkpoints.positions import next_offsets

    found = Checkpoint(location)
    return f"checkpoint {found.location}", lambda admin: next_offsets(found.again(), admin)


def committed_of_group(admin: Admin, group: str) -> dict[TopicPartition, int | None]:
    """The group's offsets; None for a partition that a member has and for which there is none yet.

    Raises BrokerError GROUP_ID_NOT_FOUND for a group without members and offsets.
    """
    stored = admin.list_consumer_group_offsets(group).all()
    found: dict[TopicPartition, int | None] = {
        tp: None if row is None else row.offset for tp, row in stored.items()
    }
    described = admin.describe_consumer_groups([group])
    for error in described.errors.values():
        if not (isinstance(error, BrokerError) and error.code == ErrorCode.GROUP_ID_NOT_FOUND):
            raise error
        if not found:
            raise error
    for row in described.values_by_item.values():
        for member in row.members:
            for tp in member.assignment:
                found.setdefault(tp, None)
    return found


def show(
    session: Session,
    title: str,
    committed_of: CommittedOf,
    *,
    watch: bool,
    interval_s: float | None,
    ages: bool,
    as_json: bool,
) -> None:
    """Print the lag of whoever `committed_of` gives offsets of; with `watch` again and again.

    Raises typer.Exit (1) if a partition cannot be told, KafkaError if none can, OptionError.
    """
    if interval_s is not None and not watch:
        raise OptionError("--interval is for --watch: give that too")
    pause_s = USUAL_INTERVAL_S if interval_s is None else interval_s
    if not MIN_INTERVAL_S <= pause_s <= 86_400:
        raise OptionError(f"--interval is at least {MIN_INTERVAL_S:g} s, got {pause_s:g}")
    if watch and not as_json and not sys.stdout.isatty():
        raise OptionError("--watch redraws a terminal: in a pipe there is --watch --json")
    with _Looks(session, committed_of, ages) as looks:
        rows = looks.next()
        if not watch:
            _print_once(title, rows, as_json)
        elif as_json:
            _print_lines(title, looks, rows, pause_s)
        else:
            _redraw(title, looks, rows, pause_s)


class _Looks:
    """One look after the other on the same connections, each under a deadline of its own."""

    def __init__(self, session: Session, committed_of: CommittedOf, ages: bool) -> None:
        self._timeout_s = session.timeout_s or DEFAULT_TIMEOUT_S
        self._ages = Ages(session.settings("consumer")) if ages else None
        self._committed_of = committed_of
        self._admin = BoundedAdmin(session.settings("admin"), session.deadline)

    def __enter__(self) -> _Looks:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._admin.close()
        if self._ages is not None:
            self._ages.close()

    def again(self) -> list[PartitionLag]:
        self._admin.deadline = Deadline(self._timeout_s * 1000)
        return self.next()

    def next(self) -> list[PartitionLag]:
        rows = lags_of(self._admin, self._committed_of(self._admin))
        if self._ages is not None:
            try:
                rows = self._ages.added_to(rows, self._admin.deadline)
            except KafkaError as error:
                print_error(f"ages are not shown: {error}")
                self._ages.close()
                self._ages = None
        return rows


# --- once -------------------------------------------------------------------------------------


def _print_once(title: str, rows: list[PartitionLag], as_json: bool) -> None:
    if as_json:
        print_json(document_of(title, rows))
    else:
        print_table(COLUMNS, [cells_of(row) for row in rows])
        print_line(summary_of(title, rows))
    fail_each(KafkaError(f"{row.partition}: {row.error}") for row in rows if row.error is not None)


COLUMNS: Final = ("topic", "partition", "committed", "end", "lag", "behind", "gone")


def cells_of(row: PartitionLag) -> tuple[Any, ...]:
    return (
        *row.partition,
        row.committed,
        row.latest,
        row.lag,
        duration_text(row.behind_s),
        row.gone or None,
    )


def summary_of(title: str, rows: list[PartitionLag]) -> str:
    """The total, the oldest record, and what retention has taken."""
    total = sum(row.lag or 0 for row in rows)
    parts = [f"{title}: {text_of(total)} behind in {counted(len(rows), 'partition')}"]
    oldest = max((row.behind_s for row in rows if row.behind_s is not None), default=None)
    if oldest:
        parts.append(f"the oldest unread record is {duration_text(oldest)} old")
    unknown = sum(row.lag is None for row in rows)
    if unknown:
        parts.append(f"no offset in {unknown}")
    gone = sum(row.gone for row in rows)
    if gone:
        parts.append(f"{text_of(gone)} offsets are gone to retention")
    beyond = [row.partition for row in rows if row.beyond]
    if beyond:
        parts.append(
            f"{some(beyond, most=3)} ended before the committed offset: the topic was made again, "
            "or has lost records"
        )
    return ", ".join(parts)


def document_of(title: str, rows: list[PartitionLag]) -> dict[str, Any]:
    return {
        "of": title,
        "time_ms": int(time.time() * 1000),
        "lag": sum(row.lag or 0 for row in rows),
        "behind_s": max((row.behind_s for row in rows if row.behind_s is not None), default=None),
        "gone": sum(row.gone for row in rows),
        "partitions": [
            {
                "topic": row.partition.topic,
                "partition": row.partition.partition,
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


# --- again and again --------------------------------------------------------------------------


def _print_lines(title: str, looks: _Looks, rows: list[PartitionLag], interval_s: float) -> None:
    while True:
        json.dump(document_of(title, rows), sys.stdout, ensure_ascii=False)
        sys.stdout.write("\n")
        sys.stdout.flush()
        pause(interval_s)
        rows = looks.again()


def _redraw(title: str, looks: _Looks, rows: list[PartitionLag], interval_s: float) -> None:
    """A look that fails says so below the last one that did not: a cluster may be restarting.

    On the terminal's other screen, where nothing of an earlier look is left when the window gets
    another size; the last look stays on the usual one.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    failed = ""

    def drawn() -> Any:
        return picture(title, rows, failed, console)

    try:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                live.update(drawn(), refresh=True)
                pause(interval_s)
                try:
                    rows, failed = looks.again(), ""
                except KafkaError as error:
                    failed = str(error)
    finally:
        console.print(drawn())


def picture(title: str, rows: list[PartitionLag], failed: str, console: Any) -> Any:
    """What --watch draws: rows with bars, the largest lags if not all have room, and the sum."""
    from rich.console import Group
    from rich.measure import Measurement
    from rich.text import Text

    below = [Text(f"{printable(summary_of(title, rows))}   {time.strftime('%H:%M:%S')}")]
    if failed:
        below.append(Text(f"the last look failed: {printable(failed)}", style="red"))
    below.append(Text("Ctrl-C ends it", style="dim"))
    # The headings, and how many are left out.
    most_rows = console.height - 2 - sum(len(text.wrap(console, console.width)) for text in below)
    shown = rows
    if len(rows) > max(most_rows, 1):
        shown = sorted(rows, key=lambda row: -(row.lag or 0))[: max(most_rows, 1)]
        below.insert(0, Text(f"and {counted(len(rows) - len(shown), 'partition')} with less lag"))
    cells = [cells_of(row) for row in shown]
    table = table_of(COLUMNS, cells)
    if table is None:
        return Group(*below)
    taken = Measurement.get(console, console.options, table).maximum
    room = min(BAR_CELLS, console.width - taken - 2)  # that is what stands between columns
    if room >= MIN_BAR_CELLS:
        largest = max((row.lag or 0 for row in rows), default=0)
        bars = [bar(row.lag or 0, largest, room) for row in shown]
        table = table_of(
            (*COLUMNS, ""), [(*row, one) for row, one in zip(cells, bars, strict=True)]
        )
    return Group(table, *below)


def bar(lag_offsets: int, largest: int, most_cells: int = BAR_CELLS) -> Any:
    """A bar of up to `most_cells`; whatever is behind has at least a sliver."""
    from rich.text import Text

    eighths = -(-lag_offsets * most_cells * 8 // largest) if largest else 0
    cells, rest = divmod(eighths, 8)
    return Text("█" * cells + (" ▏▎▍▌▋▊▉"[rest] if rest else ""), style="cyan")
