"""Compare a checkpoint: two of its batches (`diff`), its files with one another (`verify`), what it
has read with Kafka, and its last batch with the last decision of an exactly-once query."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from itertools import islice
from typing import Literal, NamedTuple

from sparkkafka.checkpoints import logs
from sparkkafka.checkpoints.storage import checksums
from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.cluster.offsets import OffsetSpec
from sparkkafka.client.deadline import Deadline, deadline_of
from sparkkafka.client.lags import MAX_AGES_MS, AgeReader, PartitionLag, list_lags
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import CheckpointError, DecodeError, UnknownTopicError, counted, some
from sparkkafka.spark.exactly_once.decision_text import (
    Decision,
    WriterNames,
    is_decision,
    latest_decision,
)

_Report = Callable[[str, str], None]
"""Adds a finding of `verify`: takes the name of a file or folder, and a text about it."""


class PartitionChange(NamedTuple):
    """A partition's offset in two plans; None if the plan does not have the partition."""

    partition: TopicPartition
    before: int | None
    after: int | None

    @property
    def records(self) -> int | None:
        """The offsets between them, negative if it goes back; None if one is not known."""
        if self.before is None or self.after is None:
            return None
        return self.after - self.before


class SourceChange(NamedTuple):
    """One source in two plans. `partitions` are all partitions of a Kafka source, in order."""

    name: str
    before: logs.SourceOffsets | None
    after: logs.SourceOffsets | None
    partitions: tuple[PartitionChange, ...]

    @property
    def records(self) -> int:
        """Offsets from one plan to the other, of the partitions that both have."""
        return sum(row.records or 0 for row in self.partitions)


def diff(before: logs.Plan | None, after: logs.Plan | None) -> list[SourceChange]:
    """Compare two plans, source by source; the sources of both are in the result."""
    names = dict.fromkeys(
        source.name for plan in (before, after) if plan is not None for source in plan.sources
    )
    changes = []
    for name in names:
        old, new = (None if plan is None else plan.source(name) for plan in (before, after))
        partitions = partition_changes((old and old.offsets) or {}, (new and new.offsets) or {})
        changes.append(SourceChange(name, old, new, partitions))
    return changes


def partition_changes(before: logs.Offsets, after: logs.Offsets) -> tuple[PartitionChange, ...]:
    """Compare the offsets of all partitions in either, in order."""
    return tuple(
        PartitionChange(tp, before.get(tp), after.get(tp)) for tp in sorted({*before, *after})
    )


class Finding(NamedTuple):
    """A result of `verify`. An "error" keeps Spark from starting the query, or makes it read other
    records than it should; a "note" is information. `where` is the file or folder."""

    level: Literal["error", "note"]
    where: str
    text: str


def verify(checkpoint: logs.Checkpoint) -> list[Finding]:
    """Read every file of a checkpoint, and return what is wrong with it, errors first."""
    findings: list[Finding] = []

    def error(name: str, text: str) -> None:
        where = checkpoint.storage.location_of(name)
        # The text of an exception begins with the file's name.
        findings.append(Finding("error", where, text.removeprefix(where).lstrip(": ")))

    def note(name: str, text: str) -> None:
        findings.append(Finding("note", checkpoint.storage.location_of(name), text))

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
    missing_plans = (n for n in range(planned[0], planned[-2:][0]) if n not in kept)
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
        if before is not None and plan.version == before.version == 1:
            counts = len(before.sources), len(plan.sources)
            if counts[0] != counts[1]:
                error(
                    f"{logs.OFFSETS}/{batch_id}",
                    f"has {counted(counts[1], 'source')}, the plan before it {counts[0]}: Spark "
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
                    f"{logs.OFFSETS}/{batch_id}",
                    f"source {change.name} no longer has {some(gone)}",
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


class Position(NamedTuple):
    """The next offset of a source in one partition, and the offsets that the partition has.

    `earliest` and `latest` are None if the partition no longer exists. A partition that is not in
    the checkpoint (`is_new`) is read from its beginning.
    """

    source: str
    partition: TopicPartition
    next_offset: int
    earliest: int | None
    latest: int | None
    is_new: bool = False

    @property
    def is_gone(self) -> bool:
        return self.latest is None

    @property
    def lost(self) -> int:
        """Unread offsets that are deleted, by retention or delete_records."""
        return 0 if self.earliest is None else max(0, self.earliest - self.next_offset)

    @property
    def beyond(self) -> int:
        """How far the next offset is after the end of the log: the topic was recreated, or the log
        lost records that had been read."""
        return 0 if self.latest is None else max(0, self.next_offset - self.latest)

    @property
    def left(self) -> int:
        """Unread offsets that exist."""
        if self.earliest is None or self.latest is None:
            return 0
        return max(0, self.latest - max(self.next_offset, self.earliest))


class Ends(NamedTuple):
    """The first offset and the end of each partition's log."""

    earliest: Mapping[TopicPartition, int]
    latest: Mapping[TopicPartition, int]


def positions_of(
    checkpoint: logs.Checkpoint, admin: Admin, *, source: str | None = None
) -> list[Position]:
    """Return the position of each Kafka source (or only of `source`) in each partition; empty if no
    batch was planned yet.

    Raises KafkaError if brokers do not answer, CheckpointError for files that the next start would
    have to read and that are damaged.
    """
    positions: list[Position] = []
    next_start = checkpoint.next_start()
    offsets_by_source = logs.offsets_of_next_batch(checkpoint, next_start)
    plan = next_start.start or next_start.end
    if plan is not None and plan.sources and not any(row.may_be_kafka for row in plan.sources):
        raise CheckpointError(f"{checkpoint.location}: batch {plan.batch_id} has no Kafka source")
    for name, offsets in offsets_by_source.items():
        if source not in (None, name):
            continue
        ends = ends_of(admin, {tp.topic for tp in offsets})
        for tp in sorted({*offsets, *ends.latest}):
            log_start, log_end = ends.earliest.get(tp), ends.latest.get(tp)
            is_new = tp not in offsets
            next_offset = (log_start or 0) if is_new else offsets[tp]
            positions.append(Position(name, tp, next_offset, log_start, log_end, is_new))
    return positions


def ends_of(admin: Admin, topics: Iterable[str]) -> Ends:
    """Look up the first offset and the end of all partitions of these topics; missing topics have
    none. Raises KafkaError."""
    described = admin.describe_topics(sorted(topics))
    for error in described.errors.values():
        if not isinstance(error, UnknownTopicError):
            raise error
    partitions = [
        TopicPartition(topic.name, row.partition)
        for topic in described.values_by_item.values()
        for row in topic.partitions
    ]
    if not partitions:
        return Ends({}, {})
    earliest = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.earliest())).all()
    latest = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.latest())).all()
    return Ends(
        {tp: row.offset for tp, row in earliest.items()},
        {tp: row.offset for tp, row in latest.items()},
    )


