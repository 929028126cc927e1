"""`checkpoint reset`: where the next start reads on, shown first and done with --execute."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from sparkkafka.checkpoints.logs import Checkpoint
from sparkkafka.checkpoints.reset import KEPT, ResetPlan, plan_reset
from sparkkafka.cli.checkpoint.arguments import Dir, Prefix
from sparkkafka.cli.checkpoint.compare import change_cells
from sparkkafka.cli.commands import AsJson, Execute, session_of
from sparkkafka.cli.tables import print_error, print_json, print_line, print_table
from sparkkafka.cli.times import (
    ToEarliest,
    ToLatest,
    ToTime,
    timestamp_ms_of,
)
from sparkkafka.client.admin.admin import Admin
from sparkkafka.config.source import FROM_EARLIEST, TO_LATEST, OffsetBound, parse_offsets
from sparkkafka.errors import OptionError, some


def reset(
    context: typer.Context,
    location: Dir,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_time: ToTime = None,
    to_offsets: Annotated[
        str | None,
        typer.Option(
            "--to-offsets",
            metavar="JSON",
            help='As startingOffsets: {"orders":{"0":23,"1":-1}}; others stay.',
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="No offset moves: only mend what is broken.")
    ] = False,
    source: Annotated[
        str | None, typer.Option("--source", help="Which source, if Kafka has several.")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="Only this one; may be repeated.")
    ] = None,
    unfinished: Annotated[
        str | None,
        typer.Option(
            "--unfinished",
            metavar="done|drop",
            help="What a batch that is planned and not finished counts as.",
        ),
    ] = None,
    keep_state: Annotated[
        bool, typer.Option("--keep-state", help="Accept that state stays as it is.")
    ] = False,
    stopped: Annotated[
        bool, typer.Option("--stopped", help="The query is stopped, however new its files are.")
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no brokers: offsets are not checked.")
    ] = False,
    prefix: Prefix = None,
    execute: Execute = False,
    as_json: AsJson = False,
) -> None:
    """Set where the next start reads on. Without --execute nothing is changed.

    Stop the query first. The logs are copied into DIR/backups before anything is written; a copy
    without _SUCCESS in it is in part. Exit code 1 if something stands against it.
    """
    bound = _bound(to_earliest, to_latest, to_time, to_offsets, keep)
    if unfinished not in (None, "done", "drop"):
        raise OptionError(f"--unfinished is done or drop, got {unfinished!r}")
    if offline and prefix is not None:
        raise OptionError("--offline asks nobody about a decision: remove --prefix")
    if keep and topic:
        raise OptionError("--keep moves no offset: remove --topic")
    word: Literal["done", "drop"] | None = unfinished  # type: ignore[assignment]
    found = Checkpoint(location)

    def plan(admin: Admin | None) -> ResetPlan:
        return plan_reset(
            found,
            bound,
            admin,
            source=source,
            topics=topic or (),
            unfinished=word,
            keep_state=keep_state,
            stopped=stopped,
            prefix=prefix,
        )

    if offline:
        planned = plan(None)
    else:
        with session_of(context).admin() as admin:
            planned = plan(admin)
    backup = None
    if execute and not planned.obstacles:
        backup = planned.apply()
    _print_reset(planned, backup, as_json)
    if planned.obstacles:
        for text in planned.obstacles:
            print_error(text)
        raise typer.Exit(1)


def _bound(
    to_earliest: bool,
    to_latest: bool,
    to_time: str | None,
    to_offsets: str | None,
    keep: bool,
) -> OffsetBound:
    ways = {
        "--to-earliest": to_earliest or None,
        "--to-latest": to_latest or None,
        "--to-time": to_time,
        "--to-offsets": to_offsets,
        "--keep": keep or None,
    }
    chosen = [name for name, value in ways.items() if value is not None]
    if len(chosen) != 1:
        given = f", not {' and '.join(chosen)}" if chosen else ""
        raise OptionError(f"give one of {', '.join(ways)}{given}")
    if to_time is not None:
        at_ms = timestamp_ms_of(to_time, "--to-time")
        return OffsetBound("timestamp", timestamp_ms=at_ms, option="--to-time")
    if to_offsets is not None:
        offsets = parse_offsets(to_offsets, "--to-offsets")
        return OffsetBound("specific", offsets, option="--to-offsets")
    if keep:
        return KEPT
    return FROM_EARLIEST if to_earliest else TO_LATEST


def _print_reset(planned: ResetPlan, backup: str | None, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "checkpoint": planned.checkpoint.location,
                "source": planned.source,
                "next_batch": planned.next_batch,
                "executed": backup is not None,
                "backup": backup,
                "partitions": [
                    {
                        "topic": row.partition.topic,
                        "partition": row.partition.partition,
                        "before": row.before,
                        "after": row.after,
                        "records": row.records,
                    }
                    for row in planned.changes
                ],
                "removes": list(planned.removals),
                "writes": list(planned.writes),
                "notes": list(planned.notes),
                "obstacles": list(planned.obstacles),
            }
        )
        return
    print_table(
        ("topic", "partition", "before", "after", "moved"),
        [change_cells(row) for row in planned.changes],
    )
    for note in planned.notes:
        print_line(f"-- {note}")
    files = some((*planned.removals, *planned.writes), most=20)
    batch = planned.next_batch
    if backup is None:
        print_line(f"batch {batch} would be the first from there; it would change {files}")
        if not planned.obstacles:
            print_line("nothing was changed: --execute does it")
    else:
        print_line(f"batch {batch} is the first from there; {files} changed")
        print_line(f"the files as they were are in {backup}")
