"""The table of verbs, the options that all verbs share, the options that several verbs have, and
completion in shells.

A verb's module is imported when the verb runs: `--help` shows the lines of VERBS. The shared
options may stand before the verb or after it.
"""

from __future__ import annotations

import copy
import inspect
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stderr, suppress
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import wraps
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, get_args, get_type_hints

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from sparkkafka import __version__
from sparkkafka.cli.session import Session
from sparkkafka.cli.tables import PROGRAM, print_error
from sparkkafka.config.kinds import INT64_MAX, one_of, parse_duration_ms
from sparkkafka.errors import KafkaError, OptionError, counted

if TYPE_CHECKING:
    from sparkkafka.cli.bounded_admin import BoundedAdmin

# --- completion ---------------------------------------------------------------------------------

# Typer answers the shell, which calls the command with an environment variable instead of arguments
# (`complete`). `topic_names` and the like return the candidates for options and arguments; they get
# what is typed before the cursor, and so know the cluster.

COMPLETE_VARIABLE: Final = "_SPARKKAFKA_COMPLETE"
"""The environment variable with which a shell asks for candidates."""

COMPLETION_TIMEOUT_S: Final = 1.0
"""How long the cluster may take: the shell does not react to keys meanwhile."""


def complete(command: Any, session: Session) -> NoReturn:
    """Print the candidates for what is typed, and end the process. Prints no errors: they would
    stand in the line that is typed."""
    with redirect_stderr(StringIO()), suppress(Exception):
        _join_bash_words()
        command.main([], prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE, obj=session)
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

    with context.find_root().obj.admin(Deadline(COMPLETION_TIMEOUT_S * 1000)) as admin:
        # Names of groups may have any characters. Shells take completions as text of the line, and
        # zsh even evaluates them: a group `$(command)` would run the command.
        return sorted(filter(re.compile(r"[\w.][\w.:/@+-]*").fullmatch, look_up(admin)))


def profile_names() -> list[str]:
    """Return the profiles of config.toml."""
    from sparkkafka.cli import profile

    return profile.profile_names()


# --- verbs --------------------------------------------------------------------------------------

VERBS: Final = {
    "topics": "Topics: list, describe, create, alter, add-partitions, delete.",
    "groups": "Groups: list, describe, reset, delete.",
    "lag": "Show the lag of all groups, or of one or a streaming query; --watch redraws it.",
    "top": "Show brokers, topics' rates and groups' lag on one live screen.",
    "ui": "Show the same on a local web page, with curves, skew, checkpoints, dead letters.",
    "check": "Check whether a job can run.",
    "brokers": "Brokers: list, describe.",
    "acls": "ACLs: list, create, delete.",
    "users": "SCRAM users: list, create, delete.",
    "read": "Show a topic's records, or write them to a file.",
    "write": "Write lines, JSON or a file's rows to a topic.",
    "cdc": "Change data capture: check.",
    "copy": "Copy the records of a topic into another topic.",
    "bench": "Measure the throughput and latency of a cluster.",
    "checkpoint": "A streaming query's checkpoint: show, diff, lag, verify, reset.",
}
"""Each verb's line in `--help`. Its module has its name, and a `typer.Typer` named `app`."""


class LazyGroup(TyperGroup):
    """The root command: imports a verb's module when the verb is used, and adds the shared options
    to the verb."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _prepare_parameters(self, ctx)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the verb's command, with the shared options; None if there is no such verb."""
        if cmd_name not in VERBS:
            return None
        if cmd_name not in self.commands:
            command: Any = typer.main.get_command(import_module(f"sparkkafka.cli.{cmd_name}").app)
            command.name = cmd_name
            _prepare_parameters(command, ctx)
            _add_shared_options(command, self.params)
            self.commands[cmd_name] = command
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the verb; the error for an unknown one suggests the nearest."""
        if ctx.resilient_parsing:  # for completion, without `options`
            _set_root_options(ctx)
        try:
            return super().resolve_command(ctx, args)
        except typer.TyperException as error:
            near = _nearest_verbs(args[0]) if args[0] not in VERBS else []
            if near and "Did you mean" not in error.message:
                error.message = f"{error.message.rstrip('.')}. Did you mean {', '.join(near)}?"
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return the verbs that begin like this, without importing them; else the options."""
        from typer._click.shell_completion import CompletionItem

        return [
            CompletionItem(name, help=text)
            for name, text in VERBS.items()
            if name.startswith(incomplete)
        ] or super().shell_complete(ctx, incomplete)


