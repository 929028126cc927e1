"""Settings of the client library's classes (Consumer, ShareConsumer, Producer, Admin), under Java's
names.

    parse_consumer_settings, parse_share_consumer_settings, parse_producer_settings,
    parse_admin_settings

Rows that Spark's options have too (connections, security, fetch sizes, batching) are in
`config.option_table`. The library's own rows are here, and Java's defaults where Spark's differ. A
setting that Java's client of the same kind does not have is an error.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkkafka.config.kinds import (
    BOOLEAN,
    INT32_MAX,
    WIRE_NAME,
    Kind,
    integer,
    one_of,
    parse_duration_ms,
)
from sparkkafka.config.option_table import KAFKA, Option, Side, Status, used
from sparkkafka.config.options import (
    ClientOptions,
    FetchOptions,
    Masked,
    ProducerOptions,
    client_from,
    producer_from,
)
from sparkkafka.config.parsed_options import ParsedOptions
from sparkkafka.errors import OptionError
from sparkkafka.hooks import hooks_of

# --- kinds of values -------------------------------------------------------------------------


def _auto_offset_reset(text: str) -> str:
    """Check earliest, latest, none, or by_duration:<ISO 8601> (KIP-1106)."""
    value = text.strip()
    if value in ("earliest", "latest", "none"):
        return value
    kind, _, duration = value.partition(":")
    if kind == "by_duration" and duration.startswith("P"):
        parse_duration_ms(duration)
        return value
    raise ValueError


_JAVA_ASSIGNORS = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
    "org.apache.kafka.clients.consumer.StickyAssignor": "sticky",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
}
ASSIGNORS = tuple(_JAVA_ASSIGNORS.values())
"""The assignors' names on the wire and in librdkafka."""


def _assignors(text: str) -> tuple[str, ...]:
    names = [_JAVA_ASSIGNORS.get(name, name) for name in re.split(r"[,\s]+", text.strip()) if name]
    if not names or any(name not in ASSIGNORS for name in names):
        raise ValueError
    return tuple(dict.fromkeys(names))


# --- values ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, repr=False)
class ConsumerOptions(Masked):
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


@dataclass(frozen=True, kw_only=True, repr=False)
class ShareConsumerOptions(ConsumerOptions):
    """Settings of a `ShareConsumer`. Defaults are those of Java's KafkaShareConsumer."""

    acknowledgement_mode: str = "implicit"
    acquire_mode: str = "batch_optimized"


@dataclass(frozen=True, kw_only=True, repr=False)
class ProducerSettings(Masked):
    """Settings of a `Producer`. Defaults are those of Java's KafkaProducer.

    `partitioner` is the user's callable, if there is one: see `client.producer.Producer`.
    """

    GROUP = "settings"

    client: ClientOptions
    producer: ProducerOptions
    transactional_id: str | None = None
    partitioner: Callable[..., int] | None = None


# --- rows ------------------------------------------------------------------------------------


def _row(name: str, field: str, kind: Kind, doc: str, **more: Any) -> Option:
    return used(name, Side.BOTH, field, kind, doc, **more)


def _auto_create(doc: str) -> Option:
    return _row(
        "allow.auto.create.topics", "client.allow_auto_create_topics", BOOLEAN,
        f"{doc} If the brokers' auto.create.topics.enable allows it, for users with CREATE.",
    )  # fmt: skip


