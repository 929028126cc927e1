"""Compare a checkpoint with Kafka: where the next start reads, what is unread, and what is lost.

The lag in offsets is the end of the log minus the next offset; in seconds it is the age of the
oldest unread record (see `client.lags`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import NamedTuple

from sparkkafka.checkpoints.logs import Checkpoint, offsets_of_next_batch
from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.cluster.offsets import OffsetSpec
from sparkkafka.client.deadline import Deadline, deadline_of
from sparkkafka.client.lags import MAX_AGES_MS, AgeReader, PartitionLag, list_lags
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import CheckpointError, UnknownTopicError


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
    checkpoint: Checkpoint, admin: Admin, *, source: str | None = None
) -> list[Position]:
    """Return the position of each Kafka source (or only of `source`) in each partition; empty if no
    batch was planned yet.

    Raises KafkaError if brokers do not answer, CheckpointError for files that the next start would
    have to read and that are damaged.
    """
    positions: list[Position] = []
    next_start = checkpoint.next_start()
    offsets_by_source = offsets_of_next_batch(checkpoint, next_start)
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
    checkpoint: Checkpoint,
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


def next_offsets(checkpoint: Checkpoint, admin: Admin) -> dict[TopicPartition, int | None]:
    """Return the query's next offset in each partition, new partitions included: of several sources
    that read a partition, the smallest."""
    offsets: dict[TopicPartition, int | None] = {}
    for position in positions_of(checkpoint, admin):
        known = offsets.get(position.partition)
        offsets[position.partition] = (
            position.next_offset if known is None else min(known, position.next_offset)
        )
    return offsets
