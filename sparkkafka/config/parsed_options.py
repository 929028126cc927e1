"""The options that a user set, each checked against its row of the option table.

No option is silently ignored: it is used, refused by name, or named in one warning of the log
`sparkkafka.config.options`. Values of secret options appear in no message.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from sparkkafka.config.kinds import CALLBACK_OPTION, REGISTRY_PREFIX
from sparkkafka.config.option_table import CONNECTOR, FORMATS, KAFKA, REGISTRY, Option, Side, Status
from sparkkafka.config.security.references import (
    PROVIDERS_OPTION,
    provider_names,
    with_own_names,
)
from sparkkafka.errors import OptionError
from sparkkafka.hooks import NAMES as HOOK_NAMES

log = logging.getLogger("sparkkafka.config.options")

_PREFIX = "kafka."
"""The prefix of Kafka's settings in Spark."""
_CONNECTOR = {row.key: row for row in CONNECTOR if row.status is not Status.IGNORED}
_IGNORED = {(row.key, row.side): row for row in CONNECTOR if row.status is Status.IGNORED}
_KAFKA = {row.key: row for row in KAFKA}
_FORMAT_KEYS = tuple(row.key for row in (*FORMATS, *REGISTRY))
_CALLBACK_FIELD = _KAFKA[CALLBACK_OPTION].field or ""


