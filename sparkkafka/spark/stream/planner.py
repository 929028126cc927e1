"""The driver's side of a stream: the offsets of the next micro-batch, and its plan.

Spark keeps one Python process for a streaming query, in which the planner has one connection to
each broker that it needs. What must survive a restart is in Spark's checkpoint. The planner's state
(topic ids, the partition served last under a limit, sizes of partitions) only improves later
batches.

Offsets of a stream are those of its checkpoint: by partition, the next one to read. The rules are
those of the JVM connector (KafkaOffsetReaderAdmin.getOffsetRangesFromResolvedOffsets), with two
differences:

- `maxOffsetsPerTrigger` is a hard limit. (The JVM connector gives each partition at least one
  offset, so that its batches exceed the limit on topics with many partitions.)
- A topic that is new to the query may begin at any offset. Only a partition that was added to a
  topic of the query must begin at 0, or it counts as data loss.

Limits and ranges are pure functions, below the planner.
"""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.metadata import TopicMetadata
from sparkkafka.client.cluster.offsets import OffsetLookup
from sparkkafka.client.deadline import CloseSignal, Deadline
from sparkkafka.client.values import Offsets, TopicPartition
from sparkkafka.config.options import ReadOptions
from sparkkafka.errors import KafkaError, UnknownTopicError
from sparkkafka.protocol.constants import EARLIEST, LATEST
from sparkkafka.spark.metric_reports import Count, Report, ends_key
from sparkkafka.spark.read import data_loss, input_partitions
from sparkkafka.spark.read.data_loss import Loss
from sparkkafka.spark.read.input_partitions import (
    KafkaInputPartition,
    TaskPartition,
    partitions_text,
)
from sparkkafka.spark.read.offset_reader import OffsetReader, partitions_of

log = logging.getLogger(__name__)

_T = TypeVar("_T")

SIZES_MAX_AGE_S = 60.0
"""The time for which mean sizes of records are used (maxBytesPerTrigger, grouping, the log)."""
SIZES_LIMIT_MS = 2_000
"""The maximum time that a batch waits for sizes without which it can be planned."""
MAX_PARTITIONS_WITH_EARLIEST = 64
"""With at most this number of partitions, first offsets are looked up together with the ends."""


class StreamPlan(NamedTuple):
    """The ranges of a micro-batch, and its losses. `late_topics`: partitions of topics that are new
    to the query and whose first records are already deleted."""

    ranges: list[KafkaInputPartition]
    losses: list[Loss]
    late_topics: dict[str, list[TopicPartition]]