CONSUMER: tuple[Option, ...] = (
    _auto_create("Creates a missing topic when its metadata is first requested."),
    _row(
        "group.id", "consumer.group_id", WIRE_NAME,
        "The consumer group. Needed for subscribe and commit, not for assign.",
    ),
    _row(
        "group.instance.id", "consumer.group_instance_id", WIRE_NAME,
        "Makes the consumer a static member (KIP-345): if it rejoins within session.timeout.ms it "
        "gets its partitions again without a rebalance.",
    ),
    _row(
        "group.protocol", "consumer.group_protocol", one_of("classic", "consumer", fold=str.lower),
        "consumer: the brokers assign partitions (KIP-848, Kafka 4.0 and later). classic: one of "
        "the members does.",
    ),
    _row(
        "group.remote.assignor", "consumer.group_remote_assignor", WIRE_NAME,
        "With group.protocol=consumer, the brokers' assignor: uniform or range.",
        default_text="the brokers choose",
    ),
    _row(
        "auto.offset.reset", "consumer.auto_offset_reset",
        Kind("earliest, latest, none or by_duration:P1DT2H", _auto_offset_reset),
        "Where to begin if the group has no offset of a partition, or one that does not exist any "
        "more. none: an error. by_duration: at records of that age.",
    ),
    _row(
        "enable.auto.commit", "consumer.enable_auto_commit", BOOLEAN,
        "Commits the offsets of records that poll has returned: at a later poll every "
        "auto.commit.interval.ms, when partitions are revoked, and on close.",
    ),
    _row(
        "auto.commit.interval.ms", "consumer.auto_commit_interval_ms", integer(0),
        "How often enable.auto.commit commits.",
    ),
    _row(
        "session.timeout.ms", "consumer.session_timeout_ms", integer(1),
        "A member whose heartbeats stop for this long is removed from the group. Within the "
        "brokers' group.min.session.timeout.ms and group.max.session.timeout.ms.",
    ),
    _row(
        "heartbeat.interval.ms", "consumer.heartbeat_interval_ms", integer(1),
        "How often a member sends a heartbeat. Less than session.timeout.ms.",
    ),
    _row(
        "max.poll.interval.ms", "consumer.max_poll_interval_ms", integer(1),
        "A member that does not poll for this long leaves the group.",
    ),
    _row(
        "max.poll.records", "consumer.max_poll_records", integer(1),
        "Maximum records that one poll returns. poll_arrow has an argument of its own.",
    ),
    _row(
        "partition.assignment.strategy", "consumer.partition_assignment_strategy",
        Kind(f"a list of {', '.join(ASSIGNORS)}, or of Java's classes", _assignors),
        "How partitions are assigned to members, in order of preference. The group uses one that "
        "all members have.",
        default_text="range,cooperative-sticky",
    ),
    _row(
        "exclude.internal.topics", "consumer.exclude_internal_topics", BOOLEAN,
        "Whether a pattern does not match Kafka's internal topics.",
    ),
)  # fmt: skip

SHARE_CONSUMER: tuple[Option, ...] = (
    _row(
        "share.acknowledgement.mode", "share.acknowledgement_mode",
        one_of("implicit", "explicit", fold=str.lower),
        "implicit: the next poll or commit accepts the records of the last poll. explicit: the "
        "application acknowledges each record.",
    ),
    _row(
        "share.acquire.mode", "share.acquire_mode",
        one_of("batch_optimized", "record_limit", fold=str.lower),
        "batch_optimized: whole batches, perhaps more than max.poll.records. record_limit: never "
        "more (KIP-1206, Kafka 4.2).",
    ),
)  # fmt: skip

_GROUP_DECIDES = "It is a setting of the share group: Admin.incremental_alter_configs with {}."
_BROKERS_ASSIGN = "The brokers assign the partitions of a share group."
_SESSIONS = "The brokers' group.share.session.timeout.ms and heartbeat interval are used."
_ACKNOWLEDGED = "A share group has no committed offsets: records are acknowledged."
_NOT_OF_SHARE: Mapping[str, str] = {
    "auto.offset.reset": _GROUP_DECIDES.format("share.auto.offset.reset"),
    "isolation.level": _GROUP_DECIDES.format("share.isolation.level"),
    "enable.auto.commit": _ACKNOWLEDGED,
    "auto.commit.interval.ms": _ACKNOWLEDGED,
    "group.instance.id": "A share group has no static members.",
    "group.protocol": _BROKERS_ASSIGN,
    "group.remote.assignor": _BROKERS_ASSIGN,
    "partition.assignment.strategy": _BROKERS_ASSIGN,
    "session.timeout.ms": _SESSIONS,
    "heartbeat.interval.ms": _SESSIONS,
    "exclude.internal.topics": "A ShareConsumer subscribes to topics by name.",
    "max.partition.fetch.bytes": "fetch.max.bytes is the limit of a share group's fetches.",
}
"""Settings that a ShareConsumer refuses, as Java's does, and why."""

