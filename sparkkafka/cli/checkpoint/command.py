"""The verb `checkpoint` and its commands."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkkafka.checkpoints.logs import Checkpoint
from sparkkafka.cli.checkpoint.arguments import Dir
from sparkkafka.cli.checkpoint.compare import diff_batches, verify_files
from sparkkafka.cli.checkpoint.reset import reset
from sparkkafka.cli.checkpoint.show import show
from sparkkafka.cli.cluster.lag import show as show_lag
from sparkkafka.cli.commands import AsJson, session_of

app = typer.Typer(rich_markup_mode=None)


@app.callback()
def checkpoint() -> None:
    """Checkpoints of streaming queries, of this connector and of the JVM connector.

    \b
      sparkkafka checkpoint show /data/checkpoints/orders
      sparkkafka -b localhost:9092 checkpoint lag /data/checkpoints/orders
      sparkkafka -b localhost:9092 checkpoint reset DIR --to-time -2h
    """


app.command("show")(show)
app.command("diff")(diff_batches)
app.command("verify")(verify_files)
app.command("reset")(reset)


@app.command()
def lag(
    context: typer.Context,
    location: Dir,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Redraw until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", help="Between two looks.")
    ] = 2.0,
    ages: Annotated[
        bool, typer.Option("--ages/--no-ages", help="Fetch the oldest unread record for its age.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """How far the query is behind: in offsets, and in seconds. The same as `lag --checkpoint DIR`.

    What counts is where the next start would read on: the end of the last finished batch.
    """
    from sparkkafka.checkpoints.positions import next_offsets

    found = Checkpoint(location)
    show_lag(
        session_of(context),
        f"checkpoint {found.location}",
        lambda admin: next_offsets(found.again(), admin),
        watch=watch,
        interval_s=interval,
        ages=ages,
        as_json=as_json,
    )
