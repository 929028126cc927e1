"""Whether what was read or written is right: a count and the sum of the CRC-32 of all values, by
zlib, by Spark's `crc32`, and by a second program that reads back what was written.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Mapping

import confluent_kafka

from sparkkafka.client.cluster.offsets import OffsetLookup
from sparkkafka.client.values import TopicPartition
from tests.bench import data, rivals

SPARK_SUMS = ("count(*)", "coalesce(sum(crc32(value)), 0)")
"""SQL of the same count and sum."""

_LIMIT_S = 120.0


class WrongResultError(AssertionError):
    """A read or write that was measured did not do what it should have done."""


def sums(values: Iterable[bytes]) -> list[int | None]:
    """The count and the sum of hashes of these values."""
    hashes = [zlib.crc32(value) for value in values]
    return [len(hashes), sum(hashes)]


def compare(checks: Mapping[str, object], what: str) -> None:
    """Raise an error that shows all, unless the counts and sums are equal."""
    found = list(checks.values())
    if any(other != found[0] for other in found):
        raise WrongResultError(f"{what}: {dict(checks)}")


def ends(bootstrap_servers: str, topic: str, partitions: int) -> dict[int, int]:
    """The end offset of each partition."""
    chosen = [TopicPartition(topic, number) for number in range(partitions)]
    with data.open_cluster(bootstrap_servers) as cluster:
        _, end = OffsetLookup(cluster, "read_uncommitted").earliest_and_latest(chosen)
    return {partition.partition: end[partition] for partition in chosen}


def read_back(
    bootstrap_servers: str, topic: str, starts: Mapping[int, int]
) -> dict[str, list[int | None]]:
    """What confluent-kafka reads of each partition, from these offsets to its end: committed
    records only."""
    consumer = confluent_kafka.Consumer(_config(bootstrap_servers))
    left, found = set(starts), []
    begin = time.monotonic()
    try:
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, number, at) for number, at in starts.items()]
        )
        while left:
            for message in consumer.consume(num_messages=10_000, timeout=0.2):
                error = message.error()
                if error is None:
                    found.append(zlib.crc32(message.value()))
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    raise confluent_kafka.KafkaException(error)
            if time.monotonic() - begin > _LIMIT_S:
                raise TimeoutError(f"confluent-kafka did not reach the end of {topic}: {left}")
    finally:
        consumer.close()
    return {rivals.CONFLUENT: [len(found), sum(found)]}


def _config(bootstrap_servers: str) -> dict[str, object]:
    return {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "bench-check",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "check.crcs": True,
        **rivals.TUNED_FETCH,
    }
