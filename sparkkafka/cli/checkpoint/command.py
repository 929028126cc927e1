"""The verb `checkpoint` and its commands."""

from __future__ import annotations

import typer

from sparkkafka.cli.checkpoint.arguments import Dir
from sparkkafka.cli.checkpoint.compare import diff_batches, verify_files
from sparkkafka.cli.checkpoint.reset import reset
from sparkkafka.cli.checkpoint.show import show
from sparkkafka.cli.cluster.lag import Interval, Watch, WithAges
from sparkkafka.cli.cluster.lag import lag as lag_of_group_or_checkpoint
from sparkkafka.cli.commands import AsJson

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
    watch: Watch = False,
    interval: Interval = None,
    ages: WithAges = True,
    as_json: AsJson = False,
) -> None:
    """How far the query is behind: in offsets, and in seconds. The same as `lag --checkpoint DIR`.

    What counts is where the next start would read on: the end of the last finished batch.
    """
    lag_of_group_or_checkpoint(
        context,
        checkpoint=location,
        watch=watch,
        interval=interval,
        ages=ages,
        as_json=as_json,
    )
