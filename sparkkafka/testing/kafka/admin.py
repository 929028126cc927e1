"""The two requests that a test cluster needs, each over a short connection of its own.

They do not use the client library, because a test cluster queries one broker for what this broker
knows, without caches, retries and other brokers.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkkafka.protocol.framing import PREFIX_BYTES, Framing
from sparkkafka.protocol.messages import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    MetadataRequest,
)
from sparkkafka.protocol.wire.schema import Request

_VERSION = 4  # every broker from 2.1 on has it for both requests, so ApiVersions is not needed


@dataclass(frozen=True)
class ClusterView:
    """The cluster as one broker knows it: the brokers, and leaders by topic and partition."""

    broker_ids: frozenset[int]
    leaders: Mapping[str, Mapping[int, int]]


def view(address: tuple[str, int], timeout_seconds: float) -> ClusterView:
    """Return the cluster as this broker knows it. Raises OSError if it does not answer."""
    response = _call(address, MetadataRequest(topics=None), _VERSION, timeout_seconds)
    return ClusterView(
        frozenset(broker.node_id for broker in response.brokers),
        {
            topic.name: {p.partition_index: p.leader_id for p in topic.partitions}
            for topic in response.topics
        },
    )


def create_topic(
    address: tuple[str, int],
    name: str,
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str],
    timeout_seconds: float,
) -> tuple[int, str | None]:
    """Create a topic. Returns Kafka's error code (0: done) and the broker's message."""
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=[],
        configs=[CreatableTopicConfig(name=k, value=v) for k, v in configs.items()],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=int(timeout_seconds * 1000))
    (result,) = _call(address, request, _VERSION, timeout_seconds).topics
    return result.error_code, result.error_message


def _call(
    address: tuple[str, int], request: Request[Any], version: int, timeout_seconds: float
) -> Any:
    """Send one request over a new connection, and return the response."""
    framing = Framing("sparkkafka-testing")
    _, frame = framing.send(request, version)
    with socket.create_connection(address, timeout_seconds) as connection:
        connection.sendall(frame)
        with connection.makefile("rb") as stream:
            prefix = stream.read(PREFIX_BYTES)
            if len(prefix) < PREFIX_BYTES:
                raise ConnectionError(f"{address[0]}:{address[1]} closed the connection")
            payload = stream.read(framing.frame_length(prefix))
    return framing.receive(payload)[1]
