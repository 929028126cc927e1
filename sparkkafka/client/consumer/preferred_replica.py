"""Which replica of one partition to read from: its leader, or one that the leader named (KIP-392).

A leader that knows the reader's rack (client.rack) may answer a Fetch with the id of a replica that
is nearer, and no records. That replica lags a little, and may fail by itself; what it says of
offsets is never the last word.
"""

from __future__ import annotations

import time

# After a replica failed, the leader itself is read from for so long. Java asks the leader again at
# once, which names the same replica until it has noticed the failure too.
LEADER_ONLY_MS = 30_000

# Up to this version of Fetch a leader is not told the rack, and names no replica.
LEADER_ONLY_FETCH_VERSION = 10


class ReadReplica:
    """The choice for one partition. What a leader said holds for `lease_ms`."""

    def __init__(self, lease_ms: float) -> None:
        self._lease_s = lease_ms / 1000
        self._node_id: int | None = None
        self._until_s = 0.0
        self._leader_only_until_s = 0.0

    @property
    def node_id(self) -> int | None:
        """The broker to read from, None for the leader."""
        if self._node_id is not None and time.monotonic() >= self._until_s:
            self._node_id = None
        return self._node_id

    @property
    def leader_only(self) -> bool:
        """Whether the leader is not to name a replica now."""
        return time.monotonic() < self._leader_only_until_s

    def follow(self, node_id: int) -> None:
        """The leader has named a replica."""
        self._node_id = node_id
        self._until_s = time.monotonic() + self._lease_s

    def give_up(self) -> None:
        """The replica is of no use: back to the leader."""
        self._node_id = None
        self._leader_only_until_s = time.monotonic() + LEADER_ONLY_MS / 1000
