"""Reads small micro-batches on the driver, so that their rows go to Spark with the plan.

A Python task costs Spark more than reading some thousand rows does. Data sources that read on the
driver (SimpleDataSourceStreamReader) need none: rows that come with a plan become a block of Spark,
which the batch's one task reads. If Spark loses the block, that task reads its InputPartition from
Kafka. So the driver may give up at any error or delay; tasks then wait, retry and report it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import InputPartition

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import ReadOptions
from sparkkafka.errors import KafkaError
from sparkkafka.spark.metric_reports import Report
from sparkkafka.spark.read.planning import KafkaInputPartition, SmallRanges
from sparkkafka.spark.schema import ReadColumn

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

MAX_BYTES = 4 * 2**20
"""Of the rows as Arrow batches; Spark's driver keeps those of the last small batch."""
MAX_RANGES = 1_000
LIMIT_MS = 2_000
BACKOFF_S = 60.0
"""How long tasks read all batches after the driver has failed to read one."""


class SmallBatch(NamedTuple):
    """A micro-batch with its rows; a task can read `partition` instead."""

    partition: InputPartition
    rows: list[pa.RecordBatch]


class DriverReads:
    """Reads the small micro-batches of one streaming query, with the connections of its plans."""

    def __init__(
        self, cluster: Cluster, options: ReadOptions, columns: tuple[ReadColumn, ...]
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._columns = columns
        self._not_before_s = 0.0

    def read(
        self,
        tasks: Sequence[InputPartition],
        offset_bytes: Mapping[TopicPartition, float],
        report: Report,
    ) -> SmallBatch | None:
        """Read the batch of these tasks and count it in `report`; return None if it is not small,
        or if this attempt or a recent one failed."""
        ranges = [partition for task in tasks for partition in _ranges_of(task)]
        if not self._is_small(ranges, len(tasks), offset_bytes):
            return None
        # Imported here: a query whose batches are large needs no codec on the driver.
        from sparkkafka.spark.read.read_task import read_at_once

        reason = "it is larger than estimated, or takes too long"
        counted = Report()
        try:
            rows = read_at_once(
                self._cluster,
                self._options,
                self._columns,
                ranges,
                most_bytes=MAX_BYTES,
                limit_ms=LIMIT_MS,
                report=counted if self._options.metrics_address is not None else None,
            )
        except KafkaError as error:
            rows, reason = None, str(error)
        if rows is None:
            self._not_before_s = time.monotonic() + BACKOFF_S
            log.info("tasks read this micro-batch and those of the next minute: %s", reason)
            return None
        report.take(counted)
        partition = ranges[0] if len(ranges) == 1 else SmallRanges(tuple(ranges))
        return SmallBatch(partition, rows)

    def _is_small(
        self,
        ranges: Sequence[KafkaInputPartition],
        task_count: int,
        offset_bytes: Mapping[TopicPartition, float],
    ) -> bool:
        options = self._options
        most_ranges = options.stream.max_ranges_per_task
        if task_count > 1 and (
            options.min_partitions is not None
            or options.max_records_per_partition is not None
            or (most_ranges is not None and len(ranges) > most_ranges)
        ):
            return False  # the options ask for that many tasks
        # An unknown size counts as zero: an attempt ends at MAX_BYTES.
        size_bytes = sum(
            partition.count * offset_bytes.get(partition.tp, 0.0) for partition in ranges
        )
        return (
            0 < len(ranges) <= MAX_RANGES
            and sum(partition.count for partition in ranges)
            <= options.stream.max_records_read_by_driver
            and size_bytes <= MAX_BYTES
            and time.monotonic() >= self._not_before_s
        )


def _ranges_of(task: InputPartition) -> Sequence[KafkaInputPartition]:
    if isinstance(task, SmallRanges):
        return task.ranges
    return (task,) if isinstance(task, KafkaInputPartition) else ()
