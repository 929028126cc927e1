"""The table of the connector's options and Kafka's, for parsing, validation, `repr` and the docs.

Two name spaces: options of the connector (`startingOffsets`), and Kafka's client properties, which
Spark users write with the prefix `kafka.` (`kafka.request.timeout.ms`) and the client library
without. A row of status USED names the dataclass field it fills ("client.request_timeout_ms");
the default stands there, in `options.py`, and nowhere else.

Sources of the rules: Spark's `KafkaSourceProvider` for names, refusals and their first words;
Kafka's `ConsumerConfig`, `ProducerConfig`, `CommonClientConfigs` for names and ranges.
"""

from __future__ import annotations

from sparkkafka.config.format_rows import FORMATS, REGISTRY
from sparkkafka.config.kinds import (
    ACKS,
    BOOLEAN,
    DURATION_MS,
    GZIP_LEVEL,
    INT64_MAX,
    PARTITIONER,
    SERVERS,
    STRING_MAP,
    TRIMMED,
    WIRE_NAME,
    Kind,
    Option,
    Side,
    Status,
    integer,
    long_ms,
    one_of,
)
from sparkkafka.config.kinds import each as _each
from sparkkafka.config.kinds import used as _used
from sparkkafka.config.metrics_address import METRICS_ADDRESS
from sparkkafka.config.security.rows import SECURITY

__all__ = ["CONNECTOR", "KAFKA", "Option", "Side", "Status"]


_READ, _WRITE, _BOTH = Side.READ, Side.WRITE, Side.BOTH

