"""The options that Spark passes on, parsed into frozen dataclasses with their defaults.

    parse_read_options, parse_stream_options, parse_write_options, parse_stream_write_options

`option_table` has a row for each option, with the field that it fills. `parsed_options` checks each
option on its own; the rules between options are here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sparkkafka.config import source
from sparkkafka.config.formats import FormatOptions, formats_from
from sparkkafka.config.kinds import INT32_MAX, MetricsAddress
from sparkkafka.config.option_table import CONNECTOR, Side
from sparkkafka.config.parsed_options import ParsedOptions, as_text, warn, warn_of_seconds
from sparkkafka.config.security.options import NO_SECURITY, SecurityOptions, security_from
from sparkkafka.errors import OptionError
from sparkkafka.hooks import NO_HOOKS, Hooks

EVENT_HUBS_MAX_REQUEST_SIZE = 1_000_000
"""The default of max.request.size for Azure Event Hubs, as it recommends
(learn.microsoft.com/azure/event-hubs/apache-kafka-configurations)."""

AT_LEAST_ONCE = "at-least-once"
EXACTLY_ONCE = "exactly-once"


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """Options of connections, metadata and deadlines. Times in milliseconds, sizes in bytes.

    `prefix` is that of the user's setting names, for messages: "kafka." in Spark, "" in the client
    library. Only the library has `hooks`.
    """

    GROUP = "client"

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str = "sparkkafka"
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    first_contact_ms: int = 10_000
    """For how long Spark's driver tries to connect if all bootstrap servers refuse connections or
    cannot be resolved: default.api.timeout.ms if the user sets that."""
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    socket_connection_setup_timeout_ms: int = 10_000
    connections_max_idle_ms: int = 540_000
    kept_max_idle_ms: int = 10_000
    """For how long a Python worker keeps a connection between two tasks. It cannot notice
    meanwhile that a broker closes it, so the default is shorter than connections.max.idle.ms."""
    metadata_max_age_ms: int = 300_000
    metadata_recovery_strategy: str = "rebootstrap"
    metadata_recovery_rebootstrap_trigger_ms: int = 300_000
    client_dns_lookup: str = "use_all_dns_ips"
    address_family: str = "any"
    security: SecurityOptions = NO_SECURITY
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    allow_auto_create_topics: bool = False
    prefix: str = ""
    hooks: Hooks = NO_HOOKS


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    """Fields of Fetch requests, and checks of the responses."""

    GROUP = "fetch"

    isolation_level: str = "read_uncommitted"
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 50 * 2**20
    # Java's default is 1 MiB, for consumers of many partitions; a task reads one.
    max_partition_fetch_bytes: int = 4 * 2**20
    fetch_max_wait_ms: int = 500
    check_crcs: bool = True
    client_rack: str = ""
    max_decompressed_batch_bytes: int = 256 * 2**20


@dataclass(frozen=True, kw_only=True)
class ProducerOptions:
    """Options of a producer's guarantees and batches. `acks` -1 means all in-sync replicas."""

    GROUP = "producer"

    acks: int = -1
    enable_idempotence: bool = True
    retries: int = INT32_MAX
    delivery_timeout_ms: int = 120_000
    # Java's default is 5. But a task gets 10,000 rows at a time, few for each of 1,000 partitions,
    # and batches of few rows cost the task and the broker up to twice the processor time.
    linger_ms: int = 500
    # Java's default is 16 KiB. But a request has one batch of a partition, and costs a client in
    # Python as much as some hundred records. Two batches fit into a request of max.request.size.
    batch_size: int = 512 * 2**10
    max_request_size: int = 2**20
    max_in_flight: int = 5
    compression_type: str = "none"
    compression_level: int | None = None  # None: the library's default for the codec
    buffer_memory: int = 32 * 2**20
    max_block_ms: int = 60_000
    partitioner: str = "murmur2_random"  # one of `kinds.PARTITIONERS`; this is Java's default
    partitioner_ignore_keys: bool = False
    transaction_timeout_ms: int | None = None  # None: the brokers' maximum


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """How much a micro-batch reads, and in how many tasks. None: no limit."""

    GROUP = "stream"

    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    max_ranges_per_task: int | None = None
    max_records_read_by_driver: int = 10_000


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options of a read; `stream` is only for streams, `ending` only for batch reads."""

    GROUP = "read"

    client: ClientOptions
    fetch: FetchOptions
    subscription: source.ConsumerStrategy
    starting: source.OffsetBound = source.FROM_EARLIEST
    ending: source.OffsetBound = source.TO_LATEST
    topic_ids: Mapping[str, bytes] = field(default_factory=dict)
    fail_on_data_loss: bool = True
    include_headers: bool = False
    poll_timeout_ms: int = 120_000
    no_match_strategy: str = "error"
    invalid_utf8: str = "error"
    bind_offsets: str = "task"
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    filter_pushdown: bool = False
    limit_pushdown: bool = False
    max_timestamp_disorder_ms: int | None = None
    group_id: str | None = None
    # The JVM connector's code has these defaults; its documentation says 10 ms.
    fetch_offset_num_retries: int = 3
    fetch_offset_retry_interval_ms: int = 1_000
    stream: StreamOptions = StreamOptions()
    formats: FormatOptions | None = None  # None: keys and values are bytes
    metrics_address: MetricsAddress | None = None


@dataclass(frozen=True, kw_only=True)
class GroupOptions:
    """The options of a stream that `lag` and commits of its offsets need."""

    client: ClientOptions
    group_id: str | None = None
    isolation_level: str = "read_uncommitted"
    subscription: source.ConsumerStrategy | None = None


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Options of a write. `topic` None: each row names its topic. `create_…` are settings of topics
    to create, None for the broker's default."""

    GROUP = "write"

    client: ClientOptions
    producer: ProducerOptions
    topic: str | None = None
    delivery_guarantee: str = AT_LEAST_ONCE
    transactional_id_prefix: str | None = None
    fail_on_data_loss: bool = True
    create_topic: bool = False
    create_partitions: int | None = None
    create_replication_factor: int | None = None
    create_configs: tuple[tuple[str, str], ...] = ()
    formats: FormatOptions | None = None  # None: keys and values are bytes
    metrics_address: MetricsAddress | None = None


