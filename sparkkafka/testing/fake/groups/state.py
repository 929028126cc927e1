"""What a fake cluster knows of consumer groups: their offsets, those of open transactions as well.

A broker keeps both in the partitions of __consumer_offsets. Here a partition of that topic is only
a number: a transaction names it, and its marker decides the offsets of the groups that are kept
there. Plain state without sockets and threads; the cluster's lock guards it.
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
    """A consumer group. With `has_members` it takes no commits from outside, as if it had some;
    `membership` and `consumer_protocol` are those that it has.

    `pending` are offsets of open transactions, by producer id.
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
        """Whether this one may commit. Raises Refused."""
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
    """A producer id in a partition of __consumer_offsets."""

    epoch: int = NO_EPOCH
    is_open: bool = False


class Groups:
    """The groups of a cluster; each comes into being when it is first named."""

    def __init__(self) -> None:
        self.max_metadata_bytes = METADATA_MAX_BYTES
        self._by_id: dict[str, FakeGroup] = {}
        self._writers: dict[tuple[int, int], _Writer] = {}
        self._serial = 0

    def group(self, group_id: str) -> FakeGroup:
        return self._by_id.setdefault(group_id, FakeGroup())

    def known(self) -> list[tuple[str, FakeGroup]]:
        """The groups that have something, by their ids."""
        return [(group_id, group) for group_id, group in self._by_id.items() if group.exists]

    def delete(self, group_id: str) -> None:
        self._by_id.pop(group_id, None)

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def has_open(self, number: int, producer_id: int, producer_epoch: int) -> bool:
        """Whether this writer has offsets there whose transaction has no marker yet."""
        writer = self._writers.get((number, producer_id))
        return writer is not None and writer.is_open and writer.epoch == producer_epoch

    def add_pending(
        self,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        offsets: dict[TopicAndNumber, CommittedOffset],
    ) -> None:
        """Offsets that count once the marker comes. Raises Refused for an old epoch."""
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
        """A producer's transaction ends in partition `number` of __consumer_offsets."""
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
    """A partition of __consumer_offsets as transactions see it: something that takes markers."""

    groups: Groups
    number: int

    def append_marker(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        self.groups.append_marker(self.number, producer_id, producer_epoch, commit=commit)


def offsets_partition(group_id: str) -> int:
    """The partition of __consumer_offsets that has a group (a broker takes Java's hash)."""
    return zlib.crc32(group_id.encode()) % OFFSETS_PARTITIONS