def forget_unused(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the options in lower case, without unused values, since these may be secrets.

    Unknown, refused and ignored options keep their names, for the error or warning.
    """
    kept = {}
    for name, value in options.items():
        key = name.lower()
        if key.startswith(_PREFIX):
            row = _KAFKA.get(key.removeprefix(_PREFIX))
        else:
            row = _CONNECTOR.get(key)
        used = (row is not None and row.status is Status.USED) or key == "path"
        used |= key.startswith(f"{_PREFIX}{PROVIDERS_OPTION}") and ".param." not in key
        if value is not None:
            kept[key] = as_text(value) if used else ""
    return kept


class ParsedOptions:
    """The options that a user set, checked and parsed. `values` and `raw` have the rows' names.

    `rows` are those of Kafka's properties by their names in lower case; `hints` are advice for some
    unknown ones. Raises OptionError.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        side: Side,
        *,
        prefixed: bool,
        rows: Mapping[str, Option] = _KAFKA,
        hints: Mapping[str, str] | None = None,
    ) -> None:
        self.side = side
        self._rows = rows
        self._hints = hints or {}
        self.prefix = _PREFIX if prefixed else ""
        self.any = bool(options)
        self.values: dict[str, Any] = {}
        self.raw: dict[str, str] = {}
        self.names: dict[str, str] = {}  # by row.field: the row's name, perhaps an alias
        self._fields: dict[str, dict[str, Any]] = {}
        keys = {name: name.lower().removeprefix(self.prefix) for name in options}
        # Only these: a variable of all options would be in the frames of an error.
        self._providers = provider_names(
            {
                key: as_text(options[name])
                for name, key in keys.items()
                if key.startswith(PROVIDERS_OPTION)
            }
        )
        seen: set[str] = set()
        for name, value in options.items():
            key = name.lower()
            if key in seen:
                raise OptionError(f"option {name} is given twice, in different case")
            seen.add(key)
            if value is None:
                continue
            if callable(value) and key == CALLBACK_OPTION:
                self.names[_CALLBACK_FIELD] = key
                self._fields.setdefault("security", {})[_CALLBACK_FIELD.partition(".")[2]] = value
            elif prefixed and not key.startswith(_PREFIX):
                self._set_connector_option(name, key, as_text(value))
            else:
                self._set_kafka_property(name, key.removeprefix(self.prefix), as_text(value))

    def group(self, name: str) -> dict[str, Any]:
        """Return the values that are set of the dataclass with this GROUP, by attribute."""
        return self._fields.get(name, {})

    def _hint(self, key: str) -> str:
        """Return advice for an unknown setting, or ""."""
        if key in self._hints:
            return f"; {self._hints[key]}"
        if key.startswith(REGISTRY_PREFIX):
            return _nearest(key, _FORMAT_KEYS)
        dotted = key.replace("_", ".")
        if dotted in self._rows:
            return f"; did you mean '{dotted}'?"
        return _nearest(key, [*self._rows, *HOOK_NAMES])

    def _set_connector_option(self, name: str, key: str, text: str) -> None:
        ignored = _IGNORED.get((key, self.side))
        if ignored is not None:
            warn(ignored.name, f"option {ignored.name} has no effect: {ignored.doc}")
            return
        row = _CONNECTOR.get(key)
        if row is None:
            if key == "path":
                # load("x") and save("x") set this option; Spark's catalog sets it to the folder
                # of a SQL table.
                raise OptionError(
                    f"option path ({shortened(text)}) has no meaning for Kafka: call load() or "
                    "save() without an argument and name topics with subscribe or topic"
                )
            names = [*_CONNECTOR, *(_PREFIX + key for key in _KAFKA)]
            raise OptionError(f"unknown option {name!r}{_nearest(key, names)}")
        if not row.side.covers(self.side):
            warn(row.name, f"option {row.name} has no effect here: it is for {_USE[row.side]}")
            return
        self._set(row, text, row.name)

    def _set_kafka_property(self, name: str, key: str, text: str) -> None:
        row = self._rows.get(key)
        if row is None and key.startswith(f"{PROVIDERS_OPTION}."):
            parameter = f"{PROVIDERS_OPTION}.name.param.key"
            row = self._rows[PROVIDERS_OPTION if key.endswith(".class") else parameter]
        if row is None:
            if not self.prefix:
                raise OptionError(f"unknown setting {name!r}{self._hint(key)}")
            own = difflib.get_close_matches(key, _FORMAT_KEYS, n=1, cutoff=0.85)
            if own or key.startswith(REGISTRY_PREFIX):
                # If it were ignored, columns would be bytes, or of the wrong registry.
                raise OptionError(
                    f"unknown Kafka property {name!r}{_nearest(key, _FORMAT_KEYS)}; options of "
                    f"formats and of the Schema Registry have no prefix {_PREFIX!r}"
                )
            near = _nearest(key, _KAFKA, _PREFIX)
            close = difflib.get_close_matches(key, _KAFKA, n=1, cutoff=0.85)
            vital = re.compile(r"(?:security|ssl|https|sasl|bootstrap)\.")
            if any(map(vital.match, [key, *close])):
                # If it were ignored, a job would connect to the wrong cluster or in plain text.
                raise OptionError(
                    f"unknown Kafka property {name!r}{near}; properties about security, and where "
                    "to connect, are never ignored"
                )
            warn(name, f"unknown Kafka property {name!r} has no effect{near}")
            return
        shown = self.prefix + row.name
        if not row.side.covers(self.side):
            warn(shown, f"option {shown} has no effect here: it is for {_USE[row.side]}")
            return
        self._set(row, text, shown)

    def _set(self, row: Option, text: str, shown: str) -> None:
        if row.status is Status.REFUSED:
            raise OptionError(f"Kafka option '{row.name}' is not supported. {row.doc}")
        if row.status is Status.UNNEEDED:
            log.debug("option %s is not needed: %s", shown, row.doc)
            return
        if row.status is Status.IGNORED:
            warn(shown, f"option {shown} has no effect: {row.doc}")
            return
        if row.kind is None or row.field is None:
            raise OptionError(f"option {shown} has no kind or field in the option table")
        if row.field.startswith(("security.", "registry.", "registry_tls.")):
            text = with_own_names(text, self._providers, shown)
        try:
            value = row.kind.parse(text)
        except ValueError as error:
            reason = f": {error}" if str(error) and not row.secret else ""
            # Common mistakes are user:password@host, and a key in a URL's query.
            hidden = row.secret or "@" in text or re.search("://.*[?#]", text)
            got = "" if hidden else f", got {shortened(text)}"
            raise OptionError(f"{shown} must be {row.kind.values}{got}{reason}") from None
        name = row.alias_of or row.name
        if name in self.values:
            other = self.names[row.field]
            raise OptionError(
                f"{self.prefix}{other} and {shown} are two names of one setting: remove one"
            )
        self.values[name] = value
        self.raw[name] = text
        self.names[row.field] = row.name
        group, _, attribute = row.field.partition(".")
        self._fields.setdefault(group, {})[attribute] = value


def shortened(text: str, max_chars: int = 200) -> str:
    """Return the text in quotes, cut if it is long."""
    if len(text) <= max_chars:
        return repr(text)
    return f"{text[:max_chars]!r}… ({len(text)} characters)"


def as_text(value: object) -> str:
    """Return an option's value as Spark's Python writes it: True becomes "true"."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):  # in the client library; Spark passes text on
        return ",".join(map(str, value))
    return str(value)


def _nearest(key: str, names: Iterable[str], prefix: str = "") -> str:
    """Return `; did you mean 'x'?`, "" if no name is similar."""
    names = list(names)
    if f"{_PREFIX}{key}" in names:  # bootstrap.servers without its prefix
        return f"; did you mean '{_PREFIX}{key}'?"
    for near in difflib.get_close_matches(key, names, n=1, cutoff=0.7):
        name = _CONNECTOR[near].name if near in _CONNECTOR else near
        return f"; did you mean '{prefix}{name}'?"
    return ""


_USE = {Side.READ: "reading", Side.WRITE: "writing", Side.BOTH: "both"}
_warned: set[str] = set()


def warn(name: str, message: str) -> None:
    """Log a warning, once for each name and process. Options are parsed only on the driver."""
    if name not in _warned:
        _warned.add(name)
        log.warning("%s", message)
