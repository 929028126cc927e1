"""One of the brokers that a consumer reads from: its connection, the request in flight on it."""

from __future__ import annotations

import time
from collections.abc import Callable

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.connecting import Connecting
from sparkkafka.client.consumer.fetch_response import IDLE_BACKOFF_MAX_MS, IDLE_BACKOFF_MS
from sparkkafka.client.consumer.partition_state import PartitionState
from sparkkafka.client.deadline import Backoff
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.net.frame_buffer import FrameBuffer
from sparkkafka.client.values import Broker, TopicPartition


class AskedPartition:
    """A partition in a request, and what it was asked for."""

    __slots__ = ("offset", "state")

    def __init__(self, state: PartitionState, offset: int) -> None:
        self.state = state
        self.offset = offset

    def is_current(self, is_fetch: bool) -> bool:
        """Whether the answer is still wanted: a seek may have come between."""
        state = self.state
        if is_fetch:
            return state.fetch_offset == self.offset
        return state.fetch_offset is None and state.lookup == self.offset


class LeaderConnection:
    """One broker: its connection and the request in flight."""

    def __init__(self, node_id: int, backoff: Backoff) -> None:
        self.node_id = node_id
        self.connection: Connection | None = None
        self.connecting: Connecting | None = None
        self.asked: dict[TopicPartition, AskedPartition] = {}
        self.is_fetch = False
        self.sent_s = 0.0
        self.not_before_s = 0.0
        self.backoff = backoff
        self.idle = Backoff(IDLE_BACKOFF_MS, IDLE_BACKOFF_MAX_MS)
        self.buffer: FrameBuffer | None = None  # being filled
        self.spare: list[FrameBuffer] = []

    def open(self, broker: Broker, cluster: Cluster, done: Callable[[], None]) -> Connection | None:
        """The connection to `broker`, None while it is being made; `done` is called then.

        Raises what connecting raised.
        """
        connection = self.connection
        if connection is not None and connection.is_open:
            if (connection.host, connection.port) == broker[1:3]:
                return connection
            self.close()  # the broker moved to another address
        if self.connecting is None:
            self.connecting = Connecting(broker, cluster, done)
            return None
        if not self.connecting.has_ended:
            return None
        connecting, self.connecting = self.connecting, None
        self.connection = connecting.result()
        return self.connection

    def close(self) -> None:
        """Forget the connection, and what is in flight on it."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        if self.connecting is not None:
            self.connecting.abandon()
            self.connecting = None
        for asked in self.asked.values():
            asked.state.in_flight = False
        self.asked = {}
        self.buffer = None

    def wait(self) -> None:
        self.not_before_s = time.monotonic() + self.backoff.next_ms() / 1000
