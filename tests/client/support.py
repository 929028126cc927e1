"""Short ways to write and read through the client, for tests with fake brokers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.offsets import OffsetLookup
from sparkkafka.client.consumer.range_reader import PlannedRange, RangeReader
from sparkkafka.client.group.committed_offsets import commit_group_offsets, fetch_committed
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition
from sparkkafka.protocol.columns.columns import Selection
from sparkkafka.protocol.columns.encode import RecordColumns
from sparkkafka.protocol.constants import LATEST
from sparkkafka.protocol.messages import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import Fault, RecordedRequest
from tests.support.options import parse_client_options, parse_fetch_options, parse_producer_options
from tests.support.partition_producer import PartitionProducer

# Short waits: a fake broker answers immediately, and a test that hangs should not hang for long.
QUICK = {
    "request.timeout.ms": "15000",
    "default.api.timeout.ms": "30000",
    "retry.backoff.ms": "5",
    "retry.backoff.max.ms": "40",
}


def settings(bootstrap: Any, **config: Any) -> dict[str, str]:
    """Kafka's names with underscores for dots; `bootstrap` is a cluster or host:port text."""
    servers = getattr(bootstrap, "bootstrap_servers", bootstrap)
    given = {name.replace("_", "."): str(value) for name, value in config.items()}
    return {"bootstrap.servers": servers} | QUICK | given


def open_cluster(bootstrap: Any, **config: Any) -> Cluster:
    return Cluster(parse_client_options(settings(bootstrap, **config)))


def commit_offsets(
    cluster: Cluster,
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    *,
    metadata: str = "",
    **more: Any,
) -> None:
    """`commit_group_offsets` with the same text beside all offsets."""
    stored = {tp: OffsetAndMetadata(offset, metadata) for tp, offset in offsets.items()}
    commit_group_offsets(cluster, group_id, stored, **more)


def committed_offsets(
    cluster: Cluster, group_id: str, partitions: Iterable[TopicPartition], **more: Any
) -> dict[TopicPartition, int]:
    """`fetch_committed` without epochs and texts."""
    found = fetch_committed(cluster, group_id, partitions, **more)
    return {tp: row.offset for tp, row in found.items()}


def values_of(numbers: range) -> RecordColumns:
    """One record a number, its decimal text as value."""
    return RecordColumns(
        keys=None,
        values=pa.array([b"%d" % n for n in numbers], pa.binary()),
        headers=None,
        timestamps_ms=np.full(len(numbers), 1_700_000_000_000, np.int64),
    )


def write(
    bootstrap: Any,
    topic: str,
    count: int,
    *,
    partitions: int = 1,
    per_send: int = 50,
    **config: Any,
) -> Any:
    """Write numbers 0..count-1, in turns of `per_send` to each partition; returns the metrics."""
    with (
        open_cluster(bootstrap, **config) as cluster,
        PartitionProducer(
            cluster, parse_producer_options(settings(bootstrap, **config))
        ) as producer,
    ):
        for turn, start in enumerate(range(0, count, per_send)):
            numbers = range(start, min(start + per_send, count))
            producer.send(topic, turn % partitions, values_of(numbers))
        producer.flush()
        return producer.metrics


def fill(cluster: FakeCluster, topic: str, count: int, **how: Any) -> None:
    """Append what `write` writes, without a producer, which takes most of a reader's test."""
    for partition, data in enumerate(_logs(count, tuple(how.items()))):
        cluster.append(topic, partition, data, assign_offsets=True)


@functools.cache
def _logs(count: int, how: tuple[tuple[str, Any], ...]) -> list[bytes]:
    """What `write` leaves in each partition."""
    partitions = dict(how).get("partitions", 1)
    with FakeCluster() as cluster:
        cluster.create_topic("t", partitions=partitions)
        write(cluster, "t", count, enable_idempotence="false", **dict(how))
        return [cluster.log("t", partition).raw() for partition in range(partitions)]


def reader(
    cluster: Cluster, topic: str, start: int, end: int, *, partition: int = 0, **config: Any
) -> RangeReader:
    fail = config.pop("fail_on_data_loss", True)
    timeout_ms = config.pop("poll_timeout_ms", 5_000)
    more = {name: config.pop(name) for name in ("topic_id",) if name in config}
    return RangeReader(
        cluster,
        {TopicPartition(topic, partition): PlannedRange(Selection(start, end), **more)},
        parse_fetch_options(settings("unused:1", **config)),
        poll_timeout_ms=timeout_ms,
        fail_on_data_loss=fail,
    )


def read(bootstrap: Any, topic: str, *, partition: int = 0, **config: Any) -> list[bytes | None]:
    """Values of one partition, from its first offset to its end offset of now."""
    tp = TopicPartition(topic, partition)
    isolation = str(config.get("isolation_level", "read_uncommitted"))
    with open_cluster(bootstrap) as cluster:
        first, end = OffsetLookup(cluster, isolation).earliest_and_latest([tp])
        return read_range(cluster, topic, first[tp], end[tp], partition=partition, **config)


def read_range(
    cluster: Cluster, topic: str, start: int, end: int, **config: Any
) -> list[bytes | None]:
    with reader(cluster, topic, start, end, **config) as source:
        return [value for _, records in source for value in records.values.to_pylist()]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def log_values(cluster: Any, topic: str, partition: int = 0) -> list[bytes | None]:
    """What the fake broker's log holds, read by the fake's own record code."""
    return [record.value for record in cluster.log(topic, partition).records()]


def list_short_ends(cluster: FakeCluster) -> Fault:
    """From now on the brokers answer ListOffsets as Tansu 0.6 does: a log ends one offset behind
    the first one of its last batch."""

    def respond(request: RecordedRequest) -> ListOffsetsResponse | None:
        topics = request.message.topics
        if any(row.timestamp != LATEST for topic in topics for row in topic.partitions):
            return None
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        ListOffsetsPartitionResponse(
                            partition_index=row.partition_index,
                            offset=short_end(topic.name, row.partition_index),
                        )
                        for row in topic.partitions
                    ],
                )
                for topic in topics
            ]
        )

    def short_end(topic: str, partition: int) -> int:
        batches = cluster.log(topic, partition).batches()
        return batches[-1].base_offset + 1 if batches else 0

    return cluster.fault(respond, api="ListOffsets", times=None)