CONNECTOR: tuple[Option, ...] = (
    _used(
        "subscribe", _READ, "read.subscription", Kind("topic,topic,…", str),
        "Topics to read. Exactly one of subscribe, subscribePattern and assign is needed.",
        default_text="",
    ),
    _used(
        "subscribePattern", _READ, "read.subscription", Kind("a regular expression", str),
        "Reads the topics in whose name the expression is found (a search, not a full match: use "
        "^ and $). Python's syntax, which for all but rare constructs is Java's. Kafka's internal "
        "topics are left out.",
        default_text="",
    ),
    _used(
        "assign", _READ, "read.subscription", Kind('JSON {"topic":[0,1]}', str),
        "Partitions to read. One that does not exist is an error.",
        default_text="",
    ),
    _used(
        "startingOffsets", _READ, "read.starting",
        Kind("earliest, latest (streams only), committed or JSON", str),
        'First offsets, e.g. {"topic":{"0":23,"1":-2}}; -2 is earliest, -1 (streams only) latest. '
        "JSON must name each partition that is read. Of a stream only its first start counts: "
        "later ones go on where the checkpoint is, and new partitions begin at earliest. "
        "committed: the offsets of the group kafka.group.id; committed,earliest or "
        "committed,latest say what holds for partitions where it has none.",
        default_text="earliest; streams: latest",
    ),
    _used(
        "endingOffsets", _READ, "read.ending", Kind("latest or JSON", str),
        "Offsets before which to stop; -1 is latest. Batch reads only, as the next two.",
        default_text="latest",
    ),
    _used(
        "bindOffsets", _READ, "read.bind_offsets", one_of("task", "plan", fold=str.lower),
        "When earliest and latest of a batch read become offsets. task: when a task begins to "
        "read, so each query of a DataFrame sees what is there by then. plan: once, at the first "
        "query of a load(), so all tasks, retries and later queries read the same offsets.",
    ),
    _used(
        "startingTimestamp", _READ, "read.starting", Kind("milliseconds since 1970", str),
        "Starts at the first record of this time or later, in each partition. Overrides "
        "startingOffsetsByTimestamp and startingOffsets.",
        default_text="",
    ),
    _used(
        "endingTimestamp", _READ, "read.ending", Kind("milliseconds since 1970", str),
        "Stops before the first record of this time or later; where there is none, at the end. "
        "Overrides endingOffsetsByTimestamp and endingOffsets.",
        default_text="",
    ),
    _used(
        "startingOffsetsByTimestamp", _READ, "read.starting", Kind("JSON", str),
        'As startingTimestamp, by partition: {"topic":{"0":1700000000000}}. Must name each '
        "partition that is read. Overrides startingOffsets.",
        default_text="",
    ),
    _used(
        "endingOffsetsByTimestamp", _READ, "read.ending", Kind("JSON", str),
        "As endingTimestamp, by partition. Overrides endingOffsets.",
        default_text="",
    ),
    _used(
        "startingOffsetsByTimestampStrategy", _READ, "read.no_match_strategy",
        one_of("error", "latest", fold=str.lower),
        "What a start by time means in a partition without a record of that time or later: an "
        "error, or to read nothing of it.",
    ),
    _used(
        "minPartitions", _READ, "read.min_partitions", integer(1),
        "Least number of tasks: ranges of partitions are split, the largest first. By default one "
        "task reads one partition.",
        default_text="",
    ),
    _used(
        "maxRecordsPerPartition", _READ, "read.max_records_per_partition", integer(1, INT64_MAX),
        "Most offsets that one task reads: larger ranges are split evenly, before minPartitions "
        "is looked at.",
        default_text="",
    ),
    _used(
        "failOnDataLoss", _BOTH, "read.fail_on_data_loss", BOOLEAN,
        "true: a read whose offsets are no longer (or not yet) there fails. false: what is missing "
        "is counted in a warning, and the rest is read. Likewise an exactly-once stream that finds "
        "a part of a decided micro-batch lost.",
    ),
    _used("includeHeaders", _READ, "read.include_headers", BOOLEAN, "Adds the column headers."),
    _used(
        "invalidUtf8", _READ, "read.invalid_utf8", one_of("error", "null", fold=str.lower),
        "What a key or value is that `.schema(…)` wants as a string and that is not UTF-8.",
    ),
    _used(
        "filterPushdown", _READ, "read.filter_pushdown", BOOLEAN,
        "Reads only what the filters on topic, partition, offset and timestamp can need. Call "
        "load() anew for each query: see Filter pushdown. Spark must be 4.1 or later, with "
        "spark.sql.python.filterPushdown.enabled=true.",
    ),
    _used(
        "maxTimestampDisorderMs", _READ, "read.max_timestamp_disorder_ms", integer(0, INT64_MAX),
        "With filterPushdown, your word that a record is at most so much earlier than any record "
        "before it in its partition. Lets a read by time stop early; records that break it may be "
        "missed.",
        default_text="",
    ),
    _used(
        "kafkaConsumer.pollTimeoutMs", _READ, "read.poll_timeout_ms", long_ms(1),
        "How long a task waits for the next records before it fails.",
    ),
    _used(
        "topic", _WRITE, "write.topic", TRIMMED,
        "Topic of all rows; overrides the column topic.", default_text="",
    ),
    _used(
        "createTopic", _WRITE, "write.create_topic", BOOLEAN,
        "Creates a topic that does not exist when the first row for it is there. Needs CREATE on "
        "the topic or the cluster. false: a missing topic is an error, whatever the brokers' "
        "auto.create.topics.enable says.",
    ),
    _used(
        "createTopic.partitions", _WRITE, "write.create_partitions", integer(1),
        "Partitions of topics that are created.", default_text="the broker's num.partitions",
    ),
    _used(
        "createTopic.replicationFactor", _WRITE, "write.create_replication_factor",
        integer(1, 32767), "Replicas of topics that are created.",
        default_text="the broker's default.replication.factor",
    ),
    _used(
        "createTopic.configs", _WRITE, "write.create_configs", STRING_MAP,
        'Settings of topics that are created, e.g. {"cleanup.policy":"compact"}.', default_text="",
    ),
    _used(
        "fetchOffset.numRetries", _READ, "read.fetch_offset_num_retries", integer(1),
        "How often offsets are looked up, each time for kafka.default.api.timeout.ms at most, "
        "before the read or the stream fails. If no broker was ever reached, it fails after the "
        "first time: the address is probably wrong.",
    ),
    _used(
        "fetchOffset.retryIntervalMs", _READ, "read.fetch_offset_retry_interval_ms", long_ms(0),
        "Wait between these attempts.",
    ),
    _used(
        "maxOffsetsPerTrigger", _READ, "stream.max_offsets_per_trigger", integer(1, INT64_MAX),
        "Streams: most offsets of a micro-batch, over all partitions, shared out by backlog. Never "
        "exceeded.",
        default_text="",
    ),
    _used(
        "maxBytesPerTrigger", _READ, "stream.max_bytes_per_trigger", integer(1, INT64_MAX),
        "Streams: about how many bytes a micro-batch reads, as they lie on the brokers' disks "
        "(compressed), estimated from the sizes of the partitions. Needs DESCRIBE on the cluster.",
        default_text="",
    ),
    _used(
        "minOffsetsPerTrigger", _READ, "stream.min_offsets_per_trigger", integer(1, INT64_MAX),
        "Streams: a micro-batch waits until so many offsets are there, or maxTriggerDelay is over.",
        default_text="",
    ),
    _used(
        "maxTriggerDelay", _READ, "stream.max_trigger_delay_ms", DURATION_MS,
        "Streams: longest wait for minOffsetsPerTrigger.", default_text="15m",
    ),
    _used(
        "maxRangesPerTask", _READ, "stream.max_ranges_per_task", integer(1),
        "Streams: how many partitions one task reads at most, of those with few new records. 1: "
        "each partition has a task of its own. minPartitions and maxRecordsPerPartition have the "
        "same effect as 1.",
        default_text="as many as are small",
    ),
    _used(
        "maxRecordsReadByDriver", _READ, "stream.max_records_read_by_driver", integer(0),
        "Streams: a micro-batch of at most so many records and 4 MiB is read by the driver and "
        "handed over with its plan, so that no Python task starts. 0: tasks read each batch.",
    ),
    *_each(
        Status.IGNORED, _READ, "groupIdPrefix",
        "no consumer group is formed, so there is no id to be made up",
    ),
    _used(
        "deliveryGuarantee", _WRITE, "write.delivery_guarantee",
        one_of("at-least-once", "exactly-once", fold=str.lower),
        "exactly-once: readers with isolation.level=read_committed see each row of a stream once, "
        "and of a batch write all rows or none. at-least-once: what is written again after a "
        "failure is there twice.",
    ),
    _used(
        "transactionalIdPrefix", _WRITE, "write.transactional_id_prefix", WIRE_NAME,
        "How transactional ids, and the group that holds decisions, begin in exactly-once writes. "
        "One query at a time may use it.",
        default_text="sparkkafka-<the query's id>; sparkkafka for batch writes",
    ),
    _used(
        "metricsAddress", _BOTH, "read.metrics_address", METRICS_ADDRESS,
        "Where the driver and the tasks tell what Spark's progress does not have: bytes, retries, "
        "lost offsets, bad records, dead letters, rows written, transactions. Take it from "
        "`sparkkafka.metrics(…).options`: see [Metrics](metrics.md).",
        default_text="", secret=True,
    ),
    *_each(
        Status.IGNORED, _WRITE, "includeHeaders",
        "headers are written whenever the column headers is there",
    ),
    *FORMATS,
    *REGISTRY,
)  # fmt: skip

