"""Two batches of a checkpoint side by side, and whether a checkpoint is whole."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Literal, NamedTuple

from sparkkafka.checkpoints.logs import (
    COMMITS,
    NO_LONGER_KAFKA,
    OFFSETS,
    Checkpoint,
    Commit,
    Offsets,
    Plan,
    SourceOffsets,
    is_batch,
    no_longer_kafka,
    shortened,
)
from sparkkafka.checkpoints.storage import checksums
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import CheckpointError, counted, some

MAX_SHOWN = 5

_Says = Callable[[str, str], None]
"""Takes the name of a file or folder, and what is to be said of it."""


class PartitionChange(NamedTuple):
    """A partition's offset in two plans. None: the plan does not have the partition."""

    partition: TopicPartition
    before: int | None
    after: int | None

    @property
    def records(self) -> int | None:
        """How many offsets lie between them, negative backwards; None if one is not known."""
        if self.before is None or self.after is None:
            return None
        return self.after - self.before


class SourceChange(NamedTuple):
    """One source in two plans. `partitions` are those of a Kafka source, all of them, in order."""

    name: str
    before: SourceOffsets | None
    after: SourceOffsets | None
    partitions: tuple[PartitionChange, ...]

    @property
    def records(self) -> int:
        """Offsets from one plan to the other, of the partitions that both have."""
        return sum(row.records or 0 for row in self.partitions)


def diff(before: Plan | None, after: Plan | None) -> list[SourceChange]:
    """What differs between two plans, by source; all sources of either."""
    names = dict.fromkeys(
        one.name for plan in (before, after) if plan is not None for one in plan.sources
    )
    found = []
    for name in names:
        rows = [None if plan is None else plan.source(name) for plan in (before, after)]
        old, new = ({} if row is None or row.offsets is None else row.offsets for row in rows)
        found.append(SourceChange(name, rows[0], rows[1], partition_changes(old, new)))
    return found


def partition_changes(before: Offsets, after: Offsets) -> tuple[PartitionChange, ...]:
    return tuple(
        PartitionChange(tp, before.get(tp), after.get(tp)) for tp in sorted({*before, *after})
    )


class Finding(NamedTuple):
    """What `verify` has found. An "error" keeps Spark from starting the query, or has it read other
    records than it should; a "note" is worth knowing. `where` is the file or folder."""

    level: Literal["error", "note"]
    where: str
    text: str


def verify(checkpoint: Checkpoint) -> list[Finding]:
    """What is wrong with a checkpoint, errors first; empty if nothing is. Reads every file."""
    found: list[Finding] = []

    def error(name: str, text: str) -> None:
        where = checkpoint.storage.at(name)
        # What was raised begins with the file's name.
        found.append(Finding("error", where, text.removeprefix(where).lstrip(": ")))

    def note(name: str, text: str) -> None:
        found.append(Finding("note", checkpoint.storage.at(name), text))

    try:
        _ = checkpoint.query_id
    except CheckpointError as failure:
        error("metadata", str(failure))
    plans: dict[int, Plan] = {}
    commits: dict[int, Commit] = {}
    for batch_id in checkpoint.planned:
        try:
            plans[batch_id] = checkpoint.plan(batch_id)
        except CheckpointError as failure:
            error(f"{OFFSETS}/{batch_id}", str(failure))
    for batch_id in checkpoint.committed:
        try:
            commits[batch_id] = checkpoint.commit(batch_id)
        except CheckpointError as failure:
            error(f"{COMMITS}/{batch_id}", str(failure))
    for folder, numbers in ((OFFSETS, checkpoint.planned), (COMMITS, checkpoint.committed)):
        _check_checksums(checkpoint, folder, numbers, error)
        _check_names(checkpoint, folder, note)
    _check_numbers(checkpoint, error, note)
    _check_sources(plans, error, note)
    return sorted(found, key=lambda one: one.level)


