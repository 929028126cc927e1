"""Compare two batches of a checkpoint (`diff`), and its files with one another (`verify`)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import islice
from typing import Literal, NamedTuple

from sparkkafka.checkpoints import logs
from sparkkafka.checkpoints.storage import checksums
from sparkkafka.client.values import Offsets, TopicPartition
from sparkkafka.errors import CheckpointError, counted, some

_Report = Callable[[str, str], None]
"""Adds a finding of `verify`: takes the name of a file or folder, and a text about it."""


class PartitionChange(NamedTuple):
    """A partition's offset in two plans; None if the plan does not have the partition."""

    partition: TopicPartition
    before: int | None
    after: int | None

    @property
    def records(self) -> int | None:
        """The offset after, minus the offset before; None if a plan lacks the partition."""
        if self.before is None or self.after is None:
            return None
        return self.after - self.before


class SourceChange(NamedTuple):
    """One source in two plans. `partitions` are all partitions of a Kafka source, in order."""

    name: str
    before: logs.SourceOffsets | None
    after: logs.SourceOffsets | None
    partitions: tuple[PartitionChange, ...]


def diff(before: logs.Plan | None, after: logs.Plan | None) -> list[SourceChange]:
    """Compare two plans, and return the changes of each source that is in either of them."""
    names = dict.fromkeys(
        source.name for plan in (before, after) if plan is not None for source in plan.sources
    )
    changes = []
    for name in names:
        old, new = (None if plan is None else plan.source(name) for plan in (before, after))
        partitions = partition_changes((old and old.offsets) or {}, (new and new.offsets) or {})
        changes.append(SourceChange(name, old, new, partitions))
    return changes


def partition_changes(before: Offsets, after: Offsets) -> tuple[PartitionChange, ...]:
    """Compare the offsets of all partitions in either, in order."""
    return tuple(
        PartitionChange(tp, before.get(tp), after.get(tp)) for tp in sorted({*before, *after})
    )


class VerifyFinding(NamedTuple):
    """A result of `verify`. An "error" keeps Spark from starting the query, or makes it read other
    records than it should; a "note" is information. `where` is the file or folder."""

    level: Literal["error", "note"]
    where: str
    text: str


def verify(checkpoint: logs.Checkpoint) -> list[VerifyFinding]:
    """Read every file of a checkpoint, and return what is wrong with it, errors first."""
    findings: list[VerifyFinding] = []

    def error(name: str, text: str) -> None:
        """Add a finding of the level error about the file `name`."""
        where = checkpoint.storage.location_of(name)
        # The text of an exception begins with the file's name.
        findings.append(VerifyFinding("error", where, text.removeprefix(where).lstrip(": ")))

    def note(name: str, text: str) -> None:
        findings.append(VerifyFinding("note", checkpoint.storage.location_of(name), text))

    try:
        _ = checkpoint.query_id
    except CheckpointError as failure:
        error("metadata", str(failure))
    plans: dict[int, logs.Plan] = {}
    for batch_id in checkpoint.planned:
        try:
            plans[batch_id] = checkpoint.plan(batch_id)
        except CheckpointError as failure:
            error(f"{logs.OFFSETS}/{batch_id}", str(failure))
    for batch_id in checkpoint.committed:
        try:
            checkpoint.commit(batch_id)
        except CheckpointError as failure:
            error(f"{logs.COMMITS}/{batch_id}", str(failure))
    for folder, entries in (
        (logs.OFFSETS, checkpoint.offset_files),
        (logs.COMMITS, checkpoint.commit_files),
    ):
        names = dict.fromkeys(entry.name for entry in entries)
        _report_wrong_checksums(checkpoint, folder, names, error)
        _report_other_files(folder, names, note)
    _report_batch_gaps(checkpoint, error, note)
    _report_source_changes(plans, error, note)
    return sorted(findings, key=lambda finding: finding.level)


