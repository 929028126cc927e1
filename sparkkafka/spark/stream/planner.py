"""The driver's side of a stream: offsets of the next micro-batch, and its plan.

It lives in the one Python process that Spark keeps for a streaming query, and keeps one connection
to each broker that it needs. Spark's checkpoint has what must survive a restart. The state here
(topic ids, the partition served last under a cap, sizes of partitions) only improves later batches.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.log_ends import confirmed_ends
from sparkkafka.client.cluster.offsets import earliest_and_latest, list_offsets
from sparkkafka.client.cluster.topics import TopicMetadata
from sparkkafka.client.deadline import CloseSignal, Deadline
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import ReadOptions
from sparkkafka.errors import KafkaError, UnknownTopicError
from sparkkafka.protocol.constants import EARLIEST, LATEST
from sparkkafka.spark.metric_reports import OFFSETS, Report, ends_key
from sparkkafka.spark.read import offset_reader, planning
from sparkkafka.spark.stream.micro_batch import (
    Offsets,
    StreamPlan,
    last_served,
    offsets_within,
    partitions_to_check,
    plan_micro_batch,
    prorate,
    recreated_loss,
)

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

log = logging.getLogger(__name__)

_T = TypeVar("_T")

SIZES_MAX_AGE_S = 60.0
"""How long mean sizes of records are used for maxBytesPerTrigger and for the log."""
SIZES_LIMIT_MS = 2_000
"""How long a batch waits for sizes that it does not need."""
FEW_PARTITIONS = 64
"""Up to this many, one round of requests asks for the first offsets and the ends."""
FEW_OFFSETS = 64
"""Up to this many share a task, whatever the sizes of their records."""


class _Batch(NamedTuple):
    """A micro-batch that was planned, for the log."""

    offsets: int
    partitions: int
    size_bytes: float | None
    lag: int
    planned_s: float


class StreamOffsets:
    """Looks up offsets and plans micro-batches for one streaming query."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self.close_signal = CloseSignal()
        self.cluster = Cluster(options.client, close_signal=self.close_signal)
        self.latest: Offsets = {}
        self._confirmed: Offsets = {}  # ends from ListOffsets that Fetch has confirmed
        self._earliest: Offsets = {}  # listed with the ends, for the plan that follows
        self._stops = False  # Trigger.AvailableNow
        self._target: Offsets | None = None  # where it stops, once looked up
        self._offered: Offsets | None = None
        self._topic_ids: dict[str, bytes] = {}
        self._former_ids: set[bytes] = set()
        # Recreated topics, and the offsets of the old ones at which that was noticed. The next
        # batch reads nothing of them but ends at their first offsets, so that the checkpoint
        # forgets the old ones, come what may.
        self._recreated: dict[str, Offsets] = {}
        # Of a new query, and the partitions that its first batch only pins down; see `initial`.
        self._initial: Offsets | None = None
        self._pinned: set[TopicPartition] = set()
        self._nothing_offered = True
        self._gone: set[str] = set()
        self._after: TopicPartition | None = None
        self._last_trigger_s: float | None = None
        self.offset_bytes: dict[TopicPartition, float] = {}
        self._sizes_s: float | None = None
        self._next_sizes_s = 0.0
        self._planned: StreamPlan | None = None
        self._has_begun = self._is_first = False
        # Ranges of the plan whose start Spark's progress lacks: of a query's first batch, and of
        # new partitions.
        self._unreported: list[planning.KafkaInputPartition] = []
        self._batch: _Batch | None = None
        self.report = Report()  # of the next plan

    def close(self) -> None:
        self.finish_batch()
        self.cluster.close()

    # --- Spark's calls ----------------------------------------------------------------------------

    def initial(self) -> Offsets:
        """Where a new query starts. Raises OptionError, UnknownTopicError, …

        Spark's checkpoint has the end of the first batch but not its start, so Spark asks again if
        it repeats that batch after a crash. By then the end of the log, or a group's committed
        offset, may have moved. So a first batch reads nothing of partitions that start there: its
        end is their start. (Spark also asks twice within one run, and gets the same answer.)
        """
        if self._initial is not None:
            return self._initial

        def lookup(deadline: Deadline) -> Offsets:
            chosen = offset_reader.subscribed_partitions(self.cluster, self._options, deadline)
            self._remember_ids(chosen)
            start, self._pinned = offset_reader.start_offsets(
                self.cluster, self._options, chosen, deadline
            )
            return start

        self._initial = self._attempts("looking up the first offsets", lookup)
        return self._initial

    def next_end(self, start: Mapping[TopicPartition, int], *, limited: bool) -> Offsets:
        """Where the next micro-batch ends; `start` itself if there is to be none yet."""
        self.finish_batch()
        self._offered = self._attempts(
            "looking up the latest offsets",
            lambda deadline: self._next_end(start, limited, deadline),
        )
        if self._nothing_offered and start == self._initial:
            self._offered |= {tp: start[tp] for tp in self._pinned if tp in self._offered}
        self._nothing_offered = False
        return self._offered

    def stop_at_latest(self) -> None:
        """Trigger.AvailableNow: read nothing behind the present end of the log."""
        self._stops = True
        try:
            self._target = self._attempts(
                "looking up the latest offsets", lambda deadline: self._latest_offsets({}, deadline)
            )
        except UnknownTopicError as error:
            # Perhaps a topic of the checkpoint was deleted. The first lookup that knows the query's
            # offsets finds that out, and sets the target.
            log.info("%s", error)

    def plan(
        self, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
    ) -> list[InputPartition]:
        """The tasks of a micro-batch. Raises DataLossError (failOnDataLoss)."""
        self._is_first = not self._has_begun and start == self._initial
        if self._nothing_offered and start == self._initial:
            # A first batch, repeated after a crash. Newer partitions wait for the next batch.
            start = {
                tp: end[tp] if tp in self._pinned else at for tp, at in start.items() if tp in end
            }
        plan = self._attempts(
            "looking up the first offsets of a batch",
            lambda deadline: self._plan(start, end, deadline),
        )
        if plan.losses:
            self._report(plan.losses)
        for topic, partitions in plan.late_topics.items():
            log.warning(
                "topic %s is new to the query and its first records are gone: starting at the "
                "earliest offset of %s",
                topic,
                planning.listed(partitions),
            )
        options = self._options
        ranges = offset_reader.task_ranges(self.cluster, options, plan.ranges, self._topic_ids)
        if options.min_partitions is not None or options.max_records_per_partition is not None:
            tasks: list[InputPartition] = list(ranges)
        else:
            tasks = planning.grouped(
                ranges, self._sizes_of(plan.ranges), options.stream.max_ranges_per_task
            )
        self._planned = plan
        self._unreported = [
            partition for partition in plan.ranges if self._is_first or partition.tp not in start
        ]
        return tasks

    # --- ends -------------------------------------------------------------------------------------

    def _next_end(
        self, start: Mapping[TopicPartition, int], limited: bool, deadline: Deadline
    ) -> Offsets:
        latest = self._latest_offsets(start, deadline)
        self.latest = latest
        if self._stops and self._target is None:
            self._target = latest
        again = [tp for tp in latest if tp.topic in self._recreated and tp in start]
        if again:
            first = self._offsets_at(EARLIEST, again, deadline)
            end = {tp: first.get(tp, start[tp]) for tp in latest if tp in start}
            if end != start:
                return end
            self._recreated.clear()
        if self._target is not None:
            latest = self._until_target(start, latest, self._target)
        if not limited:
            return latest
        return self._admit(dict(start), latest, deadline)

    def _until_target(
        self, start: Mapping[TopicPartition, int], latest: Offsets, target: Offsets
    ) -> Offsets:
        """The end of the log as it was when Trigger.AvailableNow began, or what is left of it."""
        ends: Offsets = {}
        for tp, now in latest.items():
            if tp in target or tp in start:
                ends[tp] = min(now, max(target.get(tp, 0), start.get(tp, 0)))
        return ends

    def _latest_offsets(self, start: Mapping[TopicPartition, int], deadline: Deadline) -> Offsets:
        """Look up the end of each partition that exists, in order of partitions."""
        partitions = self._partitions(start, deadline)
        latest = self._ends(partitions, deadline)
        latest |= self._confirmed_ends(start, latest, deadline)
        self._notice_recreated(start, partitions)
        for _ in range(self._options.fetch_offset_num_retries - 1):
            # KAFKA-7703: a leader that was just elected may know less than the last one did.
            low = [tp for tp, at in latest.items() if at < start.get(tp, 0)]
            behind = [tp for tp in low if tp.topic not in self._recreated]
            if not behind:
                break
            deadline.pause(self._options.fetch_offset_retry_interval_ms)
            latest |= self._offsets_at(LATEST, behind, deadline)
            # A query that is read_committed since its restart may be beyond an open transaction.
            high = list_offsets(self.cluster, dict.fromkeys(behind, LATEST), deadline=deadline)
            for tp, high_watermark in high.items():
                latest[tp] = max(latest[tp], min(high_watermark.offset, start[tp]))
        return {tp: latest[tp] for tp in partitions}

    def _confirmed_ends(
        self, start: Mapping[TopicPartition, int], latest: Offsets, deadline: Deadline
    ) -> Offsets:
        """Ends by Fetch, where ListOffsets may end inside the last batch (see `log_ends`).

        A micro-batch with new records is planned without. Fetch is asked at the first lookup, when
        nothing is new, and when a log ends before the start; about each end once, unless brokers
        are known to answer so. The rest of a last batch is thus read with the next micro-batch at
        the latest.
        """
        chosen = latest
        if not self.cluster.lists_short_ends:
            has_new = any(at > start.get(tp, at) for tp, at in latest.items())
            is_behind = any(at < start.get(tp, at) for tp, at in latest.items())
            if self._confirmed and has_new and not is_behind:
                return {}
            chosen = {tp: at for tp, at in latest.items() if self._confirmed.get(tp) != at}
        ends = confirmed_ends(
            self.cluster,
            chosen,
            isolation_level=self._options.fetch.isolation_level,
            deadline=deadline,
        )
        self._confirmed |= chosen
        return ends

    def _admit(self, start: Offsets, latest: Offsets, deadline: Deadline) -> Offsets:
        """The end within the limits of the options; `start` if the batch is to wait."""
        limits = self._options.stream
        fresh = [tp for tp in latest if tp not in start]
        begin = {**start, **self._first_offsets(fresh, deadline)}
        backlog = {tp: max(0, offset - begin[tp]) for tp, offset in latest.items()}
        total = sum(backlog.values())
        if not total:
            return latest
        if self._waits(total):
            return start
        caps = [limits.max_offsets_per_trigger] if limits.max_offsets_per_trigger else []
        if limits.max_bytes_per_trigger:
            self._refresh_sizes(latest, backlog, deadline)
            cap_bytes = limits.max_bytes_per_trigger
            caps.append(offsets_within(backlog, self.offset_bytes, cap_bytes))
        if not caps or total <= min(caps):
            return latest
        if self._after is None:
            # A new process begins somewhere, not always with the same partitions.
            order = sorted(backlog)
            self._after = order[sum(begin[tp] for tp in order) % len(order)]
        shares = prorate(backlog, min(caps), self._after)
        self._after = last_served(shares, self._after)
        return {
            tp: begin[tp] + shares[tp] if tp in shares else offset for tp, offset in latest.items()
        }

    def _waits(self, total: int) -> bool:
        """minOffsetsPerTrigger and maxTriggerDelay; the first batch of a process never waits."""
        limits = self._options.stream
        if limits.min_offsets_per_trigger is None or self._target is not None:
            return False
        now_s, last_s = time.monotonic(), self._last_trigger_s
        if (
            last_s is not None
            and total < limits.min_offsets_per_trigger
            and (now_s - last_s) * 1000 < limits.max_trigger_delay_ms
        ):
            return True
        self._last_trigger_s = now_s
        return False

    # --- partitions, also those that come and go --------------------------------------------------

    def _partitions(
        self, start: Mapping[TopicPartition, int], deadline: Deadline
    ) -> list[TopicPartition]:
        """Those that exist now. A topic counts as deleted only after a second, longer lookup."""
        subscription = self._options.subscription
        known = {tp.topic for tp in start}
        for topic in known:
            self.cluster.expect(topic)
        seen = known | set(self._topic_ids)
        if subscription.strategy == "subscribePattern":
            pattern = planning.compile_pattern(subscription.pattern)
            topics = offset_reader.topics_of_pattern(self.cluster, pattern, deadline)
            hidden = {tp.topic for tp in start if pattern.search(tp.topic)} - set(topics)
            topics |= self._existing(hidden, seen, deadline)
            return offset_reader.partitions_of(topics)
        assigned = subscription.partitions
        names = set(subscription.topics) or {topic for topic, _ in assigned}
        if start and not self._options.fail_on_data_loss:
            # An earlier run may have dropped a deleted topic from its checkpoint, so it cannot be
            # distinguished from one that never existed.
            seen |= names
        topics = self._existing(names, seen, deadline)
        if subscription.strategy == "subscribe":
            return offset_reader.partitions_of(topics)
        existing = {name: topic.partitions for name, topic in topics.items()}
        gone = {key for key in assigned if key[0] not in topics or key in start}
        here = [key for key in assigned if key[1] in existing.get(key[0], ())]
        planning.check_assigned([key for key in assigned if key not in gone], existing)
        return [TopicPartition(*key) for key in here]

    def _existing(
        self, names: Collection[str], seen: Collection[str], deadline: Deadline
    ) -> dict[str, TopicMetadata]:
        """The metadata of those topics that exist. Raises UnknownTopicError for one never seen."""
        names_left = set(names) - self._gone
        topics: dict[str, TopicMetadata] = {}
        while names_left:
            try:
                topics = self.cluster.topics(sorted(names_left), deadline)
                break
            except UnknownTopicError as error:
                missing = set(error.topics)
                if not missing or not missing <= set(seen):
                    raise
                log.warning("topics %s do not exist any more", ", ".join(sorted(missing)))
                self._gone |= missing
                names_left -= missing
        for name in sorted(self._gone & set(names)):
            try:
                topics |= self.cluster.topics([name], deadline, grace_ms=0)
            except UnknownTopicError:
                continue
            log.warning("topic %s is there again", name)
            self._gone.discard(name)
        return topics

    def _remember_ids(self, partitions: Collection[TopicPartition]) -> None:
        for topic in {tp.topic for tp in partitions}:
            found = self.cluster.topic_id(topic)
            if found is not None and found not in self._former_ids:
                self._topic_ids[topic] = found

    def _notice_recreated(
        self, start: Mapping[TopicPartition, int], partitions: Collection[TopicPartition]
    ) -> None:
        """A topic whose id changed has other records at the same offsets."""
        for topic, noticed in list(self._recreated.items()):
            if {tp: at for tp, at in start.items() if tp.topic == topic} != noticed:
                del self._recreated[topic]
        for topic in sorted({tp.topic for tp in partitions}):
            found, before = self.cluster.topic_id(topic), self._topic_ids.get(topic)
            if found is None or before is None or found == before or found in self._former_ids:
                continue  # a former id comes from a broker that has not heard of the new topic
            self._former_ids.add(before)
            read = {tp: at for tp, at in start.items() if tp.topic == topic}
            if read:
                self._report([recreated_loss(topic)])
                self._recreated[topic] = read
        self._remember_ids(partitions)

    # --- plans ------------------------------------------------------------------------------------

    def _plan(
        self,
        start: Mapping[TopicPartition, int],
        end: Mapping[TopicPartition, int],
        deadline: Deadline,
    ) -> StreamPlan:
        moved = partitions_to_check(start, end)
        # A batch that this process did not propose comes from an earlier run and may be old.
        from_earlier_run = end != self._offered
        if from_earlier_run and moved:
            self.latest = self._latest_offsets(start, deadline)
            moved = [tp for tp in moved if tp in self.latest]
        try:
            earliest = self._first_offsets(moved, deadline)
        except UnknownTopicError:
            existing = set(self._partitions(start, deadline))
            moved = [tp for tp in moved if tp in existing]
            earliest = self._first_offsets(moved, deadline)
        self._earliest = {}  # the next plan looks them up again
        latest = {tp: self.latest[tp] for tp in moved} if from_earlier_run else {}
        return plan_micro_batch(start, end, earliest, latest, recreated=set(self._recreated))

    def _report(self, losses: list[planning.Loss]) -> None:
        fail = self._options.fail_on_data_loss
        planning.accept_losses(losses, self.report, fail=fail, streaming=True)

    def begin_batch(self, end: Mapping[TopicPartition, int]) -> None:
        """Called when Spark takes the last plan: report the micro-batch's counts to
        `sparkkafka.metrics`, and begin its log line."""
        plan, self._planned = self._planned, None
        self.finish_batch()
        if plan is not None:
            self._begin_line(plan, end)
        self._has_begun = True
        for partition in self._unreported:
            self.report.add(OFFSETS, partition.count, partition.topic, partition.partition)
        self._unreported = []
        report, self.report = self.report, Report()
        if report and self._options.metrics_address is not None:
            ends = [(*tp, at) for tp, at in end.items()]
            report.ends = ends_key(ends, is_first=self._is_first)
            report.send(self._options.metrics_address)

    # --- lookups ----------------------------------------------------------------------------------

    def _attempts(self, what: str, action: Callable[[Deadline], _T]) -> _T:
        return offset_reader.with_attempts(self.cluster, self._options, what, action, self.report)

    def _offsets_at(
        self, time_ms: int, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Offsets:
        times = dict.fromkeys(partitions, time_ms)
        return offset_reader.offsets_at(self.cluster, self._options, times, deadline)

    def _ends(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Offsets:
        self._earliest = {}
        if len(partitions) > FEW_PARTITIONS:
            return self._offsets_at(LATEST, partitions, deadline)
        self._earliest, latest = earliest_and_latest(
            self.cluster,
            partitions,
            isolation_level=self._options.fetch.isolation_level,
            deadline=deadline,
        )
        return latest

    def _first_offsets(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Offsets:
        known = self._earliest
        unknown = [tp for tp in partitions if tp not in known]
        fetched = self._offsets_at(EARLIEST, unknown, deadline)
        return {tp: known[tp] if tp in known else fetched[tp] for tp in partitions}

    def _sizes_of(
        self, ranges: Sequence[planning.KafkaInputPartition]
    ) -> Mapping[TopicPartition, float]:
        """Return the known mean sizes of offsets, by which large records share no task."""
        now_s = time.monotonic()
        if (
            len(ranges) > 1
            and sum(partition.count for partition in ranges) > FEW_OFFSETS
            and now_s >= self._next_sizes_s
        ):
            self._next_sizes_s = now_s + SIZES_MAX_AGE_S  # also if the lookup is not authorized
            self._try_sizes({partition.tp: partition.count for partition in ranges})
        return self.offset_bytes

    def _try_sizes(self, backlog: Mapping[TopicPartition, int]) -> bool:
        """Look up sizes that a batch does not need; return whether that succeeded."""
        try:
            # For all partitions, not only this batch's: later batches need the others.
            self._refresh_sizes(self.latest, backlog, Deadline(SIZES_LIMIT_MS))
        except KafkaError as error:
            log.debug("no sizes of partitions: %s", error)
            return False
        return True

    def _refresh_sizes(
        self, latest: Offsets, backlog: Mapping[TopicPartition, int], deadline: Deadline
    ) -> None:
        """Mean bytes of an offset by partition, from the sizes of the logs on disk."""
        unknown = any(size and tp not in self.offset_bytes for tp, size in backlog.items())
        old = self._sizes_s is None or time.monotonic() - self._sizes_s > SIZES_MAX_AGE_S
        if not (old or unknown):
            return
        from sparkkafka.client.admin.brokers import partition_sizes

        sizes = partition_sizes(self.cluster, latest, deadline=deadline)
        earliest = self._offsets_at(EARLIEST, sizes, deadline)
        self.offset_bytes = {
            tp: size_bytes / (latest[tp] - earliest[tp])
            for tp, size_bytes in sizes.items()
            if size_bytes and latest[tp] > earliest[tp]
        }
        self._sizes_s = time.monotonic()

    # --- the log ----------------------------------------------------------------------------------

    def _begin_line(self, plan: StreamPlan, end: Mapping[TopicPartition, int]) -> None:
        if not plan.ranges or not log.isEnabledFor(logging.INFO):
            return
        sizes = {partition.tp: partition.count for partition in plan.ranges}
        size_bytes = None
        if self._try_sizes(sizes) and all(tp in self.offset_bytes for tp in sizes):
            size_bytes = sum(size * self.offset_bytes[tp] for tp, size in sizes.items())
        lag = sum(max(0, at - end.get(tp, 0)) for tp, at in self.latest.items())
        self._batch = _Batch(sum(sizes.values()), len(sizes), size_bytes, lag, time.monotonic())

    def finish_batch(self) -> None:
        """Log the batch planned last. Spark's next call shows that it has finished."""
        batch, self._batch = self._batch, None
        if batch is None:
            return
        seconds = max(time.monotonic() - batch.planned_s, 1e-6)
        volume = ""
        if batch.size_bytes is not None:
            megabytes = batch.size_bytes / 1e6
            volume = f", about {megabytes:.3f} MB, {megabytes / seconds:.3f} MB/s"
        log.info(
            "batch of %d offsets in %d partitions%s, %.3f s; lag %d offsets",
            batch.offsets,
            batch.partitions,
            volume,
            seconds,
            batch.lag,
        )
