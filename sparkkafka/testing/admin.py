"""The three requests that a test cluster needs, over one short blocking connection each."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

_API_VERSIONS, _METADATA, _CREATE_TOPICS = 18, 3, 19


@dataclass(frozen=True)
class ClusterView:
    """What one broker says about the cluster: its members, and leaders by topic and partition."""

    broker_ids: frozenset[int]
    leaders: Mapping[str, Mapping[int, int]]


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


class _Answer:
    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0

    def take(self, layout: str) -> int:
        (value,) = struct.unpack_from(">" + layout, self._data, self._position)
        self._position += struct.calcsize(">" + layout)
        return int(value)

    def string(self) -> str | None:
        length = self.take("h")
        if length < 0:
            return None
        self._position += length
        return self._data[self._position - length : self._position].decode()


def _call(
    address: tuple[str, int], api: int, version: int, body: bytes, timeout_seconds: float
) -> _Answer:
    header = struct.pack(">hhi", api, version, 1) + _string("sparkkafka-testing")
    with socket.create_connection(address, timeout_seconds) as connection:
        connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        with connection.makefile("rb") as stream:
            prefix = stream.read(4)
            data = stream.read(struct.unpack(">i", prefix)[0]) if len(prefix) == 4 else b""
    if len(data) < 4:
        raise ConnectionError(f"{address[0]}:{address[1]} closed the connection")
    answer = _Answer(data)
    answer.take("i")
    return answer


def answers(address: tuple[str, int], timeout_seconds: float) -> bool:
    """Whether a broker serves requests there. Raises nothing."""
    try:
        return _call(address, _API_VERSIONS, 0, b"", timeout_seconds).take("h") == 0
    except (OSError, struct.error):
        return False


def view(address: tuple[str, int], timeout_seconds: float) -> ClusterView:
    """The broker's view of the whole cluster. Raises OSError when it does not answer."""
    try:
        answer = _call(address, _METADATA, 4, struct.pack(">ib", -1, 0), timeout_seconds)
        answer.take("i")
        broker_ids = set()
        for _ in range(answer.take("i")):
            broker_ids.add(answer.take("i"))
            answer.string(), answer.take("i"), answer.string()
        answer.string(), answer.take("i")
        leaders: dict[str, dict[int, int]] = {}
        for _ in range(answer.take("i")):
            answer.take("h")
            topic = leaders.setdefault(str(answer.string()), {})
            answer.take("b")
            for _ in range(answer.take("i")):
                answer.take("h")
                partition = answer.take("i")
                topic[partition] = answer.take("i")
                for _ in range(2):
                    for _ in range(answer.take("i")):
                        answer.take("i")
    except struct.error as error:
        raise ConnectionError(f"unreadable metadata from {address}") from error
    return ClusterView(frozenset(broker_ids), leaders)


def create_topic(
    address: tuple[str, int],
    name: str,
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str],
    timeout_seconds: float,
) -> tuple[int, str | None]:
    """Asks for a topic; returns Kafka's error code (0 = done) and the broker's words."""
    settings = b"".join(_string(key) + _string(value) for key, value in configs.items())
    body = (
        struct.pack(">i", 1)
        + _string(name)
        + struct.pack(">ihii", partitions, replication_factor, 0, len(configs))
        + settings
        + struct.pack(">ib", int(timeout_seconds * 1000), 0)
    )
    answer = _call(address, _CREATE_TOPICS, 2, body, timeout_seconds)
    answer.take("i"), answer.take("i"), answer.string()
    return answer.take("h"), answer.string()
