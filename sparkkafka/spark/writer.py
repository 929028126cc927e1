"""Batch writes: rows of an Arrow batch -> columns of records per partition -> the producer.

At least once: what a task has sent stays in Kafka when the task or the job fails later, and a task
that Spark runs again sends its rows again. Inside a task the idempotent producer keeps retries from
doubling records.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from sparkkafka.client.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.metadata import TopicPartition
from sparkkafka.client.producer import Producer
from sparkkafka.options import WriteOptions
from sparkkafka.spark.logs import set_up_logging
from sparkkafka.spark.rows import Router, RowColumns, input_columns

logger = logging.getLogger(__name__)

PIECE_BYTES = 2**30
"""Arrow batches above this are halved, so that offsets of a column always fit into 32 bits."""


STICKY_BYTES = 2**20
"""Rows without key and partition go to one partition until it got so much (or batch.size, if that
is more), then to the next: rows that are encoded together cost less, also for small batches."""


@dataclass(frozen=True)
class KafkaCommitMessage(WriterCommitMessage):
    """What one task wrote, all of it acknowledged as `kafka.acks` says.

    `payload_bytes` are those of keys and values. `partition_rows` counts rows by
    (topic, partition).
    """

    rows: int
    payload_bytes: int
    partition_rows: dict[tuple[str, int], int] = field(default_factory=dict)


class KafkaBatchWriter(DataSourceArrowWriter):
    """Writes each task's rows with a producer of its own.

    Raises OptionError for columns that are missing or have a type that cannot be written.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.options = options
        self.columns = input_columns(schema, options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> KafkaCommitMessage:
        """Sends all rows and waits until they are acknowledged. Runs on an executor.

        Raises ProduceError (topic, partition, the broker's words, written or not), EncodeError for
        rows that cannot be written, or a connection's or broker's error.
        """
        set_up_logging()
        batches = (piece for batch in iterator for piece in _pieces(batch))
        first = next(batches, None)
        if first is None:
            return KafkaCommitMessage(0, 0)  # nothing to send, so nobody to ask
        with (
            Cluster(self.options.client) as cluster,
            Producer(cluster, self.options.producer) as producer,
        ):
            task = _Task(cluster, producer, self.columns, self.options)
            task.write(first)
            for batch in batches:
                task.write(batch)
            producer.flush()
            return task.message()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """One line with the totals. The records are visible already."""
        set_up_logging()
        done = [message for message in messages if isinstance(message, KafkaCommitMessage)]
        partitions = {key for message in done for key in message.partition_rows}
        logger.info(
            "wrote %d rows (%d bytes of keys and values) to %d partitions of %d topics in %d tasks",
            sum(message.rows for message in done),
            sum(message.payload_bytes for message in done),
            len(partitions),
            len({topic for topic, _ in partitions}),
            len(done),
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Says what a failed job leaves behind: Kafka cannot take records back."""
        set_up_logging()
        done = [message for message in messages if isinstance(message, KafkaCommitMessage)]
        logger.warning(
            "the write failed, and writes are at-least-once: %d rows of %d finished tasks, and "
            "perhaps some rows of unfinished ones, are in Kafka and stay there; running the job "
            "again writes them a second time",
            sum(message.rows for message in done),
            len(done),
        )


class _Task:
    """One task's state: who the producer is, and what was handed to it."""

    def __init__(
        self, cluster: Cluster, producer: Any, columns: RowColumns, options: WriteOptions
    ) -> None:
        self._producer = producer
        self._columns = columns
        self._router = Router(
            lambda topics: {
                name: len(topic.partitions)
                for name, topic in cluster.topics(
                    topics,
                    Deadline(
                        min(options.producer.max_block_ms, options.client.default_api_timeout_ms)
                    ),
                ).items()
            },
            sticky_bytes=max(STICKY_BYTES, options.producer.batch_size),
            pick=random.randrange,
        )
        self._rows = 0
        self._bytes = 0
        self._partition_rows: dict[TopicPartition, int] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        rows = self._columns.extract(batch)
        # Java stamps a record when send() is called; here that is one moment per Arrow batch.
        now_ms = time.time_ns() // 1_000_000
        for tp, records in self._router.route(rows, now_ms):
            self._producer.send(tp.topic, tp.partition, records)
            count = len(records.timestamps_ms)
            self._partition_rows[tp] = self._partition_rows.get(tp, 0) + count
            self._rows += count
        self._bytes += rows.payload_bytes

    def message(self) -> KafkaCommitMessage:
        return KafkaCommitMessage(
            self._rows,
            self._bytes,
            {(tp.topic, tp.partition): count for tp, count in self._partition_rows.items()},
        )


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows == 0:
        return
    if batch.nbytes <= PIECE_BYTES or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half))
    yield from _pieces(batch.slice(half))
