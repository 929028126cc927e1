"""The range assignment: each topic by itself, a run of neighbouring partitions to each subscriber.

The rules are those of Java's RangeAssignor. Where racks matter (KIP-881), a subscriber first gets
what is near, as much of it as it may have. Topics that have as many partitions and the same
subscribers go together: members get the same numbers of all of them, as a join needs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkkafka.client.group.racks import PartitionRacks, Racks
from sparkkafka.client.group.sticky_assignor import Assignments
from sparkkafka.client.values import TopicPartition


def assign_ranges(
    partition_counts: Mapping[str, int],
    subscribers: Mapping[str, Sequence[str]],
    member_racks: Mapping[str, str | None],
    partition_racks: PartitionRacks,
) -> Assignments:
    """`subscribers` of each topic, in the order in which they get theirs."""
    topics = [
        _Topic(name, partition_counts[name], members, member_racks, partition_racks)
        for name, members in sorted(subscribers.items())
        if partition_counts.get(name)
    ]
    if any(topic.racks for topic in topics):
        together: dict[tuple[tuple[str, ...], int], list[_Topic]] = {}
        for topic in topics:
            together.setdefault((topic.members, len(topic.unassigned)), []).append(topic)
        for group in together.values():
            if len(group) > 1:
                _assign_near_together(group)
            else:
                group[0].assign_ranges(near_only=True)
    assigned: Assignments = {member: [] for member in member_racks}
    for topic in topics:
        topic.assign_ranges()
        for member, numbers in topic.assigned.items():
            assigned[member] += [TopicPartition(topic.name, n) for n in sorted(numbers)]
    return assigned


class _Topic:
    def __init__(
        self,
        name: str,
        count: int,
        members: Sequence[str],
        member_racks: Mapping[str, str | None],
        partition_racks: PartitionRacks,
    ) -> None:
        self.name = name
        self.members = tuple(members)
        mine = {member: member_racks.get(member) for member in members}
        self.racks = Racks(mine, partition_racks, [name])
        self.unassigned = dict.fromkeys(range(count))
        self.assigned: dict[str, list[int]] = {member: [] for member in members}
        self._each, self._more = divmod(count, len(members))

    def room(self, member: str) -> int:
        """How many more the member may have."""
        return self._each + (self._more > 0) - len(self.assigned[member])

    def near(self, member: str, number: int) -> bool:
        return self.racks.near(member, TopicPartition(self.name, number))

    def give(self, member: str, numbers: Sequence[int]) -> None:
        mine = self.assigned[member]
        mine += numbers
        self._more -= len(mine) > self._each
        for number in numbers:
            del self.unassigned[number]

    def assign_ranges(self, *, near_only: bool = False) -> None:
        if near_only and not self.racks:
            return
        for member in self.members:
            room = self.room(member)
            numbers: list[int] = []
            for number in self.unassigned:
                if len(numbers) >= room:
                    break
                if not near_only or self.near(member, number):
                    numbers.append(number)
            if numbers:
                self.give(member, numbers)


def _assign_near_together(topics: Sequence[_Topic]) -> None:
    """Each number of all these topics to the first member that is near all of these partitions."""
    members = dict.fromkeys(topics[0].members)
    for number in range(len(topics[0].unassigned)):
        for member in members:
            if all(topic.room(member) > 0 and topic.near(member, number) for topic in topics):
                for topic in topics:
                    topic.give(member, [number])
                if topics[0].room(member) <= 0:
                    del members[member]
                break
