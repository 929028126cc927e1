"""Move a query: change the offsets from which its next start reads.

Spark begins batch N+1 at the end of the plan of the finished batch N. So a reset rewrites offsets/N
with other offsets, and leaves commits/N: the next start plans N+1 from there. It does not add a
finished batch N+1 that never ran: Spark's file sinks would miss that batch in their own log and
could no longer be read, and stateful queries would look for state that was never written (both
tried with Spark 4.3).

If the last batch is planned and not finished, only the sink knows which of its rows it has. So the
caller must say whether the batch counts as "done" or is dropped ("drop").

The order of the writes is such that a crash between any two leaves a checkpoint that starts.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median_high
from typing import Final, Literal

from sparkkafka import errors
from sparkkafka.checkpoints import against_kafka, comparison, logs
from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.cluster.offsets import OffsetSpec
from sparkkafka.client.values import TopicPartition, some_partitions
from sparkkafka.config.source import EARLIEST_OFFSET, LATEST_OFFSET, OffsetBound
from sparkkafka.protocol.constants import NO_OFFSET

KEPT: Final = OffsetBound("specific", {})
"""A target that changes no offset, for a checkpoint that only needs repair."""

Unfinished = Literal["done", "drop"]

_NOT_KNOWN_IF_DECIDED = "it is not known whether an exactly-once sink has decided a batch"


@dataclass(frozen=True)
class ResetPlan:
    """A reset that can be inspected, and executed with `apply`. Nothing is changed before that.

    Batch `next_batch` is the first that reads from the new offsets. `obstacles` say why `apply`
    refuses; `notes` are information.
    """

    checkpoint: logs.Checkpoint
    source: str
    batch_id: int
    changes: tuple[comparison.PartitionChange, ...]
    obstacles: tuple[str, ...]
    notes: tuple[str, ...]
    writes: Mapping[str, bytes] = field(repr=False)
    """New contents by file name, in the order in which they are written."""
    removals: tuple[str, ...] = ()
    """Files that are removed before anything is written."""

    @property
    def next_batch(self) -> int:
        return self.batch_id + 1

    def apply(self) -> str:
        """Back up the logs, then change them; return where the backup is.

        Raises CheckpointError, without a change, if there are obstacles or if the checkpoint has
        changed since the reset was planned. Raises it as well if a file cannot be written: the
        message then says which part of the reset is done.
        """
        where = self.checkpoint.location
        if self.obstacles:
            raise errors.CheckpointError(f"{where} was not reset: {'; '.join(self.obstacles)}")
        with self.checkpoint.storage.locked():
            return self._apply(where)

    def _apply(self, where: str) -> str:
        """Apply the reset under the checkpoint's lock. `where` is the checkpoint's location."""
        current = self.checkpoint.reload()
        if (current.offset_files, current.commit_files) != (
            self.checkpoint.offset_files,
            self.checkpoint.commit_files,
        ):
            raise errors.CheckpointError(
                f"{where} was not reset: its files have changed since the reset was planned. Is "
                "the query running?"
            )
        backup = logs.back_up(current)
        storage = current.storage
        done: list[str] = []
        try:
            for name in self.removals:
                storage.remove(name)
                done.append(name)
            for name, content in self.writes.items():
                storage.write(name, content)
                done.append(name)
        except errors.KafkaError as error:
            raise errors.CheckpointError(
                f"{where} is partly reset ({errors.some(done, limit=20) or 'no file'} done): "
                f"{error}. Reset it once more, or copy the files back from "
                f"{storage.location_of(backup)}"
            ) from error
        after = current.reload().next_start()
        if after.kind != "next" or after.batch_id != self.next_batch:
            raise errors.CheckpointError(
                f"{where} was reset, and batch {after.batch_id} was written meanwhile: the query "
                f"is running. Stop it and check; the old files are in {storage.location_of(backup)}"
            )
        return storage.location_of(backup)


def plan_reset(
    checkpoint: logs.Checkpoint,
    to: OffsetBound,
    admin: Admin | None = None,
    *,
    source: str | None = None,
    topics: Collection[str] = (),
    unfinished: Unfinished | None = None,
    keep_state: bool = False,
    stopped: bool = False,
    prefix: str | None = None,
    now_s: float | None = None,
) -> ResetPlan:
    """Plan a reset to these offsets.

    `to` is what startingOffsets can be: earliest, latest, a timestamp, or offsets of some
    partitions, where -1 is latest and -2 earliest; `KEPT` changes none. Other partitions keep their
    offsets. With `topics`, all other topics keep theirs, too. `admin` looks up the brokers'
    offsets. Without it only explicit offsets can be set, and they are not checked.

    `source` is the name of a Kafka source, if the query has several. `unfinished` is for a batch
    that is planned and not finished: "done" if the sink has all its rows, "drop" if it has none, or
    may get them twice. `keep_state` accepts that the query's state is not reset. `stopped` says
    that the query does not run, although its files are new. `prefix` is its transactionalIdPrefix.
    `now_s` is the present time in seconds since 1970, given in tests.

    Obstacles and errors name these arguments as the command does: --unfinished, --keep-state,
    --stopped. Raises OptionError for impossible offsets, CheckpointError for a checkpoint for which
    no reset can be planned, KafkaError if brokers do not answer.
    """
    batches = LastBatches(checkpoint)
    obstacles = list(signs_of_running(checkpoint, now_s) if not stopped else ())
    notes = logs.incomplete_backup_notes(logs.backups_of(checkpoint.storage))
    removals: list[str] = []
    writes: dict[str, bytes] = {}
    batch_id = last = batches.last
    if not batches.is_complete(last):
        if unfinished is None:
            raise errors.CheckpointError(_unfinished_batch_message(batches, admin, prefix))
        notes.append(f"batch {last} {batches.problem_of(last)}")
        if unfinished == "drop":
            batch_id = batches.last_complete(last)
            removals = batches.files_after(batch_id)
        elif batches.commits.get(last) is None:
            writes[f"{logs.COMMITS}/{last}"] = batches.commit_text(last).encode()
            if checkpoint.is_stateful:
                obstacles.append(
                    f"batch {last} cannot count as done: the query keeps state, and that of "
                    "this batch is not written. Drop it (--unfinished drop)"
                )
    elif unfinished is not None:
        raise errors.OptionError(
            f"unfinished={unfinished} is for a batch that is planned and not finished; the "
            f"last batch of {checkpoint.location}, {last}, is finished"
        )
    if admin is not None:
        try:
            status = against_kafka.decision_of(checkpoint, admin, prefix=prefix)
        except (errors.BrokerError, errors.DecodeError) as error:
            # The user may have no right to read that group, if the query is not exactly-once.
            notes.append(f"{_NOT_KNOWN_IF_DECIDED}: {error}")
        else:
            obstacles += _decision_obstacles(status, unfinished, batch_id)
    elif unfinished is not None:
        notes.append(f"{_NOT_KNOWN_IF_DECIDED}: it was not looked up at the brokers")
    base, base_notes = batches.base_plan(batch_id)
    notes += base_notes
    kafka = logs.kafka_source(base, source)
    before = kafka.offsets or {}
    after, offset_notes = _target_offsets(kafka, to, admin, topics)
    notes += offset_notes
    if checkpoint.is_stateful:
        text = (
            "the query keeps state, which is not reset: records that are read again count again in "
            "aggregates and joins, deduplication drops them, skipped records are missing for ever, "
            "and records older than the watermark are dropped as late"
        )
        if keep_state:
            notes.append(text)
        else:
            obstacles.append(f"{text}. To accept that, set --keep-state")
    reset_source = logs.SourceOffsets(kafka.name, logs.kafka_line(after), after)
    sources = tuple(
        reset_source if source_offsets.name == kafka.name else source_offsets
        for source_offsets in base.sources
    )
    content = replace(base, batch_id=batch_id, sources=sources).text().encode()
    if batch_id > 0 and batches.plans.get(batch_id - 1) is None:
        # Spark needs the plan before the last one, but uses its offsets only if the last batch is
        # not finished. So the content of the last plan is good enough.
        notes.append(f"{logs.OFFSETS}/{batch_id - 1}, which Spark needs, is written again")
        writes[f"{logs.OFFSETS}/{batch_id - 1}"] = content
    writes[f"{logs.OFFSETS}/{batch_id}"] = content
    return ResetPlan(
        checkpoint=checkpoint,
        source=kafka.name,
        batch_id=batch_id,
        changes=comparison.partition_changes(before, after),
        obstacles=tuple(obstacles),
        notes=tuple(notes),
        writes=writes,
        removals=tuple(removals),
    )


def signs_of_running(checkpoint: logs.Checkpoint, now_s: float | None = None) -> list[str]:
    """Return why the query seems to be running; empty if there is no sign of that.

    The only sign is a recent write: a file of the logs that is younger than three of the query's
    usual pauses between batches, at least a minute, at most an hour. A query that waits for records
    writes nothing, so it cannot be distinguished from a stopped one.
    """
    now_s = time.time() if now_s is None else now_s
    files = [*checkpoint.offset_files, *checkpoint.commit_files]
    times = [entry.modified_at_s for entry in files if entry.modified_at_s is not None]
    if not times:
        return []
    quiet_s = min(3_600.0, max(60.0, 3 * _median_pause_s(checkpoint)))
    age_s = max(0.0, now_s - max(times))
    if age_s >= quiet_s:
        return []
    return [
        f"the query seems to run: its checkpoint was written {age_s:.0f} s ago, less than "
        f"{quiet_s:.0f} s. Stop the query; if it is stopped, wait or set --stopped"
    ]


def _median_pause_s(checkpoint: logs.Checkpoint) -> float:
    """Return the median time between the last ten plans; 0 if it is not known."""
    planned_ms: list[int] = []
    for batch_id in checkpoint.planned[-10:]:
        try:
            batch_planned_ms = checkpoint.plan(batch_id).planned_ms
        except errors.CheckpointError:
            continue
        if batch_planned_ms is not None:
            planned_ms.append(batch_planned_ms)
    pauses_s = [max(0, later - earlier) / 1000 for earlier, later in pairwise(planned_ms)]
    return median_high(pauses_s) if pauses_s else 0.0


def _unfinished_batch_message(batches: LastBatches, admin: Admin | None, prefix: str | None) -> str:
    """Return the error for a last batch that is not complete: what is wrong with it, and what the
    user can choose. With `admin`, also whether an exactly-once sink has decided the batch."""
    last = batches.last
    checkpoint = batches.checkpoint
    # Spark does not start with a damaged file, and runs another batch if the plan is missing.
    advice = "Set "
    if not batches.damage and last in checkpoint.planned:
        advice = "It is best to start the query once, which finishes the batch. Else set "
    message = (
        f"{checkpoint.location}: batch {last} {batches.problem_of(last)}. {advice}"
        "--unfinished done if the sink has all its rows, or --unfinished drop if it has none, or "
        "may get them twice (with drop, a file or Delta sink that has already written batch "
        f"{last} would leave out the next batch)"
    )
    if admin is None:
        return message
    try:
        status = against_kafka.decision_of(checkpoint, admin, prefix=prefix)
    except errors.KafkaError as error:
        text = f"the decision of an exactly-once sink cannot be read: {error}"
    else:
        text = "" if status.verdict == "none" else status.text
    return f"{message}. In Kafka: {text}" if text else message


def _decision_obstacles(
    status: against_kafka.DecisionStatus, unfinished: Unfinished | None, batch_id: int
) -> list[str]:
    """Return why an exactly-once query cannot continue after batch `batch_id`; empty if it can.
    Its sink has decided which batch is the last one to be committed. After a wrong reset it would
    take the next batch for a decided one, and leave out its rows."""
    if status.decision is None or status.verdict == "other query":
        return []
    if status.verdict == "decided":
        # Only the query's next start commits transactions of the batch that are still open.
        return [f"{status.text}. Start the query once, then reset it"]
    if status.decision.batch_id > batch_id:
        return [
            f"{status.text}. After this reset the sink would take the query's batch "
            f"{batch_id + 1} for one that is already written, and leave out its rows. "
            + ("Count it as done (--unfinished done)" if unfinished else "Use the right checkpoint")
            + f", or delete the consumer group {status.group}"
        ]
    if status.verdict == "undecided" and unfinished == "done":
        return [f"the batch cannot count as done: {status.text}. Drop it (--unfinished drop)"]
    return []


# --- which batches are complete ---------------------------------------------------------------


class LastBatches:
    """The last batches of a checkpoint: from the latest one back to the last complete one, whose
    plan and commit can both be read. Plans, and texts of commits, are None if their file is
    damaged."""

    def __init__(self, checkpoint: logs.Checkpoint) -> None:
        self.checkpoint = checkpoint
        batch_ids = sorted({*checkpoint.planned, *checkpoint.committed})
        if not batch_ids:
            raise errors.CheckpointError(
                f"{checkpoint.location}: no batch was planned yet, so there is nothing to reset: "
                "start the query with startingOffsets"
            )
        self.last = batch_ids[-1]
        self.plans: dict[int, logs.Plan | None] = {}
        self.commits: dict[int, str | None] = {}
        self.damage: dict[str, str] = {}
        """The errors of damaged files, by file name."""
        for batch_id in reversed(batch_ids):
            self._read(batch_id)
            if self.is_complete(batch_id):
                if batch_id - 1 in checkpoint.planned:
                    self._read(batch_id - 1)
                break

    def _read(self, batch_id: int) -> None:
        """Parse the plan and the commit of a batch, if they exist, and note their damage."""
        for folder, existing, read, parsed in (
            (logs.OFFSETS, self.checkpoint.planned, self.checkpoint.plan, self.plans),
            (logs.COMMITS, self.checkpoint.committed, self.checkpoint.commit, self.commits),
        ):
            if batch_id in parsed or batch_id not in existing:
                continue
            try:
                parsed[batch_id] = read(batch_id)  # type: ignore[assignment]
            except errors.CheckpointError as error:
                parsed[batch_id] = None
                self.damage[f"{folder}/{batch_id}"] = str(error)

    def is_complete(self, batch_id: int) -> bool:
        return self.plans.get(batch_id) is not None and self.commits.get(batch_id) is not None

    def problem_of(self, batch_id: int) -> str:
        """Return what is wrong with a batch that is not complete."""
        names = (f"{logs.OFFSETS}/{batch_id}", f"{logs.COMMITS}/{batch_id}")
        damage = [self.damage[name] for name in names if name in self.damage]
        if damage:
            return f"cannot be read: {'; '.join(damage)}"
        if batch_id in self.commits:
            return "is finished, and its plan is missing"
        return "is planned and not finished"

    def last_complete(self, before: int) -> int:
        """Return the last complete batch before another one. Raises CheckpointError."""
        complete = [
            batch_id for batch_id in self.plans if batch_id < before and self.is_complete(batch_id)
        ]
        if not complete:
            raise errors.CheckpointError(
                f"{self.checkpoint.location}: without batch {before} there is no finished batch "
                "after which the query could continue. Start it with a new checkpoint and "
                "startingOffsets"
            )
        return max(complete)

    def files_after(self, batch_id: int) -> list[str]:
        """Return the files of later batches in the order of their removal: the latest batch first,
        its commit before its plan. Spark could not start with a commit that has no plan."""
        planned, committed = {*self.checkpoint.planned}, {*self.checkpoint.committed}
        later = sorted((n for n in planned | committed if n > batch_id), reverse=True)
        return [
            f"{folder}/{later_id}"
            for later_id in later
            for folder, existing in ((logs.COMMITS, committed), (logs.OFFSETS, planned))
            if later_id in existing
        ]

    def base_plan(self, batch_id: int) -> tuple[logs.Plan, list[str]]:
        """Return the plan on which the new plan of a batch is based, and notes about it: its own
        plan, or the last one before that can be read. Raises CheckpointError if there is none."""
        plan = self.plans.get(batch_id)
        if plan is not None:
            return plan, []
        earlier = [
            row for row in self.plans.values() if row is not None and row.batch_id < batch_id
        ]
        if not earlier:
            raise errors.CheckpointError(
                f"{self.checkpoint.location}: no plan of a batch can be read, so it is unknown "
                "what the query reads. Start it with a new checkpoint and startingOffsets"
            )
        base = max(earlier, key=lambda row: row.batch_id)
        return base, [
            f"the new plan of batch {batch_id} is based on that of batch {base.batch_id}: offsets "
            "that are not set go back to those of that batch, for all sources"
        ]

    def commit_text(self, batch_id: int) -> str:
        """Return the content of a commit that is missing: that of the last commit before it, so
        that its version stays and the watermark does not advance; without one, version 1 with the
        watermark of the batch's plan."""
        earlier = {n: text for n, text in self.commits.items() if text and n < batch_id}
        if earlier:
            return earlier[max(earlier)]
        plan = self.plans.get(batch_id)
        watermark_ms = plan.watermark_ms if plan is not None else None
        return f'v1\n{{"nextBatchWatermarkMs":{watermark_ms or 0}}}'


