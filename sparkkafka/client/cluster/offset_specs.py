"""Offsets of partitions by what is wanted of them, with an error for each partition.

`offsets.list_offsets` is the same question for those who need every answer or none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from sparkkafka.client.arguments import mapping, partition, whole
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.lookups import ToLeader
from sparkkafka.client.cluster.offsets import (
    CONSUMER_REPLICA_ID,
    EARLIEST,
    EARLIEST_LOCAL,
    ISOLATION_LEVELS,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    ListedOffset,
    lacking,
)
from sparkkafka.client.cluster.requests import ItemApi, Row, call_items
from sparkkafka.client.cluster.results import Results
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition, offset_number
from sparkkafka.errors import OptionError
from sparkkafka.protocol.messages import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)


class OffsetSpec(NamedTuple):
    """What offset is wanted; made by the class methods, which are those of Java's OffsetSpec."""

    timestamp_ms: int

    @classmethod
    def earliest(cls) -> Self:
        """The first offset that is left."""
        return cls(EARLIEST)

    @classmethod
    def latest(cls) -> Self:
        """The end: the offset that the next record gets. With read_committed, the first offset
        whose transaction is still open (the last stable offset)."""
        return cls(LATEST)

    @classmethod
    def max_timestamp(cls) -> Self:
        """The record with the largest timestamp (Kafka 3.0 and later)."""
        return cls(MAX_TIMESTAMP)

    @classmethod
    def for_timestamp(cls, timestamp_ms: int) -> Self:
        """The first record with this timestamp, in ms since 1970 UTC, or a later one."""
        if whole(timestamp_ms, "timestamp_ms, a timestamp in milliseconds,") < 0:
            raise OptionError(f"timestamp_ms is not negative, got {timestamp_ms}")
        return cls(timestamp_ms)

    @classmethod
    def earliest_local(cls) -> Self:
        """With tiered storage, the first offset on the leader's own disk (Kafka 3.6 and later)."""
        return cls(EARLIEST_LOCAL)

    @classmethod
    def latest_tiered(cls) -> Self:
        """With tiered storage, the last offset that is in the remote storage (Kafka 3.9)."""
        return cls(LATEST_TIERED)


class StartingPoint(NamedTuple):
    """Where to read on: at `offset`, or (None) where a leader finds `lookup`, as in OffsetSpec."""

    offset: int | None
    lookup: int | None = None


def starting_point(
    tp: TopicPartition, given: int | OffsetSpec | OffsetAndMetadata, what: str
) -> StartingPoint:
    """What `assign` and `seek` were given: an offset, also as `committed` gives it; -1 for the
    latest, -2 for the earliest (as in Kafka's protocol); an OffsetSpec. Raises OptionError."""
    if isinstance(given, OffsetSpec):
        return StartingPoint(None, checked_spec(tp, given))
    wanted = given.offset if isinstance(given, OffsetAndMetadata) else given
    number = offset_number(wanted)
    if number is not None:
        return StartingPoint(number)
    if not isinstance(given, OffsetAndMetadata):
        with contextlib.suppress(OptionError):
            if whole(given, what) in (EARLIEST, LATEST):
                return StartingPoint(None, whole(given, what))
    raise OptionError(
        f"{what}: cannot seek to offset {wanted!r} of {tp}; give a whole number, what committed "
        "gives, -1 or OffsetSpec.latest() for the end, -2 or OffsetSpec.earliest() for the first "
        "record, or OffsetSpec.for_timestamp(ms)"
    )


def checked_spec(tp: TopicPartition, given: OffsetSpec) -> int:
    """What leaders are asked for. Raises OptionError for what is no OffsetSpec, and for one that
    was not made by its class methods."""
    if not isinstance(given, OffsetSpec):
        raise OptionError(
            f"the spec of {tp}: what offset is wanted is OffsetSpec.earliest(), "
            f"OffsetSpec.latest() or OffsetSpec.for_timestamp(ms), got {given!r}"
        )
    number = whole(given.timestamp_ms, f"the spec of {tp}: the timestamp_ms of an OffsetSpec")
    if not LATEST_TIERED <= number < 1 << 63:
        raise OptionError(f"the spec of {tp}: no {given!r}: use OffsetSpec's class methods")
    return number


class _ListOffsets(ItemApi[TopicPartition, ListedOffset]):
    request_type = ListOffsetsRequest

    def __init__(self, specs: Mapping[TopicPartition, OffsetSpec], isolation: int) -> None:
        self._specs = specs
        self._isolation = isolation

    def build(self, items: Sequence[TopicPartition], version: int) -> ListOffsetsRequest:
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for tp in items:
            topics.setdefault(tp.topic, []).append(
                ListOffsetsPartition(
                    partition_index=tp.partition, timestamp=self._specs[tp].timestamp_ms
                )
            )
        return ListOffsetsRequest(
            replica_id=CONSUMER_REPLICA_ID,
            isolation_level=self._isolation,
            topics=[ListOffsetsTopic(name=name, partitions=rows) for name, rows in topics.items()],
        )

    def read(
        self, response: Any, items: Sequence[TopicPartition]
    ) -> Iterable[tuple[TopicPartition, Row]]:
        return [
            (
                TopicPartition(topic.name, row.partition_index),
                Row(row.error_code, ListedOffset(row.offset, row.timestamp, row.leader_epoch)),
            )
            for topic in response.topics
            for row in topic.partitions
        ]

    def lacking(self, item: TopicPartition, version: int) -> str | None:
        return lacking(self._specs[item].timestamp_ms, version)

    def grant(self, item: TopicPartition) -> str:
        return f"DESCRIBE on topic {item.topic}"


def list_offsets(
    cluster: Cluster,
    specs: Mapping[TopicPartition, OffsetSpec],
    deadline: Deadline,
    *,
    isolation_level: str = "read_uncommitted",
) -> Results[TopicPartition, ListedOffset]:
    """The offset of each partition that its spec asks for; -1 if there is no such record.

    Raises OptionError for an isolation level, a partition or a spec that is none.
    """
    if not isinstance(isolation_level, str) or isolation_level not in ISOLATION_LEVELS:
        raise OptionError(
            f"isolation_level must be one of {', '.join(ISOLATION_LEVELS)}, got {isolation_level!r}"
        )
    example = 'TopicPartition("orders", 0): OffsetSpec.latest()'
    wanted = {partition(tp, "specs"): spec for tp, spec in mapping(specs, "specs", example).items()}
    for tp, spec in wanted.items():
        checked_spec(tp, spec)
    api = _ListOffsets(wanted, ISOLATION_LEVELS[isolation_level])
    return call_items(cluster, wanted, api, ToLeader(cluster), deadline, "listing offsets")