class StreamPlanner:
    """Looks up offsets and plans micro-batches for one streaming query."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self.close_signal = CloseSignal()
        self.cluster = Cluster(options.client, close_signal=self.close_signal)
        self._offset_reader = OffsetReader(self.cluster, options)
        self.latest: Offsets = {}  # the ends of the logs at the last lookup
        self._confirmed: Offsets = {}  # ends from ListOffsets that Fetch has confirmed
        self._earliest: Offsets = {}  # listed with the ends, for the plan that follows
        self._stops_at_target = False  # Trigger.AvailableNow
        self._target: Offsets | None = None  # where the query stops; None until looked up
        self._proposed: Offsets | None = None  # the last end that `next_end` returned
        self._topic_ids: dict[str, bytes] = {}
        self._former_ids: set[bytes] = set()  # former ids of topics that were recreated
        # Recreated topics, and the query's offsets in the old topic when that was noticed. The next
        # batch reads nothing of them, and ends at their first offsets: then the checkpoint no
        # longer has offsets of the old topic, even if the query fails later.
        self._recreated: dict[str, Offsets] = {}
        self._initial_offsets: Offsets | None = None  # where a new query starts
        # The query's first batch ends where these partitions start: see `initial_offsets`.
        self._unread_in_first_batch: set[TopicPartition] = set()
        self._has_proposed_end = False  # in this process
        self._deleted: set[str] = set()  # topics
        self._last_served: TopicPartition | None = None
        self._last_batch_at_s = -math.inf
        self.offset_bytes: dict[TopicPartition, float] = {}  # mean bytes on disk per offset
        self._sizes_refreshed_at_s = -math.inf  # when the last lookup of sizes succeeded
        self._grouping_sizes_due_at_s = 0.0  # when sizes for grouping are looked up again
        self._planned: StreamPlan | None = None  # until `begin_batch`
        self._has_begun_batch = False  # in this process
        self._plans_first_batch = False  # the planned batch is the query's first one
        # Ranges of the plan whose offsets `begin_batch` counts, since Spark's progress does not
        # have their start: those of a query's first batch and of new partitions.
        self._uncounted: list[KafkaInputPartition] = []
        self._log_batch: Callable[[], None] | None = None
        """Logs the batch that was planned last, once it has finished."""
        self.report = Report()  # the report of the next plan

    def close(self) -> None:
        """Log the last batch, and close the connections."""
        self.finish_batch()
        self.cluster.close()

    # --- Spark's calls ----------------------------------------------------------------------------

    def initial_offsets(self) -> Offsets:
        """Return the offsets at which a new query starts. Raises OptionError, UnknownTopicError, …

        Spark's checkpoint has the end of the first batch but not its start. If Spark repeats that
        batch after a crash, it calls this again, and the end of the log or a group's committed
        offset may have moved by then. So the first batch reads nothing of partitions that start
        there: it ends where they start. (Spark also calls this twice within one run, and gets the
        same offsets.)
        """
        if self._initial_offsets is not None:
            return self._initial_offsets

        def lookup(deadline: Deadline) -> Offsets:
            """Look up the partitions and the offsets at which the query starts."""
            chosen = self._offset_reader.subscribed_partitions(deadline)
            self._remember_topic_ids(chosen)
            start, self._unread_in_first_batch = self._offset_reader.start_offsets(chosen, deadline)
            return start

        self._initial_offsets = self._with_attempts("looking up the first offsets", lookup)
        return self._initial_offsets

    def next_end(self, start: Offsets, *, limited: bool) -> Offsets:
        """Return the offsets at which the next micro-batch ends; `start` if it waits for more
        records. `limited`: the limits of the options apply."""
        self.finish_batch()
        self._proposed = self._with_attempts(
            "looking up the latest offsets",
            lambda deadline: self._next_end(start, limited, deadline),
        )
        if not self._has_proposed_end and start == self._initial_offsets:
            self._proposed |= {
                tp: start[tp] for tp in self._unread_in_first_batch if tp in self._proposed
            }
        self._has_proposed_end = True
        return self._proposed

    def stop_at_latest(self) -> None:
        """End the query at the present ends of the logs (Trigger.AvailableNow)."""
        self._stops_at_target = True
        try:
            self._target = self._with_attempts(
                "looking up the latest offsets", lambda deadline: self._latest_offsets({}, deadline)
            )
        except UnknownTopicError as error:
            # A topic of the checkpoint may have been deleted. The first lookup that knows the
            # query's offsets finds out, and sets the target.
            log.info("%s", error)

    def plan(self, start: Offsets, end: Offsets) -> list[TaskPartition]:
        """Return the input partitions of a micro-batch, to be taken with `begin_batch`. Raises
        DataLossError (failOnDataLoss)."""
        is_query_start = start == self._initial_offsets
        self._plans_first_batch = is_query_start and not self._has_begun_batch
        if is_query_start and not self._has_proposed_end:
            start = self._start_of_repeated_batch(start, end)
        plan = self._with_attempts(
            "looking up the first offsets of a batch",
            lambda deadline: self._plan(start, end, deadline),
        )
        if plan.losses:
            self._apply_fail_on_data_loss(plan.losses)
        for topic, partitions in plan.late_topics.items():
            log.warning(
                "topic %s is new to the query and its first records are deleted: starting at the "
                "earliest offset of %s",
                topic,
                partitions_text(partitions),
            )
        options = self._options
        ranges = self._offset_reader.task_ranges(plan.ranges, self._topic_ids)
        if options.min_partitions is not None or options.max_records_per_partition is not None:
            tasks: list[TaskPartition] = list(ranges)  # the user has chosen the sizes of tasks
        else:
            tasks = input_partitions.group_small_ranges(
                ranges, self._sizes_for_grouping(plan.ranges), options.stream.max_ranges_per_task
            )
        self._planned = plan
        self._uncounted = [
            planned for planned in plan.ranges if self._plans_first_batch or planned.tp not in start
        ]
        return tasks

    def _start_of_repeated_batch(self, start: Offsets, end: Offsets) -> Offsets:
        """Return where the first batch starts when Spark repeats it, because the process that
        proposed its end has crashed. `start` is what this process has looked up.

        In that process, partitions of which the batch reads nothing started where it ends.
        Partitions that are not in `end` are newer: they wait for the next batch.
        """
        return {
            tp: end[tp] if tp in self._unread_in_first_batch else offset
            for tp, offset in start.items()
            if tp in end
        }

    # --- ends -------------------------------------------------------------------------------------

    def _next_end(self, start: Offsets, limited: bool, deadline: Deadline) -> Offsets:
        """Look up the ends of the logs, and return the end of the next micro-batch."""
        latest = self._latest_offsets(start, deadline)
        self.latest = latest
        if self._stops_at_target and self._target is None:
            self._target = latest
        recreated = [tp for tp in latest if tp.topic in self._recreated and tp in start]
        if recreated:
            # An empty batch moves the checkpoint to the first offsets of the new topics.
            first = self._offsets_at(EARLIEST, recreated, deadline)
            end = {tp: first.get(tp, start[tp]) for tp in latest if tp in start}
            if end != start:
                return end
            self._recreated.clear()
        if self._target is not None:
            # Read nothing after the ends of Trigger.AvailableNow, nor go back if the query has read
            # further. Partitions that are newer than these ends are left out.
            latest = {
                tp: min(offset, max(self._target.get(tp, 0), start.get(tp, 0)))
                for tp, offset in latest.items()
                if tp in self._target or tp in start
            }
        if not limited:
            return latest
        return self._end_within_limits(dict(start), latest, deadline)

    def _latest_offsets(self, start: Offsets, deadline: Deadline) -> Offsets:
        """Return the end of each subscribed partition that exists, sorted by partition. Reports
        topics that were recreated, as a data loss (failOnDataLoss)."""
        partitions = self._subscribed_partitions(start, deadline)
        latest = self._log_ends(partitions, deadline)
        latest |= self._confirmed_ends(start, latest, deadline)
        self._notice_recreated(start, partitions)
        for _ in range(self._options.fetch_offset_num_retries - 1):
            # KAFKA-7703: a newly elected leader may report an earlier end than the last one did.
            behind = [
                tp
                for tp, offset in latest.items()
                if offset < start.get(tp, 0) and tp.topic not in self._recreated
            ]
            if not behind:
                break
            deadline.pause(self._options.fetch_offset_retry_interval_ms)
            latest |= self._offsets_at(LATEST, behind, deadline)
            # A query that was restarted as read_committed may have read beyond the last stable
            # offset. It is not behind if its start is within the high watermark.
            high_watermarks = OffsetLookup(self.cluster).offsets(
                dict.fromkeys(behind, LATEST), deadline
            )
            for tp, high_watermark in high_watermarks.items():
                latest[tp] = max(latest[tp], min(high_watermark, start[tp]))
        return {tp: latest[tp] for tp in partitions}

    def _confirmed_ends(self, start: Offsets, latest: Offsets, deadline: Deadline) -> Offsets:
        """Return the ends that Fetch confirms, where those of ListOffsets may lie inside the last
        record batch (see `OffsetLookup.confirmed_ends`).

        Ends are confirmed at the first lookup, if there are no new records, and if a log ends
        before the start; each end once, unless brokers are known to list ends inside of batches. A
        micro-batch with new records is planned without a confirmation: the rest of its last record
        batch is read with the next micro-batch at the latest.
        """
        chosen = latest
        if not self.cluster.lists_short_ends:
            has_new = any(end > start.get(tp, end) for tp, end in latest.items())
            is_behind = any(end < start.get(tp, end) for tp, end in latest.items())
            if self._confirmed and has_new and not is_behind:
                return {}
            chosen = {tp: end for tp, end in latest.items() if self._confirmed.get(tp) != end}
        ends = self._offset_reader.lookup.confirmed_ends(chosen, deadline)
        self._confirmed |= chosen
        return ends

    def _end_within_limits(self, start: Offsets, latest: Offsets, deadline: Deadline) -> Offsets:
        """Return the end of a batch within the limits of the options, at most `latest`; `start` if
        the batch waits for more records."""
        limits = self._options.stream
        new = [tp for tp in latest if tp not in start]
        begin = {**start, **self._first_offsets(new, deadline)}
        backlog = {tp: max(0, offset - begin[tp]) for tp, offset in latest.items()}
        total = sum(backlog.values())
        if not total:
            return latest
        if self._waits_for_more(total):
            return start
        self._last_batch_at_s = time.monotonic()
        max_offsets = limits.max_offsets_per_trigger or total
        if limits.max_bytes_per_trigger:
            self._refresh_sizes(latest, backlog, deadline)
            fitting = offsets_within(backlog, self.offset_bytes, limits.max_bytes_per_trigger)
            max_offsets = min(max_offsets, fitting)
        if total <= max_offsets:
            return latest
        if self._last_served is None:
            # Each process begins with another partition, so that frequent restarts starve none.
            order = sorted(backlog)
            self._last_served = order[sum(begin[tp] for tp in order) % len(order)]
        shares = prorate(backlog, max_offsets, self._last_served)
        self._last_served = last_served(shares, self._last_served)
        return {
            tp: begin[tp] + shares[tp] if tp in shares else offset for tp, offset in latest.items()
        }

    def _waits_for_more(self, total: int) -> bool:
        """Return whether a batch of `total` offsets waits for more (minOffsetsPerTrigger,
        maxTriggerDelay). The first batch of a process never waits, nor does a query with a target
        (Trigger.AvailableNow): there will be no more."""
        limits = self._options.stream
        elapsed_ms = (time.monotonic() - self._last_batch_at_s) * 1000
        return (
            total < (limits.min_offsets_per_trigger or 0)
            and elapsed_ms < limits.max_trigger_delay_ms
            and self._target is None
        )

    # --- partitions, also added and deleted ones --------------------------------------------------

    def _subscribed_partitions(self, start: Offsets, deadline: Deadline) -> list[TopicPartition]:
        """Return the subscribed partitions that exist. A topic counts as deleted only after a
        second lookup, which gives brokers time to learn of the topic."""
        subscription = self._options.subscription
        known = {tp.topic for tp in start}
        for topic in known:
            self.cluster.assume_exists(topic)
        may_be_deleted = known | self._topic_ids.keys()
        if subscription.strategy == "subscribePattern":
            pattern = input_partitions.compile_pattern(subscription.pattern)
            topics = self._offset_reader.topics_of_pattern(deadline)
            not_listed = {tp.topic for tp in start if pattern.search(tp.topic)} - set(topics)
            topics |= self._existing_topics(not_listed, may_be_deleted, deadline)
            return partitions_of(topics)
        assigned = subscription.partitions
        names = set(subscription.topics) or {topic for topic, _ in assigned}
        if start and not self._options.fail_on_data_loss:
            # An earlier run may have dropped a deleted topic from its checkpoint. Then it cannot be
            # distinguished from a topic that never existed.
            may_be_deleted |= names
        topics = self._existing_topics(names, may_be_deleted, deadline)
        if subscription.strategy == "subscribe":
            return partitions_of(topics)
        existing = {name: topic.partitions for name, topic in topics.items()}
        must_exist = [tp for tp in assigned if tp.topic in topics and tp not in start]
        input_partitions.check_assigned(must_exist, existing)
        return [tp for tp in assigned if tp.partition in existing.get(tp.topic, ())]

    def _existing_topics(
        self, names: Collection[str], may_be_deleted: Collection[str], deadline: Deadline
    ) -> dict[str, TopicMetadata]:
        """Return the metadata of those topics of `names` that exist. Raises UnknownTopicError for a
        missing topic that is not in `may_be_deleted`: since the query has never read such a topic,
        its name is wrong."""
        pending = set(names) - self._deleted
        topics: dict[str, TopicMetadata] = {}
        while pending:
            try:
                topics = self.cluster.topics(sorted(pending), deadline)
                break
            except UnknownTopicError as error:
                missing = set(error.topics)
                if not missing or not missing <= set(may_be_deleted):
                    raise
                log.warning("topics %s no longer exist", ", ".join(sorted(missing)))
                self._deleted |= missing
                pending -= missing
        for name in sorted(self._deleted & set(names)):
            try:
                topics |= self.cluster.topics([name], deadline, grace_ms=0)
            except UnknownTopicError:
                continue
            log.warning("topic %s exists again", name)
            self._deleted.discard(name)
        return topics

    def _remember_topic_ids(self, partitions: Collection[TopicPartition]) -> None:
        """Remember the present ids of these topics, by which a recreated topic is noticed."""
        for topic in {tp.topic for tp in partitions}:
            topic_id = self.cluster.topic_id(topic)
            if topic_id is not None and topic_id not in self._former_ids:
                self._topic_ids[topic] = topic_id

    def _notice_recreated(self, start: Offsets, partitions: Collection[TopicPartition]) -> None:
        """Report topics that were recreated as a data loss, and remember them: they have a new id,
        and other records at the same offsets."""
        for topic, old_offsets in list(self._recreated.items()):
            if {tp: offset for tp, offset in start.items() if tp.topic == topic} != old_offsets:
                del self._recreated[topic]
        for topic in sorted({tp.topic for tp in partitions}):
            topic_id, known_id = self.cluster.topic_id(topic), self._topic_ids.get(topic)
            if (
                topic_id is None
                or known_id is None
                or topic_id == known_id
                or topic_id in self._former_ids
            ):
                continue  # a former id comes from a broker that does not know the new topic yet
            self._former_ids.add(known_id)
            offsets = {tp: offset for tp, offset in start.items() if tp.topic == topic}
            if offsets:
                self._apply_fail_on_data_loss([recreated_loss(topic)])
                self._recreated[topic] = offsets
        self._remember_topic_ids(partitions)

    # --- plans ------------------------------------------------------------------------------------

    def _plan(self, start: Offsets, end: Offsets, deadline: Deadline) -> StreamPlan:
        """Look up the offsets that the plan of a micro-batch needs, and return the plan."""
        to_read = partitions_to_check(start, end)
        # An end that this process did not propose comes from an earlier run, and may be old.
        from_earlier_run = end != self._proposed
        if from_earlier_run and to_read:
            self.latest = self._latest_offsets(start, deadline)
            to_read = [tp for tp in to_read if tp in self.latest]
        try:
            earliest = self._first_offsets(to_read, deadline)
        except UnknownTopicError:  # a topic was deleted: a loss in the plan
            existing = set(self._subscribed_partitions(start, deadline))
            to_read = [tp for tp in to_read if tp in existing]
            earliest = self._first_offsets(to_read, deadline)
        self._earliest = {}  # the next plan lists them again
        latest = {tp: self.latest[tp] for tp in to_read} if from_earlier_run else {}
        return plan_micro_batch(start, end, earliest, latest, recreated=set(self._recreated))

    def _apply_fail_on_data_loss(self, losses: list[Loss]) -> None:
        """Raise DataLossError (failOnDataLoss=true), or log the losses and count them."""
        fail = self._options.fail_on_data_loss
        data_loss.apply_fail_on_data_loss(losses, self.report, fail=fail, streaming=True)

    def begin_batch(self, end: Offsets) -> None:
        """Report the counts of the planned micro-batch to `sparkkafka.metrics`, and begin its log
        line. To be called when Spark takes the plan."""
        plan, self._planned = self._planned, None
        self.finish_batch()
        if plan is not None:
            self._begin_log_line(plan, end)
        self._has_begun_batch = True
        for planned in self._uncounted:  # Spark's progress does not have their start
            self.report.add(Count.OFFSETS, planned.count, planned.topic, planned.partition)
        self._uncounted = []
        report, self.report = self.report, Report()
        if report and self._options.metrics_address is not None:
            ends = [(*tp, offset) for tp, offset in end.items()]
            report.ends = ends_key(ends, is_first=self._plans_first_batch)
            report.send(self._options.metrics_address)

    # --- lookups ----------------------------------------------------------------------------------

    def _with_attempts(self, what: str, action: Callable[[Deadline], _T]) -> _T:
        """Run `action` with the retries of `OffsetReader.with_attempts`."""
        return self._offset_reader.with_attempts(what, action, self.report)

    def _offsets_at(
        self, time_ms: int, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Offsets:
        """Return the first offset with this time (ms), or a later one, in each partition."""
        return self._offset_reader.lookup.offsets(dict.fromkeys(partitions, time_ms), deadline)

    def _log_ends(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Offsets:
        """Return the ends of the logs; of few partitions, look up the first offsets as well."""
        self._earliest = {}
        if len(partitions) > MAX_PARTITIONS_WITH_EARLIEST:
            return self._offsets_at(LATEST, partitions, deadline)
        self._earliest, latest = self._offset_reader.lookup.earliest_and_latest(
            partitions, deadline
        )
        return latest

    def _first_offsets(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Offsets:
        """Return the first offsets, looked up unless that was done together with the ends."""
        unknown = [tp for tp in partitions if tp not in self._earliest]
        first = {**self._earliest, **self._offsets_at(EARLIEST, unknown, deadline)}
        return {tp: first[tp] for tp in partitions}

    def _sizes_for_grouping(
        self, ranges: Sequence[KafkaInputPartition]
    ) -> Mapping[TopicPartition, float]:
        """Return the known mean sizes of offsets, by which ranges are grouped into tasks."""
        now_s = time.monotonic()
        if (
            len(ranges) > 1
            and sum(planned.count for planned in ranges) > 64  # so few share a task anyway
            and now_s >= self._grouping_sizes_due_at_s
        ):
            # Even if the lookup is not authorized.
            self._grouping_sizes_due_at_s = now_s + SIZES_MAX_AGE_S
            self._refresh_sizes_if_allowed({planned.tp: planned.count for planned in ranges})
        return self.offset_bytes

    def _refresh_sizes_if_allowed(self, backlog: Offsets) -> bool:
        """Try `_refresh_sizes` for at most SIZES_LIMIT_MS, where planning can do without the sizes;
        return whether that succeeded."""
        try:
            # The sizes of all partitions, not only this batch's: later batches need the others.
            self._refresh_sizes(self.latest, backlog, Deadline(SIZES_LIMIT_MS))
        except KafkaError as error:
            log.debug("sizes of partitions are unknown: %s", error)
            return False
        return True

    def _refresh_sizes(self, latest: Offsets, backlog: Offsets, deadline: Deadline) -> None:
        """Set the mean bytes per offset of each partition (`offset_bytes`) from the sizes of the
        logs on disk, if the size of a partition in `backlog` is old or unknown. `latest`: the ends
        of the logs."""
        is_old = time.monotonic() - self._sizes_refreshed_at_s > SIZES_MAX_AGE_S
        if not is_old and all(tp in self.offset_bytes for tp, count in backlog.items() if count):
            return
        from sparkkafka.client.admin.brokers import partition_sizes

        sizes = partition_sizes(self.cluster, latest, deadline=deadline)
        earliest = self._offsets_at(EARLIEST, sizes, deadline)
        self.offset_bytes = {
            tp: size_bytes / (latest[tp] - earliest[tp])
            for tp, size_bytes in sizes.items()
            if size_bytes and latest[tp] > earliest[tp]
        }
        self._sizes_refreshed_at_s = time.monotonic()

    # --- the log ----------------------------------------------------------------------------------

    def _begin_log_line(self, plan: StreamPlan, end: Offsets) -> None:
        """Note what `finish_batch` will log about this plan."""
        if not plan.ranges or not log.isEnabledFor(logging.INFO):
            return
        sizes = {planned.tp: planned.count for planned in plan.ranges}
        size_bytes = None
        if self._refresh_sizes_if_allowed(sizes) and all(tp in self.offset_bytes for tp in sizes):
            size_bytes = sum(size * self.offset_bytes[tp] for tp, size in sizes.items())
        lag = sum(max(0, offset - end.get(tp, 0)) for tp, offset in self.latest.items())
        planned_at_s = time.monotonic()

        def log_batch() -> None:
            """Log the size and the speed of the batch."""
            seconds = max(time.monotonic() - planned_at_s, 1e-6)
            volume = ""
            if size_bytes is not None:
                megabytes = size_bytes / 1e6
                volume = f", about {megabytes:.3f} MB, {megabytes / seconds:.3f} MB/s"
            log.info(
                "batch of %d offsets in %d partitions%s, %.3f s; lag %d offsets",
                *(sum(sizes.values()), len(sizes), volume, seconds, lag),
            )

        self._log_batch = log_batch

    def finish_batch(self) -> None:
        """Log the batch that was planned last. To be called when Spark's next call shows that it
        has finished."""
        log_batch, self._log_batch = self._log_batch, None
        if log_batch is not None:
            log_batch()


# --- limits -------------------------------------------------------------------------------------


def prorate(backlog: Offsets, max_offsets: int, after: TopicPartition | None = None) -> Offsets:
    """Return how many offsets to read of each partition's backlog, at most `max_offsets` in all.

    Every partition with a backlog gets one offset; the rest is distributed in proportion to the
    backlogs. With more partitions than `max_offsets`, those that follow `after` in sorted order get
    one each. A caller that passes the partition served last (`last_served`) starves none.
    """
    sizes = {tp: size for tp, size in sorted(backlog.items()) if size > 0}
    total = sum(sizes.values())
    if total <= max_offsets:
        return sizes
    if len(sizes) >= max_offsets:
        order = list(sizes)
        first = bisect_right(order, after) if after is not None else 0
        served = set((order[first:] + order[:first])[:max_offsets])
        return {tp: int(tp in served) for tp in order}
    # Largest remainders: shares add up to max_offsets exactly, and none exceeds its backlog.
    to_share, remaining = max_offsets - len(sizes), total - len(sizes)
    shares = {tp: 1 + to_share * (size - 1) // remaining for tp, size in sizes.items()}
    missing = max_offsets - sum(shares.values())
    by_remainder = sorted(sizes, key=lambda tp: -(to_share * (sizes[tp] - 1) % remaining))
    for tp in by_remainder[:missing]:
        shares[tp] += 1
    return shares


def last_served(shares: Offsets, after: TopicPartition | None) -> TopicPartition | None:
    """Return the partition served last, to be passed to `prorate` next time. Partitions are served
    in sorted order from the one that follows `after`, then from the first one."""
    served = sorted(tp for tp, share in shares.items() if share)
    before = [tp for tp in served if after is not None and tp <= after]
    return (before or served)[-1] if served else after


def offsets_within(
    backlog: Offsets, offset_bytes: Mapping[TopicPartition, float], max_bytes: int
) -> int:
    """Return how many offsets of the backlog, shared as `prorate` does, hold about `max_bytes`; at
    least one.

    `offset_bytes` is the mean size of an offset by partition. A partition without one counts with
    the mean of the others; if none has one, all offsets are returned.
    """
    counts = {tp: count for tp, count in backlog.items() if count > 0}
    known = [tp for tp in counts if tp in offset_bytes]
    total = sum(counts.values())
    known_offsets = sum(counts[tp] for tp in known)
    if not known_offsets:
        return max(total, 1)
    mean_bytes = sum(counts[tp] * offset_bytes[tp] for tp in known) / known_offsets
    if total * mean_bytes <= max_bytes:
        return max(total, 1)
    return max(1, int(max_bytes / mean_bytes))


# --- ranges -------------------------------------------------------------------------------------


def partitions_to_check(start: Offsets, end: Offsets) -> list[TopicPartition]:
    """Return the partitions whose first offset the plan needs: those with offsets to read, and
    those that are new to the query."""
    return [tp for tp, offset in end.items() if start.get(tp) != offset]


def plan_micro_batch(
    start: Offsets,
    end: Offsets,
    earliest: Offsets,
    latest: Offsets,
    *,
    recreated: Collection[str] = (),
) -> StreamPlan:
    """Return the plan of a micro-batch: the ranges that are not empty, sorted, and the losses.

    `earliest` has the first offset of each of `partitions_to_check` that exists. `latest` has their
    ends, if `end` was not just looked up (Spark plans a batch again after a restart); else it is
    empty. Topics of `recreated` have been reported already; the query continues with them at their
    `end`.
    """
    ranges: list[KafkaInputPartition] = []
    losses: list[Loss] = []
    late_topics: dict[str, list[TopicPartition]] = {}
    known_topics = {tp.topic for tp in start}
    removed = sorted(tp for tp in start if tp not in end)
    if removed:
        names = partitions_text(removed)
        text = f"Partitions {names} have been deleted (or are no longer subscribed to)"
        losses.append(Loss("KAFKA_DATA_LOSS.PARTITIONS_DELETED", text, 0))
    for tp in sorted(partitions_to_check(start, end)):
        stop, log_start = end[tp], earliest.get(tp)
        if tp.topic in recreated:
            continue
        is_known = tp in start
        if log_start is None:
            losses.append(_deleted_loss(tp, start.get(tp), stop))
            continue
        begin = start[tp] if is_known else log_start
        if stop < begin:
            losses.append(_end_before_start_loss(tp, begin, log_start, stop))
            continue
        if not is_known and tp.topic in known_topics and log_start > 0:
            losses.append(
                Loss(
                    "KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
                    f"Added partition {tp} starts from {log_start} instead of 0",
                    log_start,
                    tp,
                )
            )
        elif not is_known and log_start > 0:
            late_topics.setdefault(tp.topic, []).append(tp)
        log_end = max(log_start, latest.get(tp, stop))
        kept_start, kept_end = max(begin, log_start), min(stop, log_end)
        missing = (stop - begin) - max(0, kept_end - kept_start)
        if missing:
            available = (
                f"available are [{log_start}, {log_end})"
                if tp in latest
                else f"first is {log_start}"
            )
            losses.append(_missing_loss(tp, begin, stop, available, missing))
        if kept_start < kept_end:
            ranges.append(KafkaInputPartition(tp.topic, tp.partition, kept_start, kept_end))
    return StreamPlan(ranges, losses, late_topics)


def _deleted_loss(tp: TopicPartition, start: int | None, end: int) -> Loss:
    """Return the loss of a deleted partition; `start` is None for one that is new to the query."""
    if start is None:
        return Loss(
            "KAFKA_DATA_LOSS.INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS",
            f"Cannot find initial offsets for partitions {tp}. They may have been deleted",
            end,
            tp,
        )
    return _missing_loss(tp, start, end, "the partition is gone", max(0, end - start))


def _missing_loss(tp: TopicPartition, start: int, end: int, reason: str, missing: int) -> Loss:
    """Return the loss of `missing` offsets in a range."""
    return Loss(
        "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE",
        f"Could not read records in offset [{start}, {end}) for topic partition {tp}: {reason}",
        missing,
        tp,
    )


def _end_before_start_loss(tp: TopicPartition, start: int, first: int, end: int) -> Loss:
    """Return the loss of a partition whose log, from `first` to `end`, ends before `start`."""
    return Loss(
        "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED",
        f"Partition {tp} offset was changed from {start} to {end}: the start offset was set beyond "
        "the end of the log, or the topic was deleted and recreated. With failOnDataLoss=false the "
        f"query continues at {end} and leaves out [{first}, {end}): a new checkpoint, or "
        "sparkkafka checkpoint reset, reads it",
        0,
    )


def recreated_loss(topic: str) -> Loss:
    """Return the loss of a topic that was recreated; how many records are lost is unknown."""
    return Loss(
        "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED",
        f"Topic {topic} was deleted and recreated while the query was running (its id changed)",
        0,
    )
