"""One task of a write: Arrow batches of rows -> records of partitions -> a producer of its own."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from sparkkafka.client.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.metadata import TopicPartition
from sparkkafka.client.producer import Producer
from sparkkafka.option_kinds import RANDOM
from sparkkafka.options import WriteOptions
from sparkkafka.spark.row_columns import RowColumns
from sparkkafka.spark.rows import Router, Rows

PIECE_BYTES = 2**30
"""Arrow batches above this are halved, so that offsets of a column always fit into 32 bits."""

STICKY_BYTES = 2**20
STICKY_BATCHES = 8
MIN_STICKY_BYTES = 2**14
"""Rows without key and partition go to one partition until it got so many bytes, then to the next:
rows that are encoded together cost less. Small batches (batch.size) take turns earlier, so that
little data is spread as well; large ones are filled."""


class TaskTotals(NamedTuple):
    """What a task wrote; `KafkaCommitMessage` says what the numbers mean."""

    rows: int
    payload_bytes: int
    partition_rows: dict[tuple[str, int], int]


def write_rows(
    iterator: Iterator[pa.RecordBatch], columns: RowColumns, options: WriteOptions
) -> TaskTotals:
    """Sends all rows and waits until they are acknowledged.

    Raises what `KafkaBatchWriter.write` says.
    """
    batches = (piece for batch in iterator for piece in _pieces(batch))
    first = next(batches, None)
    if first is None:
        return TaskTotals(0, 0, {})  # nothing to send, so nobody to ask
    with (
        Cluster(options.client) as cluster,
        Producer(cluster, options.producer) as producer,
    ):
        task = _Task(cluster, producer, columns, options)
        task.write(first)
        for batch in batches:
            task.write(batch)
        producer.flush()
        return task.totals()


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
            sticky_bytes=_sticky_bytes(options.producer.batch_size),
            pick=random.randrange,
            partitioner=(
                RANDOM if options.producer.partitioner_ignore_keys else options.producer.partitioner
            ),
            newest_count=cluster.partition_count,
        )
        self._rows = 0
        self._bytes = 0
        self._partition_rows: dict[TopicPartition, int] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        rows = Rows.of(batch, self._columns)
        # Java stamps a record when send() is called; here that is one moment per Arrow batch.
        now_ms = time.time_ns() // 1_000_000
        for tp, records in self._router.route(rows, now_ms):
            self._producer.send(tp.topic, tp.partition, records)
            count = len(records.timestamps_ms)
            self._partition_rows[tp] = self._partition_rows.get(tp, 0) + count
            self._rows += count
        self._bytes += rows.payload_bytes

    def totals(self) -> TaskTotals:
        return TaskTotals(
            self._rows,
            self._bytes,
            {(tp.topic, tp.partition): count for tp, count in self._partition_rows.items()},
        )


def _sticky_bytes(batch_size: int) -> int:
    # Not less than Java's default batch: a run of rows for each tiny batch would cost far more.
    return max(MIN_STICKY_BYTES, batch_size, min(STICKY_BYTES, STICKY_BATCHES * batch_size))


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows == 0:
        return
    if batch.nbytes <= PIECE_BYTES or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half))
    yield from _pieces(batch.slice(half))
