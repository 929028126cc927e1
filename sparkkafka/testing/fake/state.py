"""The state of a fake cluster: brokers, topics, partitions with leaders and logs.

It has no sockets and threads. The cluster's lock guards it.
"""

from __future__ import annotations

import enum
import re
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sparkkafka.errors import ErrorCode
from sparkkafka.testing.fake.groups.state import (
    OFFSETS_PARTITIONS,
    OFFSETS_TOPIC,
    FakeGroup,
    Groups,
    OffsetsPartition,
)
from sparkkafka.testing.fake.log.log import PartitionLog
from sparkkafka.testing.fake.log.producers import Refused
from sparkkafka.testing.fake.security.sasl import FakeSasl
from sparkkafka.testing.fake.security.state import FakeAcls, FakeScramUsers
from sparkkafka.testing.fake.transactions.transactions import NoLeaderError, Transactions

NO_LEADER = -1

# ConfigDef.Type numbers of DescribeConfigs version 3
TYPE_STRING = 2
TYPE_INT = 3
TYPE_LONG = 5
TYPE_LIST = 7


class ConfigDefault(NamedTuple):
    type: int
    value: str


# The topic configurations that the fake knows; the rest is INVALID_CONFIG. Retention is only
# reported: nothing is deleted unless a test calls `FakeCluster.advance_log_start`.
TOPIC_CONFIGS: dict[str, ConfigDefault] = {
    "cleanup.policy": ConfigDefault(TYPE_LIST, "delete"),
    "max.message.bytes": ConfigDefault(TYPE_INT, "1048588"),
    "message.timestamp.after.max.ms": ConfigDefault(TYPE_LONG, "3600000"),
    "message.timestamp.before.max.ms": ConfigDefault(TYPE_LONG, str((1 << 63) - 1)),
    "message.timestamp.type": ConfigDefault(TYPE_STRING, "CreateTime"),
    "min.insync.replicas": ConfigDefault(TYPE_INT, "1"),
    "retention.bytes": ConfigDefault(TYPE_LONG, "-1"),
    "retention.ms": ConfigDefault(TYPE_LONG, "604800000"),
}


class BrokerAddress(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(slots=True)
class FakePartition:
    """A partition. `leader` is NO_LEADER while no replica is up. `log` has the leader epoch."""

    number: int
    leader: int
    replicas: tuple[int, ...]
    log: PartitionLog


@dataclass(slots=True)
class FakeTopic:
    """A topic. `config` has all settings, `set_configs` the names of those that are not
    defaults."""

    name: str
    topic_id: uuid.UUID
    config: Mapping[str, str]
    set_configs: frozenset[str]
    partitions: list[FakePartition]
    is_internal: bool = False


@dataclass(slots=True)
class ClusterWide:
    """Quotas by entity, new replicas of partitions that move, and levels of features."""

    quotas: dict[tuple[tuple[str, str | None], ...], dict[str, float]] = field(default_factory=dict)
    moves: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=lambda: {"metadata.version": 25})


class Quirk(enum.Enum):
    """What brokers by other hands do otherwise than Kafka, in the handlers."""

    ANY_BROKER_LEADS = "each broker names itself as the leader of each partition"
    CURRENT_EPOCH = "ListOffsets answers with the current leader epoch for each offset"
    BATCH_TIMES = "ListOffsets for a time answers with the first offset of the batch"
    NO_CRC = "fetched batches have no CRC-32C"


