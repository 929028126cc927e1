"""Moving a query: another offset for what its next start reads.

Spark begins batch N+1 where the plan of the finished batch N ends. So a reset writes offsets/N
anew, with other offsets and the same lines otherwise, and leaves commits/N: the next start plans
N+1 from there. It does not add a finished batch N+1 that nobody ran: Spark's file sinks then miss a
batch in their own log and cannot be read any more, and stateful queries look for state that was
never written (both tried with Spark 4.3).

A batch that was planned and is not finished stands in the way, since nobody but the sink knows what
it has of its rows. Whether it counts as "done" or is to be dropped ("drop") must be said.

The order of the writes is such that a crash between any two leaves a checkpoint that starts.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal

from sparkkafka.checkpoints.backups import back_up, backups_of, part_words
from sparkkafka.checkpoints.changes import PartitionChange, partition_changes
from sparkkafka.checkpoints.decisions import Standing, decision_of
from sparkkafka.checkpoints.logs import (
    COMMITS,
    OFFSETS,
    Checkpoint,
    Offsets,
    Plan,
    SourceOffsets,
    kafka_source,
    kafka_text,
)
from sparkkafka.checkpoints.soundness import LastBatches
from sparkkafka.checkpoints.targets import moved
from sparkkafka.client.admin.admin import Admin
from sparkkafka.config.source import OffsetBound
from sparkkafka.errors import (
    BrokerError,
    CheckpointError,
    DecodeError,
    KafkaError,
    OptionError,
    some,
)

MIN_QUIET_S: Final = 60.0
MAX_QUIET_S: Final = 3_600.0
QUIET_TRIGGERS: Final = 3
"""A query seems to run if its checkpoint was written within this many of its usual pauses."""
PAUSES: Final = 10

KEPT: Final = OffsetBound("specific", {})
"""No offset changes: for a checkpoint that is only to be mended."""

Unfinished = Literal["done", "drop"]

STATE_WORDS: Final = (
    "the query keeps state, which is not reset: records that are read again count again in "
    "aggregates and joins, deduplication drops them, skipped ones are missing for ever, and those "
    "older than the watermark are dropped as late"
)


@dataclass(frozen=True)
class ResetPlan:
    """A reset that can be looked at, and done with `apply`. Nothing is changed before that.

    Batch `next_batch` is the first that reads from the new offsets. `obstacles` say why `apply`
    refuses, `notes` what is worth knowing.
    """

    checkpoint: Checkpoint
    source: str
    batch_id: int
    changes: tuple[PartitionChange, ...]
    obstacles: tuple[str, ...]
    notes: tuple[str, ...]
    writes: Mapping[str, bytes] = field(repr=False)
    """New contents by name of the file, in the order in which they are written."""
    removals: tuple[str, ...] = ()
    """Files that go, before anything is written."""

    @property
    def next_batch(self) -> int:
        return self.batch_id + 1

    def apply(self) -> str:
        """Copies the logs, then writes. Returns where the copy is.

        Raises CheckpointError if there are obstacles or the checkpoint has changed since the plan
        was made (nothing was changed then), or if a file cannot be written; the error says what of
        the reset is done.
        """
        where = self.checkpoint.location
        if self.obstacles:
            raise CheckpointError(f"{where} was not reset: {'; '.join(self.obstacles)}")
        with self.checkpoint.storage.alone():
            return self._apply(where)

    def _apply(self, where: str) -> str:
        now = self.checkpoint.again()
        if (now.offset_files, now.commit_files) != (
            self.checkpoint.offset_files,
            self.checkpoint.commit_files,
        ):
            raise CheckpointError(
                f"{where} was not reset: its files have changed since the reset was planned. Does "
                "the query run?"
            )
        backup = back_up(now)
        storage = now.storage
        done: list[str] = []
        try:
            for name in self.removals:
                storage.remove(name)
                done.append(name)
            for name, content in self.writes.items():
                storage.write(name, content)
                done.append(name)
        except KafkaError as error:
            raise CheckpointError(
                f"{where} is reset in part ({some(done, most=20) or 'no file'} done): {error}. "
                f"Reset it once more, or copy the files back from {storage.at(backup)}"
            ) from error
        after = now.again().next_start()
        if after.kind != "on" or after.batch_id != self.next_batch:
            raise CheckpointError(
                f"{where} was reset, and somebody has written batch {after.batch_id} meanwhile: "
                f"the query runs. Stop it and look; the files as they were are in "
                f"{storage.at(backup)}"
            )
        return storage.at(backup)


def plan_reset(
    checkpoint: Checkpoint,
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
    """What a reset to these offsets would change.

    `to` is what startingOffsets can be: earliest, latest, a timestamp, or offsets of some
    partitions, of which -1 is latest and -2 earliest; `KEPT` leaves all as they are. The others
    stay where they are; so do those of other topics than `topics`, if any are named. Brokers are
    asked through `admin`; without it only given offsets can be set, and they are not checked.

    `source` says which one, if the query has several of Kafka. `unfinished` is for a batch that
    is planned and not finished: "done", the sink has all its rows, or "drop", it has none, or
    may get them twice. `keep_state` accepts that state stays as it is. `stopped`: the query is
    known to be stopped, however new its files are. `prefix` is its transactionalIdPrefix.

    What it says names these words as the command has them: --unfinished, --keep-state, --stopped.
    Raises OptionError for offsets that cannot be, CheckpointError for a checkpoint of which nothing
    can be planned, KafkaError if brokers do not answer.
    """
    logs = LastBatches(checkpoint)
    obstacles = list(running_signs(checkpoint, now_s) if not stopped else ())
    notes = part_words(backups_of(checkpoint.storage))
    removals: list[str] = []
    writes: dict[str, bytes] = {}
    last = logs.last
    if not logs.is_sound(last):
        if unfinished is None:
            raise CheckpointError(_unfinished_words(logs, admin, prefix))
        notes.append(f"batch {last} {logs.state_of(last)}")
        if unfinished == "drop":
            number = logs.last_sound(last)
            removals = logs.names_after(number)
        else:
            number = last
            if logs.commits.get(last) is None:
                writes[f"{COMMITS}/{last}"] = logs.commit_text(last).encode()
                if checkpoint.is_stateful:
                    obstacles.append(
                        f"batch {last} cannot count as done: the query keeps state, and that of "
                        "this batch is not written. Drop it (--unfinished drop)"
                    )
    else:
        if unfinished is not None:
            raise OptionError(
                f"unfinished={unfinished} is for a batch that is planned and not finished; the "
                f"last batch of {checkpoint.location}, {last}, is finished"
            )
        number = last
    if admin is not None:
        try:
            standing = decision_of(checkpoint, admin, prefix=prefix)
        except (BrokerError, DecodeError) as error:
            # A query that writes elsewhere needs no right to read that group.
            notes.append(f"whether an exactly-once sink has decided a batch is not known: {error}")
        else:
            obstacles += _decided(standing, unfinished, number)
    elif unfinished is not None:
        notes.append("no broker was asked whether an exactly-once sink has decided the batch")
    base, base_note = logs.base(number)
    notes += base_note
    chosen = kafka_source(base, source)
    before = chosen.offsets or {}
    after, moved_notes = moved(chosen, before, to, admin, topics)
    notes += moved_notes
    if checkpoint.is_stateful:
        (notes if keep_state else obstacles).append(
            STATE_WORDS if keep_state else f"{STATE_WORDS}. If that is meant, say so (--keep-state)"
        )
    plan = _with_offsets(base, number, chosen, after)
    if number > 0 and logs.plans.get(number - 1) is None:
        # Spark asks for the plan before the last one, and reads the range between them in no case
        # once the last batch is finished.
        notes.append(f"{OFFSETS}/{number - 1}, which Spark needs, is made anew")
        writes[f"{OFFSETS}/{number - 1}"] = plan.text().encode()
    writes[f"{OFFSETS}/{number}"] = plan.text().encode()
    return ResetPlan(
        checkpoint=checkpoint,
        source=chosen.name,
        batch_id=number,
        changes=partition_changes(before, after),
        obstacles=tuple(obstacles),
        notes=tuple(notes),
        writes=writes,
        removals=tuple(removals),
    )


def running_signs(checkpoint: Checkpoint, now_s: float | None = None) -> list[str]:
    """Why the query seems to run; empty if nothing says so.

    Only writes can be seen: a file of the logs that is younger than three of the query's usual
    pauses between batches, at least a minute, at most an hour. A query that waits for records
    writes nothing, and nobody can tell it from one that is stopped.
    """
    now_s = time.time() if now_s is None else now_s
    files = [*checkpoint.offset_files, *checkpoint.commit_files]
    times = [one.modified_s for one in files if one.modified_s is not None]
    if not times:
        return []
    quiet_s = min(MAX_QUIET_S, max(MIN_QUIET_S, QUIET_TRIGGERS * _pause_s(checkpoint)))
    age_s = max(0.0, now_s - max(times))
    if age_s >= quiet_s:
        return []
    return [
        f"the query seems to run: its checkpoint was written {age_s:.0f} s ago, and a quiet one is "
        f"{quiet_s:.0f} s old. Stop the query; if it is stopped, wait or say so (--stopped)"
    ]


def _pause_s(checkpoint: Checkpoint) -> float:
    """The median pause between the last plans; 0 if it is not known."""
    planned: list[int] = []
    for batch_id in checkpoint.planned[-PAUSES:]:
        try:
            at_ms = checkpoint.plan(batch_id).planned_ms
        except CheckpointError:
            continue
        if at_ms is not None:
            planned.append(at_ms)
    pauses = sorted(max(0, other - one) / 1000 for one, other in pairwise(planned))
    return pauses[len(pauses) // 2] if pauses else 0.0


def _unfinished_words(logs: LastBatches, admin: Admin | None, prefix: str | None) -> str:
    last = logs.last
    checkpoint = logs.checkpoint
    # It does not start with a damaged file, and runs another batch where the plan is missing.
    can_start = not logs.damage and last in checkpoint.planned
    best = "Best start the query once, so that it is finished. Else say " if can_start else "Say "
    text = (
        f"{checkpoint.location}: batch {last} {logs.state_of(last)}. {best}"
        "what it counts as: --unfinished done if the sink has all its rows, --unfinished drop if "
        "it has none, or may get them twice (a sink that knows "
        f"batch {last} already, of files or Delta, would then leave out the next one)"
    )
    standing = _standing_text(checkpoint, admin, prefix)
    return text + (f". Kafka says: {standing}" if standing else "")


def _standing_text(checkpoint: Checkpoint, admin: Admin | None, prefix: str | None) -> str:
    if admin is None:
        return ""
    try:
        standing = decision_of(checkpoint, admin, prefix=prefix)
    except KafkaError as error:
        return f"the decision of an exactly-once sink cannot be read: {error}"
    return "" if standing.verdict == "none" else standing.text


def _decided(standing: Standing, unfinished: Unfinished | None, number: int) -> list[str]:
    """Why a query that writes exactly once cannot go on from batch `number`: its sink takes a batch
    that was decided for that one, and leaves its rows out."""
    if standing.decision is None or standing.verdict == "other query":
        return []
    if standing.verdict == "decided":
        # What of it is not committed yet would never be.
        return [f"{standing.text}. Start the query once, then reset it"]
    if standing.decision.batch_id > number:
        return [
            f"{standing.text}. After this reset the query's batch {number + 1} would be taken for "
            "one that is written already. "
            + ("Count it as done (--unfinished done)" if unfinished else "Use the right checkpoint")
            + f", or delete the consumer group {standing.group}"
        ]
    if standing.verdict == "undecided" and unfinished == "done":
        return [f"the batch cannot count as done: {standing.text}. Drop it (--unfinished drop)"]
    return []


def _with_offsets(base: Plan, number: int, source: SourceOffsets, after: Offsets) -> Plan:
    line = SourceOffsets(source.name, kafka_text(after), after)
    lines = tuple(line if one.name == source.name else one for one in base.sources)
    return Plan(number, base.version, base.about_text, base.about, lines)
