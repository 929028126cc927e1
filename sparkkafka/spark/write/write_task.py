"""One task of a write: it sends the rows of Arrow batches with a producer of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from sparkkafka.client.arguments import InputColumns
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.producer.column_producer import ColumnProducer
from sparkkafka.client.producer.partitioner import PartitionedRecords, Partitioner
from sparkkafka.client.producer.producer_records import InputRows
from sparkkafka.client.values import TopicPartition, some_topics
from sparkkafka.config.options import WriteOptions
from sparkkafka.errors import BrokerError, ErrorCode, UnknownTopicError
from sparkkafka.protocol.records.arrow import or_zero
from sparkkafka.spark.metric_reports import query_id
from sparkkafka.spark.write.commit_message import KafkaCommitMessage

if TYPE_CHECKING:
    from sparkkafka.schemas.column import EncodePlan
    from sparkkafka.spark.exactly_once import TaskAttempt

log = logging.getLogger(__name__)

MAX_PIECE_BYTES = 2**30
MIN_PIECE_BYTES = 2**20
"""An Arrow batch larger than buffer.memory is split into pieces, of a size between these two. That
limits the memory of sorting and encoding, and keeps the offsets of a column within 32 bits."""


def write_rows(
    iterator: Iterator[pa.RecordBatch],
    columns: InputColumns,
    options: WriteOptions,
    attempt: TaskAttempt | None = None,
    plans: tuple[EncodePlan, ...] = (),
) -> KafkaCommitMessage:
    """Send all rows and wait until they are acknowledged.

    With an `attempt`, which an exactly-once write has, the rows are part of a transaction that
    stays open. `plans` says how columns with a schema are encoded. Raises the errors of
    `KafkaBatchWriter.write`.
    """
    batches: Iterator[pa.RecordBatch] = (batch for batch in iterator if batch.num_rows)
    first = next(batches, None)
    if first is None:
        # No rows, no connection.
        return KafkaCommitMessage(report=attempt and attempt.report(0, None), query_id=query_id())
    if plans:
        from sparkkafka.spark.write.encoding import BatchEncoder

        encoder = BatchEncoder(plans, columns)
        columns = encoder.encoded_columns(first.num_columns)
        batches = encoder.encode(chain((first,), batches))
        first = next(batches)
    started_at_s = time.monotonic()
    with ExitStack() as stack:
        transaction = None
        if attempt is not None:
            from sparkkafka.spark.exactly_once import task_transaction

            transaction = stack.enter_context(task_transaction(attempt, options))
        cluster = stack.enter_context(Cluster(options.client, for_task=True))
        producer = stack.enter_context(ColumnProducer(cluster, options.producer, transaction))
        writer = _TaskWriter(cluster, producer, columns, options)
        writer.write(first)
        del first  # so that memory holds no more than one Arrow batch
        for batch in batches:
            writer.write(batch)
        producer.flush()
        message = replace(writer.message(), query_id=query_id())
        if attempt is not None:
            message = replace(message, report=attempt.report(message.rows, transaction))
    context = TaskContext.get()
    log.info(
        "%swrote %s in %.2f s",
        f"task {context.partitionId()}.{context.attemptNumber()} " if context else "",
        message.text(),
        time.monotonic() - started_at_s,
    )
    return message


class _TaskWriter:
    """Sends Arrow batches with a task's producer, and counts what it has sent."""

    def __init__(
        self, cluster: Cluster, producer: Any, columns: InputColumns, options: WriteOptions
    ) -> None:
        self._producer = producer
        self._columns = columns
        self._partitioner = Partitioner(
            options.producer,
            lambda topics: partition_counts(cluster, options, topics),
            cluster.known_topic,
        )
        self._buffer_bytes = options.producer.buffer_memory
        self._piece_bytes = min(MAX_PIECE_BYTES, max(MIN_PIECE_BYTES, self._buffer_bytes))
        self._bytes_since_close = 0
        self._rows = 0
        self._payload_bytes = 0
        self._partition_rows: dict[TopicPartition, int] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Check all rows of an Arrow batch, and then send them: if one cannot be written, none of
        the batch is sent."""
        # Java sets a record's timestamp when send() is called; here all rows of a batch get one.
        now_ms = time.time_ns() // 1_000_000
        # Spark's reader holds this batch in memory while it reads the next one. Both count against
        # buffer.memory.
        self._producer.held_bytes = 2 * batch.nbytes
        pieces = [
            InputRows.of(piece, self._columns) for piece in _split_batch(batch, self._piece_bytes)
        ]
        partitioned = [self._partitioner.partition_rows(rows, now_ms) for rows in pieces]
        for records in partitioned:
            self._producer.check_sizes(records)
        for rows, records in zip(pieces, partitioned, strict=True):
            self._append(rows, records)
        # A row that waits for other rows of its partition keeps its whole Arrow batch in memory,
        # also columns that are not written. One waiting row of each Arrow batch would keep all of
        # them for linger.ms. So all record batches are closed once half of buffer.memory was
        # appended: the rest is for what is in flight.
        self._bytes_since_close += batch.nbytes
        if self._bytes_since_close > self._buffer_bytes // 2:
            self._producer.close_batches()
            self._bytes_since_close = 0

    def _append(self, rows: InputRows, records: PartitionedRecords) -> None:
        """Append rows to the producer's batches, and count them. `records` are the same rows sorted
        by partition."""
        self._producer.append(records)
        for tp, start, end in zip(
            records.tps, (0, *records.run_ends), records.run_ends, strict=False
        ):
            self._partition_rows[tp] = self._partition_rows.get(tp, 0) + end - start
        self._rows += rows.length
        self._payload_bytes += rows.payload_bytes

    def message(self) -> KafkaCommitMessage:
        """Return what was written. To be called once the producer is flushed."""
        metrics = self._producer.metrics
        unknown = (-1, -1)  # first and last offset with acks=0
        return KafkaCommitMessage(
            rows=self._rows,
            payload_bytes=self._payload_bytes,
            batches=metrics.batches,
            batch_bytes=metrics.batch_bytes,
            retries=metrics.retries,
            partitions={
                (tp.topic, tp.partition): (count, *metrics.offsets.get(tp, unknown))
                for tp, count in self._partition_rows.items()
            },
        )


def _split_batch(batch: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the batch in pieces of at most `max_bytes`, or of one row if a row is larger."""
    if batch.num_rows == 1 or sum(map(_expanded_bytes, batch.columns)) <= max_bytes:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _split_batch(batch.slice(0, half), max_bytes)
    yield from _split_batch(batch.slice(half), max_bytes)


