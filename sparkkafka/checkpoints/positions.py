"""A checkpoint beside its cluster: what the next start reads, what is left, what is lost.

Lag in records is the end of the log less where the query reads on. Lag in seconds is the age of the
oldest record that it has not read: that record is fetched, since no broker tells a timestamp by
offset.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sparkkafka.checkpoints.logs import Checkpoint, NextStart, Offsets
from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.cluster.offsets import OffsetSpec
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import UnknownTopicError

LOOK_MS = 10_000
"""How long `oldest_unread` waits for records of partitions that have only markers."""
_POLL_S = 0.5


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
    def lag(self) -> int:
        """Offsets that are there and not read."""
        if self.earliest is None or self.latest is None:
            return 0
        return max(0, self.latest - max(self.next_offset, self.earliest))

    @property
    def reads_from(self) -> int:
        """The first offset that is there to be read."""
        return max(self.next_offset, self.earliest or 0)


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
    for name, offsets in starting_offsets(checkpoint, checkpoint.next_start()).items():
        if source not in (None, name):
            continue
        ends = ends_of(admin, {tp.topic for tp in offsets})
        for tp in sorted({*offsets, *ends.latest}):
            first, last = ends.earliest.get(tp), ends.latest.get(tp)
            at = offsets.get(tp)
            new = at is None
            found.append(Position(name, tp, (first or 0) if at is None else at, first, last, new))
    return found


def starting_offsets(checkpoint: Checkpoint, start: NextStart) -> dict[str, Offsets]:
    """From where the next batch reads, by source; empty for a source of which nothing says so."""
    if start.start is not None:
        return {one.name: one.offsets for one in start.start.sources if one.offsets is not None}
    # No batch is finished: a source of the JVM connector has noted where it begins.
    sources = start.end.sources if start.end is not None else ()
    found = {one.name: checkpoint.initial(one.name) for one in sources if one.offsets is not None}
    return {name: offsets for name, offsets in found.items() if offsets is not None}


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


def oldest_unread(
    positions: Iterable[Position], settings: Mapping[str, Any], *, timeout_s: float | None = None
) -> dict[TopicPartition, int]:
    """The timestamp of the first unread record of each partition that has one, in ms since 1970.

    `settings` are a Consumer's. One batch of each partition is fetched. A partition is left out if
    all that is unread are markers of transactions, or what compaction has taken out. Raises
    KafkaError.
    """
    from sparkkafka.client.consumer.consumer import Consumer

    wanted: dict[TopicPartition, int] = {}
    for row in positions:
        if row.lag:
            wanted[row.partition] = min(row.reads_from, wanted.get(row.partition, row.reads_from))
    found: dict[TopicPartition, int] = {}
    if not wanted:
        return found
    deadline = Deadline(LOOK_MS if timeout_s is None else min(LOOK_MS, timeout_s * 1000))
    # One byte: a broker gives one batch of each partition, however long it is.
    limits = {"max.partition.fetch.bytes": "1", "group.id": None, "auto.offset.reset": "earliest"}
    given = {key: value for key, value in {**settings, **limits}.items() if value is not None}
    with Consumer(given) as consumer:
        consumer.assign(wanted)
        while len(found) < len(wanted) and not deadline.expired:
            table = consumer.poll_arrow(min(_POLL_S, deadline.remaining_s()))
            if not table.num_rows:
                continue
            firsts = table.select(["topic", "partition", "timestamp"])
            seen = firsts.group_by(["topic", "partition"], use_threads=False).aggregate(
                [("timestamp", "first")]
            )
            for one in seen.to_pylist():
                tp = TopicPartition(one["topic"], one["partition"])
                found.setdefault(tp, timestamp_ms(one["timestamp_first"]))
            consumer.pause([tp for tp in found if tp in wanted])
    return found


def timestamp_ms(value: Any) -> int:
    """A record's timestamp, which Arrow gives as a datetime, in ms since 1970."""
    return value if isinstance(value, int) else round(value.timestamp() * 1000)


def age_s(timestamp_ms: int | None, now_s: float | None = None) -> float | None:
    """How long ago that was, never negative: clocks differ. None stays None."""
    if timestamp_ms is None or timestamp_ms < 0:
        return None
    return max(0.0, (time.time() if now_s is None else now_s) - timestamp_ms / 1000)
