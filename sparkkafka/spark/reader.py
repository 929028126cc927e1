"""Batch reads: offsets are bound on the driver, each task reads one partition's range.

A reader and its partitions are pickled to the executors; they hold options and numbers only.
Sockets live inside `partitions()` and `read()`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from sparkkafka.client.cluster import Cluster
from sparkkafka.client.metadata import TopicPartition
from sparkkafka.client.offsets import earliest_and_latest, list_offsets
from sparkkafka.errors import BrokerError
from sparkkafka.options import ReadOptions
from sparkkafka.source_options import OffsetBound
from sparkkafka.spark import planning
from sparkkafka.spark.logs import set_up_logging
from sparkkafka.spark.planning import OffsetRange
from sparkkafka.spark.schema import ReadColumn, default_columns
from sparkkafka.spark.splitting import split_ranges

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


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

    def __init__(self, options: ReadOptions, columns: tuple[ReadColumn, ...] | None = None) -> None:
        self.options = options
        self.columns = columns or default_columns(options.include_headers)
        self.times_ms: tuple[int, int] | None = None

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
            # Before the ends of the logs are looked up, which may grow: a start is never behind.
            starting, ending = _at_offsets(cluster, options, chosen)
            earliest, latest = earliest_and_latest(
                cluster, chosen, isolation_level=options.fetch.isolation_level
            )
            topic_ids = {tp.topic: cluster.topic_id(tp.topic) for tp in chosen}
            ranges, losses = planning.plan_ranges(chosen, starting, ending, earliest, latest)
            if losses:
                if options.fail_on_data_loss:
                    raise planning.loss_error(losses)
                logger.warning("%s", planning.loss_warning(losses))
            # Not before the ends of the logs are known: that no record is as late as some time
            # need not hold for records that are appended in between.
            ranges = self.narrowed(cluster, ranges)
        pieces = split_ranges(
            ranges,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
        )
        return [
            KafkaInputPartition(r.topic, r.partition, r.start, r.end, topic_ids[r.topic])
            for r in pieces
        ]

    def narrowed(self, cluster: Cluster, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """Of the ranges, what the query needs; all of it unless a subclass knows better."""
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The range's records as Arrow batches. Runs on an executor."""
        if not isinstance(partition, KafkaInputPartition):
            # Spark turns an empty list of partitions into one InputPartition(None).
            return iter(())
        # Here, not above: the process that plans a read needs no codec.
        from sparkkafka.spark.read_task import read_range

        set_up_logging()
        tp = TopicPartition(partition.topic, partition.partition)
        start, end = partition.start, partition.end
        return read_range(
            *(self.options, self.columns, tp, start, end),
            topic_id=partition.topic_id,
            times_ms=self.times_ms,
        )


def _at_offsets(
    cluster: Cluster, options: ReadOptions, chosen: list[TopicPartition]
) -> tuple[OffsetBound, OffsetBound]:
    """Both ends of a read; those that were given as times are looked up."""

    def found(bound: OffsetBound) -> dict[TopicPartition, int]:
        listed = list_offsets(
            cluster,
            planning.times_of(bound, chosen),
            isolation_level=options.fetch.isolation_level,
        )
        return {tp: row.offset for tp, row in listed.items()}

    starting, ending = options.starting, options.ending
    if starting.by_time:
        strategy = options.no_match_strategy
        starting = planning.start_at_times(starting, found(starting), no_match_strategy=strategy)
    if ending.by_time:
        ending = planning.end_at_times(ending, found(ending))
    return starting, ending


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
