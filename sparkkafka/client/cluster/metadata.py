"""The metadata cache: brokers, coordinators, topics and their leaders; and the errors for a topic,
partition or leader that is not there."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from sparkkafka.client.values import Broker, TopicPartition, some_topics
from sparkkafka.errors import BrokerError, ErrorCode, UnknownTopicError, is_retriable
from sparkkafka.protocol.messages import MetadataResponseTopic

log = logging.getLogger(__name__)


class PartitionMetadata(NamedTuple):
    """A partition's leader and replicas, as node ids. `leader` is -1 while there is none; its epoch
    is -1 if it is not known."""

    leader: int
    leader_epoch: int
    error_code: int
    replicas: tuple[int, ...] = ()


class PartitionInfo(NamedTuple):
    """A partition and the broker that leads it, None while there is none."""

    topic: str
    partition: int
    leader: Broker | None


@dataclass(frozen=True)
class TopicMetadata:
    """A topic as a broker described it at `refreshed_at_s` (monotonic). `topic_id` is None before
    Kafka 2.8; `partitions` are by number."""

    name: str
    topic_id: bytes | None
    is_internal: bool
    partitions: Mapping[int, PartitionMetadata]
    refreshed_at_s: float = field(default_factory=time.monotonic, compare=False)

    @cached_property
    def with_leader(self) -> Sequence[int]:
        """The numbers of the partitions that have a leader, ascending. Only producers need them."""
        return sorted(number for number, row in self.partitions.items() if row.leader >= 0)

    def merged_with(self, known: TopicMetadata | None) -> TopicMetadata:
        """Return this metadata, with the partitions of `known` whose leader epoch is later: a
        broker that is cut off from the controller still names earlier leaders, whose logs may lack
        records that were read (KIP-320). Another topic id is that of a recreated topic."""
        if known is None or known.topic_id is None or known.topic_id != self.topic_id:
            return self
        later = {
            number: row
            for number, row in known.partitions.items()
            if number in self.partitions and row.leader_epoch > self.partitions[number].leader_epoch
        }
        return replace(self, partitions={**self.partitions, **later}) if later else self


def read_topics(
    response_topics: Iterable[MetadataResponseTopic], names: Iterable[str] | None
) -> tuple[dict[str, TopicMetadata], dict[str, int]]:
    """Read a Metadata response: its topics, and the error codes of those that have no metadata.

    A topic of `names` that the response leaves out counts as unknown.
    """
    topics: dict[str, TopicMetadata] = {}
    failed: dict[str, int] = {}
    for topic in response_topics:
        if topic.error_code or not topic.partitions:
            # Every topic has partitions: this broker does not know them yet.
            failed[topic.name or ""] = topic.error_code or int(ErrorCode.LEADER_NOT_AVAILABLE)
            continue
        topics[topic.name or ""] = TopicMetadata(
            name=topic.name or "",
            # Brokers before Kafka 2.8 send the zero id.
            topic_id=topic.topic_id.bytes if topic.topic_id.int else None,
            is_internal=topic.is_internal,
            partitions={
                partition.partition_index: PartitionMetadata(
                    partition.leader_id,
                    partition.leader_epoch,
                    partition.error_code,
                    tuple(partition.replica_nodes),
                )
                for partition in topic.partitions
            },
        )
    for name in names or ():
        if name not in topics and name not in failed:
            failed[name] = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topics, failed


NOT_CREATED = "the brokers do not create it (auto.create.topics.enable, or CREATE is not granted)"
"""Added to the error of a missing topic with allow.auto.create.topics."""


def missing_topics_text(names: Sequence[str], nearest: Mapping[str, str] | None = None) -> str:
    """Return "topic a does not exist (yet)" or "topics a, b do not exist (yet)" for a message.
    `nearest` as in `unknown_topic_error`."""
    hint = nearest_text(names, nearest)
    return (
        f"{some_topics(names)} {'does' if len(names) == 1 else 'do'} not exist "
        f"(yet{hint and f'; {hint}'})"
    )


def nearest_text(names: Sequence[str], nearest: Mapping[str, str] | None) -> str:
    """Return "the nearest is b", "the nearest: b for a, d for c", or "" for a message."""
    found = {name: nearest[name] for name in names if nearest and name in nearest}
    if found and len(names) == 1:
        return f"the nearest is {found[names[0]]}"
    return f"the nearest: {', '.join(f'{b} for {a}' for a, b in found.items())}" if found else ""


def nearest_topics(names: Iterable[str], existing: Collection[str]) -> dict[str, str]:
    """Return {name: the existing topic with the most similar name}, if there is a similar one."""
    import difflib  # not above: processes that plan a read rarely need it

    found = {}
    # Limit of missing topics for which a message names the most similar one: each is compared with
    # all topics.
    for name in itertools.islice(names, 3):
        for nearest in difflib.get_close_matches(name, existing, n=1):
            found[name] = nearest
    return found


def unknown_topic_error(
    names: Sequence[str],
    *,
    creates: bool = False,
    nearest: Mapping[str, str] | None = None,
    advice: str = ", or create it first",
    existed: bool = False,
) -> UnknownTopicError:
    """Make the error for topics that do not exist.

    `creates`: the request lets brokers create them. `nearest` has the existing topics that
    may have been meant, by missing topic. `advice` is what else to do than to check the name.
    `existed`: brokers knew the topics before.
    """
    hint = nearest_text(names, nearest)
    error = UnknownTopicError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"Metadata of {some_topics(names)}",
        f"the topic {'was deleted' if existed else 'does not exist'}, or this user may not see it "
        "(needs DESCRIBE on the topic)"
        + (f"; {NOT_CREATED}" if creates else "")
        + ("" if existed else f": check its name{hint and f' ({hint})'}{advice}"),
    )
    error.topics = tuple(names)
    return error


def unknown_partition_error(tp: TopicPartition, count: int) -> UnknownTopicError:
    """Make the error for a partition that the topic does not have."""
    return UnknownTopicError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"Metadata of {tp}",
        f"partition {tp.partition} of topic {tp.topic} does not exist: it has partitions 0 to "
        f"{count - 1}",
    )


def no_leader_error(tp: TopicPartition) -> BrokerError:
    """Make the error for a partition without a leader."""
    return BrokerError(
        ErrorCode.LEADER_NOT_AVAILABLE,
        f"Metadata of {tp}",
        f"partition {tp.partition} of topic {tp.topic} has no leader; the brokers that hold it "
        "may be down",
    )


class Metadata:
    """The metadata cache of one client (Java's Metadata), shared by the `Cluster`s of its threads.
    `Cluster` decides when it is refreshed (metadata.max.age.ms).

    Reading needs no lock: `brokers` and `topics` are replaced, never changed in place. What a
    thread has read may be outdated a moment later, as it may be in any client.
    """

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.controller_id: int | None = None
        self.brokers: Mapping[int, Broker] = {}
        self.coordinators: dict[tuple[int, str], int] = {}
        """(kind, key) -> node id; `request_driver` fills it."""
        self.topics: Mapping[str, TopicMetadata] = {}
        self.stale: set[str] = set()
        """Topics of `topics` whose metadata is probably outdated, after an error."""
        self.known_names: set[str] = set()
        """Topics that exist or have existed."""
        self._lock = threading.Lock()  # for changes

    def update(
        self, response: Any, names: Iterable[str] | None
    ) -> tuple[dict[str, TopicMetadata], dict[str, int]]:
        """Store a MetadataResponse about these topics (None: about all) in the cache.

        Returns its topics, and {topic: error code} of those that have no metadata.
        """
        topics, failed = read_topics(response.topics or (), names)
        with self._lock:
            self.brokers = {
                row.node_id: Broker(row.node_id, row.host, row.port, row.rack)
                for row in response.brokers
            }
            self.cluster_id = response.cluster_id
            self.controller_id = response.controller_id
            topics = {
                name: topic.merged_with(self.topics.get(name)) for name, topic in topics.items()
            }
            self._log_leader_changes(topics)
            self.known_names.update(topics)
            if names is None:
                self.topics, self.stale = topics, set()
                return topics, failed
            gone = {
                name
                for name, code in failed.items()
                if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or not is_retriable(code)
            }
            kept = {name: topic for name, topic in self.topics.items() if name not in gone}
            self.topics = kept | topics
            self.stale -= topics.keys() | gone
            # The broker has no metadata of the other failed topics at the moment.
            self.stale |= failed.keys() & kept.keys()
        return topics, failed

    def add_broker(self, broker: Broker) -> None:
        """Add the broker that is the coordinator in a response."""
        with self._lock:
            known = self.brokers.get(broker.node_id)
            if known is None or (known.host, known.port) != (broker.host, broker.port):
                self.brokers = {**self.brokers, broker.node_id: broker}

    def forget_brokers(self) -> None:
        """Forget brokers, controller and coordinators, so that the next operations look them up
        again."""
        with self._lock:
            self.brokers = {}
            self.controller_id = None
            self.coordinators.clear()

    def mark_stale(self, topic: str) -> None:
        """Mark the metadata of a topic as probably outdated, if it is in the cache."""
        with self._lock:
            if topic in self.topics:
                self.stale.add(topic)

    def replace(self, topics: Iterable[TopicMetadata]) -> None:
        """Replace the metadata of topics that are still in the cache."""
        with self._lock:
            self.topics = {
                **self.topics,
                **{topic.name: topic for topic in topics if topic.name in self.topics},
            }

    def _log_leader_changes(self, topics: Mapping[str, TopicMetadata]) -> None:
        """Log each partition of `topics`, which are new metadata, whose leader was another one."""
        for name, topic in topics.items():
            known = self.topics[name].partitions if name in self.topics else {}
            for number, partition in topic.partitions.items():
                before, now = known.get(number, partition).leader, partition.leader
                if before != now:
                    tp = TopicPartition(name, number)
                    log.info("%s: the leader moved from %d to %d", tp, before, now)