def _nearest_verbs(word: str) -> list[str]:
    """Return the quoted verbs that a user may have meant by an unknown verb. For the name of a
    subcommand, as `list`, these are all verbs that have it: "topics list", …"""
    from difflib import get_close_matches

    other_tools = {
        "consume": ["read"],
        "help": ["--help"],
        "offsets": ["groups reset", "checkpoint reset"],
        "produce": ["write"],
    }
    # The text of a verb with subcommands ends with their names: "Topics: list, describe."
    nested = [
        f"{verb} {word}"
        for verb, text in VERBS.items()
        if word in text.rstrip(".").rpartition(": ")[2].split(", ")
    ]
    return [
        repr(verb) for verb in nested or other_tools.get(word) or get_close_matches(word, VERBS, 1)
    ]


def _prepare_parameters(command: Any, context: Any) -> None:
    """Give each argument and option of a command and of its subcommands a `_ValueParser`, and a
    placeholder for the help, if it has none: --key-delimiter DELIMITER. Typer would show the names
    of Python's types."""
    for child in getattr(command, "commands", {}).values():
        _prepare_parameters(child, context)
    for parameter in command.get_params(context):
        if parameter.metavar is None and not getattr(parameter, "is_flag", False):
            name = max(parameter.opts, key=len)  # the long name
            parameter.metavar = name.replace("_", "-").rpartition("-")[2].upper()
        if parameter.param_type_name == "argument":
            parameter.display_type = lambda _: ""
        # Attributes of Typer 0.29. Without them Typer parses the values.
        with suppress(AttributeError):
            parameter._runtime_param = _ValueParser(parameter.type_descriptor)


class _ValueParser:
    """Parses the values of an argument or option, of the types that ours have. Typer would do it
    with pydantic, whose import takes a tenth of the time of a short verb."""

    def __init__(self, descriptor: Any) -> None:
        annotation = descriptor.annotation
        self._type = get_args(annotation)[0] if descriptor.is_list else annotation
        self._choices = descriptor.choices

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the parsed value or list of values. Raises OptionError, which names the option."""
        if param.multiple or param.nargs == -1:
            return [self._parse(item, param) for item in value or ()]
        return None if value is None else self._parse(value, param)

    def _parse(self, value: Any, parameter: Any) -> Any:
        """Parse one value. A default already has the parameter's type."""
        is_option = parameter.param_type_name == "option"
        name = max(parameter.opts, key=len) if is_option else parameter.metavar
        if value == "" and not is_option:
            raise OptionError(f"{name} is an empty name")
        if self._choices is not None and value not in self._choices:
            raise OptionError(f"{name} is {one_of(*self._choices).values}, got {value[:100]!r}")
        if self._type is Path:
            return Path(value)
        if self._type not in (int, float):
            return value
        kind = "a whole number" if self._type is int else "a number"
        try:
            number = self._type(value)
        except ValueError:
            raise OptionError(f"{name} is {kind}, got {value!r}") from None
        low, high = parameter.min, parameter.max
        if high is None and self._type is int:
            high = INT64_MAX  # of Kafka's and Arrow's numbers
        if high is not None and not number <= high:
            raise OptionError(f"{name} is {kind}, {high:,} or less, got {value!r}")
        if low is not None and not number >= low:
            raise OptionError(f"{name} is {kind}, {low:,} or more, got {value!r}")
        return number


def _add_shared_options(command: Any, options: list[Any]) -> None:
    """Let a verb and its subcommands accept the shared options among `options`, those of the root
    command. The verb's help only names them. If the verb has an option of the same name, as -p, it
    keeps that one."""
    for child in getattr(command, "commands", {}).values():
        _add_shared_options(child, options)
    if hasattr(command, "commands"):
        return
    command.epilog = command.epilog or (
        "The options of all verbs work here, too: -b, -F, -X, --profile, --timeout, --debug; see "
        "sparkkafka --help."
    )
    taken = {flag for parameter in command.params for flag in parameter.opts}
    for option in options:
        if option.name in SESSION_OPTIONS and not taken & set(option.opts):
            hidden = copy.copy(option)
            hidden.hidden, hidden.expose_value, hidden.callback = True, False, _set_session_option
            command.params.append(hidden)


def _set_session_option(context: Any, parameter: Any, value: Any) -> Any:
    """Pass a shared option to the session if it was given after the verb. A value from the
    environment is ignored: `_set_root_options` has passed it."""
    source = context.get_parameter_source(parameter.name)
    if source is not None and source.name == "COMMANDLINE":
        context.obj.set_option(parameter.name, value)
    return value