# --- target offsets ---------------------------------------------------------------------------


def _target_offsets(
    source: logs.SourceOffsets, to: OffsetBound, admin: Admin | None, topics: Collection[str]
) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return the source's offsets after the reset, and notes about them."""
    foreign_topics = sorted(set(topics) - set(source.topics))
    if foreign_topics:
        raise errors.OptionError(
            f"source {source.name} does not read {errors.some(foreign_topics)}; it reads "
            f"{errors.some(source.topics)}"
        )
    explicit = to.offsets
    foreign_topics = sorted({tp.topic for tp in explicit} - set(source.topics))
    if foreign_topics:
        raise errors.OptionError(
            f"offsets of {errors.some(foreign_topics)}: source {source.name} does not read that; "
            f"it reads {errors.some(source.topics)}"
        )
    before = source.offsets or {}
    if to.kind == "specific" and not explicit:
        return dict(before), []
    if admin is not None:
        return _look_up_target_offsets(source, to, admin, set(topics) or set(source.topics))
    unknown = sorted(set(explicit) - set(before))
    if to.kind != "specific" or unknown or min(explicit.values()) < 0:
        what = f"partitions {some_partitions(unknown)} of" if unknown else f"{to.kind} in"
        raise errors.OptionError(f"{what} the topics can only be looked up with brokers: name them")
    return {**before, **explicit}, ["the offsets are not compared with the brokers'"]


