"""A checkpoint beside its cluster: what the next start reads, what is left, what is lost.

Lag in offsets is the end of the log less where the query reads on; in seconds it is the age of the
oldest record that is not read (see `client.lags`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import NamedTuple

from sparkkafka.checkpoints.logs import Checkpoint, starting_offsets
from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.cluster.offsets import OffsetSpec
from sparkkafka.client.deadline import Deadline, deadline_of
from sparkkafka.client.lags import AGES_MS, Ages, PartitionLag, lags_of
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import CheckpointError, UnknownTopicError


class Position(NamedTuple):
    """Where a source of a query reads on in one partition, and what the partition has.

    `earliest` and `latest` are None if it is not there any more. A partition that the checkpoint
    does not know is read from its beginning: `is_new`.
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
        """Offsets that were not read and are deleted (retention, delete_records)."""
        return 0 if self.earliest is None else max(0, self.earliest - self.next_offset)

    @property
    def beyond(self) -> int:
        """How far the query is behind the end of the log: then the topic was made again, or
        records were lost that had been read."""
        return 0 if self.latest is None else max(0, self.next_offset - self.latest)

    @property
    def left(self) -> int:
        """Offsets that are there and not read."""
        if self.earliest is None or self.latest is None:
            return 0
        return max(0, self.latest - max(self.next_offset, self.earliest))


class Ends(NamedTuple):
    earliest: Mapping[TopicPartition, int]
    latest: Mapping[TopicPartition, int]


def positions_of(
    checkpoint: Checkpoint, admin: Admin, *, source: str | None = None
) -> list[Position]:
    """Where each Kafka source reads on, by source and partition; of `source` alone if it is given.

    Empty if no batch was planned yet. Raises KafkaError if brokers cannot be asked,
    CheckpointError for files that the next start would read and cannot.
    """
    found: list[Position] = []
    start = checkpoint.next_start()
    offsets_of = starting_offsets(checkpoint, start)
    plan = start.start or start.end
    if plan is not None and plan.sources and not any(one.may_be_kafka for one in plan.sources):
        raise CheckpointError(
            f"{checkpoint.location}: batch {plan.batch_id} has no source of Kafka"
        )
    for name, offsets in offsets_of.items():
        if source not in (None, name):
            continue
        ends = ends_of(admin, {tp.topic for tp in offsets})
        for tp in sorted({*offsets, *ends.latest}):
            first, last = ends.earliest.get(tp), ends.latest.get(tp)
            at = offsets.get(tp)
            new = at is None
            found.append(Position(name, tp, (first or 0) if at is None else at, first, last, new))
    return found


def ends_of(admin: Admin, topics: Iterable[str]) -> Ends:
    """First offset and end of all partitions of these topics; a topic that is not there has none.

    Raises KafkaError.
    """
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
    first = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.earliest())).all()
    last = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.latest())).all()
    return Ends(
        {tp: row.offset for tp, row in first.items()}, {tp: row.offset for tp, row in last.items()}
    )


def lag_of(
    checkpoint: Checkpoint,
    admin: Admin,
    settings: Mapping[str, str] | None = None,
    *,
    timeout_s: float | None = None,
) -> list[PartitionLag]:
    """How far the query is behind, in offsets, by partition; `committed` is where it reads on.

    With a Consumer's `settings` in seconds as well: the age of the oldest record that is not read.
    A partition that several sources read counts once, with the source that is furthest behind.
    Raises as `positions_of`.
    """
    rows = lags_of(admin, next_offsets(checkpoint, admin))
    if settings is None:
        return rows
    with closing(Ages(settings)) as ages:
        return ages.added_to(rows, deadline_of(timeout_s) or Deadline(AGES_MS))


def next_offsets(checkpoint: Checkpoint, admin: Admin) -> dict[TopicPartition, int | None]:
    """Where the query reads on, by partition, those included that are new to it."""
    found: dict[TopicPartition, int | None] = {}
    for row in positions_of(checkpoint, admin):
        known = found.get(row.partition)
        found[row.partition] = row.next_offset if known is None else min(known, row.next_offset)
    return found
