"""Batch reads: offsets are bound on the driver, each task reads one partition's range.

A reader and its partitions are pickled to the executors; they hold options and numbers only.
Sockets live inside `partitions()` and `read()`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from sparkkafka.client.cluster import Cluster
from sparkkafka.client.fetcher import Fetcher
from sparkkafka.client.metadata import TopicPartition
from sparkkafka.client.offsets import earliest_and_latest
from sparkkafka.errors import BrokerError, DecodeError
from sparkkafka.options import ReadOptions
from sparkkafka.protocol.columns import ALL_COLUMNS, HEADERS, HEADERS_TYPE, DecodedRecords
from sparkkafka.spark import planning
from sparkkafka.spark.logs import set_up_logging
from sparkkafka.spark.schema import arrow_schema

logger = logging.getLogger(__name__)

ROWS_PER_BATCH = 8192
"""Rows of an Arrow batch handed to Spark. 64K rows were slower at 1 KB a row (measured)."""
BYTES_PER_BATCH = 16 * 2**20
"""Keys and values of an Arrow batch; large records make it shorter than ROWS_PER_BATCH."""

_MAX_MS = (2**63 - 1) // 1000  # what fits into Spark's microseconds


@dataclass(frozen=True)
class KafkaInputPartition(InputPartition):
    """One task: the records of one partition with start <= offset < end.

    `topic_id` (16 bytes; None before Kafka 2.8) tells the topic from a later one of its name.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: bytes | None = None


class KafkaBatchReader(DataSourceReader):
    """Reads a snapshot: what lies between the offsets bound when the read is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """One input partition for each range that is not empty. Runs on the driver.

        Raises OptionError, DataLossError (failOnDataLoss), or a connection's or broker's error.
        """
        set_up_logging()
        options = self.options
        planning.check_bounds(options.starting, options.ending)
        with Cluster(options.client) as cluster:
            chosen = subscribed_partitions(cluster, options)
            planning.check_named("startingOffsets", options.starting, chosen)
            planning.check_named("endingOffsets", options.ending, chosen)
            earliest, latest = earliest_and_latest(
                cluster, chosen, isolation_level=options.fetch.isolation_level
            )
            topic_ids = {tp.topic: cluster.topic_id(tp.topic) for tp in chosen}
        ranges, losses = planning.plan_ranges(
            chosen, options.starting, options.ending, earliest, latest
        )
        if losses:
            if options.fail_on_data_loss:
                raise planning.loss_error(losses)
            logger.warning("%s", planning.loss_warning(losses))
        return [
            KafkaInputPartition(r.topic, r.partition, r.start, r.end, topic_ids[r.topic])
            for r in ranges
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The range's records as Arrow batches. Runs on an executor."""
        if not isinstance(partition, KafkaInputPartition):
            # Spark turns an empty list of partitions into one InputPartition(None).
            return iter(())
        set_up_logging()
        return _read(self.options, partition)


def subscribed_partitions(cluster: Cluster, options: ReadOptions) -> list[TopicPartition]:
    """All partitions that the subscription names, sorted."""
    subscription = options.subscription
    if subscription.strategy == "assign":
        topics = cluster.topics(sorted({topic for topic, _ in subscription.partitions}))
        existing = {name: topic.partitions for name, topic in topics.items()}
        return planning.check_assigned(subscription.partitions, existing)
    if subscription.strategy == "subscribePattern":
        pattern = planning.compile_pattern(subscription.pattern)
        topics = cluster.all_topics()
        names = planning.matching_topics(
            pattern, {name: topic.is_internal for name, topic in topics.items()}
        )
        broken = planning.matching_topics(pattern, dict.fromkeys(cluster.topic_errors, False))
        if broken:
            raise BrokerError(cluster.topic_errors[broken[0]], f"Metadata of topic {broken[0]}")
        if not names:
            logger.warning("subscribePattern %r matches no topic", subscription.pattern)
    else:
        names = sorted(subscription.topics)
        topics = cluster.topics(names)
    return [
        TopicPartition(name, partition)
        for name in names
        for partition in sorted(topics[name].partitions)
    ]


def _read(options: ReadOptions, part: KafkaInputPartition) -> Iterator[pa.RecordBatch]:
    with (
        Cluster(options.client) as cluster,
        Fetcher(
            cluster,
            TopicPartition(part.topic, part.partition),
            part.start,
            part.end,
            options.fetch,
            wanted=ALL_COLUMNS if options.include_headers else ALL_COLUMNS - {HEADERS},
            poll_timeout_ms=options.poll_timeout_ms,
            fail_on_data_loss=options.fail_on_data_loss,
            topic_id=part.topic_id,
        ) as fetcher,
    ):
        shaper = BatchShaper(part.topic, part.partition, include_headers=options.include_headers)
        for records in fetcher:
            yield from shaper.batches(records)


class BatchShaper:
    """Decoded records of one partition -> Arrow batches with the columns of `schema`."""

    def __init__(self, topic: str, partition: int, *, include_headers: bool) -> None:
        self._schema = arrow_schema(include_headers)
        self._include_headers = include_headers
        self._place = f"topic {topic} partition {partition}"
        # Constant columns are made once and sliced, which copies nothing.
        self._topics = pa.repeat(pa.scalar(topic, pa.string()), ROWS_PER_BATCH)
        self._partitions = pa.repeat(pa.scalar(partition, pa.int32()), ROWS_PER_BATCH)

    def batches(self, records: DecodedRecords) -> Iterator[pa.RecordBatch]:
        rows = len(records)
        step = ROWS_PER_BATCH
        size_bytes = sum(
            int(column.nbytes) for column in (records.keys, records.values) if column is not None
        )
        if size_bytes > BYTES_PER_BATCH:
            step = max(1, min(step, rows * BYTES_PER_BATCH // size_bytes))
        if rows:
            step = -(-rows // -(-rows // step))  # 10,000 rows as 5,000 twice, not 8,192 and 1,808
        for start in range(0, rows, step):
            yield self._batch(records.slice(start, min(start + step, rows)))

    def _batch(self, records: DecodedRecords) -> pa.RecordBatch:
        rows = len(records)
        columns = [
            _binary(records.keys, rows),
            _binary(records.values, rows),
            self._topics.slice(0, rows),
            self._partitions.slice(0, rows),
            pa.array(records.offsets, pa.int64()),
            self._timestamps(records),
            pa.array(records.timestamp_types, pa.int32()),
        ]
        if self._include_headers:
            headers = records.headers
            columns.append(pa.nulls(rows, HEADERS_TYPE) if headers is None else headers)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _timestamps(self, records: DecodedRecords) -> pa.Array:
        """Milliseconds -> Spark's microseconds. Kafka's "no timestamp", -1 ms, becomes
        1969-12-31T23:59:59.999Z as in the JVM connector."""
        ms = records.timestamps_ms
        if ms is None:  # a reader always asks for them
            return pa.nulls(len(records), pa.timestamp("us", tz="UTC"))
        if len(ms) and (ms.max() > _MAX_MS or ms.min() < -_MAX_MS):
            row = int(np.argmax((ms > _MAX_MS) | (ms < -_MAX_MS)))
            raise DecodeError(
                f"{self._place} offset {int(records.offsets[row])}: the timestamp {int(ms[row])} "
                "ms does not fit into Spark's microseconds"
            )
        return pa.array(ms * 1000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))


def _binary(column: pa.Array | None, rows: int) -> pa.Array:
    return pa.nulls(rows, pa.binary()) if column is None else column
