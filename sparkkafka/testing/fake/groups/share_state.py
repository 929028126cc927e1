"""The state of share groups (KIP-932): acquired records and sessions. The cluster's lock guards
it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.messages import AcknowledgementBatch, AcquiredRecords, HeartbeatAssignment

RELEASE = 2
RENEW = 4

Partition = tuple[uuid.UUID, int]


@dataclass(slots=True)
class SharePartition:
    """A partition of a share group. `start` is the first offset that is not completed; `done` are
    completed ones after it. `held` has the member that acquired an offset, as the leader of
    `leader_epoch` knows it; `deliveries` count how often an offset was acquired."""

    start: int
    leader_epoch: int = 0
    done: set[int] = field(default_factory=set)
    held: dict[int, str] = field(default_factory=dict)
    deliveries: dict[int, int] = field(default_factory=dict)

    def acquire(self, member_id: str, end: int, max_records: int) -> list[AcquiredRecords]:
        """Acquire free offsets before `end`, and return them as ranges with one delivery count."""
        free = [
            offset
            for offset in range(self.start, end)
            if offset not in self.done and offset not in self.held
        ][:max_records]
        for offset in free:
            self.held[offset] = member_id
            self.deliveries[offset] = self.deliveries.get(offset, 0) + 1
        runs = groupby(enumerate(free), lambda row: (row[1] - row[0], self.deliveries[row[1]]))
        found = []
        for (_, count), rows in runs:
            offsets = [offset for _, offset in rows]
            found.append(
                AcquiredRecords(
                    first_offset=offsets[0], last_offset=offsets[-1], delivery_count=count
                )
            )
        return found

    def acknowledge(
        self, member_id: str, batches: Iterable[AcknowledgementBatch], *, may_renew: bool
    ) -> int:
        """Complete, release or renew acquired offsets. Returns an error code, 0 if the member had
        acquired all of them."""
        decided: dict[int, int] = {}
        for batch in batches:
            offsets = range(batch.first_offset, batch.last_offset + 1)
            kinds = batch.acknowledge_types
            if len(kinds) not in (1, len(offsets)) or (decided and max(decided) >= offsets.start):
                return ErrorCode.INVALID_REQUEST
            kinds = kinds * len(offsets) if len(kinds) == 1 else kinds
            decided.update(zip(offsets, kinds, strict=True))
        if any(self.held.get(offset) != member_id for offset in decided):
            return ErrorCode.INVALID_RECORD_STATE
        if RENEW in decided.values() and not may_renew:
            return ErrorCode.INVALID_REQUEST
        for offset, kind in decided.items():
            if kind == RENEW:
                continue
            del self.held[offset]
            if kind != RELEASE:
                self.done.add(offset)
        while self.start in self.done:
            self.done.discard(self.start)
            self.start += 1
        return 0

    def release(self, member_id: str) -> None:
        self.held = {offset: holder for offset, holder in self.held.items() if holder != member_id}


@dataclass(slots=True)
class ShareGroup:
    """A share group. `members` have (epoch, topics); `sessions` have the epoch of the next request
    and the partitions, by member and broker."""

    members: dict[str, tuple[int, frozenset[str]]] = field(default_factory=dict)
    reported: dict[str, HeartbeatAssignment] = field(default_factory=dict)
    partitions: dict[Partition, SharePartition] = field(default_factory=dict)
    sessions: dict[tuple[str, int], tuple[int, set[Partition]]] = field(default_factory=dict)