# --- parsing ---------------------------------------------------------------------------------


def parse_read_options(options: Mapping[str, Any]) -> ReadOptions:
    """Parse the options of a batch read (names in any case).

    Raises OptionError naming the option, its value and what to do.
    """
    parsed = ParsedOptions(options, Side.READ)
    for row in CONNECTOR:
        if row.name in parsed.values and (row.field or "").startswith(StreamOptions.GROUP + "."):
            warn(row.name, f"option {row.name} has no effect in a batch read: it is for streams")
    return _read_options(parsed)


def parse_stream_options(options: Mapping[str, Any]) -> ReadOptions:
    """Parse the options of a streaming read (names in any case).

    Raises OptionError naming the option, its value and what to do.
    """
    parsed = ParsedOptions(options, Side.READ)
    for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
        if name in parsed.raw:
            what = "offset" if name == "endingOffsets" else "timestamp"
            raise OptionError(
                f"ending {what} not valid in streaming queries: remove the option {name}, or read "
                "a batch with spark.read"
            )
    stream = StreamOptions(**parsed.group("stream"))
    maximum, minimum = stream.max_offsets_per_trigger, stream.min_offsets_per_trigger
    if maximum is not None and minimum is not None and minimum > maximum:
        raise OptionError(
            f"The value of minOffsetPerTrigger({minimum}) is higher than the maxOffsetsPerTrigger"
            f"({maximum}) (options minOffsetsPerTrigger and maxOffsetsPerTrigger)"
        )
    if "maxTriggerDelay" in parsed.values and minimum is None:
        warn("maxTriggerDelay", "option maxTriggerDelay has no effect without minOffsetsPerTrigger")
    return _read_options(parsed, stream)