SESSION_OPTIONS: Final = (
    "bootstrap_server",
    "profile",
    "config_file",
    "property",
    "timeout",
    "debug",
)
"""The shared options, by the names of their parameters, which `Session.set_option` takes."""


def _print_version(is_given: bool) -> None:
    """Print the version and end, if --version is given."""
    if is_given:
        typer.echo(f"sparkkafka {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="sparkkafka",
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,  # rich takes 100 ms to import
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback()
def options(
    context: typer.Context,
    bootstrap_server: str | None = Option(
        None, "-b", "--bootstrap-server", metavar="HOST:PORT,…", help="Brokers to connect to first."
    ),
    profile: str | None = Option(
        None,
        metavar="NAME",
        envvar="SPARKKAFKA_PROFILE",
        autocompletion=profile_names,
        help="A profile of ~/.config/sparkkafka/config.toml.",
    ),
    config_file: str | None = Option(
        None,
        "-F",
        "--config-file",
        metavar="FILE",
        help="A properties file with settings of a Java client or of librdkafka.",
    ),
    property: list[str] | None = Option(
        None,
        "-X",
        "--property",
        metavar="KEY=VALUE",
        help="A setting with Kafka's name; may be repeated.",
    ),
    timeout: float | None = Option(
        None, metavar="SECONDS", help="The maximum time of a verb.", show_default="30"
    ),
    debug: bool = Option(
        False, "--debug", help="Show the traceback of an error, and all warnings."
    ),
    version: bool = Option(
        False, "--version", is_eager=True, callback=_print_version, help="Show the version."
    ),
) -> None:
    """Kafka from a terminal: topics, groups, lag, records, ACLs, whether a job can run.

    The cluster and your credentials come from -b and -X, from a Java client.properties (-F), or
    from a profile in ~/.config/sparkkafka/config.toml (--profile). Examples:

    \b
      sparkkafka -b localhost:9092 topics list
      sparkkafka --profile prod lag my-group --watch
      sparkkafka -F client.properties check --read orders --group billing
    """
    _set_root_options(context)


def _set_root_options(context: Any) -> None:
    """Pass the shared options before the verb to the session; `_set_session_option` passes those
    after it."""
    for name in SESSION_OPTIONS:
        value = context.params.get(name)
        if value is not None and value is not False and value != []:
            session_of(context).set_option(name, value)


def session_of(context: typer.Context) -> Session:
    """Return the session of a verb's context."""
    return context.find_root().obj  # type: ignore[no-any-return]


def confirm(question: str, yes: bool, admin: BoundedAdmin) -> None:
    """Ask on the terminal before something is deleted, unless --yes is given (`yes`). Without a
    terminal --yes is required. After the answer the deadline of `admin` starts again.

    Raises typer.Exit (1) if the answer is no, OptionError without a terminal and --yes.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise OptionError(f"{question} There is no terminal to ask on: give --yes")
    if not typer.confirm(question, err=True):
        print_error("nothing was done")
        raise typer.Exit(1)
    admin.restart_deadline()


def fail_each(errors: Iterable[KafkaError]) -> None:
    """Print a line for each of the first ten errors; if there are any, raise typer.Exit (1)."""
    failed = list(errors)
    for error in failed[:10]:
        print_error(str(error))
    if len(failed) > 10:
        print_error(f"and {counted(len(failed) - 10, 'error')} more")
    if failed:
        raise typer.Exit(1)


def choose_option(values: Mapping[str, Any]) -> str:
    """Return the name of the one option that is given (neither None nor False). Raises OptionError
    if it is none or several."""
    chosen = [name for name, value in values.items() if value is not None and value is not False]
    if len(chosen) != 1:
        excess = f", not {' and '.join(chosen)}" if chosen else ""
        raise OptionError(f"give one of {', '.join(values)}{excess}")
    return chosen[0]


def parse_headers(texts: Iterable[str]) -> tuple[tuple[str, bytes | None], ...]:
    """Parse headers NAME=VALUE, or NAME alone, whose value is None. A value has the bytes that were
    typed, also if they are not UTF-8."""
    headers: list[tuple[str, bytes | None]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        headers.append((name, os.fsencode(value) if equals else None))
    return tuple(headers)


# --- options of several verbs ------------------------------------------------------------------


def with_option_groups(verb: Callable[..., None]) -> Callable[..., None]:
    """Let a verb take several options as one value.

    A parameter whose type is a dataclass is replaced by an option for each field, in that place;
    the verb gets an object of the dataclass.
    """
    hints = get_type_hints(verb, include_extras=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(verb).parameters.values():
        hint = hints[parameter.name]
        if is_dataclass(hint):
            groups[parameter.name] = hint
            field_hints = get_type_hints(hint, include_extras=True)
            parameters += (
                parameter.replace(
                    name=field.name, default=field.default, annotation=field_hints[field.name]
                )
                for field in fields(hint)
            )
        else:
            parameters.append(parameter.replace(annotation=hint))

    @wraps(verb)
    def run(**values: Any) -> None:
        """Call the verb: the values of options that belong to a group are passed as one object."""
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        verb(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


ToEarliest = Annotated[bool, Option("--to-earliest", help="To the oldest record.")]
ToLatest = Annotated[bool, Option("--to-latest", help="To the end of the partition.")]
ToTime = Annotated[
    str | None,
    Option(
        "--to-time", metavar="TIME", help="To the first record of this time or later: ms, ISO, -2h."
    ),
]
Yes = Annotated[bool, Option("--yes", help="Do not ask.")]
Execute = Annotated[bool, Option("--execute", help="Make the change; without it only show it.")]
AsJson = Annotated[bool, Option("--json", help="Print one JSON document.")]


Topic = Annotated[str, Argument(metavar="TOPIC", help="The topic.", autocompletion=topic_names)]
Delimiter = Annotated[
    str, Option("-D", "--delimiter", metavar="TEXT", help="The text after each record.")
]
MAX_REPLICAS: Final = 2**15 - 1
"""The largest replication factor: 16 bits in Kafka's protocol."""
Count = Annotated[int | None, Option("-c", "--count", min=1, help="Stop after this many records.")]
Partitions = Annotated[
    str | None, Option("-p", "--partitions", metavar="N,…", help="For example 0, or 0,3,5-7.")
]


def root_command() -> Any:
    """Return the command that `app.main` runs and that the docs' reference is generated from."""
    return typer.main.get_command(app)


def parse_partitions(text: str, option: str) -> tuple[int, ...]:
    """Parse numbers and ranges like 0,3,5-7. Raises OptionError."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not first <= last < first + 100_000:
            raise OptionError(f"{option}: partitions are written 0, or 0,3,5-7; got {text!r}")
        numbers += range(first, last + 1)
    return tuple(dict.fromkeys(numbers))


def timestamp_ms_of(text: str, option: str) -> int:
    """Parse milliseconds, ISO 8601, or how long ago (-2h); return milliseconds since 1970 UTC.
    Raises OptionError, which names the option and these forms."""
    word = text.strip()
    if word.isascii() and word.isdecimal() and len(word) <= 18:
        from sparkkafka.config.parsed_options import warn_of_seconds  # not for --help

        warn_of_seconds(int(word), option)
        return int(word)
    try:
        if word.startswith("-"):
            return max(int(time.time() * 1000) - _duration_ms(word[1:]), 0)
        parsed = datetime.fromisoformat(word)
        # UTC without a zone, as Kafka's own tools take it: the same moment on every machine.
        at_s = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        at_s = -1.0
    if at_s < 0:
        raise OptionError(
            f"{option} is ms since 1970 (1767225600000), ISO 8601 (2026-01-31T12:00, with +01:00 "
            "behind it if it is not UTC), or how long ago (-90s, -15m, -2h, -1d); got "
            f"{text[:100]!r}"
        )
    return round(at_s * 1000)


def seconds_of(text: str, option: str) -> float:
    """Return the seconds of a duration like 30s, 15m, 2h or 1d. Raises OptionError."""
    try:
        return _duration_ms(text) / 1000
    except ValueError:
        raise OptionError(
            f"{option} is a time with a unit, like 500ms, 30s, 15m or 2h; got {text[:100]!r}"
        ) from None


def _duration_ms(text: str) -> int:
    """Parse a duration as options do, but refuse a number without a unit, which in options is
    milliseconds. Raises ValueError."""
    if text.strip()[-1:].isdecimal():
        raise ValueError("a number without a unit")
    return parse_duration_ms(text)


def local_time(timestamp_ms: int) -> str:
    """Format a timestamp for people, in this machine's zone, to the second."""
    moment = datetime.fromtimestamp(timestamp_ms / 1000).astimezone()
    return moment.isoformat(" ", timespec="seconds")
