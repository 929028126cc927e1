"""Writes bad records to the dead-letter topic, with headers that say why they are bad.

Key, value, headers and time are those of the record; the partition is chosen by key. The added
headers have the names of Kafka Connect's `DeadLetterQueueReporter`, and text as values: topic,
partition, offset and time of the record, the stage (VALUE_CONVERTER or KEY_CONVERTER), and class
and message of the error.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
import pyarrow as pa

from sparkkafka import errors
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.producer.column_producer import ColumnProducer
from sparkkafka.client.producer.partitioner import Partitioner
from sparkkafka.client.producer.producer_records import InputRows
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.kinds import INT32_MAX
from sparkkafka.config.options import (
    EVENT_HUBS_MAX_REQUEST_SIZE,
    ClientOptions,
    ProducerOptions,
    ReadOptions,
    is_event_hubs,
)
from sparkkafka.protocol.columns.columns import DecodedRecords, append_headers
from sparkkafka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from sparkkafka.protocol.records.arrow import binary_array, from_numpy, repeat_text
from sparkkafka.spark.read.offset_reader import OffsetReader

_WRITE, _DESCRIBE = 1 << 4, 1 << 8  # authorized operations of a Metadata response (AclOperation)

_HEADER_NAMES = (  # after "__connect.errors."
    "topic",
    "partition",
    "offset",
    "timestamp",
    "stage",
    "exception.class.name",
    "exception.message",
)


def check_dead_letter_topic(cluster: Cluster, options: ReadOptions, name: str) -> None:
    """Check deadLetter.topic before the read, not only when a record is bad. Raises OptionError if
    it does not exist, BrokerError if the brokers say that this user may not write to it."""
    try:
        may_write = OffsetReader(cluster, options).with_attempts(
            "looking up deadLetter.topic", lambda deadline: _may_write(cluster, name, deadline)
        )
    except errors.UnknownTopicError as error:
        raise errors.OptionError(
            f"deadLetter.topic={name} does not exist: create it before the read ({error})"
        ) from error
    except errors.BrokerError as error:
        if error.code != errors.ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise
        may_write = False
    if not may_write:
        raise errors.BrokerError(
            errors.ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            f"Metadata of {name}",
            _not_writable_message(name),
        )


def _may_write(cluster: Cluster, name: str, deadline: Deadline) -> bool:
    """Return whether this user may write to the topic; True if the brokers do not say. Raises the
    errors of `Cluster.topics`."""
    cluster.topics([name], deadline)
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    try:
        topics = cluster.call(request, deadline=deadline, what=f"rights on {name}").topics
    except errors.EncodeError:  # before Kafka 2.3
        return True
    rights = topics[0].topic_authorized_operations if topics else 0
    # A user who may see the topic has DESCRIBE. Without it the rights are unknown: brokers that do
    # not support this send none.
    return rights < 0 or not rights & _DESCRIBE or bool(rights & _WRITE)


def _not_writable_message(topic: str) -> str:
    """Return the message for a user who lacks the permission to write to the topic."""
    return (
        f"deadLetter.topic={topic} cannot be written by this user: grant WRITE on topic {topic}, "
        "or name another one"
    )


def producer_options(client: ClientOptions) -> ProducerOptions:
    """Return the producer options of dead letters, for connections with these client options."""
    event_hubs = is_event_hubs(client.bootstrap_servers)
    return ProducerOptions(
        max_block_ms=client.default_api_timeout_ms,
        linger_ms=0,
        # Only the topic's limit applies; but Event Hubs closes the connection at a large request.
        max_request_size=EVENT_HUBS_MAX_REQUEST_SIZE if event_hubs else INT32_MAX,
        # Uncompressed, a record may be above that limit. Event Hubs accepts only gzip.
        compression_type="gzip" if event_hubs else "lz4",
    )


class DeadLetters(ExitStack):
    """Writes to the dead-letter topic with a producer of its own. A context manager."""

    def __init__(self, options: ReadOptions, topic: str) -> None:
        super().__init__()
        self._topic = topic
        self._cluster = self.enter_context(Cluster(options.client, for_task=True))
        producer = producer_options(options.client)
        self._producer = self.enter_context(ColumnProducer(self._cluster, producer))
        self._partitioner = Partitioner(producer, self._partition_counts, self._cluster.known_topic)

    def write(
        self, tp: TopicPartition, records: DecodedRecords, reasons: Sequence[tuple[str, str]]
    ) -> None:
        """Write records of a partition to the dead-letter topic, and wait until all are
        acknowledged. `reasons` has a pair for each record: its bad column (key or value) and why.

        Raises KafkaError if they cannot be delivered, UnknownTopicError, or a connection's or
        broker's error: BrokerError if this user may not write to the topic.
        """
        count = len(records)
        empty = pa.nulls(count, pa.binary())
        times_ms = records.timestamps_ms
        if times_ms is not None:
            # Times before 1970 or out of range become -1, which means that a record has no time.
            is_valid = (times_ms >= 0) & (times_ms <= 2**63 // 1000 - 1)
            times_ms = np.where(is_valid, times_ms, -1)
        rows = InputRows(
            length=count,
            keys=records.keys,
            values=records.values if records.values is not None else empty,
            headers=_headers_with_reasons(tp, records, reasons),
            topics=None,
            fixed_topic=self._topic,
            partitions=None,
            timestamps=None if times_ms is None else from_numpy(times_ms * 1000),
        )
        now_ms = time.time_ns() // 1_000_000
        try:
            partitioned = self._partitioner.partition_rows(rows, now_ms)
            self._producer.check_sizes(partitioned)
            self._producer.append(partitioned)
            self._producer.flush()
        except (errors.ProduceError, errors.BrokerError) as error:
            if error.code in (
                errors.ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                errors.ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            ):
                raise errors.BrokerError(
                    error.code, f"Produce to {self._topic}", _not_writable_message(self._topic)
                ) from error
            if isinstance(error, errors.BrokerError):
                raise
            first, last = records.offsets[0], records.offsets[-1]
            what = (
                f"deadLetter.topic={self._topic} did not accept the bad records of topic "
                f"{tp.topic} partition {tp.partition} from offset {first} to {last}"
            )
            if error.code == errors.ErrorCode.MESSAGE_TOO_LARGE:
                raise errors.KafkaError(
                    f"{what}: one of them, with the headers that say why, is larger than the "
                    f"topic's max.message.bytes: raise that, or read with onBadRecord=column, "
                    f"which keeps bad records without a topic ({error})"
                ) from error
            raise errors.KafkaError(f"{what}: {error}") from error

    def _partition_counts(self, names: list[str]) -> dict[str, int]:
        """Return the number of partitions by topic. Raises OptionError if the topic was deleted."""
        try:
            topics = self._cluster.topics(names)
        except errors.UnknownTopicError as error:
            raise errors.OptionError(
                f"deadLetter.topic={self._topic} no longer exists ({error})"
            ) from error
        return {name: len(topic.partitions) for name, topic in topics.items()}


def _headers_with_reasons(
    tp: TopicPartition, records: DecodedRecords, reasons: Sequence[tuple[str, str]]
) -> pa.Array:
    """Return the headers of each record, followed by those that say why the record is bad."""
    count, added = len(records), len(_HEADER_NAMES)
    times = records.timestamps_ms
    texts: list[bytes | None] = []
    for row, (column, reason) in enumerate(reasons):
        texts += [
            tp.topic.encode(),
            b"%d" % tp.partition,
            b"%d" % records.offsets[row],
            b"%d" % (times[row] if times is not None else -1),
            f"{column.upper()}_CONVERTER".encode(),
            f"{errors.BadRecordError.__module__}.{errors.BadRecordError.__qualname__}".encode(),
            reason.encode(),
        ]
    names = pa.concat_arrays([repeat_text(f"__connect.errors.{name}", 1) for name in _HEADER_NAMES])
    return append_headers(
        records.headers,
        np.full(count, added),
        names.take(from_numpy(np.tile(np.arange(added), count))),
        binary_array(texts),
    )
