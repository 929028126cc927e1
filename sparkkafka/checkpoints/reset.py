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

from sparkkafka.checkpoints.changes import PartitionChange, partition_changes
from sparkkafka.checkpoints.decisions import Standing, decision_of
from sparkkafka.checkpoints.logs import (
    COMMITS,
    OFFSETS,
    Checkpoint,
    Commit,
    Offsets,
    Plan,
    SourceOffsets,
    back_up,
    backups_of,
    kafka_source,
    kafka_text,
    part_words,
)
from sparkkafka.checkpoints.positions import ends_of
from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.cluster.offsets import OffsetSpec
from sparkkafka.client.values import TopicPartition, some_partitions
from sparkkafka.config.source import EARLIEST_OFFSET, LATEST_OFFSET, OffsetBound
from sparkkafka.errors import (
    BrokerError,
    CheckpointError,
    DecodeError,
    KafkaError,
    OptionError,
    counted,
    some,
)
from sparkkafka.protocol.constants import NO_OFFSET

# --- which batches are complete ---------------------------------------------------------------


class LastBatches:
    """The last batches, each file read or known as damaged."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        numbers = sorted({*checkpoint.planned, *checkpoint.committed})
        if not numbers:
            raise CheckpointError(
                f"{checkpoint.location}: no batch was planned yet, so there is nothing to reset: "
                "start the query with startingOffsets"
            )
        self.last = numbers[-1]
        self.plans: dict[int, Plan | None] = {}
        self.commits: dict[int, Commit | None] = {}
        self.damage: dict[str, str] = {}
        # Down to the first batch that is whole: what comes before is not needed.
        for number in reversed(numbers):
            self._read(number)
            if self.is_sound(number):
                if number - 1 in checkpoint.planned:
                    self._read(number - 1)
                break

    def _read(self, number: int) -> None:
        for folder, there, read, found in (
            (OFFSETS, self.checkpoint.planned, self.checkpoint.plan, self.plans),
            (COMMITS, self.checkpoint.committed, self.checkpoint.commit, self.commits),
        ):
            if number in found or number not in there:
                continue
            try:
                found[number] = read(number)  # type: ignore[assignment]
            except CheckpointError as error:
                found[number] = None
                self.damage[f"{folder}/{number}"] = str(error)

    def is_sound(self, number: int) -> bool:
        return self.plans.get(number) is not None and self.commits.get(number) is not None

    def state_of(self, number: int) -> str:
        """What is wrong with a batch that is not sound."""
        wrong = [
            self.damage[name]
            for name in (f"{OFFSETS}/{number}", f"{COMMITS}/{number}")
            if name in self.damage
        ]
        if wrong:
            return f"cannot be read: {'; '.join(wrong)}"
        if number in self.commits:
            return "is finished, and its plan is missing"
        return "is planned and not finished"

    def last_sound(self, before: int) -> int:
        found = [number for number in self.plans if number < before and self.is_sound(number)]
        if not found:
            raise CheckpointError(
                f"{self.checkpoint.location}: without batch {before} there is no finished batch "
                "to go on from. Start the query with a new checkpoint and startingOffsets"
            )
        return max(found)

    def names_after(self, number: int) -> list[str]:
        """The files of later batches, the latest first. A batch loses its commit first: without
        its plan it would be one that Spark cannot start from."""
        there = {
            *((batch, 0, f"{COMMITS}/{batch}") for batch in self.checkpoint.committed),
            *((batch, 1, f"{OFFSETS}/{batch}") for batch in self.checkpoint.planned),
        }
        ordered = sorted(there, key=lambda row: (-row[0], row[1]))
        return [name for batch, _, name in ordered if batch > number]

    def base(self, number: int) -> tuple[Plan, list[str]]:
        """The plan that the new one is made from, and what to know of it."""
        plan = self.plans.get(number)
        if plan is not None:
            return plan, []
        earlier = [one for one, found in self.plans.items() if found is not None and one < number]
        if not earlier:
            raise CheckpointError(
                f"{self.checkpoint.location}: no plan of a batch can be read, so nobody knows "
                "what the query reads. Start it with a new checkpoint and startingOffsets"
            )
        found = self.plans[max(earlier)]
        if found is None:  # never: it was looked for
            raise CheckpointError(f"{self.checkpoint.location}: no plan can be read")
        return found, [
            f"the new plan of batch {number} is made from that of batch {found.batch_id}: offsets "
            "that are not set go back to that, for all sources"
        ]

    def commit_text(self, number: int) -> str:
        """commits/`number`, as Spark would have written it."""
        before = [one for one in self.commits.values() if one is not None and one.batch_id < number]
        if before:
            return max(before, key=lambda one: one.batch_id).text
        plan = self.plans.get(number)
        watermark_ms = plan.watermark_ms if plan is not None else None
        return f'v1\n{{"nextBatchWatermarkMs":{watermark_ms or 0}}}'


# --- target offsets ---------------------------------------------------------------------------


def moved(
    source: SourceOffsets,
    before: Offsets,
    to: OffsetBound,
    admin: Admin | None,
    topics: Collection[str],
) -> tuple[dict[TopicPartition, int], list[str]]:
    """The offsets of the source after the reset, and what is worth knowing."""
    strange = sorted(set(topics) - set(source.topics))
    if strange:
        raise OptionError(
            f"source {source.name} does not read {some(strange)}; it reads {some(source.topics)}"
        )
    given = {TopicPartition(*key): at for key, at in to.offsets.items()}
    elsewhere = sorted({tp.topic for tp in given} - set(source.topics))
    if elsewhere:
        raise OptionError(
            f"offsets of {some(elsewhere)}: source {source.name} does not read that; it reads "
            f"{some(source.topics)}"
        )
    if to.kind == "specific" and not given:
        return dict(before), []
    if admin is None:
        return _unchecked(before, to, given), ["the offsets are not compared with the brokers'"]
    return _asked(source, before, to, given, admin, set(topics) or set(source.topics))


def _unchecked(
    before: Offsets, to: OffsetBound, given: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    unknown = sorted(set(given) - set(before))
    if to.kind != "specific" or unknown or min(given.values()) < 0:
        what = f"partitions {some_partitions(unknown)} of" if unknown else f"{to.kind} in"
        raise OptionError(
            f"{what} the topics can only be looked up with brokers: say where they are"
        )
    return {**before, **given}


def _asked(
    source: SourceOffsets,
    before: Offsets,
    to: OffsetBound,
    given: Mapping[TopicPartition, int],
    admin: Admin,
    topics: set[str],
) -> tuple[dict[TopicPartition, int], list[str]]:
    ends = ends_of(admin, source.topics)
    there = sorted(tp for tp in ends.latest if tp.topic in topics)
    notes: list[str] = []
    if to.kind == "specific":
        wanted = _within(given, ends.earliest, ends.latest)
    elif to.kind in ("earliest", "latest"):
        side = ends.earliest if to.kind == "earliest" else ends.latest
        wanted = {tp: side[tp] for tp in there}
    elif to.kind == "timestamp":
        spec = OffsetSpec.for_timestamp(to.timestamp_ms)
        found = admin.list_offsets(dict.fromkeys(there, spec)).all() if there else {}
        none = [tp for tp, row in found.items() if row.offset == NO_OFFSET]
        wanted = {
            tp: ends.latest[tp] if row.offset == NO_OFFSET else row.offset
            for tp, row in found.items()
        }
        if none:
            notes.append(f"no record is that new in {some_partitions(none)}: set to the end")
    else:
        raise OptionError(f"a reset goes to earliest, latest, a time or offsets, not to {to.kind}")
    after = {**before, **wanted}
    gone = sorted(tp for tp in before if tp.topic in topics and tp not in ends.latest)
    for tp in gone:
        after.pop(tp, None)
    if gone:
        notes.append(f"{some_partitions(gone)} are not there any more, and left out")
    new = sorted(set(after) - set(before))
    if new:
        notes.append(
            f"{counted(len(new), 'partition')} that no batch has read yet: {some_partitions(new)}"
        )
    beyond = [
        tp
        for tp, at in after.items()
        if tp in ends.latest and not ends.earliest[tp] <= at <= ends.latest[tp]
    ]
    if beyond:
        notes.append(
            f"offsets of {some_partitions(beyond)} stay where there are no records: the next start "
            "finds data lost (failOnDataLoss)"
        )
    return after, notes


def _within(given: Mapping[TopicPartition, int], earliest: Offsets, latest: Offsets) -> Offsets:
    """Given offsets, words for ends resolved. Raises OptionError for one that is not there."""
    wanted = {}
    for tp, at in sorted(given.items()):
        if tp not in latest:
            raise OptionError(f"there is no partition {tp}")
        number = {EARLIEST_OFFSET: earliest[tp], LATEST_OFFSET: latest[tp]}.get(at, at)
        if not earliest[tp] <= number <= latest[tp]:
            raise OptionError(
                f"offset {number} of {tp} is not there: it has {earliest[tp]} to {latest[tp]}"
            )
        wanted[tp] = number
    return wanted


# --- the reset --------------------------------------------------------------------------------

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
