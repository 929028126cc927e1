"""Bad records to the dead-letter topic, with headers that say why they are bad.

Key, value, headers and time are the record's own; the partition is chosen by key. The added headers
have the names of Kafka Connect's (`DeadLetterQueueReporter`) and text as values: topic, partition,
offset and time of the record, the stage (VALUE_CONVERTER or KEY_CONVERTER), and class and message
of the error.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.producer.column_producer import ColumnProducer
from sparkkafka.client.producer.input_rows import InputRows
from sparkkafka.client.producer.partitioner import Partitioner
from sparkkafka.config.kinds import INT32_MAX
from sparkkafka.config.options import (
    EVENT_HUBS_MAX_REQUEST_SIZE,
    ClientOptions,
    ProducerOptions,
    ReadOptions,
    is_event_hubs,
)
from sparkkafka.errors import (
    BadRecordError,
    BrokerError,
    ErrorCode,
    KafkaError,
    OptionError,
    ProduceError,
    UnknownTopicError,
)
from sparkkafka.protocol.columns.columns import HEADERS_TYPE, DecodedRecords, validity
from sparkkafka.protocol.records.arrow import binary_array, from_numpy, or_zero, repeat_text

_HEADER_NAMES = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "stage",
    "exception.class.name",
    "exception.message",
)


class DeadLetter(NamedTuple):
    """Why a record is a dead letter. `column`: key or value; `reason`: short, and valid UTF-8."""

    column: str
    reason: str


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
        self._topic = topic
        super().__init__()
        self._cluster = self.enter_context(Cluster(options.client, for_task=True))
        producer = producer_options(options.client)
        self._producer = self.enter_context(ColumnProducer(self._cluster, producer))
        self._partitioner = Partitioner.of(producer, self._counts, self._cluster.partition_count)

    def write(
        self, topic: str, partition: int, records: DecodedRecords, letters: Sequence[DeadLetter]
    ) -> None:
        """Write these records of a partition and wait until all of them are acknowledged.

        Raises KafkaError if they cannot be delivered, UnknownTopicError, or a connection's or
        broker's error: BrokerError if this user may not write to the topic.
        """
        count = len(records)
        empty = pa.nulls(count, pa.binary())
        times_ms = records.timestamps_ms
        rows = InputRows(
            length=count,
            keys=records.keys,
            values=records.values if records.values is not None else empty,
            headers=_with_reasons(topic, partition, records, letters),
            topics=None,
            fixed_topic=self._topic,
            partitions=None,
            timestamps=None if times_ms is None else from_numpy(_micros(times_ms)),
        )
        now_ms = time.time_ns() // 1_000_000
        try:
            partitioned = self._partitioner.partition_rows(rows, now_ms)
            self._producer.check_sizes(partitioned)
            self._producer.append(partitioned)
            self._producer.flush()
        except (ProduceError, BrokerError) as error:
            if error.code in (
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            ):
                message = missing_write_permission(self._topic)
                raise BrokerError(error.code, f"Produce to {self._topic}", message) from error
            if isinstance(error, BrokerError):
                raise
            first, last = records.offsets[0], records.offsets[-1]
            what = (
                f"deadLetter.topic={self._topic} did not accept the bad records of topic {topic} "
                f"partition {partition} from offset {first} to {last}"
            )
            if error.code == ErrorCode.MESSAGE_TOO_LARGE:
                raise KafkaError(
                    f"{what}: one of them, with the headers that say why, is larger than the "
                    f"topic's max.message.bytes: raise that, or read with onBadRecord=column, "
                    f"which keeps bad records without a topic ({error})"
                ) from error
            raise KafkaError(f"{what}: {error}") from error

    def _counts(self, names: list[str]) -> dict[str, int]:
        try:
            found = self._cluster.topics(names)
        except UnknownTopicError as error:
            raise OptionError(
                f"deadLetter.topic={self._topic} no longer exists ({error})"
            ) from error
        return {name: len(topic.partitions) for name, topic in found.items()}


def missing_write_permission(topic: str) -> str:
    return (
        f"deadLetter.topic={topic} cannot be written by this user: grant WRITE on topic {topic}, "
        "or name another one"
    )


def _micros(times_ms: np.ndarray) -> np.ndarray:
    """Convert to microseconds; times before 1970, or out of range, become -1 ms (no time)."""
    good = (times_ms >= 0) & (times_ms <= 2**63 // 1000 - 1)
    micros: np.ndarray = np.where(good, times_ms, -1) * 1000
    return micros


def _with_reasons(
    topic: str, partition: int, records: DecodedRecords, letters: Sequence[DeadLetter]
) -> pa.Array:
    """Return the records' headers, followed by those that say why they are bad."""
    count, more = len(records), len(_HEADER_NAMES)
    times = records.timestamps_ms
    texts: list[bytes | None] = []
    for row, letter in enumerate(letters):
        texts += [
            topic.encode(),
            b"%d" % partition,
            b"%d" % records.offsets[row],
            b"%d" % (times[row] if times is not None else -1),
            f"{letter.column.upper()}_CONVERTER".encode(),
            f"{BadRecordError.__module__}.{BadRecordError.__qualname__}".encode(),
            letter.reason.encode(),
        ]
    names = pa.concat_arrays([repeat_text(f"__connect.errors.{name}", 1) for name in _HEADER_NAMES])
    values = binary_array(texts)
    own_counts = np.zeros(count, np.int64)
    own_total = 0
    if records.headers is not None:
        own_counts = or_zero(pc.list_value_length(records.headers)).astype(np.int64)
        own_names, own_values = records.headers.flatten().flatten()
        own_total = len(own_names)
        names = pa.concat_arrays([own_names, names])
        values = pa.concat_arrays([own_values, values])
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(own_counts + more, out=offsets[1:])
    # The index of each header in `names` and `values`: a record's own ones, then the new ones.
    is_new = np.zeros(int(offsets[-1]), np.bool_)
    new_at = (offsets[1:, None] - np.arange(more, 0, -1)).reshape(-1)
    is_new[new_at] = True
    name_at = np.empty(len(is_new), np.int64)
    value_at = np.empty(len(is_new), np.int64)
    name_at[~is_new] = value_at[~is_new] = np.arange(own_total)
    name_at[new_at] = np.tile(np.arange(own_total, own_total + more), count)
    value_at[new_at] = np.arange(own_total, own_total + more * count)
    entries = pa.StructArray.from_arrays(
        [names.take(from_numpy(name_at)), values.take(from_numpy(value_at))],
        fields=list(HEADERS_TYPE.value_type),
    )
    return pa.Array.from_buffers(
        HEADERS_TYPE,
        count,
        [validity(np.diff(offsets) > 0), pa.py_buffer(offsets)],
        children=[entries],
    )
