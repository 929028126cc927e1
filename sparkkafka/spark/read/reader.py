"""Batch reads: the driver looks up offsets and plans ranges, each task reads one input partition.

A reader and its input partitions are pickled to the executors; they hold options and numbers only.
Sockets are opened inside `partitions()` and `read()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.config.options import ReadOptions
from sparkkafka.errors import BrokerError, EncodeError, ErrorCode, OptionError, UnknownTopicError
from sparkkafka.logs import EXECUTOR, set_up_logging
from sparkkafka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from sparkkafka.spark.metric_reports import Report
from sparkkafka.spark.pyspark_internals import PickledToTasks
from sparkkafka.spark.read import planning
from sparkkafka.spark.read.offset_reader import OffsetReader
from sparkkafka.spark.read.planning import KafkaInputPartition, SmallRanges
from sparkkafka.spark.schema import ReadColumn, default_columns

if TYPE_CHECKING:
    import pyarrow as pa

_WRITE, _DESCRIBE = 1 << 4, 1 << 8  # authorized operations of a Metadata response (AclOperation)


class KafkaBatchReader(PickledToTasks, DataSourceReader):
    """Reads between startingOffsets and endingOffsets; tasks or the driver (bindOffsets) replace
    earliest and latest by offsets."""

    def __init__(self, options: ReadOptions, columns: tuple[ReadColumn, ...] | None = None) -> None:
        super().__init__()
        self.options = options
        self.columns = columns or default_columns(options.include_headers)

    def partitions(self) -> list[InputPartition]:
        """Return an input partition for each range, or several (minPartitions,
        maxRecordsPerPartition).

        Runs on the driver. An empty range is left out if its end is an offset. If its end is open,
        it is kept, since Spark reads these input partitions in all queries of the DataFrame; many
        such ranges share a few input partitions.

        Raises OptionError, DataLossError (failOnDataLoss), or a connection's or broker's error.
        """
        set_up_logging()
        options = self.options
        planning.check_bounds(options.starting, options.ending)
        report = Report()
        with Cluster(options.client) as cluster:
            check_dead_letter_topic(cluster, options)
            offset_reader = OffsetReader(cluster, options)
            ranges, losses, topic_ids = offset_reader.with_attempts(
                "looking up the offsets of the read", offset_reader.batch_ranges, report
            )
            if losses:
                planning.accept_losses(losses, report, fail=options.fail_on_data_loss)
            # After the ends of the logs are known: records appended in between may be later than
            # any that were there before.
            ranges = self.narrow(cluster, ranges)
            report.send(options.metrics_address)
            return planning.group_empty_ranges(offset_reader.task_ranges(ranges, topic_ids))

    def narrow(
        self, cluster: Cluster, ranges: list[KafkaInputPartition]
    ) -> list[KafkaInputPartition]:
        """Return the parts of the ranges to read: all, unless filters are pushed down."""
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of an input partition as Arrow batches. Runs on an executor."""
        return read_partition(self.options, self.columns, partition)


def read_partition(
    options: ReadOptions, columns: tuple[ReadColumn, ...], partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Return the records of an input partition, of a batch read or stream, as Arrow batches."""
    if not isinstance(partition, KafkaInputPartition | SmallRanges):
        # Spark turns an empty list of partitions into one InputPartition(None).
        return iter(())
    # Here, not above: the process that plans a read needs no codec.
    from sparkkafka.spark.read.read_task import read_ranges

    set_up_logging(EXECUTOR)
    ranges = partition.ranges if isinstance(partition, SmallRanges) else (partition,)
    return read_ranges(options, columns, ranges)


def check_dead_letter_topic(cluster: Cluster, options: ReadOptions) -> None:
    """Check deadLetter.topic before the read, not when a record is bad. Raises OptionError if it
    does not exist, BrokerError if this user may not write to it, as far as Kafka says."""
    name = options.formats.dead_letter_topic if options.formats is not None else ""
    if not name:
        return
    try:
        may_write = OffsetReader(cluster, options).with_attempts(
            "looking up deadLetter.topic", lambda deadline: _may_write(cluster, name, deadline)
        )
    except UnknownTopicError as error:
        raise OptionError(
            f"deadLetter.topic={name} does not exist: create it before the read ({error})"
        ) from error
    except BrokerError as error:
        if error.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise
        may_write = False
    if not may_write:
        from sparkkafka.spark.read.dead_letters import missing_write_permission

        raise BrokerError(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            f"Metadata of {name}",
            missing_write_permission(name),
        )


def _may_write(cluster: Cluster, name: str, deadline: Deadline) -> bool:
    """Return whether this user may write to the topic; True if Kafka does not say. Raises as
    `Cluster.topics`."""
    cluster.topics([name], deadline)
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    try:
        rows = cluster.call(request, deadline=deadline, what=f"rights on {name}").topics
    except EncodeError:  # before Kafka 2.3
        return True
    rights = rows[0].topic_authorized_operations if rows else 0
    # A user who may see the topic has DESCRIBE. Without it the rights are unknown: brokers that do
    # not support this send none.
    return rights < 0 or not rights & _DESCRIBE or bool(rights & _WRITE)
