"""Completion in shells: names of topics, groups and profiles.

Typer answers the shell, which calls the command with an environment variable instead of arguments
(`complete`). The functions below return the candidates for options and arguments; they get what is
typed before the cursor, and so know the cluster.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, suppress
from io import StringIO
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer

from sparkkafka.cli.tables import PROGRAM

if TYPE_CHECKING:
    from sparkkafka.cli.bounded_admin import BoundedAdmin
    from sparkkafka.cli.session import Session

VARIABLE: Final = "_SPARKKAFKA_COMPLETE"
"""The environment variable with which a shell asks for candidates."""

TIMEOUT_S: Final = 1.0
"""How long the cluster may take: the shell does not react to keys meanwhile."""


def complete(command: Any, session: Session) -> NoReturn:
    """Print the candidates for what is typed, and end the process. Prints no errors: they would
    stand in the line that is typed."""
    with redirect_stderr(StringIO()), suppress(Exception):
        _join_bash_words()
        command.main([], prog_name=PROGRAM, complete_var=VARIABLE, obj=session)
    sys.exit(1)  # to fish: there are no candidates


def _join_bash_words() -> None:
    """Join the words that bash splits at : and =, such as localhost:9092."""
    words: list[str] = []
    cursor = int(os.environ.get("COMP_CWORD", 0))
    index = 0
    is_joined = False  # to the word before
    for number, word in enumerate(os.environ.get("COMP_WORDS", "").split("\n")):
        is_separator = word != "" and not word.strip(":=")
        if words and (is_joined or is_separator):
            words[-1] += word
        else:
            words.append(word)
        is_joined = is_separator
        if number == cursor:
            index = len(words) - 1
    if ":" in words[index]:
        sys.exit(0)  # bash would replace only what follows the colon
    os.environ |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(index)}


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics that begin like this; internal ones once the first _ is typed."""
    internal = incomplete.startswith("_")
    return _names(context, lambda admin: admin.list_topics(include_internal=internal))


def group_names(context: typer.Context) -> list[str]:
    """Return the groups."""
    return _names(context, lambda admin: (row.group_id for row in admin.list_groups()))


def _names(context: typer.Context, look_up: Callable[[BoundedAdmin], Iterable[str]]) -> list[str]:
    """Look up names in the cluster that the line names. Those that a shell does not take as a plain
    word are left out."""
    from sparkkafka.client.deadline import Deadline

    with context.find_root().obj.admin(Deadline(TIMEOUT_S * 1000)) as admin:
        # Names of groups may have any characters. Shells take completions as text of the line, and
        # zsh even evaluates them: a group `$(command)` would run the command.
        return sorted(filter(re.compile(r"[\w.][\w.:/@+-]*").fullmatch, look_up(admin)))


def profile_names() -> list[str]:
    """Return the profiles of config.toml."""
    from sparkkafka.cli import profile

    return profile.profile_names()