def _look_up_target_offsets(
    source: logs.SourceOffsets, to: OffsetBound, admin: Admin, topics: set[str]
) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return the source's offsets after the reset, and notes about them. `topics`: those whose
    offsets may change. Their partitions that are gone lose their offsets, the others keep theirs.
    """
    before = source.offsets or {}
    ends = against_kafka.ends_of(admin, source.topics)
    notes: list[str] = []
    after = {**before, **_targets_of(to, ends, admin, topics, notes)}
    gone = sorted(tp for tp in before if tp.topic in topics and tp not in ends.latest)
    for tp in gone:
        after.pop(tp, None)
    if gone:
        notes.append(f"{some_partitions(gone)} no longer exist, and are left out")
    new = sorted(set(after) - set(before))
    if new:
        notes.append(
            f"{errors.counted(len(new), 'partition')} that no batch has read yet: "
            f"{some_partitions(new)}"
        )
    outside = [
        tp
        for tp, offset in after.items()
        if tp in ends.latest and not ends.earliest[tp] <= offset <= ends.latest[tp]
    ]
    if outside:
        notes.append(
            f"the offsets of {some_partitions(outside)}, which stay, have no records: the next "
            "start reports data loss (failOnDataLoss)"
        )
    return after, notes


def _targets_of(
    to: OffsetBound, ends: against_kafka.Ends, admin: Admin, topics: set[str], notes: list[str]
) -> dict[TopicPartition, int]:
    """Return the offsets that `to` stands for, in the existing partitions of `topics`; a time is
    looked up at the brokers. If it is after the last record, the end is taken, with a note."""
    if to.kind == "specific":
        return dict(_resolve_offsets(to, ends))
    existing = sorted(tp for tp in ends.latest if tp.topic in topics)
    if to.kind in ("earliest", "latest"):
        side = ends.earliest if to.kind == "earliest" else ends.latest
        return {tp: side[tp] for tp in existing}
    if to.kind != "timestamp":
        raise errors.OptionError(
            f"a reset goes to earliest, latest, a time or offsets, not to {to.kind}"
        )
    spec = OffsetSpec.for_timestamp(to.timestamp_ms)
    at_time = admin.list_offsets(dict.fromkeys(existing, spec)).all() if existing else {}
    targets = {tp: row.offset for tp, row in at_time.items()}
    too_old = [tp for tp, offset in targets.items() if offset == NO_OFFSET]
    if too_old:
        targets.update((tp, ends.latest[tp]) for tp in too_old)
        notes.append(
            f"no record is at or after that time in {some_partitions(too_old)}: set to the end"
        )
    return targets


def _resolve_offsets(
    to: OffsetBound, ends: against_kafka.Ends
) -> Iterator[tuple[TopicPartition, int]]:
    """Yield explicit offsets with earliest and latest replaced. Raises OptionError for an offset
    that the partition does not have."""
    for tp, requested in sorted(to.offsets.items()):
        if tp not in ends.latest:
            raise errors.OptionError(f"there is no partition {tp}")
        first, end = ends.earliest[tp], ends.latest[tp]
        offset = {EARLIEST_OFFSET: first, LATEST_OFFSET: end}.get(requested, requested)
        if not first <= offset <= end:
            raise errors.OptionError(
                f"partition {tp} has no offset {offset}: it has {first} to {end}"
            )
        yield tp, offset
