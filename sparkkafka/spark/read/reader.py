"""Batch reads: offsets are bound on the driver, each task reads one partition's range.

A reader and its partitions are pickled to the executors; they hold options and numbers only.
Sockets live inside `partitions()` and `read()`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.offsets import earliest_and_latest
from sparkkafka.client.deadline import Deadline
from sparkkafka.config.options import ReadOptions
from sparkkafka.spark.logs import EXECUTOR, set_up_logging
from sparkkafka.spark.read import lookup, planning
from sparkkafka.spark.read.planning import KafkaInputPartition
from sparkkafka.spark.schema import ReadColumn, default_columns

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


class KafkaBatchReader(DataSourceReader):
    """Reads a snapshot: what lies between the offsets bound when the read is planned."""

    def __init__(self, options: ReadOptions, columns: tuple[ReadColumn, ...] | None = None) -> None:
        self.options = options
        self.columns = columns or default_columns(options.include_headers)

    def partitions(self) -> list[InputPartition]:
        """One input partition for each range that is not empty. Runs on the driver.

        Raises OptionError, DataLossError (failOnDataLoss), or a connection's or broker's error.
        """
        set_up_logging()
        options = self.options
        planning.check_bounds(options.starting, options.ending)
        with Cluster(options.client) as cluster:
            ranges, losses, topic_ids = lookup.with_attempts(
                cluster,
                options,
                "looking up the offsets of the read",
                lambda deadline: _bound_ranges(cluster, options, deadline),
            )
            if losses:
                if options.fail_on_data_loss:
                    raise planning.loss_error(losses)
                log.warning("%s", planning.loss_warning(losses))
            # Not before the ends of the logs are known: that no record is as late as some time
            # need not hold for records that are appended in between.
            ranges = self.narrowed(cluster, ranges)
            return input_partitions(cluster, options, ranges, topic_ids)

    def narrowed(
        self, cluster: Cluster, ranges: list[KafkaInputPartition]
    ) -> list[KafkaInputPartition]:
        """Of the ranges, what the query needs; all of it unless a subclass knows better."""
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The range's records as Arrow batches. Runs on an executor."""
        return read_partition(self.options, self.columns, partition)


def input_partitions(
    cluster: Cluster,
    options: ReadOptions,
    ranges: list[KafkaInputPartition],
    topic_ids: Mapping[str, bytes | None],
) -> list[InputPartition]:
    """The tasks that read the ranges of a batch read or of a micro-batch."""
    pieces = planning.split_ranges(
        ranges,
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
    )
    return [
        replace(one, topic_id=topic_ids.get(one.topic), leader=cluster.leader_address(one.tp))
        for one in pieces
    ]


def read_partition(
    options: ReadOptions, columns: tuple[ReadColumn, ...], partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The records of one input partition, of a batch read or of a stream, as Arrow batches."""
    if not isinstance(partition, KafkaInputPartition):
        # Spark turns an empty list of partitions into one InputPartition(None).
        return iter(())
    # Here, not above: the process that plans a read needs no codec.
    from sparkkafka.spark.read.read_task import read_range

    set_up_logging(EXECUTOR)
    return read_range(options, columns, partition)


def _bound_ranges(
    cluster: Cluster, options: ReadOptions, deadline: Deadline
) -> tuple[list[KafkaInputPartition], list[planning.Loss], dict[str, bytes | None]]:
    """Ranges to read, what is missing of them, and the ids of the topics."""
    chosen = lookup.subscribed_partitions(cluster, options, deadline)
    planning.check_named("startingOffsets", options.starting, chosen)
    planning.check_named("endingOffsets", options.ending, chosen)
    # Before the ends of the logs are looked up, which may grow: a start is never behind.
    starting = lookup.bound_start(cluster, options, chosen, deadline)
    ending = lookup.bound_end(cluster, options, chosen, deadline)
    earliest, latest = earliest_and_latest(
        cluster, chosen, isolation_level=options.fetch.isolation_level, deadline=deadline
    )
    topic_ids = {tp.topic: cluster.topic_id(tp.topic) for tp in chosen}
    return *planning.plan_ranges(chosen, starting, ending, earliest, latest), topic_ids
