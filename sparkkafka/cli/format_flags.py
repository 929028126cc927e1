"""The command's flags of formats as options of Spark's side, and messages about those options in
the command's words.

    format_options_of(Side.READ, flags, session)     what a read of typed records needs
    command_words(message)                           valueFormat=json -> --value-format json
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sparkkafka.config.kinds import BINARY, REGISTRY_PREFIX, STRING
from sparkkafka.config.option_table import FORMATS, REGISTRY, Side
from sparkkafka.errors import OptionError

if TYPE_CHECKING:
    from sparkkafka.cli.session import Session

TEXT: Final = "text"
_URL: Final = f"{REGISTRY_PREFIX}url"
_LIMIT: Final = f"{REGISTRY_PREFIX}api.timeout.ms"
_FLAGS: Final[Mapping[str, str]] = {
    "valueFormat": "--value-format",
    "keyFormat": "--key-format",
    "valueSchema": "--value-schema",
    "keySchema": "--key-schema",
    _URL: "--schema-registry",
    "onBadRecord": "--on-bad",
}
_ROWS: Final = {row.key: row for row in (*FORMATS, *REGISTRY)}
_OF_SPARK: Final = frozenset({"deadletter.topic", "rescuedcolumn"})


@dataclass(frozen=True)
class FormatFlags:
    """What was given; `others` are texts like valueSubject=s. `registry`: its URL, "" for none,
    None for the profile's."""

    value_format: str = TEXT
    key_format: str = TEXT
    value_schema: str | None = None
    key_schema: str | None = None
    registry: str | None = None
    others: tuple[str, ...] = ()


def registry_of(url: str | None, none: bool) -> str | None:
    """What --schema-registry and --no-schema-registry say. Raises OptionError for both."""
    if none and url is not None:
        raise OptionError("--schema-registry and --no-schema-registry exclude each other")
    if url == "":
        raise OptionError("--schema-registry is empty: for none give --no-schema-registry")
    return "" if none else url


def format_options_of(side: Side, flags: FormatFlags, session: Session) -> dict[str, str]:
    """Options of Spark's side; empty for records as they are. The registry of a profile is left
    out where no format has a use for it, since one profile serves all; --timeout counts for each
    question to it. Raises OptionError."""
    options = dict(_others(side, flags.others))
    for column, name, schema in (
        ("value", flags.value_format, flags.value_schema),
        ("key", flags.key_format, flags.key_schema),
    ):
        if name.lower() not in (TEXT, STRING, BINARY):  # of which a terminal makes no difference
            options[f"{column}Format"] = name
        if schema is not None:
            options[f"{column}Schema"] = schema
    if flags.registry:
        options[_URL] = flags.registry
    if not options or flags.registry == "":
        return options
    from sparkkafka.config.formats import uses_registry

    if uses_registry(options, side):
        options = session.registry_options() | options
        given = {name.lower() for name in options}
        if session.timeout_s is not None and _URL in given and _LIMIT not in given:
            options[_LIMIT] = str(max(1, round(session.timeout_s * 1000)))
    return options


def _others(side: Side, texts: tuple[str, ...]) -> dict[str, str]:
    """Those of --option: each counts, or is an error."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals:
            raise OptionError(f"--option is written NAME=VALUE, got {text!r}")
        row = _ROWS.get(name.lower())
        if row is None:
            from difflib import get_close_matches

            near = get_close_matches(name.lower(), _ROWS, n=1)
            hint = f"; did you mean {_ROWS[near[0]].name!r}?" if near else ""
            raise OptionError(f"--option {name}: there is no such option of formats{hint}")
        if row.name in _FLAGS and row.name != _URL:
            raise OptionError(f"--option {row.name} is not for the command: {_FLAGS[row.name]} is")
        if row.key in _OF_SPARK:
            raise OptionError(
                f"--option {row.name} is for Spark: here --on-bad says what becomes of bad records"
            )
        if not row.side.covers(side):
            verb = "write" if side is Side.READ else "read"
            raise OptionError(f"--option {row.name} is for `{verb}`: remove it")
        found[row.name] = value
    return found


# --- words ---------------------------------------------------------------------------------------

_NAMES: Final = [*sorted((row.name for row in FORMATS), key=len, reverse=True), _URL]
_NAMED = re.compile(
    rf"(?<!--option )(?<![\w.'-])(?:option )?({'|'.join(map(re.escape, _NAMES))})(?:=([\w-]+))?"
    r"(?![\w'-]|\.\w)"
)
_OF_SPARK_ONLY = re.compile(
    r"\. The driver and each executor open connections, so it must be there for all of them"
    r"| It is read on the driver\."
    r"|, or in \.schema\(…\) \(type= of a function\) .* or binary"
)


def command_words(message: str) -> str:
    """A message about options of formats, as who uses the command writes them."""
    return _NAMED.sub(_as_given, _OF_SPARK_ONLY.sub("", message))


def _as_given(match: re.Match[str]) -> str:
    name, value = match[1], match[2]
    if name in _FLAGS:
        return _FLAGS[name] if value is None else f"{_FLAGS[name]} {value}"
    return f"--option {name}" if value is None else f"--option {name}={value}"
