"""`topics`: list them."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkkafka.cli.commands import session_of
from sparkkafka.cli.tables import print_json, print_table

app = typer.Typer(help="Topics of the cluster.", rich_markup_mode=None)


@app.callback()
def topics() -> None:
    """Topics: list them."""


@app.command("list")
def list_topics(
    context: typer.Context,
    internal: Annotated[bool, typer.Option("--internal", help="Also Kafka's own.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """All topics that you may see."""
    with session_of(context).admin() as admin:
        found = admin.list_topics(include_internal=internal)
    if as_json:
        print_json([row._asdict() for row in found.values()])
    else:
        print_table(
            ("topic", "internal"), [(row.name, row.is_internal or None) for row in found.values()]
        )
