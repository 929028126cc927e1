"""The state of consumer groups: committed offsets, and those of open transactions.

A broker keeps both in the partitions of __consumer_offsets. Here a partition of that topic is only
a number: a transaction names it, and its marker decides the pending offsets of the groups that the
partition would have. The cluster's lock guards the state.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import NamedTuple

from sparkkafka.errors import ErrorCode
from sparkkafka.testing.fake.groups.consumer_protocol import ConsumerProtocolGroup
from sparkkafka.testing.fake.groups.members import GroupState, Membership
from sparkkafka.testing.fake.groups.share_state import ShareGroup
from sparkkafka.testing.fake.log.producers import NO_EPOCH, Refused

OFFSETS_TOPIC = "__consumer_offsets"
# offsets.topic.num.partitions
OFFSETS_PARTITIONS = 50
# The default of offset.metadata.max.bytes.
METADATA_MAX_BYTES = 4096

TopicAndNumber = tuple[str, int]


class CommittedOffset(NamedTuple):
    """`serial` counts the commits of all groups, as offsets in __consumer_offsets do."""

    offset: int
    leader_epoch: int
    metadata: str
    serial: int = 0


@dataclass(slots=True)
class FakeGroup:
    """A group. Its members are in `membership` (classic), `consumer_protocol` (KIP-848) and
    `share`.

    With `has_members` it refuses commits from outside, as if it had members. `pending` are offsets
    of open transactions, by producer id.
    """

    offsets: dict[TopicAndNumber, CommittedOffset] = field(default_factory=dict)
    has_members: bool = False
    pending: dict[int, dict[TopicAndNumber, CommittedOffset]] = field(default_factory=dict)
    membership: Membership = field(default_factory=Membership)
    consumer_protocol: ConsumerProtocolGroup = field(default_factory=ConsumerProtocolGroup)
    share: ShareGroup = field(default_factory=ShareGroup)

    @property
    def exists(self) -> bool:
        return bool(self.offsets or self.pending or self.is_active)

    @property
    def is_active(self) -> bool:
        return bool(self.has_members or self.membership.members or self.consumer_protocol.members)

    def check_commit(self, member_id: str, instance_id: str | None, generation_id: int) -> None:
        """Raise Refused unless this member (or with empty arguments anyone) may commit."""
        assigned = self.consumer_protocol.members.get(member_id)
        if assigned is not None:
            if generation_id != assigned.epoch:
                raise Refused(ErrorCode.STALE_MEMBER_EPOCH, f"the epoch is {assigned.epoch}")
            return
        had_members = bool(self.membership.generation_id)
        if had_members and (member_id or generation_id >= 0):
            self.membership.check(member_id, instance_id, generation_id)
            if self.membership.state is GroupState.COMPLETING:
                raise Refused(ErrorCode.REBALANCE_IN_PROGRESS, "a rebalance is in progress")
            return
        if self.is_active:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "only members may commit")
        if generation_id >= 0:
            raise Refused(ErrorCode.ILLEGAL_GENERATION, "the group has no members")

    def is_pending(self, partition: TopicAndNumber) -> bool:
        return any(partition in rows for rows in self.pending.values())


@dataclass(slots=True)
class _Writer:
    """What a partition of __consumer_offsets knows of a producer id. `is_open`: it has offsets
    there whose transaction has no marker yet."""

    epoch: int = NO_EPOCH
    is_open: bool = False


class Groups:
    """The groups of a cluster. A group is made when it is first named."""

    def __init__(self) -> None:
        self.max_metadata_bytes = METADATA_MAX_BYTES
        self.max_groups: int | None = None
        self._by_id: dict[str, FakeGroup] = {}
        self._writers: dict[tuple[int, int], _Writer] = {}
        self._serial = 0

    def group(self, group_id: str) -> FakeGroup:
        return self._by_id.setdefault(group_id, FakeGroup())

    def existing(self) -> list[tuple[str, FakeGroup]]:
        """Return (id, group) of those that have offsets or members."""
        return [(group_id, group) for group_id, group in self._by_id.items() if group.exists]

    def takes(self, group_id: str) -> bool:
        """Return whether a member of this group may join: the limit is for new groups."""
        ids = [known for known, _ in self.existing()]
        return self.max_groups is None or group_id in ids or len(ids) < self.max_groups

    def delete(self, group_id: str) -> None:
        self._by_id.pop(group_id, None)

    def delete_offsets_of(self, topic: str) -> None:
        """Delete all groups' offsets of a topic that is deleted, as coordinators do."""
        for group in self._by_id.values():
            for rows in (group.offsets, *group.pending.values()):
                for partition in [partition for partition in rows if partition[0] == topic]:
                    del rows[partition]

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def has_pending(self, number: int, producer_id: int, producer_epoch: int) -> bool:
        """Return whether the producer has offsets in partition `number` of __consumer_offsets whose
        transaction has no marker yet."""
        writer = self._writers.get((number, producer_id))
        return writer is not None and writer.is_open and writer.epoch == producer_epoch

    def add_pending(
        self,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        offsets: dict[TopicAndNumber, CommittedOffset],
    ) -> None:
        """Add offsets that count once the transaction commits. Raises Refused for an old epoch."""
        key = (offsets_partition(group_id), producer_id)
        writer = self._writers.setdefault(key, _Writer())
        if producer_epoch < writer.epoch:
            raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH, f"the epoch is {writer.epoch}")
        if offsets:
            writer.epoch, writer.is_open = producer_epoch, True
            self.group(group_id).pending.setdefault(producer_id, {}).update(offsets)

    def append_marker(
        self, number: int, producer_id: int, producer_epoch: int, *, commit: bool
    ) -> None:
        """End a producer's transaction in partition `number` of __consumer_offsets."""
        self._writers[number, producer_id] = _Writer(producer_epoch)
        for group_id, group in self._by_id.items():
            if offsets_partition(group_id) != number:
                continue
            for partition, row in group.pending.pop(producer_id, {}).items():
                known = group.offsets.get(partition)
                # A plain commit that came after the one in the transaction stays.
                if commit and (known is None or row.serial > known.serial):
                    group.offsets[partition] = row


class OffsetsPartition(NamedTuple):
    """A partition of __consumer_offsets, to which transactions append markers."""

    groups: Groups
    number: int

    def append_marker(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        self.groups.append_marker(self.number, producer_id, producer_epoch, commit=commit)


def offsets_partition(group_id: str) -> int:
    """Return the partition of __consumer_offsets for a group (a real broker uses Java's hash)."""
    return zlib.crc32(group_id.encode()) % OFFSETS_PARTITIONS
