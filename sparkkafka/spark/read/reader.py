"""Batch reads: offsets are looked up on the driver, each task reads one partition's range.

A reader and its partitions are pickled to the executors; they hold options and numbers only.
Sockets live inside `partitions()` and `read()`. What a read asks the cluster stands below the
reader; streams (`stream.planner`) ask the same.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import DataSourceReader, InputPartition

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.log_ends import confirmed_ends
from sparkkafka.client.cluster.offsets import EARLIEST, LATEST, earliest_and_latest, list_offsets
from sparkkafka.client.cluster.topics import TopicMetadata
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import ReadOptions
from sparkkafka.config.source import EARLIEST_OFFSET, LATEST_OFFSET, OffsetBound, PartitionKey
from sparkkafka.errors import (
    BrokerError,
    EncodeError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
    UnknownTopicError,
)
from sparkkafka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from sparkkafka.spark.logs import EXECUTOR, set_up_logging
from sparkkafka.spark.metric_reports import RETRIES, Report
from sparkkafka.spark.pyspark_internals import PickledToTasks
from sparkkafka.spark.read import planning
from sparkkafka.spark.read.planning import KafkaInputPartition, SmallRanges
from sparkkafka.spark.schema import ReadColumn, default_columns

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_WRITE, _DESCRIBE = 1 << 4, 1 << 8  # in the rights of a Metadata answer: Java's AclOperation


class KafkaBatchReader(PickledToTasks, DataSourceReader):
    """Reads what lies between two bounds; earliest and latest are bound in tasks, or at planning
    (bindOffsets)."""

    def __init__(self, options: ReadOptions, columns: tuple[ReadColumn, ...] | None = None) -> None:
        super().__init__()
        self.options = options
        self.columns = columns or default_columns(options.include_headers)

    def partitions(self) -> list[InputPartition]:
        """One input partition for each range, or several (minPartitions, maxRecordsPerPartition).

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
            ranges, losses, topic_ids = with_attempts(
                cluster,
                options,
                "looking up the offsets of the read",
                lambda deadline: _bound_ranges(cluster, options, deadline),
                report,
            )
            if losses:
                planning.accept_losses(losses, report, fail=options.fail_on_data_loss)
            # After the ends of the logs are known: records appended in between may be later than
            # any that were there before.
            ranges = self.narrow(cluster, ranges)
            report.send(options.metrics_address)
            return planning.grouped_empty(task_ranges(cluster, options, ranges, topic_ids))

    def narrow(
        self, cluster: Cluster, ranges: list[KafkaInputPartition]
    ) -> list[KafkaInputPartition]:
        """Return the parts of the ranges to read: all, unless filters are pushed down."""
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The range's records as Arrow batches. Runs on an executor."""
        return read_partition(self.options, self.columns, partition)


def task_ranges(
    cluster: Cluster,
    options: ReadOptions,
    ranges: list[KafkaInputPartition],
    topic_ids: Mapping[str, bytes | None],
) -> list[KafkaInputPartition]:
    """The ranges that tasks read, of a batch read or of a micro-batch."""
    pieces = planning.split_ranges(
        ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition
    )
    return [_located(cluster, piece, topic_ids.get(piece.topic)) for piece in pieces]


def _located(
    cluster: Cluster, piece: KafkaInputPartition, topic_id: bytes | None
) -> KafkaInputPartition:
    located = replace(piece, topic_id=topic_id, leader=cluster.leader_address(piece.tp))
    leader = cluster.known_leader(piece.tp) if piece.open_end else None
    return located if leader is None else replace(located, leader_epoch=leader.leader_epoch)


