"""Options that several verbs take as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from sparkkafka.cli.commands import with_option_groups


@dataclass(frozen=True)
class Selection:
    topic: Annotated[str, typer.Option("--topic", help="The topic.")] = "t"
    partitions: Annotated[list[int] | None, typer.Option("--partition")] = None


app = typer.Typer(rich_markup_mode=None)


@app.command()
@with_option_groups
def verb(
    name: str,
    *,
    before: Annotated[bool, typer.Option("--before")] = False,
    chosen: Selection,
    after: Annotated[int, typer.Option("--after")] = 0,
) -> None:
    """Show what the verb got."""
    print(name, before, chosen, after)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("a", "a False Selection(topic='t', partitions=None) 0"),
        (
            "a --partition 1 --after 3 --topic u --partition 2 --before",
            "a True Selection(topic='u', partitions=[1, 2]) 3",
        ),
    ],
)
def test_a_verb_gets_the_options_of_a_dataclass_as_one_value(given, shown):
    result = CliRunner().invoke(app, given.split())
    assert (result.exit_code, result.output) == (0, f"{shown}\n")


def test_the_options_stand_where_the_dataclass_stood_with_their_help():
    command = typer.main.get_command(app)
    names = [parameter.name for parameter in command.params]
    assert names[:5] == ["name", "before", "topic", "partitions", "after"]
    assert command.params[2].help == "The topic."
    assert command.help == "Show what the verb got."
