"""The options that a user set, each checked against its row of the option table.

No option is silently ignored: it is used, refused by name, or named in one warning of the log
`sparkkafka.config.options`. Values of secret options appear in no message.

An option that has no row: without the prefix kafka. it is an error (`unknown_option`), as is an
unknown setting of the client library (`unknown_setting`); with the prefix it is a warning, since
Kafka's clients ignore properties that they do not know, or an error if it is dangerous to ignore
(`unknown_property`).
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from sparkkafka.config.kinds import LOGIN_CALLBACK_OPTION, REGISTRY_PREFIX
from sparkkafka.config.option_table import CONNECTOR, FORMATS, KAFKA, REGISTRY, Option, Side, Status
from sparkkafka.config.security import references
from sparkkafka.errors import OptionError, shortened
from sparkkafka.hooks import NAMES as HOOK_NAMES

KAFKA_PREFIX = "kafka."
"""The prefix of Kafka's properties in Spark."""

_CONNECTOR = {row.key: row for row in CONNECTOR if row.status is not Status.IGNORED}
_FORMAT_KEYS = tuple(row.key for row in (*FORMATS, *REGISTRY))


def unknown_option(name: str) -> OptionError:
    """Return the error of an option that neither begins with kafka. nor is the connector's."""
    names = [*_CONNECTOR, *(KAFKA_PREFIX + row.key for row in KAFKA)]
    # `compression` is an option of Spark's file sources.
    key = "compression.type" if name.lower() == "compression" else name.lower()
    return OptionError(f"unknown option {name!r}{_did_you_mean(key, names)}")


def unknown_property(name: str) -> str:
    """Return the warning of a property kafka.… that Kafka's clients do not have.

    Raises OptionError if the name looks like one about security, brokers' addresses or formats, or
    is the connector's with the prefix.
    """
    key = name.lower().removeprefix(KAFKA_PREFIX)
    if (
        key.startswith(REGISTRY_PREFIX)
        or key in _CONNECTOR
        or _close_matches(key, _FORMAT_KEYS, 0.85)
    ):
        # If it were ignored, a stream would start at other offsets, a write would not be
        # exactly-once, columns would be bytes, or decoded with schemas of the wrong registry.
        raise OptionError(
            f"unknown Kafka property {name!r}{_did_you_mean(key, [*_CONNECTOR, *_FORMAT_KEYS])}; "
            "options of the connector, of formats and of the Schema Registry have no prefix "
            f"{KAFKA_PREFIX!r}"
        )
    keys = [row.key for row in KAFKA]
    hint = _did_you_mean(LIBRDKAFKA_NAMES.get(key, key), keys, KAFKA_PREFIX)
    dangerous = re.compile(r"(?:security|ssl|https|sasl|bootstrap)\.")
    if any(map(dangerous.match, [key, *_close_matches(key, keys, 0.85)])):
        # If it were ignored, a job would connect to the wrong cluster or in plain text.
        raise OptionError(
            f"unknown Kafka property {name!r}{hint}; properties about security, and where "
            "to connect, are never ignored"
        )
    return f"unknown Kafka property {name!r} has no effect{hint}"


def unknown_setting(name: str, known: Iterable[str]) -> OptionError:
    """Return the error of a setting of the client library; `known` are those of its class."""
    key, known = name.lower(), list(known)
    if key in HINTS:
        hint = f"; {HINTS[key]}"
    elif key.startswith(REGISTRY_PREFIX):
        hint = _did_you_mean(key, _FORMAT_KEYS)
    elif (dotted := key.replace("_", ".")) in known:
        hint = f"; did you mean '{dotted}'?"
    else:
        hint = _did_you_mean(key, [*known, *HOOK_NAMES])
    return OptionError(f"unknown setting {name!r}{hint}")


def _did_you_mean(key: str, names: Iterable[str], prefix: str = "") -> str:
    """Return `; did you mean 'x'?`, "" if no name is similar. `prefix` is put before the name."""
    names = list(names)
    if f"{KAFKA_PREFIX}{key}" in names:  # bootstrap.servers without its prefix
        return f"; did you mean '{KAFKA_PREFIX}{key}'?"
    for match in _close_matches(key, names, 0.7):
        name = _CONNECTOR[match].name if match in _CONNECTOR else match
        return f"; did you mean '{prefix}{name}'?"
    return ""


def _close_matches(key: str, names: Iterable[str], cutoff: float) -> list[str]:
    """Return the name that is most similar to the key; none below the cutoff (1: equal)."""
    return difflib.get_close_matches(key, list(names), n=1, cutoff=cutoff)


# --- other names for settings ----------------------------------------------------------------

