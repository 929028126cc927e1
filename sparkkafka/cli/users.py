"""`users`: list, create and delete SCRAM users. A password never comes from an argument, which all
who may list processes can read."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from sparkkafka.cli.commands import AsJson, Yes, confirm, fail_each, not_empty, session_of
from sparkkafka.cli.tables import print_json, print_line, print_table
from sparkkafka.client.admin.scram import (
    MAX_ITERATIONS,
    MECHANISMS,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from sparkkafka.client.arguments import one_of
from sparkkafka.client.auth.sasl import MIN_ITERATIONS
from sparkkafka.config.security.references import MAX_BYTES, read_text
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, OptionError
from sparkkafka.secret import Secret

app = typer.Typer(rich_markup_mode=None)

STDIN = "-"

Mechanisms = Annotated[
    list[str] | None,
    typer.Option("--mechanism", metavar="NAME", help=f"{' or '.join(MECHANISMS)}."),
]
Names = Annotated[
    list[str], typer.Argument(metavar="USER", help="Names of users.", callback=not_empty)
]


@app.callback()
def users() -> None:
    """SCRAM users: list, create, delete.

    \b
      sparkkafka -b localhost:9092 users create etl
      sparkkafka -b localhost:9092 users create etl --password-file /run/secrets/etl
      sparkkafka -b localhost:9092 users list
    """


@app.command("list")
def list_users(
    context: typer.Context,
    users: Annotated[
        list[str] | None, typer.Argument(metavar="USER", help="Only these.", callback=not_empty)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Users that have a SCRAM password, with its mechanism and iterations. Nothing else is told."""
    with session_of(context).admin() as admin:
        found = admin.describe_user_scram_credentials(users or None)
    rows = [
        {"user": user, "mechanism": one.mechanism, "iterations": one.iterations}
        for user, infos in found.values_by_item.items()
        for one in infos
    ]
    if as_json:
        print_json(rows)
    else:
        columns = ("user", "mechanism", "iterations")
        empty = None if found.errors else "no users with a SCRAM password"
        print_table(columns, [list(row.values()) for row in rows], empty=empty)
    fail_each(found.errors.values())


@app.command()
def create(
    context: typer.Context,
    user: Annotated[
        str, typer.Argument(metavar="USER", help="The user's name.", callback=not_empty)
    ],
    mechanism: Mechanisms = None,
    iterations: Annotated[
        int,
        typer.Option(
            "--iterations",
            metavar="N",
            min=MIN_ITERATIONS,
            max=MAX_ITERATIONS,
            help=f"From {MIN_ITERATIONS} to {MAX_ITERATIONS}.",
        ),
    ] = MIN_ITERATIONS,
    password_file: Annotated[
        str | None,
        typer.Option(
            "--password-file",
            metavar="FILE",
            help="A file with the password, - for stdin. Without it you are asked.",
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Give a user a SCRAM password, SCRAM-SHA-512 if no mechanism is named. One that is there is
    replaced, after a question.
    """
    wanted = _mechanisms(mechanism) or ["SCRAM-SHA-512"]
    with session_of(context).admin() as admin:
        there = admin.describe_user_scram_credentials([user])
        known = (
            [] if _is_missing(there.errors.get(user)) else [one.mechanism for one in there[user]]
        )
        replaced = [one for one in wanted if one in known]
        if replaced:
            question = f"User {user} has a password for {' and '.join(replaced)}: replace it?"
            confirm(question, yes, admin)
        password = _password(user, password_file)
        admin.begin_again()
        changes = [
            UserScramCredentialUpsertion(user, one, password, iterations=iterations)
            for one in wanted
        ]
        admin.alter_user_scram_credentials(changes).all()
    print_line(f"user {user} has a password for {' and '.join(wanted)}")


@app.command()
def delete(
    context: typer.Context, users: Names, mechanism: Mechanisms = None, yes: Yes = False
) -> None:
    """Delete the passwords of users, those of all mechanisms if none is named.

    Connections that are open stay, and so do ACLs: `acls delete` is for these.
    """
    wanted = _mechanisms(mechanism)
    with session_of(context).admin() as admin:
        there = admin.describe_user_scram_credentials(users)
        fail_each(there.errors.values())  # before any is deleted
        changes = [
            UserScramCredentialDeletion(user, one)
            for user, infos in there.items()
            for one in _of_user(user, [info.mechanism for info in infos], wanted)
        ]
        named = ", ".join(f"{change.user}'s for {change.mechanism}" for change in changes)
        confirm(f"Delete passwords for ever: {named}?", yes, admin)
        results = admin.alter_user_scram_credentials(changes)
    for change in changes:
        if change.user in results.values_by_item:
            print_line(f"user {change.user}: the password for {change.mechanism} was deleted")
    fail_each(results.errors.values())


def _mechanisms(given: Iterable[str] | None) -> list[str]:
    named = (one_of(one.upper(), MECHANISMS, "--mechanism") for one in given or ())
    return list(dict.fromkeys(named))


def _of_user(user: str, known: list[str], wanted: list[str]) -> list[str]:
    """The wanted mechanisms, or all. Raises KafkaError for one that the user lacks."""
    for one in wanted:
        if one not in known:
            raise KafkaError(
                f"user {user} has no password for {one}, only for {' and '.join(known)}"
            )
    return wanted or known


def _is_missing(error: KafkaError | None) -> bool:
    return isinstance(error, BrokerError) and error.code == ErrorCode.RESOURCE_NOT_FOUND


def _password(user: str, file: str | None) -> Secret:
    """From a person, a file or stdin, without the last line end. Raises OptionError, OSError."""
    if file is None:
        if not sys.stdin.isatty():
            raise OptionError(
                f"nobody can be asked here for the password of user {user}: give --password-file "
                "FILE, or - for stdin"
            )
        question = f"Password of user {user}"
        return Secret(typer.prompt(question, hide_input=True, confirmation_prompt=True, err=True))
    try:
        text = Secret(_stdin() if file == STDIN else read_text(Path(file)))
    except ValueError as error:
        raise OptionError(f"--password-file {file}: {error}") from None
    line = Secret(text.reveal().removesuffix("\n").removesuffix("\r"))
    if not line or "\n" in line.reveal():
        raise OptionError(f"--password-file {file}: a password is one line, and not empty")
    return line


def _stdin() -> str:
    text = sys.stdin.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    return text
