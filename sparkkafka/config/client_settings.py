"""Settings of the client library's classes (Consumer, ShareConsumer, Producer, Admin), under Java's
names.

    parse_consumer_settings, parse_share_consumer_settings, parse_producer_settings,
    parse_admin_settings

`option_table` has their rows. Here are the values, which setting each class accepts, and Java's
defaults where Spark's differ. A setting that no client of Java's has is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparkkafka.config import option_table
from sparkkafka.config.kinds import INT32_MAX
from sparkkafka.config.options import (
    ClientOptions,
    FetchOptions,
    ProducerOptions,
    client_from,
    producer_from,
)
from sparkkafka.config.parsed_options import ParsedOptions
from sparkkafka.errors import OptionError
from sparkkafka.hooks import hooks_of

log = logging.getLogger(__name__)

# --- values ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions:
    """Settings of a `Consumer`. Defaults are those of Java's KafkaConsumer."""

    GROUP = "consumer"

    client: ClientOptions
    fetch: FetchOptions
    group_id: str | None = None
    group_instance_id: str | None = None
    group_protocol: str = "classic"
    group_remote_assignor: str | None = None
    auto_offset_reset: str = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 500
    partition_assignment_strategy: tuple[str, ...] = ("range", "cooperative-sticky")
    exclude_internal_topics: bool = True
    damaged: str = "raise"


@dataclass(frozen=True, kw_only=True)
class ShareConsumerOptions(ConsumerOptions):
    """Settings of a `ShareConsumer`. Defaults are those of Java's KafkaShareConsumer."""

    acknowledgement_mode: str = "implicit"
    acquire_mode: str = "batch_optimized"


@dataclass(frozen=True, kw_only=True)
class ProducerSettings:
    """Settings of a `Producer`. Defaults are those of Java's KafkaProducer.

    `partitioner` is the user's callable, if there is one: see `client.producer.Producer`.
    """

    GROUP = "settings"

    client: ClientOptions
    producer: ProducerOptions
    transactional_id: str | None = None
    partitioner: Callable[..., int] | None = None


# --- the settings that each class accepts ----------------------------------------------------

JAVA_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "fetch": {"max_partition_fetch_bytes": 2**20},
    "producer": {"linger_ms": 5, "transaction_timeout_ms": 60_000},
}
"""Java's defaults by group and attribute, where they differ from those of the dataclasses, which
are for Spark's reads and writes in bulk. (batch.size has one default for all, see
`ProducerOptions`.)"""

_OTHER_CLIENT = "it is for another kind of client"


def is_of_other_client(row: option_table.Option) -> bool:
    """Return whether a setting in the table of one class has an effect only in other classes."""
    return row.doc == _OTHER_CLIENT


def _settings(
    side: option_table.Side | None, client_rows: tuple[option_table.Option, ...]
) -> dict[str, option_table.Option]:
    """Return the rows of all settings that one class accepts, by lower-case name: Kafka's for this
    side (None, for Admin: only those for both sides), and the class's `client_rows`. Settings that
    only other classes use are accepted with a warning."""
    library = (*option_table.CONSUMER, *option_table.SHARE_CONSUMER, *option_table.PRODUCER)
    rows = {row.key: _of_other_client(row) for row in library}
    for row in option_table.KAFKA:
        if row.key not in rows:
            # Each class that has records refuses the Java classes for them, also those of the
            # other side. Admin has none.
            is_for_records = row.key.endswith("serializer") or row.key == "interceptor.classes"
            sides = (option_table.Side.BOTH, side)
            is_ours = side is not None if is_for_records else row.side in sides
            rows[row.key] = row if is_ours else _of_other_client(row)
    return rows | {row.key: row for row in client_rows}


def _of_other_client(row: option_table.Option) -> option_table.Option:
    """Return the row with the status IGNORED: the setting is for another class, and a warning says
    so."""
    return replace(row, status=option_table.Status.IGNORED, doc=_OTHER_CLIENT)


def _share_consumer_settings() -> dict[str, option_table.Option]:
    """Return the rows of ShareConsumer's settings. It refuses those that Java's KafkaShareConsumer
    refuses."""
    rows = _settings(option_table.Side.READ, option_table.CONSUMER + option_table.SHARE_CONSUMER)
    refused = {
        "group.instance.id": "A share group has no static members.",
        "exclude.internal.topics": "A ShareConsumer subscribes to topics by name.",
        "damaged": "A ShareConsumer rejects damaged batches, and poll raises.",
        "max.partition.fetch.bytes": "fetch.max.bytes is the limit of a share group's fetches.",
        **{
            name: "It is a setting of the share group: Admin.incremental_alter_configs with "
            f"share.{name}."
            for name in ("auto.offset.reset", "isolation.level")
        },
        **dict.fromkeys(
            ("enable.auto.commit", "auto.commit.interval.ms"),
            "A share group has no committed offsets: records are acknowledged.",
        ),
        **dict.fromkeys(
            ("group.protocol", "group.remote.assignor", "partition.assignment.strategy"),
            "The brokers assign the partitions of a share group.",
        ),
        **dict.fromkeys(
            ("session.timeout.ms", "heartbeat.interval.ms"),
            "The brokers' group.share.session.timeout.ms and heartbeat interval are used.",
        ),
    }
    for name, reason in refused.items():
        rows[name] = replace(rows[name], status=option_table.Status.REFUSED, doc=reason)
    return rows


