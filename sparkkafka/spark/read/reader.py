"""Batch reads: the driver looks up offsets and plans ranges, each task reads one input partition.

Spark pickles a reader and its input partitions to the executors. They contain only options and
numbers: sockets are opened inside `partitions()` and `read()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.config.options import ReadOptions
from sparkkafka.logs import set_up_logging
from sparkkafka.spark.metric_reports import Report
from sparkkafka.spark.pyspark_internals import PickledToTasks
from sparkkafka.spark.read import data_loss, input_partitions
from sparkkafka.spark.read.input_partitions import KafkaInputPartition, TaskPartition
from sparkkafka.spark.read.offset_reader import OffsetReader
from sparkkafka.spark.schema import ReadColumn, default_columns

if TYPE_CHECKING:
    import pyarrow as pa


class KafkaBatchReader(PickledToTasks, DataSourceReader):
    """Reads between startingOffsets and endingOffsets; tasks or the driver (bindOffsets) replace
    earliest and latest by offsets."""

    def __init__(self, options: ReadOptions, columns: tuple[ReadColumn, ...] | None = None) -> None:
        super().__init__()
        self.options = options
        self.columns = columns or default_columns(options.include_headers)

    def partitions(self) -> list[TaskPartition]:
        """Return an input partition for each range, or several (minPartitions,
        maxRecordsPerPartition).

        Runs on the driver. An empty range is left out if its end is an offset. If its end is open,
        it is kept, since Spark reads these input partitions in all queries of the DataFrame; many
        such ranges share a few input partitions.

        Raises OptionError, DataLossError (failOnDataLoss), or a connection's or broker's error.
        """
        set_up_logging()
        options = self.options
        input_partitions.check_bounds(options.starting, options.ending)
        report = Report()
        with Cluster(options.client) as cluster:
            if options.formats is not None and options.formats.dead_letter_topic:
                from sparkkafka.spark.read.dead_letters import check_dead_letter_topic

                check_dead_letter_topic(cluster, options, options.formats.dead_letter_topic)
            offset_reader = OffsetReader(cluster, options)
            ranges, losses, topic_ids = offset_reader.with_attempts(
                "looking up the offsets of the read", offset_reader.batch_ranges, report
            )
            if losses:
                data_loss.apply_fail_on_data_loss(losses, report, fail=options.fail_on_data_loss)
            # The ends of the logs are looked up before the times of filters: a record that is
            # appended in between may be later than all records before it.
            ranges = self.narrow(cluster, ranges)
            report.send(options.metrics_address)
            return input_partitions.group_empty_ranges(offset_reader.task_ranges(ranges, topic_ids))

    def narrow(
        self, cluster: Cluster, ranges: list[KafkaInputPartition]
    ) -> list[KafkaInputPartition]:
        """Return the parts of the ranges to read: all, unless filters are pushed down."""
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of an input partition as Arrow batches. Runs on an executor."""
        # Imported here: the process that plans a read needs no codec.
        from sparkkafka.spark.read.read_task import read_partition

        return read_partition(self.options, self.columns, partition)