class ClusterState:
    """Brokers and topics of one fake cluster.

    `live` are the brokers that metadata names, perhaps one that has just died. `coordinators` are
    the coordinators that a test has moved, by group or transactional id.
    """

    def __init__(self, *, default_configs: Mapping[str, str]) -> None:
        self.cluster_id = uuid.uuid4().hex[:22]
        self.addresses: dict[int, BrokerAddress] = {}
        self.live: set[int] = set()
        self.topics: dict[str, FakeTopic] = {}
        self.rack_aware = False
        self.quirks: frozenset[Quirk] = frozenset()
        self.sasl = FakeSasl()
        self.acls = FakeAcls()
        self.scram_users = FakeScramUsers()
        self.cluster_wide = ClusterWide()
        self.groups = Groups()
        self.coordinators: dict[str, int] = {}
        self.transactions = Transactions(self._log_for_marker, self.new_producer_id)
        self.auto_creates = default_configs.get("auto.create.topics.enable") == "true"
        self._defaults = {
            name: default_configs.get(name, row.value) for name, row in TOPIC_CONFIGS.items()
        }
        self._next_producer_id = 1000
        self._next_first_leader = 0

    @property
    def controller_id(self) -> int:
        """The live broker with the lowest id."""
        return min(self.live, default=-1)

    def new_producer_id(self) -> int:
        self._next_producer_id += 1
        return self._next_producer_id - 1

    # --- lookups ---------------------------------------------------------------------------------

    def partition(self, topic: str, number: int) -> FakePartition:
        """Return a partition. Raises KeyError, which names it, if it does not exist."""
        if not self.has_partition(topic, number):
            raise KeyError(f"{topic}-{number} does not exist")
        return self.topics[topic].partitions[number]

    def has_partition(self, topic: str, number: int) -> bool:
        found = self.topics.get(topic)
        return found is not None and 0 <= number < len(found.partitions)

    def _log_for_marker(self, topic: str, number: int) -> PartitionLog | OffsetsPartition | None:
        if topic == OFFSETS_TOPIC and 0 <= number < OFFSETS_PARTITIONS:
            return OffsetsPartition(self.groups, number)
        if not self.has_partition(topic, number):
            return None
        partition = self.partition(topic, number)
        if partition.leader == NO_LEADER:
            raise NoLeaderError(f"{topic}-{number}")
        return partition.log

    def led_by(
        self,
        node_id: int,
        topic: str,
        number: int,
        leader_epoch: int = -1,
        *,
        or_follows: bool = False,
    ) -> FakePartition:
        """Return the partition if this broker leads it in this epoch (-1: any). Raises Refused.

        With `or_follows` the broker may also have another replica. The epoch is checked first
        (Partition.checkCurrentLeaderEpoch), so that a client with old metadata learns that from any
        replica.
        """
        try:
            partition = self.partition(topic, number)
        except KeyError:
            raise Refused(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "This server does not host this topic-partition.",
            ) from None
        epoch = partition.log.leader_epoch
        if leader_epoch != -1 and node_id in partition.replicas:
            if leader_epoch < epoch:
                raise Refused(ErrorCode.FENCED_LEADER_EPOCH, f"the leader epoch is {epoch}")
            if leader_epoch > epoch:
                raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH, f"the leader epoch is {epoch}")
        leads = partition.leader == node_id or Quirk.ANY_BROKER_LEADS in self.quirks
        if not leads and not (or_follows and node_id in partition.replicas):
            raise Refused(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "For requests intended only for the leader, this error indicates that the broker "
                "is not the current leader.",
            )
        return partition

    def group(self, group_id: str) -> FakeGroup:
        return self.groups.group(group_id)

    def coordinator(self, key: str) -> int | None:
        """Return the coordinator of a group or transactional id: where a test has moved it, or a
        live broker by the hash of the key. None if no broker is up."""
        if self.coordinators.get(key) in self.live:
            return self.coordinators[key]
        live = sorted(self.live)
        return live[zlib.crc32(key.encode()) % len(live)] if live else None

    def topic_by_id(self, topic_id: uuid.UUID) -> FakeTopic | None:
        return next((row for row in self.topics.values() if row.topic_id == topic_id), None)

    def all_partitions(self) -> Iterator[FakePartition]:
        for topic in self.topics.values():
            yield from topic.partitions

    def replica_in_rack(self, partition: FakePartition, rack: str) -> int | None:
        """Return a replica in this rack if the leader is in another one, else None."""
        if self.addresses[partition.leader].rack == rack:
            return None
        return next(
            (row for row in self.in_sync(partition) if self.addresses[row].rack == rack), None
        )

    def in_sync(self, partition: FakePartition) -> list[int]:
        return [node_id for node_id in partition.replicas if node_id in self.live]

    # --- changes ---------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
        assignments: Mapping[int, Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
    ) -> FakeTopic:
        """Create a topic, or with `validate_only` only make it. Raises Refused as a broker would.

        Leaders are spread over the live brokers, beginning after the last leader of the topic
        before. `assignments` has the replicas of each partition instead, the leader first.
        """
        check_topic_name(name)
        if name in self.topics:
            raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        unknown = sorted(set(configs) - set(TOPIC_CONFIGS))
        if unknown:
            raise Refused(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {unknown[0]}")
        chosen = self._replicas(partitions, replication_factor, assignments)
        config = {**self._defaults, **configs}
        topic = FakeTopic(
            name,
            uuid.uuid4(),
            config,
            frozenset(configs),
            [
                FakePartition(number, replicas[0], replicas, PartitionLog(config))
                for number, replicas in enumerate(chosen)
            ],
            is_internal=name in (OFFSETS_TOPIC, "__transaction_state"),
        )
        for partition in topic.partitions:
            if partition.leader not in self.live:
                partition.leader = next(iter(self.in_sync(partition)), NO_LEADER)
        if not validate_only:
            self.topics[name] = topic
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and what groups have committed of it."""
        del self.topics[name]
        self.groups.delete_offsets_of(name)

    def _replicas(
        self, partitions: int, factor: int, assignments: Mapping[int, Sequence[int]] | None
    ) -> list[tuple[int, ...]]:
        if assignments:
            if sorted(assignments) != list(range(len(assignments))) or any(
                not row or len(set(row)) != len(row) or not set(row) <= set(self.addresses)
                for row in assignments.values()
            ):
                raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{dict(assignments)}")
            return [tuple(assignments[number]) for number in range(len(assignments))]
        if partitions < 1:
            raise Refused(
                ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid value."
            )
        nodes = sorted(self.live)
        if not 1 <= factor <= len(nodes):
            raise Refused(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {factor}, brokers available: {len(nodes)}",
            )
        first = self._next_first_leader
        self._next_first_leader = (first + partitions) % len(nodes)
        return [
            tuple(nodes[(first + number + step) % len(nodes)] for step in range(factor))
            for number in range(partitions)
        ]

    def move_leader(self, partition: FakePartition, to: int) -> None:
        """Make `to` (or NO_LEADER) the leader, in a new leader epoch also if it leads already."""
        if to != NO_LEADER and to not in self.addresses:
            raise ValueError(f"no broker {to}, there are {sorted(self.addresses)}")
        if to != NO_LEADER and to not in partition.replicas:
            partition.replicas = (*partition.replicas, to)
        partition.leader = to
        partition.log.new_epoch()
        self.transactions.write_waiting_markers()

    def broker_lost(self, node_id: int) -> None:
        """Note that a broker is down: the next live replica leads its partitions, or none does."""
        self.live.discard(node_id)
        for partition in self.all_partitions():
            if partition.leader == node_id:
                self.move_leader(partition, next(iter(self.in_sync(partition)), NO_LEADER))

    def add_partitions(self, topic: FakeTopic, total: int) -> None:
        """Add partitions up to `total`, with as many replicas as the first one has."""
        if total < len(topic.partitions):
            raise ValueError(f"{topic.name} has {len(topic.partitions)} partitions already")
        factor = len(topic.partitions[0].replicas)
        added = total - len(topic.partitions)
        for replicas in self._replicas(added, factor, None) if added else ():
            topic.partitions.append(
                FakePartition(
                    len(topic.partitions), replicas[0], replicas, PartitionLog(topic.config)
                )
            )

    def broker_back(self, node_id: int) -> None:
        """Note that a broker is up: it leads those of its partitions that have no leader."""
        self.live.add(node_id)
        for partition in self.all_partitions():
            if partition.leader == NO_LEADER and node_id in partition.replicas:
                self.move_leader(partition, node_id)


def check_topic_name(name: str | None) -> None:
    """Raise Refused (INVALID_TOPIC_EXCEPTION) if no topic can have this name."""
    if name in (None, ".", "..") or not re.fullmatch("[A-Za-z0-9._-]{1,249}", name):
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {name!r}")
