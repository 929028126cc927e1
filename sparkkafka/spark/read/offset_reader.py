"""Look up on the driver what a read names: the partitions of its subscription, and the offsets of
startingOffsets and endingOffsets. Batch reads and streams (`stream.planner`) both use it.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TypeVar

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.metadata import TopicMetadata
from sparkkafka.client.cluster.offsets import confirmed_ends, earliest_and_latest, list_offsets
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import ReadOptions
from sparkkafka.config.source import EARLIEST_OFFSET, LATEST_OFFSET, OffsetBound, PartitionKey
from sparkkafka.errors import (
    BrokerError,
    KafkaError,
    OptionError,
    UnknownTopicError,
)
from sparkkafka.protocol.constants import EARLIEST, LATEST
from sparkkafka.spark.metric_reports import RETRIES, Report
from sparkkafka.spark.read import planning
from sparkkafka.spark.read.planning import KafkaInputPartition

log = logging.getLogger(__name__)

_T = TypeVar("_T")


def with_attempts(
    cluster: Cluster,
    options: ReadOptions,
    what: str,
    action: Callable[[Deadline], _T],
    report: Report | None = None,
) -> _T:
    """Run `action` under default.api.timeout.ms, up to fetchOffset.numRetries times. Retries are
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
            if not (error.retriable or _is_deleted_since(error)):
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


# --- partitions ------------------------------------------------------------------------------


def subscribed_partitions(
    cluster: Cluster, options: ReadOptions, deadline: Deadline | None = None
) -> list[TopicPartition]:
    """Return all partitions of the subscription, sorted.

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
    """Return the topics whose names match. Raises BrokerError if one has no metadata."""
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
    """Return the offsets at EARLIEST, LATEST or times in ms, under the read's isolation level."""
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
    """Return the start of a read; look up times and committed offsets. Raises OptionError."""
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
    """Return the end of a batch read; look up times."""
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
    """Return the start of a stream as plain offsets, and the partitions where a second lookup may
    return another start: the end of the log, or what a group has committed.

    Raises OptionError.
    """
    planning.check_named("startingOffsets", options.starting, chosen)
    bound = bound_start(cluster, options, chosen, deadline)
    named = {"earliest": EARLIEST_OFFSET, "latest": LATEST_OFFSET}
    starts = {tp: named.get(bound.kind) or bound.offsets[tp] for tp in chosen}
    is_committed = options.starting.kind == "committed"
    changing = {tp for tp, start in starts.items() if is_committed or start == LATEST}
    # ListOffsets uses the same numbers for earliest and latest as the option's JSON.
    times = {tp: start for tp, start in starts.items() if start in (EARLIEST, LATEST)}
    listed = offsets_at(cluster, options, times, deadline)
    latest = confirmed_ends(
        cluster,
        {tp: listed[tp] for tp, time_ms in times.items() if time_ms == LATEST},
        isolation_level=options.fetch.isolation_level,
        deadline=deadline,
    )
    return {**starts, **listed, **latest}, changing


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
    offsets |= {(tp.topic, tp.partition): offset for tp, offset in found.items()}
    return replace(bound, kind="specific", offsets=offsets, fallback="")


# --- a whole batch read ---------------------------------------------------------------------------


def bound_ranges(
    cluster: Cluster, options: ReadOptions, deadline: Deadline
) -> tuple[list[KafkaInputPartition], list[planning.Loss], dict[str, bytes | None]]:
    """Return the ranges of a batch read, what of them is lost, and the topics' ids."""
    chosen = subscribed_partitions(cluster, options, deadline)
    planning.check_named("startingOffsets", options.starting, chosen)
    planning.check_named("endingOffsets", options.ending, chosen)
    # Before the ends of the logs are looked up: logs grow, so no start is behind its end.
    starting = bound_start(cluster, options, chosen, deadline)
    ending = bound_end(cluster, options, chosen, deadline)
    earliest, latest = earliest_and_latest(
        cluster, chosen, isolation_level=options.fetch.isolation_level, deadline=deadline
    )
    specific = [bound.offsets for bound in (starting, ending) if bound.kind == "specific"]
    if options.bind_offsets == "plan" or any(
        offsets.get(tp, -1) > end for offsets in specific for tp, end in latest.items()
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


def task_ranges(
    cluster: Cluster,
    options: ReadOptions,
    ranges: list[KafkaInputPartition],
    topic_ids: Mapping[str, bytes | None],
) -> list[KafkaInputPartition]:
    """Split the ranges of a batch read or micro-batch for tasks, and add topic ids and leaders."""
    parts = planning.split_ranges(
        ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition
    )
    return [_with_leader(cluster, part, topic_ids.get(part.topic)) for part in parts]


def _with_leader(
    cluster: Cluster, part: KafkaInputPartition, topic_id: bytes | None
) -> KafkaInputPartition:
    found = replace(part, topic_id=topic_id, leader=cluster.leader_address(part.tp))
    leader = cluster.known_leader(part.tp) if part.open_end else None
    return found if leader is None else replace(found, leader_epoch=leader.leader_epoch)