def _expanded_bytes(column: pa.Array) -> int:
    """Return the bytes of the column's values in records: a dictionary's value counts once for each
    row that has it."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    try:
        lengths = pc.binary_length(column.dictionary)
    except pa.ArrowNotImplementedError:  # not text and not binary: small, or ignored anyway
        return int(column.nbytes)
    return int(or_zero(lengths.take(column.indices)).sum(dtype="int64"))


# --- topics -------------------------------------------------------------------------------------


def partition_counts(cluster: Cluster, options: WriteOptions, names: list[str]) -> dict[str, int]:
    """Return the number of partitions by topic. With createTopic=true, missing topics are created
    first, perhaps by several tasks at the same time.

    Raises UnknownTopicError for missing topics, BrokerError for one that cannot be created.
    """
    deadline = Deadline(min(options.producer.max_block_ms, options.client.default_api_timeout_ms))
    try:
        # A broker may not know a new topic yet. So the lookup of a missing topic is repeated for a
        # while, unless this write creates it.
        topics = cluster.topics(names, deadline, grace_ms=0 if options.create_topic else None)
    except UnknownTopicError as error:
        if not options.create_topic:
            raise _with_hint(error, "option createTopic=true creates missing topics") from error
        _create_topics(cluster, options, error.topics, deadline)
        topics = cluster.topics(names, deadline)
    return {name: len(topic.partitions) for name, topic in topics.items()}


def _create_topics(
    cluster: Cluster, options: WriteOptions, names: Sequence[str], deadline: Deadline
) -> None:
    """Create the topics as the options createTopic.* say. One that exists by now is no error."""
    from sparkkafka.client.admin.topics import BROKER_DEFAULT, NewTopic, create_topics

    topics = [
        NewTopic(
            name,
            partitions=options.create_partitions or BROKER_DEFAULT,
            replication_factor=options.create_replication_factor or BROKER_DEFAULT,
            configs=dict(options.create_configs),
        )
        for name in names
    ]
    for error in create_topics(cluster, topics, deadline).errors.values():
        if not isinstance(error, BrokerError):
            raise error
        if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
            continue
        hint = "it would be created because of createTopic=true and the options createTopic.*"
        if error.code in (
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ):
            hint = "option createTopic=true needs that right; or create the topic beforehand"
        raise _with_hint(error, hint) from error
    log.info("%s: created, perhaps by another task (createTopic=true)", some_topics(names))


def _with_hint(error: BrokerError, hint: str) -> BrokerError:
    """Return the same error with a hint at the end of the broker's message."""
    message = str(error).partition(f"from {error.where}: ")[2] or str(error)
    return type(error)(error.code, error.where, f"{message}; {hint}")