PRODUCER: tuple[Option, ...] = (
    _auto_create("Creates a missing topic for its first record."),
    _row(
        "transactional.id", "settings.transactional_id", WIRE_NAME,
        "Enables transactions. Only one producer at a time may have this id: a later one fences "
        "the earlier one.",
    ),
    _row(
        "transaction.timeout.ms", "producer.transaction_timeout_ms", integer(1),
        "How long a transaction may stay open before the broker aborts it.", default_text="60000",
    ),
)  # fmt: skip

# Java's defaults where Spark's options, which are for reads and writes in bulk, have others.
_CONSUMER_FETCH = {"max_partition_fetch_bytes": 2**20}
_PRODUCER = {"batch_size": 16 * 2**10, "transaction_timeout_ms": 60_000}
CLIENT_DEFAULTS: Mapping[tuple[str, str], int] = {
    **{("fetch", name): value for name, value in _CONSUMER_FETCH.items()},
    **{("producer", name): value for name, value in _PRODUCER.items()},
}
"""Defaults by (group, field) that differ from those of the dataclass."""


def _rows(side: Side | None, own: tuple[Option, ...]) -> dict[str, Option]:
    """Return rows by lower-case name: Kafka's for this side (None: only for both), and `own`."""
    rows: dict[str, Option] = {}
    for row in KAFKA:
        if row.side is Side.BOTH or row.side is side:
            rows[row.key] = row
        elif row.key not in rows:
            rows[row.key] = _of_other_client(row)
    for row in (*CONSUMER, *SHARE_CONSUMER, *PRODUCER):
        if row.key not in rows:
            rows[row.key] = _of_other_client(row)
    for name in ["key.deserializer", "value.deserializer", "key.serializer", "value.serializer"]:
        doc = "Keys and values are bytes: convert them before send, or after poll."
        rows[name] = dataclasses.replace(rows[name], status=Status.REFUSED, doc=doc)
    idle = rows["connections.max.idle.ms"]
    doc = (
        "A connection that was idle for this long is closed and replaced before its next use. Less "
        "than connections.max.idle.ms of the brokers (600000), and than the limits of load "
        "balancers and firewalls. 0: no idle connection is closed."
    )
    rows[idle.key] = dataclasses.replace(idle, doc=doc, default_text=None)
    return rows | {row.key: row for row in own}


_OTHER_CLIENT = "it is for another kind of client"


def _of_other_client(row: Option) -> Option:
    return dataclasses.replace(row, status=Status.IGNORED, doc=_OTHER_CLIENT)


def is_of_other_client(row: Option) -> bool:
    """Return whether a setting in one of the tables below has an effect only in another one."""
    return row.doc == _OTHER_CLIENT


CONSUMER_ROWS = _rows(Side.READ, CONSUMER)
SHARE_CONSUMER_ROWS = {
    key: dataclasses.replace(row, status=Status.REFUSED, doc=_NOT_OF_SHARE[key])
    if key in _NOT_OF_SHARE
    else row
    for key, row in _rows(Side.READ, CONSUMER + SHARE_CONSUMER).items()
}
PRODUCER_ROWS = _rows(Side.WRITE, PRODUCER)
ADMIN_ROWS = _rows(None, ())


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
"""Our names by librdkafka's, if values and units are the same. The command takes both."""

