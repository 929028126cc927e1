"""The command's flags for formats, translated to and from the options of Spark's side.

flags.options(Side.READ, session, …)      flags -> options for a read of typed records
replace_options_by_flags(message)         valueFormat=json -> --value-format json
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from typer import Option

from sparkkafka.config.kinds import BINARY, REGISTRY_PREFIX, STRING
from sparkkafka.config.option_table import FORMATS, REGISTRY, Side
from sparkkafka.errors import OptionError, exclusive, without_spark_hints

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
    "envelope": "--envelope",
}
_ROWS: Final = {row.key: row for row in (*FORMATS, *REGISTRY)}


@dataclass(frozen=True)
class FormatFlags:
    """The options of `read` and `write` for keys and values with a schema."""

    value_format: Annotated[
        str, Option(help="text (or string, binary), json, avro or protobuf.")
    ] = TEXT
    key_format: Annotated[str, Option(help="The same for keys.")] = TEXT
    value_schema: Annotated[str | None, Option(help="The schema, or the path of its file.")] = None
    key_schema: Annotated[str | None, Option(help="The same for keys.")] = None
    schema_registry: Annotated[
        str | None, Option(metavar="URL", help="The URL of the Schema Registry.")
    ] = None
    no_schema_registry: Annotated[
        bool, Option("--no-schema-registry", help="Ignore the Schema Registry of the profile.")
    ] = False

    def options(self, side: Side, session: Session, others: Iterable[str]) -> dict[str, str]:
        """Return the options for these flags; empty for records that are read or written as they
        are.

        `others` are values of --option, like valueSubject=s. The profile's registry is left out if
        no format uses it, since one profile serves all verbs. --timeout bounds each call to the
        registry. Raises OptionError.
        """
        registry_url = self.schema_registry
        if self.no_schema_registry and registry_url is not None:
            raise exclusive("--schema-registry", "--no-schema-registry")
        if registry_url == "":
            raise OptionError("--schema-registry is empty: for none give --no-schema-registry")
        options = _parse_option_values(side, others)
        for column, name, schema in (
            ("value", self.value_format, self.value_schema),
            ("key", self.key_format, self.key_schema),
        ):
            if name.lower() not in (TEXT, STRING, BINARY):  # the same bytes on a terminal
                options[f"{column}Format"] = name
            if schema is not None:
                options[f"{column}Schema"] = schema
        if registry_url is not None:
            options[_URL] = registry_url
        if not options or self.no_schema_registry:
            return options
        from sparkkafka.config.formats import uses_registry

        if uses_registry(options, side):
            options = session.registry_options() | options
            names = {name.lower() for name in options}
            timeout_option = f"{REGISTRY_PREFIX}api.timeout.ms"
            if session.has_timeout and _URL in names and timeout_option not in names:
                options[timeout_option] = str(max(1, round(session.timeout_s * 1000)))
        return options


def _parse_option_values(side: Side, texts: Iterable[str]) -> dict[str, str]:
    """Parse values of --option. Raises OptionError for one that would have no effect."""
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
        if row.key in ("envelope.columns", "envelope.unavailable"):
            raise OptionError(f"--option {row.name} is for Spark: --envelope shows changes")
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
        """Return the flag of the command line for an option that a message names."""
        name, value = match[1], match[2]
        if name in _FLAGS:
            return _FLAGS[name] if value is None else f"{_FLAGS[name]} {value}"
        return f"--option {name}" if value is None else f"--option {name}={value}"

    return _NAMED_OPTION.sub(flag, without_spark_hints(message))