def read_partition(
    options: ReadOptions, columns: tuple[ReadColumn, ...], partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The records of one input partition, of a batch read or of a stream, as Arrow batches."""
    if not isinstance(partition, KafkaInputPartition | SmallRanges):
        # Spark turns an empty list of partitions into one InputPartition(None).
        return iter(())
    # Here, not above: the process that plans a read needs no codec.
    from sparkkafka.spark.read.read_task import read_range, read_ranges

    set_up_logging(EXECUTOR)
    if isinstance(partition, SmallRanges):
        return read_ranges(options, columns, partition.ranges)
    return read_range(options, columns, partition)


def _bound_ranges(
    cluster: Cluster, options: ReadOptions, deadline: Deadline
) -> tuple[list[KafkaInputPartition], list[planning.Loss], dict[str, bytes | None]]:
    """Ranges to read, losses, and the ids of the topics."""
    chosen = subscribed_partitions(cluster, options, deadline)
    planning.check_named("startingOffsets", options.starting, chosen)
    planning.check_named("endingOffsets", options.ending, chosen)
    # Before the ends of the logs are looked up, which may grow: a start is never behind.
    starting = bound_start(cluster, options, chosen, deadline)
    ending = bound_end(cluster, options, chosen, deadline)
    earliest, latest = earliest_and_latest(
        cluster, chosen, isolation_level=options.fetch.isolation_level, deadline=deadline
    )
    given = [bound.offsets for bound in (starting, ending) if bound.kind == "specific"]
    if options.bind_offsets == "plan" or any(
        offsets.get(tp, -1) > end for offsets in given for tp, end in latest.items()
    ):
        latest = confirmed_ends(
            cluster, latest, isolation_level=options.fetch.isolation_level, deadline=deadline
        )
    topic_ids = {tp.topic: cluster.topic_id(tp.topic) for tp in chosen}
    ranges, losses = planning.plan_ranges(
        chosen,
        starting,
        ending,
        earliest,
        latest,
        bind_in_task=options.bind_offsets == "task",
    )
    return ranges, losses, topic_ids


# --- what is asked of the cluster ---------------------------------------------------------------


def with_attempts(
    cluster: Cluster,
    options: ReadOptions,
    what: str,
    action: Callable[[Deadline], _T],
    report: Report | None = None,
) -> _T:
    """Runs `action` under default.api.timeout.ms, up to fetchOffset.numRetries times. Retries are
    counted in `report`.

    A topic that is deleted after the subscription was looked up counts as a failed attempt: the
    next one looks the subscription up again, as the JVM connector does (KafkaOffsetReaderAdmin's
    withRetries).

    Raises immediately what a retry cannot fix, and a first failure if no broker was ever reached:
    then the address is most likely wrong.
    """
    attempts = options.fetch_offset_num_retries
    for attempt in range(1, attempts + 1):
        before = cluster.retries
        try:
            return action(Deadline(options.client.default_api_timeout_ms))
        except KafkaError as error:
            if not (
                error.retriable or isinstance(error, KafkaTimeoutError) or _is_deleted_since(error)
            ):
                raise
            if attempt == attempts or not cluster.brokers:
                if attempt > 1:
                    error.add_note(f"{what} failed {attempts} times (fetchOffset.numRetries)")
                raise
            cluster.retries += 1
            log.warning("%s: attempt %d of %d failed: %s", what, attempt, attempts, error)
            time.sleep(options.fetch_offset_retry_interval_ms / 1000)
        finally:
            if report is not None:
                report.add(RETRIES, cluster.retries - before)
    raise AssertionError  # numRetries is 1 at least


def _is_deleted_since(error: KafkaError) -> bool:
    """Whether a broker does not know a partition that an earlier metadata response contained. (An
    error about topics that the metadata lack names them in `topics`.)"""
    return isinstance(error, UnknownTopicError) and not error.topics


def check_dead_letter_topic(cluster: Cluster, options: ReadOptions) -> None:
    """Raises OptionError if deadLetter.topic does not exist, BrokerError if it may not be written,
    as far as Kafka tells: not as late as at a bad record."""
    name = options.formats.dead_letter_topic if options.formats is not None else ""
    if not name:
        return
    try:
        may_write = with_attempts(
            cluster,
            options,
            "looking up deadLetter.topic",
            lambda deadline: _may_write(cluster, name, deadline),
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
        from sparkkafka.spark.read.dead_letters import no_right_to_write

        raise BrokerError(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"Metadata of {name}", no_right_to_write(name)
        )


def _may_write(cluster: Cluster, name: str, deadline: Deadline) -> bool:
    """False if Kafka says that this user may not write the topic; True if it does not say. Raises
    UnknownTopicError and BrokerError, as `Cluster.topics`."""
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
    # One that may see it is told so: else the answer is none, as that of brokers that do not know.
    return rights < 0 or not rights & _DESCRIBE or bool(rights & _WRITE)


# --- partitions ------------------------------------------------------------------------------


def subscribed_partitions(
    cluster: Cluster, options: ReadOptions, deadline: Deadline | None = None
) -> list[TopicPartition]:
    """All partitions that the subscription names, sorted.

    Raises UnknownTopicError and OptionError for topics and partitions that do not exist.
    """
    subscription = options.subscription
    if subscription.strategy == "assign":
        topics = cluster.topics(sorted({topic for topic, _ in subscription.partitions}), deadline)
        existing = {name: topic.partitions for name, topic in topics.items()}
        return planning.check_assigned(subscription.partitions, existing)
    if subscription.strategy == "subscribePattern":
        pattern = planning.compile_pattern(subscription.pattern)
        topics = topics_of_pattern(cluster, pattern, deadline)
        if not topics:
            log.warning("subscribePattern %r matches no topic", subscription.pattern)
    else:
        topics = cluster.topics(sorted(subscription.topics), deadline)
    return partitions_of(topics)


def topics_of_pattern(
    cluster: Cluster, pattern: re.Pattern[str], deadline: Deadline | None
) -> dict[str, TopicMetadata]:
    """The topics whose names match. Raises BrokerError if the metadata of one is not available."""
    topics = cluster.all_topics(deadline)
    names = planning.matching_topics(
        pattern, {name: topic.is_internal for name, topic in topics.items()}
    )
    broken = planning.matching_topics(pattern, dict.fromkeys(cluster.topic_errors, False))
    if broken:
        raise BrokerError(cluster.topic_errors[broken[0]], f"Metadata of topic {broken[0]}")
    return {name: topics[name] for name in names}


def partitions_of(topics: Mapping[str, TopicMetadata]) -> list[TopicPartition]:
    return [
        TopicPartition(name, partition)
        for name in sorted(topics)
        for partition in sorted(topics[name].partitions)
    ]


# --- offsets ---------------------------------------------------------------------------------


def offsets_at(
    cluster: Cluster,
    options: ReadOptions,
    times: Mapping[TopicPartition, int],
    deadline: Deadline | None = None,
) -> dict[TopicPartition, int]:
    """Offsets at EARLIEST, LATEST or times in ms, as the isolation level of the read sees them."""
    if not times:
        return {}
    listed = list_offsets(
        cluster, times, isolation_level=options.fetch.isolation_level, deadline=deadline
    )
    return {tp: row.offset for tp, row in listed.items()}


def bound_start(
    cluster: Cluster,
    options: ReadOptions,
    chosen: Collection[TopicPartition],
    deadline: Deadline | None = None,
) -> OffsetBound:
    """The start of a read; times and committed offsets are looked up. Raises OptionError."""
    starting = options.starting
    if starting.by_time:
        found = offsets_at(cluster, options, planning.times_of(starting, chosen), deadline)
        return planning.start_at_times(starting, found, no_match_strategy=options.no_match_strategy)
    if starting.kind == "committed":
        return _committed(cluster, options, chosen, deadline)
    return starting


def bound_end(
    cluster: Cluster,
    options: ReadOptions,
    chosen: Collection[TopicPartition],
    deadline: Deadline | None = None,
) -> OffsetBound:
    """The end of a batch read; times are looked up."""
    ending = options.ending
    if not ending.by_time:
        return ending
    found = offsets_at(cluster, options, planning.times_of(ending, chosen), deadline)
    return planning.end_at_times(ending, found)


def start_offsets(
    cluster: Cluster,
    options: ReadOptions,
    chosen: Collection[TopicPartition],
    deadline: Deadline | None = None,
) -> tuple[dict[TopicPartition, int], set[TopicPartition]]:
    """The start of a stream as plain offsets, and the partitions where a second lookup may give
    another start: the end of the log, or what a group has committed.

    Raises OptionError.
    """
    planning.check_named("startingOffsets", options.starting, chosen)
    bound = bound_start(cluster, options, chosen, deadline)
    words = {"earliest": EARLIEST_OFFSET, "latest": LATEST_OFFSET}
    given = {tp: words.get(bound.kind) or bound.offsets[tp] for tp in chosen}
    # ListOffsets has the same numbers for earliest and latest.
    wanted = {tp: at for tp, at in given.items() if at in (EARLIEST, LATEST)}
    by_group = options.starting.kind == "committed"
    passing = {tp for tp, at in given.items() if by_group or at == LATEST}
    found = offsets_at(cluster, options, wanted, deadline)
    latest = confirmed_ends(
        cluster,
        {tp: found[tp] for tp, at in wanted.items() if at == LATEST},
        isolation_level=options.fetch.isolation_level,
        deadline=deadline,
    )
    return {**given, **found, **latest}, passing


def _committed(
    cluster: Cluster,
    options: ReadOptions,
    chosen: Collection[TopicPartition],
    deadline: Deadline | None,
) -> OffsetBound:
    from sparkkafka.client.group.committed_offsets import fetch_committed

    bound, group_id = options.starting, options.group_id or ""
    found = fetch_committed(cluster, group_id, chosen, deadline=deadline)
    missing = sorted(tp for tp in chosen if tp not in found)
    if missing and not bound.fallback:
        raise OptionError(
            f"startingOffsets=committed: the group {group_id} has no committed offset of "
            f"{planning.listed(missing)}. Set startingOffsets=committed,earliest or "
            "committed,latest to say where such partitions begin"
        )
    rest = LATEST_OFFSET if bound.fallback == "latest" else EARLIEST_OFFSET
    offsets: dict[PartitionKey, int] = {(tp.topic, tp.partition): rest for tp in missing}
    offsets |= {(tp.topic, tp.partition): at for tp, at in found.items()}
    return replace(bound, kind="specific", offsets=offsets, fallback="")