# Advice for other names of librdkafka, and for settings that only it has.
_HINTS: Mapping[str, str] = {
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


def _parse(config: Mapping[str, Any], rows: Mapping[str, Option]) -> ParsedOptions:
    return ParsedOptions(config, Side.BOTH, prefixed=False, rows=rows, hints=_HINTS)


def _checked(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check that the settings are a mapping. No value is shown: it may be a secret."""
    if not isinstance(config, Mapping):
        raise OptionError(
            'settings are a mapping, {"bootstrap.servers": "host:9092"} or more, got '
            f"{type(config).__name__}"
        )
    for name in config:
        if not isinstance(name, str):
            raise OptionError(f"the name of a setting is a str, got {type(name).__name__}")
    return config


# --- parsing ---------------------------------------------------------------------------------


def parse_consumer_settings(config: Mapping[str, Any]) -> ConsumerOptions:
    """Parse settings of `Consumer`. Raises OptionError, which names the setting and its value."""
    config, hooks = hooks_of(_checked(config))
    parsed = _parse(config, CONSUMER_ROWS)
    fields = parsed.group("consumer")
    options = ConsumerOptions(
        client=dataclasses.replace(client_from(parsed), hooks=hooks),
        fetch=FetchOptions(**(_CONSUMER_FETCH | parsed.group("fetch"))),
        **fields,
    )
    for name in ("group_id", "group_instance_id"):
        if fields.get(name) == "":
            raise OptionError(f"setting {name.replace('_', '.')} is empty")
    if options.group_id is None and options.group_instance_id is not None:
        raise OptionError("group.instance.id needs a group: set group.id")
    if options.group_protocol == "consumer":
        # KIP-848: the brokers have these settings, and Java's ConsumerConfig refuses them too.
        for name in (
            "partition.assignment.strategy",
            "session.timeout.ms",
            "heartbeat.interval.ms",
        ):
            if name in parsed.values:
                raise OptionError(
                    f"{name} cannot be set when group.protocol=consumer: the brokers decide it"
                )
    else:
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
        options = dataclasses.replace(options, enable_auto_commit=False)
    return options


def parse_share_consumer_settings(config: Mapping[str, Any]) -> ShareConsumerOptions:
    """Parse settings of `ShareConsumer`. Raises OptionError, naming the setting and its value."""
    config, hooks = hooks_of(_checked(config))
    parsed = _parse(config, SHARE_CONSUMER_ROWS)
    fields = parsed.group("consumer")
    if not fields.get("group_id"):
        raise OptionError("a ShareConsumer reads for a share group: set group.id")
    return ShareConsumerOptions(
        client=dataclasses.replace(client_from(parsed), hooks=hooks),
        fetch=FetchOptions(**parsed.group("fetch")),
        **fields,
        **parsed.group("share"),
    )


def parse_producer_settings(config: Mapping[str, Any]) -> ProducerSettings:
    """Parse settings of `Producer`. Raises OptionError, which names the setting and its value."""
    config, hooks = hooks_of(_checked(config))
    partitioner = None
    for name, value in list(config.items()):
        if name.lower() == "partitioner.class" and callable(value):
            partitioner = config.pop(name)
    parsed = _parse(config, PRODUCER_ROWS)
    producer = producer_from(parsed, _PRODUCER)
    transactional_id = parsed.group("settings").get("transactional_id")
    if transactional_id == "":
        raise OptionError("setting transactional.id is empty")
    if transactional_id is not None and not producer.enable_idempotence:
        raise OptionError(
            "transactional.id needs the idempotent producer: remove acks, retries, "
            "enable.idempotence and max.in.flight.requests.per.connection, or set them to values "
            "that allow it"
        )
    client = dataclasses.replace(client_from(parsed), hooks=hooks)
    if "default.api.timeout.ms" not in parsed.values:
        # Java's producer waits for metadata until max.block.ms.
        client = dataclasses.replace(
            client, default_api_timeout_ms=min(producer.max_block_ms, INT32_MAX)
        )
    return ProducerSettings(
        client=client, producer=producer, transactional_id=transactional_id, partitioner=partitioner
    )


def parse_admin_settings(config: Mapping[str, Any]) -> ClientOptions:
    """Parse settings of `Admin`. Raises OptionError, which names the setting and its value."""
    config, hooks = hooks_of(_checked(config))
    return dataclasses.replace(client_from(_parse(config, ADMIN_ROWS)), hooks=hooks)
