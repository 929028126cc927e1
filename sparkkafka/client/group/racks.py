"""Which members of a group are in the rack of a partition's replica (KIP-881).

The assignors prefer these, since they can read from that replica (KIP-392). When racks matter is
what Java's AbstractPartitionAssignor says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.values import TopicPartition

PartitionRacks = Mapping[str, Sequence[frozenset[str]]]
"""By topic and number of partition the racks of its replicas."""

NO_RACKS: PartitionRacks = MappingProxyType({})


class Racks:
    """The racks of members, and of the partitions of `topics`.

    They are true if they make a difference: not if no member has one, no replica is in one of
    theirs, or every partition is in all racks.
    """

    def __init__(
        self,
        member_racks: Mapping[str, str | None],
        partition_racks: PartitionRacks,
        topics: Iterable[str],
    ) -> None:
        self._of_member = {member: rack for member, rack in member_racks.items() if rack}
        self._of_partition = {name: partition_racks.get(name, ()) for name in topics}
        every = {racks for topic in self._of_partition.values() for racks in topic}
        everywhere = frozenset().union(*every)
        has_near = not everywhere.isdisjoint(self._of_member.values())
        self._matter = has_near and every != {everywhere}

    def __bool__(self) -> bool:
        return self._matter

    def near(self, member: str, tp: TopicPartition) -> bool:
        """Whether the partition has a replica in the member's rack, or the member has no rack."""
        rack = self._of_member.get(member)
        return rack is None or rack in self._racks_of(tp)

    def same(self, member: str, tp: TopicPartition) -> bool:
        """Whether the member has a rack, and the partition a replica in it."""
        return self._of_member.get(member) in self._racks_of(tp)

    def neighbours(self, tp: TopicPartition) -> int:
        """How many members are in the partition's racks."""
        racks = self._racks_of(tp)
        return sum(rack in racks for rack in self._of_member.values())

    def _racks_of(self, tp: TopicPartition) -> frozenset[str | None]:
        racks: Sequence[frozenset[str]] = self._of_partition.get(tp.topic, ())
        return racks[tp.partition] if tp.partition < len(racks) else frozenset()


def partition_racks(cluster: Cluster, topics: Iterable[str]) -> PartitionRacks:
    """What the cache of metadata says of these topics. Partitions are numbered without gaps."""
    seen: dict[tuple[int, ...], frozenset[str]] = {}

    def racks_of(replicas: tuple[int, ...]) -> frozenset[str]:
        if replicas not in seen:
            brokers = (cluster.brokers.get(node_id) for node_id in replicas)
            seen[replicas] = frozenset(row.rack for row in brokers if row and row.rack)
        return seen[replicas]

    found: dict[str, Sequence[frozenset[str]]] = {}
    for name in topics:
        topic = cluster.known_topic(name)
        rows = topic.partitions if topic is not None else {}
        found[name] = [
            racks_of(rows[number].replicas) if number in rows else frozenset()
            for number in range(len(rows))
        ]
    return found
