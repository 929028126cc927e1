"""What a read asks the cluster: which partitions there are, and the offsets that bounds mean."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TypeVar

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.metadata import TopicMetadata
from sparkkafka.client.cluster.offsets import EARLIEST, LATEST, list_offsets
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.offset_json import EARLIEST_OFFSET, LATEST_OFFSET, PartitionKey
from sparkkafka.config.options import ReadOptions
from sparkkafka.config.source import OffsetBound
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, KafkaTimeoutError, OptionError
from sparkkafka.spark.read import planning

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_ENDS = {EARLIEST: "begins", LATEST: "ends"}


def with_attempts(
    cluster: Cluster, options: ReadOptions, what: str, action: Callable[[Deadline], _T]
) -> _T:
    """`action` with a deadline of default.api.timeout.ms, up to fetchOffset.numRetries times.

    What a retry cannot mend is raised at once, and so is the failure of the first attempt if no
    broker was ever reached: the address is wrong, most likely.
    """
    attempts = options.fetch_offset_num_retries
    for attempt in range(1, attempts + 1):
        try:
            return action(Deadline(options.client.default_api_timeout_ms))
        except KafkaError as error:
            if not (error.retriable or isinstance(error, KafkaTimeoutError)):
                raise
            if attempt == attempts or not cluster.brokers:
                if attempt > 1:
                    error.add_note(f"{what} failed {attempts} times (fetchOffset.numRetries)")
                raise
            log.warning("%s: attempt %d of %d failed: %s", what, attempt, attempts, error)
            time.sleep(options.fetch_offset_retry_interval_ms / 1000)
    raise AssertionError  # numRetries is 1 at least


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
    """The topics in whose name the pattern is found. Raises BrokerError for one that it finds and
    whose metadata cannot be had."""
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
    for tp, row in listed.items():
        if row.offset < 0 and times[tp] in (EARLIEST, LATEST):
            raise BrokerError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"ListOffsets of {tp}",
                f"the broker says that its log {_ENDS[times[tp]]} at offset {row.offset}",
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
    """The start of a stream as plain offsets, and the partitions whose start may be another one
    when it is looked up again: the end of the log, or what a group has committed.

    Raises OptionError.
    """
    planning.check_named("startingOffsets", options.starting, chosen)
    bound = bound_start(cluster, options, chosen, deadline)
    words = {"earliest": EARLIEST_OFFSET, "latest": LATEST_OFFSET}
    given = {tp: words.get(bound.kind) or bound.offsets[tp] for tp in chosen}
    # The numbers that stand for earliest and latest are those that ListOffsets has for them.
    wanted = {tp: at for tp, at in given.items() if at in (EARLIEST, LATEST)}
    by_group = options.starting.kind == "committed"
    passing = {tp for tp, at in given.items() if by_group or at == LATEST}
    return {**given, **offsets_at(cluster, options, wanted, deadline)}, passing


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
