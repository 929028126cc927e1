"""Compare a checkpoint with Kafka: what is left to read, what is lost, and its last batch with the
last decision of an exactly-once query. (Apart from `comparison`, which needs no client.)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from sparkkafka.checkpoints import logs
from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.cluster.offsets import OffsetSpec
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import CheckpointError, DecodeError, UnknownTopicError, counted
from sparkkafka.spark.decision_text import Decision, WriterNames, is_decision, latest_decision


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


def positions_of(checkpoint: logs.Checkpoint, admin: Admin) -> list[Position]:
    """Return the position of each Kafka source in each partition; empty if no batch was planned
    yet.

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


class DecisionStatus(NamedTuple):
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
) -> DecisionStatus:
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
        return DecisionStatus(group, None, "none", f"there is no decision in group {group}")
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
    return DecisionStatus(
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