def lag_of(
    checkpoint: logs.Checkpoint,
    admin: Admin,
    settings: Mapping[str, str] | None = None,
    *,
    timeout_s: float | None = None,
) -> list[PartitionLag]:
    """Return the query's lag in offsets, by partition; `committed` is the next offset.

    With a Consumer's `settings` also in seconds: the age of the oldest unread record. A partition
    that several sources read counts once, for the source that is furthest behind. Raises as
    `positions_of`.
    """
    lags = list_lags(admin, next_offsets(checkpoint, admin))
    if settings is None:
        return lags
    with closing(AgeReader(settings)) as reader:
        return reader.add_ages(lags, deadline_of(timeout_s) or Deadline(MAX_AGES_MS))


def next_offsets(checkpoint: logs.Checkpoint, admin: Admin) -> dict[TopicPartition, int | None]:
    """Return the query's next offset in each partition, new partitions included: of several sources
    that read a partition, the smallest."""
    offsets: dict[TopicPartition, int | None] = {}
    for position in positions_of(checkpoint, admin):
        known = offsets.get(position.partition)
        offsets[position.partition] = (
            position.next_offset if known is None else min(known, position.next_offset)
        )
    return offsets


class Standing(NamedTuple):
    """The last decision under a prefix, and how it compares with the checkpoint.

    - "none": there is no decision. The query does not write exactly-once, has another prefix, or
      never finished a batch.
    - "other query": the decision is of a query with another id.
    - "done": the decided batch is finished in the checkpoint as well.
    - "decided": the decided batch is unfinished in the checkpoint. The next start commits it and
      writes nothing twice.
    - "undecided": the decision is about an earlier batch. The next start writes the unfinished one.
    - "ahead": the decision is about a later batch than any in the checkpoint, which is an old copy.
      The next start fails.
    """

    group: str
    decision: Decision | None
    verdict: Literal["none", "other query", "done", "decided", "undecided", "ahead"]
    text: str
    """The verdict as a sentence."""


def decision_of(
    checkpoint: logs.Checkpoint, admin: Admin, *, prefix: str | None = None
) -> Standing:
    """Look up the last decision of this checkpoint's query, and compare the two. `prefix` is the
    query's transactionalIdPrefix, if it has one.

    Raises KafkaError if the lookup fails (it needs READ on the group), DecodeError if the group
    has an entry that is not a decision.
    """
    query_id = checkpoint.query_id
    group = WriterNames.of_query(prefix, query_id, "").decisions
    committed = admin.list_consumer_group_offsets(group).all()
    try:
        decision = latest_decision(row.metadata for row in committed.values() if row is not None)
    except DecodeError as error:
        raise DecodeError(f"group {group}: {error}") from error
    if decision is None:
        return Standing(group, None, "none", f"there is no decision in group {group}")
    last_planned = checkpoint.planned[-1] if checkpoint.planned else -1
    last_finished = checkpoint.committed[-1] if checkpoint.committed else -1
    batch_id = decision.batch_id
    verdict: Literal["other query", "done", "decided", "undecided", "ahead"]
    if decision.query_id != query_id:
        verdict = "other query"
        outcome = f", of another query, {decision.query_id}"
    elif batch_id > max(last_planned, last_finished):
        verdict = "ahead"
        outcome = (
            f", and the last batch in the checkpoint is {max(last_planned, last_finished)}: the "
            "checkpoint is older than what was written, and the next start fails"
        )
    elif last_planned <= last_finished:
        verdict = "done"
        outcome = "; it is finished in the checkpoint, too"
    elif batch_id == last_planned:
        verdict = "decided"
        outcome = (
            ", and is not finished in the checkpoint: the next start commits what is not "
            "committed yet, and writes nothing twice"
        )
    else:
        verdict = "undecided"
        outcome = (
            f"; batch {last_planned} is planned and not decided: none of its rows is visible, and "
            "the next start writes it"
        )
    return Standing(
        group,
        decision,
        verdict,
        f"batch {batch_id} is decided (decision {decision.number} in group {group}, "
        f"{counted(len(decision.transactions), 'transaction')}, by {decision.application})"
        f"{outcome}",
    )


def holds_decisions(group: str, texts: Iterable[str]) -> bool:
    """Return whether a group, whose offsets have these texts as metadata, holds decisions: its
    offsets are not those of a consumer."""
    # The name first: a cluster may have thousands of offsets with metadata.
    prefix = group.removesuffix("-decisions")
    return group == WriterNames(prefix, "").decisions and any(map(is_decision, texts))
