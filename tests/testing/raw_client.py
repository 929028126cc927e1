"""A client of few lines: a socket and Framing. No retries, so that tests see each response."""

from __future__ import annotations

import socket
import time
from types import TracebackType
from typing import Any, Self

from sparkkafka.protocol.framing import Framing
from sparkkafka.protocol.messages import (
    ApiVersionsRequest,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    PartitionData,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.support import reference
from tests.support.reference import Record

TIMEOUT_S = 10.0


class Closed(Exception):
    """The broker closed the connection; `rest` is what it had sent of a frame."""

    def __init__(self, rest: bytes = b"") -> None:
        super().__init__(f"closed after {rest!r}")
        self.rest = rest


class RawClient:
    """Talks to one broker of a fake cluster. Makes the ApiVersions handshake unless told not to."""

    def __init__(self, cluster: FakeCluster, broker: int = 0, *, handshake: bool = True) -> None:
        host, _, port = cluster.address(broker).rpartition(":")
        self.sock = socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S)
        self.framing = Framing("raw")
        if handshake:
            response = self.call(ApiVersionsRequest(), 0)
            self.framing.versions = {
                row.api_key: (row.min_version, row.max_version) for row in response.api_keys
            }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.sock.close()

    def send(
        self, request: Any, version: int | None = None, *, expect_response: bool = True
    ) -> None:
        _, frame = self.framing.send(request, version, expect_response=expect_response)
        self.sock.sendall(frame)

    def receive(self) -> Any:
        size = self.framing.frame_length(self.read(4))
        return self.framing.receive(self.read(size))[1]

    def call(self, request: Any, version: int | None = None) -> Any:
        self.send(request, version)
        return self.receive()

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                more = self.sock.recv(size - len(data))
            except ConnectionError:
                more = b""
            if not more:
                raise Closed(data)
            data += more
        return data

    # --- shorthands for one partition ------------------------------------------------------------

    def produce(
        self,
        topic: str,
        partition: int,
        data: bytes,
        *,
        acks: int = -1,
        version: int | None = None,
    ) -> PartitionProduceResponse:
        response = self.call(produce_request(topic, partition, data, acks=acks), version)
        return response.responses[0].partition_responses[0]

    def fetch(
        self, topic: str, partition: int, offset: int, version: int | None = None, **options: Any
    ) -> PartitionData:
        response = self.call(fetch_request(topic, partition, offset, **options), version)
        assert response.error_code == 0
        return response.responses[0].partitions[0]

    def offset(
        self, topic: str, partition: int, timestamp: int, *, isolation: int = 0, epoch: int = -1
    ) -> Any:
        response = self.call(
            ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation,
                topics=[
                    ListOffsetsTopic(
                        name=topic,
                        partitions=[
                            ListOffsetsPartition(
                                partition_index=partition,
                                timestamp=timestamp,
                                current_leader_epoch=epoch,
                            )
                        ],
                    )
                ],
            )
        )
        return response.topics[0].partitions[0]


def produce_request(topic: str, partition: int, data: bytes, *, acks: int = -1) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[
            TopicProduceData(
                name=topic, partition_data=[PartitionProduceData(index=partition, records=data)]
            )
        ],
    )


def fetch_request(
    topic: str,
    partition: int,
    offset: int,
    *,
    max_bytes: int = 1 << 20,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    isolation: int = 0,
    epoch: int = -1,
    last_fetched_epoch: int = -1,
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        isolation_level=isolation,
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(
                        partition=partition,
                        fetch_offset=offset,
                        partition_max_bytes=max_bytes,
                        current_leader_epoch=epoch,
                        last_fetched_epoch=last_fetched_epoch,
                    )
                ],
            )
        ],
    )


def batch(values: list[bytes], *, time_ms: int | None = None, **fields: Any) -> bytes:
    """One batch of keyless records, by the reference codec."""
    first_ms = int(time.time() * 1000) if time_ms is None else time_ms
    base = fields.get("base_offset", 0)
    rows = [
        Record(base + index, first_ms + index, None, value) for index, value in enumerate(values)
    ]
    return reference.encode_batch(rows, **fields)


def sequenced(
    values: list[bytes],
    sequence: int,
    *,
    producer_id: int = 7,
    epoch: int = 0,
    attributes: int = 0,
) -> bytes:
    """The same from an idempotent producer."""
    return batch(
        values,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=attributes,
    )
