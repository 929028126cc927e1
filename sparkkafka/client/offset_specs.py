"""Offsets of partitions by what is wanted of them, with an error for each partition.

`offsets.list_offsets` is the same question for those who need every answer or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from sparkkafka.client.arguments import mapping, partition, whole
from sparkkafka.client.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.item_calls import ItemApi, Row, call_items
from sparkkafka.client.metadata import TopicPartition
from sparkkafka.client.offsets import (
    CONSUMER_REPLICA_ID,
    EARLIEST,
    ISOLATION_LEVELS,
    LATEST,
    MAX_TIMESTAMP,
    MAX_TIMESTAMP_VERSION,
    ListedOffset,
)
from sparkkafka.client.results import Results
from sparkkafka.client.routes import ToLeader
from sparkkafka.errors import OptionError
from sparkkafka.protocol.messages import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

EARLIEST_LOCAL = -4  # KIP-405
LATEST_TIERED = -5  # KIP-1005

# A broker without the version would take the number for a time.
_NEEDS = {
    MAX_TIMESTAMP: (MAX_TIMESTAMP_VERSION, "Kafka 3.0 (KIP-734)"),
    EARLIEST_LOCAL: (8, "Kafka 3.6 (KIP-405)"),
    LATEST_TIERED: (9, "Kafka 3.9 (KIP-1005)"),
}


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
        if whole(timestamp_ms, "a timestamp in milliseconds") < 0:
            raise OptionError(f"a timestamp is not negative, got {timestamp_ms}")
        return cls(timestamp_ms)

    @classmethod
    def earliest_local(cls) -> Self:
        """With tiered storage, the first offset on the leader's own disk (Kafka 3.6 and later)."""
        return cls(EARLIEST_LOCAL)

    @classmethod
    def latest_tiered(cls) -> Self:
        """With tiered storage, the last offset that is in the remote storage (Kafka 3.9)."""
        return cls(LATEST_TIERED)


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
        least, kafka = _NEEDS.get(self._specs[item].timestamp_ms, (0, ""))
        return f"this kind of offset needs {kafka}" if version < least else None

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
    if isolation_level not in ISOLATION_LEVELS:
        raise OptionError(
            f"isolation_level must be one of {', '.join(ISOLATION_LEVELS)}, got {isolation_level!r}"
        )
    example = 'TopicPartition("orders", 0): OffsetSpec.latest()'
    wanted = {partition(tp, "specs"): spec for tp, spec in mapping(specs, "specs", example).items()}
    for tp, spec in wanted.items():
        if not isinstance(spec, OffsetSpec):
            raise OptionError(
                f"{tp}: what offset is wanted is OffsetSpec.earliest(), OffsetSpec.latest() or "
                f"OffsetSpec.for_timestamp(ms), got {spec!r}"
            )
    api = _ListOffsets(wanted, ISOLATION_LEVELS[isolation_level])
    return call_items(cluster, wanted, api, ToLeader(cluster), deadline, "listing offsets")
