"""`OffsetReader` looks up on the driver what a read names: partitions and offsets.

Batch reads and streams (`stream.planner`) both use it, as KafkaOffsetReader in the JVM connector.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.metadata import TopicMetadata
from sparkkafka.client.cluster.offsets import OffsetLookup
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.connecting import check_servers
from sparkkafka.client.values import Offsets, TopicPartition
from sparkkafka.config.options import ReadOptions
from sparkkafka.config.source import EARLIEST_OFFSET, LATEST_OFFSET, OffsetBound
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, OptionError, UnknownTopicError
from sparkkafka.protocol.constants import EARLIEST, LATEST
from sparkkafka.spark.metric_reports import Count, Report
from sparkkafka.spark.read import data_loss, input_partitions
from sparkkafka.spark.read.input_partitions import KafkaInputPartition

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class _BatchBounds(NamedTuple):
    """What a batch read is to read, and the first offsets and the ends of the logs."""

    partitions: list[TopicPartition]
    starting: OffsetBound
    ending: OffsetBound
    earliest: Offsets
    latest: Offsets


class OffsetReader:
    """Looks up the partitions of a subscription, and the offsets of startingOffsets and
    endingOffsets, over the connections of `cluster`."""

    def __init__(self, cluster: Cluster, options: ReadOptions) -> None:
        self._cluster = cluster
        self._options = options
        self.lookup = OffsetLookup(cluster, options.fetch.isolation_level)

    def with_attempts(
        self, what: str, action: Callable[[Deadline], _T], report: Report | None = None
    ) -> _T:
        """Run `action` under default.api.timeout.ms, up to fetchOffset.numRetries times. Retries
        are counted in `report`.

        A topic that is deleted after the subscription was looked up counts as a failed attempt: the
        next one looks the subscription up again, as withRetries of the JVM connector's
        KafkaOffsetReaderAdmin does.

        Raises immediately what a retry cannot fix, and a first failure if no broker was ever
        reached: then the address is most likely wrong. For the same reason the first contact ends
        after `first_contact_ms` if all servers refuse connections or cannot be resolved.
        """
        cluster, options = self._cluster, self._options
        if not cluster.brokers:
            client = options.client
            check_servers(client, Deadline(client.first_contact_ms, cluster.close_signal))
        attempts = options.fetch_offset_num_retries
        for attempt in range(1, attempts + 1):
            before = cluster.retries
            try:
                return action(Deadline(options.client.default_api_timeout_ms))
            except KafkaError as error:
                # A partition that an earlier metadata response contained; an error about topics
                # that the metadata lack names them in `topics`.
                was_deleted = isinstance(error, UnknownTopicError) and not error.topics
                if not (error.retriable or was_deleted):
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
                    report.add(Count.RETRIES, cluster.retries - before)
        raise AssertionError  # numRetries is 1 at least

    # --- partitions -------------------------------------------------------------------------------

    def subscribed_partitions(self, deadline: Deadline) -> list[TopicPartition]:
        """Return all partitions of the subscription, sorted.

        Raises UnknownTopicError and OptionError for topics and partitions that do not exist.
        """
        subscription = self._options.subscription
        if subscription.strategy == "assign":
            names = {topic for topic, _ in subscription.partitions}
            topics = self._cluster.topics(sorted(names), deadline)
            existing = {name: topic.partitions for name, topic in topics.items()}
            input_partitions.check_assigned(subscription.partitions, existing)
            return list(subscription.partitions)
        if subscription.strategy == "subscribePattern":
            topics = self.topics_of_pattern(deadline)
            if not topics:
                log.warning("subscribePattern %r matches no topic", subscription.pattern)
        else:
            topics = self._cluster.topics(sorted(subscription.topics), deadline)
        return partitions_of(topics)

    def topics_of_pattern(self, deadline: Deadline) -> dict[str, TopicMetadata]:
        """Return the topics that match subscribePattern. Raises BrokerError if a broker answered
        with an error in place of a topic's metadata."""
        pattern = input_partitions.compile_pattern(self._options.subscription.pattern)
        topics = self._cluster.all_topics(deadline)
        names = input_partitions.matching_topics(
            pattern, {name: topic.is_internal for name, topic in topics.items()}
        )
        errors = self._cluster.topic_errors
        failed = input_partitions.matching_topics(pattern, dict.fromkeys(errors, False))
        if failed:
            raise BrokerError(errors[failed[0]], f"Metadata of topic {failed[0]}")
        return {name: topics[name] for name in names}

    # --- offsets ----------------------------------------------------------------------------------

    def start_offsets(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> tuple[Offsets, set[TopicPartition]]:
        """Return the offsets at which a stream starts in these partitions, and those partitions
        where a later lookup may return another start: at the end of the log, or at a committed
        offset.

        Raises OptionError.
        """
        starting = self._options.starting
        input_partitions.check_named("startingOffsets", starting, partitions)
        bound = self._bind_start(partitions, deadline)
        all_at = {"earliest": EARLIEST_OFFSET, "latest": LATEST_OFFSET}.get(bound.kind)
        starts = {tp: all_at or bound.offsets[tp] for tp in partitions}
        is_committed = starting.kind == "committed"
        may_change = {tp for tp, start in starts.items() if is_committed or start == LATEST}
        # ListOffsets uses the same numbers for earliest and latest as the option's JSON.
        times = {tp: start for tp, start in starts.items() if start in (EARLIEST, LATEST)}
        listed = self.lookup.offsets(times, deadline)
        ends = {tp: listed[tp] for tp, time_ms in times.items() if time_ms == LATEST}
        return {**starts, **listed, **self.lookup.confirmed_ends(ends, deadline)}, may_change

    def _bind_start(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> OffsetBound:
        """Return the start of a read, with times and committed offsets looked up."""
        starting = self._options.starting
        if starting.is_by_time:
            offsets = self.lookup.offsets(input_partitions.times_of(starting, partitions), deadline)
            return input_partitions.start_at_times(
                starting, offsets, no_match_strategy=self._options.no_match_strategy
            )
        if starting.kind == "committed":
            return self._committed_start(partitions, deadline)
        return starting

    def _committed_start(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> OffsetBound:
        """Return the group's committed offsets, with the fallback of startingOffsets for partitions
        without one. Raises OptionError if there is no fallback."""
        from sparkkafka.client.group.committed_offsets import fetch_committed

        bound, group_id = self._options.starting, self._options.group_id or ""
        committed = fetch_committed(self._cluster, group_id, partitions, deadline=deadline)
        missing = sorted(tp for tp in partitions if tp not in committed)
        if missing and not bound.fallback:
            raise OptionError(
                f"startingOffsets=committed: the group {group_id} has no committed offset of "
                f"{input_partitions.partitions_text(missing)}. Set "
                "startingOffsets=committed,earliest or committed,latest to say where such "
                "partitions begin"
            )
        fallback = LATEST_OFFSET if bound.fallback == "latest" else EARLIEST_OFFSET
        offsets = {tp: committed[tp].offset if tp in committed else fallback for tp in partitions}
        return replace(bound, kind="specific", offsets=offsets, fallback="")

    # --- ranges -----------------------------------------------------------------------------------

    def batch_ranges(
        self, deadline: Deadline
    ) -> tuple[list[KafkaInputPartition], list[data_loss.Loss], dict[str, bytes | None]]:
        """Return the ranges of a batch read, the losses in them, and the topics' ids by name.
        Raises OptionError."""
        bounds = self._batch_bounds(deadline)
        topic_ids = self.topic_ids(bounds.partitions)
        bind_in_task = self._options.bind_offsets == "task"
        ranges, losses = input_partitions.plan_ranges(*bounds, bind_in_task=bind_in_task)
        return ranges, losses, topic_ids

    def topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[str, bytes | None]:
        """Return the ids of these topics: those of the option topicIds, else the present ones."""
        expected = self._options.topic_ids
        names = {tp.topic for tp in partitions}
        return {name: expected.get(name) or self._cluster.topic_id(name) for name in names}

    def batch_offsets(self, deadline: Deadline) -> tuple[Offsets, Offsets, list[data_loss.Loss]]:
        """Return the start and the end of a batch read in each partition, and the losses. Where
        nothing is to be read, both are the end. Raises OptionError."""
        bounds = self._batch_bounds(deadline)
        ranges, losses = input_partitions.plan_ranges(*bounds)
        ends: Offsets = {}
        for tp in bounds.partitions:
            log_start, log_end = bounds.earliest[tp], bounds.latest[tp]
            end = input_partitions.offset_of(bounds.ending, tp, log_start, log_end)
            ends[tp] = max(min(end, log_end), log_start)
        starts = ends | {planned.tp: planned.start for planned in ranges}
        return starts, ends, losses

    def _batch_bounds(self, deadline: Deadline) -> _BatchBounds:
        """Look up the bounds of a batch read. Raises OptionError, UnknownTopicError if a topic was
        recreated in the meantime: its start could be an offset of the old one."""
        options = self._options
        partitions = self.subscribed_partitions(deadline)
        topic_ids = {tp.topic: self._cluster.topic_id(tp.topic) for tp in partitions}
        input_partitions.check_named("startingOffsets", options.starting, partitions)
        input_partitions.check_named("endingOffsets", options.ending, partitions)
        # Looked up before the ends of the logs: logs grow, so no start is then behind its end.
        starting, ending = self._bind_start(partitions, deadline), options.ending
        if ending.is_by_time:
            offsets = self.lookup.offsets(input_partitions.times_of(ending, partitions), deadline)
            ending = input_partitions.bound_at_times(ending, offsets)
        earliest, latest = self.lookup.earliest_and_latest(partitions, deadline)
        # Ends are confirmed if tasks do not look them up, and if an offset of the user lies behind
        # a listed end, which would else be data loss.
        specific = [bound.offsets for bound in (starting, ending) if bound.kind == "specific"]
        if options.bind_offsets == "plan" or any(
            offsets.get(tp, -1) > end for offsets in specific for tp, end in latest.items()
        ):
            latest = self.lookup.confirmed_ends(latest, deadline)
        for name, topic_id in topic_ids.items():
            if self._cluster.was_recreated(name, topic_id):
                why = "the topic was deleted and recreated while its offsets were looked up"
                raise UnknownTopicError(ErrorCode.UNKNOWN_TOPIC_ID, f"Metadata of {name}", why)
        return _BatchBounds(partitions, starting, ending, earliest, latest)

    def task_ranges(
        self, ranges: list[KafkaInputPartition], topic_ids: Mapping[str, bytes | None]
    ) -> list[KafkaInputPartition]:
        """Split the ranges of a batch read or micro-batch as minPartitions and
        maxRecordsPerPartition say, and add topic ids and leaders."""
        split = input_partitions.split_ranges(
            ranges,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )
        return [self._with_leader(planned, topic_ids.get(planned.topic)) for planned in split]

    def _with_leader(
        self, planned: KafkaInputPartition, topic_id: bytes | None
    ) -> KafkaInputPartition:
        """Return the range with its topic's id, the leader's address and, for an open end, the
        leader's epoch."""
        known = self._cluster.known_leader(planned.tp)
        if known is None:
            return replace(planned, topic_id=topic_id)
        broker = self._cluster.brokers[known.leader]
        planned = replace(planned, topic_id=topic_id, leader=(broker.host, broker.port))
        return replace(planned, leader_epoch=known.leader_epoch) if planned.open_end else planned


def partitions_of(topics: Mapping[str, TopicMetadata]) -> list[TopicPartition]:
    """Return all partitions of the topics, sorted."""
    return [
        TopicPartition(name, partition)
        for name in sorted(topics)
        for partition in sorted(topics[name].partitions)
    ]
