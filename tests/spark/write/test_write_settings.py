"""Producer settings that choose partitions, as brokers see them. A task's code, no session."""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from sparkkafka.config.options import parse_write_options
from sparkkafka.errors import KafkaError
from sparkkafka.protocol.partitioning import KEY_RULES
from sparkkafka.spark.write.writer import KafkaBatchWriter
from tests.client.support import log_values
from tests.spark.schemas import ddl

KEYS = [b"key-%d" % number for number in range(60)]
PARTITIONS = 5
QUICK = {"kafka.request.timeout.ms": "3000", "kafka.retry.backoff.ms": "5"}


def rows(keys: Iterable[bytes | None]) -> pa.RecordBatch:
    keys = list(keys)
    return pa.record_batch(
        [pa.array(keys, pa.binary()), pa.array([key or b"none" for key in keys], pa.binary())],
        names=["key", "value"],
    )


def write(servers: str, data: Iterator[pa.RecordBatch], **config: str) -> Any:
    """One task's write to the topic t; Kafka's names with underscores for dots."""
    given = {f"kafka.{name.replace('_', '.')}": value for name, value in config.items()}
    options = parse_write_options(
        {"kafka.bootstrap.servers": servers, "topic": "t", **QUICK, **given}
    )
    return KafkaBatchWriter(options, ddl("key binary, value binary")).write(data)


def placed(cluster: Any) -> dict[int, list[bytes | None]]:
    """What each partition of t holds."""
    return {p: log_values(cluster, "t", p) for p in range(PARTITIONS)}


def by_rule(name: str) -> dict[int, list[bytes]]:
    chosen = KEY_RULES[name].partitions(pa.array(KEYS, pa.binary()), PARTITIONS).tolist()
    return {
        p: [key for key, at in zip(KEYS, chosen, strict=True) if at == p] for p in range(PARTITIONS)
    }


@pytest.mark.parametrize("name", sorted(KEY_RULES))
def test_partitioner_class_chooses_by_key(fake_cluster, name):
    fake_cluster.create_topic("t", partitions=PARTITIONS)
    write(fake_cluster.bootstrap_servers, iter([rows(KEYS)]), partitioner_class=name)
    assert placed(fake_cluster) == by_rule(name)
    if name == "consistent":
        assert placed(fake_cluster)[0] == [k for k in KEYS if zlib.crc32(k) % PARTITIONS == 0]


def test_the_default_is_java_s(fake_cluster):
    fake_cluster.create_topic("t", partitions=PARTITIONS)
    write(fake_cluster.bootstrap_servers, iter([rows(KEYS)]))
    assert placed(fake_cluster) == by_rule("murmur2_random")


def test_round_robin_ignores_keys(fake_cluster):
    fake_cluster.create_topic("t", partitions=PARTITIONS)
    java = "org.apache.kafka.clients.producer.RoundRobinPartitioner"
    data = iter([rows([b"same"] * 7), rows([None] * 6), rows([b"same"] * 12)])
    write(fake_cluster.bootstrap_servers, data, partitioner_class=java)
    assert {len(values) for values in placed(fake_cluster).values()} == {5}


@pytest.mark.parametrize(
    "config",
    [
        {"partitioner_ignore_keys": "true"},
        {"partitioner_class": "org.apache.kafka.clients.producer.UniformStickyPartitioner"},
        {"partitioner_class": "random"},
    ],
)
def test_rows_with_keys_stay_on_a_partition_when_keys_are_ignored(fake_cluster, config):
    fake_cluster.create_topic("t", partitions=PARTITIONS)
    write(fake_cluster.bootstrap_servers, iter([rows(KEYS)]), **config)
    assert Counter(map(len, placed(fake_cluster).values())) == {0: PARTITIONS - 1, len(KEYS): 1}


@pytest.mark.parametrize(("age_ms", "found"), [("1000", True), ("300000", False)])
def test_partitions_that_are_added_get_rows_once_metadata_are_too_old(fake_cluster, age_ms, found):
    fake_cluster.create_topic("t", partitions=1)

    def data() -> Iterator[pa.RecordBatch]:
        yield rows(KEYS)
        fake_cluster.add_partitions("t", PARTITIONS)
        for _ in range(4):
            time.sleep(0.4)
            yield rows(KEYS)

    soon = {"metadata_max_age_ms": age_ms, "linger_ms": "0"}  # a send looks whether they are
    message = write(fake_cluster.bootstrap_servers, data(), **soon)
    assert (len(message.partitions) > 1) == found
    assert sum(len(values) for values in placed(fake_cluster).values()) == 5 * len(KEYS)


def test_max_block_ms_ends_the_wait_for_metadata():
    with pytest.raises(KafkaError, match=r"0\.3 s.*can be reached"):  # else a minute
        write("127.0.0.1:1", iter([rows(KEYS)]), max_block_ms="300")
