"""What happens with an unknown or misspelt option: an error or a warning, with the nearest name.

unknown_option      an option without the prefix kafka.: an error
unknown_property    one with the prefix kafka.: an error if it is dangerous to ignore it, or else
                    a warning, since Kafka's clients ignore properties that they do not know
unknown_setting     a setting of the client library: an error
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from sparkkafka.config.kinds import REGISTRY_PREFIX
from sparkkafka.config.option_table import CONNECTOR, FORMATS, KAFKA, REGISTRY, Status
from sparkkafka.errors import OptionError
from sparkkafka.hooks import NAMES as HOOK_NAMES

KAFKA_PREFIX = "kafka."
"""The prefix of Kafka's properties in Spark."""

_CONNECTOR_NAMES = {row.key: row.name for row in CONNECTOR if row.status is not Status.IGNORED}
_FORMAT_KEYS = tuple(row.key for row in (*FORMATS, *REGISTRY))


def unknown_option(name: str) -> OptionError:
    """Return the error of an option that neither begins with kafka. nor is the connector's."""
    names = [*_CONNECTOR_NAMES, *(KAFKA_PREFIX + row.key for row in KAFKA)]
    return OptionError(f"unknown option {name!r}{_did_you_mean(name.lower(), names)}")


def unknown_property(name: str) -> str:
    """Return the warning of a property kafka.… that Kafka's clients do not have.

    Raises OptionError if the name looks like one about security, brokers' addresses or formats.
    """
    key = name.lower().removeprefix(KAFKA_PREFIX)
    if key.startswith(REGISTRY_PREFIX) or _close_matches(key, _FORMAT_KEYS, 0.85):
        # If it were ignored, columns would be bytes, or decoded with schemas of the wrong registry.
        raise OptionError(
            f"unknown Kafka property {name!r}{_did_you_mean(key, _FORMAT_KEYS)}; options of "
            f"formats and of the Schema Registry have no prefix {KAFKA_PREFIX!r}"
        )
    keys = [row.key for row in KAFKA]
    hint = _did_you_mean(key, keys, KAFKA_PREFIX)
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
        return f"; did you mean '{prefix}{_CONNECTOR_NAMES.get(match, match)}'?"
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
    "error_cb": "errors are raised, or logged to the logger sparkkafka; on_error(broker, error) "
    "is called for connections",
    "logger": "the logger is sparkkafka, of Python's logging",
    "on_delivery": "pass a function to send(…).add_callback",
    "queued.min.messages": "fetch.max.bytes limits how much is fetched ahead",
    "statistics.interval.ms": "metrics() of the client has figures",
    "stats_cb": "metrics() of the client has figures",
}
"""Advice by a lower-case name of librdkafka's, Python clients' or other clients' settings."""