def _read_options(parsed: ParsedOptions, stream: StreamOptions | None = None) -> ReadOptions:
    """Return the options of a batch read, or of a streaming read if there are `stream` options."""
    streaming = stream is not None
    starting = source.parse_bound(parsed.raw, "starting", streaming=streaming)
    ending = source.TO_LATEST if streaming else source.parse_bound(parsed.raw, "ending")
    for side, bound in (("starting", starting), ("ending", ending)):
        if bound.kind == "timestamp":
            warn_of_seconds(bound.timestamp_ms, bound.option)
        for name in (f"{side}Offsets", f"{side}OffsetsByTimestamp"):
            if name in parsed.raw and name != bound.option:
                warn(name, f"option {name} has no effect beside {bound.option}")
    strategy = "startingOffsetsByTimestampStrategy"
    if strategy in parsed.raw and not starting.is_by_time:
        warn(strategy, f"option {strategy} has no effect: the read does not start at a time")
    for name, is_set, reason in (
        ("filterPushdown", parsed.values.get("filterPushdown"), "Spark pushes down no filters"),
        ("limitPushdown", parsed.values.get("limitPushdown"), "Spark pushes down no limits"),
        ("bindOffsets", "bindOffsets" in parsed.values, "the checkpoint has the offsets"),
        ("topicIds", "topicIds" in parsed.values, "it notices recreated topics itself"),
    ):
        if streaming and is_set:
            warn(name, f"option {name} has no effect in a stream: {reason}")
    if "maxTimestampDisorderMs" in parsed.values and not parsed.values.get("filterPushdown"):
        warn(
            "maxTimestampDisorderMs",
            "option maxTimestampDisorderMs has no effect without filterPushdown=true",
        )
    fields = parsed.group("read")
    if starting.kind == "committed" and not fields.get("group_id"):
        raise OptionError(
            f"startingOffsets={parsed.raw['startingOffsets'].strip()} needs the name of the "
            "consumer group: set kafka.group.id"
        )
    return ReadOptions(
        client=client_from(parsed),
        fetch=FetchOptions(**parsed.group("fetch")),
        subscription=source.parse_subscription(parsed.raw),
        starting=starting,
        ending=ending,
        formats=formats_from(parsed),
        stream=stream or StreamOptions(),
        **{
            name: value
            for name, value in fields.items()
            if name not in ("subscription", "starting", "ending")  # parsed together, above
        },
    )


def parse_group_options(options: Mapping[str, Any]) -> GroupOptions:
    """Parse those of a stream's options that concern its consumer group. Raises OptionError."""
    parsed = ParsedOptions(options, Side.READ)
    has_subscription = "read.subscription" in parsed.names
    fetch = FetchOptions(**parsed.group("fetch"))
    return GroupOptions(
        client=client_from(parsed),
        group_id=parsed.group("read").get("group_id"),
        isolation_level=fetch.isolation_level,
        subscription=source.parse_subscription(parsed.raw) if has_subscription else None,
    )


def parse_write_options(options: Mapping[str, Any]) -> WriteOptions:
    """Parse the options of a write (names in any case).

    Raises OptionError naming the option, its value and what to do.
    """
    parsed = ParsedOptions(options, Side.WRITE)
    fields = parsed.group("write")
    if fields.get("topic") == "":
        raise OptionError("option topic is empty")
    if not fields.get("create_topic"):
        for name in parsed.values:
            if name.startswith("createTopic."):
                warn(name, f"option {name} has no effect without createTopic=true")
    client, producer = client_from(parsed), producer_from(parsed, {})
    if "default.api.timeout.ms" not in parsed.values:
        # Java's producer waits for metadata until max.block.ms.
        timeout_ms = max(client.default_api_timeout_ms, min(producer.max_block_ms, INT32_MAX))
        client = replace(client, default_api_timeout_ms=timeout_ms)
    _check_exactly_once(parsed, fields, producer)
    # failOnDataLoss and metricsAddress are for reads and writes: their rows name a read's fields.
    return WriteOptions(
        client=client,
        producer=producer,
        formats=formats_from(parsed),
        **parsed.group("read"),
        **fields,
    )


def _check_exactly_once(
    parsed: ParsedOptions, fields: Mapping[str, Any], producer: ProducerOptions
) -> None:
    """Raise OptionError if exactly-once lacks what it needs. In an at-least-once write warn of
    options that are only for exactly-once."""
    prefix = parsed.prefix
    if fields.get("delivery_guarantee") == EXACTLY_ONCE:
        if fields.get("transactional_id_prefix") == "":
            raise OptionError("option transactionalIdPrefix is empty")
        if not producer.enable_idempotence:
            raise OptionError(
                f"deliveryGuarantee={EXACTLY_ONCE} needs the idempotent producer: remove "
                f"{prefix}acks, {prefix}retries, {prefix}enable.idempotence and "
                f"{prefix}max.in.flight.requests.per.connection, or set them to values that allow "
                "it"
            )
        return
    for name in ("transactionalIdPrefix", "failOnDataLoss", "transaction.timeout.ms"):
        if name in parsed.values:
            shown = f"{prefix}{name}" if "." in name else name
            warn(
                name,
                f"option {shown} has no effect in a write without deliveryGuarantee={EXACTLY_ONCE}",
            )