LIBRDKAFKA_NAMES: Mapping[str, str] = {
    "auto.commit.enable": "enable.auto.commit",
    "compression.codec": "compression.type",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.max.bytes": "max.request.size",
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery.timeout.ms",
    "metadata.broker.list": "bootstrap.servers",
    "queue.buffering.max.ms": "linger.ms",
    "request.required.acks": "acks",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "socket.timeout.ms": "request.timeout.ms",
    "topic.metadata.refresh.interval.ms": "metadata.max.age.ms",
}
"""Our names by librdkafka's, if values and units are the same. The command accepts both."""

HINTS: Mapping[str, str] = {
    **{
        theirs: f"it is {ours} here"
        for theirs, ours in {
            **LIBRDKAFKA_NAMES,
            "batch.num.messages": "batch.size (in bytes)",
            "compression.level": "compression.gzip.level, .lz4.level or .zstd.level",
            "partitioner": "partitioner.class",
            "queue.buffering.max.kbytes": "buffer.memory (in bytes)",
            "socket.connection.setup.timeout": "socket.connection.setup.timeout.ms",
        }.items()
    },
    "debug": "set the environment variable SPARKKAFKA_LOGGING, e.g. to client:debug",
    "enable.auto.offset.store": "commit({partition: offset}) commits these offsets",
    "enable.partition.eof": "poll returns nothing at the end; lag() returns the distance to it",
    **dict.fromkeys(
        ("key_deserializer", "value_deserializer"),
        "there are no deserializers: decode keys and values after poll",
    ),
    **dict.fromkeys(
        ("key_serializer", "value_serializer"),
        "there are no serializers: encode keys and values before send",
    ),
    "error_cb": "errors are raised, or logged to the logger sparkkafka; on_error(broker, error) "
    "is called for connections",
    "logger": "the logger is sparkkafka, of Python's logging",
    "on_delivery": "pass a function to send(…).add_callback",
    "queued.min.messages": "fetch.max.bytes limits how much is fetched ahead",
    "statistics.interval.ms": "metrics() of the client has figures",
    "stats_cb": "metrics() of the client has figures",
}
"""Advice by a lower-case name of librdkafka's, Python clients' or other clients' settings."""


log = logging.getLogger("sparkkafka.config.options")

# Apart from the others, because includeHeaders is used in reads and ignored in writes.
_IGNORED = {(row.key, row.side): row for row in CONNECTOR if row.status is Status.IGNORED}
_KAFKA = {row.key: row for row in KAFKA}
# Settings of the client library that may be Python functions, by group and attribute.
_CALLABLES = {
    LOGIN_CALLBACK_OPTION: ("security", "login_callback"),
    "partitioner.class": ("settings", "partitioner"),
}


def without_unused_values(options: Mapping[str, Any]) -> dict[str, str]:
    """Return Spark's options with names in lower case, and "" for values that are not used, because
    these may be secrets. The names of unknown, refused and ignored options are kept for the error
    or warning."""
    kept = {}
    for name, value in options.items():
        key = name.lower()
        if key.startswith(KAFKA_PREFIX):
            row = _KAFKA.get(key.removeprefix(KAFKA_PREFIX))
        else:
            row = _CONNECTOR.get(key)
        used = (row is not None and row.status is Status.USED) or key in ("path", "paths")
        # config.providers and its classes: their aliases are needed to resolve references.
        used |= (
            key.startswith(f"{KAFKA_PREFIX}{references.PROVIDERS_OPTION}") and ".param." not in key
        )
        if value is not None:
            kept[key] = as_text(value) if used else ""
    return kept