KAFKA: tuple[Option, ...] = (
    _used(
        "bootstrap.servers", _BOTH, "client.bootstrap_servers", SERVERS,
        "Brokers to ask first; required. Default port 9092. IPv6 as [::1].", default_text="",
    ),
    _used(
        "client.id", _BOTH, "client.client_id", WIRE_NAME,
        "Name in the brokers' logs and quotas.",
    ),
    _used(
        "request.timeout.ms", _BOTH, "client.request_timeout_ms", integer(1),
        "How long one request may take before it is given up and perhaps tried again.",
    ),
    _used(
        "default.api.timeout.ms", _BOTH, "client.default_api_timeout_ms", integer(1),
        "How long one operation (metadata, offsets) may take with all its retries.",
    ),
    _used(
        "retry.backoff.ms", _BOTH, "client.retry_backoff_ms", long_ms(0),
        "Wait before the first retry; doubles each time.",
    ),
    _used(
        "retry.backoff.max.ms", _BOTH, "client.retry_backoff_max_ms", long_ms(0),
        "Longest wait between retries.",
    ),
    _used(
        "reconnect.backoff.ms", _BOTH, "client.reconnect_backoff_ms", long_ms(0),
        "Wait before a broker is connected to again; doubles each time.",
    ),
    _used(
        "reconnect.backoff.max.ms", _BOTH, "client.reconnect_backoff_max_ms", long_ms(0),
        "Longest wait before a broker is connected to again.",
    ),
    _used(
        "socket.connection.setup.timeout.ms", _BOTH, "client.socket_connection_setup_timeout_ms",
        long_ms(1), "How long a connection may take to be made.",
    ),
    _used(
        "connections.max.idle.ms", _BOTH, "client.connections_max_idle_ms", long_ms(0),
        "A connection that was idle for so long is closed before its next use, and made anew. A "
        "Python worker keeps the connections of a task for so long for its next one, with the same "
        "settings and credentials. 0: none is closed for being idle, and each task makes its own.",
        default_text="540000; between two tasks 10000",
    ),
    _used(
        "metadata.max.age.ms", _BOTH, "client.metadata_max_age_ms", long_ms(0),
        "Age after which metadata is refreshed even if nothing has failed.",
    ),
    _used(
        "metadata.recovery.strategy", _BOTH, "client.metadata_recovery_strategy",
        one_of("rebootstrap", "none", fold=str.lower),
        "rebootstrap: when no broker that is known answers, or a broker asks for it, those of "
        "bootstrap.servers are asked again. none: only brokers that are known (KIP-899).",
    ),
    _used(
        "metadata.recovery.rebootstrap.trigger.ms", _BOTH,
        "client.metadata_recovery_rebootstrap_trigger_ms", long_ms(0),
        "Brokers that are known answer, but give no metadata for so long: they are forgotten, and "
        "those of bootstrap.servers asked (KIP-1102).",
    ),
    _used(
        "client.dns.lookup", _BOTH, "client.client_dns_lookup",
        one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        "All addresses of a name are tried in turn. With the second choice the name of a bootstrap "
        "server stands for the canonical names of all its addresses (reverse look-up).",
    ),
    _used(
        "broker.address.family", _BOTH, "client.address_family",
        one_of("any", "v4", "v6", "v4_first", "v6_first"),
        "Which addresses of a name are tried (librdkafka's name): v4 and v6 only these, v4_first "
        "and v6_first these before the others.",
    ),
    _used(
        "send.buffer.bytes", _BOTH, "client.send_buffer_bytes", integer(-1),
        "The socket's SO_SNDBUF; -1: the operating system decides.",
    ),
    _used(
        "receive.buffer.bytes", _BOTH, "client.receive_buffer_bytes", integer(-1),
        "The socket's SO_RCVBUF; -1: the operating system decides.",
    ),
    _used(
        "isolation.level", _READ, "fetch.isolation_level",
        one_of("read_uncommitted", "read_committed"),
        "read_committed leaves out records of aborted and open transactions.",
    ),
    _used(
        "fetch.min.bytes", _READ, "fetch.fetch_min_bytes", integer(0),
        "The broker waits for so much data, at most fetch.max.wait.ms.",
    ),
    _used(
        "fetch.max.bytes", _READ, "fetch.fetch_max_bytes", integer(1),
        "Most data in one answer; a larger first batch comes alone.",
    ),
    _used(
        "max.partition.fetch.bytes", _READ, "fetch.max_partition_fetch_bytes", integer(1),
        "Most data of one partition in one answer; a larger first batch comes alone.",
    ),
    _used(
        "fetch.max.wait.ms", _READ, "fetch.fetch_max_wait_ms", integer(0),
        "How long the broker may wait for fetch.min.bytes.",
    ),
    _used(
        "group.id", _READ, "read.group_id", WIRE_NAME,
        "The consumer group whose offsets startingOffsets=committed begins at. No group is formed: "
        "Spark assigns the partitions and its checkpoint holds the offsets.", default_text="",
    ),
    _used(
        "client.rack", _READ, "fetch.client_rack", WIRE_NAME,
        "Where this client is, in the words of broker.rack. Groups prefer to give it partitions "
        "with a replica there, and brokers with replica.selector.class=org.apache.kafka.common."
        "replica.RackAwareReplicaSelector let it read from that.",
    ),
    _used(
        "max.decompressed.batch.bytes", _READ, "fetch.max_decompressed_batch_bytes", integer(1024),
        "Most bytes that a compressed batch may unpack to; a larger one is an error that names it. "
        "Batches are unpacked and decoded a few MiB at a time: only a single large record takes "
        "that much memory.",
    ),
    _used("check.crcs", _READ, "fetch.check_crcs", BOOLEAN, "Checks each batch's CRC-32C."),
    _used(
        "acks", _WRITE, "producer.acks", ACKS,
        "all: written when all replicas in sync have it. 1: when the leader has it. 0: no answer, "
        "but to a partition's first batch. 0 and 1 switch idempotence off.", default_text="all",
    ),
    _used(
        "enable.idempotence", _WRITE, "producer.enable_idempotence", BOOLEAN,
        "Retries inside a task never double a record. Needs acks=all, retries above 0 and at most "
        "5 requests in flight.",
    ),
    _used(
        "retries", _WRITE, "producer.retries", integer(0),
        "Most retries of one request; delivery.timeout.ms ends them earlier.",
    ),
    _used(
        "delivery.timeout.ms", _WRITE, "producer.delivery_timeout_ms", integer(0),
        "How long a record may take to be written with all retries. At least linger.ms + "
        "request.timeout.ms.",
    ),
    _used(
        "linger.ms", _WRITE, "producer.linger_ms", long_ms(0),
        "How long a batch that is not full may wait for more records.",
    ),
    _used(
        "batch.size", _WRITE, "producer.batch_size", integer(0),
        "Most bytes in one batch of one partition; a larger record stands alone.",
    ),
    _used(
        "max.request.size", _WRITE, "producer.max_request_size", integer(1),
        "Most bytes in one request, and in one record. For Azure Event Hubs the default is "
        "1000000.",
    ),
    _used(
        "max.in.flight.requests.per.connection", _WRITE, "producer.max_in_flight", integer(1),
        "Requests sent to a broker before an answer is needed.",
    ),
    _used(
        "compression.type", _WRITE, "producer.compression_type",
        one_of("none", "gzip", "snappy", "lz4", "zstd"), "Compression of the batches.",
    ),
    _used(
        "compression.gzip.level", _WRITE, "producer.compression_level",
        GZIP_LEVEL,
        "Level if compression.type is gzip.", default_text="-1",
    ),
    _used(
        "compression.lz4.level", _WRITE, "producer.compression_level", integer(1, 17),
        "Level if compression.type is lz4.", default_text="the library's",
    ),
    _used(
        "compression.zstd.level", _WRITE, "producer.compression_level", integer(-131072, 22),
        "Level if compression.type is zstd.", default_text="the library's",
    ),
    _used(
        "buffer.memory", _WRITE, "producer.buffer_memory", integer(1, INT64_MAX),
        "Bytes of records that wait to be sent or answered. In Spark this is for each task; "
        "Spark's Arrow batches in hand count too, up to half of it, and one piece of them, of "
        "about that size, comes on top.",
    ),
    _used(
        "max.block.ms", _WRITE, "producer.max_block_ms", long_ms(1),
        "The longest wait for metadata, or for room in buffer.memory.",
    ),
    _used(
        "partitioner.class", _WRITE, "producer.partitioner", PARTITIONER,
        "Which partition a key goes to, and records without one: see Partitioners.",
    ),
    _used(
        "partitioner.ignore.keys", _WRITE, "producer.partitioner_ignore_keys", BOOLEAN,
        "true: the default partitioner spreads records with keys as those without. No effect if "
        "partitioner.class is set, as in Java.",
    ),
    _used(
        "transaction.timeout.ms", _WRITE, "producer.transaction_timeout_ms", integer(1),
        "How long a transaction may stay open before the broker aborts it.",
        default_text="the brokers' transaction.max.timeout.ms",
    ),
    # Words of the JVM connector's KafkaSourceProvider first, since people search for them.
    *_each(
        Status.REFUSED, _READ, "auto.offset.reset",
        "Set startingOffsets instead: Spark, not a consumer group, keeps track of what was read.",
    ),
    *_each(
        Status.REFUSED, _READ, "key.deserializer",
        "Keys come as binary: cast or decode them with DataFrame functions.",
    ),
    *_each(
        Status.REFUSED, _READ, "value.deserializer",
        "Values come as binary: cast or decode them with DataFrame functions.",
    ),
    *_each(Status.REFUSED, _READ, "enable.auto.commit", "Nothing is committed to a group."),
    *_each(
        Status.REFUSED, _BOTH, "interceptor.classes",
        "It names Java classes that may change records, and no Java class runs here.",
    ),
    *_each(
        Status.REFUSED, _WRITE, "key.serializer",
        "Keys are written as they are: convert them with DataFrame functions.",
    ),
    *_each(
        Status.REFUSED, _WRITE, "value.serializer",
        "Values are written as they are: convert them with DataFrame functions.",
    ),
    *_each(
        Status.REFUSED, _WRITE, "transactional.id",
        "Each task needs an id of its own, so one fixed id cannot work: set "
        "deliveryGuarantee=exactly-once, and transactionalIdPrefix for how the ids begin.",
    ),
    *SECURITY,
    *_each(
        Status.IGNORED, _READ,
        "allow.auto.create.topics auto.commit.interval.ms exclude.internal.topics "
        "group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms "
        "internal.leave.group.on.close internal.throw.on.fetch.stable.offset.unsupported "
        "max.poll.interval.ms max.poll.records partition.assignment.strategy session.timeout.ms "
        "share.acknowledgement.mode",
        "partitions are assigned by Spark, not by a consumer group",
    ),
    *_each(
        Status.IGNORED, _WRITE,
        "metadata.max.idle.ms partitioner.adaptive.partitioning.enable "
        "partitioner.availability.timeout.ms transaction.two.phase.commit.enable",
        "it belongs to a part of the Java producer that is not needed here",
    ),
    *_each(
        Status.IGNORED, _BOTH,
        "auto.include.jmx.reporter enable.metrics.push "
        "metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms "
        "socket.connection.setup.timeout.max.ms",
        "it belongs to a part of the Java clients that is not needed here",
    ),
    *_each(
        Status.UNNEEDED, _BOTH, "config.providers",
        "values of security settings may have ${env:…}, ${file:…} and ${directory:…} without it; "
        "other names that it gives to these are understood",
    ),
    *_each(
        Status.IGNORED, _BOTH, "config.providers.NAME.param.KEY",
        "providers have no settings here",
    ),
)  # fmt: skip