def parse_stream_write_options(options: Mapping[str, Any]) -> WriteOptions:
    """Parse the options of a streaming write: those of a batch write, without Spark's own, such as
    checkpointLocation. Raises OptionError."""
    kept: dict[str, Any] = {}
    has_async_progress = False
    for name, value in options.items():
        key = name.lower()
        if key == "asyncprogresstrackingenabled":
            has_async_progress = as_text(value).strip().lower() == "true"
        elif not (
            key in ("checkpointlocation", "queryname") or key.startswith("asyncprogresstracking")
        ):
            kept[name] = value
    write_options = parse_write_options(kept)
    if has_async_progress and write_options.delivery_guarantee == EXACTLY_ONCE:
        raise OptionError(
            f"deliveryGuarantee={EXACTLY_ONCE} and asyncProgressTrackingEnabled=true exclude each "
            "other: after a failure Spark then plans several micro-batches again, and only of the "
            "last one is it known whether it was written"
        )
    return write_options


# --- connections and the producer ------------------------------------------------------------


def is_event_hubs(bootstrap_servers: Iterable[tuple[str, int]]) -> bool:
    """Return whether one of these (host, port) belongs to Azure Event Hubs."""
    hosts = (host.lower().removesuffix(".") for host, _ in bootstrap_servers)
    domains = ("windows.net", "usgovcloudapi.net", "chinacloudapi.cn", "cloudapi.de")
    return any(host.endswith(tuple(f".servicebus.{name}" for name in domains)) for host in hosts)


def client_from(parsed: ParsedOptions) -> ClientOptions:
    """Return the options of connections, with defaults that depend on other options. Raises
    OptionError, also without bootstrap.servers."""
    if "bootstrap.servers" not in parsed.values:
        raise _no_servers(parsed)
    fields = dict(parsed.group("client"))
    defaults = ClientOptions(bootstrap_servers=())
    if "default_api_timeout_ms" in fields:  # without it Spark's driver waits less for a cluster
        fields["first_contact_ms"] = fields["default_api_timeout_ms"]
    else:  # as in Java's AdminClient: a longer request.timeout.ms raises this default
        request_ms = fields.get("request_timeout_ms", defaults.request_timeout_ms)
        fields["default_api_timeout_ms"] = max(defaults.default_api_timeout_ms, request_ms)
    if fields.get("connections_max_idle_ms") == -1:  # as in Java's Selector, NO_IDLE_TIMEOUT_MS
        fields["connections_max_idle_ms"] = 0
    elif "connections_max_idle_ms" in fields:
        fields["kept_max_idle_ms"] = fields["connections_max_idle_ms"]
    # CommonClientConfigs.warnDisablingExponentialBackoff: the smaller of the two is the wait.
    for kind in ("retry", "reconnect"):
        initial, maximum = f"{kind}_backoff_ms", f"{kind}_backoff_max_ms"
        max_ms = fields.get(maximum, getattr(defaults, maximum))
        if fields.get(initial, getattr(defaults, initial)) > max_ms:
            if initial in fields:
                warn(
                    initial,
                    f"{parsed.prefix}{kind}.backoff.ms is above {kind}.backoff.max.ms; "
                    f"each wait is {max_ms} ms",
                )
            fields[initial] = max_ms
    if is_event_hubs(fields["bootstrap_servers"]):
        # It closes connections after 240 s, and recommends this.
        fields.setdefault("connections_max_idle_ms", 180_000)
    security = security_from(parsed, fields["bootstrap_servers"])
    return ClientOptions(**fields, security=security, prefix=parsed.prefix)


def _no_servers(parsed: ParsedOptions) -> OptionError:
    """Return the error for missing bootstrap.servers, in the words of Spark's JVM connector."""
    side = {Side.READ: "consumer", Side.WRITE: "producer"}.get(parsed.side, "client")
    hint = ""
    if parsed.is_empty and parsed.prefix:
        # Seen with pyspark 4.3.0: OPTIONS of CREATE TABLE reach no Python data source.
        hint = (
            ". No option was given at all; Spark does not pass on the OPTIONS of CREATE TABLE: "
            "use CREATE TEMPORARY VIEW, or SELECT … FROM table WITH (option = 'value') "
            "and INSERT INTO table WITH (option = 'value')"
        )
    name = parsed.prefix + "bootstrap.servers"
    return OptionError(f"Option '{name}' must be specified for configuring Kafka {side}{hint}")