class ParsedOptions:
    """The options that a user set, checked and parsed, of a read or a write (`side`).

    In Spark `settings` is None: Kafka's properties have the prefix kafka., the others are the
    connector's. In the client library `settings` has the rows of the class's settings by their
    names in lower case; there is no prefix. Raises OptionError.

    `values` (parsed) and `raw` (text) are by the row's name, `names` has the name that the user
    chose, perhaps an alias, by the row's field.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        side: Side,
        *,
        settings: Mapping[str, Option] | None = None,
    ) -> None:
        self.side = side
        self.prefix = KAFKA_PREFIX if settings is None else ""
        self.is_empty = not options
        self.values: dict[str, Any] = {}
        self.raw: dict[str, str] = {}  # the texts of the user
        self.names: dict[str, str] = {}  # by "group.field": the user's name of the option
        self._kafka_rows = _KAFKA if settings is None else settings
        self._groups: dict[str, dict[str, Any]] = {}
        for name in options:
            if not isinstance(name, str):
                raise OptionError(f"the name of an option is text, got {name!r}")
        keys = {name: name.lower().removeprefix(self.prefix) for name in options}
        # Only these: a variable of all options would be in the frames of an error.
        self._providers = references.provider_names(
            {
                key: as_text(options[name])
                for name, key in keys.items()
                if key.startswith(references.PROVIDERS_OPTION)
            }
        )
        names_seen: set[str] = set()
        for name, value in options.items():
            key = name.lower()
            if key in names_seen:
                raise OptionError(f"option {name} is given twice, in different case")
            names_seen.add(key)
            if value is None:
                continue
            if (
                callable(value)
                and key in _CALLABLES
                and self._kafka_rows[key].status is Status.USED
            ):
                group, attribute = _CALLABLES[key]
                self.names[f"{group}.{attribute}"] = key
                self._groups.setdefault(group, {})[attribute] = value
            elif settings is None and not key.startswith(KAFKA_PREFIX):
                self._set_connector_option(name, as_text(value))
            else:
                self._set_kafka_property(name, key.removeprefix(self.prefix), as_text(value))

    def group(self, name: str) -> dict[str, Any]:
        """Return the values for the dataclass with this GROUP by attribute, only those that are
        set."""
        return self._groups.get(name, {})

    def _set_connector_option(self, name: str, text: str) -> None:
        """Set an option without the prefix kafka. Raises OptionError if it is unknown."""
        key = name.lower()
        if key in ("path", "paths"):
            # load("x") and save("x") set path, load(["x", "y"]) paths; Spark's catalog sets path to
            # the folder of a SQL table.
            raise OptionError(
                f"option {key} ({shortened(text)}) has no meaning for Kafka: call load() or "
                "save() without an argument and name topics with subscribe or topic"
            )
        row = _IGNORED.get((key, self.side)) or _CONNECTOR.get(key)
        if row is None:
            raise unknown_option(name)
        self._set(row, text, row.name)

    def _set_kafka_property(self, name: str, key: str, text: str) -> None:
        """Set a property of Kafka's clients. `key` is its lower-case name without prefix, `name` as
        the user wrote it. An unknown one is an error or a warning."""
        row = self._kafka_rows.get(key)
        if row is None and key.startswith(f"{references.PROVIDERS_OPTION}."):
            # The row config.providers.NAME.param.KEY is for the parameters of all providers.
            any_parameter = f"{references.PROVIDERS_OPTION}.name.param.key"
            row = self._kafka_rows[
                references.PROVIDERS_OPTION if key.endswith(".class") else any_parameter
            ]
        if row is not None:
            self._set(row, text, self.prefix + row.name)
        elif self.prefix:
            warn(name, unknown_property(name))
        else:
            raise unknown_setting(name, self._kafka_rows)

    def _set(self, row: Option, text: str, shown: str) -> None:
        """Check and parse the value of a row; `shown` is the option's name in messages."""
        if not row.side.covers(self.side):
            use = "reading" if row.side is Side.READ else "writing"
            warn(shown, f"option {shown} has no effect here: it is for {use}")
            return
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
        group, _, attribute = row.field.partition(".")
        if group in ("security", "registry", "registry_tls"):
            text = references.replace_provider_aliases(text, self._providers, shown)
        try:
            value = row.kind.parse(text)
        except ValueError as error:
            reason = f": {error}" if str(error) and not row.secret else ""
            # Common mistakes are user:password@host, a key in a URL's query, and a password as the
            # value of another setting of security, where constants, classes and versions are not.
            hidden = row.secret or "@" in text or bool(re.search("://.*[?#]", text))
            if re.search(r"\b(?:security|ssl|sasl|auth)\.", row.name):
                hidden = hidden or not re.fullmatch(r"[A-Z_]+|[\w$]+([.,]+[\w$]+)+", text)
            got = "" if hidden else f", got {shortened(text)}"
            raise OptionError(f"{shown} must be {row.kind.values}{got}{reason}") from None
        name = row.alias_of or row.name
        if name in self.values:
            other = shown.removesuffix(row.name) + self.names[row.field]  # with the same prefix
            raise OptionError(f"{other} and {shown} are two names of one setting: remove one")
        self.values[name] = value
        self.raw[name] = text
        self.names[row.field] = row.name
        self._groups.setdefault(group, {})[attribute] = value


def as_text(value: object) -> str:
    """Return an option's value as Spark's Python writes it: True becomes "true"."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):  # in the client library; Spark passes text on
        return ",".join(map(str, value))
    return str(value)


_warned: set[str] = set()


def warn(name: str, message: str) -> None:
    """Log a warning, once for each name and process. Options are parsed only on the driver."""
    if name not in _warned:
        _warned.add(name)
        log.warning("%s", message)


def warn_of_seconds(timestamp_ms: int, name: str) -> None:
    """Warn of a time that is in seconds, by its size: as milliseconds it would be in 1970."""
    if 10**9 <= timestamp_ms < 10**10:
        warn(name, f"{name}: {timestamp_ms} ms after 1970 is in 1970. Times are in milliseconds")
