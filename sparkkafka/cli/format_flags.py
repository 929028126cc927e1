"""The command's flags for formats, translated to and from the options of Spark's side.

format_options(Side.READ, session, …)         flags -> options for a read of typed records
replace_options_by_flags(message)             valueFormat=json -> --value-format json
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from sparkkafka.config.kinds import BINARY, REGISTRY_PREFIX, STRING
from sparkkafka.config.option_table import FORMATS, REGISTRY, Side
from sparkkafka.errors import OptionError, without_spark_hints

if TYPE_CHECKING:
    from sparkkafka.cli.session import Session

TEXT: Final = "text"
_URL: Final = f"{REGISTRY_PREFIX}url"
_FLAGS: Final[Mapping[str, str]] = {
    "valueFormat": "--value-format",
    "keyFormat": "--key-format",
    "valueSchema": "--value-schema",
    "keySchema": "--key-schema",
    _URL: "--schema-registry",
    "onBadRecord": "--on-bad",
}
_ROWS: Final = {row.key: row for row in (*FORMATS, *REGISTRY)}


def format_options(
    side: Side,
    session: Session,
    *,
    value_format: str,
    key_format: str,
    value_schema: str | None,
    key_schema: str | None,
    schema_registry: str | None,
    no_schema_registry: bool,
    others: Iterable[str],
) -> dict[str, str]:
    """Return the options for these flags; empty for records that are read or written as they are.

    `others` are texts of --option, like valueSubject=s. The profile's registry is left out if no
    format uses it, since one profile serves all verbs. --timeout bounds each call to the registry.
    Raises OptionError.
    """
    if no_schema_registry and schema_registry is not None:
        raise OptionError("--schema-registry and --no-schema-registry exclude each other")
    if schema_registry == "":
        raise OptionError("--schema-registry is empty: for none give --no-schema-registry")
    options = _parse_others(side, others)
    for column, name, schema in (
        ("value", value_format, value_schema),
        ("key", key_format, key_schema),
    ):
        if name.lower() not in (TEXT, STRING, BINARY):  # the same bytes on a terminal
            options[f"{column}Format"] = name
        if schema is not None:
            options[f"{column}Schema"] = schema
    if schema_registry is not None:
        options[_URL] = schema_registry
    if not options or no_schema_registry:
        return options
    from sparkkafka.config.formats import uses_registry

    if uses_registry(options, side):
        options = session.registry_options() | options
        names = {name.lower() for name in options}
        limit = f"{REGISTRY_PREFIX}api.timeout.ms"
        if session.has_timeout and _URL in names and limit not in names:
            options[limit] = str(max(1, round(session.timeout_s * 1000)))
    return options


def _parse_others(side: Side, texts: Iterable[str]) -> dict[str, str]:
    """Raises OptionError for a text of --option that would have no effect."""
    options: dict[str, str] = {}
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
        if row.key in ("deadletter.topic", "rescuedcolumn"):
            raise OptionError(
                f"--option {row.name} is for Spark: here --on-bad says what becomes of bad records"
            )
        if not row.side.covers(side):
            verb = "write" if side is Side.READ else "read"
            raise OptionError(f"--option {row.name} is for `{verb}`: remove it")
        options[row.name] = value
    return options


# --- messages ------------------------------------------------------------------------------------

_NAMES: Final = sorted((*(row.name for row in FORMATS), _URL), key=len, reverse=True)
_NAMED_OPTION: Final = re.compile(
    rf"(?<!--option )(?<![\w.'-])(?:option )?({'|'.join(map(re.escape, _NAMES))})(?:=([\w-]+))?"
    r"(?![\w'-]|\.\w)"
)
"""An option of formats in a message, perhaps with its value; not in quotation marks, and not if it
is part of a longer name or already a flag."""


def replace_options_by_flags(message: str) -> str:
    """Return a message about options of formats with the command's flags for them, and without
    what only Spark's users need to know."""

    def flag(match: re.Match[str]) -> str:
        name, value = match[1], match[2]
        if name in _FLAGS:
            return _FLAGS[name] if value is None else f"{_FLAGS[name]} {value}"
        return f"--option {name}" if value is None else f"--option {name}={value}"

    return _NAMED_OPTION.sub(flag, without_spark_hints(message))