def producer_from(parsed: ParsedOptions, defaults_of_caller: Mapping[str, Any]) -> ProducerOptions:
    """Return the producer's options. Raises OptionError if some conflict.

    `defaults_of_caller` replace the dataclass's defaults. The rules are those of Java's
    KafkaProducer.configureDeliveryTimeout and ProducerConfig.postProcessParsedConfig.
    """
    fields = {**defaults_of_caller, **parsed.group("producer")}
    fields.pop("compression_level", None)
    codec = fields.get("compression_type", "none")
    # Each codec has its own level setting; only that of the chosen codec is used.
    level = parsed.values.get(f"compression.{codec}.level")
    if level is not None and not (codec == "gzip" and level == -1):
        fields["compression_level"] = level

    defaults = ProducerOptions()
    prefix = parsed.prefix
    for other in {"gzip", "lz4", "zstd"} - {codec}:
        if (name := f"compression.{other}.level") in parsed.values:
            warn(name, f"{prefix}{name} has no effect with {prefix}compression.type={codec}")

    request_ms = parsed.group("client").get("request_timeout_ms", ClientOptions.request_timeout_ms)
    if "delivery_timeout_ms" in fields:  # what is enough with Java's linger.ms of 5 is enough here
        rest_ms = fields["delivery_timeout_ms"] - request_ms
        fields.setdefault("linger_ms", min(defaults.linger_ms, max(5, rest_ms)))
    min_delivery_ms = min(INT32_MAX, fields.get("linger_ms", defaults.linger_ms) + request_ms)
    if fields.get("delivery_timeout_ms", defaults.delivery_timeout_ms) < min_delivery_ms:
        if "delivery_timeout_ms" in fields:
            raise OptionError(
                f"{prefix}delivery.timeout.ms should be equal to or larger than linger.ms + "
                f"request.timeout.ms: {fields['delivery_timeout_ms']} < {min_delivery_ms}"
            )
        fields["delivery_timeout_ms"] = min_delivery_ms

    conflict = None
    if fields.get("acks", -1) != -1:
        conflict = ("acks", "acks=all")
    elif fields.get("retries", 1) == 0:
        conflict = ("retries", "retries above 0")
    elif fields.get("max_in_flight", 5) > 5:
        in_flight = "max.in.flight.requests.per.connection"
        conflict = (in_flight, f"at most 5 {in_flight}")
    if conflict is not None and fields.get("enable_idempotence", True):
        name, needed = conflict
        if "enable_idempotence" in fields:
            raise OptionError(
                f"{prefix}enable.idempotence=true needs {needed}, but {prefix}{name} is "
                f"{parsed.raw[name].strip()}"
            )
        if name != "acks":  # acks=0 and acks=1 clearly ask for less
            warn(
                f"idempotence:{name}",
                f"{prefix}{name}={parsed.raw[name].strip()} turns idempotence off: "
                "retries may duplicate records. Set enable.idempotence=false to accept that",
            )
        fields["enable_idempotence"] = False
    if "partitioner" in fields and fields.pop("partitioner_ignore_keys", False):
        warn(
            "partitioner.ignore.keys",
            f"{prefix}partitioner.ignore.keys has no effect: it is for the default partitioner, "
            f"and {prefix}partitioner.class is set",
        )
    if is_event_hubs(parsed.values.get("bootstrap.servers", ())):
        size_bytes = fields.setdefault("max_request_size", EVENT_HUBS_MAX_REQUEST_SIZE)
        # Not refused: dedicated clusters may allow larger messages.
        limit_bytes = 1_046_528
        if size_bytes >= limit_bytes:
            warn(
                "max.request.size",
                f"{prefix}max.request.size={size_bytes} is above the limit of Azure Event Hubs: "
                f"it closes connections that send a request of {limit_bytes} bytes. "
                f"Remove the setting (the default is {EVENT_HUBS_MAX_REQUEST_SIZE} there), unless "
                "your namespace takes larger ones",
            )
    return ProducerOptions(**fields)