CONSUMER_ROWS = _settings(option_table.Side.READ, option_table.CONSUMER)
PRODUCER_ROWS = _settings(option_table.Side.WRITE, option_table.PRODUCER)
ADMIN_ROWS = _settings(None, ())

# --- parsing ---------------------------------------------------------------------------------


def _parse(
    config: Mapping[str, Any], rows: Mapping[str, option_table.Option]
) -> tuple[ParsedOptions, ClientOptions]:
    """Return the parsed settings of one class, and those of connections. Raises OptionError, which
    shows no value if the settings are not a mapping: it may be a secret."""
    if not isinstance(config, Mapping):
        raise OptionError(
            'settings are a mapping, {"bootstrap.servers": "host:9092"} or more, got '
            f"{type(config).__name__}"
        )
    for name in config:
        if not isinstance(name, str):
            raise OptionError(f"the name of a setting is a str, got {type(name).__name__}")
    settings, hooks = hooks_of(config)
    parsed = ParsedOptions(settings, option_table.Side.BOTH, settings=rows)
    return parsed, replace(client_from(parsed), hooks=hooks)


def parse_consumer_settings(config: Mapping[str, Any]) -> ConsumerOptions:
    """Parse settings of `Consumer`. Raises OptionError, which names the setting and its value."""
    parsed, client = _parse(config, CONSUMER_ROWS)
    fields = parsed.group("consumer")
    options = ConsumerOptions(
        client=client,
        fetch=FetchOptions(**{**JAVA_DEFAULTS["fetch"], **parsed.group("fetch")}),
        **fields,
    )
    for name in ("group_id", "group_instance_id"):
        if fields.get(name) == "":
            raise OptionError(f"setting {name.replace('_', '.')} is empty")
    if options.group_id is None and options.group_instance_id is not None:
        raise OptionError("group.instance.id needs a group: set group.id")
    # KIP-848: the brokers have these settings, and Java's ConsumerConfig refuses them too.
    settings = ("partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms")
    classic_only = [name for name in settings if name in parsed.values]
    if classic_only and options.group_protocol == "consumer":
        raise OptionError(
            f"{classic_only[0]} cannot be set when group.protocol=consumer: the brokers decide it"
        )
    if classic_only and options.group_protocol == "auto":
        log.info("group.protocol=auto chose classic: %s is set", classic_only[0])
        options = replace(options, group_protocol="classic")
    if options.group_protocol == "classic":
        if options.group_remote_assignor is not None:
            raise OptionError("group.remote.assignor needs group.protocol=consumer")
        if options.heartbeat_interval_ms >= options.session_timeout_ms:
            raise OptionError(
                f"heartbeat.interval.ms={options.heartbeat_interval_ms} must be less than "
                f"session.timeout.ms={options.session_timeout_ms}, best a third of it"
            )
    if options.group_id is None:
        if fields.get("enable_auto_commit"):
            raise OptionError("enable.auto.commit=true needs a group: set group.id")
        options = replace(options, enable_auto_commit=False)
    return options


def parse_share_consumer_settings(config: Mapping[str, Any]) -> ShareConsumerOptions:
    """Parse settings of `ShareConsumer`. Raises OptionError, naming the setting and its value."""
    parsed, client = _parse(config, _share_consumer_settings())
    fields = parsed.group("consumer")
    if not fields.get("group_id"):
        raise OptionError("a ShareConsumer reads for a share group: set group.id")
    return ShareConsumerOptions(
        client=client,
        fetch=FetchOptions(**parsed.group("fetch")),
        **fields,
        **parsed.group("share"),
    )


def parse_producer_settings(config: Mapping[str, Any]) -> ProducerSettings:
    """Parse settings of `Producer`. Raises OptionError, which names the setting and its value."""
    parsed, client = _parse(config, PRODUCER_ROWS)
    producer = producer_from(parsed, JAVA_DEFAULTS["producer"])
    transactional_id = parsed.group("settings").get("transactional_id")
    if transactional_id == "":
        raise OptionError("setting transactional.id is empty")
    if transactional_id is not None and not producer.enable_idempotence:
        raise OptionError(
            "transactional.id needs the idempotent producer: remove acks, retries, "
            "enable.idempotence and max.in.flight.requests.per.connection, or set them to values "
            "that allow it"
        )
    if "default.api.timeout.ms" not in parsed.values:
        # Java's producer waits for metadata until max.block.ms.
        client = replace(client, default_api_timeout_ms=min(producer.max_block_ms, INT32_MAX))
    return ProducerSettings(client=client, producer=producer, **parsed.group("settings"))


def parse_admin_settings(config: Mapping[str, Any]) -> ClientOptions:
    """Parse settings of `Admin`. Raises OptionError, which names the setting and its value."""
    return _parse(config, ADMIN_ROWS)[1]
