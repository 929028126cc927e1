"""`users`: list, create and delete SCRAM users. A password is never an argument: everybody who may
list processes could read it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from sparkkafka.cli import commands
from sparkkafka.cli.tables import print_line, print_rows
from sparkkafka.client.admin import scram
from sparkkafka.client.arguments import checked_choice
from sparkkafka.client.auth.sasl import MIN_ITERATIONS
from sparkkafka.config.security.references import MAX_BYTES, read_text
from sparkkafka.errors import ErrorCode, KafkaError, OptionError
from sparkkafka.secret import Secret

app = typer.Typer(rich_markup_mode=None, add_completion=False)

Mechanisms = Annotated[
    list[str] | None,
    Option("--mechanism", metavar="NAME", help=f"{' or '.join(scram.MECHANISMS)}."),
]
Names = Annotated[list[str], Argument(metavar="USER", help="Names of users.")]


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
    users: Annotated[list[str] | None, Argument(metavar="USER", help="Only these users.")] = None,
    as_json: commands.AsJson = False,
) -> None:
    """List users that have a SCRAM password, with its mechanism and iterations."""
    with commands.session_of(context).admin() as admin:
        described = admin.describe_user_scram_credentials(users or None)
    rows = [
        {"user": user, "mechanism": credential.mechanism, "iterations": credential.iterations}
        for user, credentials in described.values_by_item.items()
        for credential in credentials
    ]
    empty = None if described.errors else "no users with a SCRAM password"
    print_rows(("user", "mechanism", "iterations"), rows, as_json, empty=empty)
    commands.fail_each(described.errors.values())


@app.command()
def create(
    context: typer.Context,
    user: Annotated[str, Argument(metavar="USER", help="The user's name.")],
    mechanism: Mechanisms = None,
    iterations: int = Option(
        MIN_ITERATIONS,
        min=MIN_ITERATIONS,
        max=scram.MAX_ITERATIONS,
        help="How often the password is hashed.",
    ),
    password_file: str | None = Option(
        None, help="A file with the password, - for stdin. Default: a prompt."
    ),
    yes: commands.Yes = False,
) -> None:
    """Set the SCRAM password of a user, for SCRAM-SHA-512 if no mechanism is named. The command
    asks before it replaces a password.
    """
    mechanisms = _mechanisms(mechanism) or ["SCRAM-SHA-512"]
    with commands.session_of(context).admin() as admin:
        described = admin.describe_user_scram_credentials([user])
        error = described.errors.get(user)
        is_new = error is not None and error.code == ErrorCode.RESOURCE_NOT_FOUND
        # Any other error is raised by described[user].
        known = [] if is_new else [credential.mechanism for credential in described[user]]
        replaced = [name for name in mechanisms if name in known]
        if replaced:
            question = f"User {user} has a password for {' and '.join(replaced)}: replace it?"
            commands.confirm(question, yes, admin)
        password = _read_password(user, password_file)
        admin.restart_deadline()
        changes = [
            scram.UserScramCredentialUpsertion(user, name, password, iterations=iterations)
            for name in mechanisms
        ]
        admin.alter_user_scram_credentials(changes).all()
    print_line(f"user {user} has a password for {' and '.join(mechanisms)}")


@app.command()
def delete(
    context: typer.Context, users: Names, mechanism: Mechanisms = None, yes: commands.Yes = False
) -> None:
    """Delete SCRAM passwords of users: for all mechanisms if none is named.

    This closes no open connection and deletes no ACL; use `acls delete` for those.
    """
    mechanisms = _mechanisms(mechanism)
    with commands.session_of(context).admin() as admin:
        described = admin.describe_user_scram_credentials(users)
        commands.fail_each(described.errors.values())  # before any is deleted
        changes = []
        for user, credentials in described.items():
            known = [credential.mechanism for credential in credentials]
            for name in mechanisms:
                if name not in known:
                    raise KafkaError(
                        f"user {user} has no password for {name}, only for {' and '.join(known)}"
                    )
            changes += [
                scram.UserScramCredentialDeletion(user, name) for name in mechanisms or known
            ]
        named = ", ".join(f"{change.user}'s for {change.mechanism}" for change in changes)
        commands.confirm(f"Delete passwords for ever: {named}?", yes, admin)
        results = admin.alter_user_scram_credentials(changes)
    for change in changes:
        if change.user in results.values_by_item:
            print_line(f"user {change.user}: the password for {change.mechanism} was deleted")
    commands.fail_each(results.errors.values())


def _mechanisms(texts: Iterable[str] | None) -> list[str]:
    """Check the values of --mechanism, and return each once, as Kafka spells it."""
    names = (checked_choice(text.upper(), scram.MECHANISMS, "--mechanism") for text in texts or ())
    return list(dict.fromkeys(names))


def _read_password(user: str, file: str | None) -> Secret:
    """Return the password: from a prompt without a `file`, else from that file, - for stdin. The
    last line end is removed. Raises OptionError, OSError."""
    if file is None:
        if not sys.stdin.isatty():
            raise OptionError(
                f"there is no terminal to ask for the password of user {user}: give "
                "--password-file FILE, or - for stdin"
            )
        question = f"Password of user {user}"
        return Secret(typer.prompt(question, hide_input=True, confirmation_prompt=True, err=True))
    try:
        if file != "-":
            text = Secret(read_text(Path(file)))
        else:
            text = Secret(sys.stdin.read(MAX_BYTES + 1))
            if len(text.reveal()) > MAX_BYTES:
                raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    except ValueError as error:
        raise OptionError(f"--password-file {file}: {error}") from None
    line = Secret(text.reveal().removesuffix("\n").removesuffix("\r"))
    if not line or "\n" in line.reveal():
        raise OptionError(f"--password-file {file}: a password is one line, and not empty")
    return line
