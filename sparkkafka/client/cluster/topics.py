"""What brokers say of topics: partitions and leaders, and errors for what is not there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sparkkafka.client.values import Broker, TopicPartition, some_topics
from sparkkafka.errors import BrokerError, ErrorCode, UnknownTopicError
from sparkkafka.protocol.messages import MetadataResponseTopic


class PartitionMetadata(NamedTuple):
    """`leader` is a broker's node id, -1 while there is none; epoch -1 if not known. `replicas` are
    node ids."""

    leader: int
    leader_epoch: int
    error_code: int
    replicas: tuple[int, ...] = ()


class PartitionInfo(NamedTuple):
    """A partition and the broker that leads it, None while there is none."""

    topic: str
    partition: int
    leader: Broker | None


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    name: str
    topic_id: bytes | None
    is_internal: bool
    partitions: Mapping[int, PartitionMetadata]
    refreshed_s: float = field(default_factory=time.monotonic, compare=False)


def read_topics(
    rows: Iterable[MetadataResponseTopic], wanted: Iterable[str] | None
) -> tuple[dict[str, TopicMetadata], dict[str, int]]:
    """The topics of a Metadata answer, and the error codes of those that have no metadata.

    A topic of `wanted` that the answer leaves out counts as unknown.
    """
    topics: dict[str, TopicMetadata] = {}
    failed: dict[str, int] = {}
    for row in rows:
        if row.error_code or not row.partitions:
            # No topic has no partitions: a broker that says so does not know them yet.
            failed[row.name or ""] = row.error_code or int(ErrorCode.LEADER_NOT_AVAILABLE)
            continue
        topics[row.name or ""] = TopicMetadata(
            name=row.name or "",
            topic_id=_topic_id(row.topic_id),
            is_internal=row.is_internal,
            partitions={
                partition.partition_index: PartitionMetadata(
                    partition.leader_id,
                    partition.leader_epoch,
                    partition.error_code,
                    tuple(partition.replica_nodes),
                )
                for partition in row.partitions
            },
        )
    for name in wanted or ():
        if name not in topics and name not in failed:
            failed[name] = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topics, failed


def _topic_id(value: Any) -> bytes | None:
    raw = bytes(getattr(value, "bytes", value) or b"")
    return raw if any(raw) else None


NOT_CREATED = "the brokers do not create it (auto.create.topics.enable, or CREATE is not granted)"
"""Said beside a missing topic under allow.auto.create.topics."""


def missing_topics(names: Sequence[str]) -> str:
    """For a message: "topic a does not exist (yet)", "topics a, b do not exist (yet)"."""
    return f"{some_topics(names)} {'does' if len(names) == 1 else 'do'} not exist (yet)"


def no_topic(names: Sequence[str], *, creates: bool) -> UnknownTopicError:
    """These topics are not there; `creates`: though the brokers were asked to make them."""
    error = UnknownTopicError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"Metadata of {some_topics(names)}",
        "the topic does not exist, or this user may not see it (needs DESCRIBE on the topic)"
        + (f"; {NOT_CREATED}" if creates else "")
        + ": check its name, or create it first",
    )
    error.topics = tuple(names)
    return error


def no_partition(tp: TopicPartition, count: int) -> UnknownTopicError:
    """The topic has no such partition."""
    return UnknownTopicError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"Metadata of {tp}",
        f"partition {tp.partition} of topic {tp.topic} does not exist: it has partitions 0 to "
        f"{count - 1}",
    )


def no_leader(tp: TopicPartition, code: int = 0) -> BrokerError:
    """Nobody leads the partition at the moment; `code` is what the brokers say of it."""
    return BrokerError(
        code or ErrorCode.LEADER_NOT_AVAILABLE,
        f"Metadata of {tp}",
        f"partition {tp.partition} of topic {tp.topic} has no leader; the brokers that hold it "
        "may be down",
    )