def _check_numbers(checkpoint: Checkpoint, error: _Says, note: _Says) -> None:
    planned, committed = checkpoint.planned, checkpoint.committed
    if not planned:
        if committed:
            error(OFFSETS, f"no batch is planned here, and batch {committed[-1]} is finished")
        else:
            note(OFFSETS, "no batch was planned yet: the query begins where its options say")
        return
    last = planned[-1]
    if last > 0 and last - 1 not in planned:
        error(
            f"{OFFSETS}/{last - 1}",
            f"not there: Spark does not start without the plan before the last one ({last})",
        )
    gaps = _gaps(planned[:-1])
    if gaps:
        note(OFFSETS, f"plans {some(gaps, MAX_SHOWN)} are missing; Spark does not read them again")
    if committed and committed[-1] > last:
        error(
            f"{OFFSETS}/{committed[-1]}",
            f"not there, though batch {committed[-1]} is finished: Spark would run batch {last} "
            "again and give its rows old numbers, which sinks may take for rows they have",
        )
    unfinished = [n for n in planned if n > (committed[-1] if committed else -1)]
    if unfinished == [last]:
        note(
            f"{COMMITS}/{last}",
            f"batch {last} is planned and not finished: the next start runs it again",
        )
    elif unfinished:
        error(
            COMMITS,
            f"batches {some(unfinished, MAX_SHOWN)} are planned and not finished, and Spark "
            f"repeats the last one only: what the others read is perhaps not written",
        )
    missing = sorted(set(planned) - set(committed) - set(unfinished))
    # Spark deletes from both logs, not quite at the same time: at the old end they may differ.
    missing = [n for n in missing if committed and n > committed[0]]
    if missing:
        note(COMMITS, f"entries {some(missing, MAX_SHOWN)} are missing; only the last one counts")


def _check_sources(plans: dict[int, Plan], error: _Says, note: _Says) -> None:
    """From plan to plan: the same sources, and offsets that grow."""
    before: Plan | None = None
    for batch_id, plan in sorted(plans.items()):
        if before is not None and plan.version == before.version == 1:
            counts = len(before.sources), len(plan.sources)
            if counts[0] != counts[1]:
                error(
                    f"{OFFSETS}/{batch_id}",
                    f"has {counted(counts[1], 'source')}, the plan before it {counts[0]}: Spark "
                    "does not start a query with another number of sources",
                )
                before = plan
                continue
        for one in no_longer_kafka(before, plan):
            words = NO_LONGER_KAFKA.format(one.name, shortened(one.text))
            error(f"{OFFSETS}/{batch_id}", words)
        for change in diff(before, plan) if before is not None else ():
            back = [row for row in change.partitions if (row.records or 0) < 0]
            if back:
                note(
                    f"{OFFSETS}/{batch_id}",
                    f"source {change.name} goes back: "
                    + some((f"{r.partition} {r.before} -> {r.after}" for r in back), MAX_SHOWN)
                    + " (a reset, or a topic that was made again)",
                )
            kafka = change.after is not None and change.after.offsets is not None
            gone = [row.partition for row in change.partitions if row.after is None]
            if gone and kafka:
                note(
                    f"{OFFSETS}/{batch_id}",
                    f"source {change.name} has {some(gone, MAX_SHOWN)} no more",
                )
        before = plan


def _check_checksums(
    checkpoint: Checkpoint, folder: str, numbers: tuple[int, ...], error: _Says
) -> None:
    files = checkpoint.offset_files if folder == OFFSETS else checkpoint.commit_files
    names = {one.name for one in files}
    for batch_id in numbers:
        if f".{batch_id}.crc" not in names:
            continue
        name = f"{folder}/{batch_id}"
        try:
            content = checkpoint.storage.read(name)
            sums = checkpoint.storage.read(f"{folder}/.{batch_id}.crc")
        except CheckpointError:
            continue  # said before, or a checksum that nobody can read: Spark says so
        if content is not None and sums is not None and sums != checksums(content):
            error(
                name,
                f"does not fit its checksum ({folder}/.{batch_id}.crc): Spark's local file system "
                "refuses it. If the file is as it should be, delete the checksum",
            )


def _check_names(checkpoint: Checkpoint, folder: str, note: _Says) -> None:
    files = checkpoint.offset_files if folder == OFFSETS else checkpoint.commit_files
    begun = [one.name for one in files if one.name.endswith(".tmp")]
    if begun:
        note(
            folder,
            f"{counted(len(begun), 'file')} that somebody began to write ({some(begun, 2)}); no "
            "harm if no query runs",
        )
    strange = [one.name for one in files if not one.name.startswith(".") and not is_batch(one.name)]
    if strange:
        note(folder, f"not of Spark's: {some(strange, MAX_SHOWN)}")


def _gaps(numbers: tuple[int, ...]) -> list[int]:
    """The first missing numbers; at most as many as are shown, and one."""
    found: list[int] = []
    for one, other in pairwise(numbers):
        found += range(one + 1, min(other, one + 1 + MAX_SHOWN + 1 - len(found)))
        if len(found) > MAX_SHOWN:
            break
    return found