def _report_batch_gaps(checkpoint: logs.Checkpoint, error: _Report, note: _Report) -> None:
    """Report gaps in the numbers of batches, and batches that are planned but not finished."""
    planned, committed = checkpoint.planned, checkpoint.committed
    if not planned:
        if committed:
            error(logs.OFFSETS, f"no batch is planned, although batch {committed[-1]} is finished")
        else:
            note(logs.OFFSETS, "no batch was planned yet: the query begins as its options say")
        return
    last = planned[-1]
    if last > 0 and last - 1 not in planned:
        error(
            f"{logs.OFFSETS}/{last - 1}",
            f"missing: Spark does not start without the plan before the last one ({last})",
        )
    kept = set(planned)
    # The plan before the last one is reported above.
    missing_plans = (n for n in range(planned[0], last - 1) if n not in kept)
    if gaps := list(islice(missing_plans, 6)):  # there may be billions in a damaged checkpoint
        note(logs.OFFSETS, f"plans {some(gaps)} are missing; Spark does not read them again")
    if committed and committed[-1] > last:
        error(
            f"{logs.OFFSETS}/{committed[-1]}",
            f"missing, although batch {committed[-1]} is finished: Spark would run batch {last} "
            "again with an old number, and sinks may take its rows for rows that they have",
        )
    unfinished = [n for n in planned if n > (committed[-1] if committed else -1)]
    if unfinished == [last]:
        note(
            f"{logs.COMMITS}/{last}",
            f"batch {last} is planned and not finished: the next start runs it again",
        )
    elif unfinished:
        error(
            logs.COMMITS,
            f"batches {some(unfinished)} are planned and not finished, and Spark "
            "repeats only the last one: what the others read may be missing from the sink",
        )
    missing = sorted(set(planned) - set(committed) - set(unfinished))
    # Spark deletes old files of both logs, but not at the same time: the oldest may differ.
    missing = [n for n in missing if committed and n > committed[0]]
    if missing:
        note(logs.COMMITS, f"entries {some(missing)} are missing; only the last one counts")


def _report_source_changes(plans: dict[int, logs.Plan], error: _Report, note: _Report) -> None:
    """Report plans that have other sources than the plan before, and offsets that decrease."""
    before: logs.Plan | None = None
    for batch_id, plan in sorted(plans.items()):
        # In version 1 a source is known only by its index.
        if before is not None and plan.version == before.version == 1:
            old_count, new_count = len(before.sources), len(plan.sources)
            if old_count != new_count:
                error(
                    f"{logs.OFFSETS}/{batch_id}",
                    f"has {counted(new_count, 'source')}, the plan before it {old_count}: Spark "
                    "does not start a query with another number of sources",
                )
                before = plan
                continue
        for text in logs.damaged_source_messages(before, plan):
            error(f"{logs.OFFSETS}/{batch_id}", text)
        for change in diff(before, plan) if before is not None else ():
            decreasing = [row for row in change.partitions if (row.records or 0) < 0]
            if decreasing:
                note(
                    f"{logs.OFFSETS}/{batch_id}",
                    f"offsets of source {change.name} decrease: "
                    + some(f"{row.partition} {row.before} -> {row.after}" for row in decreasing)
                    + " (a reset, or a topic that was recreated)",
                )
            is_kafka = change.after is not None and change.after.offsets is not None
            gone = [row.partition for row in change.partitions if row.after is None]
            if gone and is_kafka:
                note(
                    f"{logs.OFFSETS}/{batch_id}", f"source {change.name} no longer has {some(gone)}"
                )
        before = plan


def _report_wrong_checksums(
    checkpoint: logs.Checkpoint, folder: str, names: Collection[str], error: _Report
) -> None:
    """Report files that do not match Hadoop's checksums."""
    for name in names:
        checksum_name = f".{name}.crc"
        if not logs.is_batch(name) or checksum_name not in names:
            continue
        try:
            content = checkpoint.storage.read(f"{folder}/{name}")
            checksum = checkpoint.storage.read(f"{folder}/{checksum_name}")
        except CheckpointError:
            continue  # reported by `verify`, or an unreadable checksum, which Spark reports
        if content is not None and checksum is not None and checksum != checksums(content):
            error(
                f"{folder}/{name}",
                f"does not match its checksum ({folder}/{checksum_name}): Spark's local file "
                "system refuses it. If the content is right, delete the checksum",
            )


def _report_other_files(folder: str, names: Collection[str], note: _Report) -> None:
    """Report incomplete files, and files that Spark does not write."""
    temporary = [name for name in names if name.endswith(".tmp")]
    if temporary:
        note(
            folder,
            f"{counted(len(temporary), 'incomplete file')} ({some(temporary, 2)}); harmless if no "
            "query runs",
        )
    foreign = [name for name in names if not name.startswith(".") and not logs.is_batch(name)]
    if foreign:
        note(folder, f"not written by Spark: {some(foreign)}")
